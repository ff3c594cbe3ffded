//! The clock of shards: it follows elapsed time, not the wall clock.
//!
//! A step of the wall clock neither expires nor freezes a lease. Queue time converges on wall time at no more than 5 %
//! of elapsed time. So a step of an hour is caught up within a day, and no duration is off by more than 5 %.

use std::time::Duration;

use crate::limits::TOKEN_AHEAD_MAX;
use crate::time::{Timestamp, micros_of};

/// The largest relative error of a duration.
const SLEW: i64 = 20;

/// The times of one step of a shard.
///
/// The clocks of callers make the tokens of enqueues, and follow wall time even while queue time differs from it. So a
/// token is too far ahead only if it is ahead of both times, and too old only if it is old by both. A token refused for
/// its age stays refused: the time for that check never goes back, except by a reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepTime {
    /// The time of the shards.
    pub now: Timestamp,
    /// The time for the age of tokens: the earlier of queue time and wall time, and never before that of the last step.
    pub token_age_clock: Timestamp,
    /// The time for tokens ahead: the later of the two, or wall time alone.
    pub token_ahead_clock: Timestamp,
    /// Whether only wall time counts for tokens ahead: from a reset until queue time agrees with it.
    pub trusts_wall_clock: bool,
}

impl From<Timestamp> for StepTime {
    /// The times of a step at which wall time and queue time agree.
    fn from(now: Timestamp) -> Self {
        Self { now, token_age_clock: now, token_ahead_clock: now, trusts_wall_clock: false }
    }
}

impl StepTime {
    /// The times of a step at queue time, with a given wall time.
    pub fn with_wall_clock(now: Timestamp, wall: Timestamp) -> Self {
        Self { now, token_age_clock: now.min(wall), token_ahead_clock: now.max(wall), trusts_wall_clock: false }
    }

    /// The same after another step: no time but `token_ahead_clock` goes back.
    pub fn clamped_after(self, before: Self) -> Self {
        let now = self.now.max(before.now);
        let wall_is_right = before.trusts_wall_clock && now.since(self.token_age_clock) > TOKEN_AHEAD_MAX;
        let later = if wall_is_right { self.token_age_clock } else { self.token_ahead_clock.max(now) };
        Self {
            now,
            token_age_clock: self.token_age_clock.max(before.token_age_clock).min(now),
            token_ahead_clock: later,
            trusts_wall_clock: wall_is_right,
        }
    }

    /// The same for a shard whose own time is this, which is not earlier.
    pub fn no_earlier_than(self, now: Timestamp) -> Self {
        let later = if self.trusts_wall_clock { self.token_ahead_clock } else { self.token_ahead_clock.max(now) };
        Self { now, token_ahead_clock: later, ..self }
    }

    /// The same with tokens judged by wall time, which an operator declared right. None if the time for the age of
    /// tokens is less than a minute ahead, and no later tokens are refused (those before `refused_before`).
    pub fn reset(self, wall: Timestamp, refused_before: Option<Timestamp>) -> Option<Self> {
        let earlier = self.now.min(wall);
        let is_ahead = |time: Timestamp| time.since(earlier) > TOKEN_AHEAD_MAX;
        let reset = Self { token_age_clock: earlier, token_ahead_clock: wall, trusts_wall_clock: true, ..self };
        (is_ahead(self.token_age_clock) || refused_before.is_some_and(is_ahead)).then_some(reset)
    }

    /// After a reset: the time from which tokens are accepted. The records of earlier tokens may be gone, and refused
    /// ones were promised to stay refused.
    pub fn accepts_tokens_from(self) -> Timestamp {
        self.token_age_clock + TOKEN_AHEAD_MAX
    }
}

/// The time of shards at a reading of a clock of elapsed time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardClock {
    pub time: Timestamp,
    /// The reading of that clock.
    pub elapsed: Duration,
}

impl ShardClock {
    /// The times of the shards at these readings. Queue time is never before an earlier result.
    pub fn advance(&mut self, wall: Timestamp, elapsed: Duration) -> StepTime {
        let passed = elapsed.saturating_sub(self.elapsed);
        let steady = self.time + passed;
        let most = micros_of(passed) / SLEW;
        let missing = wall.micros().saturating_sub(steady.micros()).clamp(-most, most);
        let time = Timestamp::from_micros(steady.micros().saturating_add(missing)).max(self.time);
        // Parts too short to be slewed add up.
        if most > 0 || passed.is_zero() || steady == wall {
            *self = Self { time, elapsed };
        }
        StepTime::with_wall_clock(time, wall)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_parts_are_slewed_together() {
        let start = Timestamp::from_secs(1_000);
        let mut pace = ShardClock { time: start, elapsed: Duration::ZERO };
        let mut last = start;
        for micros in 1..=200 {
            let elapsed = Duration::from_micros(micros);
            let time = pace.advance(start + Duration::from_secs(60), elapsed).now;
            assert!(time >= last, "it never goes back");
            last = time;
        }
        assert_eq!(last.since(start), Duration::from_micros(210), "a twentieth of 200");
    }

    #[test]
    fn the_age_of_tokens_is_judged_by_the_earlier_clock_and_never_by_an_earlier_time_than_before() {
        let (start, hour) = (Timestamp::from_secs(100_000), Duration::from_secs(3_600));
        let mut pace = ShardClock { time: start, elapsed: Duration::ZERO };
        let mut last = StepTime::from(start);
        let mut at = |wall: Timestamp, elapsed: Duration| {
            last = pace.advance(wall, elapsed).clamped_after(last);
            assert!(last.token_age_clock <= last.now && last.now <= last.token_ahead_clock);
            (last.token_age_clock.since(start).as_secs(), last.token_ahead_clock)
        };
        assert_eq!(at(start + 2 * hour, Duration::ZERO), (0, start + 2 * hour), "a wall that leaps ahead");
        assert_eq!(at(start + 3 * hour, hour), (3_780, start + 3 * hour), "is approached");
        assert_eq!(
            at(start, hour),
            (3_780, start + hour + hour / 20),
            "and what is refused stays so when it leaps back"
        );
        assert_eq!(at(start + hour, 2 * hour), (3_780, start + 2 * hour));
        assert_eq!(at(start + hour + hour / 2, 2 * hour + hour / 2).0, 5_400, "until it has come so far again");
    }
}
