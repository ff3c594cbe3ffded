//! Gives the rules of other queue stores to the one of this server.

use crate::rules::{RuleError, Rules};
use tallystone_domain::limits::RULE_ATTEMPTS_MAX;
use tallystone_domain::rules::Rule;
use tallystone_ports::{StoreError, StoreErrorKind};

impl Rules {
    /// The rules whose messages go to another queue store.
    pub(crate) async fn of_other_stores(&self) -> Result<Vec<Rule>, RuleError> {
        let home = self.queues.as_ref().ok_or(RuleError::NoQueues)?.home();
        Ok(self.store.list().await?.into_iter().filter(|rule| rule.home != home).collect())
    }

    /// Gives all of them to the queue store of this server. Returns how many. A rule that is given keeps its progress,
    /// and a server of the store before cannot change it any more.
    pub(crate) async fn adopt(&self) -> Result<usize, RuleError> {
        let mut adopted = 0;
        for rule in self.of_other_stores().await? {
            adopted += usize::from(self.adopt_one(rule).await?);
        }
        Ok(adopted)
    }

    /// Returns whether this call gave the rule.
    async fn adopt_one(&self, mut rule: Rule) -> Result<bool, RuleError> {
        let home = self.queues.as_ref().ok_or(RuleError::NoQueues)?.home();
        for _ in 0..RULE_ATTEMPTS_MAX {
            let name = rule.spec.name.clone();
            match self.store.update(rule.moved_to(home)).await {
                Ok(_) => return Ok(true),
                Err(error) if error.kind == StoreErrorKind::Conflict => {}
                Err(error) => return Err(error.into()),
            }
            match self.store.get(&name).await? {
                Some(known) if known.home != home => rule = known, // it fired meanwhile
                Some(_) | None => return Ok(false),
            }
        }
        Err(StoreError::not_applied(StoreErrorKind::Busy, "give a rule to the queue store").into())
    }
}
