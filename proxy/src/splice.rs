//! Owns the kernel pipes of bulk transfers: bytes move from socket to socket without a copy through
//! user space (`splice(2)`).
//!
//! A pipe is taken only while a direction moves in bulk and given back when it is empty and the
//! source has nothing to read: an idle pipe would cost more kernel memory than the whole rest of an
//! idle connection. Where pipes cannot be had (limits, another kernel) the caller goes on copying.
//! The system calls come through rustix, which makes them safe, so this module has no `unsafe`.

/// Bytes that one direction moves through a pipe before other connections of the thread get their turn: that takes no
/// longer than [`crate::relay`]'s turn without one, and in smaller pieces a byte costs a third more.
pub(crate) const PIPE_TURN: usize = 1024 * 1024;

#[cfg(target_os = "linux")]
pub(crate) use linux::Pipe;

#[cfg(not(target_os = "linux"))]
pub(crate) use elsewhere::Pipe;

#[cfg(target_os = "linux")]
mod linux {
    use std::cell::RefCell;
    use std::collections::HashMap;
    use std::io;
    use std::os::fd::OwnedFd;
    use std::task::{Context, Poll, ready};

    use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
    use tokio::io::Interest;
    use tokio::net::TcpStream;

    /// Capacity asked of the kernel: what moves in one turn of a connection.
    const CAPACITY: usize = super::PIPE_TURN;
    /// Capacity that a pipe has without asking; used where the larger one is refused.
    const DEFAULT_CAPACITY: usize = 1 << 16;
    /// Pipes that one thread has in use at most: 2 file descriptors each. A receiver that stops
    /// reading keeps its pipe full, so this bounds the memory that such can hold.
    const MAX_PER_THREAD: usize = 128;
    const _: () = assert!(MAX_PER_THREAD * CAPACITY <= 128 << 20);
    /// Empty pipes that one thread keeps for the next bulk transfer.
    const MAX_KEPT: usize = 16;

    #[derive(Default)]
    struct Pool {
        kept: Vec<Ends>,
        in_use: Shares,
    }

    /// The pipes in use, and whose they are. An owner gets one as long as it has fewer than there are left: so one
    /// alone has half of them at most, and whoever comes next finds one.
    #[derive(Default)]
    struct Shares {
        all: usize,
        held: HashMap<u32, usize>,
    }

    impl Shares {
        fn take(&mut self, owner: u32) -> bool {
            let held = self.held.get(&owner).copied().unwrap_or(0);
            let may = held < MAX_PER_THREAD.saturating_sub(self.all);
            if may {
                self.all += 1;
                self.held.insert(owner, held + 1);
            }
            may
        }

        fn give_back(&mut self, owner: u32) {
            self.all = self.all.saturating_sub(1);
            if let Some(held) = self.held.get_mut(&owner) {
                *held = held.saturating_sub(1);
                if *held == 0 {
                    self.held.remove(&owner);
                }
            }
        }
    }

    thread_local! {
        static POOL: RefCell<Pool> = RefCell::default();
    }

    struct Ends {
        read: OwnedFd,
        write: OwnedFd,
        capacity: usize,
    }

    /// A pipe between the two sockets of one direction, with what it holds at the moment.
    pub(crate) struct Pipe {
        /// None only while it is being dropped.
        ends: Option<Ends>,
        /// In four bytes, as the next one is, since every connection has two.
        held: u32,
        owner: u32,
    }

    /// A pipe holds no more than a MiB.
    fn narrow(count: usize) -> u32 {
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    impl Pipe {
        /// A pipe of this thread's pool, or a new one; None when there can be none now, or `owner` has its share.
        pub(crate) fn take(owner: u32) -> Option<Self> {
            POOL.with_borrow_mut(|pool| {
                if !pool.in_use.take(owner) {
                    return None;
                }
                let Some(ends) = pool.kept.pop().or_else(|| open().ok()) else {
                    pool.in_use.give_back(owner);
                    return None;
                };
                Some(Self {
                    ends: Some(ends),
                    held: 0,
                    owner,
                })
            })
        }

        /// Whether nothing is in the pipe.
        pub(crate) fn is_empty(&self) -> bool {
            self.held == 0
        }

        /// Moves what `from` has into the empty pipe, `most` bytes at most; 0 is the end of the stream.
        ///
        /// The pipe must be empty: only then does "would block" speak of the socket alone.
        pub(crate) fn poll_fill(
            &mut self,
            cx: &mut Context<'_>,
            from: &TcpStream,
            most: usize,
        ) -> Poll<io::Result<usize>> {
            debug_assert!(self.is_empty());
            let Some(ends) = &self.ends else {
                return Poll::Ready(Ok(0));
            };
            loop {
                ready!(from.poll_read_ready(cx))?;
                let moved = from.try_io(Interest::READABLE, || {
                    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
                    Ok(splice(
                        from,
                        None,
                        &ends.write,
                        None,
                        ends.capacity.min(most),
                        flags,
                    )?)
                });
                match moved {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Ok(count) => {
                        self.held = self.held.saturating_add(narrow(count));
                        return Poll::Ready(Ok(count));
                    }
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
        }

        /// Moves all that the pipe holds into `to`.
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
        /// An empty pipe goes back to the pool; one with bytes of a dead connection is closed.
        fn drop(&mut self) {
            let ends = self.ends.take();
            let empty = self.is_empty();
            // At the end of a thread the pool may be gone already.
            let _ = POOL.try_with(|pool| {
                let Ok(mut pool) = pool.try_borrow_mut() else {
                    return;
                };
                pool.in_use.give_back(self.owner);
                if let Some(ends) = ends
                    && empty
                    && pool.kept.len() < MAX_KEPT
                {
                    pool.kept.push(ends);
                }
            });
        }
    }

    fn open() -> io::Result<Ends> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let capacity = match fcntl_setpipe_size(&write, CAPACITY) {
            Ok(capacity) => capacity,
            // Over the limits of the user or of the system: what it has must do.
            Err(_) => rustix::pipe::fcntl_getpipe_size(&write)?,
        };
        if capacity < DEFAULT_CAPACITY {
            // Near the user's limit the kernel gives pipes of a page or two: copying is faster.
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        Ok(Ends {
            read,
            write,
            capacity,
        })
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn nobody_has_all_pipes() {
            let mut shares = Shares::default();
            let all = |shares: &mut Shares, owner| (0..1000).filter(|_| shares.take(owner)).count();
            assert_eq!(all(&mut shares, 1), MAX_PER_THREAD / 2);
            assert_eq!(all(&mut shares, 2), MAX_PER_THREAD / 4);
            for newcomer in 10..30 {
                assert!(shares.take(newcomer), "{newcomer}");
                shares.give_back(newcomer);
            }
            for (owner, held) in [(1, MAX_PER_THREAD / 2), (2, MAX_PER_THREAD / 4)] {
                for _ in 0..held {
                    shares.give_back(owner);
                }
            }
            assert!(shares.held.is_empty());
            assert_eq!(all(&mut shares, 3), MAX_PER_THREAD / 2);
        }

        #[test]
        fn pipes_are_counted_for_their_owners() {
            let one: Vec<Pipe> = std::iter::from_fn(|| Pipe::take(1)).collect();
            assert!(one.len() <= MAX_PER_THREAD / 2, "{}", one.len());
            let counted = || POOL.with_borrow(|pool| (pool.in_use.all, pool.in_use.held.len()));
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
        ) -> Poll<io::Result<usize>> {
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
