//! What a run measured: how many, how fast, how it failed.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

/// The longest latency that is told apart, in microseconds.
const LATENCY_US_MAX: u64 = 120_000_000;

/// What one worker or a whole run saw.
pub struct Report {
    /// Operations that succeeded; a batch counts its items.
    pub done: u64,
    /// Operations that failed, by reason.
    pub failed: BTreeMap<String, u64>,
    /// Latencies of calls in microseconds.
    pub latency_us: Histogram<u64>,
    /// How long was measured.
    pub measured: Duration,
}

impl Report {
    /// Nothing yet.
    pub fn new() -> Self {
        let latency_us = Histogram::new_with_bounds(1, LATENCY_US_MAX, 3).expect("the bounds are in order");
        Self { done: 0, failed: BTreeMap::new(), latency_us, measured: Duration::ZERO }
    }

    /// Takes in what another worker saw at the same time.
    pub fn merge(&mut self, other: &Self) {
        self.done += other.done;
        for (reason, count) in &other.failed {
            *self.failed.entry(reason.clone()).or_default() += count;
        }
        self.latency_us.add(&other.latency_us).expect("all histograms have the same bounds");
        self.measured = self.measured.max(other.measured);
    }

    /// Notes a call that carried some operations.
    pub fn note(&mut self, latency: Duration, answer: &Result<u64, String>) {
        self.latency_us.saturating_record(u64::try_from(latency.as_micros()).unwrap_or(LATENCY_US_MAX));
        match answer {
            Ok(operations) => self.done += operations,
            Err(reason) => *self.failed.entry(reason.clone()).or_default() += 1,
        }
    }

    /// Operations per second.
    pub fn rate(&self) -> f64 {
        self.done as f64 / self.measured.as_secs_f64().max(1e-9)
    }

    /// A latency quantile in milliseconds.
    pub fn quantile_ms(&self, quantile: f64) -> f64 {
        self.latency_us.value_at_quantile(quantile) as f64 / 1_000.0
    }

    /// One line for people.
    pub fn line(&self, name: &str) -> String {
        let failed: String = self.failed.iter().map(|(reason, count)| format!(" {reason}={count}")).collect();
        format!(
            "{name}: {:.0}/s ({} in {:.1} s), p50 {:.2} p99 {:.2} p99.9 {:.2} max {:.1} ms{}{failed}",
            self.rate(),
            self.done,
            self.measured.as_secs_f64(),
            self.quantile_ms(0.5),
            self.quantile_ms(0.99),
            self.quantile_ms(0.999),
            self.latency_us.max() as f64 / 1_000.0,
            if failed.is_empty() { "" } else { ", failed:" },
        )
    }
}

/// The middle one of some numbers.
pub fn median(mut numbers: Vec<f64>) -> f64 {
    assert!(!numbers.is_empty(), "a median needs a number");
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_of_workers_add_up() {
        let mut all = Report::new();
        for worker in 1..=2_u64 {
            let mut one = Report { measured: Duration::from_secs(2), ..Report::new() };
            one.note(Duration::from_millis(worker), &Ok(10));
            one.note(Duration::from_millis(9), &Err("RETRY_LATER".to_owned()));
            all.merge(&one);
        }
        assert_eq!((all.done, all.failed["RETRY_LATER"]), (20, 2));
        assert!((all.rate() - 10.0).abs() < 1e-9, "twenty in two seconds");
        assert!(all.quantile_ms(1.0) >= 8.9);
    }

    #[test]
    fn the_median_is_the_middle() {
        assert!((median(vec![9.0, 1.0, 5.0]) - 5.0).abs() < 1e-9);
    }
}
