//! The errors of a queue by their signatures, from its counters: the most frequent ones.

use prost_types::Timestamp;
use tonic::Status;

use super::methods::LIST_COUNTERS;
use super::queue_counts::{DatedCounts, QUEUE_COUNTERS, queue_counts};
use crate::http::console::action;
use crate::http::console::format::{UNKNOWN, count};
use crate::http::console::in_process_client::InProcessClient;
use crate::http::console::query::link;
use crate::http::console::view::{ActionLink, NoteTime, Section, TableCell, TableRow, TableView, cell, heads, number};
use tallystone_domain::queue::QueueName;
use tallystone_domain::queue::counter_names::{CountedValue, counter_name, pair_text, unescaped};
use tallystone_proto::counter::v1 as pb;

/// The signatures that are shown.
const ROWS: usize = 10;
/// The signatures among which the most frequent ones are found.
const LISTED: i32 = 1_000;
const FAILED: &str = "failed~error=";
/// The key of signatures in the names of counters.
const ERROR_KEY: &str = "error";

/// The section, which is left out of the page of a queue without errors. Where actions are off, its groups have none.
pub async fn section(calls: &InProcessClient, queue: &str, may_act: bool) -> Section {
    let mut section = Section::default();
    let Ok(name) = QueueName::new(queue) else { return section };
    match groups(calls, &name).await {
        Ok((rows, _)) if rows.is_empty() => return section,
        Ok((rows, as_of)) => {
            section.note = "since the queue was created".to_owned();
            section.note_time = Some(NoteTime(as_of));
            let columns = heads(&["Signature", "#Failed attempts", "#Out of attempts", "Dead letters"]);
            let rows = rows.into_iter().map(|group| row(calls, queue, group, may_act)).collect();
            section.table = Some(TableView { columns, rows });
            let href = link("messages", &[("queue", queue), ("state", "errored")]);
            section.links = vec![ActionLink { href, text: "Errored messages", enabled: true, ..ActionLink::default() }];
        }
        Err(status) => section.empty = format!("Not known: {}", status.message()),
    }
    Section { title: "Errors".to_owned(), ..section }
}

/// The failures of one signature.
struct ErrorGroup {
    /// The signature as the names of counters have it.
    written: String,
    tried: Option<i64>,
    ended: Option<i64>,
}

impl ErrorGroup {
    /// Its signature as workers sent it; none for failures without one, and where the name has only its beginning.
    fn signature(&self) -> Option<String> {
        let signature = unescaped(&self.written);
        let own = CountedValue::Own(signature.as_str().into());
        (pair_text(ERROR_KEY, &own) == format!("{ERROR_KEY}={}", self.written)).then_some(signature)
    }
}

fn row(calls: &InProcessClient, queue: &str, group: ErrorGroup, may_act: bool) -> TableRow {
    let acts = group.signature().filter(|_| may_act).map(|signature| action::of_error(calls, queue, &signature));
    let acts = acts.into_iter().flatten().filter(|(_, lacked)| lacked.is_none());
    let buttons: Vec<ActionLink> = acts.map(|(link, _)| link).collect();
    let text = if buttons.is_empty() { UNKNOWN } else { "" };
    let cells = vec![
        cell("Signature", unescaped(&group.written)),
        number("Failed attempts", count(group.tried)),
        number("Out of attempts", count(group.ended)),
        TableCell { buttons, class: "row-acts", ..cell("Dead letters", text) },
    ];
    TableRow { testid: "error-group", cells, ..TableRow::default() }
}

/// The most frequent signatures, and their age.
async fn groups(calls: &InProcessClient, queue: &QueueName) -> Result<(Vec<ErrorGroup>, Option<Timestamp>), Status> {
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
    let group = |(summary, (tried, ended)): (&pb::CounterSummary, (Option<i64>, Option<i64>))| ErrorGroup {
        written: signature(summary),
        tried,
        ended,
    };
    Ok((failed.iter().zip(tries.into_iter().zip(ends)).map(group).collect(), as_of))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_actions_only_if_its_signature_is_known_in_full() {
        let of = |written: &str| ErrorGroup { written: written.to_owned(), tried: None, ended: None }.signature();
        assert_eq!(of("SmtpDown").as_deref(), Some("SmtpDown"));
        let odd = "time out <50%> ~none";
        let pair = pair_text(ERROR_KEY, &CountedValue::Own(odd.into()));
        assert_eq!(of(pair.trim_start_matches("error=")).as_deref(), Some(odd));
        for other in [CountedValue::None, CountedValue::Other, CountedValue::Own("long ".repeat(40).into())] {
            assert_eq!(of(pair_text(ERROR_KEY, &other).trim_start_matches("error=")), None, "{other:?}");
        }
    }
}
