//! The data plane: accepts TLS connections, reads their server name, and relays them to backends,
//! by configuration that it receives from the operator or reads from a file. Knows no Kubernetes.

#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

pub mod apply;
pub mod metrics;
pub mod table;
pub mod accesslog;
pub mod connection;
pub mod hello;
mod record;
pub mod relay;
mod splice;
pub mod terminate;
pub mod worker;
