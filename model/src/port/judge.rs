//! Verdicts about claims to a port: who conflicts with whom, where connections go, and who is to hold the port.

use std::sync::Arc;

use super::{Bucket, ListenerRank, PortClaims, Tier, rank};
use crate::claim::Holder;
use crate::conflict::{Claim, Conflict, Precedence};
use crate::hostname::HostPattern;
use crate::key::ListenerKey;
use crate::protocol::Group;

/// The state of the claim to a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortClaimState {
    /// Its holder has a listener that speaks what the port does, or a route on the Gateway's own one, or keeps the port
    /// because of a mistake that it can mend.
    Used,
    /// Its holder has none any more, and this namespace has.
    Passed(Arc<str>),
    /// Nobody has a listener that speaks it.
    Idle,
    /// The Gateway's own listeners speak something else there, a route of its namespace has what comes there, or the
    /// holder, alone, now wants to speak something else.
    Revoked,
}

/// A claim that admission judges as a newcomer: whatever is in force stands before it.
#[derive(Clone, Copy)]
struct AsNewcomer<'a> {
    /// The namespace from which an admin takes the claim's hostname.
    loser: Option<&'a str>,
}

impl PortClaims {
    /// Whether `claim` conflicts with those before it. It need not be one of the claims held, and if
    /// it is, it is not compared with itself.
    #[must_use]
    pub fn conflict(&self, claim: &Claim) -> Option<Conflict> {
        self.judge(claim, None)
    }

    /// Whether `claim` would take something from, or be refused something by, another object that
    /// has it now, whatever the order: what admission asks, so that an older object does not evict a
    /// younger one by an edit. The present claims of the claim's own object do not count, nor do
    /// those of others that are not in force themselves (the Gateway's own always count). Nor do claims of the
    /// namespace `loser` to the same hostname: an admin takes it from there.
    #[must_use]
    pub fn conflict_as_newcomer(&self, claim: &Claim, loser: Option<&str>) -> Option<Conflict> {
        self.judge(claim, Some(AsNewcomer { loser }))
    }

    fn judge(&self, claim: &Claim, newcomer: Option<AsNewcomer<'_>>) -> Option<Conflict> {
        let group = claim.protocol.group();
        let others = |at: &&ListenerRank| at.2 != claim.listener;
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
        // Where the Gateway itself has listeners, they settle what the port speaks.
        if self.own.is_empty() && self.is_closed_by_holder(claim) {
            return Some(Conflict::Protocol);
        }
        let rank = rank(claim);
        // Of the sets, only what is in force counts: the first claim of all settles what the port
        // speaks, the first one of a bucket has its names.
        let counts = |at: &&ListenerRank| {
            others(at)
                && if newcomer.is_some() {
                    !same_object(&at.1, &claim.precedence) && self.in_force(&at.2)
                } else {
                    **at < rank
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
        let loser = newcomer.and_then(|newcomer| newcomer.loser);
        let keeps = |at: &&ListenerRank| loser != Some(&*at.2.parent.name().namespace);
        bucket
            .into_iter()
            .flatten()
            .filter(keeps)
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

    /// Whether the port's holder keeps a claim out: another namespace's port of bytes, or what speaks something else
    /// than the port does, unless its holder itself wants to change that and nobody else is there.
    fn is_closed_by_holder(&self, claim: &Claim) -> bool {
        let Some((holder, spoken)) = &self.holder else {
            return false;
        };
        let namespace = claim.namespace();
        let alone = self.tenants.keys().all(|tenant| tenant == namespace);
        match claim.protocol.group() {
            group if group != *spoken => !(holder == namespace && alone),
            Group::Raw => holder != namespace,
            Group::Http | Group::Tls => false,
        }
    }

    /// What the sets' listeners speak: what the port is held for; where it is nobody's, or its holder is alone, what
    /// the first of them speaks.
    pub(super) fn spoken(&self) -> Option<Group> {
        let first = || self.sets.values().next().copied();
        match &self.holder {
            Some((holder, _)) if self.sole() == Some(holder) => first(),
            Some((_, held)) => Some(*held),
            None => first(),
        }
    }

    /// Who is to hold the port, if nobody does, for what it speaks: whoever has the first listener there that is in
    /// force. Where the Gateway's own listeners settle what it speaks, whoever has the first route on the one for bytes
    /// or datagrams; and nobody, if they have names.
    #[must_use]
    pub fn next_holder(&self) -> Option<Holder> {
        if !self.own.is_empty() {
            let first = self.next_of_routes()?;
            return Some(Holder::of_port(first.clone(), Group::Raw));
        }
        let claims = self.sets.keys().filter_map(|at| self.claim(&at.2));
        // One that the proxies never get would keep others from a port that nobody serves.
        let mut served =
            claims.filter(|claim| claim.served || claim.protocol.group() != Group::Tls);
        let first = served.find(|claim| self.conflict(claim).is_none())?;
        Some(Holder::of_port(
            first.namespace().clone(),
            first.protocol.group(),
        ))
    }

    /// What has become of the claim to the port; `None` if nobody holds it.
    #[must_use]
    pub fn claim_state(&self) -> Option<PortClaimState> {
        let (holder, group) = self.holder.as_ref()?;
        let speaks = |tenant: &Arc<str>| self.tenants.get(tenant)?.get(group);
        let otherwise = match self.own.keys().next() {
            Some(_) => self.own.keys().any(|own| own != group) || self.is_reserved(),
            None => self.spoken().is_some_and(|spoken| spoken != *group),
        };
        let is_used = if self.is_own_raw() {
            self.has_route_of(holder)
        } else {
            speaks(holder).is_some()
        };
        // The mistake is in the holder's own listener, or in that of the Gateway to which its routes are attached.
        let is_kept =
            self.refused.contains_key(holder) || self.own.is_empty() && self.has_route_of(holder);
        Some(if otherwise {
            PortClaimState::Revoked
        } else if is_used {
            PortClaimState::Used
        } else {
            let other = self.tenants.keys().find(|tenant| speaks(tenant).is_some());
            match other.filter(|_| *group != Group::Raw) {
                Some(other) => PortClaimState::Passed(other.clone()),
                None if is_kept => PortClaimState::Used,
                None => PortClaimState::Idle,
            }
        })
    }

    /// Whether a listener of this group may be served, as far as what the port speaks goes: the Gateway's own
    /// listeners or the port's holder say so.
    #[must_use]
    pub fn is_settled_for(&self, group: Group) -> bool {
        self.own.contains_key(&group)
            || self.holder.as_ref().is_some_and(|(_, held)| *held == group)
    }

    fn in_force(&self, listener: &ListenerKey) -> bool {
        self.claim(listener)
            .is_some_and(|claim| self.conflict(claim).is_none())
    }

    /// The one that is in force of those that want the same names.
    pub(super) fn victor(&self, bucket: &Bucket) -> Option<&Claim> {
        let (.., listener) = bucket.first()?;
        self.claim(listener)
            .filter(|claim| self.conflict(claim).is_none())
    }

    /// Whether another listener in force on this port matches some of the same TLS names
    /// (GEP-3567: such listeners carry the condition OverlappingTLSConfig).
    #[must_use]
    pub fn overlaps(&self, claim: &Claim) -> bool {
        claim.protocol.group() == Group::Tls && {
            let names = &claim.hostname;
            let mut around = self.tls_in_force.above(names);
            let mut inside = self.tls_in_force.below(names);
            around.next().is_some() || inside.next().is_some()
        }
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
