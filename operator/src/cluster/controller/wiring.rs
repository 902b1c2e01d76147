//! Starts the tasks beside the loop, and connects them by channels.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::super::claims::ClaimWriter;
use super::super::issuance::{self as acme_task, AddressProbes, ClusterEffects};
use super::super::kept_object::KeptObjectConfig;
use super::super::lease::elector::Role;
use super::super::metrics::Metrics;
use super::super::secrets::Secrets;
use super::super::statuses::plan::Planner;
use super::super::statuses::write::Writer;
use super::super::store::{Store, StoreChannels};
use super::super::sync::{self, StartProgress};
use super::super::watch_queue::WatchQueue;
use super::super::{
    OperatorSettings, Outside, certmanager, events, ports, ready, services, session_keys,
};
use super::{BATCH, Controller, SOURCE_BATCH};
use crate::claims::ClaimStore;
use crate::issuance::{self, CertificateRegistry};
use crate::map_channel::map_channel;
use crate::publish::Publisher;
use crate::translate::SessionKeys;

impl Controller {
    /// Starts the tasks. [`Controller::run`] then runs the loop.
    #[expect(
        clippy::too_many_lines,
        reason = "one task and its channels after the other"
    )]
    pub(in super::super) fn new(
        client: &kube::Client,
        settings: OperatorSettings,
        publisher: Arc<Publisher>,
        outside: Outside,
        tasks: &mut JoinSet<&'static str>,
    ) -> Self {
        let Outside {
            health,
            metrics,
            leading,
        } = outside;
        let (event_sender, events) = mpsc::channel(BATCH);
        let (source_sender, sources) = mpsc::channel(SOURCE_BATCH);
        let (role_sender, role) = watch::channel(Role::Following { leader: None });
        let (ports, wanted) = watch::channel(None);
        let (persisted_sender, persisted) = watch::channel(None);
        let (desired_services_sender, desired_services) = watch::channel(None);
        let (service_states_sender, service_states) = watch::channel(None);
        let (known, proxies_known) = watch::channel(false);
        let (installed_sender, installed) = watch::channel(false);

        let channels = ports::PortChannels {
            wanted,
            role: role.clone(),
            persisted: persisted_sender,
        };
        keep_ports(client, &settings, channels, tasks);
        let session_keys = keep_session_keys(client, &settings, role.clone(), tasks);
        let config = services::Config {
            manager: settings.release.clone(),
            release: services::plan::Release {
                namespace: settings.namespace.clone(),
                owner: settings.owner.clone(),
            },
        };
        let channels = services::ServiceChannels {
            desired_services,
            role: role.clone(),
            service_states: service_states_sender,
        };
        let task = services::run(client.clone(), config, channels, metrics.clone());
        tasks.spawn(async move {
            task.await;
            "services"
        });

        let task = ready::run(
            client.clone(),
            settings.namespace.clone(),
            settings.proxy_service.clone(),
            Arc::clone(&publisher),
            known,
        );
        tasks.spawn(async move {
            task.await;
            "proxies' readiness"
        });

        let task = sync::wait_for_gateway_api(client.clone(), installed_sender);
        tasks.spawn(async move {
            task.await;
            "installed kinds"
        });

        let (registry, issuance_channels) = CertificateRegistry::new();
        let engine_link = issuance_channels.engine_link.clone();
        let engine_link_changed = engine_link.for_loop();
        let requests = issuance_channels.requests.clone();
        let cluster_effects = cluster_effects(
            client,
            &settings,
            &metrics,
            (&role, &service_states, &issuance_channels),
            tasks,
        );
        let event_recorder = cluster_effects.event_recorder.clone();
        issue(
            &settings,
            cluster_effects,
            &publisher,
            issuance_channels,
            tasks,
        );
        let (issuances, certificates) = map_channel();
        let channels = certmanager::CertificateChannels {
            requests,
            role: role.clone(),
            issuances,
        };
        let task = certmanager::run(
            client.clone(),
            settings.certmanager.clone(),
            channels,
            metrics.clone(),
        );
        tasks.spawn(async move {
            task.await;
            "cert-manager's Certificates"
        });

        let store = Store::new(
            settings.translation.clone(),
            Arc::clone(&publisher),
            Planner::new(settings.statuses),
            metrics.clone(),
            settings.secret_namespaces.clone(),
            ClaimStore::new(settings.claim_grace),
            StoreChannels {
                ports,
                services: desired_services_sender,
                certificates: registry,
                event_recorder,
            },
        );
        let claim_writer = ClaimWriter::new(client.clone(), &settings.release, metrics.clone());
        // By this name, a release recognizes the statuses that it wrote. Releases of one name may be in several namespaces.
        let author = format!("{}/{}", settings.namespace, settings.release);
        let writer = Writer::new(client.clone(), &author, metrics.clone());
        Self {
            store,
            settings,
            publisher,
            health,
            metrics,
            writer,
            claim_writer,
            events,
            event_sender,
            queue: WatchQueue::new(),
            sources,
            source_sender,
            persisted,
            service_states,
            session_keys,
            engine_link,
            engine_link_changed,
            certificates: certificates.follow(),
            proxies_known,
            installed,
            leading,
            role_sender,
            role,
            doubt: Arc::default(),
            end: CancellationToken::new(),
            lease: JoinSet::new(),
            lists: JoinSet::new(),
            progress: StartProgress::default(),
            term: None,
            lag: None,
            superseded: None,
        }
    }
}

/// Returns the effects of the built-in engine, and starts the task that writes its events.
fn cluster_effects(
    client: &kube::Client,
    settings: &OperatorSettings,
    metrics: &Metrics,
    (role, service_states, channels): (
        &watch::Receiver<Role>,
        &watch::Receiver<Option<Arc<services::ServiceStates>>>,
        &issuance::EngineChannels,
    ),
    tasks: &mut JoinSet<&'static str>,
) -> ClusterEffects {
    let (event_recorder, queue) = events::EventRecorder::new();
    let task = events::run(
        client.clone(),
        settings.translation.controller.to_string(),
        settings.instance.clone(),
        role.clone(),
        queue,
    );
    tasks.spawn(async move {
        task.await;
        "events"
    });
    let namespaces = settings.secret_namespaces.clone();
    let patience = settings.acme.as_ref().map(|acme| acme.reach);
    let patience = patience.unwrap_or_default();
    ClusterEffects {
        secrets: Secrets::new(client.clone(), &settings.release, namespaces),
        engine_link: channels.engine_link.clone(),
        role: role.clone(),
        metrics: metrics.clone(),
        event_recorder,
        address_probes: AddressProbes::new(service_states.clone(), patience),
        requests: channels.requests.clone(),
    }
}

fn issue(
    settings: &OperatorSettings,
    cluster_effects: ClusterEffects,
    publisher: &Arc<Publisher>,
    channels: issuance::EngineChannels,
    tasks: &mut JoinSet<&'static str>,
) {
    let (acme, publisher) = (settings.acme.clone(), Arc::clone(publisher));
    tasks.spawn(async move {
        match acme {
            Some(acme) => acme_task::run(acme, cluster_effects, publisher, channels).await,
            None => issuance::refuse(channels).await,
        }
        "the built-in engine"
    });
}

fn keep_session_keys(
    client: &kube::Client,
    settings: &OperatorSettings,
    role: watch::Receiver<Role>,
    tasks: &mut JoinSet<&'static str>,
) -> watch::Receiver<Option<SessionKeys>> {
    let config = KeptObjectConfig {
        namespace: settings.namespace.clone(),
        name: format!("{}-session-keys", settings.release),
        manager: settings.release.clone(),
        owner: settings.owner.clone(),
    };
    let (keys, known) = watch::channel(None);
    let channels = session_keys::SessionKeyChannels { role, keys };
    let task = session_keys::run(client.clone(), config, channels);
    tasks.spawn(async move {
        task.await;
        "keys of sessions"
    });
    known
}

fn keep_ports(
    client: &kube::Client,
    settings: &OperatorSettings,
    channels: ports::PortChannels,
    tasks: &mut JoinSet<&'static str>,
) {
    let config = KeptObjectConfig {
        namespace: settings.namespace.clone(),
        name: format!("{}-ports", settings.release),
        manager: settings.release.clone(),
        owner: settings.owner.clone(),
    };
    let task = ports::run(client.clone(), config, channels);
    tasks.spawn(async move {
        task.await;
        "ports"
    });
}
