//! Creates a rule: checks all that can be known before it fires.

use crate::queues::SentMessage;
use crate::rules::error::OTHER_STORE;
use crate::rules::evaluate::message_of;
use crate::rules::{RuleError, Rules};
use tallystone_domain::limits::RULES_MAX;
use tallystone_domain::rules::{CrossingClaim, QueueHome, Rule, RuleSpec};
use tallystone_domain::{Reason, Reject, Timestamp};
use tallystone_ports::{NewRule, StoreErrorKind};

/// The namespace in which the service counts queues.
const QUEUE_COUNTERS: &str = "tallystone.queues";
/// The end of the queue's name in the name of its counter.
const QUEUE_NAME_END: char = '~';

impl Rules {
    /// Creates a rule. If it exists with the same settings, it is answered as it is.
    pub async fn create(&self, spec: RuleSpec) -> Result<Rule, RuleError> {
        spec.check()?;
        refuse_own_queue(&spec)?;
        let queues = self.queues.as_ref().ok_or(RuleError::NoQueues)?;
        let home = queues.home();
        if let Some(known) = self.store.get(&spec.name).await? {
            return same(known, &spec, home);
        }
        self.counting.check_exact(&spec.namespace).await?;
        queues.work.check_message(&spec.queue, longest_message(&spec)).await?;
        if self.store.list().await?.len() >= RULES_MAX {
            let what = format!("the store has {RULES_MAX} rules, the maximum; delete one first");
            return Err(Reject::new(Reason::InvalidArgument, what).into());
        }
        let new = NewRule { spec: spec.clone(), home, created: self.context.now() };
        match self.store.create(new).await {
            // Another call was first.
            Err(error) if error.kind == StoreErrorKind::Conflict => match self.store.get(&spec.name).await? {
                Some(known) => same(known, &spec, home),
                None => Err(error.into()),
            },
            made => Ok(made?),
        }
    }
}

/// A queue that feeds itself never comes to rest: each message would be counted and cross the next threshold.
fn refuse_own_queue(spec: &RuleSpec) -> Result<(), Reject> {
    let own = spec.counter.as_str().split_once(QUEUE_NAME_END).is_some_and(|(queue, _)| queue == spec.queue.as_str());
    if !own || spec.namespace.as_str() != QUEUE_COUNTERS {
        return Ok(());
    }
    let what = format!(
        "counter {} belongs to queue {}: the rule's own messages would change it; send them to another queue",
        spec.counter.as_str(),
        spec.queue
    );
    Err(Reject::new(Reason::InvalidArgument, what.clone()).at("rule.queue", what))
}

/// The message with the longest metadata that the rule will ever send. It has no time, so that it is never too old.
fn longest_message(spec: &RuleSpec) -> SentMessage {
    let longest = i64::MAX.unsigned_abs();
    let claim = CrossingClaim { from: longest, through: longest, time: Timestamp::MIN, is_refused: false };
    SentMessage { token_time: None, ..message_of(spec, &claim) }
}

/// The known rule, if it is the one that is asked for.
fn same(known: Rule, spec: &RuleSpec, home: QueueHome) -> Result<Rule, RuleError> {
    let RuleSpec { name, namespace, counter, condition, queue, message, max_per_minute } = &known.spec;
    let compared = [
        ("namespace", *namespace == spec.namespace),
        ("counter_name", *counter == spec.counter),
        ("threshold", *condition == spec.condition),
        ("queue", *queue == spec.queue),
        ("message", *message == spec.message),
        ("max_per_minute", *max_per_minute == spec.max_per_minute),
        (OTHER_STORE, known.home == home),
    ];
    let differences: Vec<_> = compared.into_iter().filter(|(_, same)| !same).map(|(what, _)| what).collect();
    if differences.is_empty() {
        return Ok(known);
    }
    Err(RuleError::Exists { name: name.clone(), differences })
}
