//! The history on Cassandra alone: what its rows carry, and a node that is killed in the middle of appends.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use scylla::client::session::Session;
use tallystone_adapters::system::SystemClock;
use tallystone_cassandra::{self as adapter, Options, StartupDeadline, connect, schema};
use tallystone_domain::history::{HistoryCursor, HistoryTerm};
use tallystone_domain::queue::messages::message::MessageKey;
use tallystone_domain::queue::transition::HistoryRow;
use tallystone_ports::{HistoryBatch, HistoryStore};
use tokio::sync::watch;

use crate::backends::{Backend, is_selected, not_run};
use crate::history_given::{
    QUEUE, SHARDS, WHOLE, append, batch, enqueued, extended, find_all, leased, message, position, shard, whole_trace,
};
use crate::servers::cassandra::{Cassandra, shared};

const WEEK: Duration = Duration::from_secs(7 * 86_400);
/// The messages of a batch of the fault test.
const MESSAGES: u64 = 20;
/// The batches of each shard of the fault test.
const BATCHES: u64 = 60;
/// So many batches are answered before the node is killed.
const ANSWERED_BEFORE_KILL: usize = 40;

struct Opened {
    session: Session,
    store: adapter::Cassandra,
}

fn deadline() -> Arc<StartupDeadline> {
    Arc::new(StartupDeadline::start_within(Arc::new(SystemClock), Duration::from_secs(90)))
}

/// Opens a keyspace and makes it first.
async fn open(node: &str, keyspace: &str) -> Opened {
    let options = Options {
        servers: vec![node.to_owned()],
        keyspace: keyspace.to_owned(),
        data_center: None,
        credentials: None,
        tls: None,
        timeout: Duration::from_secs(60),
    };
    let session = connect(&options, &deadline()).await.expect("a session");
    let replication = schema::Replication::new(vec![("datacenter1".to_owned(), 1)]);
    schema::make_keyspace(&session, keyspace, &replication, &SystemClock).await.expect("a keyspace");
    schema::apply(&session, keyspace, schema::MIGRATIONS, &SystemClock, &|| ()).await.expect("the tables");
    let opened = Box::pin(adapter::Cassandra::open(&options, None, Arc::new(SystemClock), &deadline())).await;
    Opened { session, store: opened.expect("the keyspace opens") }
}

/// The numbers in two columns of a table.
async fn pairs(session: &Session, statement: &str) -> Vec<(i32, i64)> {
    let answered = session.query_unpaged(statement, ()).await.unwrap_or_else(|why| panic!("{statement}: {why}"));
    let rows = answered.into_rows_result().expect("it is a read");
    rows.rows::<(i32, i64)>().expect("two numbers").map(|row| row.expect("a row")).collect()
}

#[tokio::test]
async fn every_row_expires_and_carries_its_own_time() {
    if !is_selected(Backend::Cassandra) {
        return;
    }
    let node = match shared() {
        Ok(node) => node.to_string(),
        Err(why) => return not_run(Backend::Cassandra, &why),
    };
    let Opened { session, store } = open(&node, "history_rows").await;
    let history = store.history(WEEK);
    let rows = vec![
        enqueued(message(0, 1), position(1), 0, "a", "acme"),
        leased(message(0, 1), position(2), 10),
        // The clock of the next epoch is an hour behind.
        extended(
            message(0, 1),
            tallystone_domain::queue::transition::RowPosition { epoch: 2, position: 2 },
            -3_600_000,
        ),
    ];
    // The repeats change nothing, whatever was written between them.
    for rows in [&rows[..], &rows[..1], &rows[..]] {
        append(&*history, vec![batch(shard(0), rows.to_vec())]).await;
    }
    let mut written = pairs(&session, "SELECT TTL(row), WRITETIME(row) FROM history_rows.history_trace").await;
    let mut times: Vec<i64> = rows.iter().map(|row| row.transition.at.micros()).collect();
    times.sort_unstable();
    written.sort_unstable_by_key(|(_, time)| *time);
    assert_eq!(written.iter().map(|(_, time)| *time).collect::<Vec<_>>(), times);
    let longest = i32::try_from(WEEK.as_secs()).expect("a week") + 6 * 3_600;
    assert!(written.iter().all(|(ttl, _)| (longest - 600..=longest).contains(ttl)), "{written:?}");
    let found =
        pairs(&session, "SELECT TTL(message_sequence), WRITETIME(message_sequence) FROM history_rows.history_found");
    assert!(found.await.iter().all(|(ttl, time)| (longest - 600..=longest).contains(ttl) && times.contains(time)));
    assert_eq!(whole_trace(&*history, QUEUE, message(0, 1)).await, rows);
    assert_eq!(history.starts_at().await.expect("a time"), None);
    // Of a longer retention nothing is promised for rows that were written under the shorter one.
    let longer = store.history(WEEK * 4);
    append(&*longer, vec![batch(shard(0), rows)]).await;
    let kept = session.query_unpaged("SELECT seconds FROM history_rows.history_kept", ()).await.expect("a read");
    let kept = kept.into_rows_result().expect("rows");
    let kept: Vec<i64> = kept.rows::<(i64,)>().expect("numbers").map(|row| row.expect("a row").0).collect();
    assert_eq!(kept, [604_800, 4 * 604_800]);
}

/// The batches of a shard: each enqueues and leases some messages.
fn batches(number: u32) -> Vec<HistoryBatch> {
    let of = |index: u64| {
        let first = index * MESSAGES + 1;
        let rows = (first..first + MESSAGES).flat_map(|n| {
            let (key, millis) = (message(number, n), n as i64 * 500);
            let id = format!("{number}-{n}");
            [enqueued(key, position(2 * n - 1), millis, &id, "acme"), leased(key, position(2 * n), millis)]
        });
        batch(shard(number), rows.collect())
    };
    (0..BATCHES).map(of).collect()
}

/// How calls ended so far.
#[derive(Clone, Copy, Default)]
struct Answers {
    ok: usize,
    failed: usize,
}

/// Writes batches of a shard in order, each until it is answered, as a relay does.
async fn relay(history: Arc<dyn HistoryStore>, batches: Vec<HistoryBatch>, answers: Arc<watch::Sender<Answers>>) {
    for batch in batches {
        let mut is_written = false;
        while !is_written {
            is_written = history.append(vec![batch.clone()]).await.is_ok();
            answers.send_modify(|answers| {
                answers.ok += usize::from(is_written);
                answers.failed += usize::from(!is_written);
            });
        }
    }
}

/// Every row at or below the cursor is there.
async fn check_below_cursor(history: &dyn HistoryStore, all: &[HistoryBatch]) {
    for batch in all {
        let cursor: Option<HistoryCursor> = history.cursor(batch.shard).await.expect("a cursor");
        let Some(cursor) = cursor.filter(|cursor| cursor.position >= batch.cursor.position) else { continue };
        let keys: Vec<MessageKey> = batch.rows.iter().map(|row| row.transition.key).collect();
        let newest = history.last(QUEUE, keys).await.expect("rows");
        assert!(newest.iter().all(Option::is_some), "the cursor is at {cursor:?}, and rows below it are missing");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_killed_amid_appends_keeps_every_row_once() {
    if !is_selected(Backend::Cassandra) {
        return;
    }
    let node = match tokio::task::block_in_place(|| Cassandra::start(|_| {})) {
        Ok(node) => node,
        Err(why) => return not_run(Backend::Cassandra, &why),
    };
    let Opened { store, session } = open(&node.address().to_string(), "history_killed").await;
    drop(session);
    let history = store.history(WEEK);
    let answers = Arc::new(watch::Sender::new(Answers::default()));
    let mut answered = answers.subscribe();
    let all: Vec<Vec<HistoryBatch>> = (0..SHARDS).map(batches).collect();
    let relays = all.clone().into_iter().map(|of| tokio::spawn(relay(Arc::clone(&history), of, Arc::clone(&answers))));
    let relays: Vec<_> = relays.collect();
    answered.wait_for(|answers| answers.ok >= ANSWERED_BEFORE_KILL).await.expect("the node is up");
    assert_eq!(answers.borrow().failed, 0, "the node is up");
    let settings = tokio::task::block_in_place(|| node.kill());
    answered.wait_for(|answers| answers.failed > 0).await.expect("the relays go on until the node is back");
    let before = answers.borrow().ok;
    assert!(before < SHARDS as usize * BATCHES as usize, "batches are left");
    let node = tokio::task::block_in_place(|| Cassandra::start_again(settings)).expect("the node comes back");
    // The driver connects again in its own time.
    answered.wait_for(|answers| answers.ok > before).await.expect("the relays go on until all is written");
    check_below_cursor(&*history, &all.concat()).await;
    for ended in join_all(relays).await {
        ended.expect("a relay ends");
    }
    let rows: Vec<HistoryRow> = all.concat().into_iter().flat_map(|batch| batch.rows).collect();
    let found = find_all(&*history, WHOLE, &HistoryTerm::Enqueued).await;
    assert_eq!(found.len(), rows.len() / 2);
    assert!(found.windows(2).all(|two| two[0] > two[1]), "each once, newest first");
    for rows in rows.chunks(2) {
        assert_eq!(whole_trace(&*history, QUEUE, rows[0].transition.key).await, rows);
    }
    check_below_cursor(&*history, &all.concat()).await;
    drop(node);
}
