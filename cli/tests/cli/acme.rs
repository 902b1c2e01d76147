//! `vestibule run` with a CA that manifests name: Pebble, which connects to the listener to check the name.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use crate::common::{
    Directory, PLATFORM, Run, backend, free_port, get, route, service, set, wait_for,
};

const HOST: &str = "www.bakery.example";

/// Pebble and its DNS, which has 127.0.0.1 for every name.
struct Pebble {
    children: [Child; 2],
    directory: String,
    /// The authority of its HTTPS.
    bundle: String,
    log: PathBuf,
}

impl Drop for Pebble {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn tool(name: &str) -> PathBuf {
    let get = Path::new(env!("CARGO_MANIFEST_DIR")).join("../e2e/tools/get");
    let found = Command::new(get).arg(name).output().unwrap();
    assert!(
        found.status.success(),
        "{}",
        String::from_utf8_lossy(&found.stderr)
    );
    String::from_utf8(found.stdout).unwrap().trim().into()
}

impl Pebble {
    /// Checks names by TLS-ALPN-01 on this port.
    fn start(home: &Path, port: u16) -> Self {
        let bundle = certificate(home);
        let (api, dns, manage) = (free_port(), free_port(), free_port());
        let config = serde_json::json!({"pebble": {
            "listenAddress": format!("127.0.0.1:{api}"),
            "managementListenAddress": format!("127.0.0.1:{}", free_port()),
            "certificate": home.join("pebble.crt"), "privateKey": home.join("pebble.key"),
            "httpPort": free_port(), "tlsPort": port, "ocspResponderURL": "",
            "externalAccountBindingRequired": false, "retryAfter": {"authz": 1, "order": 1},
            "profiles": {"default": {"description": "ninety days", "validityPeriod": 7_776_000}},
        }});
        fs::write(home.join("pebble.json"), config.to_string()).unwrap();
        let log = home.join("pebble.log");
        let resolver = Command::new(tool("pebble-challtestsrv"))
            .args(["-defaultIPv4", "127.0.0.1", "-defaultIPv6", ""])
            .args(["-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", ""])
            .args(["-dnsserver", &format!("127.0.0.1:{dns}")])
            .args(["-management", &format!("127.0.0.1:{manage}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let pebble = Command::new(tool("pebble"))
            .arg("-config")
            .arg(home.join("pebble.json"))
            .args(["-strict", "-dnsserver", &format!("127.0.0.1:{dns}")])
            .env("PEBBLE_VA_NOSLEEP", "1")
            .env("PEBBLE_AUTHZREUSE", "0")
            .stdin(Stdio::null())
            .stdout(File::create(&log).unwrap())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let this = Self {
            children: [resolver, pebble],
            directory: format!("https://localhost:{api}/dir"),
            bundle,
            log,
        };
        for port in [api, dns] {
            wait_for("Pebble", || {
                TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
            });
        }
        this
    }

    fn issuer(&self, namespace: &str) -> String {
        let bundle = self.bundle.lines().map(|line| format!("    {line}\n"));
        format!(
            "
---
apiVersion: vestibule.dev/v1alpha1
kind: ACMEIssuer
metadata: {{namespace: {namespace}, name: ca}}
spec:
  directory: {}
  caBundle: |
{}",
            self.directory,
            bundle.collect::<String>()
        )
    }
}

/// A certificate for Pebble's HTTPS; its authority in PEM.
fn certificate(home: &Path) -> String {
    let authority_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&authority_key).unwrap();
    let issuer = Issuer::new(params, authority_key);
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec!["localhost".to_owned()])
        .and_then(|params| params.signed_by(&key, &issuer))
        .unwrap();
    fs::write(home.join("pebble.crt"), leaf.pem()).unwrap();
    fs::write(home.join("pebble.key"), key.serialize_pem()).unwrap();
    authority.pem()
}

#[test]
#[ignore = "needs Pebble, which e2e/tools/get builds"]
fn a_ca_that_manifests_name_issues_what_is_served_and_kept_privately() {
    let (home, port) = (Directory::new(), free_port());
    let pebble = Pebble::start(home.path(), port);
    let state = home.path().join("state");
    let manifests = home.path().join("manifests");
    fs::create_dir(&manifests).unwrap();
    fs::write(manifests.join("platform.yaml"), PLATFORM).unwrap();
    let annotated = set("bakery", HOST).replace(
        "name: set}",
        "name: set, annotations: {vestibule.dev/acme-issuer: ca}}",
    );
    let texts = [
        annotated,
        route("bakery", HOST, "one"),
        service("bakery", "one", backend("bread 1")),
        pebble.issuer("bakery"),
    ];
    fs::write(manifests.join("bakery.yaml"), texts.concat()).unwrap();
    let mut run = Run::start_on(home, port, &[]);
    run.wait_for_log("a certificate is issued");

    let file = state.join("acme/bakery_cert");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&file), mode(&state.join("acme"))), (0o600, 0o700));
    // The CA of the leaf follows it in the chain.
    let kept = fs::read_to_string(&file).unwrap();
    let begin = "-----BEGIN CERTIFICATE-----";
    let intermediate = kept.split(begin).nth(2).unwrap();
    let intermediate = format!("{begin}{intermediate}");
    wait_for("an answer with that certificate", || {
        get(run.address(), HOST, intermediate.as_bytes()).is_ok_and(|answer| answer == "bread 1")
    });
    // The status follows what is served.
    wait_for("a status of it", || {
        run.admin("/status").contains("\"Issued\"")
    });
    let key = kept.lines().find(|line| line.starts_with("MIG")).unwrap();
    for text in [run.log(), run.admin("/status"), run.admin("/config")] {
        assert!(!text.contains("PRIVATE KEY") && !text.contains(key));
    }
    let log = fs::read_to_string(&pebble.log).unwrap();
    assert_eq!(log.matches("Added order ").count(), 1, "{log}");
    run.signal("TERM");
    assert_eq!(run.wait().code(), Some(0));
}
