//! One node: its connections, how many calls and bytes may be in flight to it, and how its calls end.
//!
//! A call that ends before its commands were given to a connection was not applied. Afterwards, without an answer, its
//! effect may have happened. Once another node has taken the place of this one, it is retired: nothing more is sent to
//! it, and its connections are closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use crate::client::command::RedisCommand;
use crate::client::connection::{Endpoint, RedisConnection, ServedBy};
use crate::client::connection_slot::{ConnectionSlot, ConnectionStatus, Outage};
use crate::client::deadline::Deadline;
use crate::client::failure::{Advice, CallFailure, FailureCause, judge};
use crate::client::function_library::FunctionLibrary;
use crate::client::pending::Judged;
use crate::client::reply::RedisReply;
use crate::limits::{
    REDIS_ABSENCE_WAITED_MAX, REDIS_BYTES_AT_ONCE_MAX, REDIS_CALLS_AT_ONCE_MAX, REDIS_CONNECTIONS, REDIS_SILENCE_MAX,
    REDIS_WAITS_AT_ONCE,
};
use tallystone_ports::Clock;

/// Permits stand for so many bytes each, so that their count fits.
const BYTES_A_PERMIT: usize = 1024;

/// One node.
pub(super) struct Node {
    endpoint: Endpoint,
    clock: Arc<dyn Clock>,
    connections: [ConnectionSlot; REDIS_CONNECTIONS],
    /// The connections that wait for its replicas.
    wait_connections: [ConnectionSlot; REDIS_WAITS_AT_ONCE],
    retired: CancellationToken,
    outage: Arc<Outage>,
    call_permits: Semaphore,
    byte_permits: Semaphore,
    /// One at a time loads the library.
    loading: Semaphore,
    /// How often the library was loaded.
    loads: AtomicU64,
}

/// A call that may be sent: what it holds while it is in flight, and its connection.
type Begun<'n> = ((SemaphorePermit<'n>, SemaphorePermit<'n>), &'n ConnectionSlot, Arc<RedisConnection>);

/// The outcome of commands that were given to a node.
pub(super) enum Sent {
    /// Each has its answer.
    Answered(ServedBy, Vec<Judged>),
    /// They were not sent, and may be sent later.
    NotYet(CallFailure),
    /// They failed together, for good.
    Failed(CallFailure),
}

impl Node {
    pub(super) fn new(endpoint: Endpoint, clock: Arc<dyn Clock>) -> Self {
        Self {
            endpoint,
            clock,
            connections: Default::default(),
            wait_connections: Default::default(),
            retired: CancellationToken::new(),
            outage: Arc::default(),
            call_permits: Semaphore::new(REDIS_CALLS_AT_ONCE_MAX),
            byte_permits: Semaphore::new(REDIS_BYTES_AT_ONCE_MAX / BYTES_A_PERMIT),
            loading: Semaphore::new(1),
            loads: AtomicU64::new(0),
        }
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Sends commands on one connection, in their order.
    pub(super) async fn send(&self, commands: Vec<RedisCommand>, deadline: &Deadline) -> Sent {
        let begun = self.retired.run_until_cancelled(self.begin(&commands, deadline)).await;
        let (permits, slot, connection) = match begun {
            // Nothing is awaited between this check and the sending.
            Some(Ok(begun)) if !self.retired.is_cancelled() => begun,
            Some(Err(not_sent)) => return not_sent,
            Some(Ok(_)) | None => return Sent::NotYet(self.replaced(FailureCause::Moving)),
        };
        let answered = tokio::select! {
            biased;
            // What it answers from here on may be lost with its history.
            () = self.retired.cancelled() => return Sent::Failed(self.replaced(FailureCause::NoAnswer)),
            answered = deadline.meet(connection.send(&commands)) => answered,
        };
        drop(permits);
        match answered {
            Some(Ok(answers)) => {
                let judged = answers.into_iter().map(|answer| answer.map_err(|text| self.judge(slot, &text)));
                Sent::Answered(connection.served_by().clone(), judged.collect())
            }
            Some(Err(failure)) => {
                slot.close();
                Sent::Failed(failure)
            }
            None => {
                if connection.silent_for(self.clock.elapsed()) >= REDIS_SILENCE_MAX {
                    slot.close();
                }
                let text = format!("Redis at {}: no answer in time", self.endpoint.address);
                Sent::Failed(CallFailure::new(FailureCause::NoAnswer, text))
            }
        }
    }

    /// Waits until a call may be in flight and has a connection; else says what becomes of it.
    async fn begin(&self, commands: &[RedisCommand], deadline: &Deadline) -> Result<Begun<'_>, Sent> {
        let Some(permits) = deadline.meet(self.acquire(commands)).await else {
            let text = format!("too many calls of Redis at {} are in progress", self.endpoint.address);
            return Err(Sent::Failed(CallFailure::new(FailureCause::Busy, text)));
        };
        match deadline.meet(self.connection()).await {
            Some(Ok((slot, connection))) => Ok((permits, slot, connection)),
            Some(Err(failure)) => Err(self.not_connected(failure)),
            None => Err(Sent::NotYet(self.unreachable("no connection in time"))),
        }
    }

    /// The answer to one command that only reads, or is harmless: where nothing was answered, it may be asked again.
    pub(super) async fn ask(&self, command: RedisCommand, deadline: &Deadline) -> Result<RedisReply, CallFailure> {
        let none = || Err(CallFailure::new(FailureCause::Protocol, "no answer to the command"));
        self.ask_all(vec![command], deadline).await?.pop().unwrap_or_else(none)
    }

    /// The answers to several such commands, which are sent together.
    pub(super) async fn ask_all(
        &self,
        commands: Vec<RedisCommand>,
        deadline: &Deadline,
    ) -> Result<Vec<Result<RedisReply, CallFailure>>, CallFailure> {
        match self.send(commands, deadline).await {
            Sent::Answered(_, answers) => {
                Ok(answers.into_iter().map(|answer| answer.map_err(|(failure, _)| failure)).collect())
            }
            Sent::NotYet(failure) | Sent::Failed(failure) => Err(failure),
        }
    }

    /// Loads the library, unless it was loaded since `seen`.
    pub(super) async fn load(
        &self,
        library: &FunctionLibrary,
        seen: u64,
        deadline: &Deadline,
    ) -> Result<(), CallFailure> {
        let late = || self.unreachable("the library of functions could not be loaded in time");
        let _turn = deadline.meet(self.loading.acquire()).await.ok_or_else(late)?;
        if self.loads.load(Ordering::Relaxed) != seen {
            return Ok(());
        }
        match self.ask(RedisCommand::new("FUNCTION").arg("LOAD").arg(&library.code), deadline).await {
            Ok(_) => {}
            // Another server has loaded it meanwhile; its name says that it is the same.
            Err(failure) if failure.text.contains("already exists") => {}
            // What fails is the loading: the functions did not run.
            Err(CallFailure { cause, text, .. }) => {
                let text = format!("the library of functions {} cannot be loaded: {text}", library.name);
                return Err(CallFailure { outcome: tallystone_ports::EffectOutcome::NotApplied, cause, text });
            }
        }
        self.loads.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// How often the library was loaded.
    pub(super) fn loads(&self) -> u64 {
        self.loads.load(Ordering::Relaxed)
    }

    /// How many attempts to connect failed since it was last reached, and why the last one did.
    pub(super) fn last_failure(&self) -> (u32, Option<CallFailure>) {
        self.outage.last_failure()
    }

    /// Lets go of all connections.
    pub(super) fn close(&self) {
        self.connections.iter().chain(&self.wait_connections).for_each(ConnectionSlot::close);
    }

    /// Retires the node because another one has taken its place: sends nothing more to it. Calls in flight end at once,
    /// with an unknown outcome.
    pub(super) fn retire(&self) {
        self.retired.cancel();
        self.close();
    }

    /// Comes back once it is retired.
    pub(super) async fn retired(&self) {
        self.retired.cancelled().await;
    }

    /// The connections that wait for its replicas.
    pub(super) fn wait_connections(&self) -> &[ConnectionSlot] {
        &self.wait_connections
    }

    /// The failure of what was asked of it when another one took its place.
    pub(super) fn replaced(&self, cause: FailureCause) -> CallFailure {
        CallFailure::new(cause, format!("Redis at {}: another node has taken its place", self.endpoint.address))
    }

    /// A connection, of those with the fewest calls in flight. While all of them are busy, a call makes another one; if
    /// it cannot be made, a busy one serves.
    async fn connection(&self) -> Result<(&ConnectionSlot, Arc<RedisConnection>), CallFailure> {
        let with = |status| self.connections.iter().filter(move |slot| slot.status() == status);
        let up = with(ConnectionStatus::Up).min_by_key(|slot| slot.in_flight());
        let down = with(ConnectionStatus::Down).next();
        let pauses = !self.outage.pause_left(self.clock.elapsed()).is_zero();
        let first = match (up, down) {
            (Some(up), None) => up,
            (Some(up), Some(_)) if pauses || up.in_flight() == 0 => up,
            (_, Some(down)) => down,
            // All of them are being made.
            (None, None) => &self.connections[0],
        };
        let made = first.connection(&self.endpoint, &self.outage, &self.clock).await;
        match (made, up) {
            (Ok(connection), _) => Ok((first, connection)),
            (Err(_), Some(up)) => Ok((up, up.connection(&self.endpoint, &self.outage, &self.clock).await?)),
            (Err(failure), None) => Err(failure),
        }
    }

    async fn acquire(&self, commands: &[RedisCommand]) -> (SemaphorePermit<'_>, SemaphorePermit<'_>) {
        const OPEN: &str = "the semaphore is never closed";
        let size: usize = commands.iter().map(RedisCommand::size).sum();
        let call = self.call_permits.acquire().await.expect(OPEN);
        // A call is bounded below the permits that there are.
        let wanted = u32::try_from(size / BYTES_A_PERMIT + 1).unwrap_or(u32::MAX);
        (call, self.byte_permits.acquire_many(wanted).await.expect(OPEN))
    }

    fn not_connected(&self, failure: CallFailure) -> Sent {
        let is_for_good = match failure.cause {
            FailureCause::Unauthenticated | FailureCause::Denied => true,
            FailureCause::Moving => false,
            _ => self.outage.lasts(self.clock.elapsed()) >= REDIS_ABSENCE_WAITED_MAX, // it may come back soon
        };
        if is_for_good { Sent::Failed(failure) } else { Sent::NotYet(failure) }
    }

    /// A primary that became a replica answers reads from what it has. It is left at once: a new connection finds out.
    fn judge(&self, slot: &ConnectionSlot, text: &str) -> (CallFailure, Advice) {
        if text.starts_with("READONLY") {
            slot.close();
        }
        judge(&self.endpoint.address, text)
    }

    fn unreachable(&self, why: &str) -> CallFailure {
        CallFailure::new(FailureCause::Unreachable, format!("Redis at {}: {why}", self.endpoint.address))
    }
}
