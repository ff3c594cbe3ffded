//! Actions: a page that says what one would do, then a form that does it.
//!
//! A form carries a token. A second post of it leads to the page of the first and does nothing, and the calls carry the token
//! too, so a purge stays one purge across a restart. Other content under the token of a form that was done is refused. What
//! destroys wants the name of the queue typed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use prost::Message;
use tonic::Status;

use super::ask::ConsoleCalls;
use super::operation_end::{GET_OPERATION, OperationWait, await_end};
use super::query::{PageQuery, link};
use super::view::{ActionForm, ActionLink, Fact, FormField, Page, PageFailure, Section};
use super::words::whole;
use tallystone_domain::access::{AccessResource, AccessRole};
use tallystone_domain::limits::{CONSOLE_FORMS_MAX, CONSOLE_TOKEN_BYTES_MAX};
use tallystone_domain::shell_word::shell_word;
use tallystone_proto::queue::v1 as pb;

/// How long an action may take.
const ACT_WAIT: Duration = Duration::from_secs(10);
const SERVICE: &str = "tallystone.queue.v1.QueueService";
const OTHER_CONTENT: &str = "This form was sent before with other content; open its page again. Nothing was done.";

/// The forms that were posted, by their tokens.
#[derive(Default)]
pub struct PostedForms {
    posted: Mutex<VecDeque<(String, Arc<PostedForm>)>>,
    made: AtomicU64,
}

/// What came of a form: a hash of its content, and how it ended. None before it is done. Locked while it is done, so that a
/// second post waits for the first.
type PostedForm = tokio::sync::Mutex<Option<(u64, FormEnd)>>;

/// How a form ended.
#[derive(Clone, PartialEq, Eq, Debug)]
enum FormEnd {
    Done,
    /// An operation has ended, with so many messages.
    Took(i64),
    /// An operation continues, by its id.
    Started(String),
}

impl PostedForms {
    /// A token that no other form has. It is no secret: a foreign page cannot post at all.
    pub fn token(&self, calls: &ConsoleCalls) -> String {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        format!("console-{:x}-{number:x}", calls.context.calls.clock.now().micros())
    }

    /// The form of a token, new or posted before.
    fn of(&self, token: &str) -> Arc<PostedForm> {
        let mut posted = self.posted.lock();
        if let Some((_, form)) = posted.iter().find(|(known, _)| known == token) {
            return Arc::clone(form);
        }
        let form = Arc::<PostedForm>::default();
        posted.push_back((token.to_owned(), Arc::clone(&form)));
        if posted.len() > CONSOLE_FORMS_MAX {
            let is_done = |(_, form): &(String, Arc<PostedForm>)| form.try_lock().is_ok_and(|form| form.is_some());
            let oldest = posted.iter().position(is_done).unwrap_or(0);
            posted.remove(oldest);
        }
        form
    }

    /// Takes out a form that failed, unless it was done before or another post of it waits. So failures cost no place.
    fn forget(&self, token: &str) {
        let is_kept =
            |form: &Arc<PostedForm>| Arc::strong_count(form) > 1 || form.try_lock().is_ok_and(|form| form.is_some());
        self.posted.lock().retain(|(known, form)| known != token || is_kept(form));
    }
}

/// What an operator can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ConsoleAct {
    BlockDequeue,
    BlockEnqueue,
    Unblock,
    Purge,
    Redrive,
    Discard,
    Cancel,
    Limit,
    Delete,
}

/// The names of acts in queries, with the words of buttons.
const ACTS: [(ConsoleAct, &str, &str); 9] = [
    (ConsoleAct::BlockDequeue, "block-dequeue", "Block dequeue"),
    (ConsoleAct::BlockEnqueue, "block-enqueue", "Block enqueue"),
    (ConsoleAct::Unblock, "unblock", "Unblock"),
    (ConsoleAct::Purge, "purge", "Purge"),
    (ConsoleAct::Redrive, "redrive", "Redrive dead letters"),
    (ConsoleAct::Discard, "discard", "Discard dead letters"),
    (ConsoleAct::Cancel, "cancel", "Cancel message"),
    (ConsoleAct::Limit, "limit", "Limit a value"),
    (ConsoleAct::Delete, "delete", "Delete queue"),
];

impl ConsoleAct {
    fn of(query: &PageQuery) -> Result<(Self, &'static str, &'static str), PageFailure> {
        let found = ACTS.into_iter().find(|(_, name, _)| *name == query.text("do"));
        found.ok_or_else(|| Status::not_found("The console has no such action.").into())
    }

    /// The method that does it.
    const fn method(self) -> &'static str {
        match self {
            Self::BlockDequeue | Self::BlockEnqueue | Self::Unblock => "UpdateQueue",
            Self::Purge => "PurgeQueue",
            Self::Redrive => "RedriveMessages",
            Self::Discard => "DiscardMessages",
            Self::Cancel => "CancelMessage",
            Self::Limit => "SetValueLimit",
            Self::Delete => "DeleteQueue",
        }
    }

    /// The role that the caller lacks for it.
    fn lacks(self, calls: &ConsoleCalls, queue: &str) -> Option<AccessRole> {
        calls.lacks(&method(self.method()), AccessResource::Queue(queue))
    }

    /// Whether messages are gone afterwards.
    const fn destroys(self) -> bool {
        matches!(self, Self::Purge | Self::Discard | Self::Delete)
    }

    /// What it does, in one sentence.
    const fn effect(self) -> &'static str {
        match self {
            Self::BlockDequeue => "Workers get no more messages. Leases that are out go on. Nothing is lost.",
            Self::BlockEnqueue => "Producers are refused, and each refusal shows your reason.",
            Self::Unblock => "Enqueues and dequeues are accepted again.",
            Self::Purge => {
                "Every message that is ready or invisible is canceled. Running messages go on. This cannot be undone."
            }
            Self::Redrive => "Every dead letter returns to the queue with new attempts.",
            Self::Discard => "Every dead letter is deleted. This cannot be undone.",
            Self::Cancel => "The message is canceled. The worker of a running message is asked to stop.",
            Self::Limit => {
                "At most so many messages of the value are leased at once. 0 stops its leases, and existing leases stay."
            }
            Self::Delete => "The queue is deleted with all its messages. This cannot be undone.",
        }
    }

    /// The messages that it is about.
    fn count(self, depth: &pb::GetDepthResponse) -> i64 {
        match self {
            Self::BlockDequeue | Self::Unblock => depth.pending,
            Self::BlockEnqueue => 0, // only those that come
            Self::Limit => depth.pending + depth.running,
            Self::Purge => depth.pending + depth.invisible,
            Self::Redrive | Self::Discard => depth.errored,
            Self::Cancel => 1,
            Self::Delete => {
                let finished = depth.completed + depth.canceled;
                depth.pending + depth.invisible + depth.running + depth.errored + finished
            }
        }
    }

    /// What its number of messages means.
    const fn counted(self) -> &'static str {
        match self {
            Self::BlockEnqueue => "those that wait already stay",
            Self::Limit => "of all values, ready or running",
            Self::BlockDequeue
            | Self::Unblock
            | Self::Purge
            | Self::Redrive
            | Self::Discard
            | Self::Cancel
            | Self::Delete => "",
        }
    }

    /// The words of the equal command.
    fn command(self, query: &PageQuery) -> String {
        let (queue, id) = (shell_word(query.text("queue")), shell_word(query.text("id")));
        match self {
            Self::BlockDequeue => format!("queue block {queue} --dequeue --reason TEXT"),
            Self::BlockEnqueue => format!("queue block {queue} --enqueue --reason TEXT"),
            Self::Unblock => format!("queue unblock {queue} --reason TEXT"),
            Self::Purge => format!("queue purge {queue} --reason TEXT"),
            Self::Redrive => format!("dlq redrive -q {queue} --reason TEXT"),
            Self::Discard => format!("dlq rm -q {queue} --all --reason TEXT"),
            Self::Cancel => format!("msg cancel -q {queue} --id {id} --reason TEXT"),
            Self::Limit => format!("queue limit {queue} VALUE LIMIT --reason TEXT"),
            Self::Delete => format!("queue rm {queue} --reason TEXT"),
        }
    }
}

/// The links to the acts of a queue, each with the role that the caller lacks for it.
pub fn of_queue(calls: &ConsoleCalls, queue: &str) -> Vec<(ActionLink, Option<AccessRole>)> {
    let acts = ACTS.into_iter().filter(|(act, ..)| *act != ConsoleAct::Cancel);
    let link = |(act, name, text): (ConsoleAct, &'static str, &'static str)| {
        let href = link("act", &[("do", name), ("queue", queue)]);
        let class = if act.destroys() { "danger" } else { "" };
        (ActionLink { href, text, class, enabled: true, current: false }, act.lacks(calls, queue))
    };
    acts.map(link).collect()
}

/// The role that the caller lacks to cancel messages.
pub fn cancel_lacks(calls: &ConsoleCalls, queue: &str) -> Option<AccessRole> {
    ConsoleAct::Cancel.lacks(calls, queue)
}

/// Says which role an action needs.
pub fn off_without(role: AccessRole) -> String {
    format!("off: your key lacks the role {role} on this queue")
}

/// What was done or started, for the page after it.
pub fn done(query: &PageQuery) -> Option<String> {
    let text_of = |key| {
        let found = ACTS.into_iter().find(|(_, name, _)| *name == query.text(key));
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

/// What was done or started, with how far it is by now.
pub async fn progress(calls: &ConsoleCalls, query: &PageQuery) -> Option<String> {
    let said = done(query)?;
    let operation_id = query.text("operation").to_owned();
    if operation_id.is_empty() {
        return Some(said);
    }
    let request = pb::GetOperationRequest { operation_id };
    let read = calls.ask::<pb::GetOperationResponse>(GET_OPERATION, &request).await;
    // The caller may not be allowed to read it, and it may be forgotten.
    let Some(operation) = read.ok().and_then(|read| read.operation) else { return Some(said) };
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

/// The page that says what an act would do.
pub async fn confirm(calls: &ConsoleCalls, query: &PageQuery, forms: &PostedForms) -> Result<Page, PageFailure> {
    let (act, name, text) = ConsoleAct::of(query)?;
    let queue = query.text("queue");
    if let Some(role) = act.lacks(calls, queue) {
        let why = format!("{text} needs the role {role}, which no grant of your key allows on this queue.");
        return Err(Status::permission_denied(why).into());
    }
    let (get_queue, get_depth) = (method("GetQueue"), method("GetDepth"));
    let of_queue = pb::GetQueueRequest { queue: queue.to_owned() };
    let of_depth = pb::GetDepthRequest { queue: queue.to_owned(), ..Default::default() };
    let (read, depth) = tokio::join!(
        calls.ask::<pb::GetQueueResponse>(&get_queue, &of_queue),
        calls.ask::<pb::GetDepthResponse>(&get_depth, &of_depth)
    );
    let (found, depth) = (read?.queue.unwrap_or_default(), depth?);
    let mut page = Page::of_queue(queue, text);
    page.age = Some(calls.live_age());
    page.lead = act.effect().to_owned();
    let count = whole(act.count(&depth));
    let fact = |label, value: String| Fact { label, value, ..Fact::default() };
    let facts = vec![
        fact("Queue", queue.to_owned()),
        Fact {
            testid: "confirm-count",
            hint: act.counted().to_owned(),
            class: if act.destroys() { "bad" } else { "" },
            ..fact("Messages concerned", count)
        },
    ];
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
    if act == ConsoleAct::Limit {
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
        code: calls.shell.with_hint(&act.command(query)),
        ..Section::default()
    });
    Ok(page)
}

/// Does what a form says, once. Returns the place of the page that follows.
pub async fn perform(calls: &ConsoleCalls, form: &PageQuery, posted: &PostedForms) -> Result<String, PageFailure> {
    let (act, name, _) = ConsoleAct::of(form)?;
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
        FormEnd::Done => ("done", ("", String::new())),
        FormEnd::Took(messages) => ("done", ("messages", messages.to_string())),
        FormEnd::Started(operation) => ("started", ("operation", operation)),
    };
    Ok(match act {
        ConsoleAct::Delete => link("", &[(end, name)]),
        _ => link("queue", &[("name", queue), (end, name), (detail, &value)]), // the queue is still there
    })
}

/// Does what a form says, unless that was done.
async fn once(
    calls: &ConsoleCalls,
    act: ConsoleAct,
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
async fn call(calls: &ConsoleCalls, act: ConsoleAct, form: &PageQuery) -> Result<Option<pb::Operation>, Status> {
    let text = |name: &str| form.text(name).to_owned();
    let (queue, reason, request_token, queue_id) = (text("queue"), text("reason"), text("token"), text("queue_id"));
    let settings = pb::Queue { name: queue.clone(), etag: text("etag"), ..Default::default() };
    match act {
        ConsoleAct::BlockDequeue => {
            let settings =
                pb::Queue { dequeue_blocked: Some(true), dequeue_blocked_reason: reason.clone(), ..settings };
            update(calls, act, settings, reason).await?;
        }
        ConsoleAct::BlockEnqueue => {
            let settings =
                pb::Queue { enqueue_blocked: Some(true), enqueue_blocked_reason: reason.clone(), ..settings };
            update(calls, act, settings, reason).await?;
        }
        ConsoleAct::Unblock => {
            let settings = pb::Queue { enqueue_blocked: Some(false), dequeue_blocked: Some(false), ..settings };
            update(calls, act, settings, reason).await?;
        }
        ConsoleAct::Purge => {
            let request = pb::PurgeQueueRequest { queue, request_token, queue_id, ..Default::default() };
            let answer: pb::PurgeQueueResponse = ask(calls, act, &request).await?;
            return Ok(answer.operation);
        }
        ConsoleAct::Redrive => {
            let request = pb::RedriveMessagesRequest { queue, request_token, queue_id, ..Default::default() };
            let answer: pb::RedriveMessagesResponse = ask(calls, act, &request).await?;
            return Ok(answer.operation);
        }
        ConsoleAct::Discard => {
            let request =
                pb::DiscardMessagesRequest { queue, request_token, queue_id, all: true, ..Default::default() };
            let answer: pb::DiscardMessagesResponse = ask(calls, act, &request).await?;
            return Ok(answer.operation);
        }
        ConsoleAct::Cancel => {
            let request = pb::CancelMessageRequest { queue, message_id: text("id"), reason, ..Default::default() };
            ask::<pb::CancelMessageResponse>(calls, act, &request).await?;
        }
        ConsoleAct::Limit => {
            let limit = text("limit").trim().parse::<i32>();
            let limit =
                limit.map_err(|_| Status::invalid_argument("The limit is no whole number; nothing was done."))?;
            let request = pb::SetValueLimitRequest { queue, value: text("value"), limit: Some(limit) };
            ask::<pb::SetValueLimitResponse>(calls, act, &request).await?;
        }
        ConsoleAct::Delete => {
            let request = pb::DeleteQueueRequest { queue, etag: settings.etag, reason, request_token, queue_id };
            ask::<pb::DeleteQueueResponse>(calls, act, &request).await?;
        }
    }
    Ok(None)
}

async fn update(calls: &ConsoleCalls, act: ConsoleAct, settings: pb::Queue, reason: String) -> Result<(), Status> {
    let request = pb::UpdateQueueRequest { queue: Some(settings), reason, reset: Vec::new() };
    ask::<pb::UpdateQueueResponse>(calls, act, &request).await.map(drop)
}

async fn ask<Answer: Message + Default>(
    calls: &ConsoleCalls,
    act: ConsoleAct,
    request: &impl Message,
) -> Result<Answer, Status> {
    calls.ask_within(&method(act.method()), request, ACT_WAIT).await
}

fn method(name: &str) -> String {
    format!("{SERVICE}/{name}")
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

    #[test]
    fn places_are_kept_for_forms_that_are_being_done_and_not_for_those_that_failed() {
        let forms = PostedForms::default();
        let first = forms.of("first");
        assert!(Arc::ptr_eq(&first, &forms.of("first")), "a second post waits for the first");
        forms.forget("first");
        assert!(Arc::ptr_eq(&first, &forms.of("first")), "another post of it waits");
        for number in 0..CONSOLE_FORMS_MAX {
            let form = forms.of(&format!("done {number}"));
            *form.try_lock().expect("nobody else has it") = Some((0, FormEnd::Done));
        }
        assert!(Arc::ptr_eq(&first, &forms.of("first")), "those that are done make room");
        let newest = format!("done {}", CONSOLE_FORMS_MAX - 1);
        forms.forget(&newest);
        let is_done = forms.of(&newest).try_lock().expect("nobody else has it").is_some();
        assert!(is_done, "a refusal of other content forgets nothing");
        drop(first);
        forms.forget("first");
        assert!(!forms.posted.lock().iter().any(|(known, _)| known == "first"));
    }
}
