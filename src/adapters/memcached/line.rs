//! The way to one server: the commands of many callers in few round trips.
//!
//! A round trip costs more than the commands in it. Whoever comes while few are under way begins one; what comes while there
//! are more waits for one of them to end and goes out together. So a caller alone never waits, and under load each waits for
//! one round trip before its own. The client says of each command by itself what became of it, so nobody shares a failure
//! but that of the connection.

use std::sync::Arc;

use memcache::exp::{AsyncMetaClient, Error, Op, OpResult};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::domain::limits::MEMCACHED_TRIPS_AT_ONCE;

/// What became of each command of a caller, or of all at once.
pub(super) type Answers = Result<Vec<Result<OpResult, Error>>, Arc<Error>>;

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
}

/// A caller that waits.
struct Waiting {
    commands: Vec<Op>,
    told: oneshot::Sender<Answers>,
}

impl Line {
    /// Sends commands, together with those of others where round trips are under way. A caller that goes away takes nobody
    /// along, and what it wanted is not sent any more if it was not yet.
    pub(super) async fn run(&self, client: AsyncMetaClient, commands: &[Op]) -> Answers {
        let (told, answer) = oneshot::channel();
        let next = {
            let mut queue = self.queue.lock();
            queue.waiting.push(Waiting { commands: commands.to_vec(), told });
            queue.next()
        };
        if let Some(trip) = next {
            self.begin(client, trip);
        }
        answer.await.unwrap_or_else(|_| Err(Arc::new(stopped())))
    }

    /// Travels in a task of its own, which goes on for those who come meanwhile.
    fn begin(&self, client: AsyncMetaClient, trip: Vec<Waiting>) {
        let queue = Arc::clone(&self.queue);
        let mut trips = self.trips.lock();
        while trips.try_join_next().is_some() {}
        trips.spawn(async move {
            let mut next = Some(trip);
            while let Some(trip) = next {
                let room = Room(Arc::clone(&queue));
                travel(&client, trip).await;
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
    /// The next round trip, if one may begin; it is under way from now on. All that wait fit: a caller has a place, and there
    /// are few.
    fn next(&mut self) -> Option<Vec<Waiting>> {
        if self.under_way >= MEMCACHED_TRIPS_AT_ONCE {
            return None;
        }
        self.waiting.retain(|waiting| !waiting.told.is_closed());
        (!self.waiting.is_empty()).then(|| {
            self.under_way += 1;
            std::mem::take(&mut self.waiting)
        })
    }
}

async fn travel(client: &AsyncMetaClient, mut trip: Vec<Waiting>) {
    let counts: Vec<usize> = trip.iter().map(|waiting| waiting.commands.len()).collect();
    let commands: Vec<Op> = trip.iter_mut().flat_map(|waiting| std::mem::take(&mut waiting.commands)).collect();
    match client.run_batch(commands).await {
        Ok(results) => {
            let mut results = results.into_iter();
            for (waiting, count) in trip.into_iter().zip(counts) {
                // Whoever waited may have gone.
                let _ = waiting.told.send(Ok(results.by_ref().take(count).collect()));
            }
        }
        Err(error) => {
            let error = Arc::new(error);
            for waiting in trip {
                let _ = waiting.told.send(Err(Arc::clone(&error)));
            }
        }
    }
}

/// What is known of commands whose round trip was ended with this process.
fn stopped() -> Error {
    let source = Error::Io(std::io::Error::from(std::io::ErrorKind::ConnectionAborted));
    Error::Ambiguous { key: Vec::new(), source: Box::new(source) }
}
