//! Acts on messages that were selected in a list: a page that says how many, then a call for each, and the results.
//!
//! Redrives and discards carry the token of the form and the place of the message, so a form that is sent again after a
//! restart does no message twice. A cancel looks at the state first: the call answers alike for a message that is
//! canceled already.

use std::collections::BTreeMap;

use futures_util::{StreamExt as _, stream};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use super::kind::method;
use super::posted::{FormEnd, PostedForms};
use super::{ACT_WAIT, OTHER_CONTENT, reason_and_token};
use crate::http::console::format::whole;
use crate::http::console::in_process_client::InProcessClient;
use crate::http::console::query::{PageQuery, link};
use crate::http::console::view::{ActionForm, Fact, FormField, Page, PageFailure, Section};
use tallystone_domain::Reason;
use tallystone_domain::access::AccessResource;
use tallystone_domain::limits::CONSOLE_SELECTED_MAX;
use tallystone_proto::queue::v1 as pb;

/// The calls of one form that are made at a time.
const AT_ONCE: usize = 8;
/// The different failures that are told, most frequent first.
const FAILURES_TOLD: usize = 3;

/// An act on selected messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SelectedAct {
    Cancel,
    Redrive,
    Discard,
}

impl SelectedAct {
    const ALL: [Self; 3] = [Self::Cancel, Self::Redrive, Self::Discard];

    /// The act that a query or a form names; none for one of a whole queue or of a single message.
    pub fn of(query: &PageQuery) -> Option<Self> {
        Self::ALL.into_iter().find(|act| act.name() == query.text("do"))
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Cancel => "cancel-selected",
            Self::Redrive => "redrive-selected",
            Self::Discard => "discard-selected",
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Self::Cancel => "Cancel selected",
            Self::Redrive => "Redrive selected",
            Self::Discard => "Discard selected",
        }
    }

    const fn effect(self) -> &'static str {
        match self {
            Self::Cancel => "Each of these messages is canceled. The workers of running ones are asked to stop.",
            Self::Redrive => "Each of these dead letters returns to the queue with new attempts.",
            Self::Discard => "Each of these dead letters is deleted. This cannot be undone.",
        }
    }

    const fn done(self) -> &'static str {
        match self {
            Self::Cancel => "Canceled",
            Self::Redrive => "Redrove",
            Self::Discard => "Discarded",
        }
    }

    fn method(self) -> String {
        method(match self {
            Self::Cancel => "CancelMessage",
            Self::Redrive => "RedriveMessages",
            Self::Discard => "DiscardMessages",
        })
    }

    const fn class(self) -> &'static str {
        match self {
            Self::Cancel | Self::Discard => "danger",
            Self::Redrive => "",
        }
    }

    /// Whether it may be done with a message of a state.
    const fn is_for(self, state: pb::MessageState) -> bool {
        let is_open =
            matches!(state, pb::MessageState::Invisible | pb::MessageState::Pending | pb::MessageState::Running);
        match self {
            Self::Cancel => is_open,
            Self::Redrive | Self::Discard => matches!(state, pb::MessageState::Errored),
        }
    }
}

/// The names, words and classes of the buttons for selected messages of a state, without those that the caller may not
/// use.
pub fn buttons(
    calls: &InProcessClient,
    queue: &str,
    state: pb::MessageState,
) -> Vec<(&'static str, &'static str, &'static str)> {
    let may = |act: &SelectedAct| calls.lacks(&act.method(), AccessResource::Queue(queue)).is_none();
    let acts = SelectedAct::ALL.into_iter().filter(|act| act.is_for(state)).filter(may);
    acts.map(|act| (act.name(), act.text(), act.class())).collect()
}

/// The keys of the selected messages, each once.
fn selected(query: &PageQuery) -> Result<Vec<&str>, Status> {
    let mut keys: Vec<&str> = query.all("m").filter(|key| !key.is_empty()).collect();
    keys.sort_unstable();
    keys.dedup();
    match keys.len() {
        0 => Err(Status::invalid_argument("No message is selected. Nothing was done.")),
        1..=CONSOLE_SELECTED_MAX => Ok(keys),
        _ => Err(Status::invalid_argument(format!(
            "Select at most {CONSOLE_SELECTED_MAX} messages at once. Nothing was done."
        ))),
    }
}

/// The page that says how many messages an act is about.
pub fn confirm(
    calls: &InProcessClient,
    (act, query): (SelectedAct, &PageQuery),
    forms: &PostedForms,
) -> Result<Page, PageFailure> {
    let (queue, state, keys) = (query.text("queue"), query.text("state"), selected(query)?);
    if let Some(role) = calls.lacks(&act.method(), AccessResource::Queue(queue)) {
        let why = format!("{} needs the role {role}, which no grant of your key allows on this queue.", act.text());
        return Err(Status::permission_denied(why).into());
    }
    let mut page = Page::of_queue(queue, act.text());
    page.lead = act.effect().to_owned();
    let fact = |label, value: String| Fact { label, value, ..Fact::default() };
    let count = Fact {
        testid: "confirm-count",
        class: if act == SelectedAct::Discard { "bad" } else { "" },
        ..fact("Messages selected", keys.len().to_string())
    };
    let hidden = |name, value: &str| FormField { name, value: value.to_owned(), hidden: true, ..FormField::default() };
    let asked = |label: String, name| FormField { label, name, required: true, ..FormField::default() };
    let token = forms.token(calls);
    let known = [("do", act.name()), ("queue", queue), ("state", state), ("token", &token)];
    let mut fields: Vec<FormField> = known.into_iter().map(|(name, value)| hidden(name, value)).collect();
    fields.extend(keys.iter().map(|key| hidden("m", key)));
    fields.push(asked("Reason".to_owned(), "reason"));
    if act == SelectedAct::Discard {
        fields.push(asked(format!("Type the name of the queue: {queue}"), "typed"));
    }
    let back = link("messages", &[("queue", queue), ("state", state)]);
    let submit = act.text().to_owned();
    let action = ActionForm { action: "act", fields, submit, testid: "confirm-submit", class: act.class(), back };
    let facts = vec![fact("Queue", queue.to_owned()), count];
    page.sections.push(Section { facts, class: "plain", action: Some(action), ..Section::default() });
    Ok(page)
}

/// Does an act with each of the selected messages, once for each form. Returns the place of the page that shows the
/// result.
pub async fn perform(
    calls: &InProcessClient,
    (act, form): (SelectedAct, &PageQuery),
    posted: &PostedForms,
) -> Result<String, PageFailure> {
    let (queue, keys) = (form.text("queue"), selected(form)?);
    let (reason, token) = reason_and_token(form)?;
    if act == SelectedAct::Discard && form.text("typed") != queue {
        return Err(Status::invalid_argument("The typed name is not that of the queue; nothing was done.").into());
    }
    let content = form.fingerprint();
    let own = posted.of(token);
    let mut known = own.lock().await;
    match &*known {
        Some((before, _)) if *before == content => {}
        Some(_) => return Err(Status::invalid_argument(OTHER_CONTENT).into()),
        None => {
            let end = each(&calls.with_reason(reason), act, form, &keys).await;
            let (queue, said) = (queue.to_owned(), end.text(act));
            *known = Some((content, FormEnd::Selected { queue, said }));
        }
    }
    Ok(link("messages", &[("queue", queue), ("state", form.text("state")), ("selection", token)]))
}

/// The result for one message.
enum OneEnd {
    Done,
    /// Its worker is asked to stop.
    Asked,
    OtherState,
    Gone,
    Failed(String),
}

/// The results for all selected messages.
#[derive(Default)]
struct SelectionEnd {
    done: usize,
    asked: usize,
    other_state: usize,
    gone: usize,
    /// How many failed, by why.
    failed: BTreeMap<String, usize>,
}

async fn each(calls: &InProcessClient, act: SelectedAct, form: &PageQuery, keys: &[&str]) -> SelectionEnd {
    let messages: Vec<(usize, String)> = keys.iter().map(|key| (*key).to_owned()).enumerate().collect();
    let calls_made = stream::iter(messages).map(|message| one(calls, act, form, message));
    let mut ends = calls_made.buffer_unordered(AT_ONCE);
    let mut sum = SelectionEnd::default();
    while let Some(end) = ends.next().await {
        sum.add(end);
    }
    sum
}

async fn one(calls: &InProcessClient, act: SelectedAct, form: &PageQuery, message: (usize, String)) -> OneEnd {
    match answer(calls, act, form, message).await {
        Ok(end) => end,
        Err(status) if is_of(&status, Reason::WrongMessageState) => OneEnd::OtherState,
        Err(status) if is_of(&status, Reason::MessageNotFound) => OneEnd::Gone,
        Err(status) if status.code() == Code::DeadlineExceeded => {
            OneEnd::Failed("no answer came in time; it may be done all the same".to_owned())
        }
        Err(status) => OneEnd::Failed(status.message().to_owned()),
    }
}

async fn answer(
    calls: &InProcessClient,
    act: SelectedAct,
    form: &PageQuery,
    (place, message_id): (usize, String),
) -> Result<OneEnd, Status> {
    let (queue, method) = (form.text("queue").to_owned(), act.method());
    let request_token = format!("{}-{place}", form.text("token"));
    match act {
        SelectedAct::Cancel => {
            if !is_open(calls, &queue, &message_id).await? {
                return Ok(OneEnd::OtherState);
            }
            let reason = form.text("reason").to_owned();
            let request = pb::CancelMessageRequest { queue, message_id, reason, ..Default::default() };
            let answer: pb::CancelMessageResponse = calls.ask_within(&method, &request, ACT_WAIT).await?;
            let is_running = answer.state() == pb::MessageState::Running;
            return Ok(if is_running { OneEnd::Asked } else { OneEnd::Done });
        }
        SelectedAct::Redrive => {
            let request =
                pb::RedriveMessagesRequest { queue, message_id: Some(message_id), request_token, ..Default::default() };
            calls.ask_within::<pb::RedriveMessagesResponse>(&method, &request, ACT_WAIT).await?;
        }
        SelectedAct::Discard => {
            let request = pb::DiscardMessagesRequest { queue, message_id, request_token, ..Default::default() };
            calls.ask_within::<pb::DiscardMessagesResponse>(&method, &request, ACT_WAIT).await?;
        }
    }
    Ok(OneEnd::Done)
}

/// Whether a message can still be canceled.
async fn is_open(calls: &InProcessClient, queue: &str, message_id: &str) -> Result<bool, Status> {
    let request =
        pb::ExplainMessageRequest { queue: queue.to_owned(), message_id: message_id.to_owned(), ..Default::default() };
    let explained: pb::ExplainMessageResponse = calls.ask_within(&method("ExplainMessage"), &request, ACT_WAIT).await?;
    // One that is gone is refused by the cancel itself.
    Ok(explained.message.is_none_or(|message| SelectedAct::Cancel.is_for(message.state())))
}

fn is_of(status: &Status, reason: Reason) -> bool {
    status.get_details_error_info().is_some_and(|info| info.reason == reason.info().name)
}

impl SelectionEnd {
    fn add(&mut self, end: OneEnd) {
        match end {
            OneEnd::Done => self.done += 1,
            OneEnd::Asked => self.asked += 1,
            OneEnd::OtherState => self.other_state += 1,
            OneEnd::Gone => self.gone += 1,
            OneEnd::Failed(why) => *self.failed.entry(why).or_default() += 1,
        }
    }

    /// Says it in sentences. What did not happen is not said.
    fn text(&self, act: SelectedAct) -> String {
        let failed: usize = self.failed.values().sum();
        let all = self.done + self.asked + self.other_state + self.gone + failed;
        let count = |count: usize| whole(i64::try_from(count).unwrap_or(i64::MAX));
        let noun = if all == 1 { "message" } else { "messages" };
        let mut text = format!("{} {} of {} {noun}.", act.done(), count(self.done), count(all));
        let one_or_many = |number: usize, one: &str, many: &str| match number {
            0 => String::new(),
            1 => format!(" 1 {one}"),
            number => format!(" {} {many}", count(number)),
        };
        text += &one_or_many(
            self.asked,
            "is running: its worker is asked to stop.",
            "are running: their workers are asked to stop.",
        );
        text += &one_or_many(self.other_state, "was already in another state.", "were already in another state.");
        text += &one_or_many(self.gone, "was gone.", "were gone.");
        text += &one_or_many(failed, "failed:", "failed:");
        let mut whys: Vec<_> = self.failed.iter().collect();
        whys.sort_by_key(|(_, times)| std::cmp::Reverse(**times));
        let told = whys.iter().take(FAILURES_TOLD).map(|(why, times)| match **times {
            1 => format!(" {why}"),
            times => format!(" {why} ({} times)", count(times)),
        });
        text += &told.collect::<Vec<_>>().join(";");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(act: SelectedAct, ends: impl IntoIterator<Item = OneEnd>) -> String {
        let mut sum = SelectionEnd::default();
        ends.into_iter().for_each(|end| sum.add(end));
        sum.text(act)
    }

    #[test]
    fn a_summary_counts_every_message_and_says_why_some_were_left() {
        assert_eq!(said(SelectedAct::Discard, [OneEnd::Done]), "Discarded 1 of 1 message.");
        let failed = |why: &str| OneEnd::Failed(why.to_owned());
        let ends = [OneEnd::Done, OneEnd::Done, OneEnd::Asked, OneEnd::OtherState, OneEnd::OtherState, OneEnd::Gone];
        let ends = ends.into_iter().chain([failed("rare"), failed("the disk is full"), failed("the disk is full")]);
        assert_eq!(
            said(SelectedAct::Cancel, ends),
            "Canceled 2 of 9 messages. 1 is running: its worker is asked to stop. 2 were already in another state. 1 was gone. \
             3 failed: the disk is full (2 times); rare"
        );
    }

    #[test]
    fn each_message_is_selected_once_and_too_many_are_refused() {
        let keys = |query: &str| selected(&PageQuery::of(Some(query))).map(|keys| keys.join(" "));
        assert_eq!(keys("m=b&m=a&m=b&m=").expect("two"), "a b");
        assert!(keys("do=cancel-selected").is_err());
        let many = |count: usize| (0..count).map(|number| format!("m=k{number}")).collect::<Vec<_>>().join("&");
        assert!(keys(&many(CONSOLE_SELECTED_MAX)).is_ok());
        assert!(keys(&many(CONSOLE_SELECTED_MAX + 1)).is_err());
    }
}
