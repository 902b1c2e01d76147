//! What is there, and what is asked: 50 namespaces with ListenerSets of 16 listeners on one Gateway that has
//! grants, a claim for every listener and for the hostname of the route on it.

use std::num::NonZeroU16;

use serde_json::{Value, json};
use vestibule_crds::vestibule::HostnameClaimSpec;
use vestibule_model::claim::{ClaimKey, Holder};
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::ObjectName;

/// Controller of the GatewayClass.
pub(super) const CONTROLLER: &str = "vestibule.dev/gateway-controller";
/// Listeners of a set, and routes on it.
pub(super) const LISTENERS: usize = 16;
/// Namespaces, where there are as many sets.
pub(super) const NAMESPACES: usize = 50;
/// The listeners' port.
const PORT: NonZeroU16 = NonZeroU16::new(443).unwrap();
/// Since when names are held, in seconds since the epoch.
const SINCE: i64 = 1_767_225_600;

/// So many sets.
#[derive(Debug, Clone, Copy)]
pub(super) struct World {
    pub(super) sets: usize,
}

/// Kinds of review.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) enum Ask {
    /// A set with free names.
    NewSet,
    /// A set with a name that another namespace has.
    TakingSet,
    /// A set of which one name changes.
    EditedSet,
    /// A `TLSRoute` with as many hostnames as a set has listeners.
    NewRoute,
}

impl Ask {
    pub(super) const ALL: [Self; 4] = [
        Self::NewSet,
        Self::TakingSet,
        Self::EditedSet,
        Self::NewRoute,
    ];

    pub(super) fn what(self) -> &'static str {
        match self {
            Self::NewSet => "new ListenerSet",
            Self::TakingSet => "new ListenerSet, refused",
            Self::EditedSet => "edited ListenerSet",
            Self::NewRoute => "new TLSRoute",
        }
    }

    /// Whether it is to be let in.
    pub(super) fn is_allowed(self) -> bool {
        self != Self::TakingSet
    }
}

fn host(set: usize, listener: usize, namespace: usize) -> String {
    format!("l{listener}.s{set}.t{namespace}.example.com")
}

fn listener(index: usize, hostname: &str) -> Value {
    json!({
        "name": format!("l{index}"), "port": PORT, "protocol": "TLS", "hostname": hostname,
        "tls": {"mode": "Passthrough"},
    })
}

/// What says that a namespace holds a hostname on the Gateway.
fn claim(hostname: &str, namespace: usize) -> Value {
    let gateway = ObjectName::new("infra", "entrance");
    let names = HostPattern::parse(hostname).expect("a hostname");
    let key = ClaimKey::names(&gateway, &names);
    let name = key.object_name();
    let holder = Holder::from(format!("t{namespace}").as_str());
    let spec = HostnameClaimSpec::new(&key, "", &holder, SINCE, None);
    json!({
        "apiVersion": "vestibule.dev/v1alpha1", "kind": "HostnameClaim",
        "metadata": {"namespace": name.namespace, "name": name.name}, "spec": spec,
    })
}

fn set_of(namespace: usize, name: &str, listeners: &[Value]) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
        "metadata": {"namespace": format!("t{namespace}"), "name": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"parentRef": {"namespace": "infra", "name": "entrance"}, "listeners": listeners},
    })
}

impl World {
    fn namespaces(self) -> usize {
        self.sets.min(NAMESPACES)
    }

    fn set(self, index: usize) -> Value {
        let namespace = index % self.namespaces();
        let listeners: Vec<Value> = (0..LISTENERS)
            .map(|l| listener(l, &host(index, l, namespace)))
            .collect();
        set_of(namespace, &format!("s{index}"), &listeners)
    }

    /// Everything there is; routes are not among it, only what their hostnames' claims say.
    pub(super) fn objects(self) -> impl Iterator<Item = Value> {
        let platform = [
            json!({
                "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
                "metadata": {"name": "vestibule"}, "spec": {"controllerName": CONTROLLER},
            }),
            json!({
                "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
                "metadata": {"namespace": "infra", "name": "entrance"},
                "spec": {
                    "gatewayClassName": "vestibule", "allowedListeners": {"namespaces": {"from": "All"}},
                    "listeners": [listener(0, "own.example.com")],
                },
            }),
        ];
        let tenants = (0..self.namespaces()).flat_map(|n| {
            let namespace = json!({
                "apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": format!("t{n}"), "labels": {"team": format!("t{n}")}},
            });
            let grant = json!({
                "apiVersion": "vestibule.dev/v1alpha1", "kind": "HostnameGrant",
                "metadata": {"namespace": "infra", "name": format!("t{n}")},
                "spec": {
                    "namespaces": {"names": [format!("t{n}")]}, "hostnames": [format!("*.t{n}.example.com"), format!("x{n}.example.com")],
                    "limits": {"listeners": 100_000},
                },
            });
            [namespace, grant]
        });
        let sets = (0..self.sets).map(move |index| self.set(index));
        let claims = (0..self.namespaces()).flat_map(move |n| self.claims(n));
        platform
            .into_iter()
            .chain(tenants)
            .chain(sets)
            .chain(claims)
    }

    fn claims(self, namespace: usize) -> impl Iterator<Item = Value> {
        let sets = (namespace..self.sets).step_by(self.namespaces());
        sets.flat_map(|set| (0..LISTENERS).map(move |l| (set, l)))
            .map(move |(set, l)| claim(&host(set, l, namespace), namespace))
    }

    /// The n-th review of a kind, as an API server sends it.
    pub(super) fn review(self, ask: Ask, n: usize) -> Vec<u8> {
        let index = n * 7 % self.sets;
        let namespace = index % self.namespaces();
        let (new, old) = match ask {
            Ask::NewSet => {
                let hosts = (0..LISTENERS)
                    .map(|l| listener(l, &format!("l{l}.new{n}.t{namespace}.example.com")));
                (
                    set_of(namespace, &format!("new{n}"), &hosts.collect::<Vec<_>>()),
                    Value::Null,
                )
            }
            Ask::TakingSet => {
                let mut hosts: Vec<Value> = (1..LISTENERS)
                    .map(|l| listener(l, &format!("l{l}.taking{n}.t{namespace}.example.com")))
                    .collect();
                let other = (index + 1) % self.sets;
                hosts.push(listener(
                    0,
                    &host(other, n % LISTENERS, other % self.namespaces()),
                ));
                (
                    set_of(namespace, &format!("taking{n}"), &hosts),
                    Value::Null,
                )
            }
            Ask::EditedSet => {
                let old = self.set(index);
                let mut new = old.clone();
                let name = format!("edited{n}.t{namespace}.example.com");
                new["spec"]["listeners"][n % LISTENERS]["hostname"] = name.into();
                (new, old)
            }
            Ask::NewRoute => {
                let hosts: Vec<String> =
                    (0..LISTENERS).map(|l| host(index, l, namespace)).collect();
                let route = json!({
                    "apiVersion": "gateway.networking.k8s.io/v1", "kind": "TLSRoute",
                    "metadata": {"namespace": format!("t{namespace}"), "name": format!("r{n}")},
                    "spec": {
                        "parentRefs": [{"kind": "ListenerSet", "name": format!("s{index}")}], "hostnames": hosts,
                        "rules": [{"backendRefs": [{"name": "app", "port": 443}]}],
                    },
                });
                (route, Value::Null)
            }
        };
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": format!("u{n}"),
                "kind": {"group": "gateway.networking.k8s.io", "version": "v1", "kind": new["kind"]},
                "operation": if old.is_null() { "CREATE" } else { "UPDATE" },
                "name": new["metadata"]["name"], "namespace": new["metadata"]["namespace"],
                "userInfo": {"username": "somebody"}, "object": new, "oldObject": old,
            },
        });
        review.to_string().into_bytes()
    }
}
