//! The verdict on a token whose time is closed. It is final.

use std::time::Duration;

use crate::counting::wait_budget::WaitBudget;
use crate::counting::{Counting, CountingError, TokenVerdict, WriteOutcome, refuse_reserved};
use crate::scopes::NamespaceScope;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Change, Counter, EventKey, IdempotencyToken, NamespaceName};
use tallystone_domain::fleet::ProtocolRule;
use tallystone_domain::limits::LIMIT_PUBLISH_INTERVAL;
use tallystone_domain::rollup::RollupRow;
use tallystone_ports::{EffectOutcome, NewEvent, StoreError, StoreErrorKind, VerdictOutcome};

/// The state of a key whose time is closed.
enum TokenState {
    /// This change.
    Found { change: Change, event_time: Timestamp },
    /// A tombstone, which is final.
    Tombstone,
    /// The limit has not passed it yet.
    AboveLimit,
    /// Its slice was dropped, or never existed.
    BeforeOldest(Timestamp),
}

impl Counting {
    /// Returns the verdict on a token. It may write a tombstone, so it is refused in a read-only namespace. A token
    /// that no write could use yet is refused as for a write, unless it was used before the clock went back.
    pub async fn check_token(
        &self,
        namespace: &NamespaceName,
        name: tallystone_domain::counter::CounterName,
        token: IdempotencyToken,
    ) -> Result<TokenVerdict, CountingError> {
        refuse_reserved(namespace)?;
        let scope = self.durable_scope(namespace, "CheckToken").await?;
        let counter = scope.counter(name);
        let budget = WaitBudget::begin(self.context.clock.as_ref());
        Ok(match self.token_state(&scope, &counter, &token.key, budget).await? {
            TokenState::Found { change: Change::Void, .. } | TokenState::Tombstone => TokenVerdict::NotApplied,
            TokenState::Found { change, event_time } => TokenVerdict::Applied { change, event_time },
            TokenState::AboveLimit => {
                let (server_time, limit) = (self.context.now(), scope.dataset.dataset.settings.future_limit);
                if token.key.time > server_time + limit {
                    let ahead = token.key.time.since(server_time);
                    return Err(CountingError::FutureTime { ahead, limit, server_time });
                }
                TokenVerdict::Pending { retry_after: self.time_until_limit_passes(&scope, token.key.time) }
            }
            TokenState::BeforeOldest(_) => TokenVerdict::TooOld,
        })
    }

    /// The outcome of a write whose time is closed.
    pub(super) async fn late_write_outcome(
        &self,
        scope: &NamespaceScope,
        event: &NewEvent,
        budget: WaitBudget,
    ) -> Result<WriteOutcome, CountingError> {
        let key = &event.event.key;
        match self.token_state(scope, &event.counter, key, budget).await? {
            TokenState::Found { change: Change::Clear, .. }
                if event.event.change == Change::Clear
                    && !self.clear_is_rolled_up(scope, &event.counter, key).await? =>
            {
                Err(CountingError::Pending { retry_after: LIMIT_PUBLISH_INTERVAL })
            }
            TokenState::Found { change, .. } => self.check_repeat(change, event.event.change),
            TokenState::Tombstone => Err(CountingError::NotApplied { server_time: self.context.now() }),
            TokenState::AboveLimit => {
                Err(CountingError::Pending { retry_after: self.time_until_limit_passes(scope, key.time) })
            }
            TokenState::BeforeOldest(oldest) => Err(CountingError::TooOld { oldest }),
        }
    }

    /// Whether every read shows a clear that was found below the limit. A late row is in no checkpoint until its
    /// recheck mark is processed, and the clear register does not cover rolled-up times. Until then a positive verdict
    /// would promise more than reads show.
    async fn clear_is_rolled_up(
        &self,
        scope: &NamespaceScope,
        counter: &Counter,
        key: &EventKey,
    ) -> Result<bool, StoreError> {
        if self.scopes.fleet.is_none() {
            return Ok(true);
        }
        let dataset = scope.dataset.id();
        let holds = |row: RollupRow| row.checkpoint.is_some_and(|checkpoint| checkpoint.clear.as_ref() >= Some(key));
        // The clear may have been applied, even if that cannot be seen now.
        let unknown = |error: StoreError| StoreError { outcome: EffectOutcome::Unknown, ..error };
        if holds(self.scopes.stores.rollups.read(dataset, counter).await.map_err(unknown)?) {
            return Ok(true);
        }
        // Usually it is only not rolled up yet.
        let mut reads = Vec::new();
        for rolled in self.roller.roll(scope, std::slice::from_ref(counter), 1, &mut reads).await {
            rolled.map_err(unknown)?;
        }
        self.scopes.stores.rollups.read(dataset, counter).await.map(holds).map_err(unknown)
    }

    async fn token_state(
        &self,
        scope: &NamespaceScope,
        counter: &Counter,
        key: &EventKey,
        budget: WaitBudget,
    ) -> Result<TokenState, CountingError> {
        let settings = &scope.dataset.dataset.settings;
        let oldest = scope.dataset.slices.oldest_live(self.context.now(), settings.delete_after);
        if key.time < oldest {
            return Ok(TokenState::BeforeOldest(oldest));
        }
        let _permit = self.verdicts.try_acquire().map_err(|_| CountingError::RetryLater {
            what: "too many token checks are in progress",
            retry_after: Duration::from_millis(100),
        })?;
        if key.time > scope.dataset.limit() && self.rules.keeps(ProtocolRule::PendingAboveLimit) {
            // In a fleet, a row found here may be that of another member with an unknown outcome, which may count as
            // late.
            if self.scopes.fleet.is_none()
                && let Some(event) = self.scopes.stores.log.find(scope.dataset.id(), counter, key).await?
            {
                return Ok(TokenState::Found { change: event.change, event_time: event.key.time });
            }
            let closable = scope.dataset.closing.closed(self.context.now()) >= key.time;
            let clock = self.context.clock.as_ref();
            if !closable || scope.dataset.limit_at_least(key.time, clock, budget.left(clock)).await < key.time {
                return Ok(TokenState::AboveLimit);
            }
        }
        if !scope.dataset.slices.has(key.time) {
            self.scopes.ensure_slices(&scope.dataset, key.time).await?;
        }
        match self.scopes.stores.log.settle(scope.dataset.id(), counter, key).await {
            Ok(VerdictOutcome::Found(event)) => {
                self.context.stats.verdicts_applied.increment();
                self.roller.put_recheck_mark(scope, counter, key).await?;
                if event.change == Change::Clear {
                    // The server of the clear may have ended before it reached the cache. An entry lives only for
                    // seconds.
                    scope.cache.delete(counter).await;
                }
                Ok(TokenState::Found { change: event.change, event_time: event.key.time })
            }
            Ok(VerdictOutcome::Voided) => {
                // A roll may have counted a row of the token on a minority of replicas before the tombstone replaced
                // it.
                self.roller.put_recheck_mark(scope, counter, key).await?;
                self.context.stats.verdicts_void.increment();
                Ok(TokenState::Tombstone)
            }
            // The slice was dropped a moment ago.
            Err(error) if error.kind == StoreErrorKind::Conflict => Ok(TokenState::BeforeOldest(oldest)),
            Err(error) => Err(error.into()),
        }
    }

    /// The time until the limit passes a time, without delays.
    fn time_until_limit_passes(&self, scope: &NamespaceScope, time: Timestamp) -> Duration {
        let closes = time + scope.dataset.dataset.settings.accept_limit;
        closes.since(self.context.now()) + LIMIT_PUBLISH_INTERVAL
    }
}
