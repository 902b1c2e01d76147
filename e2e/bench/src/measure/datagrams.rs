//! What a client of datagrams is asked to do.

use super::{Bench, Work};

/// How often a datagram that comes back passes the proxy.
pub(super) const DIRECTIONS: f64 = 2.0;
/// Sessions of messages, and of those at a rate.
const MESSAGE_SESSIONS: usize = 64;
/// Length of these, in bytes.
const MESSAGE: usize = 64;

impl Bench {
    /// Datagrams of 64 bytes on sixty-four sessions.
    pub(super) fn datagram_messages(&self, more: &[&str]) -> Work {
        self.datagrams(MESSAGE, MESSAGE_SESSIONS, more)
    }

    /// Datagrams of this length on so many sessions.
    pub(super) fn datagrams(&self, bytes: usize, sessions: usize, more: &[&str]) -> Work {
        let [bytes, sessions] = [bytes, sessions].map(|number| number.to_string());
        let seconds = self.plan.sizes.seconds.to_string();
        let own = ["datagrams", &bytes, &sessions, &seconds];
        let words = own.iter().chain(more);
        Work::Client(words.map(|word| (*word).to_owned()).collect())
    }
}
