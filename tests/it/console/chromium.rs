//! A headless Chromium that a test drives, and what it finds on a page.
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

use crate::servers::chromedriver::Chromedriver;
use crate::support::harness::Server;

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
/// How long a test waits for something on a page, and between two looks.
pub const WAIT: Duration = Duration::from_secs(20);
pub const POLL: Duration = Duration::from_millis(50);

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
        let session = WebDriver::new(driver.url(), wanted).await.expect("a browser starts");
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
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": theme}]});
        self.tell("Emulation.setEmulatedMedia", media).await;
    }

    pub async fn open(&self, server: &Server, page: &str) {
        let url = format!("http://{}/console/{page}", server.address);
        self.session.goto(url).await.unwrap_or_else(|error| panic!("{page}: {error}"));
    }

    /// Keeps what the page looks like, all of it.
    pub async fn keep_screenshot(&self, name: &str) {
        let size = self.tell("Page.getLayoutMetrics", json!({})).await["cssContentSize"].clone();
        let clip = json!({"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1});
        let whole = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
        let shot = self.tell("Page.captureScreenshot", whole).await;
        let png = STANDARD.decode(shot["data"].as_str().expect("a picture")).expect("Base64");
        std::fs::write(screenshots().join(format!("{name}.png")), png).expect("the target directory takes files");
    }

    /// What the page says against itself: errors of its console, its width, what people with disabilities cannot use.
    pub async fn findings(&self) -> Vec<String> {
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
