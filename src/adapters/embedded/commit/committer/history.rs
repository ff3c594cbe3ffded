//! Staging of the history: entries that are encoded already, and cursors, which never go back.

use super::Committer;
use super::group::{CommitGroup, StagedCommand};
use crate::disk::key::to_sortable;
use crate::disk::writer::SyncMode;
use crate::history::entries::{HistoryEntry, HistoryTable};
use crate::history::periods::DroppedPeriod;
use crate::history::{key, read};
use crate::inbox::command::HistoryCommand;
use tallystone_domain::Timestamp;
use tallystone_domain::history::HistoryCursor;
use tallystone_domain::queue::ShardId;
use tallystone_ports::{StoreError, StoreErrorKind};

const WRITE: &str = "write history";

/// The history yields while the disk has less free space than this many reserves: queues and counters need it more.
const RESERVES_NEEDED: u64 = 2;

impl Committer {
    /// Stages a piece of the history.
    pub(super) fn stage_history(&mut self, group: &mut CommitGroup, command: HistoryCommand) {
        let HistoryCommand { piece, sync, answer } = command;
        if !self.space.has_free(RESERVES_NEEDED) {
            let why = "the history takes no rows while free space is below twice storage.reserve_bytes";
            let error = StoreError::not_applied(StoreErrorKind::Full, WRITE).with_source(why);
            // The caller may have stopped waiting.
            return drop(answer.send(Err(error)));
        }
        // No step after this fails, so a refused piece leaves nothing behind.
        let cursors = piece.cursors.into_iter().map(|(shard, cursor)| self.newer_cursor(group, shard, cursor));
        let cursors = match cursors.collect::<Result<Vec<_>, _>>() {
            Ok(cursors) => cursors,
            Err(error) => return drop(answer.send(Err(error))),
        };
        for of_period in piece.entries.chunk_by(|one, next| one.period == next.period) {
            let start = of_period[0].period;
            // The rows of a period that has left meanwhile leave with it.
            let Some((period, newest)) = self.core.history.get(start) else { continue };
            for HistoryEntry { table, key, value, .. } in of_period {
                let keyspace = match table {
                    HistoryTable::Rows => &period.rows,
                    HistoryTable::Lives => &period.lives,
                    HistoryTable::Found => &period.found,
                };
                group.batch.put(keyspace, key.clone(), value.clone());
            }
            group.batch.put(&period.lives, key::NEWEST, to_sortable(newest));
        }
        if let Some(state) = self.core.history.state_keyspace() {
            for (shard, cursor) in cursors.into_iter().flatten() {
                group.batch.put(&state, key::of_cursor(shard), read::encode_cursor(&cursor));
            }
        }
        if sync == SyncMode::Yes {
            group.sync = SyncMode::Yes;
        }
        group.commands.push(StagedCommand::History { rows: piece.rows, row_bytes: piece.row_bytes, answer });
    }

    /// A cursor that lies beyond the one that is stored or staged.
    fn newer_cursor(
        &self,
        group: &mut CommitGroup,
        shard: ShardId,
        cursor: HistoryCursor,
    ) -> Result<Option<(ShardId, HistoryCursor)>, StoreError> {
        let staged = group.history_cursors.get(&shard).copied();
        let known = match (staged, self.core.history.state_keyspace()) {
            (Some(staged), _) => Some(staged),
            (None, Some(state)) => {
                let stored = read::cursor(&state, shard).map_err(|error| error.into_store_error(WRITE))?;
                stored.map(|stored| stored.position)
            }
            (None, None) => None,
        };
        if known >= Some(cursor.position) {
            return Ok(None);
        }
        group.history_cursors.insert(shard, cursor.position);
        Ok(Some((shard, cursor)))
    }

    /// Lets periods leave: the start of the history is durable before their keyspaces are deleted by the caller.
    pub(super) fn trim_history(&mut self, before: Timestamp) -> Result<Vec<DroppedPeriod>, StoreError> {
        let history = &self.core.history;
        let (Some((outdated, end)), Some(state)) = (history.outdated(before), history.state_keyspace()) else {
            return Ok(Vec::new());
        };
        let starts_at = history.starts_at().map_or(end, |known| known.max(end));
        let mut batch = self.writer.batch(1);
        batch.put(&state, key::STARTS_AT, to_sortable(starts_at));
        self.commit_separately(batch, "trim history")?;
        let dropped = self.core.history.take(&outdated, starts_at);
        dropped.iter().for_each(|period| self.writer.forget(&period.keyspaces));
        Ok(dropped)
    }
}
