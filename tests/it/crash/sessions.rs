//! Sessions over a kill: what was answered is answered again, and who had a label still gives way to who opens it next.

use serde_json::{Value, json};

use crate::support::harness::{Launch, Server};

pub(super) fn ask(server: &Server, method: &str, body: &Value) -> Value {
    let path = format!("/tallystone.queue.v1.QueueService/{method}");
    serde_json::from_str(&server.post(&path, &body.to_string()).body).expect("the answer is JSON")
}

pub(super) fn reason(answer: &Value) -> &Value {
    &answer["details"][0]["reason"]
}

#[test]
fn a_dequeue_repeated_after_a_kill_is_given_the_same_leases() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(data.path()).start();
    ask(&server, "CreateQueue", &json!({"queue": {"name": "mail", "shards": 4}}));
    for number in 0..20 {
        ask(&server, "Enqueue", &json!({"queue": "mail", "message": {"message_id": format!("m-{number}")}}));
    }
    let open = json!({"label": "worker-7", "session_lease": "3600s"});
    let session = ask(&server, "OpenSession", &open)["sessionId"].clone();
    let idle = ask(&server, "OpenSession", &json!({"label": "idle"}))["sessionId"].clone();
    let mut call = json!({"queue": "mail", "max_messages": 8, "session_id": session, "sequence": 5});
    let tokens = |answer: &Value| {
        let leases = answer["leases"].as_array().unwrap_or_else(|| panic!("leases: {answer}"));
        let mut tokens: Vec<String> = leases.iter().map(|lease| lease["leaseToken"].to_string()).collect();
        tokens.sort();
        tokens
    };
    let first = tokens(&ask(&server, "Dequeue", &call));
    assert!(first.len() >= 4, "some of each shard: {first:?}");
    server.kill();

    let server = Launch::dev(data.path()).start();
    call["try"] = json!(2);
    assert_eq!(tokens(&ask(&server, "Dequeue", &call)), first);
    call["try"] = json!(1);
    assert_eq!(reason(&ask(&server, "Dequeue", &call)), "TRY_BARRED");
    let beat = ask(&server, "Heartbeat", &json!({"session_id": session, "received_up_to": 5}));
    assert_eq!(beat["sessionExpiresIn"], "3600s");
    assert_eq!(
        reason(&ask(&server, "Heartbeat", &json!({"session_id": idle}))),
        "SESSION_NOT_FOUND",
        "it held nothing"
    );
    server.kill();

    let server = Launch::dev(data.path()).start();
    let next = ask(&server, "OpenSession", &open)["sessionId"].clone();
    assert_eq!(reason(&ask(&server, "Heartbeat", &json!({"session_id": session}))), "SESSION_REPLACED");
    let depth = ask(&server, "GetDepth", &json!({"queue": "mail"}));
    assert_eq!((&depth["running"], &depth["pending"]), (&json!("0"), &json!("20")), "all its leases have ended");
    call["session_id"] = next;
    assert_eq!(tokens(&ask(&server, "Dequeue", &call)).len(), first.len());
}
