//! What a shard counts about itself: rows of the transition table, attempts, times, errors, and counts by metadata value.
//!
//! All of it changes in the same step as the messages. Every count is a total that only grows, or a depth. A report of the
//! totals at one position is therefore complete, whatever was reported before.

pub mod errors;
pub mod flows;
pub mod steps;
pub mod values;

use std::collections::{BTreeMap, BTreeSet};

use crate::domain::queue::counter_names::CountedValue;
use crate::domain::queue::messages::message::MessageHead;
use crate::domain::queue::messages::state_machine::{MessageState, Trigger};
use crate::domain::queue::totals::Totals;
use crate::domain::time::Timestamp;

use errors::{ErrorFlow, SignatureCounts, SignatureTally};
use flows::{Flow, ROWS, depth_change};
use steps::{ATTEMPT_STEPS, TIME_STEPS, attempt_step, time_step};
use values::{CountedUnder, KeyTally, ValueCounts};

/// The counts of a shard that are stored in its header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardCounts {
    /// The number of rows ever applied to the shard. With the epoch of the store it names each row for ever.
    pub position: u64,
    /// How often each row was applied.
    pub rows: [u64; ROWS],
    /// The payload bytes enqueued.
    pub enqueued_bytes: u64,
    /// Leases by attempt number.
    pub leased_at: [u64; ATTEMPT_STEPS.len()],
    /// Completions by attempt number.
    pub completed_at: [u64; ATTEMPT_STEPS.len()],
    /// Messages out of attempts by attempt number.
    pub errored_at: [u64; ATTEMPT_STEPS.len()],
    /// Leases by the time from ready to leased.
    pub wait: [u64; TIME_STEPS.len()],
    /// Ended leases by their length.
    pub run: [u64; TIME_STEPS.len()],
    /// Counts of rows that were applied before the shard counted rows.
    pub before: CountsBefore,
}

/// What is known of a shard from before it counted its rows. Zero for a shard that always did.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CountsBefore {
    /// Messages enqueued: the sequence at that time.
    pub enqueued: u64,
    /// Leases given: the lease serial at that time.
    pub dequeued: u64,
    /// Messages removed: those enqueued that were not there any more.
    pub expired: u64,
    /// Messages of each state.
    pub depth: [u64; MessageState::ALL.len()],
}

impl Default for ShardCounts {
    fn default() -> Self {
        Self {
            position: 0,
            rows: [0; ROWS],
            enqueued_bytes: 0,
            leased_at: Default::default(),
            completed_at: Default::default(),
            errored_at: Default::default(),
            wait: Default::default(),
            run: Default::default(),
            before: CountsBefore::default(),
        }
    }
}

impl ShardCounts {
    /// Counts of a shard that an earlier build stored without them.
    pub fn of_earlier_build(sequence: u64, serial: u64, totals: &Totals) -> Self {
        let depth = totals.messages();
        let expired = sequence.saturating_sub(depth.iter().sum());
        Self { before: CountsBefore { enqueued: sequence, dequeued: serial, expired, depth }, ..Self::default() }
    }

    /// The total of a flow. O(rows).
    pub fn flow(&self, flow: Flow) -> u64 {
        let before = match flow {
            Flow::EnqueuedBytes => return self.enqueued_bytes,
            Flow::Enqueued => self.before.enqueued,
            Flow::Dequeued | Flow::Attempts => self.before.dequeued,
            Flow::Expired => self.before.expired,
            Flow::Ready
            | Flow::Extended
            | Flow::Completed
            | Flow::CompletedLate
            | Flow::Failed
            | Flow::Released
            | Flow::LeaseExpired
            | Flow::Canceled
            | Flow::CanceledTtl
            | Flow::CanceledPurge
            | Flow::Errored
            | Flow::Redriven => 0,
        };
        before + flow.of(&self.rows)
    }

    /// The depth of a state, as the row counts say. It equals the number of messages of the state. O(rows).
    pub fn depth(&self, state: MessageState) -> u64 {
        self.before.depth[state as usize].saturating_add_signed(depth_change(state, &self.rows))
    }
}

/// One row, as it is counted.
#[derive(Clone, Copy, Debug)]
pub struct TalliedRow<'m> {
    /// The number of the row.
    pub number: usize,
    /// The trigger.
    pub trigger: Trigger,
    /// The previous state.
    pub from: Option<MessageState>,
    /// The new state.
    pub to: Option<MessageState>,
    /// The message after the row; a removed message as it was.
    pub message: &'m MessageHead,
    /// The attempt that the row begins or ends; 0 before the first.
    pub attempt: u32,
    /// The start of the phase that the row ends: ready for a lease, or leased.
    pub since: Timestamp,
    /// The shard's time.
    pub now: Timestamp,
}

/// The parts of a tally that changed and are not in the header.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct TallyChanges {
    /// Counts of values, by key; none for a value that gave way.
    pub values: Vec<(Box<str>, CountedValue, Option<(ValueCounts, u64)>)>,
    /// Counts of error signatures.
    pub signatures: Vec<(CountedValue, SignatureCounts)>,
}

/// The counts of a shard.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ShardTally {
    counts: ShardCounts,
    signatures: SignatureTally,
    keys: BTreeMap<Box<str>, KeyTally>,
    /// What changed since `take_changes`.
    changed_values: BTreeSet<(Box<str>, CountedValue)>,
    changed_signatures: BTreeSet<CountedValue>,
}

impl ShardTally {
    /// A tally with these counts in its header.
    pub fn of(counts: ShardCounts) -> Self {
        Self { counts, ..Self::default() }
    }

    /// The counts of the header.
    pub fn counts(&self) -> &ShardCounts {
        &self.counts
    }

    /// The error signatures.
    pub fn signatures(&self) -> &SignatureTally {
        &self.signatures
    }

    /// The counted keys with their values.
    pub fn keys(&self) -> impl Iterator<Item = (&str, &KeyTally)> {
        self.keys.iter().map(|(key, tally)| (&**key, tally))
    }

    /// Under what a new message is counted for a key. O(log n).
    pub fn admit(&mut self, key: &str, value: Option<&str>, values_max: usize) -> CountedUnder {
        if !self.keys.contains_key(key) {
            self.keys.insert(key.into(), KeyTally::default());
        }
        let tally = self.keys.get_mut(key).expect("it was just inserted");
        // The row of the enqueue follows at the next position.
        let (under, gave_way) = tally.admit(value, values_max, self.counts.position + 1);
        if let Some(value) = gave_way {
            self.changed_values.insert((key.into(), CountedValue::Own((&*value).into())));
            self.changed_values.insert((key.into(), CountedValue::Gone));
        }
        under
    }

    /// Counts a row. O(log n), and the keys that the message is counted under.
    pub fn count(&mut self, row: &TalliedRow<'_>) {
        let TalliedRow { number, trigger, from, to, message, attempt, since, now } = *row;
        let counts = &mut self.counts;
        counts.position += 1;
        counts.rows[number] += 1;
        let step = attempt_step(attempt);
        if trigger == Trigger::Enqueue {
            counts.enqueued_bytes += u64::from(message.payload_bytes);
        }
        if trigger == Trigger::Dequeue {
            counts.leased_at[step] += 1;
            counts.wait[time_step(now.since(since))] += 1;
        }
        if from == Some(MessageState::Running) && to != from {
            counts.run[time_step(now.since(since))] += 1;
        }
        if to == Some(MessageState::Completed) {
            counts.completed_at[step] += 1;
        }
        let is_errored = to == Some(MessageState::Errored);
        if is_errored {
            counts.errored_at[step] += 1;
        }
        let position = counts.position;
        if trigger == Trigger::Fail {
            self.count_error(message, ErrorFlow::Failed, position);
        }
        if is_errored {
            self.count_error(message, ErrorFlow::Errored, position);
        }
        self.count_values(message, (trigger, from, to), position);
    }

    fn count_error(&mut self, message: &MessageHead, flow: ErrorFlow, position: u64) {
        let signature = message.error.as_ref().map(|error| &*error.signature);
        let under = self.signatures.count(signature, flow, position);
        self.changed_signatures.insert(under);
    }

    fn count_values(
        &mut self,
        message: &MessageHead,
        row: (Trigger, Option<MessageState>, Option<MessageState>),
        position: u64,
    ) {
        for (key, value, under) in message.counted_keys() {
            let Some(tally) = self.keys.get_mut(key) else { continue };
            tally.count(under, value, row, position);
            let counted = match (under, value) {
                (CountedUnder::Own, Some(value)) => CountedValue::Own(value.into()),
                (CountedUnder::Other, _) => CountedValue::Other,
                (CountedUnder::None | CountedUnder::Own, _) => CountedValue::None,
            };
            self.changed_values.insert((key.into(), counted));
        }
    }

    /// Takes what changed since the last call, apart from the counts of the header.
    pub fn take_changes(&mut self) -> TallyChanges {
        let values = std::mem::take(&mut self.changed_values);
        let signatures = std::mem::take(&mut self.changed_signatures);
        let stored = |(key, value): (Box<str>, CountedValue)| {
            let counts = self.keys.get(&key).and_then(|tally| tally.stored(&value));
            (key, value, counts)
        };
        let values = values.into_iter().map(stored).collect();
        let signatures = signatures.into_iter().map(|under| (under.clone(), self.signatures.of(&under))).collect();
        TallyChanges { values, signatures }
    }

    /// Takes back the stored counts of a value. O(log n).
    pub fn restore_value(&mut self, key: Box<str>, value: CountedValue, counts: ValueCounts, changed_at: u64) {
        self.keys.entry(key).or_default().restore(value, counts, changed_at);
    }

    /// Takes back the stored counts of an error signature. O(log n).
    pub fn restore_signature(&mut self, under: CountedValue, counts: SignatureCounts) {
        self.signatures.restore(under, counts);
    }
}
