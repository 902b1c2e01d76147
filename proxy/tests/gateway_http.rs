//! The treatment of ambiguous requests that a Gateway sets, by real requests to two Gateways of one proxy: paths with
//! escaped slashes, and fields whose name has an underscore.

use std::net::SocketAddr;

use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper::header::{HeaderMap, HeaderName};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use vestibule_proxy::limits::{EscapedSlashes, ProxyLimits, Underscores};
use vestibule_proxy_testing::web::*;
use vestibule_proxy_testing::*;
use vestibule_stream::{Resource, proto};

use proto::resource::Resource as Wire;

const HOST: &str = "a.example.com";
const BACKEND: &str = "team-a/one:80";
const FIRST: &str = "infra/first";
const SECOND: &str = "infra/second";

type Setting = (proto::EscapedSlashes, proto::Underscores);

/// The Gateway leaves both to the release.
const UNSET: Setting = (
    proto::EscapedSlashes::Unspecified,
    proto::Underscores::Unspecified,
);

/// The settings of a Gateway.
fn settings_of(gateway: &str, (slashes, underscores): Setting) -> Resource {
    let http = proto::HttpSettings {
        escaped_slashes: slashes.into(),
        underscores: underscores.into(),
    };
    let settings = proto::GatewaySettings {
        http: Some(http),
        ..Default::default()
    };
    Resource::new(gateway, Wire::GatewaySettings(settings))
}

/// A listener of a Gateway, which has the same hostname at every Gateway.
fn listener_of(gateway: &str, port: u16, name: &str) -> Resource {
    let mut made = needs_settings(http(port, name, HOST, None));
    if let Some(Wire::Listener(listener)) = &mut made.resource {
        gateway.clone_into(&mut listener.gateway);
    }
    made
}

/// A backend that says which path it was asked for, and the names of all fields of the head and of the trailers.
async fn telling() -> SocketAddr {
    serve(|stream: TcpStream| {
        serve_http(stream, false, |request| async move {
            let (head, body) = request.into_parts();
            let collected = body.collect().await.unwrap();
            let trailers = collected.trailers().into_iter();
            let names = head
                .headers
                .keys()
                .chain(trailers.flat_map(HeaderMap::keys));
            let names: Vec<_> = names.map(HeaderName::as_str).collect();
            let text = format!("{} {}", head.uri.path(), names.join(" "));
            Response::new(Full::new(Bytes::from(text)))
        })
    })
    .await
}

/// One proxy with two Gateways: the first at the address of the rig, the second at the other address.
async fn gateways(limits: &ProxyLimits, first: Setting, second: Setting) -> (Rig, SocketAddr) {
    let address = telling().await;
    let other = nobody();
    let rig = Rig::start(limits, |port| {
        vec![
            listener_of(FIRST, port, "first"),
            listener_of(SECOND, other.port(), "second"),
            settings_of(FIRST, first),
            settings_of(SECOND, second),
            http_route("first", HOST, vec![rule("/", BACKEND)]),
            http_route("second", HOST, vec![rule("/", BACKEND)]),
            backend(BACKEND, &[address]),
        ]
    });
    (rig, other)
}

/// Sends a head and a body on a connection of their own.
async fn ask_at(address: SocketAddr, head: &str, body: &str) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let text = format!("{head}\r\nhost: {HOST}\r\nconnection: close\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).await.unwrap();
    let bytes = read_to_end(&mut stream).await.unwrap();
    parse(&String::from_utf8_lossy(&bytes))
}

/// The treatment of a path with an escaped slash.
async fn slashes_at(address: SocketAddr) -> EscapedSlashes {
    let answer = ask_at(address, "GET /a%2Fb HTTP/1.1", "").await;
    match answer.status {
        400 => EscapedSlashes::Refuse,
        200 if answer.body.starts_with("/a/b ") => EscapedSlashes::Unescape,
        200 if answer.body.starts_with("/a%2Fb ") => EscapedSlashes::Keep,
        status => panic!("{status}: {}", answer.body),
    }
}

/// The treatment of fields with an underscore, in the head and in trailers. A request is never refused for its trailers.
async fn underscores_at(address: SocketAddr) -> Underscores {
    let answer = ask_at(address, "GET / HTTP/1.1\r\nx_own: 1", "").await;
    let passes = answer.status == 200 && answer.body.contains("x_own");
    let head = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\nte: trailers\r\ntrailer: x_late";
    let late = ask_at(address, head, "5\r\nhello\r\n0\r\nx_late: 1\r\n\r\n").await;
    assert_eq!(late.status, 200);
    assert_eq!(late.body.contains("x_late"), passes, "{}", late.body);
    if answer.status == 400 {
        return Underscores::Refuse;
    }
    assert_eq!(answer.status, 200);
    if passes {
        Underscores::Allow
    } else {
        Underscores::Drop
    }
}

async fn treatment_at(address: SocketAddr) -> (EscapedSlashes, Underscores) {
    // Elements of dots are refused in any case.
    for path in ["/a/..%2Fb", "/a%5C..", "/a/..;/b"] {
        let answer = ask_at(address, &format!("GET {path} HTTP/1.1"), "").await;
        assert_eq!(answer.status, 400, "{path}");
    }
    (slashes_at(address).await, underscores_at(address).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_gateway_of_a_proxy_has_a_treatment_of_its_own() {
    let (rig, second) = gateways(
        &quiet(),
        (proto::EscapedSlashes::Keep, proto::Underscores::Allow),
        UNSET,
    )
    .await;
    let lax = (EscapedSlashes::Keep, Underscores::Allow);
    assert_eq!(treatment_at(rig.address).await, lax);
    let of_release = (EscapedSlashes::Refuse, Underscores::Drop);
    assert_eq!(treatment_at(second).await, of_release);
}

/// The Gateway of the port decides within TLS and in HTTP/2 too, and before the listener is found: a path that it refuses
/// is refused, also for the name of another listener of the port. What it keeps goes on to the answer for that name.
#[tokio::test(flavor = "multi_thread")]
async fn the_gateway_of_the_port_decides_within_tls_whatever_listener_a_request_is_for() {
    let address = telling().await;
    let own = Identity::new("*.example.com");
    let refuse = (
        proto::EscapedSlashes::Refuse,
        proto::Underscores::Unspecified,
    );
    let mut limits = quiet();
    limits.http.escaped_slashes = EscapedSlashes::Keep;
    let mut rig = Rig::start(&limits, |port| {
        let listener = |name, hostname| {
            let mut made = needs_settings(http(port, name, hostname, Some("team-a/own")));
            if let Some(Wire::Listener(listener)) = &mut made.resource {
                FIRST.clone_into(&mut listener.gateway);
            }
            made
        };
        vec![
            own.resource("team-a/own"),
            listener("a", HOST),
            listener("b", "b.example.com"),
            settings_of(FIRST, refuse),
            http_route("a", HOST, vec![rule("/", BACKEND)]),
            http_route("b", "b.example.com", vec![rule("/", BACKEND)]),
            backend(BACKEND, &[address]),
        ]
    });
    let mut config = client_config(&own);
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = tls(rig.connect().await, config, HOST).await.unwrap();
    let made = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (mut sender, connection) = made.unwrap();
    tokio::spawn(connection);
    let keep = (proto::EscapedSlashes::Keep, proto::Underscores::Unspecified);
    for (setting, for_own, for_other) in [(refuse, 400, 400), (keep, 200, 421)] {
        let rejected = rig.apply(vec![settings_of(FIRST, setting)]);
        assert_eq!(rejected, Vec::<String>::new());
        for (host, expected) in [(HOST, for_own), ("b.example.com", for_other)] {
            let request = Request::get(format!("https://{host}/a%2Fb"));
            let request = request.body(Empty::<Bytes>::new()).unwrap();
            let answer = within("an answer", sender.send_request(request)).await;
            let status = answer.unwrap().status().as_u16();
            assert_eq!(status, expected, "{host} {setting:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_is_stricter_than_a_lax_release_where_it_says_so() {
    let mut limits = quiet();
    limits.http.escaped_slashes = EscapedSlashes::Keep;
    limits.http.underscores = Underscores::Allow;
    let (rig, second) = gateways(
        &limits,
        (proto::EscapedSlashes::Refuse, proto::Underscores::Refuse),
        (proto::EscapedSlashes::Unspecified, proto::Underscores::Drop),
    )
    .await;
    let strictest = (EscapedSlashes::Refuse, Underscores::Refuse);
    assert_eq!(treatment_at(rig.address).await, strictest);
    let mixed = (EscapedSlashes::Keep, Underscores::Drop);
    assert_eq!(treatment_at(second).await, mixed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_unescapes_is_beside_one_that_keeps() {
    let slashes = |word| (word, proto::Underscores::Unspecified);
    let (rig, second) = gateways(
        &quiet(),
        slashes(proto::EscapedSlashes::Unescape),
        slashes(proto::EscapedSlashes::Keep),
    )
    .await;
    let first = treatment_at(rig.address).await;
    assert_eq!(first, (EscapedSlashes::Unescape, Underscores::Drop));
    let second = treatment_at(second).await;
    assert_eq!(second, (EscapedSlashes::Keep, Underscores::Drop));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_counts_from_the_next_request_and_a_word_of_a_later_release_changes_nothing() {
    let keep = (proto::EscapedSlashes::Keep, proto::Underscores::Unspecified);
    let (mut rig, second) = gateways(&quiet(), keep, keep).await;
    let mut later = settings_of(FIRST, UNSET);
    if let Some(Wire::GatewaySettings(settings)) = &mut later.resource {
        settings.http.as_mut().unwrap().escaped_slashes = 9;
    }
    let rejected = rig.apply(vec![later]);
    assert_eq!(rejected.len(), 1);
    assert!(rejected[0].starts_with("UnknownResource "), "{rejected:?}");

    let mut stream = rig.connect().await;
    let request = format!("GET /a%2Fb HTTP/1.1\r\nhost: {HOST}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    assert_eq!(one_answer(&mut stream).await.unwrap().status, 200);
    let refuse = (
        proto::EscapedSlashes::Refuse,
        proto::Underscores::Unspecified,
    );
    assert_eq!(
        rig.apply(vec![settings_of(FIRST, refuse)]),
        Vec::<String>::new()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    assert_eq!(one_answer(&mut stream).await.unwrap().status, 400);
    assert_eq!(slashes_at(second).await, EscapedSlashes::Keep);
}
