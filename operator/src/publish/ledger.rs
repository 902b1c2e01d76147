//! Records which proxy acknowledged which generation, and computes from that whether an object is programmed.
//!
//! A proxy acknowledges generations, not resources. That suffices: an object is in force at a proxy if the proxy
//! acknowledged a generation at or above the last change of each of the object's resources, and rejected none of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vestibule_stream::{Generation, Reject, ResourceKey, proto::BatchRefusal};

use super::content::Content;

/// The name of a proxy, which is the name of its pod.
pub type ProxyId = String;

/// Resources sent to a proxy whose last version is not in force there.
pub type Rejects = BTreeMap<ResourceKey, Reject>;

/// Proof that every ready proxy acknowledged a generation with the last change of what was asked for. Only
/// [`AckProgress::acknowledged`] makes one, so `Programmed=True` cannot be written without an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledged(Generation);

impl Acknowledged {
    /// Returns the generation of the last change. Every ready proxy has acknowledged it or a later one.
    #[must_use]
    pub fn generation(self) -> Generation {
        self.0
    }
}

/// How far the proxies have acknowledged the resources of one object.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AckProgress {
    /// How many of the expected proxies acknowledged the resources and rejected none of them.
    pub acked: usize,
    /// How many proxies are expected to. Every ready proxy is, connected or not.
    pub ready: usize,
    /// The resources that proxies rejected, with the proxy.
    pub rejects: Vec<(ProxyId, Reject)>,
    /// Proxies that have not acknowledged yet, sorted by name.
    pub waiting_for: Vec<ProxyId>,
    /// The proxies among these that refuse whole batches, and the reasons.
    pub refusals: Vec<(ProxyId, BatchRefusal)>,
    /// Resources that are not published as asked for. They were never published, or were removed so long ago that the
    /// removal is forgotten, or their last change waits to be published.
    pub unpublished: Vec<ResourceKey>,
    acknowledged: Option<Acknowledged>,
}

impl AckProgress {
    /// Returns the proof that every ready proxy acknowledged, if all did.
    #[must_use]
    pub fn acknowledged(&self) -> Option<Acknowledged> {
        self.acknowledged
    }
}

/// The state of one proxy.
#[derive(Debug, Clone, Default)]
pub(super) struct Proxy {
    /// The stream that counts for this proxy, if it has one.
    pub(super) session: Option<u64>,
    /// The last generation that it acknowledged since this replica began to lead.
    pub(super) acked: Option<Generation>,
    /// The resources that it rejected. It is another allocation as soon as anything in it differs.
    pub(super) rejects: Arc<Rejects>,
    /// Set if it refused the last batch as a whole.
    pub(super) refusal: Option<BatchRefusal>,
}

/// All proxies.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// The proxies that are ready according to the cluster. `None` until [`Ledger::set_ready`] is called.
    ready: Option<BTreeSet<ProxyId>>,
    pub(super) proxies: BTreeMap<ProxyId, Proxy>,
}

impl Ledger {
    /// Forgets every acknowledgement, because they belong to another term of leadership.
    pub(super) fn clear(&mut self) {
        self.proxies.clear();
    }

    /// Sets which proxies are ready according to the cluster. A proxy that is neither ready nor connected is no longer
    /// expected.
    ///
    /// A proxy that was ready and no longer is may have restarted, while its old connection still seems to be up. So
    /// its acknowledgements and its stream no longer count. The proxy connects again and reports what it holds.
    pub(super) fn set_ready(&mut self, ready: BTreeSet<ProxyId>) {
        let before = self.ready.take().unwrap_or_default();
        self.proxies.retain(|proxy, entry| {
            ready.contains(proxy) || (entry.session.is_some() && !before.contains(proxy))
        });
        self.ready = Some(ready);
    }

    /// Begins a stream of a proxy that holds the generation `held`. It replaces an older stream of the same proxy;
    /// returns whether there was one.
    pub(super) fn connect(&mut self, proxy: &str, session: u64, held: Option<Generation>) -> bool {
        let entry = self.proxies.entry(proxy.to_owned()).or_default();
        let replaced = entry.session.replace(session).is_some();
        entry.refusal = None;
        // The process has restarted, or it does not hold what it acknowledged.
        if held < entry.acked {
            entry.acked = None;
            entry.rejects = Arc::default();
        }
        replaced
    }

    /// Ends a stream. The proxy continues to serve, so it stays expected while it is ready. Before the first call of
    /// [`Self::set_ready`], it stays expected if it has acknowledged something.
    pub(super) fn disconnect(&mut self, proxy: &str, session: u64) {
        if let Some(entry) = self.proxies.get_mut(proxy)
            && entry.session == Some(session)
        {
            entry.session = None;
            let gone = match &self.ready {
                Some(ready) => !ready.contains(proxy),
                None => entry.acked.is_none(),
            };
            if gone {
                self.proxies.remove(proxy);
            }
        }
    }

    /// Returns the entry of `proxy`, if `session` is the stream that counts for it.
    pub(super) fn of_session(&mut self, proxy: &str, session: u64) -> Option<&mut Proxy> {
        self.proxies
            .get_mut(proxy)
            .filter(|entry| entry.session == Some(session))
    }

    /// Returns the number of proxies that have a stream.
    pub(super) fn connected(&self) -> usize {
        self.proxies
            .values()
            .filter(|entry| entry.session.is_some())
            .count()
    }

    /// Returns the proxies that are expected to acknowledge: every ready one, and those that acknowledged something.
    fn expected(&self) -> BTreeSet<&ProxyId> {
        let acked = self
            .proxies
            .iter()
            .filter(|(_, entry)| entry.acked.is_some());
        self.ready
            .iter()
            .flatten()
            .chain(acked.map(|(proxy, _)| proxy))
            .collect()
    }

    /// Whether there is an expected proxy, and all of them acknowledged this generation or a later one.
    pub(super) fn has_acked(&self, generation: Generation) -> bool {
        let expected = self.expected();
        let acked = |proxy| self.proxies.get(proxy)?.acked;
        !expected.is_empty()
            && expected
                .into_iter()
                .all(|proxy| acked(proxy).is_some_and(|acked| acked >= generation))
    }

    /// Returns how far the expected proxies have acknowledged the last changes of `keys`. The last changes of the keys
    /// in `withheld` are not published yet.
    pub(super) fn programmed(
        &self,
        keys: &[ResourceKey],
        withheld: Vec<ResourceKey>,
        content: &Content,
    ) -> AckProgress {
        let mut programmed = AckProgress {
            unpublished: withheld,
            ..AckProgress::default()
        };
        let mut need = Generation::default();
        for key in keys {
            match content.changed(key) {
                Some(changed) => need = need.max(changed),
                None => programmed.unpublished.push(key.clone()),
            }
        }
        let expected = self.expected();
        programmed.ready = expected.len();
        for proxy in expected {
            let entry = self.proxies.get(proxy);
            let acked = entry.and_then(|entry| entry.acked);
            if acked.is_none_or(|acked| acked < need) {
                programmed.waiting_for.push(proxy.clone());
                if let Some(refusal) = entry.and_then(|entry| entry.refusal.clone()) {
                    programmed.refusals.push((proxy.clone(), refusal));
                }
                continue;
            }
            let rejects = keys.iter().filter_map(|key| entry?.rejects.get(key));
            let before = programmed.rejects.len();
            programmed
                .rejects
                .extend(rejects.map(|reject| (proxy.clone(), reject.clone())));
            if programmed.rejects.len() == before {
                programmed.acked += 1;
            }
        }
        let complete = programmed.ready > 0 && programmed.acked == programmed.ready;
        if complete && programmed.unpublished.is_empty() {
            programmed.acknowledged = Some(Acknowledged(need));
        }
        programmed
    }
}
