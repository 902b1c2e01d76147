//! The hostnames of a certificate.

use std::cmp::Ordering;
use std::fmt;

use rustls_pki_types::CertificateDer;
use vestibule_model::hostname::{HostPattern, Hostname};
use x509_parser::extensions::GeneralName;

/// Most names of one certificate in a message.
const MOST_SHOWN: usize = 3;

/// The hostnames that a certificate is for, in canonical form: each once, sorted, with spaces between them. They are one
/// text, because a certificate of the largest size has thousands of short names, and values of their own would take many
/// times its size. They are sorted, because each of thousands of listeners may look for its hostname in them.
#[derive(Debug, Clone, Default)]
pub(super) struct CertificateNames(Box<str>);

impl CertificateNames {
    /// The subject alternative names that are hostnames. Clients look at no other names of a certificate.
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Self {
        let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else {
            return Self::default();
        };
        let extension = parsed.subject_alternative_name().ok().flatten();
        let mut names: Vec<String> = extension
            .iter()
            .flat_map(|extension| &extension.value.general_names)
            .filter_map(|name| match name {
                GeneralName::DNSName(name) => HostPattern::in_certificate(name),
                _ => None,
            })
            .filter(|name| *name != HostPattern::Any)
            .map(|name| name.to_string())
            .collect();
        names.sort_unstable();
        names.dedup();
        Self(names.join(" ").into())
    }

    /// Whether the certificate can serve a listener with this hostname: it is valid for the name or, if the hostname is a
    /// wildcard, for some name in it. A listener may have a certificate for each of several names in its wildcard.
    pub(super) fn are_for(&self, hostname: &HostPattern) -> bool {
        match hostname {
            HostPattern::Any => true,
            HostPattern::Exact(_) => hostname.certifying_names().any(|name| self.has(&name)),
            HostPattern::Wildcard(suffix) => self.each().any(|name| is_below(name, suffix)),
        }
    }

    /// Whether `name` is one of them. It looks at a few of them only.
    fn has(&self, name: &str) -> bool {
        let mut rest = &*self.0;
        while !rest.is_empty() {
            // Names are ASCII, so every place is the beginning of a character.
            let (before, after) = rest.split_at(rest.len() / 2);
            let start = before.rfind(' ').map_or(0, |space| space + 1);
            let end = after
                .find(' ')
                .map_or(rest.len(), |space| before.len() + space);
            rest = match name.cmp(&rest[start..end]) {
                Ordering::Equal => return true,
                Ordering::Less => &rest[..start.saturating_sub(1)],
                Ordering::Greater => rest.get(end + 1..).unwrap_or_default(),
            };
        }
        false
    }

    fn each(&self) -> impl Iterator<Item = &str> {
        self.0.split_ascii_whitespace()
    }
}

/// Whether a name in a certificate, which may be a wildcard, covers only names below `suffix`. This is what
/// [`HostPattern::covers`] says about `*.suffix`, without memory for each name.
fn is_below(name: &str, suffix: &Hostname) -> bool {
    name.strip_suffix(suffix.as_str())
        .is_some_and(|head| head.ends_with('.'))
}

/// The first names, for a message.
impl fmt::Display for CertificateNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = self.each();
        let shown: Vec<&str> = names.by_ref().take(MOST_SHOWN).collect();
        if shown.is_empty() {
            return f.write_str("no hostname that a listener can have");
        }
        f.write_str(&shown.join(", "))?;
        match names.count() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> CertificateNames {
        let names = names.iter().map(ToString::to_string);
        let made = rcgen::generate_simple_self_signed(names.collect::<Vec<_>>());
        CertificateNames::of(made.expect("a certificate").cert.der())
    }

    fn pattern(text: &str) -> HostPattern {
        HostPattern::parse(text).expect("a hostname")
    }

    #[test]
    fn a_message_has_a_few_names() {
        let cases: [(&[&str], &str); 7] = [
            (&[], "no hostname that a listener can have"),
            (&["192.0.2.1"], "no hostname that a listener can have"),
            (&["A.example", "192.0.2.1"], "a.example"),
            (
                &["*.a.example", "b.example", "c.example"],
                "*.a.example, b.example, c.example",
            ),
            (
                &["e.test", "b.test", "d.test", "c.test", "a.test"],
                "a.test, b.test, c.test and 2 more",
            ),
            (&["b.test.", "A.test", "a.test"], "a.test"),
            (&["b.test", "a.test", "*.test"], "*.test, a.test, b.test"),
        ];
        for (of, text) in cases {
            assert_eq!(names(of).to_string(), text);
        }
    }

    #[test]
    fn one_of_the_names_is_enough() {
        let names = names(&["a.example", "*.b.example"]);
        for (hostname, is_for) in [
            ("A.example", true),
            ("x.b.example", true),
            ("c.example", false),
        ] {
            assert_eq!(names.are_for(&pattern(hostname)), is_for, "{hostname}");
        }
    }

    /// Some names of a wildcard are enough for a listener with the wildcard.
    #[test]
    fn a_wildcard_needs_some_name_in_it() {
        let wildcard = pattern("*.b.example");
        for (name, is_for) in [
            ("*.b.example", true),
            ("a.b.example", true),
            ("*.a.b.example", true),
            ("x.y.b.example", true),
            ("b.example", false),
            ("*.example", false),
            ("ab.example", false),
            ("a.example", false),
        ] {
            let names = CertificateNames(format!("1.test {name}").into());
            assert_eq!(names.are_for(&wildcard), is_for, "{name}");
            assert_eq!(wildcard.covers(&pattern(name)), is_for, "{name}");
        }
    }

    #[test]
    fn each_name_is_found_and_no_other() {
        for count in 0..40 {
            let mut all: Vec<String> = (0..count)
                .map(|n| format!("{}.test", "x".repeat(n % 7) + &n.to_string()))
                .collect();
            all.sort_unstable();
            let names = CertificateNames(all.join(" ").into());
            for name in &all {
                assert!(names.has(name), "{name} in {names:?}");
                assert!(!names.has(&name[1..]), "a part of {name} in {names:?}");
                assert!(!names.has(&format!("{name}x")), "{name} in {names:?}");
            }
            for other in ["", "-", "~", "test", "x.test"] {
                assert!(!names.has(other), "{other} in {names:?}");
            }
        }
    }
}
