//! One line of an export: the fields of `CountEvent` in the protocol's JSON, with the names of namespace and counter.

use serde_json::{Map, Value};

use tallystone_domain::counter::Change;
use tallystone_domain::time::Timestamp;
use tallystone_ports::SliceRow;

/// Appends the line of a row.
pub fn push_line(lines: &mut String, namespace: &str, row: &SliceRow) {
    let event = &row.event;
    let fields = [
        ("namespace", Value::from(namespace)),
        ("counterName", row.counter.name().as_str().into()),
        ("eventTime", time(event.key.time).into()),
        ("token", event.key.id.to_string().into()),
        ("kind", kind(event.change).into()),
        // 64-bit numbers are strings in the protocol's JSON, because many readers support only 53 bits.
        ("delta", event.change.delta().to_string().into()),
        ("provenance", event.provenance.as_str().into()),
    ];
    let object: Map<String, Value> = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    lines.push_str(&Value::Object(object).to_string());
    lines.push('\n');
}

fn kind(change: Change) -> &'static str {
    match change {
        Change::Add(_) => "EVENT_KIND_ADD",
        Change::Clear => "EVENT_KIND_CLEAR",
        Change::Void => "EVENT_KIND_VOID",
        Change::Total(_) => "EVENT_KIND_TOTAL",
    }
}

/// Formats a time as the protocol's JSON does: UTC, with none, three or six digits after the second.
fn time(time: Timestamp) -> String {
    let (second, fraction) = split_second(time);
    match fraction {
        0 => second.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        micros if micros % 1_000 == 0 => {
            format!("{}.{:03}Z", second.strftime("%Y-%m-%dT%H:%M:%S"), micros / 1_000)
        }
        micros => format!("{}.{micros:06}Z", second.strftime("%Y-%m-%dT%H:%M:%S")),
    }
}

/// Formats a whole second in a form that sorts and is safe in file names.
pub fn compact_time(time: Timestamp) -> String {
    split_second(time).0.strftime("%Y%m%dT%H%M%SZ").to_string()
}

/// The whole second of a time, and the microseconds after it. A time beyond the calendar becomes its first or last
/// second.
fn split_second(time: Timestamp) -> (jiff::Timestamp, i64) {
    let seconds = time.micros().div_euclid(1_000_000);
    let within = seconds.clamp(jiff::Timestamp::MIN.as_second(), jiff::Timestamp::MAX.as_second());
    let second = jiff::Timestamp::from_second(within).expect("the second was clamped to the calendar");
    (second, time.micros().rem_euclid(1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_the_protocol_writes_them() {
        for (micros, written) in [
            (0, "1970-01-01T00:00:00Z"),
            (1_795_132_800_000_000, "2026-11-20T00:00:00Z"),
            (1_795_132_800_120_000, "2026-11-20T00:00:00.120Z"),
            (1_795_132_800_000_007, "2026-11-20T00:00:00.000007Z"),
            (-1, "1969-12-31T23:59:59.999999Z"),
        ] {
            assert_eq!(time(Timestamp::from_micros(micros)), written);
        }
        assert_eq!(compact_time(Timestamp::from_secs(1_795_132_800)), "20261120T000000Z");
        for wild in [Timestamp::MIN, Timestamp::MAX] {
            assert!(!time(wild).is_empty() && !compact_time(wild).is_empty());
        }
    }
}
