//! A backup of a store that is in use.

use async_trait::async_trait;

use crate::ports::StoreError;

/// Backs a store up while it is written.
///
/// Laws:
/// 1. A backup holds the state after one commit: all of what that commit and those before it wrote, nothing later.
/// 2. Whatever was acknowledged before `begin` was called is in it.
/// 3. What is written, trimmed or dropped while the pieces are read changes none of them.
#[async_trait]
pub trait Backups: Send + Sync + 'static {
    /// Fixes the state that is backed up.
    async fn begin(&self) -> Result<Box<dyn BackupPieces>, StoreError>;
}

/// The bytes of a backup, one piece after the other. Dropping it ends the backup.
#[async_trait]
pub trait BackupPieces: Send {
    /// The next piece; nothing after the last one. What ends with an error is no backup.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, StoreError>;
}
