//! Owns the form of the log: an object per line, or lines for people.

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// How to log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For machines: an object per line
    Json,
    /// For people
    Text,
}

impl LogFormat {
    /// Has this process log to standard output from now on, as far as the filter lets lines through.
    pub fn init(self, filter: EnvFilter) {
        let builder = tracing_subscriber::fmt().with_env_filter(filter);
        match self {
            Self::Json => builder.json().flatten_event(true).init(),
            Self::Text => builder.init(),
        }
    }
}
