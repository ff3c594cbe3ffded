//! A worker whose settlements a busy store refuses.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use tallystone::adapters::memory;
use tallystone::adapters::system::SystemClock;
use tallystone::client::queues::{Job, Outcome, Shutdown, Tally, Worker};
use tallystone::client::{Client, RetryPolicy};
use tallystone::domain::Timestamp;
use tallystone::domain::queue::command::MessageRef;
use tallystone::domain::queue::explain::{Cause, Prospect};
use tallystone::domain::queue::filter::Filter;
use tallystone::domain::queue::pace::StepTime;
use tallystone::domain::queue::session::{Session, SessionId};
use tallystone::domain::queue::{Command, Durability, QueueId, Settings, ShardId, State};
use tallystone::ports::{
    FilteredDepth, MessagesAt, QueueListener, QueueStore, QueueStores, ShardAnswer, ShardCommand, ShardTotals,
    StoreError, StoreErrorKind, StoredMessage,
};
use tokio::sync::watch;

use super::super::{DRAIN_DEADLINE, Wire};

const HOUR: Duration = Duration::from_secs(3_600);

/// A store that refuses so many settlements before it takes one.
struct Busy {
    inner: Arc<dyn QueueStore>,
    left: watch::Sender<u32>,
}

impl Busy {
    fn refuses(&self, sent: &ShardCommand) -> bool {
        let refused = |left: &mut u32| {
            let some = *left > 0;
            *left = left.saturating_sub(1);
            some
        };
        matches!(sent.command, Command::Settle { .. }) && self.left.send_if_modified(refused)
    }
}

#[async_trait]
impl QueueStore for Busy {
    fn durability(&self) -> Option<Durability> {
        self.inner.durability()
    }

    async fn apply(&self, shard: ShardId, commands: Vec<ShardCommand>) -> Vec<Result<ShardAnswer, StoreError>> {
        let refused: Vec<bool> = commands.iter().map(|sent| self.refuses(sent)).collect();
        let taken =
            commands.into_iter().zip(&refused).filter(|(_, refused)| !**refused).map(|(sent, _)| sent).collect();
        let mut answers = self.inner.apply(shard, taken).await.into_iter();
        let busy = || Err(StoreError::not_applied(StoreErrorKind::Busy, "settle"));
        refused.iter().map(|refused| if *refused { busy() } else { answers.next().expect("an answer each") }).collect()
    }

    async fn create(&self, queue: QueueId, shards: u32, settings: Settings) -> Result<(), StoreError> {
        self.inner.create(queue, shards, settings).await
    }

    async fn drop_queue(&self, queue: QueueId) -> Result<(), StoreError> {
        self.inner.drop_queue(queue).await
    }

    async fn queues(&self) -> Result<Vec<(QueueId, u32)>, StoreError> {
        self.inner.queues().await
    }

    async fn get(&self, shard: ShardId, message: MessageRef) -> Result<Option<(StoredMessage, Timestamp)>, StoreError> {
        self.inner.get(shard, message).await
    }

    async fn peek(&self, shard: ShardId, limit: usize) -> Result<MessagesAt, StoreError> {
        self.inner.peek(shard, limit).await
    }

    async fn list(&self, shard: ShardId, state: State, after: u64, limit: usize) -> Result<MessagesAt, StoreError> {
        self.inner.list(shard, state, after, limit).await
    }

    async fn totals(&self, shard: ShardId) -> Result<ShardTotals, StoreError> {
        self.inner.totals(shard).await
    }

    async fn depth(&self, shard: ShardId, filter: Filter) -> Result<FilteredDepth, StoreError> {
        self.inner.depth(shard, filter).await
    }

    async fn sessions(&self, shard: ShardId) -> Result<Vec<(SessionId, Session)>, StoreError> {
        self.inner.sessions(shard).await
    }

    async fn explain(&self, shard: ShardId, message: MessageRef) -> Result<(Vec<Cause>, Timestamp), StoreError> {
        self.inner.explain(shard, message).await
    }

    async fn prospect(&self, shard: ShardId, filter: Filter) -> Result<(Prospect, Timestamp), StoreError> {
        self.inner.prospect(shard, filter).await
    }

    async fn clock(&self) -> Result<StepTime, StoreError> {
        self.inner.clock().await
    }

    async fn reset_clock(&self) -> Result<Option<Timestamp>, StoreError> {
        self.inner.reset_clock().await
    }

    fn listen(&self, listener: Arc<dyn QueueListener>) {
        self.inner.listen(listener);
    }
}

/// A server with one message that has one attempt, on a store that refuses so many settlements; a worker of the queue whose
/// calls are made once each, and how many refusals are left.
async fn with_busy_store(refusals: u32) -> (Wire, Worker, watch::Receiver<u32>) {
    let (left, seen) = watch::channel(refusals);
    let clock = Arc::new(SystemClock);
    let stores = memory::queue_stores(clock.clone());
    let busy = QueueStores { shards: Arc::new(Busy { inner: stores.shards, left }), catalog: stores.catalog };
    let mut server = Wire::bind_to(memory::stores(), busy, DRAIN_DEADLINE, clock).await;
    server.open().await;
    let queue = json!({"name": "mail", "default_lease": "3600s", "default_max_attempts": 1});
    server.done("CreateQueue", json!({"queue": queue})).await;
    server.done("Enqueue", json!({"queue": "mail", "message": {"message_id": "a"}})).await;
    let policy = RetryPolicy { attempts_max: 1, ..RetryPolicy::default() };
    let client = Client::new(&server.address.to_string(), policy).expect("a valid address");
    (server, client.worker("mail").session_lease(HOUR), seen)
}

async fn ends(work: impl Future<Output = Tally>) -> Tally {
    tokio::time::timeout(Duration::from_secs(60), work).await.expect("the worker ends")
}

#[tokio::test]
async fn a_settlement_that_a_busy_store_refuses_is_sent_again() {
    let (server, worker, left) = with_busy_store(2).await;
    let (done, shutdown) = (async |_: Job| Outcome::Complete, Shutdown::default());
    let worker = worker.until_empty();
    let tally = ends(async { worker.run(done, &shutdown).await.expect("it works") }).await;
    assert_eq!((tally.completed, tally.others, *left.borrow()), (1, 0, 0), "{tally:?}");
    let depth = server.done("GetDepth", json!({"queue": "mail"})).await;
    assert_eq!((&depth["completed"], &depth["errored"]), (&json!("1"), &json!("0")), "{depth}");
}

#[tokio::test]
async fn a_worker_that_is_ended_does_not_insist_on_a_settlement() {
    let (server, worker, mut left) = with_busy_store(u32::MAX).await;
    let (done, shutdown) = (async |_: Job| Outcome::Complete, Shutdown::default());
    let end = async {
        left.wait_for(|left| *left < u32::MAX - 1).await.expect("the store lives");
        shutdown.end();
    };
    let run = async { worker.run(done, &shutdown).await.expect("it works") };
    let tally = ends(async { tokio::join!(run, end).0 }).await;
    assert_eq!((tally.completed, tally.others), (0, 1), "{tally:?}");
    let depth = server.done("GetDepth", json!({"queue": "mail"})).await;
    assert_eq!((&depth["completed"], &depth["errored"]), (&json!("0"), &json!("0")), "{depth}");
    assert_eq!(depth["pending"], "1", "given back with the session: {depth}");
}
