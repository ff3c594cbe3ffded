//! Counts by the values of metadata keys: names, sums, values that find no room or give way, and keys that change under load.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::histories::{check_finds_nothing, found};
use super::{
    CAUGHT_UP_WITHIN, Counts, GIVEN_WAY_WITHIN, NAMESPACE, QUEUE, WITHIN, check_levels, check_sums, comes_within,
    complete_all, count, counts, counts_of, create, depths, enqueue, lease_all, queue_call, settle, sum,
    wait_until_reported,
};
use crate::support::harness::{EndsWith, Launch, Server, eventually};
use crate::support::usual_or_long;

fn tagged(id: String, key: &str, value: &str) -> Value {
    json!({"message_id": id, "payload": "aGVsbG8=", "metadata": {key: value}})
}

/// The counters that `counter ls` lists under a prefix, as the command line prints them.
fn listed(server: &Server, prefix: &str) -> Counts {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tallystone"));
    command.args(["counter", "ls", "--all", "-o", "jsonl", "-n", NAMESPACE, prefix]);
    let output = command.env("TALLYSTONE_SERVER", server.address.to_string()).output().expect("the command starts");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    let row = |line: &str| {
        let row: Value = serde_json::from_str(line).expect("a row");
        (row["counterName"].as_str().expect("a name").to_owned(), super::number(&row["count"]))
    };
    text.lines().map(row).collect()
}

#[test]
fn the_depths_of_fifty_tenants_are_listed_and_add_up_to_the_depth_of_the_queue() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(data.path()).start();
    create(&server, json!({"shards": 4, "count_by": ["tenant"]}));
    let mut expected: BTreeMap<String, i64> = BTreeMap::new();
    let messages: Vec<Value> = (0..50)
        .flat_map(|tenant: i64| (0..=tenant % 9).map(move |number| (tenant, number)))
        .map(|(tenant, number)| tagged(format!("m{tenant}-{number}"), "tenant", &format!("t{tenant}")))
        .collect();
    for message in &messages {
        let tenant = message["metadata"]["tenant"].as_str().expect("a tenant");
        *expected.entry(format!("{QUEUE}~depth.pending~tenant={tenant}")).or_default() += 1;
    }
    enqueue(&server, &messages);
    let prefix = format!("{QUEUE}~depth.pending~tenant=");
    comes_within(&server, WITHIN, "all are listed", || listed(&server, &prefix) == expected);
    assert_eq!(expected.len(), 50);
    assert_eq!(expected.values().sum::<i64>(), depths(&server)["depth.pending"]);
    assert_eq!(complete_all(&server), i64::try_from(messages.len()).expect("few"));
    let all_gone = || listed(&server, &prefix).values().all(|count| *count == 0);
    comes_within(&server, WITHIN, "all are gone", all_gone);
    wait_until_reported(&server, WITHIN);
    check_sums(&server, &["tenant"]);
}

/// A value with the pair that the names of its counters have, as the issue of names says: bytes outside `[A-Za-z0-9._:-]` as
/// `%XX`; more than 100 bytes as the first 60, without a part of a `%XX`, and a hash.
fn odd_values() -> Vec<(String, String)> {
    let hashed = |value: &str, head: String| {
        let hash = Sha256::digest([b"tenant\0", value.as_bytes()].concat());
        let hex: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{head}~{hex}")
    };
    let plain = |value: &str, pair: &str| (value.to_owned(), format!("tenant={pair}"));
    let longest = "a".repeat(93);
    let too_long = "a".repeat(94);
    let greatest = "b".repeat(256);
    let script = "日本".repeat(20);
    vec![
        plain("acme", "acme"),
        plain("A.b_c:d-9", "A.b_c:d-9"),
        plain("two words", "two%20words"),
        plain("\"quoted\" 'too'", "%22quoted%22%20%27too%27"),
        plain("~none", "%7Enone"),
        plain("~other", "%7Eother"),
        plain("100%", "100%25"),
        plain("%41", "%2541"),
        plain("a=b/c", "a%3Db%2Fc"),
        plain("naïve", "na%C3%AFve"),
        plain("мир", "%D0%BC%D0%B8%D1%80"),
        plain("line\nbreak\ttab", "line%0Abreak%09tab"),
        plain(&longest, &longest),
        (too_long.clone(), hashed(&too_long, format!("tenant={}", "a".repeat(53)))),
        (greatest.clone(), hashed(&greatest, format!("tenant={}", "b".repeat(53)))),
        // 7 bytes of the key, then 17 whole escapes of 3 bytes: the 18th would be cut.
        (script.clone(), hashed(&script, format!("tenant={}", "%E6%97%A5%E6%9C%AC".repeat(2) + "%E6%97%A5%E6%9C"))),
    ]
}

#[test]
fn odd_values_have_the_names_that_the_rules_say_and_count_apart() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(data.path()).start();
    create(&server, json!({"shards": 2, "count_by": ["tenant"]}));
    let (values, mut messages, mut expected) = (odd_values(), Vec::new(), Counts::new());
    for (index, (value, pair)) in values.iter().enumerate() {
        for number in 0..=index {
            messages.push(tagged(format!("m{index}-{number}"), "tenant", value));
        }
        expected.insert(format!("depth.pending~{pair}"), i64::try_from(index + 1).expect("few"));
    }
    messages.push(json!({"message_id": "without"}));
    messages.push(tagged("other key".to_owned(), "region", "eu"));
    expected.insert("depth.pending~tenant=~none".to_owned(), 2);
    enqueue(&server, &messages);
    wait_until_reported(&server, WITHIN);
    let found = counts_of(&server, expected.keys().map(String::as_str));
    assert_eq!(found, expected);
    let all_listed = || counts(&server, "depth.pending~") == expected;
    comes_within(&server, WITHIN, "all are listed", all_listed);
    complete_all(&server);
    server.kill();
    let server = Launch::dev(data.path()).start();
    wait_until_reported(&server, CAUGHT_UP_WITHIN);
    check_sums(&server, &["tenant"]);
    let completed = expected.into_iter().map(|(name, count)| (name.replace("depth.pending", "completed"), count));
    assert_eq!(counts(&server, "completed~"), completed.collect::<Counts>());
    assert_eq!(counts(&server, "depth.pending~"), Counts::new());
}

#[test]
fn values_that_find_no_room_are_other_those_that_gave_way_are_gone_and_the_sums_hold() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(data.path()).start();
    create(&server, json!({"shards": 1, "count_by": ["tenant"], "count_by_values_max": 3}));
    let batch = |from: usize, to: usize| -> Vec<Value> {
        (from..to).map(|number| tagged(format!("m{number}"), "tenant", &format!("t{number}"))).collect()
    };
    enqueue(&server, &batch(0, 10));
    wait_until_reported(&server, WITHIN);
    let pending = |counts: &Counts| counts.values().sum::<i64>();
    let found = counts_of(
        &server,
        ["t0", "t1", "t2", "t3", "~other", "~gone"]
            .map(|v| format!("depth.pending~tenant={v}"))
            .iter()
            .map(String::as_str),
    );
    assert_eq!(found.values().copied().collect::<Vec<_>>(), [1, 1, 1, 0, 0, 7], "t0 to t3, ~gone, ~other: {found:?}");
    assert_eq!(pending(&found), 10);
    check_sums(&server, &["tenant"]);

    // All are completed, so each new value takes the place of one without messages.
    assert_eq!(complete_all(&server), 10);
    enqueue(&server, &batch(10, 13));
    check_sums(&server, &["tenant"]);
    let names =
        ["t0", "t1", "t2", "t10", "t11", "t12", "~gone", "~other"].map(|value| format!("enqueued~tenant={value}"));
    let counted = || names.iter().map(|name| count(&server, name)).collect::<Vec<_>>();
    let expected = [0, 0, 0, 1, 1, 1, 3, 7];
    comes_within(&server, GIVEN_WAY_WITHIN, "those that gave way are gone", || counted() == expected);

    // A value that comes back begins anew, and what it was before stays with those that are gone.
    assert_eq!(complete_all(&server), 3);
    enqueue(&server, &[tagged("again".to_owned(), "tenant", "t0")]);
    let expected = [1, 0, 0, 0, 1, 1, 4, 7];
    comes_within(&server, GIVEN_WAY_WITHIN, "those that gave way are gone", || counted() == expected);
    check_sums(&server, &["tenant"]);
    server.kill();
    let server = Launch::dev(data.path()).start();
    wait_until_reported(&server, CAUGHT_UP_WITHIN);
    assert_eq!(names.iter().map(|name| count(&server, name)).collect::<Vec<_>>(), expected);
    check_levels(&server);
    check_sums(&server, &["tenant"]);
}

/// Enqueues messages with both keys until it is told to end, and works most of them off. Answers how many were enqueued.
fn keep_busy(server: &Server, caller: usize, is_over: &AtomicBool) -> i64 {
    let mut enqueued = 0;
    while !is_over.load(Ordering::SeqCst) {
        let message = |number: i64| {
            let (tenant, region) = (format!("t{}", number % 5), format!("r{}", number % 3));
            json!({"message_id": format!("c{caller}-{number}"), "metadata": {"tenant": tenant, "region": region}})
        };
        let messages: Vec<Value> = (enqueued..enqueued + 10).map(message).collect();
        enqueue(server, &messages);
        enqueued += 10;
        let answer = queue_call(server, "Dequeue", json!({"queue": QUEUE, "max_messages": 8}));
        let leases = answer["leases"].as_array().expect("leases");
        let tokens: Vec<String> =
            leases.iter().map(|lease| lease["leaseToken"].as_str().expect("a token").to_owned()).collect();
        if !tokens.is_empty() {
            settle(server, &tokens, &json!({"verb": "VERB_COMPLETE"}));
        }
    }
    enqueued
}

#[test]
fn keys_that_change_under_load_count_each_message_under_those_of_its_enqueue() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Arc::new(Launch::dev(data.path()).start());
    create(&server, json!({"shards": 2}));
    let is_over = Arc::new(AtomicBool::new(false));
    let ends = EndsWith(&is_over);
    let callers: Vec<_> = (0..3)
        .map(|caller| {
            let (server, is_over) = (Arc::clone(&server), Arc::clone(&is_over));
            thread::spawn(move || keep_busy(&server, caller, &is_over))
        })
        .collect();
    let change = |keys: &[&str]| {
        let before = count(&server, "enqueued");
        let queue = if keys.is_empty() {
            json!({"queue": {"name": QUEUE}, "reset": ["count_by"]})
        } else {
            json!({"queue": {"name": QUEUE, "count_by": keys}})
        };
        queue_call(&server, "UpdateQueue", queue);
        // Some messages are counted under each set of keys.
        assert!(eventually(CAUGHT_UP_WITHIN, || count(&server, "enqueued") > before + 60));
    };
    for keys in [&["tenant"][..], &["region", "tenant"], &["region"], &[], &["tenant"], &["tenant", "region"]] {
        change(keys);
    }
    drop(ends);
    let enqueued: i64 = callers.into_iter().map(|caller| caller.join().expect("no caller panics")).sum();
    wait_until_reported(&server, WITHIN);
    assert_eq!(check_levels(&server)["depth.completed"] + depths(&server)["depth.pending"], enqueued);
    let flows = |key: &str| {
        let of = |counter: &str| sum(&server, &format!("{counter}~{key}="));
        (of("enqueued"), of("completed") + of("depth.pending"), of("dequeued"))
    };
    for key in ["tenant", "region"] {
        let (counted, by_state, _) = flows(key);
        assert!(counted > 100 && counted < enqueued, "{key}: {counted} of {enqueued}");
        assert_eq!(counted, by_state, "{key}: each counted message is in the state that the queue says");
    }
    let pending = lease_all(&server);
    settle(&server, pending.values(), &json!({"verb": "VERB_COMPLETE"}));
    wait_until_reported(&server, WITHIN);
    for key in ["tenant", "region"] {
        let (counted, completed, dequeued) = flows(key);
        assert_eq!((counted, counted), (completed, dequeued), "{key}");
        assert_eq!(sum(&server, &format!("depth.running~{key}=")), 0);
    }
    check_levels(&server);
}

#[test]
fn thousands_of_values_are_counted_within_their_bound_and_the_sums_hold() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(data.path()).start();
    create(&server, json!({"shards": 2, "count_by": ["tenant"], "count_by_values_max": 500}));
    let batch = |from: usize, to: usize| -> Vec<Value> {
        (from..to).map(|number| tagged(format!("m{number}"), "tenant", &format!("t{number}"))).collect()
    };
    enqueue(&server, &batch(0, 3_000));
    wait_until_reported(&server, CAUGHT_UP_WITHIN);
    check_sums(&server, &["tenant"]);
    assert_eq!(count(&server, "depth.pending~tenant=~other"), 3_000 - 2 * 500);
    assert_eq!(complete_all(&server), 3_000);
    enqueue(&server, &batch(3_000, 4_000));
    wait_until_reported(&server, CAUGHT_UP_WITHIN);
    check_sums(&server, &["tenant"]);
    let own = counts(&server, "enqueued~tenant=t").len();
    assert_eq!(own, 2 * 500, "values with counts of their own");
    check_levels(&server);
}

/// A key that needs an escape for almost every byte.
const ODD_KEY: &str = "naïve \"key\"~100%";
const ODD_KEY_IN_NAMES: &str = "na%C3%AFve%20%22key%22%7E100%25";

#[test]
fn odd_values_of_an_odd_key_add_up_and_find_their_messages_exactly() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(data.path()).start();
    create(&server, json!({"shards": 2, "count_by": ["tenant", ODD_KEY]}));
    let values: Vec<String> = odd_values().into_iter().map(|(value, _)| value).chain(["я".repeat(128)]).collect();
    let message = |(index, value): (usize, &String)| {
        let metadata = json!({"tenant": value, ODD_KEY: value});
        json!({"message_id": format!("m{index}"), "metadata": metadata})
    };
    enqueue(&server, &values.iter().enumerate().map(message).collect::<Vec<_>>());
    wait_until_reported(&server, CAUGHT_UP_WITHIN);
    check_sums(&server, &["tenant", ODD_KEY_IN_NAMES]);
    let counted = counts(&server, &format!("depth.pending~{ODD_KEY_IN_NAMES}="));
    assert_eq!(counted.len(), values.len(), "each value counts apart: {counted:?}");
    // The history has come so far when a check is over.
    check_finds_nothing(&server);
    let mut keys = Vec::new();
    for value in &values {
        for key in ["tenant", ODD_KEY] {
            keys.extend(found(&server, json!({"filter": {key: value}})));
        }
        let [.., one, other] = &keys[..] else { panic!("{value} is found") };
        assert_eq!((one, keys.len() % 2), (other, 0), "{value} finds one message by either key");
    }
    keys.dedup();
    assert_eq!(keys.len(), values.len(), "each value finds its own message");
    assert_eq!(found(&server, json!({"filter": {"tenant": "two%20words"}})), [""; 0], "values are not names");
}

/// The memory of a process that is in use, in bytes.
fn resident_bytes(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("the server runs");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    1_024 * resident.and_then(|kib| kib.trim().parse::<u64>().ok()).expect("its memory is told")
}

#[test]
fn more_values_of_one_key_than_the_greatest_bound_keep_to_it_and_add_up() {
    const OWN: usize = 10_000;
    let all = usual_or_long(30_000, 100_000);
    const WRITERS: usize = 4;
    const RESIDENT: u64 = 1 << 30;
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(data.path()).start();
    create(&server, json!({"shards": 1, "count_by": ["tenant"], "count_by_values_max": OWN}));
    let write = |writer: usize| {
        let numbers: Vec<usize> = (0..all).filter(|number| number % WRITERS == writer).collect();
        for some in numbers.chunks(100) {
            let message = |number: &usize| tagged(format!("m{number}"), "tenant", &format!("t{number}"));
            enqueue(&server, &some.iter().map(message).collect::<Vec<_>>());
        }
    };
    let write = &write;
    thread::scope(|scope| (0..WRITERS).for_each(|writer| drop(scope.spawn(move || write(writer)))));
    wait_until_reported(&server, CAUGHT_UP_WITHIN);
    let levels = check_levels(&server);
    for counter in ["depth.pending", "enqueued"] {
        let by_value = counts(&server, &format!("{counter}~tenant="));
        assert_eq!(by_value.len(), OWN + 1, "values with counts of their own, and ~other");
        assert_eq!(by_value[&format!("{counter}~tenant=~other")], i64::try_from(all - OWN).expect("few"));
        assert_eq!(by_value.values().sum::<i64>(), levels["depth.pending"], "{counter}");
    }
    let resident = resident_bytes(&server);
    println!("{} MiB are resident", resident >> 20);
    assert!(resident < RESIDENT, "{} MiB are resident", resident >> 20);
}
