//! The operator without an API server: its own store, which takes events in as JSON and makes of them
//! translation, claims, certificate requests, internal ports and what the proxies are sent; and its
//! planner of statuses. This is the loop around it, with what an API server would do: what is written
//! comes back as an event, as it would from a watch, and what is read is the object as it is now.

use std::collections::{BTreeSet, VecDeque};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use vestibule_crds::vestibule::HostnameClaimSpec;
use vestibule_crds::watch::{Event, Watched};
use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::object::{Address, Object, ServiceParameters};
use vestibule_model::policy::Policy;
use vestibule_operator::claims::{self, Action, ClaimStore, Outcome, Request, Seen};
use vestibule_operator::cluster::events::{News, Teller};
use vestibule_operator::cluster::metrics::Metrics;
use vestibule_operator::cluster::ports::allocation::Allocation;
use vestibule_operator::cluster::services::{Front, FrontPorts, Wishes};
use vestibule_operator::cluster::statuses::plan::{Live, Next, Planner, Timing};
use vestibule_operator::cluster::statuses::{self, Facts};
use vestibule_operator::cluster::store::{Store, Wires};
use vestibule_operator::issuance::{self, Desk, Register, Requests};
use vestibule_operator::publish::Publisher;
use vestibule_operator::translate::{
    Assigned, Binds, CONTROLLER, Claims, PortWish, ServiceSettings, ServiceWish, Settings,
};

use super::world::{Id, World};

/// Statuses that are looked at before events have their turn, as in the operator.
const LOOKS: usize = 64;
/// Events that are translated at a time, as in the operator.
pub(crate) const BATCH: usize = 1024;
/// Secrets that are read, and claims that are written, in one turn, as in the operator.
const READS: usize = 8;
const CLAIM_WRITES: usize = 16;
/// The time that statuses say.
const NOW: i64 = 1_767_323_045;
/// A bench has one term.
const TERM: u64 = 1;

/// What the operator asked of the API server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    /// Statuses written.
    pub(crate) statuses: u64,
    /// `HostnameClaim`s written.
    pub(crate) claims: u64,
    /// Secrets read.
    pub(crate) reads: u64,
}

/// What the operator holds besides objects and resources.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held {
    /// Names that are held, and the `HostnameClaim`s that say so.
    pub(crate) names: usize,
    pub(crate) claims: usize,
    /// Certificates that an engine is asked for.
    pub(crate) requests: usize,
    /// Internal ports.
    pub(crate) ports: usize,
}

/// The operator.
pub(crate) struct Control {
    /// Its objects.
    pub(crate) world: World,
    store: Store,
    publisher: Arc<Publisher>,
    ports: watch::Receiver<Option<Arc<BTreeSet<PortWish>>>>,
    allocation: Arc<Allocation>,
    services: watch::Receiver<Option<Arc<Wishes>>>,
    requests: watch::Receiver<Option<Arc<Requests>>>,
    desk: Desk,
    desk_news: watch::Receiver<()>,
    told: mpsc::Receiver<News>,
    /// The last resource version.
    version: u64,
    /// Written, and not come back.
    echoes: VecDeque<Event>,
    /// What was asked so far.
    pub(crate) asked: Asked,
}

impl Control {
    /// An operator that knows nothing yet, whose proxies bind loopback; internal ports are given out from
    /// `port` on.
    pub(crate) fn new(world: World, publisher: Arc<Publisher>, port: u16) -> Result<Self> {
        let (ports_wished, ports) = watch::channel(None);
        let (services_wished, services) = watch::channel(None);
        let (register, wires) = Register::new();
        let desk = wires.desk.clone();
        let (desk_news, requests) = (desk.for_loop(), wires.requests.clone());
        // The built-in engine is off; certificates are asked of another one.
        tokio::spawn(issuance::refuse(wires));
        let (teller, told) = Teller::new();
        let settings = Settings {
            controller: CONTROLLER.into(),
            policy: Policy::default(),
            claims: Claims::Told,
            shim_for_sets: false,
            binds: Binds::Allocated {
                address: Ipv4Addr::LOCALHOST.into(),
                services: ServiceSettings {
                    release: "vestibule".into(),
                    namespace: "vestibule-system".into(),
                    cluster_domain: "cluster.local".into(),
                    selector: [("app.kubernetes.io/component".into(), "proxy".into())].into(),
                    components: BTreeSet::new(),
                    defaults: ServiceParameters::default(),
                },
            },
        };
        let mut store = Store::new(
            settings,
            Arc::clone(&publisher),
            Planner::new(Timing::default()),
            Metrics::default(),
            None,
            ClaimStore::new(claims::GRACE),
            Wires {
                ports: ports_wished,
                services: services_wished,
                certificates: register,
                teller,
            },
        );
        store.time(NOW, Instant::now());
        Ok(Self {
            world,
            store,
            publisher,
            ports,
            allocation: Arc::new(Allocation::from_json(&format!("{{\"next\":{port}}}"))?),
            services,
            requests,
            desk,
            desk_news,
            told,
            version: 0,
            echoes: VecDeque::new(),
            asked: Asked::default(),
        })
    }

    /// Everything is known that there is: from now on the operator leads, and what is wished for is done.
    pub(crate) fn lead(&mut self) -> Result<()> {
        let now = Instant::now();
        self.store.sources_are_watched();
        self.store.wish(now);
        self.publisher.lead(TERM).context("leading")?;
        self.store.list_claims();
        ensure!(
            self.store.claims_listed(Vec::new(), now),
            "one list of no claims is not enough"
        );
        self.store.lead(true, now);
        self.store.planner.lead(now);
        self.store.issued_by_others(Some(Arc::default()), now);
        Ok(())
    }

    /// Takes these objects as they are now.
    pub(crate) fn put(&mut self, ids: &[Id]) -> Result<()> {
        let events = ids
            .iter()
            .map(|id| self.event(*id))
            .collect::<Result<Vec<_>>>()?;
        self.take(&events)
    }

    /// What the API server would send of an object as it is now.
    pub(crate) fn event(&mut self, id: Id) -> Result<Vec<u8>> {
        let live = self
            .world
            .key(id)
            .and_then(|key| self.store.planner.live(&key));
        let status = live.map(Live::status).filter(|status| !status.is_null());
        self.event_with(id, status)
    }

    fn event_with(&mut self, id: Id, status: Option<Value>) -> Result<Vec<u8>> {
        self.version += 1;
        Ok(serde_json::to_vec(&self.world.json(
            id,
            self.version,
            status,
        ))?)
    }

    /// Takes events.
    pub(crate) fn take(&mut self, events: &[Vec<u8>]) -> Result<()> {
        let events = events
            .iter()
            .map(|event| watched(event))
            .collect::<Result<Vec<_>>>()?;
        self.store.take(events, Instant::now());
        Ok(())
    }

    /// One turn of the operator's loop. Says whether there is more to do at once.
    pub(crate) fn turn(&mut self) -> Result<bool> {
        let now = Instant::now();
        let mut more = self.come_back(now)?;
        self.store.pass(now);
        more |= self.write_claims(now)?;
        more |= self.read_secrets(now)?;
        if self.store.publish(now) {
            more |= self.write_statuses(now)?;
        }
        Ok(more)
    }

    /// What came of earlier wishes and writes.
    fn come_back(&mut self, now: Instant) -> Result<bool> {
        let mut more = false;
        if self.desk_news.has_changed()? {
            self.desk_news.mark_unchanged();
            self.store.issued(self.desk.take(), now);
            more = true;
        }
        if self.ports.has_changed()?
            && let Some(wanted) = self.ports.borrow_and_update().clone()
        {
            // It is persisted before it counts.
            let persisted = self.allocation.settle(&wanted).to_json();
            self.allocation = Arc::new(Allocation::from_json(&persisted)?);
            self.store.allocation(Arc::clone(&self.allocation), now);
            more = true;
        }
        if self.services.has_changed()?
            && let Some(wishes) = self.services.borrow_and_update().clone()
        {
            let front = |wish: &ServiceWish| Front {
                assigned: Some(Assigned {
                    addresses: vec![Address::Ip(Ipv4Addr::new(192, 0, 2, 1).into())],
                    sockets: BTreeSet::new(),
                    problem: None,
                }),
                ports: match wish {
                    ServiceWish::Make(service) => service.ports.clone(),
                    ServiceWish::Keep => FrontPorts::new(),
                },
                alias: None,
            };
            let fronts = wishes
                .iter()
                .map(|(uid, wish)| (uid.clone(), front(wish)))
                .collect();
            self.store.fronts(Arc::new(fronts), now);
            more = true;
        }
        while self.told.try_recv().is_ok() {}
        if !self.echoes.is_empty() {
            self.store.take(self.echoes.drain(..), now);
            more = true;
        }
        Ok(more)
    }

    fn write_claims(&mut self, now: Instant) -> Result<bool> {
        let mut more = false;
        for _ in 0..CLAIM_WRITES {
            let Some(request) = self.store.claim_request(now) else {
                break;
            };
            more = true;
            self.asked.claims += 1;
            let seen = self.write(&request)?;
            self.store
                .claim_answered(&request.name, Outcome::Known(seen), now);
        }
        Ok(more)
    }

    /// Makes a write: the answer is the object, and the watch shows it.
    fn write(&mut self, request: &Request) -> Result<Option<Seen>> {
        let name = &request.name;
        let content = match &request.action {
            Action::Create(content) | Action::Replace { content, .. } => content,
            Action::Delete { .. } => {
                self.echoes.push_back(Event::Remove(ObjectKey {
                    kind: Kind::HostnameClaim,
                    name: name.clone(),
                }));
                return Ok(None);
            }
            Action::Read => anyhow::bail!("every write was answered, and {name} is read"),
        };
        self.version += 1;
        let spec = HostnameClaimSpec::new(
            &content.key,
            &content.gateway_uid,
            &content.holder,
            content.since,
            content.unused_since,
        );
        let event = serde_json::to_vec(&json!({
            "apiVersion": "vestibule.dev/v1alpha1", "kind": "HostnameClaim",
            "metadata": {
                "namespace": name.namespace, "name": name.name,
                "uid": format!("claim-{}", name.name),
                "resourceVersion": self.version.to_string(),
                "labels": { "app.kubernetes.io/managed-by": "vestibule" },
            },
            "spec": spec,
        }))?;
        let Event::Put(answer) = watched(&event)? else {
            anyhow::bail!("an object that is no object");
        };
        let Object::HostnameClaim(claim) = answer.object else {
            anyhow::bail!("the bench wrote a claim wrong: {:?}", answer.object);
        };
        self.echoes.push_back(watched(&event)?);
        Ok(Some((Arc::new(claim), self.version.to_string())))
    }

    fn read_secrets(&mut self, now: Instant) -> Result<bool> {
        let mut more = false;
        for key in self.store.sources_to_read(READS) {
            more = true;
            self.asked.reads += 1;
            let id = World::find(key.kind.as_str(), &key.name.name);
            let object = match id {
                Some(id) => {
                    let event = self.event(id)?;
                    match watched(&event)? {
                        Event::Put(watched) => Some(watched.object),
                        _ => None,
                    }
                }
                None => None,
            };
            self.store.source_read(&key, Ok(object), now);
        }
        Ok(more)
    }

    fn write_statuses(&mut self, now: Instant) -> Result<bool> {
        let mut more = true;
        let mut written = Vec::new();
        for _ in 0..LOOKS {
            let Store {
                planner,
                translator,
                fronts,
                orphans,
                certificates,
                ..
            } = &mut self.store;
            let facts = Facts {
                translator,
                publisher: &self.publisher,
                controller: CONTROLLER,
                fronts,
                orphans,
                issuers: certificates.issuers(),
                issuer_selector: None,
                issuance_known: certificates.is_known(),
            };
            let next = planner.next(now, LOOKS, |key, live, old| {
                statuses::judge(&facts, NOW, (key, live, old))
            });
            let Next::Write(job) = next else {
                more = next == Next::More;
                break;
            };
            self.asked.statuses += 1;
            self.version += 1;
            let generation = planner.live(&job.key).map_or(1, |live| live.generation);
            let live = Live::new(self.version.to_string().into(), generation, &job.status);
            planner.done(&job.key, Ok(live), now);
            let id = World::find(job.key.kind.as_str(), &job.key.name.name);
            written.extend(id.map(|id| (id, job.status)));
        }
        for (id, status) in written {
            let event = self.event_with(id, Some(status))?;
            self.echoes.push_back(watched(&event)?);
            more = true;
        }
        Ok(more)
    }

    /// What the proxies acknowledged has moved.
    pub(crate) fn facts_moved(&mut self) {
        self.store.planner.touch_waiting();
        self.store.look_at_certificates();
    }

    /// Whether something has still to be published, or a name to be recorded before it can be.
    pub(crate) fn is_under_way(&self) -> bool {
        self.store.is_dirty() || !self.echoes.is_empty() || self.store.claims.counts().pending > 0
    }

    /// Proxies that have not acknowledged what was published last.
    pub(crate) fn behind(&self) -> usize {
        self.store.behind()
    }

    /// Statuses that wait for proxies.
    pub(crate) fn waiting(&self) -> usize {
        self.store.planner.waiting()
    }

    /// How many resources there are.
    pub(crate) fn resources(&self) -> usize {
        self.store.translator.resources().len()
    }

    /// What is held besides.
    pub(crate) fn held(&self) -> Held {
        let claims = self.store.claims.counts();
        Held {
            names: claims.held,
            claims: claims.objects,
            requests: self
                .requests
                .borrow()
                .as_ref()
                .map_or(0, |requests| requests.len()),
            ports: self.allocation.len(),
        }
    }

    /// The internal port that stands for a port of the Gateway.
    pub(crate) fn internal(&self, port: u16) -> Result<u16> {
        let mut given = self.allocation.iter();
        let found = given.find(|(wish, _)| wish.port.get() == port);
        let (_, internal) = found.with_context(|| format!("no internal port for {port}"))?;
        Ok(internal)
    }

    /// When statuses are due even if nothing happens.
    pub(crate) fn statuses_due(&self) -> Option<Instant> {
        self.store.planner.deadline()
    }

    /// When there is something to do even if nothing happens.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let due = [
            self.store.planner.deadline(),
            self.store.claims_deadline(),
            self.store.publish_at(),
        ];
        due.into_iter().flatten().min()
    }

    /// The objects that are not Programmed=True in the status that was written last.
    pub(crate) fn not_programmed(&self) -> Vec<ObjectKey> {
        let holds = |key: &ObjectKey| {
            let status = self
                .store
                .planner
                .live(key)
                .map(Live::status)
                .unwrap_or_default();
            let conditions = status
                .get("conditions")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default();
            conditions.iter().any(|condition| {
                condition.get("type").and_then(Value::as_str) == Some("Programmed")
                    && condition.get("status").and_then(Value::as_str) == Some("True")
            })
        };
        self.store
            .translator
            .objects()
            .map(|(key, _)| key)
            .filter(|key| matches!(key.kind, Kind::Gateway | Kind::ListenerSet) && !holds(key))
            .cloned()
            .collect()
    }
}

/// An event of a watch.
fn watched(event: &[u8]) -> Result<Event> {
    let mut body: Value = serde_json::from_slice(event)?;
    let status = body.get_mut("status").map(Value::take).unwrap_or_default();
    let metadata = |name: &str| -> Arc<str> {
        let metadata = body.get("metadata").and_then(|metadata| metadata.get(name));
        metadata.and_then(Value::as_str).unwrap_or_default().into()
    };
    let (uid, resource_version) = (metadata("uid"), metadata("resourceVersion"));
    let (object, findings) = vestibule_crds::decode(body)
        .into_object()
        .context("an object of a kind that this build does not read")?;
    ensure!(
        !matches!(object, Object::Unreadable(..)),
        "the bench wrote an object wrong: {object:?}"
    );
    Ok(Event::Put(Box::new(Watched {
        key: object.key(),
        object,
        findings,
        uid,
        resource_version,
        status,
    })))
}
