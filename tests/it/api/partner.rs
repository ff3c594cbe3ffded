//! The calls of queues with two servers on one Redis: each call goes to the server that the one before did not go to.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tallystone::adapters::memory;
use tallystone::adapters::redis::client::{Deployment, Login};
use tallystone::adapters::redis::{self, AskedOfServers, RedisQueueOptions, RedisStoreOptions, RedisStores};
use tallystone::adapters::system::SystemEntropy;
use tallystone::api::serve::ServeLimits;
use tallystone::ports::{Clock, HistoryStore, Stores};

use super::Wire;
use crate::redis::access::{PASSWORD, documented_user};
use crate::servers::redis::{Build, RedisServer, RedisSettings, or_skip};

/// Set in the process that runs the tests of queues on two servers.
const ALTERNATE: &str = "TALLYSTONE_API_ALTERNATES";
const TIMEOUT: Duration = Duration::from_secs(10);

/// What is not promised on two servers on Redis, or is about one process: docs/redis-keys.md says it under "What differs".
const NARROWED: [(&str, &str); 10] = [
    ("every_state_of_a_queue_is_counted_and_so_is_every_trouble_of_its_messages", "metrics are those of one process"),
    ("item_34_the_age_of_the_oldest_ready_message_is_told_by_queue", "the age is known to the minute"),
    ("item_75_dequeues_one_by_one_leave_no_better_message_behind_on_any_shard", "order across shards follows news"),
    ("an_id_is_one_message_of_its_queue_whatever_routes_it", "an id is unique on its shard"),
    ("a_discard_of_one_message_that_is_repeated_answers_as_the_first", "a repeat elsewhere has times of its own"),
    ("a_redrive_of_one_message_that_is_repeated_answers_as_the_first", "a repeat elsewhere has times of its own"),
    ("a_redrive_keeps_its_rate_and_tells_how_far_it_is", "others see the progress once a second"),
    ("a_redrive_that_is_cancelled_in_between_leaves_the_rest_errored", "others see the progress once a second"),
    ("the_activity_of_a_queue_is_its_depth", "a server measures rates from when it was first asked"),
    ("requires_more", "the durability of this store is another"),
];

/// A second server on the stores of a first one.
pub struct Partner {
    pub server: Box<Wire>,
    calls: AtomicUsize,
    first: RedisStores,
    _second: RedisStores,
    history: Arc<dyn HistoryStore>,
    _redis: RedisServer,
}

impl Partner {
    /// Starts Redis and a server on it, where this process runs the tests that way.
    pub async fn on_redis(stores: &Stores, deadline: Duration, clock: &Arc<dyn Clock>) -> Option<Self> {
        if !alternates() {
            return None;
        }
        let settings = RedisSettings::of(&["appendonly yes", "appendfsync everysec", &documented_user()]);
        let redis = RedisServer::start_with(Build::Redis7, settings).expect("Redis starts");
        let history: Arc<dyn HistoryStore> = Arc::new(memory::MemoryHistory::default());
        let first = open(&redis, clock).await;
        let second = open(&redis, clock).await;
        let parts = (stores.clone(), second.queues.clone(), Arc::clone(&history));
        let server = Box::pin(Wire::bind_all(parts, deadline, Arc::clone(clock), ServeLimits::default())).await;
        let (server, calls) = (Box::new(server), AtomicUsize::new(0));
        Some(Self { server, calls, first, _second: second, history, _redis: redis })
    }

    /// Starts the first server.
    pub async fn beside(self, stores: Stores, deadline: Duration, clock: Arc<dyn Clock>) -> Wire {
        let queues = self.first.queues.clone();
        let parts = (stores, queues, Arc::clone(&self.history));
        let mut wire = Box::pin(Wire::bind_all(parts, deadline, clock, ServeLimits::default())).await;
        wire.partner = Some(self);
        wire
    }

    /// The address of this server if it is its turn.
    pub fn in_turn(&self) -> Option<SocketAddr> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        (call % 2 == 1).then_some(self.server.address)
    }
}

/// Whether this process runs the tests of queues on two servers.
pub fn alternates() -> bool {
    std::env::var_os(ALTERNATE).is_some()
}

async fn open(redis: &RedisServer, clock: &Arc<dyn Clock>) -> RedisStores {
    // Without slack a shard has the time of the tests' clock, which is behind that of Redis.
    let queues = RedisQueueOptions { epoch: 1, clock_slack: Duration::ZERO, outbox_entries: 100, durability: None };
    let deployment = Deployment::Single { address: redis.address().to_string() };
    let asked = AskedOfServers { replicas: 0, declared: None };
    // All that the calls of queues need is within the rights that the manual names.
    let login = Some(Login { user: Some("tallystone".to_owned()), password: PASSWORD.into() });
    let options = RedisStoreOptions { deployment, login, tls: None, timeout: TIMEOUT, queues, asked };
    redis::open(options, Arc::clone(clock), Arc::new(SystemEntropy)).await.unwrap_or_else(|error| panic!("{error}"))
}

/// Runs the tests of the queues' calls once more, in a process where each call goes to the other one of two servers.
#[test]
fn the_calls_of_queues_hold_with_each_call_to_the_other_one_of_two_servers() {
    if or_skip(RedisServer::start(Build::Redis7)).is_none() {
        return;
    }
    let tests = std::env::current_exe().expect("this program");
    let output = Command::new(tests)
        .args(["api::queues::", "--test-threads", "4"])
        .args(NARROWED.iter().flat_map(|(name, _)| ["--skip", *name]))
        .env(ALTERNATE, "1")
        .output()
        .expect("the tests run");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    println!("{}", text.lines().rev().find(|line| line.starts_with("test result")).unwrap_or_default());
}
