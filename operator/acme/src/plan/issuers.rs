//! The state of issuers and their accounts, as planning knows it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use vestibule_model::issuance::CertificateRequest;
use vestibule_model::issuer::Engine;
use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::object::AcmeIssuer;

use super::Ticket;
use crate::client::{AccountInfo, host_of};
use crate::problem::AcmeFailure;

#[derive(Debug, Default)]
pub(super) struct Issuers {
    pub(super) all: BTreeMap<ObjectKey, Issuer>,
    /// Accounts of tenants' issuers that are being opened or registered.
    pub(super) opening: BTreeMap<Ticket, AccountOpening>,
    /// When the next account may be opened, if only time is missing.
    pub(super) next: Option<Duration>,
}

/// The account of a tenant's issuer that is being opened or registered.
#[derive(Debug)]
pub(super) struct AccountOpening {
    pub(super) namespace: Arc<str>,
    /// The host at which a registration is counted for it.
    pub(super) host: Option<Arc<str>>,
}

#[derive(Debug)]
pub(super) struct Issuer {
    pub(super) spec: Arc<AcmeIssuer>,
    /// Whether it belongs to another release. Its CA is then never asked.
    pub(super) foreign: bool,
    pub(super) account: Option<AccountInfo>,
    pub(super) ticket: Option<Ticket>,
    /// How many times in a row its account could not be used.
    pub(super) count: u32,
    pub(super) not_before: Duration,
    /// Whether the CA did not know the account.
    pub(super) again: bool,
    /// Whether there is no account, and none may be made before a certificate needs it.
    pub(super) unregistered: bool,
    /// Since when a certificate has needed it.
    pub(super) needed: Option<Duration>,
    /// The host at which the directory has accounts made, if the directory was read.
    pub(super) host: Option<Arc<str>>,
    /// The wait for the budget of registrations, if it waits for that.
    pub(super) waits: Option<Waits>,
    pub(super) trouble: Option<AcmeFailure>,
}

/// A wait for the budget of registrations.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Waits {
    /// When it ends, in seconds by our clock.
    pub(super) until: i64,
    /// The explanation for people.
    pub(super) words: String,
}

impl Issuers {
    pub(super) fn get(&self, key: &ObjectKey) -> Option<&Issuer> {
        self.all.get(key)
    }

    /// The issuer with this account.
    pub(super) fn of_account(&self, url: &str) -> Option<&ObjectKey> {
        let mut open = self
            .all
            .iter()
            .filter_map(|(key, issuer)| Some((key, issuer.account.as_ref()?)));
        open.find(|(_, account)| account.url == url)
            .map(|(key, _)| key)
    }

    /// When the next account is to be opened.
    pub(super) fn next(&self) -> Option<Duration> {
        self.next
    }
}

impl Issuer {
    pub(super) fn wants_account(&self) -> bool {
        !self.foreign
            && self.account.is_none()
            && self.ticket.is_none()
            && self.spec.refusal().is_none()
            && (!self.unregistered || self.needed.is_some())
    }

    /// Whether it is of the kind that tenants write.
    pub(super) fn is_tenants(&self) -> bool {
        self.spec.key.kind == Kind::AcmeIssuer
    }

    /// The host at which an account would be made, as far as it is known: the directory may name
    /// another one.
    pub(super) fn host(&self) -> Arc<str> {
        let known = self.host.clone();
        known
            .or_else(|| host_of(&self.spec.directory))
            .unwrap_or_default()
    }
}

/// The issuer that a request names.
pub(super) fn key_of(request: &CertificateRequest) -> Option<ObjectKey> {
    let issuer = request.issuer.as_ref()?;
    if issuer.engine != Engine::Acme {
        return None;
    }
    Some(if *issuer.kind == *Kind::ClusterAcmeIssuer.as_str() {
        ObjectKey::new(Kind::ClusterAcmeIssuer, "", issuer.name.clone())
    } else {
        ObjectKey::new(
            Kind::AcmeIssuer,
            request.secret.namespace.clone(),
            issuer.name.clone(),
        )
    })
}

/// Whether an account that was opened for `a` can be used for `b`.
pub(super) fn same_account(a: &AcmeIssuer, b: &AcmeIssuer) -> bool {
    a.directory == b.directory
        && a.contact == b.contact
        && a.account_key_secret == b.account_key_secret
        && a.external_account == b.external_account
        && a.profile == b.profile
        && a.ca_bundle == b.ca_bundle
        && a.refusal() == b.refusal()
}
