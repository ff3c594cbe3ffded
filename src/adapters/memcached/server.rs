//! One memcached server: its connections, its health, and how a call of it ends.
//!
//! A call waits for a permit, a connection and a response, each at most for the timeout. If calls share round trips, it
//! waits for the one before its own first. Invariant: a command that may have had its effect is retried only if it is
//! idempotent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use memcache::exp::{Arithmetic, Error, Get, Op, Set, Ttl};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::memcached::backoff::{Backoff, CallAdmission};
use crate::memcached::command_batcher::{CallerResponses, CommandBatcher, SendOutcome};
use crate::memcached::error_mapping;
use crate::memcached::limits::{
    MEMCACHED_ATTEMPTS_MAX, MEMCACHED_CALLS_AT_ONCE_MAX, MEMCACHED_FULL_SHOWN, MEMCACHED_QUIET_MAX,
};
use crate::memcached::wire::{CommandResponse, Network, ServerConnection};
use tallystone_ports::{Clock, EffectOutcome, StoreError, StoreErrorKind};

pub(super) struct MemcachedServer {
    address: String,
    timeout: Duration,
    clock: Arc<dyn Clock>,
    network: Arc<dyn Network>,
    connection: Mutex<Option<Arc<dyn ServerConnection>>>,
    call_permits: Semaphore,
    batcher: CommandBatcher,
    backoff: Arc<Backoff>,
    call_counters: Arc<CallCounters>,
    /// The time of the last response, in microseconds of `Clock::elapsed`.
    answered_micros: AtomicU64,
    /// The time of the last value that it had no memory for, in microseconds of `Clock::elapsed`; 0 before the first.
    full_micros: AtomicU64,
    /// The time until which its cached counts may be older than a clear, in microseconds of `Clock::elapsed`.
    distrusted_micros: AtomicU64,
}

/// Counts of calls, over all servers of a cluster.
#[derive(Default)]
pub(super) struct CallCounters {
    pub calls: AtomicU64,
    pub failed: AtomicU64,
    pub unknown: AtomicU64,
    pub refused: AtomicU64,
}

/// Whether a command with an unknown outcome may be retried.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RetrySafety {
    /// It may: a read, a removal.
    Idempotent,
    /// It may not.
    NotIdempotent,
}

/// Whether commands may share their round trip with those of other calls.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BatchMode {
    /// They may. If a refusal hides their outcome, it counts as unknown.
    Shared,
    /// They may not: an unknown outcome would cost more than a round trip.
    Alone,
}

impl MemcachedServer {
    pub(super) fn new(
        address: String,
        timeout: Duration,
        network: Arc<dyn Network>,
        clock: Arc<dyn Clock>,
        tally: Arc<CallCounters>,
    ) -> Self {
        let backoff = Arc::new(Backoff::default());
        Self {
            address,
            timeout,
            batcher: CommandBatcher::new(Arc::clone(&backoff), Arc::clone(&clock)),
            clock,
            network,
            connection: Mutex::default(),
            call_permits: Semaphore::new(MEMCACHED_CALLS_AT_ONCE_MAX),
            backoff,
            call_counters: tally,
            answered_micros: AtomicU64::new(0),
            full_micros: AtomicU64::new(0),
            distrusted_micros: AtomicU64::new(0),
        }
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn is_down(&self) -> bool {
        self.backoff.is_down()
    }

    /// Whether it answers, and had no memory for a value a moment ago.
    pub(super) fn is_full(&self) -> bool {
        let last = self.full_micros.load(Ordering::Relaxed);
        last > 0 && micros(self.clock.elapsed()).saturating_sub(last) < micros(MEMCACHED_FULL_SHOWN)
    }

    /// Whether its cached counts may be read.
    pub(super) fn is_trusted(&self) -> bool {
        micros(self.clock.elapsed()) >= self.distrusted_micros.load(Ordering::Relaxed)
    }

    /// Ignores its cached counts for a time.
    pub(super) fn distrust_for(&self, time: Duration) {
        self.distrusted_micros.fetch_max(micros(self.clock.elapsed() + time), Ordering::Relaxed);
    }

    /// Sends the commands together. Returns the outcome of the first.
    pub(super) async fn call(
        &self,
        op: &'static str,
        commands: &[Op],
        repeat: RetrySafety,
    ) -> Result<CommandResponse, StoreError> {
        self.call_in_mode(BatchMode::Shared, op, commands, repeat).await
    }

    /// The same, in the given batch mode.
    pub(super) async fn call_in_mode(
        &self,
        company: BatchMode,
        op: &'static str,
        commands: &[Op],
        repeat: RetrySafety,
    ) -> Result<CommandResponse, StoreError> {
        self.call_counters.calls.fetch_add(1, Ordering::Relaxed);
        let mut attempts_left = MEMCACHED_ATTEMPTS_MAX;
        // If any attempt may have had its effect, the call may have had it.
        let mut in_doubt = false;
        let failure = loop {
            attempts_left -= 1;
            let admission = self.backoff.admit(self.clock.elapsed(), 2 * self.timeout);
            if let CallAdmission::Refused(_) = admission {
                break self.paused(op);
            }
            let Ok(_place) = self.acquire_permit().await else {
                break StoreError::not_applied(StoreErrorKind::Busy, op)
                    .with_source(format!("too many calls to memcached at {} are in progress", self.address));
            };
            let (answers, is_noted) = match self.send(commands, admission, company).await {
                SendOutcome::Alone(answers) => (answers, false),
                SendOutcome::Shared(answers) => (answers, true),
                SendOutcome::Paused => break self.paused(op),
            };
            let error = match first(answers) {
                Ok(answer) => {
                    if !is_noted {
                        self.backoff.record_success();
                    }
                    self.answered_micros.store(micros(self.clock.elapsed()), Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(error) => error,
            };
            match error_mapping::connection_failure(&error) {
                _ if is_noted => {} // for all of the round trip
                Some(silence) => self.backoff.record_failure(self.clock.elapsed(), admission, silence),
                None => self.backoff.record_success(),
            }
            let failure = error_mapping::store_error(op, &self.address, &error);
            if failure.kind == StoreErrorKind::Full {
                self.full_micros.store(micros(self.clock.elapsed()).max(1), Ordering::Relaxed);
            }
            in_doubt |= failure.outcome == EffectOutcome::Unknown;
            let may_repeat = repeat == RetrySafety::Idempotent || failure.outcome == EffectOutcome::NotApplied;
            let is_lost = error_mapping::is_no_response(&error) && !error_mapping::is_timeout(&error);
            let is_worth_it = is_lost || error_mapping::is_unread_after_refusal(&error);
            if attempts_left == 0 || !may_repeat || !is_worth_it {
                break failure;
            }
        };
        self.call_counters.failed.fetch_add(1, Ordering::Relaxed);
        if in_doubt {
            self.call_counters.unknown.fetch_add(1, Ordering::Relaxed);
            return Err(StoreError { outcome: EffectOutcome::Unknown, ..failure });
        }
        Err(failure)
    }

    /// The error of a call of a paused server.
    fn paused(&self, op: &'static str) -> StoreError {
        self.call_counters.refused.fetch_add(1, Ordering::Relaxed);
        let left = self.backoff.left(self.clock.elapsed());
        let why = format!("memcached at {} did not answer; the next call is sent in {left:?}", self.address);
        StoreError::not_applied(StoreErrorKind::Unavailable, op).at(&*self.address).with_source(why)
    }

    /// Checks with a key of its own whether the server answers and adds modulo 2^64.
    pub(super) async fn probe(&self, key: &str) -> Result<(), String> {
        let below = u64::MAX; // -1
        let commands = [
            Set::new(key, "1").ttl(Ttl::secs(60)).into(),
            Arithmetic::new(key).delta(below).into(),
            Arithmetic::new(key).delta(below).into(),
            Get::new(key).into(),
        ];
        let results = match self.send(&commands, CallAdmission::Trial, BatchMode::Alone).await {
            SendOutcome::Alone(answers) | SendOutcome::Shared(answers) => {
                answers.map_err(|error| error_mapping::text(&error))?
            }
            SendOutcome::Paused => return Err("it is paused".to_owned()),
        };
        let wrapped = match results.into_iter().nth(2) {
            Some(Ok(CommandResponse::Summed { value, .. })) => value == Some(below),
            Some(Err(error)) => return Err(error_mapping::text(&error)),
            _ => false, // another answer is none of a memcached that takes meta commands
        };
        match wrapped {
            true => Ok(()),
            false => Err("it does not add modulo 2^64 as memcached does".to_owned()),
        }
    }

    /// A probe goes alone: it finds out for other calls whether the server is back.
    async fn send(&self, commands: &[Op], admission: CallAdmission, company: BatchMode) -> SendOutcome {
        let wire = match self.connect(admission).await {
            Ok(wire) => wire,
            Err(error) => return SendOutcome::Alone(Err(Arc::new(error))),
        };
        self.notice_closed_connections().await;
        match (admission, company) {
            (CallAdmission::Normal, BatchMode::Shared) => self.batcher.send(wire, commands).await,
            (CallAdmission::Normal, BatchMode::Alone) | (CallAdmission::Trial | CallAdmission::Refused(_), _) => {
                SendOutcome::Alone(wire.send(commands.to_vec()).await.map_err(Arc::new))
            }
        }
    }

    /// Lets the runtime process the events of idle connections. The client replaces a connection whose end was noticed.
    /// One whose end was not noticed would swallow the command, and its outcome would be unknown.
    async fn notice_closed_connections(&self) {
        let answered = self.answered_micros.load(Ordering::Relaxed);
        if micros(self.clock.elapsed()).saturating_sub(answered) > micros(MEMCACHED_QUIET_MAX) {
            tokio::task::yield_now().await;
        }
    }

    /// The connection of the server. A probe makes a new one, so that the name of the server is resolved again.
    async fn connect(&self, admission: CallAdmission) -> Result<Arc<dyn ServerConnection>, Error> {
        let known = self.connection.lock().clone();
        if let (CallAdmission::Normal, Some(wire)) = (admission, known) {
            return Ok(wire);
        }
        let wire = self.in_time(self.network.find(&self.address, self.timeout)).await??;
        *self.connection.lock() = Some(Arc::clone(&wire));
        Ok(wire)
    }

    async fn acquire_permit(&self) -> Result<tokio::sync::SemaphorePermit<'_>, Error> {
        match self.call_permits.try_acquire() {
            Ok(place) => Ok(place),
            Err(_) => Ok(self.in_time(self.call_permits.acquire()).await?.expect("the semaphore is never closed")),
        }
    }

    /// Waits for a step at most for the timeout.
    async fn in_time<T>(&self, step: impl Future<Output = T>) -> Result<T, Error> {
        tokio::select! {
            biased;
            done = step => Ok(done),
            () = self.clock.sleep(self.timeout) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        }
    }
}

/// The outcome of the first command.
fn first(answers: CallerResponses) -> Result<CommandResponse, Arc<Error>> {
    let first = answers?.into_iter().next();
    first.unwrap_or_else(|| Err(Error::Protocol("no answer".to_owned()))).map_err(Arc::new)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
