//! Who is next: in turn between namespaces, first come first served inside one.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use vestibule_model::key::ObjectName;

#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Namespaces that wait, the next one first.
    turn: VecDeque<Arc<str>>,
    waiting: BTreeMap<Arc<str>, VecDeque<ObjectName>>,
    length: usize,
}

impl Queue {
    pub(super) fn push(&mut self, secret: ObjectName) {
        let namespace = secret.namespace.clone();
        let waiting = self.waiting.entry(namespace.clone()).or_default();
        if waiting.is_empty() {
            self.turn.push_back(namespace);
        }
        waiting.push_back(secret);
        self.length += 1;
    }

    pub(super) fn remove(&mut self, secret: &ObjectName) {
        let Some(waiting) = self.waiting.get_mut(&secret.namespace) else {
            return;
        };
        let before = waiting.len();
        waiting.retain(|other| other != secret);
        self.length -= before - waiting.len();
        if waiting.is_empty() {
            self.waiting.remove(&secret.namespace);
            self.turn.retain(|other| *other != secret.namespace);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// Everybody that waits.
    pub(super) fn each(&self) -> impl Iterator<Item = &ObjectName> {
        self.waiting.values().flatten()
    }

    /// The first that may go: of the namespace whose turn it is, else of the next. Its namespace then has
    /// its next turn after all others.
    pub(super) fn next(
        &mut self,
        namespace_may: impl Fn(&str) -> bool,
        may: impl Fn(&ObjectName) -> bool,
    ) -> Option<ObjectName> {
        let (place, secret) = self
            .turn
            .iter()
            .enumerate()
            .find_map(|(place, namespace)| {
                if !namespace_may(namespace) {
                    return None;
                }
                let secret = self
                    .waiting
                    .get(namespace)?
                    .iter()
                    .find(|secret| may(secret))?;
                Some((place, secret.clone()))
            })?;
        if let Some(namespace) = self.turn.remove(place) {
            self.turn.push_back(namespace);
        }
        self.remove(&secret);
        Some(secret)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_take_turns() {
        let mut queue = Queue::default();
        for name in ["a/1", "a/2", "a/3", "b/1", "c/1", "c/2"] {
            let (namespace, name) = name.split_once('/').expect("two parts");
            queue.push(ObjectName::new(namespace, name));
        }
        let mut order = Vec::new();
        while let Some(next) = queue.next(|namespace| namespace != "c" || order.len() > 3, |_| true)
        {
            order.push(next.to_string());
        }
        assert_eq!(order, ["a/1", "b/1", "a/2", "a/3", "c/1", "c/2"]);
        assert_eq!(queue.len(), 0);
        queue.remove(&ObjectName::new("a", "1"));
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn one_that_may_not_go_lets_the_next_go() {
        let mut queue = Queue::default();
        queue.push(ObjectName::new("a", "1"));
        queue.push(ObjectName::new("a", "2"));
        let next = queue.next(|_| true, |secret| &*secret.name != "1");
        assert_eq!(next, Some(ObjectName::new("a", "2")));
        assert_eq!(queue.len(), 1);
    }
}
