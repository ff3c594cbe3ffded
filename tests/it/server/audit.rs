//! What operators did is written down once each, for the owner of the directory alone, and outlives a restart.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use crate::support::harness::{HttpAnswer, Launch, Server, http};

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
