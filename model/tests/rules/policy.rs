//! Policy: the same findings as heavy as mode and exemption make them.

use vestibule_model::condition::Reason;
use vestibule_model::finding::{Finding, Origin, Severity};
use vestibule_model::policy::{Mode, Policy};

use crate::support::route;

#[test]
fn a_wildcard_route_weighs_what_the_mode_says() {
    for (mode, namespace, severity) in [
        (Mode::Enforce, "team", Some(Severity::Refused)),
        (Mode::Enforce, "conformance", Some(Severity::Warning)),
        (Mode::Warn, "team", Some(Severity::Warning)),
        (Mode::Warn, "conformance", Some(Severity::Warning)),
        (Mode::Off, "team", None),
        // Exempt is "only ever warned", which is not more than the mode asks for.
        (Mode::Off, "conformance", None),
    ] {
        let policy = Policy {
            mode,
            exempt: ["conformance".to_owned()].into(),
            ..Policy::default()
        };
        let findings = policy.judge_route(&route(
            &format!("{namespace}/r"),
            &["a.example.com", "*.example.com"],
        ));
        let [first, rest @ ..] = &findings[..] else {
            assert_eq!(severity, None, "{mode} {namespace}");
            continue;
        };
        assert!(rest.is_empty());
        assert_eq!(Some(first.severity), severity, "{mode} {namespace}");
        assert_eq!(first.origin, Origin::Policy);
        assert_eq!(first.reason, Reason::WildcardHostname);
        assert_eq!(
            first.to_string(),
            "spec.hostnames[1]: \"*.example.com\" is a wildcard, and here a TLSRoute names each \
             host; list the exact hostnames"
        );
    }
}

#[test]
fn rules_of_the_specification_do_not_depend_on_the_mode() {
    let own = Finding::refused(Reason::InvalidHostname, "spec.hostnames[0]", "m", "a");
    for mode in [Mode::Enforce, Mode::Warn, Mode::Off] {
        let mut route = route("team/r", &[]);
        route.findings.push(own.clone());
        let policy = Policy {
            mode,
            ..Policy::default()
        };
        assert_eq!(
            policy.judge_route(&route),
            std::slice::from_ref(&own),
            "{mode}"
        );
    }
}

#[test]
fn modes_read_what_they_print() {
    for mode in [Mode::Enforce, Mode::Warn, Mode::Off] {
        assert_eq!(mode.to_string().parse(), Ok(mode));
    }
    assert_eq!(Mode::default(), Mode::Enforce);
    assert_eq!(
        "enforce".parse::<Mode>().unwrap_err().to_string(),
        "unknown admission mode \"enforce\": use Enforce, Warn or Off"
    );
}
