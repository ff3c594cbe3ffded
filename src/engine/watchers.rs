//! Who watches which counter.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dashmap::DashMap;
use hashbrown::HashSet;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::domain::counter::{Counter, NamespaceId};

/// All watches of a server.
#[derive(Default)]
pub struct Watchers {
    counters: DashMap<Counter, Vec<Arc<Watch>>>,
    count: AtomicUsize,
}

/// One watch over some counters: which of them changed since it last looked.
#[derive(Default)]
pub struct Watch {
    changed: Mutex<HashSet<Counter>>,
    wake: Notify,
}

impl Watchers {
    /// Tells the watches of a counter that it changed. Costs one load while nobody watches.
    pub fn wake(&self, counter: &Counter) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        if let Some(watches) = self.counters.get(counter) {
            watches.iter().for_each(|watch| watch.note(counter));
        }
    }

    /// Tells every watch of a namespace to look again.
    pub fn wake_all(&self, namespace: NamespaceId) {
        for watched in self.counters.iter().filter(|watched| watched.key().namespace() == namespace) {
            watched.value().iter().for_each(|watch| watch.note(watched.key()));
        }
    }

    /// Begins a watch; every counter counts as changed at first.
    pub fn begin(&self, counters: &[Counter]) -> Arc<Watch> {
        let watch = Arc::new(Watch::default());
        self.count.fetch_add(1, Ordering::AcqRel);
        for counter in counters {
            self.counters.entry(counter.clone()).or_default().push(Arc::clone(&watch));
            watch.note(counter);
        }
        watch
    }

    /// Ends a watch.
    pub fn end(&self, watch: &Arc<Watch>, counters: &[Counter]) {
        for counter in counters {
            self.counters.remove_if_mut(counter, |_, watches| {
                watches.retain(|other| !Arc::ptr_eq(other, watch));
                watches.is_empty()
            });
        }
        self.count.fetch_sub(1, Ordering::AcqRel);
    }

    /// How many watches there are.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Whether nobody watches.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Watch {
    fn note(&self, counter: &Counter) {
        self.changed.lock().insert(counter.clone());
        self.wake.notify_one();
    }

    /// Waits for changes and takes them.
    pub async fn changed(&self) -> Vec<Counter> {
        loop {
            let taken: Vec<Counter> = self.changed.lock().drain().collect();
            if !taken.is_empty() {
                return taken;
            }
            self.wake.notified().await;
        }
    }
}
