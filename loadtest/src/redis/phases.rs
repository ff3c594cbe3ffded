//! Instructions that Redis executes for the lives of messages, by callgrind: by kind of queue and by phase, in calls of one message and
//! of 64. The ids of messages differ in their time only. The rows of the history are written and not read. What Redis executes at rest in
//! as much time is subtracted.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use tallystone_client::proto::queue::v1::{
    BatchEnqueueRequest, CompleteRequest, CreateQueueRequest, DequeueRequest, EnqueueRequest, HeartbeatRequest,
    History, Message, OpenSessionRequest, Queue, SettleMessagesRequest,
};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use tonic::Request;
use uuid::Uuid;

use super::gate::{Counted, Gate};
use super::server::Redis;
use crate::callgrind::{self, Callgrind};
use crate::client::Connections;
use crate::queues::messages::{Client, Kind, Queues, client, completion, message};
use crate::target::Target;

/// What becomes of the figures.
#[derive(Args, Clone)]
pub struct KeptFigures {
    /// Compare whole lives with the figures of a file, in the part instructions; fail if one is more than 3 % above
    #[arg(long, conflicts_with = "write")]
    pub gate: Option<PathBuf>,
    /// Write the figures of whole lives to a file, in the part instructions
    #[arg(long)]
    pub write: Option<PathBuf>,
}

/// Calls of one message in a measurement.
const SINGLE_CALLS: u64 = 100;
/// Calls of many messages in a measurement.
const BATCH_CALLS: u64 = 8;
const BATCH: u64 = 64;
/// Lives before the first measurement, which load the functions and fill what is cached.
const WARM_UP_CALLS: u64 = 4;
/// The figures that are written are the greatest of as many measurements.
const WRITTEN_OF: u32 = 3;
/// A life is judged by the least of as many.
const JUDGED_BY: u32 = 3;
/// What follows a call is over by then.
const SETTLES_WITHIN: Duration = Duration::from_secs(2);
/// How long Redis is watched at rest.
const RESTS: Duration = Duration::from_secs(5);
/// Redis under callgrind loads the functions within seconds.
const CALL_WITHIN: Duration = Duration::from_secs(60);
/// Version and variant of UUIDs of version 7, without their time and their number.
const VERSION_7: u128 = 0x7000_8000_0000_0000_0000;
/// Sets values apart from ids.
const OF_VALUES: u128 = 1 << 48;

/// A kind of queue, with its workers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Workload {
    Plain,
    NoHistory,
    Exclusive,
    OneShape,
    Ttl,
    Sessions,
}

impl Workload {
    const ALL: [Self; 6] = [Self::Plain, Self::NoHistory, Self::Exclusive, Self::OneShape, Self::Ttl, Self::Sessions];
    /// Those of the gate, which CI waits for.
    const GATED: [Self; 3] = [Self::Plain, Self::Exclusive, Self::OneShape];

    const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::NoHistory => "plain, no history",
            Self::Exclusive => "exclusive",
            Self::OneShape => "one filter shape",
            Self::Ttl => "with a TTL",
            Self::Sessions => "sessions of workers",
        }
    }

    fn queue(self, name: &str) -> Queue {
        match self {
            Self::Plain | Self::Ttl | Self::Sessions => Queues::simple(name),
            Self::NoHistory => Queue { history: History::None.into(), ..Queues::simple(name) },
            Self::Exclusive => Queues::exclusive(name, false),
            Self::OneShape => Queues::filtered(name),
        }
    }

    /// A message with an id of a moment, which has to be a present one.
    fn message(self, moment: Duration, number: u64) -> Message {
        let id =
            |part: u128| Uuid::from_u128(moment.as_millis() << 80 | VERSION_7 | part | u128::from(number)).to_string();
        let kind = if self == Self::OneShape { Kind::Filtered } else { Kind::Plain };
        let mut message = Message { message_id: id(0), ..message(kind, number) };
        if self == Self::Exclusive {
            message.metadata.insert("value".to_owned(), id(OF_VALUES));
        }
        if self == Self::Ttl {
            message.ttl = Some(prost_types::Duration { seconds: 3_600, nanos: 0 });
        }
        message
    }
}

/// A call that may take long: Redis is some fifty times slower than it is, and the machine may be busy.
fn patient<Q>(message: Q) -> Request<Q> {
    let mut request = Request::new(message);
    request.set_timeout(CALL_WITHIN);
    request
}

/// The workers of a queue, and the messages that it had.
struct Bench {
    client: Client,
    workload: Workload,
    queue: String,
    /// The time in all ids, since 1970.
    moment: Duration,
    /// The number of the next message.
    next: u64,
    session: Option<(String, u64)>,
}

impl Bench {
    async fn open(connections: &Connections, workload: Workload, queue: &str) -> Result<Self> {
        let mut client = client(connections, 0);
        let request = CreateQueueRequest { queue: Some(workload.queue(queue)), reason: String::new() };
        client.create_queue(patient(request)).await?;
        let session = match workload {
            Workload::Sessions => {
                let request = OpenSessionRequest { label: "worker".to_owned(), ..OpenSessionRequest::default() };
                Some((client.open_session(patient(request)).await?.into_inner().session_id, 0))
            }
            _ => None, // workers without a session
        };
        let moment = SystemTime::now().duration_since(UNIX_EPOCH)?;
        Ok(Self { client, workload, queue: queue.to_owned(), moment, next: 0, session })
    }

    async fn enqueue(&mut self, batch: u64) -> Result<()> {
        let numbers = self.next..self.next + batch;
        let messages: Vec<Message> = numbers.map(|number| self.workload.message(self.moment, number)).collect();
        self.next += batch;
        let queue = self.queue.clone();
        if batch == 1 {
            self.client.enqueue(patient(EnqueueRequest { queue, message: messages.into_iter().next() })).await?;
            return Ok(());
        }
        let results =
            self.client.batch_enqueue(patient(BatchEnqueueRequest { queue, messages })).await?.into_inner().results;
        if let Some(error) = results.into_iter().find_map(|result| result.error) {
            bail!("a message was refused: {error:?}");
        }
        Ok(())
    }

    /// The tokens of as many leases.
    async fn dequeue(&mut self, batch: u64) -> Result<Vec<String>> {
        let mut request = DequeueRequest {
            queue: self.queue.clone(),
            max_messages: i32::try_from(batch)?,
            ..DequeueRequest::default()
        };
        if let Some((id, calls)) = &mut self.session {
            *calls += 1;
            (request.session_id, request.sequence) = (id.clone(), *calls);
        }
        let leases = self.client.dequeue(patient(request)).await?.into_inner().leases;
        ensure!(leases.len() as u64 == batch, "{} leases of {batch}", leases.len());
        Ok(leases.into_iter().map(|lease| lease.lease_token).collect())
    }

    async fn heartbeat(&mut self) -> Result<()> {
        if let Some((session_id, _)) = &self.session {
            let request = HeartbeatRequest { session_id: session_id.clone(), ..HeartbeatRequest::default() };
            self.client.heartbeat(patient(request)).await?;
        }
        Ok(())
    }

    async fn complete(&mut self, tokens: Vec<String>) -> Result<()> {
        let queue = self.queue.clone();
        if let [lease_token] = &tokens[..] {
            self.client.complete(patient(CompleteRequest { queue, lease_token: lease_token.clone() })).await?;
            return Ok(());
        }
        let items = tokens.into_iter().map(completion).collect();
        let results =
            self.client.settle_messages(patient(SettleMessagesRequest { queue, items })).await?.into_inner().results;
        ensure!(results.iter().all(|result| result.error.is_none()), "a lease was not settled");
        Ok(())
    }

    async fn live(&mut self, calls: u64, batch: u64) -> Result<()> {
        for _ in 0..calls {
            self.enqueue(batch).await?;
        }
        for _ in 0..calls {
            let tokens = self.dequeue(batch).await?;
            self.heartbeat().await?;
            self.complete(tokens).await?;
        }
        Ok(())
    }
}

/// Counts what Redis executes.
struct Meter {
    callgrind: Callgrind,
    /// Instructions in a second without calls.
    at_rest: f64,
}

impl Meter {
    async fn of(callgrind: Callgrind) -> Result<Self> {
        let mut meter = Self { callgrind, at_rest: 0.0 };
        meter.watch_rest().await?;
        Ok(meter)
    }

    async fn watch_rest(&mut self) -> Result<()> {
        sleep(SETTLES_WITHIN).await;
        self.callgrind.take()?;
        let begun = Instant::now();
        sleep(RESTS).await;
        self.at_rest = self.callgrind.take()? as f64 / begun.elapsed().as_secs_f64();
        Ok(())
    }

    /// Thousands of instructions for each life of some work.
    async fn count(&mut self, lives: u64, work: impl Future<Output = Result<()>>) -> Result<f64> {
        self.callgrind.take()?;
        let begun = Instant::now();
        work.await?;
        sleep(SETTLES_WITHIN).await;
        let counted = self.callgrind.take()? as f64 - self.at_rest * begun.elapsed().as_secs_f64();
        Ok(counted / lives as f64 / 1_000.0)
    }
}

/// Measures, and prints the table or compares it.
pub async fn run(
    binary: &Path,
    folder: &impl Fn() -> Result<TempDir>,
    program: &Path,
    kept: &KeptFigures,
) -> Result<()> {
    callgrind::find()?;
    let of_redis = folder()?;
    let redis = Redis::start_by(Callgrind::command(program, of_redis.path()), folder()?, "everysec")?;
    let gate = kept.gate.as_deref().map(|path| Gate::read(path, &redis)).transpose()?;
    let patience = format!("clusters.redis.request_timeout_ms={}", CALL_WITHIN.as_millis());
    let data = folder()?;
    // Calls that take long are no sign of load here. Reports and the relay of the history read the more the longer a life takes,
    // which depends on the machine.
    let (unlimited, unread) = ("limits.call_time_ms=0", "bridge.enabled=false");
    let address = redis.address.to_string();
    let arguments = ["--redis", &address, "--set", &patience, "--set", unlimited, "--set", unread];
    let server = Target::server_with(binary, data.path(), &arguments)?;
    let connections = Connections::open(&server.url(), 1).await?;
    // The first call of each function is the dearest.
    Bench::open(&connections, Workload::Plain, "warm-up").await?.live(WARM_UP_CALLS, 2).await?;
    let mut meter = Meter::of(Callgrind::of(redis.pid(), of_redis.path())).await?;
    if let Some(path) = &kept.write {
        let mut counted = whole_lives(&connections, &mut meter, 1).await?;
        for turn in 2..=WRITTEN_OF {
            merge(&mut counted, whole_lives(&connections, &mut meter, turn).await?, f64::max);
        }
        return Gate::write(path, &redis, &counted);
    }
    if let Some(gate) = gate {
        let mut counted = whole_lives(&connections, &mut meter, 1).await?;
        for turn in 2..=JUDGED_BY {
            let Err(dearer) = gate.judge(&counted) else { return Ok(()) };
            println!("{dearer}; measured again, and the least counts:");
            meter.watch_rest().await?;
            merge(&mut counted, whole_lives(&connections, &mut meter, turn).await?, f64::min);
        }
        return gate.judge(&counted);
    }
    println!("| queue | messages of a call | enqueue | dequeue | heartbeat | complete | life |");
    println!("|---|---|---|---|---|---|---|");
    for workload in Workload::ALL {
        for (calls, batch) in [(SINGLE_CALLS, 1), (BATCH_CALLS, BATCH)] {
            let row = phases(&connections, &mut meter, workload, calls, batch).await;
            let [enqueue, dequeue, heartbeat, complete] = row.with_context(|| workload.name())?;
            let life = enqueue + dequeue + heartbeat + complete;
            println!(
                "| {} | {batch} | {enqueue:.0} | {dequeue:.0} | {heartbeat:.0} | {complete:.0} | {life:.0} |",
                workload.name()
            );
        }
    }
    Ok(())
}

/// Thousands of instructions of a message in each phase.
async fn phases(
    connections: &Connections,
    meter: &mut Meter,
    workload: Workload,
    calls: u64,
    batch: u64,
) -> Result<[f64; 4]> {
    let mut bench = Bench::open(connections, workload, &format!("phases-{}-{batch}", workload as u8)).await?;
    bench.live(WARM_UP_CALLS, batch).await?;
    let lives = calls * batch;
    let enqueue = async {
        for _ in 0..calls {
            bench.enqueue(batch).await?;
        }
        Ok(())
    };
    let enqueue = meter.count(lives, enqueue).await?;
    let mut leased = Vec::new();
    let dequeue = async {
        for _ in 0..calls {
            leased.push(bench.dequeue(batch).await?);
        }
        Ok(())
    };
    let dequeue = meter.count(lives, dequeue).await?;
    let heartbeat = match workload {
        Workload::Sessions => {
            let beats = async {
                for _ in 0..calls {
                    bench.heartbeat().await?;
                }
                Ok(())
            };
            meter.count(lives, beats).await?
        }
        _ => 0.0, // workers without a session send none
    };
    let complete = async {
        for tokens in leased {
            bench.complete(tokens).await?;
        }
        Ok(())
    };
    Ok([enqueue, dequeue, heartbeat, meter.count(lives, complete).await?])
}

/// Keeps one of two measurements of each life.
fn merge(counted: &mut [Counted], again: Vec<Counted>, choose: fn(f64, f64) -> f64) {
    for (row, other) in counted.iter_mut().zip(again) {
        row.instructions = choose(row.instructions, other.instructions);
    }
}

/// Thousands of instructions of whole lives, each kind in a queue of its own. `turn` makes the names of the queues.
async fn whole_lives(connections: &Connections, meter: &mut Meter, turn: u32) -> Result<Vec<Counted>> {
    let mut all = Vec::new();
    for workload in Workload::GATED {
        for (calls, batch) in [(SINGLE_CALLS, 1), (BATCH_CALLS, BATCH)] {
            let mut bench =
                Bench::open(connections, workload, &format!("gate-{turn}-{}-{batch}", workload as u8)).await?;
            bench.live(WARM_UP_CALLS, batch).await?;
            let instructions = meter.count(calls * batch, bench.live(calls, batch)).await?;
            all.push(Counted { life: format!("{}, {batch} in a call", workload.name()), instructions });
        }
    }
    Ok(all)
}
