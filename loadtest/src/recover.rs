//! How long a killed server needs until it is ready again, by the number of logged events.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use tallystone_client::proto::counter::v1::{BatchAddCountsRequest, BatchGetCountsRequest, Freshness};
use tokio::task::JoinSet;

use crate::client::{Connections, add_item, counter_name};
use crate::namespaces::{self, Settings};
use crate::target::{self, Target};

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Events to log before the kill.
    pub events: u64,
    /// Counters they belong to.
    pub counters: u64,
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// Events per second while logging.
    pub logged_rate: f64,
    /// The bytes of the data directory at the kill.
    pub disk_bytes: u64,
    /// From the start of the process until `/readyz` says yes.
    pub ready_after: Duration,
}

const NAMESPACE: &str = "recover";
const BATCH: u64 = 1_000;
const WORKERS: u64 = 8;

/// Logs events, kills, starts again, and checks that all events count.
pub async fn run(binary: &Path, data: &Path, plan: Plan) -> Result<Outcome> {
    let server = Target::server(binary, data)?;
    let connections = Connections::open(&server.url(), 4).await?;
    namespaces::create(&mut connections.catalog(), &Settings::dev(NAMESPACE)).await?;
    let begun = std::time::Instant::now();
    let mut tasks = JoinSet::new();
    for worker in 0..WORKERS {
        let mut client = connections.counters(usize::try_from(worker)?);
        tasks.spawn(async move {
            for batch in (worker..plan.events.div_ceil(BATCH)).step_by(usize::try_from(WORKERS)?) {
                let items =
                    (batch * BATCH..(batch + 1) * BATCH).map(|number| add_item(number % plan.counters, 1)).collect();
                let request = BatchAddCountsRequest { namespace: NAMESPACE.to_owned(), items };
                let answer = client.batch_add_counts(request).await?.into_inner();
                ensure!(answer.results.iter().all(|result| result.error.is_none()), "every add is applied");
            }
            Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    let logged = plan.events.div_ceil(BATCH) * BATCH;
    let logged_rate = logged as f64 / begun.elapsed().as_secs_f64();
    drop(server); // kill -9
    let disk_bytes = target::disk_bytes(data);

    let server = Target::server(binary, data)?;
    let counted = sum(&server, plan.counters).await?;
    ensure!(counted == i64::try_from(logged)?, "{counted} of {logged} events count after the restart");
    Ok(Outcome { logged_rate, disk_bytes, ready_after: server.ready_after })
}

async fn sum(server: &Target, counters: u64) -> Result<i64> {
    let mut client = Connections::open(&server.url(), 1).await?.counters(0);
    let mut sum = 0;
    let names: Vec<String> = (0..counters).map(counter_name).collect();
    for part in names.chunks(usize::try_from(BATCH)?) {
        let request = BatchGetCountsRequest {
            namespace: NAMESPACE.to_owned(),
            counter_names: part.to_vec(),
            freshness: Freshness::UpToDate.into(),
            ..BatchGetCountsRequest::default()
        };
        let answer = client.batch_get_counts(request).await?.into_inner();
        sum += answer.results.iter().filter_map(|result| Some(result.reading.as_ref()?.count)).sum::<i64>();
    }
    Ok(sum)
}
