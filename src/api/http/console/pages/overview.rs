//! The overview: what needs me?

use prost_types::Timestamp;
use tonic::Status;

use super::chart;
use super::methods::LIST_ACTIVITY;
use super::queue_counts::{QUEUE_COUNTERS, earliest};
use crate::http::console::action;
use crate::http::console::format::{self, UNKNOWN, count, rate, span};
use crate::http::console::in_process_client::InProcessClient;
use crate::http::console::query::{PageQuery, link, one_of};
use crate::http::console::view::{
    ActionLink, AgeChip, AttentionRow, ColumnHead, FRESH_SECONDS, Fact, FilterForm, FormField, NoteTime, Page,
    PageFailure, PageNotice, Section, Sparkline, TableCell, TableRow, TableView, TextLink, cell, number, reason_name,
};
use tallystone_domain::shell_word::shell_word;
use tallystone_proto::queue::v1 as pb;

/// The queues of one page.
const PAGE_ROWS: i32 = 100;
/// The queues that need attention and are shown before the table.
const ATTENTION_ROWS: i32 = 20;

/// The part with the reasons for attention, in live updates.
pub const ATTENTION_PART: &str = "attention";

/// The part with the age of the sums, in live updates.
const SUMS_AGE_PART: &str = "sums-age";

/// The column of the lines over the last hour.
const LAST_HOUR: &str = "In, last hour";

/// The columns that sort, with their orders; the first is that of a page whose address names none.
const ORDERS: [(&str, pb::ActivityOrder); 8] = [
    ("name", pb::ActivityOrder::Name),
    ("attention", pb::ActivityOrder::Attention),
    ("pending", pb::ActivityOrder::Pending),
    ("errored", pb::ActivityOrder::Errored),
    ("in", pb::ActivityOrder::In),
    ("out", pb::ActivityOrder::Out),
    ("fail", pb::ActivityOrder::Fail),
    ("oldest", pb::ActivityOrder::Oldest),
];

/// The reading of all queues that a page shows.
pub struct OverviewReading {
    /// The rows that the query names.
    pub listed: pb::ListQueueActivityResponse,
    /// The first rows of those that need attention.
    urgent: pb::ListQueueActivityResponse,
}

impl OverviewReading {
    /// The age of the rows. That there is no queue is as of the answer.
    pub fn as_of(&self) -> Option<Timestamp> {
        let rows = &self.listed.queues;
        match &self.listed.totals {
            Some(totals) if totals.queues > 0 && rows.is_empty() => totals.as_of,
            // A row that was not read yet has no numbers, and says so itself.
            Some(totals) if totals.queues > 0 => earliest(rows.iter().map(|row| row.as_of).filter(Option::is_some)),
            _ => self.listed.server_time, // there is no number of a queue
        }
    }

    /// Says how old the sums are, if they are not as fresh as the rows: queues that are not shown are read in turn.
    fn sums_age(&self) -> Section {
        let totals = self.listed.totals.unwrap_or_default();
        let age = totals.as_of.as_ref().zip(self.listed.server_time.as_ref());
        let age = age.map(|(as_of, now)| ((format::millis(now) - format::millis(as_of)) / 1_000).max(0));
        let text = match age {
            _ if totals.queues == 0 => None,
            Some(..=FRESH_SECONDS) => None,
            Some(age) => Some(format!(
                "Sums and attention have numbers that are up to {} old: queues that are not shown are read in turn.",
                format::seconds(age)
            )),
            None => Some(
                "Some queues have not been read yet. Sums are not known, and attention may lack a queue.".to_owned(),
            ),
        };
        Section { part: SUMS_AGE_PART, prose: text.into_iter().collect(), ..Section::default() }
    }
}

/// A number of a queue, as a cell or a fact shows it.
pub struct QueueNumber {
    pub label: &'static str,
    pub testid: &'static str,
    /// Its name in live updates.
    pub live: &'static str,
    pub text: String,
    /// Whether it says that something went wrong.
    pub is_bad: bool,
}

/// Asks for what the page shows.
pub async fn read(calls: &InProcessClient, query: &PageQuery) -> Result<OverviewReading, Status> {
    let wanted = pb::ListQueueActivityRequest { page_size: ATTENTION_ROWS, ..Default::default() };
    let (listed, urgent) = tokio::join!(activities(calls, query), calls.ask(LIST_ACTIVITY, &wanted));
    Ok(OverviewReading { listed: listed?, urgent: urgent? })
}

/// Asks for the rows that a query names.
async fn activities(calls: &InProcessClient, query: &PageQuery) -> Result<pb::ListQueueActivityResponse, Status> {
    let sort = one_of("sort", query.text("sort"), &ORDERS.map(|(name, _)| name))?;
    let order = ORDERS.into_iter().find(|(name, _)| *name == sort).map_or(pb::ActivityOrder::Name, |(_, order)| order);
    let request = pb::ListQueueActivityRequest {
        prefix: query.text("filter").to_owned(),
        order: order.into(),
        page_size: PAGE_ROWS,
        page_token: query.text("page").to_owned(),
    };
    calls.ask(LIST_ACTIVITY, &request).await
}

/// The page.
pub async fn page(calls: &InProcessClient, query: &PageQuery) -> Result<Page, PageFailure> {
    let read = read(calls, query).await?;
    let [away, attention, sums_age] = parts(&read, calls.queues_away().as_deref());
    let as_of = read.as_of();
    let listed = read.listed;
    let totals = listed.totals.unwrap_or_default();
    let mut page = Page::new("./", "Queues");
    let is_away = calls.queues_away().is_some();
    page.age = Some(AgeChip::of("store totals", as_of.as_ref(), listed.server_time.as_ref(), is_away));
    if let Some(done) = action::done(query) {
        page.notice("", done);
    }
    let (filter, sort) = (query.text("filter"), query.text("sort"));
    page.live = Some(link("live", &[("filter", filter), ("sort", sort), ("page", query.text("page"))]));
    page.sections.extend([away, attention]);
    page.sections.push(Section { facts: sums(&totals), ..Section::default() });
    page.sections.push(sums_age);
    let mut section =
        Section { title: "All queues".to_owned(), filter: Some(filter_form(filter, sort)), ..Section::default() };
    if listed.queues.is_empty() {
        section.empty = if filter.is_empty() {
            format!("No queues yet. `{}` makes one.", calls.shell.command("queue create mail"))
        } else {
            format!("No queue begins with {filter:?}.")
        };
    } else {
        let names = listed.queues.iter().map(|queue| format!("{}~enqueued", queue.queue)).collect();
        let (lines, lines_as_of) = chart::sparklines(calls, QUEUE_COUNTERS, names).await;
        section.note = "lines".to_owned();
        section.note_time = Some(NoteTime(lines_as_of));
        let mut lines = lines.into_iter();
        let rows = listed.queues.iter().map(|queue| row(queue, lines.next().flatten())).collect();
        section.table = Some(TableView { columns: columns(filter, sort), rows });
    }
    if !listed.next_page_token.is_empty() {
        let href = link("", &[("filter", filter), ("sort", sort), ("page", &listed.next_page_token)]);
        section.links.push(ActionLink { href, text: "Next page", enabled: true, ..ActionLink::default() });
    }
    page.sections.push(section);
    let prefix = if filter.is_empty() { String::new() } else { format!(" {}", shell_word(filter)) };
    let commands = [format!("queue activity{prefix}")];
    page.sections.push(calls.shell.section(&commands, LIST_ACTIVITY, &serde_json::json!({ "prefix": filter })));
    Ok(page)
}

/// The parts of the page that live updates replace.
pub fn parts(read: &OverviewReading, away: Option<&str>) -> [Section; 3] {
    // While the store is away, all numbers are old, and the page says so.
    let sums_age = away.map_or_else(|| read.sums_age(), |_| Section { part: SUMS_AGE_PART, ..Section::default() });
    [away_part(away), attention(&read.urgent), sums_age]
}

/// Says that the numbers are old, while the store of the queues is away.
pub fn away_part(away: Option<&str>) -> Section {
    let notice =
        |why| PageNotice { class: "bad", testid: "", text: format!("The numbers are the last ones known: {why}") };
    Section { part: "away", notices: away.map(notice).into_iter().collect(), ..Section::default() }
}

fn attention(urgent: &pb::ListQueueActivityResponse) -> Section {
    let rows = urgent.queues.iter().flat_map(|queue| queue.attention.iter().map(move |reason| (queue, reason)));
    let attention: Vec<AttentionRow> = rows.map(|(queue, reason)| attention_row(&queue.queue, reason)).collect();
    let all = urgent.totals.as_ref().map_or(0, |totals| totals.attention);
    let note = match all {
        0 => String::new(),
        1 => "1 queue".to_owned(),
        all => format!("{all} queues"),
    };
    let empty = if attention.is_empty() { "Nothing needs attention.".to_owned() } else { String::new() };
    let href = link("", &[("sort", "attention")]);
    let by_urgency =
        ActionLink { href, text: "All of them first in the table", enabled: true, ..ActionLink::default() };
    let links = if all > i64::from(ATTENTION_ROWS) { vec![by_urgency] } else { Vec::new() };
    Section { part: ATTENTION_PART, title: "Attention".to_owned(), note, attention, empty, links, ..Section::default() }
}

/// A reason, with the next step.
pub fn attention_row(queue: &str, reason: &pb::Attention) -> AttentionRow {
    let name = reason_name(reason.reason);
    let step = match name {
        "MESSAGES_ERRORED" => {
            TextLink { href: link("messages", &[("queue", queue), ("state", "errored")]), text: "Messages".to_owned() }
        }
        _ => TextLink { href: format!("{}#explain", link("queue", &[("name", queue)])), text: "Explain".to_owned() },
    };
    let runbook = TextLink { href: link("runbook", &[("page", &reason.runbook)]), text: "Runbook".to_owned() };
    AttentionRow {
        reason: name,
        queue: queue.to_owned(),
        href: link("queue", &[("name", queue)]),
        text: reason.text.clone(),
        steps: vec![step, runbook],
    }
}

/// The sums over all queues, with the names of their live numbers.
pub fn sums(totals: &pb::ActivityTotals) -> Vec<Fact> {
    let fact = |label, live, value: String| Fact { label, live, value, ..Fact::default() };
    vec![
        fact("Queues", "queues", count(Some(totals.queues))),
        fact("Ready", "sum-pending", count(totals.pending)),
        fact("Running", "sum-running", count(totals.running)),
        Fact {
            class: if totals.errored > Some(0) { "bad" } else { "" },
            ..fact("Errored", "sum-errored", count(totals.errored))
        },
        fact("In per second", "sum-in", rate(totals.in_per_second)),
        fact("Out per second", "sum-out", rate(totals.out_per_second)),
        fact("Oldest ready", "sum-oldest", span(totals.oldest_ready_age.as_ref())),
    ]
}

fn filter_form(filter: &str, sort: &str) -> FilterForm {
    let prefix = FormField {
        label: "Name begins with".to_owned(),
        name: "filter",
        value: filter.to_owned(),
        ..FormField::default()
    };
    let sort = FormField { name: "sort", value: sort.to_owned(), hidden: true, ..FormField::default() };
    FilterForm { action: "./", fields: vec![prefix, sort], submit: "Filter" }
}

fn columns(filter: &str, sort: &str) -> Vec<ColumnHead> {
    let head = |(text, order): (&'static str, &'static str)| ColumnHead {
        text,
        number: !["Queue", LAST_HOUR].contains(&text),
        href: if order.is_empty() { String::new() } else { link("", &[("filter", filter), ("sort", order)]) },
        sorted: match order {
            "" => "",
            "name" if sort.is_empty() || sort == "name" => "ascending",
            order if order == sort => "descending",
            _ => "", // another column
        },
    };
    [
        ("Queue", "name"),
        ("Ready", "pending"),
        ("Invisible", ""),
        ("Running", ""),
        ("Errored", "errored"),
        ("In/s", "in"),
        ("Out/s", "out"),
        ("Fail/s", "fail"),
        ("Oldest", "oldest"),
        ("Drains in", ""),
        (LAST_HOUR, ""),
    ]
    .map(head)
    .into()
}

/// The numbers of a queue.
pub fn numbers(queue: &pb::QueueActivity) -> [QueueNumber; 9] {
    let number = |label, testid, live, text| QueueNumber { label, testid, live, text, is_bad: false };
    let (errored, fail) = (queue.errored > Some(0), queue.fail_per_second > Some(0.0));
    [
        number("Ready", "depth-pending", "pending", count(queue.pending)),
        number("Invisible", "depth-invisible", "invisible", count(queue.invisible)),
        number("Running", "depth-running", "running", count(queue.running)),
        QueueNumber { is_bad: errored, ..number("Errored", "depth-errored", "errored", count(queue.errored)) },
        number("In/s", "rate-in", "in", rate(queue.in_per_second)),
        number("Out/s", "rate-out", "out", rate(queue.out_per_second)),
        QueueNumber { is_bad: fail, ..number("Fail/s", "rate-fail", "fail", rate(queue.fail_per_second)) },
        number("Oldest", "oldest-age", "oldest", span(queue.oldest_ready_age.as_ref())),
        number("Drains in", "drain-time", "drain", span(queue.time_to_drain.as_ref())),
    ]
}

fn row(queue: &pb::QueueActivity, last_hour: Option<Sparkline>) -> TableRow {
    let name = TableCell { href: link("queue", &[("name", &queue.queue)]), ..cell("Queue", &queue.queue) };
    let cells = numbers(queue).map(|QueueNumber { label, testid, live, text, is_bad }| {
        let class = if is_bad { "bad-text" } else { "" };
        TableCell { testid, live, class, ..number(label, text) }
    });
    let text = if last_hour.is_some() { "" } else { UNKNOWN };
    let last_hour = TableCell { sparkline: last_hour, ..cell(LAST_HOUR, text) };
    let cells = [name].into_iter().chain(cells).chain([last_hour]).collect();
    TableRow { testid: "queue-row", queue: queue.queue.clone(), cells, ..TableRow::default() }
}
