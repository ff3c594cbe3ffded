//! Cancels of many messages: those that wait end at once, and the workers of those that run are asked to stop.

use super::{Operation, OperationKind, OperationSpec};
use crate::caller_quota::CallerId;
use crate::queues::error::QueueError;
use crate::queues::error::argument_checks::check_reason;
use crate::queues::operations::OperationService;
use tallystone_domain::queue::{Filter, QueueId, QueueName};

/// The arguments of a cancel of many messages.
#[derive(Clone, Debug, Default)]
pub struct CancelRequest {
    /// The filter that they must match.
    pub filter: Filter,
    /// The reason of the cancellation.
    pub reason: String,
    /// Whether to count only.
    pub dry_run: bool,
    /// The request token of the caller.
    pub token: Option<String>,
    /// The id that the queue must have.
    pub queue: Option<QueueId>,
    /// The caller that asks, as it is shown to people.
    pub author: Box<str>,
}

impl OperationService {
    /// Cancels all messages that match a filter and are not over.
    pub async fn cancel_messages(
        &self,
        caller: CallerId,
        name: &QueueName,
        asked: CancelRequest,
    ) -> Result<Operation, QueueError> {
        let CancelRequest { filter, reason, dry_run, token, queue, author } = asked;
        check_reason(&reason)?;
        let queue = self.catalog.queue_of(name, queue).await?;
        let reason = reason.into();
        let work = OperationSpec { filter, reason, dry_run, ..OperationSpec::all(OperationKind::Cancel) };
        self.start_bulk((caller, author), &queue, work, token).await
    }
}
