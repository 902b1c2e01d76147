//! The book of claims: who holds which name, in which `HostnameClaim` object it stands, and when a name that
//! its holder let go is free again. Pure: time is an input, and writes are wishes.
//!
//! Every replica keeps one from what the watch shows; only the leader's writes. What is held is told to
//! translation ([`crate::translate::Change::Claims`]) once it stands in an object, and no earlier, so that
//! whoever leads next knows it too. A name changes hands in two writes: out of the old holder's object, and
//! only when that is done into the new holder's; a leader that ends between the two leaves no contradiction.

mod book;
mod memory;
mod pages;
mod slab;

use std::time::{Duration, Instant};

pub use book::{Book, Counts};
pub use memory::Memory;
pub use slab::{Content, Outcome, Seen, Write};

/// Entries of one object: what one edit writes, and every watcher is sent, does not depend on how many names
/// a tenant has. Chosen by a measurement on a real API server (ADR 16).
pub const SLAB: usize = 64;

/// How long a name stays with a holder that let go of it, towards other namespaces, unless configured.
pub const GRACE: Duration = Duration::from_mins(1);

/// Now, in both of its forms.
#[derive(Debug, Clone, Copy)]
pub struct Time {
    /// Seconds since the epoch.
    pub seconds: i64,
    /// For waits.
    pub now: Instant,
}
