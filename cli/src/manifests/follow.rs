//! Follows a directory on a thread of its own: by inotify where that tells, by looking every second
//! where it does not (network file systems, moved directories).

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;

use super::files;
use super::source::FileChange;
use super::tracker::{FilePath, Look, Tracker};

/// A look is taken this often even if nothing is told.
const POLL: Duration = Duration::from_secs(1);
/// Time between two looks while something moves.
const SETTLE: Duration = Duration::from_millis(100);

/// News of the directory.
#[derive(Debug)]
pub(crate) enum News {
    /// What came of its files; nothing while they are all the same.
    Files(Vec<(FilePath, FileChange)>),
    /// The directory cannot be looked at; everything stays as it is.
    Gone(String),
    /// It is back.
    Back,
}

/// Time for more to be told before a look.
const GATHER: Duration = Duration::from_millis(20);

/// Follows `root` until the receiver is dropped. The first news is what is there, once it is settled.
pub(crate) fn follow(root: PathBuf) -> std::io::Result<mpsc::Receiver<News>> {
    // One: while the receiver is busy, changes gather on the disk.
    let (news, receiver) = mpsc::channel(1);
    std::thread::Builder::new()
        .name("manifests".into())
        .spawn(move || Follower::new(root).run(&news))?;
    Ok(receiver)
}

struct Follower {
    root: PathBuf,
    tracker: Tracker,
    wake: (SyncSender<()>, Receiver<()>),
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
            watcher: None,
            watch_failed: false,
            gone: false,
            began: false,
        }
    }

    fn run(mut self, news: &mpsc::Sender<News>) {
        loop {
            let (told, unsettled) = self.step();
            for item in told {
                if news.blocking_send(item).is_err() {
                    return;
                }
            }
            if news.is_closed() {
                return;
            }
            if unsettled {
                std::thread::sleep(SETTLE);
                continue;
            }
            // The sender is held here, so the channel does not close.
            match self.wake.1.recv_timeout(POLL) {
                // Writers tell several things about one file, and some never stop.
                Ok(()) => std::thread::sleep(GATHER),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn step(&mut self) -> (Vec<News>, bool) {
        match files::look(&self.root) {
            Ok(look) => self.take(look),
            Err(error) => (self.lost(error.to_string()), false),
        }
    }

    fn take(&mut self, look: Look) -> (Vec<News>, bool) {
        self.watch(look.root);
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
            told.push(News::Back);
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
        // The first news waits for everything, so that a start is one change and not several.
        if !changes.is_empty() || (!self.began && !unsettled) {
            self.began = true;
            told.push(News::Files(changes));
        }
        (told, unsettled)
    }

    fn lost(&mut self, why: String) -> Vec<News> {
        self.watcher = None;
        if std::mem::replace(&mut self.gone, true) {
            return Vec::new();
        }
        vec![News::Gone(why)]
    }

    /// Watches the directory that is there now: a watch stays with a directory that is moved away.
    fn watch(&mut self, identity: (u64, u64)) {
        if self.watch_failed || self.watcher.as_ref().is_some_and(|(_, at)| *at == identity) {
            return;
        }
        self.watcher = None;
        match watcher(&self.root, self.wake.0.clone()) {
            Ok(watcher) => self.watcher = Some((watcher, identity)),
            Err(error) => {
                self.watch_failed = true;
                tracing::warn!(%error, "no notification of changes, looking every second instead");
            }
        }
    }
}

fn watcher(root: &Path, wake: SyncSender<()>) -> notify::Result<RecommendedWatcher> {
    let config = notify::Config::default().with_follow_symlinks(false);
    let tell = move |event: notify::Result<notify::Event>| {
        // Our own looks open and read; taking them for news would never end.
        if !event.is_ok_and(|event| event.kind.is_access()) {
            // Full means that a look is due already.
            let _ = wake.try_send(());
        }
    };
    let mut watcher = RecommendedWatcher::new(tell, config)?;
    watcher.watch(root, RecursiveMode::Recursive)?;
    Ok(watcher)
}
