//! Changes that a commit group makes to shards. They are collected so that each part is written once, however often it
//! changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fjall::Keyspace;

use super::key;
use super::keyspaces::QueueKeyspaces;
use super::outboxes::OutboxEntry;
use super::shard_table::{LoadedShard, ShardTable};
use super::store_time::Moment;
use super::stub_pages::PageChange;
use crate::disk::key::TIDIED;
use crate::disk::writer::CommitBatch;
use tallystone_adapters::codec::queues::counts::{encode_signature_counts, encode_value_counts};
use tallystone_adapters::codec::queues::history::encode_rows;
use tallystone_adapters::codec::queues::session::encode_session;
use tallystone_adapters::codec::queues::settings::{encode_header, encode_settings};
use tallystone_adapters::codec::queues::{encode_answer, encode_message};
use tallystone_domain::queue::counter_names::CountedValue;
use tallystone_domain::queue::index::dedupe_index::DedupeRecord;
use tallystone_domain::queue::messages::message::{MessageKey, RoutingValue, SessionId};
use tallystone_domain::queue::session_records::SessionRecord;
use tallystone_domain::queue::shard::restore::ShardChanges;
use tallystone_domain::queue::tally::ChangedCounts;
use tallystone_domain::queue::tally::errors::SignatureCounts;
use tallystone_domain::queue::transition::RowPosition;
use tallystone_domain::queue::{ApplyResult, HistoryRow, MessageState, Refusal, Shard, ShardId};
use tallystone_domain::time::Timestamp;
use tallystone_ports::QueueListener;

/// The changes of one group, by shard.
#[derive(Default)]
pub struct StagedShards {
    shards: BTreeMap<ShardId, StagedShardChanges>,
    /// The newest moment of all commands.
    moment: Option<Moment>,
    /// Whether a token was permanently refused because of that moment alone.
    refused_by_clock: bool,
    /// Running messages whose cancellation was requested.
    cancels: Vec<(ShardId, MessageKey)>,
    /// Outboxes whose rows leave, up to a position.
    forgotten: Vec<(ShardId, RowPosition)>,
    bytes: usize,
}

/// The body of a message that a command stages.
pub enum StagedBody {
    /// The body of a new message, by its sequence.
    New(u64, Vec<u8>),
    /// The body of a message whose payload was replaced, by its sequence.
    Changed(u64, Vec<u8>),
}

#[derive(Default)]
struct StagedShardChanges {
    /// Sequences of the changed messages, in order of change; may contain duplicates.
    sequences: Vec<u64>,
    rows: Vec<HistoryRow>,
    values: BTreeMap<(Box<str>, CountedValue), Option<ChangedCounts>>,
    signatures: BTreeMap<CountedValue, SignatureCounts>,
    /// Bodies of new messages.
    bodies: BTreeMap<u64, Vec<u8>>,
    /// Bodies of messages whose payload was replaced.
    changed_bodies: BTreeMap<u64, Vec<u8>>,
    /// Answers that outlive their messages.
    answers: Vec<(Keyspace, DedupeRecord)>,
    /// Messages that are over now and were not before.
    ended: BTreeSet<u64>,
    /// Messages that were over before.
    were_over: BTreeSet<u64>,
    /// Messages that changed without a row, such as by a shorter retention.
    shortened: BTreeSet<u64>,
    value_limits: BTreeMap<RoutingValue, Option<u32>>,
    sessions: BTreeMap<SessionId, Option<SessionRecord>>,
}

impl StagedShards {
    /// Records the result of a command and takes over its changes. `answers` has the answers that outlive their
    /// messages, with their keyspaces.
    pub fn note(
        &mut self,
        shard: ShardId,
        moment: Moment,
        (applied, rows): (&mut ApplyResult, Vec<HistoryRow>),
        body: Option<StagedBody>,
        answers: Vec<(Keyspace, DedupeRecord)>,
    ) {
        let cancels = applied.transitions.iter().filter(|row| row.requests_cancel());
        self.cancels.extend(cancels.map(|row| (shard, row.key)));
        let touched = self.shards.entry(shard).or_default();
        touched.sequences.extend(applied.changed_sequences());
        for row in &applied.transitions {
            let (was_over, is_over) =
                (row.from.is_some_and(MessageState::is_terminal), row.to.is_some_and(MessageState::is_terminal));
            let sets = [(&mut touched.were_over, was_over), (&mut touched.ended, is_over && !was_over)];
            for (set, _) in sets.into_iter().filter(|(_, is_so)| *is_so) {
                set.insert(row.key.sequence);
            }
        }
        touched.rows.extend(rows);
        match body {
            Some(StagedBody::New(sequence, body)) => {
                self.bytes += body.len();
                touched.bodies.insert(sequence, body);
            }
            Some(StagedBody::Changed(sequence, body)) => {
                self.bytes += body.len();
                touched.changed_bodies.insert(sequence, body);
            }
            None => {}
        }
        let ShardChanges { answers: _, value_limits, sessions, tally, settings: _, heads } =
            std::mem::take(&mut applied.changes);
        touched.answers.extend(answers);
        touched.shortened.extend(heads);
        touched.value_limits.extend(value_limits);
        touched.sessions.extend(sessions);
        touched.values.extend(tally.values.into_iter().map(|(key, value, counts)| ((key, value), counts)));
        touched.signatures.extend(tally.signatures);
        // The caller was told that this token is never accepted. The next startup must know it, whatever its clock
        // says.
        self.refused_by_clock |= applied.reply == Err(Refusal::TokenExpired);
        let newer = self.moment.is_none_or(|last| last.step.now <= moment.step.now);
        if newer {
            self.moment = Some(moment);
        }
    }

    /// The staged body of a message, if a command of the group brought one.
    pub fn body(&self, shard: ShardId, sequence: u64) -> Option<&[u8]> {
        let touched = self.shards.get(&shard)?;
        touched.changed_bodies.get(&sequence).or_else(|| touched.bodies.get(&sequence)).map(Vec::as_slice)
    }

    /// Records that the rows of an outbox leave up to a position.
    pub fn forget_outbox(&mut self, shard: ShardId, through: RowPosition) {
        self.forgotten.push((shard, through));
    }

    /// Estimated bytes of the bodies in the journal.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The shards whose views may have changed.
    pub fn shards(&self) -> impl Iterator<Item = ShardId> {
        self.shards.keys().copied()
    }

    /// Takes the running messages whose cancellation was requested.
    pub fn take_cancels(&mut self) -> Vec<(ShardId, MessageKey)> {
        std::mem::take(&mut self.cancels)
    }

    /// Writes all changes to the batch of a commit. Returns whether there were any.
    pub fn write(self, table: &mut ShardTable, spaces: &QueueKeyspaces, batch: &mut CommitBatch) -> bool {
        let Self { shards, moment, forgotten, .. } = self;
        let mut any = self.refused_by_clock;
        for (shard, through) in forgotten {
            for gone in table.outboxes.take_through(shard, through) {
                batch.remove(&spaces.outbox, key::of_outbox(shard, gone.last, gone.first));
                any = true;
            }
        }
        if any {
            // Removals disappear from disk in time, which must not make the newest row of the keyspace older.
            batch.put(&spaces.outbox, TIDIED, &b""[..]);
        }
        let now = moment.map(|moment| moment.step.now);
        for (shard, touched) in shards {
            any |= touched.write(shard, now, table, spaces, batch);
        }
        if let (true, Some(moment)) = (any, moment) {
            batch.put(&spaces.shards, key::CLOCK, moment.to_bytes());
        }
        any
    }
}

impl StagedShardChanges {
    fn write(
        mut self,
        shard: ShardId,
        now: Option<Timestamp>,
        table: &mut ShardTable,
        spaces: &QueueKeyspaces,
        batch: &mut CommitBatch,
    ) -> bool {
        let Some(kept) = table.shards.get_mut(&shard) else { return false };
        let mut any = kept.write_header(shard, spaces, batch);
        any |= !self.value_limits.is_empty();
        for (value, limit) in &self.value_limits {
            let key = key::of_value_limit(shard, value);
            match limit {
                Some(limit) => batch.put(&spaces.shards, key, limit.to_be_bytes()),
                None => batch.remove(&spaces.shards, key),
            }
        }
        any |= !self.sessions.is_empty();
        for (id, session) in &self.sessions {
            let key = key::of_session(shard, *id);
            match session {
                Some(session) => batch.put(&spaces.shards, key, encode_session(session)),
                None => batch.remove(&spaces.shards, key),
            }
        }
        self.write_counts(shard, spaces, batch);
        if self.sequences.is_empty() {
            return any;
        }
        self.sequences.sort_unstable();
        self.sequences.dedup();
        self.write_messages(shard, kept, spaces, batch);
        let pages = self.changed_pages(&kept.shard);
        let LoadedShard { shard: core, dirty_pages, header, .. } = kept;
        if dirty_pages.write((shard, core), &pages, now.unwrap_or(header.clock), spaces, batch) {
            batch.put(&spaces.stubs, TIDIED, &b""[..]);
        }
        for (keyspace, kept) in self.answers {
            batch.put(&keyspace, key::of_answer(shard, kept.id, kept.time), encode_answer(&kept));
        }
        write_outbox(shard, &self.rows, table, spaces, batch);
        true
    }

    /// Writes counts that are not in the header. They change only with rows.
    fn write_counts(&self, shard: ShardId, spaces: &QueueKeyspaces, batch: &mut CommitBatch) {
        for ((metadata_key, value), counts) in &self.values {
            let key = key::of_value_counts(shard, metadata_key, value);
            match counts {
                Some(counts) => batch.put(&spaces.shards, key, encode_value_counts(counts)),
                None => batch.remove(&spaces.shards, key),
            }
        }
        for (signature, counts) in &self.signatures {
            let key = key::of_signature_counts(shard, signature);
            batch.put(&spaces.shards, key, encode_signature_counts(counts));
        }
    }

    fn write_messages(&self, shard: ShardId, kept: &LoadedShard, spaces: &QueueKeyspaces, batch: &mut CommitBatch) {
        let mut removed_from: [(&Keyspace, bool); 3] =
            [(&spaces.heads, false), (&spaces.over, false), (&spaces.bodies, false)];
        let [heads, over, bodies] = &mut removed_from;
        for sequence in &self.sequences {
            let (place, place_over) = (key::of_message(shard, *sequence), key::of_over(shard, *sequence));
            let (has_ended, was_over) = (self.ended.contains(sequence), self.were_over.contains(sequence));
            let found = kept.shard.message(*sequence);
            let is_over = found.is_some_and(|head| head.state.is_terminal());
            if let Some(head) = found {
                let row = encode_message(head);
                match is_over {
                    true => batch.put(&spaces.over, place_over, row),
                    false => batch.put(&spaces.heads, place, row),
                }
                if let Some(body) = self.changed_bodies.get(sequence).or_else(|| self.bodies.get(sequence)) {
                    batch.put(&spaces.bodies, place, body.as_slice());
                }
            }
            // A message that was created in this group has no row yet.
            let was_stored = !self.bodies.contains_key(sequence);
            if was_stored && has_ended && (is_over || found.is_none()) {
                batch.remove(&spaces.heads, place);
                heads.1 = true;
            }
            if was_over && !is_over {
                batch.remove(&spaces.over, place_over);
                over.1 = true;
            }
            if was_stored && found.is_none() {
                batch.remove(&spaces.bodies, place);
                bodies.1 = true;
            }
        }
        for (keyspace, _) in removed_from.into_iter().filter(|(_, removed)| *removed) {
            // Compaction eventually discards removals. This row keeps the newest row of the keyspace from getting older
            // then.
            batch.put(keyspace, TIDIED, &b""[..]);
        }
    }

    /// The pages whose messages that are over have changed.
    fn changed_pages(&self, shard: &Shard) -> BTreeMap<u64, PageChange> {
        let is_over = |sequence: &&u64| shard.message(**sequence).is_some_and(|head| head.state.is_terminal());
        let shortened = self.shortened.iter().filter(is_over);
        let left = self.were_over.iter().chain(shortened).map(|sequence| (sequence, PageChange::Left));
        let ended = self.ended.iter().map(|sequence| (sequence, PageChange::Ended));
        left.chain(ended).map(|(sequence, change)| (Shard::page_of(*sequence), change)).collect()
    }
}

/// Writes the rows of a commit to the outbox, and removes entries of the largest outbox while all are too large.
fn write_outbox(
    shard: ShardId,
    rows: &[HistoryRow],
    table: &mut ShardTable,
    spaces: &QueueKeyspaces,
    batch: &mut CommitBatch,
) {
    let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return };
    let (first, last) = (first.position(), last.position());
    let (key, value) = (key::of_outbox(shard, last, first.position), encode_rows(rows));
    let bytes = u32::try_from(key.len() + value.len()).unwrap_or(u32::MAX);
    batch.put(&spaces.outbox, key, value);
    for (of, gone) in table.outboxes.add(shard, OutboxEntry { first: first.position, last, bytes }) {
        batch.remove(&spaces.outbox, key::of_outbox(of, gone.last, gone.first));
    }
}

impl LoadedShard {
    /// Writes header and settings if they differ from those written last. Returns whether it wrote anything.
    pub fn write_header(&mut self, shard: ShardId, spaces: &QueueKeyspaces, batch: &mut CommitBatch) -> bool {
        let header = self.shard.header();
        let mut any = false;
        if header != self.header {
            batch.put(&spaces.shards, key::of_header(shard), encode_header(&header));
            self.header = header;
            any = true;
        }
        // A higher version is stored even with equal settings: none below it may be applied after a restart.
        if self.shard.settings_version() != self.settings_version {
            self.settings_version = self.shard.settings_version();
            let row = encode_settings(self.shard.settings(), self.settings_version);
            batch.put(&spaces.shards, key::of_settings(shard), row);
            any = true;
        }
        any
    }
}

/// The listeners that receive the views of shards after each commit.
#[derive(Default)]
pub struct ListenerSet {
    listeners: Vec<Arc<dyn QueueListener>>,
}

impl ListenerSet {
    /// Adds listeners and sends each all views first.
    pub fn add(&mut self, new: Vec<Arc<dyn QueueListener>>, table: &ShardTable) {
        for listener in new {
            table.shards.iter().for_each(|(shard, kept)| listener.changed(*shard, kept.view));
            self.listeners.push(listener);
        }
    }

    /// Sends the views of shards to all listeners.
    pub fn notify(&self, table: &ShardTable, shards: impl Iterator<Item = ShardId>) {
        for shard in shards {
            if let Some(kept) = table.shards.get(&shard) {
                self.listeners.iter().for_each(|listener| listener.changed(shard, kept.view));
            }
        }
    }

    /// Tells all listeners which running messages should be canceled.
    pub fn notify_cancels(&self, cancels: &[(ShardId, MessageKey)]) {
        for (shard, key) in cancels {
            self.listeners.iter().for_each(|listener| listener.cancel_requested(*shard, *key));
        }
    }
}
