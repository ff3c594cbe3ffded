//! The loop that reports shards, takes queues over, and makes the counters of deleted queues zero. While the counters
//! belong to another queue store it rests, and forgets what it knew of them.

mod on_and_off;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use hashbrown::HashMap;

use crate::bridge::BridgeSettings;
use crate::bridge::dirty::{DirtyShards, WaitingShard};
use crate::bridge::known_totals::known_of;
use crate::bridge::orphan_cleanup::OrphanCleanup;
use crate::bridge::other_servers::OtherServers;
use crate::bridge::shard_state::{ReportScope, ReportedShard};
use crate::bridge::takeover;
use crate::context::EngineContext;
use crate::counting::{Counting, CountingError, QueueTotal, WriteOutcome};
use crate::driver::{BackgroundLoop, DrainStage, NextActivation};
use crate::queues::{Queues, ReportedQueue};
use crate::report_right::ReportRight;
use tallystone_domain::limits::{
    BRIDGE_BACKOFF_MAX, BRIDGE_READ_BACKS_MAX, BRIDGE_READS_AT_ONCE_MAX, BRIDGE_TAKEOVERS_AT_ONCE_MAX,
    QUEUE_TOTALS_AT_ONCE_MAX,
};
use tallystone_domain::queue::counter_names::CountedValue;
use tallystone_domain::queue::{QueueId, QueueName, ShardId};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{ShardOutbox, ShardReport, StoreError, StoreErrorKind, text_with_causes};

/// After this time without a report, the counters by attempt, time and error follow the others.
const SLOW_AFTER: Duration = Duration::from_secs(10);
/// The pause between two reads of what the counters know of a queue.
const READ_BACK_AFTER: Duration = Duration::from_secs(30);
/// The same for a queue whose values give way to others.
const EVICTION_PAUSE: Duration = Duration::from_secs(2);
/// The pause between two looks at whether this server may report, while it may not.
const REST: Duration = Duration::from_secs(1);

/// The reporter of the queues of this server.
pub struct Bridge {
    context: Arc<EngineContext>,
    counting: Counting,
    queues: Queues,
    outbox: Arc<dyn ShardOutbox>,
    settings: BridgeSettings,
    dirty: Arc<DirtyShards>,
    /// The queues that are reported, by their ids.
    tracked: HashMap<QueueId, TrackedQueue>,
    /// Names whose queue was deleted and whose counters are not zero yet.
    deleted: BTreeSet<QueueName>,
    /// The generation of the directory of queues at the last look.
    generation: Option<u64>,
    /// Whether every queue that was there at the start was taken over.
    has_started: bool,
    failures: u32,
    orphan_cleanup: OrphanCleanup,
    /// How many queues may be read back in this step.
    read_backs_left: usize,
    /// Whether the server stops: each report then has all counters, because none follows it.
    is_last: bool,
    /// The other servers that change the same shards.
    others: OtherServers,
    /// Whether this server may report.
    right: Arc<ReportRight>,
    /// Whether it reports, or has only paused.
    is_on: bool,
}

struct TrackedQueue {
    queue: ReportedQueue,
    /// The reported state of each shard; `None` until the queue is taken over.
    shards: Option<Vec<ReportedShard>>,
    /// When the counters by attempt, time and error are due, by elapsed time.
    slow_due: Option<Duration>,
    /// When the counters are read again, by elapsed time.
    read_back: Option<Duration>,
}

/// A queue that is taken over: the state of its shards, and the totals to write first.
type Takeover = (QueueId, Vec<ReportedShard>, Vec<QueueTotal>);

/// A report of a shard that is ready to be written.
struct ReadyReport {
    waiting: WaitingShard,
    report: ShardReport,
    totals: Vec<QueueTotal>,
    /// The shard after the totals are written.
    after: ReportedShard,
}

impl Bridge {
    /// A reporter. It reports nothing before its loop starts.
    pub fn new(
        context: Arc<EngineContext>,
        counting: Counting,
        queues: Queues,
        outbox: Arc<dyn ShardOutbox>,
        settings: BridgeSettings,
        counters_are_shared: bool,
        right: Arc<ReportRight>,
    ) -> Self {
        let dirty = Arc::new(DirtyShards::new(Arc::clone(&context.clock)));
        let is_on = right.holds();
        if is_on {
            context.queue_reports.start(&*context.clock);
        }
        queues.listen(Arc::clone(&dirty) as _);
        let (tracked, deleted) = (HashMap::new(), BTreeSet::new());
        let have_own_counters = queues.is_shared() && !counters_are_shared;
        let others = OtherServers::new(have_own_counters, queues.lost_servers(), context.clock.elapsed());
        Self {
            context,
            counting,
            queues,
            outbox,
            settings,
            dirty,
            tracked,
            deleted,
            generation: None,
            has_started: false,
            failures: 0,
            orphan_cleanup: OrphanCleanup::default(),
            read_backs_left: 0,
            is_last: false,
            others,
            right,
            is_on,
        }
    }

    /// One step: the queues that came and went, takeovers, then reports within the budget of the step.
    async fn step(&mut self, budget: usize) -> Result<(), CountingError> {
        let (now, begun) = (self.context.now(), self.context.clock.elapsed());
        self.read_backs_left = BRIDGE_READ_BACKS_MAX;
        self.follow_queues();
        self.show_waiting(self.dirty.len());
        self.zero_gone().await?;
        let waiting = self.dirty.take();
        let outcome = self.report(&waiting, budget).await;
        self.dirty.put_back(outcome.as_ref().unwrap_or(&waiting).iter().copied());
        self.show_waiting(self.dirty.len());
        self.publish(begun);
        // Shards change all the time on a busy server, so it is enough that none had to wait.
        if outcome?.is_empty() && self.has_started && self.orphan_cleanup.is_due(now) {
            let live = self.tracked.values().map(|tracked| tracked.queue.name.clone());
            self.deleted.extend(self.orphan_cleanup.look(&self.counting, live.collect(), now).await?);
        }
        Ok(())
    }

    /// Shows how many shards wait. A step that hangs leaves the number with which it began.
    fn show_waiting(&self, shards: usize) {
        self.context.stats.bridge.waiting_shards.set(i64::try_from(shards).unwrap_or(i64::MAX));
    }

    /// Says how far the queues are reported: up to the begin of the step, the oldest change that waits, or as far as
    /// the changes of other servers are known, by elapsed time.
    fn publish(&mut self, begun: Duration) {
        let begun = begun.min(self.others.known_to(self.queues.alone_at(), begun));
        self.has_started = self.has_started || self.tracked.values().all(|tracked| tracked.shards.is_some());
        let (reports, clock) = (&self.context.queue_reports, &*self.context.clock);
        match self.has_started {
            true => reports.set_elapsed(self.dirty.oldest().map_or(begun, |oldest| oldest.min(begun)), clock),
            false => reports.set(Some(Timestamp::MIN), clock),
        }
    }

    /// Notes the queues that came and went since the last look.
    fn follow_queues(&mut self) {
        let generation = self.queues.directory_generation();
        if self.generation == Some(generation) {
            return;
        }
        self.generation = Some(generation);
        let live = self.queues.reported();
        let now = self.context.clock.elapsed();
        let mut gone = std::mem::take(&mut self.tracked);
        for queue in live {
            self.deleted.remove(&queue.name);
            let tracked = gone.remove(&queue.id).unwrap_or_else(|| {
                self.dirty.put_back(waiting(&queue, now));
                TrackedQueue { queue: queue.clone(), shards: None, slow_due: None, read_back: None }
            });
            self.tracked.insert(queue.id, tracked);
        }
        let names: BTreeSet<&QueueName> = self.tracked.values().map(|tracked| &tracked.queue.name).collect();
        let gone = gone.into_values().map(|tracked| tracked.queue.name).filter(|name| !names.contains(name));
        self.deleted.extend(gone);
    }

    /// Reports 0 for all counters of deleted queues.
    async fn zero_gone(&mut self) -> Result<(), CountingError> {
        while let Some(name) = self.deleted.first().cloned() {
            let known = known_of(&self.counting, &name).await?;
            self.write(takeover::zeros(&name, 0, &known)).await?;
            self.deleted.remove(&name);
        }
        Ok(())
    }

    /// Writes totals, in as few appends as their bound allows. All or an error: a repeat changes nothing.
    async fn write(&self, totals: Vec<QueueTotal>) -> Result<(), CountingError> {
        let mut totals = totals.into_iter().peekable();
        while totals.peek().is_some() {
            self.still_holds().await?;
            let some: Vec<QueueTotal> = totals.by_ref().take(QUEUE_TOTALS_AT_ONCE_MAX).collect();
            for outcome in self.counting.report_queue_totals(some).await? {
                if outcome? == WriteOutcome::Applied {
                    self.context.stats.bridge.totals_reported.increment();
                }
            }
        }
        Ok(())
    }

    /// Reports shards within the budget, those that changed first. Returns the shards that have to wait. Comparisons
    /// yield after the time of a step, so that a busy queue does not wait for the comparisons of all idle ones after a
    /// start. Some are made in every step, so that they come to an end under any load.
    async fn report(&mut self, waiting: &[WaitingShard], budget: usize) -> Result<Vec<WaitingShard>, CountingError> {
        let begun = self.context.clock.elapsed();
        let (mut changed, mut compared) = waiting.split_at(waiting.partition_point(|waiting| waiting.is_changed));
        let mut spent = 0;
        while !changed.is_empty() && spent < budget {
            spent += self.report_next(&mut changed).await?;
        }
        while !compared.is_empty() {
            spent += self.report_next(&mut compared).await?;
            // The reads were answered, so the store has sent the first status of every shard.
            self.dirty.begin();
            let is_over = self.context.clock.elapsed().saturating_sub(begun) >= self.settings.step;
            if spent >= budget || (is_over && !self.is_last && self.dirty.has_changed()) {
                break;
            }
        }
        Ok([changed, compared].concat())
    }

    /// Reports the next shards of a list, and takes them from it. Returns the number of totals.
    async fn report_next(&mut self, list: &mut &[WaitingShard]) -> Result<usize, CountingError> {
        let (some, rest) = list.split_at(list.len().min(BRIDGE_READS_AT_ONCE_MAX));
        let count = self.report_some(some).await?;
        *list = rest;
        Ok(count)
    }

    /// Reports some shards in one append. Returns the number of totals.
    async fn report_some(&mut self, shards: &[WaitingShard]) -> Result<usize, CountingError> {
        let due: BTreeSet<QueueId> = shards.iter().map(|waiting| waiting.shard.queue).collect();
        let mut count = self.take_over_due(due).await?;
        let reports = stream::iter(shards.iter().copied()).map(|waiting| self.read(waiting));
        let reports: Vec<_> = reports.buffered(BRIDGE_READS_AT_ONCE_MAX).collect().await;
        let reports = reports.into_iter().filter_map(Result::transpose).collect::<Result<Vec<_>, _>>()?;
        let totals: Vec<QueueTotal> = reports.iter().flat_map(|ready| ready.totals.iter().cloned()).collect();
        count += totals.len();
        if let Err(error) = self.write(totals).await {
            reports.iter().for_each(|ready| self.mark_uncertain(ready));
            return Err(error);
        }
        reports.into_iter().for_each(|ready| self.record(ready));
        Ok(count)
    }

    /// Reads a shard and finds what changed. `None` for a shard whose queue is gone.
    async fn read(&self, waiting: WaitingShard) -> Result<Option<ReadyReport>, CountingError> {
        let shard = waiting.shard;
        let Some(tracked) = self.tracked.get(&shard.queue) else { return Ok(None) };
        let Some(reported) = tracked.shards.as_ref().and_then(|shards| shards.get(shard.number as usize)) else {
            return Ok(None);
        };
        let is_slow_due = tracked.slow_due.is_some_and(|due| due <= self.context.clock.elapsed());
        let scope = if is_slow_due || self.is_last { ReportScope::All } else { ReportScope::Fast };
        let Some(report) = self.read_report(shard, Some(reported.since(scope))).await? else { return Ok(None) };
        let (after, totals) = reported.next(&tracked.queue.name, &report, scope);
        Ok(Some(ReadyReport { waiting, report, totals, after }))
    }

    async fn read_report(&self, shard: ShardId, since: Option<u64>) -> Result<Option<ShardReport>, CountingError> {
        let began = self.context.now();
        match self.outbox.report(shard, since).await {
            Ok(report) => {
                self.queues.inspect.record_report(shard, &report, began);
                Ok(Some(report))
            }
            // The queue was dropped; the directory will say so.
            Err(StoreError { kind: StoreErrorKind::Conflict, .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Notes that a report may be written although its write failed.
    fn mark_uncertain(&mut self, ready: &ReadyReport) {
        let shard = ready.waiting.shard;
        let shards = self.tracked.get_mut(&shard.queue).and_then(|tracked| tracked.shards.as_mut());
        if let Some(reported) = shards.and_then(|shards| shards.get_mut(shard.number as usize)) {
            reported.mark_uncertain(&ready.after);
        }
    }

    /// Records a written report, and when the queue has to be looked at again.
    fn record(&mut self, ready: ReadyReport) {
        let elapsed = self.context.clock.elapsed();
        let shard = ready.waiting.shard;
        let Some(tracked) = self.tracked.get_mut(&shard.queue) else { return };
        let Some(reported) = tracked.shards.as_mut().and_then(|shards| shards.get_mut(shard.number as usize)) else {
            return;
        };
        if reported.is_behind(&ready.report) {
            tracked.shards = None; // the store went back: take the queue over again
            self.dirty.put_back([ready.waiting]);
            return;
        }
        *reported = ready.after;
        if tracked.shards.iter().flatten().any(ReportedShard::is_slow_behind) {
            tracked.slow_due.get_or_insert(elapsed + SLOW_AFTER);
        } else {
            tracked.slow_due = None;
        }
        self.context.stats.bridge.reports.increment();
        if ready.totals.is_empty() {
            return; // an idle queue is not read back again
        }
        let is_evicted = ready.report.values.iter().any(|(_, value, _)| *value == CountedValue::Gone);
        let pause = if is_evicted { EVICTION_PAUSE } else { READ_BACK_AFTER };
        let due = tracked.read_back.get_or_insert(elapsed + pause);
        *due = (*due).min(elapsed + pause);
    }

    /// Takes the queues over that were not yet, or whose counters are to be read again. Returns the number of totals.
    async fn take_over_due(&mut self, queues: BTreeSet<QueueId>) -> Result<usize, CountingError> {
        let due: Vec<ReportedQueue> = queues.into_iter().filter_map(|queue| self.due_takeover(queue)).collect();
        let this = &*self;
        let takeovers = stream::iter(due).map(|queue| this.differences(queue)).buffered(BRIDGE_TAKEOVERS_AT_ONCE_MAX);
        let takeovers: Vec<_> = takeovers.collect::<Vec<_>>().await.into_iter().collect::<Result<_, _>>()?;
        let (mut count, mut totals, mut taken) = (0, Vec::new(), Vec::new());
        for (queue, shards, differs) in takeovers.into_iter().flatten() {
            count += differs.len();
            totals.extend(differs);
            taken.push((queue, shards));
        }
        self.write(totals).await?;
        for (queue, shards) in taken {
            self.context.stats.bridge.takeovers.increment();
            if let Some(tracked) = self.tracked.get_mut(&queue) {
                (tracked.shards, tracked.slow_due, tracked.read_back) = (Some(shards), None, None);
            }
        }
        Ok(count)
    }

    fn due_takeover(&mut self, queue: QueueId) -> Option<ReportedQueue> {
        let elapsed = self.context.clock.elapsed();
        let tracked = self.tracked.get(&queue)?;
        if tracked.shards.is_some() {
            if self.read_backs_left == 0 || tracked.read_back.is_none_or(|due| due > elapsed) {
                return None;
            }
            self.read_backs_left -= 1;
        }
        Some(tracked.queue.clone())
    }

    /// Returns the totals that the counters of a queue lack, with the state of its shards after these totals are
    /// written. `None` if the queue is gone.
    async fn differences(&self, queue: ReportedQueue) -> Result<Option<Takeover>, CountingError> {
        let known = known_of(&self.counting, &queue.name).await?;
        let mut totals = takeover::zeros(&queue.name, queue.shards, &known);
        let mut shards = Vec::with_capacity(queue.shards as usize);
        for number in 0..queue.shards {
            // Read after the counters: a position below a known serial is a store that went back.
            let shard = ShardId { queue: queue.id, number };
            let Some(report) = self.read_report(shard, None).await? else { return Ok(None) };
            let (epoch, differs) = takeover::differences(&queue.name, number, queue.created_micros, &known, &report);
            totals.extend(differs);
            shards.push(ReportedShard::at(number, epoch, &report));
        }
        Ok(Some((queue.id, shards, totals)))
    }

    /// The queues whose other counters are due although nothing changed since, as dirty shards.
    fn wake_due(&self) {
        let elapsed = self.context.clock.elapsed();
        let is_due = |due: Option<Duration>| due.is_some_and(|due| due <= elapsed);
        let due = self.tracked.iter().filter(|(_, tracked)| is_due(tracked.slow_due) || is_due(tracked.read_back));
        for (_, tracked) in due {
            self.dirty.put_back(waiting(&tracked.queue, elapsed));
        }
    }

    /// Adds all shards for a comparison when changes of other servers may not have reached these counters: a server was
    /// lost before it reported its last ones, or the others report to counters of their own.
    fn follow_others(&mut self) {
        let (elapsed, shards) = (self.context.clock.elapsed(), self.shards());
        if !self.others.are_to_be_followed(self.queues.lost_servers(), shards, elapsed) {
            return;
        }
        for tracked in self.tracked.values() {
            self.dirty.put_back(waiting(&tracked.queue, elapsed));
        }
    }

    /// The shards of all queues. O(queues).
    fn shards(&self) -> u32 {
        self.tracked.values().map(|tracked| tracked.queue.shards).sum()
    }

    fn budget(&self) -> usize {
        let per_step = self.settings.step.as_secs_f64() * f64::from(self.settings.totals_per_second);
        (per_step as usize).max(1)
    }
}

/// All shards of a queue, for a look at them.
fn waiting(queue: &ReportedQueue, since: Duration) -> impl Iterator<Item = WaitingShard> + use<> {
    let id = queue.id;
    let shard = move |number| ShardId { queue: id, number };
    (0..queue.shards).map(move |number| WaitingShard { shard: shard(number), since, is_changed: false })
}

#[async_trait]
impl BackgroundLoop for Bridge {
    fn name(&self) -> &'static str {
        "queue reports"
    }

    async fn woken(&self) {
        match self.right.is_elsewhere() {
            true => std::future::pending().await,
            false => self.right.sure().await,
        }
    }

    async fn activate(&mut self) -> NextActivation {
        if !self.may_report() {
            return NextActivation::AfterOrWoken(REST);
        }
        self.wake_due();
        self.follow_others();
        match self.step(self.budget()).await {
            Ok(()) => self.failures = 0,
            Err(error) => {
                self.failures += 1;
                self.context.stats.bridge.failures.increment();
                let pause = (self.settings.step * 2_u32.pow(self.failures.min(10))).min(BRIDGE_BACKOFF_MAX);
                let error = text_with_causes(&error);
                tracing::warn!(%error, pause_ms = pause.as_millis(), "cannot report queues to their counters; trying again");
                return NextActivation::After(pause);
            }
        }
        NextActivation::After(self.settings.step)
    }

    fn stage(&self) -> DrainStage {
        DrainStage::Reports
    }

    /// Reports everything that changed, so that the last rolls find it.
    async fn finish(&mut self, until: Duration) {
        if !self.may_report() {
            return;
        }
        let elapsed = self.context.clock.elapsed();
        self.is_last = true;
        for tracked in self.tracked.values_mut() {
            tracked.slow_due = tracked.slow_due.map(|_| elapsed);
        }
        self.wake_due();
        let (clock, left) = (Arc::clone(&self.context.clock), until.saturating_sub(elapsed));
        let last = self.step(usize::MAX);
        tokio::select! {
            biased;
            outcome = last => if let Err(error) = outcome {
                tracing::warn!(%error, "some changes of queues are not reported; the next start reports them");
            },
            () = clock.sleep(left) => {
                tracing::warn!("some changes of queues are not reported in time; the next start reports them");
            }
        }
    }
}
