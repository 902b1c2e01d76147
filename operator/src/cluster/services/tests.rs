use std::sync::atomic::{AtomicU64, Ordering};

use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::json;
use vestibule_model::service::ServiceType;

use super::super::testing::{self, Answer, Polls};
use super::*;

const OURS: &str = "example.net/edge";
const THEIRS: &str = "service.k8s.aws/nlb";

fn config() -> Config {
    Config {
        manager: "r".into(),
        release: Release {
            namespace: "sys".into(),
            owner: None,
        },
    }
}

fn only(service: &GatewayService) -> DesiredServices {
    let make = DesiredService::Make(Box::new(service.clone()));
    BTreeMap::from([(service.uid.clone(), make)])
}

/// A front for which the settings ask for a class.
fn classed() -> GatewayService {
    GatewayService {
        service_type: ServiceType::LoadBalancer,
        load_balancer_class: Some(OURS.into()),
        ..plan::tests::desired("one")
    }
}

/// A Service of the release in which the only known field is its class.
fn service(path: &str, version: u64, class: &str) -> Value {
    let mut parts = path.rsplit('/');
    let name = parts.next();
    json!({
        "metadata": {
            "namespace": parts.nth(1), "name": name,
            "uid": "u", "resourceVersion": version.to_string(),
            "labels": {
                "app.kubernetes.io/managed-by": "r",
                "vestibule.dev/gateway-uid": "one",
            },
        },
        "spec": {"type": "LoadBalancer", "loadBalancerClass": class},
    })
}

/// An API server that gives new Services a class: this one in a dry run, and that one otherwise.
struct Classes {
    in_dry_run: &'static str,
    otherwise: &'static str,
    version: AtomicU64,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Classes {
    fn answer(&self, request: &Request<Body>) -> Response<Answer> {
        let (path, query) = (request.uri().path(), request.uri().query());
        let dry_run = query.is_some_and(|query| query.contains("dryRun"));
        self.requests
            .lock()
            .push(format!("{} {path} {dry_run}", request.method()));
        match *request.method() {
            Method::PATCH => {
                let version = self.version.fetch_add(1, Ordering::Relaxed);
                let class = if dry_run {
                    self.in_dry_run
                } else {
                    self.otherwise
                };
                testing::object(&service(path, version, class))
            }
            Method::DELETE => testing::object(&json!({
                "apiVersion": "v1", "kind": "Status", "status": "Success",
            })),
            _ => testing::failure(StatusCode::NOT_FOUND),
        }
    }
}

/// A reconciler that knows every Service there is, and the requests that it makes.
struct World {
    reconciler: Reconciler,
    requests: Arc<Mutex<Vec<String>>>,
}

impl World {
    fn new(in_dry_run: &'static str, otherwise: &'static str, present: &[Value]) -> Self {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let classes = Classes {
            in_dry_run,
            otherwise,
            version: AtomicU64::new(10),
            requests: Arc::clone(&requests),
        };
        let client = testing::client(move |request| classes.answer(request));
        let mut reconciler = Reconciler::new(client, config(), Metrics::default());
        reconciler.take(Event::Init);
        for service in present {
            let service = serde_json::from_value(service.clone()).expect("a Service");
            reconciler.take(Event::InitApply(service));
        }
        reconciler.take(Event::InitDone);
        Self {
            reconciler,
            requests,
        }
    }

    /// Has the reconciler act some times, and returns the requests about the front.
    async fn act(&mut self, desired: &DesiredServices) -> Vec<String> {
        for _ in 0..5 {
            let mut requests = JoinSet::new();
            self.reconciler.act(desired, &mut requests);
            while let Some(done) = requests.join_next().await {
                self.reconciler.done(done.expect("no panic"));
            }
            // The watch shows which Services are gone.
            self.reconciler.present.retain(|_, there| !there.deleting);
        }
        let mut requests = std::mem::take(&mut *self.requests.lock());
        requests.retain(|request| request.contains("/namespaces/sys/"));
        requests
    }

    /// Returns the reason that the reconciler tells why the only front is not as desired.
    fn problem(&self, desired: &DesiredServices) -> Option<String> {
        let (service_states, _) = watch::channel(None);
        self.reconciler.tell(desired, &service_states);
        let states: Arc<ServiceStates> = service_states.borrow().clone()?;
        let state = states.values().next()?;
        let problem = state.assigned.as_ref()?.problem.as_ref()?;
        Some(problem.to_string())
    }
}

const FRONT: &str = "/api/v1/namespaces/sys/services/r-gw-one";
const REHEARSAL: &str = "PATCH /api/v1/namespaces/sys/services/r-gw-eno true";

#[tokio::test]
async fn a_service_gets_another_class_by_being_made_anew_once() {
    let mut world = World::new(OURS, OURS, &[service(FRONT, 1, THEIRS)]);
    let requests = world.act(&only(&classed())).await;
    let once = [
        REHEARSAL.to_owned(),
        format!("DELETE {FRONT} false"),
        format!("GET {FRONT} false"),
        format!("PATCH {FRONT} false"),
    ];
    assert_eq!(requests, once);
}

#[tokio::test]
async fn a_service_stays_if_a_new_one_would_have_another_class_too() {
    let mut world = World::new(THEIRS, THEIRS, &[service(FRONT, 1, "example.net/old")]);
    let requests = world.act(&only(&classed())).await;
    assert_eq!(requests, [REHEARSAL]);
    let front = classed().front;
    let trouble = &world.reconciler.writes.failures[&front];
    assert!(
        trouble.problem.contains("spec.loadBalancerClass"),
        "{}",
        trouble.problem
    );
    // It is tried again later, in case that the webhook is gone by then.
    let retry_at = world.reconciler.writes.retry_at;
    assert!(retry_at.is_some_and(|at| at <= trouble.until));
}

#[tokio::test]
async fn a_new_service_that_comes_out_otherwise_is_not_made_anew() {
    // The webhook takes no part in dry runs.
    let mut world = World::new(OURS, THEIRS, &[]);
    let requests = world.act(&only(&classed())).await;
    let create = [format!("GET {FRONT} false"), format!("PATCH {FRONT} false")];
    assert_eq!(requests, create);
    // The load balancer writes the status of the Service, which changes its version and nothing else.
    let written = serde_json::from_value(service(FRONT, 100, THEIRS)).expect("a Service");
    world.reconciler.take(Event::Apply(written));
    assert!(world.act(&only(&classed())).await.is_empty());
    let said =
        "something such as an admission webhook changes spec.loadBalancerClass of new Services";
    assert_eq!(world.problem(&only(&classed())).as_deref(), Some(said));
    // Other settings are another reason to make it anew.
    let other = GatewayService {
        load_balancer_class: Some("example.net/core".into()),
        ..classed()
    };
    assert_eq!(world.problem(&only(&other)), None);
    assert_eq!(world.act(&only(&other)).await, [REHEARSAL]);
}

#[tokio::test]
async fn a_name_that_another_service_has_is_told_as_such() {
    // It has lost its label, so that the watch does not show it.
    let mut unlabelled = service(FRONT, 1, THEIRS);
    unlabelled["metadata"]["labels"] = json!({});
    let problem = problem_of_creation(unlabelled).await;
    assert!(
        matches!(problem, Some(ServiceProblem::NameTaken(_))),
        "{problem:?}"
    );
    // It belongs to another release of the same name.
    let mut of_others = service(FRONT, 1, THEIRS);
    of_others["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "name": "other", "uid": "o",
    }]);
    let problem = problem_of_creation(of_others).await;
    assert!(
        matches!(problem, Some(ServiceProblem::NameTaken(_))),
        "{problem:?}"
    );
}

#[tokio::test]
async fn a_service_of_a_former_leader_is_waited_for() {
    // The watch does not show it yet.
    let problem = problem_of_creation(service(FRONT, 1, OURS)).await;
    let Some(ServiceProblem::Refused(said)) = &problem else {
        panic!("{problem:?}");
    };
    assert!(said.ends_with("is there already; waiting for the watch"));
}

/// Why a front is not created while this Service, which the watch has not shown, is on the server.
async fn problem_of_creation(there: Value) -> Option<ServiceProblem> {
    let client = testing::client(move |request| match *request.method() {
        Method::GET => testing::object(&there),
        _ => testing::failure(StatusCode::NOT_FOUND),
    });
    let mut reconciler = Reconciler::new(client, config(), Metrics::default());
    reconciler.take(Event::Init);
    reconciler.take(Event::InitDone);
    let gateway = plan::tests::desired("one");
    let mut requests = JoinSet::new();
    reconciler.act(&only(&gateway), &mut requests);
    while let Some(done) = requests.join_next().await {
        reconciler.done(done.expect("no panic"));
    }
    reconciler.problem(&gateway.front)
}

#[tokio::test]
async fn an_addition_that_somebody_puts_back_is_removed_again_after_a_pause() {
    let added = |version| {
        let mut front = service(FRONT, version, OURS);
        front["spec"]["selector"] = json!({"x": "y"});
        front
    };
    let desired = only(&classed());
    let write = format!("PATCH {FRONT} false");
    let mut world = World::new(OURS, OURS, &[added(1)]);
    // The label is removed, and then the manifest is applied.
    assert_eq!(world.act(&desired).await, [write.as_str(); 2]);
    assert_eq!(world.reconciler.writes.retry_at, None);
    // Somebody puts the label back at once.
    let again = serde_json::from_value(added(100)).expect("a Service");
    world.reconciler.take(Event::Apply(again));
    assert!(world.act(&desired).await.is_empty());
    let until = world.reconciler.prunes[&classed().front].1;
    assert_eq!(world.reconciler.writes.retry_at, Some(until));
    // When the pause is over, the label is removed once more, and the next pause begins.
    for (_, until) in world.reconciler.prunes.values_mut() {
        *until = Instant::now();
    }
    assert_eq!(world.act(&desired).await, [write.as_str()]);
    assert!(world.reconciler.writes.retry_at.is_some());
}

#[tokio::test]
async fn services_that_are_kept_are_told_as_they_are() {
    let mut front = service(FRONT, 1, OURS);
    front["spec"]["ports"] = json!([{"port": 443, "targetPort": 10_000, "protocol": "TCP"}]);
    front["status"] = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}});
    let kept = DesiredServices::from([("one".into(), DesiredService::Keep)]);
    let state = |present: &[Value]| {
        let world = World::new(OURS, OURS, present);
        let (service_states, _) = watch::channel(None);
        world.reconciler.tell(&kept, &service_states);
        let states: Option<Arc<ServiceStates>> = service_states.borrow().clone();
        states.expect("states").get("one").cloned()
    };
    // This process has not made it, as after a restart.
    let told = state(std::slice::from_ref(&front)).expect("a state");
    let port = |number| Port::new(number).expect("it is not 0");
    let ports = BTreeMap::from([((port(443), Transport::Tcp), port(10_000))]);
    assert_eq!(told.ports, ports);
    let assigned = told.assigned.expect("it is there");
    assert_eq!(assigned.addresses.len(), 1);
    assert_eq!(assigned.problem, None);
    // A tenant's Service with the same labels is no front, although the watch takes it for one of the release.
    let mut world = World::new(OURS, OURS, &[]);
    let forged = serde_json::from_value(front).expect("a Service");
    let (_, forged) = present(forged, "r");
    let name = ObjectName::new("tenant", "forged");
    world.reconciler.present.insert(name, forged);
    let (service_states, _) = watch::channel(None);
    world.reconciler.tell(&kept, &service_states);
    let states: Option<Arc<ServiceStates>> = service_states.borrow().clone();
    assert_eq!(states.expect("states").get("one"), None);
    // A Service that does not exist has no state.
    assert_eq!(state(&[]), None);
}

#[test]
fn only_a_class_that_this_release_applied_is_ours() {
    let ours = json!({"f:spec": {"f:type": {}, "f:loadBalancerClass": {}}});
    let sets_class = |manager: &str, operation: &str, fields: &Value| {
        let mut service = service(FRONT, 1, THEIRS);
        service["metadata"]["managedFields"] = json!([
            {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {"f:ports": {}}}},
            {"manager": manager, "operation": operation, "fieldsType": "FieldsV1", "fieldsV1": fields},
        ]);
        let service = serde_json::from_value(service).expect("a Service");
        let (_, present) = present(service, "r");
        assert_eq!(present.object.pointer("/metadata/managedFields"), None);
        present.sets_class
    };
    assert!(sets_class("r", "Apply", &ours));
    assert!(!sets_class("another", "Apply", &ours));
    assert!(!sets_class("r", "Update", &ours));
    assert!(!sets_class(
        "r",
        "Apply",
        &json!({"f:spec": {"f:type": {}}})
    ));
    let (_, unmanaged) = present(
        serde_json::from_value(service(FRONT, 1, THEIRS)).expect("a Service"),
        "r",
    );
    assert!(!unmanaged.sets_class);
}

/// Whether the states say that the API server refuses a front.
fn has_failed(states: Option<&Arc<ServiceStates>>) -> bool {
    let mut states = states.into_iter().flat_map(|states| states.values());
    states.any(|state| {
        let assigned = state.assigned.as_ref();
        assigned.is_some_and(|assigned| assigned.problem.is_some())
    })
}

#[tokio::test(start_paused = true)]
async fn a_former_leader_rests() {
    let client = testing::client(|request| match request.uri().path() {
        "/api/v1/services" if testing::is_watch(request) => testing::silence(),
        "/api/v1/services" => testing::object(&json!({
            "apiVersion": "v1", "kind": "ServiceList",
            "metadata": {"resourceVersion": "1"}, "items": [],
        })),
        _ => testing::failure(StatusCode::INTERNAL_SERVER_ERROR),
    });
    let desired = Arc::new(only(&plan::tests::desired("one")));
    let (_wishes, desired_services) = watch::channel(Some(desired));
    let (election, role) = watch::channel(Role::Leading {
        term: 1,
        until: Instant::now() + Duration::from_hours(1),
    });
    let (service_states, mut states) = watch::channel(None);
    let channels = ServiceChannels {
        desired_services,
        role,
        service_states,
    };
    let polls = Polls::default();
    let task = polls.spawn(run(client, config(), channels, Metrics::default()));
    let failed = states.wait_for(|states| has_failed(states.as_ref()));
    assert!(failed.await.is_ok());
    election.send_replace(Role::Following { leader: None });
    // A follower makes no requests, so it says nothing about failures.
    let forgotten = states.wait_for(|states| !has_failed(states.as_ref()));
    assert!(forgotten.await.is_ok());
    let before = polls.count();
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert!(!task.is_finished());
    assert!(polls.count() - before < 10);
    task.abort();
}
