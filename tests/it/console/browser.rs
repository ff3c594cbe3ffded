//! The console in a real browser, headless: every page at two widths in both themes, live numbers, and work without scripts.
//!
//! Screenshots stay in the folder `console` of the temporary target directory.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;
use thirtyfour::LoggingPrefsLogLevel;
use thirtyfour::prelude::*;

use super::{done, fill, get, text_of, used_server};
use crate::servers::chromedriver::Chromedriver;
use crate::support::harness::{Launch, Server, eventually};

/// The rules of accessibility, as a script that pages get from the test.
const AXE: &str = include_str!("axe/axe.min.js");
/// Answers the serious findings, each as one line.
const FIND: &str = r#"
    const done = arguments[arguments.length - 1];
    axe.run(document, { resultTypes: ["violations"], preload: false }).then((found) => {
        const serious = found.violations.filter((one) => ["serious", "critical"].includes(one.impact));
        done(serious.flatMap((one) => one.nodes.map((node) => `${one.id}: ${node.html}: ${node.failureSummary}`)));
    }, (error) => done([String(error)]));
"#;
/// Watches the page for ten seconds. Answers whether the focus or the order of rows changed, and whether a number did.
const WATCH: &str = r#"
    const [done, queue] = [arguments[arguments.length - 1], arguments[0]];
    const order = () => [...document.querySelectorAll("tr[data-queue]")].map((row) => row.dataset.queue).join("\n");
    const cell = document.querySelector(`tr[data-queue="${queue}"] [data-testid="depth-pending"]`);
    const [rows, text, focused] = [order(), cell.textContent, document.activeElement];
    let isMoved = false;
    const watch = setInterval(() => { isMoved = isMoved || order() !== rows || document.activeElement !== focused; }, 50);
    setTimeout(() => {
        clearInterval(watch);
        done({ isMoved, before: text, after: cell.textContent, focus: focused.textContent });
    }, 10000);
"#;
const WIDTHS: [u32; 2] = [1440, 390];
const THEMES: [&str; 2] = ["light", "dark"];
/// The pages, by the names of their screenshots.
const PAGES: [(&str, &str); 21] = [
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

/// A browser with a profile of its own. Fields end in their order: the session before the driver that holds it.
struct Browser {
    session: WebDriver,
    _driver: Chromedriver,
    _profile: TempDir,
}

impl Browser {
    async fn start() -> Self {
        let driver = Chromedriver::start().unwrap_or_else(|why| panic!("{why}"));
        let profile = tempfile::tempdir().expect("a temporary directory");
        let mut wanted = DesiredCapabilities::chrome();
        let folder = format!("--user-data-dir={}", profile.path().display());
        // The sandbox needs rights that a container does not give.
        for argument in ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", &folder] {
            wanted.add_arg(argument).expect("an argument");
        }
        wanted.set_browser_log_level(LoggingPrefsLogLevel::All).expect("a level");
        let session = WebDriver::new(driver.url(), wanted).await.expect("a browser starts");
        Self { session, _driver: driver, _profile: profile }
    }

    /// Calls a method of the DevTools protocol.
    async fn tell(&self, method: &str, parameters: Value) -> Value {
        let told = self.session.cdp().send_raw(method, parameters).await;
        told.unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    async fn look_like(&self, width: u32, theme: &str) {
        let screen = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600});
        self.tell("Emulation.setDeviceMetricsOverride", screen).await;
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": theme}]});
        self.tell("Emulation.setEmulatedMedia", media).await;
    }

    async fn open(&self, server: &Server, page: &str) {
        let url = format!("http://{}/console/{page}", server.address);
        self.session.goto(url).await.unwrap_or_else(|error| panic!("{page}: {error}"));
    }

    /// Keeps what the page looks like, all of it.
    async fn keep_screenshot(&self, name: &str) {
        let size = self.tell("Page.getLayoutMetrics", json!({})).await["cssContentSize"].clone();
        let clip = json!({"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1});
        let whole = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
        let shot = self.tell("Page.captureScreenshot", whole).await;
        let png = STANDARD.decode(shot["data"].as_str().expect("a picture")).expect("Base64");
        std::fs::write(screenshots().join(format!("{name}.png")), png).expect("the target directory takes files");
    }

    /// What the page says against itself: errors of its console, its width, what people with disabilities cannot use.
    async fn findings(&self) -> Vec<String> {
        let told = self.session.browser_log().await.expect("a log");
        let told = told.into_iter().filter(|line| ["SEVERE", "WARNING"].contains(&&*line.level));
        let mut findings: Vec<String> = told.map(|line| format!("{}: {}", line.level, line.message)).collect();
        let widths = "return [document.documentElement.scrollWidth, window.innerWidth];";
        let widths: [u32; 2] = self.session.execute(widths, Vec::new()).await.expect("widths").convert().expect("two");
        if widths[0] > widths[1] {
            findings.push(format!("it is {} wide on a screen of {}", widths[0], widths[1]));
        }
        self.session.execute(AXE, Vec::new()).await.expect("the rules are taken");
        let found = self.session.execute_async(FIND, Vec::new()).await.expect("the rules are checked");
        findings.extend(found.convert::<Vec<String>>().expect("a list"));
        findings
    }

    /// Waits until something matches a selector.
    async fn wait_for(&self, selector: &'static str) -> WebElement {
        let found = self.session.query(By::Css(selector)).wait(WAIT, POLL).first().await;
        found.unwrap_or_else(|error| panic!("{selector}: {error}"))
    }

    async fn end(self) {
        self.session.quit().await.expect("the browser ends");
    }
}

const WAIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(50);

/// The folder of the screenshots.
fn screenshots() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("console");
    std::fs::create_dir_all(&folder).expect("the target directory takes folders");
    folder
}

/// A used server that may show payloads, with an experiment.
fn shown_server(data: &Path) -> Server {
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
                let found = browser.findings().await;
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
    assert!(url.as_str().ends_with("/console/queue?name=mail&done=purge"), "{url}");
    browser.end().await;
    let is_empty = || done(&server, "GetDepth", &json!({"queue": "mail"}))["pending"] == json!("0");
    assert!(eventually(WAIT, is_empty), "the queue is purged");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_numbers_change_the_focus_and_the_order_of_rows_stay() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = shown_server(data.path());
    let browser = Browser::start().await;
    browser.open(&server, "?sort=pending").await;
    browser.wait_for("[data-testid='live-state'][data-state='live']").await;
    let focus = "document.querySelector('tr[data-queue=\"mail\"] a').focus();";
    browser.session.execute(focus, Vec::new()).await.expect("a row has a link");
    // More messages than the first queue of the order has, so that a page that sorts again would move rows.
    let odd = "odd/name:50";
    for number in 0..20 {
        let message = json!({"messageId": format!("late{number}"), "metadata": {"tenant": "acme"}});
        done(&server, "Enqueue", &json!({"queue": odd, "message": message}));
    }
    let watched = browser.session.execute_async(WATCH, vec![json!(odd)]).await.expect("the page is watched");
    let watched = watched.json().clone();
    browser.end().await;
    assert_eq!((&watched["isMoved"], &watched["focus"]), (&json!(false), &json!("mail")), "{watched}");
    assert_eq!(watched["after"], json!("20"), "{watched}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nine_tabs_of_one_browser_all_load() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(data.path());
    let browser = Browser::start().await;
    for tab in 1..=9 {
        if tab > 1 {
            let opened = browser.session.new_tab().await.expect("a tab");
            browser.session.switch_to_window(opened).await.expect("the tab is shown");
        }
        browser.open(&server, "").await;
        browser.wait_for("[data-testid='live-state'][data-state='live']").await;
    }
    assert_eq!(browser.session.windows().await.expect("tabs").len(), 9);
    browser.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_held_by_pause_keeps_its_numbers() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = shown_server(data.path());
    let browser = Browser::start().await;
    browser.open(&server, "queue?name=mail").await;
    browser.wait_for("[data-testid='live-state'][data-state='live']").await;
    browser.wait_for("#pause").await.click().await.expect("a button");
    browser.wait_for("[data-testid='live-state'][data-state='paused']").await;
    done(&server, "Enqueue", &json!({"queue": "mail", "message": {"messageId": "late"}}));
    let is_counted = || text_of(&get(&server, "/console/queue?name=mail", &[]).body, "depth-pending") == "12";
    assert!(eventually(WAIT, is_counted), "the server knows the new number");
    let held = browser.wait_for("[data-testid='depth-pending']").await.text().await.expect("a text");
    assert_eq!(held, "11");
    browser.wait_for("#pause").await.click().await.expect("a button");
    let follows = "const done = arguments[arguments.length - 1]; const look = () => \
                   document.querySelector('[data-testid=\"depth-pending\"]').textContent === '12' ? done(true) \
                   : setTimeout(look, 50); look();";
    browser.session.execute_async(follows, Vec::new()).await.expect("the page follows again");
    browser.end().await;
}
