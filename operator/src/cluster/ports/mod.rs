//! Keeps the internal ports of Gateways in a ConfigMap, from which every replica reads them. [`allocation`] allocates
//! them. The leader writes the ConfigMap before anything with a new port is published.

pub mod allocation;

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::api::{Api, ListParams};
use kube::runtime::watcher::Event;
use tokio::sync::watch;
use tracing::{info, warn};
use vestibule_backoff::Backoff;
use vestibule_model::protocol::{Port, Transport};

use super::clock;
use super::kept_object::{KeptContent, KeptObject, KeptObjectConfig, PATIENCE};
use super::lease::elector::Role;
use crate::translate::DesiredPort;
use allocation::Allocation;

/// Key of the ConfigMap.
const DATA: &str = "ports";
/// Requests for ports within this time are combined into one write.
const GATHER: Duration = Duration::from_millis(30);
/// The allocation in the ConfigMap.
const CONTENT: KeptContent = KeptContent {
    name: "the allocation of ports",
    meanwhile: "listeners that need a new port wait",
    backoff: Backoff::new(Duration::from_millis(500), Duration::from_secs(30)),
};

/// The inputs and outputs of the task.
pub(super) struct PortChannels {
    /// Every port that is needed; `None` until this is known.
    pub(super) wanted: watch::Receiver<Option<Arc<BTreeSet<DesiredPort>>>>,
    /// The role of this replica. Only the leader writes.
    pub(super) role: watch::Receiver<Role>,
    /// The persisted allocation; `None` until it is known.
    pub(super) persisted: watch::Sender<Option<Arc<Allocation>>>,
}

/// Keeps the allocation up to date, for ever. The ConfigMap is in the namespace of the Services in front of the proxies.
pub(super) async fn run(
    client: kube::Client,
    config: KeptObjectConfig,
    mut channels: PortChannels,
) {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), &config.namespace);
    let kept = KeptObject::new(api, config, CONTENT);
    let mut events = pin!(kept.events());
    let mut store = Store {
        client,
        kept,
        present: None,
        listed: None,
        listing: false,
        synced: false,
        persisted: channels.persisted,
    };
    let mut due: Option<Instant> = None;
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(event) => store.take(event),
                None => return,
            },
            changed = channels.wanted.changed() => if changed.is_err() { return },
            changed = channels.role.changed() => if changed.is_err() { return },
            () = clock::at(due) => {
                let wanted = channels.wanted.borrow_and_update().clone();
                if let Some(wanted) = wanted {
                    store.persist(&wanted).await;
                }
                due = None;
            }
        }
        let leads = channels.role.borrow().term(Instant::now()).is_some();
        let wanted = channels.wanted.borrow().clone();
        let wanting = wanted.is_some_and(|wanted| leads && store.lacks(&wanted));
        if wanting {
            due.get_or_insert_with(|| Instant::now() + store.pause());
        } else {
            due = None;
        }
    }
}

struct Store {
    client: kube::Client,
    kept: KeptObject<ConfigMap>,
    /// The ConfigMap on the server.
    present: Option<ConfigMap>,
    /// The ConfigMap in the list that is under way.
    listed: Option<ConfigMap>,
    listing: bool,
    synced: bool,
    persisted: watch::Sender<Option<Arc<Allocation>>>,
}

impl Store {
    fn take(&mut self, event: Event<ConfigMap>) {
        match event {
            Event::Init => {
                self.listing = true;
                self.listed = None;
            }
            Event::InitApply(object) => self.listed = Some(object),
            Event::InitDone => {
                self.synced = true;
                self.listing = false;
                self.present = self.listed.take();
                self.read();
            }
            Event::Apply(object) => {
                self.present = Some(object);
                self.read();
            }
            // Published ports stay in use, and the leader writes the ConfigMap again.
            Event::Delete(_) => self.present = None,
        }
    }

    /// Sends the persisted allocation to the loop.
    fn read(&self) {
        let allocation = match self.stored() {
            Some(Ok(allocation)) => Some(allocation),
            Some(Err(error)) => {
                warn!(config_map = %self.kept.config().name, %error, "the allocation of ports cannot be read; the last one that could is kept");
                None
            }
            None => None,
        };
        self.persisted
            .send_if_modified(|persisted| match allocation {
                Some(allocation) => {
                    let differs = persisted.as_deref() != Some(&allocation);
                    *persisted = Some(Arc::new(allocation));
                    differs
                }
                None if persisted.is_none() => {
                    *persisted = Some(Arc::default());
                    true
                }
                None => false,
            });
    }

    fn stored(&self) -> Option<Result<Allocation, serde_json::Error>> {
        let data = self.present.as_ref()?.data.as_ref()?.get(DATA)?;
        Some(Allocation::from_json(data))
    }

    /// Whether the persisted allocation differs from what is wanted.
    fn lacks(&self, wanted: &BTreeSet<DesiredPort>) -> bool {
        if !self.synced || self.listing {
            return false;
        }
        match self.stored() {
            Some(Ok(stored)) => stored.settle(wanted) != stored,
            Some(Err(_)) => true,
            None => !wanted.is_empty(),
        }
    }

    async fn persist(&mut self, wanted: &BTreeSet<DesiredPort>) {
        let outcome = tokio::time::timeout(PATIENCE, self.write(wanted)).await;
        if let Some(written) = self.kept.settle(outcome) {
            self.present = Some(written);
            self.read();
        }
    }

    async fn write(&self, wanted: &BTreeSet<DesiredPort>) -> Result<ConfigMap, kube::Error> {
        let base = match (self.stored(), &*self.persisted.borrow()) {
            (Some(Ok(stored)), _) => Some(stored),
            (_, Some(last)) if !last.is_empty() => Some((**last).clone()),
            _ => None,
        };
        let base = match base {
            Some(base) => base,
            None => self.in_use().await?,
        };
        let present = self.present.as_ref();
        let mut object = present.cloned().unwrap_or_default();
        object.metadata = self.kept.metadata(present.map(|present| &present.metadata));
        let settled = base.settle(wanted);
        object
            .data
            .get_or_insert_default()
            .insert(DATA.to_owned(), settled.to_json());
        let written = self.kept.write(&object, present.is_some()).await?;
        info!(ports = settled.len(), "internal ports are persisted");
        Ok(written)
    }

    /// Reads the ports that Services already use. So Gateways keep their ports even if the ConfigMap is lost.
    async fn in_use(&self) -> Result<Allocation, kube::Error> {
        let config = self.kept.config();
        let services: Api<Service> = Api::namespaced(self.client.clone(), &config.namespace);
        let ours = format!("{}={}", super::MANAGED_BY, config.manager);
        let list = services.list(&ListParams::default().labels(&ours)).await?;
        let mut allocation = Allocation::default();
        for service in list {
            for (desired, port) in ports_of(&service) {
                allocation = allocation.with(desired, port);
            }
        }
        Ok(allocation)
    }

    fn pause(&self) -> Duration {
        self.kept.pause().unwrap_or(GATHER)
    }
}

/// Returns the ports that a Service in front of the proxies uses.
fn ports_of(service: &Service) -> Vec<(DesiredPort, u16)> {
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
    let labels = service.metadata.labels.as_ref();
    let Some(uid) = labels.and_then(|labels| labels.get(super::GATEWAY_UID)) else {
        return Vec::new();
    };
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_ref());
    let one = |port: &k8s_openapi::api::core::v1::ServicePort| {
        let IntOrString::Int(internal) = port.target_port.as_ref()? else {
            return None;
        };
        let desired = DesiredPort {
            gateway: uid.as_str().into(),
            port: Port::new(u16::try_from(port.port).ok()?)?,
            transport: Transport::from_text(port.protocol.as_deref().unwrap_or("TCP"))?,
        };
        Some((desired, u16::try_from(*internal).ok()?))
    };
    ports.into_iter().flatten().filter_map(one).collect()
}
