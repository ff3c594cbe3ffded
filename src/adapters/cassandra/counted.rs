//! A store of wide rows that counts what it is asked, for the metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;

use crate::adapters::cassandra::fault::Fault;
use crate::adapters::cassandra::store::{Decision, Level, Page, PageState, Prepared, Route, WideStore};
use crate::adapters::cassandra::value::{Row, Value};

/// How often a keyspace was asked since the start, repeats included.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Requests {
    /// Reads, a page each.
    pub reads: u64,
    /// Plain writes; rows that went together are one.
    pub writes: u64,
    /// The rows that these writes carried.
    pub rows: u64,
    /// Conditional requests.
    pub conditional: u64,
    /// Requests of any of these kinds that were not answered as they should be.
    pub failed: u64,
}

/// The counts of a store.
#[derive(Default, Debug)]
pub struct Tally {
    reads: AtomicU64,
    writes: AtomicU64,
    rows: AtomicU64,
    conditional: AtomicU64,
    failed: AtomicU64,
}

impl Tally {
    /// What was counted so far.
    pub fn requests(&self) -> Requests {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Requests {
            reads: read(&self.reads),
            writes: read(&self.writes),
            rows: read(&self.rows),
            conditional: read(&self.conditional),
            failed: read(&self.failed),
        }
    }

    fn settled<A>(&self, answer: Result<A, Fault>) -> Result<A, Fault> {
        answer.inspect_err(|_| add(&self.failed, 1))
    }
}

fn add(count: &AtomicU64, more: usize) {
    count.fetch_add(more as u64, Ordering::Relaxed);
}

/// Another store, counted.
pub struct Counted<S> {
    store: S,
    tally: Arc<Tally>,
}

impl<S> Counted<S> {
    /// Counts what this store is asked from here on.
    pub fn new(store: S, tally: Arc<Tally>) -> Self {
        Self { store, tally }
    }
}

#[async_trait]
impl<S: WideStore> WideStore for Counted<S> {
    async fn prepare(&self, text: &str) -> Result<Prepared, Fault> {
        self.store.prepare(text).await
    }

    async fn define(&self, text: &str) -> Result<(), Fault> {
        self.store.define(text).await
    }

    async fn write(&self, statement: &Prepared, values: &[Value]) -> Result<(), Fault> {
        add(&self.tally.writes, 1);
        add(&self.tally.rows, 1);
        self.tally.settled(self.store.write(statement, values).await)
    }

    async fn write_many(&self, rows: &[(&Prepared, &[Value])]) -> Result<(), Fault> {
        add(&self.tally.writes, 1);
        add(&self.tally.rows, rows.len());
        self.tally.settled(self.store.write_many(rows).await)
    }

    fn route(&self, statement: &Prepared, values: &[Value]) -> Route {
        self.store.route(statement, values)
    }

    async fn decide(&self, statements: &[(&Prepared, Vec<Value>)]) -> Result<Decision, Fault> {
        add(&self.tally.conditional, 1);
        self.tally.settled(self.store.decide(statements).await)
    }

    async fn read(&self, statement: &Prepared, values: &[Value], level: Level) -> Result<Vec<Row>, Fault> {
        add(&self.tally.reads, 1);
        self.tally.settled(self.store.read(statement, values, level).await)
    }

    async fn read_page(&self, statement: &Prepared, after: Option<&PageState>) -> Result<Page, Fault> {
        add(&self.tally.reads, 1);
        self.tally.settled(self.store.read_page(statement, after).await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes every request but reads.
    struct Unreadable;

    #[async_trait]
    impl WideStore for Unreadable {
        async fn prepare(&self, text: &str) -> Result<Prepared, Fault> {
            Ok(Prepared::new(text, ()))
        }

        async fn define(&self, _text: &str) -> Result<(), Fault> {
            Ok(())
        }

        async fn write(&self, _statement: &Prepared, _values: &[Value]) -> Result<(), Fault> {
            Ok(())
        }

        async fn write_many(&self, _rows: &[(&Prepared, &[Value])]) -> Result<(), Fault> {
            Ok(())
        }

        fn route(&self, _statement: &Prepared, _values: &[Value]) -> Route {
            Route { replica: 0, partition: 0 }
        }

        async fn decide(&self, _statements: &[(&Prepared, Vec<Value>)]) -> Result<Decision, Fault> {
            Ok(Decision::Applied)
        }

        async fn read(&self, _statement: &Prepared, _values: &[Value], _level: Level) -> Result<Vec<Row>, Fault> {
            Err(Fault::not_sent("a test"))
        }

        async fn read_page(&self, _statement: &Prepared, _after: Option<&PageState>) -> Result<Page, Fault> {
            Err(Fault::not_sent("a test"))
        }
    }

    #[tokio::test]
    async fn every_request_is_counted_once_and_its_answer_is_passed_on() {
        let tally = Arc::new(Tally::default());
        let store = Counted::new(Unreadable, Arc::clone(&tally));
        let statement = store.prepare("SELECT 1").await.expect("it prepares everything");
        store.write(&statement, &[]).await.expect("it takes writes");
        store.write_many(&[(&statement, &[]), (&statement, &[])]).await.expect("it takes writes");
        assert_eq!(store.decide(&[(&statement, Vec::new())]).await.expect("it decides"), Decision::Applied);
        assert!(store.read(&statement, &[], Level::Quorum).await.is_err());
        assert!(store.read_page(&statement, None).await.is_err());
        let counted = Requests { reads: 2, writes: 2, rows: 3, conditional: 1, failed: 2 };
        assert_eq!(tally.requests(), counted);
    }
}
