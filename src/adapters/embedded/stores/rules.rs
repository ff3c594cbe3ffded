//! Counter rules of an open store.

use async_trait::async_trait;

use super::EmbeddedStore;
use crate::inbox::command::StoreCommand;
use tallystone_domain::rules::{Rule, RuleName, RuleStamp};
use tallystone_ports::{NewRule, RuleChange, RuleStore, StoreError, StoreErrorKind};

impl EmbeddedStore {
    async fn change_rules(&self, op: &'static str, change: RuleChange) -> Result<Option<Rule>, StoreError> {
        self.core.inbox.request(op, |answer| StoreCommand::Rules(Box::new(change), op, answer)).await
    }

    /// Fails once the store is closed, as every call does.
    fn check_open(&self, op: &'static str) -> Result<(), StoreError> {
        self.core.read(op, |_| Ok(()))
    }
}

/// A change that keeps the rule answered none: a defect.
fn kept(rule: Option<Rule>, op: &'static str) -> Result<Rule, StoreError> {
    rule.ok_or_else(|| StoreError::unknown(StoreErrorKind::Corrupt, op).with_source("the rule is gone"))
}

#[async_trait]
impl RuleStore for EmbeddedStore {
    async fn list(&self) -> Result<Vec<Rule>, StoreError> {
        self.check_open("list rules")?;
        Ok(self.core.rules.list())
    }

    async fn get(&self, name: &RuleName) -> Result<Option<Rule>, StoreError> {
        self.check_open("read rule")?;
        Ok(self.core.rules.get(name))
    }

    async fn create(&self, rule: NewRule) -> Result<Rule, StoreError> {
        const OP: &str = "create rule";
        kept(self.change_rules(OP, RuleChange::Create(rule)).await?, OP)
    }

    async fn update(&self, rule: Rule) -> Result<Rule, StoreError> {
        const OP: &str = "update rule";
        kept(self.change_rules(OP, RuleChange::Update(rule)).await?, OP)
    }

    async fn remove(&self, name: &RuleName, stamp: RuleStamp) -> Result<(), StoreError> {
        self.change_rules("remove rule", RuleChange::Remove(name.clone(), stamp)).await.map(drop)
    }
}
