//! The operator without an API server: its own queue and store, which take events in as JSON and make of them
//! translation, claims, certificate requests, internal ports and what the proxies are sent; and its
//! planner of statuses. This is the loop around it, with what an API server would do: what is written
//! comes back as an event, as it would from a watch, and what is read is the object as it is now.

use std::collections::{BTreeSet, VecDeque};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use vestibule_crds::vestibule::HostnameClaimSpec;
use vestibule_crds::watch::{Event, Touched, Watched};
use vestibule_model::condition::Address;
use vestibule_model::endpoint::EndpointRules;
use vestibule_model::issuance::CertificateRequest;
use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::object::Object;
use vestibule_model::parameters::ServiceParameters;
use vestibule_model::policy::Policy;
use vestibule_operator::claims::{
    self, ClaimAction, ClaimRequest, ClaimStore, SeenClaim, WriteOutcome,
};
use vestibule_operator::cluster::events::{EventRecorder, ObjectEvent};
use vestibule_operator::cluster::metrics::Metrics;
use vestibule_operator::cluster::ports::allocation::Allocation;
use vestibule_operator::cluster::services::{DesiredServices, ServicePorts, ServiceState};
use vestibule_operator::cluster::statuses::plan::{LiveStatus, Next, Planner, StatusTiming};
use vestibule_operator::cluster::statuses::{self, StatusInputs};
use vestibule_operator::cluster::store::{SOURCES, Store, StoreChannels};
use vestibule_operator::cluster::watch_queue::WatchQueue;
use vestibule_operator::control::ControlLoop;
use vestibule_operator::issuance::{self, CertificateRegistry, EngineLink};
use vestibule_operator::map_channel::{MapChanges, MapView};
use vestibule_operator::publish::Publisher;
use vestibule_operator::translate::{
    Assigned, Binds, CONTROLLER, ClaimMode, DesiredPort, DesiredService, ServiceSettings, Settings,
};

use super::world::{Id, World};

/// Statuses that are looked at before events have their turn, as in the operator.
const LOOKS: usize = 64;
/// Objects that the watches bring at a time. The operator's channel holds as many.
pub(crate) const BATCH: usize = 1024;
/// Secrets that are read, and claims that are written, in one turn, as in the operator.
const READS: usize = 8;
const CLAIM_WRITES: usize = 64;
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
    ports: watch::Receiver<Option<Arc<BTreeSet<DesiredPort>>>>,
    allocation: Arc<Allocation>,
    services: watch::Receiver<Option<Arc<DesiredServices>>>,
    requests: MapView<Arc<CertificateRequest>>,
    engine_link: EngineLink,
    engine_link_changed: watch::Receiver<()>,
    told: mpsc::Receiver<ObjectEvent>,
    /// The last resource version.
    version: u64,
    /// The events that wait for translation.
    queue: WatchQueue,
    /// Events that have arrived and are not in the queue yet. What is written comes back here.
    arrivals: VecDeque<Event>,
    /// Events of Secrets from before the operator leads. It watches Secrets once it knows which of them are used.
    unwatched: Option<Vec<Event>>,
    /// Turns of events so far.
    pub(crate) turns: u64,
    /// Whether the last turn left events in the queue.
    pub(crate) backlog: bool,
    /// What was asked so far.
    pub(crate) asked: Asked,
}

impl Control {
    /// An operator that knows nothing yet, whose proxies bind loopback; internal ports are given out from
    /// `port` on.
    pub(crate) fn new(world: World, publisher: Arc<Publisher>, port: u16) -> Result<Self> {
        let (desired_ports, ports) = watch::channel(None);
        let (desired_services, services) = watch::channel(None);
        let (registry, channels) = CertificateRegistry::new();
        let engine_link = channels.engine_link.clone();
        let (engine_link_changed, requests) = (engine_link.for_loop(), channels.requests.clone());
        // The built-in engine is off; certificates are asked of another one.
        tokio::spawn(issuance::refuse(channels));
        let (event_recorder, told) = EventRecorder::new();
        let settings = Settings {
            controller: CONTROLLER.into(),
            // The bench's backends are on this host.
            policy: Policy {
                endpoints: EndpointRules::with_loopback(),
                ..Policy::default()
            },
            claims: ClaimMode::Recorded,
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
            Planner::new(StatusTiming::default()),
            Metrics::default(),
            None,
            ClaimStore::new(claims::GRACE),
            StoreChannels {
                ports: desired_ports,
                services: desired_services,
                certificates: registry,
                event_recorder,
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
            engine_link,
            engine_link_changed,
            told,
            version: 0,
            queue: WatchQueue::new(),
            arrivals: VecDeque::new(),
            unwatched: Some(Vec::new()),
            turns: 0,
            backlog: false,
            asked: Asked::default(),
        })
    }

    /// Everything is known that there is: from now on the operator leads, and what is wished for is done.
    pub(crate) fn lead(&mut self) -> Result<()> {
        self.take_all();
        let now = Instant::now();
        self.store.sources_are_watched();
        if let Some(sources) = self.unwatched.take() {
            self.store.take(sources, now);
        }
        self.store.send_desired(now);
        self.publisher.lead(TERM).context("leading")?;
        self.store.list_claims();
        ensure!(
            self.store.claims_listed(Vec::new(), now),
            "one list of no claims is not enough"
        );
        self.store.lead(true, now);
        self.store.planner.lead(now);
        self.store.issued_by_others(Some(MapChanges::new()), now);
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
        let status = live
            .map(LiveStatus::status)
            .filter(|status| !status.is_null());
        self.version += 1;
        let object = self.world.json(id, self.version, status);
        Ok(serde_json::to_vec(&object)?)
    }

    /// Takes events in. They wait for their turn, except those of Secrets, which come by another watch of the operator
    /// and do not pass through the queue.
    pub(crate) fn take(&mut self, events: &[Vec<u8>]) -> Result<()> {
        let mut sources = Vec::new();
        for event in events {
            let event = watched(event)?;
            let is_source =
                matches!(&event, Event::Put(object) if SOURCES.contains(&object.key.kind));
            if is_source {
                sources.push(event);
            } else {
                self.arrivals.push_back(event);
            }
        }
        match &mut self.unwatched {
            Some(unwatched) => unwatched.extend(sources),
            None if sources.is_empty() => {}
            None => {
                self.store.take(sources, Instant::now());
            }
        }
        self.fill();
        Ok(())
    }

    /// Moves what has arrived into the queue, as long as it has room.
    fn fill(&mut self) {
        let arrived = std::iter::from_fn(|| self.arrivals.pop_front());
        self.queue.fill(arrived, Instant::now());
    }

    /// Whether events have arrived for which the queue has no room. The operator's watches would wait now.
    pub(crate) fn is_full(&self) -> bool {
        !self.arrivals.is_empty()
    }

    /// Has the events of the next turn translated. Says whether there were any.
    pub(crate) fn take_events(&mut self) -> bool {
        let taken = self.store.take_turn(&mut self.queue, Instant::now());
        self.turns += u64::from(taken);
        self.fill();
        self.backlog = !self.queue.is_empty();
        taken
    }

    /// Has turns of events translated until none waits.
    pub(crate) fn take_all(&mut self) {
        while self.take_events() {}
    }

    /// One turn of the operator's loop. Says whether there is more to do at once.
    pub(crate) fn turn(&mut self) -> Result<bool> {
        let mut more = self.take_events();
        let now = Instant::now();
        more |= self.come_back(now)?;
        self.store.pass(now);
        more |= self.write_claims(now)?;
        self.store.look_on(now);
        more |= self.read_secrets(now)?;
        self.store.publish(now);
        more |= self.write_statuses(now);
        self.fill();
        Ok(more || !self.queue.is_empty())
    }

    /// One turn of the operator's loop, after what the proxies have acknowledged by now.
    pub(crate) fn turn_after(&mut self, acks: &mut watch::Receiver<u64>) -> Result<bool> {
        if acks.has_changed()? {
            acks.mark_unchanged();
            self.acks_moved();
        }
        self.turn()
    }

    /// Takes the results of earlier wishes.
    fn come_back(&mut self, now: Instant) -> Result<bool> {
        let mut more = false;
        if self.engine_link_changed.has_changed()? {
            self.engine_link_changed.mark_unchanged();
            self.store.issued(self.engine_link.take(), now);
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
            && let Some(desired_services) = self.services.borrow_and_update().clone()
        {
            let front = |desired: &DesiredService| ServiceState {
                assigned: Some(Assigned {
                    addresses: vec![Address::Ip(Ipv4Addr::new(192, 0, 2, 1).into())],
                    sockets: BTreeSet::new(),
                    problem: None,
                }),
                ports: match desired {
                    DesiredService::Make(service) => service.ports.clone(),
                    DesiredService::Keep => ServicePorts::new(),
                },
                alias: None,
            };
            let service_states = desired_services
                .iter()
                .map(|(uid, desired)| (uid.clone(), front(desired)))
                .collect();
            self.store.service_states(Arc::new(service_states), now);
            more = true;
        }
        while self.told.try_recv().is_ok() {}
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
                .claim_answered(&request.name, WriteOutcome::Known(seen), now);
        }
        Ok(more)
    }

    /// Makes a write: the answer is the object, and the watch shows it.
    fn write(&mut self, request: &ClaimRequest) -> Result<Option<SeenClaim>> {
        let name = &request.name;
        let content = match &request.action {
            ClaimAction::Create(content) | ClaimAction::Replace { content, .. } => content,
            ClaimAction::Delete { .. } => {
                self.arrivals.push_back(Event::Remove(ObjectKey {
                    kind: Kind::HostnameClaim,
                    name: name.clone(),
                }));
                return Ok(None);
            }
            ClaimAction::Read => anyhow::bail!("every write was answered, and {name} is read"),
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
        self.arrivals.push_back(watched(&event)?);
        Ok(Some((claim, self.version.to_string())))
    }

    fn read_secrets(&mut self, now: Instant) -> Result<bool> {
        let mut more = false;
        for key in self.store.sources_to_read(READS, now) {
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
            self.store.sources_read([(key, Ok(object))], now);
        }
        Ok(more)
    }

    fn write_statuses(&mut self, now: Instant) -> bool {
        let mut more = true;
        let mut written = Vec::new();
        for _ in 0..LOOKS {
            let Store {
                planner,
                control,
                service_states,
                orphans,
                ..
            } = &mut self.store;
            let ControlLoop {
                translator,
                certificates,
                ..
            } = control;
            let facts = StatusInputs {
                translator,
                publisher: &self.publisher,
                controller: CONTROLLER,
                service_states,
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
            let resource_version: Arc<str> = self.version.to_string().into();
            let live = LiveStatus::new(Arc::clone(&resource_version), generation, &job.status);
            planner.done(&job.key, Ok(live), now);
            // A watch does not decode an object of which only the status has changed.
            written.push(Event::Touched(Box::new(Touched {
                key: job.key,
                generation,
                resource_version,
                status: job.status,
            })));
        }
        more |= !written.is_empty();
        self.arrivals.extend(written);
        more
    }

    /// Waits until the proxies acknowledge something, as `acks` says, until something is due, or until `most` has
    /// passed.
    pub(crate) async fn wait(
        &mut self,
        acks: &mut watch::Receiver<u64>,
        most: Duration,
    ) -> Result<()> {
        let left = |at: Instant| at.saturating_duration_since(Instant::now());
        let wait = self.deadline().map_or(most, left).min(most);
        if let Ok(changed) = tokio::time::timeout(wait, acks.changed()).await {
            changed?;
            self.acks_moved();
        }
        Ok(())
    }

    /// Runs turns until every status is written that can be and, unless `may_wait`, until none waits for proxies. `check` is
    /// asked each time before that may be so, and can end it with an error.
    pub(crate) async fn settle(
        &mut self,
        acks: &mut watch::Receiver<u64>,
        look: Duration,
        may_wait: bool,
        check: impl Fn() -> Result<()>,
    ) -> Result<()> {
        loop {
            while self.turn()? {
                tokio::task::yield_now().await;
            }
            check()?;
            let waits = self.waiting() > 0 && !may_wait;
            if !waits && !self.is_under_way() && self.statuses_due().is_none() {
                return Ok(());
            }
            self.wait(acks, look).await?;
        }
    }

    /// What the proxies acknowledged has moved.
    pub(crate) fn acks_moved(&mut self) {
        self.store.acks_moved();
    }

    /// Whether something has still to be translated or published, or a name to be recorded before it can be.
    pub(crate) fn is_under_way(&self) -> bool {
        self.store.is_dirty()
            || !self.queue.is_empty()
            || self.store.control.claims.counts().pending > 0
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
        self.store.control.translator.resources().len()
    }

    /// What is held besides.
    pub(crate) fn held(&self) -> Held {
        let claims = self.store.control.claims.counts();
        Held {
            names: claims.held,
            claims: claims.objects,
            requests: self.requests.len(),
            ports: self.allocation.len(),
        }
    }

    /// The internal port that stands for a port of the Gateway.
    pub(crate) fn internal(&self, port: u16) -> Result<u16> {
        let mut given = self.allocation.iter();
        let found = given.find(|(desired, _)| desired.port.get() == port);
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
            self.store.look_at(),
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
                .map(LiveStatus::status)
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
        let translator = &self.store.control.translator;
        translator
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
