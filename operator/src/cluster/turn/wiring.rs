//! The tasks beside the loop, and the channels between.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::super::claims::ClaimWriter;
use super::super::issuance::{self as acme_task, Doors, Hand};
use super::super::lease::elector::Role;
use super::super::metrics::Metrics;
use super::super::secrets::Secrets;
use super::super::statuses::plan::Planner;
use super::super::statuses::write::Writer;
use super::super::store::{Store, Wires};
use super::super::sync::{self, Progress};
use super::super::{Outside, Settings, certmanager, events, ports, ready, services};
use super::{BATCH, SOURCE_BATCH, Shell};
use crate::claims::ClaimStore;
use crate::issuance::{self, Register};
use crate::publish::Publisher;

impl Shell {
    /// Starts the tasks; the loop is still to be turned.
    #[expect(
        clippy::too_many_lines,
        reason = "one task and its channels after the other"
    )]
    pub(in super::super) fn new(
        client: &kube::Client,
        settings: Settings,
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
        let (wishes_sender, wishes) = watch::channel(None);
        let (fronts_sender, fronts) = watch::channel(None);
        let (known, proxies_known) = watch::channel(false);
        let (installed_sender, installed) = watch::channel(false);

        let wires = ports::Wires {
            wanted,
            role: role.clone(),
            persisted: persisted_sender,
        };
        keep_ports(client, &settings, wires, tasks);
        let config = services::Config {
            manager: settings.release.clone(),
            release: services::plan::Release {
                namespace: settings.namespace.clone(),
                owner: settings.owner.clone(),
            },
        };
        let wires = services::Wires {
            wishes,
            role: role.clone(),
            fronts: fronts_sender,
        };
        let task = services::run(client.clone(), config, wires, metrics.clone());
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

        let (register, certificate_wires) = Register::new();
        let desk = certificate_wires.desk.clone();
        let desk_news = desk.for_loop();
        let requests = certificate_wires.requests.clone();
        let hand = hand(
            client,
            &settings,
            &metrics,
            (&role, &fronts, &certificate_wires),
            tasks,
        );
        let teller = hand.teller.clone();
        issue(&settings, hand, &publisher, certificate_wires, tasks);
        let (facts, certificates) = watch::channel(None);
        let wires = certmanager::Wires {
            requests,
            role: role.clone(),
            facts,
        };
        let task = certmanager::run(
            client.clone(),
            settings.certmanager.clone(),
            wires,
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
            Wires {
                ports,
                services: wishes_sender,
                certificates: register,
                teller,
            },
        );
        let claim_writer = ClaimWriter::new(client.clone(), &settings.release, metrics.clone());
        let writer = Writer::new(client.clone(), &settings.release, metrics.clone());
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
            sources,
            source_sender,
            persisted,
            fronts,
            desk,
            desk_news,
            certificates,
            proxies_known,
            installed,
            leading,
            role_sender,
            role,
            doubt: Arc::default(),
            end: CancellationToken::new(),
            lease: JoinSet::new(),
            lists: JoinSet::new(),
            progress: Progress::default(),
            term: None,
            rejects: BTreeSet::new(),
            lag: None,
            superseded: None,
        }
    }
}

/// What the built-in engine does its work with; begins the task that tells of it by events.
fn hand(
    client: &kube::Client,
    settings: &Settings,
    metrics: &Metrics,
    (role, fronts, wires): (
        &watch::Receiver<Role>,
        &watch::Receiver<Option<Arc<services::Fronts>>>,
        &issuance::Wires,
    ),
    tasks: &mut JoinSet<&'static str>,
) -> Hand {
    let (teller, told) = events::Teller::new();
    let task = events::run(
        client.clone(),
        settings.translation.controller.to_string(),
        settings.instance.clone(),
        role.clone(),
        told,
    );
    tasks.spawn(async move {
        task.await;
        "events"
    });
    let namespaces = settings.secret_namespaces.clone();
    let patience = settings.acme.as_ref().map(|acme| acme.reach);
    let patience = patience.unwrap_or_default();
    Hand {
        secrets: Secrets::new(client.clone(), &settings.release, namespaces),
        desk: wires.desk.clone(),
        role: role.clone(),
        metrics: metrics.clone(),
        teller,
        doors: Doors::new(fronts.clone(), patience),
        requests: wires.requests.clone(),
    }
}

fn issue(
    settings: &Settings,
    hand: Hand,
    publisher: &Arc<Publisher>,
    wires: issuance::Wires,
    tasks: &mut JoinSet<&'static str>,
) {
    let (acme, publisher) = (settings.acme.clone(), Arc::clone(publisher));
    tasks.spawn(async move {
        match acme {
            Some(acme) => acme_task::run(acme, hand, publisher, wires).await,
            None => issuance::refuse(wires).await,
        }
        "the built-in engine"
    });
}

fn keep_ports(
    client: &kube::Client,
    settings: &Settings,
    wires: ports::Wires,
    tasks: &mut JoinSet<&'static str>,
) {
    let config = ports::Config {
        namespace: settings.namespace.clone(),
        name: format!("{}-ports", settings.release),
        manager: settings.release.clone(),
        owner: settings.owner.clone(),
    };
    let task = ports::run(client.clone(), config, wires);
    tasks.spawn(async move {
        task.await;
        "ports"
    });
}
