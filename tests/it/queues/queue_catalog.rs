//! Queues whose catalog several servers share: a lost compare-and-set is decided again, and the changes of other servers
//! become visible by following.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;
use tallystone::adapters::memory;
use tallystone::adapters::system::{SystemClock, SystemEntropy};
use tallystone::domain::Reason;
use tallystone::domain::Timestamp;
use tallystone::domain::limits::{CATALOG_ATTEMPTS_MAX, CATALOG_FOLLOWED_EVERY};
use tallystone::domain::queue::messages::lease_seal::LeaseKey;
use tallystone::domain::queue::{CatalogQueue, QueueId, QueueName};
use tallystone::engine::caller_quota::CallerId;
use tallystone::engine::catalog::{Author, Etag, FollowedCatalog, Sharing};
use tallystone::engine::driver::{BackgroundLoop, Driver, NextActivation};
use tallystone::engine::loops::FollowLoop;
use tallystone::engine::queues::{DeletionRequest, QueueDraft, QueueError, Queues, SentMessage};
use tallystone::ports::{
    Catalog, EffectOutcome, QueueCatalog, QueueChange, QueueRecord, QueueRequest, QueueStores, StoreError,
    StoreErrorKind,
};

/// A catalog that servers share, with injectable faults.
#[derive(Default)]
struct SharedQueueCatalog {
    inner: memory::QueueCatalog,
    commits: AtomicI64,
    /// The faults of the next commits; the last element applies first.
    faults: Mutex<Vec<Fault>>,
}

enum Fault {
    /// Another server changes the catalog first.
    Overtaken(Box<QueueRecord>),
    /// Another server is said to have been first, though nothing changed.
    Refused,
    /// The commit happens, but its answer is lost.
    AnswerLost,
}

impl SharedQueueCatalog {
    async fn apply(&self, record: QueueRecord) -> Result<(), StoreError> {
        self.inner.commit(record).await?;
        self.commits.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn next_fault(&self) -> Option<Fault> {
        self.faults.lock().pop()
    }
}

#[async_trait]
impl Catalog<CatalogQueue> for SharedQueueCatalog {
    async fn load(&self) -> Result<Vec<CatalogQueue>, StoreError> {
        self.inner.load().await
    }

    async fn revision(&self) -> Result<Option<i64>, StoreError> {
        Ok(Some(self.commits.load(Ordering::Relaxed)))
    }

    async fn commit(&self, record: QueueRecord) -> Result<(), StoreError> {
        match self.next_fault() {
            None => self.apply(record).await,
            Some(Fault::Overtaken(other)) => {
                self.apply(*other).await?;
                self.apply(record).await
            }
            Some(Fault::Refused) => Err(StoreError::not_applied(StoreErrorKind::Conflict, "commit")),
            Some(Fault::AnswerLost) => {
                self.apply(record).await?;
                Err(StoreError::unknown(StoreErrorKind::Unavailable, "commit"))
            }
        }
    }

    async fn history(&self, name: &QueueName, skip: usize, limit: usize) -> Result<Vec<QueueChange>, StoreError> {
        self.inner.history(name, skip, limit).await
    }
}

#[async_trait]
impl QueueCatalog for SharedQueueCatalog {
    async fn save_request(&self, request: QueueRequest, now: Timestamp) -> Result<(), StoreError> {
        self.inner.save_request(request, now).await
    }

    async fn saved_request(&self, queue: QueueId, token: &str) -> Result<Option<QueueRequest>, StoreError> {
        self.inner.saved_request(queue, token).await
    }

    async fn lease_key(&self, made: LeaseKey) -> Result<LeaseKey, StoreError> {
        self.inner.lease_key(made).await
    }
}

/// A store that servers share.
struct SharedStore {
    catalog: Arc<SharedQueueCatalog>,
    stores: QueueStores,
}

impl SharedStore {
    fn new() -> Self {
        let catalog = Arc::new(SharedQueueCatalog::default());
        let stores = QueueStores { catalog: catalog.clone(), ..memory::queue_stores(Arc::new(SystemClock)) };
        Self { catalog, stores }
    }

    async fn server(&self) -> Queues {
        start(self.stores.clone()).await
    }

    fn fail_next(&self, fault: Fault) {
        self.catalog.faults.lock().push(fault);
    }

    async fn shards(&self) -> Vec<QueueId> {
        self.stores.shards.queues().await.expect("a read").into_iter().map(|queue| queue.id).collect()
    }
}

async fn start(stores: QueueStores) -> Queues {
    let clock = Arc::new(SystemClock);
    let driver = Driver::new(clock.clone());
    Queues::start(stores, clock, Arc::new(SystemEntropy), driver, Arc::default()).await.expect("it starts")
}

fn name() -> QueueName {
    QueueName::new("mail").expect("a name")
}

fn draft() -> QueueDraft {
    QueueDraft::of(name())
}

fn attempts(attempts: u32) -> QueueDraft {
    QueueDraft { default_attempts: Some(attempts), ..draft() }
}

fn author() -> Author {
    Author { actor: "test".to_owned(), reason: "because".to_owned() }
}

fn deletion() -> DeletionRequest {
    DeletionRequest { name: name(), id: None, expected: None, token: None }
}

/// The record with which another server makes the next version of a queue.
fn elsewhere(queue: &CatalogQueue, change: impl FnOnce(&mut CatalogQueue)) -> Fault {
    let mut after = queue.clone();
    after.version += 1;
    change(&mut after);
    let expected_version = Some(after.version - 1).filter(|version| *version > 0);
    let change = author().change(&after, after.updated, Vec::new());
    Fault::Overtaken(Box::new(QueueRecord { expected_version, entry: Some(after), companion: (), change }))
}

fn reason_of<T: std::fmt::Debug>(result: Result<T, QueueError>) -> Reason {
    result.expect_err("a refusal").reason()
}

#[tokio::test]
async fn a_change_of_a_queue_that_was_overtaken_is_decided_again() {
    let store = SharedStore::new();
    let queues = store.server().await;
    let made = queues.catalog.create(draft(), author()).await.expect("created");
    store.fail_next(elsewhere(&made, |queue| queue.spec.settings.quota_messages = 64));
    let stale = queues.catalog.update(attempts(5), Vec::new(), Some(Etag::of(&*made)), author()).await;
    assert_eq!(reason_of(stale), Reason::EtagMismatch);
    assert_eq!(queues.catalog.get(&name()).expect("found").spec.settings.quota_messages, 64);

    let second = queues.catalog.get(&name()).expect("found");
    store.fail_next(elsewhere(&second, |queue| queue.spec.settings.quota_messages = 65));
    let updated = queues.catalog.update(attempts(5), Vec::new(), None, author()).await.expect("decided again");
    let settings = &updated.queue.spec.settings;
    assert_eq!((updated.queue.version, settings.default_attempts, settings.quota_messages), (4, 5, 65));
    assert_eq!(updated.differences, ["default_max_attempts: 3 -> 5"]);
}

#[tokio::test]
async fn a_creation_that_was_overtaken_answers_the_queue_of_the_other_server_and_leaves_no_shards() {
    let store = SharedStore::new();
    let queues = store.server().await;
    let spec = draft().resolve_new(None).expect("defaults are valid");
    let (created, updated) = (Timestamp::MIN, Timestamp::MIN);
    let other = CatalogQueue { id: QueueId(7), spec, version: 0, created, updated, made_by: None };
    store.fail_next(elsewhere(&other, |_| {}));
    let made = queues.catalog.create(draft(), author()).await.expect("the same settings");
    assert_eq!((made.id, made.version), (QueueId(7), 1));
    assert!(store.shards().await.is_empty(), "the other server makes those of its queue");
    assert_eq!(reason_of(queues.catalog.create(attempts(5), author()).await), Reason::QueueExists);
}

#[tokio::test]
async fn a_deletion_that_was_overtaken_is_decided_again() {
    let store = SharedStore::new();
    let queues = store.server().await;
    let made = queues.catalog.create(draft(), author()).await.expect("created");
    let raised = |queue: &mut CatalogQueue| queue.spec.settings.quota_messages = 64;
    store.fail_next(elsewhere(&made, raised));
    let stale = DeletionRequest { expected: Some(Etag::of(&*made)), ..deletion() };
    assert_eq!(reason_of(queues.catalog.delete(stale, author()).await), Reason::EtagMismatch);
    assert_eq!(queues.catalog.delete(deletion(), author()).await.expect("deleted"), 0);
    assert!(store.shards().await.is_empty());
}

#[tokio::test]
async fn a_change_that_is_always_overtaken_ends() {
    let store = SharedStore::new();
    let queues = store.server().await;
    queues.catalog.create(draft(), author()).await.expect("created");
    (0..CATALOG_ATTEMPTS_MAX).for_each(|_| store.fail_next(Fault::Refused));
    let Err(QueueError::Store(error)) = queues.catalog.update(attempts(5), Vec::new(), None, author()).await else {
        panic!("a conflict");
    };
    assert_eq!((error.kind, error.outcome), (StoreErrorKind::Conflict, EffectOutcome::NotApplied));
    assert!(store.catalog.next_fault().is_none(), "each attempt met one");
    queues.catalog.update(attempts(5), Vec::new(), None, author()).await.expect("the race is over");
}

#[tokio::test]
async fn a_change_whose_answer_was_lost_is_in_all_shards_when_its_repeat_is_answered() {
    let store = SharedStore::new();
    let queues = store.server().await;
    store.fail_next(Fault::AnswerLost);
    assert_eq!(reason_of(queues.catalog.create(draft(), author()).await), Reason::OutcomeUnknown);
    let made = queues.catalog.get(&name()).expect("the store has it");
    assert_eq!(queues.catalog.create(draft(), author()).await.expect("a repeat is answered"), made);

    let blocked = QueueDraft { enqueue_blocked: Some(Some("night".into())), ..draft() };
    store.fail_next(Fault::AnswerLost);
    let lost = queues.catalog.update(blocked.clone(), Vec::new(), None, author()).await;
    assert_eq!(reason_of(lost), Reason::OutcomeUnknown);
    let repeat = queues.catalog.update(blocked, Vec::new(), None, author()).await.expect("a repeat is answered");
    assert_eq!((repeat.queue.version, repeat.differences.len()), (2, 0));
    let caller = CallerId::of_address([192, 0, 2, 1].into());
    let enqueued = queues.work.enqueue(&caller, &name(), SentMessage::default()).await;
    assert!(enqueued.is_err_and(|error| error.to_string().contains("night")));
}

#[tokio::test]
async fn changes_of_another_server_become_visible_by_following() {
    let store = SharedStore::new();
    let (here, there) = (store.server().await, store.server().await);
    let seen = async || {
        assert_eq!(here.catalog.follow().await.expect("a read"), Sharing::Shared);
        here.catalog.get(&name()).ok()
    };
    let made = there.catalog.create(draft(), author()).await.expect("created");
    assert_eq!(seen().await.as_ref(), Some(&made));
    let updated = there.catalog.update(attempts(5), Vec::new(), None, author()).await.expect("updated");
    assert_eq!(seen().await, Some(updated.queue));
    there.catalog.delete(deletion(), author()).await.expect("deleted");
    assert_eq!(seen().await, None);
    let again = there.catalog.create(draft(), author()).await.expect("created again");
    assert_eq!(seen().await.as_ref(), Some(&again));
    there.catalog.delete(deletion(), author()).await.expect("deleted");
    let third = there.catalog.create(attempts(7), author()).await.expect("a queue of the same name");
    assert_eq!(seen().await, Some(third));
    assert_eq!(here.catalog.list("", None, 9).await.len(), 1);
}

#[tokio::test]
async fn a_catalog_is_followed_where_servers_share_it() {
    let shared = SharedStore::new().server().await;
    let owned = start(memory::queue_stores(Arc::new(SystemClock))).await;
    assert_eq!(
        FollowLoop::new((*shared.catalog).clone()).activate().await,
        NextActivation::After(CATALOG_FOLLOWED_EVERY)
    );
    assert_eq!(FollowLoop::new((*owned.catalog).clone()).activate().await, NextActivation::Finished);
}
