//! Owns the list of tenants whose tunnels or HTTPS connections a change of the configuration may end, from the change to
//! the workers.
//!
//! Only a change that takes something away concerns a tenant, or one of client validation, and only the tenant that has
//! the route or the listener. So whoever edits all the time cannot make a worker look at the tunnels of others.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::quota::TenantQuota;

/// A tenant in four bytes, because every tunnel and every shared connection to a backend has one. It comes from the
/// address of the quota, of which a tenant has one as long as it is in use. If two tenants get the same number, their
/// tunnels are looked at together and they share connections, which does no harm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TenantKey(u32);

impl TenantKey {
    pub(crate) fn of(account: &Arc<TenantQuota>) -> Self {
        // The last three bits of the address are zero.
        let address = Arc::as_ptr(account).addr() >> 3 & 0xffff_ffff;
        Self(u32::try_from(address).unwrap_or(u32::MAX))
    }

    /// The same for the HTTPS connections to the listeners of a tenant. It is another key, because changes of routes concern
    /// tunnels alone, and all tenants' HTTPS connections to a Gateway's own listener have the key of its namespace.
    pub(crate) fn of_https(account: &Arc<TenantQuota>) -> Self {
        Self(Self::of(account).0 ^ 1 << 31)
    }
}

/// The tenants of one worker that wait to be looked at.
type Waiting = Mutex<BTreeSet<TenantKey>>;

/// Passes tenants from changes of the configuration to all workers. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Concerned(Arc<Shared>);

#[derive(Default)]
struct Shared {
    workers: Mutex<Vec<Weak<Waiting>>>,
    changed: watch::Sender<()>,
}

impl fmt::Debug for Concerned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Concerned").finish_non_exhaustive()
    }
}

impl Concerned {
    /// Has every worker look at the tunnels and HTTPS connections of these tenants. Call it after the change is in force.
    pub(crate) fn tell(&self, tenants: &BTreeSet<TenantKey>) {
        if tenants.is_empty() {
            return;
        }
        self.0.workers.lock().retain(|worker| {
            let Some(waiting) = worker.upgrade() else {
                return false;
            };
            waiting.lock().extend(tenants);
            true
        });
        self.0.changed.send_replace(());
    }

    /// An inbox for one worker, with the tenants that it has to look at from now on.
    pub(crate) fn subscribe(&self) -> Inbox {
        let waiting = Arc::default();
        self.0.workers.lock().push(Arc::downgrade(&waiting));
        Inbox {
            waiting,
            changed: self.0.changed.subscribe(),
        }
    }
}

/// The tenants that one worker has to look at. It holds each tenant once, however often changes concern it.
pub(crate) struct Inbox {
    waiting: Arc<Waiting>,
    changed: watch::Receiver<()>,
}

impl Inbox {
    /// Waits until there are tenants, and takes them out. They are sorted. It is `None` if none can come any more.
    pub(crate) async fn next(&mut self) -> Option<Vec<TenantKey>> {
        loop {
            let taken = std::mem::take(&mut *self.waiting.lock());
            if !taken.is_empty() {
                return Some(taken.into_iter().collect());
            }
            self.changed.changed().await.ok()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::TenantQuotas;

    #[tokio::test]
    async fn each_worker_gets_each_tenant_once_however_often_it_is_told() {
        let accounts = TenantQuotas::default();
        let all = ["team-a", "team-b"].map(|name| accounts.of(&name.into()));
        let [a, b] = all.each_ref().map(TenantKey::of);
        let concerned = Concerned::default();
        let mut inboxes = [concerned.subscribe(), concerned.subscribe()];
        for _ in 0..100 {
            concerned.tell(&[a].into());
            concerned.tell(&[b].into());
        }
        let expected: Vec<_> = BTreeSet::from([a, b]).into_iter().collect();
        for inbox in &mut inboxes {
            assert_eq!(inbox.next().await, Some(expected.clone()));
            assert!(inbox.waiting.lock().is_empty());
        }
        let [gone, _] = inboxes;
        drop(gone);
        concerned.tell(&[a].into());
        assert_eq!(concerned.0.workers.lock().len(), 1);
    }
}
