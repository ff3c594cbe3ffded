//! Suppresses floods of equal lines, so that they do not fill the log and the disk.
//!
//! A kind is all ERROR, WARN and INFO lines of one code location with one `reason`. At most one line of each kind is
//! written per period. If lines were suppressed, the next period begins with a summary: their number and the first of
//! them. A period lasts a second. While lines of the kind go on, each period is twice as long as the one before, up to
//! a minute, so that an outage does not fill the log. INFO is included because callers can cause such lines without
//! bound: each change of a namespace logs one. DEBUG and TRACE lines are never suppressed, because they appear only
//! where they were enabled.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata};
use tracing_subscriber::layer::{Context, Filter};

use crate::log_filter::SUMMARY;
use tallystone_adapters::system::SystemClock;
use tallystone_domain::limits::{LOG_KINDS_MAX, LOG_LINE_SHOWN_BYTES_MAX};
use tallystone_ports::Clock;

/// The first period in which at most one line of a kind is written.
const PERIOD_FIRST: Duration = Duration::from_secs(1);
/// The longest period.
const PERIOD_LONGEST: Duration = Duration::from_mins(1);

/// Lines of one code location with one reason.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct LineKind<P> {
    place: P,
    reason: String,
}

/// The lines of a kind in the period that began with its last written line.
#[derive(Clone, PartialEq, Eq, Debug)]
struct LinePeriod {
    began: Duration,
    lasts: Duration,
    left_out: u64,
    /// The first suppressed line, with its level.
    first: Option<(Level, String)>,
}

impl LinePeriod {
    fn begin(now: Duration, lasts: Duration) -> Self {
        Self { began: now, lasts, left_out: 0, first: None }
    }

    /// The period after this one, if lines of the kind go on.
    fn next(&self, now: Duration) -> Self {
        Self::begin(now, (self.lasts * 2).min(PERIOD_LONGEST))
    }

    fn end(&self) -> Duration {
        self.began + self.lasts
    }

    /// When the kind is forgotten: a line that comes before then goes on with the others.
    fn forgotten(&self) -> Duration {
        self.end() + self.lasts
    }
}

/// Decides which lines are written, by time since machine start. `P` identifies a code location.
#[derive(Debug)]
struct LineKinds<P> {
    periods: HashMap<LineKind<P>, LinePeriod>,
}

/// Lines of one kind that were suppressed within a period.
#[derive(Clone, PartialEq, Eq, Debug)]
struct SuppressedLines {
    level: Level,
    lines: u64,
    first: String,
}

impl<P: Eq + std::hash::Hash> LineKinds<P> {
    /// Whether a line of this kind is written at this time.
    fn admit(&mut self, kind: LineKind<P>, now: Duration, line: impl FnOnce() -> (Level, String)) -> bool {
        if self.periods.len() >= LOG_KINDS_MAX && !self.periods.contains_key(&kind) {
            return true;
        }
        match self.periods.get_mut(&kind) {
            Some(period) if period.left_out > 0 || now < period.end() => {
                period.left_out += 1;
                period.first.get_or_insert_with(line);
                false
            }
            Some(period) if now < period.forgotten() => {
                *period = period.next(now);
                true
            }
            Some(_) | None => {
                self.periods.insert(kind, LinePeriod::begin(now, PERIOD_FIRST));
                true
            }
        }
    }

    /// Ends the periods that are over (all, if `all`). If lines were suppressed, their summary begins the next period
    /// of the kind.
    fn end(&mut self, now: Duration, all: bool) -> Vec<SuppressedLines> {
        let mut ended = Vec::new();
        self.periods.retain(|_, period| {
            if !all && now < period.end() {
                return true;
            }
            let Some((level, first)) = period.first.take() else { return !all && now < period.forgotten() };
            ended.push(SuppressedLines { level, lines: period.left_out, first });
            *period = period.next(now);
            true
        });
        ended
    }

    /// When the next period ends, or the next kind is forgotten.
    fn next_end(&self, now: Duration) -> Option<Duration> {
        let next = |period: &LinePeriod| {
            let is_quiet = period.left_out == 0 && now >= period.end();
            if is_quiet { period.forgotten() } else { period.end() }
        };
        self.periods.values().map(next).min()
    }
}

#[derive(Debug)]
struct RepeatedLineShared {
    state: Mutex<RepeatedLineState>,
    changed: Condvar,
}

#[derive(Debug)]
struct RepeatedLineState {
    kinds: LineKinds<Identifier>,
    ended: bool,
}

/// The log layer's filter that suppresses repeated lines.
#[derive(Clone, Debug)]
pub struct RepeatedLineFilter(Arc<RepeatedLineShared>);

/// Logs the summaries. `finish` logs the last ones.
#[derive(Debug)]
pub struct SuppressionReporter {
    shared: Arc<RepeatedLineShared>,
    thread: JoinHandle<()>,
}

impl RepeatedLineFilter {
    /// Creates a filter and the thread that logs its summaries. Fails if the thread cannot be started.
    pub fn start() -> std::io::Result<(Self, SuppressionReporter)> {
        let state = RepeatedLineState { kinds: LineKinds { periods: HashMap::new() }, ended: false };
        let shared = Arc::new(RepeatedLineShared { state: Mutex::new(state), changed: Condvar::new() });
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("log".to_owned()).spawn(move || summarize(&own))?;
        Ok((Self(Arc::clone(&shared)), SuppressionReporter { shared, thread }))
    }
}

/// Whether a line may be suppressed: not debugging lines, and not summaries.
fn is_suppressible(metadata: &Metadata<'_>) -> bool {
    *metadata.level() <= Level::INFO && metadata.target() != SUMMARY
}

impl<S> Filter<S> for RepeatedLineFilter {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        // The library treats a filter that answers "always" and then rejects an event as faulty.
        if is_suppressible(metadata) { Interest::sometimes() } else { Interest::always() }
    }

    /// Without this hint, the log's level would no longer bound the library: it would create and discard every span of
    /// every library, at any level. That took a third of the processor time of a cheap call.
    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::TRACE)
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if !is_suppressible(metadata) {
            return true;
        }
        let mut reason = ReasonField::default();
        event.record(&mut reason);
        let kind = LineKind { place: metadata.callsite(), reason: reason.0 };
        let mut state = self.0.state.lock();
        let written = state.kinds.admit(kind, SystemClock.elapsed(), || (*metadata.level(), shown(event)));
        drop(state);
        // A period began, which may end before all others.
        if written {
            self.0.changed.notify_one();
        }
        written
    }
}

impl SuppressionReporter {
    /// Logs the last summaries and ends the thread.
    pub fn finish(self) {
        self.shared.state.lock().ended = true;
        self.shared.changed.notify_one();
        // A panic of the thread is already logged.
        let _ = self.thread.join();
    }
}

/// Logs the summaries at the ends of periods.
fn summarize(shared: &RepeatedLineShared) {
    let mut state = shared.state.lock();
    loop {
        let ended = state.ended;
        let left_out = state.kinds.end(SystemClock.elapsed(), ended);
        if !left_out.is_empty() {
            // The summary lines pass through the filter, which takes the lock.
            drop(state);
            left_out.iter().for_each(write);
            state = shared.state.lock();
        }
        if ended {
            return;
        }
        let now = SystemClock.elapsed();
        match state.kinds.next_end(now) {
            _ if state.ended => {}
            Some(end) => {
                shared.changed.wait_for(&mut state, end.saturating_sub(now));
            }
            None => shared.changed.wait(&mut state),
        }
    }
}

fn write(left_out: &SuppressedLines) {
    let SuppressedLines { level, lines, first } = left_out;
    // The level of a log line is fixed at compile time.
    match *level {
        Level::ERROR => {
            tracing::error!(target: SUMMARY, left_out = lines, "similar lines were left out; the first of them: \
                {first}");
        }
        Level::WARN => tracing::warn!(target: SUMMARY, left_out = lines, "similar lines were left out; the first of \
            them: {first}"),
        // Lines of lower levels are never suppressed.
        _ => tracing::info!(target: SUMMARY, left_out = lines, "similar lines were left out; the first of them: \
            {first}"),
    }
}

/// Reads the value of the field `reason`.
#[derive(Default)]
struct ReasonField(String);

impl Visit for ReasonField {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "reason" {
            self.0 = format!("{value:?}");
        }
    }
}

/// The text of a line: its message, then its fields.
fn shown(event: &Event<'_>) -> String {
    let mut line = EventText::default();
    event.record(&mut line);
    let mut text = line.message + &line.fields;
    if text.len() > LOG_LINE_SHOWN_BYTES_MAX {
        text.truncate(text.floor_char_boundary(LOG_LINE_SHOWN_BYTES_MAX));
        text.push('…');
    }
    text
}

#[derive(Default)]
struct EventText {
    message: String,
    fields: String,
}

impl Visit for EventText {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a String does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(place: u32, reason: &str) -> LineKind<u32> {
        LineKind { place, reason: reason.to_owned() }
    }

    fn kinds() -> LineKinds<u32> {
        LineKinds { periods: HashMap::new() }
    }

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn line(number: u64) -> (Level, String) {
        (Level::WARN, format!("line {number}"))
    }

    /// When lines are written, and how many lines they stand for, if a kind has one every so often.
    fn written(every_ms: u64, for_ms: u64) -> (Vec<u64>, u64) {
        let (mut kinds, mut lines, mut told) = (kinds(), Vec::new(), 0);
        for ms in 0..for_ms {
            for ended in kinds.end(MS(ms), false) {
                lines.push(ms);
                told += ended.lines;
            }
            if ms.is_multiple_of(every_ms) && kinds.admit(kind(1, "A"), MS(ms), || line(ms)) {
                lines.push(ms);
                told += 1;
            }
        }
        told += kinds.end(MS(for_ms), true).iter().map(|ended| ended.lines).sum::<u64>();
        (lines, told)
    }

    #[test]
    fn a_flood_is_a_line_each_period_and_every_line_is_counted() {
        let (lines, told) = written(1, 200_000);
        assert_eq!(told, 200_000);
        assert_eq!(lines, [0, 1_000, 3_000, 7_000, 15_000, 31_000, 63_000, 123_000, 183_000]);
    }

    #[test]
    fn a_line_that_comes_again_and_again_is_written_less_and_less_often() {
        let (lines, told) = written(1_100, 330_000);
        assert_eq!(told, 300);
        assert!(lines.len() < 15 && lines.windows(2).all(|pair| pair[1] - pair[0] <= 120_000), "{lines:?}");
    }

    #[test]
    fn kinds_do_not_hide_each_other() {
        let mut kinds = kinds();
        for (place, reason) in [(1, "A"), (1, "B"), (2, "A")] {
            assert!(kinds.admit(kind(place, reason), MS(0), || line(0)));
            assert!(!kinds.admit(kind(place, reason), MS(999), || line(1)));
        }
        assert_eq!(kinds.end(MS(1_000), false).len(), 3);
    }

    #[test]
    fn what_is_rare_is_always_written_and_then_forgotten() {
        let mut kinds = kinds();
        for time in (0..10).step_by(2).map(|second| MS(second * 1_000)) {
            assert!(kinds.end(time, false).is_empty());
            assert!(kinds.admit(kind(1, "A"), time, || line(0)));
        }
        assert!(kinds.end(MS(9_000), false).is_empty());
        assert_eq!(kinds.next_end(MS(9_000)), Some(MS(10_000)), "a line before then would go on with the last");
        assert!(kinds.end(MS(10_000), false).is_empty());
        assert_eq!(kinds.next_end(MS(10_000)), None, "no period is kept");
    }

    #[test]
    fn the_first_line_left_out_is_the_one_shown() {
        let mut kinds = kinds();
        for number in 0..4 {
            kinds.admit(kind(1, "A"), MS(number), || line(number));
        }
        let shown = SuppressedLines { level: Level::WARN, lines: 3, first: "line 1".to_owned() };
        assert_eq!(kinds.end(MS(1_000), false), [shown]);
        assert!(!kinds.admit(kind(1, "A"), MS(1_500), || line(4)), "the line that says so stands for this period");
        assert!(kinds.end(MS(2_999), false).is_empty());
        assert_eq!(kinds.end(MS(3_000), false).len(), 1);
    }

    #[test]
    fn kinds_without_end_take_bounded_memory_and_lose_nothing() {
        let mut kinds = kinds();
        for place in 0..=u32::try_from(LOG_KINDS_MAX).expect("LOG_KINDS_MAX fits into 32 bits") {
            assert!(kinds.admit(kind(place, ""), MS(0), || line(0)));
        }
        assert_eq!(kinds.periods.len(), LOG_KINDS_MAX);
    }
}
