//! The state of the gRPC queue service: the queue use cases, or `None` if the server has no queues.

use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::{decode, to_status};
use crate::errors::ApiError;
use tallystone_domain::Reason;
use tallystone_domain::access::{AccessProof, AccessResource, AccessRole, CallRights, ListRights, Permitted, Sealed};
use tallystone_domain::queue::QueueName;
use tallystone_domain::queue::messages::settlement::Settlement;
use tallystone_engine::queues::{Operation, QueueError, Queues, SettleRequest, WorkService};

/// The error message of every call to a server without queues.
pub(in crate::grpc) const NO_QUEUES: &str = "this server has no queues; send the call to a server with queues, or set queues.engine = \
    \"embedded\" and storage.data_dir on this server";

/// The queue service.
pub struct QueuesApi {
    queues: Option<Sealed<Queues>>,
    pub(super) drain: CancellationToken,
}

impl QueuesApi {
    /// Creates the service. Streams and waiting calls end when `drain` is cancelled.
    pub fn new(queues: Option<Queues>, drain: CancellationToken) -> Self {
        Self { queues: queues.map(Sealed::new), drain }
    }

    /// Returns the use cases to whoever has a proof of a right, or `QUEUES_NOT_KEPT` if the server has no queues.
    pub(super) fn queues(&self, proof: &impl AccessProof) -> Result<&Queues, Status> {
        let queues = self.queues.as_ref().ok_or_else(|| ApiError::new(Reason::QueuesNotKept, NO_QUEUES))?;
        Ok(queues.with(proof))
    }

    /// The work of an enqueue. Making the queue by a template is a right of its own.
    pub(super) fn enqueuing(&self, rights: &CallRights, name: &Permitted<QueueName>) -> Result<WorkService, Status> {
        let may_make = rights.allows_as(AccessRole::QueueMaker, AccessResource::Queue(name.as_str()));
        Ok(self.queues(name)?.work.making_queues(may_make))
    }

    pub(super) async fn settle(
        &self,
        rights: &CallRights,
        queue: &str,
        sent: SettleRequest,
    ) -> Result<Settlement, Status> {
        let name = decode::queue(rights, queue)?;
        self.queues(&name)?.work.settle(&name, sent).await.map_err(to_status)
    }
}

/// Reads an operation. One about a queue that the caller may not touch, or of another principal unless the caller is
/// admin of the queue, is hidden as one that does not exist. The id of the answer has no seal.
pub(in crate::grpc) async fn shown_operation(
    queues: &Queues,
    list: &ListRights,
    id: &str,
) -> Result<Operation, QueueError> {
    let hidden = || QueueError::OperationNotFound { id: id.to_owned() };
    let (plain, is_own) = queues.operations.owned_operation_of(id, list.owner());
    let operation = queues.operations.operation(plain).await.map_err(|error| match error {
        QueueError::OperationNotFound { .. } => hidden(),
        other => other, // the store failed
    })?;
    let queue = operation.queue.as_ref();
    match list.shows_about(queue) && (is_own || list.is_admin_of(queue)) {
        true => Ok(operation),
        false => Err(hidden()),
    }
}
