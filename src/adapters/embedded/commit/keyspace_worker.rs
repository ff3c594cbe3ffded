//! The thread that makes and deletes the keyspaces of slices, next to the committer.
//!
//! A new keyspace takes about ten syncs. The first event of each slice needs three keyspaces, and with hundreds of
//! datasets of short slices that is all that a disk can do. So an append waits for the keyspaces of its slices before
//! it goes to the committer, which then has only rows to write. Appends elsewhere do not wait for these keyspaces. The
//! keyspaces of a dropped slice are deleted here for the same reason.
//!
//! The store library accepts no commit while it makes or deletes a keyspace. So the thread pauses after each one while
//! commits wait.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use fjall::Keyspace;

use crate::counters::slices::SliceKeyspaces;
use crate::disk::library::KeyspaceError;
use crate::error::OpenError;
use crate::inbox::keyspace_jobs::{KeyspaceDeletion, KeyspaceJob, SliceKey};
use crate::store_core::StoreCore;
use tallystone_ports::{StoreError, StoreErrorKind};

/// Starts the thread. It ends when the jobs are closed.
pub fn start(core: Arc<StoreCore>) -> Result<JoinHandle<()>, OpenError> {
    let thread = std::thread::Builder::new().name("maker".to_owned());
    let work = move || {
        if catch_unwind(AssertUnwindSafe(|| run(&core))).is_err() {
            tracing::error!("the thread that creates keyspaces panicked; the committer creates them from now on");
        }
        core.keyspace_jobs.close(&core.inbox);
    };
    thread.spawn(work).map_err(OpenError::Thread)
}

fn run(core: &StoreCore) {
    let rest = || core.yield_to_commits();
    while let Some(job) = core.keyspace_jobs.next() {
        match job {
            KeyspaceJob::Make(slice) => {
                make(core, slice, rest);
                core.keyspace_jobs.finish_make(&core.inbox, slice);
            }
            KeyspaceJob::Delete(KeyspaceDeletion { keyspaces, answer }) => {
                // The caller may have stopped waiting.
                let _ = answer.send(delete(core, keyspaces, "drop slice", rest));
            }
        }
        rest();
    }
}

fn make(core: &StoreCore, (dataset, start): SliceKey, rest: impl Fn()) {
    const OP: &str = "make keyspaces";
    if !core.slices.needs_keyspaces(dataset, start) {
        return;
    }
    match core.read(OP, |library| Ok(SliceKeyspaces::make(library, dataset, start, &rest))) {
        Ok(Ok(spaces)) => {
            // The slice was dropped in the meantime.
            if let Some(left) = core.slices.attach_keyspaces(dataset, start, spaces)
                && let Err(error) = delete(core, left.into_list(), OP, rest)
            {
                tracing::debug!(%error, "cannot delete the keyspaces of a dropped slice; they stay until the store \
                    opens again");
            }
        }
        Ok(Err(error)) => tracing::debug!(%error, "cannot create the keyspaces of a slice"),
        // The store is closing.
        Err(_) => {}
    }
}

fn delete(core: &StoreCore, keyspaces: Vec<Keyspace>, op: &'static str, rest: impl Fn()) -> Result<(), StoreError> {
    let deleted = core.read(op, |library| Ok(library.delete(keyspaces, rest)))?;
    deleted.map_err(|error: KeyspaceError| StoreError::unknown(StoreErrorKind::Unavailable, op).with_source(error))
}
