//! Owns the bound on responses that wait in memory for one HTTP/2 client.
//!
//! h2 bounds only what waits for each single request. A client that makes many requests and reads nothing would have
//! all of that kept, whatever its windows are. So the pieces of all responses of a connection are counted, from when
//! they leave the connection to the backend until the client's socket has taken them. While there are too many, a
//! request gets its next piece only when its last one is gone. Every request can always have one piece, so a response
//! that is stuck never holds up another.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};

use super::activity::Activity;
use super::unsent_bytes::MOST;

/// Most bytes that are read of a response at one time. An HTTP/2 frame can carry as many.
const PIECE: usize = 16 * 1024;
/// The same for a response without a waiting piece, while other responses use up all the room.
pub(super) const LAST_PIECE: usize = 4 * 1024;

/// The bytes of one response that wait.
pub(super) struct Share {
    activity: Arc<Activity>,
    bytes: AtomicUsize,
}

impl Share {
    pub(super) fn new(activity: &Arc<Activity>) -> Arc<Self> {
        Arc::new(Self {
            activity: Arc::clone(activity),
            bytes: AtomicUsize::new(0),
        })
    }

    /// A number that identifies it among the responses of its connection.
    fn key(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self).addr()
    }

    /// Ready when the next piece may be taken from the backend. Until then, the task is woken when that may be the
    /// case.
    pub(super) fn poll_room(self: &Arc<Self>, cx: &Context<'_>) -> Poll<()> {
        let held = &self.activity.held;
        if self.bytes.load(Ordering::Relaxed) == 0 || held.bytes() < MOST {
            return Poll::Ready(());
        }
        held.wait(self.key(), cx.waker());
        Poll::Pending
    }

    /// Most bytes that the next piece may have.
    pub(super) fn piece_size(&self) -> usize {
        if self.activity.held.bytes() < MOST {
            PIECE
        } else {
            LAST_PIECE
        }
    }

    /// Records that this response no longer waits for room.
    pub(super) fn leave(self: &Arc<Self>) {
        let key = self.key();
        let mut waiting = self.activity.held.waiting.lock();
        waiting.retain(|other| other.key != key);
    }

    /// Counts a piece. It counts until it is dropped.
    pub(super) fn piece(self: &Arc<Self>, bytes: Bytes) -> Piece {
        let size = bytes.len();
        self.bytes.fetch_add(size, Ordering::Relaxed);
        self.activity.held.bytes.fetch_add(size, Ordering::Relaxed);
        Piece {
            bytes,
            charge: Some(Charge {
                share: Arc::clone(self),
                size,
            }),
        }
    }
}

/// A piece of a response's body on its way to the client.
pub(super) struct Piece {
    bytes: Bytes,
    charge: Option<Charge>,
}

impl Piece {
    /// A piece that is not counted. It is for HTTP/1.1, where a connection has one response at a time.
    pub(super) fn free(bytes: Bytes) -> Self {
        Self {
            bytes,
            charge: None,
        }
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        if let Some(charge) = &self.charge {
            charge.share.activity.progressed(count);
        }
    }
}

/// Its `Drop` gives the room of a piece back, whether the piece was sent or given up.
struct Charge {
    share: Arc<Share>,
    size: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        let left = self.share.bytes.fetch_sub(self.size, Ordering::Relaxed) - self.size;
        let emptied = (left == 0).then(|| self.share.key());
        self.share.activity.held.release(self.size, emptied);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::atomic::AtomicBool;
    use std::task::{Wake, Waker};

    use super::*;
    use crate::limits::HttpLimits;

    #[derive(Default)]
    struct Flag(AtomicBool);

    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    /// An answer without end, whose client takes nothing until it is told to.
    struct Answer {
        share: Arc<Share>,
        waiting: VecDeque<Piece>,
        woken: Arc<Flag>,
    }

    const PIECE: usize = 16 * 1024;

    impl Answer {
        fn new(activity: &Arc<Activity>) -> Self {
            Self {
                share: Share::new(activity),
                waiting: VecDeque::new(),
                woken: Arc::default(),
            }
        }

        fn is_woken(&self) -> bool {
            self.woken.0.swap(false, Ordering::SeqCst)
        }

        /// Takes a piece from the backend, if it may.
        fn poll(&mut self) -> bool {
            let waker = Waker::from(Arc::clone(&self.woken));
            let may = self.share.poll_room(&Context::from_waker(&waker));
            if may.is_ready() {
                let piece = self.share.piece(Bytes::from(vec![0; PIECE]));
                self.waiting.push_back(piece);
            }
            may.is_ready()
        }

        /// The client takes one.
        fn send(&mut self) {
            let mut piece = self.waiting.pop_front().unwrap();
            piece.advance(PIECE);
        }
    }

    fn answers() -> (Arc<Activity>, Vec<Answer>) {
        let activity = Arc::new(Activity::new(&HttpLimits::default()));
        let answers = (0..100).map(|_| Answer::new(&activity)).collect();
        (activity, answers)
    }

    #[test]
    fn responses_that_a_client_does_not_take_are_bounded_together() {
        let (activity, mut answers) = answers();
        let mut taken = 0;
        while answers.iter_mut().any(Answer::poll) {
            taken += 1;
            assert!(taken < 1000);
        }
        assert!(activity.held.bytes() <= MOST + 100 * PIECE);
        assert!(answers.iter().all(|answer| !answer.waiting.is_empty()));
        drop(answers);
        assert_eq!(activity.held.bytes(), 0);
    }

    #[test]
    fn an_answer_that_is_stuck_holds_up_no_other() {
        let (_activity, mut answers) = answers();
        let (stuck, others) = answers.split_first_mut().unwrap();
        while stuck.poll() {}
        let other = &mut others[0];
        // The answer sends one piece at a time, and learns of the room that it made itself.
        for _ in 0..1000 {
            assert!(other.poll());
            assert!(!other.poll());
            other.send();
            assert!(other.is_woken());
            assert!(!stuck.is_woken());
        }
        assert!(!stuck.poll());
        stuck.send();
        assert!(stuck.is_woken());
    }

    #[test]
    fn response_that_has_waited_longest_is_told_of_room() {
        let (_activity, mut answers) = answers();
        let (fast, others) = answers.split_first_mut().unwrap();
        for other in &mut others[..2] {
            assert!(other.poll());
        }
        while fast.poll() {}
        assert!(!others[1].poll());
        assert!(!others[0].poll());
        fast.share.leave();
        fast.send();
        assert!(others[1].is_woken());
        assert!(!others[0].is_woken() && !fast.is_woken());
        others[0].share.leave();
        fast.send();
        assert!(!others[0].is_woken());
    }
}
