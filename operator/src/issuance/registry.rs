//! The loop's side of issuance: what is asked for, how far each certificate is, and how long listeners
//! waited for theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use vestibule_model::issuer::Engine;
use vestibule_model::key::{ObjectKey, ObjectName};
use vestibule_stream::{ResourceKey, ResourceKind};

use super::{Channels, EngineLink, EngineUpdate, Issuances, Issuers, Requests};
use crate::acme::IssuerState;
use crate::publish::Publisher;
use crate::translate::{Change, Output, Translator};

/// What is asked for, and how far it is.
#[derive(Debug)]
pub struct CertificateRegistry {
    to_engines: watch::Sender<Option<Arc<Requests>>>,
    issuers_to_engine: watch::Sender<Arc<Issuers>>,
    engine_link: EngineLink,
    requests: Arc<Requests>,
    issuers: Arc<Issuers>,
    /// Something of these is different from what the engines were sent.
    news: bool,
    /// What cert-manager's engine said last.
    others: Arc<Issuances>,
    /// What the built-in engine says.
    ours: Issuances,
    /// State of issuers.
    issuer_states: BTreeMap<ObjectKey, IssuerState>,
    /// Whether each engine has said how far every certificate is.
    ours_known: bool,
    others_known: bool,
    /// What the engine asked for up to here is with the translator.
    ticket: u64,
    /// Challenges with the proxies, or on their way.
    challenges: Arc<BTreeSet<String>>,
    /// Certificates that listeners wait for, since when.
    waits: BTreeMap<ObjectName, (Instant, &'static str)>,
}

impl CertificateRegistry {
    /// An empty registry, and the channels of the engines.
    #[must_use]
    pub fn new() -> (Self, Channels) {
        let (to_engines, requests) = watch::channel(None);
        let (issuers_to_engine, issuers) = watch::channel(Arc::default());
        let engine_link = EngineLink::default();
        let channels = Channels {
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
        to_engines: watch::Sender<Option<Arc<Requests>>>,
        issuers_to_engine: watch::Sender<Arc<Issuers>>,
        engine_link: EngineLink,
    ) -> Self {
        Self {
            to_engines,
            issuers_to_engine,
            engine_link,
            requests: Arc::default(),
            issuers: Arc::default(),
            news: false,
            others: Arc::default(),
            ours: Issuances::new(),
            issuer_states: BTreeMap::new(),
            ours_known: false,
            others_known: false,
            ticket: 0,
            challenges: Arc::default(),
            waits: BTreeMap::new(),
        }
    }

    /// The certificates that are asked for.
    #[must_use]
    pub fn requests(&self) -> &Arc<Requests> {
        &self.requests
    }

    /// How issuers are, as the built-in engine says.
    #[must_use]
    pub fn issuers(&self) -> &BTreeMap<ObjectKey, IssuerState> {
        &self.issuer_states
    }

    /// Whether every engine has said how far its certificates are.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.ours_known && self.others_known
    }

    /// A Secret came, changed or went.
    pub fn secret(&self, name: &ObjectName) {
        if self.requests.contains_key(name) {
            self.engine_link.secret(name);
        }
    }

    /// Takes what translation found out.
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
                Arc::make_mut(&mut self.requests).remove(name);
                continue;
            };
            let engine = request.issuer.as_ref().map(|issuer| issuer.engine);
            if let Some(engine) = engine
                && !self.requests.contains_key(name)
            {
                let since = (Instant::now(), label(engine));
                self.waits.insert(name.clone(), since);
            }
            let request = Arc::new(request.clone());
            Arc::make_mut(&mut self.requests).insert(name.clone(), request);
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

    /// Everything is known, and those that listeners wait for are those that have no certificate.
    pub fn begin(&mut self, translator: &Translator) {
        self.waits
            .retain(|name, _| !translator.resources().contains_key(&certificate(name)));
        self.news = true;
    }

    /// Tells the engines what is new.
    pub fn tell(&mut self) {
        if !std::mem::take(&mut self.news) {
            return;
        }
        // Issuers first: who asks for a certificate finds its issuer.
        self.issuers_to_engine
            .send_replace(Arc::clone(&self.issuers));
        self.to_engines
            .send_replace(Some(Arc::clone(&self.requests)));
    }

    /// Takes what the built-in engine says; what is to be translated, and the issuers that it is about.
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

    /// Takes what cert-manager's engine says.
    pub fn take_others(&mut self, issuances: Option<Arc<Issuances>>) -> Vec<Change> {
        self.others_known = issuances.is_some();
        let issuances = issuances.unwrap_or_default();
        if Arc::ptr_eq(&issuances, &self.others) {
            return Vec::new();
        }
        let before = std::mem::replace(&mut self.others, issuances);
        let names: BTreeSet<&ObjectName> = before.keys().chain(self.others.keys()).collect();
        let different: BTreeMap<_, _> = names
            .into_iter()
            .filter(|name| before.get(*name) != self.others.get(*name))
            .map(|name| {
                let fact = self.ours.get(name).or_else(|| self.others.get(name));
                (name.clone(), fact.cloned())
            })
            .collect();
        if different.is_empty() {
            return Vec::new();
        }
        vec![Change::Issuance(different)]
    }

    /// Everything that is translated is published.
    pub fn published(&self) {
        self.engine_link.published(self.ticket, &self.challenges);
    }

    /// Looks which certificates that listeners waited for have come to every proxy, and says by which
    /// engine and after how long.
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
