//! What several tests of the operator need. One that is not used is seen by a test in `cli/tests/rings`.
#![allow(
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    reason = "tests call all of it: a panic fails the test, and nothing is called for no reason"
)]

pub mod apiserver;
pub mod claims;
pub mod grants;
pub mod http;
pub mod objects;
pub mod parameters;
pub mod secure;
pub mod store;
pub mod stream;
pub mod tls;
