//! Messages of a queue in one state, and one message: why is it not done?

use tonic::Status;

use super::methods::{EXPLAIN_MESSAGE, LIST_MESSAGES, TRACE};
use super::queue::why_off;
use crate::http::console::action::{self, PostedForms};
use crate::http::console::format::{or_unknown, size, span, unsigned};
use crate::http::console::in_process_client::InProcessClient;
use crate::http::console::payload::GET_MESSAGE;
use crate::http::console::query::{PageQuery, link, one_of};
use crate::http::console::view::{
    ActionLink, Fact, FieldOption, FilterForm, FormField, Page, PageFailure, RowPick, Section, SelectionForm,
    TableCell, TableRow, TableView, TextLink, cell, heads, number, priority_cell, priority_fact, state_name, time_cell,
    time_fact,
};
use tallystone_domain::access::AccessResource;
use tallystone_proto::history::v1 as history;
use tallystone_proto::queue::v1 as pb;

/// The messages of one page.
const PAGE_ROWS: i32 = 50;

/// The words of the buttons.
const CANCEL: &str = "Cancel message";
const SHOW_PAYLOAD: &str = "Show payload";

const STATES: [(&str, &str, pb::MessageState); 6] = [
    ("pending", "ready", pb::MessageState::Pending),
    ("invisible", "invisible", pb::MessageState::Invisible),
    ("running", "running", pb::MessageState::Running),
    ("errored", "errored", pb::MessageState::Errored),
    ("completed", "completed", pb::MessageState::Completed),
    ("canceled", "canceled", pb::MessageState::Canceled),
];

/// The actions that the page of a message offers.
#[derive(Clone, Copy)]
pub struct MessageOffers {
    /// Whether it may be canceled.
    pub may_cancel: bool,
    /// Whether its payload may be shown.
    pub may_show: bool,
}

/// The list. Its messages can be selected where actions are on.
pub async fn list(
    calls: &InProcessClient,
    query: &PageQuery,
    (forms, read_only): (&PostedForms, bool),
) -> Result<Page, PageFailure> {
    let queue = query.text("queue");
    let state = one_of("state", query.text("state"), &STATES.map(|(state, ..)| state))?;
    let (state, word, wire) = STATES.into_iter().find(|(known, ..)| *known == state).unwrap_or(STATES[0]);
    let request = pb::ListMessagesRequest {
        queue: queue.to_owned(),
        state: wire.into(),
        page_size: PAGE_ROWS,
        page_token: query.text("page").to_owned(),
        without_payload: true,
    };
    let listed: pb::ListMessagesResponse = calls.ask(LIST_MESSAGES, &request).await?;
    let mut page = Page::of_queue(queue, "Messages");
    page.age = Some(calls.live_age());
    if let Some(said) = forms.said_of(query.text("selection"), queue) {
        page.notice("", said);
    }
    page.lead = format!("Messages that are {word}, {PAGE_ROWS} a page, shard by shard in the order of their arrival.");
    let options = STATES.map(|(value, text, _)| FieldOption { value, text, selected: value == state });
    let fields = vec![
        FormField { name: "queue", value: queue.to_owned(), hidden: true, ..FormField::default() },
        FormField { label: "State".to_owned(), name: "state", options: options.into(), ..FormField::default() },
    ];
    let mut section =
        Section { filter: Some(FilterForm { action: "messages", fields, submit: "Show" }), ..Section::default() };
    if listed.messages.is_empty() {
        section.empty = format!("No message of {queue} is {word}.");
    } else {
        let is_off = !why_off(read_only, calls.queues_away().is_some()).is_empty();
        let buttons = if is_off { Vec::new() } else { action::buttons(calls, queue, wire) };
        let all_are = !query.text("all").is_empty();
        let pick = |message: &pb::Message| RowPick {
            value: message.message_key.clone(),
            label: format!("Select {}", message.message_id),
            checked: all_are,
        };
        let picked = |message| {
            let mut row = row(queue, message);
            row.cells.splice(1..1, of_state(wire, message));
            TableRow { pick: (!buttons.is_empty()).then(|| pick(message)), ..row }
        };
        let rows = listed.messages.iter().map(picked).collect();
        section.selection = (!buttons.is_empty()).then(|| selection(query, state, buttons));
        let mut columns = heads(&["Message", "Priority", "#Attempt", "Enqueued", "#Payload", "Last error"]);
        columns.splice(1..1, heads(columns_of_state(wire)));
        section.table = Some(TableView { columns, rows });
    }
    let off = why_off(read_only, calls.queues_away().is_some());
    if let Some((purge, lacked)) = action::purge_of(calls, queue, state).filter(|_| !listed.messages.is_empty()) {
        let why = lacked.map_or_else(|| off.to_owned(), action::off_without);
        section.links.push(ActionLink { enabled: why.is_empty(), ..purge });
        section.prose.extend((!why.is_empty()).then(|| format!("Purge is {why}.")));
    }
    if !listed.next_page_token.is_empty() {
        let href = link("messages", &[("queue", queue), ("state", state), ("page", &listed.next_page_token)]);
        section.links.push(ActionLink { href, text: "Next page", enabled: true, ..ActionLink::default() });
    }
    page.sections.push(section);
    Ok(page)
}

/// The form around the rows, with the same page all of whose rows are selected, or none.
fn selection(
    query: &PageQuery,
    state: &'static str,
    buttons: Vec<(&'static str, &'static str, &'static str)>,
) -> SelectionForm {
    let (queue, page) = (query.text("queue"), query.text("page"));
    let hidden = |name, value: &str| FormField { name, value: value.to_owned(), hidden: true, ..FormField::default() };
    let (all, text) = match query.text("all") {
        "" => ("yes", "Select all on this page"),
        _ => ("", "Select none"),
    };
    let href = link("messages", &[("queue", queue), ("state", state), ("page", page), ("all", all)]);
    let fields = vec![hidden("queue", queue), hidden("state", state)];
    SelectionForm { fields, buttons, other: TextLink { href, text: text.to_owned() } }
}

/// The columns that only messages of this state have.
fn columns_of_state(state: pb::MessageState) -> &'static [&'static str] {
    match state {
        pb::MessageState::Invisible => &["Visible"],
        pb::MessageState::Canceled => &["Reason", "Ended"],
        _ => &[], // a further state has no column of its own until one is given to it
    }
}

/// The cells of these columns.
fn of_state(state: pb::MessageState, message: &pb::Message) -> Vec<TableCell> {
    match state {
        pb::MessageState::Invisible => vec![time_cell("Visible", message.visible_time.as_ref())],
        pb::MessageState::Canceled => {
            vec![cell("Reason", &message.cancel_reason), time_cell("Ended", message.end_time.as_ref())]
        }
        _ => Vec::new(), // as above
    }
}

fn row(queue: &str, message: &pb::Message) -> TableRow {
    let href = link("message", &[("queue", queue), ("id", &message.message_id)]);
    let error =
        message.error.as_ref().map_or("", |error| if error.text.is_empty() { &*error.signature } else { &*error.text });
    TableRow {
        cells: vec![
            TableCell { href, ..cell("Message", &message.message_id) },
            priority_cell("Priority", message.priority),
            number("Attempt", message.attempt_number.to_string()),
            time_cell("Enqueued", message.enqueue_time.as_ref()),
            number("Payload", size(message.payload_bytes.into())),
            cell("Last error", or_unknown(error)),
        ],
        ..TableRow::default()
    }
}

/// The page of a message. Its payload is never here.
pub async fn one(calls: &InProcessClient, query: &PageQuery, offers: MessageOffers) -> Result<Page, PageFailure> {
    let (queue, id) = (query.text("queue"), query.text("id"));
    let request =
        pb::ExplainMessageRequest { queue: queue.to_owned(), message_id: id.to_owned(), ..Default::default() };
    let (explained, attempts) =
        tokio::join!(calls.ask::<pb::ExplainMessageResponse>(EXPLAIN_MESSAGE, &request), attempts(calls, queue, id));
    let explained = explained?;
    let mut page = Page::of_queue(queue, id);
    page.age = Some(calls.live_age());
    let causes = explained.explanations.iter();
    let row = |cause: &pb::Explanation| TableRow {
        cells: vec![cell("Cause", &cause.cause), cell("Explanation", &cause.text)],
        ..TableRow::default()
    };
    let table = TableView { columns: heads(&["Cause", "Explanation"]), rows: causes.map(row).collect() };
    page.sections.push(Section {
        title: "Why is it where it is?".to_owned(),
        table: Some(table),
        ..Section::default()
    });
    match &explained.message {
        Some(message) => page.sections.extend(about(message)),
        None => page.notice("warn", "The queue does not keep a message with this id. Its history may still be known."),
    }
    page.sections.push(actions(calls, queue, id, explained.message.as_ref(), offers));
    page.sections.push(attempts);
    Ok(page)
}

/// The actions on a message, with a reason for each button that is off.
fn actions(
    calls: &InProcessClient,
    queue: &str,
    id: &str,
    message: Option<&pb::Message>,
    offers: MessageOffers,
) -> Section {
    let is_away = calls.queues_away().is_some();
    let off_for_all = match message {
        _ if is_away => why_off(false, true),
        None => "off: the queue does not keep this message",
        Some(_) => "",
    };
    let cancel_off = match (action::cancel_lacks(calls, queue), message) {
        (_, _) if !off_for_all.is_empty() => off_for_all.to_owned(),
        (_, _) if !offers.may_cancel => why_off(true, false).to_owned(),
        (Some(role), _) => action::off_without(role),
        (None, Some(message)) if !is_open(message) => "off: the message is already finished".to_owned(),
        (None, _) => String::new(),
    };
    let show_off = match calls.lacks(GET_MESSAGE, AccessResource::Queue(queue)) {
        _ if !off_for_all.is_empty() => off_for_all.to_owned(),
        _ if !offers.may_show => "off: this console shows no payloads (console.show_payloads)".to_owned(),
        Some(role) => action::off_without(role),
        None => String::new(),
    };
    let offer =
        |href, text, class, off: &str| ActionLink { href, text, class, enabled: off.is_empty(), current: false };
    let cancel = link("act", &[("do", "cancel"), ("queue", queue), ("id", id)]);
    let links = vec![
        offer(cancel, CANCEL, "danger", &cancel_off),
        offer(link("payload", &[("queue", queue), ("id", id)]), SHOW_PAYLOAD, "", &show_off),
    ];
    let why = [(CANCEL, cancel_off), (SHOW_PAYLOAD, show_off)].into_iter().filter(|(_, off)| !off.is_empty());
    let note = why.map(|(text, off)| format!("{text} is {off}.")).collect::<Vec<_>>().join(" ");
    Section { title: "Actions".to_owned(), note, links, ..Section::default() }
}

/// Whether the queue still has work to do for a message.
fn is_open(message: &pb::Message) -> bool {
    let open = [pb::MessageState::Invisible, pb::MessageState::Pending, pb::MessageState::Running];
    open.contains(&message.state())
}

fn about(message: &pb::Message) -> Vec<Section> {
    let fact = |label, value: String| Fact { label, value, ..Fact::default() };
    let mut facts = vec![
        fact("State", state_name(message.state).to_owned()),
        fact("Attempt", format!("{} used, {} left", message.attempt_number, message.attempts_left)),
        priority_fact("Priority", message.priority),
        time_fact("Enqueued", message.enqueue_time.as_ref()),
        time_fact("Visible from", message.visible_time.as_ref()),
        fact("Version", unsigned(message.version)),
        fact("Payload", format!("{}, not shown", size(message.payload_bytes.into()))),
    ];
    if message.lease_expire_time.is_some() {
        facts.push(fact("Worker", or_unknown(&message.worker_label)));
        facts.push(time_fact("Lease ends", message.lease_expire_time.as_ref()));
    }
    if let Some(error) = &message.error {
        let text = if error.text.is_empty() { &error.signature } else { &error.text };
        facts.push(fact("Last error", text.clone()));
    }
    let mut sections = vec![Section { title: "Message".to_owned(), class: "plain", facts, ..Section::default() }];
    if !message.metadata.is_empty() {
        let mut pairs: Vec<_> = message.metadata.iter().collect();
        pairs.sort();
        let rows = pairs.into_iter().map(|(key, value)| TableRow {
            cells: vec![cell("Key", key), cell("Value", value)],
            ..TableRow::default()
        });
        let table = TableView { columns: heads(&["Key", "Value"]), rows: rows.collect() };
        sections.push(Section { title: "Metadata".to_owned(), table: Some(table), ..Section::default() });
    }
    sections
}

async fn attempts(calls: &InProcessClient, queue: &str, id: &str) -> Section {
    let message = Some(history::get_message_trace_request::Message::MessageId(id.to_owned()));
    let request = history::GetMessageTraceRequest { queue: queue.to_owned(), message, ..Default::default() };
    let answer: Result<history::GetMessageTraceResponse, Status> = calls.ask(TRACE, &request).await;
    let mut section = Section {
        title: "What happened to it".to_owned(),
        note: "from the history of messages".to_owned(),
        ..Section::default()
    };
    let lives = match answer {
        Ok(answer) => answer.lives,
        Err(status) => {
            section.empty = format!("Not known: {}", status.message());
            return section;
        }
    };
    let rows: Vec<TableRow> = lives.iter().flat_map(|life| life.transitions.iter().map(lane)).collect();
    if rows.is_empty() {
        section.empty = "The history has no row of it.".to_owned();
    } else {
        let columns = heads(&["Time", "To", "#Attempt", "Stayed", "Worker", "Why"]);
        section.table = Some(TableView { columns, rows });
    }
    section
}

fn lane(step: &history::MessageTransition) -> TableRow {
    let why = match &step.error {
        Some(error) if error.text.is_empty() => error.signature.as_str(),
        Some(error) => error.text.as_str(),
        None if !step.reason.is_empty() => step.reason.as_str(),
        None => why_of(step.trigger()),
    };
    TableRow {
        testid: "attempt-lane",
        cells: vec![
            time_cell("Time", step.time.as_ref()),
            cell("To", state_name(step.to)),
            number("Attempt", step.attempt_number.to_string()),
            cell("Stayed", span(step.time_in_state.as_ref())),
            cell("Worker", or_unknown(&step.worker)),
            cell("Why", or_unknown(why)),
        ],
        ..TableRow::default()
    }
}

/// The reason why the service changed a message by itself, or at a request; empty where the state alone says it.
const fn why_of(trigger: history::TransitionTrigger) -> &'static str {
    use history::TransitionTrigger as Trigger;
    match trigger {
        Trigger::TtlOver => "its TTL was over before anyone took it",
        Trigger::LeaseOver => "its lease expired",
        Trigger::Purge => "by a purge",
        Trigger::Discard => "by a discard",
        Trigger::Redrive => "by a redrive",
        Trigger::CancelMessage => "canceled on request",
        Trigger::Cancel => "canceled by its worker",
        Trigger::Release => "released by its worker",
        Trigger::InvisibilityOver => "its invisibility ended",
        Trigger::RetentionOver => "its retention ended",
        Trigger::Unspecified
        | Trigger::Enqueue
        | Trigger::Dequeue
        | Trigger::Complete
        | Trigger::LateComplete
        | Trigger::Extend
        | Trigger::Fail
        | Trigger::Update => "",
    }
}
