//! Memory of many pending messages, and how long a killed server needs until it is ready with them again.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tallystone_client::proto::queue::v1::GetDepthRequest;

use super::messages::{Kind, Queues, client, create, fill};
use crate::client::Connections;
use crate::target::{self, Target};

const QUEUE: &str = "many";

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// Messages per second while filling.
    pub filled_rate: f64,
    /// The most resident memory of the server that was filled.
    pub resident_max: u64,
    /// The bytes of the data directory at the kill.
    pub disk_bytes: u64,
    /// From the start of the process until `/readyz` says yes.
    pub ready_after: Duration,
    /// The most resident memory of the server that was started again.
    pub resident_after: u64,
}

/// Fills a queue, kills, starts again, and checks that every message is there.
pub async fn run(binary: &Path, data: &Path, count: u64) -> Result<Outcome> {
    let server = Target::server(binary, data)?;
    let connections = Connections::open(&server.url(), 4).await?;
    create(&connections, Queues::simple(QUEUE)).await?;
    let begun = Instant::now();
    fill(&connections, QUEUE, Kind::Plain, count).await?;
    let filled_rate = count as f64 / begun.elapsed().as_secs_f64();
    let before = pending(&connections).await?;
    let resident_max = target::usage(server.pid())?.resident_max;
    drop(server); // kill -9
    let disk_bytes = target::disk_bytes(data);
    let server = Target::server(binary, data)?;
    let after = pending(&Connections::open(&server.url(), 1).await?).await?;
    ensure!(before == after && before >= i64::try_from(count)?, "{after} of {before} messages after the restart");
    let resident_after = target::usage(server.pid())?.resident_max;
    Ok(Outcome { filled_rate, resident_max, disk_bytes, ready_after: server.ready_after, resident_after })
}

async fn pending(connections: &Connections) -> Result<i64> {
    let request = GetDepthRequest { queue: QUEUE.to_owned(), ..GetDepthRequest::default() };
    Ok(client(connections, 0).get_depth(request).await?.into_inner().pending)
}
