//! A headless Chromium that a test drives, and what it finds on a page.
//!
//! Screenshots stay in the folder `console` of the temporary target directory. With CI=true there is one of them,
//! because nobody looks at them.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;
use thirtyfour::LoggingPrefsLogLevel;
use thirtyfour::prelude::*;

use crate::console::driver_calls::DriverCalls;
use crate::servers::chromedriver::Chromedriver;
use crate::support::harness::Server;
use crate::support::usual_or_long;

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
/// Answers what is wider than the screen, or than the frame around it.
const TOO_WIDE: &str = r#"
    const width = arguments[0];
    const page = document.documentElement.scrollWidth;
    const found = page > width || page > innerWidth ? [`it is ${page} wide on a screen of ${width} (${innerWidth})`] : [];
    const ends = (one) => one.getBoundingClientRect().right > width && !one.closest(".skip");
    if (found.length) found.push(...[...document.body.querySelectorAll("*")].filter(ends).slice(0, 5).map((one) => `too far right: ${one.outerHTML.slice(0, 90)}`));
    const frames = [...document.querySelectorAll(".table, .chart, .facts")].filter((one) => one.scrollWidth > one.clientWidth);
    return [...found, ...frames.map((one) => `wider than its frame of ${one.clientWidth}: ${one.scrollWidth} ${one.innerText.slice(0, 60)}`)];
"#;
/// How long a test waits for something on a page, and between two looks. Several browsers share the machine with all other
/// tests, and each takes seconds to start alone.
pub const WAIT: Duration = Duration::from_secs(60);
/// How long a script of a test may take; longer than what it waits for.
pub const SCRIPT_WAIT: Duration = Duration::from_secs(120);
pub const POLL: Duration = Duration::from_millis(50);

/// The screens: a desk, a tablet and a phone.
const WIDTHS: [u32; 3] = [1440, 768, 390];
const THEMES: [&str; 2] = ["light", "dark"];

/// The widths and themes in which a page is looked at: each width in one theme, in turns, so that each page is seen in both themes.
/// With `tests/run --long` all of them. `turn` is a number that differs from page to page.
pub fn looks(turn: usize) -> Vec<(u32, &'static str)> {
    let all = usual_or_long(false, true);
    let of = |(place, width): (usize, u32)| {
        let themes = THEMES.into_iter().enumerate();
        themes.filter(move |(at, _)| all || (turn + place + at).is_multiple_of(2)).map(move |(_, theme)| (width, theme))
    };
    WIDTHS.into_iter().enumerate().flat_map(of).collect()
}

/// A browser with a profile of its own. Fields end in their order: the session before the driver that holds it.
pub struct Browser {
    pub session: WebDriver,
    _driver: Chromedriver,
    _profile: TempDir,
}

impl Browser {
    pub async fn start() -> Self {
        let driver = Chromedriver::start().unwrap_or_else(|why| panic!("{why}"));
        let profile = tempfile::tempdir().expect("a temporary directory");
        let mut wanted = DesiredCapabilities::chrome();
        let folder = format!("--user-data-dir={}", profile.path().display());
        // The sandbox needs rights that a container does not give.
        for argument in ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", &folder] {
            wanted.add_arg(argument).expect("an argument");
        }
        wanted.set_browser_log_level(LoggingPrefsLogLevel::All).expect("a level");
        let session = WebDriver::builder(driver.url(), wanted).client(DriverCalls::new());
        let session = session.connect().await.expect("a browser starts");
        session.set_script_timeout(SCRIPT_WAIT).await.expect("a limit");
        Self { session, _driver: driver, _profile: profile }
    }

    /// Calls a method of the DevTools protocol.
    pub async fn tell(&self, method: &str, parameters: Value) -> Value {
        let told = self.session.cdp().send_raw(method, parameters).await;
        told.unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    pub async fn look_like(&self, width: u32, theme: &str) {
        let screen = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600});
        self.tell("Emulation.setDeviceMetricsOverride", screen).await;
        // Without motion, so that no colour is met on its way to another one.
        let features = [("prefers-color-scheme", theme), ("prefers-reduced-motion", "reduce")];
        let media = json!({"features": features.map(|(name, value)| json!({"name": name, "value": value}))});
        self.tell("Emulation.setEmulatedMedia", media).await;
    }

    pub async fn open(&self, server: &Server, page: &str) {
        let url = format!("http://{}/console/{page}", server.address);
        self.session.goto(url).await.unwrap_or_else(|error| panic!("{page}: {error}"));
    }

    /// Opens a page and waits until it is live.
    pub async fn open_live(&self, server: &Server, page: &str) {
        self.open(server, page).await;
        self.wait_for("[data-testid='live-state'][data-state='live']").await;
    }

    /// Keeps what the page looks like, all of it.
    pub async fn keep_screenshot(&self, name: &str) {
        static IS_FIRST: AtomicBool = AtomicBool::new(true);
        if !IS_FIRST.swap(false, Ordering::Relaxed) && std::env::var("CI").is_ok_and(|value| value == "true") {
            return;
        }
        let size = self.tell("Page.getLayoutMetrics", json!({})).await["cssContentSize"].clone();
        // A picture of the whole page has no scrollbar, which `innerWidth` counts too.
        let width = self.session.execute("return window.innerWidth;", Vec::new()).await.expect("a width");
        let clip = json!({"x": 0, "y": 0, "width": width.json(), "height": size["height"], "scale": 1});
        let whole = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
        let shot = self.tell("Page.captureScreenshot", whole).await;
        let png = STANDARD.decode(shot["data"].as_str().expect("a picture")).expect("Base64");
        std::fs::write(screenshots().join(format!("{name}.png")), png).expect("the target directory takes files");
    }

    /// What the page says against itself on a screen of a width: errors of its console, its width, what people with
    /// disabilities cannot use. That a page is there to say no is none.
    pub async fn findings(&self, width: u32) -> Vec<String> {
        let told = self.session.browser_log().await.expect("a log");
        let own = format!("{} - Failed to load resource", self.session.current_url().await.expect("an address"));
        let told = told.into_iter().filter(|line| ["SEVERE", "WARNING"].contains(&&*line.level));
        let told = told.filter(|line| !line.message.starts_with(&own));
        let mut findings: Vec<String> = told.map(|line| format!("{}: {}", line.level, line.message)).collect();
        // A browser may widen a narrow screen for a wide page, so that the width that was asked for counts.
        let wide = self.session.execute(TOO_WIDE, vec![json!(width)]).await.expect("widths");
        findings.extend(wide.convert::<Vec<String>>().expect("a list"));
        self.session.execute(AXE, Vec::new()).await.expect("the rules are taken");
        let found = self.session.execute_async(FIND, Vec::new()).await.expect("the rules are checked");
        findings.extend(found.convert::<Vec<String>>().expect("a list"));
        findings
    }

    /// What is found on the open page on each screen, with a picture of each.
    pub async fn look_at(&self, name: &str) -> Vec<String> {
        let mut findings = Vec::new();
        for (width, theme) in looks(name.len()) {
            self.look_like(width, theme).await;
            let name = format!("{name}-{width}-{theme}");
            let found = self.findings(width).await;
            findings.extend(found.into_iter().map(|finding| format!("{name}: {finding}")));
            self.keep_screenshot(&name).await;
        }
        findings
    }

    /// Waits until something matches a selector.
    pub async fn wait_for(&self, selector: &'static str) -> WebElement {
        let found = self.session.query(By::Css(selector)).wait(WAIT, POLL).first().await;
        found.unwrap_or_else(|error| panic!("{selector}: {error}"))
    }

    pub async fn end(self) {
        self.session.quit().await.expect("the browser ends");
    }
}

/// The folder of the screenshots.
fn screenshots() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("console");
    std::fs::create_dir_all(&folder).expect("the target directory takes folders");
    folder
}
