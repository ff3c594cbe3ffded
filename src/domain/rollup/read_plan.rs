//! The plan of a read: from the facts about a counter to the next step, and at last to the answer.
//!
//! The plan decides and never waits. The engine performs one step at a time and reports its result with the method of
//! the same name. The order of the steps, with optional ones in brackets:
//!
//! ```text
//!                  look                               tail                           roll, at most once
//! ReadCache [ReadRow] | [LookAtTail [FindFirst | FoldTail]] [FillCache] | [MoveLimit] [Roll] -> look at the row again
//! ```
//!
//! Each look at the cache or the row has at most one look at the tail. The row is read again only after the limit moved
//! or the counter was rolled up.
//!
//! The invariant: a count that is exact as of a time contains every acknowledged event up to that time.

use crate::fleet::{ProtocolRule, ProtocolRules};
use crate::namespace::Temporality;
use crate::rollup::checkpoint::{clamp_count, is_ttl_expired};
use crate::rollup::fold::{TailLookup, TailSum};
use crate::rollup::reading::{CountReading, Exactness, ReadOptions};
use crate::rollup::rollup_row::{CachedCount, RollupRow};
use crate::rollup::slice_rules::FoldRules;
use crate::time::Timestamp;

/// The settings that a read obeys.
#[derive(Clone, Copy, Debug)]
pub struct ReadRules<'a> {
    /// The TTL of each slice.
    pub fold: &'a FoldRules,
    /// Whether the counter takes deltas or totals.
    pub temporality: Temporality,
    /// Whether the answer contains every event acknowledged before the read began, and not only rolled-up ones.
    pub is_up_to_date: bool,
    /// The rules of the protocol in force.
    pub protocol: ProtocolRules,
}

/// The state of a server before a look at the cache or at the row. All of it is read before the look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StateBefore {
    /// The highest `as_of` that this server has served of the counter. The store, read later, contains everything that
    /// made it true.
    pub as_of_floor: Timestamp,
    /// The watermark of the counter's shard. Every checkpoint that is read after it contains all events up to it.
    pub watermark: Timestamp,
    /// The published limit. No event can appear at or below it after it was published.
    pub limit: Timestamp,
    /// The lowest `as_of` that a read under this limit may state.
    pub least_as_of: Timestamp,
}

/// The next step of a read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReadStep {
    ReadCache,
    /// Take a lease on the cache, then read the rollup row.
    ReadRow,
    /// Ask the log for the sum of the mutations above this time.
    LookAtTail(Timestamp),
    /// Search the log for the first mutation above this time.
    FindFirst(Timestamp),
    /// Fold the events after the row onto its checkpoint. A row that this read has not read yet is read first.
    FoldTail,
    /// Fill the cache under the lease that was taken before the row was read.
    FillCache(CachedCount),
    /// Move the limit, to at least this time if it can get there in the time left.
    MoveLimit(Timestamp),
    /// Roll the counter up as far as the time budget allows.
    Roll,
    /// Nothing is left to do.
    Answer(ReadAnswer),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadAnswer {
    /// The count and its times.
    pub reading: CountReading,
    /// The times of a rollup signal, the oldest and the newest. It repairs a counter whose own signal was lost, even if
    /// the missing events lie below the served `as_of`.
    pub signal: Option<(Timestamp, Timestamp)>,
}

/// The checkpoint of a row with the oldest events after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FoldedTail {
    /// The exact count after the fold.
    pub count: i128,
    /// The time of the newest mutation in it.
    pub last_event_time: Option<Timestamp>,
    /// The time of the first mutation after the row.
    pub first: Option<Timestamp>,
    /// Whether the log contains more events than were folded.
    pub more: bool,
}

/// A read under way.
#[derive(Debug)]
pub struct ReadPlan<'a> {
    rules: ReadRules<'a>,
    options: ReadOptions,
    /// The cache gave no usable value, or a newer one is needed.
    is_row_needed: bool,
    look: Option<Look>,
    roll: RollStage,
}

/// A read rolls at most once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RollStage {
    NotNeeded,
    /// The limit was moved for it.
    Needed,
    Over,
}

/// The state of a counter as the cache or its row showed it.
#[derive(Debug)]
struct Look {
    value: CachedCount,
    before: StateBefore,
    source: LookSource,
    /// The value contains every acknowledged event up to this time.
    rolled_to: Timestamp,
    tail: KnownTail,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LookSource {
    /// A cached copy, perhaps of an older row.
    Copy,
    /// A cached value that is always the present one.
    Coherent,
    /// The row. The cache is not filled with it yet.
    Row,
    /// The row. The cache is filled with it.
    FilledRow,
}

/// The mutations after a look, as far as the log was asked.
#[derive(Debug)]
enum KnownTail {
    Unasked,
    /// The log keeps no sum.
    Unsummed,
    Empty,
    Sum(TailSum),
    /// The time of the first mutation, if there is one.
    First(Option<Timestamp>),
    Folded(FoldedTail),
}

impl<'a> ReadPlan<'a> {
    /// Begins a read, with the cache.
    pub fn new(rules: ReadRules<'a>, options: ReadOptions) -> Self {
        Self { rules, options, is_row_needed: false, look: None, roll: RollStage::NotNeeded }
    }

    /// Begins a read of the row, for a caller that needs more of it than the count.
    pub fn of_row(rules: ReadRules<'a>) -> Self {
        Self { is_row_needed: true, ..Self::new(rules, ReadOptions::default()) }
    }

    pub fn next(&mut self, now: impl Fn() -> Timestamp) -> ReadStep {
        let rules = &self.rules;
        let Some(look) = &mut self.look else {
            return if self.is_row_needed { ReadStep::ReadRow } else { ReadStep::ReadCache };
        };
        let wanted = self.options.at_least_as_of.unwrap_or(Timestamp::MIN);
        // No look at the tail brings an `as_of` above the limit.
        if self.roll == RollStage::NotNeeded && wanted > look.as_of_max() {
            return ReadStep::MoveLimit(wanted);
        }
        match look.tail_step(rules) {
            // The fold begins at the row. Its first mutation says nothing about a cached value that lacks events of the
            // row.
            Some(ReadStep::FoldTail) if look.is_cached() && look.is_written_after() => {
                self.look = None;
                return ReadStep::ReadRow;
            }
            Some(step) => return step,
            None => {}
        }
        if look.source == LookSource::Row {
            // The row is exact up to the limit, or up to the first mutation that it lacks.
            look.rolled_to = look.complete_to();
            look.value.as_of = look.rolled_to;
            look.source = LookSource::FilledRow;
            return ReadStep::FillCache(look.value.clone());
        }
        let as_of = look.as_of();
        match self.roll {
            RollStage::NotNeeded if wanted > as_of || look.is_stale(as_of, &self.options, &now) => {
                return ReadStep::MoveLimit(wanted);
            }
            // At the limit, no event is left for a roll.
            RollStage::Needed if look.complete_to() < look.before.limit => return ReadStep::Roll,
            // A tail that is too long is rolled up first.
            RollStage::NotNeeded | RollStage::Needed if look.has_more() => return ReadStep::Roll,
            RollStage::NotNeeded | RollStage::Needed | RollStage::Over => {}
        }
        let mut reading = look.reading(rules, as_of, now);
        let signal = if rules.is_up_to_date { None } else { look.signal(&reading) };
        reading.behind |= wanted > as_of;
        ReadStep::Answer(ReadAnswer { reading, signal })
    }

    /// Reports the value of the cache. Returns whether the read uses it.
    pub fn read_cache(&mut self, value: Option<CachedCount>, before: StateBefore) -> bool {
        self.look = value.and_then(|value| Look::of_cached(value, before, &self.rules));
        self.is_row_needed = true;
        self.look.is_some()
    }

    /// Reports the row, which was read at a time after its state before.
    pub fn read_row(&mut self, row: &RollupRow, checked_at: Timestamp, before: StateBefore) {
        self.look = Some(Look::of_row(row, checked_at, before));
    }

    /// Reports the answer of the log to a look at the tail.
    pub fn look_at_tail(&mut self, tail: TailLookup) {
        self.set_tail(match tail {
            TailLookup::Unknown => KnownTail::Unsummed,
            TailLookup::Empty => KnownTail::Empty,
            TailLookup::Sum(sum) => KnownTail::Sum(sum),
        });
    }

    /// Reports the time of the first mutation after the look, if there is one.
    pub fn find_first(&mut self, first: Option<Timestamp>) {
        self.set_tail(KnownTail::First(first));
    }

    /// Reports a fold of the tail.
    pub fn fold_tail(&mut self, mut tail: FoldedTail) {
        // A mutation that the last write time does not cover was not acknowledged before the look. It makes no `as_of`
        // older.
        if self.look.as_ref().is_some_and(|look| !look.is_written_after()) {
            tail.first = None;
        }
        self.set_tail(KnownTail::Folded(tail));
    }

    /// Reports the limit after the attempt to move it.
    pub fn move_limit(&mut self, limit: Timestamp) {
        self.roll = RollStage::Needed;
        // A look says nothing about a limit that was published after it: an event may have appeared in between.
        if self.look.as_ref().is_some_and(|look| look.source == LookSource::Copy || look.before.limit < limit) {
            self.look = None;
        }
    }

    /// Reports the end of a roll, or of the wait for it.
    pub fn roll(&mut self) {
        self.roll = RollStage::Over;
        self.look = None;
    }

    fn set_tail(&mut self, tail: KnownTail) {
        if let Some(look) = &mut self.look {
            look.tail = tail;
        }
    }
}

impl Look {
    /// A cached value; none if it is too old to be used.
    fn of_cached(value: CachedCount, before: StateBefore, rules: &ReadRules<'_>) -> Option<Self> {
        let (source, rolled_to) = match value.checked_at {
            None => (LookSource::Coherent, value.as_of.max(before.watermark)),
            // An older copy of a checkpoint may lack events that newer checkpoints contain. So the watermark says
            // nothing.
            Some(_) => (LookSource::Copy, value.as_of),
        };
        if source == LookSource::Copy {
            let is_as_new = value.as_of >= before.as_of_floor || !rules.protocol.keeps(ProtocolRule::NoOlderThanTold);
            // A copy is as of an earlier time. If its counter has fallen silent since, only the row shows it.
            let silent_at = |time| is_ttl_expired(value.last_event_time, time, rules.fold.at(time).ttl);
            let may_have_fallen_silent = silent_at(before.limit) && !silent_at(rolled_to);
            if value.as_of == Timestamp::MIN || !is_as_new || may_have_fallen_silent {
                return None;
            }
        }
        Some(Self { value, before, source, rolled_to, tail: KnownTail::Unasked })
    }

    fn of_row(row: &RollupRow, checked_at: Timestamp, mut before: StateBefore) -> Self {
        if row.just_repaired {
            // A repair may have moved a checkpoint back below the served `as_of`. The missing part is rolled up again.
            before.as_of_floor = Timestamp::MIN;
        }
        let value = row.to_cached(checked_at);
        let rolled_to = value.as_of.max(row.effective_watermark(before.watermark));
        Self { value, before, source: LookSource::Row, rolled_to, tail: KnownTail::Unasked }
    }

    /// The next question to the log, if there is one.
    fn tail_step(&self, rules: &ReadRules<'_>) -> Option<ReadStep> {
        let sums = rules.temporality == Temporality::Delta;
        match &self.tail {
            KnownTail::Unasked if rules.is_up_to_date && !sums => Some(ReadStep::FoldTail),
            KnownTail::Unasked if rules.is_up_to_date || self.is_written_after() => {
                Some(ReadStep::LookAtTail(self.rolled_to))
            }
            KnownTail::Unsummed if rules.is_up_to_date => Some(ReadStep::FoldTail),
            KnownTail::Sum(tail) if rules.is_up_to_date && !suffices(tail, rules.fold) => Some(ReadStep::FoldTail),
            KnownTail::Unsummed => Some(ReadStep::FindFirst(self.rolled_to)),
            KnownTail::Unasked | KnownTail::Empty | KnownTail::Sum(_) | KnownTail::First(_) | KnownTail::Folded(_) => {
                None
            }
        }
    }

    fn is_cached(&self) -> bool {
        match self.source {
            LookSource::Copy | LookSource::Coherent => true,
            LookSource::Row | LookSource::FilledRow => false,
        }
    }

    fn is_written_after(&self) -> bool {
        self.value.last_write_time.is_some_and(|written| written > self.rolled_to)
    }

    /// The value is exact up to this time: up to the limit, or to the last whole millisecond before the first mutation
    /// that it lacks. This keeps the `as_of` of a counter from going back when an event arrives above a published
    /// limit.
    fn complete_to(&self) -> Timestamp {
        let before = |first: Timestamp| Timestamp::from_millis(first.just_before().millis());
        // Without a mutation it is exact up to any limit: the limit was published before all acknowledged events were
        // read.
        let before_first = |first: Option<Timestamp>| first.map_or(Timestamp::MAX, before);
        let exact_to = match &self.tail {
            // A cached copy does not know writes that came after it. Even if this read knows them, the next one may
            // not.
            _ if self.source == LookSource::Copy && !self.is_written_after() => self.rolled_to,
            KnownTail::Sum(tail) => before(tail.first),
            KnownTail::First(first) => before_first(*first),
            KnownTail::Folded(tail) => before_first(tail.first),
            KnownTail::Unasked | KnownTail::Unsummed | KnownTail::Empty if self.is_written_after() => self.rolled_to,
            KnownTail::Unasked | KnownTail::Unsummed | KnownTail::Empty => self.before.limit,
        };
        self.rolled_to.max(self.before.limit.min(exact_to))
    }

    /// A row found at or below the served `as_of` was not acknowledged at that time. It counts as late from the moment
    /// at which a caller learns of it. So it makes no `as_of` older.
    fn as_of(&self) -> Timestamp {
        self.complete_to().max(self.before.least_as_of).max(self.before.as_of_floor)
    }

    /// No tail gives the look a higher `as_of`.
    fn as_of_max(&self) -> Timestamp {
        self.rolled_to.max(self.before.limit).max(self.before.least_as_of).max(self.before.as_of_floor)
    }

    fn is_stale(&self, as_of: Timestamp, options: &ReadOptions, now: &impl Fn() -> Timestamp) -> bool {
        options.max_staleness.is_some_and(|most| {
            let now = now();
            let is_behind = self.value.last_write_time.is_some_and(|written| written > as_of);
            (is_behind && now.since(as_of) > most)
                || self.value.checked_at.is_some_and(|checked_at| now.since(checked_at) > most)
        })
    }

    fn has_more(&self) -> bool {
        let KnownTail::Folded(tail) = &self.tail else { return false };
        tail.more
    }

    fn reading(&self, rules: &ReadRules<'_>, as_of: Timestamp, now: impl Fn() -> Timestamp) -> CountReading {
        let (value, limit) = (&self.value, self.before.limit);
        let silent_at = |last, time| is_ttl_expired(last, time, rules.fold.at(time).ttl);
        let is_cleared = value.clear.as_ref().is_some_and(|clear| clear.time > value.as_of);
        let (exact, last_write_time, exactness) = match &self.tail {
            KnownTail::Sum(tail) if rules.is_up_to_date => {
                let sum = tail.value_after(value.count, value.last_event_time, rules.fold.at(tail.first).ttl);
                (sum, value.last_write_time.max(Some(tail.last)), Exactness::UpToDate)
            }
            KnownTail::Folded(tail) => {
                let exactness = if tail.more { Exactness::Partial } else { Exactness::UpToDate };
                (tail.count, value.last_write_time.max(tail.last_event_time), exactness)
            }
            KnownTail::Unasked | KnownTail::Unsummed | KnownTail::Empty | KnownTail::Sum(_) | KnownTail::First(_) => {
                let is_silent = !rules.is_up_to_date && silent_at(value.last_event_time, as_of);
                let rolled_up = if is_silent { 0 } else { value.count };
                let exactness = match () {
                    () if rules.is_up_to_date => Exactness::UpToDate,
                    // A clear shows before `as_of` has reached it.
                    () if is_cleared && rolled_up != 0 => Exactness::Estimate,
                    () => Exactness::ExactAsOf,
                };
                (if is_cleared { 0 } else { rolled_up }, value.last_write_time, exactness)
            }
        };
        let is_silent = rules.is_up_to_date && silent_at(last_write_time, limit);
        let (count, saturated) = clamp_count(if is_silent { 0 } else { exact });
        CountReading {
            count,
            saturated,
            as_of,
            checked_at: value.checked_at.unwrap_or_else(now),
            last_write_time,
            behind: last_write_time.is_some_and(|written| written > as_of),
            exactness,
            reported_to: None,
        }
    }

    fn signal(&self, reading: &CountReading) -> Option<(Timestamp, Timestamp)> {
        let newest = reading.last_write_time.unwrap_or(reading.as_of);
        let oldest = self.rolled_to.min(reading.as_of).just_after().min(newest);
        (reading.behind || self.is_written_after()).then_some((oldest, newest))
    }
}

/// Whether the sum of a tail suffices: one TTL holds throughout, and no silence inside the tail can restart the count.
fn suffices(tail: &TailSum, fold: &FoldRules) -> bool {
    fold.one_ttl_holds(tail.first, tail.last) && tail.holds_under(fold.at(tail.first).ttl)
}
