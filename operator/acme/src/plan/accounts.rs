//! Decides when the account of each issuer is opened and registered.
//!
//! A `ClusterACMEIssuer` is registered when it appears, so that its admin sees at once whether it works. An
//! `ACMEIssuer`, which tenants write, is registered when a certificate first needs it, within the budget of the host
//! that makes the accounts. The budget is by host because CAs count registrations by source address, and all of them
//! come from the operator's address.

use std::sync::Arc;
use std::time::Duration;

use vestibule_model::condition::Truth;
use vestibule_model::key::ObjectKey;
use vestibule_model::object::AcmeIssuer;

use super::issuers::{AccountOpening, Issuer, Waits, same_account};
use super::need::Blocker;
use super::{PlanStep, Planner, Ticket};
use crate::backoff;
use crate::client::{AccountInfo, OpenedAccount, Registering};
use crate::clock::{Now, time};
use crate::effects::IssuerState;
use crate::problem::{AcmeFailure, FailureKind, clean};

impl Planner {
    pub(super) fn issuer_changed(
        &mut self,
        key: &ObjectKey,
        spec: Option<Arc<AcmeIssuer>>,
        now: Now,
    ) {
        match spec {
            None => {
                if self.issuers.all.remove(key).is_some() {
                    self.steps.push(PlanStep::DropAccount(key.clone()));
                }
            }
            Some(spec) => match self.issuers.all.get_mut(key) {
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
                        unregistered: false,
                        needed: None,
                        host: None,
                        waits: None,
                        trouble: None,
                    };
                    if let Some(refusal) = issuer.spec.refusal().filter(|_| !issuer.foreign) {
                        let issuer_state = IssuerState {
                            ready: Truth::False,
                            reason: "Invalid",
                            message: format!("{}: {}", refusal.field, refusal.message),
                            account_url: None,
                            problem: None,
                        };
                        self.steps.push(PlanStep::Issuer(key.clone(), issuer_state));
                    }
                    if self.issuers.all.insert(key.clone(), issuer).is_some() {
                        // Orders of the changed issuer must not go to the account that the former one had.
                        self.steps.push(PlanStep::DropAccount(key.clone()));
                    }
                }
            },
        }
        self.issuer_news(key);
    }

    /// Reconsiders every certificate that uses this issuer.
    fn issuer_news(&mut self, key: &ObjectKey) {
        for secret in self.by_issuer.get(key).cloned().unwrap_or_default() {
            self.reconsider(&secret);
        }
    }

    /// Records that a certificate lacks nothing but the account.
    pub(super) fn issuer_needed(&mut self, key: &ObjectKey, now: Now) {
        if let Some(issuer) = self.issuers.all.get_mut(key) {
            issuer.needed.get_or_insert(now.steady);
        }
    }

    /// Whether some certificate still lacks nothing but the account.
    fn is_needed(&self, key: &ObjectKey, now: Now) -> bool {
        let users = self.by_issuer.get(key).into_iter().flatten();
        users
            .filter_map(|secret| self.entries.get(secret))
            .any(|entry| {
                let blocker = self.assessment(entry, now).blocker;
                entry.seen && blocker == Some(Blocker::IssuerNotReady)
            })
    }

    /// Opens and registers accounts. It begins with those of cluster issuers at once. Of tenants' issuers, it opens as
    /// many at a time as there are slots for orders, in the same shares.
    pub(super) fn open_accounts(&mut self, now: Now) {
        let mut next: Option<Duration> = None;
        let mut later = |at: Duration| next = Some(next.map_or(at, |next| next.min(at)));
        let mut platforms = Vec::new();
        let mut tenants = Vec::new();
        for (key, issuer) in &self.issuers.all {
            if !issuer.wants_account() {
                continue;
            }
            if issuer.not_before > now.steady {
                later(issuer.not_before);
            } else if issuer.is_tenants() {
                tenants.push(key.clone());
            } else {
                platforms.push(key.clone());
            }
        }
        for key in platforms {
            self.open_account(&key, Registering::Anywhere);
        }
        while self.issuers.opening.len() < self.settings.in_flight {
            let Some((place, how)) = self.next_to_open(&tenants, now) else {
                break;
            };
            let key = tenants.swap_remove(place);
            if let Registering::At(host) = &how {
                // The certificate that needed it may be gone by now.
                if !self.is_needed(&key, now) {
                    if let Some(issuer) = self.issuers.all.get_mut(&key) {
                        issuer.needed = None;
                    }
                    continue;
                }
                let namespace = &key.name.namespace;
                self.registrations.take(host, namespace, now.steady);
            }
            self.open_account(&key, how);
        }
        for key in tenants {
            if let Some(wait) = self.registration_wait(&key, now) {
                later(now.steady + wait);
                self.say_waits(&key, wait, now);
            }
        }
        self.issuers.next = next;
    }

    /// How long a tenant's issuer waits for the budget of registrations, or `None` if it does not.
    fn registration_wait(&self, key: &ObjectKey, now: Now) -> Option<Duration> {
        let issuer = self.issuers.get(key).filter(|issuer| issuer.unregistered)?;
        let namespace = &key.name.namespace;
        let wait = self
            .registrations
            .wait(&issuer.host(), namespace, now.steady);
        (wait > Duration::ZERO).then_some(wait)
    }

    /// Chooses the account to open next: one of the namespace that has the fewest being opened and, for registrations,
    /// that has registered the least at the host.
    fn next_to_open(&self, tenants: &[ObjectKey], now: Now) -> Option<(usize, Registering)> {
        let share = self.settings.share();
        let candidates = tenants.iter().enumerate().filter_map(|(place, key)| {
            let issuer = self.issuers.get(key)?;
            let namespace = &key.name.namespace;
            let opening = self.issuers.opening.values();
            let opening = opening.filter(|opening| opening.namespace == *namespace);
            let opening = opening.count();
            if opening >= share || self.registration_wait(key, now).is_some() {
                return None;
            }
            let (taken, how) = if issuer.unregistered {
                let host = issuer.host();
                let taken = self.registrations.taken(&host, namespace, now.steady);
                (taken, Registering::At(host))
            } else {
                (0, Registering::No)
            };
            Some(((opening, taken, issuer.needed, place), how))
        });
        let (first, how) = candidates.min_by(|(a, _), (b, _)| a.cmp(b))?;
        Some((first.3, how))
    }

    fn open_account(&mut self, key: &ObjectKey, registering: Registering) {
        let ticket = self.ticket();
        let Some(issuer) = self.issuers.all.get_mut(key) else {
            return;
        };
        issuer.ticket = Some(ticket);
        issuer.waits = None;
        if issuer.is_tenants() {
            let opening = AccountOpening {
                namespace: key.name.namespace.clone(),
                host: match &registering {
                    Registering::At(host) => Some(host.clone()),
                    Registering::No | Registering::Anywhere => None,
                },
            };
            self.issuers.opening.insert(ticket, opening);
        }
        self.steps.push(PlanStep::Account {
            issuer: issuer.spec.clone(),
            ticket,
            registering,
            again: issuer.again,
        });
    }

    /// Reports that a registration waits for the budget, and until when.
    fn say_waits(&mut self, key: &ObjectKey, wait: Duration, now: Now) {
        let most = self.registrations.per_host();
        let Some(issuer) = self.issuers.all.get_mut(key) else {
            return;
        };
        let until = now
            .wall
            .saturating_add(i64::try_from(wait.as_secs()).unwrap_or_default());
        let known = issuer.waits.as_ref();
        // Report it again only if it moved by a minute, because the two clocks need not agree to the second.
        if known.is_some_and(|waits| waits.until.abs_diff(until) < 60) {
            return;
        }
        let host = clean(&issuer.host(), 253);
        let words = format!(
            "waits for the budget of registrations at {host}, of which ACMEIssuers have {most} in three hours, and \
             those of one namespace a quarter; it is registered at {} at the earliest",
            time(until)
        );
        let issuer_state = IssuerState {
            ready: Truth::Unknown,
            reason: "OverBudget",
            message: words.clone(),
            account_url: None,
            problem: None,
        };
        issuer.waits = Some(Waits { until, words });
        self.steps.push(PlanStep::Issuer(key.clone(), issuer_state));
        let users = self.by_issuer.get(key).into_iter().flatten();
        self.touched.extend(users.cloned());
    }

    pub(super) fn account_opened(
        &mut self,
        key: &ObjectKey,
        ticket: Ticket,
        created: bool,
        result: Result<OpenedAccount<AccountInfo>, AcmeFailure>,
        now: Now,
    ) {
        let namespace = &key.name.namespace;
        // A registration counts even if nothing waits for it any more, but only if it made a new account.
        if let Some(opening) = self.issuers.opening.remove(&ticket)
            && let Some(host) = opening.host
            && !created
        {
            self.registrations
                .give_back(&host, &opening.namespace, now.steady);
        }
        let Some(issuer) = self.issuers.all.get_mut(key) else {
            return;
        };
        if issuer.ticket != Some(ticket) {
            return;
        }
        issuer.ticket = None;
        match result {
            Ok(OpenedAccount::Open {
                account,
                registered,
            }) => {
                let issuer_state = IssuerState {
                    ready: Truth::True,
                    reason: "Registered",
                    message: "the account is registered with the CA".into(),
                    account_url: Some(account.url.clone()),
                    problem: None,
                };
                self.steps.push(PlanStep::Issuer(key.clone(), issuer_state));
                if let Some((host, age)) = registered
                    && issuer.is_tenants()
                {
                    self.registrations
                        .remember(&host, namespace, age, now.steady);
                }
                issuer.again = false;
                issuer.unregistered = false;
                issuer.needed = None;
                issuer.trouble = None;
                issuer.account = Some(account);
            }
            Ok(OpenedAccount::Unregistered { host: Some(host) }) => {
                // Its directory has accounts made at another host, so the registration is counted there. A directory
                // that names a new host each time is followed only once a minute.
                if issuer.host.replace(host).is_some() {
                    issuer.not_before = now.steady + self.random.around(Duration::from_mins(1));
                }
            }
            Ok(OpenedAccount::Unregistered { host: None }) => {
                issuer.unregistered = true;
                issuer.trouble = None;
                let issuer_state = IssuerState {
                    ready: Truth::Unknown,
                    reason: "NotRegistered",
                    message:
                        "the account is registered with the CA when a certificate first needs it"
                            .into(),
                    account_url: None,
                    problem: None,
                };
                self.steps.push(PlanStep::Issuer(key.clone(), issuer_state));
            }
            Err(failure) => self.issuer_failed(key, failure, now),
        }
        self.issuer_news(key);
    }

    /// Records that the CA refuses the account, or that it cannot be opened.
    pub(super) fn issuer_failed(&mut self, key: &ObjectKey, failure: AcmeFailure, now: Now) {
        let Some(issuer) = self.issuers.all.get_mut(key) else {
            return;
        };
        // If many orders fail together, only the first one reports it.
        if issuer.account.is_none() && issuer.trouble.is_some() && now.steady < issuer.not_before {
            return;
        }
        issuer.again = issuer.again || issuer.account.take().is_some();
        // A new account counts against the budget like the first one.
        issuer.unregistered = issuer.unregistered || (issuer.again && issuer.is_tenants());
        issuer.count = issuer.count.saturating_add(1);
        issuer.not_before =
            now.steady + backoff::of_issuer(issuer.count, &failure, &mut self.random);
        let issuer_state = IssuerState {
            ready: Truth::False,
            reason: match failure.kind {
                FailureKind::Unreachable => "Unreachable",
                FailureKind::NotAllowed => "AddressNotAllowed",
                _ => "AccountRefused",
            },
            message: failure.message.clone(),
            account_url: None,
            problem: failure.problem.clone(),
        };
        issuer.trouble = Some(failure);
        self.steps.push(PlanStep::Issuer(key.clone(), issuer_state));
        self.issuer_news(key);
    }

    /// Records that the account is good, because the CA took an order.
    pub(super) fn issuer_works(&mut self, key: &ObjectKey) {
        if let Some(issuer) = self.issuers.all.get_mut(key) {
            issuer.count = 0;
        }
    }
}
