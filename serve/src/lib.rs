//! Code that the servers of operator, webhook and proxy share: places that sources share fairly, the port for probes and
//! metrics, the filter, the form and the output of their logs, and the settings for their memory.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

pub mod log_filter;
pub mod log_format;
pub mod log_queue;
pub mod memory;
pub mod places;
pub mod probes;
