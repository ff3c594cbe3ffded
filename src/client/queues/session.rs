//! A worker's view of its session: the next call, its attempt number, and the last answer that arrived.

use std::time::Duration;

use tonic::{Request, Response, Status};

use crate::error::should_switch_server;
use crate::queues::message::duration;
use crate::queues::queues_on;
use crate::{CallError, Client, Connection};
use tallystone_proto::queue::v1 as pb;

/// Reasons that end the session.
const SESSION_END_REASONS: [&str; 3] = ["SESSION_NOT_FOUND", "SESSION_ENDED", "SESSION_REPLACED"];
/// Reasons that end only the call.
const CALL_END_REASONS: [&str; 2] = ["SEQUENCE_TOO_OLD", "TRY_BARRED"];

/// An open session.
#[derive(Clone, Debug)]
pub(super) struct WorkerSession {
    id: String,
    /// How long the session lives after each call.
    pub lease: Duration,
    /// The number of the next or current call.
    pub sequence: u64,
    attempt: i32,
    /// The last call whose answer arrived.
    pub received: Option<u64>,
}

/// The consequence of a failure for the session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SessionFailure {
    /// The session is still open.
    StillOpen,
    /// The session is over; another one may be opened.
    Ended,
    /// The session is over, because another worker took its label.
    Replaced,
}

impl WorkerSession {
    /// Starts the state of a session that was opened.
    pub fn new(opened: pb::OpenSessionResponse, lease: Duration) -> Self {
        Self { id: opened.session_id, lease, sequence: 1, attempt: 0, received: None }
    }

    /// Fills in a dequeue as the next attempt of the current call.
    pub fn dequeue(&mut self, request: pb::DequeueRequest) -> pb::DequeueRequest {
        self.attempt = self.attempt.saturating_add(1);
        pb::DequeueRequest {
            session_id: self.id.clone(),
            sequence: self.sequence,
            r#try: self.attempt,
            received_up_to: self.received,
            ..request
        }
    }

    /// Records that the answer of the call arrived; returns its number.
    pub fn response_arrived(&mut self) -> u64 {
        let call = self.sequence;
        self.received = Some(call);
        self.next_call();
        call
    }

    /// Records a failed call; returns the consequence for the session.
    pub fn note_failure(&mut self, error: &CallError) -> SessionFailure {
        match error.reason().as_deref() {
            Some("SESSION_REPLACED") => SessionFailure::Replaced,
            Some(reason) if SESSION_END_REASONS.contains(&reason) => SessionFailure::Ended,
            Some(reason) if CALL_END_REASONS.contains(&reason) => {
                self.next_call();
                SessionFailure::StillOpen
            }
            Some(_) | None => SessionFailure::StillOpen,
        }
    }

    fn next_call(&mut self) {
        (self.sequence, self.attempt) = (self.sequence + 1, 0);
    }

    /// The heartbeat request.
    pub fn heartbeat(&self) -> pb::HeartbeatRequest {
        pb::HeartbeatRequest { session_id: self.id.clone(), received_up_to: self.received }
    }

    /// The request that closes the session.
    pub fn close(&self) -> pb::CloseSessionRequest {
        pb::CloseSessionRequest { session_id: self.id.clone() }
    }
}

/// The request that opens a session.
pub(super) fn opening(label: &str, lease: Duration) -> pb::OpenSessionRequest {
    pb::OpenSessionRequest { label: label.to_owned(), session_lease: Some(duration(lease)) }
}

/// Makes a call once. The worker does its own retries, because each attempt has its own number.
pub(super) async fn call_once<Q, A, F>(
    client: &Client,
    time: Duration,
    request: &Q,
    call: impl Fn(Connection, Request<Q>) -> F + Sync,
) -> Result<A, CallError>
where
    Q: Clone + Sync,
    A: Send,
    F: Future<Output = Result<Response<A>, Status>> + Send,
{
    let at = client.endpoints.preferred();
    let answer = client.send_once(at, time, request, call).await;
    answer.map_err(|status| {
        if should_switch_server(&status) {
            client.endpoints.switch_from(at);
        }
        CallError::of_one(status)
    })
}

/// Opens a session.
pub(super) async fn open(
    client: &Client,
    time: Duration,
    request: pb::OpenSessionRequest,
) -> Result<pb::OpenSessionResponse, CallError> {
    call_once(client, time, &request, |channel, request| async move { queues_on(channel).open_session(request).await })
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened() -> WorkerSession {
        let opened = pb::OpenSessionResponse { session_id: "s.1".to_owned(), session_lease: None };
        WorkerSession::new(opened, Duration::from_secs(30))
    }

    #[test]
    fn a_call_keeps_its_number_over_its_tries() {
        let mut session = opened();
        let told = |request: pb::DequeueRequest| (request.sequence, request.r#try, request.received_up_to);
        assert_eq!(told(session.dequeue(pb::DequeueRequest::default())), (1, 1, None));
        assert_eq!(session.note_failure(&CallError::of_one(Status::unavailable("gone"))), SessionFailure::StillOpen);
        assert_eq!(told(session.dequeue(pb::DequeueRequest::default())), (1, 2, None));
        assert_eq!(session.response_arrived(), 1);
        assert_eq!(told(session.dequeue(pb::DequeueRequest::default())), (2, 1, Some(1)));
        assert_eq!(session.heartbeat().received_up_to, Some(1));
    }
}
