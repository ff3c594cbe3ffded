//! The console while the store of the queues does not answer: pages answer all the same, say so, and offer no action.

use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;

use super::browser::PAGES;
use super::{done, fill, get, hidden, post};
use crate::servers::lent_node::lent_node;
use crate::servers::redis::{Build, RedisServer, or_skip};
use crate::support::beside;
use crate::support::harness::{HttpAnswer, Launch, Server, eventually};
use crate::support::yardstick::Cores;

const WITHIN: Duration = Duration::from_secs(60);
/// How soon a page is there, whatever the store does.
const PAGE_WITHIN: Duration = Duration::from_secs(1);
/// How soon the numbers are fresh after the store is back.
const FRESH_WITHIN: Duration = Duration::from_secs(5);

fn age_of(page: &str) -> &str {
    let (_, rest) = page.split_once("data-age-state=\"").unwrap_or_else(|| panic!("no age in {page}"));
    rest.split('"').next().expect("an attribute ends")
}

/// Another server, whose store is well: beside it, waits for a store are no excuse.
fn well() -> (Server, TempDir) {
    let data = tempfile::tempdir().expect("a temporary directory");
    (Launch::dev(data.path()).start(), data)
}

/// A page that answers in time, whatever its store does.
fn in_time(server: &Server, well: &Server, path: &str) -> HttpAnswer {
    let (yardstick, cores, began) = (beside(well), Cores::of(server.pid()), Instant::now());
    let answer = get(server, path, &[]);
    let took = began.elapsed();
    let kept = yardstick.kept(began).max(cores.longest_wait());
    assert!(took < PAGE_WITHIN + kept, "{path} took {took:?}, of which the machine kept {kept:?}");
    answer
}

/// The same with success.
fn page(server: &Server, well: &Server, path: &str) -> String {
    let answer = in_time(server, well, path);
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    answer.body
}

/// Every page answers in time, also one that can show nothing, and that one says why. Answers all pages by their places.
fn all_pages(server: &Server, well: &Server) -> Vec<(&'static str, String)> {
    let look = |(_, place): (&'static str, &'static str)| {
        let answer = in_time(server, well, &format!("/console/{place}"));
        if answer.status == 503 {
            assert_eq!(age_of(&answer.body), "away", "{place}: {}", answer.body);
        } else {
            assert!([200, 403].contains(&answer.status), "{place}: {} {}", answer.status, answer.body);
        }
        (place, answer.body)
    };
    PAGES.into_iter().map(look).collect()
}

#[test]
fn while_the_store_is_away_pages_say_so_and_act_on_nothing() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let Some(redis) = or_skip(RedisServer::start(Build::ALL[0])) else { return };
    let server = Launch::dev(data.path()).arg("--redis").arg(&redis.address().to_string()).start();
    let (well, _well_data) = well();
    fill(&server);
    let is_fresh = || age_of(&get(&server, "/console/queue?name=mail", &[]).body) == "fresh";
    assert!(eventually(WITHIN, is_fresh), "the numbers are known");
    assert!(eventually(WITHIN, || age_of(&get(&server, "/console/", &[]).body) == "fresh"), "those of all queues too");
    let act = get(&server, "/console/act?do=purge&queue=mail", &[]).body;
    let fields =
        ["do", "queue", "queue_id", "etag", "id", "token"].map(|name| format!("{name}={}", hidden(&act, name)));

    redis.pause();
    let is_away = || ["stale", "away"].contains(&age_of(&page(&server, &well, "/console/")));
    assert!(eventually(WITHIN, is_away), "the overview says that its numbers are old");
    let shown = page(&server, &well, "/console/queue?name=mail");
    assert!(["stale", "away"].contains(&age_of(&shown)), "{shown}");
    assert_eq!(super::text_of(&shown, "depth-pending"), "11", "the last number stays");
    let is_off = || page(&server, &well, "/console/queue?name=mail").contains("aria-disabled=\"true\"");
    assert!(eventually(WITHIN, is_off), "the actions are off");
    for (place, page) in all_pages(&server, &well) {
        if ["", "queue?", "messages?", "message?", "act?"]
            .iter()
            .any(|of| place == *of || !of.is_empty() && place.starts_with(of))
        {
            assert!(["stale", "away"].contains(&age_of(&page)), "{place}: {page}");
        }
    }
    let refused = post(&server, &format!("{}&reason=x&typed=mail", fields.join("&")), &[]);
    assert_eq!(refused.status, 503, "{}", refused.body);

    redis.resume();
    beside(&server).comes(Instant::now(), FRESH_WITHIN, "the numbers are fresh again", is_fresh);
    assert_eq!(done(&server, "GetDepth", &json!({"queue": "mail"}))["pending"], json!("11"), "nothing was purged");
}

#[test]
fn while_the_store_of_the_counters_stands_every_page_is_there_in_time() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let mut node = lent_node().unwrap_or_else(|why| panic!("{why}"));
    let launch = Launch::dev(data.path()).arg("--cassandra").arg(&node.address().to_string());
    let server = launch.arg("--set").arg("clusters.cassandra.keyspace=stands").start();
    let (well, _well_data) = well();
    fill(&server);
    all_pages_are_warm(&server);
    node.pause();
    let pages = all_pages(&server, &well);
    node.bring_back().unwrap_or_else(|why| panic!("{why}"));
    let counter = pages.iter().find(|(place, _)| place.starts_with("counter?"));
    assert!(counter.is_some_and(|(_, page)| age_of(page) == "away"), "{counter:?}");
}

/// Looks once at each page, so that the server knows what it keeps in memory.
fn all_pages_are_warm(server: &Server) {
    for (_, place) in PAGES {
        assert!(get(server, &format!("/console/{place}"), &[]).status < 500, "{place}");
    }
}
