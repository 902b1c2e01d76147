//! Owns what this proxy does when it runs short of memory, open files or connections: it offers less, in steps, before the
//! kernel takes something from everybody.
//!
//! Each step is taken at once when the use of any of the three reaches its mark, and given up when the use of all of them
//! is `BELOW` the mark: who hovers at one does not go back and forth.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::Poll;
use std::time::Duration;

use crate::plane::DataPlane;
use rustix::process::{Resource, getrlimit};

/// How often the readings are taken.
const EVERY: Duration = Duration::from_millis(500);
/// Points of percent below its mark at which a step is given up.
const BELOW: u64 = 5;
/// Larger limits of version 1 of control groups are none.
const NO_LIMIT: u64 = 1 << 60;

/// How short this proxy is of something. Each level does what those before it do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum OverloadLevel {
    /// There is enough of everything.
    #[default]
    Normal,
    /// No client keeps a connection for later: HTTP/1.1 answers say `connection: close`, and whoever has asked for nothing
    /// for 10 s is closed.
    KeepAlive,
    /// No tenant gets a further connection that has as many as an equal part of all, and fewer wait in their hello.
    Shares,
    /// Who asks for nothing is closed after a second, and who is slow soon.
    Timeouts,
}

impl OverloadLevel {
    const ALL: [Self; 4] = [Self::Normal, Self::KeepAlive, Self::Shares, Self::Timeouts];

    fn number(self) -> u8 {
        self as u8
    }

    /// The word for logs.
    fn name(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::KeepAlive => "KeepAlive",
            Self::Shares => "Shares",
            Self::Timeouts => "Timeouts",
        }
    }
}

/// How much of something is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// In use now.
    pub used: u64,
    /// All there is.
    pub limit: u64,
}

impl Usage {
    fn percent(self) -> u64 {
        let used = u128::from(self.used) * 100 / u128::from(self.limit.max(1));
        u64::try_from(used).unwrap_or(u64::MAX)
    }
}

/// What is in use of all that may run short. None: it has no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readings {
    /// Bytes of the control group, without what the kernel can drop at once.
    pub memory: Option<Usage>,
    /// Open files.
    pub files: Option<Usage>,
    /// Connections of tenants.
    pub connections: Option<Usage>,
}

impl Readings {
    /// Each with its name, as metrics and logs have it.
    pub(crate) fn percents(&self) -> [(&'static str, Option<u64>); 3] {
        let percent = |of: Option<Usage>| of.map(Usage::percent);
        [
            ("memory", percent(self.memory)),
            ("files", percent(self.files)),
            ("connections", percent(self.connections)),
        ]
    }
}

/// The step after `before`. The first one begins at `percent`, the others at a third and two thirds of the way from there to
/// 100.
fn decide(before: OverloadLevel, readings: &Readings, percent: u8) -> OverloadLevel {
    let first = u64::from(percent.min(100));
    let left = 100 - first;
    let marks = [first, first + left / 3, first + left * 2 / 3];
    let percents = readings.percents();
    let used = percents.iter().filter_map(|(_, used)| *used).max();
    let Some(used) = used.filter(|_| left > 0) else {
        return OverloadLevel::Normal;
    };
    let reached = marks.iter().filter(|mark| used >= **mark).count();
    let kept = marks.iter().filter(|mark| used + BELOW >= **mark).count();
    let number = reached.max(kept.min(before.number().into()));
    OverloadLevel::ALL.get(number).copied().unwrap_or_default()
}

/// The step that is in force.
#[derive(Debug, Default)]
pub(crate) struct Overload {
    step: AtomicU8,
}

impl Overload {
    pub(crate) fn step(&self) -> OverloadLevel {
        let number = self.step.load(Ordering::Relaxed);
        OverloadLevel::ALL
            .get(usize::from(number))
            .copied()
            .unwrap_or_default()
    }

    /// The step in force, once it is not `seen` any more. Connections that wait are polled again by
    /// [`DataPlane::rouse`].
    pub(crate) fn poll_step(&self, seen: OverloadLevel) -> Poll<OverloadLevel> {
        let step = self.step();
        if step == seen {
            Poll::Pending
        } else {
            Poll::Ready(step)
        }
    }

    fn set(&self, step: OverloadLevel) {
        self.step.store(step.number(), Ordering::Relaxed);
    }
}

impl DataPlane {
    /// Takes readings into account.
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
                "overload: less is offered"
            );
        } else {
            tracing::info!(
                from,
                to,
                memory,
                files,
                connections,
                "overload: more is offered again"
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

/// Takes readings for ever.
pub(crate) async fn watch(plane: Arc<DataPlane>) {
    if plane.limits.overload_percent >= 100 {
        return;
    }
    loop {
        plane.observe(&plane.readings());
        tokio::time::sleep(EVERY).await;
    }
}

/// Open files of this process. Linux says so since 6.2; before, only by going through all of them, which costs more than it is
/// worth.
fn open_files() -> Option<u64> {
    let count = fs::metadata("/proc/self/fd").ok()?.len();
    (count > 0).then_some(count)
}

/// Names of the files of a memory control group.
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
        // In a container the path may be that of the host, which is not here; the mount is then the container's own group.
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

    use proptest::prelude::*;

    use super::*;

    fn at(percent: u64) -> Usage {
        Usage {
            used: percent * 10,
            limit: 1000,
        }
    }

    fn memory_at(percent: u64) -> Readings {
        Readings {
            memory: Some(at(percent)),
            ..Readings::default()
        }
    }

    #[test]
    fn steps_come_at_once_and_go_late() {
        let mut step = OverloadLevel::Normal;
        let mut went = Vec::new();
        for percent in [
            0, 79, 80, 79, 76, 75, 74, 93, 88, 87, 81, 80, 75, 74, 86, 200, 0,
        ] {
            step = decide(step, &memory_at(percent), 80);
            went.push((percent, step.number()));
        }
        let expected = [
            (0, 0),
            (79, 0),
            (80, 1),
            (79, 1),
            (76, 1),
            (75, 1),
            (74, 0),
            (93, 3),
            (88, 3),
            (87, 2),
            (81, 2),
            (80, 1),
            (75, 1),
            (74, 0),
            (86, 2),
            (200, 3),
            (0, 0),
        ];
        assert_eq!(went, expected);
    }

    #[test]
    fn whatever_is_shortest_counts() {
        let nothing = Readings::default();
        assert_eq!(
            decide(OverloadLevel::Timeouts, &nothing, 80),
            OverloadLevel::Normal
        );
        let short = [
            Readings {
                memory: Some(at(94)),
                ..nothing
            },
            Readings {
                files: Some(at(94)),
                ..nothing
            },
            Readings {
                connections: Some(at(94)),
                ..nothing
            },
        ];
        for readings in short {
            let others = Readings {
                memory: readings.memory.or(Some(at(1))),
                files: readings.files.or(Some(at(2))),
                connections: readings.connections.or(Some(at(3))),
            };
            assert_eq!(
                decide(OverloadLevel::Normal, &others, 80),
                OverloadLevel::Timeouts
            );
            assert_eq!(
                decide(OverloadLevel::Normal, &others, 95),
                OverloadLevel::Normal
            );
            assert_eq!(
                decide(OverloadLevel::Timeouts, &others, 100),
                OverloadLevel::Normal,
                "turned off"
            );
        }
    }

    proptest! {
        #[test]
        fn more_in_use_is_never_a_lower_step(percent in 0_u8..100, before in 0_usize..4, used in 0_u64..120, more in 0_u64..120) {
            let before = OverloadLevel::ALL[before];
            let less = decide(before, &memory_at(used), percent);
            prop_assert!(decide(before, &memory_at(used + more), percent) >= less);
            // A reading that stays changes nothing more.
            prop_assert_eq!(decide(less, &memory_at(used), percent), less);
        }
    }

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
