//! The queues that were ever created, by their ids: how many shards each has, when it was created, and whether it
//! was dropped.
//!
//! An id is never used again, so the entry of a dropped queue stays. It also says where its outboxes are.

use bytes::Bytes;

use super::functions::RedisQueues;
use super::keys::QUEUES;
use super::wire::{WireCommand, WireReply};
use tallystone_adapters::codec::CorruptValue;
use tallystone_domain::queue::name::QueueId;
use tallystone_domain::time::Timestamp;
use tallystone_ports::StoreError;

/// Before the entry of a queue that was dropped and whose messages are still to be removed.
const DROPPING: &str = "dropping ";
/// Before the entry of a queue that was dropped.
const DROPPED: &str = "dropped ";

/// The state of a queue in the registry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueuePresence {
    Present,
    /// It was dropped. A server that removes its messages says so until this time, again and again.
    Dropping {
        removed_until: Timestamp,
    },
    Dropped,
}

/// The entry of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegisteredQueue {
    pub shards: u32,
    /// The store's time of its creation.
    pub created: Timestamp,
    pub presence: QueuePresence,
}

impl RegisteredQueue {
    /// Whether it was not dropped.
    pub fn is_present(self) -> bool {
        self.presence == QueuePresence::Present
    }

    fn text(self) -> String {
        let (shards, created) = (self.shards, self.created.micros());
        match self.presence {
            QueuePresence::Present => format!("{shards} {created}"),
            QueuePresence::Dropping { removed_until } => {
                format!("{DROPPING}{shards} {created} {}", removed_until.micros())
            }
            QueuePresence::Dropped => format!("{DROPPED}{shards} {created}"),
        }
    }

    fn of(bytes: &Bytes) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let time = |text: &str| text.parse().ok().map(Timestamp::from_micros);
        let (numbers, presence) = if let Some(rest) = text.strip_prefix(DROPPING) {
            let (numbers, removed_until) = rest.rsplit_once(' ')?;
            (numbers, QueuePresence::Dropping { removed_until: time(removed_until)? })
        } else if let Some(numbers) = text.strip_prefix(DROPPED) {
            (numbers, QueuePresence::Dropped)
        } else {
            (text, QueuePresence::Present)
        };
        let (shards, created) = numbers.split_once(' ')?;
        Some(Self { shards: shards.parse().ok()?, created: time(created)?, presence })
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

    /// Reads the entry of a queue; none if it has none.
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

    /// Notes what became of a queue that is dropped.
    pub(super) async fn register_drop(
        &self,
        queue: QueueId,
        known: RegisteredQueue,
        presence: QueuePresence,
        op: &'static str,
    ) -> Result<(), StoreError> {
        let entry = RegisteredQueue { presence, ..known };
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn presences() -> impl Strategy<Value = QueuePresence> {
        let dropping =
            any::<i64>().prop_map(|micros| QueuePresence::Dropping { removed_until: Timestamp::from_micros(micros) });
        prop_oneof![Just(QueuePresence::Present), dropping, Just(QueuePresence::Dropped)]
    }

    proptest! {
        #[test]
        fn an_entry_is_read_as_it_was_written(shards: u32, created: i64, presence in presences()) {
            let entry = RegisteredQueue { shards, created: Timestamp::from_micros(created), presence };
            prop_assert_eq!(RegisteredQueue::of(&Bytes::from(entry.text())), Some(entry));
        }
    }

    #[test]
    fn another_text_is_no_entry() {
        for text in ["", "3", "3 x", "dropping 3 4", "dropped 3", "gone 3 4", "3 4 5"] {
            assert_eq!(RegisteredQueue::of(&Bytes::from(text)), None, "{text}");
        }
    }
}
