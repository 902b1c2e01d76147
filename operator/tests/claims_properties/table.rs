//! What proxies do with connections and requests, read off what is published: plain lists, nothing of the code under
//! test.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vestibule_stream::proto::listener::Protocol;
use vestibule_stream::proto::resource::Resource as Body;
use vestibule_stream::{Encoded, ResourceKey, ResourceKind, proto};

use crate::view::OWN;

/// A listener as published.
#[derive(Debug, PartialEq, Eq)]
struct Listener {
    port: u32,
    hostname: String,
    tenant: String,
    tls: bool,
    /// Whether it is the Gateway's own.
    own: bool,
}

/// A route on a listener: the more specific hostname as written, the older one, the name; what it matches there, and
/// its namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Attached {
    rank: std::cmp::Reverse<(bool, usize)>,
    created: i64,
    route: String,
    matches: String,
    tenant: String,
    /// Whether a grant shares the name with the tenant, so that it need not be the tenant's.
    shared: bool,
    /// The only paths of the name that are shared; none: all of it.
    paths: Vec<String>,
    /// The path prefixes that the route's rules match. A TLSRoute has none.
    prefixes: Vec<String>,
}

/// A hostname on a listener of the Gateway's own that a route has because it is shared with its namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shared {
    pub(crate) hostname: String,
    pub(crate) tenant: String,
    /// Name of the route's resource.
    pub(crate) route: String,
    /// The only paths of it; none: all of it.
    pub(crate) paths: Vec<String>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    listeners: BTreeMap<String, Listener>,
    routes: BTreeMap<String, Vec<Attached>>,
    /// Whom the names of each pattern belong to.
    owners: BTreeMap<String, String>,
    /// The namespaces that have the ports without names, of TCP and of UDP.
    raw: [BTreeMap<u32, String>; 2],
    /// The namespaces whose TCPRoutes each listener has.
    bytes: BTreeMap<String, BTreeSet<String>>,
}

impl Table {
    pub(crate) fn read(resources: &BTreeMap<Arc<ResourceKey>, Encoded>) -> Self {
        let mut table = Self::default();
        for (key, encoded) in resources {
            let kinds = [
                ResourceKind::Listener,
                ResourceKind::TlsRoute,
                ResourceKind::HttpRoute,
                ResourceKind::TcpRoute,
                ResourceKind::HostnameOwner,
            ];
            if !kinds.contains(&key.kind()) {
                continue;
            }
            let name = &*key.name;
            match encoded.decode().expect("a resource") {
                Body::Listener(listener) => table.add_listener(name, listener),
                Body::TlsRoute(of) => {
                    table.add_route(name, of.created, &of.tenant, &of.attachments, &[]);
                }
                Body::HttpRoute(of) => {
                    let prefixes = prefixes(&of.rules);
                    table.add_route(name, of.created, &of.tenant, &of.attachments, &prefixes);
                }
                Body::TcpRoute(of) => {
                    for listener in of.listeners {
                        let tenants = table.bytes.entry(listener).or_default();
                        tenants.insert(of.tenant.clone());
                    }
                }
                Body::HostnameOwner(owner) => {
                    let other = table.owners.insert(owner.hostname, owner.tenant);
                    assert_eq!(other, None, "{name} has two owners");
                }
                other => panic!("{name} is {other:?}"),
            }
        }
        for routes in table.routes.values_mut() {
            routes.sort();
        }
        table
    }

    /// The one namespace that gets the bytes of a listener.
    pub(crate) fn bytes_to(&self, listener: &str) -> Option<&str> {
        let tenants = self.bytes.get(listener)?;
        assert_eq!(tenants.len(), 1, "{listener} is {tenants:?}'s");
        tenants.first().map(String::as_str)
    }

    fn add_listener(&mut self, name: &str, listener: proto::Listener) {
        let tls = match listener.protocol {
            Some(Protocol::Tls(_)) => true,
            Some(Protocol::Http(http)) => http.terminate.is_some(),
            Some(raw @ (Protocol::Tcp(_) | Protocol::Udp(_))) => {
                let of = &mut self.raw[usize::from(matches!(raw, Protocol::Udp(_)))];
                let other = of.insert(listener.port, listener.tenant);
                assert_eq!(other, None, "{name} is not alone on its port");
                return;
            }
            None => panic!("{name} without a protocol"),
        };
        let listener = Listener {
            port: listener.port,
            hostname: listener.hostname,
            own: name.starts_with("Gateway/"),
            tenant: listener.tenant,
            tls,
        };
        self.listeners.insert(name.to_owned(), listener);
    }

    fn add_route(
        &mut self,
        name: &str,
        created: i64,
        tenant: &str,
        attachments: &[proto::Attachment],
        prefixes: &[String],
    ) {
        for attachment in attachments {
            let routes = self.routes.entry(attachment.listener.clone()).or_default();
            routes.extend(attachment.hostnames.iter().map(|hostname| Attached {
                rank: std::cmp::Reverse(specificity(&hostname.rank)),
                created,
                route: name.to_owned(),
                matches: hostname.r#match.clone(),
                tenant: tenant.to_owned(),
                shared: hostname.shared || !hostname.paths.is_empty(),
                paths: hostname.paths.clone(),
                prefixes: prefixes.to_vec(),
            }));
        }
    }

    /// Every pattern with the tenant for whom it is published, and by what: a listener of a set, a route on the
    /// Gateway's own listener, or a route that a set's listener without a hostname invited. What the Gateway's own
    /// namespace serves on its own listeners stands above all that. A shared name does not belong to a namespace by that.
    pub(crate) fn published(&self) -> BTreeSet<(String, String, String)> {
        let mut published = BTreeSet::new();
        for (name, listener) in &self.listeners {
            if !listener.own {
                published.insert((
                    listener.hostname.clone(),
                    listener.tenant.clone(),
                    name.clone(),
                ));
            }
            for route in self.routes.get(name).into_iter().flatten() {
                let tenant = match (listener.own, &*listener.hostname) {
                    (true, _) if route.tenant == OWN || route.shared => continue,
                    (true, _) => &route.tenant,
                    (false, "") => &listener.tenant,
                    // It uses the name of the listener.
                    (false, _) => continue,
                };
                let by = format!("{} on {name}", route.route);
                published.insert((route.matches.clone(), tenant.clone(), by));
            }
        }
        published
    }

    /// What routes have because it is shared with their namespaces, and all of their matches inside the paths.
    pub(crate) fn shared(&self) -> BTreeSet<Shared> {
        let mut all = BTreeSet::new();
        for (name, routes) in &self.routes {
            for route in routes.iter().filter(|route| route.shared) {
                assert!(self.listeners[name].own, "{route:?} on {name}");
                let is_inside = |prefix: &String| {
                    let mut paths = route.paths.iter();
                    paths.any(|path| prefix == path || prefix.starts_with(&format!("{path}/")))
                };
                assert!(
                    route.paths.is_empty() || route.prefixes.iter().all(is_inside),
                    "{route:?} reaches outside"
                );
                all.insert(Shared {
                    hostname: route.matches.clone(),
                    tenant: route.tenant.clone(),
                    route: route.route.clone(),
                    paths: route.paths.clone(),
                });
            }
        }
        all
    }

    /// Whom the names of each pattern belong to.
    pub(crate) fn owners(&self) -> &BTreeMap<String, String> {
        &self.owners
    }

    /// Every pattern that is published for a tenant is that tenant's, and so no name is two tenants'.
    pub(crate) fn check(&self, names: &[&str]) {
        for (pattern, tenant, by) in self.published() {
            let owner = self.owners.get(&pattern);
            assert_eq!(
                owner,
                Some(&tenant),
                "{pattern:?} is published for {tenant} by {by}"
            );
        }
        for listener in self.listeners.values() {
            let raw = self.raw[0].get(&listener.port);
            assert_eq!(raw, None, "{listener:?} is on a port without names");
        }
        for name in names {
            let mut tenants = self.serving(name);
            tenants.remove(OWN);
            assert!(tenants.len() <= 1, "{name} is served for {tenants:?}");
        }
    }

    /// For whom a name is served, on any port and by any kind of route.
    fn serving(&self, name: &str) -> BTreeSet<&str> {
        let ports = self.listeners.values().map(|l| (l.port, l.tls));
        let ports: BTreeSet<(u32, bool)> = ports.collect();
        let served = ports.into_iter();
        served
            .filter_map(|(port, tls)| self.answer(port, tls, name))
            .collect()
    }

    /// For whom a connection or request to a port for a name is served: of the most specific listener, and there of
    /// the route that comes first, leaving out what may not serve the name and what only shares it.
    pub(crate) fn answer(&self, port: u32, tls: bool, name: &str) -> Option<&str> {
        let (listener, route) = self.selected(port, tls, name)?;
        Some(if listener.own {
            &route.tenant
        } else {
            &listener.tenant
        })
    }

    /// The namespace of the route that serves such a connection or request, and the route.
    pub(crate) fn answer_by(&self, port: u32, tls: bool, name: &str) -> Option<(&str, &str)> {
        let (_, route) = self.selected(port, tls, name)?;
        Some((&route.tenant, &route.route))
    }

    fn selected(&self, port: u32, tls: bool, name: &str) -> Option<(&Listener, &Attached)> {
        let owner = self.owner(name);
        let may_serve = |tenant: &str| tenant == OWN || owner == Some(tenant);
        let on_port = self.listeners.iter().filter(|(_, listener)| {
            listener.port == port
                && listener.tls == tls
                && covers(&listener.hostname, name)
                && may_serve(&listener.tenant)
        });
        let (at, listener) = on_port.max_by_key(|(_, of)| specificity(&of.hostname))?;
        let mut routes = self.routes.get(at).into_iter().flatten();
        let route = routes.find(|route| {
            let may_serve = !listener.own || may_serve(&route.tenant);
            covers(&route.matches, name) && may_serve && !route.shared
        })?;
        Some((listener, route))
    }

    /// Whom a name belongs to.
    fn owner(&self, name: &str) -> Option<&str> {
        self.owner_of(name).map(|(_, tenant)| tenant)
    }

    /// The pattern by which a name belongs to somebody, and to whom.
    pub(crate) fn owner_of(&self, name: &str) -> Option<(&str, &str)> {
        let around = self.owners.iter().filter(|(of, _)| covers(of, name));
        let nearest = around.max_by_key(|(of, _)| specificity(of));
        nearest.map(|(of, tenant)| (of.as_str(), tenant.as_str()))
    }
}

/// The path prefixes that rules match.
fn prefixes(rules: &[proto::HttpRule]) -> Vec<String> {
    use proto::http_match::Path;
    let matches = rules.iter().flat_map(|rule| &rule.matches);
    let prefixes = matches.map(|of| match &of.path {
        Some(Path::Prefix(prefix)) => prefix.clone(),
        None => "/".to_owned(),
        other => panic!("{other:?}"),
    });
    prefixes.collect()
}

/// Exact over wildcard, more labels over fewer, anything over none.
pub(crate) fn specificity(pattern: &str) -> (bool, usize) {
    let labels = pattern.split('.').filter(|label| !label.is_empty()).count();
    (!pattern.is_empty() && !pattern.starts_with('*'), labels)
}

/// Whether every name that `inner` matches is matched by `pattern`. A wildcard stands for one label or more.
pub(crate) fn covers(pattern: &str, inner: &str) -> bool {
    match pattern.strip_prefix('*') {
        Some(suffix) if pattern != inner => {
            let below = inner.trim_start_matches('*');
            below.len() > suffix.len() && below.ends_with(suffix)
        }
        _ => pattern.is_empty() || pattern == inner,
    }
}
