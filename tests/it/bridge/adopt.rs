//! A queue store that took the place of another one: it gets counters, history and rules when somebody gives them to it, and the two
//! stores never report at once.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::on_cassandra::messages;
use super::{
    CAUGHT_UP_WITHIN, COUNTERS, QUEUE, answer, call, check_levels, count, create, enqueue, number, queue_call,
    wait_until_reported,
};
use crate::engines::cassandra::node;
use crate::servers::redis::{Build, RedisServer, RedisSettings};
use crate::support::harness::{Launch, Server, eventually};

const BRIDGE: &str = "/tallystone.admin.v1.BridgeService";
const RULES: &str = "/tallystone.rule.v1.RuleService";

fn redis() -> RedisServer {
    // Queues that end with their Redis leave no mark.
    let settings = RedisSettings::of(&["appendonly yes", "appendfsync always"]);
    RedisServer::start_with(Build::Redis7, settings).unwrap_or_else(|why| panic!("{why}"))
}

fn on(redis: &RedisServer, data: &Path) -> Server {
    Launch::dev(data).arg("--redis").arg(&redis.address().to_string()).start()
}

fn metric(server: &Server, name: &str) -> f64 {
    let page = server.get("/metrics").body;
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in:\n{page}"))
}

fn reports(server: &Server) -> bool {
    metric(server, "tallystone_bridge_active") > 0.0
}

fn is_apart(server: &Server) -> bool {
    metric(server, "tallystone_bridge_apart") > 0.0
}

/// Runs a command for a server: its exit code, and all that it printed.
fn command(server: &Server, words: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tallystone"));
    let output = command.args(words).args(["--server", &server.address.to_string()]).output().expect("it starts");
    let printed = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&printed).into_owned())
}

fn adopt(server: &Server, dry_run: bool) -> Value {
    call(server, BRIDGE, "AdoptStore", &json!({"reason": "the disk of Redis broke", "dry_run": dry_run}))
}

/// What an adoption says that it gave: whether the counters were this store's before, and the number of rules.
fn given(adopted: &Value) -> (bool, i64) {
    (adopted["alreadyAdopted"].as_bool().expect("a word"), number(&adopted["rules"]))
}

/// The rule `sold`: at 3 of a counter of the namespace `default`.
fn rule() -> Value {
    json!({"rule": {"name": "sold", "namespace": "default", "counterName": "sold", "at": "3", "queue": QUEUE}})
}

fn has_history(server: &Server, message: &str) -> bool {
    let asked = json!({"queue": QUEUE, "message_id": message});
    let traced = call(server, "/tallystone.history.v1.HistoryService", "GetMessageTrace", &asked);
    // Rows that are still in the outbox are shown as well, as not recorded.
    traced["lives"][0]["transitions"].as_array().is_some_and(|rows| !rows.is_empty())
        && metric(server, "tallystone_history_lag_seconds") == 0.0
}

fn has_fired(server: &Server) -> bool {
    let listed = queue_call(server, "ListMessages", json!({"queue": QUEUE}));
    let messages = listed["messages"].as_array().expect("messages");
    messages.iter().any(|message| message["messageId"] == json!("rule-sold-1-1"))
}

/// A server whose Redis was emptied while it was stopped. Before that it counted 5 messages, and made a rule.
fn restarted_on_an_empty_redis(redis: &RedisServer, data: &Path) -> Server {
    let server = on(redis, data);
    create(&server, json!({}));
    enqueue(&server, &messages(0, 5));
    call(&server, RULES, "CreateRule", &rule());
    wait_until_reported(&server, CAUGHT_UP_WITHIN);
    assert!(server.stop().success());
    redis.cli(&["FLUSHALL"]);
    on(redis, data)
}

#[test]
fn a_server_whose_queue_store_was_replaced_says_that_nothing_is_counted_and_what_to_do() {
    let (redis, data) = (redis(), tempfile::tempdir().expect("a temporary directory"));
    let server = restarted_on_an_empty_redis(&redis, data.path());
    assert!(is_apart(&server) && !reports(&server));
    server.wait_for_line("belong to another queue store");
    server.wait_for_line("counter rules belong to another queue store");
    let (code, told) = command(&server, &["status"]);
    assert!(code == Some(1) && told.contains("docs/runbook/bridge-off.md"), "{code:?} {told}");
    create(&server, json!({}));
    let exists = answer(&server, RULES, "CreateRule", &rule());
    assert!(exists.body.contains("RULE_EXISTS") && exists.body.contains("tallystone bridge adopt"), "{}", exists.body);
    let check = answer(&server, "/tallystone.history.v1.HistoryService", "CheckQueues", &json!({}));
    assert!(check.body.contains("tallystone bridge adopt"), "{}", check.body);
    assert!(server.stop().success());
}

#[test]
fn after_a_lost_redis_adopt_gives_counters_history_and_rules_to_the_store_in_its_place() {
    let (redis, data) = (redis(), tempfile::tempdir().expect("a temporary directory"));
    let server = restarted_on_an_empty_redis(&redis, data.path());
    create(&server, json!({}));
    enqueue(&server, &messages(10, 12));
    let words = ["bridge", "adopt", "--reason", "the disk of Redis broke"];
    let (code, asked) = command(&server, &words);
    assert!(code == Some(2) && asked.contains("counters and history and 1 rule"), "it asks first: {asked}");
    let (code, previewed) = command(&server, &[&words[..], &["--dry-run"]].concat());
    assert!(code == Some(0) && previewed.contains("would be given"), "{previewed}");
    assert_eq!((given(&adopt(&server, true)), is_apart(&server)), ((false, 1), true), "nothing was changed");
    let (code, done) = command(&server, &[&words[..], &["--yes"]].concat());
    assert!(
        code == Some(0) && done.contains("given to the queue store of this server: counters and history and 1 rule"),
        "{done}"
    );
    assert_eq!(given(&adopt(&server, false)), (true, 0), "sent twice it changes nothing more");
    assert_eq!(count(&server, "enqueued"), 5, "the store before may report yet");

    assert!(eventually(CAUGHT_UP_WITHIN, || reports(&server)), "{}", server.printed());
    wait_until_reported(&server, CAUGHT_UP_WITHIN);
    assert_eq!(count(&server, "enqueued"), 2);
    check_levels(&server);
    assert!(eventually(CAUGHT_UP_WITHIN, || has_history(&server, "m10")), "{}", server.printed());
    let sold = json!({"namespace": "default", "counterName": "sold", "delta": "3"});
    call(&server, COUNTERS, "AddCount", &sold);
    assert!(eventually(CAUGHT_UP_WITHIN, || has_fired(&server)), "{}", server.printed());

    let acts = call(&server, "/tallystone.admin.v1.AuditService", "ListAdminActions", &json!({}));
    let adopted = acts["actions"]
        .as_array()
        .expect("acts")
        .iter()
        .find(|act| act["part"] == json!("counters and history, rules: 1"));
    let reason = adopted.map(|act| (act["action"].clone(), act["reason"].clone()));
    assert_eq!(reason, Some((json!("AdoptStore"), json!("the disk of Redis broke"))), "{acts}");
    assert!(server.stop().success());
    let server = on(&redis, data.path());
    assert!(reports(&server) && !is_apart(&server), "a restart finds its own mark");
    assert_eq!(command(&server, &["status"]).0, Some(0));
    assert!(server.stop().success());
}

#[test]
fn a_server_whose_redis_was_emptied_adopts_nothing_before_it_is_restarted() {
    let (redis, data) = (redis(), tempfile::tempdir().expect("a temporary directory"));
    let server = on(&redis, data.path());
    create(&server, json!({}));
    redis.cli(&["FLUSHALL"]);
    let refused = answer(&server, BRIDGE, "AdoptStore", &json!({"reason": "too early"}));
    assert!(refused.body.contains("STORE_UNAVAILABLE"), "{}", refused.body);
    assert!(refused.body.contains("has lost what it had"), "{}", refused.body);
    assert_eq!(redis.cli(&["KEYS", "*lease_key"]).trim(), "", "the empty store does not become the one before");
    drop(server);
}

#[test]
fn two_queue_stores_never_report_at_once_while_the_counters_change_hands() {
    let redis = [redis(), redis()];
    let on = |redis: &RedisServer| {
        let launch = Launch::dev_on_cassandra(node()).arg("--set").arg("clusters.cassandra.keyspace=changes_hands");
        launch.arg("--redis").arg(&redis.address().to_string()).start()
    };
    let [one, other] = redis.each_ref().map(on);
    let report = || {
        // The one that is asked first may have begun since, so both are asked again.
        let both = || reports(&one) && reports(&other);
        assert!(!(both() && both()), "two stores report at once");
        (reports(&one), reports(&other))
    };
    assert!(eventually(CAUGHT_UP_WITHIN, || report() == (true, false)), "{}", other.printed());
    create(&one, json!({}));
    create(&other, json!({}));
    enqueue(&one, &messages(0, 3));
    enqueue(&other, &messages(0, 7));
    wait_until_reported(&one, CAUGHT_UP_WITHIN);
    assert_eq!(given(&adopt(&other, false)), (false, 0));
    assert!(eventually(CAUGHT_UP_WITHIN, || report() == (false, false)), "the one before stops: {}", one.printed());
    assert!(eventually(CAUGHT_UP_WITHIN, || report() == (false, true)), "then the other begins: {}", other.printed());
    assert!(eventually(CAUGHT_UP_WITHIN, || count(&other, "enqueued") == 7), "{}", other.printed());
    assert!(is_apart(&one) && !is_apart(&other));
    assert_eq!(given(&adopt(&one, false)), (false, 0), "and back");
    assert!(eventually(CAUGHT_UP_WITHIN, || report() == (true, false)), "{}", one.printed());
    assert!(eventually(CAUGHT_UP_WITHIN, || count(&one, "enqueued") == 3), "{}", one.printed());
    assert!(one.stop().success() && other.stop().success());
}
