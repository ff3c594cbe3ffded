//! Free space of the file system. Intake stops at the reserve, and all writes except those that free space stop at a
//! quarter of it. The store library therefore never meets a full disk, which it would not survive.

use std::io;
use std::path::{Path, PathBuf};

/// Level of free space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum DiskSpaceLevel {
    /// Only writes that free space are allowed.
    Exhausted,
    /// No new events or messages are accepted.
    Reserve,
    /// Enough space for all writes.
    Plenty,
}

/// Watches the file system of a folder.
#[derive(Debug)]
pub struct DiskSpaceMonitor {
    dir: PathBuf,
    reserve_bytes: u64,
}

impl DiskSpaceMonitor {
    /// Creates a monitor for a folder with a reserve in bytes.
    pub fn of(dir: &Path, reserve_bytes: u64) -> Self {
        Self { dir: dir.to_owned(), reserve_bytes }
    }

    /// Current level. A file system that does not answer counts as full.
    pub fn level(&self) -> DiskSpaceLevel {
        match self.free_bytes() {
            Ok(free) if free >= self.reserve_bytes => DiskSpaceLevel::Plenty,
            Ok(free) if free >= self.reserve_bytes / 4 => DiskSpaceLevel::Reserve,
            Ok(_) => DiskSpaceLevel::Exhausted,
            Err(error) => {
                let path = self.dir.display();
                tracing::error!(%error, %path, "cannot read the free space of the file system; writes are refused");
                DiskSpaceLevel::Exhausted
            }
        }
    }

    /// Whether this many reserves are free. A file system that does not answer counts as full.
    pub fn has_free(&self, reserves: u64) -> bool {
        self.free_bytes().is_ok_and(|free| free >= self.reserve_bytes.saturating_mul(reserves))
    }

    /// Logs a change of the level: the folder, the free bytes, and the required bytes.
    pub fn report(&self, room: DiskSpaceLevel) {
        let (path, reserve_bytes) = (self.dir.display(), self.reserve_bytes);
        let free_bytes = self.free_bytes().unwrap_or(0);
        match room {
            DiskSpaceLevel::Plenty => {
                tracing::info!(%path, free_bytes, "enough free space is available again; writes resume");
            }
            DiskSpaceLevel::Reserve => tracing::warn!(
                %path, free_bytes, reserve_bytes,
                "free space is below storage.reserve_bytes: adds and new messages are refused until more space is free"
            ),
            DiskSpaceLevel::Exhausted => tracing::error!(
                %path, free_bytes, reserve_bytes,
                "free space is below a quarter of storage.reserve_bytes: all writes are refused; free \
                 storage.reserve_bytes, so that adds and new messages are accepted again"
            ),
        }
    }

    /// The folder, and the free bytes that intake requires.
    pub fn reserve(&self) -> (&Path, u64) {
        (&self.dir, self.reserve_bytes)
    }

    /// Bytes of the whole file system, whether or not the folder is there yet.
    pub fn total_bytes(&self) -> io::Result<u64> {
        let there = self.dir.ancestors().find(|folder| folder.exists()).unwrap_or_else(|| Path::new("."));
        let answer = rustix::fs::statvfs(there)?;
        Ok(answer.f_blocks.saturating_mul(answer.f_frsize))
    }

    /// Bytes that this process may still write.
    pub fn free_bytes(&self) -> io::Result<u64> {
        let answer = rustix::fs::statvfs(&self.dir)?;
        Ok(answer.f_bavail.saturating_mul(answer.f_frsize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_judged_by_what_is_free() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let free = DiskSpaceMonitor::of(dir.path(), 0).free_bytes().expect("a file system that answers");
        assert!(free > 0);
        let room = |reserve| DiskSpaceMonitor::of(dir.path(), reserve).level();
        assert_eq!(room(free / 2), DiskSpaceLevel::Plenty);
        assert_eq!(room(free * 2), DiskSpaceLevel::Reserve);
        assert_eq!(room(free.saturating_mul(8)), DiskSpaceLevel::Exhausted);
    }
}
