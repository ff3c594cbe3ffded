//! Numbers of settings that are written with units: `256MiB` for a setting in bytes, `10s` for one in milliseconds.

use std::time::Duration;

use crate::units::{read_size, read_span};

/// The number of a setting that is written with a unit, such as `256MiB` or `10s`. The name of the setting ends with
/// the unit of the number.
pub fn number_of(key: &str, text: &str) -> Option<i64> {
    let span = |in_unit: fn(Duration) -> Option<u128>| read_span(text).and_then(in_unit);
    let number = match key.rsplit('_').next()? {
        "bytes" => read_size(text).map(u128::from),
        "ms" => span(|time| time.subsec_nanos().is_multiple_of(1_000_000).then_some(time.as_millis())),
        "seconds" => span(|time| (time.subsec_nanos() == 0).then_some(time.as_secs().into())),
        _ => None, // a number without a unit
    };
    i64::try_from(number?).ok()
}

/// The values that a setting with a number takes, in words.
pub fn number_wanted(key: &str) -> &'static str {
    match key.rsplit('_').next() {
        Some("bytes") => "a whole number of bytes, or a size such as 256MiB",
        Some("ms") => "a whole number of milliseconds, or a time such as 10s",
        Some("seconds") => "a whole number of seconds, or a time such as 4h",
        _ => "a whole number", // of things
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_turned_into_that_of_the_setting_and_never_rounded() {
        for (key, text, number) in [
            ("storage.reserve_bytes", "256MiB", Some(256 << 20)),
            ("storage.reserve_bytes", "1.5KiB", Some(1_536)),
            ("server.drain_deadline_ms", "10s", Some(10_000)),
            ("server.drain_deadline_ms", "1m30s", Some(90_000)),
            ("server.drain_deadline_ms", "1500us", None),
            ("storage.seal_delay_seconds", "4h", Some(14_400)),
            ("storage.seal_delay_seconds", "500ms", None),
            ("storage.reserve_bytes", "10s", None),
            ("server.drain_deadline_ms", "1KiB", None),
            ("server.worker_threads", "4s", None),
        ] {
            assert_eq!(number_of(key, text), number, "{key} = {text}");
        }
    }
}
