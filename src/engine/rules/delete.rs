//! Deletes a rule.

use crate::domain::limits::RULE_ATTEMPTS_MAX;
use crate::domain::rules::RuleName;
use crate::engine::rules::{RuleError, Rules};
use crate::ports::{StoreError, StoreErrorKind};

impl Rules {
    /// Deletes a rule. A message that is being sent may still arrive in the queue.
    pub async fn delete(&self, name: &RuleName) -> Result<(), RuleError> {
        for _ in 0..RULE_ATTEMPTS_MAX {
            let rule = self.get(name).await?;
            match self.store.remove(name, rule.stamp).await {
                // The rule fired meanwhile, on this server or another one.
                Err(error) if error.kind == StoreErrorKind::Conflict => {}
                removed => return Ok(removed?),
            }
        }
        Err(StoreError::not_applied(StoreErrorKind::Busy, "remove rule").into())
    }
}
