//! The rule once more, as slow and as plain as its sentences: every question goes through all facts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vestibule_model::hostname::{HostPattern, Hostname};
use vestibule_model::key::{ListenerKey, ParentKey};
use vestibule_model::names::{
    AskedBy, NameClaimState, NameDecision, NameSource, Permissions, Rank,
};

use super::grants::Grants;

/// The namespace of the Gateway.
pub(crate) const OWN: &str = "infra";

/// What there is, and what the Gateway allows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    pub(crate) claims: BTreeMap<HostPattern, Arc<str>>,
    /// The claims that their holders got for guests.
    pub(crate) for_guests: BTreeSet<HostPattern>,
    /// From whom an admin takes what.
    pub(crate) taken: BTreeMap<HostPattern, Arc<str>>,
    pub(crate) sources: BTreeMap<NameSource, (Rank, BTreeSet<HostPattern>)>,
    pub(crate) grants: Grants,
}

impl Facts {
    /// What the Gateway itself names: its own listeners, and routes of its namespace on them.
    fn own(&self) -> impl Iterator<Item = (&NameSource, &HostPattern)> {
        let own = self.sources.iter().filter(|(source, _)| is_own(source));
        own.flat_map(|(source, (_, names))| names.iter().map(move |names| (source, names)))
    }

    pub(crate) fn own_names(&self) -> impl Iterator<Item = &HostPattern> {
        self.own().map(|(_, names)| names)
    }

    /// What a tenant may not have whoever else has what.
    fn refusal(&self, namespace: &str, names: &HostPattern, by: AskedBy) -> Option<NameDecision> {
        if namespace == OWN {
            return None;
        }
        let grants = &self.grants;
        if grants.out.contains(namespace) {
            return Some(NameDecision::NotGranted);
        }
        if grants.entries.is_empty() {
            if let HostPattern::Wildcard(suffix) = names
                && grants.is_public_suffix(suffix)
            {
                return Some(NameDecision::TooWide);
            }
        } else if grants.giving(namespace, names).is_empty() {
            return Some(NameDecision::NotGranted);
        }
        if !matches!(names, HostPattern::Exact(_)) {
            return None;
        }
        let own: Vec<&NameSource> = self
            .own()
            .filter(|(_, own)| *own == names)
            .map(|(source, _)| source)
            .collect();
        let by_route = own.iter().any(|source| match source {
            NameSource::Refused(source) => matches!(**source, NameSource::Route(_)),
            source => matches!(source, NameSource::Route(_)),
        });
        let admitted = own.iter().any(|source| match source {
            NameSource::Listener(listener) => self.admits(listener, namespace),
            // Whoever is recorded keeps what a listener with a mistake admitted them to.
            NameSource::Refused(source) => match &**source {
                NameSource::Listener(listener) => {
                    let recorded = self.claims.get(names);
                    recorded.is_some_and(|of| **of == *namespace)
                        && self.admits(listener, namespace)
                }
                _ => false,
            },
            _ => false,
        });
        let asks_as_listener = matches!(by, AskedBy::Listener | AskedBy::Guest);
        let excepted = !asks_as_listener && admitted && !by_route;
        (!own.is_empty() && !excepted).then_some(NameDecision::Reserved)
    }

    fn admits(&self, listener: &ListenerKey, namespace: &str) -> bool {
        let admitted = self.grants.admitted.get(listener);
        admitted.is_some_and(|admitted| admitted.contains(namespace))
    }

    /// Claims whose holders may still have the names: as listeners, or as routes.
    fn valid(&self) -> impl Iterator<Item = (&HostPattern, &Arc<str>)> {
        self.claims.iter().filter(|(names, holder)| {
            let ways = [AskedBy::Listener, AskedBy::TlsRoute];
            ways.iter()
                .any(|by| self.refusal(holder, names, *by).is_none())
        })
    }

    pub(crate) fn holder(&self, names: &HostPattern) -> Option<&Arc<str>> {
        let (_, holder) = self.valid().find(|(claimed, _)| *claimed == names)?;
        Some(holder)
    }

    pub(crate) fn decide(&self, namespace: &str, names: &HostPattern, by: AskedBy) -> NameDecision {
        self.decide_with(&BTreeMap::new(), namespace, names, by)
    }

    /// The decision about the request of a source. It is as if all requests before it for wildcards around its names had been
    /// recorded, and those for the Gateway's namespace as well.
    pub(crate) fn decide_request(
        &self,
        source: &NameSource,
        rank: &Rank,
        names: &HostPattern,
    ) -> NameDecision {
        let asked = self.sources.values().flat_map(|(_, asked)| asked);
        let wildcards: BTreeSet<&HostPattern> = asked
            .filter(|asked| asked.is_wildcard() && asked.covers(names) && *asked != names)
            .collect();
        let mut expected = BTreeMap::new();
        for wildcard in wildcards {
            let first = self.next_request(wildcard);
            let Some((first_rank, first)) = first.filter(|_| self.holder(wildcard).is_none())
            else {
                continue;
            };
            let is_before = (is_guest(first), first_rank, first) < (is_guest(source), rank, source);
            if is_before || **first.namespace() == *OWN {
                expected.insert(wildcard.clone(), first.namespace().clone());
            }
        }
        self.decide_with(&expected, source.namespace(), names, source.asked_by())
    }

    /// The decision if these namespaces had these wildcards, besides what is recorded.
    fn decide_with(
        &self,
        expected: &BTreeMap<HostPattern, Arc<str>>,
        namespace: &str,
        names: &HostPattern,
        by: AskedBy,
    ) -> NameDecision {
        if by == AskedBy::Refused {
            return match self.holder(names) {
                Some(holder) if **holder == *namespace => NameDecision::Has,
                _ => NameDecision::NotAsked,
            };
        }
        let shared = self.grants.entries.iter().any(|entry| {
            entry.shared
                && entry.is_for(namespace)
                && entry.names == *names
                && matches!(names, HostPattern::Exact(_))
        });
        if shared && by == AskedBy::HttpRoute && namespace != OWN {
            return NameDecision::Has;
        }
        if let Some(refusal) = self.refusal(namespace, names, by) {
            return refusal;
        }
        let is_guest_of_own = namespace == OWN && by == AskedBy::Guest;
        if is_guest_of_own && !matches!(names, HostPattern::Exact(_)) {
            return NameDecision::OnlyHostnames;
        }
        if is_guest_of_own && self.own_names().any(|own| own == names) {
            return NameDecision::Reserved;
        }
        match self.holder(names) {
            Some(holder) if **holder == *namespace => return NameDecision::Has,
            Some(holder) if self.taken.get(names) == Some(holder) => {}
            Some(_) => return NameDecision::Taken,
            None => {}
        }
        let held = self
            .claims
            .values()
            .filter(|holder| ***holder == *namespace);
        let (held, most) = (held.count(), self.grants.most_names(namespace));
        let is_full = namespace != OWN && held >= most;
        // Guests leave half of the limit to their host.
        let is_full_for_guests = namespace != OWN && held >= most / 2;
        let owned: Vec<(&HostPattern, &Arc<str>)> = self.valid().chain(expected).collect();
        let closed = owned.iter().copied().any(|(wildcard, holder)| {
            let around =
                |outer: &HostPattern, inner: &HostPattern| outer.covers(inner) && outer != inner;
            let nearer = |other: &HostPattern| around(wildcard, other) && around(other, names);
            let given = self.grants.giving(namespace, names);
            wildcard.is_wildcard()
                && around(wildcard, names)
                && **holder != *OWN
                && **holder != *namespace
                && (namespace != OWN || is_guest_of_own)
                && !owned.iter().copied().any(|(other, _)| nearer(other))
                && !self.own_names().any(nearer)
                && (is_guest_of_own || !given.iter().any(|entry| wildcard.covers(entry)))
        });
        if closed {
            NameDecision::Inside
        } else if is_full {
            NameDecision::TooMany
        } else if by == AskedBy::Guest && is_full_for_guests {
            NameDecision::TooManyOfGuests
        } else {
            NameDecision::Free
        }
    }

    /// What asks for a pattern.
    fn asking(&self, names: &HostPattern) -> impl Iterator<Item = (&Rank, &NameSource)> {
        let asking = self.sources.iter().filter(|(source, _)| !is_own(source));
        let asking = asking.filter(move |(_, (_, all))| all.contains(names));
        asking.map(|(source, (rank, _))| (rank, source))
    }

    pub(crate) fn next(&self, names: &HostPattern) -> Option<&Arc<str>> {
        self.next_source(names).map(NameSource::namespace)
    }

    /// The first that asks. Guests come after all who ask for themselves.
    pub(crate) fn next_source(&self, names: &HostPattern) -> Option<&NameSource> {
        self.next_request(names).map(|(_, source)| source)
    }

    fn next_request(&self, names: &HostPattern) -> Option<(&Rank, &NameSource)> {
        let free = self.asking(names).filter(|(rank, source)| {
            self.decide_request(source, rank, names) == NameDecision::Free
        });
        let last = self.taken.get(names);
        free.min_by_key(|(rank, source)| {
            let is_last = last == Some(source.namespace());
            (is_last, is_guest(source), *rank, *source)
        })
    }

    pub(crate) fn claim_state(&self, names: &HostPattern) -> Option<NameClaimState> {
        let holder = self.claims.get(names)?;
        let is_taken = self.taken.get(names) == Some(holder) && self.next(names).is_some();
        if self.holder(names).is_none() || is_taken {
            return Some(NameClaimState::Revoked);
        }
        // Guests count only if the holder got the name for them.
        let for_guests = self.for_guests.contains(names);
        let mut asking = self.asking(names).filter(|(_, source)| {
            source.namespace() == holder && (for_guests || !is_guest(source))
        });
        let used = asking
            .any(|(_, source)| self.decide(holder, names, source.asked_by()) == NameDecision::Has);
        Some(if used {
            NameClaimState::Used
        } else {
            NameClaimState::Idle
        })
    }

    pub(crate) fn owner(&self, hostname: &Hostname) -> Option<Arc<str>> {
        let own: Arc<str> = OWN.into();
        let claims = self.valid().map(|(names, holder)| (names, true, holder));
        let owns = self.own_names().map(|names| (names, false, &own));
        let matching = claims
            .chain(owns)
            .filter(|(names, ..)| names.matches(hostname));
        let best = matching.max_by_key(|(names, claimed, _)| (names.specificity(), *claimed));
        best.map(|(.., owner)| owner.clone())
    }

    /// Whether a source that has `names` may serve a hostname that they match, which is this owner's.
    pub(crate) fn serves(
        &self,
        source: &NameSource,
        names: &HostPattern,
        hostname: &Hostname,
        owner: Option<&Arc<str>>,
    ) -> bool {
        let name = HostPattern::Exact(hostname.clone());
        let mut entries = self.grants.entries.iter();
        let shared = entries
            .any(|entry| entry.shared && entry.is_for(source.namespace()) && entry.names == name);
        is_own(source)
            || owner == Some(source.namespace())
            || shared && *names == name && source.asked_by() == AskedBy::HttpRoute
    }
}

/// Whether it is a route in another namespace than the one that gets the name.
pub(crate) fn is_guest(source: &NameSource) -> bool {
    match source {
        NameSource::Guest(guest) => guest.1.name.namespace != guest.0.parent.name().namespace,
        NameSource::Refused(source) => is_guest(source),
        NameSource::Listener(_) | NameSource::Route(_) => false,
    }
}

fn is_own(source: &NameSource) -> bool {
    match source {
        NameSource::Listener(listener) => matches!(listener.parent, ParentKey::Gateway(_)),
        NameSource::Route(route) => *route.name.namespace == *OWN,
        NameSource::Guest(_) => false,
        NameSource::Refused(source) => is_own(source),
    }
}
