//! The committer: one thread, the only writer of the store.
//!
//! It takes all commands that wait, checks and stages them into one batch, commits it with one sync, takes the rows into
//! memory, and answers. Whatever is answered is durable and readable. A commit that fails ends it: nobody knows what the
//! disk holds then, and the process is expected to end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use super::command::{Class, Command};
use super::core::Core;
use super::error::OpenError;
use super::queues::command::Ask;
use super::queues::recover::Recovered;
use super::space::{Room, Space};
use super::writer::{Sync, Writer};
use crate::domain::Timestamp;
use crate::domain::counter::DatasetId;
use crate::ports::{Held, StoreError, StoreErrorKind};
use group::{Group, Work};

mod group;
mod queues;
mod slices;
mod stage;
mod structure;

/// The thread's own state.
pub struct Committer {
    core: Arc<Core>,
    writer: Writer,
    space: Space,
    tail_bytes_max: usize,
    /// The next shard to sweep, and how many are due.
    sweep: (usize, usize),
    /// The shards of all queues.
    queues: queues::Queues,
    /// What failed writes hold. It is never dropped: an event that may be on disk must not lose its hold.
    unsettled: Vec<Held>,
}

/// How long events stay in memory after the limit has passed them, so that rolls and reads find them there.
const TAIL_KEPT: std::time::Duration = std::time::Duration::from_secs(30);

impl Committer {
    /// Starts the thread. It ends when the queue is closed, after the last command.
    pub fn start(
        core: Arc<Core>,
        writer: Writer,
        space: Space,
        tail_bytes_max: usize,
        recovered: Recovered,
    ) -> Result<JoinHandle<()>, OpenError> {
        core.set_commit_number(writer.number());
        if !recovered.table.leftovers.is_empty() {
            core.queue.push(Command::Queue(Ask::Tidy));
        }
        let (queues, unsettled) = (queues::Queues::new(recovered), Vec::new());
        let committer = Self { core, writer, space, tail_bytes_max, sweep: (0, 0), queues, unsettled };
        let thread = std::thread::Builder::new().name("committer".to_owned());
        thread.spawn(move || committer.run()).map_err(OpenError::Thread)
    }

    fn run(mut self) {
        let core = Arc::clone(&self.core);
        if catch_unwind(AssertUnwindSafe(|| self.work())).is_err() {
            core.fail("the writer thread panicked".to_owned());
        }
        let _kept_for_ever = std::mem::ManuallyDrop::new(std::mem::take(&mut self.unsettled));
        if core.failure().is_none()
            && let Err(error) = self.writer.finish()
        {
            core.fail(format!("the last sync failed: {error}"));
        }
        self.drain();
    }

    fn work(&mut self) {
        let mut commands = Vec::new();
        while self.core.queue.take(&mut commands) {
            self.core.set_room(&self.space);
            let mut group = Group::new(&self.writer, commands.len());
            for command in commands.drain(..) {
                self.work_on(&mut group, command);
            }
            self.flush(&mut group);
            self.admit_listeners();
            self.trim_answers();
            self.pay_sweep();
        }
    }

    /// Stages a command, or does it at once where it stands alone.
    fn work_on(&mut self, group: &mut Group, command: Command) {
        group.bytes_waited += command.bytes();
        if self.core.failure().is_some() {
            return command.fail(|op| StoreError::not_applied(StoreErrorKind::Closed, op));
        }
        if !self.has_room_for(&command) {
            return command.fail(|op| StoreError::not_applied(StoreErrorKind::Full, op));
        }
        match command {
            Command::Append(append) => self.stage_append(group, append),
            Command::Settle(settle) => self.stage_settle(group, settle),
            Command::Publish(dataset, closed, answer) => self.stage_publish(group, dataset, closed, answer),
            Command::Roll(dataset, writes, answer) => self.stage_roll(group, dataset, writes, answer),
            Command::Watermarks(dataset, moved, answer) => self.stage_watermarks(group, dataset, moved, answer),
            Command::Queue(ask) => self.stage_queue(group, ask),
            Command::CreateSlice(slice, answer) => self.stage_slice(group, slice, answer),
            Command::SetStatus(dataset, start, status, answer) => {
                self.stage_status(group, dataset, start, status, answer);
            }
            alone @ (Command::DropSlice(..)
            | Command::Catalog(..)
            | Command::TrimSeries(..)
            | Command::Forget(..)
            | Command::Tidy(..)
            | Command::Snapshot(_)) => {
                self.flush(group);
                self.do_alone(alone);
            }
        }
        if group.is_full() {
            self.flush(group);
        }
    }

    fn has_room_for(&self, command: &Command) -> bool {
        let frees = matches!(
            command,
            Command::SetStatus(..) | Command::DropSlice(..) | Command::TrimSeries(..) | Command::Forget(..) | Command::Tidy(..)
                // Takes no room.
                | Command::Snapshot(_)
                // Commands of queues are judged one by one.
                | Command::Queue(_)
        );
        if !self.core.is_full() || frees {
            return true;
        }
        command.class() == Class::Upkeep && self.space.room() > Room::Exhausted
    }

    /// Commits what is staged, takes it into memory and answers.
    fn flush(&mut self, group: &mut Group) {
        let whole = std::mem::replace(group, Group::new(&self.writer, 0));
        let Group { mut batch, mut sync, work, bytes_waited, queues, .. } = whole;
        let mut committed = true;
        let shards: Vec<_> = queues.shards().collect();
        if let Some(spaces) = &self.queues.spaces
            && queues.write(&mut self.queues.table, spaces, &mut batch, self.writer.number() + 1)
        {
            sync = Sync::Yes;
        }
        if !batch.is_empty() {
            committed = self.commit(batch, sync);
        }
        if committed {
            self.queues.listeners.tell(&self.queues.table, shards.into_iter());
            let answers: Vec<group::Ready> = work.into_iter().map(|work| self.publish(work)).collect();
            for answer in answers {
                answer.send();
            }
        } else {
            for work in work {
                self.unsettled.extend(work.fail());
            }
        }
        self.core.queue.done(bytes_waited);
    }

    /// Commits a batch. A failure is final.
    fn commit(&mut self, batch: super::writer::Batch, sync: Sync) -> bool {
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

    /// Takes committed rows into memory.
    fn publish(&mut self, work: Work) -> group::Ready {
        let memory = &self.core.memory;
        match &work {
            Work::Append { dataset, events, outcomes, .. } => {
                for (event, _) in events.iter().zip(outcomes).filter(|(_, outcome)| group::is_inserted(outcome)) {
                    memory.publish(*dataset, &event.counter, &event.event);
                }
            }
            Work::Settle { dataset, void, .. } => {
                for event in void {
                    memory.publish(*dataset, &event.counter, &event.event);
                }
            }
            Work::Publish { dataset, to, .. } => {
                self.core.book.raise_limit(*dataset, *to);
                self.owe_sweep();
            }
            Work::Roll { dataset, rolls, .. } => {
                for (counter, bytes, checkpoint) in rolls {
                    memory.publish_checkpoint(*dataset, counter, bytes, checkpoint);
                }
            }
            // The cores know it already; nobody else sees them.
            Work::Queue(_) => {}
            Work::Slice { row, .. } => self.core.slices.note(row),
            Work::Watermarks { dataset, moved, .. } => {
                for (shard, to) in moved {
                    self.core.book.raise_watermark(*dataset, *shard, *to);
                }
            }
        }
        work.ready()
    }

    /// A limit moved: an eighth of all shards is due.
    fn owe_sweep(&mut self) {
        let shards = super::memory::Memory::SHARDS;
        self.sweep.1 = (self.sweep.1 + shards / 8).min(shards);
    }

    /// Sweeps a few shards, so that no single pause is long.
    fn pay_sweep(&mut self) {
        let (mut next, owed) = self.sweep;
        if owed == 0 {
            return;
        }
        let floors = self.floors();
        let now = (owed / 8).max(1);
        for _ in 0..now {
            self.core.memory.sweep(next, &floors);
            next = (next + 1) % super::memory::Memory::SHARDS;
        }
        self.sweep = (next, owed - now);
    }

    /// How far events may leave memory: well below the limit, up to it when memory is short.
    fn floors(&self) -> Vec<(DatasetId, Timestamp)> {
        let is_short = self.core.memory.tail_bytes() > self.tail_bytes_max;
        let kept = if is_short { std::time::Duration::ZERO } else { TAIL_KEPT };
        let limits = self.core.book.limits().into_iter();
        limits.map(|(dataset, limit)| (dataset, if limit == Timestamp::MIN { limit } else { limit - kept })).collect()
    }

    /// Turns away what was lined up before the queue closed.
    fn drain(&self) {
        self.core.queue.close();
        let mut commands = Vec::new();
        while self.core.queue.take(&mut commands) {
            for command in commands.drain(..) {
                command.fail(|op| StoreError::not_applied(StoreErrorKind::Closed, op));
            }
        }
    }
}
