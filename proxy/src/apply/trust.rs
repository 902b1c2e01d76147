//! Owns trust bundles: CA certificates by which the certificates of clients and backends are checked. They are parsed
//! once. It also knows which listeners and backends have to be built again when a bundle changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use vestibule_stream::proto;

use super::reject::RejectReason;
use crate::pack::pack;

/// Most certificates in one bundle. This is several times as many as a browser trusts.
const MAX_CERTIFICATES: usize = 1024;
/// Most bytes of one bundle. This is as much as a ConfigMap can hold.
const MAX_BYTES: usize = 1024 * 1024;

/// A bundle, checked.
pub(super) struct HeldTrust {
    roots: Arc<RootCertStore>,
    digest: [u8; 32],
}

impl HeldTrust {
    pub(super) fn parse(name: &str, wire: &proto::TrustBundle) -> Result<Self, RejectReason> {
        super::resource_names::trust_bundle_name(name)?;
        let bytes: usize = wire.certificates.iter().map(Vec::len).sum();
        if wire.certificates.len() > MAX_CERTIFICATES || bytes > MAX_BYTES {
            return Err(RejectReason::TooLarge("the trust bundle"));
        }
        if wire.certificates.is_empty() {
            return Err(RejectReason::MissingField("certificates"));
        }
        let mut roots = RootCertStore::empty();
        let mut seen = BTreeSet::new();
        let mut digest = Sha256::new();
        for (index, der) in wire.certificates.iter().enumerate() {
            // The length goes in before each certificate, so that two different bundles never have the same input.
            digest.update((der.len() as u64).to_be_bytes());
            digest.update(der);
            if !seen.insert(&der[..]) {
                continue;
            }
            roots
                .add(CertificateDer::from(&der[..]))
                .map_err(|error| RejectReason::InvalidTrustBundle(index, error.to_string()))?;
        }
        roots.roots.shrink_to_fit();
        Ok(Self {
            roots: Arc::new(roots),
            digest: digest.finalize().into(),
        })
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.digest == other.digest
    }

    /// The trust anchors.
    pub(super) fn roots(&self) -> &Arc<RootCertStore> {
        &self.roots
    }

    pub(super) fn len(&self) -> usize {
        self.roots.len()
    }
}

/// The union of several bundles.
#[derive(Clone)]
pub(super) struct Trust {
    pub(super) roots: Arc<RootCertStore>,
    /// Digest. It is the same for the same certificates, with the bundles in the same order.
    pub(super) digest: [u8; 32],
}

/// The unions that are in use.
#[derive(Default)]
pub(super) struct Unions(BTreeMap<[u8; 32], Weak<RootCertStore>>);

impl Unions {
    /// The union of `bundles`; `None` if there are none. If there is only one, it is shared instead of copied. So are
    /// unions of the same bundles: every listener of a port has one.
    pub(super) fn of<'a>(
        &mut self,
        bundles: impl Iterator<Item = &'a HeldTrust> + Clone,
    ) -> Option<Trust> {
        let first = bundles.clone().next()?;
        let mut digest = first.digest;
        for bundle in bundles.clone().skip(1) {
            let both = Sha256::new().chain_update(digest);
            digest = both.chain_update(bundle.digest).finalize().into();
        }
        if digest == first.digest {
            let roots = Arc::clone(&first.roots);
            return Some(Trust { roots, digest });
        }
        if let Some(roots) = self.0.get(&digest).and_then(Weak::upgrade) {
            return Some(Trust { roots, digest });
        }
        self.0.retain(|_, union| union.strong_count() > 0);
        let mut roots = RootCertStore::empty();
        for bundle in bundles {
            roots.extend(bundle.roots.roots.iter().cloned());
        }
        let roots = Arc::new(roots);
        self.0.insert(digest, Arc::downgrade(&roots));
        Some(Trust { roots, digest })
    }
}

/// Pairs of a resource and a user that refers to it. The resource need not be held.
#[derive(Default)]
pub(super) struct Users(BTreeSet<(Arc<str>, Arc<str>)>);

impl Users {
    pub(super) fn add(&mut self, used: &Arc<str>, by: &Arc<str>) {
        self.0.insert((Arc::clone(used), Arc::clone(by)));
    }

    pub(super) fn remove(&mut self, used: &Arc<str>, by: &Arc<str>) {
        self.0.remove(&(Arc::clone(used), Arc::clone(by)));
    }

    pub(super) fn pack(&mut self) {
        pack(&mut self.0);
    }

    /// The name of a resource, in the allocation that its users share.
    pub(super) fn known(&self, used: &str) -> Option<&Arc<str>> {
        let from = (Arc::from(used), Arc::from(""));
        let (first, _) = self.0.range(from..).next()?;
        (**first == *used).then_some(first)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn of<'a>(&'a self, used: &'a Arc<str>) -> impl Iterator<Item = &'a Arc<str>> {
        let from = (Arc::clone(used), Arc::from(""));
        let users = self.0.range(from..);
        users
            .take_while(move |(name, _)| name == used)
            .map(|(_, by)| by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn der(name: &str) -> Vec<u8> {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        made.cert.der().to_vec()
    }

    fn parse(certificates: &[&[u8]]) -> Result<HeldTrust, RejectReason> {
        let certificates = certificates.iter().map(|der| der.to_vec()).collect();
        HeldTrust::parse("ConfigMap/team-a/ca", &proto::TrustBundle { certificates })
    }

    fn reason(certificates: &[&[u8]]) -> &'static str {
        parse(certificates).err().map_or("", |error| error.reason())
    }

    #[test]
    fn bundles_are_checked() {
        let (a, b) = (der("a.example.com"), der("b.example.com"));
        assert_eq!(parse(&[&a, &b]).unwrap().len(), 2);
        assert_eq!(parse(&[&a, &b, &a]).unwrap().len(), 2);
        assert_eq!(reason(&[]), "MissingField");
        assert_eq!(reason(&[&a, b"x"]), "InvalidTrustBundle");
        assert_eq!(reason(&[&[&a[..], b"x"].concat()]), "InvalidTrustBundle");
        assert_eq!(reason(&vec![&a[..]; MAX_CERTIFICATES + 1]), "TooLarge");
        assert_eq!(reason(&[&vec![0; MAX_BYTES + 1]]), "TooLarge");
        let bundle = proto::TrustBundle {
            certificates: vec![a],
        };
        for name in [
            "team-a/ca",
            "Service/team-a/ca",
            "ConfigMap/team-a/ca/x",
            "ConfigMap//ca",
        ] {
            let error = HeldTrust::parse(name, &bundle).err().unwrap();
            assert_eq!(error.reason(), "InvalidName", "{name}");
        }
    }

    #[test]
    fn a_union_has_all_and_tells_what_it_is_of() {
        let (a, b) = (der("a.example.com"), der("b.example.com"));
        let (a, b) = (parse(&[&a]).unwrap(), parse(&[&b]).unwrap());
        let mut unions = Unions::default();
        assert!(unions.of([].into_iter()).is_none());
        let alone = unions.of([&a].into_iter()).unwrap();
        assert!(Arc::ptr_eq(&alone.roots, &a.roots));
        let both = unions.of([&a, &b].into_iter()).unwrap();
        assert_eq!(both.roots.len(), 2);
        assert_eq!(a.len(), 1);
        assert_ne!(both.digest, alone.digest);
        // Another listener does not make another copy.
        let again = unions.of([&a, &b].into_iter()).unwrap();
        assert!(Arc::ptr_eq(&again.roots, &both.roots));
        let turned = unions.of([&b, &a].into_iter()).unwrap();
        assert_ne!(turned.digest, both.digest);
        // The next new union forgets those that nobody uses.
        drop((both, again, turned));
        unions.of([&a, &b].into_iter()).unwrap();
        assert_eq!(unions.0.len(), 1);
    }

    #[test]
    fn users_are_of_one_resource() {
        let mut users = Users::default();
        let names = ["a", "ab", "b", "x", "y"].map(Arc::<str>::from);
        let [a, ab, b, x, y] = &names;
        for (used, by) in [(a, x), (a, y), (ab, x), (b, y)] {
            users.add(used, by);
        }
        assert_eq!(users.of(a).collect::<Vec<_>>(), [x, y]);
        users.remove(a, x);
        assert_eq!(users.of(a).collect::<Vec<_>>(), [y]);
        assert_eq!(users.of(ab).collect::<Vec<_>>(), [x]);
        assert_eq!(users.of(x).count(), 0);
    }
}
