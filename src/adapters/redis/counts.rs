//! The counts of a shard, as the library stores them: whole numbers in one byte string, and hashes by signature and
//! value.

use bytes::Bytes;

use super::packed::PackedReader;
use tallystone_adapters::codec::CorruptValue;
use tallystone_domain::queue::counter_names::CountedValue;
use tallystone_domain::queue::tally::ShardCounts;
use tallystone_domain::queue::tally::errors::SignatureCounts;
use tallystone_domain::queue::tally::values::ValueCounts;

/// The field with the number of signatures, which is no signature.
const OWN_SIGNATURES: &[u8] = b"~own";

/// Reads the counts; whatever lies beyond the end of the string was never counted.
pub fn read_counts(bytes: &[u8], position: u64) -> ShardCounts {
    let (numbers, _) = bytes.as_chunks::<8>();
    let mut numbers = numbers.iter().map(|number| u64::from_be_bytes(*number));
    let mut next = || numbers.next().unwrap_or(0);
    let mut counts = ShardCounts { position, enqueued_bytes: next(), ..ShardCounts::default() };
    counts.leased_at.fill_with(&mut next);
    counts.completed_at.fill_with(&mut next);
    counts.errored_at.fill_with(&mut next);
    counts.wait.fill_with(&mut next);
    counts.run.fill_with(&mut next);
    counts.rows.fill_with(&mut next);
    counts
}

/// The value of a field: `=` and the value itself, or a mark.
fn value_of(field: &[u8]) -> Result<CountedValue, CorruptValue> {
    let corrupt = || CorruptValue::new("counts of a shard", "a field of another form");
    match field {
        b"~none" => Ok(CountedValue::None),
        b"~other" => Ok(CountedValue::Other),
        b"~gone" => Ok(CountedValue::Gone),
        [b'=', own @ ..] => {
            let own = std::str::from_utf8(own).map_err(|_| corrupt())?;
            Ok(CountedValue::Own(own.into()))
        }
        _ => Err(corrupt()),
    }
}

/// Reads the signatures that changed after a position, in their order.
pub fn read_signatures(
    fields: &[Bytes],
    since: Option<u64>,
) -> Result<Vec<(CountedValue, SignatureCounts)>, CorruptValue> {
    let mut found = Vec::new();
    for pair in fields.chunks(2) {
        let [field, counts] = pair else { return Err(CorruptValue::new("signatures", "a field without a value")) };
        if field == OWN_SIGNATURES {
            continue;
        }
        let mut reader = PackedReader::new("counts of a signature", counts);
        let (failed, errored, changed_at) = (reader.whole()?, reader.whole()?, reader.whole()?);
        if changed_at > since.unwrap_or(0) {
            found.push((value_of(field)?, SignatureCounts { failed, errored, changed_at }));
        }
    }
    found.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    Ok(found)
}

/// The position of the last change of a value, which is the last of its numbers.
pub fn value_changed_at(counts: &[u8]) -> Result<u64, CorruptValue> {
    let last = counts.len().saturating_sub(size_of::<f64>());
    PackedReader::new("counts of a value", &counts[last..]).whole()
}

/// Reads the values of a key that changed after a position, in their order. Marks that were never counted are not told.
pub fn read_values(
    key: &str,
    fields: &[Bytes],
    since: Option<u64>,
) -> Result<Vec<(Box<str>, CountedValue, ValueCounts)>, CorruptValue> {
    let mut found = Vec::new();
    for pair in fields.chunks(2) {
        let [field, counts] = pair else { return Err(CorruptValue::new("values", "a field without a value")) };
        let mut reader = PackedReader::new("counts of a value", counts);
        let mut own = ValueCounts::default();
        for depth in &mut own.depth {
            *depth = reader.whole()?;
        }
        for flow in &mut own.flows {
            *flow = reader.whole()?;
        }
        if since.is_none_or(|since| reader.whole().is_ok_and(|changed_at| changed_at > since)) {
            found.push((key.into(), value_of(field)?, own));
        }
    }
    found.sort_unstable_by(|(_, one, _), (_, other, _)| one.cmp(other));
    Ok(found)
}
