//! Purges: cancels the messages of a queue that wait, and removes those that are over.

use std::time::Duration;

use super::{Operation, OperationKind, OperationRequest, OperationSpec};
use crate::caller_quota::CallerId;
use crate::queues::Queues;
use crate::queues::error::QueueError;
use tallystone_domain::queue::bulk_operation::PurgedStates;
use tallystone_domain::queue::{QueueId, QueueName};

/// The arguments of a purge.
#[derive(Clone, Debug, Default)]
pub struct PurgeRequest {
    /// The states whose messages it covers.
    pub states: PurgedStates,
    /// The request token of the caller.
    pub token: Option<String>,
    /// The id that the queue must have.
    pub queue: Option<QueueId>,
}

impl Queues {
    /// Cancels messages of a queue that wait, or removes those that are over; waits up to `patience` for the end.
    pub async fn purge(
        &self,
        caller: CallerId,
        name: &QueueName,
        PurgeRequest { states, token, queue }: PurgeRequest,
        patience: Duration,
    ) -> Result<Operation, QueueError> {
        let queue = self.queue_of(name, queue).await?;
        let depth = self.depth_of(&queue).await?;
        let total = states.iter().map(|state| depth.of(state)).sum();
        let work = OperationSpec { states, ..OperationSpec::all(OperationKind::Purge) };
        let running = self.begin(&queue, OperationRequest { caller, work, total, token, ended_by: None }).await?;
        let mut end = running.end.subscribe();
        tokio::select! {
            _ = end.wait_for(Option::is_some) => {}
            () = self.context.engine.clock.sleep(patience) => {}
        }
        Ok(running.show())
    }
}
