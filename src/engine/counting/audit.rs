//! ListCountEvents and RecountCounter: the events behind a count.

use std::collections::BTreeMap;

use crate::counting::wait_budget::WaitBudget;
use crate::counting::{BucketDifference, Counting, CountingError, EventsQuery, Recount, Repair};
use crate::rolling::FoldStart;
use crate::scopes::NamespaceScope;
use tallystone_domain::counter::{Counter, CounterName, Event, EventKey, NamespaceName};
use tallystone_domain::rollup::{BucketRecord, Checkpoint, Freshness, ReadOptions, SliceStatus};
use tallystone_domain::{Reason, Reject, Timestamp};
use tallystone_ports::{ReadReplicas, ScanOrder, ScanRange, StoreError};

/// A counter recomputed from its log.
struct Recomputed {
    checkpoint: Checkpoint,
    buckets: Vec<BucketRecord>,
    events: u64,
}

impl Counting {
    /// Lists single events, newest first. A result shorter than the limit is the end.
    pub async fn events(
        &self,
        namespace: &NamespaceName,
        name: CounterName,
        question: EventsQuery,
    ) -> Result<Vec<Event>, CountingError> {
        let scope = self.durable_scope(namespace, "ListCountEvents").await?;
        let range = ScanRange {
            after: question.from.just_before(),
            to: question.to.just_before(),
            order: ScanOrder::NewestFirst,
            beyond: question.older_than,
            limit: question.limit,
        };
        Ok(self.scopes.stores.log.scan(scope.dataset.id(), &scope.counter(name), range).await?)
    }

    /// Whether a recount may repair: only where the store is shared, so that events may come late.
    pub fn can_repair(&self) -> bool {
        self.scopes.fleet.is_some()
    }

    /// Recomputes a counter from its log. A bounded number of recounts run at once; more wait. Cost: O(events of the
    /// counter inside retention).
    pub async fn recount(
        &self,
        namespace: &NamespaceName,
        name: CounterName,
        from: Option<Timestamp>,
        to: Option<Timestamp>,
        repair: Repair,
    ) -> Result<Recount, CountingError> {
        let scope = self.durable_scope(namespace, "RecountCounter").await?;
        if from.is_some_and(|from| to.is_some_and(|to| from >= to)) {
            return Err(Reject::new(Reason::InvalidRange, "from must be before to").into());
        }
        let counter = scope.counter(name);
        let _turn = self.recounts.acquire().await.map_err(|_closed| CountingError::ShuttingDown)?;
        if let Some(fleet) = &self.scopes.fleet {
            fleet.store.rescan_late_events(scope.dataset.id()).await?;
        }
        // Read before the checkpoint: a statement about a time without events then holds for a newer checkpoint too.
        let rolled_up = ReadOptions { freshness: Freshness::RolledUp, ..ReadOptions::default() };
        let reading = self.read(&scope, &counter, rolled_up, WaitBudget::begin(self.context.clock.as_ref())).await?;
        let row = self.scopes.stores.rollups.read(scope.dataset.id(), &counter).await?;
        let served = row.checkpoint.unwrap_or_else(|| Checkpoint::empty(scope.first_time()));
        let oldest = oldest_event_time(&scope);
        let recomputed = self.recompute(&scope, &counter, row.clear, (oldest, served.as_of)).await?;
        let dropped = scope.dataset.slices.rows().iter().any(|row| row.status == SliceStatus::Dropped);
        let complete = !dropped || recomputed.checkpoint.clear.is_some();
        let from = from.unwrap_or(oldest);
        let to = to.unwrap_or(served.as_of.just_after()).max(from);
        let recorded = self.recorded(&scope, &counter, &served, from, to).await?;
        let found = recomputed.buckets.iter().filter(|bucket| bucket.start >= from && bucket.start < to);
        let (differences, buckets_compared) = compare(recorded, found.cloned());
        let after = if complete {
            recomputed.checkpoint.count
        } else {
            served.count + differences.iter().map(sum_changed).sum::<i128>()
        };
        let repaired = repair == Repair::Yes && self.repair(&scope, &counter, &differences).await?;
        Ok(Recount {
            before: served.count,
            after,
            as_of: served.as_of.max(reading.as_of),
            complete,
            differences,
            buckets_compared,
            events_read: recomputed.events,
            repaired,
        })
    }

    /// Writes the differing buckets into the count. Returns whether there were any.
    async fn repair(
        &self,
        scope: &NamespaceScope,
        counter: &Counter,
        differences: &[BucketDifference],
    ) -> Result<bool, CountingError> {
        let Some(fleet) = &self.scopes.fleet else { return Ok(false) };
        for difference in differences {
            self.roller.recheck(fleet, scope, counter, difference.start, ReadReplicas::Quorum).await?;
        }
        Ok(!differences.is_empty())
    }

    async fn recompute(
        &self,
        scope: &NamespaceScope,
        counter: &Counter,
        register: Option<EventKey>,
        (after, to): (Timestamp, Timestamp),
    ) -> Result<Recomputed, StoreError> {
        let after = after.just_before();
        let start = FoldStart { base: Checkpoint::empty(after), register };
        let folded = self.roller.fold_pages(scope, counter, start, to, usize::MAX).await?;
        let rolled = folded.folder.finish(to.max(after));
        let mut buckets = rolled.finished_buckets;
        buckets.extend(rolled.checkpoint.open_bucket.clone());
        Ok(Recomputed { checkpoint: rolled.checkpoint, buckets, events: folded.events })
    }

    /// The records of a range: those of finished buckets and the open one.
    async fn recorded(
        &self,
        scope: &NamespaceScope,
        counter: &Counter,
        served: &Checkpoint,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<BucketRecord>, StoreError> {
        let mut records = self.scopes.stores.rollups.buckets(scope.dataset.id(), counter, from, to).await?;
        records.extend(served.open_bucket.iter().filter(|bucket| bucket.start >= from && bucket.start < to).cloned());
        Ok(records)
    }
}

/// The start of the oldest slice whose events still exist.
fn oldest_event_time(scope: &NamespaceScope) -> Timestamp {
    let rows = scope.dataset.slices.rows();
    rows.iter().find(|row| row.status != SliceStatus::Dropped).map_or(scope.first_time(), |row| row.start)
}

/// Compares stored records with recomputed ones. Returns the differences and the number of compared buckets.
fn compare(recorded: Vec<BucketRecord>, found: impl Iterator<Item = BucketRecord>) -> (Vec<BucketDifference>, u64) {
    let mut pairs: BTreeMap<Timestamp, (Option<BucketRecord>, Option<BucketRecord>)> = BTreeMap::new();
    for record in recorded {
        let start = record.start;
        pairs.entry(start).or_default().0 = Some(record);
    }
    for record in found {
        let start = record.start;
        pairs.entry(start).or_default().1 = Some(record);
    }
    let compared = pairs.len() as u64;
    let differing = pairs.into_iter().filter(|(_, (recorded, found))| recorded != found);
    let differences = differing.map(|(start, (recorded, found))| BucketDifference { start, recorded, found }).collect();
    (differences, compared)
}

fn sum_changed(difference: &BucketDifference) -> i128 {
    let sum = |record: &Option<BucketRecord>| record.as_ref().map_or(0, |record| record.sum);
    sum(&difference.found) - sum(&difference.recorded)
}
