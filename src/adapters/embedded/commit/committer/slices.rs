//! Creation and status changes of slices. They share commits with other commands, because many datasets of short slices
//! produce many of them.

use super::group::{CommitGroup, SliceReplySender, StagedCommand};
use super::{Committer, SyncMode};
use crate::disk::meta;
use crate::inbox::admission::ReplySender;
use tallystone_adapters::codec::encode_slice;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::DatasetId;
use tallystone_domain::rollup::{SliceStatus, TimeSlice};
use tallystone_ports::{StoreError, StoreErrorKind};

impl Committer {
    /// Stages the row of a slice unless it exists.
    pub(super) fn stage_slice(&self, group: &mut CommitGroup, slice: TimeSlice, answer: ReplySender<TimeSlice>) {
        let known = self.slice(group, slice.dataset, slice.start);
        let row = known.unwrap_or_else(|| {
            self.put_slice(group, &slice);
            slice
        });
        group.commands.push(StagedCommand::Slice { row, answer: SliceReplySender::Created(answer) });
    }

    /// Stages the next status of a slice. The last status is not staged, because it removes the slice.
    pub(super) fn stage_status(
        &self,
        group: &mut CommitGroup,
        dataset: DatasetId,
        start: Timestamp,
        status: SliceStatus,
        answer: ReplySender<()>,
    ) {
        let Some(mut row) = self.slice(group, dataset, start) else {
            // A failed send means that the caller stopped waiting.
            return drop(answer.send(Err(no_slice(dataset, start, "set slice status"))));
        };
        if status > row.status {
            row.status = status;
            self.put_slice(group, &row);
        }
        group.commands.push(StagedCommand::Slice { row, answer: SliceReplySender::Moved(answer) });
    }

    /// The row of a slice: staged or committed.
    fn slice(&self, group: &CommitGroup, dataset: DatasetId, start: Timestamp) -> Option<TimeSlice> {
        group.slices.get(&(dataset, start)).cloned().or_else(|| self.core.slices.row(dataset, start))
    }

    fn put_slice(&self, group: &mut CommitGroup, slice: &TimeSlice) {
        let key = meta::slice(slice.dataset, slice.start);
        group.batch.put(&self.writer.library().meta, key, encode_slice(slice));
        group.slices.insert((slice.dataset, slice.start), slice.clone());
        group.sync = SyncMode::Yes;
    }
}

/// The error of a status change for a slice that does not exist.
pub(super) fn no_slice(dataset: DatasetId, start: Timestamp, op: &'static str) -> StoreError {
    StoreError::not_applied(StoreErrorKind::Conflict, op)
        .with_source(format!("dataset {} has no slice that starts at {start:?}", dataset.0))
}
