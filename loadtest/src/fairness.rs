//! One tenant floods enqueues; another one settles at a steady rate. What the second one sees, beside a calm server.
//!
//! Both have keys of a server that is started for this, so that it tells them apart. The settling tenant has a thread and a
//! connection of its own, and its calls begin on time whether the last one is answered or not.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use tallystone_client::proto::queue::v1::{
    BatchEnqueueRequest, CompleteRequest, CreateQueueRequest, DequeueRequest, Message, Queue,
};
use tallystone_client::{Client, RetryPolicy};
use tempfile::TempDir;
use tokio::runtime;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::client::reason_of;
use crate::keyed;
use crate::load::{Call, Span, open};
use crate::report::Report;

/// How hard, and how long.
#[derive(Args, Clone, Copy)]
pub struct Scale {
    /// Enqueues of the flood under way at once
    #[arg(long, default_value_t = 64)]
    in_flight: usize,
    /// Messages of each enqueue of the flood
    #[arg(long, default_value_t = 100)]
    items: usize,
    /// Settlements in a second
    #[arg(long, default_value_t = 100)]
    rate: u32,
    /// Seconds of each of the two runs
    #[arg(long, default_value_t = 15)]
    seconds: u64,
    /// Rounds of both runs
    #[arg(long, default_value_t = 3)]
    rounds: u32,
}

const WARM_UP_SECONDS: u64 = 2;
/// Settlements of the tenant that may be under way at once.
const SETTLERS: usize = 64;
const BATCH: usize = 100;
const PAYLOAD_BYTES: usize = 100;
const LEASE_SECONDS: i64 = 3_600;
const FLOODED: &str = "flooded";
const SETTLED: &str = "settled";

/// Runs it, and prints what the settling tenant saw.
pub async fn run(binary: &Path, folder: impl Fn() -> Result<TempDir>, scale: Scale) -> Result<()> {
    let folder = folder()?;
    let (server, admin) = keyed::server(binary, folder.path())?;
    let url = server.url();
    let key_of = |name| keyed::new_key(binary, &url, &admin, name, &["enqueuer", "worker"]);
    let (flooding, settling) = (key_of("flooding")?, key_of("settling")?);
    for queue in [FLOODED, SETTLED] {
        let queue = Queue { name: queue.to_owned(), ..Queue::default() };
        let request = CreateQueueRequest { queue: Some(queue), ..CreateQueueRequest::default() };
        client(&url, &admin)?.queues().create_queue(request).await?;
    }
    let calls = u64::from(scale.rate) * (scale.seconds + WARM_UP_SECONDS) * 2 * u64::from(scale.rounds);
    let leases = Arc::new(Mutex::new(lease(&client(&url, &settling)?, usize::try_from(calls)?).await?));
    for round in 1..=scale.rounds {
        let calm = settle(&url, &settling, &leases, scale).await?;
        let flood = Flood::begin(&url, &flooding, scale)?;
        let flooded = settle(&url, &settling, &leases, scale).await?;
        let flood = flood.end().await;
        println!("{}", calm.line(&format!("round {round}, calm")));
        println!("{}", flooded.line(&format!("round {round}, flooded")));
        println!("{}", flood.line(&format!("round {round}, the flood")));
        let (before, during) = (calm.quantile_ms(0.99), flooded.quantile_ms(0.99));
        println!("round {round}: p99 {before:.2} ms -> {during:.2} ms, {:.2} times (wanted: below 2)", during / before);
    }
    Ok(())
}

/// A connection of its own for each.
fn client(url: &str, key: &str) -> Result<Client> {
    let policy = RetryPolicy { attempts_max: 1, ..RetryPolicy::default() };
    Ok(Client::new(url, policy)?.with_key(key)?)
}

fn messages(count: usize) -> Vec<Message> {
    vec![Message { payload: vec![b'x'; PAYLOAD_BYTES], ..Message::default() }; count]
}

/// Enqueues so many messages, and leases them.
async fn lease(client: &Client, count: usize) -> Result<Vec<String>> {
    let mut queues = client.queues();
    let mut leases = Vec::with_capacity(count);
    while leases.len() < count {
        let queue = SETTLED.to_owned();
        queues.batch_enqueue(BatchEnqueueRequest { queue: queue.clone(), messages: messages(BATCH) }).await?;
        let lease_duration = Some(prost_types::Duration { seconds: LEASE_SECONDS, nanos: 0 });
        let max_messages = i32::try_from(BATCH)?;
        let request = DequeueRequest { queue, max_messages, lease_duration, ..DequeueRequest::default() };
        let leased = queues.dequeue(request).await?.into_inner().leases;
        leases.extend(leased.into_iter().map(|lease| lease.lease_token));
    }
    Ok(leases)
}

/// One settlement at a time.
struct Settler {
    client: Client,
    leases: Arc<Mutex<Vec<String>>>,
}

impl Call for Settler {
    async fn call(&mut self) -> Result<u64, String> {
        let lease_token =
            self.leases.lock().unwrap_or_else(PoisonError::into_inner).pop().ok_or_else(|| "NO_LEASE".to_owned())?;
        let request = CompleteRequest { queue: SETTLED.to_owned(), lease_token };
        self.client.queues().complete(request).await.map(|_| 1).map_err(|status| reason_of(&status))
    }
}

/// Settles at the rate, on a thread of its own.
async fn settle(url: &str, key: &str, leases: &Arc<Mutex<Vec<String>>>, scale: Scale) -> Result<Report> {
    let (url, key, leases) = (url.to_owned(), key.to_owned(), Arc::clone(leases));
    let span = Span { warm_up: Duration::from_secs(WARM_UP_SECONDS), measure: Duration::from_secs(scale.seconds) };
    let run = move || {
        let own = runtime::Builder::new_current_thread().enable_all().build()?;
        own.block_on(async {
            let client = client(&url, &key)?;
            let settler = |_| Settler { client: client.clone(), leases: Arc::clone(&leases) };
            Ok(open((0..SETTLERS).map(settler).collect(), f64::from(scale.rate), span).await)
        })
    };
    tokio::task::spawn_blocking(run).await?
}

/// Enqueues as fast as they are answered, until it is ended.
struct Flood {
    began: Instant,
    workers: JoinSet<Report>,
    stop: tokio::sync::watch::Sender<bool>,
}

impl Flood {
    fn begin(url: &str, key: &str, scale: Scale) -> Result<Self> {
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let mut workers = JoinSet::new();
        let connections = (0..4).map(|_| client(url, key)).collect::<Result<Vec<_>>>()?;
        for worker in 0..scale.in_flight {
            let (client, stopped) = (connections[worker % connections.len()].clone(), stopped.clone());
            workers.spawn(async move {
                let (mut report, mut queues) = (Report::new(), client.queues());
                while !*stopped.borrow() {
                    let began = Instant::now();
                    let request = BatchEnqueueRequest { queue: FLOODED.to_owned(), messages: messages(scale.items) };
                    let answer = queues.batch_enqueue(request).await;
                    let answer = answer.map(|_| scale.items as u64).map_err(|status| reason_of(&status));
                    report.note(began.elapsed(), &answer);
                }
                report
            });
        }
        Ok(Self { began: Instant::now(), workers, stop })
    }

    async fn end(mut self) -> Report {
        self.stop.send_replace(true);
        let mut all = Report::new();
        while let Some(report) = self.workers.join_next().await {
            all.merge(&report.expect("a worker does not panic"));
        }
        all.measured = self.began.elapsed();
        all
    }
}
