//! The counts of a shard, against sums over all rows that it ever applied.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::up_to;
use crate::queue::command::MessageUpdate;
use crate::queue::counter_names::CountedValue;
use crate::queue::messages::message::{MessageKey, MessageRef, Metadata};
use crate::queue::messages::message_id::MessageId;
use crate::queue::messages::settlement::SettleAction;
use crate::queue::tally::flows::Flow;
use crate::queue::tally::values::{COUNTED_STATES, ValueCounts, ValueFlow};
use crate::queue::{Command, MessageState, Reply, Settings, Shard, Transition, Trigger};
use crate::time::Timestamp;

/// The parts of an enqueued message on which counts depend.
struct Enqueued {
    count_by: Vec<Box<str>>,
    bytes: u32,
}

/// Every row of a shard, and the sums that follow from them.
#[derive(Default)]
pub(super) struct CountsOracle {
    rows: Vec<Transition>,
    enqueued: BTreeMap<MessageKey, Enqueued>,
}

impl CountsOracle {
    /// Takes the rows of a command, directly after it.
    pub fn take(&mut self, shard: &Shard, rows: &[Transition]) -> Result<(), TestCaseError> {
        for row in rows {
            prop_assert_eq!(row.detail.since, self.since(row), "since when it was ready or leased: {:?}", row);
            self.rows.push(row.clone());
            let position = row.detail.position;
            prop_assert_eq!((position.epoch, position.position), (1, self.rows.len() as u64), "positions are gapless");
            if row.trigger == Trigger::Enqueue {
                let message = shard.message(row.key.sequence).expect("it was just enqueued");
                let bytes = message.payload_bytes;
                let count_by = shard.settings().count_by.clone();
                self.enqueued.insert(row.key, Enqueued { count_by, bytes });
            }
        }
        Ok(())
    }

    /// The time since which the message of a row was ready, if the row gives a lease; the time since which it was
    /// leased, if the row ends one.
    fn since(&self, row: &Transition) -> Option<Timestamp> {
        let ends = row.from == Some(MessageState::Running) && row.to != row.from;
        let begins = |before: &Transition| {
            let became_ready = before.to == Some(MessageState::Pending) && before.from != before.to;
            let is_ready = row.trigger == Trigger::Dequeue && became_ready;
            is_ready || ends && before.trigger == Trigger::Dequeue
        };
        let of_message = |before: &&Transition| before.key == row.key && begins(before);
        self.rows.iter().rev().find(of_message).map(|before| before.at)
    }

    pub fn check(&self, shard: &Shard) -> Result<(), TestCaseError> {
        let counts = shard.tally().counts();
        for (flow, expected) in self.flows() {
            prop_assert_eq!(counts.flow(flow), expected, "{}", flow.name());
        }
        for state in MessageState::ALL {
            prop_assert_eq!(counts.depth(state), shard.totals().of(state).messages, "depth of {}", state);
        }
        let arrivals = self.rows.iter().filter(|row| row.to == Some(MessageState::Pending)).count() as u64;
        prop_assert_eq!(counts.arrivals(), arrivals);
        let is_kept = MessageState::ALL.map(|state| counts.depth(state)).iter().sum::<u64>();
        prop_assert_eq!(counts.flow(Flow::Enqueued), is_kept + counts.flow(Flow::Expired), "what came is here or gone");
        let sum = |counts: &[u64]| counts.iter().sum::<u64>();
        prop_assert_eq!(sum(&counts.leased_at), counts.flow(Flow::Dequeued));
        prop_assert_eq!(sum(&counts.completed_at), counts.flow(Flow::Completed));
        prop_assert_eq!(sum(&counts.errored_at), counts.flow(Flow::Errored));
        prop_assert_eq!(sum(&counts.wait), counts.flow(Flow::Dequeued));
        let ended = |row: &&Transition| row.from == Some(MessageState::Running) && row.to != row.from;
        prop_assert_eq!(sum(&counts.run), self.rows.iter().filter(ended).count() as u64);
        let signatures = shard.tally().signatures().changed_after(None);
        let (failed, errored) =
            signatures.fold((0, 0), |sums, (_, counts)| (sums.0 + counts.failed, sums.1 + counts.errored));
        prop_assert_eq!((failed, errored), (counts.flow(Flow::Failed), counts.flow(Flow::Errored)));
        self.check_values(shard)
    }

    fn flows(&self) -> Vec<(Flow, u64)> {
        use MessageState::{Canceled, Completed, Errored, Pending};
        let count = |counts: &dyn Fn(&Transition) -> bool| self.rows.iter().filter(|row| counts(row)).count() as u64;
        let by = |trigger: Trigger| count(&|row| row.trigger == trigger);
        let into = |state| count(&|row| row.to == Some(state) && row.from != Some(state));
        let bytes = self.enqueued.values().map(|message| u64::from(message.bytes)).sum();
        vec![
            (Flow::Enqueued, by(Trigger::Enqueue)),
            (Flow::EnqueuedBytes, bytes),
            (Flow::Ready, into(Pending)),
            (Flow::Dequeued, by(Trigger::Dequeue)),
            (Flow::Extended, by(Trigger::Extend)),
            (Flow::Completed, into(Completed)),
            (Flow::CompletedLate, by(Trigger::LateComplete)),
            (Flow::Failed, by(Trigger::Fail)),
            (Flow::Released, by(Trigger::Release)),
            (Flow::LeaseExpired, by(Trigger::LeaseOver)),
            (Flow::Canceled, into(Canceled)),
            (Flow::CanceledTtl, by(Trigger::TtlOver)),
            (Flow::CanceledPurge, count(&|row| row.trigger == Trigger::Purge && row.to == Some(Canceled))),
            (Flow::Errored, into(Errored)),
            (Flow::Redriven, by(Trigger::Redrive)),
            (Flow::Expired, count(&|row| row.to.is_none())),
        ]
    }

    /// The sums over all values of a key are those of the messages that were enqueued while the key was counted. A
    /// value with counts of its own has exactly the messages that are counted under it.
    fn check_values(&self, shard: &Shard) -> Result<(), TestCaseError> {
        for key in ["team", "zone"] {
            let is_counted = |key_of: &MessageKey| self.enqueued[key_of].count_by.iter().any(|own| **own == *key);
            let rows = || self.rows.iter().filter(|row| is_counted(&row.key));
            let values = shard.tally().values_after(None);
            let values = values.into_iter().filter(|(of, _, _)| **of == *key);
            let sum = values.clone().fold(ValueCounts::default(), |mut sum, (_, _, counts)| {
                sum.depth.iter_mut().zip(counts.depth).for_each(|(sum, one)| *sum += one);
                sum.flows.iter_mut().zip(counts.flows).for_each(|(sum, one)| *sum += one);
                sum
            });
            let trigger = |trigger: Trigger| rows().filter(|row| row.trigger == trigger).count() as u64;
            let into = |state| rows().filter(|row| row.to == Some(state) && row.from != row.to).count() as u64;
            let (enqueued, dequeued) = (trigger(Trigger::Enqueue), trigger(Trigger::Dequeue));
            let expected = [enqueued, dequeued, into(MessageState::Completed), into(MessageState::Errored)];
            prop_assert_eq!(sum.flows, expected, "flows by {}: {:?}", key, ValueFlow::ALL);
            for state in COUNTED_STATES {
                let present = shard.list(state, 0).filter(|message| is_counted(&message.key)).count() as u64;
                prop_assert_eq!(sum.depth_of(state), present, "{} by {}", state, key);
            }
            let own = values.filter(|(_, value, _)| matches!(value, CountedValue::Own(_))).count();
            prop_assert!(own <= 10, "{} values", own);
        }
        prop_assert!(
            shard.tally().agrees_with(shard.totals(), shard.messages.iter(), shard.messages.stubs()),
            "a recount finds the same"
        );
        Ok(())
    }
}

fn counted(values_max: u32) -> Shard {
    let settings =
        Settings { count_by: vec!["tenant".into()], count_by_values_max: values_max, ..super::laws::settings() };
    Shard::new(0, 1, settings).expect("legal settings")
}

fn enqueue(shard: &mut Shard, id: &str, tenant: &str, at: Timestamp) {
    let message = super::message(id, &[("tenant", tenant)]);
    shard.apply(Command::Enqueue(Box::new(message)), at).reply.expect("enqueued");
}

#[test]
fn a_value_without_messages_gives_way_and_its_flows_go_on_as_gone() {
    let (mut shard, at) = (counted(1), Timestamp::from_secs(1_000));
    enqueue(&mut shard, "a", "first", at);
    enqueue(&mut shard, "b", "second", at);
    let of = |shard: &Shard, value: &CountedValue| {
        let values = shard.tally().values_after(None);
        values.into_iter().find(|(_, of, _)| of == value).map(|(_, _, counts)| counts)
    };
    let own = |value: &str| CountedValue::Own(value.into());
    assert_eq!(of(&shard, &own("second")), None, "the first value has a message, so it stays");
    assert_eq!(of(&shard, &CountedValue::Other).map(|counts| counts.flows[0]), Some(1));
    let leased = shard.apply(Command::Dequeue(up_to(1)), at);
    let Ok(Reply::Leases { leases, .. }) = leased.reply else { panic!("a lease") };
    let verb = SettleAction::Complete;
    let settle = Command::Settle { token: leases[0].token, verb, failure: Default::default() };
    shard.apply(settle, at).reply.expect("completed");
    enqueue(&mut shard, "c", "third", at);
    assert_eq!(of(&shard, &own("first")), None, "it gave way");
    assert_eq!(of(&shard, &own("third")).map(|counts| counts.flows[0]), Some(1));
    let gone = of(&shard, &CountedValue::Gone).expect("flows of the first value");
    assert_eq!((gone.flows, gone.depth), ([1, 1, 1, 0], [0; 4]));
}

#[test]
fn a_store_without_room_counts_new_values_as_other() {
    let (mut shard, at) = (counted(10), Timestamp::from_secs(1_000));
    enqueue(&mut shard, "a", "first", at);
    shard.set_values_full(true);
    enqueue(&mut shard, "b", "second", at);
    enqueue(&mut shard, "c", "first", at);
    assert_eq!(shard.tally().own_values(), 1);
    let values = shard.tally().values_after(None);
    let flows: Vec<_> = values.into_iter().map(|(_, value, counts)| (value, counts.flows[0])).collect();
    assert_eq!(flows, [(CountedValue::Own("first".into()), 2), (CountedValue::Other, 1)]);
}

#[test]
fn a_message_is_counted_by_the_metadata_of_its_enqueue_whatever_updates_make_of_them() {
    let (mut shard, at) = (counted(10), Timestamp::from_secs(1_000));
    enqueue(&mut shard, "a", "first", at);
    enqueue(&mut shard, "b", "second", at);
    for pairs in [&[("tenant", "second")][..], &[("tenant", "third")], &[]] {
        let metadata = Metadata::new(pairs.iter().copied()).expect("legal pairs");
        let update = MessageUpdate { metadata: Some(metadata), ..MessageUpdate::default() };
        let message = MessageRef::Id(MessageId::new("a").expect("a legal id"), None);
        shard.apply(Command::Update { message, update }, at).reply.expect("updated");
    }
    let leased = shard.apply(Command::Dequeue(up_to(1)), at);
    let Ok(Reply::Leases { leases, .. }) = leased.reply else { panic!("a lease") };
    let settle = Command::Settle { token: leases[0].token, verb: SettleAction::Complete, failure: Default::default() };
    shard.apply(settle, at).reply.expect("completed");
    let values = shard.tally().values_after(None);
    let flows: Vec<_> = values.into_iter().map(|(_, value, counts)| (value, counts.flows)).collect();
    let own = |value: &str| CountedValue::Own(value.into());
    assert_eq!(flows, [(own("first"), [1, 1, 1, 0]), (own("second"), [1, 0, 0, 0])]);
    assert!(
        shard.tally().agrees_with(shard.totals(), shard.messages.iter(), shard.messages.stubs()),
        "a recount finds the same"
    );
}
