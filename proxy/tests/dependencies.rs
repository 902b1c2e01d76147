//! What the data plane must never depend on: Kubernetes, and any TLS library but rustls on AWS-LC.

use std::collections::BTreeSet;
use std::process::Command;

/// Names of every package that `package` is built from.
fn tree(package: &str) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--prefix", "none", "--format", "{p}"])
        .args(["--edges", "normal,build", "--package", package])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo tree: {errors}");
    text.lines()
        .filter_map(|line| line.split_whitespace().next())
        .map(ToOwned::to_owned)
        .collect()
}

fn assert_none(package: &str, forbidden: impl Fn(&str) -> bool) {
    let tree = tree(package);
    assert!(tree.contains(package), "{tree:?}");
    let found: Vec<_> = tree.iter().filter(|name| forbidden(name)).collect();
    assert!(found.is_empty(), "{package} depends on {found:?}");
}

#[test]
fn proxy_stream_and_model_know_no_kubernetes() {
    for package in ["vestibule-proxy", "vestibule-stream", "vestibule-model"] {
        assert_none(package, |name| {
            name.starts_with("kube")
                || name.starts_with("k8s")
                || name.starts_with("gateway-api")
                || ["vestibule-crds", "vestibule-operator", "vestibule-webhook"].contains(&name)
        });
    }
}

#[test]
fn there_is_one_crypto_provider() {
    for package in ["vestibule-proxy", "vestibule-stream", "vestibule-model"] {
        assert_none(package, |name| {
            name == "ring" || name.starts_with("openssl") || name == "native-tls"
        });
    }
}
