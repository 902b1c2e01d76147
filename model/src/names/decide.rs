//! The rule itself: what follows from the facts. Nothing here changes anything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{
    AskedBy, GatewayNames, NameClaimState, NameDecision, NameSource, Permissions, RecordedHolder,
    is_narrow,
};
use crate::hostname::{HostPattern, Hostname};

/// A pattern, and the namespace that owns the names of which it is the most specific pattern.
type Owned<'a> = (&'a HostPattern, &'a Arc<str>);

impl GatewayNames {
    /// Whether `namespace` may have `names`, which it asks for in this way.
    ///
    /// The order of the questions is part of the rule. Permission comes first, so that a namespace learns nothing
    /// about names that it may never have. A holder comes before everything that could close a name, so whoever
    /// holds a name keeps it when somebody else gets a wildcard around it.
    ///
    /// It costs as much as the pattern has labels, and at most two questions about grants.
    #[must_use]
    pub fn decide(
        &self,
        permissions: &dyn Permissions,
        namespace: &str,
        names: &HostPattern,
        by: AskedBy,
    ) -> NameDecision {
        if *namespace != *self.gateway.namespace {
            if by == AskedBy::HttpRoute && is_shared(permissions, namespace, names) {
                return NameDecision::Has;
            }
            if let Some(refusal) = self.refusal(permissions, namespace, names, by.is_route()) {
                return refusal;
            }
        }
        match self.holder(names) {
            Some(holder) if **holder == *namespace => NameDecision::Has,
            Some(_) if !self.is_taken(names) => NameDecision::Taken,
            _ if self.is_inside(permissions, namespace, names) => NameDecision::Inside,
            _ if self.is_full(permissions, namespace) => NameDecision::TooMany,
            _ => NameDecision::Free,
        }
    }

    /// Whether an admin takes this very pattern from the namespace that holds it.
    pub(super) fn is_taken(&self, names: &HostPattern) -> bool {
        self.loser(names).is_some()
    }

    /// The namespace that holds this very pattern, and from which an admin takes it.
    pub(crate) fn loser(&self, names: &HostPattern) -> Option<&str> {
        let holder = self.holder(names)?;
        (Some(holder) == self.taken_from.get(names)).then_some(&**holder)
    }

    /// Whether a namespace has as many names as it may. The Gateway's own may have any number.
    pub(super) fn is_full(&self, permissions: &dyn Permissions, namespace: &str) -> bool {
        *namespace != *self.gateway.namespace
            && self.held.get(namespace).copied().unwrap_or_default()
                >= permissions.most_names(namespace)
    }

    /// Which namespace should get `names`: nobody holds them, or they are taken from their holder; and of those that ask
    /// and may have them it is first by rank. From whom they are taken is last. Costs no decision: who may have them
    /// is kept up to date.
    #[must_use]
    pub fn next(&self, names: &HostPattern) -> Option<&Arc<str>> {
        let free = &self.asks.get(names)?.free;
        let mut others = free.iter().map(|(_, source)| source.namespace());
        let last = self.taken_from.get(names);
        let first = others.find(|namespace| Some(*namespace) != last);
        first.or_else(|| Some(free.first()?.1.namespace()))
    }

    /// Which namespace a hostname belongs to, where connections and requests are selected: the holder, or the
    /// Gateway's own, of the most specific pattern that matches. Where a tenant holds the same pattern that is the
    /// Gateway's own, the tenant has it: the Gateway's listener is what it is served by.
    ///
    /// It depends on what is held, not on what asks, so a name belongs to its holder on ports where the holder has
    /// nothing, for paths that its routes do not match, and while it has let go for a moment.
    ///
    /// It costs as much as the hostname has labels.
    #[must_use]
    pub fn owner(&self, hostname: &Hostname) -> Option<Arc<str>> {
        let names = HostPattern::Exact(hostname.clone());
        let (_, owner) = self.nearest(self.claims.covering(&names), self.own.covering(&names))?;
        Some(owner.clone())
    }

    /// Whether a listener or route may serve a hostname that `names`, one of its patterns, matches. A wildcard or
    /// catch-all serves no name that another namespace owns. Two things are above that: the Gateway's own listeners
    /// and routes of its namespace; and HTTPRoutes that a grant lets share just this name.
    ///
    /// This judges by `source` alone: who may use a listener of the Gateway is judged by the route on it.
    #[must_use]
    pub fn serves(&self, source: &NameSource, names: &HostPattern, hostname: &Hostname) -> bool {
        // Who has the name itself and does not own it shares it.
        let has = || {
            matches!(names, HostPattern::Exact(name) if name == hostname)
                && self.decision(source, names) == Some(NameDecision::Has)
        };
        source.is_own_of(&self.gateway)
            || self.owner(hostname).as_ref() == Some(source.namespace())
            || has()
    }

    /// The namespace that holds this very pattern. A claim whose holder may not have it any more does not count.
    #[must_use]
    pub fn holder(&self, names: &HostPattern) -> Option<&Arc<str>> {
        let held = self.claims.get(names)?;
        held.counts.then_some(&held.holder)
    }

    /// The namespace that is recorded as the holder of this very pattern, whether or not it may still have it.
    #[must_use]
    pub fn recorded(&self, names: &HostPattern) -> Option<&Arc<str>> {
        self.claims.get(names).map(|held| &held.holder)
    }

    /// Every pattern of which a holder is recorded, or that something asks for.
    pub fn known(&self) -> impl Iterator<Item = &HostPattern> {
        let asked = self.asks.covered(&HostPattern::Any);
        let held = self.claims.covered(&HostPattern::Any);
        asked
            .map(|(names, _)| names)
            .chain(held.map(|(names, _)| names))
    }

    /// Every pattern around `names`, and `names`, of which a holder is recorded, that is the Gateway's own, or that
    /// something asks for: the most specific one first.
    #[must_use]
    pub fn covering<'a>(&'a self, names: &'a HostPattern) -> Vec<&'a HostPattern> {
        let claims = self.claims.covering(names).map(|(pattern, _)| pattern);
        let own = self.own.covering(names).map(|(pattern, _)| pattern);
        let asks = self.asks.covering(names).map(|(pattern, _)| pattern);
        let mut all: Vec<&HostPattern> = claims.chain(own).chain(asks).collect();
        all.sort_by_key(|pattern| std::cmp::Reverse(pattern.specificity()));
        all.dedup();
        all
    }

    /// Everything that asks for a pattern.
    pub fn askers(&self, names: &HostPattern) -> impl Iterator<Item = &NameSource> {
        let asks = self.asks.get(names).into_iter();
        asks.flat_map(|asks| asks.by_namespace.values().flat_map(BTreeMap::keys))
    }

    /// What has become of a recorded claim; `None` if there is none.
    #[must_use]
    pub fn claim_state(&self, names: &HostPattern) -> Option<NameClaimState> {
        let held = self.claims.get(names)?;
        let asks = self.asks.get(names);
        let is_passed = || self.is_taken(names) && self.next(names).is_some();
        Some(if !held.counts || is_passed() {
            NameClaimState::Revoked
        } else if asks.is_some_and(|asks| asks.has(&held.holder)) {
            NameClaimState::Used
        } else {
            NameClaimState::Idle
        })
    }

    /// What was decided about something that asks.
    #[must_use]
    pub fn decision(&self, source: &NameSource, names: &HostPattern) -> Option<NameDecision> {
        let asks = self.asks.get(names)?;
        let ask = asks.by_namespace.get(source.namespace())?.get(source)?;
        Some(ask.decision)
    }

    /// Whether a namespace may hold `names`, if nobody else does. It decides whether a recorded claim counts, so it
    /// must not depend on other claims: the holder of a name inside somebody's wildcard keeps it.
    pub(super) fn may_hold(
        &self,
        permissions: &dyn Permissions,
        namespace: &str,
        names: &HostPattern,
    ) -> bool {
        // What is open to its routes, if to nothing else, it may hold.
        *namespace == *self.gateway.namespace
            || self.refusal(permissions, namespace, names, true).is_none()
    }

    /// Why a tenant may not have `names`, whoever holds what.
    fn refusal(
        &self,
        permissions: &dyn Permissions,
        namespace: &str,
        names: &HostPattern,
        is_route: bool,
    ) -> Option<NameDecision> {
        if !permissions.lets_in(namespace) {
            return Some(NameDecision::NotGranted);
        }
        if permissions.is_guarded() {
            if permissions.granted(namespace, names).is_none() {
                return Some(NameDecision::NotGranted);
            }
        } else if !is_narrow(names, |suffix| permissions.is_public_suffix(suffix)) {
            return Some(NameDecision::TooWide);
        }
        let own = self.own.get(names)?;
        let open = is_route && is_open(permissions, namespace, own);
        (matches!(names, HostPattern::Exact(_)) && !open).then_some(NameDecision::Reserved)
    }

    /// Whether `names` lie inside a wildcard that another tenant holds, and no grant at or below it gives them.
    ///
    /// Only the nearest pattern around them counts: what is further out does not include what lies inside it.
    fn is_inside(
        &self,
        permissions: &dyn Permissions,
        namespace: &str,
        names: &HostPattern,
    ) -> bool {
        let Some((around, holder)) = self.above(names) else {
            return false;
        };
        let own = &*self.gateway.namespace;
        // Not `Any`: it is every name that nobody else holds, so it closes nothing.
        let closes = around.is_wildcard() && **holder != *own && **holder != *namespace;
        closes
            && *namespace != *own
            && !(permissions.is_guarded()
                && permissions
                    .granted(namespace, names)
                    .is_some_and(|granted| around.covers(&granted)))
    }

    /// The nearest pattern around `names` that is held or the Gateway's own, without `names` itself.
    pub(super) fn above<'a>(&'a self, names: &'a HostPattern) -> Option<Owned<'a>> {
        self.nearest(self.claims.above(names), self.own.above(names))
    }

    /// Whom the names of a pattern belong to that no narrower pattern takes: its holder, or the Gateway's namespace if
    /// the pattern is the Gateway's own. This is what the proxies are told.
    #[must_use]
    pub fn owner_at(&self, names: &HostPattern) -> Option<&Arc<str>> {
        let own = || self.own.get(names).map(|_| &self.gateway.namespace);
        self.holder(names).or_else(own)
    }

    /// The most specific one of claims and names of the Gateway's own, both in order; of one pattern, the claim.
    fn nearest<'a>(
        &'a self,
        mut claims: impl Iterator<Item = (&'a HostPattern, &'a RecordedHolder)>,
        mut own: impl Iterator<Item = (&'a HostPattern, &'a BTreeSet<NameSource>)>,
    ) -> Option<Owned<'a>> {
        let claim = claims.find(|(_, held)| held.counts);
        let claim = claim.map(|(pattern, held)| (pattern, &held.holder));
        let own = own.next();
        let own = own.map(|(pattern, _)| (pattern, &self.gateway.namespace));
        match (claim, own) {
            (Some(claim), Some(own)) if own.0.specificity() > claim.0.specificity() => Some(own),
            (claim, own) => claim.or(own),
        }
    }
}

fn is_shared(permissions: &dyn Permissions, namespace: &str, names: &HostPattern) -> bool {
    match names {
        HostPattern::Exact(name) => permissions.shares(namespace, name),
        HostPattern::Any | HostPattern::Wildcard(_) => false,
    }
}

/// Whether an exact name of the Gateway's own is open to a namespace's routes: a listener that has it admits them,
/// and the Gateway's namespace has no route for it.
fn is_open(permissions: &dyn Permissions, namespace: &str, own: &BTreeSet<NameSource>) -> bool {
    let mut admitted = false;
    for source in own {
        match source {
            NameSource::Listener(listener) => admitted |= permissions.admits(listener, namespace),
            NameSource::Route(_) | NameSource::Guest(..) => return false,
        }
    }
    admitted
}
