//! Who stands where CAs connect: whether the challenge for a name may be answered for a tenant. A name that belongs
//! to a tenant is certified for that one alone. For names of the Gateway's and of nobody it counts who is selected
//! where the CA connects.
//!
//! An index of the listeners on ports 443 and 80 of each Gateway, of the routes on those that are the
//! Gateway's own, and of the names that somebody wants a certificate for. A question costs as much as the
//! name has labels; a change marks the names that it matches.
//!
//! One reading of the rule in `model::challenge` is ours: a route of the Gateway's own namespace that does
//! nothing but redirect, on the Gateway's own listener on port 80, is in nobody's way where the name is the
//! tenant's on 443 (or nobody's). "Everything to HTTPS" is what most Gateways have there, and it says nothing
//! about whose a name is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vestibule_model::challenge::{ChallengeKey, ChallengeType, Reach, Reaches};
use vestibule_model::gateway::Listener;
use vestibule_model::hostname::{HostPattern, Hostname, route_precedence};
use vestibule_model::http::HttpFilter;
use vestibule_model::key::{ListenerKey, ObjectKey, ObjectName, ParentKey};
use vestibule_model::protocol::Protocol;
use vestibule_model::route::Route;

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
    /// Of a listener that is served at `bind`; `None` where no CA connects, or not in its protocol.
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

/// Who wants to know of a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Interest {
    /// A listener that a certificate is wanted for.
    Listener(ListenerKey),
    /// A challenge that is to be answered.
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
    /// Of this route.
    pub(super) fn of(route: Option<Route<'_>>, state: Option<&RouteState>) -> Self {
        let (Some(route), Some(state)) = (route, state) else {
            return Self::default();
        };
        let redirects = match route {
            Route::Tls(_) | Route::Port(_) => false,
            Route::Http(route) => route.rules.iter().all(|rule| {
                let redirect = |filter: &HttpFilter| matches!(filter, HttpFilter::Redirect(_));
                rule.filters.iter().any(redirect)
            }),
        };
        let attached = state.parents.values().flatten().flatten();
        let own = attached.filter(|at| matches!(at.listener.parent, ParentKey::Gateway(_)));
        Self(
            own.flat_map(|at| {
                // A part of a name is in no CA's way.
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

/// The listeners and routes where CAs connect, and the names that matter.
#[derive(Debug, Default)]
pub(super) struct ChallengeIndex {
    listeners: BTreeMap<ChallengePort, BTreeMap<HostPattern, BTreeMap<ListenerKey, Bind>>>,
    routes: BTreeMap<ListenerKey, BTreeMap<HostPattern, BTreeSet<OnShared>>>,
    /// By Gateway, then by name with its labels reversed.
    names: BTreeMap<ObjectName, BTreeMap<String, BTreeSet<Interest>>>,
}

/// Who answers a CA that connects for a name, as one tenant sees it.
enum Answerer {
    Nothing,
    Tenant,
    /// A redirect of the Gateway's namespace, and nothing else.
    Redirect,
    Others,
}

impl ChallengeIndex {
    /// Notes who wants to know of a name, or no longer.
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

    /// Moves a listener, and returns for which names somebody else may be reached by that, and whether the
    /// socket moved.
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

    /// Moves a route, and returns who has to look again.
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

    /// The socket that a CA reaches, if there is one.
    pub(super) fn bind(&self, gateway: &ObjectName, kind: ChallengeType) -> Option<Bind> {
        let listeners = self.listeners.get(&(gateway.clone(), kind))?;
        listeners
            .values()
            .flat_map(BTreeMap::values)
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

    /// `None`: nobody is selected for the name.
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

    /// Whom a listener of another namespace than the tenant's leads to.
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
        // Behind TLS one route has the name; rules of HTTPRoutes of one rank share it.
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

    /// Who wants to know of the names that a pattern matches.
    pub(super) fn interested(
        &self,
        gateway: &ObjectName,
        pattern: &HostPattern,
    ) -> BTreeSet<Interest> {
        let matching = self.matching(gateway, pattern);
        matching.flat_map(|(_, who)| who).cloned().collect()
    }

    /// The names that somebody wants to know of and that a pattern matches, reversed.
    fn matching<'a>(
        &'a self,
        gateway: &ObjectName,
        pattern: &HostPattern,
    ) -> impl Iterator<Item = (&'a String, &'a BTreeSet<Interest>)> + use<'a> {
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
    /// Who has to look again after listeners moved: it matters who is reached where the name is no tenant's, or
    /// its own Gateway asks. So somebody's listener for a wide hostname has nobody judged again who holds a name inside.
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

    /// Who has to look again after names went to somebody else: nobody whose name belongs to somebody by a pattern
    /// inside these.
    pub(super) fn whose(&self, gateway: &ObjectName, names: &HostPattern) -> BTreeSet<Interest> {
        let matching = self.challenge_index.matching(gateway, names);
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

    /// Whom a hostname belongs to on a Gateway, if that is a tenant.
    pub(super) fn tenant_of(&self, gateway: &ObjectName, hostname: &Hostname) -> Option<Arc<str>> {
        let of = self.merge.names(gateway)?;
        let names = HostPattern::Exact(hostname.clone());
        let next = of.next(&names).filter(|_| self.merge.assumes()).cloned();
        let owner = next.or_else(|| of.owner(hostname));
        owner.filter(|owner| *owner != gateway.namespace)
    }

    /// Whether the challenges for `hostname` may be answered on `gateway` for `tenant`. A name that belongs to one
    /// tenant is never certified for another, on whatever port that one listens.
    pub(super) fn reaches(
        &self,
        gateway: &ObjectName,
        hostname: &Hostname,
        tenant: &Arc<str>,
    ) -> Reaches {
        // What the Gateway itself listens for is for it to certify, also where it leaves the requests to a tenant.
        let own = *tenant == gateway.namespace;
        match self.tenant_of(gateway, hostname) {
            // The proxies serve it for nobody else, whatever listeners match it.
            Some(owner) if owner == *tenant => ChallengeType::ALL.map(|kind| {
                let challenge_port = self.challenge_index.bind(gateway, kind);
                challenge_port.map_or(Reach::NoListener, |_| Reach::Ours)
            }),
            Some(_) if !own => [Reach::Others; 2],
            _ => self.challenge_index.reach(gateway, hostname, tenant),
        }
    }
}

/// The patterns that match a name, most specific first.
fn candidates(hostname: &Hostname) -> impl Iterator<Item = HostPattern> + '_ {
    let wildcards = hostname
        .parents()
        .filter_map(|suffix| Hostname::parse(suffix).ok())
        .map(HostPattern::Wildcard);
    std::iter::once(HostPattern::Exact(hostname.clone()))
        .chain(wildcards)
        .chain([HostPattern::Any])
}

/// The name whose labels these are, reversed.
fn forward(reversed: &str) -> Option<Hostname> {
    let labels: Vec<&str> = reversed.rsplit('.').collect();
    Hostname::parse(&labels.join(".")).ok()
}

fn reversed(hostname: &Hostname) -> String {
    let mut labels: Vec<&str> = hostname.as_str().split('.').collect();
    labels.reverse();
    labels.join(".")
}
