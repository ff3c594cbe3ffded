//! The console while the store of the queues does not answer: pages answer all the same, say so, and offer no action.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{done, fill, get, hidden, post};
use crate::servers::redis::{Build, RedisServer, or_skip};
use crate::support::harness::{Launch, Server, eventually};

const WITHIN: Duration = Duration::from_secs(60);
/// How soon a page is there, whatever the store does.
const PAGE_WITHIN: Duration = Duration::from_secs(1);

fn age_of(page: &str) -> &str {
    let (_, rest) = page.split_once("data-age-state=\"").unwrap_or_else(|| panic!("no age in {page}"));
    rest.split('"').next().expect("an attribute ends")
}

/// A page that answers in time with success.
fn page(server: &Server, path: &str) -> String {
    let began = Instant::now();
    let answer = get(server, path, &[]);
    assert!(began.elapsed() < PAGE_WITHIN, "{path} took {:?}", began.elapsed());
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    answer.body
}

#[test]
fn while_the_store_is_away_pages_say_so_and_act_on_nothing() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let Some(redis) = or_skip(RedisServer::start(Build::ALL[0])) else { return };
    let server = Launch::dev(data.path()).arg("--redis").arg(&redis.address().to_string()).start();
    fill(&server);
    let is_fresh = || age_of(&get(&server, "/console/queue?name=mail", &[]).body) == "fresh";
    assert!(eventually(WITHIN, is_fresh), "the numbers are known");
    assert!(eventually(WITHIN, || age_of(&get(&server, "/console/", &[]).body) == "fresh"), "those of all queues too");
    let act = get(&server, "/console/act?do=purge&queue=mail", &[]).body;
    let fields =
        ["do", "queue", "queue_id", "etag", "id", "token"].map(|name| format!("{name}={}", hidden(&act, name)));

    redis.pause();
    let is_away = || ["stale", "away"].contains(&age_of(&page(&server, "/console/")));
    assert!(eventually(WITHIN, is_away), "the overview says that its numbers are old");
    let shown = page(&server, "/console/queue?name=mail");
    assert!(["stale", "away"].contains(&age_of(&shown)), "{shown}");
    assert_eq!(super::text_of(&shown, "depth-pending"), "11", "the last number stays");
    let is_off = || page(&server, "/console/queue?name=mail").contains("aria-disabled=\"true\"");
    assert!(eventually(WITHIN, is_off), "the actions are off");
    let refused = post(&server, &format!("{}&reason=x&typed=mail", fields.join("&")), &[]);
    assert_eq!(refused.status, 503, "{}", refused.body);

    redis.resume();
    let back = Instant::now();
    assert!(eventually(WITHIN, is_fresh), "the numbers are fresh again");
    assert!(back.elapsed() < Duration::from_secs(5), "it took {:?}", back.elapsed());
    assert_eq!(done(&server, "GetDepth", &json!({"queue": "mail"}))["pending"], json!("11"), "nothing was purged");
}
