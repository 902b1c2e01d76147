use std::time::Duration;

use http::StatusCode;
use serde_json::json;
use vestibule_model::certificate::CertificateOptions;
use vestibule_model::issuance::IssuanceState;

use super::super::testing::{self, Polls};
use super::*;
use crate::certmanager::Maker;
use crate::certmanager::tests::{request, settings};
use crate::map_channel::{MapFollower, map_channel};

/// Returns a client of an API server that has cert-manager's kinds, no objects of them, and accepts none.
fn refusing() -> Client {
    testing::client(|request| match request.uri().path() {
        "/apis/cert-manager.io/v1" => {
            let resources = ["Certificate", "CertificateRequest"].map(|kind| {
                json!({
                    "kind": kind, "name": format!("{}s", kind.to_lowercase()), "singularName": "",
                    "namespaced": true, "verbs": ["list", "watch"],
                })
            });
            testing::object(&json!({
                "kind": "APIResourceList", "apiVersion": "v1",
                "groupVersion": "cert-manager.io/v1", "resources": resources,
            }))
        }
        "/apis/cert-manager.io/v1/certificates"
        | "/apis/cert-manager.io/v1/certificaterequests" => {
            if testing::is_watch(request) {
                return testing::silence();
            }
            testing::object(&json!({
                "kind": "List", "apiVersion": "cert-manager.io/v1",
                "metadata": {"resourceVersion": "1"}, "items": [],
            }))
        }
        _ => testing::failure(StatusCode::INTERNAL_SERVER_ERROR),
    })
}

/// Waits until the certificate of a Secret has this state.
async fn has_state(states: &mut MapFollower<Issuance>, secret: &ObjectName, state: IssuanceState) {
    loop {
        states.changed().await.expect("it runs");
        let changes = states.take().unwrap_or_default();
        if let Some(Some(issuance)) = changes.get(secret)
            && issuance.state == state
        {
            return;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_former_leader_rests() {
    let request = request(CertificateOptions::default());
    let secret = request.secret.clone();
    let (mut wishes, requests) = map_channel();
    wishes.set(secret.clone(), Some(Arc::new(request)));
    wishes.publish();
    let (election, role) = channel::channel(Role::Leading {
        term: 1,
        until: Instant::now() + Duration::from_hours(1),
    });
    let (issuances, states) = map_channel();
    let mut states = states.follow();
    let channels = CertificateChannels {
        requests,
        role,
        issuances,
    };
    let config = Config {
        settings: settings(Maker::Vestibule),
        manager: "vestibule".into(),
    };
    let polls = Polls::default();
    let task = polls.spawn(run(refusing(), config, channels, Metrics::default()));
    has_state(&mut states, &secret, IssuanceState::Failed).await;
    election.send_replace(Role::Following { leader: None });
    // A follower makes no requests, so it says nothing about failures.
    has_state(&mut states, &secret, IssuanceState::Pending).await;
    let before = polls.count();
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert!(!task.is_finished());
    assert!(polls.count() - before < 10);
    task.abort();
}
