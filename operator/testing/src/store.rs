//! The store of an operator that leads, without an API server.

use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;
use tokio::sync::watch;
use vestibule_crds::watch::{Event, Watched};
use vestibule_model::key::Kind;
use vestibule_model::object::Object;
use vestibule_operator::claims::{self, ClaimStore};
use vestibule_operator::cluster::events::EventRecorder;
use vestibule_operator::cluster::metrics::Metrics;
use vestibule_operator::cluster::statuses::plan::{Planner, StatusTiming};
use vestibule_operator::cluster::store::{Store, StoreChannels};
use vestibule_operator::issuance::CertificateRegistry;
use vestibule_operator::publish::Publisher;

use crate::objects::settings;

/// The store of an operator that begins to lead at `now`, as its publisher does already. It has no objects, and nobody takes
/// what it asks others for.
pub fn leading_store(
    publisher: &Arc<Publisher>,
    timing: StatusTiming,
    metrics: Metrics,
    now: Instant,
) -> Store {
    let (certificates, _) = CertificateRegistry::new();
    let (event_recorder, _) = EventRecorder::new();
    let mut store = Store::new(
        settings(),
        Arc::clone(publisher),
        Planner::new(timing),
        metrics,
        None,
        ClaimStore::new(claims::GRACE),
        StoreChannels {
            ports: watch::channel(None).0,
            services: watch::channel(None).0,
            certificates,
            event_recorder,
        },
    );
    store.sources_are_watched();
    store.take([Kind::Secret, Kind::ConfigMap].map(Event::Synced), now);
    store.send_desired(now);
    store.planner.lead(now);
    store
}

/// The event with which a watch shows a version of an object that has no status yet.
pub fn shown(object: Object, version: u64) -> Event {
    Event::Put(Box::new(Watched {
        key: object.key(),
        object,
        findings: Vec::new(),
        uid: "".into(),
        resource_version: version.to_string().into(),
        status: Value::Null,
    }))
}
