//! The configuration stream over TLS: who is let in, and what those who are not can do.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request};
use vestibule_operator::publish::tls::ConnectionLimits;
use vestibule_operator_testing::secure::{
    NAME, Operator, POD, ReviewAnswer, USER, authority, token,
};
use vestibule_operator_testing::stream::{BOUND, Counted, backend, hash, key};
use vestibule_stream::client::{ClientState, Connect};
use vestibule_stream::proto::config_stream_client::ConfigStreamClient;
use vestibule_stream::proto::{Hello, ProxyMessage, proxy_message};
use vestibule_test_support::frames::{PING, PREFACE, frame, preface};

/// The last thing that went wrong for a proxy, as it tells.
fn refusal(state: &ClientState) -> (&'static str, String) {
    let last = state.last_refusal.clone();
    last.map_or(("", String::new()), |last| (last.reason, last.message))
}

/// What the operator answers to a call with this `authorization`, without any message of the proxy.
async fn call(operator: &Operator, authorization: Option<&str>) -> tonic::Status {
    let channel = operator.connector().connect(&operator.address).await;
    let mut client = ConfigStreamClient::new(channel.unwrap());
    let (_sender, messages) = mpsc::channel(1);
    let mut request = Request::new(ReceiverStream::new(messages));
    if let Some(value) = authorization {
        let value = MetadataValue::try_from(value).unwrap();
        request.metadata_mut().insert("authorization", value);
    }
    let answer = timeout(BOUND, client.subscribe(request)).await.unwrap();
    answer.expect_err("it is refused")
}

/// Reads until the peer closes.
async fn closed(stream: &mut (impl AsyncReadExt + Unpin)) {
    let mut sink = vec![0; 4096];
    let end = async {
        loop {
            match stream.read(&mut sink).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    };
    timeout(BOUND, end).await.expect("the operator closes it");
}

/// A connection over TLS on which nothing was said yet.
async fn stranger(operator: &Operator) -> tokio_rustls::client::TlsStream<TcpStream> {
    let tcp = TcpStream::connect(&operator.address).await.unwrap();
    let connector = TlsConnector::from(Arc::new(operator.client_config(&[b"h2"])));
    let name = ServerName::try_from(NAME).unwrap();
    connector.connect(name, tcp).await.unwrap()
}

#[tokio::test]
async fn a_proxy_with_a_good_token_is_served() {
    let operator = Operator::start(ConnectionLimits::default()).await;
    operator.publish(&[backend("a/b:1", 1)]);
    let mut proxy = operator.proxy(POD);
    proxy.until(|state| state.held.is_some()).await;
    assert_eq!(
        proxy.table.hashes()[&key("a/b:1")],
        hash(&backend("a/b:1", 1))
    );
    assert_eq!(Counted::by(&operator.publisher).proxies, 1);
}

#[tokio::test]
async fn a_bad_token_is_refused_with_what_to_do_and_a_good_one_is_taken_at_once() {
    let operator = Operator::start(ConnectionLimits::default()).await;
    operator.publish(&[backend("a/b:1", 1)]);
    operator.show(&token(
        "system:serviceaccount:team-a:default",
        "vestibule-config",
        600,
    ));
    let mut proxy = operator.proxy(POD);
    proxy
        .until(|state| refusal(state).0 == "Unauthorized")
        .await;
    let (_, message) = refusal(&proxy.state.borrow());
    assert!(
        message.contains("is not of system:serviceaccount:ns:r-proxy"),
        "{message}"
    );
    assert!(proxy.table.hashes().is_empty());
    assert_eq!(operator.reviews.load(Ordering::Relaxed), 0);

    operator.show(&token(USER, "vestibule-config", 600));
    proxy.until(|state| state.held.is_some()).await;
}

#[tokio::test]
async fn an_api_server_that_is_away_stops_nobody_for_good() {
    let operator = Operator::start(ConnectionLimits::default()).await;
    operator.publish(&[backend("a/b:1", 1)]);
    operator.answer(ReviewAnswer::Away);
    let mut proxy = operator.proxy(POD);
    proxy
        .until(|state| refusal(state).1.contains("cannot be asked"))
        .await;
    operator.answer(ReviewAnswer::Good);
    proxy.until(|state| state.held.is_some()).await;

    // A proxy that is connected already goes on without it.
    operator.answer(ReviewAnswer::Away);
    operator.publish(&[backend("a/c:1", 1)]);
    let generation = operator.publisher.generation();
    proxy.until(|state| state.held == Some(generation)).await;
}

#[tokio::test]
async fn a_proxy_is_the_pod_of_its_token_and_no_other() {
    let operator = Operator::start(ConnectionLimits::default()).await;
    operator.publish(&[backend("a/b:1", 1)]);
    let mut proxy = operator.proxy("r-proxy-other");
    proxy
        .until(|state| refusal(state).0 == "Unauthorized")
        .await;
    let (_, message) = refusal(&proxy.state.borrow());
    assert!(message.contains(POD), "{message}");
    assert_eq!(Counted::by(&operator.publisher).proxies, 0);
    assert!(proxy.table.hashes().is_empty());
}

#[tokio::test]
async fn a_stream_ends_with_its_token_and_goes_on_with_the_next() {
    let operator = Operator::start(ConnectionLimits::default()).await;
    operator.publish(&[backend("a/b:1", 1)]);
    operator.show(&token(USER, "vestibule-config", 5));
    let mut proxy = operator.proxy(POD);
    proxy.until(|state| state.held.is_some()).await;
    let held = proxy.state.borrow().held;
    let sent = Counted::by(&operator.publisher).resource_bytes;
    operator.show(&token(USER, "vestibule-config", 600));
    proxy
        .until(|state| refusal(state).1.contains("expired"))
        .await;
    // What it acknowledged is still known, so nothing looks less than programmed meanwhile.
    assert_eq!(operator.publisher.programmed(&[]).acked, 1);
    proxy
        .until(|state| state.welcomed == 2 && state.held > held)
        .await;
    let after = Counted::by(&operator.publisher).resource_bytes;
    assert_eq!(after, sent, "nothing was sent twice");
}

/// A client with one proxy's token cannot take streams that the other proxies need.
#[tokio::test]
async fn the_streams_of_one_proxy_are_few() {
    let operator = Operator::start(ConnectionLimits::default()).await;
    let token = token(USER, "vestibule-config", 600);
    let header = MetadataValue::try_from(format!("Bearer {token}")).unwrap();
    let mut held = Vec::new();
    let refused = loop {
        let channel = operator.connector().connect(&operator.address).await;
        let mut client = ConfigStreamClient::new(channel.unwrap());
        let (sender, messages) = mpsc::channel(1);
        let mut request = Request::new(ReceiverStream::new(messages));
        let header = header.clone();
        request.metadata_mut().insert("authorization", header);
        match timeout(BOUND, client.subscribe(request)).await.unwrap() {
            Ok(stream) => held.push((stream, sender)),
            Err(status) => break status,
        }
        assert!(held.len() < 100, "there is no bound");
    };
    assert_eq!(refused.code(), Code::ResourceExhausted);
    drop(held);
    operator.publish(&[backend("a/b:1", 1)]);
    let mut proxy = operator.proxy(POD);
    proxy.until(|state| state.held.is_some()).await;
}

#[tokio::test]
async fn calls_without_a_good_token_are_refused_before_a_message_is_read() {
    let operator = Operator::start(ConnectionLimits::default()).await;
    for authorization in [
        None,
        Some("Bearer"),
        Some("Basic dTpw"),
        Some("Bearer x.y.z"),
    ] {
        let status = call(&operator, authorization).await;
        assert_eq!(
            status.code(),
            Code::Unauthenticated,
            "{authorization:?}: {status}"
        );
    }
    operator.answer(ReviewAnswer::Rejected);
    let good = format!("Bearer {}", token(USER, "vestibule-config", 600));
    let status = call(&operator, Some(&good)).await;
    assert_eq!(status.code(), Code::Unauthenticated);
    assert!(!status.message().contains(&good[20..60]), "{status}");
    assert_eq!(Counted::by(&operator.publisher).proxies, 0);
}

#[tokio::test]
async fn a_follower_tells_only_proxies_who_leads() {
    let operator = Operator::start(ConnectionLimits::default()).await;
    operator.publisher.follow(Some("192.0.2.9:9443".into()));
    let status = call(&operator, Some("Bearer x.y.z")).await;
    assert_eq!(status.code(), Code::Unauthenticated);
    assert!(!status.message().contains("192.0.2.9"));
    let mut proxy = operator.proxy(POD);
    proxy
        .until(|state| refusal(state).1.contains("192.0.2.9"))
        .await;
}

#[tokio::test]
async fn a_new_certificate_is_served_without_a_restart() {
    let mut operator = Operator::start(ConnectionLimits::default()).await;
    operator.publish(&[backend("a/b:1", 1)]);
    let mut proxy = operator.proxy(POD);
    proxy.until(|state| state.connected.is_some()).await;

    // Of an authority that the proxies do not trust: the open stream goes on.
    let (certificate, next) = authority(NAME);
    operator.serve_with(&certificate);
    operator.publish(&[backend("a/c:1", 1)]);
    let generation = operator.publisher.generation();
    proxy.until(|state| state.held == Some(generation)).await;
    assert_eq!(proxy.state.borrow().welcomed, 1);

    let mut late = operator.proxy(POD);
    late.until(|state| refusal(state).0 == "Unreachable").await;
    let (_, message) = refusal(&late.state.borrow());
    assert!(message.contains("no authority in"), "{message}");
    operator.trust(&next);
    late.until(|state| state.held.is_some()).await;
}

#[tokio::test]
async fn without_a_certificate_nobody_gets_in_and_nothing_breaks() {
    let mut operator = Operator::start(ConnectionLimits::default()).await;
    operator.publish(&[backend("a/b:1", 1)]);
    operator.serve_nothing();
    let mut proxy = operator.proxy(POD);
    proxy.until(|state| refusal(state).0 == "Unreachable").await;
    let (certificate, root) = authority(NAME);
    operator.trust(&root);
    operator.serve_with(&certificate);
    proxy.until(|state| state.held.is_some()).await;
}

#[tokio::test]
async fn only_tls_1_3_and_http_2_are_spoken() {
    let operator = Operator::start(ConnectionLimits::default()).await;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let old = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(operator.roots())
        .with_no_client_auth();
    for config in [old, operator.client_config(&[b"http/1.1"])] {
        let tcp = TcpStream::connect(&operator.address).await.unwrap();
        let name = ServerName::try_from(NAME).unwrap();
        let handshake = TlsConnector::from(Arc::new(config))
            .connect(name, tcp)
            .await;
        handshake.expect_err("refused");
    }
    // Plain HTTP/2, as the proxies of a test speak it.
    let mut plain = TcpStream::connect(&operator.address).await.unwrap();
    plain.write_all(PREFACE).await.unwrap();
    closed(&mut plain).await;
}

fn hasty() -> ConnectionLimits {
    ConnectionLimits {
        handshake: Duration::from_secs(2),
        strangers_stay: Duration::from_secs(2),
        strangers: 8,
        strangers_per_source: 4,
        ..ConnectionLimits::default()
    }
}

#[tokio::test]
async fn strangers_do_not_stay() {
    let operator = Operator::start(hasty()).await;
    // One that never begins, one that stops after the handshake, one that only sends pings.
    let mut silent = TcpStream::connect(&operator.address).await.unwrap();
    closed(&mut silent).await;
    let mut idle = stranger(&operator).await;
    closed(&mut idle).await;
    let mut pinging = stranger(&operator).await;
    pinging.write_all(&preface()).await.unwrap();
    let ping = frame(PING, 0, 0, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let (mut reading, mut writing) = tokio::io::split(pinging);
    let pings = async move {
        while writing.write_all(&ping).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let pings = tokio::spawn(pings);
    closed(&mut reading).await;
    pings.abort();
}

#[tokio::test]
async fn a_proxy_stays_longer_than_strangers_may() {
    let operator = Operator::start(hasty()).await;
    operator.publish(&[backend("a/b:1", 1)]);
    let mut proxy = operator.proxy(POD);
    proxy.until(|state| state.held.is_some()).await;
    // Until strangers who came later are gone.
    let mut idle = stranger(&operator).await;
    closed(&mut idle).await;
    operator.publish(&[backend("a/c:1", 1)]);
    let generation = operator.publisher.generation();
    proxy.until(|state| state.held == Some(generation)).await;
    assert_eq!(proxy.state.borrow().welcomed, 1);
}

#[tokio::test]
async fn strangers_of_one_address_are_few_and_proxies_get_in_when_they_are_gone() {
    let operator = Operator::start(hasty()).await;
    operator.publish(&[backend("a/b:1", 1)]);
    let mut crowd = Vec::new();
    for _ in 0..4 {
        crowd.push(stranger(&operator).await);
    }
    let mut one_more = TcpStream::connect(&operator.address).await.unwrap();
    closed(&mut one_more).await;
    let mut proxy = operator.proxy(POD);
    proxy.until(|state| state.held.is_some()).await;
    drop(crowd);
}

#[tokio::test]
async fn a_flood_of_tokens_does_not_reach_the_api_server_nor_keep_others_out() {
    let operator = Operator::start(ConnectionLimits::default()).await;
    operator.publish(&[backend("a/b:1", 1)]);
    let mut proxy = operator.proxy(POD);
    proxy.until(|state| state.held.is_some()).await;
    operator.answer(ReviewAnswer::Rejected);
    let channel = operator.connector().connect(&operator.address).await;
    let channel = channel.unwrap();
    let mut refused = std::collections::BTreeMap::new();
    for n in 0..200 {
        let mut client = ConfigStreamClient::new(channel.clone());
        let (_sender, messages) = mpsc::channel(1);
        let mut request = Request::new(ReceiverStream::new(messages));
        let value = format!("Bearer {}", token(USER, "vestibule-config", 600 + n));
        let value = MetadataValue::try_from(value).unwrap();
        request.metadata_mut().insert("authorization", value);
        let status = client.subscribe(request).await.expect_err("refused");
        *refused.entry(format!("{:?}", status.code())).or_insert(0) += 1;
    }
    assert!(operator.reviews.load(Ordering::Relaxed) < 40);
    assert!(refused["ResourceExhausted"] > 150, "{refused:?}");
    // The proxy that is there is served on.
    operator.publish(&[backend("a/c:1", 1)]);
    let generation = operator.publisher.generation();
    proxy.until(|state| state.held == Some(generation)).await;
}

#[tokio::test]
async fn headers_are_bounded() {
    let operator = Operator::start(ConnectionLimits::default()).await;
    let channel = operator.connector().connect(&operator.address).await;
    let mut client = ConfigStreamClient::new(channel.unwrap());
    let (_sender, messages) = mpsc::channel(1);
    let mut request = Request::new(ReceiverStream::new(messages));
    let value = MetadataValue::try_from("x".repeat(64 << 10)).unwrap();
    request.metadata_mut().insert("authorization", value);
    let status = client.subscribe(request).await.expect_err("refused");
    assert_ne!(status.code(), Code::Ok);
    // The server lives on.
    operator.publish(&[backend("a/b:1", 1)]);
    let mut proxy = operator.proxy(POD);
    proxy.until(|state| state.held.is_some()).await;
}

/// The bytes that a stranger sends ahead stay within the windows, however long the API server takes.
#[tokio::test]
async fn messages_sent_before_the_token_is_checked_are_bounded() {
    let operator = Operator::start(ConnectionLimits::default()).await;
    operator.answer(ReviewAnswer::Never);
    let channel = operator.connector().connect(&operator.address).await;
    let mut client = ConfigStreamClient::new(channel.unwrap()).max_encoding_message_size(64 << 20);
    let (sender, messages) = mpsc::channel(1);
    let mut request = Request::new(ReceiverStream::new(messages));
    let value = format!("Bearer {}", token(USER, "vestibule-config", 600));
    let value = MetadataValue::try_from(value).unwrap();
    request.metadata_mut().insert("authorization", value);
    let call = tokio::spawn(async move { client.subscribe(request).await.map(|_| ()) });
    let mut taken = 0;
    let message = || {
        let hello = Hello {
            release: "x".repeat(64 << 10),
            ..Hello::default()
        };
        let message = Some(proxy_message::Message::Hello(hello));
        ProxyMessage { message }
    };
    // The client's own buffers take some; nothing takes 64 MiB.
    let sending = async {
        while taken < 1000 {
            if sender.send(message()).await.is_err() {
                break;
            }
            taken += 1;
        }
    };
    let _ = timeout(Duration::from_secs(3), sending).await;
    assert!(taken < 200, "{taken} messages of 64 KiB went out");
    call.abort();
}
