//! What 10,000 tenants cost in memory. In a process of its own, since it counts what the process has allocated: unlike
//! resident memory, that does not depend on which thread the scheduler let run when.

use std::alloc::System;
use std::net::SocketAddr;

use cap::Cap;
use vestibule_proxy::{ConfigSource, Proxy};
use vestibule_proxy_testing::component::*;
use vestibule_proxy_testing::*;
use vestibule_stream::Resource;
use vestibule_test_support::free_port;

const TENANTS: usize = 10_000;

/// Counts the bytes that are allocated. Resident memory is a third more: 31 MB for the certificates below.
#[global_allocator]
static ALLOCATED: Cap<System> = Cap::new(System, usize::MAX);

/// A hostname with its certificate.
fn served(n: usize, bind: SocketAddr) -> [Resource; 2] {
    let host = format!("app-{n}.tenant-{n}.example.com");
    let secret = format!("tenant-{n}/web-tls");
    let set = format!("ListenerSet/tenant-{n}/web/tls");
    [
        listener_at(&set, bind, &host, Some(&[&secret])),
        Identity::new(&host).resource(&secret),
    ]
}

/// The owner of a hostname, its route and its backend.
fn routed(n: usize, endpoint: SocketAddr) -> [Resource; 3] {
    let host = format!("app-{n}.tenant-{n}.example.com");
    let set = format!("ListenerSet/tenant-{n}/web/tls");
    let service = format!("tenant-{n}/web:8080");
    [
        owner(&host, &format!("tenant-{n}")),
        tls_route(&format!("tenant-{n}/web"), &set, &host, &service),
        backend(&service, &[endpoint]),
    ]
}

fn fill<const N: usize>(
    proxy: &mut Proxy,
    operator: &mut Operator,
    tenant: impl Fn(usize) -> [Resource; N],
) {
    for chunk in (0..TENANTS).collect::<Vec<_>>().chunks(100) {
        let resources: Vec<_> = chunk.iter().flat_map(|n| tenant(*n)).collect();
        let ack = proxy.apply(&operator.batch(&resources, &[]));
        assert_eq!((ack.refusal, ack.rejects), (None, vec![]));
    }
}

/// The bounds are a few percent above what was measured, and notice when something grows.
#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_takes_no_more_memory_than_it_did() {
    let bind = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut config = proxy_config(ConfigSource::Caller);
    config.workers = 1;
    let mut proxy = Proxy::start(config).await.unwrap();
    let mut operator = Operator::default();
    // Whatever the first certificate sets up in libraries is not the tenants'.
    proxy.apply(&operator.batch(&served(TENANTS, bind), &[]));

    let base = ALLOCATED.allocated();
    fill(&mut proxy, &mut operator, |n| served(n, bind));
    let with_certificates = ALLOCATED.allocated() - base;
    fill(&mut proxy, &mut operator, |n| routed(n, bind));
    let with_routes = ALLOCATED.allocated() - base;

    assert_eq!(proxy.counts().certificates, TENANTS + 1);
    assert_eq!(proxy.counts().routes, TENANTS);
    assert_eq!(proxy.counts().hostname_owners, TENANTS);
    let figures = format!(
        "{} bytes for a listener with its certificate, {} with owner, route and backend",
        with_certificates / TENANTS,
        with_routes / TENANTS
    );
    report(&figures);
    // The encoding of a key that was not used yet is counted. A parsed key is not, because it lies in the heap of C.
    assert!(with_certificates <= 2_560 * TENANTS, "{figures}");
    assert!(with_routes <= 3_970 * TENANTS, "{figures}");
}

/// Worth reading with `--nocapture`.
#[allow(clippy::print_stderr, reason = "a measurement for people")]
fn report(figures: &str) {
    eprintln!("{figures}");
}
