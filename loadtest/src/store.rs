//! The other ceiling: the store library alone, rows of the same size, group commit with one fsync.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use fjall::compaction::Leveled;
use fjall::config::FilterPolicy;
use fjall::{Database, KeyspaceCreateOptions, PersistMode};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::load::{Dice, Span};
use crate::report::Report;

/// What is written.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// The bytes of a key: namespace, counter name, time, token.
    pub key_bytes: usize,
    /// The bytes of a value.
    pub value_bytes: usize,
    /// Rows that a producer waits for together.
    pub batch: usize,
    /// Producers at once.
    pub producers: usize,
    /// The most rows of one commit.
    pub group: usize,
    /// The counters they belong to.
    pub counters: u64,
}

const MIB: u64 = 1024 * 1024;

struct Write {
    rows: Vec<(Vec<u8>, Vec<u8>)>,
    done: oneshot::Sender<()>,
}

/// Opens a store as the embedded store does: what is compared is the work above the library, not its settings.
pub fn open(folder: &Path) -> Result<Database> {
    let database = Database::builder(folder).manual_journal_persist(true).worker_threads(2);
    Ok(database.max_journaling_size(192 * MIB).open()?)
}

/// The settings of a keyspace of rows that are read in ranges.
pub fn options() -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default()
        .manual_journal_persist(true)
        .max_memtable_size(16 * MIB)
        .filter_policy(FilterPolicy::disabled())
        .compaction_strategy(Arc::new(Leveled::default().with_l0_threshold(8)))
}

/// Commits rows as fast as their producers get answers.
pub async fn run(folder: &Path, rows: Rows, span: Span) -> Result<Report> {
    let database = open(&folder.join("raw"))?;
    let keyspace = database.keyspace("events", options)?;
    let (sender, receiver) = mpsc::channel::<Write>(rows.producers);
    let committer = std::thread::spawn(move || commit_all(&database, &keyspace, receiver, rows.group));
    let from = Instant::now() + span.warm_up;
    let to = from + span.measure;
    let mut tasks = JoinSet::new();
    for producer in 0..rows.producers {
        let sender = sender.clone();
        tasks.spawn(async move { produce(&sender, rows, from, to, Dice::new(producer as u64 + 1)).await });
    }
    drop(sender);
    let mut all = Report::new();
    while let Some(report) = tasks.join_next().await {
        all.merge(&report??);
    }
    all.measured = span.measure;
    committer.join().expect("the committer does not panic")?;
    Ok(all)
}

async fn produce(
    sender: &mpsc::Sender<Write>,
    rows: Rows,
    from: Instant,
    to: Instant,
    mut dice: Dice,
) -> Result<Report> {
    let mut report = Report::new();
    let begin = Instant::now();
    while Instant::now() < to {
        let batch = (0..rows.batch).map(|_| row(&rows, begin, &mut dice)).collect();
        let (done, answer) = oneshot::channel();
        let begun = Instant::now();
        sender.send(Write { rows: batch, done }).await?;
        answer.await?;
        let ended = Instant::now();
        if ended >= from && ended < to {
            report.note(ended - begun, &Ok(rows.batch as u64));
        }
    }
    Ok(report)
}

/// A key in the order of (counter, time, token), as the event log has it.
fn row(rows: &Rows, begin: Instant, dice: &mut Dice) -> (Vec<u8>, Vec<u8>) {
    let mut key = format!("12345678load/{:07}", dice.below(rows.counters)).into_bytes();
    let micros = u64::try_from(begin.elapsed().as_micros()).expect("a run is short");
    key.extend_from_slice(&micros.to_be_bytes());
    while key.len() < rows.key_bytes {
        key.extend_from_slice(&dice.below(u64::MAX).to_be_bytes());
    }
    key.truncate(rows.key_bytes);
    (key, vec![7; rows.value_bytes])
}

fn commit_all(
    database: &Database,
    keyspace: &fjall::Keyspace,
    mut receiver: mpsc::Receiver<Write>,
    group: usize,
) -> Result<()> {
    while let Some(first) = receiver.blocking_recv() {
        let mut writes = vec![first];
        let mut count = writes[0].rows.len();
        while count < group
            && let Ok(next) = receiver.try_recv()
        {
            count += next.rows.len();
            writes.push(next);
        }
        let mut batch = database.batch().durability(Some(PersistMode::SyncData));
        for (key, value) in writes.iter_mut().flat_map(|write| write.rows.drain(..)) {
            batch.insert(keyspace, key, value);
        }
        batch.commit()?;
        for write in writes {
            let _ = write.done.send(()); // the producer ends only after its last answer
        }
    }
    Ok(())
}

/// One second of warm-up is enough for the page cache.
pub const WARM_UP: Duration = Duration::from_secs(1);
