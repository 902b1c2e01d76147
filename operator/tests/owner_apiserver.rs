//! The owner of what the operator makes, on a real API server.

use std::time::Duration;

use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;
use vestibule_operator::cluster::health::Health;
use vestibule_operator::cluster::owner;
use vestibule_operator_testing::apiserver::{BOUND, client};
use vestibule_test_support::eventually;

#[tokio::test]
#[ignore = "needs an API server: e2e/cluster/apiserver run"]
async fn an_owner_that_was_made_anew_is_noticed() {
    let client = client().await;
    let roles: Api<ClusterRole> = Api::all(client.clone());
    let name = format!("owner-{}", std::process::id());
    let make = async || {
        let role = serde_json::from_value(json!({"metadata": {"name": name}, "rules": []}));
        let made = roles.create(&PostParams::default(), &role.unwrap()).await;
        made.unwrap().metadata.uid.unwrap()
    };
    let uid = make().await;
    let found = owner::find(&client, &name, &Health::default()).await;
    assert_eq!(found.uid, uid);

    let look = Duration::from_millis(50);
    let watching = tokio::spawn({
        let (client, found) = (client.clone(), found.clone());
        async move { owner::replaced(&client, &found, look).await }
    });
    // The operator does not end because the owner is gone: in a moment, everything else is gone too.
    roles.delete(&name, &DeleteParams::default()).await.unwrap();
    eventually("gone", async || {
        let there = roles.get_opt(&name).await.unwrap();
        there.is_none().then_some(())
    })
    .await;
    assert!(!watching.is_finished());
    assert_ne!(make().await, uid);
    let noticed = tokio::time::timeout(BOUND, watching).await;
    noticed.expect("it is noticed").unwrap();
}
