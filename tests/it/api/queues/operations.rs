//! Purges and redrives that are asked for again, and how far they say they are.

use serde_json::{Value, json};
use tallystone::domain::Reason;

use super::{Wire, lease, settle};

/// A queue with four messages out of attempts, of which two have the team red.
async fn with_errored() -> Wire {
    let server = Wire::start().await;
    let queue = json!({"name": "mail", "default_max_attempts": 1, "filter_shapes": [{"keys": ["team"]}]});
    server.done("CreateQueue", json!({"queue": queue})).await;
    for (id, team, zone) in [("a", "red", "1"), ("b", "blue", "2"), ("c", "red", "3"), ("d", "blue", "4")] {
        let message = json!({"message_id": id, "metadata": {"team": team, "zone": zone}});
        server.done("Enqueue", json!({"queue": "mail", "message": message})).await;
        let held = lease(&server).await;
        assert_eq!(server.done("Fail", settle(&held)).await["state"], "MESSAGE_STATE_ERRORED");
    }
    server
}

fn redrive(token: &str, filter: Value) -> Value {
    json!({"queue": "mail", "request_token": token, "filter": filter})
}

/// Asks until an operation has ended.
async fn ended(server: &Wire, operation: &Value) -> Value {
    for _ in 0..10_000 {
        let asked = json!({"operation_id": operation["operationId"]});
        let shown = server.done("GetOperation", asked).await["operation"].clone();
        if shown["state"] != "OPERATION_STATE_RUNNING" {
            return shown;
        }
        tokio::task::yield_now().await;
    }
    panic!("it has not ended: {operation}");
}

#[tokio::test]
async fn a_request_token_names_one_purge_or_redrive_and_no_other() {
    let server = with_errored().await;
    let first = server.done("RedriveMessages", redrive("once", json!({"team": "red"}))).await["operation"].clone();
    let again = server.done("RedriveMessages", redrive("once", json!({"team": "red"}))).await["operation"].clone();
    assert_eq!(again["operationId"], first["operationId"]);
    let others = [
        ("RedriveMessages", redrive("once", json!({"team": "blue"}))),
        ("RedriveMessages", json!({"queue": "mail", "request_token": "once", "filter": {"team": "red"}, "rate": 7})),
        ("RedriveMessages", json!({"queue": "mail", "request_token": "once", "message_id": "b"})),
        ("PurgeQueue", json!({"queue": "mail", "request_token": "once"})),
    ];
    for (method, other) in others {
        let refused = server.refused(method, other, Reason::TokenReused).await;
        assert!(refused["message"].as_str().expect("a text").contains("request_token"), "{refused}");
    }
    ended(&server, &first).await;
    let depth = server.done("GetDepth", json!({"queue": "mail"})).await;
    assert_eq!((&depth["pending"], &depth["errored"]), (&json!("2"), &json!("2")), "the first one alone was done");
}

#[tokio::test]
async fn a_redrive_by_filter_tells_how_many_it_is_about() {
    let server = with_errored().await;
    let declared = server.done("RedriveMessages", redrive("declared", json!({"team": "red"}))).await;
    let end = ended(&server, &declared["operation"]).await;
    assert_eq!((&end["done"], &end["total"]), (&json!("2"), &json!("2")), "{end}");
    let undeclared = server.done("RedriveMessages", redrive("undeclared", json!({"zone": "2"}))).await;
    let end = ended(&server, &undeclared["operation"]).await;
    assert_eq!((&end["done"], &end["total"]), (&json!("1"), &json!("2")), "at most as many as are errored: {end}");
}

#[tokio::test]
async fn a_redrive_of_one_message_that_is_repeated_answers_as_the_first() {
    let server = with_errored().await;
    let one = |token: &str| json!({"queue": "mail", "message_id": "b", "request_token": token});
    let first = server.done("RedriveMessages", one("once")).await;
    assert_eq!(
        (&first["operation"]["done"], &first["operation"]["state"]),
        (&json!("1"), &json!("OPERATION_STATE_DONE"))
    );
    assert_eq!(server.done("RedriveMessages", one("once")).await, first);
    server.refused("RedriveMessages", one("other"), Reason::WrongMessageState).await;
    let held = lease(&server).await;
    server.done("Fail", settle(&held)).await;
    assert_eq!(server.done("RedriveMessages", one("once")).await, first, "the repeat changes nothing");
    assert_eq!(server.done("GetDepth", json!({"queue": "mail"})).await["errored"], "4");
    let anew = server.done("RedriveMessages", one("other")).await;
    assert_eq!(anew["operation"]["done"], "1", "a call that was refused leaves its token free: {anew}");
}
