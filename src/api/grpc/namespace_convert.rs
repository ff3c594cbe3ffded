//! Namespaces between the wire and the domain.
//!
//! A field that is absent was not set by the caller, and the catalog fills it in. An unspecified word, an empty name
//! and an empty list mean absent. All errors of a message are reported together.

use std::fmt::Display;
use std::time::Duration;

use crate::time::{write, write_duration};
use tallystone_domain::counter::{CounterName, NamespaceName};
use tallystone_domain::namespace::{
    Cardinality, CounterType, DatasetSettings, HotCounter, Namespace, NamespaceSpec, OnNewEpoch, RollupSettings,
    SeriesSettings, Storage, Temporality, TimePartition, namespace_settings,
};
use tallystone_domain::{Reason, Reject};
use tallystone_engine::namespaces::{
    DatasetDraft, NamespaceApplyOutcome, NamespaceDraft, NamespaceEtag, NamespaceHistoryEntry, PartitionDraft,
    RollupDraft, StorageDraft,
};
use tallystone_proto::admin::v1 as pb;

/// Decodes a namespace from a caller, and the etag of the version that it was based on.
pub fn draft_of(sent: pb::Namespace) -> Result<(NamespaceDraft, Option<NamespaceEtag>), Reject> {
    let mut draft = NamespaceDraft::of(NamespaceName::new(&sent.name)?);
    let etag = (!sent.etag.is_empty()).then(|| sent.etag.parse()).transpose()?;
    let mut faults = NamespaceFieldErrors(Vec::new());
    draft.description = sent.description;
    draft.counter_type = faults.word("counter_type", sent.counter_type, counter_type_of);
    draft.temporality = faults.word("temporality", sent.temporality, temporality_of);
    draft.on_new_epoch = faults.word("on_new_epoch", sent.on_new_epoch, on_new_epoch_of);
    draft.ttl = faults.duration("ttl", sent.ttl);
    draft.cardinality = faults.word("counter_cardinality", sent.counter_cardinality, cardinality_of);
    if let Some(storage) = sent.storage {
        draft.storage = faults.storage(&storage);
    }
    if let Some(dataset) = sent.dataset {
        draft.dataset = faults.dataset(dataset);
    }
    draft.partition = sent.time_partition.map(GroupMessage::into_draft).unwrap_or_default();
    draft.rollup = sent.rollup.map(GroupMessage::into_draft).unwrap_or_default();
    let hot = sent.hot_counters.iter().enumerate();
    let hot: Vec<HotCounter> = hot.filter_map(|(at, hot)| faults.hot_counter(at, hot)).collect();
    draft.hot_counters = (!hot.is_empty()).then(|| hot.into_iter().collect());
    let series = sent.series.into_iter().enumerate();
    let series: Vec<SeriesSettings> = series.filter_map(|(at, series)| faults.series(at, series)).collect();
    draft.series = (!series.is_empty()).then_some(series);
    match faults.0.is_empty() {
        true => Ok((draft, etag)),
        false => Err(Reject::new(Reason::InvalidSettings, faults.0.join("; "))),
    }
}

/// Encodes a namespace.
pub fn namespace_message(namespace: &Namespace) -> pb::Namespace {
    pb::Namespace {
        id: namespace.id.0,
        etag: NamespaceEtag::of(namespace).to_string(),
        create_time: Some(write(namespace.created)),
        update_time: Some(write(namespace.updated)),
        version: namespace.version,
        ..settings_message(&namespace.spec)
    }
}

/// Encodes a change of a namespace.
pub fn change_message(past: NamespaceHistoryEntry) -> pb::NamespaceChange {
    let NamespaceHistoryEntry { change, created } = past;
    let namespace = change.spec.as_ref().map(|spec| pb::Namespace {
        id: change.id.0,
        etag: NamespaceEtag::of_version(change.id, change.version).to_string(),
        version: change.version,
        create_time: created.map(write),
        update_time: Some(write(change.time)),
        ..settings_message(spec)
    });
    pb::NamespaceChange {
        version: change.version,
        change_time: Some(write(change.time)),
        actor: change.actor,
        reason: change.reason,
        differences: change.differences,
        namespace,
    }
}

/// Encodes the outcome of an apply.
pub fn action_message(applied: NamespaceApplyOutcome) -> pb::ApplyAction {
    match applied {
        NamespaceApplyOutcome::Created => pb::ApplyAction::Created,
        NamespaceApplyOutcome::Updated => pb::ApplyAction::Updated,
        NamespaceApplyOutcome::Unchanged => pb::ApplyAction::Unchanged,
    }
}

fn settings_message(spec: &NamespaceSpec) -> pb::Namespace {
    pb::Namespace {
        name: spec.name.to_string(),
        description: Some(spec.description.clone()),
        counter_type: counter_type_message(spec.counter_type).into(),
        temporality: temporality_message(spec.temporality).into(),
        on_new_epoch: on_new_epoch_message(spec.on_new_epoch).into(),
        ttl: spec.ttl.map(write_duration),
        counter_cardinality: cardinality_message(spec.cardinality).into(),
        storage: Some(storage_message(&spec.storage)),
        dataset: Some(dataset_message(&spec.dataset)),
        time_partition: Some(spec.partition.into_message()),
        rollup: Some(spec.rollup.into_message()),
        series: spec.series.iter().map(series_message).collect(),
        hot_counters: spec.hot_counters.iter().map(hot_message).collect(),
        ..pb::Namespace::default()
    }
}

fn storage_message(storage: &Storage) -> pb::Storage {
    pb::Storage {
        cache_cluster: storage.cache_cluster.to_string(),
        rollup_cluster: storage.rollup_cluster.to_string(),
        event_cluster: storage.event_cluster.to_string(),
        dataset: storage.dataset.to_string(),
    }
}

fn dataset_message(dataset: &DatasetSettings) -> pb::DatasetSettings {
    pb::DatasetSettings {
        slice_width: Some(write_duration(dataset.slice_width())),
        close_after: Some(write_duration(dataset.close_after)),
        delete_after: Some(write_duration(dataset.delete_after)),
        accept_limit: Some(write_duration(dataset.accept_limit)),
        future_limit: Some(write_duration(dataset.future_limit)),
        export_before_drop: Some(dataset.export_before_drop),
    }
}

fn series_message(series: &SeriesSettings) -> pb::SeriesSettings {
    pb::SeriesSettings {
        step: Some(write_duration(Duration::from_secs(u64::from(series.step_seconds)))),
        keep: Some(write_duration(series.keep)),
    }
}

fn hot_message(hot: &HotCounter) -> pb::HotCounter {
    pb::HotCounter { counter_name: hot.counter_name.as_str().to_owned(), buckets_per_id: hot.buckets_per_id }
}

fn counter_type_of(sent: pb::CounterType) -> Option<CounterType> {
    match sent {
        pb::CounterType::Unspecified => None,
        pb::CounterType::BestEffort => Some(CounterType::BestEffort),
        pb::CounterType::Eventual => Some(CounterType::Eventual),
        pb::CounterType::Accurate => Some(CounterType::Accurate),
    }
}

fn counter_type_message(counter_type: CounterType) -> pb::CounterType {
    match counter_type {
        CounterType::BestEffort => pb::CounterType::BestEffort,
        CounterType::Eventual => pb::CounterType::Eventual,
        CounterType::Accurate => pb::CounterType::Accurate,
    }
}

fn on_new_epoch_of(sent: pb::OnNewEpoch) -> Option<OnNewEpoch> {
    match sent {
        pb::OnNewEpoch::Unspecified => None,
        pb::OnNewEpoch::Add => Some(OnNewEpoch::Add),
        pb::OnNewEpoch::Replace => Some(OnNewEpoch::Replace),
    }
}

fn on_new_epoch_message(on_new_epoch: Option<OnNewEpoch>) -> pb::OnNewEpoch {
    match on_new_epoch {
        None => pb::OnNewEpoch::Unspecified,
        Some(OnNewEpoch::Add) => pb::OnNewEpoch::Add,
        Some(OnNewEpoch::Replace) => pb::OnNewEpoch::Replace,
    }
}

fn temporality_of(sent: pb::Temporality) -> Option<Temporality> {
    match sent {
        pb::Temporality::Unspecified => None,
        pb::Temporality::Delta => Some(Temporality::Delta),
        pb::Temporality::Cumulative => Some(Temporality::Cumulative),
    }
}

fn temporality_message(temporality: Temporality) -> pb::Temporality {
    match temporality {
        Temporality::Delta => pb::Temporality::Delta,
        Temporality::Cumulative => pb::Temporality::Cumulative,
    }
}

fn cardinality_of(sent: pb::Cardinality) -> Option<Cardinality> {
    match sent {
        pb::Cardinality::Unspecified => None,
        pb::Cardinality::Low => Some(Cardinality::Low),
        pb::Cardinality::Medium => Some(Cardinality::Medium),
        pb::Cardinality::High => Some(Cardinality::High),
    }
}

fn cardinality_message(cardinality: Cardinality) -> pb::Cardinality {
    match cardinality {
        Cardinality::Low => pb::Cardinality::Low,
        Cardinality::Medium => pb::Cardinality::Medium,
        Cardinality::High => pb::Cardinality::High,
    }
}

/// The message of a group of settings.
trait GroupMessage {
    type Draft;

    fn into_draft(self) -> Self::Draft;
}

/// A group of settings that has a message.
trait SettingsGroup {
    type Message;

    fn into_message(self) -> Self::Message;
}

macro_rules! message {
    ($settings:ident, $draft:ident, $path:ident: $($(#[$doc:meta])* $field:ident: $type:ty = $default:expr;)*) => {
        impl GroupMessage for pb::$settings {
            type Draft = $draft;

            fn into_draft(self) -> $draft {
                $draft { $($field: self.$field,)* }
            }
        }

        impl SettingsGroup for $settings {
            type Message = pb::$settings;

            fn into_message(self) -> pb::$settings {
                pb::$settings { $($field: Some(self.$field),)* }
            }
        }
    };
}
namespace_settings!(partition message);
namespace_settings!(rollup message);

/// All errors of a message.
struct NamespaceFieldErrors(Vec<String>);

impl NamespaceFieldErrors {
    fn add(&mut self, field: impl Display, what: impl Display) {
        self.0.push(format!("{field} {what}"));
    }

    fn word<E: TryFrom<i32>, T>(&mut self, field: &str, sent: i32, read: impl Fn(E) -> Option<T>) -> Option<T> {
        match E::try_from(sent) {
            Ok(word) => read(word),
            Err(_) => {
                self.add(field, format_args!("has no enum value {sent}"));
                None
            }
        }
    }

    fn duration(&mut self, field: impl Display, sent: Option<prost_types::Duration>) -> Option<Duration> {
        let sent = sent?;
        // The library negates negative seconds, which overflows for the least value.
        let read = (sent.seconds >= 0 && sent.nanos >= 0).then(|| Duration::try_from(sent).ok()).flatten();
        if read.is_none() {
            self.add(field, "must not be negative");
        }
        read
    }

    fn whole_seconds(&mut self, field: impl Display, sent: Option<prost_types::Duration>) -> Option<u32> {
        let duration = self.duration(&field, sent)?;
        let seconds = u32::try_from(duration.as_secs()).ok();
        let whole = seconds.filter(|seconds| Duration::from_secs(u64::from(*seconds)) == duration);
        if whole.is_none() {
            self.add(field, format_args!("is {duration:?}; it must be whole seconds, at most {}", u32::MAX));
        }
        whole
    }

    fn name(&mut self, field: &str, sent: &str) -> Option<NamespaceName> {
        if sent.is_empty() {
            return None;
        }
        let name = NamespaceName::new(sent);
        if let Err(reject) = &name {
            self.add(field, reject.message.trim_start_matches("namespace "));
        }
        name.ok()
    }

    fn storage(&mut self, sent: &pb::Storage) -> StorageDraft {
        StorageDraft {
            cache_cluster: self.name("storage.cache_cluster", &sent.cache_cluster),
            rollup_cluster: self.name("storage.rollup_cluster", &sent.rollup_cluster),
            event_cluster: self.name("storage.event_cluster", &sent.event_cluster),
            dataset: self.name("storage.dataset", &sent.dataset),
        }
    }

    fn dataset(&mut self, sent: pb::DatasetSettings) -> DatasetDraft {
        DatasetDraft {
            seconds_per_slice: self.whole_seconds("dataset.slice_width", sent.slice_width),
            close_after: self.duration("dataset.close_after", sent.close_after),
            delete_after: self.duration("dataset.delete_after", sent.delete_after),
            accept_limit: self.duration("dataset.accept_limit", sent.accept_limit),
            future_limit: self.duration("dataset.future_limit", sent.future_limit),
            export_before_drop: sent.export_before_drop,
        }
    }

    fn hot_counter(&mut self, at: usize, sent: &pb::HotCounter) -> Option<HotCounter> {
        let field = format_args!("hot_counters[{at}]");
        if sent.counter_name.is_empty() || sent.buckets_per_id == 0 {
            self.add(field, "needs a counter_name and a buckets_per_id");
            return None;
        }
        match CounterName::new(&sent.counter_name) {
            Ok(counter_name) => Some(HotCounter { counter_name, buckets_per_id: sent.buckets_per_id }),
            Err(reject) => {
                self.add(field, format_args!("is not a valid name: {}", reject.message));
                None
            }
        }
    }

    fn series(&mut self, at: usize, sent: pb::SeriesSettings) -> Option<SeriesSettings> {
        if sent.step.is_none() || sent.keep.is_none() {
            self.add(format_args!("series[{at}]"), "needs a step and a keep");
        }
        let step_seconds = self.whole_seconds(format_args!("series[{at}].step"), sent.step);
        let keep = self.duration(format_args!("series[{at}].keep"), sent.keep);
        Some(SeriesSettings { step_seconds: step_seconds?, keep: keep? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallystone_domain::Timestamp;
    use tallystone_domain::counter::{DatasetId, NamespaceId};

    fn name(text: &str) -> NamespaceName {
        NamespaceName::new(text).expect("a valid name")
    }

    fn seconds(seconds: i64) -> Option<prost_types::Duration> {
        Some(prost_types::Duration { seconds, nanos: 0 })
    }

    fn namespace() -> Namespace {
        let mut spec = NamespaceSpec::with_defaults(name("shop"));
        spec.description = "x".to_owned();
        spec.counter_type = CounterType::Accurate;
        spec.ttl = Some(Duration::from_millis(10_500));
        spec.cardinality = Cardinality::High;
        spec.dataset.export_before_drop = true;
        spec.series.push(SeriesSettings { step_seconds: 60, keep: Duration::from_secs(3_600) });
        let hot = |name| HotCounter { counter_name: CounterName::new(name).expect("valid"), buckets_per_id: 16 };
        spec.hot_counters = [hot("b"), hot("a")].into_iter().collect();
        Namespace {
            id: NamespaceId(7),
            dataset_id: DatasetId(1),
            version: 3,
            spec,
            created: Timestamp::from_micros(-1),
            updated: Timestamp::from_secs(9),
            made_by: None,
        }
    }

    #[test]
    fn what_is_answered_can_be_sent_back() {
        let namespace = namespace();
        let (draft, etag) = draft_of(namespace_message(&namespace)).expect("valid");
        assert_eq!(draft, NamespaceDraft::from(namespace.spec.clone()));
        assert_eq!(etag, Some(NamespaceEtag::of(&namespace)));
    }

    #[test]
    fn whatever_is_absent_was_not_said() {
        let sent = pb::Namespace {
            name: "shop".to_owned(),
            storage: Some(pb::Storage::default()),
            dataset: Some(pb::DatasetSettings::default()),
            time_partition: Some(pb::TimePartition::default()),
            rollup: Some(pb::RollupSettings::default()),
            ..pb::Namespace::default()
        };
        let (draft, etag) = draft_of(sent).expect("valid");
        assert_eq!((draft, etag), (NamespaceDraft::of(name("shop")), None));
    }

    #[test]
    fn every_fault_of_a_message_is_told_at_once() {
        let sent = pb::Namespace {
            name: "shop".to_owned(),
            counter_type: 9,
            ttl: seconds(-1),
            storage: Some(pb::Storage { cache_cluster: "a b".to_owned(), ..pb::Storage::default() }),
            dataset: Some(pb::DatasetSettings { slice_width: seconds(1 << 40), ..pb::DatasetSettings::default() }),
            series: vec![pb::SeriesSettings { step: seconds(60), keep: None }],
            hot_counters: [("views", 0), ("a b", 8)]
                .map(|(name, buckets_per_id)| pb::HotCounter { counter_name: name.to_owned(), buckets_per_id })
                .into(),
            ..pb::Namespace::default()
        };
        let reject = draft_of(sent).expect_err("seven faults");
        assert_eq!(reject.reason, Reason::InvalidSettings);
        for fault in [
            "counter_type has no enum value 9",
            "ttl must not be negative",
            "storage.cache_cluster has ' ' as character 2",
            "dataset.slice_width is",
            "series[0] needs a step and a keep",
            "hot_counters[0] needs a counter_name and a buckets_per_id",
            "hot_counters[1] is not a valid name: counter name has ' '",
        ] {
            assert!(reject.message.contains(fault), "{fault} is missing of {}", reject.message);
        }
    }

    #[test]
    fn the_least_duration_is_negative_like_any_other() {
        let sent = pb::Namespace { name: "shop".to_owned(), ttl: seconds(i64::MIN), ..pb::Namespace::default() };
        let reject = draft_of(sent).expect_err("a negative duration");
        assert!(reject.message.contains("ttl must not be negative"), "{}", reject.message);
    }

    #[test]
    fn times_before_1970_keep_their_place() {
        let created = namespace_message(&namespace()).create_time.expect("it has one");
        assert_eq!((created.seconds, created.nanos), (-1, 999_999_000));
    }
}
