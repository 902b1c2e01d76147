//! Owns the form of the log: an object per line, or lines for people.

use std::io;

use clap::ValueEnum;
use thiserror::Error;
use tracing_subscriber::EnvFilter;

use crate::log_filter::FilterError;
use crate::log_queue::{self, FlushGuard};

/// How to log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For machines: an object per line
    Json,
    /// For people
    Text,
}

/// Why a process has no log.
#[derive(Debug, Error)]
pub enum LogError {
    /// There is no filter.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// The thread that writes the lines did not start.
    #[error("cannot start a thread for the log: {0}")]
    Thread(#[from] io::Error),
}

impl LogFormat {
    /// Has this process log to standard output from now on, as far as the filter lets lines through. Nobody who logs waits
    /// for the reader of the output. `main` keeps the guard to its end, because the last lines are written when it is
    /// dropped.
    ///
    /// # Errors
    ///
    /// The thread that writes the lines did not start.
    pub fn init(self, filter: EnvFilter) -> Result<FlushGuard, LogError> {
        let (lines, guard) = log_queue::writer(io::stdout())?;
        let builder = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(lines);
        match self {
            Self::Json => builder.json().flatten_event(true).init(),
            Self::Text => builder.init(),
        }
        Ok(guard)
    }
}
