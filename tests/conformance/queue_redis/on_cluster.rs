//! A shard on a cluster whose slot moves and whose primary dies, under load: what was answered is there, once.

#[allow(dead_code, reason = "each test binary takes what it needs")]
#[path = "../../it/support/yardstick.rs"]
mod yardstick;

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tallystone_adapters::system::SystemClock;
use tallystone_domain::queue::messages::settlement::SettleAction;
use tallystone_domain::queue::{MessageState, QueueId, Reply, Settings, ShardId};
use tallystone_ports::{Clock as _, EffectOutcome, ShardAnswer, ShardCommand, ShardReader, ShardStore, StoreError};
use tallystone_redis::client::{Deployment, Slot};
use tallystone_redis::{ClientWire, RedisQueues};

use super::server::{client_at, eventually, next_queue, past_clock, queues_over};
use crate::queue_given::{dequeue, enqueue, settings, settle};
use crate::servers::redis::{Build, RedisCluster, or_skip};
use yardstick::Yardstick;

/// The messages that are there before anything happens.
const BEFORE: usize = 1_000;
/// How long one call may be tried again.
const BACK_WITHIN: Duration = Duration::from_secs(30);

/// A cluster with one shard of 1,000 messages.
struct OnCluster {
    cluster: RedisCluster,
    slot: u16,
    queue: LoadedQueue,
}

/// The shard, as a server sees it.
struct LoadedQueue {
    queues: Arc<RedisQueues>,
    shard: ShardId,
    /// A node to which nothing happens.
    still: SocketAddr,
}

/// What a load was answered.
#[derive(Default)]
struct Load {
    enqueued: BTreeSet<String>,
    completed: BTreeSet<String>,
    /// Calls without an answer that may have been done.
    unknown: usize,
    /// The longest call, without what the machine kept from it.
    longest: Duration,
}

impl OnCluster {
    async fn start(build: Build) -> Option<Self> {
        println!("on {}", build.name());
        let cluster = or_skip(RedisCluster::start(build))?;
        let client = client_at(Deployment::Cluster { seeds: cluster.addresses() }).await;
        let queues = queues_over(ClientWire::new(client), &past_clock());
        let shard = ShardId { queue: QueueId(next_queue()), number: 0 };
        let room = Settings { quota_messages: 1 << 20, quota_bytes: 1 << 30, ..settings() };
        queues.create(shard.queue, 1, room.into()).await.expect("a new queue");
        let sent = (0..BEFORE).map(|number| enqueue(&format!("before-{number}"), 1, b"payload")).collect();
        assert!(queues.apply(shard, sent).await.iter().all(Result::is_ok));
        let header = cluster.nodes.iter().map(|node| node.cli(&["KEYS", "*}m"])).find(|keys| !keys.trim().is_empty());
        let slot = Slot::of(header.expect("the shard is on one of the nodes").trim().as_bytes()).number();
        let still = cluster.nodes[(cluster.owner_of(slot, 0) + 2) % 3].address();
        Some(Self { queue: LoadedQueue { queues, shard, still }, cluster, slot })
    }

    fn owner(&self) -> usize {
        self.cluster.owner_of(self.slot, 0)
    }

    /// Moves what a slot holds from one node to another, key by key.
    fn migrate(&self, from: usize, to: usize) -> usize {
        let address = self.cluster.nodes[to].address();
        let (host, port) = (address.ip().to_string(), address.port().to_string());
        let mut moved = 0;
        loop {
            let keys = self.cluster.nodes[from].cli(&["CLUSTER", "GETKEYSINSLOT", &self.slot.to_string(), "50"]);
            let keys: Vec<&str> = keys.lines().filter(|key| !key.is_empty()).collect();
            if keys.is_empty() {
                return moved;
            }
            moved += keys.len();
            let migrate = ["MIGRATE", &host, &port, "", "0", "5000", "KEYS"];
            self.cluster.nodes[from].cli(&[&migrate[..], &keys[..]].concat());
        }
    }
}

impl LoadedQueue {
    /// Enqueues, leases and completes messages until the flag is set, each call until it is answered.
    async fn load(&self, ends: &AtomicBool) -> Load {
        let (mut load, still) = (Load::default(), self.still);
        // Whatever comes, it took its time.
        let yardstick = Yardstick::of(move || drop(ping(still)));
        while !ends.load(Ordering::Relaxed) {
            let id = format!("new-{}", load.enqueued.len());
            let answer = self.until_answered(&mut load, &yardstick, enqueue(&id, 1, b"payload")).await;
            assert!(matches!(answer.reply, Ok(Reply::Enqueued { .. })), "{:?}", answer.reply);
            load.enqueued.insert(id);
            let answer = self.until_answered(&mut load, &yardstick, dequeue(1)).await;
            let Ok(Reply::Leases { leases, .. }) = &answer.reply else { panic!("leases: {:?}", answer.reply) };
            let [lease] = &leases[..] else { panic!("one of a thousand messages: {leases:?}") };
            let settled = self.until_answered(&mut load, &yardstick, settle(lease.token, SettleAction::Complete)).await;
            assert!(matches!(settled.reply, Ok(Reply::Settled(_))), "{:?}", settled.reply);
            let id = answer.messages[0].head.id.to_string();
            assert!(load.completed.insert(id.clone()), "{id} was completed twice");
        }
        load
    }

    /// Makes one call until it is answered.
    async fn until_answered(&self, load: &mut Load, beside: &Yardstick, command: ShardCommand) -> ShardAnswer {
        let began = Instant::now();
        loop {
            match self.queues.apply(self.shard, vec![command.clone()]).await.remove(0) {
                Ok(answer) => {
                    load.longest = load.longest.max(began.elapsed().saturating_sub(beside.kept(began)));
                    return answer;
                }
                Err(error) => self.note(load, &error, began.elapsed()),
            }
        }
    }

    fn note(&self, load: &mut Load, error: &StoreError, lasts: Duration) {
        assert!(lasts < BACK_WITHIN, "it does not come back: {error:?}");
        load.unknown += usize::from(error.outcome == EffectOutcome::Unknown);
    }

    /// All that was acknowledged is there, and no more than calls without an answer may have added.
    async fn check(&self, load: &Load) {
        let totals = self.queues.totals(self.shard).await.expect("totals").totals;
        let count = |state| totals.of(state).messages as usize;
        let [pending, running, completed] =
            [MessageState::Pending, MessageState::Running, MessageState::Completed].map(count);
        let all = BEFORE + load.enqueued.len();
        assert_eq!(pending + running + completed, all, "{pending} pending, {running} running, {completed} completed");
        assert_eq!(completed, load.completed.len());
        assert!(running <= load.unknown, "{running} are leased to nobody that knows");
        let mut left = BTreeSet::new();
        while left.len() < pending {
            let answer = self.queues.apply(self.shard, vec![dequeue(64)]).await.remove(0).expect("it is back");
            assert!(!answer.messages.is_empty(), "{} of {pending}", left.len());
            for message in &answer.messages {
                let id = message.head.id.to_string();
                assert!(!load.completed.contains(&id), "{id} was completed before");
                assert!(left.insert(id), "none comes twice");
            }
        }
    }
}

/// An empty call of a server of Redis.
fn ping(address: SocketAddr) -> std::io::Result<()> {
    let mut connection = TcpStream::connect(address)?;
    connection.write_all(b"PING\r\n")?;
    connection.read_exact(&mut [0; 1])
}

/// Runs a load while something happens to the cluster.
async fn under_load(given: OnCluster, happens: impl FnOnce(&mut OnCluster) + Send + 'static) -> (OnCluster, Load) {
    let ends = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&ends);
    let queue =
        LoadedQueue { queues: Arc::clone(&given.queue.queues), shard: given.queue.shard, still: given.queue.still };
    let mut given = given;
    let act = tokio::task::spawn_blocking(move || {
        happens(&mut given);
        ended.store(true, Ordering::Relaxed);
        given
    });
    let load = queue.load(&ends).await;
    (act.await.expect("it happens"), load)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_whose_slot_moves_by_setslot_loses_nothing() {
    for build in Build::ALL {
        let Some(given) = OnCluster::start(build).await else { continue };
        let (from, to) = (given.owner(), (given.owner() + 1) % 3);
        let (given, load) = under_load(given, move |given| {
            given.cluster.begin_move(given.slot, from, to);
            let moved = given.migrate(from, to);
            assert!(moved > BEFORE / 8, "8 messages share a key: {moved}");
            given.cluster.end_move(given.slot, from, to);
        })
        .await;
        assert_eq!(given.owner(), to);
        assert_eq!(load.unknown, 0, "calls on a slot that moves are refused, or done");
        given.queue.check(&load).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_whose_slot_moves_by_migrateslots_goes_on_within_two_seconds() {
    let Some(given) = OnCluster::start(Build::Valkey9).await else { return };
    let (from, to) = (given.owner(), (given.owner() + 1) % 3);
    let (given, load) = under_load(given, move |given| {
        let slot = given.slot.to_string();
        let target = given.cluster.id(to);
        given.cluster.nodes[from].cli(&["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", &slot, &slot, "NODE", &target]);
        let deadline = SystemClock.elapsed() + BACK_WITHIN;
        while given.cluster.owner_of(given.slot, to) != to {
            assert!(SystemClock.elapsed() < deadline, "the slot does not arrive");
        }
    })
    .await;
    assert!(load.longest < Duration::from_secs(2), "{:?}", load.longest);
    given.queue.check(&load).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_whose_primary_dies_is_back_in_time_with_all_that_its_replica_had() {
    for build in Build::ALL {
        let Some(mut given) = OnCluster::start(build).await else { continue };
        let dead = given.owner();
        eventually("its replica has everything", async || given.cluster.nodes[dead].replicas_are_in_step()).await;
        given.cluster.nodes[dead].kill();
        let (given, load) = under_load(given, move |given| {
            let deadline = SystemClock.elapsed() + BACK_WITHIN;
            let others = || given.cluster.nodes.iter().enumerate().filter(|(at, _)| *at != dead).map(|(_, node)| node);
            while others().filter(|node| node.info("role") == "master").count() < 3 {
                assert!(SystemClock.elapsed() < deadline, "nobody takes its place");
            }
        })
        .await;
        let within = 2 * RedisCluster::NODE_TIMEOUT + Duration::from_secs(2);
        assert!(!load.completed.is_empty() && load.longest <= within, "{:?}", load.longest);
        given.queue.check(&load).await;
    }
}
