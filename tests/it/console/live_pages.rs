//! Pages that are open in a browser: their numbers follow the server, and nothing else moves.

use serde_json::json;

use super::browser::shown_server;
use super::chromium::{Browser, WAIT};
use super::{done, fill, get, text_of, used_server};
use crate::servers::redis::{Build, RedisServer, or_skip};
use crate::support::harness::{Launch, eventually};

/// The rows of one page of the overview.
const ROWS: usize = 100;
/// Watches the page for ten seconds or more: until a second after a number has become what it is to be, however long a busy
/// machine takes. Answers whether the focus or the order of rows changed, and the number.
const WATCH: &str = r#"
    const [done, queue, wanted] = [arguments[arguments.length - 1], arguments[0], arguments[1]];
    const order = () => [...document.querySelectorAll("tr[data-queue]")].map((row) => row.dataset.queue).join("\n");
    const cell = document.querySelector(`tr[data-queue="${queue}"] [data-testid="depth-pending"]`);
    const [rows, text, focused] = [order(), cell.textContent, document.activeElement];
    const began = Date.now();
    let [isMoved, shown] = [false, Infinity];
    const watch = setInterval(() => {
        isMoved = isMoved || order() !== rows || document.activeElement !== focused;
        const now = Date.now();
        if (cell.textContent === wanted) { shown = Math.min(shown, now); }
        const isOver = now - began > 60000 || now - began > 10000 && now - shown > 1000;
        if (!isOver) { return; }
        clearInterval(watch);
        done({ isMoved, before: text, after: cell.textContent, focus: focused.textContent });
    }, 50);
"#;
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_numbers_change_the_focus_and_the_order_of_rows_stay() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = shown_server(data.path());
    let browser = Browser::start().await;
    browser.open_live(&server, "?sort=pending").await;
    let focus = "document.querySelector('tr[data-queue=\"mail\"] a').focus();";
    browser.session.execute(focus, Vec::new()).await.expect("a row has a link");
    // More messages than the first queue of the order has, so that a page that sorts again would move rows.
    let odd = "odd/name:50";
    for number in 0..20 {
        let message = json!({"messageId": format!("late{number}"), "metadata": {"tenant": "acme"}});
        done(&server, "Enqueue", &json!({"queue": odd, "message": message}));
    }
    let asked = vec![json!(odd), json!("20")];
    let watched = browser.session.execute_async(WATCH, asked).await.expect("the page is watched");
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
        browser.open_live(&server, "").await;
    }
    assert_eq!(browser.session.windows().await.expect("tabs").len(), 9);
    browser.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_held_by_pause_keeps_its_numbers() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = shown_server(data.path());
    let browser = Browser::start().await;
    browser.open_live(&server, "queue?name=mail").await;
    browser.wait_for("#pause").await.click().await.expect("a button");
    browser.wait_for("[data-testid='live-state'][data-state='paused']").await;
    done(&server, "Enqueue", &json!({"queue": "mail", "message": {"messageId": "late"}}));
    let is_counted = || text_of(&get(&server, "/console/queue?name=mail", &[]).body, "depth-pending") == "12";
    assert!(eventually(WAIT, is_counted), "the server knows the new number");
    let held = browser.wait_for("[data-testid='depth-pending']").await.text().await.expect("a text");
    assert_eq!(held, "11", "{}", browser.session.source().await.unwrap_or_default());
    browser.wait_for("#pause").await.click().await.expect("a button");
    let follows = "return document.querySelector('[data-testid=\"depth-pending\"]')?.textContent === '12';";
    until(&browser, "the page follows again", follows).await;
    browser.end().await;
}

/// Waits until a script answers true.
pub async fn until(browser: &Browser, what: &str, script: &str) {
    let look = format!(
        "const done = arguments[arguments.length - 1]; const end = Date.now() + 60000; \
         const look = () => {{ if ((() => {{ {script} }})()) done(true); \
         else if (Date.now() > end) done(false); else setTimeout(look, 50); }}; look();"
    );
    let met = browser.session.execute_async(look, Vec::new()).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    let shown = browser.session.source().await.unwrap_or_default();
    assert_eq!(met.json(), &json!(true), "{what}: {shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reasons_for_attention_come_and_go_on_an_open_overview() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = shown_server(data.path());
    // More than fail, so that failed attempts are no reason.
    for _ in 0..3 {
        let lease = done(&server, "Dequeue", &json!({"queue": "mail"}))["leases"][0]["leaseToken"].clone();
        done(&server, "Complete", &json!({"queue": "mail", "leaseToken": lease}));
    }
    let browser = Browser::start().await;
    browser.open_live(&server, "").await;
    let rows =
        "const rows = [...document.querySelectorAll('[data-testid=\"attention-row\"]')].map((row) => row.dataset.key);";
    let is = |keys: &str| format!("{rows} return rows.join() === '{keys}';");
    until(&browser, "the first reason", &is("MESSAGES_ERRORED mail")).await;
    let bad = "const cell = document.querySelector('tr[data-queue=\"mail\"] [data-testid=\"depth-errored\"]');";
    until(&browser, "errored messages are marked", &format!("{bad} return cell.classList.contains('bad-text');")).await;
    let focus = "document.querySelector('[data-testid=\"attention-row\"] a').focus();";
    browser.session.execute(focus, Vec::new()).await.expect("a row has a link");

    let blocked = |is: bool| {
        let queue = json!({"name": "odd/name:50", "enqueue_blocked": is, "enqueue_blocked_reason": if is { "<b>" } else { "" }});
        done(&server, "UpdateQueue", &json!({"queue": queue}))
    };
    blocked(true);
    until(&browser, "a second reason", &is("MESSAGES_ERRORED mail,ENQUEUE_BLOCKED odd/name:50")).await;
    let kept = "return document.activeElement.closest('[data-testid=\"attention-row\"]')?.dataset.key === 'MESSAGES_ERRORED mail';";
    until(&browser, "the focus stays in its row", kept).await;
    blocked(false);
    until(&browser, "it is gone again", &is("MESSAGES_ERRORED mail")).await;
    until(&browser, "the focus stays", kept).await;

    done(&server, "RedriveMessages", &json!({"queue": "mail"}));
    until(&browser, "no reason is left", &is("")).await;
    let calm = "return document.querySelector('[data-part=\"attention\"] [data-testid=\"empty\"]')?.textContent === 'Nothing needs attention.';";
    until(&browser, "the page says so", calm).await;
    until(&browser, "nothing is marked", &format!("{bad} return cell.className === '' && cell.textContent === '0';"))
        .await;
    assert_eq!(browser.look_at("overview-calm").await, [""; 0]);
    browser.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_verdict_and_the_reasons_of_an_open_queue_follow_it() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(data.path());
    let browser = Browser::start().await;
    browser.open_live(&server, "queue?name=odd%2Fname%3A50").await;
    let lead = |text: &str| format!("return document.querySelector('.lead').textContent === '{text}';");
    until(&browser, "nothing waits", &lead("Nothing waits.")).await;
    let message = json!({"messageId": "late", "metadata": {"tenant": "acme"}});
    done(&server, "UpdateQueue", &json!({"queue": {"name": "odd/name:50", "dequeue_blocked": true}}));
    done(&server, "Enqueue", &json!({"queue": "odd/name:50", "message": message}));
    let blocked = "return document.querySelectorAll('[data-reason=\"DEQUEUE_BLOCKED\"]').length === 1;";
    until(&browser, "a reason", blocked).await;
    let waits = "return document.querySelector('.lead').textContent.includes('1 wait');";
    until(&browser, "the sentence says what waits", waits).await;
    done(&server, "PurgeQueue", &json!({"queue": "odd/name:50"}));
    until(&browser, "no reason", "return !document.querySelector('[data-testid=\"attention-row\"]');").await;
    until(&browser, "nothing waits again", &lead("Nothing waits.")).await;
    browser.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_page_says_that_the_store_is_away_and_takes_it_back() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let Some(redis) = or_skip(RedisServer::start(Build::ALL[0])) else { return };
    let server = Launch::dev(data.path()).arg("--redis").arg(&redis.address().to_string()).start();
    fill(&server);
    let browser = Browser::start().await;
    browser.open(&server, "queue?name=mail").await;
    browser.wait_for("[data-testid='age'][data-age-state='fresh']").await;
    let off = "const off = document.querySelectorAll('[data-part=\"actions\"] [aria-disabled]').length;";
    let told = "const told = document.querySelectorAll('[data-part=\"away\"] .notice').length;";
    until(&browser, "actions are on", &format!("{off}{told} return off === 0 && told === 0;")).await;
    redis.pause();
    until(&browser, "the page says it", &format!("{off}{told} return off > 3 && told === 1;")).await;
    let findings = browser.look_at("queue-away").await;
    redis.resume();
    until(&browser, "the page takes it back", &format!("{off}{told} return off === 0 && told === 0;")).await;
    browser.wait_for("[data-testid='age'][data-age-state='fresh']").await;
    browser.end().await;
    assert_eq!(findings, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_leaves_an_open_page_keeps_no_number() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(data.path()).start();
    for number in 0..=ROWS {
        let name = format!("q{number:03}");
        done(&server, "CreateQueue", &json!({"queue": {"name": name}}));
        done(&server, "Enqueue", &json!({"queue": name, "message": {"messageId": "m"}}));
    }
    let last = format!("q{ROWS:03}");
    let row = |name: &str, then: &str| {
        format!(
            "const row = document.querySelector('tr[data-queue=\"{name}\"]'); const cell = row?.querySelector('[data-testid=\"depth-pending\"]'); {then}"
        )
    };
    let browser = Browser::start().await;
    let is_read = || done(&server, "GetQueueActivity", &json!({"queue": last}))["activity"]["pending"] == json!("1");
    assert!(eventually(WAIT, is_read), "the numbers of the last queue are known");
    browser.open(&server, "?sort=pending").await;
    until(&browser, "the page is full", &row("q007", "return cell?.textContent === '1';")).await;
    until(&browser, "without the last queue", &row(&last, "return row === null;")).await;
    browser.wait_for("[data-testid='live-state'][data-state='live']").await;
    done(&server, "PurgeQueue", &json!({"queue": "q007"}));
    let gone = row("q007", "return cell.textContent === '–' && row.classList.contains('left');");
    until(&browser, "the last queue is before it", &gone).await;
    until(&browser, "another one keeps its number", &row("q008", "return cell.textContent === '1';")).await;
    for id in ["n1", "n2"] {
        done(&server, "Enqueue", &json!({"queue": "q007", "message": {"messageId": id}}));
    }
    let back = row("q007", "return cell.textContent === '2' && !row.classList.contains('left');");
    until(&browser, "it is on the page again", &back).await;
    browser.end().await;
}
