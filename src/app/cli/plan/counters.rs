//! The part of a plan that is about counters: settings, partitions, disk and memory.

use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::arguments;
use crate::output::Output;
use crate::plan::cells::{PlanRow, estimated, lasting, row, setting};
use tallystone_app::units;
use tallystone_domain::capacity::{Load, Plan};
use tallystone_domain::namespace::Cardinality;

/// A load of counters; none without `--adds-per-second`.
#[derive(Debug, Args)]
pub struct CounterLoadArgs {
    /// Adds per second of all counters together.
    #[arg(long, value_name = "N", requires = "counters")]
    adds_per_second: Option<u64>,
    /// The number of counters.
    #[arg(
        long,
        value_name = "N",
        requires = "adds_per_second",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    counters: Option<u64>,
    /// The counter_cardinality of the namespace [default: derived from --counters].
    #[arg(long, value_enum, ignore_case = true, value_name = "CARDINALITY", requires = "adds_per_second")]
    cardinality: Option<CardinalityArg>,
    /// The retention of events.
    #[arg(
        long,
        default_value = "7d",
        value_name = "TIME",
        value_parser = arguments::duration,
        requires = "adds_per_second"
    )]
    retention: Duration,
    /// Adds per second to the busiest counter [default: a tenth of all adds, or an even share if that is more].
    #[arg(long, value_name = "N", requires = "adds_per_second")]
    hottest: Option<u64>,
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

impl CounterLoadArgs {
    /// The rows of the plan in reading order; `None` if no counters are asked for.
    pub fn rows(&self, output: Output) -> Option<Vec<PlanRow>> {
        let (adds_per_second, counters) = self.adds_per_second.zip(self.counters)?;
        let load = Load {
            adds_per_second,
            counters,
            cardinality: self.cardinality.map(|said| match said {
                CardinalityArg::Low => Cardinality::Low,
                CardinalityArg::Medium => Cardinality::Medium,
                CardinalityArg::High => Cardinality::High,
            }),
            retention: self.retention,
            hottest_adds_per_second: self.hottest,
        };
        Some(rows_of(&load.plan(), output))
    }
}

fn rows_of(plan: &Plan, output: Output) -> Vec<PlanRow> {
    let set = |bytes: u64| setting(bytes, output);
    let (about, span) = (|bytes| estimated(bytes, output), |time| lasting(time, output));
    let (dataset, partition, rollup) = (&plan.dataset, plan.partition, plan.rollup);
    let cardinality = format!("{:?}", plan.cardinality).to_uppercase();
    let by_default = format!("the busiest counter's; {} by default", units::size(plan.partition_bytes_by_default));
    let mut rows = vec![
        row("counter_cardinality", cardinality, "of the namespace"),
        row("time_partition.seconds_per_bucket", partition.seconds_per_bucket.to_string(), "of the namespace"),
        row("time_partition.buckets_per_id", partition.buckets_per_id.to_string(), "of the namespace"),
        row("rollup.num_queues", rollup.num_queues.to_string(), "of the namespace"),
        row("rollup.coalesce_ms", rollup.coalesce_ms.to_string(), "of the namespace"),
        row("rollup.capacity_bytes", set(rollup.capacity_bytes), "of the namespace"),
        row("rollup.rollup_batch_count", rollup.rollup_batch_count.to_string(), "of the namespace"),
        row("dataset.slice_width", span(dataset.slice_width()), "of the dataset"),
        row("dataset.accept_limit", span(dataset.accept_limit), "of the dataset"),
        row("dataset.close_after", span(dataset.close_after), "of the dataset"),
        row("dataset.delete_after", span(dataset.delete_after), "of the dataset"),
        row("storage.count_cache_bytes", set(plan.count_cache_bytes), "of the server: every counter in memory"),
        row("storage.tail_bytes", set(plan.tail_bytes), "of the server: every event until it is rolled up"),
        row("hottest counter", format!("{} adds/s", plan.hottest_adds_per_second), "for the partitions"),
        row("largest partition", about(plan.partition_bytes), &by_default),
        row("events kept", plan.events.to_string(), "retention and the slice that is written"),
        row("disk, embedded", about(plan.embedded_bytes), "before compression"),
        row("disk, Cassandra", about(plan.cassandra_bytes), "three copies, before compression"),
        row("counts follow within", span(plan.converges_within), "accept limit and 3 x coalesce_ms"),
    ];
    if let Some(hot) = plan.hot {
        let note =
            format!("of the busiest counter alone, instead: time buckets of {} s for all", hot.seconds_per_bucket);
        rows.push(row("hot_counters.buckets_per_id", hot.buckets_per_id.to_string(), &note));
    }
    rows.extend(plan.warnings.iter().map(|warning| row("warning", "look".to_owned(), warning)));
    rows
}
