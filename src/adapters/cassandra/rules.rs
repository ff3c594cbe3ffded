//! Counter rules: one partition, changed by conditional requests.
//!
//! A rule that is made or removed moves `revision`, which bounds their number and keeps generations apart. A change of
//! a rule's progress is conditional on the stamp of its row alone, so rules do not get in each other's way. If an
//! answer is lost, the row is read again: a row that is as the change would leave it means that the change was applied.

use std::sync::Arc;

use async_trait::async_trait;

use crate::limits::CASSANDRA_ATTEMPTS_MAX;
use crate::request_failure::RequestFailure;
use crate::request_runner::RequestRunner;
use crate::store::ConditionalResult;
use crate::value::Bind;
use tallystone_adapters::codec::rules::{decode_rule, encode_rule};
use tallystone_domain::limits::RULE_ATTEMPTS_MAX;
use tallystone_domain::rules::{Rule, RuleName, RuleStamp};
use tallystone_ports::{EffectOutcome, NewRule, RuleChange, RuleStore, RulesBefore, StoreError, StoreErrorKind};

/// The rules of a keyspace.
pub struct CqlRules {
    requests: Arc<RequestRunner>,
}

/// The condition of a rule that is made or removed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct RulesRevision {
    revision: i64,
    last_generation: i64,
}

/// A row of the table without its statics: name, value. Both are null where only the statics exist.
type RuleRow = (Option<String>, Option<Vec<u8>>);

impl CqlRules {
    pub fn new(requests: Arc<RequestRunner>) -> Self {
        Self { requests }
    }

    /// Reads the revision. The first call of a keyspace makes it.
    async fn revision(&self, op: &'static str) -> Result<RulesRevision, StoreError> {
        for _ in 0..RULE_ATTEMPTS_MAX {
            let statement = self.requests.statement("read_rules_revision");
            let rows: Vec<(Option<i64>, Option<i64>)> = self.requests.rows_serial(op, statement, ()).await?;
            if let Some((Some(revision), Some(last_generation))) = rows.first().copied() {
                return Ok(RulesRevision { revision, last_generation });
            }
            let asked = [(self.requests.statement("begin_rules"), ().bind())];
            let begun = self.requests.retry_requests(|| self.requests.store.apply_conditionally(&asked)).await;
            begun.map_err(|fault| without_effect(fault.during(op)))?;
        }
        Err(RequestFailure::corrupt("the rules have no revision").during(op))
    }

    async fn count(&self, op: &'static str) -> Result<usize, StoreError> {
        let statement = self.requests.statement("list_rule_names");
        let rows: Vec<(Option<String>,)> = self.requests.rows_serial(op, statement, ()).await?;
        Ok(rows.into_iter().flat_map(|(name,)| name).count())
    }

    async fn read(&self, name: &RuleName, op: &'static str) -> Result<Option<Rule>, StoreError> {
        let statement = self.requests.statement("read_rule");
        let rows: Vec<(Option<Vec<u8>>,)> = self.requests.rows_serial(op, statement, (name.as_str(),)).await?;
        let value = rows.into_iter().find_map(|(value,)| value);
        let decoded = value.map(|value| decode_rule(name.as_str(), &value)).transpose();
        decoded.map_err(|damaged| damaged.into_store_error(op))
    }

    /// Commits a rule that is made or removed.
    async fn commit(&self, change: &RuleChange, op: &'static str) -> Result<Option<Rule>, StoreError> {
        let (mut failures, mut lost): (u32, Option<Option<Rule>>) = (0, None);
        for _ in 0..RULE_ATTEMPTS_MAX {
            let known = self.revision(op).await?;
            let live = self.read(change.name(), op).await?;
            if let Some(after) = &lost
                && is_done(change, live.as_ref(), after.as_ref())
            {
                return Ok(after.clone());
            }
            let count = self.count(op).await?;
            let last_generation = u32::try_from(known.last_generation).unwrap_or(u32::MAX);
            let before = RulesBefore { live: live.as_ref(), count, last_generation };
            let after = change.decide(before, op).map_err(|error| unknown_if(error, lost.is_some()))?;
            match self.try_commit(known, change, live.as_ref(), after.as_ref()).await {
                Ok(ConditionalResult::Applied) => return Ok(after),
                // Another server was first; it may have changed another rule.
                Ok(ConditionalResult::NotApplied(_)) => {}
                Err(fault) => {
                    failures += 1;
                    if fault.outcome == EffectOutcome::Unknown {
                        lost = Some(after);
                    }
                    if failures >= CASSANDRA_ATTEMPTS_MAX || !fault.is_retryable {
                        return Err(unknown_if(fault.during(op), lost.is_some()));
                    }
                    self.requests.pause(failures).await;
                }
            }
        }
        Err(unknown_if(StoreError::not_applied(StoreErrorKind::Busy, op), lost.is_some()))
    }

    /// Sends a commit once.
    async fn try_commit(
        &self,
        known: RulesRevision,
        change: &RuleChange,
        live: Option<&Rule>,
        after: Option<&Rule>,
    ) -> Result<ConditionalResult, RequestFailure> {
        let removed = live.filter(|_| after.is_none()).map_or(0, |rule| i64::from(rule.progress.generation));
        let moved = (known.revision + 1, known.last_generation.max(removed), known.revision);
        let mut statements = vec![(self.requests.statement("move_rules_revision"), moved.bind())];
        let name = change.name().as_str();
        match (after, live) {
            (Some(rule), _) => {
                let (born, version) = numbers(rule.stamp);
                let row = (name, born, version, encode_rule(rule));
                statements.push((self.requests.statement("insert_rule"), row.bind()));
            }
            (None, Some(rule)) => {
                let (born, version) = numbers(rule.stamp);
                statements.push((self.requests.statement("delete_rule"), (name, born, version).bind()));
            }
            (None, None) => {}
        }
        self.requests.store.apply_conditionally(&statements).await
    }
}

/// Whether the row is as a commit with a lost answer would have left it. A rule that was made is known by its
/// generation, which is given once; its progress may have moved on.
fn is_done(change: &RuleChange, live: Option<&Rule>, after: Option<&Rule>) -> bool {
    match (change, live, after) {
        (RuleChange::Create(_), Some(live), Some(after)) => {
            live.stamp.born == after.stamp.born && live.spec == after.spec
        }
        (RuleChange::Remove(..), None, _) => true,
        (RuleChange::Remove(_, stamp), Some(live), _) => live.stamp.born != stamp.born,
        (RuleChange::Create(_) | RuleChange::Update(_), ..) => false,
    }
}

fn numbers(stamp: RuleStamp) -> (i64, i64) {
    (i64::from(stamp.born), stamp.version.cast_signed())
}

/// A failure says whether anything was applied. After a lost answer that is not known.
fn unknown_if(error: StoreError, is_answer_lost: bool) -> StoreError {
    if is_answer_lost { StoreError { outcome: EffectOutcome::Unknown, ..error } } else { error }
}

/// The first revision of a keyspace is no change of a rule.
fn without_effect(error: StoreError) -> StoreError {
    StoreError { outcome: EffectOutcome::NotApplied, ..error }
}

#[async_trait]
impl RuleStore for CqlRules {
    async fn list(&self) -> Result<Vec<Rule>, StoreError> {
        const OP: &str = "list rules";
        let rows: Vec<RuleRow> = self.requests.rows(OP, self.requests.statement("list_rules"), ()).await?;
        let named = rows.into_iter().filter_map(|(name, value)| Some((name?, value?)));
        let decoded = named.map(|(name, value)| decode_rule(&name, &value));
        decoded.map(|rule| rule.map_err(|damaged| damaged.into_store_error(OP))).collect()
    }

    async fn get(&self, name: &RuleName) -> Result<Option<Rule>, StoreError> {
        self.read(name, "read rule").await
    }

    async fn create(&self, rule: NewRule) -> Result<Rule, StoreError> {
        const OP: &str = "create rule";
        let made = self.commit(&RuleChange::Create(rule), OP).await?;
        made.ok_or_else(|| RequestFailure::corrupt("the rule is gone").during(OP))
    }

    async fn update(&self, rule: Rule) -> Result<Rule, StoreError> {
        const OP: &str = "update rule";
        let (born, version) = numbers(rule.stamp);
        let next = rule.next_version();
        let name = next.spec.name.clone();
        let values = (numbers(next.stamp).1, encode_rule(&next), name.as_str(), born, version).bind();
        let asked = [(self.requests.statement("update_rule"), values)];
        let (mut failures, mut lost) = (0, false);
        loop {
            let fault = match self.requests.store.apply_conditionally(&asked).await {
                Ok(ConditionalResult::Applied) => return Ok(next),
                // An earlier attempt may be what stands in the way of this one.
                Ok(ConditionalResult::NotApplied(_)) if lost && self.read(&name, OP).await?.as_ref() == Some(&next) => {
                    return Ok(next);
                }
                Ok(ConditionalResult::NotApplied(_)) => {
                    return Err(unknown_if(StoreError::not_applied(StoreErrorKind::Conflict, OP), lost));
                }
                Err(fault) => fault,
            };
            failures += 1;
            lost |= fault.outcome == EffectOutcome::Unknown;
            if failures >= CASSANDRA_ATTEMPTS_MAX || !fault.is_retryable {
                return Err(unknown_if(fault.during(OP), lost));
            }
            self.requests.pause(failures).await;
        }
    }

    async fn remove(&self, name: &RuleName, stamp: RuleStamp) -> Result<(), StoreError> {
        self.commit(&RuleChange::Remove(name.clone(), stamp), "remove rule").await.map(drop)
    }
}
