//! Changes: who set what of a queue or namespace, newest first.

use super::methods::{LIST_NAMESPACE_CHANGES, LIST_QUEUE_CHANGES};
use crate::http::console::format::or_unknown;
use crate::http::console::in_process_client::InProcessClient;
use crate::http::console::query::{PageQuery, link, one_of};
use crate::http::console::view::{
    ActionLink, Page, PageFailure, Section, TableRow, TableView, TextLink, cell, heads, time_cell,
};
use tallystone_proto::admin::v1 as admin;
use tallystone_proto::queue::v1 as queue;

/// The changes of one page.
const PAGE_ROWS: i32 = 50;
/// The kinds of things that have changes; the first if the query names none.
const KINDS: [&str; 2] = ["queue", "namespace"];

/// The page.
pub async fn page(calls: &InProcessClient, query: &PageQuery) -> Result<Page, PageFailure> {
    let (kind, name) = (query.text("kind"), query.text("name"));
    let page_token = query.text("page").to_owned();
    let kind = one_of("kind", kind, &KINDS)?;
    let is_namespace = kind == "namespace";
    let (rows, next) = if is_namespace {
        let request = admin::ListNamespaceChangesRequest { name: name.to_owned(), page_size: PAGE_ROWS, page_token };
        let answer: admin::ListNamespaceChangesResponse = calls.ask(LIST_NAMESPACE_CHANGES, &request).await?;
        let row = |change: admin::NamespaceChange| {
            row(change.version, change.change_time, &change.actor, &change.reason, &change.differences)
        };
        (answer.changes.into_iter().map(row).collect::<Vec<_>>(), answer.next_page_token)
    } else {
        let request = queue::ListQueueChangesRequest { queue: name.to_owned(), page_size: PAGE_ROWS, page_token };
        let answer: queue::ListQueueChangesResponse = calls.ask(LIST_QUEUE_CHANGES, &request).await?;
        let row = |change: queue::QueueChange| {
            row(change.version, change.change_time, &change.actor, &change.reason, &change.differences)
        };
        (answer.changes.into_iter().map(row).collect(), answer.next_page_token)
    };
    let mut page = if is_namespace { Page::new("counters", name) } else { Page::of_queue(name, "Changes") };
    if is_namespace {
        page.crumbs = vec![TextLink { href: "counters".to_owned(), text: "Counters".to_owned() }];
    }
    page.lead = "Changes of its settings, newest first.".to_owned();
    page.age = Some(calls.live_age());
    let table = TableView { columns: heads(&["When", "Version", "Who", "Why", "What"]), rows };
    let mut section = Section { table: Some(table), ..Section::default() };
    if !next.is_empty() {
        let href = link("control", &[("kind", kind), ("name", name), ("page", &next)]);
        section.links.push(ActionLink { href, text: "Next page", enabled: true, ..ActionLink::default() });
    }
    page.sections.push(section);
    Ok(page)
}

fn row(
    version: u64,
    time: Option<prost_types::Timestamp>,
    actor: &str,
    reason: &str,
    differences: &[String],
) -> TableRow {
    let cells = vec![
        time_cell("When", time.as_ref()),
        cell("Version", version.to_string()),
        cell("Who", or_unknown(actor)),
        cell("Why", or_unknown(reason)),
        cell("What", or_unknown(&differences.join("; "))),
    ];
    TableRow { cells, ..TableRow::default() }
}
