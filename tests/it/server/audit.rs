//! What operators did is written down once each, for the owner of the directory alone, and outlives a restart.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use serde_json::{Value, json};
use tallystone::adapters::manual::ManualClock;
use tallystone::adapters::memory::AdminLogTable;
use tallystone::domain::Timestamp;
use tallystone::domain::limits::OPERATION_KEPT;
use tallystone::engine::audit::{Audit, OperatorAct};
use tallystone::proto::admin::v1::CreateBackupRequest;
use tallystone::proto::admin::v1::backup_service_client::BackupServiceClient;

use super::keys::{command_with, keyed, post};
use crate::support::harness::{HttpAnswer, Launch, PATIENCE, Server, eventually, http};
use crate::support::patience::patient_channel;

const QUEUES: &str = "/tallystone.queue.v1.QueueService";

fn call(server: &Server, path: &str, actor: &str, body: &Value) -> HttpAnswer {
    let headers = [("content-type", "application/json"), ("tallystone-actor", actor)];
    http(server.address, "POST", path, &headers, &body.to_string()).expect("the server answers")
}

fn acts(server: &Server, ask: &Value) -> Vec<Value> {
    let answer = server.post("/tallystone.admin.v1.AuditService/ListAdminActions", &ask.to_string());
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()["actions"].as_array().expect("a list").clone()
}

fn shown(act: &Value) -> [&str; 5] {
    ["action", "target", "actor", "reason", "outcome"].map(|field| act[field].as_str().expect("a text"))
}

#[test]
fn each_act_of_an_operator_is_one_line_that_only_the_owner_can_read() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(data.path()).start();
    let done = |path: &str, actor: &str, body: Value| {
        let answer = call(&server, path, actor, &body);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    };
    done(&format!("{QUEUES}/CreateQueue"), "ada", json!({"queue": {"name": "mail"}, "reason": "new"}));
    let message = json!({"queue": "mail", "message": {"messageId": "m1", "payload": "c2VjcmV0LXBheWxvYWQ="}});
    done(&format!("{QUEUES}/Enqueue"), "ada", message);
    let purge = json!({"queue": "mail", "requestToken": "once"});
    done(&format!("{QUEUES}/PurgeQueue"), "ben", purge.clone());
    done(&format!("{QUEUES}/PurgeQueue"), "ben", purge);
    done(&format!("{QUEUES}/RedriveMessages"), "ben", json!({"queue": "mail", "dryRun": true}));
    let clear = json!({"namespace": "default", "counterName": "views"});
    done("/tallystone.counter.v1.CounterService/ClearCount", "", clear.clone());
    done("/tallystone.counter.v1.CounterService/ClearCount", "cyd", clear);
    assert_ne!(call(&server, &format!("{QUEUES}/PurgeQueue"), "ben", &json!({"queue": "none"})).status, 200);

    let all = acts(&server, &json!({}));
    let lines: Vec<[&str; 5]> = all.iter().map(shown).collect();
    assert_eq!(
        lines,
        [
            ["PurgeQueue", "none", "ben", "", "QUEUE_NOT_FOUND"],
            ["ClearCount", "default", "cyd", "", "OK"],
            ["PurgeQueue", "mail", "ben", "", "OK"],
            ["CreateQueue", "mail", "ada", "new", "OK"],
        ]
    );
    assert_eq!(acts(&server, &json!({"targetPrefix": "mai", "pageSize": 1})).len(), 1);
    let file = data.path().join("audit/actions.jsonl");
    let mode = fs::metadata(&file).expect("the file is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let text = fs::read_to_string(&file).expect("the file can be read");
    assert_eq!(text.lines().count(), 4, "{text}");
    assert!(!text.contains("secret") && !text.contains("c2VjcmV0") && !text.contains("once"), "{text}");

    assert!(server.stop().success());
    let server = Launch::dev(data.path()).start();
    let purge = json!({"queue": "mail", "requestToken": "once"});
    assert_eq!(call(&server, &format!("{QUEUES}/PurgeQueue"), "ben", &purge).status, 200);
    assert_eq!(acts(&server, &json!({})), all, "a repeat after a restart leaves no line");
}

#[test]
fn acts_without_an_effect_are_sampled_and_leave_the_room_to_others() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(data.path()).start();
    let made = call(&server, &format!("{QUEUES}/CreateQueue"), "ada", &json!({"queue": {"name": "mail"}}));
    assert_eq!(made.status, 200, "{}", made.body);
    let began = Instant::now();
    for number in 0..1_000 {
        let missing = json!({"queue": format!("none-{number}"), "requestToken": format!("t{number}")}).to_string();
        let actor = if number < 500 { "ben".to_owned() } else { format!("ben (as {number})") };
        let long = "x".repeat(900);
        let headers =
            [("content-type", "application/json"), ("tallystone-actor", &*actor), ("tallystone-reason", &*long)];
        let refused = http(server.address, "POST", &format!("{QUEUES}/PurgeQueue"), &headers, &missing);
        let refused = refused.expect("the server answers");
        assert_eq!(refused.status, 404, "{}", refused.body);
    }
    let minutes = began.elapsed().as_secs() / 60 + 1;
    let text = fs::read_to_string(data.path().join("audit/actions.jsonl")).expect("the file can be read");
    let lines = text.lines().count() as u64;
    assert!((2..=1 + minutes + 1).contains(&lines), "{lines} lines in {minutes} minutes");
    assert!(text.len() as u64 / lines < 500, "{text}");
    let all = acts(&server, &json!({}));
    assert_eq!(shown(all.last().expect("a line")), ["CreateQueue", "mail", "ada", "", "OK"]);
    assert_eq!(all[0]["outcome"], "QUEUE_NOT_FOUND");
    assert!(all[0]["target"].as_str().is_some_and(|target| target.starts_with("none-")), "{}", all[0]);
    // An act that is in doubt, or done, is always written.
    for number in 0..50 {
        let done = call(&server, &format!("{QUEUES}/PurgeQueue"), "ben", &json!({"queue": "mail"}));
        assert_eq!(done.status, 200, "{number}: {}", done.body);
    }
    let text = fs::read_to_string(data.path().join("audit/actions.jsonl")).expect("the file can be read");
    assert_eq!(text.lines().filter(|line| line.contains("\"OK\"")).count(), 51, "{text}");
}

#[tokio::test]
async fn a_request_token_hides_no_act_of_others_nor_one_after_its_time() {
    let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
    let log = Arc::new(AdminLogTable::default());
    let audit = Audit::new(log.clone(), Arc::new(clock.clone()));
    let act = |actor: &str| OperatorAct {
        actor: actor.to_owned(),
        action: "PurgeQueue".to_owned(),
        target: "mail".to_owned(),
        outcome: "OK".to_owned(),
        request_token: "once".to_owned(),
        ..OperatorAct::default()
    };
    let actors = async || -> Vec<String> {
        let (acts, _) = audit.list("", None, 100).await.expect("a list");
        acts.into_iter().map(|act| act.actor).collect()
    };
    for actor in ["ann", "bob", "ann", "bob"] {
        audit.record(act(actor)).await.expect("it is written");
    }
    assert_eq!(actors().await, ["bob", "ann"], "a repeat leaves no line, the act of another does");
    clock.advance(OPERATION_KEPT - Duration::from_secs(1));
    audit.record(act("ann")).await.expect("it is written");
    // As a server that has started again: it knows the calls from the log.
    let restarted = Audit::new(log.clone(), Arc::new(clock.clone()));
    restarted.record(act("bob")).await.expect("it is written");
    assert_eq!(actors().await, ["bob", "ann"], "the token is still known");
    clock.advance(Duration::from_secs(1));
    audit.record(act("ann")).await.expect("it is written");
    assert_eq!(actors().await, ["ann", "bob", "ann"], "the token is forgotten, so this is another act");
}

fn acts_for(server: &Server, key: &str) -> Vec<Value> {
    let answer = post(server, "/tallystone.admin.v1.AuditService/ListAdminActions", key, &json!({}));
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()["actions"].as_array().expect("a list").clone()
}

#[test]
fn a_change_of_a_key_says_which_grants_changed_and_a_document_which_namespaces() {
    let (server, admin, _folder) = keyed();
    let ran = |arguments: &[&str]| {
        let (code, out, told) = command_with(&server, &admin, arguments);
        assert_eq!(code, 0, "{told}");
        out.trim().to_owned()
    };
    ran(&["key", "create", "orders", "--grant", "worker:queue:orders/*", "--grant", "viewer"]);
    let update = [
        "key",
        "update",
        "orders",
        "--grant",
        "worker:queue:orders/*",
        "--grant",
        "enqueuer",
        "--deny",
        "worker:queue:x",
    ];
    ran(&[&update[..], &["--reason", "they send too"]].concat());
    ran(&[&update[..], &["--description", "workers"]].concat());
    let apply = |document: Value| {
        let body = json!({"document": document.to_string()});
        post(&server, "/tallystone.admin.v1.NamespaceService/ApplyNamespace", &admin, &body).status
    };
    assert_eq!(apply(json!([{"name": "views"}, {"name": "clicks"}])), 200);
    assert_ne!(apply(json!({"name": "views", "type": "no such type"})), 200);
    let lines: Vec<_> = acts_for(&server, &admin)
        .iter()
        .map(|act| {
            ["action", "target", "part", "reason", "outcome"]
                .map(|field| act[field].as_str().expect("a text").to_owned())
        })
        .collect();
    assert_eq!(
        lines[1..],
        [
            ["ApplyNamespace", "views clicks", "", "", "OK"],
            ["UpdateKey", "orders", "", "", "OK"],
            ["UpdateKey", "orders", "+enqueuer, +not worker:queue:x, -viewer", "they send too", "OK"],
            ["CreateKey", "orders", "", "", "OK"],
        ]
        .map(|line| line.map(str::to_owned))
    );
    assert_eq!(lines[0][0], "ApplyNamespace", "and what was refused stands there too");
}

#[test]
fn an_act_shows_the_true_principal_despite_a_forged_actor() {
    let (server, admin, _folder) = keyed();
    let bearer = format!("Bearer {admin}");
    for (name, forged) in [("a", "root"), ("b", "bob (root)")] {
        let headers = [("content-type", "application/json"), ("authorization", &*bearer), ("tallystone-actor", forged)];
        let body = json!({"queue": {"name": name}}).to_string();
        let made = http(server.address, "POST", &format!("{QUEUES}/CreateQueue"), &headers, &body);
        assert_eq!(made.expect("the server answers").status, 200);
    }
    let lines = acts_for(&server, &admin);
    let lines: Vec<_> = lines.iter().map(shown).collect();
    assert_eq!(
        lines,
        [["CreateQueue", "b", "ann (bob (root))", "", "OK"], ["CreateQueue", "a", "ann (root)", "", "OK"]]
    );
}

#[test]
fn a_line_keeps_words_apart_and_letters_of_any_script() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(data.path()).start();
    let long = "ö".repeat(300);
    let cut = &long[..256];
    for (name, reason, said, actor, named) in [
        ("a", "a\nb\tc", "a b c", "Zoë", "Zoë"),
        ("b", "naïve", "naïve", "Ирина (ops)", "Ирина (ops)"),
        ("c", "", "", &long, cut),
    ] {
        let body = json!({"queue": {"name": name}, "reason": reason});
        let made = call(&server, &format!("{QUEUES}/CreateQueue"), actor, &body);
        assert_eq!(made.status, 200, "{}", made.body);
        let all = acts(&server, &json!({}));
        assert_eq!(shown(&all[0]), ["CreateQueue", name, named, said, "OK"]);
        let history = server.post(&format!("{QUEUES}/ListQueueChanges"), &json!({"queue": name}).to_string()).json();
        assert_eq!(history["changes"][0]["actor"], named, "{history}");
    }
}

/// Payloads that no compression makes short.
fn noise(seed: u64) -> String {
    let mut state = seed | 1;
    let bytes = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    base64::engine::general_purpose::STANDARD.encode(bytes.take(3_000).flatten().collect::<Vec<u8>>())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_whose_caller_went_away_is_told_from_one_that_was_given_out() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(data.path()).start();
    let made = server.post(&format!("{QUEUES}/CreateQueue"), r#"{"queue": {"name": "mail"}}"#);
    assert_eq!(made.status, 200, "{}", made.body);
    // More than connections hold on the way.
    for number in 0..150 {
        let message = json!({"message_id": format!("m{number}"), "payload": noise(number + 7)});
        let sent = server.post(&format!("{QUEUES}/Enqueue"), &json!({"queue": "mail", "message": message}).to_string());
        assert_eq!(sent.status, 200, "{}", sent.body);
    }
    let mut client = BackupServiceClient::new(patient_channel(&server.url()).await);
    let mut pieces = client.create_backup(CreateBackupRequest {}).await.expect("it begins").into_inner();
    assert!(pieces.message().await.expect("it goes on").is_some());
    drop(pieces);
    let of_backups = || {
        let all = acts(&server, &json!({}));
        all.into_iter().filter(|act| act["action"] == "CreateBackup").collect::<Vec<_>>()
    };
    assert!(eventually(PATIENCE, || of_backups().len() == 1), "{:?}", of_backups());
    let cut = &of_backups()[0];
    assert!(cut["outcome"] == "Cancelled", "{cut}");
    assert!(cut["part"].as_str().is_some_and(|part| part.ends_with(" bytes were given out")), "{cut}");
    let mut pieces = client.create_backup(CreateBackupRequest {}).await.expect("it begins").into_inner();
    while pieces.message().await.expect("it goes on").is_some() {}
    let whole = of_backups();
    assert_eq!((whole.len(), &whole[0]["outcome"], &whole[0]["part"]), (2, &json!("OK"), &json!("")), "{whole:?}");
}

#[test]
fn refused_calls_are_sampled_with_the_true_principal() {
    let (server, admin, _folder) = keyed();
    let (code, key, told) = command_with(&server, &admin, &["key", "create", "bob", "--grant", "worker:queue:own"]);
    assert_eq!(code, 0, "{told}");
    let key = key.trim();
    let forged = |path: &str, body: &str| {
        let bearer = format!("Bearer {key}");
        let headers = [("content-type", "application/json"), ("authorization", &*bearer), ("tallystone-actor", "ann")];
        http(server.address, "POST", path, &headers, body).expect("the server answers").status
    };
    for _ in 0..50 {
        assert_eq!(forged("/tallystone.admin.v1.KeyService/ListKeys", "{}"), 403);
        assert_eq!(forged(&format!("{QUEUES}/PurgeQueue"), "{\"queue\": \"own\"}"), 403);
        assert_eq!(server.post("/tallystone.admin.v1.KeyService/ListKeys", "{}").status, 401);
        assert_eq!(server.post("/no/such-path", "{}").status, 401);
        assert_eq!(server.get("/metrics").status, 401);
    }
    let bearer = format!("Bearer {key}");
    assert_eq!(
        http(server.address, "GET", "/metrics", &[("authorization", &bearer)], "").expect("an answer").status,
        403
    );
    let mut lines: Vec<_> = acts_for(&server, &admin)
        .iter()
        .filter(|act| act["outcome"] != "OK")
        .map(|act| ["action", "actor", "outcome"].map(|field| act[field].as_str().expect("a text").to_owned()))
        .collect();
    lines.sort();
    let expected = [
        ["/metrics", "127.0.0.1", "UNAUTHENTICATED"],
        ["/metrics", "bob", "ROLE_MISSING"],
        ["ListKeys", "127.0.0.1", "UNAUTHENTICATED"],
        ["ListKeys", "bob", "ROLE_MISSING"],
        ["PurgeQueue", "bob", "ROLE_MISSING"],
        ["unknown", "127.0.0.1", "UNAUTHENTICATED"],
    ];
    assert_eq!(lines, expected.map(|line| line.map(str::to_owned)), "one line of each kind in a minute");
}

#[test]
fn a_key_that_clears_a_counter_or_copies_everything_leaves_its_name_there_and_in_the_events() {
    let (server, admin, folder) = keyed();
    let (code, app, told) = command_with(&server, &admin, &["key", "create", "app", "--grant", "counter-writer"]);
    assert_eq!(code, 0, "{told}");
    let namespace = json!({"namespace": {"name": "default"}});
    let made = post(&server, "/tallystone.admin.v1.NamespaceService/CreateNamespace", &admin, &namespace);
    assert_eq!(made.status, 200, "{}", made.body);
    let counter = |method: &str, more: Value, key: &str| {
        let mut body = json!({"namespace": "default", "counterName": "views"});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let answer = post(&server, &format!("/tallystone.counter.v1.CounterService/{method}"), key, &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()
    };
    counter("AddCount", json!({"delta": "1"}), app.trim());
    counter("AddCount", json!({"delta": "1", "provenance": "boss"}), app.trim());
    counter("ClearCount", json!({"provenance": "oops"}), app.trim());
    counter("ClearCount", json!({}), app.trim());
    let events = counter("ListCountEvents", json!({}), &admin);
    let origins: Vec<&str> = events["events"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|event| event["provenance"].as_str().unwrap_or(""))
        .collect();
    assert_eq!(origins, ["app", "app (oops)", "app (boss)", ""], "the newest first: {events}");
    let copy = folder.path().join("copy");
    let (code, _, told) = command_with(&server, &admin, &["backup", copy.to_str().expect("a path")]);
    assert_eq!(code, 0, "{told}");
    let listed = post(&server, "/tallystone.admin.v1.AuditService/ListAdminActions", &admin, &json!({})).json();
    let acts = listed["actions"].as_array().expect("a list");
    let actor_of = |action: &str| {
        let act = acts.iter().find(|act| act["action"] == action).unwrap_or_else(|| panic!("no {action} in {listed}"));
        act["actor"].as_str().expect("a text").to_owned()
    };
    assert!(actor_of("ClearCount").starts_with("app"), "{listed}");
    let reasons: Vec<&Value> =
        acts.iter().filter(|act| act["action"] == "ClearCount").map(|act| &act["reason"]).collect();
    assert_eq!(reasons, [&json!(""), &json!("oops")], "{listed}");
    assert!(!actor_of("CreateBackup").is_empty(), "{listed}");
    let backup = acts.iter().find(|act| act["action"] == "CreateBackup").expect("it was found above");
    assert_eq!(backup["outcome"], "OK", "{listed}");
}
