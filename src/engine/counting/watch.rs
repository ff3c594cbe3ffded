//! WatchCounts: the present value of counters, then each change, at most one per counter and coalesce_ms.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, stream};

use crate::domain::Timestamp;
use crate::domain::counter::{Counter, CounterName, NamespaceName};
use crate::engine::budget::Budget;
use crate::engine::core::{Core, Scope};
use crate::engine::counting::{Counting, CountingError, ReadOptions, Reading};
use crate::engine::watchers::Watch;

/// A stream of readings, one item per change of a counter.
pub type ReadingStream = Pin<Box<dyn Stream<Item = Result<(CounterName, Reading), CountingError>> + Send>>;

struct Watching {
    counting: Counting,
    scope: Arc<Scope>,
    counters: Vec<Counter>,
    watch: Arc<Watch>,
    shown: HashMap<Counter, (i64, Timestamp)>,
    waiting: Vec<Counter>,
    core: Arc<Core>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.core.watchers.end(&self.watch, &self.counters);
    }
}

impl Counting {
    /// The present value of counters, then each change.
    pub async fn watch(
        &self,
        namespace: &NamespaceName,
        names: Vec<CounterName>,
    ) -> Result<ReadingStream, CountingError> {
        let scope = self.core.scope(namespace).await?;
        let counters: Vec<Counter> = names.into_iter().map(|name| scope.counter(name)).collect();
        let watch = self.core.watchers.begin(&counters);
        let watching = Watching {
            counting: self.clone(),
            scope,
            counters,
            watch,
            shown: HashMap::new(),
            waiting: Vec::new(),
            core: Arc::clone(&self.core),
        };
        Ok(Box::pin(stream::unfold(watching, |mut watching| async move {
            let item = watching.next().await;
            Some((item, watching))
        })))
    }
}

impl Watching {
    /// Takes in changed settings and slices; fails once the namespace is gone, though another may have its name.
    async fn follow_namespace(&mut self) -> Result<(), CountingError> {
        let name = &self.scope.namespace.spec.name;
        let scope = self.core.scope(name).await?;
        if scope.namespace.id != self.scope.namespace.id {
            return Err(CountingError::NamespaceNotFound { name: name.to_string() });
        }
        self.scope = scope;
        Ok(())
    }

    /// The next change that the caller has not seen.
    async fn next(&mut self) -> Result<(CounterName, Reading), CountingError> {
        loop {
            let Some(counter) = self.waiting.pop() else {
                if !self.shown.is_empty() {
                    let coalesce = u64::from(self.scope.namespace.spec.rollup.coalesce_ms);
                    self.core.clock.sleep(Duration::from_millis(coalesce)).await;
                }
                self.waiting = self.watch.changed().await;
                continue;
            };
            self.follow_namespace().await?;
            let budget = Budget::begin(self.core.clock.as_ref());
            let reading = self.counting.read(&self.scope, &counter, ReadOptions::default(), budget).await?;
            let shows = (reading.count, reading.as_of);
            let known = self.shown.insert(counter.clone(), shows);
            if known.is_none_or(|known| known.0 != shows.0 || known.1 < shows.1) {
                return Ok((counter.name().clone(), reading));
            }
        }
    }
}
