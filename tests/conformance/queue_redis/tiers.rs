//! Durability: what the servers offer at the moment, and writes that wait for replicas.

use std::sync::Arc;
use std::time::Duration;

use tallystone_adapters::system::SystemClock;
use tallystone_domain::queue::{Durability, QueueId, Refusal, Reply, ShardId};
use tallystone_ports::{EffectOutcome, ShardCommand, ShardStore, StoreError, StoreErrorKind};
use tallystone_redis::{AskedOfServers, ClientWire, RedisQueues, ServerReport, ServerWatch};

use super::server::{QueueServer, client_of, eventually, next_queue, past_clock, queues_over};
use crate::queue_given::{dequeue, enqueue, is_new, settings};
use crate::servers::redis::{Build, RedisSettings, ReplicaPair, or_skip};

/// Settings of a server that keeps every write, and refuses writes without a replica.
const REPLICATED: [&str; 4] =
    ["appendonly yes", "appendfsync always", "min-replicas-to-write 1", "min-replicas-max-lag 10"];

fn asked(replicas: u32, declared: Option<Durability>) -> AskedOfServers {
    AskedOfServers { replicas, declared }
}

async fn one(
    queues: &RedisQueues,
    shard: ShardId,
    command: ShardCommand,
) -> Result<Result<Reply, Refusal>, StoreError> {
    queues.apply(shard, vec![command]).await.remove(0).map(|answer| answer.reply)
}

async fn new_shard(queues: &RedisQueues) -> ShardId {
    let shard = ShardId { queue: QueueId(next_queue()), number: 0 };
    queues.create(shard.queue, 1, settings().into()).await.expect("a new queue");
    shard
}

/// A server with queues that are watched.
struct WatchedServer {
    server: QueueServer,
    queues: Arc<RedisQueues>,
    watch: ServerWatch,
}

impl WatchedServer {
    async fn start(build: Build, lines: &[&str], asked: AskedOfServers) -> Option<Self> {
        println!("on {}", build.name());
        let server = or_skip(QueueServer::start_with(build, lines))?;
        let queues = server.queues(&past_clock()).await;
        let watch = ServerWatch::start(server.client().await, Arc::clone(&queues), asked, Arc::new(SystemClock)).await;
        Some(Self { server, queues, watch })
    }

    async fn look(&self) -> ServerReport {
        self.watch.look().await.expect("the server says what it is")
    }
}

#[tokio::test]
async fn the_durability_is_that_of_the_moment() {
    for build in Build::ALL {
        let lines = ["appendonly yes", "appendfsync always"];
        let Some(mut given) = WatchedServer::start(build, &lines, asked(0, None)).await else { continue };
        assert!(given.queues.capabilities().durability_may_fall);
        assert_eq!(given.queues.durability(), Some(Durability::Safe), "known from the start");
        given.server.server().config_set("appendfsync", "everysec");
        let report = given.look().await;
        assert_eq!(given.queues.durability(), Some(Durability::Fast));
        assert!(report.warnings.iter().any(|why| why.contains("appendfsync everysec")), "{:?}", report.warnings);
        given.server.server().config_set("appendonly", "no");
        given.look().await;
        assert_eq!(given.queues.durability(), None);
        given.server.server().config_set("appendonly", "yes");
        given.server.server().config_set("appendfsync", "always");
        given.look().await;
        assert_eq!(given.queues.durability(), Some(Durability::Safe), "it comes back");
        given.watch.close().await;
    }
}

#[tokio::test]
async fn where_settings_are_hidden_the_operator_declares_the_tier() {
    let lines = ["appendonly yes", "appendfsync always"];
    let declared = asked(0, Some(Durability::Safe));
    let Some(mut given) = WatchedServer::start(Build::Redis7, &lines, declared).await else { return };
    assert!(!given.look().await.is_declared);
    given.server.server().cli(&["ACL", "SETUSER", "default", "-config"]);
    let report = given.look().await;
    assert!(report.is_declared && report.warnings.iter().any(|why| why.contains("declared: SAFE")), "{report:?}");
    assert_eq!(given.queues.durability(), Some(Durability::Safe));
}

#[tokio::test]
async fn nearly_without_memory_enqueues_are_refused_and_messages_go_out() {
    let Some(mut given) = WatchedServer::start(Build::Redis7, &[], asked(0, None)).await else { return };
    let shard = new_shard(&given.queues).await;
    assert!(is_new(&one(&given.queues, shard, enqueue("a", 0, b"")).await.expect("there is room")));
    let used: u64 = given.server.server().info("used_memory").parse().expect("a number");
    given.server.server().config_set("maxmemory", &(used / 97 * 100).to_string());
    assert!(given.look().await.is_nearly_full);
    let commands = vec![enqueue("b", 0, b""), dequeue(1), enqueue("c", 0, b"")];
    let answers = given.queues.apply(shard, commands).await;
    for refused in [&answers[0], &answers[2]] {
        let refused = refused.as_ref().expect_err("there is too little room");
        assert_eq!((refused.kind, refused.outcome), (StoreErrorKind::Full, EffectOutcome::NotApplied), "{refused}");
    }
    assert!(answers[1].as_ref().is_ok_and(|answer| answer.messages.len() == 1), "{:?}", answers[1]);
    given.server.server().config_set("maxmemory", &(used * 10).to_string());
    given.look().await;
    assert!(is_new(&one(&given.queues, shard, enqueue("b", 0, b"")).await.expect("there is room again")));
}

#[tokio::test]
async fn with_a_frozen_replica_no_write_is_acknowledged_and_no_repeat() {
    for build in Build::ALL {
        println!("on {}", build.name());
        let Some(pair) = or_skip(ReplicaPair::start(build, &RedisSettings::of(&REPLICATED))) else { continue };
        let client = client_of(&pair.primary).await;
        let wire = ClientWire::replicated(Arc::clone(&client), 1, Duration::from_secs(5));
        let queues = queues_over(wire, &past_clock());
        let clock = Arc::new(SystemClock);
        let watch = ServerWatch::start(client, Arc::clone(&queues), asked(1, None), clock).await;
        assert_eq!(queues.durability(), Some(Durability::Replicated));
        // A disk that pauses holds a replica up: what it has not yet is repeated.
        let shard = ShardId { queue: QueueId(next_queue()), number: 0 };
        let create = async || queues.create(shard.queue, 1, settings().into()).await.is_ok();
        eventually("the replica has the queue", create).await;
        let enqueued = async |id: &str| one(&queues, shard, enqueue(id, 0, b"")).await.is_ok_and(|reply| reply.is_ok());
        eventually("the replica has the message", async || enqueued("a").await).await;
        pair.replica.pause();
        for id in ["b", "a"] {
            let unknown = one(&queues, shard, enqueue(id, 0, b"")).await.expect_err("no replica has it");
            assert_eq!(unknown.outcome, EffectOutcome::Unknown, "{id}: {unknown}");
        }
        pair.replica.resume();
        eventually("the replica follows", async || enqueued("b").await).await;
        let known = async || match one(&queues, shard, enqueue("b", 0, b"")).await {
            Ok(again) => {
                assert!(matches!(again, Ok(Reply::Enqueued { already_enqueued: true, .. })), "{again:?}");
                true
            }
            Err(_not_yet) => false,
        };
        eventually("the replica has the repeat", known).await;
        watch.close().await;
    }
}
