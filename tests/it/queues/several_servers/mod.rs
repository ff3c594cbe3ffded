//! Several servers on one store of queues, in the memory of this process. Time stands still unless a test moves it.

mod alternating;
mod cancels;
mod catalog;
mod lost_answers;
mod operations;
mod servers;
mod sessions;
mod sweeps;
mod watched_shards;

use std::sync::Arc;
use std::time::Duration;

use tallystone::adapters::manual::ManualClock;
use tallystone::adapters::memory;
use tallystone::adapters::system::SystemEntropy;
use tallystone::domain::Timestamp;
use tallystone::domain::queue::QueueName;
use tallystone::engine::caller_quota::CallerId;
use tallystone::engine::catalog::Author;
use tallystone::engine::driver::Driver;
use tallystone::engine::queues::{DequeueRequest, LeasedMessage, QueueDraft, QueueError, Queues, SentMessage};
use tallystone::ports::{Entropy, QueueStores};

/// The loops of a server that sleep at rest: clock, catalog, members, unnamed shards and operations. The sweeper sleeps only when
/// there is something to sweep later.
pub const LOOPS: usize = 5;

/// A store that servers share.
pub struct SharedStore {
    pub clock: ManualClock,
    pub stores: QueueStores,
}

/// One of the servers of a store.
pub struct SharingServer {
    pub queues: Queues,
    pub driver: Driver,
}

impl SharedStore {
    pub fn new() -> Self {
        let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
        Self { stores: memory::shared_queue_stores(Arc::new(clock.clone())), clock }
    }

    /// Starts a server, and waits until its loops are at rest.
    pub async fn server(&self) -> SharingServer {
        self.server_on(self.stores.clone()).await
    }

    /// The same, on other stores over the shared ones.
    pub async fn server_on(&self, stores: QueueStores) -> SharingServer {
        let before = self.clock.sleepers();
        let server = SharingServer::start(stores, &self.clock, Arc::new(SystemEntropy)).await;
        self.clock.wait_for_sleepers(before + LOOPS).await;
        server
    }
}

impl SharingServer {
    async fn start(stores: QueueStores, clock: &ManualClock, entropy: Arc<dyn Entropy>) -> Self {
        let clock = Arc::new(clock.clone());
        let driver = Driver::new(clock.clone());
        let started = Queues::start(stores, clock, entropy, driver.clone(), Arc::default());
        Self { queues: started.await.expect("it starts"), driver }
    }

    /// Ends it at any point, as a kill does.
    pub async fn kill(self) {
        self.driver.abandon().await;
    }

    pub async fn create(&self, draft: QueueDraft) -> Result<(), QueueError> {
        self.queues.catalog.create(draft, author()).await.map(drop)
    }

    pub async fn enqueue(&self, queue: &str) -> Result<(), QueueError> {
        self.send(queue, SentMessage::default()).await
    }

    pub async fn send(&self, queue: &str, sent: SentMessage) -> Result<(), QueueError> {
        let caller = CallerId::of_address([192, 0, 2, 1].into());
        self.queues.work.enqueue(&caller, &name(queue), sent).await.map(drop)
    }

    /// The leases of a dequeue that does not wait.
    pub async fn dequeue(&self, queue: &str, max: usize) -> Vec<LeasedMessage> {
        let asked = DequeueRequest { max, ..DequeueRequest::default() };
        self.queues.work.dequeue(&name(queue), asked).await.expect("a dequeue").take()
    }
}

pub fn name(text: &str) -> QueueName {
    QueueName::new(text).expect("a name")
}

pub fn draft(queue: &str) -> QueueDraft {
    QueueDraft::of(name(queue))
}

pub fn author() -> Author {
    Author { actor: "test".to_owned(), reason: String::new() }
}

/// Waits until it is so, for some seconds of real time. The clock of the servers stands still meanwhile.
pub async fn eventually(what: &str, is_so: impl AsyncFn() -> bool) {
    let so = async {
        while !is_so().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), so).await.unwrap_or_else(|_| panic!("never: {what}"));
}
