//! Rules in an ordered map.

use std::collections::BTreeMap;

use async_trait::async_trait;
use parking_lot::Mutex;

use tallystone_domain::rules::{Rule, RuleName, RuleStamp};
use tallystone_ports::{NewRule, RuleChange, RuleStore, RulesBefore, StoreError, StoreErrorKind};

/// Rules that live as long as the process.
#[derive(Default)]
pub struct MemoryRules {
    state: Mutex<MemoryRulesState>,
}

#[derive(Default)]
struct MemoryRulesState {
    rules: BTreeMap<RuleName, Rule>,
    /// The highest generation of a removed rule.
    last_generation: u32,
}

impl MemoryRules {
    fn change(&self, change: &RuleChange, op: &'static str) -> Result<Option<Rule>, StoreError> {
        let mut state = self.state.lock();
        let live = state.rules.get(change.name());
        let before = RulesBefore { live, count: state.rules.len(), last_generation: state.last_generation };
        let after = change.decide(before, op)?;
        match &after {
            Some(rule) => drop(state.rules.insert(change.name().clone(), rule.clone())),
            None => {
                let removed = state.rules.remove(change.name()).map_or(0, |rule| rule.progress.generation);
                state.last_generation = state.last_generation.max(removed);
            }
        }
        Ok(after)
    }
}

#[async_trait]
impl RuleStore for MemoryRules {
    async fn list(&self) -> Result<Vec<Rule>, StoreError> {
        Ok(self.state.lock().rules.values().cloned().collect())
    }

    async fn get(&self, name: &RuleName) -> Result<Option<Rule>, StoreError> {
        Ok(self.state.lock().rules.get(name).cloned())
    }

    async fn create(&self, rule: NewRule) -> Result<Rule, StoreError> {
        const OP: &str = "create rule";
        self.change(&RuleChange::Create(rule), OP)?.ok_or_else(|| vanished(OP))
    }

    async fn update(&self, rule: Rule) -> Result<Rule, StoreError> {
        const OP: &str = "update rule";
        self.change(&RuleChange::Update(rule), OP)?.ok_or_else(|| vanished(OP))
    }

    async fn remove(&self, name: &RuleName, stamp: RuleStamp) -> Result<(), StoreError> {
        self.change(&RuleChange::Remove(name.clone(), stamp), "remove rule").map(drop)
    }
}

/// A change that keeps the rule answered none: a defect.
fn vanished(op: &'static str) -> StoreError {
    StoreError::unknown(StoreErrorKind::Corrupt, op).with_source("the rule is gone")
}
