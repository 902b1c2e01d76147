//! Properties of translation that hold for all objects: incremental equals from scratch, order does not matter, and
//! tenants do not affect each other.

#[path = "translate_properties/across.rs"]
mod across;
#[path = "translate_properties/fresh_run.rs"]
mod fresh_run;
#[path = "translate_properties/history.rs"]
mod history;
#[path = "translate_properties/objects.rs"]
mod objects;
#[path = "translate_properties/totals.rs"]
mod totals;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use prost::Message as _;
use vestibule_model::gateway::Listener;
use vestibule_model::hostname::{HostPattern, Hostname};
use vestibule_model::issuance::CertificateRequest;
use vestibule_model::issuer::Engine;
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::Object;
use vestibule_model::protocol::{Port, Protocol};
use vestibule_operator::translate::{Change, Settings, Translator};
use vestibule_operator_testing::grants::{Reading, a_hostname_grant};
use vestibule_operator_testing::objects::*;
use vestibule_stream::proto::{self, resource};
use vestibule_stream::{ContentHash, ResourceKey};
use vestibule_test_support::properties::keep_failures_with_cases;

use history::{a_change, a_cluster_history, a_history, final_inputs, final_objects};
use objects::TENANTS;
use totals::{a_certified_history, some_totals};

type Held = BTreeMap<Arc<ResourceKey>, ContentHash>;

fn held(translator: &Translator) -> Held {
    translator
        .resources()
        .iter()
        .map(|(key, resource)| (key.clone(), resource.hash()))
        .collect()
}

fn assert_same(a: &Translator, b: &Translator) {
    assert_eq!(held(a), held(b));
    assert_eq!(a.statuses(), b.statuses());
    assert_eq!(a.findings(), b.findings());
    assert_eq!(a.requests(), b.requests());
}

/// The same with a limit on ports that namespaces reach.
fn few_ports(mut settings: Settings) -> Settings {
    settings.policy.ports_per_namespace = 1;
    settings
}

/// Wishes as they add up from what was put out.
fn add_up<K: Ord>(desired_services: &mut BTreeSet<K>, news: BTreeMap<K, bool>) {
    for (key, wanted) in news {
        let was = if wanted {
            !desired_services.insert(key)
        } else {
            !desired_services.remove(&key)
        };
        assert!(!was, "no news");
    }
}

proptest! {
    #![proptest_config(keep_failures_with_cases(400))]

    #[test]
    fn in_a_cluster_incremental_equals_from_scratch(
        history in a_cluster_history(),
        batch in 1usize..5,
        totals in some_totals(),
    ) {
        let empty = || Translator::new(few_ports(cluster_settings())).with_totals(totals);
        let mut incremental = empty();
        let (mut ports, mut sources, mut services) = Default::default();
        for changes in history.chunks(batch) {
            let output = incremental.apply(changes.to_vec());
            add_up(&mut ports, output.ports);
            add_up(&mut sources, output.sources);
            for (uid, desired) in output.services {
                match desired {
                    Some(desired) => BTreeMap::insert(&mut services, uid, desired),
                    None => BTreeMap::remove(&mut services, &uid),
                };
            }
        }
        let mut scratch = empty();
        scratch.apply(final_objects(&history).into_values().map(Change::Put));
        scratch.apply(final_inputs(&history));
        assert_same(&incremental, &scratch);
        for world in [&incremental, &scratch] {
            assert_eq!(&ports, world.ports());
            assert_eq!(&services, world.services());
            assert_eq!(sources.iter().collect::<Vec<_>>(), world.sources().collect::<Vec<_>>());
        }
    }
}

proptest! {
    #![proptest_config(keep_failures_with_cases(400))]

    #[test]
    fn incremental_equals_from_scratch(
        history in a_certified_history(),
        batch in 1usize..5,
        totals in some_totals(),
    ) {
        let empty = || Translator::new(few_ports(settings())).with_totals(totals);
        let mut incremental = empty();
        let mut outputs: Held = BTreeMap::new();
        for changes in history.chunks(batch) {
            let output = incremental.apply(changes.to_vec());
            for (key, resource) in output.resources {
                match resource {
                    Some(resource) => _ = outputs.insert(Arc::new(key), resource.hash()),
                    // A resource that comes and goes in one pass is not put out.
                    None => assert!(outputs.remove(&key).is_some(), "{key} was not there"),
                }
            }
        }
        let mut scratch = empty();
        scratch.apply(final_objects(&history).into_values().map(Change::Put));
        scratch.apply(final_inputs(&history));
        assert_same(&incremental, &scratch);
        // What was put out step by step adds up to what is held.
        assert_eq!(outputs, held(&scratch));
    }

    #[test]
    fn the_order_of_objects_does_not_matter(
        history in a_history().prop_map(|h| final_objects(&h).into_values().collect::<Vec<_>>())
            .prop_flat_map(|objects| (Just(objects.clone()), Just(objects).prop_shuffle())),
        totals in some_totals(),
    ) {
        let (ordered, shuffled) = history;
        let [ordered, shuffled] = [ordered, shuffled].map(|objects| {
            let mut world = Translator::new(settings()).with_totals(totals);
            world.apply(objects.into_iter().map(Change::Put));
            world
        });
        assert_same(&ordered, &shuffled);
    }

    /// Tenant A edits whatever it likes, short of names that B uses and of letting B in or out by
    /// grants: what the proxies hold for B is the same to the byte.
    #[test]
    fn a_tenant_does_not_touch_another(
        history in a_history(),
        edits in prop::collection::vec(a_change(), 1..20),
    ) {
        let of_b = |key: &ResourceKey| {
            key.name == "b" || key.name.starts_with("b/") || key.name.starts_with("ListenerSet/b/")
        };
        // B's world: everything but A's objects ("a" and "a-b" are A's namespaces).
        let of_a = |key: &ObjectKey| {
            key.name.namespace.starts_with('a')
                || (key.kind == Kind::Namespace && key.name.name.starts_with('a'))
        };
        // B refers to nothing of A's, or A's objects would be part of what B asked for; and A to no
        // Service or Secret of B's (by B's grant), whose use would come and go with A's objects.
        let apart = |key: &ObjectKey, object: &Object| {
            !refers_into(object, if of_a(key) { "b" } else { "a" })
        };
        let mut objects = final_objects(&history);
        objects.retain(|key, object| apart(key, object) && on_gateway_one(object));
        let b_names = names_of(&objects, |key| !of_a(key));
        objects.retain(|key, object| !of_a(key) || takes_none_of(object, &b_names));
        let mut world = Translator::new(few_ports(settings()));
        world.apply(objects.into_values().map(Change::Put));
        world.apply(final_inputs(&history));
        let before: Held = held(&world).into_iter().filter(|(k, _)| of_b(k)).collect();
        let b_asks = own_on_443(&world, "b");
        let a_edits: Vec<Change> = edits
            .into_iter()
            .filter(|change| match change {
                // Namespaces' labels are the admin's.
                Change::Put(Object::Namespace(_)) => false,
                Change::Put(object) => {
                    let key = object.key();
                    of_a(&key)
                        && apart(&key, object)
                        && on_gateway_one(object)
                        && takes_none_of(object, &b_names)
                }
                Change::Remove(key) => of_a(key) && key.kind != Kind::Namespace,
                _ => false,
            })
            .collect();
        world.apply(a_edits);
        let after: Held = held(&world).into_iter().filter(|(k, _)| of_b(k)).collect();
        assert_eq!(before, after);
        // Nor does it come between B and a CA, for what B serves on 443 itself.
        assert_eq!(b_asks, own_on_443(&world, "b"));
    }

    /// Whoever is selected for a name on port 443 is the only tenant that anything is asked or answered for
    /// under that name, judged by what the proxies hold.
    #[test]
    fn nothing_is_asked_for_what_others_serve(history in a_history()) {
        let mut world = translated(final_objects(&history).into_values());
        world.apply(final_inputs(&history));
        let listeners = tls_on_443(&world);
        let owners = owners(&world);
        let asked = world.requests().values().flat_map(|request| {
            let gateway = request.gateway.to_string();
            let tenant = request.secret.namespace.to_string();
            let names = request.hostnames.iter();
            names.map(move |name| (gateway.clone(), name.clone(), tenant.clone()))
        });
        let answered = challenges(&world).into_iter().map(|challenge| {
            let name = Hostname::parse(&challenge.hostname).expect("a hostname");
            (challenge.gateway, name, challenge.tenant)
        });
        for (gateway, name, tenant) in asked.chain(answered) {
            let owner = owners
                .iter()
                .filter(|(at, pattern, _)| *at == gateway && pattern.matches(&name))
                .max_by_key(|(_, pattern, _)| pattern.specificity())
                .map(|(.., owner)| &**owner);
            let may_serve = |key: &str| {
                key.starts_with("Gateway/")
                    || owner.is_none_or(|owner| key.split('/').nth(1) == Some(owner))
            };
            let selected = listeners
                .iter()
                .filter(|(_, at, pattern)| *at == gateway && pattern.matches(&name))
                .filter(|(key, ..)| may_serve(key))
                .max_by_key(|(_, _, pattern)| pattern.specificity());
            if let Some((key, _, _)) = selected
                && let Some(key) = key.strip_prefix("ListenerSet/")
            {
                let owner = key.split('/').next().expect("a namespace");
                assert_eq!(owner, tenant, "{name} on {gateway}");
            }
        }
    }
}

proptest! {
    #![proptest_config(keep_failures_with_cases(600))]

    /// Proxies hold no name that a namespace was not granted, and no issuer is asked for one. Nobody has more than they
    /// may, by a plain reading of the grants.
    #[test]
    fn nothing_is_held_or_asked_for_that_is_not_owned(
        history in a_history(),
        grants in prop::collection::vec(a_hostname_grant(&TENANTS), 1..4),
        batch in 1usize..5,
    ) {
        let mut world = Translator::new(settings());
        let grants = grants.into_iter().map(Change::Put);
        let history: Vec<Change> = history.into_iter().chain(grants).collect();
        for changes in history.chunks(batch) {
            world.apply(changes.to_vec());
        }
        let objects = final_objects(&history);
        check_owned(&world, Reading(&objects));
    }
}

fn check_owned(world: &Translator, reading: Reading<'_>) {
    let object = |text: &str| {
        let (namespace, name) = text.split_once('/').expect("a name");
        ObjectName::new(namespace, name)
    };
    let mut ports = BTreeMap::new();
    let mut listeners: BTreeMap<(ObjectName, String), usize> = BTreeMap::new();
    let mut routes = Vec::new();
    for encoded in world.resources().values() {
        let message = proto::Resource::decode(encoded.upsert().resource).expect("a resource");
        let (name, attachments) = match message.resource.expect("a resource") {
            resource::Resource::Listener(listener) => {
                let gateway = object(&listener.gateway);
                let port = u16::try_from(listener.port).ok().and_then(Port::new);
                let names = pattern(&listener.hostname);
                assert!(
                    reading.owns(&gateway, &listener.tenant, port, &names),
                    "{}",
                    message.name
                );
                if message.name.starts_with("ListenerSet/") {
                    let at = (gateway.clone(), listener.tenant);
                    *listeners.entry(at).or_default() += 1;
                }
                ports.insert(message.name, (gateway, port));
                continue;
            }
            resource::Resource::TlsRoute(route) => (message.name, route.attachments),
            resource::Resource::HttpRoute(route) | resource::Resource::GrpcRoute(route) => {
                (message.name, route.attachments)
            }
            resource::Resource::TcpRoute(route) | resource::Resource::UdpRoute(route) => {
                let everything = proto::RouteHostname::default();
                let listeners = route.listeners.into_iter();
                let attachments = listeners.map(|listener| proto::Attachment {
                    listener,
                    hostnames: vec![everything.clone()],
                });
                (message.name, attachments.collect())
            }
            _ => continue,
        };
        routes.push((object(&name).namespace.clone(), attachments));
    }
    check_connections(world, reading);
    for ((gateway, tenant), count) in listeners {
        assert!(count <= reading.limits(&gateway, &tenant).0 || *gateway.namespace == *tenant);
    }
    for (tenant, attachments) in routes {
        for attachment in attachments {
            // A route may name a listener that is not in force.
            let Some((gateway, port)) = ports.get(&attachment.listener) else {
                continue;
            };
            for hostname in attachment.hostnames {
                let names = pattern(&hostname.r#match);
                assert!(
                    reading.owns(gateway, &tenant, *port, &names),
                    "{tenant} {names}"
                );
            }
        }
    }
    let mut certified: BTreeMap<(ObjectName, Arc<str>), BTreeSet<Hostname>> = BTreeMap::new();
    for request in world.requests().values() {
        let (gateway, tenant) = (&request.gateway, &request.secret.namespace);
        for hostname in &request.hostnames {
            let names = HostPattern::Exact(hostname.clone());
            assert!(
                reading.owns(gateway, tenant, None, &names),
                "{tenant} {hostname}"
            );
            if let Some(issuer) = &request.issuer {
                let issuer = (&*issuer.kind, &*issuer.name);
                assert!(
                    reading.allows(gateway, tenant, &names, issuer),
                    "{tenant} {hostname}"
                );
                let at = (gateway.clone(), tenant.clone());
                certified.entry(at).or_default().insert(hostname.clone());
            }
        }
    }
    for ((gateway, tenant), names) in certified {
        assert!(names.len() <= reading.limits(&gateway, &tenant).1);
    }
}

/// The proxies know what grants state about the connections of each namespace, and nothing else.
fn check_connections(world: &Translator, reading: Reading<'_>) {
    let gateways: Vec<ObjectName> = ["one", "two"]
        .map(|name| ObjectName::new("platform", name))
        .into_iter()
        .filter(|gateway| world.merge().gateway(gateway).is_some())
        .collect();
    let mut told = BTreeMap::new();
    for message in messages(world) {
        if let Some(resource::Resource::Tenant(tenant)) = message.resource {
            told.insert(message.name, tenant);
        }
    }
    for namespace in TENANTS.into_iter().chain(["platform"]) {
        let (shares, most) = reading.connections(&gateways, namespace);
        let stated = proto::Tenant {
            connection_shares: shares.filter(|shares| *shares > 1).unwrap_or(0),
            max_connections: most.unwrap_or(0),
        };
        // A namespace of which nothing is there may be one that was named, and needs nothing.
        let tenant = told.remove(namespace);
        if tenant.is_some() || world.merge().labels(namespace).is_some() {
            assert_eq!(tenant.unwrap_or_default(), stated, "{namespace}");
        }
    }
    assert!(told.is_empty(), "{told:?}");
}

/// The resources as the proxies read them.
fn messages(world: &Translator) -> impl Iterator<Item = proto::Resource> {
    let held = world.resources().values();
    held.map(|encoded| proto::Resource::decode(encoded.upsert().resource).expect("a resource"))
}

/// Listeners with TLS on port 443 as the proxies hold them: name, Gateway, hostname.
fn tls_on_443(world: &Translator) -> Vec<(String, String, HostPattern)> {
    messages(world)
        .filter_map(|message| match message.resource? {
            resource::Resource::Listener(listener) if listener.port == 443 => {
                let tls = match listener.protocol.as_ref()? {
                    proto::listener::Protocol::Tls(_) => true,
                    proto::listener::Protocol::Http(http) => http.terminate.is_some(),
                    proto::listener::Protocol::Tcp(_) | proto::listener::Protocol::Udp(_) => false,
                };
                tls.then(|| (message.name, listener.gateway, pattern(&listener.hostname)))
            }
            _ => None,
        })
        .collect()
}

/// The owners of names, as the proxies hold them: Gateway, pattern, namespace.
fn owners(world: &Translator) -> Vec<(String, HostPattern, String)> {
    messages(world)
        .filter_map(|message| match message.resource? {
            resource::Resource::HostnameOwner(of) => {
                Some((of.gateway, pattern(&of.hostname), of.tenant))
            }
            _ => None,
        })
        .collect()
}

fn challenges(world: &Translator) -> Vec<proto::Challenge> {
    messages(world)
        .filter_map(|message| match message.resource? {
            resource::Resource::Challenge(challenge) => Some(challenge),
            _ => None,
        })
        .collect()
}

/// What is asked for in a namespace, of the built-in engine or whoever runs it, for names of its own
/// listeners on port 443.
fn own_on_443(world: &Translator, namespace: &str) -> BTreeSet<(ObjectName, Hostname)> {
    let listeners = tls_on_443(world);
    let own = format!("ListenerSet/{namespace}/");
    let of = |request: &CertificateRequest| {
        let names = request.hostnames.iter().filter(|name| {
            listeners.iter().any(|(key, gateway, pattern)| {
                key.starts_with(&own)
                    && *gateway == request.gateway.to_string()
                    && *pattern == HostPattern::Exact((*name).clone())
            })
        });
        let secret = request.secret.clone();
        names
            .map(move |name| (secret.clone(), name.clone()))
            .collect::<Vec<_>>()
    };
    let requests = world.requests().values().map(AsRef::as_ref);
    requests
        .filter(|request| *request.secret.namespace == *namespace)
        .filter(|request| {
            let issuer = request.issuer.as_ref();
            issuer.is_none_or(|issuer| issuer.engine == Engine::Acme)
        })
        .flat_map(of)
        .collect()
}

/// Whether an object uses Secrets or Services of the namespaces that begin so, or, for A's sake,
/// attaches to listeners there.
fn refers_into(object: &Object, prefix: &str) -> bool {
    let inside = |name: &ObjectName| name.namespace.starts_with(prefix);
    match object {
        Object::TlsRoute(_) | Object::HttpRoute(_) | Object::PortRoute(_) => {
            object.as_route().is_some_and(|route| {
                let parents = route.parents().iter();
                route.all_backends().any(|b| inside(&b.reference.target))
                    || parents
                        .filter_map(|p| p.parent(&route.name().namespace))
                        .any(|p| prefix == "a" && inside(p.name()))
            })
        }
        Object::ListenerSet(set) => set
            .listeners
            .iter()
            .filter_map(|l| l.tls.as_ref())
            .any(|tls| tls.certificates.iter().any(|c| inside(&c.target))),
        // What a Gateway has of A's counts for everybody's listeners on it.
        Object::Gateway(gateway) => {
            let authorities = gateway.tls.validations().flat_map(|v| &v.authorities);
            let mut references = gateway.tls.client_certificate.iter().chain(authorities);
            references.any(|reference| inside(&reference.target))
        }
        _ => false,
    }
}

/// With direct binds all Gateways share the machine's ports, and a tenant that opens one on an older
/// Gateway takes it from the younger: this property is about one Gateway.
fn on_gateway_one(object: &Object) -> bool {
    match object {
        Object::Gateway(gateway) => &*gateway.name.name == "one",
        Object::ListenerSet(set) => set.gateway.as_ref().is_some_and(|g| &*g.name == "one"),
        _ => true,
    }
}

/// (Gateway, port) → hostnames and protocols in use by those objects. A name for which a route asks is in use on every port.
type Names = Vec<(Option<ObjectName>, Listener)>;

fn names_of(objects: &BTreeMap<ObjectKey, Object>, which: impl Fn(&ObjectKey) -> bool) -> Names {
    let of_these = || objects.iter().filter(|(key, _)| which(key));
    let asked = of_these().filter_map(|(_, object)| object.as_route());
    let asked = asked.flat_map(|route| {
        let names = route.hostnames().iter().map(|(_, name)| name.clone());
        names.collect::<Vec<HostPattern>>()
    });
    let asked = asked
        .filter(|name| *name != HostPattern::Any)
        .map(|hostname| {
            let listener = Listener {
                hostname,
                port: None,
                ..passthrough("", "")
            };
            (None, listener)
        });
    of_these()
        .filter_map(|(_, object)| match object {
            Object::ListenerSet(set) => Some((set.gateway.clone(), &set.listeners)),
            Object::Gateway(gateway) => Some((Some(gateway.name.clone()), &gateway.listeners)),
            _ => None,
        })
        .flat_map(|(gateway, listeners)| {
            listeners
                .iter()
                .map(move |listener| (gateway.clone(), listener.clone()))
        })
        .chain(asked)
        .collect()
}

/// A set takes a name of B's if it claims the same one, or some inside of it that B's wildcard would serve, or a wildcard
/// around it (which closes the name if the set is older), or makes a port speak something else (which takes all of them); a
/// route, if it asks for the same name.
fn takes_none_of(object: &Object, names: &Names) -> bool {
    if let Some(route) = object.as_route() {
        let mut asked = route.hostnames().iter();
        return asked.all(|(_, asked)| {
            let mut theirs = names.iter();
            theirs.all(|(_, theirs)| {
                theirs.hostname.intersect(asked).as_ref() != Some(&theirs.hostname)
            })
        });
    }
    let Object::ListenerSet(set) = object else {
        return true;
    };
    let same = |listener: &Listener| {
        names.iter().any(|(_, theirs)| {
            let has_names = !matches!(theirs.protocol, Protocol::Tcp | Protocol::Udp);
            let shared = theirs.hostname.intersect(&listener.hostname);
            theirs.hostname == listener.hostname
                || (has_names && shared.as_ref() == Some(&listener.hostname))
                || (listener.hostname.is_wildcard() && shared.as_ref() == Some(&theirs.hostname))
        })
    };
    if set.listeners.iter().any(same) {
        return false;
    }
    set.listeners.iter().all(|listener| {
        names
            .iter()
            .filter(|(_, theirs)| theirs.port == listener.port)
            .all(|(gateway, theirs)| {
                *gateway == set.gateway
                    && listener.protocol == theirs.protocol
                    && matches!(theirs.protocol, Protocol::Tls | Protocol::Http)
                    && theirs.hostname != listener.hostname
            })
    })
}

/// The properties above are worth something only if routes of each kind come into force in some of the
/// histories.
#[test]
fn histories_are_about_routes_of_each_kind() {
    let mut runner = TestRunner::deterministic();
    let mut counts = BTreeMap::new();
    for _ in 0..100 {
        let history = a_history().new_tree(&mut runner).expect("a history");
        let mut world = translated(final_objects(&history.current()).into_values());
        world.apply(final_inputs(&history.current()));
        let kinds: BTreeSet<&str> = world
            .resources()
            .keys()
            .map(|key| key.kind().label())
            .collect();
        for kind in kinds {
            *counts.entry(kind).or_insert(0) += 1;
        }
    }
    for kind in [
        "listener",
        "tlsroute",
        "httproute",
        "tcproute",
        "backend",
        "challenge",
    ] {
        let count = counts.get(kind).copied().unwrap_or_default();
        assert!(count >= 20, "{kind} in {count} of 100: {counts:?}");
    }
}
