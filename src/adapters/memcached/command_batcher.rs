//! Coalesces the commands of many callers to one server into few round trips.
//!
//! A round trip costs more than its commands. A call without one in flight starts one. Calls that arrive meanwhile wait
//! for its end and share the next one. So a single caller never waits, and under load each call waits for one round
//! trip before its own.
//!
//! The client library reports the outcome of each command until the server refuses one. Then it reads no further, and
//! the outcome of the commands behind it is unknown. Only the refused command gets the refusal. A key with another kind
//! of value would do this again and again, so after the refusal of a key, calls go alone for a while.
//!
//! A round trip records for all its callers whether the server answered. Once the server is paused, no more commands
//! are sent, and the waiting callers fail at once.

use std::sync::Arc;

use memcache::exp::{Error, Op};
use tokio::sync::oneshot;

use crate::memcached::backoff::{Backoff, CallAdmission, ConnectionFailure};
use crate::memcached::error_mapping;
use crate::memcached::limits::{MEMCACHED_ALONE_AFTER_REFUSAL, MEMCACHED_TRIPS_AT_ONCE};
use crate::memcached::wire::{CommandResponse, ServerConnection};
use tallystone_coalesce::{CallQueue, DetachedTasks, PendingWork};
use tallystone_ports::Clock;

/// The outcome of each command of a caller, or of all of them.
pub(super) type CallerResponses = Result<Vec<Result<CommandResponse, Error>>, Arc<Error>>;

/// The result for a caller.
pub(super) enum SendOutcome {
    /// The call went alone: it records itself whether the server answered.
    Alone(CallerResponses),
    /// The call shared a round trip, which has recorded that.
    Shared(CallerResponses),
    /// Nothing was sent, because the server is paused.
    Paused,
}

/// The commands that wait or are in flight.
pub(super) struct CommandBatcher {
    shared: Arc<BatcherState>,
    trips: DetachedTasks,
}

/// The state that callers and round trips share.
struct BatcherState {
    queue: CallQueue<CommandQueue>,
    backoff: Arc<Backoff>,
    clock: Arc<dyn Clock>,
}

struct CommandQueue {
    waiting: Vec<PendingCommands>,
    /// The number of calls that still go alone.
    alone_calls_left: u32,
    backoff: Arc<Backoff>,
}

/// A waiting caller.
struct PendingCommands {
    connection: Arc<dyn ServerConnection>,
    commands: Vec<Op>,
    outcome_tx: oneshot::Sender<SendOutcome>,
}

impl CommandBatcher {
    /// The batcher of a server, whose health is recorded in `backoff` by the time of `clock`.
    pub(super) fn new(backoff: Arc<Backoff>, clock: Arc<dyn Clock>) -> Self {
        let queue = CommandQueue { waiting: Vec::new(), alone_calls_left: 0, backoff: Arc::clone(&backoff) };
        let shared = BatcherState { queue: CallQueue::new(queue), backoff, clock };
        Self { shared: Arc::new(shared), trips: DetachedTasks::default() }
    }

    /// Sends commands, together with those of others while round trips are in flight. A caller that goes away does not
    /// affect others, and its commands are not sent if they were not sent yet.
    pub(super) async fn send(&self, wire: Arc<dyn ServerConnection>, commands: &[Op]) -> SendOutcome {
        let (outcome_tx, outcome) = oneshot::channel();
        let started = {
            let mut queue = self.shared.queue.lock();
            if queue.take_alone_call() {
                None
            } else {
                let (connection, commands) = (Arc::clone(&wire), commands.to_vec());
                queue.waiting.push(PendingCommands { connection, commands, outcome_tx });
                Some(queue.start())
            }
        };
        let Some(trip) = started else {
            return SendOutcome::Alone(wire.send(commands.to_vec()).await.map_err(Arc::new));
        };
        if trip.is_some() {
            // The task continues for calls that arrive meanwhile.
            let shared = Arc::clone(&self.shared);
            self.trips.spawn(async move {
                shared.queue.run(trip, |trip| run_round_trip(&shared, trip), || {}).await;
            });
        }
        outcome.await.unwrap_or_else(|_| SendOutcome::Alone(Err(Arc::new(stopped()))))
    }
}

impl BatcherState {
    /// Records whether the server answered a round trip.
    fn record_health(&self, answers: &[CallerResponses]) {
        let silences = answers.iter().flat_map(|answers| match answers {
            Ok(results) => {
                results.iter().filter_map(|result| error_mapping::connection_failure(result.as_ref().err()?)).collect()
            }
            Err(error) => Vec::from_iter(error_mapping::connection_failure(error)),
        });
        let worst = silences.reduce(|one, other| if one == ConnectionFailure::TimedOut { one } else { other });
        match worst {
            Some(silence) => self.backoff.record_failure(self.clock.elapsed(), CallAdmission::Normal, silence),
            None => self.backoff.record_success(),
        }
    }
}

impl CommandQueue {
    fn take_alone_call(&mut self) -> bool {
        let alone = self.alone_calls_left > 0 && !self.backoff.is_down();
        self.alone_calls_left -= u32::from(alone);
        alone
    }
}

impl PendingWork for CommandQueue {
    type Batch = Vec<PendingCommands>;

    /// All waiting callers fit, because permits bound them. After a refusal they go one by one. If the server is
    /// paused, none goes, and all are answered.
    fn next(&mut self, in_flight: usize) -> Option<Vec<PendingCommands>> {
        if self.backoff.is_down() {
            for waiting in self.waiting.drain(..) {
                // The caller may have stopped waiting.
                let _ = waiting.outcome_tx.send(SendOutcome::Paused);
            }
        }
        self.waiting.retain(|waiting| !waiting.outcome_tx.is_closed());
        if self.waiting.is_empty() || in_flight >= MEMCACHED_TRIPS_AT_ONCE {
            return None;
        }
        let fitting = if self.alone_calls_left > 0 { 1 } else { self.waiting.len() };
        Some(self.waiting.drain(..fitting).collect())
    }
}

/// Makes a round trip for several callers, and answers each.
async fn run_round_trip(shared: &BatcherState, mut trip: Vec<PendingCommands>) {
    let Some(wire) = trip.first().map(|waiting| Arc::clone(&waiting.connection)) else { return };
    let counts: Vec<usize> = trip.iter().map(|waiting| waiting.commands.len()).collect();
    let commands: Vec<Op> = trip.iter_mut().flat_map(|waiting| std::mem::take(&mut waiting.commands)).collect();
    let mut refused = None;
    let answers: Vec<CallerResponses> = match wire.send(commands).await {
        Ok(results) => {
            let mut results = results.into_iter().map(|result| resolve_result(result, &mut refused));
            counts.into_iter().map(|count| Ok(results.by_ref().take(count).collect())).collect()
        }
        Err(error) => {
            let error = Arc::new(error);
            counts.into_iter().map(|_| Err(Arc::clone(&error))).collect()
        }
    };
    // Before the callers are answered, because some call again at once.
    if refused == Some(RefusalKind::Key) {
        shared.queue.lock().alone_calls_left = MEMCACHED_ALONE_AFTER_REFUSAL;
    }
    shared.record_health(&answers);
    for (waiting, answers) in trip.into_iter().zip(answers) {
        // The caller may have stopped waiting.
        let _ = waiting.outcome_tx.send(SendOutcome::Shared(answers));
    }
}

/// The kind of a refusal in a round trip.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RefusalKind {
    /// The command does not fit the value of its key, and would be refused again.
    Key,
    /// The server did not know the command.
    Command,
}

/// The result of one command: the first command with the refusal gets it, and the outcome of all behind it is unknown.
fn resolve_result(
    result: Result<CommandResponse, Error>,
    refused: &mut Option<RefusalKind>,
) -> Result<CommandResponse, Error> {
    match result {
        Err(error) if refused.is_some() => Err(error_mapping::unread_after_refusal(error)),
        Err(error) => {
            if error_mapping::is_refusal(&error) {
                *refused =
                    Some(if error_mapping::is_key_refusal(&error) { RefusalKind::Key } else { RefusalKind::Command });
            }
            Err(error)
        }
        Ok(result) => Ok(result),
    }
}

/// The result of commands whose round trip ended with this process.
fn stopped() -> Error {
    let source = Error::Io(std::io::Error::from(std::io::ErrorKind::ConnectionAborted));
    Error::Ambiguous { key: Vec::new(), source: Box::new(source) }
}
