//! Large configurations on the stream: how many proxies get one at a time, and what happens to one that does not fit.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::{sleep, timeout};
use vestibule_operator::publish::{self, Changes, Publisher};
use vestibule_operator_testing::stream::{BOUND, Counted, Raw, key};
use vestibule_stream::{
    Batch, Resource, ResourceKey, ResourceKind,
    proto::{
        Certificate, Heartbeat, Refused, operator_message::Message as FromOperator,
        proxy_message::Message as FromProxy, resource,
    },
};

/// How many proxies start at once.
const PROXIES: usize = 500;

/// A resource of so many bytes.
fn long(name: &str, bytes: usize) -> Resource {
    let certificate = Certificate {
        chain: vec![vec![1; bytes].into()],
        private_key: Vec::new(),
        secret_uid: String::new(),
    };
    Resource::new(name, resource::Resource::Certificate(certificate))
}

fn leader(config: publish::Config, count: usize, bytes: usize) -> Arc<Publisher> {
    let publisher = Publisher::new(config);
    let mut changes = Changes::new();
    for number in 0..count {
        changes.upsert(&long(&format!("r{number}"), bytes)).unwrap();
    }
    publisher.update(changes);
    publisher.lead(1).unwrap();
    publisher
}

/// How many proxies are reading a batch, and the most that ever were.
#[derive(Default)]
struct Reading {
    now: usize,
    most: usize,
}

/// A proxy that answers heartbeats, and takes `time` for its batch.
async fn proxy(
    publisher: Arc<Publisher>,
    name: String,
    time: Duration,
    reading: Arc<Mutex<Reading>>,
) {
    let mut raw = Raw::hello(&publisher, &name).await;
    let batch = loop {
        let message = raw.inbound.message().await.unwrap().unwrap();
        match message.message {
            Some(FromOperator::Heartbeat(_)) => {
                raw.send(FromProxy::Heartbeat(Heartbeat {})).await;
            }
            Some(FromOperator::Batch(batch)) => break batch,
            _ => {}
        }
    };
    {
        let mut reading = reading.lock();
        reading.now += 1;
        reading.most = reading.most.max(reading.now);
    }
    sleep(time).await;
    reading.lock().now -= 1;
    raw.ack(&batch).await;
    // The stream stays open until everybody has everything.
    while publisher.programmed(&[]).acked < PROXIES {
        if let Some(FromOperator::Heartbeat(_)) =
            raw.inbound.message().await.unwrap().unwrap().message
        {
            raw.send(FromProxy::Heartbeat(Heartbeat {})).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn five_hundred_proxies_that_start_at_once_take_turns_and_none_is_cut() {
    let (content, turns) = (300 << 10, 8);
    let config = publish::Config {
        batch_bytes: turns * (content + (1 << 10)),
        ..publish::Config::default()
    };
    let publisher = leader(config, 1, content);
    let reading = Arc::new(Mutex::new(Reading::default()));
    let proxies = (0..PROXIES).map(|number| {
        let name = format!("proxy-{number}");
        // Some are slow: ten seconds for one batch.
        let time = Duration::from_millis(if number % 20 == 0 { 10_000 } else { 500 });
        tokio::spawn(proxy(
            Arc::clone(&publisher),
            name,
            time,
            Arc::clone(&reading),
        ))
    });
    for proxy in proxies.collect::<Vec<_>>() {
        proxy.await.unwrap();
    }
    assert_eq!(
        reading.lock().most,
        turns,
        "large batches under way at a time"
    );
    assert_eq!(publisher.programmed(&[]).acked, PROXIES);
    // A stream that is cut would get the batch again.
    assert_eq!(Counted::by(&publisher).batches, PROXIES as u64);
}

#[tokio::test]
async fn an_edit_waits_for_no_large_batch_and_a_place_becomes_free_with_its_stream() {
    let config = publish::Config {
        batch_bytes: 600 << 10,
        ..publish::Config::default()
    };
    let publisher = leader(config, 1, 500 << 10);
    let mut first = Raw::hello(&publisher, "first").await;
    let batch = first.batch().await;
    first.ack(&batch).await;

    // This one never acknowledges, so the next one has to wait.
    let mut stuck = Raw::hello(&publisher, "stuck").await;
    stuck.batch().await;
    let mut waits = Raw::hello(&publisher, "waits").await;
    assert!(matches!(waits.next().await, Some(FromOperator::Welcome(_))));

    // An edit is small, and reaches the first one now.
    let mut changes = Changes::new();
    changes.upsert(&long("small", 100)).unwrap();
    publisher.update(changes);
    let delta = first.batch().await;
    assert_eq!(delta.upserts.len(), 1);
    first.ack(&delta).await;
    // The first one got two batches, the stuck one got one, and the one that waits got none.
    assert_eq!(Counted::by(&publisher).batches, 3);

    drop(stuck);
    let batch: Batch = waits.batch().await;
    assert!(batch.full);
    assert_eq!(batch.upserts.len(), 2);
}

#[tokio::test]
async fn a_configuration_that_fits_in_no_batch_is_refused_with_its_size_and_edits_go_on() {
    // Together these are just above the longest message.
    let publisher = leader(publish::Config::default(), 63, 4_000_000);
    let mut old = Raw::hello(&publisher, "old").await;
    let batch = old.batch().await;
    old.ack(&batch).await;
    drop(batch);
    let mut changes = Changes::new();
    for name in ["r63", "r64", "r65", "r66", "r67"] {
        changes.upsert(&long(name, 4_000_000)).unwrap();
    }
    publisher.update(changes);

    // The proxy that is there gets what changed.
    let delta = old.batch().await;
    assert_eq!(delta.upserts.len(), 5);
    old.ack(&delta).await;

    // A new one is told why it gets nothing.
    let mut new = Raw::hello(&publisher, "new").await;
    assert!(matches!(new.next().await, Some(FromOperator::Welcome(_))));
    let Some(FromOperator::Refused(Refused { reason, message })) = new.next().await else {
        panic!("not refused");
    };
    assert_eq!(reason, "TooLarge");
    assert!(message.contains("68 entries with 259 MiB"), "{message}");
    assert!(
        timeout(BOUND, new.inbound.message())
            .await
            .unwrap()
            .unwrap()
            .is_none()
    );
    assert!(
        publisher
            .programmed(&[key("none")])
            .acknowledged()
            .is_none()
    );
}

#[tokio::test]
async fn a_difference_that_fits_in_no_batch_is_replaced_by_all_that_is_published() {
    let publisher = Publisher::new(publish::Config::default());
    publisher.lead(1).unwrap();
    let short: Vec<Resource> = (0..1000)
        .map(|number| long(&format!("{number:0>1000}"), 1))
        .collect();
    let mut changes = Changes::new();
    for resource in &short {
        changes.upsert(resource).unwrap();
    }
    publisher.update(changes);
    let mut proxy = Raw::hello(&publisher, "proxy").await;
    let batch = proxy.batch().await;
    proxy.ack(&batch).await;
    // What is published now is just below the longest message, and with the names of what is gone it is above.
    let mut changes = Changes::new();
    for resource in &short {
        let name = resource.name.clone();
        changes.remove(ResourceKey::new(ResourceKind::Certificate, name));
    }
    for number in 0..63 {
        changes
            .upsert(&long(&format!("r{number}"), 4_194_000))
            .unwrap();
    }
    changes.upsert(&long("r63", 3_900_000)).unwrap();
    publisher.update(changes);
    let batch = proxy.batch().await;
    assert!(batch.full && !batch.keep_held);
    assert_eq!((batch.upserts.len(), batch.removals.len()), (64, 0));
    proxy.ack(&batch).await;
    // Edits go on.
    let mut changes = Changes::new();
    changes.upsert(&long("r63", 100)).unwrap();
    publisher.update(changes);
    let delta = proxy.batch().await;
    assert_eq!((delta.full, delta.upserts.len()), (false, 1));
}
