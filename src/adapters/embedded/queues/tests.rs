//! Tests of queues specific to this store: what survives a restart, what startup refuses, what the store removes.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fjall::Keyspace;
use parking_lot::Mutex;
use prost::Message as _;
use xxhash_rust::xxh3::xxh3_64;

use super::key;
use super::recover::recover;
use crate::disk::disk_space::DiskSpaceMonitor;
use crate::disk::key::TIDIED;
use crate::disk::manifest::Manifest;
use crate::disk::read::rows;
use crate::{Embedded, OpenError, Options, open};
use tallystone_adapters::manual::ManualClock;
use tallystone_domain::Timestamp;
use tallystone_domain::queue::bulk_operation::PurgedStates;
use tallystone_domain::queue::command::{BulkRequest, Dequeue, FailureReport, LeaseGrant, NewMessage};
use tallystone_domain::queue::messages::message::{MessageRef, Metadata, SessionId};
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::queue::messages::settlement::SettleAction;
use tallystone_domain::queue::session_records::SessionCall;
use tallystone_domain::queue::setup::settings::{IdReuse, MessageRetryPolicy, Retention};
use tallystone_domain::queue::transition::RowPosition;
use tallystone_domain::queue::{Command, MessageState, QueueId, Refusal, Reply, Settings, ShardId, ShardSettings};
use tallystone_ports::{
    Clock as _, EffectOutcome, MemoryLimit, MessageBody, QueueListener, QueueStores, ScanOrder, ShardCommand,
    ShardStatus, StoreError, StoreErrorKind,
};
use tallystone_proto::internal::v1::StoredQueueSettings;

const QUEUE: QueueId = QueueId(3);
const SHARD: ShardId = ShardId { queue: QUEUE, number: 0 };

/// Typical settings of a service.
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

fn small(dir: &Path) -> Options {
    Options { reserve_bytes: 0, block_bytes: 1 << 20, ..Options::new(dir) }
}

fn open_queues(options: Options, clock: &ManualClock) -> (Embedded, QueueStores) {
    let store = open(options).expect("the store opens");
    let stores = store.queue_stores(Arc::new(clock.clone()));
    (store, stores)
}

fn clock() -> ManualClock {
    ManualClock::at(Timestamp::from_secs(1_000_000))
}

pub fn enqueue(id: &str) -> ShardCommand {
    let message = NewMessage {
        id: MessageId::new(id).expect("a valid id"),
        token_time: None,
        routing: None,
        metadata: Metadata::default(),
        payload_bytes: 4,
        fingerprint: 1,
        priority: Some(1),
        class: None,
        invisibility: None,
        visible_at: None,
        lease_duration: None,
        max_attempts: None,
        ttl: None,
    };
    let body = MessageBody { payload: b"work".as_slice().into(), kind: None, trace_context: None };
    ShardCommand { command: Command::Enqueue(Box::new(message)), body }
}

/// The same with a time in its token.
fn enqueue_at(id: &str, time: Timestamp) -> ShardCommand {
    let mut sent = enqueue(id);
    let Command::Enqueue(message) = &mut sent.command else { panic!("an enqueue: {sent:?}") };
    message.token_time = Some(time);
    sent
}

pub fn dequeue(max: usize) -> ShardCommand {
    ShardCommand::of(Command::Dequeue(Dequeue { max, ..Dequeue::default() }))
}

fn configure(settings: ShardSettings) -> ShardCommand {
    ShardCommand::of(Command::Configure(Box::new(settings)))
}

fn complete(lease: &LeaseGrant) -> ShardCommand {
    let (token, verb, failure) = (lease.token, SettleAction::Complete, FailureReport::default());
    ShardCommand::of(Command::Settle { token, verb, failure })
}

async fn one(stores: &QueueStores, shard: ShardId, command: ShardCommand) -> Result<Reply, StoreError> {
    let answer = stores.shards.apply(shard, vec![command]).await.remove(0)?;
    Ok(answer.reply.expect("the shard takes it"))
}

async fn fill(stores: &QueueStores, shard: ShardId, count: usize) {
    let commands = (0..count).map(|number| enqueue(&format!("m-{number}"))).collect();
    for answer in stores.shards.apply(shard, commands).await {
        assert!(answer.expect("taken").reply.is_ok());
    }
}

/// A request for all messages of a shard, of the states that a caller adds.
fn all_of_it() -> BulkRequest {
    BulkRequest { through: u64::MAX, max: 100, ..BulkRequest::default() }
}

/// Enqueues messages until one is refused for want of memory; returns how many were taken, and the refusal.
async fn enqueue_until_full(stores: &QueueStores, prefix: &str) -> (usize, StoreError) {
    let mut taken = 0;
    let refused = loop {
        match one(stores, SHARD, enqueue(&format!("{prefix}-{taken}"))).await {
            Ok(_) => taken += 1,
            Err(refused) => break refused,
        }
        assert!(taken < 1_000, "64 KiB have no room for so many");
    };
    assert_eq!((refused.kind, refused.outcome), (StoreErrorKind::Full, EffectOutcome::NotApplied));
    (taken, refused)
}

async fn leases(stores: &QueueStores, max: usize) -> Vec<LeaseGrant> {
    match one(stores, SHARD, dequeue(max)).await {
        Ok(Reply::Leases { leases, .. }) => leases,
        other => panic!("leases: {other:?}"),
    }
}

fn count(keyspace: &Keyspace) -> usize {
    let rows = rows(keyspace, key::everything(), ScanOrder::OldestFirst);
    rows.filter(|row| row.as_ref().is_ok_and(|(key, _)| **key != *TIDIED)).count()
}

/// Number of rows of heads, bodies and outbox.
fn rows_left(store: &Embedded) -> [usize; 3] {
    let spaces = store.core.queues.spaces.read().clone().expect("there was a queue");
    [count(&spaces.heads) + count(&spaces.over), count(&spaces.bodies), count(&spaces.outbox)]
}

/// Number of rows of heads of what is not over, of heads of what is, and of pages.
fn heads_and_pages(store: &Embedded) -> [usize; 3] {
    let spaces = store.core.queues.spaces.read().clone().expect("there was a queue");
    [count(&spaces.heads), count(&spaces.over), count(&spaces.stubs)]
}

#[tokio::test]
async fn what_came_to_its_end_leaves_no_head_and_no_body() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let clock = clock();
    let (store, stores) = open_queues(small(dir.path()), &clock);
    stores.shards.create(QUEUE, 1, settings().into()).await.expect("created");
    fill(&stores, SHARD, 20).await;
    for lease in leases(&stores, 15).await {
        one(&stores, SHARD, complete(&lease)).await.expect("completed");
    }
    assert_eq!(rows_left(&store)[..2], [20, 20]);
    assert_eq!(heads_and_pages(&store), [5, 15, 1], "a page that is dirty");
    clock.advance(Duration::from_secs(3_600));
    one(&stores, SHARD, ShardCommand::of(Command::Sweep { max: 256 })).await.expect("swept");
    assert_eq!(rows_left(&store)[..2], [5, 5]);
    assert_eq!(heads_and_pages(&store), [5, 0, 0]);
    store.close();
    let (store, stores) = open_queues(small(dir.path()), &clock);
    assert_eq!(rows_left(&store)[..2], [5, 5]);
    assert_eq!(leases(&stores, 15).await.len(), 5);
}

#[tokio::test]
async fn a_start_reads_no_head_of_a_message_that_is_over_unless_its_page_is_dirty() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (store, stores) = open_queues(small(dir.path()), &clock());
    stores.shards.create(QUEUE, 1, settings().into()).await.expect("created");
    fill(&stores, SHARD, 127).await;
    for some in [100, 27] {
        for lease in leases(&stores, some).await {
            one(&stores, SHARD, complete(&lease)).await.expect("completed");
        }
    }
    assert_eq!(heads_and_pages(&store), [0, 127, 2], "two whole pages");
    let spaces = store.core.queues.spaces.read().clone().expect("there is a queue");
    let over: Vec<_> = rows(&spaces.over, key::over_in_page(SHARD, 0), ScanOrder::OldestFirst).collect();
    assert_eq!(over.len(), 63, "sequences begin with 1");
    for row in over {
        let (key, _) = row.expect("readable");
        spaces.over.insert(key, b"\xff".as_slice()).expect("written");
    }
    let recovered = || store.core.read("recover", |library| Ok(recover(library, dir.path()).err())).expect("open");
    assert!(recovered().is_none(), "heads that nobody can read are not read");
    let dirty = key::of_page(key::PageTag::Dirty, SHARD, 0);
    spaces.stubs.insert(dirty, b"".as_slice()).expect("written");
    assert!(matches!(recovered(), Some(OpenError::Damaged { .. })), "those of a dirty page are");
}

#[tokio::test]
async fn a_directory_from_before_pages_of_finished_messages_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (store, stores) = open_queues(small(dir.path()), &clock());
    stores.shards.create(QUEUE, 1, settings().into()).await.expect("created");
    store.close();
    drop((store, stores));
    let list = Manifest::path(dir.path());
    let text = std::fs::read_to_string(&list).expect("readable");
    let lines = text.lines().filter(|line| !is_of_pages(line) && !line.starts_with("checksum"));
    let mut before: String = lines.map(|line| format!("{line}\n")).collect();
    before += &format!("checksum {:016x}\n", xxh3_64(before.as_bytes()));
    assert_eq!(text.lines().count() - before.lines().count(), 2, "{text}");
    std::fs::write(&list, &before).expect("writable");
    let refused = open(small(dir.path())).err().expect("it is refused");
    assert!(matches!(refused, OpenError::Unreleased(_)), "{refused}");
    assert!(refused.to_string().contains("by a build before release 0.1.0"), "{refused}");
    assert_eq!(std::fs::read_to_string(&list).expect("readable"), before);
}

/// Whether a line of the list of keyspaces names one of those for finished messages.
fn is_of_pages(line: &str) -> bool {
    line.contains("queue.over") || line.contains("queue.stubs")
}

#[tokio::test]
async fn a_dropped_queue_leaves_no_row_also_if_its_removal_was_cut_off() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let clock = clock();
    let (store, stores) = open_queues(small(dir.path()), &clock);
    stores.shards.create(QUEUE, 2, settings().into()).await.expect("created");
    for number in 0..2 {
        fill(&stores, ShardId { queue: QUEUE, number }, 100).await;
    }
    assert_eq!(rows_left(&store), [200, 200, 2]);
    for lease in leases(&stores, 70).await {
        one(&stores, SHARD, complete(&lease)).await.expect("completed");
    }
    assert_eq!(heads_and_pages(&store), [130, 70, 2], "one page is whole, one is dirty");
    let all = RowPosition { epoch: u32::MAX, position: 0 };
    stores.outbox.forget_outbox(SHARD, all).await.expect("forgotten");
    stores.shards.drop_queue(QUEUE).await.expect("dropped");
    // The store closes at once, so startup must find the rows that were not removed yet.
    store.close();
    let (store, stores) = open_queues(small(dir.path()), &clock);
    // The removals of the startup are queued before these commands.
    for _ in 0..4 {
        assert_eq!(stores.shards.queues().await.expect("a list"), []);
    }
    assert_eq!(rows_left(&store), [0, 0, 1], "the rows of the history stay until it has them");
    assert_eq!(heads_and_pages(&store), [0, 0, 0]);
    for number in 0..2 {
        let all = RowPosition { epoch: u32::MAX, position: 0 };
        stores.outbox.forget_outbox(ShardId { queue: QUEUE, number }, all).await.expect("forgotten");
    }
    assert_eq!(rows_left(&store), [0, 0, 0]);
}

#[tokio::test]
async fn a_session_and_what_it_confirmed_outlive_the_store() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let clock = clock();
    let (store, stores) = open_queues(small(dir.path()), &clock);
    stores.shards.create(QUEUE, 1, settings().into()).await.expect("created");
    fill(&stores, SHARD, 3).await;
    let id = SessionId(7);
    let lease = Some(Duration::from_secs(60));
    let call = SessionCall { id, lease, sequence: 1, attempt: 1, received_up_to: None };
    let asked = Dequeue { max: 2, session: Some(call), ..Dequeue::default() };
    let first = one(&stores, SHARD, ShardCommand::of(Command::Dequeue(asked))).await.expect("leased");
    let Reply::Leases { leases: first, .. } = first else { panic!("no leases: {first:?}") };
    let heartbeat = Command::Heartbeat { session: id, received_up_to: Some(1) };
    one(&stores, SHARD, ShardCommand::of(heartbeat)).await.expect("heard");
    store.close();
    let (store, stores) = open_queues(small(dir.path()), &clock);
    // Longer than the lease time, and shorter than the session timeout.
    clock.advance(Duration::from_secs(45));
    let recall = Command::Recall(SessionCall { attempt: 2, ..call });
    let again = one(&stores, SHARD, ShardCommand::of(recall)).await.expect("recalled");
    let Reply::Leases { leases: again, .. } = again else { panic!("no leases: {again:?}") };
    let tokens = |leases: &[LeaseGrant]| leases.iter().map(|lease| lease.token).collect::<Vec<_>>();
    assert_eq!(tokens(&again), tokens(&first));
    store.close();
    let (_store, stores) = open_queues(small(dir.path()), &clock);
    clock.advance(Duration::from_secs(60));
    assert_eq!(leases(&stores, 9).await.len(), 3, "the silent session has lost what it had");
}

#[tokio::test]
async fn a_full_file_system_refuses_enqueues_and_lets_everything_else_go_on() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let clock = clock();
    let (store, stores) = open_queues(small(dir.path()), &clock);
    stores.shards.create(QUEUE, 1, settings().into()).await.expect("created");
    fill(&stores, SHARD, 2).await;
    store.close();
    let free = DiskSpaceMonitor::of(dir.path(), 0).free_bytes().expect("a file system that answers");
    let nearly_full = Options { reserve_bytes: free * 2, ..small(dir.path()) };
    let (store, stores) = open_queues(nearly_full, &clock);
    let both = stores.shards.apply(SHARD, vec![enqueue("new"), dequeue(1)]).await;
    let [Err(refused), Ok(dequeued)] = &both[..] else { panic!("one of each: {both:?}") };
    assert_eq!((refused.kind, refused.outcome), (StoreErrorKind::Full, EffectOutcome::NotApplied));
    let Ok(Reply::Leases { leases, .. }) = &dequeued.reply else { panic!("{:?}", dequeued.reply) };
    one(&stores, SHARD, complete(&leases[0])).await.expect("settlements use the reserve");
    store.close();
    let (_store, stores) = open_queues(Options { reserve_bytes: u64::MAX, ..small(dir.path()) }, &clock);
    let refused = one(&stores, SHARD, dequeue(1)).await.expect_err("no room at all");
    assert_eq!((refused.kind, refused.outcome), (StoreErrorKind::Full, EffectOutcome::NotApplied));
    assert_eq!(stores.reader.peek(SHARD, 9).await.expect("a read").messages.len(), 1);
    let settings = ShardSettings { version: 1, enqueue_blocked: Some("no room".into()), ..settings().into() };
    let blocked = one(&stores, SHARD, configure(settings)).await;
    assert!(matches!(blocked, Ok(Reply::Configured)), "what a server does that starts: {blocked:?}");
}

#[tokio::test]
async fn a_full_memory_refuses_enqueues_until_there_is_room_and_lets_everything_else_go_on() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let clock = clock();
    let bounded = |queue_memory_bytes| Options { queue_memory_bytes, ..small(dir.path()) };
    let (store, stores) = open_queues(bounded(64 << 10), &clock);
    stores.shards.create(QUEUE, 1, settings().into()).await.expect("created");
    let (taken, refused) = enqueue_until_full(&stores, "m").await;
    assert!(taken > 50, "{taken}");
    assert!(refused.to_string().contains("queues.memory_bytes"), "{refused}");
    let memory = stores.shards.memory().expect("a bound");
    assert!(memory.is_full() && memory.used.heads > memory.used.indexes, "{memory:?}");
    let repeat = one(&stores, SHARD, enqueue("m-3")).await.expect("a repeat takes no memory");
    assert!(matches!(repeat, Reply::Enqueued { already_enqueued: true, .. }), "{repeat:?}");
    store.close();

    let (store, stores) = open_queues(bounded(1), &clock);
    assert!(stores.shards.memory().is_some_and(|memory| memory.is_full()), "it starts below what is there");
    one(&stores, SHARD, enqueue("new")).await.expect_err("there is no room");
    let redriven = |dry_run| ShardCommand::of(Command::RedriveAll(BulkRequest { dry_run, ..all_of_it() }));
    let refused = one(&stores, SHARD, redriven(false)).await.expect_err("it brings messages back");
    assert_eq!((refused.kind, refused.outcome), (StoreErrorKind::Full, EffectOutcome::NotApplied));
    one(&stores, SHARD, redriven(true)).await.expect("a dry run brings none");
    let kept = stores.reader.list(SHARD, MessageState::Pending, 0, 10).await.expect("reads go on");
    assert_eq!(kept.messages.len(), 10);
    for lease in leases(&stores, 30).await {
        one(&stores, SHARD, complete(&lease)).await.expect("settlements go on");
    }
    let pending = PurgedStates::new([MessageState::Pending]).expect("a state");
    let purge = Command::Purge(BulkRequest { states: pending, ..all_of_it() });
    one(&stores, SHARD, ShardCommand::of(purge)).await.expect("purges go on");
    store.close();

    let (_store, stores) = open_queues(bounded(64 << 10), &clock);
    one(&stores, SHARD, enqueue("new")).await.expect("finished messages take less");
    stores.shards.drop_queue(QUEUE).await.expect("dropped");
    assert_eq!(stores.shards.memory().map(|memory| memory.used.total()), Some(0), "nothing is left behind");
}

#[tokio::test]
async fn a_process_near_the_end_of_its_memory_takes_no_new_message_and_everything_else_goes_on() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let clock = clock();
    let (store, stores) = open_queues(small(dir.path()), &clock);
    stores.shards.create(QUEUE, 1, settings().into()).await.expect("created");
    fill(&stores, SHARD, 3).await;
    assert_eq!(stores.shards.memory().map(|memory| memory.limited_by), Some(MemoryLimit::Setting));
    store.close();

    let ballast = std::hint::black_box(vec![1_u8; 8 << 20]);
    let within = |memory| small(dir.path()).within_memory(memory);
    let (store, stores) = open_queues(within(1 << 20), &clock);
    let (taken, refused) = enqueue_until_full(&stores, "new").await;
    assert!(taken > 10, "32 KiB are left to queues, whatever the process takes: {taken}");
    assert!(refused.to_string().contains(" of 1 MiB of memory"), "{refused}");
    let memory = stores.shards.memory().expect("a bound");
    assert!(memory.is_full() && memory.is_short(), "{memory:?}");
    let repeat = one(&stores, SHARD, enqueue("m-1")).await.expect("a repeat takes no memory");
    assert!(matches!(repeat, Reply::Enqueued { already_enqueued: true, .. }), "{repeat:?}");
    for lease in leases(&stores, 100).await {
        one(&stores, SHARD, complete(&lease)).await.expect("settlements go on");
    }
    store.close();

    let (_store, stores) = open_queues(within(1 << 40), &clock);
    one(&stores, SHARD, enqueue("new")).await.expect("there is room");
    drop(ballast);
}

#[tokio::test]
async fn what_a_queue_refuses_or_repeats_is_told_as_ever_while_memory_is_full() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let clock = clock();
    let (store, stores) = open_queues(small(dir.path()), &clock);
    let settings: ShardSettings = Settings { reuse_ids: IdReuse::WhenOver, ..settings() }.into();
    stores.shards.create(QUEUE, 1, settings.clone()).await.expect("created");
    fill(&stores, SHARD, 2).await;
    for lease in leases(&stores, 2).await {
        one(&stores, SHARD, complete(&lease)).await.expect("settled");
    }
    store.close();

    let (_store, stores) = open_queues(Options { queue_memory_bytes: 1, ..small(dir.path()) }, &clock);
    let repeat = one(&stores, SHARD, enqueue("m-1")).await.expect("a repeat takes no memory");
    assert!(matches!(repeat, Reply::Enqueued { already_enqueued: true, .. }), "{repeat:?}");
    clock.advance(Duration::from_secs(61));
    one(&stores, SHARD, enqueue("m-1")).await.expect_err("after a minute it is a new message of a free id");
    let refusal = async |stores: &QueueStores, sent: ShardCommand| {
        stores.shards.apply(SHARD, vec![sent]).await.remove(0).expect("the shard answers").reply.expect_err("refused")
    };
    assert_eq!(refusal(&stores, enqueue_at("old", Timestamp::from_secs(1))).await, Refusal::TokenExpired);
    let blocked = ShardSettings { version: 1, enqueue_blocked: Some("moving".into()), ..settings };
    one(&stores, SHARD, configure(blocked)).await.expect("configured");
    assert_eq!(refusal(&stores, enqueue("new")).await, Refusal::EnqueueBlocked("moving".into()));
}

#[tokio::test]
async fn a_memory_full_of_finished_messages_has_room_again_once_their_retention_and_window_are_over() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let clock = clock();
    let (_store, stores) = open_queues(Options { queue_memory_bytes: 32 << 10, ..small(dir.path()) }, &clock);
    stores.shards.create(QUEUE, 1, settings().into()).await.expect("created");
    let with_time = |id: &str| enqueue_at(id, clock.now());
    let mut taken = 0;
    while one(&stores, SHARD, with_time(&format!("m-{taken}"))).await.is_ok() {
        one(&stores, SHARD, complete(&leases(&stores, 1).await[0])).await.expect("settled");
        taken += 1;
    }
    assert!(taken > 200, "a finished message takes little: {taken}");
    clock.advance(Duration::from_secs(3_600 + 700));
    one(&stores, SHARD, ShardCommand::of(Command::Sweep { max: 256 })).await.expect("swept");
    one(&stores, SHARD, ShardCommand::of(Command::Sweep { max: 256 })).await.expect("swept");
    stores.shards.queues().await.expect("what the store does by itself after a call is done");
    one(&stores, SHARD, with_time("new")).await.expect("there is room");
    let used = stores.shards.memory().expect("a bound").used;
    assert!(used.total() < 4_000, "neither messages nor answers are left: {used:?}");
}

/// The last status of each shard that a listener has heard.
#[derive(Default)]
struct LastStatus(Mutex<HashMap<ShardId, ShardStatus>>);

impl QueueListener for LastStatus {
    fn changed(&self, shard: ShardId, view: ShardStatus) {
        self.0.lock().insert(shard, view);
    }
}

#[tokio::test]
async fn listeners_hear_of_a_shard_whose_answers_leave_while_memory_is_short() {
    const OTHER: ShardId = ShardId { queue: QUEUE, number: 1 };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let clock = clock();
    let (_store, stores) = open_queues(Options { queue_memory_bytes: 64 << 10, ..small(dir.path()) }, &clock);
    stores.shards.create(QUEUE, 2, settings().into()).await.expect("created");
    let listener = Arc::new(LastStatus::default());
    stores.shards.listen(Arc::<LastStatus>::clone(&listener));
    let told = || listener.0.lock().get(&SHARD).expect("it was heard of").memory_bytes;
    let with_time = |id: &str| enqueue_at(id, clock.now());
    for number in 0..100 {
        one(&stores, SHARD, with_time(&format!("m-{number}"))).await.expect("taken");
    }
    for lease in leases(&stores, 100).await {
        one(&stores, SHARD, complete(&lease)).await.expect("settled");
    }
    let completed = PurgedStates::new([MessageState::Completed]).expect("a state");
    let purge = Command::Purge(BulkRequest { states: completed, ..all_of_it() });
    one(&stores, SHARD, ShardCommand::of(purge)).await.expect("purged");
    let answers = told();
    assert!(answers > 8_000, "a hundred answers stay: {answers}");
    clock.advance(Duration::from_secs(3_601));
    let mut taken = 0;
    while told() == answers {
        assert!(taken < 1_000, "nobody said that the answers have left");
        // The last ones may be refused.
        let _ = one(&stores, OTHER, with_time(&format!("other-{taken}"))).await;
        taken += 1;
    }
    assert!(told() < answers / 4, "{} of {answers} bytes", told());
}

#[tokio::test]
async fn parts_that_do_not_fit_together_refuse_to_open() {
    type Harm = fn(&super::keyspaces::QueueKeyspaces);
    let harms: [(&str, Harm); 7] = [
        ("no header", |spaces| spaces.shards.remove(key::of_header(SHARD)).expect("removed")),
        ("no settings", |spaces| spaces.shards.remove(key::of_settings(SHARD)).expect("removed")),
        ("no entry", |spaces| spaces.shards.remove(key::of_queue(QUEUE)).expect("removed")),
        ("beyond", |spaces| {
            let head = spaces.heads.get(key::of_message(SHARD, 1)).expect("readable").expect("there");
            spaces.heads.insert(key::of_message(SHARD, 9), head).expect("written");
        }),
        ("cannot be read", |spaces| {
            spaces.heads.insert(key::of_message(SHARD, 1), b"\xff".as_slice()).expect("written");
        }),
        ("page 0 of finished messages in shard 0 of queue ", |spaces| {
            let page = key::of_page(key::PageTag::Stubs, SHARD, 0);
            spaces.stubs.insert(page, b"\xff".as_slice()).expect("written");
        }),
        ("key", |spaces| spaces.heads.insert(b"odd".as_slice(), b"".as_slice()).expect("written")),
    ];
    for (word, harm) in harms {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (store, stores) = open_queues(small(dir.path()), &clock());
        stores.shards.create(QUEUE, 1, settings().into()).await.expect("created");
        fill(&stores, SHARD, 2).await;
        harm(&store.core.queues.spaces.read().clone().expect("there is a queue"));
        // Startup would cut away rows that no commit wrote, so the store is read as it is.
        let recovered = store.core.read("recover", |library| Ok(recover(library, dir.path()).err()));
        let refused = recovered.expect("open").expect(word);
        assert!(matches!(refused, OpenError::Damaged { .. }), "{refused}");
        assert!(refused.to_string().contains(word), "{word}: {refused}");
    }
}

#[tokio::test]
async fn a_message_without_its_body_is_an_error_and_never_absent() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (store, stores) = open_queues(small(dir.path()), &clock());
    stores.shards.create(QUEUE, 1, settings().into()).await.expect("created");
    fill(&stores, SHARD, 2).await;
    let spaces = store.core.queues.spaces.read().clone().expect("there is a queue");
    spaces.bodies.remove(key::of_message(SHARD, 1)).expect("removed");
    let refused = stores.reader.peek(SHARD, 9).await.expect_err("damaged");
    assert_eq!((refused.kind, refused.outcome), (StoreErrorKind::Corrupt, EffectOutcome::NotApplied));
    let refused = one(&stores, SHARD, dequeue(1)).await.expect_err("damaged");
    assert_eq!(
        (refused.kind, refused.outcome),
        (StoreErrorKind::Corrupt, EffectOutcome::Unknown),
        "the lease was given"
    );
}

#[tokio::test]
async fn the_outbox_has_every_row_in_the_order_of_commits() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (store, stores) = open_queues(small(dir.path()), &clock());
    stores.shards.create(QUEUE, 1, settings().into()).await.expect("created");
    let mut expected = Vec::new();
    for number in 0..30 {
        let command = if number % 3 == 2 { dequeue(1) } else { enqueue(&format!("m-{number}")) };
        expected.extend(stores.shards.apply(SHARD, vec![command]).await.remove(0).expect("taken").transitions);
    }
    let spaces = store.core.queues.spaces.read().clone().expect("there is a queue");
    let mut found = Vec::new();
    for row in rows(&spaces.outbox, key::everything(), ScanOrder::OldestFirst) {
        let (_, value) = row.expect("readable");
        found.extend(tallystone_adapters::codec::queues::history::decode_rows(0, &value).expect("whole"));
    }
    let found: Vec<_> = found.into_iter().map(|row| row.transition).collect();
    assert_eq!(found, expected);
}

#[tokio::test]
async fn answers_are_kept_for_the_longest_window_and_a_longer_one_reaches_no_further_back() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let clock = clock();
    let hour = Duration::from_secs(3_600);
    let (store, stores) = open_queues(small(dir.path()), &clock);
    stores.shards.create(QUEUE, 1, settings().into()).await.expect("created");
    let named = |hours: u32, time: Timestamp| {
        let mut sent = enqueue(&format!("h-{hours}"));
        if let Command::Enqueue(message) = &mut sent.command {
            message.token_time = Some(time);
        }
        sent
    };
    let begun = clock.now();
    for hours in 0..6 {
        one(&stores, SHARD, named(hours, clock.now())).await.expect("enqueued");
        clock.advance(hour / 2);
        one(&stores, SHARD, named(hours, begun + hour * hours)).await.expect("known");
        clock.advance(hour / 2);
    }
    let kept = || {
        let list = Manifest::read(dir.path()).expect("it is read").expect("it is there").expect("it is whole");
        list.keyspaces.values().filter(|name| name.starts_with("queue.answers.")).count()
    };
    assert!(kept() <= 3, "{} of six hours, with a window of one", kept());
    let longer = Settings {
        dedupe_window: 24 * hour,
        retention: Retention { completed: 24 * hour, canceled: 24 * hour, errored: 24 * hour },
        ..settings()
    };
    one(&stores, SHARD, configure(ShardSettings { version: 1, ..longer.into() })).await.expect("configured");
    let asked = async |stores: &QueueStores| stores.shards.apply(SHARD, vec![named(0, begun)]).await.remove(0);
    assert_eq!(asked(&stores).await.expect("an answer").reply, Err(Refusal::TokenExpired), "its answer may be gone");
    store.close();
    let (_store, stores) = open_queues(small(dir.path()), &clock);
    assert_eq!(asked(&stores).await.expect("an answer").reply, Err(Refusal::TokenExpired), "after a restart too");
}

/// Enqueues a message, and returns the attempts that the settings in force give it.
async fn attempts_given(stores: &QueueStores, id: &str) -> u32 {
    one(stores, SHARD, enqueue(id)).await.expect("enqueued");
    let message = MessageRef::Id(MessageId::new(id).expect("a valid id"), None);
    let (found, _) = stores.reader.get(SHARD, message).await.expect("a read").expect("it is there");
    found.head.max_attempts
}

#[tokio::test]
async fn the_version_of_the_settings_outlives_the_store_also_where_the_settings_are_equal() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let clock = clock();
    let (store, stores) = open_queues(small(dir.path()), &clock);
    let version = |version, attempts| {
        let settings = Settings { default_attempts: attempts, ..settings() };
        ShardSettings { version, ..settings.into() }
    };
    stores.shards.create(QUEUE, 1, version(3, 30)).await.expect("created");
    store.close();
    let (store, stores) = open_queues(small(dir.path()), &clock);
    one(&stores, SHARD, configure(version(2, 20))).await.expect("answered as if done");
    assert_eq!(attempts_given(&stores, "older than at the creation").await, 30);
    one(&stores, SHARD, configure(version(5, 30))).await.expect("configured");
    store.close();
    let (_store, stores) = open_queues(small(dir.path()), &clock);
    one(&stores, SHARD, configure(version(4, 40))).await.expect("answered as if done");
    assert_eq!(attempts_given(&stores, "older than the last").await, 30);
    one(&stores, SHARD, configure(version(6, 60))).await.expect("configured");
    assert_eq!(attempts_given(&stores, "newer").await, 60);
}

#[tokio::test]
async fn settings_that_an_earlier_build_stored_without_a_version_give_way_to_those_of_the_catalog() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (store, stores) = open_queues(small(dir.path()), &clock());
    stores.shards.create(QUEUE, 1, settings().into()).await.expect("created");
    let row = store.core.queues.spaces.read().clone().expect("there is a queue").shards.get(key::of_settings(SHARD));
    let stored = StoredQueueSettings::decode(&*row.expect("readable").expect("there")).expect("settings");
    assert_eq!(stored.version, 0, "as a row without the field is read");
    store.close();
    let (_store, stores) = open_queues(small(dir.path()), &clock());
    let of_catalog = Settings { default_attempts: 7, ..settings() };
    one(&stores, SHARD, configure(ShardSettings { version: 1, ..of_catalog.into() })).await.expect("configured");
    assert_eq!(attempts_given(&stores, "m").await, 7);
}
