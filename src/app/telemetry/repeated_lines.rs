//! Suppresses floods of equal lines, so that they do not fill the log and the disk.
//!
//! A kind is all ERROR, WARN and INFO lines of one code location with one `reason`. At most one line of each kind is
//! written per second. If lines were suppressed, the next second begins with a summary: their number and the first of
//! them. INFO is included because callers can cause such lines without bound: each change of a namespace logs one.
//! DEBUG and TRACE lines are never suppressed, because they appear only where they were enabled.

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

use crate::adapters::system::SystemClock;
use crate::app::log_filter::SUMMARY;
use crate::domain::limits::{LOG_KINDS_MAX, LOG_LINE_SHOWN_BYTES_MAX};
use crate::ports::Clock;

/// The period in which at most one line of a kind is written.
const PERIOD: Duration = Duration::from_secs(1);

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
    left_out: u64,
    /// The first suppressed line, with its level.
    first: Option<(Level, String)>,
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
        let fresh = LinePeriod { began: now, left_out: 0, first: None };
        match self.periods.get_mut(&kind) {
            Some(period) if period.left_out > 0 || now.saturating_sub(period.began) < PERIOD => {
                period.left_out += 1;
                period.first.get_or_insert_with(line);
                false
            }
            _ => {
                self.periods.insert(kind, fresh);
                true
            }
        }
    }

    /// Ends the periods that are over (all, if `all`). If lines were suppressed, their summary begins the next period
    /// of the kind.
    fn end(&mut self, now: Duration, all: bool) -> Vec<SuppressedLines> {
        let mut ended = Vec::new();
        self.periods.retain(|_, period| {
            if !all && now.saturating_sub(period.began) < PERIOD {
                return true;
            }
            let Some((level, first)) = period.first.take() else { return false };
            ended.push(SuppressedLines { level, lines: period.left_out, first });
            *period = LinePeriod { began: now, left_out: 0, first: None };
            true
        });
        ended
    }

    /// The end of the earliest period.
    fn next_end(&self) -> Option<Duration> {
        self.periods.values().map(|period| period.began + PERIOD).min()
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
        let was_empty = state.kinds.periods.is_empty();
        let written = state.kinds.admit(kind, SystemClock.elapsed(), || (*metadata.level(), shown(event)));
        drop(state);
        if was_empty {
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

/// Logs the summaries once a second.
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
        match state.kinds.next_end() {
            _ if state.ended => {}
            Some(end) => {
                shared.changed.wait_for(&mut state, end.saturating_sub(SystemClock.elapsed()));
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

    #[test]
    fn a_flood_is_one_line_a_second_and_every_line_is_counted() {
        let (mut kinds, mut lines, mut told) = (kinds(), Vec::new(), 0);
        for ms in 0..10_000 {
            for ended in kinds.end(MS(ms), false) {
                lines.push(ms);
                told += ended.lines;
            }
            if kinds.admit(kind(1, "A"), MS(ms), || line(ms)) {
                lines.push(ms);
                told += 1;
            }
        }
        told += kinds.end(MS(10_000), true).iter().map(|ended| ended.lines).sum::<u64>();
        assert_eq!(told, 10_000);
        assert!(lines.windows(2).all(|pair| pair[1] - pair[0] >= 1_000), "{lines:?}");
        assert_eq!(lines.len(), 10);
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
        for second in 0..5 {
            assert!(kinds.end(MS(second * 1_000), false).is_empty());
            assert!(kinds.admit(kind(1, "A"), MS(second * 1_000), || line(second)));
        }
        assert!(kinds.end(MS(5_000), false).is_empty());
        assert_eq!(kinds.next_end(), None, "no period is kept");
    }

    #[test]
    fn the_first_line_left_out_is_the_one_shown() {
        let mut kinds = kinds();
        for number in 0..4 {
            kinds.admit(kind(1, "A"), MS(number), || line(number));
        }
        let shown = SuppressedLines { level: Level::WARN, lines: 3, first: "line 1".to_owned() };
        assert_eq!(kinds.end(MS(1_000), false), [shown]);
        assert!(!kinds.admit(kind(1, "A"), MS(1_500), || line(4)), "the line that says so stands for this second");
        assert_eq!(kinds.end(MS(2_000), false).len(), 1);
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
