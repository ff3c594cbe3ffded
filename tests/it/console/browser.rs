//! The console in a real browser, headless: every page at two widths in both themes, and work without scripts.

use std::path::Path;

use serde_json::json;

use super::chromium::{Browser, THEMES, WAIT, WIDTHS};
use super::{done, fill};
use crate::support::harness::{Launch, Server, eventually};

/// The pages, by the names of their screenshots.
pub const PAGES: [(&str, &str); 21] = [
    ("overview", ""),
    ("overview-filtered", "?filter=ma&sort=pending"),
    ("overview-none", "?filter=none"),
    ("queue", "queue?name=mail"),
    ("queue-odd", "queue?name=odd%2Fname%3A50"),
    ("messages", "messages?queue=mail&state=pending"),
    ("messages-errored", "messages?queue=mail&state=errored"),
    ("messages-none", "messages?queue=mail&state=running"),
    ("message", "message?queue=mail&id=m0"),
    ("payload", "payload?queue=mail&id=m0"),
    ("counters", "counters"),
    ("counters-default", "counters?ns=default"),
    ("counter", "counter?ns=default&name=views&with=other"),
    ("experiments", "experiments?baseline=0.2&effect=0.05"),
    ("experiment", "experiment?name=checkout&arms=A,B&metric=bought&planned=20000"),
    ("health", "health"),
    ("control", "control?kind=queue&name=mail"),
    ("audit", "audit"),
    ("act", "act?do=purge&queue=mail"),
    ("runbook", "runbook?page=docs/runbook/messages-errored.md"),
    ("sign-in", "sign-in"),
];

/// A used server that may show payloads, with an experiment.
pub fn shown_server(data: &Path) -> Server {
    let server = Launch::dev(data).env("TALLYSTONE__CONSOLE__SHOW_PAYLOADS", "true").start();
    fill(&server);
    for (counter, delta) in [("A/exposures", 10_000), ("A/bought", 500), ("B/exposures", 10_000), ("B/bought", 700)] {
        let add = json!({"namespace": "default", "counterName": format!("exp/checkout/{counter}"), "delta": delta});
        assert_eq!(server.post("/tallystone.counter.v1.CounterService/AddCount", &add.to_string()).status, 200);
    }
    let is_read = || done(&server, "GetQueueActivity", &json!({"queue": "mail"}))["activity"]["errored"] == json!("1");
    assert!(eventually(WAIT, is_read), "the numbers of the queue are known");
    server
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_page_is_clean_on_wide_and_narrow_screens_in_both_themes() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = shown_server(data.path());
    let browser = Browser::start().await;
    let mut findings = Vec::new();
    for (name, page) in PAGES {
        for width in WIDTHS {
            for theme in THEMES {
                browser.look_like(width, theme).await;
                browser.open(&server, page).await;
                if ["overview", "queue"].contains(&name) {
                    browser.wait_for("[data-testid='live-state'][data-state='live']").await;
                }
                let name = format!("{name}-{width}-{theme}");
                let found = browser.findings(width).await;
                findings.extend(found.into_iter().map(|finding| format!("{name}: {finding}")));
                browser.keep_screenshot(&name).await;
            }
        }
    }
    browser.end().await;
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_console_shows_numbers_and_purges_without_scripts() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = shown_server(data.path());
    let browser = Browser::start().await;
    browser.tell("Emulation.setScriptExecutionDisabled", json!({"value": true})).await;
    browser.open(&server, "queue?name=mail").await;
    let depth = browser.wait_for("[data-testid='depth-pending']").await.text().await.expect("a text");
    assert_eq!(depth, "11");
    browser.open(&server, "act?do=purge&queue=mail").await;
    let count = browser.wait_for("[data-testid='confirm-count']").await.text().await.expect("a text");
    assert_eq!(count, "11");
    for (name, text) in [("input[name='reason']", "maintenance"), ("input[name='typed']", "mail")] {
        browser.wait_for(name).await.send_keys(text).await.expect("a field takes text");
    }
    browser.wait_for("[data-testid='confirm-submit']").await.click().await.expect("a button");
    browser.wait_for(".notice").await;
    let url = browser.session.current_url().await.expect("an address");
    assert!(url.as_str().ends_with("/console/queue?name=mail&done=purge&messages=11"), "{url}");
    browser.end().await;
    let is_empty = || done(&server, "GetDepth", &json!({"queue": "mail"}))["pending"] == json!("0");
    assert!(eventually(WAIT, is_empty), "the queue is purged");
}
