//! The audit: who did what?

use super::methods::LIST_ADMIN_ACTIONS;
use crate::http::console::format::or_unknown;
use crate::http::console::in_process_client::InProcessClient;
use crate::http::console::query::{PageQuery, link};
use crate::http::console::view::{
    ActionLink, FilterForm, FormField, Page, PageFailure, Section, TableCell, TableRow, TableView, cell, heads,
    time_cell,
};
use tallystone_proto::admin::v1 as pb;

/// The acts of one page.
const PAGE_ROWS: i32 = 100;

/// The page.
pub async fn page(calls: &InProcessClient, query: &PageQuery) -> Result<Page, PageFailure> {
    let prefix = query.text("target");
    let request = pb::ListAdminActionsRequest {
        target_prefix: prefix.to_owned(),
        page_size: PAGE_ROWS,
        page_token: query.text("page").to_owned(),
    };
    let listed: pb::ListAdminActionsResponse = calls.ask(LIST_ADMIN_ACTIONS, &request).await?;
    let mut page = Page::new("audit", "Audit");
    page.age = Some(calls.live_age());
    page.lead = "What operators did at this server, newest first.".to_owned();
    let target = FormField {
        label: "Target begins with".to_owned(),
        name: "target",
        value: prefix.to_owned(),
        ..FormField::default()
    };
    let mut section = Section {
        filter: Some(FilterForm { action: "audit", fields: vec![target], submit: "Filter" }),
        ..Section::default()
    };
    if listed.actions.is_empty() {
        section.empty = "Nothing was recorded.".to_owned();
    } else {
        let rows = listed.actions.iter().map(row).collect();
        section.table = Some(TableView { columns: heads(&["When", "Who", "What", "Target", "Why", "Outcome"]), rows });
    }
    if !listed.next_page_token.is_empty() {
        let href = link("audit", &[("target", prefix), ("page", &listed.next_page_token)]);
        section.links.push(ActionLink { href, text: "Next page", enabled: true, ..ActionLink::default() });
    }
    page.sections.push(section);
    Ok(page)
}

fn row(act: &pb::AdminAction) -> TableRow {
    let target = format!("{} {}", act.target, act.part);
    let cells = vec![
        time_cell("When", act.time.as_ref()),
        cell("Who", or_unknown(&act.actor)),
        cell("What", &act.action),
        cell("Target", or_unknown(target.trim())),
        cell("Why", or_unknown(&act.reason)),
        TableCell { class: if act.outcome == "OK" { "" } else { "bad-text" }, ..cell("Outcome", &act.outcome) },
    ];
    TableRow { testid: "audit-row", cells, ..TableRow::default() }
}
