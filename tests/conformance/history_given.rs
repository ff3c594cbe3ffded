//! What the laws of the history are tried on: rows of messages by name, and a list of all of them that is searched plainly.

use std::sync::Arc;

use tallystone_domain::history::{HistoryCursor, HistoryGap, HistoryHit, HistoryTerm};
use tallystone_domain::queue::messages::message::{AttemptError, Fence, MessageKey, Metadata, SessionId};
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::queue::transition::{EnqueuedMessage, HistoryRow, RowPosition, Transition, TransitionDetail};
use tallystone_domain::queue::{MessageState, QueueId, ShardId, Trigger};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{HistoryBatch, HistoryStore, QueueShards};

use crate::backends::{Bench, on_every_backend};
use crate::given::at;

/// The queue of most laws.
pub const QUEUE: QueueId = QueueId(7);
/// A queue whose number has the same first bytes.
pub const OTHER_QUEUE: QueueId = QueueId(8);
/// The shards of either queue.
pub const SHARDS: u32 = 3;
/// The whole queue.
pub const WHOLE: QueueShards = QueueShards { queue: QUEUE, shards: SHARDS };
/// The whole other queue.
pub const OTHER_WHOLE: QueueShards = QueueShards { queue: OTHER_QUEUE, shards: SHARDS };

/// Runs a law on a fresh bench of every backend that keeps a history.
pub async fn on_every_history(law: impl AsyncFn(&dyn HistoryStore)) {
    on_every_backend(async |bench| {
        if let Some(history) = bench.history.clone() {
            law(&*history).await;
        }
    })
    .await;
}

/// The history of a bench that keeps one.
pub fn history_of(bench: &Bench) -> Option<Arc<dyn HistoryStore>> {
    bench.history.clone()
}

/// A shard of `QUEUE`.
pub fn shard(number: u32) -> ShardId {
    ShardId { queue: QUEUE, number }
}

/// A position of the first epoch.
pub fn position(position: u64) -> RowPosition {
    RowPosition { epoch: 1, position }
}

/// A message of a shard.
pub fn message(shard: u32, sequence: u64) -> MessageKey {
    MessageKey { shard, epoch: 1, sequence }
}

/// A valid id.
pub fn id(id: &str) -> MessageId {
    MessageId::new(id).expect("a valid id")
}

/// A row between two states, so many milliseconds from `T0`.
pub fn row(
    key: MessageKey,
    position: RowPosition,
    millis: i64,
    trigger: Trigger,
    states: (Option<MessageState>, Option<MessageState>),
) -> HistoryRow {
    let (from, to) = states;
    let detail = TransitionDetail { position, attempt: 1, ..TransitionDetail::default() };
    let transition = Transition { key, version: position.position, trigger, from, to, at: at(millis), detail };
    HistoryRow { transition, enqueued: None }
}

/// The enqueue of a message that is pending at once, with a value of the counted key `tenant` and one of another key.
pub fn enqueued(key: MessageKey, position: RowPosition, millis: i64, id: &str, tenant: &str) -> HistoryRow {
    let states = (None, Some(MessageState::Pending));
    let metadata = Metadata::new([("tenant", tenant), ("region", "eu")]).expect("valid pairs");
    let message = EnqueuedMessage {
        id: self::id(id),
        metadata,
        kind: Some("invoice".into()),
        priority: -3,
        payload_bytes: 12,
        counted_keys: vec!["absent".into(), "tenant".into()],
    };
    HistoryRow { enqueued: Some(Box::new(message)), ..row(key, position, millis, Trigger::Enqueue, states) }
}

/// The row that leases a pending message.
pub fn leased(key: MessageKey, position: RowPosition, millis: i64) -> HistoryRow {
    let states = (Some(MessageState::Pending), Some(MessageState::Running));
    let mut row = row(key, position, millis, Trigger::Dequeue, states);
    row.transition.detail.fence = Some(Fence { epoch: position.epoch, serial: position.position });
    row.transition.detail.session = Some(SessionId(u128::from(position.position) << 70));
    row.transition.detail.worker = Some("worker/1".into());
    row
}

/// The row that extends the lease of a running message. It has no terms.
pub fn extended(key: MessageKey, position: RowPosition, millis: i64) -> HistoryRow {
    row(key, position, millis, Trigger::Extend, (Some(MessageState::Running), Some(MessageState::Running)))
}

/// The row in which a running message fails for good.
pub fn failed(key: MessageKey, position: RowPosition, millis: i64, signature: &str) -> HistoryRow {
    let states = (Some(MessageState::Running), Some(MessageState::Errored));
    let mut row = row(key, position, millis, Trigger::Fail, states);
    let error = AttemptError { signature: signature.into(), text: "the text of the error".into() };
    row.transition.detail.error = Some(Box::new(error));
    row
}

/// A cursor at a position.
pub fn cursor(position: RowPosition) -> HistoryCursor {
    HistoryCursor { position, register: format!("register {position:?}").into_bytes().into() }
}

/// The rows of a shard with the cursor at the last of them.
pub fn batch(shard: ShardId, rows: Vec<HistoryRow>) -> HistoryBatch {
    let cursor = cursor(rows.last().map_or(RowPosition::default(), HistoryRow::position));
    HistoryBatch { shard, rows, gaps: Vec::new(), cursor }
}

/// Appends batches.
pub async fn append(history: &dyn HistoryStore, batches: Vec<HistoryBatch>) {
    history.append(batches).await.expect("an append");
}

/// Every row of a message.
pub async fn whole_trace(history: &dyn HistoryStore, queue: QueueId, message: MessageKey) -> Vec<HistoryRow> {
    history.trace(queue, message, None, usize::MAX).await.expect("a trace")
}

/// Every row with a term.
pub async fn find_all(history: &dyn HistoryStore, queue: QueueShards, term: &HistoryTerm) -> Vec<HistoryHit> {
    history.find(queue, term, None, usize::MAX).await.expect("a search")
}

/// All that was appended, in no order; every read looks at all of it.
#[derive(Clone, Default)]
pub struct PlainHistory {
    rows: Vec<(ShardId, HistoryRow)>,
    gaps: Vec<(ShardId, HistoryGap)>,
    cursors: Vec<(ShardId, HistoryCursor)>,
}

impl PlainHistory {
    pub fn append(&mut self, batches: &[HistoryBatch]) {
        for HistoryBatch { shard, rows, gaps, cursor } in batches {
            for row in rows {
                if !self.rows.iter().any(|(of, known)| of == shard && known.position() == row.position()) {
                    self.rows.push((*shard, row.clone()));
                }
            }
            let new = gaps.iter().filter(|gap| !self.gaps.contains(&(*shard, **gap)));
            let new: Vec<_> = new.map(|gap| (*shard, *gap)).collect();
            self.gaps.extend(new);
            self.cursors.push((*shard, cursor.clone()));
        }
    }

    /// The messages of a queue.
    pub fn messages(&self, queue: QueueId) -> Vec<MessageKey> {
        let of = self.rows.iter().filter(|(shard, _)| shard.queue == queue);
        let mut messages: Vec<MessageKey> = of.map(|(_, row)| row.transition.key).collect();
        messages.sort_unstable();
        messages.dedup();
        messages
    }

    /// The terms of the rows of all queues.
    pub fn terms(&self) -> Vec<HistoryTerm> {
        let mut terms: Vec<HistoryTerm> = self.rows.iter().flat_map(|(_, row)| HistoryTerm::of(row)).collect();
        terms.sort_unstable();
        terms.dedup();
        terms
    }

    pub fn cursor(&self, shard: ShardId) -> Option<HistoryCursor> {
        let of = self.cursors.iter().filter(|(other, _)| *other == shard);
        of.map(|(_, cursor)| cursor.clone()).max_by_key(|cursor| cursor.position)
    }

    pub fn trace(&self, queue: QueueId, message: MessageKey) -> Vec<HistoryRow> {
        let of = self.rows.iter().filter(|(shard, row)| shard.queue == queue && row.transition.key == message);
        let mut rows: Vec<HistoryRow> = of.map(|(_, row)| row.clone()).collect();
        rows.sort_unstable_by_key(HistoryRow::position);
        rows
    }

    pub fn lives(&self, queue: QueueId, id: &MessageId) -> Vec<MessageKey> {
        let is = |row: &HistoryRow| row.enqueued.as_ref().is_some_and(|message| message.id == *id);
        let of = self.rows.iter().filter(|(shard, row)| shard.queue == queue && is(row));
        let mut lives: Vec<(Timestamp, MessageKey)> =
            of.map(|(_, row)| (row.transition.at, row.transition.key)).collect();
        lives.sort_unstable();
        lives.into_iter().rev().map(|(_, message)| message).collect()
    }

    pub fn find(&self, queue: QueueId, term: &HistoryTerm) -> Vec<HistoryHit> {
        let of = self.rows.iter().filter(|(shard, row)| shard.queue == queue && HistoryTerm::of(row).contains(term));
        let found = |(shard, row): &(ShardId, HistoryRow)| HistoryHit {
            at: row.transition.at,
            shard: shard.number,
            position: row.position(),
            message: row.transition.key,
        };
        let mut rows: Vec<HistoryHit> = of.map(found).collect();
        rows.sort_unstable();
        rows.reverse();
        rows
    }

    pub fn gaps(&self, queue: QueueId) -> Vec<HistoryGap> {
        let of = self.gaps.iter().filter(|(shard, _)| shard.queue == queue);
        let mut gaps: Vec<HistoryGap> = of.map(|(_, gap)| *gap).collect();
        gaps.sort_unstable_by_key(|gap| std::cmp::Reverse(gap.to_time));
        gaps
    }
}
