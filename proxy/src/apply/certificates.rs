//! Owns which certificates are held, and what follows when one comes or goes: listeners that use it are built again, and
//! backends are shown it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::State;
use super::tls::HeldCertificate;

impl State {
    pub(super) fn put_certificates<'a>(
        &mut self,
        gone: impl Iterator<Item = &'a str>,
        new: BTreeMap<String, HeldCertificate>,
        rebuild: &mut BTreeSet<Arc<str>>,
    ) {
        for name in gone {
            self.drop_certificate(name, rebuild);
            self.show(name, None);
        }
        for (name, certificate) in new {
            self.hold_certificate(&name, certificate, rebuild);
        }
    }

    pub(super) fn hold_certificate(
        &mut self,
        name: &str,
        certificate: HeldCertificate,
        rebuild: &mut BTreeSet<Arc<str>>,
    ) {
        self.drop_certificate(name, rebuild);
        let name = self.certificate_name(name);
        self.show(&name, Some(&certificate));
        self.expiries.add(certificate.not_after, &name);
        self.certificates.insert(name, certificate);
    }

    pub(super) fn drop_certificate(&mut self, name: &str, rebuild: &mut BTreeSet<Arc<str>>) {
        if let Some((name, old)) = self.certificates.remove_entry(name) {
            self.expiries.remove(old.not_after, &name);
        }
        rebuild.extend(self.certificate_users.of(&name.into()).cloned());
    }
}
