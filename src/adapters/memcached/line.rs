//! The way to one server: the commands of many callers in few round trips.
//!
//! A round trip costs more than the commands in it. Whoever comes while none is under way begins one; what comes meanwhile waits
//! for it to end and goes out together. So a caller alone never waits, and under load each waits for
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
    /// Whether a silence of it counts: a connection that broke under many callers broke once.
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
                travel(&queue, trip).await;
                drop(room);
                next = queue.lock().next();
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
async fn travel(queue: &Mutex<Queue>, mut trip: Vec<Waiting>) {
    let Some(client) = trip.first().map(|waiting| waiting.client.clone()) else { return };
    let counts: Vec<usize> = trip.iter().map(|waiting| waiting.commands.len()).collect();
    let commands: Vec<Op> = trip.iter_mut().flat_map(|waiting| std::mem::take(&mut waiting.commands)).collect();
    let mut refused = false;
    let answers: Vec<Answers> = match client.run_batch(commands).await {
        Ok(results) => {
            let mut results = results.into_iter().map(|result| own(result, &mut refused));
            counts.into_iter().map(|count| Ok(results.by_ref().take(count).collect())).collect()
        }
        Err(error) => {
            let error = Arc::new(error);
            counts.into_iter().map(|_| Err(Arc::clone(&error))).collect()
        }
    };
    if refused {
        // Before anybody is told: some ask again at once.
        queue.lock().alone = MEMCACHED_ALONE_AFTER_REFUSAL;
    }
    let mut is_told = false;
    for (waiting, answers) in trip.into_iter().zip(answers) {
        let speaks = !is_told && is_silence(&answers);
        // Whoever waited may have gone; then another one speaks.
        let sent = waiting.told.send(Told { answers, speaks });
        is_told |= speaks && sent.is_ok();
    }
}

/// Whether a caller got no answer.
fn is_silence(answers: &Answers) -> bool {
    match answers {
        Ok(results) => results.first().is_some_and(|first| first.as_ref().is_err_and(fault::is_silence)),
        Err(error) => fault::is_silence(error),
    }
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
