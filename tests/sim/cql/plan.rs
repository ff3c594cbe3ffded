//! Plans: what a statement does with values, on partitions.

use std::sync::Arc;

use super::partition::{Cell, Partition, Place, Row};
use super::{Datum, Kind, Table, Type};

/// A statement.
#[derive(Clone, Debug)]
pub enum Plan {
    Read(Reading),
    Write(Writing),
}

/// A value of a statement.
#[derive(Clone, Debug)]
pub enum Term {
    Bind(usize),
    Literal(Datum),
}

impl Term {
    fn of<'a>(&'a self, values: &'a [Datum]) -> &'a Datum {
        match self {
            Self::Bind(at) => &values[*at],
            Self::Literal(literal) => literal,
        }
    }

    fn int(&self, values: &[Datum]) -> i64 {
        match self.of(values) {
            Datum::Int(int) => *int,
            other => panic!("a number was expected, not {other:?}"),
        }
    }
}

/// What a write does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WritingKind {
    Insert,
    Update,
    Delete,
}

/// What a conditional write asks.
#[derive(Clone, Debug)]
pub enum Condition {
    None,
    Absent,
    Present,
    Equal(Vec<(String, Term)>),
}

/// A write.
#[derive(Clone, Debug)]
pub struct Writing {
    pub table: Arc<Table>,
    pub kind: WritingKind,
    pub set: Vec<(Kind, Term)>,
    pub timestamp: Option<Term>,
    pub condition: Condition,
}

/// The name of a partition.
pub type Key = Vec<Datum>;

impl Writing {
    /// The partition.
    pub fn key(&self, values: &[Datum]) -> Key {
        self.at(values, |kind| if let Kind::Partition(at) = kind { Some(at) } else { None })
    }

    fn place(&self, values: &[Datum]) -> Place {
        self.at(values, |kind| if let Kind::Clustering(at) = kind { Some(at) } else { None })
    }

    fn at(&self, values: &[Datum], place: impl Fn(Kind) -> Option<usize>) -> Vec<Datum> {
        let mut found: Vec<(usize, Datum)> =
            self.set.iter().filter_map(|(kind, term)| Some((place(*kind)?, term.of(values).clone()))).collect();
        found.sort_by_key(|(at, _)| *at);
        found.into_iter().map(|(_, value)| value).collect()
    }

    /// The timestamp that the statement brings, if it does.
    pub fn timestamp(&self, values: &[Datum]) -> Option<i64> {
        self.timestamp.as_ref().map(|term| term.int(values))
    }

    /// What the write brings to its partition.
    pub fn change(&self, values: &[Datum], timestamp: i64) -> Partition {
        let mut change = Partition::default();
        let place = self.place(values);
        let of_row = !place.is_empty() || self.table.count(|kind| matches!(kind, Kind::Clustering(_))) == 0;
        if self.kind == WritingKind::Delete {
            match of_row && !place.is_empty() {
                true => {
                    change.rows.insert(place, Row { deleted: timestamp, ..Row::default() });
                }
                false => change.deleted = timestamp,
            }
            return change;
        }
        let mut row = Row::default();
        if self.kind == WritingKind::Insert && of_row {
            row.marker = timestamp;
        }
        for (kind, term) in &self.set {
            let value = Some(term.of(values).clone()).filter(|value| *value != Datum::Null);
            let cell = Cell { timestamp, value };
            match kind {
                Kind::Static(at) => change.statics.set(*at, cell),
                Kind::Regular(at) => row.set(*at, cell),
                Kind::Partition(_) | Kind::Clustering(_) => {}
            }
        }
        if of_row {
            change.rows.insert(place, row);
        }
        change
    }

    /// Whether the condition holds on a partition; if not, the columns of the row that stands in its way.
    pub fn decide(&self, values: &[Datum], partition: &Partition) -> Result<(), Vec<(String, Datum)>> {
        let place = self.place(values);
        let row = partition.rows.get(&place);
        let is_there = row.is_some_and(|row| row.lives(partition.deleted))
            || (place.is_empty() && partition.statics.lives(partition.deleted));
        let value = |kind: Kind| match kind {
            Kind::Static(at) => partition.statics.value(at, partition.deleted).cloned(),
            Kind::Regular(at) => row.and_then(|row| row.value(at, partition.deleted)).cloned(),
            Kind::Clustering(at) => place.get(at).cloned(),
            Kind::Partition(at) => self.key(values).get(at).cloned(),
        };
        let holds = match &self.condition {
            Condition::None => true,
            Condition::Absent => !is_there,
            Condition::Present => is_there,
            Condition::Equal(all) => all.iter().all(|(name, term)| {
                let column = self.table.column(name).expect("the parser found the columns of the table");
                value(column.kind).unwrap_or(Datum::Null) == *term.of(values)
            }),
        };
        if holds {
            return Ok(());
        }
        let columns = self.table.columns.iter();
        Err(columns.map(|column| (column.name.clone(), value(column.kind).unwrap_or(Datum::Null))).collect())
    }
}

/// An end of a range of clustering keys.
#[derive(Clone, Debug)]
pub struct Bound {
    pub terms: Vec<Term>,
    pub inclusive: bool,
}

/// A range of clustering keys.
#[derive(Clone, Default, Debug)]
pub struct Range {
    pub equal: Vec<Term>,
    pub low: Option<Bound>,
    pub high: Option<Bound>,
}

impl Range {
    fn holds(&self, place: &[Datum], values: &[Datum]) -> bool {
        let from = self.equal.len();
        let compare = |bound: &Bound| {
            let rest = place[from..].iter().zip(&bound.terms);
            rest.map(|(have, term)| have.cmp(term.of(values))).find(|order| order.is_ne())
        };
        self.equal.iter().zip(place).all(|(term, have)| term.of(values) == have)
            && self.low.as_ref().is_none_or(|low| compare(low).map_or(low.inclusive, std::cmp::Ordering::is_gt))
            && self.high.as_ref().is_none_or(|high| compare(high).map_or(high.inclusive, std::cmp::Ordering::is_lt))
    }

    fn is_all(&self) -> bool {
        self.equal.is_empty() && self.low.is_none() && self.high.is_none()
    }
}

/// A read.
#[derive(Clone, Debug)]
pub struct Reading {
    pub table: Arc<Table>,
    pub columns: Vec<(Kind, Type)>,
    pub distinct: bool,
    /// The partition; none reads all of the table.
    pub key: Option<Vec<Term>>,
    pub range: Range,
    pub descending: bool,
    pub limit: Option<Term>,
}

impl Reading {
    /// The partition; none for all of the table.
    pub fn key(&self, values: &[Datum]) -> Option<Key> {
        self.key.as_ref().map(|key| key.iter().map(|term| term.of(values).clone()).collect())
    }

    /// The part of a replica's partition that the read is about.
    pub fn part(&self, values: &[Datum], partition: &Partition) -> Partition {
        let rows = partition.rows.iter().filter(|(place, _)| self.range.holds(place, values));
        Partition {
            deleted: partition.deleted,
            statics: partition.statics.clone(),
            rows: rows.map(|(place, row)| (place.clone(), row.clone())).collect(),
        }
    }

    /// The rows of an answer, from the merged parts of one partition.
    pub fn rows(&self, values: &[Datum], key: &Key, part: &Partition) -> Vec<Vec<Datum>> {
        let limit = self.limit.as_ref().map_or(usize::MAX, |term| usize::try_from(term.int(values)).unwrap_or(0));
        let limit = if self.distinct { 1 } else { limit };
        let living = part.rows.iter().filter(|(_, row)| row.lives(part.deleted));
        let mut rows: Vec<_> = living.map(|(place, row)| self.row(key, part, Some((place, row)))).collect();
        if self.descending {
            rows.reverse();
        }
        if rows.is_empty() && self.range.is_all() && part.statics.lives(part.deleted) {
            rows.push(self.row(key, part, None));
        }
        rows.truncate(limit);
        rows
    }

    fn row(&self, key: &Key, part: &Partition, row: Option<(&Place, &Row)>) -> Vec<Datum> {
        let value = |(kind, _): &(Kind, Type)| match kind {
            Kind::Partition(at) => key.get(*at).cloned(),
            Kind::Clustering(at) => row.and_then(|(place, _)| place.get(*at)).cloned(),
            Kind::Static(at) => part.statics.value(*at, part.deleted).cloned(),
            Kind::Regular(at) => row.and_then(|(_, row)| row.value(*at, part.deleted)).cloned(),
        };
        self.columns.iter().map(|column| value(column).unwrap_or(Datum::Null)).collect()
    }
}
