//! The real API server that a component test talks to, if there is one.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses a part of this module"
)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;

/// Longest wait for something that has to happen; nothing is asserted about how soon it does.
pub const BOUND: Duration = Duration::from_mins(1);

/// A client of the API server in `VESTIBULE_TEST_KUBECONFIG`. Only one on loopback is taken: these tests
/// write.
pub async fn client() -> Client {
    let path = std::env::var_os("VESTIBULE_TEST_KUBECONFIG")
        .expect("run it as `e2e/cluster/apiserver run cargo test ... -- --ignored`");
    let kubeconfig = Kubeconfig::read_from(path).unwrap();
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    let config = config.unwrap();
    assert_eq!(config.cluster_url.host(), Some("127.0.0.1"), "not a test's");
    Client::try_from(config).unwrap()
}

/// A namespace of the test's own. It is not removed: the API server goes with the tests.
pub async fn namespace(client: &Client) -> String {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let name = format!("test-{}-{number}", std::process::id());
    let namespace = serde_json::from_value(json!({"metadata": {"name": name}}));
    let api: Api<Namespace> = Api::all(client.clone());
    api.create(&PostParams::default(), &namespace.unwrap())
        .await
        .unwrap();
    name
}
