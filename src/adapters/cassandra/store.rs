//! The interface below the protocol: a store of wide rows, used by the named statements of `cql/`.
//!
//! The protocol lies above it: the order of writes, retries, the meaning of an unknown outcome. Below it, each request
//! is sent once and its outcome reported. The driver's session does so for a cluster (`session`), and a simulation for
//! replicas of its own. No implementation reads a clock, draws random numbers or retries.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::request_failure::RequestFailure;
use crate::value::{CqlRow, CqlValue};

/// A store of wide rows.
///
/// Laws:
/// 1. A request is sent once. The outcome of a failure is `NotApplied` only if it has and will have no effect.
/// 2. Every read that begins after an acknowledged write sees it, at `Quorum` and above.
/// 3. Of two writes to one cell the greater timestamp wins, and of equal ones the greater value, whatever the order of
///    arrival. A deletion with a timestamp hides cells with that timestamp and lower ones.
/// 4. A conditional request is decided once among all conditional requests on its partition. Its writes carry a
///    timestamp of the store's own.
/// 5. Rows of one partition that are written together become visible together. Those of several partitions are
///    independent; a failure is `NotApplied` only if none of them has or will have an effect.
#[async_trait]
pub trait WideStore: Send + Sync + 'static {
    /// Prepares a statement on tables that exist.
    async fn prepare(&self, text: &str) -> Result<PreparedCql, RequestFailure>;

    /// Makes or drops tables. Returns when all nodes know it.
    async fn define(&self, text: &str) -> Result<(), RequestFailure>;

    /// The tables of a keyspace, as far as the store lists any; none if it does not.
    async fn tables(&self, _keyspace: &str) -> Result<Option<Vec<String>>, RequestFailure> {
        Ok(None)
    }

    async fn write(&self, statement: &PreparedCql, values: &[CqlValue]) -> Result<(), RequestFailure>;

    async fn write_many(&self, rows: &[(&PreparedCql, &[CqlValue])]) -> Result<(), RequestFailure>;

    /// The route of a write. Cheap.
    fn route(&self, statement: &PreparedCql, values: &[CqlValue]) -> WriteRoute;

    /// Applies a conditional request. Several statements form one request, all on one partition.
    async fn apply_conditionally(
        &self,
        statements: &[(&PreparedCql, Vec<CqlValue>)],
    ) -> Result<ConditionalResult, RequestFailure>;

    /// Reads all rows of a statement.
    async fn read(
        &self,
        statement: &PreparedCql,
        values: &[CqlValue],
        level: ReadConsistency,
    ) -> Result<Vec<CqlRow>, RequestFailure>;

    /// Reads a page of rows after an earlier page. Returns the position of the next page, if there is one.
    async fn read_page(&self, statement: &PreparedCql, after: Option<&PageState>) -> Result<RowPage, RequestFailure>;
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteRoute {
    /// The replica that it is best sent to: one number for each, of the store's choice. Equal ones may share a request.
    pub replica: u64,
    /// The partition. Two partitions may have one number, if seldom.
    pub partition: i64,
}

/// Rows, and where the next ones begin.
pub type RowPage = (Vec<CqlRow>, Option<PageState>);

/// The beginning of a page; only its store knows what it says.
pub type PageState = Vec<u8>;

/// How many replicas a read asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadConsistency {
    /// A quorum of the own data centre.
    Quorum,
    /// A quorum, after what is being decided on the partition is decided.
    Serial,
    /// All of them, in every data centre.
    All,
}

/// A statement that a store has prepared.
#[derive(Clone)]
pub struct PreparedCql {
    text: String,
    inner: Arc<dyn Any + Send + Sync>,
}

impl PreparedCql {
    /// A statement with whatever its store keeps of it.
    pub fn new(text: &str, inner: impl Any + Send + Sync) -> Self {
        Self { text: text.to_owned(), inner: Arc::new(inner) }
    }

    /// The text of the statement.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The store's own part of the statement.
    ///
    /// # Panics
    /// Panics if another kind of store prepared it.
    pub fn inner<T: 'static>(&self) -> &T {
        self.inner.downcast_ref().unwrap_or_else(|| panic!("another store prepared: {}", self.text))
    }
}

impl fmt::Debug for PreparedCql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Prepared").field(&self.text).finish()
    }
}

/// The outcome of a conditional request.
#[derive(Clone, PartialEq, Debug)]
pub enum ConditionalResult {
    /// The condition held and the change is made.
    Applied,
    /// It did not hold; this is the row that was there, by column.
    NotApplied(ConflictingRow),
}

/// A row that stood in the way of a conditional request.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct ConflictingRow(Vec<(String, CqlValue)>);

impl ConflictingRow {
    pub fn new(columns: Vec<(String, CqlValue)>) -> Self {
        Self(columns)
    }

    /// The bytes of a column; none if it is null or not among those answered.
    pub fn bytes(&self, column: &str) -> Option<Vec<u8>> {
        match self.value(column)? {
            CqlValue::Blob(bytes) => Some(bytes.clone()),
            _ => None, // a column of another type is not the one that was asked for
        }
    }

    /// The number of a column.
    pub fn int(&self, column: &str) -> Option<i32> {
        match self.value(column)? {
            CqlValue::Int(number) => Some(*number),
            _ => None, // as above
        }
    }

    /// Whether a column is true.
    pub fn is_true(&self, column: &str) -> bool {
        self.value(column) == Some(&CqlValue::Bool(true))
    }

    fn value(&self, column: &str) -> Option<&CqlValue> {
        self.0.iter().find(|(name, _)| name == column).map(|(_, value)| value)
    }
}
