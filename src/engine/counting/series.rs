//! GetCountSeries: finished steps from the store, the open ones from the checkpoint.

use crate::domain::Timestamp;
use crate::domain::counter::{Counter, CounterName, NamespaceName};
use crate::domain::rollup::checkpoint::silent_too_long;
use crate::domain::rollup::series::{self, Before, SeriesPlan};
use crate::domain::rollup::{Checkpoint, StepSum};
use crate::engine::budget::Budget;
use crate::engine::counting::{Counting, CountingError, SeriesAnswer, SeriesQuestion};

impl Counting {
    /// Reads a series. Cost: O(steps kept in the range).
    pub async fn series(
        &self,
        namespace: &NamespaceName,
        name: CounterName,
        question: SeriesQuestion,
    ) -> Result<SeriesAnswer, CountingError> {
        let scope = self.durable_scope(namespace, "GetCountSeries").await?;
        let counter = scope.counter(name);
        let kept = &scope.namespace.spec.series;
        let plan = series::plan(kept, question.from, question.to, question.step, self.core.now())?;
        // The reading's as_of may lie above the checkpoint's: then nothing was written in between.
        let limit = self.limit_for_read(&scope, Budget::begin(self.core.clock.as_ref())).await;
        let known = self.load_from_store(&scope, &counter).await?;
        let reading = self.rolled_up(&scope, &counter, &known, limit).await?;
        let row = self.core.stores.rollups.read(scope.dataset.id(), &counter).await?;
        let checkpoint = row.checkpoint.unwrap_or_else(|| Checkpoint::empty(reading.as_of));
        let as_of = reading.as_of.max(checkpoint.as_of);
        let silent = silent_too_long(checkpoint.last_event_time, as_of, scope.ttl_at(as_of));
        let mut stored = self.steps(&counter, &plan, &checkpoint).await?;
        let before = self.value_before(&counter, &plan, &checkpoint, stored.first()).await?;
        // The count of a step that is not over ends with the silence, as a read of the counter would show.
        if let Some(open) = stored.last_mut().filter(|step| silent && step.end() > as_of.just_after()) {
            open.value = 0;
        }
        Ok(SeriesAnswer { rows: series::rows(&plan, &stored, before, as_of, &scope.rules), step: plan.step, as_of })
    }

    /// The steps of the plan's range, finished and open, oldest first.
    async fn steps(
        &self,
        counter: &Counter,
        plan: &SeriesPlan,
        checkpoint: &Checkpoint,
    ) -> Result<Vec<StepSum>, CountingError> {
        let resolution = plan.resolution.step_seconds;
        let mut steps = self.core.stores.rollups.series(counter, resolution, plan.from, plan.to).await?;
        let open = checkpoint.open_steps.iter().filter(|step| step.step_seconds == resolution);
        let newest = steps.last().map_or(Timestamp::MIN, |step| step.start);
        steps.extend(
            open.filter(|step| step.start > newest && step.start >= plan.from && step.start < plan.to).cloned(),
        );
        Ok(steps)
    }

    /// The count at the beginning of the range.
    async fn value_before(
        &self,
        counter: &Counter,
        plan: &SeriesPlan,
        checkpoint: &Checkpoint,
        first: Option<&StepSum>,
    ) -> Result<Before, CountingError> {
        let resolution = plan.resolution.step_seconds;
        let finished = self.core.stores.rollups.series_before(counter, resolution, plan.from).await?;
        // The last step of a quiet counter stays open in its checkpoint, however long ago it was.
        let open =
            checkpoint.open_steps.iter().filter(|step| step.step_seconds == resolution && step.start < plan.from);
        if let Some(step) = finished.iter().chain(open).max_by_key(|step| step.start) {
            return Ok(Before { value: step.value, last: Some(step.end()) });
        }
        // Whatever came before has been trimmed, or never was: what the first known step does not explain was there.
        let value = match first {
            Some(step) if checkpoint.clear.is_none() => step.value - step.sum,
            Some(_) => 0,
            None if checkpoint.last_event_time.is_some_and(|last| last < plan.from) => checkpoint.count,
            None => 0,
        };
        Ok(Before { value, last: checkpoint.last_event_time.filter(|last| *last < plan.from) })
    }
}
