//! The counter use cases, one file per verb.

mod error;
mod types;

use std::pin::Pin;

use futures_util::Stream;

use crate::domain::Reject;
use crate::domain::counter::{CounterName, Event, NamespaceName, Token};

pub use error::{ChangeText, CountingError, reason_of_store};
pub use types::*;

/// A stream of readings, one item per change of a counter.
pub type ReadingStream = Pin<Box<dyn Stream<Item = Result<(CounterName, Reading), CountingError>> + Send>>;

/// The counter half of the service. Cheap to clone.
#[derive(Clone)]
pub struct Counting {}

#[allow(unused_variables)]
impl Counting {
    /// Adds a delta.
    pub async fn add(&self, namespace: &NamespaceName, add: Add) -> Result<Written, CountingError> {
        todo!()
    }

    /// Adds a delta and reads the count after it.
    pub async fn add_and_get(
        &self,
        namespace: &NamespaceName,
        add: Add,
        freshness: Freshness,
    ) -> Result<(Written, Reading), CountingError> {
        todo!()
    }

    /// Adds each item; an item that was invalid already keeps its refusal.
    pub async fn batch_add(
        &self,
        namespace: &NamespaceName,
        items: Vec<Result<Add, Reject>>,
    ) -> Result<Vec<Result<Written, CountingError>>, CountingError> {
        todo!()
    }

    /// Clears a counter.
    pub async fn clear(&self, namespace: &NamespaceName, clear: Clear) -> Result<Written, CountingError> {
        todo!()
    }

    /// Reads a count.
    pub async fn get(
        &self,
        namespace: &NamespaceName,
        name: CounterName,
        options: ReadOptions,
    ) -> Result<Reading, CountingError> {
        todo!()
    }

    /// Reads each counter.
    pub async fn batch_get(
        &self,
        namespace: &NamespaceName,
        names: Vec<Result<CounterName, Reject>>,
        options: ReadOptions,
    ) -> Result<Vec<Result<Reading, CountingError>>, CountingError> {
        todo!()
    }

    /// Takes the totals of a source.
    pub async fn report_totals(
        &self,
        namespace: &NamespaceName,
        report: Report,
        items: Vec<Result<(CounterName, i64), Reject>>,
    ) -> Result<Vec<Result<Written, CountingError>>, CountingError> {
        todo!()
    }

    /// Settles what became of a token.
    pub async fn check_token(
        &self,
        namespace: &NamespaceName,
        name: CounterName,
        token: Token,
    ) -> Result<TokenVerdict, CountingError> {
        todo!()
    }

    /// Reads a series.
    pub async fn series(
        &self,
        namespace: &NamespaceName,
        name: CounterName,
        question: SeriesQuestion,
    ) -> Result<SeriesAnswer, CountingError> {
        todo!()
    }

    /// Lists counters with a prefix above a name. Fewer than the limit only at the end.
    pub async fn list(
        &self,
        namespace: &NamespaceName,
        prefix: &str,
        above: Option<CounterName>,
        limit: usize,
    ) -> Result<Vec<CounterSummary>, CountingError> {
        todo!()
    }

    /// The greatest counters.
    pub async fn top(&self, namespace: &NamespaceName, n: usize) -> Result<TopAnswer, CountingError> {
        todo!()
    }

    /// The present value of counters, then each change.
    pub async fn watch(
        &self,
        namespace: &NamespaceName,
        names: Vec<CounterName>,
    ) -> Result<ReadingStream, CountingError> {
        todo!()
    }

    /// Single events, newest first. Fewer than the limit only at the end.
    pub async fn events(
        &self,
        namespace: &NamespaceName,
        name: CounterName,
        question: EventsQuestion,
    ) -> Result<Vec<Event>, CountingError> {
        todo!()
    }

    /// Recomputes a counter from its log.
    pub async fn recount(
        &self,
        namespace: &NamespaceName,
        name: CounterName,
        from: Option<crate::domain::Timestamp>,
        to: Option<crate::domain::Timestamp>,
    ) -> Result<Recount, CountingError> {
        todo!()
    }

    /// The server's clock.
    pub fn server_time(&self) -> crate::domain::Timestamp {
        todo!()
    }
}
