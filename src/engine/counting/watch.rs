//! WatchCounts: the present value of counters, then each change, at most one per counter and coalesce_ms.
//!
//! Writes and rolls wake a watch. The end of a TTL wakes no watch, so a watch also rereads counters that fall silent.
//! In a fleet another server may write and roll, so a watch reads all its counters as often as a roll may change them.
//!
//! Watches begin and read in turns. Otherwise thousands of watches, begun by one caller or woken by one write, would
//! all be ready to run, and every call would wait behind them.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, stream};

use crate::caller_quota::{CallerId, QuotaExceeded};
use crate::counting::wait_budget::WaitBudget;
use crate::counting::{Counting, CountingError, is_best_effort};
use crate::scopes::NamespaceScope;
use crate::served_counts::watchers::CounterWatch;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Counter, CounterName, NamespaceName};
use tallystone_domain::limits::{LIMIT_PUBLISH_INTERVAL, WATCH_READS_OF_A_TURN_MAX};
use tallystone_domain::rollup::{CountReading, ReadOptions};

/// A watch compares the clock with the ends of silences at least this often, because wall time may jump.
const SILENCE_LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// The retry delay of a refused watch.
const WATCH_RETRY_AFTER: Duration = Duration::from_secs(1);

/// A stream of readings, one item per change of a counter.
pub type ReadingStream = Pin<Box<dyn Stream<Item = Result<(CounterName, CountReading), CountingError>> + Send>>;

struct WatchStream {
    counting: Counting,
    scope: Arc<NamespaceScope>,
    counters: Vec<Counter>,
    watch: Arc<CounterWatch>,
    /// Whether it is registered with its counters.
    is_registered: bool,
    shown: HashMap<Counter, LastShown>,
    /// Counters to read.
    unread: Vec<Counter>,
    /// Readings that the caller has not received yet.
    unsent: VecDeque<(CounterName, CountReading)>,
}

/// The last reading of a counter that the caller has received.
#[derive(Clone, Copy)]
struct LastShown {
    count: i64,
    as_of: Timestamp,
    last_write_time: Option<Timestamp>,
    behind: bool,
    /// The time at which silence changes the count, without other changes.
    silence_check_at: Option<Timestamp>,
}

impl Drop for WatchStream {
    fn drop(&mut self) {
        self.counting.served.watchers.end(Arc::clone(&self.watch), std::mem::take(&mut self.counters));
    }
}

impl Counting {
    /// The present value of counters, then each change. Refused to a caller that has too many watches already.
    pub async fn watch(
        &self,
        namespace: &NamespaceName,
        names: Vec<CounterName>,
        caller: CallerId,
    ) -> Result<ReadingStream, CountingError> {
        let scope = self.scope(namespace).await?;
        let counters: Vec<Counter> = names.into_iter().map(|name| scope.counter(name)).collect();
        let watch = self.served.watchers.begin(&caller).map_err(refused)?;
        let watching = WatchStream {
            counting: self.clone(),
            scope,
            counters,
            watch,
            is_registered: false,
            shown: HashMap::new(),
            unread: Vec::new(),
            unsent: VecDeque::new(),
        };
        Ok(Box::pin(stream::unfold(watching, |mut watching| async move {
            let item = watching.next().await;
            Some((item, watching))
        })))
    }
}

fn refused(full: QuotaExceeded) -> CountingError {
    let what = match full {
        QuotaExceeded::Own(_) | QuotaExceeded::OfKey(_) => {
            "this caller has the maximum number of counter watches per caller (CALLER_WATCHES_MAX): end some, or \
             watch more counters in each"
        }
        QuotaExceeded::All(_) => {
            "the server has the maximum number of counter watches (WATCHES_MAX): end some, or use another server"
        }
    };
    CountingError::RetryLater { what, retry_after: WATCH_RETRY_AFTER }
}

impl WatchStream {
    /// Applies changed settings and slices. Fails once the namespace is deleted, even if another one has its name.
    async fn follow_namespace(&mut self) -> Result<(), CountingError> {
        let name = &self.scope.namespace.spec.name;
        let scope = self.counting.scope(name).await?;
        if scope.namespace.id != self.scope.namespace.id {
            return Err(CountingError::NamespaceNotFound { name: name.to_string() });
        }
        self.scope = scope;
        Ok(())
    }

    /// The next change that the caller has not seen.
    async fn next(&mut self) -> Result<(CounterName, CountReading), CountingError> {
        loop {
            if let Some(news) = self.unsent.pop_front() {
                return Ok(news);
            }
            if !self.is_registered {
                self.follow().await;
            }
            if self.unread.is_empty() {
                if !self.shown.is_empty() {
                    self.counting.context.clock.sleep(self.coalesce()).await;
                }
                self.unread = self.changed().await;
            }
            self.read().await?;
        }
    }

    /// Registers with its counters, in a turn.
    async fn follow(&mut self) {
        self.counting.served.watchers.wait_for_turn().await;
        self.counting.served.watchers.follow(&self.watch, &self.counters);
        self.is_registered = true;
    }

    /// Reads the next counters that are to be read, in a turn. Fails before the first of them only; the next turn
    /// begins with one that failed later.
    async fn read(&mut self) -> Result<(), CountingError> {
        let counting = self.counting.clone();
        self.counting.served.watchers.wait_for_turn().await;
        self.follow_namespace().await?;
        for _ in 0..WATCH_READS_OF_A_TURN_MAX {
            let Some(counter) = self.unread.pop() else { break };
            let budget = WaitBudget::begin(self.counting.context.clock.as_ref());
            let reading = match counting.read(&self.scope, &counter, ReadOptions::default(), budget).await {
                Ok(reading) => reading,
                Err(error) if self.unsent.is_empty() => return Err(error),
                Err(_met_again) => {
                    self.unread.push(counter);
                    break;
                }
            };
            let look_again = self.next_silence_change(&reading);
            let CountReading { count, as_of, last_write_time, behind, .. } = reading;
            let shows = LastShown { count, as_of, last_write_time, behind, silence_check_at: look_again };
            let known = self.shown.insert(counter.clone(), shows);
            if known.is_none_or(|known| self.differs(&known, &shows)) {
                self.unsent.push_back((counter.name().clone(), counting.shown_to_callers(reading)));
            }
        }
        Ok(())
    }

    /// Waits for changed counters, or for counters that silence changes.
    async fn changed(&self) -> Vec<Counter> {
        loop {
            let now = self.counting.context.now();
            let due = |shown: &LastShown| shown.silence_check_at.is_some_and(|time| time <= now);
            let due: Vec<Counter> =
                self.shown.iter().filter(|(_, shown)| due(shown)).map(|(counter, _)| counter.clone()).collect();
            if !due.is_empty() {
                return due;
            }
            let next = self.shown.values().filter_map(|shown| shown.silence_check_at).min();
            let look = async {
                match next {
                    Some(next) => self.counting.context.clock.sleep(next.since(now).min(SILENCE_LOOK_INTERVAL)).await,
                    None => std::future::pending().await,
                }
            };
            let others = async {
                match self.counting.scopes.fleet {
                    Some(_) => self.counting.context.clock.sleep(self.coalesce().max(LIMIT_PUBLISH_INTERVAL)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = self.watch.changed() => return changed,
                () = look => {}
                () = others => return self.counters.clone(),
            }
        }
    }

    /// Whether a look shows a change. Where the watch looks by itself, a time that only moves on, with nothing written,
    /// is none.
    fn differs(&self, known: &LastShown, shows: &LastShown) -> bool {
        let moved_on = known.as_of < shows.as_of;
        let is_written = known.behind || known.last_write_time != shows.last_write_time;
        known.count != shows.count || (moved_on && (self.counting.scopes.fleet.is_none() || is_written))
    }

    fn coalesce(&self) -> Duration {
        Duration::from_millis(u64::from(self.scope.namespace.spec.rollup.coalesce_ms))
    }

    /// The time at which silence will change the count of a reading, without other changes.
    fn next_silence_change(&self, reading: &CountReading) -> Option<Timestamp> {
        let (scope, now) = (&self.scope, self.counting.context.now());
        let ttl = scope.namespace.spec.ttl;
        if is_best_effort(scope) {
            return ttl.filter(|_| reading.count != 0).map(|ttl| (now + ttl).just_after());
        }
        let (last, end) = (reading.last_write_time?, scope.covered_to());
        let no_ttl = scope.rules.one_ttl_holds(reading.as_of, end) && scope.ttl_at(end).is_none();
        if no_ttl && ttl.is_none() {
            return None;
        }
        // Slices made in the meantime may have another TTL.
        let changes = scope.rules.silence_changes_after(last, reading.as_of).unwrap_or(end);
        // A read moves a limit that is older than this. If a write keeps the limit back, the read is repeated.
        let told = changes + scope.dataset.dataset.settings.accept_limit + LIMIT_PUBLISH_INTERVAL * 2;
        Some(told.just_after().max(now + LIMIT_PUBLISH_INTERVAL))
    }
}
