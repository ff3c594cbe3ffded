//! The history of messages as it is written, and the audit of queues.
//!
//! The relay carries rows from the outboxes of shards into the history and compares them with the counts of the shards.
//! A check compares more, on request. `step` is the relay's work on one shard, `waiting` the shards that have rows.

mod check;
mod check_counters;
mod check_versions;
mod findings;
mod relay;
mod retention;
mod step;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::context::EngineContext;
use crate::historian::relay::Relay;
use crate::historian::step::StepSources;
use crate::historian::waiting::WaitingShards;
use crate::queues::Queues;
use crate::report_right::ReportRight;
use tallystone_ports::{
    HistoryStore, HistoryUsage, OutboxUsage, QueueListener, QueueStores, RegisterCodec, ShardReader,
};

pub use check_counters::{CounterTotals, TotalsByCounter, TotalsBySource};
pub use retention::HistoryRetention;

/// Writes the history of queues, and checks it. Cheap to clone.
#[derive(Clone)]
pub struct Historian {
    context: Arc<HistorianContext>,
}

/// Shared by the relay and the checks.
struct HistorianContext {
    engine: Arc<EngineContext>,
    sources: StepSources,
    reader: Arc<dyn ShardReader>,
    waiting: Arc<WaitingShards>,
    /// The totals of queues as the counters know them; none where queues report to no counters.
    counters: Mutex<Option<Arc<dyn CounterTotals>>>,
    /// Whether the history is that of these queues now.
    right: Arc<ReportRight>,
}

/// The history at one moment, for metrics.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct HistorianGauges {
    pub outbox: OutboxUsage,
    pub history: HistoryUsage,
    /// The age of the oldest row that is not in the history.
    pub lag: Duration,
}

impl Historian {
    /// Starts the relay, with the right to write.
    pub(super) fn start(
        queues: Queues,
        stores: &QueueStores,
        history: Arc<dyn HistoryStore>,
        registers: Arc<dyn RegisterCodec>,
        (engine, right): (Arc<EngineContext>, Arc<ReportRight>),
    ) -> Self {
        let clock = Arc::clone(&engine.clock);
        let waiting = Arc::new(WaitingShards::new(queues.clone(), Arc::clone(&clock)));
        let (outbox, reader) = (Arc::clone(&stores.outbox), Arc::clone(&stores.reader));
        let sources = StepSources { queues, outbox, history, registers, clock };
        let context =
            Arc::new(HistorianContext { engine, sources, reader, waiting, counters: Mutex::default(), right });
        stores.shards.listen(Arc::clone(&context.waiting) as Arc<dyn QueueListener>);
        context.engine.driver.start(Relay::new(Arc::clone(&context)));
        Self { context }
    }

    /// Makes full checks compare these counters with the shards.
    pub fn compare_counters(&self, totals: Arc<dyn CounterTotals>) {
        *self.context.counters.lock() = Some(totals);
    }

    /// Whether the history belongs to another queue store, so that nothing is written to it or compared with it.
    pub fn is_of_another_store(&self) -> bool {
        self.context.right.is_elsewhere()
    }

    /// The history at this moment. O(waiting shards).
    pub fn gauges(&self) -> HistorianGauges {
        let sources = &self.context.sources;
        let (outbox, history) = (sources.outbox.outbox_usage(), sources.history.usage());
        HistorianGauges { outbox, history, lag: self.context.waiting.lag() }
    }
}
