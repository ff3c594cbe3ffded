//! The history of an open store.
//!
//! The committer is the only writer, also of the history: it numbers the commits. A second writer would make the
//! journal's order, which the checks of a start rely on, a matter of chance. A batch of the history is large and no
//! caller waits for it, while callers of queues wait for each commit. So a batch is encoded and its keyspaces are
//! created here, off the committer. It goes to the committer in small pieces, one after the other, in the lane of bulk
//! work. Between two pieces the committer serves whatever else waits. Only the last piece asks for a sync: it makes all
//! before it durable.

use std::sync::Arc;

use async_trait::async_trait;
use fjall::Keyspace;

use crate::disk::writer::SyncMode;
use crate::error::ReadError;
use crate::history::entries::{HistoryPiece, encode};
use crate::history::periods::{DroppedPeriod, PlaceError};
use crate::history::read;
use crate::inbox::command::{HistoryCommand, StoreCommand};
use crate::store_core::StoreCore;
use tallystone_domain::history::{HistoryCursor, HistoryGap, HistoryHit, HistoryTerm};
use tallystone_domain::queue::messages::message::MessageKey;
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::queue::transition::{HistoryRow, RowPosition};
use tallystone_domain::queue::{QueueId, ShardId};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{HistoryBatch, HistoryStore, HistoryUsage, QueueShards, StoreError, StoreErrorKind};

/// The history of one open store.
pub struct EmbeddedHistory {
    core: Arc<StoreCore>,
}

const WRITE: &str = "write history";
const TRIM: &str = "trim history";
const READ: &str = "read history";

impl EmbeddedHistory {
    /// The history of an open store.
    pub fn new(core: Arc<StoreCore>) -> Self {
        Self { core }
    }

    /// Encodes batches. Returns their pieces, and whether the history exceeds its size.
    async fn encode(&self, batches: Vec<HistoryBatch>) -> Result<(Vec<HistoryPiece>, bool), StoreError> {
        let encoded = self.core.read_long(WRITE, move |core, library| {
            let history = &core.history;
            let is_over = history.measure();
            let pieces = history
                .make_state(library)
                .map_err(PlaceError::from)
                .and_then(|_| encode(history, library, batches, || core.yield_to_commits()));
            Ok(pieces.map(|pieces| (pieces, is_over)))
        });
        encoded.await?.map_err(|error| match error {
            PlaceError::Read(error) => error.into_store_error(WRITE),
            PlaceError::Keyspace(_) => StoreError::not_applied(StoreErrorKind::Unavailable, WRITE).with_source(error),
            PlaceError::Leaving => StoreError::not_applied(StoreErrorKind::Busy, WRITE).with_source(error),
        })
    }

    /// Drops the periods that end at or before a time, and the oldest while the history exceeds its size.
    async fn drop_periods(&self, before: Timestamp) -> Result<(), StoreError> {
        self.core
            .read_long(TRIM, |core, _| {
                core.history.measure();
                Ok(())
            })
            .await?;
        let dropped: Vec<DroppedPeriod> =
            self.core.inbox.request(TRIM, |answer| StoreCommand::TrimHistory(before, answer)).await?;
        if dropped.is_empty() {
            return Ok(());
        }
        let deleted = self.core.read_long(TRIM, move |core, library| {
            Ok(core.history.delete(library, dropped, || core.yield_to_commits()))
        });
        deleted.await?.map_err(|error| StoreError::unknown(StoreErrorKind::Unavailable, TRIM).with_source(error))
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&StoreCore) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.core.read_long(READ, move |core, _| read(core)).await
    }
}

#[async_trait]
impl HistoryStore for EmbeddedHistory {
    async fn append(&self, batches: Vec<HistoryBatch>) -> Result<(), StoreError> {
        if batches.is_empty() {
            return Ok(());
        }
        if self.core.is_full() {
            return Err(StoreError::not_applied(StoreErrorKind::Full, WRITE));
        }
        let (pieces, is_over) = self.encode(batches).await?;
        let last = pieces.len() - 1;
        for (number, piece) in pieces.into_iter().enumerate() {
            let sync = if number == last { SyncMode::Yes } else { SyncMode::No };
            let command = |answer| StoreCommand::History(HistoryCommand { piece, sync, answer });
            self.core.inbox.request(WRITE, command).await?;
        }
        // Age is for the caller to judge; the size is kept at any rate of rows.
        if is_over { self.drop_periods(Timestamp::MIN).await } else { Ok(()) }
    }

    async fn cursor(&self, shard: ShardId) -> Result<Option<HistoryCursor>, StoreError> {
        let read = move |state: Keyspace| read::cursor(&state, shard);
        self.read(move |core| core.history.state_keyspace().map(read).transpose().map(Option::flatten)).await
    }

    async fn trace(
        &self,
        queue: QueueId,
        message: MessageKey,
        after: Option<RowPosition>,
        limit: usize,
    ) -> Result<Vec<HistoryRow>, StoreError> {
        self.read(move |core| read::trace(&core.history, queue, message, after, limit)).await
    }

    async fn last(&self, queue: QueueId, messages: Vec<MessageKey>) -> Result<Vec<Option<HistoryRow>>, StoreError> {
        let read = move |core: &StoreCore| {
            messages.into_iter().map(|message| read::last(&core.history, queue, message)).collect()
        };
        self.read(read).await
    }

    async fn lives(&self, queue: QueueId, id: &MessageId, limit: usize) -> Result<Vec<MessageKey>, StoreError> {
        let id = id.clone();
        self.read(move |core| read::lives(&core.history, queue, &id, limit)).await
    }

    async fn find(
        &self,
        queue: QueueShards,
        term: &HistoryTerm,
        before: Option<HistoryHit>,
        limit: usize,
    ) -> Result<Vec<HistoryHit>, StoreError> {
        let term = term.clone();
        self.read(move |core| read::find(&core.history, queue.queue, &term, before, limit)).await
    }

    async fn gaps(&self, queue: QueueShards, limit: usize) -> Result<Vec<HistoryGap>, StoreError> {
        self.read(move |core| read::gaps(&core.history, queue.queue, limit)).await
    }

    async fn starts_at(&self) -> Result<Option<Timestamp>, StoreError> {
        Ok(self.core.history.starts_at())
    }

    async fn trim(&self, before: Timestamp) -> Result<(), StoreError> {
        self.drop_periods(before).await
    }

    fn usage(&self) -> HistoryUsage {
        let (bytes, rows_written, row_bytes_written) = self.core.history.usage();
        HistoryUsage { bytes: Some(bytes), rows_written, row_bytes_written }
    }
}
