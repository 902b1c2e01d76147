//! Brings changes of the directory to the publisher. It runs translation, and gets certificates from the local CA
//! or from the CAs that the manifests name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use vestibule_model::issuance::CertificateRequest;
use vestibule_model::key::{Kind, ListenerKey, ObjectKey, ObjectName};
use vestibule_operator::claims::{self, Memory};
use vestibule_operator::control::ControlLoop;
use vestibule_operator::issuance::{
    self, CertificateRegistry, Directory, EngineChannels, EngineLink,
};
use vestibule_operator::localca::{LocalCa, LocalIssuer};
use vestibule_operator::publish::{Changes, Publisher};
use vestibule_operator::translate::{Change, ClaimMode, SessionKeys, Settings, Translator};
use vestibule_stream::{Encoded, ResourceKey};

use super::log;
use crate::clock;
use crate::manifests::source::{FileChange, ManifestFiles};
use crate::manifests::tracker::FilePath;

/// Most passes of certificates and translation for one change. One is enough unless new certificates change what
/// is requested.
const MAX_PASSES: usize = 4;

/// Connects the directory with the proxy: it reads, translates, issues and publishes.
pub(super) struct Engine {
    source: ManifestFiles,
    /// Translation, certificate requests and claims. The claims live as long as this process.
    control: ControlLoop<Memory>,
    ca: LocalCa,
    issuer: LocalIssuer,
    link: EngineLink,
    acme: Arc<Directory>,
    /// The Secrets of certificates from CAs that translation has received.
    issued: BTreeSet<ObjectName>,
    publisher: Arc<Publisher>,
}

impl Engine {
    /// Returns an engine, and the channels that the ACME engine runs on.
    pub(super) fn new(
        settings: Settings,
        ca: LocalCa,
        state: &Path,
        publisher: Arc<Publisher>,
    ) -> (Self, EngineChannels) {
        let (registry, channels) = CertificateRegistry::new();
        let engine_link = channels.engine_link.clone();
        let acme = Arc::new(Directory::new(state.join("acme"), engine_link.clone()));
        let settings = Settings {
            claims: ClaimMode::Recorded,
            shim_for_sets: false,
            ..settings
        };
        let mut translator = Translator::new(settings);
        // There is no object yet, so this changes no output.
        translator.apply([Change::SessionKeys(SessionKeys::new([ca.session_key()]))]);
        let claims = Memory::new(claims::GRACE, time(clock::now()));
        let engine = Self {
            source: ManifestFiles::default(),
            control: ControlLoop::new(translator, claims, registry),
            ca,
            issuer: LocalIssuer::new(),
            link: engine_link,
            acme,
            issued: BTreeSet::new(),
            publisher,
        };
        (engine, channels)
    }

    /// Returns the directory in which certificates from CAs are kept.
    pub(super) fn acme(&self) -> &Arc<Directory> {
        &self.acme
    }

    /// Starts issuance. The directory has been read, so CAs may be asked for the certificates that are missing.
    pub(super) fn begin(&mut self) {
        self.control.translator.keep_in_service();
        self.control.certificates.begin(&self.control.translator);
        self.control.certificates.tell();
        self.control.certificates.published();
    }

    /// Takes the updates of the built-in engine.
    pub(super) fn told(&mut self, now: Timestamp) {
        let (mut changes, _) = self.control.certificates.take(self.link.take());
        for change in self.acme.take() {
            if let Change::Put(object) = &change {
                let name = object.key().name;
                if !self.control.certificates.is_requested(&name) || self.issuer.is_users(&name) {
                    continue;
                }
                self.issued.insert(name);
            }
            changes.push(change);
        }
        self.bring(changes, now);
    }

    pub(super) fn source(&self) -> &ManifestFiles {
        &self.source
    }

    pub(super) fn translator(&self) -> &Translator {
        &self.control.translator
    }

    pub(super) fn ca(&self) -> &LocalCa {
        &self.ca
    }

    pub(super) fn issuer(&self) -> &LocalIssuer {
        &self.issuer
    }

    pub(super) fn publisher(&self) -> &Publisher {
        &self.publisher
    }

    /// Takes the changes of files.
    pub(super) fn files(&mut self, files: Vec<(FilePath, FileChange)>, now: Timestamp) {
        for (path, change) in &files {
            log::file(path, change);
        }
        let changes = self.source.apply(files, Instant::now());
        self.objects(changes, now);
    }

    /// Takes the texts that were held back for so long that the user probably means them as they are.
    pub(super) fn release(&mut self, now: Timestamp) {
        let (files, changes) = self.source.release(Instant::now());
        for path in &files {
            log::released(path);
        }
        self.objects(changes, now);
    }

    fn objects(&mut self, changes: Vec<Change>, now: Timestamp) {
        self.issuer.user_changes(&changes);
        for change in &changes {
            let (key, there) = match change {
                Change::Put(object) => (object.key(), true),
                Change::Remove(key) => (key.clone(), false),
                _ => continue,
            };
            if key.kind == Kind::Secret {
                self.acme.users(&key.name, there);
                // Translation now has the user's Secret, or none.
                self.issued.remove(&key.name);
                self.control.certificates.secret(&key.name);
            }
        }
        self.bring(changes, now);
    }

    /// Returns the time at which the next name that its holder let go of becomes free.
    pub(super) fn claims_until(&self) -> Option<Instant> {
        self.control.claims.deadline()
    }

    /// Renews the certificates that are due, and frees names whose grace is over.
    pub(super) fn renew(&mut self, now: Timestamp) {
        self.bring(vec![Change::Time(now.as_second())], now);
    }

    /// Publishes the result of `changes`, together with the certificates that they ask for.
    fn bring(&mut self, changes: Vec<Change>, now: Timestamp) {
        let mut resources = BTreeMap::new();
        self.translate(changes, now, &mut resources);
        self.certificates(now, &mut resources);
        self.publish(resources);
    }

    fn certificates(
        &mut self,
        now: Timestamp,
        resources: &mut BTreeMap<ResourceKey, Option<Encoded>>,
    ) {
        for _ in 0..MAX_PASSES {
            let (changes, errors) = self.issuer.settle(&self.ca, now);
            for error in errors {
                log::certificate_failed(&error);
            }
            if changes.is_empty() {
                return;
            }
            self.translate(changes, now, resources);
        }
    }

    fn translate(
        &mut self,
        changes: Vec<Change>,
        now: Timestamp,
        resources: &mut BTreeMap<ResourceKey, Option<Encoded>>,
    ) {
        self.control.add(changes);
        while let Some(output) = self.control.step(time(now)) {
            let certificates = output.certificates;
            let local = |request: &Arc<CertificateRequest>| !issuance::is_ours(request);
            for (name, request) in &certificates {
                let ours = request.as_ref().is_some_and(|request| !local(request));
                if !ours && self.issued.remove(name) {
                    self.control
                        .add([Change::Remove(ObjectKey::secret(name.clone()))]);
                }
            }
            let locals = certificates.into_iter();
            let locals = locals.map(|(name, request)| (name, request.filter(local)));
            self.issuer.requests(locals.collect());
            // All of it is one generation, so no listener is published before its certificate.
            resources.extend(output.resources);
        }
        self.control.certificates.tell();
    }

    /// Publishes listeners again that the proxy rejected and does not have in force.
    pub(super) fn offer_again(&self, listeners: &BTreeSet<ListenerKey>) {
        let resources: Vec<ResourceKey> = listeners
            .iter()
            .filter_map(|listener| {
                self.control
                    .translator
                    .resources_of(listener)
                    .into_iter()
                    .next()
            })
            .filter(|key| self.control.translator.resources().contains_key(key))
            .collect();
        // The publisher sends an unchanged resource again only if it was removed in between.
        self.publish(resources.iter().map(|key| (key.clone(), None)).collect());
        let present = |key: ResourceKey| {
            let resource = self.control.translator.resources().get(&key).cloned();
            (key, resource)
        };
        self.publish(resources.into_iter().map(present).collect());
    }

    fn publish(&self, resources: BTreeMap<ResourceKey, Option<Encoded>>) {
        let mut changes = Changes::new();
        for (key, resource) in resources {
            match resource {
                Some(encoded) => changes.upsert_encoded(encoded),
                None => changes.remove(key),
            }
        }
        if !changes.is_empty() {
            self.publisher.update(changes);
        }
        self.control.certificates.published();
    }
}

fn time(now: Timestamp) -> claims::Time {
    claims::Time {
        seconds: now.as_second(),
        now: Instant::now(),
    }
}
