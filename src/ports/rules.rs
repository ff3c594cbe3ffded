//! The store of counter rules: rules under names, changed by compare-and-set.

use async_trait::async_trait;

use crate::{StoreError, StoreErrorKind};
use tallystone_domain::limits::RULES_MAX;
use tallystone_domain::rules::{QueueHome, Rule, RuleName, RuleSpec, RuleStamp};
use tallystone_domain::time::Timestamp;

/// A rule to create. The store chooses its generation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewRule {
    /// The settings.
    pub spec: RuleSpec,
    /// The queue store that it enqueues into.
    pub home: QueueHome,
    /// The time of its creation.
    pub created: Timestamp,
}

/// A change of the rules of a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RuleChange {
    /// Creates a rule.
    Create(NewRule),
    /// Replaces the rule of this name and stamp.
    Update(Rule),
    /// Removes the rule of this name and stamp.
    Remove(RuleName, RuleStamp),
}

/// The state on which a change is decided.
#[derive(Clone, Copy, Debug)]
pub struct RulesBefore<'a> {
    /// The rule of the name.
    pub live: Option<&'a Rule>,
    /// The number of rules.
    pub count: usize,
    /// The highest generation of a removed rule; 0 if none was removed.
    pub last_generation: u32,
}

impl RuleChange {
    /// The name of the rule.
    pub fn name(&self) -> &RuleName {
        match self {
            Self::Create(new) => &new.spec.name,
            Self::Update(rule) => &rule.spec.name,
            Self::Remove(name, _) => name,
        }
    }

    /// The rule after the change, none if it is removed; or why the change is refused. It is the one decision behind
    /// laws 1 to 4 and 6, for every engine.
    pub fn decide(&self, before: RulesBefore<'_>, op: &'static str) -> Result<Option<Rule>, StoreError> {
        let refuse = |kind, why: String| Err(StoreError::not_applied(kind, op).with_source(why));
        let stamp = match self {
            Self::Create(NewRule { spec, home, created }) => {
                if before.live.is_some() {
                    return refuse(StoreErrorKind::Conflict, format!("rule {} exists", spec.name));
                }
                if before.count >= RULES_MAX {
                    return refuse(StoreErrorKind::Busy, format!("there are {RULES_MAX} rules, the maximum"));
                }
                let Some(generation) = before.last_generation.checked_add(1) else {
                    return refuse(StoreErrorKind::Busy, "the generations are used up".to_owned());
                };
                return Ok(Some(Rule::new(spec.clone(), *home, *created, generation)));
            }
            Self::Update(rule) => rule.stamp,
            Self::Remove(_, stamp) => *stamp,
        };
        if before.live.map(|live| live.stamp) != Some(stamp) {
            return refuse(StoreErrorKind::Conflict, format!("rule {} changed", self.name()));
        }
        match self {
            Self::Update(rule) => Ok(Some(rule.clone().next_version())),
            Self::Create(_) | Self::Remove(..) => Ok(None),
        }
    }
}

/// The rules of a store. Servers may share it.
///
/// Laws:
/// 1. `create` keeps the rule durably and answers it, at version 1 with empty progress. If the name is taken, it
///    changes nothing: `Conflict`.
/// 2. `create` gives a generation above those of all rules that were ever removed; the first rule of a store gets 1. So
///    rules of one name never have a generation in common.
/// 3. `update` replaces a rule that still has the stamp, durably, and raises the version by 1. Otherwise it changes
///    nothing: `Conflict`. Of concurrent updates of one stamp, one succeeds.
/// 4. `remove` removes a rule that still has the stamp, durably. Otherwise it changes nothing: `Conflict`.
/// 5. `list` and `get` answer every rule as its last acknowledged change left it, also one of another server; `list` in
///    the order of names.
/// 6. A store keeps at most `RULES_MAX` rules. A `create` beyond them is `Busy` and `NotApplied`.
///
/// Retry: after an unknown outcome, read the rule again. A change of a stamp that is gone is never applied later.
#[async_trait]
pub trait RuleStore: Send + Sync + 'static {
    /// Reads all rules. Cost: one read of at most `RULES_MAX` rows.
    async fn list(&self) -> Result<Vec<Rule>, StoreError>;

    /// Reads one rule.
    async fn get(&self, name: &RuleName) -> Result<Option<Rule>, StoreError>;

    /// Creates a rule.
    async fn create(&self, rule: NewRule) -> Result<Rule, StoreError>;

    /// Replaces the rule of the same name and stamp. Answers it with its next version.
    async fn update(&self, rule: Rule) -> Result<Rule, StoreError>;

    /// Removes a rule of a stamp. Its generation at that stamp counts for law 2.
    async fn remove(&self, name: &RuleName, stamp: RuleStamp) -> Result<(), StoreError>;
}
