//! Charts: their axes, the numbers of their points at the pointer and at the keyboard, and the last five minutes.

use std::time::Duration;

use super::browser::shown_server;
use super::chromium::Browser;
use super::live_pages::until;
use super::{get, tags_of};
use crate::support::harness::{Server, eventually};

/// How soon counters of a queue are drawn on a busy machine.
const WITHIN: Duration = Duration::from_secs(60);
const READING: &str = "document.querySelector('[data-testid=\"reading\"]').textContent";

/// The attribute of the first tag with it.
fn attribute<'a>(page: &'a str, name: &str) -> Option<&'a str> {
    page.split(&format!(" {name}=\"")).nth(1)?.split('"').next()
}

/// The page of a queue once what came in is drawn in a range.
fn drawn(server: &Server, range: &str) -> String {
    let page = || get(server, &format!("/console/queue?name=mail&range={range}"), &[]).body;
    let is_counted = |values: &str| values.split('|').any(|value| !["–", "0.0"].contains(&value));
    let is_drawn = || attribute(&page(), "data-values").is_some_and(is_counted);
    assert!(eventually(WITHIN, is_drawn), "{}", page());
    page()
}

#[test]
fn the_last_five_minutes_have_steps_of_ten_seconds_and_an_axis() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = shown_server(data.path());
    let page = drawn(&server, "5m");
    let times: Vec<i64> = attribute(&page, "data-times")
        .expect("a chart has times")
        .split(' ')
        .map(|millis| millis.parse().expect("a number"))
        .collect();
    assert_eq!(times.len(), 30, "{times:?}");
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] == 10_000 && pair[0] % 10_000 == 0), "{times:?}");
    let values = attribute(&page, "data-values").expect("a line has values");
    assert_eq!(values.split('|').count(), 30, "{values}");
    let scale = page.split("<div class=\"scale\" aria-hidden=\"true\">").nth(1).expect("an axis");
    assert!(scale.split("</div>").next().expect("an end").ends_with("<span>0.0</span>"), "{page}");
    assert_eq!(tags_of(&page, "plot").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chart_shows_the_value_under_the_pointer_and_at_the_keyboard() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = shown_server(data.path());
    drawn(&server, "5m");
    let browser = Browser::start().await;
    browser.look_like(1440, "light").await;
    browser.open(&server, "queue?name=mail&range=5m").await;
    let plot = browser.wait_for(".plot[role='slider']").await;
    // A window that is not active yet, on a slow machine, moves the focus and tells nobody.
    let focused = format!(
        "const plot = document.querySelector('.plot');
         if ({READING} === '') {{ plot.blur(); plot.focus(); }}
         return {READING}.includes('In ');"
    );
    until(&browser, "the focus shows the last point", &focused).await;
    let time = format!("{READING}.slice(11, 19)");
    let keep = format!("window.seen = {time}; return true;");
    until(&browser, "it has a time", &keep).await;
    plot.send_keys("\u{e012}").await.expect("it takes keys");
    let earlier = format!(
        "const of = (text) => text.split(':').reduce((sum, part) => sum * 60 + Number(part), 0);
         return (of(window.seen) - of({time}) + 86400) % 86400 === 10;"
    );
    until(&browser, "the left arrow shows the point before it", &earlier).await;
    let first = "return document.querySelector('.plot').getAttribute('aria-valuenow') === '0';";
    plot.send_keys("\u{e011}").await.expect("it takes keys");
    until(&browser, "Home shows the first point", first).await;
    let said = format!("return document.querySelector('.plot').getAttribute('aria-valuetext') === {READING};");
    until(&browser, "what is shown is said", &said).await;
    let findings = browser.findings(1440).await;
    browser.session.execute("document.activeElement.blur();", Vec::new()).await.expect("the focus leaves it");
    until(&browser, "nothing is shown without focus", &format!("return {READING} === '';")).await;
    let moved = browser.session.action_chain().move_to_element_center(&plot);
    moved.perform().await.expect("the pointer moves");
    until(&browser, "the pointer shows a point in the middle", &format!("return {READING}.includes('per second');"))
        .await;
    let middle = "return [14, 15].includes(Number(document.querySelector('.plot').getAttribute('aria-valuenow')));";
    until(&browser, "it is the one below it", middle).await;
    browser.keep_screenshot("chart-pointer").await;
    browser.end().await;
    assert_eq!(findings, [""; 0]);
}
