//! Everything that is known of a cluster or a directory: the objects, the result of translation, the statuses on
//! the objects, and what could not be read. `explain` and `status` have no rules of their own and only show what is
//! here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;
use vestibule_crds::status::Observed;
use vestibule_model::condition::ConditionType;
use vestibule_model::key::{Kind, ListenerKey, ObjectKey, ParentKey};
use vestibule_model::reference::ParentRef;
use vestibule_operator::status::render;
use vestibule_operator::translate::Translator;

use super::conditions::{ReportedStatus, StatusSource, conditions_in, reported_in};
use crate::{programmed, verdict};

/// Everything that is known.
pub(crate) struct ClusterState {
    pub(crate) translator: Translator,
    /// Name of the controller whose classes count.
    pub(crate) controller: Arc<str>,
    /// What the API server knows in addition; `None` for a directory.
    pub(crate) live: Option<ServerState>,
}

/// What an API server knows in addition to the specs of objects: statuses, and which objects may not be read.
#[derive(Debug, Default)]
pub(crate) struct ServerState {
    /// Statuses as they are written.
    pub(crate) statuses: BTreeMap<ObjectKey, Value>,
    /// Kinds that were not read in all namespaces.
    pub(crate) unread: BTreeMap<Kind, Unread>,
    /// Namespaces in which a kind was listed separately, because it may not be listed in all namespaces.
    pub(crate) read_in: BTreeSet<(Kind, Arc<str>)>,
    /// Single objects that may not be read.
    pub(crate) denied: BTreeSet<ObjectKey>,
    /// Objects that are only assumed to exist, because they may not be read.
    pub(crate) assumed: BTreeSet<ObjectKey>,
    /// Single objects that were asked for and do not exist.
    pub(crate) absent: BTreeSet<ObjectKey>,
    /// Whether the admission settings of the release could not be read, and were not given as arguments either.
    pub(crate) release_hidden: bool,
}

impl ServerState {
    /// Whether the objects of a kind in a namespace were read.
    pub(crate) fn reads_in(&self, kind: Kind, namespace: &Arc<str>) -> bool {
        match self.unread.get(&kind) {
            None => true,
            Some(Unread::Elsewhere(only)) if **only == **namespace => true,
            Some(_) => self.read_in.contains(&(kind, namespace.clone())),
        }
    }
}

/// Which part of a kind was not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unread {
    /// The kind may be listed only in this namespace.
    Elsewhere(String),
    /// The kind may not be listed at all.
    Everywhere,
}

/// Kinds that decide which listeners exist, and who may extend a Gateway. Only callers who may read all of them can
/// know the state of a listener.
const GROUND: [Kind; 6] = [
    Kind::GatewayClass,
    Kind::Gateway,
    Kind::ListenerSet,
    Kind::Namespace,
    Kind::HostnameGrant,
    Kind::HostnameClaim,
];

impl ClusterState {
    /// Whether every object of the kinds in [`GROUND`] was read. Then translation here has the same verdicts about
    /// listeners as the operator.
    pub(crate) fn is_whole(&self) -> bool {
        self.live.as_ref().is_none_or(|live| {
            let read = |kind| !live.unread.contains_key(kind);
            live.assumed.is_empty() && GROUND.iter().all(read)
        })
    }

    /// Whether the objects of a kind in a namespace were read.
    pub(crate) fn reads_beside(&self, kind: Kind, namespace: &Arc<str>) -> bool {
        self.live
            .as_ref()
            .is_none_or(|live| live.reads_in(kind, namespace))
    }

    /// Whether an object may not be read.
    pub(crate) fn is_denied(&self, key: &ObjectKey) -> bool {
        self.live
            .as_ref()
            .is_some_and(|live| live.denied.contains(key))
    }

    /// Whether an object was not read, and is only assumed to exist.
    pub(crate) fn is_assumed(&self, key: &ObjectKey) -> bool {
        self.live
            .as_ref()
            .is_some_and(|live| live.assumed.contains(key))
    }

    /// Whether an object exists and was read.
    pub(crate) fn is_read(&self, key: &ObjectKey) -> bool {
        self.translator.object(key).is_some() && !self.is_assumed(key)
    }

    /// Whether it is known that there is no such object.
    pub(crate) fn is_missing(&self, key: &ObjectKey) -> bool {
        let asked = self.live.as_ref();
        self.translator.object(key).is_none()
            && (self.reads_beside(key.kind, &key.name.namespace)
                || asked.is_some_and(|live| live.absent.contains(key)))
    }

    /// The status that translation gives an object. It does not know what the proxies hold.
    pub(crate) fn computed(&self, key: &ObjectKey) -> Option<Value> {
        let status = self.translator.statuses().get(key)?;
        let observed = Observed {
            generation: 0,
            now: 0,
        };
        let controller = &self.controller;
        Some(render(
            key,
            &Value::Null,
            status,
            controller,
            observed,
            |basis| programmed::without_proxies(basis, ""),
        ))
    }

    /// The status that is written on an object.
    pub(crate) fn written(&self, key: &ObjectKey) -> Option<&Value> {
        self.live.as_ref()?.statuses.get(key)
    }

    /// The status of a listener, as it is written on its object.
    pub(crate) fn written_of_listener(&self, key: &ListenerKey) -> Option<ReportedStatus> {
        of_listener(self.written(&key.parent.object())?, &key.listener)
    }

    /// The status of a route for one of its parents, as it is written on the route.
    pub(crate) fn written_of_route(
        &self,
        key: &ObjectKey,
        parent: &ParentRef,
    ) -> Option<ReportedStatus> {
        let status = self.written(key)?;
        reported_in(status, &self.controller, parent, &key.name.namespace)
    }

    /// How many routes the operator counts at a listener.
    pub(crate) fn attached_routes(&self, key: &ListenerKey) -> Option<u64> {
        let status = self.written(&key.parent.object())?;
        entry(status, &key.listener)?
            .get("attachedRoutes")?
            .as_u64()
    }

    /// The generation of an object's spec.
    pub(crate) fn generation(&self, key: &ObjectKey) -> i64 {
        verdict::generation(&self.translator, key)
    }

    /// The status of a Gateway or ListenerSet or, with a name, of one of its listeners.
    pub(crate) fn reported_on(&self, parent: &ParentKey, listener: Option<&str>) -> ReportedStatus {
        let key = parent.object();
        let pick = |status: &Value| match listener {
            None => conditions_in(status),
            Some(name) => of_listener(status, name),
        };
        self.reported(&key, pick)
    }

    /// The status of a GatewayClass.
    pub(crate) fn reported_on_class(&self, name: &Arc<str>) -> ReportedStatus {
        let key = ObjectKey::new(Kind::GatewayClass, "", name.clone());
        self.reported(&key, conditions_in)
    }

    /// The status of a route for one of its parents.
    pub(crate) fn reported_on_route(&self, key: &ObjectKey, parent: &ParentRef) -> ReportedStatus {
        let namespace = &key.name.namespace;
        self.reported(key, |status| {
            reported_in(status, &self.controller, parent, namespace)
        })
    }

    fn reported(
        &self,
        key: &ObjectKey,
        pick: impl Fn(&Value) -> Option<ReportedStatus>,
    ) -> ReportedStatus {
        let computed = self.computed(key).as_ref().and_then(&pick);
        let written = self.written(key).and_then(pick);
        let generation = self.generation(key);
        let of = |reported: Option<ReportedStatus>, by| ReportedStatus {
            by,
            ..reported.unwrap_or_default()
        };
        if self.live.is_none() {
            return of(computed, StatusSource::Translation);
        }
        let stale = written
            .as_ref()
            .is_some_and(|w| w.is_older_than(generation));
        if self.is_whole() {
            let mut differences = match (&computed, &written) {
                (Some(computed), Some(written)) => computed.differences(written),
                _ => Vec::new(),
            };
            if self
                .live
                .as_ref()
                .is_some_and(|live| !live.denied.is_empty())
            {
                // A reference that could not be followed here is not necessarily broken.
                differences.retain(|one| {
                    matches!(
                        ConditionType::from_text(&one.kind),
                        Some(ConditionType::Accepted | ConditionType::Conflicted)
                    )
                });
            }
            let unwritten = computed.is_some() && written.is_none();
            return ReportedStatus {
                differences,
                unwritten,
                stale,
                live: written
                    .as_ref()
                    .map(ReportedStatus::status_only)
                    .unwrap_or_default(),
                ..of(computed, StatusSource::Translation)
            };
        }
        match written {
            Some(written) => ReportedStatus {
                stale,
                live: written.status_only(),
                ..of(Some(written), StatusSource::Status)
            },
            None => of(computed, StatusSource::Guess),
        }
    }
}

fn entry<'a>(status: &'a Value, listener: &str) -> Option<&'a Value> {
    let all = status.get("listeners")?.as_array()?;
    all.iter().find(|one| one["name"] == listener)
}

fn of_listener(status: &Value, listener: &str) -> Option<ReportedStatus> {
    entry(status, listener).and_then(conditions_in)
}
