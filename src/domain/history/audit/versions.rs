//! A message against its rows in the history: every version from the enqueue on is there, or known to be missing.

use std::collections::BTreeMap;

use super::{Finding, FindingKind};
use crate::history::HistoryGap;
use crate::queue::messages::message::MessageKey;
use crate::queue::messages::message_id::MessageId;
use crate::queue::transition::{HistoryRow, RowPosition};
use crate::queue::{MessageHead, MessageState, ShardId};
use crate::time::Timestamp;

/// The rows that are known to be missing from the history of a shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KnownHoles {
    /// The gaps of the shard.
    pub gaps: Vec<HistoryGap>,
    /// Rows before this time may have left by age; none if no row ever left.
    pub starts_at: Option<Timestamp>,
}

/// A message that is compared with its rows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckedMessage {
    pub key: MessageKey,
    pub id: MessageId,
    pub state: MessageState,
    pub version: u64,
    pub enqueued_at: Timestamp,
}

impl From<MessageHead> for CheckedMessage {
    fn from(MessageHead { key, id, state, version, enqueued_at, .. }: MessageHead) -> Self {
        Self { key, id, state, version, enqueued_at }
    }
}

/// The present versions of a message, with place and time of each.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct SeenVersions(BTreeMap<u64, (RowPosition, Timestamp)>);

impl SeenVersions {
    /// Adds the next row of the message. A row of a later epoch undoes the versions from its own on: its shard went
    /// back.
    pub fn add(&mut self, row: &HistoryRow) {
        let version = row.transition.version;
        if self.0.last_key_value().is_some_and(|(last, _)| *last >= version) {
            self.0.split_off(&version);
        }
        self.0.insert(version, (row.position(), row.transition.at));
    }

    /// The runs of versions that are missing up to one, as first and last. O(versions seen).
    fn missing_through(&self, through: u64) -> Vec<(u64, u64)> {
        let mut missing = Vec::new();
        let mut next = 1;
        for &version in self.0.range(..=through).map(|(version, _)| version) {
            if version > next {
                missing.push((next, version - 1));
            }
            next = version + 1;
        }
        if next <= through {
            missing.push((next, through));
        }
        missing
    }

    /// The findings about a message: one for each run of missing versions that nothing explains. O(versions + gaps).
    pub fn check(&self, shard: ShardId, message: &CheckedMessage, holes: &KnownHoles) -> Vec<Finding> {
        let missing = self.missing_through(message.version).into_iter();
        let unexplained = missing.filter(|run| !self.is_explained(*run, message, holes));
        unexplained.map(|run| finding(shard, message, run)).collect()
    }

    /// Whether a missing run lies before the history, or in gaps that have room for it.
    fn is_explained(&self, (first, last): (u64, u64), message: &CheckedMessage, holes: &KnownHoles) -> bool {
        let before = self.0.range(..first).next_back().map(|(_, place)| *place);
        let after = self.0.range(last + 1..).next().map(|(_, place)| *place);
        let from_time = before.map_or(message.enqueued_at, |(_, at)| at);
        if holes.starts_at.is_some_and(|starts_at| from_time < starts_at) {
            return true;
        }
        let (from, to) = (before.map(|(position, _)| position), after.map(|(position, _)| position));
        let room: u64 = holes.gaps.iter().map(|gap| overlap(gap, from, to)).sum();
        room > last - first
    }
}

/// How many positions of a gap lie between two rows.
fn overlap(gap: &HistoryGap, after: Option<RowPosition>, before: Option<RowPosition>) -> u64 {
    let first = match after {
        Some(after) if after.epoch > gap.epoch => return 0,
        Some(after) if after.epoch == gap.epoch => gap.from_position.max(after.position + 1),
        Some(_) | None => gap.from_position,
    };
    let end = match before {
        Some(before) if before.epoch < gap.epoch => return 0,
        Some(before) if before.epoch == gap.epoch => before.position.min(gap.to_position + 1),
        Some(_) | None => gap.to_position + 1,
    };
    end.saturating_sub(first)
}

fn finding(shard: ShardId, message: &CheckedMessage, (first, last): (u64, u64)) -> Finding {
    let (id, version) = (&message.id, message.version);
    let which = if first == last { format!("version {first}") } else { format!("the versions {first} to {last}") };
    let text = format!("message {id} is at version {version}; {which} of it is missing from the history");
    let finding = Finding::of_shard(FindingKind::Version, shard, (last - first + 1, 0), text);
    Finding { state: Some(message.state), message: Some(message.key), version: Some(first), ..finding }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::transition::TransitionDetail;
    use crate::queue::{QueueId, Transition, Trigger};

    const SHARD: ShardId = ShardId { queue: QueueId(7), number: 0 };
    const KEY: MessageKey = MessageKey { shard: 0, epoch: 1, sequence: 20 };

    fn at(position: u64) -> Timestamp {
        Timestamp::from_secs(position.cast_signed())
    }

    fn seen(rows: &[(u64, u32, u64)]) -> SeenVersions {
        let mut seen = SeenVersions::default();
        for &(version, epoch, position) in rows {
            let detail = TransitionDetail { position: RowPosition { epoch, position }, ..TransitionDetail::default() };
            let (trigger, from, to) = (Trigger::Extend, Some(MessageState::Running), Some(MessageState::Running));
            let transition = Transition { key: KEY, version, trigger, from, to, at: at(position), detail };
            seen.add(&HistoryRow { transition, enqueued: None });
        }
        seen
    }

    fn gap(from_position: u64, to_position: u64) -> HistoryGap {
        let (from_time, to_time) = (at(from_position), at(to_position));
        HistoryGap { shard: 0, epoch: 1, from_position, to_position, from_time, to_time }
    }

    fn missing(seen: &SeenVersions, version: u64, holes: &KnownHoles) -> Vec<(Option<u64>, i64)> {
        let id = MessageId::new("m").expect("an id");
        let message = CheckedMessage { key: KEY, id, state: MessageState::Running, version, enqueued_at: at(10) };
        seen.check(SHARD, &message, holes).iter().map(|finding| (finding.version, finding.expected)).collect()
    }

    fn no_holes() -> KnownHoles {
        KnownHoles { gaps: Vec::new(), starts_at: None }
    }

    #[test]
    fn every_run_of_missing_versions_is_found() {
        let whole = seen(&[(1, 1, 10), (2, 1, 14), (3, 1, 15)]);
        assert_eq!(missing(&whole, 3, &no_holes()), []);
        assert_eq!(missing(&whole, 2, &no_holes()), [], "the history may be ahead of the message that was read");
        assert_eq!(missing(&whole, 5, &no_holes()), [(Some(4), 2)]);
        let holed = seen(&[(2, 1, 14), (5, 1, 30)]);
        assert_eq!(missing(&holed, 5, &no_holes()), [(Some(1), 1), (Some(3), 2)]);
    }

    #[test]
    fn a_gap_explains_as_many_versions_as_it_has_positions_in_between() {
        let holed = seen(&[(1, 1, 10), (4, 1, 20)]);
        let with = |gaps: &[HistoryGap]| missing(&holed, 4, &KnownHoles { gaps: gaps.to_vec(), ..no_holes() });
        assert_eq!(with(&[gap(11, 12)]), []);
        assert_eq!(with(&[gap(5, 11), gap(19, 40)]), [], "one position of each lies between the rows");
        assert_eq!(with(&[gap(12, 12)]), [(Some(2), 2)], "two versions do not fit into one position");
        assert_eq!(with(&[gap(1, 9), gap(21, 30)]), [(Some(2), 2)]);
        let elsewhere = HistoryGap { epoch: 2, ..gap(11, 12) };
        assert_eq!(with(&[elsewhere]), [(Some(2), 2)]);
    }

    #[test]
    fn what_lies_before_the_history_is_not_missed() {
        let late = seen(&[(3, 1, 50)]);
        let since = |starts_at| KnownHoles { starts_at: Some(at(starts_at)), ..no_holes() };
        assert_eq!(missing(&late, 3, &since(11)), []);
        assert_eq!(missing(&late, 3, &since(10)), [(Some(1), 2)]);
    }

    #[test]
    fn undone_rows_do_not_stand_for_those_of_the_new_epoch() {
        let undone = seen(&[(1, 1, 10), (2, 1, 11), (3, 1, 12), (2, 2, 11)]);
        assert_eq!(missing(&undone, 2, &no_holes()), []);
        assert_eq!(missing(&undone, 3, &no_holes()), [(Some(3), 1)]);
    }
}
