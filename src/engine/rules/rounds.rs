//! The loop that evaluates the rules of this server: every ten seconds each of them reads its counter again.

use std::collections::VecDeque;

use async_trait::async_trait;
use futures_util::future::join_all;

use crate::driver::{BackgroundLoop, NextActivation};
use crate::rules::Rules;
use tallystone_domain::limits::{RULE_INTERVAL, RULES_AT_ONCE_MAX};
use tallystone_domain::rules::Rule;

/// The loop of one server. A round is several activations, so that a stop does not wait for all of it.
pub struct RulesLoop {
    rules: Rules,
    /// The rules of the round that wait for their turn, as they were read at its beginning. A rule that has changed
    /// since is left to the next round, because its stamp is gone.
    waiting: VecDeque<Rule>,
    /// The rules of other queue stores that the log was told of.
    passed_over: usize,
}

impl RulesLoop {
    pub fn new(rules: Rules) -> Self {
        Self { rules, waiting: VecDeque::new(), passed_over: 0 }
    }

    /// Reads the rules whose messages go to the queues of this server.
    async fn begin_round(&mut self) {
        let Some(queues) = &self.rules.queues else { return };
        let home = queues.home();
        match self.rules.store.list().await {
            Ok(rules) => {
                let all = rules.len();
                self.waiting = rules.into_iter().filter(|rule| rule.home == home).collect();
                self.tell_passed_over(all - self.waiting.len());
            }
            Err(error) => {
                self.rules.context.stats.rules.failed.increment();
                tracing::warn!(%error, "cannot read the counter rules; they are read again");
            }
        }
    }

    /// Says once how many rules this server does not run.
    fn tell_passed_over(&mut self, rules: usize) {
        if rules > self.passed_over {
            tracing::warn!(
                rules,
                "counter rules belong to another queue store and do not fire here; if that store is lost, `tallystone bridge \
                 adopt` gives them to this one"
            );
        }
        self.passed_over = rules;
    }

    async fn evaluate_some(&mut self) {
        let Some(queues) = &self.rules.queues else { return };
        let some = self.waiting.len().min(RULES_AT_ONCE_MAX);
        let rules = &self.rules;
        join_all(self.waiting.drain(..some).map(|rule| rules.evaluate(queues, rule))).await;
    }
}

#[async_trait]
impl BackgroundLoop for RulesLoop {
    fn name(&self) -> &'static str {
        "counter rules"
    }

    async fn activate(&mut self) -> NextActivation {
        if self.waiting.is_empty() {
            self.begin_round().await;
        }
        self.evaluate_some().await;
        if self.waiting.is_empty() { NextActivation::After(RULE_INTERVAL) } else { NextActivation::Again }
    }
}
