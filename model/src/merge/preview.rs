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
    /// The conflicts a ListenerSet would have as a newcomer, as findings: its hostnames against those that others
    /// hold, its listeners against those of every other object, and against its own earlier ones. Where its Gateway does not let it in (its
    /// status says so) or does not exist (yet), only the latter.
    #[must_use]
    pub fn conflicts_of_newcomer(&self, set: &ListenerSet) -> Vec<Finding> {
        self.conflicts_of_change(None, set)
    }

    /// The conflicts that a change of a ListenerSet from `old` would bring, as findings: those of a
    /// newcomer, but a listener that claims what it claimed before is not judged again. So a set that
    /// already has a conflict can be edited elsewhere.
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
                // A set that lost a name can be edited elsewhere.
                let of_name =
                    new.name
                        .listener_finding(&new.listener.field, &new.claim.hostname, gateway);
                if let Some(finding) = of_name {
                    return kept.is_none().then_some(finding);
                }
                let conflict = match kept {
                    Some(old) => new.inside.filter(|_| old.conflict().is_none()),
                    None => new.conflict(),
                }?;
                let (listener, port) = (new.listener, new.key.port.get());
                Some(conflict.finding(&new.claim, &listener.field, port, gateway))
            })
            .collect()
    }

    /// What a set's listeners would meet, against other objects (if it is let in) and among themselves.
    fn previews<'a>(
        &'a self,
        set: &'a ListenerSet,
        gateway: &'a ObjectName,
    ) -> Vec<ListenerPreview<'a>> {
        let allowed = self.verdict(set) == SetVerdict::Allowed;
        // Its own listeners are few: they are held aside, the port's claims stay untouched.
        let mut own: BTreeMap<PortKey, PortClaims> = BTreeMap::new();
        // What is not the namespace's to have makes no claim.
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
        // Which of two comes first does not depend on their places in the object alone, so all of them have to be there.
        for preview in &mut previews {
            let port = own.get(&preview.key);
            preview.inside = port.and_then(|port| port.conflict(&preview.claim));
        }
        previews
    }
}

/// What one listener of a set would conflict with.
struct ListenerPreview<'a> {
    listener: &'a Listener,
    key: PortKey,
    claim: Claim,
    /// What is decided about its hostname on the whole Gateway.
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
