//! How much room the file system has. Intake stops at the reserve, everything but freeing at a quarter of it, so that
//! the store library never meets a full disk, which it would not survive.

use std::io;
use std::path::{Path, PathBuf};

/// How much room there is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Room {
    /// Nothing but what frees space is allowed.
    Exhausted,
    /// No new events.
    Reserve,
    /// Enough.
    Plenty,
}

/// Watches the file system of a folder.
#[derive(Debug)]
pub struct Space {
    dir: PathBuf,
    reserve_bytes: u64,
}

impl Space {
    /// Watches the file system of a folder.
    pub fn of(dir: &Path, reserve_bytes: u64) -> Self {
        Self { dir: dir.to_owned(), reserve_bytes }
    }

    /// The room there is. A file system that does not answer counts as full.
    pub fn room(&self) -> Room {
        match self.free_bytes() {
            Ok(free) if free >= self.reserve_bytes => Room::Plenty,
            Ok(free) if free >= self.reserve_bytes / 4 => Room::Reserve,
            Ok(_) => Room::Exhausted,
            Err(error) => {
                let path = self.dir.display();
                tracing::error!(%error, %path, "the file system does not say how much room it has; writes are refused");
                Room::Exhausted
            }
        }
    }

    /// Logs a change of the room there is: where, how many bytes are free, and how many must be.
    pub fn report(&self, room: Room) {
        let (path, reserve_bytes) = (self.dir.display(), self.reserve_bytes);
        let free_bytes = self.free_bytes().unwrap_or(0);
        match room {
            Room::Plenty => tracing::info!(%path, free_bytes, "the file system has room again; writes go on"),
            Room::Reserve => tracing::warn!(
                %path, free_bytes, reserve_bytes,
                "less space is free than storage.reserve_bytes: adds and new messages are refused until that much is free"
            ),
            Room::Exhausted => tracing::error!(
                %path, free_bytes, reserve_bytes,
                "less space is free than a quarter of storage.reserve_bytes: all writes are refused; free that much, so \
                 that adds and new messages are taken again"
            ),
        }
    }

    /// The folder, and the bytes that must be free for intake.
    pub fn wanted(&self) -> (&Path, u64) {
        (&self.dir, self.reserve_bytes)
    }

    /// The bytes this process may still write.
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
        let free = Space::of(dir.path(), 0).free_bytes().expect("a file system that answers");
        assert!(free > 0);
        let room = |reserve| Space::of(dir.path(), reserve).room();
        assert_eq!(room(free / 2), Room::Plenty);
        assert_eq!(room(free * 2), Room::Reserve);
        assert_eq!(room(free.saturating_mul(8)), Room::Exhausted);
    }
}
