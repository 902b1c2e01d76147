//! The log of the process, for tests to read. A process has one subscriber, so whoever uses it is in a binary of its own.

use std::io::Write;
use std::sync::Arc;

use parking_lot::Mutex;
use tracing_subscriber::EnvFilter;
use vestibule_serve::log_filter;

/// All that was logged so far.
#[derive(Clone, Default)]
pub struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Sink {
    /// Has the process log here, in JSON, whatever `filter` lets through when it is completed as by the proxy.
    pub fn subscribe(filter: &str) -> Self {
        let sink = Self::default();
        let writer = sink.clone();
        tracing_subscriber::fmt()
            .json()
            .flatten_event(true)
            .with_env_filter(log_filter::bounded(EnvFilter::new(filter)))
            .with_writer(move || writer.clone())
            .init();
        sink
    }

    /// The log so far.
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().clone()).unwrap()
    }

    /// The lines of the access log.
    pub fn lines(&self) -> Vec<serde_json::Value> {
        let text = self.text();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines
            .filter(|line: &serde_json::Value| line["target"] == "access")
            .collect()
    }
}
