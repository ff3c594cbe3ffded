//! The settings of a queue, as one shard uses them. All durations come from here or from commands.

use std::fmt;
use std::time::Duration;

use crate::limits::{INVISIBILITY_MAX, LEASE_MAX, METADATA_BYTES_MAX, PAYLOAD_BYTES_MAX, PRIORITY_MAX};
use crate::queue::filter::ShapeKeys;
use crate::queue::invalid_command::InvalidCommandPart;
use crate::queue::messages::message::Metadata;
use crate::queue::messages::state_machine::MessageState;
use crate::queue::setup::queue_settings;
use crate::time::{Timestamp, micros_of};

macro_rules! settings {
    ($($(#[$doc:meta])* $field:ident as $name:ident: $type:ty = $default:expr;)*) => {
        /// The settings of a queue.
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct Settings {
            $($(#[$doc])* pub $field: $type,)*
            /// The retry policy of failed messages.
            pub retry: MessageRetryPolicy,
            /// The default TTL, after which a message that is not leased is canceled.
            pub default_ttl: Option<Duration>,
            /// How long terminal messages are kept.
            pub retention: Retention,
            /// Named offsets of the default priority.
            pub classes: Vec<PriorityClass>,
            /// The exclusivity settings; none for a simple queue. The key and the order change only while there are no
            /// messages.
            pub exclusivity: Option<Exclusivity>,
            /// The metadata keys by whose values messages are counted: at most 4, none twice.
            pub count_by: Vec<Box<str>>,
            /// The rows that the history keeps.
            pub history: HistoryKept,
            /// When the id of a message that is over may come again.
            pub reuse_ids: IdReuse,
            /// The sets of keys whose filters have an index: at most 15, none twice. One that is declared later is
            /// filled by sweeps before it is used.
            pub shapes: Vec<ShapeKeys>,
        }

        impl Default for Settings {
            fn default() -> Self {
                let hour = Duration::from_secs(3_600);
                Self {
                    $($field: $default,)*
                    retry: MessageRetryPolicy {
                        initial: Duration::from_secs(1),
                        factor_percent: 200,
                        max: Duration::from_secs(300),
                        jitter_percent: 20,
                    },
                    default_ttl: None,
                    retention: Retention { completed: hour, canceled: hour, errored: 14 * 24 * hour },
                    classes: Vec::new(),
                    exclusivity: None,
                    count_by: Vec::new(),
                    history: HistoryKept::All,
                    reuse_ids: IdReuse::AfterWindow,
                    shapes: Vec::new(),
                }
            }
        }
    };
}
queue_settings!(all settings);

/// The settings and blocks of every shard of a queue, from one version of the queue's entry in the catalog.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardSettings {
    /// The version. A shard takes in only a higher one than it has.
    pub version: u64,
    pub settings: Settings,
    /// The reason of an enqueue block, if there is one.
    pub enqueue_blocked: Option<Box<str>>,
    /// The reason of a dequeue block, if there is one.
    pub dequeue_blocked: Option<Box<str>>,
}

impl From<Settings> for ShardSettings {
    /// Settings without a version: every version of a catalog replaces them.
    fn from(settings: Settings) -> Self {
        Self { version: 0, settings, enqueue_blocked: None, dequeue_blocked: None }
    }
}

/// The rows of a queue that the history keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HistoryKept {
    All,
    Nothing,
}

impl fmt::Display for HistoryKept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::All => "ALL",
            Self::Nothing => "NONE",
        })
    }
}

/// When the id of a message may be that of a new one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IdReuse {
    /// Once nothing is known of it any more.
    AfterWindow,
    /// Once its message is completed or canceled.
    WhenOver,
}

impl fmt::Display for IdReuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AfterWindow => "AFTER_WINDOW",
            Self::WhenOver => "WHEN_OVER",
        })
    }
}

/// The exclusivity settings of a queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exclusivity {
    /// The metadata key whose value is the exclusivity value; every message must have it.
    pub key: Box<str>,
    /// The most messages of a value in flight, 1 to 10,000, unless the value has its own limit.
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
    /// Whether it is shorter than another one for any state.
    pub fn is_shorter_than(&self, other: &Self) -> bool {
        self.completed < other.completed || self.canceled < other.canceled || self.errored < other.errored
    }

    /// The retention of a message in this state; none for states that are not terminal.
    pub fn of(&self, state: MessageState) -> Option<Duration> {
        match state {
            MessageState::Invisible | MessageState::Pending | MessageState::Running => None,
            MessageState::Completed => Some(self.completed),
            MessageState::Canceled => Some(self.canceled),
            MessageState::Errored => Some(self.errored),
        }
    }
}

/// A priority class: a named offset from the visible time, for messages without a priority.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PriorityClass {
    pub name: Box<str>,
    /// The offset in milliseconds; a negative one is served sooner.
    pub offset_ms: i64,
    /// The metadata pair that selects the class for a message that names none.
    pub tag: Option<(Box<str>, Box<str>)>,
}

/// The retry policy: `initial * factor^(attempt - 1)`, at most `max`, plus jitter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MessageRetryPolicy {
    /// The delay after the first failure.
    pub initial: Duration,
    /// The factor of each further failure, in percent, at least 100.
    pub factor_percent: u32,
    /// The longest delay before jitter.
    pub max: Duration,
    /// The largest jitter, in percent of the delay, at most 100.
    pub jitter_percent: u32,
}

impl MessageRetryPolicy {
    /// The delay after the attempt of this number, from 1. `draw` is the injected random number; `u32::MAX` gives full
    /// jitter.
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
    /// The priority of a message: its own, else the time at which it becomes visible plus the offset of the class it
    /// names or its metadata select. O(classes).
    pub fn priority(
        &self,
        own: Option<i64>,
        class: Option<&str>,
        metadata: &Metadata,
        visible_at: Timestamp,
    ) -> Result<i64, InvalidCommandPart> {
        match own {
            Some(own) => in_range(own),
            None => in_range(visible_at.millis().saturating_add(self.priority_offset(class, metadata)?)),
        }
    }

    /// The offset from its visible time, in milliseconds, of a message without a priority of its own: that of the class
    /// it names or its metadata select. O(classes).
    pub fn priority_offset(&self, class: Option<&str>, metadata: &Metadata) -> Result<i64, InvalidCommandPart> {
        let tagged =
            |class: &&PriorityClass| class.tag.as_ref().is_some_and(|(key, value)| metadata.get(key) == Some(&**value));
        match class {
            Some(name) => {
                let found = self.classes.iter().find(|class| &*class.name == name);
                found.map(|class| class.offset_ms).ok_or(InvalidCommandPart::PriorityClass)
            }
            None => Ok(self.classes.iter().find(tagged).map_or(0, |class| class.offset_ms)),
        }
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
