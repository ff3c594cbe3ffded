//! Follows long-running operations of the server to their end, with progress on a terminal.
//!
//! If a command is interrupted, the server continues the operation. The operation's name is printed at the end,
//! whatever the outcome.

use std::time::Duration;

use crate::output::{CliResponse, TableRows, full_name, progress, time_cell, word};
use crate::{ClientContext, Failure};
use tallystone_app::notices::print_notice;
use tallystone_app::units::messages;
use tallystone_proto::queue::v1 as pb;

/// The pause between two requests for an operation's progress.
const ASK_EVERY: Duration = Duration::from_millis(250);

const OPERATION: &[&str] =
    &["operation_id", "kind", "queue", "state", "dry_run", "done", "total", "start_time", "end_time"];

/// Follows operations.
pub struct OperationFollower<'a> {
    session: &'a ClientContext,
}

impl<'a> OperationFollower<'a> {
    /// Follows operations over the session.
    pub fn new(session: &'a ClientContext) -> Self {
        Self { session }
    }

    /// Polls until the operation is over, then prints it; returns an error if it failed.
    pub async fn wait_until_done(&self, operation: pb::Operation) -> Result<(), Failure> {
        let ended = self.follow(operation).await?;
        self.print(ended)
    }

    /// Polls until the operation is over.
    pub async fn follow(&self, mut operation: pb::Operation) -> Result<pb::Operation, Failure> {
        while operation.state() == pb::OperationState::Running {
            progress(&format!("{}: {} of about {}", operation.kind, operation.done, operation.total));
            tokio::time::sleep(ASK_EVERY).await;
            let request = pb::GetOperationRequest { operation_id: operation.operation_id.clone() };
            let session = self.session;
            let answer = call!(ask session, queues.get_operation, &request)?;
            operation = answer.operation.ok_or_else(|| Failure::other("the server returned no operation"))?;
        }
        Ok(operation)
    }

    /// Prints an operation in its current state.
    pub fn show(&self, operation: &pb::Operation) -> Result<(), Failure> {
        let rows = TableRows { columns: OPERATION, cells: vec![cells(operation)] };
        self.session.output.answer(&CliResponse::one(&full_name("Operation"), operation), &rows)
    }

    /// Prints an operation; returns an error if it failed or was cancelled.
    pub fn print(&self, operation: pb::Operation) -> Result<(), Failure> {
        if operation.dry_run {
            let (kind, what, queue) = (&operation.kind, messages(operation.done), &operation.queue);
            print_notice(&format!("dry run: would {kind} {what} of queue {queue}; nothing was changed"));
        }
        self.show(&operation)?;
        Self::refuse_incomplete(operation)
    }

    /// Returns an error for an operation that failed or was cancelled.
    pub fn refuse_incomplete(operation: pb::Operation) -> Result<(), Failure> {
        match (operation.state(), operation.error) {
            (pb::OperationState::Failed, error) => {
                let why = error.map(|error| error.message).unwrap_or_default();
                let done = messages(operation.done);
                Err(Failure::other(format!("the {} failed after {done}: {why}", operation.kind)))
            }
            (pb::OperationState::Cancelled, _) => {
                let what = format!("the {} was cancelled after {}", operation.kind, messages(operation.done));
                Err(Failure::other(what))
            }
            (pb::OperationState::Unspecified | pb::OperationState::Running | pb::OperationState::Done, _) => Ok(()),
        }
    }
}

fn cells(operation: &pb::Operation) -> Vec<String> {
    vec![
        operation.operation_id.clone(),
        operation.kind.clone(),
        operation.queue.clone(),
        word::<pb::OperationState>(operation.state, "OPERATION_STATE_", pb::OperationState::as_str_name),
        operation.dry_run.to_string(),
        operation.done.to_string(),
        operation.total.to_string(),
        time_cell(operation.start_time.as_ref()),
        time_cell(operation.end_time.as_ref()),
    ]
}
