//! The table of the attacks, for people and as JSON.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::memory::Memory;
use super::probe::Seen;
use crate::report::Report;

/// Outcomes of an attack that a line shows.
const TOLD_MAX: usize = 4;

/// One attack.
pub struct Row {
    /// Its name.
    pub name: String,
    /// What the well-behaved caller saw.
    pub seen: Seen,
    /// What the server held.
    pub memory: Memory,
    /// Whether `/healthz` answers after it.
    pub answers_after: bool,
    /// How often each outcome of the attack's own calls came.
    pub told: BTreeMap<String, u64>,
    /// What the server printed, of one that was started here.
    pub printed_bytes: Option<u64>,
}

impl Row {
    /// One line for people.
    pub fn line(&self) -> String {
        let [before, peak, after] = match self.memory.resident {
            Some(bytes) => bytes.map(|bytes| (bytes >> 20).to_string()),
            None => ["-"; 3].map(str::to_owned),
        };
        let life = match (self.memory.is_gone, self.answers_after) {
            (true, _) => "ENDED",
            (false, true) => "runs",
            (false, false) => "MUTE",
        };
        let printed = self.printed_bytes.map_or_else(|| "-".to_owned(), |bytes| (bytes >> 10).to_string());
        format!(
            "{:<18} {} {} {before:>6} {peak:>6} {after:>6} {life:>5} {printed:>8}  {}",
            self.name,
            latencies(&self.seen.calls),
            latencies(&self.seen.health),
            self.most_told()
        )
    }

    fn most_told(&self) -> String {
        let mut told: Vec<_> = self.told.iter().collect();
        told.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let shown: Vec<String> = told.iter().take(TOLD_MAX).map(|(what, count)| format!("{what} {count}")).collect();
        shown.join(", ")
    }

    fn json(&self) -> Value {
        json!({
            "attack": self.name,
            "probe": numbers(&self.seen.calls),
            "healthz": numbers(&self.seen.health),
            "resident_bytes": self.memory.resident.map(|[before, peak, after]| {
                json!({ "before": before, "peak": peak, "after": after })
            }),
            "answers_after": self.answers_after,
            "server_ended": self.memory.is_gone,
            "server_printed_bytes": self.printed_bytes,
            "outcomes": self.told,
        })
    }
}

/// The table for people: latencies in milliseconds, memory in MiB.
pub fn text(rows: &[Row]) -> String {
    let head = format!(
        "{:<18} {:>8} {:>8} {:>8} {:>6} {:>8} {:>8} {:>8} {:>6} {:>6} {:>6} {:>6} {:>5} {:>8}  {}",
        "attack",
        "p50 ms",
        "p99 ms",
        "max ms",
        "failed",
        "hz p50",
        "hz p99",
        "hz max",
        "failed",
        "before",
        "peak",
        "after",
        "life",
        "log KiB",
        "outcomes of the attack"
    );
    let lines: Vec<String> = std::iter::once(head).chain(rows.iter().map(Row::line)).collect();
    lines.join("\n")
}

/// The table as JSON.
pub fn json(rows: &[Row]) -> Value {
    rows.iter().map(Row::json).collect()
}

fn failures(report: &Report) -> u64 {
    report.failed.values().sum()
}

fn latencies(report: &Report) -> String {
    let [p50, p99, most] = [0.5, 0.99, 1.0].map(|quantile| report.quantile_ms(quantile));
    format!("{p50:>8.1} {p99:>8.1} {most:>8.1} {:>6}", failures(report))
}

fn numbers(report: &Report) -> Value {
    json!({
        "answered": report.done,
        "failed": report.failed,
        "p50_ms": report.quantile_ms(0.5),
        "p99_ms": report.quantile_ms(0.99),
        "max_ms": report.quantile_ms(1.0),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_row_tells_latencies_memory_and_what_failed() {
        let mut calls = Report::new();
        calls.note(Duration::from_millis(2), &Ok(1));
        calls.note(Duration::from_millis(900), &Err("INTERNAL".to_owned()));
        let memory = Memory { resident: Some([32 << 20, 3_000 << 20, 40 << 20]), is_gone: true };
        let told = [("ok".to_owned(), 7), ("RETRY_LATER".to_owned(), 9)].into();
        let seen = Seen { calls, health: Report::new() };
        let row =
            Row { name: "unread".to_owned(), seen, memory, answers_after: false, told, printed_bytes: Some(2_048) };
        let line = row.line();
        for part in ["unread", "900", "3000", "ENDED", "RETRY_LATER 9, ok 7"] {
            assert!(line.contains(part), "{part} is missing in {line}");
        }
        let json = json(&[row]);
        assert_eq!(json[0]["probe"]["failed"]["INTERNAL"], 1);
        assert_eq!(json[0]["resident_bytes"]["peak"], 3_000_u64 << 20);
    }
}
