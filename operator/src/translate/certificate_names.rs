//! The hostnames of a certificate.

use std::fmt;

use rustls_pki_types::CertificateDer;
use vestibule_model::hostname::HostPattern;
use x509_parser::extensions::GeneralName;

/// Most names of one certificate in a message.
const MOST_SHOWN: usize = 3;

/// The hostnames that a certificate is for, in canonical form, with spaces between them. They are one text, because a
/// certificate of the largest size has thousands of short names, and values of their own would take many times its size.
#[derive(Debug, Clone, Default)]
pub(super) struct CertificateNames(Box<str>);

impl CertificateNames {
    /// The subject alternative names that are hostnames. Clients look at no other names of a certificate.
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Self {
        let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else {
            return Self::default();
        };
        let extension = parsed.subject_alternative_name().ok().flatten();
        let names = extension
            .iter()
            .flat_map(|extension| &extension.value.general_names)
            .filter_map(|name| match name {
                GeneralName::DNSName(name) => HostPattern::parse(name).ok(),
                _ => None,
            })
            .map(|name| name.to_string());
        Self(names.collect::<Vec<_>>().join(" ").into())
    }

    /// Whether the certificate is valid for the hostname of a listener.
    pub(super) fn are_for(&self, hostname: &HostPattern) -> bool {
        self.each().any(|name| hostname.is_certified_by(name))
    }

    fn each(&self) -> impl Iterator<Item = &str> {
        self.0.split_ascii_whitespace()
    }
}

/// The first names, for a message.
impl fmt::Display for CertificateNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = self.each();
        let shown: Vec<&str> = names.by_ref().take(MOST_SHOWN).collect();
        if shown.is_empty() {
            return f.write_str("no hostname");
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

    #[test]
    fn a_message_has_a_few_names() {
        let cases: [(&[&str], &str); 5] = [
            (&[], "no hostname"),
            (&["192.0.2.1"], "no hostname"),
            (&["A.example", "192.0.2.1"], "a.example"),
            (
                &["*.a.example", "b.example", "c.example"],
                "*.a.example, b.example, c.example",
            ),
            (
                &["a.test", "b.test", "c.test", "d.test", "e.test"],
                "a.test, b.test, c.test and 2 more",
            ),
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
            let pattern = HostPattern::parse(hostname).expect("a hostname");
            assert_eq!(names.are_for(&pattern), is_for, "{hostname}");
        }
    }
}
