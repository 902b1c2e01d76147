//! Counts the bytes that a hostname costs the operator. The test has a process of its own, since it counts what the process
//! has allocated. Unlike resident memory, that does not depend on which thread the scheduler let run when.

use std::alloc::System;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Instant;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use cap::Cap;
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use vestibule_crds::vestibule::HostnameClaimSpec;
use vestibule_crds::watch::{Event, Watched};
use vestibule_model::condition::Address;
use vestibule_model::key::{Kind, ObjectKey};
use vestibule_model::object::Object;
use vestibule_operator::claims::{ClaimAction, ClaimRequest, ClaimStore, GRACE, WriteOutcome};
use vestibule_operator::cluster::events::{EventRecorder, ObjectEvent};
use vestibule_operator::cluster::metrics::Metrics;
use vestibule_operator::cluster::ports::allocation::Allocation;
use vestibule_operator::cluster::services::{DesiredServices, ServiceState};
use vestibule_operator::cluster::statuses::plan::{LiveStatus, Next, Planner, StatusTiming};
use vestibule_operator::cluster::statuses::{self, StatusInputs};
use vestibule_operator::cluster::store::{Store, StoreChannels};
use vestibule_operator::control::ControlLoop;
use vestibule_operator::issuance::{CertificateRegistry, EngineChannels};
use vestibule_operator::map_channel::MapChanges;
use vestibule_operator::publish::{self, Publisher};
use vestibule_operator::translate::{Assigned, CONTROLLER, ClaimMode, DesiredPort, DesiredService};
use vestibule_operator_testing::objects::cluster_settings;

/// Listeners of a ListenerSet, and routes. Every second listener has a certificate.
const LISTENERS: usize = 16;
/// ListenerSets before the measurement begins. As many are added while it goes on.
const SETS: usize = 16;
/// The time that statuses and claims say.
const NOW: i64 = 1_767_323_045;
const GROUP: &str = "gateway.networking.k8s.io/v1";

/// Counts the bytes that are allocated.
#[global_allocator]
static ALLOCATED: Cap<System> = Cap::new(System, usize::MAX);

/// The operator, with an API server that answers every write at once and shows it to the watch.
struct Release {
    store: Store,
    publisher: Arc<Publisher>,
    ports: watch::Receiver<Option<Arc<BTreeSet<DesiredPort>>>>,
    services: watch::Receiver<Option<Arc<DesiredServices>>>,
    allocation: Arc<Allocation>,
    version: u64,
    key: KeyPair,
    now: Instant,
    /// Channels to tasks that do not run here.
    _idle: (EngineChannels, mpsc::Receiver<ObjectEvent>),
}

impl Release {
    fn leading() -> Self {
        let publisher = Publisher::new(publish::Config::default());
        publisher.set_ready(BTreeSet::new());
        let (desired_ports, ports) = watch::channel(None);
        let (desired_services, services) = watch::channel(None);
        let (certificates, issuance) = CertificateRegistry::new();
        let (event_recorder, events) = EventRecorder::new();
        let mut settings = cluster_settings();
        settings.claims = ClaimMode::Recorded;
        let store = Store::new(
            settings,
            Arc::clone(&publisher),
            Planner::new(StatusTiming::default()),
            Metrics::default(),
            None,
            ClaimStore::new(GRACE),
            StoreChannels {
                ports: desired_ports,
                services: desired_services,
                certificates,
                event_recorder,
            },
        );
        let mut release = Self {
            store,
            publisher,
            ports,
            services,
            allocation: Arc::default(),
            version: 0,
            key: KeyPair::generate().unwrap(),
            now: Instant::now(),
            _idle: (issuance, events),
        };
        let now = release.now;
        release.store.time(NOW, now);
        release.put(platform());
        release.store.sources_are_watched();
        release.store.send_desired(now);
        release.publisher.lead(1).unwrap();
        release.store.list_claims();
        assert!(release.store.claims_listed(Vec::new(), now));
        release.store.lead(true, now);
        release.store.planner.lead(now);
        release
            .store
            .issued_by_others(Some(MapChanges::new()), release.now);
        release
    }

    /// Takes an object in, without a status.
    fn put(&mut self, objects: impl IntoIterator<Item = Value>) {
        for object in objects {
            let event = self.watched(object, Value::Null);
            self.store.take([Event::Put(Box::new(event))], self.now);
        }
    }

    /// The object as the watch shows it.
    fn watched(&mut self, mut object: Value, status: Value) -> Watched {
        self.version += 1;
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        object["metadata"]["uid"] = format!("uid-{name:0>32}").into();
        object["metadata"]["generation"] = 1.into();
        object["metadata"]["creationTimestamp"] = "2026-01-02T03:04:05Z".into();
        let uid = object["metadata"]["uid"].as_str().unwrap().into();
        let (object, findings) = vestibule_crds::decode(object).into_object().unwrap();
        assert!(!matches!(object, Object::Unreadable(..)), "{object:?}");
        Watched {
            key: object.key(),
            object,
            findings,
            uid,
            resource_version: self.version.to_string().into(),
            status,
        }
    }

    /// Adds a ListenerSet with everything that its hostnames need.
    fn add(&mut self, number: usize) {
        let team = format!("team-{number}");
        let routes = (0..LISTENERS).map(|n| route(&team, n));
        let objects = [namespace(&team), set(&team), service(&team), slice(&team)];
        self.put(objects.into_iter().chain(routes));
    }

    /// A team's object without its status; `None` if it has none of this name.
    fn object(&self, key: &ObjectKey) -> Option<Value> {
        let (team, name) = (&key.name.namespace, &key.name.name);
        let number = || name.strip_prefix("app-")?.parse().ok();
        match key.kind {
            Kind::ListenerSet => Some(set(team)),
            Kind::HttpRoute => Some(route(team, number()?)),
            Kind::Secret => Some(self.secret(team, number()?)),
            _ => None,
        }
    }

    fn secret(&self, team: &str, listener: usize) -> Value {
        let params = CertificateParams::new(vec![hostname(team, listener)]).unwrap();
        let certificate = params.self_signed(&self.key).unwrap().pem();
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
            "metadata": { "namespace": team, "name": section(listener) },
            "data": {
                "tls.crt": BASE64_STANDARD.encode(certificate),
                "tls.key": BASE64_STANDARD.encode(self.key.serialize_pem()),
            },
        })
    }

    /// Runs until nothing is left to do: everything is published, and every claim and status is written.
    fn settle(&mut self) {
        loop {
            let more = [
                self.assign(),
                self.write_claims(),
                self.read_secrets(),
                self.write_statuses(),
            ];
            self.store.publish(self.now);
            if more.contains(&true) {
                continue;
            }
            let due = [self.store.planner.deadline(), self.store.publish_at()];
            match due.into_iter().flatten().min() {
                Some(at) => self.now = self.now.max(at),
                None if self.store.is_dirty() => {}
                None => return,
            }
        }
    }

    /// Allocates the internal ports and the addresses that are wanted.
    fn assign(&mut self) -> bool {
        let mut more = false;
        if self.ports.has_changed().unwrap() {
            let wanted = self.ports.borrow_and_update().clone().unwrap();
            self.allocation = Arc::new(self.allocation.settle(&wanted));
            let allocation = Arc::clone(&self.allocation);
            self.store.allocation(allocation, self.now);
            more = true;
        }
        if self.services.has_changed().unwrap() {
            let desired = self.services.borrow_and_update().clone().unwrap();
            let state = |desired: &DesiredService| ServiceState {
                assigned: Some(Assigned {
                    addresses: vec![Address::Ip(Ipv4Addr::new(192, 0, 2, 1).into())],
                    sockets: BTreeSet::new(),
                    problem: None,
                }),
                ports: match desired {
                    DesiredService::Make(service) => service.ports.clone(),
                    DesiredService::Keep => BTreeMap::default(),
                },
                alias: None,
            };
            let states = desired.iter().map(|(uid, one)| (uid.clone(), state(one)));
            let states = states.collect();
            self.store.service_states(Arc::new(states), self.now);
            more = true;
        }
        more
    }

    fn write_claims(&mut self) -> bool {
        let mut more = false;
        while let Some(request) = self.store.claim_request(self.now) {
            let claim = self.watched(claim(&request), Value::Null);
            let Object::HostnameClaim(written) = claim.object.clone() else {
                panic!("{claim:?}");
            };
            let seen = (written, claim.resource_version.to_string());
            let outcome = WriteOutcome::Known(Some(seen));
            self.store.claim_answered(&request.name, outcome, self.now);
            self.store.take([Event::Put(Box::new(claim))], self.now);
            more = true;
        }
        more
    }

    fn read_secrets(&mut self) -> bool {
        let wanted = self.store.sources_to_read(LISTENERS, self.now);
        let mut reads = Vec::with_capacity(wanted.len());
        for key in &wanted {
            let secret = self.object(key);
            let object = secret.map(|secret| self.watched(secret, Value::Null).object);
            reads.push((key.clone(), Ok(object)));
        }
        self.store.sources_read(reads, self.now);
        !wanted.is_empty()
    }

    fn write_statuses(&mut self) -> bool {
        let mut more = false;
        loop {
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
            let inputs = StatusInputs {
                translator,
                publisher: &self.publisher,
                controller: CONTROLLER,
                service_states,
                orphans,
                issuers: certificates.issuers(),
                issuer_selector: None,
                issuance_known: certificates.is_known(),
            };
            let next = planner.next(self.now, LISTENERS, |key, live, old| {
                statuses::judge(&inputs, NOW, (key, live, old))
            });
            let job = match next {
                Next::Write(job) => job,
                Next::More => continue,
                Next::Idle => return more,
            };
            self.version += 1;
            let live = LiveStatus::new(self.version.to_string().into(), 1, &job.status);
            self.store.planner.done(&job.key, Ok(live), self.now);
            if let Some(object) = self.object(&job.key) {
                let event = self.watched(object, job.status);
                self.store.take([Event::Put(Box::new(event))], self.now);
            }
            more = true;
        }
    }
}

fn platform() -> [Value; 3] {
    [
        json!({
            "apiVersion": GROUP, "kind": "GatewayClass",
            "metadata": { "name": "vestibule" },
            "spec": { "controllerName": CONTROLLER },
        }),
        namespace("platform"),
        json!({
            "apiVersion": GROUP, "kind": "Gateway",
            "metadata": { "namespace": "platform", "name": "edge" },
            "spec": {
                "gatewayClassName": "vestibule",
                "allowedListeners": { "namespaces": { "from": "All" } },
                "listeners": [{
                    "name": "own", "hostname": "status.example.com",
                    "port": 443, "protocol": "TLS", "tls": { "mode": "Passthrough" },
                }],
            },
        }),
    ]
}

fn namespace(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": name, "labels": { "kubernetes.io/metadata.name": name } },
    })
}

fn hostname(team: &str, listener: usize) -> String {
    format!("app-{listener}.web.{team}.example.com")
}

/// The name of a listener, of its route and of its Secret.
fn section(listener: usize) -> String {
    format!("app-{listener}")
}

fn set(team: &str) -> Value {
    let listener = |number: usize| {
        let (name, hostname) = (section(number), hostname(team, number));
        if number % 2 == 1 {
            return json!({ "name": name, "hostname": hostname, "port": 80, "protocol": "HTTP" });
        }
        json!({
            "name": name, "hostname": hostname, "port": 443, "protocol": "HTTPS",
            "tls": { "mode": "Terminate", "certificateRefs": [{ "name": section(number) }] },
        })
    };
    json!({
        "apiVersion": GROUP, "kind": "ListenerSet",
        "metadata": {
            "namespace": team, "name": "web",
            "annotations": { "cert-manager.io/cluster-issuer": "letsencrypt" },
        },
        "spec": {
            "parentRef": { "namespace": "platform", "name": "edge" },
            "listeners": (0..LISTENERS).map(listener).collect::<Vec<_>>(),
        },
    })
}

fn route(team: &str, listener: usize) -> Value {
    json!({
        "apiVersion": GROUP, "kind": "HTTPRoute",
        "metadata": { "namespace": team, "name": section(listener) },
        "spec": {
            "parentRefs": [{ "kind": "ListenerSet", "name": "web", "sectionName": section(listener) }],
            "hostnames": [hostname(team, listener)],
            "rules": [{ "backendRefs": [{ "name": "web", "port": 80 }] }],
        },
    })
}

fn service(team: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "namespace": team, "name": "web" },
        "spec": {
            "type": "ClusterIP", "clusterIP": "10.96.0.7", "selector": { "app": "web" },
            "ports": [{ "name": "web", "port": 80, "protocol": "TCP", "targetPort": "web" }],
        },
    })
}

fn slice(team: &str) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "namespace": team, "name": "web-x7k2p",
            "labels": { "kubernetes.io/service-name": "web" },
        },
        "addressType": "IPv4",
        "ports": [{ "name": "web", "port": 8080, "protocol": "TCP" }],
        "endpoints": [{ "addresses": ["10.0.0.1"], "conditions": { "ready": true } }],
    })
}

fn claim(request: &ClaimRequest) -> Value {
    let (ClaimAction::Create(content) | ClaimAction::Replace { content, .. }) = &request.action
    else {
        panic!("{request:?}");
    };
    let spec = HostnameClaimSpec::new(
        &content.key,
        &content.gateway_uid,
        &content.holder,
        content.since,
        content.unused_since,
    );
    json!({
        "apiVersion": "vestibule.dev/v1alpha1", "kind": "HostnameClaim",
        "metadata": {
            "namespace": &*request.name.namespace, "name": &*request.name.name,
            "labels": { "app.kubernetes.io/managed-by": "vestibule" },
        },
        "spec": spec,
    })
}

/// The bounds are a few percent above what was measured, and notice when something grows. The memory of the watch and of
/// connections is not in them.
#[tokio::test]
async fn a_hostname_takes_no_more_memory_than_it_did() {
    let mut release = Release::leading();
    for number in 0..SETS {
        release.add(number);
    }
    release.settle();
    let base = ALLOCATED.allocated();
    for number in SETS..2 * SETS {
        release.add(number);
    }
    let decoded = ALLOCATED.allocated() - base;
    release.settle();
    let all = ALLOCATED.allocated() - base;

    let hostnames = SETS * LISTENERS;
    // Without its claim, a hostname would not be served.
    assert!(release.store.control.claims.counts().held >= 2 * hostnames);
    let figures = format!(
        "{} bytes for a hostname when its objects are decoded, {} when it is served",
        decoded / hostnames,
        all / hostnames,
    );
    report(&figures);
    assert!(decoded <= 8_600 * hostnames, "{figures}");
    assert!(all <= 11_750 * hostnames, "{figures}");
}

/// Worth reading with `--nocapture`.
#[expect(clippy::print_stderr, reason = "a measurement for people")]
fn report(figures: &str) {
    eprintln!("{figures}");
}
