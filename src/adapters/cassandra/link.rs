//! The one way to the cluster: requests with a deadline, and our own loop that repeats them.
//!
//! The driver never repeats anything by itself: only this module knows what an unknown outcome means for whom. A read is
//! repeated because it changes nothing, a plain write because it carries its timestamp and so has the same effect twice; a
//! conditional request answers what holds, and whoever asked reads that.

use std::sync::Arc;
use std::time::Duration;

use scylla::client::session::Session;
use scylla::response::query_result::QueryRowsResult;
use scylla::serialize::row::SerializeRow;
use scylla::statement::batch::Batch;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::{CqlValue, Row};

use crate::adapters::cassandra::fault::Fault;
use crate::adapters::cassandra::statements::Statements;
use crate::domain::limits::{CASSANDRA_ATTEMPTS_MAX, CASSANDRA_PAUSE_MIN};
use crate::ports::{Clock, Outcome, StoreError};

/// A session, its prepared statements and the clock that pauses are measured by.
pub struct Link {
    /// The driver's session, in the keyspace.
    pub session: Session,
    /// The keyspace.
    pub keyspace: String,
    statements: Statements,
    clock: Arc<dyn Clock>,
}

/// What a conditional request came to.
pub enum Decision {
    /// The condition held and the change is made.
    Applied,
    /// It did not hold; this is the row that was there, by column.
    Held(HeldRow),
}

/// A row that stood in the way of a conditional request.
pub struct HeldRow(Vec<(String, Option<CqlValue>)>);

impl HeldRow {
    /// The bytes of a column; none if it is null or not among those answered.
    pub fn bytes(&self, column: &str) -> Option<Vec<u8>> {
        match self.value(column)? {
            CqlValue::Blob(bytes) => Some(bytes.clone()),
            _ => None, // a column of another type is not the one that was asked for
        }
    }

    /// The number of a column.
    pub fn int(&self, column: &str) -> Option<i32> {
        self.value(column).and_then(CqlValue::as_int)
    }

    fn value(&self, column: &str) -> Option<&CqlValue> {
        self.0.iter().find(|(name, _)| name == column).and_then(|(_, value)| value.as_ref())
    }
}

impl Link {
    /// Puts the parts together.
    pub fn new(session: Session, keyspace: String, statements: Statements, clock: Arc<dyn Clock>) -> Self {
        Self { session, keyspace, statements, clock }
    }

    /// A statement on the tables of the schema.
    pub fn statement(&self, name: &str) -> &PreparedStatement {
        self.statements.named(name)
    }

    /// Waits before the next attempt; twice as long after each.
    pub async fn pause(&self, attempt: u32) {
        self.clock.sleep(pause_after(attempt)).await;
    }

    /// Time since some fixed moment.
    pub fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }

    /// Reads rows.
    pub async fn read(
        &self,
        op: &'static str,
        statement: &PreparedStatement,
        values: impl SerializeRow + Send + Sync,
    ) -> Result<QueryRowsResult, StoreError> {
        let mut tries = Tries::default();
        loop {
            match self.ask(statement, &values).await {
                Ok(rows) => return Ok(rows),
                // A read has no effect that could be unknown.
                Err(fault) => tries
                    .again(self, fault)
                    .await
                    .map_err(|fault| Fault { outcome: Outcome::NotApplied, ..fault }.during(op))?,
            }
        }
    }

    /// Reads rows of one type, all in memory.
    pub async fn rows<R>(
        &self,
        op: &'static str,
        statement: &PreparedStatement,
        values: impl SerializeRow + Send + Sync,
    ) -> Result<Vec<R>, StoreError>
    where
        R: for<'frame> scylla::deserialize::row::DeserializeRow<'frame, 'frame>,
    {
        let result = self.read(op, statement, values).await?;
        let rows = result.rows::<R>().map_err(|error| Fault::corrupt(error).during(op))?;
        rows.collect::<Result<_, _>>().map_err(|error| Fault::corrupt(error).during(op))
    }

    /// Reads the first row, if there is one.
    pub async fn first_row<R>(
        &self,
        op: &'static str,
        statement: &PreparedStatement,
        values: impl SerializeRow + Send + Sync,
    ) -> Result<Option<R>, StoreError>
    where
        R: for<'frame> scylla::deserialize::row::DeserializeRow<'frame, 'frame>,
    {
        Ok(self.rows(op, statement, values).await?.into_iter().next())
    }

    /// Writes, again and again up to the bound; the statement carries its own timestamp.
    pub async fn write(
        &self,
        op: &'static str,
        statement: &PreparedStatement,
        values: impl SerializeRow + Send + Sync,
    ) -> Result<(), StoreError> {
        let mut tries = Tries::default();
        loop {
            match self.write_once(statement, &values).await {
                Ok(()) => return Ok(()),
                Err(fault) => tries.again(self, fault).await.map_err(|fault| fault.during(op))?,
            }
        }
    }

    /// Writes once.
    pub async fn write_once(
        &self,
        statement: &PreparedStatement,
        values: &(impl SerializeRow + Sync),
    ) -> Result<(), Fault> {
        self.session.execute_unpaged(statement, values).await.map(|_| ()).map_err(Fault::from)
    }

    /// Writes rows of one partition together, once.
    pub async fn write_batch_once<V: SerializeRow + Send + Sync>(
        &self,
        batch: &Batch,
        values: Vec<V>,
    ) -> Result<(), Fault> {
        self.session.batch(batch, values).await.map(|_| ()).map_err(Fault::from)
    }

    /// Asks a conditional question once.
    pub async fn decide_once(
        &self,
        statement: &PreparedStatement,
        values: &(impl SerializeRow + Sync),
    ) -> Result<Decision, Fault> {
        decision(self.ask(statement, values).await?)
    }

    /// Asks a conditional batch of one partition once.
    pub async fn decide_batch_once<V: scylla::serialize::batch::BatchValues + Send>(
        &self,
        batch: &Batch,
        values: V,
    ) -> Result<Decision, Fault> {
        let result = self.session.batch(batch, values).await?;
        decision(result.into_rows_result().map_err(Fault::corrupt)?)
    }

    /// Asks a conditional question until its answer is known, up to the bound. Right only where asking twice is: the
    /// second answer may be that of the first one's effect.
    pub async fn decide(
        &self,
        op: &'static str,
        statement: &PreparedStatement,
        values: impl SerializeRow + Send + Sync,
    ) -> Result<Decision, StoreError> {
        let mut tries = Tries::default();
        loop {
            match self.decide_once(statement, &values).await {
                Ok(decision) => return Ok(decision),
                Err(fault) => tries.again(self, fault).await.map_err(|fault| fault.during(op))?,
            }
        }
    }

    async fn ask(
        &self,
        statement: &PreparedStatement,
        values: &(impl SerializeRow + Sync),
    ) -> Result<QueryRowsResult, Fault> {
        let result = self.session.execute_unpaged(statement, values).await?;
        result.into_rows_result().map_err(Fault::corrupt)
    }
}

/// The attempts of one request. What any of them may have done, the whole may have done.
struct Tries {
    attempt: u32,
    outcome: Outcome,
}

impl Default for Tries {
    fn default() -> Self {
        Self { attempt: 1, outcome: Outcome::NotApplied }
    }
}

impl Tries {
    /// Pauses before the next attempt, or answers the fault if there is none.
    async fn again(&mut self, link: &Link, fault: Fault) -> Result<(), Fault> {
        if fault.outcome == Outcome::Unknown {
            self.outcome = Outcome::Unknown;
        }
        if self.attempt == CASSANDRA_ATTEMPTS_MAX || !fault.worth_repeating {
            return Err(Fault { outcome: self.outcome, ..fault });
        }
        link.pause(self.attempt).await;
        self.attempt += 1;
        Ok(())
    }
}

/// The pause after so many failed attempts.
pub fn pause_after(attempt: u32) -> Duration {
    CASSANDRA_PAUSE_MIN * 2_u32.pow(attempt.saturating_sub(1).min(5))
}

/// Whether the first column of the answer says that a condition held.
fn decision(result: QueryRowsResult) -> Result<Decision, Fault> {
    let names: Vec<String> = result.column_specs().iter().map(|spec| spec.name().to_owned()).collect();
    let row: Row = result.first_row().map_err(Fault::corrupt)?;
    match row.columns.first() {
        Some(Some(CqlValue::Boolean(true))) => Ok(Decision::Applied),
        Some(Some(CqlValue::Boolean(false))) => {
            Ok(Decision::Held(HeldRow(names.into_iter().zip(row.columns).collect())))
        }
        _ => Err(Fault::corrupt("a conditional request was answered without saying whether it was applied")),
    }
}
