//! Whether a server is as fast, as small and as much on disk after an hour as at its beginning.
//!
//! Whole cycles of single calls, at half the highest rate, on a queue that keeps what is over for a minute only: from then
//! on as much goes as comes, and nothing may grow.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use tallystone_client::proto::queue::v1::{EnqueueRequest, Queue, Retention};

use super::calls::finish_one;
use super::messages::{Client, Kind, client, create, fill, message};
use super::{IN_FLIGHT, begin};
use crate::client::{Connections, reason_of};
use crate::load::{Call, Span, closed, open};
use crate::report::Report;
use crate::target::{self, Target};

const QUEUE: &str = "hour";
const KEPT: prost_types::Duration = prost_types::Duration { seconds: 60, nanos: 0 };
/// Messages that are always pending.
const BACKLOG: u64 = 10_000;
/// The rate is found within this time.
const TRIAL: Span = Span { warm_up: Duration::from_secs(2), measure: Duration::from_secs(20) };

/// One look at the run.
pub struct Part {
    /// What its calls saw.
    pub report: Report,
    /// Resident memory at its end, in bytes.
    pub resident: u64,
    /// Bytes of the data directory at its end.
    pub disk: u64,
}

impl Part {
    /// Looks at a server at the end of a part, and prints what was seen.
    pub fn of(report: Report, server: &Target, data: &Path, name: &str) -> Result<Self> {
        let (resident, disk) = (target::usage(server.pid())?.resident, target::disk_bytes(data));
        eprintln!("{}; {} MiB resident, {} MiB on disk", report.line(name), resident >> 20, disk >> 20);
        Ok(Self { report, resident, disk })
    }
}

/// Runs so many minutes in twelve parts; answers all of them, each with the calls of its own.
pub async fn run(binary: &Path, data: &Path, minutes: u64) -> Result<Vec<Part>> {
    let (server, connections) = begin(binary, data).await?;
    let retention = Retention { completed: Some(KEPT), canceled: Some(KEPT), errored: Some(KEPT) };
    let (retention, dedupe_window) = (Some(retention), Some(KEPT));
    create(&connections, Queue { name: QUEUE.to_owned(), retention, dedupe_window, ..Queue::default() }).await?;
    fill(&connections, QUEUE, Kind::Plain, BACKLOG).await?;
    let most = closed(Cycle::workers(&connections, IN_FLIGHT), TRIAL).await;
    eprintln!("{}", most.line("the highest rate"));
    let part = Span { warm_up: Duration::ZERO, measure: Duration::from_secs(60 * minutes) / 12 };
    let mut parts = Vec::new();
    for number in 1..=12 {
        let report = open(Cycle::workers(&connections, 256), most.rate() / 2.0, part).await;
        parts.push(Part::of(report, &server, data, &format!("part {number} of 12"))?);
    }
    Ok(parts)
}

/// One message in, one leased and completed.
struct Cycle(Client);

impl Cycle {
    fn workers(connections: &Connections, count: usize) -> Vec<Self> {
        (0..count).map(|worker| Self(client(connections, worker))).collect()
    }
}

impl Call for Cycle {
    async fn call(&mut self) -> Result<u64, String> {
        let request = EnqueueRequest { queue: QUEUE.to_owned(), message: Some(message(Kind::Plain, 0)) };
        self.0.enqueue(request).await.map_err(|status| reason_of(&status))?;
        finish_one(&mut self.0, QUEUE).await.map(|()| 1)
    }
}
