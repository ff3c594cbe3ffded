//! Filter shapes on Redis over more messages, values and groups than one call of a function takes.

use std::time::Duration;

use tallystone_domain::queue::command::{Completeness, Dequeue, Refusal};
use tallystone_domain::queue::filter::{Filter, ShapeKeys};
use tallystone_domain::queue::messages::message::{LeaseToken, Metadata, RoutingValue};
use tallystone_domain::queue::messages::settlement::SettleAction;
use tallystone_domain::queue::setup::settings::Exclusivity;
use tallystone_domain::queue::{Command, MessageState, QueueId, Reply, Settings, Shard, ShardId, ShardSettings};
use tallystone_ports::{ShardCommand, ShardReader, ShardStore};
use tallystone_redis::RedisQueues;

use super::random::keys;
use super::server::{next_queue, past_clock, shared};
use crate::queue_given::{enqueue, settings, settle};
use crate::servers::redis::Build;

fn shape(keys: &[&str]) -> ShapeKeys {
    ShapeKeys::new(keys.iter().copied()).expect("legal keys")
}

fn filter(pairs: &[(&str, &str)]) -> Filter {
    Filter::new(pairs.iter().copied()).expect("legal pairs")
}

/// A message of a value, in zone a.
fn message(number: usize, value: usize) -> ShardCommand {
    message_in("a", number, value)
}

fn message_in(zone: &str, number: usize, value: usize) -> ShardCommand {
    let mut sent = enqueue(&format!("m-{number}"), i64::try_from(number).expect("a small number"), b"work");
    let Command::Enqueue(message) = &mut sent.command else { panic!("it is an enqueue") };
    let value = format!("v-{value}");
    message.metadata = Metadata::new([("title", &*value), ("zone", zone)]).expect("legal pairs");
    message.routing = RoutingValue::new(&value).ok();
    sent
}

fn dequeue(max: usize, pairs: &[(&str, &str)]) -> ShardCommand {
    ShardCommand::of(Command::Dequeue(Dequeue { max, filter: filter(pairs), ..Dequeue::default() }))
}

/// A shard on Redis and one of the core, which must answer alike.
struct Both {
    queues: std::sync::Arc<RedisQueues>,
    shard: ShardId,
    core: Shard,
}

impl Both {
    async fn of(queues: std::sync::Arc<RedisQueues>, settings: Settings) -> Self {
        let shard = ShardId { queue: QueueId(next_queue()), number: 0 };
        queues.create(shard.queue, 1, settings.clone().into()).await.expect("a new queue");
        let core = Shard::new(0, 1, settings).expect("valid settings");
        Self { queues, shard, core }
    }

    /// Applies commands to both; answers the replies.
    async fn apply(&mut self, sent: Vec<ShardCommand>) -> Vec<Result<Reply, Refusal>> {
        let commands: Vec<Command> = sent.iter().map(|sent| sent.command.clone()).collect();
        let mut replies = Vec::with_capacity(commands.len());
        for (command, answer) in commands.into_iter().zip(self.queues.apply(self.shard, sent).await) {
            let answer = answer.expect("the store takes it");
            let told = format!("{command:?}");
            assert_eq!(answer.reply, self.core.apply(command, answer.at).reply, "{told}");
            replies.push(answer.reply);
        }
        let view = self.queues.totals(self.shard).await.expect("totals").view;
        assert_eq!((view.head, view.head_arrived), (self.core.head(), self.core.head_arrived()));
        replies
    }

    async fn lease(&mut self, max: usize, pairs: &[(&str, &str)]) -> Vec<LeaseToken> {
        match self.apply(vec![dequeue(max, pairs)]).await.remove(0) {
            Ok(Reply::Leases { leases, .. }) => leases.iter().map(|lease| lease.token).collect(),
            other => panic!("leases: {other:?}"),
        }
    }

    async fn declare(&mut self, shapes: Vec<ShapeKeys>) {
        let settings = Settings { shapes, ..self.core.settings().clone() };
        let changed = ShardSettings { version: self.core.settings_version() + 1, ..settings.into() };
        let configured = self.apply(vec![ShardCommand::of(Command::Configure(Box::new(changed)))]).await;
        assert_eq!(configured, [Ok(Reply::Configured)]);
    }

    async fn depth(&self, pairs: &[(&str, &str)]) -> Option<u64> {
        let depth = self.queues.depth(self.shard, filter(pairs)).await.expect("a count");
        assert_eq!(depth, self.core.depth(&filter(pairs)));
        depth.ok().map(|counts| counts[MessageState::Pending as usize])
    }
}

#[tokio::test]
async fn a_shape_is_filled_by_sweeps_and_leaves_nothing_once_it_is_not_declared() {
    let Some(server) = shared(Build::Redis7) else { return };
    let clock = past_clock();
    let mut both = Both::of(server.queues(&clock).await, settings()).await;
    for numbers in [0..200, 200..400] {
        both.apply(numbers.map(|number| message(number, number % 150)).collect()).await;
    }
    both.declare(vec![shape(&["title"]), shape(&["zone"])]).await;
    assert_eq!(both.depth(&[("zone", "a")]).await, None, "it is being filled");
    let sweep = |max| vec![ShardCommand::of(Command::Sweep { max })];
    for max in [256, 100, 43, 1] {
        both.apply(sweep(max)).await;
    }
    both.apply(vec![message(400, 7)]).await;
    for _ in 0..3 {
        both.apply(sweep(256)).await;
    }
    assert_eq!(both.depth(&[("zone", "a")]).await, Some(401));
    assert_eq!(both.depth(&[("title", "v-7")]).await, Some(4));
    assert_eq!(both.lease(100, &[("title", "v-7")]).await.len(), 4);
    assert_eq!(both.lease(9, &[("title", "v-7")]).await.len(), 0);
    both.declare(vec![shape(&["zone"])]).await;
    assert_eq!(both.depth(&[("title", "v-7")]).await, None);
    assert_eq!(both.depth(&[("zone", "a")]).await, Some(397), "what stays declared keeps what it has");
    let client = server.client().await;
    let groups = keys(&client, both.shard).await.into_iter().filter(|key| key.contains("}y") || key.contains("}z"));
    assert_eq!(groups.count(), 2, "one group and its counts");
    both.queues.drop_queue(both.shard.queue).await.expect("it is there");
    let left = keys(&client, both.shard).await;
    assert!(left.iter().all(|key| key.ends_with("}m") || key.ends_with("}o")), "{left:?}");
}

/// Settings of an exclusive queue with one message of a value in flight, and a filter by zone.
fn exclusive() -> Settings {
    let exclusivity = Exclusivity { key: "title".into(), max_in_flight_per_value: 1, strict_order_per_value: false };
    Settings { exclusivity: Some(exclusivity), shapes: vec![shape(&["zone"])], ..settings() }
}

#[tokio::test]
async fn each_dequeue_of_a_call_sets_64_full_values_aside() {
    for build in Build::ALL {
        let Some(server) = shared(build) else { continue };
        let mut both = Both::of(server.queues(&past_clock()).await, exclusive()).await;
        let zone = |number| if number < 150 { "b" } else { "a" };
        both.apply((0..300).map(|number| message_in(zone(number), number, number % 150)).collect()).await;
        let first = both.lease(100, &[("zone", "b")]).await;
        let held = [first, both.lease(100, &[("zone", "b")]).await].concat();
        assert_eq!(held.len(), 150, "all values are full");
        let done = held[147..].iter().map(|token| settle(*token, SettleAction::Complete)).collect();
        both.apply(done).await;
        let leased = |reply: Result<Reply, Refusal>| match reply {
            Ok(Reply::Leases { leases, completeness, .. }) => (leases.len(), completeness),
            other => panic!("leases: {other:?}"),
        };
        let all = [1, 1, 2, 2, 1].map(|max| dequeue(max, &[("zone", "a")])).to_vec();
        let replies: Vec<_> = both.apply(all).await.into_iter().map(leased).collect();
        let (none, more, complete) = (0, Completeness::More, Completeness::Complete);
        assert_eq!(replies, [(none, more), (none, more), (2, complete), (1, complete), (none, complete)]);
    }
}

#[tokio::test]
async fn full_values_are_set_aside_64_a_call_and_come_back_with_room() {
    for build in Build::ALL {
        let Some(server) = shared(build) else { continue };
        let clock = past_clock();
        let mut both = Both::of(server.queues(&clock).await, exclusive()).await;
        both.apply((0..300).map(|number| message(number, number % 150)).collect()).await;
        let first = both.lease(100, &[]).await;
        let held = [first, both.lease(100, &[]).await].concat();
        assert_eq!(held.len(), 150);
        for _ in 0..4 {
            assert_eq!(both.lease(1, &[("zone", "a")]).await, [], "all values are full");
        }
        let done = held[20..25].iter().map(|token| settle(*token, SettleAction::Complete)).collect();
        both.apply(done).await;
        assert_eq!(both.lease(9, &[("zone", "a")]).await.len(), 5, "those of the values with room");
        let value = RoutingValue::new("v-3").expect("a legal value");
        both.apply(vec![ShardCommand::of(Command::SetValueLimit { value, limit: Some(2) })]).await;
        assert_eq!(both.lease(9, &[("zone", "a")]).await.len(), 1);
        // Leases end by time, many at once.
        clock.advance(Duration::from_secs(31));
        for _ in 0..4 {
            both.lease(100, &[("zone", "a"), ("title", "v-9")]).await;
        }
        assert_eq!(both.depth(&[("zone", "a")]).await.map(|pending| pending > 200), Some(true));
    }
}
