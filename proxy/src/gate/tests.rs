use std::collections::HashSet;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use proptest::prelude::*;

use super::*;
use crate::quota::TenantQuotas;

const QUANTUM: u32 = 4;
const FLOOD: usize = 1;
const NEIGHBOUR: usize = 2;

#[test]
fn a_neighbours_handshake_waits_for_one_quantum_of_each_other_tenant() {
    let mut lines = Lines::new(QUANTUM);
    for ticket in 0..1000 {
        for flooded in 10..15 {
            lines.push(flooded, ticket, 1);
        }
    }
    for _ in 0..7 {
        lines.pop(|_| false);
    }
    lines.push(NEIGHBOUR, 7777, 1);
    let before = std::iter::from_fn(|| lines.pop(|_| false)).position(|(ticket, _)| ticket == 7777);
    assert!(before.unwrap() <= 5 * QUANTUM as usize, "{before:?}");
}

#[test]
fn tenants_share_units_and_not_handshakes() {
    let mut lines = Lines::new(QUANTUM);
    // Handshakes with RSA-4096 beside some with ECDSA.
    for ticket in 0..1000 {
        lines.push(FLOOD, ticket, 16);
        lines.push(NEIGHBOUR, ticket, 1);
    }
    let (mut of_flood, mut of_neighbour) = (0, 0);
    for _ in 0..500 {
        match lines.pop(|_| false).unwrap() {
            (_, 1) => of_neighbour += 1,
            (_, units) => of_flood += units,
        }
    }
    let apart = of_flood.abs_diff(of_neighbour);
    assert!(apart <= 16 + QUANTUM, "{of_flood} and {of_neighbour}");
}

#[test]
fn the_oldest_of_the_longest_line_is_given_up() {
    let mut gate = Gate {
        driver: Some(Waker::noop().clone()),
        spent: QUANTUM,
        ..Gate::new(QUANTUM, MOST_HANDSHAKES)
    };
    let waits = |gate: &mut Gate, tenant| gate.wait(tenant, 1, Waker::noop()).0;
    let neighbour = waits(&mut gate, NEIGHBOUR);
    let flood: Vec<usize> = (0..3 * MOST_HANDSHAKES)
        .map(|_| waits(&mut gate, FLOOD))
        .collect();
    assert_eq!(gate.waiting.len, MOST_HANDSHAKES);
    let full =
        |gate: &mut Gate, ticket| gate.poll(ticket, Waker::noop()) == Poll::Ready(Err(QueueFull));
    let given_up = flood.iter().filter(|of| full(&mut gate, **of)).count();
    assert_eq!(given_up, 3 * MOST_HANDSHAKES - (MOST_HANDSHAKES - 1));
    assert!(flood.iter().take(given_up).all(|of| full(&mut gate, *of)));
    assert!(!full(&mut gate, neighbour));
}

proptest! {
    /// Whoever comes and goes: everybody who stays is served, in the order of its line.
    #[test]
    fn waiters_that_stay_are_all_served_in_the_order_of_their_line(
        steps in prop::collection::vec((0_usize..4, prop_oneof![Just(1_u32), Just(4), Just(16)], 0_u8..4), 1..400),
    ) {
        let mut lines = Lines::new(QUANTUM);
        let mut waiting: [VecDeque<usize>; 4] = Default::default();
        let mut left = HashSet::<usize>::new();
        for (ticket, (tenant, units, what)) in steps.into_iter().enumerate() {
            match what {
                0 => {
                    left.extend(waiting[tenant].back());
                }
                1 => {
                    let popped = lines.pop(|ticket| left.contains(&ticket)).map(|(ticket, _)| ticket);
                    let of = popped.map(|ticket| waiting.iter_mut().find(|of| of.front() == Some(&ticket)));
                    match of {
                        Some(of) => prop_assert!(of.is_some_and(|of| of.pop_front().is_some())),
                        None => prop_assert!(waiting.iter().all(VecDeque::is_empty)),
                    }
                }
                _ => {
                    lines.push(tenant, ticket, units);
                    waiting[tenant].push_back(ticket);
                }
            }
            prop_assert_eq!(lines.len, waiting.iter().map(VecDeque::len).sum::<usize>());
            prop_assert_eq!(lines.round.len(), lines.of.len());
        }
        while lines.pop(|_| false).is_some() {}
        prop_assert!(lines.of.is_empty() && lines.round.is_empty() && lines.len == 0);
    }
}

type Log = Arc<Mutex<Vec<&'static str>>>;

/// A handshake of one step, which notes that it was done.
fn begin(cost: &HandshakeCost, log: &Log, name: &'static str) {
    let log = Arc::clone(log);
    let handshake = async move { log.lock().push(name) };
    tokio::spawn(pass(cost.clone(), handshake));
}

fn floods(of: &[&str]) -> usize {
    of.iter().filter(|name| **name == "flood").count()
}

#[tokio::test]
async fn a_flood_leaves_those_that_stand_and_a_neighbour_their_turn() {
    let accounts = TenantQuotas::default();
    let cost = |tenant: &str| HandshakeCost {
        account: accounts.of(&tenant.into()),
        units: 1,
    };
    let (flood, neighbour) = (cost("flood"), cost("neighbour"));
    let log = Log::default();
    let driver = tokio::spawn(keep());
    tokio::task::yield_now().await;
    for _ in 0..500 {
        begin(&flood, &log, "flood");
    }
    begin(&neighbour, &log, "neighbour");
    // Somebody that stands, and is always ready.
    while floods(&log.lock()) < 500 {
        log.lock().push("stands");
        tokio::task::yield_now().await;
    }
    driver.abort();
    let log = log.lock();
    let at = log.iter().position(|of| *of == "neighbour").unwrap();
    // Those that came to an open gate, and one quantum.
    let before = floods(&log[..at]);
    assert!(before <= (2 * QUANTUM) as usize, "{before}");
    for between in log.split(|of| *of == "stands") {
        assert!(floods(between) <= 2 * QUANTUM as usize, "{between:?}");
    }
    assert_eq!(flood.account.counts().refused_handshakes(), 0);
}

/// A connection whose both sides keep up, so that it moves as much as it may whenever it is polled.
struct Bulk {
    moved: u64,
    at_once: u64,
    all: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
}

impl Moves for Bulk {
    fn moved(&self) -> u64 {
        self.moved
    }
}

impl Future for Bulk {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.ends.load(Ordering::SeqCst) {
            return Poll::Ready(());
        }
        self.moved += self.at_once;
        self.all.fetch_add(self.at_once, Ordering::SeqCst);
        yield_now(cx);
        Poll::Pending
    }
}

#[tokio::test]
async fn tenants_share_bytes_and_not_connections() {
    const MIB: u64 = 1 << 20;
    let driver = tokio::spawn(keep());
    tokio::task::yield_now().await;
    let ends = Arc::new(AtomicBool::new(false));
    let [of_many, of_one] = [200, 1].map(|connections| {
        let all = Arc::<AtomicU64>::default();
        for _ in 0..connections {
            let bulk = Bulk {
                moved: 0,
                at_once: MIB,
                all: Arc::clone(&all),
                ends: Arc::clone(&ends),
            };
            tokio::spawn(InTurn::new(bulk, connections));
        }
        all
    });
    let moved = || [&of_many, &of_one].map(|of| of.load(Ordering::SeqCst));
    // The first time is free.
    while moved()[0] < 200 * MIB {
        tokio::task::yield_now().await;
    }
    let [before_of_many, before_of_one] = moved();
    // Somebody that stands, and is always ready.
    let mut last = moved();
    while moved()[1] - before_of_one < 100 * MIB {
        tokio::task::yield_now().await;
        let now = moved();
        let between = now[0] + now[1] - last[0] - last[1];
        assert!(between <= 4 * MIB, "{between}");
        last = now;
    }
    let [of_many, of_one] = moved();
    let (of_many, of_one) = (of_many - before_of_many, of_one - before_of_one);
    assert!(
        of_many.abs_diff(of_one) <= 8 * MIB,
        "{of_many} and {of_one}"
    );
    ends.store(true, Ordering::SeqCst);
    driver.abort();
}

#[tokio::test]
async fn a_neighbour_waits_for_two_turns_of_those_who_move_little() {
    let driver = tokio::spawn(keep());
    tokio::task::yield_now().await;
    let ends = Arc::new(AtomicBool::new(false));
    let [of_many, of_one] = [600, 1].map(|connections| {
        let all = Arc::<AtomicU64>::default();
        for _ in 0..connections {
            let bulk = Bulk {
                moved: 0,
                at_once: 1,
                all: Arc::clone(&all),
                ends: Arc::clone(&ends),
            };
            tokio::spawn(InTurn::new(bulk, connections));
        }
        all
    });
    let moved = || [&of_many, &of_one].map(|of| of.load(Ordering::SeqCst));
    // The first time is free.
    while moved()[0] < 600 {
        tokio::task::yield_now().await;
    }
    let [before_of_many, before_of_one] = moved();
    while moved()[1] - before_of_one < 50 {
        tokio::task::yield_now().await;
    }
    let each = (moved()[0] - before_of_many) / 50;
    assert!(each <= 2 * u64::from(BYTES_OF_A_TURN), "{each}");
    ends.store(true, Ordering::SeqCst);
    driver.abort();
}

/// A connection on which nothing happens until its client closes it.
struct Idle {
    closed: Arc<AtomicBool>,
    wakers: Arc<Mutex<Vec<Waker>>>,
    log: Log,
}

impl Moves for Idle {
    fn moved(&self) -> u64 {
        0
    }
}

impl Future for Idle {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.closed.load(Ordering::SeqCst) {
            self.log.lock().push("flood");
            return Poll::Ready(());
        }
        self.wakers.lock().push(cx.waker().clone());
        Poll::Pending
    }
}

#[tokio::test]
async fn connections_that_close_together_leave_others_their_turn() {
    const CONNECTIONS: usize = 1000;
    let log = Log::default();
    let driver = tokio::spawn(keep());
    tokio::task::yield_now().await;
    let (closed, wakers) = (
        Arc::<AtomicBool>::default(),
        Arc::<Mutex<Vec<_>>>::default(),
    );
    for _ in 0..CONNECTIONS {
        let idle = Idle {
            closed: Arc::clone(&closed),
            wakers: Arc::clone(&wakers),
            log: Arc::clone(&log),
        };
        tokio::spawn(InTurn::new(idle, 1));
    }
    while wakers.lock().len() < CONNECTIONS {
        tokio::task::yield_now().await;
    }
    closed.store(true, Ordering::SeqCst);
    for waker in wakers.lock().drain(..) {
        waker.wake();
    }
    // Something that becomes ready after all of them.
    let neighbour = tokio::spawn(async {});
    neighbour.await.unwrap();
    let before = floods(&log.lock());
    assert!(before <= 2 * BYTES_OF_A_TURN as usize, "{before}");
    while floods(&log.lock()) < CONNECTIONS {
        tokio::task::yield_now().await;
    }
    driver.abort();
}

#[tokio::test]
async fn requests_of_a_flood_leave_a_neighbour_its_turn() {
    let log = Log::default();
    let driver = tokio::spawn(keep());
    tokio::task::yield_now().await;
    let ask = |line, name| {
        let log = Arc::clone(&log);
        tokio::spawn(async move {
            pass_request(|| line, 0, 0).await;
            log.lock().push(name);
        })
    };
    let mut flood: Vec<_> = (0..2000).map(|_| ask(1, "flood")).collect();
    let neighbour = ask(2, "neighbour");
    // All have come to the gate, and those that it let through have passed.
    tokio::task::yield_now().await;
    for waiting in flood.drain(1000..) {
        waiting.abort();
    }
    neighbour.await.unwrap();
    let most = 3 * REQUESTS_OF_A_TURN as usize;
    assert!(floods(&log.lock()) <= most, "{}", floods(&log.lock()));
    for one in flood {
        one.await.unwrap();
    }
    driver.abort();
    assert_eq!(floods(&log.lock()), 1000);
}

#[tokio::test]
async fn large_heads_leave_a_neighbour_its_turn_earlier() {
    let log = Log::default();
    let driver = tokio::spawn(keep());
    tokio::task::yield_now().await;
    for (line, name, count, bytes) in [(1, "flood", 400, 60 * 1024), (2, "neighbour", 1, 100)] {
        for _ in 0..count {
            let log = Arc::clone(&log);
            tokio::spawn(async move {
                pass_request(|| line, 0, bytes).await;
                log.lock().push(name);
            });
        }
    }
    let is_there = |log: &Log| log.lock().contains(&"neighbour");
    while !is_there(&log) {
        tokio::task::yield_now().await;
    }
    // Each of them costs 16 units.
    let most = 3 * REQUESTS_OF_A_TURN as usize / 16;
    assert!(floods(&log.lock()) <= most, "{}", floods(&log.lock()));
    driver.abort();
}

#[tokio::test]
async fn connections_to_backends_leave_a_neighbour_its_turn_earlier() {
    let log = Log::default();
    let driver = tokio::spawn(keep());
    tokio::task::yield_now().await;
    for (line, name, count) in [(1, "flood", 400), (2, "neighbour", 1)] {
        for _ in 0..count {
            let log = Arc::clone(&log);
            tokio::spawn(async move {
                pass_backend_connection(|| line).await;
                log.lock().push(name);
            });
        }
    }
    while !log.lock().contains(&"neighbour") {
        tokio::task::yield_now().await;
    }
    let most = 3 * REQUESTS_OF_A_TURN as usize / usize::from(UNITS_OF_A_BACKEND_CONNECTION);
    assert!(floods(&log.lock()) <= most, "{}", floods(&log.lock()));
    driver.abort();
}

#[tokio::test]
async fn long_searches_leave_those_that_stand_and_a_neighbour_their_turn() {
    let log = Log::default();
    let driver = tokio::spawn(keep());
    tokio::task::yield_now().await;
    for (line, name, count) in [(1, "flood", 100), (2, "neighbour", 1)] {
        for _ in 0..count {
            let log = Arc::clone(&log);
            tokio::spawn(async move {
                pass_search(|| line, Steps::OF_A_REQUEST).await;
                log.lock().push(name);
            });
        }
    }
    // Somebody that stands, and is always ready.
    while floods(&log.lock()) < 100 {
        log.lock().push("stands");
        tokio::task::yield_now().await;
    }
    driver.abort();
    let log = log.lock();
    let at = log.iter().position(|of| *of == "neighbour").unwrap();
    assert!(floods(&log[..at]) <= 4, "{log:?}");
    for between in log.split(|of| *of == "stands") {
        assert!(floods(between) <= 1, "{between:?}");
    }
}

#[tokio::test]
async fn one_connection_alone_moves_whenever_it_can() {
    let driver = tokio::spawn(keep());
    tokio::task::yield_now().await;
    let (all, ends) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
    let bulk = Bulk {
        moved: 0,
        at_once: 1 << 20,
        all: Arc::clone(&all),
        ends: Arc::clone(&ends),
    };
    let task = tokio::spawn(InTurn::new(bulk, 1));
    let mut turns = 0;
    while all.load(Ordering::SeqCst) < 100 << 20 {
        tokio::task::yield_now().await;
        turns += 1;
    }
    assert!(turns <= 210, "{turns}");
    ends.store(true, Ordering::SeqCst);
    task.await.unwrap();
    driver.abort();
}

#[tokio::test]
async fn handshakes_that_are_given_up_leave_no_place_behind() {
    let accounts = TenantQuotas::default();
    let cost = HandshakeCost {
        account: accounts.of(&"a".into()),
        units: 1,
    };
    let driver = tokio::spawn(keep());
    tokio::task::yield_now().await;
    let waiting = || HANDSHAKES.with_borrow(|gate| (gate.waiting.len, gate.states.len()));
    let mut all: Vec<_> = (0..10)
        .map(|_| Box::pin(pass(cost.clone(), std::future::pending::<()>())))
        .collect();
    for of in &mut all {
        assert!(futures::poll!(of).is_pending());
    }
    assert_eq!(waiting(), (6, 6));
    drop(all);
    // Their places are skipped at the next turn.
    while waiting() != (0, 0) {
        tokio::task::yield_now().await;
    }
    driver.abort();
}

#[test]
fn those_that_have_left_take_nobodys_turn() {
    let mut gate = Gate {
        driver: Some(Waker::noop().clone()),
        spent: QUANTUM,
        ..Gate::new(QUANTUM, usize::MAX)
    };
    let wait = |gate: &mut Gate| gate.wait(FLOOD, 1, Waker::noop()).0;
    let leaving: Vec<usize> = (0..1000).map(|_| wait(&mut gate)).collect();
    let stays = wait(&mut gate);
    for ticket in leaving {
        gate.leave(ticket);
    }
    assert_eq!(gate.turn().len(), 1);
    assert!(gate.poll(stays, Waker::noop()).is_ready());
    gate.leave(stays);
    assert_eq!((gate.waiting.len, gate.states.len()), (0, 0));
}

#[tokio::test]
async fn gate_that_is_open_asks_for_no_line() {
    pass_request(|| panic!("the gate is open"), 0, 0).await;
}
