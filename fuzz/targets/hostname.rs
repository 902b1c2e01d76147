//! Hostnames and patterns: up to three lines, two patterns and a name, against an oracle on texts
//! that is written as the specifications word it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vestibule_model::hostname::{HostPattern, Hostname, HostnameError, ip_form};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let mut lines = text.splitn(3, '\n');
    let mut next = || lines.next().unwrap_or_default();
    let (a_text, b_text, name_text) = (next(), next(), next());

    let (a, b) = (checked_pattern(a_text), checked_pattern(b_text));
    let name = checked_name(name_text);
    for (pattern, text) in [(&a, a_text), (&b, b_text)] {
        if let (Some(pattern), Some(name)) = (pattern, &name) {
            assert_eq!(
                pattern.matches(name),
                naive_match(&canonical(text), &canonical(name_text)),
                "{pattern:?} {name:?}"
            );
        }
    }
    if let (Some(a), Some(b)) = (&a, &b) {
        check_pair(a, b, name.as_ref());
    }
});

fn check_pair(a: &HostPattern, b: &HostPattern, name: Option<&Hostname>) {
    let common = a.intersect(b);
    assert_eq!(common, b.intersect(a));
    assert_eq!(common.is_some(), a.overlaps(b));
    assert_eq!(a.overlaps(b), b.overlaps(a));
    assert_eq!(a.covers(b) && b.covers(a), a == b);
    if let Some(common) = &common {
        assert!(a.covers(common) && b.covers(common));
        // Of two patterns that match a common name, one is the more specific.
        assert_eq!(a.specificity() == b.specificity(), a == b);
        assert_eq!(common.specificity(), a.specificity().max(b.specificity()));
    }
    if let Some(name) = name {
        let both = a.matches(name) && b.matches(name);
        assert_eq!(common.is_some_and(|common| common.matches(name)), both);
        assert!(!both || a.overlaps(b));
        assert!(!a.covers(b) || !b.matches(name) || a.matches(name));
    }
}

fn checked_pattern(text: &str) -> Option<HostPattern> {
    let parsed = HostPattern::parse(text);
    let valid = match text.strip_prefix("*.") {
        None => text.is_empty() || is_hostname(text),
        Some(suffix) => is_hostname(suffix) && canonical(text).len() <= 253,
    };
    assert_eq!(parsed.is_ok(), valid, "{text:?}: {parsed:?}");
    if let Err(error) = &parsed {
        check_error(text, error);
    }
    let pattern = parsed.ok()?;
    assert_eq!(pattern.to_string(), canonical(text));
    assert_eq!(
        HostPattern::parse(&pattern.to_string()).as_ref(),
        Ok(&pattern)
    );
    assert_eq!(
        HostPattern::parse(&text.to_ascii_uppercase()).as_ref(),
        Ok(&pattern)
    );
    Some(pattern)
}

fn checked_name(text: &str) -> Option<Hostname> {
    let parsed = Hostname::parse(text);
    assert_eq!(parsed.is_ok(), is_hostname(text), "{text:?}: {parsed:?}");
    let name = parsed.ok()?;
    assert_eq!(name.as_str(), canonical(text));
    assert_eq!(name.labels(), name.parents().count() + 1);
    Some(name)
}

fn check_error(text: &str, error: &HostnameError) {
    assert!(!error.to_string().is_empty() && !error.action().is_empty());
    match error {
        // What is advised must do.
        HostnameError::NotAscii {
            a_label: Some(advice),
        } => {
            assert!(!text.is_ascii());
            let parsed = HostPattern::parse(advice);
            assert!(
                parsed.is_ok() || matches!(parsed, Err(HostnameError::TooLong(_))),
                "{text:?}: {advice:?}: {parsed:?}"
            );
        }
        HostnameError::IpAddress(form) => assert_eq!(ip_form(text), Some(*form)),
        _ => {}
    }
}

/// Lower case, without one trailing dot.
fn canonical(text: &str) -> String {
    text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase()
}

/// RFC 1123 and RFC 1035, and nothing that a URL parser takes for an address (WHATWG URL, "ends in a
/// number"; an address of version 6 has colons, which no label has).
fn is_hostname(text: &str) -> bool {
    let text = canonical(text);
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .chars()
                .all(|c| matches!(c, 'a'..='z' | '0'..='9' | '-'))
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let last = text.rsplit('.').next().unwrap_or_default();
    let number = last.chars().all(|c| c.is_ascii_digit())
        || last
            .strip_prefix("0x")
            .is_some_and(|hex| hex.chars().all(|c| c.is_ascii_hexdigit()));
    text.len() <= 253 && text.split('.').all(label) && !number
}

/// Gateway API `Hostname`: equal, or one or more labels before the suffix of a wildcard.
fn naive_match(pattern: &str, name: &str) -> bool {
    match pattern.strip_prefix("*.") {
        None => pattern.is_empty() || pattern == name,
        Some(suffix) => {
            let suffix: Vec<&str> = suffix.split('.').collect();
            let name: Vec<&str> = name.split('.').collect();
            name.len() > suffix.len() && name.ends_with(&suffix)
        }
    }
}
