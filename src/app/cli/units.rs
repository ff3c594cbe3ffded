//! Durations as people write them: `12h`, `1m30s`, `250ms`.

use std::time::Duration;

/// The units of a duration, the greatest first, in microseconds.
const SPANS: [(&str, u128); 6] =
    [("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("us", 1)];

/// A duration, exact to the microsecond.
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

/// A duration that was measured, to the second if it lasted one: nobody reads microseconds of hours.
pub fn about(duration: Duration) -> String {
    let micros = duration.as_micros();
    let grain = match micros {
        0..10_000 => 1,
        10_000..1_000_000 => 1_000,
        1_000_000..86_400_000_000 => 1_000_000,
        _ => 60_000_000,
    };
    let rounded = micros / grain * grain;
    span(Duration::from_micros(u64::try_from(rounded).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_printed_in_units_and_exactly() {
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
        }
        assert_eq!(about(Duration::from_micros(3_725_250_321)), "1h2m5s");
        assert_eq!(about(Duration::from_micros(1_250_321)), "1s");
    }
}
