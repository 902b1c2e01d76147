//! Reads the parts of a certificate that a report shows: its names, its issuer and its expiry.

use jiff::Timestamp;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use vestibule_model::hostname::HostPattern;
use vestibule_model::object::Secret;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::verdict::printable;

/// The leaf of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Leaf {
    /// Subject alternative names.
    pub(super) names: Vec<String>,
    /// Distinguished name of the issuer.
    pub(super) issuer: String,
    pub(super) not_before: Timestamp,
    pub(super) not_after: Timestamp,
}

/// Why clients do not accept a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CertificateProblem {
    Expired,
    NotYetValid,
    OtherNames,
}

impl Leaf {
    /// The leaf in `tls.crt`, if there is one that can be read.
    pub(super) fn of(secret: &Secret) -> Option<Self> {
        let pem = secret.certificate.as_ref()?;
        let der = CertificateDer::from_pem_slice(pem).ok()?;
        let (_, parsed) = X509Certificate::from_der(&der).ok()?;
        let alternative = parsed.subject_alternative_name().ok().flatten();
        let names = alternative
            .iter()
            .flat_map(|extension| &extension.value.general_names)
            .filter_map(name)
            .collect();
        let validity = parsed.validity();
        Some(Self {
            names,
            issuer: printable(&parsed.issuer().to_string()),
            not_before: Timestamp::from_second(validity.not_before.timestamp()).ok()?,
            not_after: Timestamp::from_second(validity.not_after.timestamp()).ok()?,
        })
    }

    /// What is wrong with it for clients that ask for `query` at the time `now`.
    pub(super) fn trouble(
        &self,
        query: &HostPattern,
        now: Timestamp,
    ) -> Option<CertificateProblem> {
        if now > self.not_after {
            Some(CertificateProblem::Expired)
        } else if now < self.not_before {
            Some(CertificateProblem::NotYetValid)
        } else if !self.names.iter().any(|name| query.is_certified_by(name)) {
            Some(CertificateProblem::OtherNames)
        } else {
            None
        }
    }
}

fn name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        // It is compared in the form in which the status of a listener compares it.
        GeneralName::DNSName(name) => {
            let canonical = HostPattern::in_certificate(name).map(|name| name.to_string());
            Some(canonical.unwrap_or_else(|| printable(name)))
        }
        GeneralName::IPAddress(bytes) => match *bytes {
            [a, b, c, d] => Some(std::net::Ipv4Addr::new(*a, *b, *c, *d).to_string()),
            bytes => <[u8; 16]>::try_from(bytes)
                .ok()
                .map(|v6| std::net::Ipv6Addr::from(v6).to_string()),
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(names: &[&str]) -> Leaf {
        Leaf {
            names: names.iter().map(ToString::to_string).collect(),
            issuer: String::new(),
            not_before: Timestamp::from_second(1_000).unwrap(),
            not_after: Timestamp::from_second(2_000).unwrap(),
        }
    }

    #[test]
    fn names_have_their_canonical_form_if_they_have_one() {
        for (written, shown) in [
            ("a.test", "a.test"),
            ("A.Test", "a.test"),
            ("*.A.test", "*.a.test"),
            // Clients take this one for another name.
            ("A.Test.", "A.Test."),
            ("a_b.Test", "a_b.Test"),
            ("\u{7}.test", "?.test"),
        ] {
            let shown_as = name(&GeneralName::DNSName(written));
            assert_eq!(shown_as.as_deref(), Some(shown), "{written}");
        }
    }

    #[test]
    fn names_and_times_are_judged_as_clients_do() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let wildcard = leaf(&["*.example.com", "192.0.2.1"]);
        let query = |text| HostPattern::parse(text).unwrap();
        let trouble = |text| wildcard.trouble(&query(text), at(1_500));
        assert_eq!(trouble("a.example.com"), None);
        assert_eq!(trouble("*.example.com"), None);
        assert_eq!(
            trouble("a.b.example.com"),
            Some(CertificateProblem::OtherNames)
        );
        assert_eq!(trouble("example.com"), Some(CertificateProblem::OtherNames));
        let a = query("a.example.com");
        assert_eq!(
            wildcard.trouble(&a, at(2_001)),
            Some(CertificateProblem::Expired)
        );
        assert_eq!(
            wildcard.trouble(&a, at(999)),
            Some(CertificateProblem::NotYetValid)
        );
    }
}
