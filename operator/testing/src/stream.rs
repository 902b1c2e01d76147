//! What the tests of the configuration stream share: resources, and a table as a proxy has it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use prometheus_client::{encoding::text, registry::Registry};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use vestibule_backoff::Backoff;
use vestibule_operator::publish::{InProcess, Publisher};
use vestibule_stream::{
    Apply, Batch, Change, ContentHash, Encoded, Generation, PROTOCOL_VERSION, ProxyIdentity,
    Reject, Resource, ResourceKey, ResourceKind,
    client::{Client, ClientState, Config, Connect},
    limits::MAX_MESSAGE_BYTES,
    proto::{
        Ack, Backend, BatchRefusal, Endpoint, Hello, OperatorMessage, ProxyMessage,
        config_stream_client::ConfigStreamClient, operator_message::Message as FromOperator,
        proxy_message::Message as FromProxy, resource,
    },
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

/// What a publisher counts, as its metrics have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// The proxies that are connected.
    pub proxies: u64,
    /// The batches that were sent to any proxy.
    pub batches: u64,
    /// The bytes of these batches.
    pub bytes: u64,
    /// The bytes of the resources in them.
    pub resource_bytes: u64,
}

impl Counted {
    /// What `publisher` has counted so far.
    pub fn by(publisher: &Publisher) -> Self {
        let mut registry = Registry::default();
        publisher.metrics().register(&mut registry);
        let mut text = String::new();
        text::encode(&mut text, &registry).unwrap();
        let sum = |name: &str| {
            let name = format!("vestibule_operator_stream_{name}");
            let series = text.lines().filter_map(|line| line.rsplit_once(' '));
            let series = series.filter(|(series, _)| series.split('{').next() == Some(&*name));
            series.map(|(_, value)| value.parse::<u64>().unwrap()).sum()
        };
        Self {
            proxies: sum("proxies"),
            batches: sum("batches_total"),
            bytes: sum("sent_bytes_total"),
            resource_bytes: sum("resource_bytes_total"),
        }
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

/// A proxy of which every message is written by the test.
pub struct Raw {
    /// What it sends.
    pub messages: mpsc::Sender<ProxyMessage>,
    /// What it gets.
    pub inbound: Streaming<OperatorMessage>,
}

impl Raw {
    /// Opens a stream with this first message.
    pub async fn open(publisher: &Arc<Publisher>, first: FromProxy) -> Self {
        let channel = InProcess::new(publisher).connect("").await.unwrap();
        let (messages, outbound) = mpsc::channel(8);
        let mut client =
            ConfigStreamClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let call = client.subscribe(ReceiverStream::new(outbound));
        let inbound = call.await.unwrap().into_inner();
        let raw = Self { messages, inbound };
        raw.send(first).await;
        raw
    }

    /// Opens a stream as a proxy that holds nothing.
    pub async fn hello(publisher: &Arc<Publisher>, name: &str) -> Self {
        Self::open(publisher, FromProxy::Hello(hello(name))).await
    }

    /// Sends a message.
    pub async fn send(&self, message: FromProxy) {
        let message = Some(message);
        self.messages.send(ProxyMessage { message }).await.unwrap();
    }

    /// The next message that is no heartbeat; none at the end.
    pub async fn next(&mut self) -> Option<FromOperator> {
        loop {
            match timeout(BOUND, self.inbound.message()).await.unwrap() {
                Ok(Some(OperatorMessage {
                    message: Some(FromOperator::Heartbeat(_)),
                })) => {}
                Ok(Some(OperatorMessage { message })) => return message,
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// The next batch.
    pub async fn batch(&mut self) -> Batch {
        loop {
            match self.next().await {
                Some(FromOperator::Welcome(_)) => {}
                Some(FromOperator::Batch(batch)) => return batch,
                other => panic!("{other:?}"),
            }
        }
    }

    /// Acknowledges a batch.
    pub async fn ack(&self, batch: &Batch) {
        let ack = Ack {
            generation: batch.generation,
            ..Ack::default()
        };
        self.send(FromProxy::Ack(ack)).await;
    }

    /// Refuses a batch as a whole.
    pub async fn refuse(&self, batch: &Batch, reason: &str) {
        let refusal = Some(BatchRefusal {
            reason: reason.to_owned(),
            message: "no".to_owned(),
        });
        let generation = batch.generation;
        self.send(FromProxy::Ack(Ack {
            generation,
            refusal,
            ..Ack::default()
        }))
        .await;
    }
}

/// The first message of a proxy that holds nothing.
pub fn hello(name: &str) -> Hello {
    Hello {
        protocol: PROTOCOL_VERSION,
        proxy: name.to_owned(),
        ..Hello::default()
    }
}
