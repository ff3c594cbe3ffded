//! Applying and staging commands of queues, and changes of the structure of the queues: new queues, dropped queues, the
//! catalog.

use std::collections::BTreeSet;

use super::Committer;
use super::group::{CommitGroup, StagedCommand};
use crate::disk::disk_space::DiskSpaceLevel;
use crate::disk::library::KeyspaceError;
use crate::disk::meta;
use crate::disk::read::rows;
use crate::error::ReadError;
use crate::inbox::command::StoreCommand;
use crate::inbox::queue_command::{ApplyCommands, NewShards, QueueStoreCommand, ReadShard, brings_content, is_intake};
use crate::queues::keyspaces::QueueKeyspaces;
use crate::queues::recover::RecoveredQueues;
use crate::queues::shard_table::{EPOCH, LoadedShard, ShardTable};
use crate::queues::staged_changes::{ListenerSet, StagedBody};
use crate::queues::store_time::Moment;
use crate::queues::{catalog, key};
use tallystone_adapters::codec::queues::settings::{QueueRow, encode_header, encode_queue, encode_settings};
use tallystone_adapters::codec::queues::{decode_body, encode_body};
use tallystone_domain::limits::{COUNTED_VALUES_MAX, TOKEN_AHEAD_MAX};
use tallystone_domain::queue::clock::StepTime;
use tallystone_domain::queue::messages::lease_seal::LeaseKey;
use tallystone_domain::queue::{Command as QueueCommand, QueueId, Refusal, Reply, Shard, ShardId};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{
    MessageBody, QueueRecord, QueueRequest, ScanOrder, ShardAnswer, ShardCommand, StoreError, StoreErrorKind,
    StoredMessage,
};

/// The queue state of the committer.
pub struct CommitterQueues {
    pub(super) table: ShardTable,
    pub(super) spaces: Option<QueueKeyspaces>,
    pub(super) listeners: ListenerSet,
    /// The latest time of any command.
    pub(super) moment: Option<Moment>,
    /// Whether dedupe records may be older than every window.
    trim_due: bool,
    /// The shards that have heads in memory of messages that are over, besides those that commands of the group change.
    pub(super) to_shed: BTreeSet<ShardId>,
    /// When answers are dropped next if memory is short, by the clock that judges the age of tokens.
    pub(super) answers_dropped_next: Timestamp,
}

const APPLY: &str = "apply to queue";

impl CommitterQueues {
    /// Continues with the recovered queues.
    pub fn new(recovered: RecoveredQueues) -> Self {
        let RecoveredQueues { spaces, table, moment, rows_read: _ } = recovered;
        let (listeners, to_shed) = (ListenerSet::default(), BTreeSet::new());
        Self { table, spaces, listeners, moment, trim_due: true, to_shed, answers_dropped_next: Timestamp::MIN }
    }

    /// The time of a command: it never goes back.
    fn at(&mut self, moment: Moment) -> Moment {
        let step = self.moment.map_or(moment.step, |last| moment.step.clamped_after(last.step));
        *self.moment.insert(Moment { step, ..moment })
    }
}

impl Committer {
    /// Stages a command of queues, or runs it at once if it needs a commit of its own.
    pub(super) fn stage_queue(&mut self, group: &mut CommitGroup, ask: QueueStoreCommand) {
        match ask {
            QueueStoreCommand::Apply(apply) => self.stage_apply(group, apply),
            QueueStoreCommand::Read(read) => self.stage_read(group, read),
            QueueStoreCommand::List(answer) => {
                let queues = self.queues.table.live();
                group.commands.push(StagedCommand::ListQueues { queues, answer });
            }
            QueueStoreCommand::ListOutboxes(answer) => drop(answer.send(Ok(self.queues.table.outboxes.shards()))),
            QueueStoreCommand::ForgetOutbox(shard, through, answer) => {
                group.queues.forget_outbox(shard, through);
                group.commands.push(StagedCommand::ReadShard(answer));
            }
            QueueStoreCommand::Clock(moment, answer) => drop(answer.send(Ok(self.queues.at(moment).step))),
            QueueStoreCommand::AttachListeners => {
                self.flush(group);
                self.admit_listeners();
            }
            alone @ (QueueStoreCommand::Create(..)
            | QueueStoreCommand::Drop(..)
            | QueueStoreCommand::Catalog(..)
            | QueueStoreCommand::SaveRequest(..)
            | QueueStoreCommand::LeaseKey(..)
            | QueueStoreCommand::ResetClock(..)
            | QueueStoreCommand::PurgeDropped) => {
                self.flush(group);
                self.run_queue_alone(alone);
            }
        }
    }

    /// Runs a read after the commands before it. Its answer waits for their commit.
    fn stage_read(&mut self, group: &mut CommitGroup, asked: ReadShard) {
        const READ: &str = "read queue";
        let ReadShard { shard, moment, message, read, answer } = asked;
        let at = self.queues.at(moment).step.now;
        let Some(kept) = self.queues.table.shards.get(&shard) else {
            // The caller may have stopped waiting.
            return drop(answer.send(Err(no_such_shard(READ))));
        };
        let needed: Vec<u64> = message.and_then(|message| kept.shard.stub_of(&message)).into_iter().collect();
        if let Err(error) = self.give_heads(shard, &needed, READ) {
            return drop(answer.send(Err(error)));
        }
        if let Some(kept) = self.queues.table.shards.get(&shard) {
            read(kept, at.max(kept.header.clock));
            group.commands.push(StagedCommand::ReadShard(answer));
        }
    }

    fn stage_apply(&mut self, group: &mut CommitGroup, apply: ApplyCommands) {
        let ApplyCommands { shard, moment, commands, answer } = apply;
        let moment = self.queues.at(moment);
        let room = self.disk_space_level();
        let mut answers = Vec::with_capacity(commands.len());
        for sent in commands {
            if matches!(sent.command, QueueCommand::Delete) {
                self.flush_before_delete(group, &mut answers);
            }
            answers.push(self.stage_command(group, shard, moment, sent, room));
        }
        if let Some(view) = self.queues.table.refresh_view(shard, moment.step.now) {
            answers.iter_mut().flatten().for_each(|answer| answer.view = view);
        }
        group.commands.push(StagedCommand::Apply { answers, answer });
    }

    /// Commits the staged commands. A deletion leaves the messages to a later commit, which finds them by their rows:
    /// so the rows have to be there. `answers` are those of commands that came with it.
    fn flush_before_delete(&mut self, group: &mut CommitGroup, answers: &mut [Result<ShardAnswer, StoreError>]) {
        self.flush(group);
        if self.core.failure().is_some() {
            for answer in answers.iter_mut().filter(|answer| answer.is_ok()) {
                *answer = Err(StoreError::unknown(StoreErrorKind::Unavailable, APPLY));
            }
        }
    }

    fn stage_command(
        &mut self,
        group: &mut CommitGroup,
        shard: ShardId,
        moment: Moment,
        sent: ShardCommand,
        room: DiskSpaceLevel,
    ) -> Result<ShardAnswer, StoreError> {
        let is_intake = is_intake(&sent.command);
        if self.core.failure().is_some() {
            return Err(StoreError::not_applied(StoreErrorKind::Closed, APPLY));
        }
        if room < disk_space_needed(&sent.command) {
            return Err(StoreError::not_applied(StoreErrorKind::Full, APPLY));
        }
        if !self.queues.table.shards.contains_key(&shard) {
            return Err(no_such_shard(APPLY));
        }
        if let QueueCommand::Enqueue(message) = &sent.command
            && let Some(view) = self.queues.table.duplicate_in_other_shard(shard, message)
        {
            return Ok(ShardAnswer::refused(Refusal::TokenReused, moment.step.now, view));
        }
        self.check_memory(shard, &sent.command, moment.step)?;
        // No step after this fails, so a refused command leaves nothing behind.
        let kept = self.queues.table.shards.get(&shard).expect("it was there a moment ago");
        let needed = kept.shard.heads_needed(&sent.command, moment.step.now);
        self.give_heads(shard, &needed, APPLY)?;
        let old_body = self.replaced_body(group, shard, &sent)?;
        self.make_dedupe_keyspace(shard, &sent.command, moment.step)?;
        let is_full = self.queues.table.counted_values >= COUNTED_VALUES_MAX;
        let kept = self.queues.table.shards.get_mut(&shard).expect("it was there a moment ago");
        let values_before = kept.shard.tally().own_values();
        kept.shard.set_values_full(is_full);
        let is_last = matches!(sent.command, QueueCommand::Delete);
        let left = if is_last { kept.sequences() } else { Vec::new() };
        let mut applied = kept.shard.apply(sent.command, moment.step);
        let values_after = kept.shard.tally().own_values();
        self.queues.table.counted_values = self.queues.table.counted_values + values_after - values_before;
        let rows = kept.shard.history_rows(&applied.transitions, sent.body.kind.as_deref());
        let view = kept.view;
        let messages = match &applied.reply {
            Ok(Reply::Leases { leases, .. }) => {
                let heads = leases.iter().filter_map(|lease| kept.find(lease.token.key));
                heads.map(|head| StoredMessage { head: head.clone(), body: MessageBody::default() }).collect()
            }
            Ok(_) | Err(_) => Vec::new(),
        };
        let body = match &applied.reply {
            Ok(Reply::Enqueued { key, already_enqueued: false, .. }) if is_intake => {
                Some(StagedBody::New(key.sequence, encode_body(&sent.body)))
            }
            Ok(_) | Err(_) => applied.updated_message().zip(old_body).map(|(sequence, old)| {
                let new = MessageBody { payload: sent.body.payload, ..old };
                StagedBody::Changed(sequence, encode_body(&new))
            }),
        };
        if !left.is_empty() {
            self.queues.table.leftovers.push((shard, left));
            self.core.inbox.push(StoreCommand::Queue(QueueStoreCommand::PurgeDropped));
        }
        let answers = self.answer_keyspaces(&applied.changes.answers);
        group.queues.note(shard, moment, (&mut applied, rows), body, answers);
        group.events += applied.transitions.len();
        let (reply, transitions, walked) = (applied.reply, applied.transitions, applied.walked);
        Ok(ShardAnswer { reply, messages, transitions, walked, at: moment.step.now, view })
    }

    /// The body of a message whose payload an update is to replace, as it is staged or stored: its type and its trace
    /// context stay. None for every other command, and if there is no such message.
    fn replaced_body(
        &self,
        group: &CommitGroup,
        shard: ShardId,
        sent: &ShardCommand,
    ) -> Result<Option<MessageBody>, StoreError> {
        let QueueCommand::Update { message, .. } = &sent.command else { return Ok(None) };
        let kept = self.queues.table.shards.get(&shard).filter(|_| sent.brings_payload());
        let found = kept.and_then(|kept| kept.shard.get(message)).map(|head| head.key.sequence);
        let Some((sequence, spaces)) = found.zip(self.queues.spaces.as_ref()) else { return Ok(None) };
        let read = || -> Result<Option<MessageBody>, ReadError> {
            if let Some(staged) = group.queues.body(shard, sequence) {
                return Ok(Some(decode_body(staged)?));
            }
            let stored = spaces.bodies.get(key::of_message(shard, sequence))?;
            Ok(stored.map(|bytes| decode_body(&bytes)).transpose()?)
        };
        read().map_err(|error| error.into_store_error(APPLY))
    }

    /// Makes the keyspace of the answer to an enqueue, if its token has a time that the shard accepts. The answer goes
    /// there once its message is gone.
    fn make_dedupe_keyspace(
        &mut self,
        shard: ShardId,
        command: &QueueCommand,
        step: StepTime,
    ) -> Result<(), StoreError> {
        let QueueCommand::Enqueue(message) = command else { return Ok(()) };
        let Some(at) = self.queues.table.shards.get(&shard) else { return Ok(()) };
        let kept =
            (step.token_age_clock - at.shard.settings().dedupe_window)..=(step.token_ahead_clock + TOKEN_AHEAD_MAX);
        let Some(time) = message.token_time.filter(|time| kept.contains(time)) else { return Ok(()) };
        let made = self.queues.table.answers.make(self.writer.library(), time);
        let (_, is_new) = made.map_err(|error| keyspace_error(error, APPLY))?;
        self.queues.trim_due |= is_new;
        Ok(())
    }

    /// The disk space level for commands of queues.
    fn disk_space_level(&self) -> DiskSpaceLevel {
        if self.core.is_full() { self.space.level() } else { DiskSpaceLevel::Plenty }
    }

    fn run_queue_alone(&mut self, ask: QueueStoreCommand) {
        // The caller may have stopped waiting.
        match ask {
            QueueStoreCommand::Create(new, answer) => drop(answer.send(self.create_queue(&new))),
            QueueStoreCommand::Drop(queue, answer) => drop(answer.send(self.drop_queue(queue))),
            QueueStoreCommand::Catalog(record, answer) => drop(answer.send(self.change_queue_catalog(*record))),
            QueueStoreCommand::SaveRequest(request, now, answer) => drop(answer.send(self.save_request(*request, now))),
            QueueStoreCommand::LeaseKey(made, answer) => drop(answer.send(self.lease_key(made))),
            QueueStoreCommand::ResetClock(moment, answer) => drop(answer.send(self.reset_queue_clock(moment))),
            QueueStoreCommand::PurgeDropped => self.purge_dropped_queues(),
            QueueStoreCommand::Apply(_)
            | QueueStoreCommand::Read(..)
            | QueueStoreCommand::List(_)
            | QueueStoreCommand::Clock(..)
            | QueueStoreCommand::ListOutboxes(_)
            | QueueStoreCommand::ForgetOutbox(..)
            | QueueStoreCommand::AttachListeners => {
                unreachable!("this is staged with others")
            }
        }
    }

    /// The keyspaces of queues, made with the first one.
    fn queue_spaces(&mut self, op: &'static str) -> Result<QueueKeyspaces, StoreError> {
        if let Some(spaces) = &self.queues.spaces {
            return Ok(spaces.clone());
        }
        let spaces = QueueKeyspaces::make(self.writer.library()).map_err(|error| keyspace_error(error, op))?;
        self.queues.spaces = Some(spaces.clone());
        *self.core.queues.spaces.write() = Some(spaces.clone());
        Ok(spaces)
    }

    fn create_queue(&mut self, new: &NewShards) -> Result<(), StoreError> {
        const OP: &str = "create queue";
        let NewShards { queue, shards, ref settings, moment } = *new;
        let refuse = |why: &str| StoreError::not_applied(StoreErrorKind::Conflict, OP).with_source(why);
        match self.queues.table.queues.get(&queue) {
            Some(Some(_)) => return Ok(()),
            Some(None) => return Err(refuse("a queue of this number was dropped")),
            None => {}
        }
        if self.disk_space_level() < DiskSpaceLevel::Plenty {
            return Err(StoreError::not_applied(StoreErrorKind::Full, OP));
        }
        let spaces = self.queue_spaces(OP)?;
        let mut batch = self.writer.batch(2 * shards as usize + 3);
        let mut made = Vec::new();
        let (id_key, is_new) = self.id_key().map_err(|error| error.into_store_error(OP))?;
        if is_new {
            batch.put(&spaces.shards, key::ID_KEY, id_key.0);
        }
        for number in 0..shards {
            let core = Shard::new(number, EPOCH, settings.clone()).map_err(|_| refuse("the settings are not valid"))?;
            let core = core.with_stubs(id_key);
            let shard = ShardId { queue, number };
            batch.put(&spaces.shards, key::of_header(shard), encode_header(&core.header()));
            batch.put(&spaces.shards, key::of_settings(shard), encode_settings(&settings.settings, settings.version));
            made.push((shard, LoadedShard::new(core)));
        }
        let created = self.queues.at(moment);
        let row = QueueRow { shards, created: created.step.now };
        batch.put(&spaces.shards, key::of_queue(queue), encode_queue(Some(row)));
        // The time of queues must not go back behind it after a restart.
        batch.put(&spaces.shards, key::CLOCK, created.to_bytes());
        self.commit_separately(batch, OP)?;
        self.queues.table.id_key = Some(id_key);
        self.queues.table.add(made);
        self.queues.table.queues.insert(queue, Some(row));
        self.publish_memory();
        self.queues.listeners.notify(&self.queues.table, (0..shards).map(|number| ShardId { queue, number }));
        Ok(())
    }

    fn drop_queue(&mut self, queue: QueueId) -> Result<(), StoreError> {
        const OP: &str = "drop queue";
        let (Some(Some(row)), Some(spaces)) = (self.queues.table.queues.get(&queue), &self.queues.spaces) else {
            return Ok(());
        };
        let mut batch = self.writer.batch(2 * row.shards as usize + 1);
        for number in 0..row.shards {
            let shard = ShardId { queue, number };
            batch.remove(&spaces.shards, key::of_header(shard));
            batch.remove(&spaces.shards, key::of_settings(shard));
        }
        for tag in [b'v', b'e', b'k', b'g'] {
            for row in rows(&spaces.shards, key::of_tag(tag, queue), ScanOrder::OldestFirst) {
                let (key, _) = row.map_err(|error| error.into_store_error(OP))?;
                batch.remove(&spaces.shards, key);
            }
        }
        batch.put(&spaces.shards, key::of_queue(queue), encode_queue(None));
        self.commit_separately(batch, OP)?;
        self.queues.table.drop_queue(queue);
        self.publish_memory();
        self.core.inbox.push(StoreCommand::Queue(QueueStoreCommand::PurgeDropped));
        Ok(())
    }

    fn change_queue_catalog(&mut self, record: QueueRecord) -> Result<(), StoreError> {
        const OP: &str = "commit queue";
        let checked = self.core.queues.catalog.check(&record);
        checked.map_err(|why| StoreError::not_applied(StoreErrorKind::Conflict, OP).with_source(why))?;
        if record.entry.is_some() && self.disk_space_level() < DiskSpaceLevel::Reserve {
            return Err(StoreError::not_applied(StoreErrorKind::Full, OP));
        }
        let spaces = self.queue_spaces(OP)?;
        let mut batch = self.writer.batch(3);
        catalog::stage(&spaces, &mut batch, &record);
        self.commit_separately(batch, OP)?;
        self.core.queues.catalog.publish(record);
        Ok(())
    }

    /// Commands that take messages out continue without disk space, so their request is saved in the reserve.
    fn save_request(&mut self, request: QueueRequest, now: Timestamp) -> Result<(), StoreError> {
        const OP: &str = "keep request";
        let gone = self.core.queues.catalog.evicted_for(&request, now);
        let gone = gone.ok_or_else(|| StoreError::not_applied(StoreErrorKind::Busy, OP))?;
        let spaces = self.queue_spaces(OP)?;
        let mut batch = self.writer.batch(1 + gone.len());
        catalog::stage_request(&spaces, &mut batch, &request, &gone);
        self.commit_separately(batch, OP)?;
        self.core.queues.catalog.save_request(request, &gone);
        Ok(())
    }

    /// The key that seals lease tokens: this one if there is none.
    fn lease_key(&mut self, made: LeaseKey) -> Result<LeaseKey, StoreError> {
        const OP: &str = "lease key";
        if let Some(known) = self.stored_lease_key().map_err(|error| error.into_store_error(OP))? {
            return Ok(known);
        }
        let mut batch = self.writer.batch(1);
        batch.put(&self.writer.library().meta, meta::LEASE_KEY, made.0);
        self.commit_separately(batch, OP)?;
        Ok(made)
    }

    /// Judges the age of tokens by wall time again, in one commit with the refusals that follow from it.
    fn reset_queue_clock(&mut self, moment: Moment) -> Result<Option<Timestamp>, StoreError> {
        const OP: &str = "reset queue clock";
        let refused_before =
            self.queues.table.shards.values().filter_map(|kept| kept.shard.tokens_refused_before()).max();
        let Some(step) = self.queues.at(moment).step.reset(moment.step.token_age_clock, refused_before) else {
            return Ok(None);
        };
        let from = step.accepts_tokens_from();
        if let Some(spaces) = &self.queues.spaces {
            let mut batch = self.writer.batch(1 + self.queues.table.shards.len());
            for (shard, kept) in &mut self.queues.table.shards {
                kept.shard.accept_tokens_from(from);
                kept.write_header(*shard, spaces, &mut batch);
            }
            batch.put(&spaces.shards, key::CLOCK, Moment { step, ..moment }.to_bytes());
            self.commit_separately(batch, OP)?;
        }
        self.queues.moment = Some(Moment { step, ..moment });
        let all = self.queues.table.shards.keys().copied().collect();
        self.publish_changed_without_command(all, step.now);
        Ok(Some(from))
    }

    /// Drops dedupe records older than every window.
    pub(super) fn trim_answers(&mut self) {
        const OP: &str = "drop answers";
        let trim = std::mem::take(&mut self.queues.trim_due);
        let (true, Some(spaces), Some(moment)) = (trim, &self.queues.spaces, self.queues.moment) else { return };
        let window = self.queues.table.longest_window();
        let outlived = self.queues.table.answers.take_outlived(moment.step.token_age_clock, window);
        if outlived.is_empty() {
            return;
        }
        // Their tokens are too old from this time on, and the next startup must know that.
        let mut batch = self.writer.batch(1);
        batch.put(&spaces.shards, key::CLOCK, moment.to_bytes());
        if let Err(error) = self.commit_separately(batch, OP).and_then(|()| self.delete(outlived, OP)) {
            tracing::warn!(%error, "cannot remove expired dedupe records; they stay until the next start");
        }
    }

    /// Adds new listeners.
    pub(super) fn admit_listeners(&mut self) {
        let new = std::mem::take(&mut *self.core.queues.new_listeners.lock());
        if !new.is_empty() {
            self.queues.listeners.add(new, &self.queues.table);
        }
    }
}

/// The disk space that a command needs. Commands of operators on a whole shard are small and rare, and a startup
/// repeats them. They must not keep the server from starting.
fn disk_space_needed(command: &QueueCommand) -> DiskSpaceLevel {
    let of_whole_shard =
        matches!(command, QueueCommand::Configure(_) | QueueCommand::SetValueLimit { .. } | QueueCommand::Delete);
    match (brings_content(command), of_whole_shard) {
        (true, _) => DiskSpaceLevel::Plenty,
        (false, true) => DiskSpaceLevel::Exhausted,
        (false, false) => DiskSpaceLevel::Reserve,
    }
}

fn no_such_shard(op: &'static str) -> StoreError {
    StoreError::not_applied(StoreErrorKind::Conflict, op).with_source("there is no such queue")
}

fn keyspace_error(error: KeyspaceError, op: &'static str) -> StoreError {
    StoreError::not_applied(StoreErrorKind::Unavailable, op).with_source(error)
}
