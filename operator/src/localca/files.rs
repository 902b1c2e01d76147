//! Files of the state directory: private, whole or absent, and read by one process at a time.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use zeroize::Zeroizing;

use super::LocalCaError;

/// Largest file that is read.
const MAX_FILE: u64 = 1 << 20;

/// Creates the directory if need be, checks that nobody else can change it, and waits for the turn of
/// this process, which ends with the returned file.
pub(crate) fn prepare(directory: &Path) -> Result<File, LocalCaError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(failed("create", directory))?;
    let mode = mode(&fs::metadata(directory).map_err(failed("read", directory))?);
    if mode & 0o022 != 0 {
        return Err(LocalCaError::Exposed {
            path: directory.to_owned(),
            mode,
            wanted: "700",
        });
    }
    let path = directory.join(".lock");
    let lock = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(failed("open", &path))?;
    lock.lock().map_err(failed("lock", &path))?;
    Ok(lock)
}

/// A file's bytes; `None` if it is not there.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>, LocalCaError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("open", path)(error)),
    };
    let mut bytes = Vec::new();
    file.take(MAX_FILE)
        .read_to_end(&mut bytes)
        .map_err(failed("read", path))?;
    Ok(Some(bytes))
}

/// A private key's PEM; `None` if it is not there. Refused if anybody else can read it.
pub(crate) fn read_key(path: &Path) -> Result<Option<Zeroizing<String>>, LocalCaError> {
    read_private(path, 16 << 10)
}

/// The text of a file with a private key in it; `None` if it is not there. Refused if anybody else can
/// read it.
pub(crate) fn read_private(
    path: &Path,
    limit: u16,
) -> Result<Option<Zeroizing<String>>, LocalCaError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("open", path)(error)),
    };
    let mode = mode(&file.metadata().map_err(failed("read", path))?);
    if mode & 0o077 != 0 {
        return Err(LocalCaError::Exposed {
            path: path.to_owned(),
            mode,
            wanted: "600",
        });
    }
    // Room beforehand: growing would leave copies of the key behind.
    let mut text = Zeroizing::new(String::with_capacity(usize::from(limit)));
    file.take(u64::from(limit))
        .read_to_string(&mut text)
        .map_err(failed("read", path))?;
    Ok(Some(text))
}

/// Writes a file so that it is there whole or not at all, also after a crash.
pub(crate) fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), LocalCaError> {
    let temporary = path.with_extension("tmp");
    // Left behind by a process that ended in between; the lock says that none is at it now.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed("remove", &temporary)(error));
        }
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&temporary)
        .map_err(failed("create", &temporary))?;
    file.write_all(bytes)
        .and_then(|()| file.sync_all())
        .map_err(failed("write", &temporary))?;
    fs::rename(&temporary, path).map_err(failed("write", path))?;
    let directory = path.parent().unwrap_or(Path::new("."));
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(failed("write", directory))
}

fn mode(metadata: &fs::Metadata) -> u32 {
    metadata.permissions().mode() & 0o7777
}

fn failed<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> LocalCaError + use<'a> {
    move |source| LocalCaError::Io {
        action,
        path: path.to_owned(),
        source,
    }
}
