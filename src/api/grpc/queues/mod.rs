//! The gRPC QueueService: each method decodes the request, calls a use case, and encodes the response.

mod activity;
mod cursors;
pub(super) mod decode;
pub(super) mod encode;
mod service;
mod settings;
mod work;

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use tonic::{Request, Response, Status, Streaming};

use crate::api::errors::ApiError;
use crate::api::grpc::namespaces::actor_of;
use crate::api::grpc::{CallTime, caller_of, saturating_i64};
use crate::api::paging::{self, PagedRequest};
use crate::api::time;
use crate::domain::Reason;
use crate::domain::limits::{QUEUE_MESSAGE_BYTES_MAX, QUEUE_REPLY_BYTES_MAX};
use crate::domain::queue::messages::settlement::{SettleAction, Settlement};
use crate::engine::catalog::Author;
use crate::engine::queues::{DeletionRequest, Payloads, QueueEtag, SettleRequest, UpdateRequest};
use crate::proto::queue::v1 as wire;
use crate::proto::queue::v1::queue_service_server::QueueService;

pub(super) use service::NO_QUEUES;
pub use service::QueuesApi;

type QueueRpcResult<T> = Result<Response<T>, Status>;

/// How long a purge call waits for its operation, which then continues in the background.
const PURGE_WAIT: Duration = Duration::from_secs(1);
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
        let actor = actor_of(&request);
        let wire::CreateQueueRequest { queue, reason } = request.into_inner();
        let (draft, _etag) = settings::draft_of(queue).map_err(to_status)?;
        let made = self.queues()?.create(draft, Author { actor, reason }).await.map_err(to_status)?;
        Ok(Response::new(wire::CreateQueueResponse { queue: Some(settings::queue_message(&made)) }))
    }

    async fn get_queue(&self, request: Request<wire::GetQueueRequest>) -> QueueRpcResult<wire::GetQueueResponse> {
        let name = decode::queue(&request.into_inner().queue).map_err(to_status)?;
        let queue = self.queues()?.read(&name).await.map_err(to_status)?;
        Ok(Response::new(wire::GetQueueResponse { queue: Some(settings::queue_message(&queue)) }))
    }

    async fn update_queue(
        &self,
        request: Request<wire::UpdateQueueRequest>,
    ) -> QueueRpcResult<wire::UpdateQueueResponse> {
        let actor = actor_of(&request);
        let wire::UpdateQueueRequest { queue, reason, reset } = request.into_inner();
        let (draft, etag) = settings::draft_of(queue).map_err(to_status)?;
        let changed = self.queues()?.update(draft, reset, etag, Author { actor, reason }).await.map_err(to_status)?;
        Ok(Response::new(wire::UpdateQueueResponse { queue: Some(settings::queue_message(&changed.queue)) }))
    }

    async fn list_queues(&self, request: Request<wire::ListQueuesRequest>) -> QueueRpcResult<wire::ListQueuesResponse> {
        let request = request.into_inner();
        let rows = paging::rows(request.page_size).map_err(to_status)?;
        let paged = PagedRequest::new("ListQueues", &[request.prefix.as_bytes()]);
        let cursor = paged.cursor(&request.page_token).map_err(to_status)?;
        let above = cursor.map(|cursor| cursors::name(&cursor)).transpose().map_err(Status::from)?;
        let listed = self.queues()?.list(&request.prefix, above.as_ref(), rows).await;
        let last = listed.last().filter(|_| listed.len() == rows);
        Ok(Response::new(wire::ListQueuesResponse {
            next_page_token: last.map_or_else(String::new, |last| paged.token(last.spec.name.as_str().as_bytes())),
            queues: listed.iter().map(|queue| settings::queue_message(queue)).collect(),
        }))
    }

    async fn list_queue_changes(
        &self,
        request: Request<wire::ListQueueChangesRequest>,
    ) -> QueueRpcResult<wire::ListQueueChangesResponse> {
        let request = request.into_inner();
        let name = decode::queue(&request.queue).map_err(to_status)?;
        let rows = paging::rows(request.page_size).map_err(to_status)?;
        let paged = PagedRequest::new("ListQueueChanges", &[name.as_str().as_bytes()]);
        let cursor = paged.cursor(&request.page_token).map_err(to_status)?;
        let skip = cursor.map(|cursor| cursors::number(&cursor)).transpose().map_err(Status::from)?.unwrap_or(0);
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        let changes = self.queues()?.history(&name, skip, rows).await.map_err(to_status)?;
        let next = (changes.len() == rows).then(|| paged.token(&((skip + rows) as u64).to_be_bytes()));
        Ok(Response::new(wire::ListQueueChangesResponse {
            next_page_token: next.unwrap_or_default(),
            changes: changes.into_iter().map(settings::change_message).collect(),
        }))
    }

    async fn delete_queue(
        &self,
        request: Request<wire::DeleteQueueRequest>,
    ) -> QueueRpcResult<wire::DeleteQueueResponse> {
        let actor = actor_of(&request);
        let wire::DeleteQueueRequest { queue, etag, reason, request_token, queue_id } = request.into_inner();
        let sent = DeletionRequest {
            name: decode::queue(&queue).map_err(to_status)?,
            id: decode::queue_id(&queue_id).map_err(to_status)?,
            expected: (!etag.is_empty()).then(|| etag.parse::<QueueEtag>()).transpose().map_err(to_status)?,
            token: optional_token(request_token),
        };
        let messages = self.queues()?.delete(sent, Author { actor, reason }).await.map_err(to_status)?;
        Ok(Response::new(wire::DeleteQueueResponse { messages: saturating_i64(messages) }))
    }

    async fn purge_queue(&self, request: Request<wire::PurgeQueueRequest>) -> QueueRpcResult<wire::PurgeQueueResponse> {
        let caller = caller_of(&request);
        let wire::PurgeQueueRequest { queue, request_token, queue_id } = request.into_inner();
        let name = decode::queue(&queue).map_err(to_status)?;
        let id = decode::queue_id(&queue_id).map_err(to_status)?;
        let done = self
            .queues()?
            .purge(caller, &name, id, optional_token(request_token), PURGE_WAIT)
            .await
            .map_err(to_status)?;
        let operation = encode::operation(done);
        Ok(Response::new(wire::PurgeQueueResponse { purged: operation.done, operation: Some(operation) }))
    }

    async fn enqueue(&self, request: Request<wire::EnqueueRequest>) -> QueueRpcResult<wire::EnqueueResponse> {
        let caller = caller_of(&request);
        let wire::EnqueueRequest { queue, message } = request.into_inner();
        let name = decode::queue(&queue).map_err(to_status)?;
        let sent = decode::message(message).map_err(to_status)?;
        let enqueued = self.queues()?.enqueue(&caller, &name, sent).await.map_err(to_status)?;
        Ok(Response::new(encode::enqueued(&enqueued)))
    }

    async fn batch_enqueue(
        &self,
        request: Request<wire::BatchEnqueueRequest>,
    ) -> QueueRpcResult<wire::BatchEnqueueResponse> {
        let caller = caller_of(&request);
        let wire::BatchEnqueueRequest { queue, messages } = request.into_inner();
        let name = decode::queue(&queue).map_err(to_status)?;
        decode::batch_size("messages", messages.len()).map_err(to_status)?;
        let ids: Vec<String> = messages.iter().map(|message| message.message_id.clone()).collect();
        let sent = messages.into_iter().map(|message| decode::message(Some(message))).collect();
        let answers = self.queues()?.batch_enqueue(&caller, &name, sent).await.map_err(to_status)?;
        let results = ids.into_iter().zip(answers).map(|(id, answer)| encode::enqueue_result(id, answer));
        Ok(Response::new(wire::BatchEnqueueResponse { results: results.collect() }))
    }

    async fn dequeue(&self, request: Request<wire::DequeueRequest>) -> QueueRpcResult<wire::DequeueResponse> {
        let call_time = request.extensions().get::<CallTime>().map(|time| time.0);
        let request = request.into_inner();
        let name = decode::queue(&request.queue).map_err(to_status)?;
        let ask = decode::dequeue_request(request, call_time).map_err(to_status)?;
        let found = self.queues()?.dequeue(&name, ask).await.map_err(to_status)?;
        let completeness = encode::completeness(found.completeness);
        let (queue, next_event_in) = (found.queue(), found.next_event_in().map(time::write_duration));
        let leases = found.take().into_iter().map(|given| encode::lease(&queue, given)).collect();
        Ok(Response::new(wire::DequeueResponse { leases, completeness, next_event_in }))
    }

    async fn complete(&self, request: Request<wire::CompleteRequest>) -> QueueRpcResult<wire::CompleteResponse> {
        let wire::CompleteRequest { queue, lease_token } = request.into_inner();
        let Settlement { state, version } =
            self.settle(&queue, settle_request(lease_token, SettleAction::Complete)).await?;
        Ok(Response::new(wire::CompleteResponse { state: encode::state(state), version }))
    }

    async fn cancel(&self, request: Request<wire::CancelRequest>) -> QueueRpcResult<wire::CancelResponse> {
        let wire::CancelRequest { queue, lease_token } = request.into_inner();
        let Settlement { state, version } =
            self.settle(&queue, settle_request(lease_token, SettleAction::Cancel)).await?;
        Ok(Response::new(wire::CancelResponse { state: encode::state(state), version }))
    }

    async fn fail(&self, request: Request<wire::FailRequest>) -> QueueRpcResult<wire::FailResponse> {
        let wire::FailRequest { queue, lease_token, delay, error } = request.into_inner();
        let delay = decode::duration("delay", delay).map_err(to_status)?;
        let sent = SettleRequest { token: lease_token, verb: SettleAction::Fail, delay, error: decode::error(error) };
        let Settlement { state, version } = self.settle(&queue, sent).await?;
        Ok(Response::new(wire::FailResponse { state: encode::state(state), version }))
    }

    async fn release(&self, request: Request<wire::ReleaseRequest>) -> QueueRpcResult<wire::ReleaseResponse> {
        let wire::ReleaseRequest { queue, lease_token } = request.into_inner();
        let Settlement { state, version } =
            self.settle(&queue, settle_request(lease_token, SettleAction::Release)).await?;
        Ok(Response::new(wire::ReleaseResponse { state: encode::state(state), version }))
    }

    async fn extend_lease(
        &self,
        request: Request<wire::ExtendLeaseRequest>,
    ) -> QueueRpcResult<wire::ExtendLeaseResponse> {
        let wire::ExtendLeaseRequest { queue, lease_token, lease_duration } = request.into_inner();
        let name = decode::queue(&queue).map_err(to_status)?;
        let lease = decode::duration("lease_duration", lease_duration).map_err(to_status)?;
        let extended = self.queues()?.extend(&name, &lease_token, lease).await.map_err(to_status)?;
        Ok(Response::new(wire::ExtendLeaseResponse {
            lease_expires_in: Some(time::write_duration(extended.expires_in)),
            cancel_requested: extended.cancel_requested,
        }))
    }

    async fn settle_messages(
        &self,
        request: Request<wire::SettleMessagesRequest>,
    ) -> QueueRpcResult<wire::SettleMessagesResponse> {
        let wire::SettleMessagesRequest { queue, items } = request.into_inner();
        let name = decode::queue(&queue).map_err(to_status)?;
        decode::batch_size("items", items.len()).map_err(to_status)?;
        let tokens: Vec<String> = items.iter().map(|item| item.lease_token.clone()).collect();
        let sent = items.into_iter().map(decode::settlement).collect();
        let answers = self.queues()?.settle_all(&name, sent).await.map_err(to_status)?;
        let results = tokens.into_iter().zip(answers).map(|(token, answer)| encode::settle_result(token, answer));
        Ok(Response::new(wire::SettleMessagesResponse { results: results.collect() }))
    }

    async fn open_session(
        &self,
        request: Request<wire::OpenSessionRequest>,
    ) -> QueueRpcResult<wire::OpenSessionResponse> {
        let caller = caller_of(&request);
        let wire::OpenSessionRequest { label, session_lease } = request.into_inner();
        let lease = decode::duration("session_lease", session_lease).map_err(to_status)?;
        let opened = self.queues()?.open_session(&caller, &label, lease).await.map_err(to_status)?;
        let session_lease = Some(time::write_duration(opened.lease));
        Ok(Response::new(wire::OpenSessionResponse { session_id: opened.id.to_string(), session_lease }))
    }

    async fn heartbeat(&self, request: Request<wire::HeartbeatRequest>) -> QueueRpcResult<wire::HeartbeatResponse> {
        let wire::HeartbeatRequest { session_id, received_up_to } = request.into_inner();
        let id = decode::session(&session_id).map_err(to_status)?;
        let beat = self.queues()?.heartbeat(id, received_up_to).await.map_err(to_status)?;
        let session_expires_in = Some(time::write_duration(beat.expires_in));
        Ok(Response::new(wire::HeartbeatResponse { session_expires_in, cancel_requests: beat.cancel_requests }))
    }

    async fn close_session(
        &self,
        request: Request<wire::CloseSessionRequest>,
    ) -> QueueRpcResult<wire::CloseSessionResponse> {
        let id = decode::session(&request.into_inner().session_id).map_err(to_status)?;
        let released = self.queues()?.close_session(id).await.map_err(to_status)?;
        Ok(Response::new(wire::CloseSessionResponse { released: saturating_i64(released) }))
    }

    async fn list_sessions(
        &self,
        request: Request<wire::ListSessionsRequest>,
    ) -> QueueRpcResult<wire::ListSessionsResponse> {
        let wire::ListSessionsRequest { queue, page_size, page_token } = request.into_inner();
        let name = (!queue.is_empty()).then(|| decode::queue(&queue)).transpose().map_err(to_status)?;
        let rows = paging::rows(page_size).map_err(to_status)?;
        let paged = PagedRequest::new("ListSessions", &[queue.as_bytes()]);
        let cursor = paged.cursor(&page_token).map_err(to_status)?;
        let after = cursor.map(|cursor| cursors::number(&cursor)).transpose().map_err(Status::from)?.unwrap_or(0);
        let (sessions, next) = self.queues()?.list_sessions(name.as_ref(), after, rows).await.map_err(to_status)?;
        Ok(Response::new(wire::ListSessionsResponse {
            sessions: sessions.into_iter().map(encode::session).collect(),
            next_page_token: next.map_or_else(String::new, |next| paged.token(&next.to_be_bytes())),
        }))
    }

    async fn update_message(
        &self,
        request: Request<wire::UpdateMessageRequest>,
    ) -> QueueRpcResult<wire::UpdateMessageResponse> {
        let request = request.into_inner();
        let name = decode::queue(&request.queue).map_err(to_status)?;
        let message = decode::message_ref(&request.message_id, &request.shard_key).map_err(to_status)?;
        if request.visible_time.is_some() && request.invisibility.is_some() {
            let what = "visible_time and invisibility set the same value; send only one of them";
            return Err(ApiError::new(Reason::InvalidArgument, what).at("invisibility").into());
        }
        if request.priority.is_none() && request.visible_time.is_none() && request.invisibility.is_none() {
            let what = "the update has no change; send priority, visible_time or invisibility";
            return Err(ApiError::new(Reason::InvalidArgument, what).at("priority").into());
        }
        let sent = UpdateRequest {
            priority: request.priority,
            visible_at: decode::moment("visible_time", request.visible_time).map_err(to_status)?,
            invisibility: decode::duration("invisibility", request.invisibility).map_err(to_status)?,
            only_if_sooner: request.only_if_sooner,
            expected_version: request.expected_version,
            token: optional_token(request.request_token),
        };
        let Settlement { state, version } =
            self.queues()?.update_message(&name, message, sent).await.map_err(to_status)?;
        Ok(Response::new(wire::UpdateMessageResponse { state: encode::state(state), version }))
    }

    async fn cancel_message(
        &self,
        request: Request<wire::CancelMessageRequest>,
    ) -> QueueRpcResult<wire::CancelMessageResponse> {
        let wire::CancelMessageRequest { queue, message_id, shard_key, reason } = request.into_inner();
        let name = decode::queue(&queue).map_err(to_status)?;
        let message = decode::message_ref(&message_id, &shard_key).map_err(to_status)?;
        let Settlement { state, version } =
            self.queues()?.cancel_message(&name, message, &reason).await.map_err(to_status)?;
        Ok(Response::new(wire::CancelMessageResponse { state: encode::state(state), version }))
    }

    async fn set_value_limit(
        &self,
        request: Request<wire::SetValueLimitRequest>,
    ) -> QueueRpcResult<wire::SetValueLimitResponse> {
        let wire::SetValueLimitRequest { queue, value, limit } = request.into_inner();
        let name = decode::queue(&queue).map_err(to_status)?;
        let value = decode::exclusivity_value(&value).map_err(to_status)?;
        let limit = limit.map(decode::value_limit).transpose().map_err(to_status)?;
        self.queues()?.set_value_limit(&name, value, limit).await.map_err(to_status)?;
        Ok(Response::new(wire::SetValueLimitResponse {}))
    }

    async fn get_message(&self, request: Request<wire::GetMessageRequest>) -> QueueRpcResult<wire::GetMessageResponse> {
        let wire::GetMessageRequest { queue, message_id, shard_key } = request.into_inner();
        let name = decode::queue(&queue).map_err(to_status)?;
        let message = decode::message_ref(&message_id, &shard_key).map_err(to_status)?;
        let found = self.queues()?.get_message(&name, message).await.map_err(to_status)?;
        Ok(Response::new(wire::GetMessageResponse { message: Some(encode::message_view(found)) }))
    }

    async fn peek_messages(
        &self,
        request: Request<wire::PeekMessagesRequest>,
    ) -> QueueRpcResult<wire::PeekMessagesResponse> {
        let wire::PeekMessagesRequest { queue, max_messages } = request.into_inner();
        let name = decode::queue(&queue).map_err(to_status)?;
        let limit = decode::count("max_messages", max_messages, PEEK_DEFAULT).map_err(to_status)?;
        let found = self.queues()?.peek(&name, limit.min(QUEUE_REPLY_BYTES_MAX / QUEUE_MESSAGE_BYTES_MAX)).await;
        let messages = found.map_err(to_status)?.into_iter().map(encode::message_view).collect();
        Ok(Response::new(wire::PeekMessagesResponse { messages }))
    }

    async fn list_messages(
        &self,
        request: Request<wire::ListMessagesRequest>,
    ) -> QueueRpcResult<wire::ListMessagesResponse> {
        let request = request.into_inner();
        let name = decode::queue(&request.queue).map_err(to_status)?;
        let state = decode::state(request.state).map_err(to_status)?;
        let rows = paging::rows(request.page_size).map_err(to_status)?;
        let paged = PagedRequest::new("ListMessages", &[name.as_str().as_bytes(), &[state as u8]]);
        let cursor = paged.cursor(&request.page_token).map_err(to_status)?;
        let from = cursor.map(|cursor| cursors::list(&cursor)).transpose().map_err(Status::from)?.unwrap_or_default();
        let payloads = if request.without_payload { Payloads::Without } else { Payloads::With };
        let (found, next) =
            self.queues()?.list_messages(&name, state, from, rows, payloads).await.map_err(to_status)?;
        let next = next.map(|next| paged.token(&[&next.shard.to_be_bytes()[..], &next.after.to_be_bytes()].concat()));
        Ok(Response::new(wire::ListMessagesResponse {
            messages: found.into_iter().map(encode::message_view).collect(),
            next_page_token: next.unwrap_or_default(),
        }))
    }

    async fn get_depth(&self, request: Request<wire::GetDepthRequest>) -> QueueRpcResult<wire::GetDepthResponse> {
        let wire::GetDepthRequest { queue, filter } = request.into_inner();
        let name = decode::queue(&queue).map_err(to_status)?;
        let filter = decode::filter(&filter).map_err(to_status)?;
        let depth = self.queues()?.depth(&name, filter).await.map_err(to_status)?;
        Ok(Response::new(encode::depth(&depth)))
    }

    async fn redrive_messages(
        &self,
        request: Request<wire::RedriveMessagesRequest>,
    ) -> QueueRpcResult<wire::RedriveMessagesResponse> {
        let caller = caller_of(&request);
        let request = request.into_inner();
        let name = decode::queue(&request.queue).map_err(to_status)?;
        let asked = decode::redrive(request).map_err(to_status)?;
        let operation = self.queues()?.redrive(caller, &name, asked).await.map_err(to_status)?;
        Ok(Response::new(wire::RedriveMessagesResponse { operation: Some(encode::operation(operation)) }))
    }

    async fn discard_messages(
        &self,
        request: Request<wire::DiscardMessagesRequest>,
    ) -> QueueRpcResult<wire::DiscardMessagesResponse> {
        let caller = caller_of(&request);
        let request = request.into_inner();
        let name = decode::queue(&request.queue).map_err(to_status)?;
        let asked = decode::discard(request).map_err(to_status)?;
        let operation = self.queues()?.discard(caller, &name, asked).await.map_err(to_status)?;
        Ok(Response::new(wire::DiscardMessagesResponse { operation: Some(encode::operation(operation)) }))
    }

    async fn get_operation(
        &self,
        request: Request<wire::GetOperationRequest>,
    ) -> QueueRpcResult<wire::GetOperationResponse> {
        let operation = self.queues()?.operation(&request.into_inner().operation_id).await.map_err(to_status)?;
        Ok(Response::new(wire::GetOperationResponse { operation: Some(encode::operation(operation)) }))
    }

    async fn cancel_operation(
        &self,
        request: Request<wire::CancelOperationRequest>,
    ) -> QueueRpcResult<wire::CancelOperationResponse> {
        let operation = self.queues()?.cancel_operation(&request.into_inner().operation_id).await.map_err(to_status)?;
        Ok(Response::new(wire::CancelOperationResponse { operation: Some(encode::operation(operation)) }))
    }

    async fn reset_queue_clock(
        &self,
        request: Request<wire::ResetQueueClockRequest>,
    ) -> QueueRpcResult<wire::ResetQueueClockResponse> {
        let dry_run = request.into_inner().dry_run;
        let clock = if dry_run { self.queues()?.clock().await } else { self.queues()?.reset_clock().await };
        Ok(Response::new(encode::clock(clock.map_err(to_status)?)))
    }

    async fn explain_message(
        &self,
        request: Request<wire::ExplainMessageRequest>,
    ) -> QueueRpcResult<wire::ExplainMessageResponse> {
        let wire::ExplainMessageRequest { queue, message_id, shard_key } = request.into_inner();
        let name = decode::queue(&queue).map_err(to_status)?;
        let message = decode::message_ref(&message_id, &shard_key).map_err(to_status)?;
        let (causes, found) = self.queues()?.explain_message(&name, message).await.map_err(to_status)?;
        let message = found.map(|found| wire::Message { payload: Vec::new(), ..encode::message_view(found) });
        Ok(Response::new(wire::ExplainMessageResponse { explanations: encode::explanations(causes), message }))
    }

    async fn explain_queue(
        &self,
        request: Request<wire::ExplainQueueRequest>,
    ) -> QueueRpcResult<wire::ExplainQueueResponse> {
        let wire::ExplainQueueRequest { queue, filter } = request.into_inner();
        let name = decode::queue(&queue).map_err(to_status)?;
        let filter = decode::filter(&filter).map_err(to_status)?;
        let causes = self.queues()?.explain_queue(&name, filter).await.map_err(to_status)?;
        Ok(Response::new(wire::ExplainQueueResponse { explanations: encode::explanations(causes) }))
    }

    async fn list_queue_activity(
        &self,
        request: Request<wire::ListQueueActivityRequest>,
    ) -> QueueRpcResult<wire::ListQueueActivityResponse> {
        activity::list(self.queues()?, request.into_inner()).await.map(Response::new)
    }

    async fn get_queue_activity(
        &self,
        request: Request<wire::GetQueueActivityRequest>,
    ) -> QueueRpcResult<wire::GetQueueActivityResponse> {
        activity::get(self.queues()?, request.into_inner()).await.map(Response::new)
    }

    async fn watch_queue(&self, request: Request<wire::WatchQueueRequest>) -> QueueRpcResult<Self::WatchQueueStream> {
        let caller = caller_of(&request);
        let wire::WatchQueueRequest { queue, interval } = request.into_inner();
        let name = decode::queue(&queue).map_err(to_status)?;
        let interval = decode::duration("interval", interval).map_err(to_status)?.unwrap_or(WATCH_INTERVAL_DEFAULT);
        let depths = self.queues()?.watch(&caller, &name, interval).map_err(to_status)?;
        let updates = depths.map(|depth| depth.map(|depth| encode::depth_update(&depth)).map_err(to_status));
        let stopping = ApiError::new(Reason::ShuttingDown, "the server is stopping");
        let end = stream::once(async move { Err(stopping.into()) });
        Ok(Response::new(updates.take_until(self.drain.clone().cancelled_owned()).chain(end).boxed()))
    }

    async fn work(&self, request: Request<Streaming<wire::WorkRequest>>) -> QueueRpcResult<Self::WorkStream> {
        let permit = self.queues()?.place_for_stream(&caller_of(&request)).map_err(to_status)?;
        let answers = work::response_stream(self.queues()?.clone(), permit, request.into_inner(), self.drain.clone());
        Ok(Response::new(answers))
    }
}
