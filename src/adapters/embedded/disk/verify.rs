//! Verifies every file before the store library opens them.
//!
//! The library itself would cut a journal at the first unreadable byte, delete a keyspace whose marker file is missing,
//! and create a new database if its version file is missing. This check therefore reads first, and refuses damaged
//! files by name. It changes nothing, except that it cuts a tail that was never acknowledged, as a crash leaves one.
//!
//! Journals are read completely (`journal`), keyspaces to the last byte of every file in use (`keyspace`). Unused files
//! are no damage, because a crash leaves them too.

mod byte_reader;
mod journal;
mod keyspace;

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::disk::library::{HISTORY_PREFIX, folder};
use crate::disk::manifest::{Manifest, sync_folder};
use crate::error::OpenError;
use crate::limits::HISTORY_VERIFY_BYTES_MAX;
use journal::{CommitChain, JournalEnd};

/// Result of the verification.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VerifyReport {
    /// Number of the last commit in the journals; `None` if they hold no commit.
    pub last_commit: Option<u64>,
    /// The newest row of each keyspace before the oldest journal; tables must contain these rows.
    pub newest_rows: Vec<(u64, u64)>,
    /// Bytes of files, except those of the history, that were not read because of the size limit.
    pub bytes_unread: u64,
}

/// Verifies every file of a completely created store.
pub fn verify(dir: &Path, manifest: &Manifest, acknowledged: u64, bytes_max: u64) -> Result<VerifyReport, OpenError> {
    let folder = folder(dir);
    check_version(&folder)?;
    let (mut files, mut history) = (Vec::new(), Vec::new());
    // Keyspace 0 belongs to the library.
    let listed = manifest.keyspaces.iter().map(|(id, name)| (*id, name.as_str()));
    for (id, name) in std::iter::once((0, "")).chain(listed) {
        let found = keyspace::files(&folder.join("keyspaces").join(id.to_string()))?;
        if name.starts_with(HISTORY_PREFIX) { &mut history } else { &mut files }.extend(found);
    }
    let bytes_unread = check_files(files, bytes_max)?;
    // The history is large, and nothing is decided by it: the start does not wait until all of it is read.
    check_files(history, bytes_max.min(HISTORY_VERIFY_BYTES_MAX))?;
    let chain = check_journals(dir, manifest, acknowledged)?;
    let newest_rows = chain.begin.and_then(|(_, listed)| listed).map_or(Vec::new(), |listed| listed.rows);
    Ok(VerifyReport { last_commit: chain.last, newest_rows, bytes_unread })
}

/// Format of the store library's files (fjall 3).
const LIBRARY_FORMAT: u8 = 3;

/// Without its version file the library would create a new database; without its lock file it would not open.
fn check_version(folder: &Path) -> Result<(), OpenError> {
    let path = folder.join("version");
    match fs::read(&path) {
        Ok(bytes) if bytes == [b'F', b'J', b'L', LIBRARY_FORMAT] => {}
        Ok(bytes) if matches!(*bytes, [b'F', b'J', b'L', found] if found > LIBRARY_FORMAT) => {
            return Err(OpenError::Newer { path, found: bytes[3].into(), known: LIBRARY_FORMAT.into() });
        }
        Ok(_) => return Err(OpenError::damaged(path, "not the version of the store library")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(OpenError::damaged(path, "missing")),
        Err(error) => return Err(OpenError::io(path)(error)),
    }
    let lock = folder.join("lock");
    OpenOptions::new().write(true).create(true).truncate(false).open(&lock).map_err(OpenError::io(&lock))?;
    Ok(())
}

/// Compares files with their checksums, two at a time, newest first. Returns the bytes beyond the size limit.
fn check_files(mut files: Vec<keyspace::ChecksummedFile>, bytes_max: u64) -> Result<u64, OpenError> {
    files.sort_by_key(|file| std::cmp::Reverse(file.written));
    let mut bytes = 0;
    let mut bytes_unread = 0;
    files.retain(|file| {
        bytes += file.bytes;
        let is_read = bytes <= bytes_max;
        bytes_unread += if is_read { 0 } else { file.bytes };
        is_read
    });
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| {
                while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = file.check() {
                        failed.lock().get_or_insert(error);
                    }
                }
            });
        }
    });
    match failed.into_inner() {
        Some(error) => Err(error),
        None => Ok(bytes_unread),
    }
}

/// Number of files that are read concurrently.
const READERS: usize = 2;

/// Walks all journals. Commits must be consecutive and reach the acknowledged number; a torn tail is cut.
fn check_journals(dir: &Path, manifest: &Manifest, acknowledged: u64) -> Result<CommitChain, OpenError> {
    let journals = list_journals(&folder(dir))?;
    let Some(((_, active), sealed)) = journals.split_last() else {
        return Err(OpenError::damaged(folder(dir), "no journal"));
    };
    let meta = manifest.keyspaces.iter().find(|(_, name)| *name == "meta").map(|(id, _)| *id);
    let meta = meta.ok_or_else(|| OpenError::damaged(Manifest::path(dir), "does not list meta"))?;
    let mut chain = CommitChain::new(meta);
    for (_, path) in sealed {
        let bytes = read(path)?;
        match chain.walk(&bytes) {
            JournalEnd::Clean => {}
            JournalEnd::Gap { at, expected, found } => return Err(gap(path, at, expected, found)),
            JournalEnd::Broken { at } => return Err(OpenError::damaged(path, format!("unreadable from byte {at} on"))),
        }
    }
    let bytes = read(active)?;
    match chain.walk(&bytes) {
        JournalEnd::Clean => {}
        JournalEnd::Gap { at, expected, found } => return Err(gap(active, at, expected, found)),
        JournalEnd::Broken { at } => {
            check_torn(active, &bytes, at, &chain, acknowledged)?;
            match chain.last {
                Some(_) => tracing::warn!(
                    journal = %active.display(), at, "removing an incomplete tail that was never acknowledged"
                ),
                None => {
                    keep_copy(dir, active)?;
                    tracing::warn!(
                        journal = %active.display(),
                        "the newest journal is unreadable from its first byte; it was renamed to torn-journal, and \
                         the rest of the store is checked for missing acknowledged work"
                    );
                }
            }
            cut(active, at)?;
        }
    }
    match chain.last {
        Some(last) if last < acknowledged => Err(OpenError::Behind { path: active.clone(), found: last, acknowledged }),
        Some(_) | None => Ok(chain),
    }
}

/// Verifies that unreadable bytes were never acknowledged: the acknowledged number lies before them, and no later batch
/// contradicts it.
fn check_torn(path: &Path, bytes: &[u8], at: usize, chain: &CommitChain, acknowledged: u64) -> Result<(), OpenError> {
    let last = chain.last.unwrap_or(0);
    let detail = || format!("unreadable from byte {at} on, after commit {last}");
    if chain.last.is_some() && last < acknowledged {
        let detail = format!("{}, but commit {acknowledged} was acknowledged", detail());
        return Err(OpenError::damaged(path, detail));
    }
    if let Some(later) = chain.last_batch_in(&bytes[at..]).filter(|later| later.synced > last) {
        let detail = format!("{}, and commit {} behind it knows of commit {}", detail(), later.number, later.synced);
        return Err(OpenError::damaged(path, detail));
    }
    Ok(())
}

/// Keeps a copy of a journal that will be cut to nothing: whether the cut was right shows only once the store is open.
fn keep_copy(dir: &Path, journal: &Path) -> Result<(), OpenError> {
    let copy = dir.join("torn-journal");
    // The copy is durable before the journal is cut: a power cut in between must leave one of them.
    let kept = fs::copy(journal, &copy).and_then(|_| File::open(&copy)?.sync_all()).and_then(|()| sync_folder(dir));
    kept.map_err(OpenError::io(copy))
}

/// Cuts a torn tail, because the library would refuse some tails and keep others.
fn cut(path: &Path, at: usize) -> Result<(), OpenError> {
    let file = OpenOptions::new().write(true).open(path).map_err(OpenError::io(path))?;
    file.set_len(at as u64).and_then(|()| file.sync_all()).map_err(OpenError::io(path))
}

fn gap(path: &Path, at: usize, expected: u64, found: u64) -> OpenError {
    OpenError::damaged(path, format!("commit {found} at byte {at}, where commit {expected} is due"))
}

fn list_journals(folder: &Path) -> Result<Vec<(u64, PathBuf)>, OpenError> {
    let mut journals = Vec::new();
    for entry in fs::read_dir(folder).map_err(OpenError::io(folder))? {
        let path = entry.map_err(OpenError::io(folder))?.path();
        if path.extension().is_some_and(|extension| extension == "jnl") {
            let id = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse().ok());
            journals.push((id.ok_or_else(|| OpenError::damaged(&path, "no name of a journal"))?, path));
        }
    }
    journals.sort();
    Ok(journals)
}

fn read(path: &Path) -> Result<Vec<u8>, OpenError> {
    fs::read(path).map_err(OpenError::io(path))
}

/// Reads a file to its end and passes its pieces to a function.
fn read_through(path: &Path, mut take: impl FnMut(&[u8])) -> std::io::Result<()> {
    use std::io::Read;
    let mut file = File::open(path)?;
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(length) => take(&piece[..length]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
