//! The numbers of the engine on the metrics page, read when the page is; `metrics/` has those of queues and of stores.
//!
//! Every metric begins with `tallystone_`, is in base units, and is documented in `docs/operating.md`.

mod issuers;
mod process;
mod queues;
mod stores;

use std::any::type_name;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, EncodeMetric, LabelSetEncoder, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::server::metrics::queues::{encode_backlogs, encode_counts, encode_times, encode_undeclared, shown_queues};
use tallystone_api::metric_units::split_unit;
use tallystone_domain::access::KeyQuota;
use tallystone_domain::call_limit::CallClass;
use tallystone_domain::history::audit::FindingKind;
use tallystone_domain::limits::METRIC_DATASETS_MAX;
use tallystone_engine::call_limiter::CallLimiter;
use tallystone_engine::historian::HistorianGauges;
use tallystone_engine::queues::Queues;
use tallystone_engine::report_right::ReportStanding;
use tallystone_engine::stats::{Count, CountsBy, NamespaceCounts, Stats};
use tallystone_engine::{DatasetGauges, Engine, FleetGauges};
use tallystone_ports::{HistogramReading, LabelledCounts, Metric, MetricValue, QueueMemory, metrics};

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
    CountBy "tallystone_writes" = LabelledCounts::by("outcome", [
        ("applied", counts.writes_applied.get()), ("repeated", counts.writes_repeated.get()),
    ]), "Adds, clears and totals by outcome: applied, or repeated with a token that was already applied";
    CountBy "tallystone_verdicts" = LabelledCounts::by("outcome", [
        ("applied", counts.verdicts_applied.get()), ("not_applied", counts.verdicts_void.get()),
    ]), "Token verdicts by outcome: the event was applied, or it was not and never will be";
    CountBy "tallystone_count_cache_reads" = LabelledCounts::by("outcome", [
        ("hit", counts.cache_hits.get()), ("miss", counts.cache_misses.get()),
    ]), "Reads served from the count cache, and reads that went to the rollup store";
    Count "tallystone_inline_rolls" = counts.inline_rolls.get(), "Rolls run by a read";
    CountBy "tallystone_rolls" = LabelledCounts::by("outcome", [
        ("written", counts.rolls_written.get()), ("empty", counts.rolls_empty.get()), ("failed", counts.rolls_failed.get()),
    ]), "Rolls that wrote a checkpoint, that found nothing new, and that failed and are retried";
    Count "tallystone_events_folded" = counts.events_folded.get(), "Events folded by rolls";
    Count "tallystone_rollup_batches" = counts.batches.get(), "Rollup batches";
    Count "tallystone_rollup_signals_lost" = counts.signals_lost.get(), "Signals dropped because a Set was full";
    Count "tallystone_rollup_signals_taken" = counts.signals_taken.get(), "Signals accepted from other servers";
    Count "tallystone_touches_replayed" = counts.touches_replayed.get(),
        "Touches read again after a restart or a lost signal";
    Count "tallystone_limits_published" = counts.limits_published.get(), "Limits published";
    Count "tallystone_late_rows" = counts.late_rows.get(),
        "Rows that arrived after the rollup of their bucket and were added to the count";
    Count "tallystone_repairs" = counts.repairs.get(), "Repairs of counters, one for each bucket that differed";
    Count "tallystone_buckets_rechecked" = counts.buckets_rechecked.get(),
        "Buckets compared because of a recheck mark";
    Count "tallystone_buckets_sealed" = counts.buckets_sealed.get(),
        "Buckets read from all replicas and compared after the seal delay";
    Count "tallystone_seals_failed" = counts.seals_failed.get(),
        "Failed comparisons of the buckets of a touch shard; retried";
    Count "tallystone_fleet_leases_lapsed" = counts.leases_lapsed.get(), "Expirations of this server's own fleet lease";
    Count "tallystone_fleet_members_lapsed" = counts.members_lapsed.get(), "Expired fleet leases of other members, seen by this server";
    Count "tallystone_slices_dropped" = counts.slices_dropped.get(), "Slices dropped";
    Count "tallystone_slices_kept_back" = counts.slices_kept_back.get(), "Failures to drop a slice past its retention";
    Count "tallystone_queue_enqueues_repeated" = counts.messages_repeated.get(), "Enqueues with an id that was already enqueued";
    Count "tallystone_queue_settlements" = counts.leases_settled.get(), "Leases settled, repeats included";
    Count "tallystone_queue_dequeues_empty" = counts.dequeues_empty.get(), "Dequeue searches that found nothing";
    Count "tallystone_queue_leases_out_of_rank" = counts.leases_out_of_rank.get(),
        "Leases issued while another shard had a better message";
    Histogram "tallystone_queue_promotion_lag_seconds" = counts.promotion_lag.read(),
        "From the end of the invisibility of messages until they were ready, an upper bound";
    Count "tallystone_queue_commands" = counts.queue_commands.get(), "Commands sent to shards of queues";
    Count "tallystone_queue_store_calls" = counts.queue_store_calls.get(), "Store calls that carried these commands";
    Count "tallystone_queue_panics" = counts.queue_panics.get(), "Store calls of queues that panicked: defects";
    Count "tallystone_bridge_reports" = counts.bridge.reports.get(),
        "Reports of shards of queues written to the counters";
    Count "tallystone_bridge_totals_reported" = counts.bridge.totals_reported.get(), "Totals in these reports";
    Count "tallystone_bridge_takeovers" = counts.bridge.takeovers.get(),
        "Comparisons of a queue with its counters: at a takeover, and from time to time";
    Count "tallystone_bridge_failures" = counts.bridge.failures.get(), "Failed steps of the reports; tried again";
    Count "tallystone_history_rows_relayed" = counts.history_rows_relayed.get(),
        "Rows carried from the outboxes to the history, repeats included";
    Count "tallystone_history_batches" = counts.history_batches.get(), "Batches of rows written to the history";
    Count "tallystone_history_failures" = counts.history_failures.get(),
        "Failures on the way from the outboxes to the history; retried";
    Count "tallystone_history_gaps" = counts.history_gaps.get(), "Gaps written to the history: rows that are lost";
    Count "tallystone_rules_evaluated" = counts.rules.evaluated.get(),
        "Evaluations of counter rules, one for each rule and round";
    Count "tallystone_rules_fired" = counts.rules.fired.get(), "Messages of counter rules that were enqueued";
    Count "tallystone_rules_uncertain" = counts.rules.uncertain.get(),
        "Messages of counter rules of which nobody knows whether they were enqueued";
    Count "tallystone_rules_failed" = counts.rules.failed.get(),
        "Evaluations of counter rules that failed or were refused; tried again";
    Count "tallystone_acknowledged_below_limit" = counts.acknowledged_below_limit.get(),
        "Events acknowledged at or below a limit published while they were held; must stay 0";
};

const ENGINE: &[Metric<Engine>] = metrics! { engine:
    Count "tallystone_loop_panics" = engine.loop_panics(), "Background loops that panicked";
    Total "tallystone_rollup_batch_seconds" = seconds(engine.stats().batch_micros.get() as f64),
        "Time spent in rollup batches";
    Total "tallystone_rollup_pause_seconds" = seconds(engine.stats().pause_micros.get() as f64),
        "Pauses after rollup batches";
    Count "tallystone_rollup_signals_sent" = engine.signals().sent, "Signals accepted by other servers";
    Count "tallystone_rollup_signals_dropped" = engine.signals().dropped,
        "Signals for other servers that were dropped: no room, no answer, or no receiver";
    Gauge "tallystone_rollup_set_counters" = engine.rollup_sets().0 as f64, "Counters in the rollup Sets";
    Gauge "tallystone_rollup_set_bytes" = engine.rollup_sets().1 as f64, "Bytes of the rollup Sets";
    Gauge "tallystone_watches" = engine.watches() as f64, "Active watches";
    // A store that is shared with nobody has one server.
    Gauge "tallystone_fleet_members" = shared_with(engine).map_or(1, |fleet| fleet.members.unwrap_or(0)) as f64,
        "Servers that share the counters, or else the queues, this one included; 0 while unknown";
    Gauge "tallystone_fleet_lease_seconds" = shared_with(engine).map_or(0.0, |fleet| fleet.lease_left.as_secs_f64()),
        "Remaining fleet lease of this server without a new heartbeat";
    Gauge "tallystone_queues" = of_queues(engine, Queues::count), "Queues and templates";
    Gauge "tallystone_queue_sessions" = of_queues(engine, |queues| queues.sessions.count()), "Sessions of workers";
    Gauge "tallystone_bridge_active" = f64::from(u8::from(engine.queue_report_lag().is_some())),
        "Whether this server reports queues to counters";
    Gauge "tallystone_bridge_apart" = f64::from(u8::from(is_apart(engine))),
        "Whether the counters and the history of queues belong to another queue store";
    Gauge "tallystone_bridge_report_lag_seconds" = engine.queue_report_lag().map_or(0.0, |lag| lag.as_secs_f64()),
        "Age of the time up to which all changes of queues are in the log of their counters";
    Gauge "tallystone_bridge_waiting_shards" = engine.stats().bridge.waiting_shards.get() as f64,
        "Shards of queues that changed and wait for their report";
    Gauge "tallystone_queue_clock_ahead_seconds" = seconds(engine.stats().queue_clock_ahead.get() as f64),
        "Queue time minus this machine's clock; negative if queue time is behind";
    Gauge "tallystone_queue_tokens_ahead_seconds" = seconds(engine.stats().queue_tokens_ahead.get() as f64),
        "Time used for token ages minus this machine's clock";
};

const QUEUE_MEMORY: &[Metric<u64>] = metrics! { bytes:
    Gauge "tallystone_queue_memory_bytes" = *bytes as f64,
        "Memory of queues in this process, by kind: heads, stubs, indexes, answers, sessions";
};

const QUEUE_MEMORY_BOUND: &[Metric<u64>] = metrics! { bytes:
    Gauge "tallystone_queue_memory_limit_bytes" = *bytes as f64,
        "The most memory that queues may take in this process; 0 where their store keeps them elsewhere";
};

const HISTORIAN: &[Metric<HistorianGauges>] = metrics! { gauges:
    Gauge "tallystone_outbox_bytes" = gauges.outbox.bytes as f64, "Rows of queues that wait for the history, in bytes";
    Gauge "tallystone_outbox_capacity_bytes" = gauges.outbox.capacity as f64,
        "Bytes to which the fill of the outboxes is compared; at 60 % the largest gives way";
    Gauge "tallystone_history_lag_seconds" = gauges.lag.as_secs_f64(), "Age of the oldest row that is not in the history";
    KnownGauge "tallystone_history_bytes" = gauges.history.bytes.map(|bytes| bytes as f64),
        "Size of the history; absent where its store does not know it";
    Count "tallystone_history_rows_written" = gauges.history.rows_written, "Rows written by the store of the history";
    Count "tallystone_history_row_bytes" = gauges.history.row_bytes_written, "Bytes of these rows";
};

const FINDINGS: &[Metric<Count>] = metrics! { found:
    Count "tallystone_audit_findings" = found.get(),
        "Findings of the audit of queues: what a shard holds, its counts and its history do not agree";
};

const QUOTA_REFUSALS: &[Metric<u64>] = metrics! { refused:
    Count "tallystone_quota_refusals" = *refused, "Calls and connections refused because a key had used up a quota, by quota";
};

const CALL_LIMIT: &[Metric<CallLimiter>] = metrics! { calls:
    Gauge "tallystone_call_limit" = calls.limit().map_or(0.0, |limit| limit as f64),
        "Calls that may be in progress because calls take too long; 0 while they end in time";
    Gauge "tallystone_call_target_seconds" = calls.target().as_secs_f64(),
        "How long most calls may take before there is a limit of calls in progress; 0 if there is never one";
};

/// The calls in progress of a class, and those that were refused.
type CallsOfClass = (usize, u64);

const CALL_CLASSES: &[Metric<CallsOfClass>] = metrics! { calls:
    Gauge "tallystone_calls_in_progress" = calls.0 as f64,
        "Calls that have come in full and are not answered, and messages of streams, by class";
    Count "tallystone_call_limit_refusals" = calls.1,
        "Calls refused, and waits of streams, because calls take too long, by class";
};

fn seconds(micros: f64) -> f64 {
    micros / 1e6
}

/// The servers that share the counters, or else the queues.
fn shared_with(engine: &Engine) -> Option<FleetGauges> {
    engine.fleet().or_else(|| engine.queue_fleet())
}

/// Whether another queue store has the counters and the history.
fn is_apart(engine: &Engine) -> bool {
    engine.report_standing() == Some(ReportStanding::Apart)
}

/// A server without queues shows zeros, so that every panel finds its metric.
fn of_queues(engine: &Engine, number: fn(&Queues) -> usize) -> f64 {
    engine.queues().as_ref().map_or(0, number) as f64
}

const DATASETS: &[Metric<DatasetGauges>] = metrics! { dataset:
    Gauge "tallystone_dataset_staleness_seconds" = dataset.staleness.as_secs_f64(),
        "Age of the dataset as seen by readers: the clock minus the limit";
    Gauge "tallystone_closed_lag_seconds" = dataset.closed_lag.as_secs_f64(),
        "Lag of this server's closed time, as recorded in the store, behind the clock";
    Gauge "tallystone_accept_limit_seconds" = dataset.accept_limit.as_secs_f64(),
        "Maximum age of an event of the dataset; included in both lags";
    KnownGauge "tallystone_watermark_lag_seconds" = dataset.watermark_lag.map(|lag| lag.as_secs_f64()),
        "Lag of the slowest watermark behind the limit; absent while unknown to this server";
    Gauge "tallystone_seal_lag_seconds" = dataset.seal_lag.as_secs_f64(), "Lag of sealing behind its due time";
    Gauge "tallystone_holds" = dataset.holds as f64, "Events admitted with a pending outcome";
    Gauge "tallystone_slices" = dataset.slices as f64, "Known time slices";
};

const NAMESPACES: &[Metric<NamespaceCounts>] = metrics! { counts:
    CountBy "tallystone_namespace_writes" = LabelledCounts::by("outcome", [
        ("applied", counts.writes_applied.get()), ("failed", counts.writes_failed.get()),
    ]), "Adds, clears and totals by namespace: applied, or refused, failed, and with unknown outcome";
    Count "tallystone_namespace_reads" = counts.reads.get(), "Calls that read one or more counts";
};

/// The label of all namespaces that are not shown one by one; no namespace has a name like it.
const OTHER_NAMESPACES: &str = "_other";

impl MetricSource for Arc<Engine> {
    fn encode_metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let stats = self.stats();
        encode(encoder, COUNTS, stats)?;
        encode_undeclared(encoder, &stats.undeclared_filters)?;
        encode_counts(encoder, &stats.by_queue)?;
        encode_times(encoder, &stats.times_by_queue)?;
        encode_counts_by(encoder, ("namespace", OTHER_NAMESPACES), NAMESPACES, &stats.by_namespace)?;
        encode(encoder, ENGINE, self)?;
        encode_queue_memory(encoder, self.queues().as_ref().and_then(Queues::memory))?;
        let historian = self.historian().map(|historian| historian.gauges()).unwrap_or_default();
        encode(encoder, HISTORIAN, &historian)?;
        let findings = FindingKind::ALL.map(FindingKind::name).into_iter().zip(&stats.audit_findings);
        encode_each(encoder, FINDINGS, findings.map(|(kind, found)| ([("kind", kind)], found)))?;
        let refusals = self.keys().quota_refusals();
        let refused = KeyQuota::ALL.map(|quota| (quota.word().replace('-', "_"), refusals.of(quota)));
        encode_each(
            encoder,
            QUOTA_REFUSALS,
            refused.iter().map(|(quota, count)| ([("quota", quota.as_str())], count)),
        )?;
        let overview = self.queues().as_ref().map(|queues| queues.inspect.overview()).unwrap_or_default();
        encode_backlogs(encoder, &shown_queues(&overview))?;
        let datasets = bounded_datasets(self.datasets());
        encode_each(encoder, DATASETS, datasets.iter().map(|one| ([("dataset", &*one.dataset)], one)))
    }
}

impl MetricSource for Arc<CallLimiter> {
    fn encode_metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        encode(encoder, CALL_LIMIT, self)?;
        let classes = CallClass::ALL.map(|class| (class.word(), (self.in_progress(class), self.refused(class))));
        encode_each(encoder, CALL_CLASSES, classes.iter().map(|(class, calls)| ([("class", *class)], calls)))
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
            encode_value(value, of, describe(encoder, (name, help), metric_type(value))?)?;
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
        let mut family = describe(encoder, (name, help), metric_type(value))?;
        for (labels, of) in things.clone() {
            if let MetricValue::CountBy(read) = value {
                encode_labelled(&read(of), &labels, &mut family)?;
            } else {
                encode_value(value, of, family.encode_family(&labels)?)?;
            }
        }
    }
    Ok(())
}

/// Encodes the memory of queues; zeros where their store keeps them elsewhere.
fn encode_queue_memory(encoder: &mut DescriptorEncoder<'_>, memory: Option<QueueMemory>) -> Result<(), fmt::Error> {
    let parts = memory.map(|memory| memory.used).unwrap_or_default().parts();
    encode_each(encoder, QUEUE_MEMORY, parts.iter().map(|part| ([("kind", part.kind)], &part.bytes)))?;
    encode(encoder, QUEUE_MEMORY_BOUND, &memory.map_or(0, |memory| memory.limit_bytes))
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

/// Begins a metric. Its unit stands at the end of its name.
fn describe<'a>(
    encoder: &'a mut DescriptorEncoder<'_>,
    (name, help): (&'a str, &str),
    kind: MetricType,
) -> Result<MetricEncoder<'a>, fmt::Error> {
    let (name, unit) = split_unit(name);
    encoder.encode_descriptor(name, help, unit, kind)
}

/// The labels of a metric that has none.
const NO_LABELS: [(&str, &str); 0] = [];

/// Encodes counts told apart by a label, beside the labels of what they belong to.
fn encode_labelled(
    counts: &LabelledCounts,
    labels: &impl EncodeLabelSet,
    family: &mut MetricEncoder<'_>,
) -> Result<(), fmt::Error> {
    for (value, count) in &counts.counts {
        let labels = (LabelsOf(labels), [(counts.label, *value)]);
        ConstCounter::new(*count).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

/// Labels that are lent.
struct LabelsOf<'a, L>(&'a L);

impl<L: EncodeLabelSet> EncodeLabelSet for LabelsOf<'_, L> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), fmt::Error> {
        self.0.encode(encoder)
    }
}

fn encode_value<T>(value: &MetricValue<T>, of: &T, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
    match value {
        MetricValue::Count(read) => ConstCounter::new(read(of)).encode(encoder),
        MetricValue::CountBy(read) => encode_labelled(&read(of), &NO_LABELS, &mut encoder),
        MetricValue::Histogram(read) => {
            let HistogramReading { sum, buckets } = read(of);
            let count = buckets.iter().map(|(_, count)| count).sum();
            encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
        }
        MetricValue::Total(read) => ConstCounter::new(read(of)).encode(encoder),
        MetricValue::Gauge(read) => ConstGauge::new(read(of)).encode(encoder),
        MetricValue::KnownGauge(read) => read(of).map_or(Ok(()), |value| ConstGauge::new(value).encode(encoder)),
    }
}

fn metric_type<T>(value: &MetricValue<T>) -> MetricType {
    match value {
        MetricValue::Count(_) | MetricValue::CountBy(_) | MetricValue::Total(_) => MetricType::Counter,
        MetricValue::Histogram(_) => MetricType::Histogram,
        MetricValue::Gauge(_) | MetricValue::KnownGauge(_) => MetricType::Gauge,
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use tallystone_domain::counter::DatasetId;

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
        assert!(tallystone_domain::counter::NamespaceName::new(OTHER_DATASETS).is_err(), "no dataset is called that");
    }
}
