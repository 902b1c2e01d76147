//! From objects to the proxy's table: after every edit, clients get what a plain reading of the
//! specification gives them, and the statuses say so.

mod held;
mod judge;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use proptest::prelude::*;
use vestibule_model::condition::{
    Condition, ConditionType, ListenersStatus, ProgrammedBasis, Truth,
};
use vestibule_model::gateway::Gateway;
use vestibule_model::key::{Kind, ObjectKey, ParentKey};
use vestibule_model::object::Object;
use vestibule_model::policy::{Mode, Policy};
use vestibule_model::protocol::{Protocol, Transport};
use vestibule_model::selector::NamespaceScope;
use vestibule_operator::translate::{Change, Settings, Status, Translator};
use vestibule_operator_testing::objects::*;
use vestibule_proxy::table::{Pick, Route, Snapshot};
use vestibule_test_support::properties::quick;

use held::Held;
use judge::{Answer, Judge, Objects};

const NAMES: [&str; 6] = [
    "example.com",
    "x.example.com",
    "y.example.com",
    "z.x.example.com",
    "own.example.com",
    "elsewhere.org",
];
/// Ports as written, and where `vestibule_operator_testing::objects::settings` binds them.
const PORTS: [(u16, u16); 2] = [(443, 10443), (8443, 8443)];

/// Objects, what they are translated to, and the proxy that holds it.
struct Run {
    objects: Objects,
    translator: Translator,
    proxy: Held,
}

impl Run {
    fn new() -> Self {
        // Routes with wildcards are legal; that some releases refuse them is another test's.
        let policy = Policy {
            mode: Mode::Off,
            ..settings().policy
        };
        Self {
            objects: Objects::new(),
            translator: Translator::new(Settings {
                policy,
                ..settings()
            }),
            proxy: Held::default(),
        }
    }

    fn of(objects: impl IntoIterator<Item = Object>) -> Self {
        let mut run = Self::new();
        run.apply(objects.into_iter().map(Change::Put).collect());
        run
    }

    /// One pass of translation, one batch to the proxy. Gives the names of what the batch had.
    fn apply(&mut self, changes: Vec<Change>) -> BTreeSet<String> {
        for change in &changes {
            match change {
                Change::Put(object) => self.objects.insert(object.key(), object.clone()),
                Change::Remove(key) => self.objects.remove(key),
                other => panic!("{other:?}"),
            };
        }
        let output = self.translator.apply(changes);
        let names = output.resources.keys().map(|key| key.name.clone());
        let names = names.collect();
        self.proxy.take(output.resources);
        names
    }

    fn gateway(&self) -> Option<&Gateway> {
        match self.objects.get(&key(Kind::Gateway, "platform", "one")) {
            Some(Object::Gateway(gateway)) => Some(gateway),
            _ => None,
        }
    }

    fn served(&self, port: u16, name: Option<&str>) -> (Answer, Option<std::sync::Arc<Route>>) {
        let bound = PORTS.iter().find(|(written, _)| *written == port);
        self.proxy.answer(bound.expect("a port").1, name)
    }

    fn status(&self, of: &ObjectKey) -> Option<&ListenersStatus> {
        match self.translator.statuses().get(of)? {
            Status::Listeners(status) => Some(status),
            other => panic!("{other:?}"),
        }
    }

    /// Everything that can be asked, against the plain reading.
    fn check(&self) {
        let Some(gateway) = self.gateway() else {
            for ((port, _), name) in PORTS.iter().flat_map(|p| NAMES.map(|name| (p, name))) {
                assert_eq!(self.served(*port, Some(name)).0, Answer::Nobody);
            }
            return;
        };
        let judge = Judge::new(&self.objects, gateway);
        for (port, _) in PORTS {
            for name in NAMES.map(Some).into_iter().chain([None]) {
                let (answer, route) = self.served(port, name);
                assert_eq!(answer, judge.answer(port, name), "{port} {name:?}");
                if let Some(route) = route {
                    check_backends(&judge, Kind::TlsRoute, self.proxy.snapshot(), &route);
                }
            }
            let bound = PORTS.iter().find(|(written, _)| *written == port);
            for by in Transport::ALL {
                let (answer, route) = self.proxy.port_answer(by, bound.expect("a port").1);
                assert_eq!(answer, judge.port_answer(by, port), "{port} {by:?}");
                if let Some(route) = route {
                    let kind = Kind::of_port_route(by);
                    check_backends(&judge, kind, self.proxy.snapshot(), &route);
                }
            }
        }
        self.check_parents(&judge);
        self.check_routes(&judge);
    }

    /// Gateway and sets: conditions of each listener, lengths of lists, numbers.
    fn check_parents(&self, judge: &Judge<'_>) {
        let mut accepted_sets = 0;
        for object in self.objects.values() {
            let Object::ListenerSet(set) = object else {
                continue;
            };
            let key = object.key();
            let ours = set.gateway.as_ref().is_some_and(|g| *g.name == *"one");
            let status = self.status(&key);
            assert_eq!(status.is_some(), ours, "{key}");
            let Some(status) = status else { continue };
            if !judge.lets_in(set) {
                assert_eq!(status.listeners.len(), 0, "{key}");
                assert_eq!(
                    truth(&status.conditions, ConditionType::Accepted),
                    Some(Truth::False)
                );
                continue;
            }
            let valid = check_listeners(judge, &set.parent_key(), status);
            accepted_sets += usize::from(valid);
            let accepted = truth(&status.conditions, ConditionType::Accepted);
            assert_eq!(accepted == Some(Truth::True), valid, "{key}");
        }
        let gateway = self.gateway().expect("a Gateway");
        let status = self.status(&key(Kind::Gateway, "platform", "one"));
        let status = status.expect("a status");
        check_listeners(judge, &gateway.parent_key(), status);
        assert_eq!(status.attached_listener_sets, accepted_sets);
    }

    /// One entry for each parent that is ours, each judged by itself.
    fn check_routes(&self, judge: &Judge<'_>) {
        for route in judge.routes() {
            let expected: Vec<bool> = judge.attached(route).map(|p| p.accepted()).collect();
            let of = route.key();
            let parents = match self.translator.statuses().get(&of) {
                Some(Status::Route(status)) => status.parents.as_slice(),
                None => &[],
                other => panic!("{other:?}"),
            };
            let said: Vec<bool> = parents
                .iter()
                .map(|p| truth(&p.conditions, ConditionType::Accepted) == Some(Truth::True))
                .collect();
            assert_eq!(said, expected, "{of}");
            let resolved = judge
                .backends(route)
                .iter()
                .all(|(_, there)| there.is_some());
            for parent in parents {
                let refs = truth(&parent.conditions, ConditionType::ResolvedRefs);
                assert_eq!(refs == Some(Truth::True), resolved, "{of}");
            }
        }
    }
}

fn check_backends(judge: &Judge<'_>, kind: Kind, snapshot: &Snapshot, route: &Route) {
    let written = judge
        .routes()
        .find(|written| written.kind() == kind && *written.name().to_string() == *route.key);
    let expected = judge.backends(written.expect("a route that is there"));
    let weighted: Vec<(u32, bool)> = route
        .backends()
        .iter()
        .map(|b| (b.weight, b.is_valid()))
        .collect();
    let plain: Vec<(u32, bool)> = expected.iter().map(|(w, e)| (*w, e.is_some())).collect();
    assert_eq!(weighted, plain, "{}", route.key);
    let mut reached = BTreeSet::new();
    for step in 0..256_u64 {
        reached.insert(
            match route.pick(snapshot, (step << 56) | ((step & 3) << 30)) {
                Pick::Endpoint(SocketAddr::V4(at), _) => format!("{}", at.ip().octets()[3]),
                Pick::Endpoint(at, _) => panic!("the world has no {at}"),
                Pick::InvalidBackend => "invalid".into(),
                Pick::NoEndpoints => "empty".into(),
                Pick::NoWeight => "no weight".into(),
            },
        );
    }
    let mut reachable = BTreeSet::new();
    for (_, endpoints) in expected.iter().filter(|(weight, _)| *weight > 0) {
        match endpoints {
            None => reachable.extend(["invalid".to_owned()]),
            Some(none) if none.is_empty() => reachable.extend(["empty".to_owned()]),
            Some(some) => reachable.extend(some.iter().map(u8::to_string)),
        }
    }
    if reachable.is_empty() {
        reachable.insert("no weight".into());
    }
    assert_eq!(reached, reachable, "{}", route.key);
}

/// Whether one listener at least is valid.
fn check_listeners(judge: &Judge<'_>, parent: &ParentKey, status: &ListenersStatus) -> bool {
    let own: Vec<_> = judge
        .listeners
        .iter()
        .filter(|l| l.parent == *parent)
        .collect();
    assert_eq!(status.listeners.len(), own.len(), "{parent}");
    for (said, judged) in status.listeners.iter().zip(&own) {
        let listener = judged.listener;
        let at = format!("{parent} {}", listener.name);
        assert_eq!(said.name, listener.name, "{at}");
        let is = |kind| truth(&said.conditions, kind);
        let yes = |there: bool| if there { Truth::True } else { Truth::False };
        assert_eq!(
            is(ConditionType::Accepted),
            Some(yes(judged.accepted())),
            "{at}"
        );
        let takes_part = judged.owned && (judged.conflicted || judged.accepted());
        let conflicted = takes_part.then(|| yes(judged.conflicted));
        assert_eq!(is(ConditionType::Conflicted), conflicted, "{at}");
        // Never there as False.
        let overlaps = judged.accepted() && judged.overlaps;
        let overlap = is(ConditionType::OverlappingTLSConfig);
        assert_eq!(overlap, overlaps.then_some(Truth::True), "{at}");
        assert_eq!(
            is(ConditionType::ResolvedRefs),
            Some(yes(judged.resolved())),
            "{at}"
        );
        let programmed = matches!(said.programmed, ProgrammedBasis::WhenAcknowledged(_));
        assert_eq!(programmed, judged.accepted() && judged.resolved(), "{at}");
        let takes = |route: &_| judge.attached(*route).any(|parent| parent.takes(judged));
        let routes = judge.routes().filter(takes).count();
        assert_eq!(said.attached_routes, routes, "{at}");
    }
    own.iter().any(|l| l.accepted() && l.permitted())
}

fn truth(conditions: &[Condition], kind: ConditionType) -> Option<Truth> {
    let mut of_kind = conditions.iter().filter(|c| c.kind == kind);
    let truth = of_kind.next().map(|c| c.truth);
    assert!(of_kind.next().is_none(), "{kind} twice");
    truth
}

proptest! {
    #![proptest_config(ProptestConfig {
        // Two things have to meet before it matters which of them goes first.
        cases: quick(3 * ProptestConfig::default().cases),
        ..ProptestConfig::default()
    })]

    #[test]
    fn after_every_edit_it_is_as_the_specification_reads(
        start in prop::collection::vec(world::an_object(), 1..30),
        edits in prop::collection::vec(world::edits(), 1..12),
    ) {
        let mut run = Run::new();
        let world = [our_class(), world::the_gateway()].into_iter().chain(start);
        run.apply(world.map(Change::Put).collect());
        run.check();
        for edit in edits {
            run.apply(edit);
            run.check();
        }
    }
}

/// Two teams that want `x.example.com`: red came first, and blue has a hostname of its own besides.
fn two_teams() -> Vec<Object> {
    let mut objects = vec![
        our_class(),
        gateway(
            "one",
            vec![passthrough("own", "own.example.com")],
            NamespaceScope::All,
        ),
    ];
    for (team, created, hosts) in [
        ("red", 2, &["x.example.com"][..]),
        ("blue", 3, &["x.example.com", "y.example.com"]),
    ] {
        let listeners = hosts.iter().map(|host| passthrough(&host[..1], host));
        objects.push(set(team, "web", created, "one", listeners.collect()));
        objects.push(service(team, "web", &[1]));
        objects.push(slice(
            team,
            "web",
            0,
            1,
            &[u8::try_from(created).expect("small")],
        ));
        let to_set = vec![parent("ListenerSet", None, "web", None)];
        let backend = vec![backend(team, "web", 1, 1)];
        objects.push(route(team, "web", 1, to_set, hosts, backend));
    }
    objects
}

fn listener_of(team: &str, name: &str) -> String {
    format!("ListenerSet/{team}/web/{name}")
}

#[test]
fn a_winner_that_goes_hands_over_within_one_batch_and_nobody_else_is_in_it() {
    let mut run = Run::of(two_teams());
    run.check();
    let x = |run: &Run| run.served(443, Some("x.example.com")).0;
    let of =
        |team: &str| Answer::Listener(listener_of(team, "x"), true, Some(format!("{team}/web")));
    assert_eq!(x(&run), of("red"));
    let others = ["y.example.com", "own.example.com"];
    let before = others.map(|name| run.served(443, Some(name)).0);
    let batch = run.apply(vec![Change::Remove(key(Kind::ListenerSet, "red", "web"))]);
    // The route and the backend of red go with its listener; of blue it is the one listener. Its route was there
    // for its other name, and takes this one with it.
    let expected = [
        "platform/one/x.example.com".to_owned(),
        listener_of("blue", "x"),
        listener_of("red", "x"),
        "red/web".to_owned(),
        "red/web:1".to_owned(),
    ];
    assert_eq!(batch, BTreeSet::from(expected));
    assert_eq!(x(&run), of("blue"));
    assert_eq!(others.map(|name| run.served(443, Some(name)).0), before);
    run.check();
}

#[test]
fn a_new_loser_takes_nothing_from_the_winner() {
    let mut objects = two_teams();
    let blue: Vec<Object> = objects.split_off(6);
    let mut run = Run::of(objects);
    let red = [
        key(Kind::ListenerSet, "red", "web"),
        key(Kind::TlsRoute, "red", "web"),
    ];
    let statuses = |run: &Run| {
        red.clone()
            .map(|key| run.translator.statuses()[&key].clone())
    };
    let before = statuses(&run);
    // The route first, so that it waits for the set that will lose.
    for object in blue.into_iter().rev() {
        let batch = run.apply(vec![Change::Put(object)]);
        let touched: Vec<_> = batch.iter().filter(|name| name.contains("red/")).collect();
        assert!(touched.is_empty(), "{touched:?}");
        assert_eq!(statuses(&run), before);
        run.check();
    }
}

#[test]
fn status_of_a_gateways_own_listeners_is_not_changed_by_claims_of_a_set() {
    let mut run = Run::of([
        our_class(),
        gateway(
            "one",
            vec![
                passthrough("own", "x.example.com"),
                listener("raw", 8443, Protocol::Http, "", None),
            ],
            NamespaceScope::All,
        ),
    ]);
    let own = key(Kind::Gateway, "platform", "one");
    let said = |run: &Run| run.status(&own).expect("a status").listeners.clone();
    let before = said(&run);
    let claims: [(&str, u16, Protocol, &str); 4] = [
        ("same", 443, Protocol::Tls, "x.example.com"),
        ("https", 443, Protocol::Https, "x.example.com"),
        ("bytes", 443, Protocol::Tcp, ""),
        ("tls", 8443, Protocol::Tls, "x.example.com"),
    ];
    for (name, port, protocol, host) in claims {
        let tls = match protocol {
            Protocol::Tls => Some(Tls::Passthrough),
            Protocol::Https => Some(Tls::Terminate("red".into(), "cert".into())),
            _ => None,
        };
        // Older than the Gateway itself.
        let claim = listener(name, port, protocol, host, tls);
        let batch = run.apply(vec![Change::Put(set("red", name, 0, "one", vec![claim]))]);
        assert_eq!(batch, BTreeSet::new());
        assert_eq!(said(&run), before, "{name}");
        let status = run.status(&own).expect("a status");
        assert_eq!(status.attached_listener_sets, 0, "{name}");
        run.check();
    }
}

#[test]
fn of_both_kinds_of_overlap_a_loser_that_is_not_served_makes_none() {
    // Blue's wildcard loses to red's, so that only red's and the exact name overlap.
    let wild = || vec![passthrough("w", "*.example.com")];
    let run = Run::of([
        our_class(),
        gateway(
            "one",
            vec![passthrough("own", "own.org")],
            NamespaceScope::All,
        ),
        set("red", "web", 2, "one", wild()),
        set("blue", "web", 3, "one", wild()),
        set(
            "green",
            "web",
            1,
            "one",
            vec![passthrough("l", "a.example.com")],
        ),
    ]);
    run.check();
    let overlaps: BTreeMap<&str, bool> = ["red", "green"]
        .into_iter()
        .map(|team| {
            let status = run
                .status(&key(Kind::ListenerSet, team, "web"))
                .expect("a status");
            let conditions = &status.listeners[0].conditions;
            let said = truth(conditions, ConditionType::OverlappingTLSConfig);
            (team, said == Some(Truth::True))
        })
        .collect();
    assert_eq!(overlaps, BTreeMap::from([("green", true), ("red", true)]));
    let own = run
        .status(&key(Kind::Gateway, "platform", "one"))
        .expect("a status");
    let said = truth(
        &own.listeners[0].conditions,
        ConditionType::OverlappingTLSConfig,
    );
    assert_eq!(said, None);
}
