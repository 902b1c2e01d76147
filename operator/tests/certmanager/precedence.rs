//! From annotations to the issuer of the certificate: what translation asks for, made and issued. Which
//! annotation wins, and what nothing is issued for.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;

use serde_json::{Value, json};
use vestibule_model::issuance::IssuanceState;

use vestibule_model::parameters::ServiceParameters;
use vestibule_model::policy::Policy;
use vestibule_model::protocol::Port;
use vestibule_operator::certmanager::Maker;
use vestibule_operator::translate::{
    Binds, CONTROLLER, Change, ClaimMode, ServiceSettings, Settings, Translator,
};

use crate::support::{Controller, Engine, Requests, Server, certificate, eventually};

const ISSUER: (&str, &str) = ("cert-manager.io/issuer", "ca");
const CLUSTER: (&str, &str) = ("cert-manager.io/cluster-issuer", "all");

type Annotations = &'static [(&'static str, &'static str)];

/// Gateways and their annotations.
const GATEWAYS: [(&str, Annotations); 4] = [
    ("none", &[]),
    ("issuer", &[ISSUER]),
    ("cluster", &[CLUSTER]),
    // cert-manager's shim lets this kind win over a set's own issuer.
    (
        "kind",
        &[
            ("cert-manager.io/issuer", "all"),
            ("cert-manager.io/issuer-kind", "ClusterIssuer"),
        ],
    ),
];

/// Sets: name, Gateway, annotations, and who signs. Nobody: there is no Certificate.
const ROWS: [(&str, &str, Annotations, Option<&str>); 10] = [
    ("set", "none", &[ISSUER], Some("root")),
    ("gateway", "cluster", &[], Some("cluster-root")),
    ("both", "cluster", &[ISSUER], Some("root")),
    ("both-other-way", "issuer", &[CLUSTER], Some("cluster-root")),
    ("not-the-gateways-kind", "kind", &[ISSUER], Some("root")),
    (
        "cluster-under-kind",
        "kind",
        &[CLUSTER],
        Some("cluster-root"),
    ),
    ("gateways-kind", "kind", &[], Some("cluster-root")),
    ("neither", "none", &[], None),
    ("contradiction", "issuer", &[ISSUER, CLUSTER], None),
    (
        "two-engines",
        "none",
        &[ISSUER, ("vestibule.dev/acme-issuer", "x")],
        None,
    ),
];

fn gateway(name: &str, annotations: Annotations, from: &str) -> Value {
    let annotations: BTreeMap<&str, &str> = annotations.iter().copied().collect();
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": name, "namespace": "infra", "annotations": annotations},
        "spec": {
            "gatewayClassName": "vestibule", "allowedListeners": {"namespaces": {"from": from}},
            "listeners": [{"name": "own", "port": 80, "protocol": "HTTP"}],
        },
    })
}

fn set(name: &str, gateway: &str, annotations: Annotations, hostname: &str) -> Value {
    let annotations: BTreeMap<&str, &str> = annotations.iter().copied().collect();
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
        "metadata": {"name": name, "namespace": "a", "annotations": annotations},
        "spec": {
            "parentRef": {"name": gateway, "namespace": "infra"},
            "listeners": [{
                "name": "web", "port": 443, "protocol": "HTTPS", "hostname": hostname,
                "tls": {"mode": "Terminate", "certificateRefs": [{"name": name}]},
            }],
        },
    })
}

/// What an operator would know, and ask for.
struct World {
    server: Server,
    translator: Translator,
}

impl World {
    /// Writes an object, and lets translation know.
    async fn put(&mut self, object: Value) {
        let object = self.server.apply(object).await;
        self.know(object);
    }

    fn know(&mut self, object: Value) {
        let decoded = vestibule_crds::decode(object).into_object();
        let (object, _) = decoded.expect("a kind that is known");
        self.translator.apply([Change::Put(object)]);
    }

    /// What is asked for, once every port has an internal one.
    fn requests(&mut self) -> Requests {
        let desired_services = self.translator.ports().iter().cloned();
        let ports = (10_000..).zip(desired_services);
        let ports = ports.map(|(internal, desired)| (desired, Port::new(internal)));
        let ports = Change::Ports(ports.collect());
        self.translator.apply([ports]);
        self.translator.requests().clone()
    }

    /// Waits until this issuer has signed what is in the Secret.
    async fn signed(&self, secret: &str, by: &str) {
        let wanted = format!("CN={by}");
        eventually(&format!("{secret} signed by {by}"), async || {
            let there = self.server.get("Secret", "a", secret).await?;
            let (_, issuer, _) = certificate(&there)?;
            (issuer == wanted).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn the_issuer_that_is_chosen_signs_and_nothing_else_is_issued() {
    let server = Server::ready(&["a"]).await;
    let _controller = Controller::start(&server, false);
    server.issuers("a").await;
    server.cluster_issuer().await;
    let translator = Translator::new(Settings {
        controller: CONTROLLER.into(),
        policy: Policy::default(),
        claims: ClaimMode::Assumed,
        shim_for_sets: false,
        binds: Binds::Allocated {
            address: Ipv6Addr::UNSPECIFIED.into(),
            services: ServiceSettings {
                release: "vestibule".into(),
                namespace: "system".into(),
                cluster_domain: "cluster.local".into(),
                selector: BTreeMap::new(),
                components: BTreeSet::new(),
                defaults: ServiceParameters::default(),
            },
        },
    });
    let mut world = World { server, translator };
    world.know(json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
        "metadata": {"name": "vestibule", "uid": "class"}, "spec": {"controllerName": CONTROLLER},
    }));
    for name in ["a", "infra"] {
        let namespace = world.server.get("Namespace", "", name).await;
        world.know(namespace.expect("it is there"));
    }
    for (name, annotations) in GATEWAYS {
        world.put(gateway(name, annotations, "All")).await;
    }
    world.put(gateway("closed", &[ISSUER], "None")).await;
    for (name, gateway, annotations, _) in ROWS {
        let hostname = format!("{name}.example.com");
        world.put(set(name, gateway, annotations, &hostname)).await;
    }
    // Not allowed; and one that loses its name to an older one.
    world
        .put(set(
            "uninvited",
            "closed",
            &[ISSUER],
            "uninvited.example.com",
        ))
        .await;
    world
        .put(set("usurper", "none", &[ISSUER], "set.example.com"))
        .await;

    let engine = Engine::start(&world.server, Maker::Vestibule);
    engine.ask([world.requests()]);
    for (name, _, _, by) in ROWS {
        if let Some(by) = by {
            world.signed(name, by).await;
            engine
                .says(("a", name), IssuanceState::Issued, "valid until")
                .await;
        }
    }
    let made = world.server.list("Certificate", "a").await;
    let mut wanted: Vec<&str> = ROWS
        .iter()
        .filter_map(|(name, _, _, by)| by.map(|_| *name))
        .chain(["root"])
        .collect();
    wanted.sort_unstable();
    assert_eq!(made, wanted, "and no other Certificate");

    // The set's annotation goes, and the Gateway's counts: re-issued.
    world
        .put(set("both", "cluster", &[], "both.example.com"))
        .await;
    engine.ask([world.requests()]);
    world.signed("both", "cluster-root").await;
    // The Gateway closes: nothing is asked for any more, and what was issued stays.
    world.put(gateway("cluster", &[CLUSTER], "None")).await;
    engine.ask([world.requests()]);
    for name in ["both", "gateway"] {
        eventually(&format!("no Certificate {name}"), async || {
            let there = world.server.get("Certificate", "a", name).await;
            there.is_none().then_some(())
        })
        .await;
        assert!(world.server.get("Secret", "a", name).await.is_some());
    }
}
