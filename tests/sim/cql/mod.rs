//! The part of CQL that the statements of `cql/` use: parsed once, then applied to cells with timestamps.
//!
//! What is here follows Cassandra: the greater cell timestamp wins, a deletion wins a tie, else the greater value does; a
//! row is there while its marker or one of its cells lives. What Cassandra knows and our statements do not use is refused
//! by the parser, so a new kind of statement shows as a failure, never as a wrong answer.

pub mod parse;
pub mod partition;
pub mod plan;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use partition::Partition;
pub use plan::{Plan, Reading, Writing};

/// A value of a column. Both widths of integers are one here; the type of the column says which is answered.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Datum {
    Null,
    Bool(bool),
    Int(i64),
    Text(Arc<str>),
    Blob(Arc<[u8]>),
    Uuid([u8; 16]),
}

/// The type of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Type {
    BigInt,
    Int,
    Bool,
    Text,
    Blob,
    Uuid,
}

/// What a column is of its table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A part of the partition's key, at this place.
    Partition(usize),
    /// A part of the clustering key, at this place.
    Clustering(usize),
    /// One for the whole partition, at this place of the static cells.
    Static(usize),
    /// One for each row, at this place of the row's cells.
    Regular(usize),
}

/// A column.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Column {
    pub name: String,
    pub column_type: Type,
    pub kind: Kind,
}

/// A table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Table {
    pub name: Arc<str>,
    pub columns: Vec<Column>,
    /// Whether the order of rows begins with the greatest of the first clustering column.
    pub descending: bool,
}

impl Table {
    /// The column of a name.
    pub fn column(&self, name: &str) -> Result<&Column, String> {
        let found = self.columns.iter().find(|column| column.name == name);
        found.ok_or_else(|| format!("table {} has no column {name}", self.name))
    }

    /// How many columns there are of a kind.
    pub fn count(&self, of_kind: impl Fn(Kind) -> bool) -> usize {
        self.columns.iter().filter(|column| of_kind(column.kind)).count()
    }
}

/// The tables of a keyspace by name.
pub type Schema = BTreeMap<Arc<str>, Arc<Table>>;
