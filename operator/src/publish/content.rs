//! Keeps the published resources, with the generation of the last change of each, and computes what changed since a
//! generation.
//!
//! There is no queue per proxy. The log contains each key once, at its last change. So the difference between any
//! generation and now is a range of the log: a proxy that is far behind gets one merged batch, and the memory is
//! bounded by the number of published resources.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vestibule_stream::{
    ContentHash, Digest, Encoded, Generation, Invalid, Resource, ResourceKey,
    limits::MAX_NAME_BYTES, proto::Upsert,
};

/// Least number of removed keys to remember. If there are more live keys than this, as many removed ones are
/// remembered.
const MIN_REMEMBERED: usize = 1024;

/// One update: the resources that are new or changed, and those that are removed. The last call for a key counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    upserts: BTreeMap<ResourceKey, Encoded>,
    removals: BTreeSet<ResourceKey>,
}

impl Changes {
    /// Returns an update without changes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Publishes `resource`, which replaces the one with its key, if there is one.
    ///
    /// # Errors
    ///
    /// Fails if the resource breaks a limit of the stream. The other changes of this update are not affected.
    pub fn upsert(&mut self, resource: &Resource) -> Result<(), Invalid> {
        self.upsert_encoded(Encoded::new(resource)?);
        Ok(())
    }

    /// Publishes a resource that is encoded already, such as translation returns it.
    pub fn upsert_encoded(&mut self, encoded: Encoded) {
        self.removals.remove(encoded.key());
        self.upserts.insert(encoded.key().clone(), encoded);
    }

    /// Removes the resource with this key.
    pub fn remove(&mut self, key: ResourceKey) {
        self.upserts.remove(&key);
        if !key.name.is_empty() && key.name.len() <= MAX_NAME_BYTES {
            self.removals.insert(key);
        }
    }

    /// Whether there are no changes in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.upserts.is_empty() && self.removals.is_empty()
    }
}

/// The difference between what a proxy holds and what is published.
#[derive(Debug, Default)]
pub(super) struct Difference {
    pub(super) upserts: Vec<Upsert>,
    pub(super) removals: Vec<ResourceKey>,
    /// The keys of both. Only set if this is the difference to an earlier generation.
    pub(super) keys: BTreeSet<ResourceKey>,
}

/// Upper bound for the frame of an entry in a batch, in bytes: its kind, tags and lengths.
const FRAME: u64 = 16;

/// The size of a batch before it is made. The bytes are an upper bound, and a close one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct BatchSize {
    pub(super) entries: usize,
    pub(super) bytes: u64,
}

impl BatchSize {
    /// Adds so many entries that have so many bytes in all.
    fn add(&mut self, entries: usize, bytes: u64) {
        self.entries += entries;
        self.bytes += bytes + entries as u64 * FRAME;
    }
}

/// The published set and its log.
#[derive(Debug, Default)]
pub(super) struct Content {
    generation: Generation,
    live: BTreeMap<Arc<ResourceKey>, (Encoded, Generation)>,
    /// Number of bytes of all resources in `live`.
    bytes: u64,
    removed: BTreeMap<Arc<ResourceKey>, Generation>,
    /// Each key of `live` and `removed` once, at its last change.
    log: BTreeSet<(Generation, Arc<ResourceKey>)>,
    /// The log is complete after this generation. Removals up to it may be forgotten.
    floor: Generation,
    digest: Digest,
}

impl Content {
    /// Returns the last generation given out.
    pub(super) fn generation(&self) -> Generation {
        self.generation
    }

    /// Returns the digest over everything published.
    pub(super) fn digest(&self) -> Digest {
        self.digest
    }

    /// Returns the size of a batch with everything.
    pub(super) fn size(&self) -> BatchSize {
        let mut size = BatchSize::default();
        size.add(self.live.len(), self.bytes);
        size
    }

    /// Returns the size of a batch with everything that changed after `base`.
    pub(super) fn size_since(&self, base: Generation) -> BatchSize {
        let mut size = BatchSize::default();
        for (_, key) in self.log.range(after(base)..) {
            let length = self.resource(key).map_or(key.name.len(), Encoded::len);
            size.add(1, length as u64);
        }
        size
    }

    /// Returns the size of a batch with the difference to what a proxy reports that it holds.
    pub(super) fn size_beside(&self, held: &BTreeMap<ResourceKey, ContentHash>) -> BatchSize {
        let mut size = BatchSize::default();
        for (key, (encoded, _)) in &self.live {
            if held.get(&**key) != Some(&encoded.hash()) {
                size.add(1, encoded.len() as u64);
            }
        }
        for key in held.keys().filter(|key| !self.live.contains_key(*key)) {
            size.add(1, key.name.len() as u64);
        }
        size
    }

    /// Returns a resource, if it is published.
    pub(super) fn resource(&self, key: &ResourceKey) -> Option<&Encoded> {
        self.live.get(key).map(|(encoded, _)| encoded)
    }

    /// Applies an update and returns the generation that contains it. This is a new generation, or the present one if
    /// the update changes nothing.
    pub(super) fn apply(&mut self, changes: Changes) -> Generation {
        let next = self.following();
        let mut moved = false;
        for (key, encoded) in changes.upserts {
            let old = self.live.get(&key);
            if old.is_some_and(|(old, _)| old.hash() == encoded.hash()) {
                continue;
            }
            moved = true;
            self.unlog(&key);
            let key = encoded.shared_key().clone();
            self.digest.add(&key, encoded.hash());
            self.log.insert((next, key.clone()));
            self.bytes += encoded.len() as u64;
            self.live.insert(key, (encoded, next));
        }
        for key in changes.removals {
            if self.live.contains_key(&key) {
                moved = true;
                self.unlog(&key);
                let key = Arc::new(key);
                self.log.insert((next, key.clone()));
                self.removed.insert(key, next);
            }
        }
        if moved {
            self.generation = next;
            self.forget_old();
        }
        self.generation
    }

    /// Gives the present content a new generation, above all others. A batch needs this if it only confirms what the
    /// proxy holds.
    pub(super) fn renew(&mut self) -> Generation {
        self.generation = self.following();
        self.generation
    }

    /// Begins `term`, or continues it. The content gets a new generation.
    pub(super) fn begin(&mut self, term: u64) -> Generation {
        self.generation = self.following().max(Generation::new(term, 1));
        self.generation
    }

    /// Takes account of a proxy that holds the generation `held` of the present term. Every generation given out from
    /// now on is above it.
    pub(super) fn rise_above(&mut self, held: Generation) {
        self.generation = self.generation.max(held);
    }

    /// Returns the generation of the last change of `key`. `None` if it is not published and no removal of it is
    /// remembered.
    pub(super) fn changed(&self, key: &ResourceKey) -> Option<Generation> {
        let live = self.live.get(key).map(|(_, changed)| *changed);
        live.or_else(|| self.removed.get(key).copied())
    }

    /// Returns the generation of the last change.
    pub(super) fn last_change(&self) -> Generation {
        self.log.last().map(|(last, _)| *last).unwrap_or_default()
    }

    /// Whether anything changed after `base`.
    pub(super) fn changed_since(&self, base: Generation) -> bool {
        self.last_change() > base
    }

    /// Returns what changed after `base`. `None` if removals since then may have been forgotten.
    pub(super) fn since(&self, base: Generation) -> Option<Difference> {
        if base < self.floor {
            return None;
        }
        let mut difference = Difference::default();
        // The log has each key once, at its last change. So this range has each key that changed after `base` once, and what
        // the key is now is all that the proxy has to know.
        for (_, key) in self.log.range(after(base)..) {
            match self.live.get(key) {
                Some((encoded, _)) => difference.upserts.push(encoded.upsert()),
                None => difference.removals.push(ResourceKey::clone(key)),
            }
            difference.keys.insert(ResourceKey::clone(key));
        }
        Some(difference)
    }

    /// Returns everything that is published, as the difference to a proxy that holds nothing.
    pub(super) fn all(&self) -> Difference {
        self.compare(&BTreeMap::new())
    }

    /// Returns the difference between what a proxy reports that it holds and what is published.
    pub(super) fn compare(&self, held: &BTreeMap<ResourceKey, ContentHash>) -> Difference {
        let mut difference = Difference::default();
        for (key, (encoded, _)) in &self.live {
            if held.get(&**key) != Some(&encoded.hash()) {
                difference.upserts.push(encoded.upsert());
            }
        }
        for key in held.keys().filter(|key| !self.live.contains_key(*key)) {
            difference.removals.push(key.clone());
        }
        difference
    }

    fn following(&self) -> Generation {
        let Generation { term, counter } = self.generation;
        Generation::new(term, counter.saturating_add(1))
    }

    /// Removes a key from the live and the removed resources, the log and the digest.
    fn unlog(&mut self, key: &ResourceKey) {
        if let Some((key, (encoded, changed))) = self.live.remove_entry(key) {
            self.digest.remove(&key, encoded.hash());
            self.bytes -= encoded.len() as u64;
            self.log.remove(&(changed, key));
        }
        if let Some((key, changed)) = self.removed.remove_entry(key) {
            self.log.remove(&(changed, key));
        }
    }

    /// Forgets the oldest removals if there are too many. A proxy that is further behind is then asked what it holds.
    ///
    /// This forgets half of the allowed number at once, so that the sort is rare.
    fn forget_old(&mut self) {
        let most = self.live.len().max(MIN_REMEMBERED);
        if self.removed.len() <= most {
            return;
        }
        let mut oldest: Vec<_> = self
            .removed
            .iter()
            .map(|(key, at)| (*at, key.clone()))
            .collect();
        oldest.sort_unstable();
        oldest.truncate(self.removed.len() - most / 2);
        for entry in oldest {
            // No removal that is forgotten comes after `floor`. So the log after any base from there on is complete.
            self.floor = self.floor.max(entry.0);
            self.removed.remove(&entry.1);
            self.log.remove(&entry);
        }
    }
}

/// Returns the smallest possible entry of the log in the generation after `base`: every key has a name, so the default
/// key comes before all others. The range from here contains exactly the entries after `base`.
fn after(base: Generation) -> (Generation, Arc<ResourceKey>) {
    let next = Generation::new(base.term, base.counter.saturating_add(1));
    (next, Arc::default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message as _;
    use vestibule_stream::{
        Apply, Batch, Change, Held, Reject, ResourceKind,
        proto::{Backend, Endpoint, resource},
    };

    use super::*;

    struct Table(BTreeMap<ResourceKey, Resource>);

    impl Apply for Table {
        fn apply(&mut self, change: &Change) -> Vec<Reject> {
            for key in &change.removals {
                self.0.remove(key);
            }
            self.0.extend(change.upserts.iter().cloned());
            Vec::new()
        }
    }

    fn backend(name: u8, port: u32) -> Resource {
        let endpoint = Endpoint {
            address: "127.0.0.1".to_owned(),
            port,
        };
        Resource::new(
            format!("b{name}"),
            resource::Resource::Backend(Backend {
                endpoints: vec![endpoint],
                ..Default::default()
            }),
        )
    }

    fn key(name: u8) -> ResourceKey {
        ResourceKey::new(ResourceKind::Backend, format!("b{name}"))
    }

    fn table(content: &Content) -> BTreeMap<ResourceKey, ContentHash> {
        content
            .live
            .iter()
            .map(|(key, (encoded, _))| (ResourceKey::clone(key), encoded.hash()))
            .collect()
    }

    fn held(held: &Held) -> BTreeMap<ResourceKey, ContentHash> {
        held.entries()
            .map(|(key, hash)| (key.clone(), hash))
            .collect()
    }

    #[derive(Debug, Clone)]
    enum Step {
        Update(Vec<(u8, Option<u32>)>),
        Delta,
        Resync,
        Restart,
        Term,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let edit = (0_u8..12, proptest::option::weighted(0.7, 1_u32..6));
        let step = prop_oneof![
            5 => proptest::collection::vec(edit, 1..5).prop_map(Step::Update),
            4 => Just(Step::Delta),
            1 => Just(Step::Resync),
            1 => Just(Step::Restart),
            1 => Just(Step::Term),
        ];
        proptest::collection::vec(step, 0..40)
    }

    fn changes(edits: &[(u8, Option<u32>)]) -> Changes {
        let mut changes = Changes::new();
        for (name, port) in edits {
            match port {
                Some(port) => changes.upsert(&backend(*name, *port)).unwrap(),
                None => changes.remove(key(*name)),
            }
        }
        changes
    }

    fn batch(content: &Content, difference: Difference) -> Batch {
        Batch {
            generation: Some(content.generation()),
            upserts: difference.upserts,
            removals: difference.removals,
            digest: content.digest().to_vec(),
            ..Batch::default()
        }
    }

    /// The size that was computed before is the batch's: all entries, and at least its bytes.
    fn fits(size: BatchSize, batch: &Batch) {
        assert_eq!(size.entries, batch.upserts.len() + batch.removals.len());
        let entries = Batch {
            upserts: batch.upserts.clone(),
            removals: batch.removals.clone(),
            ..Batch::default()
        };
        let bytes = entries.encoded_len() as u64;
        let most = bytes + size.entries as u64 * FRAME;
        assert!((bytes..=most).contains(&size.bytes), "{size:?}, {bytes}");
    }

    fn resync(content: &mut Content, proxy: &mut Held, sink: &mut Table) {
        content.renew();
        fits(content.size(), &batch(content, content.all()));
        let size = content.size_beside(&held(proxy));
        let mut batch = batch(content, content.compare(&held(proxy)));
        fits(size, &batch);
        batch.full = true;
        batch.keep_held = proxy.generation().is_some();
        let ack = proxy.offer(&batch, sink);
        assert_eq!(ack.refusal, None);
    }

    proptest! {
        /// After any history of updates, merged deltas, resyncs and restarts, the proxy holds what is published, by
        /// digest, hash and content.
        #[test]
        fn held_equals_published(steps in steps()) {
            let mut content = Content::default();
            content.begin(1);
            let (mut proxy, mut sink) = (Held::new(), Table(BTreeMap::new()));
            for step in steps.into_iter().chain([Step::Delta]) {
                match step {
                    Step::Update(edits) => {
                        content.apply(changes(&edits));
                        continue;
                    }
                    Step::Delta => match proxy.generation() {
                        Some(base) if content.changed_since(base) => {
                            let mut batch = batch(&content, content.since(base).unwrap());
                            fits(content.size_since(base), &batch);
                            batch.base = Some(base);
                            let ack = proxy.offer(&batch, &mut sink);
                            prop_assert_eq!(ack.refusal, None);
                            // The same batch again is a replay.
                            let refusal = proxy.offer(&batch, &mut sink).refusal.unwrap();
                            prop_assert_eq!(refusal.reason, "StaleGeneration");
                        }
                        Some(_) => {}
                        None => resync(&mut content, &mut proxy, &mut sink),
                    },
                    Step::Resync => resync(&mut content, &mut proxy, &mut sink),
                    Step::Restart => {
                        (proxy, sink) = (Held::new(), Table(BTreeMap::new()));
                        continue;
                    }
                    Step::Term => {
                        content.begin(content.generation().term + 1);
                        continue;
                    }
                }
                prop_assert_eq!(held(&proxy), table(&content));
                prop_assert_eq!(proxy.digest(), content.digest());
                let encoded: BTreeMap<_, _> = sink.0.iter()
                    .map(|(key, resource)| (key.clone(), Encoded::new(resource).unwrap().hash()))
                    .collect();
                prop_assert_eq!(encoded, table(&content));
            }
        }

        /// One merged batch has the same result as the single batches in turn.
        #[test]
        fn merging_equals_one_by_one(
            updates in proptest::collection::vec(
                proptest::collection::vec((0_u8..8, proptest::option::of(1_u32..4)), 1..4), 1..12),
        ) {
            let mut content = Content::default();
            let base = content.begin(1);
            let full = Batch { full: true, ..batch(&content, content.all()) };
            let (mut single, mut single_sink) = (Held::new(), Table(BTreeMap::new()));
            let (mut merged, mut merged_sink) = (Held::new(), Table(BTreeMap::new()));
            single.offer(&full, &mut single_sink);
            merged.offer(&full, &mut merged_sink);
            for update in &updates {
                let before = content.generation();
                if content.apply(changes(update)) > before {
                    let mut batch = batch(&content, content.since(before).unwrap());
                    batch.base = Some(before);
                    prop_assert_eq!(single.offer(&batch, &mut single_sink).refusal, None);
                }
            }
            if content.changed_since(base) {
                let mut batch = batch(&content, content.since(base).unwrap());
                batch.base = Some(base);
                prop_assert_eq!(merged.offer(&batch, &mut merged_sink).refusal, None);
            }
            prop_assert_eq!(single_sink.0, merged_sink.0);
            prop_assert_eq!(single.digest(), merged.digest());
            prop_assert_eq!(single.generation(), merged.generation());
        }
    }

    #[test]
    fn an_update_without_effect_makes_no_generation() {
        let mut content = Content::default();
        content.begin(1);
        let first = content.apply(changes(&[(1, Some(1))]));
        assert_eq!(content.apply(changes(&[(1, Some(1)), (2, None)])), first);
        assert!(content.apply(changes(&[(1, Some(2))])) > first);
    }

    #[test]
    fn removals_are_forgotten_and_then_a_delta_is_not_possible() {
        let mut content = Content::default();
        let start = content.begin(1);
        for port in 0..=u32::try_from(MIN_REMEMBERED).unwrap() {
            let name = format!("n{port}");
            let mut changes = Changes::new();
            let mut resource = backend(0, 1);
            resource.name.clone_from(&name);
            changes.upsert(&resource).unwrap();
            content.apply(changes);
            let mut changes = Changes::new();
            changes.remove(ResourceKey::new(ResourceKind::Backend, name));
            content.apply(changes);
        }
        assert!(content.removed.len() <= MIN_REMEMBERED);
        assert_eq!(content.log.len(), content.removed.len());
        assert!(content.since(start).is_none());
        assert!(content.since(content.generation()).is_some());
    }
}
