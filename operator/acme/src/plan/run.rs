//! Owns the steps of an order. Each starts a task, or rests until there is something to do.

use std::collections::BTreeMap;
use std::time::Duration;

use vestibule_backoff::Backoff;
use vestibule_model::challenge::{ChallengeKey, ChallengeType, Reach};
use vestibule_model::key::{ObjectKey, ObjectName};

use super::{After, PlanStep, Planner, Publish, Stage, Task};
use crate::client::View;
use crate::clock::Now;
use crate::effects::ChallengeAck;
use crate::problem::{AcmeFailure, FailureKind};

/// Largest number of times that an order is finalized.
const FINALIZED: u32 = 5;
/// This many times, the wait before the next look at an order follows `LOOKS`. After that it is
/// `SELDOM`.
const OFTEN: u32 = 30;
const LOOKS: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
const SELDOM: Duration = Duration::from_mins(1);

impl Planner {
    /// Makes an order.
    pub(super) fn order(&mut self, secret: &ObjectName, renewal: bool, now: Now) {
        let given_up = self.entries.get_mut(secret);
        let given_up = given_up.and_then(|entry| entry.given_up.take());
        let Some(entry) = self.entries.get(secret) else {
            return;
        };
        let (Some(key), Some(wanted)) = (entry.issuer.clone(), self.wanted(entry)) else {
            self.leave(secret);
            return;
        };
        let account = self.account_of(entry).map(|account| account.url.clone());
        let issued = entry.state.issued.as_ref();
        // A CA lets an account replace only certificates of its own.
        let ours = issued.is_some_and(|issued| Some(&issued.account) == account.as_ref());
        let replaces = entry.record.as_ref().and_then(|record| record.leaf.clone());
        let task = Task::Order {
            hostnames: entry.request.hostnames.clone(),
            profile: self
                .issuers
                .get(&key)
                .and_then(|issuer| issuer.spec.profile.clone()),
            replaces: replaces.filter(|_| ours && renewal),
            given_up,
            issuer: key,
        };
        if let Some(entry) = self.entries.get_mut(secret) {
            entry.ordering = Some((wanted.all, renewal));
            entry.state.ordered_at = Some(now.wall);
            entry.state.renewal = renewal;
        }
        self.stage(secret, Stage::Order);
        self.start(secret, task);
    }

    /// Goes on with an order from where it is.
    pub(super) fn resume(&mut self, secret: &ObjectName, now: Now) {
        let Some(entry) = self.entries.get(secret) else {
            return;
        };
        let Some(running) = &entry.running else {
            self.leave(secret);
            return;
        };
        let published = !entry.published.is_empty() && !running.declared && running.is_known();
        if running.chain.is_some() {
            self.write(secret, After::Issued);
        } else if !running.persisted {
            self.write(secret, After::Ordered);
        } else if published && entry.trouble.is_none() && now.steady < running.deadline {
            self.declare(secret, now);
        } else {
            self.look(secret);
        }
    }

    pub(super) fn look(&mut self, secret: &ObjectName) {
        let hostnames = self.entries.get(secret);
        let hostnames = hostnames.map(|entry| entry.request.hostnames.clone());
        let (Some((issuer, url)), Some(hostnames)) = (self.order_of(secret), hostnames) else {
            self.leave(secret);
            return;
        };
        let task = Task::Look {
            issuer,
            url,
            hostnames,
        };
        self.stage(secret, Stage::Look);
        self.start(secret, task);
    }

    pub(super) fn order_of(&self, secret: &ObjectName) -> Option<(ObjectKey, String)> {
        let entry = self.entries.get(secret)?;
        Some((entry.issuer.clone()?, entry.running.as_ref()?.url.clone()))
    }

    /// Tells the CA that the challenges are answered, if every proxy has them.
    fn declare(&mut self, secret: &ObjectName, now: Now) {
        let Some(entry) = self.entries.get(secret) else {
            return;
        };
        let refused = entry.published.values().find_map(|ack| match ack {
            ChallengeAck::Refused(why) => Some(why.clone()),
            _ => None,
        });
        if let Some(why) = refused {
            self.withdraw(secret);
            let message = format!("the challenge cannot be answered: {why}");
            self.pause(secret, AcmeFailure::unreachable(message), now);
            return;
        }
        if entry.held_up() {
            self.rest(secret);
            return;
        }
        let names = entry
            .published
            .keys()
            .map(|key| (key.hostname.clone(), key.kind))
            .collect();
        let gateway = entry.request.gateway.clone();
        let hostnames = entry.request.hostnames.clone();
        let Some((issuer, url)) = self.order_of(secret) else {
            self.leave(secret);
            return;
        };
        let task = Task::Declare {
            issuer,
            url,
            gateway,
            hostnames,
            names,
        };
        self.stage(secret, Stage::Declare);
        self.start(secret, task);
    }

    pub(super) fn publish(&mut self, secret: &ObjectName, view: &View, now: Now) {
        let Some(entry) = self.entries.get_mut(secret) else {
            return;
        };
        let issuer = entry.issuer.as_ref().and_then(|key| self.issuers.get(key));
        let Some((issuer, account)) = issuer.and_then(|i| Some((i, i.account.as_ref()?))) else {
            self.rest(secret);
            return;
        };
        // A CA that wants to check another name is wrong. No listener would reach such a name, so nobody would wait for a
        // change, and the CA would be asked again without a pause.
        let mut names = view.names.iter();
        if names.any(|name| !entry.request.hostnames.contains(&name.hostname)) {
            // That name may be another team's, so it is not shown.
            let message = "the CA wants to check a name that the order is not for";
            let failure = AcmeFailure::new(FailureKind::Rejected, message);
            return self.fail(secret, failure, now);
        }
        let mut keys = Vec::new();
        for name in view.names.iter().filter(|name| !name.valid) {
            let reachable = |kind: ChallengeType| entry.reach(&name.hostname, kind) == Reach::Ours;
            let ways = issuer
                .spec
                .challenges
                .iter()
                .filter(|kind| reachable(**kind));
            let offer = ways
                .clone()
                .find_map(|kind| name.offers.iter().find(|(offered, _)| offered == kind));
            let Some((kind, token)) = offer else {
                // Either no challenge reaches us any more, which the assessment reports, or the CA
                // offers only other types.
                if ways.count() == 0 {
                    self.leave(secret);
                    self.dirty.insert(secret.clone());
                } else {
                    let message = format!(
                        "the CA offers no way to check {} that the issuer allows",
                        name.hostname
                    );
                    self.fail(
                        secret,
                        AcmeFailure::new(FailureKind::Rejected, message),
                        now,
                    );
                }
                return;
            };
            let key = ChallengeKey {
                gateway: entry.request.gateway.clone(),
                kind: *kind,
                hostname: name.hostname.clone(),
                token: match kind {
                    ChallengeType::TlsAlpn01 => "".into(),
                    ChallengeType::Http01 => token.as_str().into(),
                },
            };
            keys.push((key, format!("{token}.{}", account.thumbprint)));
        }
        if keys.is_empty() {
            // The CA has checked all names and will change the state of the order soon.
            self.poll(secret, view.retry_after, now);
            return;
        }
        // A challenge of another type for the same name must not be declared with the rest, so
        // withdraw it.
        let needed = |key: &ChallengeKey| keys.iter().any(|(needed, _)| needed == key);
        let (kept, gone): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut entry.published)
            .into_iter()
            .partition(|(key, _)| needed(key));
        entry.published = kept;
        self.steps.extend(gone.into_keys().map(PlanStep::Withdraw));
        for (key, key_authorization) in keys {
            // A challenge that is published already keeps its acknowledgements.
            if !entry.published.contains_key(&key) {
                let waiting = ChallengeAck::Waiting { acked: 0, of: 0 };
                entry.published.insert(key.clone(), waiting);
                let publish = Publish {
                    tenant: secret.namespace.clone(),
                    key_authorization,
                };
                self.steps.push(PlanStep::Publish(key, publish));
            }
        }
        // It goes on when the proxies have the challenges, and needs no slot until then.
        self.rest(secret);
    }

    /// Asks again later, with a growing wait, and gives up its slot until then.
    pub(super) fn poll(&mut self, secret: &ObjectName, said: Option<Duration>, now: Now) {
        let Some(entry) = self.entries.get_mut(secret) else {
            return;
        };
        let Some(running) = &mut entry.running else {
            self.leave(secret);
            return;
        };
        let wait = match running.looks {
            looks @ ..OFTEN => LOOKS.delay(looks),
            _ => SELDOM,
        };
        running.looks = running.looks.saturating_add(1);
        let said = said.unwrap_or_default().min(Duration::from_mins(1));
        let wait = self.random.around(wait).max(said);
        entry.not_before = now.steady + wait;
        self.rest(secret);
    }

    pub(super) fn finalize(&mut self, secret: &ObjectName, now: Now) {
        let Some(entry) = self.entries.get(secret) else {
            return;
        };
        let (Some(issuer), Some(running)) = (entry.issuer.clone(), &entry.running) else {
            self.leave(secret);
            return;
        };
        if running.finalized >= FINALIZED {
            let failure = AcmeFailure::new(FailureKind::Other, "the CA does not finish the order");
            self.fail(secret, failure, now);
            return;
        }
        let task = Task::Finalize {
            issuer,
            url: running.url.clone(),
            hostnames: entry.request.hostnames.clone(),
            key: running.key.clone(),
        };
        if let Some(running) = self.running(secret) {
            running.finalized += 1;
            running.looks = 0;
        }
        self.stage(secret, Stage::Finalize);
        self.start(secret, task);
    }
}
