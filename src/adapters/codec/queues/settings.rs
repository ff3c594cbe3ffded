//! Encodings of the rows that a shard has once: its header and its settings. Also the row of a queue.

use prost::Message as _;

use super::counts::{counts_from, counts_of};
use super::{CorruptValue, decode, duration, micros, text_of};
use tallystone_domain::limits::{METADATA_BYTES_MAX, PAYLOAD_BYTES_MAX};
use tallystone_domain::queue::Settings;
use tallystone_domain::queue::filter::ShapeKeys;
use tallystone_domain::queue::index::dedupe_index::Untracked;
use tallystone_domain::queue::setup::settings::{
    Exclusivity, HistoryKept, IdReuse, MessageRetryPolicy, PriorityClass, Retention,
};
use tallystone_domain::queue::shard::restore::ShardHeader;
use tallystone_domain::time::Timestamp;
use tallystone_proto::internal::v1::{
    StoredExclusivity, StoredPriorityClass, StoredQueueHeader, StoredQueueSettings, StoredQueueShards,
    StoredRetryPolicy, StoredShape, StoredShapeFill, StoredUntracked,
};

/// Version of the formats of a shard.
const FORMAT: u32 = 1;
const SETTINGS: &str = "queue settings";

/// Encodes the header of a shard; its number is in its key.
pub fn encode_header(header: &ShardHeader) -> Vec<u8> {
    let ShardHeader {
        number: _,
        epoch,
        clock,
        sequence,
        serial,
        answers_floor,
        answers_untracked,
        enqueue_blocked,
        dequeue_blocked,
        moved_at,
        shapes_filled,
        deleted,
        shortened_through,
        counts,
        counted_key_sets,
    } = header;
    StoredQueueHeader {
        format: FORMAT,
        epoch: *epoch,
        clock: (*clock != Timestamp::MIN).then(|| clock.micros()),
        sequence: *sequence,
        serial: *serial,
        answers_floor: answers_floor.map(Timestamp::micros),
        answers_untracked: answers_untracked.iter().map(untracked_of).collect(),
        enqueue_blocked: enqueue_blocked.as_deref().map(str::to_owned),
        dequeue_blocked: dequeue_blocked.as_deref().map(str::to_owned),
        deleted: *deleted,
        shortened_through: *shortened_through,
        moved_at: (*moved_at != Timestamp::MIN).then(|| moved_at.micros()),
        shapes_filled: shapes_filled.iter().map(|through| StoredShapeFill { through: *through }).collect(),
        counts: Some(counts_of(counts)),
        counted_key_sets: counted_key_sets.iter().map(|keys| StoredShape { keys: texts_of(keys) }).collect(),
    }
    .encode_to_vec()
}

pub fn decode_header(number: u32, bytes: &[u8]) -> Result<ShardHeader, CorruptValue> {
    const WHAT: &str = "queue header";
    let stored: StoredQueueHeader = decode(WHAT, bytes)?;
    if stored.format != FORMAT {
        return Err(CorruptValue::new(WHAT, format!("format {}; this version reads format {FORMAT}", stored.format)));
    }
    Ok(ShardHeader {
        number,
        epoch: stored.epoch,
        clock: stored.clock.map_or(Timestamp::MIN, Timestamp::from_micros),
        sequence: stored.sequence,
        serial: stored.serial,
        answers_floor: stored.answers_floor.map(Timestamp::from_micros),
        answers_untracked: stored.answers_untracked.iter().map(untracked_from).collect(),
        enqueue_blocked: stored.enqueue_blocked.map(Into::into),
        dequeue_blocked: stored.dequeue_blocked.map(Into::into),
        moved_at: stored.moved_at.map_or(Timestamp::MIN, Timestamp::from_micros),
        shapes_filled: stored.shapes_filled.into_iter().map(|shape| shape.through).collect(),
        deleted: stored.deleted,
        shortened_through: stored.shortened_through,
        counts: Box::new(counts_from(stored.counts.ok_or_else(|| CorruptValue::new(WHAT, "no counts"))?)?),
        counted_key_sets: stored.counted_key_sets.into_iter().map(|set| texts_from(set.keys)).collect(),
    })
}

fn untracked_of(dropped: &Untracked) -> StoredUntracked {
    let Untracked { through, before } = *dropped;
    StoredUntracked { through, before: before.micros() }
}

fn untracked_from(stored: &StoredUntracked) -> Untracked {
    Untracked { through: stored.through, before: Timestamp::from_micros(stored.before) }
}

fn texts_of(texts: &[Box<str>]) -> Vec<String> {
    texts.iter().map(ToString::to_string).collect()
}

fn texts_from(texts: Vec<String>) -> Box<[Box<str>]> {
    texts.into_iter().map(Into::into).collect()
}

/// Encodes the settings of a shard, with their version.
pub fn encode_settings(settings: &Settings, version: u64) -> Vec<u8> {
    StoredQueueSettings { version, ..settings_of(settings) }.encode_to_vec()
}

/// Decodes the settings of a shard, with their version.
pub fn decode_settings(bytes: &[u8]) -> Result<(Settings, u64), CorruptValue> {
    let stored: StoredQueueSettings = decode(SETTINGS, bytes)?;
    let version = stored.version;
    Ok((settings_from(stored)?, version))
}

/// Converts settings to their stored form.
pub fn settings_of(settings: &Settings) -> StoredQueueSettings {
    let MessageRetryPolicy { initial, factor_percent, max, jitter_percent } = settings.retry;
    let Retention { completed, canceled, errored } = settings.retention;
    let shape = |keys: &ShapeKeys| StoredShape { keys: keys.iter().map(str::to_owned).collect() };
    StoredQueueSettings {
        default_lease: micros(settings.default_lease),
        max_run_time: micros(settings.max_run_time),
        default_invisibility: micros(settings.default_invisibility),
        default_attempts: settings.default_attempts,
        retry: Some(StoredRetryPolicy { initial: micros(initial), factor_percent, max: micros(max), jitter_percent }),
        default_ttl: settings.default_ttl.map(micros),
        completed_kept: micros(completed),
        canceled_kept: micros(canceled),
        errored_kept: micros(errored),
        dedupe_window: micros(settings.dedupe_window),
        dedupe_max_bytes: settings.dedupe_max_bytes as u64,
        quota_messages: settings.quota_messages,
        quota_bytes: settings.quota_bytes,
        payload_max_bytes: Some(settings.payload_max_bytes),
        metadata_max_bytes: Some(settings.metadata_max_bytes),
        classes: settings.classes.iter().map(class_of).collect(),
        exclusivity: settings.exclusivity.as_ref().map(exclusivity_of),
        shapes: settings.shapes.iter().map(shape).collect(),
        count_by: texts_of(&settings.count_by),
        count_by_values_max: Some(settings.count_by_values_max),
        history: match settings.history {
            HistoryKept::All => 0,
            HistoryKept::Nothing => 1,
        },
        reuse_ids: match settings.reuse_ids {
            IdReuse::AfterWindow => 0,
            IdReuse::WhenOver => 1,
        },
        version: 0,
    }
}

/// Converts settings from their stored form.
pub fn settings_from(stored: StoredQueueSettings) -> Result<Settings, CorruptValue> {
    let retry = stored.retry.ok_or_else(|| CorruptValue::new(SETTINGS, "no retry policy"))?;
    Ok(Settings {
        default_lease: duration(stored.default_lease),
        max_run_time: duration(stored.max_run_time),
        default_invisibility: duration(stored.default_invisibility),
        default_attempts: stored.default_attempts,
        retry: MessageRetryPolicy {
            initial: duration(retry.initial),
            factor_percent: retry.factor_percent,
            max: duration(retry.max),
            jitter_percent: retry.jitter_percent,
        },
        default_ttl: stored.default_ttl.map(duration),
        retention: Retention {
            completed: duration(stored.completed_kept),
            canceled: duration(stored.canceled_kept),
            errored: duration(stored.errored_kept),
        },
        dedupe_window: duration(stored.dedupe_window),
        dedupe_max_bytes: usize::try_from(stored.dedupe_max_bytes).unwrap_or(usize::MAX),
        quota_messages: stored.quota_messages,
        quota_bytes: stored.quota_bytes,
        // Older settings lack the field: all queues had the same limit then.
        payload_max_bytes: stored.payload_max_bytes.unwrap_or(PAYLOAD_BYTES_MAX),
        metadata_max_bytes: stored.metadata_max_bytes.unwrap_or(METADATA_BYTES_MAX),
        classes: stored.classes.into_iter().map(class_from).collect(),
        exclusivity: stored.exclusivity.map(exclusivity_from),
        shapes: stored.shapes.iter().map(shape_from).collect::<Result<_, _>>()?,
        count_by: texts_from(stored.count_by).into(),
        count_by_values_max: stored.count_by_values_max.unwrap_or_else(|| Settings::default().count_by_values_max),
        history: match stored.history {
            0 => HistoryKept::All,
            1 => HistoryKept::Nothing,
            other => return Err(CorruptValue::new(SETTINGS, format!("history {other}"))),
        },
        reuse_ids: match stored.reuse_ids {
            0 => IdReuse::AfterWindow,
            1 => IdReuse::WhenOver,
            other => return Err(CorruptValue::new(SETTINGS, format!("a reuse of ids {other}"))),
        },
    })
}

fn exclusivity_of(exclusivity: &Exclusivity) -> StoredExclusivity {
    let Exclusivity { key, max_in_flight_per_value, strict_order_per_value } = exclusivity;
    StoredExclusivity {
        key: (**key).to_owned(),
        max_in_flight_per_value: *max_in_flight_per_value,
        strict_order_per_value: *strict_order_per_value,
    }
}

fn exclusivity_from(stored: StoredExclusivity) -> Exclusivity {
    let StoredExclusivity { key, max_in_flight_per_value, strict_order_per_value } = stored;
    Exclusivity { key: key.into(), max_in_flight_per_value, strict_order_per_value }
}

fn shape_from(stored: &StoredShape) -> Result<ShapeKeys, CorruptValue> {
    let keys = ShapeKeys::new(stored.keys.iter().map(String::as_str));
    keys.map_err(|_| CorruptValue::new(SETTINGS, "a filter shape of an illegal form"))
}

fn class_of(class: &PriorityClass) -> StoredPriorityClass {
    let PriorityClass { name, offset_ms, tag } = class;
    let tag = tag.as_ref().map(|(key, value)| text_of(key, value));
    StoredPriorityClass { name: (**name).to_owned(), offset_ms: *offset_ms, tag }
}

fn class_from(stored: StoredPriorityClass) -> PriorityClass {
    let tag = stored.tag.map(|tag| (tag.key.into(), tag.value.into()));
    PriorityClass { name: stored.name.into(), offset_ms: stored.offset_ms, tag }
}

/// The row of a queue that was not dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueRow {
    /// The number of its shards.
    pub shards: u32,
    /// The time of their creation.
    pub created: Timestamp,
}

/// Encodes the row of a queue; `None` once it was dropped.
pub fn encode_queue(row: Option<QueueRow>) -> Vec<u8> {
    StoredQueueShards {
        shards: row.map_or(0, |row| row.shards),
        dropped: row.is_none(),
        created: row.map_or(0, |row| row.created.micros()),
    }
    .encode_to_vec()
}

/// Decodes the row of a queue.
pub fn decode_queue(bytes: &[u8]) -> Result<Option<QueueRow>, CorruptValue> {
    let StoredQueueShards { shards, dropped, created } = decode("queue", bytes)?;
    Ok((!dropped).then_some(QueueRow { shards, created: Timestamp::from_micros(created) }))
}
