//! Where the keyspaces of slices are made: a thread beside the committer.
//!
//! A new keyspace takes about ten syncs. The first event of each slice needs three of them, and with hundreds of datasets
//! of short slices that is all that a disk can do. So an append waits for the keyspaces of its slices before it goes to
//! the committer, which then has only rows to write, and appends elsewhere do not wait for these.
//!
//! The store library takes no commit while it makes a keyspace. So the thread rests after each one while commits wait.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::core::Core;
use super::error::OpenError;
use super::slices::Spaces;
use crate::domain::Timestamp;
use crate::domain::counter::DatasetId;

/// How long commits have the store to themselves after a keyspace: about as long as one takes.
const REST: Duration = Duration::from_millis(10);

/// The slices that want keyspaces. There are at most as many as slices, and each waiter is an append.
#[derive(Default)]
pub struct Wanted {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Default)]
struct State {
    /// The slices, in the order in which they were wanted.
    order: VecDeque<Key>,
    /// Those who wait, by slice.
    waiters: HashMap<Key, Waiters>,
    is_closed: bool,
}

/// A slice: its dataset and its start.
type Key = (DatasetId, Timestamp);
type Waiters = Vec<oneshot::Sender<()>>;

impl Wanted {
    /// Waits until the keyspaces of a slice were made, or could not be: then the committer tries it once more, and tells
    /// why it fails.
    pub async fn make(&self, dataset: DatasetId, start: Timestamp) {
        let (answer, answered) = oneshot::channel();
        {
            let mut state = self.state.lock();
            if state.is_closed {
                return;
            }
            let slice = (dataset, start);
            state.waiters.entry(slice).or_default().push(answer);
            if state.waiters[&slice].len() == 1 {
                state.order.push_back(slice);
            }
        }
        self.news.notify_one();
        // A thread that ended leaves the work to the committer.
        let _ = answered.await;
    }

    /// Makes nothing any more; the thread ends, and nobody waits.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.order.clear();
        state.waiters.clear();
        self.news.notify_all();
    }

    /// The next slice with those who wait for it; waits for one. None once it is closed.
    fn next(&self) -> Option<(Key, Waiters)> {
        let mut state = self.state.lock();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(slice) = state.order.pop_front() {
                return Some((slice, state.waiters.remove(&slice).unwrap_or_default()));
            }
            self.news.wait(&mut state);
        }
    }
}

/// Starts the thread. It ends when the wishes are closed.
pub fn start(core: Arc<Core>) -> Result<JoinHandle<()>, OpenError> {
    let thread = std::thread::Builder::new().name("maker".to_owned());
    let work = move || {
        if catch_unwind(AssertUnwindSafe(|| work(&core))).is_err() {
            tracing::error!("the thread that makes keyspaces panicked; the committer makes them from now on");
        }
        core.wanted.close();
    };
    thread.spawn(work).map_err(OpenError::Thread)
}

fn work(core: &Core) {
    let rest = || {
        if core.queue.bytes() > 0 {
            std::thread::sleep(REST);
        }
    };
    while let Some(((dataset, start), waiters)) = core.wanted.next() {
        if core.slices.lacks_spaces(dataset, start) {
            let made = core.read("make keyspaces", |library| Ok(Spaces::make(library, dataset, start, rest)));
            match made {
                Ok(Ok(spaces)) => core.slices.note_spaces(dataset, start, spaces),
                Ok(Err(error)) => tracing::debug!(%error, "the keyspaces of a slice could not be made"),
                // The store is closing.
                Err(_) => {}
            }
        }
        for waiter in waiters {
            // An append that was given up has nobody to tell.
            let _ = waiter.send(());
        }
        rest();
    }
}
