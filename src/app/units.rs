//! Durations and sizes in human-readable form: `12h`, `1m30s`, `250ms`; `256MiB`, `1.5KiB`.
//!
//! `read_span` and `read_size` parse the output of `span` and `exact_size` to the same value.

use std::time::Duration;

use tallystone_api::documents::duration_of;

/// The units of a duration, greatest first, in microseconds.
const SPANS: [(&str, u128); 6] =
    [("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("us", 1)];

/// The units of a size, greatest first, in bytes.
const SIZES: [(&str, u64); 5] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Formats a duration, exact to the microsecond.
pub fn span(duration: Duration) -> String {
    let mut left = duration.as_micros();
    if left == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (unit, micros) in SPANS {
        if left >= micros {
            text.push_str(&format!("{}{unit}", left / micros));
            left %= micros;
        }
    }
    text
}

/// Formats a measured duration, to the second if it is one second or more.
pub fn about(duration: Duration) -> String {
    let micros = duration.as_micros();
    let grain = match micros {
        0..10_000 => 1,
        10_000..1_000_000 => 1_000,
        1_000_000..86_400_000_000 => 1_000_000,
        _ => 60_000_000, // a day or more
    };
    let rounded = micros / grain * grain;
    span(Duration::from_micros(u64::try_from(rounded).unwrap_or(u64::MAX)))
}

/// Formats the remaining time, to the nearest second if it is one second or more: the instant since a one-minute lease
/// began is not worth a digit.
pub fn left(duration: Duration) -> String {
    match duration.as_millis() {
        0..999 => about(duration),
        _ => about(duration.saturating_add(Duration::from_millis(500))), // a second and more
    }
}

/// Formats a number with the singular or plural of a word.
pub fn counted(count: i64, one: &str, many: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {many}") }
}

/// Formats a number of messages.
pub fn messages(count: i64) -> String {
    counted(count, "message", "messages")
}

/// Formats a measured size, to a tenth of the greatest unit that it reaches.
pub fn size(bytes: u64) -> String {
    let (unit, of) = unit_of(bytes);
    let tenths = u128::from(bytes) * 10 / u128::from(of);
    decimal(tenths, 1, unit)
}

/// Formats a configured size exactly: in the greatest unit of which it is a multiple of a hundredth.
pub fn exact_size(bytes: u64) -> String {
    let fits = |(_, of): &(&str, u64)| bytes >= *of && (u128::from(bytes) * 100).is_multiple_of(u128::from(*of));
    let (unit, of) = SIZES.into_iter().find(fits).unwrap_or(("B", 1));
    decimal(u128::from(bytes) * 100 / u128::from(of), 2, unit)
}

fn unit_of(bytes: u64) -> (&'static str, u64) {
    SIZES.into_iter().find(|(_, of)| bytes >= *of).unwrap_or(("B", 1))
}

/// Formats a number with the given decimals, without trailing zeros.
fn decimal(scaled: u128, decimals: u32, unit: &str) -> String {
    let scale = 10_u128.pow(decimals);
    let fraction = format!("{:0width$}", scaled % scale, width = decimals as usize);
    match fraction.trim_end_matches('0') {
        "" => format!("{}{unit}", scaled / scale),
        fraction => format!("{}.{fraction}{unit}", scaled / scale),
    }
}

/// Parses `90s`, `1.5h`, or several units as in `1m30s`.
pub fn read_span(text: &str) -> Option<Duration> {
    let mut whole = Duration::ZERO;
    let mut left = text;
    while !left.is_empty() {
        let unit_at = left.find(|c: char| c.is_ascii_alphabetic())?;
        let unit_long = left[unit_at..].find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(left.len() - unit_at);
        let (part, rest) = left.split_at(unit_at + unit_long);
        let part = match part.strip_suffix("us") {
            Some(micros) => Duration::from_micros(micros.parse().ok()?),
            None => duration_of(part)?,
        };
        whole = whole.checked_add(part)?;
        left = rest;
    }
    (!text.is_empty()).then_some(whole)
}

/// Parses `256MiB`, `1.5KiB`, `512B`, or a number of bytes.
pub fn read_size(text: &str) -> Option<u64> {
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let are_digits = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !are_digits(whole) || !are_digits(fraction) || fraction.len() > 9 {
        return None;
    }
    let of = match unit {
        "" => 1,
        unit => SIZES.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(unit))?.1,
    };
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let part = u128::from(of) * fraction.parse::<u128>().ok()?;
    let bytes = u128::from(of) * u128::from(whole.parse::<u64>().ok()?) + part / scale;
    // A fraction of a byte is not a size.
    (part.is_multiple_of(scale) || of > 1).then_some(())?;
    u64::try_from(bytes).ok()
}

/// Formats one line of a change, `setting: before -> after`, with the units of durations and sizes.
pub fn change(line: &str) -> String {
    let Some((setting, values)) = line.split_once(": ") else { return line.to_owned() };
    let Some((before, after)) = values.split_once(" -> ") else { return line.to_owned() };
    let is_size = setting.ends_with("_bytes");
    let shown = |value: &str| match (is_size, value.parse::<u64>(), duration_of(value)) {
        (true, Ok(bytes), _) => exact_size(bytes),
        (_, _, Some(duration)) => span(duration),
        _ => value.to_owned(), // has no unit
    };
    format!("{setting}: {} -> {}", shown(before), shown(after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_printed_in_units_and_exactly_and_read_again() {
        let cases = [
            (0, "0s"),
            (250_000, "250ms"),
            (1_000_000, "1s"),
            (1_500_000, "1s500ms"),
            (90_000_000, "1m30s"),
            (43_200_000_000, "12h"),
            (86_400_000_000 * 7, "7d"),
            (1, "1us"),
        ];
        for (micros, text) in cases {
            assert_eq!(span(Duration::from_micros(micros)), text);
            assert_eq!(read_span(text), Some(Duration::from_micros(micros)), "{text}");
        }
        assert_eq!(read_span("1.5h"), Some(Duration::from_secs(5_400)));
        for text in ["", "1", "s", "1m30", "1x", "-1s", "1m 30s"] {
            assert_eq!(read_span(text), None, "{text}");
        }
        assert_eq!(about(Duration::from_micros(3_725_250_321)), "1h2m5s");
        assert_eq!(about(Duration::from_micros(1_250_321)), "1s");
        assert_eq!(about(Duration::from_micros(250_321)), "250ms");
    }

    #[test]
    fn what_is_left_is_told_to_the_nearest_second() {
        let cases =
            [(59_994, "1m"), (59_400, "59s"), (29_999, "30s"), (1_000, "1s"), (999, "1s"), (400, "400ms"), (0, "0s")];
        for (millis, text) in cases {
            assert_eq!(left(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn one_is_not_many() {
        let told = |count| counted(count, "miss", "misses");
        assert_eq!((told(0), told(1), told(2)), ("0 misses".to_owned(), "1 miss".to_owned(), "2 misses".to_owned()));
    }

    #[test]
    fn measured_sizes_are_printed_to_a_tenth() {
        for (bytes, text) in [
            (0, "0B"),
            (1_023, "1023B"),
            (1_024, "1KiB"),
            (1_536, "1.5KiB"),
            (256 << 20, "256MiB"),
            ((1 << 20) + 1, "1MiB"),
            (u64::MAX, "16777215.9TiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn sizes_that_are_set_are_printed_exactly_and_read_again() {
        for (bytes, text) in [
            (0, "0B"),
            (1_280, "1.25KiB"),
            (1_300, "1300B"),
            (32_768, "32KiB"),
            (256 << 20, "256MiB"),
            (64 << 30, "64GiB"),
            ((1 << 20) + 1, "1048577B"),
        ] {
            assert_eq!(exact_size(bytes), text);
            assert_eq!(read_size(text), Some(bytes), "{text}");
        }
        for (text, bytes) in [("65536", 65_536), ("1.5kib", 1_536), ("0.5GiB", 512 << 20)] {
            assert_eq!(read_size(text), Some(bytes), "{text}");
        }
        for text in ["", "KiB", "-1", "1.5", "1 KiB", "1MB", "99999999999TiB"] {
            assert_eq!(read_size(text), None, "{text}");
        }
    }

    #[test]
    fn what_was_changed_is_told_in_units() {
        for (line, told) in [
            ("ttl: none -> 3600s", "ttl: none -> 1h"),
            ("quota_bytes: 1024 -> 1536", "quota_bytes: 1KiB -> 1.5KiB"),
            ("rollup.num_queues: 8 -> 16", "rollup.num_queues: 8 -> 16"),
            ("created", "created"),
        ] {
            assert_eq!(change(line), told);
        }
    }
}
