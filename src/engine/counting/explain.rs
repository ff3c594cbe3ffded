//! ExplainCounter: the parts of a count, their `as_of`, the pending work and the server that rolled it up.

use std::sync::Arc;
use std::time::Duration;

use crate::counting::wait_budget::WaitBudget;
use crate::counting::{Counting, CountingError, is_best_effort};
use crate::fleet::SignalRoute;
use crate::rollup_queues::queue::PendingRoll;
use crate::scopes::NamespaceScope;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Change, Counter, CounterName, Event, NamespaceName};
use tallystone_domain::limits::{EXPLAIN_BUCKETS_MAX, STEP};
use tallystone_domain::namespace::{CounterType, Temporality};
use tallystone_domain::rollup::checkpoint::is_ttl_expired;
use tallystone_domain::rollup::{Checkpoint, CheckpointWriter, CountReading, Freshness, ReadOptions, SliceStatus};
use tallystone_ports::{ScanOrder, ScanRange, StoreError};

/// A counter and the parts of its count.
#[derive(Clone, Debug)]
pub struct CounterExplanation {
    /// The guarantee of counts in the namespace.
    pub counter_type: CounterType,
    /// The kind of reports that the namespace takes: deltas or totals.
    pub temporality: Temporality,
    /// A counter without writes for longer than this counts from 0 again; none: never.
    pub ttl: Option<Duration>,
    /// The rolled-up count; for a best-effort counter, its only number.
    pub reading: CountReading,
    /// The cluster that stores a best-effort counter; none: the memory of this server.
    pub kept_in: Option<NamespaceName>,
    /// The parts; none for best-effort counters, which have no log.
    pub parts: Option<CountParts>,
}

/// The parts of a durable count, read one after the other.
#[derive(Clone, Debug)]
pub struct CountParts {
    /// The count with every event that was acknowledged before the call, not clamped.
    pub count: i128,
    pub rolled_up: RolledUpPart,
    /// The log above the rolled-up part.
    pub tail: TailPart,
    /// The newest restart of the count from 0.
    pub restart: CountRestart,
    /// No acknowledged event at or below it can still appear.
    pub limit: Timestamp,
    /// Every counter of the touch shard is rolled up to here.
    pub watermark: Timestamp,
    /// The work that is not rolled up yet.
    pub waiting: PendingPart,
    /// The newest rows of the log, newest first.
    pub rows: Vec<LogRow>,
    /// The number of rows of the log that are not shown, without tombstones.
    pub rows_left_out: u64,
    /// Whether `rows_left_out` is a lower bound: not all bucket records were read, or some rows are totals, which
    /// records do not count.
    pub rows_left_out_at_least: bool,
}

#[derive(Clone, Debug)]
pub struct RolledUpPart {
    /// The checkpoint; none if the counter was never rolled up.
    pub checkpoint: Option<Checkpoint>,
    /// Every acknowledged event up to here is in the checkpoint. The watermark may make this later than the
    /// checkpoint itself.
    pub to: Timestamp,
    /// The share of the checkpoint's count that still counts: all of it, or 0 after a restart.
    pub counts: i128,
    /// The last roll of the counter; none if it is not known.
    pub rolled: Option<LastRoll>,
}

/// The roll that wrote a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LastRoll {
    /// Its time, by the clock of the server that rolled.
    pub at: Timestamp,
    /// The name of that server; none for an earlier process that had the store for itself.
    pub server: Option<Arc<str>>,
    /// Whether this server rolled.
    pub is_this: bool,
}

/// The part of the log above the checkpoint.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct TailPart {
    /// The number of rows.
    pub rows: u64,
    /// The number of adds.
    pub adds: u64,
    /// The sum of all adds, also of those before a clear.
    pub sum: i128,
    /// The number of clears.
    pub clears: u64,
    /// The number of totals.
    pub totals: u64,
    /// The number of tombstones, which count nothing.
    pub voids: u64,
    /// The time of the first row.
    pub first: Option<Timestamp>,
    /// The time of the last row.
    pub last: Option<Timestamp>,
    /// The amount that the tail adds to `RolledUpPart::counts`.
    pub counts: i128,
}

/// The newest restart of a count from 0, after the checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CountRestart {
    /// No restart: both parts count.
    None,
    /// A clear in the tail, at this time.
    Clear(Timestamp),
    /// A silence longer than the TTL. The event of this time ended it.
    Silence(Timestamp),
    /// A silence longer than the TTL that still lasts. The event of this time was the last.
    Silent(Timestamp),
}

/// The work of a counter that is not rolled up yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PendingPart {
    /// The pending roll that signals to this server left; none if none is pending.
    pub signalled: Option<PendingRoll>,
    /// The number of tail rows at or below the limit; the next roll takes them in.
    pub rows_ready: u64,
    /// The number of tail rows above the limit; they wait until the limit has passed them.
    pub rows_above_limit: u64,
    /// The number of ten-second steps in which the dirty-counter index lists the counter and that are not rolled up.
    pub touched_steps: u64,
    /// The first of these steps.
    pub first_touched_step: Option<Timestamp>,
    /// The number of in-flight writes of this server to the dataset; they hold the limit back.
    pub held_writes: usize,
    /// The server that rolls the counter up.
    pub roller: RollerLocation,
}

/// The server that rolls a counter up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RollerLocation {
    /// This server.
    Here,
    /// The server at this address.
    At(Arc<str>),
    /// No server that this one knows of.
    Unknown,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogRow {
    pub event: Event,
    /// The start of its time bucket.
    pub bucket: Timestamp,
    /// How far it is processed.
    pub stage: RowStage,
}

/// How far a row is processed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowStage {
    /// It is in the checkpoint.
    RolledUp,
    /// It lies at or below the limit, and the next roll takes it in.
    Ready,
    /// It lies above the limit and waits for it.
    AboveLimit,
}

/// Collects the facts about the tail while it is folded.
struct TailNotes<'a> {
    scope: &'a NamespaceScope,
    limit: Timestamp,
    tail: TailPart,
    restart: CountRestart,
    last_mutation: Option<Timestamp>,
    rows_above_limit: u64,
    last_step: Option<Timestamp>,
    steps: u64,
    first_step: Option<Timestamp>,
}

impl Counting {
    /// Explains a counter. A bounded number of recounts and explanations run at once; more wait. Cost: O(events that
    /// are not rolled up), a page at a time, and the rows and bucket records that are read.
    pub async fn explain(
        &self,
        namespace: &NamespaceName,
        name: CounterName,
        rows_max: usize,
    ) -> Result<CounterExplanation, CountingError> {
        let scope = self.scope(namespace).await?;
        let counter = scope.counter(name);
        let spec = &scope.namespace.spec;
        let mut explanation = CounterExplanation {
            counter_type: spec.counter_type,
            temporality: spec.temporality,
            ttl: spec.ttl,
            reading: self.fast_reading(None),
            kept_in: None,
            parts: None,
        };
        if is_best_effort(&scope) {
            let cluster = &spec.storage.cache_cluster;
            explanation.reading = self.fast_reading(scope.best_effort_counts.get(&counter).await?);
            explanation.kept_in = self.scopes.stores.caches.contains_key(cluster).then(|| cluster.clone());
            return Ok(explanation);
        }
        let _turn = self.recounts.acquire().await.map_err(|_closed| CountingError::ShuttingDown)?;
        explanation.parts = Some(self.parts(&scope, &counter, rows_max).await?);
        // Read last: a read signals the rollup, which would change the parts that are explained.
        let rolled_up = ReadOptions { freshness: Freshness::RolledUp, ..ReadOptions::default() };
        let reading = self.read(&scope, &counter, rolled_up, WaitBudget::begin(self.context.clock.as_ref())).await?;
        explanation.reading = self.shown_to_callers(reading);
        Ok(explanation)
    }

    async fn parts(
        &self,
        scope: &Arc<NamespaceScope>,
        counter: &Counter,
        rows_max: usize,
    ) -> Result<CountParts, StoreError> {
        // Read before the log, so that a roll in between is missing from neither.
        let signalled = scope.rollup_queues.waiting(counter);
        let held_writes = scope.dataset.closing.hold_count();
        let limit = self.limit_for_read(scope, WaitBudget::begin(self.context.clock.as_ref())).await;
        let (scope, row, start) = self.tail_start(scope, counter).await?;
        let scope = scope.as_ref();
        let mut notes = TailNotes::new(scope, limit, &start.base);
        let rolled_to = start.base.as_of;
        let before = start.base.count;
        let whole = (Timestamp::MAX, usize::MAX);
        let folded = self.roller.fold_pages_noting(scope, counter, start, whole, |event| notes.take(event)).await?;
        let newest = folded.newest.unwrap_or(rolled_to);
        let after = folded.folder.finish(newest).checkpoint;
        let last_write = row.last_write_time.max(after.last_event_time);
        let silent = last_write.filter(|last| is_ttl_expired(Some(*last), limit, scope.ttl_at(limit)));
        if let Some(last) = silent {
            notes.restart = CountRestart::Silent(last);
        }
        let count = if silent.is_some() { 0 } else { after.count };
        let counts = if notes.restart == CountRestart::None { before } else { 0 };
        let tail = TailPart { counts: count - counts, ..notes.tail };
        let waiting = PendingPart {
            signalled,
            rows_ready: tail.rows - notes.rows_above_limit,
            rows_above_limit: notes.rows_above_limit,
            touched_steps: notes.steps,
            first_touched_step: notes.first_step,
            held_writes,
            roller: self.rolled_where(counter),
        };
        let rows = self.newest_rows(scope, counter, newest, (rolled_to, limit), rows_max).await?;
        let (rows_left_out, rows_left_out_at_least) =
            self.left_out(scope, counter, row.checkpoint.as_ref(), (&tail, &rows)).await?;
        let rolled = row.checkpoint.as_ref().and_then(|checkpoint| checkpoint.writer.as_ref());
        let rolled = rolled.map(|rolled| self.roller_of(rolled));
        Ok(CountParts {
            count,
            rolled_up: RolledUpPart { checkpoint: row.checkpoint, to: rolled_to, counts, rolled },
            tail,
            restart: notes.restart,
            limit,
            watermark: scope.dataset.watermark(counter.touch_shard()),
            waiting,
            rows,
            rows_left_out,
            rows_left_out_at_least,
        })
    }

    fn rolled_where(&self, counter: &Counter) -> RollerLocation {
        match self.scopes.fleet.as_ref().map(|fleet| fleet.membership.route(counter.touch_shard())) {
            None | Some(SignalRoute::Here) => RollerLocation::Here,
            Some(SignalRoute::There(address)) => RollerLocation::At(address),
            Some(SignalRoute::Nowhere) => RollerLocation::Unknown,
        }
    }

    fn roller_of(&self, writer: &CheckpointWriter) -> LastRoll {
        let own = self.name.as_ref();
        match &writer.server {
            Some(server) => LastRoll { at: writer.at, server: Some(Arc::clone(server)), is_this: own == Some(server) },
            // Without a fleet the store belongs to this process alone, from its start on.
            None if self.scopes.fleet.is_none() && writer.at >= self.started_at => {
                LastRoll { at: writer.at, server: own.cloned(), is_this: true }
            }
            None => LastRoll { at: writer.at, server: None, is_this: false },
        }
    }

    /// The newest rows up to a time, that of the newest folded row.
    async fn newest_rows(
        &self,
        scope: &NamespaceScope,
        counter: &Counter,
        to: Timestamp,
        (rolled_to, limit): (Timestamp, Timestamp),
        rows_max: usize,
    ) -> Result<Vec<LogRow>, StoreError> {
        let (after, order) = (Timestamp::MIN, ScanOrder::NewestFirst);
        let range = ScanRange { after, to, order, beyond: None, limit: rows_max };
        let events = self.scopes.stores.log.scan(scope.dataset.id(), counter, range).await?;
        let stage = |time: Timestamp| match () {
            () if time <= rolled_to => RowStage::RolledUp,
            () if time <= limit => RowStage::Ready,
            () => RowStage::AboveLimit,
        };
        let row = |event: Event| {
            let time = event.key.time;
            LogRow { bucket: time.floor_to(scope.rules.at(time).bucket), stage: stage(time), event }
        };
        Ok(events.into_iter().map(row).collect())
    }

    /// The number of rows of the log that are not shown, without tombstones, and whether there may be more. The
    /// records of the newest time buckets count the rolled-up rows; the tail counts the rest.
    async fn left_out(
        &self,
        scope: &NamespaceScope,
        counter: &Counter,
        checkpoint: Option<&Checkpoint>,
        (tail, shown): (&TailPart, &[LogRow]),
    ) -> Result<(u64, bool), StoreError> {
        let counted = |row: &&LogRow| row.event.change != Change::Void;
        let shown = shown.iter().filter(counted).count() as u64;
        let Some(checkpoint) = checkpoint else { return Ok(((tail.rows - tail.voids).saturating_sub(shown), false)) };
        let width = scope.rules.at(checkpoint.as_of).bucket;
        let rows = scope.dataset.slices.rows();
        let oldest = rows.iter().find(|row| row.status != SliceStatus::Dropped).map_or(Timestamp::MIN, |row| row.start);
        let from = (checkpoint.as_of - width * EXPLAIN_BUCKETS_MAX).max(oldest);
        let to = checkpoint.as_of.just_after();
        let records = self.scopes.stores.rollups.buckets(scope.dataset.id(), counter, from, to).await?;
        let open = checkpoint.open_bucket.iter().map(|bucket| bucket.rows);
        // A roll in between has finished more buckets: their rows are counted with the tail, or in the open bucket.
        let over = checkpoint.as_of.just_after();
        let finished = records.iter().filter(|record| record.start + scope.rules.at(record.start).bucket <= over);
        let recorded: u64 = finished.map(|record| record.rows).chain(open).sum();
        let left_out = (recorded + tail.rows - tail.voids).saturating_sub(shown);
        Ok((left_out, from > oldest || !checkpoint.sources.is_empty()))
    }
}

impl<'a> TailNotes<'a> {
    fn new(scope: &'a NamespaceScope, limit: Timestamp, base: &Checkpoint) -> Self {
        Self {
            scope,
            limit,
            tail: TailPart::default(),
            restart: CountRestart::None,
            last_mutation: base.last_event_time,
            rows_above_limit: 0,
            last_step: None,
            steps: 0,
            first_step: None,
        }
    }

    fn take(&mut self, event: &Event) {
        let time = event.key.time;
        let tail = &mut self.tail;
        tail.rows += 1;
        tail.first = tail.first.or(Some(time));
        tail.last = Some(time);
        self.rows_above_limit += u64::from(time > self.limit);
        match event.change {
            Change::Add(delta) => {
                tail.adds += 1;
                tail.sum += i128::from(delta);
            }
            Change::Clear => tail.clears += 1,
            Change::Total(_) => tail.totals += 1,
            Change::Void => {
                tail.voids += 1;
                return;
            }
        }
        // Totals of silent sources still count: only deltas restart from 0 after a silence.
        let is_delta = self.scope.namespace.spec.temporality == Temporality::Delta;
        if is_delta && is_ttl_expired(self.last_mutation, time, self.scope.ttl_at(time)) {
            self.restart = CountRestart::Silence(time);
        }
        if event.change == Change::Clear {
            self.restart = CountRestart::Clear(time);
        }
        self.last_mutation = Some(time);
        let step = time.floor_to(STEP);
        if self.last_step != Some(step) {
            self.last_step = Some(step);
            self.first_step = self.first_step.or(Some(step));
            self.steps += 1;
        }
    }
}
