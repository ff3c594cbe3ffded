//! The counters of deleted queues: found by a slow scan, made zero if a crash left them, and removed after a day.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::counting::{Counting, CountingError, KnownTotals};
use tallystone_domain::counter::CounterName;
use tallystone_domain::queue::QueueName;
use tallystone_domain::queue::counter_names;
use tallystone_domain::time::Timestamp;

/// The pause between two scans of all counters of queues.
const SCAN_EVERY: Duration = Duration::from_secs(3_600);

/// A scan over all counters of queues, a page at a time.
#[derive(Default)]
pub struct OrphanCleanup {
    /// The name above which the next page begins; `None` at the beginning.
    above: Option<CounterName>,
    /// When the last scan ended, by the clock of the counters.
    ended_at: Option<Timestamp>,
}

impl OrphanCleanup {
    /// Whether there is a page to look at: a scan is under way, or it is time for the next one.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.ended_at.is_none_or(|ended| now.since(ended) >= SCAN_EVERY)
    }

    /// Looks at the next page. Returns the queues whose counters are not zero although they are not live. Counters of
    /// deleted queues that are zero and silent are removed.
    pub async fn look(
        &mut self,
        counting: &Counting,
        live: BTreeSet<QueueName>,
        now: Timestamp,
    ) -> Result<BTreeSet<QueueName>, CountingError> {
        self.ended_at = None;
        let page = counting.known_queue_totals("", self.above.as_ref()).await?;
        let is_zero = |known: &KnownTotals| known.sources.values().all(|total| total.total == 0);
        let (mut gone, mut silent) = (BTreeSet::new(), Vec::new());
        for known in page.counters {
            let queue =
                counter_names::queue_of(known.counter.as_str()).and_then(|(queue, _)| QueueName::new(queue).ok());
            match queue.filter(|queue| !live.contains(queue)) {
                Some(queue) if !is_zero(&known) => drop(gone.insert(queue)),
                Some(_) => silent.push(known.counter),
                None => {}
            }
        }
        counting.forget_queue_counters(silent).await?;
        self.ended_at = page.next_above.is_none().then_some(now);
        self.above = page.next_above;
        Ok(gone)
    }
}
