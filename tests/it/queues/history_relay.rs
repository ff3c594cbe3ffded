//! The relay of the history through the engine: kills at each step, several relays, gaps, and shards that go back.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;

use tallystone::adapters::codec::queues::register::ProtobufRegisters;
use tallystone::adapters::manual::{ManualClock, SeededEntropy};
use tallystone::adapters::memory::{self, MemoryHistory};
use tallystone::domain::access::QuotaLimits;
use tallystone::domain::fleet::ProtocolRules;
use tallystone::domain::history::audit::FindingKind;
use tallystone::domain::history::{HistoryCursor, HistoryGap, HistoryHit, HistoryTerm};
use tallystone::domain::queue::messages::message::MessageKey;
use tallystone::domain::queue::messages::message_id::MessageId;
use tallystone::domain::queue::messages::settlement::SettleAction;
use tallystone::domain::queue::setup::settings::HistoryKept;
use tallystone::domain::queue::transition::{HistoryRow, RowPosition};
use tallystone::domain::queue::{QueueId, QueueName, ShardId};
use tallystone::domain::time::Timestamp;
use tallystone::engine::bridge::BridgeSettings;
use tallystone::engine::caller_quota::CallerId;
use tallystone::engine::catalog::Author;
use tallystone::engine::historian::{CounterTotals, TotalsByCounter, TotalsBySource};
use tallystone::engine::namespaces::NamespaceCatalog;
use tallystone::engine::queues::{
    CheckRequest, DeletionRequest, DequeueRequest, FindingsPage, Operation, OperationState, QueueDraft, QueueError,
    SentMessage, SettleRequest,
};
use tallystone::engine::{Engine, EngineParts, MemberProfile};
use tallystone::ports::{
    Clock, HistoryBatch, HistoryStore, HistoryUsage, OutboxPage, OutboxUsage, QueueShards, QueueStores, ShardGlance,
    ShardOutbox, ShardReport, StoreError, StoreErrorKind,
};

const START: Timestamp = Timestamp::from_secs(1_800_000_000);

/// A history and outboxes that fail as told. Clones of the stores are those of another server.
#[derive(Default)]
struct Faults {
    /// Appends fail with this.
    append: Mutex<Option<StoreErrorKind>>,
    /// Appends are written, and their answers never come.
    hangs_after_append: AtomicBool,
    /// Outboxes are never emptied.
    hangs_before_forget: AtomicBool,
    /// The epoch of shards has risen, without a row since.
    raised_epoch: AtomicBool,
    /// Rows that were removed by hand, by message and version.
    removed: Mutex<BTreeSet<(MessageKey, u64)>>,
}

struct FaultyHistory {
    inner: Arc<MemoryHistory>,
    faults: Arc<Faults>,
}

#[async_trait]
impl HistoryStore for FaultyHistory {
    async fn append(&self, batches: Vec<HistoryBatch>) -> Result<(), StoreError> {
        if let Some(kind) = *self.faults.append.lock() {
            return Err(StoreError::not_applied(kind, "append history"));
        }
        self.inner.append(batches).await?;
        if self.faults.hangs_after_append.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        Ok(())
    }

    async fn cursor(&self, shard: ShardId) -> Result<Option<HistoryCursor>, StoreError> {
        self.inner.cursor(shard).await
    }

    async fn trace(
        &self,
        queue: QueueId,
        message: MessageKey,
        after: Option<RowPosition>,
        limit: usize,
    ) -> Result<Vec<HistoryRow>, StoreError> {
        let mut rows = self.inner.trace(queue, message, after, limit).await?;
        rows.retain(|row| !self.faults.removed.lock().contains(&(message, row.transition.version)));
        Ok(rows)
    }

    async fn last(&self, queue: QueueId, messages: Vec<MessageKey>) -> Result<Vec<Option<HistoryRow>>, StoreError> {
        self.inner.last(queue, messages).await
    }

    async fn lives(&self, queue: QueueId, id: &MessageId, limit: usize) -> Result<Vec<MessageKey>, StoreError> {
        self.inner.lives(queue, id, limit).await
    }

    async fn find(
        &self,
        queue: QueueShards,
        term: &HistoryTerm,
        before: Option<HistoryHit>,
        limit: usize,
    ) -> Result<Vec<HistoryHit>, StoreError> {
        self.inner.find(queue, term, before, limit).await
    }

    async fn gaps(&self, queue: QueueShards, limit: usize) -> Result<Vec<HistoryGap>, StoreError> {
        self.inner.gaps(queue, limit).await
    }

    async fn starts_at(&self) -> Result<Option<Timestamp>, StoreError> {
        self.inner.starts_at().await
    }

    async fn trim(&self, before: Timestamp) -> Result<(), StoreError> {
        self.inner.trim(before).await
    }

    fn usage(&self) -> HistoryUsage {
        self.inner.usage()
    }
}

struct FaultyOutbox {
    inner: Arc<dyn ShardOutbox>,
    faults: Arc<Faults>,
}

#[async_trait]
impl ShardOutbox for FaultyOutbox {
    async fn report(&self, shard: ShardId, since: Option<u64>) -> Result<ShardReport, StoreError> {
        let mut report = self.inner.report(shard, since).await?;
        report.position.epoch += u32::from(self.faults.raised_epoch.load(Ordering::SeqCst));
        Ok(report)
    }

    async fn glance(&self, shard: ShardId, known: Option<RowPosition>) -> Result<Option<ShardGlance>, StoreError> {
        self.inner.glance(shard, known).await
    }

    async fn outbox(&self, shard: ShardId, after: RowPosition, limit: usize) -> Result<OutboxPage, StoreError> {
        self.inner.outbox(shard, after, limit).await
    }

    async fn forget_outbox(&self, shard: ShardId, through: RowPosition) -> Result<(), StoreError> {
        if self.faults.hangs_before_forget.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        self.inner.forget_outbox(shard, through).await
    }

    async fn outboxes(&self) -> Result<Vec<ShardId>, StoreError> {
        self.inner.outboxes().await
    }

    fn outbox_usage(&self) -> OutboxUsage {
        self.inner.outbox_usage()
    }
}

/// Stores that outlive their servers.
struct Shop {
    clock: ManualClock,
    stores: QueueStores,
    /// The outboxes without faults.
    outbox: Arc<dyn ShardOutbox>,
    history: Arc<MemoryHistory>,
    faults: Arc<Faults>,
}

impl Shop {
    fn new() -> Self {
        let clock = ManualClock::at(START);
        let stores = memory::queue_stores(Arc::new(clock.clone()));
        let (outbox, faults) = (Arc::clone(&stores.outbox), Arc::<Faults>::default());
        let faulty = FaultyOutbox { inner: Arc::clone(&outbox), faults: Arc::clone(&faults) };
        let stores = QueueStores { outbox: Arc::new(faulty), ..stores };
        Self { clock, stores, outbox, history: Arc::default(), faults }
    }

    /// The same history, beside a queue store that has lost every message.
    async fn emptied(&self, server: &Engine) -> Self {
        let new = memory::queue_stores(Arc::new(self.clock.clone()));
        let queue = server.queues().expect("there are queues").catalog.get(&name()).expect("it is there");
        new.shards.create(queue.id, 1, queue.spec.settings.clone().into()).await.expect("it is created");
        let outbox = Arc::clone(&new.outbox);
        let stores = QueueStores { catalog: Arc::clone(&self.stores.catalog), ..new };
        let (history, faults) = (Arc::clone(&self.history), Arc::default());
        Self { clock: self.clock.clone(), stores, outbox, history, faults }
    }

    async fn server(&self) -> Engine {
        let clock: Arc<dyn Clock> = Arc::new(self.clock.clone());
        let stores = memory::stores_on(Arc::clone(&clock));
        let namespaces = NamespaceCatalog::open(stores.catalog.clone(), Arc::clone(&clock)).await.expect("it opens");
        namespaces.ensure_queue_namespace().await.expect("it is made");
        let history = FaultyHistory { inner: Arc::clone(&self.history), faults: Arc::clone(&self.faults) };
        let settings = BridgeSettings {
            step: Duration::from_millis(250),
            totals_per_second: 5_000,
            history_retention: Duration::from_secs(7 * 86_400),
        };
        let parts = EngineParts {
            stores,
            queue_stores: Some(self.stores.clone()),
            history: Some(Arc::new(history)),
            history_registers: Arc::new(ProtobufRegisters),
            clock,
            entropy: Arc::new(SeededEntropy::new(7)),
            export: None,
            namespaces,
            profile: MemberProfile::default(),
            signals: None,
            seal_delay: None,
            rules: ProtocolRules::default(),
            progress: Arc::new(|| {}),
            bridge: Some(settings),
            quotas: QuotaLimits::UNLIMITED,
        };
        Engine::start(parts).await.expect("the engine starts")
    }

    /// Lets every task come to rest, while time passes.
    async fn pass(&self, duration: Duration) {
        let step = Duration::from_millis(50);
        for _ in 0..duration.as_millis() / step.as_millis() {
            for _ in 0..60 {
                tokio::task::yield_now().await;
            }
            self.clock.advance(step);
        }
    }

    async fn create(&self, server: &Engine, history: Option<HistoryKept>) -> ShardId {
        let queues = server.queues().expect("there are queues");
        let draft = QueueDraft { history, ..QueueDraft::of(name()) };
        let made = queues.catalog.create(draft, Author::default()).await.expect("it is created");
        ShardId { queue: made.id, number: 0 }
    }

    async fn enqueue(&self, server: &Engine, ids: impl IntoIterator<Item = u32>) {
        let queues = server.queues().expect("there are queues");
        for id in ids {
            let sent = SentMessage { id: MessageId::new(&format!("m-{id}")).ok(), ..SentMessage::default() };
            queues.work.enqueue(&caller(), &name(), sent).await.expect("it is enqueued");
        }
    }

    /// Leases a message and completes it: two rows.
    async fn complete_one(&self, server: &Engine) {
        let queues = server.queues().expect("there are queues");
        let ask = DequeueRequest { max: 1, ..DequeueRequest::default() };
        let batch = queues.work.dequeue(&name(), ask).await.expect("a lease");
        let token = batch.take()[0].token.clone();
        let done = SettleRequest { token, verb: SettleAction::Complete, delay: None, error: None };
        queues.work.settle(&name(), done).await.expect("it is completed");
    }

    /// Positions in the history, by the rows that entered any state.
    async fn positions(&self, shard: ShardId) -> Vec<u64> {
        let mut keys = BTreeSet::new();
        let of = QueueShards { queue: shard.queue, shards: 1 };
        for row in self.history.find(of, &HistoryTerm::Enqueued, None, 10_000).await.expect("a read") {
            keys.insert(row.message);
        }
        let mut positions = Vec::new();
        for key in keys {
            let rows = self.history.trace(shard.queue, key, None, 1_000).await.expect("a read");
            positions.extend(rows.iter().map(|row| row.position().position));
        }
        positions.sort_unstable();
        positions
    }

    /// The missing positions, with adjacent gaps as one.
    async fn gaps(&self, shard: ShardId) -> Vec<(u64, u64)> {
        let of = QueueShards { queue: shard.queue, shards: 1 };
        let mut gaps = self.history.gaps(of, 1_000).await.expect("a read");
        gaps.sort_unstable();
        let mut joined: Vec<(u64, u64)> = Vec::new();
        for gap in gaps {
            match joined.last_mut() {
                Some((_, to)) if *to + 1 == gap.from_position => *to = gap.to_position,
                Some(_) | None => joined.push((gap.from_position, gap.to_position)),
            }
        }
        joined
    }

    async fn waiting(&self, shard: ShardId) -> usize {
        self.outbox.outbox(shard, RowPosition::default(), 5_000).await.expect("a read").rows.len()
    }

    /// Runs a check to its end.
    async fn check(&self, server: &Engine, full: bool) -> FindingsPage {
        let historian = server.historian().expect("there is a history");
        let asked = CheckRequest { queue: Some(name()), full, token: None };
        let begun = historian.check(caller(), asked).expect("it begins");
        let ended = self.ended(server, &begun.id).await;
        assert_eq!(ended.state, OperationState::Done, "{ended:?}");
        historian.findings(&begun.id, 0, 1_000).expect("it is known")
    }

    async fn ended(&self, server: &Engine, id: &str) -> Operation {
        let queues = server.queues().expect("there are queues");
        for _ in 0..3_000 {
            let operation = queues.operations.operation(id).await.expect("it is known");
            if operation.state != OperationState::Running {
                return operation;
            }
            self.pass(Duration::from_millis(50)).await;
        }
        panic!("the check does not end");
    }
}

fn name() -> QueueName {
    QueueName::new("mail").expect("a name")
}

fn caller() -> CallerId {
    CallerId::of_address([10, 0, 0, 1].into())
}

const A_WHILE: Duration = Duration::from_secs(2);

fn findings_of(server: &Engine) -> u64 {
    server.stats().audit_findings.iter().map(tallystone::engine::stats::Count::get).sum()
}

#[tokio::test]
async fn every_row_is_carried_once_and_leaves_the_outbox() {
    let shop = Shop::new();
    let server = shop.server().await;
    let shard = shop.create(&server, None).await;
    for round in 0..20 {
        shop.enqueue(&server, round * 10..round * 10 + 10).await;
        shop.complete_one(&server).await;
        shop.pass(Duration::from_secs(1)).await;
    }
    shop.pass(A_WHILE).await;
    assert_eq!(shop.positions(shard).await, (1..=240).collect::<Vec<_>>());
    assert_eq!((shop.gaps(shard).await, shop.waiting(shard).await), (vec![], 0));
    assert_eq!(server.historian().expect("one").gauges().lag, Duration::ZERO);
    assert_eq!((server.stats().history_rows_relayed.get(), findings_of(&server)), (240, 0));
    assert_eq!(shop.check(&server, true).await.findings, []);
}

#[tokio::test]
async fn a_relay_that_is_killed_at_any_step_neither_loses_nor_doubles_a_row() {
    let shop = Shop::new();
    let mut server = shop.server().await;
    let shard = shop.create(&server, None).await;
    shop.enqueue(&server, 0..10).await;
    for (round, fault) in (1..).zip([&shop.faults.hangs_after_append, &shop.faults.hangs_before_forget]) {
        fault.store(true, Ordering::SeqCst);
        shop.enqueue(&server, round * 100..round * 100 + 10).await;
        shop.complete_one(&server).await;
        shop.pass(A_WHILE).await;
        assert!(shop.waiting(shard).await > 0, "the rows are written and still in the outbox");
        server.abandon().await;
        fault.store(false, Ordering::SeqCst);
        server = shop.server().await;
        shop.pass(A_WHILE).await;
        assert_eq!(shop.waiting(shard).await, 0);
    }
    shop.pass(Duration::from_secs(25)).await;
    assert_eq!(shop.positions(shard).await, (1..=34).collect::<Vec<_>>());
    assert_eq!((shop.gaps(shard).await, findings_of(&server)), (vec![], 0));
    assert_eq!(shop.check(&server, true).await.findings, []);
}

#[tokio::test]
async fn a_history_that_is_away_or_full_holds_up_no_queue_and_catches_up() {
    let shop = Shop::new();
    let server = shop.server().await;
    let shard = shop.create(&server, None).await;
    for (round, kind) in (0..).zip([StoreErrorKind::Unavailable, StoreErrorKind::Full]) {
        *shop.faults.append.lock() = Some(kind);
        shop.enqueue(&server, round * 100..round * 100 + 50).await;
        shop.pass(Duration::from_secs(30)).await;
        let gauges = server.historian().expect("one").gauges();
        assert!((29..=31).contains(&gauges.lag.as_secs()), "{:?}", gauges.lag);
        assert_eq!(shop.waiting(shard).await, 50);
        *shop.faults.append.lock() = None;
        shop.pass(Duration::from_secs(6)).await;
        assert_eq!(shop.waiting(shard).await, 0);
    }
    assert_eq!(shop.positions(shard).await, (1..=100).collect::<Vec<_>>());
    // Without back-off there were 600 attempts in a minute.
    assert!((10..50).contains(&server.stats().history_failures.get()));
    assert_eq!(shop.gaps(shard).await, []);
}

#[tokio::test]
async fn two_relays_do_no_harm() {
    let shop = Shop::new();
    let (one, other) = (shop.server().await, shop.server().await);
    let shard = shop.create(&one, None).await;
    for round in 0..30 {
        shop.enqueue(&one, round * 10..round * 10 + 10).await;
        shop.pass(Duration::from_millis(350)).await;
    }
    shop.pass(Duration::from_secs(25)).await;
    assert_eq!(shop.positions(shard).await, (1..=300).collect::<Vec<_>>());
    assert_eq!((shop.gaps(shard).await, shop.waiting(shard).await), (vec![], 0));
    assert_eq!((findings_of(&one), findings_of(&other)), (0, 0));
    assert!(other.stats().history_rows_relayed.get() + one.stats().history_rows_relayed.get() >= 300);
}

#[tokio::test]
async fn rows_that_gave_way_are_a_gap_and_neither_audit_nor_check_takes_them_for_a_fault() {
    let shop = Shop::new();
    let server = shop.server().await;
    let shard = shop.create(&server, None).await;
    shop.enqueue(&server, 0..10).await;
    shop.pass(A_WHILE).await;
    *shop.faults.append.lock() = Some(StoreErrorKind::Unavailable);
    shop.enqueue(&server, 10..30).await;
    // What the store does where the outboxes are full.
    shop.outbox.forget_outbox(shard, RowPosition { epoch: 1, position: 25 }).await.expect("it is removed");
    shop.pass(Duration::from_secs(1)).await;
    *shop.faults.append.lock() = None;
    shop.pass(Duration::from_secs(30)).await;
    assert_eq!(shop.gaps(shard).await, [(11, 25)]);
    assert_eq!(shop.positions(shard).await.len(), 15);
    *shop.faults.append.lock() = Some(StoreErrorKind::Unavailable);
    shop.enqueue(&server, 30..40).await;
    shop.outbox.forget_outbox(shard, RowPosition { epoch: 1, position: 40 }).await.expect("it is removed");
    *shop.faults.append.lock() = None;
    assert_eq!(shop.check(&server, true).await.findings, []);
    assert_eq!(shop.gaps(shard).await, [(11, 25), (31, 40)], "also where no row follows");
    assert_eq!((findings_of(&server), server.stats().history_gaps.get()), (0, 2));
}

#[tokio::test]
async fn a_queue_without_history_costs_nothing_and_its_rows_are_a_gap_once_it_has_one() {
    let shop = Shop::new();
    let server = shop.server().await;
    let shard = shop.create(&server, Some(HistoryKept::Nothing)).await;
    shop.enqueue(&server, 0..10).await;
    shop.pass(A_WHILE).await;
    assert_eq!(shop.check(&server, true).await.findings, []);
    assert_eq!((shop.history.cursor(shard).await.expect("a read"), server.stats().history_batches.get()), (None, 0));
    let queues = server.queues().expect("there are queues");
    let draft = QueueDraft { history: Some(HistoryKept::All), ..QueueDraft::of(name()) };
    queues.catalog.update(draft, Vec::new(), None, Author::default()).await.expect("it is changed");
    shop.enqueue(&server, 10..15).await;
    shop.pass(A_WHILE).await;
    assert_eq!((shop.gaps(shard).await, shop.positions(shard).await), (vec![(1, 10)], (11..=15).collect::<Vec<_>>()));
    assert_eq!(shop.check(&server, true).await.findings, []);
}

#[tokio::test]
async fn a_shard_that_went_back_leaves_a_gap_before_it_goes_on() {
    let before = Shop::new();
    let server = before.server().await;
    let shard = before.create(&server, None).await;
    before.enqueue(&server, 0..20).await;
    before.pass(A_WHILE).await;
    server.abandon().await;
    let shop = before.emptied(&server).await;
    let server = shop.server().await;
    shop.enqueue(&server, 100..105).await;
    shop.pass(A_WHILE).await;
    assert_eq!(shop.gaps(shard).await, [(1, 5)]);
    shop.enqueue(&server, 200..220).await;
    shop.pass(Duration::from_secs(15)).await;
    assert_eq!(shop.gaps(shard).await, [(1, 20)]);
    let cursor = shop.history.cursor(shard).await.expect("a read").expect("one");
    assert_eq!((cursor.position.position, shop.waiting(shard).await), (25, 0));
    assert_eq!(findings_of(&server), 0);
}

#[tokio::test]
async fn a_shard_that_went_back_and_passed_the_cursor_unseen_is_found_out_by_its_rows() {
    let before = Shop::new();
    let server = before.server().await;
    let shard = before.create(&server, None).await;
    before.enqueue(&server, 0..20).await;
    before.pass(A_WHILE).await;
    server.abandon().await;
    let shop = before.emptied(&server).await;
    *shop.faults.append.lock() = Some(StoreErrorKind::Unavailable);
    let server = shop.server().await;
    shop.clock.advance(Duration::from_secs(1));
    // No task runs between these, so the relay looks after all of them.
    shop.enqueue(&server, 100..130).await;
    server.abandon().await;
    *shop.faults.append.lock() = None;
    let server = shop.server().await;
    shop.pass(Duration::from_secs(15)).await;
    assert_eq!(shop.gaps(shard).await, [(1, 20)]);
    let cursor = shop.history.cursor(shard).await.expect("a read").expect("one");
    assert_eq!((cursor.position.position, shop.waiting(shard).await, findings_of(&server)), (30, 0, 0));
}

#[tokio::test]
async fn the_rows_of_a_deleted_queue_are_carried_and_a_stop_carries_what_is_there() {
    let shop = Shop::new();
    let server = shop.server().await;
    let shard = shop.create(&server, None).await;
    *shop.faults.append.lock() = Some(StoreErrorKind::Unavailable);
    shop.enqueue(&server, 0..10).await;
    let deletion = DeletionRequest { name: name(), id: None, expected: None, token: None };
    server.queues().expect("one").catalog.delete(deletion, Author::default()).await.expect("it is deleted");
    let next = shop.create(&server, None).await;
    shop.enqueue(&server, 0..7).await;
    *shop.faults.append.lock() = None;
    let stop = server.drain(Duration::from_secs(20));
    tokio::pin!(stop);
    loop {
        tokio::select! {
            biased;
            stopped = &mut stop => break assert!(stopped),
            () = shop.pass(Duration::from_millis(50)) => {}
        }
    }
    assert_eq!(shop.positions(shard).await, (1..=10).collect::<Vec<_>>());
    assert_eq!(shop.positions(next).await, (1..=7).collect::<Vec<_>>());
    assert_eq!(shop.stores.outbox.outboxes().await.expect("a read"), []);
}

#[tokio::test]
async fn a_full_check_names_a_row_that_was_removed_by_hand() {
    let shop = Shop::new();
    let server = shop.server().await;
    let shard = shop.create(&server, None).await;
    shop.enqueue(&server, 0..5).await;
    shop.complete_one(&server).await;
    shop.pass(A_WHILE).await;
    let key = MessageKey { shard: 0, epoch: 1, sequence: 1 };
    shop.faults.removed.lock().insert((key, 2));
    assert_eq!(shop.check(&server, false).await.findings, [], "only a full check looks at messages");
    let found = shop.check(&server, true).await.findings;
    assert_eq!(found.len(), 1, "{found:?}");
    let (queue, finding) = (&found[0].queue, &found[0].finding);
    assert_eq!((queue, finding.shard, finding.kind), (&name(), shard, FindingKind::Version));
    assert_eq!((finding.message, finding.version, finding.expected, finding.found), (Some(key), Some(2), 1, 0));
    assert_eq!(finding.text, "message m-0 is at version 3; version 2 of it is missing from the history");
    assert_eq!(findings_of(&server), 1);
}

#[tokio::test]
async fn a_check_says_where_the_history_stands_still() {
    let shop = Shop::new();
    let server = shop.server().await;
    shop.create(&server, None).await;
    *shop.faults.append.lock() = Some(StoreErrorKind::Unavailable);
    shop.enqueue(&server, 0..5).await;
    let found = shop.check(&server, true).await.findings;
    let kinds: Vec<_> = found.iter().map(|one| (one.finding.kind, one.finding.expected, one.finding.found)).collect();
    assert_eq!(kinds, [(FindingKind::Relay, 5, 0)]);
}

#[tokio::test]
async fn a_check_takes_a_store_that_was_restarted_without_a_change_since_for_no_fault() {
    let shop = Shop::new();
    let server = shop.server().await;
    shop.create(&server, None).await;
    shop.enqueue(&server, 0..5).await;
    shop.pass(A_WHILE).await;
    shop.faults.raised_epoch.store(true, Ordering::SeqCst);
    assert_eq!(shop.check(&server, true).await.findings.len(), 0);
}

#[tokio::test]
async fn a_repeat_of_a_check_finds_the_same_operation() {
    let shop = Shop::new();
    let server = shop.server().await;
    shop.create(&server, None).await;
    let historian = server.historian().expect("there is a history");
    let ask = |queue: Option<QueueName>, full, token: &str| {
        historian.check(caller(), CheckRequest { queue, full, token: Some(token.to_owned()) })
    };
    let first = ask(Some(name()), true, "t").expect("it begins");
    shop.ended(&server, &first.id).await;
    let again = ask(Some(name()), true, "t").expect("it is found");
    assert_eq!((again.id.as_str(), again.state), (first.id.as_str(), OperationState::Done));
    assert!(ask(Some(name()), false, "t").is_err(), "another request");
    let all = ask(None, true, "t").expect("of all queues");
    assert_eq!((all.queue, all.kind), (None, "check"));
    assert!(all.id != first.id);
    assert!(ask(QueueName::new("other").ok(), true, "u").is_err(), "no such queue");
    assert!(historian.findings("unknown", 0, 10).is_err());
}

/// Counters that know what they are told.
struct Told(Mutex<TotalsBySource>);

#[async_trait]
impl CounterTotals for Told {
    async fn known(&self, _queue: &QueueName) -> Result<TotalsBySource, QueueError> {
        Ok(self.0.lock().clone())
    }

    fn stated(&self, report: &ShardReport) -> TotalsByCounter {
        TotalsByCounter::from([("enqueued".to_owned(), report.counts.position.cast_signed())])
    }
}

#[tokio::test]
async fn a_full_check_compares_the_counters_with_the_shards() {
    let shop = Shop::new();
    let server = shop.server().await;
    shop.create(&server, None).await;
    shop.enqueue(&server, 0..5).await;
    let total = |total| {
        let of_shard = TotalsByCounter::from([("enqueued".to_owned(), total)]);
        TotalsBySource::from([("s0".to_owned(), of_shard)])
    };
    let told = Arc::new(Told(Mutex::new(total(5))));
    server.historian().expect("one").compare_counters(Arc::<Told>::clone(&told));
    assert_eq!(shop.check(&server, true).await.findings, []);
    *told.0.lock() = total(4);
    assert_eq!(shop.check(&server, false).await.findings, []);
    let found = shop.check(&server, true).await.findings;
    let texts: Vec<_> = found.iter().map(|one| one.finding.text.as_str()).collect();
    assert_eq!(texts, ["the newest total of enqueued in the log is 4; the shard has 5"]);
}

#[tokio::test]
async fn rows_leave_after_the_retention() {
    let shop = Shop::new();
    let server = shop.server().await;
    let shard = shop.create(&server, None).await;
    shop.enqueue(&server, 0..5).await;
    shop.pass(A_WHILE).await;
    shop.clock.advance(Duration::from_secs(7 * 86_400 - 60));
    shop.pass(Duration::from_secs(10)).await;
    shop.enqueue(&server, 5..8).await;
    shop.pass(A_WHILE).await;
    assert_eq!(shop.positions(shard).await, (1..=8).collect::<Vec<_>>());
    shop.pass(Duration::from_secs(130)).await;
    assert_eq!(shop.positions(shard).await, (6..=8).collect::<Vec<_>>());
    assert_eq!(shop.check(&server, true).await.findings, [], "what left by age is not missed");
}
