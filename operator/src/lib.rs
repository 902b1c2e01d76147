//! The operator: objects in, configuration for the proxies and statuses out.
//!
//! [`translate`] is the pure core, and [`control`] the loop around it.

pub mod certmanager;
pub mod claims;
mod clock;
pub mod cluster;
pub mod control;
pub mod issuance;
pub mod localca;
pub mod map_channel;
pub mod publish;
mod resource_version;
pub mod session_keys;
pub mod status;
mod token_bucket;
pub mod translate;
