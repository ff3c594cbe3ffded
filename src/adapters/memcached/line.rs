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

use crate::adapters::memcached::backoff::{Admission, Backoff, Silence};
use crate::adapters::memcached::fault;
use crate::adapters::memcached::wire::{Answer, Wire};
use crate::domain::limits::{MEMCACHED_ALONE_AFTER_REFUSAL, MEMCACHED_TRIPS_AT_ONCE};
use crate::ports::Clock;

/// What became of each command of a caller, or of all at once.
pub(super) type Answers = Result<Vec<Result<Answer, Error>>, Arc<Error>>;

/// What a caller is told.
pub(super) enum Told {
    /// It travelled alone: whether the server answered is for itself to note.
    Alone(Answers),
    /// It travelled with others, and the round trip has noted that.
    Shared(Answers),
    /// Nothing was sent, because the server is paused.
    Paused,
}

/// The commands that wait or are under way.
pub(super) struct Line {
    shared: Arc<Shared>,
    trips: Mutex<JoinSet<()>>,
}

/// What callers and round trips share.
struct Shared {
    queue: Mutex<Queue>,
    backoff: Arc<Backoff>,
    clock: Arc<dyn Clock>,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Waiting>,
    under_way: usize,
    /// So many calls go alone yet.
    alone: u32,
}

/// A caller that waits.
struct Waiting {
    wire: Arc<dyn Wire>,
    commands: Vec<Op>,
    told: oneshot::Sender<Told>,
}

impl Line {
    /// The line before a server, whose health is noted in `backoff` by the time of `clock`.
    pub(super) fn new(backoff: Arc<Backoff>, clock: Arc<dyn Clock>) -> Self {
        Self { shared: Arc::new(Shared { queue: Mutex::default(), backoff, clock }), trips: Mutex::default() }
    }

    /// Sends commands, together with those of others where round trips are under way. A caller that goes away takes nobody
    /// along, and what it wanted is not sent any more if it was not yet.
    pub(super) async fn run(&self, wire: Arc<dyn Wire>, commands: &[Op]) -> Told {
        let commands = commands.to_vec();
        let (told, answer) = oneshot::channel();
        let next = {
            let mut queue = self.shared.queue.lock();
            if self.shared.backoff.is_down() {
                return Told::Paused;
            }
            match queue.goes_alone() {
                true => None,
                false => {
                    queue.waiting.push(Waiting { wire: Arc::clone(&wire), commands: commands.clone(), told });
                    Some(queue.next())
                }
            }
        };
        let Some(next) = next else {
            return Told::Alone(wire.send(commands).await.map_err(Arc::new));
        };
        if let Some(trip) = next {
            self.begin(trip);
        }
        answer.await.unwrap_or_else(|_| Told::Alone(Err(Arc::new(stopped()))))
    }

    /// Travels in a task of its own, which goes on for those who come meanwhile.
    fn begin(&self, trip: Vec<Waiting>) {
        let shared = Arc::clone(&self.shared);
        let mut trips = self.trips.lock();
        while trips.try_join_next().is_some() {}
        trips.spawn(async move {
            let mut next = Some(trip);
            while let Some(trip) = next {
                let room = Room(Arc::clone(&shared));
                travel(&shared, trip).await;
                drop(room);
                next = shared.next();
            }
        });
    }
}

impl Shared {
    /// The next round trip; none, and nobody waits any more, if the server is paused.
    fn next(&self) -> Option<Vec<Waiting>> {
        let mut queue = self.queue.lock();
        if !self.backoff.is_down() {
            return queue.next();
        }
        for waiting in queue.waiting.drain(..) {
            // Whoever waited may have gone.
            let _ = waiting.told.send(Told::Paused);
        }
        None
    }

    /// Notes whether the server answered a round trip.
    fn note(&self, answers: &[Answers]) {
        let silences = answers.iter().flat_map(|answers| match answers {
            Ok(results) => results.iter().filter_map(|result| fault::silence(result.as_ref().err()?)).collect(),
            Err(error) => Vec::from_iter(fault::silence(error)),
        });
        let worst = silences.reduce(|one, other| if one == Silence::Late { one } else { other });
        match worst {
            Some(silence) => self.backoff.failed(self.clock.elapsed(), Admission::Usual, silence),
            None => self.backoff.answered(),
        }
    }
}

/// What a round trip takes of those that may be under way; given back however it ends.
struct Room(Arc<Shared>);

impl Drop for Room {
    fn drop(&mut self) {
        self.0.queue.lock().under_way -= 1;
    }
}

impl Queue {
    fn goes_alone(&mut self) -> bool {
        let alone = self.alone > 0;
        self.alone = self.alone.saturating_sub(1);
        alone
    }

    /// The next round trip, if one may begin; it is under way from now on. All that wait fit: a caller has a place, and there
    /// are few. After a refusal they go one by one.
    fn next(&mut self) -> Option<Vec<Waiting>> {
        self.waiting.retain(|waiting| !waiting.told.is_closed());
        if self.under_way >= MEMCACHED_TRIPS_AT_ONCE {
            return None;
        }
        (!self.waiting.is_empty()).then(|| {
            self.under_way += 1;
            let fitting = if self.alone > 0 { 1 } else { self.waiting.len() };
            self.waiting.drain(..fitting).collect()
        })
    }
}

/// Makes a round trip of several callers, and tells each.
async fn travel(shared: &Shared, mut trip: Vec<Waiting>) {
    let Some(wire) = trip.first().map(|waiting| Arc::clone(&waiting.wire)) else { return };
    let counts: Vec<usize> = trip.iter().map(|waiting| waiting.commands.len()).collect();
    let commands: Vec<Op> = trip.iter_mut().flat_map(|waiting| std::mem::take(&mut waiting.commands)).collect();
    let mut refused = None;
    let answers: Vec<Answers> = match wire.send(commands).await {
        Ok(results) => {
            let mut results = results.into_iter().map(|result| own(result, &mut refused));
            counts.into_iter().map(|count| Ok(results.by_ref().take(count).collect())).collect()
        }
        Err(error) => {
            let error = Arc::new(error);
            counts.into_iter().map(|_| Err(Arc::clone(&error))).collect()
        }
    };
    // Before anybody is told: some ask again at once.
    if refused == Some(Refused::Key) {
        shared.queue.lock().alone = MEMCACHED_ALONE_AFTER_REFUSAL;
    }
    shared.note(&answers);
    for (waiting, answers) in trip.into_iter().zip(answers) {
        // Whoever waited may have gone.
        let _ = waiting.told.send(Told::Shared(answers));
    }
}

/// What a server refused in a round trip.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refused {
    /// What was asked of a key: it would be refused again.
    Key,
    /// A command that it did not make out.
    Command,
}

/// The result of a command by itself: a refusal is that of the first command which has it, and all behind it are in doubt.
fn own(result: Result<Answer, Error>, refused: &mut Option<Refused>) -> Result<Answer, Error> {
    match result {
        Err(error) if refused.is_some() => Err(fault::behind_a_refusal(error)),
        Err(error) => {
            if fault::is_refusal(&error) {
                *refused = Some(if fault::is_of_the_key(&error) { Refused::Key } else { Refused::Command });
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
