//! The real API server that a component test talks to, if there is one.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;

/// Longest wait for something that has to happen; nothing is asserted about how soon it does.
pub const BOUND: Duration = Duration::from_mins(1);

/// The kubeconfig of the API server of the tests.
pub fn kubeconfig() -> PathBuf {
    std::env::var_os("VESTIBULE_TEST_KUBECONFIG")
        .expect("run it as `e2e/cluster/apiserver run cargo test ... -- --ignored`")
        .into()
}

/// How to talk to the API server of a kubeconfig. Only one on loopback is taken: these tests write.
pub async fn config(kubeconfig: &Path) -> Config {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    let config = config.unwrap();
    assert_eq!(config.cluster_url.host(), Some("127.0.0.1"), "not a test's");
    config
}

/// A client of the API server of the tests.
pub async fn client() -> Client {
    Client::try_from(config(&kubeconfig()).await).unwrap()
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
