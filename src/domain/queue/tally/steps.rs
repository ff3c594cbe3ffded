//! The steps in which attempts and times are counted.

use std::time::Duration;

/// The labels of the steps of attempt numbers.
pub const ATTEMPT_STEPS: [&str; 8] = ["1", "2", "3", "4", "5", "6-10", "11-16", "17+"];

/// The labels of the steps of times: each time is counted in the first step that holds it.
pub const TIME_STEPS: [&str; 16] =
    ["10ms", "30ms", "100ms", "300ms", "1s", "3s", "10s", "30s", "1m", "5m", "15m", "1h", "6h", "1d", "7d", "more"];

/// The longest time of each step but the last, in milliseconds.
pub const TIME_STEP_MILLIS: [u64; TIME_STEPS.len() - 1] = [
    10,
    30,
    100,
    300,
    1_000,
    3_000,
    10_000,
    30_000,
    60_000,
    300_000,
    900_000,
    3_600_000,
    21_600_000,
    86_400_000,
    604_800_000,
];

/// The step of an attempt number, which is at least 1.
pub fn attempt_step(attempt: u32) -> usize {
    match attempt {
        0..=5 => attempt.saturating_sub(1) as usize,
        6..=10 => 5,
        11..=16 => 6,
        17.. => 7,
    }
}

/// The step of a time.
pub fn time_step(time: Duration) -> usize {
    TIME_STEP_MILLIS.iter().take_while(|&&millis| Duration::from_millis(millis) < time).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_attempt_and_time_is_in_the_first_step_that_holds_it() {
        let labels =
            [(1, "1"), (2, "2"), (5, "5"), (6, "6-10"), (10, "6-10"), (11, "11-16"), (16, "11-16"), (17, "17+")];
        for (attempt, label) in labels {
            assert_eq!(ATTEMPT_STEPS[attempt_step(attempt)], label);
        }
        assert_eq!(ATTEMPT_STEPS[attempt_step(u32::MAX)], "17+");
        let day = 86_400_000_000;
        for (micros, label) in [
            (0, "10ms"),
            (10_000, "10ms"),
            (10_001, "30ms"),
            (1_000_000, "1s"),
            (60_000_001, "5m"),
            (day, "1d"),
            (7 * day, "7d"),
            (7 * day + 1, "more"),
        ] {
            assert_eq!(TIME_STEPS[time_step(Duration::from_micros(micros))], label, "{micros} µs");
        }
    }
}
