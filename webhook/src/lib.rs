//! Validating admission: decides whether an object may be created or changed, by the objects that exist already.
//!
//! This crate is a thin layer over `vestibule-model`, which has the rules. Admission is only advice: concurrent creates
//! race with each other, and a webhook can be down. So the status also shows everything that admission refuses, and an
//! object that it allows may still not be served.
//!
//! [`Reviewer`] judges one object by an [`AdmissionState`]. [`Admission`] keeps the state and answers questions.
//! [`review_bytes`] reads and writes the envelope of the API server.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

mod admission;
mod admission_state;
mod envelope;
mod pending;
mod review;
mod rules;
mod same;
#[cfg(feature = "server")]
pub mod server;
mod text;

pub use admission::{Admission, Question, Recheck};
pub use admission_state::AdmissionState;
pub use envelope::{
    MAX_BYTES, ReviewOutcome, ReviewRecord, ReviewResponse, namespace_of, review_bytes,
    review_bytes_or_recheck,
};
pub use pending::PATIENCE;
pub use review::{Operation, Review, Reviewer};
