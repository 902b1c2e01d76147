//! The memory of a pod, as the control group of its container counts it on its node. The images of the components have
//! no program that could read it from inside. In version 1 of control groups, the buffers of sockets are not part of it.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::api::{name, text};
use crate::world::World;

/// The files that are read, in version 2 of control groups and in version 1, as a regular expression of `find`.
const FILES: &str =
    r".*/memory\.\(max\|peak\|events\|limit_in_bytes\|max_usage_in_bytes\|oom_control\)";

/// The memory of a container since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    /// The limit, in bytes.
    pub(crate) limit: u64,
    /// The most that was in use, in bytes. In version 2, Linux keeps it since 5.19.
    pub(crate) peak: Option<u64>,
    /// How many processes the kernel killed because there was no more.
    pub(crate) kills: u64,
}

impl Memory {
    /// Of the only container of a pod that runs.
    pub(crate) async fn of(world: &World, pod: &Value) -> Result<Self> {
        let id = text(pod, "/status/containerStatuses/0/containerID");
        let id = id.rsplit('/').next().unwrap_or_default();
        ensure!(!id.is_empty(), "{} has no container", name(pod));
        // Where a node has its groups depends on the version, on kind and on the driver. All of them name a group after
        // the container.
        let find =
            format!("find /sys/fs/cgroup -path '*{id}*' -regex '{FILES}' -exec grep -H '' {{}} +");
        // Its status does not count: groups of other pods may go while it looks.
        let found = world
            .on_node(text(pod, "/spec/nodeName"), &["sh", "-c", &find])
            .await?;
        Self::parse(&found.stdout)
            .with_context(|| format!("memory of {}: {}", name(pod), found.stderr.trim()))
    }

    /// Reads lines such as `/sys/fs/cgroup/a/memory.peak:1` and `/sys/fs/cgroup/a/memory.events:oom_kill 0`.
    fn parse(lines: &str) -> Result<Self> {
        let mut values = BTreeMap::new();
        for line in lines.lines() {
            let (_, line) = line.rsplit_once('/').unwrap_or_default();
            let (key, value) = line.rsplit_once([':', ' ']).unwrap_or_default();
            values.insert(key, value);
        }
        let number = |keys: [&str; 2]| {
            let value = keys.iter().find_map(|key| values.get(key));
            value.and_then(|value| value.parse::<u64>().ok())
        };
        Ok(Self {
            limit: number(["memory.max", "memory.limit_in_bytes"]).context("no limit")?,
            peak: number(["memory.peak", "memory.max_usage_in_bytes"]),
            kills: number(["memory.events:oom_kill", "memory.oom_control:oom_kill"])
                .context("no number of kills")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: &str = "\
/sys/fs/cgroup/kubelet.slice/cri-containerd-1.scope/memory.max:268435456
/sys/fs/cgroup/kubelet.slice/cri-containerd-1.scope/memory.peak:7000000
/sys/fs/cgroup/kubelet.slice/cri-containerd-1.scope/memory.events:max 3
/sys/fs/cgroup/kubelet.slice/cri-containerd-1.scope/memory.events:oom_kill 1
";
    const FIRST: &str = "\
/sys/fs/cgroup/memory/kubepods/pod1/1/memory.limit_in_bytes:268435456
/sys/fs/cgroup/memory/kubepods/pod1/1/memory.max_usage_in_bytes:7000000
/sys/fs/cgroup/memory/kubepods/pod1/1/memory.oom_control:oom_kill_disable 0
/sys/fs/cgroup/memory/kubepods/pod1/1/memory.oom_control:oom_kill 1
";

    #[test]
    fn both_versions_of_control_groups_are_read() {
        for lines in [FIRST, SECOND] {
            let memory = Memory::parse(lines).unwrap();
            let (limit, peak, kills) = (memory.limit, memory.peak, memory.kills);
            assert_eq!((limit, peak, kills), (256 << 20, Some(7_000_000), 1));
        }
        let without_limit = SECOND.replace("268435456", "max");
        assert!(Memory::parse(&without_limit).is_err());
    }
}
