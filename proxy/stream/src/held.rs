//! The proxy's end of the stream as a pure state machine: what the proxy holds, and which batches it accepts.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;

use crate::{
    ContentHash, Digest, Invalid, PROTOCOL_VERSION,
    encoded::{Decoded, check_name},
    limits::{INVENTORY_CHUNK, MAX_ENTRIES, MAX_MESSAGE_BYTES, cut},
    proto::{
        Ack, Batch, BatchRefusal, Generation, Hello, Inventory, InventoryEntry, Reject, Resource,
        ResourceKey,
    },
};

/// Where a batch takes effect. The proxy's tables implement it.
///
/// It is synchronous, so that a batch is applied at one point in time. Opening a port waits for at most a second. The
/// driver calls it off the asynchronous threads where the runtime allows that.
pub trait Apply {
    /// Applies `change` atomically and returns what could not be put in force. A rejected upsert leaves the resource as
    /// it was: its last good version stays, or it stays absent. Everything else is in force on return. A resource of a
    /// known kind whose inner `oneof` is unset comes from a newer release. The implementation rejects it
    /// (`UnknownResource`) and never ignores it.
    fn apply(&mut self, change: &Change) -> Vec<Reject>;

    /// Like [`Self::apply`], but the upserts come from an iterator that decodes each one on demand, and `change` has
    /// none. A full batch takes several times its encoded size when all of it is decoded at once, and the allocator
    /// cannot return that memory while long-lived values lie between the freed ones.
    fn apply_each(
        &mut self,
        mut change: Change,
        upserts: &mut dyn Iterator<Item = (ResourceKey, Resource)>,
    ) -> Vec<Reject> {
        change.upserts = upserts.collect();
        self.apply(&change)
    }
}

/// A batch resolved against what is held. Each key occurs at most once, each upsert differs from what is held, and each
/// removal is held. If both lists are empty, only the generation moves.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The generation that is in force afterwards.
    pub generation: Generation,
    /// Whether it came from a full batch. `removals` lists what goes away in that case too.
    pub full: bool,
    /// New and changed resources, ordered by key. The kind in the key is the kind of the resource.
    pub upserts: Vec<(ResourceKey, Resource)>,
    /// Resources to remove, ordered by key.
    pub removals: Vec<ResourceKey>,
}

/// Why a batch was refused as a whole. Nothing of a refused batch is in force.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The generation is not above the one held: the message is old or replayed.
    #[error("generation {offered} is not above {held}, which is held")]
    StaleGeneration {
        /// The generation of the batch.
        offered: Generation,
        /// The generation that was applied last.
        held: Generation,
    },
    /// The base of the batch is not what is held.
    #[error("the batch builds on {0}")]
    BaseMismatch(String),
    /// The batch has a base, and nothing is held yet.
    #[error("nothing is held yet, and the batch is not a full one")]
    NotFull,
    /// The batch breaks a rule of the protocol or a limit, or does not decode.
    #[error("malformed batch: {0}")]
    Malformed(String),
}

impl Refusal {
    /// A CamelCase word from a bounded set. It is the metric label, and the ack carries it.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::StaleGeneration { .. } => "StaleGeneration",
            Self::BaseMismatch(_) => "BaseMismatch",
            Self::NotFull => "NotFull",
            Self::Malformed(_) => "Malformed",
        }
    }
}

/// The reason of an ack that [`Held`] made, as a label.
pub(crate) fn static_reason(reason: &str) -> &'static str {
    ["StaleGeneration", "BaseMismatch", "NotFull"]
        .into_iter()
        .find(|known| *known == reason)
        .unwrap_or("Malformed")
}

impl From<Invalid> for Refusal {
    fn from(invalid: Invalid) -> Self {
        Self::Malformed(invalid.to_string())
    }
}

/// Reason of a reject for a resource whose kind this release does not know.
pub const UNKNOWN_RESOURCE: &str = "UnknownResource";

/// The identity that a proxy states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyIdentity {
    /// Stable for the life of the process: the pod's name.
    pub proxy: String,
    /// The release, for logs.
    pub release: String,
}

impl ProxyIdentity {
    /// A proxy of this release.
    #[must_use]
    pub fn new(proxy: impl Into<String>) -> Self {
        Self {
            proxy: proxy.into(),
            release: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// The configuration that a proxy holds: the generation and the content hash of each resource in force. The resources
/// themselves are with the implementation of [`Apply`].
#[derive(Debug, Clone, Default)]
pub struct Held {
    generation: Option<Generation>,
    entries: BTreeMap<ResourceKey, ContentHash>,
    digest: Digest,
}

impl Held {
    /// A proxy that holds nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The last generation applied, or `None` before the first full batch.
    #[must_use]
    pub fn generation(&self) -> Option<Generation> {
        self.generation
    }

    /// The digest over everything held.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The key and content hash of everything held, ordered by key.
    pub fn entries(&self) -> impl Iterator<Item = (&ResourceKey, ContentHash)> {
        self.entries.iter().map(|(key, hash)| (key, *hash))
    }

    /// The first message on a stream.
    #[must_use]
    pub fn hello(&self, identity: &ProxyIdentity) -> Hello {
        Hello {
            protocol: PROTOCOL_VERSION,
            release: identity.release.clone(),
            proxy: identity.proxy.clone(),
            held: self.generation,
            held_digest: self.digest.to_vec(),
        }
    }

    /// The answer to an `InventoryRequest`. It has at least one message, and the last one is marked.
    #[must_use]
    pub fn inventory(&self) -> Vec<Inventory> {
        let mut chunks = Vec::with_capacity(self.entries.len() / INVENTORY_CHUNK + 1);
        let mut chunk = Inventory::default();
        for (key, hash) in &self.entries {
            if chunk.entries.len() == INVENTORY_CHUNK {
                chunks.push(std::mem::take(&mut chunk));
            }
            chunk.entries.push(InventoryEntry {
                key: Some(key.clone()),
                hash: hash.to_vec(),
            });
        }
        chunk.last = true;
        chunks.push(chunk);
        chunks
    }

    /// Applies `batch` through `sink`, or refuses it and changes nothing. The ack says which, and names the resources
    /// that were rejected.
    pub fn offer(&mut self, batch: &Batch, sink: &mut (impl Apply + ?Sized)) -> Ack {
        match self.try_offer(batch, sink) {
            Ok(rejects) => Ack {
                generation: batch.generation,
                rejects,
                refusal: None,
            },
            Err(refusal) => refused(batch.generation, &refusal),
        }
    }

    fn try_offer(
        &mut self,
        batch: &Batch,
        sink: &mut (impl Apply + ?Sized),
    ) -> Result<Vec<Reject>, Refusal> {
        let generation = self.check_header(batch)?;
        let Resolved {
            change,
            upserts,
            mut rejects,
            digest,
        } = self.resolve(batch, generation)?;
        // The sender computed the digest for the case that nothing is rejected, so it is compared before `sink` rejects
        // any.
        if !batch.digest.is_empty() && batch.digest != digest.to_vec() {
            return Err(Refusal::BaseMismatch(
                "other content than what is held".to_owned(),
            ));
        }

        let removals = change.removals.clone();
        let mut decoded = upserts.iter().filter_map(|(key, entry)| {
            let upsert = batch.upserts.get(entry.index)?;
            // `resolve` decoded this upsert, so it decodes again.
            let resource = Decoded::new(upsert).ok()?.resource?;
            Some((key.clone(), resource))
        });
        let refused = sink.apply_each(change, &mut decoded);
        rejects.extend(refused.into_iter().map(|reject| Reject {
            reason: cut(reject.reason),
            message: cut(reject.message),
            ..reject
        }));
        let rejected: BTreeSet<&ResourceKey> = rejects
            .iter()
            .filter_map(|reject| reject.key.as_ref())
            .collect();
        for key in removals.iter().filter(|key| !rejected.contains(key)) {
            self.forget(key);
        }
        // A rejected resource must not count as held, or the operator would never send it again.
        let upserts = upserts.into_iter();
        let accepted = upserts.filter(|(key, _)| !rejected.contains(key));
        self.hold(accepted.map(|(key, entry)| (key, entry.hash)).collect());
        self.generation = Some(generation);
        Ok(rejects)
    }

    /// Checks everything that does not depend on the resources.
    fn check_header(&self, batch: &Batch) -> Result<Generation, Refusal> {
        let malformed = |text: &str| Err(Refusal::Malformed(text.to_owned()));
        let Some(generation) = batch.generation else {
            return malformed("no generation");
        };
        if batch.full && batch.base.is_some() {
            return malformed("a full batch with a base");
        }
        if batch.keep_held && !batch.full {
            return malformed("keep_held without full");
        }
        if batch.upserts.len().saturating_add(batch.removals.len()) > MAX_ENTRIES {
            return malformed("too many entries");
        }
        match self.generation {
            Some(held) if generation <= held => {
                return Err(Refusal::StaleGeneration {
                    offered: generation,
                    held,
                });
            }
            None if !batch.full || batch.keep_held => return Err(Refusal::NotFull),
            _ => {}
        }
        if !batch.full && batch.base != self.generation {
            return Err(Refusal::BaseMismatch(match batch.base {
                Some(base) => base.to_string(),
                None => "nothing".to_owned(),
            }));
        }
        Ok(generation)
    }

    /// Computes the difference to what is held. Resources of unknown kinds become rejects.
    fn resolve(&self, batch: &Batch, generation: Generation) -> Result<Resolved, Refusal> {
        let mut upserts = BTreeMap::new();
        for (index, upsert) in batch.upserts.iter().enumerate() {
            let Decoded {
                key,
                hash,
                resource,
            } = Decoded::new(upsert)?;
            let entry = Entry {
                hash,
                index,
                is_known: resource.is_some(),
            };
            if upserts.contains_key(&key) {
                return Err(Refusal::Malformed(format!("{key} occurs twice")));
            }
            upserts.insert(key, entry);
        }
        let mut removals = BTreeSet::new();
        for key in &batch.removals {
            check_name(&key.name)?;
            if upserts.contains_key(key) || !removals.insert(key.clone()) {
                return Err(Refusal::Malformed(format!("{key} occurs twice")));
            }
        }
        if batch.full && !batch.keep_held {
            removals = self.entries.keys().cloned().collect();
            removals.retain(|key| !upserts.contains_key(key));
        } else {
            removals.retain(|key| self.entries.contains_key(key));
        }

        let mut resolved = Resolved {
            change: Change {
                generation,
                full: batch.full,
                upserts: Vec::new(),
                removals: Vec::new(),
            },
            upserts: Vec::new(),
            rejects: Vec::new(),
            digest: self.digest,
        };
        for key in removals {
            if let Some(hash) = self.entries.get(&key) {
                resolved.digest.remove(&key, *hash);
            }
            resolved.change.removals.push(key);
        }
        for (key, entry) in upserts {
            let held = self.entries.get(&key);
            if held == Some(&entry.hash) {
                continue;
            }
            if let Some(hash) = held {
                resolved.digest.remove(&key, *hash);
            }
            resolved.digest.add(&key, entry.hash);
            if entry.is_known {
                resolved.upserts.push((key, entry));
            } else {
                let message = format!("{key} is of a kind that this release does not know");
                resolved
                    .rejects
                    .push(Reject::new(key, UNKNOWN_RESOURCE, message));
            }
        }
        Ok(resolved)
    }

    fn hold(&mut self, new: BTreeMap<ResourceKey, ContentHash>) {
        for (key, hash) in &new {
            self.forget(key);
            self.digest.add(key, *hash);
        }
        if new.len() > self.entries.len() / 2 {
            // A tree that is made all at once has full nodes. In one that grows by entries in their order, nearly half of
            // the room stays empty.
            let old = std::mem::take(&mut self.entries);
            self.entries = old.into_iter().chain(new).collect();
        } else {
            self.entries.extend(new);
        }
    }

    fn forget(&mut self, key: &ResourceKey) {
        if let Some(old) = self.entries.remove(key) {
            self.digest.remove(key, old);
        }
    }
}

/// An upsert that was decoded for its key and hash, and then dropped.
struct Entry {
    hash: ContentHash,
    /// Its index in the batch's upserts.
    index: usize,
    is_known: bool,
}

struct Resolved {
    /// The change without its upserts, which are in `upserts`.
    change: Change,
    /// New and changed resources, ordered by key.
    upserts: Vec<(ResourceKey, Entry)>,
    rejects: Vec<Reject>,
    digest: Digest,
}

/// Decodes a batch and offers it to `held`. Bytes that are no batch are refused like any batch that breaks the
/// protocol. It never panics, and its memory stays within a small factor of `bytes` and of what is held.
pub fn decode_and_hold(bytes: &[u8], held: &mut Held, sink: &mut (impl Apply + ?Sized)) -> Ack {
    if bytes.len() > MAX_MESSAGE_BYTES {
        let text = format!("{} bytes (at most {MAX_MESSAGE_BYTES})", bytes.len());
        return refused(None, &Refusal::Malformed(text));
    }
    match Batch::decode(bytes) {
        Ok(batch) => held.offer(&batch, sink),
        Err(error) => refused(None, &Refusal::Malformed(error.to_string())),
    }
}

fn refused(generation: Option<Generation>, refusal: &Refusal) -> Ack {
    Ack {
        generation,
        rejects: Vec::new(),
        refusal: Some(BatchRefusal {
            reason: refusal.reason().to_owned(),
            message: cut(refusal.to_string()),
        }),
    }
}
