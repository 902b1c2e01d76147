//! The built-in engine in a cluster: Secrets in a real API server, a real CA (Pebble) that checks names by
//! connecting, and proxies that answer what they were sent by the configuration stream.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};
use tokio::task::JoinHandle;
use vestibule_model::challenge::{ChallengeAnswer, ChallengeKey, ChallengeProof, ChallengeType};
use vestibule_model::endpoint::AuthorityRules;
use vestibule_model::hostname::Hostname;
use vestibule_model::key::ObjectName;
use vestibule_model::selector::{LabelSelector, Requirement};
use vestibule_operator::cluster;
use vestibule_stream::client::{Client, Config};
use vestibule_stream::proto::{challenge, resource};
use vestibule_stream::{Apply, Change, ProxyIdentity, Reject};
use vestibule_test_support::eventually;

use crate::support::{Manager, Network, World, condition};
use vestibule_acme_testing::World as Challenges;
use vestibule_acme_testing::answerer::Answerer;
use vestibule_acme_testing::pebble::{Options, Pebble};

/// Orders in an hour, where they are not what a test is about.
const PLENTY: NonZeroU32 = NonZeroU32::new(100_000).expect("above zero");
/// One operator with the built-in engine at a time: each opens an account for every issuer there is.
static TURN: Mutex<()> = Mutex::const_new(());
const ISSUED: &str = "vestibule.dev/CertificateIssued";

/// A world with a CA, and a proxy that answers its challenges.
struct Set {
    world: World,
    pebble: Pebble,
    challenges: Arc<Challenges>,
    _answerer: Answerer,
    _turn: MutexGuard<'static, ()>,
}

fn engine_of(world: &World) -> vestibule_acme::EngineSettings {
    vestibule_acme::EngineSettings {
        namespace: world.ns("sys").into(),
        issuers: LabelSelector::default(),
        budgets: vestibule_acme::Budgets {
            per_hour: PLENTY,
            per_issuer: PLENTY,
            per_namespace: PLENTY,
        },
        in_flight: 40,
        registrations: PLENTY,
        authorities: AuthorityRules::Any,
        reach: Duration::ZERO,
        spread: Duration::ZERO,
        seed: 1,
    }
}

impl Set {
    async fn new() -> Self {
        let turn = TURN.lock().await;
        let world = World::new().await;
        let challenges = Challenges::new();
        let answerer = Answerer::start(&challenges).await;
        let pebble =
            Pebble::start(env!("CARGO_TARGET_TMPDIR"), &answerer, &Options::default()).await;
        world.class().await;
        world.apply(world.gateway("shared")).await;
        Self {
            world,
            pebble,
            challenges,
            _answerer: answerer,
            _turn: turn,
        }
    }

    /// An operator with the built-in engine.
    fn manager(&self, name: &str) -> Manager {
        self.manager_with(name, |_| {})
    }

    fn manager_with(
        &self,
        name: &str,
        change: impl FnOnce(&mut cluster::OperatorSettings),
    ) -> Manager {
        let engine = engine_of(&self.world);
        self.world.manager_with(name, |settings| {
            settings.acme = Some(engine);
            change(settings);
        })
    }

    /// The same, with all the time in the world for proxies to acknowledge: for tests that count writes.
    fn patient_manager(&self, name: &str) -> Manager {
        let wait = Duration::from_secs(80);
        self.manager_with(name, |settings| {
            settings.statuses.patience = wait;
            settings.statuses.regress = wait;
            settings.statuses.reconnect = wait;
        })
    }

    fn proxy(&self, managers: &[&Manager], name: &str) -> Answering {
        let addresses: Vec<String> = managers.iter().map(|m| m.address.clone()).collect();
        let config = Config::new(ProxyIdentity::new(name), addresses);
        let table = Table(Arc::clone(&self.challenges));
        let (client, state) = Client::new(config, Network::of(managers), table);
        Answering(tokio::spawn(async move {
            client.run().await;
            drop(state);
        }))
    }

    async fn issuer(&self, part: &str) {
        self.issuer_with(part, "admin@example.com", &json!({}))
            .await;
    }

    async fn issuer_with(&self, part: &str, contact: &str, labels: &Value) {
        self.world
            .apply(json!({
                "apiVersion": "vestibule.dev/v1alpha1", "kind": "ACMEIssuer",
                "metadata": {"name": "ca", "namespace": self.world.ns(part), "labels": labels},
                "spec": {
                    "directory": self.pebble.directory, "caBundle": self.pebble.bundle,
                    "contact": [format!("mailto:{contact}")],
                },
            }))
            .await;
    }

    /// A set that ends TLS for a hostname with a certificate of the issuer.
    async fn asks(&self, part: &str, name: &str, hostname: &str) {
        let mut set = self.world.set(part, name, "shared", hostname);
        set["metadata"]["annotations"] = json!({"vestibule.dev/acme-issuer": "ca"});
        let reference = json!([{"name": format!("{name}-tls")}]);
        set["spec"]["listeners"][0]["tls"] =
            json!({"mode": "Terminate", "certificateRefs": reference});
        self.world.apply(set).await;
    }

    async fn listener(&self, part: &str, name: &str, r#type: &str) -> Option<Value> {
        let set = self.world.get("ListenerSet", part, name).await?;
        let conditions = set["status"]["listeners"][0]["conditions"].as_array()?;
        conditions.iter().find(|c| c["type"] == r#type).cloned()
    }

    async fn says(&self, (part, name): (&str, &str), status: &str, reason: &str) -> Value {
        let what = format!("{name}: {status} {reason}");
        eventually(&what, async || {
            let found = self.listener(part, name, ISSUED).await?;
            (found["status"] == status && found["reason"] == reason).then_some(found)
        })
        .await
    }

    async fn secret(&self, part: &str, name: &str) -> Option<Value> {
        self.world.get("Secret", part, name).await
    }

    fn writes_of(&self, manager: &Manager, part: &str, name: &str) -> Vec<String> {
        let of = format!(" {}/{name}", self.world.ns(part));
        let mut writes = self.world.writes(&manager.agent);
        writes.retain(|write| write.ends_with(&of));
        writes
    }
}

/// A proxy of the stream, until it is dropped.
struct Answering(JoinHandle<()>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Takes everything, and answers the challenges in it.
struct Table(Arc<Challenges>);

impl Apply for Table {
    fn apply(&mut self, change: &Change) -> Vec<Reject> {
        let mut challenges = self.0.challenges.lock();
        for removed in &change.removals {
            challenges.retain(|key, _| key.to_string() != removed.name);
        }
        for (_, resource) in &change.upserts {
            if let Some(resource::Resource::Challenge(wire)) = &resource.resource {
                let (key, answer) = read(wire);
                assert_eq!(key.to_string(), resource.name);
                challenges.insert(key, answer);
            }
        }
        Vec::new()
    }
}

fn read(wire: &vestibule_stream::proto::Challenge) -> (ChallengeKey, ChallengeAnswer) {
    let (namespace, name) = wire.gateway.split_once('/').expect("namespace/name");
    let (kind, token, answer) = match wire.answer.clone().expect("an answer") {
        challenge::Answer::TlsAlpn01(answer) => {
            let answer = ChallengeProof::TlsAlpn01 {
                certificate: answer.certificate.clone(),
                private_key: answer.private_key.clone().into(),
            };
            (ChallengeType::TlsAlpn01, String::new(), answer)
        }
        challenge::Answer::Http01(answer) => {
            let key_authorization = answer.key_authorization.into();
            let token = answer.token;
            (
                ChallengeType::Http01,
                token,
                ChallengeProof::Http01 { key_authorization },
            )
        }
    };
    let key = ChallengeKey {
        gateway: ObjectName::new(namespace, name),
        kind,
        hostname: Hostname::parse(&wire.hostname).expect("a hostname"),
        token: token.into(),
    };
    let tenant = wire.tenant.as_str().into();
    (key, ChallengeAnswer { tenant, answer })
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server and Pebble: VESTIBULE_TEST_KUBECONFIG, e2e/tools/get"]
async fn a_certificate_is_few_writes_and_rest_and_restarts_are_none() {
    let set = Set::new().await;
    set.world.ready(&["p-1"]).await;
    set.issuer("a").await;
    set.issuer("b").await;
    let one = set.patient_manager("one");
    let proxy = set.proxy(&[&one], "p-1");
    let statuses = set.world.statuses("ListenerSet", "a", "web");
    set.asks("a", "web", "web.a.test").await;
    set.says(("a", "web"), "True", "Issued").await;
    let ready = ("Ready", "True", "Registered");
    set.world.condition(("ACMEIssuer", "a", "ca"), ready).await;
    let programmed = ("Programmed", "True", "Programmed");
    set.world
        .condition(("ListenerSet", "a", "web"), programmed)
        .await;
    let secret = set.secret("a", "web-tls").await.expect("a Secret");
    assert_eq!(secret["type"], "kubernetes.io/tls");
    assert_eq!(secret["metadata"]["labels"]["vestibule.dev/acme"], "true");
    assert_eq!(
        secret["metadata"]["labels"]["app.kubernetes.io/managed-by"],
        set.world.release
    );
    assert!(secret["data"].get("next.key").is_none());
    assert_eq!(set.writes_of(&one, "a", "web-tls").len(), 2);
    // How many steps of an order are seen apart depends on who is quick; none is told twice.
    let written = set.world.get("ListenerSet", "a", "web").await;
    assert_eq!(statuses.told_again(), Vec::<Value>::new());
    assert!(set.challenges.challenges.lock().is_empty());
    let orders = "vestibule_operator_acme_orders_total{issuer=\"ACMEIssuer";
    assert_eq!(one.metric(orders), 1);
    assert_eq!(
        one.metric("vestibule_operator_certificate_ready_seconds_count{engine=\"acme\"}"),
        1
    );
    let expiry = format!(
        "vestibule_operator_certificate_expiry_timestamp_seconds{{tenant=\"{}\",secret=\"web-tls\"}}",
        set.world.ns("a")
    );
    assert!(one.metric(&expiry) > 1_700_000_000);
    let told = async || {
        let events = set.world.list("Event", "a").await;
        let of = |event: &&Value| event["reason"] == "CertificateIssued";
        events.values().find(of).cloned()
    };
    let event = eventually("an event", told).await;
    assert_eq!(event["regarding"]["kind"], "ListenerSet");
    assert_eq!(event["regarding"]["name"], "web");

    // At work on another's, nothing more is written about this one.
    set.asks("b", "other", "other.b.test").await;
    set.says(("b", "other"), "True", "Issued").await;
    assert_eq!(set.writes_of(&one, "a", "web-tls").len(), 2);
    assert_eq!(set.world.get("ListenerSet", "a", "web").await, written);
    drop(statuses);
    let before = [
        set.world.get("ListenerSet", "a", "web").await,
        set.secret("a", "web-tls").await,
        set.world.get("ACMEIssuer", "a", "ca").await,
    ];
    drop(proxy);
    one.stop().await;

    let two = set.patient_manager("two");
    let _proxy = set.proxy(&[&two], "p-1");
    set.asks("b", "third", "third.b.test").await;
    set.says(("b", "third"), "True", "Issued").await;
    let after = [
        set.world.get("ListenerSet", "a", "web").await,
        set.secret("a", "web-tls").await,
        set.world.get("ACMEIssuer", "a", "ca").await,
    ];
    assert_eq!(before, after);
    assert_eq!(set.pebble.orders(), 3);
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server and Pebble: VESTIBULE_TEST_KUBECONFIG, e2e/tools/get"]
async fn an_order_waits_for_every_proxy_and_outlives_its_leader() {
    let set = Set::new().await;
    // One that is ready has no stream.
    set.world.ready(&["p-1", "p-2"]).await;
    set.issuer("a").await;
    let one = set.manager("one");
    let proxy = set.proxy(&[&one], "p-1");
    set.asks("a", "web", "web.a.test").await;
    let answered = async || {
        let challenges = set.challenges.challenges.lock();
        (!challenges.is_empty()).then_some(())
    };
    eventually("a challenge at the proxy that has a stream", answered).await;
    let secret = set.secret("a", "web-tls").await.expect("a Secret");
    assert_eq!(secret["data"]["tls.crt"], "");
    assert!(secret["data"]["next.key"].is_string());
    assert_eq!(set.pebble.orders(), 1);
    one.kill().await;
    drop(proxy);
    set.challenges.challenges.lock().clear();

    let two = set.manager("two");
    let _first = set.proxy(&[&two], "p-1");
    eventually("the challenge again", answered).await;
    let secret = set.secret("a", "web-tls").await.expect("a Secret");
    assert_eq!(
        secret["data"]["tls.crt"], "",
        "the CA was not told that it may look"
    );
    let _second = set.proxy(&[&two], "p-2");
    set.says(("a", "web"), "True", "Issued").await;
    assert_eq!(set.pebble.orders(), 1);
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server and Pebble: VESTIBULE_TEST_KUBECONFIG, e2e/tools/get"]
async fn secrets_made_by_others_are_left_alone_and_no_certificate_is_ordered() {
    let set = Set::new().await;
    set.world.ready(&["p-1"]).await;
    set.issuer("a").await;
    let key = rcgen::generate_simple_self_signed(vec!["web.a.test".to_owned()]).expect("a key");
    for (name, annotations) in [
        ("web-tls", json!({})),
        ("cm-tls", json!({"cert-manager.io/certificate-name": "cm"})),
    ] {
        set.world
            .apply(json!({
                "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
                "metadata": {
                    "name": name, "namespace": set.world.ns("a"), "annotations": annotations,
                },
                "stringData": {
                    "tls.crt": key.cert.pem(), "tls.key": key.signing_key.serialize_pem(),
                },
            }))
            .await;
    }
    let before = [
        set.secret("a", "web-tls").await,
        set.secret("a", "cm-tls").await,
    ];
    let one = set.manager("one");
    let _proxy = set.proxy(&[&one], "p-1");
    set.asks("a", "web", "web.a.test").await;
    set.asks("a", "cm", "cm.a.test").await;
    for name in ["web", "cm"] {
        let said = set.says(("a", name), "False", "SecretNotOurs").await;
        let message = said["message"].as_str().expect("a message");
        assert!(!message.contains("PRIVATE"), "{message}");
    }
    let after = [
        set.secret("a", "web-tls").await,
        set.secret("a", "cm-tls").await,
    ];
    assert_eq!(before, after);
    assert_eq!(set.pebble.orders(), 0);
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server and Pebble: VESTIBULE_TEST_KUBECONFIG, e2e/tools/get"]
async fn releases_of_one_cluster_share_issuers_and_write_none_by_turns() {
    let set = Set::new().await;
    let other = World::new().await;
    set.issuer("a").await;
    let owner = async |world: &World| {
        let controller = world.controller();
        let owned = async || {
            let issuer = set.world.get("ACMEIssuer", "a", "ca").await?;
            let status = &issuer["status"];
            let ready = condition(&issuer, "Ready")?;
            let current = ready["observedGeneration"] == issuer["metadata"]["generation"];
            let theirs = status["controllerName"] == controller.as_str();
            (theirs && current && ready["status"] == "True").then_some(issuer)
        };
        eventually(&format!("a status of {controller}'s"), owned).await
    };
    // It leaves to others what has the label.
    let one = set.manager_with("one", |settings| {
        let others = Requirement::Absent("others".into());
        let requirements = vec![others];
        settings.acme.as_mut().expect("it is on").issuers = LabelSelector { requirements };
    });
    let accounts = || set.pebble.log().matches("POST /sign-me-up").count();
    // Nobody needs it yet, so the CA knows nothing of it.
    let idle = ("Ready", "Unknown", "NotRegistered");
    set.world.condition(("ACMEIssuer", "a", "ca"), idle).await;
    assert_eq!(accounts(), 0);
    set.asks("a", "web", "web.a.test").await;
    owner(&set.world).await;
    let registered = accounts();
    assert_eq!(registered, 1);

    // Another that may use it does so, by the account that is there, and says nothing.
    let engine = engine_of(&other);
    let two = other.manager_with("two", |settings| settings.acme = Some(engine));
    let asked = format!(
        "vestibule_operator_acme_requests_total{{issuer=\"ACMEIssuer/{}/ca\",result=\"ok\"",
        set.world.ns("a")
    );
    let asks = async |times: u64| {
        let asked = async || (two.metric(&asked) >= times).then_some(());
        eventually("the other release asks the CA", asked).await;
    };
    asks(1).await;
    set.issuer_with("a", "other@example.com", &json!({})).await;
    owner(&set.world).await;
    asks(2).await;
    let written = "vestibule_operator_status_writes_total{kind=\"ACMEIssuer\",result=\"Written\"";
    // An operator counts a write when the API server has answered, and the object is seen before.
    let writes = async |least: u64| {
        let counted = async || (one.metric(written) >= least).then_some(());
        eventually("a write that is counted", counted).await;
        one.metric(written)
    };
    assert_eq!(two.metric(written), 0);
    assert_eq!(accounts(), registered);
    // Three writes: nobody needs the issuer, it is registered, and it is registered with its new spec.
    let before = writes(3).await;

    // Given to the others, it is theirs, status and all.
    let label = json!({"others": "yes"});
    set.issuer_with("a", "other@example.com", &label).await;
    owner(&other).await;
    assert_eq!(writes(before + 1).await, before + 1);
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server and Pebble: VESTIBULE_TEST_KUBECONFIG, e2e/tools/get"]
async fn in_narrow_mode_only_listed_namespaces_are_touched() {
    let set = Set::new().await;
    set.world.ready(&["p-1"]).await;
    set.issuer("a").await;
    set.issuer("b").await;
    set.world.only_secrets_of(&["sys", "a"]).await;
    let listed: BTreeSet<Arc<str>> = ["sys", "a"].map(|part| set.world.ns(part).into()).into();
    let one = set.manager_with("one", |settings| {
        settings.secret_namespaces = Some(Arc::new(listed));
    });
    let _proxy = set.proxy(&[&one], "p-1");
    set.asks("b", "other", "other.b.test").await;
    set.asks("a", "web", "web.a.test").await;
    set.says(("a", "web"), "True", "Issued").await;
    let said = eventually("who has to do what", async || {
        let said = set.listener("b", "other", ISSUED).await?;
        let message = said["message"].as_str()?;
        message
            .contains("secrets.namespaces")
            .then_some(message.to_owned())
    });
    said.await;
    assert_eq!(set.secret("b", "other-tls").await, None);
    assert_eq!(set.pebble.orders(), 1);
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn contradicting_issuers_are_an_event() {
    let world = World::new().await;
    world.class().await;
    world.ready(&["p-1"]).await;
    world.apply(world.gateway("shared")).await;
    let one = world.manager("one");
    one.leading().await;
    let mut set = world.set("a", "web", "shared", "web.a.test");
    set["metadata"]["annotations"] = json!({
        "vestibule.dev/acme-issuer": "ca", "cert-manager.io/issuer": "ca",
    });
    set["spec"]["listeners"][0]["tls"] =
        json!({"mode": "Terminate", "certificateRefs": [{"name": "web-tls"}]});
    world.apply(set).await;
    let told = async || {
        let events = world.list("Event", "a").await;
        let of = |event: &&Value| event["reason"] == "ContradictingIssuers";
        events.values().find(of).cloned()
    };
    let event = eventually("an event", told).await;
    assert_eq!(event["type"], "Warning");
    one.stop().await;
}
