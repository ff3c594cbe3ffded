//! The part of a plan that is about queues: memory and disk on the embedded engine, and memory on Redis.

use std::time::Duration;

use clap::Args;

use crate::output::Output;
use crate::plan::cells::{PlanRow, estimated, row, setting};
use crate::{Failure, arguments};
use tallystone_app::units;
use tallystone_domain::capacity::queues::{EmbeddedQueuePlan, HISTORY_RETENTION, QueueLoad, QueuePlan, RedisQueuePlan};
use tallystone_domain::limits::{
    DEDUPE_WINDOW_MAX, DEDUPE_WINDOW_MIN, MESSAGE_TTL_MAX, METADATA_BYTES_MAX, PAYLOAD_BYTES_MAX,
};

/// The window unless it is given, and unless the retention is shorter: the default of a queue.
const DEDUPE_WINDOW: Duration = Duration::from_secs(3_600);
/// The highest rate that is planned for, in lives a second.
const FASTEST: u64 = 1_000_000;

/// A load of queues; none without `--lives-per-second`.
#[derive(Debug, Args)]
pub struct QueueLoadArgs {
    /// Messages that are enqueued, worked off and finished per second, of all queues together; may be a fraction.
    #[arg(long, value_name = "N", value_parser = lives_per_1000_seconds)]
    lives_per_second: Option<u64>,
    /// How long queues keep finished messages.
    #[arg(long, default_value = "1h", value_name = "TIME", value_parser = retention, requires = "lives_per_second")]
    queue_retention: Duration,
    /// The dedupe_window of the queues [default: 1h, or the retention if that is shorter].
    #[arg(long, value_name = "TIME", value_parser = dedupe_window, requires = "lives_per_second")]
    dedupe_window: Option<Duration>,
    /// Bytes of the payload of a message.
    #[arg(long, default_value = "100B", value_name = "SIZE", value_parser = payload, requires = "lives_per_second")]
    payload: u64,
    /// Bytes of the keys and values of the metadata of a message.
    #[arg(long, default_value = "0B", value_name = "SIZE", value_parser = metadata, requires = "lives_per_second")]
    metadata: u64,
    /// Messages that wait at one time, at most; count one that runs as two [default: those of a minute].
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..=1_000_000_000_000),
        requires = "lives_per_second"
    )]
    pending: Option<u64>,
}

impl QueueLoadArgs {
    /// The rows of the plan in reading order; `None` if no queues are asked for. The error is that of a window that no
    /// queue allows.
    pub fn rows(&self, output: Output) -> Result<Option<Vec<PlanRow>>, Failure> {
        let Some(lives_per_1000_seconds) = self.lives_per_second else { return Ok(None) };
        let dedupe_window = self.dedupe_window.unwrap_or(DEDUPE_WINDOW.min(self.queue_retention));
        if dedupe_window > self.queue_retention {
            let (window, retention) = (units::span(dedupe_window), units::span(self.queue_retention));
            let text = format!("--dedupe-window {window} is longer than --queue-retention {retention}");
            return Err(Failure::usage(text).hint("a queue keeps finished messages at least for its dedupe_window"));
        }
        let load = QueueLoad {
            lives_per_1000_seconds,
            retention: self.queue_retention,
            dedupe_window,
            payload_bytes: self.payload,
            metadata_bytes: self.metadata,
            pending: self.pending,
        };
        Ok(Some(rows_of(&load.plan(), output)))
    }
}

fn rows_of(plan: &QueuePlan, output: Output) -> Vec<PlanRow> {
    let counts = [
        row("finished messages", plan.finished.to_string(), "at one time, by retention"),
        row("pending messages", plan.pending.to_string(), "at one time, at most"),
        row("kept answers", plan.answers.to_string(), "at one time, at most: they outlive their messages"),
    ];
    let warnings = plan.warnings.iter().map(|warning| row("warning", "look".to_owned(), warning));
    let mut rows = Vec::from(counts);
    rows.extend(memory_on_embedded(&plan.embedded, output));
    rows.extend(disk_on_embedded(&plan.embedded, output));
    rows.extend(memory_on_redis(&plan.redis, output));
    rows.extend(warnings);
    rows
}

fn memory_on_embedded(plan: &EmbeddedQueuePlan, output: Output) -> Vec<PlanRow> {
    let about = |bytes| estimated(bytes, output);
    let mut rows = vec![
        row("finished messages, embedded", about(plan.finished_bytes), "memory"),
        row("pending messages, embedded", about(plan.pending_bytes), "memory"),
    ];
    if plan.answers_bytes > 0 {
        rows.push(row("kept answers, embedded", about(plan.answers_bytes), "memory"));
    }
    let set = setting(plan.memory_setting_bytes, output);
    rows.extend([
        row("queues, embedded", about(plan.memory_bytes), "memory, all of these"),
        row("queues.memory_bytes", set, "of the server: a quarter more; enqueues beyond it are STORAGE_FULL"),
        row("machine, embedded", about(plan.machine_bytes), "memory: twice the setting, at least 400MiB more than it"),
    ]);
    rows
}

fn disk_on_embedded(plan: &EmbeddedQueuePlan, output: Output) -> Vec<PlanRow> {
    let about = |bytes| estimated(bytes, output);
    let mut rows = vec![
        row("disk, heads", about(plan.heads_disk_bytes), "embedded; twice, while files are merged"),
        row("disk, bodies", about(plan.bodies_disk_bytes), "embedded; twice, while files are merged"),
    ];
    if plan.answers_disk_bytes > 0 {
        rows.push(row("disk, kept answers", about(plan.answers_disk_bytes), "embedded; twice, while files are merged"));
    }
    // Whole minutes of an hour or more: nobody plans by seconds there.
    let grain = if plan.history_reach.as_secs() < 3_600 { 1 } else { 60 };
    let reach = units::span(Duration::from_secs(plan.history_reach.as_secs() / grain * grain));
    let history = match plan.history_reach < HISTORY_RETENTION {
        true => format!("embedded; the last {reach}: bridge.history_max_bytes is full then"),
        false => "embedded; 7 days, bridge.history_max_bytes at most".to_owned(),
    };
    rows.extend([
        row("disk, outboxes", about(plan.outbox_disk_bytes), "embedded; an hour of changes, 1GiB at most"),
        row("disk, history", about(plan.history_disk_bytes), &history),
        row("disk, queues", about(plan.disk_bytes), "embedded, all of these"),
    ]);
    rows
}

fn memory_on_redis(plan: &RedisQueuePlan, output: Output) -> Vec<PlanRow> {
    let about = |bytes| estimated(bytes, output);
    let mut rows = vec![
        row("finished messages, Redis", about(plan.finished_bytes), "memory"),
        row("pending messages, Redis", about(plan.pending_bytes), "memory"),
    ];
    if plan.answers_bytes > 0 {
        rows.push(row("kept answers, Redis", about(plan.answers_bytes), "memory"));
    }
    let maxmemory = "of all primaries; status warns from 85 % on, enqueues are refused from 95 % on";
    let machine = "memory of all primaries: a snapshot may need as much again; each replica needs the same";
    rows.extend([
        row("used_memory, Redis", about(plan.used_memory_bytes), "of all primaries, all of these"),
        row("maxmemory, Redis", setting(plan.maxmemory_bytes, output), maxmemory),
        row("machines, Redis", about(plan.machine_bytes), machine),
    ]);
    rows
}

/// Parses lives a second with up to three decimals, into lives in a thousand seconds.
fn lives_per_1000_seconds(text: &str) -> Result<u64, String> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let digits = format!("{whole}{fraction:0<3}");
    let lives = digits.parse().ok().filter(|_| is_number(whole) && is_number(fraction) && fraction.len() <= 3);
    let lives = lives.filter(|lives| (1..=FASTEST * 1_000).contains(lives));
    lives.ok_or_else(|| format!("not a rate from 0.001 to {FASTEST} a second; write it as 100 or 0.5"))
}

/// Parses a retention that a queue allows: at least the shortest window.
fn retention(text: &str) -> Result<Duration, String> {
    time_within(text, DEDUPE_WINDOW_MIN, MESSAGE_TTL_MAX, "a queue keeps finished messages for")
}

fn dedupe_window(text: &str) -> Result<Duration, String> {
    time_within(text, DEDUPE_WINDOW_MIN, DEDUPE_WINDOW_MAX, "the dedupe_window of a queue is")
}

fn time_within(text: &str, least: Duration, most: Duration, what: &str) -> Result<Duration, String> {
    let time = arguments::duration(text)?;
    let is_allowed = (least..=most).contains(&time);
    is_allowed.then_some(time).ok_or_else(|| format!("{what} {} to {}", units::span(least), units::span(most)))
}

fn payload(text: &str) -> Result<u64, String> {
    size_within(text, PAYLOAD_BYTES_MAX, "a payload has")
}

fn metadata(text: &str) -> Result<u64, String> {
    size_within(text, METADATA_BYTES_MAX, "the metadata of a message have")
}

fn size_within(text: &str, most: u32, what: &str) -> Result<u64, String> {
    let bytes: u64 = arguments::bytes(text)?;
    let is_allowed = bytes <= u64::from(most);
    is_allowed.then_some(bytes).ok_or_else(|| format!("{what} at most {most} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallystone_domain::capacity::queues::{HISTORY_BYTES, REDIS_TOLD_FROM_PERCENT};
    use tallystone_domain::queue::Settings;
    use tallystone_ports::MEMORY_TOLD_FROM_PERCENT;

    /// A number with commas between thousands.
    fn grouped(number: u64) -> String {
        let (rest, last) = (number / 1_000, number % 1_000);
        if rest == 0 { last.to_string() } else { format!("{},{last:03}", grouped(rest)) }
    }

    /// A load as the command line reads it without further options.
    fn load(lives_per_second: u64, retention: Duration) -> QueueLoad {
        QueueLoad {
            lives_per_1000_seconds: lives_per_second * 1_000,
            retention,
            dedupe_window: DEDUPE_WINDOW.min(retention),
            payload_bytes: 100,
            metadata_bytes: 0,
            pending: None,
        }
    }

    #[test]
    fn the_table_of_the_manual_has_these_figures() {
        let manual = include_str!("../../../../docs/operating.md");
        for lives in [100, 1_000, 5_000, 20_000] {
            for (kept, seconds) in [("1m", 60), ("1h", 3_600), ("24h", 86_400)] {
                let retention = Duration::from_secs(seconds);
                let load = load(lives, retention);
                let QueuePlan { finished, embedded, redis, .. } = load.plan();
                let (lives, finished) = (grouped(lives), grouped(finished));
                let (memory, used) = (units::size(embedded.memory_bytes), units::size(redis.used_memory_bytes));
                let set = units::exact_size(embedded.memory_setting_bytes);
                let most = units::exact_size(redis.maxmemory_bytes);
                let line = format!("| {lives} | {kept} | {finished} | {memory} | {set} | {used} | {most} |");
                assert!(manual.contains(&line), "docs/operating.md lacks\n{line}");
            }
        }
    }

    #[test]
    fn the_row_of_the_history_says_how_far_back_it_reaches() {
        let note = |lives: u64| {
            let mut rows = rows_of(&load(lives, Duration::from_secs(60)).plan(), Output::plain()).into_iter();
            rows.find(|[item, ..]| item == "disk, history").map(|[_, _, note]| note).expect("the row is there")
        };
        assert_eq!(note(1), "embedded; 7 days, bridge.history_max_bytes at most");
        assert_eq!(note(5_000), "embedded; the last 2h2m: bridge.history_max_bytes is full then");
        assert_eq!(note(1_000_000), "embedded; the last 36s: bridge.history_max_bytes is full then");
    }

    #[test]
    fn defaults_and_bounds_are_those_of_queues_and_servers() {
        let own = Settings::default();
        assert_eq!(retention("1h"), Ok(own.retention.completed));
        assert_eq!(DEDUPE_WINDOW, own.dedupe_window);
        assert_eq!(REDIS_TOLD_FROM_PERCENT, MEMORY_TOLD_FROM_PERCENT);
        let server: toml::Table = include_str!("../../default.toml").parse().expect("the default settings are TOML");
        let bridge = |key: &str| server["bridge"][key].as_integer().and_then(|number| u64::try_from(number).ok());
        assert_eq!(bridge("history_max_bytes"), Some(HISTORY_BYTES));
        assert_eq!(bridge("history_retention_days"), Some(HISTORY_RETENTION.as_secs() / 86_400));
    }

    #[test]
    fn a_rate_has_up_to_three_decimals() {
        for (text, lives) in [("100", 100_000), ("0.5", 500), ("0.001", 1), ("1.25", 1_250), ("1000000", 1_000_000_000)]
        {
            assert_eq!(lives_per_1000_seconds(text), Ok(lives), "{text}");
        }
        for text in
            ["", "0", "0.000", "-1", "+1", "0.0001", ".5", "5.", "1e3", "1000000.001", "many", "99999999999999999999"]
        {
            let told = lives_per_1000_seconds(text).expect_err(text);
            assert!(told.contains("from 0.001 to 1000000 a second"), "{text}: {told}");
        }
    }

    #[test]
    fn times_and_sizes_that_no_queue_allows_are_told_the_range() {
        assert_eq!((retention("1m"), dedupe_window("24h")), (Ok(DEDUPE_WINDOW_MIN), Ok(DEDUPE_WINDOW_MAX)));
        for text in ["0s", "59s", "3653d"] {
            assert!(retention(text).expect_err(text).ends_with("for 1m to 3652d"), "{text}");
        }
        for text in ["0s", "25h"] {
            assert!(dedupe_window(text).expect_err(text).ends_with("is 1m to 1d"), "{text}");
        }
        assert_eq!((payload("0"), payload("32KiB"), metadata("1280B")), (Ok(0), Ok(32_768), Ok(1_280)));
        assert!(payload("32769").expect_err("too large").contains("at most 32768 bytes"));
        assert!(metadata("2KiB").expect_err("too large").contains("at most 1280 bytes"));
    }
}
