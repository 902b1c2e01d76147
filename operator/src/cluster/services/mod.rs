//! Manages the Services in front of Gateways. The leader creates, updates and deletes them ([`plan`] decides), and
//! every replica reads their addresses.
//!
//! Each Gateway has a "front", the Service that clients connect to. It may also have an "alias", a Service of the type
//! `ExternalName` that gives the front another name inside the cluster.

pub mod plan;

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Service;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::watcher::{self, Event};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{info, warn};
use vestibule_model::key::ObjectName;
use vestibule_model::protocol::{Port, Transport};

use super::lease::elector::Role;
use super::metrics::Metrics;
use super::requests::CreateFailure;
use super::text::problem;
use super::writes::{self, Requester, Writes};
use super::{clock, follow, requests};
use crate::translate::{
    Assigned, DesiredService, GatewayService, ServiceProblem, immutable_difference,
};
use plan::{PresentService, PresentServices, Release, ServiceAction};

/// Largest number of requests under way at the same time.
const CONCURRENT: usize = 4;
/// Shortest time between two removals of the same additions. Without it, this replica and a writer that puts them back
/// would write the Service all the time.
const PRUNE_PAUSE: Duration = Duration::from_secs(10);

/// The release that the Services belong to.
#[derive(Debug, Clone)]
pub struct Config {
    /// Value of the label `app.kubernetes.io/managed-by`, and field manager.
    pub manager: String,
    /// The namespace of the fronts, and the owner of all objects.
    pub release: Release,
}

/// Desired Services by the UID of the Gateway.
pub type DesiredServices = BTreeMap<Arc<str>, DesiredService>;

/// The state of the Services, by the UID of the Gateway. A Gateway without a known state is not in the map.
pub type ServiceStates = BTreeMap<Arc<str>, ServiceState>;

/// The state of the Services of one Gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceState {
    /// The addresses of the front, or why it was refused; `None` if it does not exist yet.
    pub assigned: Option<Assigned>,
    /// The internal ports that the front forwards to.
    pub ports: ServicePorts,
    /// Why the alias is not as desired, if that is so. The Gateway is served nevertheless.
    pub alias: Option<String>,
}

/// The ports of a front, and the internal port behind each.
pub type ServicePorts = BTreeMap<(Port, Transport), Port>;

/// The inputs and outputs of the task.
pub struct ServiceChannels {
    /// The desired Services; `None` until they are known.
    pub desired_services: watch::Receiver<Option<Arc<DesiredServices>>>,
    /// The role of this replica. Only the leader writes.
    pub role: watch::Receiver<Role>,
    /// The states of the Services; `None` until they are known.
    pub service_states: watch::Sender<Option<Arc<ServiceStates>>>,
}

/// Keeps the Services up to date, for ever.
pub async fn run(
    client: kube::Client,
    config: Config,
    mut channels: ServiceChannels,
    metrics: Metrics,
) {
    let api: Api<Service> = Api::all(client.clone());
    let ours = format!("{}={}", super::MANAGED_BY, config.manager);
    let selection = watcher::Config::default().labels(&ours);
    let mut events = pin!(follow::objects(
        api,
        selection,
        "the Services in front of Gateways"
    ));
    let mut reconciler = Reconciler::new(client, config, metrics);
    let mut requests: JoinSet<Done> = JoinSet::new();
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(event) => reconciler.take(event),
                None => return,
            },
            changed = channels.desired_services.changed() => if changed.is_err() { return },
            changed = channels.role.changed() => if changed.is_err() { return },
            Some(done) = requests.join_next() => match done {
                Ok(done) => reconciler.done(done),
                Err(error) => warn!(%error, "a request about a Service ended early"),
            },
            () = clock::at(reconciler.writes.retry_at) => {}
        }
        let desired_services = channels.desired_services.borrow_and_update().clone();
        let leads = channels
            .role
            .borrow_and_update()
            .term(Instant::now())
            .is_some();
        if !leads {
            reconciler.writes.follow();
        }
        if let Some(desired_services) = &desired_services {
            if leads {
                reconciler.act(desired_services, &mut requests);
            }
            reconciler.tell(desired_services, &channels.service_states);
        }
    }
}

struct Reconciler {
    api_client: ApiClient,
    owner: Option<Value>,
    release: Arc<Release>,
    present: PresentServices,
    listed: Option<PresentServices>,
    synced: bool,
    writes: Writes<ServiceAction>,
    /// The problem of each failure in `writes`. It may still have those of writes that have succeeded since.
    problems: BTreeMap<ObjectName, ServiceProblem>,
    /// The last removal of additions from each Service, and when the same one may be made again.
    prunes: BTreeMap<ObjectName, (ServiceAction, Instant)>,
    metrics: Metrics,
}

/// A request about a Service and its result.
type Done = writes::Done<ApiClient>;

impl Reconciler {
    fn new(client: kube::Client, config: Config, metrics: Metrics) -> Self {
        let owner = config.release.owner.as_ref().map(plan::owner);
        let release = Arc::new(config.release);
        Self {
            api_client: ApiClient {
                client,
                manager: config.manager.into(),
                release: Arc::clone(&release),
            },
            owner,
            release,
            present: PresentServices::new(),
            listed: None,
            synced: false,
            writes: Writes::new(),
            problems: BTreeMap::new(),
            prunes: BTreeMap::new(),
            metrics,
        }
    }

    fn take(&mut self, event: Event<Service>) {
        match event {
            Event::Init => self.listed = Some(PresentServices::new()),
            Event::InitApply(service) => {
                if self.release.has(&service) {
                    let (name, present) = present(service, &self.api_client.manager);
                    self.listed.get_or_insert_default().insert(name, present);
                }
            }
            Event::InitDone => {
                self.present = self.listed.take().unwrap_or_default();
                self.synced = true;
            }
            Event::Apply(service) => {
                let ours = self.release.has(&service);
                let (name, present) = present(service, &self.api_client.manager);
                if ours {
                    self.present.insert(name, present);
                } else {
                    self.present.remove(&name);
                }
            }
            Event::Delete(service) => {
                let (name, present) = present(service, &self.api_client.manager);
                self.present.remove(&name);
                self.writes.gone(&name, present.uid);
            }
        }
    }

    /// Begins the requests that are due.
    fn act(&mut self, desired_services: &DesiredServices, requests: &mut JoinSet<Done>) {
        self.writes.retry_at = None;
        if !self.synced || self.listed.is_some() {
            return;
        }
        let actions = plan::plan(desired_services, &self.present, self.owner.as_ref());
        let writes = &mut self.writes;
        writes.failures.retain(|name, _| actions.contains_key(name));
        self.problems
            .retain(|name, _| writes.failures.contains_key(name));
        let present = &self.present;
        writes.written.retain(|name, _| present.contains_key(name));
        let now = Instant::now();
        self.prunes.retain(|_, (_, until)| now < *until);
        let possible = actions.iter();
        let possible = possible.filter(|(name, action)| !self.is_fruitless(name, action));
        let (resting, possible): (Vec<_>, Vec<_>) =
            possible.partition(|(name, action)| self.rests_until(name, action).is_some());
        let rested_at = resting
            .into_iter()
            .filter_map(|(name, action)| self.rests_until(name, action))
            .min();
        let (due, retry_at) = self.writes.due(possible.into_iter(), now);
        self.writes.retry_at = retry_at.into_iter().chain(rested_at).min();
        let free = CONCURRENT.saturating_sub(self.writes.under_way());
        for (name, action) in due.into_iter().take(free) {
            let action = (name.clone(), action.clone());
            self.writes.begin(&self.api_client, action, requests);
        }
    }

    /// Whether an action would only repeat the last write, which did not lead to the desired Service.
    fn is_fruitless(&self, name: &ObjectName, action: &ServiceAction) -> bool {
        if let ServiceAction::Anew(_, manifest) = action
            && let Some((ServiceAction::Create(created), _)) = self.writes.written.get(name)
        {
            // This replica created the Service. With the same manifest, a new one would come out the same, whatever has
            // changed in it since.
            return created == manifest;
        }
        let version = self.present.get(name).map(|there| there.version.as_str());
        self.writes
            .repeats(name, version, |written| written.is_like(action))
    }

    /// When an action may begin, if it would remove the same additions again too soon.
    fn rests_until(&self, name: &ObjectName, action: &ServiceAction) -> Option<Instant> {
        let (last, until) = self.prunes.get(name)?;
        last.is_like(action).then_some(*until)
    }

    fn done(&mut self, done: Done) {
        let Done {
            name,
            action,
            outcome,
        } = done;
        let ended = self.writes.end(&name);
        let what = match action {
            ServiceAction::Create(_) => "create",
            ServiceAction::Apply(..) => "apply",
            ServiceAction::Prune(..) => "remove additions",
            ServiceAction::Anew(..) => "delete to make it anew",
            ServiceAction::Delete(_) => "delete",
        };
        self.metrics.service(what, outcome.is_ok());
        match outcome {
            Ok(Some(service)) => {
                info!(service = %name, what, "the request about a Service in front of a Gateway succeeded");
                let (_, present) = present(service, &self.api_client.manager);
                if let ServiceAction::Create(manifest) = &action
                    && let Some(field) = immutable_difference(manifest, &present.object)
                {
                    warn!(service = %name, field, "another program changed a field of the new Service while it was made; the field stays so");
                }
                if matches!(action, ServiceAction::Prune(..)) {
                    let until = Instant::now() + PRUNE_PAUSE;
                    self.prunes.insert(name.clone(), (action.clone(), until));
                }
                let written = (action, present.version.clone());
                self.writes.succeeded(&name, Some(written));
                let is_gone = ended.as_ref() == Some(&present.uid);
                if !is_gone && present.is_after(self.present.get(&name)) {
                    self.present.insert(name, present);
                }
            }
            Ok(None) => {
                info!(service = %name, what, "the request about a Service in front of a Gateway succeeded");
                self.writes.succeeded(&name, None);
                // Nothing more is done about it until the watch shows that it is gone.
                if let Some(present) = self.present.get_mut(&name) {
                    present.deleting = true;
                }
            }
            Err(problem) => {
                let text = problem.to_string();
                let before = self.writes.failures.get(&name);
                if before.is_none_or(|failure| failure.problem != text) {
                    warn!(service = %name, what, %problem, "the request about a Service in front of a Gateway failed; trying again");
                }
                self.problems.insert(name.clone(), problem);
                self.writes.failed(name, text);
            }
        }
    }

    /// Why the front that this replica created is not as asked for, and stays so: [`Self::is_fruitless`] holds it back
    /// while the settings are the same.
    fn changed_on_the_way(&self, service: &GatewayService) -> Option<ServiceProblem> {
        let (ServiceAction::Create(created), _) = self.writes.written.get(&service.front)? else {
            return None;
        };
        let manifest = plan::complete(service.front(), self.owner.as_ref());
        let field = immutable_difference(&manifest, &self.present.get(&service.front)?.object)?;
        (*created == manifest).then_some(ServiceProblem::Changed(field))
    }

    /// Why the last write of a Service failed, if it did.
    fn problem(&self, name: &ObjectName) -> Option<ServiceProblem> {
        self.writes.failures.get(name)?;
        self.problems.get(name).cloned()
    }

    /// The state of the Services of a Gateway for which nothing is written. An alias that was not as desired before still
    /// is not.
    fn kept(front: Option<&PresentService>, before: Option<&ServiceState>) -> Option<ServiceState> {
        let alias = before.and_then(|state| state.alias.clone());
        let assigned = front.and_then(|front| {
            Some(Assigned {
                addresses: plan::addresses_of(front)?,
                sockets: plan::sockets_of(front),
                problem: None,
            })
        });
        (assigned.is_some() || alias.is_some()).then(|| ServiceState {
            assigned,
            ports: front.map(plan::ports_of).unwrap_or_default(),
            alias,
        })
    }

    /// Sends the states of the Services to the loop.
    fn tell(
        &self,
        desired_services: &DesiredServices,
        service_states: &watch::Sender<Option<Arc<ServiceStates>>>,
    ) {
        if !self.synced || self.listed.is_some() {
            return;
        }
        let mut now = ServiceStates::new();
        let fronts = plan::fronts(&self.present, &self.release.namespace);
        for (uid, desired) in desired_services {
            let DesiredService::Make(service) = desired else {
                let known = service_states.borrow();
                let before = known.as_ref().and_then(|all| all.get(uid));
                let kept = Self::kept(fronts.get(uid).copied(), before);
                now.extend(kept.map(|state| (uid.clone(), state)));
                continue;
            };
            let addresses = plan::addresses(service, &self.present);
            let refused = self.problem(&service.front);
            let refused = refused.or_else(|| self.changed_on_the_way(service));
            let assigned = (addresses.is_some() || refused.is_some()).then(|| Assigned {
                addresses: addresses.unwrap_or_default(),
                sockets: plan::sockets(service, &self.present),
                problem: refused,
            });
            let alias = self.problem(&service.alias);
            let alias = alias.map(|problem| problem.to_string());
            if assigned.is_some() || alias.is_some() {
                let ports = plan::ports(service, &self.present);
                let front = ServiceState {
                    assigned,
                    ports,
                    alias,
                };
                now.insert(uid.clone(), front);
            }
        }
        service_states.send_if_modified(|service_states| {
            let differs = service_states.as_deref() != Some(&now);
            if differs {
                *service_states = Some(Arc::new(now));
            }
            differs
        });
    }
}

/// Returns a Service as the plan needs it. `manager` is the field manager of this release.
fn present(mut service: Service, manager: &str) -> (ObjectName, PresentService) {
    let sets_class = sets_class(&service, manager);
    service.metadata.managed_fields = None;
    let metadata = &service.metadata;
    let name = ObjectName::new(
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default(),
    );
    let label = metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get(super::GATEWAY_UID));
    let present = PresentService {
        uid: metadata.uid.clone().unwrap_or_default(),
        version: metadata.resource_version.clone().unwrap_or_default(),
        gateway: label.map(String::as_str).unwrap_or_default().into(),
        deleting: metadata.deletion_timestamp.is_some(),
        sets_class,
        object: serde_json::to_value(&service).unwrap_or_default(),
    };
    (name, present)
}

/// Whether the field manager has applied a `loadBalancerClass`. A class that an admission webhook added to the manager's
/// request does not count as the manager's.
fn sets_class(service: &Service, manager: &str) -> bool {
    let entries = service.metadata.managed_fields.iter().flatten();
    entries
        .filter(|entry| {
            entry.manager.as_deref() == Some(manager) && entry.operation.as_deref() == Some("Apply")
        })
        .filter_map(|entry| entry.fields_v1.as_ref())
        .any(|fields| fields.0.pointer("/f:spec/f:loadBalancerClass").is_some())
}

impl From<String> for ServiceProblem {
    fn from(problem: String) -> Self {
        Self::Refused(problem)
    }
}

impl From<CreateFailure> for ServiceProblem {
    fn from(failure: CreateFailure) -> Self {
        match failure {
            CreateFailure::NameTaken(problem) => Self::NameTaken(problem),
            CreateFailure::Refused(problem) => Self::Refused(problem),
        }
    }
}

/// Makes the requests to the API server.
#[derive(Clone)]
struct ApiClient {
    client: kube::Client,
    manager: Arc<str>,
    release: Arc<Release>,
}

impl Requester for ApiClient {
    type Action = ServiceAction;
    type Object = Service;
    type Problem = ServiceProblem;

    async fn act(
        &self,
        name: &ObjectName,
        action: &ServiceAction,
    ) -> Result<Option<Service>, ServiceProblem> {
        let api: Api<Service> = Api::namespaced(self.client.clone(), &name.namespace);
        let (manager, name) = (&*self.manager, &*name.name);
        let made = match action {
            ServiceAction::Create(manifest) => {
                if let Some(there) = requests::find(&api, name).await? {
                    let is_ours = self.is_ours(&there);
                    return Err(CreateFailure::exists("Service", name, is_ours).into());
                }
                requests::create_new(&api, manager, name, manifest).await?
            }
            ServiceAction::Apply(uid, manifest) => {
                requests::apply(&api, manager, name, uid, manifest).await?
            }
            ServiceAction::Prune(uid, patch) => {
                requests::merge(&api, manager, name, uid, patch).await?
            }
            ServiceAction::Anew(uid, manifest) => {
                // If the new Service would be refused, the Gateway must not lose its present one and its address.
                self.rehearse(&api, manifest).await?;
                requests::delete(&api, name, uid).await?;
                return Ok(None);
            }
            ServiceAction::Delete(uid) => {
                requests::delete(&api, name, uid).await?;
                return Ok(None);
            }
        };
        Ok(Some(made))
    }
}

impl ApiClient {
    /// Whether the watch shows a Service, now or soon: it has the label of this release and belongs to it.
    fn is_ours(&self, service: &Service) -> bool {
        let labels = service.metadata.labels.as_ref();
        let manager = labels.and_then(|labels| labels.get(super::MANAGED_BY));
        manager.is_some_and(|manager| **manager == *self.manager) && self.release.has(service)
    }

    /// Asks the API server in a dry run whether it would accept a Service, under a name that does not exist yet. It also
    /// fails if the new Service would differ from the manifest in a field that cannot be changed later.
    async fn rehearse(&self, api: &Api<Service>, manifest: &Value) -> Result<(), ServiceProblem> {
        let mut manifest = manifest.clone();
        let name = manifest.pointer_mut("/metadata/name");
        let Some(Value::String(name)) = name else {
            return Ok(());
        };
        // The name ends in ten hexadecimal digits. Reversing them gives a different name of the same form.
        if let Some((prefix, digits)) = name.rsplit_once('-') {
            let reversed: String = digits.chars().rev().collect();
            *name = format!("{prefix}-{reversed}");
        }
        let name = name.clone();
        let parameters = PatchParams {
            dry_run: true,
            ..PatchParams::apply(&self.manager)
        };
        let answer = api
            .patch(&name, &parameters, &Patch::Apply(&manifest))
            .await
            .map_err(problem)?;
        let answer = serde_json::to_value(&answer).unwrap_or_default();
        match immutable_difference(&manifest, &answer) {
            None => Ok(()),
            Some(field) => Err(ServiceProblem::Changed(field)),
        }
    }
}

#[cfg(test)]
mod tests;
