//! The jobs of the thread that makes and deletes the keyspaces of slices, and the commands that wait for them.

use std::collections::VecDeque;
use std::time::Duration;

use fjall::Keyspace;
use hashbrown::HashMap;
use parking_lot::{Condvar, Mutex};

use super::admission::ReplySender;
use super::command::StoreCommand;
use super::commit_inbox::{CommitInbox, ReservedCapacity};
use tallystone_domain::Timestamp;
use tallystone_domain::counter::DatasetId;
use tallystone_ports::{StoreError, StoreErrorKind};

/// The pause after a keyspace, in which only commits use the store. It is longer than most commits.
const PAUSE: Duration = Duration::from_millis(5);

/// The jobs of the thread: at most one for each slice. The commands that wait for a job occupy capacity of the commit
/// inbox.
#[derive(Default)]
pub struct KeyspaceJobs {
    state: Mutex<KeyspaceJobsState>,
    job_added: Condvar,
    closed: Condvar,
}

#[derive(Default)]
struct KeyspaceJobsState {
    /// The slices that need keyspaces, in the order of their requests.
    to_make: VecDeque<SliceKey>,
    /// The commands that wait for a slice, by their numbers, including the time while its keyspaces are made.
    waiters: HashMap<SliceKey, Vec<u64>>,
    commands: HashMap<u64, DelayedCommand>,
    next_number: u64,
    dropped: VecDeque<KeyspaceDeletion>,
    is_closed: bool,
}

/// A slice: its dataset and its start.
pub type SliceKey = (DatasetId, Timestamp);

/// A command that waits for keyspaces.
struct DelayedCommand {
    command: StoreCommand,
    reserved: ReservedCapacity,
    /// The number of slices that it waits for.
    slices_missing: usize,
}

/// The keyspaces of a dropped slice.
pub struct KeyspaceDeletion {
    pub keyspaces: Vec<Keyspace>,
    pub answer: ReplySender<()>,
}

/// A job of the thread.
pub enum KeyspaceJob {
    Make(SliceKey),
    /// Delete the keyspaces of a dropped slice.
    Delete(KeyspaceDeletion),
}

impl KeyspaceJobs {
    /// Adds a command to the commit inbox once the keyspaces of its slices are made, even if its caller has gone. If
    /// they could not be made, the committer tries again and reports the error.
    pub fn enqueue_after_make(
        &self,
        queue: &CommitInbox,
        dataset: DatasetId,
        starts: Vec<Timestamp>,
        command: StoreCommand,
        reserved: ReservedCapacity,
    ) {
        let mut state = self.state.lock();
        if state.is_closed || starts.is_empty() {
            drop(state);
            return queue.push_reserved(command, reserved);
        }
        let number = state.next_number;
        state.next_number += 1;
        state.commands.insert(number, DelayedCommand { command, reserved, slices_missing: starts.len() });
        for start in starts {
            let slice = (dataset, start);
            let waiters = state.waiters.entry(slice).or_default();
            waiters.push(number);
            if waiters.len() == 1 {
                state.to_make.push_back(slice);
            }
        }
        drop(state);
        self.job_added.notify_one();
    }

    /// Deletes the keyspaces of a dropped slice, then replies. The next opening deletes the remains of a closed store.
    pub fn delete(&self, keyspaces: Vec<Keyspace>, answer: ReplySender<()>) {
        let mut state = self.state.lock();
        if state.is_closed {
            drop(state);
            // The caller may have stopped waiting.
            let _ = answer.send(Err(StoreError::unknown(StoreErrorKind::Closed, "drop slice")));
            return;
        }
        state.dropped.push_back(KeyspaceDeletion { keyspaces, answer });
        drop(state);
        self.job_added.notify_one();
    }

    /// Ends the thread. Waiting commands go to the commit inbox as they are.
    pub fn close(&self, queue: &CommitInbox) {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.to_make.clear();
        state.waiters.clear();
        state.dropped.clear();
        let commands = std::mem::take(&mut state.commands);
        drop(state);
        self.job_added.notify_all();
        self.closed.notify_all();
        for waiting in commands.into_values() {
            queue.push_reserved(waiting.command, waiting.reserved);
        }
    }

    /// The next job; waits for one. None once the jobs are closed.
    pub fn next(&self) -> Option<KeyspaceJob> {
        let mut state = self.state.lock();
        loop {
            if state.is_closed {
                return None;
            }
            // Deletion of dropped slices is not urgent, but frees disk space.
            if let Some(dropped) = state.dropped.pop_front() {
                return Some(KeyspaceJob::Delete(dropped));
            }
            if let Some(slice) = state.to_make.pop_front() {
                return Some(KeyspaceJob::Make(slice));
            }
            self.job_added.wait(&mut state);
        }
    }

    /// Leaves the store to commits for a moment.
    pub fn pause(&self) {
        let mut state = self.state.lock();
        if !state.is_closed {
            self.closed.wait_for(&mut state, PAUSE);
        }
    }

    /// Adds the commands that waited only for this slice to the commit inbox, including those that arrived meanwhile.
    pub fn finish_make(&self, queue: &CommitInbox, slice: SliceKey) {
        let mut ready = Vec::new();
        let mut state = self.state.lock();
        for number in state.waiters.remove(&slice).into_iter().flatten() {
            let Some(waiting) = state.commands.get_mut(&number) else { continue };
            waiting.slices_missing -= 1;
            if waiting.slices_missing == 0 {
                ready.extend(state.commands.remove(&number));
            }
        }
        drop(state);
        for waiting in ready {
            queue.push_reserved(waiting.command, waiting.reserved);
        }
    }
}
