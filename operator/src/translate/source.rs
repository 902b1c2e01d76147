//! Secrets and ConfigMaps as sources of certificates: who uses which, since only those are read.

use std::collections::BTreeMap;

use vestibule_model::key::{Kind, ListenerKey, ObjectKey, ObjectName};

use super::{Dirty, Output, Translator, set_user};

/// Who uses a Secret or a ConfigMap.
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
    /// What to say of a Secret or `ConfigMap` that is used and of which nothing is known, and what to do.
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

    /// Says whether `user` uses a Secret or ConfigMap. Those that have become used, or are no longer,
    /// are news.
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
            // Given up and taken again within one pass is no news.
            let news = output.sources.remove(source).is_none();
            if news {
                output.sources.insert(source.clone(), !was);
            }
        }
    }

    /// Takes for what else `user` uses Secrets and ConfigMaps than before. Each list is of all that it uses, whatever
    /// for: what it uses in one way, it may go on using in another.
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

    /// Takes what `user` uses as bundles that proxies get, from `before` on to `after`.
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

    /// A Secret or ConfigMap is another one: whoever uses it is judged again.
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

/// What is in one list alone, and whether that is the later one.
fn changed<'a>(before: &'a [ObjectKey], after: &'a [ObjectKey]) -> BTreeMap<&'a ObjectKey, bool> {
    let gone = before.iter().filter(|source| !after.contains(source));
    let new = after.iter().filter(|source| !before.contains(source));
    let gone = gone.map(|source| (source, false));
    gone.chain(new.map(|source| (source, true))).collect()
}
