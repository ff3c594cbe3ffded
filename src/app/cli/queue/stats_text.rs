//! The counters of a queue as text: depths, flows, attempts, times, errors, values.

use std::collections::BTreeMap;

use crate::output::{TableRows, table_text};
use tallystone_app::notices::single_line;
use tallystone_app::units::size;
use tallystone_domain::queue::MessageState;
use tallystone_domain::queue::counter_names::unescaped;
use tallystone_domain::queue::tally::flows::Flow;
use tallystone_domain::queue::tally::steps::{ATTEMPT_STEPS, TIME_STEPS};
use tallystone_proto::counter::v1::GetCountResponse;

/// The counters of each value of a counted key.
pub const BY_VALUE: [&str; 7] =
    ["depth.pending", "depth.running", "depth.errored", "enqueued", "dequeued", "completed", "errored"];
/// The counters of each error signature.
pub const BY_ERROR: [&str; 2] = ["failed", "errored"];
/// The text for a number that is not known.
const UNKNOWN: &str = "-";
/// The shares of messages whose times are shown, in percent.
const PERCENTILES: [i64; 4] = [50, 90, 99, 100];

const DEPTHS: &[&str] = &["invisible", "pending", "running", "completed", "canceled", "errored", "bytes"];
const FLOWS: &[&str] = &["flow", "total", "per_second"];
const ATTEMPTS: &[&str] = &["attempt", "leased", "completed", "errored"];
const TIMES: &[&str] = &["time", "count", "p50", "p90", "p99", "longest"];
const ERRORS: &[&str] = &["error", "failed", "errored"];
const VALUES: &[&str] =
    &["value", "pending", "running", "depth_errored", "enqueued", "dequeued", "completed", "errored"];

/// The numbers that the counters of a queue give.
pub struct QueueStats {
    pub queue: String,
    /// The readings of all counters, by the part of their names after the queue.
    pub readings: BTreeMap<String, GetCountResponse>,
    /// Events a second over the last minute, by flow; only flows whose series could be read.
    pub rates: BTreeMap<&'static str, f64>,
    /// The error signatures with most failures, as names have them.
    pub signatures: Vec<String>,
    /// The counted keys, each with its values with most pending messages: pairs as names have them.
    pub values: Vec<(String, Vec<String>)>,
}

impl QueueStats {
    /// The count of a counter; 0 if it was never written.
    pub fn count(&self, name: &str) -> i64 {
        self.readings.get(name).map_or(0, |reading| reading.count)
    }
}

/// The counters of a queue being converted to text.
pub struct StatsText<'a> {
    stats: &'a QueueStats,
    text: String,
}

impl<'a> StatsText<'a> {
    /// Converts the counters.
    pub fn of(stats: &'a QueueStats) -> String {
        let mut text = Self { stats, text: String::new() };
        text.headline();
        text.depths();
        text.flows();
        text.attempts();
        text.times();
        text.errors();
        text.values();
        text.text
    }

    fn section(&mut self, columns: &'static [&'static str], cells: Vec<Vec<String>>) {
        if cells.is_empty() {
            return;
        }
        self.text.push('\n');
        self.text.push_str(&table_text(&TableRows { columns, cells }));
        self.text.push('\n');
    }

    fn headline(&mut self) {
        let readings = self.stats.readings.values();
        let oldest = |times: Vec<&prost_types::Timestamp>| {
            times.into_iter().min_by_key(|time| (time.seconds, time.nanos)).map(ToString::to_string)
        };
        let reported = oldest(readings.clone().filter_map(|reading| reading.reported_to.as_ref()).collect());
        let as_of = oldest(readings.filter_map(|reading| reading.as_of.as_ref()).collect());
        let known = match (reported, as_of) {
            (Some(reported), _) => format!("all changes up to {reported} are counted"),
            (None, Some(as_of)) => format!("counts as of {as_of}; how far the queue has reported is not known"),
            (None, None) => "the queue has reported nothing yet".to_owned(),
        };
        self.text = format!("queue {}: {known}\n", single_line(&self.stats.queue));
    }

    fn count(&self, name: &str) -> String {
        self.stats.count(name).to_string()
    }

    fn depths(&mut self) {
        let depths = MessageState::ALL.map(|state| self.count(&format!("depth.{state}")));
        let bytes = u64::try_from(self.stats.count("bytes")).map_or_else(|_| UNKNOWN.to_owned(), size);
        self.section(DEPTHS, vec![depths.into_iter().chain([bytes]).collect()]);
    }

    fn flows(&mut self) {
        let row = |flow: Flow| {
            let rate = self.stats.rates.get(flow.name());
            let rate = rate.map_or_else(|| UNKNOWN.to_owned(), |rate| format!("{rate:.1}"));
            vec![flow.name().to_owned(), self.count(flow.name()), rate]
        };
        let cells = Flow::ALL.map(row).into();
        self.section(FLOWS, cells);
    }

    fn attempts(&mut self) {
        let rows = ATTEMPT_STEPS.iter().filter_map(|step| {
            let counts =
                ["leased_at", "completed_at", "errored_at"].map(|of| self.stats.count(&format!("{of}.{step}")));
            let is_used = counts.iter().any(|count| *count != 0);
            is_used.then(|| std::iter::once((*step).to_owned()).chain(counts.map(|count| count.to_string())).collect())
        });
        let cells = rows.collect();
        self.section(ATTEMPTS, cells);
    }

    fn times(&mut self) {
        let names = [("ready to lease", "wait"), ("lease to its end", "run")];
        let cells = names.map(|(words, of)| {
            let counts = TIME_STEPS.map(|step| self.stats.count(&format!("{of}.{step}")));
            let shown = PERCENTILES.map(|percent| percentile(&counts, percent));
            let total = counts.iter().sum::<i64>().to_string();
            [words.to_owned(), total].into_iter().chain(shown).collect()
        });
        self.section(TIMES, cells.into());
    }

    fn errors(&mut self) {
        let cells = self.stats.signatures.iter().map(|pair| {
            let counts = BY_ERROR.map(|of| self.count(&format!("{of}~{pair}")));
            std::iter::once(value_of(pair)).chain(counts).collect()
        });
        let cells = cells.collect();
        self.section(ERRORS, cells);
    }

    fn values(&mut self) {
        for (key, pairs) in &self.stats.values {
            let cells: Vec<Vec<String>> = pairs
                .iter()
                .map(|pair| {
                    let counts = BY_VALUE.map(|of| self.count(&format!("{of}~{pair}")));
                    std::iter::once(value_of(pair)).chain(counts).collect()
                })
                .collect();
            if !cells.is_empty() {
                self.text.push_str(&format!("\nby {}, most pending first", single_line(key)));
            }
            self.section(VALUES, cells);
        }
    }
}

/// The value of a pair, readable. A mark such as `~none` stays, and a long pair is shown with its hash.
fn value_of(pair: &str) -> String {
    match pair.split_once('=') {
        Some((_, value)) => unescaped(value),
        None => unescaped(pair),
    }
}

/// The step that holds a share of the counted times, `-` if none are counted.
fn percentile(counts: &[i64; TIME_STEPS.len()], percent: i64) -> String {
    let total: i64 = counts.iter().sum();
    let mut seen = 0;
    for (step, count) in TIME_STEPS.iter().zip(counts) {
        seen += count;
        if *count > 0 && i128::from(seen) * 100 >= i128::from(total) * i128::from(percent) {
            return if *step == "more" { "> 7d".to_owned() } else { format!("<= {step}") };
        }
    }
    UNKNOWN.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_first_step_that_holds_the_share() {
        let mut counts = [0; TIME_STEPS.len()];
        assert_eq!(percentile(&counts, 50), "-");
        (counts[1], counts[4], counts[15]) = (90, 9, 1);
        assert_eq!(PERCENTILES.map(|percent| percentile(&counts, percent)), ["<= 30ms", "<= 30ms", "<= 1s", "> 7d"]);
    }

    #[test]
    fn a_pair_shows_its_value_as_it_was_sent() {
        assert_eq!(value_of("tenant=a%20b%3D"), "a b=");
        assert_eq!(value_of("tenant=~none"), "~none");
    }
}
