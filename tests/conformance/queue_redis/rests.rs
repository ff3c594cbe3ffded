//! When an exclusive queue gives out nothing for a while: after a loss, which may have taken a lease that a worker still holds.

use std::sync::Arc;
use std::time::Duration;

use tallystone_adapters::manual::ManualClock;
use tallystone_domain::queue::setup::queue_spec::Durability;
use tallystone_domain::queue::setup::settings::Exclusivity;
use tallystone_domain::queue::{Command, QueueId, Reply, Settings, ShardId};
use tallystone_ports::{ShardAnswer, ShardCommand, ShardReader, ShardStore};
use tallystone_redis::client::Deployment;
use tallystone_redis::{ClientWire, RedisQueues};

use super::server::{QueueServer, client_at, eventually, next_queue, past_clock, queues_of, until_answered};
use super::values::of_value;
use crate::queue_given::{dequeue, is_new, settings};
use crate::servers::redis::{Build, SentinelGroup, or_skip};

const SECOND: Duration = Duration::from_secs(1);
/// The longest run of a message, which is shorter than the longest rest.
const RUN: Duration = Duration::from_secs(10);
/// Settings of a server that keeps every write.
const DURABLE: [&str; 2] = ["appendonly yes", "appendfsync always"];

fn exclusive(max_run_time: Duration) -> Settings {
    let exclusivity = Exclusivity { key: "title".into(), max_in_flight_per_value: 1, strict_order_per_value: false };
    Settings { exclusivity: Some(exclusivity), max_run_time, default_lease: RUN, ..settings() }
}

/// A shard, as one server sees it.
struct Seen {
    queues: Arc<RedisQueues>,
    shard: ShardId,
}

impl Seen {
    /// Creates a queue with one message.
    async fn create(queues: Arc<RedisQueues>, settings: Settings) -> Self {
        let shard = ShardId { queue: QueueId(next_queue()), number: 0 };
        queues.create(shard.queue, 1, settings.into()).await.expect("a new queue");
        let seen = Self { queues, shard };
        assert!(is_new(&seen.one(of_value("a", 0, "x")).await.reply));
        seen
    }

    async fn one(&self, command: ShardCommand) -> ShardAnswer {
        self.queues.apply(self.shard, vec![command]).await.remove(0).expect("the store takes the command")
    }

    async fn sweep(&self) -> ShardAnswer {
        self.one(ShardCommand::of(Command::Sweep { max: 64 })).await
    }

    /// Waits until calls arrive again, whatever is answered.
    async fn until_back(&self) {
        until_answered(&self.queues, self.shard).await;
    }

    async fn leased(&self) -> usize {
        let Ok(Reply::Leases { leases, .. }) = self.one(dequeue(1)).await.reply else { panic!("no leases") };
        leases.len()
    }

    /// It gives out nothing for this long, and tells so, and then it does.
    async fn check_rests(&self, clock: &ManualClock, rest: Duration) {
        self.until_back().await;
        assert_eq!(self.leased().await, 0, "it rests");
        let view = self.sweep().await.view;
        assert_eq!((view.head, view.ready()), (None, 1), "so nobody asks it");
        assert_eq!(view.next_event_in, Some(rest), "until a sweep at its end");
        clock.advance(rest - SECOND);
        assert_eq!(self.leased().await, 0, "it still rests");
        clock.advance(SECOND);
        let swept = self.sweep().await.view;
        assert!(swept.head.is_some() && swept.step > view.step, "{swept:?}");
        assert_eq!(self.leased().await, 1);
    }
}

async fn on(server: &QueueServer, durability: Durability, clock: &ManualClock) -> Arc<RedisQueues> {
    queues_of(durability, ClientWire::new(server.client().await), clock)
}

#[tokio::test]
async fn after_a_restart_that_may_have_lost_work_it_rests_for_its_longest_run_and_fifteen_seconds_at_most() {
    for (longest, rest) in [(RUN, RUN), (3_600 * SECOND, 15 * SECOND)] {
        let Some(mut server) = or_skip(QueueServer::start_with(Build::Redis7, &DURABLE)) else { return };
        let clock = past_clock();
        let seen = Seen::create(on(&server, Durability::Fast, &clock).await, exclusive(longest)).await;
        server.server().restart().expect("it starts");
        seen.check_rests(&clock, rest).await;
    }
}

#[tokio::test]
async fn after_a_restart_behind_a_step_that_was_seen_it_rests() {
    let Some(mut server) = or_skip(QueueServer::start(Build::Redis7)) else { return };
    let clock = past_clock();
    let seen = Seen::create(on(&server, Durability::Safe, &clock).await, exclusive(RUN)).await;
    server.server().cli(&["SAVE"]);
    assert_eq!(seen.leased().await, 1, "this lease is lost");
    server.server().restart().expect("it starts");
    seen.check_rests(&clock, RUN).await;
}

#[tokio::test]
async fn after_a_restart_that_lost_nothing_it_goes_on_at_once() {
    let Some(mut server) = or_skip(QueueServer::start_with(Build::Redis7, &DURABLE)) else { return };
    let clock = past_clock();
    let seen = Seen::create(on(&server, Durability::Safe, &clock).await, exclusive(RUN)).await;
    server.server().restart().expect("it starts");
    seen.until_back().await;
    assert_eq!(seen.leased().await, 1);
}

#[tokio::test]
async fn a_queue_without_exclusivity_does_not_rest() {
    let Some(mut server) = or_skip(QueueServer::start_with(Build::Redis7, &DURABLE)) else { return };
    let clock = past_clock();
    let seen = Seen::create(on(&server, Durability::Fast, &clock).await, settings()).await;
    server.server().restart().expect("it starts");
    seen.until_back().await;
    assert_eq!(seen.leased().await, 1);
}

/// What the primary synced and answered may not be at the replica, and the server that notices the failover may not have seen it.
#[tokio::test]
async fn after_a_failover_it_rests_unless_answers_waited_for_replicas() {
    for (durability, rests) in [(Durability::Safe, true), (Durability::Replicated, false)] {
        let Some(mut group) = or_skip(SentinelGroup::start(Build::Redis7)) else { return };
        let clock = past_clock();
        let deployment = || Deployment::Sentinel {
            sentinels: group.sentinels(),
            primary: SentinelGroup::NAME.to_owned(),
            login: None,
        };
        let first = queues_of(durability, ClientWire::new(client_at(deployment()).await), &clock);
        let other = queues_of(durability, ClientWire::new(client_at(deployment()).await), &clock);
        let seen = Seen::create(first, exclusive(RUN)).await;
        let other = Seen { queues: other, shard: seen.shard };
        eventually("the replica has all of it", async || group.pair.primary.replicas_are_in_step()).await;
        group.pair.primary.kill();
        eventually("the replica is the primary", async || other.queues.totals(other.shard).await.is_ok()).await;
        match rests {
            true => other.check_rests(&clock, RUN).await,
            false => assert_eq!(other.leased().await, 1),
        }
    }
}
