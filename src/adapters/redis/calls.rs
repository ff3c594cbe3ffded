//! Calls of functions on a shard: with the settings that this process knows, and again where those were stale.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use super::keys::named_keys;
use super::library::QueueLibrary;
use super::limits::REDIS_STALE_RETRIES_MAX;
use super::shard_settings::{CallerTime, VersionedSettings};
use super::stored_shard::read_header;
use super::wire::{RedisWire, WireCommand, WireFailure, WireReply};
use crate::adapters::codec::CorruptValue;
use crate::adapters::codec::queues::settings::decode_settings;
use crate::domain::queue::Durability;
use crate::domain::queue::clock::ShardClock;
use crate::domain::queue::messages::message::MessageKey;
use crate::domain::queue::name::ShardId;
use crate::domain::time::Timestamp;
use crate::ports::{Clock, QueueListener, ShardStatus, StoreError, StoreErrorKind};

/// How the queues are kept.
#[derive(Clone, Copy, Debug)]
pub struct RedisQueueOptions {
    /// The epoch of new rows and leases; a shard that knows a higher one keeps that.
    pub epoch: u32,
    /// How far the clock of this server may lie behind that of the store before the earlier of the two counts.
    pub clock_slack: Duration,
    /// The most entries of the outbox of a shard; 0 for none.
    pub outbox_entries: u64,
    /// The durability of an answer.
    pub durability: Option<Durability>,
}

/// The queues of one deployment of Redis or Valkey.
pub struct RedisQueues {
    pub(super) wire: Arc<dyn RedisWire>,
    pub(super) library: QueueLibrary,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) options: RedisQueueOptions,
    /// This server's time for shards; none until the first call.
    pace: Mutex<Option<ShardClock>>,
    settings: Mutex<HashMap<ShardId, Arc<VersionedSettings>>>,
    pub(super) listeners: Mutex<Listeners>,
    /// What its news of shards begin with; none if nobody hears news.
    pub(super) caller: OnceLock<[u8; CALLER_BYTES]>,
}

/// The bytes of the name by which a process knows its own news.
pub const CALLER_BYTES: usize = 8;

/// The listeners, and those of them that have not been told yet what is there.
#[derive(Default)]
pub(super) struct Listeners {
    pub known: Vec<Arc<dyn QueueListener>>,
    pub new: Vec<Arc<dyn QueueListener>>,
}

/// Why a function gave no reply.
pub(super) enum CallStop {
    /// The settings or the epoch were stale: nothing was done.
    Stale,
    Failed(StoreError),
}

impl RedisQueues {
    /// The queues behind a connection. The library must be loaded where its functions are called.
    pub fn new(wire: Arc<dyn RedisWire>, clock: Arc<dyn Clock>, options: RedisQueueOptions) -> Self {
        let (pace, settings, listeners) = (Mutex::default(), Mutex::default(), Mutex::default());
        let caller = OnceLock::new();
        Self { wire, library: QueueLibrary::assemble(), clock, options, pace, settings, listeners, caller }
    }

    /// Calls a function on a shard once.
    pub(super) async fn call(
        &self,
        (shard, op): (ShardId, &'static str),
        function: &str,
        arguments: Vec<Vec<u8>>,
    ) -> Result<WireReply, CallStop> {
        let keys = named_keys(shard);
        let route = keys[0].clone();
        let name = if function == "see" { "FCALL_RO" } else { "FCALL" };
        let mut all = vec![self.library.function(function).into_bytes(), b"2".to_vec()];
        all.extend(keys);
        all.extend(arguments);
        let answers = self.wire.send(&route, vec![WireCommand { name, arguments: all }]).await;
        match answers.into_iter().next() {
            Some(Ok(reply)) => Ok(reply),
            Some(Err(WireFailure::Function { code, text })) => Err(stop_of(&code, text, op)),
            Some(Err(WireFailure::Store(error))) => Err(CallStop::Failed(error)),
            None => Err(CallStop::Failed(StoreError::unknown(StoreErrorKind::Corrupt, op))),
        }
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
            let (now, wall) = self.caller_time();
            let at = CallerTime { now, wall, slack: self.options.clock_slack };
            let mut arguments = settings.arguments(at, self.options.epoch, self.options.outbox_entries).to_vec();
            arguments[0].extend(self.caller.get().into_iter().flatten());
            arguments.extend(own);
            match self.call((shard, op), function, arguments).await {
                Ok(reply) => return Ok((reply, made)),
                Err(CallStop::Stale) => self.forget_settings(shard),
                Err(CallStop::Failed(error)) => return Err(error),
            }
        }
        let busy = StoreError::not_applied(StoreErrorKind::Busy, op);
        Err(busy.with_source("the settings of the shard keep changing"))
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

    async fn read_settings(&self, shard: ShardId, op: &'static str) -> Result<VersionedSettings, StoreError> {
        let [header, _] = named_keys(shard);
        let config = format!("{}cf", super::keys::prefix(shard)).into_bytes();
        let get = WireCommand { name: "GET", arguments: vec![header.clone()] };
        let fields = vec![config, b"settings".to_vec(), b"key_set".to_vec()];
        let answers = self.wire.send(&header, vec![get, WireCommand { name: "HMGET", arguments: fields }]).await;
        let mut answers = answers.into_iter().map(|answer| answer.map_err(|failure| failure_of(failure, op)));
        let corrupt = |why: &str| CorruptValue::new("settings of a shard", why).into_store_error(op);
        let (Some(header), Some(fields)) = (answers.next(), answers.next()) else { return Err(corrupt("no answer")) };
        let header = match header? {
            WireReply::Bytes(bytes) => read_header(&bytes).map_err(|fault| fault.into_store_error(op))?,
            WireReply::Nil => None,
            WireReply::Int(_) | WireReply::List(_) => return Err(corrupt("the header is no text")),
        };
        let header = header.ok_or_else(|| no_such_shard(op))?;
        let WireReply::List(fields) = fields? else { return Err(corrupt("no list of fields")) };
        let [WireReply::Bytes(settings), WireReply::Bytes(key_set)] = &fields[..] else {
            return Err(corrupt("a field is missing"));
        };
        let key_set = std::str::from_utf8(key_set).ok().and_then(|number| number.parse().ok());
        let key_set = key_set.ok_or_else(|| corrupt("the number of the counted keys"))?;
        let (settings, version) = decode_settings(settings).map_err(|fault| fault.into_store_error(op))?;
        Ok(VersionedSettings { version, epoch: header.epoch, settings, key_set })
    }

    /// This server's time for shards, and its wall time. The first follows elapsed time, so a step of the wall clock neither
    /// ends nor freezes a lease.
    pub(super) fn caller_time(&self) -> (Timestamp, Timestamp) {
        let (wall, elapsed) = (self.clock.now(), self.clock.elapsed());
        let mut pace = self.pace.lock();
        let step = pace.get_or_insert(ShardClock { time: wall, elapsed }).advance(wall, elapsed);
        (step.now, wall)
    }

    /// Tells all listeners of a shard.
    pub(super) fn notify(&self, shard: ShardId, view: ShardStatus) {
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

/// What an error of the library means. The errors that it names itself come before any write.
fn stop_of(code: &str, text: String, op: &'static str) -> CallStop {
    CallStop::Failed(match code {
        "STALE" => return CallStop::Stale,
        "NOSHARD" => no_such_shard(op),
        "DROPPED" => StoreError::not_applied(StoreErrorKind::Conflict, op).with_source(text),
        "INCONSISTENT" | "FORMAT" => StoreError::not_applied(StoreErrorKind::Corrupt, op).with_source(text),
        _ => StoreError::unknown(StoreErrorKind::Corrupt, op).with_source(text),
    })
}
