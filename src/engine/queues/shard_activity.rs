//! The last reading of a shard, with those that its rates need.

use std::time::Duration;

use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};

use crate::domain::Timestamp;
use crate::domain::queue::MessageState;
use crate::domain::queue::activity::{ActivityFlows, FlowReadings};
use crate::domain::queue::tally::flows::Flow;
use crate::ports::ShardReport;

/// What is known of the totals of a shard.
#[derive(Default)]
pub struct ShardActivity(Mutex<Option<Box<ShardReading>>>);

/// The last reading of a shard.
pub struct ShardReading {
    /// Messages by state, in the order of `MessageState::ALL`.
    pub messages: [u64; MessageState::ALL.len()],
    /// When the reading began.
    pub began: Timestamp,
    /// The elapsed time of the reading.
    at: Duration,
    position: u64,
    flows: FlowReadings,
}

impl ShardReading {
    /// The rates of the shard, see `FlowReadings::rates`.
    pub fn rates(&self, elapsed: Duration) -> Option<ActivityFlows<f64>> {
        self.flows.rates(elapsed)
    }
}

impl ShardActivity {
    /// Takes a reading in. `times` are its elapsed time, and the time at which it began. One that began before the last one
    /// is dropped: two readers may overlap.
    pub fn record(&self, report: &ShardReport, (at, began): (Duration, Timestamp)) {
        let mut last = self.0.lock();
        let counts = &report.counts;
        let totals = ActivityFlows {
            enqueued: counts.flow(Flow::Enqueued),
            dequeued: counts.flow(Flow::Dequeued),
            completed: counts.flow(Flow::Completed),
            failed: counts.flow(Flow::Failed) + counts.flow(Flow::LeaseExpired),
        };
        let mut flows = match last.take() {
            Some(known) if known.began > began => {
                *last = Some(known);
                return;
            }
            Some(known) => known.flows,
            None => FlowReadings::default(),
        };
        flows.record(at, totals);
        let (messages, position) = (report.totals.messages(), report.position.position);
        *last = Some(Box::new(ShardReading { messages, began, at, position, flows }));
    }

    /// The last reading, if there is one. Held for a short time only.
    pub fn read(&self) -> Option<MappedMutexGuard<'_, ShardReading>> {
        MutexGuard::try_map(self.0.lock(), Option::as_deref_mut).ok()
    }

    /// Whether the reading is older than an age, or there is none.
    pub fn is_older(&self, elapsed: Duration, age: Duration) -> bool {
        self.0.lock().as_ref().is_none_or(|read| elapsed.saturating_sub(read.at) >= age)
    }

    /// The position of the last reading.
    pub fn position(&self) -> Option<u64> {
        self.0.lock().as_ref().map(|read| read.position)
    }
}
