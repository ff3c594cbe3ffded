//! The counter use cases, one file per verb.

mod add;
mod audit;
mod clear;
mod error;
mod exact;
mod explain;
mod inline_rolls;
mod list;
mod queue_totals;
mod read;
mod report;
mod series;
mod submit;
mod types;
mod verdict;
mod wait_budget;
mod watch;

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::context::EngineContext;
use crate::counting::inline_rolls::InlineRolls;
use crate::namespaces::{NamespaceError, is_reserved, reserved_writer};
use crate::rolling::Roller;
use crate::scopes::{NamespaceScope, NamespaceScopes};
use crate::served_counts::ServedCounts;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::NamespaceName;
use tallystone_domain::fleet::ProtocolRules;
use tallystone_domain::limits::{RECOUNTS_AT_ONCE_MAX, VERDICTS_AT_ONCE_MAX};
use tallystone_domain::namespace::{CounterType, Temporality};
use tallystone_domain::{Reason, Reject};

pub use add::{AddTarget, SubmittedBatch};
pub use error::{ChangeText, CountingError};
pub use explain::*;
pub use queue_totals::{KnownTotals, KnownTotalsPage, QueueTotal, queue_serial};
pub use types::*;
pub use watch::ReadingStream;

/// Reports of sources in different stripes do not wait for each other.
const REPORT_STRIPES: usize = 256;

/// The counter use cases. Cheap to clone.
#[derive(Clone)]
pub struct Counting {
    context: Arc<EngineContext>,
    scopes: Arc<NamespaceScopes>,
    served: Arc<ServedCounts>,
    roller: Arc<Roller>,
    inline_rolls: Arc<InlineRolls>,
    rules: ProtocolRules,
    /// The name of this process in the rows that it writes, if it has one.
    name: Option<Arc<str>>,
    /// The start of this process by its clock.
    started_at: Timestamp,
    verdicts: Arc<Semaphore>,
    recounts: Arc<Semaphore>,
    /// Serializes the reports of one source; indexed by the hash of the source.
    reports: Arc<[Arc<Semaphore>]>,
}

impl Counting {
    /// Builds the use cases on the roller of this process.
    pub fn new(roller: Arc<Roller>, rules: ProtocolRules, name: &str, started_at: Timestamp) -> Self {
        Self {
            context: Arc::clone(&roller.scopes.context),
            scopes: Arc::clone(&roller.scopes),
            served: Arc::clone(&roller.served),
            roller,
            inline_rolls: Arc::default(),
            rules,
            name: (!name.is_empty()).then(|| Arc::from(name)),
            started_at,
            verdicts: Arc::new(Semaphore::new(VERDICTS_AT_ONCE_MAX)),
            recounts: Arc::new(Semaphore::new(RECOUNTS_AT_ONCE_MAX)),
            reports: (0..REPORT_STRIPES).map(|_| Arc::new(Semaphore::new(1))).collect(),
        }
    }

    /// The server's clock.
    pub fn server_time(&self) -> Timestamp {
        self.context.now()
    }

    /// The scope of a namespace by name. Cost: two hash lookups, unless something changed.
    async fn scope(&self, name: &NamespaceName) -> Result<Arc<NamespaceScope>, CountingError> {
        let namespace = self.scopes.namespaces.get(name).map_err(|error| not_found(error, name))?;
        let scope = self.scopes.scope_of(namespace).await?;
        match &scope.cluster_fault {
            None => Ok(scope),
            Some(what) => Err(CountingError::UnknownCluster { name: name.to_string(), what: what.clone() }),
        }
    }

    /// The scope of a namespace that takes deltas from users.
    async fn delta_scope(&self, namespace: &NamespaceName) -> Result<Arc<NamespaceScope>, CountingError> {
        refuse_reserved(namespace)?;
        let scope = self.scope(namespace).await?;
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
        let scope = self.scope(namespace).await?;
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

fn not_found(error: NamespaceError, name: &NamespaceName) -> CountingError {
    match error {
        NamespaceError::Reject(reject) if reject.reason == Reason::NamespaceNotFound => {
            CountingError::NamespaceNotFound { name: name.to_string() }
        }
        NamespaceError::Reject(reject) => CountingError::Reject(reject),
        // Only makers of namespaces get it.
        NamespaceError::Quota(refusal) => CountingError::Reject(Reject::new(Reason::RetryLater, refusal.to_string())),
        NamespaceError::Store(error) => CountingError::Store(error),
    }
}

/// Refuses writes to namespaces that users may only read.
pub(crate) fn refuse_reserved(namespace: &NamespaceName) -> Result<(), CountingError> {
    match is_reserved(namespace) {
        true => {
            Err(CountingError::NamespaceReadOnly { name: namespace.to_string(), writer: reserved_writer(namespace) })
        }
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
