//! Which proxy acknowledged what, and what follows from that for `AckProgress`. Pure.

use std::collections::{BTreeMap, BTreeSet};

use vestibule_stream::{Generation, Reject, ResourceKey, proto::BatchRefusal};

use super::content::Content;

/// Name of a proxy: its pod's.
pub type ProxyId = String;

/// Proof that every ready proxy acknowledged a generation with the last change of what was asked for.
/// Only [`AckProgress::acknowledged`] makes one, so `AckProgress=True` cannot be written without an ack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledged(Generation);

impl Acknowledged {
    /// The generation of the last change; every ready proxy is at it or above.
    #[must_use]
    pub fn generation(self) -> Generation {
        self.0
    }
}

/// How far the proxies have acknowledged the resources of one object.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AckProgress {
    /// How many of the expected proxies are there with it: acked, and nothing of it rejected.
    pub acked: usize,
    /// How many are expected: every ready one, connected or not.
    pub ready: usize,
    /// What of it is not in force, and where.
    pub rejects: Vec<(ProxyId, Reject)>,
    /// Proxies that did not ack yet, in order.
    pub waiting_for: Vec<ProxyId>,
    /// Proxies of these that refuse whole batches, and why.
    pub refusals: Vec<(ProxyId, BatchRefusal)>,
    /// Resources asked for that are not published: never, or removed longer ago than is remembered, or of
    /// which a change is published later.
    pub unpublished: Vec<ResourceKey>,
    acknowledged: Option<Acknowledged>,
}

impl AckProgress {
    /// The proof that every ready proxy acknowledged, if all did.
    #[must_use]
    pub fn acknowledged(&self) -> Option<Acknowledged> {
        self.acknowledged
    }
}

/// One proxy as seen by the publisher.
#[derive(Debug, Clone, Default)]
pub(super) struct Proxy {
    /// The stream that speaks for it.
    pub(super) session: Option<u64>,
    /// The last generation acknowledged to this leadership.
    pub(super) acked: Option<Generation>,
    /// Of the resources sent to it, those not in force in their last version.
    pub(super) rejects: BTreeMap<ResourceKey, Reject>,
    /// The last batch was refused as a whole.
    pub(super) refusal: Option<BatchRefusal>,
    pub(super) capabilities: Vec<String>,
    /// Bytes of batches sent, and of resources in them.
    pub(super) sent: Sent,
}

/// What was sent to a proxy since it is known to this leadership.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// Batches.
    pub batches: u64,
    /// Bytes of encoded batches.
    pub bytes: u64,
    /// Bytes of the resources in them.
    pub resource_bytes: u64,
}

/// All proxies.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// What the cluster says; none if nobody ever said anything.
    ready: Option<BTreeSet<ProxyId>>,
    pub(super) proxies: BTreeMap<ProxyId, Proxy>,
}

impl Ledger {
    /// Forgets every ack: they were to another leadership.
    pub(super) fn clear(&mut self) {
        self.proxies.clear();
    }

    /// Sets which proxies are ready according to the cluster. One that is not and is not connected
    /// either is no longer expected.
    ///
    /// One that was ready and is not any more may have been started anew behind a connection that only
    /// seems to be up, so its acks are void and so is its stream: it comes back and says what it holds.
    pub(super) fn set_ready(&mut self, ready: BTreeSet<ProxyId>) {
        let before = self.ready.take().unwrap_or_default();
        self.proxies.retain(|proxy, entry| {
            ready.contains(proxy) || (entry.session.is_some() && !before.contains(proxy))
        });
        self.ready = Some(ready);
    }

    /// A stream of a proxy that holds `held` begins; it replaces an older stream of the same proxy. Says
    /// whether there was one.
    pub(super) fn connect(
        &mut self,
        proxy: &str,
        session: u64,
        held: Option<Generation>,
        capabilities: Vec<String>,
    ) -> bool {
        let entry = self.proxies.entry(proxy.to_owned()).or_default();
        let replaced = entry.session.replace(session).is_some();
        entry.capabilities = capabilities;
        entry.refusal = None;
        // A process that was started anew, or that is not where its acks say.
        if held < entry.acked {
            entry.acked = None;
            entry.rejects.clear();
        }
        replaced
    }

    /// A stream ended. The proxy goes on serving, so it stays expected until the cluster says it is
    /// gone, unless it never acknowledged anything.
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

    /// The entry of `proxy`, if `session` is the stream that speaks for it.
    pub(super) fn of_session(&mut self, proxy: &str, session: u64) -> Option<&mut Proxy> {
        self.proxies
            .get_mut(proxy)
            .filter(|entry| entry.session == Some(session))
    }

    /// Streams at present.
    pub(super) fn connected(&self) -> usize {
        self.proxies
            .values()
            .filter(|entry| entry.session.is_some())
            .count()
    }

    /// The proxies that are expected: every ready one, and those that acknowledged something.
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

    /// Whether there are proxies, and each of them acknowledged this generation.
    pub(super) fn has_acked(&self, generation: Generation) -> bool {
        let expected = self.expected();
        let acked = |proxy| self.proxies.get(proxy)?.acked;
        !expected.is_empty()
            && expected
                .into_iter()
                .all(|proxy| acked(proxy).is_some_and(|acked| acked >= generation))
    }

    /// Whether the last changes of `keys` are in force at every proxy that is expected, given that what
    /// is `withheld` is not published.
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
