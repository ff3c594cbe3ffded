//! The one way to the store: requests with a deadline, and our own loop that repeats them.
//!
//! Nothing below repeats by itself: only this module knows what an unknown outcome means for whom. A read is repeated
//! because it changes nothing, a plain write because it carries its timestamp and so has the same effect twice; a
//! conditional request answers what holds, and whoever asked reads that.

use std::sync::Arc;
use std::time::Duration;

use crate::adapters::cassandra::fault::Fault;
use crate::adapters::cassandra::statements::Statements;
use crate::adapters::cassandra::store::{Decision, Level, Prepared, WideStore};
use crate::adapters::cassandra::value::{Bind, FromRow, Value};
use crate::domain::fleet::{Rule, Rules};
use crate::domain::limits::{CASSANDRA_ATTEMPTS_MAX, CASSANDRA_PAUSE_MIN};
use crate::ports::{Clock, Outcome, StoreError};

/// A store, its prepared statements and the clock that pauses are measured by.
pub struct Link {
    /// The store.
    pub store: Arc<dyn WideStore>,
    /// The keyspace.
    pub keyspace: String,
    statements: Statements,
    clock: Arc<dyn Clock>,
    /// The rules of the protocol.
    pub rules: Rules,
}

impl Link {
    /// Puts the parts together.
    pub fn new(
        store: Arc<dyn WideStore>,
        keyspace: String,
        statements: Statements,
        clock: Arc<dyn Clock>,
        rules: Rules,
    ) -> Self {
        Self { store, keyspace, statements, clock, rules }
    }

    /// The cell timestamp of a register: its own value, so that the greatest value stays in whatever order writes arrive.
    pub fn register_time(&self, value: i64) -> i64 {
        if self.rules.keeps(Rule::MaxRegisters) { value } else { self.clock.now().micros() }
    }

    /// A statement on the tables of the schema.
    pub fn statement(&self, name: &str) -> &Prepared {
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

    /// Reads rows of one type, all in memory.
    pub async fn rows<R: FromRow>(
        &self,
        op: &'static str,
        statement: &Prepared,
        values: impl Bind,
    ) -> Result<Vec<R>, StoreError> {
        self.rows_at(Level::Quorum, op, statement, values).await
    }

    /// Reads rows so that every conditional write that was answered is seen.
    pub async fn rows_serial<R: FromRow>(
        &self,
        op: &'static str,
        statement: &Prepared,
        values: impl Bind,
    ) -> Result<Vec<R>, StoreError> {
        self.rows_at(Level::Serial, op, statement, values).await
    }

    /// Reads rows from so many replicas.
    pub async fn rows_at<R: FromRow>(
        &self,
        level: Level,
        op: &'static str,
        statement: &Prepared,
        values: impl Bind,
    ) -> Result<Vec<R>, StoreError> {
        let values = values.bind();
        let mut tries = Tries::default();
        let rows = loop {
            match self.store.read(statement, &values, level).await {
                Ok(rows) => break rows,
                // A read has no effect that could be unknown.
                Err(fault) => tries
                    .again(self, fault)
                    .await
                    .map_err(|fault| Fault { outcome: Outcome::NotApplied, ..fault }.during(op))?,
            }
        };
        let of_type = rows.into_iter().map(R::from_row).collect::<Option<Vec<R>>>();
        of_type
            .ok_or_else(|| Fault::corrupt(format!("a row of another shape answers: {}", statement.text())).during(op))
    }

    /// Reads the first row, if there is one.
    pub async fn first_row<R: FromRow>(
        &self,
        op: &'static str,
        statement: &Prepared,
        values: impl Bind,
    ) -> Result<Option<R>, StoreError> {
        Ok(self.rows(op, statement, values).await?.into_iter().next())
    }

    /// Writes, again and again up to the bound; the statement carries its own timestamp.
    pub async fn write(&self, op: &'static str, statement: &Prepared, values: impl Bind) -> Result<(), StoreError> {
        let values = values.bind();
        self.repeat(op, || self.store.write(statement, &values)).await
    }

    /// Makes an attempt to write, again and again up to the bound; its statements carry their own timestamps.
    pub async fn repeat<F>(&self, op: &'static str, attempt: impl Fn() -> F) -> Result<(), StoreError>
    where
        F: Future<Output = Result<(), Fault>>,
    {
        let mut tries = Tries::default();
        loop {
            match attempt().await {
                Ok(()) => return Ok(()),
                Err(fault) => tries.again(self, fault).await.map_err(|fault| fault.during(op))?,
            }
        }
    }

    /// Writes rows of one partition together, once.
    pub async fn write_group_once(&self, statement: &Prepared, rows: &[Vec<Value>]) -> Result<(), Fault> {
        match rows {
            [row] => self.store.write(statement, row).await,
            rows => self.store.write_group(statement, rows).await,
        }
    }

    /// Asks a conditional question until its answer is known, up to the bound. Right only where asking twice is: the
    /// second answer may be that of the first one's effect.
    pub async fn decide(
        &self,
        op: &'static str,
        statement: &Prepared,
        values: impl Bind,
    ) -> Result<Decision, StoreError> {
        let asked = [(statement, values.bind())];
        let mut tries = Tries::default();
        loop {
            match self.store.decide(&asked).await {
                Ok(decision) => return Ok(decision),
                Err(fault) => tries.again(self, fault).await.map_err(|fault| fault.during(op))?,
            }
        }
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
