//! Times and durations between the wire and the domain.
//!
//! Decoding truncates times to microseconds. Encoding clamps values that the wire cannot represent (protobuf ends at
//! the year 9999).

use std::time::Duration;

use tallystone_domain::{Reason, Reject, Timestamp};

/// 0001-01-01T00:00:00Z and 9999-12-31T23:59:59Z, the ends of a protobuf timestamp.
const WIRE_SECONDS: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

/// The greatest protobuf duration, 10,000 years.
const WIRE_DURATION_SECONDS_MAX: i64 = 315_576_000_000;

/// Decodes a time, truncated to microseconds.
pub fn read(field: &str, reason: Reason, wire: &prost_types::Timestamp) -> Result<Timestamp, Reject> {
    if !WIRE_SECONDS.contains(&wire.seconds) || !(0..1_000_000_000).contains(&wire.nanos) {
        return Err(Reject::new(
            reason,
            format!(
                "{field} is not a valid time: it must be in the years 1 to 9999, with nanos in 0..1000000000; it has \
                 seconds {} and nanos {}",
                wire.seconds, wire.nanos
            ),
        ));
    }
    Ok(Timestamp::from_micros(wire.seconds * 1_000_000 + i64::from(wire.nanos) / 1_000))
}

/// Decodes a duration, truncated to microseconds, but never to zero, which often means something else. Refuses negative
/// durations.
pub fn read_duration(field: &str, wire: &prost_types::Duration) -> Result<Duration, Reject> {
    if wire.seconds < 0 || wire.nanos < 0 {
        return Err(Reject::new(Reason::InvalidRange, format!("{field} is negative; send 0 or more")));
    }
    if wire.seconds > WIRE_DURATION_SECONDS_MAX || wire.nanos > 999_999_999 {
        return Err(Reject::new(
            Reason::InvalidRange,
            format!("{field} is not a valid duration: it has seconds {} and nanos {}", wire.seconds, wire.nanos),
        ));
    }
    let seconds = u64::try_from(wire.seconds).unwrap_or(0);
    let nanos = u64::try_from(wire.nanos).unwrap_or(0);
    let micros = if seconds == 0 { nanos.min(1).max(nanos / 1_000) } else { nanos / 1_000 };
    Ok(Duration::from_secs(seconds) + Duration::from_micros(micros))
}

/// Encodes a time.
pub fn write(time: Timestamp) -> prost_types::Timestamp {
    let seconds = time.micros().div_euclid(1_000_000);
    if seconds < *WIRE_SECONDS.start() {
        return prost_types::Timestamp { seconds: *WIRE_SECONDS.start(), nanos: 0 };
    }
    if seconds > *WIRE_SECONDS.end() {
        return prost_types::Timestamp { seconds: *WIRE_SECONDS.end(), nanos: 999_999_999 };
    }
    let micros = time.micros().rem_euclid(1_000_000);
    prost_types::Timestamp { seconds, nanos: i32::try_from(micros * 1_000).expect("nanos are below one second") }
}

/// Encodes a time; none for `Timestamp::MIN`, which means that nothing has happened yet.
pub fn write_reached(time: Timestamp) -> Option<prost_types::Timestamp> {
    (time != Timestamp::MIN).then(|| write(time))
}

/// Encodes a duration.
pub fn write_duration(duration: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX).min(WIRE_DURATION_SECONDS_MAX),
        nanos: i32::try_from(duration.subsec_nanos()).expect("nanos are below one second"),
    }
}

/// Formats a time as RFC 3339.
pub fn text(time: Timestamp) -> String {
    write(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(seconds: i64, nanos: i32) -> prost_types::Timestamp {
        prost_types::Timestamp { seconds, nanos }
    }

    #[test]
    fn nanoseconds_are_cut_to_microseconds_also_before_1970() {
        let read = |seconds, nanos| read("at", Reason::InvalidRange, &wire(seconds, nanos)).expect("a valid time");
        assert_eq!(read(1, 1_999), Timestamp::from_micros(1_000_001));
        assert_eq!(read(-1, 999_999_999), Timestamp::from_micros(-1));
    }

    #[test]
    fn times_beyond_the_wire_are_refused_and_clamped() {
        for (seconds, nanos) in [(253_402_300_800, 0), (-62_135_596_801, 0), (0, -1), (0, 1_000_000_000)] {
            let reject = read("at", Reason::InvalidRange, &wire(seconds, nanos)).expect_err("no time");
            assert_eq!(reject.reason, Reason::InvalidRange);
        }
        assert_eq!(write(Timestamp::MAX), wire(253_402_300_799, 999_999_999));
        assert_eq!(write(Timestamp::MIN), wire(-62_135_596_800, 0));
        assert_eq!(text(Timestamp::MAX), "9999-12-31T23:59:59.999999999Z");
    }

    #[test]
    fn what_was_written_reads_the_same() {
        for micros in [0, 1, -1, 1_728_139_680_123_456, -62_135_596_800_000_000] {
            let time = Timestamp::from_micros(micros);
            assert_eq!(read("at", Reason::InvalidRange, &write(time)), Ok(time));
        }
    }

    #[test]
    fn a_negative_duration_is_refused() {
        for (seconds, nanos) in [(-1, 0), (0, -1)] {
            assert!(read_duration("step", &prost_types::Duration { seconds, nanos }).is_err());
        }
        let hour = prost_types::Duration { seconds: 3_600, nanos: 5_999 };
        assert_eq!(read_duration("step", &hour), Ok(Duration::new(3_600, 5_000)));
    }

    #[test]
    fn a_duration_above_zero_is_never_read_as_zero() {
        let read = |seconds, nanos| read_duration("ttl", &prost_types::Duration { seconds, nanos });
        assert_eq!(read(0, 0), Ok(Duration::ZERO));
        assert_eq!((read(0, 1), read(0, 999)), (Ok(Duration::from_micros(1)), Ok(Duration::from_micros(1))));
        assert_eq!(read(1, 1), Ok(Duration::from_secs(1)));
    }
}
