//! Follows a directory in a thread of its own. It uses inotify, and looks every second where inotify reports
//! nothing (network file systems, moved directories).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf, absolute};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode, ModifyKind};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::files::{self, is_manifest};
use super::source::FileChange;
use super::tracker::{FilePath, Look, Tracker};

/// Time after which the directory is listed even without an event.
const POLL: Duration = Duration::from_secs(1);
/// Time between two looks while files change.
const SETTLE: Duration = Duration::from_millis(100);

/// How long a file that is open for writing is not read after the last write to it. Most writers close it much sooner,
/// and some never do.
const OPEN: Duration = Duration::from_secs(10);

/// A change of the directory.
#[derive(Debug)]
pub(crate) enum DirectoryChange {
    /// The changed files. The list is empty if all files are the same.
    Files(Vec<(FilePath, FileChange)>),
    /// The directory cannot be listed. Everything stays as it is.
    Gone(String),
    /// It is back.
    Back,
}

/// Time in which events gather before a look.
const GATHER: Duration = Duration::from_millis(20);

/// Follows `root` until the receiver is dropped. The first change contains all files, after they have stayed the same
/// for a moment.
pub(crate) fn follow(root: PathBuf) -> std::io::Result<mpsc::Receiver<DirectoryChange>> {
    // The channel holds one change. While the receiver is busy, further changes gather on the disk.
    let (directory_change, receiver) = mpsc::channel(1);
    std::thread::Builder::new()
        .name("manifests".into())
        .spawn(move || Follower::new(root).run(&directory_change))?;
    Ok(receiver)
}

struct Follower {
    root: PathBuf,
    tracker: Tracker,
    wake: (SyncSender<()>, Receiver<()>),
    writers: Arc<Writers>,
    watcher: Option<(RecommendedWatcher, (u64, u64))>,
    watch_failed: bool,
    gone: bool,
    began: bool,
}

impl Follower {
    fn new(root: PathBuf) -> Self {
        Self {
            root,
            tracker: Tracker::default(),
            wake: sync_channel(1),
            writers: Arc::default(),
            watcher: None,
            watch_failed: false,
            gone: false,
            began: false,
        }
    }

    fn run(mut self, directory_change: &mpsc::Sender<DirectoryChange>) {
        loop {
            let (told, unsettled) = self.step();
            for item in told {
                if directory_change.blocking_send(item).is_err() {
                    return;
                }
            }
            if directory_change.is_closed() {
                return;
            }
            if unsettled {
                std::thread::sleep(SETTLE);
                continue;
            }
            // This value holds a sender, so the channel does not close.
            match self.wake.1.recv_timeout(POLL) {
                // A writer causes several events for one file, and some writers never stop.
                Ok(()) => std::thread::sleep(GATHER),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn step(&mut self) -> (Vec<DirectoryChange>, bool) {
        match files::look(&self.root) {
            Ok(mut look) => {
                self.watch(look.root);
                look.writing = self.writers.at_work(Instant::now());
                self.take(look)
            }
            Err(error) => (self.lost(error.to_string()), false),
        }
    }

    fn take(&mut self, look: Look) -> (Vec<DirectoryChange>, bool) {
        let plan = self.tracker.look(look);
        if plan.replaced {
            let empty = format!(
                "{} is another directory now, and empty",
                self.root.display()
            );
            return (self.lost(empty), false);
        }
        let mut told = Vec::new();
        if std::mem::take(&mut self.gone) {
            told.push(DirectoryChange::Back);
        }
        let mut changes: Vec<_> = plan
            .removed
            .into_iter()
            .map(|path| (path, FileChange::Removed))
            .collect();
        let failed = plan.failed.into_iter();
        changes.extend(failed.map(|(path, why)| (path, FileChange::Failed(why))));
        let mut unsettled = plan.unsettled;
        for (path, stamp) in plan.read {
            match files::read(&self.root, &path, &stamp) {
                Some(change) => {
                    self.tracker.was_read(path.clone(), stamp);
                    changes.push((path, change));
                }
                None => unsettled = true,
            }
        }
        // The first change waits for all files, so that a start is one change and not several.
        if !changes.is_empty() || (!self.began && !unsettled) {
            self.began = true;
            told.push(DirectoryChange::Files(changes));
        }
        (told, unsettled)
    }

    fn lost(&mut self, why: String) -> Vec<DirectoryChange> {
        self.watcher = None;
        if std::mem::replace(&mut self.gone, true) {
            return Vec::new();
        }
        vec![DirectoryChange::Gone(why)]
    }

    /// Watches the directory that is there now. This is needed again after a replacement, because a watch follows a
    /// directory that is moved away.
    fn watch(&mut self, identity: (u64, u64)) {
        if self.watch_failed || self.watcher.as_ref().is_some_and(|(_, at)| *at == identity) {
            return;
        }
        self.watcher = None;
        match watcher(&self.root, self.wake.0.clone(), Arc::clone(&self.writers)) {
            Ok(watcher) => self.watcher = Some((watcher, identity)),
            Err(error) => {
                self.watch_failed = true;
                tracing::warn!(%error, "the kernel does not notify of changes in the directory; it is read every second instead");
            }
        }
    }
}

/// Files that were written and not closed since, with the time of the last write.
#[derive(Debug, Default)]
struct Writers(Mutex<BTreeMap<FilePath, Instant>>);

impl Writers {
    /// Takes an event below `root`. Returns whether something may have changed.
    fn take(&self, root: &Path, event: &Event, now: Instant) -> bool {
        let open = match event.kind {
            EventKind::Modify(ModifyKind::Data(_)) => true,
            // The file was closed, or another file has the name now.
            EventKind::Access(AccessKind::Close(AccessMode::Write))
            | EventKind::Create(_)
            | EventKind::Remove(_)
            | EventKind::Modify(ModifyKind::Name(_)) => false,
            // This command opens and reads the files itself, so taking such events for changes would never end.
            EventKind::Access(_) => return false,
            _ => return true,
        };
        let paths = event
            .paths
            .iter()
            .filter_map(|path| path.strip_prefix(root).ok());
        let mut writers = self.0.lock();
        for path in paths
            .filter_map(Path::to_str)
            .filter(|path| is_manifest(path))
        {
            if open {
                writers.insert(path.into(), now);
            } else {
                writers.remove(path);
            }
        }
        true
    }

    fn at_work(&self, now: Instant) -> BTreeSet<FilePath> {
        let mut writers = self.0.lock();
        writers.retain(|_, written| now.saturating_duration_since(*written) < OPEN);
        writers.keys().cloned().collect()
    }
}

fn watcher(
    root: &Path,
    wake: SyncSender<()>,
    writers: Arc<Writers>,
) -> notify::Result<RecommendedWatcher> {
    let config = notify::Config::default().with_follow_symlinks(false);
    // Events have absolute paths.
    let at = absolute(root).map_err(notify::Error::io)?;
    let tell = move |event: notify::Result<Event>| {
        // An error may mean that events were lost, so something may have changed. Lost ends of writers do no harm,
        // because the wait for them is bounded.
        if event.map_or(true, |event| writers.take(&at, &event, Instant::now())) {
            // If the channel is full, a look is already due.
            let _ = wake.try_send(());
        }
    };
    let mut watcher = RecommendedWatcher::new(tell, config)?;
    watcher.watch(root, RecursiveMode::Recursive)?;
    Ok(watcher)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_is_being_written_from_the_first_write_until_it_is_closed() {
        let name = format!("vestibule-follow-{}", std::process::id());
        let root = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&root);
        fs::create_dir(&root).unwrap();
        let (wake, told) = sync_channel(1);
        let writers = Arc::new(Writers::default());
        let _watcher = watcher(&root, wake, Arc::clone(&writers)).unwrap();
        let until = |written: bool| {
            let expected: BTreeSet<FilePath> =
                written.then(|| "a.yaml".into()).into_iter().collect();
            while writers.at_work(Instant::now()) != expected {
                // Every step is reported.
                told.recv_timeout(Duration::from_mins(1)).unwrap();
            }
        };
        let mut file = File::create(root.join("a.yaml")).unwrap();
        file.write_all(b"a: ").unwrap();
        until(true);
        assert!(writers.at_work(Instant::now() + OPEN).is_empty());
        file.write_all(b"b").unwrap();
        until(true);
        drop(file);
        until(false);
        // A file that is moved into place is complete.
        let mut file = File::create(root.join("b.new")).unwrap();
        file.write_all(b"a: b").unwrap();
        fs::rename(root.join("b.new"), root.join("b.yaml")).unwrap();
        drop(file);
        until(false);
        fs::remove_dir_all(&root).unwrap();
    }
}
