//! Processes the touch shards that this member of a fleet owns: replays every step once the limit has passed its end,
//! and moves the watermark when every counter of the step is rolled up beyond it.
//!
//! Signals between servers only reduce latency, and any of them may be lost. A new owner of a shard begins at its
//! watermark. Two owners at once only do the work twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;

use crate::dataset::datasets::DatasetState;
use crate::driver::{BackgroundLoop, DrainStage, NextActivation};
use crate::fleet::CounterFleet;
use crate::loops::replay::{PAGE_PAUSE, SETS_BYTES_BUSY};
use crate::loops::watermarks::put_moved;
use crate::rolling::Roller;
use crate::scopes::{NamespaceScope, NamespaceScopes};
use tallystone_domain::Timestamp;
use tallystone_domain::fleet::ProtocolRule;
use tallystone_domain::limits::{LIMIT_PUBLISH_INTERVAL, PAGE_ROWS_MAX, STEP, TOUCH_SHARDS, WATERMARK_INTERVAL};
use tallystone_ports::{ReadReplicas, StoreError, Touch};

/// The loop of one dataset.
pub struct ShardLoop {
    scopes: Arc<NamespaceScopes>,
    roller: Arc<Roller>,
    fleet: Arc<CounterFleet>,
    dataset: Arc<DatasetState>,
    /// The first step of each shard that is not replayed; none for shards of other members.
    replayed: Vec<Option<Timestamp>>,
    /// The last read and write of watermarks, by elapsed time.
    stored: Option<Duration>,
    /// Whether the catalog was read since this step began. A namespace that is missing from it was deleted.
    catalog_read: AtomicBool,
}

impl ShardLoop {
    /// Makes the loop of a dataset; it owns nothing yet.
    pub fn new(roller: Arc<Roller>, fleet: Arc<CounterFleet>, dataset: Arc<DatasetState>) -> Self {
        let replayed = vec![None; TOUCH_SHARDS as usize];
        Self {
            scopes: Arc::clone(&roller.scopes),
            roller,
            fleet,
            dataset,
            replayed,
            stored: None,
            catalog_read: AtomicBool::new(false),
        }
    }

    async fn step(&mut self) -> Result<(), StoreError> {
        self.take_over().await?;
        // The limit is read first: all events acknowledged at or below it are in the touches read after it.
        let limit = self.dataset.limit();
        self.catalog_read.store(false, Ordering::Relaxed);
        let passed = limit.just_after().floor_to(STEP);
        for shard in 0..TOUCH_SHARDS {
            let lost = self.dataset.pending.begin_replay(shard);
            // The touches contain signals for which a Set had no space; those of other shards are replayed by their
            // owners.
            self.dataset.pending.end_replay(shard);
            let Some(from) = &mut self.replayed[shard as usize] else { continue };
            *from = lost.map_or(*from, |lost| lost.floor_to(STEP).min(*from));
            let from = *from;
            if from >= passed {
                continue;
            }
            match self.replay(shard, from, passed - STEP).await {
                Ok(true) => self.replayed[shard as usize] = Some(passed),
                Ok(false) => {}
                // The other shards continue; this one is retried from its present step.
                Err(error) => {
                    let dataset = &self.dataset.dataset.name;
                    tracing::warn!(%error, %dataset, shard, "cannot replay a touch shard");
                }
            }
        }
        let elapsed = self.scopes.context.clock.elapsed();
        if self.stored.is_none_or(|stored| elapsed >= stored + WATERMARK_INTERVAL) {
            self.store(limit).await?;
            self.stored = Some(elapsed);
        }
        Ok(())
    }

    /// Takes over shards that this member now owns, at their watermarks, and drops those of other members.
    async fn take_over(&mut self) -> Result<(), StoreError> {
        let owned: Vec<bool> = (0..TOUCH_SHARDS).map(|shard| self.fleet.membership.owns_shard(shard)).collect();
        let is_new = |(owned, replayed): (&bool, &Option<Timestamp>)| *owned && replayed.is_none();
        if owned.iter().zip(&self.replayed).any(is_new) {
            self.read_watermarks().await?;
        }
        for (shard, owned) in (0..TOUCH_SHARDS).zip(owned) {
            let replayed = &mut self.replayed[shard as usize];
            match (owned, *replayed) {
                (true, None) => *replayed = Some(self.dataset.watermark(shard).just_after().floor_to(STEP)),
                (false, Some(_)) => *replayed = None,
                (true, Some(_)) | (false, None) => {}
            }
        }
        Ok(())
    }

    /// Reads the watermarks of other members.
    async fn read_watermarks(&self) -> Result<(), StoreError> {
        let stored = self.scopes.stores.touches.watermarks(self.dataset.id()).await?;
        for (shard, watermark) in (0..TOUCH_SHARDS).zip(stored) {
            if let Some(watermark) = watermark {
                self.dataset.note_watermark(shard, watermark);
            }
        }
        Ok(())
    }

    /// Offers every counter of the steps `from..=to` of a shard to the rollup queues, and compares the marked buckets.
    /// Returns whether this is complete; with full Sets it continues later.
    async fn replay(&self, shard: u32, from: Timestamp, to: Timestamp) -> Result<bool, StoreError> {
        let first = self.dataset.slices.rows().first().map_or(Timestamp::MAX, |row| row.start);
        let from = from.max(first.floor_to(STEP));
        let mut beyond: Option<Touch> = None;
        if from > to {
            return Ok(true);
        }
        loop {
            if self.scopes.rollup_queues.bytes() > SETS_BYTES_BUSY {
                return Ok(false);
            }
            let touches = &self.scopes.stores.touches;
            let page = touches.touched(self.dataset.id(), shard, from, to, beyond.as_ref(), PAGE_ROWS_MAX).await?;
            for touch in &page {
                self.take(touch).await?;
            }
            self.scopes.context.stats.touches_replayed.add(page.len() as u64);
            if page.len() < PAGE_ROWS_MAX {
                return Ok(true);
            }
            beyond = page.into_iter().next_back();
            // Replaying is background work: yield to calls between pages.
            self.scopes.context.clock.sleep(PAGE_PAUSE).await;
        }
    }

    async fn take(&self, touch: &Touch) -> Result<(), StoreError> {
        // A namespace is in the catalog before it has rows, so one that is missing was deleted.
        let Some(scope) = self.scope_of(touch).await? else { return Ok(()) };
        if let Some(bucket) = touch.recheck {
            self.scopes.context.stats.buckets_rechecked.increment();
            return self.roller.recheck(&self.fleet, &scope, &touch.counter, bucket, ReadReplicas::Quorum).await;
        }
        let end = (touch.step + STEP).just_before();
        // This server has rolled beyond the step, which is what the watermark waits for. A checkpoint that a repair has
        // replaced counts too, because the first roll on the repaired value reaches as far.
        if self.scopes.stores.rollups.rolled_to(self.dataset.id(), &touch.counter).is_some_and(|as_of| as_of >= end) {
            return Ok(());
        }
        // The limit has passed the step, so the next roll covers it. It is offered here whichever member owns the shard
        // by now, because the watermark of this process waits for it.
        scope.enqueue(&touch.counter, touch.step, end);
        Ok(())
    }

    async fn scope_of(&self, touch: &Touch) -> Result<Option<Arc<NamespaceScope>>, StoreError> {
        let namespace = touch.counter.namespace();
        if let Some(scope) = self.scopes.scope_by_id(namespace).await? {
            return Ok(Some(scope));
        }
        // Read once a step: namespaces touched up to its limit were in the catalog before.
        if !self.catalog_read.swap(true, Ordering::Relaxed) {
            self.scopes.namespaces.refresh().await?;
        }
        self.scopes.scope_by_id(namespace).await
    }

    /// Stores every watermark that can move, behind the checkpoints of its counters.
    async fn store(&self, limit: Timestamp) -> Result<(), StoreError> {
        self.read_watermarks().await?;
        let rolled_to = |shard: u32, replayed: Timestamp| {
            if self.fleet.membership.keeps(ProtocolRule::CheckpointBeforeWatermark) {
                self.dataset.pending.rolled_up_to(shard, replayed.just_before().min(limit))
            } else {
                limit
            }
        };
        let owned = (0..TOUCH_SHARDS).zip(&self.replayed).filter_map(|(shard, replayed)| Some((shard, (*replayed)?)));
        let reached = owned.map(|(shard, replayed)| (shard, rolled_to(shard, replayed)));
        put_moved(&self.scopes, &self.dataset, reached).await
    }
}

#[async_trait]
impl BackgroundLoop for ShardLoop {
    fn name(&self) -> &'static str {
        "touch shards"
    }

    async fn activate(&mut self) -> NextActivation {
        if let Err(error) = self.step().await {
            tracing::warn!(error = %error, dataset = %self.dataset.dataset.name, "cannot process touch shards");
        }
        NextActivation::After(LIMIT_PUBLISH_INTERVAL)
    }

    fn stage(&self) -> DrainStage {
        DrainStage::Watermarks
    }

    async fn finish(&mut self, _until: Duration) {
        if let Err(error) = self.store(self.dataset.limit()).await {
            tracing::warn!(error = %error, "cannot advance watermarks; their next owner replays a little more");
        }
    }
}
