//! Objects that belong together come by separate watches, in any order. Whatever the order, a request for
//! what the configuration before and after an edit both serve is served by everything that is published on
//! the way, and a new route is not published before what it leads to.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use vestibule_model::gateway::Listener;
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::ObjectKey;
use vestibule_model::object::Object;
use vestibule_model::protocol::Protocol;
use vestibule_model::selector::NamespaceScope;
use vestibule_operator::publish::settle::{GRACE, Present, Settle};
use vestibule_operator::translate::{Change, Translator};
use vestibule_operator_testing::http::{Rule, http_route};
use vestibule_operator_testing::objects::*;
use vestibule_operator_testing::tls::{Trusts, config_map, policy};
use vestibule_stream::proto::{self, resource};
use vestibule_stream::{Encoded, ResourceKey, ResourceKind};
use vestibule_test_support::properties::keep_failures;

/// Changes in the order of each watch: between watches there is none.
type Watches = Vec<Vec<Change>>;

/// What the proxies have.
struct World {
    translator: Translator,
    settle: Settle,
    /// Whether changes settle; without, everything is published at once.
    settles: bool,
    now: Instant,
    published: BTreeMap<ResourceKey, Encoded>,
}

impl World {
    fn new(objects: &[Object], settles: bool) -> Self {
        let mut world = Self {
            translator: Translator::new(settings()),
            settle: Settle::default(),
            settles: false,
            now: Instant::now(),
            published: BTreeMap::new(),
        };
        world.see(objects.iter().cloned().map(Change::Put).collect());
        world.settles = settles;
        world
    }

    fn see(&mut self, changes: Vec<Change>) {
        self.settle.add(self.translator.apply(changes).resources);
        let due = if self.settles {
            let published = self.published.clone();
            let present = Present {
                published: &|key| published.get(key).cloned(),
                waits: &|_, _| false,
                reads: &|key| self.translator.is_being_read(key),
                unanswered: &|_| false,
                uneven_until: None,
            };
            self.settle.due(self.now, &present)
        } else {
            self.settle.all()
        };
        for (key, resource) in due {
            match resource {
                Some(resource) => self.published.insert(key, resource),
                None => self.published.remove(&key),
            };
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.see(Vec::new());
    }

    fn get(&self, kind: ResourceKind, name: &str) -> Option<resource::Resource> {
        self.published.get(&ResourceKey::new(kind, name))?.decode()
    }

    /// Backends that a published route leads to, and that are not there.
    fn missing(&self) -> Vec<String> {
        let routes = self.published.keys();
        let routes = routes.filter(|key| key.kind() == ResourceKind::HttpRoute);
        let mut missing = Vec::new();
        for key in routes {
            let Some(resource::Resource::HttpRoute(route)) = self.get(key.kind(), &key.name) else {
                continue;
            };
            for backend in route.rules.iter().flat_map(|rule| &rule.backends) {
                let name = &backend.backend;
                if !name.is_empty() && self.get(ResourceKind::Backend, name).is_none() {
                    missing.push(format!("{name} of {key}"));
                }
            }
        }
        missing
    }

    /// Whether requests for the route get an answer of a backend, or why not.
    fn serves(&self) -> Result<(), String> {
        let Some(resource::Resource::HttpRoute(route)) = self.get(ResourceKind::HttpRoute, "a/one")
        else {
            return Err("no route".into());
        };
        let attachment = route.attachments.first().ok_or("not attached")?;
        let listener = self.get(ResourceKind::Listener, &attachment.listener);
        let Some(resource::Resource::Listener(listener)) = listener else {
            return Err("no listener".into());
        };
        if let Some(proto::listener::Protocol::Http(http)) = &listener.protocol
            && let Some(terminate) = &http.terminate
        {
            let mut certificates = terminate.certificates.iter();
            let there = |name: &String| {
                let key = ResourceKey::new(ResourceKind::Certificate, name.clone());
                self.published.contains_key(&key)
            };
            if !certificates.any(there) {
                return Err("no certificate".into());
            }
        }
        for backend in route.rules.iter().flat_map(|rule| &rule.backends) {
            let found = self.get(ResourceKind::Backend, &backend.backend);
            let Some(resource::Resource::Backend(found)) = found else {
                return Err(format!("no backend {:?}", backend.backend));
            };
            if found.endpoints.is_empty() {
                return Err(format!("no endpoints of {}", backend.backend));
            }
            if let Some(tls) = &found.tls {
                let bundle = |name: &String| {
                    let key = ResourceKey::new(ResourceKind::TrustBundle, name.clone());
                    self.published.contains_key(&key)
                };
                if tls.invalid || !tls.trust_bundles.iter().any(bundle) {
                    return Err("TLS without trust".into());
                }
            } else if backend.backend.starts_with("b/tls") {
                return Err("plaintext to a backend that speaks TLS".into());
            }
        }
        Ok(())
    }
}

/// Every order in which the watches may show their changes.
fn orders(watches: &Watches) -> Vec<Vec<Change>> {
    if watches.iter().all(Vec::is_empty) {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (index, watch) in watches.iter().enumerate() {
        let Some((first, rest)) = watch.split_first() else {
            continue;
        };
        let mut left = watches.clone();
        left[index] = rest.to_vec();
        all.extend(orders(&left).into_iter().map(|mut order| {
            order.insert(0, first.clone());
            order
        }));
    }
    all
}

/// In every order the route is served after each change; without settling it is not in some. (An edit that
/// could never be seen to fail would show nothing.)
fn is_served_throughout(objects: &[Object], edit: &Watches) {
    assert_eq!(World::new(objects, true).serves(), Ok(()), "before");
    let mut failures = 0;
    for order in orders(edit) {
        let mut bare = World::new(objects, false);
        let mut world = World::new(objects, true);
        for (step, change) in order.iter().enumerate() {
            bare.see(vec![change.clone()]);
            failures += usize::from(bare.serves().is_err());
            world.see(vec![change.clone()]);
            // Events of one moment.
            world.pass(GRACE / 100);
            assert_eq!(world.serves(), Ok(()), "after {:?}", &order[..=step]);
        }
        assert_eq!(bare.serves(), Ok(()), "after everything");
        world.pass(GRACE);
        assert_eq!(world.settle.deadline(), None);
        let hashes = |world: &World| -> Vec<_> {
            let published = world.published.iter();
            published
                .map(|(key, it)| (key.clone(), it.hash()))
                .collect()
        };
        assert_eq!(hashes(&world), hashes(&bare), "in the end");
    }
    assert!(failures > 0, "this edit shows nothing");
}

fn put(object: Object) -> Change {
    Change::Put(object)
}

fn gone(object: &Object) -> Change {
    Change::Remove(object.key())
}

fn web(tls: bool) -> Listener {
    if tls {
        let certificate = Tls::Terminate("b".into(), "one".into());
        listener(
            "web",
            8443,
            Protocol::Https,
            "*.example.com",
            Some(certificate),
        )
    } else {
        listener("web", 80, Protocol::Http, "*.example.com", None)
    }
}

/// A Gateway, and a route for one of its names that leads to these Services of namespace `b`.
fn base(tls: bool) -> Vec<Object> {
    let mut web = web(tls);
    web.allowed_namespaces = NamespaceScope::All;
    vec![
        our_class(),
        gateway("one", vec![web], NamespaceScope::All),
        grant("b", "routes", ("HTTPRoute", "a"), "Service"),
    ]
}

fn to(service: &str, port: u16) -> Object {
    http_route(
        ("a", "one", 0),
        vec![parent("Gateway", Some("platform"), "one", None)],
        &["x.example.com"],
        &[Rule::Plain],
        &[backend("b", service, port, 1)],
    )
}

/// A Service whose port has another name, and its slice.
fn renamed(object: Object) -> Object {
    match object {
        Object::Service(mut service) => {
            for port in &mut service.ports {
                port.name = format!("{}-new", port.name).into();
            }
            Object::Service(service)
        }
        Object::EndpointSlice(mut slice) => {
            for port in &mut slice.ports {
                port.name = format!("{}-new", port.name).into();
            }
            Object::EndpointSlice(slice)
        }
        other => other,
    }
}

fn with(mut objects: Vec<Object>, more: impl IntoIterator<Item = Object>) -> Vec<Object> {
    objects.extend(more);
    objects
}

fn app() -> [Object; 3] {
    [
        to("app", 1),
        service("b", "app", &[1]),
        slice("b", "app", 0, 1, &[1]),
    ]
}

/// Whether a request for the route's name is served, or nobody has the name.
fn is_clean(world: &World) -> bool {
    let route = ResourceKey::new(ResourceKind::HttpRoute, "a/one");
    world.serves().is_ok() || !world.published.contains_key(&route)
}

#[test]
fn a_new_route_is_published_with_what_it_leads_to() {
    let edit: Watches = vec![
        vec![put(to("app", 1))],
        vec![put(service("b", "app", &[1]))],
        vec![put(slice("b", "app", 0, 1, &[1]))],
        vec![put(grant("b", "routes", ("HTTPRoute", "a"), "Service"))],
    ];
    let mut objects = base(false);
    objects.pop();
    let mut failures = 0;
    for order in orders(&edit) {
        let mut bare = World::new(&objects, false);
        let mut world = World::new(&objects, true);
        for change in order {
            bare.see(vec![change.clone()]);
            failures += usize::from(!is_clean(&bare));
            world.see(vec![change]);
            assert!(is_clean(&world), "{:?}", world.serves());
        }
        assert_eq!(world.serves(), Ok(()), "at once when all of it is there");
    }
    assert!(failures > 0);
}

#[test]
fn a_route_goes_over_to_another_service() {
    let edit = vec![
        vec![put(to("new", 2))],
        vec![
            put(service("b", "new", &[2])),
            gone(&service("b", "app", &[1])),
        ],
        vec![
            put(slice("b", "new", 0, 2, &[2])),
            gone(&slice("b", "app", 0, 1, &[1])),
        ],
    ];
    is_served_throughout(&with(base(false), app()), &edit);
}

#[test]
fn a_port_of_a_service_gets_another_name_or_number() {
    let objects = with(base(false), app());
    let edit = vec![
        vec![put(renamed(service("b", "app", &[1])))],
        vec![put(renamed(slice("b", "app", 0, 1, &[1])))],
    ];
    is_served_throughout(&objects, &edit);
    let edit = vec![
        vec![put(service("b", "app", &[2]))],
        vec![put(slice("b", "app", 0, 2, &[1]))],
        vec![put(to("app", 2))],
    ];
    is_served_throughout(&objects, &edit);
}

#[test]
fn slices_are_made_anew_and_merged() {
    let objects = with(base(false), app());
    let edit = vec![vec![
        gone(&slice("b", "app", 0, 1, &[1])),
        put(slice("b", "app", 1, 1, &[1])),
    ]];
    is_served_throughout(&objects, &edit);
    // What one slice has moves to the other one, and back.
    let edit = vec![vec![
        put(slice("b", "app", 0, 1, &[])),
        put(slice("b", "app", 1, 1, &[1])),
        put(slice("b", "app", 1, 1, &[])),
        put(slice("b", "app", 0, 1, &[1])),
    ]];
    is_served_throughout(&objects, &edit);
}

#[test]
fn a_grant_is_replaced() {
    let edit = vec![vec![
        gone(&grant("b", "routes", ("HTTPRoute", "a"), "Service")),
        put(grant("b", "others", ("HTTPRoute", "a"), "Service")),
    ]];
    is_served_throughout(&with(base(false), app()), &edit);
}

#[test]
fn a_policy_and_what_it_trusts_are_replaced() {
    let safe = [
        to("tls", 1),
        service("b", "tls", &[1]),
        slice("b", "tls", 0, 1, &[1]),
        config_map("b", "one", Trusts::Pair(0)),
        policy("b", "one", 0, ("tls", None), Some("one")),
    ];
    let objects = with(base(false), safe);
    let edit = vec![
        vec![
            gone(&policy("b", "one", 0, ("tls", None), Some("one"))),
            put(policy("b", "two", 0, ("tls", None), Some("two"))),
        ],
        vec![
            gone(&config_map("b", "one", Trusts::Pair(0))),
            put(config_map("b", "two", Trusts::Pair(0))),
        ],
    ];
    is_served_throughout(&objects, &edit);
}

#[test]
fn the_certificate_of_a_listener_and_the_right_to_it_are_replaced() {
    let objects = with(
        with(base(true), app()),
        [
            secret("b", "one", Holds::Pair(0)),
            grant("b", "secrets", ("Gateway", "platform"), "Secret"),
        ],
    );
    let edit = vec![
        vec![
            gone(&secret("b", "one", Holds::Pair(0))),
            put(secret("b", "one", Holds::Pair(1))),
        ],
        vec![
            gone(&grant("b", "secrets", ("Gateway", "platform"), "Secret")),
            put(grant("b", "others", ("Gateway", "platform"), "Secret")),
        ],
    ];
    is_served_throughout(&objects, &edit);
}

#[test]
fn the_last_pod_serves_until_it_ends() {
    let mut world = World::new(&with(base(false), app()), true);
    let Object::EndpointSlice(mut slice) = slice("b", "app", 0, 1, &[1, 2]) else {
        unreachable!()
    };
    slice.terminating = slice.addresses.split_off(1);
    world.see(vec![put(Object::EndpointSlice(slice.clone()))]);
    let endpoints = |world: &World| match world.get(ResourceKind::Backend, "b/app:1") {
        Some(resource::Resource::Backend(backend)) => backend.endpoints,
        _ => Vec::new(),
    };
    assert_eq!(endpoints(&world).len(), 1, "one is ready, so that alone");
    let last = std::mem::take(&mut slice.addresses);
    slice.terminating = last;
    world.see(vec![put(Object::EndpointSlice(slice.clone()))]);
    assert_eq!(world.settle.deadline(), None);
    assert_eq!(endpoints(&world).len(), 1, "it terminates and serves");
    slice.terminating.clear();
    world.see(vec![put(Object::EndpointSlice(slice))]);
    world.pass(GRACE);
    assert_eq!(endpoints(&world), []);
}

/// A change of one tenant that waits does not delay a change of another one.
#[test]
fn change_of_one_tenant_does_not_wait_for_that_of_another() {
    let mut world = World::new(&with(base(false), app()), true);
    let dangling = http_route(
        ("c", "one", 0),
        vec![parent("Gateway", Some("platform"), "one", None)],
        &["y.example.com"],
        &[Rule::Plain],
        &[backend("c", "nothing", 1, 1)],
    );
    let key = ResourceKey::new(ResourceKind::HttpRoute, "a/one");
    let before = world.published[&key].hash();
    let mut edited = to("app", 1);
    let Object::HttpRoute(route) = &mut edited else {
        unreachable!()
    };
    route.hostnames[0].1 = HostPattern::parse("z.example.com").expect("a pattern");
    world.see(vec![put(dangling), put(edited)]);
    assert_ne!(world.published[&key].hash(), before);
    assert!(world.get(ResourceKind::HttpRoute, "c/one").is_none());
    world.pass(GRACE);
    assert!(world.get(ResourceKind::HttpRoute, "c/one").is_some());
}

/// Changes of everything that a route depends on.
fn any_change() -> impl Strategy<Value = Change> {
    let objects = vec![
        to("app", 1),
        to("app", 2),
        to("tls", 1),
        to("nothing", 1),
        service("b", "app", &[1]),
        service("b", "app", &[2]),
        renamed(service("b", "app", &[1])),
        service("b", "tls", &[1]),
        slice("b", "app", 0, 1, &[1, 2]),
        slice("b", "app", 0, 1, &[]),
        slice("b", "app", 0, 2, &[1]),
        slice("b", "app", 1, 1, &[1]),
        renamed(slice("b", "app", 1, 1, &[1])),
        slice("b", "tls", 0, 1, &[1]),
        config_map("b", "one", Trusts::Pair(0)),
        policy("b", "one", 0, ("tls", None), Some("one")),
        policy("b", "one", 0, ("tls", None), Some("two")),
        grant("b", "routes", ("HTTPRoute", "a"), "Service"),
        grant("b", "others", ("HTTPRoute", "a"), "Service"),
        grant("b", "secrets", ("Gateway", "platform"), "Secret"),
        secret("b", "one", Holds::Pair(0)),
        gateway("one", vec![web(true)], NamespaceScope::All),
    ];
    (prop::sample::select(objects), prop::bool::weighted(0.7)).prop_map(|(object, there)| {
        if there { put(object) } else { gone(&object) }
    })
}

proptest! {
    #![proptest_config(keep_failures())]

    /// Whatever happens, a route leads to no backend that is not there, and in the end everything is
    /// published as it was translated.
    #[test]
    fn published_resources_always_fit_together_and_are_complete_in_the_end(
        steps in prop::collection::vec((any_change(), 0_u32..4), 1..40),
    ) {
        let mut world = World::new(&with(base(true), app()), true);
        for (change, thirds) in steps {
            world.see(vec![change]);
            prop_assert_eq!(world.missing(), Vec::<String>::new());
            world.pass(GRACE / 3 * thirds);
            prop_assert_eq!(world.missing(), Vec::<String>::new());
        }
        // What is held for another one waits no longer than that.
        for _ in 0..4 {
            world.pass(GRACE);
        }
        prop_assert_eq!(world.settle.deadline(), None);
        prop_assert!(world.settle.is_empty());
        let hashes = |all: &mut dyn Iterator<Item = &Encoded>| -> Vec<_> {
            all.map(|it| (it.key().clone(), it.hash())).collect()
        };
        let translated = hashes(&mut world.translator.resources().values());
        prop_assert_eq!(hashes(&mut world.published.values()), translated);
    }

    /// A source that was looked for and is not there is like one that was never put, whatever happens in between.
    #[test]
    fn translator_that_looked_for_every_source_translates_as_if_all_were_known(
        steps in prop::collection::vec(any_change(), 1..40),
    ) {
        let mut known = Translator::new(settings());
        let mut reading = Translator::new(settings()).reading_sources();
        let start = with(base(true), app()).into_iter().map(Change::Put);
        for step in std::iter::once(start.collect()).chain(steps.into_iter().map(|it| vec![it])) {
            known.apply(step.clone());
            let mut wanted = reading.apply(step).readers;
            while !wanted.is_empty() {
                let sources = wanted.into_iter().map(|(_, source)| source);
                let absent = sources.filter(|source| reading.waits_for(source)).map(Change::Absent);
                let absent: Vec<Change> = absent.collect();
                wanted = reading.apply(absent).readers;
            }
            let waits: Vec<_> = reading.sources().filter(|it| reading.waits_for(it)).collect();
            prop_assert_eq!(waits, Vec::<&ObjectKey>::new(), "nobody was asked for them");
            prop_assert_eq!(reading.resources(), known.resources());
            prop_assert_eq!(reading.statuses(), known.statuses());
            prop_assert_eq!(reading.findings(), known.findings());
        }
    }
}
