//! Encodings of stored catalog values: datasets, namespaces, versions of settings, history.
//!
//! Names are validated again when they are read. Settings are not, because an older release may have allowed values
//! that this one would refuse.

use std::time::Duration;

use prost::Message;

use super::{CorruptValue, decode};
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{CounterName, DatasetId, NamespaceId, NamespaceName};
use tallystone_domain::namespace::{
    Cardinality, CounterType, Dataset, DatasetSettings, HotCounter, Namespace, NamespaceSpec, OnNewEpoch,
    RollupSettings, SeriesSettings, Storage, Temporality, TimePartition,
};
use tallystone_ports::NamespaceChange;
use tallystone_proto::internal::v1::{
    StoredDataset, StoredDatasetSettings, StoredHotCounter, StoredNamespace, StoredNamespaceChange,
    StoredNamespaceSpec, StoredSeriesSettings,
};

pub fn encode_dataset(dataset: &Dataset) -> Vec<u8> {
    StoredDataset {
        id: dataset.id.0,
        name: dataset.name.as_str().to_owned(),
        settings: Some(settings_of(&dataset.settings)),
        cluster: dataset.cluster.as_ref().map(ToString::to_string).unwrap_or_default(),
    }
    .encode_to_vec()
}

pub fn decode_dataset(bytes: &[u8]) -> Result<Dataset, CorruptValue> {
    const WHAT: &str = "dataset";
    let stored: StoredDataset = decode(WHAT, bytes)?;
    Ok(Dataset {
        id: DatasetId(stored.id),
        name: name_from(WHAT, &stored.name)?,
        settings: settings_from(WHAT, stored.settings)?,
        cluster: (!stored.cluster.is_empty()).then(|| name_from(WHAT, &stored.cluster)).transpose()?,
    })
}

/// Encodes a live namespace.
pub fn encode_namespace(namespace: &Namespace) -> Vec<u8> {
    StoredNamespace {
        id: namespace.id.0,
        dataset_id: namespace.dataset_id.0,
        version: namespace.version,
        spec: Some(spec_of(&namespace.spec)),
        created: namespace.created.micros(),
        updated: namespace.updated.micros(),
        made_by: namespace.made_by.as_deref().map(str::to_owned),
    }
    .encode_to_vec()
}

/// Decodes a live namespace.
pub fn decode_namespace(bytes: &[u8]) -> Result<Namespace, CorruptValue> {
    const WHAT: &str = "namespace";
    let stored: StoredNamespace = decode(WHAT, bytes)?;
    let spec = stored.spec.ok_or_else(|| CorruptValue::new(WHAT, "its settings are missing"))?;
    Ok(Namespace {
        id: NamespaceId(stored.id),
        dataset_id: DatasetId(stored.dataset_id),
        version: stored.version,
        spec: spec_from(spec)?,
        created: Timestamp::from_micros(stored.created),
        updated: Timestamp::from_micros(stored.updated),
        made_by: stored.made_by.map(Into::into),
    })
}

/// Encodes one version of the settings of a namespace.
pub fn encode_spec(spec: &NamespaceSpec) -> Vec<u8> {
    spec_of(spec).encode_to_vec()
}

/// Decodes one version of the settings of a namespace.
pub fn decode_spec(bytes: &[u8]) -> Result<NamespaceSpec, CorruptValue> {
    spec_from(decode("version of a namespace", bytes)?)
}

/// Encodes an entry of the history.
pub fn encode_change(change: &NamespaceChange) -> Vec<u8> {
    StoredNamespaceChange {
        namespace_id: change.id.0,
        name: change.name.as_str().to_owned(),
        version: change.version,
        time: change.time.micros(),
        actor: change.actor.clone(),
        reason: change.reason.clone(),
        differences: change.differences.clone(),
        spec: change.spec.as_ref().map(spec_of),
    }
    .encode_to_vec()
}

/// Decodes an entry of the history.
pub fn decode_change(bytes: &[u8]) -> Result<NamespaceChange, CorruptValue> {
    const WHAT: &str = "change of a namespace";
    let stored: StoredNamespaceChange = decode(WHAT, bytes)?;
    Ok(NamespaceChange {
        id: NamespaceId(stored.namespace_id),
        name: name_from(WHAT, &stored.name)?,
        version: stored.version,
        time: Timestamp::from_micros(stored.time),
        actor: stored.actor,
        reason: stored.reason,
        differences: stored.differences,
        spec: stored.spec.map(spec_from).transpose()?,
        deletion: (),
    })
}

fn spec_of(spec: &NamespaceSpec) -> StoredNamespaceSpec {
    StoredNamespaceSpec {
        name: spec.name.as_str().to_owned(),
        description: spec.description.clone(),
        counter_type: counter_type_code(spec.counter_type),
        temporality: temporality_code(spec.temporality),
        on_new_epoch: spec.on_new_epoch.map_or(0, on_new_epoch_code),
        ttl_micros: spec.ttl.map(micros_of),
        cardinality: cardinality_code(spec.cardinality),
        cache_cluster: spec.storage.cache_cluster.as_str().to_owned(),
        rollup_cluster: spec.storage.rollup_cluster.as_str().to_owned(),
        event_cluster: spec.storage.event_cluster.as_str().to_owned(),
        dataset: spec.storage.dataset.as_str().to_owned(),
        dataset_settings: Some(settings_of(&spec.dataset)),
        buckets_per_id: spec.partition.buckets_per_id,
        seconds_per_bucket: spec.partition.seconds_per_bucket,
        num_queues: spec.rollup.num_queues,
        coalesce_ms: spec.rollup.coalesce_ms,
        capacity_bytes: spec.rollup.capacity_bytes,
        rollup_batch_count: spec.rollup.rollup_batch_count,
        series: spec.series.iter().map(series_of).collect(),
        hot_counters: spec.hot_counters.iter().map(hot_of).collect(),
    }
}

fn spec_from(stored: StoredNamespaceSpec) -> Result<NamespaceSpec, CorruptValue> {
    const WHAT: &str = "version of a namespace";
    let temporality = kind_from(WHAT, &TEMPORALITIES, temporality_code, stored.temporality)?;
    Ok(NamespaceSpec {
        name: name_from(WHAT, &stored.name)?,
        description: stored.description,
        counter_type: kind_from(WHAT, &COUNTER_TYPES, counter_type_code, stored.counter_type)?,
        temporality,
        on_new_epoch: match (temporality, stored.on_new_epoch) {
            (Temporality::Delta, 0) => None,
            (Temporality::Cumulative, 0) => Some(OnNewEpoch::Replace),
            (Temporality::Delta | Temporality::Cumulative, code) => {
                Some(kind_from(WHAT, &ON_NEW_EPOCH, on_new_epoch_code, code)?)
            }
        },
        ttl: stored.ttl_micros.map(Duration::from_micros),
        cardinality: kind_from(WHAT, &CARDINALITIES, cardinality_code, stored.cardinality)?,
        storage: Storage {
            cache_cluster: name_from(WHAT, &stored.cache_cluster)?,
            rollup_cluster: name_from(WHAT, &stored.rollup_cluster)?,
            event_cluster: name_from(WHAT, &stored.event_cluster)?,
            dataset: name_from(WHAT, &stored.dataset)?,
        },
        dataset: settings_from(WHAT, stored.dataset_settings)?,
        partition: TimePartition {
            buckets_per_id: stored.buckets_per_id,
            seconds_per_bucket: stored.seconds_per_bucket,
        },
        hot_counters: stored.hot_counters.iter().map(|hot| hot_from(WHAT, hot)).collect::<Result<_, _>>()?,
        rollup: RollupSettings {
            num_queues: stored.num_queues,
            coalesce_ms: stored.coalesce_ms,
            capacity_bytes: stored.capacity_bytes,
            rollup_batch_count: stored.rollup_batch_count,
        },
        series: stored.series.iter().map(series_from).collect(),
    })
}

fn settings_of(settings: &DatasetSettings) -> StoredDatasetSettings {
    StoredDatasetSettings {
        seconds_per_slice: settings.seconds_per_slice,
        close_after_micros: micros_of(settings.close_after),
        delete_after_micros: micros_of(settings.delete_after),
        accept_limit_micros: micros_of(settings.accept_limit),
        future_limit_micros: micros_of(settings.future_limit),
        export_before_drop: settings.export_before_drop,
    }
}

fn settings_from(what: &'static str, stored: Option<StoredDatasetSettings>) -> Result<DatasetSettings, CorruptValue> {
    let stored = stored.ok_or_else(|| CorruptValue::new(what, "the settings of the dataset are missing"))?;
    Ok(DatasetSettings {
        seconds_per_slice: stored.seconds_per_slice,
        close_after: Duration::from_micros(stored.close_after_micros),
        delete_after: Duration::from_micros(stored.delete_after_micros),
        accept_limit: Duration::from_micros(stored.accept_limit_micros),
        future_limit: Duration::from_micros(stored.future_limit_micros),
        export_before_drop: stored.export_before_drop,
    })
}

fn series_of(series: &SeriesSettings) -> StoredSeriesSettings {
    StoredSeriesSettings { step_seconds: series.step_seconds, keep_micros: micros_of(series.keep) }
}

fn series_from(stored: &StoredSeriesSettings) -> SeriesSettings {
    SeriesSettings { step_seconds: stored.step_seconds, keep: Duration::from_micros(stored.keep_micros) }
}

fn hot_of(hot: &HotCounter) -> StoredHotCounter {
    StoredHotCounter { counter_name: hot.counter_name.as_str().to_owned(), buckets_per_id: hot.buckets_per_id }
}

fn hot_from(what: &'static str, stored: &StoredHotCounter) -> Result<HotCounter, CorruptValue> {
    let counter_name = CounterName::new(&stored.counter_name);
    let counter_name = counter_name.map_err(|reject| CorruptValue::new(what, reject.message))?;
    Ok(HotCounter { counter_name, buckets_per_id: stored.buckets_per_id })
}

fn name_from(what: &'static str, name: &str) -> Result<NamespaceName, CorruptValue> {
    NamespaceName::new(name).map_err(|reject| CorruptValue::new(what, reject.message))
}

fn micros_of(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

// Stored numbers never change. The matches have no wildcard, so a new kind cannot be forgotten.

fn counter_type_code(counter_type: CounterType) -> u32 {
    match counter_type {
        CounterType::BestEffort => 1,
        CounterType::Eventual => 2,
        CounterType::Accurate => 3,
    }
}

fn temporality_code(temporality: Temporality) -> u32 {
    match temporality {
        Temporality::Delta => 1,
        Temporality::Cumulative => 2,
    }
}

fn on_new_epoch_code(on_new_epoch: OnNewEpoch) -> u32 {
    match on_new_epoch {
        OnNewEpoch::Add => 1,
        OnNewEpoch::Replace => 2,
    }
}

fn cardinality_code(cardinality: Cardinality) -> u32 {
    match cardinality {
        Cardinality::Low => 1,
        Cardinality::Medium => 2,
        Cardinality::High => 3,
    }
}

const COUNTER_TYPES: [CounterType; 3] = [CounterType::BestEffort, CounterType::Eventual, CounterType::Accurate];
const TEMPORALITIES: [Temporality; 2] = [Temporality::Delta, Temporality::Cumulative];
const ON_NEW_EPOCH: [OnNewEpoch; 2] = [OnNewEpoch::Add, OnNewEpoch::Replace];
const CARDINALITIES: [Cardinality; 3] = [Cardinality::Low, Cardinality::Medium, Cardinality::High];

fn kind_from<T: Copy>(what: &'static str, kinds: &[T], code_of: fn(T) -> u32, code: u32) -> Result<T, CorruptValue> {
    let found = kinds.iter().copied().find(|kind| code_of(*kind) == code);
    found.ok_or_else(|| CorruptValue::new(what, format!("kind {code}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> NamespaceSpec {
        let mut spec = NamespaceSpec::with_defaults(NamespaceName::new("shop").expect("a valid name"));
        spec.description = "orders".to_owned();
        spec.ttl = Some(Duration::from_secs(3_600));
        let hot = |name| HotCounter { counter_name: CounterName::new(name).expect("a valid name"), buckets_per_id: 16 };
        spec.hot_counters = [hot("b"), hot("a")].into_iter().collect();
        spec.series = vec![SeriesSettings { step_seconds: 10, keep: Duration::from_secs(86_400) }];
        spec
    }

    #[test]
    fn every_kind_has_its_number() {
        for counter_type in COUNTER_TYPES {
            for temporality in TEMPORALITIES {
                let on_new_epoch = (temporality == Temporality::Cumulative).then_some(OnNewEpoch::Add);
                for cardinality in CARDINALITIES {
                    let spec = NamespaceSpec { counter_type, temporality, on_new_epoch, cardinality, ..spec() };
                    assert_eq!(decode_spec(&encode_spec(&spec)), Ok(spec));
                }
            }
        }
        for code in [0, 4] {
            assert!(kind_from("type", &COUNTER_TYPES, counter_type_code, code).is_err(), "{code} is no kind");
        }
    }

    #[test]
    fn the_catalog_is_read_as_it_was_written() {
        let namespace = Namespace {
            id: NamespaceId(9),
            dataset_id: DatasetId(2),
            version: 5,
            spec: spec(),
            created: Timestamp::from_secs(1),
            updated: Timestamp::from_secs(2),
            made_by: Some("ann".into()),
        };
        let name = namespace.spec.name.clone();
        let mut dataset = Dataset { id: DatasetId(2), name: name.clone(), settings: spec().dataset, cluster: None };
        assert_eq!(decode_dataset(&encode_dataset(&dataset)), Ok(dataset.clone()));
        dataset.cluster = Some(name);
        let mut change = NamespaceChange {
            id: namespace.id,
            name: namespace.spec.name.clone(),
            version: 5,
            time: Timestamp::from_secs(2),
            actor: "ann".to_owned(),
            reason: "because".to_owned(),
            differences: vec!["ttl: none -> 1 h".to_owned()],
            spec: Some(spec()),
            deletion: (),
        };
        assert_eq!(decode_namespace(&encode_namespace(&namespace)), Ok(namespace));
        assert_eq!(decode_dataset(&encode_dataset(&dataset)), Ok(dataset));
        assert_eq!(decode_change(&encode_change(&change)), Ok(change.clone()));
        change.spec = None;
        assert_eq!(decode_change(&encode_change(&change)), Ok(change));
    }

    #[test]
    fn an_empty_cell_is_nothing_of_the_catalog() {
        assert!(decode_namespace(&[]).is_err());
        assert!(decode_dataset(&[]).is_err());
        assert!(decode_change(&[]).is_err());
        assert!(decode_spec(&[]).is_err());
    }
}
