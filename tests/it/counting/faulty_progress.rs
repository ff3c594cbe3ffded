//! A progress store that hangs, or that breaks its law and tells limits nobody has closed.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tallystone::domain::Timestamp;
use tallystone::domain::counter::DatasetId;
use tallystone::ports::{LimitPublisher, StoreError, Stores};
use tokio::sync::watch;

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Publishing waits until this is over.
    Hangs,
    /// Limits are told that lie above what was closed.
    Ahead(Duration),
}

/// The store; without a fault, the one behind it.
pub struct FaultyProgress {
    inner: Arc<dyn LimitPublisher>,
    fault: watch::Sender<Fault>,
}

impl FaultyProgress {
    /// Puts it before the progress store of some stores.
    pub fn before(stores: &mut Stores) -> Arc<Self> {
        let fault = watch::Sender::new(Fault::None);
        let progress = Arc::new(Self { inner: Arc::clone(&stores.progress), fault });
        stores.progress = progress.clone();
        progress
    }

    pub fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }
}

#[async_trait]
impl LimitPublisher for FaultyProgress {
    async fn publish(&self, dataset: DatasetId, closed: Timestamp) -> Result<Timestamp, StoreError> {
        let mut fault = self.fault.subscribe();
        let fault = *fault.wait_for(|fault| *fault != Fault::Hangs).await.expect("the sender is ours");
        let ahead = if let Fault::Ahead(ahead) = fault { ahead } else { Duration::ZERO };
        self.inner.publish(dataset, closed + ahead).await
    }

    async fn limit(&self, dataset: DatasetId) -> Result<Timestamp, StoreError> {
        self.inner.limit(dataset).await
    }
}
