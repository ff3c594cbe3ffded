//! Reads rules.

use crate::rules::{RuleError, Rules};
use tallystone_domain::rules::{Rule, RuleName};

impl Rules {
    /// Reads one rule with its progress.
    pub async fn get(&self, name: &RuleName) -> Result<Rule, RuleError> {
        self.store.get(name).await?.ok_or_else(|| RuleError::NotFound { name: name.clone() })
    }

    /// Reads a page of rules in the order of names: those with the prefix, after a name.
    pub async fn list(&self, prefix: &str, after: Option<&RuleName>, rows: usize) -> Result<Vec<Rule>, RuleError> {
        let all = self.store.list().await?.into_iter();
        let asked = all.filter(|rule| rule.spec.name.as_str().starts_with(prefix));
        Ok(asked.filter(|rule| after.is_none_or(|after| rule.spec.name > *after)).take(rows).collect())
    }
}
