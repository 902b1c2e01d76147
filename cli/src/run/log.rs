//! The output of `vestibule run`: one line for each event, as text or as JSON.

use std::fmt::{self, Write as _};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use vestibule_operator::localca::LocalCaError;
use vestibule_serve::log_filter;
use vestibule_serve::log_format::LogFormat;
use vestibule_serve::log_queue::{self, FlushGuard};

use super::served::Served;
use crate::clock;
use crate::manifests::source::FileChange;
use crate::verdict::{ObjectOutcome, ObjectVerdict, printable};

/// Target of the lines whose message is complete for people. Their fields are only for machines.
const TARGET: &str = "vestibule";

/// The filter, unless `RUST_LOG` sets another one. It leaves out how the operator and the proxy of one process
/// connect.
const FILTER: &str = "info,vestibule_operator::publish=warn,vestibule_stream=warn";

/// Sets up logging to standard error. `RUST_LOG` filters. Lines that still wait are written when the guard is dropped.
pub(super) fn init(format: LogFormat) -> anyhow::Result<FlushGuard> {
    let asked = log_filter::asked();
    let all = asked.is_some();
    let filter = log_filter::filter(asked.as_deref().unwrap_or(FILTER))?;
    // The stream reports each resource that the proxy rejects. This command reports the same for each
    // listener, so the former is left out.
    let told = filter_fn(move |event| {
        let rejected =
            event.target() == "vestibule_stream::client" && event.fields().field("key").is_some();
        all || !rejected
    });
    let (writer, guard) =
        log_queue::writer(io::stderr()).context("cannot start a thread for the log")?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(log_filter::bounded(filter))
        .with_writer(writer);
    match format {
        LogFormat::Json => builder
            .json()
            .flatten_event(true)
            .finish()
            .with(told)
            .init(),
        LogFormat::Text => builder.event_format(Plain).finish().with(told).init(),
    }
    Ok(guard)
}

/// Writes the time and the message, and the fields where the message does not contain them.
struct Plain;

impl<S, N> FormatEvent<S, N> for Plain
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        write!(writer, "{} ", clock::now().strftime("%H:%M:%SZ"))?;
        if *metadata.level() <= Level::WARN && metadata.target() != TARGET {
            write!(writer, "{} ", metadata.level())?;
        }
        if metadata.target() != TARGET {
            write!(writer, "{}:", metadata.target())?;
        }
        let mut line = Line::default();
        event.record(&mut line);
        if metadata.target() == TARGET {
            return writeln!(writer, "{}", line.message);
        }
        if !line.message.is_empty() {
            write!(writer, " {}", line.message)?;
        }
        writeln!(writer, "{}", line.fields)
    }
}

#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Line {
    /// Adds a field. Clients choose the text of some values, such as the host of a request. So a value that could be taken
    /// for further fields is in quotes.
    fn add(&mut self, name: &str, value: &str) {
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'=');
        // Writing to a String does not fail.
        let _ = if value.bytes().all(is_plain) {
            write!(self.fields, " {name}={value}")
        } else {
            write!(self.fields, " {name}={value:?}")
        };
    }

    /// Adds a field whose value is in its Debug form. The Debug form of a text has its quotes already.
    fn add_debug(&mut self, name: &str, value: &str) {
        if is_quoted(value) {
            // Writing to a String does not fail.
            let _ = write!(self.fields, " {name}={value}");
        } else {
            self.add(name, value);
        }
    }
}

/// Whether a value is one text in quotes, with everything in it escaped. The outer quotes alone do not tell, because
/// `tracing` passes on what was recorded with `%` as a Debug form, too, and clients choose some of that.
fn is_quoted(value: &str) -> bool {
    let inner = value.strip_prefix('"');
    let Some(inner) = inner.and_then(|rest| rest.strip_suffix('"')) else {
        return false;
    };
    let mut is_escaped = false;
    let is_plain = inner.chars().all(|char| {
        let is_plain = match char {
            '"' => is_escaped,
            '\\' | '\'' => true,
            _ => char.escape_debug().len() == 1,
        };
        is_escaped = char == '\\' && !is_escaped;
        is_plain
    });
    is_plain && !is_escaped
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        } else {
            self.add_debug(field.name(), &format!("{value:?}"));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.message);
        } else {
            self.add(field.name(), value);
        }
    }
}

pub(super) fn started(directory: &Path, admin: SocketAddr, ca: &Path) {
    tracing::info!(
        target: TARGET,
        event = "started",
        directory = %directory.display(),
        admin = %admin,
        ca = %ca.display(),
        "serving {}; status, health and metrics at http://{admin}/status, /readyz and /metrics; \
         clients trust {}",
        directory.display(),
        ca.display(),
    );
}

pub(super) fn file(path: &str, change: &FileChange) {
    let what = match change {
        FileChange::Text(_) => "read",
        FileChange::Removed if path.ends_with('/') => "readable again",
        FileChange::Removed => "gone",
        // The file's verdict reports this.
        FileChange::Failed(_) => return,
    };
    let path = printable(path);
    tracing::info!(target: TARGET, event = "file", file = path, "{path}: {what}");
}

/// Reports that a text that was held back counts after all.
pub(super) fn released(path: &str) {
    let path = printable(path);
    tracing::info!(target: TARGET, event = "file", file = path, "{path}: taken as it is");
}

pub(super) fn gone(why: &str) {
    tracing::warn!(
        target: TARGET,
        event = "directory-gone",
        "{why}: still serving the last manifests that were read"
    );
}

pub(super) fn back() {
    tracing::info!(target: TARGET, event = "directory-back", "the directory is back");
}

pub(super) fn certificate_failed(error: &LocalCaError) {
    tracing::error!(target: TARGET, event = "certificate-failed", reason = error.reason(), "{error}");
}

/// Reports a new or changed verdict.
pub(super) fn verdict(verdict: &ObjectVerdict) {
    let findings = serde_json::to_string(&verdict.findings).unwrap_or_default();
    macro_rules! say {
        ($level:ident) => {
            tracing::$level!(
                target: TARGET,
                event = "verdict",
                file = &*verdict.file,
                line = verdict.line,
                kind = verdict.kind,
                namespace = verdict.namespace,
                name = verdict.name,
                verdict = %verdict.outcome,
                findings,
                "{verdict}"
            )
        };
    }
    if verdict.outcome >= ObjectOutcome::Warning {
        say!(warn);
    } else {
        say!(info);
    }
}

pub(super) fn summary(text: &str) {
    tracing::info!(target: TARGET, event = "summary", "{text}");
}

/// Reports that a listener came into force.
pub(super) fn serving(served: &Served) {
    tracing::info!(
        target: TARGET,
        event = "serving",
        gateway = %served.gateway,
        listener = %served.listener,
        hostname = %served.hostname,
        address = %served.address,
        "serving {served}"
    );
}

pub(super) fn no_longer_serving(served: &Served) {
    tracing::info!(
        target: TARGET,
        event = "no-longer-serving",
        gateway = %served.gateway,
        listener = %served.listener,
        hostname = %served.hostname,
        address = %served.address,
        "no longer serving {served}"
    );
}

/// Reports that the proxy did not take the last version of a listener, so that the one before stays in force.
pub(super) fn goes_on(served: &Served, how: &str, why: &str) {
    tracing::warn!(
        target: TARGET,
        event = "goes-on",
        gateway = %served.gateway,
        listener = %served.listener,
        hostname = %served.hostname,
        address = %served.address,
        "{served} goes on {how}: {why}"
    );
}

pub(super) fn not_serving(served: &Served, why: &str) {
    tracing::error!(
        target: TARGET,
        event = "not-serving",
        gateway = %served.gateway,
        listener = %served.listener,
        hostname = %served.hostname,
        address = %served.address,
        "cannot serve {served}: {why}"
    );
}

pub(super) fn draining(connections: usize, deadline: Duration) {
    tracing::info!(
        target: TARGET,
        event = "draining",
        connections,
        "draining {connections} connections for at most {} s; once more to end at once",
        deadline.as_secs()
    );
}

pub(super) fn drained(cut: usize) {
    tracing::info!(target: TARGET, event = "drained", cut, "drained, {cut} connections cut");
}

pub(super) fn ended() {
    tracing::info!(target: TARGET, event = "ended", "ended without draining");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_looks_like_several_fields_is_in_quotes() {
        let line = |value: &str| {
            let mut line = Line::default();
            line.add("authority", value);
            line.fields
        };
        assert_eq!(line("a.example.com:80"), " authority=a.example.com:80");
        assert_eq!(
            line("x route=blue/bl status=200"),
            " authority=\"x route=blue/bl status=200\""
        );
        assert_eq!(line("a=b"), " authority=\"a=b\"");
        assert_eq!(line("a\"b"), " authority=\"a\\\"b\"");
        assert_eq!(line("a\n"), " authority=\"a\\n\"");
        assert_eq!(line(""), " authority=");
    }

    #[test]
    fn a_debug_form_is_not_escaped_twice() {
        let line = |value: &str| {
            let mut line = Line::default();
            line.add_debug("path", value);
            line.fields
        };
        assert_eq!(line(r#""a b""#), r#" path="a b""#);
        assert_eq!(line(r#""a\"b\\""#), r#" path="a\"b\\""#);
        assert_eq!(line(r#""""#), r#" path="""#);
        assert_eq!(line("Some(1)"), " path=Some(1)");
        assert_eq!(line(r#"Some("a b")"#), r#" path="Some(\"a b\")""#);
        // These only look like one text.
        assert_eq!(line(r#"""#), r#" path="\"""#);
        assert_eq!(
            line(r#""a" status=200 b="""#),
            r#" path="\"a\" status=200 b=\"\"""#
        );
        assert_eq!(line(r#""a\""#), r#" path="\"a\\\"""#);
        assert_eq!(line("\"a\nb\""), r#" path="\"a\nb\"""#);
    }
}
