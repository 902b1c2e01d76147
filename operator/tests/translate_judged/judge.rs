//! What a client gets and what statuses say, read from the objects as the specification tells it: one
//! pass over sorted lists, with nothing of the code under test in it but the objects' types.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vestibule_model::gateway::{Gateway, Listener, ListenerSet, TlsMode};
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::{Kind, ObjectKey, ObjectName, ParentKey};
use vestibule_model::object::Object;
use vestibule_model::protocol::{Protocol, Transport};
use vestibule_model::reference::{BackendRef, ParentRef};
use vestibule_model::route::Route;
use vestibule_model::selector::{NamespaceScope, Requirement};

use vestibule_operator_testing::grants::Reading;

pub(crate) type Objects = BTreeMap<ObjectKey, Object>;

/// A listener in the merged list of a Gateway and its ListenerSets.
#[derive(Debug)]
pub(crate) struct Judged<'a> {
    pub(crate) parent: ParentKey,
    pub(crate) listener: &'a Listener,
    /// Whether its namespace was granted its hostname or needs no grant, and it is within the limit.
    pub(crate) owned: bool,
    /// Whether its hostname is another namespace's on the whole Gateway or the Gateway's own, or another listener has
    /// its place.
    pub(crate) conflicted: bool,
    /// Whether another one on its port matches some of the same TLS names.
    pub(crate) overlaps: bool,
    certificate: Certificate,
}

/// The state of a listener's reference to its certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Certificate {
    /// It may not be used, whether or not it is there.
    NotPermitted,
    Missing,
    /// It is there, or none is needed.
    Usable,
}

impl Judged<'_> {
    /// Owned, and not in conflict.
    pub(crate) fn accepted(&self) -> bool {
        self.owned && !self.conflicted
    }

    /// Whether its certificate, if it needs one, may be used.
    pub(crate) fn permitted(&self) -> bool {
        self.certificate != Certificate::NotPermitted
    }

    /// Whether it is there, too.
    pub(crate) fn resolved(&self) -> bool {
        self.certificate == Certificate::Usable
    }

    fn is_own(&self) -> bool {
        matches!(self.parent, ParentKey::Gateway(_))
    }

    fn name(&self) -> String {
        format!("{}/{}", self.parent, self.listener.name)
    }
}

/// The result of a TLS connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// No listener has the name.
    Nobody,
    /// This listener has it; whether it can serve; the route that it has for the name.
    Listener(String, bool, Option<String>),
}

/// A world, judged.
pub(crate) struct Judge<'a> {
    objects: &'a Objects,
    gateway: &'a Gateway,
    pub(crate) listeners: Vec<Judged<'a>>,
    /// For each hostname, the first of those that ask for it and may have it.
    holders: BTreeMap<String, Asker>,
    /// The hostnames of which all that ask for them are kept out by wildcards of others.
    closed: BTreeSet<String>,
}

/// The rank of an object that asks for a hostname, and the namespace for which it asks. Guests come last. All others
/// have upstream's order: the older object, then the name, then a listener before a route before a route that a set
/// invited.
type Asker = (bool, i64, String, u8, Arc<str>);

impl<'a> Judge<'a> {
    pub(crate) fn new(objects: &'a Objects, gateway: &'a Gateway) -> Self {
        let mut judge = Self {
            objects,
            gateway,
            listeners: Vec::new(),
            holders: BTreeMap::new(),
            closed: BTreeSet::new(),
        };
        let mut sets: Vec<&ListenerSet> = judge.sets().filter(|set| judge.lets_in(set)).collect();
        sets.sort_by_key(|set| (set.meta.created, set.name.to_string()));
        let own = ParentKey::Gateway(gateway.name.clone());
        let mut listed: Vec<(ParentKey, &Listener)> = Vec::new();
        listed.extend(gateway.listeners.iter().map(|l| (own.clone(), l)));
        for set in sets {
            let parent = ParentKey::ListenerSet(set.name.clone());
            listed.extend(set.listeners.iter().map(|l| (parent.clone(), l)));
        }
        let mut counts: BTreeMap<Arc<str>, usize> = BTreeMap::new();
        for (parent, listener) in listed {
            let certificate = judge.certificate(&parent, listener);
            let namespace = parent.name().namespace.clone();
            // No grant of the world names TCP.
            let answers_every_name = listener.protocol == Protocol::Tcp
                && matches!(listener.port.map(u16::from), Some(80 | 443));
            let mut owned = judge.owns(&namespace, listener, &listener.hostname)
                && (namespace == gateway.name.namespace || !answers_every_name);
            if owned && matches!(parent, ParentKey::ListenerSet(_)) {
                // A listener whose name its namespace does not own does not count.
                let count = counts.entry(namespace.clone()).or_default();
                *count += 1;
                let (most, _) = Reading(objects).limits(&gateway.name, &namespace);
                owned = *count <= most && !judge.is_too_wide(&namespace, &host(listener));
            }
            judge.listeners.push(Judged {
                parent,
                listener,
                owned,
                conflicted: false,
                overlaps: false,
                certificate,
            });
        }
        (judge.holders, judge.closed) = judge.find_holders();
        let lost = |here: &Judged<'_>| {
            let (namespace, names) = (&here.parent.name().namespace, host(here.listener));
            let asks = !here.is_own() && here.owned && !is_raw(here.listener);
            asks && !judge.gets(namespace, &names, false)
        };
        let lost: Vec<bool> = judge.listeners.iter().map(lost).collect();
        for at in 0..judge.listeners.len() {
            // Among the Gateway's own nobody wins; of the others, whoever is in force before.
            let here = &judge.listeners[at];
            let conflicted = judge.listeners.iter().enumerate().any(|(n, rival)| {
                let counts = if here.is_own() {
                    n != at && rival.is_own()
                } else {
                    n < at && (rival.is_own() || !rival.conflicted)
                };
                // A listener whose name its namespace does not own claims nothing.
                let both = here.owned && rival.owned && !lost[at] && !lost[n];
                both && counts && clash(here.listener, rival.listener)
            });
            judge.listeners[at].conflicted = conflicted || lost[at];
        }
        for at in 0..judge.listeners.len() {
            let here = judge.listeners[at].listener;
            judge.listeners[at].overlaps = judge.listeners.iter().enumerate().any(|(n, rival)| {
                let theirs = rival.listener;
                n != at
                    && rival.owned
                    && !rival.conflicted
                    && here.port == theirs.port
                    && over_tls(here)
                    && over_tls(theirs)
                    && host(here) != host(theirs)
                    && overlap(&host(here), &host(theirs))
            });
        }
        judge
    }

    /// Everything that asks for a hostname: listeners of sets; routes on the Gateway's own listeners, for themselves;
    /// routes on listeners of sets that have no hostname, for the set's namespace.
    /// Who has each hostname, and the hostnames that nobody gets although somebody asks for them. Wildcards come first,
    /// because they close what is inside.
    fn find_holders(&self) -> (BTreeMap<String, Asker>, BTreeSet<String>) {
        let asks = self.asks();
        let mut patterns: Vec<&String> = asks.keys().collect();
        patterns.sort_by_key(|names| specificity(names));
        let (mut holders, mut closed) = (BTreeMap::new(), BTreeSet::new());
        for names in patterns {
            let askers = asks[names].iter();
            let free = askers.filter(|asker| !self.is_inside(&holders, asker, names));
            if let Some(first) = free.min().cloned() {
                holders.insert(names.clone(), first);
            } else {
                closed.insert(names.clone());
            }
        }
        (holders, closed)
    }

    /// Whether a hostname is inside a wildcard of another tenant, of those whose holders are known. A wildcard counts if
    /// its holder asked before this one, as do all of the Gateway's own namespace. Only the nearest pattern counts.
    fn is_inside(&self, holders: &BTreeMap<String, Asker>, asker: &Asker, names: &str) -> bool {
        let own = &self.gateway.name.namespace;
        let (is_guest, namespace) = (asker.0, &asker.4);
        let listeners = self.listeners.iter();
        let listeners = listeners.filter(|l| l.is_own() && !is_raw(l.listener));
        let routes = self.asking_routes().into_iter();
        let routes = routes.filter(|(route, at, _)| at.is_own() && route.name().namespace == *own);
        let gateways = listeners
            .map(|l| host(l.listener))
            .chain(routes.map(|(.., names)| names));
        let mut owners: BTreeMap<String, &Arc<str>> = gateways.map(|names| (names, own)).collect();
        let before = |first: &Asker| first.4 == *own || first < asker;
        let held = holders.iter().filter(|(_, first)| before(first));
        owners.extend(held.map(|(names, first)| (names.clone(), &first.4)));
        let around = owners
            .into_iter()
            .filter(|(pattern, _)| pattern != names && matches(pattern, names));
        let Some((wildcard, owner)) = around.max_by_key(|(pattern, _)| specificity(pattern)) else {
            return false;
        };
        let closes = wildcard.starts_with('*') && owner != own && owner != namespace;
        if namespace == own {
            return closes && is_guest;
        }
        let parse = |names: &str| HostPattern::parse(names).expect("a pattern");
        let (inner, outer) = (parse(names), parse(&wildcard));
        let grants = Reading(self.objects);
        closes && !grants.gives_inside(&self.gateway.name, namespace, &inner, &outer)
    }

    /// For each hostname, all that ask for it and may have it, whoever else asks.
    fn asks(&self) -> BTreeMap<String, Vec<Asker>> {
        let mut asks: BTreeMap<String, Vec<Asker>> = BTreeMap::new();
        let mut ask = |names: String, by_route: bool, asker: Asker| {
            if self.may_have(&asker.4, &names, by_route) {
                asks.entry(names).or_default().push(asker);
            }
        };
        for at in self.listeners.iter().filter(|at| at.owned) {
            let ParentKey::ListenerSet(name) = &at.parent else {
                continue;
            };
            let set = self.sets().find(|set| set.name == *name).expect("a set");
            if !is_raw(at.listener) {
                let namespace = name.namespace.clone();
                let asker = (false, set.meta.created, name.to_string(), 0, namespace);
                ask(host(at.listener), false, asker);
            }
        }
        for (route, at, names) in self.asking_routes() {
            let own = &self.gateway.name.namespace;
            let namespace = &route.name().namespace;
            if at.is_own() && namespace == own {
                continue;
            }
            let whose = if at.is_own() {
                namespace
            } else {
                &at.parent.name().namespace
            };
            if !self.guest_may_have(namespace, whose, &names) {
                continue;
            }
            let asker = (
                namespace != whose,
                route.meta().created,
                route.name().to_string(),
                if at.is_own() { 1 } else { 2 },
                whose.clone(),
            );
            ask(names, at.is_own(), asker);
        }
        asks
    }

    /// Routes with the names that they ask for themselves, and where.
    fn asking_routes(&self) -> Vec<(Route<'a>, &Judged<'a>, String)> {
        let mut asking = Vec::new();
        for route in self.routes().filter(|route| !route.kind().routes_ports()) {
            for parent in self.attached(route) {
                let own = |at: &&Judged<'_>| at.is_own() || host(at.listener).is_empty();
                for at in self.listeners.iter().filter(own) {
                    for written in parent.offers(at) {
                        asking.push((route, at, common(at.listener, written)));
                    }
                }
            }
        }
        asking
    }

    /// Whether a route of `namespace` may have a hostname on a set of `whose`, as far as that set is the Gateway's own
    /// namespace's: single hostnames, and none of those that the Gateway itself has.
    fn guest_may_have(&self, namespace: &Arc<str>, whose: &Arc<str>, names: &str) -> bool {
        let own = &self.gateway.name.namespace;
        if namespace == whose || whose != own {
            return true;
        }
        let by_listener = self.listeners.iter();
        let mut by_listener = by_listener
            .filter(|l| l.is_own() && !is_raw(l.listener))
            .map(|l| host(l.listener));
        let by_route = self.asking_routes().into_iter();
        let mut by_route = by_route
            .filter(|(route, at, _)| at.is_own() && route.name().namespace == *own)
            .map(|(.., asked)| asked);
        !names.is_empty()
            && !names.starts_with('*')
            && !by_listener.any(|own| own == names)
            && !by_route.any(|own| own == names)
    }

    /// Whether a namespace may have a hostname at all, whoever else asks for it.
    fn may_have(&self, namespace: &Arc<str>, names: &str, by_route: bool) -> bool {
        if *namespace == self.gateway.name.namespace {
            return true;
        }
        let pattern = HostPattern::parse(names).expect("a pattern");
        let granted = Reading(self.objects).owns(&self.gateway.name, namespace, None, &pattern);
        if !granted || self.is_too_wide(namespace, names) {
            return false;
        }
        if names.is_empty() || names.starts_with('*') {
            return true;
        }
        // An exact name of the Gateway's own is reserved, except for routes that a listener of that name admits.
        let same = |l: &&Judged<'_>| l.is_own() && !is_raw(l.listener) && host(l.listener) == names;
        let mut listeners = self.listeners.iter().filter(same).peekable();
        let own_route = self.asking_routes().into_iter().any(|(route, at, asked)| {
            let own = &self.gateway.name.namespace;
            at.is_own() && route.name().namespace == *own && asked == names
        });
        let reserved = listeners.peek().is_some() || own_route;
        let own = &self.gateway.name.namespace;
        let admitted =
            listeners.any(|l| self.admits(&l.listener.allowed_namespaces, own, namespace));
        !reserved || by_route && admitted && !own_route
    }

    /// A tenant's wildcard directly below a top-level domain, where nothing is granted.
    fn is_too_wide(&self, namespace: &Arc<str>, names: &str) -> bool {
        let guarded = self.objects.values().any(|object| match object {
            Object::HostnameGrant(grant) => {
                grant.name.namespace == self.gateway.name.namespace
                    && grant.is_for(&self.gateway.name.name)
            }
            _ => false,
        });
        let suffix = names.strip_prefix("*.");
        *namespace != self.gateway.name.namespace
            && !guarded
            && suffix.is_some_and(|suffix| !suffix.contains('.') && suffix != "example")
    }

    /// Whether a namespace has a hostname that it asks for.
    fn gets(&self, namespace: &Arc<str>, names: &str, by_route: bool) -> bool {
        self.may_have(namespace, names, by_route)
            && !self.closed.contains(names)
            && self
                .holders
                .get(names)
                .is_none_or(|(.., holder)| holder == namespace)
    }

    /// Whether a hostname of a route is not its to have on a listener. The Gateway's own namespace loses none on its
    /// own listeners.
    fn is_lost(&self, route: Route<'_>, at: &Judged<'_>, written: &HostPattern) -> bool {
        if is_raw(at.listener) {
            return at.is_own() && !self.has_own_port(route, at);
        }
        let names = common(at.listener, written);
        let namespace = &route.name().namespace;
        if at.is_own() {
            *namespace != self.gateway.name.namespace && !self.gets(namespace, &names, true)
        } else if host(at.listener).is_empty() {
            let whose = &at.parent.name().namespace;
            !self.guest_may_have(namespace, whose, &names) || !self.gets(whose, &names, false)
        } else {
            // It has what the listener has. What others own inside the listener's wildcard is not among that.
            let inside = |pattern: &str| {
                let around = host(at.listener);
                pattern != around && matches(&around, pattern)
            };
            let nearest = self.nearest_owner(&names);
            nearest.is_some_and(|(pattern, owner)| {
                inside(&pattern) && owner != at.parent.name().namespace
            })
        }
    }

    /// Whether a namespace was granted these names where a listener is.
    fn owns(&self, namespace: &str, at: &Listener, names: &HostPattern) -> bool {
        Reading(self.objects).owns(&self.gateway.name, namespace, at.port, names)
    }

    /// Whether a route has a hostname on a listener, which is its namespace's to have.
    fn has(&self, route: Route<'_>, at: &Listener, written: &HostPattern) -> bool {
        let names = HostPattern::parse(&common(at, written)).expect("a pattern");
        overlap(&written.to_string(), &host(at)) && self.owns(&route.name().namespace, at, &names)
    }

    fn sets(&self) -> impl Iterator<Item = &'a ListenerSet> {
        let name = &self.gateway.name;
        self.objects
            .values()
            .filter_map(move |object| match object {
                Object::ListenerSet(set) if set.gateway.as_ref() == Some(name) => {
                    Some(set.as_ref())
                }
                _ => None,
            })
    }

    pub(crate) fn lets_in(&self, set: &ListenerSet) -> bool {
        let (own, theirs) = (&self.gateway.name.namespace, &set.name.namespace);
        self.admits(&self.gateway.allowed_listeners, own, theirs)
    }

    fn admits(&self, scope: &NamespaceScope, own: &str, theirs: &str) -> bool {
        match scope {
            NamespaceScope::All => true,
            NamespaceScope::Same => own == theirs,
            NamespaceScope::Selector(selector) => selector.requirements.iter().all(|r| match r {
                Requirement::In(key, values) => {
                    let space = ObjectKey::new(Kind::Namespace, "", theirs);
                    let Some(Object::Namespace(space)) = self.objects.get(&space) else {
                        return false;
                    };
                    space.labels.get(key).is_some_and(|v| values.contains(v))
                }
                other => panic!("the world has no {other:?}"),
            }),
            NamespaceScope::None | NamespaceScope::Unknown(_) => false,
        }
    }

    /// Whether an object may refer to `target` in another namespace.
    fn granted(&self, from: (Kind, &str), to: Kind, target: &ObjectName) -> bool {
        *target.namespace == *from.1
            || self.objects.values().any(|object| match object {
                Object::ReferenceGrant(grant) => {
                    grant.name.namespace == target.namespace
                        && grant.from.iter().any(|(_, kind, space)| {
                            (&**kind, &**space) == (from.0.as_str(), from.1)
                        })
                        && grant.to.iter().any(|(_, kind, name)| {
                            &**kind == to.as_str()
                                && name.as_ref().is_none_or(|name| *name == target.name)
                        })
                }
                _ => false,
            })
    }

    fn certificate(&self, parent: &ParentKey, listener: &Listener) -> Certificate {
        let Some(tls) = &listener.tls else {
            return Certificate::Usable;
        };
        if tls.mode == TlsMode::Passthrough {
            return Certificate::Usable;
        }
        let target = &tls.certificates[0].target;
        let from = (parent.kind(), &*parent.name().namespace);
        // The grant is asked first: who may not look does not learn what is there.
        if !self.granted(from, Kind::Secret, target) {
            return Certificate::NotPermitted;
        }
        let key = ObjectKey::secret(target.clone());
        if self.objects.contains_key(&key) {
            Certificate::Usable
        } else {
            Certificate::Missing
        }
    }

    /// What a client gets that asks for `name` on `port`.
    pub(crate) fn answer(&self, port: u16, name: Option<&str>) -> Answer {
        let on_port = self
            .listeners
            .iter()
            .filter(|l| l.accepted() && over_tls(l.listener))
            .filter(|l| l.listener.port.is_some_and(|p| p.get() == port));
        let owner = self.owner(name);
        let may_serve = |l: &&Judged<'_>| {
            l.is_own()
                || owner
                    .as_ref()
                    .is_none_or(|owner| *owner == l.parent.name().namespace)
        };
        let on_port = on_port.filter(may_serve);
        let Some(name) = name else {
            let any = on_port.into_iter().find(|l| host(l.listener).is_empty());
            return any.map_or(Answer::Nobody, |l| {
                Answer::Listener(l.name(), l.resolved(), None)
            });
        };
        let most_specific = on_port
            .filter(|l| matches(&host(l.listener), name))
            .max_by_key(|l| specificity(&host(l.listener)));
        most_specific.map_or(Answer::Nobody, |judged| {
            let route = self.route_for(judged, name).map(|r| r.name().to_string());
            Answer::Listener(judged.name(), judged.resolved(), route)
        })
    }

    /// The answer to a client on a `port` where the port alone selects: that of the oldest route, then of the first by
    /// name.
    pub(crate) fn port_answer(&self, by: Transport, port: u16) -> Answer {
        let mut on_port = self.listeners.iter().filter(|at| {
            let written = at.listener.port.is_some_and(|p| p.get() == port);
            at.accepted() && at.listener.protocol.as_str() == by.as_str() && written
        });
        let Some(at) = on_port.next() else {
            return Answer::Nobody;
        };
        assert!(on_port.next().is_none(), "two on port {port}");
        let attached = |route: &Route<'_>| self.attached(*route).any(|parent| parent.takes(at));
        let first = self.routes().filter(attached);
        let first = first.min_by_key(|route| (route.meta().created, route.name().to_string()));
        let route = first.map(|route| route.name().to_string());
        Answer::Listener(at.name(), true, route)
    }

    /// Whether what comes to the Gateway's own listener for bytes or datagrams is a route's namespace's: the Gateway's own,
    /// or, if it has no route there, that of the oldest one. Listeners of one port that contradict each other belong to no
    /// namespace, so whatever is attached to them stays attached.
    fn has_own_port(&self, route: Route<'_>, at: &Judged<'_>) -> bool {
        let own = &self.gateway.name.namespace;
        let namespace = &route.name().namespace;
        let here = |l: &&Judged<'_>| {
            l.is_own()
                && l.listener.port == at.listener.port
                && l.listener.protocol.transport() == at.listener.protocol.transport()
        };
        if namespace == own
            || self
                .listeners
                .iter()
                .filter(here)
                .any(|l| !is_raw(l.listener))
        {
            return true;
        }
        let on_port = |route: &Route<'_>| {
            let mut parents = self.attached(*route);
            parents.any(|parent| {
                let mut here = self.listeners.iter().filter(here);
                here.any(|at| !parent.offers(at).is_empty())
            })
        };
        let asking: Vec<Route<'_>> = self.routes().filter(on_port).collect();
        let first = asking
            .iter()
            .min_by_key(|of| (of.meta().created, of.name().to_string()));
        asking.iter().all(|of| of.name().namespace != *own)
            && first.is_some_and(|first| first.name().namespace == *namespace)
    }

    /// The namespace that has the most specific pattern which matches: by asking for it, or because it is the
    /// Gateway's own. Without a name it is who has every name that nobody else has.
    fn owner(&self, name: Option<&str>) -> Option<Arc<str>> {
        let (_, owner) = self.nearest_owner(name.unwrap_or_default())?;
        Some(owner)
    }

    /// The most specific pattern that matches a hostname, or covers a pattern, and its owner.
    fn nearest_owner(&self, names: &str) -> Option<(String, Arc<str>)> {
        let own = &self.gateway.name.namespace;
        let listeners = self.listeners.iter();
        let listeners = listeners.filter(|l| l.is_own() && !is_raw(l.listener));
        let routes = self.asking_routes().into_iter();
        let routes = routes.filter(|(route, at, _)| at.is_own() && route.name().namespace == *own);
        let gateways = listeners
            .map(|l| host(l.listener))
            .chain(routes.map(|(.., names)| names));
        let mut owners: BTreeMap<String, &Arc<str>> = gateways.map(|names| (names, own)).collect();
        let holders = self.holders.iter();
        owners.extend(holders.map(|(names, (.., holder))| (names.clone(), holder)));
        let matching = owners
            .into_iter()
            .filter(|(pattern, _)| matches(pattern, names));
        let nearest = matching.max_by_key(|(pattern, _)| specificity(pattern));
        nearest.map(|(pattern, owner)| (pattern, owner.clone()))
    }

    /// The route that a listener has for a name: the most specific hostname as it was written, then
    /// the older one, then the name.
    fn route_for(&self, at: &Judged<'_>, name: &str) -> Option<Route<'a>> {
        let best = |route: Route<'_>| {
            let owned = route.hostnames().iter();
            let owned = owned
                .filter(|(_, h)| self.has(route, at.listener, h) && !self.is_lost(route, at, h));
            let names = owned.map(|(_, h)| h.to_string());
            let found = names.filter(|h| matches(h, name)).map(|h| specificity(&h));
            found.max()
        };
        let owner = self.owner(Some(name)).filter(|_| at.is_own());
        let own = &self.gateway.name.namespace;
        let may_serve = |namespace: &Arc<str>| {
            namespace == own || owner.as_ref().is_none_or(|owner| owner == namespace)
        };
        self.routes()
            .filter(|route| route.kind() == Kind::TlsRoute)
            .filter(|route| may_serve(&route.name().namespace))
            .filter(|route| self.attached(*route).any(|parent| parent.takes(at)))
            .filter(|route| best(*route).is_some())
            .min_by_key(|route| {
                let rank = Reverse(best(*route));
                (rank, route.meta().created, route.name().to_string())
            })
    }

    pub(crate) fn routes(&self) -> impl Iterator<Item = Route<'a>> {
        self.objects.values().filter_map(Object::as_route)
    }

    /// The parents of a route that are ours, each by itself: which listeners take the route there.
    pub(crate) fn attached<'b>(&'b self, route: Route<'b>) -> impl Iterator<Item = Parent<'b>> {
        route.parents().iter().filter_map(move |reference| {
            let parent = reference.parent(&route.name().namespace)?;
            let known = match &parent {
                ParentKey::Gateway(name) => *name == self.gateway.name,
                ParentKey::ListenerSet(name) => self.sets().any(|set| set.name == *name),
            };
            known.then_some(Parent {
                judge: self,
                reference,
                key: parent,
                route,
            })
        })
    }

    /// Where the connections of a route go: by index of the reference, its weight, and the last octets
    /// of the endpoints if it resolves.
    pub(crate) fn backends(&self, route: Route<'_>) -> Vec<(u32, Option<Vec<u8>>)> {
        let weighted = |backend: &BackendRef| (backend.weight, self.endpoints(route, backend));
        route.backends().map(weighted).collect()
    }

    fn endpoints(&self, route: Route<'_>, backend: &BackendRef) -> Option<Vec<u8>> {
        let target = &backend.reference.target;
        let from = (route.kind(), &*route.name().namespace);
        if !self.granted(from, Kind::Service, target) {
            return None;
        }
        let key = ObjectKey {
            kind: Kind::Service,
            name: target.clone(),
        };
        let Some(Object::Service(service)) = self.objects.get(&key) else {
            return None;
        };
        let port = service.ports.iter().find(|p| {
            Some(p.port) == backend.port && p.transport == Some(route.kind().transport())
        })?;
        let mut last = Vec::new();
        for object in self.objects.values() {
            let Object::EndpointSlice(slice) = object else {
                continue;
            };
            let same = slice.service.as_ref() == Some(&target.name)
                && slice.name.namespace == target.namespace
                && slice
                    .ports
                    .iter()
                    .any(|one| (&one.name, one.transport) == (&port.name, port.transport));
            for address in slice.addresses.iter().filter(|_| same) {
                let std::net::IpAddr::V4(address) = address else {
                    panic!("the world has no {address}");
                };
                last.push(address.octets()[3]);
            }
        }
        last.sort_unstable();
        last.dedup();
        Some(last)
    }
}

/// A parent of a route.
pub(crate) struct Parent<'a> {
    judge: &'a Judge<'a>,
    reference: &'a ParentRef,
    key: ParentKey,
    route: Route<'a>,
}

impl Parent<'_> {
    /// Whether this listener takes the route by this reference.
    pub(crate) fn takes(&self, at: &Judged<'_>) -> bool {
        let mut offered = self.offers(at).into_iter();
        offered.any(|written| !self.judge.is_lost(self.route, at, written))
    }

    /// The hostnames that the route would have on this listener if no other route wanted them.
    fn offers(&self, at: &Judged<'_>) -> Vec<&HostPattern> {
        let (reference, listener) = (self.reference, at.listener);
        let (own, theirs) = (&self.key.name().namespace, &self.route.name().namespace);
        let kind = match listener.protocol {
            Protocol::Tls => self.route.kind() == Kind::TlsRoute,
            Protocol::Http | Protocol::Https => self.route.kind().routes_requests(),
            Protocol::Tcp => self.route.kind() == Kind::TcpRoute,
            Protocol::Udp => self.route.kind() == Kind::UdpRoute,
            Protocol::Other(_) => false,
        };
        let takes = at.parent == self.key
            && reference
                .section
                .as_ref()
                .is_none_or(|s| *s == listener.name)
            && reference.port.is_none_or(|p| Some(p) == listener.port)
            && kind
            && self.judge.admits(&listener.allowed_namespaces, own, theirs);
        let written = self.route.hostnames().iter().map(|(_, h)| h);
        written
            .filter(|h| takes && self.judge.has(self.route, listener, h))
            .collect()
    }

    /// Whether the reference is accepted: one listener that takes the route is enough.
    pub(crate) fn accepted(&self) -> bool {
        self.judge.listeners.iter().any(|l| self.takes(l))
    }
}

fn host(listener: &Listener) -> String {
    listener.hostname.to_string()
}

/// What a route's hostname and a listener's have in common: of two that overlap, the more specific one.
fn common(at: &Listener, written: &HostPattern) -> String {
    let (theirs, listeners) = (written.to_string(), host(at));
    if specificity(&theirs) >= specificity(&listeners) {
        theirs
    } else {
        listeners
    }
}

fn over_tls(listener: &Listener) -> bool {
    matches!(listener.protocol, Protocol::Tls | Protocol::Https)
}

fn clash(a: &Listener, b: &Listener) -> bool {
    let kind = |l: &Listener| (over_tls(l), l.protocol == Protocol::Http);
    let over_udp = |l: &Listener| l.protocol == Protocol::Udp;
    // What has no names shares with nobody; names have to differ where there are any. TCP and UDP never meet.
    a.port == b.port
        && over_udp(a) == over_udp(b)
        && (kind(a) != kind(b) || is_raw(a) || host(a) == host(b))
}

/// Whether the port alone selects it.
fn is_raw(listener: &Listener) -> bool {
    matches!(listener.protocol, Protocol::Tcp | Protocol::Udp)
}

/// Exact over wildcard, more labels over fewer, anything over none.
fn specificity(pattern: &str) -> (bool, usize) {
    let labels = pattern.split('.').filter(|label| !label.is_empty()).count();
    (!pattern.is_empty() && !pattern.starts_with('*'), labels)
}

/// A wildcard stands for one label or more.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_prefix('*') {
        Some(suffix) => name.len() > suffix.len() && name.ends_with(suffix),
        None => pattern.is_empty() || pattern == name,
    }
}

fn overlap(a: &str, b: &str) -> bool {
    match (a.strip_prefix('*'), b.strip_prefix('*')) {
        (Some(x), Some(y)) => x.ends_with(y) || y.ends_with(x),
        (None, None) => a == b || a.is_empty() || b.is_empty(),
        _ => a.is_empty() || b.is_empty() || matches(a, b) || matches(b, a),
    }
}
