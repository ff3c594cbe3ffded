//! `top`: what queues do now, on one screen that renews itself. The numbers are those of the overview of the console.
//!
//! A screen fits a terminal of 80 columns and 24 lines, and is text like any other: where the output is no terminal,
//! screens follow each other.

use std::io::{IsTerminal as _, stdout};
use std::time::Duration;

use clap::Args;

use crate::output::{Format, duration_of};
use crate::queue::ActivityOrderArg;
use crate::{ClientArgs, ClientContext, Failure, GlobalArgs, arguments};
use tallystone_app::notices::cut_line;
use tallystone_app::units::counted;
use tallystone_proto::queue::v1 as pb;

/// The columns of a screen in characters, and its least lines.
const WIDTH: usize = 80;
const LINES_LEAST: u64 = 12;
/// The reasons for attention on a screen.
const ATTENTION_LINES: usize = 5;
/// The columns of numbers, with their widths. The names of queues have the rest.
const COLUMNS: [(&str, usize); 9] = [
    ("READY", 7),
    ("INVIS", 6),
    ("RUN", 6),
    ("ERR", 6),
    ("IN/s", 6),
    ("OUT/s", 6),
    ("FAIL/s", 7),
    ("OLDEST", 7),
    ("DRAIN", 7),
];
/// Clears a terminal, and begins at its top.
const CLEAR: &str = "\u{1b}[2J\u{1b}[H";

/// Show what queues do now, again and again; stop with ctrl-c.
///
/// What needs attention comes first, then a row for each queue. A number that is not known is a dash.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tallystone top --screens 1")]
pub struct TopScreenArgs {
    /// Only names with this prefix.
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
    /// The order of the rows.
    #[arg(long, value_enum, default_value = "attention")]
    order: ActivityOrderArg,
    /// The time between two screens.
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = arguments::duration)]
    every: Duration,
    /// The number of screens [default: until ctrl-c].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    screens: Option<u64>,
    /// The lines of a screen.
    #[arg(long, default_value_t = 24, value_name = "N", value_parser = clap::value_parser!(u64).range(LINES_LEAST..=1_000))]
    lines: u64,
    #[command(flatten)]
    client: ClientArgs,
}

/// The content of a screen.
struct TopReading {
    listed: pb::ListQueueActivityResponse,
    /// The queues that need attention first.
    urgent: Vec<pb::QueueActivity>,
}

impl TopScreenArgs {
    pub async fn run(self, global: &GlobalArgs) -> Result<(), Failure> {
        let session = self.client.open(global)?;
        if session.output.format() != Format::Table {
            return Err(Failure::usage(
                "top shows a screen; `tallystone queue activity` has its rows in other formats",
            ));
        }
        let lines = usize::try_from(self.lines).unwrap_or(usize::MAX);
        let mut last = self.read(&session, lines).await?;
        let (mut shown, mut trouble) = (0, None);
        loop {
            let screen = screen(&last, &session.server, trouble.as_deref(), lines);
            let clear = if stdout().is_terminal() { CLEAR } else { "" };
            session.output.bytes(format!("{clear}{}\n", screen.join("\n")).as_bytes())?;
            shown += 1;
            if self.screens.is_some_and(|most| shown >= most) {
                return Ok(());
            }
            tokio::time::sleep(self.every).await;
            // A server that does not answer may be back in a moment: the last numbers stay, and get older.
            trouble = match self.read(&session, lines).await {
                Ok(read) => {
                    last = read;
                    None
                }
                Err(failure) => Some(failure.to_string()),
            };
        }
    }

    async fn read(&self, session: &ClientContext, lines: usize) -> Result<TopReading, Failure> {
        let page_size = i32::try_from(lines).unwrap_or(i32::MAX);
        let (prefix, order) = (self.prefix.clone(), self.order.wire().into());
        let request = pb::ListQueueActivityRequest { prefix, order, page_size, ..Default::default() };
        let listed = call!(ask session, queues.list_queue_activity, &request)?;
        let page_size = i32::try_from(ATTENTION_LINES).unwrap_or(i32::MAX);
        let request = pb::ListQueueActivityRequest { page_size, order: pb::ActivityOrder::Attention.into(), ..request };
        let urgent = call!(ask session, queues.list_queue_activity, &request)?.queues;
        Ok(TopReading { listed, urgent })
    }
}

/// The lines of a screen.
fn screen(read: &TopReading, server: &str, trouble: Option<&str>, most: usize) -> Vec<String> {
    let totals = read.listed.totals.unwrap_or_default();
    let age = read.listed.server_time.zip(totals.as_of).map(|(now, as_of)| now.seconds - as_of.seconds);
    let mut lines = vec![match trouble {
        Some(trouble) => format!("{server}: no answer: {trouble}"),
        None => format!(
            "{server}: {}, {} attention; as of {} ago",
            counted(totals.queues, "queue", "queues"),
            counted(totals.attention, "needs", "need"),
            age.map_or_else(|| UNKNOWN.to_owned(), |age| short_span(age.max(0)))
        ),
    }];
    lines.push(format!(
        "ready {}   running {}   errored {}   in {}/s   out {}/s   oldest {}",
        count(totals.pending),
        count(totals.running),
        count(totals.errored),
        rate(totals.in_per_second),
        rate(totals.out_per_second),
        span(totals.oldest_ready_age.as_ref())
    ));
    lines.push(String::new());
    let reasons = read.urgent.iter().flat_map(|queue| queue.attention.iter().map(move |reason| (queue, reason)));
    lines.extend(reasons.take(ATTENTION_LINES).map(|(queue, reason)| format!("! {}: {}", queue.queue, reason.text)));
    if lines.len() > 3 {
        lines.push(String::new());
    }
    lines.push(row("QUEUE", COLUMNS.map(|(name, _)| name.to_owned())));
    let room = most.saturating_sub(lines.len());
    lines.extend(read.listed.queues.iter().take(room).map(|queue| row(&queue.queue, numbers(queue))));
    lines.iter().map(|line| cut_line(line, WIDTH).trim_end().to_owned()).collect()
}

/// A row of the table: the name, and the numbers at the right ends of their columns.
fn row(name: &str, numbers: [String; COLUMNS.len()]) -> String {
    let width = WIDTH - COLUMNS.iter().map(|(_, width)| width).sum::<usize>();
    let mut line = format!("{:<width$}", cut_line(name, width - 1));
    for (number, (_, width)) in numbers.iter().zip(COLUMNS) {
        line.push_str(&format!("{number:>width$}"));
    }
    line
}

fn numbers(queue: &pb::QueueActivity) -> [String; COLUMNS.len()] {
    [
        count(queue.pending),
        count(queue.invisible),
        count(queue.running),
        count(queue.errored),
        rate(queue.in_per_second),
        rate(queue.out_per_second),
        rate(queue.fail_per_second),
        span(queue.oldest_ready_age.as_ref()),
        span(queue.time_to_drain.as_ref()),
    ]
}

const UNKNOWN: &str = "–";

/// A number in at most five characters.
fn count(number: Option<i64>) -> String {
    match number {
        None => UNKNOWN.to_owned(),
        Some(number @ ..100_000) => number.to_string(),
        Some(number @ 100_000..10_000_000) => format!("{}k", number / 1_000),
        Some(number @ 10_000_000..10_000_000_000) => format!("{}M", number / 1_000_000),
        Some(number) => format!("{}G", number / 1_000_000_000),
    }
}

fn rate(rate: Option<f64>) -> String {
    match rate {
        None => UNKNOWN.to_owned(),
        Some(rate) if rate > 0.0 && rate < 0.05 => "<0.1".to_owned(),
        Some(rate) if rate >= 100.0 => count(Some(rate.round() as i64)),
        Some(rate) => format!("{rate:.1}"),
    }
}

fn span(span: Option<&prost_types::Duration>) -> String {
    let seconds = |span| i64::try_from(duration_of(span).as_secs()).unwrap_or(i64::MAX);
    span.map_or_else(|| UNKNOWN.to_owned(), |span| short_span(seconds(span)))
}

/// Seconds in their greatest unit, in at most six characters.
fn short_span(seconds: i64) -> String {
    match seconds {
        ..120 => format!("{seconds}s"),
        120..7_200 => format!("{}min", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use prost_types::{Duration as WireDuration, Timestamp};

    use super::*;

    fn queue(name: &str) -> pb::QueueActivity {
        let reason =
            pb::Attention { text: "the oldest message has been ready for 5 min, ".repeat(3), ..Default::default() };
        pb::QueueActivity {
            queue: name.to_owned(),
            pending: Some(1_234_567),
            invisible: Some(99_999),
            errored: Some(3),
            in_per_second: Some(1_234_567.0),
            out_per_second: Some(0.01),
            oldest_ready_age: Some(WireDuration { seconds: 7_000, nanos: 0 }),
            time_to_drain: Some(WireDuration { seconds: 86_400_000, nanos: 0 }),
            attention: vec![reason],
            ..Default::default()
        }
    }

    fn reading(queues: usize) -> TopReading {
        let rows: Vec<_> = (0..queues).map(|number| queue(&format!("{number:03}{}", "/long".repeat(30)))).collect();
        let time = |seconds| Some(Timestamp { seconds, nanos: 0 });
        let totals = pb::ActivityTotals { queues: 100, attention: 1, as_of: time(100), ..Default::default() };
        let listed = pb::ListQueueActivityResponse {
            queues: rows.clone(),
            totals: Some(totals),
            server_time: time(102),
            ..Default::default()
        };
        TopReading { listed, urgent: rows }
    }

    #[test]
    fn a_screen_of_many_queues_with_long_names_fits_80_columns_and_24_lines() {
        let lines = screen(&reading(100), "127.0.0.1:7450", None, 24);
        assert_eq!(lines.len(), 24);
        assert!(lines.iter().all(|line| line.chars().count() <= WIDTH), "{lines:#?}");
        assert_eq!(lines[0], "127.0.0.1:7450: 100 queues, 1 needs attention; as of 2s ago");
        assert_eq!(lines[1], "ready –   running –   errored –   in –/s   out –/s   oldest –");
        assert!(lines[3].starts_with("! 000/long") && lines[3].ends_with('…'), "{lines:#?}");
        assert_eq!(
            lines[9].split_whitespace().collect::<Vec<_>>().join(" "),
            "QUEUE READY INVIS RUN ERR IN/s OUT/s FAIL/s OLDEST DRAIN"
        );
        let row = lines[10].split_whitespace().skip(1).collect::<Vec<_>>().join(" ");
        assert_eq!(row, "1234k 99999 – 3 1234k <0.1 – 116min 1000d");
    }

    #[test]
    fn a_server_that_does_not_answer_is_said_above_its_last_numbers() {
        let lines = screen(&reading(1), "db:7450", Some("it is away"), 24);
        assert_eq!(lines[0], "db:7450: no answer: it is away");
        assert!(lines.iter().any(|line| line.contains("1234k")), "{lines:#?}");
    }
}
