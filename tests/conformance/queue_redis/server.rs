//! Redis and Valkey servers of the tests' own, and the queues on them.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tallystone::adapters::manual::ManualClock;
use tallystone::adapters::redis::client::{ClientOptions, Deployment, FunctionLibrary, RedisClient};
use tallystone::adapters::redis::{ClientWire, QueueLibrary, RedisQueueOptions, RedisQueues};
use tallystone::adapters::system::SystemClock;
use tallystone::domain::Timestamp;
use tallystone::ports::Clock as _;

use crate::servers::redis::{Build, RedisServer, RedisSettings, or_skip};

/// How long a call may take on a busy machine.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);
/// The settings of a server with queues: hashes of answers and ids stay compact.
const LINES: [&str; 2] = ["hash-max-listpack-value 512", "hash-max-listpack-entries 512"];

/// A server with queues, which ends with its value.
pub struct QueueServer {
    server: RedisServer,
}

impl QueueServer {
    /// Starts a server; an error says what is missing.
    pub fn start(build: Build) -> Result<Self, String> {
        Self::start_with(build, &[])
    }

    /// Starts a server with further lines of settings.
    pub fn start_with(build: Build, lines: &[&str]) -> Result<Self, String> {
        Ok(Self { server: RedisServer::start_with(build, RedisSettings::of(&[&LINES, lines].concat()))? })
    }

    /// The server itself, to restart it or to look past the store.
    pub fn server(&mut self) -> &mut RedisServer {
        &mut self.server
    }

    /// A client of it, with the library of queues.
    pub async fn client(&self) -> Arc<RedisClient> {
        client_of(&self.server).await
    }

    /// The queues on it, at the time of the clock.
    pub async fn queues(&self, clock: &ManualClock) -> Arc<RedisQueues> {
        queues_over(ClientWire::new(self.client().await), clock)
    }
}

/// A client of a server, with the library of queues.
pub async fn client_of(server: &RedisServer) -> Arc<RedisClient> {
    client_at(Deployment::Single { address: server.address().to_string() }).await
}

/// The same of any deployment.
pub async fn client_at(deployment: Deployment) -> Arc<RedisClient> {
    let QueueLibrary { name, code, .. } = QueueLibrary::assemble();
    let options =
        ClientOptions { deployment, login: None, timeout: ANSWERS_WITHIN, library: FunctionLibrary { name, code } };
    // Its deadlines are real time, whatever the time of the queues.
    RedisClient::open(options, Arc::new(SystemClock)).await.expect("the server takes connections")
}

/// The queues behind a connection, at the time of the clock.
pub fn queues_over(wire: ClientWire, clock: &ManualClock) -> Arc<RedisQueues> {
    let options =
        RedisQueueOptions { epoch: 1, clock_slack: Duration::ZERO, outbox_entries: 1_000_000, durability: None };
    RedisQueues::new(Arc::new(wire), Arc::new(clock.clone()), options)
}

/// The server that the tests which run at once share; each test has queues of its own. It ends with the last of them.
pub fn shared(build: Build) -> Option<Arc<QueueServer>> {
    static SERVERS: Mutex<[Weak<QueueServer>; Build::ALL.len()]> = Mutex::new([Weak::new(), Weak::new(), Weak::new()]);
    let shared = &mut SERVERS.lock()[build as usize];
    if let Some(server) = shared.upgrade() {
        return Some(server);
    }
    let server = Arc::new(or_skip(QueueServer::start(build))?);
    *shared = Arc::downgrade(&server);
    Some(server)
}

/// The id of a queue that no other test of this process has.
pub fn next_queue() -> u128 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    u128::from(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A clock that lies before that of the server, so that its time counts.
pub fn past_clock() -> ManualClock {
    ManualClock::at(Timestamp::from_secs(1_000_000_000))
}

/// Waits for what other tasks or a server that starts will do.
pub async fn eventually(what: &str, is_so: impl AsyncFn() -> bool) {
    let deadline = SystemClock.elapsed() + ANSWERS_WITHIN;
    while !is_so().await {
        assert!(SystemClock.elapsed() < deadline, "not in time: {what}");
        tokio::task::yield_now().await;
    }
}
