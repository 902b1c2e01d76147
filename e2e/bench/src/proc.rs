//! Reads `/proc`: CPU and memory of a process with its descendants, and of the machine.

use std::fs;
use std::time::{Duration, Instant};

use crate::sys;

/// The process and everything below it.
pub(crate) fn tree(root: u32) -> Vec<u32> {
    let mut pairs = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        if let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok())
            && let Some(fields) = stat_fields(pid)
            && let Some(parent) = fields.get(1).and_then(|parent| parent.parse::<u32>().ok())
        {
            pairs.push((pid, parent));
        }
    }
    let mut found = vec![root];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(
            pairs
                .iter()
                .filter(|pair| pair.1 == parent)
                .map(|pair| pair.0),
        );
        next += 1;
    }
    found
}

/// Fields of `/proc/PID/stat` from the state on (the name before it may hold spaces).
fn stat_fields(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(") ")?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

/// User and system CPU time of the process and its descendants, all threads.
pub(crate) fn cpu(root: u32) -> Duration {
    tree(root).into_iter().map(cpu_of).sum()
}

fn cpu_of(pid: u32) -> Duration {
    let ticks = stat_fields(pid).map_or(0, |fields| {
        fields
            .iter()
            .skip(11)
            .take(2)
            .filter_map(|field| field.parse::<u64>().ok())
            .sum::<u64>()
    });
    let coarse = Duration::from_millis(ticks * 1_000 / sys::ticks_per_second());
    let fine: u64 = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok())
        .filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok())
        .sum();
    let fine = Duration::from_nanos(fine);
    // schedstat counts nanoseconds but forgets threads that ended; stat remembers them in ticks.
    if coarse.abs_diff(fine) <= Duration::from_millis(40) {
        fine
    } else {
        coarse
    }
}

/// How often threads of the process and its descendants went to sleep of themselves. Those that ended are forgotten.
pub(crate) fn voluntary_switches(root: u32) -> u64 {
    let tasks = tree(root).into_iter().flat_map(|pid| {
        fs::read_dir(format!("/proc/{pid}/task"))
            .into_iter()
            .flatten()
            .flatten()
    });
    tasks
        .filter_map(|task| fs::read_to_string(task.path().join("status")).ok())
        .filter_map(|text| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
            line.trim().parse::<u64>().ok()
        })
        .sum()
}

/// Memory of a process tree.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Memory {
    /// Anonymous memory: heap, stacks and what was written of mappings, bytes.
    pub(crate) user: u64,
    /// Resident set, code included, bytes.
    pub(crate) resident: u64,
    /// Descriptors of pipes.
    pub(crate) pipes: u64,
    /// Descriptors of sockets.
    pub(crate) sockets: u64,
}

/// What the process tree holds now.
pub(crate) fn memory(root: u32) -> Memory {
    let mut sum = Memory::default();
    for pid in tree(root) {
        let one = memory_alone(pid);
        sum.user += one.user;
        sum.resident += one.resident;
        sum.pipes += one.pipes;
        sum.sockets += one.sockets;
    }
    sum
}

/// What this process holds now, its descendants not counted.
pub(crate) fn memory_alone(pid: u32) -> Memory {
    let mut sum = Memory::default();
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (name, kilobytes) = (
            words.next(),
            words.next().and_then(|word| word.parse::<u64>().ok()),
        );
        match (name, kilobytes) {
            (Some("Anonymous:"), Some(value)) => sum.user += value * 1024,
            (Some("Rss:"), Some(value)) => sum.resident += value * 1024,
            _ => {}
        }
    }
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let target = fs::read_link(entry.path()).unwrap_or_default();
        let target = target.to_string_lossy();
        sum.pipes += u64::from(target.starts_with("pipe:"));
        sum.sockets += u64::from(target.starts_with("socket:"));
    }
    sum
}

/// Descriptors that this process has open.
pub(crate) fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Most bytes that were ever resident at a time in this process, its descendants not counted.
pub(crate) fn peak(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

/// Bytes of this process that are resident now. Cheap, so that it can be asked for often.
pub(crate) fn resident() -> u64 {
    let text = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text
        .split_whitespace()
        .nth(1)
        .and_then(|word| word.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

/// A reading of the machine's clocks, to tell afterwards how much CPU went to others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    at: Instant,
    busy: Duration,
    softirq: Duration,
    ours: Duration,
}

impl Machine {
    /// Reads now; `pids` are the running process trees that belong to the measurement.
    pub(crate) fn read(pids: &[u32]) -> Self {
        let text = fs::read_to_string("/proc/stat").unwrap_or_default();
        let fields: Vec<u64> = text
            .lines()
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .skip(1)
            .filter_map(|word| word.parse().ok())
            .collect();
        // user nice system idle iowait irq softirq steal; guest time is part of user.
        let busy: u64 = [0, 1, 2, 5, 6, 7]
            .iter()
            .filter_map(|index| fields.get(*index))
            .sum();
        let time = |ticks: u64| Duration::from_millis(ticks * 1_000 / sys::ticks_per_second());
        Self {
            at: Instant::now(),
            busy: time(busy),
            softirq: time(fields.get(6).copied().unwrap_or_default()),
            ours: sys::own_cpu() + pids.iter().map(|pid| cpu(*pid)).sum::<Duration>(),
        }
    }

    /// CPU that the machine spent in soft interrupts since `earlier`.
    pub(crate) fn softirq_since(&self, earlier: &Self) -> Duration {
        self.softirq.saturating_sub(earlier.softirq)
    }

    /// Cores' worth of CPU that went to processes not of the measurement since `earlier`.
    pub(crate) fn foreign_since(&self, earlier: &Self) -> f64 {
        let wall = (self.at - earlier.at).as_secs_f64().max(1e-3);
        let busy = self.busy.saturating_sub(earlier.busy).as_secs_f64();
        let ours = self.ours.saturating_sub(earlier.ours).as_secs_f64();
        ((busy - ours) / wall).max(0.0)
    }
}
