//! The store library alone doing what a queue on it cannot do without: the ceiling of cycles and the floor of latencies.
//!
//! A cycle writes a head and a body, later reads the body and writes the head again, and then once more; three commits,
//! shared by all that wait, each with one sync. Nothing is ordered, looked up, checked or answered over a network.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use fjall::{Database, Keyspace, PersistMode};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::load::{Call, Span, open};
use crate::report::Report;
use crate::store;

/// The bytes of a head without lease or settlement, and of a body with a payload of 100 bytes.
const HEAD_BYTES: usize = 100;
const BODY_BYTES: usize = 105;
/// The messages that a producer enqueues, leases and settles together.
const BATCH: u64 = 100;
const PRODUCERS: usize = 32;
/// The most rows of one commit.
const GROUP_ROWS: usize = 2_048;
/// The workers of the open loop, two for each of those that load the server.
const CALLERS: usize = 512;

/// Rows, and who waits for them.
struct Write {
    heads: Vec<u64>,
    bodies: Vec<u64>,
    done: oneshot::Sender<()>,
}

/// A store of its own with a thread that commits.
#[derive(Clone)]
pub struct Raw {
    sender: mpsc::Sender<Write>,
    bodies: Keyspace,
    /// The number of the next message, and of the next to be leased.
    enqueued: Arc<AtomicU64>,
    leased: Arc<AtomicU64>,
}

impl Raw {
    /// Opens a store in a folder and puts so many messages in.
    pub async fn with(folder: &Path, pending: u64) -> Result<Self> {
        let database = store::open(folder)?;
        let (heads, bodies) =
            (database.keyspace("heads", store::options)?, database.keyspace("bodies", store::options)?);
        let (sender, receiver) = mpsc::channel::<Write>(CALLERS);
        let to_bodies = bodies.clone();
        // It ends with its last sender; a failure is noticed by whoever waits for it.
        std::thread::spawn(move || commit_all(&database, &heads, &to_bodies, receiver));
        let raw = Self { sender, bodies, enqueued: Arc::default(), leased: Arc::default() };
        let mut fillers = JoinSet::new();
        for _ in 0..PRODUCERS {
            let raw = raw.clone();
            fillers.spawn(async move {
                while raw.enqueued.load(Ordering::Relaxed) < pending {
                    raw.enqueue().await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(filled) = fillers.join_next().await {
            filled??;
        }
        Ok(raw)
    }

    /// Runs whole cycles as fast as they go; the report counts them.
    pub async fn cycles(&self, span: Span) -> Result<Report> {
        let from = Instant::now() + span.warm_up;
        let to = from + span.measure;
        let mut tasks = JoinSet::new();
        for _ in 0..PRODUCERS {
            let raw = self.clone();
            tasks.spawn(async move {
                let mut report = Report::new();
                while Instant::now() < to {
                    let begun = Instant::now();
                    raw.enqueue().await?;
                    let taken = raw.lease().await?;
                    raw.commit(taken, Vec::new()).await?;
                    let ended = Instant::now();
                    if ended >= from && ended < to {
                        report.note(ended - begun, &Ok(BATCH));
                    }
                }
                anyhow::Ok(report)
            });
        }
        let mut all = Report::new();
        while let Some(report) = tasks.join_next().await {
            all.merge(&report??);
        }
        all.measured = span.measure;
        Ok(all)
    }

    /// Commits of one head at a rate, as single dequeues and completions make them, in an open loop.
    pub async fn heads_at(&self, rate: f64, span: Span) -> Report {
        let callers = (0..CALLERS).map(|_| Head { raw: self.clone(), next: 0 }).collect();
        open(callers, rate, span).await
    }

    async fn enqueue(&self) -> Result<()> {
        let first = self.enqueued.fetch_add(BATCH, Ordering::Relaxed);
        let numbers: Vec<u64> = (first..first + BATCH).collect();
        self.commit(numbers.clone(), numbers).await
    }

    /// Leases the oldest messages; answers their numbers.
    async fn lease(&self) -> Result<Vec<u64>> {
        let first = self.leased.fetch_add(BATCH, Ordering::Relaxed);
        let numbers: Vec<u64> = (first..first + BATCH).collect();
        self.commit(numbers.clone(), Vec::new()).await?;
        for number in &numbers {
            self.bodies.get(key(*number))?.context("a message has its body")?;
        }
        Ok(numbers)
    }

    async fn commit(&self, heads: Vec<u64>, bodies: Vec<u64>) -> Result<()> {
        let (done, answer) = oneshot::channel();
        self.sender.send(Write { heads, bodies, done }).await.context("the committer has ended")?;
        answer.await.context("the committer has failed")
    }
}

/// One commit at a time of one row.
struct Head {
    raw: Raw,
    next: u64,
}

impl Call for Head {
    async fn call(&mut self) -> Result<u64, String> {
        self.next += 1;
        self.raw.commit(vec![self.next], Vec::new()).await.map(|()| 1).map_err(|error| error.to_string())
    }
}

/// As long as a place of a message is, and like it beginning with what differs between neighbours.
fn key(number: u64) -> [u8; 28] {
    let mut key = [0; 28];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key.rotate_left(4);
    key
}

fn commit_all(
    database: &Database,
    heads: &Keyspace,
    bodies: &Keyspace,
    mut receiver: mpsc::Receiver<Write>,
) -> Result<()> {
    while let Some(first) = receiver.blocking_recv() {
        let mut count = first.heads.len() + first.bodies.len();
        let mut writes = vec![first];
        while count < GROUP_ROWS
            && let Ok(next) = receiver.try_recv()
        {
            count += next.heads.len() + next.bodies.len();
            writes.push(next);
        }
        let mut batch = database.batch().durability(Some(PersistMode::SyncData));
        for write in &writes {
            write.heads.iter().for_each(|number| batch.insert(heads, key(*number), [7; HEAD_BYTES]));
            write.bodies.iter().for_each(|number| batch.insert(bodies, key(*number), [7; BODY_BYTES]));
        }
        batch.commit()?;
        for write in writes {
            let _ = write.done.send(()); // who waited may have gone at the end
        }
    }
    Ok(())
}

/// How long a store or server rests after it was filled: what it flushes and compacts then belongs to the filling.
pub const REST: Duration = Duration::from_secs(10);
