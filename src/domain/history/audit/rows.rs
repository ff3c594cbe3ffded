//! The rows of a history against the counts of their shard.
//!
//! A register holds the counts at a position, and the rows written since. At a later position the difference of the
//! counts must equal these rows. Rows of the table that differ in their guard only are counted as one, because a row of
//! the history does not say which of them applied.

use super::{Finding, FindingKind};
use crate::queue::messages::state_machine::{RowShape, row_shapes};
use crate::queue::tally::flows::ROWS;
use crate::queue::transition::{RowPosition, Transition};
use crate::queue::{MessageState, ShardId, Trigger};
use crate::time::Timestamp;

/// How often a shard applied each row of the table, up to a position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CountedRows {
    pub position: RowPosition,
    /// By the number of the row.
    pub rows: [u64; ROWS],
}

/// The data on a shard that the writer of a history remembers besides its cursor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuditRegister {
    /// A time not after any row beyond the cursor.
    pub at: Timestamp,
    /// The counts at the position where counting began; none after a gap, until the next report.
    pub baseline: Option<CountedRows>,
    /// The rows written from there to the cursor, each under the first row of the table of its shape.
    pub written: [u64; ROWS],
}

impl Default for AuditRegister {
    fn default() -> Self {
        // Times of shards are after 1970.
        Self { at: Timestamp::from_micros(0), baseline: None, written: [0; ROWS] }
    }
}

impl AuditRegister {
    /// Counts a row that is written. O(rows of the table).
    pub fn count(&mut self, row: &Transition) {
        let is_shape = |shape: RowShape| shape_of(&shape) == (row.from, row.trigger, row.to);
        // A row of the history was a row of the table of its build, and tables only grow.
        if let Some(number) = row_shapes().position(is_shape) {
            self.written[number] += 1;
        }
    }

    /// Whether rows were written that no comparison has covered.
    pub fn has_unaudited(&self) -> bool {
        self.baseline.is_none() || self.written.iter().any(|count| *count > 0)
    }

    /// Compares the rows written with the counts at the cursor, and begins again there.
    pub fn compare(&mut self, shard: ShardId, counted: CountedRows) -> Vec<Finding> {
        let begun = self.baseline.replace(counted);
        let written = std::mem::replace(&mut self.written, [0; ROWS]);
        let Some(begun) = begun else { return Vec::new() };
        let (from, to) = (begun.position.position, counted.position.position);
        let shapes: Vec<RowShape> = row_shapes().collect();
        let mut findings = Vec::new();
        for (number, shape) in shapes.iter().enumerate() {
            let same = |other: &RowShape| shape_of(other) == shape_of(shape);
            if shapes[..number].iter().any(same) {
                continue;
            }
            let numbers = (number..ROWS).filter(|other| same(&shapes[*other]));
            let difference = |row: usize| counted.rows[row].wrapping_sub(begun.rows[row]);
            let expected = numbers.map(difference).fold(0, u64::wrapping_add);
            if expected != written[number] {
                findings.push(differing_rows(shard, *shape, (expected, written[number]), (from, to)));
            }
        }
        findings
    }

    /// Forgets the counts, because rows are missing.
    pub fn forget_baseline(&mut self) {
        self.baseline = None;
        self.written = [0; ROWS];
    }
}

fn shape_of(row: &RowShape) -> (Option<MessageState>, Trigger, Option<MessageState>) {
    (row.from, row.trigger, row.to)
}

fn differing_rows(shard: ShardId, shape: RowShape, (expected, found): (u64, u64), (from, to): (u64, u64)) -> Finding {
    let state = |state: Option<MessageState>| state.map_or_else(|| "none".to_owned(), |state| state.to_string());
    let text = format!(
        "between the positions {from} and {to} the shard counted {expected} rows {:?} from {} to {}; the history got {found}",
        shape.trigger,
        state(shape.from),
        state(shape.to),
    );
    let finding = Finding::of_shard(FindingKind::Rows, shard, (expected, found), text);
    Finding { state: shape.to.or(shape.from), ..finding }
}
