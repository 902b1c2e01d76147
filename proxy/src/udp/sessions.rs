//! Finds the session of a datagram, and decides which session gives way when a bound on sessions is reached.
//!
//! Anybody can make up a source address and send one datagram. So a session is *unconfirmed* until its client has sent
//! a second one. Where a bound is reached, the oldest unconfirmed session gives way to a new one. So a flood of made-up
//! sources displaces its own sessions, and so do the many clients of a DNS server that ask one question each. Confirmed
//! sessions never give way.
//!
//! A source that already has sessions of the listener displaces only its own. A source that has none may displace the
//! session of another source. A session gives way only if the new session then gets its place.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

use vestibule_serve::places::Source;

use crate::udp_places::Displaced;

/// The key of a session among those of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SessionKey {
    /// The client's address as the socket reports it. A socket of both families reports an IPv4 client with a mapped
    /// IPv6 address.
    pub(crate) client: SocketAddr,
    /// The address that the client sends to, if the listener has many.
    pub(crate) local: Option<IpAddr>,
}

impl SessionKey {
    /// The source whose sessions count together with this one.
    pub(crate) fn source(&self) -> Source {
        Source::of_client(self.client.ip())
    }
}

/// The sessions of one listener on one worker.
#[derive(Debug)]
pub(crate) struct Sessions<S> {
    by_key: HashMap<SessionKey, Entry<S>>,
    /// Unconfirmed sessions by number. Numbers rise, so the first is the oldest.
    unconfirmed: BTreeMap<u64, SessionKey>,
    by_source: HashMap<Source, OfSource>,
    next: u64,
}

#[derive(Debug)]
struct Entry<S> {
    number: u64,
    session: S,
}

/// The sessions of one source.
#[derive(Debug, Default)]
struct OfSource {
    all: usize,
    unconfirmed: BTreeSet<u64>,
}

impl<S> Default for Sessions<S> {
    fn default() -> Self {
        Self {
            by_key: HashMap::new(),
            unconfirmed: BTreeMap::new(),
            by_source: HashMap::new(),
            next: 0,
        }
    }
}

impl<S> Sessions<S> {
    /// The session of a client.
    pub(crate) fn get_mut(&mut self, key: &SessionKey) -> Option<&mut S> {
        self.by_key.get_mut(key).map(|entry| &mut entry.session)
    }

    /// The number that the next session will have. It distinguishes the session from later ones of the same client.
    pub(crate) fn next_number(&self) -> u64 {
        self.next
    }

    /// Adds a session as unconfirmed. Returns the session that the client had before, if any.
    pub(crate) fn insert(&mut self, key: SessionKey, session: S) -> Option<S> {
        let before = self.take(&key);
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        self.by_key.insert(key, Entry { number, session });
        self.unconfirmed.insert(number, key);
        let of_source = self.by_source.entry(key.source()).or_default();
        of_source.all += 1;
        of_source.unconfirmed.insert(number);
        before
    }

    /// Confirms the session, because the client has sent another datagram.
    pub(crate) fn confirm(&mut self, key: &SessionKey) {
        let Some(number) = self.by_key.get(key).map(|entry| entry.number) else {
            return;
        };
        // Nearly always this removes nothing, because the session is confirmed already.
        if self.unconfirmed.remove(&number).is_some()
            && let Some(of_source) = self.by_source.get_mut(&key.source())
        {
            of_source.unconfirmed.remove(&number);
        }
    }

    /// Removes and returns a session, unless the client has a later one.
    pub(crate) fn remove(&mut self, key: &SessionKey, number: u64) -> Option<S> {
        let is_it = |entry: &Entry<S>| entry.number == number;
        if self.by_key.get(key).is_some_and(is_it) {
            return self.take(key);
        }
        None
    }

    /// Removes and returns the session of a client.
    pub(crate) fn take(&mut self, key: &SessionKey) -> Option<S> {
        let Entry { number, session } = self.by_key.remove(key)?;
        self.unconfirmed.remove(&number);
        let source = key.source();
        if let Some(of_source) = self.by_source.get_mut(&source) {
            of_source.all = of_source.all.saturating_sub(1);
            of_source.unconfirmed.remove(&number);
            if of_source.all == 0 {
                self.by_source.remove(&source);
            }
        }
        Some(session)
    }

    /// Removes and returns the session that gives way to a new one of `source`, if any does.
    pub(crate) fn displace(&mut self, source: Source, whose: Displaced) -> Option<S> {
        let number = match whose {
            Displaced::Own => self.by_source.get(&source)?.unconfirmed.first(),
            Displaced::Anybodys => self.unconfirmed.keys().next(),
        };
        let key = self.unconfirmed.get(number?).copied()?;
        self.take(&key)
    }

    /// Removes and returns all sessions.
    pub(crate) fn clear(&mut self) -> impl Iterator<Item = S> + use<S> {
        let all = std::mem::take(self);
        // Numbers go on rising, so that no removed session is mistaken for a later one.
        self.next = all.next;
        all.by_key.into_values().map(|entry| entry.session)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use vestibule_serve::places::{Place, Places};

    use super::*;
    use crate::quota::{QuotaGuard, QuotaLimits, TenantQuotas};

    fn key(host: u8, port: u16) -> SessionKey {
        SessionKey {
            client: ([192, 0, 2, host], port).into(),
            local: None,
        }
    }

    #[test]
    fn the_oldest_unconfirmed_session_gives_way_and_a_confirmed_one_never_does() {
        let mut sessions = Sessions::default();
        for host in 1..=4 {
            assert!(sessions.insert(key(host, 53), host).is_none());
        }
        sessions.confirm(&key(1, 53));
        sessions.confirm(&key(3, 53));
        let newcomer = key(9, 53).source();
        let mut displaced = || sessions.displace(newcomer, Displaced::Anybodys);
        assert_eq!(
            [displaced(), displaced(), displaced()],
            [Some(2), Some(4), None]
        );
        assert!(sessions.get_mut(&key(1, 53)).is_some());
    }

    #[test]
    fn a_source_with_sessions_displaces_none_but_its_own() {
        let mut sessions = Sessions::default();
        sessions.insert(key(1, 1), "other");
        sessions.insert(key(2, 1), "own, older");
        sessions.insert(key(2, 2), "own, younger");
        let source = key(2, 3).source();
        let own = sessions.displace(source, Displaced::Own);
        assert_eq!(own, Some("own, older"));
        sessions.confirm(&key(2, 2));
        assert_eq!(sessions.displace(source, Displaced::Own), None);
        let newcomer = key(3, 1).source();
        assert_eq!(sessions.displace(newcomer, Displaced::Own), None);
        let others = sessions.displace(newcomer, Displaced::Anybodys);
        assert_eq!(others, Some("other"));
    }

    #[test]
    fn a_session_that_ends_late_does_not_take_its_successor_along() {
        let mut sessions = Sessions::default();
        let first = sessions.next_number();
        sessions.insert(key(1, 1), "first");
        assert_eq!(sessions.insert(key(1, 1), "second"), Some("first"));
        assert_eq!(sessions.remove(&key(1, 1), first), None);
        assert_eq!(sessions.get_mut(&key(1, 1)), Some(&mut "second"));
        assert_eq!(sessions.clear().collect::<Vec<_>>(), ["second"]);
        assert!(sessions.next_number() > first + 1);
        assert!(sessions.by_source.is_empty() && sessions.unconfirmed.is_empty());
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// A datagram of a client.
        Datagram(u8, u16),
        /// The client's session is over.
        Ends(u8, u16),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let client = || (0_u8..6, 0_u16..8);
        let datagram = client().prop_map(|(host, port)| Step::Datagram(host, port));
        let ends = client().prop_map(|(host, port)| Step::Ends(host, port));
        prop::collection::vec(prop_oneof![4 => datagram, 1 => ends], 0..200)
    }

    type Held = (u64, Place, QuotaGuard);

    proptest! {
        /// Does what the listener does, with the bounds that it has.
        #[test]
        fn there_are_never_more_sessions_than_may_be(all in 1_usize..12, of_tenant in 1_usize..12, steps in steps()) {
            let places = Places::new(all);
            let accounts = TenantQuotas::default();
            let account = accounts.of(&Arc::from("team-a"));
            let limits = QuotaLimits { all: of_tenant, guaranteed_percent: 50, scarce: false };
            let mut sessions: Sessions<Held> = Sessions::default();
            // The number of each session, and whether it is confirmed.
            let mut model: BTreeMap<(u8, u16), (u64, bool)> = BTreeMap::new();
            for step in steps {
                let (Step::Datagram(host, port) | Step::Ends(host, port)) = step;
                let key = key(host, port);
                if let Step::Ends(..) = step {
                    let number = sessions.get_mut(&key).map(|(number, ..)| *number);
                    if let Some(number) = number {
                        prop_assert!(sessions.remove(&key, number).is_some());
                        model.remove(&(host, port));
                    }
                    continue;
                }
                if sessions.get_mut(&key).is_some() {
                    sessions.confirm(&key);
                    model.get_mut(&(host, port)).unwrap().1 = true;
                    continue;
                }
                let source = key.source();
                let take = || {
                    let place = places.take(source, 1)?;
                    Some((place, account.take_session(limits)?))
                };
                let mut taken = take();
                let (held, free) = places.held_and_free(source);
                let whose = if held == 0 { Displaced::Anybodys } else { Displaced::Own };
                let may = held <= free + 1;
                // Dropping the session frees its place at once, as it does where a session ends.
                let mut displace = || sessions.displace(source, whose).map(|(number, ..)| number);
                if taken.is_none()
                    && may
                    && let Some(number) = displace()
                {
                    let (gone, (_, confirmed)) = model
                        .iter()
                        .find(|(_, (of, _))| *of == number)
                        .map(|(client, of)| (*client, *of))
                        .unwrap();
                    prop_assert!(!confirmed);
                    // The displaced session must be the oldest of the source's own if it has any, and else the oldest
                    // of all.
                    let has_own = model.keys().any(|(of, _)| *of == host);
                    let oldest = model
                        .iter()
                        .filter(|((of, _), (_, confirmed))| !confirmed && (!has_own || *of == host))
                        .map(|(_, (number, _))| *number)
                        .min();
                    prop_assert_eq!(oldest, Some(number));
                    model.remove(&gone);
                    taken = take();
                    prop_assert!(taken.is_some(), "a session gave way for nothing");
                }
                if let Some((place, guard)) = taken {
                    let number = sessions.next_number();
                    prop_assert!(sessions.insert(key, (number, place, guard)).is_none());
                    model.insert((host, port), (number, false));
                }
                prop_assert!(sessions.by_key.len() <= all.min(of_tenant));
                prop_assert_eq!(sessions.by_key.len(), model.len());
                let unconfirmed = model.values().filter(|(_, confirmed)| !confirmed).count();
                prop_assert_eq!(sessions.unconfirmed.len(), unconfirmed);
            }
            drop(sessions.clear().collect::<Vec<_>>());
            prop_assert!(sessions.by_source.is_empty());
            prop_assert!(places.take(key(0, 0).source(), 1).is_some());
        }
    }
}
