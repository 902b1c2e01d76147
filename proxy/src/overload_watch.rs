//! Owns the readings that decide the overload level: memory, open files and connections, taken at regular intervals.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};

use crate::overload::{Readings, Usage, decide};
use crate::plane::DataPlane;

/// How often the readings are taken.
const EVERY: Duration = Duration::from_millis(500);
/// In version 1 of control groups, a larger limit than this means that there is none.
const NO_LIMIT: u64 = 1 << 60;

impl DataPlane {
    /// Sets the overload level by these readings.
    pub fn observe(&self, readings: &Readings) {
        let before = self.overload().step();
        let step = decide(before, readings, self.limits.overload_percent);
        self.metrics.overload(step.number(), readings);
        if step == before {
            return;
        }
        self.overload().set(step);
        self.rouse();
        let [(_, memory), (_, files), (_, connections)] = readings.percents();
        let (from, to) = (before.name(), step.name());
        if step > before {
            tracing::warn!(
                from,
                to,
                memory,
                files,
                connections,
                "overload: the proxy offers less"
            );
        } else {
            tracing::info!(
                from,
                to,
                memory,
                files,
                connections,
                "overload: the proxy offers more again"
            );
        }
    }

    fn readings(&self) -> Readings {
        let to_u64 = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let connections = Usage {
            used: to_u64(self.metrics.accounts().held()),
            limit: to_u64(self.limits.max_connections),
        };
        let limit = getrlimit(Resource::Nofile).current;
        let files = limit.map(|limit| Usage {
            used: open_files().unwrap_or(2 * to_u64(self.active())),
            limit,
        });
        Readings {
            memory: memory(Path::new("/")),
            files,
            connections: Some(connections),
        }
    }
}

/// Takes readings, and never returns.
pub(crate) async fn watch(plane: Arc<DataPlane>) {
    if plane.limits.overload_percent >= 100 {
        return;
    }
    loop {
        plane.observe(&plane.readings());
        tokio::time::sleep(EVERY).await;
    }
}

/// Number of open files of this process. Linux reports it since 6.2. Before, all of them would have to be listed, which
/// costs too much.
fn open_files() -> Option<u64> {
    let count = fs::metadata("/proc/self/fd").ok()?.len();
    (count > 0).then_some(count)
}

/// File names of a memory control group.
struct Names {
    limit: &'static str,
    used: &'static str,
    inactive: &'static str,
}

const V1: Names = Names {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    inactive: "total_inactive_file",
};

const V2: Names = Names {
    limit: "memory.max",
    used: "memory.current",
    inactive: "inactive_file",
};

/// Memory of the innermost control group around this process that has a limit, below the file system's `root`.
fn memory(root: &Path) -> Option<Usage> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let (mount, names) = if controllers.is_empty() {
            ("sys/fs/cgroup", &V2)
        } else if controllers.split(',').any(|of| of == "memory") {
            ("sys/fs/cgroup/memory", &V1)
        } else {
            return None;
        };
        let mount = root.join(mount);
        // In a container, this may be a path of the host, which does not exist here. Then the mount is the container's
        // own group.
        let path = Path::new(path.trim_start_matches('/'));
        let mut around = path.ancestors();
        around.find_map(|group| memory_of(&mount.join(group), names))
    })
}

fn memory_of(group: &Path, names: &Names) -> Option<Usage> {
    let read = |name: &str| fs::read_to_string(group.join(name)).ok();
    let limit = read(names.limit)?.trim().parse().ok();
    let limit = limit.filter(|limit| *limit < NO_LIMIT)?;
    let used: u64 = read(names.used)?.trim().parse().ok()?;
    let stat = read("memory.stat").unwrap_or_default();
    let inactive = stat.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        (name == names.inactive).then(|| value.parse().ok())?
    });
    Some(Usage {
        used: used.saturating_sub(inactive.unwrap_or(0)),
        limit,
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A file system with these files.
    struct Files(PathBuf);

    impl Files {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir();
            let root = root.join(format!("vestibule-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_innermost_control_group_with_a_limit_counts() {
        let files = Files::new(
            "v2",
            &[
                ("proc/self/cgroup", "0::/pod/proxy\n"),
                ("sys/fs/cgroup/pod/proxy/memory.max", "max\n"),
                ("sys/fs/cgroup/pod/proxy/memory.current", "7\n"),
                ("sys/fs/cgroup/pod/memory.max", "1000\n"),
                ("sys/fs/cgroup/pod/memory.current", "900\n"),
                (
                    "sys/fs/cgroup/pod/memory.stat",
                    "anon 500\ninactive_file 150\nactive_file 9\n",
                ),
            ],
        );
        let found = memory(&files.0);
        assert_eq!(
            found,
            Some(Usage {
                used: 750,
                limit: 1000
            })
        );
    }

    #[test]
    fn a_container_sees_its_own_control_group_at_the_root() {
        let files = Files::new(
            "v1",
            &[
                (
                    "proc/self/cgroup",
                    "9:cpu,cpuacct:/kubepods/a\n4:memory:/kubepods/a\n0::/\n",
                ),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "2000\n"),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "900\n"),
                (
                    "sys/fs/cgroup/memory/memory.stat",
                    "inactive_file 1\ntotal_inactive_file 100\n",
                ),
            ],
        );
        let found = memory(&files.0);
        assert_eq!(
            found,
            Some(Usage {
                used: 800,
                limit: 2000
            })
        );
    }

    #[test]
    fn without_a_limit_there_is_no_reading() {
        let files = Files::new(
            "none",
            &[
                ("proc/self/cgroup", "4:memory:/\n0::/\n"),
                (
                    "sys/fs/cgroup/memory/memory.limit_in_bytes",
                    "9223372036854771712\n",
                ),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "900\n"),
                ("sys/fs/cgroup/memory.current", "900\n"),
            ],
        );
        assert_eq!(memory(&files.0), None);
        assert_eq!(memory(Path::new("/nowhere")), None);
    }
}
