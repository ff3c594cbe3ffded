//! The way to one server: the commands of many callers in few round trips.
//!
//! A round trip costs more than the commands in it. Whoever comes while none is under way begins one; what comes meanwhile waits
//! for it to end and goes out together. So a caller alone never waits, and under load each waits for
//! one round trip before its own.
//!
//! The client says of each command by itself what became of it, until the server refuses one: then it reads no further, and
//! of all that came behind it nobody knows. Only the refused command is told the refusal. A key that holds something else
//! would leave others in doubt again and again, so after the refusal of a key calls go alone for a while.
//!
//! A round trip notes for all its callers whether the server answered. Once the server is paused nobody is sent any more:
//! those who wait are told so at once.

use std::sync::Arc;

use memcache::exp::{Error, Op};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::adapters::memcached::backoff::{Backoff, CallAdmission, ConnectionFailure};
use crate::adapters::memcached::error_mapping;
use crate::adapters::memcached::wire::{CommandResponse, ServerConnection};
use crate::domain::limits::{MEMCACHED_ALONE_AFTER_REFUSAL, MEMCACHED_TRIPS_AT_ONCE};
use crate::ports::Clock;

/// What became of each command of a caller, or of all at once.
pub(super) type CallerResponses = Result<Vec<Result<CommandResponse, Error>>, Arc<Error>>;

/// What a caller is told.
pub(super) enum SendOutcome {
    /// It travelled alone: whether the server answered is for itself to note.
    Alone(CallerResponses),
    /// It travelled with others, and the round trip has noted that.
    Shared(CallerResponses),
    /// Nothing was sent, because the server is paused.
    Paused,
}

/// The commands that wait or are under way.
pub(super) struct CommandBatcher {
    shared: Arc<BatcherState>,
    trips: Mutex<JoinSet<()>>,
}

/// What callers and round trips share.
struct BatcherState {
    queue: Mutex<CommandQueue>,
    backoff: Arc<Backoff>,
    clock: Arc<dyn Clock>,
}

#[derive(Default)]
struct CommandQueue {
    waiting: Vec<PendingCommands>,
    in_flight: usize,
    /// So many calls go alone yet.
    alone_calls_left: u32,
}

/// A caller that waits.
struct PendingCommands {
    connection: Arc<dyn ServerConnection>,
    commands: Vec<Op>,
    outcome_tx: oneshot::Sender<SendOutcome>,
}

impl CommandBatcher {
    /// The line before a server, whose health is noted in `backoff` by the time of `clock`.
    pub(super) fn new(backoff: Arc<Backoff>, clock: Arc<dyn Clock>) -> Self {
        Self { shared: Arc::new(BatcherState { queue: Mutex::default(), backoff, clock }), trips: Mutex::default() }
    }

    /// Sends commands, together with those of others where round trips are under way. A caller that goes away takes nobody
    /// along, and what it wanted is not sent any more if it was not yet.
    pub(super) async fn send(&self, wire: Arc<dyn ServerConnection>, commands: &[Op]) -> SendOutcome {
        let commands = commands.to_vec();
        let (told, answer) = oneshot::channel();
        let next = {
            let mut queue = self.shared.queue.lock();
            if self.shared.backoff.is_down() {
                return SendOutcome::Paused;
            }
            match queue.take_alone_call() {
                true => None,
                false => {
                    queue.waiting.push(PendingCommands {
                        connection: Arc::clone(&wire),
                        commands: commands.clone(),
                        outcome_tx: told,
                    });
                    Some(queue.next_round_trip())
                }
            }
        };
        let Some(next) = next else {
            return SendOutcome::Alone(wire.send(commands).await.map_err(Arc::new));
        };
        if let Some(trip) = next {
            self.spawn_round_trips(trip);
        }
        answer.await.unwrap_or_else(|_| SendOutcome::Alone(Err(Arc::new(stopped()))))
    }

    /// Travels in a task of its own, which goes on for those who come meanwhile.
    fn spawn_round_trips(&self, trip: Vec<PendingCommands>) {
        let shared = Arc::clone(&self.shared);
        let mut trips = self.trips.lock();
        while trips.try_join_next().is_some() {}
        trips.spawn(async move {
            let mut next = Some(trip);
            while let Some(trip) = next {
                let room = RoundTripPermit(Arc::clone(&shared));
                run_round_trip(&shared, trip).await;
                drop(room);
                next = shared.next_round_trip();
            }
        });
    }
}

impl BatcherState {
    /// The next round trip; none, and nobody waits any more, if the server is paused.
    fn next_round_trip(&self) -> Option<Vec<PendingCommands>> {
        let mut queue = self.queue.lock();
        if !self.backoff.is_down() {
            return queue.next_round_trip();
        }
        for waiting in queue.waiting.drain(..) {
            // Whoever waited may have gone.
            let _ = waiting.outcome_tx.send(SendOutcome::Paused);
        }
        None
    }

    /// Notes whether the server answered a round trip.
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

/// What a round trip takes of those that may be under way; given back however it ends.
struct RoundTripPermit(Arc<BatcherState>);

impl Drop for RoundTripPermit {
    fn drop(&mut self) {
        self.0.queue.lock().in_flight -= 1;
    }
}

impl CommandQueue {
    fn take_alone_call(&mut self) -> bool {
        let alone = self.alone_calls_left > 0;
        self.alone_calls_left = self.alone_calls_left.saturating_sub(1);
        alone
    }

    /// The next round trip, if one may begin; it is under way from now on. All that wait fit: a caller has a place, and there
    /// are few. After a refusal they go one by one.
    fn next_round_trip(&mut self) -> Option<Vec<PendingCommands>> {
        self.waiting.retain(|waiting| !waiting.outcome_tx.is_closed());
        if self.in_flight >= MEMCACHED_TRIPS_AT_ONCE {
            return None;
        }
        (!self.waiting.is_empty()).then(|| {
            self.in_flight += 1;
            let fitting = if self.alone_calls_left > 0 { 1 } else { self.waiting.len() };
            self.waiting.drain(..fitting).collect()
        })
    }
}

/// Makes a round trip of several callers, and tells each.
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
    // Before anybody is told: some ask again at once.
    if refused == Some(RefusalKind::Key) {
        shared.queue.lock().alone_calls_left = MEMCACHED_ALONE_AFTER_REFUSAL;
    }
    shared.record_health(&answers);
    for (waiting, answers) in trip.into_iter().zip(answers) {
        // Whoever waited may have gone.
        let _ = waiting.outcome_tx.send(SendOutcome::Shared(answers));
    }
}

/// What a server refused in a round trip.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RefusalKind {
    /// What was asked of a key: it would be refused again.
    Key,
    /// A command that it did not make out.
    Command,
}

/// The result of a command by itself: a refusal is that of the first command which has it, and all behind it are in doubt.
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

/// What is known of commands whose round trip was ended with this process.
fn stopped() -> Error {
    let source = Error::Io(std::io::Error::from(std::io::ErrorKind::ConnectionAborted));
    Error::Ambiguous { key: Vec::new(), source: Box::new(source) }
}
