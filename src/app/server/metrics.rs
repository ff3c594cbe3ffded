//! The numbers of the engine on the metrics page, read when the page is; `metrics/` has those of queues and of stores.
//!
//! Every metric begins with `tallystone_`, is in base units, and is documented in `docs/operating.md`.

mod process;
mod queues;
mod stores;

use std::any::type_name;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::app::server::metrics::queues::{encode_backlogs, encode_counts, encode_undeclared, shown_queues};
use crate::domain::limits::METRIC_DATASETS_MAX;
use crate::engine::queues::Queues;
use crate::engine::stats::{CountsBy, GaugeValue, NamespaceCounts, Stats};
use crate::engine::{DatasetGauges, Engine};

pub use process::ProcessMetrics;

/// Something whose numbers stand on the page.
pub trait MetricSource: Send + Sync + 'static {
    /// Lists its series with what they are at this moment.
    fn encode_metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error>;
}

/// Reads the numbers of one of them whenever the page is read.
pub struct MetricCollector<T>(T);

impl<T: MetricSource> MetricCollector<T> {
    /// Reads these, for the page.
    pub fn of(measured: T) -> Box<dyn Collector> {
        Box::new(Self(measured))
    }
}

impl<T> fmt::Debug for MetricCollector<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Measures").field(&type_name::<T>()).finish()
    }
}

impl<T: MetricSource> Collector for MetricCollector<T> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        self.0.encode_metrics(&mut encoder)
    }
}

type StatsMetric = (&'static str, &'static str, fn(&Stats) -> u64);

/// Growing counts: name without `_total`, help, value.
const COUNTS: &[StatsMetric] = &[
    ("tallystone_writes_applied", "Adds, clears and totals applied", |s| s.writes_applied.get()),
    ("tallystone_writes_repeated", "Writes with a token that was already applied", |s| s.writes_repeated.get()),
    ("tallystone_verdicts", "Token verdicts returned", |s| s.verdicts.get()),
    ("tallystone_verdicts_void", "Token verdicts that wrote or found a void", |s| s.verdicts_void.get()),
    ("tallystone_count_cache_hits", "Reads served from the count cache", |s| s.cache_hits.get()),
    ("tallystone_count_cache_misses", "Reads that went to the rollup store", |s| s.cache_misses.get()),
    ("tallystone_inline_rolls", "Rolls run by a read", |s| s.inline_rolls.get()),
    ("tallystone_rolls_written", "Rolls that wrote a checkpoint", |s| s.rolls_written.get()),
    ("tallystone_rolls_empty", "Rolls that found nothing new", |s| s.rolls_empty.get()),
    ("tallystone_rolls_failed", "Rolls that failed and are retried", |s| s.rolls_failed.get()),
    ("tallystone_events_folded", "Events folded by rolls", |s| s.events_folded.get()),
    ("tallystone_rollup_batches", "Rollup batches", |s| s.batches.get()),
    ("tallystone_rollup_signals_lost", "Signals dropped because a Set was full", |s| s.signals_lost.get()),
    ("tallystone_rollup_signals_taken", "Signals accepted from other servers", |s| s.signals_taken.get()),
    ("tallystone_touches_replayed", "Touches read again after a restart or a lost signal", |s| {
        s.touches_replayed.get()
    }),
    ("tallystone_limits_published", "Limits published", |s| s.limits_published.get()),
    ("tallystone_late_rows", "Rows that arrived after the rollup of their bucket and were added to the count", |s| {
        s.late_rows.get()
    }),
    ("tallystone_repairs", "Repairs of counters, one for each bucket that differed", |s| s.repairs.get()),
    ("tallystone_buckets_rechecked", "Buckets compared because of a recheck mark", |s| s.buckets_rechecked.get()),
    ("tallystone_buckets_sealed", "Buckets read from all replicas and compared after the seal delay", |s| {
        s.buckets_sealed.get()
    }),
    ("tallystone_seals_failed", "Failed comparisons of the buckets of a touch shard; retried", |s| {
        s.seals_failed.get()
    }),
    ("tallystone_leases_lapsed", "Expirations of this server's own fleet lease", |s| s.leases_lapsed.get()),
    (
        "tallystone_members_lapsed",
        "Expired fleet leases of other members, seen by this \
        server",
        |s| s.members_lapsed.get(),
    ),
    ("tallystone_slices_dropped", "Slices dropped", |s| s.slices_dropped.get()),
    ("tallystone_slices_kept_back", "Failures to drop a slice past its retention", |s| s.slices_kept_back.get()),
    ("tallystone_messages_enqueued", "Messages enqueued", |s| s.messages_enqueued.get()),
    ("tallystone_messages_repeated", "Enqueues with an id that was already enqueued", |s| s.messages_repeated.get()),
    ("tallystone_leases_given", "Leases issued", |s| s.leases_given.get()),
    ("tallystone_messages_completed", "Messages completed", |s| s.messages_completed.get()),
    ("tallystone_leases_settled", "Leases settled, repeats included", |s| s.leases_settled.get()),
    ("tallystone_dequeues_empty", "Dequeue searches that found nothing", |s| s.dequeues_empty.get()),
    ("tallystone_leases_out_of_rank", "Leases issued while another shard had a better message", |s| {
        s.leases_out_of_rank.get()
    }),
    ("tallystone_messages_promoted", "Messages that became ready after their invisibility", |s| {
        s.messages_promoted.get()
    }),
    ("tallystone_promotions_late", "Messages that became ready more than a second late", |s| s.promotions_late.get()),
    ("tallystone_queue_commands", "Commands sent to shards of queues", |s| s.queue_commands.get()),
    ("tallystone_queue_store_calls", "Store calls that carried these commands", |s| s.queue_store_calls.get()),
    ("tallystone_queue_panics", "Store calls of queues that panicked: defects", |s| s.queue_panics.get()),
    (
        "tallystone_acknowledged_below_limit",
        "Events acknowledged at or below a limit published while they were held; must stay 0",
        |s| s.acknowledged_below_limit.get(),
    ),
];

impl MetricSource for Arc<Engine> {
    fn encode_metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let stats = self.stats();
        for (name, help, value) in COUNTS {
            encode_count(encoder, name, help, value(stats))?;
        }
        encode_undeclared(encoder, &stats.undeclared_filters)?;
        encode_counts(encoder, &stats.by_queue)?;
        encode_named(encoder, ("namespace", OTHER_NAMESPACES), NAMESPACE_COUNTS, &stats.by_namespace)?;
        encode_count(encoder, "tallystone_loop_panics", "Background loops that panicked", self.loop_panics())?;
        let seconds = |micros: u64| micros as f64 / 1e6;
        let busy = ConstCounter::new(seconds(stats.batch_micros.get()));
        encode(encoder, "tallystone_rollup_batch_seconds", "Time spent in rollup batches", &busy)?;
        let paused = ConstCounter::new(seconds(stats.pause_micros.get()));
        encode(encoder, "tallystone_rollup_pause_seconds", "Pauses after rollup batches", &paused)?;
        let lag = ConstCounter::new(seconds(stats.promotion_lag_micros.get()));
        encode(encoder, "tallystone_promotion_lag_seconds", "From the time of messages until they were ready", &lag)?;
        let signals = self.signals();
        let help = "Signals accepted by other servers";
        encode_count(encoder, "tallystone_rollup_signals_sent", help, signals.sent)?;
        let help = "Signals for other servers that were dropped: no room, no answer, or no receiver";
        encode_count(encoder, "tallystone_rollup_signals_dropped", help, signals.dropped)?;
        encode_gauges(self, encoder)
    }
}

/// A growing count of each name: name of the metric without `_total`, help, value.
type NamedMetric<T> = (&'static str, &'static str, fn(&T) -> u64);

/// Counts by name, under a label; and all that are not counted one by one, under the other name.
fn encode_named<T: Default, const MOST: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    (label, other): (&'static str, &'static str),
    rows: &[NamedMetric<T>],
    by_name: &CountsBy<T, MOST>,
) -> Result<(), fmt::Error> {
    let (names, others) = by_name.get();
    for (metric, help, value) in rows {
        let mut family = encoder.encode_descriptor(metric, help, None, MetricType::Counter)?;
        let shown = names.iter().map(|(name, counts)| (&**name, value(counts)));
        for (name, count) in shown.chain([(other, value(others))]) {
            ConstCounter::new(count).encode(family.encode_family(&[(label, name)])?)?;
        }
    }
    Ok(())
}

const NAMESPACE_COUNTS: &[NamedMetric<NamespaceCounts>] = &[
    ("tallystone_namespace_writes_applied", "Adds, clears and totals applied, by namespace", |c| {
        c.writes_applied.get()
    }),
    ("tallystone_namespace_writes_failed", "Writes refused, failed, or with unknown outcome", |c| {
        c.writes_failed.get()
    }),
    ("tallystone_namespace_reads", "Calls that read one or more counts", |c| c.reads.get()),
];

/// The label of all namespaces that are not shown one by one; no namespace has a name like it.
const OTHER_NAMESPACES: &str = "_other";

/// What the engine holds at this moment.
fn encode_gauges(engine: &Engine, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    let (waiting, bytes) = engine.rollup_sets();
    encode(encoder, "tallystone_rollup_set_counters", "Counters in the rollup Sets", &gauge(waiting))?;
    encode(encoder, "tallystone_rollup_set_bytes", "Bytes of the rollup Sets", &gauge(bytes))?;
    encode(encoder, "tallystone_watches", "Active watches", &gauge(engine.watches()))?;
    // A store that is shared with nobody has one server; of a fleet that is not known, 0 tells so.
    let alone = (Some(1), Duration::ZERO);
    let (members, left) = engine.fleet().map_or(alone, |fleet| (fleet.members, fleet.lease_left));
    let (members, left) = (members.unwrap_or(0), left.as_secs_f64());
    let help = "Servers that share the store, this one included; 0 while unknown";
    encode(encoder, "tallystone_fleet_members", help, &gauge(members))?;
    let help = "Remaining fleet lease of this server without a new heartbeat";
    encode(encoder, "tallystone_fleet_lease_seconds", help, &ConstGauge::new(left))?;
    let queues = engine.queues();
    // A server without queues shows zeros, so that every panel finds its metric.
    let of_queues = |number: fn(&Queues) -> usize| gauge(queues.as_ref().map_or(0, number));
    encode(encoder, "tallystone_queues", "Queues and templates", &of_queues(Queues::count))?;
    encode(encoder, "tallystone_dequeues_waiting", "Waiting dequeues", &of_queues(Queues::waiting))?;
    encode(encoder, "tallystone_queue_sessions", "Sessions of workers", &of_queues(Queues::sessions))?;
    let seconds = |level: &GaugeValue| ConstGauge::new(level.get() as f64 / 1e6);
    let stats = engine.stats();
    let help = "Queue time minus this machine's clock; negative if queue time is behind";
    encode(encoder, "tallystone_queue_clock_ahead_seconds", help, &seconds(&stats.queue_clock_ahead))?;
    let help = "Time used for token ages minus this machine's clock";
    encode(encoder, "tallystone_queue_tokens_ahead_seconds", help, &seconds(&stats.queue_tokens_ahead))?;
    let overview = queues.as_ref().map(Queues::overview).unwrap_or_default();
    encode_backlogs(encoder, &shown_queues(&overview))?;
    let datasets = bounded_datasets(engine.datasets());
    let mut by_dataset = |name, help, value: fn(&DatasetGauges) -> Option<f64>| {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for dataset in &datasets {
            let labels = [("dataset", dataset.dataset.clone())];
            if let Some(value) = value(dataset) {
                ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok::<(), fmt::Error>(())
    };
    let help = "Age of the dataset as seen by readers: the clock minus the limit";
    by_dataset("tallystone_dataset_staleness_seconds", help, |d| Some(d.staleness.as_secs_f64()))?;
    let help = "Lag of this server's closed time, as recorded in the store, behind the clock";
    by_dataset("tallystone_closed_lag_seconds", help, |d| Some(d.closed_lag.as_secs_f64()))?;
    by_dataset(
        "tallystone_accept_limit_seconds",
        "Maximum age of an event of the dataset; included in both lags",
        |d| Some(d.accept_limit.as_secs_f64()),
    )?;
    let help = "Lag of the slowest watermark behind the limit; absent while unknown to this server";
    by_dataset("tallystone_watermark_lag_seconds", help, |d| d.watermark_lag.map(|lag| lag.as_secs_f64()))?;
    by_dataset("tallystone_seal_lag_seconds", "Lag of sealing behind its due time", |d| {
        Some(d.seal_lag.as_secs_f64())
    })?;
    by_dataset("tallystone_holds", "Events admitted with a pending outcome", |d| Some(d.holds as f64))?;
    by_dataset("tallystone_slices", "Known time slices", |d| Some(d.slices as f64))
}

/// The label of all datasets that are not shown one by one; no dataset has a name like it.
const OTHER_DATASETS: &str = "_other";

/// Bounds the labels: the oldest datasets one by one, the others as one, with their greatest lags and all they hold.
/// Their accept limit is such that neither lag less it hides the dataset that is overdue most.
fn bounded_datasets(mut datasets: Vec<DatasetGauges>) -> Vec<DatasetGauges> {
    datasets.sort_by_key(|dataset| dataset.id);
    let others = datasets.split_off(datasets.len().min(METRIC_DATASETS_MAX));
    let greatest = |of: fn(&DatasetGauges) -> Duration| others.iter().map(of).max().unwrap_or_default();
    let stale = greatest(|one| one.staleness) - greatest(DatasetGauges::overdue);
    let closed = greatest(|one| one.closed_lag) - greatest(DatasetGauges::closed_overdue);
    let accept_limit = stale.min(closed);
    datasets.extend(others.into_iter().reduce(|all, one| DatasetGauges {
        id: all.id,
        dataset: all.dataset,
        staleness: all.staleness.max(one.staleness),
        closed_lag: all.closed_lag.max(one.closed_lag),
        accept_limit: all.accept_limit,
        watermark_lag: all.watermark_lag.max(one.watermark_lag),
        seal_lag: all.seal_lag.max(one.seal_lag),
        holds: all.holds + one.holds,
        slices: all.slices + one.slices,
    }));
    if let Some(others) = datasets.get_mut(METRIC_DATASETS_MAX) {
        others.dataset = OTHER_DATASETS.to_owned();
        others.accept_limit = accept_limit;
    }
    datasets
}

fn gauge(value: usize) -> ConstGauge<f64> {
    ConstGauge::new(value as f64)
}

fn encode_count(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> Result<(), fmt::Error> {
    encode(encoder, name, help, &ConstCounter::new(value))
}

fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: &impl EncodeMetric,
) -> Result<(), fmt::Error> {
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::domain::counter::DatasetId;

    #[test]
    fn the_labels_of_datasets_are_bounded_and_nothing_is_left_out() {
        let dataset = |id: u32| DatasetGauges {
            id: DatasetId(id),
            dataset: format!("d{id}"),
            staleness: Duration::from_secs(u64::from(id) + 1),
            closed_lag: Duration::from_secs(u64::from(id)),
            accept_limit: Duration::from_secs(if id.is_multiple_of(2) { 90 } else { 5 }),
            holds: 1,
            watermark_lag: None,
            seal_lag: Duration::ZERO,
            slices: 2,
        };
        let most = u32::try_from(METRIC_DATASETS_MAX).expect("a small number");
        let few = bounded_datasets((1..=most).rev().map(dataset).collect());
        assert_eq!((few.len(), few[0].dataset.as_str()), (METRIC_DATASETS_MAX, "d1"));
        assert!(few.iter().all(|dataset| dataset.dataset != OTHER_DATASETS));
        let many = bounded_datasets((1..=most + 30).rev().map(dataset).collect());
        let others = many.last().expect("there are many");
        assert_eq!((many.len(), others.dataset.as_str()), (METRIC_DATASETS_MAX + 1, OTHER_DATASETS));
        assert_eq!((others.holds, others.slices, others.closed_lag.as_secs()), (30, 60, u64::from(most) + 30));
        assert_eq!(others.staleness.as_secs(), u64::from(most) + 31);
        // Of d130 with a limit of 90 s and d129 with one of 5 s, the second is overdue more: by 125 s and 124 s.
        assert_eq!((most, others.overdue().as_secs(), others.closed_overdue().as_secs()), (100, 125, 124));
        assert!(crate::domain::counter::NamespaceName::new(OTHER_DATASETS).is_err(), "no dataset is called that");
    }
}
