//! Keys of sessions: which keys exist, which one seals tokens, and when the next one is made. Everything except making a
//! key is pure. Time is an input.
//!
//! A key is made every [`ROTATION`]. It does not seal before it is [`DELAY`] old, so that by then every proxy can open
//! what another one sealed. The ones before it are kept for [`KEPT`] rotations, so a client that comes at least that
//! often keeps its session.
//!
//! A clock may be wrong for a while. A key whose time is far ahead of the present one neither seals nor gets a successor
//! before that time has come, so it is dated anew ([`KeyRing::redated`]).

use std::time::Duration;

use zeroize::Zeroizing;

use crate::translate::{SessionKey, SessionKeys};

/// Age at which a key gets a successor.
pub const ROTATION: Duration = Duration::from_hours(30 * 24);
/// Age from which on a key seals.
pub const DELAY: Duration = Duration::from_hours(1);
/// Keys that are kept beside the newest one.
pub const KEPT: usize = 2;
/// Clocks of two replicas differ by no more than that, or one of them is wrong.
pub const CLOCK_DIFFERENCE: Duration = DELAY;

/// Seconds since the Unix epoch.
type Seconds = i64;

/// A new key; `None`: there is no randomness.
#[must_use]
pub fn generate() -> Option<SessionKey> {
    let mut bytes = Zeroizing::new([0; SessionKey::BYTES]);
    aws_lc_rs::rand::fill(&mut *bytes).ok()?;
    Some(SessionKey::new(bytes))
}

/// The keys that are stored, each with the time when it was made; the newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyRing(Vec<(Seconds, SessionKey)>);

impl KeyRing {
    /// Reads entries: the name is the time when the key was made, the value its bytes. What is no such entry is left
    /// out.
    pub fn read<'a>(entries: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Self {
        let entry = |(name, value): (&str, &[u8])| {
            let mut bytes = Zeroizing::new([0; SessionKey::BYTES]);
            if value.len() != bytes.len() {
                return None;
            }
            bytes.copy_from_slice(value);
            Some((name.parse().ok()?, SessionKey::new(bytes)))
        };
        let mut keys: Vec<_> = entries.into_iter().filter_map(entry).collect();
        keys.sort_by_key(|(made, _)| std::cmp::Reverse(*made));
        keys.truncate(KEPT + 1);
        Self(keys)
    }

    /// The entries to store.
    pub fn entries(&self) -> impl Iterator<Item = (String, &[u8])> {
        let entries = self.0.iter();
        entries.map(|(made, key)| (made.to_string(), key.expose()))
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The keys as they are used at `now`: the one that seals, then all others.
    #[must_use]
    pub fn keys(&self, now: Seconds) -> SessionKeys {
        let sealing = self.sealing(now);
        let (first, others): (Vec<_>, Vec<_>) =
            (0..).zip(&self.0).partition(|(index, _)| *index == sealing);
        let all = first.into_iter().chain(others);
        SessionKeys::new(all.map(|(_, (_, key))| key.clone()))
    }

    /// The newest that is old enough, or else the oldest: that one has been known for longest.
    fn sealing(&self, now: Seconds) -> usize {
        let is_ready =
            |(made, _): &(Seconds, SessionKey)| made.saturating_add(seconds(DELAY)) <= now;
        let ready = self.0.iter().position(is_ready);
        ready.unwrap_or(self.0.len().saturating_sub(1))
    }

    /// Whether a key is to be made at `now`.
    #[must_use]
    pub fn wants_key(&self, now: Seconds) -> bool {
        self.rotates_at().is_none_or(|at| at <= now)
    }

    /// The same keys, dated `now` or earlier; `None`: no key is from further ahead than clocks may differ.
    ///
    /// When they were really made, nobody knows. They count as made now, in the order that they have: every proxy may
    /// have them from now on, and the newest gets its successor one rotation later. No key is lost.
    #[must_use]
    pub fn redated(&self, now: Seconds) -> Option<Self> {
        let (newest, _) = self.0.first()?;
        if *newest <= now.saturating_add(seconds(CLOCK_DIFFERENCE)) {
            return None;
        }
        let mut latest = now;
        let redated = self.0.iter().map(|(made, key)| {
            let made = latest.min(*made);
            latest = made.saturating_sub(1);
            (made, key.clone())
        });
        Some(Self(redated.collect()))
    }

    /// With a key that is made at `now`, and without those that are too old by that.
    #[must_use]
    pub fn with(&self, key: SessionKey, now: Seconds) -> Self {
        // Times are names, and the newest is first, whatever a clock did in between.
        let newest = self.0.first().map(|(made, _)| made.saturating_add(1));
        let made = newest.map_or(now, |after| after.max(now));
        let older = self.0.iter().take(KEPT).cloned();
        Self(std::iter::once((made, key)).chain(older).collect())
    }

    /// When [`Self::keys`] or [`Self::wants_key`] change next; `None`: a key is wanted now.
    #[must_use]
    pub fn next_change(&self, now: Seconds) -> Option<Seconds> {
        let rotates = self.rotates_at().filter(|at| *at > now)?;
        let (made, _) = self.0.first()?;
        let seals = made.saturating_add(seconds(DELAY));
        Some(if seals > now {
            seals.min(rotates)
        } else {
            rotates
        })
    }

    fn rotates_at(&self) -> Option<Seconds> {
        let (made, _) = self.0.first()?;
        Some(made.saturating_add(seconds(ROTATION)))
    }
}

fn seconds(duration: Duration) -> Seconds {
    duration.as_secs().try_into().unwrap_or(Seconds::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Seconds = 1_800_000_000;

    fn key(n: u8) -> SessionKey {
        SessionKey::new(Zeroizing::new([n; SessionKey::BYTES]))
    }

    fn keys(of: &[u8]) -> SessionKeys {
        SessionKeys::new(of.iter().copied().map(key))
    }

    #[test]
    fn the_first_key_seals_at_once_and_later_ones_when_every_proxy_has_them() {
        let none = KeyRing::default();
        assert!(none.wants_key(NOW) && none.keys(NOW).is_empty());
        assert_eq!(none.next_change(NOW), None);
        let one = none.with(key(1), NOW);
        assert_eq!(one.keys(NOW), keys(&[1]));
        let (delay, rotation) = (seconds(DELAY), seconds(ROTATION));
        assert_eq!(one.next_change(NOW), Some(NOW + delay));
        assert_eq!(one.next_change(NOW + delay), Some(NOW + rotation));
        assert!(!one.wants_key(NOW + rotation - 1));
        let then = NOW + rotation;
        assert!(one.wants_key(then));
        let two = one.with(key(2), then);
        assert_eq!(two.keys(then), keys(&[1, 2]));
        assert_eq!(two.keys(then + delay - 1), keys(&[1, 2]));
        assert_eq!(two.keys(then + delay), keys(&[2, 1]));
    }

    #[test]
    fn a_key_is_known_before_it_seals_and_long_after() {
        let mut ring = KeyRing::default().with(key(0), NOW);
        let (delay, rotation) = (seconds(DELAY), seconds(ROTATION));
        for n in 1..10 {
            let now = NOW + rotation * i64::from(n);
            let before = ring.keys(now);
            ring = ring.with(key(n), now);
            // Nothing that seals does so with what a proxy could miss: the first stays first.
            let after = ring.keys(now);
            assert_eq!(after.first(), before.first());
            assert_eq!(ring.keys(now + delay).first(), Some(&key(n)));
            assert!(ring.0.len() <= KEPT + 1);
            let sealed_last_month = key(n - 1);
            assert!(ring.0.iter().any(|(_, key)| *key == sealed_last_month));
        }
    }

    #[test]
    fn key_ring_reads_back_its_stored_entries_and_ignores_others() {
        let ring = KeyRing::default().with(key(1), NOW).with(key(2), NOW + 5);
        let stored: Vec<_> = ring.entries().collect();
        let entries = stored.iter().map(|(name, value)| (&**name, *value));
        let junk = [("x", &[0; 32][..]), ("17", &[0; 31]), ("", &[])];
        assert_eq!(KeyRing::read(entries.chain(junk)), ring);
        let many: Vec<_> = (0..9_u8).map(|n| (n.to_string(), [n; 32])).collect();
        let read = KeyRing::read(many.iter().map(|(name, key)| (&**name, &key[..])));
        assert_eq!(read.keys(NOW), keys(&[8, 7, 6]));
    }

    #[test]
    fn clocks_that_go_back_lose_no_key() {
        let ring = KeyRing::default().with(key(1), NOW);
        let back = ring.with(key(2), NOW - 100);
        assert_eq!(
            back.0.iter().map(|(made, _)| *made).collect::<Vec<_>>(),
            [NOW + 1, NOW]
        );
        assert_eq!(back.keys(NOW - 100), keys(&[1, 2]));
        let made: Vec<_> = [generate(), generate()].into_iter().flatten().collect();
        assert!(made.len() == 2 && made[0] != made[1]);
    }

    #[test]
    fn a_key_from_a_clock_far_ahead_seals_and_rotates_when_the_clock_is_right_again() {
        let (delay, rotation) = (seconds(DELAY), seconds(ROTATION));
        let ahead = NOW + 20 * 365 * 24 * 3600;
        let ring = KeyRing::default().with(key(1), NOW - rotation);
        let ring = ring.with(key(2), ahead).with(key(3), ahead + rotation);
        // As it was: the successor is due in 20 years, and would be dated later still.
        assert!(!ring.wants_key(NOW + 100 * rotation));
        let redated = ring.redated(NOW).expect("it is from far ahead");
        let made: Vec<_> = redated.0.iter().map(|(made, _)| *made).collect();
        assert_eq!(made, [NOW, NOW - 1, NOW - rotation]);
        // What was sealed with any of them still opens, and what seals stays.
        assert_eq!(redated.keys(NOW), ring.keys(NOW));
        assert_eq!(redated.keys(NOW + delay), keys(&[3, 2, 1]));
        assert_eq!(redated.redated(NOW), None);
        assert!(!redated.wants_key(NOW + rotation - 1) && redated.wants_key(NOW + rotation));
        let next = redated.with(key(4), NOW + rotation);
        assert_eq!(next.keys(NOW + rotation + delay), keys(&[4, 3, 2]));
        // What is stored of it has the same order.
        let stored: Vec<_> = redated.entries().collect();
        let entries = stored.iter().map(|(name, value)| (&**name, *value));
        assert_eq!(KeyRing::read(entries), redated);
    }

    #[test]
    fn clocks_that_differ_a_little_change_no_date() {
        let ring = KeyRing::default().with(key(1), NOW).with(key(2), NOW + 9);
        let earliest = NOW + 9 - seconds(CLOCK_DIFFERENCE);
        assert_eq!(ring.redated(earliest), None);
        assert!(ring.redated(earliest - 1).is_some());
        assert_eq!(KeyRing::default().redated(NOW), None);
    }
}
