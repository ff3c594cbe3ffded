//! States of pages that are rare, or that come after an action, on each screen in each theme.

use std::time::Duration;

use serde_json::json;

use super::browser::shown_server;
use super::chromium::Browser;
use super::get;
use super::sign_in::{key_of, keyed};
use crate::support::harness::{Server, eventually};

/// Looks at pages on each screen in each theme.
async fn look_at_pages(browser: &Browser, server: &Server, pages: &[(&str, &str)]) -> Vec<String> {
    let mut findings = Vec::new();
    for (name, page) in pages {
        browser.open(server, page).await;
        findings.extend(browser.look_at(name).await);
    }
    findings
}

/// How soon an experiment has its first look on a busy machine.
const FIRST_LOOK_WITHIN: Duration = Duration::from_secs(150);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_that_say_no_and_a_shown_payload_are_clean() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = shown_server(data.path());
    let browser = Browser::start().await;
    let pages = [
        ("no-page", "nothing"),
        ("no-queue", "queue?name=none"),
        ("no-message", "message?queue=mail&id=none"),
        ("no-action", "act?do=none&queue=mail"),
    ];
    let mut findings = look_at_pages(&browser, &server, &pages).await;
    browser.look_like(1440, "light").await;
    browser.open(&server, "payload?queue=mail&id=m1").await;
    browser.wait_for("input[name='reason']").await.send_keys("a complaint").await.expect("a field takes text");
    browser.wait_for("[data-testid='confirm-submit']").await.click().await.expect("a button");
    assert_eq!(browser.wait_for("pre").await.text().await.expect("a text"), "secret");
    findings.extend(browser.look_at("payload-shown").await);
    browser.end().await;
    assert_eq!(findings, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn experiments_that_are_kept_or_not_trusted_are_clean() {
    const SERVICE: &str = "/tallystone.experiment.v1.ExperimentService";
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = shown_server(data.path());
    for (counter, delta) in [("A/exposures", 12_000), ("A/bought", 600), ("B/exposures", 8_000), ("B/bought", 600)] {
        let add = json!({"namespace": "default", "counterName": format!("exp/button/{counter}"), "delta": delta});
        assert_eq!(server.post("/tallystone.counter.v1.CounterService/AddCount", &add.to_string()).status, 200);
    }
    for name in ["checkout", "button"] {
        let experiment = json!({
            "name": name, "namespace": "default", "arms": [{"name": "A"}, {"name": "B"}], "metric": "bought",
            "plannedExposures": "60000", "description": "The new form of the checkout, with fewer fields.",
        });
        let made = server.post(&format!("{SERVICE}/CreateExperiment"), &json!({"experiment": experiment}).to_string());
        assert_eq!(made.status, 200, "{}", made.body);
    }
    let page = || get(&server, "/console/experiment?name=checkout", &[]).body;
    let is_drawn = || page().contains("class=\"line one\"");
    assert!(eventually(FIRST_LOOK_WITHIN, is_drawn), "{}", page());
    let browser = Browser::start().await;
    let pages = [
        ("experiments-kept", "experiments"),
        ("experiment-kept", "experiment?name=checkout"),
        ("experiment-not-trusted", "experiment?name=button"),
    ];
    let findings = look_at_pages(&browser, &server, &pages).await;
    browser.wait_for("[data-testid='trust-banner']").await;
    browser.end().await;
    assert_eq!(findings, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_opens_the_console_in_a_browser() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let key = key_of("ann", data.path());
    let server = keyed(data.path(), &key);
    let browser = Browser::start().await;
    browser.open(&server, "queue?name=mail").await;
    browser.wait_for("input[name='key']").await.send_keys("ts_wrong_key").await.expect("a field takes text");
    browser.wait_for("form.act button").await.click().await.expect("a button");
    browser.wait_for(".notice").await;
    let mut findings = browser.look_at("sign-in-refused").await;
    browser.wait_for("input[name='key']").await.send_keys(&key).await.expect("a field takes text");
    browser.wait_for("form.act button").await.click().await.expect("a button");
    browser.wait_for("form.user").await;
    findings.extend(browser.look_at("queue-signed-in").await);
    browser.end().await;
    assert_eq!(findings, [""; 0]);
}
