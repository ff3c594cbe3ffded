//! Counters of queues on Cassandra, with the queues in a directory: the two can be apart in time and in reach.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use super::load::{Ledger, Pace, under_load};
use super::{
    CAUGHT_UP_WITHIN, QUEUE, QUEUES, check_levels, check_series, complete_all, count, create, depths, enqueue,
    lease_all, number, reading, reported_to, settle, sum, wait_until_reported,
};
use crate::engines::cassandra::node;
use crate::servers::lent_node::lent_node;
use crate::support::harness::{Launch, Server, eventually};
use crate::support::{beside, usual_or_long};

/// The limit for a cluster and the server's sessions to come back, on a busy machine.
const BACK_WITHIN: Duration = Duration::from_secs(120);

/// Messages of three tenants.
pub fn messages(from: usize, to: usize) -> Vec<Value> {
    let message = |number: usize| {
        let tenant = format!("t{}", number % 3);
        json!({"message_id": format!("m{number}"), "payload": "aGVsbG8=", "metadata": {"tenant": tenant}})
    };
    (from..to).map(message).collect()
}

fn start(nodes: std::net::SocketAddr, keyspace: &str, data: &Path) -> Server {
    let data = data.to_str().expect("a plain name");
    let keyspace = format!("clusters.cassandra.keyspace={keyspace}");
    Launch::dev_on_cassandra(nodes).arg("--data").arg(data).arg("--set").arg(&keyspace).start()
}

fn complete(server: &Server, messages: usize) {
    let leases = lease_all(server);
    settle(server, leases.values().take(messages), &json!({"verb": "VERB_COMPLETE"}));
}

#[test]
fn while_the_counter_store_is_away_queues_go_on_and_then_the_counters_catch_up() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let mut node = lent_node().unwrap_or_else(|why| panic!("{why}"));
    let server = start(node.address(), "away", data.path());
    create(&server, json!({"shards": 2, "count_by": ["tenant"]}));
    enqueue(&server, &messages(0, 30));
    complete(&server, 10);
    wait_until_reported(&server, BACK_WITHIN);
    check_levels(&server);

    node.kill();
    let away = SystemTime::now();
    let mut acknowledged = Vec::new();
    for number in 30..90 {
        enqueue(&server, &messages(number, number + 1));
        acknowledged.push(SystemTime::now());
    }
    let body = json!({"queue": QUEUE, "message": messages(30, 31)[0]}).to_string();
    let repeated = server.post(&format!("{QUEUES}/Enqueue"), &body);
    assert_eq!((repeated.status, &repeated.json()["alreadyEnqueued"]), (200, &json!(true)), "{}", repeated.body);
    complete(&server, 40);
    assert_eq!(depths(&server)["depth.completed"], 50);
    assert!(reading(&server, "enqueued").is_none_or(|reading| reported_to(&reading) < Some(away)));

    node.bring_back().unwrap_or_else(|why| panic!("{why}"));
    let last = SystemTime::now();
    // Until the counters have caught up, each answer contains what its `reported_to` promises.
    let has_caught_up = || {
        let Some(reading) = reading(&server, "enqueued") else { return false };
        let Some(reported_to) = reported_to(&reading) else { return false };
        let promised = 30 + acknowledged.iter().filter(|at| **at <= reported_to).count();
        assert!(number(&reading["count"]) >= i64::try_from(promised).expect("few"), "{promised} promised: {reading}");
        reported_to >= last
    };
    assert!(eventually(BACK_WITHIN, has_caught_up), "{}", server.printed());
    check_levels(&server);
    assert_eq!((count(&server, "enqueued"), count(&server, "completed")), (90, 50));
    check_series(&server, "enqueued");
    assert!(eventually(CAUGHT_UP_WITHIN, || sum(&server, "enqueued~tenant=") == 90));
    assert!(server.stop().success());
}

/// How long the counter store does not answer, and how hard each of three callers works meanwhile.
fn outage() -> (Duration, Pace) {
    usual_or_long(
        (Duration::from_secs(20), Pace { messages: 1, turn: Duration::from_millis(50) }),
        (Duration::from_secs(600), Pace { messages: 10, turn: Duration::from_millis(75) }), // 2,000 mutations a second
    )
}

#[test]
fn while_the_counter_store_hangs_queues_go_on_and_then_counters_and_history_catch_up() {
    let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on disk");
    let mut node = lent_node().unwrap_or_else(|why| panic!("{why}"));
    let (server, ledger) = (start(node.address(), "hangs", data.path()), Ledger::default());
    let (lasts, pace) = outage();
    create(&server, Ledger::queue());
    under_load(&server, &ledger, pace, || {
        ledger.wait_for_more(200);
        wait_until_reported(&server, BACK_WITHIN);
        let yardstick = beside(&server);
        node.pause();
        let (hung, before) = (Instant::now(), ledger.mutations());
        // The signal is on its way.
        let stands = SystemTime::now() + Duration::from_secs(1);
        let is_over = || {
            assert!(reading(&server, "enqueued").is_none_or(|reading| reported_to(&reading) <= Some(stands)));
            hung.elapsed() >= lasts && ledger.mutations() - before > 1_000
        };
        assert!(eventually(lasts + BACK_WITHIN, is_over), "queues go on: {} mutations", ledger.mutations() - before);
        let (mutations, seconds) = (ledger.mutations() - before, hung.elapsed().as_secs_f64());
        node.bring_back().unwrap_or_else(|why| panic!("{why}"));
        println!("{:.0} mutations a second, the slowest call {:?}", mutations as f64 / seconds, ledger.slowest());
        let allowed = lasts / 2 + yardstick.slowest_call(hung);
        assert!(ledger.slowest() < allowed, "no call waits for the counters: {:?}", ledger.slowest());
        let resumed = SystemTime::now();
        let has_caught_up =
            || reading(&server, "enqueued").is_some_and(|reading| reported_to(&reading) > Some(resumed));
        assert!(eventually(lasts.max(BACK_WITHIN) / 2, has_caught_up), "also under load:\n{}", server.printed());
    });
    ledger.check_nothing_refused();
    ledger.check_healed(&server);
    assert!(server.stop().success(), "an orderly stop");
}

/// Copies a directory with everything in it.
fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp starts");
    assert!(copied.success(), "{} is copied", from.display());
}

#[test]
fn an_older_copy_of_the_queue_directory_put_back_counts_as_the_copy_does() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (data, kept) = (folder.path().join("data"), folder.path().join("kept"));
    let start = || start(node(), "older_copy", &data);
    let server = start();
    create(&server, json!({"shards": 2, "count_by": ["tenant"]}));
    enqueue(&server, &messages(0, 20));
    complete(&server, 5);
    wait_until_reported(&server, BACK_WITHIN);
    let (levels, dequeued) = (check_levels(&server), count(&server, "dequeued"));
    assert!(server.stop().success());
    copy(&data, &kept);

    let server = start();
    enqueue(&server, &messages(20, 70));
    let later = complete_all(&server);
    wait_until_reported(&server, BACK_WITHIN);
    assert_eq!((count(&server, "enqueued"), later), (70, 50));
    server.kill();
    std::fs::remove_dir_all(&data).expect("the newer directory goes");
    copy(&kept, &data);

    let server = start();
    wait_until_reported(&server, BACK_WITHIN);
    assert_eq!(check_levels(&server), levels, "the counters follow the store back");
    assert_eq!((count(&server, "enqueued"), count(&server, "dequeued")), (20, dequeued));
    assert_eq!(sum(&server, "depth.pending~tenant="), 0);
    assert_eq!(sum(&server, "enqueued~tenant="), 20);
    enqueue(&server, &messages(100, 107));
    wait_until_reported(&server, BACK_WITHIN);
    assert_eq!(count(&server, "enqueued"), 27);
    check_levels(&server);
    server.kill();

    let server = start();
    wait_until_reported(&server, BACK_WITHIN);
    assert_eq!(count(&server, "enqueued"), 27, "the next report has not fallen behind the totals of before");
    check_levels(&server);
    assert!(server.stop().success());
}
