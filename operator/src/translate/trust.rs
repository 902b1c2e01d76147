//! CA certificates: turns ConfigMaps and Secrets into the trust bundles of the proxies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use vestibule_model::certificate::chain::costly_key;
use vestibule_model::certificate::{MAX_AUTHORITIES_OF_A_NAME, MAX_BUNDLE_BYTES};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::object::Object;
use vestibule_model::reference::Reference;
use vestibule_stream::proto::{self, resource};
use vestibule_stream::{Encoded, Resource, ResourceKey, ResourceKind};

use super::{Dirty, Output, Translator, source};

/// Most certificates in a bundle. There are fewer than 200 public CAs.
const MAX_CERTIFICATES: usize = 512;
/// The entry that holds the certificates.
const ENTRY: &str = "ca.crt";

/// The state of a ConfigMap or Secret with CA certificates.
#[derive(Debug, Clone)]
pub(super) enum BundleState {
    /// Nobody has looked yet whether it exists.
    Unread,
    /// It does not exist.
    Missing,
    /// It cannot be used, for this reason.
    Unusable(String),
    /// The certificates as a resource.
    Usable(Arc<Encoded>),
}

/// Name of a bundle on the stream: `<ConfigMap|Secret>/<namespace>/<name>`.
pub(super) fn bundle_name(source: &ObjectKey) -> String {
    format!("{}/{}", source.kind, source.name)
}

pub(super) fn bundle_resource(source: &ObjectKey) -> ResourceKey {
    ResourceKey::new(ResourceKind::TrustBundle, bundle_name(source))
}

impl BundleState {
    fn of(source: &ObjectKey, object: &Object) -> Self {
        let pem = match object {
            Object::ConfigMap(map) => map.authorities.as_ref(),
            Object::Secret(secret) => secret.authorities.as_ref(),
            _ => {
                return Self::Unusable(format!("{source} cannot be read, as its own finding says"));
            }
        };
        let read = pem
            .ok_or_else(|| format!("{source} has no {ENTRY:?}"))
            .and_then(|pem| read(source, pem));
        match read {
            Ok(encoded) => Self::Usable(Arc::new(encoded)),
            Err(problem) => Self::Unusable(problem),
        }
    }
}

fn read(source: &ObjectKey, pem: &[u8]) -> Result<Encoded, String> {
    let wrong = |what: &str| format!("{ENTRY:?} of {source} {what}");
    let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(pem)
        .take(MAX_CERTIFICATES + 1)
        .collect::<Result<_, _>>()
        .map_err(|_| wrong("is not PEM"))?;
    if certificates.is_empty() {
        return Err(wrong("holds no certificate"));
    }
    if certificates.len() > MAX_CERTIFICATES {
        return Err(wrong(&format!(
            "holds more than {MAX_CERTIFICATES} certificates"
        )));
    }
    let bytes: usize = certificates.iter().map(|der| der.len()).sum();
    if bytes > MAX_BUNDLE_BYTES {
        return Err(wrong(&format!(
            "holds {bytes} bytes of certificates, and more than {MAX_BUNDLE_BYTES} cost all who share the proxies too much; \
             leave out what is not needed"
        )));
    }
    let mut anchors = RootCertStore::empty();
    for certificate in &certificates {
        if let Some(key) = costly_key(certificate) {
            return Err(wrong(&format!("holds an authority with {key}")));
        }
        anchors
            .add(certificate.clone())
            .map_err(|_| wrong("holds something that is not an authority"))?;
    }
    let mut of_a_name: BTreeMap<&[u8], BTreeSet<&[u8]>> = BTreeMap::new();
    for anchor in &anchors.roots {
        let keys = of_a_name.entry(&anchor.subject).or_default();
        keys.insert(&anchor.subject_public_key_info);
    }
    if of_a_name
        .values()
        .any(|keys| keys.len() > MAX_AUTHORITIES_OF_A_NAME)
    {
        return Err(wrong(&format!(
            "holds more than {MAX_AUTHORITIES_OF_A_NAME} authorities of one name"
        )));
    }
    let bundle = proto::TrustBundle {
        certificates: certificates.iter().map(|der| der.to_vec()).collect(),
    };
    Encoded::new(&Resource::new(
        bundle_name(source),
        resource::Resource::TrustBundle(bundle),
    ))
    .map_err(|_| wrong("is too large"))
}

/// References to CA certificates, resolved.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Trust {
    /// The sources that may be used, in order, even if they do not exist.
    pub(super) sources: Vec<ObjectKey>,
    /// The findings about references that do not resolve, in order.
    pub(super) broken: Vec<Finding>,
    /// Whether any certificate can be used.
    pub(super) usable: bool,
}

impl Translator {
    /// Resolves the references of `referrer` to CA certificates. The grant is judged first, because
    /// without one nobody may learn whether the target exists. A finding about a kind that is not
    /// supported has the reason `foreign`.
    pub(super) fn follow_trust(
        &mut self,
        referrer: &ObjectKey,
        references: &[Reference],
        foreign: Reason,
        output: &mut Output,
    ) -> Trust {
        let mut trust = Trust::default();
        for reference in references {
            let refuse = |reason, message, action: &str| {
                Finding::refused(reason, &reference.field, message, action)
            };
            let kinds = [Kind::ConfigMap, Kind::Secret];
            let Some(kind) = kinds.into_iter().find(|kind| reference.is(*kind)) else {
                trust.broken.push(refuse(
                    foreign,
                    format!(
                        "{:?} of group {:?} is not supported",
                        reference.kind, reference.group
                    ),
                    "refer to a ConfigMap or a Secret",
                ));
                continue;
            };
            let name = match self.permit(referrer, reference) {
                Ok(name) => name,
                Err(finding) => {
                    trust.broken.push(finding);
                    continue;
                }
            };
            let source = ObjectKey { kind, name };
            let over = self.source_budgets.refusal(&source, &reference.field);
            let problem = match self.bundle_state(&source, output) {
                BundleState::Usable(_) if over.is_some() => {
                    trust.broken.extend(over);
                    None
                }
                BundleState::Usable(_) => {
                    trust.usable = true;
                    None
                }
                BundleState::Unread => {
                    let finding = source::unread(kind, &source.name, &reference.field);
                    trust.broken.push(finding);
                    None
                }
                BundleState::Missing => {
                    let create = "create it, with PEM certificates in \"ca.crt\"";
                    Some(self.absent(source.kind, &source.name, create))
                }
                BundleState::Unusable(problem) => Some((
                    problem.clone(),
                    "put the authority's certificates into \"ca.crt\", in PEM",
                )),
            };
            if let Some((message, action)) = problem {
                let reason = Reason::InvalidCACertificateRef;
                trust.broken.push(refuse(reason, message, action));
            }
            trust.sources.push(source);
        }
        trust
    }

    /// The state of a ConfigMap or Secret. It is computed once for each version of the object.
    pub(super) fn bundle_state(&mut self, source: &ObjectKey, output: &mut Output) -> &BundleState {
        let object = self.objects.get(source);
        let unread = self.is_unread(source);
        self.bundles.entry(source.clone()).or_insert_with(|| {
            output.work.bundles += 1;
            match object {
                Some(object) => BundleState::of(source, object),
                None if unread => BundleState::Unread,
                None => BundleState::Missing,
            }
        })
    }

    /// Brings the resources of trust bundles up to date. A bundle that cannot be used, or is over the budget, is
    /// removed, and what relies on it alone is closed.
    pub(super) fn translate_bundles(&mut self, dirty: &Dirty, output: &mut Output) {
        for source in &dirty.bundles {
            let is_over = self.source_budgets.is_over(source);
            let resource = if self.bundle_users.contains_key(source) {
                match self.bundle_state(source, output) {
                    BundleState::Usable(_) if is_over => None,
                    BundleState::Usable(encoded) => Some((**encoded).clone()),
                    BundleState::Unread | BundleState::Missing | BundleState::Unusable(_) => None,
                }
            } else {
                self.bundles.remove(source);
                None
            };
            self.settle_resource(bundle_resource(source), resource, output);
        }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    /// An authority of this name, with a key of its own.
    fn authority(name: &str) -> String {
        let mut params = CertificateParams::new([]).expect("parameters");
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("a certificate").pem()
    }

    #[test]
    fn a_bundle_has_a_bounded_number_of_authorities_of_one_name() {
        let source = ObjectKey::new(Kind::ConfigMap, "team-a", "ca");
        let read = |pem: &[String]| read(&source, pem.concat().as_bytes());
        let same = || authority("authority");
        let mut pem: Vec<String> = (0..MAX_AUTHORITIES_OF_A_NAME).map(|_| same()).collect();
        // However often each is in it, and however many there are of other names.
        pem.extend(pem.clone());
        pem.extend((0..20).map(|index| authority(&index.to_string())));
        assert!(read(&pem).is_ok());
        pem.push(same());
        let problem = read(&pem).expect_err("too many");
        assert!(problem.contains("of one name"), "{problem}");
    }
}
