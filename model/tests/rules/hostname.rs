//! Hostnames: canonical form, matching as sets of names, IP addresses, limits, A-labels.

use std::cmp::Ordering;
use std::sync::LazyLock;

use proptest::prelude::*;
use vestibule_model::hostname::{
    HostPattern, Hostname, HostnameError, IpForm, ip_form, route_precedence,
};

use crate::support::pattern;

/// Names over so few labels that patterns meet often.
fn names() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "c", "x-1"]), 1..5)
        .prop_map(|labels| labels.join("."))
}

fn patterns() -> impl Strategy<Value = HostPattern> {
    prop_oneof![
        1 => Just(String::new()),
        3 => names(),
        3 => names().prop_map(|name| format!("*.{name}")),
    ]
    .prop_map(|text| HostPattern::parse(&text).unwrap())
}

fn any_case() -> impl Strategy<Value = (String, String)> {
    names().prop_flat_map(|name| {
        let flips = prop::collection::vec(any::<bool>(), name.len());
        (Just(name), flips, any::<bool>()).prop_map(|(name, flips, dot)| {
            let mut other: String = name
                .chars()
                .zip(flips)
                .map(|(c, up)| if up { c.to_ascii_uppercase() } else { c })
                .collect();
            if dot {
                other.push('.');
            }
            (name, other)
        })
    })
}

/// Matching as the specification words it, on texts.
fn naive_match(pattern: &str, name: &str) -> bool {
    match pattern.strip_prefix("*.") {
        None => pattern.is_empty() || pattern == name,
        Some(suffix) => {
            let (suffix, name): (Vec<&str>, Vec<&str>) =
                (suffix.split('.').collect(), name.split('.').collect());
            name.len() > suffix.len() && name[name.len() - suffix.len()..] == suffix[..]
        }
    }
}

/// Every name of up to five labels over the alphabet of [`names`] and one label outside it.
static UNIVERSE: LazyLock<Vec<Hostname>> = LazyLock::new(|| {
    let labels = ["a", "b", "c", "x-1", "other"];
    let mut all: Vec<String> = Vec::new();
    let mut last = vec![String::new()];
    for _ in 0..5 {
        last = last
            .iter()
            .flat_map(|rest| {
                labels.iter().map(move |label| {
                    if rest.is_empty() {
                        (*label).to_owned()
                    } else {
                        format!("{label}.{rest}")
                    }
                })
            })
            .collect();
        all.extend(last.iter().cloned());
    }
    all.iter().map(|n| Hostname::parse(n).unwrap()).collect()
});

proptest! {
    #[test]
    fn the_canonical_form_is_idempotent_and_blind_to_case_and_trailing_dot((name, other) in any_case()) {
        let canonical = Hostname::parse(&other).unwrap();
        prop_assert_eq!(canonical.as_str(), &name);
        prop_assert_eq!(Hostname::parse(canonical.as_str()).unwrap(), canonical.clone());
        prop_assert_eq!(
            HostPattern::parse(&format!("*.{other}")).unwrap(),
            HostPattern::Wildcard(canonical)
        );
    }

    #[test]
    fn hostname_or_pattern_that_parses_is_canonical(text in "[ -~]{0,40}|\\PC{0,40}") {
        if let Ok(name) = Hostname::parse(&text) {
            let again = Hostname::parse(name.as_str()).unwrap();
            prop_assert_eq!(&again, &name);
            prop_assert!(name.as_str().bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.'));
            prop_assert!(ip_form(name.as_str()).is_none());
        }
        if let Ok(parsed) = HostPattern::parse(&text) {
            prop_assert_eq!(HostPattern::parse(&parsed.to_string()).unwrap(), parsed);
        }
    }

    #[test]
    fn matching_is_as_the_specification_words_it(pattern in patterns(), name in names()) {
        let parsed = Hostname::parse(&name).unwrap();
        prop_assert_eq!(pattern.matches(&parsed), naive_match(&pattern.to_string(), &name));
    }

    #[test]
    fn a_wildcard_never_matches_its_apex(suffix in names(), head in names()) {
        let wildcard = pattern(&format!("*.{suffix}"));
        let parse = |text: String| Hostname::parse(&text).unwrap();
        let (below, beside) = (parse(format!("{head}.{suffix}")), parse(format!("z{suffix}")));
        prop_assert!(!wildcard.matches(&parse(suffix)));
        prop_assert!(wildcard.matches(&below));
        // A suffix of the text that is not one of the labels.
        prop_assert!(!wildcard.matches(&beside));
    }

    #[test]
    fn parents_are_the_suffixes_of_the_wildcards_that_match(name in names(), suffix in names()) {
        let name = Hostname::parse(&name).unwrap();
        let matched = pattern(&format!("*.{suffix}")).matches(&name);
        prop_assert_eq!(name.parents().any(|parent| parent == suffix), matched);
    }

    #[test]
    fn intersection_cover_and_overlap_are_those_of_the_sets_of_names(a in patterns(), b in patterns()) {
        let (mut both, mut only_b) = (false, false);
        for name in UNIVERSE.iter() {
            let (in_a, in_b) = (a.matches(name), b.matches(name));
            both |= in_a && in_b;
            only_b |= in_b && !in_a;
            let in_common = a.intersect(&b).is_some_and(|common| common.matches(name));
            prop_assert_eq!(in_common, in_a && in_b, "{}", name);
        }
        // The universe has a name for every difference that patterns of up to four labels can have.
        prop_assert_eq!(a.overlaps(&b), both);
        prop_assert_eq!(a.covers(&b), !only_b);
        prop_assert_eq!(a.intersect(&b), b.intersect(&a));
        prop_assert_eq!(a.intersect(&b).is_some(), a.overlaps(&b));
        prop_assert_eq!(a.covers(&b) && b.covers(&a), a == b);
    }

    #[test]
    fn specificity_is_total_among_patterns_that_match_one_name(a in patterns(), b in patterns()) {
        let order = a.specificity().cmp(&b.specificity());
        if a.overlaps(&b) {
            prop_assert_eq!(order == Ordering::Equal, a == b);
            // The narrower one is the more specific one.
            prop_assert_eq!(order == Ordering::Less, a != b && a.covers(&b));
        }
    }
}

/// A wildcard in a certificate stands for one label, and that of a listener for one or more.
#[test]
fn a_certificate_is_for_its_names_and_one_label_below_its_wildcards() {
    for (hostname, name, is_certified) in [
        ("a.example.com", "a.example.com", true),
        ("a.example.com", "A.Example.COM", true),
        ("a.example.com", "b.example.com", false),
        ("a.example.com", "example.com", false),
        ("a.example.com", "*.example.com", true),
        ("a.example.com", "*.EXAMPLE.com", true),
        ("a.example.com", "*.a.example.com", false),
        ("a.example.com", "*", false),
        ("a.example.com", "", false),
        ("b.a.example.com", "*.example.com", false),
        ("example.com", "*.example.com", false),
        ("*.example.com", "*.example.com", true),
        ("*.example.com", "a.example.com", false),
        ("*.example.com", "example.com", false),
        ("*.a.example.com", "*.example.com", false),
        ("", "a.example.com", false),
        ("", "", false),
    ] {
        let pattern = pattern(hostname);
        assert_eq!(
            pattern.is_certified_by(name),
            is_certified,
            "{hostname:?} {name:?}"
        );
    }
}

#[test]
fn texts_that_clients_take_for_addresses() {
    use IpForm::{DottedQuad, NumericV4, V6};
    for (text, form) in [
        ("192.0.2.1", Some(DottedQuad)),
        ("192.0.2.1.", Some(DottedQuad)),
        ("0.0.0.0", Some(DottedQuad)),
        ("*.1.2.3.4", Some(DottedQuad)),
        ("0300.0.2.1", Some(NumericV4)),
        ("01.2.3.4", Some(NumericV4)),
        ("0x7f.0.0.1", Some(NumericV4)),
        ("0x7f.1", Some(NumericV4)),
        ("0X7F.0X1", Some(NumericV4)),
        ("0x", Some(NumericV4)),
        ("127.1", Some(NumericV4)),
        ("127.1.", Some(NumericV4)),
        ("2130706433", Some(NumericV4)),
        ("256.1.1.1", Some(NumericV4)),
        ("1.2.3.4.5", Some(NumericV4)),
        // "Ends in a number": URL parsers fail on it rather than look it up.
        ("example.1", Some(NumericV4)),
        ("example.0xff", Some(NumericV4)),
        ("*.10", Some(NumericV4)),
        ("::1", Some(V6)),
        ("[::1]", Some(V6)),
        ("[2001:db8::1]", Some(V6)),
        ("2001:db8::192.0.2.1", Some(V6)),
        ("1.example", None),
        ("1.2.3.4.example", None),
        ("a.0xzz", None),
        ("0x.example", None),
        ("a1", None),
        ("1-2", None),
        ("example", None),
        ("", None),
        ("*.", None),
        (".", None),
        ("[::1", None),
        ("a:b", None),
    ] {
        assert_eq!(ip_form(text), form, "{text:?}");
        if let Some(form) = form {
            assert_eq!(
                HostPattern::parse(text),
                Err(HostnameError::IpAddress(form)),
                "{text:?}"
            );
        }
    }
}

#[test]
fn host_pattern_that_does_not_parse_says_why() {
    use HostnameError as E;
    for (text, error) in [
        (".", E::Empty),
        ("*.", E::Empty),
        ("a..b", E::EmptyLabel),
        (".a", E::EmptyLabel),
        ("a..", E::EmptyLabel),
        ("1..", E::EmptyLabel),
        ("a_b.example", E::Character('_')),
        ("a b", E::Character(' ')),
        ("a/b", E::Character('/')),
        ("-a.example", E::Hyphen),
        ("a-.example", E::Hyphen),
        ("*", E::Wildcard),
        ("a.*.example", E::Wildcard),
        ("*.*.example", E::Wildcard),
        ("a*.example", E::Wildcard),
        ("*a.example", E::Wildcard),
    ] {
        assert_eq!(HostPattern::parse(text), Err(error), "{text:?}");
    }
    assert_eq!(HostPattern::parse(""), Ok(HostPattern::Any));
    assert_eq!(Hostname::parse(""), Err(HostnameError::Empty));
}

#[test]
fn lengths_count_without_the_trailing_dot() {
    let label = |n: usize| "a".repeat(n);
    assert!(Hostname::parse(&label(63)).is_ok());
    assert_eq!(
        Hostname::parse(&format!("x.{}", label(64))),
        Err(HostnameError::LabelTooLong(64))
    );
    let long = |n: usize| {
        let mut text = format!("{0}.{0}.{0}.", label(63));
        text.push_str(&label(n - text.len()));
        text
    };
    assert!(Hostname::parse(&long(253)).is_ok());
    assert!(Hostname::parse(&(long(253) + ".")).is_ok());
    assert_eq!(
        Hostname::parse(&long(254)),
        Err(HostnameError::TooLong(254))
    );
    // A wildcard counts as a whole: below a longer suffix there is no name.
    assert!(HostPattern::parse(&format!("*.{}", long(251))).is_ok());
    assert_eq!(
        HostPattern::parse(&format!("*.{}", long(252))),
        Err(HostnameError::TooLong(254))
    );
}

#[test]
fn names_outside_ascii_come_with_what_to_write() {
    for (text, action) in [
        (
            "bücher.example",
            "write its A-label \"xn--bcher-kva.example\"",
        ),
        (
            "Bücher.Example.",
            "write its A-label \"xn--bcher-kva.example\"",
        ),
        (
            "*.bücher.example",
            "write its A-label \"*.xn--bcher-kva.example\"",
        ),
        // Full-width digits come to an address, which helps nobody.
        ("１.２.３.４", "use a DNS name such as \"app.example.com\""),
        (
            "\u{202e}.example",
            "use a DNS name such as \"app.example.com\"",
        ),
    ] {
        let error = HostPattern::parse(text).unwrap_err();
        assert!(matches!(error, HostnameError::NotAscii { .. }), "{text:?}");
        assert_eq!(error.action(), action, "{text:?}");
    }
    // Not worth the work.
    let error = Hostname::parse(&"ü".repeat(10_000)).unwrap_err();
    assert_eq!(error, HostnameError::NotAscii { a_label: None });
}

#[test]
fn routes_rank_by_hostname_as_written_then_age_then_name() {
    let order = [
        ("a.x.example", 9, "z/z"),
        ("*.x.example", 8, "z/z"),
        ("*.example", 1, "a/a"),
        ("*.example", 2, "a-b/x"),
        ("*.example", 2, "a/x"),
        ("", 0, "a/a"),
    ]
    .map(|(host, created, name)| (pattern(host), created, name));
    for (i, a) in order.iter().enumerate() {
        for (j, b) in order.iter().enumerate() {
            assert_eq!(
                route_precedence((&a.0, a.1, a.2), (&b.0, b.1, b.2)),
                i.cmp(&j),
                "{a:?} {b:?}"
            );
        }
    }
}
