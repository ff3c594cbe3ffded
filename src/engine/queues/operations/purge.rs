//! Purges: cancels the messages of a queue that wait, and removes those that are over.

use std::time::Duration;

use super::{Operation, OperationKind, OperationRequest, OperationSpec};
use crate::caller_quota::CallerId;
use crate::queues::error::QueueError;
use crate::queues::operations::OperationService;
use tallystone_domain::queue::bulk_operation::PurgedStates;
use tallystone_domain::queue::{Filter, QueueId, QueueName};

/// The arguments of a purge.
#[derive(Clone, Debug, Default)]
pub struct PurgeRequest {
    /// The states whose messages it covers.
    pub states: PurgedStates,
    /// The filter that they must match.
    pub filter: Filter,
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
    /// Cancels messages of a queue that wait, or removes those that are over; waits up to `patience` for the end, and
    /// as long as it takes for that of a dry run.
    pub async fn purge(
        &self,
        caller: CallerId,
        name: &QueueName,
        PurgeRequest { states, filter, dry_run, token, queue, author }: PurgeRequest,
        patience: Duration,
    ) -> Result<Operation, QueueError> {
        let queue = self.catalog.queue_of(name, queue).await?;
        let work = OperationSpec { states, filter, dry_run, ..OperationSpec::all(OperationKind::Purge) };
        let total = self.estimate(&queue, &work).await?;
        let asked = OperationRequest { caller, author, work, total, token, ended_by: None };
        let running = self.begin(&queue, asked).await?;
        let mut end = running.end.subscribe();
        tokio::select! {
            _ = end.wait_for(Option::is_some) => {}
            () = self.context.sleep(patience), if !dry_run => {}
        }
        Ok(running.show())
    }
}
