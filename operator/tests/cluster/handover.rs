//! Leadership: one at a time, and moving it is no news to anybody else.

use vestibule_test_support::eventually;

use crate::support::{Network, World};
use vestibule_operator_testing::stream::{Counted, Proxy};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn a_follower_takes_over_and_nobody_notices() {
    let world = World::new().await;
    world.class().await;
    world.ready(&["p-1", "p-2"]).await;
    world.apply(world.gateway("shared")).await;
    for n in 0..20 {
        let hostname = format!("{n}.example.com");
        world
            .apply(world.set("a", &format!("set-{n}"), "shared", &hostname))
            .await;
    }
    let first = world.patient_manager("first");
    first.leading().await;
    let second = world.patient_manager("second");
    second.ready().await;
    assert!(first.leads() && !second.leads());
    let network = Network::of(&[&first, &second]);
    let proxies = [network.proxy("p-1"), network.proxy("p-2")];
    for n in 0..20 {
        let set = format!("set-{n}");
        world
            .condition(
                ("ListenerSet", "a", &set),
                ("Programmed", "True", "Programmed"),
            )
            .await;
    }
    world
        .condition(
            ("Gateway", "infra", "shared"),
            ("Programmed", "True", "Programmed"),
        )
        .await;
    // What was there before the first leader is served before it is written: twenty hostnames, and their port.
    let recorded = async || (world.list("HostnameClaim", "infra").await.len() == 21).then_some(());
    eventually("every claim", recorded).await;
    let before = (
        world.list("ListenerSet", "a").await,
        world.list("Gateway", "infra").await,
    );
    let held: Vec<_> = proxies.iter().map(|proxy| proxy.table.hashes()).collect();
    let term = first.publisher.generation().term;

    // It crashes; the other one waits until the Lease has run out.
    first.kill().await;
    second.leading().await;
    assert!(second.publisher.generation().term > term);
    let served = async || {
        let all = second.publisher.programmed(&[]).acked == 2;
        all.then_some(())
    };
    eventually("proxies that follow", served).await;
    // They were not sent anything that they had.
    assert_eq!(Counted::by(&second.publisher).resource_bytes, 0);
    let now: Vec<_> = proxies.iter().map(|proxy| proxy.table.hashes()).collect();
    assert_eq!(now, held);

    // The next one comes and takes over in good order.
    let third = world.patient_manager("third");
    third.ready().await;
    let term = second.publisher.generation().term;
    second.stop().await;
    third.leading().await;
    assert!(third.publisher.generation().term > term);
    for agent in ["second", "third"] {
        let writes = world.writes(&format!("{}-{agent}", world.release));
        assert!(writes.is_empty(), "{writes:#?}");
    }
    let after = (
        world.list("ListenerSet", "a").await,
        world.list("Gateway", "infra").await,
    );
    assert_eq!(after, before);
    third.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn a_leader_that_ends_sends_its_proxies_to_the_next_one_in_one_step() {
    let world = World::new().await;
    world.class().await;
    world.ready(&["p-1", "p-2"]).await;
    let first = world.patient_manager("first");
    first.leading().await;
    let second = world.patient_manager("second");
    second.ready().await;
    let network = Network::of(&[&first, &second]);
    // They only know the first one.
    let known = [first.address.clone()];
    let proxies = ["p-1", "p-2"].map(|name| Proxy::start(name, &known, network.clone()));
    for proxy in &proxies {
        eventually("a stream", async || {
            (proxy.state.borrow().welcomed == 1).then_some(())
        })
        .await;
    }
    first.stop().await;
    for proxy in &proxies {
        eventually("a stream to the next leader", async || {
            (proxy.state.borrow().welcomed == 2).then_some(())
        })
        .await;
        let state = proxy.state.borrow().clone();
        assert_eq!(state.connected.as_ref(), Some(&second.address));
        // It was told once where to go, and asked nobody in between.
        assert_eq!(state.refusals, [("NotLeader", 1)].into());
    }
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn a_lease_that_somebody_deletes_comes_back_and_terms_rise() {
    let world = World::new().await;
    world.class().await;
    world.ready(&[]).await;
    let manager = world.manager("one");
    manager.leading().await;
    let lease = format!("{}-operator", world.release);
    let term = manager.publisher.generation().term;
    world.delete("Lease", "sys", &lease).await;
    eventually("a Lease", async || world.get("Lease", "sys", &lease).await).await;
    manager.leading().await;
    assert!(manager.publisher.generation().term >= term);
    manager.stop().await;
    let left = world.get("Lease", "sys", &lease).await.expect("it stays");
    assert_eq!(left["spec"]["holderIdentity"], "");
    world.delete("Lease", "sys", &lease).await;
    let next = world.manager("next");
    next.leading().await;
    assert!(next.publisher.generation().term > term);
    next.stop().await;
}
