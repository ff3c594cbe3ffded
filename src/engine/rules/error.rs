//! How a call of rules fails, and how an evaluation does.

use crate::counting::CountingError;
use crate::queues::QueueError;
use tallystone_domain::rules::RuleName;
use tallystone_domain::{Reason, Reject};
use tallystone_ports::{StoreError, StoreErrorKind};

/// How a rule is told to belong to another queue store, among the settings that differ.
pub(super) const OTHER_STORE: &str = "queue store";

/// The refusal or failure of a call or an evaluation.
#[derive(Debug, thiserror::Error)]
pub enum RuleError {
    /// An argument is invalid.
    #[error(transparent)]
    Reject(#[from] Reject),
    /// No such rule.
    #[error("rule {name} does not exist")]
    NotFound {
        /// The name that was asked for.
        name: RuleName,
    },
    /// A rule of the name has other settings.
    #[error("rule {name} exists with another {}{}", .differences.join(", another "), adopt_hint(.differences))]
    Exists {
        name: RuleName,
        /// The settings that differ.
        differences: Vec<&'static str>,
    },
    /// A rule that the caller may not see has the name.
    #[error("the name {name} is taken by another rule; choose another name")]
    Taken { name: RuleName },
    /// This process has no queues.
    #[error("this server has no queues, so a rule here has no queue to enqueue into")]
    NoQueues,
    /// The counter cannot be watched.
    #[error(transparent)]
    Counting(#[from] CountingError),
    /// The queue refuses the message.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The store of rules failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Says what to do about a rule that differs in nothing but its queue store.
fn adopt_hint(differences: &[&str]) -> &'static str {
    match differences {
        [OTHER_STORE] => "; if that store is lost, `tallystone bridge adopt` gives its rules to this one",
        _ => "",
    }
}

impl RuleError {
    /// The reason, from the closed list.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Reject(reject) => reject.reason,
            Self::NotFound { .. } => Reason::RuleNotFound,
            Self::Exists { .. } | Self::Taken { .. } => Reason::RuleExists,
            Self::NoQueues => Reason::QueuesNotKept,
            Self::Counting(error) => error.reason(),
            Self::Queue(error) => error.reason(),
            Self::Store(error) => error.reason(),
        }
    }

    /// Whether it passes by itself, so that a rule does not show it.
    pub(super) fn is_passing(&self) -> bool {
        let passing = [Reason::StoreUnavailable, Reason::OutcomeUnknown, Reason::RetryLater, Reason::ShuttingDown];
        passing.contains(&self.reason())
    }

    /// Whether another server changed the rule first.
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self, Self::Store(error) if error.kind == StoreErrorKind::Conflict)
    }
}
