//! A channel for a map that one task changes and others follow, by name of an object. It is like
//! [`tokio::sync::watch`], but a follower learns which entries have changed. So a change costs the same however many
//! entries there are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use vestibule_model::key::ObjectName;

/// Changed entries. `None` means that the entry was removed.
pub type MapChanges<V> = BTreeMap<ObjectName, Option<V>>;

/// Returns an empty map. Followers do not know it before it is published.
#[must_use]
pub fn map_channel<V>() -> (MapSender<V>, MapView<V>) {
    let state = Arc::new(Mutex::new(State {
        entries: BTreeMap::new(),
        is_known: false,
        followers: BTreeMap::new(),
        next: 0,
    }));
    let (changed, receiver) = watch::channel(());
    let view = MapView {
        state: Arc::clone(&state),
        changed: receiver,
    };
    let sender = MapSender {
        state,
        unpublished: BTreeSet::new(),
        changed,
    };
    (sender, view)
}

#[derive(Debug)]
struct State<V> {
    entries: BTreeMap<ObjectName, V>,
    is_known: bool,
    /// The published entries that each follower has not taken yet.
    followers: BTreeMap<u64, BTreeSet<ObjectName>>,
    /// The number of the next follower.
    next: u64,
}

/// The end that changes the map.
#[derive(Debug)]
pub struct MapSender<V> {
    state: Arc<Mutex<State<V>>>,
    /// The entries that have changed since the map was published last.
    unpublished: BTreeSet<ObjectName>,
    changed: watch::Sender<()>,
}

impl<V: Clone> MapSender<V> {
    /// Sets an entry; `None` removes it. Followers learn of it when [`Self::publish`] is called.
    pub fn set(&mut self, name: ObjectName, value: Option<V>) {
        let mut state = self.state.lock();
        match value {
            Some(value) => _ = state.entries.insert(name.clone(), value),
            None => _ = state.entries.remove(&name),
        }
        drop(state);
        self.unpublished.insert(name);
    }

    /// Returns an entry.
    #[must_use]
    pub fn get(&self, name: &ObjectName) -> Option<V> {
        self.state.lock().entries.get(name).cloned()
    }

    /// Whether there is an entry.
    #[must_use]
    pub fn contains(&self, name: &ObjectName) -> bool {
        self.state.lock().entries.contains_key(name)
    }

    /// Tells the followers what has changed. The map is known from now on, even if it is empty.
    pub fn publish(&mut self) {
        let mut state = self.state.lock();
        if state.is_known && self.unpublished.is_empty() {
            return;
        }
        state.is_known = true;
        let changed = std::mem::take(&mut self.unpublished);
        for missed in state.followers.values_mut() {
            missed.extend(changed.iter().cloned());
        }
        drop(state);
        self.changed.send_replace(());
    }

    /// Whether the map was published.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.state.lock().is_known
    }
}

/// The other end, for looking at entries and for following the map.
#[derive(Debug, Clone)]
pub struct MapView<V> {
    state: Arc<Mutex<State<V>>>,
    changed: watch::Receiver<()>,
}

impl<V: Clone> MapView<V> {
    /// Returns an entry.
    #[must_use]
    pub fn get(&self, name: &ObjectName) -> Option<V> {
        self.state.lock().entries.get(name).cloned()
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.state.lock().entries.len()
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until the map is known. Returns `false` if its sender is gone and it will never be.
    pub async fn known(&mut self) -> bool {
        let state = Arc::clone(&self.state);
        let known = self.changed.wait_for(|()| state.lock().is_known);
        known.await.is_ok()
    }

    /// Returns a follower. It has not seen any entry yet.
    #[must_use]
    pub fn follow(&self) -> MapFollower<V> {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        let all = state.entries.keys().cloned().collect();
        state.followers.insert(number, all);
        drop(state);
        let mut changed = self.changed.clone();
        changed.mark_changed();
        MapFollower {
            state: Arc::clone(&self.state),
            changed,
            number,
        }
    }
}

/// Learns which entries of a map have changed.
#[derive(Debug)]
pub struct MapFollower<V> {
    state: Arc<Mutex<State<V>>>,
    changed: watch::Receiver<()>,
    number: u64,
}

impl<V: Clone> MapFollower<V> {
    /// Waits until [`Self::take`] may have something.
    ///
    /// # Errors
    /// If the sender is gone.
    pub async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        self.changed.changed().await
    }

    /// Removes and returns the changes that this follower has not seen. `None` until the map is known.
    pub fn take(&mut self) -> Option<MapChanges<V>> {
        self.changed.mark_unchanged();
        let mut state = self.state.lock();
        if !state.is_known {
            return None;
        }
        let missed = state.followers.get_mut(&self.number).map(std::mem::take);
        let names = missed.unwrap_or_default().into_iter();
        let entry = |name: ObjectName| {
            let value = state.entries.get(&name).cloned();
            (name, value)
        };
        Some(names.map(entry).collect())
    }
}

impl<V> Drop for MapFollower<V> {
    fn drop(&mut self) {
        self.state.lock().followers.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> ObjectName {
        ObjectName::new("a", name)
    }

    #[test]
    fn a_follower_learns_what_changed_since_it_looked() {
        let (mut sender, view) = map_channel();
        let mut early = view.follow();
        sender.set(name("one"), Some(1));
        assert_eq!(early.take(), None, "nothing was published");
        sender.publish();
        assert_eq!(early.take(), Some([(name("one"), Some(1))].into()));
        assert_eq!(early.take(), Some(MapChanges::new()));
        sender.set(name("two"), Some(2));
        sender.set(name("one"), None);
        assert_eq!(early.take(), Some(MapChanges::new()));
        sender.publish();
        sender.set(name("three"), Some(3));
        sender.publish();
        let changes = [
            (name("one"), None),
            (name("three"), Some(3)),
            (name("two"), Some(2)),
        ];
        assert_eq!(early.take(), Some(changes.into()));
        // Whoever begins late has everything to learn, and nothing of what is gone.
        let late = view.follow().take().unwrap();
        let entries = [(name("three"), Some(3)), (name("two"), Some(2))];
        assert_eq!(late, entries.into());
        assert_eq!(view.get(&name("two")), Some(2));
        assert_eq!(view.len(), 2);
    }

    #[test]
    fn a_change_costs_followers_only_what_changed() {
        let (mut sender, view) = map_channel();
        for index in 0..1000 {
            sender.set(name(&index.to_string()), Some(index));
        }
        sender.publish();
        let mut follower = view.follow();
        assert_eq!(follower.take().unwrap().len(), 1000);
        sender.set(name("7"), Some(0));
        sender.publish();
        assert_eq!(follower.take().unwrap().len(), 1);
        // Nothing is kept for those that no longer follow.
        drop(follower);
        assert!(view.state.lock().followers.is_empty());
    }

    #[tokio::test]
    async fn a_map_can_be_awaited() {
        let (mut sender, mut view) = map_channel::<u8>();
        let mut follower = view.follow();
        follower.changed().await.unwrap();
        assert_eq!(follower.take(), None);
        let waits = tokio::spawn(async move {
            let known = view.known().await;
            follower.changed().await.unwrap();
            (known, follower.take(), view)
        });
        sender.publish();
        let (known, taken, mut view) = waits.await.unwrap();
        assert!(known);
        assert_eq!(taken, Some(MapChanges::new()), "it is known to be empty");
        let mut follower = view.follow();
        assert_eq!(follower.take(), Some(MapChanges::new()));
        drop(sender);
        assert!(follower.changed().await.is_err());
        assert!(view.known().await, "what is known stays known");
    }
}
