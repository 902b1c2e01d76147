//! How commands print what they found out: for people or for machines.

use std::fmt::Display;
use std::io::{self, Write};

use clap::ValueEnum;
use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Text,
    /// For machines
    Json,
}

/// Prints something to standard output: `text` for people, or `value` for machines.
pub(crate) fn print(
    format: Format,
    value: &impl Serialize,
    text: &impl Display,
) -> anyhow::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let printed = match format {
        Format::Json => serde_json::to_writer_pretty(&mut out, value)
            .map_err(io::Error::from)
            .and_then(|()| writeln!(out)),
        Format::Text => write!(out, "{text}"),
    };
    match printed.and_then(|()| out.flush()) {
        // The reader has closed the pipe, because they have seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => Ok(printed?),
    }
}
