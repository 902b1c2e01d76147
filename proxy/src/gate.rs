//! Owns the gate before TLS handshakes: how many a worker does before those that stand have their turn, and whose.
//!
//! A handshake costs a worker as much as thousands of small reads, and costs the client that begins it next to nothing. So
//! after [`TURN`] units of them the gate closes until the worker has looked at everything else that is ready. Who comes to a
//! closed gate waits in the line of its tenant, and the lines are served by deficit round robin (Shreedhar and Varghese,
//! 1995): a tenant that is flooded fills its own line, and its neighbour's handshake waits for one quantum of each
//! other tenant at most. While nobody waits, passing the gate is a comparison and an addition.
//!
//! Every step of a handshake passes the gate, not only the first one: a client can put off the work with the key to a
//! later step (TLS 1.3 by HelloRetryRequest, TLS 1.2 by its key exchange).

use std::cell::RefCell;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use crate::quota::Account;
use crate::relay::yield_now;
use crate::slots::Slots;

/// Units of handshakes that are begun before everything else that is ready has its turn: less than a millisecond, unless
/// a single one takes longer.
const TURN: u32 = 4;
/// Units that a tenant gets each time that it is its turn.
const QUANTUM: u32 = 4;
/// Handshakes that wait on one worker: beyond it the oldest one of the longest line is given up. A worker does as many in
/// less than a second.
const MOST_WAITING: usize = 1024;

/// Whose handshake it is, and what it costs.
#[derive(Clone, Debug)]
pub(crate) struct Entrant {
    pub(crate) account: Arc<Account>,
    /// In handshakes with an ECDSA key on P-256.
    pub(crate) units: u8,
}

/// Too many handshakes of the tenant wait, and this one had waited longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Crowded;

thread_local! {
    static GATE: RefCell<Gate> = RefCell::default();
}

/// The gate of one worker.
#[derive(Default)]
struct Gate {
    /// Wakes [`keep`]. Without it the gate is open.
    keeper: Option<Waker>,
    /// Units since the gate was opened last.
    spent: u32,
    waiting: Lines,
    states: Slots<State>,
}

/// How it stands with a handshake that came to a closed gate.
enum State {
    Waits(Waker),
    Admitted,
    Crowded,
}

/// Runs a handshake. Each of its steps passes the gate.
pub(crate) async fn pass<F: Future>(entrant: Entrant, handshake: F) -> Result<F::Output, Crowded> {
    let mut handshake = pin!(handshake);
    let mut place = Place {
        of: tenant(&entrant.account),
        ticket: None,
    };
    poll_fn(|cx| {
        if let Err(crowded) = ready!(place.poll_pass(cx, entrant.units)) {
            entrant.account.counts().refused_handshake();
            return Poll::Ready(Err(crowded));
        }
        handshake.as_mut().poll(cx).map(Ok)
    })
    .await
}

/// What tells a tenant's line from another one: there is one account of a tenant as long as it is held.
fn tenant(account: &Arc<Account>) -> usize {
    Arc::as_ptr(account).addr()
}

/// A place in a line, given back when dropped.
struct Place {
    of: usize,
    ticket: Option<usize>,
}

impl Place {
    fn poll_pass(&mut self, cx: &mut Context<'_>, units: u8) -> Poll<Result<(), Crowded>> {
        let (passed, woken) = GATE.with_borrow_mut(|gate| match self.ticket {
            None if gate.is_open() => {
                gate.spend(units.into());
                (Poll::Ready(Ok(())), None)
            }
            None => {
                let (ticket, crowded_out) = gate.wait(self.of, units, cx.waker());
                self.ticket = Some(ticket);
                (Poll::Pending, crowded_out)
            }
            Some(ticket) => (gate.poll(ticket, cx.waker()), None),
        });
        // Outside of the borrow: a waker may run code.
        if let Some(waker) = woken {
            waker.wake();
        }
        if passed.is_ready() {
            self.leave();
        }
        passed
    }

    fn leave(&mut self) {
        let Some(ticket) = self.ticket.take() else {
            return;
        };
        // At the end of a thread the gate may be gone before its futures.
        let _ = GATE.try_with(|gate| {
            if let Ok(mut gate) = gate.try_borrow_mut() {
                if matches!(gate.states.get_mut(ticket), Some(State::Waits(_))) {
                    gate.waiting.remove(self.of, ticket);
                }
                gate.states.remove(ticket);
                gate.states.shrink();
            }
        });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Gate {
    fn is_open(&self) -> bool {
        self.keeper.is_none() || (self.spent < TURN && self.waiting.len == 0)
    }

    fn spend(&mut self, units: u32) {
        self.spent = self.spent.saturating_add(units);
        if self.spent >= TURN
            && let Some(keeper) = &self.keeper
        {
            // Behind all that is ready, and what the driver finds to be ready.
            yield_now(&mut Context::from_waker(keeper));
        }
    }

    /// A place in line, and who is to be told that there is none any more.
    fn wait(&mut self, tenant: usize, units: u8, waker: &Waker) -> (usize, Option<Waker>) {
        let ticket = self.states.insert(State::Waits(waker.clone()));
        self.waiting.push(tenant, ticket, units.into());
        let over = self.waiting.len > MOST_WAITING;
        let crowded_out = over.then(|| self.waiting.pop_longest()).flatten();
        let woken = crowded_out.and_then(|ticket| self.tell(ticket, State::Crowded));
        (ticket, woken)
    }

    fn poll(&mut self, ticket: usize, waker: &Waker) -> Poll<Result<(), Crowded>> {
        match self.states.get_mut(ticket) {
            Some(State::Waits(known)) => {
                known.clone_from(waker);
                Poll::Pending
            }
            Some(State::Crowded) => Poll::Ready(Err(Crowded)),
            Some(State::Admitted) | None => Poll::Ready(Ok(())),
        }
    }

    /// The waker of who waits with `ticket`.
    fn tell(&mut self, ticket: usize, state: State) -> Option<Waker> {
        match std::mem::replace(self.states.get_mut(ticket)?, state) {
            State::Waits(waker) => Some(waker),
            State::Admitted | State::Crowded => None,
        }
    }

    /// Opens the gate, for those first who wait. Returns whom to wake.
    fn turn(&mut self) -> Vec<Waker> {
        self.spent = 0;
        let mut admitted = Vec::new();
        while self.spent < TURN
            && let Some((ticket, units)) = self.waiting.pop()
        {
            self.spend(units);
            admitted.extend(self.tell(ticket, State::Admitted));
        }
        admitted
    }
}

/// Opens this thread's gate again whenever it closes, for ever. To run once per worker thread.
pub(crate) async fn keep() {
    /// Nothing waits at a gate that nobody would open.
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            let _ = GATE.try_with(|gate| gate.borrow_mut().keeper = None);
        }
    }
    let _leave = Leave;
    poll_fn(|cx| {
        let admitted = GATE.with_borrow_mut(|gate| {
            gate.keeper = Some(cx.waker().clone());
            gate.turn()
        });
        for waker in admitted {
            waker.wake();
        }
        Poll::Pending
    })
    .await
}

/// The lines of those who wait, one for each tenant.
#[derive(Default)]
struct Lines {
    of: HashMap<usize, Line>,
    /// Tenants that have a line. It is the turn of the first one.
    round: VecDeque<usize>,
    /// Who waits, in all lines.
    len: usize,
}

struct Line {
    /// Ticket and units of each.
    waiting: VecDeque<(usize, u32)>,
    /// Units that the tenant may still use in this turn.
    deficit: u32,
}

impl Lines {
    fn push(&mut self, tenant: usize, ticket: usize, units: u32) {
        let line = match self.of.entry(tenant) {
            Entry::Occupied(line) => line.into_mut(),
            Entry::Vacant(place) => {
                self.round.push_back(tenant);
                place.insert(Line {
                    waiting: VecDeque::new(),
                    deficit: QUANTUM,
                })
            }
        };
        line.waiting.push_back((ticket, units));
        self.len += 1;
    }

    /// The next one by deficit round robin.
    fn pop(&mut self) -> Option<(usize, u32)> {
        loop {
            let tenant = *self.round.front()?;
            let line = self.of.get_mut(&tenant)?;
            let (ticket, units) = *line.waiting.front()?;
            // Alone it would only wait for itself.
            if units <= line.deficit || self.round.len() == 1 {
                line.deficit = line.deficit.saturating_sub(units);
                line.waiting.pop_front();
                self.len -= 1;
                self.close_if_empty(tenant);
                return Some((ticket, units));
            }
            line.deficit += QUANTUM;
            self.round.rotate_left(1);
        }
    }

    /// The oldest one of the longest line.
    fn pop_longest(&mut self) -> Option<usize> {
        let longest = self.of.iter().max_by_key(|(_, line)| line.waiting.len());
        let tenant = longest.map(|(tenant, _)| *tenant)?;
        let (ticket, _) = self.of.get_mut(&tenant)?.waiting.pop_front()?;
        self.len -= 1;
        self.close_if_empty(tenant);
        Some(ticket)
    }

    fn remove(&mut self, tenant: usize, ticket: usize) {
        if let Some(line) = self.of.get_mut(&tenant) {
            let before = line.waiting.len();
            line.waiting.retain(|(of, _)| *of != ticket);
            self.len -= before - line.waiting.len();
            self.close_if_empty(tenant);
        }
    }

    /// A tenant that comes back later begins with one quantum: nobody saves units up.
    fn close_if_empty(&mut self, tenant: usize) {
        if !self
            .of
            .get(&tenant)
            .is_some_and(|line| line.waiting.is_empty())
        {
            return;
        }
        self.of.remove(&tenant);
        if self.round.front() == Some(&tenant) {
            self.round.pop_front();
        } else {
            self.round.retain(|of| *of != tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use proptest::prelude::*;

    use super::*;
    use crate::quota::Accounts;

    const FLOOD: usize = 1;
    const NEIGHBOUR: usize = 2;

    #[test]
    fn a_neighbours_handshake_waits_for_one_quantum_of_each_other_tenant() {
        let mut lines = Lines::default();
        for ticket in 0..1000 {
            for flooded in 10..15 {
                lines.push(flooded, ticket, 1);
            }
        }
        for _ in 0..7 {
            lines.pop();
        }
        lines.push(NEIGHBOUR, 7777, 1);
        let before = std::iter::from_fn(|| lines.pop()).position(|(ticket, _)| ticket == 7777);
        assert!(before.unwrap() <= 5 * QUANTUM as usize, "{before:?}");
    }

    #[test]
    fn tenants_share_units_and_not_handshakes() {
        let mut lines = Lines::default();
        // Handshakes with RSA-4096 beside some with ECDSA.
        for ticket in 0..1000 {
            lines.push(FLOOD, ticket, 16);
            lines.push(NEIGHBOUR, ticket, 1);
        }
        let (mut of_flood, mut of_neighbour) = (0, 0);
        for _ in 0..500 {
            match lines.pop().unwrap() {
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
            keeper: Some(Waker::noop().clone()),
            spent: TURN,
            ..Gate::default()
        };
        let waits = |gate: &mut Gate, tenant| gate.wait(tenant, 1, Waker::noop()).0;
        let neighbour = waits(&mut gate, NEIGHBOUR);
        let flood: Vec<usize> = (0..3 * MOST_WAITING)
            .map(|_| waits(&mut gate, FLOOD))
            .collect();
        assert_eq!(gate.waiting.len, MOST_WAITING);
        let crowded =
            |gate: &mut Gate, ticket| gate.poll(ticket, Waker::noop()) == Poll::Ready(Err(Crowded));
        let given_up = flood.iter().filter(|of| crowded(&mut gate, **of)).count();
        assert_eq!(given_up, 3 * MOST_WAITING - (MOST_WAITING - 1));
        assert!(
            flood
                .iter()
                .take(given_up)
                .all(|of| crowded(&mut gate, *of))
        );
        assert!(!crowded(&mut gate, neighbour));
    }

    proptest! {
        /// Whoever comes and goes: everybody who stays is served, in the order of its line.
        #[test]
        fn nobody_is_left_behind(
            steps in prop::collection::vec((0_usize..4, prop_oneof![Just(1_u32), Just(4), Just(16)], 0_u8..4), 1..400),
        ) {
            let mut lines = Lines::default();
            let mut waiting: [VecDeque<usize>; 4] = Default::default();
            for (ticket, (tenant, units, what)) in steps.into_iter().enumerate() {
                match what {
                    0 => {
                        if let Some(gone) = waiting[tenant].pop_back() {
                            lines.remove(tenant, gone);
                        }
                    }
                    1 => {
                        let popped = lines.pop().map(|(ticket, _)| ticket);
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
            while lines.pop().is_some() {}
            prop_assert!(lines.of.is_empty() && lines.round.is_empty() && lines.len == 0);
        }
    }

    type Log = Arc<Mutex<Vec<&'static str>>>;

    /// A handshake of one step, which notes that it was done.
    fn begin(entrant: &Entrant, log: &Log, name: &'static str) {
        let log = Arc::clone(log);
        let handshake = async move { log.lock().push(name) };
        tokio::spawn(pass(entrant.clone(), handshake));
    }

    fn floods(of: &[&str]) -> usize {
        of.iter().filter(|name| **name == "flood").count()
    }

    #[tokio::test]
    async fn a_flood_leaves_those_that_stand_and_a_neighbour_their_turn() {
        let accounts = Accounts::default();
        let entrant = |tenant: &str| Entrant {
            account: accounts.of(&tenant.into()),
            units: 1,
        };
        let (flood, neighbour) = (entrant("flood"), entrant("neighbour"));
        let log = Log::default();
        let keeper = tokio::spawn(keep());
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
        keeper.abort();
        let log = log.lock();
        let at = log.iter().position(|of| *of == "neighbour").unwrap();
        // Those that came to an open gate, and one quantum.
        let before = floods(&log[..at]);
        assert!(before <= (TURN + QUANTUM) as usize, "{before}");
        for between in log.split(|of| *of == "stands") {
            assert!(floods(between) <= 2 * TURN as usize, "{between:?}");
        }
        assert_eq!(flood.account.counts().refused_handshakes(), 0);
    }

    #[tokio::test]
    async fn who_gives_up_leaves_no_place_behind() {
        let accounts = Accounts::default();
        let entrant = Entrant {
            account: accounts.of(&"a".into()),
            units: 1,
        };
        let keeper = tokio::spawn(keep());
        tokio::task::yield_now().await;
        let waiting = || GATE.with_borrow(|gate| (gate.waiting.len, gate.states.len()));
        let mut all: Vec<_> = (0..10)
            .map(|_| Box::pin(pass(entrant.clone(), std::future::pending::<()>())))
            .collect();
        for of in &mut all {
            assert!(futures::poll!(of).is_pending());
        }
        assert_eq!(waiting(), (6, 6));
        all.truncate(7);
        assert_eq!(waiting(), (3, 3));
        drop(all);
        assert_eq!(waiting(), (0, 0));
        keeper.abort();
    }
}
