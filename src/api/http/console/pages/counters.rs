//! Counters: how much, as of when?

use tonic::{Code, Status};

use super::chart::{self, DrawnCounter};
use super::methods::{BATCH_GET_COUNTS, GET_COUNT, LIST_COUNTERS, LIST_EVENTS, LIST_NAMESPACES};
use crate::http::console::format::{UNKNOWN, whole};
use crate::http::console::in_process_client::InProcessClient;
use crate::http::console::query::{PageQuery, link};
use crate::http::console::view::{
    ActionLink, AgeChip, Fact, FilterForm, FormField, Page, PageFailure, Section, TableCell, TableRow, TableView,
    TextLink, cell, heads, number, time_cell, time_fact,
};
use tallystone_domain::shell_word::shell_word;
use tallystone_proto::admin::v1 as admin;
use tallystone_proto::counter::v1 as pb;

/// The counters and namespaces of one page.
const PAGE_ROWS: i32 = 100;
/// The newest events of a counter that its page shows.
const EVENT_ROWS: i32 = 50;

/// The namespaces, or the counters of one.
pub async fn list(calls: &InProcessClient, query: &PageQuery) -> Result<Page, PageFailure> {
    let namespace = query.text("ns");
    if namespace.is_empty() {
        return namespaces(calls, query).await;
    }
    let prefix = query.text("prefix");
    let request = pb::ListCountersRequest {
        namespace: namespace.to_owned(),
        prefix: prefix.to_owned(),
        page_size: PAGE_ROWS,
        page_token: query.text("page").to_owned(),
    };
    let listed: Result<pb::ListCountersResponse, Status> = calls.ask(LIST_COUNTERS, &request).await;
    let mut page = Page::new("counters", namespace);
    page.crumbs = vec![TextLink { href: "counters".to_owned(), text: "Counters".to_owned() }];
    let fields = vec![
        FormField { name: "ns", value: namespace.to_owned(), hidden: true, ..FormField::default() },
        FormField {
            label: "Name begins with".to_owned(),
            name: "prefix",
            value: prefix.to_owned(),
            ..FormField::default()
        },
    ];
    let mut section =
        Section { filter: Some(FilterForm { action: "counters", fields, submit: "Filter" }), ..Section::default() };
    match listed {
        Err(status) if status.code() == Code::NotFound => return Err(status.into()),
        // Best-effort counters are not listed, and a key may lack the role to list others.
        Err(status) => section.empty = status.message().to_owned(),
        Ok(listed) if listed.counters.is_empty() => {
            section.empty = format!("No counter of {namespace} begins with {prefix:?}.");
        }
        Ok(listed) => {
            let rows = listed.counters.iter().map(|counter| row(namespace, counter)).collect();
            section.table = Some(TableView { columns: heads(&["Counter", "#Count", "As of"]), rows });
            if !listed.next_page_token.is_empty() {
                let href =
                    link("counters", &[("ns", namespace), ("prefix", prefix), ("page", &listed.next_page_token)]);
                section.links.push(ActionLink { href, text: "Next page", enabled: true, ..ActionLink::default() });
            }
        }
    }
    page.sections.push(section);
    let fields = vec![
        FormField { name: "ns", value: namespace.to_owned(), hidden: true, ..FormField::default() },
        FormField { label: "Counter".to_owned(), name: "name", ..FormField::default() },
    ];
    page.sections.push(Section {
        title: "Open by name".to_owned(),
        note: "also where counters cannot be listed".to_owned(),
        filter: Some(FilterForm { action: "counter", fields, submit: "Open" }),
        ..Section::default()
    });
    Ok(page)
}

fn row(namespace: &str, counter: &pb::CounterSummary) -> TableRow {
    let href = link("counter", &[("ns", namespace), ("name", &counter.counter_name)]);
    let cells = vec![
        TableCell { href, ..cell("Counter", &counter.counter_name) },
        number("Count", whole(counter.count)),
        time_cell("As of", counter.as_of.as_ref()),
    ];
    TableRow { cells, ..TableRow::default() }
}

async fn namespaces(calls: &InProcessClient, query: &PageQuery) -> Result<Page, PageFailure> {
    let request = admin::ListNamespacesRequest { page_size: PAGE_ROWS, page_token: query.text("page").to_owned() };
    let listed: Result<admin::ListNamespacesResponse, Status> = calls.ask(LIST_NAMESPACES, &request).await;
    let mut page = Page::new("counters", "Counters");
    page.lead = "Choose a namespace.".to_owned();
    let row = |namespace: &admin::Namespace| TableRow {
        cells: vec![
            TableCell { href: link("counters", &[("ns", &namespace.name)]), ..cell("Namespace", &namespace.name) },
            TableCell {
                href: link("control", &[("kind", "namespace"), ("name", &namespace.name)]),
                ..cell("Settings", "Changes")
            },
        ],
        ..TableRow::default()
    };
    let field = FormField { label: "Namespace".to_owned(), name: "ns", ..FormField::default() };
    let filter = Some(FilterForm { action: "counters", fields: vec![field], submit: "Open" });
    let mut section = Section { filter, ..Section::default() };
    match listed {
        // Its counters may still be open to the key, by their names.
        Err(status) if status.code() == Code::PermissionDenied => {
            section.empty = "Your key may not list namespaces. Open one by its name.".to_owned();
        }
        Err(status) => return Err(status.into()),
        Ok(listed) if listed.namespaces.is_empty() => section.empty = "No namespaces yet.".to_owned(),
        Ok(listed) => {
            let rows = listed.namespaces.iter().map(row).collect();
            section.table = Some(TableView { columns: heads(&["Namespace", "Settings"]), rows });
            if !listed.next_page_token.is_empty() {
                let href = link("counters", &[("page", &listed.next_page_token)]);
                section.links.push(ActionLink { href, text: "Next page", enabled: true, ..ActionLink::default() });
            }
        }
    }
    page.sections.push(section);
    Ok(page)
}

/// The page of a counter, with up to 8 others beside it.
pub async fn one(calls: &InProcessClient, query: &PageQuery) -> Result<Page, PageFailure> {
    let (namespace, name) = (query.text("ns"), query.text("name"));
    let request =
        pb::GetCountRequest { namespace: namespace.to_owned(), counter_name: name.to_owned(), ..Default::default() };
    // At once, so that a store that does not answer holds the page up once.
    let (reading, over_time, beside, events) = tokio::join!(
        calls.ask::<pb::GetCountResponse>(GET_COUNT, &request),
        over_time(calls, query),
        beside(calls, namespace, query.text("with")),
        events(calls, namespace, name)
    );
    let reading = reading?;
    let mut page = Page::new("counters", name);
    let crumb = |href: String, text: &str| TextLink { href, text: text.to_owned() };
    page.crumbs =
        vec![crumb("counters".to_owned(), "Counters"), crumb(link("counters", &[("ns", namespace)]), namespace)];
    page.age = Some(AgeChip::of(
        "counter",
        reading.as_of.as_ref(),
        reading.checked_at.as_ref().or(reading.as_of.as_ref()),
        false,
    ));
    let fact = |label, value: String| Fact { label, value, ..Fact::default() };
    let value = if reading.never_written { UNKNOWN.to_owned() } else { whole(reading.count) };
    let exactness = match pb::Exactness::try_from(reading.exactness).unwrap_or_default() {
        pb::Exactness::Unspecified => UNKNOWN,
        pb::Exactness::ExactAsOf => "exact as of its time",
        pb::Exactness::UpToDate => "up to date",
        pb::Exactness::Estimate => "an estimate",
        pb::Exactness::Partial => "a part",
    };
    let facts = vec![
        fact("Count", value),
        fact("Exactness", exactness.to_owned()),
        time_fact("As of", reading.as_of.as_ref()),
        time_fact("Last write", reading.last_write_time.as_ref()),
    ];
    page.sections.push(Section { facts, class: "plain", ..Section::default() });
    if reading.never_written {
        page.notice("", "Nothing was ever added to this counter.");
    }
    page.sections.push(over_time);
    page.sections.extend(beside);
    page.sections.push(events);
    let commands = [format!("counter get -n {} {}", shell_word(namespace), shell_word(name))];
    let body = serde_json::json!({ "namespace": namespace, "counter_name": name });
    page.sections.push(calls.shell.section(&commands, GET_COUNT, &body));
    Ok(page)
}

/// The section of what was added over time.
async fn over_time(calls: &InProcessClient, query: &PageQuery) -> Section {
    let (namespace, name) = (query.text("ns"), query.text("name"));
    let counters = vec![DrawnCounter { label: "Added", class: "one", name: name.to_owned() }];
    let mut section = chart::section(calls, "Over time", namespace, counters, query.text("range")).await;
    let with = query.text("with");
    section.links = chart::range_links(query.text("range"), |range| {
        link("counter", &[("ns", namespace), ("name", name), ("with", with), ("range", range)])
    });
    section
}

async fn beside(calls: &InProcessClient, namespace: &str, with: &str) -> Option<Section> {
    if with.is_empty() {
        return None;
    }
    let counter_names =
        with.split(',').map(str::trim).filter(|name| !name.is_empty()).take(8).map(str::to_owned).collect();
    let request = pb::BatchGetCountsRequest { namespace: namespace.to_owned(), counter_names, ..Default::default() };
    let mut section = Section { title: "Beside it".to_owned(), ..Section::default() };
    let answer: Result<pb::BatchGetCountsResponse, Status> = calls.ask(BATCH_GET_COUNTS, &request).await;
    match answer {
        Err(status) => section.empty = format!("Not known: {}", status.message()),
        Ok(answer) => {
            let row = |result: pb::GetResult| {
                let reading = result.reading.unwrap_or_default();
                let count = if result.error.is_some() || reading.never_written {
                    UNKNOWN.to_owned()
                } else {
                    whole(reading.count)
                };
                let href = link("counter", &[("ns", namespace), ("name", &result.counter_name)]);
                let cells = vec![
                    TableCell { href, ..cell("Counter", result.counter_name) },
                    number("Count", count),
                    time_cell("As of", reading.as_of.as_ref()),
                ];
                TableRow { cells, ..TableRow::default() }
            };
            let rows = answer.results.into_iter().map(row).collect();
            section.table = Some(TableView { columns: heads(&["Counter", "#Count", "As of"]), rows });
        }
    }
    Some(section)
}

async fn events(calls: &InProcessClient, namespace: &str, name: &str) -> Section {
    let request = pb::ListCountEventsRequest {
        namespace: namespace.to_owned(),
        counter_name: name.to_owned(),
        page_size: EVENT_ROWS,
        ..Default::default()
    };
    let mut section = Section { title: "Events".to_owned(), note: "from the log".to_owned(), ..Section::default() };
    let answer: Result<pb::ListCountEventsResponse, Status> = calls.ask(LIST_EVENTS, &request).await;
    match answer {
        Err(status) => section.empty = status.message().to_owned(),
        Ok(answer) if answer.events.is_empty() => section.empty = "The log has no event of it.".to_owned(),
        Ok(answer) => {
            // A counter has adds and clears, or totals of others.
            let is_total = |event: &pb::CountEvent| event.kind == i32::from(pb::EventKind::Total);
            let amount = if answer.events.iter().all(is_total) { "#Total" } else { "#Delta" };
            let row = |event: pb::CountEvent| {
                let kind = match pb::EventKind::try_from(event.kind).unwrap_or_default() {
                    pb::EventKind::Unspecified => UNKNOWN,
                    pb::EventKind::Add => "add",
                    pb::EventKind::Clear => "clear",
                    pb::EventKind::Void => "void",
                    pb::EventKind::Total => "total",
                };
                let cells = vec![
                    time_cell("Time", event.event_time.as_ref()),
                    cell("Kind", kind),
                    number(amount.trim_start_matches('#'), whole(event.delta)),
                ];
                TableRow { cells, ..TableRow::default() }
            };
            let rows = answer.events.into_iter().map(row).collect();
            section.table = Some(TableView { columns: heads(&["Time", "Kind", amount]), rows });
        }
    }
    section
}
