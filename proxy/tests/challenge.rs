//! CAs that check hostnames: what they get, and that nobody else gets it.

use std::process::Stdio;
use std::time::Duration;

use rustls::version::{TLS12, TLS13};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use vestibule_proxy::close_reason::CloseReason;
use vestibule_proxy::limits::ProxyLimits;
use vestibule_proxy_testing::acme::*;
use vestibule_proxy_testing::*;
use vestibule_stream::{ResourceKind, proto};

/// Passed through to a backend that does TLS itself.
const THROUGH: &str = "through.example.com";
/// Terminated, plain TCP behind.
const ENDED: &str = "ended.example.com";
/// HTTPS.
const WEB: &str = "web.example.com";
/// Terminated, without a usable certificate.
const BARE: &str = "bare.example.com";
/// Terminated, for clients that show a certificate; none could.
const CLOSED: &str = "closed.example.com";
/// No listener's.
const NOBODY: &str = "nobody.example.org";
const ALL: [&str; 6] = [THROUGH, ENDED, WEB, BARE, CLOSED, NOBODY];
const NONE: Vec<String> = Vec::new();
const BACKEND: &str = "team-a/tls:443";
const PLAIN: &str = "team-a/tcp:80";

struct World {
    rig: Rig,
    /// Shown by the proxy and by the backend.
    ordinary: Identity,
}

impl World {
    async fn start(limits: ProxyLimits) -> Self {
        let ordinary = Identity::new("*.example.com");
        let acceptor = ordinary.acceptor();
        let backend_tls = serve(move |stream| {
            let acceptor = acceptor.clone();
            async move {
                if let Ok(mut stream) = acceptor.accept(stream).await {
                    let _ = stream.write_all(b"backend").await;
                    let _ = stream.shutdown().await;
                }
            }
        })
        .await;
        let backend_plain = serve(|mut stream: TcpStream| async move {
            let _ = stream.write_all(b"backend").await;
        })
        .await;
        let certificate = ordinary.resource("team-a/cert");
        let rig = Rig::start(&limits, |port| {
            vec![
                listener(port, "through", THROUGH, None),
                listener(port, "ended", ENDED, Some("team-a/cert")),
                http(port, "web", WEB, Some("team-a/cert")),
                listener(port, "bare", BARE, Some("team-a/missing")),
                // It asks clients for certificates of a bundle that is not there.
                validating(
                    listener(port, "closed", CLOSED, Some("team-a/cert")),
                    &["ConfigMap/team-a/missing"],
                    proto::ClientValidationMode::AllowValidOnly,
                ),
                route("through", THROUGH, Some(BACKEND)),
                route("ended", ENDED, Some(PLAIN)),
                route("bare", BARE, Some(PLAIN)),
                route("closed", CLOSED, Some(PLAIN)),
                backend(BACKEND, &[backend_tls]),
                backend(PLAIN, &[backend_plain]),
                certificate.clone(),
            ]
        });
        Self { rig, ordinary }
    }

    /// Has a challenge for `name`; returns its certificate.
    fn challenge(&mut self, name: &str) -> ChallengeCertificate {
        let made = ChallengeCertificate::new(name);
        let resource = made.resource(self.rig.address.port(), name);
        assert_eq!(self.rig.apply(vec![resource]), NONE);
        made
    }

    /// A handshake: the certificate and protocol that it comes to, and what follows.
    async fn ask(&self, name: &str, alpn: &[&[u8]]) -> std::io::Result<Got> {
        self.ask_with(name, ca(alpn, rustls::ALL_VERSIONS)).await
    }

    async fn ask_with(&self, name: &str, config: rustls::ClientConfig) -> std::io::Result<Got> {
        let mut stream = tls(self.rig.connect().await, config, name).await?;
        let session = stream.get_ref().1;
        let certificate = session.peer_certificates().unwrap()[0].to_vec();
        let alpn = session.alpn_protocol().map(Into::into);
        if alpn.as_deref() != Some(ACME_TLS) && name == WEB {
            let request = b"GET / HTTP/1.1\r\nhost: web.example.com\r\nconnection: close\r\n\r\n";
            stream.write_all(request).await?;
        }
        let data = read_to_end(&mut stream).await?;
        Ok(Got {
            certificate,
            alpn,
            data,
        })
    }

    /// Whether an ordinary client of the passed-through, the terminated and the HTTPS listener gets what
    /// it always gets.
    async fn serves(&self) {
        for (name, alpn, expected) in [
            (THROUGH, &[][..], &b"backend"[..]),
            (ENDED, &[][..], b"backend"),
            (ENDED, &[b"h2".as_slice(), ACME_TLS][..], b"backend"),
            (WEB, &[b"http/1.1".as_slice()][..], b"HTTP/1.1 404"),
            (WEB, &[ACME_TLS, b"http/1.1"][..], b"HTTP/1.1 404"),
        ] {
            let got = self.ask(name, alpn).await.unwrap();
            assert_eq!(got.certificate, self.ordinary.chain[0].to_vec(), "{name}");
            assert_ne!(got.alpn.as_deref(), Some(ACME_TLS), "{name}");
            assert!(got.data.starts_with(expected), "{name}: {:?}", got.data);
        }
    }

    fn counted(&self, kind: &str, result: &str) -> u64 {
        let label =
            format!("vestibule_proxy_challenges_total{{type=\"{kind}\",result=\"{result}\"}} ");
        let text = self.rig.plane.metrics.encode().unwrap();
        let count = text.lines().find_map(|line| line.strip_prefix(&label));
        count.map_or(0, |count| count.parse().unwrap())
    }
}

struct Got {
    certificate: Vec<u8>,
    alpn: Option<Vec<u8>>,
    data: Vec<u8>,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_is_answered_whatever_is_done_with_the_name() {
    let mut world = World::start(ProxyLimits::default()).await;
    world.serves().await;
    let mut asked = 0;
    for name in ALL {
        let made = world.challenge(name);
        for version in [&TLS13, &TLS12] {
            let got = world.ask_with(name, ca(&[ACME_TLS], &[version])).await;
            let got = got.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(got.certificate, made.certificate, "{name}");
            assert_eq!(got.alpn.as_deref(), Some(ACME_TLS), "{name}");
            assert_eq!(got.data, b"", "{name}");
            asked += 1;
        }
    }
    world.serves().await;
    world
        .rig
        .wait_closed(CloseReason::ChallengeAnswered, asked)
        .await;
    assert_eq!(world.counted("tls-alpn-01", "answered"), asked);

    // The next order has another certificate; and when it is over there is none.
    let next = world.challenge(ENDED);
    let got = world.ask(ENDED, &[ACME_TLS]).await.unwrap();
    assert_eq!(got.certificate, next.certificate);
    let name = format!("infra/edge/tls-alpn-01/{ENDED}");
    world.rig.remove(ResourceKind::Challenge, &name);
    assert!(world.ask(ENDED, &[ACME_TLS]).await.is_err());
    assert!(world.ask(WEB, &[ACME_TLS]).await.is_ok());
    world.serves().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn challenge_is_shown_to_nobody_but_a_ca_that_asks_for_it() {
    let mut world = World::start(ProxyLimits::default()).await;
    let made: Vec<_> = ALL.map(|name| world.challenge(name)).into();
    let shown = |certificate: &Vec<u8>| made.iter().any(|made| made.certificate == *certificate);
    // Other lists of protocols.
    let others: [&[&[u8]]; 7] = [
        &[],
        &[b"h2"],
        &[b"acme-tls/2"],
        &[b"acme-tls/1 "],
        &[b"ACME-TLS/1"],
        &[ACME_TLS, ACME_TLS],
        &[b"http/1.1", ACME_TLS],
    ];
    for name in ALL {
        for alpn in others {
            if let Ok(got) = world.ask(name, alpn).await {
                assert!(!shown(&got.certificate), "{name} {alpn:?}");
            }
        }
    }
    // Other names, of which one is above, one below and one beside.
    for name in ["example.com", "a.web.example.com", "web2.example.com"] {
        assert!(world.ask(name, &[ACME_TLS]).await.is_err(), "{name}");
    }
    // No name.
    let mut config = ca(&[ACME_TLS], rustls::ALL_VERSIONS);
    config.enable_sni = false;
    assert!(world.ask_with(WEB, config).await.is_err());
    // Another port: of the same Gateway, with the same listeners.
    let other = World::start(ProxyLimits::default()).await;
    for name in ALL {
        if let Ok(got) = other.ask(name, &[ACME_TLS]).await {
            assert_eq!(got.certificate, other.ordinary.chain[0].to_vec(), "{name}");
        }
    }
    assert_eq!(world.counted("tls-alpn-01", "answered"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_challenge_a_backend_may_answer_and_a_listener_does_not() {
    let world = World::start(ProxyLimits::default()).await;
    // The backend knows nothing of ALPN and is left to it.
    let got = world.ask(THROUGH, &[ACME_TLS]).await.unwrap();
    assert_eq!((got.alpn, &got.data[..]), (None, &b"backend"[..]));
    for name in [ENDED, WEB] {
        let error = world.ask(name, &[ACME_TLS]).await.err().unwrap();
        assert!(
            error.to_string().contains("NoApplicationProtocol"),
            "{error}"
        );
    }
    world.rig.wait_closed(CloseReason::NoChallenge, 2).await;
    assert_eq!(world.counted("tls-alpn-01", "absent"), 2);
    // What could serve nobody says nothing.
    for name in [BARE, CLOSED, NOBODY] {
        let error = world.ask(name, &[ACME_TLS]).await.err().unwrap();
        assert!(
            !error.to_string().contains("NoApplicationProtocol"),
            "{error}"
        );
    }
    assert_eq!(world.counted("tls-alpn-01", "absent"), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ca_that_stops_within_its_handshake_is_given_up() {
    let limits = ProxyLimits {
        handshake_deadline: Duration::from_secs(1),
        ..ProxyLimits::default()
    };
    let mut world = World::start(limits).await;
    world.challenge(WEB);
    let hello = |alpn| {
        let name = rustls::pki_types::ServerName::try_from(WEB).unwrap();
        let config = std::sync::Arc::new(ca(alpn, rustls::ALL_VERSIONS));
        let mut client = rustls::ClientConnection::new(config, name).unwrap();
        let mut hello = Vec::new();
        client.write_tls(&mut hello).unwrap();
        hello
    };
    let mut silent = world.rig.connect().await;
    silent.write_all(&hello(&[ACME_TLS])).await.unwrap();
    world
        .rig
        .wait_closed(CloseReason::HandshakeTimeout, 1)
        .await;
    assert_eq!(world.counted("tls-alpn-01", "timeout"), 1);

    let mut broken = world.rig.connect().await;
    let rubbish = [&hello(&[ACME_TLS])[..], &[22, 3, 3, 0, 2, 1, 1]].concat();
    broken.write_all(&rubbish).await.unwrap();
    world.rig.wait_closed(CloseReason::HandshakeFailed, 1).await;
    assert_eq!(world.counted("tls-alpn-01", "failed"), 1);

    // One that says more than it should, after the handshake: read away, within bounds.
    let client = tls(world.rig.connect().await, ca(&[ACME_TLS], &[&TLS13]), WEB);
    let mut client = client.await.unwrap();
    let _ = client.write_all(&vec![7; 64 * 1024]).await;
    let mut data = Vec::new();
    let _ = within("the end", client.read_to_end(&mut data)).await;
    assert_eq!(data, b"");
    world
        .rig
        .wait_closed(CloseReason::ChallengeAnswered, 1)
        .await;
}

async fn run(program: &'static str, arguments: &[&str]) -> (String, String) {
    let mut command = std::process::Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output());
    let output = within(program, output).await.unwrap().unwrap();
    (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn other_libraries_get_their_answer() {
    let mut world = World::start(ProxyLimits::default()).await;
    let address = world.rig.address.to_string();
    let port = world.rig.address.port().to_string();
    for (count, name) in (1..).zip([THROUGH, ENDED, WEB]) {
        let made = world.challenge(name);
        let pem = pem::encode(&pem::Pem::new("CERTIFICATE", made.certificate));
        let lines: String = pem.lines().collect();
        let connect = ["s_client", "-connect", &address, "-servername", name];
        for version in ["-tls1_2", "-tls1_3"] {
            let arguments = [&connect[..], &["-alpn", "acme-tls/1", version]].concat();
            let (said, _) = run("openssl", &arguments).await;
            assert!(said.contains("ALPN protocol: acme-tls/1"), "{said}");
            let flat: String = said.lines().collect();
            assert!(flat.contains(&lines), "{said}");
        }
        let arguments = [
            &["--insecure", "--port", &port, "--sni-hostname", name][..],
            &["--alpn", "acme-tls/1", "--print-cert", "127.0.0.1"],
        ];
        let (said, error) = run("gnutls-cli", &arguments.concat()).await;
        let flat: String = said.lines().collect();
        assert!(flat.contains(&lines), "{said}\n{error}");
        assert!(said.contains("Application protocol: acme-tls/1"), "{said}");
        world
            .rig
            .wait_closed(CloseReason::ChallengeAnswered, 3 * count)
            .await;
    }
}

/// An HTTP listener whose route redirects everything, and a challenge for its name.
fn redirecting() -> Rig {
    let mut rig = Rig::start(&ProxyLimits::default(), |port| {
        let redirect = web::filter(proto::http_filter::Filter::Redirect(proto::HttpRedirect {
            scheme: "https".into(),
            status: 301,
            ..Default::default()
        }));
        let rule = proto::HttpRule {
            filters: vec![redirect],
            ..Default::default()
        };
        vec![
            http(port, "web", WEB, None),
            http(port, "other", "other.example.com", None),
            web::http_route("web", WEB, vec![rule.clone()]),
            web::http_route("other", "other.example.com", vec![rule]),
        ]
    });
    let port = rig.address.port();
    assert_eq!(rig.apply(vec![http_challenge(port, WEB)]), NONE);
    // Of a name that no listener is for.
    assert_eq!(rig.apply(vec![http_challenge(port, NOBODY)]), NONE);
    rig
}

fn path() -> String {
    format!("/.well-known/acme-challenge/{TOKEN}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_given_before_routes_and_their_redirects() {
    let rig = redirecting();
    let body = format!("{TOKEN}.{THUMBPRINT}");
    for host in [
        WEB,
        "Web.Example.COM",
        "web.example.com:80",
        "web.example.com.",
        NOBODY,
    ] {
        let answer = web::get(&rig, host, &path()).await;
        assert_eq!((answer.status, &answer.body), (200, &body), "{host}");
        let kind = answer.header("content-type");
        assert_eq!(kind, Some("application/octet-stream"), "{host}");
        let length = answer.header("content-length").unwrap();
        assert_eq!(length.parse(), Ok(body.len()));
    }
    let head = format!("HEAD {} HTTP/1.1\r\nhost: {WEB}", path());
    let answer = web::ask(&rig, &head, "").await;
    assert_eq!((answer.status, &*answer.body), (200, ""));
    assert_eq!(
        answer.header("content-length"),
        Some(&*body.len().to_string())
    );

    // Whatever else is asked is routed.
    let paths = [
        "/".to_owned(),
        format!("{}/", path()),
        format!("{}x", path()),
        format!("{}?x", path()),
        "/.well-known/acme-challenge/".to_owned(),
        "/.well-known/acme-challenge/other".to_owned(),
        format!("/.well-known//acme-challenge/{TOKEN}"),
        path().to_uppercase(),
        path().replace("acme", "%61cme"),
    ];
    for path in &paths {
        let answer = web::get(&rig, WEB, path).await;
        assert_eq!(answer.status, 301, "{path}");
    }
    for host in ["other.example.com", "a.web.example.com", "127.0.0.1"] {
        let answer = web::get(&rig, host, &path()).await;
        assert!(matches!(answer.status, 301 | 404), "{host}");
    }
    let post = format!(
        "POST {} HTTP/1.1\r\nhost: {WEB}\r\ncontent-length: 2",
        path()
    );
    let answer = web::ask(&rig, &post, "hi").await;
    assert_eq!(answer.status, 405);
    assert_eq!(answer.header("allow"), Some("GET, HEAD"));
    let text = rig.plane.metrics.encode().unwrap();
    for (result, count) in [("answered", 6), ("failed", 1)] {
        let line = format!(
            "vestibule_proxy_challenges_total{{type=\"http-01\",result=\"{result}\"}} {count}"
        );
        assert!(text.contains(&line), "{line} in\n{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_stays_gets_tokens_and_routes_in_turn() {
    let mut rig = redirecting();
    let mut stream = rig.connect().await;
    let ask = async |stream: &mut TcpStream, path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nhost: {WEB}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let read = async {
            loop {
                answer.push(char::from(stream.read_u8().await.unwrap()));
                let Some((head, body)) = answer.split_once("\r\n\r\n") else {
                    continue;
                };
                let head = head.to_lowercase();
                let (_, length) = head.split_once("content-length: ").unwrap();
                let length: usize = length.lines().next().unwrap().parse().unwrap();
                if body.len() == length {
                    break;
                }
            }
        };
        within("an answer", read).await;
        web::parse(&answer).status
    };
    for (path, status) in [("/", 301), (&*path(), 200), (&*path(), 200), ("/", 301)] {
        assert_eq!(ask(&mut stream, path).await, status, "{path}");
    }
    let name = format!("infra/edge/http-01/{WEB}/{TOKEN}");
    rig.remove(ResourceKind::Challenge, &name);
    assert_eq!(ask(&mut stream, &path()).await, 301);
    let port = rig.address.port();
    assert_eq!(rig.apply(vec![http_challenge(port, WEB)]), NONE);
    assert_eq!(ask(&mut stream, &path()).await, 200);
    // The port closes, and this connection is left: its challenge is not.
    for listener in ["web", "other"] {
        let name = format!("ListenerSet/team-a/{listener}/tls");
        rig.remove(ResourceKind::Listener, &name);
    }
    assert_eq!(ask(&mut stream, &path()).await, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_gets_the_key_authorization() {
    let rig = redirecting();
    let port = rig.address.port();
    let url = format!("http://{WEB}:{port}{}", path());
    let resolve = format!("{WEB}:{port}:127.0.0.1");
    let arguments = ["--silent", "--show-error", "--fail", "--noproxy", "*"];
    let arguments = [&arguments[..], &["--resolve", &resolve, &url]].concat();
    let (said, error) = run("curl", &arguments).await;
    assert_eq!((&*said, &*error), (&*format!("{TOKEN}.{THUMBPRINT}"), ""));
    let two = [&["--http2-prior-knowledge"], &arguments[..]].concat();
    let (said, error) = run("curl", &two).await;
    assert_eq!((&*said, &*error), (&*format!("{TOKEN}.{THUMBPRINT}"), ""));
}
