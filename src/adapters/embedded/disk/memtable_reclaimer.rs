//! Frees memtables outside the commit path.
//!
//! The store library frees a flushed memtable under a lock that every commit needs. Freeing a full one takes 20 to 50
//! ms. The writer therefore gives a thread a reference to each memtable when it begins to write to it. The library's
//! reference is then never the last one, and the thread frees the memtable where nobody waits.

use std::any::Any;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use fjall::{AbstractTree, Keyspace};
use hashbrown::HashMap;

use crate::disk::background;
use crate::error::OpenError;
use crate::limits::RETIRED_NEWS_MAX;

/// Interval of the check for memtables that are no longer in use, while there are retired ones.
const RECLAIM_INTERVAL: Duration = Duration::from_millis(250);

/// The memtables in use, and the thread that frees retired ones.
pub struct MemtableReclaimer {
    /// Number of the memtable in use, by keyspace.
    in_use: HashMap<u64, u64>,
    reclaimer: Option<(SyncSender<MemtableNotice>, JoinHandle<()>)>,
}

type MemtableRef = Arc<dyn Any + Send + Sync>;

/// The memtable now in use in a keyspace; `None` once the keyspace is deleted.
type MemtableNotice = (u64, Option<MemtableRef>);

impl MemtableReclaimer {
    /// Starts the thread.
    pub fn start() -> Result<Self, OpenError> {
        let (to_freer, news) = sync_channel(RETIRED_NEWS_MAX);
        let freer = background::spawn("freer", move || run_reclaimer(&news)).map_err(OpenError::Thread)?;
        Ok(Self { in_use: HashMap::new(), reclaimer: Some((to_freer, freer)) })
    }

    /// Records that a keyspace is about to be written to.
    pub fn track_writes(&mut self, keyspace: &Keyspace) {
        let table = keyspace.tree.active_memtable();
        self.note_table(keyspace.id(), table.id(), table);
    }

    fn note_table(&mut self, keyspace: u64, number: u64, rows: MemtableRef) {
        if self.in_use.get(&keyspace) != Some(&number) && self.notify((keyspace, Some(rows))) {
            self.in_use.insert(keyspace, number);
        }
    }

    /// Records that a keyspace is about to be deleted.
    pub fn forget(&mut self, keyspace: &Keyspace) {
        if self.in_use.remove(&keyspace.id()).is_some() {
            // If the send fails, one memtable stays until the store closes.
            self.notify((keyspace.id(), None));
        }
    }

    /// Never blocks. If the send fails, the library frees the memtable itself, which costs only time.
    fn notify(&self, news: MemtableNotice) -> bool {
        self.reclaimer.as_ref().is_some_and(|(freer, _)| freer.try_send(news).is_ok())
    }
}

/// Keeps each memtable until it is retired and has no other reference, then frees it.
fn run_reclaimer(news: &Receiver<MemtableNotice>) {
    let mut in_use: HashMap<u64, MemtableRef> = HashMap::new();
    let mut retired: Vec<MemtableRef> = Vec::new();
    loop {
        let next = if retired.is_empty() {
            news.recv().map_err(RecvTimeoutError::from)
        } else {
            news.recv_timeout(RECLAIM_INTERVAL)
        };
        match next {
            Ok((keyspace, Some(rows))) => retired.extend(in_use.insert(keyspace, rows)),
            Ok((keyspace, None)) => retired.extend(in_use.remove(&keyspace)),
            Err(RecvTimeoutError::Timeout) => retired.retain(|rows| Arc::strong_count(rows) > 1),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

impl Drop for MemtableReclaimer {
    fn drop(&mut self) {
        if let Some((to_freer, freer)) = self.reclaimer.take() {
            drop(to_freer);
            // The thread has no result, so its outcome does not matter.
            let _ = freer.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Duration = Duration::from_secs(60);

    /// Reports which thread dropped the value.
    struct Told(SyncSender<Option<String>>);

    impl Drop for Told {
        fn drop(&mut self) {
            let _ = self.0.send(std::thread::current().name().map(str::to_owned));
        }
    }

    fn rows() -> (Arc<Told>, Receiver<Option<String>>) {
        let (tell, told) = sync_channel(1);
        (Arc::new(Told(tell)), told)
    }

    #[test]
    fn a_table_is_freed_by_the_thread_once_another_is_in_use_and_nobody_else_has_it() {
        let mut retired = MemtableReclaimer::start().expect("a thread");
        let ((first, first_freed), (second, second_freed)) = (rows(), rows());
        retired.note_table(7, 0, first.clone());
        retired.note_table(7, 0, first.clone());
        retired.note_table(7, 1, second.clone());
        drop(second);
        // The thread keeps checking its memtables; this one still has another reference.
        assert!(first_freed.try_recv().is_err());
        drop(first);
        assert_eq!(first_freed.recv_timeout(WITHIN).expect("freed").as_deref(), Some("freer"));
        assert!(second_freed.try_recv().is_err(), "it is in use");
        drop(retired);
        assert_eq!(second_freed.recv_timeout(WITHIN).expect("freed at the end").as_deref(), Some("freer"));
    }
}
