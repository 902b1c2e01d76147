//! The loop's side of issuance. It knows which certificates are requested, the state of each, and how long listeners
//! wait for theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use vestibule_acme::IssuerState;
use vestibule_model::issuance::{CertificateRequest, Issuance};
use vestibule_model::issuer::Engine;
use vestibule_model::key::{ObjectKey, ObjectName};
use vestibule_stream::{ResourceKey, ResourceKind};

use super::{EngineChannels, EngineLink, EngineUpdate, Issuers};
use crate::map_channel::{MapChanges, MapSender, map_channel};
use crate::publish::Publisher;
use crate::translate::{Change, Output, Translator};

/// The requested certificates, and their states.
#[derive(Debug)]
pub struct CertificateRegistry {
    /// The requested certificates, by Secret. The engines follow it.
    requests: MapSender<Arc<CertificateRequest>>,
    issuers_to_engine: watch::Sender<Arc<Issuers>>,
    engine_link: EngineLink,
    issuers: Arc<Issuers>,
    /// Whether requests or issuers have changed since they were sent to the engines.
    news: bool,
    /// The last states from the engine for cert-manager, by Secret.
    others: BTreeMap<ObjectName, Issuance>,
    /// The states from the built-in engine, by Secret.
    ours: BTreeMap<ObjectName, Issuance>,
    /// The states of issuers.
    issuer_states: BTreeMap<ObjectKey, IssuerState>,
    /// Whether the engine has reported the state of every certificate.
    ours_known: bool,
    others_known: bool,
    /// The ticket up to which the translator has the challenges of the engine.
    ticket: u64,
    /// The challenges that the proxies have, or will get with the next generation.
    challenges: Arc<BTreeSet<String>>,
    /// The certificates that listeners wait for, with the time since when and the engine.
    waits: BTreeMap<ObjectName, (Instant, &'static str)>,
}

impl CertificateRegistry {
    /// Returns an empty registry, and the channels for the engines.
    #[must_use]
    pub fn new() -> (Self, EngineChannels) {
        let (to_engines, requests) = map_channel();
        let (issuers_to_engine, issuers) = watch::channel(Arc::default());
        let engine_link = EngineLink::default();
        let channels = EngineChannels {
            requests,
            issuers,
            engine_link: engine_link.clone(),
        };
        (
            Self::with(to_engines, issuers_to_engine, engine_link),
            channels,
        )
    }

    fn with(
        requests: MapSender<Arc<CertificateRequest>>,
        issuers_to_engine: watch::Sender<Arc<Issuers>>,
        engine_link: EngineLink,
    ) -> Self {
        Self {
            requests,
            issuers_to_engine,
            engine_link,
            issuers: Arc::default(),
            news: false,
            others: BTreeMap::new(),
            ours: BTreeMap::new(),
            issuer_states: BTreeMap::new(),
            ours_known: false,
            others_known: false,
            ticket: 0,
            challenges: Arc::default(),
            waits: BTreeMap::new(),
        }
    }

    /// Whether a certificate is requested for a Secret.
    #[must_use]
    pub fn is_requested(&self, secret: &ObjectName) -> bool {
        self.requests.contains(secret)
    }

    /// Returns the states of issuers from the built-in engine.
    #[must_use]
    pub fn issuers(&self) -> &BTreeMap<ObjectKey, IssuerState> {
        &self.issuer_states
    }

    /// Whether every engine has reported the state of its certificates.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.ours_known && self.others_known
    }

    /// Notes that a Secret was created, changed or deleted.
    pub fn secret(&self, name: &ObjectName) {
        if self.is_requested(name) {
            self.engine_link.secret(name);
        }
    }

    /// Takes the requests and issuers from the output of translation.
    pub fn translated(&mut self, output: &Output) {
        let Output {
            certificates: requests,
            issuers,
            resources,
            ..
        } = output;
        self.news |= !requests.is_empty() || !issuers.is_empty();
        for (name, request) in requests {
            let Some(request) = request else {
                self.waits.remove(name);
                self.requests.set(name.clone(), None);
                continue;
            };
            let engine = request.issuer.as_ref().map(|issuer| issuer.engine);
            if let Some(engine) = engine
                && !self.is_requested(name)
            {
                let since = (Instant::now(), label(engine));
                self.waits.insert(name.clone(), since);
            }
            self.requests.set(name.clone(), Some(Arc::clone(request)));
        }
        for (key, issuer) in issuers {
            let issuers = Arc::make_mut(&mut self.issuers);
            match issuer {
                Some(issuer) => issuers.insert(key.clone(), Arc::clone(issuer)),
                None => issuers.remove(key),
            };
        }
        let challenges = resources
            .iter()
            .filter(|(key, _)| key.kind() == ResourceKind::Challenge);
        for (key, resource) in challenges {
            let challenges = Arc::make_mut(&mut self.challenges);
            if resource.is_some() {
                challenges.insert(key.name.clone());
            } else {
                challenges.remove(&key.name);
            }
        }
    }

    /// Notes that every object is known. Listeners wait for the requested certificates that do not exist yet.
    pub fn begin(&mut self, translator: &Translator) {
        self.waits
            .retain(|name, _| !translator.resources().contains_key(&certificate(name)));
        self.news = true;
    }

    /// Sends the requests and issuers to the engines, if they have changed.
    pub fn tell(&mut self) {
        if !std::mem::take(&mut self.news) {
            return;
        }
        // Issuers come first, so that the engine knows the issuer of each requested certificate.
        self.issuers_to_engine
            .send_replace(Arc::clone(&self.issuers));
        self.requests.publish();
    }

    /// Takes an update of the built-in engine. Returns the changes for translation, and the issuers whose state
    /// changed.
    pub fn take(&mut self, update: EngineUpdate) -> (Vec<Change>, Vec<ObjectKey>) {
        let EngineUpdate {
            ticket,
            challenges,
            issuance,
            issuers,
            known,
        } = update;
        self.ticket = ticket;
        self.ours_known = known;
        let mut changes = Vec::new();
        if !challenges.is_empty() {
            changes.push(Change::Challenges(challenges));
        }
        let mut different = BTreeMap::new();
        for (name, issuance) in issuance {
            let other = self.others.get(&name);
            different.insert(name.clone(), issuance.as_ref().or(other).cloned());
            match issuance {
                Some(issuance) => self.ours.insert(name, issuance),
                None => self.ours.remove(&name),
            };
        }
        if !different.is_empty() {
            changes.push(Change::Issuance(different));
        }
        let touched = issuers.keys().cloned().collect();
        for (key, fact) in issuers {
            match fact {
                Some(fact) => self.issuer_states.insert(key, fact),
                None => self.issuer_states.remove(&key),
            };
        }
        (changes, touched)
    }

    /// Takes what changed in the states from the engine for cert-manager; `None` if they are not known yet. Returns the
    /// changes for translation.
    pub fn take_others(&mut self, changes: Option<MapChanges<Issuance>>) -> Vec<Change> {
        let Some(changes) = changes else {
            return Vec::new();
        };
        self.others_known = true;
        let mut different = BTreeMap::new();
        for (name, issuance) in changes {
            let ours = self.ours.get(&name);
            different.insert(name.clone(), ours.or(issuance.as_ref()).cloned());
            match issuance {
                Some(issuance) => self.others.insert(name, issuance),
                None => self.others.remove(&name),
            };
        }
        if different.is_empty() {
            return Vec::new();
        }
        vec![Change::Issuance(different)]
    }

    /// Notes that everything that was translated is published.
    pub fn published(&self) {
        self.engine_link.published(self.ticket, &self.challenges);
    }

    /// Ends the wait for each certificate that has reached every proxy, and calls `ready` with its engine and the time
    /// that listeners waited for it.
    pub fn look(
        &mut self,
        translator: &Translator,
        publisher: &Publisher,
        mut ready: impl FnMut(&'static str, Duration),
    ) {
        self.waits.retain(|name, (since, engine)| {
            let key = certificate(name);
            let there = translator.resources().contains_key(&key)
                && publisher.programmed(&[key]).acknowledged().is_some();
            if there {
                ready(engine, since.elapsed());
            }
            !there
        });
    }
}

fn certificate(secret: &ObjectName) -> ResourceKey {
    ResourceKey::new(ResourceKind::Certificate, secret.to_string())
}

fn label(engine: Engine) -> &'static str {
    match engine {
        Engine::CertManager => "cert-manager",
        Engine::Acme => "acme",
    }
}
