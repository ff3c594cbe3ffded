//! The one path into the log: admit, append, acknowledge. Late events get verdicts instead.

use std::sync::{Arc, OnceLock};

use futures_util::{StreamExt, stream};
use tokio::sync::OwnedSemaphorePermit;
use tracing::Instrument;

use crate::closed_timestamp::{InFlightHold, ReservedSequences};
use crate::counting::error::ChangeText;
use crate::counting::wait_budget::WaitBudget;
use crate::counting::{Counting, CountingError, WriteOutcome};
use crate::fleet::WriteRefusal;
use crate::rolling::Roller;
use crate::scopes::{NamespaceScope, NamespaceScopes};
use crate::stats::NamespaceCounts;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Change, Counter, IdempotencyToken, SEQUENCES_PER_MS};
use tallystone_domain::limits::CALL_VERDICTS_AT_ONCE_MAX;
use tallystone_domain::namespace::CounterType;
use tallystone_ports::{AppendHold, AppendOutcome, NewEvent, StoreError, StoreErrorKind};

/// The state of a write until its outcome is decided. The log owns it, not the caller. Dropping it sends the rollup
/// signals first and ends the holds second, so a limit never passes an event whose caller has gone.
struct InFlightWrite {
    roller: Arc<Roller>,
    scope: Arc<NamespaceScope>,
    holds: [Option<InFlightHold>; 2],
    signals: Vec<(Counter, Timestamp)>,
    /// The limit at the end of the holds. All events of the write must lie above it.
    limit_at_end: Arc<OnceLock<Timestamp>>,
    /// The permit of a batch, or of the source of a report. The next one begins when this write is decided.
    _turn: Option<OwnedSemaphorePermit>,
}

impl Drop for InFlightWrite {
    fn drop(&mut self) {
        for (counter, time) in &self.signals {
            self.roller.scopes.signal(&self.scope, counter, *time, *time);
            if self.scope.namespace.spec.counter_type == CounterType::Accurate {
                // Reads of an accurate counter show the change at once; those of other types show it after the roll.
                self.roller.served.watchers.wake(counter);
            }
        }
        let limit = self.scope.dataset.limit();
        self.limit_at_end.get_or_init(|| limit);
        for hold in self.holds.into_iter().flatten() {
            self.scope.dataset.closing.release(hold);
        }
    }
}

impl AppendHold for InFlightWrite {
    fn keeps_limits_back(&self) -> bool {
        are_vouched(&self.roller.scopes, &self.holds)
    }
}

/// Whether events under these holds may be acknowledged now: this process has the membership under which they were
/// admitted.
fn are_vouched(scopes: &NamespaceScopes, holds: &[Option<InFlightHold>]) -> bool {
    let Some(fleet) = &scopes.fleet else { return true };
    holds.iter().flatten().all(|hold| fleet.membership.may_acknowledge(hold.incarnation))
}

/// The changes of one call after admission.
struct AdmittedBatch {
    /// The answers in the order of the changes; none where the log or a verdict answers.
    answers: Vec<Option<Result<WriteOutcome, CountingError>>>,
    /// The changes above the closed timestamp, in order.
    events: Vec<NewEvent>,
    /// The others, each with the index of its answer.
    late: Vec<(usize, NewEvent)>,
    hold: InFlightWrite,
}

/// A change to be appended to the log.
pub(super) struct Submission {
    /// The event. Without a token of the caller, its token comes from `next_server_token`.
    pub event: NewEvent,
    /// Whether the server made the token.
    pub server_made: bool,
}

/// The time and the sequence numbers of the tokens that the server makes for one call.
pub(super) struct ServerTokenRange {
    hold: InFlightHold,
    next: u32,
    end: u32,
    scope: Arc<NamespaceScope>,
    hold_transferred: bool,
}

impl Drop for ServerTokenRange {
    fn drop(&mut self) {
        if !self.hold_transferred {
            self.scope.dataset.closing.release(self.hold);
        }
    }
}

impl NamespaceCounts {
    /// Counts the outcome of one write; a repeated write counts as neither.
    pub fn record_write<E>(&self, answer: Result<WriteOutcome, E>) {
        match answer {
            Ok(WriteOutcome::Applied) => self.writes_applied.increment(),
            Ok(WriteOutcome::AlreadyApplied) => {}
            Err(_) => self.writes_failed.increment(),
        }
    }
}

impl Counting {
    /// Reserves a time for `count` tokens of the server. The hold lasts until the submission that uses it is decided.
    pub(super) fn reserve_server_tokens(&self, scope: &Arc<NamespaceScope>, count: u32) -> ServerTokenRange {
        let ReservedSequences { hold, first } = scope.dataset.closing.admit_own(self.context.now(), count);
        let end = first.saturating_add(count);
        ServerTokenRange { hold, next: first, end, scope: Arc::clone(scope), hold_transferred: false }
    }

    /// Makes the next token of the server. Each token is greater than the tokens before it.
    pub(super) fn next_server_token(&self, own: &mut ServerTokenRange) -> IdempotencyToken {
        assert!(own.next < own.end, "a call takes a place for each token that it makes");
        let sequence = own.next;
        own.next += 1;
        IdempotencyToken::server_made(own.hold.time.millis(), sequence, self.random())
    }

    /// Makes a token for a change that is not stored.
    pub(super) fn unstored_token(&self, server_time: Timestamp) -> IdempotencyToken {
        let sequence = u32::from_be_bytes(self.random()) % SEQUENCES_PER_MS;
        IdempotencyToken::server_made(server_time.millis(), sequence, self.random())
    }

    fn random<const BYTES: usize>(&self) -> [u8; BYTES] {
        let mut random = [0; BYTES];
        self.context.entropy.fill(&mut random);
        random
    }

    /// Submits changes. Returns the outcome of each, in their order. The permit is returned when they are decided, even
    /// if the caller has gone.
    pub(super) async fn submit(
        &self,
        scope: &Arc<NamespaceScope>,
        submissions: Vec<Submission>,
        own: Option<ServerTokenRange>,
        turn: Option<OwnedSemaphorePermit>,
    ) -> Vec<Result<WriteOutcome, CountingError>> {
        let refusal =
            self.scopes.fleet.as_ref().and_then(|fleet| fleet.membership.check_writer(scope.dataset.id()).err());
        let answers: Vec<Result<WriteOutcome, CountingError>> = if let Some(WriteRefusal(why)) = refusal {
            submissions.iter().map(|_| Err(CountingError::NoWriter { why })).collect()
        } else {
            let AdmittedBatch { mut answers, events, late, hold } = self.admit(scope, submissions, own, turn);
            // Verdicts come second, because they may wait for the limit, which the hold keeps back.
            let mut appended = self.append(scope, events, hold).await.into_iter();
            for (at, answer) in self.settle_late_events(scope, late).await {
                answers[at] = Some(answer);
            }
            let answers = answers.into_iter().map(|answer| answer.or_else(|| appended.next()));
            answers.map(|answer| answer.unwrap_or(Err(CountingError::ShuttingDown))).collect()
        };
        answers.iter().for_each(|answer| scope.counts.record_write(answer.as_ref().map(|outcome| *outcome)));
        answers
    }

    /// Compares each change with the closed timestamp and takes the hold of those above it, in one step.
    fn admit(
        &self,
        scope: &Arc<NamespaceScope>,
        submissions: Vec<Submission>,
        own: Option<ServerTokenRange>,
        turn: Option<OwnedSemaphorePermit>,
    ) -> AdmittedBatch {
        let now = self.context.now();
        let settings = &scope.dataset.dataset.settings;
        let latest = now + settings.future_limit;
        let is_future = |submission: &Submission| !submission.server_made && submission.event.event.key.time > latest;
        let times =
            submissions.iter().filter(|one| !one.server_made && !is_future(one)).map(|one| one.event.event.key.time);
        let admission = scope.dataset.closing.admit(times, now);
        let mut hold = InFlightWrite {
            roller: Arc::clone(&self.roller),
            scope: Arc::clone(scope),
            holds: [admission.hold, own.as_ref().map(|own| own.hold)],
            signals: Vec::with_capacity(submissions.len()),
            limit_at_end: Arc::default(),
            _turn: turn,
        };
        if let Some(mut own) = own {
            own.hold_transferred = true;
        }
        let mut answers = Vec::with_capacity(submissions.len());
        let mut events = Vec::with_capacity(submissions.len());
        let mut late = Vec::new();
        for submission in submissions {
            let time = submission.event.event.key.time;
            if is_future(&submission) {
                answers.push(Some(Err(CountingError::FutureTime {
                    ahead: time.since(now),
                    limit: settings.future_limit,
                    server_time: now,
                })));
            } else if submission.server_made || time > admission.closed {
                hold.signals.push((submission.event.counter.clone(), time));
                events.push(submission.event);
                answers.push(None);
            } else {
                late.push((answers.len(), submission.event));
                answers.push(None);
            }
        }
        AdmittedBatch { answers, events, late, hold }
    }

    /// Finds the verdicts of late events, several at a time and within one time budget. Each has the index of its
    /// event.
    async fn settle_late_events(
        &self,
        scope: &NamespaceScope,
        late: Vec<(usize, NewEvent)>,
    ) -> Vec<(usize, Result<WriteOutcome, CountingError>)> {
        let budget = WaitBudget::begin(self.context.clock.as_ref());
        let this = self;
        let settle =
            |(at, event): (usize, NewEvent)| async move { (at, this.late_write_outcome(scope, &event, budget).await) };
        stream::iter(late).map(settle).buffered(CALL_VERDICTS_AT_ONCE_MAX).collect().await
    }

    async fn append(
        &self,
        scope: &Arc<NamespaceScope>,
        events: Vec<NewEvent>,
        hold: InFlightWrite,
    ) -> Vec<Result<WriteOutcome, CountingError>> {
        if events.is_empty() {
            return Vec::new();
        }
        let asked: Vec<(Change, Timestamp)> =
            events.iter().map(|event| (event.event.change, event.event.key.time)).collect();
        if let Err(error) = self.ensure_event_slices(scope, &events).await {
            let failed = |_| Err(CountingError::Store(StoreError::not_applied(error.kind, error.op)));
            return asked.iter().map(failed).collect();
        }
        let limit_at_end = Arc::clone(&hold.limit_at_end);
        let holds = hold.holds;
        let span = tracing::span!(target: "tallystone::traces", tracing::Level::TRACE, "append", events = events.len());
        let appending = self.scopes.stores.log.append(scope.dataset.id(), events, Box::new(hold));
        let answers = appending.instrument(span).await;
        let limit = limit_at_end.get().copied().unwrap_or_else(|| scope.dataset.limit());
        // Checked after the store has answered, for the incarnation in which each event was admitted.
        let vouched = are_vouched(&self.scopes, &holds);
        let outcome = |(answer, (asked, time)): (Result<AppendOutcome, StoreError>, (Change, Timestamp))| {
            let appended = answer?;
            if !vouched {
                return Err(lease_lapsed().into());
            }
            let outcome = self.outcome(appended, asked)?;
            self.check_above(scope, time, limit);
            Ok(outcome)
        };
        answers.into_iter().zip(asked).map(outcome).collect()
    }

    /// Counts an event that was acknowledged although a limit at or above it was published during its hold. Rolls and
    /// verdicts may have missed the event. This is a defect of holds or of the published limit.
    fn check_above(&self, scope: &NamespaceScope, time: Timestamp, limit: Timestamp) {
        if time <= limit {
            self.context.stats.acknowledged_below_limit.increment();
            let dataset = &scope.dataset.dataset.name;
            tracing::error!(%dataset, event_time = ?time, ?limit, "an event was acknowledged at or below a published \
                limit");
        }
    }

    /// Makes the slice rows of the events before anything is written into them.
    async fn ensure_event_slices(&self, scope: &NamespaceScope, events: &[NewEvent]) -> Result<(), StoreError> {
        for event in events {
            let time = event.event.key.time;
            if !scope.dataset.slices.has(time) {
                self.scopes.ensure_slices(&scope.dataset, time).await?;
            }
        }
        Ok(())
    }

    fn outcome(&self, appended: AppendOutcome, asked: Change) -> Result<WriteOutcome, CountingError> {
        match appended {
            AppendOutcome::Inserted => {
                self.context.stats.writes_applied.increment();
                Ok(WriteOutcome::Applied)
            }
            AppendOutcome::Existing(found) => self.check_repeat(found, asked),
        }
    }

    /// The outcome of a write whose token already names a change.
    pub(super) fn check_repeat(&self, found: Change, asked: Change) -> Result<WriteOutcome, CountingError> {
        match found {
            Change::Void => Err(CountingError::NotApplied { server_time: self.context.now() }),
            found if found == asked => {
                self.context.stats.writes_repeated.increment();
                Ok(WriteOutcome::AlreadyApplied)
            }
            found => Err(CountingError::AlreadyExists { found: ChangeText(found), asked: ChangeText(asked) }),
        }
    }
}

/// Other members may have published a limit without this one, so the event may be late or replaced by a tombstone.
fn lease_lapsed() -> StoreError {
    let why = "this server lost its membership of the fleet before the store answered; retry with the same token";
    StoreError::unknown(StoreErrorKind::Unavailable, "append").with_source(why)
}
