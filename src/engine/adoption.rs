//! Gives the counters of queues, their history and the counter rules to the queue store of this server, after the one
//! that had them is lost.
//!
//! The mark comes first, then the rules one by one, each by its stamp. So a call that is cut off is repeated, and one
//! that is sent twice changes nothing more. Servers of the store before stop by the mark, and lose the stamps of the
//! rules.

use std::sync::Arc;

use crate::bridge::pairing::{Pairing, StoreMark};
use crate::context::EngineContext;
use crate::queues::{QueueError, Queues};
use crate::reports::Reports;
use crate::rules::{RuleError, Rules};
use tallystone_domain::{Reason, Timestamp};
use tallystone_ports::{EffectOutcome, StoreError, StoreErrorKind};

/// The use case of adoption. Cheap to clone.
#[derive(Clone)]
pub struct Adoption {
    context: Arc<EngineContext>,
    queues: Option<Queues>,
    /// None where this server reports to no counters; it then has rules to give only.
    reports: Option<Reports>,
    rules: Rules,
}

/// Whether to adopt, or to say only what that would do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdoptionMode {
    Adopt,
    DryRun,
}

/// The result of an adoption, or of a dry run of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Adopted {
    /// Whether counters and history were those of this queue store before.
    pub already_adopted: bool,
    /// The rules of other queue stores, which are this one's now.
    pub rules: usize,
    /// The latest time up to which a queue store noted that it had reported to these counters.
    pub last_report: Option<Timestamp>,
}

/// The reason of a refused or failed adoption.
#[derive(Debug, thiserror::Error)]
pub enum AdoptionError {
    /// This process has no queues.
    #[error("this server has no queues, so there is no queue store to give the counters to")]
    NoQueues,
    /// Another queue store was given the counters at the same time.
    #[error("the counters were given to another queue store at the same time; see which one is in use, then try again")]
    Overtaken,
    /// The queue store does not answer, or is another one than at the start.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The rules cannot be given.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// The mark cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl AdoptionError {
    /// The reason, from the closed list.
    pub fn reason(&self) -> Reason {
        match self {
            Self::NoQueues => Reason::QueuesNotKept,
            Self::Overtaken => Reason::RetryLater,
            Self::Queue(error) => error.reason(),
            Self::Rule(error) => error.reason(),
            Self::Store(error) => error.reason(),
        }
    }
}

impl Adoption {
    pub(super) fn new(
        context: Arc<EngineContext>,
        queues: Option<Queues>,
        reports: Option<Reports>,
        rules: Rules,
    ) -> Self {
        Self { context, queues, reports, rules }
    }

    /// Gives counters, history and rules to the queue store of this server. A server whose store has lost what it had
    /// is refused: it is restarted on the empty store first.
    pub async fn adopt(&self, mode: AdoptionMode) -> Result<Adopted, AdoptionError> {
        let queues = self.queues.as_ref().ok_or(AdoptionError::NoQueues)?;
        if !queues.work.is_store_of_the_start().await? {
            let changed = StoreError::not_applied(StoreErrorKind::Lost, "give the counters to the queue store");
            let what =
                "STORE_LOST: the queue store is not the one of this server's start; restart the server, then adopt";
            return Err(changed.with_source(what).into());
        }
        let last_report = match self.mark() {
            Some((_, mark)) => mark.reported_to().await?,
            None => None,
        };
        // Read before anything changes: a store that does not answer leaves everything as it was.
        let rules = self.rules.of_other_stores().await?;
        let already_adopted = self.take_counters(mode).await?;
        let rules = match mode {
            AdoptionMode::Adopt => self.rules.adopt().await.map_err(partly_given)?,
            AdoptionMode::DryRun => rules.len(),
        };
        Ok(Adopted { already_adopted, rules, last_report })
    }

    /// Returns whether the counters belonged to this store before.
    async fn take_counters(&self, mode: AdoptionMode) -> Result<bool, AdoptionError> {
        let Some((reports, mark)) = self.mark() else { return Ok(true) };
        let draw = || u64::from_be_bytes(self.context.random());
        if mark.look(draw()).await? != Pairing::Apart {
            return Ok(true);
        }
        if mode == AdoptionMode::Adopt {
            if mark.adopt(draw()).await? == Pairing::Apart {
                return Err(AdoptionError::Overtaken);
            }
            reports.right.look_now();
        }
        Ok(false)
    }

    fn mark(&self) -> Option<(&Reports, &StoreMark)> {
        let reports = self.reports.as_ref()?;
        Some((reports, reports.mark.as_ref()?))
    }
}

/// The failure of an adoption that may have given the counters and some of the rules.
fn partly_given(error: RuleError) -> AdoptionError {
    match error {
        RuleError::Store(error) => StoreError { outcome: EffectOutcome::Unknown, ..error }.into(),
        error => error.into(),
    }
}
