//! The objects of an authority: its configuration, its certificate, one pod with Pebble and its DNS.

use serde_json::{Value, json};

use super::{DIRECTORY_PORT, NAME, Troubles};
use crate::certificate::Leaf;
use crate::manifests::{deployment, tls_secret};
use crate::world::World;

pub(super) fn all(world: &World, namespace: &str, leaf: &Leaf, troubles: Troubles) -> Vec<Value> {
    let metadata = json!({"name": NAME, "namespace": namespace});
    let volumes = json!([
        {"name": "configuration", "configMap": {"name": NAME}},
        {"name": "tls", "secret": {"secretName": NAME}},
    ]);
    let containers = json!([pebble(world, troubles), dns(world)]);
    let port = |name: &str, port: u16, target: u16| json!({"name": name, "port": port, "targetPort": target});
    vec![
        tls_secret(namespace, NAME, &leaf.chain, &leaf.key),
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {"pebble.json": configuration(troubles).to_string()},
        }),
        deployment(namespace, NAME, &volumes, &containers),
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {
                "selector": {"app": NAME},
                "ports": [
                    port("directory", 443, DIRECTORY_PORT),
                    port("management", 15000, 15000),
                    port("challenges", 8055, 8055),
                    port("dns-tcp", 53, 8053),
                    {"name": "dns", "port": 53, "targetPort": 8053, "protocol": "UDP"},
                ],
            },
        }),
    ]
}

fn configuration(troubles: Troubles) -> Value {
    let days = |days: u32| days * 24 * 60 * 60;
    json!({"pebble": {
        "listenAddress": format!("0.0.0.0:{DIRECTORY_PORT}"),
        "managementListenAddress": "0.0.0.0:15000",
        "certificate": "/tls/tls.crt",
        "privateKey": "/tls/tls.key",
        "httpPort": 80,
        "tlsPort": 443,
        "ocspResponderURL": "",
        "keyAlgorithm": "ecdsa",
        "retryAfter": {"authz": troubles.retry_after, "order": troubles.retry_after},
        "profiles": {
            "default": {"description": "ninety days", "validityPeriod": days(90)},
            "shortlived": {"description": "six days", "validityPeriod": days(6)},
        },
    }})
}

fn pebble(world: &World, troubles: Troubles) -> Value {
    let variable = |name: &str, value: u8| json!({"name": name, "value": value.to_string()});
    let sleep = if troubles.slow == 0 {
        variable("PEBBLE_VA_NOSLEEP", 1)
    } else {
        variable("PEBBLE_VA_SLEEPTIME", troubles.slow)
    };
    json!({
        "name": "pebble",
        "image": world.image("pebble"),
        "imagePullPolicy": "IfNotPresent",
        "args": ["-config=/configuration/pebble.json", "-dnsserver=127.0.0.1:8053"],
        "env": [
            sleep,
            variable("PEBBLE_WFE_NONCEREJECT", troubles.nonces_refused),
            variable("PEBBLE_AUTHZREUSE", troubles.reuse),
        ],
        "ports": [{"containerPort": DIRECTORY_PORT}],
        "readinessProbe": {"tcpSocket": {"port": DIRECTORY_PORT}, "periodSeconds": 1, "timeoutSeconds": 5},
        "volumeMounts": [
            {"name": "configuration", "mountPath": "/configuration", "readOnly": true},
            {"name": "tls", "mountPath": "/tls", "readOnly": true},
        ],
    })
}

/// Names that nobody has set have no address.
fn dns(world: &World) -> Value {
    json!({
        "name": "dns",
        "image": world.image("pebble-challtestsrv"),
        "imagePullPolicy": "IfNotPresent",
        "args": [
            "-dnsserver=:8053",
            "-management=:8055",
            "-defaultIPv4=",
            "-defaultIPv6=",
            "-http01=",
            "-https01=",
            "-tlsalpn01=",
            "-doh=",
        ],
        "ports": [{"containerPort": 8053}, {"containerPort": 8055}],
        "readinessProbe": {"tcpSocket": {"port": 8055}, "periodSeconds": 1, "timeoutSeconds": 5},
    })
}
