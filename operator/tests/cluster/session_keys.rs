//! Keys of sessions: made by the leader, kept over leaders, made anew when they are deleted or old.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};
use vestibule_test_support::eventually;

use crate::support::World;

/// The entries of the Secret, as they are on the wire.
fn entries(secret: &Value) -> Map<String, Value> {
    secret["data"].as_object().cloned().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an API server: VESTIBULE_TEST_KUBECONFIG"]
async fn keys_of_sessions_outlive_leaders_and_are_made_anew_when_they_are_old_or_deleted() {
    let world = World::new().await;
    world.class().await;
    let name = format!("{}-session-keys", world.release);
    let stored = async || world.get("Secret", "sys", &name).await;
    let first = world.patient_manager("first");
    // Nobody has to wait for a leader to be ready.
    first.ready().await;
    first.leading().await;
    let secret = eventually("the keys", &stored).await;
    assert_eq!(secret["type"], "vestibule.dev/session-keys");
    let before = entries(&secret);
    assert_eq!(before.len(), 1);
    for value in before.values() {
        let key = BASE64_STANDARD.decode(value.as_str().expect("text"));
        assert_eq!(key.expect("base64").len(), 32);
    }

    let second = world.patient_manager("second");
    second.ready().await;
    first.stop().await;
    second.leading().await;
    assert_eq!(entries(&stored().await.expect("the keys")), before);

    // One that is old gets a successor, and stays beside it.
    let value = before.values().next().expect("a key").clone();
    let long_ago = 1_700_000_000;
    let old = json!({long_ago.to_string(): value});
    let changed = async || {
        let mut present = stored().await?;
        present["data"] = old.clone();
        if let Some(metadata) = present["metadata"].as_object_mut() {
            metadata.remove("managedFields");
        }
        let object = serde_json::from_value(present).expect("an object");
        let api = world.api("Secret", &world.ns("sys"));
        let parameters = kube::api::PostParams::default();
        api.replace(&name, &parameters, &object).await.ok()
    };
    eventually("the old key", changed).await;
    let both = async || {
        let entries = entries(&stored().await?);
        (entries.len() == 2).then_some(entries)
    };
    let both = eventually("a successor", both).await;
    assert_eq!(both.get(&long_ago.to_string()), Some(&value));

    // A Secret that is deleted ends all sessions.
    world.delete("Secret", "sys", &name).await;
    let anew = async || {
        let entries = entries(&stored().await?);
        let is_new = |value: &Value| !both.values().any(|old| old == value);
        (entries.len() == 1 && entries.values().all(is_new)).then_some(())
    };
    eventually("a new key", anew).await;
    second.stop().await;
}
