//! Exact counts for counter rules, with what tells that a counter began anew.

use crate::counting::{Counting, CountingError};
use tallystone_domain::counter::{CounterName, NamespaceName};
use tallystone_domain::rollup::{Checkpoint, Exactness};
use tallystone_domain::rules::{ExactCount, SourceEpochs};

impl Counting {
    /// Fails unless the counters of a namespace keep their events: only those have exact counts.
    pub(crate) async fn check_exact(&self, namespace: &NamespaceName) -> Result<(), CountingError> {
        self.durable_scope(namespace, RULES).await.map(drop)
    }

    /// Reads a rolled-up count. None if it is not exact now, as between a clear and its roll, or does not fit into 64
    /// bits. Cost: one read of the rollup row.
    pub(crate) async fn exact_count(
        &self,
        namespace: &NamespaceName,
        name: CounterName,
    ) -> Result<Option<ExactCount>, CountingError> {
        let scope = self.durable_scope(namespace, RULES).await?;
        let (reading, row) = self.read_with_row(&scope, &scope.counter(name)).await?;
        if reading.exactness != Exactness::ExactAsOf || reading.saturated {
            return Ok(None);
        }
        let checkpoint = row.checkpoint.as_ref();
        let clear = checkpoint.and_then(|checkpoint| checkpoint.clear.clone());
        let epochs = checkpoint.and_then(epochs_of);
        Ok(Some(ExactCount { count: reading.count, as_of: reading.as_of, clear, epochs }))
    }
}

/// The name of the use in a refusal.
const RULES: &str = "a counter rule";

fn epochs_of(checkpoint: &Checkpoint) -> Option<SourceEpochs> {
    let epochs = || checkpoint.sources.values().map(|source| source.newest.epoch);
    Some(SourceEpochs { lowest: epochs().min()?, highest: epochs().max()? })
}
