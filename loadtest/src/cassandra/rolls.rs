//! What rollups cost the node, and how large the partitions of one hot counter become, in narrow time buckets and in event
//! buckets of its own.

use std::time::Duration;

use anyhow::{Result, ensure};
use tallystone_client::proto::admin::v1::{Cardinality, TimePartition};

use crate::adds::{Aim, Unary};
use crate::cassandra::node::{Raw, What};
use crate::cassandra::{Bench, HOT, HOT_AND_WIDE, Rounds, published};
use crate::converge;
use crate::figures::{Figure, figure};
use crate::load::{Span, closed, open};
use crate::namespaces::Settings;
use crate::target;

/// Of the rate of raw inserts.
const SHARE: f64 = 1.0 / 20.0;
const READS: &str = "tallystone_cassandra_requests_total{kind=\"read\"}";
const ROLLS: &str = "tallystone_rolls_total{outcome=\"written\"}";
const HOT_RATE: f64 = 2_000.0;
const HOT_WORKERS: usize = 256;
/// As `tallystone plan` says for such a counter.
const HOT_BUCKETS: u32 = 16;
const PARTITION_MIB_MAX: f64 = 10.0;
/// Bytes of an event in a partition, as the data model has it.
const ROW_BYTES: f64 = 60.0;

/// Many active counters at a twentieth of what the node takes.
pub async fn converge(bench: &Bench) -> Result<Figure> {
    let span = Span { warm_up: Duration::from_secs(bench.scale.warm_up_seconds), ..bench.span() };
    let mut raw = Rounds::default();
    raw.note("raw insert", &closed(Raw::workers(&bench.node, What::Insert, bench.scale.active, 64), span).await);
    let settings = Settings { cardinality: Cardinality::Medium, ..published(converge::settings().name) };
    let subject = bench.subject(&settings).await?;
    let rate = (raw.rate() * SHARE) as u64;
    let duration = Duration::from_secs(bench.scale.converge_seconds);
    let plan = converge::Plan { counters: bench.scale.active, rate, duration, items: 50, settings };
    let outcome = converge::run(&subject.server, plan).await?;
    eprintln!("{}", outcome.line());
    drop(subject);
    let grown = |name| target::metric(&outcome.metrics[1], name) - target::metric(&outcome.metrics[0], name);
    let (reads, rolls) = (grown(READS), grown(ROLLS));
    ensure!(rolls > 0.0, "nothing was rolled up during the load; make it longer");
    let text = format!(
        "{:.0} adds/s; at {:.0} s {} of a sample late, {} wrong when all were read; {:.1} store reads a roll, {:.0} rolls/s",
        outcome.rate,
        outcome.bound.as_secs_f64(),
        outcome.late,
        outcome.wrong,
        reads / rolls,
        rolls / duration.as_secs_f64()
    );
    let what = format!("{} active counters at 1/20 of raw inserts ({})", bench.scale.active, raw.text());
    let kept_up = outcome.rate >= 0.95 * rate as f64;
    let met = outcome.late == 0 && outcome.wrong == 0 && kept_up;
    Ok(figure(&what, text, "all right within accept_limit + 3 x coalesce_ms", met))
}

/// One counter at 2,000 adds a second, in time buckets of two minutes.
pub async fn hot(bench: &Bench) -> Result<Figure> {
    let partition = TimePartition { seconds_per_bucket: Some(120), buckets_per_id: Some(4) };
    hot_in(bench, Settings { partition, ..published(HOT) }, "seconds_per_bucket 120").await
}

/// The same in time buckets of ten minutes, with event buckets of its own.
pub async fn hot_and_wide(bench: &Bench) -> Result<Figure> {
    let partition = TimePartition { seconds_per_bucket: Some(600), buckets_per_id: Some(4) };
    let settings = Settings { partition, hot_buckets: Some(HOT_BUCKETS), ..published(HOT_AND_WIDE) };
    hot_in(bench, settings, &format!("seconds_per_bucket 600, {HOT_BUCKETS} event buckets as a hot counter")).await
}

async fn hot_in(bench: &Bench, settings: Settings, how: &str) -> Result<Figure> {
    let subject = bench.subject(&settings).await?;
    let aim = Aim { namespace: settings.name, first: 0, counters: 1 };
    let workers = Unary::workers(&subject.connections, aim, HOT_WORKERS);
    let span = Span { warm_up: Duration::ZERO, measure: Duration::from_secs(bench.scale.hot_seconds) };
    let mut adds = Rounds::default();
    adds.note("one hot counter", &open(workers, HOT_RATE, span).await);
    let keyspace = subject.keyspace.clone();
    drop(subject); // its server leaves the node alone from here on
    let (mut rows, mut told) = (0, None);
    for table in bench.node.event_tables(&keyspace).await? {
        rows = bench.node.partition_rows(&keyspace, &table).await?.into_iter().fold(rows, u64::max);
        if rows > 0 {
            told = told.max(bench.node.largest_partition_mib(&keyspace, &table).await?);
        }
    }
    let modelled = rows as f64 * ROW_BYTES / f64::from(1 << 20);
    let told_text = told.map_or_else(|| "the node does not tell".to_owned(), |mib| format!("the node says {mib} MiB"));
    let largest = told.map_or(modelled, |mib| modelled.max(mib as f64));
    let text =
        format!("{}; largest partition {rows} rows, {modelled:.1} MiB by 60 bytes a row; {told_text}", adds.text());
    let what = format!("one counter at 2,000 adds/s for {} s, {how}", bench.scale.hot_seconds);
    let met = largest <= PARTITION_MIB_MAX && adds.failed == 0 && adds.rate() >= 0.95 * HOT_RATE;
    Ok(figure(&what, text, "no partition above 10 MiB", met))
}
