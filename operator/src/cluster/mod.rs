//! The operator in a cluster: watches, translates, publishes, and writes what follows.

mod clock;
pub mod lease;
pub mod ports;
