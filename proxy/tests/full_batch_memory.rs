//! Counts the bytes that a hostname costs a proxy that gets everything in one batch. The test has a process of its own,
//! since it counts what the process has allocated. Unlike resident memory, that does not depend on which thread the
//! scheduler let run when.

use std::alloc::System;
use std::net::SocketAddr;
use std::time::Duration;

use cap::Cap;
use vestibule_proxy::{ConfigSource, Proxy};
use vestibule_proxy_testing::component::*;
use vestibule_proxy_testing::*;
use vestibule_stream::Resource;
use vestibule_test_support::{eventually, free_port};

/// Listeners of a ListenerSet, which have a route each and share a Service. Every second one has a certificate.
const LISTENERS: usize = 16;
const SETS: usize = 256;
const NAMESPACES: usize = 50;

/// Libraries may keep so many bytes of a proxy that has ended, which is 16 for each hostname.
const LEFT: usize = 64 << 10;

/// Counts the bytes that are allocated.
#[global_allocator]
static ALLOCATED: Cap<System> = Cap::new(System, usize::MAX);

/// What a ListenerSet and its routes become. `kinds` says whether there are certificates, owners, and routes with their
/// backend beside the listeners.
fn set(number: usize, bind: SocketAddr, kinds: [bool; 3]) -> Vec<Resource> {
    let [certificates, owners, routes] = kinds;
    let team = format!("team-{}", number % NAMESPACES);
    let service = format!("{team}/web-{number}:8080");
    let mut resources = Vec::new();
    for n in 0..LISTENERS {
        let host = format!("app-{n}.set-{number}.{team}.example.com");
        let name = format!("ListenerSet/{team}/web-{number}/listener-{n}");
        let secret = format!("{team}/web-{number}-{n}-tls");
        let terminates = certificates && n % 2 == 0;
        let secrets = [&*secret];
        resources.push(listener_at(
            &name,
            bind,
            &host,
            terminates.then_some(&secrets),
        ));
        if terminates {
            resources.push(Identity::new(&host).resource(&secret));
        }
        if owners {
            resources.push(owner(&host, &team));
        }
        if routes {
            let route = format!("{team}/web-{number}-{n}");
            resources.push(tls_route(&route, &name, &host, &service));
        }
    }
    if routes {
        let endpoint = SocketAddr::from(([127, 0, 0, 1], 8080));
        resources.push(backend(&service, &[endpoint]));
    }
    resources
}

/// The bytes of a hostname in a proxy that gets these kinds of resources.
async fn bytes(kinds: [bool; 3]) -> usize {
    let before = ALLOCATED.allocated();
    let bind = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let batch = {
        let sets = (0..SETS).flat_map(|number| set(number, bind, kinds));
        Operator::default().batch(&sets.collect::<Vec<_>>(), &[])
    };
    let mut config = proxy_config(ConfigSource::Caller);
    config.workers = 1;
    let mut proxy = Proxy::start(config).await.unwrap();
    let base = ALLOCATED.allocated();
    let ack = proxy.apply(&batch);
    assert_eq!((ack.refusal, ack.rejects), (None, vec![]));
    let bytes = ALLOCATED.allocated() - base;
    assert_eq!(proxy.counts().listeners, SETS * LISTENERS);
    assert_eq!(proxy.drain(Duration::from_secs(30)).await, 0);
    drop(batch);
    // Some of its memory is given back by other threads. That must not happen in the next measurement.
    eventually("the memory of a proxy to be given back", async || {
        ALLOCATED.allocated() <= before + LEFT
    })
    .await;
    bytes / (SETS * LISTENERS)
}

/// The bound is a few percent above what was measured, and notices when something grows. Half a certificate is part of it,
/// without what the library for cryptography allocates by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_hostname_takes_no_more_memory_than_it_did() {
    // Whatever the first certificate sets up in libraries is not the hostnames'.
    bytes([true; 3]).await;
    let listener = bytes([false; 3]).await;
    let with_certificate = bytes([true, false, false]).await;
    let with_owner = bytes([false, true, false]).await;
    let with_route = bytes([false, false, true]).await;
    let all = bytes([true; 3]).await;
    let figures = format!(
        "{all} bytes for a hostname: {listener} for the listener, {} for half a certificate, {} for the owner, {} for the \
         route and its part of a backend",
        with_certificate - listener,
        with_owner - listener,
        with_route - listener,
    );
    report(&figures);
    assert!(all <= 2_160, "{figures}");
}

/// Worth reading with `--nocapture`.
#[allow(clippy::print_stderr, reason = "a measurement for people")]
fn report(figures: &str) {
    eprintln!("{figures}");
}
