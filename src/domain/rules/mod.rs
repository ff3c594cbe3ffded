//! Counter rules: a rule watches one counter and enqueues a message for each threshold that the count crosses.
//!
//! `rule` says what a rule is, `stored_rule` how it is kept. `progress` has the decisions: which crossings are due,
//! what is claimed, when a rule begins again. The engine reads counts, stores progress by compare-and-set and sends
//! messages. Invariant: a crossing of a generation is claimed once, and a claim is stored before its message is sent.

mod progress;
#[cfg(test)]
mod progress_laws;
mod rule;
mod stored_rule;

pub use progress::{CrossingClaim, ExactCount, FiredMessage, RuleProgress, SourceEpochs};
pub use rule::{CROSSED_FROM_KEY, CROSSING_KEY, RuleCondition, RuleMessage, RuleName, RuleSpec};
pub use stored_rule::{QueueHome, Rule, RuleStamp};
