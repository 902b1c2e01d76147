//! `vestibule explain` and `vestibule status` on directories: what they print, as text and as JSON, and
//! their exit codes. Each case is a folder of `tests/explain/`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use serde_json::Value;

use crate::common::Directory;

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
fn what_cannot_be_asked_or_read_is_exit_code_2() {
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
