//! Owns the gates of a worker. A gate bounds the expensive work that a worker does before it looks at everything else
//! that is ready, and shares this work fairly among tenants.
//!
//! There are three gates:
//!
//! - One is for TLS handshakes. A handshake costs a worker as much as thousands of small reads, and costs the client
//!   that begins it almost nothing.
//! - One is for HTTP requests. A tenant's clients can have thousands of them ready at one time, and take most of them back
//!   before they are answered. One that waits costs next to nothing, and nothing more if it is taken back.
//! - One is for transfers. A connection that moves many bytes keeps a worker busy for as long as both of its sides
//!   keep up, and a tenant can have hundreds of such connections, or thousands that move a few bytes each.
//!
//! After some units of work, a gate closes until the worker has looked at everything else that is ready. A task that
//! comes to a closed gate waits in the line of its tenant. The lines are served by deficit round robin (Shreedhar and
//! Varghese, 1995). So a tenant with a flood of connections fills only its own line, and another tenant waits for at
//! most one quantum of each of the others. If there is nothing else to do, nothing is delayed. While no task waits,
//! passing a gate costs a comparison and an addition.
//!
//! Every step of a handshake passes the gate, and not only the first one, because a client can put off the work with
//! the key to a later step (TLS 1.3 by `HelloRetryRequest`, TLS 1.2 by its key exchange). A connection that moved bytes
//! when it was polled last passes the gate the next time, and pays for those bytes then.

use std::cell::RefCell;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::num::NonZeroU32;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::thread::LocalKey;

use crate::close_reason::CloseReason;
use crate::quota::Account;
use crate::slots::Slots;

/// Units of handshakes before the gate closes, and the quantum of a tenant. They take less than a millisecond, unless a
/// single handshake takes longer.
const HANDSHAKES_OF_A_TURN: u32 = 4;
/// Most handshakes that wait on one worker. If there are more, the oldest one of the longest line is dropped. A worker
/// does this many handshakes in less than a second.
const MOST_HANDSHAKES: usize = 1024;
/// Units of requests before the gate closes, and the quantum of a tenant. They take one or two milliseconds.
const REQUESTS_OF_A_TURN: u32 = 64;
/// Units of a search for a rule that may take all the steps of a request
/// ([`Steps::OF_A_REQUEST`](vestibule_model::pattern::Steps::OF_A_REQUEST)), which are one or two milliseconds as well.
const UNITS_OF_A_SEARCH: u8 = 64;
/// Fields of a request's head that cost one more unit.
const FIELDS_OF_A_UNIT: usize = 32;
/// Bytes of a backend that cost one unit of requests if no client gets anything of them. They are up to 16 interim heads
/// (1xx), or 28 frames of HTTP/2.
const BACKEND_BYTES_OF_A_UNIT: u64 = 256;
/// Bytes of one unit of transfers. A worker needs about as long for them as for looking at a connection and moving a
/// single byte. So that costs one unit as well.
const BYTES: u64 = 16 * 1024;
/// Bytes for which a datagram counts, if it is shorter. Each is copied and sent by itself.
const BYTES_OF_A_DATAGRAM: u64 = 2 * 1024;
/// Units of transfers before the gate closes, and the quantum of a tenant. They are as many as one connection moves
/// through a pipe in one turn. (Fewer would be as fair, but the worker would look for other work more often than it is
/// worth.)
const BYTES_OF_A_TURN: u32 = 64;

/// The account that a handshake is charged to, and its cost.
#[derive(Clone, Debug)]
pub(crate) struct HandshakeCost {
    pub(crate) account: Arc<Account>,
    /// Cost, in units of a handshake with an ECDSA key on P-256.
    pub(crate) units: u8,
}

/// Too many handshakes of the tenant waited, and this one had waited longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueFull;

thread_local! {
    static HANDSHAKES: RefCell<Gate> =
        RefCell::new(Gate::new(HANDSHAKES_OF_A_TURN, MOST_HANDSHAKES));
    /// There is no limit on waiting requests and transfers, because there are limits on connections and streams.
    static REQUESTS: RefCell<Gate> = RefCell::new(Gate::new(REQUESTS_OF_A_TURN, usize::MAX));
    static TRANSFERS: RefCell<Gate> = RefCell::new(Gate::new(BYTES_OF_A_TURN, usize::MAX));
}

/// Which of the gates.
#[derive(Clone, Copy)]
enum GateKind {
    Handshakes,
    Requests,
    Transfers,
}

impl GateKind {
    fn gate(self) -> &'static LocalKey<RefCell<Gate>> {
        match self {
            Self::Handshakes => &HANDSHAKES,
            Self::Requests => &REQUESTS,
            Self::Transfers => &TRANSFERS,
        }
    }
}

/// A gate of one worker.
struct Gate {
    /// Units that may pass before it closes.
    turn: u32,
    /// Most tasks that may wait.
    most: usize,
    /// Wakes [`keep`], which opens the gate again. Without it, the gate is always open.
    driver: Option<Waker>,
    /// Units that have passed since the gate was opened last.
    spent: u32,
    waiting: Lines,
    states: Slots<State>,
}

/// The state of a task that came to a closed gate.
enum State {
    Waits(Waker),
    Admitted,
    Dropped,
}

/// Runs a handshake. Each of its steps passes the gate.
pub(crate) async fn pass<F: Future>(
    cost: HandshakeCost,
    handshake: F,
) -> Result<F::Output, QueueFull> {
    let mut handshake = pin!(handshake);
    let mut entry = QueueEntry::new(GateKind::Handshakes, line(&cost.account));
    poll_fn(|cx| {
        if let Err(full) = ready!(entry.poll_pass(cx, cost.units)) {
            cost.account.counts().refused_handshake();
            return Poll::Ready(Err(full));
        }
        handshake.as_mut().poll(cx).map(Ok)
    })
    .await
}

/// Waits in a [`line`] until the work for a request may begin, whose head has so many fields.
pub(crate) async fn pass_request(line: usize, fields: usize) {
    let units = 1 + fields / FIELDS_OF_A_UNIT;
    pass_units(line, u8::try_from(units).unwrap_or(u8::MAX)).await;
}

/// Waits in a [`line`] until a search for the rule of a request may begin that may take all of its steps.
pub(crate) async fn pass_search(line: usize) {
    pass_units(line, UNITS_OF_A_SEARCH).await;
}

async fn pass_units(line: usize, units: u8) {
    let mut entry = QueueEntry::new(GateKind::Requests, line);
    // This gate has no limit on waiting tasks, so it never fails.
    let _ = poll_fn(|cx| entry.poll_pass(cx, units)).await;
}

/// A place in the line of a tenant for the work that a backend causes without answering: it sends interim heads, frames
/// that serve no request, or the like. The connection passes the gate for requests before it reads more of them.
pub(crate) struct BackendTurn(QueueEntry);

impl BackendTurn {
    pub(crate) fn new() -> Self {
        Self(QueueEntry::new(GateKind::Requests, 0))
    }

    /// Waits in a [`line`] until more may be read of a backend that has sent so many bytes of which no client gets
    /// anything.
    pub(crate) fn poll_bytes(&mut self, cx: &mut Context<'_>, line: usize, bytes: u64) -> Poll<()> {
        let units = bytes.div_ceil(BACKEND_BYTES_OF_A_UNIT);
        self.poll_units(cx, line, u8::try_from(units).unwrap_or(u8::MAX))
    }

    fn poll_units(&mut self, cx: &mut Context<'_>, line: usize, units: u8) -> Poll<()> {
        if self.0.ticket.is_none() {
            self.0.line = line;
        }
        // This gate has no limit on waiting tasks, so it never fails.
        self.0.poll_pass(cx, units).map(|_| ())
    }
}

/// Identifies the line of a tenant. It is the address of the account, of which a tenant has one as long as it is in
/// use.
pub(crate) fn line(account: &Arc<Account>) -> usize {
    Arc::as_ptr(account).addr()
}

/// A future that moves bytes.
pub(crate) trait Moves {
    /// How many bytes it has moved so far.
    fn moved(&self) -> u64;

    /// The [`line`] of the tenant for whom it moves bytes now, if the tenant can change.
    fn line(&self) -> Option<usize> {
        None
    }
}

/// A place in the line of a tenant for moving bytes. How many are moved is known only afterwards, so they are paid for
/// before more are moved.
pub(crate) struct TransferTurn(QueueEntry);

impl TransferTurn {
    /// A place in a [`line`].
    pub(crate) fn new(line: usize) -> Self {
        Self(QueueEntry::new(GateKind::Transfers, line))
    }

    /// Waits until more may be moved. `line` is asked whether the tenant has changed.
    pub(crate) fn poll_pay(
        &mut self,
        cx: &mut Context<'_>,
        line: impl FnOnce() -> Option<usize>,
    ) -> Poll<()> {
        if self.0.owed > 0 {
            if self.0.ticket.is_none()
                && let Some(line) = line()
            {
                self.0.line = line;
            }
            // This gate has no limit on waiting tasks, so it never fails.
            let _ = ready!(self.0.poll_pass(cx, self.0.owed));
            self.0.owed = 0;
        }
        Poll::Ready(())
    }

    /// Counts bytes that were moved at once.
    pub(crate) fn owe(&mut self, bytes: u64) {
        if bytes > 0 {
            let units = (bytes / BYTES).max(1);
            self.0.owed = u8::try_from(units).unwrap_or(u8::MAX);
        }
    }

    /// Counts datagrams that were moved at once, with so many bytes in all.
    pub(crate) fn owe_datagrams(&mut self, datagrams: u64, bytes: u64) {
        self.owe(bytes.max(datagrams.saturating_mul(BYTES_OF_A_DATAGRAM)));
    }
}

/// Runs a future that moves bytes, and lets it pass the gate for transfers before it moves more.
pub(crate) struct InTurn<F> {
    inner: F,
    turn: TransferTurn,
}

impl<F> InTurn<F> {
    /// Runs `inner` in the line of a tenant, which [`line`] returns.
    pub(crate) fn new(inner: F, line: usize) -> Self {
        Self {
            inner,
            turn: TransferTurn::new(line),
        }
    }
}

impl<F: Future + Moves + Unpin> Future for InTurn<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.get_mut();
        ready!(this.turn.poll_pay(cx, || this.inner.line()));
        let before = this.inner.moved();
        let polled = Pin::new(&mut this.inner).poll(cx);
        let moved = this.inner.moved().saturating_sub(before);
        this.turn.owe(moved);
        polled
    }
}

/// An entry in the line of a tenant. Its `Drop` leaves the line. It is small, because every connection has one.
struct QueueEntry {
    line: usize,
    /// The index of its state plus one, if it waits.
    ticket: Option<NonZeroU32>,
    kind: GateKind,
    /// Units that the connection moved when it was polled last, and has not paid for yet.
    owed: u8,
}

impl QueueEntry {
    fn new(kind: GateKind, line: usize) -> Self {
        Self {
            line,
            ticket: None,
            kind,
            owed: 0,
        }
    }

    fn ticket(&self) -> Option<usize> {
        usize::try_from(self.ticket?.get()).ok()?.checked_sub(1)
    }

    fn poll_pass(&mut self, cx: &mut Context<'_>, units: u8) -> Poll<Result<(), QueueFull>> {
        let (passed, woken) = self
            .kind
            .gate()
            .with_borrow_mut(|gate| match self.ticket() {
                None if gate.is_open() => {
                    gate.spend(units.into());
                    (Poll::Ready(Ok(())), None)
                }
                None => {
                    let (ticket, dropped) = gate.wait(self.line, units, cx.waker());
                    self.ticket = u32::try_from(ticket + 1).ok().and_then(NonZeroU32::new);
                    (Poll::Pending, dropped)
                }
                Some(ticket) => (gate.poll(ticket, cx.waker()), None),
            });
        // This is outside of the borrow, because a waker may run code that borrows the gate.
        if let Some(waker) = woken {
            waker.wake();
        }
        if passed.is_ready() {
            self.leave();
        }
        passed
    }

    fn leave(&mut self) {
        let Some(ticket) = self.ticket() else {
            return;
        };
        self.ticket = None;
        // When a thread ends, the gate may be dropped before the futures.
        let _ = self.kind.gate().try_with(|gate| {
            if let Ok(mut gate) = gate.try_borrow_mut() {
                if matches!(gate.states.get_mut(ticket), Some(State::Waits(_))) {
                    gate.waiting.remove(self.line, ticket);
                }
                gate.states.remove(ticket);
                gate.states.shrink();
            }
        });
    }
}

impl Drop for QueueEntry {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Gate {
    fn new(turn: u32, most: usize) -> Self {
        Self {
            turn,
            most,
            driver: None,
            spent: 0,
            waiting: Lines::new(turn),
            states: Slots::new(),
        }
    }

    fn is_open(&self) -> bool {
        self.driver.is_none() || (self.spent < self.turn && self.waiting.len == 0)
    }

    fn spend(&mut self, units: u32) {
        self.spent = self.spent.saturating_add(units);
        if self.spent >= self.turn
            && let Some(driver) = &self.driver
        {
            // The driver runs after everything that is ready, and after what the I/O driver then finds to be ready.
            yield_now(&mut Context::from_waker(driver));
        }
    }

    /// Adds a task to a line. Returns its ticket and, if there were too many, the waker of the task that was dropped.
    fn wait(&mut self, line: usize, units: u8, waker: &Waker) -> (usize, Option<Waker>) {
        let ticket = self.states.insert(State::Waits(waker.clone()));
        self.waiting.push(line, ticket, units.into());
        let over = self.waiting.len > self.most;
        let dropped = over.then(|| self.waiting.pop_longest()).flatten();
        let woken = dropped.and_then(|ticket| self.tell(ticket, State::Dropped));
        (ticket, woken)
    }

    fn poll(&mut self, ticket: usize, waker: &Waker) -> Poll<Result<(), QueueFull>> {
        match self.states.get_mut(ticket) {
            Some(State::Waits(known)) => {
                known.clone_from(waker);
                Poll::Pending
            }
            Some(State::Dropped) => Poll::Ready(Err(QueueFull)),
            Some(State::Admitted) | None => Poll::Ready(Ok(())),
        }
    }

    /// Sets the state of a task that waits, and returns its waker.
    fn tell(&mut self, ticket: usize, state: State) -> Option<Waker> {
        match std::mem::replace(self.states.get_mut(ticket)?, state) {
            State::Waits(waker) => Some(waker),
            State::Admitted | State::Dropped => None,
        }
    }

    /// Opens the gate. Tasks that wait pass first. Returns the wakers of those that may pass.
    fn turn(&mut self) -> Vec<Waker> {
        self.spent = 0;
        let mut admitted = Vec::new();
        while self.spent < self.turn
            && let Some((ticket, units)) = self.waiting.pop()
        {
            self.spend(units);
            admitted.extend(self.tell(ticket, State::Admitted));
        }
        admitted
    }
}

/// Opens the gates of this thread again whenever they close, and never returns. Run it once per worker thread.
pub(crate) async fn keep() {
    tokio::join!(
        keep_one(GateKind::Handshakes),
        keep_one(GateKind::Requests),
        keep_one(GateKind::Transfers)
    );
}

async fn keep_one(kind: GateKind) {
    /// Leaves the gate open for good when the driver ends, so that no task waits for ever.
    struct OpenOnDrop(GateKind);
    impl Drop for OpenOnDrop {
        fn drop(&mut self) {
            let _ = self
                .0
                .gate()
                .try_with(|gate| gate.borrow_mut().driver = None);
        }
    }
    let _leave = OpenOnDrop(kind);
    poll_fn(|cx| {
        let admitted = kind.gate().with_borrow_mut(|gate| {
            gate.driver = Some(cx.waker().clone());
            gate.turn()
        });
        for waker in admitted {
            waker.wake();
        }
        Poll::<()>::Pending
    })
    .await;
}

/// The lines of waiting tasks, one for each tenant.
struct Lines {
    /// Units that a tenant gets at each of its turns.
    quantum: u32,
    of: HashMap<usize, Line>,
    /// Tenants that have a line. The first one has its turn.
    round: VecDeque<usize>,
    /// Number of tasks that wait, in all lines together.
    len: usize,
}

struct Line {
    /// Ticket and units of each task.
    waiting: VecDeque<(usize, u32)>,
    /// Units that the tenant may still use in this turn.
    deficit: u32,
}

impl Lines {
    fn new(quantum: u32) -> Self {
        Self {
            quantum,
            of: HashMap::new(),
            round: VecDeque::new(),
            len: 0,
        }
    }

    fn push(&mut self, tenant: usize, ticket: usize, units: u32) {
        let line = match self.of.entry(tenant) {
            Entry::Occupied(line) => line.into_mut(),
            Entry::Vacant(entry) => {
                self.round.push_back(tenant);
                entry.insert(Line {
                    waiting: VecDeque::new(),
                    deficit: self.quantum,
                })
            }
        };
        line.waiting.push_back((ticket, units));
        self.len += 1;
    }

    /// Removes the next task by deficit round robin, and returns its ticket and units.
    ///
    /// A tenant passes tasks as long as its deficit covers them. Then it gets another quantum, and the next tenant has
    /// its turn. So even a task that costs more than one quantum passes after some rounds, and in the long run every
    /// tenant gets the same number of units.
    fn pop(&mut self) -> Option<(usize, u32)> {
        loop {
            let tenant = *self.round.front()?;
            let line = self.of.get_mut(&tenant)?;
            let (ticket, units) = *line.waiting.front()?;
            // If there is only one tenant, it would wait for nobody but itself.
            if units <= line.deficit || self.round.len() == 1 {
                line.deficit = line.deficit.saturating_sub(units);
                line.waiting.pop_front();
                self.len -= 1;
                self.close_if_empty(tenant);
                return Some((ticket, units));
            }
            line.deficit = line.deficit.saturating_add(self.quantum);
            self.round.rotate_left(1);
        }
    }

    /// Removes the oldest task of the longest line, and returns its ticket.
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

    /// Removes the line of a tenant if it is empty. If the tenant comes back later, it begins with one quantum again,
    /// so no tenant can save up units.
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

impl From<QueueFull> for CloseReason {
    fn from(_: QueueFull) -> Self {
        Self::TooManyHandshakes
    }
}

/// Has the task polled again after the runtime has looked at the I/O driver.
///
/// If the task were woken at once, it would go to the run queue. The runtime looks at the I/O driver only after a
/// number of polls, so one connection with bytes at all times would keep the others of its thread waiting.
pub(crate) fn yield_now(cx: &mut Context<'_>) {
    // The first poll of this future is enough: it defers the waker until the I/O driver was looked at.
    let _ = std::pin::pin!(tokio::task::yield_now()).as_mut().poll(cx);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use parking_lot::Mutex;
    use proptest::prelude::*;

    use super::*;
    use crate::quota::Accounts;

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
            lines.pop();
        }
        lines.push(NEIGHBOUR, 7777, 1);
        let before = std::iter::from_fn(|| lines.pop()).position(|(ticket, _)| ticket == 7777);
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
        let full = |gate: &mut Gate, ticket| {
            gate.poll(ticket, Waker::noop()) == Poll::Ready(Err(QueueFull))
        };
        let given_up = flood.iter().filter(|of| full(&mut gate, **of)).count();
        assert_eq!(given_up, 3 * MOST_HANDSHAKES - (MOST_HANDSHAKES - 1));
        assert!(flood.iter().take(given_up).all(|of| full(&mut gate, *of)));
        assert!(!full(&mut gate, neighbour));
    }

    proptest! {
        /// Whoever comes and goes: everybody who stays is served, in the order of its line.
        #[test]
        fn nobody_is_left_behind(
            steps in prop::collection::vec((0_usize..4, prop_oneof![Just(1_u32), Just(4), Just(16)], 0_u8..4), 1..400),
        ) {
            let mut lines = Lines::new(QUANTUM);
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
        let accounts = Accounts::default();
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

    #[tokio::test]
    async fn requests_of_a_flood_leave_a_neighbour_its_turn() {
        let log = Log::default();
        let driver = tokio::spawn(keep());
        tokio::task::yield_now().await;
        let ask = |line, name| {
            let log = Arc::clone(&log);
            tokio::spawn(async move {
                pass_request(line, 0).await;
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
    async fn long_searches_leave_those_that_stand_and_a_neighbour_their_turn() {
        let log = Log::default();
        let driver = tokio::spawn(keep());
        tokio::task::yield_now().await;
        for (line, name, count) in [(1, "flood", 100), (2, "neighbour", 1)] {
            for _ in 0..count {
                let log = Arc::clone(&log);
                tokio::spawn(async move {
                    pass_search(line).await;
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
    async fn who_gives_up_leaves_no_place_behind() {
        let accounts = Accounts::default();
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
        all.truncate(7);
        assert_eq!(waiting(), (3, 3));
        drop(all);
        assert_eq!(waiting(), (0, 0));
        driver.abort();
    }
}
