//! The parts that carry the changes of queues to their counters and their history, and the mark by which both belong to
//! a queue store.

use std::sync::Arc;

use crate::bridge::pairing::StoreMark;
use crate::bridge::{Bridge, BridgeSettings, MarkWatch, ReportedTotals};
use crate::context::EngineContext;
use crate::counting::Counting;
use crate::historian::{CounterTotals, Historian, HistoryRetention};
use crate::queues::Queues;
use crate::report_right::ReportRight;
use tallystone_ports::{HistoryStore, QueueStores, RegisterCodec, StoreError};

/// The reports of this server.
#[derive(Clone)]
pub struct Reports {
    pub historian: Historian,
    pub right: Arc<ReportRight>,
    /// The mark beside the counters. Queues that end with the process leave none.
    pub mark: Option<StoreMark>,
}

/// How a server reports.
pub struct ReportPlan {
    pub settings: BridgeSettings,
    /// Whether the servers of the queues share the counters.
    pub counters_are_shared: bool,
    pub history: Arc<dyn HistoryStore>,
    pub registers: Arc<dyn RegisterCodec>,
}

impl Reports {
    /// Starts the relay of the history of queues, and the reports to their counters. Both rest while the mark is that
    /// of another queue store.
    pub async fn start(
        context: &Arc<EngineContext>,
        counting: &Counting,
        queues: &Queues,
        stores: QueueStores,
        plan: ReportPlan,
    ) -> Result<Self, StoreError> {
        let ReportPlan { settings, counters_are_shared, history, registers } = plan;
        let driver = &context.driver;
        let (right, mark) = pair(context, queues, &stores, &history).await?;
        let retention = settings.history_retention;
        driver.start(HistoryRetention::new(Arc::clone(context), Arc::clone(&history), retention, Arc::clone(&right)));
        let of_historian = (Arc::clone(context), Arc::clone(&right));
        let historian = Historian::start(queues.clone(), &stores, history, registers, of_historian);
        let totals: Arc<dyn CounterTotals> = Arc::new(ReportedTotals::new(counting.clone()));
        historian.compare_counters(totals);
        let bridge = Bridge::new(
            Arc::clone(context),
            counting.clone(),
            queues.clone(),
            stores.outbox,
            settings,
            counters_are_shared,
            Arc::clone(&right),
        );
        driver.start(bridge);
        Ok(Self { historian, right, mark })
    }
}

/// Finds out whether the counters belong to these queues, and goes on looking. Queues that end with the process pair
/// with counters that do so too. With durable counters a later process would find the mark of an earlier one, so such
/// queues leave none.
async fn pair(
    context: &Arc<EngineContext>,
    queues: &Queues,
    stores: &QueueStores,
    history: &Arc<dyn HistoryStore>,
) -> Result<(Arc<ReportRight>, Option<StoreMark>), StoreError> {
    let right = Arc::new(ReportRight::new(Arc::clone(&context.clock)));
    if stores.shards.durability().is_none() {
        right.hold_always();
        return Ok((right, None));
    }
    let mark = StoreMark::new(Arc::clone(history), queues.home());
    let watch = MarkWatch::start(Arc::clone(context), mark.clone(), Arc::clone(&right)).await?;
    context.driver.start(watch);
    Ok((right, Some(mark)))
}
