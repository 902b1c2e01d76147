//! A directory of manifests, a backend, and a `vestibule run` that serves the one with the other.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
pub(crate) use vestibule_test_support::free_port;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_mins(1);

/// A directory that goes away with the test.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("vestibule-cli-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Polls until `done` says so.
pub(crate) fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < PATIENCE, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A plain HTTP server with one answer, for as long as the test process lives.
pub(crate) fn backend(answer: &'static str) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            // A client that only connects holds up nobody else.
            std::thread::spawn(move || {
                let mut request = [0; 1024];
                if stream.read(&mut request).is_ok_and(|length| length > 0) {
                    let _ = write!(stream, "HTTP/1.0 200 OK\r\n\r\n{answer}");
                }
            });
        }
    });
    port
}

pub(crate) fn check(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vestibule"))
        .arg("check")
        .args(arguments)
        .output()
        .unwrap()
}

/// A running `vestibule run`.
pub(crate) struct Run {
    child: Child,
    home: Directory,
    port: u16,
    admin: String,
}

impl Run {
    /// Starts on the directory `manifests` in `home`; listener port 443 is served on a free one.
    pub(crate) fn start(home: Directory, arguments: &[&str]) -> Self {
        Self::start_on(home, free_port(), arguments)
    }

    /// The same on this port.
    pub(crate) fn start_on(home: Directory, port: u16, arguments: &[&str]) -> Self {
        let admin = format!("127.0.0.1:{}", free_port());
        Self::start_at(home, port, &admin, arguments)
    }

    /// The same with this admin endpoint.
    pub(crate) fn start_at(home: Directory, port: u16, admin: &str, arguments: &[&str]) -> Self {
        let log = fs::File::create(home.path().join("log")).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_vestibule"))
            .arg("run")
            .arg(home.path().join("manifests"))
            .arg("--state-dir")
            .arg(home.path().join("state"))
            .args(["--port-map", &format!("443={port}")])
            .args(["--admin", admin])
            .args(["--workers", "1"])
            .args(arguments)
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Self {
            child,
            home,
            port,
            admin: admin.to_owned(),
        }
    }

    pub(crate) fn manifests(&self) -> PathBuf {
        self.home.path().join("manifests")
    }

    pub(crate) fn write(&self, file: &str, text: &str) {
        fs::write(self.manifests().join(file), text).unwrap();
    }

    pub(crate) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// What was said so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.home.path().join("log")).unwrap()
    }

    pub(crate) fn wait_for_log(&self, text: &str) {
        let started = Instant::now();
        while !self.log().contains(text) {
            assert!(
                started.elapsed() < PATIENCE,
                "no {text:?} in the log:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The PEM file of the local CA.
    pub(crate) fn ca(&self) -> PathBuf {
        self.home.path().join("state/ca.crt")
    }

    /// What answers `host`, with a certificate of the local CA.
    pub(crate) fn get(&self, host: &str) -> io::Result<String> {
        get(self.address(), host, &fs::read(self.ca())?)
    }

    /// Polls until `host` answers so.
    pub(crate) fn wait_for_answer(&self, host: &str, answer: &str) {
        let started = Instant::now();
        loop {
            let seen = self.get(host);
            if seen.as_ref().is_ok_and(|seen| seen == answer) {
                return;
            }
            assert!(
                started.elapsed() < PATIENCE,
                "{host}: wanted {answer:?}, saw {seen:?}; the log:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A document of the admin endpoint.
    pub(crate) fn admin(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.admin).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args(["-s", name, &self.child.id().to_string()])
            .status()
            .unwrap();
        assert!(status.success());
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(
                started.elapsed() < PATIENCE,
                "it does not end:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The body of what answers one request; fails unless the certificate is of this CA and for this host.
pub(crate) fn get(address: SocketAddr, host: &str, ca_pem: &[u8]) -> io::Result<String> {
    let text = exchange(address, host, ca_pem)?;
    let (_, body) = text
        .split_once("\r\n\r\n")
        .ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(body.to_owned())
}

/// Everything that answers one request, over TLS as with [`get`].
pub(crate) fn exchange(address: SocketAddr, host: &str, ca_pem: &[u8]) -> io::Result<String> {
    let mut roots = RootCertStore::empty();
    let ca = CertificateDer::from_pem_slice(ca_pem).map_err(io::Error::other)?;
    roots.add(ca).map_err(io::Error::other)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut tls = StreamOwned::new(connection, stream);
    // At once: the backend answers to the first part, and closing on the rest would be a reset.
    tls.write_all(format!("GET / HTTP/1.0\r\nHost: {host}\r\n\r\n").as_bytes())?;
    let mut text = String::new();
    tls.read_to_string(&mut text)?;
    Ok(text)
}

/// A class, and a Gateway that everybody may extend.
pub(crate) const PLATFORM: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: vestibule}
spec: {controllerName: vestibule.dev/gateway-controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: platform, name: edge}
spec:
  gatewayClassName: vestibule
  allowedListeners: {namespaces: {from: All}}
  listeners:
    - {name: own, protocol: TLS, port: 443, hostname: edge.example, tls: {mode: Passthrough}}
";

/// A ListenerSet that terminates `host` with Secret `cert`.
pub(crate) fn set(namespace: &str, host: &str) -> String {
    format!(
        "
---
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {{namespace: {namespace}, name: set}}
spec:
  parentRef: {{namespace: platform, name: edge}}
  listeners:
    - name: web
      protocol: TLS
      port: 443
      hostname: {host}
      tls: {{mode: Terminate, certificateRefs: [{{name: cert}}]}}
"
    )
}

/// A route of `host` to `service`.
pub(crate) fn route(namespace: &str, host: &str, service: &str) -> String {
    format!(
        "
---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {{namespace: {namespace}, name: web}}
spec:
  parentRefs: [{{kind: ListenerSet, name: set}}]
  hostnames: [{host}]
  rules: [{{backendRefs: [{{name: {service}, port: 80}}]}}]
"
    )
}

/// A Service with one endpoint.
pub(crate) fn service(namespace: &str, name: &str, port: u16) -> String {
    format!(
        "
---
apiVersion: v1
kind: Service
metadata: {{namespace: {namespace}, name: {name}}}
spec: {{ports: [{{port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{namespace: {namespace}, name: {name}, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{port: {port}}}]
endpoints: [{{addresses: [127.0.0.1]}}]
"
    )
}
