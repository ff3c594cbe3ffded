//! Seals time buckets: after the seal delay, a finished bucket is read again from every replica and compared with its
//! record. So a late row is found and counted, even if no caller asked about it.
//!
//! The owner of a touch shard processes the steps of the shard in their order, behind the limit by the delay and never
//! beyond the watermark, because a bucket has no record before its counters are rolled up. All buckets of LOW
//! namespaces are compared; of the others, one in `SEAL_SAMPLE_EVERY`. The progress of a shard is stored, and a slice
//! is kept until it is sealed. Two owners at once only compare twice.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::dataset::datasets::DatasetState;
use crate::driver::{BackgroundLoop, NextActivation};
use crate::fleet::CounterFleet;
use crate::loops::replay::PAGE_PAUSE;
use crate::rolling::Roller;
use crate::scopes::NamespaceScopes;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::Counter;
use tallystone_domain::limits::{
    LIMIT_PUBLISH_INTERVAL, PAGE_ROWS_MAX, SEAL_BUCKETS_NOTED_MAX, SEAL_INTERVAL, STEP, TOUCH_SHARDS,
};
use tallystone_domain::namespace::Cardinality;
use tallystone_domain::rollup::{SliceStatus, TimeSlice, is_sampled, sealable_to};
use tallystone_ports::{StoreError, Touch};

/// The loop of one dataset.
pub struct SealLoop {
    scopes: Arc<NamespaceScopes>,
    roller: Arc<Roller>,
    fleet: Arc<CounterFleet>,
    dataset: Arc<DatasetState>,
    delay: Duration,
    /// The time up to which each shard is sealed; none for shards of other members.
    sealed: Vec<Option<Timestamp>>,
}

/// The buckets compared in one pass, so that further touches of them are skipped.
#[derive(Default)]
struct ComparedBuckets(BTreeSet<(Timestamp, Counter)>);

impl ComparedBuckets {
    /// Notes a bucket. Returns whether it is new. If there are too many, some are dropped and compared twice.
    fn note(&mut self, bucket: Timestamp, counter: &Counter) -> bool {
        if self.0.len() == SEAL_BUCKETS_NOTED_MAX {
            self.0.pop_first();
        }
        self.0.insert((bucket, counter.clone()))
    }
}

impl SealLoop {
    /// Makes the loop of a dataset; it owns nothing yet.
    pub fn new(roller: Arc<Roller>, fleet: Arc<CounterFleet>, dataset: Arc<DatasetState>, delay: Duration) -> Self {
        let sealed = vec![None; TOUCH_SHARDS as usize];
        Self { scopes: Arc::clone(&roller.scopes), roller, fleet, dataset, delay, sealed }
    }

    /// Returns whether every owned shard is sealed as far as possible.
    async fn step(&mut self) -> Result<bool, StoreError> {
        self.take_over().await?;
        // The limit is read first: all events acknowledged at or below it are in the touches read after it.
        let due = self.dataset.limit() - self.delay;
        let mut is_looked_again = false;
        let mut failed = false;
        for shard in 0..TOUCH_SHARDS {
            let Some(from) = self.sealed[shard as usize] else { continue };
            let watermark = self.dataset.watermark(shard);
            let Some((from, to)) = self.next_range(from, due.min(watermark.just_after())).await? else { continue };
            if from < to {
                if !is_looked_again {
                    // Steps that were empty may have rows that came late.
                    self.fleet.store.rescan_late_events(self.dataset.id()).await?;
                    is_looked_again = true;
                }
                if let Err(error) = self.seal(shard, from, to).await {
                    failed = true;
                    self.scopes.context.stats.seals_failed.increment();
                    let dataset = &self.dataset.dataset.name;
                    tracing::warn!(%error, %dataset, shard, "cannot seal time buckets; retrying");
                    continue;
                }
            }
            self.fleet.store.put_sealed(self.dataset.id(), shard, to).await?;
            self.sealed[shard as usize] = Some(to);
        }
        let slowest = self.sealed.iter().flatten().min();
        self.dataset.note_seal_lag(slowest.map_or(Duration::ZERO, |slowest| due.since(*slowest)));
        Ok(!is_looked_again && !failed)
    }

    /// Takes over shards that this member now owns, at the progress of their last owner.
    async fn take_over(&mut self) -> Result<(), StoreError> {
        let owned: Vec<bool> = (0..TOUCH_SHARDS).map(|shard| self.fleet.membership.owns_shard(shard)).collect();
        let is_new = owned.iter().zip(&self.sealed).any(|(owned, sealed)| *owned && sealed.is_none());
        let stored = if is_new { self.fleet.store.sealed_to(self.dataset.id()).await? } else { Vec::new() };
        let first = self.dataset.slices.rows().first().map_or(Timestamp::MIN, |row| row.start);
        for (shard, owned) in owned.into_iter().enumerate() {
            let sealed = &mut self.sealed[shard];
            match (owned, *sealed) {
                (true, None) => *sealed = Some(stored.get(shard).copied().flatten().unwrap_or(first)),
                (false, Some(_)) => *sealed = None,
                (true, Some(_)) | (false, None) => {}
            }
        }
        Ok(())
    }

    /// The next range to seal from a time on: within one slice, up to a time at which all its buckets are finished. An
    /// empty range skips a dropped slice. None if nothing is due.
    async fn next_range(&self, from: Timestamp, due: Timestamp) -> Result<Option<(Timestamp, Timestamp)>, StoreError> {
        let rows = self.dataset.slices.rows();
        let Some(row) = rows.iter().find(|row| from < row.end) else { return Ok(None) };
        let from = from.max(row.start);
        if row.status == SliceStatus::Dropped {
            return Ok(Some((row.end, row.end)));
        }
        let widths = self.bucket_widths(row).await?;
        let to = sealable_to(due.min(row.end), widths);
        Ok((from < to).then_some((from, to)))
    }

    async fn bucket_widths(&self, row: &TimeSlice) -> Result<BTreeSet<Duration>, StoreError> {
        let mut widths = BTreeSet::new();
        for namespace in self.scopes.namespaces.all().iter().filter(|one| one.dataset_id == self.dataset.id()) {
            if let Some(scope) = self.scopes.scope_by_id(namespace.id).await? {
                widths.insert(scope.rules.at(row.start).bucket);
            }
        }
        Ok(widths)
    }

    /// Compares the buckets of a shard with touched steps in `from..to`.
    async fn seal(&self, shard: u32, from: Timestamp, to: Timestamp) -> Result<(), StoreError> {
        let touches = &self.scopes.stores.touches;
        let last = to.just_before().floor_to(STEP);
        let mut noted = ComparedBuckets::default();
        let mut beyond: Option<Touch> = None;
        let mut complete: BTreeSet<Counter> = BTreeSet::new();
        loop {
            let page = touches.touched(self.dataset.id(), shard, from, last, beyond.as_ref(), PAGE_ROWS_MAX).await?;
            for touch in page.iter().filter(|touch| touch.recheck.is_none()) {
                // A namespace is in the catalog before it has rows, so one that is missing was deleted.
                let Some(scope) = self.scopes.scope_by_id(touch.counter.namespace()).await? else { continue };
                let bucket = touch.step.floor_to(scope.rules.at(touch.step).bucket);
                let cardinality = scope.namespace.spec.cardinality;
                if is_sampled(cardinality, &touch.counter, bucket) && noted.note(bucket, &touch.counter) {
                    self.roller.seal_bucket(&self.fleet, &scope, &touch.counter, bucket).await?;
                    if cardinality == Cardinality::Low {
                        complete.insert(touch.counter.clone());
                    }
                }
            }
            if page.len() < PAGE_ROWS_MAX {
                break;
            }
            beyond = page.into_iter().next_back();
            self.scopes.context.clock.sleep(PAGE_PAUSE).await;
        }
        for counter in complete {
            let Some(scope) = self.scopes.scope_by_id(counter.namespace()).await? else { continue };
            self.roller.note_verified(&self.fleet, &scope, &counter, to).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl BackgroundLoop for SealLoop {
    fn name(&self) -> &'static str {
        "sealing"
    }

    async fn activate(&mut self) -> NextActivation {
        match self.step().await {
            Ok(true) => NextActivation::After(SEAL_INTERVAL),
            Ok(false) => NextActivation::After(LIMIT_PUBLISH_INTERVAL),
            Err(error) => {
                tracing::warn!(%error, dataset = %self.dataset.dataset.name, "cannot seal time buckets yet");
                NextActivation::After(SEAL_INTERVAL)
            }
        }
    }
}
