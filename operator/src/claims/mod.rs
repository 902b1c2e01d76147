//! The store of claims: who holds which name, and which writes of `HostnameClaim` objects follow from that. Pure:
//! time is an input, and writes are requests that somebody else makes.
//!
//! There is one object per name, and its own name follows from what it is about, so the API server's create decides
//! who has a name that nobody held. Every replica keeps a store from what the watch shows; only the leader's requests
//! are made. Translation is told who holds a name ([`crate::translate::Change::Claims`]) once an object says so, and no
//! earlier, so that whoever leads next knows it too. A name changes hands by one update that goes by the version of
//! the object. From the moment in which it is taken from its holder, nobody is told to hold it until the object says
//! who does. `store` decides; `object` follows one object through its writes.

mod fair_queue;
mod grace;
mod memory;
mod object;
mod store;

use std::time::{Duration, Instant};

pub use memory::Memory;
pub use object::{ClaimAction, ClaimContent, ClaimRequest, SeenClaim, WriteOutcome};
pub use store::{ClaimStore, Counts, GatewayState, WriteProblem};

/// How long a name stays with a holder that let go of it, towards other namespaces, unless configured.
pub const GRACE: Duration = Duration::from_mins(1);

/// Longest grace that can be asked for. Whoever wants more wants reserved names, which grants give.
pub const LONGEST_GRACE: Duration = Duration::from_hours(24);

/// So many names of one namespace on a Gateway may be in grace, or as many as it had at one time within the
/// last two graces: whoever changes a hostname again and again does not keep all it ever had from others.
pub const GRACED: usize = 256;

/// Objects of one tenant that are written at a time: others find room however slowly they are answered.
pub const AT_ONCE: usize = 24;

/// How long a name is unused before its object says so. A set that is deleted and created again within this time
/// costs no write.
pub const NOTED_AFTER: Duration = Duration::from_secs(5);

/// Now, in both of its forms.
#[derive(Debug, Clone, Copy)]
pub struct Time {
    /// Seconds since the epoch.
    pub seconds: i64,
    /// For waits.
    pub now: Instant,
}
