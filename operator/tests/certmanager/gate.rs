//! Beside cert-manager's own support for ListenerSets: whoever is first keeps the Certificate, the other says
//! so, and nobody writes.

use vestibule_model::condition::Reason;
use vestibule_model::issuance::IssuanceState;
use vestibule_operator::certmanager::Maker;

use crate::support::{Controller, Engine, Server, eventually};

const CA: (&str, &str) = ("cert-manager.io/issuer", "ca");

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn the_shims_are_left_to_the_shim() {
    let server = Server::ready(&["a"]).await;
    let controller = Controller::start(&server, true);
    server.issuers("a").await;
    let web = ("a", "web-tls");
    let asked = server
        .set(("a", "web"), &[CA], &[("web.example.com", "web-tls")])
        .await;
    eventually("the shim's Certificate", async || {
        server.get("Certificate", "a", "web-tls").await
    })
    .await;

    // The setting is wrong: it is said what to set, and nobody writes.
    let engine = Engine::start(&server, Maker::Vestibule);
    engine.ask([asked.clone()]);
    let hint = "set certManager.listenerSets to cert-manager";
    let fact = engine.says(web, IssuanceState::Issued, hint).await;
    assert_eq!(fact.reason, Reason::CertificateNotOurs);
    assert_eq!(server.writes_at_rest().await, Vec::<String>::new());
    drop(engine);

    // The setting is right.
    let engine = Engine::start(&server, Maker::CertManager);
    engine.ask([asked.clone()]);
    let fact = engine.says(web, IssuanceState::Issued, "valid until").await;
    assert_eq!(fact.reason, Reason::Issued);
    assert_eq!(server.writes_at_rest().await, Vec::<String>::new());
    drop(engine);

    // Ours from now on: the gate goes off, the Certificate goes, its Secret stays and is taken up.
    drop(controller);
    let kept = server
        .get("Secret", "a", "web-tls")
        .await
        .expect("a Secret")["data"]
        .clone();
    let _controller = Controller::start(&server, false);
    let engine = Engine::start(&server, Maker::Vestibule);
    engine.ask([asked]);
    engine.says(web, IssuanceState::Issued, hint).await;
    server.delete("Certificate", "a", "web-tls").await;
    let fact = engine.says(web, IssuanceState::Issued, "valid until").await;
    assert_eq!(fact.reason, Reason::Issued);
    let now = server
        .get("Secret", "a", "web-tls")
        .await
        .expect("a Secret");
    assert!(now["data"] == kept, "no certificate was asked for");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn the_shim_leaves_ours_alone_and_gets_them_when_it_shall() {
    let server = Server::ready(&["a"]).await;
    let web = ("a", "web-tls");
    let asked = server
        .set(("a", "web"), &[CA], &[("web.example.com", "web-tls")])
        .await;
    let engine = Engine::start(&server, Maker::Vestibule);
    engine.ask([asked.clone()]);
    eventually("our Certificate", async || {
        server.get("Certificate", "a", "web-tls").await
    })
    .await;
    // The gate comes on later.
    let _controller = Controller::start(&server, true);
    server.issuers("a").await;
    let fact = engine.says(web, IssuanceState::Issued, "valid until").await;
    assert_eq!(fact.reason, Reason::Issued);
    assert_eq!(server.writes_at_rest().await, Vec::<String>::new());
    let ours = server
        .get("Certificate", "a", "web-tls")
        .await
        .expect("ours");
    drop(engine);

    // cert-manager shall make them: ours makes room, the shim's comes with the next look at the set.
    let kept = server
        .get("Secret", "a", "web-tls")
        .await
        .expect("a Secret")["data"]
        .clone();
    let engine = Engine::start(&server, Maker::CertManager);
    engine.ask([asked]);
    engine
        .says(web, IssuanceState::Pending, "has made no Certificate")
        .await;
    server
        .set(
            ("a", "web"),
            &[CA, ("touched", "yes")],
            &[("web.example.com", "web-tls")],
        )
        .await;
    let fact = engine.says(web, IssuanceState::Issued, "valid until").await;
    assert_eq!(fact.reason, Reason::Issued);
    let theirs = server
        .get("Certificate", "a", "web-tls")
        .await
        .expect("theirs");
    assert_ne!(theirs["metadata"]["uid"], ours["metadata"]["uid"]);
    assert_eq!(theirs["metadata"]["ownerReferences"][0]["controller"], true);
    let now = server
        .get("Secret", "a", "web-tls")
        .await
        .expect("a Secret");
    assert!(now["data"] == kept, "no certificate was asked for");
    assert_eq!(server.writes_at_rest().await, Vec::<String>::new());
}
