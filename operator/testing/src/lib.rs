//! What several tests of the operator need. One that is not used is seen by a test in `cli/tests/rings`.
#![allow(
    clippy::missing_panics_doc,
    reason = "what panics here fails the test that called it"
)]

pub mod apiserver;
pub mod claims;
pub mod grants;
pub mod http;
pub mod objects;
pub mod secure;
pub mod stream;
pub mod tls;
