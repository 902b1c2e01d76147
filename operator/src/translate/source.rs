//! Secrets and ConfigMaps as sources of certificates: which of them are used and by whom, because only those are
//! read.

use std::collections::BTreeMap;

use vestibule_model::key::{Kind, ListenerKey, ObjectKey, ObjectName};

use super::{Dirty, Output, Translator, set_user};

/// A user of a Secret or a ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum User {
    /// A listener, for its own certificates.
    Listener(ListenerKey),
    /// A Gateway, for what `spec.tls` says.
    Gateway(ObjectName),
    /// A BackendTLSPolicy in use.
    Policy(ObjectName),
}

impl Translator {
    /// The message about a Secret or `ConfigMap` that is used and that translation does not have, and what to do.
    pub(super) fn absent(
        &self,
        kind: Kind,
        name: &ObjectName,
        create: &'static str,
    ) -> (String, &'static str) {
        let readable = self.secret_namespaces.as_ref();
        if kind == Kind::Secret && readable.is_some_and(|all| !all.contains(&name.namespace)) {
            let message = format!(
                "Secret {name} is out of reach: Vestibule may not read Secrets in namespace {}",
                name.namespace
            );
            let action = "ask the platform admin to add the namespace to secrets.namespaces of Vestibule's chart";
            return (message, action);
        }
        (format!("{kind} {name} does not exist"), create)
    }

    /// Records whether `user` uses a Secret or ConfigMap. Reports it if it got its first user, or lost its last.
    pub(super) fn set_source_user(
        &mut self,
        source: &ObjectKey,
        user: &User,
        there: bool,
        output: &mut Output,
    ) {
        let was = self.source_users.contains_key(source);
        set_user(&mut self.source_users, source, user, there);
        if self.source_users.contains_key(source) != was {
            // A source that is given up and used again within one pass has not changed.
            let news = output.sources.remove(source).is_none();
            if news {
                output.sources.insert(source.clone(), !was);
            }
        }
    }

    /// Replaces the Secrets and ConfigMaps that `user` uses. Each list has to contain all of them, for every purpose:
    /// a source that is no longer used for one purpose may still be used for another.
    pub(super) fn settle_sources(
        &mut self,
        user: &User,
        before: &[ObjectKey],
        after: &[ObjectKey],
        output: &mut Output,
    ) {
        for (source, there) in changed(before, after) {
            self.set_source_user(source, user, there, output);
        }
    }

    /// Replaces the sources that `user` uses as trust bundles on the proxies.
    pub(super) fn settle_bundles(
        &mut self,
        user: &User,
        before: &[ObjectKey],
        after: &[ObjectKey],
        dirty: &mut Dirty,
    ) {
        for (source, there) in changed(before, after) {
            set_user(&mut self.bundle_users, source, user, there);
            dirty.bundles.insert(source.clone());
        }
    }

    /// Marks the users of a Secret or ConfigMap that changed.
    pub(super) fn mark_source(&mut self, source: &ObjectKey, dirty: &mut Dirty) {
        self.bundles.remove(source);
        for user in self.source_users.get(source).into_iter().flatten() {
            match user {
                User::Listener(listener) => {
                    dirty.listeners.insert(listener.clone());
                }
                User::Gateway(gateway) => {
                    dirty.tls.insert(gateway.clone());
                }
                User::Policy(policy) => {
                    dirty.policies.insert(policy.clone());
                }
            }
        }
        if self.bundle_users.contains_key(source) {
            dirty.bundles.insert(source.clone());
        }
    }
}

/// What is in only one of the lists, and whether it is in the later one.
fn changed<'a>(before: &'a [ObjectKey], after: &'a [ObjectKey]) -> BTreeMap<&'a ObjectKey, bool> {
    let gone = before.iter().filter(|source| !after.contains(source));
    let new = after.iter().filter(|source| !before.contains(source));
    let gone = gone.map(|source| (source, false));
    gone.chain(new.map(|source| (source, true))).collect()
}
