//! Owns the turns of connections that move bytes. A connection passes the gate for transfers before it moves more bytes
//! than it has paid for, and before it is looked at again.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::{GateKind, QueueEntry};
use crate::lifetime::Watched;
use crate::side::Side;

/// Bytes of one unit of transfers. A worker needs about as long for them as for looking at a connection and moving a
/// single byte. So that costs one unit as well.
const BYTES: u64 = 16 * 1024;
/// Bytes for which a datagram counts, if it is shorter. Each is copied and sent by itself.
const BYTES_OF_A_DATAGRAM: u64 = 2 * 1024;

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

impl<F: Watched> Watched for InTurn<F> {
    fn is_stalled(&self) -> bool {
        self.inner.is_stalled()
    }

    fn lost(&self) -> Option<Side> {
        self.inner.lost()
    }

    fn bytes(&self) -> u64 {
        self.inner.bytes()
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
        // One that moved nothing was looked at all the same. So the next poll has its turn too, which may be the one in
        // which the connection ends, together with thousands of others.
        this.turn.owe(moved.max(1));
        polled
    }
}
