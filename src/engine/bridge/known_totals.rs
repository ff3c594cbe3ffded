//! What the counters know of a queue, for the check that compares it with the shards.

use async_trait::async_trait;

use crate::domain::queue::{QueueName, counter_names};
use crate::domain::{Reason, Reject};
use crate::engine::bridge::totals::all_totals;
use crate::engine::counting::Counting;
use crate::engine::historian::{CounterTotals, KnownCounterTotal};
use crate::engine::queues::QueueError;
use crate::ports::ShardReport;

/// The totals of queues in the log of their counters.
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
    async fn known(&self, queue: &QueueName) -> Result<Vec<KnownCounterTotal>, QueueError> {
        let prefix = counter_names::prefix_of(queue);
        let (mut known, mut above) = (Vec::new(), None);
        loop {
            let page = self.counting.known_queue_totals(&prefix, above.as_ref()).await;
            let page = page.map_err(|error| {
                let what = format!("the counters of queue {queue} cannot be read: {error}");
                QueueError::from(Reject::new(Reason::StoreUnavailable, what))
            })?;
            for counter in page.counters {
                let Some((_, name)) = counter_names::queue_of(counter.counter.as_str()) else { continue };
                known.extend(counter.sources.into_iter().map(|(source, total)| KnownCounterTotal {
                    counter: name.to_owned(),
                    source: source.into(),
                    total: total.total,
                }));
            }
            match page.next_above {
                Some(next) => above = Some(next),
                None => return Ok(known),
            }
        }
    }

    fn stated(&self, report: &ShardReport) -> Vec<(String, i64)> {
        all_totals(report).into_iter().collect()
    }
}
