//! The conflicts that a ListenerSet would have if it were applied. Admission asks for them.

use std::collections::BTreeMap;

use super::{Merge, PortKey, SetVerdict, set_claims};
use crate::conflict::{Claim, Conflict};
use crate::finding::Finding;
use crate::gateway::{Listener, ListenerSet};
use crate::key::ObjectName;
use crate::names::{AskedBy, NameDecision};
use crate::port::PortClaims;
use crate::protocol::Group;

impl Merge {
    /// The conflicts that a new ListenerSet would have, as findings: of its hostnames with those that others hold, and
    /// of its listeners with those of all other objects and with earlier ones of its own. If its Gateway does not allow
    /// it (then its status says so) or does not exist (yet), only conflicts among its own listeners count.
    #[must_use]
    pub fn conflicts_of_newcomer(&self, set: &ListenerSet) -> Vec<Finding> {
        self.conflicts_of_change(None, set)
    }

    /// The conflicts that a change of a ListenerSet from `old` would cause, as findings. They are those of a new set,
    /// except that a listener with the same claim as before is not judged again. So a set that already has a conflict
    /// can still be edited in other places.
    #[must_use]
    pub fn conflicts_of_change(
        &self,
        old: Option<&ListenerSet>,
        set: &ListenerSet,
    ) -> Vec<Finding> {
        let Some(gateway) = &set.gateway else {
            return Vec::new();
        };
        let before = old
            .and_then(|old| Some(self.previews(old, old.gateway.as_ref()?)))
            .unwrap_or_default();
        self.previews(set, gateway)
            .into_iter()
            .filter_map(|new| {
                let kept = before.iter().find(|old| old.same_claim(&new));
                // A set that has lost a name can still be edited in other places.
                let of_name =
                    new.name
                        .listener_finding(&new.listener.field, &new.claim.hostname, gateway);
                if let Some(finding) = of_name {
                    return kept.is_none().then_some(finding);
                }
                let conflict = match kept {
                    // The claim is the old one, so only listeners of the same set can be a new reason for a conflict.
                    Some(old) => new.inside.filter(|_| old.conflict().is_none()),
                    None => new.conflict(),
                }?;
                let (listener, port) = (new.listener, new.key.port.get());
                Some(conflict.finding(&new.claim, &listener.field, port, gateway))
            })
            .collect()
    }

    /// The conflicts of each listener of a set: with other objects (if the Gateway allows the set), and with one
    /// another.
    fn previews<'a>(
        &'a self,
        set: &'a ListenerSet,
        gateway: &'a ObjectName,
    ) -> Vec<ListenerPreview<'a>> {
        let allowed = self.verdict(set) == SetVerdict::Allowed;
        // The set's own listeners are compared in ports of their own. So the claims in `self` do not change.
        let mut own: BTreeMap<PortKey, PortClaims> = BTreeMap::new();
        // A listener that grants do not allow makes no claim, so it conflicts with nothing.
        let owned = |key: &PortKey, claim: &Claim| {
            let namespace = &set.name.namespace;
            !allowed
                || self
                    .owns(
                        gateway,
                        namespace,
                        key.port,
                        &claim.protocol,
                        &claim.hostname,
                    )
                    .and_then(|()| {
                        self.takes_every_name(gateway, namespace, key.port, &claim.protocol)
                    })
                    .is_ok()
        };
        let claims = set_claims(set, gateway, self.gateway(gateway).map(AsRef::as_ref));
        let claims = claims.filter(|(_, key, claim)| owned(key, claim));
        let mut previews: Vec<ListenerPreview> = claims
            .map(|(listener, key, mut claim)| {
                let name = if allowed && claim.protocol.group() != Group::Raw {
                    let namespace = &set.name.namespace;
                    self.decide(gateway, namespace, &claim.hostname, AskedBy::Listener)
                } else {
                    NameDecision::Has
                };
                claim.has_name = name == NameDecision::Has;
                let of = self.names.get(gateway);
                let loser = of.and_then(|of| of.loser(&claim.hostname));
                let loser = loser.filter(|loser| *loser != &*set.name.namespace);
                let elsewhere = self
                    .ports
                    .get(&key)
                    // A listener that may not have its name makes no claim, so it has no conflict on the port either.
                    .filter(|_| allowed && !name.is_refusal())
                    .and_then(|port| port.conflict_as_newcomer(&claim, loser));
                if elsewhere.is_none() && !name.is_refusal() {
                    own.entry(key.clone()).or_default().insert(claim.clone());
                }
                ListenerPreview {
                    listener,
                    key,
                    claim,
                    name,
                    elsewhere,
                    inside: None,
                }
            })
            .collect();
        // Which of two listeners comes first depends on more than their order in the object. So all of them have to be
        // in `own` before any of them is judged.
        for preview in &mut previews {
            let port = own.get(&preview.key);
            preview.inside = port.and_then(|port| port.conflict(&preview.claim));
        }
        previews
    }
}

/// One listener of a set that is not applied yet, with its conflicts.
struct ListenerPreview<'a> {
    listener: &'a Listener,
    key: PortKey,
    claim: Claim,
    /// The decision about its hostname on the whole Gateway.
    name: NameDecision,
    elsewhere: Option<Conflict>,
    inside: Option<Conflict>,
}

impl ListenerPreview<'_> {
    fn conflict(&self) -> Option<Conflict> {
        self.elsewhere.or(self.inside)
    }

    fn same_claim(&self, other: &Self) -> bool {
        self.key == other.key
            && self.claim.listener == other.claim.listener
            && self.claim.protocol == other.claim.protocol
            && self.claim.hostname == other.claim.hostname
    }
}
