//! The CRDs in `generated/` are those that the types make. `VESTIBULE_REGENERATE=1` writes them anew.

use std::path::Path;

use serde_json::{Value, json};
use vestibule_crds::vestibule::crds;
use vestibule_crds::yaml;

const HEADER: &str = "# Generated from crds/src/vestibule; do not edit. VESTIBULE_REGENERATE=1 cargo test -p vestibule-crds --test generated\n";

#[test]
fn committed_crds_are_those_of_the_types() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("generated");
    let regenerate = std::env::var_os("VESTIBULE_REGENERATE").is_some();
    let mut expected = Vec::new();
    for (file, crd) in crds().expect("CRDs serialize") {
        let text = format!(
            "{HEADER}{}",
            serde_saphyr::to_string(&crd).expect("CRDs are YAML")
        );
        let path = directory.join(&file);
        if regenerate {
            std::fs::write(&path, &text).expect("written");
        }
        let committed = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(
            committed, text,
            "{file} is not what the types make: regenerate it"
        );
        // What is in the file is what was generated, to whoever reads it as YAML.
        let read: Vec<Value> = yaml::documents(&committed)
            .expect("YAML")
            .into_iter()
            .map(|(_, document)| document)
            .collect();
        assert_eq!(read, [crd]);
        expected.push(file);
    }
    let mut present: Vec<String> = std::fs::read_dir(&directory)
        .expect("the directory")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into()
        })
        .collect();
    present.sort();
    assert_eq!(present, expected);
}

#[test]
fn schemas_are_structural_and_bounded() {
    for (file, crd) in crds().expect("CRDs serialize") {
        for version in crd["spec"]["versions"].as_array().expect("versions") {
            let schema = &version["schema"]["openAPIV3Schema"];
            assert_eq!(schema["type"], json!("object"), "{file}");
            if !file.starts_with("gatewayparameters") {
                continue;
            }
            let service = &schema["properties"]["spec"]["properties"]["service"];
            assert_eq!(
                service["properties"]["type"]["enum"],
                json!(["LoadBalancer", "ClusterIP", "NodePort"])
            );
            assert_eq!(service["properties"]["ipFamilies"]["maxItems"], json!(2));
            let limits = &schema["properties"]["spec"]["properties"]["limits"]["properties"];
            assert_eq!(
                limits["tunnelIdleTimeout"]["pattern"],
                json!("^([0-9]{1,5}(h|m|s|ms)){1,4}$")
            );
            assert_eq!(limits["maxRequestBodyBytes"]["minimum"], json!(0.0));
            let http = &schema["properties"]["spec"]["properties"]["http"]["properties"];
            assert_eq!(
                http["escapedSlashes"]["enum"],
                json!(["Refuse", "Unescape", "Keep"])
            );
            assert_eq!(
                http["underscores"]["enum"],
                json!(["Drop", "Refuse", "Allow"])
            );
            // A word that is not of the enumeration is refused, an absent one is not.
            assert_eq!(service.get("required"), None);
        }
    }
}

/// The schema of the `spec` of a kind of ours.
fn spec_of(kind: &str) -> Value {
    let crds = crds().expect("CRDs serialize");
    let crd = crds
        .iter()
        .find(|(_, crd)| crd["spec"]["names"]["kind"] == kind);
    let (_, crd) = crd.expect("a CRD");
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clone()
}

/// An API server refuses a claim that is to both a hostname and a port, or to neither.
#[test]
fn a_claim_is_to_a_hostname_or_to_a_port() {
    let spec = spec_of("HostnameClaim");
    assert_eq!(spec["required"], json!(["gateway", "holder", "since"]));
    let rules = spec["x-kubernetes-validations"].as_array().expect("rules");
    let rules: Vec<&Value> = rules.iter().map(|rule| &rule["rule"]).collect();
    let expected = [
        "has(self.hostname) != has(self.port)",
        "has(self.port) == has(self.protocol)",
        "has(self.hostname) || !has(self.forGuests) || !self.forGuests",
    ];
    assert_eq!(rules, expected);
    // With null a field would be there for these rules, and be absent for whoever reads the object.
    for field in ["hostname", "port", "protocol"] {
        let schema = &spec["properties"][field];
        assert!(schema["type"].is_string(), "{schema}");
        assert_eq!(schema.get("nullable"), None, "{field}");
    }
    let protocols = json!(["HTTP", "TLS", "TCP", "UDP"]);
    assert_eq!(spec["properties"]["protocol"]["enum"], protocols);
}

#[test]
fn a_grant_gives_or_shares_hostnames() {
    let spec = spec_of("HostnameGrant");
    assert_eq!(spec["required"], json!(["namespaces"]));
    let rules = spec["x-kubernetes-validations"].as_array().expect("rules");
    assert_eq!(rules.len(), 1);
    let certificates = &spec["properties"]["certificates"]["properties"];
    for (field, most) in [("ipAddresses", 64), ("emailAddresses", 64)] {
        assert_eq!(certificates[field]["maxItems"], most, "{field}");
        assert!(
            certificates[field]["items"]["maxLength"].is_number(),
            "{field}"
        );
    }
    let limits = &spec["properties"]["limits"]["properties"];
    for (field, least, most) in [
        ("connectionShares", 1.0, 100.0),
        ("connections", 1.0, 100_000_000.0),
        ("ports", 0.0, 100_000.0),
    ] {
        assert_eq!(limits[field]["minimum"], json!(least), "{field}");
        assert_eq!(limits[field]["maximum"], json!(most), "{field}");
    }
    // An asterisk that stands for itself is escaped.
    let asterisk = |field: &str| {
        let pattern = &spec["properties"][field]["items"]["pattern"];
        pattern.as_str().expect("a pattern").contains(r"\*")
    };
    assert!(asterisk("hostnames") && !asterisk("sharedHostnames"));
    // What the schema says of a path is what is read of it.
    let shared = &spec["properties"]["sharedPaths"];
    assert_eq!(shared["x-kubernetes-list-map-keys"], json!(["hostname"]));
    let entry = &shared["items"];
    assert_eq!(entry["required"], json!(["hostname", "paths"]));
    let paths = &entry["properties"]["paths"];
    assert_eq!(paths["minItems"], json!(1));
    let rules = paths["items"]["x-kubernetes-validations"].as_array();
    assert_eq!(rules.expect("rules").len(), 2);
}
