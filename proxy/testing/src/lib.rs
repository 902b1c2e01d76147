//! What several tests of the proxy need: a data plane on loopback with its configuration, and clients and backends to put
//! around it. One that is not used is seen by a test in `cli/tests/rings`.
#![allow(
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    reason = "tests call all of it: a panic fails the test, and nothing is called for no reason"
)]

pub mod acme;
pub mod component;
mod net;
mod pki;
mod resources;
mod rig;
pub mod sink;
mod waiting;
pub mod web;

pub use net::*;
pub use pki::{Authority, Identity, client_config, client_config_with, provider, tls};
pub use resources::*;
pub use rig::{Rig, value};
pub use waiting::{PATIENCE, wait, within};
