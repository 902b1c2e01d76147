//! The objects of the book: which names are to stand where, which object has room, and what is to be written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use sha2::Digest as _;
use vestibule_model::claim::{ClaimEntry, ClaimKey};
use vestibule_model::key::ObjectName;

use super::SLAB;
use super::slab::{Content, Seen, Slab, Write};

/// Longest part of a Gateway's name in the name of an object: the rest is a namespace and a number.
const MOST_OF_A_NAME: usize = 160;

/// Whose objects these are: a Gateway and the namespace of a tenant.
type Tenant = (ObjectName, Arc<str>);

/// See the module above.
#[derive(Debug, Default)]
pub(super) struct Pages {
    slabs: BTreeMap<ObjectName, Slab>,
    /// Those with room.
    open: BTreeMap<Tenant, BTreeSet<ObjectName>>,
    /// The number that the next object of a tenant gets.
    next: BTreeMap<Tenant, usize>,
    due: BTreeSet<(Instant, ObjectName)>,
    present: usize,
}

impl Pages {
    /// Takes what is known of an object. Says whether it is news.
    pub(super) fn observe(&mut self, name: &ObjectName, seen: Option<Seen>) -> bool {
        if let Some((claim, _)) = &seen {
            self.ensure(name, &claim.gateway(), &claim.namespace);
        }
        let Some(slab) = self.slabs.get_mut(name) else {
            return false;
        };
        let was = slab.seen.is_some();
        let news = slab.observe(seen);
        let is = slab.seen.is_some();
        self.present = self.present + usize::from(is) - usize::from(was);
        news
    }

    /// Puts a name into an object: into this one, or into one with room.
    pub(super) fn enter(
        &mut self,
        key: &ClaimKey,
        namespace: &Arc<str>,
        at: Option<&ObjectName>,
    ) -> ObjectName {
        let name = match at {
            Some(name) => name.clone(),
            None => self.room_for(key.gateway.clone(), namespace.clone()),
        };
        self.ensure(&name, &key.gateway, namespace);
        if let Some(slab) = self.slabs.get_mut(&name) {
            slab.keys.insert(key.clone());
        }
        self.note_room(&name);
        name
    }

    /// Takes a name out of its object.
    pub(super) fn leave(&mut self, key: &ClaimKey, name: &ObjectName) {
        if let Some(slab) = self.slabs.get_mut(name) {
            slab.keys.remove(key);
        }
        self.note_room(name);
    }

    pub(super) fn is_in_flight(&self, name: &ObjectName) -> bool {
        self.slabs.get(name).is_some_and(|slab| slab.in_flight)
    }

    /// The names that are to stand in an object.
    pub(super) fn keys(&self, name: &ObjectName) -> BTreeSet<ClaimKey> {
        let slab = self.slabs.get(name);
        slab.map(|slab| slab.keys.clone()).unwrap_or_default()
    }

    /// Every object that is there or is to be.
    pub(super) fn names(&self) -> Vec<ObjectName> {
        self.slabs.keys().cloned().collect()
    }

    /// Something about an object may have to be written.
    pub(super) fn touch(&mut self, name: &ObjectName, now: Instant) {
        if let Some(slab) = self.slabs.get_mut(name)
            && !slab.in_flight
            && slab.due.is_none()
        {
            let at = now + slab.pause();
            slab.due = Some(at);
            self.due.insert((at, name.clone()));
        }
    }

    /// Nothing is to be written.
    pub(super) fn rest(&mut self) {
        self.due.clear();
        for slab in self.slabs.values_mut() {
            slab.due = None;
            slab.in_flight = false;
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// How many objects there are.
    pub(super) fn present(&self) -> usize {
        self.present
    }

    /// The next write that is due.
    pub(super) fn next_write(
        &mut self,
        now: Instant,
        uid: impl Fn(&ObjectName) -> Option<Arc<str>>,
        since: impl Fn(&ClaimKey) -> i64,
    ) -> Option<Write> {
        while let Some((at, name)) = self.due.first().cloned()
            && at <= now
        {
            self.due.remove(&(at, name.clone()));
            let Some(slab) = self.slabs.get_mut(&name) else {
                continue;
            };
            slab.due = None;
            // Of a Gateway that is gone, or is not ours, the API server or somebody else takes care.
            let Some(uid) = uid(&slab.gateway) else {
                continue;
            };
            let content = content(slab, uid, &since);
            if slab.is_right(content.as_ref()) {
                self.sweep(&name);
                continue;
            }
            return Some(Write {
                version: slab.begin(),
                name,
                content,
            });
        }
        None
    }

    /// A write has ended. Says whether what it made is the latest that is known of the object.
    pub(super) fn done(&mut self, name: &ObjectName, failed: bool) -> bool {
        self.slabs
            .get_mut(name)
            .is_some_and(|slab| slab.end(failed))
    }

    /// Forgets an object that is gone and has no names.
    pub(super) fn sweep(&mut self, name: &ObjectName) {
        let Some(slab) = self.slabs.get(name) else {
            return;
        };
        if slab.seen.is_some() || slab.in_flight || !slab.keys.is_empty() || slab.due.is_some() {
            return;
        }
        let tenant = (slab.gateway.clone(), slab.namespace.clone());
        self.slabs.remove(name);
        if let Some(open) = self.open.get_mut(&tenant) {
            open.remove(name);
            if open.is_empty() {
                self.open.remove(&tenant);
                self.next.remove(&tenant);
            }
        }
    }

    fn ensure(&mut self, name: &ObjectName, gateway: &ObjectName, namespace: &Arc<str>) {
        if !self.slabs.contains_key(name) {
            let slab = Slab::new(gateway.clone(), namespace.clone());
            self.slabs.insert(name.clone(), slab);
            self.note_room(name);
        }
    }

    /// An object of this tenant that takes one name more.
    fn room_for(&mut self, gateway: ObjectName, namespace: Arc<str>) -> ObjectName {
        let tenant = (gateway, namespace);
        if let Some(name) = self.open.get(&tenant).and_then(BTreeSet::first) {
            return name.clone();
        }
        let (gateway, namespace) = &tenant;
        let mut number = self.next.get(&tenant).copied().unwrap_or_default();
        let name = loop {
            let name = ObjectName::new(
                gateway.namespace.clone(),
                format!("{}.{namespace}.{number}", shortened(&gateway.name)),
            );
            number += 1;
            if !self.slabs.contains_key(&name) {
                break name;
            }
        };
        self.next.insert(tenant, number);
        name
    }

    fn note_room(&mut self, name: &ObjectName) {
        let Some(slab) = self.slabs.get(name) else {
            return;
        };
        let tenant = (slab.gateway.clone(), slab.namespace.clone());
        let open = self.open.entry(tenant.clone()).or_default();
        if slab.keys.len() < SLAB {
            open.insert(name.clone());
        } else {
            open.remove(name);
        }
        if open.is_empty() {
            self.open.remove(&tenant);
        }
    }
}

fn content(slab: &Slab, uid: Arc<str>, since: impl Fn(&ClaimKey) -> i64) -> Option<Content> {
    let entries: Vec<ClaimEntry> = slab
        .keys
        .iter()
        .map(|key| ClaimEntry {
            port: key.port,
            transport: key.transport,
            use_: key.use_,
            names: key.names.clone(),
            since: since(key),
        })
        .collect();
    (!entries.is_empty()).then(|| Content {
        gateway: slab.gateway.name.clone(),
        gateway_uid: uid,
        namespace: slab.namespace.clone(),
        entries,
    })
}

/// A Gateway's name, or as much of it as there is room for and a digest of the rest.
fn shortened(name: &str) -> String {
    match name.get(..MOST_OF_A_NAME) {
        None => name.to_owned(),
        Some(head) => {
            let digest = sha2::Sha256::digest(name.as_bytes());
            let digest = digest
                .iter()
                .take(8)
                .fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
            format!("{}-{digest}", head.trim_end_matches(['.', '-']))
        }
    }
}
