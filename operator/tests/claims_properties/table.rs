//! What a proxy does with a connection, read off what is published: plain lists, nothing of the code under test.

use std::collections::BTreeMap;

use prost::Message as _;
use vestibule_stream::proto::listener::Protocol;
use vestibule_stream::proto::resource::Resource as Body;
use vestibule_stream::{Encoded, ResourceKey, ResourceKind, proto};

/// A listener as published: port, hostname and whether it speaks TLS, by its name.
type Listeners = BTreeMap<String, (u32, String, bool)>;

/// A route on a listener: the more specific hostname as written, the older one, the name; what it matches
/// there, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Attached {
    rank: std::cmp::Reverse<(bool, usize)>,
    created: i64,
    route: String,
    matches: String,
    tenant: String,
}

/// Where a connection comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Served {
    /// The listener, and its hostname.
    pub(crate) listener: String,
    pub(crate) pattern: String,
    /// The route, what it matches there, and its namespace.
    pub(crate) route: String,
    pub(crate) matches: String,
    pub(crate) tenant: String,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Table {
    listeners: Listeners,
    routes: BTreeMap<String, Vec<Attached>>,
}

impl Table {
    pub(crate) fn read(resources: &BTreeMap<ResourceKey, Encoded>) -> Self {
        let mut table = Self {
            listeners: BTreeMap::new(),
            routes: BTreeMap::new(),
        };
        for (key, encoded) in resources {
            if !matches!(key.kind(), ResourceKind::Listener | ResourceKind::TlsRoute) {
                continue;
            }
            let resource = proto::Resource::decode(encoded.upsert().resource.as_ref());
            let name = key.name.clone();
            match resource.expect("a resource").resource {
                Some(Body::Listener(listener)) => {
                    let tls = match listener.protocol {
                        Some(Protocol::Tls(_)) => true,
                        Some(Protocol::Http(http)) => http.terminate.is_some(),
                        None => panic!("{name} without a protocol"),
                    };
                    let listener = (listener.port, listener.hostname, tls);
                    table.listeners.insert(name, listener);
                }
                Some(Body::TlsRoute(route)) => table.add(&name, &route),
                other => panic!("{name} is {other:?}"),
            }
        }
        table
    }

    fn add(&mut self, name: &str, route: &proto::TlsRoute) {
        for attachment in &route.attachments {
            let routes = self.routes.entry(attachment.listener.clone()).or_default();
            routes.extend(attachment.hostnames.iter().map(|hostname| Attached {
                rank: std::cmp::Reverse(specificity(&hostname.rank)),
                created: route.created,
                route: name.to_owned(),
                matches: hostname.r#match.clone(),
                tenant: route.tenant.clone(),
            }));
            routes.sort();
        }
    }

    /// Which route gets a connection to `port` for `name`.
    pub(crate) fn answer(&self, port: u16, name: &str) -> Option<Served> {
        let on_port = self.listeners.iter().filter(|(_, (at, pattern, tls))| {
            *at == u32::from(port) && *tls && matches(pattern, name)
        });
        let (listener, (_, pattern, _)) =
            on_port.max_by_key(|(_, (_, pattern, _))| specificity(pattern))?;
        let mut routes = self.routes.get(listener).into_iter().flatten();
        let route = routes.find(|route| matches(&route.matches, name))?;
        Some(Served {
            listener: listener.clone(),
            pattern: pattern.clone(),
            route: route.route.clone(),
            matches: route.matches.clone(),
            tenant: route.tenant.clone(),
        })
    }
}

/// Exact over wildcard, more labels over fewer, anything over none.
pub(crate) fn specificity(pattern: &str) -> (bool, usize) {
    let labels = pattern.split('.').filter(|label| !label.is_empty()).count();
    (!pattern.is_empty() && !pattern.starts_with('*'), labels)
}

/// A wildcard stands for one label or more.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_prefix('*') {
        Some(suffix) => name.len() > suffix.len() && name.ends_with(suffix),
        None => pattern.is_empty() || pattern == name,
    }
}
