//! Tests of a shard: random commands against the oracle in `laws`, and direct tests, one file per subject.

mod admin;
mod calls;
mod counts;
mod draw;
mod explain;
mod filters;
mod laws;
mod memory;
mod oracle;
mod oracle_admin;
mod sessions;
mod shedding;
mod stored;
mod values;
mod walks;

use std::time::Duration;

use crate::queue::command::{Dequeue, LeaseGrant, NewMessage};
use crate::queue::messages::message::{MessageKey, MessageRef, Metadata, RoutingValue};
use crate::queue::messages::message_id::MessageId;
use crate::queue::{Command, MessageHead, MessageState, Refusal, Reply, Settings, Shard, ShardSettings};
use crate::time::Timestamp;
pub(super) use laws::settings;
use laws::{Order, exclusive, shape};

const START: Timestamp = Timestamp::from_secs(1_000_000);
const SECOND: Duration = Duration::from_secs(1);

/// A shard and the clock for its commands.
struct Bench {
    shard: Shard,
    now: Timestamp,
}

impl Bench {
    fn new(settings: Settings) -> Self {
        Self { shard: Shard::new(0, 1, settings).expect("legal settings"), now: START }
    }

    fn apply(&mut self, command: Command) -> Result<Reply, Refusal> {
        self.shard.apply(command, self.now).reply
    }

    /// Applies the next version of the settings, without blocks.
    fn configure(&mut self, settings: Settings) -> Result<Reply, Refusal> {
        self.apply(configured(self.shard.settings_version() + 1, settings))
    }

    /// Blocks dequeues with the next version of the settings.
    fn block_dequeue(&mut self, reason: &str) {
        let version = self.shard.settings_version() + 1;
        let blocked = ShardSettings {
            version,
            dequeue_blocked: Some(reason.into()),
            ..ShardSettings::from(self.shard.settings().clone())
        };
        assert_eq!(self.apply(Command::Configure(Box::new(blocked))), Ok(Reply::Configured));
    }

    /// Enqueues a message and returns its sequence.
    fn put(&mut self, message: NewMessage) -> u64 {
        match self.apply(Command::Enqueue(Box::new(message))) {
            Ok(Reply::Enqueued { key, .. }) => key.sequence,
            other => panic!("not enqueued: {other:?}"),
        }
    }

    /// Returns the leases of a dequeue that must succeed.
    fn take(&mut self, asked: Dequeue) -> Vec<LeaseGrant> {
        match self.apply(Command::Dequeue(asked)) {
            Ok(Reply::Leases { leases, .. }) => leases,
            other => panic!("no leases: {other:?}"),
        }
    }

    fn state(&self, sequence: u64) -> Option<MessageState> {
        self.shard.get(&by_key(sequence)).map(|message| message.state)
    }
}

/// A version of settings without blocks.
fn configured(version: u64, settings: Settings) -> Command {
    Command::Configure(Box::new(ShardSettings { version, ..settings.into() }))
}

fn by_key(sequence: u64) -> MessageRef {
    MessageRef::Key(MessageKey { shard: 0, epoch: 1, sequence })
}

/// A message with a value for the exclusivity key.
fn of(value: &str, id: &str, priority: i64) -> NewMessage {
    NewMessage { routing: Some(routing(value)), priority: Some(priority), ..message(id, &[("team", value)]) }
}

fn routing(value: &str) -> RoutingValue {
    RoutingValue::new(value).expect("a legal value")
}

fn sequences(leases: &[LeaseGrant]) -> Vec<u64> {
    leases.iter().map(|leased| leased.token.key.sequence).collect()
}

/// A message with this id and these pairs, ready at once.
fn message(id: &str, pairs: &[(&str, &str)]) -> NewMessage {
    NewMessage {
        id: MessageId::new(id).expect("a legal id"),
        token_time: None,
        routing: None,
        metadata: Metadata::new(pairs.iter().copied()).expect("legal pairs"),
        payload_bytes: 0,
        fingerprint: 0,
        priority: Some(0),
        class: None,
        invisibility: None,
        visible_at: None,
        lease_duration: None,
        max_attempts: None,
        ttl: None,
    }
}

/// A pending message of this sequence, as stored in the shard.
pub(super) fn waiting(sequence: u64) -> MessageHead {
    let mut bench = Bench::new(settings());
    bench.put(message(&format!("m-{sequence}"), &[]));
    let found = bench.shard.peek().next().expect("it was just enqueued").clone();
    MessageHead { key: MessageKey { sequence, ..found.key }, ..found }
}

fn up_to(max: usize) -> Dequeue {
    Dequeue { max, ..Dequeue::default() }
}
