//! The counter use cases, one file per verb.

mod add;
pub(super) mod as_of_floor;
mod audit;
mod clear;
mod error;
mod explain;
pub(super) mod inline_rolls;
mod list;
pub(super) mod rankings;
mod read;
mod report;
mod series;
mod submit;
mod types;
mod verdict;
pub(super) mod wait_budget;
mod watch;
pub(super) mod watchers;

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::domain::Timestamp;
use crate::domain::counter::NamespaceName;
use crate::domain::limits::{RECOUNTS_AT_ONCE_MAX, VERDICTS_AT_ONCE_MAX};
use crate::domain::namespace::{CounterType, Temporality};
use crate::domain::{Reason, Reject};
use crate::engine::core::{EngineCore, NamespaceScope};
use crate::engine::loops::driver::Driver;
use crate::engine::namespaces::is_reserved;

pub use add::{AddTarget, SubmittedBatch};
pub use error::{ChangeText, CountingError, reason_of_store};
pub use explain::*;
pub use types::*;
pub use watch::ReadingStream;

/// Reports of sources in different stripes do not wait for each other.
const REPORT_STRIPES: usize = 256;

/// The counter use cases. Cheap to clone.
#[derive(Clone)]
pub struct Counting {
    core: Arc<EngineCore>,
    driver: Driver,
    verdicts: Arc<Semaphore>,
    recounts: Arc<Semaphore>,
    /// Serializes the reports of one source; indexed by the hash of the source.
    reports: Arc<[Arc<Semaphore>]>,
}

impl Counting {
    /// Builds the use cases on the shared parts of the engine.
    pub fn new(core: Arc<EngineCore>, driver: Driver) -> Self {
        let reports = (0..REPORT_STRIPES).map(|_| Arc::new(Semaphore::new(1))).collect();
        let verdicts = Arc::new(Semaphore::new(VERDICTS_AT_ONCE_MAX));
        let recounts = Arc::new(Semaphore::new(RECOUNTS_AT_ONCE_MAX));
        Self { core, driver, verdicts, recounts, reports }
    }

    /// The server's clock.
    pub fn server_time(&self) -> Timestamp {
        self.core.now()
    }

    /// The scope of a namespace that takes deltas from users.
    async fn delta_scope(&self, namespace: &NamespaceName) -> Result<Arc<NamespaceScope>, CountingError> {
        refuse_reserved(namespace)?;
        let scope = self.core.scope(namespace).await?;
        match scope.namespace.spec.temporality {
            Temporality::Delta => Ok(scope),
            Temporality::Cumulative => Err(Reject::new(
                Reason::WrongTemporality,
                format!("namespace {namespace} is cumulative: it accepts ReportTotals, not deltas or clears"),
            )
            .into()),
        }
    }

    /// The scope of a namespace with a log.
    async fn durable_scope(&self, namespace: &NamespaceName, call: &str) -> Result<Arc<NamespaceScope>, CountingError> {
        let scope = self.core.scope(namespace).await?;
        match scope.namespace.spec.counter_type {
            CounterType::Eventual | CounterType::Accurate => Ok(scope),
            CounterType::BestEffort => Err(Reject::new(
                Reason::WrongCounterType,
                format!("namespace {namespace} is BEST_EFFORT: it keeps no events, so {call} is not available"),
            )
            .into()),
        }
    }
}

/// Refuses writes to namespaces that users may only read.
fn refuse_reserved(namespace: &NamespaceName) -> Result<(), CountingError> {
    match is_reserved(namespace) {
        true => Err(CountingError::NamespaceReadOnly { name: namespace.to_string() }),
        false => Ok(()),
    }
}

/// Whether the namespace has best-effort counters, which use no log.
fn is_best_effort(scope: &NamespaceScope) -> bool {
    match scope.namespace.spec.counter_type {
        CounterType::BestEffort => true,
        CounterType::Eventual | CounterType::Accurate => false,
    }
}
