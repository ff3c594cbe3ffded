//! Encodings of the counts of a shard.

use prost::Message as _;

use crate::codec::{CorruptValue, decode};
use tallystone_domain::queue::tally::ShardCounts;
use tallystone_domain::queue::tally::errors::SignatureCounts;
use tallystone_domain::queue::tally::values::ValueCounts;
use tallystone_proto::internal::v1::{StoredShardCounts, StoredSignatureCounts, StoredValueCounts};

/// Converts the counts of a header to their stored form.
pub fn counts_of(counts: &ShardCounts) -> StoredShardCounts {
    let ShardCounts { position, rows, enqueued_bytes, leased_at, completed_at, errored_at, wait, run } = counts;
    StoredShardCounts {
        position: *position,
        rows: rows.into(),
        enqueued_bytes: *enqueued_bytes,
        leased_at: leased_at.into(),
        completed_at: completed_at.into(),
        errored_at: errored_at.into(),
        wait: wait.into(),
        run: run.into(),
    }
}

/// Converts the counts of a header from their stored form.
pub fn counts_from(stored: StoredShardCounts) -> Result<ShardCounts, CorruptValue> {
    const WHAT: &str = "counts of a shard";
    Ok(ShardCounts {
        position: stored.position,
        rows: numbers(WHAT, &stored.rows)?,
        enqueued_bytes: stored.enqueued_bytes,
        leased_at: numbers(WHAT, &stored.leased_at)?,
        completed_at: numbers(WHAT, &stored.completed_at)?,
        errored_at: numbers(WHAT, &stored.errored_at)?,
        wait: numbers(WHAT, &stored.wait)?,
        run: numbers(WHAT, &stored.run)?,
    })
}

/// Encodes the counts of a value, with the position of their last change.
pub fn encode_value_counts((counts, changed_at): &(ValueCounts, u64)) -> Vec<u8> {
    let ValueCounts { depth, flows } = counts;
    StoredValueCounts { depth: depth.into(), flows: flows.into(), changed_at: *changed_at }.encode_to_vec()
}

/// Decodes the counts of a value, with the position of their last change.
pub fn decode_value_counts(bytes: &[u8]) -> Result<(ValueCounts, u64), CorruptValue> {
    const WHAT: &str = "counts of a value";
    let stored: StoredValueCounts = decode(WHAT, bytes)?;
    let counts = ValueCounts { depth: numbers(WHAT, &stored.depth)?, flows: numbers(WHAT, &stored.flows)? };
    Ok((counts, stored.changed_at))
}

/// Encodes the counts of an error signature.
pub fn encode_signature_counts(counts: &SignatureCounts) -> Vec<u8> {
    let SignatureCounts { failed, errored, changed_at } = *counts;
    StoredSignatureCounts { failed, errored, changed_at }.encode_to_vec()
}

/// Decodes the counts of an error signature.
pub fn decode_signature_counts(bytes: &[u8]) -> Result<SignatureCounts, CorruptValue> {
    let StoredSignatureCounts { failed, errored, changed_at } = decode("counts of an error", bytes)?;
    Ok(SignatureCounts { failed, errored, changed_at })
}

/// The numbers of an array. A release that adds rows or steps adds them at the end, so an array may be shorter.
fn numbers<const N: usize>(what: &'static str, stored: &[u64]) -> Result<[u64; N], CorruptValue> {
    let mut numbers = [0; N];
    let known = numbers.get_mut(..stored.len());
    let known = known.ok_or_else(|| CorruptValue::new(what, format!("{} numbers instead of {N}", stored.len())))?;
    known.copy_from_slice(stored);
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_as_they_were_stored() {
        let mut counts = ShardCounts { position: 1 << 47, enqueued_bytes: 7, ..ShardCounts::default() };
        (counts.rows[3], counts.leased_at[7], counts.completed_at[0], counts.errored_at[1]) = (1, 2, 3, 4);
        (counts.wait[15], counts.run[0]) = (5, 6);
        assert_eq!(counts_from(counts_of(&counts)), Ok(counts));
        let value = (ValueCounts { depth: [1, 2, 3, 4], flows: [5, 6, 7, 8] }, 9);
        assert_eq!(decode_value_counts(&encode_value_counts(&value)), Ok(value));
        let signature = SignatureCounts { failed: 1, errored: 2, changed_at: 3 };
        assert_eq!(decode_signature_counts(&encode_signature_counts(&signature)), Ok(signature));
    }

    #[test]
    fn shorter_arrays_are_filled_with_zeros_and_longer_ones_are_refused() {
        let shorter = StoredShardCounts { rows: vec![4, 5], ..StoredShardCounts::default() };
        let read = counts_from(shorter).expect("a shorter array");
        assert_eq!((read.rows[0], read.rows[1], read.rows[2]), (4, 5, 0));
        let longer = StoredShardCounts { run: vec![0; 17], ..StoredShardCounts::default() };
        assert!(counts_from(longer).is_err());
    }
}
