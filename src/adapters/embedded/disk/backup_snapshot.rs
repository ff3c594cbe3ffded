//! The snapshot that a backup reads.

use fjall::{Keyspace, Snapshot};

use super::library::Library;

/// The state after one commit.
pub struct BackupSnapshot {
    /// The rows.
    pub snapshot: Snapshot,
    /// The keyspaces, by name.
    pub keyspaces: Vec<(String, Keyspace)>,
    /// The number of the commit.
    pub commit: u64,
    /// The bytes of the files of the store.
    pub disk_bytes: u64,
}

impl BackupSnapshot {
    /// Takes a snapshot of the current state. Only the committer may call this, between two commits.
    pub fn take(library: &Library, commit: u64) -> Result<Self, fjall::Error> {
        let (keyspaces, disk_bytes) = (library.all()?, library.db.disk_space()?);
        Ok(Self { snapshot: library.db.snapshot(), keyspaces, commit, disk_bytes })
    }
}
