//! What the tests of the configuration stream share: resources, and a table as a proxy has it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::watch, task::JoinHandle, time::timeout};
use vestibule_backoff::Backoff;
use vestibule_operator::publish::{InProcess, Publisher};
use vestibule_stream::{
    Apply, Change, ContentHash, Encoded, Generation, ProxyIdentity, Reject, Resource, ResourceKey,
    ResourceKind,
    client::{Client, ClientState, Config, Connect},
    proto::{Backend, Endpoint, resource},
};

/// A backend; one with port 0 is rejected by [`Table`].
pub fn backend(name: &str, port: u32) -> Resource {
    let endpoint = Endpoint {
        address: "192.0.2.1".to_owned(),
        port,
    };
    Resource::new(
        name,
        resource::Resource::Backend(Backend {
            endpoints: vec![endpoint],
            ..Default::default()
        }),
    )
}

/// The key of a backend.
pub fn key(name: &str) -> ResourceKey {
    ResourceKey::new(ResourceKind::Backend, name)
}

/// The hash of a resource's content.
pub fn hash(resource: &Resource) -> ContentHash {
    Encoded::new(resource).unwrap().hash()
}

/// What is in force at one proxy.
#[derive(Debug, Default)]
pub struct InForce {
    /// What is held, by its content.
    pub hashes: BTreeMap<ResourceKey, ContentHash>,
    /// The generations that were applied, in their order.
    generations: Vec<Generation>,
}

/// A shared table: the proxy applies to it, the test looks at it.
#[derive(Debug, Clone, Default)]
pub struct Table(Arc<Mutex<InForce>>);

impl Table {
    /// What is held, by its content.
    pub fn hashes(&self) -> BTreeMap<ResourceKey, ContentHash> {
        self.0.lock().hashes.clone()
    }

    /// The newest generation that was applied.
    pub fn generation(&self) -> Option<Generation> {
        self.0.lock().generations.last().copied()
    }
}

impl Apply for Table {
    fn apply(&mut self, change: &Change) -> Vec<Reject> {
        let mut table = self.0.lock();
        if let Some(last) = table.generations.last() {
            assert!(
                change.generation > *last,
                "{} after {last}",
                change.generation
            );
        }
        table.generations.push(change.generation);
        for key in &change.removals {
            assert!(table.hashes.remove(key).is_some(), "{key} is not there");
        }
        let mut rejects = Vec::new();
        for (key, resource) in &change.upserts {
            if *resource == backend(&key.name, 0) {
                rejects.push(Reject::new(key.clone(), "Invalid", "port 0"));
            } else {
                table.hashes.insert(key.clone(), hash(resource));
            }
        }
        rejects
    }
}

/// Longest wait for something that has to happen; nothing is asserted about how soon it does.
pub const BOUND: Duration = Duration::from_secs(30);

/// A proxy of the real kind; aborted when dropped.
pub struct Proxy {
    /// What it has applied.
    pub table: Table,
    /// The state of its client.
    pub state: watch::Receiver<ClientState>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Starts one that asks at these addresses.
    pub fn start(name: &str, addresses: &[String], connector: impl Connect + 'static) -> Self {
        let config = Config {
            backoff: Backoff::new(Duration::from_millis(10), Duration::from_millis(50)),
            ..Config::new(ProxyIdentity::new(name), addresses.to_vec())
        };
        let table = Table::default();
        let (client, state) = Client::new(config, connector, table.clone());
        let task = tokio::spawn(client.run());
        Self { table, state, task }
    }

    /// Starts one that asks a publisher in this process.
    pub fn of(name: &str, publisher: &Arc<Publisher>) -> Self {
        Self::start(name, &["leader:1".to_owned()], InProcess::new(publisher))
    }

    /// Waits for a state of its client.
    pub async fn until(&mut self, wanted: impl FnMut(&ClientState) -> bool) {
        timeout(BOUND, self.state.wait_for(wanted))
            .await
            .unwrap()
            .unwrap();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}
