//! Whether the challenge for a name may be answered for a tenant. If the name belongs to a tenant, only this tenant
//! can get a certificate for it. Other Gateways count as well ([`super::across`]). For a name of the Gateway itself, or
//! of no tenant, the answer depends on which listener and routes are selected where the CA connects.
//!
//! The index holds the listeners on ports 443 and 80 of each Gateway, the routes on those of them that are the
//! Gateway's own, and the names for which somebody wants a certificate. The cost of a question grows with the
//! labels of the name only. A change marks the names that it matches.
//!
//! There is one exception to the rule in `model::challenge`. A route of the Gateway's own namespace that only
//! redirects, on the Gateway's own listener on port 80, does not count as another namespace's if a challenge on
//! port 443 may be answered for the tenant. Most Gateways redirect everything on port 80 to HTTPS, and this does
//! not show whom a name belongs to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vestibule_model::challenge::{ChallengeKey, ChallengeType, Reach, Reaches};
use vestibule_model::gateway::Listener;
use vestibule_model::hostname::{HostPattern, Hostname, route_precedence};
use vestibule_model::http::HttpFilter;
use vestibule_model::key::{ListenerKey, ObjectKey, ObjectName, ParentKey};
use vestibule_model::protocol::Protocol;
use vestibule_model::route::Route;
use vestibule_model::small::{SmallMap, SmallSet};

use super::Translator;
use super::binds::Bind;
use super::route_state::RouteState;

/// A listener on one of the ports where CAs connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ChallengeListener {
    kind: ChallengeType,
    hostname: HostPattern,
    bind: Bind,
}

impl ChallengeListener {
    /// What CAs find at a listener that is served at `bind`; `None` if no CA connects to its port, or if its
    /// protocol does not carry challenges.
    pub(super) fn of(listener: &Listener, bind: Bind) -> Option<Self> {
        let kind = ChallengeType::ALL
            .into_iter()
            .find(|kind| listener.port.is_some_and(|port| port.get() == kind.port()))?;
        let carries = match kind {
            ChallengeType::TlsAlpn01 => {
                matches!(listener.protocol, Protocol::Tls | Protocol::Https)
            }
            ChallengeType::Http01 => listener.protocol == Protocol::Http,
        };
        carries.then(|| Self {
            kind,
            hostname: listener.hostname.clone(),
            bind,
        })
    }
}

/// A unit that depends on who answers for a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Interest {
    /// A listener that wants a certificate for it.
    Listener(ListenerKey),
    /// A challenge for it that the proxies have to answer.
    Challenge(ChallengeKey),
}

/// A route on a Gateway's own listener, under one of its hostnames.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct OnShared {
    route: ObjectKey,
    rank: HostPattern,
    created: i64,
    redirects: bool,
}

/// The hostnames that a route serves on Gateways' own listeners.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SharedListenerRoutes(BTreeSet<(ListenerKey, HostPattern, OnShared)>);

impl SharedListenerRoutes {
    /// The hostnames of this route.
    pub(super) fn of(route: Option<Route<'_>>, state: Option<&RouteState>) -> Self {
        let (Some(route), Some(state)) = (route, state) else {
            return Self::default();
        };
        let redirects = match route {
            Route::Tls(_) | Route::Port(_) => false,
            Route::Http(route) => route.rules.iter().all(|rule| {
                let redirect = |filter: &HttpFilter| matches!(filter, HttpFilter::Redirect(_));
                // A CA cannot authorize itself, so it does not get to a redirect behind such a filter.
                let open = |filter: &&HttpFilter| !matches!(filter, HttpFilter::Auth(_));
                rule.filters.iter().take_while(open).any(redirect)
            }),
        };
        let attached = state.parents.values().flatten().flatten();
        let own = attached.filter(|at| matches!(at.listener.parent, ParentKey::Gateway(_)));
        Self(
            own.flat_map(|at| {
                // A route that serves only some paths of a name never serves ACME challenges, so it does not count.
                let whole = at
                    .hostnames
                    .iter()
                    .filter(|hostname| !state.is_in_part(&at.listener, &hostname.matches));
                whole.map(move |hostname| {
                    let on = OnShared {
                        route: route.key(),
                        rank: hostname.rank.clone(),
                        created: route.meta().created,
                        redirects,
                    };
                    (at.listener.clone(), hostname.matches.clone(), on)
                })
            })
            .collect(),
        )
    }
}

type ChallengePort = (ObjectName, ChallengeType);

/// The listeners and routes where CAs connect, and the names that depend on them.
#[derive(Debug, Default)]
pub(super) struct ChallengeIndex {
    listeners: BTreeMap<ChallengePort, BTreeMap<HostPattern, SmallMap<ListenerKey, Bind>>>,
    routes: BTreeMap<ListenerKey, BTreeMap<HostPattern, BTreeSet<OnShared>>>,
    /// By Gateway, and then by name with its labels reversed, so that the names below a suffix are a range.
    names: BTreeMap<ObjectName, BTreeMap<String, SmallSet<Interest>>>,
}

/// Who answers a CA that connects for a name, as one tenant sees it.
enum Answerer {
    Nothing,
    Tenant,
    /// Only redirects of the Gateway's own namespace.
    Redirect,
    Others,
}

impl ChallengeIndex {
    /// Records that `interest` depends on a name, or no longer does.
    pub(super) fn set_interest(
        &mut self,
        gateway: &ObjectName,
        hostname: &Hostname,
        interest: &Interest,
        there: bool,
    ) {
        if there {
            let names = self.names.entry(gateway.clone()).or_default();
            let interests = names.entry(reversed(hostname)).or_default();
            interests.insert(interest.clone());
        } else if let Some(names) = self.names.get_mut(gateway) {
            super::set_user(names, &reversed(hostname), interest, false);
            if names.is_empty() {
                self.names.remove(gateway);
            }
        }
    }

    /// Moves a listener. Returns the names for which a CA may reach somebody else now, and whether the socket that
    /// CAs reach changed.
    pub(super) fn move_listener(
        &mut self,
        key: &ListenerKey,
        from: Option<(&ObjectName, &ChallengeListener)>,
        to: Option<(&ObjectName, &ChallengeListener)>,
    ) -> Vec<(ObjectName, HostPattern, bool)> {
        let mut affected = Vec::new();
        if from == to {
            return affected;
        }
        for (challenge_listener, there) in [(from, false), (to, true)] {
            let Some((gateway, challenge_listener)) = challenge_listener else {
                continue;
            };
            let challenge_port = (gateway.clone(), challenge_listener.kind);
            let before = self.bind(gateway, challenge_listener.kind);
            let listeners = self.listeners.entry(challenge_port.clone()).or_default();
            let same = listeners
                .entry(challenge_listener.hostname.clone())
                .or_default();
            if there {
                same.insert(key.clone(), challenge_listener.bind);
            } else {
                same.remove(key);
            }
            if same.is_empty() {
                listeners.remove(&challenge_listener.hostname);
            }
            if listeners.is_empty() {
                self.listeners.remove(&challenge_port);
            }
            // A socket that opens, closes or moves concerns every name.
            let moved = self.bind(gateway, challenge_listener.kind) != before;
            let whom = if moved {
                HostPattern::Any
            } else {
                challenge_listener.hostname.clone()
            };
            affected.push((gateway.clone(), whom, moved));
        }
        affected
    }

    /// Moves a route. Returns what has to be judged again.
    pub(super) fn move_route(
        &mut self,
        from: &SharedListenerRoutes,
        to: &SharedListenerRoutes,
    ) -> BTreeSet<Interest> {
        let mut affected = BTreeSet::new();
        for entry in from.0.symmetric_difference(&to.0) {
            let (listener, matches, on) = entry;
            if to.0.contains(entry) {
                let routes = self.routes.entry(listener.clone()).or_default();
                routes
                    .entry(matches.clone())
                    .or_default()
                    .insert(on.clone());
            } else if let Some(routes) = self.routes.get_mut(listener) {
                super::set_user(routes, matches, on, false);
                if routes.is_empty() {
                    self.routes.remove(listener);
                }
            }
            if let ParentKey::Gateway(gateway) = &listener.parent {
                affected.extend(self.interested(gateway, matches));
            }
        }
        affected
    }

    /// The socket that a CA reaches on a Gateway, if there is one. All listeners of a Gateway on one port share a
    /// socket, so that of any listener will do.
    pub(super) fn bind(&self, gateway: &ObjectName, kind: ChallengeType) -> Option<Bind> {
        let listeners = self.listeners.get(&(gateway.clone(), kind))?;
        listeners
            .values()
            .flat_map(SmallMap::values)
            .next()
            .copied()
    }

    /// Whether the challenges for `hostname` may be answered on `gateway` for `tenant`.
    fn reach(&self, gateway: &ObjectName, hostname: &Hostname, tenant: &Arc<str>) -> Reaches {
        let [tls, http] = ChallengeType::ALL.map(|kind| {
            let answerer = self.answerer(gateway, kind, hostname, tenant);
            answerer.unwrap_or(Answerer::Tenant)
        });
        let tls = match tls {
            Answerer::Nothing => Reach::NoListener,
            Answerer::Tenant => Reach::Ours,
            Answerer::Redirect | Answerer::Others => Reach::Others,
        };
        let http = match http {
            _ if tls == Reach::Others => Reach::Others,
            Answerer::Nothing => Reach::NoListener,
            Answerer::Tenant => Reach::Ours,
            Answerer::Redirect if tls == Reach::Ours => Reach::Ours,
            Answerer::Redirect | Answerer::Others => Reach::Others,
        };
        [tls, http]
    }

    /// Who answers a CA that connects for `hostname`, as `tenant` sees it; `None` if no listener matches.
    fn answerer(
        &self,
        gateway: &ObjectName,
        kind: ChallengeType,
        hostname: &Hostname,
        tenant: &Arc<str>,
    ) -> Option<Answerer> {
        let Some(listeners) = self.listeners.get(&(gateway.clone(), kind)) else {
            return Some(Answerer::Nothing);
        };
        let selected = candidates(hostname).find_map(|pattern| listeners.get(&pattern))?;
        let others = selected
            .keys()
            .filter(|listener| listener.parent.name().namespace != *tenant);
        let mut answerer = Answerer::Tenant;
        for listener in others {
            match self.answerer_behind(listener, kind, hostname, tenant) {
                Answerer::Others => return Some(Answerer::Others),
                Answerer::Redirect => answerer = Answerer::Redirect,
                Answerer::Nothing | Answerer::Tenant => {}
            }
        }
        Some(answerer)
    }

    /// Who answers behind a listener of a namespace other than the tenant's.
    fn answerer_behind(
        &self,
        listener: &ListenerKey,
        kind: ChallengeType,
        hostname: &Hostname,
        tenant: &Arc<str>,
    ) -> Answerer {
        let ParentKey::Gateway(gateway) = &listener.parent else {
            return Answerer::Others;
        };
        let routes = self.routes.get(listener);
        let matching: Vec<&OnShared> = candidates(hostname)
            .filter_map(|pattern| routes?.get(&pattern))
            .flatten()
            .collect();
        let name = |on: &OnShared| on.route.name.to_string();
        let first = matching.iter().min_by(|a, b| {
            route_precedence(
                (&a.rank, a.created, &name(a)),
                (&b.rank, b.created, &name(b)),
            )
        });
        let Some(first) = first else {
            return Answerer::Tenant;
        };
        // One TLSRoute gets all connections of a name. HTTPRoutes whose hostnames are equally specific share its
        // requests.
        let is_tls = first.route.kind == vestibule_model::key::Kind::TlsRoute;
        let rank = first.rank.specificity();
        let mut selected = matching
            .iter()
            .filter(|on| {
                if is_tls {
                    on == &first
                } else {
                    on.rank.specificity() == rank
                }
            })
            .filter(|on| on.route.name.namespace != *tenant)
            .peekable();
        if selected.peek().is_none() {
            return Answerer::Tenant;
        }
        let redirect =
            |on: &&&OnShared| on.redirects && on.route.name.namespace == gateway.namespace;
        if kind == ChallengeType::Http01 && selected.all(|on| redirect(&on)) {
            Answerer::Redirect
        } else {
            Answerer::Others
        }
    }

    /// The Gateways on which somebody depends on a name.
    fn gateways(&self) -> impl Iterator<Item = &ObjectName> {
        self.names.keys()
    }

    /// What depends on the names that a pattern matches.
    pub(super) fn interested(
        &self,
        gateway: &ObjectName,
        pattern: &HostPattern,
    ) -> BTreeSet<Interest> {
        let matching = self.matching(gateway, pattern);
        matching.flat_map(|(_, who)| who).cloned().collect()
    }

    /// The names in the index that a pattern matches, with their labels reversed.
    fn matching<'a>(
        &'a self,
        gateway: &ObjectName,
        pattern: &HostPattern,
    ) -> impl Iterator<Item = (&'a String, &'a SmallSet<Interest>)> + use<'a> {
        let (first, is_exact) = match pattern {
            HostPattern::Any => (String::new(), false),
            HostPattern::Exact(hostname) => (reversed(hostname), true),
            HostPattern::Wildcard(suffix) => (format!("{}.", reversed(suffix)), false),
        };
        let names = self.names.get(gateway).into_iter();
        let from = names.flat_map({
            let first = first.clone();
            move |names| names.range(first.clone()..)
        });
        from.take_while(move |(name, _)| {
            if is_exact {
                **name == first
            } else {
                name.starts_with(&first)
            }
        })
    }
}

impl Translator {
    /// What has to be judged again after listeners moved. The selected listener matters only if no tenant holds the
    /// name, or if the Gateway's own namespace asks ([`Self::reaches`]). So a new listener for a wide hostname does
    /// not affect the tenants who hold names inside it.
    pub(super) fn concerned(
        &self,
        moved: Vec<(ObjectName, HostPattern, bool)>,
    ) -> BTreeSet<Interest> {
        let mut concerned = BTreeSet::new();
        for (gateway, names, challenge_port) in moved {
            if challenge_port || matches!(names, HostPattern::Exact(_)) {
                concerned.extend(self.challenge_index.interested(&gateway, &names));
                continue;
            }
            for (name, who) in self.challenge_index.matching(&gateway, &names) {
                let hostname = forward(name);
                let tenant = hostname.and_then(|hostname| self.tenant_of(&gateway, &hostname));
                let who = who.iter().filter(|one| match one {
                    Interest::Listener(listener) => {
                        tenant.is_none() || listener.parent.name().namespace == gateway.namespace
                    }
                    Interest::Challenge(_) => true,
                });
                concerned.extend(who.cloned());
            }
        }
        concerned
    }

    /// What has to be judged again, on all Gateways, after `names` of one of them got another owner, or the time of
    /// their claim changed.
    pub(super) fn whose_anywhere(
        &self,
        gateway: &ObjectName,
        names: &HostPattern,
    ) -> BTreeSet<Interest> {
        // Who has "every name that nobody else holds" matters on that Gateway only.
        let matters = |asking: &&ObjectName| *names != HostPattern::Any || *asking == gateway;
        let all = self.challenge_index.gateways();
        all.filter(matters)
            .flat_map(|asking| self.whose(asking, gateway, names))
            .collect()
    }

    /// What has to be judged again on Gateway `asking` after the owner of `names` on `gateway` changed. A name whose
    /// owner is found by a narrower pattern inside `names` is left out, because its owner is the same as before.
    fn whose(
        &self,
        asking: &ObjectName,
        gateway: &ObjectName,
        names: &HostPattern,
    ) -> BTreeSet<Interest> {
        let matching = self.challenge_index.matching(asking, names);
        let concerned = matching.filter(|(name, _)| {
            let Some(hostname) = forward(name) else {
                return true;
            };
            let one = HostPattern::Exact(hostname);
            let nearest = self.merge.nearest_owner(gateway, &one);
            nearest.is_none_or(|(pattern, _)| pattern == names || !names.covers(pattern))
        });
        concerned.flat_map(|(_, who)| who).cloned().collect()
    }

    /// The tenant that a hostname belongs to on a Gateway, if any.
    pub(super) fn tenant_of(&self, gateway: &ObjectName, hostname: &Hostname) -> Option<Arc<str>> {
        let of = self.merge.names(gateway)?;
        let names = HostPattern::Exact(hostname.clone());
        let next = of.next(&names).filter(|_| self.merge.assumes()).cloned();
        let owner = next.or_else(|| of.owner(hostname));
        owner.filter(|owner| *owner != gateway.namespace)
    }

    /// Whether the challenges for `hostname` may be answered on `gateway` for `tenant`. If the name belongs to one
    /// tenant, no other tenant can get a certificate for it, on whatever port and whatever Gateway that one listens.
    pub(super) fn reaches(
        &self,
        gateway: &ObjectName,
        hostname: &Hostname,
        tenant: &Arc<str>,
    ) -> Reaches {
        // The Gateway's own namespace may get certificates for names that its own listeners have, even if a tenant
        // holds a name and serves the requests. The index decides this.
        let own = *tenant == gateway.namespace;
        match self.tenant_of(gateway, hostname) {
            _ if self.is_held_elsewhere(gateway, hostname, tenant) => [Reach::Others; 2],
            // The proxies serve the name for its owner only, whatever listeners match it, so only a socket is
            // needed.
            Some(owner) if owner == *tenant => ChallengeType::ALL.map(|kind| {
                let challenge_port = self.challenge_index.bind(gateway, kind);
                challenge_port.map_or(Reach::NoListener, |_| Reach::Ours)
            }),
            Some(_) if !own => [Reach::Others; 2],
            _ => self.challenge_index.reach(gateway, hostname, tenant),
        }
    }
}

/// The patterns that match a name, from the most specific on.
fn candidates(hostname: &Hostname) -> impl Iterator<Item = HostPattern> + '_ {
    let wildcards = hostname
        .parents()
        .filter_map(|suffix| Hostname::parse(suffix).ok())
        .map(HostPattern::Wildcard);
    std::iter::once(HostPattern::Exact(hostname.clone()))
        .chain(wildcards)
        .chain([HostPattern::Any])
}

/// The name with these labels in reverse order.
fn forward(reversed: &str) -> Option<Hostname> {
    let labels: Vec<&str> = reversed.rsplit('.').collect();
    Hostname::parse(&labels.join(".")).ok()
}

fn reversed(hostname: &Hostname) -> String {
    let mut labels: Vec<&str> = hostname.as_str().split('.').collect();
    labels.reverse();
    labels.join(".")
}
