//! Decides which files to read: those that have changed and then stayed the same for a moment. It is pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vestibule_model::finding::Finding;

/// Path of a file, relative to the directory, with `/` between its parts.
pub(crate) type FilePath = Arc<str>;

/// Metadata by which two versions of a file can be told apart without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Device and inode. They differ if another file gets the same name.
    pub(crate) inode: (u64, u64),
    /// Length in bytes.
    pub(crate) size: u64,
    /// Last change of the content, in nanoseconds.
    pub(crate) modified: i128,
    /// Last change of the inode, in nanoseconds. It differs if content is changed and the old time is put back.
    pub(crate) changed: i128,
}

/// One look at the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Look {
    /// Device and inode of the directory itself.
    pub(crate) root: (u64, u64),
    /// Its manifests.
    pub(crate) files: BTreeMap<FilePath, Stamp>,
    /// Subdirectories that could not be listed, with a `/` at the end, and the reason. The objects that were read from
    /// them stay.
    pub(crate) unreadable: BTreeMap<FilePath, Finding>,
    /// Files that are being written. They may stay the same for a while and still be incomplete.
    pub(crate) writing: BTreeSet<FilePath>,
}

/// What to do after a look.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Files to read. Call [`Tracker::was_read`] for each of them afterwards.
    pub(crate) read: Vec<(FilePath, Stamp)>,
    /// Files that are gone.
    pub(crate) removed: Vec<FilePath>,
    /// Directories that can no longer be listed.
    pub(crate) failed: Vec<(FilePath, Finding)>,
    /// Whether files still change, so that another look is needed soon.
    pub(crate) unsettled: bool,
    /// Whether the directory was replaced by an empty one. It then counts as gone for a moment.
    pub(crate) replaced: bool,
}

/// Remembers what was seen and what was read.
#[derive(Debug, Default)]
pub(crate) struct Tracker {
    previous: BTreeMap<FilePath, Stamp>,
    read: BTreeMap<FilePath, Stamp>,
    failed: BTreeMap<FilePath, Finding>,
    root: Option<(u64, u64)>,
}

impl Tracker {
    /// Takes the result of a look. A file is read when it is the same in two looks and nobody writes to it. It is gone
    /// when it is missing in two looks.
    pub(crate) fn look(&mut self, mut look: Look) -> Plan {
        let mut plan = Plan::default();
        let hidden = |path: &str| look.unreadable.keys().any(|at| path.starts_with(&**at));
        for (path, stamp) in &self.previous {
            if hidden(path) {
                look.files.insert(path.clone(), *stamp);
            }
        }
        if look.files.is_empty() && !self.read.is_empty() && self.root != Some(look.root) {
            // This may be an empty mount point, or a directory that is being put back, so it does not count as a
            // deletion by the user.
            plan.replaced = true;
            return plan;
        }
        if !look.files.is_empty() || self.root.is_none() {
            self.root = Some(look.root);
        }
        for (path, stamp) in &look.files {
            if self.read.get(path) == Some(stamp) {
                continue;
            }
            if self.previous.get(path) == Some(stamp) && !look.writing.contains(path) {
                plan.read.push((path.clone(), *stamp));
            } else {
                plan.unsettled = true;
            }
        }
        let previous = &self.previous;
        let missing = |path: &&FilePath| !look.files.contains_key(*path);
        for path in self.read.keys().filter(missing) {
            if previous.contains_key(path) {
                plan.unsettled = true;
            } else {
                plan.removed.push(path.clone());
            }
        }
        for path in &plan.removed {
            self.read.remove(path);
        }
        let news = |(path, why): &(&FilePath, &Finding)| self.failed.get(*path) != Some(*why);
        plan.failed = look
            .unreadable
            .iter()
            .filter(news)
            .map(|(path, why)| (path.clone(), why.clone()))
            .collect();
        let mended = self
            .failed
            .keys()
            .filter(|at| !look.unreadable.contains_key(*at));
        plan.removed.extend(mended.cloned());
        self.failed = look.unreadable;
        self.previous = look.files;
        plan
    }

    /// Records that a file was read, and had this stamp before and after.
    pub(crate) fn was_read(&mut self, path: FilePath, stamp: Stamp) {
        self.read.insert(path, stamp);
    }
}

#[cfg(test)]
mod tests {
    use vestibule_model::condition::Reason;

    use super::*;

    fn stamp(version: u64) -> Stamp {
        Stamp {
            inode: (1, version),
            size: version,
            modified: 0,
            changed: 0,
        }
    }

    fn look(root: u64, files: &[(&str, u64)]) -> Look {
        let files = files
            .iter()
            .map(|(path, version)| ((*path).into(), stamp(*version)));
        Look {
            root: (1, root),
            files: files.collect(),
            unreadable: BTreeMap::new(),
            writing: BTreeSet::new(),
        }
    }

    fn reads(plan: &Plan) -> Vec<&str> {
        plan.read.iter().map(|(path, _)| &**path).collect()
    }

    /// A tracker that has read these files.
    fn settled(files: &[(&str, u64)]) -> Tracker {
        let mut tracker = Tracker::default();
        tracker.look(look(1, files));
        for (path, stamp) in tracker.look(look(1, files)).read {
            tracker.was_read(path, stamp);
        }
        tracker
    }

    #[test]
    fn reads_what_held_still_between_two_looks() {
        let mut tracker = Tracker::default();
        let first = tracker.look(look(1, &[("a.yaml", 1)]));
        assert!(first.read.is_empty() && first.unsettled);
        // The file is still being written.
        assert!(tracker.look(look(1, &[("a.yaml", 2)])).unsettled);
        let plan = tracker.look(look(1, &[("a.yaml", 2)]));
        assert_eq!(reads(&plan), ["a.yaml"]);
        assert!(!plan.unsettled);
        // Nobody confirmed the read, because the file changed meanwhile. So it is read again.
        assert_eq!(reads(&tracker.look(look(1, &[("a.yaml", 2)]))), ["a.yaml"]);
        tracker.was_read("a.yaml".into(), stamp(2));
        assert_eq!(tracker.look(look(1, &[("a.yaml", 2)])), Plan::default());
    }

    #[test]
    fn a_file_that_is_being_written_is_not_read_however_still_it_holds() {
        let mut tracker = settled(&[("a.yaml", 1), ("b.yaml", 1)]);
        let writing = || Look {
            writing: ["a.yaml".into()].into(),
            ..look(1, &[("a.yaml", 2), ("b.yaml", 2)])
        };
        tracker.look(writing());
        for _ in 0..5 {
            let plan = tracker.look(writing());
            assert_eq!(reads(&plan), ["b.yaml"]);
            assert!(plan.unsettled);
        }
        let plan = tracker.look(look(1, &[("a.yaml", 2), ("b.yaml", 2)]));
        assert_eq!(reads(&plan), ["a.yaml", "b.yaml"]);
        assert!(!plan.unsettled);
    }

    #[test]
    fn one_restless_file_does_not_hold_up_the_others() {
        let mut tracker = Tracker::default();
        tracker.look(look(1, &[("a.yaml", 1), ("b.yaml", 1)]));
        let plan = tracker.look(look(1, &[("a.yaml", 1), ("b.yaml", 2)]));
        assert_eq!(reads(&plan), ["a.yaml"]);
        assert!(plan.unsettled);
    }

    #[test]
    fn a_file_is_gone_when_it_is_missing_twice() {
        let mut tracker = settled(&[("a.yaml", 1), ("b.yaml", 1)]);
        let first = tracker.look(look(1, &[("b.yaml", 1)]));
        assert!(first.removed.is_empty() && first.unsettled);
        assert_eq!(tracker.look(look(1, &[("b.yaml", 1)])).removed.len(), 1);
        assert_eq!(tracker.look(look(1, &[("b.yaml", 1)])), Plan::default());
    }

    #[test]
    fn a_file_that_is_replaced_is_not_gone() {
        let mut tracker = settled(&[("a.yaml", 1), ("b.yaml", 1)]);
        tracker.look(look(1, &[("b.yaml", 1)]));
        let plan = tracker.look(look(1, &[("a.yaml", 7), ("b.yaml", 1)]));
        assert!(plan.removed.is_empty() && plan.unsettled);
        let plan = tracker.look(look(1, &[("a.yaml", 7), ("b.yaml", 1)]));
        assert_eq!(reads(&plan), ["a.yaml"]);
    }

    #[test]
    fn directory_that_cannot_be_read_stays_and_is_reported_once() {
        let mut tracker = settled(&[("a/x.yaml", 1), ("b.yaml", 1)]);
        let hidden = |b: u64| {
            let why = Finding::refused(Reason::Unreadable, "", "is closed", "open it");
            Look {
                unreadable: [("a/".into(), why)].into(),
                ..look(1, &[("b.yaml", b)])
            }
        };
        let plan = tracker.look(hidden(2));
        assert_eq!(plan.failed.len(), 1);
        assert!(plan.removed.is_empty());
        // The other files are still read.
        let plan = tracker.look(hidden(2));
        assert_eq!(reads(&plan), ["b.yaml"]);
        assert!(plan.failed.is_empty() && plan.removed.is_empty());
        tracker.was_read("b.yaml".into(), stamp(2));
        let plan = tracker.look(look(1, &[("a/x.yaml", 1), ("b.yaml", 2)]));
        assert_eq!(plan.removed, ["a/".into()]);
        assert!(plan.read.is_empty());
    }

    #[test]
    fn an_empty_directory_in_place_of_another_removes_nothing() {
        let mut tracker = settled(&[("a.yaml", 1)]);
        for _ in 0..5 {
            let plan = tracker.look(look(2, &[]));
            assert!(plan.replaced && plan.removed.is_empty());
        }
        // It came back under another inode, so nothing has changed.
        assert!(tracker.look(look(3, &[("a.yaml", 1)])).read.is_empty());
        // If the user empties the same directory, its files are gone.
        tracker.look(look(3, &[]));
        assert_eq!(tracker.look(look(3, &[])).removed.len(), 1);
    }
}
