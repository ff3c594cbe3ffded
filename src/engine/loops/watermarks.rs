//! Moves watermarks behind the rolls, and replays lost signals. Writes at most every ten seconds, and not while idle.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::dataset::datasets::DatasetState;
use crate::driver::{BackgroundLoop, DrainStage, NextActivation};
use crate::loops::replay::replay_lost;
use crate::scopes::NamespaceScopes;
use tallystone_domain::Timestamp;
use tallystone_domain::limits::{LIMIT_PUBLISH_INTERVAL, TOUCH_SHARDS, WATERMARK_INTERVAL};
use tallystone_ports::StoreError;

/// The watermark loop of one dataset.
pub struct WatermarkLoop {
    scopes: Arc<NamespaceScopes>,
    dataset: Arc<DatasetState>,
    stored: Option<Duration>,
}

impl WatermarkLoop {
    pub fn new(scopes: Arc<NamespaceScopes>, dataset: Arc<DatasetState>) -> Self {
        Self { scopes, dataset, stored: None }
    }

    /// Stores every watermark that can move. Returns whether all of them have reached the limit.
    async fn store(&mut self) -> Result<bool, StoreError> {
        // The limit is read first: all events acknowledged at or below it are pending or rolled by now.
        let limit = self.dataset.limit();
        let reached: Vec<_> =
            (0..TOUCH_SHARDS).map(|shard| (shard, self.dataset.pending.rolled_up_to(shard, limit))).collect();
        let is_all = reached.iter().all(|(_, watermark)| *watermark >= limit);
        put_moved(&self.scopes, &self.dataset, reached.into_iter()).await?;
        Ok(is_all)
    }

    async fn step(&mut self) -> Result<bool, StoreError> {
        let replayed = replay_lost(&self.scopes, &self.dataset).await?;
        let elapsed = self.scopes.context.clock.elapsed();
        let due = self.stored.is_none_or(|stored| elapsed >= stored + WATERMARK_INTERVAL);
        if due && self.dataset.take_active() {
            if !self.store().await? {
                // The obstacle of a watermark, such as a replay after startup, may end without new events.
                self.dataset.stay_active();
            }
            self.stored = Some(elapsed);
        }
        Ok(replayed)
    }
}

/// Stores those watermarks that lie above the known ones.
pub(super) async fn put_moved(
    scopes: &NamespaceScopes,
    dataset: &DatasetState,
    reached: impl Iterator<Item = (u32, Timestamp)>,
) -> Result<(), StoreError> {
    let moved: Vec<_> = reached.filter(|(shard, watermark)| *watermark > dataset.watermark(*shard)).collect();
    if moved.is_empty() {
        return Ok(());
    }
    scopes.stores.touches.put_watermarks(dataset.id(), moved.clone()).await?;
    for (shard, watermark) in moved {
        dataset.note_watermark(shard, watermark);
    }
    Ok(())
}

#[async_trait]
impl BackgroundLoop for WatermarkLoop {
    fn name(&self) -> &'static str {
        "watermarks"
    }

    async fn activate(&mut self) -> NextActivation {
        match self.step().await {
            Ok(true) => NextActivation::After(LIMIT_PUBLISH_INTERVAL),
            Ok(false) => NextActivation::After(Duration::from_millis(200)),
            Err(error) => {
                tracing::warn!(error = %error, dataset = %self.dataset.dataset.name, "cannot advance watermarks");
                NextActivation::After(LIMIT_PUBLISH_INTERVAL)
            }
        }
    }

    fn stage(&self) -> DrainStage {
        DrainStage::Watermarks
    }

    async fn finish(&mut self, _until: Duration) {
        if let Err(error) = self.store().await {
            tracing::warn!(error = %error, "cannot advance watermarks; the next start replays a little more");
        }
    }
}
