//! The counts of a shard about itself: rows of the transition table, attempts, times, errors, and counts by metadata
//! value.
//!
//! All of it changes in the same step as the messages. Every count is a total that only grows, or a depth. A report of
//! the totals at one position is therefore complete, whatever was reported before.

pub mod errors;
pub mod flows;
pub mod steps;
pub mod values;

use std::collections::{BTreeMap, BTreeSet};

use crate::limits::COUNTED_KEY_SETS_MAX;
use crate::queue::counter_names::CountedValue;
use crate::queue::index::stubs::Stub;
use crate::queue::messages::message::{CountedAs, CountedUnder, MessageHead, Metadata};
use crate::queue::messages::state_machine::{self, MessageState, Trigger};
use crate::queue::totals::Totals;
use crate::time::Timestamp;

use errors::{ErrorFlow, SignatureCounts, SignatureTally};
use flows::{Flow, ROWS, depth_change};
use steps::{ATTEMPT_STEPS, TIME_STEPS, attempt_step, time_step};
use values::{KeyTally, ValueCounts};

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
        }
    }
}

impl ShardCounts {
    /// The total of a flow. O(rows).
    pub fn flow(&self, flow: Flow) -> u64 {
        if flow == Flow::EnqueuedBytes { self.enqueued_bytes } else { flow.of(&self.rows) }
    }

    /// How often a message became pending, or stayed so by an update, since the creation of the shard. O(rows).
    pub fn arrivals(&self) -> u64 {
        let rows = state_machine::row_shapes().zip(self.rows);
        rows.filter(|(row, _)| row.to == Some(MessageState::Pending)).map(|(_, count)| count).sum()
    }

    /// The depth of a state, as the row counts say. It equals the number of messages of the state. O(rows).
    pub fn depth(&self, state: MessageState) -> u64 {
        u64::try_from(depth_change(state, &self.rows)).unwrap_or(0)
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

/// The counts of a value, with the position of their last change.
pub type ChangedCounts = (ValueCounts, u64);

/// The parts of a tally that changed and are not in the header.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct TallyChanges {
    /// Counts of values, by key; none for a value that yielded.
    pub values: Vec<(Box<str>, CountedValue, Option<ChangedCounts>)>,
    /// Counts of error signatures.
    pub signatures: Vec<(CountedValue, SignatureCounts)>,
}

/// The counts of a shard.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ShardTally {
    counts: ShardCounts,
    signatures: SignatureTally,
    keys: BTreeMap<Box<str>, KeyTally>,
    /// The sets of keys that messages are counted under, by their number less 1.
    key_sets: Vec<Box<[Box<str>]>>,
    /// Whether the store has room for more values.
    is_store_full: bool,
    /// The values that changed since `take_changes`.
    changed_values: BTreeSet<(Box<str>, CountedValue)>,
    changed_signatures: BTreeSet<CountedValue>,
}

impl ShardTally {
    /// A tally with the stored counts and sets of keys.
    pub fn of(counts: ShardCounts, key_sets: Vec<Box<[Box<str>]>>) -> Self {
        Self { counts, key_sets, ..Self::default() }
    }

    /// Whether the counts equal a count of the messages, which are those of the totals. The values of stubs are not
    /// known, so values are compared only where no stub is counted under one. O(messages log values).
    pub fn agrees_with<'m>(
        &self,
        totals: &Totals,
        messages: impl Iterator<Item = &'m MessageHead>,
        mut stubs: impl Iterator<Item = Stub>,
    ) -> bool {
        let agrees = |state: MessageState| self.counts.depth(state) == totals.of(state).messages;
        MessageState::ALL.into_iter().all(agrees)
            && (stubs.any(|stub| stub.key_set != 0) || self.value_depths_agree_with(messages))
    }

    fn value_depths_agree_with<'m>(&self, messages: impl Iterator<Item = &'m MessageHead>) -> bool {
        let mut found: BTreeMap<(&str, CountedValue), ValueCounts> = BTreeMap::new();
        for message in messages.filter(|message| message.counted.key_set != 0) {
            for (key, value, counted_as) in self.counted_keys(message) {
                found.entry((key, counted_value(value, counted_as))).or_default().add_depth(message.state);
            }
        }
        let stored =
            self.keys.iter().flat_map(|(key, tally)| tally.changed_after(None).map(move |stored| (&**key, stored)));
        let mut stored = stored.filter(|(_, (_, counts))| counts.has_messages());
        found.retain(|_, counts| counts.has_messages());
        let expected = found.len();
        let equal = |(key, (value, counts)): (&str, (CountedValue, ValueCounts))| {
            found.get(&(key, value)).is_some_and(|found| found.depth == counts.depth)
        };
        let mut seen = 0;
        stored.by_ref().all(|stored| {
            seen += 1;
            equal(stored)
        }) && seen == expected
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

    /// The counts by value that changed after a position, or all. O(values).
    pub fn values_after(&self, since: Option<u64>) -> Vec<(Box<str>, CountedValue, ValueCounts)> {
        let of_key = |(key, tally): (&str, &KeyTally)| {
            let changed = tally.changed_after(since);
            changed.map(|(value, counts)| (key.into(), value, counts)).collect::<Vec<_>>()
        };
        self.keys().flat_map(of_key).collect()
    }

    /// The number of values with counts of their own.
    pub fn own_values(&self) -> usize {
        self.keys.values().map(KeyTally::own_values).sum()
    }

    /// Says whether the store has room for another value with counts of its own.
    pub fn set_store_full(&mut self, is_full: bool) {
        self.is_store_full = is_full;
    }

    /// The sets of keys that messages are counted under, in the order of their numbers from 1.
    pub fn key_sets(&self) -> &[Box<[Box<str>]>] {
        &self.key_sets
    }

    /// Gives a set of keys a number, before messages are counted under it. Returns whether there was one: `is_used`
    /// says whether messages have a set, and is asked only when all numbers are taken.
    pub fn declare_keys(&mut self, keys: &[Box<str>], is_used: impl Fn(u8) -> bool) -> bool {
        if keys.is_empty() || self.key_sets.iter().any(|known| **known == *keys) {
            return true;
        }
        if self.key_sets.len() < COUNTED_KEY_SETS_MAX {
            self.key_sets.push(keys.into());
            return true;
        }
        let free = (0..self.key_sets.len()).find(|index| !is_used(set_number(*index)));
        free.map(|free| self.key_sets[free] = keys.into()).is_some()
    }

    /// Admits a new message to the counts of a declared set of keys. Returns what it is counted under. O(keys log n).
    pub fn admit(&mut self, keys: &[Box<str>], metadata: &Metadata, values_max: usize) -> CountedUnder {
        let Some(known) = self.key_sets.iter().position(|known| **known == *keys) else {
            return CountedUnder::default(); // the empty set
        };
        let mut counted = CountedUnder { key_set: set_number(known), values: 0 };
        for (index, key) in keys.iter().enumerate() {
            counted.set(index, self.admit_value(key, metadata.get(key), values_max));
        }
        counted
    }

    /// Under which value of a key a new message is counted. O(log n).
    fn admit_value(&mut self, key: &str, value: Option<&str>, values_max: usize) -> CountedAs {
        if !self.keys.contains_key(key) {
            self.keys.insert(key.into(), KeyTally::default());
        }
        let tally = self.keys.get_mut(key).expect("it was just inserted");
        let values_max = if self.is_store_full { tally.own_values().min(values_max) } else { values_max };
        // The row of the enqueue follows at the next position.
        let (counted_as, gave_way) = tally.admit(value, values_max, self.counts.position + 1);
        if let Some(value) = gave_way {
            self.changed_values.insert((key.into(), CountedValue::Own((&*value).into())));
            self.changed_values.insert((key.into(), CountedValue::Gone));
        }
        counted_as
    }

    /// The keys of a message that are counted, each with the value that it is counted under.
    pub fn counted_keys<'a>(
        &'a self,
        message: &'a MessageHead,
    ) -> impl Iterator<Item = (&'a str, Option<&'a str>, CountedAs)> {
        counted_keys(&self.key_sets, message)
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
        for (key, value, counted_as) in counted_keys(&self.key_sets, message) {
            let tally = self.keys.entry(key.into()).or_default();
            if tally.count(counted_as, value, row, position) {
                self.changed_values.insert((key.into(), counted_value(value, counted_as)));
            }
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

/// The number of the set at an index.
fn set_number(index: usize) -> u8 {
    u8::try_from(index + 1).expect("the sets are few")
}

fn counted_keys<'a>(
    key_sets: &'a [Box<[Box<str>]>],
    message: &'a MessageHead,
) -> impl Iterator<Item = (&'a str, Option<&'a str>, CountedAs)> {
    let set = usize::from(message.counted.key_set).checked_sub(1).and_then(|index| key_sets.get(index));
    let keys = set.into_iter().flatten().enumerate();
    keys.map(|(index, key)| (&**key, message.metadata_at_enqueue().get(key), message.counted.of_key(index)))
}

/// The value under which a message is counted.
pub fn counted_value(value: Option<&str>, counted_as: CountedAs) -> CountedValue {
    match (counted_as, value) {
        (CountedAs::Own, Some(value)) => CountedValue::Own(value.into()),
        (CountedAs::Other, _) => CountedValue::Other,
        (CountedAs::None | CountedAs::Own, _) => CountedValue::None,
    }
}
