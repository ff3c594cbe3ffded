//! The queue store in ordered maps: the core of `domain::queue` and the message bodies, under one lock.
//!
//! Invariant: a body exists exactly as long as its message, because both change in one critical section.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;

use super::outboxes::MemoryOutboxes;
use tallystone_domain::limits::{COUNTED_VALUES_MAX, OUTBOX_PAGE_ROWS_MAX};
use tallystone_domain::queue::clock::{ShardClock, StepTime};
use tallystone_domain::queue::command::Refusal;
use tallystone_domain::queue::filter::Filter;
use tallystone_domain::queue::messages::message::{MessageKey, MessageRef, SessionId};
use tallystone_domain::queue::name::{QueueId, ShardId};
use tallystone_domain::queue::session_records::SessionRecord;
use tallystone_domain::queue::shard::explain::{Cause, DequeuePreview};
use tallystone_domain::queue::transition::{HistoryRow, RowPosition};
use tallystone_domain::queue::{Command, Durability, MessageHead, MessageState, Reply, Shard, ShardSettings};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{
    Clock, CreatedQueue, FilteredDepth, MessageBody, MessagesAt, OutboxPage, OutboxUsage, QueueListener, QueueTime,
    ShardAnswer, ShardCommand, ShardGlance, ShardOutbox, ShardReader, ShardReport, ShardStatus, ShardStore,
    ShardTotals, StoreError, StoreErrorKind, StoredMessage,
};

/// The epoch of every shard. Nothing here goes back in time, so the epoch never rises.
const EPOCH: u32 = 1;

/// Queues that live as long as the process.
pub struct MemoryQueues {
    clock: Arc<dyn Clock>,
    state: Mutex<MemoryQueuesState>,
    listeners: Mutex<Vec<Arc<dyn QueueListener>>>,
}

#[derive(Default)]
struct MemoryQueuesState {
    shards: BTreeMap<ShardId, MemoryShard>,
    /// Existing queues.
    queues: BTreeMap<QueueId, CreatedQueue>,
    dropped: BTreeSet<QueueId>,
    /// Clock of the shards; `None` until the first step.
    shard_clock: Option<ShardClock>,
    /// Times of the last step.
    step: Option<StepTime>,
    /// The number of values with counts of their own in all shards.
    counted_values: usize,
    outboxes: MemoryOutboxes,
}

struct MemoryShard {
    shard: Shard,
    /// By sequence of the message.
    bodies: BTreeMap<u64, MessageBody>,
    view: ShardStatus,
}

impl MemoryQueues {
    /// Creates an empty store whose time starts at that of the clock.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, state: Mutex::default(), listeners: Mutex::default() }
    }

    fn notify(&self, news: &[(ShardId, ShardStatus)]) {
        let listeners = self.listeners.lock().clone();
        for listener in listeners {
            news.iter().for_each(|(shard, view)| listener.changed(*shard, *view));
        }
    }

    /// Passes on which running messages should be canceled.
    fn notify_cancels(&self, shard: ShardId, answers: &[ShardAnswer]) {
        let rows = answers.iter().flat_map(|answer| &answer.transitions).filter(|row| row.requests_cancel());
        let keys: Vec<MessageKey> = rows.map(|row| row.key).collect();
        if keys.is_empty() {
            return;
        }
        let listeners = self.listeners.lock().clone();
        for listener in listeners {
            keys.iter().for_each(|key| listener.cancel_requested(shard, *key));
        }
    }

    /// Reads a shard at the store's time.
    fn read<T>(&self, shard: ShardId, read: impl FnOnce(&MemoryShard, Timestamp) -> T) -> Result<T, StoreError> {
        let mut state = self.state.lock();
        let at = state.tick(self.clock.as_ref()).now;
        state.shards.get(&shard).map(|kept| read(kept, at)).ok_or_else(|| no_such_shard("read queue"))
    }
}

fn no_such_shard(op: &'static str) -> StoreError {
    StoreError::not_applied(StoreErrorKind::Conflict, op).with_source("there is no such queue")
}

impl MemoryQueuesState {
    fn tick(&mut self, clock: &dyn Clock) -> StepTime {
        let (wall, elapsed) = (clock.now(), clock.elapsed());
        let step = self.shard_clock.get_or_insert(ShardClock { time: wall, elapsed }).advance(wall, elapsed);
        let step = step.clamped_after(self.step.unwrap_or(step));
        self.step = Some(step);
        step
    }

    /// Latest time before which some shard refuses tokens, whatever the current time.
    fn refused_before(&self) -> Option<Timestamp> {
        self.shards.values().filter_map(|kept| kept.shard.tokens_refused_before()).max()
    }

    /// Applies a command to an existing shard.
    fn apply(&mut self, shard: ShardId, sent: ShardCommand, step: StepTime) -> ShardAnswer {
        let taken = match &sent.command {
            Command::Enqueue(message) => {
                let mut others = self.shards.range(ShardId::all_of(shard.queue)).filter(|(id, _)| **id != shard);
                others.any(|(_, other)| other.shard.has_enqueued(message))
            }
            _ => false, // only enqueues have ids to deduplicate
        };
        let kept = self.shards.get_mut(&shard).expect("the caller checks that the shard exists");
        if taken {
            return ShardAnswer::refused(Refusal::TokenReused, step.now, kept.view);
        }
        kept.shard.set_values_full(self.counted_values >= COUNTED_VALUES_MAX);
        let before = kept.shard.tally().own_values();
        let (answer, rows) = kept.apply(sent, step);
        self.counted_values = self.counted_values + kept.shard.tally().own_values() - before;
        self.outboxes.add(shard, rows);
        answer
    }
}

impl MemoryShard {
    fn apply(&mut self, sent: ShardCommand, step: StepTime) -> (ShardAnswer, Vec<HistoryRow>) {
        let at = step.now;
        let is_enqueue = matches!(sent.command, Command::Enqueue(_));
        let brings_payload = sent.brings_payload();
        let applied = self.shard.apply(sent.command, step);
        let rows = self.shard.history_rows(&applied.transitions, sent.body.kind.as_deref());
        if let Ok(Reply::Enqueued { key, already_enqueued: false, .. }) = &applied.reply
            && is_enqueue
        {
            self.bodies.insert(key.sequence, sent.body);
        } else if let Some(updated) = applied.updated_message().filter(|_| brings_payload)
            && let Some(body) = self.bodies.get_mut(&updated)
        {
            body.payload = sent.body.payload;
        }
        if matches!(applied.reply, Ok(Reply::Deleted { .. })) {
            self.bodies.clear();
        }
        for gone in applied.transitions.iter().filter(|row| row.to.is_none()) {
            self.bodies.remove(&gone.key.sequence);
        }
        let messages = match &applied.reply {
            Ok(Reply::Leases { leases, .. }) => leases.iter().filter_map(|lease| self.find(lease.token.key)).collect(),
            Ok(_) | Err(_) => Vec::new(),
        };
        self.view = ShardStatus {
            step: self.view.step + 1,
            messages: self.shard.totals().messages(),
            arrived: self.shard.tally().counts().arrivals(),
            head: self.shard.head(),
            head_arrived: self.shard.head_arrived(),
            ready_for: self.shard.ready_for(at),
            blocked: self.shard.dequeue_blocked().is_some(),
            settings_version: self.shard.settings_version(),
            next_event_in: self.shard.next_event_in(at),
            only_retention: false,
            memory_bytes: 0,
        };
        let (reply, transitions, walked) = (applied.reply, applied.transitions, applied.walked);
        (ShardAnswer { reply, messages, transitions, walked, at, view: self.view }, rows)
    }

    fn find(&self, key: MessageKey) -> Option<StoredMessage> {
        self.shard.get(&MessageRef::Key(key)).map(|head| self.stored(head))
    }

    fn stored(&self, head: &MessageHead) -> StoredMessage {
        let body = self.bodies.get(&head.key.sequence).cloned();
        StoredMessage { head: head.clone(), body: body.expect("a message has its body as long as it exists") }
    }
}

#[async_trait]
impl ShardStore for MemoryQueues {
    fn durability(&self) -> Option<Durability> {
        None
    }

    async fn create(&self, queue: QueueId, shards: u32, settings: ShardSettings) -> Result<(), StoreError> {
        let mut news = Vec::new();
        {
            let mut state = self.state.lock();
            if state.queues.contains_key(&queue) {
                return Ok(());
            }
            let refuse = |why: &str| StoreError::not_applied(StoreErrorKind::Conflict, "create queue").with_source(why);
            if state.dropped.contains(&queue) {
                return Err(refuse("a queue of this number was dropped"));
            }
            for number in 0..shards {
                let shard = Shard::new(number, EPOCH, settings.clone());
                let shard = shard.map_err(|_invalid| refuse("the settings are not valid"))?;
                let kept = MemoryShard { shard, bodies: BTreeMap::new(), view: ShardStatus::default() };
                news.push((ShardId { queue, number }, kept));
            }
            let views = news.iter().map(|(shard, kept)| (*shard, kept.view)).collect::<Vec<_>>();
            state.shards.extend(news);
            let created = state.tick(self.clock.as_ref()).now;
            state.queues.insert(queue, CreatedQueue { id: queue, shards, created });
            drop(state);
            self.notify(&views);
        }
        Ok(())
    }

    async fn drop_queue(&self, queue: QueueId) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        if state.queues.remove(&queue).is_some() {
            state.dropped.insert(queue);
            let values = state.shards.range(ShardId::all_of(queue)).map(|(_, kept)| kept.shard.tally().own_values());
            state.counted_values -= values.sum::<usize>();
            state.shards.retain(|shard, _| shard.queue != queue);
        }
        Ok(())
    }

    async fn queues(&self) -> Result<Vec<CreatedQueue>, StoreError> {
        Ok(self.state.lock().queues.values().copied().collect())
    }

    async fn apply(&self, shard: ShardId, commands: Vec<ShardCommand>) -> Vec<Result<ShardAnswer, StoreError>> {
        let mut state = self.state.lock();
        let at = state.tick(self.clock.as_ref());
        if !state.shards.contains_key(&shard) {
            return commands.iter().map(|_| Err(no_such_shard("apply to queue"))).collect();
        }
        let mut answers: Vec<ShardAnswer> =
            commands.into_iter().map(|command| state.apply(shard, command, at)).collect();
        let view = state.shards[&shard].view;
        answers.iter_mut().for_each(|answer| answer.view = view);
        drop(state);
        self.notify(&[(shard, view)]);
        self.notify_cancels(shard, &answers);
        answers.into_iter().map(Ok).collect()
    }

    fn listen(&self, listener: Arc<dyn QueueListener>) {
        // Under both locks, so that no update is lost between the first views and later ones.
        let state = self.state.lock();
        self.listeners.lock().push(Arc::clone(&listener));
        state.shards.iter().for_each(|(shard, kept)| listener.changed(*shard, kept.view));
    }
}

#[async_trait]
impl ShardReader for MemoryQueues {
    async fn get(&self, shard: ShardId, message: MessageRef) -> Result<Option<(StoredMessage, Timestamp)>, StoreError> {
        self.read(shard, |kept, at| {
            kept.shard.get(&message).map(|head| (kept.stored(&kept.shard.with_effective_expiry(head)), at))
        })
    }

    async fn peek(&self, shard: ShardId, limit: usize) -> Result<MessagesAt, StoreError> {
        self.read(shard, |kept, at| {
            let messages = kept.shard.peek().take(limit).map(|head| kept.stored(head)).collect();
            MessagesAt { messages, at }
        })
    }

    async fn list(
        &self,
        shard: ShardId,
        state: MessageState,
        after: u64,
        limit: usize,
    ) -> Result<MessagesAt, StoreError> {
        self.read(shard, |kept, at| {
            let messages = kept.shard.list(state, after).take(limit);
            let messages = messages.map(|head| kept.stored(&kept.shard.with_effective_expiry(head))).collect();
            MessagesAt { messages, at }
        })
    }

    async fn totals(&self, shard: ShardId) -> Result<ShardTotals, StoreError> {
        self.read(shard, |kept, _| ShardTotals {
            totals: *kept.shard.totals(),
            sequence: kept.shard.sequence(),
            view: kept.view,
        })
    }

    async fn depth(&self, shard: ShardId, filter: Filter) -> Result<FilteredDepth, StoreError> {
        self.read(shard, |kept, _| kept.shard.depth(&filter))
    }

    async fn sessions(&self, shard: ShardId) -> Result<Vec<(SessionId, SessionRecord)>, StoreError> {
        self.read(shard, |kept, _| kept.shard.sessions().map(|(id, session)| (id, session.clone())).collect())
    }

    async fn leases_of(&self, shard: ShardId, sessions: Vec<SessionId>) -> Result<Vec<usize>, StoreError> {
        self.read(shard, |kept, _| kept.shard.lease_counts(&sessions))
    }

    async fn explain(&self, shard: ShardId, message: MessageRef) -> Result<(Vec<Cause>, Timestamp), StoreError> {
        self.read(shard, |kept, at| (kept.shard.explain(&message, at), at))
    }

    async fn preview_dequeue(&self, shard: ShardId, filter: Filter) -> Result<(DequeuePreview, Timestamp), StoreError> {
        self.read(shard, |kept, at| (kept.shard.preview_dequeue(&filter, at), at))
    }
}

#[async_trait]
impl ShardOutbox for MemoryQueues {
    async fn report(&self, shard: ShardId, since: Option<u64>) -> Result<ShardReport, StoreError> {
        self.read(shard, |kept, at| ShardReport::of(&kept.shard, since, at))
    }

    async fn glance(&self, shard: ShardId, known: Option<RowPosition>) -> Result<Option<ShardGlance>, StoreError> {
        self.read(shard, |kept, _| ShardGlance::of(&kept.shard, kept.view, known))
    }

    async fn outbox(&self, shard: ShardId, after: RowPosition, limit: usize) -> Result<OutboxPage, StoreError> {
        let mut state = self.state.lock();
        let at = state.tick(self.clock.as_ref()).now;
        let limit = limit.min(OUTBOX_PAGE_ROWS_MAX);
        let rows = state.outboxes.read(shard, after, limit);
        let newest = state.shards.get(&shard).map(|kept| kept.shard.position());
        let last = rows.last().map(HistoryRow::position);
        // A full page may not be all. A dropped shard has no rows but those of its outbox.
        let through = if rows.len() < limit { newest.or(last) } else { last };
        Ok(OutboxPage { through: through.unwrap_or(after), rows, at })
    }

    async fn forget_outbox(&self, shard: ShardId, through: RowPosition) -> Result<(), StoreError> {
        self.state.lock().outboxes.forget(shard, through);
        Ok(())
    }

    async fn outboxes(&self) -> Result<Vec<ShardId>, StoreError> {
        Ok(self.state.lock().outboxes.shards())
    }

    fn outbox_usage(&self) -> OutboxUsage {
        self.state.lock().outboxes.usage()
    }
}

#[async_trait]
impl QueueTime for MemoryQueues {
    async fn clock(&self) -> Result<StepTime, StoreError> {
        Ok(self.state.lock().tick(self.clock.as_ref()))
    }

    async fn reset_clock(&self) -> Result<Option<Timestamp>, StoreError> {
        let mut state = self.state.lock();
        let step = state.tick(self.clock.as_ref());
        let Some(reset) = step.reset(self.clock.now(), state.refused_before()) else { return Ok(None) };
        state.step = Some(reset);
        let from = reset.accepts_tokens_from();
        state.shards.values_mut().for_each(|kept| kept.shard.accept_tokens_from(from));
        Ok(Some(from))
    }
}
