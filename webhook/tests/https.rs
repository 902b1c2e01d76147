//! The server as API servers meet it: TLS, keep-alive, rotation, bounds, and its end.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use vestibule_crds::decode;
use vestibule_model::policy::Policy;
use vestibule_test_support::eventually;
use vestibule_webhook::Admission;
use vestibule_webhook::server::Webhook;
use vestibule_webhook_testing::objects::{CONTROLLER, class, gateway, listener_set};
use vestibule_webhook_testing::{
    Certificate, Client, PATIENCE, TlsDir, all_synced, as_kubectl_shows, config, created, get,
    ready, readyz, review, serving, tls, tls_of, tls_over,
};

fn set(namespace: &str, hostname: &str) -> Value {
    listener_set(namespace, "web", hostname)
}

async fn server(name: &str) -> (Webhook, TlsDir, Certificate) {
    let (dir, certificate) = (TlsDir::new(name), Certificate::self_signed());
    dir.put(&certificate.chain, &certificate.key);
    let webhook = ready(&dir, Policy::default(), vec![class(), gateway()]).await;
    (webhook, dir, certificate)
}

async fn client(webhook: &Webhook, certificate: &Certificate) -> Client {
    Client::connect(webhook.address(), std::slice::from_ref(&certificate.der))
        .await
        .expect("a connection")
}

#[tokio::test]
async fn kubectl_shows_what_is_wrong_where_and_what_to_do() {
    let (webhook, _dir, certificate) = server("kubectl").await;
    let mut client = client(&webhook, &certificate).await;
    let mut wildcard = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "TLSRoute",
        "metadata": {"namespace": "alpha", "name": "r"},
        "spec": {
            "parentRefs": [{"name": "entrance", "namespace": "infra"}],
            "hostnames": ["*.example.com"],
            "rules": [{"backendRefs": [{"name": "app", "port": 443}]}],
        },
    });
    let mut shown = async |object: &Value| {
        let answer = client
            .post(created(object).to_string())
            .await
            .expect("an answer");
        as_kubectl_shows(&answer.json(), "enforced.vestibule.dev")
    };
    assert_eq!(
        shown(&wildcard).await,
        [
            "Error from server (Forbidden): admission webhook \"enforced.vestibule.dev\" denied the \
             request: spec.hostnames[0]: \"*.example.com\" is a wildcard, and here a TLSRoute names \
             each host; list the exact hostnames"
        ]
    );
    wildcard["spec"]["hostnames"] = json!(["*.1.2.3.4"]);
    let address = shown(&wildcard).await;
    assert!(
        address[0].contains("spec.hostnames[0]: \"*.1.2.3.4\""),
        "{address:?}"
    );
    let first = set("alpha", "a.example");
    assert_eq!(shown(&first).await, [""; 0]);
    webhook
        .admission()
        .put(decode(first).into_object().expect("an object").0);
    // The other tenant is not named.
    let conflict = shown(&set("beta", "a.example")).await;
    assert_eq!(
        conflict,
        [
            "Error from server (Forbidden): admission webhook \"enforced.vestibule.dev\" denied the \
             request: spec.listeners[0].hostname: hostname \"a.example\" on port 443 is taken by \
             another listener on Gateway infra/entrance; use another hostname or port, or have the \
             present listener removed first"
        ]
    );
    let mut closed = gateway();
    closed["metadata"]["name"] = "other".into();
    closed["spec"]["listeners"][0]["hostname"] = "1.2.3.4".into();
    let warned = shown(&closed).await;
    assert!(
        warned[0].starts_with("Warning: spec.listeners[0].hostname: "),
        "{warned:?}"
    );
}

#[tokio::test]
async fn is_ready_when_there_is_a_certificate_and_everything_was_read() {
    let dir = TlsDir::new("ready");
    let mut webhook = Webhook::start(
        config(&dir.path),
        Admission::new(CONTROLLER, Policy::default()),
    )
    .expect("a server");
    let why = async |webhook: &Webhook| get(webhook.admin(), "/readyz").await;
    assert_eq!(
        why(&webhook).await,
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "waits for a certificate\n".to_owned()
        )
    );
    let certificate = Certificate::self_signed();
    let trusted = std::slice::from_ref(&certificate.der);
    assert!(Client::connect(webhook.address(), trusted).await.is_err());
    dir.put(&certificate.chain, &certificate.key);
    eventually("without the first reason", async || {
        why(&webhook).await.1 == "has not read everything yet\n"
    })
    .await;
    let (events, stream) = futures_channel();
    webhook.follow(stream);
    for event in all_synced() {
        assert_eq!(
            readyz(webhook.admin()).await,
            StatusCode::SERVICE_UNAVAILABLE
        );
        events.send(event).await.expect("somebody listens");
    }
    eventually("ready", async || {
        readyz(webhook.admin()).await == StatusCode::OK
    })
    .await;
    // The end of the watch is nothing that clients could notice.
    drop(events);
    let mut client = client(&webhook, &certificate).await;
    let answer = client
        .post(created(&set("alpha", "a.example")).to_string())
        .await;
    assert_eq!(
        answer.expect("an answer").json()["response"]["allowed"],
        true
    );
    assert_eq!(readyz(webhook.admin()).await, StatusCode::OK);
    let metrics = get(webhook.admin(), "/metrics").await.1;
    for line in [
        "vestibule_webhook_store_synced 1",
        "vestibule_webhook_reviews_total{kind=\"ListenerSet\",result=\"allowed\",mode=\"Enforce\"} 1",
        "vestibule_webhook_review_duration_seconds_count 1",
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line} in\n{metrics}");
    }
    let expiry = metrics
        .lines()
        .find_map(|l| l.strip_prefix("vestibule_webhook_certificate_expiry_timestamp_seconds "))
        .and_then(|value| value.parse::<f64>().ok());
    assert!(expiry > Some(0.0), "{metrics}");
}

type Events = vestibule_crds::watch::Event;

fn futures_channel() -> (
    tokio::sync::mpsc::Sender<Events>,
    impl futures::Stream<Item = Events>,
) {
    let (sender, receiver) = tokio::sync::mpsc::channel(8);
    let stream = futures::stream::unfold(receiver, |mut receiver| async {
        let event = receiver.recv().await?;
        Some((event, receiver))
    });
    (sender, stream)
}

#[tokio::test]
async fn a_rotated_certificate_is_shown_to_new_connections_and_old_ones_go_on() {
    let (webhook, dir, first) = server("rotate").await;
    let second = Certificate::self_signed();
    let mut old = client(&webhook, &first).await;
    let body = created(&set("alpha", "a.example")).to_string();
    assert_eq!(old.post(body.clone()).await.expect("an answer").status, 200);
    // What cannot be used changes nothing.
    dir.put(&second.chain, &first.key);
    dir.put(&second.chain, &second.key);
    let trusted = [first.der.clone(), second.der.clone()];
    eventually("exchanged", async || {
        let new = Client::connect(webhook.address(), &trusted).await;
        new.expect("a connection").shown == second.der
    })
    .await;
    assert_eq!(old.post(body).await.expect("an answer").status, 200);
}

#[tokio::test]
async fn both_versions_of_tls_are_spoken() {
    let (webhook, _dir, certificate) = server("versions").await;
    let trusted = std::slice::from_ref(&certificate.der);
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let stream = tls_of(webhook.address(), trusted, &[version]).await;
        let session = stream.expect("TLS").into_inner().1;
        assert_eq!(session.protocol_version(), Some(version.version));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_who_want_one_name_at_once_one_gets_it() {
    let (dir, certificate) = (TlsDir::new("race"), Certificate::self_signed());
    dir.put(&certificate.chain, &certificate.key);
    let admission = Admission::new(CONTROLLER, Policy::default());
    // However busy the machine is.
    let webhook = serving(
        &dir,
        admission.with_patience(Duration::from_mins(5)),
        vec![class(), gateway()],
    )
    .await;
    for round in 0..8 {
        let mut clients = Vec::new();
        for tenant in 0..8 {
            let mut client = client(&webhook, &certificate).await;
            let wanted = set(&format!("t{tenant}"), &format!("r{round}.example"));
            let admission = Arc::clone(webhook.admission());
            clients.push(tokio::spawn(async move {
                let answer = client.post(created(&wanted).to_string()).await;
                let admitted = answer.expect("an answer").json()["response"]["allowed"] == true;
                if admitted {
                    // As the watch shows it.
                    admission.put(decode(wanted).into_object().expect("an object").0);
                }
                admitted
            }));
        }
        let mut admitted = 0;
        for client in clients {
            admitted += usize::from(client.await.expect("an answer"));
        }
        assert_eq!(admitted, 1, "round {round}");
    }
}

/// Whoever reaches the port can send reviews of sets that nobody applied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_review_delays_and_refuses_nothing() {
    let (webhook, _dir, certificate) = server("forged").await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut forgers = Vec::new();
    for number in 0..4 {
        let mut client = client(&webhook, &certificate).await;
        let forged = created(&set(&format!("forged{number}"), "wanted.example")).to_string();
        let stop = Arc::clone(&stop);
        forgers.push(tokio::spawn(async move {
            let mut sent = 0;
            while !stop.load(Ordering::Relaxed) {
                client.post(forged.clone()).await.expect("an answer");
                sent += 1;
            }
            sent
        }));
    }
    eventually("forged", async || webhook.admission().remembered() > 0).await;
    let mut client = client(&webhook, &certificate).await;
    for tenant in 0..4 {
        let wanted = created(&set(&format!("t{tenant}"), "wanted.example")).to_string();
        let answer = client.post(wanted).await.expect("an answer").json();
        assert_eq!(answer["response"]["allowed"], true, "{answer}");
    }
    stop.store(true, Ordering::Relaxed);
    for forger in forgers {
        assert!(forger.await.expect("answers") > 0);
    }
    let metrics = get(webhook.admin(), "/metrics").await.1;
    let waits = metrics
        .lines()
        .find(|line| line.starts_with("vestibule_webhook_review_waits_total "))
        .expect("the metric");
    assert!(!waits.ends_with(" 0"), "{waits}");
}

#[tokio::test]
async fn request_that_is_no_review_has_a_status_of_its_own() {
    let (webhook, _dir, certificate) = server("status").await;
    let body = created(&set("alpha", "a.example")).to_string();
    let beta = body.replace("admission.k8s.io/v1", "admission.k8s.io/v1beta1");
    let long = " ".repeat(vestibule_webhook::MAX_BYTES + 1);
    for (method, path, media, body, status) in [
        (
            Method::POST,
            "/validate",
            "application/json",
            beta.as_str(),
            400,
        ),
        (Method::POST, "/validate", "application/json", "", 400),
        (Method::POST, "/validate", "text/plain", body.as_str(), 415),
        (
            Method::POST,
            "/validate",
            "application/json",
            long.as_str(),
            413,
        ),
        (Method::GET, "/validate", "application/json", "", 405),
        (
            Method::POST,
            "/mutate",
            "application/json",
            body.as_str(),
            404,
        ),
        (
            Method::POST,
            "/validate?timeout=5s",
            "application/json; charset=utf-8",
            body.as_str(),
            200,
        ),
    ] {
        let mut client = client(&webhook, &certificate).await;
        let answer = client.send(method, path, media, body.to_owned()).await;
        assert_eq!(answer.expect("an answer").status, status, "{path} {media}");
    }
    let metrics = get(webhook.admin(), "/metrics").await.1;
    for reason in ["TooLong", "NotJSON"] {
        let line = format!("vestibule_webhook_errors_total{{reason=\"{reason}\"}} 1");
        assert!(metrics.contains(&line), "{metrics}");
    }
}

#[tokio::test]
async fn an_object_of_three_mebibytes_is_reviewed() {
    let (webhook, _dir, certificate) = server("large").await;
    let mut client = client(&webhook, &certificate).await;
    let mut large = set("alpha", "a.example");
    large["metadata"]["annotations"] = json!({"a/b": "x".repeat(3 << 20)});
    let review = review("UPDATE", &large, &large);
    let answer = client.post(review.to_string()).await.expect("an answer");
    assert_eq!(answer.json()["response"]["allowed"], true);
}

#[tokio::test]
async fn source_that_takes_every_place_keeps_no_other_source_out() {
    let (dir, certificate) = (TlsDir::new("places"), Certificate::self_signed());
    dir.put(&certificate.chain, &certificate.key);
    let mut config = config(&dir.path);
    config.limits.connections = 4;
    config.limits.handshake = Duration::from_hours(1);
    let admission = Admission::new(CONTROLLER, Policy::default());
    let webhook = Webhook::start(config, admission).expect("a server");
    let trusted = std::slice::from_ref(&certificate.der);
    let mut silent = Vec::new();
    for _ in 0..8 {
        let stream = tokio::net::TcpStream::connect(webhook.address()).await;
        silent.push(stream.expect("a connection"));
    }
    let from_elsewhere = async || {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        let source = std::net::SocketAddr::from(([127, 0, 0, 2], 0));
        socket.bind(source).expect("an address of loopback");
        let stream = socket.connect(webhook.address()).await?;
        tls_over(stream, trusted, rustls::DEFAULT_VERSIONS).await
    };
    let served = timeout(PATIENCE, async {
        eventually("served", async || from_elsewhere().await.is_ok()).await;
    });
    served.await.expect("a place for another source");
}

#[tokio::test]
async fn webhook_reports_that_a_part_of_it_has_ended() {
    let dir = TlsDir::new("ended");
    let admission = Admission::new(CONTROLLER, Policy::default());
    let mut webhook = Webhook::start(config(&dir.path), admission).expect("a server");
    webhook.follow(futures::stream::empty());
    let ended = timeout(PATIENCE, webhook.ended()).await;
    ended.expect("the watch has ended");
}

#[tokio::test]
async fn slow_and_silent_connections_end() {
    let (dir, certificate) = (TlsDir::new("slow"), Certificate::self_signed());
    dir.put(&certificate.chain, &certificate.key);
    let mut config = config(&dir.path);
    config.limits.handshake = Duration::from_secs(1);
    config.limits.first_request = Duration::from_secs(1);
    config.limits.idle = Duration::from_secs(1);
    config.limits.request = Duration::from_secs(1);
    let webhook =
        Webhook::start(config, Admission::new(CONTROLLER, Policy::default())).expect("a server");
    let trusted = std::slice::from_ref(&certificate.der);
    eventually("there", async || {
        tls(webhook.address(), trusted).await.is_ok()
    })
    .await;
    let ends = async |stream: &mut (dyn tokio::io::AsyncRead + Unpin + Send)| {
        let mut rest = Vec::new();
        let end = timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
        if let Err(error) = end.expect("an end") {
            assert!(
                matches!(
                    error.kind(),
                    ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset
                ),
                "{error}"
            );
        }
    };
    let mut no_handshake = tokio::net::TcpStream::connect(webhook.address())
        .await
        .expect("a connection");
    ends(&mut no_handshake).await;
    let connect = async || tls(webhook.address(), trusted).await.expect("TLS");
    let mut no_request = connect().await;
    ends(&mut no_request).await;
    let mut half_head = connect().await;
    half_head
        .write_all(b"POST /validate HTTP/1.1\r\nhost:")
        .await
        .expect("written");
    ends(&mut half_head).await;
    let head = "POST /validate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
                content-length: 100\r\n\r\n{";
    let mut half_body = connect().await;
    half_body.write_all(head.as_bytes()).await.expect("written");
    ends(&mut half_body).await;
    let mut idle = connect().await;
    let whole = head.replace(
        "content-length: 100\r\n\r\n{",
        "content-length: 2\r\n\r\n{}",
    );
    idle.write_all(whole.as_bytes()).await.expect("written");
    ends(&mut idle).await;
    let metrics = get(webhook.admin(), "/metrics").await.1;
    for reason in ["SlowHandshake", "NoRequest", "SlowRequest", "Idle"] {
        assert!(
            metrics.contains(&format!("errors_total{{reason=\"{reason}\"}}")),
            "{reason} in\n{metrics}"
        );
    }
    eventually("without connections", async || {
        let metrics = get(webhook.admin(), "/metrics").await.1;
        metrics.contains("connections_active 0")
    })
    .await;
}

/// A client as an API server: keeps a connection as long as the server does, never tries again.
async fn stream_of_applies(
    webhook: std::net::SocketAddr,
    certificate: &Certificate,
    namespace: &str,
    mut go_on: impl FnMut() -> bool,
) -> (usize, usize) {
    let trusted = std::slice::from_ref(&certificate.der);
    let body = created(&set(namespace, &format!("{namespace}.example"))).to_string();
    let (mut answered, mut connections) = (0, 0);
    let mut client = None;
    while go_on() {
        if client.is_none() {
            connections += 1;
        }
        let mut kept: Client = match client.take() {
            Some(client) => client,
            None => Client::connect(webhook, trusted)
                .await
                .expect("a connection"),
        };
        let answer = kept.post(body.clone()).await.expect("an answer");
        assert_eq!(answer.json()["response"]["allowed"], true);
        answered += 1;
        if !answer.last {
            client = Some(kept);
        }
    }
    (answered, connections)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_apply_fails_while_it_leaves() {
    let (webhook, _dir, certificate) = server("leave").await;
    let (address, admin) = (webhook.address(), webhook.admin());
    let (end, ended) = tokio::sync::watch::channel(false);
    let mut clients = Vec::new();
    for client in 0..4 {
        let (certificate, ended) = (
            Certificate {
                der: certificate.der.clone(),
                chain: String::new(),
                key: String::new(),
            },
            ended.clone(),
        );
        clients.push(tokio::spawn(async move {
            let namespace = format!("n{client}");
            stream_of_applies(address, &certificate, &namespace, || !*ended.borrow()).await
        }));
    }
    let mut idle = Client::connect(address, std::slice::from_ref(&certificate.der))
        .await
        .expect("a connection");
    let body = created(&set("alpha", "a.example")).to_string();
    assert!(!idle.post(body.clone()).await.expect("an answer").last);
    eventually("under way", async || {
        let metrics = get(admin, "/metrics").await.1;
        let count = metrics
            .lines()
            .find_map(|l| l.strip_prefix("vestibule_webhook_review_duration_seconds_count "))
            .and_then(|n| n.parse::<u64>().ok());
        count > Some(50)
    })
    .await;

    let (everybody_knows, known) = tokio::sync::oneshot::channel();
    let known = async { known.await.expect("the test goes on") };
    let stop = tokio::spawn(webhook.stop(known, PATIENCE));
    eventually("unready", async || {
        get(admin, "/readyz").await == (StatusCode::SERVICE_UNAVAILABLE, "shuts down\n".to_owned())
    })
    .await;
    assert_eq!(get(admin, "/servingz").await.0, StatusCode::OK);
    // Old and new connections are answered, and told that this is their last answer.
    assert!(idle.post(body.clone()).await.expect("an answer").last);
    let mut new = Client::connect(address, std::slice::from_ref(&certificate.der))
        .await
        .expect("a connection");
    assert!(new.post(body).await.expect("an answer").last);
    end.send_replace(true);
    for client in clients {
        let (answered, connections) = client.await.expect("no apply failed");
        assert!(answered > 0 && connections > 0);
    }
    everybody_knows.send(()).expect("it still listens");
    assert!(stop.await.expect("no panic"), "something was cut");
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn request_begun_before_the_stop_is_finished_and_idle_connections_close() {
    let (webhook, _dir, certificate) = server("finish").await;
    let trusted = std::slice::from_ref(&certificate.der);
    let mut idle = client(&webhook, &certificate).await;
    let body = created(&set("alpha", "a.example")).to_string();
    assert_eq!(
        idle.post(body.clone()).await.expect("an answer").status,
        200
    );
    let mut begun = tls(webhook.address(), trusted).await.expect("TLS");
    let head = format!(
        "POST /validate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    let (first, second) = body.split_at(body.len() / 2);
    begun.write_all(head.as_bytes()).await.expect("written");
    begun.write_all(first.as_bytes()).await.expect("written");
    begun.flush().await.expect("written");
    let address = webhook.address();
    let stop = tokio::spawn(webhook.stop(std::future::ready(()), PATIENCE));
    eventually("closed", async || {
        tokio::net::TcpStream::connect(address).await.is_err()
    })
    .await;
    eventually("closed", async || idle.sender.is_closed()).await;
    begun.write_all(second.as_bytes()).await.expect("written");
    let mut answer = String::new();
    timeout(PATIENCE, begun.read_to_string(&mut answer))
        .await
        .expect("an end")
        .expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("connection: close\r\n"), "{answer}");
    assert!(answer.contains(r#""allowed":true"#), "{answer}");
    assert!(stop.await.expect("no panic"));
}
