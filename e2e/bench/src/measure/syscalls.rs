//! System calls of a process tree, counted by `perf`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::child::{self, Guarded, Output};
use crate::{proc, sys};

/// The event that every call makes.
const EVENT: &str = "raw_syscalls:sys_enter";

/// Counts while it lives.
pub(super) struct Counter {
    perf: Guarded,
    file: PathBuf,
}

/// Whether `perf` may count here.
pub(crate) fn available() -> bool {
    let mut command = Command::new("perf");
    command.args(["stat", "-e", EVENT, "-x,", "true"]);
    command
        .output()
        .is_ok_and(|output| output.status.success() && count(&output.stderr).is_some())
}

impl Counter {
    /// Begins to count for the process and what is below it.
    pub(super) fn start(pid: u32, folder: &Path) -> Result<Self> {
        let file = folder.join("perf");
        let _ = fs::remove_file(&file);
        let pids: Vec<String> = proc::tree(pid).iter().map(u32::to_string).collect();
        let mut command = Command::new("perf");
        command.args(["stat", "-e", EVENT, "-x,", "-o"]).arg(&file);
        command.args(["-p", &pids.join(",")]);
        let log = folder.join("perf.log");
        let perf = Guarded::start_with(command, "perf", &[], &log, Output::Null)?;
        // It makes its file before it counts.
        child::poll(Duration::from_secs(10), "perf's file", || {
            Ok(file.exists().then_some(()))
        })?;
        Ok(Self { perf, file })
    }

    /// Ends it, and says how many there were.
    pub(super) fn stop(mut self) -> Result<f64> {
        sys::interrupt(self.perf.pid());
        self.perf.finish(Duration::from_secs(10))?;
        let text = fs::read(&self.file).context("what perf wrote")?;
        count(&text).context("perf counted nothing")
    }
}

fn count(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    let line = text.lines().find(|line| line.contains(EVENT))?;
    line.split(',').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perf_output_is_read() {
        let text = b"# started on Tue\n\n29,,raw_syscalls:sys_enter,683187,100.00,,\n";
        assert_eq!(count(text), Some(29.0));
        assert_eq!(
            count(b"<not supported>,,raw_syscalls:sys_enter,0,100.00,,"),
            None
        );
    }
}
