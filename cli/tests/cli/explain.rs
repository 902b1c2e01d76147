//! `vestibule explain` and `vestibule status` on directories: what they print, as text and as JSON, and
//! their exit codes. Each case is a folder of `tests/explain/`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use serde_json::Value;

use crate::common::{Directory, PLATFORM};

fn vestibule(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vestibule"))
        .args(arguments)
        // A cluster that somebody works with is no business of a test.
        .env("KUBECONFIG", "/dev/null")
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/explain")
}

/// A directory with the files of a case and a certificate for `shop.example.com` until 2099.
fn directory(manifests: &Path) -> Directory {
    let directory = Directory::new();
    let text = fs::read_to_string(manifests).unwrap();
    let key = KeyPair::generate().unwrap();
    for (name, year) in [("@VALID", 2099), ("@EXPIRED", 2021)] {
        if !text.contains(name) {
            continue;
        }
        let names = vec!["shop.example.com".to_owned()];
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(year, 1, 1);
        let pem = params.self_signed(&key).unwrap().pem();
        let secret = serde_json::json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
            "metadata": {"namespace": "shop", "name": name.trim_start_matches('@').to_lowercase()},
            "stringData": {"tls.crt": pem, "tls.key": key.serialize_pem()},
        });
        let file = format!("{}.json", name.trim_start_matches('@'));
        fs::write(directory.path().join(file), secret.to_string()).unwrap();
    }
    fs::write(directory.path().join("manifests.yaml"), text).unwrap();
    directory
}

/// The command of a case: the first line of its manifests, after `# `.
fn command(manifests: &Path) -> Vec<String> {
    let text = fs::read_to_string(manifests).unwrap();
    let first = text.lines().next().unwrap_or_default();
    let command = first
        .strip_prefix("# vestibule ")
        .expect("a command in the first line");
    command.split(' ').map(str::to_owned).collect()
}

/// Compares with the file, or writes it where `VESTIBULE_BLESS` is set.
fn matches(path: &Path, seen: &str, wrong: &mut Vec<String>) {
    if std::env::var_os("VESTIBULE_BLESS").is_some() {
        fs::write(path, seen).unwrap();
        return;
    }
    let wanted = fs::read_to_string(path).unwrap_or_default();
    if wanted != seen {
        wrong.push(format!("{}: came out as\n{seen}", path.display()));
    }
}

#[test]
fn every_case_prints_what_is_written() {
    let mut wrong = Vec::new();
    let mut all: Vec<PathBuf> = fs::read_dir(cases())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        .collect();
    all.sort();
    assert!(!all.is_empty());
    for manifests in all {
        let directory = directory(&manifests);
        let path = directory.path().to_str().unwrap().to_owned();
        let command = command(&manifests);
        let mut arguments: Vec<&str> = command.iter().map(String::as_str).collect();
        arguments.push(&path);
        let plain = vestibule(&arguments);
        let code = plain.status.code().unwrap();
        let seen = format!("{}exit code {code}\n", text(&plain));
        matches(&manifests.with_extension("txt"), &seen, &mut wrong);
        arguments.extend(["--output", "json"]);
        let json = vestibule(&arguments);
        assert_eq!(json.status.code(), Some(code), "{}", manifests.display());
        let value: Value = serde_json::from_slice(&json.stdout).unwrap();
        let seen = format!("{}\n", serde_json::to_string_pretty(&value).unwrap());
        matches(&manifests.with_extension("json"), &seen, &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Every key of the JSON that cases print is in the documentation.
#[test]
fn every_field_is_documented() {
    fn keys(value: &Value, into: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => fields.iter().for_each(|(key, value)| {
                into.insert(key.clone());
                keys(value, into);
            }),
            Value::Array(items) => items.iter().for_each(|item| keys(item, into)),
            _ => {}
        }
    }
    let mut all = BTreeSet::new();
    for entry in fs::read_dir(cases()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "json") {
            let text = fs::read_to_string(path).unwrap();
            keys(&serde_json::from_str(&text).unwrap(), &mut all);
        }
    }
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/explain.md");
    let docs = fs::read_to_string(docs).unwrap();
    let absent: Vec<&String> = all
        .iter()
        .filter(|key| !docs.contains(&format!("`{key}`")))
        .collect();
    assert!(absent.is_empty(), "not in docs/explain.md: {absent:?}");
}

#[test]
fn arguments_that_cannot_be_asked_or_read_exit_with_code_2() {
    for (arguments, said) in [
        (vec!["explain", "192.0.2.1", "."], "is an IP address"),
        (vec!["explain", "a..b", "."], "empty label"),
        (vec!["explain", "", "."], "name a hostname"),
        (vec!["explain", "*", "."], "it stands for every name"),
        (
            vec!["explain", "https://a.example/x", "."],
            "name the host alone",
        ),
        (vec!["explain", "a.example:443", "."], "name the host alone"),
        (
            vec!["explain", "a.example", "/nowhere/at/all"],
            "/nowhere/at/all",
        ),
        (vec!["status", "/nowhere/at/all"], "/nowhere/at/all"),
        (
            vec!["explain", "a.example", ".", "--context", "x"],
            "cannot be used with",
        ),
        (vec!["explain", "a.example", "--context", "x"], "kubeconfig"),
        (
            vec!["status", "--kubeconfig", "/nowhere/at/all"],
            "kubeconfig",
        ),
    ] {
        let output = vestibule(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let text = text(&output);
        assert!(text.contains(said), "{arguments:?}: {text}");
    }
    let directory = Directory::new();
    fs::write(directory.path().join("half.yaml"), "kind: \"Gatew").unwrap();
    let path = directory.path().to_str().unwrap();
    let output = vestibule(&["explain", "a.example", path]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("half.yaml"), "{}", text(&output));
}

/// Nobody writes a status for a route without a parent, so the overview takes what `check` says.
#[test]
fn the_overview_shows_what_is_wrong_with_a_route_without_a_parent() {
    let directory = Directory::new();
    let route = serde_json::json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "TLSRoute",
        "metadata": {"namespace": "a", "name": "web"},
        "spec": {
            "hostnames": ["192.0.2.1"],
            "rules": [{"backendRefs": [{"name": "web", "port": 443}]}],
        },
    });
    fs::write(directory.path().join("route.json"), route.to_string()).unwrap();
    let output = vestibule(&["status", directory.path().to_str().unwrap()]);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for said in [
        "WRONG    TLSRoute a/web  ",
        "InvalidHostname at spec.hostnames[0]: ",
    ] {
        assert!(text.contains(said), "{text}");
    }
}

#[test]
fn as_a_plugin_it_says_how_it_is_called() {
    let directory = Directory::new();
    let plugin = directory.path().join("kubectl-vestibule");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_vestibule"), &plugin).unwrap();
    let output = Command::new(plugin)
        .args(["explain", "--help"])
        .output()
        .unwrap();
    let text = text(&output);
    assert!(text.contains("Usage: kubectl vestibule explain"), "{text}");
}

/// The end of the platform, behind [`PLATFORM`]: two more listeners, which take routes of all namespaces, and a name of namespace `victim`
/// that is served on port 8080.
const SERVED: &str = r#"
    - {name: http, port: 8080, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}
    - {name: http2, port: 8081, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}
---
apiVersion: v1
kind: Service
metadata: {namespace: victim, name: web}
spec: {ports: [{name: web, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: victim, name: web, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: web, port: 9001}]
endpoints: [{addresses: [127.0.0.1], conditions: {ready: true}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {namespace: victim, name: web, creationTimestamp: "2026-01-01T00:00:00Z"}
spec:
  parentRefs: [{name: edge, namespace: platform, sectionName: http}]
  hostnames: [shop.victim.example]
  rules: [{backendRefs: [{name: web, port: 80}]}]
"#;

/// Returns the exit code of `explain` for a name of [`PLATFORM`] and these manifests, and its report as JSON and as text.
fn explained(name: &str, manifests: &str) -> (Option<i32>, Value, String) {
    let directory = Directory::new();
    let manifests = format!("{PLATFORM}{manifests}");
    fs::write(directory.path().join("manifests.yaml"), manifests).unwrap();
    let path = directory.path().to_str().unwrap();
    let json = vestibule(&["explain", name, path, "--output", "json"]);
    let report = serde_json::from_slice(&json.stdout).unwrap_or_else(|_| panic!("{json:?}"));
    let plain = vestibule(&["explain", name, path]);
    assert_eq!(json.status.code(), plain.status.code());
    (plain.status.code(), report, text(&plain))
}

/// A ListenerSet `set` of namespace `other` with one listener.
fn other_set(listener: &str) -> String {
    format!(
        "
---
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {{namespace: other, name: set, creationTimestamp: \"2026-02-01T00:00:00Z\"}}
spec:
  parentRef: {{name: edge, namespace: platform}}
  listeners: [{{name: one, {listener}}}]
"
    )
}

/// A route of namespace `other` to a Service that does not exist.
fn other_route(kind: &str, parent: &str, hostnames: &str) -> String {
    format!(
        "
---
apiVersion: gateway.networking.k8s.io/v1
kind: {kind}
metadata: {{namespace: other, name: route, creationTimestamp: \"2026-02-01T00:00:00Z\"}}
spec:
  parentRefs: [{parent}]
{hostnames}
  rules: [{{backendRefs: [{{name: nothing, port: 80}}]}}]
"
    )
}

#[test]
fn objects_of_others_make_no_hostname_look_broken() {
    const GATEWAY: &str = "{name: edge, namespace: platform}";
    const SET: &str = "{group: gateway.networking.k8s.io, kind: ListenerSet, name: set}";
    let named = "  hostnames: [shop.victim.example, own.other.example]";
    for (case, objects) in [
        (
            "a route for every name",
            other_route("HTTPRoute", GATEWAY, ""),
        ),
        (
            "a route with the name",
            other_route("HTTPRoute", GATEWAY, named),
        ),
        (
            "a TCP port",
            other_set("port: 9100, protocol: TCP") + &other_route("TCPRoute", SET, ""),
        ),
        (
            "a UDP port",
            other_set("port: 9100, protocol: UDP") + &other_route("UDPRoute", SET, ""),
        ),
        (
            "a listener for every name",
            other_set("port: 9100, protocol: HTTP") + &other_route("HTTPRoute", SET, ""),
        ),
        (
            "a listener around the name",
            other_set("port: 9100, protocol: HTTP, hostname: '*.victim.example'")
                + &other_route("HTTPRoute", SET, ""),
        ),
        (
            "a listener with the name",
            other_set("port: 9100, protocol: HTTP, hostname: shop.victim.example")
                + &other_route("HTTPRoute", SET, ""),
        ),
    ] {
        let manifests = format!("{SERVED}{objects}");
        let (code, report, text) = explained("shop.victim.example", &manifests);
        assert_eq!(
            (code, &report["state"]),
            (Some(0), &"live".into()),
            "{case}: {text}"
        );
        assert!(
            text.starts_with("shop.victim.example is live\n"),
            "{case}: {text}"
        );
        // The place of the others is listed all the same.
        let places = report["places"].as_array().unwrap();
        assert!(
            places.iter().any(|place| place["state"] == "down"),
            "{case}: {text}"
        );
    }
}

/// A ListenerSet of namespace `team` takes routes of all namespaces on these listeners for `*.team.example`. A route of
/// namespace `team-app` asks for `app.team.example` there. Its Service is in `namespace`.
fn taken(listeners: &[(&str, u16)], namespace: &str) -> String {
    let listener = |(name, port): &(&str, u16)| {
        format!(
            "    - {{name: {name}, port: {port}, protocol: HTTP, hostname: '*.team.example', \
             allowedRoutes: {{namespaces: {{from: All}}}}}}\n"
        )
    };
    let listeners = listeners.iter().map(listener).collect::<Vec<_>>().concat();
    format!(
        "---
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {{namespace: team, name: team}}
spec:
  parentRef: {{name: edge, namespace: platform}}
  listeners:
{listeners}---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{namespace: team-app, name: app}}
spec:
  parentRefs: [{{group: gateway.networking.k8s.io, kind: ListenerSet, name: team, namespace: team}}]
  hostnames: [app.team.example]
  rules: [{{backendRefs: [{{name: app, port: 80}}]}}]
---
apiVersion: v1
kind: Service
metadata: {{namespace: {namespace}, name: app}}
spec: {{ports: [{{port: 80, name: http}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{namespace: {namespace}, name: app-1, labels: {{kubernetes.io/service-name: app}}}}
addressType: IPv4
ports: [{{name: http, port: 8080}}]
endpoints: [{{addresses: [10.0.0.1]}}]
"
    )
}

/// The owner of the name has let the route in, so what it leads to counts as the owner's.
#[test]
fn a_route_that_the_owners_listener_takes_counts() {
    let manifests = taken(&[("wild", 80)], "team-app");
    let (code, report, text) = explained("app.team.example", &manifests);
    assert_eq!(
        (code, &report["state"]),
        (Some(0), &"live".into()),
        "{text}"
    );
    assert!(text.starts_with("app.team.example is live\n"), "{text}");

    // On the other port, a route of the owner answers beside it. The name is down on the first port all the same.
    let own = "---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {namespace: team, name: own}
spec:
  parentRefs: [{group: gateway.networking.k8s.io, kind: ListenerSet, name: team, sectionName: wild8}]
  hostnames: [app.team.example]
  rules: [{backendRefs: [{name: app, port: 80}]}]
";
    let manifests = taken(&[("wild", 80), ("wild8", 8080)], "team") + own;
    let (code, report, text) = explained("app.team.example", &manifests);
    assert_eq!(
        (code, &report["state"]),
        (Some(1), &"down".into()),
        "{text}"
    );
    let places = report["places"].as_array().unwrap();
    assert!(
        places.iter().any(|place| place["state"] == "live"),
        "{text}"
    );
}

/// A broken place of the owner makes the name not live, whatever other places answer.
#[test]
fn a_place_of_the_owner_counts_beside_those_where_the_name_is_live() {
    let more = "
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {namespace: victim, name: more, creationTimestamp: \"2026-02-01T00:00:00Z\"}
spec:
  parentRefs: [{name: edge, namespace: platform, sectionName: http2}]
  hostnames: [shop.victim.example]
  rules: [{backendRefs: [{name: nothing, port: 80}]}]
";
    let (code, report, text) = explained("shop.victim.example", &format!("{SERVED}{more}"));
    assert_eq!(
        (code, &report["state"]),
        (Some(1), &"down".into()),
        "{text}"
    );
}

/// Without anybody who names the name, a route for every name answers, and a broken port beside it changes nothing.
#[test]
fn a_name_that_nobody_names_is_live_if_a_route_for_every_name_answers() {
    let everything = "
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {namespace: platform, name: everything}
spec:
  parentRefs: [{name: edge, sectionName: http}]
  rules: [{filters: [{type: RequestRedirect, requestRedirect: {scheme: https}}]}]
";
    let set = "{group: gateway.networking.k8s.io, kind: ListenerSet, name: set}";
    let port = other_set("port: 9100, protocol: TCP") + &other_route("TCPRoute", set, "");
    let manifests = format!("{SERVED}{everything}{port}");
    let (code, _, text) = explained("anything.example.net", &manifests);
    assert_eq!(code, Some(0), "{text}");
}

/// The manifests in which the victim's name is served, with its rule instead of the one that it has.
fn with_rule(rule: &str) -> String {
    let old = "[{backendRefs: [{name: web, port: 80}]}]";
    assert!(SERVED.contains(old));
    SERVED.replace(old, &format!("[{rule}]"))
}

/// Requests of many clients share the connections to a backend, so a header on them names no client.
#[test]
fn the_header_of_a_backend_of_requests_names_no_client() {
    let mail = "
---
apiVersion: v1
kind: Service
metadata: {namespace: victim, name: mail, annotations: {vestibule.dev/send-proxy-protocol: v1}}
spec: {ports: [{port: 80}]}
";
    let manifests = with_rule("{backendRefs: [{name: mail, port: 80}]}") + mail;
    let (_, _, text) = explained("shop.victim.example", &manifests);
    let said = "(0 ready, gets a PROXY header of v1 that names no client)";
    assert!(text.contains(said), "{text}");
}

#[test]
fn a_filter_that_nobody_knows_answers_no_request() {
    let filter = "{type: ExtensionRef, extensionRef: {group: x.example, kind: Auth, name: z}}";
    let redirect = "{type: RequestRedirect, requestRedirect: {scheme: https}}";
    for (rule, code) in [
        (
            format!("{{filters: [{filter}], backendRefs: [{{name: web, port: 80}}]}}"),
            1,
        ),
        (
            format!("{{backendRefs: [{{name: web, port: 80, filters: [{filter}]}}]}}"),
            1,
        ),
        (format!("{{filters: [{filter}, {redirect}]}}"), 1),
        // The redirect answers before the filter.
        (format!("{{filters: [{redirect}, {filter}]}}"), 0),
    ] {
        let (exit, report, text) = explained("shop.victim.example", &with_rule(&rule));
        assert_eq!(exit, Some(code), "{rule}: {text}");
        if code == 1 {
            let place = &report["places"][0];
            let last = place["chain"].as_array().unwrap().last().unwrap();
            assert_eq!(
                (&last["check"], &last["reason"]),
                (&"backends".into(), &"InvalidKind".into()),
                "{text}"
            );
        }
    }
}

#[test]
fn an_authorization_server_that_answers_nobody_lets_no_request_pass() {
    let by = |protocol: &str, name: &str| {
        format!(
            "{{type: ExternalAuth, externalAuth: {{protocol: {protocol}, backendRef: {{name: {name}, port: 80}}}}}}"
        )
    };
    let redirect = "{type: RequestRedirect, requestRedirect: {scheme: https}}";
    let idle = "
---
apiVersion: v1
kind: Service
metadata: {namespace: victim, name: idle}
spec: {ports: [{port: 80}]}
";
    let to_web = "backendRefs: [{name: web, port: 80}]";
    let (works, idles, absent) = (by("GRPC", "web"), by("HTTP", "idle"), by("HTTP", "gone"));
    for (rule, reason) in [
        (format!("{{filters: [{works}], {to_web}}}"), None),
        (format!("{{filters: [{works}, {redirect}]}}"), None),
        (
            format!("{{filters: [{idles}], {to_web}}}"),
            Some("NoEndpoints"),
        ),
        (
            format!("{{filters: [{absent}], {to_web}}}"),
            Some("BackendNotFound"),
        ),
        (
            format!("{{filters: [{idles}, {redirect}]}}"),
            Some("NoEndpoints"),
        ),
        // The redirect answers before the filter.
        (format!("{{filters: [{redirect}, {idles}]}}"), None),
    ] {
        let manifests = with_rule(&rule) + idle;
        let (exit, report, text) = explained("shop.victim.example", &manifests);
        assert_eq!(exit, Some(i32::from(reason.is_some())), "{rule}: {text}");
        if let Some(reason) = reason {
            let place = &report["places"][0];
            let last = place["chain"].as_array().unwrap().last().unwrap();
            assert_eq!(
                (&last["check"], &last["reason"]),
                (&"backends".into(), &reason.into()),
                "{text}"
            );
            assert!(text.contains("no request can be authorized"), "{text}");
        } else if rule.contains("GRPC") {
            assert!(text.contains("authorized by victim/web (gRPC)"), "{text}");
        }
    }
}

#[test]
fn a_backend_whose_policy_cannot_be_applied_answers_no_request() {
    let missing =
        "hostname: web.internal, caCertificateRefs: [{group: '', kind: ConfigMap, name: missing}]";
    for (validation, code) in [
        (missing, 1),
        ("hostname: web.internal, wellKnownCACertificates: Junk", 1),
        ("wellKnownCACertificates: System", 1),
        ("hostname: web.internal, wellKnownCACertificates: System", 0),
    ] {
        let policy = format!(
            "
---
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {{namespace: victim, name: policy}}
spec:
  targetRefs: [{{group: '', kind: Service, name: web}}]
  validation: {{{validation}}}
"
        );
        let (exit, report, text) = explained("shop.victim.example", &format!("{SERVED}{policy}"));
        assert_eq!(exit, Some(code), "{validation}: {text}");
        let said = "BackendTLSPolicy victim/policy cannot be applied: ";
        assert_eq!(text.contains(said), code == 1, "{validation}: {text}");
        let last = report["places"][0]["chain"]
            .as_array()
            .unwrap()
            .last()
            .unwrap();
        assert_eq!(last["check"], "backends", "{text}");
    }
}

/// `vestibule run` serves such a directory with certificates of its local CA.
#[test]
fn a_certificate_that_run_issues_is_no_problem() {
    let own = "
---
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {namespace: victim, name: own}
spec:
  parentRef: {name: edge, namespace: platform}
  listeners: [{name: https, port: 8443, protocol: HTTPS, hostname: own.victim.example, tls: {certificateRefs: [{name: nothing}]}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {namespace: victim, name: own}
spec:
  parentRefs: [{group: gateway.networking.k8s.io, kind: ListenerSet, name: own}]
  rules: [{backendRefs: [{name: web, port: 80}]}]
";
    let (code, report, text) = explained("own.victim.example", &format!("{SERVED}{own}"));
    assert_eq!(code, Some(0), "{text}");
    let mut places = report["places"].as_array().unwrap().iter();
    let place = places.find(|place| place["port"] == 8443).unwrap();
    assert_eq!(place["certificate"]["secret"]["name"], "nothing", "{text}");
}
