//! The way to one server: the commands of many callers in few round trips.
//!
//! A round trip costs more than the commands in it. Whoever comes while few are under way begins one; what comes while there
//! are more waits for one of them to end and goes out together. So a caller alone never waits, and under load each waits for
//! one round trip before its own.
//!
//! The client says of each command by itself what became of it, until the server refuses one: then it reads no further, and
//! of all that came behind it nobody knows. Only the refused command is told the refusal. A key that holds something else
//! would leave others in doubt again and again, so after a refusal calls go alone for a while.

use std::sync::Arc;

use memcache::exp::{AsyncMetaClient, Error, Op, OpResult};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::adapters::memcached::fault;
use crate::domain::limits::{MEMCACHED_ALONE_AFTER_REFUSAL, MEMCACHED_TRIPS_AT_ONCE};

/// What became of each command of a caller, or of all at once.
pub(super) type Answers = Result<Vec<Result<OpResult, Error>>, Arc<Error>>;

/// What a caller is told.
pub(super) struct Told {
    /// Of its commands.
    pub(super) answers: Answers,
    /// Whether it speaks for its round trip: a connection that broke under many callers broke once.
    pub(super) speaks: bool,
}

impl Told {
    /// Of a caller that travelled alone.
    pub(super) fn alone(answers: Answers) -> Self {
        Self { answers, speaks: true }
    }
}

/// The commands that wait or are under way.
#[derive(Default)]
pub(super) struct Line {
    queue: Arc<Mutex<Queue>>,
    trips: Mutex<JoinSet<()>>,
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
    client: AsyncMetaClient,
    commands: Vec<Op>,
    told: oneshot::Sender<Told>,
}

impl Line {
    /// Sends commands, together with those of others where round trips are under way. A caller that goes away takes nobody
    /// along, and what it wanted is not sent any more if it was not yet.
    pub(super) async fn run(&self, client: AsyncMetaClient, commands: &[Op]) -> Told {
        let commands = commands.to_vec();
        if self.queue.lock().goes_alone() {
            return Told::alone(client.run_batch(commands).await.map_err(Arc::new));
        }
        let (told, answer) = oneshot::channel();
        let next = {
            let mut queue = self.queue.lock();
            queue.waiting.push(Waiting { client, commands, told });
            queue.next()
        };
        if let Some(trip) = next {
            self.begin(trip);
        }
        answer.await.unwrap_or_else(|_| Told::alone(Err(Arc::new(stopped()))))
    }

    /// Travels in a task of its own, which goes on for those who come meanwhile.
    fn begin(&self, trip: Vec<Waiting>) {
        let queue = Arc::clone(&self.queue);
        let mut trips = self.trips.lock();
        while trips.try_join_next().is_some() {}
        trips.spawn(async move {
            let mut next = Some(trip);
            while let Some(trip) = next {
                let room = Room(Arc::clone(&queue));
                let was_refused = travel(trip).await;
                drop(room);
                let mut queue = queue.lock();
                if was_refused {
                    queue.alone = MEMCACHED_ALONE_AFTER_REFUSAL;
                }
                next = queue.next();
            }
        });
    }
}

/// What a round trip takes of those that may be under way; given back however it ends.
struct Room(Arc<Mutex<Queue>>);

impl Drop for Room {
    fn drop(&mut self) {
        self.0.lock().under_way -= 1;
    }
}

impl Queue {
    fn goes_alone(&mut self) -> bool {
        let alone = self.alone > 0;
        self.alone = self.alone.saturating_sub(1);
        alone
    }

    /// The next round trip, if one may begin; it is under way from now on. All that wait fit: a caller has a place, and there
    /// are few.
    fn next(&mut self) -> Option<Vec<Waiting>> {
        self.waiting.retain(|waiting| !waiting.told.is_closed());
        if self.under_way >= MEMCACHED_TRIPS_AT_ONCE {
            return None;
        }
        (!self.waiting.is_empty()).then(|| {
            self.under_way += 1;
            std::mem::take(&mut self.waiting)
        })
    }
}

/// Makes a round trip of several callers; answers whether the server refused a command of it.
async fn travel(mut trip: Vec<Waiting>) -> bool {
    let Some(client) = trip.first().map(|waiting| waiting.client.clone()) else { return false };
    let counts: Vec<usize> = trip.iter().map(|waiting| waiting.commands.len()).collect();
    let commands: Vec<Op> = trip.iter_mut().flat_map(|waiting| std::mem::take(&mut waiting.commands)).collect();
    let answered = client.run_batch(commands).await.map_err(Arc::new);
    let mut speaks = true;
    let mut results = match answered {
        Ok(results) => results.into_iter(),
        Err(error) => {
            for waiting in trip {
                // Whoever waited may have gone.
                let _ = waiting.told.send(Told { answers: Err(Arc::clone(&error)), speaks });
                speaks = false;
            }
            return false;
        }
    };
    let mut refused = false;
    for (waiting, count) in trip.into_iter().zip(counts) {
        let answers = results.by_ref().take(count).map(|result| own(result, &mut refused)).collect();
        let _ = waiting.told.send(Told { answers: Ok(answers), speaks });
        speaks = false;
    }
    refused
}

/// The result of a command by itself: a refusal is that of the first command which has it, and all behind it are in doubt.
fn own(result: Result<OpResult, Error>, refused: &mut bool) -> Result<OpResult, Error> {
    match result {
        Err(error) if *refused => Err(fault::behind_a_refusal(error)),
        Err(error) => {
            *refused = fault::is_refusal(&error);
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
