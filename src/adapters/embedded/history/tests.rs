//! Tests specific to this store: kills, dropped periods, the bound on the size, damage, a full disk, backups. The
//! conformance suite tests the laws of the port.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::entries::encode;
use super::key;
use crate::backup::restore;
use crate::disk::library::HISTORY_PREFIX;
use crate::disk::writer::SyncMode;
use crate::inbox::command::{HistoryCommand, StoreCommand};
use crate::tests::{open_small, small};
use crate::{Embedded, Options, open};
use tallystone_adapters::manual::ManualClock;
use tallystone_domain::history::{HistoryCursor, HistoryTerm};
use tallystone_domain::queue::messages::message::{AttemptError, MessageKey, Metadata};
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::queue::transition::{EnqueuedMessage, HistoryRow, RowPosition, Transition, TransitionDetail};
use tallystone_domain::queue::{MessageState, QueueId, ShardId, Trigger};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{EffectOutcome, HistoryBatch, HistoryStore, QueueShards, StoreErrorKind};

const QUEUE: QueueId = QueueId(7);
const SHARD: ShardId = ShardId { queue: QUEUE, number: 0 };
const WHOLE: QueueShards = QueueShards { queue: QUEUE, shards: 1 };
const DAY: i64 = 86_400;
/// Some day.
const T0: i64 = 20_000 * DAY;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_secs(T0 + seconds)
}

fn message(sequence: u64) -> MessageKey {
    MessageKey { shard: 0, epoch: 1, sequence }
}

fn id(number: u64) -> MessageId {
    MessageId::new(&format!("id-{number}")).expect("a valid id")
}

/// The enqueue of a message whose sequence is the position.
fn enqueued(position: u64, time: Timestamp) -> HistoryRow {
    let error = AttemptError { signature: "E".into(), text: format!("{position:01000}").into() };
    let detail = TransitionDetail {
        position: RowPosition { epoch: 1, position },
        error: Some(Box::new(error)),
        ..TransitionDetail::default()
    };
    let transition = Transition {
        key: message(position),
        version: 1,
        trigger: Trigger::Enqueue,
        from: None,
        to: Some(MessageState::Pending),
        at: time,
        detail,
    };
    let enqueued = EnqueuedMessage {
        id: id(position),
        metadata: Metadata::default(),
        kind: None,
        priority: 0,
        payload_bytes: 1,
        counted_keys: Vec::new(),
    };
    HistoryRow { transition, enqueued: Some(Box::new(enqueued)) }
}

fn batch(rows: Vec<HistoryRow>) -> HistoryBatch {
    let position = rows.last().expect("a row").position();
    let cursor = HistoryCursor { position, register: position.position.to_be_bytes().into() };
    HistoryBatch { shard: SHARD, rows, gaps: Vec::new(), cursor }
}

async fn trace(history: &dyn HistoryStore, sequence: u64) -> Vec<HistoryRow> {
    history.trace(QUEUE, message(sequence), None, 99).await.expect("a trace")
}

async fn found(history: &dyn HistoryStore) -> Vec<u64> {
    let found = history.find(WHOLE, &HistoryTerm::Enqueued, None, usize::MAX).await.expect("a search");
    found.into_iter().map(|row| row.position.position).collect()
}

fn keyspaces(store: &Embedded) -> usize {
    store.core.read("count", |library| Ok(library.listed(HISTORY_PREFIX).len())).expect("open")
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).expect("a new folder");
    for entry in fs::read_dir(from).expect("readable") {
        let entry = entry.expect("readable");
        let to = to.join(entry.file_name());
        if entry.file_type().expect("known").is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).expect("writable");
        }
    }
}

#[tokio::test]
async fn a_store_without_history_opens_and_has_no_keyspaces_of_it() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    open_small(dir.path()).0.close();
    let (store, _) = open_small(dir.path());
    let history = store.history();
    assert_eq!(history.cursor(SHARD).await.expect("a cursor"), None);
    assert_eq!(history.last(QUEUE, vec![message(1)]).await.expect("rows"), [None]);
    assert_eq!(history.gaps(WHOLE, 9).await.expect("gaps"), []);
    history.trim(at(0)).await.expect("a trim");
    assert_eq!((history.starts_at().await.expect("a time"), history.usage().bytes), (None, Some(0)));
    assert_eq!((found(&*history).await, keyspaces(&store)), (vec![], 0));
    store.close();
    assert_eq!(history.cursor(SHARD).await.expect_err("closed").kind, StoreErrorKind::Closed);
    assert_eq!(history.trim(at(0)).await.expect_err("closed").kind, StoreErrorKind::Closed);
    let refused = history.append(vec![batch(vec![enqueued(1, at(0))])]).await.expect_err("closed");
    assert_eq!(refused.kind, StoreErrorKind::Closed);
}

#[tokio::test]
async fn an_append_that_a_kill_cut_off_leaves_no_cursor_and_a_repeat_completes_it() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (store, _) = open_small(&dir.path().join("data"));
    store.history().append(vec![batch(vec![enqueued(1, at(0))])]).await.expect("taken");
    let rows: Vec<HistoryRow> = (2..=1_000).map(|number| enqueued(number, at(number as i64))).collect();
    let core = &store.core;
    let encoded = core.read("encode", |library| Ok(encode(&core.history, library, vec![batch(rows.clone())], || ())));
    let mut pieces = encoded.expect("open").expect("placed");
    assert!(pieces.len() > 3, "{} pieces", pieces.len());
    assert!(pieces.iter().rev().skip(1).all(|piece| piece.cursors.is_empty()));
    let last = pieces.pop().expect("a piece");
    assert_eq!(last.cursors.len(), 1);
    // Some rows, and nothing that finds them.
    pieces.truncate(pieces.len() / 2);
    for piece in pieces {
        let command = |answer| StoreCommand::History(HistoryCommand { piece, sync: SyncMode::Yes, answer });
        core.inbox.request("write", command).await.expect("taken");
    }
    // The store is never closed: its copy is what a kill leaves.
    copy(&dir.path().join("data"), &dir.path().join("killed"));
    let (killed, _) = open_small(&dir.path().join("killed"));
    let history = killed.history();
    let position = |number| Some(RowPosition { epoch: 1, position: number });
    let cursor = async || history.cursor(SHARD).await.expect("a cursor").map(|cursor| cursor.position);
    assert_eq!(cursor().await, position(1));
    let all = history.last(QUEUE, (2..=1_000).map(message).collect()).await.expect("rows");
    assert!((100..900).contains(&all.iter().flatten().count()));
    assert!(found(&*history).await.len() < 1_000);
    for _ in 0..2 {
        history.append(vec![batch(rows.clone())]).await.expect("taken");
        assert_eq!(cursor().await, position(1_000));
        assert_eq!(found(&*history).await, (1..=1_000).rev().collect::<Vec<_>>());
        assert_eq!(trace(&*history, 500).await, [rows[498].clone()]);
    }
}

#[tokio::test]
async fn old_periods_leave_as_a_whole_and_do_not_come_back() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (store, _) = open_small(dir.path());
    let history = store.history();
    let rows: Vec<HistoryRow> = (0..8).map(|day| enqueued(day + 1, at(day as i64 * DAY + 60))).collect();
    history.append(vec![batch(rows.clone())]).await.expect("taken");
    assert_eq!(keyspaces(&store), 8 * 3 + 1);
    history.trim(at(3 * DAY + 6 * 3_600 - 1)).await.expect("a trim");
    assert_eq!(history.starts_at().await.expect("a time"), Some(at(2 * DAY + 6 * 3_600)));
    assert_eq!((found(&*history).await, keyspaces(&store)), ((4..=8).rev().collect(), 5 * 3 + 1));
    history.trim(at(3 * DAY + 6 * 3_600)).await.expect("a trim");
    assert_eq!((found(&*history).await, keyspaces(&store)), ((5..=8).rev().collect(), 4 * 3 + 1));
    store.close();
    let (store, _) = open_small(dir.path());
    let history = store.history();
    assert_eq!(history.starts_at().await.expect("a time"), Some(at(3 * DAY + 6 * 3_600)));
    assert_eq!((found(&*history).await, keyspaces(&store)), ((5..=8).rev().collect(), 4 * 3 + 1));
    // A late row is in the period of its own time, and leaves with it again.
    history.append(vec![batch(vec![rows[0].clone()])]).await.expect("taken");
    assert_eq!(trace(&*history, 1).await, [rows[0].clone()]);
    history.trim(at(DAY)).await.expect("a trim");
    assert_eq!(history.starts_at().await.expect("a time"), Some(at(3 * DAY + 6 * 3_600)), "it never goes back");
    assert_eq!((trace(&*history, 1).await, keyspaces(&store)), (vec![], 4 * 3 + 1));
    history.trim(at(99 * DAY)).await.expect("a trim");
    assert_eq!((found(&*history).await, keyspaces(&store)), (vec![], 1));
}

#[tokio::test]
async fn the_size_stays_within_its_bound_and_the_oldest_rows_leave() {
    const MIB: u64 = 1 << 20;
    let dir = tempfile::tempdir().expect("a temporary folder");
    let options = || Options { history_bytes: 2 * MIB, memtable_bytes: 64 << 10, ..small(dir.path()) };
    let mut store = open(options()).expect("it opens");
    let mut most = 0;
    // One period by time: it must end early again and again.
    let batches: Vec<HistoryBatch> = (0..60)
        .map(|number| batch((1..=100).map(|n| enqueued(number * 100 + n, at((number * 100 + n) as i64))).collect()))
        .collect();
    for (number, batch) in batches.iter().enumerate() {
        if number == 40 {
            store.close();
            store = open(options()).expect("it opens again");
        }
        store.history().append(vec![batch.clone()]).await.expect("taken");
        most = most.max(store.history().usage().bytes.expect("known"));
    }
    let history = store.history();
    assert!(most < 3 * MIB, "{most} bytes");
    let left = found(&*history).await;
    assert!(left.len() > 100 && left.len() < 6_000, "{} rows", left.len());
    let oldest = *left.last().expect("a row");
    assert_eq!(left, (oldest..=6_000).rev().collect::<Vec<_>>(), "the oldest leave first");
    let starts_at = history.starts_at().await.expect("a time").expect("rows have left");
    assert!(starts_at <= at(oldest as i64) && starts_at > at(oldest as i64 - 1), "{starts_at:?} and row {oldest}");
    assert_eq!(trace(&*history, oldest - 1).await, []);
    assert!(keyspaces(&store) > 3 * 3, "{} keyspaces", keyspaces(&store));
    // A repeat finds its rows in the periods that they went to.
    history.append(batches[55..].to_vec()).await.expect("taken");
    let repeated = found(&*history).await;
    assert_eq!(repeated[..500], (5_501..=6_000).rev().collect::<Vec<_>>());
    assert!(repeated.is_sorted_by(|one, next| one > next), "each once");
}

#[tokio::test]
async fn late_rows_and_trims_at_once_do_not_harm_the_store() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (store, _) = open_small(dir.path());
    let store = Arc::new(store);
    let mut racing = tokio::task::JoinSet::new();
    for part in 0..3_u64 {
        let history = store.history();
        racing.spawn(async move {
            for number in 0..12 {
                let row = enqueued(part * 100 + number + 1, at((number % 3) as i64 * DAY));
                history.append(vec![batch(vec![row])]).await.expect("taken");
            }
        });
        let history = store.history();
        racing.spawn(async move {
            for number in 0..12 {
                history.trim(at((number % 4) * DAY)).await.expect("a trim");
            }
        });
    }
    racing.join_all().await;
    assert_eq!(store.failure(), None);
    let history = store.history();
    let rows = (0..3_u64)
        .flat_map(|part| (0..12).map(move |number| enqueued(part * 100 + number + 1, at((number % 3) as i64 * DAY))));
    let rows: Vec<HistoryRow> = rows.collect();
    history.append(vec![batch(rows.clone())]).await.expect("taken");
    let mut found = found(&*history).await;
    found.sort_unstable();
    assert_eq!(found, rows.iter().map(|row| row.position().position).collect::<Vec<_>>(), "each once");
    store.close();
    open(small(dir.path())).expect("it opens again");
}

#[tokio::test]
async fn a_damaged_row_fails_its_reads_and_no_others() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (store, _) = open_small(dir.path());
    let history = store.history();
    let rows = [enqueued(1, at(0)), enqueued(2, at(1))];
    history.append(vec![batch(rows.to_vec())]).await.expect("taken");
    let period = store.core.history.newest_first(Timestamp::MAX).remove(0);
    let row = key::of_rows(QUEUE, message(1), 1, &[1]);
    let one = super::read::find(&store.core.history, QUEUE, &HistoryTerm::Enqueued, None, 9).expect("readable")[1];
    let other_message = tallystone_adapters::codec::queues::history::encode_rows([&rows[1]]);
    for damaged in [&b"no rows"[..], b"", &other_message] {
        period.rows.insert(row.clone(), damaged).expect("writable");
        let trace = history.trace(QUEUE, message(1), None, 9).await.expect_err("damaged");
        let last = history.last(QUEUE, vec![message(2), message(1)]).await.expect_err("damaged");
        assert_eq!((trace.kind, last.kind), (StoreErrorKind::Corrupt, StoreErrorKind::Corrupt), "{damaged:?}");
    }
    for damaged in [&b"x"[..], b"", &[0; 13]] {
        period.lives.insert(key::of_life(QUEUE, &id(1), &one), damaged).expect("writable");
        period.found.insert(key::of_hits(QUEUE, &HistoryTerm::Enqueued, &one), damaged).expect("writable");
        let lives = history.lives(QUEUE, &id(1), 9).await.expect_err("damaged");
        let find = history.find(WHOLE, &HistoryTerm::Enqueued, None, 9).await.expect_err("damaged");
        assert_eq!((lives.kind, find.kind), (StoreErrorKind::Corrupt, StoreErrorKind::Corrupt), "{damaged:?}");
    }
    let mut gap = key::gaps(QUEUE);
    let (std::ops::Bound::Included(begin), _) = &mut gap else { panic!("a key: {gap:?}") };
    begin.extend_from_slice(b"short");
    period.lives.insert(begin.clone(), b"").expect("writable");
    assert_eq!(history.gaps(WHOLE, 9).await.expect_err("damaged").kind, StoreErrorKind::Corrupt);
    let state = store.core.history.state_keyspace().expect("it has a cursor");
    state.insert(key::of_cursor(SHARD), b"short").expect("writable");
    assert_eq!(history.cursor(SHARD).await.expect_err("damaged").kind, StoreErrorKind::Corrupt);
    let refused = history.append(vec![batch(vec![enqueued(3, at(2))])]).await.expect_err("damaged");
    assert_eq!(refused.kind, StoreErrorKind::Corrupt);
    assert_eq!(trace(&*history, 2).await, [rows[1].clone()]);
    assert_eq!(history.lives(QUEUE, &id(2), 9).await.expect("whole"), [message(2)]);
    assert_eq!(store.failure(), None);
}

#[tokio::test]
async fn the_history_takes_no_rows_while_less_than_two_reserves_are_free() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (store, _) = open_small(dir.path());
    store.history().append(vec![batch(vec![enqueued(1, at(0))])]).await.expect("taken");
    let free = store.health().free_bytes.expect("a file system that answers");
    store.close();
    let store = open(Options { reserve_bytes: free / 4 * 3, ..small(dir.path()) }).expect("it opens");
    let history = store.history();
    let refused = history.append(vec![batch(vec![enqueued(2, at(1))])]).await.expect_err("full");
    assert_eq!((refused.kind, refused.outcome), (StoreErrorKind::Full, EffectOutcome::NotApplied));
    assert!(!store.health().full, "queues and counters go on");
    assert_eq!(found(&*history).await, [1]);
    assert_eq!(history.cursor(SHARD).await.expect("a cursor").map(|cursor| cursor.position.position), Some(1));
    history.trim(at(0) + Duration::from_secs(DAY as u64)).await.expect("what frees space goes on");
    assert_eq!(found(&*history).await, [0; 0]);
    let (none, plenty) = (u64::MAX, 0);
    for (reserve_bytes, is_taken) in [(none, false), (plenty, true)] {
        store.close();
        let store = open(Options { reserve_bytes, ..small(dir.path()) }).expect("it opens");
        let taken = store.history().append(vec![batch(vec![enqueued(2, at(1))])]).await;
        assert_eq!(taken.is_ok(), is_taken, "{taken:?}");
    }
}

#[tokio::test]
async fn a_backup_holds_the_history() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (store, _) = open_small(&dir.path().join("data"));
    let rows: Vec<HistoryRow> = (1..=9).map(|number| enqueued(number, at(number as i64 * DAY))).collect();
    store.history().append(vec![batch(rows.clone())]).await.expect("taken");
    store.history().trim(at(3 * DAY)).await.expect("a trim");
    let now = at(10 * DAY);
    let mut pieces = store.backups(Arc::new(ManualClock::at(now))).begin().await.expect("open");
    store.history().trim(at(5 * DAY)).await.expect("a trim");
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.next().await.expect("readable") {
        bytes.extend_from_slice(&piece);
    }
    let path = dir.path().join("backup");
    fs::write(&path, bytes).expect("writable");
    restore(&path, &small(&dir.path().join("restored")), now).expect("restored");
    let (restored, _) = open_small(&dir.path().join("restored"));
    let history = restored.history();
    assert_eq!(found(&*history).await, (3..=9).rev().collect::<Vec<_>>());
    assert_eq!(trace(&*history, 3).await, [rows[2].clone()]);
    assert_eq!(history.starts_at().await.expect("a time"), Some(at(2 * DAY + 6 * 3_600)));
    assert_eq!(history.cursor(SHARD).await.expect("a cursor").map(|cursor| cursor.position.position), Some(9));
}
