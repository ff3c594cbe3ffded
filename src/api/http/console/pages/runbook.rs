//! The pages of the runbook, which alerts and reasons for attention name, as they are in the source.

use http::StatusCode;

use crate::http::console::format::next_link;
use crate::http::console::query::{PageQuery, link};
use crate::http::console::view::{Page, PageFailure, Section, TableCell, TableRow, TableView, TextLink, cell, heads};

/// The folder of the pages in the source.
const FOLDER: &str = "docs/runbook/";

/// The letters of an unknown name that a page shows.
const SHOWN_LETTERS: usize = 100;

/// A page by the name of its file.
macro_rules! page {
    ($name:literal) => {
        (concat!("docs/runbook/", $name, ".md"), include_str!(concat!("../../../../../docs/runbook/", $name, ".md")))
    };
}

const PAGES: [(&str, &str); 32] = [
    page!("attempts-fail"),
    page!("audit-finding"),
    page!("background-work-fails"),
    page!("bridge-off"),
    page!("calls-fail"),
    page!("calls-take-too-long"),
    page!("connections-refused"),
    page!("counts-fall-behind"),
    page!("counts-may-be-wrong"),
    page!("counts-stand-still"),
    page!("history-behind"),
    page!("history-gap"),
    page!("issuer-keys"),
    page!("memcached-down"),
    page!("messages-errored"),
    page!("nobody-dequeues"),
    page!("oldest-age-grows"),
    page!("queue-blocked"),
    page!("queue-counters-behind"),
    page!("queue-full"),
    page!("queue-memory"),
    page!("queue-not-worked-off"),
    page!("redis"),
    page!("sealing-falls-behind"),
    page!("server-down"),
    page!("server-lost"),
    page!("slices-kept-back"),
    page!("store-away"),
    page!("store-failed"),
    page!("store-full"),
    page!("tls-certificate"),
    page!("work-lost"),
];

/// The page: a section for each heading, its text as it is written. Without a name, the list of all pages.
pub fn page(query: &PageQuery) -> Result<Page, PageFailure> {
    let name = query.text("page");
    if name.is_empty() {
        return Ok(contents());
    }
    let found = PAGES.iter().find(|(path, _)| *path == name);
    let Some((path, text)) = found else { return Ok(missing(name)) };
    let (heading, rest) = text.split_once("\n\n").unwrap_or((text, ""));
    let mut page = Page::new("", heading.trim_start_matches("# "));
    page.crumbs = vec![TextLink { href: "runbook".to_owned(), text: "Runbook".to_owned() }];
    page.lead = format!("Runbook: {path}");
    for part in rest.split("## ").filter(|part| !part.trim().is_empty()) {
        let (title, body) = part.split_once('\n').unwrap_or((part, ""));
        let lines = body.lines().map(str::trim).filter(|line| !line.is_empty());
        let prose = lines.map(with_own_links).collect();
        page.sections.push(Section { title: title.trim().to_owned(), prose, ..Section::default() });
    }
    Ok(page)
}

/// The page that says that there is no such page, with all those that there are.
fn missing(name: &str) -> Page {
    let shown: String = name.chars().take(SHOWN_LETTERS).collect();
    let mut page = contents();
    page.status = StatusCode::NOT_FOUND;
    page.notice("bad", format!("The runbook has no page {shown:?}. It has these."));
    page
}

fn contents() -> Page {
    let mut page = Page::new("", "Runbook");
    page.lead = "What to do about each alert, and about each reason for attention.".to_owned();
    let row = |(path, text): (&str, &str)| {
        let title = text.lines().next().unwrap_or(path).trim_start_matches("# ").to_owned();
        let name = TableCell { href: link("runbook", &[("page", path)]), ..cell("Page", title) };
        TableRow { cells: vec![name], ..TableRow::default() }
    };
    let rows = PAGES.into_iter().map(row).collect();
    let table = Some(TableView { columns: heads(&["Page"]), rows });
    page.sections.push(Section { table, ..Section::default() });
    page
}

/// A line whose links lead to pages of the console. Links to other documents are their texts alone.
fn with_own_links(line: &str) -> String {
    let mut written = String::new();
    let mut rest = line;
    while let Some((before, text, target, after)) = next_link(rest) {
        written.push_str(before);
        let path = format!("{FOLDER}{target}");
        match PAGES.iter().any(|(known, _)| *known == path) {
            true => written.push_str(&format!("[{text}]({})", link("runbook", &[("page", &path)]))),
            false => written.push_str(text),
        }
        rest = after;
    }
    written + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::console::view::reason_name;
    use tallystone_domain::queue::activity::AttentionReason;
    use tallystone_proto::queue::v1 as wire;

    #[test]
    fn every_reason_has_its_page_which_names_it() {
        let named = |reason: AttentionReason| match reason {
            AttentionReason::WorkLost => wire::AttentionReason::WorkLost,
            AttentionReason::NobodyDequeues => wire::AttentionReason::NobodyDequeues,
            AttentionReason::DequeueBlocked => wire::AttentionReason::DequeueBlocked,
            AttentionReason::QueueFull => wire::AttentionReason::QueueFull,
            AttentionReason::MemoryShort => wire::AttentionReason::MemoryShort,
            AttentionReason::OldestAgeGrows => wire::AttentionReason::OldestAgeGrows,
            AttentionReason::MessagesErrored => wire::AttentionReason::MessagesErrored,
            AttentionReason::AttemptsFail => wire::AttentionReason::AttemptsFail,
            AttentionReason::EnqueueBlocked => wire::AttentionReason::EnqueueBlocked,
            AttentionReason::NumbersOld => wire::AttentionReason::NumbersOld,
        };
        for reason in AttentionReason::ALL {
            let page = PAGES.iter().find(|(path, _)| *path == reason.runbook());
            assert_eq!(reason.name(), reason_name(named(reason).into()));
            let name = format!("`{}`", reason.name());
            assert!(page.is_some_and(|(_, text)| text.contains(&name)), "{name}");
        }
    }

    #[test]
    fn links_lead_to_pages_of_the_console_or_are_their_texts() {
        let line = "In `a[0]` go on with [Redis](redis.md) or [the manual](../operating.md#set-it-up).";
        let found = "In `a[0]` go on with [Redis](runbook?page=docs%2Frunbook%2Fredis.md) or the manual.";
        assert_eq!(with_own_links(line), found);
    }
}
