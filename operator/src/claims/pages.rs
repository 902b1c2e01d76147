//! The objects of the book: which names are to stand where, which object has room, and what is to be written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use sha2::Digest as _;
use vestibule_model::claim::{ClaimEntry, ClaimKey};
use vestibule_model::key::ObjectName;

use super::SLAB;
use super::slab::{Content, Outcome, Seen, Slab, Trouble, Write};
use super::turns::Turns;

/// Longest part of a Gateway's name in the name of an object: the rest is a namespace and a number.
const MOST_OF_A_NAME: usize = 160;

/// Whose objects these are: a Gateway and the namespace of a tenant.
pub(super) type Tenant = (ObjectName, Arc<str>);

/// See the module above.
#[derive(Debug, Default)]
pub(super) struct Pages {
    slabs: BTreeMap<ObjectName, Slab>,
    /// Those with room.
    open: BTreeMap<Tenant, BTreeSet<ObjectName>>,
    /// The number that the next object of a tenant gets.
    next: BTreeMap<Tenant, usize>,
    turns: Turns,
    /// From when on a look ends doubts about creates.
    doubts: BTreeSet<(Instant, ObjectName)>,
    /// Which UID a Gateway had when something of it was to be written last; none: it was not ours.
    uids: BTreeMap<ObjectName, Option<Arc<str>>>,
    /// Objects that say what no operator writes.
    spoilt: BTreeSet<ObjectName>,
    /// What keeps objects of tenants from being written.
    troubles: BTreeMap<Tenant, BTreeMap<ObjectName, Trouble>>,
    /// Tenants to whom something else is in the way than before.
    troubled: BTreeSet<Tenant>,
    present: usize,
}

/// What an object's appearance comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sight {
    /// It is older than what is known.
    Old,
    /// It counts as it is.
    Sound,
    /// What it says counts for nothing, or not in full.
    Spoilt,
}

impl Pages {
    /// Takes what is known of an object.
    pub(super) fn observe(&mut self, name: &ObjectName, seen: Option<Seen>) -> Sight {
        let sight = match &seen {
            Some((claim, _)) if fits(name, &claim.gateway, &claim.namespace) => Sight::Sound,
            Some(_) => Sight::Spoilt,
            None => Sight::Sound,
        };
        if let Some((claim, _)) = &seen {
            let (gateway, namespace) = match sight {
                Sight::Spoilt => tenant_of(name),
                _ => None,
            }
            .unwrap_or_else(|| (claim.gateway(), claim.namespace.clone()));
            self.ensure(name, &gateway, &namespace);
        }
        let Some(slab) = self.slabs.get_mut(name) else {
            return Sight::Old;
        };
        let was = slab.seen.is_some();
        let spoilt = sight == Sight::Spoilt
            || seen
                .as_ref()
                .is_some_and(|(claim, _)| !claim.findings.is_empty());
        let news = slab.observe(seen);
        let is = slab.seen.is_some();
        self.present = self.present + usize::from(is) - usize::from(was);
        if !news {
            return Sight::Old;
        }
        if spoilt {
            self.spoilt.insert(name.clone());
        } else {
            self.spoilt.remove(name);
        }
        sight
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

    /// Whether what is in an object may change by a write that was begun.
    pub(super) fn is_open(&self, name: &ObjectName) -> bool {
        self.slabs.get(name).is_some_and(Slab::is_open)
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

    /// Every object that is there.
    pub(super) fn there(&self) -> impl Iterator<Item = &ObjectName> {
        let there = self.slabs.iter().filter(|(_, slab)| slab.seen.is_some());
        there.map(|(name, _)| name)
    }

    /// Something about an object may have to be written.
    pub(super) fn touch(&mut self, name: &ObjectName, now: Instant) {
        if let Some(slab) = self.slabs.get(name) {
            let at = now + slab.pause();
            self.set_due(name, at);
        }
    }

    fn set_due(&mut self, name: &ObjectName, at: Instant) {
        let Some(slab) = self.slabs.get_mut(name) else {
            return;
        };
        if slab.in_flight || slab.due.is_some_and(|due| due <= at) {
            return;
        }
        if let Some(due) = slab.due.replace(at) {
            self.turns.remove(due, &slab.namespace, name);
        }
        self.turns.insert(at, &slab.namespace, name);
    }

    /// Nothing is to be written; what is being written may come to its end.
    pub(super) fn rest(&mut self) {
        self.turns.clear();
        for slab in self.slabs.values_mut() {
            slab.due = None;
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.turns.deadline()
    }

    /// When a look would end a doubt about a create.
    pub(super) fn doubt_until(&self) -> Option<Instant> {
        self.doubts.first().map(|(until, _)| *until)
    }

    /// Everything was looked at at this time: ends a doubt about a create. Returns the object.
    pub(super) fn end_doubt(&mut self, now: Instant) -> Option<ObjectName> {
        while self.doubts.first().is_some_and(|(until, _)| *until <= now) {
            let (_, name) = self.doubts.pop_first()?;
            // One that is being written comes again when that has ended.
            let slab = self.slabs.get_mut(&name);
            if slab.is_some_and(|slab| slab.end_doubt(now)) {
                return Some(name);
            }
        }
        None
    }

    /// How many objects there are.
    pub(super) fn present(&self) -> usize {
        self.present
    }

    /// How many of them say what no operator writes.
    pub(super) fn spoilt(&self) -> usize {
        self.spoilt.len()
    }

    /// The Gateways of which there is an object.
    pub(super) fn claimed(&self) -> BTreeSet<ObjectName> {
        let there = self.slabs.values().filter(|slab| slab.seen.is_some());
        there.map(|slab| slab.gateway.clone()).collect()
    }

    /// Gateways may be others than before: what belongs to one that has another UID, or is ours again, is
    /// looked at.
    pub(super) fn look_at_gateways(
        &mut self,
        now: Instant,
        uid: impl Fn(&ObjectName) -> Option<Arc<str>>,
    ) {
        let changed = self.uids.iter().filter(|(name, old)| uid(name) != **old);
        let changed: BTreeSet<ObjectName> = changed.map(|(name, _)| name.clone()).collect();
        if changed.is_empty() {
            return;
        }
        let pages = self.slabs.iter();
        let pages = pages.filter(|(_, slab)| changed.contains(&slab.gateway));
        let pages: Vec<ObjectName> = pages.map(|(name, _)| name.clone()).collect();
        let there: BTreeSet<&ObjectName> = self.slabs.values().map(|slab| &slab.gateway).collect();
        self.uids
            .retain(|name, _| there.contains(name) && !changed.contains(name));
        for page in pages {
            self.touch(&page, now);
        }
    }

    /// The next write that is due.
    pub(super) fn next_write(
        &mut self,
        now: Instant,
        uid: impl Fn(&ObjectName) -> Option<Arc<str>>,
        since: impl Fn(&ClaimKey) -> i64,
    ) -> Option<Write> {
        while let Some(name) = self.turns.next(now) {
            let Some(slab) = self.slabs.get_mut(&name) else {
                continue;
            };
            slab.due = None;
            let known = uid(&slab.gateway);
            self.uids.insert(slab.gateway.clone(), known.clone());
            // Of a Gateway that is gone, or is not ours, the API server or somebody else takes care.
            let Some(uid) = known else {
                self.sweep(&name);
                continue;
            };
            let keep_until = slab.keep_until(now);
            let doubtful = slab.is_doubtful();
            let content = content(slab, uid, &since);
            // Empty, it stands in the way of a write that would make it.
            let stands_in = keep_until.is_some() || doubtful && slab.seen.is_none();
            let content = (stands_in || !content.entries.is_empty()).then_some(content);
            if !doubtful && slab.is_right(content.as_ref()) {
                if let Some(until) = keep_until {
                    self.set_due(&name, until);
                }
                self.sweep(&name);
                continue;
            }
            self.turns.begun(&slab.namespace);
            return Some(Write {
                version: slab.begin(),
                name,
                content,
                fence: doubtful,
            });
        }
        None
    }

    /// A write has ended. Says whether what it made is the latest that is known of the object.
    pub(super) fn done(&mut self, name: &ObjectName, outcome: &Outcome, now: Instant) -> bool {
        let Some(slab) = self.slabs.get_mut(name) else {
            return false;
        };
        if slab.in_flight {
            self.turns.ended(&slab.namespace);
        }
        let latest = slab.end(outcome, now);
        if let Some(until) = slab.doubt_until() {
            self.doubts.insert((until, name.clone()));
        }
        let trouble = slab.trouble(outcome);
        let tenant = (slab.gateway.clone(), slab.namespace.clone());
        self.note_trouble(name, tenant, trouble);
        latest
    }

    /// What keeps objects of a tenant from being written.
    pub(super) fn trouble(&self, tenant: &Tenant) -> Option<Trouble> {
        self.troubles.get(tenant)?.values().next().copied()
    }

    /// The tenants for whom [`Self::trouble`] is another one than when this was asked last.
    pub(super) fn take_troubled(&mut self) -> BTreeSet<Tenant> {
        std::mem::take(&mut self.troubled)
    }

    fn note_trouble(&mut self, name: &ObjectName, tenant: Tenant, trouble: Option<Trouble>) {
        let before = self.trouble(&tenant);
        if let Some(trouble) = trouble {
            let troubles = self.troubles.entry(tenant.clone()).or_default();
            troubles.insert(name.clone(), trouble);
        } else if let Some(troubles) = self.troubles.get_mut(&tenant) {
            troubles.remove(name);
            if troubles.is_empty() {
                self.troubles.remove(&tenant);
            }
        }
        if self.trouble(&tenant) != before {
            self.troubled.insert(tenant);
        }
    }

    /// Forgets an object that is gone and has no names.
    pub(super) fn sweep(&mut self, name: &ObjectName) {
        let Some(slab) = self.slabs.get(name).filter(|slab| slab.is_over()) else {
            return;
        };
        let tenant = (slab.gateway.clone(), slab.namespace.clone());
        self.note_trouble(name, tenant.clone(), None);
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
        // What stands under a name that is not ours to give goes.
        if slab.keys.len() < SLAB && fits(name, &slab.gateway.name, &slab.namespace) {
            open.insert(name.clone());
        } else {
            open.remove(name);
        }
        if open.is_empty() {
            self.open.remove(&tenant);
        }
    }
}

fn content(slab: &Slab, uid: Arc<str>, since: impl Fn(&ClaimKey) -> i64) -> Content {
    let entries = slab.keys.iter().map(|key| ClaimEntry {
        port: key.port,
        transport: key.transport,
        use_: key.use_,
        names: key.names.clone(),
        since: since(key),
    });
    Content {
        gateway: slab.gateway.name.clone(),
        gateway_uid: uid,
        namespace: slab.namespace.clone(),
        entries: entries.collect(),
    }
}

/// What the name of an object is made of: what stands for the Gateway, and the namespace of the tenant.
fn parts(name: &ObjectName) -> Option<(&str, &str)> {
    let (rest, number) = name.name.rsplit_once('.')?;
    let (gateway, namespace) = rest.rsplit_once('.')?;
    let numbered = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    (numbered && !gateway.is_empty() && !namespace.is_empty()).then_some((gateway, namespace))
}

/// Whether an object's name is one for what it is about: others are made by hand, or were changed.
fn fits(name: &ObjectName, gateway: &str, namespace: &str) -> bool {
    parts(name) == Some((&shortened(gateway), namespace))
}

/// Whose an object is by its name.
fn tenant_of(name: &ObjectName) -> Option<Tenant> {
    let (gateway, namespace) = parts(name)?;
    let gateway = ObjectName::new(name.namespace.clone(), gateway);
    Some((gateway, namespace.into()))
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
