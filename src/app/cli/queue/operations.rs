//! `queue operations`: what changes many messages of a queue, and how far it is.

use clap::Args;

use crate::output::{CliResponse, TableRows, full_name, time_cell, word};
use crate::pages::{self, RowLimit};
use crate::{ClientContext, Failure};
use tallystone_proto::queue::v1 as pb;

const COLUMNS: &[&str] =
    &["operation_id", "kind", "state", "done", "total", "selection", "start_time", "end_time", "author", "error"];

#[derive(Debug, Args)]
pub(super) struct QueueOperationsArgs {
    /// The queue.
    name: String,
    #[command(flatten)]
    limit: RowLimit,
}

impl ClientContext {
    pub(super) async fn operations_of_queue(&self, args: QueueOperationsArgs) -> Result<(), Failure> {
        let (operations, next_page_token) = pages::rows(args.limit.rows(), async |page_size, page_token| {
            let request = pb::ListOperationsRequest { queue: args.name.clone(), page_size, page_token };
            let page = call!(ask self, queues.list_operations, &request)?;
            Ok((page.operations, page.next_page_token))
        })
        .await?;
        let whole = pb::ListOperationsResponse { operations, next_page_token };
        let rows = TableRows { columns: COLUMNS, cells: whole.operations.iter().map(cells).collect() };
        self.output.answer(&CliResponse::many(&full_name("ListOperationsResponse"), &whole, "operations"), &rows)?;
        args.limit.end(&whole.next_page_token, self.output)
    }
}

fn cells(operation: &pb::Operation) -> Vec<String> {
    vec![
        operation.operation_id.clone(),
        operation.kind.clone(),
        word::<pb::OperationState>(operation.state, "OPERATION_STATE_", pb::OperationState::as_str_name),
        operation.done.to_string(),
        operation.total.to_string(),
        selection(operation),
        time_cell(operation.start_time.as_ref()),
        time_cell(operation.end_time.as_ref()),
        operation.author.clone(),
        operation.error.as_ref().map(|error| error.message.clone()).unwrap_or_default(),
    ]
}

/// The messages that an operation is about, in the words of the options that select them.
fn selection(operation: &pb::Operation) -> String {
    let state = |state: &i32| {
        let name = word::<pb::MessageState>(*state, "MESSAGE_STATE_", pb::MessageState::as_str_name);
        format!("state={name}")
    };
    let mut pairs: Vec<String> = operation.filter.iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.sort();
    let signature = &operation.error_signature;
    let signature = (!signature.is_empty()).then(|| format!("error-signature={signature}"));
    operation.states.iter().map(state).chain(pairs).chain(signature).collect::<Vec<_>>().join(" ")
}
