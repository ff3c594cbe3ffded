//! Deletes a rule.

use crate::rules::{RuleError, Rules};
use tallystone_domain::limits::RULE_ATTEMPTS_MAX;
use tallystone_domain::rules::{RuleName, RuleSpec};
use tallystone_ports::{StoreError, StoreErrorKind};

impl Rules {
    /// Deletes a rule that the caller may see; any other one does not exist for it. What is deleted is what was looked
    /// at, even if the name is given to another rule meanwhile. A message that is being sent may still arrive in the
    /// queue.
    pub async fn delete(&self, name: &RuleName, is_shown: impl Fn(&RuleSpec) -> bool + Send) -> Result<(), RuleError> {
        for _ in 0..RULE_ATTEMPTS_MAX {
            let rule = self.get(name).await?;
            if !is_shown(&rule.spec) {
                return Err(RuleError::NotFound { name: name.clone() });
            }
            match self.store.remove(name, rule.stamp).await {
                // The rule fired meanwhile, on this server or another one.
                Err(error) if error.kind == StoreErrorKind::Conflict => {}
                removed => return Ok(removed?),
            }
        }
        Err(StoreError::not_applied(StoreErrorKind::Busy, "remove rule").into())
    }
}
