//! ListCounters and TopCounters.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};

use crate::counting::wait_budget::WaitBudget;
use crate::counting::{CounterSummary, Counting, CountingError, TopCountersResult, is_best_effort};
use crate::rolling::Roller;
use crate::scopes::NamespaceScope;
use crate::served_counts::rankings::{RankedCounter, RankingStart, TopTable};
use tallystone_domain::counter::{Counter, CounterName, NamespaceName};
use tallystone_domain::limits::{CALL_READS_AT_ONCE_MAX, PAGE_ROWS_MAX, SHARED_RANKING_AGE_MAX};
use tallystone_domain::rollup::checkpoint::clamp_count;
use tallystone_domain::rollup::{CountReading, Freshness, ReadOptions};
use tallystone_domain::{Reason, Reject};
use tallystone_ports::StoreError;

/// How long the first request waits for the ranking of its namespace.
const RANKING_BUDGET: Duration = Duration::from_millis(1_500);

impl Counting {
    /// Lists counters with a prefix, above a name. A result shorter than the limit is the end. Refused if the store
    /// of best-effort counters cannot list names.
    pub async fn list(
        &self,
        namespace: &NamespaceName,
        prefix: &str,
        above: Option<CounterName>,
        limit: usize,
    ) -> Result<Vec<CounterSummary>, CountingError> {
        let scope = self.scope(namespace).await?;
        let stores = &self.scopes.stores;
        let names = if is_best_effort(&scope) {
            if !scope.best_effort_counts.capabilities().lists_names {
                let what =
                    format!("namespace {namespace} is BEST_EFFORT and stored in memcached, which cannot list names");
                let advice = "read its counters by name with GetCount";
                return Err(Reject::new(Reason::WrongCounterType, format!("{what}; {advice}")).into());
            }
            scope.best_effort_counts.names(scope.namespace.id, prefix, above.as_ref(), limit).await?
        } else {
            stores.rollups.names(scope.namespace.id, prefix, above.as_ref(), limit).await?
        };
        let options = ReadOptions { freshness: Freshness::RolledUp, ..ReadOptions::default() };
        let budget = WaitBudget::begin(self.context.clock.as_ref());
        let (this, scope) = (self, &scope);
        let summary = |name: CounterName| async move {
            let CountReading { count, saturated, as_of, .. } =
                this.read(scope, &scope.counter(name.clone()), options, budget).await?;
            Ok(CounterSummary { name, count, saturated, as_of })
        };
        stream::iter(names).map(summary).buffered(CALL_READS_AT_ONCE_MAX).try_collect().await
    }

    /// Returns the greatest counters by their checkpoints.
    pub async fn top(&self, namespace: &NamespaceName, n: usize) -> Result<TopCountersResult, CountingError> {
        let scope = self.durable_scope(namespace, "TopCounters").await?;
        // Read the time first: a value that is read later holds for it too.
        let limit = self.limit_for_read(&scope, WaitBudget::begin(self.context.clock.as_ref())).await;
        let is_shared = self.scopes.fleet.is_some();
        let reached = self.scopes.rolled_up_to(&scope.dataset, limit).max(scope.least_as_of(limit));
        let as_of = scope.dataset.raise_ranked_to(reached.floor_to(Duration::from_millis(1)));
        let begun = RankingStart { elapsed: self.context.clock.elapsed(), as_of };
        let is_recent = |table: &Arc<TopTable>| {
            !is_shared || begun.elapsed.saturating_sub(table.started.elapsed) < SHARED_RANKING_AGE_MAX
        };
        let of = |table: Arc<TopTable>| {
            let as_of = if is_shared { table.started.as_of } else { as_of };
            Some((table.top(n, as_of, scope.ttl_at(as_of))?, as_of))
        };
        let (ranked, as_of) = match self.served.rankings.get(scope.namespace.id).filter(is_recent).and_then(of) {
            Some(ranked) => ranked,
            None => of(self.rank(&scope, begun).await?).ok_or_else(ranking_in_progress)?,
        };
        let summary = |ranked: RankedCounter| {
            let (count, saturated) = clamp_count(ranked.value);
            CounterSummary { name: ranked.name, count, saturated, as_of: ranked.as_of.max(as_of) }
        };
        Ok(TopCountersResult { counters: ranked.into_iter().map(summary).collect(), as_of })
    }

    /// Ranks a namespace by a walk over its checkpoints. Rolls that end meanwhile are noted as well.
    async fn rank(&self, scope: &Arc<NamespaceScope>, begun: RankingStart) -> Result<Arc<TopTable>, CountingError> {
        let Some(table) = self.served.rankings.begin(scope.namespace.id, begun) else {
            return Err(ranking_in_progress());
        };
        let (done, finished) = tokio::sync::oneshot::channel();
        let ranking = Ranking { roller: Arc::clone(&self.roller), scope: Arc::clone(scope), table };
        self.context.driver.start_once(async move {
            // If the caller is gone, the ranking serves the next one.
            let _ = done.send(ranking.walk().await);
        });
        tokio::select! {
            table = finished => match table {
                Ok(table) => Ok(table?),
                Err(_dropped) => Err(CountingError::ShuttingDown),
            },
            () = self.context.clock.sleep(RANKING_BUDGET) => Err(ranking_in_progress()),
        }
    }
}

fn ranking_in_progress() -> CountingError {
    CountingError::RetryLater {
        what: "another ranking of the counters is running",
        retry_after: Duration::from_secs(2),
    }
}

/// A ranking that is being built. Dropping it unfinished lets the next caller start again.
struct Ranking {
    roller: Arc<Roller>,
    scope: Arc<NamespaceScope>,
    table: Arc<TopTable>,
}

impl Ranking {
    async fn walk(&self) -> Result<Arc<TopTable>, StoreError> {
        let (rollups, namespace) = (&self.roller.scopes.stores.rollups, self.scope.namespace.id);
        let mut above: Option<CounterName> = None;
        loop {
            let names = rollups.names(namespace, "", above.as_ref(), PAGE_ROWS_MAX).await?;
            for name in &names {
                let counter: Counter = self.scope.counter(name.clone());
                let row = rollups.read(self.scope.dataset.id(), &counter).await?;
                if let Some(checkpoint) = row.checkpoint {
                    self.table.note(&counter, &checkpoint);
                }
            }
            if names.len() < PAGE_ROWS_MAX {
                self.table.complete();
                return Ok(Arc::clone(&self.table));
            }
            above = names.into_iter().next_back();
        }
    }
}

impl Drop for Ranking {
    fn drop(&mut self) {
        self.roller.served.rankings.discard(self.scope.namespace.id, &self.table);
    }
}
