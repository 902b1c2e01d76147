//! Limits of grants on connections on their way to the proxies: one resource for each namespace of which grants state
//! something, whatever the Gateway.

use std::sync::Arc;
use vestibule_model::hostname_grant::{ConnectionLimits, HostnameGrant};
use vestibule_model::key::{Kind, ObjectKey, ObjectName};
use vestibule_model::object::Object;
use vestibule_model::selector::{LabelSelector, NamespaceScope, Requirement};
use vestibule_operator::translate::{Change, Translator};
use vestibule_operator_testing::grants::hostname_grant;
use vestibule_operator_testing::objects::{
    class, gateway, namespace, our_class, parent, passthrough, route, set, translated,
};
use vestibule_stream::proto::resource::Resource as Wire;
use vestibule_stream::{ResourceKey, ResourceKind};

/// A Gateway that lets two teams in, which are known.
fn world() -> Vec<Object> {
    let own = vec![passthrough("own", "own.example.com")];
    vec![
        our_class(),
        gateway("edge", own, NamespaceScope::All),
        namespace("team-a", &[("tier", "gold")]),
        namespace("team-b", &[]),
        namespace("platform", &[("tier", "gold")]),
    ]
}

fn limits(shares: Option<u32>, most: Option<u32>) -> ConnectionLimits {
    ConnectionLimits { shares, most }
}

/// A grant to these namespaces with these limits.
fn to(name: &str, namespaces: &[&'static str], connections: ConnectionLimits) -> HostnameGrant {
    let mut grant = hostname_grant(name, namespaces, &["*"]);
    grant.limits.connections = connections;
    grant
}

/// A grant to the namespaces that fulfil all of the requirements.
fn by(name: &str, requirements: Vec<Requirement>, connections: ConnectionLimits) -> HostnameGrant {
    let mut grant = to(name, &[], connections);
    grant.namespaces.selector = Some(LabelSelector { requirements });
    grant
}

fn gold() -> Vec<Requirement> {
    vec![Requirement::In("tier".into(), vec!["gold".into()])]
}

fn put(grant: &HostnameGrant) -> Change {
    Change::Put(Object::HostnameGrant(Arc::new(grant.clone())))
}

fn remove(kind: Kind, namespace: &str, name: &str) -> Change {
    Change::Remove(ObjectKey::new(kind, namespace, name))
}

/// What the proxies know: namespace, shares and limit.
fn told(translator: &Translator) -> Vec<(String, u32, u32)> {
    let resources = translator.resources().iter();
    let tenants = resources.filter(|(key, _)| key.kind() == ResourceKind::Tenant);
    tenants
        .map(|(key, encoded)| match encoded.decode() {
            Some(Wire::Tenant(of)) => (key.name.clone(), of.connection_shares, of.max_connections),
            other => panic!("{other:?} is no tenant"),
        })
        .collect()
}

fn of(namespace: &str, shares: u32, most: u32) -> (String, u32, u32) {
    (namespace.to_owned(), shares, most)
}

#[test]
fn limits_come_change_and_go_with_the_grant() {
    let mut translator = translated(world());
    assert_eq!(told(&translator), []);
    let mut grant = to("a", &["team-a"], limits(Some(4), None));
    let output = translator.apply([put(&grant)]);
    let key = ResourceKey::new(ResourceKind::Tenant, "team-a");
    assert!(output.resources.contains_key(&key));
    assert_eq!(told(&translator), [of("team-a", 4, 0)]);
    grant.limits.connections = limits(Some(2), Some(300));
    translator.apply([put(&grant)]);
    assert_eq!(told(&translator), [of("team-a", 2, 300)]);
    // What everybody has is not sent.
    grant.limits.connections = limits(Some(1), None);
    translator.apply([put(&grant)]);
    assert_eq!(told(&translator), []);
    grant.limits.connections = limits(None, Some(300));
    translator.apply([put(&grant)]);
    assert_eq!(told(&translator), [of("team-a", 0, 300)]);
    // A grant that is being deleted gives nothing.
    grant.meta.deleting = true;
    translator.apply([put(&grant)]);
    assert_eq!(told(&translator), []);
    grant.meta.deleting = false;
    translator.apply([put(&grant)]);
    translator.apply([remove(Kind::HostnameGrant, "platform", "a")]);
    assert_eq!(told(&translator), []);
}

#[test]
fn of_several_grants_the_largest_counts_on_whatever_gateway() {
    let mut objects = world();
    objects.push(gateway("other", vec![], NamespaceScope::All));
    let mut narrow = to("narrow", &["team-a"], limits(Some(7), Some(50)));
    narrow.gateways.insert("other".into());
    let both = ["team-a", "team-b"];
    let grants = [
        to("all", &both, limits(Some(2), Some(100))),
        to("nothing", &both, ConnectionLimits::default()),
        narrow,
    ];
    objects.extend(grants.map(|grant| Object::HostnameGrant(Arc::new(grant))));
    let mut translator = translated(objects);
    let expected = [of("team-a", 7, 100), of("team-b", 2, 100)];
    assert_eq!(told(&translator), expected);
    // A grant for a Gateway that is gone, or is another controller's, gives nothing.
    translator.apply([remove(Kind::Gateway, "platform", "other")]);
    let expected = [of("team-a", 2, 100), of("team-b", 2, 100)];
    assert_eq!(told(&translator), expected);
    translator.apply([Change::Put(class("other/controller"))]);
    assert_eq!(told(&translator), []);
    translator.apply([Change::Put(our_class())]);
    assert_eq!(told(&translator), expected);
}

#[test]
fn namespaces_cannot_give_themselves_higher_limits_by_a_grant() {
    let mut translator = translated(world());
    // A grant beside no Gateway.
    let mut own = to("own", &["team-a"], limits(Some(100), None));
    own.name = ObjectName::new("team-a", "own");
    let mut others = own.clone();
    others.name = ObjectName::new("team-b", "own");
    // And the Gateway's own namespace has what grants in others give it.
    let platform = to("platform", &["platform"], limits(Some(100), None));
    translator.apply([put(&own), put(&others), put(&platform)]);
    assert_eq!(told(&translator), []);
}

#[test]
fn limits_follow_the_labels_of_a_namespace() {
    let mut translator = translated(world());
    translator.apply([put(&by("gold", gold(), limits(Some(3), Some(10))))]);
    assert_eq!(told(&translator), [of("team-a", 3, 10)]);
    let labelled = |name, labels: &[(&str, &str)]| Change::Put(namespace(name, labels));
    translator.apply([labelled("team-b", &[("tier", "gold")])]);
    let expected = [of("team-a", 3, 10), of("team-b", 3, 10)];
    assert_eq!(told(&translator), expected);
    let output = translator.apply([labelled("team-a", &[])]);
    assert_eq!(told(&translator), [of("team-b", 3, 10)]);
    assert_eq!(output.work.tenants, 1);
    translator.apply([remove(Kind::Namespace, "", "team-b")]);
    assert_eq!(told(&translator), []);
}

#[test]
fn a_namespace_that_is_known_by_its_objects_alone_has_the_limits_of_all() {
    let mut translator = translated(world());
    translator.apply([put(&by("all", Vec::new(), limits(Some(2), None)))]);
    let known = [of("team-a", 2, 0), of("team-b", 2, 0)];
    assert_eq!(told(&translator), known);
    let listeners = vec![passthrough("l", "c.example.com")];
    let parents = vec![parent("Gateway", Some("platform"), "edge", None)];
    let objects = [
        set("team-c", "web", 1, "edge", listeners),
        route("team-d", "web", 1, parents, &["d.example.com"], vec![]),
    ];
    translator.apply(objects.map(Change::Put));
    let all = [
        of("team-a", 2, 0),
        of("team-b", 2, 0),
        of("team-c", 2, 0),
        of("team-d", 2, 0),
    ];
    assert_eq!(told(&translator), all);
    translator.apply([
        remove(Kind::ListenerSet, "team-c", "web"),
        remove(Kind::TlsRoute, "team-d", "web"),
    ]);
    assert_eq!(told(&translator), known);
}

#[test]
fn an_edit_looks_at_the_namespaces_of_its_grant_alone() {
    const TEAMS: usize = 500;
    let name = |n: usize| format!("team-{n}");
    let mut objects = world();
    objects.extend((0..TEAMS).map(|n| namespace(&name(n), &[])));
    let mut translator = translated(objects);
    let of_team = |n: usize, shares| {
        let mut grant = to(&name(n), &[], limits(Some(shares), None));
        grant.namespaces.names.insert(name(n).as_str().into());
        put(&grant)
    };
    let output = translator.apply((0..TEAMS).map(|n| of_team(n, 2)));
    assert_eq!(output.work.tenants, TEAMS);
    assert_eq!(told(&translator).len(), TEAMS);
    let output = translator.apply([of_team(7, 3)]);
    assert_eq!((output.work.tenants, output.resources.len()), (1, 1));
    // A grant that says nothing about connections, and an object in a known namespace, have none looked at.
    let silent = to("silent", &["team-7"], ConnectionLimits::default());
    let listeners = vec![passthrough("l", "a.example.com")];
    let edits = [
        put(&silent),
        Change::Put(set("team-7", "web", 1, "edge", listeners)),
    ];
    assert_eq!(translator.apply(edits).work.tenants, 0);
}
