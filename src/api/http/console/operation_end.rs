//! Waits a moment for the end of an operation that an action started, so that the page after it says what is true.

use std::time::Duration;

use tonic::{Code, Status};

use super::ask::ConsoleCalls;
use crate::proto::queue::v1 as pb;

/// How long an action waits for the end of its operation. Most are over at once, and an operator should not wait longer.
const END_WAIT: Duration = Duration::from_secs(2);
/// The pause between two looks at the operation.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const GET_OPERATION: &str = "tallystone.queue.v1.QueueService/GetOperation";

/// How far an action came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ActionEnd {
    Done,
    /// The server continues it.
    StillRunning,
}

/// Waits for the end of an operation.
///
/// # Errors
///
/// The operation failed or was cancelled. Some of its messages may have been changed.
pub async fn await_end(calls: &ConsoleCalls, operation: Option<pb::Operation>) -> Result<ActionEnd, Status> {
    let clock = &calls.context.calls.clock;
    let until = clock.elapsed() + END_WAIT;
    let mut operation = operation.unwrap_or_default();
    loop {
        if let Some(end) = end_of(&operation) {
            return end;
        }
        let left = until.saturating_sub(clock.elapsed());
        if left.is_zero() {
            return Ok(ActionEnd::StillRunning);
        }
        clock.sleep(LOOK_EVERY.min(left)).await;
        let request = pb::GetOperationRequest { operation_id: operation.operation_id.clone() };
        // A caller may be allowed to start an operation and not to read it. It was started all the same.
        let Ok(read) = calls.ask_within::<pb::GetOperationResponse>(GET_OPERATION, &request, left).await else {
            return Ok(ActionEnd::StillRunning);
        };
        operation = read.operation.unwrap_or_default();
    }
}

/// How an operation ended; none while it is in progress.
fn end_of(operation: &pb::Operation) -> Option<Result<ActionEnd, Status>> {
    let stopped = |code, why: &str| {
        let (kind, done) = (&operation.kind, operation.done);
        Some(Err(Status::new(code, format!("The {kind} stopped after {done} messages: {why}"))))
    };
    match operation.state() {
        pb::OperationState::Unspecified | pb::OperationState::Running => None,
        pb::OperationState::Done => Some(Ok(ActionEnd::Done)),
        pb::OperationState::Cancelled => stopped(Code::Cancelled, "it was cancelled. Start it again for the rest."),
        pb::OperationState::Failed => {
            let error = operation.error.clone().unwrap_or_default();
            stopped(Code::from_i32(error.code), &error.message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::error::v1::ItemError;

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
        assert_eq!(done.expect("it worked"), ActionEnd::Done);
        let why =
            ItemError { code: Code::Unavailable.into(), message: "the disk is full".to_owned(), ..Default::default() };
        let failed = end_of(&operation(pb::OperationState::Failed, Some(why))).expect("it has ended");
        let failed = failed.expect_err("it failed");
        assert_eq!(failed.code(), Code::Unavailable);
        assert_eq!(failed.message(), "The redrive stopped after 3 messages: the disk is full");
        let cancelled = end_of(&operation(pb::OperationState::Cancelled, None)).expect("it has ended");
        assert_eq!(cancelled.expect_err("it was cancelled").code(), Code::Cancelled);
    }
}
