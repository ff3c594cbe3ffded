//! Calls that destroy, repeated after a kill because their answer was lost.

use serde_json::{Value, json};

use super::sessions::ask;
use crate::harness::Launch;

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
