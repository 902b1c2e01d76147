//! Grants and claims beside the Gateway: shown to those who may read them, and to nobody else.

use std::path::Path;

use serde_json::{Value, json};
use vestibule_model::claim::ClaimKey;
use vestibule_model::hostname::HostPattern;
use vestibule_model::key::ObjectName;

use super::{Kubectl, NAME, step};

const PLATFORM: &str = "explain-platform";
const SINCE: &str = "2026-01-02T03:04:05Z";

fn grant(tenant: &str, hostnames: &[&str]) -> Value {
    json!({
        "apiVersion": "vestibule.dev/v1alpha1", "kind": "HostnameGrant",
        "metadata": {"namespace": PLATFORM, "name": tenant},
        "spec": {"namespaces": {"names": [tenant]}, "hostnames": hostnames},
    })
}

/// Namespace a holds the name and was granted it; b was granted something else.
fn prepare(kubectl: &Kubectl) {
    let gateway = [
        "get",
        "gateway",
        "edge",
        "-n",
        PLATFORM,
        "-o",
        "jsonpath={.metadata.uid}",
    ];
    let uid = kubectl.must(&gateway, "");
    let names = HostPattern::parse(NAME).unwrap();
    let key = ClaimKey::names(&ObjectName::new(PLATFORM, "edge"), &names);
    let claim = json!({
        "apiVersion": "vestibule.dev/v1alpha1", "kind": "HostnameClaim",
        "metadata": {"namespace": PLATFORM, "name": key.object_name().name},
        "spec": {
            "gateway": {"name": "edge", "uid": uid}, "hostname": NAME,
            "holder": "explain-a", "since": SINCE,
        },
    });
    kubectl.apply(&[
        grant("explain-a", &[NAME]),
        grant("explain-b", &["free.explain.example"]),
        claim,
    ]);
}

/// Whether the report of a place says which grant and whose claim it is.
fn tells(place: &Value) -> bool {
    let granted = place["grants"][0]["name"] == "explain-a";
    let holders = place["holders"].as_array().unwrap();
    let held = holders.iter().any(|holder| {
        holder["namespace"] == "explain-a" && holder["since"] == SINCE && holder["inUse"] == true
    });
    granted && held
}

pub(super) fn grants_and_claims_are_for_those_who_may_read_them(
    kubectl: &Kubectl,
    admin: &Path,
    tenant: &Path,
) {
    prepare(kubectl);
    let (code, report) = kubectl.json(admin, &["explain", NAME]);
    assert_eq!(code, Some(0), "{report:#}");
    let place = &report["places"][0];
    assert!(tells(place), "{place:#}");
    assert_eq!(step(place, "grant")["outcome"], "ok");
    assert_eq!(step(place, "claim")["outcome"], "ok");
    // It is in conflict as well, but the report says first that it was never granted.
    let other = &place["others"][0];
    assert_eq!(other["listener"]["object"]["namespace"], "explain-b");
    assert_eq!(other["reason"], "HostnameNotOwned");

    let (_, report) = kubectl.json(tenant, &["explain", NAME]);
    let text = kubectl.says(tenant, &["explain", NAME]).out;
    for secret in ["explain-a", SINCE] {
        assert!(!report.to_string().contains(secret), "{report:#}");
        assert!(!text.contains(secret), "{text}");
    }
    let unread = report["unread"].to_string();
    for kind in ["HostnameGrant", "HostnameClaim"] {
        assert!(
            unread.contains(&format!("{kind}: you may not list them")),
            "{unread}"
        );
    }

    // Rights in the Gateway's namespace alone are enough: it is asked for by itself.
    let rights = "hostnamegrants.vestibule.dev,hostnameclaims.vestibule.dev";
    let role = [
        "create",
        "role",
        "names",
        "-n",
        PLATFORM,
        "--verb=list",
        "--resource",
        rights,
    ];
    kubectl.must(&role, "");
    let bind = [
        "create",
        "rolebinding",
        "names",
        "-n",
        PLATFORM,
        "--role=names",
    ];
    let whom = ["--serviceaccount=explain-b:tenant"];
    kubectl.must(&[&bind[..], &whom[..]].concat(), "");
    let (code, report) = kubectl.json(tenant, &["explain", NAME]);
    assert_eq!(code, Some(1));
    let place = &report["places"][0];
    assert_eq!(place["listener"]["object"]["namespace"], "explain-b");
    let last = place["chain"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&last["check"], &last["reason"]),
        (&json!("grant"), &json!("HostnameNotOwned"))
    );
    assert!(
        last["message"].to_string().contains("free.explain.example"),
        "{last}"
    );
    assert_eq!(place["holders"][0]["namespace"], "explain-a", "{place:#}");

    // Whether a grant by label is for the namespace cannot be told by who may not read its labels: then it is
    // not said that there is none.
    let mut by_label = grant("by-label", &[NAME]);
    by_label["spec"]["namespaces"] = json!({"selector": {"matchLabels": {"any": "label"}}});
    kubectl.apply(&[by_label]);
    let (_, report) = kubectl.json(tenant, &["explain", NAME]);
    let place = &report["places"][0];
    let chain = place["chain"].as_array().unwrap();
    assert!(
        chain.iter().all(|step| step["check"] != "grant"),
        "{place:#}"
    );

    let names = ["explain-a", "explain-b", "by-label"];
    kubectl.must(
        &[&["delete", "hostnamegrant", "-n", PLATFORM][..], &names].concat(),
        "",
    );
    let claims = ["delete", "hostnameclaim", "-n", PLATFORM, "--all"];
    kubectl.must(&claims, "");
}
