//! `kubectl vestibule explain` and `status` beside a real API server, as an administrator and as a tenant
//! who may see one namespace.
//!
//! Run by `e2e/cluster/apiserver run`, which sets `KUBECONFIG`.

mod hidden;
mod ownership;

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::common::Directory;

const CONTROLLER: &str = "vestibule.dev/gateway-controller";
const GATEWAY_API: &str = "gateway.networking.k8s.io/v1";
const NAME: &str = "taken.explain.example";

/// The real kubectl, with this command as its plugin.
struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    home: Directory,
}

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Kubectl {
    fn new() -> Self {
        let kubeconfig = std::env::var_os("VESTIBULE_TEST_KUBECONFIG")
            .expect("run it as `e2e/cluster/apiserver run cargo test ... -- --ignored`");
        let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../e2e/tools/get");
        let found = Command::new(tools).arg("kubectl").output().unwrap();
        let path = String::from_utf8(found.stdout).unwrap();
        let home = Directory::new();
        let plugin = home.path().join("kubectl-vestibule");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_vestibule"), plugin).unwrap();
        Self {
            program: path.trim().into(),
            kubeconfig: kubeconfig.into(),
            home,
        }
    }

    fn run_with(&self, kubeconfig: &Path, arguments: &[&str], input: &str) -> Ran {
        let mut path = OsString::from(self.home.path());
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let mut child = Command::new(&self.program)
            .args(arguments)
            .env("KUBECONFIG", kubeconfig)
            .env("PATH", path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(input.as_bytes())
            .unwrap();
        let output = child.wait_with_output().unwrap();
        Ran {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    fn must(&self, arguments: &[&str], input: &str) -> String {
        let ran = self.run_with(&self.kubeconfig, arguments, input);
        assert_eq!(ran.code, Some(0), "{arguments:?}: {}", ran.err);
        ran.out
    }

    fn apply(&self, objects: &[Value]) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        self.must(&["apply", "-f", "-"], &list.to_string());
    }

    fn set_status(&self, kind: &str, namespace: &str, name: &str, status: &Value) {
        let patch = json!({ "status": status }).to_string();
        let what = ["patch", kind, name, "-n", namespace];
        let how = ["--subresource=status", "--type=merge", "-p", &patch];
        self.must(&[&what[..], &how[..]].concat(), "");
    }

    /// A kubeconfig of a ServiceAccount with the role that a tenant gets.
    fn tenant(&self, namespace: &str) -> PathBuf {
        let role = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies/tenant-role.yaml");
        self.must(&["apply", "-f", role.to_str().unwrap()], "");
        self.apply(&[
            json!({
                "apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": {"name": "tenant", "namespace": namespace},
            }),
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
                "metadata": {"name": "tenant", "namespace": namespace},
                "subjects": [{"kind": "ServiceAccount", "name": "tenant", "namespace": namespace}],
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                    "name": "vestibule-tenant",
                },
            }),
        ]);
        let token = self.must(&["create", "token", "tenant", "-n", namespace], "");
        let view = ["config", "view", "--raw", "--minify", "-o", "json"];
        let mut config: Value = serde_json::from_str(&self.must(&view, "")).unwrap();
        config["users"][0]["user"] = json!({"token": token.trim()});
        config["contexts"][0]["context"]["namespace"] = namespace.into();
        let path = self.home.path().join("tenant");
        fs::write(&path, config.to_string()).unwrap();
        path
    }

    /// `kubectl vestibule ...` as text.
    fn says(&self, kubeconfig: &Path, arguments: &[&str]) -> Ran {
        self.run_with(kubeconfig, &[&["vestibule"], arguments].concat(), "")
    }

    /// `kubectl vestibule ... -o json`, and its exit code.
    fn json(&self, kubeconfig: &Path, arguments: &[&str]) -> (Option<i32>, Value) {
        let ran = self.says(kubeconfig, &[arguments, &["-o", "json"]].concat());
        let value = serde_json::from_str(&ran.out);
        let value = value.unwrap_or_else(|error| panic!("{error}: {}{}", ran.out, ran.err));
        (ran.code, value)
    }
}

fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

fn set(namespace: &str, hostnames: &[&str]) -> Value {
    let listeners = hostnames.iter().enumerate().map(|(index, hostname)| {
        json!({
            "name": format!("l{index}"), "protocol": "TLS", "port": 443, "hostname": hostname,
            "tls": {"mode": "Passthrough"},
        })
    });
    json!({
        "apiVersion": GATEWAY_API, "kind": "ListenerSet",
        "metadata": {"namespace": namespace, "name": "set"},
        "spec": {
            "parentRef": {"namespace": "explain-platform", "name": "edge"},
            "listeners": listeners.collect::<Vec<_>>(),
        },
    })
}

fn route(namespace: &str, hostname: &str) -> Value {
    json!({
        "apiVersion": GATEWAY_API, "kind": "TLSRoute",
        "metadata": {"namespace": namespace, "name": "web"},
        "spec": {
            "parentRefs": [{"kind": "ListenerSet", "name": "set", "sectionName": "l0"}],
            "hostnames": [hostname],
            "rules": [{"backendRefs": [{"name": "web", "port": 443}]}],
        },
    })
}

fn service(namespace: &str) -> [Value; 2] {
    [
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": namespace, "name": "web"},
            "spec": {"ports": [{"port": 443}]},
        }),
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {
                "namespace": namespace, "name": "web",
                "labels": {"kubernetes.io/service-name": "web"},
            },
            "ports": [{"port": 8443}], "endpoints": [{"addresses": ["192.0.2.9"]}],
        }),
    ]
}

fn condition(kind: &str, status: bool, reason: &str, message: &str) -> Value {
    json!({
        "type": kind, "status": if status { "True" } else { "False" }, "reason": reason,
        "message": message, "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}

fn good() -> Value {
    json!([
        condition("Accepted", true, "Accepted", ""),
        condition("ResolvedRefs", true, "ResolvedRefs", ""),
        condition("Conflicted", false, "NoConflicts", ""),
        condition(
            "Programmed",
            true,
            "Programmed",
            "In force in 2 of 2 proxies"
        ),
    ])
}

fn conflicted() -> Value {
    json!([
        condition("Accepted", false, "HostnameConflict", "hostname is taken"),
        condition("ResolvedRefs", true, "ResolvedRefs", ""),
        condition("Conflicted", true, "HostnameConflict", "hostname is taken"),
        condition("Programmed", false, "HostnameConflict", "hostname is taken"),
    ])
}

fn listener_status(name: &str, routes: u32, conditions: &Value) -> Value {
    json!({
        "name": name, "attachedRoutes": routes, "conditions": conditions,
        "supportedKinds": [{"group": "gateway.networking.k8s.io", "kind": "TLSRoute"}],
    })
}

/// Namespace a has the name; b asks for it too, and has a free one. The statuses are the operator's.
fn prepare(kubectl: &Kubectl) {
    let names = ["explain-platform", "explain-a", "explain-b"];
    kubectl.apply(&names.map(namespace));
    kubectl.apply(&[
        json!({
            "apiVersion": GATEWAY_API, "kind": "GatewayClass", "metadata": {"name": "explain"},
            "spec": {"controllerName": CONTROLLER},
        }),
        json!({
            "apiVersion": GATEWAY_API, "kind": "Gateway",
            "metadata": {"namespace": "explain-platform", "name": "edge"},
            "spec": {
                "gatewayClassName": "explain", "allowedListeners": {"namespaces": {"from": "All"}},
                "listeners": [{
                    "name": "own", "protocol": "TLS", "port": 443, "hostname": "own.explain.example",
                    "tls": {"mode": "Passthrough"},
                }],
            },
        }),
        set("explain-a", &[NAME]),
        route("explain-a", NAME),
        set("explain-b", &[NAME, "free.explain.example"]),
        route("explain-b", NAME),
    ]);
    kubectl.apply(&service("explain-a"));
    kubectl.apply(&service("explain-b"));
    let accepted = json!([condition("Accepted", true, "Accepted", "")]);
    kubectl.set_status(
        "gatewayclass",
        "",
        "explain",
        &json!({ "conditions": accepted }),
    );
    let gateway = json!({
        "conditions": [
            condition("Accepted", true, "Accepted", ""),
            condition("Programmed", true, "Programmed", ""),
            condition("ResolvedRefs", true, "ResolvedRefs", ""),
        ],
        "addresses": [{"type": "IPAddress", "value": "203.0.113.7"}],
        "listeners": [listener_status("own", 0, &good())],
    });
    kubectl.set_status("gateway", "explain-platform", "edge", &gateway);
    let of_set = |listeners: Vec<Value>| {
        json!({
            "conditions": [
                condition("Accepted", true, "Accepted", ""),
                condition("Programmed", true, "Programmed", ""),
            ],
            "listeners": listeners,
        })
    };
    let a = of_set(vec![listener_status("l0", 1, &good())]);
    kubectl.set_status("listenerset", "explain-a", "set", &a);
    let b = vec![
        listener_status("l0", 1, &conflicted()),
        listener_status("l1", 0, &good()),
    ];
    kubectl.set_status("listenerset", "explain-b", "set", &of_set(b));
    for namespace in ["explain-a", "explain-b"] {
        let parent = json!({
            "controllerName": CONTROLLER, "conditions": [
                condition("Accepted", true, "Accepted", ""),
                condition("ResolvedRefs", true, "ResolvedRefs", ""),
            ],
            "parentRef": {
                "group": "gateway.networking.k8s.io", "kind": "ListenerSet", "name": "set",
                "sectionName": "l0",
            },
        });
        kubectl.set_status(
            "tlsroute",
            namespace,
            "web",
            &json!({ "parents": [parent] }),
        );
    }
}

fn step<'a>(place: &'a Value, check: &str) -> &'a Value {
    let chain = place["chain"].as_array().unwrap();
    let found = chain.iter().find(|step| step["check"] == check);
    found.unwrap_or_else(|| panic!("no step {check}: {place:#}"))
}

#[test]
#[ignore = "needs an API server: e2e/cluster/apiserver run"]
fn on_a_cluster_everybody_sees_what_their_rights_show() {
    let kubectl = Kubectl::new();
    prepare(&kubectl);
    let admin = kubectl.kubeconfig.clone();
    let tenant = kubectl.tenant("explain-b");

    administrators_see_who_has_the_name(&kubectl, &admin);
    tenants_see_that_it_is_taken_and_not_by_whom(&kubectl, &tenant);
    hidden::objects_that_the_caller_may_not_read_are_not_guessed_at(&kubectl, &admin, &tenant);
    hidden::addresses_are_the_status_word(&kubectl, &admin);
    hidden::hostname_that_waits_for_the_operator_is_not_live(&kubectl, &admin);
    hidden::the_release_says_what_admission_does(&kubectl, &admin);
    tenants_with_the_gateway_see_it(&kubectl, &tenant);
    tenants_own_their_names_where_labels_select_them(&kubectl, &tenant);
    ownership::grants_and_claims_are_for_those_who_may_read_them(&kubectl, &admin, &tenant);
    status_that_is_stale_unwritten_or_different_is_reported(&kubectl, &admin);

    let nobody = kubectl.says(&admin, &["explain", NAME, "--as", "nobody"]);
    assert_eq!(nobody.code, Some(2), "{}{}", nobody.out, nobody.err);
    assert!(nobody.err.contains("nothing may be read"), "{}", nobody.err);
    let hint = "name your namespace with --namespace";
    assert!(nobody.err.contains(hint), "{}", nobody.err);
    let nobody = [
        "explain",
        NAME,
        "--as",
        "nobody",
        "--namespace",
        "explain-a",
    ];
    let nobody = kubectl.says(&admin, &nobody);
    assert!(!nobody.err.contains(hint), "{}", nobody.err);
}

fn administrators_see_who_has_the_name(kubectl: &Kubectl, admin: &Path) {
    let (code, report) = kubectl.json(admin, &["explain", NAME]);
    assert_eq!(
        (code, &report["state"]),
        (Some(0), &json!("live")),
        "{report:#}"
    );
    assert_eq!(report["unread"], json!([]));
    let place = &report["places"][0];
    assert_eq!(place["gateway"]["name"], "edge");
    assert_eq!(place["addresses"], json!(["203.0.113.7"]));
    assert_eq!(place["listener"]["object"]["namespace"], "explain-a");
    assert_eq!(place["routes"][0]["rules"][0]["backends"][0]["ready"], 1);
    assert_eq!(
        step(place, "programmed")["message"],
        "In force in 2 of 2 proxies"
    );
    assert_eq!(place["differences"], json!([]), "{place:#}");
    let other = &place["others"][0];
    assert_eq!(other["listener"]["object"]["namespace"], "explain-b");
    assert_eq!(other["reason"], "HostnameConflict");

    let text = kubectl.says(admin, &["explain", NAME]);
    assert!(
        text.out.starts_with("taken.explain.example is live\n"),
        "{}",
        text.out
    );

    let (code, overview) = kubectl.json(admin, &["status", "-n", "explain-b"]);
    assert_eq!(code, Some(1));
    let rows = overview["objects"].as_array().unwrap();
    assert_eq!(rows[0]["kind"], "ListenerSet");
    assert_eq!(rows[0]["problems"][0]["reason"], "HostnameConflict");
    assert!(
        rows.iter().all(|row| row["namespace"] == "explain-b"),
        "{overview:#}"
    );
}

fn tenants_see_that_it_is_taken_and_not_by_whom(kubectl: &Kubectl, tenant: &Path) {
    let (code, report) = kubectl.json(tenant, &["explain", NAME]);
    assert_eq!(
        (code, &report["state"]),
        (Some(1), &json!("down")),
        "{report:#}"
    );
    let place = &report["places"][0];
    assert_eq!(place["listener"]["object"]["namespace"], "explain-b");
    assert_eq!(step(place, "gateway")["outcome"], "unknown");
    let last = place["chain"].as_array().unwrap().last().unwrap();
    assert_eq!(last["check"], "listener");
    assert_eq!(
        (&last["outcome"], &last["by"]),
        (&json!("wrong"), &json!("status"))
    );
    assert_eq!(last["reason"], "HostnameConflict");
    let text = kubectl.says(tenant, &["explain", NAME]).out;
    for secret in ["explain-a", "203.0.113.7"] {
        assert!(
            !report.to_string().contains(secret) && !text.contains(secret),
            "{text}"
        );
    }
    assert!(text.contains("as far as you may see"), "{text}");

    // Its own is served, as the status says; nothing routes it.
    let (code, report) = kubectl.json(tenant, &["explain", "free.explain.example"]);
    assert_eq!(code, Some(1));
    let last = report["places"][0]["chain"]
        .as_array()
        .unwrap()
        .last()
        .unwrap();
    assert_eq!(last["check"], "route", "{report:#}");

    let (_, overview) = kubectl.json(tenant, &["status"]);
    let rows = overview["objects"].as_array().unwrap();
    assert!(!rows.is_empty());
    assert!(
        rows.iter().all(|row| row["namespace"] == "explain-b"),
        "{overview:#}"
    );
}

fn tenants_with_the_gateway_see_it(kubectl: &Kubectl, tenant: &Path) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies/gateway-reader.yaml");
    let text = fs::read_to_string(file).unwrap();
    let text = text.replace("namespace: gateways", "namespace: explain-platform");
    kubectl.must(&["apply", "-f", "-"], &text);
    let (code, report) = kubectl.json(tenant, &["explain", NAME]);
    assert_eq!(code, Some(1));
    let place = &report["places"][0];
    assert_eq!(step(place, "gatewayClass")["outcome"], "unknown");
    assert_eq!(step(place, "gateway")["outcome"], "ok", "{place:#}");
    assert_eq!(place["addresses"], json!(["203.0.113.7"]));
    assert_eq!(step(place, "listener")["outcome"], "wrong");
}

/// The Gateway selects namespaces by labels, which the tenant may not read, and has a listener of its own for every
/// name. The names of the tenant's listener and route are the tenant's all the same: their statuses say so.
fn tenants_own_their_names_where_labels_select_them(kubectl: &Kubectl, tenant: &Path) {
    let (by_set, direct) = ("by-set.labelled.example", "direct.labelled.example");
    let selected = json!({"from": "Selector", "selector": {"matchLabels": {"team": "yes"}}});
    let mut own_set = set("explain-b", &[by_set]);
    own_set["metadata"]["name"] = "labelled".into();
    own_set["spec"]["parentRef"]["name"] = "labelled".into();
    let set_parent = json!({
        "group": "gateway.networking.k8s.io", "kind": "ListenerSet", "name": "labelled",
    });
    let gateway_parent = json!({
        "group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "labelled",
        "namespace": "explain-platform",
    });
    let routes = [
        ("by-set", by_set, &set_parent),
        ("by-gateway", direct, &gateway_parent),
    ];
    kubectl.apply(&[
        json!({
            "apiVersion": GATEWAY_API, "kind": "Gateway",
            "metadata": {"namespace": "explain-platform", "name": "labelled"},
            "spec": {
                "gatewayClassName": "explain", "allowedListeners": {"namespaces": selected},
                "listeners": [{
                    "name": "all", "protocol": "TLS", "port": 443, "tls": {"mode": "Passthrough"},
                    "allowedRoutes": {"namespaces": selected},
                }],
            },
        }),
        own_set,
    ]);
    let accepted = condition("Accepted", true, "Accepted", "");
    let programmed = condition("Programmed", true, "Programmed", "");
    let gateway = json!({
        "conditions": [accepted, programmed], "listeners": [listener_status("all", 1, &good())],
    });
    kubectl.set_status("gateway", "explain-platform", "labelled", &gateway);
    let own_set = json!({
        "conditions": [accepted, programmed], "listeners": [listener_status("l0", 1, &good())],
    });
    kubectl.set_status("listenerset", "explain-b", "labelled", &own_set);
    for (name, hostname, parent) in routes {
        let mut own = route("explain-b", hostname);
        own["metadata"]["name"] = name.into();
        own["spec"]["parentRefs"] = json!([parent]);
        kubectl.apply(&[own]);
        let resolved = condition("ResolvedRefs", true, "ResolvedRefs", "");
        let status = json!({"parents": [{
            "controllerName": CONTROLLER, "parentRef": parent, "conditions": [accepted, resolved],
        }]});
        kubectl.set_status("tlsroute", "explain-b", name, &status);
    }

    for (name, hostname, _) in routes {
        let (_, report) = kubectl.json(tenant, &["explain", hostname]);
        let place = &report["places"][0];
        let chain = place["chain"].as_array().unwrap();
        let is_wrong = chain.iter().any(|step| step["outcome"] == "wrong");
        assert!(!is_wrong, "{report:#}");
        assert_eq!(step(place, "listener")["outcome"], "ok", "{report:#}");
        assert_eq!(place["routes"][0]["object"]["name"], name, "{report:#}");
        let unread = report["unread"].to_string();
        assert!(
            unread.contains("Namespace explain-b: you may not get it"),
            "{unread}"
        );
    }

    // A namespace that the selector does not let in sees that in the status.
    let refused = json!({"conditions": [
        condition("Accepted", false, "NotAllowed", "not let in"),
        condition("Programmed", false, "NotAllowed", "not let in"),
    ], "listeners": []});
    kubectl.set_status("listenerset", "explain-b", "labelled", &refused);
    let (code, report) = kubectl.json(tenant, &["explain", by_set]);
    assert_eq!(code, Some(1));
    let refusal = step(&report["places"][0], "listenerSet");
    assert_eq!(
        (&refusal["by"], &refusal["reason"]),
        (&json!("status"), &json!("NotAllowed")),
        "{report:#}"
    );

    let delete = ["delete", "-n", "explain-b"];
    for what in [
        "tlsroute/by-set",
        "tlsroute/by-gateway",
        "listenerset/labelled",
    ] {
        kubectl.must(&[&delete[..], &[what]].concat(), "");
    }
    let gateway = ["delete", "-n", "explain-platform", "gateway/labelled"];
    kubectl.must(&gateway, "");
}

fn status_that_is_stale_unwritten_or_different_is_reported(kubectl: &Kubectl, admin: &Path) {
    // Another generation, and nobody who sees it.
    kubectl.apply(&[set("explain-a", &[NAME, "new.explain.example"])]);
    let (code, report) = kubectl.json(admin, &["explain", NAME]);
    assert_eq!(code, Some(0));
    let place = &report["places"][0];
    assert_eq!(step(place, "programmed")["reason"], "Stale");
    assert_eq!(place["differences"][0]["stale"], true);
    let (code, report) = kubectl.json(admin, &["explain", "new.explain.example"]);
    assert_eq!(code, Some(1));
    assert_eq!(
        report["places"][0]["differences"][1]["unwritten"], true,
        "{report:#}"
    );
    // What the status says otherwise.
    let status = json!({"listeners": [listener_status("l0", 1, &conflicted())]});
    kubectl.set_status("listenerset", "explain-a", "set", &status);
    let (code, report) = kubectl.json(admin, &["explain", NAME]);
    assert_eq!(code, Some(1));
    let differences = report["places"][0]["differences"].as_array().unwrap();
    let said = differences
        .iter()
        .flat_map(|one| one["conditions"].as_array().unwrap());
    let accepted = said.clone().find(|one| one["type"] == "Accepted");
    assert_eq!(
        accepted,
        Some(&json!({
            "type": "Accepted", "computed": "True/Accepted", "written": "False/HostnameConflict",
        })),
        "{report:#}"
    );
}
