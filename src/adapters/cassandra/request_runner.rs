//! The only path to the store: requests with a deadline, and our own retry loop.
//!
//! Layers below do not retry, because only this module knows what an unknown outcome means for each request. A read is
//! retried because it changes nothing. A plain write is retried because it carries its timestamp, so two writes have
//! one effect. A conditional request returns the current row, and its caller decides from that.

use std::sync::Arc;
use std::time::Duration;

use crate::limits::{CASSANDRA_ATTEMPTS_MAX, CASSANDRA_PAUSE_MIN};
use crate::request_failure::RequestFailure;
use crate::statements::Statements;
use crate::store::{ConditionalResult, PreparedCql, ReadConsistency, WideStore};
use crate::value::{Bind, CqlValue, FromRow};
use crate::write_batcher::{PartitionRows, WriteAttempt, WriteBatcher};
use tallystone_domain::fleet::{ProtocolRule, ProtocolRules};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{Clock, EffectOutcome, StoreError};

/// A store, its prepared statements, and the clock that measures pauses.
pub struct RequestRunner {
    pub store: Arc<dyn WideStore>,
    pub keyspace: String,
    statements: Statements,
    clock: Arc<dyn Clock>,
    write_batcher: WriteBatcher,
    pub rules: ProtocolRules,
}

impl RequestRunner {
    /// Creates the runner from its parts.
    pub fn new(
        store: Arc<dyn WideStore>,
        keyspace: String,
        statements: Statements,
        clock: Arc<dyn Clock>,
        rules: ProtocolRules,
    ) -> Self {
        let gathering = WriteBatcher::new(Arc::clone(&store), Arc::clone(&clock));
        Self { store, keyspace, statements, clock, write_batcher: gathering, rules }
    }

    /// Returns the cell timestamp of a register: its own value, so the greatest value wins in any order of writes.
    pub fn register_time(&self, value: i64) -> i64 {
        if self.rules.keeps(ProtocolRule::MaxRegisters) { value } else { self.clock.now().micros() }
    }

    /// Returns a statement on the tables of the schema.
    pub fn statement(&self, name: &str) -> &PreparedCql {
        self.statements.get(name)
    }

    /// Waits before the next attempt; the pause doubles after each attempt.
    pub async fn pause(&self, attempt: u32) {
        self.clock.sleep(pause_after(attempt)).await;
    }

    /// Returns the time of the clock.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns the time since some fixed moment.
    pub fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }

    /// Reads rows of one type, all in memory.
    pub async fn rows<R: FromRow>(
        &self,
        op: &'static str,
        statement: &PreparedCql,
        values: impl Bind,
    ) -> Result<Vec<R>, StoreError> {
        self.rows_at(ReadConsistency::Quorum, op, statement, values).await
    }

    /// Reads rows at serial consistency, so the result contains every answered conditional write.
    pub async fn rows_serial<R: FromRow>(
        &self,
        op: &'static str,
        statement: &PreparedCql,
        values: impl Bind,
    ) -> Result<Vec<R>, StoreError> {
        self.rows_at(ReadConsistency::Serial, op, statement, values).await
    }

    /// Reads rows at the given consistency.
    pub async fn rows_at<R: FromRow>(
        &self,
        level: ReadConsistency,
        op: &'static str,
        statement: &PreparedCql,
        values: impl Bind,
    ) -> Result<Vec<R>, StoreError> {
        let values = values.bind();
        let rows = self.retry(op, || self.store.read(statement, &values, level)).await;
        // A read has no effect, so its outcome is never unknown.
        let rows = rows.map_err(|error| StoreError { outcome: EffectOutcome::NotApplied, ..error })?;
        let of_type = rows.into_iter().map(R::from_row).collect::<Option<Vec<R>>>();
        of_type.ok_or_else(|| {
            RequestFailure::corrupt(format!("the response has rows of an unexpected shape: {}", statement.text()))
                .during(op)
        })
    }

    /// Reads the first row, if there is one.
    pub async fn first_row<R: FromRow>(
        &self,
        op: &'static str,
        statement: &PreparedCql,
        values: impl Bind,
    ) -> Result<Option<R>, StoreError> {
        Ok(self.rows(op, statement, values).await?.into_iter().next())
    }

    /// Writes with retries up to the bound; the statement must carry its own timestamp.
    pub async fn write(&self, op: &'static str, statement: &PreparedCql, values: impl Bind) -> Result<(), StoreError> {
        self.write_rows(op, statement, vec![values.bind()]).await
    }

    /// Writes rows of one partition with retries up to the bound; the statement must carry its own timestamp. After a
    /// failure some of more than `PARTITION_BATCH_ROWS_MAX` rows may be written.
    pub async fn write_rows(
        &self,
        op: &'static str,
        statement: &PreparedCql,
        rows: Vec<Vec<CqlValue>>,
    ) -> Result<(), StoreError> {
        let rows = Arc::new(rows);
        let mut attempt = WriteAttempt::First;
        self.retry(op, || {
            self.write_once(statement, Arc::clone(&rows), std::mem::replace(&mut attempt, WriteAttempt::Repeat))
        })
        .await
    }

    /// Retries an idempotent request up to the bound: a read, or a write that carries its own timestamp.
    pub async fn retry<T, F>(&self, op: &'static str, attempt: impl FnMut() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, RequestFailure>>,
    {
        self.retry_requests(attempt).await.map_err(|fault| fault.during(op))
    }

    /// Like `retry`, for callers that need the details of the last failure.
    pub async fn retry_requests<T, F>(&self, attempt: impl FnMut() -> F) -> Result<T, RequestFailure>
    where
        F: Future<Output = Result<T, RequestFailure>>,
    {
        retry_with_pauses(self.clock.as_ref(), CASSANDRA_ATTEMPTS_MAX, attempt).await
    }

    /// Writes rows of one partition once, all or none, in a batch with writes of other callers.
    pub async fn write_once(
        &self,
        statement: &PreparedCql,
        rows: PartitionRows,
        attempt: WriteAttempt,
    ) -> Result<(), RequestFailure> {
        self.write_batcher.write(statement, rows, attempt).await
    }

    /// Sends a conditional request with retries until its answer is known, up to the bound. Only for requests that may
    /// be sent twice: the second answer may show the effect of the first attempt.
    pub async fn apply_conditionally(
        &self,
        op: &'static str,
        statement: &PreparedCql,
        values: impl Bind,
    ) -> Result<ConditionalResult, StoreError> {
        let asked = [(statement, values.bind())];
        self.retry(op, || self.store.apply_conditionally(&asked)).await
    }
}

/// Retries an idempotent request, with a pause between attempts. Ends with a success, a failure that a retry cannot
/// help, or the last attempt. The outcome is unknown if the outcome of any attempt is unknown.
pub async fn retry_with_pauses<T, F>(
    clock: &dyn Clock,
    attempts_max: u32,
    mut attempt: impl FnMut() -> F,
) -> Result<T, RequestFailure>
where
    F: Future<Output = Result<T, RequestFailure>>,
{
    let mut outcome = EffectOutcome::NotApplied;
    let mut made = 1;
    loop {
        let fault = match attempt().await {
            Ok(answer) => return Ok(answer),
            Err(fault) => fault,
        };
        if fault.outcome == EffectOutcome::Unknown {
            outcome = EffectOutcome::Unknown;
        }
        if made >= attempts_max || !fault.is_retryable {
            return Err(RequestFailure { outcome, ..fault });
        }
        clock.sleep(pause_after(made)).await;
        made += 1;
    }
}

/// Returns the pause after this many failed attempts.
pub fn pause_after(attempt: u32) -> Duration {
    CASSANDRA_PAUSE_MIN * 2_u32.pow(attempt.saturating_sub(1).min(5))
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;
    use tallystone_adapters::manual::ManualClock;
    use tallystone_domain::Timestamp;

    fn lost() -> RequestFailure {
        RequestFailure { outcome: EffectOutcome::Unknown, ..RequestFailure::not_sent("the answer is lost") }
    }

    /// The result of attempts with these answers, and the time of each attempt.
    async fn made_of(
        answers: Vec<Result<u32, RequestFailure>>,
        attempts_max: u32,
    ) -> (Result<u32, RequestFailure>, Vec<Duration>) {
        let clock = ManualClock::at(Timestamp::from_secs(0));
        let mut made = Vec::new();
        let mut answers = answers.into_iter();
        let ended = {
            let attempting = retry_with_pauses(&clock, attempts_max, || {
                made.push(clock.elapsed());
                ready(answers.next().expect("the test has an answer for each attempt"))
            });
            tokio::pin!(attempting);
            loop {
                tokio::select! {
                    biased;
                    ended = &mut attempting => break ended,
                    () = clock.wait_for_sleepers(1) => {
                        clock.advance(clock.next_wake().expect("the retry loop sleeps") - clock.elapsed());
                    }
                }
            }
        };
        (ended, made)
    }

    #[tokio::test]
    async fn attempts_end_with_the_first_that_works_and_pause_twice_as_long_after_each() {
        let (ended, made) = made_of(vec![Err(lost()), Err(RequestFailure::not_sent("x")), Err(lost()), Ok(7)], 9).await;
        assert_eq!(ended.expect("the fourth attempt succeeds"), 7);
        let pauses: Vec<Duration> = made.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(pauses, [1, 2, 4].map(|times| CASSANDRA_PAUSE_MIN * times));
        assert_eq!(pauses, [1, 2, 3].map(pause_after));
    }

    #[tokio::test]
    async fn what_one_attempt_may_have_done_all_of_them_may_have_done() {
        for (faults, outcome) in [
            (vec![lost(), RequestFailure::not_sent("x"), RequestFailure::not_sent("last")], EffectOutcome::Unknown),
            (
                vec![RequestFailure::not_sent("x"), RequestFailure::not_sent("x"), RequestFailure::not_sent("last")],
                EffectOutcome::NotApplied,
            ),
        ] {
            let (ended, made) = made_of(faults.into_iter().map(Err).collect(), 3).await;
            let fault = ended.expect_err("none works");
            assert_eq!((fault.outcome, fault.why.as_str(), made.len()), (outcome, "last", 3));
        }
    }

    #[tokio::test]
    async fn a_fault_that_no_repeat_mends_ends_the_attempts() {
        let (ended, made) = made_of(vec![Err(lost()), Err(RequestFailure::corrupt("broken"))], 9).await;
        let fault = ended.expect_err("none works");
        assert_eq!((fault.outcome, fault.why.as_str(), made.len()), (EffectOutcome::Unknown, "broken", 2));
    }
}
