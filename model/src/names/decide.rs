//! The rule by which names are decided. Nothing in this file changes the facts.

use std::sync::Arc;

use super::{
    AskedBy, GatewayNames, NameClaimState, NameDecision, NameRank, NameSource, Permissions, Rank,
    RecordedHolder, is_narrow,
};
use crate::claim::Holder;
use crate::hostname::{HostPattern, Hostname};
use crate::small::{SmallMap, SmallSet};

/// A pattern, and the namespace that owns the names for which it is the most specific pattern.
type Owned<'a> = (&'a HostPattern, &'a Arc<str>);

impl GatewayNames {
    /// Decides whether `namespace` may have `names`, if it asks for them in this way. Wildcards count if they are held,
    /// and not if somebody only asks for them.
    ///
    /// The order of the steps is part of the rule. The permission is checked first, so that a namespace learns nothing
    /// about names that it may never have. The holder is checked before wildcards around the name, so that a holder
    /// keeps its name when somebody else gets such a wildcard.
    ///
    /// The cost is one look-up for each label of the pattern, and at most two questions about grants.
    #[must_use]
    pub fn decide(
        &self,
        permissions: &dyn Permissions,
        namespace: &str,
        names: &HostPattern,
        by: AskedBy,
    ) -> NameDecision {
        self.decide_inside(permissions, namespace, names, by, self.above(names))
    }

    /// The same, if `around` is the nearest pattern around `names` with an owner.
    pub(super) fn decide_inside(
        &self,
        permissions: &dyn Permissions,
        namespace: &str,
        names: &HostPattern,
        by: AskedBy,
        around: Option<Owned<'_>>,
    ) -> NameDecision {
        // A listener or route with a mistake asks for nothing new, and its namespace keeps what it holds. Otherwise a
        // neighbour could wait for a mistake in an edit, and have the name a minute later.
        if by == AskedBy::Refused {
            let holds = self
                .holder(names)
                .is_some_and(|holder| **holder == *namespace);
            return if holds {
                NameDecision::Has
            } else {
                NameDecision::NotAsked
            };
        }
        if *namespace != *self.gateway.namespace {
            // Sharing comes before permission and claims. Nobody holds a name by it, so it does not matter who does, or
            // whether anybody does.
            if by == AskedBy::HttpRoute && is_shared(permissions, namespace, names) {
                return NameDecision::Has;
            }
            // The route of a recorded holder asks as the holder. So a mistake in the Gateway's listener that admitted
            // the namespace does not pass the name to somebody else.
            let is_recorded = || self.recorded(names).is_some_and(|of| **of == *namespace);
            let asks_as = if !by.is_route() {
                AsksAs::Listener
            } else if is_recorded() {
                AsksAs::Holder
            } else {
                AsksAs::Route
            };
            if let Some(refusal) = self.refusal(permissions, namespace, names, asks_as) {
                return refusal;
            }
        } else if by == AskedBy::Guest
            && let Some(refusal) = self.refusal_of_own_guest(names)
        {
            return refusal;
        }
        match self.holder(names) {
            Some(holder) if **holder == *namespace => NameDecision::Has,
            // While an admin takes the name away, others may ask for it. Otherwise nobody could become the next holder.
            Some(_) if !self.is_taken(names) => NameDecision::Taken,
            _ if self.is_inside(permissions, namespace, names, by, around) => NameDecision::Inside,
            // The limits are the last question. A namespace that has reached one does not get the name, and does not
            // keep others from it either, because only `Free` requests wait for it.
            _ if self.is_full(permissions, namespace) => NameDecision::TooMany,
            _ if by == AskedBy::Guest && self.is_full_for_guests(permissions, namespace) => {
                NameDecision::TooManyOfGuests
            }
            _ => NameDecision::Free,
        }
    }

    /// Whether an admin takes exactly this pattern from the namespace that holds it.
    pub(super) fn is_taken(&self, names: &HostPattern) -> bool {
        self.loser(names).is_some()
    }

    /// The namespace that holds exactly this pattern, if an admin takes it from there.
    pub(crate) fn loser(&self, names: &HostPattern) -> Option<&str> {
        let holder = self.holder(names)?;
        (Some(holder) == self.taken_from.get(names)).then_some(&**holder)
    }

    /// Whether a namespace holds as many names as it may. The Gateway's own namespace may hold any number.
    pub(super) fn is_full(&self, permissions: &dyn Permissions, namespace: &str) -> bool {
        *namespace != *self.gateway.namespace
            && self.held.get(namespace).copied().unwrap_or_default()
                >= permissions.most_names(namespace)
    }

    /// Whether a namespace holds so many names that routes of other namespaces on the listeners of its ListenerSets get
    /// no further one: half of its limit. So at any time, at most half of the limit is in names that it has only for
    /// guests, besides those in their grace, and guests can never keep it from the other half.
    pub(super) fn is_full_for_guests(
        &self,
        permissions: &dyn Permissions,
        namespace: &str,
    ) -> bool {
        *namespace != *self.gateway.namespace
            && self.held.get(namespace).copied().unwrap_or_default()
                >= permissions.most_names(namespace) / 2
    }

    /// The namespace that should get `names`, if nobody holds them or an admin takes them from their holder. Of those
    /// that ask and may have them, it is the first by rank. Those for which only guests ask come after the others, and
    /// a namespace from which an admin takes the names is the last.
    ///
    /// This needs no new decision, because the requests that may be fulfilled are kept in order.
    #[must_use]
    pub fn next(&self, names: &HostPattern) -> Option<&Arc<str>> {
        self.next_source(names).map(NameSource::namespace)
    }

    /// The same, as it is recorded.
    #[must_use]
    pub fn next_holder(&self, names: &HostPattern) -> Option<Holder> {
        let source = self.next_source(names)?;
        Some(Holder {
            // Guests come last, so nothing of the namespace itself asks.
            for_guests: source.is_guest(),
            ..Holder::from(source.namespace().clone())
        })
    }

    fn next_source(&self, names: &HostPattern) -> Option<&NameSource> {
        self.next_request(names).map(|request| &request.source)
    }

    /// The request that should get `names`; see [`Self::next`].
    pub(super) fn next_request(&self, names: &HostPattern) -> Option<&NameRank> {
        let free = &self.asks.get(names)?.free;
        let last = self.taken_from.get(names);
        let first = free
            .iter()
            .find(|request| Some(request.source.namespace()) != last);
        // The loser is not left out. If nobody else asks, the name goes back to it instead of to nobody.
        first.or_else(|| free.first())
    }

    /// The namespace to which a hostname belongs when connections and requests are selected. It is the owner of the
    /// most specific pattern that matches: the tenant that holds the pattern, or the Gateway's namespace if the pattern
    /// is the Gateway's own. If a tenant holds a pattern that is also the Gateway's own, the tenant is the owner, and
    /// the Gateway's listener serves it.
    ///
    /// The answer depends on what is held, and not on who asks. So a name belongs to its holder also on ports where the
    /// holder has no listener, for paths that its routes do not match, and during the grace period.
    ///
    /// The cost is one look-up for each label of the hostname.
    #[must_use]
    pub fn owner(&self, hostname: &Hostname) -> Option<Arc<str>> {
        let names = HostPattern::Exact(hostname.clone());
        let (_, owner) = self.nearest(self.claims.covering(&names), self.own.covering(&names))?;
        Some(owner.clone())
    }

    /// Whether a listener or route may serve a hostname that `names`, one of its patterns, matches. A wildcard or
    /// catch-all does not serve a name that another namespace owns. There are two exceptions: the Gateway's own
    /// listeners and routes of its namespace, and HTTPRoutes to which a grant gives a share in exactly this name.
    ///
    /// This looks at `source` alone. Whether a tenant may use a listener of the Gateway depends on the tenant's route.
    #[must_use]
    pub fn serves(&self, source: &NameSource, names: &HostPattern, hostname: &Hostname) -> bool {
        // A source that has exactly this name without owning it is one that shares it.
        let has = || {
            matches!(names, HostPattern::Exact(name) if name == hostname)
                && self.decision(source, names) == Some(NameDecision::Has)
        };
        source.is_own_of(&self.gateway)
            || self.owner(hostname).as_ref() == Some(source.namespace())
            || has()
    }

    /// The namespace that holds exactly this pattern. A claim whose holder may no longer have it does not count.
    #[must_use]
    pub fn holder(&self, names: &HostPattern) -> Option<&Arc<str>> {
        let held = self.claims.get(names)?;
        held.counts.then_some(&held.holder)
    }

    /// The namespace that is recorded as the holder of exactly this pattern, even if it may no longer have it.
    #[must_use]
    pub fn recorded(&self, names: &HostPattern) -> Option<&Arc<str>> {
        self.claims.get(names).map(|held| &held.holder)
    }

    /// The same, as it is recorded.
    #[must_use]
    pub fn recorded_holder(&self, names: &HostPattern) -> Option<Holder> {
        let held = self.claims.get(names)?;
        Some(Holder {
            for_guests: held.for_guests,
            ..Holder::from(held.holder.clone())
        })
    }

    /// Every pattern that is held, with its holder. Claims whose holders may no longer have them do not count.
    pub fn held(&self) -> impl Iterator<Item = (&HostPattern, &Arc<str>)> {
        let held = self.claims.covered(&HostPattern::Any);
        let held = held.filter(|(_, held)| held.counts);
        held.map(|(names, held)| (names, &held.holder))
    }

    /// Every pattern with a recorded holder, and every pattern that something asks for.
    pub fn known(&self) -> impl Iterator<Item = &HostPattern> {
        let asked = self.asks.covered(&HostPattern::Any);
        let held = self.claims.covered(&HostPattern::Any);
        asked
            .map(|(names, _)| names)
            .chain(held.map(|(names, _)| names))
    }

    /// The most specific pattern that covers `names` and has an owner, with this owner. It is the nearest of the claims
    /// that count and of the Gateway's own names, and with `assumes` also of the names that somebody should get.
    ///
    /// The cost is at most three look-ups for each label of the pattern.
    #[must_use]
    pub fn nearest_owner(
        &self,
        names: &HostPattern,
        assumes: bool,
    ) -> Option<(&HostPattern, &Arc<str>)> {
        let owned = self.nearest(self.claims.covering(names), self.own.covering(names));
        let mut asks = self.asks.covering(names);
        let expected = assumes
            .then(|| asks.find_map(|(pattern, _)| Some((pattern, self.next(pattern)?))))
            .flatten();
        match (owned, expected) {
            (Some(owned), Some(expected)) => {
                let is_nearer = expected.0.specificity() > owned.0.specificity();
                // Of one pattern, the holder comes first, then whoever should get it, and then the Gateway.
                let is_own = || expected.0 == owned.0 && self.holder(owned.0).is_none();
                Some(if is_nearer || is_own() {
                    expected
                } else {
                    owned
                })
            }
            (owned, expected) => owned.or(expected),
        }
    }

    /// Everything that asks for a pattern.
    pub fn askers(&self, names: &HostPattern) -> impl Iterator<Item = &NameSource> {
        let asks = self.asks.get(names).into_iter();
        asks.flat_map(|asks| asks.by_namespace.values().flat_map(SmallMap::keys))
    }

    /// The state of a recorded claim; `None` if there is none.
    #[must_use]
    pub fn claim_state(&self, names: &HostPattern) -> Option<NameClaimState> {
        let held = self.claims.get(names)?;
        let asks = self.asks.get(names);
        // The loser keeps the name until somebody can follow, so that taking a name away does not leave it unserved.
        let is_passed = || self.is_taken(names) && self.next(names).is_some();
        Some(if !held.counts || is_passed() {
            NameClaimState::Revoked
        } else if asks.is_some_and(|asks| asks.uses(held)) {
            NameClaimState::Used
        } else {
            NameClaimState::Idle
        })
    }

    /// The decision about a listener or route that asks for `names`.
    #[must_use]
    pub fn decision(&self, source: &NameSource, names: &HostPattern) -> Option<NameDecision> {
        let asks = self.asks.get(names)?;
        let ask = asks.by_namespace.get(source.namespace())?.get(source)?;
        Some(ask.decision)
    }

    /// Whether a namespace may hold `names`, if nobody else does. This decides whether a recorded claim counts, so it
    /// must not depend on other claims. Otherwise the holder of a name would lose it to a wildcard around it.
    pub(super) fn may_hold(
        &self,
        permissions: &dyn Permissions,
        namespace: &str,
        names: &HostPattern,
    ) -> bool {
        *namespace == *self.gateway.namespace
            || self
                .refusal(permissions, namespace, names, AsksAs::Holder)
                .is_none()
    }

    /// Why a tenant may not have `names`, even if nobody else holds them.
    fn refusal(
        &self,
        permissions: &dyn Permissions,
        namespace: &str,
        names: &HostPattern,
        asks_as: AsksAs,
    ) -> Option<NameDecision> {
        if !permissions.lets_in(namespace) {
            return Some(NameDecision::NotGranted);
        }
        // With grants, the admin says how wide a pattern may be. Without them, one namespace could take all names below
        // a public suffix.
        if permissions.is_guarded() {
            if permissions.granted(namespace, names).is_none() {
                return Some(NameDecision::NotGranted);
            }
        } else if !is_narrow(names, |suffix| permissions.is_public_suffix(suffix)) {
            return Some(NameDecision::TooWide);
        }
        let own = self.own.get(names)?;
        let open = asks_as != AsksAs::Listener && is_open(permissions, namespace, own, asks_as);
        // Only exact names are reserved. A wildcard of the Gateway's own is a listener for tenants, who are meant to
        // ask for the names inside it.
        (matches!(names, HostPattern::Exact(_)) && !open).then_some(NameDecision::Reserved)
    }

    /// Why a route of another namespace may not have `names` on a ListenerSet of the Gateway's own namespace, even if
    /// nobody else holds them. That namespace stands above claims, and its guests do not. A wildcard would serve the
    /// Gateway's own names inside it.
    fn refusal_of_own_guest(&self, names: &HostPattern) -> Option<NameDecision> {
        if !matches!(names, HostPattern::Exact(_)) {
            return Some(NameDecision::OnlyHostnames);
        }
        self.own.get(names).map(|_| NameDecision::Reserved)
    }

    /// Whether `names` lie inside a wildcard of another tenant, and no grant at or below that wildcard gives them. The
    /// Gateway's own namespace is kept out by no wildcard, but its guests are.
    ///
    /// Only the nearest pattern around them counts, which is `around`, because the names inside that pattern do not
    /// belong to any wider one.
    fn is_inside(
        &self,
        permissions: &dyn Permissions,
        namespace: &str,
        names: &HostPattern,
        by: AskedBy,
        around: Option<Owned<'_>>,
    ) -> bool {
        let Some((around, holder)) = around else {
            return false;
        };
        let own = &*self.gateway.namespace;
        // `Any` does not count: it stands for every name that nobody else holds, so it keeps nobody from a name.
        let closes = around.is_wildcard() && **holder != *own && **holder != *namespace;
        if *namespace == *own {
            return closes && by == AskedBy::Guest;
        }
        // A wider grant does not count. Otherwise everybody with a grant for a whole domain could take names out of a
        // wildcard that another tenant holds there.
        closes
            && !(permissions.is_guarded()
                && permissions
                    .granted(namespace, names)
                    .is_some_and(|granted| around.covers(&granted)))
    }

    /// The nearest pattern around `names` that is held or the Gateway's own, without `names` itself.
    pub(super) fn above<'a>(&'a self, names: &'a HostPattern) -> Option<Owned<'a>> {
        self.nearest(self.claims.above(names), self.own.above(names))
    }

    /// The nearest pattern around `names` with an owner, as the request of `source` finds it. It is held or the Gateway's
    /// own, or it is a wildcard that nobody holds and that a request before this one should get. So a request is decided
    /// as if all requests before it had been recorded.
    ///
    /// A wildcard that the Gateway's own namespace should get counts in any order. It closes nothing, and wider wildcards
    /// do not reach into it. So once it is recorded, it lets in what came before it as well.
    pub(super) fn around<'a>(
        &'a self,
        names: &'a HostPattern,
        source: &NameSource,
        rank: &Rank,
    ) -> Option<Owned<'a>> {
        let owned = self.above(names);
        let mut expected = self.expected.above(names);
        let expected = expected.find(|(_, first)| {
            *first.source.namespace() == self.gateway.namespace || first.is_before(source, rank)
        });
        let expected = expected.map(|(pattern, first)| (pattern, first.source.namespace()));
        match (owned, expected) {
            // Of one pattern, whoever should get it comes before the Gateway. Nobody holds it.
            (Some(owned), Some(expected)) if owned.0.specificity() > expected.0.specificity() => {
                Some(owned)
            }
            (owned, expected) => expected.or(owned),
        }
    }

    /// The owner of those names of a pattern that do not match a narrower pattern with an owner. It is the holder of
    /// the pattern, or the Gateway's namespace if the pattern is the Gateway's own. The proxies are told this owner.
    #[must_use]
    pub fn owner_at(&self, names: &HostPattern) -> Option<&Arc<str>> {
        let own = || self.own.get(names).map(|_| &self.gateway.namespace);
        self.holder(names).or_else(own)
    }

    /// The more specific of the first claim that counts and the first name of the Gateway's own. Both iterators are in
    /// order, the most specific pattern first. If both have the same pattern, the claim is returned.
    fn nearest<'a>(
        &'a self,
        mut claims: impl Iterator<Item = (&'a HostPattern, &'a RecordedHolder)>,
        mut own: impl Iterator<Item = (&'a HostPattern, &'a SmallSet<NameSource>)>,
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

/// The way in which a tenant asks for a name that may be the Gateway's own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AsksAs {
    /// By a listener of a ListenerSet, which never shares a name with the Gateway.
    Listener,
    /// By a route.
    Route,
    /// By a route, or not at all at the moment, as the recorded holder of the name.
    Holder,
}

/// Whether an exact name of the Gateway's own is open to routes of a namespace: a listener with this name admits them,
/// and no route of the Gateway's namespace has the name.
///
/// A refused listener admits nobody new, and keeps nobody from the others. But whoever holds the name because the listener
/// admitted their routes keeps it until the mistake is mended, so it does not pass to somebody else.
fn is_open(
    permissions: &dyn Permissions,
    namespace: &str,
    own: &SmallSet<NameSource>,
    asks_as: AsksAs,
) -> bool {
    let mut admitted = false;
    for source in own {
        match source {
            NameSource::Listener(listener) => admitted |= permissions.admits(listener, namespace),
            NameSource::Refused(source) => match &**source {
                NameSource::Listener(listener) => {
                    admitted |=
                        asks_as == AsksAs::Holder && permissions.admits(listener, namespace);
                }
                // A route of the Gateway's namespace reserves its name without an exception, also while it is refused.
                _ => return false,
            },
            NameSource::Route(_) | NameSource::Guest(_) => return false,
        }
    }
    admitted
}
