//! Remembers what was reported, so that only changes are printed. It also builds the document that `/status` serves.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;
use vestibule_crds::status::Observed;
use vestibule_model::finding::Finding;
use vestibule_model::key::{ListenerKey, ObjectKey};
use vestibule_operator::status;
use vestibule_operator::translate::CONTROLLER;

use super::engine::Engine;
use super::log;
use super::served::Served;
use super::serving::served;
use crate::admission::Admission;
use crate::manifests::tracker::FilePath;
use crate::verdict::{ObjectContext, ObjectOutcome, ObjectVerdict, generation, summary, verdicts};

/// Identifies a verdict: its file, its subject, and its number among those with the same subject in the file.
type Subject = (FilePath, String, usize);

/// What was reported so far.
pub(super) struct View {
    address: IpAddr,
    ports: BTreeMap<u16, u16>,
    verdicts: Option<BTreeMap<Subject, ObjectVerdict>>,
    /// The listeners that are in force, in the version that came into force last.
    in_force: BTreeMap<ListenerKey, Served>,
    /// The last message about each listener whose last version is not in force.
    troubles: BTreeMap<ListenerKey, String>,
    waiting: BTreeSet<ListenerKey>,
    statuses: BTreeMap<ObjectKey, Value>,
}

impl View {
    pub(super) fn new(address: IpAddr, ports: BTreeMap<u16, u16>) -> Self {
        Self {
            address,
            ports,
            verdicts: None,
            in_force: BTreeMap::new(),
            troubles: BTreeMap::new(),
            waiting: BTreeSet::new(),
            statuses: BTreeMap::new(),
        }
    }

    /// Reports the changes, and returns the document of `/status`: the verdicts in the form of `vestibule check`.
    pub(super) fn refresh(&mut self, engine: &Engine, now: Timestamp) -> Arc<str> {
        self.statuses = self.render(engine, now);
        let context = RunContext {
            admission: Admission::of_all(engine.translator(), engine.translator().policy()),
            statuses: &self.statuses,
        };
        let verdicts = verdicts(engine.source(), engine.translator(), &context);
        let document = serde_json::to_string_pretty(&verdicts).unwrap_or_default();
        self.tell_verdicts(verdicts);
        self.tell_served(&served(engine, self.address, &self.ports));
        document.into()
    }

    /// Renders the statuses, with the transition times of those before.
    fn render(&self, engine: &Engine, now: Timestamp) -> BTreeMap<ObjectKey, Value> {
        let translator = engine.translator();
        let render = |(key, new)| {
            let observed = Observed {
                generation: generation(translator, key),
                now: now.as_second(),
            };
            let old = self.statuses.get(key).unwrap_or(&Value::Null);
            let value = status::render(key, old, new, CONTROLLER, observed, |basis| {
                status::programmed(basis, |keys| {
                    status::ack_progress(translator, engine.publisher(), keys)
                })
            });
            (key.clone(), value)
        };
        translator.statuses().iter().map(render).collect()
    }

    fn tell_verdicts(&mut self, verdicts: Vec<ObjectVerdict>) {
        let text = summary(&verdicts);
        let mut now = BTreeMap::new();
        let mut order = Vec::with_capacity(verdicts.len());
        for mut verdict in verdicts {
            verdict.status = None;
            let mut subject = (verdict.file.clone(), verdict.subject(), 0);
            while now.contains_key(&subject) {
                subject.2 += 1;
            }
            order.push(subject.clone());
            now.insert(subject, verdict);
        }
        let mut directory_change = false;
        // The order is by file and line, as in `check`.
        for (subject, verdict) in order
            .iter()
            .filter_map(|subject| now.get_key_value(subject))
        {
            let before = self.verdicts.as_ref().and_then(|all| all.get(subject));
            // A good object gets a line only if it was not good before.
            let worth = match before {
                Some(before) => {
                    before.outcome != verdict.outcome || before.findings != verdict.findings
                }
                None => verdict.outcome >= ObjectOutcome::Warning,
            };
            if worth {
                log::verdict(verdict);
            }
            directory_change |= worth || before.is_none();
        }
        let gone =
            |all: &BTreeMap<Subject, ObjectVerdict>| all.keys().any(|s| !now.contains_key(s));
        if directory_change || self.verdicts.as_ref().is_none_or(gone) {
            log::summary(&text);
        }
        self.verdicts = Some(now);
    }

    fn tell_served(&mut self, now: &BTreeMap<ListenerKey, Served>) {
        self.in_force.retain(|key, last| {
            let stays = now.contains_key(key);
            if !stays {
                log::no_longer_serving(last);
            }
            stays
        });
        self.troubles.retain(|key, _| now.contains_key(key));
        for (key, one) in now {
            if one.is_in_force() {
                let healed = self.troubles.remove(key).is_some();
                let last = self.in_force.insert(key.clone(), one.clone());
                if healed || last.is_none_or(|last| !one.is_same(&last)) {
                    log::serving(one);
                }
            } else if let Some(why) = one.rejected() {
                self.tell_trouble(key, one, why);
            }
        }
        self.waiting.retain(|key| {
            // A listener whose acknowledgement is outstanding may still be rejected again, so it goes on waiting.
            now.get(key)
                .is_some_and(|one| !one.is_in_force() && one.rejected().is_none())
        });
        let wants = now.iter().filter(|(key, one)| {
            one.port_unavailable && !one.is_in_force() && !self.in_force.contains_key(*key)
        });
        self.waiting.extend(wants.map(|(key, _)| key.clone()));
    }

    /// Reports that the proxy does not take a listener, or a new version of it.
    fn tell_trouble(&mut self, key: &ListenerKey, one: &Served, why: String) {
        if self.troubles.get(key) == Some(&why) {
            return;
        }
        match self.in_force.get(key) {
            Some(last) if one.keeps(last) => {
                let what = if one.keeps_certificate(last) {
                    "with its last good certificate"
                } else {
                    "as it was"
                };
                log::goes_on(last, what, &why);
            }
            Some(last) => {
                log::no_longer_serving(last);
                self.in_force.remove(key);
            }
            // The verdict reports it.
            None if one.judged => {}
            None => log::not_serving(one, &why),
        }
        self.troubles.insert(key.clone(), why);
    }

    /// Returns the listeners that wait for a port that could not be bound.
    pub(super) fn waiting_for_ports(&self) -> &BTreeSet<ListenerKey> {
        &self.waiting
    }
}

struct RunContext<'a> {
    admission: Admission,
    statuses: &'a BTreeMap<ObjectKey, Value>,
}

impl ObjectContext for RunContext<'_> {
    fn admission(&self, key: &ObjectKey) -> (Vec<Finding>, Option<String>) {
        self.admission.of(key)
    }

    fn status(&self, key: &ObjectKey) -> Option<Value> {
        self.statuses.get(key).cloned()
    }
}
