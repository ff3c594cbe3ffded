//! The calls that begin a purge, cancel, redrive or discard.

use std::time::Duration;

use tonic::Status;

use super::service::QueuesApi;
use super::{decode, encode, optional_token, to_status};
use tallystone_domain::access::CallRights;
use tallystone_engine::caller_quota::CallerId;
use tallystone_engine::queues::{CancelRequest, DiscardRequest, PurgeRequest, RedriveRequest};
use tallystone_proto::queue::v1 as wire;

/// How long a purge call waits for its operation, which then continues in the background.
const PURGE_WAIT: Duration = Duration::from_secs(1);

/// The caller that asks: its id for quotas, and its name as it is shown to people.
type AskedBy = (CallerId, String);

impl QueuesApi {
    pub(super) async fn purge(
        &self,
        rights: &CallRights,
        (caller, actor): AskedBy,
        request: wire::PurgeQueueRequest,
    ) -> Result<wire::PurgeQueueResponse, Status> {
        let wire::PurgeQueueRequest { queue, request_token, queue_id, states, filter, dry_run } = request;
        let name = decode::queue(rights, &queue)?;
        let asked = PurgeRequest {
            states: decode::purged_states(&states).map_err(to_status)?,
            filter: decode::filter(&filter).map_err(to_status)?,
            dry_run,
            token: optional_token(request_token),
            queue: decode::queue_id(&queue_id).map_err(to_status)?,
            author: actor.into(),
        };
        let queues = self.queues(&name)?;
        let done = queues.operations.purge(caller, &name, asked, PURGE_WAIT).await;
        let operation = encode::operation(queues.operations.owned_operation(done.map_err(to_status)?, rights.owner()));
        Ok(wire::PurgeQueueResponse { purged: operation.done, operation: Some(operation) })
    }

    pub(super) async fn cancel_many(
        &self,
        rights: &CallRights,
        (caller, actor): AskedBy,
        request: wire::CancelMessagesRequest,
    ) -> Result<wire::CancelMessagesResponse, Status> {
        let name = decode::queue(rights, &request.queue)?;
        let asked = CancelRequest { author: actor.into(), ..decode::cancel_messages(request).map_err(to_status)? };
        let queues = self.queues(&name)?;
        let operation = queues.operations.cancel_messages(caller, &name, asked).await.map_err(to_status)?;
        let operation = queues.operations.owned_operation(operation, rights.owner());
        Ok(wire::CancelMessagesResponse { operation: Some(encode::operation(operation)) })
    }

    pub(super) async fn redrive(
        &self,
        rights: &CallRights,
        (caller, actor): AskedBy,
        request: wire::RedriveMessagesRequest,
    ) -> Result<wire::RedriveMessagesResponse, Status> {
        let name = decode::queue(rights, &request.queue)?;
        let asked = RedriveRequest { author: actor.into(), ..decode::redrive(request).map_err(to_status)? };
        let queues = self.queues(&name)?;
        let operation = queues.operations.redrive(caller, &name, asked).await.map_err(to_status)?;
        let operation = queues.operations.owned_operation(operation, rights.owner());
        Ok(wire::RedriveMessagesResponse { operation: Some(encode::operation(operation)) })
    }

    pub(super) async fn discard(
        &self,
        rights: &CallRights,
        (caller, actor): AskedBy,
        request: wire::DiscardMessagesRequest,
    ) -> Result<wire::DiscardMessagesResponse, Status> {
        let name = decode::queue(rights, &request.queue)?;
        let asked = DiscardRequest { author: actor.into(), ..decode::discard(request).map_err(to_status)? };
        let queues = self.queues(&name)?;
        let operation = queues.operations.discard(caller, &name, asked).await.map_err(to_status)?;
        let operation = queues.operations.owned_operation(operation, rights.owner());
        Ok(wire::DiscardMessagesResponse { operation: Some(encode::operation(operation)) })
    }
}
