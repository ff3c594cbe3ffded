//! Calls of functions on a shard: with the settings that this process knows, and again where those were stale.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot};

use super::epoch::{KnownEpoch, ReturnedShard};
use super::keys::named_keys;
use super::library::QueueLibrary;
use super::limits::{REDIS_REMOVALS_AT_ONCE_MAX, REDIS_REST_MAX, REDIS_STALE_RETRIES_MAX};
use super::losses::{Losses, lost};
use super::server_report::ServerReport;
use super::shard_settings::{CallerView, VersionedSettings};
use super::wire::{RedisWire, WireCommand, WireFailure, WireReply};
use tallystone_coalesce::DetachedTasks;
use tallystone_domain::queue::Durability;
use tallystone_domain::queue::clock::ShardClock;
use tallystone_domain::queue::messages::message::MessageKey;
use tallystone_domain::queue::name::{QueueId, ShardId};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{Clock, OutboxUsage, QueueListener, ShardStatus, StoreError, StoreErrorKind};

/// Without rows nothing says how large an outbox may become.
pub(super) const EMPTY_OUTBOXES: OutboxUsage = OutboxUsage { bytes: 0, capacity: 1 << 30 };

/// How the queues are kept.
#[derive(Clone, Copy, Debug)]
pub struct RedisQueueOptions {
    /// The epoch of new rows and leases; a shard that knows a higher one keeps that.
    pub epoch: u32,
    /// How far the clock of this server may lie behind that of the store before the earlier of the two counts.
    pub clock_slack: Duration,
    /// The most entries of the outbox of a shard; 0 for none.
    pub outbox_entries: u64,
    /// The durability of an answer, until a `ServerWatch` has read it from the servers.
    pub durability: Option<Durability>,
}

/// The queues of one deployment of Redis or Valkey.
pub struct RedisQueues {
    /// Itself, for the work that goes on when its caller goes away.
    this: Weak<Self>,
    tasks: DetachedTasks,
    pub(super) wire: Arc<dyn RedisWire>,
    pub(super) library: QueueLibrary,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) options: RedisQueueOptions,
    pub(super) epoch: KnownEpoch,
    /// The newest step of each shard that this process has seen.
    steps: Mutex<HashMap<ShardId, u64>>,
    /// The shards that came back with another life of the store.
    pub(super) returned: Mutex<HashMap<ShardId, ReturnedShard>>,
    /// The last step of each shard that the listeners were told.
    told: Mutex<HashMap<ShardId, u64>>,
    /// This server's time for shards; none until the first call.
    pace: Mutex<Option<ShardClock>>,
    settings: Mutex<HashMap<ShardId, Arc<VersionedSettings>>>,
    pub(super) outbox_usage: Mutex<OutboxUsage>,
    /// The durability of the moment.
    durability: Mutex<Option<Durability>>,
    /// Whether a server has no memory left for enqueues.
    is_nearly_full: AtomicBool,
    pub(super) listeners: Mutex<Listeners>,
    /// The dropped queues whose messages this process removes.
    pub(super) removals: Mutex<HashSet<QueueId>>,
    /// The removals that are at work; the others wait.
    pub(super) removal_turns: Semaphore,
    /// The known losses: data that the store had and has no more.
    pub(super) losses: Losses,
    /// The bytes with which its news of shards begin; none if no server hears news.
    pub(super) caller: OnceLock<[u8; CALLER_BYTES]>,
}

/// The code of a function whose user lacks a right. It says so before it does anything.
pub(super) const DENIED: &str = "DENIED";

/// The bytes of the name by which a process knows its own news.
pub const CALLER_BYTES: usize = 8;

/// The listeners, and those of them that have not been told yet what is there.
#[derive(Default)]
pub(super) struct Listeners {
    pub known: Vec<Arc<dyn QueueListener>>,
    pub new: Vec<Arc<dyn QueueListener>>,
}

/// The reason for which a function gave no reply.
pub(super) enum CallStop {
    /// The settings or the epoch were stale: nothing was done.
    Stale,
    Failed(StoreError),
}

impl CallStop {
    /// The failure of a call that is not made again.
    pub fn into_error(self, op: &'static str) -> StoreError {
        match self {
            Self::Failed(error) => error,
            Self::Stale => StoreError::not_applied(StoreErrorKind::Busy, op),
        }
    }
}

impl RedisQueues {
    /// The queues behind a connection. The library must be loaded where its functions are called.
    pub fn new(wire: Arc<dyn RedisWire>, clock: Arc<dyn Clock>, options: RedisQueueOptions) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            tasks: DetachedTasks::default(),
            wire,
            library: QueueLibrary::assemble(),
            clock,
            options,
            epoch: KnownEpoch::new(options.epoch),
            steps: Mutex::default(),
            returned: Mutex::default(),
            told: Mutex::default(),
            pace: Mutex::default(),
            settings: Mutex::default(),
            durability: Mutex::new(options.durability),
            is_nearly_full: AtomicBool::new(false),
            outbox_usage: Mutex::new(EMPTY_OUTBOXES),
            listeners: Mutex::default(),
            removals: Mutex::default(),
            removal_turns: Semaphore::new(REDIS_REMOVALS_AT_ONCE_MAX),
            losses: Losses::default(),
            caller: OnceLock::new(),
        })
    }

    /// Waits for the work that has begun. No call may come later.
    pub async fn close(&self) {
        self.tasks.join().await;
    }

    /// Takes in what the servers are at the moment.
    pub(super) fn take_report(&self, report: &ServerReport) {
        let before = std::mem::replace(&mut *self.durability.lock(), report.durability);
        if before > report.durability {
            let name = |tier: Option<Durability>| tier.map_or_else(|| "none".to_owned(), |tier| tier.to_string());
            let (before, after) = (name(before), name(report.durability));
            tracing::warn!(before, after, "the durability of queues has fallen; those that require more are refused");
        }
        self.take_memory(report.is_nearly_full);
    }

    /// Takes in whether a server has no memory left for enqueues.
    pub(super) fn take_memory(&self, is_nearly_full: bool) {
        self.is_nearly_full.store(is_nearly_full, Ordering::Relaxed);
    }

    /// The durability of the moment.
    pub(super) fn durability_now(&self) -> Option<Durability> {
        *self.durability.lock()
    }

    /// Whether enqueues are refused because the memory that is left is for what takes messages out.
    pub(super) fn refuses_enqueues(&self) -> bool {
        self.is_nearly_full.load(Ordering::Relaxed)
    }

    /// Does work that goes on when its caller goes away; none if it could not be finished.
    pub(super) async fn finish<T, W>(&self, work: impl FnOnce(Arc<Self>) -> W) -> Option<T>
    where
        T: Send + 'static,
        W: Future<Output = T> + Send + 'static,
    {
        self.begin(work).await.ok()
    }

    /// Begins work that goes on by itself. The receiver has what came of it.
    pub(super) fn begin<T, W>(&self, work: impl FnOnce(Arc<Self>) -> W) -> oneshot::Receiver<T>
    where
        T: Send + 'static,
        W: Future<Output = T> + Send + 'static,
    {
        let work = work(self.this.upgrade().expect("its caller holds it"));
        let (told, done) = oneshot::channel();
        self.tasks.spawn(async move {
            // A caller that has gone wants no answer.
            let _ = told.send(work.await);
        });
        done
    }

    /// Calls a function on a shard once.
    pub(super) async fn call(
        &self,
        (shard, op): (ShardId, &'static str),
        function: &str,
        arguments: Vec<Vec<u8>>,
    ) -> Result<WireReply, CallStop> {
        let calls = vec![(function, arguments)];
        let answer = self.call_each((shard, op), calls).await.pop();
        answer.unwrap_or_else(|| Err(CallStop::Failed(StoreError::unknown(StoreErrorKind::Corrupt, op))))
    }

    /// Calls functions on a shard once, in their order on one connection. Each has its own answer.
    pub(super) async fn call_each(
        &self,
        (shard, op): (ShardId, &'static str),
        calls: Vec<(&str, Vec<Vec<u8>>)>,
    ) -> Vec<Result<WireReply, CallStop>> {
        let keys = named_keys(shard);
        let command = |(function, arguments): (&str, Vec<Vec<u8>>)| {
            let name = if function == "see" { "FCALL_RO" } else { "FCALL" };
            let mut all = vec![self.library.function(function).into_bytes(), b"2".to_vec()];
            all.extend(keys.iter().cloned());
            all.extend(arguments);
            WireCommand { name, arguments: all }
        };
        let commands = calls.into_iter().map(command).collect();
        let answers = self.wire.send(&keys[0], commands).await;
        let mut read = Vec::with_capacity(answers.len());
        for answer in answers {
            read.push(match answer {
                Ok(reply) => {
                    self.note_step(shard, &reply);
                    Ok(reply)
                }
                Err(WireFailure::Function { code, text }) => Err(self.stop_of((shard, op), &code, text).await),
                Err(WireFailure::Store(error)) => Err(CallStop::Failed(error)),
            });
        }
        read
    }

    /// Judges an error of the library. The errors that it names itself come before any write.
    async fn stop_of(&self, (shard, op): (ShardId, &'static str), code: &str, text: String) -> CallStop {
        CallStop::Failed(match code {
            "STALE" => return CallStop::Stale,
            "RESTARTED" => {
                self.raise_epoch(shard, &text).await;
                return CallStop::Stale;
            }
            "NOSHARD" => no_such_shard(op),
            "ABSENT" => match self.is_lost(shard, op).await {
                Ok(false) => no_such_shard(op),
                Ok(true) => lost(op),
                Err(error) => StoreError::not_applied(error.kind, op).with_source(error),
            },
            "DROPPED" => StoreError::not_applied(StoreErrorKind::Conflict, op).with_source(text),
            DENIED => StoreError::not_applied(StoreErrorKind::Forbidden, op).with_source(text),
            "INCONSISTENT" | "FORMAT" => StoreError::not_applied(StoreErrorKind::Corrupt, op).with_source(text),
            _ => StoreError::unknown(StoreErrorKind::Corrupt, op).with_source(text), // an error that a function met
        })
    }

    /// Notes the step of a status, with which most replies begin.
    fn note_step(&self, shard: ShardId, reply: &WireReply) {
        if let WireReply::List(parts) = reply
            && let Some(WireReply::Bytes(status)) = parts.first()
            && let Some(step) = step_of(status)
        {
            let seen = note_newest(&mut self.steps.lock(), shard, step);
            self.judge_later_life(shard, seen, step);
        }
    }

    /// The data on the caller that a call carries. A shard that another life of the store serves judges by it whether
    /// it lost work.
    fn caller_of(&self, shard: ShardId, settings: &VersionedSettings) -> CallerView {
        let (now, wall) = self.caller_time();
        let rest = match settings.settings.exclusivity {
            Some(_) => settings.settings.max_run_time.min(REDIS_REST_MAX),
            None => Duration::ZERO,
        };
        let seen = if self.keeps_all_work() { self.newest_step(shard) } else { u64::MAX };
        let (epoch, life, outbox_entries) = (self.epoch.get(), self.epoch.life_of(shard), self.options.outbox_entries);
        CallerView { now, wall, slack: self.options.clock_slack, epoch, outbox_entries, rest, seen, life }
    }

    /// Whether the next life of the store has all that was answered in this one. If not, work counts as lost: this
    /// server may not have seen the last of it. A replica that is promoted has what its primary had synced only if
    /// answers waited for it.
    fn keeps_all_work(&self) -> bool {
        match self.durability_now() {
            Some(Durability::Replicated) => true,
            Some(Durability::Safe) => !self.wire.fails_over(),
            Some(Durability::Fast) | None => false,
        }
    }

    /// The arguments that every function takes first: versions, time and caller, and the settings.
    fn first_arguments(&self, shard: ShardId, settings: &VersionedSettings) -> Vec<Vec<u8>> {
        let mut arguments = settings.arguments(self.caller_of(shard, settings)).to_vec();
        arguments[0].extend(self.caller.get().into_iter().flatten());
        arguments
    }

    /// Calls a function on a shard with the versions and the settings before its own arguments, which are made from the
    /// settings. If those were stale it is made and called again.
    pub(super) async fn call_current<T>(
        &self,
        (shard, op): (ShardId, &'static str),
        function: &str,
        make: impl Fn(&VersionedSettings) -> (Vec<Vec<u8>>, T) + Send + Sync,
    ) -> Result<(WireReply, T), StoreError>
    where
        T: Send,
    {
        for _ in 0..REDIS_STALE_RETRIES_MAX {
            let settings = self.settings_of(shard, op).await?;
            let (own, made) = make(&settings);
            let mut arguments = self.first_arguments(shard, &settings);
            arguments.extend(own);
            match self.call((shard, op), function, arguments).await {
                Ok(reply) => return Ok((reply, made)),
                Err(CallStop::Stale) => self.forget_settings(shard),
                Err(CallStop::Failed(error)) => return Err(error),
            }
        }
        Err(keeps_changing(op))
    }

    /// The same for several calls, in their order on one connection. Each has its own answer.
    pub(super) async fn call_all_current<T: Send>(
        &self,
        (shard, op): (ShardId, &'static str),
        functions: &[&str],
        make: impl Fn(usize, &VersionedSettings) -> (Vec<Vec<u8>>, T) + Send + Sync,
    ) -> Vec<Result<(WireReply, T), StoreError>> {
        let mut done = Vec::with_capacity(functions.len());
        for _ in 0..REDIS_STALE_RETRIES_MAX {
            let settings = match self.settings_of(shard, op).await {
                Ok(settings) => settings,
                Err(error) => return fill(done, functions.len(), error),
            };
            let (mut calls, mut made) = (Vec::new(), Vec::new());
            for (at, function) in functions.iter().enumerate().skip(done.len()) {
                let mut arguments = self.first_arguments(shard, &settings);
                let (own, form) = make(at, &settings);
                arguments.extend(own);
                calls.push((*function, arguments));
                made.push(form);
            }
            let answers = self.call_each((shard, op), calls).await;
            if answers.len() != made.len() {
                return fill(done, functions.len(), StoreError::unknown(StoreErrorKind::Corrupt, op));
            }
            let is_stale = |answer: &Result<WireReply, CallStop>| matches!(answer, Err(CallStop::Stale));
            // Settings never go back: what comes after a stale call is stale too, unless it failed otherwise.
            let current = answers.iter().position(is_stale).unwrap_or(answers.len());
            let may_repeat = answers[current..].iter().all(is_stale);
            for (answer, form) in answers.into_iter().zip(made).take(if may_repeat { current } else { usize::MAX }) {
                done.push(match answer {
                    Ok(reply) => Ok((reply, form)),
                    Err(CallStop::Stale) => Err(keeps_changing(op)),
                    Err(CallStop::Failed(error)) => Err(error),
                });
            }
            if done.len() == functions.len() {
                return done;
            }
            self.forget_settings(shard);
        }
        fill(done, functions.len(), keeps_changing(op))
    }

    /// One plain command, routed by a key.
    pub(super) async fn ask(
        &self,
        key: &[u8],
        command: WireCommand,
        op: &'static str,
    ) -> Result<WireReply, StoreError> {
        let answer = self.wire.send(key, vec![command]).await.into_iter().next();
        let answer = answer.ok_or_else(|| StoreError::unknown(StoreErrorKind::Corrupt, op))?;
        answer.map_err(|failure| failure_of(failure, op))
    }

    /// The settings of a shard, as last read.
    pub(super) async fn settings_of(
        &self,
        shard: ShardId,
        op: &'static str,
    ) -> Result<Arc<VersionedSettings>, StoreError> {
        let known = self.settings.lock().get(&shard).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let read = Arc::new(self.read_settings(shard, op).await?);
        self.settings.lock().insert(shard, Arc::clone(&read));
        Ok(read)
    }

    /// Reads the settings again at the next call.
    pub(super) fn forget_settings(&self, shard: ShardId) {
        self.settings.lock().remove(&shard);
    }

    /// The newest step of a shard that this process has seen; 0 before the first.
    pub(super) fn newest_step(&self, shard: ShardId) -> u64 {
        self.steps.lock().get(&shard).copied().unwrap_or(0)
    }

    /// Whether this process has seen a shard.
    pub(super) fn knows(&self, shard: ShardId) -> bool {
        self.steps.lock().contains_key(&shard)
    }

    /// At most so many of the shards that this process has seen.
    pub(super) fn known_shards(&self, max: usize) -> Vec<ShardId> {
        self.steps.lock().keys().take(max).copied().collect()
    }

    /// The last step of a shard that the listeners were told. Other answers may be newer, and told nobody.
    pub(super) fn told_step(&self, shard: ShardId) -> Option<u64> {
        self.told.lock().get(&shard).copied()
    }

    /// Forgets a queue that was dropped.
    pub(super) fn forget_queue(&self, queue: QueueId) {
        self.settings.lock().retain(|shard, _| shard.queue != queue);
        self.steps.lock().retain(|shard, _| shard.queue != queue);
        self.told.lock().retain(|shard, _| shard.queue != queue);
        self.returned.lock().retain(|shard, _| shard.queue != queue);
        self.losses.forget_queue(queue);
    }

    /// This server's time for shards, and its wall time. The first follows elapsed time, so a step of the wall clock
    /// neither ends nor freezes a lease.
    pub(super) fn caller_time(&self) -> (Timestamp, Timestamp) {
        let (wall, elapsed) = (self.clock.now(), self.clock.elapsed());
        let mut pace = self.pace.lock();
        let step = pace.get_or_insert(ShardClock { time: wall, elapsed }).advance(wall, elapsed);
        (step.now, wall)
    }

    /// Tells all listeners of a shard.
    pub(super) fn notify(&self, shard: ShardId, view: ShardStatus) {
        note_newest(&mut self.told.lock(), shard, view.step);
        let listeners = self.listeners.lock().known.clone();
        listeners.iter().for_each(|listener| listener.changed(shard, view));
    }

    /// Whether a listener waits for messages of a shard.
    pub(super) fn is_awaited(&self, shard: ShardId) -> bool {
        let listeners = self.listeners.lock().known.clone();
        listeners.iter().any(|listener| listener.awaits(shard))
    }

    /// Tells all listeners which running messages should be canceled.
    pub(super) fn notify_cancels(&self, shard: ShardId, keys: &[MessageKey]) {
        if keys.is_empty() {
            return;
        }
        let listeners = self.listeners.lock().known.clone();
        for listener in listeners {
            keys.iter().for_each(|key| listener.cancel_requested(shard, *key));
        }
    }
}

/// Notes a step of a shard, unless a later one is known. The newest step before it.
fn note_newest(steps: &mut HashMap<ShardId, u64>, shard: ShardId, step: u64) -> u64 {
    let newest = steps.entry(shard).or_insert(step);
    let before = *newest;
    *newest = step.max(before);
    before
}

/// A refusal for a shard that is not there.
pub(super) fn no_such_shard(op: &'static str) -> StoreError {
    StoreError::not_applied(StoreErrorKind::Conflict, op).with_source("there is no such queue")
}

/// The failure of a plain command.
pub(super) fn failure_of(failure: WireFailure, op: &'static str) -> StoreError {
    match failure {
        WireFailure::Store(error) => error,
        WireFailure::Function { text, .. } => StoreError::unknown(StoreErrorKind::Corrupt, op).with_source(text),
    }
}

fn keeps_changing(op: &'static str) -> StoreError {
    StoreError::not_applied(StoreErrorKind::Busy, op).with_source("the settings of the shard keep changing")
}

/// The answers to `count` calls, of which those that are missing have failed so.
fn fill<T>(mut done: Vec<Result<T, StoreError>>, count: usize, error: StoreError) -> Vec<Result<T, StoreError>> {
    let missing = count.saturating_sub(done.len());
    let others: Vec<_> = (1..missing).map(|_| Err(error.alike())).collect();
    if missing > 0 {
        done.push(Err(error));
    }
    done.extend(others);
    done
}

/// The step in a status: its second number.
fn step_of(status: &[u8]) -> Option<u64> {
    let bytes = status.get(size_of::<f64>()..2 * size_of::<f64>())?;
    Some(f64::from_le_bytes(bytes.try_into().ok()?) as u64)
}
