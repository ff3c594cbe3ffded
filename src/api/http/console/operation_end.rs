//! Waits a moment for the end of an operation that an action started, so that the page after it says what is true.

use std::time::Duration;

use tonic::Status;

use super::in_process_client::InProcessClient;
use tallystone_proto::queue::v1 as pb;

/// How long an action waits for the end of its operation. Most are over at once, and an operator should not wait
/// longer.
const END_WAIT: Duration = Duration::from_secs(2);
/// The first and the longest pause between two looks at the operation.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));
/// The method that says how far an operation is.
pub const GET_OPERATION: &str = "tallystone.queue.v1.QueueService/GetOperation";

/// Whether an operation ended within the wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OperationWait {
    /// It has ended, with so many messages.
    Done(i64),
    /// The server continues it.
    StillRunning,
}

/// Waits for the end of an operation.
///
/// # Errors
///
/// The operation failed or was cancelled. Some of its messages may have been changed.
pub async fn await_end(calls: &InProcessClient, mut operation: pb::Operation) -> Result<OperationWait, Status> {
    let clock = &calls.context.calls.clock;
    let until = clock.elapsed() + END_WAIT;
    let mut pause = PAUSES.0;
    loop {
        if let Some(end) = end_of(&operation) {
            return end;
        }
        let left = until.saturating_sub(clock.elapsed());
        if left.is_zero() {
            return Ok(OperationWait::StillRunning);
        }
        clock.sleep(pause.min(left)).await;
        pause = (2 * pause).min(PAUSES.1);
        let request = pb::GetOperationRequest { operation_id: operation.operation_id.clone() };
        // A caller may be allowed to start an operation and not to read it. It was started all the same.
        let Ok(read) = calls.ask_within::<pb::GetOperationResponse>(GET_OPERATION, &request, left).await else {
            return Ok(OperationWait::StillRunning);
        };
        operation = read.operation.unwrap_or_default();
    }
}

/// How an operation ended; none while it is in progress.
fn end_of(operation: &pb::Operation) -> Option<Result<OperationWait, Status>> {
    // Always the same code: it says that a part may be done, whatever stopped the rest.
    let stopped = |why: &str| {
        let (kind, done) = (&operation.kind, operation.done);
        Some(Err(Status::cancelled(format!("The {kind} stopped after {done} messages: {why}"))))
    };
    match operation.state() {
        pb::OperationState::Unspecified | pb::OperationState::Running => None,
        pb::OperationState::Done => Some(Ok(OperationWait::Done(operation.done))),
        pb::OperationState::Cancelled => stopped("it was cancelled. Start it again for the rest."),
        pb::OperationState::Failed => {
            stopped(&operation.error.as_ref().map_or_else(String::new, |error| error.message.clone()))
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;
    use tallystone_proto::error::v1::ItemError;

    #[test]
    fn an_operation_that_stopped_says_how_far_it_came_and_why() {
        let operation = |state: pb::OperationState, error| pb::Operation {
            kind: "redrive".to_owned(),
            done: 3,
            state: state.into(),
            error,
            ..Default::default()
        };
        assert!(end_of(&operation(pb::OperationState::Running, None)).is_none());
        let done = end_of(&operation(pb::OperationState::Done, None)).expect("it has ended");
        assert_eq!(done.expect("it worked"), OperationWait::Done(3));
        let why =
            ItemError { code: Code::Unavailable.into(), message: "the disk is full".to_owned(), ..Default::default() };
        let failed = end_of(&operation(pb::OperationState::Failed, Some(why))).expect("it has ended");
        let failed = failed.expect_err("it failed");
        assert_eq!(failed.code(), Code::Cancelled, "a part may be done");
        assert_eq!(failed.message(), "The redrive stopped after 3 messages: the disk is full");
        let cancelled = end_of(&operation(pb::OperationState::Cancelled, None)).expect("it has ended");
        assert_eq!(cancelled.expect_err("it was cancelled").code(), Code::Cancelled);
    }
}
