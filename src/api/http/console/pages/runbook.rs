//! The pages of the runbook that reasons for attention name, as they are in the source.

use tonic::Status;

use crate::api::http::console::query::PageQuery;
use crate::api::http::console::view::{Page, PageFailure, Section};

const PAGES: [(&str, &str); 6] = [
    ("docs/runbook/nobody-dequeues.md", include_str!("../../../../../docs/runbook/nobody-dequeues.md")),
    ("docs/runbook/queue-blocked.md", include_str!("../../../../../docs/runbook/queue-blocked.md")),
    ("docs/runbook/oldest-age-grows.md", include_str!("../../../../../docs/runbook/oldest-age-grows.md")),
    ("docs/runbook/messages-errored.md", include_str!("../../../../../docs/runbook/messages-errored.md")),
    ("docs/runbook/attempts-fail.md", include_str!("../../../../../docs/runbook/attempts-fail.md")),
    ("docs/runbook/queue-counters-behind.md", include_str!("../../../../../docs/runbook/queue-counters-behind.md")),
];

/// The page: a section for each heading, its text as it is written.
pub fn page(query: &PageQuery) -> Result<Page, PageFailure> {
    let found = PAGES.iter().find(|(path, _)| *path == query.text("page"));
    let Some((path, text)) = found else { return Err(Status::not_found("The runbook has no such page.").into()) };
    let (heading, rest) = text.split_once("\n\n").unwrap_or((text, ""));
    let mut page = Page::new("", heading.trim_start_matches("# "));
    page.lead = format!("Runbook: {path}");
    for part in rest.split("## ").filter(|part| !part.trim().is_empty()) {
        let (title, body) = part.split_once('\n').unwrap_or((part, ""));
        let prose = body.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
        page.sections.push(Section { title: title.trim().to_owned(), prose, ..Section::default() });
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::queue::activity::AttentionReason;

    #[test]
    fn every_reason_has_its_page() {
        for reason in AttentionReason::ALL {
            assert!(PAGES.iter().any(|(path, _)| *path == reason.runbook()), "{reason:?}");
        }
    }
}
