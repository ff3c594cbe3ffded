//! The fleet of the servers that count in one store: the membership of this process, and what the members share of
//! counters.

use std::sync::Arc;
use std::time::Duration;

use crate::closed_timestamp::ClosedTimestampTracker;
use crate::fleet::FleetMembership;
use tallystone_domain::counter::DatasetId;
use tallystone_ports::{FleetStore, StoreError};

/// How this process counts together with others.
pub struct CounterFleet {
    /// The membership of this process.
    pub membership: Arc<FleetMembership>,
    /// The state of counters that the members share.
    pub store: Arc<dyn FleetStore>,
    /// The delay after the end of a time bucket before it is sealed; none: never.
    pub seal_delay: Option<Duration>,
}

impl CounterFleet {
    /// Joins a dataset. From the return on, every heartbeat carries the closed timestamp of `closing`.
    pub async fn join(&self, dataset: DatasetId, closing: Arc<ClosedTimestampTracker>) -> Result<(), StoreError> {
        self.membership.join(dataset, closing, Arc::clone(&self.store)).await
    }
}
