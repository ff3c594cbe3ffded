//! The differences between two specs, in words for people, and which of them are allowed.
//!
//! The names are the paths of the settings in the namespace message of the protocol. Every setting must have a line
//! here; a missing one could change unseen. A test compares the list with the spec.

use crate::catalog::{SettingText, differences_between, duration_text, setting};
use tallystone_domain::namespace::{
    Cardinality, CounterType, DatasetSettings, HotCounters, NamespaceSpec, OnNewEpoch, RollupSettings, SeriesSettings,
    Temporality, TimePartition, namespace_settings,
};

/// The differences between two specs of a namespace: `setting: before -> after`, one line per setting.
pub fn differences(before: &NamespaceSpec, after: &NamespaceSpec) -> Vec<String> {
    differences_between(settings_of(before), settings_of(after))
}

/// The differences between a dataset and the settings that a namespace wants for it: `setting: dataset -> wanted`.
pub(super) fn dataset_differences(dataset: &DatasetSettings, wanted: &DatasetSettings) -> Vec<String> {
    differences_between(dataset_settings_of(dataset), dataset_settings_of(wanted))
}

/// The differences that a live namespace does not allow.
pub(super) fn fixed_differences(before: &NamespaceSpec, after: &NamespaceSpec) -> Vec<String> {
    let type_is_fixed =
        (before.counter_type == CounterType::BestEffort) != (after.counter_type == CounterType::BestEffort);
    let is_fixed = |path: &str| match path {
        "counter_type" => type_is_fixed,
        "temporality" | "on_new_epoch" => true,
        _ => path.starts_with("storage."), // all other settings may change, or belong to the dataset
    };
    let fixed = |spec| settings_of(spec).into_iter().filter(|setting| is_fixed(setting.path)).collect();
    differences_between(fixed(before), fixed(after))
}

/// A counter type as the protocol writes it, without its prefix.
pub fn counter_type_text(counter_type: CounterType) -> &'static str {
    match counter_type {
        CounterType::BestEffort => "BEST_EFFORT",
        CounterType::Eventual => "EVENTUAL",
        CounterType::Accurate => "ACCURATE",
    }
}

/// The plain settings of a group as texts.
trait SettingTexts {
    fn texts(&self) -> Vec<SettingText>;
}

macro_rules! texts {
    ($settings:ident, $draft:ident, $path:ident: $($(#[$doc:meta])* $field:ident: $type:ty = $default:expr;)*) => {
        impl SettingTexts for $settings {
            fn texts(&self) -> Vec<SettingText> {
                vec![$(setting(concat!(stringify!($path), ".", stringify!($field)), self.$field),)*]
            }
        }
    };
}
namespace_settings!(partition texts);
namespace_settings!(rollup texts);

fn settings_of(spec: &NamespaceSpec) -> Vec<SettingText> {
    let mut settings = vec![
        setting("description", format!("{:?}", spec.description)),
        setting("counter_type", counter_type_text(spec.counter_type)),
        setting("temporality", temporality_text(spec.temporality)),
        setting("on_new_epoch", spec.on_new_epoch.map_or("none", on_new_epoch_text)),
        setting("ttl", spec.ttl),
        setting("counter_cardinality", cardinality_text(spec.cardinality)),
        setting("storage.cache_cluster", &spec.storage.cache_cluster),
        setting("storage.rollup_cluster", &spec.storage.rollup_cluster),
        setting("storage.event_cluster", &spec.storage.event_cluster),
        setting("storage.dataset", &spec.storage.dataset),
    ];
    settings.extend(spec.partition.texts());
    settings.push(setting("hot_counters", hot_text(&spec.hot_counters)));
    settings.extend(spec.rollup.texts());
    settings.push(setting("series", series_text(&spec.series)));
    settings.extend(dataset_settings_of(&spec.dataset));
    settings
}

fn dataset_settings_of(dataset: &DatasetSettings) -> Vec<SettingText> {
    vec![
        setting("dataset.slice_width", dataset.slice_width()),
        setting("dataset.close_after", dataset.close_after),
        setting("dataset.delete_after", dataset.delete_after),
        setting("dataset.accept_limit", dataset.accept_limit),
        setting("dataset.future_limit", dataset.future_limit),
        setting("dataset.export_before_drop", dataset.export_before_drop),
    ]
}

fn temporality_text(temporality: Temporality) -> &'static str {
    match temporality {
        Temporality::Delta => "DELTA",
        Temporality::Cumulative => "CUMULATIVE",
    }
}

fn on_new_epoch_text(on_new_epoch: OnNewEpoch) -> &'static str {
    match on_new_epoch {
        OnNewEpoch::Add => "ADD",
        OnNewEpoch::Replace => "REPLACE",
    }
}

fn cardinality_text(cardinality: Cardinality) -> &'static str {
    match cardinality {
        Cardinality::Low => "LOW",
        Cardinality::Medium => "MEDIUM",
        Cardinality::High => "HIGH",
    }
}

fn hot_text(counters: &HotCounters) -> String {
    if counters.is_empty() {
        return "none".to_owned();
    }
    let widths = counters.iter().map(|hot| format!("{} {}", hot.counter_name.as_str(), hot.buckets_per_id));
    widths.collect::<Vec<_>>().join(", ")
}

fn series_text(series: &[SeriesSettings]) -> String {
    if series.is_empty() {
        return "none".to_owned();
    }
    let steps = series.iter().map(|one| format!("{}s kept {}", one.step_seconds, duration_text(one.keep)));
    steps.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use tallystone_domain::counter::{CounterName, NamespaceName};
    use tallystone_domain::namespace::HotCounter;

    fn spec() -> NamespaceSpec {
        NamespaceSpec::with_defaults(NamespaceName::new("shop").expect("a valid name"))
    }

    /// Changes every setting; the destructuring breaks the build when the spec grows.
    fn all_changed() -> NamespaceSpec {
        let other = NamespaceName::new("other").expect("a valid name");
        let mut spec = spec();
        let NamespaceSpec {
            name: _,
            description,
            counter_type,
            temporality,
            on_new_epoch,
            ttl,
            cardinality,
            storage,
            dataset,
            partition,
            hot_counters,
            rollup,
            series,
        } = &mut spec;
        *description = "x".to_owned();
        *counter_type = CounterType::BestEffort;
        *temporality = Temporality::Cumulative;
        *on_new_epoch = Some(OnNewEpoch::Replace);
        *ttl = Some(Duration::from_millis(10_500));
        *cardinality = Cardinality::High;
        storage.cache_cluster = other.clone();
        storage.rollup_cluster = other.clone();
        storage.event_cluster = other.clone();
        storage.dataset = other;
        dataset.seconds_per_slice += 10;
        dataset.close_after += Duration::from_secs(1);
        dataset.delete_after += Duration::from_secs(1);
        dataset.accept_limit += Duration::from_secs(1);
        dataset.future_limit += Duration::from_secs(1);
        dataset.export_before_drop = true;
        partition.buckets_per_id += 1;
        partition.seconds_per_bucket += 10;
        let hot = |name| HotCounter { counter_name: CounterName::new(name).expect("valid"), buckets_per_id: 16 };
        *hot_counters = [hot("b"), hot("a")].into_iter().collect();
        rollup.num_queues += 8;
        rollup.coalesce_ms += 1;
        rollup.capacity_bytes += 1;
        rollup.rollup_batch_count += 1;
        series.push(SeriesSettings { step_seconds: 60, keep: Duration::from_secs(3_600) });
        spec
    }

    #[test]
    fn every_setting_that_changes_is_told() {
        let lines = differences(&spec(), &all_changed());
        assert_eq!(lines.len(), 24, "{lines:#?}");
        for line in [
            "rollup.num_queues: 8 -> 16",
            "ttl: none -> 10.5s",
            "counter_type: EVENTUAL -> BEST_EFFORT",
            "series: none -> 60s kept 3600s",
            "hot_counters: none -> a 16, b 16",
        ] {
            assert!(lines.iter().any(|known| known == line), "{line} is missing of {lines:#?}");
        }
        assert!(differences(&spec(), &spec()).is_empty());
    }

    #[test]
    fn best_effort_is_the_only_type_that_is_fixed() {
        let mut accurate = spec();
        accurate.counter_type = CounterType::Accurate;
        assert!(fixed_differences(&spec(), &accurate).is_empty());
        assert_eq!(fixed_differences(&spec(), &all_changed()).len(), 7);
    }
}
