//! What 10,000 tenants cost in memory: a listener, certificate, route and backend each. In a process
//! of its own, since it measures the process.

mod control_support;

use control_support::*;
use vestibule_proxy::{ConfigSource, Proxy, ProxyConfig};

const TENANTS: usize = 10_000;

/// Resident memory in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

fn tenant(n: usize, bind: std::net::SocketAddr) -> [vestibule_stream::Resource; 4] {
    let host = format!("app-{n}.tenant-{n}.example.com");
    let set = format!("ListenerSet/tenant-{n}/web/tls");
    let secret = format!("tenant-{n}/web-tls");
    let service = format!("tenant-{n}/web:8080");
    [
        listener(&set, bind, &host, Some(&[&secret])),
        certificate(&secret, &identity(&[&host])),
        route(&format!("tenant-{n}/web"), &set, &host, &service),
        backend(&service, &[bind]),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_tenants_fit_into_thirty_megabytes() {
    let bind = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut config = ProxyConfig::new(ConfigSource::Caller);
    config.workers = 1;
    let mut proxy = Proxy::start(config).await.unwrap();
    let mut operator = Operator::default();
    // Whatever the first certificate sets up in libraries is not the tenants'.
    proxy.apply(&operator.batch(&tenant(TENANTS, bind), &[]));
    let base = resident();
    for chunk in (0..TENANTS).collect::<Vec<_>>().chunks(100) {
        let resources: Vec<_> = chunk.iter().flat_map(|n| tenant(*n, bind)).collect();
        let ack = proxy.apply(&operator.batch(&resources, &[]));
        assert_eq!(ack.rejects, []);
    }
    assert_eq!(proxy.counts().certificates, TENANTS + 1);
    let grown = resident() - base;
    let each = grown / TENANTS;
    assert!(
        grown <= 30 * 1024 * 1024,
        "{} KiB, {each} bytes for each",
        grown / 1024
    );
    eprintln_once(each);
}

/// The figure is worth reading with `--nocapture`.
#[allow(clippy::print_stderr, reason = "a measurement for people")]
fn eprintln_once(each: usize) {
    eprintln!("{each} bytes for each tenant");
}
