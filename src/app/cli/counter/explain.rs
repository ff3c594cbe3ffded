//! `counter explain`: describes in words how a count is composed, for operators.

use std::time::Duration;

use clap::Args;

use crate::Failure;
use crate::counter::audit::kind;
use crate::counter::{CounterContext, full_name};
use crate::output::{CliResponse, Format, TableRows, time_cell, word};
use tallystone_app::notices::{cut_line, single_line};
use tallystone_app::units::{about, span};
use tallystone_domain::limits::EXPLAIN_ROWS_MAX;
use tallystone_proto::counter::v1 as pb;

#[derive(Debug, Args)]
pub struct CounterExplainArgs {
    /// The counter.
    name: String,
    /// The number of newest log rows to show, 1 to 100.
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=EXPLAIN_ROWS_MAX as i64))]
    rows: i32,
}

const ROWS: &[&str] = &["sequence", "bucket_start", "event_time", "kind", "delta", "stage", "token", "provenance"];
/// The width of a label.
const LABEL: usize = 13;
/// The most sources of a cumulative counter in the text; the other formats have all.
const SOURCES_SHOWN: usize = 10;
/// The most characters of a token in the text, those of a UUID; the other formats have all.
const TOKEN_SHOWN: usize = 36;

impl CounterContext {
    pub(super) async fn explain(&self, args: CounterExplainArgs) -> Result<(), Failure> {
        let request = pb::ExplainCounterRequest {
            namespace: self.namespace.clone(),
            counter_name: args.name.clone(),
            rows: args.rows,
        };
        let explained = call!(ask self.session, counters.explain_counter, &request)?;
        let answer = CliResponse::many(&full_name("ExplainCounterResponse"), &explained, "rows");
        match self.session.output.format() {
            Format::Table => {
                let text = CounterExplanationText::of(&explained).all(&self.namespace, &args.name);
                self.session.output.bytes(text.as_bytes())
            }
            Format::Json => self.session.output.answer(&answer, &TableRows::default()),
            Format::Jsonl | Format::Csv => self.session.output.answer(&answer, &row_cells(&explained.rows)),
        }
    }
}

fn row_cells(rows: &[pb::LogRow]) -> TableRows {
    let cells = rows.iter().map(|row| {
        let event = row.event.clone().unwrap_or_default();
        vec![
            row.sequence.to_string(),
            time_cell(row.bucket_start.as_ref()),
            time_cell(event.event_time.as_ref()),
            kind(event.kind),
            event.delta.to_string(),
            word::<pb::RowStage>(row.stage, "ROW_STAGE_", pb::RowStage::as_str_name),
            event.token,
            event.provenance,
        ]
    });
    TableRows { columns: ROWS, cells: cells.collect() }
}

/// An explanation being converted to text.
struct CounterExplanationText<'a> {
    explained: &'a pb::ExplainCounterResponse,
    text: String,
}

impl<'a> CounterExplanationText<'a> {
    fn of(explained: &'a pb::ExplainCounterResponse) -> Self {
        Self { explained, text: String::new() }
    }

    fn all(mut self, namespace: &str, name: &str) -> String {
        let explained = self.explained;
        let fed = if explained.cumulative { "totals of sources" } else { "deltas" };
        let of_type =
            word::<pb::NamespaceType>(explained.namespace_type, "NAMESPACE_TYPE_", pb::NamespaceType::as_str_name);
        let (name, namespace) = (single_line(name), single_line(namespace));
        self.text = format!("counter {name} of namespace {namespace}: {of_type}, made of {fed}\n");
        match (&explained.rolled_up, &explained.tail, &explained.waiting) {
            (Some(rolled_up), Some(tail), Some(waiting)) => {
                self.count();
                self.parts(rolled_up, tail);
                self.rolled(rolled_up);
                self.waits(tail, waiting);
                self.rows();
            }
            _ => self.best_effort(),
        }
        self.text
    }

    /// Adds a line with a label, or another line of the same label.
    fn line(&mut self, label: &str, says: &str) {
        let width = LABEL;
        self.text.push_str(format!("{label:width$} {says}").trim_end());
        self.text.push('\n');
    }

    /// Formats a time with its age.
    fn when(&self, time: Option<&prost_types::Timestamp>) -> String {
        match (micros(time), micros(self.explained.server_time.as_ref())) {
            (Some(at), Some(now)) if at <= now => {
                format!("{} ({} ago)", time_cell(time), about(Duration::from_micros(now.abs_diff(at))))
            }
            (Some(at), Some(now)) => {
                format!("{} (in {})", time_cell(time), about(Duration::from_micros(now.abs_diff(at))))
            }
            (None, _) | (_, None) => "the beginning".to_owned(),
        }
    }

    fn best_effort(&mut self) {
        let kept = match self.explained.kept_in.as_str() {
            "" => "in the memory of the server that answers".to_owned(),
            cluster => format!("in the memcached cluster {}", single_line(cluster)),
        };
        let count = self.explained.count;
        self.line("count", &count.to_string());
        self.line("made of", &format!("a single number {kept}"));
        self.line("", "BEST_EFFORT counters keep no log: there are no parts, rows or rolls to explain. A restart");
        self.line("", "or a full cache may lose the number. A counter that was never written reads 0.");
    }

    fn count(&mut self) {
        let explained = self.explained;
        if explained.never_written {
            self.line("count", "0: the counter was never written or cleared; check its name");
            return;
        }
        let clamped = if explained.saturated { ", clamped to 64 bits" } else { "" };
        self.line("count", &format!("{} with every acknowledged event{clamped}", explained.count));
        if let Some(reading) = &explained.reading {
            let as_of = self.when(reading.as_of.as_ref());
            let behind = if reading.behind { "; newer events exist" } else { "" };
            self.line("rolled up", &format!("{} as of {as_of}{behind}", reading.count));
            let reads = match explained.namespace_type() {
                pb::NamespaceType::Accurate => "a read without options returns the count with every event",
                pb::NamespaceType::Eventual | pb::NamespaceType::BestEffort | pb::NamespaceType::Unspecified => {
                    "a read without options returns the rolled-up count; --fresh adds the rest"
                }
            };
            self.line("", reads);
        }
    }

    fn parts(&mut self, rolled_up: &pb::RolledUpPart, tail: &pb::TailPart) {
        if self.explained.never_written && tail.rows == 0 {
            return;
        }
        let checkpoint = match (rolled_up.exists, self.explained.restart()) {
            (false, _) => "0: it was never rolled up".to_owned(),
            (true, pb::Restart::Unspecified) => format!("{} of the checkpoint", rolled_up.counts),
            (true, _) => format!("{} of the checkpoint ({} no longer counts)", rolled_up.counts, rolled_up.count),
        };
        self.line("made of", &format!("  {checkpoint}"));
        let added = match tail.rows {
            0 => "+ 0: the log has no newer row".to_owned(),
            rows => format!("{} by {} above it: {}", signed(tail.counts), many(rows, "row"), changes(tail)),
        };
        self.line("", &added);
        self.line("", &format!("= {}", self.explained.count));
        if tail.rows > 0 {
            let first = self.when(tail.first_event_time.as_ref());
            let last = self.when(tail.last_event_time.as_ref());
            self.line("", &format!("from {first} to {last}"));
        }
        let at = self.when(self.explained.restart_time.as_ref());
        let ttl = self.explained.ttl.as_ref().map(crate::output::duration_of).map(span).unwrap_or_default();
        match self.explained.restart() {
            pb::Restart::Unspecified => {}
            pb::Restart::Clear => self.line("", &format!("a clear at {at} removed everything before it")),
            pb::Restart::Silence => {
                self.line(
                    "",
                    &format!("it had no writes for longer than its TTL of {ttl} and restarted from 0 at {at}"),
                );
            }
            pb::Restart::Silent => {
                self.line("", &format!("it has had no writes since {at}, longer than its TTL of {ttl}, and reads 0"));
            }
        }
        if let Some(clear) = &rolled_up.clear_time {
            let token = cut_line(&rolled_up.clear_token, TOKEN_SHOWN);
            let at = self.when(Some(clear));
            self.line("last clear", &format!("{at}, token {token}, in the checkpoint"));
        }
        self.sources(&rolled_up.sources);
    }

    fn sources(&mut self, sources: &[pb::SourceTotal]) {
        for (place, source) in sources.iter().take(SOURCES_SHOWN).enumerate() {
            let label = if place == 0 { "sources" } else { "" };
            let pb::SourceTotal { source: name, epoch, serial, total, event_time, earlier } = source;
            let at = self.when(event_time.as_ref());
            let before = if *earlier == 0 { String::new() } else { format!(", and {earlier} in earlier epochs") };
            self.line(
                label,
                &format!("{total} of {}, epoch {epoch}, serial {serial}, {at}{before}", single_line(name)),
            );
        }
        if sources.len() > SOURCES_SHOWN {
            self.line("", &format!("and {} more; -o json shows all", sources.len() - SOURCES_SHOWN));
        }
    }

    fn rolled(&mut self, rolled_up: &pb::RolledUpPart) {
        let by = match (rolled_up.rolled_by.as_str(), rolled_up.rolled_here) {
            ("", true) => "this server".to_owned(),
            ("", false) => "an earlier process on this store".to_owned(),
            (server, true) => format!("{}, the server that answers", single_line(server)),
            (server, false) => single_line(server).into_owned(),
        };
        let says = match (&rolled_up.rolled_at, rolled_up.exists) {
            (Some(at), _) => format!("{} by {by}", self.when(Some(at))),
            (None, true) => "time and server are unknown: the checkpoint is a repair".to_owned(),
            (None, false) => "never".to_owned(),
        };
        self.line("last rolled", &says);
        if rolled_up.repairs > 0 {
            self.line("", &format!("{} of its value so far", many(rolled_up.repairs, "repair")));
        }
        let limit = self.when(self.explained.limit.as_ref());
        self.line("limit", &format!("{limit}: no new event can appear at or before this time"));
    }

    fn waits(&mut self, tail: &pb::TailPart, waiting: &pb::WaitingPart) {
        if tail.rows == 0 {
            self.line("waits", "nothing");
        } else {
            let ready = match waiting.rows_ready {
                0 => "no rows for the next roll".to_owned(),
                rows => format!("{} for the next roll", many(rows, "row")),
            };
            let above = many(waiting.rows_above_limit, "row");
            self.line("waits", &format!("{ready}; {above} until the limit passes them"));
        }
        if waiting.touched_steps > 0 {
            let steps = many(waiting.touched_steps, "step");
            let first = self.when(waiting.first_touched_step.as_ref());
            self.line("", &format!("{steps} of 10s in the touch index, the first {first}"));
        }
        let here = match (waiting.signalled, waiting.rolled_up_here, waiting.roller.as_str()) {
            (true, _, _) => "the server that answers; the counter is in its rollup queues".to_owned(),
            (false, true, _) => "the server that answers; the counter is not in its rollup queues now".to_owned(),
            (false, false, "") => "no known server: it waits until a server scans the touch index".to_owned(),
            (false, false, roller) => format!("{}; ask that server for its rollup queues", single_line(roller)),
        };
        self.line("rolled by", &here);
        if waiting.held_writes > 0 {
            let writes = many(waiting.held_writes, "write");
            self.line("", &format!("{writes} to the dataset in progress on this server hold the limit back"));
        }
    }

    fn rows(&mut self) {
        let rows = &self.explained.rows;
        let more = match (self.explained.rows_left_out, self.explained.rows_left_out_at_least) {
            (0, false) => String::new(),
            (0, true) => ", and perhaps older ones".to_owned(),
            (more, false) => format!(", and {more} older"),
            (more, true) => format!(", and {more} older at least"),
        };
        match rows.len() {
            0 => self.line("rows", &format!("none in the log{more}")),
            shown => self.line("rows", &format!("the newest {shown} of the log{more}")),
        }
        let mut bucket = None;
        let delta_width = rows.iter().map(|row| change(row).chars().count()).max().unwrap_or_default();
        for row in rows {
            if bucket != Some(&row.bucket_start) {
                bucket = Some(&row.bucket_start);
                self.text.push_str(&format!("  time bucket {}\n", time_cell(row.bucket_start.as_ref())));
            }
            let event = row.event.clone().unwrap_or_default();
            let stage = match row.stage() {
                pb::RowStage::RolledUp => "rolled up",
                pb::RowStage::Ready => "next roll",
                pb::RowStage::AboveLimit => "above the limit",
                pb::RowStage::Unspecified => "",
            };
            let line = format!(
                "  {:>3}  {:27}  {:>delta_width$}  {:TOKEN_SHOWN$}  {stage}",
                row.sequence,
                time_cell(event.event_time.as_ref()),
                change(row),
                cut_line(&event.token, TOKEN_SHOWN),
            );
            self.text.push_str(line.trim_end());
            self.text.push('\n');
        }
    }
}

fn micros(time: Option<&prost_types::Timestamp>) -> Option<i64> {
    time.map(|time| time.seconds.saturating_mul(1_000_000).saturating_add(i64::from(time.nanos) / 1_000))
}

/// A number with a noun, in the plural if needed.
fn many(number: i64, thing: &str) -> String {
    match number {
        1 => format!("1 {thing}"),
        _ => format!("{number} {thing}s"),
    }
}

/// A number with its sign.
fn signed(number: i64) -> String {
    match number {
        0.. => format!("+ {number}"),
        _ => format!("- {}", number.unsigned_abs()),
    }
}

/// Describes the changes of the rows in a tail.
fn changes(tail: &pb::TailPart) -> String {
    let mut kinds = Vec::new();
    if tail.adds > 0 {
        kinds.push(format!("{} with the sum {}", many(tail.adds, "add"), tail.sum));
    }
    for (number, thing) in [(tail.clears, "clear"), (tail.totals, "total"), (tail.voids, "void")] {
        if number > 0 {
            kinds.push(many(number, thing));
        }
    }
    kinds.join(", ")
}

/// Describes the change of a row.
fn change(row: &pb::LogRow) -> String {
    let event = row.event.clone().unwrap_or_default();
    match event.kind() {
        pb::EventKind::Add => format!("{:+}", event.delta),
        pb::EventKind::Total => format!("total {}", event.delta),
        pb::EventKind::Clear => "clear".to_owned(),
        pb::EventKind::Void => "void".to_owned(),
        pb::EventKind::Unspecified => String::new(),
    }
}
