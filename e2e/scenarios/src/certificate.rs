//! Certificates of the scenarios: a root, an intermediate below it, and leaves.
//!
//! There is an intermediate, because a chain of one certificate cannot show that the chain is served.

use anyhow::{Context as _, Result};
use jiff::civil::Date;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_RSA_SHA256, RsaKeySize,
};
use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

/// A root and its intermediate.
pub(crate) struct Authority {
    name: String,
    root: String,
    intermediate: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A leaf with what clients need to verify it.
pub(crate) struct Leaf {
    /// Leaf and intermediate, as PEM.
    pub(crate) chain: String,
    /// Private key, as PEM.
    pub(crate) key: String,
}

impl Leaf {
    /// The leaf itself, as a client sees it.
    pub(crate) fn certificate(&self) -> Result<CertificateDer<'static>> {
        CertificateDer::from_pem_slice(self.chain.as_bytes()).context("own leaf")
    }
}

impl Authority {
    /// Makes a root and an intermediate that carry the name.
    pub(crate) fn new(name: &str) -> Result<Self> {
        let root_key = KeyPair::generate()?;
        let root_params = authority(&format!("{name} root"))?;
        let root = root_params.self_signed(&root_key)?;
        let root_issuer = Issuer::new(root_params, root_key);
        let key = KeyPair::generate()?;
        let params = authority(&format!("{name} intermediate"))?;
        let intermediate = params.signed_by(&key, &root_issuer)?;
        Ok(Self {
            name: name.to_owned(),
            root: root.pem(),
            intermediate: intermediate.pem(),
            issuer: Issuer::new(params, key),
        })
    }

    /// Signs a leaf for the hostnames.
    pub(crate) fn leaf(&self, hostnames: &[&str]) -> Result<Leaf> {
        let key = KeyPair::generate()?;
        self.sign(hostnames, ExtendedKeyUsagePurpose::ServerAuth, &key)
    }

    /// The same with an RSA key of 4096 bits, which is slow to sign with.
    pub(crate) fn rsa_leaf(&self, hostnames: &[&str]) -> Result<Leaf> {
        let key = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_4096)?;
        self.sign(hostnames, ExtendedKeyUsagePurpose::ServerAuth, &key)
    }

    /// Signs a leaf for a client.
    pub(crate) fn client(&self) -> Result<Leaf> {
        let key = KeyPair::generate()?;
        self.sign(&[], ExtendedKeyUsagePurpose::ClientAuth, &key)
    }

    fn sign(
        &self,
        hostnames: &[&str],
        purpose: ExtendedKeyUsagePurpose,
        key: &KeyPair,
    ) -> Result<Leaf> {
        let hostnames: Vec<String> = hostnames.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(hostnames)?;
        params
            .distinguished_name
            .push(DnType::CommonName, format!("{} leaf", self.name));
        params.extended_key_usages = vec![purpose];
        let leaf = params.signed_by(key, &self.issuer)?;
        Ok(Leaf {
            chain: leaf.pem() + &self.intermediate,
            key: key.serialize_pem(),
        })
    }

    /// The root's certificate, as PEM.
    pub(crate) fn root(&self) -> &str {
        &self.root
    }

    /// The intermediate's certificate and key, as PEM: for whoever signs on its own.
    pub(crate) fn issuing(&self) -> (&str, String) {
        (&self.intermediate, self.issuer.key().serialize_pem())
    }

    /// Common name of the intermediate, as clients print it.
    pub(crate) fn intermediate_name(&self) -> String {
        format!("{} intermediate", self.name)
    }

    /// What a client that trusts this root verifies with.
    pub(crate) fn roots(&self) -> Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from_pem_slice(self.root.as_bytes()).context("own root")?;
        roots.add(root)?;
        Ok(roots)
    }
}

fn authority(name: &str) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

/// A certificate of an authority with this key (PEM), valid from the one day to the other: as PEM.
pub(crate) fn aged(name: &str, key: &str, from: Date, until: Date) -> Result<String> {
    let day = |date: Date| {
        let part = |number: i8| u8::try_from(number).context("a date");
        let (month, day) = (part(date.month())?, part(date.day())?);
        Ok::<_, anyhow::Error>(rcgen::date_time_ymd(date.year().into(), month, day))
    };
    let mut params = authority(name)?;
    params.not_before = day(from)?;
    params.not_after = day(until)?;
    Ok(params.self_signed(&KeyPair::from_pem(key)?)?.pem())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_carries_its_intermediate() {
        let authority = Authority::new("team").unwrap();
        let leaf = authority.leaf(&["a.example.com"]).unwrap();
        let chain = CertificateDer::pem_slice_iter(leaf.chain.as_bytes()).count();
        assert_eq!(chain, 2);
        assert_eq!(authority.roots().unwrap().len(), 1);
    }
}
