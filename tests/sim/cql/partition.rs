//! What one replica holds of one partition: cells with timestamps, and how two states of it become one.

use std::collections::BTreeMap;

use super::Datum;

/// Below every timestamp.
const NEVER: i64 = i64::MIN;

/// A cell; without a value it is a deletion.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cell {
    pub timestamp: i64,
    pub value: Option<Datum>,
}

impl Cell {
    /// Whether this one wins over another.
    fn beats(&self, other: &Self) -> bool {
        let rank = |cell: &Self| (cell.timestamp, cell.value.is_none());
        (rank(self), &self.value) > (rank(other), &other.value)
    }
}

/// The cells of a row, or the static ones of a partition; by their place among the columns of the kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// When the row was inserted as such.
    pub marker: i64,
    /// What is at or below this was deleted.
    pub deleted: i64,
    pub cells: Vec<Option<Cell>>,
}

impl Default for Row {
    fn default() -> Self {
        Self { marker: NEVER, deleted: NEVER, cells: Vec::new() }
    }
}

impl Row {
    /// Sets a cell.
    pub fn set(&mut self, place: usize, cell: Cell) {
        if self.cells.len() <= place {
            self.cells.resize(place + 1, None);
        }
        match &mut self.cells[place] {
            Some(held) if !cell.beats(held) => {}
            held => *held = Some(cell),
        }
    }

    fn merge(&mut self, other: &Self) {
        self.marker = self.marker.max(other.marker);
        self.deleted = self.deleted.max(other.deleted);
        for (place, cell) in other.cells.iter().enumerate() {
            if let Some(cell) = cell {
                self.set(place, cell.clone());
            }
        }
    }

    /// The value of a cell, if it lives.
    pub fn value(&self, place: usize, partition_deleted: i64) -> Option<&Datum> {
        let cell = self.cells.get(place)?.as_ref()?;
        let lives = cell.timestamp > self.deleted.max(partition_deleted);
        cell.value.as_ref().filter(|value| lives && **value != Datum::Null)
    }

    /// Whether the row is there.
    pub fn lives(&self, partition_deleted: i64) -> bool {
        self.marker > self.deleted.max(partition_deleted)
            || (0..self.cells.len()).any(|place| self.value(place, partition_deleted).is_some())
    }
}

/// A clustering key.
pub type Place = Vec<Datum>;

/// A partition, or a part of one: what a write brings and what a read answers are partitions as well.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Partition {
    /// What is at or below this was deleted.
    pub deleted: i64,
    pub statics: Row,
    pub rows: BTreeMap<Place, Row>,
}

impl Default for Partition {
    fn default() -> Self {
        Self { deleted: NEVER, statics: Row::default(), rows: BTreeMap::new() }
    }
}

impl Partition {
    /// Takes in another state. The order in which states are taken in does not matter.
    pub fn merge(&mut self, other: &Self) {
        self.deleted = self.deleted.max(other.deleted);
        self.statics.merge(&other.statics);
        for (place, row) in &other.rows {
            match self.rows.get_mut(place) {
                Some(held) => held.merge(row),
                None => {
                    self.rows.insert(place.clone(), row.clone());
                }
            }
        }
    }

    /// Whether anything lives in it.
    pub fn lives(&self) -> bool {
        self.statics.lives(self.deleted) || self.rows.values().any(|row| row.lives(self.deleted))
    }

    /// Gives every cell, marker and deletion this timestamp, as a conditional write does with its ballot.
    pub fn stamp(&mut self, timestamp: i64) {
        let stamp_row = |row: &mut Row| {
            for time in [&mut row.marker, &mut row.deleted] {
                if *time != NEVER {
                    *time = timestamp;
                }
            }
            row.cells.iter_mut().flatten().for_each(|cell| cell.timestamp = timestamp);
        };
        if self.deleted != NEVER {
            self.deleted = timestamp;
        }
        stamp_row(&mut self.statics);
        self.rows.values_mut().for_each(stamp_row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(timestamp: i64, value: Option<i64>) -> Cell {
        Cell { timestamp, value: value.map(Datum::Int) }
    }

    fn of(cells: &[Cell], marker: i64) -> Partition {
        let mut row = Row { marker, ..Row::default() };
        cells.iter().for_each(|cell| row.set(0, cell.clone()));
        Partition { rows: BTreeMap::from([(vec![Datum::Int(1)], row)]), ..Partition::default() }
    }

    #[test]
    fn states_come_to_the_same_in_any_order() {
        let states = [
            of(&[cell(5, Some(1))], NEVER),
            of(&[cell(5, Some(2))], 3),
            of(&[cell(4, Some(9))], NEVER),
            of(&[cell(5, None)], NEVER),
            Partition { deleted: 2, ..Partition::default() },
        ];
        let merged = |order: [usize; 5]| {
            let mut all = Partition::default();
            order.iter().for_each(|at| all.merge(&states[*at]));
            all
        };
        let expected = merged([0, 1, 2, 3, 4]);
        for order in [[4, 3, 2, 1, 0], [2, 0, 4, 1, 3], [3, 1, 0, 4, 2]] {
            assert_eq!(merged(order), expected);
        }
        let row = &expected.rows[&vec![Datum::Int(1)]];
        assert_eq!(row.value(0, expected.deleted), None, "a deletion wins a tie");
        assert!(row.lives(expected.deleted), "the marker lives");
    }

    #[test]
    fn of_two_values_of_one_time_the_greater_wins() {
        let mut all = of(&[cell(5, Some(7))], NEVER);
        all.merge(&of(&[cell(5, Some(3))], NEVER));
        assert_eq!(all.rows[&vec![Datum::Int(1)]].value(0, NEVER), Some(&Datum::Int(7)));
    }

    #[test]
    fn what_is_at_or_below_a_deletion_is_gone() {
        let mut all = of(&[cell(5, Some(7))], 5);
        assert!(all.lives());
        all.merge(&Partition { deleted: 5, ..Partition::default() });
        assert!(!all.lives());
        all.merge(&of(&[cell(6, Some(8))], NEVER));
        assert!(all.lives());
    }
}
