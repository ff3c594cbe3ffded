//! A decorator of a wide-row store that counts requests for the metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;

use crate::request_failure::RequestFailure;
use crate::store::{ConditionalResult, PageState, PreparedCql, ReadConsistency, RowPage, WideStore, WriteRoute};
use crate::value::{CqlRow, CqlValue};

/// Numbers of requests on a keyspace since startup, retries included.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RequestCounts {
    /// Reads, one for each page.
    pub reads: u64,
    /// Plain writes; the rows of one request count as one write.
    pub writes: u64,
    /// Rows in these writes.
    pub rows: u64,
    pub conditional: u64,
    /// Requests of any of these kinds that failed.
    pub failed: u64,
}

/// The counters of a store.
#[derive(Default, Debug)]
pub struct RequestCounters {
    reads: AtomicU64,
    writes: AtomicU64,
    rows: AtomicU64,
    conditional: AtomicU64,
    failed: AtomicU64,
}

impl RequestCounters {
    /// Returns the counts so far.
    pub fn requests(&self) -> RequestCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        RequestCounts {
            reads: read(&self.reads),
            writes: read(&self.writes),
            rows: read(&self.rows),
            conditional: read(&self.conditional),
            failed: read(&self.failed),
        }
    }

    fn settled<A>(&self, answer: Result<A, RequestFailure>) -> Result<A, RequestFailure> {
        answer.inspect_err(|_| add(&self.failed, 1))
    }
}

fn add(count: &AtomicU64, more: usize) {
    count.fetch_add(more as u64, Ordering::Relaxed);
}

pub struct CountingStore<S> {
    store: S,
    tally: Arc<RequestCounters>,
}

impl<S> CountingStore<S> {
    /// Wraps a store and counts its requests.
    pub fn new(store: S, tally: Arc<RequestCounters>) -> Self {
        Self { store, tally }
    }
}

#[async_trait]
impl<S: WideStore> WideStore for CountingStore<S> {
    async fn prepare(&self, text: &str) -> Result<PreparedCql, RequestFailure> {
        self.store.prepare(text).await
    }

    async fn define(&self, text: &str) -> Result<(), RequestFailure> {
        self.store.define(text).await
    }

    async fn tables(&self, keyspace: &str) -> Result<Option<Vec<String>>, RequestFailure> {
        add(&self.tally.reads, 1);
        self.tally.settled(self.store.tables(keyspace).await)
    }

    async fn write(&self, statement: &PreparedCql, values: &[CqlValue]) -> Result<(), RequestFailure> {
        add(&self.tally.writes, 1);
        add(&self.tally.rows, 1);
        self.tally.settled(self.store.write(statement, values).await)
    }

    async fn write_many(&self, rows: &[(&PreparedCql, &[CqlValue])]) -> Result<(), RequestFailure> {
        add(&self.tally.writes, 1);
        add(&self.tally.rows, rows.len());
        self.tally.settled(self.store.write_many(rows).await)
    }

    fn route(&self, statement: &PreparedCql, values: &[CqlValue]) -> WriteRoute {
        self.store.route(statement, values)
    }

    async fn apply_conditionally(
        &self,
        statements: &[(&PreparedCql, Vec<CqlValue>)],
    ) -> Result<ConditionalResult, RequestFailure> {
        add(&self.tally.conditional, 1);
        self.tally.settled(self.store.apply_conditionally(statements).await)
    }

    async fn read(
        &self,
        statement: &PreparedCql,
        values: &[CqlValue],
        level: ReadConsistency,
    ) -> Result<Vec<CqlRow>, RequestFailure> {
        add(&self.tally.reads, 1);
        self.tally.settled(self.store.read(statement, values, level).await)
    }

    async fn read_page(&self, statement: &PreparedCql, after: Option<&PageState>) -> Result<RowPage, RequestFailure> {
        add(&self.tally.reads, 1);
        self.tally.settled(self.store.read_page(statement, after).await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accepts every request except reads.
    struct Unreadable;

    #[async_trait]
    impl WideStore for Unreadable {
        async fn prepare(&self, text: &str) -> Result<PreparedCql, RequestFailure> {
            Ok(PreparedCql::new(text, ()))
        }

        async fn define(&self, _text: &str) -> Result<(), RequestFailure> {
            Ok(())
        }

        async fn write(&self, _statement: &PreparedCql, _values: &[CqlValue]) -> Result<(), RequestFailure> {
            Ok(())
        }

        async fn write_many(&self, _rows: &[(&PreparedCql, &[CqlValue])]) -> Result<(), RequestFailure> {
            Ok(())
        }

        fn route(&self, _statement: &PreparedCql, _values: &[CqlValue]) -> WriteRoute {
            WriteRoute { replica: 0, partition: 0 }
        }

        async fn apply_conditionally(
            &self,
            _statements: &[(&PreparedCql, Vec<CqlValue>)],
        ) -> Result<ConditionalResult, RequestFailure> {
            Ok(ConditionalResult::Applied)
        }

        async fn read(
            &self,
            _statement: &PreparedCql,
            _values: &[CqlValue],
            _level: ReadConsistency,
        ) -> Result<Vec<CqlRow>, RequestFailure> {
            Err(RequestFailure::not_sent("a test"))
        }

        async fn read_page(
            &self,
            _statement: &PreparedCql,
            _after: Option<&PageState>,
        ) -> Result<RowPage, RequestFailure> {
            Err(RequestFailure::not_sent("a test"))
        }
    }

    #[tokio::test]
    async fn every_request_is_counted_once_and_its_answer_is_passed_on() {
        let tally = Arc::new(RequestCounters::default());
        let store = CountingStore::new(Unreadable, Arc::clone(&tally));
        let statement = store.prepare("SELECT 1").await.expect("this store accepts every statement");
        store.write(&statement, &[]).await.expect("this store accepts writes");
        store.write_many(&[(&statement, &[]), (&statement, &[])]).await.expect("this store accepts writes");
        assert_eq!(
            store.apply_conditionally(&[(&statement, Vec::new())]).await.expect("this store decides"),
            ConditionalResult::Applied
        );
        assert!(store.read(&statement, &[], ReadConsistency::Quorum).await.is_err());
        assert!(store.read_page(&statement, None).await.is_err());
        let counted = RequestCounts { reads: 2, writes: 2, rows: 3, conditional: 1, failed: 2 };
        assert_eq!(tally.requests(), counted);
    }
}
