//! The sentence of a page about an act that was done or started.

use super::kind::ACTIONS;
use crate::http::console::format::whole;
use crate::http::console::in_process_client::InProcessClient;
use crate::http::console::operation_end::GET_OPERATION;
use crate::http::console::query::PageQuery;
use tallystone_domain::shell_word::shell_word;
use tallystone_proto::queue::v1 as pb;

/// The act that was done or started, in a sentence for the page after it.
pub fn done(query: &PageQuery) -> Option<String> {
    let text_of = |key| {
        let found = ACTIONS.into_iter().find(|(_, name, _)| *name == query.text(key));
        found.map(|(_, _, text)| text.to_lowercase())
    };
    let started = |text: String| {
        let id = shell_word(query.text("operation"));
        format!("Started: {text}. The command tallystone dlq status {id} shows how far it is.")
    };
    let took = |text: String| match query.text("messages").parse() {
        Ok(messages) => took(&text, messages),
        Err(_) => format!("Done: {text}."),
    };
    text_of("done").map(took).or_else(|| text_of("started").map(started))
}

/// The act that was done or started, in a sentence, with how far it is by now.
pub async fn progress(calls: &InProcessClient, query: &PageQuery) -> Option<String> {
    let said = done(query)?;
    let operation_id = query.text("operation").to_owned();
    if operation_id.is_empty() {
        return Some(said);
    }
    let request = pb::GetOperationRequest { operation_id };
    let read = calls.ask::<pb::GetOperationResponse>(GET_OPERATION, &request).await;
    // The caller may not be allowed to read it, and it may be forgotten.
    let Some(operation) = read.ok().and_then(|read| read.operation) else { return Some(said) };
    // What somebody typed into the address is of no concern here.
    if operation.queue != query.text("name") {
        return None;
    }
    Some(match operation.state() {
        pb::OperationState::Done => took(&operation.kind, operation.done),
        pb::OperationState::Unspecified | pb::OperationState::Running => {
            format!("{said} So far: {} of about {} messages.", whole(operation.done), whole(operation.total))
        }
        pb::OperationState::Cancelled | pb::OperationState::Failed => {
            format!("Stopped: {} after {} messages.", operation.kind, whole(operation.done))
        }
    })
}

/// Says that an operation has ended, and how many messages it took.
fn took(what: &str, messages: i64) -> String {
    let noun = if messages == 1 { "message" } else { "messages" };
    format!("Done: {what}. It took {} {noun}.", whole(messages))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_says_what_was_done_and_what_continues() {
        let said = |query: &str| done(&PageQuery::of(Some(query)));
        assert_eq!(said("done=unblock").as_deref(), Some("Done: unblock."));
        assert_eq!(said("done=purge&messages=1").as_deref(), Some("Done: purge. It took 1 message."));
        assert_eq!(said("done=purge&messages=1200").as_deref(), Some("Done: purge. It took 1,200 messages."));
        assert_eq!(said("done=purge&messages=%3Cb%3E").as_deref(), Some("Done: purge."));
        let started = "Started: redrive dead letters. The command tallystone dlq status 7-a shows how far it is.";
        assert_eq!(said("started=redrive&operation=7-a").as_deref(), Some(started));
        assert_eq!(said("done=nothing"), None);
    }
}
