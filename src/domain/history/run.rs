//! Follows the rows of one shard on their way into the history: what is new, what is missing, and where the cursor is.
//!
//! Holes show by arithmetic, because the positions of an epoch go on by one. A new epoch goes on from the position to
//! which its shard went back. Invariant: the cursor lies at the last row that is written or known to be missing.

use super::HistoryGap;
use super::audit::Finding;
use super::audit::rows::{AuditRegister, CountedRows};
use crate::queue::ShardId;
use crate::queue::tally::flows::ROWS;
use crate::queue::transition::{HistoryRow, RowPosition};
use crate::time::Timestamp;

/// The end of a page: what follows its last row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageEnd {
    /// More rows, or it is not known.
    Open,
    /// Nothing up to a position: what lies between the last row and it is missing. The time is not before any of it.
    Missing(RowPosition, Timestamp),
}

/// A shard on its way into the history.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardRun {
    pub shard: ShardId,
    /// The last row that is written or known to be missing; the default before the first.
    pub cursor: RowPosition,
    pub register: AuditRegister,
    /// Counts to compare once the cursor reaches their position.
    pub due: Option<CountedRows>,
    /// In a shard that went back within its epoch: up to here its rows were given up. They have the names of other rows
    /// that are written, up to the cursor.
    pub given_up: Option<RowPosition>,
}

/// The rows that a run took in, with the holes and findings.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct TakenRows {
    /// The rows to write.
    pub rows: Vec<HistoryRow>,
    /// The holes before, between and after them.
    pub gaps: Vec<HistoryGap>,
    pub findings: Vec<Finding>,
}

impl ShardRun {
    /// A run that goes on from a stored cursor.
    pub fn from(shard: ShardId, cursor: RowPosition, register: AuditRegister) -> Self {
        Self { shard, cursor, register, due: None, given_up: None }
    }

    /// The position after which the next rows are read.
    pub fn read_after(&self) -> RowPosition {
        self.given_up.unwrap_or(self.cursor)
    }

    /// The position up to which the outbox is not needed any more. The last row of a shard that went back stays, so
    /// that a new process finds out as well.
    pub fn done_through(&self) -> RowPosition {
        let last = RowPosition { position: self.cursor.position.saturating_sub(1), ..self.cursor };
        self.given_up.map_or(self.cursor, |given_up| given_up.min(last))
    }

    /// Whether a shard at a position went back within the epoch of the cursor.
    pub fn is_beyond(&self, position: RowPosition) -> bool {
        self.cursor.epoch == position.epoch && self.cursor.position > position.position
    }

    /// Notes that the shard went back: its rows after a position are other rows than those that are written.
    pub fn go_back(&mut self, after: RowPosition) {
        self.given_up = Some(after);
        self.register.forget_baseline();
        self.due = None;
    }

    /// Sets counts that are compared at their position. O(rows of the table).
    pub fn expect(&mut self, counted: CountedRows) -> Vec<Finding> {
        if self.given_up.is_some() || counted.position < self.cursor {
            return Vec::new();
        }
        if counted.position == self.cursor {
            self.due = None;
            return self.register.compare(self.shard, counted);
        }
        self.due = Some(counted);
        Vec::new()
    }

    /// Takes in the next rows, in the order of their positions. O(rows).
    pub fn take(&mut self, rows: Vec<HistoryRow>, end: PageEnd) -> TakenRows {
        let mut taken = TakenRows::default();
        if self.given_up.is_some() {
            self.give_up(&rows, end, &mut taken);
        }
        for row in rows {
            if row.position() > self.cursor {
                self.step(&row, &mut taken);
                taken.rows.push(row);
            }
        }
        if let PageEnd::Missing(through, at) = end
            && through > self.cursor
        {
            self.miss_before(RowPosition { position: through.position + 1, ..through }, at, &mut taken);
            self.arrive(through, at, &mut taken);
        }
        taken
    }

    fn step(&mut self, row: &HistoryRow, taken: &mut TakenRows) {
        let (position, at) = (row.position(), row.transition.at);
        let is_first = self.cursor == RowPosition::default();
        self.miss_before(position, at, taken);
        if is_first && position.position == 1 {
            // A shard begins with no rows.
            let begin = RowPosition { position: 0, ..position };
            self.register.baseline = Some(CountedRows { position: begin, rows: [0; ROWS] });
        }
        self.register.count(&row.transition);
        self.arrive(position, at, taken);
    }

    /// Notes the hole between the cursor and a position, if there is one.
    fn miss_before(&mut self, next: RowPosition, at: Timestamp, taken: &mut TakenRows) {
        let first = self.cursor.position + 1;
        if self.cursor.epoch != next.epoch && self.cursor != RowPosition::default() {
            // The counts went back with the shard.
            self.register.forget_baseline();
        }
        if next.position <= first {
            return;
        }
        self.register.forget_baseline();
        taken.gaps.push(HistoryGap {
            shard: self.shard.number,
            epoch: next.epoch,
            from_position: first,
            to_position: next.position - 1,
            from_time: self.register.at.min(at),
            to_time: at,
        });
    }

    fn arrive(&mut self, position: RowPosition, at: Timestamp, taken: &mut TakenRows) {
        self.cursor = position;
        self.register.at = self.register.at.max(at);
        match self.due {
            Some(due) if due.position == position => {
                self.due = None;
                taken.findings.extend(self.register.compare(self.shard, due));
            }
            Some(due) if due.position < position => self.due = None,
            Some(_) | None => {}
        }
    }

    /// Gives up the rows of a shard that went back, up to the cursor: they are missing.
    fn give_up(&mut self, rows: &[HistoryRow], end: PageEnd, taken: &mut TakenRows) {
        let Some(after) = self.given_up else { return };
        let lost = rows.iter().take_while(|row| row.position() <= self.cursor);
        let times: Vec<Timestamp> = lost.map(|row| row.transition.at).collect();
        let (through, at) = match (end, rows.last()) {
            (PageEnd::Missing(through, at), _) => (through, at),
            (PageEnd::Open, Some(last)) => (last.position(), last.transition.at),
            (PageEnd::Open, None) => return,
        };
        let is_over = through > self.cursor;
        let to = if is_over { self.cursor } else { through };
        if to > after {
            taken.gaps.push(HistoryGap {
                shard: self.shard.number,
                epoch: self.cursor.epoch,
                from_position: after.position + 1,
                to_position: to.position,
                from_time: times.first().copied().unwrap_or(self.register.at).min(at),
                to_time: times.last().copied().unwrap_or(at),
            });
        }
        self.given_up = (!is_over).then_some(to);
        self.register.forget_baseline();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::messages::message::MessageKey;
    use crate::queue::messages::state_machine::row_shapes;
    use crate::queue::tally::flows::ROWS;
    use crate::queue::transition::TransitionDetail;
    use crate::queue::{MessageState, QueueId, Transition, Trigger};

    const SHARD: ShardId = ShardId { queue: QueueId(7), number: 3 };

    fn at(epoch: u32, position: u64) -> RowPosition {
        RowPosition { epoch, position }
    }

    fn time(position: u64) -> Timestamp {
        Timestamp::from_secs(1_000 + position.cast_signed())
    }

    /// The enqueue of a message at a position, a second after the one before.
    fn row(epoch: u32, position: u64) -> HistoryRow {
        let detail = TransitionDetail { position: at(epoch, position), ..TransitionDetail::default() };
        let transition = Transition {
            key: MessageKey { shard: 3, epoch, sequence: position },
            version: 1,
            trigger: Trigger::Enqueue,
            from: None,
            to: Some(MessageState::Pending),
            at: time(position),
            detail,
        };
        HistoryRow { transition, enqueued: None }
    }

    fn rows(epoch: u32, positions: impl IntoIterator<Item = u64>) -> Vec<HistoryRow> {
        positions.into_iter().map(|position| row(epoch, position)).collect()
    }

    fn new_run() -> ShardRun {
        ShardRun::from(SHARD, RowPosition::default(), AuditRegister::default())
    }

    fn holes(taken: &TakenRows) -> Vec<(u32, u64, u64)> {
        taken.gaps.iter().map(|gap| (gap.epoch, gap.from_position, gap.to_position)).collect()
    }

    /// The counts of a shard that applied only enqueues.
    fn enqueues(epoch: u32, position: u64, count: u64) -> CountedRows {
        let number =
            row_shapes().position(|row| row.trigger == Trigger::Enqueue && row.to == Some(MessageState::Pending));
        let mut counted = [0; ROWS];
        counted[number.expect("a row of the table")] = count;
        CountedRows { position: at(epoch, position), rows: counted }
    }

    #[test]
    fn missing_positions_are_gaps_before_between_and_after_rows() {
        let mut run = new_run();
        let end = PageEnd::Missing(at(1, 9), time(20));
        let taken = run.take(rows(1, [3, 4, 7]), end);
        assert_eq!(holes(&taken), [(1, 1, 2), (1, 5, 6), (1, 8, 9)]);
        assert_eq!((taken.rows.len(), run.cursor), (3, at(1, 9)));
        let between = taken.gaps[1];
        assert_eq!((between.shard, between.from_time, between.to_time), (3, time(4), time(7)));
        let after = taken.gaps[2];
        assert_eq!((after.from_time, after.to_time), (time(7), time(20)));
        assert_eq!(holes(&run.take(rows(1, [8, 9, 10]), PageEnd::Open)), [], "known rows are left out");
        assert_eq!(run.cursor, at(1, 10));
    }

    #[test]
    fn a_new_epoch_goes_on_from_where_its_shard_went_back_to() {
        let mut run = new_run();
        run.take(rows(1, 1..=9), PageEnd::Open);
        let taken = run.take(rows(2, 5..=6), PageEnd::Missing(at(2, 6), time(30)));
        assert_eq!((holes(&taken), taken.rows.len(), run.cursor), (vec![], 2, at(2, 6)));
        assert_eq!(run.register.baseline, None, "the counts went back");
        let taken = run.take(rows(3, [9]), PageEnd::Open);
        assert_eq!(holes(&taken), [(3, 7, 8)]);
    }

    #[test]
    fn rows_are_compared_with_the_counts_at_one_position_only() {
        let mut run = new_run();
        assert!(run.expect(enqueues(1, 3, 3)).is_empty());
        let taken = run.take(rows(1, 1..=5), PageEnd::Open);
        assert_eq!(taken.findings, []);
        assert_eq!(run.register.baseline.map(|counted| counted.position), Some(at(1, 3)));
        assert_eq!(run.expect(enqueues(1, 5, 5)), [], "at the cursor it is compared at once");
        run.expect(enqueues(1, 7, 8));
        let found = run.take(rows(1, 6..=8), PageEnd::Open).findings;
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].expected, found[0].found, found[0].shard), (3, 2, SHARD));
        assert!(found[0].text.contains("between the positions 5 and 7"), "{}", found[0].text);
        run.expect(enqueues(1, 9, 10));
        assert_eq!(run.take(rows(1, [9]), PageEnd::Open).findings, [], "one difference is found once");
    }

    #[test]
    fn after_a_gap_counting_begins_at_the_next_report() {
        let mut run = new_run();
        run.take(rows(1, 1..=2), PageEnd::Open);
        run.expect(enqueues(1, 4, 4));
        let taken = run.take(rows(1, [5]), PageEnd::Open);
        assert_eq!((holes(&taken), taken.findings), (vec![(1, 3, 4)], vec![]));
        assert_eq!((run.register.baseline, run.due), (None, None));
        run.expect(enqueues(1, 6, 6));
        assert_eq!(run.take(rows(1, [6, 7]), PageEnd::Open).findings, []);
        assert_eq!(run.expect(enqueues(1, 7, 7)), []);
        assert!(!run.register.has_unaudited());
    }

    #[test]
    fn a_shard_that_went_back_within_its_epoch_leaves_gaps_until_it_passes_the_cursor() {
        let mut run = new_run();
        run.take(rows(1, 1..=10), PageEnd::Open);
        assert!(run.is_beyond(at(1, 6)) && !run.is_beyond(at(2, 6)) && !run.is_beyond(at(1, 10)));
        run.go_back(at(1, 4));
        let taken = run.take(rows(1, 5..=6), PageEnd::Missing(at(1, 6), time(40)));
        assert_eq!((holes(&taken), taken.rows.len()), (vec![(1, 5, 6)], 0));
        assert_eq!((run.cursor, run.read_after(), run.done_through()), (at(1, 10), at(1, 6), at(1, 6)));
        let taken = run.take(rows(1, 7..=10), PageEnd::Missing(at(1, 10), time(41)));
        assert_eq!((holes(&taken), run.done_through()), (vec![(1, 7, 10)], at(1, 9)), "a restart still finds the last");
        let taken = run.take(rows(1, 11..=12), PageEnd::Missing(at(1, 12), time(42)));
        assert_eq!((holes(&taken), taken.rows.len()), (vec![], 2));
        assert_eq!((run.cursor, run.given_up, run.register.baseline), (at(1, 12), None, None));
    }
}
