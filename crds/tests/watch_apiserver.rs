//! The watch against a real API server of its own, from which kinds are taken and given back.
#![cfg(feature = "watch")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Config, ResourceExt};
use serde_json::{Value, json};
use vestibule_crds::watch::{Event, Scope, Watched, configured, watch};
use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::object::Object;

/// Longest wait for something that has to happen; nothing is asserted about how soon it does.
const BOUND: Duration = Duration::from_mins(2);
const GATEWAYS: &str = "gateways.gateway.networking.k8s.io";

/// Ends when its standard input is closed, however the test ends.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

async fn start() -> (Server, Client) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../e2e/cluster/apiserver");
    let mut child = Command::new(script)
        .arg("--stdin")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut path = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut path).unwrap();
    let server = Server(child);
    let kubeconfig = Kubeconfig::read_from(path.trim()).unwrap();
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    let client = Client::try_from(configured(config.unwrap())).unwrap();
    (server, client)
}

struct Listener {
    events: BoxStream<'static, Event>,
    objects: BTreeMap<ObjectKey, Watched>,
    synced: Vec<Kind>,
}

impl Listener {
    async fn until(&mut self, what: &str, wanted: impl Fn(&Self) -> bool) {
        while !wanted(self) {
            let event = tokio::time::timeout(BOUND, self.events.next()).await;
            match event.unwrap_or_else(|_| panic!("never: {what}")).unwrap() {
                Event::Put(watched) => {
                    self.objects.insert(watched.key.clone(), *watched);
                }
                Event::Touched(touched) => {
                    let known = self.objects.get_mut(&touched.key).expect("it was put");
                    known.resource_version = touched.resource_version;
                    known.status = touched.status;
                }
                Event::Remove(key) => {
                    assert!(self.objects.remove(&key).is_some(), "{key} was not put");
                }
                Event::Synced(kind) => self.synced.push(kind),
                Event::Interrupted(_) | Event::Resumed(_) => {}
            }
        }
    }

    fn count(&self, kind: Kind) -> usize {
        self.objects.keys().filter(|key| key.kind == kind).count()
    }
}

fn gateways(client: &Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("gateway.networking.k8s.io", "v1", "Gateway");
    Api::namespaced_with(client.clone(), "default", &ApiResource::from_gvk(&kind))
}

async fn put_gateway(client: &Client, name: &str) {
    let gateway = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": name},
        "spec": {"gatewayClassName": "vestibule",
            "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]},
    });
    let apply = PatchParams::apply("test");
    // A kind that was just installed is not served at once.
    let put = async {
        while gateways(client)
            .patch(name, &apply, &Patch::Apply(&gateway))
            .await
            .is_err()
        {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(BOUND, put).await.expect("it is put");
}

async fn put_secret(client: &Client, name: &str, kind: &str, data: Value) {
    let secret = json!({"metadata": {"name": name}, "type": kind, "data": data});
    let secret = serde_json::from_value(secret).unwrap();
    let api: Api<Secret> = Api::namespaced(client.clone(), "default");
    api.create(&PostParams::default(), &secret).await.unwrap();
}

#[tokio::test]
#[ignore = "needs an API server, and starts one"]
async fn kinds_come_and_go_and_secrets_are_chosen() {
    let (_server, client) = start().await;
    let pair = json!({"tls.crt": "c2VjcmV0", "tls.key": "c2VjcmV0"});
    for n in 0..120 {
        put_secret(
            &client,
            &format!("tls-{n}"),
            "kubernetes.io/tls",
            pair.clone(),
        )
        .await;
    }
    put_secret(&client, "opaque", "Opaque", pair.clone()).await;
    put_secret(
        &client,
        "release",
        "helm.sh/release.v1",
        json!({"release": "c2VjcmV0"}),
    )
    .await;
    put_gateway(&client, "one").await;

    let kinds = [Kind::Gateway, Kind::TlsRoute, Kind::Secret, Kind::Namespace];
    let mut listener = Listener {
        events: watch(&client, &Scope::new(kinds)).boxed(),
        objects: BTreeMap::new(),
        synced: Vec::new(),
    };
    listener
        .until("synced", |l| l.synced.len() == kinds.len())
        .await;
    assert_eq!(listener.count(Kind::Secret), 121, "without the release");
    let secret = |name| ObjectKey::new(Kind::Secret, "default", name);
    let Object::Secret(opaque) = &listener.objects[&secret("opaque")].object else {
        panic!("a Secret");
    };
    assert!(&*opaque.secret_type == "Opaque" && opaque.private_key.is_none());
    let Object::Secret(tls) = &listener.objects[&secret("tls-7")].object else {
        panic!("a Secret");
    };
    assert!(tls.private_key.is_some());

    let one = ObjectKey::new(Kind::Gateway, "default", "one");
    let Object::Gateway(gateway) = &listener.objects[&one].object else {
        panic!("{:?}", listener.objects[&one]);
    };
    assert!(gateway.meta.generation == 1 && gateway.meta.created > 0);
    // The defaults of the CRD are written into the status.
    assert!(listener.objects[&one].status["conditions"].is_array());

    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut crd = crds.get(GATEWAYS).await.unwrap();
    crds.delete(GATEWAYS, &DeleteParams::default())
        .await
        .unwrap();
    listener
        .until("no Gateway", |l| l.count(Kind::Gateway) == 0)
        .await;
    crd.metadata.resource_version = None;
    crd.metadata.uid = None;
    crd.status = None;
    let gone = async {
        while crds.create(&PostParams::default(), &crd).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(BOUND, gone)
        .await
        .expect("the CRD can be made anew");
    put_gateway(&client, "two").await;
    listener
        .until("the Gateway `two`", |l| {
            l.objects
                .contains_key(&ObjectKey::new(Kind::Gateway, "default", "two"))
        })
        .await;
    assert_eq!(listener.count(Kind::Secret), 121);
    assert_eq!(
        gateways(&client)
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .len(),
        1
    );
    let names: Vec<_> = listener.synced.iter().map(|kind| kind.as_str()).collect();
    assert_eq!(names.len(), kinds.len(), "{names:?}");
    assert!(crd.name_any() == GATEWAYS);
}
