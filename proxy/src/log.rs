//! Owns the output of log lines. Threads that serve traffic never wait for the reader of the log.
//!
//! Lines wait in a queue for a thread that writes them. If nobody reads, the queue fills up, in lines or in bytes, and
//! further lines are dropped and counted. (`tracing-appender` does the same. But at the end it reports to standard
//! output that it could not write to standard output, and waits for that.)

use std::fmt;
use std::io::{self, BufWriter, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use tracing_subscriber::fmt::MakeWriter;

/// Most lines that may wait. This is about 4 MiB of lines about connections and requests.
pub const QUEUE: usize = 8192;
/// Most bytes that may wait. This bound is needed too, because a line contains the path of a request, which a client
/// chooses.
const QUEUE_BYTES: usize = 8 << 20;
/// Most bytes that are written at one time.
const BUFFER: usize = 64 << 10;
/// How long the end of the process waits for lines that are still in the queue.
const LAST: Duration = Duration::from_secs(1);

/// Number of lines of this process that were dropped.
static DROPPED: AtomicU64 = AtomicU64::new(0);

enum Message {
    Line(Vec<u8>),
    /// Asks to write all lines before it. The thread then drops the sender, which wakes the waiting end.
    End(SyncSender<()>),
}

/// The sink for log lines. Writing to it never waits and never fails.
#[derive(Debug, Clone)]
pub struct Lines {
    queue: SyncSender<Message>,
    /// Number of bytes in the queue.
    waiting: Arc<AtomicUsize>,
}

/// Starts the thread that writes. Lines that wait are written when the guard is dropped, unless nobody reads for a
/// second.
pub fn writer(to: impl Write + Send + 'static) -> io::Result<(Lines, FlushGuard)> {
    let (queue, receiver) = sync_channel(QUEUE);
    let waiting = Arc::new(AtomicUsize::new(0));
    let lines = Lines {
        queue: queue.clone(),
        waiting: Arc::clone(&waiting),
    };
    thread::Builder::new()
        .name("log".to_owned())
        .spawn(move || write_all(&receiver, &waiting, BufWriter::with_capacity(BUFFER, to)))?;
    Ok((lines, FlushGuard(queue)))
}

/// Writes lines, and flushes when no more wait. Errors are ignored, because there is nowhere to report them.
fn write_all(lines: &Receiver<Message>, waiting: &AtomicUsize, mut to: impl Write) {
    while let Ok(first) = lines.recv() {
        let mut next = Some(first);
        while let Some(message) = next {
            match message {
                Message::Line(line) => {
                    let _ = to.write_all(&line);
                    waiting.fetch_sub(line.len(), Ordering::Relaxed);
                }
                Message::End(who_waits) => {
                    let _ = to.flush();
                    drop(who_waits);
                }
            }
            next = lines.try_recv().ok();
        }
        let _ = to.flush();
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
        let before = self.waiting.fetch_add(line.len(), Ordering::Relaxed);
        let fits = before.saturating_add(line.len()) <= QUEUE_BYTES;
        if !fits || self.queue.try_send(Message::Line(line.to_vec())).is_err() {
            self.waiting.fetch_sub(line.len(), Ordering::Relaxed);
            DROPPED.fetch_add(1, Ordering::Relaxed);
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

/// The number of log lines of this process that were dropped, as a metric.
#[derive(Debug)]
pub(crate) struct Dropped;

impl Collector for Dropped {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let metric = ConstCounter::new(DROPPED.load(Ordering::Relaxed));
        let metric_encoder = encoder.encode_descriptor(
            "log_lines_dropped",
            "Lines of the log that were dropped because nobody read it fast enough",
            None,
            metric.metric_type(),
        )?;
        metric.encode(metric_encoder)
    }
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
        assert_eq!(lines.waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_counted() {
        // Twice the bytes that may wait, in few lines, and twice the lines that may wait.
        for (lines_of, bytes_of) in [(256, QUEUE_BYTES / 128), (2 * QUEUE, 64)] {
            let held = Held::default();
            let (lines, guard) = writer(held.clone()).unwrap();
            let stuck = held.0.lock();
            let before = DROPPED.load(Ordering::Relaxed);
            let line = vec![b'x'; bytes_of];
            for _ in 0..lines_of {
                lines.make_writer().write_all(&line).unwrap();
            }
            let dropped = DROPPED.load(Ordering::Relaxed) - before;
            assert!(dropped > lines_of as u64 / 4, "{dropped}");
            assert!(lines.waiting.load(Ordering::Relaxed) <= QUEUE_BYTES);
            // The end gives up.
            drop(guard);
            drop(stuck);
        }
    }
}
