//! Backups of a store that is in use.

use async_trait::async_trait;

use crate::StoreError;

/// Backs up a store while other tasks write to it.
///
/// Laws:
/// 1. A backup holds the state after one commit: everything that this commit and earlier commits wrote, nothing later.
/// 2. A backup contains every write that was acknowledged before the call of `begin`.
/// 3. Writes, trims and drops that happen while the pieces are read do not change the pieces.
#[async_trait]
pub trait Backups: Send + Sync + 'static {
    /// Fixes the state to back up.
    async fn begin(&self) -> Result<Box<dyn BackupPieces>, StoreError>;
}

/// The bytes of a backup, piece by piece. Dropping the value ends the backup.
#[async_trait]
pub trait BackupPieces: Send {
    /// Reads the next piece; `None` after the last one. After an error the pieces read so far are not a backup.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, StoreError>;
}
