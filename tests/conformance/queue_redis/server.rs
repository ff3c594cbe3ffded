//! Redis and Valkey servers of the tests' own, and the queues on them.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tallystone_adapters::manual::ManualClock;
use tallystone_adapters::system::{SystemClock, SystemEntropy};
use tallystone_domain::Timestamp;
use tallystone_domain::queue::ShardId;
use tallystone_domain::queue::setup::queue_spec::Durability;
use tallystone_ports::{Clock, Entropy, QueueStores, ShardReader as _, SharedQueues, StoreErrorKind};
use tallystone_redis::client::{ClientOptions, Deployment, FunctionLibrary, RedisClient};
use tallystone_redis::{ClientWire, QueueLibrary, RedisQueueOptions, RedisQueues, RedisStores};

use crate::given;
use crate::servers::redis::{Build, RedisServer, RedisSettings, or_skip};

/// How long a call may take on a busy machine.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);
/// The pause between two looks at what is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(2);
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

    /// The same, with further lines of its settings.
    pub fn start_with(build: Build, lines: &[&str]) -> Result<Self, String> {
        Ok(Self { server: RedisServer::start_with(build, RedisSettings::of(&[&LINES, lines].concat()))? })
    }

    /// The server itself, to restart it or to look past the store.
    pub fn server(&mut self) -> &mut RedisServer {
        &mut self.server
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// A client of it, with the library of queues.
    pub async fn client(&self) -> Arc<RedisClient> {
        Self::client_at(self.address(), ANSWERS_WITHIN).await
    }

    /// A client of what listens at an address, with a deadline for its calls.
    pub async fn client_at(address: SocketAddr, timeout: Duration) -> Arc<RedisClient> {
        let QueueLibrary { name, code, .. } = QueueLibrary::assemble();
        let options = ClientOptions {
            deployment: Deployment::Single { address: address.to_string() },
            login: None,
            tls: None,
            timeout,
            library: FunctionLibrary { name, code },
        };
        // Its deadlines are real time, whatever the time of the queues.
        RedisClient::open(options, Arc::new(SystemClock)).await.expect("the server takes connections")
    }

    /// The queues on it, at the time of the clock.
    pub async fn queues(&self, clock: &ManualClock) -> Arc<RedisQueues> {
        queues_over(ClientWire::new(self.client().await), clock)
    }

    /// All stores on it, at the time of the clock.
    pub async fn stores(&self, clock: &ManualClock) -> QueueStores {
        Self::stores_of(self.client().await, clock)
    }

    /// The same of a server that syncs every write.
    pub async fn durable_stores(&self, clock: &ManualClock) -> QueueStores {
        let options = RedisQueueOptions { durability: Some(Durability::Safe), ..OPTIONS };
        RedisStores::on(self.client().await, sources(clock), options, "the test".to_owned()).queues
    }

    /// All stores behind a client.
    pub fn stores_of(client: Arc<RedisClient>, clock: &ManualClock) -> QueueStores {
        RedisStores::on(client, sources(clock), OPTIONS, "the test".to_owned()).queues
    }
}

fn sources(clock: &ManualClock) -> (Arc<dyn Clock>, Arc<dyn Entropy>) {
    (Arc::new(clock.clone()), Arc::new(SystemEntropy))
}

/// How the tests keep queues.
pub const OPTIONS: RedisQueueOptions =
    RedisQueueOptions { epoch: 1, clock_slack: Duration::ZERO, outbox_entries: 1_000_000, durability: None };

impl QueueServer {
    /// What servers share on it beside shards and catalog.
    pub async fn shared(&self, clock: &ManualClock) -> SharedQueues {
        self.stores(clock).await.shared.expect("servers share a Redis")
    }
}

/// Runs a law on what the servers of each Redis or Valkey share, whose time is that of the clock.
pub async fn on_every_redis(law: impl AsyncFn(QueueServer, ManualClock)) {
    for build in Build::ALL {
        let behind = "the clock of this machine is behind that of the tests, and Redis goes by both";
        let server = if SystemClock.now() < given::T0 { Err(behind.to_owned()) } else { QueueServer::start(build) };
        println!("on {}", build.name());
        let Some(server) = or_skip(server) else { continue };
        law(server, ManualClock::at(given::T0)).await;
    }
}

/// A client of a server, with the library of queues.
pub async fn client_of(server: &RedisServer) -> Arc<RedisClient> {
    client_at(Deployment::Single { address: server.address().to_string() }).await
}

/// The same of any deployment.
pub async fn client_at(deployment: Deployment) -> Arc<RedisClient> {
    let QueueLibrary { name, code, .. } = QueueLibrary::assemble();
    let options = ClientOptions {
        deployment,
        login: None,
        tls: None,
        timeout: ANSWERS_WITHIN,
        library: FunctionLibrary { name, code },
    };
    // Its deadlines are real time, whatever the time of the queues.
    RedisClient::open(options, Arc::new(SystemClock)).await.expect("the server takes connections")
}

/// The queues behind a connection, at the time of the clock.
pub fn queues_over(wire: ClientWire, clock: &ManualClock) -> Arc<RedisQueues> {
    RedisQueues::new(Arc::new(wire), Arc::new(clock.clone()), OPTIONS)
}

/// The same on a store of a declared durability.
pub fn queues_of(durability: Durability, wire: ClientWire, clock: &ManualClock) -> Arc<RedisQueues> {
    let options = RedisQueueOptions { durability: Some(durability), ..OPTIONS };
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
        SystemClock.sleep(LOOK_EVERY).await;
    }
}

/// Waits until calls of a shard arrive again, whatever is answered.
pub async fn until_answered(queues: &RedisQueues, shard: ShardId) {
    eventually("the server answers", async || match queues.totals(shard).await {
        Ok(_) => true,
        Err(error) => error.kind != StoreErrorKind::Unavailable,
    })
    .await;
}
