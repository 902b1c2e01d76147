//! Validating admission: whether an object may come in, from what is there already.
//!
//! Thin over `vestibule-model`: the rules are the model's; here is only what admission does with
//! them. It is advice: concurrent creates race, and a webhook can be down, so whatever it refuses
//! shows in the status too, and what it lets in may still come to nothing.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

mod review;
mod text;

pub use review::{Operation, Review, Reviewer};
