//! The gRPC QueueService: each method decodes the request, calls a use case, and encodes the response.

mod activity;
mod cursors;
pub(super) mod decode;
pub(super) mod encode;
mod lists;
mod operations;
mod service;
mod settings;
mod work;

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use tonic::{Request, Response, Status, Streaming};

use crate::errors::ApiError;
use crate::grpc::namespaces::actor_of;
use crate::grpc::{CallTime, caller_of, places_of, refuse_etag, rights_of, saturating_i64, settable};
use crate::time;
use tallystone_domain::Reason;
use tallystone_domain::access::ResourceKind;
use tallystone_domain::limits::{QUEUE_MESSAGE_BYTES_MAX, QUEUE_REPLY_BYTES_MAX};
use tallystone_domain::queue::QueueName;
use tallystone_domain::queue::messages::settlement::{SettleAction, Settlement};
use tallystone_engine::catalog::Author;
use tallystone_engine::queues::{DeletionRequest, QueueEtag, SettleRequest};
use tallystone_proto::queue::v1 as wire;
use tallystone_proto::queue::v1::queue_service_server::QueueService;

pub use service::QueuesApi;
pub(super) use service::{NO_QUEUES, shown_operation};

type QueueRpcResult<T> = Result<Response<T>, Status>;

const WATCH_INTERVAL_DEFAULT: Duration = Duration::from_secs(1);
/// The default number of messages in a peek.
const PEEK_DEFAULT: usize = 10;

fn to_status(error: impl Into<ApiError>) -> Status {
    error.into().into()
}

fn settle_request(token: String, verb: SettleAction) -> SettleRequest {
    SettleRequest { token, verb, delay: None, error: None }
}

fn optional_token(sent: String) -> Option<String> {
    (!sent.is_empty()).then_some(sent)
}

#[tonic::async_trait]
impl QueueService for QueuesApi {
    type WatchQueueStream = BoxStream<'static, Result<wire::WatchQueueResponse, Status>>;
    type WorkStream = BoxStream<'static, Result<wire::WorkResponse, Status>>;

    async fn create_queue(
        &self,
        request: Request<wire::CreateQueueRequest>,
    ) -> QueueRpcResult<wire::CreateQueueResponse> {
        let (actor, rights, maker) = (actor_of(&request), rights_of(&request)?, caller_of(&request));
        let wire::CreateQueueRequest { queue, reason } = settable(request)?;
        let (draft, etag) = settings::draft_of(&rights, queue)?;
        refuse_etag(etag, "queue.etag")?;
        let catalog = self.queues(&draft)?.catalog.of_maker(maker);
        let made = catalog.create(draft.into_inner(), Author { actor, reason }).await.map_err(to_status)?;
        Ok(Response::new(wire::CreateQueueResponse { queue: Some(settings::queue_message(&made)) }))
    }

    async fn get_queue(&self, request: Request<wire::GetQueueRequest>) -> QueueRpcResult<wire::GetQueueResponse> {
        let rights = rights_of(&request)?;
        let name = decode::queue(&rights, &request.into_inner().queue)?;
        let queue = self.queues(&name)?.catalog.read(&name).await.map_err(to_status)?;
        Ok(Response::new(wire::GetQueueResponse { queue: Some(settings::queue_message(&queue)) }))
    }

    async fn update_queue(
        &self,
        request: Request<wire::UpdateQueueRequest>,
    ) -> QueueRpcResult<wire::UpdateQueueResponse> {
        let (actor, rights) = (actor_of(&request), rights_of(&request)?);
        let wire::UpdateQueueRequest { queue, reason, reset } = settable(request)?;
        let (draft, etag) = settings::draft_of(&rights, queue)?;
        let queues = self.queues(&draft)?;
        let changed = queues
            .catalog
            .update(draft.into_inner(), reset, etag, Author { actor, reason })
            .await
            .map_err(to_status)?;
        Ok(Response::new(wire::UpdateQueueResponse { queue: Some(settings::queue_message(&changed.queue)) }))
    }

    async fn list_queues(&self, request: Request<wire::ListQueuesRequest>) -> QueueRpcResult<wire::ListQueuesResponse> {
        let rights = rights_of(&request)?;
        self.queues_page(&rights, request.into_inner()).await.map(Response::new)
    }

    async fn list_queue_changes(
        &self,
        request: Request<wire::ListQueueChangesRequest>,
    ) -> QueueRpcResult<wire::ListQueueChangesResponse> {
        let rights = rights_of(&request)?;
        self.changes_page(&rights, request.into_inner()).await.map(Response::new)
    }

    async fn delete_queue(
        &self,
        request: Request<wire::DeleteQueueRequest>,
    ) -> QueueRpcResult<wire::DeleteQueueResponse> {
        let rights = rights_of(&request)?;
        let actor = actor_of(&request);
        let wire::DeleteQueueRequest { queue, etag, reason, request_token, queue_id } = request.into_inner();
        let name = decode::queue(&rights, &queue)?;
        let sent = DeletionRequest {
            name: QueueName::clone(&name),
            id: decode::queue_id(&queue_id).map_err(to_status)?,
            expected: (!etag.is_empty()).then(|| etag.parse::<QueueEtag>()).transpose().map_err(to_status)?,
            token: optional_token(request_token),
        };
        let messages = self.queues(&name)?.catalog.delete(sent, Author { actor, reason }).await.map_err(to_status)?;
        Ok(Response::new(wire::DeleteQueueResponse { messages: saturating_i64(messages) }))
    }

    async fn purge_queue(&self, request: Request<wire::PurgeQueueRequest>) -> QueueRpcResult<wire::PurgeQueueResponse> {
        let (rights, by) = (rights_of(&request)?, (caller_of(&request), actor_of(&request)));
        self.purge(&rights, by, request.into_inner()).await.map(Response::new)
    }

    async fn enqueue(&self, request: Request<wire::EnqueueRequest>) -> QueueRpcResult<wire::EnqueueResponse> {
        let rights = rights_of(&request)?;
        let caller = caller_of(&request);
        let wire::EnqueueRequest { queue, message } = settable(request)?;
        let name = decode::queue(&rights, &queue)?;
        let sent = decode::message(message).map_err(to_status)?;
        let enqueued = self.enqueuing(&rights, &name)?.enqueue(&caller, &name, sent).await.map_err(to_status)?;
        Ok(Response::new(encode::enqueued(&enqueued)))
    }

    async fn batch_enqueue(
        &self,
        request: Request<wire::BatchEnqueueRequest>,
    ) -> QueueRpcResult<wire::BatchEnqueueResponse> {
        let rights = rights_of(&request)?;
        let caller = caller_of(&request);
        let wire::BatchEnqueueRequest { queue, messages } = settable(request)?;
        let name = decode::queue(&rights, &queue)?;
        decode::batch_size("messages", messages.len()).map_err(to_status)?;
        let ids: Vec<String> = messages.iter().map(|message| message.message_id.clone()).collect();
        let sent = messages.into_iter().map(|message| decode::message(Some(message))).collect();
        let answers = self.enqueuing(&rights, &name)?.batch_enqueue(&caller, &name, sent).await.map_err(to_status)?;
        let results = ids.into_iter().zip(answers).map(|(id, answer)| encode::enqueue_result(id, answer));
        Ok(Response::new(wire::BatchEnqueueResponse { results: results.collect() }))
    }

    async fn dequeue(&self, request: Request<wire::DequeueRequest>) -> QueueRpcResult<wire::DequeueResponse> {
        let rights = rights_of(&request)?;
        let call_time = request.extensions().get::<CallTime>().map(|time| time.0);
        let request = request.into_inner();
        let name = decode::queue(&rights, &request.queue)?;
        let queues = self.queues(&name)?;
        let session = |text: &str| queues.sessions.session_of(text, rights.owner());
        let ask = decode::dequeue_request(request, call_time, session).map_err(to_status)?;
        let found = queues.work.dequeue(&name, ask).await.map_err(to_status)?;
        let completeness = encode::completeness(found.completeness);
        let (queue, next_event_in) = (found.queue(), found.next_event_in().map(time::write_duration));
        let leases = found.take().into_iter().map(|given| encode::lease(&queue, given)).collect();
        Ok(Response::new(wire::DequeueResponse { leases, completeness, next_event_in }))
    }

    async fn complete(&self, request: Request<wire::CompleteRequest>) -> QueueRpcResult<wire::CompleteResponse> {
        let rights = rights_of(&request)?;
        let wire::CompleteRequest { queue, lease_token } = request.into_inner();
        let Settlement { state, version } =
            self.settle(&rights, &queue, settle_request(lease_token, SettleAction::Complete)).await?;
        Ok(Response::new(wire::CompleteResponse { state: encode::state(state), version }))
    }

    async fn cancel(&self, request: Request<wire::CancelRequest>) -> QueueRpcResult<wire::CancelResponse> {
        let rights = rights_of(&request)?;
        let wire::CancelRequest { queue, lease_token } = request.into_inner();
        let Settlement { state, version } =
            self.settle(&rights, &queue, settle_request(lease_token, SettleAction::Cancel)).await?;
        Ok(Response::new(wire::CancelResponse { state: encode::state(state), version }))
    }

    async fn fail(&self, request: Request<wire::FailRequest>) -> QueueRpcResult<wire::FailResponse> {
        let rights = rights_of(&request)?;
        let wire::FailRequest { queue, lease_token, delay, error } = request.into_inner();
        let delay = decode::duration("delay", delay).map_err(to_status)?;
        let sent = SettleRequest { token: lease_token, verb: SettleAction::Fail, delay, error: decode::error(error) };
        let Settlement { state, version } = self.settle(&rights, &queue, sent).await?;
        Ok(Response::new(wire::FailResponse { state: encode::state(state), version }))
    }

    async fn release(&self, request: Request<wire::ReleaseRequest>) -> QueueRpcResult<wire::ReleaseResponse> {
        let rights = rights_of(&request)?;
        let wire::ReleaseRequest { queue, lease_token } = request.into_inner();
        let Settlement { state, version } =
            self.settle(&rights, &queue, settle_request(lease_token, SettleAction::Release)).await?;
        Ok(Response::new(wire::ReleaseResponse { state: encode::state(state), version }))
    }

    async fn extend_lease(
        &self,
        request: Request<wire::ExtendLeaseRequest>,
    ) -> QueueRpcResult<wire::ExtendLeaseResponse> {
        let rights = rights_of(&request)?;
        let wire::ExtendLeaseRequest { queue, lease_token, lease_duration } = request.into_inner();
        let name = decode::queue(&rights, &queue)?;
        let lease = decode::duration("lease_duration", lease_duration).map_err(to_status)?;
        let extended = self.queues(&name)?.work.extend(&name, &lease_token, lease).await.map_err(to_status)?;
        Ok(Response::new(wire::ExtendLeaseResponse {
            lease_expires_in: Some(time::write_duration(extended.expires_in)),
            cancel_requested: extended.cancel_requested,
        }))
    }

    async fn settle_messages(
        &self,
        request: Request<wire::SettleMessagesRequest>,
    ) -> QueueRpcResult<wire::SettleMessagesResponse> {
        let rights = rights_of(&request)?;
        let wire::SettleMessagesRequest { queue, items } = request.into_inner();
        let name = decode::queue(&rights, &queue)?;
        decode::batch_size("items", items.len()).map_err(to_status)?;
        let tokens: Vec<String> = items.iter().map(|item| item.lease_token.clone()).collect();
        let sent = items.into_iter().map(decode::settlement).collect();
        let answers = self.queues(&name)?.work.settle_all(&name, sent).await.map_err(to_status)?;
        let results = tokens.into_iter().zip(answers).map(|(token, answer)| encode::settle_result(token, answer));
        Ok(Response::new(wire::SettleMessagesResponse { results: results.collect() }))
    }

    async fn open_session(
        &self,
        request: Request<wire::OpenSessionRequest>,
    ) -> QueueRpcResult<wire::OpenSessionResponse> {
        let (caller, rights) = (caller_of(&request), rights_of(&request)?);
        let queues = self.queues(&rights.listing())?;
        let wire::OpenSessionRequest { label, session_lease } = request.into_inner();
        let lease = decode::duration("session_lease", session_lease).map_err(to_status)?;
        let opened =
            queues.sessions.open_owned_session(&caller, rights.owner(), &label, lease).await.map_err(to_status)?;
        let session_lease = Some(time::write_duration(opened.lease));
        Ok(Response::new(wire::OpenSessionResponse {
            session_id: queues.sessions.session_text(opened.id, rights.owner()),
            session_lease,
        }))
    }

    async fn heartbeat(&self, request: Request<wire::HeartbeatRequest>) -> QueueRpcResult<wire::HeartbeatResponse> {
        let rights = rights_of(&request)?;
        let queues = self.queues(&rights.listing())?;
        let wire::HeartbeatRequest { session_id, received_up_to } = request.into_inner();
        let id = queues.sessions.session_of(&session_id, rights.owner()).map_err(to_status)?;
        let beat = queues.sessions.heartbeat(id, received_up_to).await.map_err(to_status)?;
        let session_expires_in = Some(time::write_duration(beat.expires_in));
        Ok(Response::new(wire::HeartbeatResponse { session_expires_in, cancel_requests: beat.cancel_requests }))
    }

    async fn close_session(
        &self,
        request: Request<wire::CloseSessionRequest>,
    ) -> QueueRpcResult<wire::CloseSessionResponse> {
        let rights = rights_of(&request)?;
        let queues = self.queues(&rights.listing())?;
        let id = queues.sessions.session_of(&request.into_inner().session_id, rights.owner()).map_err(to_status)?;
        let released = queues.sessions.close_session(id).await.map_err(to_status)?;
        Ok(Response::new(wire::CloseSessionResponse { released: saturating_i64(released) }))
    }

    async fn list_sessions(
        &self,
        request: Request<wire::ListSessionsRequest>,
    ) -> QueueRpcResult<wire::ListSessionsResponse> {
        let rights = rights_of(&request)?;
        self.sessions_page(&rights, request.into_inner()).await.map(Response::new)
    }

    async fn update_message(
        &self,
        request: Request<wire::UpdateMessageRequest>,
    ) -> QueueRpcResult<wire::UpdateMessageResponse> {
        let rights = rights_of(&request)?;
        let request = request.into_inner();
        let name = decode::queue(&rights, &request.queue)?;
        let message = decode::message_ref(&request.message_id, &request.shard_key).map_err(to_status)?;
        let sent = decode::update(request).map_err(to_status)?;
        let Settlement { state, version } =
            self.queues(&name)?.work.update_message(&name, message, sent).await.map_err(to_status)?;
        Ok(Response::new(wire::UpdateMessageResponse { state: encode::state(state), version }))
    }

    async fn cancel_message(
        &self,
        request: Request<wire::CancelMessageRequest>,
    ) -> QueueRpcResult<wire::CancelMessageResponse> {
        let rights = rights_of(&request)?;
        let wire::CancelMessageRequest { queue, message_id, shard_key, reason } = request.into_inner();
        let name = decode::queue(&rights, &queue)?;
        let message = decode::message_ref(&message_id, &shard_key).map_err(to_status)?;
        let Settlement { state, version } =
            self.queues(&name)?.work.cancel_message(&name, message, &reason).await.map_err(to_status)?;
        Ok(Response::new(wire::CancelMessageResponse { state: encode::state(state), version }))
    }

    async fn cancel_messages(
        &self,
        request: Request<wire::CancelMessagesRequest>,
    ) -> QueueRpcResult<wire::CancelMessagesResponse> {
        let (rights, by) = (rights_of(&request)?, (caller_of(&request), actor_of(&request)));
        self.cancel_many(&rights, by, request.into_inner()).await.map(Response::new)
    }

    async fn set_value_limit(
        &self,
        request: Request<wire::SetValueLimitRequest>,
    ) -> QueueRpcResult<wire::SetValueLimitResponse> {
        let rights = rights_of(&request)?;
        let wire::SetValueLimitRequest { queue, value, limit } = request.into_inner();
        let name = decode::queue(&rights, &queue)?;
        let value = decode::exclusivity_value(&value).map_err(to_status)?;
        let limit = limit.map(decode::value_limit).transpose().map_err(to_status)?;
        self.queues(&name)?.work.set_value_limit(&name, value, limit).await.map_err(to_status)?;
        Ok(Response::new(wire::SetValueLimitResponse {}))
    }

    async fn get_message(&self, request: Request<wire::GetMessageRequest>) -> QueueRpcResult<wire::GetMessageResponse> {
        let rights = rights_of(&request)?;
        let wire::GetMessageRequest { queue, message_id, shard_key } = request.into_inner();
        let name = decode::queue(&rights, &queue)?;
        let message = decode::message_ref(&message_id, &shard_key).map_err(to_status)?;
        let found = self.queues(&name)?.inspect.get_message(&name, message).await.map_err(to_status)?;
        Ok(Response::new(wire::GetMessageResponse { message: Some(encode::message_view(found)) }))
    }

    async fn peek_messages(
        &self,
        request: Request<wire::PeekMessagesRequest>,
    ) -> QueueRpcResult<wire::PeekMessagesResponse> {
        let rights = rights_of(&request)?;
        let wire::PeekMessagesRequest { queue, max_messages } = request.into_inner();
        let name = decode::queue(&rights, &queue)?;
        let limit = decode::count("max_messages", max_messages, PEEK_DEFAULT).map_err(to_status)?;
        let found =
            self.queues(&name)?.inspect.peek(&name, limit.min(QUEUE_REPLY_BYTES_MAX / QUEUE_MESSAGE_BYTES_MAX)).await;
        let messages = found.map_err(to_status)?.into_iter().map(encode::message_view).collect();
        Ok(Response::new(wire::PeekMessagesResponse { messages }))
    }

    async fn list_messages(
        &self,
        request: Request<wire::ListMessagesRequest>,
    ) -> QueueRpcResult<wire::ListMessagesResponse> {
        let rights = rights_of(&request)?;
        self.messages_page(&rights, request.into_inner()).await.map(Response::new)
    }

    async fn get_depth(&self, request: Request<wire::GetDepthRequest>) -> QueueRpcResult<wire::GetDepthResponse> {
        let rights = rights_of(&request)?;
        let wire::GetDepthRequest { queue, filter } = request.into_inner();
        let name = decode::queue(&rights, &queue)?;
        let filter = decode::filter(&filter).map_err(to_status)?;
        let depth = self.queues(&name)?.inspect.depth(&name, filter).await.map_err(to_status)?;
        Ok(Response::new(encode::depth(&depth)))
    }

    async fn redrive_messages(
        &self,
        request: Request<wire::RedriveMessagesRequest>,
    ) -> QueueRpcResult<wire::RedriveMessagesResponse> {
        let (rights, by) = (rights_of(&request)?, (caller_of(&request), actor_of(&request)));
        self.redrive(&rights, by, request.into_inner()).await.map(Response::new)
    }

    async fn discard_messages(
        &self,
        request: Request<wire::DiscardMessagesRequest>,
    ) -> QueueRpcResult<wire::DiscardMessagesResponse> {
        let (rights, by) = (rights_of(&request)?, (caller_of(&request), actor_of(&request)));
        self.discard(&rights, by, request.into_inner()).await.map(Response::new)
    }

    async fn list_operations(
        &self,
        request: Request<wire::ListOperationsRequest>,
    ) -> QueueRpcResult<wire::ListOperationsResponse> {
        let rights = rights_of(&request)?;
        self.operations_page(&rights, request.into_inner()).await.map(Response::new)
    }

    async fn get_operation(
        &self,
        request: Request<wire::GetOperationRequest>,
    ) -> QueueRpcResult<wire::GetOperationResponse> {
        let list = rights_of(&request)?.listing();
        let id = request.into_inner().operation_id;
        let queues = self.queues(&list)?;
        let operation = shown_operation(queues, &list, &id).await.map_err(to_status)?;
        let operation = queues.operations.owned_operation(operation, list.owner());
        Ok(Response::new(wire::GetOperationResponse { operation: Some(encode::operation(operation)) }))
    }

    async fn cancel_operation(
        &self,
        request: Request<wire::CancelOperationRequest>,
    ) -> QueueRpcResult<wire::CancelOperationResponse> {
        let list = rights_of(&request)?.listing();
        let (queues, id) = (self.queues(&list)?, request.into_inner().operation_id);
        let found = shown_operation(queues, &list, &id).await.map_err(to_status)?;
        let operation = queues.operations.cancel_operation(&found.id).await.map_err(to_status)?;
        let operation = queues.operations.owned_operation(operation, list.owner());
        Ok(Response::new(wire::CancelOperationResponse { operation: Some(encode::operation(operation)) }))
    }

    async fn reset_queue_clock(
        &self,
        request: Request<wire::ResetQueueClockRequest>,
    ) -> QueueRpcResult<wire::ResetQueueClockResponse> {
        let queues = self.queues(&rights_of(&request)?.every(ResourceKind::Server).map_err(ApiError::from)?)?;
        let dry_run = request.into_inner().dry_run;
        let clock = if dry_run { queues.clock().await } else { queues.reset_clock().await };
        Ok(Response::new(encode::clock(clock.map_err(to_status)?)))
    }

    async fn explain_message(
        &self,
        request: Request<wire::ExplainMessageRequest>,
    ) -> QueueRpcResult<wire::ExplainMessageResponse> {
        let rights = rights_of(&request)?;
        let wire::ExplainMessageRequest { queue, message_id, shard_key } = request.into_inner();
        let name = decode::queue(&rights, &queue)?;
        let message = decode::message_ref(&message_id, &shard_key).map_err(to_status)?;
        let (causes, found) = self.queues(&name)?.inspect.explain_message(&name, message).await.map_err(to_status)?;
        let message = found.map(|found| wire::Message { payload: Vec::new(), ..encode::message_view(found) });
        Ok(Response::new(wire::ExplainMessageResponse { explanations: encode::explanations(causes), message }))
    }

    async fn explain_queue(
        &self,
        request: Request<wire::ExplainQueueRequest>,
    ) -> QueueRpcResult<wire::ExplainQueueResponse> {
        let rights = rights_of(&request)?;
        let wire::ExplainQueueRequest { queue, filter } = request.into_inner();
        let name = decode::queue(&rights, &queue)?;
        let filter = decode::filter(&filter).map_err(to_status)?;
        let causes = self.queues(&name)?.inspect.explain_queue(&name, filter).await.map_err(to_status)?;
        Ok(Response::new(wire::ExplainQueueResponse { explanations: encode::explanations(causes) }))
    }

    async fn list_queue_activity(
        &self,
        request: Request<wire::ListQueueActivityRequest>,
    ) -> QueueRpcResult<wire::ListQueueActivityResponse> {
        let list = rights_of(&request)?.listing();
        activity::list(self.queues(&list)?, &list, request.into_inner()).await.map(Response::new)
    }

    async fn get_queue_activity(
        &self,
        request: Request<wire::GetQueueActivityRequest>,
    ) -> QueueRpcResult<wire::GetQueueActivityResponse> {
        let rights = rights_of(&request)?;
        let name = decode::queue(&rights, &request.into_inner().queue)?;
        activity::get(self.queues(&name)?, &name).await.map(Response::new)
    }

    async fn watch_queue(&self, request: Request<wire::WatchQueueRequest>) -> QueueRpcResult<Self::WatchQueueStream> {
        let rights = rights_of(&request)?;
        let caller = caller_of(&request);
        let wire::WatchQueueRequest { queue, interval } = request.into_inner();
        let name = decode::queue(&rights, &queue)?;
        let interval = decode::duration("interval", interval).map_err(to_status)?.unwrap_or(WATCH_INTERVAL_DEFAULT);
        let depths = self.queues(&name)?.inspect.watch(&caller, &name, interval).map_err(to_status)?;
        let updates = depths.map(|depth| depth.map(|depth| encode::depth_update(&depth)).map_err(to_status));
        let stopping = ApiError::new(Reason::ShuttingDown, "the server is stopping");
        let end = stream::once(async move { Err(stopping.into()) });
        Ok(Response::new(updates.take_until(self.drain.clone().cancelled_owned()).chain(end).boxed()))
    }

    async fn work(&self, request: Request<Streaming<wire::WorkRequest>>) -> QueueRpcResult<Self::WorkStream> {
        let rights = rights_of(&request)?;
        let queues = self.queues(&rights.listing())?.clone();
        let permit = queues.work.place_for_stream(&caller_of(&request)).map_err(to_status)?;
        let places = places_of(&request)?;
        let requests = request.into_inner();
        let answers = work::response_stream(queues, (rights, places), permit, requests, self.drain.clone());
        Ok(Response::new(answers))
    }
}
