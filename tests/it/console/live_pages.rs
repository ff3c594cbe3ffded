//! Pages that are open in a browser: their numbers follow the server, and nothing else moves.

use serde_json::json;

use super::browser::shown_server;
use super::chromium::{Browser, WAIT};
use super::{done, get, text_of, used_server};
use crate::support::harness::eventually;

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
