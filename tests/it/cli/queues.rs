//! Queues from the command line: messages in, leases out, settlements, dead letters.

use serde_json::Value;

use super::{Desk, Ran};

/// Runs a line and reads its answer as JSON.
fn json(desk: &Desk, line: &str) -> Value {
    serde_json::from_str(&desk.shell(&format!("tallystone {line} -o json")).ok()).expect("one JSON document")
}

/// Leases one message and answers its lease token.
fn pull(desk: &Desk, queue: &str) -> String {
    let tokens = desk.run(&["msg", "pull", "-q", queue, "--tokens"]).ok();
    let mut lines = tokens.lines();
    let token = lines.next().expect("a message is ready").to_owned();
    assert_eq!(lines.next(), None, "one lease was asked for");
    token
}

fn check(ran: &Ran, code: i32, words: &str) {
    assert_eq!(ran.code, code, "{}{}", ran.out, ran.err);
    assert!(ran.err.contains(words), "{words:?} is missing of {:?}", ran.err);
}

#[test]
fn messages_are_served_by_priority_with_what_they_were_sent_with() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders"]).ok();
    desk.write("payload.bin", "line one\nline two");
    desk.shell("tallystone msg push -q orders late --priority 9").ok();
    desk.shell("tallystone msg push -q orders -f payload.bin --priority 7 --meta a=b=c --id mine").ok();
    desk.shell("printf first | tallystone msg push -q orders --file - --priority=-5").ok();
    let pulled = json(&desk, "msg pull -q orders --max 3 --lease 5m");
    let leases = pulled["leases"].as_array().expect("leases");
    let payloads: Vec<_> = leases.iter().map(|lease| lease["message"]["payload"].as_str().expect("base64")).collect();
    assert_eq!(payloads, ["Zmlyc3Q=", "bGluZSBvbmUKbGluZSB0d28=", "bGF0ZQ=="]);
    assert_eq!(
        (&leases[1]["message"]["messageId"], &leases[1]["message"]["metadata"]["a"]),
        (&"mine".into(), &"b=c".into())
    );
    assert_eq!(desk.run(&["msg", "get", "-q", "orders", "mine", "--payload"]).ok(), "line one\nline two");
    let empty = desk.run(&["msg", "pull", "-q", "orders"]);
    check(&empty, 0, "no message is ready");
}

#[test]
fn a_message_that_is_pushed_again_is_there_once() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders"]).ok();
    let push = |payload: &str| desk.run(&["msg", "push", "-q", "orders", payload, "--id", "order-1", "-o", "csv"]);
    assert!(push("a").ok().contains("order-1,PENDING,false,m."));
    assert!(push("a").ok().contains("order-1,PENDING,true,m."));
    check(&push("b"), 4, "TOKEN_REUSED");
    assert_eq!(json(&desk, "queue depth orders")["pending"], "1");
}

#[test]
fn a_push_under_the_id_of_a_message_that_is_over_says_how_the_id_becomes_free() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders", "--max-attempts", "1"]).ok();
    let push = |id: &str| desk.run(&["msg", "push", "-q", "orders", "a", "--id", id]);
    let settle = |verb: &str| {
        let token = desk.run(&["msg", "pull", "-q", "orders", "--tokens"]).ok();
        desk.run(&["msg", verb, "-q", "orders", token.trim()]).ok();
    };
    for (id, verb) in [("done", "complete"), ("dead", "fail")] {
        push(id).ok();
        settle(verb);
    }
    push("gone").ok();
    desk.run(&["msg", "cancel", "-q", "orders", "--id", "gone"]).ok();
    check(&push("done"), 8, "message done is completed already and does not run again; nothing was enqueued");
    check(&push("done"), 8, "tallystone queue purge orders --state completed");
    check(&push("done"), 8, "tallystone queue update orders --reuse-ids when-over");
    check(&push("gone"), 8, "tallystone queue purge orders --state canceled");
    check(&push("dead"), 8, "tallystone dlq redrive -q orders dead");
    desk.run(&["queue", "purge", "orders", "--state", "completed", "--yes"]).ok();
    check(&push("done"), 0, "");
    check(
        &desk.run(&["queue", "purge", "orders", "--state", "canceled"]),
        2,
        "permanently remove 1 message of queue orders",
    );
    desk.run(&["queue", "purge", "orders", "--state", "canceled", "--yes"]).ok();
    check(&push("gone"), 0, "");
}

#[test]
fn a_push_under_an_id_with_a_time_whose_message_is_gone_says_that_nothing_runs() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders"]).ok();
    let id = uuid::Uuid::now_v7().to_string();
    let push = || desk.run(&["msg", "push", "-q", "orders", "a", "--id", &id]);
    push().ok();
    assert!(push().ok().contains("PENDING"));
    desk.run(&["msg", "cancel", "-q", "orders", "--id", &id]).ok();
    desk.run(&["queue", "purge", "orders", "--state", "canceled", "--yes"]).ok();
    check(&push(), 8, "was enqueued before and is gone; nothing was enqueued, and nothing runs");
    check(&push(), 8, "to repeat the work, push it with another id");
    assert_eq!(json(&desk, "queue depth orders")["pending"], "0");
}

#[test]
fn an_empty_id_redrives_nothing() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders", "--max-attempts", "1"]).ok();
    desk.run(&["msg", "push", "-q", "orders", "a"]).ok();
    let token = pull(&desk, "orders");
    // What a worker was told may begin like a flag.
    desk.run(&["msg", "fail", "-q", "orders", &token, "--error", "- refused --twice"]).ok();
    check(&desk.run(&["dlq", "redrive", "-q", "orders", ""]), 2, "INVALID_MESSAGE_ID");
    assert_eq!(json(&desk, "queue depth orders")["errored"], "1");
    assert!(desk.run(&["msg", "ls", "-q", "orders", "--state", "errored"]).ok().contains("- refused --twice"));
    desk.run(&["dlq", "redrive", "-q", "orders"]).ok();
    assert_eq!(json(&desk, "queue depth orders")["pending"], "1");
}

#[test]
fn lists_of_delayed_and_canceled_messages_say_when_and_why() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders"]).ok();
    desk.run(&["msg", "push", "-q", "orders", "x", "--id", "later", "--at", "2030-01-01T00:00:00Z"]).ok();
    desk.run(&["msg", "push", "-q", "orders", "x", "--id", "never"]).ok();
    desk.run(&["msg", "cancel", "-q", "orders", "--id", "never", "--reason", "sold out"]).ok();
    let rows = |state: &str| -> Vec<Vec<String>> {
        let printed = desk.run(&["msg", "ls", "-q", "orders", "--state", state, "-o", "csv"]).ok();
        printed.lines().map(|line| line.split(',').map(str::to_owned).collect()).collect()
    };
    let later = rows("invisible");
    assert_eq!((&*later[0][2], &*later[1][2]), ("visible_time", "2030-01-01T00:00:00Z"), "{later:?}");
    let never = rows("canceled");
    assert_eq!(never[0][2..4], ["cancel_reason", "end_time"], "{never:?}");
    assert!(never[1][2] == "sold out" && never[1][3].ends_with('Z'), "{never:?}");
}

#[test]
fn the_id_of_a_message_that_is_over_comes_again_where_the_queue_says_so() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders", "--reuse-ids", "when-over"]).ok();
    let push = |payload: &str| desk.run(&["msg", "push", "-q", "orders", payload, "--id", "job"]);
    push("a").ok();
    let token = pull(&desk, "orders");
    desk.run(&["msg", "complete", "-q", "orders", &token]).ok();
    check(&push("a"), 8, "message job is completed already");
    push("b").ok();
    assert_eq!(json(&desk, "queue depth orders")["pending"], "1");
    let described = desk.run(&["queue", "describe", "orders", "-o", "csv"]).ok();
    assert!(described.contains("reuse_ids,WHEN_OVER"), "{described}");
    desk.run(&["queue", "update", "orders", "--reset", "reuse_ids"]).ok();
    assert_eq!(json(&desk, "queue describe orders")["queue"]["reuseIds"], "REUSE_IDS_AFTER_WINDOW");
}

#[test]
fn a_waiting_message_gets_another_payload_and_other_metadata() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders"]).ok();
    desk.run(&["msg", "push", "-q", "orders", "old", "--id", "a", "--meta", "tenant=acme"]).ok();
    let payload = || desk.run(&["msg", "get", "-q", "orders", "a", "--payload"]).ok();
    desk.run(&["msg", "update", "-q", "orders", "a", "--payload", "new", "--meta", "tenant=brick", "--meta", "zone=b"])
        .ok();
    assert_eq!(payload(), "new");
    let metadata = || json(&desk, "msg get -q orders a")["message"]["metadata"].clone();
    assert_eq!(metadata(), serde_json::json!({"tenant": "brick", "zone": "b"}));
    desk.write("payload.bin", "line one\nline two");
    desk.run(&["msg", "update", "-q", "orders", "a", "--payload-file", "payload.bin"]).ok();
    assert_eq!(payload(), "line one\nline two");
    desk.shell("printf -- --x | tallystone msg update -q orders a --payload-file - --clear-meta").ok();
    assert_eq!((payload().as_str(), metadata()), ("--x", serde_json::json!({})));
    desk.run(&["msg", "update", "-q", "orders", "a", "--payload", ""]).ok();
    assert_eq!(payload(), "");
    check(&desk.run(&["msg", "update", "-q", "orders", "a"]), 2, "--payload");
    check(
        &desk.run(&["msg", "update", "-q", "orders", "a", "--meta", "a=b", "--clear-meta"]),
        2,
        "cannot be used with",
    );
    pull(&desk, "orders");
    check(&desk.run(&["msg", "update", "-q", "orders", "a", "--payload", "late"]), 4, "the message is running");
}

#[test]
fn messages_of_one_tenant_are_purged_or_canceled_and_those_of_others_stay() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders"]).ok();
    for (id, tenant) in [("a", "acme"), ("b", "brick"), ("c", "acme"), ("d", "brick")] {
        desk.run(&["msg", "push", "-q", "orders", "x", "--id", id, "--meta", &format!("tenant={tenant}")]).ok();
    }
    let filter = ["--meta", "tenant=acme"];
    let purge = |more: &[&str]| desk.run(&[&["queue", "purge", "orders"], &filter[..], more].concat());
    check(&purge(&["--dry-run"]), 0, "dry run: would purge 2 messages of queue orders");
    check(&purge(&[]), 2, "this would cancel 2 messages of queue orders, all that match; confirm with --yes");
    purge(&["--yes"]).ok();
    let states = || {
        let depth = json(&desk, "queue depth orders");
        ["pending", "running", "canceled"].map(|state| depth[state].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(states(), ["2", "0", "2"]);
    purge(&["--state", "canceled", "--yes"]).ok();
    assert_eq!(states(), ["2", "0", "0"]);
    pull(&desk, "orders");
    let cancel = |more: &[&str]| desk.run(&[&["msg", "cancel", "-q", "orders"], more].concat());
    check(&cancel(&["--meta", "tenant=brick", "--dry-run"]), 0, "dry run: would cancel 2 messages of queue orders");
    check(&cancel(&["--meta", "tenant=brick"]), 2, "cancel 2 messages of queue orders, running ones included");
    cancel(&["--meta", "tenant=brick", "--yes", "--reason", "the tenant left"]).ok();
    assert_eq!(states(), ["0", "1", "1"]);
    let running = json(&desk, "msg ls -q orders --state running");
    assert_eq!(running["messages"][0]["cancelReason"], "the tenant left", "{running}");
    check(&cancel(&[]), 2, "--meta");
}

#[test]
fn each_line_of_a_file_becomes_a_message() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders", "--shards", "2"]).ok();
    let lines: String = (0..250).map(|line| format!("line {line}\n")).collect();
    desk.write("lines.txt", &lines);
    let pushed = desk.run(&["msg", "push", "-q", "orders", "-f", "lines.txt", "--lines", "-o", "jsonl"]).ok();
    assert_eq!(pushed.lines().count(), 250);
    let depth = json(&desk, "queue depth orders");
    assert_eq!((&depth["pending"], &depth["payloadBytes"]), (&"250".into(), &(lines.len() - 250).to_string().into()));
    let by_shard = desk.run(&["queue", "depth", "orders", "--by-shard", "-o", "csv"]).ok();
    assert_eq!(by_shard.lines().count(), 3, "a header and two shards: {by_shard}");
    desk.run(&["queue", "create", "windows"]).ok();
    desk.write("windows.txt", "one\r\ntwo\r\nthr\ree");
    desk.run(&["msg", "push", "-q", "windows", "-f", "windows.txt", "--lines"]).ok();
    assert_eq!(json(&desk, "queue depth windows")["payloadBytes"], "12", "an end of line is no part of a line");
    desk.write("long.txt", &format!("short\n{}\n", "x".repeat(32_769)));
    let ran = desk.run(&["msg", "push", "-q", "orders", "-f", "long.txt", "--lines"]);
    check(&ran, 6, "line 2: ");
    assert_eq!(json(&desk, "queue depth orders")["pending"], "251");
    desk.write("longer.txt", &format!("{}{}\n", "short\n".repeat(120), "x".repeat(70_000)));
    let ran = desk.run(&["msg", "push", "-q", "orders", "-f", "longer.txt", "--lines"]);
    check(&ran, 2, "line 121 has 70000 bytes");
    assert!(ran.err.contains("100 lines were pushed before the failure; continue with line 101"), "{}", ran.err);
    assert_eq!(json(&desk, "queue depth orders")["pending"], "351");
}

#[test]
fn no_id_of_a_message_looks_like_a_row_of_a_table() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders"]).ok();
    let fake = "a\nfaked        COMPLETED";
    desk.run(&["msg", "push", "-q", "orders", "x", "--id", fake]).ok();
    for table in
        [&["msg", "ls", "-q", "orders"][..], &["msg", "peek", "-q", "orders"], &["msg", "pull", "-q", "orders"]]
    {
        let shown = desk.run(table).ok();
        assert_eq!(shown.lines().count(), 2, "a header and a row: {shown}");
        assert!(shown.contains("a\\nfaked"), "{shown}");
    }
}

#[test]
fn a_lease_is_extended_settled_once_and_then_lost() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders"]).ok();
    for id in ["a", "b", "c"] {
        desk.run(&["msg", "push", "-q", "orders", id, "--id", id]).ok();
    }
    let [a, b, c] = [(); 3].map(|()| pull(&desk, "orders"));
    let extended = desk.run(&["msg", "extend", "-q", "orders", &a, "--lease", "10m", "-o", "csv"]).ok();
    assert!(extended.contains(&format!("{a},600s,false")), "{extended}");
    check(&desk.run(&["msg", "extend", "-q", "orders", "forged", &c]), 6, "1 of 2 leases could not be extended");
    let completed = desk.run(&["msg", "complete", "-q", "orders", &a, &b, "-o", "csv"]).ok();
    assert_eq!(completed.matches(",COMPLETED,").count(), 2, "{completed}");
    desk.run(&["msg", "complete", "-q", "orders", &a]).ok();
    check(&desk.run(&["msg", "fail", "-q", "orders", &a]), 4, "LEASE_LOST");
    check(&desk.run(&["msg", "complete", "-q", "orders", &a, &c, "forged"]), 6, "forged: ");
    let forged = desk.run(&["msg", "extend", "-q", "orders", "forged"]);
    check(&forged, 2, "forged: ");
    assert!(forged.err.contains("(INVALID_LEASE_TOKEN)") && forged.err.contains("1 of 1 leases"), "{}", forged.err);
}

#[test]
fn a_message_out_of_attempts_is_a_dead_letter_until_it_is_redriven() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders", "--max-attempts", "1"]).ok();
    for (id, tenant) in [("a", "tenant=x"), ("b", "tenant=y")] {
        desk.run(&["msg", "push", "-q", "orders", id, "--id", id, "--meta", tenant]).ok();
        let lease = pull(&desk, "orders");
        desk.run(&["msg", "fail", "-q", "orders", &lease, "--error", "no such address", "--signature", "smtp"]).ok();
    }
    let listed = desk.run(&["dlq", "ls", "-q", "orders", "--messages"]).ok();
    assert_eq!(listed.matches("smtp: no such address").count(), 2, "{listed}");
    let explained = desk.run(&["msg", "explain", "-q", "orders", "a"]).ok();
    assert!(explained.contains("errored"), "{explained}");
    let dry = json(&desk, "dlq redrive -q orders --dry-run");
    assert_eq!((&dry["done"], &json(&desk, "queue depth orders")["errored"]), (&"2".into(), &"2".into()));
    assert_eq!(dry["dryRun"], true, "programs are told that it is one: {dry}");
    let told = desk.run(&["dlq", "redrive", "-q", "orders", "--dry-run"]);
    check(&told, 0, "dry run: would redrive 2 messages of queue orders; nothing was changed");
    let one = json(&desk, "dlq redrive -q orders a --dry-run");
    assert_eq!((&one["dryRun"], &one["done"]), (&true.into(), &"1".into()), "{one}");
    let some = json(&desk, "dlq redrive -q orders --meta tenant=y --rate 100");
    assert_eq!(some["dryRun"], false, "{some}");
    let shown = json(&desk, &format!("dlq status {}", some["operationId"].as_str().expect("a name")));
    assert_eq!((&shown["state"], &shown["done"]), (&some["state"], &some["done"]));
    assert_eq!((&some["done"], &some["state"]), (&"1".into(), &"OPERATION_STATE_DONE".into()));
    let depth = json(&desk, "queue depth orders");
    assert_eq!((&depth["errored"], &depth["pending"]), (&"1".into(), &"1".into()));
    json(&desk, "dlq redrive -q orders a");
    assert_eq!(json(&desk, "queue depth orders")["pending"], "2");
}

#[test]
fn a_blocked_queue_says_why_until_it_is_unblocked() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders"]).ok();
    desk.run(&["msg", "push", "-q", "orders", "x"]).ok();
    desk.run(&["queue", "block", "orders", "--dequeue", "--reason", "the mail server is down"]).ok();
    check(&desk.run(&["msg", "pull", "-q", "orders"]), 4, "the mail server is down");
    let explained = desk.run(&["queue", "explain", "orders"]).ok();
    assert!(explained.contains("dequeue_blocked"), "{explained}");
    desk.run(&["msg", "push", "-q", "orders", "y"]).ok();
    check(&desk.run(&["queue", "block", "orders"]), 2, "--reason");
    check(&desk.run(&["queue", "block", "orders", "--reason", ""]), 2, "--reason");
    desk.run(&["queue", "block", "orders", "--reason", "moving house"]).ok();
    check(&desk.run(&["msg", "push", "-q", "orders", "z"]), 4, "moving house");
    desk.run(&["queue", "unblock", "orders"]).ok();
    pull(&desk, "orders");
    let history = desk.run(&["queue", "history", "orders"]).ok();
    assert!(history.contains("the mail server is down") && history.contains("ada"), "{history}");
    desk.run(&["queue", "rm", "orders", "--yes"]).ok();
    let history = desk.run(&["queue", "history", "orders", "-o", "csv"]).ok();
    let changes: Vec<_> = history.lines().skip(1).map(|line| line.rsplit(',').next().expect("a cell")).collect();
    assert_eq!((changes.first(), changes.last()), (Some(&"deleted"), Some(&"created")), "{history}");
}

#[test]
fn a_long_error_is_cut_in_tables_for_people_only() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders", "--max-attempts", "1"]).ok();
    desk.run(&["msg", "push", "-q", "orders", "x", "--id", "a"]).ok();
    let error = format!("smtp: {}", "ö".repeat(400));
    desk.run(&["msg", "fail", "-q", "orders", &pull(&desk, "orders"), "--error", &error]).ok();
    for list in [&["dlq", "ls", "-q", "orders", "--messages"][..], &["msg", "ls", "-q", "orders", "--state", "errored"]]
    {
        let told = desk.run(list).ok();
        assert!(told.contains(&format!("smtp: {}", "ö".repeat(24))) && told.contains("ö…"), "{told}");
        assert!(desk.run(&[list, &["-o", "csv"]].concat()).ok().contains(&error));
    }
    assert!(desk.run(&["msg", "get", "-q", "orders", "a", "-o", "csv"]).ok().contains(&error));
}

#[test]
fn an_id_where_a_lease_belongs_is_told_how_to_cancel_by_it() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders"]).ok();
    desk.run(&["msg", "push", "-q", "orders", "x", "--id", "order-7"]).ok();
    check(
        &desk.run(&["msg", "cancel", "-q", "orders", "order-7"]),
        2,
        "to cancel a message by its id or key, use `--id MESSAGE`",
    );
    desk.run(&["msg", "cancel", "-q", "orders", "--id", "order-7"]).ok();
    desk.run(&["msg", "push", "-q", "orders", "x"]).ok();
    desk.run(&["msg", "cancel", "-q", "orders", &pull(&desk, "orders")]).ok();
    assert_eq!(json(&desk, "queue depth orders")["canceled"], "2");
}

#[test]
fn settings_change_one_by_one_and_return_to_their_defaults() {
    let desk = Desk::set();
    let create = "queue create orders --type exclusive --exclusivity-key account --default-lease 1m --retry 2s,150,1m,0 \
                  --keep-errored 30d --priority-class urgent=-60000,vip=yes --filter-shape a,b --filter-shape c";
    let made = json(&desk, create)["queue"].clone();
    assert_eq!((&made["type"], &made["defaultLease"]), (&"QUEUE_TYPE_EXCLUSIVE".into(), &"60s".into()));
    assert_eq!(json(&desk, create)["queue"]["etag"], made["etag"], "a repeat answers the same queue");
    let changed = json(&desk, "queue update orders --default-ttl 1h --reset default-lease")["queue"].clone();
    let shown = (&changed["defaultTtl"], &changed["defaultLease"], &changed["retryPolicy"], &changed["filterShapes"]);
    assert_eq!(shown, (&"3600s".into(), &"30s".into(), &made["retryPolicy"], &made["filterShapes"]));
    let etag = made["etag"].as_str().expect("an etag");
    check(&desk.run(&["queue", "update", "orders", "--etag", etag, "--max-attempts", "5"]), 4, "ETAG_MISMATCH");
    check(&desk.run(&["queue", "create", "orders"]), 4, "orders");
    let described = desk.run(&["queue", "describe", "orders"]).ok();
    assert!(described.contains("urgent=-60000,vip=yes") && described.contains("30d"), "{described}");
    let described = desk.run(&["queue", "describe", "orders", "-o", "csv"]).ok();
    assert!(described.contains("retention.errored,2592000s"), "{described}");
}

#[test]
fn a_queue_is_made_only_where_the_store_offers_what_it_requires() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders", "--required-durability", "safe"]).ok();
    assert!(desk.run(&["queue", "describe", "orders", "-o", "csv"]).ok().contains("required_durability,SAFE"));
    let more = desk.run(&["queue", "update", "orders", "--required-durability", "replicated"]);
    check(&more, 4, "requires the durability REPLICATED; the store of this server offers SAFE");
    desk.run(&["queue", "update", "orders", "--reset", "required_durability"]).ok();
    assert!(desk.run(&["queue", "describe", "orders", "-o", "csv"]).ok().contains("required_durability,any"));
}

#[test]
fn a_queue_may_take_less_than_the_service() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders", "--payload-max-bytes", "5", "--metadata-max-bytes", "3"]).ok();
    let described = desk.run(&["queue", "describe", "orders", "-o", "csv"]).ok();
    assert!(described.contains("payload_max_bytes,5") && described.contains("metadata_max_bytes,3"), "{described}");
    desk.run(&["msg", "push", "-q", "orders", "small", "--meta", "a=bc"]).ok();
    check(&desk.run(&["msg", "push", "-q", "orders", "larger"]), 2, "larger than 5 bytes, the payload_max_bytes");
    check(&desk.run(&["msg", "push", "-q", "orders", "x", "--meta", "a=bcd"]), 2, "larger than 3 bytes together");
    desk.run(&["queue", "update", "orders", "--reset", "payload_max_bytes"]).ok();
    desk.run(&["msg", "push", "-q", "orders", "larger"]).ok();
}

#[test]
fn what_destroys_asks_first_and_says_how_much() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders"]).ok();
    for _ in 0..2 {
        desk.run(&["msg", "push", "-q", "orders", "x"]).ok();
    }
    check(&desk.run(&["queue", "purge", "orders"]), 2, "cancel 2 messages of queue orders; confirm with --yes");
    check(&desk.run(&["queue", "purge", "orders", "--dry-run"]), 0, "would cancel 2 messages");
    let would = json(&desk, "queue purge orders --dry-run");
    let shown = (&would["kind"], &would["done"], &would["dryRun"]);
    assert_eq!(shown, (&"purge".into(), &"2".into(), &true.into()), "{would}");
    assert_eq!(json(&desk, "queue rm orders --dry-run")["messages"], "2");
    assert_eq!(json(&desk, "queue depth orders")["pending"], "2");
    assert_eq!(json(&desk, "queue purge orders --yes")["done"], "2");
    check(&desk.run(&["queue", "rm", "orders"]), 2, "permanently delete queue orders with 2 messages");
    desk.run(&["queue", "create", "other"]).ok();
    assert_eq!(json(&desk, "queue rm other --yes")["messages"], "0");
    check(&desk.run(&["queue", "rm", "orders", "--yes"]), 0, "deleted queue orders with 2 messages");
    for reads in [&["queue", "describe", "orders"][..], &["queue", "rm", "orders"], &["msg", "pull", "-q", "orders"]] {
        check(&desk.run(reads), 3, "queue orders does not exist; check its name, for example with tallystone queue ls");
    }
    check(&desk.run(&["msg", "push", "-q", "orders", "x"]), 3, "create it first");
    check(&desk.run(&["msg", "pull", "-q", "timed/first"]), 3, "the first enqueue creates it, by template timed-task");
}

#[test]
fn a_template_says_what_it_is_and_goes_like_a_queue() {
    let desk = Desk::set();
    assert!(desk.run(&["queue", "ls"]).ok().contains("TEMPLATE"));
    let says = "timed-task is a template and holds no messages; use a queue name that begins with timed/";
    check(&desk.run(&["msg", "push", "-q", "timed-task", "x"]), 3, says);
    check(&desk.run(&["queue", "depth", "timed-task"]), 3, says);
    desk.run(&["msg", "push", "-q", "timed/now", "x"]).ok();
    check(&desk.run(&["queue", "rm", "timed-task", "--dry-run"]), 0, "would delete template timed-task");
    check(&desk.run(&["queue", "rm", "timed-task", "--yes"]), 0, "deleted template timed-task");
    check(&desk.run(&["msg", "push", "-q", "timed/then", "x"]), 3, "QUEUE_NOT_FOUND");
    assert_eq!(json(&desk, "queue depth timed/now")["pending"], "1", "what it made stays");
}

#[test]
fn a_worker_that_obeys_keeps_the_reason_of_who_asked() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders"]).ok();
    desk.run(&["msg", "push", "-q", "orders", "x", "--id", "one"]).ok();
    let lease = pull(&desk, "orders");
    check(&desk.run(&["msg", "cancel", "-q", "orders", "--id", "one", "--reason", "sold out"]), 0, "is asked to stop");
    let alone = desk.run(&["msg", "cancel", "-q", "orders", &lease, "--reason", "mine"]);
    check(&alone, 2, "--reason");
    desk.run(&["msg", "cancel", "-q", "orders", &lease]).ok();
    let message = json(&desk, "msg get -q orders one");
    let message = message.get("message").unwrap_or(&message);
    assert_eq!(
        (&message["state"], &message["cancelReason"]),
        (&"MESSAGE_STATE_CANCELED".into(), &"sold out".into()),
        "{message}"
    );
    let ended = message["endTime"].as_str().expect("it is over").get(..19).expect("a time to the second").to_owned();
    let shown = desk.run(&["msg", "get", "-q", "orders", "one"]).ok();
    assert!(shown.lines().any(|line| line.starts_with("end_time") && line.contains(&ended)), "{ended}: {shown}");
}

#[test]
fn a_watch_shows_the_depth_and_then_the_next() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders"]).ok();
    desk.run(&["msg", "push", "-q", "orders", "x"]).ok();
    let watched = desk.run(&["queue", "watch", "orders", "--readings", "1", "-o", "jsonl"]).ok();
    let reading: Value = serde_json::from_str(watched.trim()).expect("JSON");
    assert_eq!((&reading["pending"], &reading["running"]), (&"1".into(), &"0".into()));
    check(&desk.run(&["queue", "watch", "absent", "--readings", "1"]), 3, "QUEUE_NOT_FOUND");
}

#[test]
fn wrong_values_of_queues_and_messages_are_a_wrong_command_line() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders"]).ok();
    let long = "x".repeat(32_769);
    let cases: &[(&[&str], i32, &str)] = &[
        (&["queue", "create", "{a}"], 2, "INVALID_QUEUE_NAME"),
        (&["queue", "create", "b", "--shards", "3"], 2, "shards"),
        (&["queue", "create", "b", "--type", "fifo"], 2, "simple, exclusive"),
        (&["queue", "create", "b", "--retry", "1s"], 2, "1s,200,5m,20"),
        (&["msg", "push", "-q", "orders"], 2, "<PAYLOAD>"),
        (&["msg", "push", "-q", "orders", "x", "--id", ""], 2, "--id"),
        (&["work", "-q", "orders", "--exec", ""], 2, "--exec"),
        (&["queue", "update", "orders", "--reset", "retention.errored"], 2, "retry_policy, default_ttl, retention"),
        (&["msg", "push", "orders", "x"], 2, "--queue"),
        (&["msg", "push", "-q", "orders", "x", "--meta", "a"], 2, "KEY=VALUE"),
        (&["msg", "push", "-q", "orders", "x", "--priority", "9007199254740993"], 2, "priority"),
        (&["msg", "push", "-q", "orders", &long], 2, "32"),
        (&["msg", "push", "-q", "orders", "-f", "absent"], 2, "cannot read absent"),
        (&["msg", "pull", "-q", "orders", "--max", "101"], 2, "1..=100"),
        (&["msg", "pull", "-q", "orders", "--wait", "21s"], 2, "at most 20s"),
        (&["msg", "ls", "-q", "orders", "--state", "dead"], 2, "ERRORED"),
        (&["msg", "get", "-q", "orders", "absent"], 3, "MESSAGE_NOT_FOUND"),
        (&["msg", "update", "-q", "orders", "absent"], 2, "--priority"),
        (&["msg", "complete", "-q", "orders"], 2, "<LEASE>"),
        (&["dlq", "cancel", "absent"], 3, "absent"),
        (&["dlq", "status", "absent"], 3, "absent"),
    ];
    for (arguments, code, words) in cases {
        let ran = desk.run(arguments);
        assert_eq!(ran.code, *code, "{arguments:?}: {}{}", ran.out, ran.err);
        assert!(ran.err.contains(words), "{arguments:?}: {words:?} is missing of {:?}", ran.err);
    }
}

#[test]
fn a_pull_of_a_session_that_is_repeated_gets_the_same_leases() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders"]).ok();
    for id in ["a", "b"] {
        desk.run(&["msg", "push", "-q", "orders", "x", "--id", id]).ok();
    }
    let session = desk.run(&["session", "open", "--label", "script", "--lease", "1h", "--id"]).ok().trim().to_owned();
    let pull = |sequence: &str| {
        desk.run(&["msg", "pull", "-q", "orders", "--tokens", "--session", &session, "--sequence", sequence]).ok()
    };
    let first = pull("1");
    assert_eq!(pull("1"), first);
    assert_ne!(pull("2"), first);
    desk.run(&["msg", "cancel", "-q", "orders", "--id", "a"]).ok();
    let beat = json(&desk, &format!("session beat {session} --received-up-to 2"));
    assert_eq!((&beat["sessionExpiresIn"], &beat["cancelRequests"][0]), (&"3600s".into(), &first.trim().into()));
    assert_eq!(json(&desk, &format!("session close {session}"))["released"], "2");
    check(&desk.run(&["session", "beat", &session]), 4, "SESSION_ENDED");
    check(&desk.run(&["session", "beat", "s.unknown"]), 3, "SESSION_NOT_FOUND");
    check(&desk.run(&["msg", "pull", "-q", "orders", "--sequence", "3"]), 2, "--session");
}

#[test]
fn values_get_limits_and_depths_count_what_a_filter_meets() {
    let desk = Desk::set();
    let create = "tallystone queue create pay --type exclusive --exclusivity-key account --filter-shape team";
    desk.shell(&format!("{create} --dedupe-max-bytes 1000000")).ok();
    assert!(desk.run(&["queue", "describe", "pay", "-o", "csv"]).ok().contains("dedupe_max_bytes,1000000"));
    for team in ["red", "blue", "red"] {
        let team = format!("team={team}");
        desk.run(&["msg", "push", "-q", "pay", "x", "--meta", "account=acme", "--meta", &team]).ok();
    }
    assert_eq!(json(&desk, "queue depth pay --meta team=red")["pending"], "2");
    assert_eq!(json(&desk, "queue depth pay --filter team=blue")["pending"], "1", "a filter by its other name");
    assert_eq!(json(&desk, "dlq redrive -q pay --filter team=red --dry-run")["done"], "0");
    let described = desk.run(&["queue", "describe", "pay", "-o", "csv"]).ok();
    assert!(described.contains("filter_shapes_memory,") && described.contains("at most 3 x 1 x "), "{described}");
    check(&desk.run(&["queue", "depth", "pay", "--meta", "colour=red"]), 4, "FILTER_NOT_DECLARED");
    let explained = json(&desk, "queue explain pay --meta team=green");
    assert_eq!(explained["explanations"][0]["cause"], "filter_not_met");
    desk.run(&["queue", "limit", "pay", "acme", "2"]).ok();
    assert_eq!(desk.run(&["msg", "pull", "-q", "pay", "--max", "9", "--tokens"]).ok().lines().count(), 2);
    assert!(desk.run(&["queue", "limit", "pay", "acme"]).ok().contains("as the queue says"));
    check(&desk.run(&["queue", "limit", "pay", "acme", "10001"]), 2, "10,000");
}

#[test]
fn what_a_refusal_suggests_can_be_pasted() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders", "--max-attempts", "1"]).ok();
    desk.run(&["msg", "push", "-q", "orders", "x", "--id", "one"]).ok();
    let lease = pull(&desk, "orders");
    let update = ["msg", "update", "-q", "orders", "one", "--priority", "1"];
    check(&desk.run(&update), 4, "CancelMessage (tallystone msg cancel -q orders --id one)");
    desk.run(&["msg", "fail", "-q", "orders", &lease]).ok();
    check(&desk.run(&update), 4, "RedriveMessages (tallystone dlq redrive -q orders one)");
    desk.shell("tallystone dlq redrive -q orders one").ok();
    check(
        &desk.run(&["queue", "depth", "orders", "--meta", "a=b"]),
        4,
        "tallystone queue update orders --filter-shape KEY,KEY",
    );
    let explained = desk.run(&["msg", "explain", "-q", "orders", "one", "-o", "csv"]).ok();
    assert!(explained.contains("tallystone msg pull -q orders"), "{explained}");
    let hidden = ["msg", "update", "-q", "orders", "one", "--invisibility", "1h"];
    desk.run(&hidden).ok();
    let explained = desk.run(&["msg", "explain", "-q", "orders", "one", "-o", "csv"]).ok();
    let begins = explained.find("tallystone msg update").expect("it suggests a command");
    let command = explained[begins..].split(')').next().expect("it ends");
    desk.shell(command).ok();
    assert_eq!(json(&desk, "queue depth orders")["pending"], "1", "{command}");
}

/// A queue of messages that have failed, each with its signature.
fn with_dead_letters(letters: &[(&str, &str)]) -> Desk {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders", "--max-attempts", "1"]).ok();
    for (id, signature) in letters {
        desk.run(&["msg", "push", "-q", "orders", "x", "--id", id]).ok();
        let lease = pull(&desk, "orders");
        desk.run(&["msg", "fail", "-q", "orders", &lease, "--error", "no route", "--signature", signature]).ok();
    }
    desk
}

#[test]
fn dead_letters_are_thrown_away_after_a_question_and_by_what_they_are() {
    let desk = with_dead_letters(&[("a", "smtp"), ("b", "io"), ("c", "io"), ("d", "smtp"), ("e", "smtp")]);
    let left = || json(&desk, "queue depth orders")["errored"].clone();
    check(&desk.run(&["dlq", "rm", "-q", "orders"]), 2, "--all");
    check(
        &desk.run(&["dlq", "rm", "-q", "orders", "--all"]),
        2,
        "permanently discard 5 messages of queue orders; confirm with --yes",
    );
    check(
        &desk.run(&["dlq", "rm", "-q", "orders", "a", "b"]),
        2,
        "permanently discard 2 messages of queue orders; confirm",
    );
    let dry = desk.run(&["dlq", "rm", "-q", "orders", "--error-signature", "io", "--dry-run"]);
    check(&dry, 0, "dry run: would discard 2 messages of queue orders; nothing was changed");
    assert_eq!(left(), "5");
    assert_eq!(json(&desk, "dlq rm -q orders --error-signature io --yes")["done"], "2");
    assert_eq!(left(), "3");
    let some = json(&desk, "dlq rm -q orders a d --yes");
    assert_eq!((&some["done"], &some["total"], &some["kind"]), (&"2".into(), &"2".into(), &"discard".into()), "{some}");
    check(&desk.run(&["dlq", "rm", "-q", "orders", "a", "--yes"]), 3, "MESSAGE_NOT_FOUND");
    check(&desk.run(&["dlq", "rm", "-q", "orders", "a", "e", "--yes"]), 6, "1 of 2 messages could not be discarded");
    assert_eq!(left(), "0");
    assert_eq!(json(&desk, "dlq rm -q orders --all --yes")["done"], "0");
}

#[test]
fn dead_letters_are_grouped_by_what_went_wrong() {
    let desk = with_dead_letters(&[("a", "smtp"), ("b", "io"), ("c", "smtp"), ("d", "smtp")]);
    desk.run(&["msg", "push", "-q", "orders", "x", "--id", "e", "--max-attempts", "3"]).ok();
    for _ in 0..3 {
        let lease = pull(&desk, "orders");
        desk.run(&["msg", "fail", "-q", "orders", &lease, "--error", "no route", "--signature", "io", "--delay", "0s"])
            .ok();
    }
    let groups = json(&desk, "dlq ls -q orders");
    let group = |at: usize| {
        let group = &groups[at];
        let text = |field: &str| group[field].as_str().unwrap_or_default().to_owned();
        (text("errorSignature"), text("messages"), text("attempts"), text("exampleId"))
    };
    let group_of = |parts: [&str; 4]| {
        let [signature, messages, attempts, example] = parts.map(str::to_owned);
        (signature, messages, attempts, example)
    };
    assert_eq!(groups.as_array().map(Vec::len), Some(2), "{groups}");
    assert_eq!(group(0), group_of(["smtp", "3", "3", "d"]), "the most messages first, by the last that failed");
    assert_eq!(group(1), group_of(["io", "2", "4", "e"]), "two messages, four failures");
    assert!(groups[0]["firstTime"].as_str() < groups[0]["lastTime"].as_str(), "{groups}");
    let table = desk.run(&["dlq", "ls", "-q", "orders"]).ok();
    assert!(table.starts_with("ERROR SIGNATURE  MESSAGES  ATTEMPTS  FIRST TIME"), "{table}");
    let one = desk.run(&["dlq", "ls", "-q", "orders", "--error-signature", "io", "-o", "csv"]).ok();
    let ids: Vec<_> = one.lines().skip(1).filter_map(|line| line.split(',').next()).collect();
    assert_eq!(ids, ["b", "e"], "{one}");
    let few = desk.run(&["dlq", "ls", "-q", "orders", "--limit", "2"]);
    check(&few, 0, "only the first 2 messages were examined; examine more with --limit N or --all");
    assert_eq!(json(&desk, "dlq ls -q orders --messages")["messages"].as_array().map(Vec::len), Some(5));
}

#[test]
fn a_message_that_runs_is_listed_with_its_worker_and_the_end_of_its_lease() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders"]).ok();
    desk.run(&["msg", "push", "-q", "orders", "x", "--id", "one"]).ok();
    desk.run(&["msg", "push", "-q", "orders", "x", "--id", "two"]).ok();
    let session = desk.run(&["session", "open", "--label", "mailer-7", "--lease", "1h", "--id"]).ok().trim().to_owned();
    desk.run(&["msg", "pull", "-q", "orders", "--session", &session, "--sequence", "1"]).ok();
    pull(&desk, "orders");
    let listed = json(&desk, "msg ls -q orders --state running")["messages"].clone();
    assert_eq!((&listed[0]["messageId"], &listed[0]["workerLabel"]), (&"one".into(), &"mailer-7".into()), "{listed}");
    assert!(listed[0]["leaseExpireTime"].is_string() && listed[0]["leaseStartTime"].is_string(), "{listed}");
    assert_eq!((&listed[1]["messageId"], &listed[1]["workerLabel"]), (&"two".into(), &"".into()), "{listed}");
    let table = desk.run(&["msg", "ls", "-q", "orders", "--state", "running"]).ok();
    assert!(table.contains("WORKER") && table.contains("LEASE EXPIRE TIME") && table.contains("mailer-7"), "{table}");
    assert!(desk.run(&["msg", "get", "-q", "orders", "one"]).ok().contains("mailer-7"));
    assert!(!desk.run(&["msg", "ls", "-q", "orders"]).ok().contains("WORKER"), "nobody has what is pending");
    assert!(!table.contains(&session), "its id is a secret: {table}");
}

#[test]
fn sessions_are_listed_with_their_workers_and_leases_and_without_their_ids() {
    let desk = Desk::set();
    for queue in ["orders", "other"] {
        desk.run(&["queue", "create", queue]).ok();
    }
    for id in ["a", "b"] {
        desk.run(&["msg", "push", "-q", "orders", "x", "--id", id]).ok();
    }
    let open =
        |label: &str| desk.run(&["session", "open", "--label", label, "--lease", "1h", "--id"]).ok().trim().to_owned();
    let (busy, idle) = (open("busy"), open("idle"));
    desk.run(&["msg", "pull", "-q", "orders", "--max", "2", "--session", &busy, "--sequence", "1"]).ok();
    let listed = json(&desk, "session ls")["sessions"].clone();
    let of = |at: usize| (listed[at]["label"].clone(), listed[at]["leases"].clone());
    assert_eq!((of(0), of(1)), (("busy".into(), "2".into()), ("idle".into(), "0".into())), "{listed}");
    assert!(listed[0]["openTime"].as_str() <= listed[0]["lastHeardTime"].as_str(), "{listed}");
    assert!(listed[0]["openTime"].as_str() > Some("2020"), "{listed}");
    let of_queue = |queue: &str| {
        let page = json(&desk, &format!("session ls -q {queue}"));
        page["sessions"].as_array().expect("sessions").len()
    };
    assert_eq!((of_queue("orders"), of_queue("other")), (1, 0));
    let first = desk.run(&["session", "ls", "--limit", "1"]);
    check(&first, 0, "there are more; show them with --limit N");
    assert!(first.out.contains("busy") && !first.out.contains("idle"), "{}", first.out);
    let all = listed.to_string();
    for id in [&busy, &idle] {
        assert!(!all.contains(&**id) && !all.contains(&id[id.len() - 16..]), "{id} is its worker's secret: {all}");
    }
    desk.run(&["session", "close", &idle]).ok();
    assert_eq!(json(&desk, "session ls")["sessions"].as_array().map(Vec::len), Some(1), "what is closed is gone");
    check(&desk.run(&["session", "ls", "-q", "absent"]), 3, "QUEUE_NOT_FOUND");
}

#[test]
fn a_payload_that_looks_like_a_flag_needs_two_hyphens_before_it() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders"]).ok();
    let ran = desk.run(&["msg", "push", "-q", "orders", "--line"]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("--line"), "{}", ran.err);
    desk.run(&["msg", "push", "-q", "orders", "--id", "a", "--", "--line"]).ok();
    desk.run(&["msg", "push", "-q", "orders", "--id", "b", "-5"]).ok();
    let later = desk.run(&["msg", "push", "-q", "orders", "x", "--id", "c", "--at", "2999-01-01T00:00:00Z"]);
    assert!(later.err.contains("10 years"), "{}", later.err);
    let both = desk.run(&["msg", "push", "-q", "orders", "x", "--at", "2026-01-01T00:00:00Z", "--invisibility", "5m"]);
    assert_eq!(both.code, 2, "{}", both.err);
    assert!(desk.run(&["msg", "push", "-q", "orders", "x", "--at", "2026-01-01T00:00:00Z"]).ok().contains("PENDING"));
}

#[test]
fn a_key_of_metadata_that_is_given_twice_is_refused() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "jobs"]).ok();
    for command in [
        &["msg", "push", "-q", "jobs", "x"][..],
        &["msg", "pull", "-q", "jobs"],
        &["dlq", "rm", "-q", "jobs", "--dry-run"],
        &["queue", "purge", "jobs", "--yes"],
        &["work", "-q", "jobs", "--until-empty", "--exec", "true"],
    ] {
        let command = [command, &["--meta", "t=1", "--meta", "t=2"]].concat();
        check(&desk.run(&command), 2, "the key t is given twice");
    }
}
