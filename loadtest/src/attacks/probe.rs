//! The well-behaved caller: AddCount, Enqueue, Dequeue and Complete each 100 ms, `/healthz` each 500 ms.
//!
//! Calls begin on time whether the last one is answered or not, so that a stall is seen by each that falls into it. The
//! caller has a thread and connections of its own: what the attack costs the tool that attacks is not the server's.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tallystone_client::Connection;
use tallystone_client::proto::counter::v1::AddCountRequest;
use tallystone_client::proto::queue::v1 as pb;
use tallystone_client::proto::queue::v1::queue_service_client::QueueServiceClient;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime;
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::{Site, queues};
use crate::client::{Counters, new_token, reason_of};
use crate::keyed;
use crate::report::Report;

const CALLED_EVERY: Duration = Duration::from_millis(100);
const HEALTH_ASKED_EVERY: Duration = Duration::from_millis(500);
/// A call that takes longer has failed.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);
const QUEUE: &str = "attack-probe";

/// What the caller saw.
pub struct Seen {
    /// Its calls.
    pub calls: Report,
    /// `/healthz`.
    pub health: Report,
}

/// The caller at work.
pub struct Probe {
    stop: watch::Sender<bool>,
    seen: JoinHandle<Result<Seen>>,
}

impl Probe {
    /// Makes its queue and begins; the answer comes once it is connected.
    pub async fn begin(site: &Site) -> Result<Self> {
        queues::make(site, QUEUE, 1).await?;
        let (address, url, key) = (site.address, site.url(), site.callers_key());
        let (stop, stopped) = watch::channel(false);
        let (connected, is_connected) = oneshot::channel();
        let seen = tokio::task::spawn_blocking(move || {
            let own = runtime::Builder::new_current_thread().enable_all().build()?;
            own.block_on(async {
                let channel = keyed::connections(&url, key.as_deref(), 1).await?.channel(0);
                let _ = connected.send(()); // an error says that the run is over already
                let calls = each(CALLED_EVERY, stopped.clone(), move || once(channel.clone()));
                let health = each(HEALTH_ASKED_EVERY, stopped, move || health(address));
                let (calls, health) = tokio::join!(calls, health);
                Ok(Seen { calls, health })
            })
        });
        match is_connected.await {
            Ok(()) => Ok(Self { stop, seen }),
            Err(_gone) => Err(seen.await?.err().context("the well-behaved caller ended before it began")?),
        }
    }

    /// Ends it, and answers what it saw.
    pub async fn end(self) -> Result<Seen> {
        self.stop.send_replace(true);
        self.seen.await?
    }
}

/// Each call of one turn: how long it took, and why it failed.
pub type Turn = Vec<(Duration, Result<u64, String>)>;

/// Takes a turn each `period` until it is stopped, then waits for those under way.
async fn each<F>(period: Duration, mut stopped: watch::Receiver<bool>, turn: impl Fn() -> F) -> Report
where
    F: Future<Output = Turn> + Send + 'static,
{
    let began = Instant::now();
    let mut report = Report::new();
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut turns = JoinSet::new();
    let note = |report: &mut Report, seen: Turn| {
        for (latency, answer) in &seen {
            report.note(*latency, answer);
        }
    };
    loop {
        tokio::select! {
            biased;
            _ = stopped.changed() => break,
            Some(Ok(seen)) = turns.join_next(), if !turns.is_empty() => note(&mut report, seen),
            _ = ticks.tick() => drop(turns.spawn(turn())),
        }
    }
    report.measured = began.elapsed();
    while let Some(Ok(seen)) = turns.join_next().await {
        note(&mut report, seen);
    }
    report
}

async fn timed<T>(turn: &mut Turn, call: impl Future<Output = Result<T, tonic::Status>>) -> Option<T> {
    let began = Instant::now();
    let answer = timeout(ANSWERED_WITHIN, call).await;
    let answer = match answer {
        Ok(answer) => answer.map_err(|status| reason_of(&status)),
        Err(_elapsed) => Err("unanswered".to_owned()),
    };
    let (note, answer) = match answer {
        Ok(answer) => (Ok(1), Some(answer)),
        Err(reason) => (Err(reason), None),
    };
    turn.push((began.elapsed(), note));
    answer
}

/// One add, and one message from its enqueue to its end.
async fn once(channel: Connection) -> Turn {
    let mut turn = Vec::new();
    let mut counters = Counters::new(channel.clone());
    let mut queues = QueueServiceClient::new(channel);
    let add = AddCountRequest {
        namespace: "default".to_owned(),
        counter_name: "attack-probe".to_owned(),
        delta: Some(1),
        idempotency_token: Some(new_token()),
        ..AddCountRequest::default()
    };
    timed(&mut turn, counters.add_count(add)).await;
    let message = pb::Message { payload: b"probe".to_vec(), ..pb::Message::default() };
    let enqueue = pb::EnqueueRequest { queue: QUEUE.to_owned(), message: Some(message) };
    timed(&mut turn, queues.enqueue(enqueue)).await;
    let dequeue = pb::DequeueRequest { queue: QUEUE.to_owned(), max_messages: 1, ..pb::DequeueRequest::default() };
    let leased = timed(&mut turn, queues.dequeue(dequeue)).await;
    if let Some(lease) = leased.and_then(|answer| answer.into_inner().leases.into_iter().next()) {
        let complete = pb::CompleteRequest { queue: QUEUE.to_owned(), lease_token: lease.lease_token };
        timed(&mut turn, queues.complete(complete)).await;
    }
    turn
}

/// `/healthz` over a connection of its own.
pub async fn health(address: SocketAddr) -> Turn {
    let began = Instant::now();
    let asked = timeout(ANSWERED_WITHIN, async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET /healthz HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        std::io::Result::Ok(answer)
    });
    let answer = match asked.await {
        Ok(Ok(answer)) if answer.starts_with(b"HTTP/1.1 200") => Ok(1),
        Ok(Ok(_)) => Err("not 200".to_owned()),
        Ok(Err(error)) => Err(error.kind().to_string()),
        Err(_elapsed) => Err("unanswered".to_owned()),
    };
    vec![(began.elapsed(), answer)]
}
