//! Counters of queues that are deleted, and made again under the same name.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::histories::{Histories, check_finds_nothing};
use super::load::{CALLERS, Ledger, Pace, under_load};
use super::{
    CAUGHT_UP_WITHIN, Counts, QUEUE, SLOW_WITHIN, WITHIN, check_levels, check_sums, comes_within, complete_all, count,
    counts, counts_of, create, enqueue, names, queue_call, steps, wait_until_reported,
};
use crate::support::harness::{EndsWith, Launch, Server, eventually};

/// The limit for the first scan of all counters after a start, on a busy machine.
const ZERO_WITHIN: Duration = Duration::from_secs(120);

fn messages(count: usize) -> Vec<Value> {
    let message = |number| {
        let tenant = format!("t{}", number % 7);
        json!({"message_id": format!("m{number}"), "payload": "aGVsbG8=", "metadata": {"tenant": tenant}})
    };
    (0..count).map(message).collect()
}

fn delete(server: &Server) {
    queue_call(server, "DeleteQueue", json!({"queue": QUEUE, "request_token": "once"}));
}

/// The counters of the queue that are not 0, of all that were listed before.
fn left(server: &Server, names: &[String]) -> Counts {
    let mut counts = counts_of(server, names.iter().map(String::as_str));
    counts.retain(|_, count| *count != 0);
    counts
}

/// Makes a queue with counters of every kind, and answers their names once all are listed.
fn filled(server: &Server, shards: u32) -> Vec<String> {
    create(server, json!({"shards": shards, "count_by": ["tenant"]}));
    enqueue(server, &messages(60));
    complete_all(server);
    enqueue(server, &messages(80)[60..]);
    let listed = || {
        let names = names(server, "");
        let has = |name: &str| names.iter().any(|own| own.starts_with(name));
        has("completed_at.1")
            && has("run.")
            && has("wait.")
            && has("completed~tenant=t6")
            && has("depth.pending~tenant=t6")
    };
    comes_within(server, SLOW_WITHIN, "counters of every kind are listed", listed);
    names(server, "")
}

/// The queue made anew must count from 0, exactly.
fn check_anew(server: &Server, enqueued: i64) {
    wait_until_reported(server, WITHIN);
    let expected = [("enqueued", enqueued), ("depth.pending", enqueued), ("dequeued", 0), ("completed", 0)];
    let expected: Counts = expected.map(|(name, count)| (name.to_owned(), count)).into();
    assert_eq!(counts_of(server, expected.keys().map(String::as_str)), expected);
    check_levels(server);
    let by_value = counts(server, "enqueued~tenant=");
    assert_eq!(by_value.values().sum::<i64>(), enqueued, "{by_value:?}");
    let of_before = counts(server, "completed");
    assert!(of_before.is_empty(), "nothing of the queue before is left: {of_before:?}");
}

#[test]
fn a_deleted_queue_reads_0_within_three_seconds_and_one_made_anew_counts_from_0() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(data.path()).start();
    let names = filled(&server, 4);
    delete(&server);
    comes_within(&server, WITHIN, "a deleted queue reads 0", || left(&server, &names).is_empty());

    // With fewer shards: what the others counted before stays 0.
    create(&server, json!({"shards": 1, "count_by": ["tenant"]}));
    enqueue(&server, &messages(33));
    check_anew(&server, 33);
    check_series_after_deletion(&server);
    complete_all(&server);

    // At once, so that nobody sees the queue missing.
    delete_and_make_anew(&server, 2, 12);
    server.kill();
    let server = Launch::dev(data.path()).start();
    wait_until_reported(&server, CAUGHT_UP_WITHIN);
    check_anew(&server, 12);
}

/// Deletes the queue and makes it anew in the next call.
fn delete_and_make_anew(server: &Server, shards: u32, enqueued: u32) {
    queue_call(server, "DeleteQueue", json!({"queue": QUEUE, "request_token": "again"}));
    create(server, json!({"shards": shards, "count_by": ["tenant"]}));
    enqueue(server, &messages(enqueued as usize));
    check_anew(server, i64::from(enqueued));
}

/// A flow that fell to 0 with its queue: the steps add up to the count nevertheless.
fn check_series_after_deletion(server: &Server) {
    let expected = count(server, "enqueued");
    let adds_up = || steps(server, "enqueued").iter().sum::<i64>() == expected;
    assert!(eventually(CAUGHT_UP_WITHIN, adds_up), "{:?}, count {expected}", steps(server, "enqueued"));
}

#[test]
fn a_queue_deleted_right_before_a_kill_reads_0_after_the_start_also_under_load() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(data.path()).start();
    let names = filled(&server, 2);
    delete(&server);
    server.kill();

    let server = Launch::dev(data.path()).start();
    queue_call(&server, "CreateQueue", json!({"queue": {"name": "busy", "shards": 4}}));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ends = EndsWith(&is_over);
        let busy = || {
            while !is_over.load(Ordering::SeqCst) {
                queue_call(&server, "Enqueue", json!({"queue": "busy", "message": {"payload": "aGVsbG8="}}));
            }
        };
        (0..6).for_each(|_| drop(scope.spawn(busy)));
        let is_zero = || left(&server, &names).is_empty();
        assert!(eventually(ZERO_WITHIN, is_zero), "{:?}\n{}", left(&server, &names), server.printed());
        drop(ends);
    });
}

#[test]
fn a_queue_made_anew_with_fewer_shards_under_load_counts_what_it_holds() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let (server, ledger) = (Launch::dev(data.path()).start(), Ledger::default());
    create(&server, json!({"shards": 8, "count_by": ["tenant"]}));
    let (before_deletion, after_creation) = under_load(&server, &ledger, Pace::FULL, || {
        let mut enqueued = (0, 0);
        for shards in [4, 1] {
            ledger.wait_for_more(300);
            enqueued.0 = ledger.enqueued();
            queue_call(&server, "DeleteQueue", json!({"queue": QUEUE, "request_token": format!("from {shards}")}));
            create(&server, json!({"shards": shards, "count_by": ["tenant"]}));
            enqueued.1 = ledger.enqueued();
        }
        ledger.wait_for_more(300);
        enqueued
    });
    wait_until_reported(&server, CAUGHT_UP_WITHIN);
    // What was on its way at the creation may have met the queue before.
    let (all, on_their_way) = (ledger.enqueued(), CALLERS * Pace::FULL.messages);
    let (least, most) = (all - after_creation - on_their_way, all - before_deletion);
    let enqueued = count(&server, "enqueued");
    assert!((least..=most).contains(&enqueued), "{enqueued} of {least} to {most}; refused {:?}", ledger.refused());
    let check = |server: &Server| {
        check_levels(server);
        check_sums(server, &["tenant"]);
        check_finds_nothing(server);
        let histories = Histories::read(server, 1_000);
        histories.check();
        assert_eq!((histories.count("ENQUEUE"), &histories.gaps), (enqueued, &vec![]));
        assert!(histories.rows.keys().all(|(shard, _, _)| *shard == 0), "the queue has one shard");
    };
    check(&server);
    server.kill();
    let server = Launch::dev(data.path()).start();
    wait_until_reported(&server, CAUGHT_UP_WITHIN);
    check(&server);
}
