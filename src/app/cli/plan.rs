//! `plan`: what a load needs, before anything runs.

use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::json;

use crate::app::cli::output::{Layout, Parts, Rows, TABLE_WIDTH};
use crate::app::cli::{Failure, OutputArgs, OutputGiven, arguments};
use crate::domain::capacity::{Load, Plan};
use crate::domain::namespace::Cardinality;
use crate::engine::namespaces::duration_text;

/// Say what a load needs: settings of its namespace, the size of partitions, disk and memory. Asks no server.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tallystone plan --adds-per-second 2000 --counters 50000 --retention 7d")]
pub struct PlanArgs {
    /// Adds in a second, all counters together.
    #[arg(long, value_name = "N")]
    adds_per_second: u64,
    /// How many counters there are.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    counters: u64,
    /// What the namespace says about how many there are [default: what fits --counters].
    #[arg(long, value_enum, ignore_case = true, value_name = "CARDINALITY")]
    cardinality: Option<CardinalityArg>,
    /// How long single events are kept.
    #[arg(long, default_value = "7d", value_name = "TIME", value_parser = arguments::duration)]
    retention: Duration,
    /// Adds in a second to the busiest counter [default: a tenth of all, or an even share where that is more].
    #[arg(long, value_name = "N")]
    hottest: Option<u64>,
    #[command(flatten)]
    output: OutputArgs,
}

/// About how many counters, as namespaces say it.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "UPPER")]
enum CardinalityArg {
    /// Below 1,000.
    Low,
    /// Up to 100,000.
    Medium,
    /// Above 100,000.
    High,
}

impl PlanArgs {
    pub fn run(&self, given: &OutputGiven) -> Result<(), Failure> {
        let load = Load {
            adds_per_second: self.adds_per_second,
            counters: self.counters,
            cardinality: self.cardinality.map(|said| match said {
                CardinalityArg::Low => Cardinality::Low,
                CardinalityArg::Medium => Cardinality::Medium,
                CardinalityArg::High => Cardinality::High,
            }),
            retention: self.retention,
            hottest_adds_per_second: self.hottest,
        };
        let lines = lines_of(&load.plan());
        let items: Vec<_> =
            lines.iter().map(|[item, value, note]| json!({ "item": item, "value": value, "note": note })).collect();
        let rows = Rows { columns: &["item", "value", "note"], cells: lines.into_iter().map(Vec::from).collect() };
        let mut parts = Parts::list(self.output.or(given)).laid_out(Layout::Within(TABLE_WIDTH));
        parts.print(&items, &rows)?;
        parts.end(rows.columns)
    }
}

/// Item, value, note; in the order in which one would write them down.
fn lines_of(plan: &Plan) -> Vec<[String; 3]> {
    let line = |item: &str, value: String, note: &str| [item.to_owned(), value, note.to_owned()];
    let (dataset, partition, rollup) = (&plan.dataset, plan.partition, plan.rollup);
    let cardinality = format!("{:?}", plan.cardinality).to_uppercase();
    let by_default = format!("the busiest counter's; {} by default", bytes(plan.partition_bytes_by_default));
    let mut lines = vec![
        line("counter_cardinality", cardinality, "of the namespace"),
        line("time_partition.seconds_per_bucket", partition.seconds_per_bucket.to_string(), "of the namespace"),
        line("time_partition.buckets_per_id", partition.buckets_per_id.to_string(), "of the namespace"),
        line("rollup.num_queues", rollup.num_queues.to_string(), "of the namespace"),
        line("rollup.coalesce_ms", rollup.coalesce_ms.to_string(), "of the namespace"),
        line("rollup.capacity_bytes", rollup.capacity_bytes.to_string(), "of the namespace"),
        line("rollup.rollup_batch_count", rollup.rollup_batch_count.to_string(), "of the namespace"),
        line("dataset.slice_width", duration_text(dataset.slice_width()), "of the dataset"),
        line("dataset.accept_limit", duration_text(dataset.accept_limit), "of the dataset"),
        line("dataset.close_after", duration_text(dataset.close_after), "of the dataset"),
        line("dataset.delete_after", duration_text(dataset.delete_after), "of the dataset"),
        line("storage.count_cache_bytes", plan.count_cache_bytes.to_string(), "of the server: every counter in memory"),
        line("storage.tail_bytes", plan.tail_bytes.to_string(), "of the server: every event until it is rolled up"),
        line("hottest counter", format!("{} adds/s", plan.hottest_adds_per_second), "for the partitions"),
        line("largest partition", bytes(plan.partition_bytes), &by_default),
        line("events kept", plan.events.to_string(), "retention and the slice that is written"),
        line("disk, embedded", bytes(plan.embedded_bytes), "before compression"),
        line("disk, Cassandra", bytes(plan.cassandra_bytes), "three copies, before compression"),
        line("counts follow within", duration_text(plan.converges_within), "accept limit and 3 x coalesce_ms"),
    ];
    if let Some(hot) = plan.hot {
        let note =
            format!("of the busiest counter alone, instead: time buckets of {} s for all", hot.seconds_per_bucket);
        lines.push(line("hot_counters.buckets_per_id", hot.buckets_per_id.to_string(), &note));
    }
    lines.extend(plan.warnings.iter().map(|warning| line("warning", "look".to_owned(), warning)));
    lines
}

/// Bytes with a unit that people read.
fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut scaled = count as f64;
    let mut unit = "bytes";
    for larger in UNITS {
        if scaled < 1_024.0 {
            break;
        }
        (scaled, unit) = (scaled / 1_024.0, larger);
    }
    if unit == "bytes" { format!("{count} bytes") } else { format!("{scaled:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_in_the_unit_that_fits() {
        for (count, shown) in
            [(0, "0 bytes"), (1_023, "1023 bytes"), (1_536, "1.5 KiB"), (18_000_000, "17.2 MiB"), (1 << 50, "1.0 PiB")]
        {
            assert_eq!(bytes(count), shown);
        }
    }
}
