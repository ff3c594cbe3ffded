//! Where the keyspaces of slices are made and deleted: a thread beside the committer.
//!
//! A new keyspace takes about ten syncs. The first event of each slice needs three of them, and with hundreds of datasets
//! of short slices that is all that a disk can do. So an append waits for the keyspaces of its slices before it goes to
//! the committer, which then has only rows to write, and appends elsewhere do not wait for these. Those of a dropped slice
//! are deleted here for the same reason.
//!
//! The store library takes no commit while it makes or deletes a keyspace. So the thread rests after each one while
//! commits wait.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use fjall::Keyspace;
use hashbrown::HashMap;
use parking_lot::{Condvar, Mutex};

use super::command::{Answer, Command};
use super::core::Core;
use super::error::OpenError;
use super::library::KeyspaceError;
use super::queue::{Queue, Reserved};
use super::slices::Spaces;
use crate::domain::Timestamp;
use crate::domain::counter::DatasetId;
use crate::ports::{StoreError, StoreErrorKind};

/// How long commits have the store to themselves after a keyspace: longer than most commits take.
const REST: Duration = Duration::from_millis(5);

/// What the thread has to do: as many jobs as slices at most. The commands that wait for it hold room in the committer's
/// queue.
#[derive(Default)]
pub struct Jobs {
    state: Mutex<State>,
    news: Condvar,
    closed: Condvar,
}

#[derive(Default)]
struct State {
    /// The slices to make keyspaces for, in the order in which they were wanted.
    wanted: VecDeque<Slice>,
    /// The commands that wait for a slice, by their numbers, also while its keyspaces are made.
    waiters: HashMap<Slice, Vec<u64>>,
    commands: HashMap<u64, Waiting>,
    next_number: u64,
    dropped: VecDeque<Dropped>,
    is_closed: bool,
}

/// A slice: its dataset and its start.
type Slice = (DatasetId, Timestamp);

/// A command that waits for keyspaces.
struct Waiting {
    command: Command,
    reserved: Reserved,
    /// Of so many slices.
    slices: usize,
}

/// The keyspaces of a slice that was dropped.
struct Dropped {
    keyspaces: Vec<Keyspace>,
    answer: Answer<()>,
}

enum Job {
    Make(Slice),
    Delete(Dropped),
}

impl Jobs {
    /// Lines a command up once the keyspaces of slices were made, whether or not its caller still waits. Where they could
    /// not be made, the committer tries it once more, and tells why it fails.
    pub fn make(
        &self,
        queue: &Queue,
        dataset: DatasetId,
        starts: Vec<Timestamp>,
        command: Command,
        reserved: Reserved,
    ) {
        let mut state = self.state.lock();
        if state.is_closed || starts.is_empty() {
            drop(state);
            return queue.push_reserved(command, reserved);
        }
        let number = state.next_number;
        state.next_number += 1;
        state.commands.insert(number, Waiting { command, reserved, slices: starts.len() });
        for start in starts {
            let slice = (dataset, start);
            let waiters = state.waiters.entry(slice).or_default();
            waiters.push(number);
            if waiters.len() == 1 {
                state.wanted.push_back(slice);
            }
        }
        drop(state);
        self.news.notify_one();
    }

    /// Deletes the keyspaces of a dropped slice, and answers then. What a closed store leaves is deleted when it opens.
    pub fn delete(&self, keyspaces: Vec<Keyspace>, answer: Answer<()>) {
        let mut state = self.state.lock();
        if state.is_closed {
            drop(state);
            // A caller that stopped waiting has nobody to tell.
            let _ = answer.send(Err(StoreError::unknown(StoreErrorKind::Closed, "drop slice")));
            return;
        }
        state.dropped.push_back(Dropped { keyspaces, answer });
        drop(state);
        self.news.notify_one();
    }

    /// Does nothing any more: the thread ends, and what waits is lined up as it is.
    pub fn close(&self, queue: &Queue) {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.wanted.clear();
        state.waiters.clear();
        state.dropped.clear();
        let commands = std::mem::take(&mut state.commands);
        drop(state);
        self.news.notify_all();
        self.closed.notify_all();
        for waiting in commands.into_values() {
            queue.push_reserved(waiting.command, waiting.reserved);
        }
    }

    /// The next job; waits for one. None once the jobs are closed.
    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if state.is_closed {
                return None;
            }
            // Nobody hurries for what was dropped, but its room is wanted.
            if let Some(dropped) = state.dropped.pop_front() {
                return Some(Job::Delete(dropped));
            }
            if let Some(slice) = state.wanted.pop_front() {
                return Some(Job::Make(slice));
            }
            self.news.wait(&mut state);
        }
    }

    /// Leaves the store to commits for a moment.
    fn rest(&self) {
        let mut state = self.state.lock();
        if !state.is_closed {
            self.closed.wait_for(&mut state, REST);
        }
    }

    /// Lines up what waited for this slice as the last one; what came while it was made too.
    fn made(&self, queue: &Queue, slice: Slice) {
        let mut ready = Vec::new();
        let mut state = self.state.lock();
        for number in state.waiters.remove(&slice).into_iter().flatten() {
            let Some(waiting) = state.commands.get_mut(&number) else { continue };
            waiting.slices -= 1;
            if waiting.slices == 0 {
                ready.extend(state.commands.remove(&number));
            }
        }
        drop(state);
        for waiting in ready {
            queue.push_reserved(waiting.command, waiting.reserved);
        }
    }
}

/// Starts the thread. It ends when the jobs are closed.
pub fn start(core: Arc<Core>) -> Result<JoinHandle<()>, OpenError> {
    let thread = std::thread::Builder::new().name("maker".to_owned());
    let work = move || {
        if catch_unwind(AssertUnwindSafe(|| work(&core))).is_err() {
            tracing::error!("the thread that makes keyspaces panicked; the committer makes them from now on");
        }
        core.jobs.close(&core.queue);
    };
    thread.spawn(work).map_err(OpenError::Thread)
}

fn work(core: &Core) {
    let rest = || {
        if core.queue.is_busy() {
            core.jobs.rest();
        }
    };
    while let Some(job) = core.jobs.next() {
        match job {
            Job::Make(slice) => {
                make(core, slice, rest);
                core.jobs.made(&core.queue, slice);
            }
            Job::Delete(Dropped { keyspaces, answer }) => {
                // A caller that stopped waiting has nobody to tell.
                let _ = answer.send(delete(core, keyspaces, "drop slice", rest));
            }
        }
        rest();
    }
}

fn make(core: &Core, (dataset, start): Slice, rest: impl Fn()) {
    const OP: &str = "make keyspaces";
    if !core.slices.lacks_spaces(dataset, start) {
        return;
    }
    match core.read(OP, |library| Ok(Spaces::make(library, dataset, start, &rest))) {
        Ok(Ok(spaces)) => {
            // The slice was dropped meanwhile.
            if let Some(left) = core.slices.note_spaces(dataset, start, spaces)
                && let Err(error) = delete(core, left.into_list(), OP, rest)
            {
                tracing::debug!(%error, "keyspaces of a dropped slice stay until the store opens again");
            }
        }
        Ok(Err(error)) => tracing::debug!(%error, "the keyspaces of a slice could not be made"),
        // The store is closing.
        Err(_) => {}
    }
}

fn delete(core: &Core, keyspaces: Vec<Keyspace>, op: &'static str, rest: impl Fn()) -> Result<(), StoreError> {
    let deleted = core.read(op, |library| Ok(library.delete(keyspaces, rest)))?;
    deleted.map_err(|error: KeyspaceError| StoreError::unknown(StoreErrorKind::Unavailable, op).because(error))
}
