//! The committer: a single thread that is the only writer of the store.
//!
//! It takes all waiting commands, validates and stages them in one batch, and commits the batch with one sync. Then it
//! applies the rows to the in-memory state and replies. An acknowledged command is durable and readable. A failed
//! commit stops the thread: the state on disk is then unknown, and the process should exit.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::counters::counter_table::CounterTable;
use crate::disk::disk_space::{DiskSpaceLevel, DiskSpaceMonitor};
use crate::disk::writer::{CommitBatch, SyncMode, Writer};
use crate::error::OpenError;
use crate::inbox::admission::AdmissionClass;
use crate::inbox::command::StoreCommand;
use crate::inbox::queue_command::QueueStoreCommand;
use crate::queues::recover::RecoveredQueues;
use crate::store_core::StoreCore;
use group::{CommitGroup, StagedCommand};
use tallystone_domain::Timestamp;
use tallystone_domain::counter::DatasetId;
use tallystone_ports::{AppendGuard, StoreError, StoreErrorKind};

mod group;
mod heads;
mod history;
mod leftovers;
mod memory;
mod queues;
mod slices;
mod stage;
mod structure;

/// The state of the thread.
pub struct Committer {
    core: Arc<StoreCore>,
    writer: Writer,
    space: DiskSpaceMonitor,
    tail_bytes_max: usize,
    sweep: SweepProgress,
    /// The shards of all queues.
    queues: queues::CommitterQueues,
    /// The guards of failed writes. They are never dropped: an event that may be on disk must stay registered as in
    /// flight.
    retained_guards: Vec<AppendGuard>,
}

/// The progress of the sweep over the shards of the counter table.
#[derive(Clone, Copy, Default)]
struct SweepProgress {
    next: usize,
    /// The number of shards to sweep, from `next` on.
    due: usize,
}

/// How long events stay in memory after the limit has passed them, so that rolls and reads need no disk access.
const TAIL_RETENTION: std::time::Duration = std::time::Duration::from_secs(30);

impl Committer {
    /// Starts the thread. It exits once the inbox is closed and empty.
    pub fn start(
        core: Arc<StoreCore>,
        writer: Writer,
        space: DiskSpaceMonitor,
        tail_bytes_max: usize,
        recovered: RecoveredQueues,
    ) -> Result<JoinHandle<()>, OpenError> {
        core.set_commit_number(writer.number());
        if !recovered.table.leftovers.is_empty() {
            core.inbox.push(StoreCommand::Queue(QueueStoreCommand::PurgeDropped));
        }
        let (queues, retained_guards) = (queues::CommitterQueues::new(recovered), Vec::new());
        let committer =
            Self { core, writer, space, tail_bytes_max, sweep: SweepProgress::default(), queues, retained_guards };
        let thread = std::thread::Builder::new().name("committer".to_owned());
        thread.spawn(move || committer.run()).map_err(OpenError::Thread)
    }

    fn run(mut self) {
        let core = Arc::clone(&self.core);
        if catch_unwind(AssertUnwindSafe(|| self.work())).is_err() {
            core.fail("the writer thread panicked".to_owned());
        }
        let _leaked = std::mem::ManuallyDrop::new(std::mem::take(&mut self.retained_guards));
        if core.failure().is_none()
            && let Err(error) = self.writer.finish()
        {
            core.fail(format!("the last sync failed: {error}"));
        }
        self.reject_remaining();
    }

    fn work(&mut self) {
        let mut commands = Vec::new();
        while self.core.inbox.take(&mut commands) {
            self.core.update_disk_space(&self.space);
            self.core.queues.memory.read_process();
            let mut group = CommitGroup::new(&self.writer, commands.len());
            for command in commands.drain(..) {
                self.stage_or_run(&mut group, command);
            }
            self.flush(&mut group);
            self.admit_listeners();
            self.trim_answers();
            self.drop_outlived_answers();
            self.sweep_some_shards();
        }
    }

    /// Stages a command, or runs it immediately if it needs a separate commit.
    fn stage_or_run(&mut self, group: &mut CommitGroup, command: StoreCommand) {
        group.bytes_waited += command.bytes();
        if self.core.failure().is_some() {
            return command.fail(|op| StoreError::not_applied(StoreErrorKind::Closed, op));
        }
        if !self.has_disk_space_for(&command) {
            return command.fail(|op| StoreError::not_applied(StoreErrorKind::Full, op));
        }
        match command {
            StoreCommand::Append(append) => self.stage_append(group, append),
            StoreCommand::Settle(settle) => self.stage_settle(group, settle),
            StoreCommand::PublishLimit(dataset, closed, answer) => self.stage_limit(group, dataset, closed, answer),
            StoreCommand::Roll(dataset, writes, answer) => self.stage_roll(group, dataset, writes, answer),
            StoreCommand::Watermarks(dataset, moved, answer) => self.stage_watermarks(group, dataset, moved, answer),
            StoreCommand::Queue(command) => self.stage_queue(group, command),
            StoreCommand::History(command) => self.stage_history(group, command),
            StoreCommand::CreateSlice(slice, answer) => self.stage_slice(group, slice, answer),
            StoreCommand::SetStatus(dataset, start, status, answer) => {
                self.stage_status(group, dataset, start, status, answer);
            }
            command @ (StoreCommand::DropSlice(..)
            | StoreCommand::Catalog(..)
            | StoreCommand::Keys(..)
            | StoreCommand::Experiments(..)
            | StoreCommand::Rules(..)
            | StoreCommand::TrimSeries(..)
            | StoreCommand::Forget(..)
            | StoreCommand::ForgetCounters(..)
            | StoreCommand::PurgeRows(..)
            | StoreCommand::TrimHistory(..)
            | StoreCommand::Snapshot(_)) => {
                self.flush(group);
                self.run_separately(command);
            }
        }
        if group.is_full() {
            self.flush(group);
        }
    }

    fn has_disk_space_for(&self, command: &StoreCommand) -> bool {
        let frees = matches!(
            command,
            StoreCommand::SetStatus(..) | StoreCommand::DropSlice(..) | StoreCommand::TrimSeries(..) | StoreCommand::Forget(..) | StoreCommand::ForgetCounters(..) | StoreCommand::PurgeRows(..)
                | StoreCommand::TrimHistory(..)
                // Needs no disk space.
                | StoreCommand::Snapshot(_)
                // Queue commands are checked individually.
                | StoreCommand::Queue(_)
        );
        if !self.core.is_full() || frees {
            return true;
        }
        command.class() == AdmissionClass::Upkeep && self.space.level() > DiskSpaceLevel::Exhausted
    }

    /// Commits the staged batch, applies it to the in-memory state, and sends the replies.
    fn flush(&mut self, group: &mut CommitGroup) {
        let CommitGroup { mut batch, mut sync, commands, bytes_waited, mut queues, .. } =
            std::mem::replace(group, CommitGroup::new(&self.writer, 0));
        let mut committed = true;
        let shards: Vec<_> = queues.shards().collect();
        let cancels = queues.take_cancels();
        if let Some(spaces) = &self.queues.spaces
            && queues.write(&mut self.queues.table, spaces, &mut batch)
        {
            sync = SyncMode::Yes;
        }
        if !batch.is_empty() {
            committed = self.commit(batch, sync);
        }
        if committed {
            self.shed_heads(shards.iter().copied());
            self.publish_memory();
            self.queues.listeners.notify(&self.queues.table, shards.into_iter());
            self.queues.listeners.notify_cancels(&cancels);
            commands.iter().for_each(|command| self.apply_to_memory(command));
            commands.into_iter().for_each(StagedCommand::reply);
        } else {
            for command in commands {
                self.retained_guards.extend(command.fail());
            }
        }
        self.core.inbox.release(bytes_waited);
    }

    /// Commits a batch. A failure puts the store into the failed state.
    fn commit(&mut self, batch: CommitBatch, sync: SyncMode) -> bool {
        match self.writer.commit(batch, sync) {
            Ok(()) => {
                self.core.set_commit_number(self.writer.number());
                true
            }
            Err(error) => {
                self.core.fail(format!("commit {} failed: {error}", self.writer.number() + 1));
                false
            }
        }
    }

    /// Applies committed rows to the in-memory state.
    fn apply_to_memory(&mut self, command: &StagedCommand) {
        let memory = &self.core.counters;
        match command {
            StagedCommand::Append { dataset, events, outcomes, .. } => {
                for (event, _) in events.iter().zip(outcomes).filter(|(_, outcome)| group::is_inserted(outcome)) {
                    memory.publish(*dataset, &event.counter, &event.event);
                }
            }
            StagedCommand::Settle { dataset, void, .. } => {
                for event in void {
                    memory.publish(*dataset, &event.counter, &event.event);
                }
            }
            StagedCommand::PublishLimit { dataset, to, .. } => {
                self.core.meta_state.raise_limit(*dataset, *to);
                self.schedule_sweep();
            }
            StagedCommand::Roll { dataset, rolls, .. } => {
                for (counter, bytes, checkpoint) in rolls {
                    memory.publish_checkpoint(*dataset, counter, bytes, checkpoint);
                }
            }
            // The in-memory shards were updated during staging; only this thread reads them.
            StagedCommand::Apply { .. } | StagedCommand::ReadShard(_) | StagedCommand::ListQueues { .. } => {}
            StagedCommand::History { rows, row_bytes, .. } => self.core.history.count_written(*rows, *row_bytes),
            StagedCommand::Slice { row, .. } => self.core.slices.upsert_row(row),
            StagedCommand::Watermarks { dataset, moved, .. } => {
                for (shard, to) in moved {
                    self.core.meta_state.raise_watermark(*dataset, *shard, *to);
                }
            }
        }
    }

    /// Schedules a sweep of an eighth of all shards, after a limit has advanced.
    fn schedule_sweep(&mut self) {
        let shards = CounterTable::SHARDS;
        self.sweep.due = (self.sweep.due + shards / 8).min(shards);
    }

    /// Sweeps an eighth of the due shards, which keeps each pause short.
    fn sweep_some_shards(&mut self) {
        let SweepProgress { mut next, due } = self.sweep;
        if due == 0 {
            return;
        }
        let eviction_limits = self.eviction_limits();
        let count = (due / 8).max(1);
        for _ in 0..count {
            self.core.counters.sweep(next, &eviction_limits);
            next = (next + 1) % CounterTable::SHARDS;
        }
        self.sweep = SweepProgress { next, due: due - count };
    }

    /// For each dataset, the time up to which events may be evicted from memory: `TAIL_RETENTION` below the limit, or
    /// the limit itself if the tail exceeds its memory bound.
    fn eviction_limits(&self) -> Vec<(DatasetId, Timestamp)> {
        let is_short = self.core.counters.tail_bytes() > self.tail_bytes_max;
        let retention = if is_short { std::time::Duration::ZERO } else { TAIL_RETENTION };
        let limits = self.core.meta_state.limits().into_iter();
        limits
            .map(|(dataset, limit)| (dataset, if limit == Timestamp::MIN { limit } else { limit - retention }))
            .collect()
    }

    /// Refuses the commands that were waiting when the inbox closed.
    fn reject_remaining(&self) {
        self.core.inbox.close();
        let mut commands = Vec::new();
        while self.core.inbox.take(&mut commands) {
            for command in commands.drain(..) {
                command.fail(|op| StoreError::not_applied(StoreErrorKind::Closed, op));
            }
        }
    }
}
