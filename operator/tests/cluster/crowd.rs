//! Many tenants at once.

#![expect(clippy::print_stdout, reason = "what it measures is for people")]

use std::time::{Duration, Instant};

use futures::StreamExt;
use serde_json::{Value, json};
use vestibule_test_support::eventually;

use crate::support::{Network, World};

const SETS: usize = 1000;
const PATIENCE: Duration = Duration::from_mins(2);
/// Listeners of a set, each with a hostname.
const LISTENERS: usize = 16;
/// Names and namespaces of an everyday run.
const EVERYDAY: (usize, usize) = (320, 4);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn a_thousand_sets_applied_at_once_all_get_their_status() {
    let world = World::new().await;
    world.class().await;
    world.ready(&["p-1"]).await;
    world.apply(world.gateway("shared")).await;
    // However slow the API server is: a status that only waits is not to be written meanwhile.
    let manager = world.manager_with("one", |settings| settings.statuses.patience = PATIENCE);
    let _proxy = Network::of(&[&manager]).proxy("p-1");
    world
        .condition(
            ("Gateway", "infra", "shared"),
            ("Programmed", "True", "Programmed"),
        )
        .await;
    futures::stream::iter(0..SETS)
        .for_each_concurrent(16, async |n| {
            let part = if n % 10 == 0 { "b" } else { "a" };
            let hostname = format!("{n}.example.com");
            world
                .apply(world.set(part, &format!("set-{n}"), "shared", &hostname))
                .await;
        })
        .await;
    let done = async || {
        let mut programmed = 0;
        for part in ["a", "b"] {
            for set in world.list("ListenerSet", part).await.values() {
                let condition = crate::support::condition(set, "Programmed");
                programmed += usize::from(condition.is_some_and(|c| c["status"] == "True"));
            }
        }
        (programmed == SETS).then_some(())
    };
    eventually("a thousand sets that are programmed", done).await;
    let counted = async || {
        let gateway = world.get("Gateway", "infra", "shared").await?;
        (gateway["status"]["attachedListenerSets"] == SETS).then_some(())
    };
    eventually("a Gateway that counts them", counted).await;
    let writes = world.writes(&manager.agent);
    let sets = writes
        .iter()
        .filter(|write| write.contains("listenersets/status"))
        .count();
    assert!(sets <= SETS + SETS / 5, "{sets} writes");
    manager.stop().await;
}

/// Names that sets ask for before there is an operator: it writes each of them once. `VESTIBULE_NAMES=40000/50` says how
/// many names there are, and of how many namespaces, for a run by name; it prints how long that takes.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn names_that_are_there_before_the_first_operator_are_recorded_once() {
    let (names, namespaces) = std::env::var("VESTIBULE_NAMES").map_or(EVERYDAY, |text| {
        let (names, namespaces) = text.split_once('/').expect("NAMES/NAMESPACES");
        (names.parse().unwrap(), namespaces.parse().unwrap())
    });
    let world = World::new().await;
    world.class().await;
    world.apply(world.gateway("shared")).await;
    for n in 0..namespaces {
        let name = world.ns(&format!("t{n}"));
        let metadata = json!({"name": name});
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
        world.apply(namespace).await;
    }
    futures::stream::iter(0..names / LISTENERS)
        .for_each_concurrent(16, async |n| {
            let part = format!("t{}", n % namespaces);
            let mut set = world.set(&part, &format!("set-{n}"), "shared", "");
            let listener = |of: usize| {
                let mut listener = set["spec"]["listeners"][0].clone();
                listener["name"] = json!(format!("l{of}"));
                listener["hostname"] = json!(format!("h{of}.s{n}.example.com"));
                listener
            };
            let listeners: Vec<Value> = (0..LISTENERS).map(listener).collect();
            set["spec"]["listeners"] = json!(listeners);
            world.apply(set).await;
        })
        .await;

    let begin = Instant::now();
    let manager = world.manager("one");
    manager.leading().await;
    let leading = begin.elapsed();
    // And what port 443 speaks.
    let claims = u64::try_from(names / LISTENERS * LISTENERS + 1).unwrap();
    // Objects of other tests on the server are not this operator's to write.
    let written = r#"vestibule_operator_claims_writes_total{result="Written"}"#;
    while manager.metric(written) < claims {
        assert!(
            begin.elapsed() < Duration::from_mins(20),
            "it takes for ever"
        );
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
    println!(
        "{names} names of {namespaces} namespaces: leading after {leading:?}, all recorded after {:?}",
        begin.elapsed()
    );
    let there = world.list("HostnameClaim", "infra").await;
    assert_eq!(there.len() as u64, claims);
    let writes = world.writes(&manager.agent);
    let writes = writes
        .iter()
        .filter(|write| write.contains("hostnameclaims"));
    assert_eq!(writes.count() as u64, claims);
    manager.stop().await;
}
