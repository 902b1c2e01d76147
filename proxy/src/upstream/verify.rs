//! Owns the check of a backend's certificate. webpki checks the chain, as for every client of rustls. The names come
//! from the policy.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use vestibule_model::certificate::MAX_AUTHORITIES_OF_A_NAME;
use vestibule_model::certificate::chain::OrderedChain;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::ordered_chain;

/// One of the names that a backend's certificate may have. It must have at least one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AltName {
    /// A hostname. A wildcard in the certificate may cover it (RFC 6125 section 6.4.3).
    Exact(ServerName<'static>),
    /// The name after `*.` of a wildcard. The certificate has this wildcard, or a name with one label in its place.
    Wildcard(Box<str>),
    /// A URI, compared as text.
    Uri(Box<str>),
}

/// The trust bundles have too many authorities of one name.
#[derive(Debug, thiserror::Error)]
#[error(
    "more than {MAX_AUTHORITIES_OF_A_NAME} authorities in the trust bundles have the name of the issuer"
)]
struct TooManyAuthorities;

#[derive(Debug)]
pub(super) struct Verifier {
    /// The bundles of trust anchors. A union of them would be a copy of all for each backend.
    bundles: Box<[Arc<RootCertStore>]>,
    names: Box<[AltName]>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    pub(super) fn new(
        bundles: Vec<Arc<RootCertStore>>,
        names: Vec<AltName>,
        provider: &CryptoProvider,
    ) -> Self {
        Self {
            bundles: bundles.into(),
            names: names.into(),
            algorithms: provider.signature_verification_algorithms,
        }
    }

    pub(super) fn trusts_nobody(&self) -> bool {
        self.bundles.iter().all(|roots| roots.is_empty())
    }

    /// Checks that the chain from the certificate `parsed` leads to a trust anchor of one of the bundles.
    fn is_trusted(
        &self,
        parsed: &ParsedCertificate<'_>,
        chain: &OrderedChain<'_>,
        now: UnixTime,
    ) -> Result<(), Error> {
        let roots = self.authorities(&chain.issuers)?;
        let intermediates = ordered_chain::intermediates_of(chain);
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(parsed, &roots, &intermediates, now, algorithms)
    }

    /// The authorities of all bundles that have one of these names, which are those of the issuers in a chain. No other
    /// one can be at the end of it.
    ///
    /// # Errors
    /// If there are more than [`MAX_AUTHORITIES_OF_A_NAME`] of one of these names.
    fn authorities(&self, issuers: &[&[u8]]) -> Result<RootCertStore, Error> {
        let issuers: BTreeSet<&[u8]> = issuers.iter().filter_map(|name| content(name)).collect();
        let mut found: Vec<&TrustAnchor<'_>> = Vec::new();
        for issuer in issuers {
            let others = found.len();
            for anchor in self.bundles.iter().flat_map(|roots| &roots.roots) {
                if *anchor.subject != *issuer || found.contains(&anchor) {
                    continue;
                }
                if found.len() - others == MAX_AUTHORITIES_OF_A_NAME {
                    let why = OtherError(Arc::new(TooManyAuthorities));
                    return Err(Error::InvalidCertificate(CertificateError::Other(why)));
                }
                found.push(anchor);
            }
        }
        let roots = found.into_iter().cloned().collect();
        Ok(RootCertStore { roots })
    }

    fn has_a_name(
        &self,
        der: &CertificateDer<'_>,
        parsed: &ParsedCertificate<'_>,
    ) -> Result<(), Error> {
        let mut error = Error::InvalidCertificate(CertificateError::NotValidForName);
        let mut others = Vec::new();
        for name in &self.names {
            match name {
                AltName::Exact(name) => match verify_server_name(parsed, name) {
                    Ok(()) => return Ok(()),
                    // This error tells which names the certificate has.
                    Err(why) => error = why,
                },
                other => others.push(other),
            }
        }
        // The certificate is parsed only if there are such names.
        if !others.is_empty() && has_another(der, &others)? {
            return Ok(());
        }
        Err(error)
    }
}

/// A name in DER without its tag and length, which is the form in which trust anchors have it.
fn content(name: &[u8]) -> Option<&[u8]> {
    // A length above 127 is behind a byte that says how many bytes it has (X.690 section 8.1.3).
    let long = name.get(1)?.checked_sub(0x80).map_or(0, usize::from);
    name.get(2 + long..)
}

fn has_another(der: &CertificateDer<'_>, names: &[&AltName]) -> Result<bool, Error> {
    const BAD: Error = Error::InvalidCertificate(CertificateError::BadEncoding);
    let (rest, certificate) = X509Certificate::from_der(der).map_err(|_| BAD)?;
    // It is an error if the extension occurs twice.
    let extension = certificate.subject_alternative_name().map_err(|_| BAD)?;
    if !rest.is_empty() {
        return Err(BAD);
    }
    let present = extension
        .into_iter()
        .flat_map(|extension| &extension.value.general_names);
    let matches = |present: &GeneralName<'_>, wanted: &AltName| match (present, wanted) {
        (GeneralName::URI(uri), AltName::Uri(wanted)) => *uri == &**wanted,
        (GeneralName::DNSName(name), AltName::Wildcard(suffix)) => {
            let first_and_rest = name.split_once('.');
            first_and_rest
                .is_some_and(|(first, rest)| !first.is_empty() && rest.eq_ignore_ascii_case(suffix))
        }
        _ => false,
    };
    let mut present = present;
    Ok(present.any(|present| names.iter().any(|wanted| matches(present, wanted))))
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let chain = ordered_chain::in_order(end_entity, intermediates)?;
        let parsed = ParsedCertificate::try_from(end_entity)?;
        self.is_trusted(&parsed, &chain, now)?;
        self.has_a_name(end_entity, &parsed)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose,
        IsCa, KeyPair, SanType,
    };

    use super::*;

    const URI: &str = "spiffe://example.com/ns/team-a";

    fn authority() -> CertifiedIssuer<'static, KeyPair> {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    fn leaf(
        names: &[&str],
        uris: &[&str],
        issuer: &CertifiedIssuer<'static, KeyPair>,
    ) -> CertificateDer<'static> {
        let names = names.iter().map(|name| (*name).to_owned());
        let mut params = CertificateParams::new(names.collect::<Vec<_>>()).unwrap();
        for uri in uris {
            let uri = SanType::URI((*uri).try_into().unwrap());
            params.subject_alt_names.push(uri);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate().unwrap();
        params.signed_by(&key, issuer).unwrap().into()
    }

    fn exact(name: &'static str) -> AltName {
        AltName::Exact(name.try_into().unwrap())
    }

    fn judge(
        issuer: &CertifiedIssuer<'static, KeyPair>,
        names: &[AltName],
        certificate: &CertificateDer<'_>,
    ) -> bool {
        judge_by(&[issuer], names, certificate)
    }

    /// The same with a bundle for each issuer.
    fn judge_by(
        issuers: &[&CertifiedIssuer<'static, KeyPair>],
        names: &[AltName],
        certificate: &CertificateDer<'_>,
    ) -> bool {
        let bundles = issuers.iter().map(|issuer| {
            let mut roots = RootCertStore::empty();
            roots.add(issuer.der().clone()).unwrap();
            Arc::new(roots)
        });
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let verifier = Verifier::new(bundles.collect(), names.to_vec(), &provider);
        // What is sent as the server name is not what is checked.
        let sent = ServerName::try_from("sent.example.com").unwrap();
        let now = UnixTime::now();
        let verdict = verifier.verify_server_cert(certificate, &[], &sent, &[], now);
        let long_ago = UnixTime::since_unix_epoch(Duration::ZERO);
        let expired = verifier.verify_server_cert(certificate, &[], &sent, &[], long_ago);
        assert!(expired.is_err());
        verdict.is_ok()
    }

    #[test]
    fn a_backend_that_shows_too_many_certificates_is_refused_before_they_are_looked_at() {
        let ca = authority();
        let own = leaf(&["a.example.com"], &[], &ca);
        let mut roots = RootCertStore::empty();
        roots.add(ca.der().clone()).unwrap();
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let names = vec![exact("a.example.com")];
        let verifier = Verifier::new(vec![Arc::new(roots)], names, &provider);
        let sent = ServerName::try_from("a.example.com").unwrap();
        for (others, is_fine) in [(0, true), (5, true), (6, false)] {
            let others = vec![own.clone(); others];
            let verdict = verifier.verify_server_cert(&own, &others, &sent, &[], UnixTime::now());
            assert_eq!(verdict.is_ok(), is_fine, "{verdict:?}");
        }
        // Nor any of several that have one name.
        let others = [authority(), authority()].map(|made| made.der().clone());
        let verdict = verifier.verify_server_cert(&own, &others, &sent, &[], UnixTime::now());
        assert!(verdict.unwrap_err().to_string().contains("Ambiguous"));
    }

    /// Each authority would cost the verification of a signature, and a team may name hundreds.
    #[test]
    fn too_many_authorities_of_one_name_are_refused_before_a_signature_is_verified() {
        let authority_of = |name: &str| {
            let mut params = CertificateParams::new([]).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.distinguished_name.push(DnType::CommonName, name);
            CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
        };
        let same: Vec<_> = (0..=MAX_AUTHORITIES_OF_A_NAME)
            .map(|_| authority_of("authority"))
            .collect();
        let others: Vec<_> = (0..20)
            .map(|index| authority_of(&index.to_string()))
            .collect();
        let own = leaf(&["a.example.com"], &[], &same[0]);
        let names = [exact("a.example.com")];
        // However many there are of other names, and however often one of them is named.
        let mut few: Vec<_> = same[1..MAX_AUTHORITIES_OF_A_NAME]
            .iter()
            .chain(&others)
            .collect();
        few.extend([&same[0]; 20]);
        assert!(judge_by(&few, &names, &own));
        assert!(!judge_by(&same.iter().collect::<Vec<_>>(), &names, &own));
    }

    #[test]
    fn one_of_the_names_has_to_be_there() {
        let ca = authority();
        let wildcard = |suffix: &str| AltName::Wildcard(suffix.into());
        let uri = |uri: &str| AltName::Uri(uri.into());
        let both = leaf(&["a.example.com"], &[URI], &ca);
        let wild = leaf(&["*.example.com"], &[], &ca);
        let cases: [(&CertificateDer<'_>, &[AltName], bool); 15] = [
            (&both, &[exact("a.example.com")], true),
            (&both, &[exact("A.Example.com")], true),
            (&both, &[exact("b.example.com")], false),
            (&both, &[exact("example.com")], false),
            (&both, &[exact("sent.example.com")], false),
            (&wild, &[exact("b.example.com")], true),
            (&wild, &[exact("c.b.example.com")], false),
            (&both, &[uri(URI)], true),
            (&both, &[uri("spiffe://example.com/ns")], false),
            (&both, &[uri("SPIFFE://example.com/ns/team-a")], false),
            (&both, &[exact("b.example.com"), uri(URI)], true),
            (&both, &[wildcard("example.com")], true),
            (&wild, &[wildcard("example.com")], true),
            (&both, &[wildcard("com"), wildcard("a.example.com")], false),
            (&both, &[], false),
        ];
        for (certificate, names, expected) in cases {
            assert_eq!(judge(&ca, names, certificate), expected, "{names:?}");
        }
    }

    #[test]
    fn a_name_is_worth_nothing_without_the_chain() {
        let (ours, other) = (authority(), authority());
        let certificate = leaf(&["a.example.com"], &[URI], &other);
        let names = [exact("a.example.com"), AltName::Uri(URI.into())];
        assert!(judge(&other, &names, &certificate));
        assert!(!judge(&ours, &names, &certificate));
        // The chain may lead to any of the bundles.
        assert!(judge_by(&[&ours, &other], &names, &certificate));
        assert!(!judge_by(&[], &names, &certificate));
        // An authority is not a backend.
        assert!(!judge(&ours, &names, ours.der()));
    }
}
