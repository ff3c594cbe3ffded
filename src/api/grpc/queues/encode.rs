//! Encodes answers about queues.

use crate::errors::ApiError;
use crate::grpc::saturating_i64;
use crate::time;
use tallystone_domain::Timestamp;
use tallystone_domain::queue::bulk_operation::BulkOperation;
use tallystone_domain::queue::command::Completeness;
use tallystone_domain::queue::messages::message::{AttemptError, CanceledBy, RoutingValue};
use tallystone_domain::queue::{MessageHead, MessageState, QueueId, QueueName};
use tallystone_engine::queues::{
    Depth, DepthUpdate, EnqueueOutcome, LeaseOutcome, LeasedMessage, LiveSession, MessageView, Operation,
    OperationState, QueueClock, QueueError, QueueExplanation,
};
use tallystone_ports::StoredMessage;
use tallystone_proto::error::v1::ItemError;
use tallystone_proto::queue::v1 as wire;

/// Encodes the state of a message.
pub fn state(state: MessageState) -> i32 {
    let state = match state {
        MessageState::Invisible => wire::MessageState::Invisible,
        MessageState::Pending => wire::MessageState::Pending,
        MessageState::Running => wire::MessageState::Running,
        MessageState::Completed => wire::MessageState::Completed,
        MessageState::Canceled => wire::MessageState::Canceled,
        MessageState::Errored => wire::MessageState::Errored,
    };
    state.into()
}

/// Encodes the clock of queues.
pub fn clock(clock: QueueClock) -> wire::ResetQueueClockResponse {
    wire::ResetQueueClockResponse {
        queue_time: Some(time::write(clock.step.now)),
        server_time: Some(time::write(clock.wall)),
        judged_by: Some(time::write(clock.step.token_age_clock)),
        tokens_from: clock.tokens_from.map(time::write),
    }
}

/// Encodes whether an answer is complete.
pub fn completeness(completeness: Completeness) -> i32 {
    let completeness = match completeness {
        Completeness::Complete => wire::dequeue_response::Completeness::Complete,
        Completeness::More => wire::dequeue_response::Completeness::More,
        Completeness::Partial => wire::dequeue_response::Completeness::Partial,
    };
    completeness.into()
}

/// Encodes a number as the signed wire type, capped at its maximum.
pub fn signed(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// Encodes a message with its state at a time.
pub fn message(stored: StoredMessage, at: Timestamp) -> wire::Message {
    let StoredMessage { head, body } = stored;
    let lease = head.lease;
    wire::Message {
        message_id: head.id.to_string(),
        generation_time: None,
        payload: body.payload.into(),
        priority: Some(head.priority),
        priority_class: String::new(),
        metadata: head.metadata.pairs().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        invisibility: None,
        lease_duration: head.lease_duration.map(time::write_duration),
        max_attempts: Some(signed(head.max_attempts)),
        ttl: head.ttl_at.get().map(|ttl_at| time::write_duration(ttl_at.since(head.visible_at))),
        shard_key: head.routing.as_ref().map_or_else(String::new, |routing: &RoutingValue| routing.as_str().to_owned()),
        r#type: body.kind.map(String::from).unwrap_or_default(),
        trace_context: body.trace_context.map(String::from).unwrap_or_default(),
        message_key: head.key.to_string(),
        state: state(head.state),
        version: head.version,
        attempts_left: signed(head.attempts_left),
        attempt_number: signed(head.attempt_number()),
        enqueue_time: Some(time::write(head.enqueued_at)),
        visible_time: Some(time::write(head.visible_at)),
        first_lease_time: head.first_leased_at.map(time::write),
        ttl_left: head.ttl_at.get().map(|ttl_at| time::write_duration(ttl_at.since(at))),
        lease_expire_time: lease.map(|lease| time::write(lease.expires)),
        lease_start_time: lease.map(|lease| time::write(lease.since)),
        cancel_requested: lease.is_some_and(|lease| lease.cancel_requested),
        cancel_reason: cancel_reason(&head),
        error: head.error.as_ref().map(attempt_error),
        payload_bytes: signed(head.payload_bytes),
        worker_label: String::new(),
        session_ref: String::new(),
        end_time: head.ended_at.get().filter(|_| head.state.is_terminal()).map(time::write),
    }
}

/// Encodes the error of an attempt.
pub fn attempt_error(error: &AttemptError) -> wire::WorkerError {
    wire::WorkerError { signature: error.signature.to_string(), text: error.text.to_string() }
}

fn cancel_reason(head: &MessageHead) -> String {
    match &head.canceled_by {
        Some(CanceledBy::Worker) => "worker".to_owned(),
        Some(CanceledBy::Request(why)) if why.is_empty() => "request".to_owned(),
        Some(CanceledBy::Request(why)) => why.to_string(),
        Some(CanceledBy::Purge) => "purge".to_owned(),
        Some(CanceledBy::Ttl) => "ttl".to_owned(),
        None => String::new(),
    }
}

/// Encodes a message that was found.
pub fn message_view(view: MessageView) -> wire::Message {
    let (worker_label, session_ref) =
        view.worker.map_or_else(Default::default, |worker| (worker.label.into(), worker.session));
    wire::Message { worker_label, session_ref, ..message(view.message, view.at) }
}

/// Encodes a live session.
pub fn session(session: LiveSession) -> wire::LiveSession {
    wire::LiveSession {
        session_ref: session.alias,
        label: session.label.into(),
        open_time: Some(time::write(session.opened)),
        last_heard_time: Some(time::write(session.last_heard_at)),
        session_lease: Some(time::write_duration(session.lease)),
        session_expires_in: Some(time::write_duration(session.expires_in)),
        leases: saturating_i64(session.leases),
    }
}

/// Encodes a lease.
pub fn lease((_, name): &(QueueId, QueueName), given: LeasedMessage) -> wire::Lease {
    wire::Lease {
        message: Some(message(given.message, given.at)),
        lease_token: given.token,
        attempt_number: signed(given.lease.attempt_number),
        lease_expires_in: Some(time::write_duration(given.lease.expires_in)),
        fence: given.lease.token.fence.as_u64(),
        queue: name.as_str().to_owned(),
    }
}

/// Encodes the result of an enqueue.
pub fn enqueued(enqueued: &EnqueueOutcome) -> wire::EnqueueResponse {
    wire::EnqueueResponse {
        message_id: enqueued.id.to_string(),
        state: state(enqueued.state),
        already_enqueued: enqueued.already_enqueued,
        idempotent: enqueued.idempotent,
        message_key: enqueued.key.to_string(),
    }
}

/// Encodes the result of one message of a batch.
pub fn enqueue_result(id: String, answer: Result<EnqueueOutcome, QueueError>) -> wire::EnqueueResult {
    match answer {
        Ok(enqueued) => wire::EnqueueResult {
            message_id: enqueued.id.to_string(),
            state: state(enqueued.state),
            already_enqueued: enqueued.already_enqueued,
            idempotent: enqueued.idempotent,
            message_key: enqueued.key.to_string(),
            error: None,
        },
        Err(error) => wire::EnqueueResult { message_id: id, error: Some(item_error(error)), ..Default::default() },
    }
}

/// Encodes the error of an item.
pub fn item_error(error: QueueError) -> ItemError {
    ApiError::from(error).into()
}

/// Encodes the result of one settlement of a batch.
pub fn settle_result(lease_token: String, answer: Result<LeaseOutcome, QueueError>) -> wire::SettleResult {
    match answer {
        Ok(LeaseOutcome { settlement, extended }) => wire::SettleResult {
            lease_token,
            state: state(settlement.state),
            version: settlement.version,
            error: None,
            lease_expires_in: extended.map(|extended| time::write_duration(extended.expires_in)),
            cancel_requested: extended.is_some_and(|extended| extended.cancel_requested),
        },
        Err(error) => wire::SettleResult { lease_token, error: Some(item_error(error)), ..Default::default() },
    }
}

/// Encodes the depth of a queue.
pub fn depth(depth: &Depth) -> wire::GetDepthResponse {
    let of = |state| saturating_i64(depth.of(state));
    let shard = |(number, totals): (i32, &[tallystone_domain::queue::totals::Total; MessageState::ALL.len()])| {
        let of = |state: MessageState| saturating_i64(totals[state as usize].messages);
        wire::ShardDepth {
            shard: number,
            invisible: of(MessageState::Invisible),
            pending: of(MessageState::Pending),
            running: of(MessageState::Running),
            errored: of(MessageState::Errored),
        }
    };
    wire::GetDepthResponse {
        invisible: of(MessageState::Invisible),
        pending: of(MessageState::Pending),
        running: of(MessageState::Running),
        errored: of(MessageState::Errored),
        by_shard: (0..).zip(&depth.by_shard).map(shard).collect(),
        completed: of(MessageState::Completed),
        canceled: of(MessageState::Canceled),
        payload_bytes: saturating_i64(depth.bytes()),
        // Law of the port: totals and counts of indexed filters are stored with the messages; other filters are
        // refused.
        exact: true,
    }
}

/// Encodes one update of a watch.
pub fn depth_update(update: &DepthUpdate) -> wire::WatchQueueResponse {
    let of = |state| saturating_i64(update.depth.of(state));
    wire::WatchQueueResponse {
        invisible: of(MessageState::Invisible),
        pending: of(MessageState::Pending),
        running: of(MessageState::Running),
        errored: of(MessageState::Errored),
        waiting: saturating_i64(update.waiting),
        watch_time: Some(time::write(update.at)),
    }
}

/// Encodes an operation.
pub fn operation(operation: Operation) -> wire::Operation {
    let (progress, error) = match operation.state {
        OperationState::Running => (wire::OperationState::Running, None),
        OperationState::Done => (wire::OperationState::Done, None),
        OperationState::Cancelled => (wire::OperationState::Cancelled, None),
        OperationState::Failed(reason, text) => {
            (wire::OperationState::Failed, Some(ItemError::from(ApiError::new(reason, text))))
        }
    };
    let work = operation.work.as_ref();
    let states = work.into_iter().flat_map(|work| BulkOperation::states_of(work.kind, work.states));
    let filter = work.into_iter().flat_map(|work| work.filter.metadata().pairs());
    wire::Operation {
        filter: filter.map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        error_signature: work.and_then(|work| work.signature.as_deref()).unwrap_or_default().to_owned(),
        states: states.map(state).collect(),
        rate: work.map_or(0, |work| i32::try_from(work.rate).unwrap_or(i32::MAX)),
        reason: work.map(|work| work.reason.to_string()).unwrap_or_default(),
        author: operation.author.text.to_string(),
        operation_id: operation.id,
        queue: operation.queue.map(|queue| queue.to_string()).unwrap_or_default(),
        kind: operation.kind.to_owned(),
        state: progress.into(),
        done: saturating_i64(operation.done),
        total: saturating_i64(operation.total),
        start_time: Some(time::write(operation.began)),
        end_time: operation.ended.map(time::write),
        error,
        dry_run: operation.dry_run,
    }
}

/// Encodes explanations.
pub fn explanations(causes: Vec<QueueExplanation>) -> Vec<wire::Explanation> {
    causes.into_iter().map(|one| wire::Explanation { cause: one.cause.to_owned(), text: one.text }).collect()
}
