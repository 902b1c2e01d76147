//! Owns the order of turns. The namespace with the fewest slots is next, and namespaces with equally many take turns.
//! Inside a namespace the lane decides, and then who came first.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use vestibule_model::key::ObjectName;

use super::lane::Lane;

#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Namespaces with waiting certificates, the next one first.
    turn: VecDeque<Arc<str>>,
    /// Waiting certificates of each lane, by namespace.
    waiting: BTreeMap<Arc<str>, [VecDeque<ObjectName>; Lane::ALL.len()]>,
    length: usize,
}

impl Queue {
    pub(super) fn push(&mut self, lane: Lane, secret: ObjectName) {
        let namespace = secret.namespace.clone();
        let lanes = self.waiting.entry(namespace.clone()).or_default();
        if lanes.iter().all(VecDeque::is_empty) {
            self.turn.push_back(namespace);
        }
        if let Some(waiting) = lanes.get_mut(lane.place()) {
            waiting.push_back(secret);
            self.length += 1;
        }
    }

    pub(super) fn remove(&mut self, lane: Lane, secret: &ObjectName) {
        let Some(lanes) = self.waiting.get_mut(&secret.namespace) else {
            return;
        };
        if let Some(waiting) = lanes.get_mut(lane.place())
            && let Some(place) = waiting.iter().position(|other| other == secret)
        {
            waiting.remove(place);
            self.length -= 1;
        }
        if lanes.iter().all(VecDeque::is_empty) {
            self.waiting.remove(&secret.namespace);
            self.turn.retain(|other| *other != secret.namespace);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// All certificates that wait in a lane.
    pub(super) fn each(&self, lane: Lane) -> impl Iterator<Item = &ObjectName> {
        let lanes = self.waiting.values();
        lanes.flat_map(move |lanes| lanes.get(lane.place()).into_iter().flatten())
    }

    /// Removes and returns the first certificate that may go. Its namespace then queues behind all others that hold as
    /// much.
    pub(super) fn next(
        &mut self,
        held: impl Fn(&str) -> usize,
        namespace_may: impl Fn(Lane, &str) -> bool,
        may: impl Fn(Lane, &ObjectName) -> bool,
    ) -> Option<(Lane, ObjectName)> {
        let mut turn: Vec<&Arc<str>> = self.turn.iter().collect();
        // The sort is stable, so among equals the one that has waited longest is first.
        turn.sort_by_key(|namespace| held(namespace));
        let (lane, secret) = turn.into_iter().find_map(|namespace| {
            let lanes = self.waiting.get(namespace)?;
            Lane::ALL.into_iter().find_map(|lane| {
                if !namespace_may(lane, namespace) {
                    return None;
                }
                let mut waiting = lanes.get(lane.place())?.iter();
                let secret = waiting.find(|secret| may(lane, secret))?;
                Some((lane, secret.clone()))
            })
        })?;
        if let Some(place) = self
            .turn
            .iter()
            .position(|other| *other == secret.namespace)
            && let Some(namespace) = self.turn.remove(place)
        {
            self.turn.push_back(namespace);
        }
        self.remove(lane, &secret);
        Some((lane, secret))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(names: &[(Lane, &str)]) -> Queue {
        let mut queue = Queue::default();
        for (lane, name) in names {
            let (namespace, name) = name.split_once('/').expect("two parts");
            queue.push(*lane, ObjectName::new(namespace, name));
        }
        queue
    }

    #[test]
    fn namespaces_take_turns() {
        let names = ["a/1", "a/2", "a/3", "b/1", "c/1", "c/2"];
        let mut queue = queue(&names.map(|name| (Lane::New, name)));
        let mut order = Vec::new();
        while let Some((_, next)) = queue.next(
            |_| 0,
            |_, namespace| namespace != "c" || order.len() > 3,
            |_, _| true,
        ) {
            order.push(next.to_string());
        }
        assert_eq!(order, ["a/1", "b/1", "a/2", "a/3", "c/1", "c/2"]);
        assert_eq!(queue.len(), 0);
        queue.remove(Lane::New, &ObjectName::new("a", "1"));
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn queue_serves_the_namespace_that_holds_less_first_whatever_the_lane() {
        let mut queue = queue(&[
            (Lane::Resume, "a/1"),
            (Lane::New, "b/new"),
            (Lane::Renew, "b/renew"),
            (Lane::Resume, "b/resume"),
        ]);
        let held = BTreeMap::from([("a", 2), ("b", 1)]);
        let mut order = Vec::new();
        while let Some((_, next)) = queue.next(|of| held[of], |_, _| true, |_, _| true) {
            order.push(next.to_string());
        }
        assert_eq!(order, ["b/resume", "b/renew", "b/new", "a/1"]);
    }

    #[test]
    fn one_that_may_not_go_lets_the_next_go() {
        let mut queue = queue(&[(Lane::New, "a/1"), (Lane::New, "a/2")]);
        let next = queue.next(|_| 0, |_, _| true, |_, secret| &*secret.name != "1");
        assert_eq!(next, Some((Lane::New, ObjectName::new("a", "2"))));
        assert_eq!(queue.len(), 1);
    }
}
