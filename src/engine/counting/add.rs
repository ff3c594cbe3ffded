//! AddCount, AddAndGetCount, BatchAddCounts.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::counting::submit::{ServerTokenRange, Submission};
use crate::counting::wait_budget::WaitBudget;
use crate::counting::{Add, Counting, CountingError, WriteOutcome, Written, is_best_effort};
use crate::scopes::NamespaceScope;
use tallystone_domain::Reject;
use tallystone_domain::counter::{Change, Counter, Event, IdempotencyToken, NamespaceName};
use tallystone_domain::limits::BATCH_ITEMS_MAX;
use tallystone_domain::namespace::CounterType;
use tallystone_domain::rollup::{CountReading, Exactness, Freshness, ReadOptions};
use tallystone_ports::{EffectOutcome, FastAdd, FastAddOutcome, NewEvent, StoreError};

/// A namespace that accepts adds, as found at lookup.
pub struct AddTarget(Arc<NamespaceScope>);

/// A submitted batch. It is finished even if no caller waits for its results.
pub struct SubmittedBatch {
    items: usize,
    accepted: oneshot::Receiver<()>,
    answers: oneshot::Receiver<Vec<Result<Written, CountingError>>>,
}

impl SubmittedBatch {
    /// Waits until the items are accepted.
    pub async fn wait_accepted(&mut self) {
        // If the engine has ended, the results say so.
        let _ = (&mut self.accepted).await;
    }

    /// The answers, in the order of the items.
    pub async fn answers(self) -> Vec<Result<Written, CountingError>> {
        let ended = |_| (0..self.items).map(|_| Err(CountingError::ShuttingDown)).collect();
        self.answers.await.unwrap_or_else(ended)
    }
}

impl Counting {
    /// Adds a delta. It is durable when this returns, except for best-effort counters.
    pub async fn add(&self, namespace: &NamespaceName, add: Add) -> Result<Written, CountingError> {
        let scope = self.delta_scope(namespace).await?;
        if is_best_effort(&scope) {
            return self.add_fast(&scope, &add).await.map(|(written, _)| written);
        }
        only(self.add_all(&scope, vec![Ok(add)], None).await)
    }

    /// Adds a delta and reads the count after it.
    pub async fn add_and_get(
        &self,
        namespace: &NamespaceName,
        add: Add,
        freshness: Freshness,
    ) -> Result<(Written, CountReading), CountingError> {
        let scope = self.delta_scope(namespace).await?;
        if is_best_effort(&scope) {
            let (written, value) = self.add_fast(&scope, &add).await?;
            return Ok((written, self.fast_reading(Some(value))));
        }
        let counter = scope.counter(add.name.clone());
        let written = only(self.add_all(&scope, vec![Ok(add)], None).await)?;
        let options = ReadOptions { freshness: Freshness::UpToDate, ..ReadOptions::default() };
        let mut reading = self
            .read(&scope, &counter, options, WaitBudget::begin(self.context.clock.as_ref()))
            .await
            .map_err(read_failed_after_write)?;
        let estimate = match freshness {
            Freshness::UpToDate => false,
            Freshness::ByType | Freshness::RolledUp => scope.namespace.spec.counter_type == CounterType::Eventual,
        };
        if estimate && reading.exactness == Exactness::UpToDate {
            reading.exactness = Exactness::Estimate;
        }
        Ok((written, self.shown_to_callers(reading)))
    }

    /// Adds each item. An item that was found invalid before keeps its error.
    pub async fn batch_add(
        &self,
        namespace: &NamespaceName,
        items: Vec<Result<Add, Reject>>,
    ) -> Result<Vec<Result<Written, CountingError>>, CountingError> {
        let target = self.add_target(namespace).await?;
        let turn = self.acquire_batch_permit(&target, items.len()).await;
        Ok(self.batch_add_to(&target, turn, items).await)
    }

    /// Looks up a namespace that accepts adds. All errors that refuse a whole batch are found here.
    pub async fn add_target(&self, namespace: &NamespaceName) -> Result<AddTarget, CountingError> {
        Ok(AddTarget(self.delta_scope(namespace).await?))
    }

    /// Adds each item in a task of its own, so accepted items never wait for a caller that does not read the results.
    pub fn submit_batch(&self, target: AddTarget, items: Vec<Result<Add, Reject>>) -> SubmittedBatch {
        let (began, taken_in) = oneshot::channel();
        let (told, answers) = oneshot::channel();
        let handed_over = SubmittedBatch { items: items.len(), accepted: taken_in, answers };
        let this = self.clone();
        self.context.driver.start_once(async move {
            let turn = this.acquire_batch_permit(&target, items.len()).await;
            let _ = began.send(()); // the caller may have gone
            let _ = told.send(this.batch_add_to(&target, turn, items).await);
        });
        handed_over
    }

    /// Waits for capacity for this number of items, at most that of one batch. The permit is returned when the items
    /// are decided. Best-effort counters have no log and need no permit.
    async fn acquire_batch_permit(&self, AddTarget(scope): &AddTarget, items: usize) -> Option<OwnedSemaphorePermit> {
        if is_best_effort(scope) {
            return None;
        }
        let items = u32::try_from(items.min(BATCH_ITEMS_MAX)).expect("a batch has fewer items than fit 32 bits");
        Arc::clone(&scope.dataset.batch_permits).acquire_many_owned(items).await.ok()
    }

    /// An item that was found invalid before keeps its error.
    async fn batch_add_to(
        &self,
        AddTarget(scope): &AddTarget,
        turn: Option<OwnedSemaphorePermit>,
        items: Vec<Result<Add, Reject>>,
    ) -> Vec<Result<Written, CountingError>> {
        if !is_best_effort(scope) {
            return self.add_all(scope, items, turn).await;
        }
        let mut answers = Vec::with_capacity(items.len());
        for item in items {
            answers.push(match item {
                Ok(add) => self.add_fast(scope, &add).await.map(|(written, _)| written),
                Err(reject) => Err(reject.into()),
            });
        }
        answers
    }

    async fn add_all(
        &self,
        scope: &Arc<NamespaceScope>,
        items: Vec<Result<Add, Reject>>,
        turn: Option<OwnedSemaphorePermit>,
    ) -> Vec<Result<Written, CountingError>> {
        let without = items.iter().flatten().filter(|add| add.token.is_none()).count();
        let without = u32::try_from(without).expect("a call has fewer items than fit 32 bits");
        let mut own = (without > 0).then(|| self.reserve_server_tokens(scope, without));
        let mut answers: Vec<Result<(IdempotencyToken, Option<WriteOutcome>), CountingError>> =
            Vec::with_capacity(items.len());
        let mut submissions = Vec::with_capacity(items.len());
        for item in items {
            answers.push(match item {
                Err(reject) => Err(reject.into()),
                Ok(add) => {
                    let token = self.token_of(add.token, own.as_mut());
                    if add.delta == 0 {
                        // Writes nothing and keeps no token.
                        Ok((token, Some(WriteOutcome::Applied)))
                    } else {
                        let event = Event {
                            key: token.key.clone(),
                            change: Change::Add(add.delta),
                            provenance: add.provenance,
                        };
                        let event = NewEvent { counter: scope.counter(add.name), event };
                        submissions.push(Submission { event, server_made: !token.idempotent });
                        Ok((token, None))
                    }
                }
            });
        }
        let mut outcomes = self.submit(scope, submissions, own, turn).await.into_iter();
        let server_time = self.context.now();
        answers
            .into_iter()
            .map(|answer| {
                let (token, known) = answer?;
                let outcome = match known {
                    Some(outcome) => outcome,
                    None => outcomes.next().unwrap_or(Err(CountingError::ShuttingDown))?,
                };
                Ok(Written { outcome, token, server_time, visible_at: None })
            })
            .collect()
    }

    /// The token of the caller, or one made by the server.
    pub(super) fn token_of(
        &self,
        token: Option<IdempotencyToken>,
        own: Option<&mut ServerTokenRange>,
    ) -> IdempotencyToken {
        match (token, own) {
            (Some(token), _) => token,
            (None, Some(own)) => self.next_server_token(own),
            (None, None) => unreachable!("a call with an item without a token takes a time for it first"),
        }
    }

    async fn add_fast(&self, scope: &NamespaceScope, add: &Add) -> Result<(Written, i64), CountingError> {
        let answer = self.fast_added(scope, add).await;
        scope.counts.record_write(answer.as_ref().map(|(written, _)| written.outcome));
        answer
    }

    async fn fast_added(&self, scope: &NamespaceScope, add: &Add) -> Result<(Written, i64), CountingError> {
        let counter: Counter = scope.counter(add.name.clone());
        let ttl = scope.namespace.spec.ttl;
        let remembers_tokens = !scope.best_effort_counts.capabilities().remembers_tokens.is_zero();
        let known = add.token.as_ref().filter(|token| token.idempotent && remembers_tokens);
        let added = match add.delta {
            // Writes nothing and keeps no token.
            0 => FastAddOutcome::Applied(scope.best_effort_counts.get(&counter).await?.unwrap_or(0)),
            delta => {
                scope
                    .best_effort_counts
                    .add(&counter, FastAdd { delta, ttl, token: known.map(|token| token.key.clone()) })
                    .await?
            }
        };
        let outcome = match added {
            FastAddOutcome::Applied(_) => WriteOutcome::Applied,
            FastAddOutcome::Seen(_) => WriteOutcome::AlreadyApplied,
        };
        let idempotent = known.is_some();
        self.served.watchers.wake(&counter);
        let server_time = self.context.now();
        let mut token = match &add.token {
            Some(token) => token.clone(),
            None => self.unstored_token(server_time),
        };
        // A best-effort counter keeps no tokens of the server. It keeps a caller's token only if its store does.
        token.idempotent = idempotent;
        Ok((Written { outcome, token, server_time, visible_at: None }, added.value()))
    }

    /// A reading of a best-effort counter, which is always an estimate.
    pub(super) fn fast_reading(&self, value: Option<i64>) -> CountReading {
        let now = self.context.now();
        CountReading {
            count: value.unwrap_or(0),
            saturated: false,
            as_of: now,
            checked_at: now,
            last_write_time: None,
            behind: false,
            exactness: Exactness::Estimate,
            reported_to: None,
        }
    }
}

/// The answer of a call with one item.
fn only(mut answers: Vec<Result<Written, CountingError>>) -> Result<Written, CountingError> {
    answers.pop().unwrap_or(Err(CountingError::ShuttingDown))
}

/// The error for an add that was written but whose count cannot be read. It must not look like a failed add.
fn read_failed_after_write(error: CountingError) -> CountingError {
    match error {
        CountingError::Store(error) => CountingError::Store(StoreError { outcome: EffectOutcome::Unknown, ..error }),
        other => other,
    }
}
