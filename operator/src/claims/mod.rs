//! Decides which namespace holds which name, and which writes of `HostnameClaim` objects follow from that. The code
//! does no input or output: time is an input, and the caller makes the writes.
//!
//! These rules make sure that two namespaces never hold the same name:
//!
//! - There is one object per name, and the name of the object is computed from the hostname or port. So if a name is
//!   free, the API server lets only one create succeed.
//! - A name passes to another holder by one update that requires the version of the object that was seen.
//! - Translation learns that a namespace holds a name ([`crate::translate::Change::Claims`]) only after an object says
//!   so. So the next leader knows it too.
//! - When a name is taken from its holder, nobody holds it until the object names the new holder.
//!
//! Every replica keeps a store from the events of its watch, but only the leader makes the requests. `store` decides,
//! and `object` follows one object through its writes.

pub(crate) mod fair_queue;
mod grace;
mod memory;
mod object;
mod store;
mod unrecorded;

use std::time::{Duration, Instant};

pub use memory::Memory;
pub use object::{ClaimAction, ClaimContent, ClaimRequest, SeenClaim, WriteOutcome};
pub use store::{ClaimStore, Counts, GatewayPresence, WriteProblem};

/// The default grace: how long other namespaces cannot get a name after its holder has let go of it.
pub const GRACE: Duration = Duration::from_mins(1);

/// Longest grace that can be configured. Names can be reserved for longer with a `HostnameGrant`.
pub const LONGEST_GRACE: Duration = Duration::from_hours(24);

/// Most names of one namespace on a Gateway that may be in grace, or the largest number of names that it had at one
/// time within the last two graces, if that is more. So a namespace that changes a hostname again and again cannot
/// keep all its former names from others.
pub const GRACED: usize = 256;

/// Most objects of one tenant that are written at a time. So there is room for other tenants even if the API server
/// answers these requests slowly.
pub const AT_ONCE: usize = 24;

/// How long a name is unused before its object records it. A ListenerSet that is deleted and created again within
/// this time costs no write.
pub const NOTED_AFTER: Duration = Duration::from_secs(5);

/// How long after a namespace asked for it the first claim to a wildcard is written at the earliest (ADR 16). Other claims
/// are written after 20 ms.
///
/// Objects that are applied together come by several watches, and translation may see them in several turns. So it may see
/// an older object that asks for a name inside the wildcard a turn later than the one that asks for the wildcard. The name
/// would be lost if the wildcard were recorded by then.
pub const WILDCARD_GATHERING: Duration = Duration::from_millis(80);

/// Longest time without progress for which the first claim to a wildcard is held back for names inside it that have to be
/// recorded before it (ADR 16). Progress is that one of several such names is recorded or no longer wanted. It is the time for a
/// wildcard such as `*.com`. For each label more, it is one [`WILDCARD_WAIT_STEP`] less.
///
/// Even the shortest wait is longer than one request to the API server may take (10 seconds), so that a request without an
/// answer can be followed by another one. It is bounded because a name that the API server never accepts must not keep a
/// wildcard from its namespace for ever. It counts from the last progress because on a slow machine a thousand names take
/// longer than this.
pub const LONGEST_WILDCARD_WAIT: Duration = Duration::from_secs(16);

/// Longest time for which the first claim to a wildcard is held back for names inside it, whatever progress there is
/// (ADR 16). It counts from the first time that it is held back for one. As with [`LONGEST_WILDCARD_WAIT`], it is one
/// [`WILDCARD_WAIT_STEP`] less for each label more.
///
/// Without it, names that come and go could keep a neighbour's wildcard from its namespace for ever.
pub const MOST_WILDCARD_WAIT: Duration = Duration::from_mins(5);

/// How much sooner the wait of a wildcard ends than that of a wildcard with one label less.
///
/// Of two wildcards, one inside the other, both may wait for the same name. If both waits ended at one time, the outer
/// wildcard could be recorded first and close the inner one to its namespace. A write of the inner one usually takes much
/// less time than this.
pub const WILDCARD_WAIT_STEP: Duration = Duration::from_millis(500);

/// Largest number of times that [`WILDCARD_WAIT_STEP`] is taken from a wait. Wildcards with nine or more labels after the
/// `*` all wait equally long, because a name may have more than a hundred labels, and each wait has to be long enough for a
/// request without an answer.
pub const WILDCARD_WAIT_STEPS: u32 = 8;

/// The current time, by the clock of the system and by a monotonic clock.
#[derive(Debug, Clone, Copy)]
pub struct Time {
    /// Seconds since the epoch.
    pub seconds: i64,
    /// The monotonic time, for waits.
    pub now: Instant,
}
