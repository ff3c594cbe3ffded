//! Changes that a commit group makes to shards. They are collected so that each part is written once, however often it
//! changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use fjall::Keyspace;

use super::key;
use super::keyspaces::QueueKeyspaces;
use super::outboxes::OutboxEntry;
use super::shard_table::{LoadedShard, ShardTable};
use super::store_time::Moment;
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
use tallystone_domain::queue::{ApplyResult, HistoryRow, Refusal, ShardId};
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
    /// That of a new message, by its sequence.
    New(u64, Vec<u8>),
    /// That of a message whose payload was replaced.
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
    answers: Vec<(Keyspace, DedupeRecord)>,
    value_limits: BTreeMap<RoutingValue, Option<u32>>,
    sessions: BTreeMap<SessionId, Option<SessionRecord>>,
}

impl StagedShards {
    /// Records the result of a command and takes over its changes. `answers` is the keyspace for the answer to an enqueue.
    pub fn note(
        &mut self,
        shard: ShardId,
        moment: Moment,
        (applied, rows): (&mut ApplyResult, Vec<HistoryRow>),
        body: Option<StagedBody>,
        answers: Option<Keyspace>,
    ) {
        let cancels = applied.transitions.iter().filter(|row| row.requests_cancel());
        self.cancels.extend(cancels.map(|row| (shard, row.key)));
        let touched = self.shards.entry(shard).or_default();
        touched.sequences.extend(applied.changed_sequences());
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
        let ShardChanges { answers: kept, value_limits, sessions, tally, settings: _, heads: _ } =
            std::mem::take(&mut applied.changes);
        if let Some(keyspace) = answers {
            touched.answers.extend(kept.into_iter().map(|kept| (keyspace.clone(), kept)));
        }
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
        for (shard, touched) in shards {
            any |= touched.write(shard, table, spaces, batch);
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
        for (keyspace, kept) in self.answers {
            batch.put(&keyspace, key::of_answer(shard, &kept.token, kept.time), encode_answer(&kept.answer));
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
        let mut removed = false;
        for sequence in &self.sequences {
            let place = key::of_message(shard, *sequence);
            match kept.shard.message(*sequence) {
                Some(head) => {
                    batch.put(&spaces.heads, place, encode_message(head));
                    if let Some(body) = self.changed_bodies.get(sequence).or_else(|| self.bodies.get(sequence)) {
                        batch.put(&spaces.bodies, place, body.as_slice());
                    }
                }
                // The message was created and removed in this group.
                None if self.bodies.contains_key(sequence) => {}
                None => {
                    batch.remove(&spaces.heads, place);
                    batch.remove(&spaces.bodies, place);
                    removed = true;
                }
            }
        }
        if removed {
            // Compaction eventually discards removals. This row keeps the newest row of the keyspace from getting older
            // then.
            batch.put(&spaces.heads, TIDIED, &b""[..]);
            batch.put(&spaces.bodies, TIDIED, &b""[..]);
        }
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
