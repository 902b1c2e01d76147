//! Many tenants at once.

use std::time::Duration;

use futures::StreamExt;

use crate::support::{Network, World, eventually};

const SETS: usize = 1000;
const PATIENCE: Duration = Duration::from_mins(2);

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
