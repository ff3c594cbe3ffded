//! The present activity of a queue: the rates of its flows, and the reasons why it needs attention.
//!
//! Rates come from readings of totals that only grow. Between two readings a total is taken to have grown evenly. An
//! unknown number stays unknown: nothing here turns it into 0.

use std::collections::VecDeque;
use std::time::Duration;

use crate::limits::{RATE_STEP, RATE_WINDOW};
use crate::queue::setup::settings::Settings;
use crate::time::Timestamp;

/// The oldest ready message waits longer than this before it is reported that no caller dequeues.
pub const UNSERVED_AFTER: Duration = Duration::from_secs(60);
/// The oldest ready message waits longer than this before it is reported that the queue does not keep up.
pub const OVERDUE_AFTER: Duration = Duration::from_secs(300);
/// Numbers are old above this age.
pub const NUMBERS_OLD_AFTER: Duration = Duration::from_secs(60);

/// The flows whose rates are shown, as totals or as rates per second: messages enqueued, leases given, messages
/// completed, and attempts that failed or expired.
#[derive(Clone, Copy, PartialEq, PartialOrd, Default, Debug)]
pub struct ActivityFlows<N> {
    pub enqueued: N,
    pub dequeued: N,
    pub completed: N,
    pub failed: N,
}

impl ActivityFlows<u64> {
    /// Whether a total lies below that of an earlier reading: the store went back.
    fn is_behind(&self, earlier: &Self) -> bool {
        let fell = |now: u64, before: u64| now < before;
        fell(self.enqueued, earlier.enqueued)
            || fell(self.dequeued, earlier.dequeued)
            || fell(self.completed, earlier.completed)
            || fell(self.failed, earlier.failed)
    }

    fn as_floats(&self) -> ActivityFlows<f64> {
        let float = |total: u64| total as f64;
        ActivityFlows {
            enqueued: float(self.enqueued),
            dequeued: float(self.dequeued),
            completed: float(self.completed),
            failed: float(self.failed),
        }
    }
}

impl ActivityFlows<f64> {
    /// Combines each flow with that of another.
    fn zip(&self, other: &Self, combine: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            enqueued: combine(self.enqueued, other.enqueued),
            dequeued: combine(self.dequeued, other.dequeued),
            completed: combine(self.completed, other.completed),
            failed: combine(self.failed, other.failed),
        }
    }

    /// The sum of two rates.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.zip(other, |one, other| one + other)
    }
}

/// The known state of a shard between two readings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadingGap {
    /// It is read soon after it changed, so it was quiet until a step before the later one.
    Quiet,
    /// It may have changed at any time.
    Unknown,
}

/// The readings of a shard in the last minute. At most 15.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct FlowReadings {
    readings: VecDeque<(Duration, ActivityFlows<u64>)>,
}

impl FlowReadings {
    /// Takes a reading at an elapsed time, not before the last one. Totals that fell begin again. O(1) amortized.
    pub fn record(&mut self, at: Duration, totals: ActivityFlows<u64>, gap: ReadingGap) {
        if self.readings.back().is_some_and(|(_, last)| totals.is_behind(last)) {
            self.readings.clear();
        }
        if let Some(&(last_at, last)) = self.readings.back() {
            if gap == ReadingGap::Quiet && at.saturating_sub(last_at) > 2 * RATE_STEP {
                self.readings.push_back((at.saturating_sub(RATE_STEP), last));
            }
            // Those that are kept lie a step apart, but for the last. While nothing changes, two say it.
            if let [.., (before_at, before), (last_at, last)] = self.readings.make_contiguous()
                && (last_at.saturating_sub(*before_at) < RATE_STEP || (*before == *last && *last == totals))
            {
                self.readings.pop_back();
            }
        }
        self.readings.push_back((at, totals));
        let from = at.saturating_sub(RATE_WINDOW);
        while self.readings.len() > 1 && self.readings[1].0 <= from {
            self.readings.pop_front();
        }
    }

    /// Notes that the totals are those of the last reading still.
    pub fn confirm(&mut self, at: Duration) {
        if let Some(&(_, totals)) = self.readings.back() {
            self.record(at, totals, ReadingGap::Unknown);
        }
    }

    /// The rates per second in the minute before an elapsed time, or since the first reading; none before the first
    /// reading is a step old. O(readings).
    pub fn rates(&self, until: Duration) -> Option<ActivityFlows<f64>> {
        let (first_at, _) = *self.readings.front()?;
        let (_, last) = *self.readings.back()?;
        let from = until.saturating_sub(RATE_WINDOW).max(first_at);
        let span = until.checked_sub(from).filter(|span| *span >= RATE_STEP)?.as_secs_f64();
        let before = self.totals_at(from)?;
        Some(last.as_floats().zip(&before, |last, before| ((last - before) / span).max(0.0)))
    }

    /// The totals at a time that is not before the first reading.
    fn totals_at(&self, at: Duration) -> Option<ActivityFlows<f64>> {
        let after = self.readings.iter().position(|(time, _)| *time > at);
        let Some(after) = after else { return self.readings.back().map(|(_, totals)| totals.as_floats()) };
        let (before_at, before) = *self.readings.get(after.checked_sub(1)?)?;
        let (after_at, totals) = self.readings[after];
        let part = (at - before_at).as_secs_f64() / (after_at - before_at).as_secs_f64();
        Some(before.as_floats().zip(&totals.as_floats(), |before, after| before + (after - before) * part))
    }
}

/// A reason why a queue needs attention. The most serious reason is the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum AttentionReason {
    WorkLost,
    NobodyDequeues,
    DequeueBlocked,
    QueueFull,
    MemoryShort,
    OldestAgeGrows,
    MessagesErrored,
    AttemptsFail,
    EnqueueBlocked,
    NumbersOld,
}

/// Work that a store lost after it had answered: it came back with an earlier state of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LostWork {
    /// The steps that were taken back, at least: each is one change of a shard that was answered.
    pub steps: u64,
    /// When it was noticed.
    pub at: Timestamp,
}

impl LostWork {
    /// When it was noticed, to the second, as people read it.
    pub fn noticed(&self) -> String {
        let seconds = self.at.micros().div_euclid(1_000_000);
        jiff::Timestamp::from_second(seconds).map_or_else(|_| String::new(), |time| time.to_string())
    }

    /// This loss after an earlier one of the same queue: all steps, since the first.
    #[must_use]
    pub fn after(self, earlier: Option<Self>) -> Self {
        match earlier {
            None => self,
            Some(earlier) => Self { steps: self.steps.saturating_add(earlier.steps), at: self.at.min(earlier.at) },
        }
    }
}

/// The quota that a shard has reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReachedQuota {
    Messages,
    /// It has no room for another message of average size.
    Bytes,
}

impl ReachedQuota {
    /// The quota that a shard with these messages and bytes has reached, under the settings of the shard.
    pub fn of(settings: &Settings, messages: u64, bytes: u64) -> Option<Self> {
        let average = bytes.checked_div(messages).unwrap_or(0);
        match () {
            () if messages >= settings.quota_messages => Some(Self::Messages),
            () if bytes.saturating_add(average) > settings.quota_bytes => Some(Self::Bytes),
            () => None,
        }
    }

    /// The name of the setting.
    pub const fn setting(self) -> &'static str {
        match self {
            Self::Messages => "quota_messages",
            Self::Bytes => "quota_bytes",
        }
    }
}

/// The part that a queue takes of the memory of queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryShare {
    /// The part that it takes of all that queues take, in percent.
    pub percent: u64,
    /// How much of the bound all queues take, in percent.
    pub used_percent: u64,
}

impl MemoryShare {
    /// The part that a queue takes while memory is short; none if it takes less than its share, an equal part of what
    /// all `queues` take.
    pub fn of(bytes: u64, all_bytes: u64, queues: usize, used_percent: u64) -> Option<Self> {
        let is_share = u128::from(bytes) * queues as u128 >= u128::from(all_bytes);
        let percent = u64::try_from(u128::from(bytes) * 100 / u128::from(all_bytes.max(1))).unwrap_or(u64::MAX);
        (bytes > 0 && is_share).then_some(Self { percent, used_percent })
    }
}

impl AttentionReason {
    /// All reasons.
    pub const ALL: [Self; 10] = [
        Self::WorkLost,
        Self::NobodyDequeues,
        Self::DequeueBlocked,
        Self::QueueFull,
        Self::MemoryShort,
        Self::OldestAgeGrows,
        Self::MessagesErrored,
        Self::AttemptsFail,
        Self::EnqueueBlocked,
        Self::NumbersOld,
    ];

    /// The name, as calls and pages show it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::WorkLost => "WORK_LOST",
            Self::NobodyDequeues => "NOBODY_DEQUEUES",
            Self::DequeueBlocked => "DEQUEUE_BLOCKED",
            Self::QueueFull => "QUEUE_FULL",
            Self::MemoryShort => "MEMORY_SHORT",
            Self::OldestAgeGrows => "OLDEST_AGE_GROWS",
            Self::MessagesErrored => "MESSAGES_ERRORED",
            Self::AttemptsFail => "ATTEMPTS_FAIL",
            Self::EnqueueBlocked => "ENQUEUE_BLOCKED",
            Self::NumbersOld => "NUMBERS_OLD",
        }
    }

    /// Finds a reason by its name, in any letter case, with or without the `ATTENTION_REASON_` prefix.
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.to_ascii_uppercase();
        let name = name.strip_prefix("ATTENTION_REASON_").unwrap_or(&name);
        Self::ALL.into_iter().find(|reason| reason.name() == name)
    }

    /// The page of the runbook, as a path in the source.
    pub const fn runbook(self) -> &'static str {
        match self {
            Self::WorkLost => "docs/runbook/work-lost.md",
            Self::NobodyDequeues => "docs/runbook/nobody-dequeues.md",
            Self::DequeueBlocked | Self::EnqueueBlocked => "docs/runbook/queue-blocked.md",
            Self::QueueFull => "docs/runbook/queue-full.md",
            Self::MemoryShort => "docs/runbook/queue-memory.md",
            Self::OldestAgeGrows => "docs/runbook/oldest-age-grows.md",
            Self::MessagesErrored => "docs/runbook/messages-errored.md",
            Self::AttemptsFail => "docs/runbook/attempts-fail.md",
            Self::NumbersOld => "docs/runbook/store-away.md",
        }
    }
}

/// The known facts about a queue at one moment.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct ActivityFacts {
    /// Ready messages.
    pub pending: Option<u64>,
    /// Leased messages.
    pub running: Option<u64>,
    /// Messages without attempts left.
    pub errored: Option<u64>,
    /// The age of the oldest ready message.
    pub oldest_ready: Option<Duration>,
    /// By how much this may be more than its true age. What needs attention by its age does so by the least that it can
    /// be.
    pub oldest_ready_excess: Duration,
    /// Rates per second.
    pub rates: Option<ActivityFlows<f64>>,
    /// The dequeues that wait for its messages.
    pub waiting: usize,
    pub enqueue_blocked: bool,
    pub dequeue_blocked: bool,
    /// The quota that a shard of it has reached.
    pub full: Option<ReachedQuota>,
    /// While the memory of all queues is short: what this one takes of it, if that is its share or more.
    pub memory: Option<MemoryShare>,
    /// The age of the numbers.
    pub age: Option<Duration>,
    /// The work of the queue that its store lost lately.
    pub lost: Option<LostWork>,
    /// Whether its store answers without one of its shards. Then its numbers are unknown.
    pub is_store_lost: bool,
}

impl ActivityFacts {
    /// When all pending messages will be worked off if the rates stay; none if nothing is pending or the queue does not
    /// shrink, or if a number is unknown.
    pub fn time_to_drain(&self) -> Option<Duration> {
        let (pending, rates) = (self.pending.filter(|pending| *pending > 0)?, self.rates?);
        let net = rates.completed - rates.enqueued;
        // Below one message in 1,000 s the quotient says nothing.
        (net > 0.001).then(|| Duration::from_secs_f64((pending as f64 / net).min(1e9)))
    }

    /// The reasons that hold, the most serious one first.
    pub fn attention(&self) -> Vec<AttentionReason> {
        let holds = |reason: &AttentionReason| self.needs(*reason);
        AttentionReason::ALL.into_iter().filter(holds).collect()
    }

    /// Whether workers hold messages, none waits, and none took a message in the last minute: they are all busy, or
    /// died with long leases.
    pub fn is_held_up(&self) -> bool {
        let is_still = self.rates.is_some_and(|rates| rates.dequeued == 0.0);
        let nobody_waits = self.waiting == 0 && !self.dequeue_blocked;
        is_still && nobody_waits && self.running.is_some_and(|running| running > 0)
    }

    fn needs(&self, reason: AttentionReason) -> bool {
        let is_ready = self.pending.is_some_and(|pending| pending > 0);
        let waits = |longer: Duration| {
            is_ready && self.oldest_ready.is_some_and(|age| age.saturating_sub(self.oldest_ready_excess) >= longer)
        };
        let rates = |meets: fn(&ActivityFlows<f64>) -> bool| self.rates.as_ref().is_some_and(meets);
        let is_still = rates(|rates| rates.dequeued == 0.0);
        match reason {
            AttentionReason::WorkLost => self.lost.is_some(),
            AttentionReason::NobodyDequeues => {
                let is_idle = self.waiting == 0 && self.running == Some(0);
                !self.dequeue_blocked && is_idle && is_still && waits(UNSERVED_AFTER)
            }
            AttentionReason::DequeueBlocked => self.dequeue_blocked && is_ready,
            AttentionReason::QueueFull => self.full.is_some(),
            AttentionReason::MemoryShort => self.memory.is_some(),
            AttentionReason::OldestAgeGrows => {
                let is_served = rates(|rates| rates.dequeued > 0.0 && rates.enqueued >= rates.completed);
                (is_served || self.is_held_up()) && waits(OVERDUE_AFTER)
            }
            AttentionReason::MessagesErrored => self.errored.is_some_and(|errored| errored > 0),
            AttentionReason::AttemptsFail => rates(|rates| rates.failed > rates.completed),
            AttentionReason::EnqueueBlocked => self.enqueue_blocked,
            AttentionReason::NumbersOld => self.is_store_lost || self.age.is_some_and(|age| age > NUMBERS_OLD_AFTER),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const QUIET: ReadingGap = ReadingGap::Quiet;

    fn flows(enqueued: u64) -> ActivityFlows<u64> {
        ActivityFlows { enqueued, dequeued: enqueued / 2, completed: enqueued / 3, failed: enqueued / 5 }
    }

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_rate_is_unknown_until_there_is_a_step_to_measure() {
        let mut readings = FlowReadings::default();
        assert_eq!(readings.rates(secs(100)), None);
        readings.record(secs(100), flows(1_000), QUIET);
        assert_eq!(readings.rates(secs(104)), None);
        assert_eq!(readings.rates(secs(105)).map(|rates| rates.enqueued), Some(0.0), "a quiet shard");
        readings.record(secs(110), flows(1_100), QUIET);
        assert_eq!(readings.rates(secs(110)).map(|rates| rates.enqueued), Some(10.0));
    }

    #[test]
    fn a_burst_counts_for_a_minute_and_then_no_more() {
        let mut readings = FlowReadings::default();
        readings.record(secs(0), flows(0), QUIET);
        readings.record(secs(600), flows(120), QUIET);
        let rate = |at| readings.rates(secs(at)).map(|rates| rates.enqueued);
        assert_eq!((rate(600), rate(654), rate(660)), (Some(2.0), Some(2.0), Some(0.0)));
    }

    #[test]
    fn what_changed_at_an_unknown_time_is_spread_over_that_time_and_no_change_takes_two_readings() {
        let mut readings = FlowReadings::default();
        readings.record(secs(0), flows(0), ReadingGap::Unknown);
        readings.record(secs(600), flows(1_200), ReadingGap::Unknown);
        let rate = |readings: &FlowReadings, at| readings.rates(secs(at)).map(|rates| rates.enqueued);
        assert_eq!(rate(&readings, 600), Some(2.0));
        for at in 201..400 {
            readings.confirm(secs(3 * at));
        }
        assert_eq!((rate(&readings, 1_197), readings.readings.len()), (Some(0.0), 2));
        readings.record(secs(1_200), flows(1_260), ReadingGap::Unknown);
        assert_eq!(rate(&readings, 1_200), Some(1.0), "all of it came in the last three seconds");
    }

    #[test]
    fn totals_that_fell_begin_anew() {
        let mut readings = FlowReadings::default();
        readings.record(secs(0), flows(1_000), QUIET);
        readings.record(secs(20), flows(10), QUIET);
        assert_eq!(readings.rates(secs(20)), None);
        readings.record(secs(30), flows(20), QUIET);
        assert_eq!(readings.rates(secs(30)).map(|rates| rates.enqueued), Some(1.0));
    }

    proptest! {
        /// The oracle keeps every reading. A reading that is left out moves a change by less than two steps.
        #[test]
        fn rates_are_those_of_all_readings_within_a_step(steps in vec((100_u64..4_000, 0_u64..500), 2..80), is_quiet in any::<bool>()) {
            let gap = if is_quiet { QUIET } else { ReadingGap::Unknown };
            let (mut readings, mut all) = (FlowReadings::default(), Vec::new());
            let (mut at, mut total) = (Duration::ZERO, 0);
            for (pause, added) in steps {
                at += Duration::from_millis(pause);
                total += added;
                readings.record(at, flows(total), gap);
                all.push((at, total));
            }
            prop_assert!(readings.readings.len() <= 15);
            let Some(rates) = readings.rates(at) else {
                prop_assert!(at - all[0].0 < RATE_STEP);
                return Ok(());
            };
            let from = at.saturating_sub(RATE_WINDOW).max(all[0].0);
            let at_or_before = |time: Duration| all.iter().rev().find(|(at, _)| *at <= time).map_or(all[0].1, |(_, total)| *total);
            let span = (at - from).as_secs_f64();
            // What was enqueued since two steps later, and since two steps earlier.
            let least = (total - at_or_before(from + 2 * RATE_STEP)) as f64 / span;
            let most = (total - at_or_before(from.saturating_sub(2 * RATE_STEP))) as f64 / span;
            prop_assert!(rates.enqueued >= least - 1e-9 && rates.enqueued <= most + 1e-9, "{} {} {}", least, rates.enqueued, most);
        }
    }

    fn busy() -> ActivityFacts {
        ActivityFacts {
            pending: Some(100),
            running: Some(0),
            errored: Some(0),
            oldest_ready: Some(secs(1)),
            rates: Some(ActivityFlows { enqueued: 1.0, dequeued: 3.0, completed: 3.0, failed: 0.0 }),
            age: Some(secs(1)),
            ..ActivityFacts::default()
        }
    }

    #[test]
    fn each_reason_holds_for_its_case_alone() {
        use AttentionReason::*;
        let still = Some(ActivityFlows { enqueued: 1.0, ..ActivityFlows::default() });
        let slow = Some(ActivityFlows { enqueued: 3.0, dequeued: 3.0, completed: 3.0, failed: 0.0 });
        let failing = Some(ActivityFlows { enqueued: 0.0, dequeued: 2.0, completed: 0.5, failed: 1.5 });
        let lost = Some(LostWork { steps: 3, at: Timestamp::from_secs(1) });
        let cases: [(ActivityFacts, &[AttentionReason]); 18] = [
            (busy(), &[]),
            (ActivityFacts { rates: still, oldest_ready: Some(secs(60)), ..busy() }, &[NobodyDequeues]),
            (ActivityFacts { rates: still, oldest_ready: Some(secs(60)), waiting: 1, ..busy() }, &[]),
            (ActivityFacts { rates: None, oldest_ready: Some(secs(60)), ..busy() }, &[]),
            (
                ActivityFacts { rates: still, oldest_ready: Some(secs(118)), oldest_ready_excess: secs(59), ..busy() },
                &[],
            ),
            (
                ActivityFacts { rates: still, oldest_ready: Some(secs(119)), oldest_ready_excess: secs(59), ..busy() },
                &[NobodyDequeues],
            ),
            (ActivityFacts { rates: still, oldest_ready: Some(secs(299)), running: Some(1), ..busy() }, &[]),
            (
                ActivityFacts { rates: still, oldest_ready: Some(secs(300)), running: Some(1), ..busy() },
                &[OldestAgeGrows],
            ),
            (ActivityFacts { rates: still, oldest_ready: Some(secs(300)), running: None, ..busy() }, &[]),
            (ActivityFacts { dequeue_blocked: true, ..busy() }, &[DequeueBlocked]),
            (ActivityFacts { rates: slow, oldest_ready: Some(secs(300)), ..busy() }, &[OldestAgeGrows]),
            (ActivityFacts { errored: Some(1), ..busy() }, &[MessagesErrored]),
            (ActivityFacts { rates: failing, ..busy() }, &[AttemptsFail]),
            (ActivityFacts { enqueue_blocked: true, ..busy() }, &[EnqueueBlocked]),
            (ActivityFacts { full: Some(ReachedQuota::Messages), ..busy() }, &[QueueFull]),
            (ActivityFacts { age: Some(secs(61)), ..busy() }, &[NumbersOld]),
            (ActivityFacts { is_store_lost: true, ..ActivityFacts::default() }, &[NumbersOld]),
            (ActivityFacts { lost, ..busy() }, &[WorkLost]),
        ];
        for (facts, reasons) in cases {
            assert_eq!(facts.attention(), reasons, "{facts:?}");
        }
        assert_eq!(ActivityFacts::default().attention(), [], "what is unknown is no reason");
    }

    #[test]
    fn a_shard_is_full_when_the_next_message_does_not_fit() {
        let settings = Settings { quota_messages: 3, quota_bytes: 1_000, ..Settings::default() };
        let full = |messages, bytes| ReachedQuota::of(&settings, messages, bytes);
        assert_eq!((full(0, 0), full(2, 0), full(3, 0)), (None, None, Some(ReachedQuota::Messages)));
        assert_eq!((full(2, 600), full(2, 700)), (None, Some(ReachedQuota::Bytes)), "messages of 300 and of 350 bytes");
    }

    #[test]
    fn a_queue_drains_only_while_more_goes_out_than_comes_in() {
        assert_eq!(busy().time_to_drain(), Some(secs(50)));
        assert_eq!(ActivityFacts { pending: Some(0), ..busy() }.time_to_drain(), None);
        assert_eq!(ActivityFacts { rates: None, ..busy() }.time_to_drain(), None);
        let slow = Some(ActivityFlows { enqueued: 3.0, dequeued: 3.0, completed: 3.0, failed: 0.0 });
        assert_eq!(ActivityFacts { rates: slow, ..busy() }.time_to_drain(), None);
    }

    #[test]
    fn a_queue_that_takes_less_than_an_equal_part_of_the_memory_is_not_to_blame() {
        let share = |bytes, all, queues| MemoryShare::of(bytes, all, queues, 90).map(|share| share.percent);
        assert_eq!([share(50, 100, 2), share(49, 100, 2), share(51, 100, 2)], [Some(50), None, Some(51)]);
        assert_eq!([share(100, 100, 1), share(0, 0, 1), share(0, 0, 0)], [Some(100), None, None]);
        assert_eq!(share(u64::MAX, u64::MAX, 1_000_000), Some(100));
        let facts = ActivityFacts { memory: MemoryShare::of(50, 100, 2, 90), ..ActivityFacts::default() };
        assert_eq!(facts.attention(), [AttentionReason::MemoryShort]);
    }
}
