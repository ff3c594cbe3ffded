//! Health: can I believe the numbers?

use tonic::Status;

use super::methods::GET_STATUS;
use crate::http::console::format::{size, span, whole};
use crate::http::console::in_process_client::InProcessClient;
use crate::http::console::view::{AgeChip, Fact, Page, PageFailure, Section, TableRow, TableView, cell, heads, number};
use tallystone_proto::admin::v1 as pb;

/// The page.
pub async fn page(calls: &InProcessClient) -> Result<Page, PageFailure> {
    let answer: Result<pb::GetStatusResponse, Status> = calls.ask(GET_STATUS, &pb::GetStatusRequest {}).await;
    let status = answer?;
    let mut page = Page::new("health", "Health");
    page.age = Some(AgeChip::of("live", status.server_time.as_ref(), status.server_time.as_ref(), false));
    for problem in &status.problems {
        page.notice("bad", problem);
    }
    if status.problems.is_empty() {
        page.lead = "No problems.".to_owned();
    }
    let fact = |label, value: String| Fact { label, value, ..Fact::default() };
    let mut facts = vec![
        fact("State", if status.ready { "ready" } else { "not ready" }.to_owned()),
        fact("Version", status.version.clone()),
        fact("Up for", span(status.up.as_ref())),
    ];
    // The servers of a fleet share counters, queues, or both.
    if let Some(fleet) = status.fleet.as_ref().or(status.queue_fleet.as_ref()) {
        facts.push(fact("Servers", whole(fleet.members)));
        facts.push(fact("Own lease ends in", span(fleet.lease_left.as_ref())));
    }
    page.sections.push(Section { facts, class: "plain", ..Section::default() });
    page.sections.push(stores(&status));
    page.sections.extend(memory(&status));
    page.sections.extend(queue_memory(&status));
    page.sections.push(datasets(&status));
    page.sections.push(calls.shell.section(&["status".to_owned()], GET_STATUS, &serde_json::json!({})));
    Ok(page)
}

fn stores(status: &pb::GetStatusResponse) -> Section {
    let row = |store: &pb::StoreStatus| {
        let state = match (store.failure.as_str(), store.refusal.as_str(), store.full) {
            ("", "", false) => "answers".to_owned(),
            ("", "", true) => "full".to_owned(),
            ("", refusal, _) => format!("does not serve: {refusal}"),
            (failure, _, _) => failure.to_owned(),
        };
        let bytes =
            |bytes: i64| if bytes == 0 { crate::http::console::format::UNKNOWN.to_owned() } else { size(bytes) };
        let cells = vec![
            cell("Store", &store.store),
            cell("State", state),
            number("Last answer", format!("{} ago", span(store.silent.as_ref()))),
            number("On disk", bytes(store.disk_bytes)),
            number("Free", bytes(store.free_bytes)),
        ];
        TableRow { cells, ..TableRow::default() }
    };
    let rows = status.stores.iter().map(row).collect();
    let table = TableView { columns: heads(&["Store", "State", "#Last answer", "#On disk", "#Free"]), rows };
    Section { title: "Stores".to_owned(), table: Some(table), ..Section::default() }
}

/// The memory of queues in this process by what takes it, and its bound; none if their store keeps them elsewhere.
fn queue_memory(status: &pb::GetStatusResponse) -> Option<Section> {
    let memory = status.queues.as_ref()?.memory.as_ref()?;
    let row = |kind: &str, bytes: i64| {
        let cells = vec![cell("Kind", kind), number("Used", size(bytes))];
        TableRow { cells, ..TableRow::default() }
    };
    let mut rows: Vec<TableRow> = memory.parts.iter().map(|part| row(&part.kind, part.bytes)).collect();
    rows.push(row("all", memory.used_bytes));
    rows.push(row("allowed", memory.limit_bytes));
    let table = Some(TableView { columns: heads(&["Kind", "#Used"]), rows });
    Some(Section { title: "Memory of queues".to_owned(), table, ..Section::default() })
}

/// The memory of the servers of stores that keep their data there; none if no store does.
fn memory(status: &pb::GetStatusResponse) -> Option<Section> {
    let row = |(store, memory): (&pb::StoreStatus, &pb::StoreMemory)| {
        let allowed = if memory.limit_bytes == 0 { "no limit".to_owned() } else { size(memory.limit_bytes) };
        let policy = if memory.eviction_policy.is_empty() { "refuses" } else { &memory.eviction_policy };
        let cells = vec![
            cell("Server", &memory.server),
            cell("Store", &store.store),
            number("Used", size(memory.used_bytes)),
            number("Allowed", allowed),
            cell("When full", policy),
        ];
        TableRow { cells, ..TableRow::default() }
    };
    let servers = status.stores.iter().flat_map(|store| store.memory.iter().map(move |memory| (store, memory)));
    let rows: Vec<TableRow> = servers.map(row).collect();
    let columns = heads(&["Server", "Store", "#Used", "#Allowed", "When full"]);
    let section = Section { title: "Memory of stores".to_owned(), ..Section::default() };
    (!rows.is_empty()).then_some(Section { table: Some(TableView { columns, rows }), ..section })
}

fn datasets(status: &pb::GetStatusResponse) -> Section {
    let row = |set: &pb::DatasetStatus| {
        let cells = vec![
            cell("Dataset", &set.dataset),
            number("Counts are old by", span(set.staleness.as_ref())),
            number("Rollups behind by", span(set.watermark_lag.as_ref())),
            number("Writes held", whole(set.holds)),
        ];
        TableRow { cells, ..TableRow::default() }
    };
    let rows: Vec<TableRow> = status.datasets.iter().map(row).collect();
    let table =
        TableView { columns: heads(&["Dataset", "#Counts are old by", "#Rollups behind by", "#Writes held"]), rows };
    Section { title: "Lags of counters".to_owned(), table: Some(table), ..Section::default() }
}
