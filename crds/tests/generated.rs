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
            // A word that is not of the enumeration is refused, an absent one is not.
            assert_eq!(service.get("required"), None);
        }
    }
}
