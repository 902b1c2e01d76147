//! The real API server that a component test talks to, if there is one.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

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

/// Creates or changes an object, as a user would. `api` gives the objects of a kind in a namespace.
pub async fn apply(api: impl Fn(&str, &str) -> Api<DynamicObject>, object: &Value) -> Value {
    let text = |pointer: &str| {
        let text = object.pointer(pointer).and_then(Value::as_str);
        text.unwrap_or_default()
    };
    let (kind, namespace) = (text("/kind"), text("/metadata/namespace"));
    let name = text("/metadata/name");
    let parameters = PatchParams::apply("user").force();
    let applied = api(kind, namespace)
        .patch(name, &parameters, &Patch::Apply(object))
        .await
        .unwrap_or_else(|error| panic!("{kind} {namespace}/{name}: {error}"));
    serde_json::to_value(applied).expect("JSON")
}

/// Returns the object with this name, if there is one.
pub async fn get(api: &Api<DynamicObject>, name: &str) -> Option<Value> {
    let found = api.get_opt(name).await.expect("an answer");
    found.map(|object| serde_json::to_value(object).expect("JSON"))
}

/// Deletes the object with this name.
pub async fn delete(api: &Api<DynamicObject>, name: &str) {
    api.delete(name, &DeleteParams::default())
        .await
        .expect("deleted");
}
