//! Objects that the caller may not read: `vestibule` guesses nothing about them, and says what is missing.

use std::path::Path;

use serde_json::{Value, json};

use super::{CONTROLLER, GATEWAY_API, Kubectl, condition, step};

/// A TLSRoute of namespace b for a name, to a parent.
fn route(name: &str, hostname: &str, parent: &Value) -> Value {
    json!({
        "apiVersion": GATEWAY_API, "kind": "TLSRoute",
        "metadata": {"namespace": "explain-b", "name": name},
        "spec": {
            "parentRefs": [parent], "hostnames": [hostname],
            "rules": [{"backendRefs": [{"name": "web", "port": 443}]}],
        },
    })
}

fn last(place: &Value) -> &Value {
    place["chain"].as_array().unwrap().last().unwrap()
}

pub(super) fn objects_that_the_caller_may_not_read_are_not_guessed_at(
    kubectl: &Kubectl,
    admin: &Path,
    tenant: &Path,
) {
    // A name that only others may have anything for.
    let others = "others.explain.example";
    let (code, report) = kubectl.json(tenant, &["explain", others]);
    let state = (code, &report["state"]);
    assert_eq!(state, (Some(1), &json!("unknown")), "{report:#}");
    let text = kubectl.says(tenant, &["explain", others]).out;
    let first = format!("whether {others} is live cannot be told\n");
    assert!(text.starts_with(&first), "{text}");
    for line in [
        "you may not list: GatewayClass, Gateway,",
        "you may not list outside namespace explain-b: ListenerSet,",
        "you may not get: Gateway explain-platform/edge\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }

    // A route at a Gateway that may not be read: accepted, as its status says.
    let gateway = json!({
        "group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": "explain-platform",
        "name": "edge",
    });
    let direct = "direct.explain.example";
    kubectl.apply(&[route("direct", direct, &gateway)]);
    let (_, report) = kubectl.json(tenant, &["explain", direct]);
    assert_eq!(report["nowhere"]["reason"], "NoStatus", "{report:#}");
    assert_eq!(report["state"], "unknown");
    let accepted = json!({"parents": [{
        "controllerName": CONTROLLER, "parentRef": gateway,
        "conditions": [condition("Accepted", true, "Accepted", "")],
    }]});
    kubectl.set_status("tlsroute", "explain-b", "direct", &accepted);
    let (_, report) = kubectl.json(tenant, &["explain", direct]);
    assert_eq!(report["state"], "unknown", "{report:#}");
    assert_eq!(report["nowhere"]["by"], "status");
    assert_eq!(report["routes"][0]["object"]["name"], "direct");
    assert_eq!(report["routes"][0]["rules"][0]["backends"][0]["ready"], 1);
    // Accepted, and this name of it left out.
    let lost =
        "The route is accepted. spec.hostnames[0]: hostname is another's; use another hostname";
    let mut partly = accepted.clone();
    partly["parents"][0]["conditions"][0]["message"] = lost.into();
    kubectl.set_status("tlsroute", "explain-b", "direct", &partly);
    let (_, report) = kubectl.json(tenant, &["explain", direct]);
    let said = &report["nowhere"];
    assert_eq!(said["reason"], "LeftOut", "{report:#}");
    assert_eq!(said["message"], "spec.hostnames[0]: hostname is another's");
    assert_eq!(
        (&said["action"], &report["state"]),
        (&json!("use another hostname"), &json!("down"))
    );
    let (_, overview) = kubectl.json(tenant, &["status"]);
    let rows = overview["objects"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == "direct").unwrap();
    assert_eq!(row["health"], "warning", "{row:#}");
    kubectl.set_status("tlsroute", "explain-b", "direct", &accepted);
    // Whatever serves it, without endpoints it leads nowhere.
    let slice = ["endpointslice", "web", "-n", "explain-b"];
    let gone = r#"{"endpoints": []}"#;
    kubectl.must(
        &[&["patch"], &slice[..], &["--type=merge", "-p", gone]].concat(),
        "",
    );
    let (_, report) = kubectl.json(tenant, &["explain", direct]);
    assert_eq!(report["state"], "down");
    assert_eq!(report["nowhere"]["reason"], "NoEndpoints", "{report:#}");
    let back = r#"{"endpoints": [{"addresses": ["192.0.2.9"]}]}"#;
    kubectl.must(
        &[&["patch"], &slice[..], &["--type=merge", "-p", back]].concat(),
        "",
    );

    // Only the set's status says that the Gateway has no address.
    let waits = condition(
        "Programmed",
        false,
        "ParentNotProgrammed",
        "Gateway explain-platform/edge is not programmed: AddressNotAssigned; see its status",
    );
    let read = ["get", "listenerset", "set", "-n", "explain-b", "-o", "json"];
    let before: Value = serde_json::from_str(&kubectl.must(&read, "")).unwrap();
    let mut status = before["status"].clone();
    status["conditions"][1] = waits;
    kubectl.set_status("listenerset", "explain-b", "set", &status);
    let (_, report) = kubectl.json(tenant, &["explain", "free.explain.example"]);
    let step = last(&report["places"][0]);
    assert_eq!(step["reason"], "ParentNotProgrammed", "{report:#}");
    assert_eq!(step["action"], "see its status");
    kubectl.set_status("listenerset", "explain-b", "set", &before["status"]);

    // A set that does not exist is known not to.
    let later = json!({"kind": "ListenerSet", "name": "later"});
    kubectl.apply(&[route("waits", "later.explain.example", &later)]);
    for who in [admin, tenant] {
        let (code, report) = kubectl.json(who, &["explain", "later.explain.example"]);
        assert_eq!(code, Some(1));
        assert_eq!(report["nowhere"]["reason"], "NotFound", "{report:#}");
        let (_, overview) = kubectl.json(who, &["status", "-n", "explain-b"]);
        let rows = overview["objects"].as_array().unwrap();
        let row = rows.iter().find(|row| row["name"] == "waits").unwrap();
        assert_eq!(row["health"], "waiting", "{row:#}");
        assert_eq!(row["problems"][0]["reason"], "NotFound");
    }
    let routes = ["delete", "tlsroute", "-n", "explain-b", "direct", "waits"];
    kubectl.must(&routes, "");
}

/// The operator knows of the Service in front of a Gateway; its word is in the status.
pub(super) fn addresses_are_the_status_word(kubectl: &Kubectl, admin: &Path) {
    let read = [
        "get",
        "gateway",
        "edge",
        "-n",
        "explain-platform",
        "-o",
        "json",
    ];
    let before: Value = serde_json::from_str(&kubectl.must(&read, "")).unwrap();
    let said = "Service here/it has no address: nobody gave it one; see the events of the Service";
    let conditions = json!([
        condition("Accepted", true, "Accepted", ""),
        condition("Programmed", false, "AddressNotAssigned", said),
    ]);
    let status = json!({"conditions": conditions, "addresses": []});
    kubectl.set_status("gateway", "explain-platform", "edge", &status);
    let (_, report) = kubectl.json(admin, &["explain", super::NAME]);
    let step = step(&report["places"][0], "gateway");
    assert_eq!(step["by"], "status", "{report:#}");
    assert_eq!(
        step["message"],
        "Service here/it has no address: nobody gave it one"
    );
    assert_eq!(step["action"], "see the events of the Service");
    kubectl.set_status("gateway", "explain-platform", "edge", &before["status"]);
}

/// Only the operator knows that a name is not recorded yet.
pub(super) fn hostname_that_waits_for_the_operator_is_not_live(kubectl: &Kubectl, admin: &Path) {
    let read = ["get", "tlsroute", "web", "-n", "explain-a", "-o", "json"];
    let before: Value = serde_json::from_str(&kubectl.must(&read, "")).unwrap();
    let mut status = before["status"].clone();
    status["parents"][0]["conditions"][0] = condition(
        "Accepted",
        false,
        "Pending",
        "Waiting for its hostname or port to be recorded",
    );
    kubectl.set_status("tlsroute", "explain-a", "web", &status);
    let (code, report) = kubectl.json(admin, &["explain", super::NAME]);
    assert_eq!((code, &report["state"]), (Some(1), &json!("down")));
    let said = last(&report["places"][0]);
    assert_eq!(said["check"], "route", "{report:#}");
    assert_eq!(
        (&said["reason"], &said["by"]),
        (&json!("Pending"), &json!("status"))
    );
    let (_, overview) = kubectl.json(admin, &["status", "-n", "explain-a"]);
    let rows = overview["objects"].as_array().unwrap();
    let row = rows.iter().find(|row| row["kind"] == "TLSRoute").unwrap();
    assert_eq!(row["health"], "waiting", "{row:#}");
    kubectl.set_status("tlsroute", "explain-a", "web", &before["status"]);
}

/// The mode of admission is one for the whole release. The command takes it from the operator, unless a flag sets it.
pub(super) fn the_release_says_what_admission_does(kubectl: &Kubectl, admin: &Path) {
    let gateway = json!({
        "kind": "Gateway", "namespace": "explain-platform", "name": "wide",
    });
    let listener = json!({
        "name": "own", "protocol": "TLS", "port": 9443, "tls": {"mode": "Passthrough"},
        "allowedRoutes": {"namespaces": {"from": "All"}},
    });
    kubectl.apply(&[
        json!({
            "apiVersion": GATEWAY_API, "kind": "Gateway",
            "metadata": {"namespace": "explain-platform", "name": "wide"},
            "spec": {"gatewayClassName": "explain", "listeners": [listener]},
        }),
        route("wide", "*.wide.explain.example", &gateway),
    ]);
    let verdict = |arguments: &[&str]| {
        let name = ["explain", "any.wide.explain.example"];
        let (_, report) = kubectl.json(admin, &[&name[..], arguments].concat());
        step(&report["places"][0], "route")["outcome"].clone()
    };
    let operator = |arguments: &Value| {
        let labels = json!({
            "app.kubernetes.io/part-of": "vestibule", "app.kubernetes.io/component": "operator",
        });
        let container = json!({"name": "operator", "image": "operator", "args": arguments});
        kubectl.apply(&[json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"namespace": "explain-platform", "name": "operator", "labels": labels},
            "spec": {
                "selector": {"matchLabels": labels}, "replicas": 0,
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
            },
        })]);
    };
    assert_eq!(verdict(&[]), "wrong");
    operator(&json!([
        "--policy-mode=Enforce",
        "--exempt-namespace=explain-b"
    ]));
    assert_eq!(verdict(&[]), "ok");
    operator(&json!(["--policy-mode=Off"]));
    assert_eq!(verdict(&[]), "ok");
    assert_eq!(verdict(&["--admission-mode", "Enforce"]), "wrong");
    operator(&json!([
        "--policy-mode=Off",
        "--controller=example.com/other"
    ]));
    assert_eq!(verdict(&[]), "wrong");
    let delete = ["delete", "-n", "explain-platform"];
    for what in [["deployment", "operator"], ["gateway", "wide"]] {
        kubectl.must(&[&delete[..], &what].concat(), "");
    }
    kubectl.must(&["delete", "tlsroute", "-n", "explain-b", "wide"], "");
}
