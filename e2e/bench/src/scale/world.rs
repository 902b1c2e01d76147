//! The objects of the scale bench, as an API server would send them: many teams with ListenerSets of
//! sixteen listeners, a route each, all on one Gateway; half of the listeners end TLS, each with a Secret
//! of its own. Made when asked for, so that they take no memory.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::Result;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use vestibule_model::key::{Kind, ObjectKey};
use vestibule_operator::translate::CONTROLLER;

/// Listeners of a set, and routes.
pub(crate) const LISTENERS: usize = 16;
/// The one Gateway's namespace and name.
const PLATFORM: &str = "platform";
pub(crate) const GATEWAY: &str = "edge";
/// Listeners from this one on end TLS.
const TERMINATING: usize = LISTENERS / 2;
/// In a certificate that has taken the place of another one.
pub(crate) const RENEWED: &str = "renewed";
const GROUP: &str = "gateway.networking.k8s.io/v1";
/// Objects in a page of a list.
const PAGE: usize = 500;

/// Which kind of route leads from listener to backend.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    clap::ValueEnum,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Routes {
    /// TLSRoutes on TLS listeners, of mode Passthrough and of mode Terminate.
    Tls,
    /// HTTPRoutes on HTTP and HTTPS listeners.
    Http,
}

impl Routes {
    /// As written in Gateway API.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::Tls => "TLSRoute",
            Self::Http => "HTTPRoute",
        }
    }
}

impl fmt::Display for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tls => "tls",
            Self::Http => "http",
        })
    }
}

/// How a client asks on a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// A request in plaintext, on port 80.
    Plain,
    /// A `ClientHello` that goes through to the backend, on port 443.
    Hello,
    /// A request within TLS, on port 443.
    Within,
}

impl Way {
    /// The Gateway's port.
    pub(crate) fn port(self) -> u16 {
        match self {
            Self::Plain => 80,
            Self::Hello | Self::Within => 443,
        }
    }
}

/// An object of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Id {
    /// The GatewayClass.
    Class,
    /// The Gateway.
    Gateway,
    /// A team's namespace; the one after the last is the platform's.
    Namespace(usize),
    /// A ListenerSet.
    Set(usize),
    /// A route of a set: set, listener.
    Route(usize, usize),
    /// The certificate of a listener: set, listener.
    Secret(usize, usize),
    /// A Service of a set.
    Service(usize, To),
    /// Its EndpointSlice.
    Slice(usize, To),
}

/// The two Services of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum To {
    /// Where all routes lead at first.
    Web,
    /// Where a route may lead after an edit.
    Next,
}

impl To {
    fn as_str(self) -> &'static str {
        match self {
            Self::Web => "web",
            Self::Next => "next",
        }
    }
}

/// What is edited, each kind on a listener of its own. In the order of the table.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Edit {
    /// A route leads to another Service.
    RouteBackend,
    /// A listener of a set has another hostname.
    ListenerHostname,
    /// A Service, to which sixteen routes lead, has another endpoint.
    Endpoint,
    /// A Secret has another certificate.
    Certificate,
}

impl Edit {
    /// Every kind.
    pub(crate) const ALL: [Self; 4] = [
        Self::RouteBackend,
        Self::ListenerHostname,
        Self::Endpoint,
        Self::Certificate,
    ];

    /// Makes edits of every kind in turn with `make`, first `warm_up` and then `count`. Returns the results of the
    /// latter.
    pub(crate) async fn measured<T>(
        warm_up: usize,
        count: usize,
        mut make: impl AsyncFnMut(Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut results = Vec::with_capacity(count);
        let edits = Self::ALL.into_iter().cycle().take(warm_up + count);
        for (number, edit) in edits.enumerate() {
            let result = make(edit).await?;
            if number >= warm_up {
                results.push(result);
            }
        }
        Ok(results)
    }

    /// The listener whose traffic shows it.
    pub(crate) fn listener(self) -> usize {
        match self {
            Self::ListenerHostname => 0,
            Self::RouteBackend => 1,
            Self::Endpoint => 2,
            Self::Certificate => TERMINATING,
        }
    }

    /// For people.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::RouteBackend => "a route's backend",
            Self::ListenerHostname => "a listener's hostname",
            Self::Endpoint => "an endpoint",
            Self::Certificate => "a certificate",
        }
    }
}

/// How a set differs from what it was at first.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each edit of the bench goes forth and back"
)]
#[derive(Clone, Copy, Debug, Default)]
struct State {
    moved_route: bool,
    new_hostname: bool,
    new_endpoint: bool,
    new_certificate: bool,
    generation: u32,
}

/// Who answers, and with which certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Letter of the backend.
    pub(crate) backend: u8,
    /// Whether the certificate shown has taken the place of another one.
    pub(crate) renewed: bool,
}

/// The pages in which lists come that are read side by side: each has the next objects of every list.
pub(crate) fn pages(lists: &[Vec<Id>]) -> impl Iterator<Item = Vec<Id>> {
    let mut lists: Vec<_> = lists.iter().map(|list| list.chunks(PAGE)).collect();
    std::iter::from_fn(move || {
        let next = lists.iter_mut().filter_map(Iterator::next);
        let page: Vec<Id> = next.flatten().copied().collect();
        (!page.is_empty()).then_some(page)
    })
}

/// All objects.
#[derive(Debug)]
pub(crate) struct World {
    sets: usize,
    /// Namespaces that the sets are spread over.
    namespaces: usize,
    routes: Routes,
    /// Ports of the backends A, B and C.
    backends: [u16; 3],
    edited: BTreeMap<usize, State>,
    /// The controller that the class names.
    controller: &'static str,
    /// One for all certificates: making as many would take longer than what is measured.
    key: KeyPair,
}

impl World {
    /// So many sets in so many namespaces, with these backends on loopback.
    pub(crate) fn new(
        sets: usize,
        namespaces: usize,
        routes: Routes,
        backends: [u16; 3],
    ) -> Result<Self> {
        Ok(Self {
            sets,
            namespaces,
            routes,
            backends,
            edited: BTreeMap::new(),
            controller: CONTROLLER,
            key: KeyPair::generate()?,
        })
    }

    /// The same of another release, whose class names another controller.
    pub(crate) fn of_another_release(mut self) -> Self {
        self.controller = "example.com/another";
        self
    }

    /// How a client asks on a listener.
    pub(crate) fn way(&self, listener: usize) -> Way {
        match self.routes {
            _ if listener >= TERMINATING => Way::Within,
            Routes::Tls => Way::Hello,
            Routes::Http => Way::Plain,
        }
    }

    /// Class, Gateway and namespaces: what is there before the teams come.
    pub(crate) fn platform(&self) -> Vec<Id> {
        let namespaces = (0..=self.namespaces).map(Id::Namespace);
        [Id::Class, Id::Gateway]
            .into_iter()
            .chain(namespaces)
            .collect()
    }

    /// The set that the edit with this number is about: edits in a row are all over the namespaces.
    pub(crate) fn edited_set(&self, number: usize) -> usize {
        number.wrapping_mul(7_919) % self.sets
    }

    /// What the teams have, each kind as one list: so they come from an API server.
    pub(crate) fn teams(&self) -> Vec<Vec<Id>> {
        let services = |make: fn(usize, To) -> Id| {
            (0..self.sets)
                .flat_map(|set| [make(set, To::Web), make(set, To::Next)])
                .collect()
        };
        vec![
            (0..self.sets).map(Id::Set).collect(),
            (0..self.sets)
                .flat_map(|set| (0..LISTENERS).map(move |n| Id::Route(set, n)))
                .collect(),
            services(Id::Service),
            services(Id::Slice),
            (0..self.sets)
                .flat_map(|set| (TERMINATING..LISTENERS).map(move |n| Id::Secret(set, n)))
                .collect(),
        ]
    }

    /// Makes an edit in a set and returns the object that it changes.
    pub(crate) fn edit(&mut self, set: usize, edit: Edit) -> Id {
        let state = self.edited.entry(set).or_default();
        match edit {
            Edit::RouteBackend => {
                state.moved_route ^= true;
                state.generation += 1;
                Id::Route(set, edit.listener())
            }
            Edit::ListenerHostname => {
                state.new_hostname ^= true;
                state.generation += 1;
                Id::Set(set)
            }
            Edit::Endpoint => {
                state.new_endpoint ^= true;
                Id::Slice(set, To::Web)
            }
            Edit::Certificate => {
                state.new_certificate ^= true;
                Id::Secret(set, edit.listener())
            }
        }
    }

    /// The hostname that a listener has now.
    pub(crate) fn hostname(&self, set: usize, listener: usize) -> String {
        let new = listener == Edit::ListenerHostname.listener() && self.state(set).new_hostname;
        self.name_of(set, listener, new)
    }

    /// Who answers on a listener now.
    pub(crate) fn answer(&self, set: usize, listener: usize) -> Answer {
        let state = self.state(set);
        let moved = listener == Edit::RouteBackend.listener() && state.moved_route;
        Answer {
            backend: match (moved, state.new_endpoint) {
                (true, _) => b'B',
                (false, false) => b'A',
                (false, true) => b'C',
            },
            renewed: self.is_renewed(set, listener),
        }
    }

    fn is_renewed(&self, set: usize, listener: usize) -> bool {
        listener == Edit::Certificate.listener() && self.state(set).new_certificate
    }

    fn state(&self, set: usize) -> State {
        self.edited.get(&set).copied().unwrap_or_default()
    }

    /// The object as the API server would send it, with this status.
    pub(crate) fn json(&self, id: Id, version: u64, status: Option<Value>) -> Value {
        let mut object = self.body(id);
        let generation = match id {
            Id::Set(set) | Id::Route(set, _) => self.state(set).generation + 1,
            _ => 1,
        };
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            let uid = format!("{:032x}", hash(&format!("{id:?}")));
            metadata.insert("uid".into(), uid.into());
            metadata.insert("resourceVersion".into(), version.to_string().into());
            metadata.insert("generation".into(), generation.into());
            metadata.insert("creationTimestamp".into(), "2026-01-02T03:04:05Z".into());
        }
        if let (Some(status), Some(fields)) = (status, object.as_object_mut()) {
            fields.insert("status".into(), status);
        }
        object
    }

    fn body(&self, id: Id) -> Value {
        match id {
            Id::Class => json!({
                "apiVersion": GROUP, "kind": "GatewayClass",
                "metadata": { "name": "vestibule" },
                "spec": { "controllerName": self.controller },
            }),
            Id::Gateway => json!({
                "apiVersion": GROUP, "kind": "Gateway",
                "metadata": { "namespace": PLATFORM, "name": GATEWAY },
                "spec": {
                    "gatewayClassName": "vestibule",
                    "allowedListeners": { "namespaces": { "from": "All" } },
                    "listeners": [{
                        "name": "own", "hostname": "status.example.com",
                        "port": 443, "protocol": "TLS", "tls": { "mode": "Passthrough" },
                    }],
                },
            }),
            Id::Namespace(number) => {
                let name = if number == self.namespaces {
                    PLATFORM.to_owned()
                } else {
                    format!("team-{number}")
                };
                json!({
                    "apiVersion": "v1", "kind": "Namespace",
                    "metadata": { "name": name, "labels": { "kubernetes.io/metadata.name": name } },
                })
            }
            Id::Secret(set, listener) => self.secret(set, listener),
            Id::Set(set) => self.set(set),
            Id::Route(set, listener) => self.route(set, listener),
            Id::Service(set, to) => json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": { "namespace": self.team(set), "name": service(set, to) },
                "spec": {
                    "type": "ClusterIP", "clusterIP": "10.96.0.7", "selector": { "app": service(set, to) },
                    "ports": [{ "name": "web", "port": 80, "protocol": "TCP", "targetPort": "web" }],
                },
            }),
            Id::Slice(set, to) => {
                let [a, b, c] = self.backends;
                let port = match (to, self.state(set).new_endpoint) {
                    (To::Next, _) => b,
                    (To::Web, false) => a,
                    (To::Web, true) => c,
                };
                json!({
                    "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                    "metadata": {
                        "namespace": self.team(set), "name": format!("{}-x7k2p", service(set, to)),
                        "labels": { "kubernetes.io/service-name": service(set, to) },
                    },
                    "addressType": "IPv4",
                    "ports": [{ "name": "web", "port": port, "protocol": "TCP" }],
                    "endpoints": [{ "addresses": ["127.0.0.1"], "conditions": { "ready": true } }],
                })
            }
        }
    }

    fn set(&self, set: usize) -> Value {
        let listener = |number: usize| {
            let mut listener =
                json!({ "name": section(number), "hostname": self.hostname(set, number) });
            let way = self.way(number);
            let tls = match way {
                Way::Plain => Value::Null,
                Way::Hello => json!({ "mode": "Passthrough" }),
                Way::Within => json!({
                    "mode": "Terminate",
                    "certificateRefs": [{ "name": format!("set-{set}-{number}") }],
                }),
            };
            let protocol = match (self.routes, way) {
                (Routes::Tls, _) => "TLS",
                (Routes::Http, Way::Within) => "HTTPS",
                (Routes::Http, _) => "HTTP",
            };
            let mut more = json!({ "port": way.port(), "protocol": protocol });
            if !tls.is_null()
                && let Some(more) = more.as_object_mut()
            {
                more.insert("tls".into(), tls);
            }
            if let (Some(listener), Value::Object(more)) = (listener.as_object_mut(), more) {
                listener.extend(more);
            }
            listener
        };
        json!({
            "apiVersion": GROUP, "kind": "ListenerSet",
            "metadata": {
                "namespace": self.team(set), "name": format!("set-{set}"),
                "annotations": { "cert-manager.io/cluster-issuer": "letsencrypt" },
            },
            "spec": {
                "parentRef": { "namespace": PLATFORM, "name": GATEWAY },
                "listeners": (0..LISTENERS).map(listener).collect::<Vec<_>>(),
            },
        })
    }

    fn secret(&self, set: usize, listener: usize) -> Value {
        let name = self.hostname(set, listener);
        let mut names = vec![name.clone()];
        if self.is_renewed(set, listener) {
            names.push(format!("{RENEWED}.{name}"));
        }
        let made = CertificateParams::new(names).and_then(|params| params.self_signed(&self.key));
        // Names that the bench made are names; an empty certificate would not be Programmed.
        let pem = made
            .map(|certificate| certificate.pem())
            .unwrap_or_default();
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
            "metadata": { "namespace": self.team(set), "name": format!("set-{set}-{listener}") },
            "data": {
                "tls.crt": BASE64_STANDARD.encode(pem),
                "tls.key": BASE64_STANDARD.encode(self.key.serialize_pem()),
            },
        })
    }

    fn route(&self, set: usize, listener: usize) -> Value {
        let mut hostnames = vec![self.name_of(set, listener, false)];
        if listener == Edit::ListenerHostname.listener() {
            // It follows its listener.
            hostnames.push(self.name_of(set, listener, true));
        }
        let moved = listener == Edit::RouteBackend.listener() && self.state(set).moved_route;
        let to = if moved { To::Next } else { To::Web };
        json!({
            "apiVersion": GROUP, "kind": self.routes.kind(),
            "metadata": { "namespace": self.team(set), "name": format!("set-{set}-{listener}") },
            "spec": {
                "parentRefs": [{ "kind": "ListenerSet", "name": format!("set-{set}"), "sectionName": section(listener) }],
                "hostnames": hostnames,
                "rules": [{ "backendRefs": [{ "name": service(set, to), "port": 80 }] }],
            },
        })
    }

    fn team(&self, set: usize) -> String {
        format!("team-{}", set % self.namespaces)
    }

    fn name_of(&self, set: usize, listener: usize, new: bool) -> String {
        let prefix = if new { "new" } else { "app" };
        let team = self.team(set);
        format!("{prefix}-{listener}.set-{set}.{team}.example.com")
    }

    /// The key of an object that has a status and is a team's.
    pub(crate) fn key(&self, id: Id) -> Option<ObjectKey> {
        match id {
            Id::Set(set) => Some(ObjectKey::new(
                Kind::ListenerSet,
                self.team(set),
                format!("set-{set}"),
            )),
            Id::Route(set, listener) => {
                let kind = match self.routes {
                    Routes::Tls => Kind::TlsRoute,
                    Routes::Http => Kind::HttpRoute,
                };
                Some(ObjectKey::new(
                    kind,
                    self.team(set),
                    format!("set-{set}-{listener}"),
                ))
            }
            _ => None,
        }
    }

    /// The object with this name in lists of its kind; none of the platform's.
    pub(crate) fn find(kind: &str, name: &str) -> Option<Id> {
        let mut numbers = name.strip_prefix("set-")?.splitn(2, '-').map(str::parse);
        let set = numbers.next()?.ok()?;
        match (kind, numbers.next()) {
            ("ListenerSet", None) => Some(Id::Set(set)),
            ("TLSRoute" | "HTTPRoute", Some(Ok(listener))) => Some(Id::Route(set, listener)),
            ("Secret", Some(Ok(listener))) => Some(Id::Secret(set, listener)),
            _ => None,
        }
    }
}

fn section(listener: usize) -> String {
    format!("app-{listener}")
}

fn service(set: usize, to: To) -> String {
    format!("{}-{set}", to.as_str())
}

/// FNV-1a, twice: enough for names that must differ.
fn hash(text: &str) -> u128 {
    text.bytes()
        .fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, byte| {
            (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edit_changes_its_object_and_what_answers() {
        let mut world = World::new(3, 50, Routes::Tls, [1, 2, 3]).unwrap();
        for edit in Edit::ALL {
            let before = (
                world.hostname(1, edit.listener()),
                world.answer(1, edit.listener()),
            );
            let other = (
                world.hostname(2, edit.listener()),
                world.answer(2, edit.listener()),
            );
            let object = world.edit(1, edit);
            let after = (
                world.hostname(1, edit.listener()),
                world.answer(1, edit.listener()),
            );
            assert_ne!(before, after, "{edit:?} of {object:?}");
            assert_eq!(
                other,
                (
                    world.hostname(2, edit.listener()),
                    world.answer(2, edit.listener())
                )
            );
        }
    }

    #[test]
    fn names_lead_back_to_objects() {
        assert_eq!(World::find("ListenerSet", "set-12"), Some(Id::Set(12)));
        assert_eq!(World::find("TLSRoute", "set-12-3"), Some(Id::Route(12, 3)));
        assert_eq!(World::find("Secret", "set-12-9"), Some(Id::Secret(12, 9)));
        assert_eq!(World::find("Gateway", "edge"), None);
    }
}
