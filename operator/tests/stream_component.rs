//! The publisher over real gRPC: against real proxies, and against proxies that do not behave.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::{net::TcpListener, time::timeout};
use tokio_stream::wrappers::TcpListenerStream;
use vestibule_operator::publish::{self, Changes, Publisher};
use vestibule_operator_testing::stream::{BOUND, Counted, Proxy, Raw, backend, hash, hello, key};
use vestibule_stream::{
    Encoded, Generation, PROTOCOL_VERSION, Resource,
    client::Tcp,
    proto::{
        Heartbeat, Hello, Inventory, InventoryEntry, NotLeader, Reject,
        operator_message::Message as FromOperator, proxy_message::Message as FromProxy,
    },
};

fn changes(upserts: &[Resource], removals: &[&str]) -> Changes {
    let mut changes = Changes::new();
    for resource in upserts {
        changes.upsert(resource).unwrap();
    }
    for name in removals {
        changes.remove(key(name));
    }
    changes
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(ToString::to_string).collect()
}

fn leader(config: publish::Config) -> Arc<Publisher> {
    let publisher = Publisher::new(config);
    publisher.lead(1).unwrap();
    publisher
}

/// Waits until `publisher` answers as `wanted`.
async fn until(publisher: &Publisher, wanted: impl Fn(&Publisher) -> bool) {
    let mut facts = publisher.acks();
    let reached = async {
        while !wanted(publisher) {
            facts.changed().await.unwrap();
        }
    };
    let reached = timeout(BOUND, reached).await;
    assert!(reached.is_ok(), "never: {:?}", publisher.programmed(&[]));
}

fn fact(publisher: &Publisher, name: &str) -> bool {
    publisher.programmed(&[key(name)]).acknowledged().is_some()
}

// ---- Publisher and proxy ----

#[tokio::test]
async fn programmed_needs_a_proxy_and_every_ready_one() {
    let publisher = leader(publish::Config::default());
    publisher.update(changes(&[backend("a", 1)], &[]));
    let nobody = publisher.programmed(&[key("a")]);
    assert_eq!((nobody.acknowledged(), nobody.ready), (None, 0));

    let one = Proxy::of("one", &publisher);
    until(&publisher, |publisher| fact(publisher, "a")).await;
    assert_eq!(one.table.hashes()[&key("a")], hash(&backend("a", 1)));
    assert_eq!(publisher.programmed(&[key("b")]).unpublished, [key("b")]);
    assert!(!fact(&publisher, "b"));

    // Ready, but it never connected: named, and no fact.
    publisher.set_ready(names(&["one", "two"]));
    let waiting = publisher.programmed(&[key("a")]);
    assert_eq!((waiting.acked, waiting.ready), (1, 2));
    assert_eq!(
        (waiting.acknowledged(), waiting.waiting_for),
        (None, vec!["two".to_owned()])
    );
    let _two = Proxy::of("two", &publisher);
    until(&publisher, |publisher| fact(publisher, "a")).await;

    // The proxy is gone silently. Later changes still wait for it, until the cluster says that it is gone.
    drop(one);
    until(&publisher, |publisher| Counted::by(publisher).proxies == 1).await;
    assert!(fact(&publisher, "a"), "churn elsewhere takes no fact away");
    publisher.update(changes(&[backend("b", 1)], &[]));
    until(&publisher, |publisher| {
        publisher.programmed(&[key("b")]).acked == 1
    })
    .await;
    let waiting = publisher.programmed(&[key("b")]);
    assert_eq!(
        (waiting.acknowledged(), waiting.waiting_for),
        (None, vec!["one".to_owned()])
    );
    publisher.set_ready(names(&["two"]));
    assert!(fact(&publisher, "b"));
}

#[tokio::test]
async fn a_reject_is_told_and_goes_with_the_next_good_version() {
    let publisher = leader(publish::Config::default());
    publisher.update(changes(&[backend("a", 1), backend("b", 1)], &[]));
    let proxy = Proxy::of("one", &publisher);
    until(&publisher, |publisher| fact(publisher, "a")).await;

    publisher.update(changes(&[backend("a", 0), backend("b", 2)], &[]));
    until(&publisher, |publisher| fact(publisher, "b")).await;
    let programmed = publisher.programmed(&[key("a"), key("b")]);
    assert_eq!((programmed.acknowledged(), programmed.acked), (None, 0));
    let [(name, Reject { reason, .. })] = programmed.rejects.as_slice() else {
        panic!("{programmed:?}")
    };
    assert_eq!((name.as_str(), reason.as_str()), ("one", "Invalid"));
    // The last good version serves on.
    assert_eq!(proxy.table.hashes()[&key("a")], hash(&backend("a", 1)));

    // Other edits go on beside it, and a new leader sends it again and hears of it again.
    publisher.update(changes(&[backend("c", 1)], &[]));
    until(&publisher, |publisher| fact(publisher, "c")).await;
    let before = Counted::by(&publisher).resource_bytes;
    publisher.lead(2).unwrap();
    until(&publisher, |publisher| {
        !publisher.programmed(&[key("a")]).rejects.is_empty()
    })
    .await;
    let sent = Counted::by(&publisher).resource_bytes - before;
    assert_eq!(sent, Encoded::new(&backend("a", 0)).unwrap().len() as u64);

    publisher.update(changes(&[backend("a", 3)], &["b"]));
    until(&publisher, |publisher| fact(publisher, "a")).await;
    assert_eq!(proxy.table.hashes().len(), 2);
}

/// Two replicas with the same content, of which none leads yet, and their addresses.
async fn replicas(content: &[Resource]) -> ([Arc<Publisher>; 2], [String; 2]) {
    let (a, b) = (replica(content).await, replica(content).await);
    ([a.0, b.0], [a.1, b.1])
}

async fn replica(content: &[Resource]) -> (Arc<Publisher>, String) {
    let publisher = Publisher::new(publish::Config::default());
    publisher.update(changes(content, &[]));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = publish::server().add_service(publish::service(&publisher));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    (publisher, address)
}

#[tokio::test]
async fn a_proxy_finds_the_leader_and_a_new_one_with_equal_content_sends_nothing() {
    let (replicas, addresses) = replicas(&[backend("a", 1), backend("b", 1)]).await;
    replicas[0].follow(Some(addresses[1].clone()));
    replicas[1].lead(1).unwrap();
    // It only knows the follower.
    let mut proxy = Proxy::start("one", &addresses[..1], Tcp);
    until(&replicas[1], |publisher| fact(publisher, "a")).await;
    assert_eq!(proxy.state.borrow().connected.as_ref(), Some(&addresses[1]));
    assert!(proxy.state.borrow().refusals["NotLeader"] > 0);

    replicas[1].follow(Some(addresses[0].clone()));
    assert!(!fact(&replicas[1], "a"), "a follower knows no fact");
    replicas[0].lead(2).unwrap();
    until(&replicas[0], |publisher| {
        fact(publisher, "a") && fact(publisher, "b")
    })
    .await;
    let sent = Counted::by(&replicas[0]);
    assert_eq!((sent.batches, sent.resource_bytes), (1, 0));
    proxy
        .until(|state| state.held.is_some_and(|held| held.term == 2))
        .await;
}

#[tokio::test]
async fn a_leader_that_resigns_keeps_its_proxies_and_sends_them_to_the_next_one_in_one_step() {
    let (replicas, addresses) = replicas(&[backend("a", 1)]).await;
    // More often than the client follows redirects without a wait.
    replicas[0].lead(1).unwrap();
    let mut proxy = Proxy::start("one", &addresses[..1], Tcp);
    let mut batches = [0, 0];
    for term in 1..8 {
        let (old, new) = if term % 2 == 1 { (0, 1) } else { (1, 0) };
        let (leader, next) = (&replicas[old], &replicas[new]);
        until(leader, |publisher| fact(publisher, "a")).await;

        assert!(leader.resign(), "a proxy is connected");
        // An edit of this time is the next leader's to publish.
        let edited = backend("a", 1 + u32::try_from(term).unwrap());
        leader.update(changes(std::slice::from_ref(&edited), &[]));
        next.update(changes(std::slice::from_ref(&edited), &[]));
        assert_eq!(
            proxy.state.borrow().connected.as_ref(),
            Some(&addresses[old])
        );
        // One for each time that it leads, so the edit is not among them.
        batches[old] += 1;
        assert_eq!(Counted::by(leader).batches, batches[old]);
        next.lead(term + 1).unwrap();
        leader.follow(Some(addresses[new].clone()));
        until(next, |publisher| fact(publisher, "a")).await;
        assert_eq!(proxy.table.hashes()[&key("a")], hash(&edited));
        proxy.until(|state| state.welcomed == term + 1).await;
        // It was told the leader once each time, and asked nobody else.
        let refusals = proxy.state.borrow().refusals.clone();
        assert_eq!(refusals, [("NotLeader", term)].into());
    }
}

/// The API server may tell the last leader of the next one before the next one has the answer to its own write.
#[tokio::test(start_paused = true)]
async fn a_proxy_that_comes_while_an_attempt_to_lead_is_under_way_is_answered_after_it() {
    let publisher = Publisher::new(publish::Config::default());
    let attempt = publisher.attempt();
    let mut proxy = Raw::open(&publisher, FromProxy::Hello(hello("one"))).await;
    // Time passes only when nothing else is left to do.
    let early = timeout(Duration::from_secs(1), proxy.next()).await;
    assert!(early.is_err(), "{early:?}");
    publisher.lead(1).unwrap();
    drop(attempt);
    assert!(matches!(proxy.next().await, Some(FromOperator::Welcome(_))));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_to_lead_that_fails_leaves_a_follower() {
    let publisher = Publisher::new(publish::Config::default());
    let attempt = publisher.attempt();
    let mut proxy = Raw::open(&publisher, FromProxy::Hello(hello("one"))).await;
    drop(attempt);
    let answer = timeout(Duration::from_secs(1), proxy.next()).await;
    assert!(matches!(answer, Ok(Some(FromOperator::NotLeader(_)))));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_to_lead_that_hangs_keeps_a_proxy_no_longer_than_a_handshake() {
    let config = publish::Config::default();
    let bound = config.handshake;
    let publisher = Publisher::new(config);
    let _attempt = publisher.attempt();
    let mut proxy = Raw::open(&publisher, FromProxy::Hello(hello("one"))).await;
    let early = timeout(bound / 2, proxy.next()).await;
    assert!(early.is_err(), "{early:?}");
    let answer = timeout(bound, proxy.next()).await;
    assert!(matches!(answer, Ok(Some(FromOperator::NotLeader(_)))));
}

#[tokio::test]
async fn a_proxy_comes_back_to_a_publisher_that_was_restarted() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut listener = Some(listener);
    let mut proxy = Proxy::start("one", &[address.to_string()], Tcp);
    let mut last = Generation::default();
    for port in 1..4 {
        // The same term each time: the proxy is ahead of a counter that begins again.
        let publisher = leader(publish::Config::default());
        publisher.update(changes(&[backend("a", port)], &[]));
        let bound = match listener.take() {
            Some(listener) => listener,
            None => TcpListener::bind(address).await.unwrap(),
        };
        let server = publish::server().add_service(publish::service(&publisher));
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let incoming = TcpListenerStream::new(bound);
        let serving = tokio::spawn(server.serve_with_incoming_shutdown(incoming, async {
            let _ = stopped.await;
        }));
        until(&publisher, |publisher| fact(publisher, "a")).await;
        assert_eq!(proxy.table.hashes()[&key("a")], hash(&backend("a", port)));
        assert!(proxy.table.generation().unwrap() > last);
        last = proxy.table.generation().unwrap();
        drop(stop);
        publisher.follow(None);
        timeout(BOUND, serving).await.unwrap().unwrap().unwrap();
        proxy.until(|state| state.connected.is_none()).await;
        assert_eq!(proxy.table.hashes().len(), 1, "it serves on");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forty_thousand_resources_are_one_message_and_a_hand_over_sends_what_differs() {
    let publisher = leader(publish::Config::default());
    let name = |index| {
        format!(
            "{}/{index}",
            "namespace-of-a-common-length/service".repeat(4)
        )
    };
    let all: Vec<_> = (0..40_000).map(|index| backend(&name(index), 1)).collect();
    publisher.update(changes(&all, &[]));
    let proxy = Proxy::of("one", &publisher);
    until(&publisher, |publisher| fact(publisher, &name(7))).await;
    let sent = Counted::by(&publisher);
    assert_eq!(sent.batches, 1);
    // More than what gRPC takes by default.
    assert!(sent.bytes > 4 << 20, "{sent:?}");
    assert_eq!(proxy.table.hashes().len(), all.len());

    // A leader that differs in one resource, and lacks one: an inventory in many chunks comes first.
    let next = Publisher::new(publish::Config::default());
    next.update(changes(&all, &[&name(1)]));
    next.update(changes(&[backend(&name(2), 2)], &[]));
    next.lead(2).unwrap();
    let mut registry = prometheus_client::registry::Registry::default();
    next.metrics().register(&mut registry);
    publisher.follow(None);
    let held = proxy.table.clone();
    let mut client = Raw::open(
        &next,
        FromProxy::Hello(Hello {
            held: held.generation(),
            held_digest: publisher.digest().to_vec(),
            ..hello("one")
        }),
    )
    .await;
    assert!(matches!(
        client.next().await,
        Some(FromOperator::Welcome(_))
    ));
    assert!(matches!(
        client.next().await,
        Some(FromOperator::InventoryRequest(_))
    ));
    let entries: Vec<_> = held.hashes().into_iter().collect();
    let chunks = entries.chunks(4096);
    let last = chunks.len() - 1;
    for (index, chunk) in chunks.enumerate() {
        let entry = |(key, hash): &(_, vestibule_stream::ContentHash)| InventoryEntry {
            key: Some(Clone::clone(key)),
            hash: hash.to_vec(),
        };
        let entries = chunk.iter().map(entry).collect();
        client
            .send(FromProxy::Inventory(Inventory {
                entries,
                last: index == last,
            }))
            .await;
    }
    let resync = client.batch().await;
    assert_eq!(
        resync.upserts,
        [Encoded::new(&backend(&name(2), 2)).unwrap().upsert()]
    );
    assert_eq!(resync.removals, [key(&name(1))]);

    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let in_force = all.iter().enumerate().filter(|(index, _)| *index != 1);
    let bytes = in_force.map(|(_, resource)| Encoded::new(resource).unwrap().len() + 16);
    let bytes = format!(
        "vestibule_operator_stream_configuration_bytes {}",
        bytes.sum::<usize>()
    );
    for line in [
        "vestibule_operator_stream_proxies 1",
        "vestibule_operator_stream_resources 39999",
        &bytes,
        "vestibule_operator_stream_batches_total{kind=\"resync\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
}

// ---- The publisher and proxies that do not behave ----

#[tokio::test]
async fn changes_made_while_a_proxy_is_slow_arrive_merged_in_one_batch() {
    let publisher = leader(publish::Config::default());
    publisher.update(changes(&[backend("a", 1), backend("b", 1)], &[]));
    let mut slow = Raw::hello(&publisher, "slow").await;
    let full = slow.batch().await;
    assert!(full.full && !full.keep_held && full.upserts.len() == 2);
    for port in 2..200 {
        publisher.update(changes(&[backend("a", port), backend("c", port)], &[]));
    }
    publisher.update(changes(&[], &["b"]));
    slow.ack(&full).await;
    let delta = slow.batch().await;
    assert_eq!(
        (delta.base, delta.generation),
        (full.generation, Some(publisher.generation()))
    );
    assert_eq!((delta.upserts.len(), delta.removals.len()), (2, 1));
    assert_eq!(
        delta.upserts[0],
        Encoded::new(&backend("a", 199)).unwrap().upsert()
    );
    assert_eq!(Counted::by(&publisher).batches, 2);
}

#[tokio::test(start_paused = true)]
async fn proxy_that_does_not_acknowledge_a_batch_is_disconnected() {
    let patience = Duration::from_millis(50);
    let config = publish::Config {
        patience,
        ..publish::Config::default()
    };
    let publisher = leader(config);
    let mut mute = Raw::hello(&publisher, "mute").await;
    mute.batch().await;
    assert!(mute.next().await.is_none());
    until(&publisher, |publisher| Counted::by(publisher).proxies == 0).await;
}

#[tokio::test(start_paused = true)]
async fn proxy_that_is_silent_is_disconnected_and_one_answering_heartbeats_is_not() {
    let config = publish::Config {
        heartbeat: Duration::from_millis(20),
        silence: Duration::from_millis(200),
        ..publish::Config::default()
    };
    let publisher = leader(config);
    let alive = Proxy::of("alive", &publisher);
    let mut silent = Raw::hello(&publisher, "silent").await;
    let batch = silent.batch().await;
    silent.ack(&batch).await;
    assert!(silent.next().await.is_none());
    assert_eq!(alive.state.borrow().welcomed, 1);
}

#[tokio::test]
async fn a_hello_is_judged_before_anything_is_sent() {
    let publisher = leader(publish::Config::default());
    let generation = |term, counter| Some(Generation::new(term, counter));
    let cases = [
        (
            "UnsupportedProtocol",
            Hello {
                protocol: 0,
                ..hello("a")
            },
        ),
        ("InvalidIdentity", hello("")),
        ("InvalidIdentity", hello(&"x".repeat(2000))),
        (
            "InvalidGeneration",
            Hello {
                held: generation(1, u64::MAX),
                ..hello("a")
            },
        ),
    ];
    for (reason, hello) in cases {
        let mut raw = Raw::open(&publisher, FromProxy::Hello(hello)).await;
        match raw.next().await {
            Some(FromOperator::Refused(refused)) => assert_eq!(refused.reason, reason),
            other => panic!("{reason}: {other:?}"),
        }
        assert!(raw.next().await.is_none());
    }

    // A proxy that was served in a higher term: this replica does not lead any more, only does not
    // know it yet, and must not take the proxy back to older content.
    let ahead = Hello {
        held: generation(7, 1),
        ..hello("a")
    };
    let mut raw = Raw::open(&publisher, FromProxy::Hello(ahead)).await;
    assert!(matches!(raw.next().await, Some(FromOperator::NotLeader(_))));
    assert_eq!(publisher.superseded(), Some(7));
    assert!(publisher.generation() < Generation::new(2, 0));

    // Something else than a Hello.
    let mut raw = Raw::open(&publisher, FromProxy::Heartbeat(Heartbeat {})).await;
    assert!(raw.next().await.is_none());

    // A proxy of the next release is served in the version both speak.
    let newer = Hello {
        protocol: PROTOCOL_VERSION + 1,
        ..hello("a")
    };
    let mut raw = Raw::open(&publisher, FromProxy::Hello(newer)).await;
    match raw.next().await {
        Some(FromOperator::Welcome(welcome)) => assert_eq!(welcome.protocol, PROTOCOL_VERSION),
        other => panic!("{other:?}"),
    }
    let follower = Publisher::new(publish::Config::default());
    follower.follow(Some("leader:9".to_owned()));
    let mut raw = Raw::hello(&follower, "a").await;
    let leader = "leader:9".to_owned();
    assert_eq!(
        raw.next().await,
        Some(FromOperator::NotLeader(NotLeader { leader }))
    );
}

#[tokio::test]
async fn a_newer_stream_ends_the_older_one_whatever_that_waits_for() {
    let config = publish::Config {
        silence: Duration::from_hours(1),
        patience: Duration::from_hours(1),
        ..publish::Config::default()
    };
    let publisher = leader(config);
    publisher.update(changes(&[backend("a", 1)], &[]));
    // One waits for something to publish, and one for an ack.
    let mut idle = Raw::hello(&publisher, "p").await;
    let batch = idle.batch().await;
    idle.ack(&batch).await;
    let mut busy = Raw::hello(&publisher, "p").await;
    assert_eq!(idle.next().await, None);
    busy.batch().await;
    let mut newest = Raw::hello(&publisher, "p").await;
    newest.batch().await;
    assert_eq!(busy.next().await, None);
    assert_eq!(Counted::by(&publisher).proxies, 1);
}

#[tokio::test]
async fn refusal_reason_from_a_proxy_is_cut_to_a_bounded_length() {
    let publisher = leader(publish::Config::default());
    publisher.update(changes(&[backend("a", 1)], &[]));
    publisher.set_ready(names(&["p"]));
    let mut raw = Raw::hello(&publisher, "p").await;
    let batch = raw.batch().await;
    raw.refuse(&batch, &"x".repeat(1 << 20)).await;
    let refusals = || publisher.programmed(&[key("a")]).refusals;
    until(&publisher, |_| !refusals().is_empty()).await;
    assert!(refusals()[0].1.reason.len() <= 1024);
}

#[tokio::test]
async fn a_refused_base_leads_to_a_resync_and_refusing_for_ever_ends_the_stream() {
    let publisher = leader(publish::Config::default());
    publisher.update(changes(&[backend("a", 1), backend("b", 1)], &[]));
    let mut raw = Raw::hello(&publisher, "one").await;
    let batch = raw.batch().await;
    raw.ack(&batch).await;
    publisher.update(changes(&[backend("b", 2)], &[]));
    let delta = raw.batch().await;
    raw.refuse(&delta, "BaseMismatch").await;
    assert!(matches!(
        raw.next().await,
        Some(FromOperator::InventoryRequest(_))
    ));
    let refusals = publisher.programmed(&[key("b")]).refusals;
    assert_eq!(refusals[0].1.reason, "BaseMismatch");

    // It holds a as published and something that is not.
    let mut inventory = Inventory {
        entries: Vec::new(),
        last: true,
    };
    for resource in [backend("a", 1), backend("z", 1)] {
        inventory.entries.push(InventoryEntry {
            key: resource.key(),
            hash: hash(&resource).to_vec(),
        });
    }
    raw.send(FromProxy::Inventory(inventory)).await;
    let resync = raw.batch().await;
    assert!(resync.full && resync.keep_held && resync.generation > delta.generation);
    assert_eq!(
        resync.upserts,
        [Encoded::new(&backend("b", 2)).unwrap().upsert()]
    );
    assert_eq!(resync.removals, [key("z")]);
    raw.ack(&resync).await;
    until(&publisher, |publisher| fact(publisher, "b")).await;

    publisher.update(changes(&[backend("b", 3)], &[]));
    let mut refused = 0;
    while let Some(message) = raw.next().await {
        match message {
            FromOperator::Batch(batch) => {
                refused += 1;
                raw.refuse(&batch, "Malformed").await;
            }
            FromOperator::InventoryRequest(_) => {
                let inventory = Inventory {
                    entries: Vec::new(),
                    last: true,
                };
                raw.send(FromProxy::Inventory(inventory)).await;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(refused, 3);
}

#[tokio::test]
async fn a_proxy_started_anew_owes_an_ack_before_anything_is_a_fact() {
    let publisher = leader(publish::Config::default());
    publisher.update(changes(&[backend("a", 1)], &[]));
    publisher.set_ready(names(&["one"]));
    let mut first = Raw::hello(&publisher, "one").await;
    let batch = first.batch().await;
    first.ack(&batch).await;
    until(&publisher, |publisher| fact(publisher, "a")).await;

    // Unready and ready again while its connection seems to be up: maybe another process, served by
    // somebody else. The old ack counts no more, and the stream ends so that it says what it holds.
    publisher.set_ready(names(&[]));
    publisher.set_ready(names(&["one"]));
    assert_eq!(publisher.programmed(&[key("a")]).waiting_for, ["one"]);
    assert!(first.next().await.is_none());

    let held = batch.generation;
    let again = Hello {
        held,
        held_digest: publisher.digest().to_vec(),
        ..hello("one")
    };
    let mut second = Raw::open(&publisher, FromProxy::Hello(again)).await;
    let equal = second.batch().await;
    assert!(equal.keep_held && equal.upserts.is_empty());
    assert!(!fact(&publisher, "a"), "a Hello is no ack");
    second.ack(&equal).await;
    until(&publisher, |publisher| fact(publisher, "a")).await;

    // A new stream of the same name that holds nothing takes over from the old one.
    let mut third = Raw::hello(&publisher, "one").await;
    assert!(third.batch().await.full);
    assert!(!fact(&publisher, "a"));
    publisher.update(changes(&[backend("a", 2)], &[]));
    assert!(second.next().await.is_none());
}
