//! Drops shards without a name: those of a creation or deletion that never came to its end.
//!
//! A creation makes the shards first and the name last. So shards without a name may belong to a queue that another
//! server is creating at this moment. Only old ones are dropped.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hashbrown::HashSet;

use crate::driver::{BackgroundLoop, NextActivation};
use crate::queues::state::context::QueueContext;
use tallystone_domain::queue::QueueId;
use tallystone_ports::{CreatedQueue, StoreError};

/// How long shards may be without a name. No creation takes nearly as long.
const UNNAMED_FOR: Duration = Duration::from_secs(3_600);
/// The interval between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(600);

/// The background loop that drops old shards without a name. Its first look is at the start.
pub struct UnnamedShards {
    context: Arc<QueueContext>,
}

impl UnnamedShards {
    /// Makes the loop of these queues.
    pub fn new(shared: Arc<QueueContext>) -> Self {
        Self { context: shared }
    }

    async fn drop_old(&self) -> Result<(), StoreError> {
        let stores = &self.context.stores;
        let now = stores.time.clock().await?.now;
        let is_unnamed =
            |queue: &CreatedQueue| now.since(queue.created) > UNNAMED_FOR && self.context.by_id(queue.id).is_none();
        let unnamed: Vec<CreatedQueue> = stores.shards.queues().await?.into_iter().filter(is_unnamed).collect();
        if unnamed.is_empty() {
            return Ok(());
        }
        // The catalog is read after the shards, so that it has the name of each queue that was created before.
        let named: HashSet<QueueId> = stores.catalog.load().await?.into_iter().map(|queue| queue.id).collect();
        for queue in unnamed.into_iter().filter(|queue| !named.contains(&queue.id)) {
            tracing::info!(queue = %queue.id, "dropping the shards of a queue that has had no name for an hour");
            stores.shards.drop_queue(queue.id).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl BackgroundLoop for UnnamedShards {
    fn name(&self) -> &'static str {
        "unnamed shards"
    }

    async fn activate(&mut self) -> NextActivation {
        if let Err(error) = self.drop_old().await {
            tracing::debug!(%error, "cannot drop the shards of queues without a name; the next look does");
        }
        NextActivation::After(LOOK_EVERY)
    }
}
