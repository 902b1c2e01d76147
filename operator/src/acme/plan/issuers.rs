//! Issuers and their accounts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use vestibule_model::issuer::Engine;
use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::object::AcmeIssuer;

use super::super::backoff;
use super::super::client::Facts;
use super::super::clock::Now;
use super::super::effects::IssuerFact;
use super::super::problem::Failure;
use super::{Planner, Step, Ticket};
use crate::translate::CertificateRequest;

#[derive(Debug, Default)]
pub(super) struct Issuers(BTreeMap<ObjectKey, Issuer>);

#[derive(Debug)]
pub(super) struct Issuer {
    pub(super) spec: Arc<AcmeIssuer>,
    /// It is for another release: nothing is asked of its CA.
    pub(super) foreign: bool,
    pub(super) account: Option<Facts>,
    ticket: Option<Ticket>,
    /// How often in a row its account was of no use.
    count: u32,
    not_before: Duration,
    /// The CA did not know the account.
    again: bool,
    pub(super) trouble: Option<Failure>,
}

impl Issuers {
    pub(super) fn get(&self, key: &ObjectKey) -> Option<&Issuer> {
        self.0.get(key)
    }

    /// Whose account this is.
    pub(super) fn of_account(&self, url: &str) -> Option<&ObjectKey> {
        let mut open = self
            .0
            .iter()
            .filter_map(|(key, issuer)| Some((key, issuer.account.as_ref()?)));
        open.find(|(_, account)| account.url == url)
            .map(|(key, _)| key)
    }

    /// When an account is to be opened.
    pub(super) fn next(&self) -> Option<Duration> {
        self.0
            .values()
            .filter(|issuer| issuer.wants_account())
            .map(|issuer| issuer.not_before)
            .min()
    }
}

impl Issuer {
    fn wants_account(&self) -> bool {
        !self.foreign
            && self.account.is_none()
            && self.ticket.is_none()
            && self.spec.refusal().is_none()
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

/// Whether an account that was opened for one will do for the other.
fn same_account(a: &AcmeIssuer, b: &AcmeIssuer) -> bool {
    a.directory == b.directory
        && a.contact == b.contact
        && a.account_key_secret == b.account_key_secret
        && a.external_account == b.external_account
        && a.profile == b.profile
        && a.ca_bundle == b.ca_bundle
        && a.refusal() == b.refusal()
}

impl Planner {
    pub(super) fn issuer_changed(
        &mut self,
        key: &ObjectKey,
        spec: Option<Arc<AcmeIssuer>>,
        now: Now,
    ) {
        match spec {
            None => {
                self.issuers.0.remove(key);
            }
            Some(spec) => match self.issuers.0.get_mut(key) {
                Some(issuer)
                    if same_account(&issuer.spec, &spec)
                        && issuer.foreign != self.settings.issuers.matches(&spec.labels) =>
                {
                    issuer.spec = spec;
                }
                _ => {
                    let issuer = Issuer {
                        foreign: !self.settings.issuers.matches(&spec.labels),
                        spec,
                        account: None,
                        ticket: None,
                        count: 0,
                        not_before: now.steady,
                        again: false,
                        trouble: None,
                    };
                    if let Some(refusal) = issuer.spec.refusal().filter(|_| !issuer.foreign) {
                        let fact = IssuerFact {
                            ready: false,
                            reason: "Invalid",
                            message: format!("{}: {}", refusal.field, refusal.message),
                            account_url: None,
                            problem: None,
                        };
                        self.steps.push(Step::Issuer(key.clone(), fact));
                    }
                    self.issuers.0.insert(key.clone(), issuer);
                }
            },
        }
        self.issuer_news(key, now);
    }

    /// Everybody who uses it thinks again.
    fn issuer_news(&mut self, key: &ObjectKey, now: Now) {
        for secret in self.by_issuer.get(key).cloned().unwrap_or_default() {
            self.reconsider(&secret, now);
        }
    }

    pub(super) fn open_accounts(&mut self, now: Now) {
        for (key, issuer) in &mut self.issuers.0 {
            if issuer.wants_account() && issuer.not_before <= now.steady {
                self.tickets += 1;
                issuer.ticket = Some(self.tickets);
                self.steps.push(Step::Account {
                    issuer: issuer.spec.clone(),
                    ticket: self.tickets,
                    again: issuer.again,
                });
                debug_assert_eq!(*key, issuer.spec.key);
            }
        }
    }

    pub(super) fn account_opened(
        &mut self,
        key: &ObjectKey,
        ticket: Ticket,
        result: Result<Facts, Failure>,
        now: Now,
    ) {
        let Some(issuer) = self.issuers.0.get_mut(key) else {
            return;
        };
        if issuer.ticket != Some(ticket) {
            return;
        }
        issuer.ticket = None;
        match result {
            Ok(facts) => {
                let fact = IssuerFact {
                    ready: true,
                    reason: "Registered",
                    message: "the account is registered with the CA".into(),
                    account_url: Some(facts.url.clone()),
                    problem: None,
                };
                self.steps.push(Step::Issuer(key.clone(), fact));
                issuer.again = false;
                issuer.trouble = None;
                issuer.account = Some(facts);
            }
            Err(failure) => self.issuer_failed(key, failure, now),
        }
        self.issuer_news(key, now);
    }

    /// The CA does not take the account, or it cannot be opened.
    pub(super) fn issuer_failed(&mut self, key: &ObjectKey, failure: Failure, now: Now) {
        let Some(issuer) = self.issuers.0.get_mut(key) else {
            return;
        };
        // Of many orders that fail together the first says it.
        if issuer.account.is_none() && issuer.trouble.is_some() && now.steady < issuer.not_before {
            return;
        }
        issuer.again = issuer.again || issuer.account.take().is_some();
        issuer.count = issuer.count.saturating_add(1);
        issuer.not_before =
            now.steady + backoff::of_issuer(issuer.count, &failure, &mut self.random);
        let unreachable = failure.kind == super::super::problem::FailureKind::Unreachable;
        let fact = IssuerFact {
            ready: false,
            reason: if unreachable {
                "Unreachable"
            } else {
                "AccountRefused"
            },
            message: failure.message.clone(),
            account_url: None,
            problem: failure.problem.clone(),
        };
        issuer.trouble = Some(failure);
        self.steps.push(Step::Issuer(key.clone(), fact));
        self.issuer_news(key, now);
    }

    /// The CA took an order: the account is good.
    pub(super) fn issuer_works(&mut self, key: &ObjectKey) {
        if let Some(issuer) = self.issuers.0.get_mut(key) {
            issuer.count = 0;
        }
    }
}
