//! A backend as a well-behaved application is deployed: ready when it answers, replaced before it ends, and when it is
//! told to stop it goes on for as long as it takes until everybody knows.

use serde_json::{Value, json};

use crate::manifests;

/// Ports of the pods, plain.
pub(crate) const PLAIN: [u16; 3] = [8080, 8081, 8082];
/// Ports of the pods, TLS.
pub(crate) const TLS: [u16; 2] = [8443, 8444];
/// Port of the pods that takes both.
pub(crate) const EITHER: u16 = 8445;
/// Port of the pods that is in order while the others fail.
pub(crate) const STEADY: u16 = 8079;
/// Seconds that a pod goes on when it is told to stop.
const LINGER: u16 = 5;

/// A Deployment. It serves TLS with the Secret `app-tls`.
pub(crate) fn deployment(namespace: &str, name: &str, image: &str, replicas: usize) -> Value {
    let mut arguments = vec!["echo".to_owned(), "--certificate=/tls".to_owned()];
    let mut listen = |kind: &str, ports: &[u16]| {
        for port in ports {
            arguments.push(format!("--{kind}=0.0.0.0:{port}"));
        }
    };
    listen("plain", &PLAIN);
    listen("tls", &TLS);
    listen("either", &[EITHER]);
    listen("steady", &[STEADY]);
    arguments.push(format!("--linger={LINGER}"));
    let server = manifests::server("echo", image, &arguments, STEADY);
    let volumes = manifests::tls_volume("app-tls");
    let deployment = manifests::deployment(namespace, name, &volumes, &json!([server]));
    let mut deployment = manifests::of_pods(deployment, replicas, u64::from(LINGER) + 10);
    deployment["spec"]["strategy"] = json!({"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}});
    deployment
}

/// A port of a Service.
pub(crate) fn port(name: &str, port: u16, target: u16) -> Value {
    json!({"name": name, "port": port, "targetPort": target, "protocol": "TCP"})
}

/// The ports of a Service for all of that.
pub(crate) fn ports() -> Vec<Value> {
    vec![
        port("plain", 80, PLAIN[0]),
        port("more", 8080, PLAIN[2]),
        port("tls", 443, TLS[0]),
        port("more-tls", 8443, TLS[1]),
        port("either", EITHER, EITHER),
    ]
}

/// A Service in front of the pods of a Deployment; of none, if there is no name.
pub(crate) fn service(namespace: &str, name: &str, deployment: Option<&str>) -> Value {
    let mut service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"ports": ports()},
    });
    if let Some(deployment) = deployment {
        service["spec"]["selector"] = json!({"app": deployment});
    }
    service
}
