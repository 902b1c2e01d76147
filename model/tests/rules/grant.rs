//! ReferenceGrants: what each part of one has to agree on.

use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::grant::{Grants, Permitted};
use vestibule_model::key::{GATEWAY_GROUP, Kind, ObjectKey, ObjectName};
use vestibule_model::object::ReferenceGrant;
use vestibule_model::reference::Reference;

use crate::support::name;

fn to_secret(target: &str) -> Reference {
    Reference {
        group: "".into(),
        kind: "Secret".into(),
        target: name(target),
        field: "spec.listeners[0].tls.certificateRefs[0]".into(),
    }
}

fn grant(at: &str, from: (&str, &str, &str), to: (&str, &str, Option<&str>)) -> ReferenceGrant {
    ReferenceGrant {
        name: name(at),
        from: vec![(from.0.into(), from.1.into(), from.2.into())],
        to: vec![(to.0.into(), to.1.into(), to.2.map(Into::into))],
    }
}

fn permit<'a>(
    referrer: &ObjectKey,
    reference: &Reference,
    grants: impl IntoIterator<Item = &'a ReferenceGrant>,
) -> Result<Permitted, Finding> {
    let mut all = Grants::default();
    grants.into_iter().for_each(|grant| all.insert(grant));
    all.permit(referrer, reference)
}

#[test]
fn every_part_of_a_grant_counts() {
    let set = ObjectKey::new(Kind::ListenerSet, "team", "set");
    let from = (GATEWAY_GROUP, "ListenerSet", "team");
    let to = ("", "Secret", None);
    let cases = [
        ("all of it", grant("certs/g", from, to), true),
        (
            "by name",
            grant("certs/g", from, ("", "Secret", Some("tls"))),
            true,
        ),
        (
            "another name",
            grant("certs/g", from, ("", "Secret", Some("other"))),
            false,
        ),
        (
            "another kind of target",
            grant("certs/g", from, ("", "ConfigMap", None)),
            false,
        ),
        (
            "another group of target",
            grant("certs/g", from, ("x.dev", "Secret", None)),
            false,
        ),
        // GEP-1713: a Gateway's grant does not help a ListenerSet.
        (
            "the Gateway's",
            grant("certs/g", (GATEWAY_GROUP, "Gateway", "team"), to),
            false,
        ),
        (
            "another namespace's",
            grant("certs/g", (GATEWAY_GROUP, "ListenerSet", "other"), to),
            false,
        ),
        (
            "another group's",
            grant("certs/g", ("x.dev", "ListenerSet", "team"), to),
            false,
        ),
        // A grant speaks for its own namespace only.
        (
            "of another namespace",
            grant("elsewhere/g", from, to),
            false,
        ),
        ("the referrer's own", grant("team/g", from, to), false),
    ];
    for (case, grant, permitted) in &cases {
        let verdict = permit(&set, &to_secret("certs/tls"), [grant]);
        assert_eq!(verdict.is_ok(), *permitted, "{case}");
        match verdict {
            Ok(reference) => assert_eq!(*reference.target(), ObjectName::new("certs", "tls")),
            Err(finding) => assert_eq!(finding.reason, Reason::RefNotPermitted),
        }
    }
    // Grants add up.
    assert!(
        permit(
            &set,
            &to_secret("certs/tls"),
            cases.iter().map(|(_, g, _)| g)
        )
        .is_ok()
    );
    assert!(permit(&set, &to_secret("certs/tls"), []).is_err());
    assert!(permit(&set, &to_secret("team/tls"), []).is_ok());
}

#[test]
fn a_grant_to_a_gateway_is_not_one_to_a_set_nor_the_reverse() {
    for (granted, asking, permitted) in [
        ("Gateway", Kind::Gateway, true),
        ("Gateway", Kind::ListenerSet, false),
        ("ListenerSet", Kind::Gateway, false),
        ("ListenerSet", Kind::ListenerSet, true),
        ("TLSRoute", Kind::ListenerSet, false),
    ] {
        let grant = grant(
            "certs/g",
            (GATEWAY_GROUP, granted, "team"),
            ("", "Secret", None),
        );
        let referrer = ObjectKey::new(asking, "team", "x");
        let verdict = permit(&referrer, &to_secret("certs/tls"), [&grant]);
        assert_eq!(verdict.is_ok(), permitted, "{granted} {asking}");
    }
}

/// A reference that two grants permit, or two entries of one, is permitted until both are gone.
#[test]
fn a_grant_that_goes_takes_away_only_what_no_other_one_permits() {
    let set = ObjectKey::new(Kind::ListenerSet, "team", "set");
    let from = (GATEWAY_GROUP, "ListenerSet", "team");
    let all = grant("certs/all", from, ("", "Secret", None));
    let mut twice = grant("certs/twice", from, ("", "Secret", Some("tls")));
    twice.from.extend(twice.from.clone());
    twice.to.extend(twice.to.clone());
    let same = grant("certs/same", from, ("", "Secret", Some("tls")));
    let mut grants = Grants::default();
    let permitted = |grants: &Grants, target: &str| grants.permit(&set, &to_secret(target)).is_ok();
    for grant in [&all, &twice, &same] {
        grants.insert(grant);
    }
    grants.remove(&all);
    assert!(permitted(&grants, "certs/tls"));
    assert!(!permitted(&grants, "certs/other"));
    grants.remove(&twice);
    assert!(permitted(&grants, "certs/tls"));
    grants.remove(&same);
    assert!(!permitted(&grants, "certs/tls"));
    // Nothing is left of them.
    assert_eq!(format!("{grants:?}"), format!("{:?}", Grants::default()));
}

#[test]
fn the_refusal_says_who_can_help() {
    let set = ObjectKey::new(Kind::ListenerSet, "team", "set");
    let finding = permit(&set, &to_secret("certs/tls"), []).unwrap_err();
    assert_eq!(
        finding.to_string(),
        "spec.listeners[0].tls.certificateRefs[0]: no ReferenceGrant in namespace certs lets a \
         ListenerSet of namespace team use Secret tls; have the owner of namespace certs create \
         one, or refer to an object of your own namespace"
    );
}
