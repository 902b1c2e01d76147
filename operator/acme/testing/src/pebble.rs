//! Pebble and its DNS, on loopback, with a wire to it that can be cut.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use vestibule_test_support::free_port;

use crate::answerer::Answerer;

/// What Pebble is to be like.
#[derive(Debug, Default)]
pub struct Options {
    /// Environment variables.
    pub environment: Vec<(&'static str, &'static str)>,
    /// Accounts must be bound.
    pub external_account: bool,
}

/// The MAC key of the external account that Pebble knows, base64url.
pub const MAC_KEY: &str = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W";

/// A CA that runs until it is dropped.
pub struct Pebble {
    /// The authority of its HTTPS, PEM.
    pub bundle: String,
    /// The URL of its ACME directory.
    pub directory: String,
    log: PathBuf,
    wire: Arc<Wire>,
    children: Vec<Child>,
}

impl Drop for Pebble {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Between the engine and Pebble.
struct Wire {
    cut: watch::Sender<bool>,
}

fn tool(variable: &str, name: &str) -> PathBuf {
    if let Some(path) = std::env::var_os(variable) {
        return path.into();
    }
    let found = Command::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../e2e/tools/get"
    ))
    .arg(name)
    .output()
    .expect("e2e/tools/get runs");
    assert!(
        found.status.success(),
        "{name}: {}",
        String::from_utf8_lossy(&found.stderr)
    );
    String::from_utf8(found.stdout)
        .expect("a path")
        .trim()
        .into()
}

static COUNT: AtomicUsize = AtomicUsize::new(0);

impl Pebble {
    /// Starts it. Its files, with its log, stay in the folder; the caller gives `env!("CARGO_TARGET_TMPDIR")`.
    pub async fn start(folder: &str, answerer: &Answerer, options: &Options) -> Self {
        // A port that was free may be another process's by the time at which it is listened on.
        let mut last = String::new();
        for _ in 0..5 {
            match Self::attempt(folder, answerer, options).await {
                Ok(pebble) => return pebble,
                Err(log) => last = log,
            }
        }
        panic!("no Pebble came up with ports that were free: {last}");
    }

    /// One that listens, with its resolver; its log, if they did not come to listen.
    async fn attempt(folder: &str, answerer: &Answerer, options: &Options) -> Result<Self, String> {
        let number = COUNT.fetch_add(1, Ordering::SeqCst);
        let directory = Path::new(folder).join(format!("pebble-{}-{number}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        let bundle = certificate(&directory);
        let (api, management, dns, dns_management) =
            (free_port(), free_port(), free_port(), free_port());
        let config = json!({"pebble": {
            "listenAddress": format!("127.0.0.1:{api}"),
            "managementListenAddress": format!("127.0.0.1:{management}"),
            "certificate": directory.join("tls.crt"),
            "privateKey": directory.join("tls.key"),
            "httpPort": answerer.http,
            "tlsPort": answerer.tls,
            "ocspResponderURL": "",
            "externalAccountBindingRequired": options.external_account,
            "externalAccountMACKeys": {"kid-1": MAC_KEY},
            "domainBlocklist": ["blocked.test"],
            "retryAfter": {"authz": 1, "order": 1},
            "keyAlgorithm": "ecdsa",
            "profiles": {
                "default": {"description": "ninety days", "validityPeriod": 7_776_000},
                "shortlived": {"description": "six days", "validityPeriod": 518_400},
            },
        }});
        let path = directory.join("config.json");
        fs::write(&path, config.to_string()).expect("written");
        let log = directory.join("log");
        let mut children = Vec::new();
        let out = |name: &str| File::create(directory.join(name)).expect("a file");
        let mut resolver =
            Command::new(tool("VESTIBULE_PEBBLE_CHALLTESTSRV", "pebble-challtestsrv"));
        resolver
            .args(["-defaultIPv4", "127.0.0.1", "-defaultIPv6", ""])
            .args(["-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", ""])
            .args(["-dnsserver", &format!("127.0.0.1:{dns}")])
            .args(["-management", &format!("127.0.0.1:{dns_management}")])
            .stdin(Stdio::null())
            .stdout(out("dns.log"))
            .stderr(Stdio::null());
        children.push(resolver.spawn().expect("pebble-challtestsrv runs"));
        let mut pebble = Command::new(tool("VESTIBULE_PEBBLE", "pebble"));
        pebble
            .arg("-config")
            .arg(&path)
            .args(["-strict", "-dnsserver", &format!("127.0.0.1:{dns}")])
            .env("PEBBLE_VA_NOSLEEP", "1")
            .env("PEBBLE_WFE_NONCEREJECT", "0")
            .env("PEBBLE_AUTHZREUSE", "0")
            .envs(options.environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(out("log"))
            .stderr(Stdio::null());
        children.push(pebble.spawn().expect("pebble runs"));
        let (wire, port) = Wire::start(api).await;
        let this = Self {
            bundle,
            directory: format!("https://localhost:{port}/dir"),
            log,
            wire,
            children,
        };
        let started = Instant::now();
        for port in [api, dns] {
            while TcpStream::connect((Ipv4Addr::LOCALHOST, port))
                .await
                .is_err()
            {
                if started.elapsed() > Duration::from_secs(30) {
                    return Err(this.log());
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(this)
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Orders that were asked for; with refused nonces some of them twice.
    pub fn orders(&self) -> usize {
        self.log().matches("Added order ").count()
    }

    /// Cuts the wire: connections break, and new ones are refused; or mends it.
    pub fn cut(&self, cut: bool) {
        self.wire.cut.send_replace(cut);
    }
}

impl Wire {
    async fn start(to: u16) -> (Arc<Self>, u16) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let wire = Arc::new(Self {
            cut: watch::Sender::new(false),
        });
        let cut = wire.cut.subscribe();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let mut cut = cut.clone();
                tokio::spawn(async move {
                    let Ok(mut far) = TcpStream::connect((Ipv4Addr::LOCALHOST, to)).await else {
                        return;
                    };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        _ = cut.wait_for(|cut| *cut) => {}
                    }
                });
            }
        });
        (wire, port)
    }
}

/// A certificate for Pebble's HTTPS; its authority in PEM.
fn certificate(directory: &Path) -> String {
    let authority_key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&authority_key).expect("a certificate");
    let issuer = Issuer::new(params, authority_key);
    let key = KeyPair::generate().expect("a key");
    let leaf = CertificateParams::new(vec!["localhost".to_owned()])
        .and_then(|params| params.signed_by(&key, &issuer))
        .expect("a certificate");
    fs::write(directory.join("tls.crt"), leaf.pem()).expect("written");
    fs::write(directory.join("tls.key"), key.serialize_pem()).expect("written");
    authority.pem()
}
