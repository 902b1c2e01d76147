//! Queues the events of the watches for translation. Namespaces take turns, so that one which writes a thousand objects a
//! second delays its own edits, and not those of others.
//!
//! - The events about one object are taken together and in their order. A version that a later one has replaced by then is left
//!   out, as a watch leaves it out that was away for a while. So an object that is written again and again waits in one place,
//!   and holds up nothing else of its namespace.
//! - Inside a namespace, an object has the place of its first event that waits. So a later event about it may be taken before an
//!   earlier one about another object. Between namespaces no order is kept, also not between objects of one kind, which their
//!   watch shows in one order.
//! - That a kind is synced, or that its watch goes on, is taken after everything about the kind that came before. That a watch is
//!   interrupted is taken at once, because it makes the loop careful. If the event "the watch goes on" from before is still
//!   queued, it is taken first.
//! - What platform admins and operators write does not wait here as soon as it is out of the channel, and no version of it is
//!   left out. The store of claims needs all versions. A `HostnameGrant` that replaces another one has to be known before the
//!   other one is gone, or names would be released in between. Tenants write none of this, so it comes at a bounded rate.
//!
//! The module is public for the scale benchmark, which replaces the loop around it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use vestibule_crds::watch::{Event, Touched};
use vestibule_model::key::{Kind, ObjectKey};

use crate::claims::fair_queue::FairQueue;

/// Objects of one namespace whose events are translated together at most. So a namespace waits for about one translation of so
/// many objects, if one other namespace has more events.
const TURN: usize = 256;
/// Objects of all namespaces whose events are translated together at most. It is larger, so that many namespaces with a few
/// events each have them translated together.
const BATCH: usize = 1024;
/// Most events that wait here. Beyond it they wait in the watches, each kind in one line for all namespaces.
const MOST: usize = 4096;

/// The events that wait for translation.
#[derive(Debug)]
pub struct WatchQueue {
    /// The objects with events, each with the number of its first one. The lines are the namespaces.
    turns: FairQueue<(u64, ObjectKey)>,
    /// The events about each of these objects.
    waiting: BTreeMap<ObjectKey, Waiting>,
    /// How many events there are.
    len: usize,
    /// The numbers of the objects in `turns`, by kind.
    numbers: BTreeSet<(Kind, u64)>,
    /// The number of the next object.
    next: u64,
    /// The events that do not wait, in the order in which they came.
    urgent: Vec<Event>,
    /// When the first of them came.
    urgent_since: Option<Instant>,
    marks: Vec<Mark>,
}

/// The events about an object. There is at least one, and there are at most two: a removal and one event after it (see
/// [`add`]). So the memory that waiting events need depends on the number of objects, and not on how often they are written.
#[derive(Debug)]
struct Waiting {
    /// When the first of them came, even if another one has replaced it.
    since: Instant,
    events: Vec<Event>,
}

/// An event about a kind, which is taken when no event about the kind with a lower number is left.
#[derive(Debug)]
struct Mark {
    kind: Kind,
    number: u64,
    event: Event,
}

impl Default for WatchQueue {
    fn default() -> Self {
        Self {
            turns: FairQueue::new(TURN),
            waiting: BTreeMap::new(),
            len: 0,
            numbers: BTreeSet::new(),
            next: 0,
            urgent: Vec::new(),
            urgent_since: None,
            marks: Vec::new(),
        }
    }
}

impl WatchQueue {
    /// Returns an empty queue.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds events that have arrived, as long as there are any and the queue has room for them.
    pub fn fill(&mut self, mut events: impl Iterator<Item = Event>, now: Instant) {
        while self.has_room()
            && let Some(event) = events.next()
        {
            self.push(event, now);
        }
    }

    /// Whether there is room for more events.
    fn has_room(&self) -> bool {
        self.len + self.urgent.len() < MOST
    }

    /// How many objects wait for their turn.
    pub(super) fn objects(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.urgent.is_empty() && self.marks.is_empty()
    }

    /// Adds an event, which came after all others.
    pub(super) fn push(&mut self, event: Event, now: Instant) {
        let key = match &event {
            Event::Put(watched) => watched.key.clone(),
            Event::Touched(touched) => touched.key.clone(),
            Event::Remove(key) => key.clone(),
            Event::Interrupted(kind) => {
                let kind = *kind;
                // That the watch went on before stays in front of it, because it also says that the server is back.
                let went_on =
                    |mark: &Mark| mark.kind == kind && matches!(mark.event, Event::Resumed(_));
                let marks = std::mem::take(&mut self.marks).into_iter();
                let (went_on, others): (Vec<Mark>, Vec<Mark>) = marks.partition(went_on);
                self.marks = others;
                for mark in went_on {
                    self.hurry(mark.event, now);
                }
                return self.hurry(event, now);
            }
            Event::Synced(kind) | Event::Resumed(kind) => {
                let (kind, number) = (*kind, self.next);
                let mark = Mark {
                    kind,
                    number,
                    event,
                };
                return self.marks.push(mark);
            }
        };
        if is_urgent(key.kind) {
            return self.hurry(event, now);
        }
        let number = self.next;
        let waiting = self.waiting.entry(key.clone()).or_insert_with(|| Waiting {
            since: now,
            events: Vec::new(),
        });
        if waiting.events.is_empty() {
            self.next += 1;
            self.numbers.insert((key.kind, number));
            let namespace = key.name.namespace.clone();
            self.turns.insert(now, &namespace, &(number, key));
        }
        self.len -= waiting.events.len();
        add(&mut waiting.events, event);
        self.len += waiting.events.len();
    }

    /// Adds an event that does not wait.
    fn hurry(&mut self, event: Event, now: Instant) {
        self.urgent_since.get_or_insert(now);
        self.urgent.push(event);
    }

    /// Removes and returns the events of the next turn, and when the first of those about objects came. `now` is no earlier than
    /// the times of the events.
    pub(super) fn next_batch(&mut self, now: Instant) -> (Vec<Event>, Instant) {
        let mut batch = std::mem::take(&mut self.urgent);
        let mut since = self.urgent_since.take().unwrap_or(now);
        // An object counts as under way until the batch is complete, so the queue gives no more than `TURN` of a namespace.
        let mut namespaces = Vec::new();
        while namespaces.len() < BATCH
            && let Some((namespace, (number, key))) = self.turns.next(now)
        {
            self.turns.begun(&namespace);
            namespaces.push(namespace);
            self.numbers.remove(&(key.kind, number));
            if let Some(waiting) = self.waiting.remove(&key) {
                self.len -= waiting.events.len();
                since = since.min(waiting.since);
                batch.extend(waiting.events);
            }
        }
        for namespace in &namespaces {
            self.turns.ended(namespace);
        }
        // An object keeps the number of its first event that waits. So a mark about a kind is due when no object of the kind
        // has a lower number: everything that came before the mark has had its turn.
        let numbers = &self.numbers;
        let is_due = |mark: &Mark| {
            let mut before = numbers.range((mark.kind, 0)..(mark.kind, mark.number));
            before.next().is_none()
        };
        let marks = std::mem::take(&mut self.marks).into_iter();
        let (due, early): (Vec<Mark>, Vec<Mark>) = marks.partition(is_due);
        self.marks = early;
        batch.extend(due.into_iter().map(|mark| mark.event));
        (batch, since)
    }
}

/// Whether only platform admins and operators write objects of this kind, if tenants have the roles that are meant for them.
fn is_urgent(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::GatewayClass
            | Kind::GatewayParameters
            | Kind::Namespace
            | Kind::ClusterAcmeIssuer
            | Kind::HostnameGrant
            | Kind::HostnameClaim
    )
}

/// Adds an event about an object behind the others about it, and leaves out what it replaces. A removal stays in front of a new
/// object of the same name, because the removed object may have had what the new one does not have.
fn add(events: &mut Vec<Event>, event: Event) {
    if matches!(event, Event::Remove(_)) {
        events.clear();
    }
    match (events.pop(), event) {
        // Since the object came, only its status has changed.
        (Some(Event::Put(mut watched)), Event::Touched(touched)) => {
            let Touched {
                resource_version,
                status,
                ..
            } = *touched;
            watched.resource_version = resource_version;
            watched.status = status;
            events.push(Event::Put(watched));
        }
        (Some(Event::Remove(key)), event) => events.extend([Event::Remove(key), event]),
        (_, event) => events.push(event),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use serde_json::json;
    use vestibule_crds::watch::Watched;
    use vestibule_model::condition::Reason;
    use vestibule_model::finding::Finding;
    use vestibule_model::meta::Meta;
    use vestibule_model::object::Object;

    use super::*;

    fn route(namespace: &str, name: &str) -> ObjectKey {
        ObjectKey::new(Kind::HttpRoute, namespace, name)
    }

    fn put(key: &ObjectKey, version: usize) -> Event {
        let finding = Finding::refused(Reason::Unreadable, "spec", "does not decode", "");
        Event::Put(Box::new(Watched {
            key: key.clone(),
            object: Object::Unreadable(key.clone(), Meta::default(), finding),
            findings: Vec::new(),
            uid: "uid".into(),
            resource_version: version.to_string().into(),
            status: json!({ "put": version }),
        }))
    }

    fn touched(key: &ObjectKey, version: usize) -> Event {
        Event::Touched(Box::new(Touched {
            key: key.clone(),
            generation: 1,
            resource_version: version.to_string().into(),
            status: json!({ "touched": version }),
        }))
    }

    /// The events in short: what each is, of what, and which version.
    fn texts(events: &[Event]) -> Vec<String> {
        let text = |event: &Event| match event {
            Event::Put(of) => format!("put {} {} {}", of.key.name, of.resource_version, of.status),
            Event::Touched(of) => format!("touched {} {}", of.key.name, of.resource_version),
            Event::Remove(key) => format!("remove {}", key.name),
            Event::Synced(kind) => format!("synced {kind}"),
            Event::Interrupted(kind) => format!("interrupted {kind}"),
            Event::Resumed(kind) => format!("resumed {kind}"),
        };
        events.iter().map(text).collect()
    }

    fn queue_of(events: impl IntoIterator<Item = Event>) -> WatchQueue {
        let mut queue = WatchQueue::new();
        for event in events {
            queue.push(event, Instant::now());
        }
        queue
    }

    fn take(queue: &mut WatchQueue) -> Vec<Event> {
        queue.next_batch(Instant::now()).0
    }

    fn rest(queue: &mut WatchQueue) -> Vec<Event> {
        let mut events = Vec::new();
        while !queue.is_empty() {
            events.extend(take(queue));
        }
        events
    }

    #[test]
    fn a_flood_of_one_namespace_delays_the_edit_of_another_by_no_more_than_one_turn() {
        let flood = (0..3 * TURN).map(|n| put(&route("aaa", &format!("r{n:04}")), n));
        let mut queue = queue_of(flood);
        assert_eq!(take(&mut queue).len(), TURN);
        queue.push(put(&route("zzz", "edit"), 1), Instant::now());
        let batch = texts(&take(&mut queue));
        assert_eq!(batch.len(), TURN + 1);
        assert!(batch.contains(&r#"put zzz/edit 1 {"put":1}"#.to_owned()));
        assert_eq!(rest(&mut queue).len(), TURN);
        assert!(queue.is_empty());
    }

    #[test]
    fn watch_events_that_came_together_in_many_namespaces_are_taken_together() {
        let queue = |namespaces: usize, names: usize| {
            let keys = (0..namespaces).flat_map(|namespace| {
                let namespace = format!("team{namespace:04}");
                (0..names).map(move |name| route(&namespace, &format!("r{name:04}")))
            });
            queue_of(keys.map(|key| put(&key, 1)))
        };
        let namespaces = TURN + 44;
        let mut few_of_each = queue(namespaces, 3);
        let batch = take(&mut few_of_each);
        assert_eq!(batch.len(), 3 * namespaces);
        assert!(few_of_each.is_empty());
        let mut too_many = queue(BATCH + 1, 1);
        assert_eq!(take(&mut too_many).len(), BATCH);
        assert_eq!(take(&mut too_many).len(), 1);
        // Each of two namespaces has a turn of its own in each batch.
        let mut two = queue(2, 2 * TURN);
        assert_eq!(take(&mut two).len(), 2 * TURN);
        assert_eq!(take(&mut two).len(), 2 * TURN);
        assert!(two.is_empty());
    }

    #[test]
    fn an_object_that_is_written_again_and_again_waits_once() {
        let (busy, other) = (route("aaa", "busy"), route("aaa", "other"));
        let mut events = vec![put(&busy, 1), put(&other, 2)];
        events.extend((3..MOST + 3).map(|version| put(&busy, version)));
        let mut queue = queue_of(events);
        assert!(queue.has_room());
        let last = MOST + 2;
        let newest = format!(r#"put aaa/busy {last} {{"put":{last}}}"#);
        let expected = [newest, r#"put aaa/other 2 {"put":2}"#.to_owned()];
        assert_eq!(texts(&rest(&mut queue)), expected);
        // Objects are what fills the queue.
        let many = (0..MOST).map(|n| put(&route("aaa", &n.to_string()), n));
        let mut queue = queue_of(many);
        assert!(!queue.has_room());
        take(&mut queue);
        assert!(queue.has_room());
    }

    #[test]
    fn events_that_have_no_place_stay_where_they_are() {
        let mut events = (0..MOST + 2).map(|n| put(&route("aaa", &n.to_string()), n));
        let mut queue = WatchQueue::new();
        queue.fill(&mut events, Instant::now());
        assert_eq!((queue.objects(), events.len()), (MOST, 2));
    }

    #[test]
    fn a_turn_says_since_when_the_first_of_its_objects_waits() {
        let begin = Instant::now();
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        let mut queue = WatchQueue::new();
        queue.push(put(&route("bbb", "other"), 1), at(2));
        queue.push(put(&route("aaa", "busy"), 2), at(1));
        queue.push(put(&route("aaa", "busy"), 3), at(3));
        assert_eq!(queue.objects(), 2);
        let (batch, since) = queue.next_batch(at(4));
        assert_eq!((batch.len(), since), (2, at(1)));
        let grant = ObjectKey::new(Kind::HostnameGrant, "platform", "g");
        queue.push(put(&grant, 4), at(5));
        queue.push(put(&grant, 5), at(6));
        queue.push(Event::Synced(Kind::HttpRoute), at(4));
        let (batch, since) = queue.next_batch(at(7));
        assert_eq!((batch.len(), since), (3, at(5)));
        let (batch, since) = queue.next_batch(at(8));
        assert_eq!((batch.len(), since), (0, at(8)));
        assert_eq!(queue.objects(), 0);
    }

    #[test]
    fn a_removal_stays_before_a_new_object_and_a_status_joins_its_object() {
        let key = route("aaa", "r");
        let of = |events: Vec<Event>| texts(&rest(&mut queue_of(events)));
        let remove = || Event::Remove(key.clone());
        let joined = of(vec![put(&key, 1), touched(&key, 2)]);
        assert_eq!(joined, [r#"put aaa/r 2 {"touched":2}"#]);
        let statuses = of(vec![touched(&key, 1), touched(&key, 2)]);
        assert_eq!(statuses, ["touched aaa/r 2"]);
        let edited = of(vec![touched(&key, 1), put(&key, 2)]);
        assert_eq!(edited, [r#"put aaa/r 2 {"put":2}"#]);
        assert_eq!(of(vec![put(&key, 1), remove()]), ["remove aaa/r"]);
        let anew = of(vec![put(&key, 1), remove(), put(&key, 2), put(&key, 3)]);
        assert_eq!(anew, ["remove aaa/r", r#"put aaa/r 3 {"put":3}"#]);
        let gone = of(vec![remove(), put(&key, 2), remove()]);
        assert_eq!(gone, ["remove aaa/r"]);
    }

    #[test]
    fn every_version_of_a_claim_is_taken_at_once() {
        let claim = ObjectKey::new(Kind::HostnameClaim, "platform", "c");
        let flood = (0..2 * TURN).map(|n| put(&route("aaa", &format!("r{n:04}")), n));
        let mut queue = queue_of(flood.chain([put(&claim, 1), put(&claim, 2)]));
        let batch = take(&mut queue);
        let expected = [
            r#"put platform/c 1 {"put":1}"#,
            r#"put platform/c 2 {"put":2}"#,
        ];
        assert_eq!(texts(&batch)[..2], expected);
        assert_eq!(batch.len(), 2 + TURN);
    }

    #[test]
    fn a_grant_that_replaces_another_comes_before_the_removal_of_the_other() {
        let grant = |name: &str| ObjectKey::new(Kind::HostnameGrant, "platform", name);
        let (former, next) = (grant("former"), grant("next"));
        let flood = (0..300).map(|n| put(&route(&format!("team{n}"), "r"), n));
        let replaced = [put(&next, 2), Event::Remove(former.clone())];
        let events = std::iter::once(touched(&former, 1)).chain(flood);
        let mut queue = queue_of(events.chain(replaced));
        let batch = texts(&take(&mut queue));
        let expected = [
            "touched platform/former 1",
            r#"put platform/next 2 {"put":2}"#,
            "remove platform/former",
        ];
        assert_eq!(batch[..3], expected);
    }

    #[test]
    fn kind_events_come_after_their_objects_and_interruptions_at_once() {
        let flood = |count: usize| (0..count).map(|n| put(&route("aaa", &format!("r{n:04}")), n));
        let kind = Kind::HttpRoute;
        let mut queue = queue_of(flood(TURN + 1));
        for event in [Event::Synced(kind), Event::Synced(Kind::Gateway)] {
            queue.push(event, Instant::now());
        }
        queue.push(put(&route("bbb", "late"), 1), Instant::now());
        // One of the objects has to wait, since its namespace has had its turn.
        let first = texts(&take(&mut queue));
        assert!(first.contains(&"synced Gateway".to_owned()));
        assert!(!first.contains(&"synced HTTPRoute".to_owned()));
        let second = texts(&take(&mut queue));
        assert_eq!(second.len(), 2, "{second:?}");
        assert_eq!(second[1], "synced HTTPRoute");

        let mut queue = queue_of(flood(2 * TURN));
        queue.push(Event::Resumed(kind), Instant::now());
        queue.push(Event::Interrupted(kind), Instant::now());
        let at_once = ["resumed HTTPRoute", "interrupted HTTPRoute"];
        assert_eq!(texts(&take(&mut queue))[..2], at_once);
        queue.push(Event::Resumed(kind), Instant::now());
        let others = texts(&rest(&mut queue));
        let resumed = others.iter().filter(|text| *text == "resumed HTTPRoute");
        assert_eq!(resumed.count(), 1);
        assert_eq!(others.last().map(String::as_str), Some("resumed HTTPRoute"));
    }

    /// A reader of events knows this of each object: its version, and that of its status.
    type State = BTreeMap<ObjectKey, (String, String)>;

    fn read(state: &mut State, event: &Event) {
        let version = |version: &str| version.to_owned();
        match event {
            Event::Put(of) => {
                let status = of.status.to_string();
                let versions = (version(&of.resource_version), status);
                state.insert(of.key.clone(), versions);
            }
            Event::Touched(of) => {
                let status = of.status.to_string();
                let versions = (version(&of.resource_version), status);
                state.insert(of.key.clone(), versions);
            }
            Event::Remove(key) => _ = state.remove(key),
            Event::Synced(_) | Event::Interrupted(_) | Event::Resumed(_) => {}
        }
    }

    proptest! {
        /// Whatever came, and whenever it was taken, the reader knows the same in the end, and never goes back to an older
        /// version.
        #[test]
        fn the_newest_of_each_object_is_taken_and_nothing_older_after_it(
            steps in prop::collection::vec((0_usize..3, 0_usize..3, 0_u8..8), 0..200),
        ) {
            let (mut queue, mut taken) = (WatchQueue::new(), Vec::new());
            let (mut direct, mut exists) = (State::new(), BTreeSet::new());
            for (version, (namespace, name, what)) in steps.into_iter().enumerate() {
                let key = route(["a", "b", ""][namespace], ["x", "y", "z"][name]);
                let event = match what {
                    0 => {
                        taken.extend(take(&mut queue));
                        continue;
                    }
                    1 | 2 => {
                        exists.remove(&key);
                        Event::Remove(key)
                    }
                    // A watch shows a status only of an object that it has shown.
                    3 | 4 if exists.contains(&key) => touched(&key, version),
                    _ => {
                        exists.insert(key.clone());
                        put(&key, version)
                    }
                };
                read(&mut direct, &event);
                queue.push(event, Instant::now());
            }
            taken.extend(rest(&mut queue));
            prop_assert_eq!((queue.len, queue.numbers.len()), (0, 0));
            let (mut state, mut newest) = (State::new(), BTreeMap::new());
            for event in &taken {
                read(&mut state, event);
                let (key, version) = match event {
                    Event::Put(of) => (&of.key, &of.resource_version),
                    Event::Touched(of) => (&of.key, &of.resource_version),
                    _ => continue,
                };
                let version: usize = version.parse().expect("a number");
                let former = newest.insert(key.clone(), version);
                prop_assert!(former.is_none_or(|former| former < version));
            }
            prop_assert_eq!(state, direct);
        }
    }
}
