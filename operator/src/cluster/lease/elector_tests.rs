use std::collections::BTreeSet;

use proptest::prelude::*;
use vestibule_test_support::properties::quick;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// The API server: one Lease, with optimistic concurrency.
#[derive(Debug, Default)]
struct Server {
    lease: Option<LeaseRecord>,
    version: u64,
    /// Terms in the order in which they were acquired.
    terms: Vec<u64>,
}

impl Server {
    fn apply(&mut self, step: &ElectionStep) -> Option<LeaseRecord> {
        let wanted = match (step, &self.lease) {
            (ElectionStep::Create(wanted), None) => wanted,
            (ElectionStep::Replace(version, wanted), Some(lease)) if *version == lease.version => {
                wanted
            }
            _ => return None,
        };
        self.version += 1;
        let record = LeaseRecord {
            holder: wanted.holder.clone(),
            duration: wanted.duration,
            term: wanted.term,
            address: wanted.address.clone(),
            transitions: wanted.transitions,
            version: self.version.to_string(),
        };
        if wanted.acquired {
            self.terms.push(wanted.term);
        }
        self.lease = Some(record.clone());
        Some(record)
    }
}

fn elector(name: &str) -> Elector {
    Elector::new(
        name.into(),
        format!("{name}:9443"),
        ElectionTiming::default(),
    )
}

/// Makes one attempt whose request and response take no time.
fn attempt(elector: &mut Elector, server: &mut Server, now: Instant, clock: u64) {
    elector.observe(server.lease.clone(), now);
    let step = elector.plan(now, clock, 0);
    if let Some(record) = server.apply(&step) {
        elector.written(record, now);
    }
}

#[test]
fn the_first_one_leads_and_the_second_knows_where() {
    let (mut a, mut b, mut server) = (elector("a"), elector("b"), Server::default());
    let start = Instant::now();
    attempt(&mut a, &mut server, start, 1_000);
    attempt(&mut b, &mut server, start, 1_000);
    assert_eq!(a.role(start).term(start), Some(1_000));
    let leader = Some("a:9443".to_owned());
    assert_eq!(b.role(start), Role::Following { leader });
    // Renewals keep the term and move the deadline.
    let later = start + 8 * SECOND;
    attempt(&mut a, &mut server, later, 1_008);
    assert_eq!(
        a.role(later + 9 * SECOND).term(later + 9 * SECOND),
        Some(1_000)
    );
    assert_eq!(server.terms, [1_000]);
}

#[test]
fn a_holder_that_cannot_renew_stops_before_another_may_begin() {
    let (mut a, mut b, mut server) = (elector("a"), elector("b"), Server::default());
    let start = Instant::now();
    attempt(&mut a, &mut server, start, 1);
    attempt(&mut b, &mut server, start, 1);
    let stopped = start + 10 * SECOND;
    assert_eq!(a.role(stopped), Role::Following { leader: None });
    attempt(&mut b, &mut server, stopped + 4 * SECOND, 1);
    assert!(b.role(stopped).term(stopped).is_none());
    let free = start + 15 * SECOND;
    attempt(&mut b, &mut server, free, 1);
    assert_eq!(b.role(free).term(free), Some(2));
    // The old holder comes back and follows.
    attempt(&mut a, &mut server, free, 1);
    let leader = Some("b:9443".to_owned());
    assert_eq!(a.role(free), Role::Following { leader });
}

#[test]
fn a_released_lease_is_free_at_once_and_keeps_its_term() {
    let (mut a, mut b, mut server) = (elector("a"), elector("b"), Server::default());
    let start = Instant::now();
    attempt(&mut a, &mut server, start, 7);
    let release = a.release().expect("it is held");
    let record = server.apply(&release).expect("nobody else wrote");
    a.written(record, start);
    assert!(a.role(start).term(start).is_none());
    assert_eq!(a.release(), None);
    attempt(&mut b, &mut server, start, 7);
    assert_eq!(b.role(start).term(start), Some(8));
}

#[test]
fn terms_rise_where_the_lease_was_deleted_and_where_the_clock_fell() {
    let (mut a, mut server) = (elector("a"), Server::default());
    let start = Instant::now();
    attempt(&mut a, &mut server, start, 5_000);
    server.lease = None;
    // A new process that saw no Lease has only the clock.
    let mut b = elector("b");
    attempt(&mut b, &mut server, start, 5_001);
    // A clock that went back does not matter as long as the Lease exists.
    let later = start + 20 * SECOND;
    let mut c = elector("c");
    attempt(&mut c, &mut server, start, 3);
    attempt(&mut c, &mut server, later, 3);
    assert_eq!(server.terms, [5_000, 5_001, 5_002]);
    // A term that this replica's proxies know counts as well.
    let d = elector("d");
    match d.plan(later, 3, 9_000) {
        ElectionStep::Create(wanted) => assert_eq!(wanted.term, 9_001),
        other => panic!("{other:?}"),
    }
}

#[test]
fn elector_that_saw_a_holder_waits_for_it_even_if_the_lease_was_deleted() {
    let (mut a, mut b, mut server) = (elector("a"), elector("b"), Server::default());
    let start = Instant::now();
    attempt(&mut a, &mut server, start, 1);
    attempt(&mut b, &mut server, start, 1);
    server.lease = None;
    attempt(&mut b, &mut server, start + SECOND, 1);
    assert_eq!(server.lease, None);
    // The holder creates it again, with its term.
    attempt(&mut a, &mut server, start + 2 * SECOND, 1);
    assert_eq!(server.lease.as_ref().map(|lease| lease.term), Some(1));
    assert_eq!(server.terms, [1]);
}

#[test]
fn the_same_identity_that_lost_its_time_begins_a_new_term() {
    let (mut a, mut server) = (elector("a"), Server::default());
    let start = Instant::now();
    attempt(&mut a, &mut server, start, 1);
    let later = start + 12 * SECOND;
    assert!(a.role(later).term(later).is_none());
    attempt(&mut a, &mut server, later, 1);
    assert_eq!(a.role(later).term(later), Some(2));
}

/// An event in a simulation with three candidates.
#[derive(Debug, Clone)]
enum Happening {
    Pass(u64),
    /// A candidate reads the Lease, and sends the step that it decides on.
    Send(usize, Read),
    /// The request reaches the server.
    Arrive(usize),
    /// The response reaches the candidate.
    Answer(usize),
    /// The request or the response is lost.
    Lose(usize),
    Release(usize),
    Delete,
}

#[derive(Debug, Clone, Copy)]
enum Read {
    Fresh,
    /// The candidate renews with what it knows.
    None,
}

fn happening() -> impl Strategy<Value = Happening> {
    let who = 0..3_usize;
    let read = prop_oneof![Just(Read::Fresh), Just(Read::None)];
    prop_oneof![
        4 => (0..4_000_u64).prop_map(Happening::Pass),
        1 => (4_000..20_000_u64).prop_map(Happening::Pass),
        6 => (who.clone(), read).prop_map(|(who, read)| Happening::Send(who, read)),
        6 => who.clone().prop_map(Happening::Arrive),
        6 => who.clone().prop_map(Happening::Answer),
        1 => who.clone().prop_map(Happening::Lose),
        1 => who.prop_map(Happening::Release),
    ]
}

#[derive(Debug)]
struct Candidate {
    elector: Elector,
    sent: Option<(ElectionStep, Instant)>,
    answer: Option<(Option<LeaseRecord>, Instant)>,
}

struct World {
    now: Instant,
    clock: u64,
    server: Server,
    candidates: Vec<Candidate>,
}

impl World {
    fn new() -> Self {
        let candidate = |name: &&str| Candidate {
            elector: elector(name),
            sent: None,
            answer: None,
        };
        Self {
            now: Instant::now(),
            clock: 100,
            server: Server::default(),
            candidates: ["a", "b", "c"].iter().map(candidate).collect(),
        }
    }

    fn step(&mut self, happening: &Happening) {
        let now = self.now;
        match happening {
            Happening::Pass(millis) => {
                self.now += Duration::from_millis(*millis);
                self.clock += millis;
            }
            Happening::Send(who, read) => {
                let candidate = &mut self.candidates[*who];
                if candidate.sent.is_some() || candidate.answer.is_some() {
                    return;
                }
                if matches!(read, Read::Fresh) {
                    candidate.elector.observe(self.server.lease.clone(), now);
                }
                let step = candidate.elector.plan(now, self.clock, 0);
                candidate.sent = Some((step, now));
            }
            Happening::Arrive(who) => {
                let candidate = &mut self.candidates[*who];
                if let Some((step, sent)) = candidate.sent.take() {
                    candidate.answer = Some((self.server.apply(&step), sent));
                }
            }
            Happening::Answer(who) => {
                let candidate = &mut self.candidates[*who];
                if let Some((Some(record), sent)) = candidate.answer.take() {
                    candidate.elector.written(record, sent);
                }
            }
            Happening::Lose(who) => {
                let candidate = &mut self.candidates[*who];
                candidate.sent = None;
                candidate.answer = None;
            }
            Happening::Release(who) => {
                let candidate = &mut self.candidates[*who];
                if candidate.sent.is_none() && candidate.answer.is_none() {
                    let release = candidate.elector.release();
                    // It stops leading before it releases the Lease.
                    candidate.elector.resign();
                    candidate.sent = release.map(|release| (release, now));
                }
            }
            Happening::Delete => self.server.lease = None,
        }
    }

    fn leaders(&self) -> Vec<u64> {
        let role = |c: &Candidate| c.elector.role(self.now).term(self.now);
        self.candidates.iter().filter_map(role).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(quick(512)))]

    /// However requests are delayed, lost or answered late, at most one candidate leads, and every
    /// term is new and above the earlier ones.
    #[test]
    fn never_two_leaders(happenings in prop::collection::vec(happening(), 1..400)) {
        let mut world = World::new();
        for happening in &happenings {
            world.step(happening);
            let leaders = world.leaders();
            prop_assert!(leaders.len() <= 1, "{leaders:?} after {happening:?}");
        }
        let terms = &world.server.terms;
        prop_assert!(terms.is_sorted_by(|a, b| a < b), "{terms:?}");
        let distinct: BTreeSet<_> = terms.iter().collect();
        prop_assert_eq!(distinct.len(), terms.len());
    }

    /// Whatever happened, once the network works, a candidate leads after a duration and a retry.
    #[test]
    fn somebody_leads_in_the_end(
        mut happenings in prop::collection::vec(happening(), 1..200),
        deleted in any::<bool>(),
    ) {
        let mut world = World::new();
        if deleted {
            happenings.push(Happening::Delete);
        }
        for happening in &happenings {
            world.step(happening);
        }
        for who in 0..3 {
            world.step(&Happening::Lose(who));
        }
        for _ in 0..10 {
            world.step(&Happening::Pass(2_000));
            for who in 0..3 {
                world.step(&Happening::Send(who, Read::Fresh));
                world.step(&Happening::Arrive(who));
                world.step(&Happening::Answer(who));
            }
        }
        prop_assert_eq!(world.leaders().len(), 1);
    }
}
