//! Encodings of stored counter values: protobuf by `stored.proto`, the same on every engine.
//!
//! Encoding never fails. Decoding returns `CorruptValue` for a value that no encoder wrote: an unknown kind, a
//! provenance that is too long, a missing part. Only values are encoded here; keys and rows belong to each engine.
//! Catalog values are in `catalog`, values of shared caches in `count`, values of fleets in `fleet`, values of queues
//! in `queues`, rules in `rules`, API keys in `keys`, experiments in `experiments`; `entries` has what the last two
//! have in common.

pub mod catalog;
pub mod count;
pub mod entries;
pub mod experiments;
mod fleet;
pub mod keys;
pub mod queues;
pub mod rules;

use prost::Message;

pub use fleet::{decode_beat, decode_sealed, encode_beat, encode_sealed};

use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Change, DatasetId, EventId, EventKey, NamespaceId, Provenance};
use tallystone_domain::rollup::{
    BucketRecord, Checkpoint, CheckpointWriter, CountAt, SliceStatus, SourceTotal, SourceTotals, StepSum, TimeSlice,
};
use tallystone_ports::{StoreError, StoreErrorKind};
use tallystone_proto::internal::v1::{
    StoredBucket, StoredCheckpoint, StoredCountAt, StoredEvent, StoredPair, StoredSource, StoredStep, StoredTimeSlice,
    StoredWide,
};

/// A stored value that no encoder of this project wrote.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a stored {what} cannot be read: {detail}")]
pub struct CorruptValue {
    what: &'static str,
    detail: String,
}

impl CorruptValue {
    /// Creates the error for a kind of value, with the fault found.
    pub fn new(what: &'static str, detail: impl Into<String>) -> Self {
        Self { what, detail: detail.into() }
    }

    /// Converts to the store error of a read.
    pub fn into_store_error(self, op: &'static str) -> StoreError {
        StoreError::not_applied(StoreErrorKind::Corrupt, op).with_source(self)
    }
}

/// Encodes the value cell of an event: its immutable content without the key.
pub fn encode_event(change: Change, provenance: &Provenance) -> Vec<u8> {
    StoredEvent {
        kind: change.code(),
        delta: change.delta(),
        provenance: provenance.as_str().as_bytes().to_vec(),
        region: String::new(),
    }
    .encode_to_vec()
}

/// Decodes the value cell of an event.
pub fn decode_event(bytes: &[u8]) -> Result<(Change, Provenance), CorruptValue> {
    const WHAT: &str = "event";
    let stored: StoredEvent = decode(WHAT, bytes)?;
    let change = Change::from_code(stored.kind, stored.delta)
        .ok_or_else(|| CorruptValue::new(WHAT, format!("kind {}", stored.kind)))?;
    let text = std::str::from_utf8(&stored.provenance).map_err(|error| CorruptValue::new(WHAT, error.to_string()))?;
    let provenance = Provenance::stored(text).map_err(|reject| CorruptValue::new(WHAT, reject.message))?;
    Ok((change, provenance))
}

pub fn encode_checkpoint(checkpoint: &Checkpoint) -> Vec<u8> {
    checkpoint_of(checkpoint).encode_to_vec()
}

pub fn decode_checkpoint(bytes: &[u8]) -> Result<Checkpoint, CorruptValue> {
    checkpoint_from(decode(CHECKPOINT, bytes)?)
}

const CHECKPOINT: &str = "checkpoint";

fn checkpoint_of(checkpoint: &Checkpoint) -> StoredCheckpoint {
    StoredCheckpoint {
        count: Some(wide_of(checkpoint.count)),
        as_of: checkpoint.as_of.micros(),
        clear: checkpoint.clear.as_ref().map(pair_of),
        last_event_time: checkpoint.last_event_time.map(Timestamp::micros),
        open_bucket: checkpoint.open_bucket.as_ref().map(bucket_of),
        open_steps: checkpoint.open_steps.iter().map(step_of).collect(),
        repairs: checkpoint.repairs,
        sources: checkpoint.sources.iter().map(|(source, total)| source_of(source, total)).collect(),
        gone: false,
        rolled_after_us: checkpoint
            .writer
            .as_ref()
            .map(|writer| writer.at.micros().wrapping_sub(checkpoint.as_of.micros())),
        rolled_by: checkpoint
            .writer
            .as_ref()
            .and_then(|writer| writer.server.as_deref())
            .unwrap_or_default()
            .to_owned(),
    }
}

fn checkpoint_from(stored: StoredCheckpoint) -> Result<Checkpoint, CorruptValue> {
    const WHAT: &str = CHECKPOINT;
    let sources = stored.sources.into_iter().map(source_from).collect::<Result<_, _>>()?;
    let writer = stored.rolled_after_us.map(|after| CheckpointWriter {
        at: Timestamp::from_micros(stored.as_of.wrapping_add(after)),
        server: Some(stored.rolled_by).filter(|server| !server.is_empty()).map(Into::into),
    });
    Ok(Checkpoint {
        count: wide_from(WHAT, stored.count)?,
        as_of: Timestamp::from_micros(stored.as_of),
        clear: stored.clear.map(|pair| pair_from(WHAT, pair)).transpose()?,
        last_event_time: stored.last_event_time.map(Timestamp::from_micros),
        open_bucket: stored.open_bucket.map(bucket_from).transpose()?,
        open_steps: stored.open_steps.into_iter().map(step_from).collect::<Result<_, _>>()?,
        repairs: stored.repairs,
        sources,
        writer,
    })
}

/// Encodes the record of a time bucket.
pub fn encode_bucket(bucket: &BucketRecord) -> Vec<u8> {
    bucket_of(bucket).encode_to_vec()
}

/// Decodes the record of a time bucket.
pub fn decode_bucket(bytes: &[u8]) -> Result<BucketRecord, CorruptValue> {
    bucket_from(decode("bucket record", bytes)?)
}

/// Encodes a step of a series.
pub fn encode_step(step: &StepSum) -> Vec<u8> {
    step_of(step).encode_to_vec()
}

/// Decodes a step of a series.
pub fn decode_step(bytes: &[u8]) -> Result<StepSum, CorruptValue> {
    step_from(decode("series step", bytes)?)
}

/// Encodes the key of an event, for a clear register.
pub fn encode_key(key: &EventKey) -> Vec<u8> {
    pair_of(key).encode_to_vec()
}

pub fn decode_key(bytes: &[u8]) -> Result<EventKey, CorruptValue> {
    const WHAT: &str = "event key";
    pair_from(WHAT, decode(WHAT, bytes)?)
}

/// Encodes the row of a time slice.
pub fn encode_slice(slice: &TimeSlice) -> Vec<u8> {
    StoredTimeSlice {
        dataset_id: slice.dataset.0,
        slice_start: slice.start.micros(),
        slice_end: slice.end.micros(),
        status: status_code(slice.status),
        versions: slice.versions.iter().map(|(namespace, version)| (namespace.0, *version)).collect(),
    }
    .encode_to_vec()
}

/// Decodes the row of a time slice.
pub fn decode_slice(bytes: &[u8]) -> Result<TimeSlice, CorruptValue> {
    const WHAT: &str = "time slice";
    let stored: StoredTimeSlice = decode(WHAT, bytes)?;
    let status =
        status_from(stored.status).ok_or_else(|| CorruptValue::new(WHAT, format!("status {}", stored.status)))?;
    if stored.slice_start >= stored.slice_end {
        return Err(CorruptValue::new(WHAT, format!("from {} to {}", stored.slice_start, stored.slice_end)));
    }
    Ok(TimeSlice {
        dataset: DatasetId(stored.dataset_id),
        start: Timestamp::from_micros(stored.slice_start),
        end: Timestamp::from_micros(stored.slice_end),
        status,
        versions: stored.versions.into_iter().map(|(namespace, version)| (NamespaceId(namespace), version)).collect(),
    })
}

fn decode<M: Message + Default>(what: &'static str, bytes: &[u8]) -> Result<M, CorruptValue> {
    M::decode(bytes).map_err(|error| CorruptValue::new(what, error.to_string()))
}

fn wide_of(value: i128) -> StoredWide {
    // The two halves of the two's complement; the casts truncate on purpose.
    StoredWide { high: (value >> 64) as i64, low: value as u64 }
}

fn wide_from(what: &'static str, stored: Option<StoredWide>) -> Result<i128, CorruptValue> {
    let stored = stored.ok_or_else(|| CorruptValue::new(what, "a number is missing"))?;
    Ok(i128::from(stored.high) << 64 | i128::from(stored.low))
}

fn pair_of(key: &EventKey) -> StoredPair {
    StoredPair { event_time: key.time.micros(), event_id: key.id.to_bytes() }
}

fn pair_from(what: &'static str, stored: StoredPair) -> Result<EventKey, CorruptValue> {
    let id = EventId::from_bytes(&stored.event_id)
        .ok_or_else(|| CorruptValue::new(what, "an event id of an unknown kind"))?;
    Ok(EventKey { time: Timestamp::from_micros(stored.event_time), id })
}

fn bucket_of(bucket: &BucketRecord) -> StoredBucket {
    StoredBucket {
        bucket_start: bucket.start.micros(),
        rows: bucket.rows,
        sum: Some(wide_of(bucket.sum)),
        clear: bucket.clear.as_ref().map(pair_of),
        digest: bucket.digest,
    }
}

fn bucket_from(stored: StoredBucket) -> Result<BucketRecord, CorruptValue> {
    const WHAT: &str = "bucket record";
    Ok(BucketRecord {
        start: Timestamp::from_micros(stored.bucket_start),
        rows: stored.rows,
        sum: wide_from(WHAT, stored.sum)?,
        clear: stored.clear.map(|pair| pair_from(WHAT, pair)).transpose()?,
        digest: stored.digest,
    })
}

fn step_of(step: &StepSum) -> StoredStep {
    StoredStep {
        step_seconds: step.step_seconds,
        step_start: step.start.micros(),
        sum: Some(wide_of(step.sum)),
        value: Some(wide_of(step.value)),
        last_event_time: step.last_event_time.micros(),
        before: step
            .before
            .map(|before| StoredCountAt { value: Some(wide_of(before.value)), event_time: before.time.micros() }),
    }
}

fn step_from(stored: StoredStep) -> Result<StepSum, CorruptValue> {
    const WHAT: &str = "series step";
    if stored.step_seconds == 0 {
        return Err(CorruptValue::new(WHAT, "a step of 0 s"));
    }
    Ok(StepSum {
        step_seconds: stored.step_seconds,
        start: Timestamp::from_micros(stored.step_start),
        sum: wide_from(WHAT, stored.sum)?,
        value: wide_from(WHAT, stored.value)?,
        last_event_time: Timestamp::from_micros(stored.last_event_time),
        before: stored.before.map(count_at_from).transpose()?,
    })
}

fn count_at_from(stored: StoredCountAt) -> Result<CountAt, CorruptValue> {
    Ok(CountAt { value: wide_from("count", stored.value)?, time: Timestamp::from_micros(stored.event_time) })
}

fn source_of(source: &str, totals: &SourceTotals) -> StoredSource {
    StoredSource {
        source: source.as_bytes().to_vec(),
        earlier: totals.earlier.iter().map(|total| total_of(*total)).collect(),
        settled: (totals.settled != 0).then(|| wide_of(totals.settled)),
        ..total_of(totals.newest)
    }
}

fn total_of(total: SourceTotal) -> StoredSource {
    let SourceTotal { epoch, serial, total, time } = total;
    StoredSource { epoch, serial, total, event_time: time.micros(), ..StoredSource::default() }
}

fn source_from(stored: StoredSource) -> Result<(Box<str>, SourceTotals), CorruptValue> {
    let newest = total_from(&stored);
    let earlier = stored.earlier.iter().map(total_from).collect();
    let settled = stored.settled.map_or(Ok(0), |settled| wide_from("source", Some(settled)))?;
    let source = String::from_utf8(stored.source).map_err(|error| CorruptValue::new("source", error.to_string()))?;
    Ok((source.into(), SourceTotals { newest, earlier, settled }))
}

fn total_from(stored: &StoredSource) -> SourceTotal {
    let time = Timestamp::from_micros(stored.event_time);
    SourceTotal { epoch: stored.epoch, serial: stored.serial, total: stored.total, time }
}

fn status_code(status: SliceStatus) -> u32 {
    match status {
        SliceStatus::Future => 1,
        SliceStatus::Open => 2,
        SliceStatus::Closed => 3,
        SliceStatus::Dropped => 4,
    }
}

fn status_from(code: u32) -> Option<SliceStatus> {
    match code {
        1 => Some(SliceStatus::Future),
        2 => Some(SliceStatus::Open),
        3 => Some(SliceStatus::Closed),
        4 => Some(SliceStatus::Dropped),
        // No encoder writes any other number.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> impl Strategy<Value = EventKey> {
        let id = prop_oneof![
            any::<[u8; 16]>().prop_map(EventId::Uuid),
            "[a-z]{0,63}".prop_map(|token| EventId::text(&token)),
            ("[a-z]{1,40}", any::<u64>(), any::<u64>())
                .prop_map(|(source, epoch, serial)| EventId::total(&source, epoch, serial)),
        ];
        (any::<i64>(), id).prop_map(|(micros, id)| EventKey { time: Timestamp::from_micros(micros), id })
    }

    fn bucket() -> impl Strategy<Value = BucketRecord> {
        (any::<i64>(), any::<u64>(), any::<i128>(), proptest::option::of(key()), any::<u64>()).prop_map(
            |(start, rows, sum, clear, digest)| BucketRecord {
                start: Timestamp::from_micros(start),
                rows,
                sum,
                clear,
                digest,
            },
        )
    }

    fn step() -> impl Strategy<Value = StepSum> {
        let count_at = || {
            (any::<i128>(), any::<i64>())
                .prop_map(|(value, micros)| CountAt { value, time: Timestamp::from_micros(micros) })
        };
        (1..=u32::MAX, any::<i64>(), any::<i128>(), count_at(), proptest::option::of(count_at())).prop_map(
            |(step_seconds, start, sum, last, before)| StepSum {
                step_seconds,
                start: Timestamp::from_micros(start),
                sum,
                value: last.value,
                last_event_time: last.time,
                before,
            },
        )
    }

    fn source() -> impl Strategy<Value = (Box<str>, SourceTotals)> {
        let total = || {
            (any::<u64>(), any::<u64>(), any::<i64>(), any::<i64>()).prop_map(|(epoch, serial, total, time)| {
                SourceTotal { epoch, serial, total, time: Timestamp::from_micros(time) }
            })
        };
        let settled = prop_oneof![Just(0), any::<i128>()];
        ("[a-z]{1,40}", total(), proptest::collection::vec(total(), 0..4), settled)
            .prop_map(|(source, newest, earlier, settled)| (source.into(), SourceTotals { newest, earlier, settled }))
    }

    prop_compose! {
        fn checkpoint()(
            count in any::<i128>(),
            as_of in any::<i64>(),
            clear in proptest::option::of(key()),
            last in proptest::option::of(any::<i64>()),
            open_bucket in proptest::option::of(bucket()),
            open_steps in proptest::collection::vec(step(), 0..4),
            repairs in any::<u64>(),
            sources in proptest::collection::btree_map(any::<bool>(), source(), 0..3),
            writer in proptest::option::of((any::<i64>(), proptest::option::of("[a-z0-9.:-]{1,40}"))),
        ) -> Checkpoint {
            Checkpoint {
                count,
                as_of: Timestamp::from_micros(as_of),
                clear,
                last_event_time: last.map(Timestamp::from_micros),
                open_bucket,
                open_steps,
                repairs,
                sources: sources.into_values().collect(),
                writer: writer.map(|(at, server)| CheckpointWriter {
                    at: Timestamp::from_micros(at),
                    server: server.map(Into::into),
                }),
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(checkpoint in checkpoint(), key in key(), bucket in bucket(), step in step()) {
            prop_assert_eq!(decode_checkpoint(&encode_checkpoint(&checkpoint)), Ok(checkpoint));
            prop_assert_eq!(decode_key(&encode_key(&key)), Ok(key));
            prop_assert_eq!(decode_bucket(&encode_bucket(&bucket)), Ok(bucket));
            prop_assert_eq!(decode_step(&encode_step(&step)), Ok(step));
        }

        #[test]
        fn an_event_keeps_its_change_and_provenance(
            delta in any::<i64>(), text in "[a-z ]{0,256}", caller in proptest::option::of("[a-z]{1,64}"), kind in 0..4,
        ) {
            let change = match kind {
                0 => Change::Add(delta),
                1 => Change::Clear,
                2 => Change::Void,
                // The range ends with 3.
                _ => Change::Total(delta),
            };
            let claimed = Provenance::new(&text).expect("at most 256 bytes");
            let provenance = claimed.by(caller.as_deref());
            prop_assert_eq!(decode_event(&encode_event(change, &provenance)), Ok((change, provenance)));
        }

        #[test]
        fn a_slice_keeps_its_versions(start in 0..i64::MAX / 2, width in 1..1_000_000_000_i64, version in any::<u64>()) {
            let slice = TimeSlice {
                dataset: DatasetId(7),
                start: Timestamp::from_micros(start),
                end: Timestamp::from_micros(start + width),
                status: SliceStatus::Closed,
                versions: [(NamespaceId(3), version), (NamespaceId(u64::MAX), 1)].into(),
            };
            prop_assert_eq!(decode_slice(&encode_slice(&slice)), Ok(slice));
        }

        #[test]
        fn foreign_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = (decode_event(&bytes), decode_checkpoint(&bytes), decode_key(&bytes), decode_slice(&bytes));
        }
    }

    #[test]
    fn an_empty_cell_is_no_event_and_no_checkpoint() {
        assert!(decode_event(&[]).is_err(), "an event without a kind");
        assert!(decode_checkpoint(&[]).is_err(), "a checkpoint without a count");
        assert!(decode_key(&[]).is_err(), "a key without an id");
        assert!(decode_slice(&[]).is_err(), "a slice without a status");
    }
}
