use std::cell::{Cell, RefCell};

use proptest::prelude::*;
use vestibule_stream::Resource;
use vestibule_stream::proto::{Attachment, Backend, Endpoint, RouteHostname, TlsRoute};
use vestibule_test_support::properties::quick;

use super::*;

/// The published resources, and the changes that wait.
struct World {
    now: Instant,
    published: BTreeMap<ResourceKey, Encoded>,
    settle: Settle,
    waits: bool,
    /// Certificates and trust bundles that are being read.
    reads: BTreeSet<ResourceKey>,
    /// Those about which the API server does not answer.
    unanswered: BTreeSet<ResourceKey>,
    uneven_until: Option<Instant>,
    /// Whether each pass judges all that waits.
    judges_all: bool,
    /// How often it was asked for a published resource.
    asked: Cell<usize>,
    /// How often the last pass asked about each certificate and trust bundle, whether it is being read.
    asked_about: BTreeMap<ResourceKey, usize>,
}

impl World {
    fn new() -> Self {
        Self {
            now: Instant::now(),
            published: BTreeMap::new(),
            settle: Settle::default(),
            waits: false,
            reads: BTreeSet::new(),
            unanswered: BTreeSet::new(),
            uneven_until: None,
            judges_all: false,
            asked: Cell::new(0),
            asked_about: BTreeMap::new(),
        }
    }

    /// Publishes what is due after these changes, and returns its names.
    fn put(&mut self, changes: Vec<(ResourceKey, Option<Encoded>)>) -> Vec<String> {
        self.settle.add(changes);
        if self.judges_all {
            let all = self.settle.pending.keys().cloned();
            self.settle.touched.extend(all);
        }
        let (published, waits) = (self.published.clone(), self.waits);
        let (reads, unanswered) = (self.reads.clone(), self.unanswered.clone());
        let questions = [(); 2].map(|()| RefCell::new(BTreeMap::<ResourceKey, usize>::new()));
        let note = |question: usize, key: &ResourceKey| {
            let mut asked = questions[question].borrow_mut();
            *asked.entry(key.clone()).or_default() += 1;
        };
        let due = self.settle.due(
            self.now,
            &Present {
                published: &|key| {
                    self.asked.set(self.asked.get() + 1);
                    published.get(key).cloned()
                },
                waits: &|_, _| waits,
                reads: &|key| {
                    note(0, key);
                    reads.contains(key)
                },
                unanswered: &|key| {
                    note(1, key);
                    unanswered.contains(key)
                },
                uneven_until: self.uneven_until,
            },
        );
        let [about_reads, about_answers] = questions.map(RefCell::into_inner);
        assert_eq!(about_reads, about_answers);
        assert!(
            about_reads.values().all(|times| *times == 1),
            "{about_reads:?}"
        );
        self.asked_about = about_reads;
        let names = due.keys().map(|key| key.name.clone()).collect();
        for (key, resource) in due {
            match resource {
                Some(resource) => self.published.insert(key, resource),
                None => self.published.remove(&key),
            };
        }
        names
    }

    /// Lets time pass, and returns the names of what is then published.
    fn pass(&mut self, time: Duration) -> Vec<String> {
        self.now += time;
        self.put(Vec::new())
    }
}

const NOTHING: [&str; 0] = [];

fn encoded(name: &str, resource: resource::Resource) -> (ResourceKey, Option<Encoded>) {
    let encoded = Encoded::new(&Resource::new(name.to_owned(), resource)).expect("a resource");
    (encoded.key().clone(), Some(encoded))
}

fn gone((key, _): (ResourceKey, Option<Encoded>)) -> (ResourceKey, Option<Encoded>) {
    (key, None)
}

fn backend(name: &str, endpoints: u32) -> (ResourceKey, Option<Encoded>) {
    let endpoint = |port| Endpoint {
        address: "192.0.2.1".into(),
        port: port + 1,
    };
    let backend = Backend {
        endpoints: (0..endpoints).map(endpoint).collect(),
        ..Backend::default()
    };
    encoded(name, resource::Resource::Backend(backend))
}

fn tls(name: &str, tls: Option<proto::BackendTls>) -> (ResourceKey, Option<Encoded>) {
    let endpoint = Endpoint {
        address: "192.0.2.1".into(),
        port: 1,
    };
    let backend = Backend {
        endpoints: vec![endpoint],
        tls,
        ..Backend::default()
    };
    encoded(name, resource::Resource::Backend(backend))
}

/// A route for these names that leads to these backends.
fn route(hostnames: &[&str], backends: &[&str]) -> (ResourceKey, Option<Encoded>) {
    named_route("route", hostnames, backends)
}

fn named_route(
    name: &str,
    hostnames: &[&str],
    backends: &[&str],
) -> (ResourceKey, Option<Encoded>) {
    let hostname = |name: &&str| RouteHostname {
        r#match: (*name).to_owned(),
        rank: (*name).to_owned(),
        shared: false,
        paths: Vec::new(),
    };
    let backend = |name: &&str| proto::WeightedBackend {
        backend: (*name).to_owned(),
        weight: 1,
    };
    let route = TlsRoute {
        attachments: vec![Attachment {
            listener: "l".into(),
            hostnames: hostnames.iter().map(hostname).collect(),
        }],
        backends: backends.iter().map(backend).collect(),
        ..TlsRoute::default()
    };
    encoded(name, resource::Resource::TlsRoute(route))
}

/// An HTTPRoute with a rule that has these filters and leads to the backend `a`.
fn filtered(filters: Vec<http_filter::Filter>) -> (ResourceKey, Option<Encoded>) {
    let filters = filters.into_iter().map(|filter| proto::HttpFilter {
        filter: Some(filter),
    });
    let rule = proto::HttpRule {
        filters: filters.collect(),
        backends: vec![proto::HttpBackend {
            backend: "a".into(),
            weight: 1,
            filters: Vec::new(),
        }],
        ..proto::HttpRule::default()
    };
    let route = proto::HttpRoute {
        rules: vec![rule],
        ..proto::HttpRoute::default()
    };
    encoded("route", resource::Resource::HttpRoute(route))
}

fn authorized_by(backend: &str) -> http_filter::Filter {
    http_filter::Filter::ExternalAuth(proto::ExternalAuth {
        backend: backend.into(),
        ..proto::ExternalAuth::default()
    })
}

#[test]
fn a_route_waits_for_the_server_that_authorizes_its_requests() {
    let fail = || http_filter::Filter::Fail(500);
    let mut world = World::new();
    world.put(vec![backend("a", 1), filtered(vec![])]);
    // The Service of the server is not known yet, and then it has no endpoints.
    assert_eq!(world.put(vec![filtered(vec![fail()])]), NOTHING);
    assert_eq!(world.pass(GRACE / 4), NOTHING);
    let asks = || filtered(vec![authorized_by("auth")]);
    assert_eq!(world.put(vec![asks(), backend("auth", 0)]), ["auth"]);
    assert_eq!(
        world.put(vec![backend("auth", 1)]),
        ["auth", "route"],
        "now requests can pass"
    );
    // The server goes, together with what lets the route refer to it.
    let edit = vec![filtered(vec![fail()]), gone(backend("auth", 1))];
    assert_eq!(world.put(edit), NOTHING);
    assert_eq!(world.pass(GRACE), ["auth", "route"]);
    // A redirect that comes first answers all requests.
    let redirect = http_filter::Filter::Redirect(proto::HttpRedirect::default());
    let behind = filtered(vec![redirect, authorized_by("")]);
    assert_eq!(world.put(vec![behind]), ["route"]);
}

#[test]
fn changes_that_break_no_remaining_route_are_published_at_once() {
    let mut world = World::new();
    assert_eq!(
        world.put(vec![backend("a", 1), route(&["x"], &["a"])]),
        ["route", "a"]
    );
    // One of two endpoints goes, a route moves to another backend, and everything goes. Somebody
    // wants each of these.
    assert_eq!(world.put(vec![backend("a", 2)]), ["a"]);
    assert_eq!(world.put(vec![backend("a", 1)]), ["a"]);
    assert_eq!(
        world.put(vec![
            gone(backend("a", 1)),
            backend("b", 1),
            route(&["x"], &["b"])
        ]),
        ["route", "a", "b"]
    );
    let all = vec![gone(backend("b", 1)), gone(route(&["x"], &["b"]))];
    assert_eq!(world.put(all), ["route", "b"]);
    assert_eq!(world.settle.deadline(), None);
}

#[test]
fn a_new_route_waits_for_what_it_leads_to() {
    let mut world = World::new();
    // At first its Service is not known, and then its endpoints are not.
    assert_eq!(world.put(vec![route(&["x"], &[""])]), NOTHING);
    let until = world.settle.deadline();
    assert_eq!(world.pass(GRACE / 4), NOTHING);
    assert_eq!(
        world.put(vec![route(&["x"], &["a"]), backend("a", 0)]),
        ["a"]
    );
    assert_eq!(
        world.settle.deadline(),
        until,
        "it waits no longer for that"
    );
    assert_eq!(world.put(vec![backend("a", 1)]), ["route", "a"]);
}

#[test]
fn a_new_route_whose_backend_never_comes_is_published_all_the_same() {
    let mut world = World::new();
    assert_eq!(world.put(vec![route(&["x"], &[""])]), NOTHING);
    assert_eq!(world.pass(GRACE / 2), NOTHING);
    assert_eq!(world.pass(GRACE / 2), ["route"]);
    // When the route is edited again, there is nothing to keep.
    assert_eq!(world.put(vec![route(&["x", "y"], &[""])]), ["route"]);
}

#[test]
fn a_route_is_kept_with_what_it_leads_to() {
    let mut world = World::new();
    world.put(vec![backend("a", 1), route(&["x"], &["a"])]);
    // It moves to a backend whose endpoints are not known yet. No other route uses the former
    // backend.
    let edit = vec![
        gone(backend("a", 1)),
        backend("b", 0),
        route(&["x"], &["b"]),
    ];
    assert_eq!(world.put(edit), ["b"]);
    assert!(world.published.contains_key(&backend("a", 1).0));
    assert_eq!(world.put(vec![backend("b", 1)]), ["route", "a", "b"]);
    assert_eq!(world.published.len(), 2);
}

#[test]
fn a_service_that_goes_takes_the_route_after_the_grace() {
    let mut world = World::new();
    world.put(vec![backend("a", 1), route(&["x"], &["a"])]);
    let edit = vec![gone(backend("a", 1)), route(&["x"], &[""])];
    assert_eq!(world.put(edit), NOTHING);
    // It is back, because of another grant or a new Service, so nothing changes.
    assert_eq!(
        world.put(vec![backend("a", 1), route(&["x"], &["a"])]),
        ["route", "a"]
    );
    let edit = vec![gone(backend("a", 1)), route(&["x"], &[""])];
    assert_eq!(world.put(edit), NOTHING);
    assert_eq!(world.pass(GRACE), ["route", "a"]);
    assert_eq!(world.published.len(), 1);
}

#[test]
fn the_last_endpoint_is_kept_for_the_grace() {
    let mut world = World::new();
    world.put(vec![backend("a", 2)]);
    assert_eq!(world.put(vec![backend("a", 0)]), NOTHING);
    // Another slice replaces the one that went.
    assert_eq!(world.put(vec![backend("a", 1)]), ["a"]);
    assert_eq!(world.put(vec![backend("a", 0)]), NOTHING);
    assert_eq!(world.pass(GRACE), ["a"]);
    assert_eq!(world.settle.deadline(), None);
}

#[test]
fn tls_to_a_backend_is_neither_dropped_nor_broken_for_a_moment() {
    let mut world = World::new();
    let system = proto::BackendTls {
        system_trust: true,
        ..proto::BackendTls::default()
    };
    let good = || Some(system.clone());
    let broken = proto::BackendTls {
        invalid: true,
        ..system.clone()
    };
    let elsewhere = proto::BackendTls {
        trust_bundles: vec!["ca".into()],
        ..proto::BackendTls::default()
    };
    world.put(vec![tls("a", good())]);
    assert_eq!(world.put(vec![tls("a", None)]), NOTHING);
    assert_eq!(world.put(vec![tls("a", Some(broken))]), NOTHING);
    assert_eq!(world.put(vec![tls("a", good())]), ["a"]);
    assert_eq!(world.put(vec![tls("a", None)]), NOTHING);
    assert_eq!(world.pass(GRACE), ["a"]);
    assert_eq!(world.put(vec![tls("a", good())]), ["a"]);
    // This authority has not been read yet.
    assert_eq!(world.put(vec![tls("a", Some(elsewhere))]), NOTHING);
    let bundle = encoded(
        "ca",
        resource::Resource::TrustBundle(proto::TrustBundle::default()),
    );
    assert_eq!(world.put(vec![bundle]), ["a", "ca"]);
}

#[test]
fn a_name_that_a_route_loses_is_never_kept() {
    let mut world = World::new();
    world.put(vec![backend("a", 1), route(&["x", "y"], &["a"])]);
    let edit = vec![gone(backend("a", 1)), route(&["x"], &[""])];
    assert_eq!(world.put(edit), ["route", "a"]);
    let all = vec![backend("a", 1), route(&["x"], &["a"])];
    world.put(all);
    assert_eq!(world.put(vec![gone(route(&["x"], &["a"]))]), ["route"]);
}

#[test]
fn a_listener_and_its_certificate_are_kept_for_the_grace() {
    let listener = |certificates: &[&str]| {
        let terminate = proto::TlsTerminate {
            certificates: certificates.iter().map(ToString::to_string).collect(),
            client_validation: None,
        };
        let http = proto::HttpListener {
            terminate: Some(terminate),
        };
        let listener = proto::Listener {
            protocol: Some(proto::listener::Protocol::Http(http)),
            ..proto::Listener::default()
        };
        encoded("l", resource::Resource::Listener(listener))
    };
    let certificate = || {
        encoded(
            "c",
            resource::Resource::Certificate(proto::Certificate::default()),
        )
    };
    let mut world = World::new();
    world.put(vec![listener(&["c"]), certificate()]);
    // The Secret or the grant for it is replaced.
    assert_eq!(world.put(vec![gone(certificate())]), NOTHING);
    assert_eq!(world.put(vec![certificate()]), ["c"]);
    assert_eq!(world.put(vec![listener(&[])]), NOTHING);
    assert_eq!(world.put(vec![listener(&["c"])]), ["l"]);
    // It moves to a certificate that has not been read yet. The former one is kept until then.
    assert_eq!(world.put(vec![gone(certificate())]), NOTHING);
    world.pass(GRACE / 2);
    assert_eq!(world.put(vec![listener(&["d"])]), NOTHING);
    assert_eq!(world.pass(GRACE / 2), NOTHING);
    let other = encoded(
        "d",
        resource::Resource::Certificate(proto::Certificate::default()),
    );
    assert_eq!(world.put(vec![other]), ["l", "c", "d"]);
    world.put(vec![listener(&["c"]), certificate()]);
    // A removed listener goes at once. One that waits to be recorded under a wider name is kept.
    world.waits = true;
    assert_eq!(world.put(vec![gone(listener(&["c"]))]), NOTHING);
    assert_eq!(world.pass(GRACE), ["l"]);
    world.put(vec![listener(&["c"])]);
    world.waits = false;
    assert_eq!(world.put(vec![gone(listener(&["c"]))]), ["l"]);
}

#[test]
fn everything_is_published_when_it_has_to_be() {
    let mut world = World::new();
    world.put(vec![route(&["x"], &[""])]);
    let route = route(&["x"], &[""]).0;
    let waits = |waits| BTreeMap::from([(route.clone(), waits)]);
    assert_eq!(world.settle.withheld(), waits(true));
    assert_eq!(world.settle.withheld().len(), 0);
    assert_eq!(world.settle.all().len(), 1);
    assert_eq!(world.settle.withheld(), waits(false));
    assert_eq!(world.settle.deadline(), None);
}

fn certificate(name: &str) -> (ResourceKey, Option<Encoded>) {
    let certificate = resource::Resource::Certificate(proto::Certificate::default());
    encoded(name, certificate)
}

/// A listener for HTTPS with these certificates and these authorities for clients.
fn https(name: &str, certificates: &[&str], bundles: &[&str]) -> (ResourceKey, Option<Encoded>) {
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    let validation = proto::ClientValidation {
        trust_bundles: names(bundles),
        ..proto::ClientValidation::default()
    };
    let terminate = proto::TlsTerminate {
        certificates: names(certificates),
        client_validation: Some(validation).filter(|_| !bundles.is_empty()),
    };
    let http = proto::HttpListener {
        terminate: Some(terminate),
    };
    let listener = proto::Listener {
        protocol: Some(proto::listener::Protocol::Http(http)),
        ..proto::Listener::default()
    };
    encoded(name, resource::Resource::Listener(listener))
}

#[test]
fn a_listener_that_comes_to_need_what_is_being_read_stays_until_it_is_read() {
    let mut world = World::new();
    world.put(vec![
        https("l", &["a", "b"], &[]),
        certificate("a"),
        certificate("b"),
    ]);
    // One of its two certificates is replaced, and clients need one from now on.
    let authority = resource::Resource::TrustBundle(proto::TrustBundle::default());
    let authority = encoded("ca", authority);
    world.reads = [certificate("c").0, authority.0.clone()].into();
    let edit = vec![gone(certificate("b")), https("l", &["a", "c"], &["ca"])];
    assert_eq!(world.put(edit), NOTHING);
    // What belongs to others does not wait.
    assert_eq!(world.put(vec![backend("x", 1)]), ["x"]);
    world.reads = [authority.0.clone()].into();
    assert_eq!(world.put(vec![certificate("c")]), ["c"]);
    world.reads.clear();
    assert_eq!(world.put(vec![authority]), ["l", "ca"]);
    assert_eq!(world.pass(GRACE), ["b"]);
    // Whoever names another unread Secret with each edit puts off an edit by the grace of the first.
    for (n, published) in [(0, false), (1, false), (2, true)] {
        let other = format!("d{n}");
        world.reads = [certificate(&other).0].into();
        let due = world.put(vec![https("l", &["a", &other], &[])]);
        assert_eq!(due == ["l"], published, "{due:?}");
        world.now += GRACE / 2;
    }
    // A listener that moves is not kept, and a new one does not wait.
    world.reads = [certificate("e").0].into();
    assert_eq!(world.put(vec![https("new", &["e"], &[])]), ["new"]);
}

fn settings(certificate: &str) -> (ResourceKey, Option<Encoded>) {
    let settings = proto::GatewaySettings {
        backend_certificate: certificate.into(),
        ..proto::GatewaySettings::default()
    };
    encoded("infra/edge", resource::Resource::GatewaySettings(settings))
}

#[test]
fn settings_that_come_to_need_what_is_being_read_stay_until_it_is_read() {
    let mut world = World::new();
    world.put(vec![settings("a/old"), certificate("a/old")]);
    world.reads.insert(certificate_key("a/new"));
    assert_eq!(world.put(vec![settings("a/new")]), NOTHING);
    world.reads.clear();
    let read = world.put(vec![certificate("a/new")]);
    assert_eq!(read, ["a/new", "infra/edge"]);
    // There is nothing to wait for if it does not exist.
    assert_eq!(world.put(vec![settings("a/none")]), ["infra/edge"]);
}

#[test]
fn a_listener_that_is_kept_keeps_the_settings_of_its_gateway() {
    let mut world = World::new();
    let listener = || {
        let listener = proto::Listener {
            gateway: "infra/edge".into(),
            needs_gateway_settings: true,
            ..proto::Listener::default()
        };
        encoded("listener", resource::Resource::Listener(listener))
    };
    world.put(vec![listener(), settings("")]);
    world.waits = true;
    let both = vec![gone(listener()), gone(settings(""))];
    assert_eq!(world.put(both), NOTHING);
    assert_eq!(world.pass(GRACE), ["listener", "infra/edge"]);
}

/// While the API server starts anew, a backend comes to be verified by an authority that has to be read.
#[test]
fn changes_that_need_an_unanswered_read_wait_longer() {
    let verified = |bundle: &str, invalid| proto::BackendTls {
        hostname: "a.test".into(),
        trust_bundles: vec![bundle.into()],
        invalid,
        ..proto::BackendTls::default()
    };
    let bundle = |name: &str| {
        encoded(
            name,
            resource::Resource::TrustBundle(proto::TrustBundle::default()),
        )
    };
    let mut world = World::new();
    world.put(vec![
        route(&["x"], &["a"]),
        tls("a", Some(verified("old", false))),
        bundle("old"),
    ]);
    world.unanswered = [bundle("new").0].into();
    let edit = || vec![gone(bundle("old")), tls("a", Some(verified("new", true)))];
    assert_eq!(world.put(edit()), NOTHING);
    assert_eq!(world.pass(LONGEST * 2), NOTHING);
    // A change that does not need the read waits no longer than before.
    assert_eq!(world.put(vec![backend("b", 1)]), ["b"]);
    assert_eq!(world.put(vec![backend("b", 0)]), NOTHING);
    assert_eq!(world.pass(GRACE), ["b"]);
    world.unanswered.clear();
    let answer = vec![bundle("new"), tls("a", Some(verified("new", false)))];
    assert_eq!(world.put(answer), ["a", "new", "old"]);
    // An answer that it does not exist, and none at all for too long.
    for is_answered in [true, false] {
        world.put(vec![bundle("old"), tls("a", Some(verified("old", false)))]);
        world.unanswered = [bundle("new").0].into();
        assert_eq!(world.put(edit()), NOTHING);
        assert_eq!(world.pass(GRACE * 50), NOTHING);
        if is_answered {
            world.unanswered.clear();
        } else {
            world.now += UNANSWERED;
        }
        assert_eq!(world.pass(Duration::ZERO), ["a", "old"]);
    }
}

/// After the API server was away, the kinds come back one after the other, seconds apart. A route is edited to lead to
/// another port of its Service, and the Service is read later.
#[test]
fn changes_that_break_requests_wait_while_a_watch_is_interrupted() {
    let mut world = World::new();
    world.put(vec![route(&["x"], &["a"]), backend("a", 1)]);
    world.uneven_until = Some(world.now + UNANSWERED);
    let edit = || {
        vec![
            route(&["x"], &["b"]),
            backend("b", 0),
            gone(backend("a", 1)),
        ]
    };
    assert_eq!(world.put(edit()), ["b"]);
    assert_eq!(world.pass(LONGEST * 10), NOTHING);
    // What breaks nothing does not wait.
    assert_eq!(world.put(vec![backend("c", 1)]), ["c"]);
    // The watch goes on, and the rest comes in a moment.
    world.uneven_until = Some(world.now + GRACE);
    assert_eq!(world.pass(GRACE / 2), NOTHING);
    assert_eq!(world.settle.deadline(), world.uneven_until);
    assert_eq!(world.put(vec![backend("b", 1)]), ["route", "a", "b"]);
    // It does not come: the change is what somebody wants.
    world.put(vec![route(&["x"], &["a"]), backend("a", 1)]);
    world.uneven_until = Some(world.now + GRACE * 20);
    assert_eq!(world.put(edit()), ["route", "a"]);
    assert_eq!(world.pass(GRACE * 19), NOTHING);
    assert_eq!(world.pass(GRACE), ["b"]);
    // A watch that stays interrupted has nobody wait for ever.
    world.put(vec![route(&["x"], &["a"]), backend("a", 1)]);
    world.uneven_until = Some(world.now + UNANSWERED * 10);
    assert_eq!(world.put(edit()), ["b"]);
    assert_eq!(world.pass(UNANSWERED.saturating_sub(GRACE)), NOTHING);
    assert_eq!(world.pass(GRACE), ["route", "a"]);
}

#[test]
fn a_certificate_is_withdrawn_whatever_those_do_who_use_it() {
    let mut world = World::new();
    world.put(vec![
        https("l0", &["c"], &[]),
        https("l1", &["c"], &[]),
        certificate("c"),
    ]);
    // Its owner deletes it, while a user edits one listener after the other, so that always one is kept.
    world.put(vec![gone(certificate("c"))]);
    let step = GRACE / 4;
    let mut steps = 0;
    while world.published.contains_key(&certificate("c").0) {
        steps += 1;
        assert!(step * steps <= LONGEST, "it is never withdrawn");
        let other = format!("d{steps}");
        world.reads = [certificate(&other).0].into();
        let name = format!("l{}", steps % 2);
        world.put(vec![https(&name, &["c", &other], &[])]);
        world.pass(step);
    }
    assert!(steps > 4, "the edits put it off");
}

/// After an outage very many edits break something, one after the other.
#[test]
fn a_pass_costs_what_is_new_and_not_all_that_waits() {
    let mut world = World::new();
    let waiting = 300;
    let edit = |n: usize, backends: &[&str]| {
        let (name, host) = (format!("r{n}"), format!("h{n}"));
        named_route(&name, &[&host], backends)
    };
    let cost = |world: &mut World, changes| {
        let before = world.asked.get();
        let due = world.put(changes).len();
        (due, world.asked.get() - before)
    };
    for n in 0..waiting {
        let other = format!("b{n}");
        let (due, asked) = cost(&mut world, vec![edit(n, &["a", &other])]);
        assert_eq!(due, 0);
        assert!(asked < 20, "{asked}");
    }
    assert_eq!(world.settle.len(), waiting);
    // What one of them waits for has only that one judged.
    let (due, asked) = cost(&mut world, vec![backend("b7", 1)]);
    assert_eq!(due, 1);
    assert!(asked < 20, "{asked}");
    let (_, asked) = cost(&mut world, Vec::new());
    assert!(asked < 20, "{asked}");
    // This is what it would cost to judge all of them.
    world.judges_all = true;
    let (due, asked) = cost(&mut world, Vec::new());
    assert_eq!(due, 0);
    assert!(asked > waiting, "{asked}");
    world.judges_all = false;
    // Time has each judged once more.
    world.now += GRACE;
    let (due, asked) = cost(&mut world, Vec::new());
    assert_eq!(due, waiting);
    assert!(asked < waiting * 20, "{asked}");
    assert!(world.settle.is_empty());
    let left = &world.settle;
    assert!(left.needed_by.is_empty() && left.sources.is_empty() && left.ends.is_empty());
    assert!(left.removals.is_empty());
}

/// A certificate for very many listeners is replaced, and the new one takes long to read.
#[test]
fn a_pass_asks_once_about_a_source_however_many_changes_need_it() {
    let mut world = World::new();
    let listeners = |certificate: &str| {
        let one = |n: usize| https(&format!("l{n:02}"), &[certificate], &[]);
        (0..50).map(one).collect::<Vec<_>>()
    };
    world.put(listeners("old"));
    world.put(vec![certificate("old")]);
    let new = certificate_key("new");
    world.reads = [new.clone()].into();
    assert_eq!(world.put(listeners("new")), NOTHING);
    let once = BTreeMap::from([(new.clone(), 1)]);
    assert_eq!(world.asked_about, once);
    // It has not been read yet, and one more change comes to need it.
    assert_eq!(world.pass(GRACE / 8), NOTHING);
    assert_eq!(world.asked_about, once);
    world.put(vec![https("l50", &["old"], &[])]);
    assert_eq!(world.put(vec![https("l50", &["new"], &[])]), NOTHING);
    assert_eq!(world.asked_about, once);
    // It is there, and nothing is asked any more.
    world.reads.clear();
    assert_eq!(world.put(vec![certificate("new")]).len(), 52);
    assert_eq!(world.asked_about, once);
    world.pass(Duration::ZERO);
    assert_eq!(world.asked_about, BTreeMap::new());
    assert!(world.settle.sources.is_empty());
}

/// One step of a history.
#[derive(Debug, Clone)]
enum Step {
    Put(Vec<(ResourceKey, Option<Encoded>)>),
    Pass(u32),
    Waits(bool),
    Reads(BTreeSet<ResourceKey>),
    Unanswered(BTreeSet<ResourceKey>),
    UnevenFor(Option<u32>),
}

fn a_change() -> impl Strategy<Value = (ResourceKey, Option<Encoded>)> {
    let name = |names: &'static [&'static str]| prop::sample::select(names);
    let some = |names: &'static [&'static str]| prop::sample::subsequence(names, 0..=names.len());
    let bundle = |name: &str| {
        let bundle = resource::Resource::TrustBundle(proto::TrustBundle::default());
        encoded(name, bundle)
    };
    let with_trust = |bundles: Vec<&str>, invalid| proto::BackendTls {
        trust_bundles: bundles.iter().map(ToString::to_string).collect(),
        invalid,
        ..proto::BackendTls::default()
    };
    let change = prop_oneof![
        3 => (name(&["r", "s"]), some(&["x", "y"]), some(&["a", "b", "c", ""]))
            .prop_map(|(name, hosts, backends)| named_route(name, &hosts, &backends)),
        2 => (name(&["a", "b", "c"]), 0..3u32).prop_map(|(name, count)| backend(name, count)),
        2 => (name(&["a", "b", "c"]), some(&["p", "q"]), any::<bool>())
            .prop_map(move |(name, bundles, bad)| tls(name, Some(with_trust(bundles, bad)))),
        1 => name(&["p", "q"]).prop_map(bundle),
        1 => name(&["m", "n"]).prop_map(certificate),
        2 => (name(&["l", "k"]), some(&["m", "n"]), some(&["p", "q"]))
            .prop_map(|(name, certificates, bundles)| https(name, &certificates, &bundles)),
    ];
    (change, prop::bool::weighted(0.3)).prop_map(
        |(change, is_gone)| {
            if is_gone { gone(change) } else { change }
        },
    )
}

fn some_sources() -> impl Strategy<Value = BTreeSet<ResourceKey>> {
    let all = vec![
        certificate_key("m"),
        certificate_key("n"),
        bundle_key("p"),
        bundle_key("q"),
    ];
    let most = all.len();
    prop::sample::subsequence(all, 0..=most).prop_map(|some| some.into_iter().collect())
}

fn a_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => prop::collection::vec(a_change(), 1..4).prop_map(Step::Put),
        6 => (0..9u32).prop_map(Step::Pass),
        1 => any::<bool>().prop_map(Step::Waits),
        2 => some_sources().prop_map(Step::Reads),
        2 => some_sources().prop_map(Step::Unanswered),
        1 => prop::option::of(0..200u32).prop_map(Step::UnevenFor),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(quick(512)))]

    /// Whoever judges only what is new publishes the same as whoever judges all that waits.
    #[test]
    fn changes_that_are_not_judged_again_would_be_judged_the_same(
        steps in prop::collection::vec(a_step(), 1..40)
    ) {
        let mut world = World::new();
        let mut thorough = World::new();
        thorough.judges_all = true;
        thorough.now = world.now;
        let start = world.now;
        for step in steps {
            let mut due = [&mut world, &mut thorough].map(|world| {
                let quarter = GRACE / 4;
                let changes = match step.clone() {
                    Step::Put(changes) => changes,
                    Step::Pass(quarters) => {
                        world.now += quarter * quarters;
                        Vec::new()
                    }
                    Step::Waits(waits) => {
                        world.waits = waits;
                        Vec::new()
                    }
                    Step::Reads(reads) => {
                        world.reads = reads;
                        Vec::new()
                    }
                    Step::Unanswered(unanswered) => {
                        world.unanswered = unanswered;
                        Vec::new()
                    }
                    Step::UnevenFor(quarters) => {
                        world.uneven_until = quarters.map(|n| world.now + quarter * n);
                        Vec::new()
                    }
                };
                let due = world.put(changes);
                let after = |at: Instant| at.duration_since(start);
                let waiting: Vec<ResourceKey> = world.settle.pending.keys().cloned().collect();
                (due, world.settle.deadline().map(after), waiting)
            });
            let [one, other] = &mut due;
            prop_assert_eq!(one, other);
        }
    }
}
