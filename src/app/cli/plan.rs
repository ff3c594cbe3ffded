//! `plan`: estimates the resources for a load before deployment.

use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::json;

use crate::output::{IncrementalPrinter, Layout, Output, TABLE_WIDTH, TableRows};
use crate::{Failure, GlobalFormat, OutputArgs, arguments};
use tallystone_api::grpc::saturating_i64;
use tallystone_app::units;
use tallystone_domain::capacity::{Load, Plan};
use tallystone_domain::namespace::Cardinality;
use tallystone_engine::catalog::duration_text;

/// Calculate namespace settings, partition sizes, disk and memory for a load. Needs no server.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tallystone plan --adds-per-second 2000 --counters 50000 --retention 7d")]
pub struct PlanArgs {
    /// Adds per second of all counters together.
    #[arg(long, value_name = "N")]
    adds_per_second: u64,
    /// The number of counters.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    counters: u64,
    /// The counter_cardinality of the namespace [default: derived from --counters].
    #[arg(long, value_enum, ignore_case = true, value_name = "CARDINALITY")]
    cardinality: Option<CardinalityArg>,
    /// The retention of events.
    #[arg(long, default_value = "7d", value_name = "TIME", value_parser = arguments::duration)]
    retention: Duration,
    /// Adds per second to the busiest counter [default: a tenth of all adds, or an even share if that is more].
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
    pub fn run(&self, given: &GlobalFormat) -> Result<(), Failure> {
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
        let output = self.output.or(given);
        let lines = lines_of(&load.plan(), output);
        let items: Vec<_> =
            lines.iter().map(|[item, value, note]| json!({ "item": item, "value": value, "note": note })).collect();
        let rows = TableRows { columns: &["item", "value", "note"], cells: lines.into_iter().map(Vec::from).collect() };
        let mut parts = IncrementalPrinter::list(output).with_layout(Layout::Within(TABLE_WIDTH));
        parts.print(&items, &rows)?;
        parts.end(rows.columns)
    }
}

/// Formats an estimated size: with a unit for people, in bytes for programs.
fn sized(bytes: u64, output: Output) -> String {
    if output.is_for_people() { units::size(bytes) } else { bytes.to_string() }
}

/// Formats a duration: with units for people, as settings are written for programs.
fn lasting(time: Duration, output: Output) -> String {
    if output.is_for_people() { units::span(time) } else { duration_text(time) }
}

/// The rows of item, value and note, in reading order.
fn lines_of(plan: &Plan, output: Output) -> Vec<[String; 3]> {
    let set = |bytes: u64| output.size_cell(saturating_i64(bytes));
    let (about, span) = (|bytes| sized(bytes, output), |time| lasting(time, output));
    let line = |item: &str, value: String, note: &str| [item.to_owned(), value, note.to_owned()];
    let (dataset, partition, rollup) = (&plan.dataset, plan.partition, plan.rollup);
    let cardinality = format!("{:?}", plan.cardinality).to_uppercase();
    let by_default = format!("the busiest counter's; {} by default", units::size(plan.partition_bytes_by_default));
    let mut lines = vec![
        line("counter_cardinality", cardinality, "of the namespace"),
        line("time_partition.seconds_per_bucket", partition.seconds_per_bucket.to_string(), "of the namespace"),
        line("time_partition.buckets_per_id", partition.buckets_per_id.to_string(), "of the namespace"),
        line("rollup.num_queues", rollup.num_queues.to_string(), "of the namespace"),
        line("rollup.coalesce_ms", rollup.coalesce_ms.to_string(), "of the namespace"),
        line("rollup.capacity_bytes", set(rollup.capacity_bytes), "of the namespace"),
        line("rollup.rollup_batch_count", rollup.rollup_batch_count.to_string(), "of the namespace"),
        line("dataset.slice_width", span(dataset.slice_width()), "of the dataset"),
        line("dataset.accept_limit", span(dataset.accept_limit), "of the dataset"),
        line("dataset.close_after", span(dataset.close_after), "of the dataset"),
        line("dataset.delete_after", span(dataset.delete_after), "of the dataset"),
        line("storage.count_cache_bytes", set(plan.count_cache_bytes), "of the server: every counter in memory"),
        line("storage.tail_bytes", set(plan.tail_bytes), "of the server: every event until it is rolled up"),
        line("hottest counter", format!("{} adds/s", plan.hottest_adds_per_second), "for the partitions"),
        line("largest partition", about(plan.partition_bytes), &by_default),
        line("events kept", plan.events.to_string(), "retention and the slice that is written"),
        line("disk, embedded", about(plan.embedded_bytes), "before compression"),
        line("disk, Cassandra", about(plan.cassandra_bytes), "three copies, before compression"),
        line("counts follow within", span(plan.converges_within), "accept limit and 3 x coalesce_ms"),
    ];
    if let Some(hot) = plan.hot {
        let note =
            format!("of the busiest counter alone, instead: time buckets of {} s for all", hot.seconds_per_bucket);
        lines.push(line("hot_counters.buckets_per_id", hot.buckets_per_id.to_string(), &note));
    }
    lines.extend(plan.warnings.iter().map(|warning| line("warning", "look".to_owned(), warning)));
    lines
}
