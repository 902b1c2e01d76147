//! `vestibule check` as a process: verdicts, exit codes, JSON.

use std::fs;
use std::os::unix::fs::symlink;

use crate::common::{Directory, PLATFORM, check, route, service, set};
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use serde_json::{Value, json};

fn directory(files: &[(&str, String)]) -> Directory {
    let directory = Directory::new();
    for (name, text) in files {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    directory
}

/// Exit code and verdicts.
fn verdicts(directory: &Directory, arguments: &[&str]) -> (Option<i32>, Vec<Value>) {
    let path = directory.path().to_str().unwrap();
    let output = check(&[&[path, "--output", "json"], arguments].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    let verdicts = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    (output.status.code(), verdicts)
}

fn of<'a>(verdicts: &'a [Value], kind: &str, name: &str) -> &'a Value {
    verdicts
        .iter()
        .find(|v| v["kind"] == kind && v["name"] == name)
        .unwrap()
}

fn good() -> Vec<(&'static str, String)> {
    vec![
        ("platform.yaml", PLATFORM.to_owned()),
        (
            "tenants/a.yaml",
            [
                set("a", "a.example"),
                route("a", "a.example", "web"),
                service("a", "web", 8080),
            ]
            .concat(),
        ),
    ]
}

#[test]
fn a_good_directory_is_accepted() {
    let directory = directory(&good());
    let (code, all) = verdicts(&directory, &[]);
    assert_eq!(code, Some(0), "{all:#?}");
    let route = of(&all, "TLSRoute", "web");
    assert_eq!(route["verdict"], "accepted");
    assert_eq!(
        (&route["file"], &route["line"]),
        (&"tenants/a.yaml".into(), &16.into())
    );
    assert_eq!(
        route["status"]["parents"][0]["conditions"][0]["status"],
        "True"
    );
    // The certificate is yet to be issued, which refuses nothing.
    let set = of(&all, "ListenerSet", "set");
    assert_eq!(set["verdict"], "warning");
    assert_eq!(set["findings"][0]["reason"], "InvalidCertificateRef");

    let output = check(&[directory.path().to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.ends_with("6 objects: 5 accepted, 1 with warnings, 0 refused\n"),
        "{text}"
    );
}

#[test]
fn object_that_the_schema_refuses_is_refused_as_by_kubectl_apply() {
    let mut files = good();
    files.push(("tenants/b.yaml", set("b", "B.example.")));
    let directory = directory(&files);
    let (code, all) = verdicts(&directory, &[]);
    assert_eq!(code, Some(1));
    let refused = all
        .iter()
        .find(|v| v["kind"] == "ListenerSet" && v["namespace"] == "b")
        .unwrap();
    assert_eq!(refused["verdict"], "refused");
    let findings = refused["findings"].as_array().unwrap();
    let finding = findings
        .iter()
        .find(|finding| finding["field"] == "spec.listeners[0].hostname")
        .unwrap();
    assert_eq!(finding["action"], "write \"b.example\"");
}

#[test]
fn a_certificate_that_has_expired_is_told() {
    let mut files = good();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2021, 1, 1);
    let pem = params.self_signed(&key).unwrap().pem();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"namespace": "a", "name": "cert"},
        "stringData": {"tls.crt": pem, "tls.key": key.serialize_pem()},
    });
    files.push(("tenants/secret.json", secret.to_string()));
    let directory = directory(&files);
    let (_, all) = verdicts(&directory, &[]);
    let findings = of(&all, "ListenerSet", "set")["findings"]
        .as_array()
        .unwrap();
    let expired = findings
        .iter()
        .any(|finding| finding["reason"] == "Expired");
    assert!(expired, "{findings:#?}");
}

/// A parent that is named twice counts once. The parents after it keep their places in messages.
#[test]
fn a_parent_after_a_duplicate_is_named_by_its_own_place() {
    let mut files = good();
    let parents = "[{kind: ListenerSet, name: set}, {kind: ListenerSet, name: set}, \
                   {kind: ListenerSet, name: set, sectionName: none}]";
    for (_, text) in &mut files {
        *text = text.replace(
            "parentRefs: [{kind: ListenerSet, name: set}]",
            &format!("parentRefs: {parents}"),
        );
    }
    let directory = directory(&files);
    let (_, all) = verdicts(&directory, &[]);
    let route = of(&all, "TLSRoute", "web");
    let findings = route["findings"].as_array().unwrap();
    let field_of = |reason: &str| {
        let finding = findings.iter().find(|finding| finding["reason"] == reason);
        finding.unwrap_or_else(|| panic!("{findings:#?}"))["field"].clone()
    };
    assert_eq!(field_of("Duplicate"), "spec.parentRefs[1]");
    assert_eq!(field_of("NoMatchingParent"), "spec.parentRefs[2]");
}

#[test]
fn a_conflict_and_a_wildcard_are_refused_as_admission_would() {
    let mut files = good();
    files.push(("tenants/b.yaml", set("b", "a.example")));
    files.push((
        "tenants/c.yaml",
        [
            set("c", "\"*.c.example\""),
            route("c", "\"*.c.example\"", "web"),
        ]
        .concat(),
    ));
    let directory = directory(&files);
    let (code, all) = verdicts(&directory, &[]);
    assert_eq!(code, Some(1));
    let conflict = all
        .iter()
        .find(|v| v["kind"] == "ListenerSet" && v["namespace"] == "b")
        .unwrap();
    assert_eq!(conflict["verdict"], "refused");
    assert_eq!(conflict["findings"][0]["reason"], "HostnameConflict");
    assert_eq!(
        conflict["findings"][0]["field"],
        "spec.listeners[0].hostname"
    );
    let message = conflict["admission"].as_str().unwrap();
    assert!(
        message.contains("\"a.example\" belongs to another namespace"),
        "{message}"
    );
    // It names no object of the other tenant.
    assert!(!message.contains("a/set"), "{message}");
    let wildcard = all
        .iter()
        .find(|v| v["kind"] == "TLSRoute" && v["namespace"] == "c")
        .unwrap();
    assert_eq!(wildcard["findings"][0]["reason"], "WildcardHostname");
    assert_eq!(wildcard["findings"][0]["origin"], "policy");
    // The first tenant is not affected.
    assert_eq!(of(&all, "TLSRoute", "web")["verdict"], "accepted");
}

/// In part: the route is served for its other hostname, and would not be applied all the same.
#[test]
fn a_hostname_that_another_route_has_is_refused_as_admission_would() {
    let route = |namespace: &str, created: &str, hostnames: &str| {
        format!(
            "
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{namespace: {namespace}, name: {namespace}, creationTimestamp: \"{created}\"}}
spec:
  parentRefs: [{{namespace: platform, name: edge, sectionName: web}}]
  hostnames: [{hostnames}]
  rules: [{{backendRefs: [{{name: web, port: 80}}]}}]
"
        )
    };
    let open =
        "    - {name: web, protocol: HTTP, port: 80, allowedRoutes: {namespaces: {from: All}}}\n";
    let directory = directory(&[
        ("platform.yaml", format!("{PLATFORM}{open}")),
        (
            "services.yaml",
            [service("a", "web", 8080), service("b", "web", 8081)].concat(),
        ),
        ("a.yaml", route("a", "2026-01-01T00:00:00Z", "x.example")),
        (
            "b.yaml",
            route("b", "2026-01-02T00:00:00Z", "x.example, y.example"),
        ),
    ]);
    let (code, all) = verdicts(&directory, &[]);
    assert_eq!(code, Some(1), "{all:#?}");
    let loser = of(&all, "HTTPRoute", "b");
    assert_eq!(loser["verdict"], "refused");
    assert_eq!(
        loser["status"]["parents"][0]["conditions"][0]["status"],
        "True"
    );
    let message = loser["admission"].as_str().unwrap();
    assert!(
        message.contains("\"x.example\" belongs to another namespace"),
        "{message}"
    );
    assert_eq!(of(&all, "HTTPRoute", "a")["admission"], Value::Null);
}

#[test]
fn the_mode_and_exempt_namespaces_weigh_policy_rules() {
    let mut files = good();
    files.push((
        "c.yaml",
        [
            set("c", "\"*.c.example\""),
            route("c", "\"*.c.example\"", "web"),
            service("c", "web", 1),
        ]
        .concat(),
    ));
    let directory = directory(&files);
    let of_route = |arguments: &[&str]| {
        let (_, all) = verdicts(&directory, arguments);
        all.iter()
            .find(|v| v["kind"] == "TLSRoute" && v["namespace"] == "c")
            .unwrap()["verdict"]
            .clone()
    };
    assert_eq!(of_route(&[]), "refused");
    assert_eq!(of_route(&["--admission-mode", "Warn"]), "warning");
    assert_eq!(of_route(&["--admission-mode", "Off"]), "accepted");
    assert_eq!(
        of_route(&["--exempt-namespace", "x", "--exempt-namespace", "c"]),
        "warning"
    );
    assert_eq!(of_route(&["--exempt-namespace", "x, c"]), "warning");
    let path = directory.path().to_str().unwrap();
    assert_eq!(
        check(&[path, "--admission-mode", "Maybe"]).status.code(),
        Some(2)
    );
}

/// A release may have another controller name.
#[test]
fn classes_of_the_named_controller_count() {
    let named = PLATFORM.replace("vestibule.dev/gateway-controller", "example.com/other");
    let directory = directory(&[("platform.yaml", named)]);
    for (arguments, verdict) in [
        (&[][..], "warning"),
        (&["--controller-name", "example.com/other"], "accepted"),
    ] {
        let (code, all) = verdicts(&directory, arguments);
        assert_eq!(code, Some(0), "{all:#?}");
        assert_eq!(of(&all, "Gateway", "edge")["verdict"], verdict, "{all:#?}");
    }
    let path = directory.path().to_str().unwrap();
    let short = check(&[path, "-o", "json"]);
    assert!(short.stdout.starts_with(b"["));
}

#[test]
fn manifests_that_cannot_be_read_are_reported_with_their_place() {
    let mut files = good();
    files.push(("broken.yaml", "kind: [\n".into()));
    files.push(("empty.yaml", String::new()));
    files.push((
        "odd.yaml",
        "a: b\n---\nkind: Deployment\napiVersion: apps/v1\nmetadata: {name: d}\n".into(),
    ));
    files.push(("twice.yaml", PLATFORM.to_owned()));
    files.push((
        "bad.json",
        "{\"apiVersion\": \"v1\",\n\"kind\" \"Service\"}".into(),
    ));
    files.push((
        "field.yaml",
        set("z", "z.example").replace("port: 443", "port: many"),
    ));
    let directory = directory(&files);
    symlink("/etc/hostname", directory.path().join("outside.yaml")).unwrap();
    symlink("tenants", directory.path().join("cycle")).unwrap();
    let (code, all) = verdicts(&directory, &[]);
    assert_eq!(code, Some(1));
    let in_file = |file: &str| all.iter().filter(|v| v["file"] == file).collect::<Vec<_>>();
    let finding = |file: &str| in_file(file)[0]["findings"][0].clone();
    assert_eq!(in_file("bad.json")[0]["line"], 2);
    assert_eq!(finding("bad.json")["reason"], "Unreadable");
    assert!(
        finding("broken.yaml")["message"]
            .as_str()
            .unwrap()
            .starts_with("is not YAML")
    );
    assert!(in_file("empty.yaml").is_empty());
    assert_eq!(finding("odd.yaml")["reason"], "Unreadable");
    assert_eq!(in_file("odd.yaml")[1]["verdict"], "ignored");
    assert_eq!(finding("field.yaml")["field"], "spec.listeners[0].port");
    assert!(
        finding("outside.yaml")["message"]
            .as_str()
            .unwrap()
            .contains("leads out")
    );
    assert!(in_file("cycle/a.yaml").is_empty());
    // The second of two files with the same object is refused, and the first goes on.
    let duplicate = finding("twice.yaml");
    assert_eq!(duplicate["reason"], "Duplicate");
    let message = duplicate["message"].as_str().unwrap();
    assert!(
        message.contains("platform.yaml:2") && message.contains("twice.yaml"),
        "{message}"
    );
    assert_eq!(of(&all, "TLSRoute", "web")["verdict"], "accepted");
}

#[test]
fn object_that_needs_something_absent_gets_a_warning() {
    let directory = directory(&[(
        "a.yaml",
        [
            set("a", "a.example"),
            route("a", "a.example", "web"),
            service("a", "web", 1)
                .split("---")
                .take(2)
                .collect::<Vec<_>>()
                .join("---"),
            PLATFORM.replace("name: vestibule", "name: other"),
        ]
        .join("\n---\n"),
    )]);
    let (code, all) = verdicts(&directory, &[]);
    assert_eq!(code, Some(0), "{all:#?}");
    let warning = |kind: &str, name: &str, text: &str| {
        let verdict = of(&all, kind, name);
        assert_eq!(verdict["verdict"], "warning");
        let findings = verdict["findings"].to_string();
        assert!(findings.contains(text), "{findings}");
    };
    warning(
        "Gateway",
        "edge",
        "add a GatewayClass vestibule with controllerName",
    );
    warning("ListenerSet", "set", "is not served by Vestibule");
    warning("TLSRoute", "web", "has no ready endpoint");
}

/// An HTTPRoute of namespace `a` on a listener of the Gateway.
fn http_route(parents: &str) -> String {
    format!(
        "
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{namespace: a, name: web}}
spec:
  parentRefs: [{parents}]
  hostnames: [web.example]
  rules: [{{backendRefs: [{{name: web, port: 80}}]}}]
"
    )
}

/// The Gateway with an HTTP listener for everybody.
fn open_platform() -> String {
    let open =
        "    - {name: web, protocol: HTTP, port: 80, allowedRoutes: {namespaces: {from: All}}}\n";
    format!("{PLATFORM}{open}")
}

const OPEN: &str = "{namespace: platform, name: edge, sectionName: web}";

#[test]
fn endpoints_are_those_that_the_proxies_get() {
    let slice = |ports: &str, conditions: &str| {
        format!(
            "
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{namespace: a, name: web, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports: [{ports}]
endpoints: [{{addresses: [127.0.0.1], conditions: {{{conditions}}}}}]
"
        )
    };
    let service = "
---
apiVersion: v1
kind: Service
metadata: {namespace: a, name: web}
spec: {ports: [{name: web, port: 80}]}
";
    let ready = "ready: true";
    for (slices, verdict) in [
        (slice("{name: web, port: 8080}", ready), "accepted"),
        // A pod that terminates is used as long as it serves, if no other one is there.
        (
            slice(
                "{name: web, port: 8080}",
                "ready: false, serving: true, terminating: true",
            ),
            "accepted",
        ),
        (slice("{name: web, port: 8080}", "ready: false"), "warning"),
        (slice("{name: other, port: 8080}", ready), "warning"),
        (slice("{port: 8080}", ready), "warning"),
        (slice("{name: web}", ready), "warning"),
        (String::new(), "warning"),
    ] {
        let objects = [
            open_platform(),
            http_route(OPEN),
            service.into(),
            slices.clone(),
        ];
        let (_, all) = verdicts(&directory(&[("all.yaml", objects.concat())]), &[]);
        let route = of(&all, "HTTPRoute", "web");
        assert_eq!(route["verdict"], verdict, "{slices}: {route:#}");
        if verdict == "warning" {
            let findings = route["findings"].to_string();
            assert!(findings.contains("no ready endpoint"), "{findings}");
        }
    }
}

#[test]
fn an_authorization_server_without_endpoints_is_told_at_the_route() {
    let filter =
        "{type: ExternalAuth, externalAuth: {protocol: HTTP, backendRef: {name: auth, port: 80}}}";
    let route = http_route(OPEN).replace("rules: [{", &format!("rules: [{{filters: [{filter}], "));
    let idle = "
---
apiVersion: v1
kind: Service
metadata: {namespace: a, name: auth}
spec: {ports: [{port: 80}]}
";
    let objects = [
        open_platform(),
        route,
        service("a", "web", 8080),
        idle.into(),
    ];
    let (_, all) = verdicts(&directory(&[("all.yaml", objects.concat())]), &[]);
    let route = of(&all, "HTTPRoute", "web");
    assert_eq!(route["verdict"], "warning", "{route:#}");
    let said = "Service a/auth has no ready endpoint, so requests that it authorizes are answered with 503";
    assert!(route["findings"].to_string().contains(said), "{route:#}");

    // A redirect before the filter answers, so no request needs the server.
    let redirect = "{type: RequestRedirect, requestRedirect: {scheme: https}}";
    let route = http_route(OPEN).replace(
        "rules: [{backendRefs: [{name: web, port: 80}]}]",
        &format!("rules: [{{filters: [{redirect}, {filter}]}}]"),
    );
    let objects = [open_platform(), route, idle.into()];
    let (_, all) = verdicts(&directory(&[("all.yaml", objects.concat())]), &[]);
    let route = of(&all, "HTTPRoute", "web");
    let findings = route["findings"].to_string();
    assert!(!findings.contains("no ready endpoint"), "{route:#}");
}

#[test]
fn a_policy_that_cannot_be_applied_is_told_at_the_route() {
    let policy = "
---
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {namespace: a, name: policy}
spec:
  targetRefs: [{group: '', kind: Service, name: web}]
  validation: {hostname: web.internal, caCertificateRefs: [{group: '', kind: ConfigMap, name: ca}]}
";
    let objects = [
        open_platform(),
        http_route(OPEN),
        service("a", "web", 8080),
        policy.into(),
    ];
    let (_, all) = verdicts(&directory(&[("all.yaml", objects.concat())]), &[]);
    let route = of(&all, "HTTPRoute", "web");
    assert_eq!(route["verdict"], "refused", "{route:#}");
    // The finding of translation is the only one.
    let findings = route["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 1, "{route:#}");
    assert_eq!(findings[0]["reason"], "InvalidBackendTLSPolicy");
    let said = "the proxies do not connect to port 80 of Service a/web, because BackendTLSPolicy a/policy cannot be applied";
    let message = findings[0]["message"].as_str().unwrap();
    assert!(message.starts_with(said), "{message}");
}

#[test]
fn a_route_whose_parents_are_of_other_kinds_is_warned() {
    let objects = [
        open_platform(),
        http_route("{group: '', kind: Service, name: web}"),
        service("a", "web", 8080),
    ];
    let (code, all) = verdicts(&directory(&[("all.yaml", objects.concat())]), &[]);
    assert_eq!(code, Some(0));
    let route = of(&all, "HTTPRoute", "web");
    assert_eq!(route["verdict"], "warning", "{route:#}");
    assert_eq!(
        route["findings"][0]["message"],
        "has no parent that Vestibule serves"
    );
}

/// A manifest that was read from a cluster has a generation.
#[test]
fn a_status_is_about_the_generation_of_its_manifest() {
    let mut files = good();
    for (_, text) in &mut files {
        *text = text.replace(
            "metadata: {namespace: a, name: web}",
            "metadata: {namespace: a, name: web, generation: 7}",
        );
    }
    let (_, all) = verdicts(&directory(&files), &[]);
    let of_status = |kind: &str, name: &str, list: &str| {
        of(&all, kind, name)["status"].pointer(list).unwrap()["observedGeneration"].clone()
    };
    assert_eq!(of_status("TLSRoute", "web", "/parents/0/conditions/0"), 7);
    assert_eq!(of_status("Gateway", "edge", "/conditions/0"), 0);
}

/// All Gateways share the ports of the machine. A listener that is refused, because its hostname belongs to another
/// namespace, keeps no younger Gateway from its port.
#[test]
fn a_listener_that_is_refused_takes_no_port() {
    let gateway = |name: &str, created: &str, port: u16| {
        format!(
            "
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{namespace: platform, name: {name}, creationTimestamp: \"{created}\"}}
spec:
  gatewayClassName: vestibule
  allowedListeners: {{namespaces: {{from: All}}}}
  listeners: [{{name: own, protocol: HTTP, port: {port}}}]
"
        )
    };
    let set = |namespace: &str, created: &str, port: u16| {
        format!(
            "
---
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {{namespace: {namespace}, name: {namespace}, creationTimestamp: \"{created}\"}}
spec:
  parentRef: {{namespace: platform, name: older}}
  listeners: [{{name: web, protocol: HTTP, port: {port}, hostname: a.example}}]
"
        )
    };
    let class = PLATFORM.split("---").next().unwrap();
    let objects = [
        class.to_owned(),
        gateway("older", "2025-01-01T00:00:00Z", 9000),
        gateway("younger", "2026-01-01T00:00:00Z", 9002),
        set("a", "2026-02-01T00:00:00Z", 9001),
        set("b", "2026-03-01T00:00:00Z", 9002),
    ];
    let (_, all) = verdicts(&directory(&[("all.yaml", objects.concat())]), &[]);
    let refused = of(&all, "ListenerSet", "b");
    assert_eq!(refused["findings"][0]["reason"], "HostnameConflict");
    let younger = of(&all, "Gateway", "younger");
    assert_eq!(younger["verdict"], "accepted", "{younger:#}");
}

#[test]
fn usage_errors_exit_with_2() {
    let output = check(&["/nonexistent/directory"]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("cannot read /nonexistent/directory"),
        "{text}"
    );
    assert_eq!(check(&[]).status.code(), Some(2));
    let file = directory(&[("a.yaml", String::new())]);
    let path = file.path().join("a.yaml");
    assert_eq!(check(&[path.to_str().unwrap()]).status.code(), Some(2));
}

#[test]
fn an_empty_directory_is_noticed() {
    let empty = directory(&[]);
    let output = check(&[empty.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        text,
        "0 objects: 0 accepted, 0 with warnings, 0 refused\n\
         there is no Gateway, ListenerSet or route of Vestibule's here\n"
    );
}

#[test]
fn the_summary_counts_what_is_no_object() {
    let mut files = good();
    files.push(("half.yaml", "a: \"b".to_owned()));
    let summary = |files: &[(&str, String)]| {
        let directory = directory(files);
        let output = check(&[directory.path().to_str().unwrap()]);
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().last().unwrap().to_owned()
    };
    assert!(summary(&files).ends_with(", 1 file or document that cannot be read"));
    files.push(("text.yaml", "just: text".to_owned()));
    assert!(summary(&files).ends_with(", 2 files or documents that cannot be read"));
}
