//! `HostnameGrant`: what of it is read, and that what is not read gives nothing.

use std::sync::Arc;

use serde_json::{Value, json};
use vestibule_crds::decode;
use vestibule_crds::status::{Observed, grant as render};
use vestibule_model::condition::{Condition, ConditionType, GrantStatus, Reason};
use vestibule_model::finding::Finding;
use vestibule_model::hostname::{HostPattern, Hostname};
use vestibule_model::hostname_grant::{ConnectionLimits, GrantLimits, HostnameGrant};
use vestibule_model::key::ObjectName;
use vestibule_model::object::Object;
use vestibule_model::path::PathPrefix;
use vestibule_model::protocol::Protocol;
use vestibule_model::selector::Requirement;

fn read(spec: &Value) -> HostnameGrant {
    let object = json!({
        "apiVersion": "vestibule.dev/v1alpha1",
        "kind": "HostnameGrant",
        "metadata": {"name": "team", "namespace": "gateways", "generation": 2},
        "spec": spec,
        "status": {"conditions": "whatever is there"},
    });
    let decoded = decode(object).into_object();
    // A status is compared with this, to tell whether it is about this version.
    let meta = decoded.as_ref().and_then(|(object, _)| object.meta());
    assert_eq!(meta.map(|meta| meta.generation), Some(2));
    match decoded {
        Some((Object::HostnameGrant(grant), beside)) if beside.is_empty() => {
            Arc::unwrap_or_clone(grant)
        }
        other => panic!("{other:?}"),
    }
}

fn pattern(text: &str) -> HostPattern {
    HostPattern::parse(text).expect("a pattern")
}

#[test]
fn little_is_needed() {
    let grant =
        read(&json!({"namespaces": {"names": ["shop"]}, "hostnames": ["Shop.Example.com."]}));
    assert_eq!(grant.name, ObjectName::new("gateways", "team"));
    assert_eq!(grant.hostnames, [pattern("shop.example.com")]);
    assert!(grant.selects("shop", None) && !grant.selects("blog", None));
    assert!(grant.is_for("any"));
    assert_eq!(grant.issuers, None);
    assert_eq!(grant.limits, GrantLimits::default());
    assert_eq!(grant.findings, []);
}

#[test]
fn everything_is_read() {
    let grant = read(&json!({
        "gateways": ["shared"],
        "namespaces": {
            "names": ["shop"],
            "selector": {
                "matchLabels": {"team": "red"},
                "matchExpressions": [{"key": "stage", "operator": "NotIn", "values": ["test"]}],
            },
        },
        "hostnames": ["*", "*.shop.example.com"],
        "ports": [443, 8443],
        "protocols": ["TLS", "HTTPS"],
        "issuers": [
            {"group": "vestibule.dev", "kind": "ClusterACMEIssuer", "name": "ca"},
            {"group": "cert-manager.io", "kind": "Issuer"},
        ],
        "limits": {"listeners": 3, "certificates": 0},
    }));
    assert_eq!(grant.findings, []);
    assert_eq!(
        grant.hostnames,
        [HostPattern::Any, pattern("*.shop.example.com")]
    );
    assert!(grant.is_for("shared") && !grant.is_for("other"));
    let ports: Vec<u16> = grant.ports.iter().map(|port| port.get()).collect();
    assert_eq!(ports, [443, 8443]);
    assert!(grant.protocols.contains(&Protocol::Tls) && grant.protocols.len() == 2);
    let issuers = grant.issuers.as_deref().expect("issuers");
    assert_eq!(issuers[0].name.as_deref(), Some("ca"));
    assert_eq!((&*issuers[1].kind, &issuers[1].name), ("Issuer", &None));
    let limits = (grant.limits.listeners, grant.limits.certificates);
    assert_eq!(limits, (Some(3), Some(0)));
    let labels = |pairs: &[(&str, &str)]| {
        let owned = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
        pairs.iter().map(owned).collect()
    };
    assert!(grant.selects("shop", None));
    assert!(grant.selects("x", Some(&labels(&[("team", "red")]))));
    assert!(!grant.selects("x", Some(&labels(&[("team", "red"), ("stage", "test")]))));
    assert!(!grant.selects("x", Some(&labels(&[("team", "blue")]))));
}

#[test]
fn an_empty_selector_is_every_namespace_and_no_issuers_are_none() {
    let grant = read(&json!({"namespaces": {"selector": {}}, "hostnames": ["*"], "issuers": []}));
    assert!(grant.selects("anybody", None));
    assert_eq!(grant.issuers.as_deref(), Some(&[][..]));
}

#[test]
fn grant_with_an_unreadable_restricting_field_gives_nothing() {
    let long = vec!["a"; 20];
    let cases = [
        ("gateways[0]", json!({"gateways": ["No Name"]})),
        ("gateways", json!({"gateways": long})),
        ("namespaces", json!({"namespaces": {}})),
        (
            "namespaces.names[1]",
            json!({"namespaces": {"names": ["a", "/"]}}),
        ),
        (
            "namespaces.selector.matchExpressions[0]",
            json!({"namespaces": {"selector": {"matchExpressions": [{"key": "a", "operator": "Like", "values": ["b"]}]}}}),
        ),
        (
            "namespaces.selector.matchExpressions[0]",
            json!({"namespaces": {"selector": {"matchExpressions": [{"key": "a b", "operator": "NotIn", "values": ["c"]}]}}}),
        ),
        (
            "namespaces.selector.matchLabels",
            json!({"namespaces": {"selector": {"matchLabels": {"team": "red blue"}}}}),
        ),
        (
            "namespaces.name",
            json!({"namespaces": {"name": "a", "selector": {}}}),
        ),
        ("ports[0]", json!({"ports": [65536]})),
        ("protocols[0]", json!({"protocols": ["tls"]})),
        ("limits.listeners", json!({"limits": {"listeners": -1}})),
        (
            "limits.certificates",
            json!({"limits": {"certificates": 4_294_967_296_i64}}),
        ),
        (
            "limits.connectionShares",
            json!({"limits": {"connectionShares": 0}}),
        ),
        (
            "limits.connectionShares",
            json!({"limits": {"connectionShares": 101}}),
        ),
        (
            "limits.connections",
            json!({"limits": {"connections": 0, "connectionShares": 2}}),
        ),
        ("paths", json!({"paths": ["/"]})),
        (
            "issuers.0.names",
            json!({"issuers": [{"group": "a", "kind": "b", "names": ["c"]}]}),
        ),
    ];
    for (field, part) in cases {
        let mut spec = json!({"namespaces": {"names": ["a"]}, "hostnames": ["*"]});
        for (key, value) in part.as_object().expect("fields") {
            spec[key] = value.clone();
        }
        let grant = read(&spec);
        assert_eq!(grant.hostnames, [], "{field}");
        assert_eq!(grant.limits.connections.shares, None, "{field}");
        let at = |finding: &Finding| finding.field.replace(['[', ']'], ".").replace("..", ".");
        let wanted = format!("spec.{field}")
            .replace(['[', ']'], ".")
            .replace("..", ".");
        let wanted = wanted.trim_end_matches('.');
        let named = |finding: &&Finding| at(finding).trim_end_matches('.') == wanted;
        let refusals = grant.findings.iter().filter(|finding| finding.refuses());
        assert_eq!(
            refusals.filter(named).count(),
            1,
            "{field}: {:?}",
            grant.findings
        );
    }
}

/// A Gateway that is left out would count as one without grants, and a namespace as one without limits.
#[test]
fn a_grant_with_too_many_names_is_about_all_of_them() {
    let named = |name: &str, count: usize| -> Vec<String> {
        (0..count).map(|n| format!("{name}{n:03}")).collect()
    };
    let grant = read(&json!({
        "gateways": named("g", 17),
        "namespaces": {"names": named("t", 257)},
        "hostnames": ["*"],
        "limits": {"listeners": 1},
    }));
    let fields: Vec<&str> = grant.findings.iter().map(|f| &*f.field).collect();
    assert_eq!(fields, ["spec.gateways", "spec.namespaces.names"]);
    assert_eq!(grant.hostnames, []);
    assert!(grant.is_for("g016") && !grant.is_for("g017"));
    assert!(grant.selects("t256", None) && !grant.selects("t257", None));
}

#[test]
fn a_hostname_that_is_none_gives_only_itself_up() {
    let hostnames = json!(["good.example.com", "", "*.*.example.com", "10.0.0.1", "a b"]);
    let grant = read(&json!({"namespaces": {"names": ["a"]}, "hostnames": hostnames}));
    assert_eq!(grant.hostnames, [pattern("good.example.com")]);
    let fields: Vec<&str> = grant.findings.iter().map(|f| &*f.field).collect();
    let expected = [1, 2, 3, 4].map(|n| format!("spec.hostnames[{n}]"));
    assert_eq!(fields, expected);
    let nothing = read(&json!({"namespaces": {"names": ["a"]}, "hostnames": []}));
    assert_eq!(nothing.findings[0].field, "spec.hostnames");
}

#[test]
fn a_shared_hostname_is_given_to_nobody() {
    let shared = json!(["Docs.Example.com.", "*.example.com", "10.0.0.1"]);
    let grant = read(&json!({"namespaces": {"names": ["a"]}, "sharedHostnames": shared}));
    assert_eq!(grant.hostnames, []);
    let names: Vec<&str> = grant.shared.iter().map(Hostname::as_str).collect();
    assert_eq!(names, ["docs.example.com"]);
    let fields: Vec<&str> = grant.findings.iter().map(|f| &*f.field).collect();
    assert_eq!(
        fields,
        ["spec.sharedHostnames[1]", "spec.sharedHostnames[2]"]
    );
    // What cannot be read elsewhere makes it share nothing, as it makes it give nothing.
    let void =
        json!({"namespaces": {"names": ["a"]}, "sharedHostnames": ["a.example"], "ports": [0]});
    assert!(read(&void).shared.is_empty());
}

#[test]
fn grant_permissions_for_certificates_are_read_entry_by_entry() {
    let grant = |certificates: Value| {
        read(&json!({
            "namespaces": {"names": ["a"]}, "hostnames": ["*"], "certificates": certificates,
        }))
    };
    let all = grant(json!({
        "alternativeNames": true,
        "ipAddresses": ["192.0.2.1", "2001:db8::/32"],
        "emailAddresses": ["Ops@Example.com", "*@team.example"],
    }));
    assert_eq!(all.findings, []);
    let certificates = &all.certificates;
    assert!(certificates.alternative_names);
    let counts = (certificates.addresses.len(), certificates.mailboxes.len());
    assert_eq!(counts, (2, 2));
    // Nothing said is nothing given.
    for nothing in [json!({}), json!({"alternativeNames": false})] {
        assert_eq!(grant(nothing).certificates, Box::default());
    }
    let some = grant(json!({
        "ipAddresses": ["192.0.2.1/24", "192.0.2.1", "::ffff:192.0.2.0/120", "*"],
        "emailAddresses": ["*", "ops@example.com", "*@*.example.com"],
    }));
    let counts = (
        some.certificates.addresses.len(),
        some.certificates.mailboxes.len(),
    );
    assert_eq!(counts, (1, 1));
    let fields: Vec<&str> = some.findings.iter().map(|f| &*f.field).collect();
    let expected = [
        "spec.certificates.ipAddresses[0]",
        "spec.certificates.ipAddresses[2]",
        "spec.certificates.ipAddresses[3]",
        "spec.certificates.emailAddresses[0]",
        "spec.certificates.emailAddresses[2]",
    ];
    assert_eq!(fields, expected);
    assert_eq!(some.hostnames, [HostPattern::Any]);
    let many: Vec<String> = (0..65).map(|n| format!("192.0.2.{n}")).collect();
    let many = grant(json!({"ipAddresses": many}));
    assert_eq!(many.certificates.addresses.len(), 64);
    assert_eq!(many.findings.len(), 1);
    // What narrows it and cannot be read makes it give none of this either.
    let void = read(&json!({
        "namespaces": {"names": ["a"]}, "hostnames": ["*"], "ports": [0],
        "certificates": {"alternativeNames": true, "ipAddresses": ["::/0"]},
    }));
    assert_eq!(void.certificates, Box::default());
    let unknown = grant(json!({"alternativeNames": true, "uris": ["spiffe://a"]}));
    assert_eq!(unknown.certificates, Box::default());
}

#[test]
fn a_path_that_cannot_be_shared_gives_only_itself_up() {
    let shared = json!([
        {"hostname": "Docs.Example.com.", "paths": ["/api", "/", "/b/", "/.well-known", "/a/../b", "/c"]},
        {"hostname": "*.example.com", "paths": ["/api"]},
        {"hostname": "other.example.com", "paths": ["api"]},
        {"hostname": "docs.example.com", "paths": ["/d"]},
    ]);
    let grant = read(&json!({"namespaces": {"names": ["a"]}, "sharedPaths": shared}));
    assert_eq!(grant.hostnames, []);
    assert!(grant.shared.is_empty());
    let paths: Vec<(&str, Vec<&str>)> = grant
        .shared_paths
        .iter()
        .map(|(name, paths)| {
            (
                name.as_str(),
                paths.iter().map(PathPrefix::as_str).collect(),
            )
        })
        .collect();
    assert_eq!(paths, [("docs.example.com", vec!["/api", "/c", "/d"])]);
    let fields: Vec<&str> = grant.findings.iter().map(|f| &*f.field).collect();
    assert_eq!(
        fields,
        [
            "spec.sharedPaths[0].paths[1]",
            "spec.sharedPaths[0].paths[2]",
            "spec.sharedPaths[0].paths[3]",
            "spec.sharedPaths[0].paths[4]",
            "spec.sharedPaths[1].hostname",
            "spec.sharedPaths[2].paths[0]",
        ]
    );
    assert!(grant.findings.iter().all(Finding::refuses));
    // Without a path it is not the whole name.
    let none = json!([{"hostname": "docs.example.com", "paths": []}]);
    let none = read(&json!({"namespaces": {"names": ["a"]}, "sharedPaths": none}));
    assert!(none.shared_paths.is_empty() && none.shared.is_empty());
    assert_eq!(none.findings[0].field, "spec.sharedPaths[0].paths");
    // A field that is not known could narrow it, and so could what cannot be read elsewhere.
    let good = json!({"hostname": "docs.example.com", "paths": ["/api"]});
    let mut narrowed = good.clone();
    narrowed["methods"] = json!(["GET"]);
    let void = read(&json!({"namespaces": {"names": ["a"]}, "sharedPaths": [narrowed]}));
    assert!(void.shared_paths.is_empty());
    let void = read(&json!({"namespaces": {"names": ["a"]}, "sharedPaths": [good], "ports": [0]}));
    assert!(void.shared_paths.is_empty());
}

#[test]
fn limits_on_connections_are_read_and_shares_are_given() {
    let grant = |limits: Value, ports: Value| {
        let grant = read(&json!({
            "namespaces": {"names": ["a"]}, "hostnames": ["*"], "limits": limits, "ports": ports,
        }));
        grant.limits.connections
    };
    let read = |limits: Value| grant(limits, json!([443]));
    let stated = |shares, most| ConnectionLimits { shares, most };
    assert_eq!(read(json!({"connectionShares": 1})), stated(Some(1), None));
    let most = json!({"connectionShares": 100, "connections": 100_000_000});
    assert_eq!(read(most), stated(Some(100), Some(100_000_000)));
    assert!(read(json!({"connections": null, "ports": 3})).is_empty());
    // What cannot be read makes the grant give nothing, shares included. Its limits stay.
    let void = grant(json!({"connectionShares": 3, "connections": 4}), json!([0]));
    assert_eq!(void, stated(None, Some(4)));
}

#[test]
fn a_limit_of_a_later_release_is_told_of_and_changes_nothing() {
    let grant = read(&json!({
        "namespaces": {"names": ["a"]}, "hostnames": ["*"], "limits": {"bandwidth": 10},
    }));
    assert_eq!(grant.hostnames, [HostPattern::Any]);
    assert_eq!(grant.findings.len(), 1);
    assert!(!grant.findings[0].refuses());
    assert_eq!(grant.findings[0].reason, Reason::UnknownField);
}

#[test]
fn every_requirement_of_a_selector_is_kept() {
    let grant = read(&json!({
        "namespaces": {"selector": {"matchExpressions": [
            {"key": "a", "operator": "Exists"}, {"key": "b", "operator": "DoesNotExist"},
        ]}},
        "hostnames": ["*"],
    }));
    let selector = grant.namespaces.selector.expect("a selector");
    let expected = [
        Requirement::Exists("a".into()),
        Requirement::Absent("b".into()),
    ];
    assert_eq!(selector.requirements, expected);
}

#[test]
fn its_status_keeps_what_others_wrote() {
    let observed = |now| Observed { generation: 2, now };
    let status = GrantStatus {
        conditions: vec![Condition::holds(
            ConditionType::Accepted,
            Reason::Accepted,
            "The grant is in force",
        )],
    };
    let old = json!({"conditions": [{"type": "example.com/Seen", "status": "True"}], "other": 1});
    let first = render(&old, &status, observed(60));
    assert_eq!(first["other"], 1);
    let conditions = first["conditions"].as_array().expect("conditions");
    assert_eq!(conditions.len(), 2);
    let ours = conditions
        .iter()
        .find(|c| c["type"] == "Accepted")
        .expect("ours");
    assert_eq!(ours["observedGeneration"], 2);
    assert_eq!(ours["lastTransitionTime"], "1970-01-01T00:01:00Z");
    assert_eq!(render(&first, &status, observed(120)), first);
}
