//! The life cycle of slices: made ahead, opened, closed, exported and dropped.
//!
//! A slice is dropped only after the watermark of every touch shard has passed its end, its buckets are sealed (if
//! sealing is on), and its export (if one is configured) is complete. Otherwise the slice stays, with a warning.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;

use crate::dataset::datasets::DatasetState;
use crate::driver::{BackgroundLoop, NextActivation};
use crate::scopes::NamespaceScopes;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::NamespaceId;
use tallystone_domain::limits::{LIMIT_PUBLISH_INTERVAL, SCAN_PAGE_EVENTS, TOUCH_SHARDS};
use tallystone_domain::rollup::{SliceStatus, TimeSlice};
use tallystone_ports::{ExportSink, StoreError};

/// How often slices are checked.
const INTERVAL: Duration = Duration::from_secs(10);
/// How long watermarks may take to follow the limit past a slice before a warning. An idle dataset moves neither until
/// it is used.
const WATERMARK_LAG_TOLERATED: Duration = Duration::from_secs(60);

/// The retention loop of one dataset.
pub struct RetentionLoop {
    scopes: Arc<NamespaceScopes>,
    dataset: Arc<DatasetState>,
    /// The export of slices, if there is one.
    export: Option<Arc<dyn ExportSink>>,
    /// Whether the last attempt to trim series failed; shared by all datasets.
    trim_failing: Arc<AtomicBool>,
    /// Slices that wait for watermarks, with the start of the wait by elapsed time.
    behind: BTreeMap<Timestamp, Duration>,
}

/// The reason why a slice cannot be dropped yet.
enum DropObstacle {
    /// Watermarks have not passed its end.
    Behind,
    /// Its buckets are not all sealed, which happens with this delay.
    Unsealed(Duration),
    /// It must be exported, and no export directory is set.
    NoExport,
}

impl RetentionLoop {
    /// Makes the loop of a dataset.
    pub fn new(
        scopes: Arc<NamespaceScopes>,
        dataset: Arc<DatasetState>,
        export: Option<Arc<dyn ExportSink>>,
        trim_failing: Arc<AtomicBool>,
    ) -> Self {
        Self { scopes, dataset, export, trim_failing, behind: BTreeMap::new() }
    }

    async fn step(&mut self) -> Result<(), StoreError> {
        let now = self.scopes.context.now();
        self.scopes.ensure_slices(&self.dataset, now).await?;
        if self.scopes.fleet.is_some() {
            self.dataset.slices.refresh(self.scopes.stores.slices.as_ref()).await?;
        }
        let dataset = Arc::clone(&self.dataset.dataset);
        let settings = &dataset.settings;
        for row in self.dataset.slices.rows().iter() {
            let status = match row.status {
                SliceStatus::Future if row.start <= now => SliceStatus::Open,
                SliceStatus::Open if row.end + settings.close_after <= now => SliceStatus::Closed,
                SliceStatus::Closed if row.end + settings.delete_after <= now => {
                    if self.scopes.fleet.as_ref().is_some_and(|fleet| !fleet.membership.owns_dataset(self.dataset.id()))
                    {
                        continue;
                    }
                    self.try_drop(row).await?;
                    continue;
                }
                SliceStatus::Future | SliceStatus::Open | SliceStatus::Closed | SliceStatus::Dropped => continue,
            };
            self.scopes.stores.slices.set_status(self.dataset.id(), row.start, status).await?;
            self.dataset.slices.note_status(row.start, status);
        }
        // They expire by themselves, and the store of other datasets may be away, so slices do not wait for them.
        let trimmed = self.trim_series(now).await;
        self.report_trimming(trimmed);
        Ok(())
    }

    /// Warns once when series cannot be trimmed, for all datasets together, and logs when they can again.
    fn report_trimming(&self, trimmed: Result<(), StoreError>) {
        let was_kept_back = self.trim_failing.swap(trimmed.is_err(), Ordering::Relaxed);
        match trimmed {
            Err(error) if !was_kept_back => {
                tracing::warn!(%error, "expired series rows are kept: a store that may contain some cannot trim them");
            }
            Err(error) => tracing::debug!(%error, "cannot trim expired series rows"),
            Ok(()) if was_kept_back => tracing::info!("expired series rows are trimmed again"),
            Ok(()) => {}
        }
    }

    async fn try_drop(&mut self, row: &TimeSlice) -> Result<(), StoreError> {
        if let Some(obstacle) = self.obstacle(row).await? {
            self.report_obstacle(row, obstacle);
            return Ok(());
        }
        self.behind.remove(&row.start);
        self.scopes.stores.slices.set_status(self.dataset.id(), row.start, SliceStatus::Dropped).await?;
        self.dataset.slices.note_status(row.start, SliceStatus::Dropped);
        self.scopes.context.stats.slices_dropped.increment();
        tracing::info!(dataset = %self.dataset.dataset.name, slice_start_us = row.start.micros(), "a slice was dropped");
        Ok(())
    }

    /// Logs that a slice stays, unless it only waits for watermarks of an idle dataset.
    fn report_obstacle(&mut self, row: &TimeSlice, obstacle: DropObstacle) {
        let obstacle = match obstacle {
            DropObstacle::NoExport => "its export is enabled, but storage.export_dir is not set",
            DropObstacle::Behind => {
                // An idle dataset publishes no limit by itself, and watermarks follow the limit.
                self.dataset.request_limit();
                let elapsed = self.scopes.context.clock.elapsed();
                let since = *self.behind.entry(row.start).or_insert(elapsed);
                if elapsed.saturating_sub(since) < WATERMARK_LAG_TOLERATED {
                    return;
                }
                "some of its counters are not rolled up yet"
            }
            DropObstacle::Unsealed(delay) => {
                // Sealing follows the watermarks with its delay.
                self.dataset.request_limit();
                let elapsed = self.scopes.context.clock.elapsed();
                let since = *self.behind.entry(row.start).or_insert(elapsed);
                if elapsed.saturating_sub(since) < WATERMARK_LAG_TOLERATED + delay {
                    return;
                }
                "its time buckets are not compared on all replicas yet; check that all replicas are up"
            }
        };
        self.scopes.context.stats.slices_kept_back.increment();
        tracing::warn!(
            dataset = %self.dataset.dataset.name, slice_start_us = row.start.micros(), obstacle,
            "a slice is past its retention but cannot be dropped"
        );
    }

    async fn obstacle(&self, row: &TimeSlice) -> Result<Option<DropObstacle>, StoreError> {
        if (0..TOUCH_SHARDS).any(|shard| self.dataset.watermark(shard) < row.end) {
            return Ok(Some(DropObstacle::Behind));
        }
        if let Some(fleet) = &self.scopes.fleet
            && let Some(delay) = fleet.seal_delay
        {
            let sealed = fleet.store.sealed_to(self.dataset.id()).await?;
            let is_sealed = |shard: usize| sealed.get(shard).copied().flatten().is_some_and(|to| to >= row.end);
            if !(0..TOUCH_SHARDS as usize).all(is_sealed) {
                return Ok(Some(DropObstacle::Unsealed(delay)));
            }
        }
        if !self.dataset.dataset.settings.export_before_drop {
            return Ok(None);
        }
        let Some(export) = &self.export else {
            return Ok(Some(DropObstacle::NoExport));
        };
        // Even if a file of that name exists, because it may be that of another store.
        self.export(export.as_ref(), row).await?;
        Ok(None)
    }

    async fn export(&self, export: &dyn ExportSink, row: &TimeSlice) -> Result<(), StoreError> {
        let name = &self.dataset.dataset.name;
        export.begin(name, row.start).await?;
        let mut names: BTreeMap<NamespaceId, String> = BTreeMap::new();
        let mut beyond = None;
        loop {
            let log = &self.scopes.stores.log;
            let page = log.scan_slice(self.dataset.id(), row.start, beyond, SCAN_PAGE_EVENTS).await?;
            beyond = page.last().map(|last| (last.counter.clone(), last.event.key.clone()));
            let last_page = page.len() < SCAN_PAGE_EVENTS;
            let mut named = Vec::with_capacity(page.len());
            for slice_row in page {
                let id = slice_row.counter.namespace();
                let name = names.entry(id).or_insert_with(|| self.name_of(id));
                named.push((name.clone(), slice_row));
            }
            export.write(name, row.start, named).await?;
            if last_page {
                return export.finish(name, row.start).await;
            }
            // Stores and sinks may serve a whole slice without waiting, so this yields to other tasks and to a drain.
            tokio::task::yield_now().await;
        }
    }

    fn name_of(&self, id: NamespaceId) -> String {
        match self.scopes.namespaces.by_id(id) {
            Some(namespace) => namespace.spec.name.to_string(),
            // The namespace was deleted meanwhile. Its id is never reused, so it still names one namespace.
            None => format!("#{}", id.0),
        }
    }

    /// Drops series rows beyond the retention of every namespace.
    async fn trim_series(&self, now: Timestamp) -> Result<(), StoreError> {
        let rollups = &self.scopes.stores.rollups;
        for (step_seconds, keep) in self.kept_series() {
            rollups.trim_series(step_seconds, now - keep).await?;
        }
        let stored = rollups.series_resolutions().await?;
        let kept = self.kept_series();
        if stored.iter().all(|step_seconds| kept.contains_key(step_seconds)) {
            return Ok(());
        }
        // A namespace that adds such a resolution at this moment would lose its first steps.
        let Some(_still) = self.scopes.namespaces.pause_changes().await else { return Ok(()) };
        let kept = self.kept_series();
        for step_seconds in stored.into_iter().filter(|step_seconds| !kept.contains_key(step_seconds)) {
            rollups.trim_series(step_seconds, Timestamp::MAX).await?;
        }
        Ok(())
    }

    /// The longest retention of each resolution among all namespaces.
    fn kept_series(&self) -> BTreeMap<u32, Duration> {
        let mut kept: BTreeMap<u32, Duration> = BTreeMap::new();
        for namespace in self.scopes.namespaces.all().iter() {
            for series in &namespace.spec.series {
                let longest = kept.entry(series.step_seconds).or_default();
                *longest = series.keep.max(*longest);
            }
        }
        kept
    }
}

#[async_trait]
impl BackgroundLoop for RetentionLoop {
    fn name(&self) -> &'static str {
        "retention"
    }

    async fn activate(&mut self) -> NextActivation {
        match self.step().await {
            Ok(()) => NextActivation::After(INTERVAL),
            Err(error) => {
                tracing::warn!(error = %error, dataset = %self.dataset.dataset.name, "cannot maintain the slices");
                NextActivation::After(LIMIT_PUBLISH_INTERVAL)
            }
        }
    }
}
