//! Secrets and ConfigMaps as sources of certificates: which of them are used and by whom, because only those are
//! read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::key::{Kind, ListenerKey, ObjectKey, ObjectName};

use vestibule_stream::{ResourceKey, ResourceKind};

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

impl User {
    fn namespace(&self) -> &Arc<str> {
        match self {
            Self::Listener(listener) => &listener.parent.name().namespace,
            Self::Gateway(name) | Self::Policy(name) => &name.namespace,
        }
    }
}

/// The finding about a reference to a Secret or `ConfigMap` that was not read yet. Nothing is known about it, so the
/// finding refuses nothing. It is the only finding whose reason is [`Reason::Pending`].
pub(super) fn unread(kind: Kind, name: &ObjectName, field: &str) -> Finding {
    let message = format!("{kind} {name} is being read");
    Finding::warning(Reason::Pending, field, message, "wait")
}

/// The finding that says best why none of several sources can be used: as long as one is being read, the one about that.
pub(super) fn problem(findings: &[Finding]) -> Option<&Finding> {
    let unread = findings.iter().find(|finding| is_unread(finding));
    unread.or(findings.first())
}

/// The finding that a source cannot be used, and that it is `over` what its namespace may bring, if it is. Its owner has to
/// know both: as long as it is over, the proxies keep no former version of it.
pub(super) fn also_over(mut finding: Finding, over: Option<Finding>) -> Finding {
    if let Some(over) = over {
        finding.message = format!(
            "{}, and proxies keep no former version: {}",
            finding.message, over.message
        );
        finding.action = format!("{}; also, {}", finding.action, over.action);
    }
    finding
}

/// Whether a finding says that a source is being read.
pub(super) fn is_unread(finding: &Finding) -> bool {
    finding.reason == Reason::Pending
}

/// The Secret or `ConfigMap` behind a certificate or trust bundle.
#[must_use]
pub fn source_of(resource: &ResourceKey) -> Option<ObjectKey> {
    let (kind, name) = match resource.kind() {
        ResourceKind::Certificate => (Kind::Secret, &*resource.name),
        ResourceKind::TrustBundle => match resource.name.split_once('/')? {
            ("Secret", name) => (Kind::Secret, name),
            (_, name) => (Kind::ConfigMap, name),
        },
        _ => return None,
    };
    let (namespace, name) = name.split_once('/')?;
    Some(ObjectKey::new(kind, namespace, name))
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

    /// Whether nobody has said yet what a Secret or `ConfigMap` is. One that may not be read is not unread, because it
    /// is never read.
    pub(super) fn is_unread(&self, source: &ObjectKey) -> bool {
        let readable = self.secret_namespaces.as_ref();
        self.reads_sources
            && !self.objects.contains_key(source)
            && !self.absent_sources.contains(source)
            && (source.kind != Kind::Secret
                || readable.is_none_or(|all| all.contains(&source.name.namespace)))
    }

    /// Whether something uses a Secret or `ConfigMap` of which nobody has said yet what it is.
    #[must_use]
    pub fn waits_for(&self, source: &ObjectKey) -> bool {
        self.source_users.contains_key(source) && self.is_unread(source)
    }

    /// Whether the Secret or `ConfigMap` behind a certificate or trust bundle is being read.
    #[must_use]
    pub fn is_being_read(&self, resource: &ResourceKey) -> bool {
        source_of(resource).is_some_and(|source| self.waits_for(&source))
    }

    /// Whether the status of an object depends on a Secret or `ConfigMap` that is being read.
    #[must_use]
    pub fn is_undecided(&self, object: &ObjectKey) -> bool {
        let findings = self.findings.get(object);
        findings.is_some_and(|all| all.iter().any(is_unread))
    }

    /// The namespaces of the objects that use a Secret or `ConfigMap`.
    #[must_use]
    pub fn readers_of(&self, source: &ObjectKey) -> BTreeSet<Arc<str>> {
        let users = self.source_users.get(source).into_iter().flatten();
        users.map(|user| user.namespace().clone()).collect()
    }

    /// Takes that a source does not exist. Returns whether something waits for that.
    pub(super) fn take_absent(&mut self, source: &ObjectKey) -> bool {
        self.waits_for(source) && self.absent_sources.insert(source.clone())
    }

    /// Notes that an object came or went. If a source in use goes, it is known not to exist.
    pub(super) fn note_presence(&mut self, source: &ObjectKey, there: bool) {
        if there || !self.reads_sources {
            self.absent_sources.remove(source);
        } else if self.source_users.contains_key(source) {
            self.absent_sources.insert(source.clone());
        }
    }

    /// Forgets what is known about sources that nothing uses any more. When something uses one again, it is unread.
    pub(super) fn forget_sources(&mut self, output: &Output) {
        for (source, used) in &output.sources {
            if !used {
                self.absent_sources.remove(source);
                self.bundles.remove(source);
                if source.kind == Kind::Secret {
                    self.secrets.remove(&source.name);
                }
            }
        }
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
        if there && self.is_unread(source) {
            let reader = (user.namespace().clone(), source.clone());
            output.readers.insert(reader);
        }
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
        self.mark_source_users(source, dirty);
    }

    /// Marks what depends on whether a Secret or ConfigMap can be used.
    pub(super) fn mark_source_users(&self, source: &ObjectKey, dirty: &mut Dirty) {
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
