//! The counts of a shard at one position: levels follow from flows, and parts add up.
//!
//! All numbers come from one report, so they belong to one position.

use std::collections::BTreeMap;

use super::{Finding, FindingKind};
use crate::queue::counter_names::CountedValue;
use crate::queue::messages::state_machine::row_shapes;
use crate::queue::tally::ShardCounts;
use crate::queue::tally::flows::{Flow, ROWS};
use crate::queue::tally::values::{COUNTED_STATES, ValueCounts, ValueFlow};
use crate::queue::totals::Totals;
use crate::queue::{MessageState, ShardId};

/// Checks the counts of a shard against its messages and against each other. O(rows of the table).
pub fn check_levels(shard: ShardId, totals: &Totals, counts: &ShardCounts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for state in MessageState::ALL {
        let (expected, found) = (counts.depth(state), totals.of(state).messages);
        if expected != found {
            let text = format!("the shard holds {found} {state} messages; its counted rows say {expected}");
            let finding = Finding::of_shard(FindingKind::Depth, shard, (expected, found), text);
            findings.push(finding.of_state(state));
        }
    }
    let (enqueued, expired) = (counts.flow(Flow::Enqueued), counts.flow(Flow::Expired));
    let kept = totals.all().messages + expired;
    if enqueued != kept {
        let text = format!("{enqueued} messages were enqueued; {kept} are held or were removed");
        findings.push(Finding::of_shard(FindingKind::Sum, shard, (enqueued, kept), text));
    }
    findings.extend(check_parts(shard, counts));
    findings
}

/// Checks that counts by attempt and by time add up to the flows since the shard counts them.
fn check_parts(shard: ShardId, counts: &ShardCounts) -> Vec<Finding> {
    let counted = |flow: Flow| flow.of(&counts.rows);
    let sum = |parts: &[u64]| parts.iter().sum::<u64>();
    let (dequeued, ended) = (counted(Flow::Dequeued), rows_out_of_running(&counts.rows));
    let by_attempt = FindingKind::ByAttempt;
    let parts = [
        (by_attempt, "leases by attempt number", sum(&counts.leased_at), dequeued),
        (by_attempt, "completions by attempt number", sum(&counts.completed_at), counted(Flow::Completed)),
        (by_attempt, "messages out of attempts by attempt number", sum(&counts.errored_at), counted(Flow::Errored)),
        (FindingKind::ByTime, "leases by waiting time", sum(&counts.wait), dequeued),
        (FindingKind::ByTime, "ended leases by length", sum(&counts.run), ended),
    ];
    let differing = parts.into_iter().filter(|(_, _, found, expected)| found != expected);
    let finding = |(kind, what, found, expected)| {
        let text = format!("the {what} add up to {found}; the counted rows say {expected}");
        Finding::of_shard(kind, shard, (expected, found), text)
    };
    differing.map(finding).collect()
}

fn rows_out_of_running(rows: &[u64; ROWS]) -> u64 {
    let running = Some(MessageState::Running);
    let ended = row_shapes().zip(rows).filter(|(row, _)| row.from == running && row.to != running);
    ended.map(|(_, count)| count).sum()
}

/// Checks that the counts by value, which must be all of them, add up to those of the shard. O(values).
///
/// Messages that were enqueued before their key was counted are in no value. So the sums are at most those of the
/// shard, and equal once the values have all messages ever enqueued.
pub fn check_values(
    shard: ShardId,
    totals: &Totals,
    counts: &ShardCounts,
    values: &[(Box<str>, CountedValue, ValueCounts)],
) -> Vec<Finding> {
    let mut sums: BTreeMap<&str, ValueCounts> = BTreeMap::new();
    for (key, _, value) in values {
        let sum = sums.entry(key).or_default();
        sum.depth.iter_mut().zip(value.depth).for_each(|(sum, part)| *sum += part);
        sum.flows.iter_mut().zip(value.flows).for_each(|(sum, part)| *sum += part);
    }
    let mut findings = Vec::new();
    for (key, sum) in sums {
        let has_all = sum.flows[ValueFlow::Enqueued as usize] == counts.flow(Flow::Enqueued);
        let differs = |found: u64, expected: u64| found > expected || (has_all && found < expected);
        for (state, found) in COUNTED_STATES.into_iter().zip(sum.depth) {
            let expected = totals.of(state).messages;
            if differs(found, expected) {
                let text = format!("{state} messages by {key} add up to {found}; the shard holds {expected}");
                let finding = Finding::of_shard(FindingKind::ByValue, shard, (expected, found), text);
                findings.push(finding.of_state(state));
            }
        }
        for (flow, found) in ValueFlow::ALL.into_iter().zip(sum.flows) {
            let flow = shard_flow(flow);
            let expected = counts.flow(flow);
            if differs(found, expected) {
                let text = format!("{} by {key} add up to {found}; the shard counted {expected}", flow.name());
                findings.push(Finding::of_shard(FindingKind::ByValue, shard, (expected, found), text));
            }
        }
    }
    findings
}

/// The flow of the shard of which a flow by value is a part.
fn shard_flow(flow: ValueFlow) -> Flow {
    match flow {
        ValueFlow::Enqueued => Flow::Enqueued,
        ValueFlow::Dequeued => Flow::Dequeued,
        ValueFlow::Completed => Flow::Completed,
        ValueFlow::Errored => Flow::Errored,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::QueueId;
    use crate::queue::Trigger;

    const SHARD: ShardId = ShardId { queue: QueueId(7), number: 0 };

    fn number_of(trigger: Trigger, to: Option<MessageState>) -> usize {
        row_shapes().position(|row| row.trigger == trigger && row.to == to).expect("a row of the table")
    }

    /// Five messages: three pending, one running in its first attempt, one completed.
    fn sound() -> (Totals, ShardCounts) {
        let mut counts = ShardCounts { position: 8, ..ShardCounts::default() };
        counts.rows[number_of(Trigger::Enqueue, Some(MessageState::Pending))] = 5;
        counts.rows[number_of(Trigger::Dequeue, Some(MessageState::Running))] = 2;
        counts.rows[number_of(Trigger::Complete, Some(MessageState::Completed))] = 1;
        (counts.leased_at[0], counts.wait[3], counts.completed_at[0], counts.run[2]) = (2, 2, 1, 1);
        let mut totals = Totals::default();
        for state in [MessageState::Pending; 3].into_iter().chain([MessageState::Running, MessageState::Completed]) {
            totals.add(state, 10);
        }
        (totals, counts)
    }

    fn kinds(findings: &[Finding]) -> Vec<(FindingKind, Option<MessageState>, i64, i64)> {
        findings.iter().map(|one| (one.kind, one.state, one.expected, one.found)).collect()
    }

    #[test]
    fn counts_that_agree_are_no_finding() {
        let (totals, counts) = sound();
        assert_eq!(check_levels(SHARD, &totals, &counts), []);
        assert_eq!(check_levels(SHARD, &Totals::default(), &ShardCounts::default()), []);
    }

    #[test]
    fn a_lost_message_is_named_by_its_state() {
        let (mut totals, counts) = sound();
        totals.remove(MessageState::Running, 10);
        let found = check_levels(SHARD, &totals, &counts);
        let expected = [(FindingKind::Depth, Some(MessageState::Running), 1, 0), (FindingKind::Sum, None, 5, 4)];
        assert_eq!(kinds(&found), expected);
        assert_eq!(found[0].text, "the shard holds 0 running messages; its counted rows say 1");
    }

    #[test]
    fn each_part_that_does_not_add_up_is_a_finding() {
        let (totals, sound) = sound();
        let of = |change: fn(&mut ShardCounts)| {
            let mut counts = sound.clone();
            change(&mut counts);
            kinds(&check_levels(SHARD, &totals, &counts))
        };
        assert_eq!(of(|counts| counts.leased_at[7] = 1), [(FindingKind::ByAttempt, None, 2, 3)]);
        assert_eq!(of(|counts| counts.completed_at[0] = 0), [(FindingKind::ByAttempt, None, 1, 0)]);
        assert_eq!(of(|counts| counts.errored_at[0] = 1), [(FindingKind::ByAttempt, None, 0, 1)]);
        assert_eq!(of(|counts| counts.wait[0] = 1), [(FindingKind::ByTime, None, 2, 3)]);
        assert_eq!(of(|counts| counts.run[2] = 0), [(FindingKind::ByTime, None, 1, 0)]);
    }

    #[test]
    fn values_have_at_most_what_the_shard_has_and_all_of_it_once_they_have_every_enqueue() {
        let (totals, counts) = sound();
        let value = |name: &str, pending, running, flows| {
            let depth = [0, pending, running, 0];
            (Box::from("tenant"), CountedValue::Own(name.into()), ValueCounts { depth, flows })
        };
        let all = [value("a", 1, 1, [2, 1, 0, 0]), value("b", 2, 0, [3, 1, 1, 0])];
        assert_eq!(check_values(SHARD, &totals, &counts, &all), []);
        assert_eq!(check_values(SHARD, &totals, &counts, &all[..1]), [], "a part of the messages");
        let short = [value("a", 1, 0, [2, 1, 0, 0]), value("b", 2, 0, [3, 1, 1, 0])];
        let found = check_values(SHARD, &totals, &counts, &short);
        assert_eq!(kinds(&found), [(FindingKind::ByValue, Some(MessageState::Running), 1, 0)]);
        let beyond = [value("a", 4, 0, [2, 3, 0, 0])];
        let found = check_values(SHARD, &totals, &counts, &beyond);
        let expected = [(FindingKind::ByValue, Some(MessageState::Pending), 3, 4), (FindingKind::ByValue, None, 2, 3)];
        assert_eq!(kinds(&found), expected);
    }
}
