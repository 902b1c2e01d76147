//! Owns the output of log lines. The threads that do the work of a process never wait for the reader of its log.
//!
//! Lines wait in a queue for a thread that writes them. If nobody reads, the queue fills up, in lines or in bytes, and
//! further lines are dropped and counted. Where a line belongs to a tenant, a [`Turn`] says so. A tenant may have no more
//! waiting than is free, so that a tenant with many lines leaves room for the others (dynamic thresholds, as in the shared
//! buffers of switches). However many tenants flood the log, each of them has the same part, and as much stays free.
//! (`tracing-appender` does the same. But at the end it reports to standard output that it could not write to standard
//! output, and waits for that.)

use std::cell::Cell;
use std::io::{self, BufWriter, Write};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use tracing_subscriber::fmt::MakeWriter;

/// Most lines that may wait. This is about 4 MiB of lines about connections and requests.
pub const QUEUE: usize = 8192;
/// Most bytes that may wait. This bound is needed too, because a line contains the path of a request, which a client
/// chooses.
const QUEUE_BYTES: usize = 8 << 20;
/// Most bytes that are written at one time.
const BUFFER: usize = 64 << 10;
/// How long the thread that writes lets further lines gather after it has written some. To wake this thread costs a thread
/// that serves traffic about as much as to make the line, so that must not happen for each line.
const GATHER: Duration = Duration::from_millis(10);
/// So many lines at one time have gathered by themselves. Whoever makes them so fast might fill the queue while the thread
/// sleeps.
const MANY: usize = QUEUE / 16;
/// How long the end of the process waits for lines that are still in the queue.
const LAST: Duration = Duration::from_secs(1);

/// Number of lines of this process that were dropped.
static DROPPED: LazyLock<Counter> = LazyLock::new(Counter::default);

thread_local! {
    /// The share of the tenant whose line this thread writes next.
    static WHOSE: Cell<Option<Arc<Share>>> = const { Cell::new(None) };
}

/// The lines and bytes that wait in the queue.
#[derive(Debug, Default)]
struct Waiting {
    lines: AtomicUsize,
    bytes: AtomicUsize,
}

impl Waiting {
    /// Adds a line of so many bytes, if then no more than `most` lines and bytes wait.
    fn add(&self, bytes: usize, (most_lines, most_bytes): (usize, usize)) -> bool {
        let lines_before = self.lines.fetch_add(1, Ordering::Relaxed);
        let bytes_before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = lines_before < most_lines && bytes_before.saturating_add(bytes) <= most_bytes;
        if !fits {
            self.remove(bytes);
        }
        fits
    }

    fn remove(&self, bytes: usize) {
        self.lines.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// How many lines and bytes of the queue are free, if this is what waits in all of it.
    fn free(&self) -> (usize, usize) {
        let lines = self.lines.load(Ordering::Relaxed);
        let bytes = self.bytes.load(Ordering::Relaxed);
        (
            QUEUE.saturating_sub(lines),
            QUEUE_BYTES.saturating_sub(bytes),
        )
    }
}

/// The lines of one tenant.
#[derive(Debug, Default)]
pub struct Share {
    waiting: Waiting,
    dropped: AtomicU64,
}

impl Share {
    /// Counts a line that is left out.
    pub fn lost(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of lines that were left out.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// While a thread has this, the next line that it writes is one of a tenant. (`tracing` writes a line on the thread that
/// logs, before it returns.)
#[derive(Debug)]
pub struct Turn(PhantomData<*const ()>);

impl Turn {
    /// The turn for the next line of this thread, which counts in `share`.
    #[must_use]
    pub fn of(share: &Arc<Share>) -> Self {
        // A thread that is ending may have lost its value. Then the line is charged to no tenant.
        let _ = WHOSE.try_with(|whose| whose.set(Some(Arc::clone(share))));
        Self(PhantomData)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let _ = WHOSE.try_with(Cell::take);
    }
}

enum Message {
    /// A line, and the share in which it was counted.
    Line(Vec<u8>, Option<Arc<Share>>),
    /// Asks to write all lines before it. The thread then drops the sender, which wakes the waiting end.
    End(SyncSender<()>),
}

/// The sink for log lines. Writing to it never waits and never fails.
#[derive(Debug, Clone)]
pub struct Lines {
    queue: SyncSender<Message>,
    /// The lines and bytes that wait in the queue.
    waiting: Arc<Waiting>,
}

impl Lines {
    /// Puts a line into the queue, if the queue and the share of its tenant have room for it.
    fn take(&self, line: &[u8], share: Option<&Arc<Share>>) -> bool {
        let bytes = line.len();
        if share.is_some_and(|share| !share.waiting.add(bytes, self.waiting.free())) {
            return false;
        }
        let fits = self.waiting.add(bytes, (QUEUE, QUEUE_BYTES));
        let message = || Message::Line(line.to_vec(), share.map(Arc::clone));
        let sent = fits && self.queue.try_send(message()).is_ok();
        if fits && !sent {
            self.waiting.remove(bytes);
        }
        if let Some(share) = share.filter(|_| !sent) {
            share.waiting.remove(bytes);
        }
        sent
    }
}

/// Starts the thread that writes. Lines that wait are written when the guard is dropped, unless nobody reads for a
/// second.
pub fn writer(to: impl Write + Send + 'static) -> io::Result<(Lines, FlushGuard)> {
    let (queue, receiver) = sync_channel(QUEUE);
    let waiting = Arc::new(Waiting::default());
    let lines = Lines {
        queue: queue.clone(),
        waiting: Arc::clone(&waiting),
    };
    thread::Builder::new()
        .name("log".to_owned())
        .spawn(move || write_all(&receiver, &waiting, BufWriter::with_capacity(BUFFER, to)))?;
    Ok((lines, FlushGuard(queue)))
}

/// Writes lines, and flushes when no more wait. A line that comes after a pause is written at once; those after it wait
/// for [`GATHER`] at most. Errors are ignored, because there is nowhere to report them.
fn write_all(lines: &Receiver<Message>, waiting: &Waiting, mut to: impl Write) {
    while let Ok(first) = lines.recv() {
        let mut next = Some(first);
        let mut written = 0;
        while let Some(message) = next {
            written += 1;
            match message {
                Message::Line(line, share) => {
                    let _ = to.write_all(&line);
                    waiting.remove(line.len());
                    if let Some(share) = share {
                        share.waiting.remove(line.len());
                    }
                }
                Message::End(who_waits) => {
                    let _ = to.flush();
                    drop(who_waits);
                }
            }
            next = lines.try_recv().ok();
        }
        let _ = to.flush();
        if written < MANY {
            thread::sleep(GATHER);
        }
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> &'a Self {
        self
    }
}

/// Takes one line.
impl Write for &Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let share = WHOSE.try_with(Cell::take).ok().flatten();
        if !self.take(line, share.as_ref()) {
            DROPPED.inc();
            if let Some(share) = share {
                share.lost();
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Its `Drop` waits until the last lines are written.
#[derive(Debug)]
pub struct FlushGuard(SyncSender<Message>);

impl Drop for FlushGuard {
    fn drop(&mut self) {
        let deadline = Instant::now() + LAST;
        let (waiting, ended) = sync_channel(0);
        let mut end = Message::End(waiting);
        // The queue may be full for a moment.
        while let Err(TrySendError::Full(back)) = self.0.try_send(end) {
            if Instant::now() >= deadline {
                return;
            }
            thread::sleep(LAST / 100);
            end = back;
        }
        let _ = ended.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

/// The counter of the lines of this process that were dropped. Each component registers it as `log_lines_dropped`.
#[must_use]
pub fn dropped_lines() -> Counter {
    DROPPED.clone()
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    /// Holds what is written, and a lock that holds writing up.
    #[derive(Clone, Default)]
    struct Held(Arc<Mutex<Vec<u8>>>);

    impl Write for Held {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_come_whole_and_in_order_and_the_last_ones_are_written() {
        let held = Held::default();
        let (lines, guard) = writer(held.clone()).unwrap();
        let stuck = held.0.lock();
        let all: Vec<String> = (0..100).map(|n| format!("line {n}\n")).collect();
        for line in &all {
            lines.make_writer().write_all(line.as_bytes()).unwrap();
        }
        drop(stuck);
        drop(guard);
        assert_eq!(
            String::from_utf8(held.0.lock().clone()).unwrap(),
            all.concat()
        );
        assert_eq!(lines.waiting.free(), (QUEUE, QUEUE_BYTES));
    }

    #[test]
    fn log_lines_that_do_not_fit_are_dropped_and_counted() {
        // Twice the bytes that may wait, in few lines, and twice the lines that may wait.
        for (lines_of, bytes_of) in [(256, QUEUE_BYTES / 128), (2 * QUEUE, 64)] {
            let held = Held::default();
            let (lines, guard) = writer(held.clone()).unwrap();
            let stuck = held.0.lock();
            let before = DROPPED.get();
            let line = vec![b'x'; bytes_of];
            for _ in 0..lines_of {
                lines.make_writer().write_all(&line).unwrap();
            }
            let dropped = DROPPED.get() - before;
            assert!(dropped > lines_of as u64 / 4, "{dropped}");
            assert!(lines.waiting.bytes.load(Ordering::Relaxed) <= QUEUE_BYTES);
            // The end gives up.
            drop(guard);
            drop(stuck);
        }
    }

    #[test]
    fn a_tenant_with_many_lines_leaves_its_neighbour_room_for_its_few() {
        // Many lines, and long ones.
        for bytes_of in [64, QUEUE_BYTES / 512] {
            for floods in 1..=3 {
                // Nobody reads for now.
                let (queue, receiver) = sync_channel(QUEUE);
                let waiting = Arc::<Waiting>::default();
                let lines = Lines {
                    queue,
                    waiting: Arc::clone(&waiting),
                };
                let share = || Arc::new(Share::default());
                let (flooders, neighbour) = ([share(), share(), share()], share());
                let flooders = &flooders[..floods];
                let line = vec![b'x'; bytes_of];
                let write = |share: &Arc<Share>| {
                    let _turn = Turn::of(share);
                    lines.make_writer().write_all(&line).unwrap();
                };
                for _ in 0..2 * QUEUE {
                    flooders.iter().for_each(write);
                }
                for _ in 0..5 {
                    write(&neighbour);
                }
                assert_eq!(neighbour.dropped(), 0, "{floods} of {bytes_of}");
                let lines_of = |of: &Arc<Share>| of.waiting.lines.load(Ordering::Relaxed);
                let part = QUEUE.min(QUEUE_BYTES / bytes_of) / (floods + 1);
                for flooder in flooders {
                    let lines = lines_of(flooder);
                    assert!(lines.abs_diff(part) <= 3, "{lines} {part}");
                    assert_eq!(flooder.dropped(), (2 * QUEUE - lines) as u64);
                }
                // A line that is written no longer counts.
                drop(lines);
                write_all(&receiver, &waiting, io::sink());
                assert!(flooders.iter().all(|of| lines_of(of) == 0));
                assert_eq!(waiting.free(), (QUEUE, QUEUE_BYTES));
            }
        }
    }

    #[test]
    fn a_turn_is_for_one_line() {
        let (lines, guard) = writer(io::sink()).unwrap();
        let share = Arc::new(Share::default());
        drop(Turn::of(&share));
        assert!(WHOSE.take().is_none());
        let _turn = Turn::of(&share);
        lines.make_writer().write_all(b"line\n").unwrap();
        assert!(WHOSE.take().is_none());
        drop(guard);
    }
}
