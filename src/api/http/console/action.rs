//! Actions: a page that says what one would do, then a form that does it.
//!
//! A form carries a token. A second post of it leads to the page of the first and does nothing, and the calls carry the
//! token too, so a purge stays one purge across a restart. Other content under the token of a form that was done is
//! refused. An act that destroys wants the name of the queue typed.

mod kind;
mod outcome;
mod posted;
mod selection;

use std::time::Duration;

use prost::Message;
use tonic::Status;

use super::format::whole;
use super::in_process_client::InProcessClient;
use super::operation_end::{OperationWait, await_end};
use super::query::{PageQuery, link};
use super::view::{ActionForm, ActionLink, Fact, FormField, Page, PageFailure, Section};
use tallystone_domain::access::AccessRole;
use tallystone_domain::limits::CONSOLE_TOKEN_BYTES_MAX;
use tallystone_proto::queue::v1 as pb;

use kind::{ACTIONS, ActionScope, ConsoleAction, OVER, method};
pub use outcome::{done, progress};
pub use posted::PostedForms;
use posted::{FormEnd, PostedForm};
pub use selection::{SelectedAct, buttons};

/// How long an action may take.
const ACT_WAIT: Duration = Duration::from_secs(10);
const OTHER_CONTENT: &str = "This form was sent before with other content; open its page again. Nothing was done.";

/// The links to the acts of a queue, each with the role that the caller lacks for it. Only an exclusive queue has
/// values.
pub fn of_queue(calls: &InProcessClient, queue: &str, is_exclusive: bool) -> Vec<(ActionLink, Option<AccessRole>)> {
    let is_of_queue = |act| act != ConsoleAction::Cancel && (is_exclusive || act != ConsoleAction::Limit);
    let acts = ACTIONS.into_iter().filter(|(act, ..)| is_of_queue(*act));
    let link = |(act, name, text): (ConsoleAction, &'static str, &'static str)| {
        let href = link("act", &[("do", name), ("queue", queue)]);
        let class = if act.destroys() { "danger" } else { "" };
        (ActionLink { href, text, class, enabled: true, current: false }, act.lacks(calls, queue))
    };
    acts.map(link).collect()
}

/// The links that redrive and discard the dead letters of one error, each with the role that the caller lacks for it.
pub fn of_error(calls: &InProcessClient, queue: &str, signature: &str) -> [(ActionLink, Option<AccessRole>); 2] {
    let offer = |act: ConsoleAction, name, text, class| {
        let href = link("act", &[("do", name), ("queue", queue), ("signature", signature)]);
        (ActionLink { href, text, class, enabled: true, current: false }, act.lacks(calls, queue))
    };
    [
        offer(ConsoleAction::Redrive, "redrive", "Redrive", ""),
        offer(ConsoleAction::Discard, "discard", "Discard", "danger"),
    ]
}

/// The link that removes the messages of a state that are over, with the role that the caller lacks for it; none for a
/// state of messages that are not over.
pub fn purge_of(calls: &InProcessClient, queue: &str, state: &str) -> Option<(ActionLink, Option<AccessRole>)> {
    let (state, text) = match OVER.into_iter().find(|(known, _)| *known == state)? {
        (state, pb::MessageState::Completed) => (state, "Purge completed messages"),
        (state, _) => (state, "Purge canceled messages"), // the only other one
    };
    let href = link("act", &[("do", "purge"), ("queue", queue), ("state", state)]);
    let lacked = ConsoleAction::Purge.lacks(calls, queue);
    Some((ActionLink { href, text, class: "danger", enabled: true, current: false }, lacked))
}

/// The role that the caller lacks to cancel messages.
pub fn cancel_lacks(calls: &InProcessClient, queue: &str) -> Option<AccessRole> {
    ConsoleAction::Cancel.lacks(calls, queue)
}

/// Says which role an action needs.
pub fn off_without(role: AccessRole) -> String {
    format!("off: your key lacks the role {role} on this queue")
}

/// The page that says what an act would do.
pub async fn confirm(calls: &InProcessClient, query: &PageQuery, forms: &PostedForms) -> Result<Page, PageFailure> {
    if let Some(act) = SelectedAct::of(query) {
        return selection::confirm(calls, (act, query), forms);
    }
    let (act, name, text) = ConsoleAction::of(query)?;
    let scope = ActionScope::of(query)?;
    let queue = scope.queue;
    if let Some(role) = act.lacks(calls, queue) {
        let why = format!("{text} needs the role {role}, which no grant of your key allows on this queue.");
        return Err(Status::permission_denied(why).into());
    }
    let (get_queue, get_depth) = (method("GetQueue"), method("GetDepth"));
    let of_queue = pb::GetQueueRequest { queue: queue.to_owned() };
    let of_depth = pb::GetDepthRequest { queue: queue.to_owned(), ..Default::default() };
    let (read, depth, of_error) = tokio::join!(
        calls.ask::<pb::GetQueueResponse>(&get_queue, &of_queue),
        calls.ask::<pb::GetDepthResponse>(&get_depth, &of_depth),
        count_of_error(calls, &scope)
    );
    let (found, depth) = (read?.queue.unwrap_or_default(), depth?);
    let mut page = Page::of_queue(queue, text);
    page.age = Some(calls.live_age());
    page.lead = act.effect(&scope).to_owned();
    let count = whole(of_error.unwrap_or_else(|| act.count(&depth, &scope)));
    let fact = |label, value: String| Fact { label, value, ..Fact::default() };
    let is_bound = !scope.signature.is_empty() && of_error.is_none();
    let hint = if is_bound { "at most: those of all errors" } else { act.counted() };
    let class = if act.destroys() { "bad" } else { "" };
    let concerned = Fact { testid: "confirm-count", hint: hint.to_owned(), class, ..fact("Messages concerned", count) };
    let of_state = Some(scope.state_name()).filter(|state| !state.is_empty()).map(|state| ("State", state));
    let of_error = Some(scope.signature).filter(|signature| !signature.is_empty()).map(|error| ("Error", error));
    let selected = of_state.into_iter().chain(of_error).map(|(label, value)| fact(label, value.to_owned()));
    let facts = [fact("Queue", queue.to_owned())].into_iter().chain(selected).chain([concerned]).collect();
    let hidden = |name, value: &str| FormField { name, value: value.to_owned(), hidden: true, ..FormField::default() };
    let asked = |label: &str, name| FormField { label: label.to_owned(), name, required: true, ..FormField::default() };
    let token = forms.token(calls);
    let mut fields = vec![
        hidden("do", name),
        hidden("queue", queue),
        hidden("queue_id", &found.id),
        hidden("etag", &found.etag),
        hidden("id", query.text("id")),
        hidden("token", &token),
    ];
    let narrowed = [("signature", scope.signature), ("state", scope.state_name())];
    fields.extend(narrowed.into_iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| hidden(name, value)));
    if act == ConsoleAction::Limit {
        fields.push(asked("Exclusivity value", "value"));
        fields.push(asked("Most messages leased at once", "limit"));
    }
    fields.push(asked("Reason", "reason"));
    if act.destroys() {
        fields.push(asked(&format!("Type the name of the queue: {queue}"), "typed"));
    }
    let class = if act.destroys() { "danger" } else { "" };
    let back = link("queue", &[("name", queue)]);
    let action =
        Some(ActionForm { action: "act", fields, submit: text.to_owned(), testid: "confirm-submit", class, back });
    page.sections.push(Section { facts, class: "plain", action, ..Section::default() });
    page.sections.push(Section {
        title: "The equal command".to_owned(),
        code: calls.shell.with_hint(&act.command(&scope)),
        ..Section::default()
    });
    Ok(page)
}

/// How many dead letters of one error there are; none where that is not asked, or not known in the time of a page.
async fn count_of_error(calls: &InProcessClient, scope: &ActionScope<'_>) -> Option<i64> {
    if scope.signature.is_empty() {
        return None;
    }
    let (queue, error_signature) = (scope.queue.to_owned(), scope.signature.to_owned());
    let request = pb::RedriveMessagesRequest { queue, error_signature, dry_run: true, ..Default::default() };
    let counted = calls.ask::<pb::RedriveMessagesResponse>(&method("RedriveMessages"), &request).await;
    counted.ok()?.operation.map(|operation| operation.done)
}

/// Does what a form says, once. Returns the place of the page that follows.
pub async fn perform(calls: &InProcessClient, form: &PageQuery, posted: &PostedForms) -> Result<String, PageFailure> {
    if let Some(act) = SelectedAct::of(form) {
        return selection::perform(calls, (act, form), posted).await;
    }
    let (act, name, _) = ConsoleAction::of(form)?;
    let queue = form.text("queue");
    let (reason, token) = reason_and_token(form)?;
    if act.destroys() && form.text("typed") != queue {
        return Err(Status::invalid_argument("The typed name is not that of the queue; nothing was done.").into());
    }
    let own = posted.of(token);
    let ended = once(&calls.with_reason(reason), act, form, &own).await;
    drop(own);
    if ended.is_err() {
        posted.forget(token);
    }
    let (end, (detail, value)) = match ended? {
        FormEnd::Done | FormEnd::Selected { .. } => ("done", ("", String::new())),
        FormEnd::Took(messages) => ("done", ("messages", messages.to_string())),
        FormEnd::Started(operation) => ("started", ("operation", operation)),
    };
    Ok(match act {
        ConsoleAction::Delete => link("", &[(end, name)]),
        _ => link("queue", &[("name", queue), (end, name), (detail, &value)]), // the queue is still there
    })
}

/// Does what a form says, unless that was done.
async fn once(
    calls: &InProcessClient,
    act: ConsoleAction,
    form: &PageQuery,
    posted: &PostedForm,
) -> Result<FormEnd, PageFailure> {
    let content = form.fingerprint();
    let mut posted = posted.lock().await;
    match &*posted {
        Some((known, end)) if *known == content => return Ok(end.clone()),
        Some(_) => return Err(Status::invalid_argument(OTHER_CONTENT).into()),
        None => {}
    }
    let Some(operation) = call(calls, act, form).await? else {
        *posted = Some((content, FormEnd::Done));
        return Ok(FormEnd::Done);
    };
    // Noted before the wait: the caller may go away meanwhile.
    let started = FormEnd::Started(operation.operation_id.clone());
    *posted = Some((content, started.clone()));
    match await_end(calls, operation).await {
        Ok(OperationWait::StillRunning) => Ok(started),
        Ok(OperationWait::Done(messages)) => {
            *posted = Some((content, FormEnd::Took(messages)));
            Ok(FormEnd::Took(messages))
        }
        Err(stopped) => {
            *posted = None;
            Err(stopped.into())
        }
    }
}

/// The reason and the token of a form, both of which it must have.
pub fn reason_and_token(form: &PageQuery) -> Result<(&str, &str), Status> {
    let (reason, token) = (form.text("reason").trim(), form.text("token"));
    if token.is_empty() || token.len() > CONSOLE_TOKEN_BYTES_MAX {
        return Err(Status::invalid_argument("The form has no token; open its page again. Nothing was done."));
    }
    if reason.is_empty() {
        return Err(Status::invalid_argument("Say why: the reason is missing. Nothing was done."));
    }
    Ok((reason, token))
}

/// Does an act. Returns its operation if that may continue.
async fn call(calls: &InProcessClient, act: ConsoleAction, form: &PageQuery) -> Result<Option<pb::Operation>, Status> {
    let text = |name: &str| form.text(name).to_owned();
    let (queue, reason, request_token, queue_id) = (text("queue"), text("reason"), text("token"), text("queue_id"));
    let settings = pb::Queue { name: queue.clone(), etag: text("etag"), ..Default::default() };
    let (scope, error_signature) = (ActionScope::of(form)?, text("signature"));
    match act {
        ConsoleAction::BlockDequeue => {
            let settings =
                pb::Queue { dequeue_blocked: Some(true), dequeue_blocked_reason: reason.clone(), ..settings };
            update(calls, act, settings, reason).await?;
        }
        ConsoleAction::BlockEnqueue => {
            let settings =
                pb::Queue { enqueue_blocked: Some(true), enqueue_blocked_reason: reason.clone(), ..settings };
            update(calls, act, settings, reason).await?;
        }
        ConsoleAction::Unblock => {
            let settings = pb::Queue { enqueue_blocked: Some(false), dequeue_blocked: Some(false), ..settings };
            update(calls, act, settings, reason).await?;
        }
        ConsoleAction::Purge => {
            let request = pb::PurgeQueueRequest {
                queue,
                request_token,
                queue_id,
                states: scope.over.into_iter().map(i32::from).collect(),
                ..Default::default()
            };
            let answer: pb::PurgeQueueResponse = ask(calls, act, &request).await?;
            return Ok(answer.operation);
        }
        ConsoleAction::Redrive => {
            let request =
                pb::RedriveMessagesRequest { queue, error_signature, request_token, queue_id, ..Default::default() };
            let answer: pb::RedriveMessagesResponse = ask(calls, act, &request).await?;
            return Ok(answer.operation);
        }
        ConsoleAction::Discard => {
            let all = error_signature.is_empty();
            let request = pb::DiscardMessagesRequest {
                queue,
                error_signature,
                request_token,
                queue_id,
                all,
                ..Default::default()
            };
            let answer: pb::DiscardMessagesResponse = ask(calls, act, &request).await?;
            return Ok(answer.operation);
        }
        ConsoleAction::Cancel => {
            let request = pb::CancelMessageRequest { queue, message_id: text("id"), reason, ..Default::default() };
            ask::<pb::CancelMessageResponse>(calls, act, &request).await?;
        }
        ConsoleAction::Limit => {
            let limit = text("limit").trim().parse::<i32>();
            let limit =
                limit.map_err(|_| Status::invalid_argument("The limit is no whole number; nothing was done."))?;
            let request = pb::SetValueLimitRequest { queue, value: text("value"), limit: Some(limit) };
            ask::<pb::SetValueLimitResponse>(calls, act, &request).await?;
        }
        ConsoleAction::Delete => {
            let request = pb::DeleteQueueRequest { queue, etag: settings.etag, reason, request_token, queue_id };
            ask::<pb::DeleteQueueResponse>(calls, act, &request).await?;
        }
    }
    Ok(None)
}

async fn update(
    calls: &InProcessClient,
    act: ConsoleAction,
    settings: pb::Queue,
    reason: String,
) -> Result<(), Status> {
    let request = pb::UpdateQueueRequest { queue: Some(settings), reason, reset: Vec::new() };
    ask::<pb::UpdateQueueResponse>(calls, act, &request).await.map(drop)
}

async fn ask<Answer: Message + Default>(
    calls: &InProcessClient,
    act: ConsoleAction,
    request: &impl Message,
) -> Result<Answer, Status> {
    calls.ask_within(&method(act.method()), request, ACT_WAIT).await
}
