//! The engine with cert-manager's own support for ListenerSets off: Certificates come, change and go.

use std::time::Duration;

use serde_json::json;
use vestibule_model::condition::Reason;
use vestibule_model::issuance::IssuanceState;
use vestibule_operator::certmanager::Maker;

use crate::support::{Controller, Engine, Server, certificate, eventually};

const CA: (&str, &str) = ("cert-manager.io/issuer", "ca");

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn certificates_come_change_and_go() {
    let server = Server::start().await;
    server.world(&["a", "b"]).await;
    let engine = Engine::start(&server, Maker::Vestibule);
    let web = ("a", "web-tls");
    let set = async |annotations: &[(&str, &str)]| {
        let listeners = [
            ("one.example.com", "web-tls"),
            ("two.example.com", "web-tls"),
        ];
        server.set(("a", "web"), annotations, &listeners).await
    };
    let other = server
        .set(("b", "web"), &[CA], &[("b.example.com", "b-tls")])
        .await;
    let first = set(&[CA]).await;
    engine.ask([first.clone(), other.clone()]);
    let fact = engine
        .says(web, IssuanceState::Failed, "not installed")
        .await;
    assert_eq!(fact.reason, Reason::EngineNotAvailable);

    // cert-manager comes; of b's issuer there is nothing, which is nobody else's trouble.
    server.install();
    let _controller = Controller::start(&server, false);
    server.issuers("a").await;
    let fact = engine.says(web, IssuanceState::Issued, "is ready").await;
    assert_eq!(fact.reason, Reason::Issued);
    let secret = async || server.get("Secret", "a", "web-tls").await;
    let (names, by, before) = certificate(&secret().await.expect("a Secret")).expect("PEM");
    assert_eq!(names, ["one.example.com", "two.example.com"]);
    assert_eq!(by, "CN=root");
    engine
        .says(("b", "b-tls"), IssuanceState::Pending, "")
        .await;

    // Nobody writes while nothing happens.
    let idle = ("a", "web-tls");
    engine.says(idle, IssuanceState::Issued, "").await;
    assert_eq!(server.writes_at_rest().await, Vec::<String>::new());

    // Another issuer: the old certificate is there until the new one is.
    let second = set(&[
        ("cert-manager.io/issuer", "self"),
        ("cert-manager.io/private-key-algorithm", "ECDSA"),
    ])
    .await;
    engine.ask([second.clone(), other.clone()]);
    eventually("a self-signed certificate", async || {
        let secret = secret().await.expect("the Secret stays");
        let (_, by, now) = certificate(&secret).expect("there is always a certificate");
        assert!(
            now == before || by != "CN=root",
            "the old one or the new one"
        );
        (now != before).then_some(())
    })
    .await;
    engine.says(web, IssuanceState::Issued, "").await;
    let made = server
        .get("Certificate", "a", "web-tls")
        .await
        .expect("it is there");
    assert_eq!(made["spec"]["issuerRef"]["name"], "self");
    // What is not asked for any more is gone from the spec, too.
    engine.ask([
        set(&[("cert-manager.io/issuer", "self")]).await,
        other.clone(),
    ]);
    eventually("a spec without a private key", async || {
        let made = server.get("Certificate", "a", "web-tls").await?;
        made["spec"]["privateKey"].is_null().then_some(())
    })
    .await;

    // Somebody edits it: it is as it was before long.
    server
        .apply(json!({
            "apiVersion": "cert-manager.io/v1", "kind": "Certificate",
            "metadata": {"name": "web-tls", "namespace": "a"},
            "spec": {"secretName": "web-tls", "issuerRef": {"name": "self"}, "dnsNames": ["x.example.com"]},
        }))
        .await;
    eventually("the names of the listeners", async || {
        let made = server.get("Certificate", "a", "web-tls").await?;
        (made["spec"]["dnsNames"] == json!(["one.example.com", "two.example.com"])).then_some(())
    })
    .await;

    server.settled("a", "web-tls").await;

    // Nobody asks any more: the Certificate goes, the Secret stays.
    engine.ask([other]);
    eventually("no Certificate", async || {
        let made = server.get("Certificate", "a", "web-tls").await;
        made.is_none().then_some(())
    })
    .await;
    assert!(engine.fact("a", "web-tls").is_none());
    assert!(secret().await.is_some());
    // Asked for again, it takes up the Secret that is there.
    let kept = secret().await.map(|secret| secret["data"].clone());
    engine.ask([set(&[("cert-manager.io/issuer", "self")]).await]);
    engine.says(web, IssuanceState::Issued, "").await;
    let now = secret().await.map(|secret| secret["data"].clone());
    assert!(now == kept, "no certificate was asked for");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn certificate_refused_by_the_api_server_is_reported_and_holds_up_no_other() {
    let server = Server::ready(&["a", "b"]).await;
    let engine = Engine::start(&server, Maker::Vestibule);
    // No such usage, past the parser of annotations: the kind's own schema refuses it.
    let mut bad = server
        .set(("a", "bad"), &[CA], &[("bad.example.com", "bad-tls")])
        .await;
    for request in bad.values_mut() {
        let mut changed = (**request).clone();
        let mut options = (*changed.options).clone();
        options.usages = vec!["juggling".into()];
        changed.options = options.into();
        *request = changed.into();
    }
    let good = server
        .set(("b", "good"), &[CA], &[("good.example.com", "good-tls")])
        .await;
    engine.ask([bad, good]);
    let fact = engine
        .says(("a", "bad-tls"), IssuanceState::Failed, "juggling")
        .await;
    assert!(fact.message.len() < 800, "{}", fact.message);
    eventually("the other's", async || {
        server.get("Certificate", "b", "good-tls").await
    })
    .await;
    tokio::time::timeout(
        Duration::from_mins(1),
        engine.says(("b", "good-tls"), IssuanceState::Pending, ""),
    )
    .await
    .expect("a fact");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn cert_managers_kinds_may_go_and_come_back() {
    let server = Server::ready(&["a"]).await;
    let engine = Engine::start(&server, Maker::Vestibule);
    let set = server
        .set(("a", "web"), &[CA], &[("web.example.com", "web-tls")])
        .await;
    engine.ask([set]);
    let made = async || server.get("Certificate", "a", "web-tls").await;
    let first = eventually("a Certificate", made).await;
    server.uninstall();
    engine
        .says(
            ("a", "web-tls"),
            IssuanceState::Failed,
            "cert-manager is not installed",
        )
        .await;
    server.install();
    let second = eventually("another Certificate", made).await;
    assert_ne!(first["metadata"]["uid"], second["metadata"]["uid"]);
    engine
        .says(("a", "web-tls"), IssuanceState::Pending, "")
        .await;
    let written =
        r#"vestibule_operator_certificate_writes_total{action="create",result="written"}"#;
    eventually("both are counted", async || {
        (engine.metric(written) >= 2).then_some(())
    })
    .await;
}
