//! Replays recorded configuration streams into a real proxy and asks it, after each batch, for what
//! should be served by then. See `recordings/README.md`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use prost::Message;
use vestibule_proxy::limits::ProxyLimits;
use vestibule_proxy::{ConfigSource, Proxy};
use vestibule_proxy_testing::component::*;
use vestibule_proxy_testing::*;
use vestibule_stream::proto::resource::Resource as Wire;
use vestibule_stream::{
    Apply, Batch, Change, Encoded, Generation, Held, Reject, Resource, ResourceKey, ResourceKind,
    recording,
};

// Loopback addresses that nothing else uses, since a recording cannot choose its ports when it is
// replayed.
const BIND: &str = "127.83.17.1:10443";
const SECOND_BIND: &str = "127.83.17.1:10444";
const OWN: &str = "127.83.17.2:8443";
const PLAIN: &str = "127.83.17.2:8080";
const OTHER: &str = "127.83.17.2:8081";

const PASS: &str = "ListenerSet/team-a/web/tls";
const TERM: &str = "ListenerSet/team-b/web/tls";
const THIRD: &str = "Gateway/infra/edge/any";

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

struct Recorder {
    held: Held,
    batches: Vec<Batch>,
}

struct AcceptEverything;

impl Apply for AcceptEverything {
    fn apply(&mut self, _: &Change) -> Vec<Reject> {
        Vec::new()
    }
}

impl Recorder {
    fn add(&mut self, full: bool, keep_held: bool, upserts: &[Resource], removals: &[ResourceKey]) {
        let held = self.held.generation();
        let mut batch = Batch {
            generation: Some(Generation::new(3, held.map_or(7, |g| g.counter + 1))),
            base: if full { None } else { held },
            full,
            keep_held,
            upserts: upserts
                .iter()
                .map(|resource| Encoded::new(resource).unwrap().upsert())
                .collect(),
            removals: removals.to_vec(),
            digest: Vec::new(),
        };
        let ack = self.held.offer(&batch, &mut AcceptEverything);
        assert_eq!(ack.refusal, None);
        batch.digest = self.held.digest().to_vec();
        self.batches.push(batch);
    }

    fn delta(&mut self, upserts: &[Resource], removals: &[ResourceKey]) {
        self.add(false, false, upserts, removals);
    }
}

/// A full batch, deltas of every resource kind, and both kinds of later full batches.
fn record() -> Vec<Batch> {
    let mut r = Recorder {
        held: Held::new(),
        batches: Vec::new(),
    };
    let names = ["term.example.com", "*.term.example.com"];
    let secret = "team-b/term";
    let terminated = |hostname| listener_at(TERM, address(BIND), hostname, Some(&[secret]));
    let term_route = |hostname, backend| tls_route("team-b/term", TERM, hostname, backend);
    r.add(
        true,
        false,
        &[
            listener_at(PASS, address(BIND), "pass.example.com", None),
            tls_route("team-a/pass", PASS, "pass.example.com", "team-a/own:8443"),
            backend("team-a/own:8443", &[address(OWN)]),
            terminated("term.example.com"),
            Identity::of(&names).resource(secret),
            term_route("term.example.com", "team-b/plain:8080"),
            backend("team-b/plain:8080", &[address(PLAIN)]),
            backend("team-b/other:8081", &[address(OTHER)]),
        ],
        &[],
    );
    r.delta(&[term_route("term.example.com", "team-b/other:8081")], &[]);
    r.delta(&[backend("team-b/other:8081", &[address(PLAIN)])], &[]);
    r.delta(&[Identity::of(&names).resource(secret)], &[]);
    r.delta(
        &[
            terminated("*.term.example.com"),
            term_route("*.term.example.com", "team-b/plain:8080"),
        ],
        &[],
    );
    r.delta(
        &[],
        &[ResourceKey::new(ResourceKind::TlsRoute, "team-b/term")],
    );
    r.delta(
        &[],
        &[
            ResourceKey::new(ResourceKind::Listener, TERM),
            ResourceKey::new(ResourceKind::Backend, "team-b/plain:8080"),
            ResourceKey::new(ResourceKind::Backend, "team-b/other:8081"),
            ResourceKey::new(ResourceKind::Certificate, secret),
        ],
    );
    let third = [
        listener_at(THIRD, address(SECOND_BIND), "", None),
        tls_route("infra/third", THIRD, "third.example.com", "team-a/own:8443"),
        backend("team-a/own:8443", &[address(OWN)]),
    ];
    r.add(true, true, &third[..2], &[]);
    r.add(true, false, &third, &[]);
    r.batches
}

/// What each batch of [`record`] leads to: bind, server name, and who answers (none: closed).
type Expected = &'static [(&'static str, &'static str, Option<&'static str>)];
const EXPECTED: [Expected; 9] = [
    &[
        (BIND, "pass.example.com", Some("own")),
        (BIND, "term.example.com", Some("plain")),
        (BIND, "x.term.example.com", None),
        (BIND, "example.com", None),
    ],
    &[(BIND, "term.example.com", Some("other"))],
    &[(BIND, "term.example.com", Some("plain"))],
    &[(BIND, "term.example.com", Some("plain"))],
    &[
        (BIND, "term.example.com", None),
        (BIND, "x.term.example.com", Some("plain")),
        (BIND, "y.x.term.example.com", None),
    ],
    &[
        (BIND, "x.term.example.com", None),
        (BIND, "pass.example.com", Some("own")),
    ],
    &[
        (BIND, "x.term.example.com", None),
        (BIND, "pass.example.com", Some("own")),
    ],
    &[
        (BIND, "pass.example.com", Some("own")),
        (SECOND_BIND, "third.example.com", Some("own")),
        (SECOND_BIND, "fourth.example.com", None),
    ],
    &[
        (BIND, "pass.example.com", None),
        (SECOND_BIND, "third.example.com", Some("own")),
    ],
];

/// The backends that every recording leads to.
struct Backends {
    own: Identity,
}

impl Backends {
    async fn start() -> Self {
        let own = Identity::of(&["pass.example.com", "third.example.com"]);
        tls_backend("own", OWN, &own).await;
        plain_backend("plain", PLAIN).await;
        plain_backend("other", OTHER).await;
        Self { own }
    }
}

async fn start(source: ConfigSource) -> Proxy {
    let mut config = proxy_config(source);
    config.workers = 2;
    config.limits = ProxyLimits {
        access_log: false,
        ..ProxyLimits::default()
    };
    Proxy::start(config).await.unwrap()
}

async fn check(expected: Expected, own: &[u8], terminated: Option<&Vec<u8>>, what: &str) {
    for (bind, name, answer) in expected {
        let root = if name.contains("term") {
            terminated.map_or(own, Vec::as_slice)
        } else {
            own
        };
        let connected = Client::connect(address(bind), name, root).await;
        match (connected, answer) {
            (Ok(mut client), Some(answer)) => {
                assert_eq!(
                    client.ask("hi").await.unwrap(),
                    format!("{answer} hi"),
                    "{what}"
                );
                assert_eq!(client.certificate(), root, "{what}");
            }
            // y.x.term.example.com: the proxy serves it, and the certificate does not cover it.
            (Err(_), None) => {}
            (Ok(_), None) => panic!("{what}: {name} is served"),
            (Err(error), Some(_)) => panic!("{what}: {name} is not served: {error}"),
        }
    }
}

/// Replays batch by batch, and then the whole file as `--config-file` does.
async fn replay(path: &Path, backends: &Backends) {
    let file = std::io::BufReader::new(std::fs::File::open(path).unwrap());
    let batches: Vec<Batch> = recording::Reader::new(file).map(Result::unwrap).collect();
    assert_eq!(batches.len(), EXPECTED.len());

    let mut proxy = start(ConfigSource::Caller).await;
    let mut leaves: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for (number, (batch, expected)) in batches.iter().zip(EXPECTED).enumerate() {
        let what = format!("{} after batch {number}", path.display());
        let ack = proxy.apply(batch);
        assert_eq!(
            (&ack.refusal, ack.rejects.as_slice()),
            (&None, &[][..]),
            "{what}"
        );
        for upsert in &batch.upserts {
            let resource = Resource::decode(upsert.resource.clone()).unwrap();
            if let Some(Wire::Certificate(certificate)) = resource.resource {
                leaves.insert(resource.name, certificate.chain[0].to_vec());
            }
        }
        let terminated = leaves.get("team-b/term");
        check(expected, &backends.own.chain[0], terminated, &what).await;
        // Replayed, it is older than what is held.
        assert_eq!(
            proxy.apply(batch).refusal.unwrap().reason,
            "StaleGeneration"
        );
    }
    assert_eq!(proxy.drain(PATIENCE).await, 0);

    let proxy = start(ConfigSource::File(path.to_owned())).await;
    assert!(proxy.is_ready());
    let last = EXPECTED.last().unwrap();
    check(last, &backends.own.chain[0], None, "from the file").await;
    assert_eq!(proxy.drain(PATIENCE).await, 0);
}

/// Keeps the addresses of the recordings to one run at a time, of whichever checkout on this machine.
fn alone() -> std::fs::File {
    let path = std::env::temp_dir().join("vestibule-recordings.lock");
    let file = std::fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .unwrap();
    file.lock().unwrap();
    file
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/recordings")
}

fn write(path: &Path, batches: &[Batch]) {
    let mut bytes = Vec::new();
    for batch in batches {
        recording::write(&mut bytes, batch).unwrap();
    }
    std::fs::write(path, bytes).unwrap();
}

/// One test, since every recording uses the same addresses.
#[tokio::test(flavor = "multi_thread")]
async fn recordings_of_every_release_still_work() {
    let _alone = tokio::task::spawn_blocking(alone).await.unwrap();
    let backends = Backends::start().await;
    // What this release writes.
    let fresh =
        std::env::temp_dir().join(format!("vestibule-recording-{}.bin", std::process::id()));
    write(&fresh, &record());
    replay(&fresh, &backends).await;
    std::fs::remove_file(&fresh).unwrap();

    if let Ok(version) = std::env::var("VESTIBULE_RECORD") {
        let path = folder().join(version);
        std::fs::create_dir_all(&path).unwrap();
        let path = path.join("every-kind.bin");
        assert!(
            !path.exists(),
            "recordings are never rewritten: add a version"
        );
        write(&path, &record());
    }

    // What former releases wrote.
    let mut replayed = 0;
    for version in std::fs::read_dir(folder()).unwrap() {
        let path = version.unwrap().path().join("every-kind.bin");
        if path.exists() {
            replay(&path, &backends).await;
            replayed += 1;
        }
    }
    assert!(replayed > 0, "no recordings in {}", folder().display());

    unreadable_recordings_say_why().await;
}

async fn unreadable_recordings_say_why() {
    let path = std::env::temp_dir().join(format!("vestibule-broken-{}.bin", std::process::id()));
    let whole = {
        write(&path, &record());
        std::fs::read(&path).unwrap()
    };
    let mut messages = Vec::new();
    for bytes in [&whole[..whole.len() / 2], b"", b"\xff\xff\xff\xff\xff\xff"] {
        std::fs::write(&path, bytes).unwrap();
        let mut config = proxy_config(ConfigSource::File(path.clone()));
        config.workers = 1;
        messages.push(Proxy::start(config).await.unwrap_err().to_string());
    }
    std::fs::remove_file(&path).unwrap();
    assert!(
        messages[0].contains("ends inside a message"),
        "{messages:?}"
    );
    assert!(messages[1].contains("no batch"), "{messages:?}");
    assert!(messages[2].contains("longer than"), "{messages:?}");
    // A port in use is named, with what it led to.
    let taken = loop {
        // The workers of the proxies above close their sockets a moment after they end.
        match std::net::TcpListener::bind(BIND) {
            Ok(taken) => break taken,
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse),
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    };
    write(&path, &record());
    let error = Proxy::start(proxy_config(ConfigSource::File(path.clone()))).await;
    let message = error.unwrap_err().to_string();
    assert!(
        message.contains("cannot listen on 127.83.17.1:10443"),
        "{message}"
    );
    std::fs::remove_file(&path).unwrap();
    drop(taken);

    let error = Proxy::start(proxy_config(ConfigSource::File("/does/not/exist".into()))).await;
    assert!(error.unwrap_err().to_string().contains("/does/not/exist"));
}
