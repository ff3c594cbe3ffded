//! The last reading of a shard, with those that its rates need.

use std::time::Duration;

use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};

use tallystone_domain::Timestamp;
use tallystone_domain::queue::MessageState;
use tallystone_domain::queue::activity::{ActivityFlows, FlowReadings, ReadingGap};
use tallystone_domain::queue::tally::ShardCounts;
use tallystone_domain::queue::tally::flows::Flow;
use tallystone_domain::queue::transition::RowPosition;
use tallystone_ports::{ShardGlance, ShardReport};

/// When a reading was made: its elapsed time, and the time at which it began.
pub type ReadingTimes = (Duration, Timestamp);

/// The totals of a shard, as far as they are known.
#[derive(Default)]
pub struct ShardActivity(Mutex<KnownActivity>);

#[derive(Default)]
struct KnownActivity {
    last: Option<Box<ShardReading>>,
    /// The elapsed time at which the last look began.
    tried_at: Option<Duration>,
    /// The looks that began since one was answered.
    unanswered: u32,
    /// Whether the last answer was that the store has lost the shard.
    is_lost: bool,
}

/// The last reading of a shard.
pub struct ShardReading {
    /// Messages by state, in the order of `MessageState::ALL`.
    pub messages: [u64; MessageState::ALL.len()],
    /// The bytes of all payloads.
    pub bytes: u64,
    /// When the reading began.
    pub began: Timestamp,
    /// The elapsed time of the reading.
    at: Duration,
    position: RowPosition,
    flows: FlowReadings,
    gap: ReadingGap,
}

impl ShardReading {
    /// The rates of the shard, see `FlowReadings::rates`: of this moment where the shard is read when it changes, else
    /// of the reading.
    pub fn rates(&self, elapsed: Duration) -> Option<ActivityFlows<f64>> {
        self.flows.rates(match self.gap {
            ReadingGap::Quiet => elapsed,
            ReadingGap::Unknown => self.at,
        })
    }
}

fn flows_of(counts: &ShardCounts) -> ActivityFlows<u64> {
    ActivityFlows {
        enqueued: counts.flow(Flow::Enqueued),
        dequeued: counts.flow(Flow::Dequeued),
        completed: counts.flow(Flow::Completed),
        failed: counts.flow(Flow::Failed) + counts.flow(Flow::LeaseExpired),
    }
}

impl ShardActivity {
    /// Takes a report in. One that began before the last reading is dropped: two readers may overlap.
    pub fn record_report(&self, report: &ShardReport, times: ReadingTimes, gap: ReadingGap) {
        let stored = (report.totals.messages(), report.totals.all().bytes);
        self.record(report.position, stored, flows_of(&report.counts), times, gap);
    }

    /// Takes in what was read of a shard that other servers may change. One that began before the last reading is
    /// dropped.
    pub fn record_glance(&self, glance: &ShardGlance, times: ReadingTimes) {
        let stored = (glance.messages, glance.bytes);
        self.record(glance.position, stored, flows_of(&glance.counts), times, ReadingGap::Unknown);
    }

    fn record(
        &self,
        position: RowPosition,
        (messages, bytes): ([u64; MessageState::ALL.len()], u64),
        totals: ActivityFlows<u64>,
        (at, began): ReadingTimes,
        gap: ReadingGap,
    ) {
        let mut known = self.0.lock();
        (known.unanswered, known.is_lost) = (0, false);
        if known.last.as_ref().is_some_and(|last| last.began > began) {
            return;
        }
        let mut flows = known.last.take().map_or_else(FlowReadings::default, |last| last.flows);
        flows.record(at, totals, gap);
        known.last = Some(Box::new(ShardReading { messages, bytes, began, at, position, flows, gap }));
    }

    /// Notes that a look has found the shard as the last reading has it.
    pub fn confirm(&self, (at, began): ReadingTimes) {
        let mut known = self.0.lock();
        (known.unanswered, known.is_lost) = (0, false);
        if let Some(last) = known.last.as_mut().filter(|last| last.began <= began) {
            (last.at, last.began, last.gap) = (at, began, ReadingGap::Unknown);
            last.flows.confirm(at);
        }
    }

    /// Notes that the store has lost the shard. What was read before is forgotten: it would be taken for what is there.
    pub fn note_lost(&self) {
        let mut known = self.0.lock();
        (known.last, known.unanswered, known.is_lost) = (None, 0, true);
    }

    /// Notes that a look begins. Returns the position of the last reading.
    pub fn begin_read(&self, elapsed: Duration) -> Option<RowPosition> {
        let mut known = self.0.lock();
        (known.tried_at, known.unanswered) = (Some(elapsed), known.unanswered.saturating_add(1));
        known.last.as_ref().map(|last| last.position)
    }

    /// The last reading, if there is one. Held for a short time only.
    pub fn read(&self) -> Option<MappedMutexGuard<'_, ShardReading>> {
        MutexGuard::try_map(self.0.lock(), |known| known.last.as_deref_mut()).ok()
    }

    /// The elapsed time of the last reading, if there is one.
    pub fn read_at(&self) -> Option<Duration> {
        self.0.lock().last.as_ref().map(|last| last.at)
    }

    /// The elapsed time of the last reading or look, whether it was answered or not.
    pub fn looked_at(&self) -> Option<Duration> {
        let known = self.0.lock();
        known.tried_at.max(known.last.as_ref().map(|last| last.at))
    }

    /// Whether the store has lost the shard, by its last answer.
    pub fn is_lost(&self) -> bool {
        self.0.lock().is_lost
    }

    /// Whether looks fail: one began after another that was not answered.
    pub fn is_unanswered(&self) -> bool {
        self.0.lock().unanswered > 1
    }
}
