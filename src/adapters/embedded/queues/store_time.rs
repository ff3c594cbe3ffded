//! The time of the shards of one store.
//!
//! It runs on the clock that counts from the machine's boot, so a step of wall time moves no lease. A process that
//! restarts within one boot continues from the last commit plus the time that has passed since. After a reboot, the
//! time starts at the later of the last commit's time and wall time. It converges on wall time as
//! `domain::queue::clock` says.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prost::Message as _;

use tallystone_adapters::codec::CorruptValue;
use tallystone_domain::queue::clock::{ShardClock, StepTime};
use tallystone_domain::time::{Timestamp, micros_of};
use tallystone_ports::{BootId, Clock};
use tallystone_proto::internal::v1::StoredQueueClock;

/// A moment on all clocks, as stored with each commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment {
    /// Times of the shards.
    pub step: StepTime,
    /// Time since the machine booted.
    pub since_boot: Duration,
    /// Identity of that boot.
    pub boot: BootId,
}

impl Moment {
    /// Encodes the moment.
    pub fn to_bytes(self) -> Vec<u8> {
        StoredQueueClock {
            time: self.step.now.micros(),
            earlier: Some(self.step.token_age_clock.micros()),
            wall_is_right: self.step.trusts_wall_clock,
            since_boot: u64::try_from(micros_of(self.since_boot)).unwrap_or(0),
            boot_id: self.boot.0.to_be_bytes().to_vec(),
        }
        .encode_to_vec()
    }

    /// Decodes the moment.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, CorruptValue> {
        const WHAT: &str = "queue clock";
        let stored = StoredQueueClock::decode(bytes).map_err(|error| CorruptValue::new(WHAT, error.to_string()))?;
        let boot =
            stored.boot_id.as_slice().try_into().map_err(|_| CorruptValue::new(WHAT, "a boot id of another length"))?;
        let now = Timestamp::from_micros(stored.time);
        // Rows without this field are from releases that measured the age of tokens by the time of the shards.
        let earlier = stored.earlier.map_or(now, Timestamp::from_micros);
        Ok(Self {
            step: StepTime {
                now,
                token_age_clock: earlier,
                token_ahead_clock: now,
                trusts_wall_clock: stored.wall_is_right,
            },
            since_boot: Duration::from_micros(stored.since_boot),
            boot: BootId(u128::from_be_bytes(boot)),
        })
    }
}

/// The time of the shards; it never goes back.
pub struct StoreTime {
    clock: Arc<dyn Clock>,
    last: Mutex<Moment>,
}

impl StoreTime {
    /// Continues from the moment of the last commit.
    pub fn new(clock: Arc<dyn Clock>, committed: Option<Moment>) -> Self {
        let (wall, since_boot, boot) = (clock.now(), clock.elapsed(), clock.boot());
        let last = match committed {
            Some(last) if last.boot == boot && last.since_boot <= since_boot => last,
            Some(last) => Moment { step: StepTime::from(wall).clamped_after(last.step), since_boot, boot },
            None => Moment { step: wall.into(), since_boot, boot },
        };
        Self { clock, last: Mutex::new(last) }
    }

    /// Returns the current moment.
    pub fn now(&self) -> Moment {
        let mut last = self.last.lock();
        let (wall, since_boot) = (self.clock.now(), self.clock.elapsed());
        let mut pace = ShardClock { time: last.step.now, elapsed: last.since_boot };
        let moment = Moment { step: pace.advance(wall, since_boot), since_boot, boot: last.boot };
        (last.step.now, last.since_boot) = (pace.time, pace.elapsed);
        moment
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallystone_adapters::manual::ManualClock;

    const HOUR: Duration = Duration::from_secs(3_600);
    const START: Timestamp = Timestamp::from_secs(1_000_000);

    fn started(clock: &ManualClock, committed: Option<Moment>) -> StoreTime {
        StoreTime::new(Arc::new(clock.clone()), committed)
    }

    #[test]
    fn steps_of_wall_time_are_approached_slowly_from_both_sides() {
        for (wall, expected) in [(START + 2 * HOUR, 3_780), (START - 2 * HOUR, 3_420), (START + HOUR, 3_600)] {
            let clock = ManualClock::at(START);
            let time = started(&clock, None);
            assert_eq!(time.now().step.now, START);
            clock.set_wall(wall - HOUR);
            assert_eq!(time.now().step.now, START, "a step alone moves nothing");
            clock.advance(HOUR);
            assert_eq!(time.now().step.now.since(START), Duration::from_secs(expected));
        }
    }

    #[test]
    fn a_moment_is_read_as_it_was_stored() {
        let clock = ManualClock::at(START);
        clock.advance(Duration::from_micros(1_234_567));
        let moment = started(&clock, None).now();
        assert_eq!(Moment::from_bytes(&moment.to_bytes()), Ok(moment));
        assert!(Moment::from_bytes(&[7]).is_err());
    }

    #[test]
    fn many_short_looks_are_as_good_as_a_long_one() {
        let clock = ManualClock::at(START);
        let time = started(&clock, None);
        clock.set_wall(START + HOUR);
        for _ in 0..60_000 {
            clock.advance(Duration::from_micros(7));
            time.now();
        }
        let passed = time.now().step.now.since(START).as_micros();
        assert!((430_000..=441_000).contains(&passed), "{passed} us: 420 ms and up to a twentieth more");
    }

    #[test]
    fn a_restart_within_one_boot_goes_on_where_it_was_whatever_the_wall_says() {
        for step in [START + 100 * HOUR, START - 100 * HOUR] {
            let clock = ManualClock::at(START);
            let committed = started(&clock, None).now();
            clock.advance(Duration::from_secs(60));
            clock.set_wall(step);
            let time = started(&clock, Some(committed)).now().step.now;
            let off = micros_of(time.since(START)) - 60_000_000;
            assert!(off.abs() <= 3_000_000, "60 s and at most a twentieth off: {off} us");
        }
    }

    #[test]
    fn after_a_reboot_it_starts_at_the_later_of_the_two() {
        for (wall, expected) in [(START + HOUR, START + HOUR), (START - HOUR, START)] {
            let clock = ManualClock::at(START);
            let committed = started(&clock, None).now();
            clock.reboot();
            clock.set_wall(wall);
            assert_eq!(started(&clock, Some(committed)).now().step.now, expected);
        }
    }
}
