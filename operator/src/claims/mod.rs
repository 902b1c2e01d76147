//! The book of claims: who holds which name, in which `HostnameClaim` object it stands, and when a name that
//! its holder let go is free again. Pure: time is an input, and writes are wishes.
//!
//! Every replica keeps one from what the watch shows; only the leader's writes. What is held is told to
//! translation ([`crate::translate::Change::Claims`]) once it stands in an object, and no earlier, so that
//! whoever leads next knows it too. A name changes hands in two writes: out of the old holder's object, and
//! only when that is done into the new holder's; a leader that ends between the two leaves no contradiction.
//! While a name is being taken out of an object nobody is told to hold it. A write of which nobody knows what
//! came of it keeps its names where they are, until a later one has made sure that it cannot be made any more.

mod book;
mod grace;
mod judge;
mod memory;
mod pages;
mod slab;
mod turns;

use std::time::{Duration, Instant};

pub use book::{Book, Counts};
pub use memory::Memory;
pub use slab::{Content, Outcome, Seen, Trouble, Write};

/// Entries of one object: what one edit writes, and every watcher is sent, does not depend on how many names
/// a tenant has. Chosen by a measurement on a real API server (ADR 16).
pub const SLAB: usize = 64;

/// How long a name stays with a holder that let go of it, towards other namespaces, unless configured.
pub const GRACE: Duration = Duration::from_mins(1);

/// Longest grace that can be asked for. Whoever wants more wants reserved names, which grants give.
pub const LONGEST_GRACE: Duration = Duration::from_hours(24);

/// So many names of one namespace on a Gateway may be in grace, or as many as it had at one time within the
/// last two graces: whoever changes a hostname again and again does not keep all it ever had from others.
pub const GRACED: usize = 256;

/// Objects of one tenant that are written at a time: others find room however slowly they are answered.
pub const AT_ONCE: usize = 8;

/// Now, in both of its forms.
#[derive(Debug, Clone, Copy)]
pub struct Time {
    /// Seconds since the epoch.
    pub seconds: i64,
    /// For waits.
    pub now: Instant,
}
