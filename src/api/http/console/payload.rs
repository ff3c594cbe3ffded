//! The payload of a message: shown only after a reason was given, with a line of the audit.
//!
//! The line is written before the payload is shown. The same form sent again shows it again, and leaves no second line.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tonic::Status;

use super::action::{PostedForms, reason_and_token};
use super::format::size;
use super::in_process_client::InProcessClient;
use super::query::{PageQuery, link};
use super::view::{ActionForm, FormField, Page, PageFailure, Section, TextLink};
use tallystone_engine::audit::OperatorAct;
use tallystone_proto::queue::v1 as pb;

/// The method that reads a message with its payload.
pub const GET_MESSAGE: &str = "tallystone.queue.v1.QueueService/GetMessage";
/// The name of the action in the audit.
const ACTION: &str = "RevealPayload";

/// The page that asks why.
pub fn confirm(calls: &InProcessClient, query: &PageQuery, forms: &PostedForms) -> Page {
    let (queue, id) = (query.text("queue"), query.text("id"));
    let mut page = of_message(queue, id);
    page.lead = "The payload may hold data of customers. The audit records who looked, and why.".to_owned();
    let token = forms.token(calls);
    let hidden = |name, value: &str| FormField { name, value: value.to_owned(), hidden: true, ..FormField::default() };
    let reason = FormField { label: "Reason".to_owned(), name: "reason", required: true, ..FormField::default() };
    let action = ActionForm {
        action: "payload",
        fields: vec![hidden("queue", queue), hidden("id", id), hidden("token", &token), reason],
        submit: "Show payload".to_owned(),
        testid: "confirm-submit",
        class: "",
        back: link("message", &[("queue", queue), ("id", id)]),
    };
    page.sections.push(Section { action: Some(action), ..Section::default() });
    page
}

/// The page that shows it.
pub async fn reveal(calls: &InProcessClient, form: &PageQuery) -> Result<Page, PageFailure> {
    let (queue, id) = (form.text("queue"), form.text("id"));
    let (reason, token) = reason_and_token(form)?;
    let request = pb::GetMessageRequest { queue: queue.to_owned(), message_id: id.to_owned(), ..Default::default() };
    let read: pb::GetMessageResponse = calls.ask(GET_MESSAGE, &request).await?;
    let message = read.message.unwrap_or_default();
    let act = OperatorAct {
        actor: calls.actor(),
        action: ACTION.to_owned(),
        target: queue.to_owned(),
        part: id.to_owned(),
        reason: reason.to_owned(),
        outcome: "OK".to_owned(),
        request_token: token.to_owned(),
    };
    let unrecorded = || Status::unavailable("The audit cannot be written, so the payload is not shown.");
    let audit = calls.context.calls.audit.get().ok_or_else(unrecorded)?;
    audit.record(act).await.map_err(|_| unrecorded())?;
    let mut page = of_message(queue, id);
    page.lead = "This look is a line of the audit.".to_owned();
    let (note, code) = match std::str::from_utf8(&message.payload) {
        Ok("") => ("empty".to_owned(), String::new()),
        Ok(text) => (size(message.payload_bytes.into()), text.to_owned()),
        Err(_) => (
            format!("{}, no text: shown in Base64", size(message.payload_bytes.into())),
            STANDARD.encode(&message.payload),
        ),
    };
    page.sections.push(Section { title: "Payload".to_owned(), note, code, ..Section::default() });
    Ok(page)
}

fn of_message(queue: &str, id: &str) -> Page {
    let mut page = Page::of_queue(queue, "Payload");
    page.crumbs.push(TextLink { href: link("message", &[("queue", queue), ("id", id)]), text: id.to_owned() });
    page
}
