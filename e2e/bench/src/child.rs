//! Child processes: started pinned, ended by their own process id whatever happens.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;

use crate::{proc, sys};

/// Set once the run was asked to stop; every wait ends then, and dropping ends the children.
pub(crate) static STOP: AtomicBool = AtomicBool::new(false);

/// Whether the run was asked to stop.
pub(crate) fn stopped() -> bool {
    STOP.load(Ordering::Relaxed)
}

const POLL: Duration = Duration::from_millis(5);

/// Polls until the function gives something, the bound passes, or the run is to stop.
pub(crate) fn poll<T>(
    bound: Duration,
    what: &str,
    mut ready: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + bound;
    loop {
        if let Some(value) = ready()? {
            return Ok(value);
        }
        if stopped() {
            bail!("asked to stop");
        }
        if Instant::now() > deadline {
            bail!("{what}: not within {bound:?}");
        }
        thread::sleep(POLL);
    }
}

/// Has vestibule-proxy connect to backends on loopback, where those of the benches are. A variable says so and no flag,
/// because an older binary, which a run may compare, ignores it.
pub(crate) fn allow_loopback(proxy: &mut Command) {
    proxy.env("VESTIBULE_ALLOW_LOOPBACK_ENDPOINTS", "true");
}

/// A child that does not outlive its guard.
pub(crate) struct Guarded {
    child: Child,
    name: String,
    output: Option<BufReader<std::process::ChildStdout>>,
}

/// What a child's standard output is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// Nothing.
    Null,
    /// A file beside that of standard error, which ends in `.out`.
    File,
    /// A pipe that nobody reads, and that stays open.
    Unread,
    /// A pipe that is read by lines; standard input is one, too.
    Talk,
}

impl Guarded {
    /// Starts the command on one core. Standard error goes to `log`, standard output to a pipe if
    /// `talk` is set (then standard input is one too) and to nothing otherwise.
    pub(crate) fn start(
        command: Command,
        name: &str,
        core: usize,
        log: &Path,
        talk: bool,
    ) -> Result<Self> {
        let output = if talk { Output::Talk } else { Output::Null };
        Self::start_with(command, name, &[core], log, output)
    }

    /// The same with any output, on the cores given, or on all of them if none is.
    pub(crate) fn start_with(
        mut command: Command,
        name: &str,
        cores: &[usize],
        log: &Path,
        output: Output,
    ) -> Result<Self> {
        let sink = File::create(log).with_context(|| format!("creating the log of {name}"))?;
        command.stderr(sink);
        match output {
            Output::Null => command.stdin(Stdio::null()).stdout(Stdio::null()),
            Output::File => command
                .stdin(Stdio::null())
                .stdout(File::create(log.with_extension("out"))?),
            Output::Unread => command.stdin(Stdio::null()).stdout(Stdio::piped()),
            Output::Talk => command.stdin(Stdio::piped()).stdout(Stdio::piped()),
        };
        sys::confine(&mut command, cores);
        let mut child = command
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        let output = child.stdout.take().map(BufReader::new);
        Ok(Self {
            child,
            name: name.to_owned(),
            output,
        })
    }

    /// Process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it ended by itself, and how.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Reads one line of its output. The child bounds its own time, and its end ends the wait.
    pub(crate) fn line<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        let output = self.output.as_mut().context("a child without a pipe")?;
        output.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("{} said {line:?}", self.name))
    }

    /// Reads all of its output, to its end. The child bounds its own time.
    pub(crate) fn text(&mut self) -> Result<String> {
        let mut text = String::new();
        let output = self.output.as_mut().context("a child without a pipe")?;
        output.read_to_string(&mut text)?;
        Ok(text)
    }

    /// Writes one line to its standard input.
    pub(crate) fn tell(&mut self, line: &str) -> Result<()> {
        let input = self
            .child
            .stdin
            .as_mut()
            .context("a child without a pipe")?;
        writeln!(input, "{line}").with_context(|| format!("{} does not listen", self.name))
    }

    /// Closes its standard input, which asks our own children to end, and waits.
    pub(crate) fn finish(&mut self, bound: Duration) -> Result<ExitStatus> {
        drop(self.child.stdin.take());
        poll(bound, &format!("the end of {}", self.name), || {
            Ok(self.child.try_wait()?)
        })
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        let tree = proc::tree(self.child.id());
        sys::signal(self.child.id(), false);
        let deadline = Instant::now() + Duration::from_secs(2);
        while Instant::now() < deadline && !matches!(self.child.try_wait(), Ok(Some(_))) {
            thread::sleep(POLL);
        }
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            // Workers first: they are still children of the process that is about to end.
            let still = proc::tree(self.child.id());
            for pid in tree.into_iter().filter(|pid| still.contains(pid)).rev() {
                sys::signal(pid, true);
            }
            let _ = self.child.wait();
        }
    }
}
