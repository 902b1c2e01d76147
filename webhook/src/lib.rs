//! Validating admission: whether an object may come in, from what is there already.
//!
//! Thin over `vestibule-model`: the rules are the model's; here is only what admission does with
//! them. It is advice: concurrent creates race, and a webhook can be down, so whatever it refuses
//! shows in the status too, and what it lets in may still come to nothing.
//!
//! [`Reviewer`] judges one object from [`AdmissionState`], [`Admission`] keeps them, [`review_bytes`] takes
//! the API server's envelope.
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
