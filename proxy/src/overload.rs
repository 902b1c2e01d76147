//! Owns the overload levels. If memory, open files or connections run short, the proxy offers less, level by level,
//! before the kernel takes something away from everybody.
//!
//! A level begins at once when the use of any of the three reaches its mark. It ends when the use of all of them is
//! `BELOW` the mark. This hysteresis keeps the proxy from switching back and forth.

use std::sync::atomic::{AtomicU8, Ordering};
use std::task::Poll;

/// Percentage points below the mark at which a level ends.
const BELOW: u64 = 5;

/// The level of overload. Each level includes the measures of those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum OverloadLevel {
    /// There is enough of everything.
    #[default]
    Normal,
    /// Idle connections are not kept: HTTP/1.1 responses say `connection: close`, and a connection without a request
    /// for 10 s is closed.
    KeepAlive,
    /// A tenant that has an equal part of what is in use (connections of clients, connections to backends and UDP sessions
    /// together) gets no further ones, and fewer connections may wait in their hello.
    Shares,
    /// A connection without a request is closed after a second, and slow clients soon. A request does not wait for its backend
    /// for long.
    Timeouts,
}

impl OverloadLevel {
    const ALL: [Self; 4] = [Self::Normal, Self::KeepAlive, Self::Shares, Self::Timeouts];

    pub(crate) fn number(self) -> u8 {
        self as u8
    }

    /// The word for logs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::KeepAlive => "KeepAlive",
            Self::Shares => "Shares",
            Self::Timeouts => "Timeouts",
        }
    }
}

/// The use of one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// How much is in use now.
    pub used: u64,
    /// How much there is in total.
    pub limit: u64,
}

impl Usage {
    fn percent(self) -> u64 {
        let used = u128::from(self.used) * 100 / u128::from(self.limit.max(1));
        u64::try_from(used).unwrap_or(u64::MAX)
    }
}

/// The use of everything that may run short. `None` means that it has no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readings {
    /// Bytes of memory of the control group, without those that the kernel can drop at once.
    pub memory: Option<Usage>,
    /// Open files.
    pub files: Option<Usage>,
    /// Connections of tenants.
    pub connections: Option<Usage>,
}

impl Readings {
    /// The use of each in percent, with its name in metrics and logs.
    pub(crate) fn percents(&self) -> [(&'static str, Option<u64>); 3] {
        let percent = |of: Option<Usage>| of.map(Usage::percent);
        [
            ("memory", percent(self.memory)),
            ("files", percent(self.files)),
            ("connections", percent(self.connections)),
        ]
    }
}

/// The level after `before`. The mark of the first level is `percent`. Those of the others are at a third and at two
/// thirds of the way from there to 100.
pub(crate) fn decide(before: OverloadLevel, readings: &Readings, percent: u8) -> OverloadLevel {
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

/// The level in force.
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

    /// The level in force, as soon as it differs from `seen`. [`crate::plane::DataPlane::rouse`] polls waiting
    /// connections again.
    pub(crate) fn poll_step(&self, seen: OverloadLevel) -> Poll<OverloadLevel> {
        let step = self.step();
        if step == seen {
            Poll::Pending
        } else {
            Poll::Ready(step)
        }
    }

    pub(crate) fn set(&self, step: OverloadLevel) {
        self.step.store(step.number(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
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
    fn overload_level_follows_the_resource_that_is_shortest() {
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
}
