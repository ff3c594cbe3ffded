//! `check`: what it says of sound queues and of a row that was removed by hand, and how it exits.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tallystone::adapters::embedded::disk::meta;

use super::Desk;
use crate::support::harness::{Launch, eventually};

/// Longer than a check takes on a busy machine.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

#[test]
fn sound_queues_have_no_findings_and_a_check_tells_so() {
    let desk = Desk::set();
    desk.shell("tallystone queue create orders --count-by tenant").ok();
    for number in 0..5 {
        let send = format!("tallystone msg push -q orders --id o-{number} --meta tenant=acme '{{}}'");
        desk.shell(&send).ok();
    }
    for line in ["check", "check -q orders", "check --full", "check -q orders --full"] {
        let ran = desk.shell(&format!("tallystone {line}"));
        assert_eq!(ran.code, 0, "{line}: {}{}", ran.out, ran.err);
        assert!(ran.err.contains("nothing differs"), "{line}: {}", ran.err);
    }
    let json: Value = serde_json::from_str(&desk.shell("tallystone check --full -o json").ok()).expect("JSON");
    assert_eq!(json["findings"].as_array().map(Vec::len), Some(0), "{json}");
}

#[test]
fn a_check_of_an_unknown_queue_is_refused() {
    let desk = Desk::set();
    let ran = desk.shell("tallystone check -q nobody");
    assert_eq!(ran.code, 3, "{}{}", ran.out, ran.err);
}

#[test]
fn a_check_is_an_operation_that_a_repeat_finds() {
    let desk = Desk::set();
    desk.shell("tallystone queue create orders").ok();
    desk.shell("tallystone msg push -q orders --id one hi").ok();
    let call = |service: &str, method: &str, body: &Value| {
        let answer = desk.server.post(&format!("/tallystone.{service}/{method}"), &body.to_string());
        (answer.status, answer.json())
    };
    let history = |method: &str, body: Value| call("history.v1.HistoryService", method, &body);
    let ask = json!({"queue": "orders", "request_token": "t"});
    let begun = history("CheckQueues", ask.clone()).1["operation"].clone();
    assert_eq!((&begun["kind"], &begun["queue"], &begun["total"]), (&json!("check"), &json!("orders"), &json!("1")));
    let id = &begun["operationId"];
    let state = || call("queue.v1.QueueService", "GetOperation", &json!({"operation_id": id})).1["operation"].clone();
    let is_done = || state()["state"].as_str().is_some_and(|state| state.ends_with("DONE"));
    assert!(eventually(ENDS_WITHIN, is_done), "{}", state());
    assert_eq!(history("CheckQueues", ask).1["operation"]["operationId"], *id);
    let found = history("ListFindings", json!({"operation_id": id})).1;
    assert_eq!((&found["findings"], &found["nextPageToken"]), (&json!([]), &json!("")), "{found}");
    for (method, body, reason) in [
        ("CheckQueues", json!({"queue": "orders", "full": true, "request_token": "t"}), "TOKEN_REUSED"),
        ("CheckQueues", json!({"request_token": "x".repeat(200)}), "INVALID_TOKEN"),
        ("ListFindings", json!({"operation_id": "unknown"}), "OPERATION_NOT_FOUND"),
        ("ListFindings", json!({"operation_id": id, "page_token": "AAAA"}), "INVALID_PAGE_TOKEN"),
    ] {
        let (_, refused) = history(method, body);
        assert_eq!(refused["details"][0]["reason"], reason, "{method}: {refused}");
    }
}

/// Removes the row at a position of the first shard from the history of a data directory that nobody has open. The relay has
/// carried it alone, so it is a stored value of its own. The removal is numbered as commits are: a store with a batch that
/// is not does not keep it.
fn remove_row(data: &Path, position: u64) {
    let library = fjall::Database::builder(data.join("store")).journal_compression(fjall::CompressionType::None);
    let library = library.open().expect("the library opens");
    let keyspace = |name: &str| library.keyspace(name, fjall::KeyspaceCreateOptions::default).expect("it is there");
    let names = library.list_keyspace_names();
    let periods = names.iter().filter(|name| name.starts_with("history.T."));
    let end = [&1_u32.to_be_bytes()[..], &position.to_be_bytes()].concat();
    let mut found = Vec::new();
    for period in periods.map(|name| keyspace(name)) {
        let keys = period.iter().map(|row| row.key().expect("readable"));
        found.extend(keys.filter(|key| key.len() == 44 && key.ends_with(&end)).map(|key| (period.clone(), key)));
    }
    let [(period, key)] = &found[..] else { panic!("one row, not {}", found.len()) };
    let meta = keyspace("meta");
    let last = meta.get(meta::COMMIT).expect("readable").expect("the store has commits");
    let number = u64::from_be_bytes(last[..8].try_into().expect("8 of 16 bytes"));
    let mut batch = library.batch();
    batch.remove(period, key.clone());
    batch.insert(&meta, meta::COMMIT, [(number + 1).to_be_bytes(), number.to_be_bytes()].concat());
    batch.durability(Some(fjall::PersistMode::SyncAll)).commit().expect("it is removed");
}

/// Stops the server, does something to its directory, and starts it again.
fn restarted(desk: Desk, meanwhile: impl FnOnce(&Path)) -> Desk {
    let Desk { server, folder } = desk;
    let data = folder.path().join("data");
    assert!(server.stop().success(), "an orderly stop");
    meanwhile(&data);
    Desk { server: Launch::dev(&data).start(), folder }
}

#[test]
fn a_full_check_exits_with_1_and_names_a_row_that_was_removed_by_hand() {
    let desk = Desk::set();
    let line = |desk: &Desk, line: &str| desk.shell(&format!("tallystone {line}")).ok();
    line(&desk, "queue create orders");
    // Each check waits until the history has come this far, so each row is carried alone.
    line(&desk, "msg push -q orders --id whole 1");
    line(&desk, "msg push -q orders --id holed 2 --priority 1");
    line(&desk, "check -q orders");
    let token = line(&desk, "msg pull -q orders --tokens");
    line(&desk, "check -q orders");
    line(&desk, &format!("msg complete -q orders {}", token.trim()));

    let desk = restarted(desk, |_| ());
    let sound = desk.shell("tallystone check -q orders --full");
    assert_eq!(sound.code, 0, "{}{}", sound.out, sound.err);
    let desk = restarted(desk, |data| remove_row(data, 3));
    assert_eq!(desk.shell("tallystone check -q orders").code, 0, "only a full check looks at messages");
    let ran = desk.shell("tallystone check -q orders --full -o json");
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("1 difference was found"), "{}", ran.err);
    let found: Value = serde_json::from_str(&ran.out).expect("JSON");
    let expected = json!([{
        "queue": "orders", "shard": 0, "kind": "version", "state": "MESSAGE_STATE_COMPLETED", "messageKey": "m.0.1.2",
        "version": "2", "expected": "1", "found": "0",
        "text": "message holed is at version 3; version 2 of it is missing from the history",
    }]);
    assert_eq!(found["findings"], expected);
    let text = desk.shell("tallystone check --full");
    assert_eq!(text.code, 1, "{}{}", text.out, text.err);
    assert!(["orders", "version", "COMPLETED", "m.0.1.2"].iter().all(|word| text.out.contains(word)), "{}", text.out);
    let metrics = desk.server.get("/metrics").body;
    assert!(metrics.contains("tallystone_audit_findings_total{kind=\"version\"} 2"), "{metrics}");
}
