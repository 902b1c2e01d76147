//! What the servers of operator, webhook and proxy share: places that are shared fairly between sources, and the
//! port for probes and scrapers.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

pub mod places;
pub mod probes;
