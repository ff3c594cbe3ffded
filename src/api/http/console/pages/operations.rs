//! The operations on many messages of a queue, as rows of its page that follow their progress.

use tonic::Status;

use super::methods::LIST_OPERATIONS;
use crate::http::console::format::{or_unknown, whole};
use crate::http::console::in_process_client::InProcessClient;
use crate::http::console::view::{Section, TableCell, TableRow, TableView, cell, heads, state_name, time_cell};
use tallystone_domain::shell_word::shell_word;
use tallystone_proto::queue::v1 as pb;

/// The part with the operations, in live updates.
const OPERATIONS_PART: &str = "operations";
/// The operations that are asked for.
const LISTED: i32 = 50;
/// The operations that have ended and are shown.
const ENDED_ROWS: usize = 10;

/// Asks for the operations of a queue.
pub async fn read(calls: &InProcessClient, queue: &str) -> Result<pb::ListOperationsResponse, Status> {
    let request = pb::ListOperationsRequest { queue: queue.to_owned(), page_size: LISTED, ..Default::default() };
    calls.ask(LIST_OPERATIONS, &request).await
}

/// The section, which is empty while there is no operation.
pub fn section(queue: &str, read: Result<pb::ListOperationsResponse, Status>) -> Section {
    let part = Section { part: OPERATIONS_PART, ..Section::default() };
    let title = "Operations".to_owned();
    let listed = match read {
        Ok(listed) if listed.operations.is_empty() => return part,
        Ok(listed) => listed,
        Err(status) => return Section { title, empty: format!("Not known: {}", status.message()), ..part },
    };
    let mut ended = 0;
    let is_shown = |operation: &&pb::Operation| {
        ended += usize::from(!is_running(operation));
        is_running(operation) || ended <= ENDED_ROWS
    };
    let rows: Vec<TableRow> = listed.operations.iter().filter(is_shown).map(row).collect();
    let is_cut = rows.len() < listed.operations.len() || !listed.next_page_token.is_empty();
    let all = format!("`tallystone queue operations {}` lists all of them.", shell_word(queue));
    let columns = heads(&["Operation", "Messages", "Progress", "Began", "By"]);
    let note = "in progress, and of the last hour".to_owned();
    let prose = if is_cut { vec![all] } else { Vec::new() };
    Section { title, note, table: Some(TableView { columns, rows }), prose, ..part }
}

fn is_running(operation: &pb::Operation) -> bool {
    matches!(operation.state(), pb::OperationState::Running | pb::OperationState::Unspecified)
}

fn row(operation: &pb::Operation) -> TableRow {
    let state = operation.state().as_str_name().trim_start_matches("OPERATION_STATE_").to_lowercase();
    TableRow {
        testid: "operation-row",
        key: operation.operation_id.clone(),
        cells: vec![
            cell("Operation", kind_name(&operation.kind)),
            cell("Messages", selection(operation)),
            progress(operation, &state),
            time_cell("Began", operation.start_time.as_ref()),
            cell("By", or_unknown(&operation.author)),
        ],
        ..TableRow::default()
    }
}

/// How far it is, or how many messages it took.
fn progress(operation: &pb::Operation, state: &str) -> TableCell {
    let (done, total) = (whole(operation.done), whole(operation.total));
    let noun = if operation.done == 1 { "message" } else { "messages" };
    let why = operation.error.as_ref().map_or("", |error| &*error.message);
    let (text, class) = match operation.state() {
        pb::OperationState::Unspecified | pb::OperationState::Running => (format!("{done} of about {total}"), ""),
        pb::OperationState::Done => (format!("{state}: took {done} {noun}"), ""),
        pb::OperationState::Cancelled => (format!("stopped after {done} {noun}"), "warn-text"),
        pb::OperationState::Failed => (format!("{state} after {done} {noun}: {why}"), "bad-text"),
    };
    let progress = is_running(operation).then_some((operation.done, operation.total));
    TableCell { testid: "operation-progress", class, progress, ..cell("Progress", text) }
}

fn kind_name(kind: &str) -> String {
    let mut letters = kind.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// The messages that an operation is about, in words.
fn selection(operation: &pb::Operation) -> String {
    let states: Vec<&str> = operation.states.iter().map(|state| state_name(*state)).collect();
    let mut pairs: Vec<String> = operation.filter.iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.sort();
    let signature = &operation.error_signature;
    let signature = (!signature.is_empty()).then(|| format!("error {signature}"));
    let rate = (operation.rate > 0).then(|| format!("at most {} a second", whole(operation.rate.into())));
    [states.join(", ")].into_iter().chain(pairs).chain(signature).chain(rate).collect::<Vec<_>>().join(" · ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(id: &str, state: pb::OperationState) -> pb::Operation {
        let errored = pb::MessageState::Errored.into();
        pb::Operation {
            operation_id: id.to_owned(),
            kind: "redrive".to_owned(),
            state: state.into(),
            states: vec![errored],
            done: 1,
            total: 9,
            ..Default::default()
        }
    }

    #[test]
    fn every_running_operation_is_a_row_however_many_have_ended_since() {
        let newest = (0..40).map(|number| operation(&format!("o{number}"), pb::OperationState::Done));
        let operations = newest.chain([operation("slow", pb::OperationState::Running)]).collect();
        let shown = section("mail", Ok(pb::ListOperationsResponse { operations, next_page_token: String::new() }));
        let keys: Vec<String> = shown.table.expect("a table").rows.into_iter().map(|row| row.key).collect();
        assert_eq!((keys.len(), keys.last().map(String::as_str)), (ENDED_ROWS + 1, Some("slow")));
        assert_eq!(shown.prose.len(), 1, "it says where the others are");
    }

    #[test]
    fn an_operation_says_which_messages_it_is_about() {
        let narrow = pb::Operation {
            filter: [("tenant".to_owned(), "acme".to_owned())].into(),
            error_signature: "SmtpDown".to_owned(),
            rate: 1_000,
            ..operation("one", pb::OperationState::Running)
        };
        assert_eq!(selection(&narrow), "errored · tenant=acme · error SmtpDown · at most 1,000 a second");
        assert_eq!(progress(&narrow, "running").text, "1 of about 9");
        assert_eq!(progress(&operation("one", pb::OperationState::Done), "done").text, "done: took 1 message");
    }
}
