//! What follows from what the book is told: names come to be held, are known, and are let go of.

use std::sync::Arc;

use vestibule_model::claim::{ClaimKey, ClaimUse};
use vestibule_model::key::ObjectName;

use super::book::{Book, Held};
use crate::translate::Standing;

impl Book {
    pub(super) fn look_at_all(&mut self) {
        let keys: Vec<ClaimKey> = self.standings.keys().cloned().collect();
        for key in keys {
            self.look(&key);
        }
    }

    /// Brings a name in line with what objects say about it.
    pub(super) fn settle(&mut self, key: &ClaimKey) {
        let seen = self
            .holders
            .holder(key)
            .map(|(namespace, since)| (namespace.clone(), since));
        let Some(held) = self.held.get_mut(key) else {
            if let Some((namespace, since)) = seen {
                self.adopt(key, namespace, since);
            }
            return;
        };
        let stands = seen
            .as_ref()
            .is_some_and(|(namespace, _)| *namespace == held.namespace);
        let open = self.pages.is_open(&held.page);
        // Translation has nothing to say: the Gateway is gone, or is not ours.
        let unsaid = !self.standings.contains_key(key);
        if self.leads {
            // What this replica knows counts; objects that say otherwise are put right.
            if held.leaving && !stands {
                if !open {
                    self.drop_held(key);
                    match seen {
                        Some((namespace, since)) => self.adopt(key, namespace, since),
                        None => self.look(key),
                    }
                }
            } else if stands && !held.told && !(held.leaving && open) {
                held.told = true;
                self.news.insert(key.clone(), Some(held.namespace.clone()));
            } else if seen.is_none() && held.told && unsaid {
                self.let_go(key);
            }
            return;
        }
        match seen {
            Some((namespace, since)) if namespace != held.namespace || !held.told => {
                self.drop_held(key);
                self.adopt(key, namespace, since);
            }
            Some(_) => {}
            // What is served goes on: the leader writes it again.
            None if held.told && self.standings.get(key) == Some(&Standing::Kept) => {}
            None if held.told && unsaid => self.let_go(key),
            None => self.drop_held(key),
        }
    }

    /// Whatever was under way in an object has ended: what never came to stand there is out of it now, or is
    /// no longer wished for.
    pub(super) fn close(&mut self, page: &ObjectName) {
        if self.pages.is_open(page) {
            return;
        }
        for key in self.leaving.get(page).cloned().unwrap_or_default() {
            self.settle(&key);
        }
        for key in self.pages.keys(page) {
            if self.held.get(&key).is_some_and(|held| !held.told) {
                self.look(&key);
            }
        }
    }

    /// A name that stands in an object is known from there.
    fn adopt(&mut self, key: &ClaimKey, namespace: Arc<str>, since: i64) {
        let page = self.holders.place(key).cloned();
        self.enter(key, namespace, since, true, page.as_ref());
        self.look(key);
    }

    fn enter(
        &mut self,
        key: &ClaimKey,
        namespace: Arc<str>,
        since: i64,
        told: bool,
        page: Option<&ObjectName>,
    ) {
        let page = self.pages.enter(key, &namespace, page);
        if told {
            self.news.insert(key.clone(), Some(namespace.clone()));
        }
        if key.use_ != ClaimUse::TlsRoute {
            let spoken = self.spoken.entry(key.port_key()).or_default();
            *spoken.entry((key.use_, namespace.clone())).or_default() += 1;
        }
        self.barred.remove(key);
        self.touch(&page);
        if let Some(time) = self.time {
            self.graces.hold(key, &namespace, time.now);
        }
        let held = Held {
            namespace,
            since,
            page,
            told,
            leaving: false,
        };
        self.held.insert(key.clone(), held);
    }

    fn drop_held(&mut self, key: &ClaimKey) {
        let Some(held) = self.held.remove(key) else {
            return;
        };
        self.no_longer_leaving(key, &held.page);
        self.no_longer_assumed(key);
        self.pages.leave(key, &held.page);
        self.touch(&held.page);
        if let Some(time) = self.time {
            self.graces.forget(key, &held.namespace, time.now);
        }
        if held.told {
            self.news.insert(key.clone(), None);
        }
        if key.use_ == ClaimUse::TlsRoute {
            return;
        }
        let port = key.port_key();
        if let Some(spoken) = self.spoken.get_mut(&port) {
            let at = (key.use_, held.namespace);
            if let Some(count) = spoken.get_mut(&at) {
                *count -= 1;
                if *count == 0 {
                    spoken.remove(&at);
                }
            }
            if spoken.is_empty() {
                self.spoken.remove(&port);
            }
        }
        let barred = self.barred.range(ClaimKey::first_of(&port)..);
        let barred: Vec<ClaimKey> = barred
            .take_while(|other| other.port_key() == port)
            .cloned()
            .collect();
        for other in barred {
            self.look(&other);
        }
    }

    /// Does what follows from how it stands with a name.
    pub(super) fn look(&mut self, key: &ClaimKey) {
        if !self.begun {
            return;
        }
        let standing = self.standings.get(key).cloned();
        let Some(held) = self.held.get(key) else {
            match standing {
                Some(Standing::Wished(namespace)) => self.wish(key, namespace),
                _ => {
                    self.barred.remove(key);
                }
            }
            return;
        };
        if held.leaving {
            // Its removal has not begun, or was refused.
            if held.told && standing == Some(Standing::Kept) {
                self.take_back(key);
            }
            return;
        }
        match standing {
            Some(Standing::Wished(namespace)) if namespace == held.namespace => {}
            Some(Standing::Wished(_)) | None => {
                // Unless translation has not heard of it yet: nobody wishes for it any more. What is being
                // written comes to be held first.
                if !held.told {
                    if !self.pages.is_open(&held.page) {
                        self.drop_held(key);
                        self.look(key);
                    }
                } else if standing.is_none() && self.holders.holder(key).is_none() {
                    // Its Gateway is gone, and its object was taken along.
                    self.let_go(key);
                }
            }
            Some(Standing::Kept) => self.spare(key),
            Some(Standing::Left | Standing::Revoked) if !self.leads => {
                if self.holders.holder(key).is_none() {
                    self.drop_held(key);
                }
            }
            Some(Standing::Left) => self.let_go(key),
            Some(Standing::Revoked) => self.release(key),
        }
    }

    /// Its grace begins, if it has not begun. It may cost another name of the tenant the rest of its own.
    fn let_go(&mut self, key: &ClaimKey) {
        let (Some(time), Some(held)) = (self.time, self.held.get(key)) else {
            return;
        };
        let surplus = self.graces.begin(key, &held.namespace, time.now);
        if let Some(first) = surplus {
            self.release(&first);
        }
    }

    /// Its grace ends, or does not begin.
    fn spare(&mut self, key: &ClaimKey) {
        if let Some(time) = self.time {
            self.graces.end(key, time.now);
        }
    }

    /// Its holder is back before it was taken out of its object.
    fn take_back(&mut self, key: &ClaimKey) {
        let Some(held) = self.held.get_mut(key) else {
            return;
        };
        held.leaving = false;
        let (namespace, page) = (held.namespace.clone(), held.page.clone());
        self.no_longer_leaving(key, &page);
        // Others may have its room by now: there are never twice as many as there is room for.
        self.pages.enter(key, &namespace, Some(&page));
        self.touch(&page);
    }

    fn no_longer_leaving(&mut self, key: &ClaimKey, page: &ObjectName) {
        if let Some(leaving) = self.leaving.get_mut(page) {
            leaving.remove(key);
            if leaving.is_empty() {
                self.leaving.remove(page);
            }
        }
    }

    fn wish(&mut self, key: &ClaimKey, namespace: Arc<str>) {
        let served = self.beginning.as_ref();
        let served = served.is_some_and(|claimed| !claimed.contains(&key.gateway));
        if !self.leads && !served {
            return;
        }
        if self.is_barred(key, &namespace) {
            self.barred.insert(key.clone());
            return;
        }
        let since = self.time.map_or(0, |time| time.seconds);
        self.enter(key, namespace, since, served, None);
        if served && key.use_ == ClaimUse::Tls {
            let assumed = self.assumed.entry(key.port_key()).or_default();
            assumed.insert(&key.names, ());
        }
    }

    /// What two replicas take for held at the beginning can differ, if a listener and another namespace's route
    /// inside its names came to be then: of those it is the leader's objects that count.
    pub(super) fn check_assumed(&mut self, key: &ClaimKey) {
        let port = key.port_key();
        let Some((holder, _)) = self.holders.holder(key) else {
            return;
        };
        let Some(assumed) = self.assumed.get(&port).filter(|_| !self.leads) else {
            return;
        };
        match key.use_ {
            ClaimUse::Tls => self.no_longer_assumed(key),
            ClaimUse::TlsRoute => {
                let covering = assumed.covering(&key.names);
                let listeners =
                    covering.map(|(names, ())| ClaimKey::new(&port, ClaimUse::Tls, names));
                let others = |listener: &ClaimKey| {
                    let held = self.held.get(listener);
                    held.is_some_and(|held| held.namespace != *holder)
                };
                for listener in listeners.filter(others).collect::<Vec<_>>() {
                    self.drop_held(&listener);
                    self.look(&listener);
                }
            }
            ClaimUse::Http | ClaimUse::Raw => {}
        }
    }

    fn no_longer_assumed(&mut self, key: &ClaimKey) {
        let port = key.port_key();
        if let Some(assumed) = self
            .assumed
            .get_mut(&port)
            .filter(|_| key.use_ == ClaimUse::Tls)
        {
            assumed.remove(&key.names);
            if assumed.is_empty() {
                self.assumed.remove(&port);
            }
        }
    }

    /// Whether another namespace holds, or is about to hold, something on the port that speaks otherwise: of
    /// two wishes that met, the one that was taken first.
    fn is_barred(&self, key: &ClaimKey, namespace: &str) -> bool {
        key.use_ != ClaimUse::TlsRoute
            && self.spoken.get(&key.port_key()).is_some_and(|spoken| {
                spoken
                    .keys()
                    .any(|(use_, holder)| *use_ != key.use_ && **holder != *namespace)
            })
    }

    /// Takes a name out of its object; it is free when it no longer stands there.
    pub(super) fn release(&mut self, key: &ClaimKey) {
        self.spare(key);
        let Some(held) = self.held.get_mut(key) else {
            return;
        };
        let page = held.page.clone();
        if self.holders.holder(key).is_none() && !self.pages.is_open(&page) {
            // It never came to stand there, or no longer does.
            self.drop_held(key);
            self.look(key);
        } else if self.leads && !held.leaving {
            held.leaving = true;
            let leaving = self.leaving.entry(page.clone()).or_default();
            leaving.insert(key.clone());
            self.pages.leave(key, &page);
            self.touch(&page);
        }
    }

    pub(super) fn touch(&mut self, page: &ObjectName) {
        if let Some(time) = self.time.filter(|_| self.leads) {
            self.pages.touch(page, time.now);
        } else {
            self.pages.sweep(page);
        }
    }
}
