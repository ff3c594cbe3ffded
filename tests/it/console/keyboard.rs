//! The console by its keys, without a mouse.

use super::browser::shown_server;
use super::chromium::Browser;
use super::live_pages::until;

/// Presses keys where the focus is.
async fn press(browser: &Browser, keys: impl IntoIterator<Item = &str>) {
    for key in keys {
        let focused = browser.session.active_element().await.expect("something has the focus");
        focused.send_keys(key).await.unwrap_or_else(|error| panic!("{key}: {error}"));
    }
}

/// The Escape key, as WebDriver names it.
const ESCAPE: &str = "\u{e00c}";
const LIVE: &str = "return document.querySelector('[data-testid=\"live-state\"]').dataset.state === ";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_does_what_the_help_says() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = shown_server(data.path());
    let browser = Browser::start().await;
    browser.look_like(1440, "light").await;
    browser.open(&server, "").await;
    until(&browser, "the page is live", &format!("{LIVE}'live';")).await;

    let help = |is: bool| format!("return document.getElementById('keys').hidden === {};", !is);
    press(&browser, ["?"]).await;
    until(&browser, "? shows the keys", &help(true)).await;
    press(&browser, ["?"]).await;
    until(&browser, "? hides them", &help(false)).await;

    let focused = |queue: &str| format!("return document.activeElement.textContent === '{queue}';");
    press(&browser, ["j"]).await;
    until(&browser, "j goes to the first row", &focused("mail")).await;
    press(&browser, ["j"]).await;
    until(&browser, "j goes on", &focused("odd/name:50")).await;
    press(&browser, ["k"]).await;
    until(&browser, "k goes back", &focused("mail")).await;

    press(&browser, ["p"]).await;
    until(&browser, "p holds the page", &format!("{LIVE}'paused';")).await;
    press(&browser, ["p"]).await;
    until(&browser, "p lets it go on", &format!("{LIVE}'live';")).await;

    let theme = |theme: &str| format!("return document.documentElement.dataset.theme === '{theme}';");
    press(&browser, ["t"]).await;
    until(&browser, "t makes it dark", &theme("dark")).await;
    browser.wait_for("#theme").await.click().await.expect("a button");
    until(&browser, "the button makes it light", &theme("light")).await;
    press(&browser, ["t"]).await;
    browser.open(&server, "counters?ns=default").await;
    until(&browser, "the theme is kept", &theme("dark")).await;

    let typed = |field: &str| format!("return document.activeElement.name === '{field}';");
    press(&browser, ["/"]).await;
    until(&browser, "/ goes to the filter", &typed("prefix")).await;
    press(&browser, ["t", "g", "h"]).await;
    let taken = "return document.activeElement.value === 'tgh' && document.documentElement.dataset.theme === 'dark';";
    until(&browser, "keys are text in a field", taken).await;
    press(&browser, [ESCAPE]).await;
    until(&browser, "Escape leaves it", "return document.activeElement === document.body;").await;

    for (key, page) in [
        ("h", "/console/health"),
        ("a", "/console/audit"),
        ("e", "/console/experiments"),
        ("c", "/console/counters"),
        ("o", "/console/"),
    ] {
        press(&browser, ["g", key]).await;
        until(&browser, page, &format!("return location.pathname === '{page}' && document.readyState === 'complete';"))
            .await;
    }
    browser.end().await;
}
