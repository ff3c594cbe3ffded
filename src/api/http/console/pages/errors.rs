//! The errors of a queue by their signatures, from its counters: the most frequent ones.

use prost_types::Timestamp;
use tonic::Status;

use super::methods::LIST_COUNTERS;
use super::queue_counts::{DatedCounts, QUEUE_COUNTERS, queue_counts};
use crate::http::console::ask::ConsoleCalls;
use crate::http::console::query::link;
use crate::http::console::view::{ActionLink, NoteTime, Section, TableRow, TableView, cell, heads, number};
use crate::http::console::words::count;
use tallystone_domain::queue::QueueName;
use tallystone_domain::queue::counter_names::{counter_name, unescaped};
use tallystone_proto::counter::v1 as pb;

/// The signatures that are shown.
const ROWS: usize = 10;
/// The signatures among which the most frequent ones are found.
const LISTED: i32 = 1_000;
const FAILED: &str = "failed~error=";

/// The section, which is left out of the page of a queue without errors.
pub async fn section(calls: &ConsoleCalls, queue: &str) -> Section {
    let mut section = Section::default();
    let Ok(name) = QueueName::new(queue) else { return section };
    match groups(calls, &name).await {
        Ok((rows, _)) if rows.is_empty() => return section,
        Ok((rows, as_of)) => {
            section.note = "since the queue was created".to_owned();
            section.note_time = Some(NoteTime(as_of));
            let columns = heads(&["Signature", "#Failed attempts", "#Out of attempts"]);
            section.table = Some(TableView { columns, rows });
            let href = link("messages", &[("queue", queue), ("state", "errored")]);
            section.links = vec![ActionLink { href, text: "Errored messages", enabled: true, ..ActionLink::default() }];
        }
        Err(status) => section.empty = format!("Not known: {}", status.message()),
    }
    Section { title: "Errors".to_owned(), ..section }
}

/// A row for each of the most frequent signatures, and their age.
async fn groups(calls: &ConsoleCalls, queue: &QueueName) -> Result<(Vec<TableRow>, Option<Timestamp>), Status> {
    let prefix = counter_name(queue, FAILED);
    let request = pb::ListCountersRequest {
        namespace: QUEUE_COUNTERS.to_owned(),
        prefix: prefix.clone(),
        page_size: LISTED,
        ..Default::default()
    };
    let mut failed = calls.ask::<pb::ListCountersResponse>(LIST_COUNTERS, &request).await?.counters;
    if failed.is_empty() {
        return Ok((Vec::new(), None));
    }
    failed.sort_by_key(|summary| std::cmp::Reverse(summary.count));
    failed.truncate(ROWS);
    let signature = |summary: &pb::CounterSummary| summary.counter_name.replacen(&prefix, "", 1);
    let errored = failed.iter().map(|summary| counter_name(queue, &format!("errored~error={}", signature(summary))));
    // Both numbers from one reading: a list may be behind it.
    let names = failed.iter().map(|summary| summary.counter_name.clone()).chain(errored);
    let DatedCounts { counts: mut tries, as_of } = queue_counts(calls, names.collect()).await?;
    let ends = tries.split_off(failed.len().min(tries.len()));
    let row = |(summary, (tried, ended)): (&pb::CounterSummary, (Option<i64>, Option<i64>))| {
        let cells = vec![
            cell("Signature", unescaped(&signature(summary))),
            number("Failed attempts", count(tried)),
            number("Out of attempts", count(ended)),
        ];
        TableRow { testid: "error-group", cells, ..TableRow::default() }
    };
    Ok((failed.iter().zip(tries.into_iter().zip(ends)).map(row).collect(), as_of))
}
