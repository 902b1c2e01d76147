//! Verdicts about claims to a port: which claims conflict, which listener gets connections, and who should hold the
//! port.

use std::sync::Arc;

use super::{Bucket, ListenerRank, PortClaims, Tier};
use crate::claim::Holder;
use crate::conflict::{Claim, Conflict, Precedence};
use crate::hostname::HostPattern;
use crate::key::ListenerKey;
use crate::protocol::Group;

/// The state of the claim to a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortClaimState {
    /// Its holder has a listener that speaks what the port does, or a route on the Gateway's own listener. Or it has a
    /// mistake to mend and keeps the port meanwhile.
    Used,
    /// Its holder has none any more, but this namespace has a listener. It can be so only if the port speaks HTTP or
    /// TLS.
    Passed(Arc<str>),
    /// Its holder has none any more, and no other namespace can take over the claim.
    Idle,
    /// The claim should be removed at once. The Gateway's own listeners speak something else there, or a route of the
    /// Gateway's namespace gets the traffic.
    Revoked,
}

/// Judges a claim as admission does: whatever is in force comes before it.
#[derive(Clone, Copy)]
struct AsNewcomer<'a> {
    /// The namespace from which an admin takes the claim's hostname.
    loser: Option<&'a str>,
}

impl PortClaims {
    /// The conflict of `claim` with those before it, if any. It need not be one of the claims here. If it is one, it is
    /// not compared with itself.
    #[must_use]
    pub fn conflict(&self, claim: &Claim) -> Option<Conflict> {
        self.judge(claim, None)
    }

    /// The conflict of `claim` with what other objects have now, whatever the order, if any. Admission asks this, so
    /// that an older object cannot evict a younger one by an edit.
    ///
    /// Claims of the same object do not count, nor do those of other ListenerSets that are not in force. The Gateway's
    /// own claims always count. Claims of the namespace `loser` to the same hostname do not count, because an admin
    /// takes the hostname from it.
    #[must_use]
    pub fn conflict_as_newcomer(&self, claim: &Claim, loser: Option<&str>) -> Option<Conflict> {
        self.judge(claim, Some(AsNewcomer { loser }))
    }

    fn judge(&self, claim: &Claim, newcomer: Option<AsNewcomer<'_>>) -> Option<Conflict> {
        let group = claim.protocol.group();
        let bucket = self.bucket(group, claim.names());
        let clash = |rival: &ListenerKey| {
            let same = self
                .claim(rival)
                .is_some_and(|c| c.protocol == claim.protocol);
            // TCP and UDP carry no hostnames, so their listeners conflict over the port itself.
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
        // If the Gateway itself has listeners on the port, they decide what it speaks.
        let of_gateway = self.of_gateway();
        let is_closed = if of_gateway.is_empty() {
            self.is_closed_by_holder(claim)
        } else {
            // Only one listener can get the bytes of a TCP or UDP port. If the Gateway has one, no set can have
            // another.
            !of_gateway.contains(group) || group == Group::Raw
        };
        if is_closed {
            return Some(Conflict::Protocol);
        }
        let rank = self.rank(claim);
        // Among sets, only what is in force counts. The first claim of all decides what the port speaks, and the first
        // claim to the same names has these names.
        let counts = |precedence: &Precedence, listener: &ListenerKey, is_before: bool| {
            *listener != claim.listener
                && if newcomer.is_some() {
                    !same_object(precedence, &claim.precedence) && self.in_force(listener)
                } else {
                    is_before
                }
        };
        if of_gateway.is_empty()
            && let Some(spoken) = self.spoken()
            && spoken != group
            && self
                .sets
                .iter()
                .filter(|(_, g)| **g == spoken)
                .any(|((precedence, listener), _)| {
                    let is_before = (precedence, listener) < (&claim.precedence, &claim.listener);
                    counts(precedence, listener, is_before)
                })
        {
            return Some(Conflict::Protocol);
        }
        let loser = newcomer.and_then(|newcomer| newcomer.loser);
        let keeps = |at: &&ListenerRank| loser != Some(&*at.2.parent.name().namespace);
        bucket
            .into_iter()
            .flatten()
            .filter(keeps)
            .find(|at| counts(&at.1, &at.2, **at < rank))
            .map(|at| clash(&at.2))
    }

    /// The conflict of a claim with the Gateway's own claims, if any. All of these count, for one another and for sets,
    /// because they keep their names even if they conflict with one another.
    fn conflict_with_own(
        &self,
        claim: &Claim,
        clash: impl Fn(&ListenerKey) -> Conflict,
    ) -> Option<Conflict> {
        let group = claim.protocol.group();
        // The claim replaces the listener's former one, so it does not conflict with that one.
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

    /// Whether the claim is refused because of the port's holder. That is so if it wants to speak something other than the
    /// port does, and if it is a raw claim and another namespace holds the port.
    fn is_closed_by_holder(&self, claim: &Claim) -> bool {
        let Some((holder, spoken)) = &self.holder else {
            return false;
        };
        let namespace = claim.namespace();
        match claim.protocol.group() {
            group if group != *spoken => true,
            Group::Raw => holder != namespace,
            Group::Http | Group::Tls => false,
        }
    }

    /// The group of protocols that the sets' listeners may speak. It is the one for which the port is held. If nobody
    /// holds the port, it is the one that the first of them speaks.
    pub(super) fn spoken(&self) -> Option<Group> {
        match &self.holder {
            Some((_, held)) => Some(*held),
            None => self.sets.values().next().copied(),
        }
    }

    /// The namespace that should hold the port if nobody does, with the group that it speaks. It is the namespace of
    /// the first listener in force. If the Gateway has listeners of its own there, it is the namespace of the first
    /// route on a TCP or UDP listener; nobody needs to hold the port if these listeners have names.
    #[must_use]
    pub fn next_holder(&self) -> Option<Holder> {
        if !self.of_gateway().is_empty() {
            let first = self.next_of_routes()?;
            return Some(Holder::of_port(first.clone(), Group::Raw));
        }
        let claims = self.sets.keys().filter_map(|at| self.claim(&at.1));
        // A listener that the proxies never get does not count, nor does one that may still lose its name. Otherwise it
        // would keep others from a port that nobody serves.
        let mut served = claims.filter(|claim| match claim.protocol.group() {
            Group::Raw => true,
            Group::Http => claim.has_name,
            Group::Tls => claim.has_name && claim.served,
        });
        let first = served.find(|claim| self.conflict(claim).is_none())?;
        Some(Holder::of_port(
            first.namespace().clone(),
            first.protocol.group(),
        ))
    }

    /// The state of the claim to the port; `None` if nobody holds it.
    #[must_use]
    pub fn claim_state(&self) -> Option<PortClaimState> {
        let (holder, group) = self.holder.as_ref()?;
        let speaks = |tenant: &Arc<str>| self.tenants.get(tenant)?.get(group);
        let of_gateway = self.of_gateway();
        let is_of_gateway = !of_gateway.is_empty();
        if is_of_gateway && (of_gateway.has_others_than(*group) || self.is_reserved()) {
            return Some(PortClaimState::Revoked);
        }
        let is_used = if self.is_own_raw() {
            self.has_route_of(holder)
        } else {
            speaks(holder).is_some()
        };
        // The mistake is in the holder's own listener, or in that of the Gateway to which its routes are attached.
        let mut refused = self.refused.get(holder).into_iter().flatten();
        let is_kept = refused.any(|(_, may_be_raw)| *group != Group::Raw || *may_be_raw)
            || self.own.is_empty() && self.has_route_of(holder);
        Some(if is_used {
            PortClaimState::Used
        } else {
            let other = self.tenants.keys().find(|tenant| speaks(tenant).is_some());
            // A namespace in service comes before a mistake of the holder. A TCP or UDP port belongs to its holder
            // alone, so nobody else can be in service there.
            match other.filter(|_| *group != Group::Raw) {
                Some(other) => PortClaimState::Passed(other.clone()),
                None if is_kept => PortClaimState::Used,
                None => PortClaimState::Idle,
            }
        })
    }

    /// Whether the port is settled for this group, by the Gateway's own listeners or by the port's holder, so that
    /// listeners of the group may be served.
    #[must_use]
    pub fn is_settled_for(&self, group: Group) -> bool {
        self.of_gateway().contains(group)
            || self.holder.as_ref().is_some_and(|(_, held)| *held == group)
    }

    fn in_force(&self, listener: &ListenerKey) -> bool {
        self.claim(listener)
            .is_some_and(|claim| self.conflict(claim).is_none())
    }

    /// The claim in force among those to the same names, if there is one.
    pub(super) fn victor(&self, bucket: &Bucket) -> Option<&Claim> {
        let (.., listener) = bucket.first()?;
        self.claim(listener)
            .filter(|claim| self.conflict(claim).is_none())
    }

    /// Whether a TLS listener in force on this port has other names that overlap with those of `claim`. GEP-3567 wants
    /// the condition OverlappingTLSConfig on such listeners.
    #[must_use]
    pub fn overlaps(&self, claim: &Claim) -> bool {
        claim.protocol.group() == Group::Tls && {
            let names = &claim.hostname;
            let mut around = self.tls_in_force.above(names);
            let mut inside = self.tls_in_force.below(names);
            around.next().is_some() || inside.next().is_some()
        }
    }

    /// The claim whose listener gets TLS connections for `names`, as soon as what waits for a recorded claim has it. It
    /// is the most specific claim in force that is served and covers all of the names.
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
