//! Carries out the effects of the engine in a cluster: it writes Secrets, has proxies answer challenges, and reports
//! states, metrics and events. When this replica no longer leads, nothing is written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;
use vestibule_acme::{
    Effects, IssuerState, Observation, OrderOutcome, StoreError, StoredSecret, WaitingCounts,
    Write, Written,
};
use vestibule_model::challenge::{ChallengeAnswer, ChallengeKey, ChallengeType};
use vestibule_model::issuance::{CertificateRequest, Issuance};
use vestibule_model::key::{ObjectKey, ObjectName};
use zeroize::Zeroizing;

use super::address_probes::AddressProbes;
use crate::cluster::events::{EventRecorder, ObjectEvent};
use crate::cluster::lease::elector::Role;
use crate::cluster::metrics::Metrics;
use crate::cluster::secrets::Secrets;
use crate::issuance::EngineLink;
use crate::map_channel::MapView;

/// The effects of the engine in a cluster.
pub(in super::super) struct ClusterEffects {
    pub(in super::super) secrets: Secrets,
    pub(in super::super) engine_link: EngineLink,
    pub(in super::super) role: watch::Receiver<Role>,
    pub(in super::super) metrics: Metrics,
    pub(in super::super) event_recorder: EventRecorder,
    pub(in super::super) address_probes: AddressProbes,
    /// The requested certificates, with the objects that ask for them.
    pub(in super::super) requests: MapView<Arc<CertificateRequest>>,
}

impl Effects for ClusterEffects {
    async fn read(&self, secret: &ObjectName) -> Result<Option<StoredSecret>, StoreError> {
        self.secrets.read(secret).await
    }

    async fn write(&self, secret: &ObjectName, write: Write) -> Result<Written, StoreError> {
        // The next leader may have begun already.
        if self.role.borrow().term(Instant::now()).is_none() {
            return Err(StoreError("this replica does not lead any more".to_owned()));
        }
        self.secrets.write(secret, write).await
    }

    async fn entry(
        &self,
        secret: &ObjectName,
        key: &str,
    ) -> Result<Option<Zeroizing<Vec<u8>>>, StoreError> {
        self.secrets.entry(secret, key).await
    }

    async fn reachable(
        &self,
        secret: &ObjectName,
        gateway: &ObjectName,
        kinds: &BTreeSet<ChallengeType>,
    ) {
        let request = self.requests.get(secret);
        let Some(uid) = request.map(|request| request.gateway_uid.clone()) else {
            return;
        };
        let ports = kinds.iter().map(|kind| kind.port()).collect();
        self.address_probes.open(gateway, &uid, &ports).await;
    }

    fn challenges(&self, changes: BTreeMap<ChallengeKey, Option<ChallengeAnswer>>) {
        self.engine_link.challenges(changes);
    }

    fn issuance(&self, changes: BTreeMap<ObjectName, Option<Issuance>>) {
        self.engine_link.issuance(changes);
    }

    fn issuers(&self, changes: BTreeMap<ObjectKey, IssuerState>) {
        self.engine_link.issuers(changes);
    }

    fn observe(&self, observation: Observation) {
        let metrics = &self.metrics.certificates;
        match observation {
            Observation::OrderEnded {
                secret,
                issuer,
                outcome,
                message,
            } => {
                metrics.order(&issuer, outcome.as_str());
                self.tell(&secret, outcome, &message);
            }
            Observation::Asked { issuer, answered } => {
                metrics.request(&issuer, answered.as_str());
            }
            Observation::RenewAt(secret, at) => metrics.renews(&secret, at),
            Observation::Panicked => metrics.panicked(),
            Observation::Waiting(waiting) => {
                let WaitingCounts {
                    budget,
                    backoff,
                    issuer,
                    challenge,
                    authority,
                } = waiting;
                metrics.waiting("budget", budget);
                metrics.waiting("backoff", backoff);
                metrics.waiting("issuer", issuer);
                metrics.waiting("challenge", challenge);
                metrics.waiting("authority", authority);
            }
        }
    }
}

impl ClusterEffects {
    /// Records an event about the outcome of an order, at each object that asked for the certificate.
    fn tell(&self, secret: &ObjectName, outcome: OrderOutcome, message: &str) {
        let Some(request) = self.requests.get(secret) else {
            return;
        };
        let (warning, reason) = match outcome {
            OrderOutcome::Issued => (false, "CertificateIssued"),
            OrderOutcome::Failed => (true, "CertificateFailed"),
            OrderOutcome::Abandoned => return,
        };
        self.event_recorder.record(ObjectEvent {
            about: request.owner.clone(),
            uid: request.owner_uid.clone(),
            warning,
            reason,
            action: "Issue",
            note: format!("Secret {}: {message}", secret.name),
        });
    }
}
