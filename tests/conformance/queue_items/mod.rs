//! The conformance list of queues: what dyno-queues, its heirs in Conductor, Timestone and Alibaba's timeout center do, each
//! behaviour a law under its number in docs/queues-conformance.md, on every store of queues.
//!
//! What needs a server and not only a store is tried in tests/it/api/queues/items.rs. Where Tallystone differs on purpose,
//! the law says what happens here.

mod conductor;
mod dyno;
mod ours;
mod timestone;

use std::time::Duration;

use tallystone_domain::queue::command::{MessageUpdate, NewMessage};
use tallystone_domain::queue::messages::message::{LeaseToken, MessageRef, Metadata, RoutingValue};
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::queue::setup::settings::Exclusivity;
use tallystone_domain::queue::{Command, MessageState, QueueId, Refusal, Reply, Settings, ShardId};
use tallystone_ports::{ShardCommand, StoredMessage};

use crate::queue_given::{QueueBench, SHARD, enqueue, settings};

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn by_id(id: &str) -> MessageRef {
    MessageRef::Id(MessageId::new(id).expect("a valid id"), None)
}

fn routing(value: &str) -> RoutingValue {
    RoutingValue::new(value).expect("a valid value")
}

/// An enqueue of a message of priority 0 that is changed so.
fn sent(id: &str, change: impl FnOnce(&mut NewMessage)) -> ShardCommand {
    let mut sent = enqueue(id, 0, b"work");
    let Command::Enqueue(message) = &mut sent.command else { panic!("it is an enqueue") };
    change(message);
    sent
}

/// An enqueue into an exclusive queue.
fn of_value(id: &str, priority: i64, value: &str) -> ShardCommand {
    sent(id, |message| {
        message.priority = Some(priority);
        message.metadata = Metadata::new([("title", value)]).expect("a valid pair");
        message.routing = Some(routing(value));
    })
}

fn extend(token: LeaseToken, lease: Duration) -> ShardCommand {
    ShardCommand::of(Command::Extend { token, lease })
}

fn update(id: &str, update: MessageUpdate) -> ShardCommand {
    ShardCommand::of(Command::Update { message: by_id(id), update })
}

fn cancel(id: &str) -> ShardCommand {
    ShardCommand::of(Command::CancelMessage { message: by_id(id), reason: "asked".into() })
}

fn sweep() -> ShardCommand {
    ShardCommand::of(Command::Sweep { max: 256 })
}

fn exclusive() -> Settings {
    let key = "title".into();
    let exclusivity = Exclusivity { key, max_in_flight_per_value: 1, strict_order_per_value: false };
    Settings { exclusivity: Some(exclusivity), ..settings() }
}

/// The state that a settlement or another change answered.
fn settled(reply: &Result<Reply, Refusal>) -> MessageState {
    match reply {
        Ok(Reply::Settled(answer)) => answer.state,
        other => panic!("not a change of a message: {other:?}"),
    }
}

impl QueueBench {
    /// A queue of one shard with settings of its own.
    async fn queue_of(&self, settings: Settings) -> ShardId {
        let queue = QueueId(8);
        self.stores.shards.create(queue, 1, settings.into()).await.expect("a new queue");
        ShardId { queue, number: 0 }
    }

    /// Applies commands that the shard takes.
    async fn all(&self, shard: ShardId, commands: Vec<ShardCommand>) {
        for answer in self.apply(shard, commands).await {
            let reply = answer.expect("the store takes it").reply;
            assert!(reply.is_ok(), "{reply:?}");
        }
    }

    /// The ids of the messages that a dequeue gets, in their order.
    async fn served(&self, shard: ShardId, max: usize) -> Vec<String> {
        let leases = self.dequeue(shard, max).await;
        leases.into_iter().map(|(_, message)| message.head.id.to_string()).collect()
    }

    /// The one lease that there is.
    async fn lease(&self, shard: ShardId) -> LeaseToken {
        let mut leases = self.dequeue(shard, 1).await;
        assert_eq!(leases.len(), 1, "there is a message to lease");
        leases.remove(0).0.token
    }

    /// A message of the first shard.
    async fn found(&self, id: &str) -> Option<StoredMessage> {
        self.stores.reader.get(SHARD, by_id(id)).await.expect("a read").map(|(message, _)| message)
    }

    async fn state(&self, id: &str) -> Option<MessageState> {
        self.found(id).await.map(|message| message.head.state)
    }

    /// How many messages a shard has in a state.
    async fn count(&self, shard: ShardId, state: MessageState) -> u64 {
        self.stores.reader.totals(shard).await.expect("a read").totals.of(state).messages
    }

    /// The ids of pending messages, as a peek shows them.
    async fn peeked(&self, shard: ShardId, limit: usize) -> Vec<String> {
        let read = self.stores.reader.peek(shard, limit).await.expect("a read");
        read.messages.iter().map(|message| message.head.id.to_string()).collect()
    }
}
