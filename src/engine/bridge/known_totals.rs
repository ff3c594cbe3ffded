//! The totals of a queue that the counters know.

use std::collections::BTreeMap;

use async_trait::async_trait;

use crate::bridge::takeover::KnownBySource;
use crate::bridge::totals::all_totals;
use crate::counting::{Counting, CountingError};
use crate::historian::{CounterTotals, TotalsByCounter, TotalsBySource};
use crate::queues::QueueError;
use tallystone_domain::queue::{QueueName, counter_names};
use tallystone_domain::rollup::SourceTotal;
use tallystone_domain::{Reason, Reject};
use tallystone_ports::ShardReport;

/// Reads what the counters know of a queue. Cost: a read of each of its counters.
pub async fn known_of(counting: &Counting, queue: &QueueName) -> Result<KnownBySource, CountingError> {
    let prefix = counter_names::prefix_of(queue);
    let (mut known, mut above) = (KnownBySource::new(), None);
    loop {
        let page = counting.known_queue_totals(&prefix, above.as_ref()).await?;
        for counter in page.counters {
            let Some((_, name)) = counter_names::queue_of(counter.counter.as_str()) else { continue };
            for (source, total) in counter.sources {
                known.entry(source).or_default().insert(name.to_owned(), total);
            }
        }
        match page.next_above {
            Some(next) => above = Some(next),
            None => return Ok(known),
        }
    }
}

/// The totals of queues in the log of their counters, for the check that compares them with the shards.
pub struct ReportedTotals {
    counting: Counting,
}

impl ReportedTotals {
    pub fn new(counting: Counting) -> Self {
        Self { counting }
    }
}

#[async_trait]
impl CounterTotals for ReportedTotals {
    async fn known(&self, queue: &QueueName) -> Result<TotalsBySource, QueueError> {
        let known = known_of(&self.counting, queue).await.map_err(|error| {
            let what = format!("the counters of queue {queue} cannot be read: {error}");
            QueueError::from(Reject::new(Reason::StoreUnavailable, what))
        })?;
        let only_totals = |totals: BTreeMap<_, SourceTotal>| {
            totals.into_iter().map(|(counter, known)| (counter, known.total)).collect()
        };
        Ok(known.into_iter().map(|(source, totals)| (source.into(), only_totals(totals))).collect())
    }

    fn stated(&self, report: &ShardReport) -> TotalsByCounter {
        all_totals(report)
    }
}
