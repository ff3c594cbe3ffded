//! A queue: is it keeping up?

use tonic::Status;

use super::chart::{self, DrawnCounter};
use super::methods::{EXPLAIN_QUEUE, GET_ACTIVITY, GET_DEPTH, GET_QUEUE, LIST_SESSIONS};
use super::overview::{ATTENTION_PART, QueueNumber, attention_row, away_part, numbers};
use super::queue_counts::QUEUE_COUNTERS;
use super::times;
use super::{errors, operations};
use crate::http::console::action;
use crate::http::console::format::{self, count, or_unknown, span};
use crate::http::console::in_process_client::InProcessClient;
use crate::http::console::query::{PageQuery, link};
use crate::http::console::view::{
    ActionLink, AgeChip, Fact, Page, PageFailure, Section, TableRow, TableView, cell, heads, number, time_cell,
    time_fact,
};
use tallystone_domain::shell_word::shell_word;
use tallystone_proto::queue::v1 as pb;

/// The workers that a page shows.
const SESSION_ROWS: i32 = 20;

/// Asks for the activity of a queue.
pub async fn activity(calls: &InProcessClient, queue: &str) -> Result<pb::GetQueueActivityResponse, Status> {
    calls.ask(GET_ACTIVITY, &pb::GetQueueActivityRequest { queue: queue.to_owned() }).await
}

/// The page.
pub async fn page(calls: &InProcessClient, query: &PageQuery, read_only: bool) -> Result<Page, PageFailure> {
    let name = query.text("name");
    // At once, so that a store that does not answer holds the page up once.
    let is_away = calls.queues_away().is_some();
    let off = why_off(read_only, is_away);
    let (read, done, running, flow, times, errors, explained, workers, settings) = tokio::join!(
        activity(calls, name),
        action::progress(calls, query),
        operations::read(calls, name),
        flow(calls, query),
        times::sections(calls, name),
        errors::section(calls, name, off.is_empty()),
        explained(calls, name),
        workers(calls, name),
        settings(calls, name)
    );
    let read = read?;
    let activity = read.activity.unwrap_or_default();
    let mut page = Page::new("./", name);
    page.crumbs.push(crate::http::console::view::TextLink { href: "./".to_owned(), text: "Queues".to_owned() });
    page.age = Some(AgeChip::of("store totals", activity.as_of.as_ref(), read.server_time.as_ref(), is_away));
    page.live = Some(link("live", &[("name", name)]));
    page.lead = verdict(&activity);
    if let Some(done) = done {
        page.notice("", done);
    }
    let [away, attention, actions] = parts(calls, &activity, read_only);
    page.sections.extend([away, attention]);
    let facts = numbers(&activity).into_iter().zip(LABELS).map(|(number, (label, hint))| {
        let QueueNumber { testid, live, text: value, is_bad, .. } = number;
        let class = if is_bad { "bad" } else { "" };
        Fact { label, value, hint: hint.to_owned(), testid, live, class, ..Fact::default() }
    });
    page.sections.push(Section { facts: facts.collect(), links: message_links(name), ..Section::default() });
    page.sections.push(operations::section(name, running));
    page.sections.push(flow);
    page.sections.extend(times);
    page.sections.extend([errors, explained, workers]);
    page.sections.extend(settings);
    page.sections.push(actions);
    page.sections.push(conservation(&activity));
    page.sections.push(shell_section(calls, name));
    Ok(page)
}

/// The parts of the page that live updates replace: whether the store is away, the reasons for attention, and the
/// actions.
pub fn parts(calls: &InProcessClient, activity: &pb::QueueActivity, read_only: bool) -> [Section; 3] {
    let (name, away) = (&activity.queue, calls.queues_away());
    let attention = activity.attention.iter().map(|reason| attention_row(name, reason)).collect();
    [
        away_part(away.as_deref()),
        Section { part: ATTENTION_PART, attention, ..Section::default() },
        actions(calls, activity, why_off(read_only, away.is_some())),
    ]
}

/// The messages that came in and those that went out, from the counters of the queue.
async fn flow(calls: &InProcessClient, query: &PageQuery) -> Section {
    let name = query.text("name");
    let drawn = |label, class, counter: &str| DrawnCounter { label, class, name: format!("{name}~{counter}") };
    let counters = vec![drawn("In", "one", "enqueued"), drawn("Out", "two", "completed")];
    let mut section = chart::section(calls, "Flow", QUEUE_COUNTERS, counters, query.text("range")).await;
    section.links = chart::range_links(query.text("range"), |range| link("queue", &[("name", name), ("range", range)]));
    section
}

const LABELS: [(&str, &str); 9] = [
    ("Ready", ""),
    ("Invisible", ""),
    ("Running", ""),
    ("Errored", ""),
    ("In", "per second"),
    ("Out", "per second"),
    ("Failed", "per second"),
    ("Oldest ready", ""),
    ("Drains in", "if rates stay"),
];

/// One sentence on how the queue does.
pub fn verdict(activity: &pb::QueueActivity) -> String {
    let pending = activity.pending;
    if let Some(waiting @ 1..) = pending
        && activity.dequeue_blocked
    {
        return format!("{} wait, and dequeue is blocked.", format::whole(waiting));
    }
    match (pending, activity.time_to_drain.as_ref(), activity.in_per_second, activity.out_per_second) {
        (None, ..) => "Its numbers are not known yet.".to_owned(),
        (Some(0), _, _, Some(out)) if out > 0.0 => "It keeps up: nothing waits.".to_owned(),
        (Some(0), ..) => "Nothing waits.".to_owned(),
        (Some(_), Some(drain), ..) => {
            format!("It catches up: {} until nothing waits, if the rates stay.", format::seconds(drain.seconds))
        }
        (Some(waiting), None, Some(into), Some(out)) if into > out => {
            format!("It falls behind: {} wait, and more comes in than goes out.", format::whole(waiting))
        }
        (Some(waiting), ..) => format!("{} wait.", format::whole(waiting)),
    }
}

fn message_links(name: &str) -> Vec<ActionLink> {
    let states = [
        ("Ready messages", "pending"),
        ("Running", "running"),
        ("Errored", "errored"),
        ("Invisible", "invisible"),
        ("Completed", "completed"),
        ("Canceled", "canceled"),
    ];
    let to = |(text, state)| ActionLink {
        href: link("messages", &[("queue", name), ("state", state)]),
        text,
        enabled: true,
        ..ActionLink::default()
    };
    states.map(to).into()
}

async fn explained(calls: &InProcessClient, name: &str) -> Section {
    let request = pb::ExplainQueueRequest { queue: name.to_owned(), ..Default::default() };
    let answer: Result<pb::ExplainQueueResponse, Status> = calls.ask(EXPLAIN_QUEUE, &request).await;
    let mut section = Section {
        id: "explain",
        title: "What would a dequeue get?".to_owned(),
        note: "live, as this page was loaded".to_owned(),
        ..Section::default()
    };
    match answer {
        Ok(answer) => {
            let text = |cause: pb::Explanation| TableRow {
                cells: vec![cell("Cause", cause.cause), cell("Explanation", cause.text)],
                ..TableRow::default()
            };
            section.table = Some(TableView {
                columns: heads(&["Cause", "Explanation"]),
                rows: answer.explanations.into_iter().map(text).collect(),
            });
        }
        Err(status) => section.empty = format!("Not known: {}", status.message()),
    }
    section
}

async fn workers(calls: &InProcessClient, name: &str) -> Section {
    let request = pb::ListSessionsRequest { queue: name.to_owned(), page_size: SESSION_ROWS, ..Default::default() };
    let answer: Result<pb::ListSessionsResponse, Status> = calls.ask(LIST_SESSIONS, &request).await;
    let mut section = Section {
        title: "Workers".to_owned(),
        note: "those with a session · as this page was loaded".to_owned(),
        ..Section::default()
    };
    match answer {
        Ok(answer) if answer.sessions.is_empty() => {
            section.empty = match answer.next_page_token.is_empty() {
                true => "No worker with a session holds leases here.".to_owned(),
                false => format!(
                    "None of the first sessions holds leases here. `tallystone session ls --queue {}` looks at all.",
                    shell_word(name)
                ),
            };
        }
        Ok(answer) => {
            let row = |session: pb::LiveSession| TableRow {
                cells: vec![
                    cell("Worker", or_unknown(&session.label)),
                    number("Leases", format::whole(session.leases)),
                    time_cell("Last heard", session.last_heard_time.as_ref()),
                    cell("Ends in", span(session.session_expires_in.as_ref())),
                ],
                ..TableRow::default()
            };
            let rows = answer.sessions.into_iter().map(row).collect();
            section.table = Some(TableView { columns: heads(&["Worker", "#Leases", "Last heard", "Ends in"]), rows });
        }
        Err(status) => section.empty = format!("Not known: {}", status.message()),
    }
    section
}

/// The use that the queue makes of its quotas, and its settings.
async fn settings(calls: &InProcessClient, name: &str) -> Vec<Section> {
    let request = pb::GetQueueRequest { queue: name.to_owned() };
    let of_depth = pb::GetDepthRequest { queue: name.to_owned(), ..Default::default() };
    let (answer, depth) = tokio::join!(
        calls.ask::<pb::GetQueueResponse>(GET_QUEUE, &request),
        calls.ask::<pb::GetDepthResponse>(GET_DEPTH, &of_depth)
    );
    let title = "Settings".to_owned();
    let queue = match answer {
        Ok(answer) => answer.queue.unwrap_or_default(),
        Err(status) => {
            return vec![Section { title, empty: format!("Not known: {}", status.message()), ..Section::default() }];
        }
    };
    let quota = quota(&queue, depth.ok().as_ref());
    let fact = |label, value: String| Fact { label, value, ..Fact::default() };
    let blocked = |is: Option<bool>, why: &str| match is {
        Some(true) => format!("blocked: {why}"),
        _ => "open".to_owned(),
    };
    let kind = if queue.r#type == i32::from(pb::QueueType::Exclusive) { "exclusive" } else { "simple" };
    let facts = vec![
        fact("Type", kind.to_owned()),
        fact("Shards", queue.shards().to_string()),
        fact("Enqueue", blocked(queue.enqueue_blocked, &queue.enqueue_blocked_reason)),
        fact("Dequeue", blocked(queue.dequeue_blocked, &queue.dequeue_blocked_reason)),
        fact("Lease", span(queue.default_lease.as_ref())),
        fact("Attempts", count(queue.default_max_attempts.map(i64::from))),
        time_fact("Created", queue.create_time.as_ref()),
        time_fact("Changed", queue.update_time.as_ref()),
    ];
    let history = ActionLink {
        href: link("control", &[("kind", "queue"), ("name", name)]),
        text: "Changes",
        enabled: true,
        ..ActionLink::default()
    };
    let note = "as this page was loaded".to_owned();
    vec![quota, Section { title, note, class: "plain", facts, links: vec![history], ..Section::default() }]
}

/// How much of its quotas a queue uses. Messages that are over count until their retention ends.
fn quota(queue: &pb::Queue, depth: Option<&pb::GetDepthResponse>) -> Section {
    let kept = depth.map(|depth| {
        let open = depth.pending + depth.invisible + depth.running;
        open + depth.errored + depth.completed + depth.canceled
    });
    let bytes = depth.map(|depth| depth.payload_bytes);
    let fact = |label, used: Option<i64>, most: Option<i64>, text: fn(i64) -> String| {
        let of = |number: Option<i64>| number.map_or_else(|| format::UNKNOWN.to_owned(), text);
        let is_full = used.zip(most).is_some_and(|(used, most)| used >= most);
        let class = if is_full { "bad" } else { "" };
        Fact { label, value: format!("{} of {}", of(used), of(most)), class, testid: "quota", ..Fact::default() }
    };
    let mut facts = vec![
        fact("Messages", kept, queue.quota_messages, format::whole),
        fact("Payload", bytes, queue.quota_bytes, format::size),
    ];
    if queue.shards() > 1 {
        facts.iter_mut().for_each(|fact| fact.hint = format!("each of {} shards has an equal part", queue.shards()));
    }
    let (title, note) = ("Quota".to_owned(), "messages that are over count too · as this page was loaded".to_owned());
    Section { title, note, class: "plain", facts, ..Section::default() }
}

/// The actions, which are off in a read-only console, while the store is away, and where the caller lacks their role.
fn actions(calls: &InProcessClient, activity: &pb::QueueActivity, off: &str) -> Section {
    let acts = action::of_queue(calls, &activity.queue, activity.r#type() == pb::QueueType::Exclusive);
    let lacked = acts.iter().find_map(|(_, lacked)| *lacked);
    let note = match lacked {
        Some(role) if off.is_empty() => action::off_without(role),
        _ => off.to_owned(),
    };
    let links =
        acts.into_iter().map(|(link, lacked)| ActionLink { enabled: off.is_empty() && lacked.is_none(), ..link });
    Section { part: "actions", title: "Actions".to_owned(), note, links: links.collect(), ..Section::default() }
}

/// The reason why actions are off; empty if they are not.
pub fn why_off(read_only: bool, is_away: bool) -> &'static str {
    match (read_only, is_away) {
        (true, _) => "off: this console is read-only (console.read_only)",
        (false, true) => "off while the store of the queues does not answer",
        (false, false) => "",
    }
}

/// The sum of all states, as an equation with its numbers.
fn conservation(activity: &pb::QueueActivity) -> Section {
    let states = [
        ("ready", activity.pending),
        ("invisible", activity.invisible),
        ("running", activity.running),
        ("errored", activity.errored),
        ("completed", activity.completed),
        ("canceled", activity.canceled),
    ];
    let all: Option<i64> = states.iter().map(|(_, messages)| *messages).sum();
    let terms: Vec<String> = states.iter().map(|(state, messages)| format!("{} {state}", count(*messages))).collect();
    let code = format!("{} kept = {}", count(all), terms.join(" + "));
    Section { title: "Where every kept message is".to_owned(), code, ..Section::default() }
}

fn shell_section(calls: &InProcessClient, name: &str) -> Section {
    let commands = ["activity", "stats"].map(|verb| format!("queue {verb} {}", shell_word(name)));
    calls.shell.section(&commands, GET_ACTIVITY, &serde_json::json!({ "queue": name }))
}
