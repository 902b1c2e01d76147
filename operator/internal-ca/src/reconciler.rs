//! Keeps the objects up to date: reads them, asks the rotation for the next steps, takes these, and waits until one of the
//! objects changes or a step is due.

use std::future::ready;
use std::pin::pin;
use std::time::Duration;

use futures::stream::{BoxStream, StreamExt, select_all};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, PartialObjectMeta};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher as watch_objects};
use kube::{Client, Resource};
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{debug, error, info, warn};
use vestibule_backoff::Backoff;

use super::certificates::{CertificateSource, CurrentCertificate};
use super::material::{Trusted, make_authority};
use super::metrics::{Certificate, Metrics, Reason, Write};
use super::rotation::{
    BundleTarget, CaState, CaStep, Leaf, RenewalReason, RotationDecision, Seconds, Stored, decide,
};
use super::store::{CaSnapshot, CaStore, erase};
use super::watch_log::WatchLog;
use super::{Config, InternalCaError};

/// Rounds of reading and writing after which others seem to write as often as this replica does.
const MAX_ROUNDS: usize = 12;
/// Waits after failures.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));
/// Longest time without a look, for watches that died silently.
const LOOK: Duration = Duration::from_mins(10);

/// Keeps authority, certificates and bundle; to be run on every replica.
pub struct Reconciler {
    client: Client,
    config: Config,
    store: CaStore,
    source: CertificateSource,
    metrics: Metrics,
}

/// Something in the objects changed.
type Changes = BoxStream<'static, ()>;

impl Reconciler {
    pub(crate) fn new(client: Client, config: Config) -> (Self, CurrentCertificate) {
        let (source, certificates) = CertificateSource::new();
        let reconciler = Self {
            store: CaStore::new(&client, config.clone()),
            client,
            config,
            source,
            metrics: Metrics::default(),
        };
        (reconciler, certificates)
    }

    /// The counters.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Reads the operator's certificate for ever, and keeps everything while `leading` is true.
    pub async fn run(self, leading: watch::Receiver<bool>) {
        tokio::join!(self.serve(), self.keep(leading));
    }

    /// Follows the operator's Secret.
    async fn serve(&self) {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.config.namespace);
        let name = self.config.secret_of(Leaf::Operator);
        let mut events = pin!(watch_objects(secrets, named(name)).default_backoff());
        let mut log = WatchLog::new(format!("Secret {name}"));
        while let Some(item) = events.next().await {
            match log.event(item) {
                Some(Event::Apply(mut secret) | Event::InitApply(mut secret)) => {
                    self.source.take(&secret);
                    erase(&mut secret);
                }
                Some(Event::Delete(mut secret)) => erase(&mut secret),
                Some(Event::Init | Event::InitDone) | None => {}
            }
        }
    }

    async fn keep(&self, mut leading: watch::Receiver<bool>) {
        while leading.wait_for(|leading| *leading).await.is_ok() {
            let mut changes = self.changes();
            let mut delays = BACKOFF.delays();
            loop {
                let wait = match self.settle().await {
                    Ok(due) => {
                        delays.reset();
                        due
                    }
                    Err(error) => {
                        self.failed(&error);
                        delays.advance()
                    }
                };
                tokio::select! {
                    _ = leading.wait_for(|leading| !*leading) => break,
                    _ = changes.next() => {}
                    () = sleep(wait) => {}
                }
            }
        }
    }

    /// Changes of the objects, by their metadata alone.
    fn changes(&self) -> Changes {
        let (client, namespace) = (&self.client, &self.config.namespace);
        let secrets: Api<PartialObjectMeta<Secret>> = Api::namespaced(client.clone(), namespace);
        let maps: Api<PartialObjectMeta<ConfigMap>> = Api::namespaced(client.clone(), namespace);
        let mut all = vec![
            changed(secrets.clone(), &self.config.authority_secret),
            changed(secrets.clone(), self.config.secret_of(Leaf::Operator)),
            changed(secrets, self.config.secret_of(Leaf::Webhook)),
            changed(maps, &self.config.bundle_config_map),
        ];
        if let Some(name) = &self.config.webhook_configuration {
            let webhooks: Api<PartialObjectMeta<ValidatingWebhookConfiguration>> =
                Api::all(client.clone());
            all.push(changed(webhooks, name));
        }
        select_all(all).boxed()
    }

    /// Takes the steps that are due, and returns the time until the next look.
    async fn settle(&self) -> Result<Duration, InternalCaError> {
        let mut last = None;
        for _ in 0..MAX_ROUNDS {
            let mut read = self.store.read().await?;
            let state = read.state(&self.config);
            self.observe(&state);
            let now = (self.config.clock)();
            let RotationDecision { steps, due } = decide(&state, now, &self.config.policy);
            if steps.is_empty() {
                let wait = u64::try_from(due.saturating_sub(now)).unwrap_or(0).max(1);
                return Ok(Duration::from_secs(wait).min(LOOK));
            }
            let mut done = false;
            for step in steps {
                match self.take(&read, &step, now).await {
                    Ok(()) => done = true,
                    Err(conflict @ InternalCaError::Conflict(_)) => {
                        debug!(%conflict, "an object of the internal CA changed before it was written; all of them are read again");
                        last = Some(conflict);
                        done = true;
                    }
                    Err(error) => {
                        self.failed(&error);
                        last = Some(error);
                    }
                }
            }
            if !done {
                break;
            }
        }
        let whatever = "the objects of the certificates".to_owned();
        Err(last.unwrap_or(InternalCaError::Conflict(whatever)))
    }

    async fn take(
        &self,
        read: &CaSnapshot,
        step: &CaStep,
        now: Seconds,
    ) -> Result<(), InternalCaError> {
        let (object, reason) = match step {
            CaStep::MakeAuthority(why) => {
                announce("the internal authority", why);
                self.make_authority(read, now).await?;
                ("authority", why.reason())
            }
            CaStep::SetBundle(ids) => {
                self.store.put_bundle(read, &read.bundle_of(ids)).await?;
                ("authority", "Bundle")
            }
            CaStep::MarkPublished => {
                self.store.mark_published(read, now).await?;
                ("authority", "Published")
            }
            CaStep::Publish(target) => {
                self.store.publish(read, *target).await?;
                match target {
                    BundleTarget::ConfigMap => ("bundle", "Stale"),
                    BundleTarget::WebhookConfiguration => ("webhook-configuration", "Stale"),
                }
            }
            CaStep::Issue(leaf, why) => {
                let Some(signer) = &read.signer else {
                    return Ok(());
                };
                let what = format!("the certificate in Secret {}", self.config.secret_of(*leaf));
                announce(&what, why);
                let names = self.config.names_of(*leaf);
                let pair = signer.issue(&names, now, &self.config.policy)?;
                self.store.put_leaf(read, *leaf, &pair).await?;
                (label(*leaf), why.reason())
            }
        };
        info!(object, reason, "an object of the internal CA is written");
        let write = Write { object, reason };
        self.metrics.writes.get_or_create(&write).inc();
        Ok(())
    }

    async fn make_authority(&self, read: &CaSnapshot, now: Seconds) -> Result<(), InternalCaError> {
        let whose = &self.config.manager;
        let pair = make_authority(whose, now, &self.config.policy)?;
        let new = super::material::read_bundle(pair.certificate.as_bytes());
        let old = read.bundle.iter().filter(|old| now < old.validity.until);
        let bundle: Vec<&Trusted> = new.iter().chain(old).collect();
        self.store.put_authority(read, &pair, &bundle).await
    }

    fn observe(&self, state: &CaState) {
        let set = |certificate, until| {
            let family = &self.metrics.expiry;
            family
                .get_or_create(&Certificate { certificate })
                .set(until);
        };
        if let Stored::There(authority) = &state.authority {
            set("authority", authority.validity.until);
        }
        for (leaf, stored) in &state.leaves {
            if let Stored::There(issued) = stored {
                set(label(*leaf), issued.validity.until);
            }
        }
    }

    fn failed(&self, error: &InternalCaError) {
        let reason = error.reason();
        self.metrics
            .failures
            .get_or_create(&Reason { reason })
            .inc();
        error!(%error, reason, "cannot keep the certificates of Vestibule's own servers; trying again");
    }
}

fn label(leaf: Leaf) -> &'static str {
    match leaf {
        Leaf::Operator => "operator",
        Leaf::Webhook => "webhook",
    }
}

fn announce(what: &str, why: &RenewalReason) {
    match why {
        RenewalReason::Unusable(problem) => warn!(
            what,
            problem, "{what} cannot be used; the operator makes a new one"
        ),
        why if why.is_planned() => info!(what, reason = why.reason(), "the operator makes {what}"),
        why => warn!(
            what,
            reason = why.reason(),
            "the operator makes {what} again"
        ),
    }
}

/// Changes of what there is in `api`, which is one object.
fn changed<K>(api: Api<PartialObjectMeta<K>>, name: &str) -> Changes
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Send + 'static,
{
    let events = watch_objects(api, named(name)).default_backoff();
    let mut log = WatchLog::new(format!("{} {name}", K::kind(&())));
    let touched = events.filter_map(move |item| {
        ready(match log.event(item) {
            Some(Event::Apply(_) | Event::Delete(_) | Event::InitDone) => Some(()),
            Some(Event::Init | Event::InitApply(_)) | None => None,
        })
    });
    touched.boxed()
}

fn named(name: &str) -> watcher::Config {
    watcher::Config::default().fields(&format!("metadata.name={name}"))
}
