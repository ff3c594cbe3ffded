//! Servers that share the memory stores of queues, with one queue, and a clock that is moved by hand.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tallystone::adapters::manual::{ManualClock, SeededEntropy};
use tallystone::adapters::memory;
use tallystone::domain::Timestamp;
use tallystone::domain::queue::filter::Filter;
use tallystone::domain::queue::messages::message::SessionId;
use tallystone::domain::queue::messages::message_id::MessageId;
use tallystone::domain::queue::{MessageState, QueueName};
use tallystone::engine::caller_quota::CallerId;
use tallystone::engine::catalog::Author;
use tallystone::engine::queues::{
    DequeueRequest, LeasedMessage, QueueDraft, QueueError, Queues, SentMessage, SentSessionCall,
};
use tallystone::ports::QueueStores;

use super::SharingServer;

/// The lease of the sessions of these tests.
pub const SESSION_LEASE: Duration = Duration::from_secs(40);
pub const SECOND: Duration = Duration::from_secs(1);

/// The stores that the servers share.
pub struct SharedBench {
    pub clock: ManualClock,
    pub stores: QueueStores,
}

pub fn name() -> QueueName {
    QueueName::new("mail").expect("a name")
}

pub fn nobody() -> CallerId {
    CallerId::nobody()
}

/// Stores in memory that several servers may share.
pub fn shared_stores(clock: &ManualClock) -> QueueStores {
    memory::shared_queue_stores(Arc::new(clock.clone()))
}

impl SharedBench {
    /// Stores whose queue has so many shards, and two servers on them.
    pub async fn with_shards(shards: u32) -> (Self, SharingServer, SharingServer) {
        let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
        let stores = shared_stores(&clock);
        Self { clock, stores }.with_servers(shards).await
    }

    /// Makes the queue, and starts two servers.
    pub async fn with_servers(self, shards: u32) -> (Self, SharingServer, SharingServer) {
        let first = self.server(1).await;
        let draft = QueueDraft { shards: Some(shards), ..QueueDraft::of(name()) };
        let author = Author { actor: "test".to_owned(), reason: "because".to_owned() };
        first.queues.catalog.create(draft, author).await.expect("created");
        let second = self.server(2).await;
        (self, first, second)
    }

    /// Starts a server.
    pub async fn server(&self, seed: u64) -> SharingServer {
        SharingServer::start(self.stores.clone(), &self.clock, Arc::new(SeededEntropy::new(seed))).await
    }

    /// Lets time pass in steps shorter than any pause of a loop. All tasks come to rest after each.
    pub async fn pass(&self, time: Duration) {
        let step = Duration::from_millis(250);
        let mut left = time;
        while !left.is_zero() {
            let now = left.min(step);
            self.clock.advance(now);
            left -= now;
            rest().await;
        }
    }
}

/// Lets all other tasks run until each waits for the clock or for a call: nothing in these stores takes time of its own.
pub async fn rest() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

/// Enqueues messages with these ids; the priority is the number.
pub async fn enqueue(queues: &Queues, ids: impl IntoIterator<Item = u64>) {
    for number in ids {
        let id = MessageId::new(&format!("m-{number}")).expect("an id");
        let priority = Some(i64::try_from(number).expect("small"));
        let sent = SentMessage { id: Some(id), priority, ..SentMessage::default() };
        queues.work.enqueue(&nobody(), &name(), sent).await.expect("enqueued");
    }
}

/// Opens a session.
pub async fn open(queues: &Queues, label: &str) -> SessionId {
    queues.sessions.open_session(&nobody(), label, Some(SESSION_LEASE)).await.expect("opened").id
}

/// An attempt of a call of a session for up to two messages.
pub fn call(id: SessionId, sequence: u64, attempt: u32) -> DequeueRequest {
    let session = Some(SentSessionCall { id, sequence, attempt, received_up_to: None });
    DequeueRequest { max: 2, session, ..DequeueRequest::default() }
}

/// Makes a dequeue.
pub async fn dequeue(queues: &Queues, ask: DequeueRequest) -> Result<Vec<LeasedMessage>, QueueError> {
    let mut leases = queues.work.dequeue(&name(), ask).await?.take();
    leases.sort_by(|one, other| one.token.cmp(&other.token));
    Ok(leases)
}

/// The tokens of leases.
pub fn tokens(leases: &[LeasedMessage]) -> BTreeSet<String> {
    leases.iter().map(|lease| lease.token.clone()).collect()
}

/// The number of messages of a state.
pub async fn depth(queues: &Queues, state: MessageState) -> u64 {
    queues.inspect.depth(&name(), Filter::default()).await.expect("a depth").of(state)
}
