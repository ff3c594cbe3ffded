//! How the time of shards goes on: with the time that passes, not with the wall clock.
//!
//! A step of the wall clock moves no lease and freezes none. Where wall time differs it is approached by at most a twentieth
//! of what passes, so that a step of an hour is caught up within a day and no duration is off by more than 5 %.

use std::time::Duration;

use crate::domain::time::{Timestamp, micros_of};

/// What passes is at most this part shorter or longer than it was.
const SLEW: i64 = 20;

/// The time of shards, and when it was that, by a clock that only counts what passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    /// The time of the shards.
    pub time: Timestamp,
    /// The reading of the other clock.
    pub elapsed: Duration,
}

impl Pace {
    /// The time of the shards at these readings; never before an earlier answer.
    pub fn advance(&mut self, wall: Timestamp, elapsed: Duration) -> Timestamp {
        let passed = elapsed.saturating_sub(self.elapsed);
        let steady = self.time + passed;
        let most = micros_of(passed) / SLEW;
        let missing = wall.micros().saturating_sub(steady.micros()).clamp(-most, most);
        let time = Timestamp::from_micros(steady.micros().saturating_add(missing)).max(self.time);
        // Parts too short to be slewed add up until they are not.
        if most > 0 || passed.is_zero() || steady == wall {
            *self = Self { time, elapsed };
        }
        time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_parts_are_slewed_together() {
        let start = Timestamp::from_secs(1_000);
        let mut pace = Pace { time: start, elapsed: Duration::ZERO };
        let mut last = start;
        for micros in 1..=200 {
            let elapsed = Duration::from_micros(micros);
            let time = pace.advance(start + Duration::from_secs(60), elapsed);
            assert!(time >= last, "it never goes back");
            last = time;
        }
        assert_eq!(last.since(start), Duration::from_micros(210), "a twentieth of 200");
    }
}
