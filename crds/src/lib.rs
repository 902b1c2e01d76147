//! Wire types of the Kubernetes objects that Vestibule reads, and their conversion into the model. No other crate
//! knows the wire form.
//!
//! [`decode`] accepts any JSON and never fails: what is wrong becomes a finding of the part that it concerns.
//! [`yaml`] reads manifests. [`status`] renders statuses. `watch` (a feature) follows the API server.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]
// Names of kinds are ordinary words in this text, although most of them are also names of types.
#![allow(clippy::doc_markdown)]

mod certificate;
mod core;
mod decode;
mod duration;
pub mod gateway_api;
mod meta;
mod names;
mod schema;
pub mod status;
mod text;
mod unknown;
pub mod vestibule;
#[cfg(feature = "watch")]
pub mod watch;
pub mod yaml;

pub use certificate::CERTIFICATE_ANNOTATIONS;
pub use decode::{Decoded, decode, flatten};
pub use names::is_subdomain;
