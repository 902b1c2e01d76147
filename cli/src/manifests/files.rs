//! Lists a directory of manifests and reads its files, within bounds and without leaving the directory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use vestibule_crds::yaml;
use vestibule_model::finding::Finding;

use super::source::{FileChange, unreadable};
use super::tracker::{FilePath, Look, Stamp};

/// Deepest nesting of directories.
const MAX_DEPTH: usize = 16;
/// Most files and directories that are visited.
const MAX_ENTRIES: usize = 100_000;
/// Most bytes of all files together.
const MAX_TOTAL: u64 = 512 << 20;

/// Why the directory as a whole cannot be listed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LookError {
    /// It cannot be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// Which directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not a directory.
    #[error("{0} is not a directory")]
    NotADirectory(PathBuf),
    /// It is over a bound.
    #[error("{path} holds more than {bound}: name a directory of manifests only")]
    TooMuch {
        /// Which directory.
        path: PathBuf,
        /// Which bound.
        bound: String,
    },
}

/// Lists the manifests of a directory: `*.yaml`, `*.yml` and `*.json`, in it and below it.
///
/// Files that editors leave behind (hidden ones, `~`, `.swp`) have other names, so they are left out, and so are hidden
/// directories. Links to directories are not followed, so there are no cycles. [`read`] decides about links to files.
pub(crate) fn look(root: &Path) -> Result<Look, LookError> {
    let failed = |source| LookError::Io {
        path: root.to_owned(),
        source,
    };
    let metadata = fs::metadata(root).map_err(failed)?;
    if !metadata.is_dir() {
        return Err(LookError::NotADirectory(root.to_owned()));
    }
    let mut walk = Walk {
        root,
        files: BTreeMap::new(),
        unreadable: BTreeMap::new(),
        entries: 0,
        total: 0,
    };
    walk.directory(root, "", 0)?;
    Ok(Look {
        root: (metadata.dev(), metadata.ino()),
        files: walk.files,
        unreadable: walk.unreadable,
        // Only the watcher of the directory knows these.
        writing: BTreeSet::new(),
    })
}

/// Reads a file that [`look`] found. It is `None` if the file has changed since, which the next look shows.
///
/// A link is read if it leads to a file within the directory, as those of a mounted volume do. A link that leaves the
/// directory is a finding. Somebody who may write here must not be able to make this process read files that only this
/// process may read.
pub(crate) fn read(root: &Path, path: &FilePath, stamp: &Stamp) -> Option<FileChange> {
    let full = root.join(&**path);
    let failed = |error: io::Error| {
        let message = format!("cannot be read: {error}");
        FileChange::Failed(unreadable(message, "make it readable, or remove it"))
    };
    // The file may have been replaced by a link since the look.
    match contained(root, &full) {
        Ok(true) => {}
        Ok(false) => return Some(FileChange::Failed(leads_outside())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => return Some(failed(error)),
    }
    // Opening must not block, because the file may have been replaced by a pipe.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&full);
    let file = match file {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => return Some(failed(error)),
    };
    match read_text(&file, stamp) {
        Ok(Some(change)) => Some(change),
        Ok(None) => None,
        Err(error) => Some(failed(error)),
    }
}

fn read_text(mut file: &File, stamp: &Stamp) -> io::Result<Option<FileChange>> {
    let before = file.metadata()?;
    if !before.is_file() || stamp_of(&before) != *stamp {
        return Ok(None);
    }
    let bound = yaml::MAX_BYTES as u64;
    if before.len() > bound {
        return Ok(Some(FileChange::Failed(unreadable(
            format!("is longer than {bound} bytes"),
            "split it",
        ))));
    }
    let mut bytes = Vec::new();
    file.by_ref().take(bound).read_to_end(&mut bytes)?;
    if stamp_of(&file.metadata()?) != *stamp {
        return Ok(None);
    }
    Ok(Some(match String::from_utf8(bytes) {
        Ok(text) => FileChange::Text(text),
        Err(_) => FileChange::Failed(unreadable("is not UTF-8 text", "save it as UTF-8")),
    }))
}

fn leads_outside() -> Finding {
    unreadable(
        "is a link that leads out of the directory",
        "put the file itself into the directory",
    )
}

struct Walk<'a> {
    root: &'a Path,
    files: BTreeMap<FilePath, Stamp>,
    unreadable: BTreeMap<FilePath, Finding>,
    entries: usize,
    total: u64,
}

impl Walk<'_> {
    fn directory(&mut self, directory: &Path, prefix: &str, depth: usize) -> Result<(), LookError> {
        let failed = |source| LookError::Io {
            path: directory.to_owned(),
            source,
        };
        for entry in fs::read_dir(directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            self.entries += 1;
            if self.entries > MAX_ENTRIES {
                return Err(self.too_much(format!("{MAX_ENTRIES} entries")));
            }
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else {
                continue;
            };
            let path = format!("{prefix}{name}");
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            if kind.is_dir() {
                self.below(&entry.path(), &format!("{path}/"), depth + 1)?;
                continue;
            }
            if !is_manifest(name) {
                continue;
            }
            // This follows links. A file that is gone since, or a link that leads nowhere, counts as absent.
            let Ok(metadata) = fs::metadata(entry.path()) else {
                continue;
            };
            if !metadata.is_file() {
                continue;
            }
            self.total = self.total.saturating_add(metadata.len());
            if self.total > MAX_TOTAL {
                return Err(self.too_much(format!("{MAX_TOTAL} bytes of manifests")));
            }
            self.files.insert(path.into(), stamp_of(&metadata));
        }
        Ok(())
    }

    /// Lists a subdirectory. If that fails, the others are still listed.
    fn below(&mut self, directory: &Path, prefix: &str, depth: usize) -> Result<(), LookError> {
        if depth > MAX_DEPTH {
            let message = format!("lies below {MAX_DEPTH} directories, and is not read");
            self.unreadable
                .insert(prefix.into(), unreadable(message, "move it up"));
            return Ok(());
        }
        match self.directory(directory, prefix, depth) {
            // It was removed since it was listed, and its files with it.
            Err(LookError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(LookError::Io { source, .. }) => {
                let message = format!("cannot be read: {source}");
                let finding = unreadable(message, "make it readable, or remove it");
                self.files.retain(|path, _| !path.starts_with(prefix));
                self.unreadable.insert(prefix.into(), finding);
                Ok(())
            }
            other => other,
        }
    }

    fn too_much(&self, bound: String) -> LookError {
        LookError::TooMuch {
            path: self.root.to_owned(),
            bound,
        }
    }
}

fn contained(root: &Path, path: &Path) -> io::Result<bool> {
    Ok(fs::canonicalize(path)?.starts_with(fs::canonicalize(root)?))
}

pub(super) fn is_manifest(name: &str) -> bool {
    ["yaml", "yml", "json"]
        .iter()
        .any(|end| name.rsplit_once('.').is_some_and(|(_, e)| e == *end))
}

fn stamp_of(metadata: &Metadata) -> Stamp {
    let nanoseconds =
        |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
    Stamp {
        inode: (metadata.dev(), metadata.ino()),
        size: metadata.len(),
        modified: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
        changed: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    /// A directory that goes away with the test.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let name = format!("vestibule-files-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.0.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn read(&self, name: &str) -> Option<FileChange> {
            let look = look(&self.0).unwrap();
            let (path, stamp) = look.files.get_key_value(name)?;
            read(&self.0, path, stamp)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn failure(change: Option<FileChange>) -> String {
        match change {
            Some(FileChange::Failed(finding)) => finding.message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn finds_manifests_and_nothing_else() {
        let directory = Directory::new("finds");
        for name in [
            "a.yaml",
            "b.yml",
            "c/d.json",
            "e.txt",
            ".f.yaml",
            ".g/h.yaml",
            "i.yaml~",
            ".j.yaml.swp",
            "yaml",
        ] {
            directory.write(name, "a: b");
        }
        let look = look(&directory.0).unwrap();
        let found: Vec<&str> = look.files.keys().map(|path| &**path).collect();
        assert_eq!(found, ["a.yaml", "b.yml", "c/d.json"]);
    }

    #[test]
    fn reads_a_mounted_volume_and_follows_its_swap() {
        let directory = Directory::new("volume");
        directory.write("..1/a.yaml", "one");
        directory.write("..2/a.yaml", "two");
        symlink("..1", directory.0.join("..data")).unwrap();
        symlink("..data/a.yaml", directory.0.join("a.yaml")).unwrap();
        let before = look(&directory.0).unwrap();
        assert!(matches!(directory.read("a.yaml"), Some(FileChange::Text(text)) if text == "one"));
        symlink("..2", directory.0.join("..new")).unwrap();
        fs::rename(directory.0.join("..new"), directory.0.join("..data")).unwrap();
        assert_ne!(look(&directory.0).unwrap(), before);
        assert!(matches!(directory.read("a.yaml"), Some(FileChange::Text(text)) if text == "two"));
    }

    #[test]
    fn does_not_leave_the_directory() {
        let outside = Directory::new("outside");
        outside.write("secret.yaml", "a: b");
        let directory = Directory::new("inside");
        symlink(outside.0.join("secret.yaml"), directory.0.join("a.yaml")).unwrap();
        symlink(&outside.0, directory.0.join("dir")).unwrap();
        symlink(&directory.0, directory.0.join("cycle")).unwrap();
        symlink("nowhere", directory.0.join("b.yaml")).unwrap();
        let look = look(&directory.0).unwrap();
        assert_eq!(look.files.len(), 1, "{look:?}");
        assert!(failure(directory.read("a.yaml")).contains("leads out of the directory"));
    }

    #[test]
    fn pipes_large_files_and_binaries_do_no_harm() {
        let directory = Directory::new("odd");
        let pipe = directory.0.join("pipe.yaml");
        if Command::new("mkfifo").arg(&pipe).status().is_ok() {
            assert!(look(&directory.0).unwrap().files.is_empty());
        }
        fs::write(directory.0.join("binary.yaml"), [0xff, 0xfe]).unwrap();
        assert!(failure(directory.read("binary.yaml")).contains("is not UTF-8"));
        let large = File::create(directory.0.join("large.yaml")).unwrap();
        large.set_len(yaml::MAX_BYTES as u64 + 1).unwrap();
        assert!(failure(directory.read("large.yaml")).contains("is longer than"));
    }

    #[test]
    fn a_directory_that_is_too_deep_hides_nothing_else() {
        let directory = Directory::new("deep");
        directory.write(&format!("{}a.yaml", "d/".repeat(MAX_DEPTH)), "a: b");
        directory.write(&format!("{}b.yaml", "d/".repeat(MAX_DEPTH + 1)), "a: b");
        let look = look(&directory.0).unwrap();
        assert_eq!(look.files.len(), 1);
        let (path, finding) = look.unreadable.first_key_value().unwrap();
        assert_eq!(**path, *"d/".repeat(MAX_DEPTH + 1));
        assert!(finding.message.contains("is not read"));
    }

    #[test]
    fn a_file_that_changed_since_the_look_waits_for_the_next() {
        let directory = Directory::new("changed");
        directory.write("a.yaml", "one");
        let look = look(&directory.0).unwrap();
        let (path, stamp) = look.files.first_key_value().unwrap();
        directory.write("a.yaml", "longer");
        assert!(read(&directory.0, path, stamp).is_none());
        fs::remove_file(directory.0.join("a.yaml")).unwrap();
        assert!(read(&directory.0, path, stamp).is_none());
        assert!(super::look(&directory.0.join("nowhere")).is_err());
    }
}
