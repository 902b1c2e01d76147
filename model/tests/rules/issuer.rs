//! Issuer choice: the whole matrix of who names which issuer, and how.

use std::sync::Arc;

use vestibule_model::annotations::asked_twice;
use vestibule_model::certificate::CertificateOptions;
use vestibule_model::condition::Reason;
use vestibule_model::issuer::{ANNOTATIONS, Engine, IssuerAnnotations, IssuerRef, choose};
use vestibule_model::key::ObjectName;

use crate::support::{gateway, set};

/// The Gateway.
fn edge() -> ObjectName {
    ObjectName::new("platform", "edge")
}

/// The annotations of one object, by short names.
fn annotations(texts: &[(&str, &str)]) -> IssuerAnnotations {
    let mut read = IssuerAnnotations::default();
    for (key, value) in texts {
        let value: Option<Arc<str>> = Some((*value).into());
        match *key {
            "issuer" => read.cert_manager_issuer = value,
            "cluster-issuer" => read.cert_manager_cluster_issuer = value,
            "kind" => read.cert_manager_kind = value,
            "group" => read.cert_manager_group = value,
            "acme-issuer" => read.acme_issuer = value,
            "acme-cluster-issuer" => read.acme_cluster_issuer = value,
            other => panic!("{other}"),
        }
    }
    read
}

fn issuer(engine: Engine, name: &str, kind: &str, group: &str) -> IssuerRef {
    IssuerRef {
        engine,
        name: name.into(),
        kind: kind.into(),
        group: group.into(),
    }
}

/// Annotations by short names.
type Said = Vec<(&'static str, &'static str)>;

/// The annotations of one object by itself, each with the result.
fn alone() -> Vec<(Said, Result<Option<IssuerRef>, &'static str>)> {
    use Engine::{Acme, CertManager};
    vec![
        (vec![], Ok(None)),
        // Kind and group name no issuer.
        (vec![("kind", "K"), ("group", "g")], Ok(None)),
        (
            vec![("issuer", "x")],
            Ok(Some(issuer(CertManager, "x", "Issuer", "cert-manager.io"))),
        ),
        (
            vec![("cluster-issuer", "x")],
            Ok(Some(issuer(
                CertManager,
                "x",
                "ClusterIssuer",
                "cert-manager.io",
            ))),
        ),
        // External issuers.
        (
            vec![
                ("issuer", "x"),
                ("kind", "AWSPCAIssuer"),
                ("group", "awspca.cert-manager.io"),
            ],
            Ok(Some(issuer(
                CertManager,
                "x",
                "AWSPCAIssuer",
                "awspca.cert-manager.io",
            ))),
        ),
        (
            vec![("issuer", "x"), ("kind", "ClusterIssuer")],
            Ok(Some(issuer(
                CertManager,
                "x",
                "ClusterIssuer",
                "cert-manager.io",
            ))),
        ),
        (
            vec![("issuer", "x"), ("group", "g.example")],
            Ok(Some(issuer(CertManager, "x", "Issuer", "g.example"))),
        ),
        (
            vec![("acme-issuer", "x")],
            Ok(Some(issuer(Acme, "x", "ACMEIssuer", "vestibule.dev"))),
        ),
        (
            vec![("acme-cluster-issuer", "x")],
            Ok(Some(issuer(
                Acme,
                "x",
                "ClusterACMEIssuer",
                "vestibule.dev",
            ))),
        ),
        // What is there and empty is a choice by which nothing can be issued.
        (
            vec![("issuer", "")],
            Err("metadata.annotations[cert-manager.io/issuer]"),
        ),
        (
            vec![("acme-cluster-issuer", "")],
            Err("metadata.annotations[vestibule.dev/acme-cluster-issuer]"),
        ),
        // Kind and group are cert-manager's and do not touch ours.
        (
            vec![("acme-issuer", "x"), ("kind", "K"), ("group", "g")],
            Ok(Some(issuer(Acme, "x", "ACMEIssuer", "vestibule.dev"))),
        ),
        (
            vec![("issuer", "x"), ("cluster-issuer", "y")],
            Err("metadata.annotations[cert-manager.io/cluster-issuer]"),
        ),
        (
            vec![("cluster-issuer", "x"), ("kind", "K")],
            Err("metadata.annotations[cert-manager.io/issuer-kind]"),
        ),
        (
            vec![("cluster-issuer", "x"), ("group", "g")],
            Err("metadata.annotations[cert-manager.io/issuer-group]"),
        ),
        (
            vec![("acme-issuer", "x"), ("acme-cluster-issuer", "y")],
            Err("metadata.annotations[vestibule.dev/acme-cluster-issuer]"),
        ),
        (
            vec![("issuer", "x"), ("acme-issuer", "y")],
            Err("metadata.annotations[vestibule.dev/acme-issuer]"),
        ),
        (
            vec![("cluster-issuer", "x"), ("acme-cluster-issuer", "y")],
            Err("metadata.annotations[vestibule.dev/acme-cluster-issuer]"),
        ),
    ]
}

#[test]
fn one_object_by_itself() {
    for (texts, expected) in alone() {
        let choice = annotations(&texts).choice();
        match (&choice, &expected) {
            (Ok(got), Ok(wanted)) => assert_eq!(got, wanted, "{texts:?}"),
            (Err(finding), Err(field)) => {
                let reason = match texts[..] {
                    [(_, "")] => Reason::InvalidAnnotation,
                    _ => Reason::ContradictingIssuers,
                };
                assert_eq!(finding.reason, reason, "{texts:?}");
                assert_eq!(finding.field, *field, "{texts:?}");
                assert!(finding.refuses());
            }
            _ => panic!("{texts:?}: {choice:?}"),
        }
    }
}

#[test]
fn the_sets_own_choice_wins_as_a_whole_and_nothing_is_mixed() {
    for (set_texts, set_choice) in alone() {
        for (gateway_texts, gateway_choice) in alone() {
            let got = choose(
                &annotations(&set_texts),
                &annotations(&gateway_texts),
                &edge(),
            );
            // Either object's answer, unchanged: never the name of one with the kind of the other. What is
            // wrong at the Gateway is said at the reference to it.
            let wanted = match (&set_choice, &gateway_choice) {
                (Ok(None), Err(_)) => &Err("spec.parentRef"),
                (Ok(None), theirs) => theirs,
                (own, _) => own,
            };
            assert_eq!(
                got.map_err(|finding| finding.field),
                wanted.clone().map_err(str::to_owned),
                "{set_texts:?} {gateway_texts:?}"
            );
        }
    }
}

#[test]
fn a_set_that_cert_manager_follows_its_gateway_for_asks_nobody_else() {
    let mut shared = gateway("platform/edge", Vec::new());
    let mut own_set = set("a/web", "platform/edge", 1, Vec::new());
    shared.issuers = annotations(&[("cluster-issuer", "shared")]);
    own_set.issuers = annotations(&[("acme-issuer", "own")]);
    let finding = asked_twice(&own_set, &shared, "l").expect("a refusal");
    assert_eq!(finding.reason, Reason::ContradictingIssuers);
    assert!(finding.message.contains("cert-manager.io/cluster-issuer"));
    // What cert-manager leaves alone is the built-in engine's.
    let mut options = CertificateOptions::default();
    options.ignored_listeners.insert("l".into());
    own_set.certificates.options = Arc::new(options);
    assert_eq!(asked_twice(&own_set, &shared, "l"), None);
    assert!(asked_twice(&own_set, &shared, "other").is_some());
    // If the Gateway also names an issuer of ours, we do not ask, but cert-manager still does.
    shared.issuers = annotations(&[("cluster-issuer", "shared"), ("acme-issuer", "ours")]);
    assert!(asked_twice(&own_set, &shared, "other").is_some());
    // Nor does cert-manager issue by what contradicts itself, or is empty.
    for nothing in [
        &[("issuer", "a"), ("cluster-issuer", "b")][..],
        &[("cluster-issuer", "")],
        &[("cluster-issuer", "a"), ("kind", "Issuer")],
    ] {
        shared.issuers = annotations(nothing);
        assert_eq!(asked_twice(&own_set, &shared, "other"), None, "{nothing:?}");
    }
    // One engine alone is no contradiction.
    for (own, theirs) in [
        ("acme-issuer", "acme-cluster-issuer"),
        ("issuer", "cluster-issuer"),
        ("issuer", "acme-cluster-issuer"),
    ] {
        own_set.issuers = annotations(&[(own, "own")]);
        shared.issuers = annotations(&[(theirs, "shared")]);
        assert_eq!(
            asked_twice(&own_set, &shared, "other"),
            None,
            "{own} {theirs}"
        );
    }
}

#[test]
fn where_cert_managers_shim_mixes_we_do_not() {
    // cert-manager copies the Gateway's kind over the set's: "x" would be a ClusterIssuer, or an error.
    let gateway = annotations(&[("issuer", "shared"), ("kind", "ClusterIssuer")]);
    assert_eq!(
        choose(&annotations(&[("issuer", "x")]), &gateway, &edge()),
        Ok(Some(issuer(
            Engine::CertManager,
            "x",
            "Issuer",
            "cert-manager.io"
        )))
    );
    assert_eq!(
        choose(&annotations(&[("cluster-issuer", "x")]), &gateway, &edge()),
        Ok(Some(issuer(
            Engine::CertManager,
            "x",
            "ClusterIssuer",
            "cert-manager.io"
        )))
    );
    // A kind alone on the set does not bend the Gateway's issuer either.
    assert_eq!(
        choose(&annotations(&[("kind", "Mine")]), &gateway, &edge()),
        Ok(Some(issuer(
            Engine::CertManager,
            "shared",
            "ClusterIssuer",
            "cert-manager.io"
        )))
    );
}

#[test]
fn annotation_keys_are_those_users_write() {
    assert_eq!(
        ANNOTATIONS,
        [
            "cert-manager.io/issuer",
            "cert-manager.io/cluster-issuer",
            "cert-manager.io/issuer-kind",
            "cert-manager.io/issuer-group",
            "vestibule.dev/acme-issuer",
            "vestibule.dev/acme-cluster-issuer",
        ]
    );
}
