//! What the laws of queues are tried on: one queue of a few shards on every store of queues.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tallystone_adapters::manual::ManualClock;
use tallystone_adapters::memory;
use tallystone_adapters::system::SystemClock;
use tallystone_domain::queue::command::{Dequeue, FailureReport, LeaseGrant, NewMessage};
use tallystone_domain::queue::messages::message::{LeaseToken, MessageKey, Metadata};
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::queue::messages::settlement::SettleAction;
use tallystone_domain::queue::setup::settings::{MessageRetryPolicy, Retention};
use tallystone_domain::queue::{
    Command, Durability, QueueId, QueueName, QueueSpec, Refusal, Reply, Settings, ShardId, ShardSettings,
};
use tallystone_embedded::{Embedded, Options};
use tallystone_ports::{
    Clock as _, MessageBody, QueueListener, QueueStores, ShardAnswer, ShardCapabilities, ShardCommand, ShardStatus,
    StoreError, StoredMessage,
};

use tempfile::TempDir;

use crate::backends::{Ending, copy, directory, open_store};
use crate::given;
use crate::queue_redis::server::QueueServer;
use crate::servers::redis::{Build, or_skip};

/// The queue of most laws.
pub const QUEUE: QueueId = QueueId(7);
/// Its first shard.
pub const SHARD: ShardId = ShardId { queue: QUEUE, number: 0 };
/// Its second shard.
pub const OTHER_SHARD: ShardId = ShardId { queue: QUEUE, number: 1 };

/// A store of queues; a new one is added here and in `QueueBench::open`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueBackend {
    /// The core in ordered maps: the oracle.
    Memory,
    /// The same, with a catalog that several servers share.
    SharedMemory,
    /// The durable store inside the process.
    Embedded,
    /// A Redis or Valkey server of the test's own.
    Redis(Build),
}

const QUEUE_BACKENDS: [QueueBackend; 6] = [
    QueueBackend::Memory,
    QueueBackend::SharedMemory,
    QueueBackend::Embedded,
    QueueBackend::Redis(Build::Redis7),
    QueueBackend::Redis(Build::Redis8),
    QueueBackend::Redis(Build::Valkey9),
];

/// A freshly opened store of queues with its clock.
pub struct QueueBench {
    /// The stores.
    pub stores: QueueStores,
    /// The time of the shards.
    pub clock: ManualClock,
    /// The store and its directory, where there is one. In this order: it is closed before its directory goes.
    kept: Option<(Embedded, TempDir)>,
    /// The server, where there is one.
    server: Option<QueueServer>,
}

impl QueueBench {
    async fn open(backend: QueueBackend) -> Result<Self, String> {
        let clock = ManualClock::at(given::T0);
        let stores = memory::queue_stores(Arc::new(clock.clone()));
        match backend {
            QueueBackend::Memory => Ok(Self { stores, clock, kept: None, server: None }),
            QueueBackend::SharedMemory => {
                let stores = memory::shared_queue_stores(Arc::new(clock.clone()));
                Ok(Self { stores, clock, kept: None, server: None })
            }
            QueueBackend::Embedded => Ok(Self::open_embedded(clock, directory().expect("a temporary folder"), 0)),
            QueueBackend::Redis(build) => {
                if SystemClock.now() < given::T0 {
                    return Err("the clock of this machine is behind that of the tests, and Redis goes by both".into());
                }
                let server = QueueServer::start(build)?;
                let stores = server.stores(&clock).await;
                Ok(Self { stores, clock, kept: None, server: Some(server) })
            }
        }
    }

    /// A Redis that syncs every write before it answers.
    async fn open_durable_redis() -> Result<Self, String> {
        let clock = ManualClock::at(given::T0);
        let server = QueueServer::start_with(Build::Redis7, &["appendonly yes", "appendfsync always"])?;
        let stores = server.durable_stores(&clock).await;
        Ok(Self { stores, clock, kept: None, server: Some(server) })
    }

    /// Where the store narrows the laws.
    pub fn capabilities(&self) -> ShardCapabilities {
        self.stores.shards.capabilities()
    }

    /// Whether the store is in this process, on a disk.
    pub fn is_embedded(&self) -> bool {
        self.kept.is_some()
    }

    fn open_embedded(clock: ManualClock, dir: TempDir, reserve_bytes: u64) -> Self {
        let options = Options { reserve_bytes, block_bytes: 1 << 20, ..Options::new(dir.path()) };
        let store = open_store(&options).expect("the store opens");
        let stores = store.queue_stores(Arc::new(clock.clone()));
        Self { stores, clock, kept: Some((store, dir)), server: None }
    }

    /// Ends a durable store and opens it again where what is free is kept for what takes messages out.
    pub async fn reopen_without_room(self, ending: Ending) -> Self {
        let (store, _) = self.kept.as_ref().expect("a durable bench has a store");
        let free = store.health().free_bytes.expect("a file system that answers");
        self.reopen_with(ending, free * 2).await
    }

    /// Ends a durable store and opens it again.
    pub async fn reopen(self, ending: Ending) -> Self {
        self.reopen_with(ending, 0).await
    }

    async fn reopen_with(mut self, ending: Ending, reserve_bytes: u64) -> Self {
        if let Some(mut server) = self.server.take() {
            server.server().restart().expect("it starts on what it had synced");
            let stores = server.durable_stores(&self.clock).await;
            return Self { stores, server: Some(server), ..self };
        }
        let (store, dir) = self.kept.expect("a durable bench has a directory");
        let dir = match ending {
            Ending::Closed => {
                store.close();
                dir
            }
            Ending::Killed => copy(dir.path()).expect("the directory can be copied"),
        };
        drop(store);
        Self::open_embedded(self.clock, dir, reserve_bytes)
    }

    /// Applies commands to a shard.
    pub async fn apply(&self, shard: ShardId, commands: Vec<ShardCommand>) -> Vec<Result<ShardAnswer, StoreError>> {
        let count = commands.len();
        let answers = self.stores.shards.apply(shard, commands).await;
        assert_eq!(answers.len(), count, "an answer for each command");
        answers
    }

    /// Applies one command that the store takes.
    pub async fn one(&self, shard: ShardId, command: ShardCommand) -> ShardAnswer {
        self.apply(shard, vec![command]).await.remove(0).expect("the store takes the command")
    }

    /// Takes messages, best first.
    pub async fn dequeue(&self, shard: ShardId, max: usize) -> Vec<(LeaseGrant, StoredMessage)> {
        let answer = self.one(shard, dequeue(max)).await;
        let Ok(Reply::Leases { leases, .. }) = answer.reply else { panic!("leases: {:?}", answer.reply) };
        assert_eq!(leases.len(), answer.messages.len());
        leases.into_iter().zip(answer.messages).collect()
    }
}

/// Runs a law on every store of queues, each with the queue `QUEUE` of two shards.
pub async fn on_every_queue_store(law: impl AsyncFn(QueueBench)) {
    for backend in QUEUE_BACKENDS {
        println!("on {backend:?}");
        let Some(bench) = or_skip(QueueBench::open(backend).await) else { continue };
        bench.stores.shards.create(QUEUE, 2, settings().into()).await.expect("a new queue");
        law(bench).await;
    }
}

/// Runs a law of durable stores of queues, with each way to end.
pub async fn on_every_durable_queue_store(law: impl AsyncFn(QueueBench, Ending)) {
    on_the_embedded_store(&law).await;
    println!("on Redis, {:?}", Ending::Killed);
    let Some(bench) = or_skip(QueueBench::open_durable_redis().await) else { return };
    bench.stores.shards.create(QUEUE, 2, settings().into()).await.expect("a new queue");
    law(bench, Ending::Killed).await;
}

/// The same of what only the embedded store promises: exact time over a restart, ids of a whole queue, room on its disk, and one
/// clock of the store. `queue_redis` has what Redis does instead.
pub async fn on_the_embedded_store(law: impl AsyncFn(QueueBench, Ending)) {
    for ending in [Ending::Closed, Ending::Killed] {
        println!("on {:?}, {ending:?}", QueueBackend::Embedded);
        let bench = QueueBench::open(QueueBackend::Embedded).await.expect("a store inside the process opens");
        bench.stores.shards.create(QUEUE, 2, settings().into()).await.expect("a new queue");
        law(bench, ending).await;
    }
}

/// Settings that a service would use.
pub fn settings() -> Settings {
    let hour = Duration::from_secs(3_600);
    Settings {
        default_lease: Duration::from_secs(30),
        max_run_time: 12 * hour,
        retry: MessageRetryPolicy {
            initial: Duration::from_secs(1),
            factor_percent: 200,
            max: Duration::from_secs(60),
            jitter_percent: 0,
        },
        retention: Retention { completed: hour, canceled: hour, errored: 2 * hour },
        dedupe_window: hour,
        dedupe_max_bytes: 1 << 20,
        quota_messages: 1_000,
        quota_bytes: 1 << 20,
        ..Settings::default()
    }
}

/// A queue of the catalog.
pub fn spec(name: &str, description: &str) -> QueueSpec {
    QueueSpec {
        name: QueueName::new(name).expect("a valid name"),
        description: description.to_owned(),
        template_for: None,
        shards: 2,
        required_durability: Some(Durability::Safe),
        settings: settings(),
        enqueue_blocked: None,
        dequeue_blocked: None,
    }
}

/// An enqueue of a message with this id, priority and payload.
pub fn enqueue(id: &str, priority: i64, payload: &[u8]) -> ShardCommand {
    let message = NewMessage {
        id: MessageId::new(id).expect("a valid id"),
        token_time: None,
        routing: None,
        metadata: Metadata::default(),
        payload_bytes: u32::try_from(payload.len()).expect("a small payload"),
        fingerprint: payload.iter().fold(7, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte))),
        priority: Some(priority),
        class: None,
        invisibility: None,
        visible_at: None,
        lease_duration: None,
        max_attempts: None,
        ttl: None,
    };
    ShardCommand { command: Command::Enqueue(Box::new(message)), body: body(payload) }
}

/// The same, invisible for some time.
pub fn enqueue_later(id: &str, after: Duration) -> ShardCommand {
    let mut sent = enqueue(id, 0, b"later");
    let Command::Enqueue(message) = &mut sent.command else { panic!("it is an enqueue") };
    message.invisibility = Some(after);
    sent
}

/// A body with everything in it.
pub fn body(payload: &[u8]) -> MessageBody {
    MessageBody {
        payload: Bytes::copy_from_slice(payload),
        kind: Some("invoice".into()),
        trace_context: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into()),
    }
}

/// A dequeue of so many.
pub fn dequeue(max: usize) -> ShardCommand {
    ShardCommand::of(Command::Dequeue(Dequeue { max, ..Dequeue::default() }))
}

/// A settlement.
pub fn settle(token: LeaseToken, verb: SettleAction) -> ShardCommand {
    ShardCommand::of(Command::Settle { token, verb, failure: FailureReport::default() })
}

/// A version of settings without blocks.
pub fn configure(version: u64, settings: Settings) -> ShardCommand {
    configure_with(ShardSettings { version, ..settings.into() })
}

/// A version of settings and blocks.
pub fn configure_with(settings: ShardSettings) -> ShardCommand {
    ShardCommand::of(Command::Configure(Box::new(settings)))
}

/// Whether the reply is that of a first enqueue.
pub fn is_new(reply: &Result<Reply, Refusal>) -> bool {
    matches!(reply, Ok(Reply::Enqueued { already_enqueued: false, .. }))
}

/// Keeps the news of shards.
#[derive(Default)]
pub struct News {
    statuses: Mutex<Vec<(ShardId, ShardStatus)>>,
    /// The running messages that should be canceled.
    pub cancels: Mutex<Vec<(ShardId, MessageKey)>>,
}

impl QueueListener for News {
    fn changed(&self, shard: ShardId, view: ShardStatus) {
        self.statuses.lock().push((shard, view));
    }

    fn cancel_requested(&self, shard: ShardId, key: MessageKey) {
        self.cancels.lock().push((shard, key));
    }
}

impl News {
    /// The newest view of a shard.
    pub fn newest(&self, shard: ShardId) -> Option<ShardStatus> {
        let news = self.statuses.lock();
        news.iter().filter(|(of, _)| *of == shard).map(|(_, view)| *view).max_by_key(|view| view.step)
    }
}
