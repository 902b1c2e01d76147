//! Random histories: after each step the index says what the plain reading of the rule says, and the step has said
//! whose answer it changed; the order of facts does not matter; and a name in service changes its owner only if the
//! owner let go, was revoked, or the Gateway or an admin took it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use proptest::prelude::*;
use vestibule_model::claim::Holder;
use vestibule_model::hostname::{HostPattern, Hostname};
use vestibule_model::key::{Kind, ListenerKey, ObjectKey};
use vestibule_model::names::{
    AffectedNames, GatewayNames, NameClaimState, NameDecision, NameSource,
};
use vestibule_test_support::properties::keep_failures_with_cases;

use super::grants::Entry;
use super::reference::{Facts, OWN, is_guest};
use super::{WAYS, host, http, listener, own, own_key, rank, refused, tls};
use crate::support::{name, pattern};

const NAMESPACES: [&str; 4] = ["a", "b", "c", OWN];

static PATTERNS: LazyLock<Vec<HostPattern>> = LazyLock::new(|| {
    let texts = [
        "",
        "*.com",
        "*.x.com",
        "*.y.x.com",
        "x.com",
        "y.x.com",
        "z.x.com",
        "z.y.x.com",
    ];
    texts.iter().map(|text| pattern(text)).collect()
});

static HOSTS: LazyLock<Vec<Hostname>> = LazyLock::new(|| {
    let texts = [
        "x.com",
        "y.x.com",
        "z.x.com",
        "z.y.x.com",
        "w.y.x.com",
        "w.x.com",
        "w.com",
        "org",
    ];
    texts.iter().map(|text| host(text)).collect()
});

static SOURCES: LazyLock<Vec<NameSource>> = LazyLock::new(|| {
    let listener_key = |source| match source {
        NameSource::Listener(key) => Some(key),
        _ => None,
    };
    let guest = |route: &str, key: Option<ListenerKey>| {
        let name = name(route);
        let kind = Kind::HttpRoute;
        key.map(|key| NameSource::Guest(Box::new((key, ObjectKey { kind, name }))))
    };
    let mut sources = vec![
        listener("a/s", "l"),
        listener("a/s", "m"),
        listener("b/s", "l"),
        listener("c/s", "l"),
        listener("infra/s", "l"),
        http("a/r"),
        tls("a/r"),
        http("b/r"),
        http("c/r"),
        tls("c/r"),
        http("infra/r"),
        own("one"),
        own("two"),
    ];
    sources.extend(guest("b/r", listener_key(listener("infra/s", "any"))));
    sources.push(refused(&http("a/r")));
    sources.push(refused(&listener("b/s", "l")));
    sources.push(refused(&http("infra/r")));
    sources.push(refused(&own("one")));
    let guests =
        ["b/guest", "a/guest"].map(|route| guest(route, listener_key(listener("a/s", "any"))));
    sources.extend(guests.into_iter().flatten());
    sources.extend(guest("b/guest", listener_key(listener("a/s", "any"))).map(|of| refused(&of)));
    sources
});

#[derive(Debug, Clone)]
enum Op {
    /// The record says this.
    Hold(HostPattern, Option<Holder>),
    /// A listener or route names these.
    Put(NameSource, i64, BTreeSet<HostPattern>),
    /// These are the grants.
    Grants(Vec<Entry>),
    /// The Gateway lets a namespace in, or not.
    Let(Arc<str>, bool),
    /// One of its own listeners admits routes of these.
    Admit(&'static str, BTreeSet<Arc<str>>),
    /// The leader records who is next, or removes a claim that was revoked.
    Record(HostPattern),
    /// The grace is over.
    Free(HostPattern),
    /// An admin takes a name from a namespace, or changes their mind.
    Take(HostPattern, Option<Arc<str>>),
    /// An admin takes a name from its holder.
    TakeAway(HostPattern),
    /// So many names a namespace may hold.
    Limit(Arc<str>, usize),
}

fn patterns() -> impl Strategy<Value = HostPattern> {
    prop::sample::select(PATTERNS.clone())
}

fn namespaces() -> impl Strategy<Value = Arc<str>> {
    prop::sample::select(NAMESPACES.to_vec()).prop_map(Arc::from)
}

fn holders() -> impl Strategy<Value = Holder> {
    (namespaces(), any::<bool>()).prop_map(|(namespace, for_guests)| Holder {
        for_guests,
        ..Holder::from(namespace)
    })
}

fn puts() -> impl Strategy<Value = Op> {
    let names = prop::sample::subsequence(PATTERNS.clone(), 0..=3);
    (prop::sample::select(SOURCES.clone()), 0_i64..3, names)
        .prop_map(|(source, created, names)| Op::Put(source, created, names.into_iter().collect()))
}

fn entries() -> impl Strategy<Value = Entry> {
    let namespace = prop::sample::select(vec![None, Some("a"), Some("b"), Some("c")]);
    (namespace, patterns(), prop::bool::weighted(0.3)).prop_map(|(namespace, names, shared)| {
        // Sharing is refused on wildcards.
        let shared = shared && matches!(names, HostPattern::Exact(_));
        Entry {
            namespace,
            names,
            shared,
        }
    })
}

/// What the platform does.
fn platform() -> impl Strategy<Value = Op> {
    let tenants = ["a", "b", "c"].map(Arc::<str>::from).to_vec();
    let admitted = prop::sample::subsequence(tenants.clone(), 0..=3);
    prop_oneof![
        2 => prop::collection::vec(entries(), 0..5).prop_map(Op::Grants),
        1 => (prop::sample::select(tenants.clone()), 0_usize..5)
            .prop_map(|(namespace, most)| Op::Limit(namespace, most)),
        1 => (prop::sample::select(tenants), prop::bool::weighted(0.7))
            .prop_map(|(namespace, lets_in)| Op::Let(namespace, lets_in)),
        1 => (prop::sample::select(vec!["one", "two"]), admitted)
            .prop_map(|(listener, all)| Op::Admit(listener, all.into_iter().collect())),
    ]
}

/// Anything, in any order: the record says what it likes.
fn anything() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (patterns(), prop::option::weighted(0.7, holders()))
            .prop_map(|(names, holder)| Op::Hold(names, holder)),
        1 => (patterns(), prop::option::weighted(0.8, namespaces()))
            .prop_map(|(names, namespace)| Op::Take(names, namespace)),
        5 => puts(),
        2 => platform(),
    ]
}

/// What happens where a leader keeps the record by the rule.
fn with_a_leader() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => patterns().prop_map(Op::Record),
        2 => patterns().prop_map(Op::Free),
        1 => patterns().prop_map(Op::TakeAway),
        4 => puts(),
        1 => platform(),
    ]
}

struct World {
    facts: Facts,
    names: GatewayNames,
}

impl World {
    fn new() -> Self {
        Self {
            facts: Facts::default(),
            names: GatewayNames::new(name("infra/gw")),
        }
    }

    fn take(&mut self, op: &Op) -> AffectedNames {
        let mut affected = self.change(op);
        add(&mut affected, self.names.settle(&self.facts.grants));
        affected
    }

    fn change(&mut self, op: &Op) -> AffectedNames {
        match op.clone() {
            Op::Hold(names, holder) => self.hold(&names, holder),
            Op::Put(source, created, names) => self.put(&source, created, names),
            Op::Grants(entries) => {
                let before = std::mem::replace(&mut self.facts.grants.entries, entries);
                let after = self.facts.grants.entries.clone();
                if before.is_empty() != after.is_empty() {
                    return self.names.recheck_all(&self.facts.grants);
                }
                // Only those whose own grants are others.
                let of = |all: &[Entry], namespace: &str| -> Vec<Entry> {
                    let own = all.iter().filter(|entry| entry.is_for(namespace));
                    own.cloned().collect()
                };
                let mut affected = AffectedNames::default();
                for namespace in NAMESPACES {
                    if of(&before, namespace) != of(&after, namespace) {
                        add(&mut affected, self.recheck(namespace));
                    }
                }
                affected
            }
            Op::Let(namespace, lets_in) => {
                let out = &mut self.facts.grants.out;
                if lets_in {
                    out.remove(&namespace);
                } else {
                    out.insert(namespace.clone());
                }
                self.recheck(&namespace)
            }
            Op::Admit(listener, namespaces) => {
                let admitted = &mut self.facts.grants.admitted;
                admitted.insert(own_key(listener), namespaces);
                // The listener is put again, as it is a new version.
                let mut affected = AffectedNames::default();
                let refused = NameSource::Refused(Box::new(own(listener)));
                for source in [own(listener), refused] {
                    if let Some((rank, names)) = self.facts.sources.get(&source).cloned() {
                        let put = self.names.put(&self.facts.grants, &source, &rank, &names);
                        add(&mut affected, put);
                    }
                }
                affected
            }
            Op::Record(names) => match self.names.claim_state(&names) {
                None | Some(NameClaimState::Revoked) => {
                    let next = self.names.next_holder(&names);
                    let mut affected = self.hold(&names, next);
                    // The object of the next holder does not say that it is taken from the former one.
                    if self.facts.taken.get(&names) != self.facts.claims.get(&names) {
                        add(&mut affected, self.take_from(&names, None));
                    }
                    affected
                }
                Some(NameClaimState::Used | NameClaimState::Idle) => AffectedNames::default(),
            },
            Op::Free(names) => match self.names.claim_state(&names) {
                Some(NameClaimState::Idle) => self.hold(&names, None),
                _ => AffectedNames::default(),
            },
            Op::Take(names, namespace) => self.take_from(&names, namespace),
            Op::TakeAway(names) => {
                let holder = self.facts.claims.get(&names).cloned();
                self.take_from(&names, holder)
            }
            Op::Limit(namespace, most) => {
                self.facts.grants.most.insert(namespace.clone(), most);
                self.recheck(&namespace)
            }
        }
    }

    fn take_from(&mut self, names: &HostPattern, namespace: Option<Arc<str>>) -> AffectedNames {
        let grants = &self.facts.grants;
        let affected = self.names.take_from(grants, names, namespace.as_ref());
        match namespace {
            Some(namespace) => self.facts.taken.insert(names.clone(), namespace),
            None => self.facts.taken.remove(names),
        };
        affected
    }

    fn hold(&mut self, names: &HostPattern, holder: Option<Holder>) -> AffectedNames {
        let affected = self.names.hold(&self.facts.grants, names, holder.as_ref());
        self.facts.for_guests.remove(names);
        if holder.as_ref().is_some_and(|holder| holder.for_guests) {
            self.facts.for_guests.insert(names.clone());
        }
        match holder {
            Some(holder) => self.facts.claims.insert(names.clone(), holder.namespace),
            None => self.facts.claims.remove(names),
        };
        affected
    }

    /// Everything that is recorded.
    fn recorded(&self) -> impl DoubleEndedIterator<Item = (&HostPattern, Holder)> {
        let claims = self.facts.claims.iter();
        claims.map(move |(names, namespace)| {
            let for_guests = self.facts.for_guests.contains(names);
            let holder = Holder::from(namespace.clone());
            (
                names,
                Holder {
                    for_guests,
                    ..holder
                },
            )
        })
    }

    fn put(
        &mut self,
        source: &NameSource,
        created: i64,
        names: BTreeSet<HostPattern>,
    ) -> AffectedNames {
        let rank = rank(source, created);
        let affected = if names.is_empty() {
            self.names.remove(&self.facts.grants, source)
        } else {
            self.names.put(&self.facts.grants, source, &rank, &names)
        };
        if names.is_empty() {
            self.facts.sources.remove(source);
        } else {
            self.facts.sources.insert(source.clone(), (rank, names));
        }
        affected
    }

    fn recheck(&mut self, namespace: &str) -> AffectedNames {
        self.names.recheck(&self.facts.grants, &namespace.into())
    }

    /// The same facts, given to a new index from the last one to the first.
    fn rebuilt(&self) -> GatewayNames {
        let mut names = GatewayNames::new(name("infra/gw"));
        for (source, (rank, patterns)) in self.facts.sources.iter().rev() {
            names.put(&self.facts.grants, source, rank, patterns);
        }
        for (pattern, holder) in self.recorded().rev() {
            names.hold(&self.facts.grants, pattern, Some(&holder));
        }
        for (pattern, namespace) in self.facts.taken.iter().rev() {
            names.take_from(&self.facts.grants, pattern, Some(namespace));
        }
        names.settle(&self.facts.grants);
        names
    }
}

fn add(affected: &mut AffectedNames, more: AffectedNames) {
    affected.records.extend(more.records);
    affected.asks.extend(more.asks);
    affected.owners.extend(more.owners);
}

/// Everything that it says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Answers {
    records: BTreeMap<HostPattern, (Option<Holder>, Option<NameClaimState>)>,
    asks: BTreeMap<(HostPattern, NameSource), NameDecision>,
    owners: BTreeMap<Hostname, Option<Arc<str>>>,
}

impl Answers {
    fn of(names: &GatewayNames) -> Self {
        let mut answers = Self::default();
        for pattern in PATTERNS.iter() {
            let record = (names.next_holder(pattern), names.claim_state(pattern));
            answers.records.insert(pattern.clone(), record);
            for source in SOURCES.iter() {
                let key = (pattern.clone(), source.clone());
                let decision = names.decision(source, pattern);
                answers
                    .asks
                    .extend(decision.map(|decision| (key, decision)));
            }
        }
        for hostname in HOSTS.iter() {
            answers
                .owners
                .insert(hostname.clone(), names.owner(hostname));
        }
        answers
    }

    /// What a change from `before` did not say, of all that it changed.
    fn unsaid(&self, before: &Self, affected: &AffectedNames) -> Vec<String> {
        let mut unsaid = Vec::new();
        for (pattern, record) in &self.records {
            if before.records.get(pattern) != Some(record) && !affected.records.contains(pattern) {
                unsaid.push(format!("record {pattern:?}"));
            }
        }
        for (ask, decision) in &self.asks {
            if before.asks.get(ask) != Some(decision) && !affected.asks.contains(ask) {
                unsaid.push(format!("ask {ask:?}"));
            }
        }
        for (hostname, owner) in &self.owners {
            let said = affected.owners.iter().any(|names| names.matches(hostname));
            if before.owners.get(hostname) != Some(owner) && !said {
                unsaid.push(format!("owner {hostname:?}"));
            }
        }
        unsaid
    }
}

/// Compares every answer with the reference.
fn compare(world: &World) -> Result<(), TestCaseError> {
    let World { facts, names } = world;
    for pattern in PATTERNS.iter() {
        for namespace in NAMESPACES {
            for by in WAYS {
                prop_assert_eq!(
                    names.decide(&facts.grants, namespace, pattern, by),
                    facts.decide(namespace, pattern, by),
                    "{} {:?} {:?}",
                    namespace,
                    pattern,
                    by
                );
            }
        }
        prop_assert_eq!(
            names.holder(pattern),
            facts.holder(pattern),
            "{:?}",
            pattern
        );
        prop_assert_eq!(names.next(pattern), facts.next(pattern), "{:?}", pattern);
        let for_guests = names.next_holder(pattern).map(|next| next.for_guests);
        prop_assert_eq!(
            for_guests,
            facts.next_source(pattern).map(is_guest),
            "{:?}",
            pattern
        );
        prop_assert_eq!(
            names.claim_state(pattern),
            facts.claim_state(pattern),
            "{:?}",
            pattern
        );
        for assumes in [false, true] {
            let owner = |covering: &HostPattern| {
                let next = names.next(covering).filter(|_| assumes);
                let held = names.holder(covering).or(next);
                held.or_else(|| names.owner_at(covering)).cloned()
            };
            let covering = PATTERNS.iter().filter(|p| p.covers(pattern));
            let known = covering.filter_map(|p| Some((p, owner(p)?)));
            let expected = known.max_by_key(|(p, _)| p.specificity());
            let nearest = names.nearest_owner(pattern, assumes);
            let nearest = nearest.map(|(p, owner)| (p, owner.clone()));
            prop_assert_eq!(nearest, expected, "{:?} {}", pattern, assumes);
        }
        for source in SOURCES.iter() {
            let asked = facts.sources.get(source);
            let asks = asked.is_some_and(|(_, all)| all.contains(pattern))
                && !source.is_own_of(&name("infra/gw"));
            let expected = asked
                .filter(|_| asks)
                .map(|(rank, _)| facts.decide_request(source, rank, pattern));
            prop_assert_eq!(names.decision(source, pattern), expected, "{:?}", source);
        }
    }
    for hostname in HOSTS.iter() {
        let owner = facts.owner(hostname);
        prop_assert_eq!(names.owner(hostname), owner.clone(), "{}", hostname);
        for (source, (_, all)) in &facts.sources {
            for pattern in all.iter().filter(|pattern| pattern.matches(hostname)) {
                let expected = facts.serves(source, pattern, hostname, owner.as_ref());
                let serves = names.serves(source, pattern, hostname);
                prop_assert_eq!(serves, expected, "{:?} {:?} {}", source, pattern, hostname);
            }
        }
    }
    Ok(())
}

/// Of the claims that count and match a hostname, the most specific one.
fn claim_on<'a>(
    names: &GatewayNames,
    hostname: &Hostname,
    claims: &'a Claims,
) -> Option<(&'a HostPattern, &'a Arc<str>)> {
    let claims = claims
        .iter()
        .filter(|(pattern, _)| pattern.matches(hostname));
    let counting = claims.filter(|(pattern, _)| names.holder(pattern).is_some());
    counting.max_by_key(|(pattern, _)| pattern.specificity())
}

type Claims = BTreeMap<HostPattern, Arc<str>>;

/// Why it is right that a hostname that belonged to `former` by its claim to `claimed` does not any more.
fn reason(
    world: &World,
    hostname: &Hostname,
    (claimed, former): (&HostPattern, &Arc<str>),
    before: (&Claims, Option<NameClaimState>),
    op: &Op,
) -> Option<&'static str> {
    let (claims, claim_state) = before;
    let World { facts, names } = world;
    if names.claim_state(claimed) == Some(NameClaimState::Revoked)
        && facts.claims.get(claimed) == Some(former)
    {
        return Some("it was revoked");
    }
    if names.holder(claimed) != Some(former) {
        if claim_state == Some(NameClaimState::Revoked)
            && matches!(op, Op::Record(names) if names == claimed)
        {
            return Some("an admin took it");
        }
        let freed = matches!(op, Op::Free(names) if names == claimed);
        return (freed && claim_state == Some(NameClaimState::Idle)).then_some("it let go");
    }
    let narrower = |pattern: &HostPattern| claimed.covers(pattern) && claimed != pattern;
    if facts
        .own_names()
        .any(|own| narrower(own) && own.matches(hostname))
    {
        return Some("the Gateway took it");
    }
    let (inner, owner) = claim_on(names, hostname, &facts.claims)?;
    let given = facts.grants.giving(owner, inner);
    if !narrower(inner) {
        None
    } else if claims.get(inner) == Some(owner) {
        Some("it was recorded before, and is valid again")
    } else if *claimed == HostPattern::Any {
        Some("it is every name that nobody else holds")
    } else if **owner == *OWN {
        Some("the Gateway's namespace took it")
    } else if given.iter().any(|entry| claimed.covers(entry)) {
        Some("a grant at or below the wildcard gives it")
    } else {
        None
    }
}

proptest! {
    #![proptest_config(keep_failures_with_cases(256))]

    #[test]
    fn after_any_history_it_is_as_the_rule_reads(ops in prop::collection::vec(anything(), 1..25)) {
        let mut world = World::new();
        let mut before = Answers::of(&world.names);
        for op in ops {
            let affected = world.take(&op);
            compare(&world)?;
            let after = Answers::of(&world.names);
            let unsaid = after.unsaid(&before, &affected);
            prop_assert!(unsaid.is_empty(), "{:?} changed {:?}, and said {:?}", op, unsaid, affected);
            before = after;
            // Whatever the way, the end is the same.
            prop_assert_eq!(&world.rebuilt(), &world.names);
        }
    }

    #[test]
    fn the_order_of_facts_does_not_matter(
        ops in prop::collection::vec(anything(), 1..25),
        seed in any::<prop::sample::Index>(),
    ) {
        let mut world = World::new();
        for op in &ops {
            world.take(op);
        }
        let mut facts: Vec<Op> = world.recorded()
            .map(|(names, holder)| Op::Hold(names.clone(), Some(holder)))
            .collect();
        facts.extend(world.facts.sources.iter().map(|(source, (_, names))| {
            Op::Put(source.clone(), 1, names.clone())
        }));
        let mut one = World::new();
        let mut other = World::new();
        one.facts.grants = world.facts.grants.clone();
        other.facts.grants = world.facts.grants.clone();
        for op in &facts {
            one.take(op);
        }
        if !facts.is_empty() {
            let start = seed.index(facts.len());
            facts.rotate_left(start);
        }
        for op in facts.iter().rev() {
            other.take(op);
        }
        prop_assert_eq!(&one.names, &other.names);
        // And nothing is left of what has gone.
        for op in &facts {
            match op {
                Op::Hold(names, _) => other.hold(names, None),
                Op::Put(source, ..) => other.put(source, 0, BTreeSet::new()),
                _ => AffectedNames::default(),
            };
        }
        other.names.settle(&other.facts.grants);
        prop_assert_eq!(other.names, GatewayNames::new(name("infra/gw")));
    }

    #[test]
    fn a_name_in_service_changes_its_owner_only_if_it_was_let_go_revoked_or_taken(
        ops in prop::collection::vec(with_a_leader(), 1..60),
    ) {
        let mut world = World::new();
        for op in ops {
            let claims = world.facts.claims.clone();
            let served: Vec<(Hostname, HostPattern, Arc<str>, Option<NameClaimState>)> = HOSTS
                .iter()
                .filter_map(|hostname| {
                    let (pattern, holder) = claim_on(&world.names, hostname, &claims)?;
                    let owner = world.names.owner(hostname);
                    let claim_state = world.names.claim_state(pattern);
                    (owner.as_ref() == Some(holder) && **holder != *OWN)
                        .then(|| (hostname.clone(), pattern.clone(), holder.clone(), claim_state))
                })
                .collect();
            world.take(&op);
            for (hostname, pattern, holder, claim_state) in served {
                if world.names.owner(&hostname).as_ref() == Some(&holder) {
                    continue;
                }
                let why = reason(&world, &hostname, (&pattern, &holder), (&claims, claim_state), &op);
                prop_assert!(why.is_some(), "{:?}: {} left {}", op, hostname, holder);
            }
        }
    }
}
