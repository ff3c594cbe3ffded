//! The console in a real browser, headless: every page at two widths in both themes, and work without scripts.

use std::path::Path;
use std::time::Instant;

use serde_json::json;

use super::chromium::{Browser, WAIT, looks};
use super::{CONSOLE_WAITS, done, fill, get};
use crate::support::harness::{Launch, Server, eventually};

/// The pages, by the names of their screenshots.
pub const PAGES: [(&str, &str); 22] = [
    ("overview", ""),
    ("overview-filtered", "?filter=ma&sort=pending"),
    ("overview-none", "?filter=none"),
    ("queue", "queue?name=mail"),
    ("queue-minutes", "queue?name=mail&range=5m"),
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
    for (number, (name, page)) in PAGES.into_iter().enumerate() {
        for (width, theme) in looks(number) {
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
    browser.end().await;
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

/// Answers the times of a page that have another form, and how many there are.
const TIMES: &str = r#"
    const all = [...document.querySelectorAll("time")];
    const form = /^\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2} GMT\+5:45$/;
    const other = all.map((one) => one.textContent).filter((text) => !form.test(text));
    const utc = document.querySelector("main").innerText.match(/\d{2}:\d{2}:\d{2} UTC/g) ?? [];
    const first = document.querySelector("td time, dd time");
    const shift = first ? Date.parse(first.textContent.slice(0, 19).replace(" ", "T") + "Z") - Date.parse(first.dateTime) : 0;
    return { count: all.length, other: [...other, ...utc], shift, age: first?.nextElementSibling?.textContent ?? "" };
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times_are_in_the_zone_of_the_reader_in_one_form_with_their_age() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = shown_server(data.path());
    let browser = Browser::start().await;
    browser.look_like(1440, "light").await;
    let change = json!({"queue": {"name": "mail", "default_max_attempts": 2}, "reason": "flaky"});
    done(&server, "UpdateQueue", &change);
    browser.tell("Emulation.setTimezoneOverride", json!({"timezoneId": "Asia/Kathmandu"})).await;
    for page in [
        "queue?name=mail",
        "messages?queue=mail&state=pending",
        "message?queue=mail&id=m0",
        "counters?ns=default",
        "counter?ns=default&name=views",
        "control?kind=queue&name=mail",
        "audit",
    ] {
        browser.open(&server, page).await;
        browser.wait_for("td time, dd time").await;
        let found = browser.session.execute(TIMES, Vec::new()).await.expect("times").json().clone();
        assert_eq!(found["other"], json!([]), "{page}: {found}");
        assert_eq!(found["shift"], json!((5 * 60 + 45) * 60_000), "{page}: {found}");
        assert!(found["age"].as_str().is_some_and(|age| age.ends_with(" ago")), "{page}: {found}");
    }
    browser.end().await;
}

#[test]
fn priorities_that_are_times_are_read_as_times() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = shown_server(data.path());
    let chosen = json!({"messageId": "chosen", "priority": "7"});
    done(&server, "Enqueue", &json!({"queue": "mail", "message": chosen}));
    let page = |place: &str| get(&server, &format!("/console/{place}"), &[]).body;
    let list = page("messages?queue=mail&state=pending");
    assert!(list.contains("<td data-label=\"Priority\"><span><time datetime=\"2"), "{list}");
    assert!(list.contains("<td data-label=\"Priority\"><span>7</span>"), "{list}");
    let priority = |id: &str| {
        let page = page(&format!("message?queue=mail&id={id}"));
        page.split("<dt>Priority</dt>")
            .nth(1)
            .and_then(|rest| rest.split("</div>").next())
            .unwrap_or_default()
            .to_owned()
    };
    assert_eq!(priority("chosen"), "<dd>7</dd>");
    let default = priority("m1");
    assert!(default.starts_with("<dd><time datetime=\"2") && default.contains("<dd class=\"hint\">1,"), "{default}");
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
    let began = Instant::now();
    browser.wait_for("[data-testid='confirm-submit']").await.click().await.expect("a button");
    browser.wait_for(".notice").await;
    let (url, waited) = (browser.session.current_url().await.expect("an address"), began.elapsed());
    browser.end().await;
    // On a busy machine the purge may go on for longer than the console waits. Then the page says so once it is loaded again.
    let (_, place) = url.as_str().split_once("/console/").expect("a page of the console");
    let is_over = place == "queue?name=mail&done=purge&messages=11";
    assert!(is_over || place.starts_with("queue?name=mail&started=purge&") && waited >= CONSOLE_WAITS, "{url}");
    let page = || get(&server, &format!("/console/{place}"), &[]).body;
    assert!(eventually(WAIT, || page().contains("It took 11 messages.")), "{url}: {}", page());
    let is_empty = || done(&server, "GetDepth", &json!({"queue": "mail"}))["pending"] == json!("0");
    assert!(eventually(WAIT, is_empty), "the queue is purged");
}
