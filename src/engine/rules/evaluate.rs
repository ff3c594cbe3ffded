//! One evaluation of one rule: send what is pending, read the count, claim what is due, send that.

use crate::caller_quota::CallerId;
use crate::queues::{Queues, SentMessage};
use crate::rules::{RuleError, Rules};
use tallystone_domain::Reason;
use tallystone_domain::limits::RULE_PROBLEM_BYTES_MAX;
use tallystone_domain::queue::messages::message::MessageRef;
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::rules::{CrossingClaim, Rule, RuleProgress, RuleSpec};

/// The result of an evaluation.
enum Evaluated {
    /// The rule is as stored now.
    Stored(Box<Rule>),
    /// There is nothing more to do in this round: the queue or the counter refuses, or another server was first.
    Over,
}

impl Rules {
    /// Evaluates a rule as it was read. A failure leaves it to the next round.
    pub(super) async fn evaluate(&self, queues: &Queues, rule: Rule) {
        let counts = &self.context.stats.rules;
        counts.evaluated.increment();
        let name = rule.spec.name.clone();
        match self.run(queues, rule).await {
            Ok(()) => {}
            Err(error) if error.is_conflict() => {} // another server evaluates it
            Err(error) => {
                counts.failed.increment();
                tracing::warn!(%error, rule = %name, "cannot evaluate a counter rule; it is tried again");
            }
        }
    }

    async fn run(&self, queues: &Queues, mut rule: Rule) -> Result<(), RuleError> {
        let mut is_first = false;
        if rule.progress.pending.is_some_and(|claim| claim.is_refused)
            && let Some(progress) = rule.progress.timed_anew(queues.token_time().await?)
        {
            rule = self.store.update(Rule { progress, ..rule }).await?;
            is_first = true;
        }
        if let Some(claim) = rule.progress.pending {
            match self.send(queues, rule, claim, is_first).await? {
                Evaluated::Stored(settled) => rule = *settled,
                Evaluated::Over => return Ok(()),
            }
        }
        let spec = &rule.spec;
        let seen = match self.counting.exact_count(&spec.namespace, spec.counter.clone()).await {
            Ok(Some(seen)) => seen,
            Ok(None) => return Ok(()), // the next round finds it rolled up
            Err(error) => {
                let progress = rule.progress.clone();
                return self.note_problem(rule, progress, error.into()).await;
            }
        };
        let now = queues.token_time().await?;
        let well = RuleProgress { problem: None, ..rule.progress.clone() };
        let next = well.observe(spec, &seen, now).unwrap_or(well);
        if next == rule.progress {
            return Ok(());
        }
        let claimed = self.store.update(Rule { progress: next, ..rule }).await?;
        match claimed.progress.pending {
            Some(claim) => self.send(queues, claimed, claim, true).await.map(drop),
            None => Ok(()),
        }
    }

    /// Sends the message of a stored claim, and settles it. The message, its id and its time come from the claim, so
    /// the queue recognizes a repeat, whichever server sends it. `is_first` says that no server has sent it with this
    /// time.
    async fn send(
        &self,
        queues: &Queues,
        rule: Rule,
        claim: CrossingClaim,
        is_first: bool,
    ) -> Result<Evaluated, RuleError> {
        let (counts, spec) = (&self.context.stats.rules, &rule.spec);
        let id = rule.progress.message_id(&spec.name, &claim);
        let message = SentMessage { id: Some(id.clone()), ..message_of(spec, &claim) };
        let (progress, counted) = match queues.work.enqueue(&CallerId::nobody(), &spec.queue, message).await {
            Ok(_) => (rule.progress.clone().fired(id), &counts.fired),
            Err(error) if error.reason() == Reason::TokenExpired => match self.has_message(queues, spec, &id).await? {
                true => (rule.progress.clone().fired(id), &counts.fired),
                false => {
                    tracing::warn!(rule = %spec.name, message = %id, "the queue can no longer tell whether it had the \
                        message of a counter rule; it is not sent again");
                    (rule.progress.clone().expired(), &counts.uncertain)
                }
            },
            Err(error) => {
                let is_absent = match error.reason() {
                    // The shard looked for the token first, so nothing of this claim was applied.
                    Reason::EnqueueBlocked | Reason::QueueFull => true,
                    // The store did not look, but nothing of this call was applied.
                    Reason::StorageFull => is_first,
                    _ => false, // it may have been applied
                };
                let progress = if is_absent { rule.progress.clone().refused() } else { rule.progress.clone() };
                self.note_problem(rule, progress, error.into()).await?;
                return Ok(Evaluated::Over);
            }
        };
        let settled = self.store.update(Rule { progress, ..rule }).await?;
        counted.increment();
        Ok(Evaluated::Stored(Box::new(settled)))
    }

    /// Whether the queue has the message of this id.
    async fn has_message(&self, queues: &Queues, spec: &RuleSpec, id: &MessageId) -> Result<bool, RuleError> {
        let message = MessageRef::Id(id.clone(), None);
        match queues.inspect.get_message(&spec.queue, message).await {
            Ok(_) => Ok(true),
            Err(error) if error.reason() == Reason::MessageNotFound => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Keeps the problem of a rule with the rule's progress, where people see it. A problem that passes by itself is
    /// only logged.
    async fn note_problem(&self, rule: Rule, progress: RuleProgress, error: RuleError) -> Result<(), RuleError> {
        if error.is_passing() {
            return Err(error);
        }
        self.context.stats.rules.failed.increment();
        let mut text = format!("{}: {error}", error.reason());
        text.truncate(text.floor_char_boundary(RULE_PROBLEM_BYTES_MAX));
        let problem = Some(text.into_boxed_str());
        if rule.progress.problem != problem {
            tracing::warn!(%error, rule = %rule.spec.name, "a counter rule cannot fire; it is tried again");
        }
        let progress = RuleProgress { problem, ..progress };
        if rule.progress == progress {
            return Ok(());
        }
        self.store.update(Rule { progress, ..rule }).await?;
        Ok(())
    }
}

/// The message of a claim, without its id.
pub(super) fn message_of(spec: &RuleSpec, claim: &CrossingClaim) -> SentMessage {
    let message = &spec.message;
    SentMessage {
        token_time: Some(claim.time),
        payload: message.payload.clone(),
        priority: message.priority,
        metadata: claim.metadata(&message.metadata),
        shard_key: message.shard_key.clone(),
        kind: message.kind.clone(),
        ..SentMessage::default()
    }
}
