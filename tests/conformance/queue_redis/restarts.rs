//! What a restart of the server does: the epoch rises, nothing expires for 15 s, and what was lost is never given again.

use std::sync::Arc;
use std::time::Duration;

use tallystone_adapters::manual::ManualClock;
use tallystone_domain::queue::command::LeaseGrant;
use tallystone_domain::queue::messages::message::SessionId;
use tallystone_domain::queue::messages::settlement::SettleAction;
use tallystone_domain::queue::session_records::SessionCall;
use tallystone_domain::queue::{Command, MessageState, QueueId, Refusal, Reply, ShardId};
use tallystone_ports::{EffectOutcome, ShardAnswer, ShardCommand, ShardReader, ShardStore, StoreError, StoreErrorKind};
use tallystone_redis::client::Deployment;
use tallystone_redis::{ClientWire, RedisQueues};

use super::server::{QueueServer, client_at, eventually, next_queue, past_clock, queues_over, until_answered};
use crate::queue_given::{dequeue, enqueue, is_new, settings, settle};
use crate::servers::redis::{Build, SentinelGroup, or_skip};

/// Settings of a server that keeps every write.
const DURABLE: [&str; 2] = ["appendonly yes", "appendfsync always"];
const SECOND: Duration = Duration::from_secs(1);

/// A server with one queue of one shard.
struct Restarting {
    server: QueueServer,
    queues: Arc<RedisQueues>,
    clock: ManualClock,
    shard: ShardId,
}

impl Restarting {
    async fn start(build: Build, lines: &[&str]) -> Option<Self> {
        println!("on {}", build.name());
        let server = or_skip(QueueServer::start_with(build, lines))?;
        let clock = past_clock();
        let queues = server.queues(&clock).await;
        let shard = ShardId { queue: QueueId(next_queue()), number: 0 };
        queues.create(shard.queue, 1, settings().into()).await.expect("a new queue");
        Some(Self { server, queues, clock, shard })
    }

    async fn try_one(&self, command: ShardCommand) -> Result<ShardAnswer, StoreError> {
        self.queues.apply(self.shard, vec![command]).await.remove(0)
    }

    async fn one(&self, command: ShardCommand) -> Result<Reply, Refusal> {
        self.try_one(command).await.expect("the store takes the command").reply
    }

    async fn lease(&self, max: usize) -> Vec<LeaseGrant> {
        leases(self.one(dequeue(max)).await)
    }

    /// Waits until calls arrive again, whatever is answered.
    async fn until_back(&self) {
        until_answered(&self.queues, self.shard).await;
    }
}

fn leases(reply: Result<Reply, Refusal>) -> Vec<LeaseGrant> {
    let Ok(Reply::Leases { leases, .. }) = reply else { panic!("leases: {reply:?}") };
    leases
}

fn sweep() -> ShardCommand {
    ShardCommand::of(Command::Sweep { max: 64 })
}

#[tokio::test]
async fn after_a_restart_the_epoch_rises_and_nothing_expires_for_fifteen_seconds() {
    for build in Build::ALL {
        let Some(mut given) = Restarting::start(build, &DURABLE).await else { continue };
        for id in ["a", "b", "c"] {
            assert!(is_new(&given.one(enqueue(id, 0, b"")).await));
        }
        let before = given.lease(2).await;
        assert!(before.iter().all(|lease| lease.token.fence.epoch == 1));
        given.server.server().restart().expect("it starts");
        given.clock.advance(31 * SECOND);
        given.until_back().await;
        let swept = given.try_one(sweep()).await.expect("the store takes it");
        assert!(matches!(swept.reply, Ok(Reply::Touched { count: 0, .. })), "no lease ended: {:?}", swept.reply);
        assert_eq!(swept.view.next_event_in, Some(15 * SECOND), "the next sweep comes when leases end");
        let settled = given.one(settle(before[0].token, SettleAction::Complete)).await;
        assert!(matches!(settled, Ok(Reply::Settled(now)) if now.state == MessageState::Completed), "{settled:?}");
        let after = given.lease(3).await;
        assert_eq!(after.len(), 1, "the lease of the other message holds");
        assert_eq!((after[0].token.key.epoch, after[0].token.fence.epoch), (1, 2));
        given.clock.advance(14 * SECOND);
        assert!(matches!(given.one(sweep()).await, Ok(Reply::Touched { count: 0, .. })));
        given.clock.advance(SECOND);
        assert!(matches!(given.one(sweep()).await, Ok(Reply::Touched { count: 1, .. })), "now it ends");
        assert_eq!(given.queues.epoch(), 2);
    }
}

#[tokio::test]
async fn a_session_that_beats_after_a_restart_keeps_its_leases() {
    let Some(mut given) = Restarting::start(Build::Redis7, &DURABLE).await else { return };
    assert!(is_new(&given.one(enqueue("a", 0, b"")).await));
    let id = SessionId(7);
    let call = SessionCall { id, lease: Some(10 * SECOND), sequence: 1, attempt: 1, received_up_to: None };
    let mut asked = dequeue(1);
    let Command::Dequeue(own) = &mut asked.command else { panic!("it is a dequeue") };
    own.session = Some(call);
    assert_eq!(leases(given.one(asked).await).len(), 1);
    let beat = || ShardCommand::of(Command::Heartbeat { session: id, received_up_to: Some(1) });
    assert!(matches!(given.one(beat()).await, Ok(Reply::Beaten { .. })));
    given.server.server().restart().expect("it starts");
    given.clock.advance(20 * SECOND); // the session was silent for longer than its lease
    given.until_back().await;
    assert!(matches!(given.one(sweep()).await, Ok(Reply::Touched { count: 0, .. })));
    assert!(matches!(given.one(beat()).await, Ok(Reply::Beaten { .. })), "its worker reaches the store again");
    given.clock.advance(9 * SECOND);
    assert!(matches!(given.one(beat()).await, Ok(Reply::Beaten { .. })));
    given.clock.advance(9 * SECOND);
    assert!(matches!(given.one(sweep()).await, Ok(Reply::Touched { count: 0, .. })), "it holds after the quiet time");
    given.clock.advance(2 * SECOND);
    assert!(matches!(given.one(sweep()).await, Ok(Reply::Touched { count: 1, .. })), "and ends by its own silence");
}

#[tokio::test]
async fn what_a_restart_lost_gives_no_key_and_no_fence_twice() {
    for build in Build::ALL {
        let Some(mut given) = Restarting::start(build, &[]).await else { continue };
        assert!(is_new(&given.one(enqueue("kept", 0, b"")).await));
        given.server.server().cli(&["SAVE"]);
        assert!(is_new(&given.one(enqueue("lost", 1, b"")).await));
        let lost = given.lease(2).await;
        let before = given.try_one(sweep()).await.expect("the store takes it").view;
        given.server.server().restart().expect("it starts");
        given.until_back().await;
        let answer = given.try_one(enqueue("new", 1, b"")).await.expect("the store takes it");
        let Ok(Reply::Enqueued { key, .. }) = answer.reply else { panic!("{:?}", answer.reply) };
        assert_eq!((key.epoch, key.sequence), (2, 2), "the sequence comes again, the key does not");
        assert!(lost.iter().all(|lease| lease.token.key != key));
        assert!(answer.view.step > before.step, "a status after the loss is newer than those before");
        let read = given.queues.totals(given.shard).await.expect("totals").view;
        assert_eq!(read.step, answer.view.step, "a read tells what is stored");
        for lease in &lost {
            let settled = given.one(settle(lease.token, SettleAction::Complete)).await;
            assert_eq!(settled, Err(Refusal::LeaseLost));
        }
        let again = given.lease(2).await;
        assert_eq!(again.len(), 2);
        let fences: Vec<u64> = again.iter().map(|lease| lease.token.fence.as_u64()).collect();
        assert!(lost.iter().all(|old| fences.iter().all(|new| *new > old.token.fence.as_u64())), "{fences:?}");
    }
}

#[tokio::test]
async fn a_second_loss_right_after_the_first_raises_the_epoch_again() {
    let Some(mut given) = Restarting::start(Build::Redis7, &[]).await else { return };
    given.server.server().cli(&["SAVE"]);
    for epoch in 2..5 {
        given.server.server().restart().expect("it starts");
        given.until_back().await;
        let Ok(Reply::Enqueued { key, .. }) = given.one(enqueue("a", 0, b"")).await else { panic!("no key") };
        assert_eq!((key.epoch, key.sequence), (epoch, 1), "the shard forgot the epoch, this server did not");
    }
}

#[tokio::test]
async fn every_server_takes_over_a_raised_epoch() {
    let Some(mut given) = Restarting::start(Build::Redis7, &DURABLE).await else { return };
    let other = given.server.queues(&given.clock).await;
    assert!(is_new(&given.one(enqueue("a", 0, b"")).await));
    assert_eq!(other.totals(given.shard).await.expect("totals").sequence, 1);
    given.server.server().restart().expect("it starts");
    given.until_back().await;
    eventually("the other server is back", async || other.totals(given.shard).await.is_ok()).await;
    for (server, id) in [(&given.queues, "b"), (&other, "c")] {
        let answer = server.apply(given.shard, vec![enqueue(id, 0, b"")]).await.remove(0).expect("the store takes it");
        let Ok(Reply::Enqueued { key, .. }) = answer.reply else { panic!("{:?}", answer.reply) };
        assert_eq!(key.epoch, 2);
    }
    let fresh = given.server.queues(&given.clock).await;
    fresh.learn_epoch().await.expect("the store has noted it");
    assert_eq!(fresh.epoch(), 2);
}

#[tokio::test]
async fn after_a_failover_leases_hold_and_the_epoch_rises() {
    let Some(mut group) = or_skip(SentinelGroup::start(Build::Redis7)) else { return };
    let primary = SentinelGroup::NAME.to_owned();
    let client = client_at(Deployment::Sentinel { sentinels: group.sentinels(), primary, login: None }).await;
    let clock = past_clock();
    let queues = queues_over(ClientWire::new(client), &clock);
    let shard = ShardId { queue: QueueId(next_queue()), number: 0 };
    queues.create(shard.queue, 1, settings().into()).await.expect("a new queue");
    let one = async |command| queues.apply(shard, vec![command]).await.remove(0).expect("the store takes it").reply;
    for id in ["a", "b"] {
        assert!(is_new(&one(enqueue(id, 0, b"")).await));
    }
    let before = leases(one(dequeue(1)).await);
    eventually("the replica has all of it", async || group.pair.primary.replicas_are_in_step()).await;
    group.pair.primary.kill();
    clock.advance(31 * SECOND);
    eventually("the replica is the primary", async || queues.totals(shard).await.is_ok()).await;
    assert!(matches!(one(sweep()).await, Ok(Reply::Touched { count: 0, .. })), "nothing has expired");
    let after = leases(one(dequeue(2)).await);
    assert_eq!(after.iter().map(|lease| lease.token.fence.epoch).collect::<Vec<_>>(), [2], "the other message");
    let settled = one(settle(before[0].token, SettleAction::Complete)).await;
    assert!(matches!(settled, Ok(Reply::Settled(now)) if now.state == MessageState::Completed), "{settled:?}");
}

fn check_lost(answer: Result<ShardAnswer, StoreError>) {
    let Err(error) = answer else { panic!("a lost queue answered") };
    assert_eq!((error.kind, error.outcome), (StoreErrorKind::Lost, EffectOutcome::NotApplied), "{error}");
    let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    assert!(source.contains("STORE_LOST"), "{source}");
}

#[tokio::test]
async fn an_empty_store_is_refused_until_an_operator_decides() {
    for build in Build::ALL {
        let Some(mut given) = Restarting::start(build, &[]).await else { continue };
        assert!(is_new(&given.one(enqueue("a", 0, b"")).await));
        given.server.server().restart_empty().expect("it starts");
        given.until_back().await;
        check_lost(given.try_one(enqueue("b", 0, b"")).await);
        check_lost(given.try_one(dequeue(1)).await);
        let never = ShardId { queue: QueueId(next_queue()), number: 0 };
        let absent = given.queues.apply(never, vec![dequeue(1)]).await.remove(0).expect_err("there was none");
        assert_eq!(absent.kind, StoreErrorKind::Conflict, "a queue that never was is not lost");
        given.queues.drop_queue(given.shard.queue).await.expect("the operator gives it up");
        let absent = given.try_one(dequeue(1)).await.expect_err("it is gone");
        assert_eq!(absent.kind, StoreErrorKind::Conflict);
    }
}

#[tokio::test]
async fn a_server_that_never_saw_a_lost_shard_knows_it_by_the_list_of_queues() {
    let Some(mut given) = Restarting::start(Build::Redis7, &[]).await else { return };
    let header = given.server.server().cli(&["KEYS", "*}m"]);
    given.server.server().cli(&["DEL", header.trim()]);
    let fresh = given.server.queues(&given.clock).await;
    check_lost(fresh.apply(given.shard, vec![dequeue(1)]).await.remove(0));
}
