//! Several servers on one Cassandra keyspace, in good times; `crash/fleet.rs` has the bad ones.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tallystone::adapters::cassandra::{Options, connect};
use tallystone::adapters::memory::FastTable;
use tallystone::adapters::system::SystemClock;
use tallystone::domain::counter::{
    Change, Counter, CounterName, DatasetId, Event, EventId, EventKey, NamespaceId, Provenance,
};
use tallystone::domain::time::Timestamp;
use tallystone::ports::{AppendGuard, AppendHold, AppendOutcome, EffectOutcome, NewEvent, StoreError};
use tallystone::proto::counter::v1::WatchCountsRequest;
use tallystone::proto::counter::v1::counter_service_client::CounterServiceClient;
use uuid::Uuid;

use crate::engines::cassandra::{beside_with_node, node, open_patiently, patience};
use crate::servers::cassandra;
use crate::support::harness::{HttpAnswer, Launch, Server, eventually};
use crate::support::patience::patient_channel;

const WITHIN: Duration = Duration::from_secs(90);
/// How often an event is written until the answer says that it is there.
const WRITES_MAX: usize = 5;
/// The namespace `default` and its dataset.
const FIRST: (NamespaceId, DatasetId) = (NamespaceId(1), DatasetId(1));

fn start(keyspace: &str) -> Server {
    let node = cassandra::shared().unwrap_or_else(|why| panic!("{why}"));
    let launch = Launch::dev_on_cassandra(node).arg("--set").arg(&format!("clusters.cassandra.keyspace={keyspace}"));
    launch.patient_with("cassandra").start()
}

/// Calls until there is an answer: on a machine that stands still for seconds, calls run into their deadlines. One that may
/// have had its effect is repeated as well, so whoever changes something brings a token.
fn answered(server: &Server, method: &str, body: &str) -> Result<Value, HttpAnswer> {
    let mut last = None;
    eventually(WITHIN, || {
        let answer = server.post(&format!("/tallystone.counter.v1.CounterService/{method}"), body);
        // PENDING, RETRY_LATER, OUTCOME_UNKNOWN, STORE_UNAVAILABLE and DEADLINE_EXCEEDED are no last words.
        let is_last = ![409, 429, 500, 503, 504].contains(&answer.status);
        last = Some(answer);
        is_last
    });
    let answer = last.expect("it was called");
    if answer.status == 200 { Ok(serde_json::from_str(&answer.body).unwrap_or_default()) } else { Err(answer) }
}

fn call(server: &Server, method: &str, body: &str) -> Value {
    answered(server, method, body)
        .unwrap_or_else(|refused| panic!("{method} {body}: {} {}", refused.status, refused.body))
}

fn add(server: &Server, name: &str, delta: i64) {
    add_to(server, "default", name, delta);
}

/// Adds once, under one token until it is known that this one counts or never will; then under another.
pub fn add_to(server: &Server, namespace: &str, name: &str, delta: i64) {
    let added = || {
        let token = Uuid::now_v7();
        let body = format!(
            r#"{{"namespace": "{namespace}", "counter_name": "{name}", "delta": {delta}, "idempotency_token": {{"token": "{token}"}}}}"#
        );
        match answered(server, "AddCount", &body) {
            Ok(_) => true,
            Err(refused) if refused.body.contains("NOT_APPLIED") => false,
            Err(refused) => panic!("AddCount {body}: {} {}", refused.status, refused.body),
        }
    };
    assert!(eventually(WITHIN, added), "no add to {name} is in time: {}", server.printed());
}

fn reading(server: &Server, name: &str, freshness: &str) -> Value {
    let body = format!(r#"{{"namespace": "default", "counter_name": "{name}", "freshness": "{freshness}"}}"#);
    // A read that a busy machine or a busy store did not come to in time has changed nothing.
    call(server, "GetCount", &body)
}

fn count(reading: &Value) -> i64 {
    reading["count"].as_str().and_then(|count| count.parse().ok()).unwrap_or(0)
}

pub fn metric(server: &Server, name: &str) -> f64 {
    metric_of(server, name, "")
}

/// The label of rolls that wrote a checkpoint.
pub const WRITTEN: &str = "outcome=\"written\"";

/// The same of the series that has a label, as the page writes it.
pub fn metric_of(server: &Server, name: &str, label: &str) -> f64 {
    value_on(&server.get("/metrics").body, name, label)
}

/// The same on a page, so that several values are of one moment.
fn value_on(page: &str, name: &str, label: &str) -> f64 {
    let line = page.lines().find(|line| line.split([' ', '{']).next() == Some(name) && line.contains(label));
    let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    value.unwrap_or_else(|| panic!("no metric {name} of {label:?} in:\n{page}"))
}

#[test]
fn two_servers_on_one_keyspace_count_together() {
    let (one, other) = (start("together"), start("together"));
    for round in 0..20 {
        add(&one, "views", 1);
        add(&other, "views", 100);
        add(if round % 2 == 0 { &one } else { &other }, &format!("c{round}"), 7);
        let seen = [&one, &other].map(|server| count(&reading(server, "views", "UP_TO_DATE")));
        assert_eq!(seen, [101 * (round + 1); 2], "what either has acknowledged, both read");
    }
    for server in [&one, &other] {
        let rolled_up = || count(&reading(server, "views", "ROLLED_UP")) == 2_020;
        assert!(eventually(WITHIN, rolled_up), "{}\n{}", reading(server, "views", "ROLLED_UP"), server.printed());
        // A machine that stands still for long may let a lease lapse; it comes back by itself.
        let both = || {
            metric(server, "tallystone_fleet_members") == 2.0 && metric(server, "tallystone_fleet_lease_seconds") > 10.0
        };
        assert!(eventually(WITHIN, both), "{}", server.get("/metrics").body);
    }
    // One leaves in good order: the limit waits for nobody, and the other rolls up what it left.
    add(&one, "views", 1_000);
    assert!(one.stop().success());
    add(&other, "views", 10_000);
    let rolled_up = || count(&reading(&other, "views", "ROLLED_UP")) == 13_020;
    let yardstick = beside_with_node(&other, node());
    yardstick.comes(Instant::now(), Duration::from_secs(25), "what it left is rolled up", rolled_up);
    assert_eq!(metric(&other, "tallystone_fleet_members"), 1.0);
    for round in 0..20 {
        assert_eq!(count(&reading(&other, &format!("c{round}"), "UP_TO_DATE")), 7);
    }
    assert_eq!(metric(&other, "tallystone_acknowledged_below_limit_total"), 0.0);
    assert!(other.stop().success());
}

#[test]
fn two_servers_that_start_at_once_on_a_keyspace_that_is_not_there_are_a_fleet() {
    let servers = thread::scope(|scope| {
        let starting = [(); 2].map(|()| scope.spawn(|| start("at_once")));
        starting.map(|starting| starting.join().expect("it starts"))
    });
    for (server, delta) in servers.iter().zip([1, 100]) {
        add(server, "views", delta);
    }
    for server in &servers {
        assert_eq!(count(&reading(server, "views", "UP_TO_DATE")), 101);
        let rolled_up = || count(&reading(server, "views", "ROLLED_UP")) == 101;
        assert!(eventually(WITHIN, rolled_up), "{}", server.printed());
    }
}

#[test]
fn a_killed_server_shows_in_the_staleness_until_its_lease_is_over_and_then_in_the_number_of_members() {
    const STALENESS: &str = "tallystone_dataset_staleness_seconds";
    let (one, other) = (start("killed_member"), start("killed_member"));
    let members = || metric(&one, "tallystone_fleet_members");
    add(&one, "views", 1);
    add(&other, "views", 1);
    let is_well = || members() == 2.0 && metric(&one, STALENESS) < 12.0;
    assert!(eventually(WITHIN, is_well), "{} members, {} s", members(), metric(&one, STALENESS));
    other.kill();
    // The limit waits for what the killed one had closed; what this one has closed goes on.
    let holds_back = || {
        let page = one.get("/metrics").body;
        let of = |name: &str| value_on(&page, name, "");
        let (staleness, own) = (of(STALENESS), of("tallystone_closed_lag_seconds"));
        staleness > 20.0 && own < 12.0 && of("tallystone_fleet_members") == 2.0
    };
    assert!(eventually(WITHIN, holds_back), "{} s\n{}", metric(&one, STALENESS), one.printed());
    let is_over = || members() == 1.0 && metric(&one, STALENESS) < 12.0;
    assert!(eventually(WITHIN, is_over), "{} members, {} s", members(), metric(&one, STALENESS));
    assert!(one.stop().success());
}

#[test]
fn a_namespace_of_one_server_is_known_to_the_others() {
    let (one, other) = (start("followed"), start("followed"));
    let body = r#"{"namespace": {"name": "shop", "counter_type": "ACCURATE"}}"#;
    let created = one.post("/tallystone.admin.v1.NamespaceService/CreateNamespace", body);
    assert_eq!(created.status, 200, "{}", created.body);
    let body = r#"{"namespace": "shop", "counter_name": "sold", "delta": 3}"#;
    let path = "/tallystone.counter.v1.CounterService/AddCount";
    assert!(eventually(WITHIN, || other.post(path, body).status == 200), "{}", other.printed());
    let read = call(&one, "GetCount", r#"{"namespace": "shop", "counter_name": "sold"}"#);
    assert_eq!(count(&read) % 3, 0);
    assert!(count(&read) >= 3, "{read}");
}

#[test]
fn a_writer_and_a_roller_are_one_service() {
    let node = cassandra::shared().unwrap_or_else(|why| panic!("{why}"));
    let start = |roles: &str| {
        let launch = Launch::dev_on_cassandra(node).arg("--set").arg("clusters.cassandra.keyspace=tiers");
        launch.patient_with("cassandra").arg("--roles").arg(roles).start()
    };
    let (writer, roller) = (start("writer"), start("roller"));
    add(&writer, "views", 3);
    let body = r#"{"namespace": "default", "counter_name": "views", "delta": 1}"#;
    // Asked again only where a busy machine did not come to the call in time.
    let refused = || {
        let answer = roller.post("/tallystone.counter.v1.CounterService/AddCount", body);
        assert!([503, 504].contains(&answer.status), "{} {}", answer.status, answer.body);
        answer.body.contains("accepts no writes")
    };
    assert!(eventually(WITHIN, refused), "a roller takes writes, or no call is in time: {}", roller.printed());
    assert_eq!(count(&reading(&roller, "views", "UP_TO_DATE")), 3);
    for server in [&writer, &roller] {
        let rolled_up = || count(&reading(server, "views", "ROLLED_UP")) == 3;
        assert!(eventually(WITHIN, rolled_up), "{}", server.printed());
    }
    assert_eq!(metric_of(&writer, "tallystone_rolls_total", WRITTEN), 0.0);
    assert!(metric_of(&roller, "tallystone_rolls_total", WRITTEN) >= 1.0);
    assert!(writer.stop().success());
    assert!(roller.stop().success());
}

#[test]
fn a_roller_is_told_of_the_writes_of_writers_and_does_not_wait_for_the_end_of_their_steps() {
    let node = cassandra::shared().unwrap_or_else(|why| panic!("{why}"));
    let start = |roles: &str| {
        let launch = Launch::dev_on_cassandra(node).arg("--set").arg("clusters.cassandra.keyspace=told");
        launch.patient_with("cassandra").arg("--roles").arg(roles).start()
    };
    let (writer, roller) = (start("writer"), start("roller"));
    let mut tries = 0;
    // A step may end, and be replayed, before its signals were worked off; not each time.
    let told = || {
        tries += 1;
        let name = format!("told-{tries}");
        let replayed = metric(&roller, "tallystone_touches_replayed_total");
        add(&writer, &name, 7);
        let rolled_up = || count(&reading(&writer, &name, "ROLLED_UP")) == 7;
        assert!(eventually(WITHIN, rolled_up), "{}\n{}", roller.printed(), writer.printed());
        metric(&roller, "tallystone_touches_replayed_total") == replayed
    };
    assert!(eventually(Duration::from_secs(180), told), "every count waited for its step to be replayed");
    assert!(metric(&writer, "tallystone_rollup_signals_sent_total") >= 1.0);
    assert!(metric(&roller, "tallystone_rollup_signals_taken_total") >= 1.0);
    assert_eq!(metric(&roller, "tallystone_rollup_signals_sent_total"), 0.0);
    // Signals for a roller that is gone are dropped, no add fails, and the next roller finds all of it.
    roller.kill();
    let dropped = || {
        add(&writer, "gone", 1);
        metric(&writer, "tallystone_rollup_signals_dropped_total") >= 1.0
    };
    assert!(eventually(WITHIN, dropped), "{}", writer.printed());
    let expected = count(&reading(&writer, "gone", "UP_TO_DATE"));
    let roller = start("roller");
    let rolled_up = || count(&reading(&writer, "gone", "ROLLED_UP")) == expected;
    assert!(eventually(WITHIN, rolled_up), "{}\n{}", roller.printed(), writer.printed());
    assert_eq!(metric_of(&writer, "tallystone_rolls_total", WRITTEN), 0.0);
    assert!(writer.stop().success());
    assert!(roller.stop().success());
}

#[test]
fn a_watch_sees_what_other_servers_write_and_roll_up() {
    let (one, other) = (start("watched"), start("watched"));
    add(&one, "views", 1);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let mut client = CounterServiceClient::new(patient_channel(&one.url()).await);
        let request = WatchCountsRequest { namespace: "default".to_owned(), counter_names: vec!["views".to_owned()] };
        let mut shown = client.watch_counts(request).await.expect("a watch begins").into_inner();
        let mut next = async || {
            let next = tokio::time::timeout(WITHIN, shown.message()).await;
            next.expect("something is shown").expect("the watch goes on").expect("it has no end")
        };
        next().await;
        // Whichever server rolls the counter up.
        tokio::task::block_in_place(|| (0..4).for_each(|_| add(&other, "views", 10)));
        while next().await.reading.expect("a watch shows readings").count != 41 {}
    });
    // The same of rankings.
    for server in [&one, &other] {
        let ranked = || {
            let path = "/tallystone.counter.v1.CounterService/TopCounters";
            let answer = server.post(path, r#"{"namespace": "default", "n": 1}"#);
            // 429 while the walk is under way.
            let parsed: Value = serde_json::from_str(&answer.body).unwrap_or_default();
            parsed["counters"][0]["count"] == "41"
        };
        assert!(eventually(WITHIN, ranked), "{}", server.printed());
    }
    assert!(one.stop().success());
    assert!(other.stop().success());
}

#[test]
fn a_row_that_comes_late_is_counted_once_it_is_found() {
    let server = start("late");
    let late = Uuid::now_v7();
    add(&server, "views", 1);
    let is_closed = || {
        let read = reading(&server, "views", "ROLLED_UP");
        count(&read) == 1 && read["behind"] != Value::Bool(true)
    };
    assert!(eventually(WITHIN, is_closed), "{}", server.printed());
    // Another server's write that was in doubt and given up reaches the log after its time was rolled up.
    write_late("late", FIRST, "views", &late, Change::Add(10));
    for _ in 0..2 {
        let body = format!(
            r#"{{"namespace": "default", "counter_name": "views", "idempotency_token": {{"token": "{late}"}}}}"#
        );
        assert_eq!(call(&server, "CheckToken", &body)["verdict"], "VERDICT_APPLIED");
        let marks = metric(&server, "tallystone_buckets_rechecked_total");
        let rechecked = || metric(&server, "tallystone_buckets_rechecked_total") > marks;
        assert!(eventually(WITHIN, rechecked), "{}", server.printed());
        let counted = || count(&reading(&server, "views", "ROLLED_UP")) == 11;
        assert!(eventually(WITHIN, counted), "{}", reading(&server, "views", "ROLLED_UP"));
        // The metric follows a repair, which readers see before.
        let rows = || metric(&server, "tallystone_late_rows_total");
        assert!(eventually(WITHIN, || rows() >= 1.0), "{}", server.printed());
        assert_eq!(rows(), 1.0, "once, however often it is found");
    }
    add(&server, "views", 100);
    assert_eq!(count(&reading(&server, "views", "UP_TO_DATE")), 111);
    let rolled_up = || count(&reading(&server, "views", "ROLLED_UP")) == 111;
    assert!(eventually(WITHIN, rolled_up), "{}", server.printed());
    assert!(server.stop().success());
}

#[test]
fn a_row_that_was_counted_and_lost_to_a_void_counts_no_more_once_its_token_is_told_so() {
    let server = start("voided");
    let late = Uuid::now_v7();
    add(&server, "views", 1);
    let check = |verdict: &str, expected: i64| {
        let body = format!(
            r#"{{"namespace": "default", "counter_name": "views", "idempotency_token": {{"token": "{late}"}}}}"#
        );
        assert_eq!(call(&server, "CheckToken", &body)["verdict"], verdict);
        let counted = || count(&reading(&server, "views", "ROLLED_UP")) == expected;
        assert!(eventually(WITHIN, counted), "{}\n{}", reading(&server, "views", "ROLLED_UP"), server.printed());
    };
    let is_closed = || {
        let read = reading(&server, "views", "ROLLED_UP");
        count(&read) == 1 && read["behind"] != Value::Bool(true)
    };
    assert!(eventually(WITHIN, is_closed), "{}", server.printed());
    // One replica has the row of a write that was given up, and a roll that asked it has counted the row.
    write_late("voided", FIRST, "views", &late, Change::Add(10));
    check("VERDICT_APPLIED", 11);
    // A verdict that asked the other replicas has left a void: of two cells of one time the greater value stays, and that of
    // a void is greater than that of an add.
    write_late("voided", FIRST, "views", &late, Change::Void);
    check("VERDICT_NOT_APPLIED", 1);
    let explained = call(&server, "ExplainCounter", r#"{"namespace": "default", "counter_name": "views"}"#);
    assert_eq!(explained["rolledUp"]["repairs"], "2", "in and out again: {explained}");
    // The metric follows a repair, and misses one whose answer from the store was lost.
    let told = || metric(&server, "tallystone_repairs_total");
    assert!(eventually(WITHIN, || (1.0..=2.0).contains(&told())), "{}", told());
    assert!(server.stop().success());
}

#[test]
fn a_clear_that_comes_late_is_acknowledged_once_it_shows() {
    let server = start("late_clear");
    // Tokens of one maker, so that their order is that of these lines within a millisecond too.
    let [before, late, after] = [(); 3].map(|()| Uuid::now_v7());
    add_around(&server, [before, after]);
    write_late("late_clear", FIRST, "views", &late, Change::Clear);
    let body =
        format!(r#"{{"namespace": "default", "counter_name": "views", "idempotency_token": {{"token": "{late}"}}}}"#);
    let is_acknowledged = || {
        let answer = server.post("/tallystone.counter.v1.CounterService/ClearCount", &body);
        assert!(answer.status == 200 || answer.body.contains("PENDING"), "{} {}", answer.status, answer.body);
        answer.status == 200
    };
    assert!(eventually(WITHIN, is_acknowledged), "{}", server.printed());
    for freshness in ["ROLLED_UP", "UP_TO_DATE"] {
        assert_eq!(count(&reading(&server, "views", freshness)), 1, "{freshness}: it was acknowledged");
    }
    assert!(server.stop().success());
}

#[test]
fn a_late_clear_that_a_fold_meets_is_settled_and_counts_from_then_on() {
    let server = start("settled_clear");
    let [before, late, after] = [(); 3].map(|()| Uuid::now_v7());
    add_around(&server, [before, after]);
    write_in_doubt("settled_clear", FIRST, "views", &late, Change::Clear);
    let seen = call(&server, "RecountCounter", r#"{"namespace": "default", "counter_name": "views"}"#);
    assert_eq!((&seen["countBefore"], &seen["countAfter"]), (&Value::from("8"), &Value::from("1")), "{seen}");
    // Nobody repaired anything: the fold of the recount has settled the clear and left a recheck mark.
    let is_counted = || count(&reading(&server, "views", "ROLLED_UP")) == 1;
    assert!(eventually(WITHIN, is_counted), "{}", server.printed());
    assert_eq!(verdict_on(&server, &late), "VERDICT_APPLIED");
    assert!(server.stop().success());
}

#[test]
fn a_refused_clear_wipes_nothing_although_folds_meet_its_row() {
    let server = start("refused_clear");
    let [before, late, after] = [(); 3].map(|()| Uuid::now_v7());
    add_around(&server, [before, after]);
    // The row of a clear hides the tombstone of a verdict whose second write has not come yet.
    write_in_doubt("refused_clear", FIRST, "views", &late, Change::Clear);
    mark_as_void("refused_clear", &late);
    for _ in 0..2 {
        let seen = call(&server, "RecountCounter", r#"{"namespace": "default", "counter_name": "views"}"#);
        assert_eq!((&seen["countBefore"], &seen["countAfter"]), (&Value::from("8"), &Value::from("8")), "{seen}");
        assert_eq!(verdict_on(&server, &late), "VERDICT_NOT_APPLIED");
    }
    for freshness in ["ROLLED_UP", "UP_TO_DATE"] {
        assert_eq!(count(&reading(&server, "views", freshness)), 8, "{freshness}");
    }
    assert!(server.stop().success());
}

/// Adds 7 and 1 to `views` under two tokens, and waits until both are rolled up and their times are closed.
fn add_around(server: &Server, tokens: [Uuid; 2]) {
    for (token, delta) in tokens.into_iter().zip([7, 1]) {
        let body = format!(
            r#"{{"namespace": "default", "counter_name": "views", "delta": {delta}, "idempotency_token": {{"token": "{token}"}}}}"#
        );
        call(server, "AddCount", &body);
    }
    let is_closed = || {
        let read = reading(server, "views", "ROLLED_UP");
        count(&read) == 8 && read["behind"] != Value::Bool(true)
    };
    assert!(eventually(WITHIN, is_closed), "{}", server.printed());
}

/// The verdict on a token of `views`.
fn verdict_on(server: &Server, token: &Uuid) -> Value {
    let body =
        format!(r#"{{"namespace": "default", "counter_name": "views", "idempotency_token": {{"token": "{token}"}}}}"#);
    call(server, "CheckToken", &body)["verdict"].clone()
}

#[test]
fn a_row_that_nobody_asks_about_is_found_and_counted_by_a_recount() {
    let server = start("recounted");
    let late = Uuid::now_v7();
    add(&server, "views", 1);
    let is_closed = || reading(&server, "views", "ROLLED_UP")["behind"] != Value::Bool(true);
    assert!(eventually(WITHIN, is_closed), "{}", server.printed());
    write_late("recounted", FIRST, "views", &late, Change::Add(10));
    let recount = |repair: bool| {
        let body = format!(r#"{{"namespace": "default", "counter_name": "views", "repair": {repair}}}"#);
        call(&server, "RecountCounter", &body)
    };
    let seen = recount(false);
    assert_eq!((&seen["countBefore"], &seen["countAfter"]), (&Value::from("1"), &Value::from("11")), "{seen}");
    assert_eq!(seen["differences"].as_array().map(Vec::len), Some(1), "{seen}");
    assert_eq!(count(&reading(&server, "views", "ROLLED_UP")), 1, "it was only looked at");
    assert_eq!(recount(true)["repaired"], Value::Bool(true));
    assert_eq!(count(&reading(&server, "views", "ROLLED_UP")), 11);
    let after = recount(true);
    assert_eq!(after["countBefore"], after["countAfter"], "{after}");
    assert!(after["differences"].as_array().is_none_or(Vec::is_empty), "{after}");
    assert_eq!(metric(&server, "tallystone_repairs_total"), 1.0);
    assert!(server.stop().success());
}

#[test]
fn a_member_of_a_newer_release_is_one_of_the_fleet() {
    let server = start("newer_member");
    let node = cassandra::shared().unwrap_or_else(|why| panic!("{why}"));
    // A first heartbeat of a writer, and a field that this release does not know.
    let beat = "0x08011001980607";
    let row = format!(
        "UPDATE newer_member.members USING TIMESTAMP 1 SET beat = {beat} WHERE slot = 0 AND member = 0b6f2c1e-7d3a-4e58-9c41-5a2f8d9e1b70"
    );
    crate::engines::cassandra::query(&node.to_string(), None, &row);
    add(&server, "views", 5);
    let rolled_up = || count(&reading(&server, "views", "ROLLED_UP")) == 5;
    assert!(eventually(WITHIN, rolled_up), "{}", server.printed());
    // It never beats again, so it lapses as any other member does.
    let lapsed = || metric(&server, "tallystone_fleet_members_lapsed_total") == 1.0;
    assert!(eventually(WITHIN, lapsed), "{}", server.printed());
    assert_eq!(metric(&server, "tallystone_fleet_members"), 1.0);
    add(&server, "views", 50);
    let rolled_up = || count(&reading(&server, "views", "ROLLED_UP")) == 55;
    assert!(eventually(WITHIN, rolled_up), "{}", server.printed());
}

/// Makes a namespace with few counters and time buckets of ten seconds, in a dataset of its own.
fn make_namespace(server: &Server, name: &str, (slice, delete_after): (u32, u32)) {
    let body = format!(
        r#"{{"namespace": {{"name": "{name}", "counter_cardinality": "LOW", "storage": {{"dataset": "{name}"}},
            "dataset": {{"slice_width": "{slice}s", "close_after": "{}s", "delete_after": "{delete_after}s",
                "accept_limit": "1s"}},
            "time_partition": {{"buckets_per_id": 2, "seconds_per_bucket": 10}}, "rollup": {{"coalesce_ms": 500}}}}}}"#,
        slice + 1
    );
    let created = server.post("/tallystone.admin.v1.NamespaceService/CreateNamespace", &body);
    assert_eq!(created.status, 200, "{}", created.body);
}

fn start_that_seals_after(seconds: u32) -> Server {
    let node = cassandra::shared().unwrap_or_else(|why| panic!("{why}"));
    let launch = Launch::dev_on_cassandra(node).arg("--set").arg("clusters.cassandra.keyspace=sealed");
    launch.patient_with("cassandra").arg("--set").arg(&format!("storage.seal_delay_seconds={seconds}")).start()
}

fn rolled_up_in(server: &Server, namespace: &str) -> Value {
    let body = format!(r#"{{"namespace": "{namespace}", "counter_name": "views", "freshness": "ROLLED_UP"}}"#);
    call(server, "GetCount", &body)
}

#[test]
fn a_row_that_nobody_asks_about_is_counted_when_its_bucket_is_sealed_and_no_slice_is_dropped_before() {
    let server = start_that_seals_after(0);
    make_namespace(&server, "checked", (600, 1_200));
    let late = Uuid::now_v7();
    add_to(&server, "checked", "views", 1);
    let is_closed = || {
        let read = rolled_up_in(&server, "checked");
        count(&read) == 1 && read["behind"] != Value::Bool(true)
    };
    assert!(eventually(WITHIN, is_closed), "{}", server.printed());
    write_late("sealed", (NamespaceId(2), DatasetId(2)), "views", &late, Change::Add(10));
    assert_eq!(metric(&server, "tallystone_buckets_sealed_total"), 0.0, "it was told not to");
    // An add that came too late on a busy machine was settled, which leaves a mark.
    let verdicts = |server: &Server| -> f64 {
        let of = |outcome: &str| metric_of(server, "tallystone_verdicts_total", &format!("outcome=\"{outcome}\""));
        of("applied") + of("not_applied")
    };
    let settled = verdicts(&server);
    assert!(server.stop().success());
    // Whoever seals begins where nobody has sealed yet.
    let server = start_that_seals_after(2);
    let counted = || count(&rolled_up_in(&server, "checked")) == 11;
    assert!(eventually(WITHIN, counted), "{}\n{}", rolled_up_in(&server, "checked"), server.printed());
    // The metrics follow a repair, which readers see before.
    let told = || ["tallystone_late_rows_total", "tallystone_repairs_total"].map(|name| metric(&server, name));
    assert!(eventually(WITHIN, || told() == [1.0; 2]), "{:?}\n{}", told(), server.printed());
    if settled + verdicts(&server) == 0.0 {
        assert_eq!(metric(&server, "tallystone_buckets_rechecked_total"), 0.0, "nobody asked");
    }
    // The bucket is marked as sealed after its repair, which readers see before.
    let sealed = || metric(&server, "tallystone_buckets_sealed_total");
    assert!(eventually(WITHIN, || sealed() >= 1.0), "{}", server.printed());
    let sealed = sealed();
    make_namespace(&server, "short", (10, 12));
    add_to(&server, "short", "views", 1);
    let dropped = || metric(&server, "tallystone_slices_dropped_total") >= 1.0;
    assert!(eventually(WITHIN * 2, dropped), "{}", server.printed());
    assert!(metric(&server, "tallystone_buckets_sealed_total") > sealed, "its bucket was sealed before it was dropped");
    assert_eq!(count(&rolled_up_in(&server, "short")), 1, "the count stays");
    assert!(server.stop().success());
}

/// The hold of a server that has lost its membership: limits may have passed its events.
struct Lapsed;

impl AppendHold for Lapsed {
    fn keeps_limits_back(&self) -> bool {
        false
    }
}

/// Writes an event as a server does that does not know how far the dataset is closed.
fn write_late(keyspace: &str, counter: (NamespaceId, DatasetId), name: &str, token: &Uuid, change: Change) {
    let written = append_late(keyspace, counter, name, (token, change), || Box::new(()));
    assert!(written.is_ok(), "{written:?}");
}

/// Writes a clear as a server does that has lost its membership: the row stays, and the clear register does not name it.
fn write_in_doubt(keyspace: &str, counter: (NamespaceId, DatasetId), name: &str, token: &Uuid, change: Change) {
    let written = append_late(keyspace, counter, name, (token, change), || Box::new(Lapsed));
    assert_eq!(written.map_err(|error| error.outcome), Err(EffectOutcome::Unknown));
}

fn append_late(
    keyspace: &str,
    (namespace, dataset): (NamespaceId, DatasetId),
    name: &str,
    (token, change): (&Uuid, Change),
    hold: impl Fn() -> AppendGuard,
) -> Result<AppendOutcome, StoreError> {
    let event = Event { key: key_of(token), change, provenance: Provenance::default() };
    let counter = Counter::new(namespace, CounterName::new(name).expect("a valid name"));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let clock = std::sync::Arc::new(SystemClock);
        let opened = open_patiently(&options_of(keyspace)).await;
        let stores = opened.stores(std::sync::Arc::new(FastTable::new(clock, 1 << 20)));
        // Under its token it counts once, so a write without an answer is repeated.
        let mut written = Vec::new();
        for _ in 0..WRITES_MAX {
            let new = NewEvent { counter: counter.clone(), event: event.clone() };
            written = stores.log.append(dataset, vec![new], hold()).await;
            if written.iter().all(Result::is_ok) {
                break;
            }
        }
        opened.close().await;
        written.pop().expect("one answer for one event")
    })
}

fn key_of(token: &Uuid) -> EventKey {
    let (seconds, nanos) = token.get_timestamp().expect("it has a time").to_unix();
    let millis = i64::try_from(seconds * 1_000 + u64::from(nanos) / 1_000_000).expect("a time of this century");
    EventKey { time: Timestamp::from_millis(millis), id: EventId::Uuid(token.into_bytes()) }
}

fn options_of(keyspace: &str) -> Options {
    let node = cassandra::shared().unwrap_or_else(|why| panic!("{why}"));
    Options {
        servers: vec![node.to_string()],
        keyspace: keyspace.to_owned(),
        data_center: None,
        credentials: None,
        tls: None,
        timeout: Duration::from_secs(60),
    }
}

/// Marks the row of a token as void, as the conditional insert of a verdict does whose tombstone an event hides.
fn mark_as_void(keyspace: &str, token: &Uuid) {
    let key = key_of(token);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let session = connect(&options_of(keyspace), &patience()).await.expect("the node answers");
        let named = format!("SELECT table_name FROM system_schema.tables WHERE keyspace_name = '{keyspace}'");
        let tables = session.query_unpaged(named, ()).await.expect("a list").into_rows_result().expect("rows");
        let mut marked = 0;
        let names = tables.rows::<(String,)>().expect("names").map(|row| row.expect("a name").0);
        for table in names.filter(|name| name.starts_with("events_")) {
            let columns = "ns, counter, time_bucket, event_bucket, event_time, event_id";
            let asked = format!("SELECT {columns} FROM {keyspace}.{table}");
            let rows = session.query_unpaged(asked, ()).await.expect("rows").into_rows_result().expect("rows");
            let rows = rows.rows::<(i64, String, i64, i32, i64, Vec<u8>)>().expect("keys");
            let is_of_token = |time: i64, id: &[u8]| time == key.time.micros() && id == key.id.to_bytes();
            for row in rows.map(|row| row.expect("a key")).filter(|row| is_of_token(row.4, &row.5)) {
                let place =
                    "time_bucket = ? AND event_bucket = ? AND event_time = ? AND event_id = ? AND item_key = 'v'";
                let mark = format!("UPDATE {keyspace}.{table} USING TIMESTAMP 1 SET is_void = true");
                let mark = format!("{mark} WHERE ns = ? AND counter = ? AND {place}");
                session.query_unpaged(mark, row).await.expect("the row is marked");
                marked += 1;
            }
        }
        assert_eq!(marked, 1, "the row of the token");
    });
}
