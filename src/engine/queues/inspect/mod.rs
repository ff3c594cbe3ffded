//! Reads of queues: single messages, the next ones, pages, totals.
//!
//! A read first applies the due sweeps of the shard, so that it shows no expired window or lease.

pub(in crate::queues) mod activity;
pub(in crate::queues) mod cause_text;
pub(in crate::queues) mod dequeue_forecast;
pub(in crate::queues) mod explain;
pub(in crate::queues) mod history_source;
pub(in crate::queues) mod next_steps;
pub(in crate::queues) mod overview;
pub(in crate::queues) mod session_list;
pub(in crate::queues) mod watch;

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, stream};

use crate::caller_quota::CallerQuota;
use crate::queues::catalog::CatalogService;
use crate::queues::error::QueueError;
use crate::queues::inspect::activity::ActivityBoard;
use crate::queues::inspect::overview::OverviewCache;
use crate::queues::state::context::QueueContext;
use crate::queues::state::depth::Depth;
use crate::queues::state::served_queue::ServedQueue;
use crate::queues::state::shard_offers::place_of;
use tallystone_domain::Timestamp;
use tallystone_domain::limits::{
    CALLER_QUEUE_WATCHES_MAX, LIST_STEP_MESSAGES_MAX, PEEK_SHARDS_AT_ONCE_MAX, QUEUE_REPLY_BYTES_MAX, QUEUE_WATCHES_MAX,
};
use tallystone_domain::queue::command::Refusal;
use tallystone_domain::queue::filter::Filter;
use tallystone_domain::queue::messages::message::MessageRef;
use tallystone_domain::queue::{MessageState, QueueName};
use tallystone_ports::{MessagesAt, StoredMessage};

/// The worker that holds a message, as far as it is known: the alias and the label of its session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaseHolder {
    /// The alias of the session; the session id is the worker's secret.
    pub session: String,
    /// The label; empty if it has none, or was opened before the server started.
    pub label: Box<str>,
}

/// A message as it is shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MessageView {
    pub message: StoredMessage,
    /// The holder; none if the message is not leased, or is leased without a session.
    pub worker: Option<LeaseHolder>,
    /// The shard's time.
    pub at: Timestamp,
}

/// The position where the next page of a list begins.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ListCursor {
    pub shard: u32,
    /// The sequence to continue after.
    pub after: u64,
}

/// Whether listed messages include their payloads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payloads {
    With,
    Without,
}

impl QueueContext {
    fn found(&self, message: StoredMessage, at: Timestamp) -> MessageView {
        let session = message.head.lease.and_then(|lease| lease.worker_session());
        let worker =
            session.map(|own| LeaseHolder { session: self.session_alias(own.id), label: self.sessions.label(own.id) });
        MessageView { message, worker, at }
    }
}

/// Looks at queues: messages, totals, activity, and the reasons why a message is not served. Cheap to clone.
#[derive(Clone)]
pub struct InspectService {
    context: Arc<QueueContext>,
    catalog: Arc<CatalogService>,
    /// The last overview of all queues.
    overview_cache: Arc<OverviewCache>,
    /// The last activities of all queues.
    board: Arc<ActivityBoard>,
    /// The open watches of queues.
    watches: CallerQuota,
}

impl InspectService {
    pub(in crate::queues) fn new(context: Arc<QueueContext>, catalog: Arc<CatalogService>) -> Self {
        let watches = CallerQuota::new(QUEUE_WATCHES_MAX, CALLER_QUEUE_WATCHES_MAX);
        Self { context, catalog, overview_cache: Arc::default(), board: Arc::default(), watches }
    }

    /// Reads a message.
    pub async fn get_message(&self, name: &QueueName, message: MessageRef) -> Result<MessageView, QueueError> {
        let queue = self.catalog.queue(name).await?;
        let message = &message;
        self.catalog.call_on(queue, |queue| async move { self.message_of(&queue, message.clone()).await }).await
    }

    async fn message_of(&self, queue: &Arc<ServedQueue>, message: MessageRef) -> Result<MessageView, QueueError> {
        let shard = self.context.shard_of(queue, &message).await?;
        self.context.sweep_due_shards(queue, &[shard]).await?;
        let found = self.context.stores.reader.get(queue.shard(shard).id, message).await;
        let found = found.map_err(|error| self.context.translate_store_error(queue, error))?;
        found.map(|(message, at)| self.context.found(message, at)).ok_or(QueueError::Refused(Refusal::NotFound))
    }

    /// Returns the next messages in the order in which they would be served: best priority first, then by arrival. It
    /// reads a few shards at a time and keeps the best messages, so a queue of many shards takes no more memory than
    /// one of a few.
    pub async fn peek(&self, name: &QueueName, limit: usize) -> Result<Vec<MessageView>, QueueError> {
        let queue = self.catalog.queue(name).await?;
        self.catalog.call_on(queue, |queue| async move { self.peek_of(&queue, limit).await }).await
    }

    async fn peek_of(&self, queue: &Arc<ServedQueue>, limit: usize) -> Result<Vec<MessageView>, QueueError> {
        self.context.sweep_all_due_shards(queue).await?;
        let mut best: Vec<MessageView> = Vec::new();
        let reads = (0..queue.shards()).map(|number| self.context.stores.reader.peek(queue.shard(number).id, limit));
        let mut reads = stream::iter(reads).buffered(PEEK_SHARDS_AT_ONCE_MAX);
        while let Some(read) = reads.next().await {
            let MessagesAt { messages, at } = read.map_err(|error| self.context.translate_store_error(queue, error))?;
            best.extend(messages.into_iter().map(|message| self.context.found(message, at)));
            best.sort_by_key(|found| place_of(&found.message.head));
            best.truncate(limit);
        }
        Ok(best)
    }

    /// Lists messages of a state, shard by shard, with the start of the next page if there is more.
    pub async fn list_messages(
        &self,
        name: &QueueName,
        state: MessageState,
        from: ListCursor,
        limit: usize,
        payloads: Payloads,
    ) -> Result<(Vec<MessageView>, Option<ListCursor>), QueueError> {
        let queue = self.catalog.queue(name).await?;
        let list = |queue| async move { self.list_messages_of(&queue, state, from, limit, payloads).await };
        self.catalog.call_on(queue, list).await
    }

    async fn list_messages_of(
        &self,
        queue: &Arc<ServedQueue>,
        state: MessageState,
        from: ListCursor,
        limit: usize,
        payloads: Payloads,
    ) -> Result<(Vec<MessageView>, Option<ListCursor>), QueueError> {
        self.context.sweep_all_due_shards(queue).await?;
        let (mut page, mut bytes, mut cursor) = (Vec::new(), 0, from);
        while cursor.shard < queue.shards() {
            let id = queue.shard(cursor.shard).id;
            let wanted = (limit - page.len()).min(LIST_STEP_MESSAGES_MAX);
            let read = self.context.stores.reader.list(id, state, cursor.after, wanted).await;
            let MessagesAt { messages, at } = read.map_err(|error| self.context.translate_store_error(queue, error))?;
            let ended = messages.len() < wanted;
            for mut message in messages {
                if payloads == Payloads::Without {
                    message.body.payload = Bytes::new();
                }
                bytes += message.body.payload.len();
                cursor.after = message.head.key.sequence;
                page.push(self.context.found(message, at));
                if page.len() == limit || bytes >= QUEUE_REPLY_BYTES_MAX {
                    return Ok((page, Some(cursor)));
                }
            }
            if ended {
                cursor = ListCursor { shard: cursor.shard + 1, after: 0 };
            }
        }
        Ok((page, None))
    }

    /// Counts the messages of a queue, from the totals of the store.
    pub async fn depth(&self, name: &QueueName, filter: Filter) -> Result<Depth, QueueError> {
        let queue = self.catalog.queue(name).await?;
        let filter = &filter;
        let depth = |queue| async move {
            match filter.is_empty() {
                true => self.context.depth_of(&queue).await,
                false => self.context.filtered_depth(&queue, filter.clone()).await,
            }
        };
        self.catalog.call_on(queue, depth).await
    }
}
