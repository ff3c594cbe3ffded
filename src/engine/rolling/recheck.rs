//! Recheck marks: put by a process that finds a row below the limit, or puts a tombstone there, and processed by the
//! roller of the counter's shard.
//!
//! A row with an unknown outcome may reach the log after its bucket was folded. A row on a single replica may be folded
//! by a roll that read that replica, and lose to a tombstone whose verdict read the others. A mark has a server-made
//! time and a hold, like an event. So the watermark of the shard cannot pass its step before the bucket was compared.
//! The counter is first rolled up beyond the mark, and always writes a checkpoint. A roll that began before the row was
//! visible then loses to that checkpoint, however late it ends.

use crate::closed_timestamp::{ClosedTimestampTracker, InFlightHold};
use crate::fleet::CounterFleet;
use crate::rolling::{FoldStart, Roller};
use crate::scopes::NamespaceScope;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Counter, EventKey};
use tallystone_domain::fleet::ProtocolRule;
use tallystone_domain::limits::REPAIR_ATTEMPTS_MAX;
use tallystone_domain::rollup::{
    BucketComparison, BucketRecord, Checkpoint, FoldResult, RepairAction, SettledClears, SliceStatus, VerifiedBase,
};
use tallystone_ports::{EffectOutcome, ReadReplicas, RollWrite, StoreError, StoreErrorKind};

const OP: &str = "recheck a bucket";

/// The hold of a recheck mark. Dropping it ends it, so that a caller who goes away in the middle holds no limit back.
struct MarkHold<'a> {
    closing: &'a ClosedTimestampTracker,
    hold: InFlightHold,
}

impl<'a> MarkHold<'a> {
    fn begin(closing: &'a ClosedTimestampTracker, now: Timestamp) -> Self {
        Self { closing, hold: closing.admit_own(now, 1).hold }
    }
}

impl Drop for MarkHold<'_> {
    fn drop(&mut self) {
        self.closing.release(self.hold);
    }
}

/// A counter rolled up to the limit, with its records.
struct RolledUpCounter {
    rolled: FoldResult,
    sealed: Option<VerifiedBase>,
    clears: SettledClears,
}

impl Roller {
    /// Puts a recheck mark for the bucket of an event that was found below the limit, or replaced by a tombstone there.
    /// Only on a shared store.
    pub async fn put_recheck_mark(
        &self,
        scope: &NamespaceScope,
        counter: &Counter,
        found: &EventKey,
    ) -> Result<(), StoreError> {
        self.under_recheck_mark(scope, counter, found, async { Ok(()) }).await
    }

    /// Puts a recheck mark for the bucket of a key and then does the work, both under one hold. So the bucket is
    /// compared after the work, however long that takes, and also if this process ends in its middle.
    pub(super) async fn under_recheck_mark<T>(
        &self,
        scope: &NamespaceScope,
        counter: &Counter,
        key: &EventKey,
        work: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let Some(fleet) = self.scopes.fleet.as_ref().filter(|fleet| fleet.membership.keeps(ProtocolRule::RecheckMark))
        else {
            return work.await;
        };
        let held = MarkHold::begin(&scope.dataset.closing, self.context.now());
        let done = match self.put_mark_under_hold(fleet, scope, counter, key, held.hold.time).await {
            Ok(()) => work.await,
            Err(error) => Err(error),
        };
        // Checked under the hold: a mark of a past incarnation could lie below a watermark.
        let vouched = fleet.membership.may_acknowledge(held.hold.incarnation);
        drop(held);
        // The verdict on the token is returned only after the mark is stored, whatever delays it.
        let done = done.map_err(|error| StoreError { outcome: EffectOutcome::Unknown, ..error })?;
        if vouched {
            return Ok(done);
        }
        let why = "this server lost its membership of the fleet while it checked the token; retry with the same token";
        Err(StoreError::unknown(StoreErrorKind::Unavailable, OP).with_source(why))
    }

    async fn put_mark_under_hold(
        &self,
        fleet: &CounterFleet,
        scope: &NamespaceScope,
        counter: &Counter,
        found: &EventKey,
        time: Timestamp,
    ) -> Result<(), StoreError> {
        if !scope.dataset.slices.has(time) {
            self.scopes.ensure_slices(&scope.dataset, time).await?;
        }
        fleet.store.put_recheck_mark(scope.dataset.id(), counter, found.time, time).await
    }

    /// Compares a time bucket on the given replicas with its record, and repairs the counter if they differ.
    pub async fn recheck(
        &self,
        fleet: &CounterFleet,
        scope: &NamespaceScope,
        counter: &Counter,
        bucket: Timestamp,
        copies: ReadReplicas,
    ) -> Result<(), StoreError> {
        match self.slice_of(scope, bucket).await? {
            Some(SliceStatus::Dropped) => return Ok(()),
            Some(SliceStatus::Future | SliceStatus::Open | SliceStatus::Closed) => {}
            // An unknown slice is not a dropped one.
            None => {
                let error = StoreError::not_applied(StoreErrorKind::Unavailable, OP);
                return Err(error.with_source("this server does not know the slice of the bucket yet"));
            }
        }
        for _ in 0..REPAIR_ATTEMPTS_MAX {
            if self.recheck_once(fleet, scope, counter, bucket, copies).await? {
                return Ok(());
            }
        }
        Err(StoreError::not_applied(StoreErrorKind::Conflict, OP)
            .with_source("another server repairs the counter at the same time"))
    }

    /// The status of the slice at a time, which another server may have made a moment ago.
    async fn slice_of(&self, scope: &NamespaceScope, time: Timestamp) -> Result<Option<SliceStatus>, StoreError> {
        let known = || {
            let rows = scope.dataset.slices.rows();
            rows.iter().find(|row| row.start <= time && time < row.end).map(|row| row.status)
        };
        if known().is_none() {
            scope.dataset.slices.refresh(self.scopes.stores.slices.as_ref()).await?;
        }
        Ok(known())
    }

    /// Returns whether it is done. False if another repair intervened.
    async fn recheck_once(
        &self,
        fleet: &CounterFleet,
        scope: &NamespaceScope,
        counter: &Counter,
        bucket: Timestamp,
        copies: ReadReplicas,
    ) -> Result<bool, StoreError> {
        let dataset = scope.dataset.id();
        let Some(mut current) = self.force_roll(fleet, scope, counter).await? else { return Ok(false) };
        let events = self.settled_bucket(fleet, scope, counter, (bucket, copies), &mut current.clears).await?;
        let Some(events) = events else { return Ok(true) };
        let checkpoint = &current.rolled.checkpoint;
        let recorded = self.recorded_bucket(scope, counter, &current, bucket).await?;
        let compared = BucketComparison::new(checkpoint, (bucket, &scope.rules), recorded, &events);
        let next = match compared.remedy(checkpoint) {
            RepairAction::None => return Ok(true),
            RepairAction::Exchanged(next) => next,
            RepairAction::AddLater(mut next) => {
                next.count += self.recorded_sum_from(scope, counter, &current, bucket + compared.width).await?;
                next
            }
        };
        let mut repaired = current.sealed.as_ref().map(|sealed| sealed.repaired.clone()).unwrap_or_default();
        if compared.is_finished(checkpoint) {
            repaired.retain(|record| record.start != bucket);
            repaired.push(compared.found.clone());
        }
        self.forget_dropped(scope, &mut repaired);
        let verified_to = current.sealed.as_ref().map_or(Timestamp::MIN, |sealed| sealed.verified_to);
        // A repair names no roller: servers that find it at once write the same bytes.
        let sealed = VerifiedBase { checkpoint: Checkpoint { writer: None, ..next.clone() }, repaired, verified_to };
        if !fleet.store.seal(dataset, counter, current.sealed.as_ref(), &sealed).await? {
            return Ok(false);
        }
        self.context.stats.late_rows.add(compared.rows_late());
        self.context.stats.repairs.increment();
        tracing::warn!(
            counter = %counter.tag(), bucket_start_us = bucket.micros(), rows = compared.rows_late(),
            by = %(next.count - checkpoint.count), repairs = next.repairs,
            "rows arrived in the log after the rollup of their bucket; the count was repaired"
        );
        scope.cache.delete(counter).await;
        // The first roll on the repaired value folds again all events that later rolls on the old value had folded.
        let mut reads = Vec::new();
        for rolled in self.roll(scope, std::slice::from_ref(counter), 1, &mut reads).await {
            rolled?;
        }
        self.served.rankings.note(counter, &next);
        self.served.watchers.wake(counter);
        Ok(true)
    }

    /// Rolls a counter up to the limit and writes its checkpoint even without news. None if a repair intervened.
    async fn force_roll(
        &self,
        fleet: &CounterFleet,
        scope: &NamespaceScope,
        counter: &Counter,
    ) -> Result<Option<RolledUpCounter>, StoreError> {
        let dataset = scope.dataset.id();
        let watermark = scope.dataset.watermark(counter.touch_shard());
        // The sealed value is read first: the number of repairs then reveals an older row.
        let sealed = fleet.store.sealed(dataset, counter).await?;
        let row = self.scopes.stores.rollups.read(dataset, counter).await?;
        let limit = scope.dataset.stored_limit(&self.scopes.stores).await?;
        let base = row.base(watermark);
        let stands = row.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.as_of >= limit);
        if base.repairs != sealed.as_ref().map_or(0, |sealed| sealed.checkpoint.repairs) {
            return Ok(None);
        }
        if stands {
            let clears = SettledClears::new(row.clear, limit);
            return Ok(Some(RolledUpCounter { rolled: FoldResult::of(base), sealed, clears }));
        }
        if scope.covered_to() <= limit {
            return Err(StoreError::not_applied(StoreErrorKind::Unavailable, "roll beyond the known slices"));
        }
        let (rolled, clears) = if base.as_of < limit {
            let start = FoldStart { base, register: row.clear };
            let folded = self.fold_pages(scope, counter, start, limit, usize::MAX).await?;
            (folded.folder.finish(limit), folded.clears)
        } else {
            (FoldResult::of(base), SettledClears::new(row.clear, limit))
        };
        self.put_checkpoint(scope, counter, rolled.clone()).await?;
        Ok(Some(RolledUpCounter { rolled, sealed, clears }))
    }

    async fn put_checkpoint(
        &self,
        scope: &NamespaceScope,
        counter: &Counter,
        rolled: FoldResult,
    ) -> Result<(), StoreError> {
        let FoldResult { checkpoint, finished_buckets, finished_steps } = rolled;
        let checkpoint = self.with_roller(checkpoint);
        let write = RollWrite { counter: counter.clone(), checkpoint, finished_buckets, finished_steps };
        self.scopes.stores.rollups.put(scope.dataset.id(), vec![write]).await
    }

    /// The folded part of a bucket.
    async fn recorded_bucket(
        &self,
        scope: &NamespaceScope,
        counter: &Counter,
        current: &RolledUpCounter,
        bucket: Timestamp,
    ) -> Result<Option<BucketRecord>, StoreError> {
        let records = self.records_from(scope, counter, current, bucket, bucket.just_after()).await?;
        Ok(records.into_iter().find(|record| record.start == bucket))
    }

    /// The sum of the folded parts of all buckets from one on.
    async fn recorded_sum_from(
        &self,
        scope: &NamespaceScope,
        counter: &Counter,
        current: &RolledUpCounter,
        from: Timestamp,
    ) -> Result<i128, StoreError> {
        let records = self.records_from(scope, counter, current, from, Timestamp::MAX).await?;
        Ok(records.iter().map(|record| record.sum).sum())
    }

    /// The records of buckets that begin in `from..to`. The records of the present roll replace the stored ones.
    async fn records_from(
        &self,
        scope: &NamespaceScope,
        counter: &Counter,
        current: &RolledUpCounter,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<BucketRecord>, StoreError> {
        // An intervening repair makes the sealing fail.
        let stored = self.scopes.stores.rollups.buckets(scope.dataset.id(), counter, from, to).await?;
        let FoldResult { checkpoint, finished_buckets, .. } = &current.rolled;
        let newest = finished_buckets.iter().chain(&checkpoint.open_bucket).cloned();
        let by_start: std::collections::BTreeMap<Timestamp, BucketRecord> =
            stored.into_iter().chain(newest).map(|record| (record.start, record)).collect();
        Ok(by_start.into_values().filter(|record| record.start >= from && record.start < to).collect())
    }

    /// Drops the records of dropped slices.
    fn forget_dropped(&self, scope: &NamespaceScope, records: &mut Vec<BucketRecord>) {
        let rows = scope.dataset.slices.rows();
        let oldest = rows.iter().find(|row| row.status != SliceStatus::Dropped).map_or(Timestamp::MIN, |row| row.start);
        records.retain(|record| record.start >= oldest);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_mark_whose_caller_goes_away_holds_no_limit_back() {
        const ACCEPT_LIMIT: Duration = Duration::from_secs(5);
        let closing = ClosedTimestampTracker::new(ACCEPT_LIMIT, Timestamp::MIN);
        let later = Timestamp::from_secs(200);
        let held = MarkHold::begin(&closing, Timestamp::from_secs(100));
        assert_eq!(closing.closed(later), held.hold.time.just_before());
        drop(held);
        assert_eq!((closing.closed(later), closing.hold_count()), (later - ACCEPT_LIMIT, 0));
    }
}
