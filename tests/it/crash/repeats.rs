//! Calls that destroy, repeated after a kill because their answer was lost.

use serde_json::{Value, json};

use super::sessions::{ask, reason};
use crate::support::harness::{Launch, Server, eventually};

fn depth(answer: &Value) -> [&Value; 2] {
    [&answer["pending"], &answer["canceled"]]
}

#[test]
fn a_deletion_repeated_after_a_kill_answers_as_the_first_and_deletes_nothing_more() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(data.path()).start();
    let create = json!({"queue": {"name": "mail"}});
    let send = |server: &_, id: &str| ask(server, "Enqueue", &json!({"queue": "mail", "message": {"message_id": id}}));
    ask(&server, "CreateQueue", &create);
    send(&server, "a");
    let deletion = json!({"queue": "mail", "request_token": "once"});
    let first = ask(&server, "DeleteQueue", &deletion);
    assert_eq!(first["messages"], "1", "{first}");
    server.kill();

    let server = Launch::dev(data.path()).start();
    assert_eq!(ask(&server, "DeleteQueue", &deletion), first);
    ask(&server, "CreateQueue", &create);
    send(&server, "b");
    server.kill();

    let server = Launch::dev(data.path()).start();
    assert_eq!(ask(&server, "DeleteQueue", &deletion), first);
    assert_eq!(depth(&ask(&server, "GetDepth", &json!({"queue": "mail"}))), ["1", "0"], "it is another queue");
}

#[test]
fn a_purge_repeated_after_a_kill_touches_nothing_that_came_since() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(data.path()).start();
    ask(&server, "CreateQueue", &json!({"queue": {"name": "mail", "shards": 4}}));
    let send = |server: &_, ids: std::ops::Range<u32>| {
        for id in ids {
            ask(server, "Enqueue", &json!({"queue": "mail", "message": {"message_id": format!("m-{id}")}}));
        }
    };
    send(&server, 0..10);
    let purge = json!({"queue": "mail", "request_token": "once"});
    let redrive = json!({"queue": "mail", "request_token": "again"});
    let first = ask(&server, "PurgeQueue", &purge);
    ask(&server, "RedriveMessages", &redrive);
    send(&server, 10..14);
    server.kill();

    let server = Launch::dev(data.path()).start();
    let again = ask(&server, "PurgeQueue", &purge);
    assert_eq!(again["operation"]["operationId"], first["operation"]["operationId"], "{again}");
    assert_eq!(reason(&ask(&server, "PurgeQueue", &redrive)), "TOKEN_REUSED");
    let mut other = redrive;
    other["filter"] = json!({"team": "red"});
    assert_eq!(reason(&ask(&server, "RedriveMessages", &other)), "TOKEN_REUSED");
    let whole = || ask(&server, "GetDepth", &json!({"queue": "mail"}));
    let is_done = || {
        let asked = json!({"operation_id": first["operation"]["operationId"]});
        ask(&server, "GetOperation", &asked)["operation"]["state"] == "OPERATION_STATE_DONE"
    };
    assert!(eventually(std::time::Duration::from_secs(60), is_done), "it comes to its end");
    assert_eq!(depth(&whole()), ["4", "10"], "what came after the first call waits: {}", whole());
    ask(&server, "PurgeQueue", &json!({"queue": "mail", "request_token": "another"}));
    assert!(eventually(std::time::Duration::from_secs(60), || depth(&whole()) == ["0", "14"]), "{}", whole());
}

/// A server with one message that is errored as soon as it fails.
fn with_one_attempt(data: &tempfile::TempDir) -> Server {
    let server = Launch::dev(data.path()).start();
    ask(&server, "CreateQueue", &json!({"queue": {"name": "mail", "default_max_attempts": 1}}));
    ask(&server, "Enqueue", &json!({"queue": "mail", "message": {"message_id": "a"}}));
    server
}

/// Leases the message and fails it.
fn fail(server: &Server) {
    let leases = ask(server, "Dequeue", &json!({"queue": "mail", "max_messages": 1}));
    let token = &leases["leases"][0]["leaseToken"];
    let failed = ask(server, "Fail", &json!({"queue": "mail", "lease_token": token}));
    assert!(reason(&failed).is_null() && token.is_string(), "{leases} {failed}");
}

fn errored(server: &Server) -> Value {
    ask(server, "GetDepth", &json!({"queue": "mail"}))["errored"].clone()
}

#[test]
fn a_redrive_that_is_over_is_not_done_again_after_a_kill() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = with_one_attempt(&data);
    let redrive = json!({"queue": "mail", "request_token": "once"});
    let is_done = |server: &_| {
        let name = &ask(server, "RedriveMessages", &redrive)["operation"]["operationId"];
        ask(server, "GetOperation", &json!({"operation_id": name}))["operation"]["state"] == "OPERATION_STATE_DONE"
    };
    fail(&server);
    assert_eq!(errored(&server), "1");
    assert!(eventually(std::time::Duration::from_secs(60), || is_done(&server)), "it comes to its end");
    fail(&server);
    assert_eq!(errored(&server), "1", "it errored anew");
    server.kill();

    let server = Launch::dev(data.path()).start();
    assert!(eventually(std::time::Duration::from_secs(60), || is_done(&server)), "it is over");
    assert_eq!(errored(&server), "1", "nothing was left of it");
}

#[test]
fn a_redrive_of_one_message_is_done_once_over_a_kill() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = with_one_attempt(&data);
    let redrive = |token: &str| json!({"queue": "mail", "message_id": "a", "request_token": token});
    let done = |server: &_, token: &str| {
        let answer = ask(server, "RedriveMessages", &redrive(token));
        assert_eq!(answer["operation"]["state"], "OPERATION_STATE_DONE", "{answer}");
        assert_eq!(answer["operation"]["done"], "1", "{answer}");
    };
    fail(&server);
    done(&server, "once");
    assert_eq!(errored(&server), "0");
    fail(&server);
    server.kill();

    let server = Launch::dev(data.path()).start();
    done(&server, "once");
    assert_eq!(errored(&server), "1", "it was redriven under this token before");
    let all = json!({"queue": "mail", "request_token": "once"});
    assert_eq!(reason(&ask(&server, "RedriveMessages", &all)), "TOKEN_REUSED");
    done(&server, "anew");
    assert_eq!(errored(&server), "0", "another token redrives it again");
    assert_eq!(reason(&ask(&server, "RedriveMessages", &redrive("late"))), "WRONG_MESSAGE_STATE");
}

#[test]
fn a_discard_repeated_after_a_kill_touches_nothing_that_failed_since() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = with_one_attempt(&data);
    fail(&server);
    let discard = json!({"queue": "mail", "all": true, "request_token": "once"});
    let one = json!({"queue": "mail", "message_id": "a", "request_token": "one"});
    let is_done = |server: &_| {
        let name = &ask(server, "DiscardMessages", &discard)["operation"]["operationId"];
        ask(server, "GetOperation", &json!({"operation_id": name}))["operation"]["state"] == "OPERATION_STATE_DONE"
    };
    assert!(eventually(std::time::Duration::from_secs(60), || is_done(&server)), "it comes to its end");
    assert_eq!(errored(&server), "0");
    let again = || ask(&server, "Enqueue", &json!({"queue": "mail", "message": {"message_id": "a"}}));
    assert_eq!(again()["alreadyEnqueued"], false, "it is gone");
    fail(&server);
    assert_eq!(ask(&server, "DiscardMessages", &one)["operation"]["done"], "1");
    assert_eq!(errored(&server), "0");
    again();
    fail(&server);
    server.kill();

    let server = Launch::dev(data.path()).start();
    assert!(eventually(std::time::Duration::from_secs(60), || is_done(&server)), "it is over");
    assert_eq!(ask(&server, "DiscardMessages", &one)["operation"]["done"], "1", "that one is gone already");
    assert_eq!(errored(&server), "1", "what failed since stays");
    let other = json!({"queue": "mail", "error_signature": "io", "request_token": "once"});
    assert_eq!(reason(&ask(&server, "DiscardMessages", &other)), "TOKEN_REUSED");
}
