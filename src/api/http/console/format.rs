//! Numbers, ages and times as people read them. What is not known is a dash, and never 0.

use prost_types::{Duration as WireDuration, Timestamp as WireTimestamp};

use crate::time;
use tallystone_domain::Reason;

/// The priorities that are read as times: milliseconds from September 2001 to the end of 2099.
const TIME_PRIORITIES: std::ops::Range<i64> = 1_000_000_000_000..4_102_444_800_000;

/// The text for a number that is not known.
pub const UNKNOWN: &str = "–";

/// A whole number with its thousands apart.
pub fn whole(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if number < 0 { format!("−{text}") } else { text }
}

/// A whole number that is never below 0.
pub fn unsigned(number: u64) -> String {
    whole(i64::try_from(number).unwrap_or(i64::MAX))
}

/// A count, or a dash.
pub fn count(number: Option<i64>) -> String {
    number.map_or_else(|| UNKNOWN.to_owned(), whole)
}

/// A rate per second, or a dash.
pub fn rate(rate: Option<f64>) -> String {
    match rate {
        None => UNKNOWN.to_owned(),
        Some(rate) if rate > 0.0 && rate < 0.05 => "<0.1".to_owned(),
        Some(rate) if rate >= 100.0 => whole(rate.round() as i64),
        Some(rate) => format!("{rate:.1}"),
    }
}

/// A span in its greatest unit, or a dash.
pub fn span(span: Option<&WireDuration>) -> String {
    span.map_or_else(|| UNKNOWN.to_owned(), |span| seconds(span.seconds))
}

/// Seconds in their greatest unit.
pub fn seconds(seconds: i64) -> String {
    match seconds {
        ..120 => format!("{} s", seconds.max(0)),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", whole(seconds / 86_400)),
    }
}

/// A size in bytes.
pub fn size(bytes: i64) -> String {
    match bytes {
        ..1_024 => format!("{bytes} B"),
        1_024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1_024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

/// A share as a percentage, or a dash.
pub fn share(share: Option<f64>) -> String {
    share.map_or_else(|| UNKNOWN.to_owned(), |share| format!("{:.2} %", share * 100.0))
}

/// The ends of an interval of shares, or a dash.
pub fn shares(lower: Option<f64>, upper: Option<f64>) -> String {
    match (lower, upper) {
        (Some(lower), Some(upper)) => format!("{:.2} to {:.2} %", lower * 100.0, upper * 100.0),
        (_, _) => UNKNOWN.to_owned(), // an interval with one end is none
    }
}

/// The difference of two shares in percentage points, with its sign, or a dash.
pub fn points(difference: Option<f64>) -> String {
    difference.map_or_else(|| UNKNOWN.to_owned(), |difference| signed(difference * 100.0))
}

/// The ends of an interval of differences in percentage points, or a dash.
pub fn points_range(lower: Option<f64>, upper: Option<f64>) -> String {
    match (lower, upper) {
        (Some(lower), Some(upper)) => format!("{} to {}", signed(lower * 100.0), signed(upper * 100.0)),
        (_, _) => UNKNOWN.to_owned(), // an interval with one end is none
    }
}

fn signed(number: f64) -> String {
    format!("{number:+.2}").replace('-', "−")
}

/// A time to the second, in UTC, or a dash.
pub fn moment(at: Option<&WireTimestamp>) -> String {
    let read = at.and_then(|at| time::read("time", Reason::InvalidArgument, at).ok());
    let Some(read) = read else { return UNKNOWN.to_owned() };
    let text = time::text(read);
    let second = text.get(..19).unwrap_or(&text);
    format!("{} UTC", second.replace('T', " "))
}

/// How long before or after now a time is, both in milliseconds.
pub fn ago(at: i64, now: i64) -> String {
    match (now - at) / 1_000 {
        past @ 0.. => format!("{} ago", seconds(past)),
        future => format!("in {}", seconds(-future)),
    }
}

/// The time that a priority is, if it is one. Priorities that no caller chose are times in milliseconds, so numbers
/// from 2001 to 2100 are read as times.
pub fn priority_time(priority: Option<i64>) -> Option<WireTimestamp> {
    let millis = priority.filter(|millis| TIME_PRIORITIES.contains(millis))?;
    let nanos = i32::try_from(millis % 1_000 * 1_000_000).ok()?;
    Some(WireTimestamp { seconds: millis / 1_000, nanos })
}

/// Milliseconds since 1970.
pub fn millis(at: &WireTimestamp) -> i64 {
    at.seconds * 1_000 + i64::from(at.nanos / 1_000_000)
}

/// A text, or a dash.
pub fn or_unknown(text: &str) -> String {
    if text.is_empty() { UNKNOWN.to_owned() } else { text.to_owned() }
}

/// The first link of a text: what stands before it, its own text, its target, and what stands after it.
pub fn next_link(text: &str) -> Option<(&str, &str, &str, &str)> {
    let (start, rest) = text.split_once("](")?;
    let (before, name) = start.rsplit_once('[')?;
    let (target, after) = rest.split_once(')')?;
    Some((before, name, target, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unknown_is_a_dash_and_what_is_small_is_not_zero() {
        assert_eq!([count(None), rate(None), span(None), moment(None), or_unknown("")], [UNKNOWN; 5]);
        assert_eq!(
            [rate(Some(0.0)), rate(Some(0.004)), rate(Some(9.84)), rate(Some(1_234.5))],
            ["0.0", "<0.1", "9.8", "1,235"]
        );
    }

    #[test]
    fn shares_are_percentages_and_their_differences_are_points() {
        assert_eq!([share(Some(0.05)), share(None), shares(Some(0.05), None)], ["5.00 %", UNKNOWN, UNKNOWN]);
        assert_eq!([points(Some(0.005)), points(Some(-0.0123))], ["+0.50", "−1.23"]);
        assert_eq!(points_range(Some(-0.001), Some(0.002)), "−0.10 to +0.20");
    }

    #[test]
    fn priorities_that_are_times_are_read_as_times_and_others_are_not() {
        let read = |priority| moment(priority_time(Some(priority)).as_ref());
        assert_eq!(read(1_795_886_191_042), "2026-11-28 17:16:31 UTC");
        assert_eq!([0, -5, 100, 999_999_999_999, 4_102_444_800_000, i64::MIN, i64::MAX].map(read), [UNKNOWN; 7]);
        assert_eq!(priority_time(None), None);
    }

    #[test]
    fn ages_count_from_the_past_and_to_the_future() {
        let now = 1_000_000;
        assert_eq!(
            [ago(now, now), ago(now - 180_999, now), ago(now + 59_000, now)],
            ["0 s ago", "3 min ago", "in 59 s"]
        );
    }

    #[test]
    fn thousands_stand_apart() {
        assert_eq!([0, 999, 1_000, 1_234_567, -4_812].map(whole), ["0", "999", "1,000", "1,234,567", "−4,812"]);
        assert_eq!([0, 119, 120, 7_200, 172_800].map(seconds), ["0 s", "119 s", "2 min", "2 h", "2 days"]);
        assert_eq!([5, 2_048, 5 << 20].map(size), ["5 B", "2.0 KiB", "5.0 MiB"]);
    }
}
