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
//! most one quantum, and the cost of one task, of each of the others. If there is nothing else to do, nothing is
//! delayed. While no task waits, passing a gate costs a comparison and an addition.
//!
//! Every step of a handshake passes the gate, and not only the first one, because a client can put off the work with
//! the key to a later step (TLS 1.3 by `HelloRetryRequest`, TLS 1.2 by its key exchange). From its
//! second poll on, a connection passes the gate at each poll. It pays there for the bytes that it moved since the previous poll.

mod transfer;

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::thread::LocalKey;

use vestibule_model::pattern::Steps;

use crate::close_reason::CloseReason;
use crate::quota::TenantQuota;
use crate::slots::Slots;

pub(crate) use transfer::{InTurn, Moves, TransferTurn};

/// Units of handshakes before the gate closes, and the quantum of a tenant. They take less than a millisecond, unless a
/// single handshake takes longer.
const HANDSHAKES_OF_A_TURN: u32 = 4;
/// Most handshakes that wait on one worker. If there are more, the oldest one of the longest line is dropped. A worker
/// does this many handshakes in less than a second.
const MOST_HANDSHAKES: usize = 1024;
/// Units of requests before the gate closes, and the quantum of a tenant. They take one or two milliseconds.
const REQUESTS_OF_A_TURN: u32 = 64;
/// Units of a connection to a backend that is opened for a request. To open and close it takes the kernel several times
/// as long as the request takes the worker.
const UNITS_OF_A_BACKEND_CONNECTION: u8 = 8;
/// Fields of a request's head that cost one more unit.
const FIELDS_OF_A_UNIT: usize = 32;
/// Bytes of a request's head that cost one more unit. A head of 64 KiB is read, checked and sent on in half a millisecond.
const HEAD_BYTES_OF_A_UNIT: usize = 1024;
/// Bytes of a backend that cost one unit of requests if no client gets anything of them. They are up to 16 interim heads
/// (1xx), or 28 frames of HTTP/2.
const BACKEND_BYTES_OF_A_UNIT: u64 = 256;
/// Units of transfers before the gate closes, and the quantum of a tenant. They are as many as one connection moves
/// through a pipe in one turn. (Fewer would be as fair, but the worker would look for other work more often than it is
/// worth.)
const BYTES_OF_A_TURN: u32 = 64;

/// The quota that a handshake is charged to, and its cost.
#[derive(Clone, Debug)]
pub(crate) struct HandshakeCost {
    pub(crate) account: Arc<TenantQuota>,
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
    /// It no longer waits. Its place in the line is skipped when its turn comes, so that leaving costs the same however
    /// long the line is.
    Left,
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

/// Waits in a [`line`] until the work for a request may begin, whose head has so many fields and bytes. Asks for the line
/// only if the gate is closed. They are those
/// after HTTP/2 has decoded them, where a client can repeat a field with one byte.
pub(crate) async fn pass_request(line: impl FnOnce() -> usize, fields: usize, bytes: usize) {
    let units = 1 + fields / FIELDS_OF_A_UNIT + bytes / HEAD_BYTES_OF_A_UNIT;
    pass_units(line, u8::try_from(units).unwrap_or(u8::MAX)).await;
}

/// Waits in a [`line`] until a search for the rule of a request may begin that takes at most so many [`Steps`]. It costs as
/// many units as there are requests that take as many steps together without a wait.
pub(crate) async fn pass_search(line: impl FnOnce() -> usize, steps: u32) {
    let units = steps / Steps::AT_ONCE;
    pass_units(line, u8::try_from(units).unwrap_or(u8::MAX)).await;
}

/// Waits in a [`line`] until a connection to a backend may be opened for a request. Returns whether it had to wait, since
/// a connection may have come free in the meantime.
pub(crate) async fn pass_backend_connection(line: impl FnOnce() -> usize) -> bool {
    pass_units(line, UNITS_OF_A_BACKEND_CONNECTION).await
}

/// Returns whether the gate was closed.
async fn pass_units(line: impl FnOnce() -> usize, units: u8) -> bool {
    let passed = REQUESTS.with_borrow_mut(|gate| gate.pass_if_open(units));
    if passed {
        return false;
    }
    let mut entry = QueueEntry::new(GateKind::Requests, line());
    // This gate has no limit on waiting tasks, so it never fails.
    let _ = poll_fn(|cx| entry.poll_pass(cx, units)).await;
    true
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

/// Identifies the line of a tenant. It is the address of the quota, of which a tenant has one as long as it is in
/// use. Work that belongs to no tenant has the line 0.
pub(crate) fn line(account: &Arc<TenantQuota>) -> usize {
    Arc::as_ptr(account).addr()
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
                None if gate.pass_if_open(units) => (Poll::Ready(Ok(())), None),
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
                gate.leave(ticket);
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
        // Whoever comes has to wait as soon as anybody waits, even if the turn has units left. Otherwise newcomers would
        // pass before the lines, in whatever order they come.
        self.driver.is_none() || (self.spent < self.turn && self.waiting.len == 0)
    }

    /// Passes units, if the gate is open.
    fn pass_if_open(&mut self, units: u8) -> bool {
        let is_open = self.is_open();
        if is_open {
            self.spend(units.into());
        }
        is_open
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

    /// The task of a ticket is gone, or goes on.
    fn leave(&mut self, ticket: usize) {
        if let Some(state @ State::Waits(_)) = self.states.get_mut(ticket) {
            *state = State::Left;
        } else {
            self.states.remove(ticket);
            self.states.shrink();
        }
    }

    fn poll(&mut self, ticket: usize, waker: &Waker) -> Poll<Result<(), QueueFull>> {
        match self.states.get_mut(ticket) {
            Some(State::Waits(known)) => {
                known.clone_from(waker);
                Poll::Pending
            }
            Some(State::Dropped) => Poll::Ready(Err(QueueFull)),
            Some(State::Admitted | State::Left) | None => Poll::Ready(Ok(())),
        }
    }

    /// Sets the state of a task that is no longer in a line, and returns its waker if it waits.
    fn tell(&mut self, ticket: usize, state: State) -> Option<Waker> {
        match std::mem::replace(self.states.get_mut(ticket)?, state) {
            State::Waits(waker) => Some(waker),
            State::Admitted | State::Dropped => None,
            State::Left => {
                self.states.remove(ticket);
                self.states.shrink();
                None
            }
        }
    }

    /// Opens the gate. Tasks that wait pass first. Returns the wakers of those that may pass.
    fn turn(&mut self) -> Vec<Waker> {
        self.spent = 0;
        let mut admitted = Vec::new();
        while self.spent < self.turn {
            let states = &mut self.states;
            let has_left = |ticket| matches!(states.get_mut(ticket), Some(State::Left) | None);
            let Some((ticket, units)) = self.waiting.pop(has_left) else {
                break;
            };
            // One that has left does no work.
            if let Some(waker) = self.tell(ticket, State::Admitted) {
                self.spend(units);
                admitted.push(waker);
            }
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
///
/// `round` has each tenant of `of` once, and no line is empty. The first task of a tenant adds it to both, and
/// [`Lines::close_if_empty`] removes it from both after its last task. So the tenant that has its turn always has a task.
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

    /// Removes the next task by deficit round robin, and returns its ticket and units. Those that have left cost their line
    /// nothing.
    ///
    /// A tenant passes tasks as long as its deficit covers them. Then it gets another quantum, and the next tenant has
    /// its turn. So even a task that costs more than one quantum passes after some rounds, and in the long run every
    /// tenant gets the same number of units.
    ///
    /// A turn ends with the last task of the line, or at a task that costs more than the deficit. So what is left of the
    /// deficit is less than the cost of one task, and with the next quantum it is less than both together. A tenant passes
    /// no more than that in one turn, unless it is alone.
    fn pop(&mut self, mut has_left: impl FnMut(usize) -> bool) -> Option<(usize, u32)> {
        loop {
            let tenant = *self.round.front()?;
            let line = self.of.get_mut(&tenant)?;
            let (ticket, units) = *line.waiting.front()?;
            let costs = if has_left(ticket) { 0 } else { units };
            // If there is only one tenant, it would wait for nobody but itself.
            if costs <= line.deficit || self.round.len() == 1 {
                line.deficit = line.deficit.saturating_sub(costs);
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
