//! The configuration stream from bytes to the table in force: a first byte, then a recording.
//!
//! With the first byte even, each message is offered as it is (with a multiple of four, all the
//! bytes as one message before). With it odd, what would have each
//! batch refused before its resources are looked at is mended (generation, base, digest), so that
//! mutations reach the tables.
#![no_main]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use libfuzzer_sys::fuzz_target;
use prost::Message;
use vestibule_model::endpoint::EndpointRules;
use vestibule_proxy::apply::{NoSockets, State};
use vestibule_proxy::table::Snapshot;
use vestibule_stream::{
    Apply, Batch, Change, Digest, Encoded, Generation, Held, Reject, Resource, ResourceKey,
    ResourceKind, decode_and_hold, recording,
};

/// Batches per input: more of them say nothing new and cost.
const MAX_BATCHES: usize = 16;

fuzz_target!(|data: &[u8]| {
    let Some((mode, bytes)) = data.split_first() else {
        return;
    };
    let mut proxy = Proxy::new();
    // The bytes as one message too: what is no recording may be a batch.
    if mode % 4 == 0 {
        proxy.offer(bytes);
    }
    let mut last = Vec::new();
    for batch in recording::Reader::new(bytes).take(MAX_BATCHES) {
        let Ok(mut batch) = batch else {
            break;
        };
        if mode % 2 == 1 {
            proxy.mend(&mut batch);
        }
        last = batch.encode_to_vec();
        proxy.offer(&last);
    }
    // A replay is refused and changes nothing.
    assert!(proxy.offer(&last).is_some());
    proxy.check_against_a_fresh_start();
});

struct Proxy {
    held: Held,
    sink: Sink,
    /// The table in force after the last batch that was taken.
    dump: String,
}

/// The tables, and every resource that was put in force as it came.
struct Sink {
    state: State,
    resources: BTreeMap<ResourceKey, Resource>,
}

impl Apply for Sink {
    fn apply(&mut self, change: &Change) -> Vec<Reject> {
        let rejects = self.state.apply(change, &mut NoSockets);
        let rejected: BTreeSet<&ResourceKey> = rejects
            .iter()
            .filter_map(|reject| reject.key.as_ref())
            .collect();
        assert_eq!(rejected.len(), rejects.len(), "one reject per resource");
        for key in &change.removals {
            assert!(!rejected.contains(key), "a removal is never rejected");
            self.resources.remove(key);
        }
        for (key, resource) in &change.upserts {
            if !rejected.contains(key) {
                self.resources.insert(key.clone(), resource.clone());
            }
        }
        rejects
    }
}

impl Proxy {
    fn new() -> Self {
        let published = Arc::new(ArcSwap::from_pointee(Snapshot::default()));
        let mut new = Self {
            held: Held::new(),
            sink: Sink {
                state: State::new(published, EndpointRules::with_loopback())
                    .expect("a TLS configuration"),
                resources: BTreeMap::new(),
            },
            dump: String::new(),
        };
        new.dump = new.dump();
        new
    }

    /// Offers one message and checks the result. Returns the reason if it was refused.
    fn offer(&mut self, message: &[u8]) -> Option<String> {
        let before = self.held.clone();
        let ack = decode_and_hold(message, &mut self.held, &mut self.sink);
        if let Some(refusal) = ack.refusal {
            assert_eq!(self.held.generation(), before.generation());
            assert!(self.held.entries().eq(before.entries()));
            assert_eq!(self.dump(), self.dump, "a refused batch changes nothing");
            return Some(refusal.reason);
        }
        assert_eq!(self.held.generation(), ack.generation);
        assert!(self.held.generation() > before.generation());
        self.check_counts();
        self.dump = self.dump();
        None
    }

    /// What is held is what is in force, and the digest is that of what is held.
    fn check_counts(&self) {
        let mut digest = Digest::default();
        let mut kinds = BTreeMap::new();
        for (key, hash) in self.held.entries() {
            digest.add(key, hash);
            *kinds.entry(key.kind().label()).or_insert(0_usize) += 1;
            assert!(self.sink.resources.contains_key(key), "{key} is held");
        }
        assert_eq!(digest, self.held.digest());
        assert_eq!(self.sink.resources.len(), self.held.entries().count());
        let counts = self.sink.state.counts();
        for (kind, in_force) in [
            (ResourceKind::Listener, counts.listeners),
            (ResourceKind::TlsRoute, counts.routes),
            (ResourceKind::Backend, counts.backends),
            (ResourceKind::Certificate, counts.certificates),
            (ResourceKind::HttpRoute, counts.http_routes),
            (ResourceKind::GrpcRoute, counts.grpc_routes),
            (ResourceKind::TcpRoute, counts.tcp_routes),
            (ResourceKind::UdpRoute, counts.udp_routes),
            (ResourceKind::TrustBundle, counts.trust_bundles),
            (ResourceKind::Challenge, counts.challenges),
            (ResourceKind::HostnameOwner, counts.hostname_owners),
            (ResourceKind::Tenant, counts.tenants),
            (ResourceKind::GatewaySettings, counts.gateway_settings),
        ] {
            assert_eq!(
                kinds.get(kind.label()).copied().unwrap_or(0),
                in_force,
                "{}",
                kind.label()
            );
        }
    }

    /// A proxy that is given all of it at once holds the same and rejects nothing, but challenges whose
    /// port has been closed since they came.
    fn check_against_a_fresh_start(&self) {
        let Some(generation) = self.held.generation() else {
            return;
        };
        let upserts = self
            .sink
            .resources
            .values()
            .map(|resource| Encoded::new(resource).expect("it was decoded").upsert())
            .collect();
        let batch = Batch {
            generation: Some(generation),
            full: true,
            upserts,
            ..Batch::default()
        };
        let mut fresh = Self::new();
        let ack = fresh.held.offer(&batch, &mut fresh.sink);
        assert_eq!(ack.refusal, None);
        let mut gone = BTreeSet::new();
        for reject in &ack.rejects {
            let key = reject.key.as_ref().expect("a key");
            assert_eq!(key.kind(), ResourceKind::Challenge, "{reject:?}");
            assert_eq!(reject.reason, "NoListener");
            gone.insert(key.name.as_str());
        }
        let mut dump = self.sink.state.dump();
        dump.challenges
            .retain(|challenge| !gone.contains(challenge.name.as_str()));
        let dump = serde_json::to_string(&dump).expect("a dump");
        assert_eq!(fresh.dump(), dump);
    }

    fn dump(&self) -> String {
        serde_json::to_string(&self.sink.state.dump()).expect("a dump")
    }

    fn mend(&self, batch: &mut Batch) {
        let held = self.held.generation();
        batch.generation = Some(held.map_or(Generation::new(1, 1), |held| {
            Generation::new(held.term, held.counter.saturating_add(1))
        }));
        batch.digest.clear();
        if held.is_none() {
            batch.full = true;
            batch.keep_held = false;
        }
        batch.keep_held &= batch.full;
        batch.base = if batch.full { None } else { held };
        // One entry per key, the last one: a mutation that copies an upsert is common.
        let mut keys = BTreeSet::new();
        batch.upserts.retain(|upsert| {
            Resource::decode(&upsert.resource[..])
                .is_ok_and(|resource| keys.insert((upsert.kind, resource.name)))
        });
        batch
            .removals
            .retain(|key| keys.insert((key.kind, key.name.clone())));
    }
}
