//! The removal of the messages of dropped queues: a drop does not wait for all of it, and it comes to its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tallystone_adapters::manual::ManualClock;
use tallystone_domain::queue::{QueueId, ShardId};
use tallystone_ports::{EffectOutcome, ShardCommand, ShardReader, ShardStore, StoreError, StoreErrorKind};
use tallystone_redis::client::{RedisClient, RedisCommand};
use tallystone_redis::wire::{RedisWire, WireCommand, WireFailure, WireReply};
use tallystone_redis::{AskedOfServers, ClientWire, RedisQueues, ServerWatch};
use tokio::sync::Semaphore;

use super::keys::ShardKeys;
use super::server::{OPTIONS, QueueServer, eventually, past_clock};
use crate::queue_given::{dequeue, enqueue, settings};
use crate::servers::redis::{Build, or_skip};

const QUEUE: QueueId = QueueId(7);
const SHARDS: u32 = 2;
/// How long a drop waits for the removal.
const AWAITED: Duration = Duration::from_secs(1);
/// How long a removal is claimed.
const CLAIMED: Duration = Duration::from_secs(60);

/// The messages of each shard. One call removes 256 at most.
const MESSAGES: i64 = 1_000;

/// A connection on which calls that remove data wait for permits. It may refuse claims, as a full Redis does.
struct HeldRemovals {
    inner: ClientWire,
    permits: Arc<Semaphore>,
    is_full: Arc<AtomicBool>,
}

#[async_trait]
impl RedisWire for HeldRemovals {
    async fn send(&self, key: &[u8], commands: Vec<WireCommand>) -> Vec<Result<WireReply, WireFailure>> {
        let removes = |command: &WireCommand| {
            command.name == "FCALL" && command.arguments.first().is_some_and(|name| name.starts_with(b"del_"))
        };
        if commands.iter().any(removes) {
            self.permits.acquire().await.expect("it stays open").forget();
        }
        if self.is_full.load(Ordering::Relaxed) && commands.iter().any(|command| command.name == "HSET") {
            let full = || Err(WireFailure::Store(StoreError::not_applied(StoreErrorKind::Full, "the test")));
            return commands.iter().map(|_| full()).collect();
        }
        self.inner.send(key, commands).await
    }

    fn fails_over(&self) -> bool {
        self.inner.fails_over()
    }

    fn address(&self, key: &[u8]) -> Option<String> {
        self.inner.address(key)
    }
}

/// A server whose removals are held, beside another one, and a queue with messages.
struct HeldServer {
    server: QueueServer,
    clock: ManualClock,
    client: Arc<RedisClient>,
    held: Arc<RedisQueues>,
    permits: Arc<Semaphore>,
    is_full: Arc<AtomicBool>,
    other: Arc<RedisQueues>,
    keys: ShardKeys,
}

impl HeldServer {
    /// With permits for the first call on each shard, which makes it refuse everything.
    async fn start(build: Build) -> Option<Self> {
        println!("on {}", build.name());
        let server = or_skip(QueueServer::start(build))?;
        let clock = past_clock();
        let (client, permits) = (server.client().await, Arc::new(Semaphore::new(SHARDS as usize)));
        let inner = ClientWire::new(Arc::clone(&client));
        let is_full = Arc::new(AtomicBool::new(false));
        let wire = HeldRemovals { inner, permits: Arc::clone(&permits), is_full: Arc::clone(&is_full) };
        let wire = Arc::new(wire);
        let held = RedisQueues::new(wire, Arc::new(clock.clone()), OPTIONS);
        let other = server.queues(&clock).await;
        held.create(QUEUE, SHARDS, settings().into()).await.expect("a new queue");
        for number in 0..SHARDS {
            let messages = (0..MESSAGES).map(|at| enqueue(&format!("m-{at}"), at, b"payload")).collect();
            let answers = other.apply(ShardId { queue: QUEUE, number }, messages).await;
            assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|answer| answer.reply.is_ok())));
        }
        let keys = ShardKeys { client: server.client().await, pattern: "{*.?}*" };
        Some(Self { server, clock, client, held, permits, is_full, other, keys })
    }

    /// Drops the queue while its messages cannot be removed.
    async fn drop_queue(&self) {
        let held = Arc::clone(&self.held);
        let dropped = tokio::spawn(async move { held.drop_queue(QUEUE).await });
        self.clock.wait_for_sleepers(1).await;
        self.clock.advance(AWAITED);
        dropped.await.expect("no panic").expect("it does not wait for the removal");
    }

    /// What the registry says of the queue.
    async fn entry(&self) -> String {
        let get = RedisCommand::new("HGET").arg("{tallystone}queues").arg(QUEUE.to_string());
        let entry = self.keys.send(get).await.into_bytes().expect("it was created");
        String::from_utf8(entry.to_vec()).expect("a text")
    }

    /// Waits until nothing of the messages is left.
    async fn wait_for_the_end(&self) {
        eventually("it is dropped", async || self.entry().await.starts_with("dropped ")).await;
        self.check_removed().await;
    }

    async fn check_removed(&self) {
        let left = self.keys.snapshot().await;
        let is_rest = |name: &[u8]| name.ends_with(b"}m") || name.ends_with(b"}o"); // that it was there, and its history
        assert!(left.keys().all(|name| is_rest(name)), "{:?}", left.keys());
    }
}

fn check_absent<T: std::fmt::Debug>(answer: Result<T, StoreError>) {
    let refused = answer.expect_err("the queue is dropped");
    assert_eq!((refused.kind, refused.outcome), (StoreErrorKind::Conflict, EffectOutcome::NotApplied), "{refused}");
}

async fn one(queues: &RedisQueues, shard: ShardId, command: ShardCommand) -> Result<(), StoreError> {
    queues.apply(shard, vec![command]).await.remove(0).map(drop)
}

#[tokio::test]
async fn a_drop_answers_before_its_messages_are_removed_and_no_server_serves_them() {
    for build in Build::ALL {
        let Some(given) = HeldServer::start(build).await else { continue };
        given.drop_queue().await;
        let keys = given.keys.snapshot().await;
        let hashes = keys.keys().filter(|name| name.windows(2).any(|pair| pair == b"}h")).count();
        assert!(hashes > 125, "most messages are still there, 8 in each hash: {hashes} hashes of 250");
        for queues in [&given.held, &given.other] {
            for number in 0..SHARDS {
                let shard = ShardId { queue: QUEUE, number };
                check_absent(one(queues, shard, enqueue("late", 0, b"")).await);
                check_absent(one(queues, shard, dequeue(1)).await);
                check_absent(queues.peek(shard, 1).await);
            }
            assert_eq!(queues.queues().await.expect("a list"), []);
            check_absent(queues.create(QUEUE, SHARDS, settings().into()).await);
        }
        assert!(given.entry().await.starts_with("dropping "), "nothing was removed meanwhile");
        given.permits.add_permits(1_000);
        given.wait_for_the_end().await;
        given.held.close().await;
    }
}

#[tokio::test]
async fn another_server_goes_on_with_a_removal_whose_server_went_away() {
    for build in Build::ALL {
        let Some(given) = HeldServer::start(build).await else { continue };
        given.drop_queue().await;
        given.client.close().await;
        given.permits.add_permits(1_000);
        given.held.close().await;
        let claimed = given.entry().await;
        assert!(claimed.starts_with("dropping "), "{claimed}");
        given.other.resume_removals().await;
        assert_eq!(given.entry().await, claimed, "it may still be at work");
        given.clock.advance(CLAIMED);
        let asked = AskedOfServers { replicas: 0, declared: None };
        let (other, clock) = (Arc::clone(&given.other), Arc::new(given.clock.clone()));
        let watch = ServerWatch::start(given.server.client().await, other, asked, clock).await;
        given.wait_for_the_end().await;
        watch.close().await;
    }
}

#[tokio::test]
async fn a_full_redis_is_made_room_in_by_a_drop() {
    for build in Build::ALL {
        let Some(given) = HeldServer::start(build).await else { continue };
        given.is_full.store(true, Ordering::Relaxed);
        given.permits.add_permits(1_000);
        given.held.drop_queue(QUEUE).await.expect("the removal needs no claim");
        given.check_removed().await;
        given.is_full.store(false, Ordering::Relaxed);
        given.held.drop_queue(QUEUE).await.expect("a repeat notes the end");
        assert!(given.entry().await.starts_with("dropped "));
    }
}

#[tokio::test]
async fn a_repeat_at_another_server_removes_the_rest() {
    let Some(given) = HeldServer::start(Build::Redis7).await else { return };
    given.drop_queue().await;
    given.other.drop_queue(QUEUE).await.expect("it was dropped already");
    given.wait_for_the_end().await;
    given.permits.add_permits(1_000);
    given.held.close().await;
    given.wait_for_the_end().await;
}
