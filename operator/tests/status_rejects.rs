//! When what the proxies reject changes, the operator looks at the statuses that it concerns, and at no others.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use prometheus_client::registry::Registry;
use tokio::time::timeout;
use vestibule_model::condition::{ProgrammedBasis, Reason};
use vestibule_model::key::{ListenerKey, ObjectKey, ObjectName, ParentKey};
use vestibule_model::object::Object;
use vestibule_model::protocol::Protocol;
use vestibule_model::selector::NamespaceScope;
use vestibule_model::service::ServiceType;
use vestibule_model::small::SmallSet;
use vestibule_operator::cluster::metrics::Metrics;
use vestibule_operator::cluster::statuses::plan::{Next, StatusTiming};
use vestibule_operator::cluster::store::Store;
use vestibule_operator::publish::{self, Publisher};
use vestibule_operator::status::{ack_progress, programmed};
use vestibule_operator::translate::Change;
use vestibule_operator_testing::objects::*;
use vestibule_operator_testing::store::{leading_store, shown};
use vestibule_operator_testing::stream::{BOUND, Raw};
use vestibule_operator_testing::tls::{
    PerPort, Trusts, config_map, core, gateway_tls, policy, validation, with_tls,
};
use vestibule_stream::proto::{Ack, proxy_message::Message};
use vestibule_stream::{Reject, ResourceKey, ResourceKind};

/// Routes of the tenant.
const ROUTES: usize = 600;

/// The store of an operator that leads, without an API server, and a proxy.
struct World {
    store: Store,
    publisher: Arc<Publisher>,
    now: Instant,
    version: u64,
}

impl World {
    fn new() -> Self {
        let publisher = Publisher::new(publish::Config::default());
        publisher.lead(1).expect("a first term");
        publisher.set_ready(["p-1".to_owned()].into());
        let now = Instant::now();
        let metrics = Metrics::default();
        metrics.register(&mut Registry::default());
        let store = leading_store(&publisher, StatusTiming::default(), metrics, now);
        Self {
            store,
            publisher,
            now,
            version: 0,
        }
    }

    fn put(&mut self, objects: impl IntoIterator<Item = Object>) {
        for object in objects {
            self.version += 1;
            self.store.take([shown(object, self.version)], self.now);
        }
        self.store.publish(self.now);
        // The statuses that the edit itself concerns.
        self.looks();
    }

    /// The objects whose statuses are looked at now.
    fn looks(&mut self) -> Vec<String> {
        let mut looks = BTreeSet::new();
        let next = self.store.planner.next(self.now, usize::MAX, |key, _, _| {
            looks.insert(format!("{key:?}"));
            None
        });
        assert_eq!(next, Next::Idle);
        looks.into_iter().collect()
    }

    /// Acknowledges the next batch, except for these resources. Returns the objects whose statuses are looked at then.
    async fn acknowledge(&mut self, proxy: &mut Raw, rejected: &[ResourceKey]) -> Vec<String> {
        let batch = proxy.batch().await;
        let rejects = rejected.iter();
        let rejects = rejects.map(|key| Reject::new(key.clone(), "Invalid", "no"));
        let ack = Ack {
            generation: batch.generation,
            rejects: rejects.collect(),
            refusal: None,
        };
        let mut acks = self.publisher.acks();
        proxy.send(Message::Ack(ack)).await;
        let acked = async {
            while !self.publisher.is_settled(|_| false) {
                acks.changed().await.expect("a publisher");
            }
        };
        timeout(BOUND, acked).await.expect("an acknowledgement");
        self.store.acks_moved();
        self.looks()
    }
}

fn a_route(n: usize, weight: u32) -> Object {
    let parents = vec![parent("ListenerSet", None, "mine", None)];
    let hostname = format!("r{n}.a.test");
    let backends = vec![backend("a", "app", 443, weight)];
    route("a", &format!("r{n}"), 1, parents, &[&hostname], backends)
}

fn resource(kind: ResourceKind, name: &str) -> ResourceKey {
    ResourceKey::new(kind, name)
}

#[tokio::test]
async fn a_reject_that_comes_or_goes_has_only_the_objects_that_it_concerns_looked_at() {
    let mut world = World::new();
    world.put([
        our_class(),
        gateway("one", Vec::new(), NamespaceScope::All),
        set("a", "mine", 1, "one", vec![passthrough("web", "*.a.test")]),
        set("b", "mine", 1, "one", vec![passthrough("web", "*.b.test")]),
        service("a", "app", &[443]),
        slice("a", "app", 0, 443, &[1]),
    ]);
    world.put((0..ROUTES).map(|n| a_route(n, 1)));
    let mut proxy = Raw::hello(&world.publisher, "p-1").await;
    world.acknowledge(&mut proxy, &[]).await;
    assert!(world.looks().is_empty());

    let route = resource(ResourceKind::TlsRoute, "a/r7");
    world.put([a_route(7, 2)]);
    let looks = world.acknowledge(&mut proxy, &[route]).await;
    assert_eq!(looks, ["TLSRoute/a/r7"]);
    // It is not in the next batch, so it is still rejected.
    world.put([a_route(8, 2)]);
    let listener = resource(ResourceKind::Listener, "ListenerSet/b/mine/web");
    let looks = world.acknowledge(&mut proxy, &[listener]).await;
    assert_eq!(looks, ["ListenerSet/b/mine"]);
    world.put([a_route(7, 3)]);
    let looks = world.acknowledge(&mut proxy, &[]).await;
    assert_eq!(looks, ["TLSRoute/a/r7"]);
    // A backend concerns the routes to it.
    world.put([a_route(9, 2)]);
    let app = resource(ResourceKind::Backend, "a/app:443");
    let looks = world.acknowledge(&mut proxy, &[app]).await;
    assert_eq!(looks.len(), ROUTES);
    // Edits that have nothing to do with what is rejected.
    world.put([a_route(9, 3)]);
    assert!(world.acknowledge(&mut proxy, &[]).await.is_empty());
}

/// The proxies keep the last good settings, or serve nothing without any. Either way they do not do what the Gateway asks for,
/// so the Gateway and all of its listeners say why.
#[tokio::test]
async fn rejected_settings_reach_the_statuses_of_the_gateway_and_its_sets() {
    let mut world = World::new();
    let Object::GatewayClass(mut class) = our_class() else {
        unreachable!("a class")
    };
    class.parameters = Some(parameters_at("p"));
    world.put([
        Object::GatewayClass(class),
        parameters_of("p", ServiceType::ClusterIp, true),
        gateway("one", Vec::new(), NamespaceScope::All),
        set("a", "mine", 1, "one", vec![passthrough("web", "*.a.test")]),
    ]);
    let mut proxy = Raw::hello(&world.publisher, "p-1").await;
    world.acknowledge(&mut proxy, &[]).await;
    let of_both = ["Gateway/platform/one", "ListenerSet/a/mine"];
    let said = |world: &World| {
        let set = ParentKey::ListenerSet(ObjectName::new("a", "mine"));
        let listeners = SmallSet::from([ListenerKey::new(set, "web")]);
        let translator = &world.store.control.translator;
        let basis = ProgrammedBasis::WhenAcknowledged(listeners);
        let condition = programmed(&basis, |listeners| {
            ack_progress(translator, &world.publisher, listeners)
        });
        (condition.reason, condition.message)
    };
    assert_eq!(said(&world).0, Reason::Programmed);

    let settings = resource(ResourceKind::GatewaySettings, "platform/one");
    world.put([parameters_of("p", ServiceType::NodePort, true)]);
    // Before the acknowledgement they wait.
    assert_eq!(said(&world).0, Reason::Pending);
    let looks = world.acknowledge(&mut proxy, &[settings]).await;
    assert_eq!(looks, of_both);
    let (reason, message) = said(&world);
    assert_eq!(reason, Reason::Invalid);
    assert_eq!(message, "p-1 rejected it: Invalid: no");
    world.put([parameters_of("p", ServiceType::LoadBalancer, true)]);
    let looks = world.acknowledge(&mut proxy, &[]).await;
    assert_eq!(looks, of_both);
    assert_eq!(said(&world).0, Reason::Programmed);
}

#[test]
fn a_resource_concerns_the_objects_whose_statuses_say_whether_proxies_have_it() {
    let tls = |secret: &str| Some(Tls::Terminate("a".into(), secret.into()));
    let ending = listener("ends", 443, Protocol::Https, "x.a.test", tls("shared"));
    let clients = validation(vec![core("ConfigMap", "platform", "ca", "spec.tls")], false);
    let certificate = core("Secret", "platform", "cert", "spec.tls.backend");
    let gateway = with_tls(
        gateway("one", Vec::new(), NamespaceScope::All),
        gateway_tls(Some(clients), PerPort::new(), Some(certificate)),
    );
    let translator = translated([
        our_class(),
        gateway,
        set(
            "a",
            "mine",
            1,
            "one",
            vec![ending, passthrough("web", "*.a.test")],
        ),
        set(
            "a",
            "other",
            1,
            "one",
            vec![listener("o", 80, Protocol::Http, "y.a.test", None)],
        ),
        secret("a", "shared", Holds::Pair(0)),
        secret("platform", "cert", Holds::Pair(1)),
        config_map("platform", "ca", Trusts::Both),
        config_map("a", "ca", Trusts::Both),
        service("a", "app", &[443]),
        policy("a", "p", 1, ("app", None), Some("ca")),
        a_route(0, 1),
    ]);
    let concerned = |kind, name: &str| -> Vec<String> {
        let objects = translator.concerned_by(&resource(kind, name));
        objects
            .iter()
            .map(|key: &ObjectKey| format!("{key:?}"))
            .collect()
    };
    let all = [
        "Gateway/platform/one",
        "ListenerSet/a/mine",
        "ListenerSet/a/other",
    ];
    for (kind, name, objects) in [
        (
            ResourceKind::Listener,
            "ListenerSet/a/mine/ends",
            &all[1..2],
        ),
        (
            ResourceKind::Listener,
            "Gateway/platform/one/web",
            &all[..1],
        ),
        (ResourceKind::Certificate, "a/shared", &all[1..2]),
        (ResourceKind::Certificate, "platform/cert", &all[..]),
        (ResourceKind::TrustBundle, "ConfigMap/platform/ca", &all[..]),
        (ResourceKind::TrustBundle, "ConfigMap/a/ca", &[]),
        (ResourceKind::GatewaySettings, "platform/one", &all[..]),
        (ResourceKind::GatewaySettings, "nonsense", &[]),
        (ResourceKind::Backend, "a/app:443", &["TLSRoute/a/r0"]),
        (ResourceKind::Backend, "a/app:443/udp", &[]),
        (ResourceKind::HttpRoute, "a/r", &["HTTPRoute/a/r"]),
        (ResourceKind::UdpRoute, "a/r", &["UDPRoute/a/r"]),
        (ResourceKind::HostnameOwner, "platform/one/x.a.test", &[]),
        (ResourceKind::Tenant, "a", &[]),
        (ResourceKind::Listener, "nonsense", &[]),
        (ResourceKind::Backend, "nonsense", &[]),
    ] {
        assert_eq!(concerned(kind, name), objects, "{kind:?} {name}");
    }
}

/// The proxies reject a certificate that cannot be used, because they are to keep the last good one.
#[test]
fn a_listener_is_programmed_without_its_unusable_certificates_if_another_one_is_served() {
    let needed = |secrets: &[&str]| {
        let tls = Some(Tls::Terminate("a".into(), secrets[0].into()));
        let mut ending = listener("web", 443, Protocol::Https, "x.a.test", tls);
        let certificates = &mut ending.tls.as_mut().expect("TLS").certificates;
        for secret in &secrets[1..] {
            let field = "spec.listeners[web].tls.certificateRefs[1]";
            certificates.push(core("Secret", "a", secret, field));
        }
        let mut translator = translated([
            our_class(),
            gateway("one", Vec::new(), NamespaceScope::All),
            set("a", "mine", 1, "one", vec![ending]),
            secret("a", "good", Holds::Pair(0)),
            secret("a", "broken", Holds::Mismatch),
            secret_of_age("a", "later", true),
        ]);
        translator.apply([Change::Time(1_700_000_000)]);
        let parent = ParentKey::ListenerSet(ObjectName::new("a", "mine"));
        let needed = translator.resources_of(&ListenerKey::new(parent, "web"));
        let certificates = needed
            .into_iter()
            .filter(|key| key.kind() == ResourceKind::Certificate);
        certificates.map(|key| key.name.clone()).collect::<Vec<_>>()
    };
    for other in ["broken", "later"] {
        assert_eq!(needed(&["good", other]), ["a/good"]);
        assert_eq!(needed(&[other, "good"]), ["a/good"]);
        // Without another one, the listener serves the last good version, if the proxies have one.
        assert_eq!(needed(&[other]), [format!("a/{other}")]);
    }
}
