//! Keeps the keys of sessions in a Secret in the namespace of the release, from which every replica reads them. The
//! leader creates missing keys ([`crate::session_keys`] decides when).

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta};
use kube::runtime::watcher::Event;
use tokio::sync::watch;
use tracing::{info, warn};
use vestibule_backoff::Backoff;
use zeroize::Zeroize;

use super::clock;
use super::kept_object::{KeptContent, KeptObject, KeptObjectConfig, PATIENCE};
use super::lease::elector::Role;
use crate::session_keys::{KeyRing, generate};
use crate::translate::SessionKeys;

/// Type of the Secret. No other software uses this type.
const SECRET_TYPE: &str = "vestibule.dev/session-keys";
/// The keys in the Secret.
const CONTENT: KeptContent = KeptContent {
    name: "the keys of sessions",
    meanwhile: "the operator tries again",
    backoff: Backoff::new(Duration::from_secs(1), Duration::from_secs(30)),
};
/// Longest wait without a look at the clock.
const LOOK: Duration = Duration::from_hours(1);
/// Longest wait for the Secret at the start of the operator. Without it, sessions are not kept, but everything else
/// works.
const LISTING: Duration = Duration::from_secs(30);

/// The inputs and outputs of the task.
pub(super) struct SessionKeyChannels {
    /// The role of this replica. Only the leader writes.
    pub(super) role: watch::Receiver<Role>,
    /// The stored keys; `None` until they are known.
    pub(super) keys: watch::Sender<Option<SessionKeys>>,
}

/// Keeps the keys up to date, for ever.
pub(super) async fn run(
    client: kube::Client,
    config: KeptObjectConfig,
    mut channels: SessionKeyChannels,
) {
    let api: Api<Secret> = Api::namespaced(client, &config.namespace);
    let kept = KeptObject::new(api, config, CONTENT);
    let mut events = pin!(kept.events());
    let mut store = Store {
        kept,
        present: None,
        ring: KeyRing::default(),
        is_listing: true,
    };
    let listed_by = tokio::time::Instant::now() + LISTING;
    let mut due = Some(listed_by.into_std());
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(event) => store.take(event),
                None => return,
            },
            changed = channels.role.changed() => if changed.is_err() { return },
            () = clock::at(due) => {}
        }
        if store.is_listing {
            let is_late = tokio::time::Instant::now() >= listed_by;
            if is_late && channels.keys.borrow().is_none() {
                warn!(secret = %store.kept.config().name, "the Secret with the keys of sessions cannot be read; the sessions of routes are not kept until it can");
                let none = KeyRing::default().keys(clock::now().as_second());
                channels.keys.send_replace(Some(none));
            }
            due = (!is_late).then(|| listed_by.into_std());
            continue;
        }
        let leads = channels
            .role
            .borrow_and_update()
            .term(Instant::now())
            .is_some();
        // A Secret that is gone is made again with a new key, so deleting it ends all sessions. Until then the keys
        // that it held stay in use.
        let now = clock::now().as_second();
        let is_due = store.present.is_none()
            || store.ring.wants_key(now)
            || store.ring.redated(now).is_some();
        if leads && is_due {
            store.persist(now).await;
        }
        let keys = store.ring.keys(clock::now().as_second());
        channels.keys.send_if_modified(|known| {
            let differs = known.as_ref() != Some(&keys);
            *known = Some(keys);
            differs
        });
        due = Some(Instant::now() + store.pause());
    }
}

struct Store {
    kept: KeptObject<Secret>,
    /// The metadata of the Secret on the server.
    present: Option<ObjectMeta>,
    /// The keys in the Secret, or those that it contained last.
    ring: KeyRing,
    is_listing: bool,
}

impl Store {
    fn take(&mut self, event: Event<Secret>) {
        match event {
            Event::Init => {
                self.is_listing = true;
                self.present = None;
            }
            Event::InitApply(secret) | Event::Apply(secret) => self.read(secret),
            Event::InitDone => self.is_listing = false,
            Event::Delete(mut secret) => {
                erase(&mut secret);
                self.present = None;
            }
        }
    }

    fn read(&mut self, mut secret: Secret) {
        let data = secret.data.iter().flatten();
        let ring = KeyRing::read(data.map(|(name, value)| (&**name, &*value.0)));
        // If somebody removes the keys from the Secret, they stay in use until there are others.
        if !ring.is_empty() {
            self.ring = ring;
        } else if !self.ring.is_empty() {
            warn!(secret = %self.kept.config().name, "the Secret with the keys of sessions has no key any more; the keys that it had stay in use");
        }
        erase(&mut secret);
        self.present = Some(secret.metadata);
    }

    async fn persist(&mut self, now: i64) {
        let Some(ring) = self.next(now) else {
            self.kept.failed();
            warn!("the system has no randomness for a key of sessions; trying again");
            return;
        };
        let mut secret = self.secret(&ring);
        let write = self.kept.write(&secret, self.present.is_some());
        let outcome = tokio::time::timeout(PATIENCE, write).await;
        erase(&mut secret);
        if let Some(mut written) = self.kept.settle(outcome) {
            info!(secret = %self.kept.config().name, "keys of sessions are stored");
            erase(&mut written);
            self.present = Some(written.metadata);
            self.ring = ring;
        }
    }

    /// Returns the keys to store, or `None` if there is no randomness for a new key.
    fn next(&self, now: i64) -> Option<KeyRing> {
        let none = KeyRing::default();
        let before = self.present.as_ref().map_or(&none, |_| &self.ring);
        if let Some(redated) = before.redated(now) {
            warn!(secret = %self.kept.config().name, "a key of sessions is from the future; it counts as made now");
            return Some(redated);
        }
        generate().map(|key| before.with(key, now))
    }

    fn secret(&self, ring: &KeyRing) -> Secret {
        let entries = ring.entries();
        let entries = entries.map(|(name, value)| (name, ByteString(value.to_vec())));
        Secret {
            metadata: self.kept.metadata(self.present.as_ref()),
            type_: Some(SECRET_TYPE.to_owned()),
            data: Some(entries.collect()),
            ..Secret::default()
        }
    }

    /// Returns how long to wait until the keys are checked again.
    fn pause(&self) -> Duration {
        if let Some(pause) = self.kept.pause() {
            return pause;
        }
        let now = clock::now().as_second();
        let left = self.ring.next_change(now).map(|at| at.saturating_sub(now));
        let left = left.and_then(|left| u64::try_from(left).ok());
        left.map_or(LOOK, |left| Duration::from_secs(left.max(1)).min(LOOK))
    }
}

fn erase(secret: &mut Secret) {
    let values = secret.data.iter_mut().flat_map(BTreeMap::values_mut);
    values.for_each(|value| value.0.zeroize());
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use kube::client::Body;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn keys_that_cannot_be_read_hold_everything_else_up_for_a_bounded_time() {
        let refuses = tower::service_fn(|_: http::Request<Body>| async {
            let answer = http::Response::builder().status(http::StatusCode::FORBIDDEN);
            Ok::<_, Infallible>(answer.body(Body::empty()).expect("an answer"))
        });
        let config = KeptObjectConfig {
            namespace: "system".into(),
            name: "session-keys".into(),
            manager: "vestibule".into(),
            owner: None,
        };
        let (_elector, role) = watch::channel(Role::Following { leader: None });
        let (sender, mut keys) = watch::channel(None);
        let channels = SessionKeyChannels { role, keys: sender };
        let begin = tokio::time::Instant::now();
        let task = tokio::spawn(run(kube::Client::new(refuses, "default"), config, channels));
        let known = keys
            .wait_for(Option::is_some)
            .await
            .expect("it runs")
            .clone();
        assert_eq!(known, Some(KeyRing::default().keys(0)));
        assert!(begin.elapsed() >= LISTING);
        task.abort();
    }
}
