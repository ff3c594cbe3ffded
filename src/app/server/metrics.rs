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
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::app::server::metrics::queues::{encode_backlogs, encode_counts, encode_undeclared, shown_queues};
use crate::domain::limits::METRIC_DATASETS_MAX;
use crate::engine::queues::Queues;
use crate::engine::stats::{CountsBy, NamespaceCounts, Stats};
use crate::engine::{DatasetGauges, Engine};
use crate::ports::{Metric, MetricValue, metrics};

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

const COUNTS: &[Metric<Stats>] = metrics! { counts:
    Count "tallystone_writes_applied" = counts.writes_applied.get(), "Adds, clears and totals that were applied";
    Count "tallystone_writes_repeated" = counts.writes_repeated.get(), "Writes whose token had been applied before";
    Count "tallystone_verdicts" = counts.verdicts.get(), "Verdicts that were given";
    Count "tallystone_verdicts_void" = counts.verdicts_void.get(), "Verdicts that wrote or found a void";
    Count "tallystone_count_cache_hits" = counts.cache_hits.get(), "Reads served from the count cache";
    Count "tallystone_count_cache_misses" = counts.cache_misses.get(), "Reads that went to the rollup store";
    Count "tallystone_inline_rolls" = counts.inline_rolls.get(), "Rolls that a read ran itself";
    Count "tallystone_rolls_written" = counts.rolls_written.get(), "Rolls that wrote a checkpoint";
    Count "tallystone_rolls_empty" = counts.rolls_empty.get(), "Rolls that found nothing new";
    Count "tallystone_rolls_failed" = counts.rolls_failed.get(), "Rolls that failed and are tried again";
    Count "tallystone_events_folded" = counts.events_folded.get(), "Events folded by rolls";
    Count "tallystone_rollup_batches" = counts.batches.get(), "Rollup batches";
    Count "tallystone_rollup_signals_lost" = counts.signals_lost.get(), "Signals for which a Set had no room";
    Count "tallystone_rollup_signals_taken" = counts.signals_taken.get(), "Signals of other servers that were taken in";
    Count "tallystone_touches_replayed" = counts.touches_replayed.get(),
        "Touches read again after a restart or a lost signal";
    Count "tallystone_limits_published" = counts.limits_published.get(), "Limits published";
    Count "tallystone_late_rows" = counts.late_rows.get(),
        "Rows that came after their bucket was rolled up and were taken into the count";
    Count "tallystone_repairs" = counts.repairs.get(), "Repairs of counters, one for each bucket that differed";
    Count "tallystone_buckets_rechecked" = counts.buckets_rechecked.get(),
        "Buckets that were compared because of a recheck mark";
    Count "tallystone_buckets_sealed" = counts.buckets_sealed.get(),
        "Buckets that were read from all replicas and compared after the seal delay";
    Count "tallystone_seals_failed" = counts.seals_failed.get(),
        "Times the buckets of a touch shard could not be compared; tried again";
    Count "tallystone_leases_lapsed" = counts.leases_lapsed.get(), "Lapses of this server's own lease in its fleet";
    Count "tallystone_members_lapsed" = counts.members_lapsed.get(), "Other members that this server has seen lapse";
    Count "tallystone_slices_dropped" = counts.slices_dropped.get(), "Slices dropped";
    Count "tallystone_slices_kept_back" = counts.slices_kept_back.get(), "Times a slice past its time had to stay";
    Count "tallystone_messages_enqueued" = counts.messages_enqueued.get(), "Messages that were taken in";
    Count "tallystone_messages_repeated" = counts.messages_repeated.get(), "Enqueues whose id had been taken in before";
    Count "tallystone_leases_given" = counts.leases_given.get(), "Leases that were given";
    Count "tallystone_messages_completed" = counts.messages_completed.get(), "Messages that were completed";
    Count "tallystone_leases_settled" = counts.leases_settled.get(), "Leases that were settled, repeats included";
    Count "tallystone_dequeues_empty" = counts.dequeues_empty.get(), "Looks of dequeues that found nothing";
    Count "tallystone_leases_out_of_rank" = counts.leases_out_of_rank.get(),
        "Leases given while another shard had a better message";
    Count "tallystone_messages_promoted" = counts.messages_promoted.get(),
        "Messages whose window was over and that became ready";
    Count "tallystone_promotions_late" = counts.promotions_late.get(),
        "Messages that became ready more than a second after their time";
    Count "tallystone_queue_commands" = counts.queue_commands.get(), "Commands that were sent to shards of queues";
    Count "tallystone_queue_store_calls" = counts.queue_store_calls.get(), "Store calls that brought these commands";
    Count "tallystone_queue_panics" = counts.queue_panics.get(), "Store calls of queues that panicked: defects";
    Count "tallystone_acknowledged_below_limit" = counts.acknowledged_below_limit.get(),
        "Events acknowledged at or below a limit that was told while they were held; must stay 0";
};

const ENGINE: &[Metric<Engine>] = metrics! { engine:
    Count "tallystone_loop_panics" = engine.loop_panics(), "Background loops that panicked";
    Total "tallystone_rollup_batch_seconds" = seconds(engine.stats().batch_micros.get() as f64),
        "Time spent in rollup batches";
    Total "tallystone_rollup_pause_seconds" = seconds(engine.stats().pause_micros.get() as f64),
        "Pauses after rollup batches";
    Total "tallystone_promotion_lag_seconds" = seconds(engine.stats().promotion_lag_micros.get() as f64),
        "From the time of messages until they were ready";
    Count "tallystone_rollup_signals_sent" = engine.signals().sent, "Signals that other servers have taken";
    Count "tallystone_rollup_signals_dropped" = engine.signals().dropped,
        "Signals for other servers that were dropped: no room, no answer, or nobody to take them";
    Gauge "tallystone_rollup_set_counters" = engine.rollup_sets().0 as f64, "Counters in the rollup Sets";
    Gauge "tallystone_rollup_set_bytes" = engine.rollup_sets().1 as f64, "Bytes of the rollup Sets";
    Gauge "tallystone_watches" = engine.watches() as f64, "Watches under way";
    // A store that is shared with nobody has one server.
    Gauge "tallystone_fleet_members" = engine.fleet().map_or(1, |fleet| fleet.members.unwrap_or(0)) as f64,
        "Servers that share the store, this one included; 0 while that is not known";
    Gauge "tallystone_fleet_lease_seconds" = engine.fleet().map_or(0.0, |fleet| fleet.lease_left.as_secs_f64()),
        "How long this server still counts as one of them if no heartbeat gets through";
    Gauge "tallystone_queues" = of_queues(engine, Queues::count), "Queues and templates";
    Gauge "tallystone_dequeues_waiting" = of_queues(engine, Queues::waiting), "Dequeues that wait for a message";
    Gauge "tallystone_queue_sessions" = of_queues(engine, Queues::sessions), "Sessions of workers";
    Gauge "tallystone_queue_clock_ahead_seconds" = seconds(engine.stats().queue_clock_ahead.get() as f64),
        "How far the time of queues is ahead of this machine's clock; negative if it is behind";
    Gauge "tallystone_queue_tokens_ahead_seconds" = seconds(engine.stats().queue_tokens_ahead.get() as f64),
        "How far the time by which the age of tokens is judged is ahead of this machine's clock";
};

fn seconds(micros: f64) -> f64 {
    micros / 1e6
}

/// A server without queues shows zeros, so that every panel finds its metric.
fn of_queues(engine: &Engine, number: fn(&Queues) -> usize) -> f64 {
    engine.queues().as_ref().map_or(0, number) as f64
}

const DATASETS: &[Metric<DatasetGauges>] = metrics! { dataset:
    Gauge "tallystone_dataset_staleness_seconds" = dataset.staleness.as_secs_f64(),
        "How old what readers here see of the dataset is: the clock less the limit";
    Gauge "tallystone_closed_lag_seconds" = dataset.closed_lag.as_secs_f64(),
        "How far what this server has closed, as the store knows, is behind the clock";
    Gauge "tallystone_accept_limit_seconds" = dataset.accept_limit.as_secs_f64(),
        "How old an event of the dataset may be: what both include";
    KnownGauge "tallystone_watermark_lag_seconds" = dataset.watermark_lag.map(|lag| lag.as_secs_f64()),
        "How far the slowest watermark is behind the limit; not there while this server does not know it";
    Gauge "tallystone_seal_lag_seconds" = dataset.seal_lag.as_secs_f64(), "How far sealing is behind what is due";
    Gauge "tallystone_holds" = dataset.holds as f64, "Events admitted whose outcome is not known yet";
    Gauge "tallystone_slices" = dataset.slices as f64, "Time slices known";
};

const NAMESPACES: &[Metric<NamespaceCounts>] = metrics! { counts:
    Count "tallystone_namespace_writes_applied" = counts.writes_applied.get(),
        "Adds, clears and totals that were applied, by namespace";
    Count "tallystone_namespace_writes_failed" = counts.writes_failed.get(),
        "Writes that were refused or failed, or whose outcome is not known";
    Count "tallystone_namespace_reads" = counts.reads.get(), "Reads of counts, of one or of many in a call";
};

/// The label of all namespaces that are not shown one by one; no namespace has a name like it.
const OTHER_NAMESPACES: &str = "_other";

impl MetricSource for Arc<Engine> {
    fn encode_metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let stats = self.stats();
        encode(encoder, COUNTS, stats)?;
        encode_undeclared(encoder, &stats.undeclared_filters)?;
        encode_counts(encoder, &stats.by_queue)?;
        encode_counts_by(encoder, ("namespace", OTHER_NAMESPACES), NAMESPACES, &stats.by_namespace)?;
        encode(encoder, ENGINE, self)?;
        let overview = self.queues().as_ref().map(Queues::overview).unwrap_or_default();
        encode_backlogs(encoder, &shown_queues(&overview))?;
        let datasets = bounded_datasets(self.datasets());
        encode_each(encoder, DATASETS, datasets.iter().map(|one| ([("dataset", &*one.dataset)], one)))
    }
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

/// Encodes the metrics of one thing. A value that is not known leaves its metric out.
fn encode<T>(encoder: &mut DescriptorEncoder<'_>, metrics: &[Metric<T>], of: &T) -> Result<(), fmt::Error> {
    for (name, help, value) in metrics {
        if !matches!(value, MetricValue::KnownGauge(read) if read(of).is_none()) {
            encode_value(value, of, encoder.encode_descriptor(name, help, None, metric_type(value))?)?;
        }
    }
    Ok(())
}

/// Encodes the metrics of several things, each with its labels.
pub fn encode_each<'a, T: 'a>(
    encoder: &mut DescriptorEncoder<'_>,
    metrics: &[Metric<T>],
    things: impl Iterator<Item = (impl EncodeLabelSet, &'a T)> + Clone,
) -> Result<(), fmt::Error> {
    for (name, help, value) in metrics {
        let mut family = encoder.encode_descriptor(name, help, None, metric_type(value))?;
        for (labels, of) in things.clone() {
            encode_value(value, of, family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

/// Encodes counts by name, under a label; and all that are not counted one by one, under the other name.
fn encode_counts_by<T: Default, const MOST: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    (label, other): (&'static str, &'static str),
    metrics: &[Metric<T>],
    by_name: &CountsBy<T, MOST>,
) -> Result<(), fmt::Error> {
    let (names, others) = by_name.get();
    let shown = names.iter().map(|(name, counts)| (&**name, &**counts)).chain([(other, others)]);
    encode_each(encoder, metrics, shown.map(|(name, counts)| ([(label, name)], counts)))
}

fn encode_value<T>(value: &MetricValue<T>, of: &T, encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
    match value {
        MetricValue::Count(read) => ConstCounter::new(read(of)).encode(encoder),
        MetricValue::Total(read) => ConstCounter::new(read(of)).encode(encoder),
        MetricValue::Gauge(read) => ConstGauge::new(read(of)).encode(encoder),
        MetricValue::KnownGauge(read) => read(of).map_or(Ok(()), |value| ConstGauge::new(value).encode(encoder)),
    }
}

fn metric_type<T>(value: &MetricValue<T>) -> MetricType {
    match value {
        MetricValue::Count(_) | MetricValue::Total(_) => MetricType::Counter,
        MetricValue::Gauge(_) | MetricValue::KnownGauge(_) => MetricType::Gauge,
    }
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
