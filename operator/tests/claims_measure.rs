//! What a HostnameClaim costs on a real API server: the numbers in ADR 16. Prints; asserts nothing about time.

#![expect(clippy::print_stdout, reason = "what it measures is for people")]

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;
use vestibule_crds::vestibule::HostnameClaim;
use vestibule_operator_testing::apiserver::client;

const CLAIMS: usize = 1_000;

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |share: usize| times[times.len() * share / 100 - 1].as_secs_f64() * 1e3;
    println!("{what:8} {:7.2} {:7.2}", at(50), at(99));
}

#[tokio::test]
#[ignore = "needs an API server: e2e/cluster/apiserver run"]
async fn one_claim_after_the_other() {
    let client = client().await;
    let namespace = format!("measure-{}", std::process::id());
    let of_namespace = json!({"metadata": {"name": namespace}});
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let made = serde_json::from_value(of_namespace).unwrap();
    let parameters = PostParams::default();
    namespaces.create(&parameters, &made).await.unwrap();
    let api: Api<HostnameClaim> = Api::namespaced(client, &namespace);
    let (mut creates, mut replaces, mut deletes) = (Vec::new(), Vec::new(), Vec::new());
    let mut bytes = 0;
    for n in 0..CLAIMS {
        let claim = json!({
            "apiVersion": "vestibule.dev/v1alpha1", "kind": "HostnameClaim",
            "metadata": {"name": format!("shared-{n:032x}")},
            "spec": {
                "gateway": {"name": "shared", "uid": "00000000-0000-0000-0000-000000000000"},
                "hostname": format!("shop-{n}.team-1.apps.example.com"),
                "holder": "team-1", "since": "2026-01-01T00:00:00Z",
            },
        });
        let claim = serde_json::from_value(claim).unwrap();
        let begin = Instant::now();
        let mut claim: HostnameClaim = api.create(&parameters, &claim).await.unwrap();
        creates.push(begin.elapsed());
        let name = claim.metadata.name.clone().unwrap();
        claim.spec.unused_since = Some("2026-01-02T00:00:00Z".into());
        let begin = Instant::now();
        let claim = api.replace(&name, &parameters, &claim).await.unwrap();
        replaces.push(begin.elapsed());
        bytes = serde_json::to_string(&claim).unwrap().len();
        let begin = Instant::now();
        api.delete(&name, &DeleteParams::default()).await.unwrap();
        deletes.push(begin.elapsed());
    }
    println!("request   p50 ms  p99 ms");
    report("create", creates);
    report("replace", replaces);
    report("delete", deletes);
    println!("bytes to every watcher: {bytes}");
}
