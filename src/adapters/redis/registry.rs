//! The queues that were ever created, by their ids: how many shards each has, when it was created, and whether it was dropped.
//!
//! An id is never used again, so the entry of a dropped queue stays. It also says where its outboxes are.

use bytes::Bytes;

use super::calls::RedisQueues;
use super::keys::QUEUES;
use super::wire::{WireCommand, WireReply};
use crate::adapters::codec::CorruptValue;
use crate::domain::queue::name::QueueId;
use crate::domain::time::Timestamp;
use crate::ports::StoreError;

/// Before the number of shards of a queue that was dropped.
const DROPPED: &str = "dropped ";

/// What is known of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegisteredQueue {
    pub shards: u32,
    /// The store's time of its creation.
    pub created: Timestamp,
    pub is_dropped: bool,
}

impl RegisteredQueue {
    fn text(self) -> String {
        let mark = if self.is_dropped { DROPPED } else { "" };
        format!("{mark}{} {}", self.shards, self.created.micros())
    }

    fn of(bytes: &Bytes) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let dropped = text.strip_prefix(DROPPED);
        let (shards, created) = dropped.unwrap_or(text).split_once(' ')?;
        let created = Timestamp::from_micros(created.parse().ok()?);
        Some(Self { shards: shards.parse().ok()?, created, is_dropped: dropped.is_some() })
    }
}

fn corrupt(why: &str, op: &'static str) -> StoreError {
    CorruptValue::new("queues", why).into_store_error(op)
}

impl RedisQueues {
    /// One command on the entries.
    async fn on_registry(
        &self,
        name: &'static str,
        arguments: Vec<Vec<u8>>,
        op: &'static str,
    ) -> Result<WireReply, StoreError> {
        let mut all = vec![QUEUES.as_bytes().to_vec()];
        all.extend(arguments);
        self.ask(QUEUES.as_bytes(), WireCommand { name, arguments: all }, op).await
    }

    /// What is known of a queue.
    pub(super) async fn registered(
        &self,
        queue: QueueId,
        op: &'static str,
    ) -> Result<Option<RegisteredQueue>, StoreError> {
        match self.on_registry("HGET", vec![queue.to_string().into_bytes()], op).await? {
            WireReply::Nil => Ok(None),
            WireReply::Bytes(known) => {
                RegisteredQueue::of(&known).map(Some).ok_or_else(|| corrupt("an entry of another form", op))
            }
            WireReply::Int(_) | WireReply::List(_) => Err(corrupt("an entry that is no text", op)),
        }
    }

    /// Enters a queue, unless it has an entry.
    pub(super) async fn register(
        &self,
        queue: QueueId,
        entry: RegisteredQueue,
        op: &'static str,
    ) -> Result<(), StoreError> {
        let arguments = vec![queue.to_string().into_bytes(), entry.text().into_bytes()];
        self.on_registry("HSETNX", arguments, op).await.map(drop)
    }

    /// Notes that a queue was dropped.
    pub(super) async fn register_drop(
        &self,
        queue: QueueId,
        known: RegisteredQueue,
        op: &'static str,
    ) -> Result<(), StoreError> {
        let entry = RegisteredQueue { is_dropped: true, ..known };
        let arguments = vec![queue.to_string().into_bytes(), entry.text().into_bytes()];
        self.on_registry("HSET", arguments, op).await.map(drop)
    }

    /// All queues, dropped ones too, in the order of their ids.
    pub(super) async fn all_registered(&self, op: &'static str) -> Result<Vec<(QueueId, RegisteredQueue)>, StoreError> {
        let WireReply::List(fields) = self.on_registry("HGETALL", Vec::new(), op).await? else {
            return Err(corrupt("no list of entries", op));
        };
        let mut queues = Vec::with_capacity(fields.len() / 2);
        for pair in fields.chunks(2) {
            let [WireReply::Bytes(id), WireReply::Bytes(entry)] = pair else {
                return Err(corrupt("an entry that is no text", op));
            };
            let id = std::str::from_utf8(id).ok().and_then(|id| id.parse::<QueueId>().ok());
            let known = id.zip(RegisteredQueue::of(entry));
            queues.push(known.ok_or_else(|| corrupt("an entry of another form", op))?);
        }
        queues.sort_unstable_by_key(|(id, _)| *id);
        Ok(queues)
    }
}
