//! What a server takes for a steady rate of lives in queues with the settings of a new one: memory, disk and latencies, over
//! the retention of an hour or until the memory of queues is full. Then it is killed, and has to have all that it acknowledged.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use tallystone_client::proto::queue::v1::{
    BatchEnqueueRequest, DequeueRequest, GetDepthRequest, GetDepthResponse, Lease, SettleMessagesRequest,
};

use super::begin;
use super::hour::Part;
use super::messages::{Client, Kind, Queues, client, completion, create, message};
use crate::client::{Connections, reason_of};
use crate::load::{Call, Span, open};
use crate::target::Target;

/// The queues of the run.
pub const QUEUES: usize = 8;
/// The messages of one call.
const CALL: i32 = 50;
const WORKERS: usize = 64;
/// Parts of the run, each reported by itself.
const PARTS: u32 = 12;
/// A shorter run ends before the first message is removed.
const RETENTION_MINUTES: u64 = 60;

/// What came of it.
pub struct Outcome {
    /// The parts, in order; each call has as many lives as messages.
    pub parts: Vec<Part>,
    /// The messages that the server acknowledged and has to have after the kill.
    pub acknowledged: u64,
    /// The messages that it had.
    pub found: u64,
    /// From the start of the process after the kill until `/readyz` says yes.
    pub ready_after: Duration,
}

/// Runs so many lives a second for so many minutes, kills the server and looks for what it had acknowledged.
pub async fn run(binary: &Path, data: &Path, lives: u64, minutes: u64) -> Result<Outcome> {
    let (server, connections) = begin(binary, data).await?;
    for number in 0..QUEUES {
        create(&connections, Queues::simple(&name(number))).await?;
    }
    let taken = Arc::new(Taken::default());
    let span = Span { warm_up: Duration::ZERO, measure: Duration::from_secs(60 * minutes) / PARTS };
    let (mut parts, mut enqueued_in_first) = (Vec::new(), 0);
    for number in 1..=PARTS {
        let workers = (0..WORKERS).map(|worker| Life::new(&connections, worker, &taken)).collect();
        let report = open(workers, lives as f64 / f64::from(CALL), span).await;
        parts.push(Part::of(report, &server, data, &format!("part {number} of {PARTS}, lives"))?);
        if number == 1 {
            enqueued_in_first = taken.enqueued.load(Ordering::Relaxed);
        }
    }
    let all = taken.enqueued.load(Ordering::Relaxed);
    // Of a run as long as the retention, the first part may have gone.
    let removed_at_most = if minutes < RETENTION_MINUTES { 0 } else { enqueued_in_first };
    let acknowledged = all - removed_at_most;
    drop(server); // kill -9
    let server = Target::server(binary, data)?;
    let found = found(&Connections::open(&server.url(), 1).await?).await?;
    let completed = taken.completed.load(Ordering::Relaxed).saturating_sub(removed_at_most);
    ensure!(found.1 >= completed, "{} of {completed} acknowledged completions after the restart", found.1);
    Ok(Outcome { parts, acknowledged, found: found.0, ready_after: server.ready_after })
}

/// The name of a queue.
pub fn name(number: usize) -> String {
    format!("steady-{}", number % QUEUES)
}

/// The messages of all queues, and those of them that are completed.
pub async fn found(connections: &Connections) -> Result<(u64, u64)> {
    let (mut all, mut completed) = (0, 0);
    for number in 0..QUEUES {
        let request = GetDepthRequest { queue: name(number), ..GetDepthRequest::default() };
        let depth: GetDepthResponse = client(connections, 0).get_depth(request).await?.into_inner();
        all += depth.pending + depth.running + depth.completed;
        completed += depth.completed;
    }
    Ok((u64::try_from(all)?, u64::try_from(completed)?))
}

/// What the server has acknowledged.
#[derive(Default)]
pub struct Taken {
    enqueued: AtomicU64,
    completed: AtomicU64,
}

/// The lives of as many messages as a call has: one call enqueues, one leases, one completes.
pub struct Life {
    client: Client,
    queue: String,
    taken: Arc<Taken>,
}

impl Life {
    /// The calls of one worker.
    pub fn new(connections: &Connections, worker: usize, taken: &Arc<Taken>) -> Self {
        Self { client: client(connections, worker), queue: name(worker), taken: Arc::clone(taken) }
    }

    async fn enqueue(&mut self) -> Result<(), String> {
        let messages = (0..CALL).map(|_| message(Kind::Plain, 0)).collect();
        let request = BatchEnqueueRequest { queue: self.queue.clone(), messages };
        let answer = self.client.batch_enqueue(request).await.map_err(|status| reason_of(&status))?.into_inner();
        let mut refused = None;
        for result in answer.results {
            match result.error {
                None => drop(self.taken.enqueued.fetch_add(1, Ordering::Relaxed)),
                Some(error) => refused = Some(error.reason),
            }
        }
        refused.map_or(Ok(()), Err)
    }

    async fn dequeue(&mut self) -> Result<Vec<Lease>, String> {
        let request = DequeueRequest { queue: self.queue.clone(), max_messages: CALL, ..DequeueRequest::default() };
        let answer = self.client.dequeue(request).await.map_err(|status| reason_of(&status))?;
        Ok(answer.into_inner().leases)
    }

    async fn complete(&mut self, leases: Vec<Lease>) -> Result<u64, String> {
        let items = leases.into_iter().map(|lease| completion(lease.lease_token)).collect();
        let request = SettleMessagesRequest { queue: self.queue.clone(), items };
        let answer = self.client.settle_messages(request).await.map_err(|status| reason_of(&status))?.into_inner();
        let mut done = 0;
        for result in answer.results {
            match result.error {
                None => done += 1,
                Some(error) => return Err(error.reason),
            }
        }
        self.taken.completed.fetch_add(done, Ordering::Relaxed);
        Ok(done)
    }
}

impl Call for Life {
    async fn call(&mut self) -> Result<u64, String> {
        self.enqueue().await?;
        match self.dequeue().await? {
            leases if leases.is_empty() => Ok(0), // another worker has them
            leases => self.complete(leases).await,
        }
    }
}
