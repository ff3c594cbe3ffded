//! ClearCount: an event that wipes everything at or before its time, visible at once.

use crate::counting::submit::Submission;
use crate::counting::{Clear, Counting, CountingError, WriteOutcome, Written, is_best_effort};
use tallystone_domain::counter::{Change, Event, IdempotencyToken, NamespaceName};
use tallystone_domain::limits::CLEAR_VISIBLE_WITHIN;
use tallystone_ports::NewEvent;

impl Counting {
    /// Clears a counter. Reads that begin after the answer start from 0.
    pub async fn clear(&self, namespace: &NamespaceName, clear: Clear) -> Result<Written, CountingError> {
        let scope = self.delta_scope(namespace).await?;
        let counter = scope.counter(clear.name);
        if is_best_effort(&scope) {
            scope.best_effort_counts.clear(&counter).await?;
            self.served.watchers.wake(&counter);
            let server_time = self.context.now();
            let token = clear.token.unwrap_or_else(|| self.unstored_token(server_time));
            let token = IdempotencyToken { idempotent: false, ..token };
            return Ok(Written { outcome: WriteOutcome::Applied, token, server_time, visible_at: None });
        }
        let mut own = clear.token.is_none().then(|| self.reserve_server_tokens(&scope, 1));
        let token = self.token_of(clear.token, own.as_mut());
        let event = Event { key: token.key.clone(), change: Change::Clear, provenance: clear.provenance };
        let submission =
            Submission { event: NewEvent { counter: counter.clone(), event }, server_made: !token.idempotent };
        let answer = self.submit(&scope, vec![submission], own, None).await.pop();
        let outcome = answer.unwrap_or(Err(CountingError::ShuttingDown))?;
        let deleted = scope.cache.delete(&counter).await;
        self.served.watchers.wake(&counter);
        let server_time = self.context.now();
        let visible_at = (!deleted).then(|| server_time + CLEAR_VISIBLE_WITHIN);
        Ok(Written { outcome, token, server_time, visible_at })
    }
}
