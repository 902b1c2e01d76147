//! Owns the kernel pipes of bulk transfers. Bytes move from socket to socket without a copy through user space
//! (`splice(2)`).
//!
//! A direction has a pipe only during a bulk transfer. It gives the pipe back when the pipe is empty and the source has
//! nothing to read, because an idle pipe would cost more kernel memory than everything else of an idle connection. If
//! there are no pipes (because of limits, or on another kernel), the caller copies instead. rustix makes the system
//! calls safe, so this module has no `unsafe`.

/// Bytes that one direction may move through a pipe before other connections of the thread get their turn. This takes
/// no longer than a turn of [`crate::relay`] without a pipe. With smaller turns, a byte would cost a third more.
pub(crate) const PIPE_TURN: usize = 1024 * 1024;

/// Where the bytes of a source went.
#[cfg_attr(
    not(target_os = "linux"),
    allow(dead_code, reason = "there are no pipes elsewhere")
)]
pub(crate) enum Filled {
    /// So many bytes are in the pipe.
    Piped(usize),
    /// So many bytes are at the front of the scratch buffer. 0 is the end of the stream.
    Read(usize),
}

#[cfg(target_os = "linux")]
pub(crate) use linux::Pipe;

#[cfg(not(target_os = "linux"))]
pub(crate) use elsewhere::Pipe;

#[cfg(target_os = "linux")]
mod linux {
    use std::cell::RefCell;
    use std::io;
    use std::os::fd::OwnedFd;
    use std::task::{Context, Poll, ready};

    use rustix::io::Errno;
    use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
    use tokio::io::Interest;
    use tokio::net::TcpStream;

    use super::Filled;
    use crate::shares::Shares;

    /// Capacity of a pipe: as much as a connection moves in one turn.
    const CAPACITY: usize = super::PIPE_TURN;
    /// Default capacity of a pipe. It is used if the kernel refuses the larger one.
    const DEFAULT_CAPACITY: usize = 1 << 16;
    /// Largest number of pipes that one thread has in use. Each takes 2 file descriptors. A receiver that stops reading
    /// keeps its pipe full, so this also bounds the memory that such receivers hold.
    const MAX_PER_THREAD: usize = 128;
    const _: () = assert!(MAX_PER_THREAD * CAPACITY <= 128 << 20);
    /// Largest number of empty pipes that one thread keeps for the next bulk transfers.
    const MAX_KEPT: usize = 16;

    struct Pool {
        kept: Vec<Ends>,
        /// The pipes in use, by owner.
        in_use: Shares<u32>,
    }

    impl Default for Pool {
        fn default() -> Self {
            Self {
                kept: Vec::new(),
                in_use: Shares::new(MAX_PER_THREAD),
            }
        }
    }

    thread_local! {
        static POOL: RefCell<Pool> = RefCell::default();
    }

    struct Ends {
        read: OwnedFd,
        write: OwnedFd,
        /// It has four bytes, because every connection has two pipes.
        capacity: u32,
    }

    /// A pipe between the two sockets of one direction, with the number of bytes in it.
    pub(crate) struct Pipe {
        /// It is `None` only while the pipe is dropped.
        ends: Option<Ends>,
        /// Number of bytes in the pipe. This field and the next one have four bytes, because every connection has two
        /// pipes.
        held: u32,
        owner: u32,
        /// Whether the source is probably empty, because it had few bytes the last time.
        drained: bool,
    }

    /// A number of bytes in four bytes. It fits, because a pipe holds at most one MiB.
    fn narrow(count: usize) -> u32 {
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    impl Pipe {
        /// A pipe from the pool of this thread, or a new one. It is `None` if there can be none now, or if `owner` has
        /// its share.
        pub(crate) fn take(owner: u32) -> Option<Self> {
            POOL.with_borrow_mut(|pool| {
                if !pool.in_use.take(&owner, 1) {
                    return None;
                }
                let Some(ends) = pool.kept.pop().or_else(|| open().ok()) else {
                    pool.in_use.give_back(&owner, 1);
                    return None;
                };
                Some(Self {
                    ends: Some(ends),
                    held: 0,
                    owner,
                    drained: false,
                })
            })
        }

        /// Whether the pipe is empty.
        pub(crate) fn is_empty(&self) -> bool {
            self.held == 0
        }

        /// Moves at most `most` bytes from `from` into the empty pipe, or some of them into `scratch`.
        ///
        /// The pipe must be empty. Otherwise "would block" could mean that the pipe is full instead of the socket being
        /// empty.
        pub(crate) fn poll_fill(
            &mut self,
            cx: &mut Context<'_>,
            from: &TcpStream,
            most: usize,
            scratch: &mut [u8],
        ) -> Poll<io::Result<Filled>> {
            debug_assert!(self.is_empty());
            let Some(ends) = &self.ends else {
                return Poll::Ready(Ok(Filled::Read(0)));
            };
            let most = most.min(ends.capacity as usize);
            let room = most.min(scratch.len());
            let (scratch, _) = scratch.split_at_mut(room);
            loop {
                ready!(from.poll_read_ready(cx))?;
                let drained = self.drained;
                let filled = from.try_io(Interest::READABLE, || {
                    fill(from, ends, most, scratch, drained)
                });
                let count = match &filled {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(_) => return Poll::Ready(filled),
                    Ok(Filled::Read(count)) => *count,
                    Ok(Filled::Piped(count)) => {
                        self.held = self.held.saturating_add(narrow(*count));
                        *count
                    }
                };
                self.drained = count < room;
                return Poll::Ready(filled);
            }
        }

        /// Moves all bytes from the pipe into `to`.
        pub(crate) fn poll_drain(
            &mut self,
            cx: &mut Context<'_>,
            to: &TcpStream,
        ) -> Poll<io::Result<()>> {
            let Some(ends) = &self.ends else {
                return Poll::Ready(Ok(()));
            };
            while self.held > 0 {
                ready!(to.poll_write_ready(cx))?;
                let moved = to.try_io(Interest::WRITABLE, || {
                    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
                    Ok(splice(
                        &ends.read,
                        None,
                        to,
                        None,
                        self.held as usize,
                        flags,
                    )?)
                });
                match moved {
                    // `try_io` has cleared the readiness, so the next turn of the loop registers the task and waits.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    Ok(count) => self.held = self.held.saturating_sub(narrow(count)),
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
            Poll::Ready(Ok(()))
        }
    }

    impl Drop for Pipe {
        /// An empty pipe goes back to the pool. A pipe with bytes of a connection that has ended is closed.
        fn drop(&mut self) {
            let ends = self.ends.take();
            let empty = self.is_empty();
            // When a thread ends, the pool may already be dropped.
            let _ = POOL.try_with(|pool| {
                let Ok(mut pool) = pool.try_borrow_mut() else {
                    return;
                };
                pool.in_use.give_back(&self.owner, 1);
                if let Some(ends) = ends
                    && empty
                    && pool.kept.len() < MAX_KEPT
                {
                    pool.kept.push(ends);
                }
            });
        }
    }

    /// Moves at most `most` bytes from a socket into an empty pipe, or reads some of them into `scratch`. It does not try
    /// the pipe if the socket is `drained`.
    ///
    /// Only the read says whether the socket is empty or has ended. `splice` stops at the mark of urgent data, and does not
    /// pass it: it would report "would block", or an end as soon as the peer has ended its direction, although there are
    /// bytes behind the mark. A read passes the mark. To read after each `splice` that found nothing would be one more
    /// system call for each burst. So where nothing is expected, the read takes the place of `splice`, and not much is
    /// copied if there are bytes after all.
    fn fill(
        from: &TcpStream,
        ends: &Ends,
        most: usize,
        scratch: &mut [u8],
        drained: bool,
    ) -> io::Result<Filled> {
        if !drained {
            let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
            match splice(from, None, &ends.write, None, most, flags) {
                Ok(0) | Err(Errno::AGAIN) => {}
                Ok(count) => return Ok(Filled::Piped(count)),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Filled::Read(rustix::io::read(from, scratch)?))
    }

    fn open() -> io::Result<Ends> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let capacity = match fcntl_setpipe_size(&write, CAPACITY) {
            Ok(capacity) => capacity,
            // A limit of the user or of the system is reached, so the present capacity has to be enough.
            Err(_) => rustix::pipe::fcntl_getpipe_size(&write)?,
        };
        if capacity < DEFAULT_CAPACITY {
            // Near the limit of the user, the kernel gives pipes of one or two pages. Then copying is faster.
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        Ok(Ends {
            read,
            write,
            capacity: narrow(capacity),
        })
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn pipes_are_never_all_taken_by_one_owner() {
            let mut shares = Shares::new(MAX_PER_THREAD);
            let all = |shares: &mut Shares<u32>, owner: u32| {
                (0..1000).filter(|_| shares.take(&owner, 1)).count()
            };
            assert_eq!(all(&mut shares, 1), MAX_PER_THREAD / 2);
            assert_eq!(all(&mut shares, 2), MAX_PER_THREAD / 4);
            for newcomer in 10..30 {
                assert!(shares.take(&newcomer, 1), "{newcomer}");
                shares.give_back(&newcomer, 1);
            }
            for (owner, held) in [(1, MAX_PER_THREAD / 2), (2, MAX_PER_THREAD / 4)] {
                for _ in 0..held {
                    shares.give_back(&owner, 1);
                }
            }
            assert_eq!(shares.holders(), 0);
            assert_eq!(all(&mut shares, 3), MAX_PER_THREAD / 2);
        }

        #[test]
        fn pipes_are_counted_for_their_owners() {
            let one: Vec<Pipe> = std::iter::from_fn(|| Pipe::take(1)).collect();
            assert!(one.len() <= MAX_PER_THREAD / 2, "{}", one.len());
            let counted = || POOL.with_borrow(|pool| (pool.in_use.used(), pool.in_use.holders()));
            assert_eq!(counted(), (one.len(), usize::from(!one.is_empty())));
            drop(one);
            assert_eq!(counted(), (0, 0));
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    use std::io;
    use std::task::{Context, Poll};

    use tokio::net::TcpStream;

    use super::Filled;

    /// No pipe can be taken here, so no value of it exists.
    pub(crate) enum Pipe {}

    impl Pipe {
        pub(crate) fn take(_: u32) -> Option<Self> {
            None
        }

        pub(crate) fn is_empty(&self) -> bool {
            match *self {}
        }

        pub(crate) fn poll_fill(
            &mut self,
            _: &mut Context<'_>,
            _: &TcpStream,
            _: usize,
            _: &mut [u8],
        ) -> Poll<io::Result<Filled>> {
            match *self {}
        }

        pub(crate) fn poll_drain(
            &mut self,
            _: &mut Context<'_>,
            _: &TcpStream,
        ) -> Poll<io::Result<()>> {
            match *self {}
        }
    }
}
