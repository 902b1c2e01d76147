//! What an edit of a HostnameClaim costs on a real API server, by how many names are in it: the numbers
//! behind the size of one object (ADR 16). Prints; asserts nothing about time.

#![expect(clippy::print_stdout, reason = "what it measures is for people")]

mod apiserver_support;

use std::time::Instant;

use apiserver_support::client;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use vestibule_crds::vestibule::HostnameClaim;

const EDITS: usize = 100;

fn claim(names: usize, edit: usize) -> Value {
    let entries: Vec<Value> = (0..names)
        .map(|n| {
            let edit = if n == 0 { edit } else { 0 };
            json!({
                "hostname": format!("shop-{n}-{edit}.team-1.apps.example.com"), "port": 443, "use": "TLS",
                "since": "2026-01-01T00:00:00Z",
            })
        })
        .collect();
    json!({
        "apiVersion": "vestibule.dev/v1alpha1", "kind": "HostnameClaim",
        "metadata": {"name": "measure"},
        "spec": {
            "gateway": {"name": "shared", "uid": "00000000-0000-0000-0000-000000000000"},
            "namespace": "team-1", "count": names, "entries": entries,
        },
    })
}

fn bytes(claim: &HostnameClaim) -> usize {
    serde_json::to_string(claim).unwrap().len()
}

#[tokio::test]
#[ignore = "needs an API server: e2e/cluster/apiserver run"]
async fn an_edit_of_a_claim_by_its_size() {
    let client = client().await;
    let namespace = format!("measure-{}", std::process::id());
    let of_namespace = json!({"metadata": {"name": namespace}});
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let made = serde_json::from_value(of_namespace).unwrap();
    namespaces
        .create(&PostParams::default(), &made)
        .await
        .unwrap();
    let api: Api<HostnameClaim> = Api::namespaced(client, &namespace);
    println!("names  how      p50 ms   p99 ms   bytes to every watcher");
    for names in [1, 16, 32, 64, 128, 256, 800] {
        for how in ["apply", "replace"] {
            let parameters = PatchParams::apply("measure").force();
            let first = claim(names, 0);
            let mut last = if how == "apply" {
                api.patch("measure", &parameters, &Patch::Apply(&first))
                    .await
                    .unwrap()
            } else {
                let first = serde_json::from_value(first).unwrap();
                api.create(&PostParams::default(), &first).await.unwrap()
            };
            let mut times = Vec::with_capacity(EDITS);
            for edit in 1..=EDITS {
                let next = claim(names, edit);
                let begin = Instant::now();
                last = if how == "apply" {
                    api.patch("measure", &parameters, &Patch::Apply(&next))
                        .await
                        .unwrap()
                } else {
                    let mut next: HostnameClaim = serde_json::from_value(next).unwrap();
                    next.metadata.resource_version = last.metadata.resource_version.clone();
                    api.replace("measure", &PostParams::default(), &next)
                        .await
                        .unwrap()
                };
                times.push(begin.elapsed());
            }
            times.sort();
            let at = |share: usize| times[EDITS * share / 100 - 1].as_secs_f64() * 1e3;
            println!(
                "{names:5}  {how:7} {:7.2}  {:7.2}  {:9}",
                at(50),
                at(99),
                bytes(&last)
            );
            api.delete("measure", &DeleteParams::default())
                .await
                .unwrap();
        }
    }
}
