//! The counters that queues keep about themselves: reports of the bridge, and what the log knows of them.
//!
//! No API leads here. A report is a set of totals, each with its source, epoch and serial. A counter folds them by
//! (epoch, serial), so their order, repeats and several reporters change nothing. Reports take no turns and read
//! nothing.

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};

use crate::counting::submit::Submission;
use crate::counting::{Counting, CountingError, WriteOutcome};
use crate::namespaces::queue_namespace;
use tallystone_domain::counter::{Change, CounterName, Event, EventId, EventKey, Provenance, ReportSource};
use tallystone_domain::limits::{CALL_READS_AT_ONCE_MAX, KNOWN_TOTALS_PAGE_MAX, QUEUE_TOTALS_AT_ONCE_MAX};
use tallystone_domain::rollup::{RollupRow, SliceStatus, SourceTotal};
use tallystone_domain::{Reason, Reject};
use tallystone_ports::{NewEvent, StoreError};

/// The bits of a serial that hold the position in the shard.
const POSITION_BITS: u32 = 48;

/// The total of one counter of one shard of a queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueTotal {
    pub counter: CounterName,
    /// The shard: `s0`, `s1`, and so on.
    pub source: ReportSource,
    /// The creation time of the queue in microseconds, or a greater number. A higher epoch begins anew.
    pub epoch: u64,
    /// The store epoch and the position of the shard, see `queue_serial`.
    pub serial: u64,
    pub total: i64,
    /// The first and the last position that the total covers and that no earlier total of the counter covered.
    pub positions: (u64, u64),
}

/// A counter with the newest total of each of its sources.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KnownTotals {
    pub counter: CounterName,
    /// By source.
    pub sources: BTreeMap<Box<str>, SourceTotal>,
}

/// A page of counters in the order of their names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KnownTotalsPage {
    pub counters: Vec<KnownTotals>,
    /// The name above which the next page begins; none if there is none.
    pub next_above: Option<CounterName>,
}

/// The serial of a total: the store epoch in the upper 16 bits, the position of the shard in the lower 48. A shard that
/// applies a million rows a second reaches the last position after 8 years; the position stays there.
pub fn queue_serial(store_epoch: u16, position: u64) -> u64 {
    (u64::from(store_epoch) << POSITION_BITS) | position.min((1 << POSITION_BITS) - 1)
}

impl Counting {
    /// Writes totals of queues in one append. The outcomes have the order of the totals; an error of one states whether
    /// it may have been written. A repeat is written again and changes no count, so a failed report is simply sent
    /// again.
    ///
    /// Refused as a whole, with no effect: more than `QUEUE_TOTALS_AT_ONCE_MAX` totals, a missing namespace.
    pub async fn report_queue_totals(
        &self,
        totals: Vec<QueueTotal>,
    ) -> Result<Vec<Result<WriteOutcome, CountingError>>, CountingError> {
        if totals.len() > QUEUE_TOTALS_AT_ONCE_MAX {
            let message = format!("a report has {} totals; send at most {QUEUE_TOTALS_AT_ONCE_MAX}", totals.len());
            return Err(Reject::new(Reason::InvalidArgument, message).into());
        }
        if totals.is_empty() {
            return Ok(Vec::new());
        }
        let scope = self.scope(&queue_namespace()).await?;
        let permits = u32::try_from(totals.len()).expect("a report has few totals");
        let permits = Arc::clone(&scope.dataset.batch_permits).acquire_many_owned(permits).await;
        let permits = permits.map_err(|_closed| CountingError::ShuttingDown)?;
        let mut own = self.reserve_server_tokens(&scope, 1);
        let time = self.next_server_token(&mut own).key.time;
        let submission = |total: QueueTotal| {
            let QueueTotal { counter, source, epoch, serial, total, positions: (first, last) } = total;
            let key = EventKey { time, id: EventId::total(source.as_str(), epoch, serial) };
            let provenance = Provenance::new(&format!("p={first}..{last}")).expect("two numbers are short");
            let event = Event { key, change: Change::Total(total), provenance };
            Submission { event: NewEvent { counter: scope.counter(counter), event }, server_made: true }
        };
        let submissions = totals.into_iter().map(submission).collect();
        Ok(self.submit(&scope, submissions, Some(own), Some(permits)).await)
    }

    /// Forgets counters of queues that no longer exist: their names and checkpoints. A counter that is not 0, or whose
    /// events are not all gone with their slices, stays as it is, and so does one that is written meanwhile. May be
    /// repeated. Cost: one read and one deletion of each counter.
    pub async fn forget_queue_counters(&self, names: Vec<CounterName>) -> Result<(), CountingError> {
        let scope = self.scope(&queue_namespace()).await?;
        let (rollups, dataset) = (&self.scopes.stores.rollups, &scope.dataset);
        let first_live =
            dataset.slices.rows().iter().find(|row| row.status != SliceStatus::Dropped).map(|row| row.start);
        let scope = &scope;
        let silent = |name: CounterName| async move {
            let counter = scope.counter(name);
            let RollupRow { checkpoint, last_write_time, .. } = rollups.read(dataset.id(), &counter).await?;
            let Some(checkpoint) = checkpoint.filter(|checkpoint| checkpoint.count == 0) else { return Ok(None) };
            let is_silent = first_live > last_write_time;
            let up_to = last_write_time.map_or(checkpoint.as_of, |last| last.max(checkpoint.as_of));
            Ok::<_, StoreError>(is_silent.then_some((counter, up_to)))
        };
        let silent = stream::iter(names).map(silent).buffered(CALL_READS_AT_ONCE_MAX);
        let silent: Vec<_> = silent.try_filter_map(|silent| ready(Ok(silent))).try_collect().await?;
        let counters: Vec<_> = silent.iter().map(|(counter, _)| counter.clone()).collect();
        rollups.forget_counters(dataset.id(), silent).await?;
        for counter in counters {
            scope.cache.delete(&counter).await;
        }
        Ok(())
    }

    /// The newest total of each source of the counters with a prefix, above a name: everything that was acknowledged
    /// before the call, on any server. Cost: one read of each counter and of its events since its last roll.
    pub async fn known_queue_totals(
        &self,
        prefix: &str,
        above: Option<&CounterName>,
    ) -> Result<KnownTotalsPage, CountingError> {
        let scope = self.scope(&queue_namespace()).await?;
        let rollups = &self.scopes.stores.rollups;
        let names = rollups.names(scope.namespace.id, prefix, above, KNOWN_TOTALS_PAGE_MAX).await?;
        let next_above = names.last().filter(|_| names.len() == KNOWN_TOTALS_PAGE_MAX).cloned();
        let (this, scope) = (self, &scope);
        let known = |counter: CounterName| async move {
            let sources = this.fold_whole_tail(scope, &scope.counter(counter.clone())).await?.sources;
            let sources = sources.into_iter().map(|(source, totals)| (source, totals.newest)).collect();
            Ok::<_, CountingError>(KnownTotals { counter, sources })
        };
        let counters = stream::iter(names).map(known).buffered(CALL_READS_AT_ONCE_MAX).try_collect().await?;
        Ok(KnownTotalsPage { counters, next_above })
    }
}
