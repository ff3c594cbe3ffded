//! GetCountSeries and BatchGetCountSeries: finished steps from the store, open ones from the checkpoint.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};

use crate::counting::{Counting, CountingError, SeriesQuery, SeriesResult};
use crate::scopes::NamespaceScope;
use tallystone_domain::counter::{Counter, CounterName, NamespaceName};
use tallystone_domain::limits::{CALL_READS_AT_ONCE_MAX, SERIES_ROWS_MAX};
use tallystone_domain::rollup::series::{self, SeriesPlan};
use tallystone_domain::rollup::{Checkpoint, StepSum};
use tallystone_domain::{Reason, Reject, Timestamp};

/// Number of steps in the first search for the next step after a range.
const STEPS_READ_FIRST: u32 = 64;

impl Counting {
    /// Reads a series. Cost: O(steps kept in the range).
    pub async fn series(
        &self,
        namespace: &NamespaceName,
        name: CounterName,
        question: SeriesQuery,
    ) -> Result<SeriesResult, CountingError> {
        let scope = self.durable_scope(namespace, "GetCountSeries").await?;
        let plan = self.series_plan(&scope, question)?;
        self.series_of(&scope, scope.counter(name), &plan).await
    }

    /// Reads the series of several counters at a time, over one range and in one step. The results have the order of
    /// the names. Refused whole if they have more than `SERIES_ROWS_MAX` rows together. Cost: that of each series.
    pub async fn batch_series(
        &self,
        namespace: &NamespaceName,
        names: Vec<Result<CounterName, Reject>>,
        question: SeriesQuery,
    ) -> Result<Vec<Result<SeriesResult, CountingError>>, CountingError> {
        let scope = self.durable_scope(namespace, "BatchGetCountSeries").await?;
        let plan = self.series_plan(&scope, question)?;
        let steps = plan.steps();
        if steps.saturating_mul(names.len()) > SERIES_ROWS_MAX {
            let what = format!(
                "{} counters with {steps} steps each are more than {SERIES_ROWS_MAX} rows: send fewer counters, a \
                 shorter range or a longer step",
                names.len()
            );
            return Err(Reject::new(Reason::InvalidRange, what).into());
        }
        let (this, scope, plan) = (self, &scope, &plan);
        let read =
            |name: Result<CounterName, Reject>| async move { this.series_of(scope, scope.counter(name?), plan).await };
        Ok(stream::iter(names).map(read).buffered(CALL_READS_AT_ONCE_MAX).collect().await)
    }

    fn series_plan(&self, scope: &NamespaceScope, question: SeriesQuery) -> Result<SeriesPlan, Reject> {
        let kept = &scope.namespace.spec.series;
        series::plan(kept, question.from, question.to, question.step, self.context.now())
    }

    async fn series_of(
        &self,
        scope: &Arc<NamespaceScope>,
        counter: Counter,
        plan: &SeriesPlan,
    ) -> Result<SeriesResult, CountingError> {
        // Read before the rows: rows that are read later contain everything up to this time, too.
        let reported_to = self.queues_reported_to(scope);
        // The `as_of` of the reading may lie above that of the checkpoint: then nothing was written in between.
        let (reading, row) = self.read_with_row(scope, &counter).await?;
        let checkpoint = row.checkpoint.unwrap_or_else(|| Checkpoint::empty(reading.as_of));
        let as_of = reading.as_of.max(checkpoint.as_of);
        let mut known = self.steps(&counter, plan, &checkpoint).await?;
        let mut newest = checkpoint.newest();
        if newest.is_some_and(|newest| newest.time >= plan.to())
            && let Some(next) = self.step_after(&counter, plan, &checkpoint).await?
        {
            known.push(next);
            newest = None;
        }
        let rows = series::rows(plan, &known, newest, as_of, &scope.rules);
        Ok(SeriesResult { rows, step: plan.step.clone(), as_of, reported_to })
    }

    /// The steps of the plan's range and the one before it, finished and open, oldest first.
    async fn steps(
        &self,
        counter: &Counter,
        plan: &SeriesPlan,
        checkpoint: &Checkpoint,
    ) -> Result<Vec<StepSum>, CountingError> {
        let (rollups, resolution) = (&self.scopes.stores.rollups, plan.resolution.step_seconds);
        let mut steps: Vec<StepSum> =
            rollups.series_before(counter, resolution, plan.from()).await?.into_iter().collect();
        steps.extend(rollups.series(counter, resolution, plan.from(), plan.to()).await?);
        let newest = steps.last().map_or(Timestamp::MIN, |step| step.start);
        // The last step of a quiet counter stays open in its checkpoint, however old it is.
        let open = open_step(plan, checkpoint).filter(|step| newest < step.start && step.start < plan.to());
        if let Some(open) = open {
            steps.push(open.clone());
        }
        Ok(steps)
    }

    /// The first step after the plan's range, for a counter that changed after it. Cost: O(log(its distance)) reads.
    async fn step_after(
        &self,
        counter: &Counter,
        plan: &SeriesPlan,
        checkpoint: &Checkpoint,
    ) -> Result<Option<StepSum>, CountingError> {
        let resolution = plan.resolution.step_seconds;
        let newest = checkpoint.last_event_time.unwrap_or(Timestamp::MIN);
        let (mut from, mut width) = (plan.to(), Duration::from_secs(u64::from(resolution)) * STEPS_READ_FIRST);
        while from <= newest {
            let to = from + width;
            let steps = self.scopes.stores.rollups.series(counter, resolution, from, to).await?;
            if let Some(first) = steps.into_iter().next() {
                return Ok(Some(first));
            }
            (from, width) = (to, width.saturating_mul(2));
        }
        Ok(open_step(plan, checkpoint).filter(|step| step.start >= plan.to()).cloned())
    }
}

fn open_step<'a>(plan: &SeriesPlan, checkpoint: &'a Checkpoint) -> Option<&'a StepSum> {
    checkpoint.open_steps.iter().find(|step| step.step_seconds == plan.resolution.step_seconds)
}
