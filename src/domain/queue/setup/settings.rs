//! What a queue is set to, as far as one shard acts on it. All durations are injected here or in commands.

use std::time::Duration;

use crate::domain::limits::{INVISIBILITY_MAX, PRIORITY_MAX};
use crate::domain::queue::command::InvalidCommandPart;
use crate::domain::queue::filter::ShapeKeys;
use crate::domain::queue::messages::message::Metadata;
use crate::domain::queue::messages::state_machine::MessageState;
use crate::domain::queue::setup::setting_ranges;
use crate::domain::time::{Timestamp, micros_of};

/// The settings of a queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The lease of a dequeue that asks for none, of a message that asks for none: 1 s to 12 h.
    pub default_lease: Duration,
    /// The time since dequeue after which a lease can no longer be extended; it also cuts the first lease.
    pub max_run_time: Duration,
    /// How long a message without a window of its own is invisible.
    pub default_invisibility: Duration,
    /// How often a message may be tried unless it says otherwise: 1 to 10,000.
    pub default_attempts: u32,
    /// When a failed message is tried again.
    pub retry: MessageRetryPolicy,
    /// When a message that nobody took is canceled, unless it says otherwise.
    pub default_ttl: Option<Duration>,
    /// How long terminal messages are kept.
    pub retention: Retention,
    /// How long a token's first answer is kept: at most 24 h.
    pub dedupe_window: Duration,
    /// What the kept answers may take, in bytes.
    pub dedupe_max_bytes: usize,
    /// How many messages the shard holds, terminal ones too.
    pub quota_messages: u64,
    /// How many bytes of payload the shard holds, those of terminal messages too.
    pub quota_bytes: u64,
    /// How large the payload of a message may be, in bytes; at most what any queue takes.
    pub payload_max_bytes: u32,
    /// How large keys and values of a message's metadata may be together, in bytes; at most what any queue takes.
    pub metadata_max_bytes: u32,
    /// Named offsets of the default priority.
    pub classes: Vec<PriorityClass>,
    /// What makes the queue exclusive; a simple queue has none. Its key and its order change only while there are no
    /// messages.
    pub exclusivity: Option<Exclusivity>,
    /// The sets of keys whose filters have an index: at most 15, none twice. One that is declared later is filled by
    /// sweeps before it is used.
    pub shapes: Vec<ShapeKeys>,
}

/// How an exclusive queue holds messages of one value back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exclusivity {
    /// The metadata key whose value is the exclusivity value; every message must have it.
    pub key: Box<str>,
    /// How many messages of a value may be in flight at once, 1 to 10,000, unless the value has a limit of its own.
    pub max_in_flight_per_value: u32,
    /// Whether an invisible or running message holds back those of its value that come after it by rank.
    pub strict_order_per_value: bool,
}

/// How long completed, canceled and errored messages are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retention {
    /// Completed messages.
    pub completed: Duration,
    /// Canceled messages.
    pub canceled: Duration,
    /// Errored messages, which wait for a redrive.
    pub errored: Duration,
}

impl Retention {
    /// How long a message of this state is kept; none for states that are not terminal.
    pub fn of(&self, state: MessageState) -> Option<Duration> {
        match state {
            MessageState::Invisible | MessageState::Pending | MessageState::Running => None,
            MessageState::Completed => Some(self.completed),
            MessageState::Canceled => Some(self.canceled),
            MessageState::Errored => Some(self.errored),
        }
    }
}

/// A named offset from the server's now, by which the priority of a message is made when it brings none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PriorityClass {
    /// Its name.
    pub name: Box<str>,
    /// What is added to now, in milliseconds; negative is served sooner.
    pub offset_ms: i64,
    /// The metadata pair that selects the class for a message that names none.
    pub tag: Option<(Box<str>, Box<str>)>,
}

/// When a failed message is tried again: `initial * factor^(attempt - 1)`, at most `max`, plus jitter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MessageRetryPolicy {
    /// The delay after the first failure.
    pub initial: Duration,
    /// What each further failure multiplies the delay with, in percent, at least 100.
    pub factor_percent: u32,
    /// The longest delay before jitter.
    pub max: Duration,
    /// The most that chance adds, in percent of the delay, at most 100.
    pub jitter_percent: u32,
}

impl MessageRetryPolicy {
    /// The delay after the attempt of this number, from 1; `draw` is the injected chance, of which `u32::MAX` is all.
    pub fn delay(&self, attempt: u32, draw: u32) -> Duration {
        let most = micros_of(self.max);
        let mut micros = micros_of(self.initial).min(most);
        for _ in 1..attempt {
            let next = i128::from(micros) * i128::from(self.factor_percent) / 100;
            let next = i64::try_from(next).unwrap_or(i64::MAX).min(most);
            if next == micros {
                break; // at its maximum, or a factor of 1: no more attempts change it
            }
            micros = next;
        }
        let jitter =
            i128::from(micros) * i128::from(self.jitter_percent) * i128::from(draw) / 100 / i128::from(u32::MAX);
        let micros = i128::from(micros) + jitter;
        Duration::from_micros(u64::try_from(micros).unwrap_or(0)).min(INVISIBILITY_MAX)
    }
}

impl Settings {
    /// Checks every range, and that results outlive their tokens.
    pub fn check(&self) -> Result<(), InvalidCommandPart> {
        if setting_ranges::faults_of_shard(self).is_empty() { Ok(()) } else { Err(InvalidCommandPart::Settings) }
    }

    /// The priority of a message: its own, else now plus the offset of the class it names or its metadata select.
    /// O(classes).
    pub fn priority(
        &self,
        own: Option<i64>,
        class: Option<&str>,
        metadata: &Metadata,
        now: Timestamp,
    ) -> Result<i64, InvalidCommandPart> {
        let tagged =
            |class: &&PriorityClass| class.tag.as_ref().is_some_and(|(key, value)| metadata.get(key) == Some(&**value));
        let offset = match (own, class) {
            (Some(own), _) => return in_range(own),
            (None, Some(name)) => {
                let found = self.classes.iter().find(|class| &*class.name == name);
                found.ok_or(InvalidCommandPart::PriorityClass)?.offset_ms
            }
            (None, None) => self.classes.iter().find(tagged).map_or(0, |class| class.offset_ms),
        };
        in_range(now.millis().saturating_add(offset))
    }
}

fn in_range(priority: i64) -> Result<i64, InvalidCommandPart> {
    let fits = (-PRIORITY_MAX..=PRIORITY_MAX).contains(&priority);
    if fits { Ok(priority) } else { Err(InvalidCommandPart::Priority) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_grow_to_their_maximum_and_chance_only_adds() {
        let [ms100, second] = [Duration::from_millis(100), Duration::from_secs(1)];
        let policy = MessageRetryPolicy { initial: ms100, factor_percent: 200, max: second, jitter_percent: 50 };
        let delays = [1, 2, 3, 4, 5, 10_000].map(|attempt| policy.delay(attempt, 0).as_millis());
        assert_eq!(delays, [100, 200, 400, 800, 1_000, 1_000]);
        assert_eq!(policy.delay(1, u32::MAX), Duration::from_millis(150));
    }
}
