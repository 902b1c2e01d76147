//! Verdicts about claims to a port: who conflicts with whom, and where connections go.

use std::sync::Arc;

use super::{Bucket, Place, PortClaims, Tier};
use crate::conflict::{Claim, Conflict, Group, Precedence};
use crate::hostname::HostPattern;
use crate::key::ListenerKey;

impl PortClaims {
    /// Who would have `names` of the ListenerSets, if the Gateway and what the port speaks let it: the first
    /// one in order that no routes keep out.
    #[must_use]
    pub fn first(&self, group: Group, names: &HostPattern) -> Option<&Claim> {
        let bucket = self.bucket(group, names)?;
        let mut of_sets = bucket.iter().filter(|at| at.0 != Tier::Gateway);
        let (.., listener) = of_sets.find(|at| !self.barred.contains(&at.2))?;
        self.claim(listener)
    }

    /// Whether `claim` conflicts with those before it. It need not be one of the claims held, and if
    /// it is, it is not compared with itself.
    #[must_use]
    pub fn conflict(&self, claim: &Claim) -> Option<Conflict> {
        self.judge(claim, false)
    }

    /// Whether `claim` would take something from, or be refused something by, another object that
    /// has it now, whatever the order: what admission asks, so that an older object does not evict a
    /// younger one by an edit. The present claims of the claim's own object do not count, nor do
    /// those of others that are not in force themselves (the Gateway's own always count).
    #[must_use]
    pub fn conflict_as_newcomer(&self, claim: &Claim) -> Option<Conflict> {
        self.judge(claim, true)
    }

    fn judge(&self, claim: &Claim, newcomer: bool) -> Option<Conflict> {
        let group = claim.protocol.group();
        let others = |at: &&Place| at.2 != claim.listener;
        let bucket = self.bucket(group, claim.names());
        let clash = |rival: &ListenerKey| {
            let same = self
                .claim(rival)
                .is_some_and(|c| c.protocol == claim.protocol);
            if same && group != Group::Raw {
                Conflict::Hostname
            } else {
                Conflict::Protocol
            }
        };
        let with_own = self.conflict_with_own(claim, clash);
        if with_own.is_some() || claim.precedence.is_own() {
            return with_own;
        }
        // What another namespace holds is not to be had, whether or not it has a listener there now.
        let place = self.place(claim);
        if place.0 == Tier::Set {
            // Where the Gateway itself has listeners, they settle what the port speaks.
            if self.own.is_empty() && self.holdings.is_foreign_to(group, claim.namespace()) {
                return Some(Conflict::Protocol);
            }
            if self.holdings.holder(group, claim.names()).is_some() {
                let first = bucket.into_iter().flatten().find(|at| at.0 == Tier::Held);
                return Some(first.map_or_else(
                    || match group {
                        Group::Raw => Conflict::Protocol,
                        Group::Http | Group::Tls => Conflict::Hostname,
                    },
                    |at| clash(&at.2),
                ));
            }
            let barred = if self.claim(&claim.listener) == Some(claim) {
                self.barred.contains(&claim.listener)
            } else {
                self.is_held_by_routes(claim)
            };
            if barred {
                return Some(Conflict::Route);
            }
        }
        // Of the sets, only what is in force counts: the first claim of all settles what the port
        // speaks, the first one of a bucket has its names.
        let counts = |at: &&Place| {
            others(at)
                && if newcomer {
                    !same_object(&at.1, &claim.precedence) && self.in_force(&at.2)
                } else {
                    **at < place && !self.barred.contains(&at.2)
                }
        };
        if self.own.is_empty()
            && let Some(spoken) = self.spoken()
            && spoken != group
            && self
                .sets
                .iter()
                .filter(|(_, g)| **g == spoken)
                .any(|(at, _)| counts(&at))
        {
            return Some(Conflict::Protocol);
        }
        bucket
            .into_iter()
            .flatten()
            .find(counts)
            .map(|at| clash(&at.2))
    }

    /// The Gateway's own claims keep their slot even where they conflict with one another, so all of them
    /// count, for one another and for the sets.
    fn conflict_with_own(
        &self,
        claim: &Claim,
        clash: impl Fn(&ListenerKey) -> Conflict,
    ) -> Option<Conflict> {
        let group = claim.protocol.group();
        // A claim that would take the place of the listener's former one does not meet that one.
        let former = self
            .claim(&claim.listener)
            .filter(|former| former.precedence.is_own())
            .map(|former| former.protocol.group());
        let other_group = self
            .own
            .iter()
            .any(|(g, count)| *g != group && *count > usize::from(former == Some(*g)));
        self.bucket(group, claim.names())
            .into_iter()
            .flatten()
            .take_while(|at| at.0 == Tier::Gateway)
            .filter(|at| at.2 != claim.listener)
            .map(|at| clash(&at.2))
            .chain(other_group.then_some(Conflict::Protocol))
            .reduce(Conflict::and)
    }

    /// Whether the Gateway's own listeners speak what keeps every ListenerSet's listener of this group out.
    #[must_use]
    pub fn is_closed_to(&self, group: Group) -> bool {
        self.own.keys().any(|own| *own != group)
    }

    /// Whether connections for names that another namespace holds for its TLSRoutes would come to this listener
    /// instead of a less specific one: there is none inside its own names that they come to.
    pub(super) fn is_held_by_routes(&self, claim: &Claim) -> bool {
        let names = claim.names();
        claim.protocol.group() == Group::Tls
            && self
                .holdings
                .routes_in(names)
                .filter(|(_, holder)| *holder != claim.namespace())
                .any(|(route, _)| {
                    let served = self.serving(route);
                    !served.is_some_and(|at| names != at.names() && names.covers(at.names()))
                })
    }

    /// Whether another namespace holds, for a listener that is more specific than the one of `pattern`, what
    /// connections for `names` would come to: a route of `namespace` cannot have them there.
    #[must_use]
    pub fn is_reserved(
        &self,
        names: &HostPattern,
        pattern: &HostPattern,
        namespace: &Arc<str>,
    ) -> bool {
        self.holdings
            .covering(Group::Tls, names)
            .take_while(|(held, _)| *held != pattern && pattern.covers(held))
            .any(|(_, holder)| holder != namespace)
    }

    /// What the sets' listeners speak: what the first one speaks, but not if it is kept out by what is held.
    pub(super) fn spoken(&self) -> Option<Group> {
        let first = self.sets.iter().next().map(|(at, group)| (at.0, *group));
        match (first, self.holdings.spoken()) {
            (Some((Tier::Held, group)), _) | (Some((_, group)), None) => Some(group),
            (_, held) => held,
        }
    }

    fn in_force(&self, listener: &ListenerKey) -> bool {
        self.claim(listener)
            .is_some_and(|claim| self.conflict(claim).is_none())
    }

    /// The one that is in force of those that want the same names.
    pub(super) fn victor(&self, bucket: &Bucket) -> Option<&Claim> {
        let mut places = bucket.iter();
        let (.., listener) = places.find(|at| !self.barred.contains(&at.2))?;
        self.claim(listener)
            .filter(|claim| self.conflict(claim).is_none())
    }

    /// Whether another listener in force on this port matches some of the same TLS names
    /// (GEP-3567: such listeners carry the condition OverlappingTLSConfig).
    #[must_use]
    pub fn overlaps(&self, claim: &Claim) -> bool {
        claim.protocol.group() == Group::Tls
            && self
                .neighbours(&claim.hostname)
                .any(|bucket| self.victor(bucket).is_some_and(|other| other.served))
    }

    /// The listener that TLS connections for `names` come to, once what waits only for its claim has it: of
    /// those in force that the proxies get and that cover all of the names, the most specific one.
    #[must_use]
    pub fn serving(&self, names: &HostPattern) -> Option<&Claim> {
        let buckets = self.buckets.get(&Group::Tls)?;
        buckets
            .covering(names)
            .find_map(|(_, bucket)| self.victor(bucket).filter(|claim| claim.served))
    }
}

fn same_object(a: &Precedence, b: &Precedence) -> bool {
    match (a, b) {
        (Precedence::Gateway(_), Precedence::Gateway(_)) => true,
        (Precedence::Set { object: a, .. }, Precedence::Set { object: b, .. }) => a == b,
        _ => false,
    }
}
