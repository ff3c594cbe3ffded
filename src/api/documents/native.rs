//! Our own form: the fields of `tallystone.admin.v1.Namespace`, one table for each namespace.
//!
//! `ns describe -o json` prints such a document. Fields that only the service sets (number, version, times) are
//! recognised and left out of what is asked for. The etag is used.

use std::time::Duration;

use crate::documents::document_table::DocumentTable;
use crate::documents::{DocumentNamespace, agreed_name, reject_at};
use tallystone_domain::Reject;
use tallystone_domain::counter::{CounterName, NamespaceName};
use tallystone_domain::namespace::{
    Cardinality, CounterType, HotCounter, OnNewEpoch, SeriesSettings, Temporality, namespace_settings,
};
use tallystone_engine::namespaces::{
    DatasetDraft, NamespaceDraft, NamespaceEtag, PartitionDraft, RollupDraft, StorageDraft,
};

/// The counter types by name.
pub(super) const COUNTER_TYPES: &[(&str, CounterType)] = &[
    ("BEST_EFFORT", CounterType::BestEffort),
    ("EVENTUAL", CounterType::Eventual),
    ("ACCURATE", CounterType::Accurate),
];

/// The cardinalities by name.
pub(super) const CARDINALITIES: &[(&str, Cardinality)] =
    &[("LOW", Cardinality::Low), ("MEDIUM", Cardinality::Medium), ("HIGH", Cardinality::High)];

const TEMPORALITIES: &[(&str, Temporality)] = &[("DELTA", Temporality::Delta), ("CUMULATIVE", Temporality::Cumulative)];

const ON_NEW_EPOCH: &[(&str, OnNewEpoch)] = &[("ADD", OnNewEpoch::Add), ("REPLACE", OnNewEpoch::Replace)];

/// Fields that only the service sets.
const ANSWERED_ONLY: [&str; 4] = ["id", "version", "create_time", "update_time"];

/// Decodes one namespace.
pub(super) fn read(mut fields: DocumentTable, name: Option<&NamespaceName>) -> Result<DocumentNamespace, Reject> {
    let place = fields.path().to_owned();
    let said = fields.text("name")?;
    let mut draft = NamespaceDraft::of(agreed_name(&place, said, name)?);
    let etag = fields.text("etag")?.filter(|etag| !etag.is_empty());
    let etag = etag.map(|etag| etag.parse::<NamespaceEtag>()).transpose()?;
    draft.description = fields.text("description")?;
    draft.counter_type = fields.word("counter_type", "COUNTER_TYPE_", COUNTER_TYPES)?;
    draft.temporality = fields.word("temporality", "TEMPORALITY_", TEMPORALITIES)?;
    draft.on_new_epoch = fields.word("on_new_epoch", "ON_NEW_EPOCH_", ON_NEW_EPOCH)?;
    draft.ttl = fields.duration("ttl")?;
    draft.cardinality = fields.word("counter_cardinality", "CARDINALITY_", CARDINALITIES)?;
    draft.storage = fields.part("storage", storage)?.unwrap_or_default();
    draft.dataset = fields.part("dataset", dataset)?.unwrap_or_default();
    draft.partition = fields.part("time_partition", time_partition)?.unwrap_or_default();
    // A list that is empty was said, one that is absent was not.
    draft.hot_counters = match fields.has("hot_counters") {
        true => Some(fields.parts("hot_counters", hot_counter)?.into_iter().collect()),
        false => None,
    };
    draft.rollup = fields.part("rollup", rollup)?.unwrap_or_default();
    draft.series = if fields.has("series") { Some(fields.parts("series", series)?) } else { None };
    for answered in ANSWERED_ONLY {
        fields.take(answered);
    }
    fields.refuse_rest()?;
    Ok(DocumentNamespace { draft, etag, unmapped: Vec::new() })
}

fn storage(fields: &mut DocumentTable) -> Result<StorageDraft, Reject> {
    Ok(StorageDraft {
        cache_cluster: named(fields, "cache_cluster")?,
        rollup_cluster: named(fields, "rollup_cluster")?,
        event_cluster: named(fields, "event_cluster")?,
        dataset: named(fields, "dataset")?,
    })
}

fn dataset(fields: &mut DocumentTable) -> Result<DatasetDraft, Reject> {
    Ok(DatasetDraft {
        seconds_per_slice: whole_seconds(fields, "slice_width")?,
        close_after: fields.duration("close_after")?,
        delete_after: fields.duration("delete_after")?,
        accept_limit: fields.duration("accept_limit")?,
        future_limit: fields.duration("future_limit")?,
        export_before_drop: fields.flag("export_before_drop")?,
    })
}

macro_rules! numbers {
    ($settings:ident, $draft:ident, $path:ident: $($(#[$doc:meta])* $field:ident: $type:ty = $default:expr;)*) => {
        fn $path(fields: &mut DocumentTable) -> Result<$draft, Reject> {
            Ok($draft { $($field: fields.whole(stringify!($field))?,)* })
        }
    };
}
namespace_settings!(partition numbers);
namespace_settings!(rollup numbers);

fn hot_counter(fields: &mut DocumentTable) -> Result<HotCounter, Reject> {
    let place = fields.path().to_owned();
    let missing = |field: &str| {
        reject_at(&place, &format!("{field} is missing; a hot counter is {{ counter_name, buckets_per_id }}"))
    };
    let name = fields.text("counter_name")?.ok_or_else(|| missing("counter_name"))?;
    let name_place = fields.path_of("counter_name");
    let counter_name = CounterName::new(&name);
    let counter_name =
        counter_name.map_err(|reject| reject_at(&name_place, reject.message.trim_start_matches("counter name ")))?;
    let buckets_per_id = fields.whole("buckets_per_id")?.ok_or_else(|| missing("buckets_per_id"))?;
    Ok(HotCounter { counter_name, buckets_per_id })
}

fn series(fields: &mut DocumentTable) -> Result<SeriesSettings, Reject> {
    let place = fields.path().to_owned();
    let missing = |field: &str| reject_at(&place, &format!("{field} is missing; a series is {{ step, keep }}"));
    Ok(SeriesSettings {
        step_seconds: whole_seconds(fields, "step")?.ok_or_else(|| missing("step"))?,
        keep: fields.duration("keep")?.ok_or_else(|| missing("keep"))?,
    })
}

/// Takes the name of a cluster or dataset.
pub(super) fn named(fields: &mut DocumentTable, field: &'static str) -> Result<Option<NamespaceName>, Reject> {
    let Some(text) = fields.text(field)?.filter(|text| !text.is_empty()) else { return Ok(None) };
    let name = NamespaceName::new(&text);
    name.map(Some).map_err(|reject| reject_at(&fields.path_of(field), reject.message.trim_start_matches("namespace ")))
}

/// Takes a duration that must be whole seconds.
fn whole_seconds(fields: &mut DocumentTable, field: &'static str) -> Result<Option<u32>, Reject> {
    let Some(duration) = fields.duration(field)? else { return Ok(None) };
    let seconds = u32::try_from(duration.as_secs()).ok();
    let whole = seconds.filter(|seconds| Duration::from_secs(u64::from(*seconds)) == duration);
    whole
        .map(Some)
        .ok_or_else(|| reject_at(&fields.path_of(field), &format!("{duration:?} is not a whole number of seconds")))
}
