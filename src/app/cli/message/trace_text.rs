//! A trace as text: for each life its changes, one a line, and its attempts; then what is missing.

use std::time::Duration;

use crate::message::inspect::{pairs_cell, state};
use crate::output::{TableRows, duration_of, table_text, time_cell, word};
use tallystone_app::notices::single_line;
use tallystone_app::units::about;
use tallystone_proto::history::v1 as pb;
use tallystone_proto::queue::v1::WorkerError;

const TRANSITIONS: &[&str] = &[
    "message_key",
    "epoch",
    "position",
    "version",
    "trigger",
    "from",
    "to",
    "time",
    "attempt_number",
    "worker",
    "reason",
    "error",
    "time_in_state",
    "undone",
];
const CHANGES: &[&str] = &["time", "after", "trigger", "state", "for", "attempt", "worker", "note"];
const ATTEMPTS: &[&str] = &["attempt", "leased", "ran", "end", "worker", "error"];
/// The gaps that the text names one by one; the other formats have all.
const GAPS_SHOWN: usize = 5;

/// A trace being converted to text.
pub struct TraceText {
    text: String,
}

impl TraceText {
    /// Converts a trace.
    pub fn of(trace: &pb::GetMessageTraceResponse) -> String {
        let mut text = Self { text: String::new() };
        for life in &trace.lives {
            text.life(life);
        }
        text.extent(trace);
        text.text
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn life(&mut self, life: &pb::MessageLife) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        let id = if life.message_id.is_empty() { "with an unknown id" } else { &life.message_id };
        let mut headline = format!("message {} ({})", single_line(id), single_line(&life.message_key));
        if !life.metadata.is_empty() {
            headline.push_str(&format!(", {}", single_line(&pairs_cell(&life.metadata))));
        }
        headline.push_str(if life.complete { ", complete" } else { ", INCOMPLETE: changes are missing" });
        self.line(&headline);
        let first = life.transitions.first().and_then(|row| row.time.as_ref());
        let start = life.enqueued_time.as_ref().or(first);
        let changes = life.transitions.iter().map(|row| {
            let after = between(start, row.time.as_ref()).map(|after| format!("+{}", about(after)));
            let stay = row.time_in_state.as_ref().map(|stay| about(duration_of(stay))).unwrap_or_default();
            let attempt = if row.attempt_number == 0 { String::new() } else { row.attempt_number.to_string() };
            vec![
                time_cell(row.time.as_ref()),
                after.unwrap_or_default(),
                trigger(row.trigger),
                to_cell(row),
                stay,
                attempt,
                row.worker.clone(),
                note(row),
            ]
        });
        let changes = TableRows { columns: CHANGES, cells: changes.collect() };
        self.line(&table_text(&changes));
        if !life.attempts.is_empty() {
            self.text.push('\n');
            let cells = life.attempts.iter().map(attempt_cells).collect();
            self.line(&table_text(&TableRows { columns: ATTEMPTS, cells }));
        }
    }

    fn extent(&mut self, trace: &pb::GetMessageTraceResponse) {
        if let Some(from) = &trace.history_from {
            self.line(&format!("\nthe history begins at {from}; older changes have left it"));
        }
        for gap in trace.gaps.iter().take(GAPS_SHOWN) {
            self.line(&format!(
                "gap: the changes {} to {} of shard {} are missing, from {} to {}",
                gap.from_position,
                gap.to_position,
                gap.shard,
                time_cell(gap.from_time.as_ref()),
                time_cell(gap.to_time.as_ref())
            ));
        }
        if let Some(more) = trace.gaps.len().checked_sub(GAPS_SHOWN).filter(|more| *more > 0) {
            self.line(&format!("and {more} older gaps; --output json shows all"));
        }
    }
}

/// The changes of all lives as rows for programs.
pub fn transition_rows(lives: &[pb::MessageLife]) -> TableRows {
    let rows = lives.iter().flat_map(|life| life.transitions.iter().map(move |row| (&life.message_key, row)));
    let state_word = |number: i32| if number == 0 { String::new() } else { state(number) };
    let cells = rows.map(|(key, row)| {
        vec![
            key.clone(),
            row.epoch.to_string(),
            row.position.to_string(),
            row.version.to_string(),
            trigger(row.trigger),
            state_word(row.from),
            state_word(row.to),
            time_cell(row.time.as_ref()),
            row.attempt_number.to_string(),
            row.worker.clone(),
            row.reason.clone(),
            error_cell(row.error.as_ref()),
            row.time_in_state.as_ref().map(ToString::to_string).unwrap_or_default(),
            row.undone.to_string(),
        ]
    });
    TableRows { columns: TRANSITIONS, cells: cells.collect() }
}

fn trigger(number: i32) -> String {
    word::<pb::TransitionTrigger>(number, "TRANSITION_TRIGGER_", pb::TransitionTrigger::as_str_name)
}

fn to_cell(row: &pb::MessageTransition) -> String {
    if row.to == 0 { "removed".to_owned() } else { state(row.to) }
}

fn note(row: &pb::MessageTransition) -> String {
    let undone = if row.undone { "undone: the store was set back" } else { "" };
    let parts = [undone.to_owned(), row.reason.clone(), error_cell(row.error.as_ref())];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
}

fn error_cell(error: Option<&WorkerError>) -> String {
    match error {
        None => String::new(),
        Some(error) if error.text.is_empty() => error.signature.clone(),
        Some(error) if error.signature.is_empty() => error.text.clone(),
        Some(error) => format!("{}: {}", error.signature, error.text),
    }
}

fn attempt_cells(attempt: &pb::MessageAttempt) -> Vec<String> {
    let ran = between(attempt.leased_time.as_ref(), attempt.ended_time.as_ref()).map(about);
    let end = match attempt.end() {
        pb::AttemptEnd::Unspecified if attempt.ended_time.is_none() => "no end known".to_owned(),
        _ => word::<pb::AttemptEnd>(attempt.end, "ATTEMPT_END_", pb::AttemptEnd::as_str_name), // each has its word
    };
    vec![
        attempt.number.to_string(),
        time_cell(attempt.leased_time.as_ref()),
        ran.unwrap_or_default(),
        end,
        attempt.worker.clone(),
        error_cell(attempt.error.as_ref()),
    ]
}

/// The time between two times of the protocol; none if one is missing or they are not in order.
fn between(from: Option<&prost_types::Timestamp>, to: Option<&prost_types::Timestamp>) -> Option<Duration> {
    let nanos = |time: &prost_types::Timestamp| i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanos);
    let nanos = nanos(to?) - nanos(from?);
    u64::try_from(nanos).ok().map(Duration::from_nanos)
}
