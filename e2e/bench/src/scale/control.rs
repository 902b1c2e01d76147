//! The operator's part without an API server: events in as JSON, through decoding, translation, the
//! publisher and the planner of statuses; a status that is written comes back as an event, as it would
//! from a watch. The same parts as `vestibule-operator`, in the order of its loop.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::Value;
use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::object::Object;
use vestibule_model::policy::Policy;
use vestibule_operator::cluster::services::Fronts;
use vestibule_operator::cluster::statuses::plan::{Live, Next, Planner, Timing};
use vestibule_operator::cluster::statuses::{self, Facts};
use vestibule_operator::publish::{Changes, Publisher};
use vestibule_operator::translate::{Binds, CONTROLLER, Change, Claims, Settings, Translator};
use vestibule_stream::ResourceKey;

use super::world::{Id, World};

/// Statuses that are looked at before events have their turn, as in the operator.
const LOOKS: usize = 64;
/// Events that are translated at a time, as in the operator.
pub(crate) const BATCH: usize = 1024;
/// The time that statuses say.
const NOW: i64 = 1_767_323_045;

/// A bench has one term.
const TERM: u64 = 1;

/// The operator.
pub(crate) struct Control {
    /// Its objects.
    pub(crate) world: World,
    translator: Translator,
    planner: Planner,
    publisher: Arc<Publisher>,
    fronts: Fronts,
    orphans: BTreeSet<ObjectKey>,
    /// The last resource version.
    version: u64,
    /// Statuses written that have not come back.
    echoes: VecDeque<(Id, Value)>,
    /// Statuses written.
    pub(crate) writes: u64,
}

impl Control {
    /// A leader that knows nothing yet and serves on loopback, on these ports.
    pub(crate) fn new(
        world: World,
        publisher: Arc<Publisher>,
        ports: BTreeMap<u16, u16>,
    ) -> Result<Self> {
        let translator = Translator::new(Settings {
            controller: CONTROLLER.into(),
            policy: Policy::default(),
            claims: Claims::Assumed,
            binds: Binds::Direct {
                address: [127, 0, 0, 1].into(),
                ports,
            },
        });
        let mut planner = Planner::new(Timing::default());
        publisher.lead(TERM).context("leading")?;
        planner.lead(Instant::now());
        Ok(Self {
            world,
            translator,
            planner,
            publisher,
            fronts: Fronts::new(),
            orphans: BTreeSet::new(),
            version: 0,
            echoes: VecDeque::new(),
            writes: 0,
        })
    }

    /// Takes these objects as they are now, and publishes what follows. Returns the resources that
    /// changed.
    pub(crate) fn put(&mut self, ids: &[Id]) -> Result<Vec<ResourceKey>> {
        let events = ids
            .iter()
            .map(|id| self.event(*id))
            .collect::<Result<Vec<_>>>()?;
        self.take(&events)
    }

    /// What the API server would send of an object as it is now.
    pub(crate) fn event(&mut self, id: Id) -> Result<Vec<u8>> {
        let live = self.world.key(id).and_then(|key| self.planner.live(&key));
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

    /// Takes events and publishes what follows.
    pub(crate) fn take(&mut self, events: &[Vec<u8>]) -> Result<Vec<ResourceKey>> {
        let mut changes = Vec::with_capacity(events.len());
        for event in events {
            let mut body: Value = serde_json::from_slice(event)?;
            let status = body.get_mut("status").map(Value::take).unwrap_or_default();
            let metadata =
                |name: &str| body.get("metadata").and_then(|metadata| metadata.get(name));
            let version: Arc<str> = metadata("resourceVersion")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .into();
            let generation = metadata("generation")
                .and_then(Value::as_i64)
                .unwrap_or_default();
            let (object, _) = vestibule_crds::decode(body)
                .into_object()
                .context("an object of a kind that this build does not read")?;
            anyhow::ensure!(
                !matches!(object, Object::Unreadable(..)),
                "the bench wrote an object wrong: {object:?}"
            );
            let key = object.key();
            if has_status(key.kind) {
                self.planner
                    .observe(&key, Live::new(version, generation, &status));
            }
            changes.push(Change::Put(object));
        }
        let output = self.translator.apply(changes);
        for key in output.statuses.keys() {
            self.planner.touch(key);
        }
        let mut changes = Changes::new();
        let mut keys = Vec::new();
        for (key, resource) in output.resources {
            keys.push(key.clone());
            match resource {
                Some(encoded) => changes.upsert_encoded(encoded),
                None => changes.remove(key),
            }
        }
        if !changes.is_empty() {
            self.publisher.update(changes);
        }
        Ok(keys)
    }

    /// One turn of the operator's loop: a look at some statuses, and the events that follow. Says
    /// whether there is more to do at once.
    pub(crate) fn turn(&mut self) -> Result<bool> {
        let facts = Facts {
            translator: &self.translator,
            publisher: &self.publisher,
            controller: CONTROLLER,
            fronts: &self.fronts,
            orphans: &self.orphans,
            issuers: &BTreeMap::new(),
            issuer_selector: None,
            issuance_known: true,
        };
        let mut more = true;
        for _ in 0..LOOKS {
            let now = Instant::now();
            let next = self.planner.next(now, LOOKS, |key, live, old| {
                statuses::judge(&facts, NOW, (key, live, old))
            });
            let Next::Write(job) = next else {
                more = next == Next::More;
                break;
            };
            self.writes += 1;
            self.version += 1;
            let generation = self
                .planner
                .live(&job.key)
                .map_or(1, |live| live.generation);
            let live = Live::new(self.version.to_string().into(), generation, &job.status);
            self.planner.done(&job.key, Ok(live), now);
            let id = World::find(job.key.kind.as_str(), &job.key.name.name);
            self.echoes.extend(id.map(|id| (id, job.status)));
        }
        let echoes = self.echoes.drain(..).collect::<Vec<_>>();
        more |= !echoes.is_empty();
        let events = echoes
            .into_iter()
            .map(|(id, status)| self.event_with(id, Some(status)))
            .collect::<Result<Vec<_>>>()?;
        if !events.is_empty() {
            self.take(&events)?;
        }
        Ok(more)
    }

    /// What the proxies acknowledged has moved.
    pub(crate) fn facts_moved(&mut self) {
        self.planner.touch_waiting();
    }

    /// Statuses that wait for proxies.
    pub(crate) fn waiting(&self) -> usize {
        self.planner.waiting()
    }

    /// Every resource.
    pub(crate) fn resources(&self) -> Vec<ResourceKey> {
        self.translator.resources().keys().cloned().collect()
    }

    /// When the planner wants to be asked even if nothing happens.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.planner.deadline()
    }

    /// The objects that are not Programmed=True in the status that was written last.
    pub(crate) fn not_programmed(&self) -> Vec<ObjectKey> {
        let holds = |key: &ObjectKey| {
            let status = self.planner.live(key).map(Live::status).unwrap_or_default();
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
        self.translator
            .objects()
            .map(|(key, _)| key)
            .filter(|key| matches!(key.kind, Kind::Gateway | Kind::ListenerSet) && !holds(key))
            .cloned()
            .collect()
    }
}

fn has_status(kind: Kind) -> bool {
    kind.is_route() || matches!(kind, Kind::GatewayClass | Kind::Gateway | Kind::ListenerSet)
}
