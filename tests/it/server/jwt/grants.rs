//! What a token may do: its grants on own, seen and hidden names; and that its principal is nobody else.

use serde_json::{Value, json};

use super::{CREATE_QUEUE, Trusting, claims};
use crate::server::keys::{command_with, post};
use crate::servers::issuer::TokenKey;
use crate::support::harness::Server;

const GET_QUEUE: &str = "/tallystone.queue.v1.QueueService/GetQueue";
const DEQUEUE: &str = "/tallystone.queue.v1.QueueService/Dequeue";

/// The reason of a refusal; empty if there is none.
fn reason(server: &Server, path: &str, token: &str, body: &Value) -> String {
    let answer = post(server, path, token, body).json();
    answer["details"][0]["reason"].as_str().unwrap_or_default().to_owned()
}

fn with_queues() -> (Trusting, TokenKey) {
    let key = TokenKey::es256("one");
    let trusting = Trusting::of(&[&key]);
    for queue in ["own/1", "seen", "foreign"] {
        let made = post(&trusting.server, CREATE_QUEUE, &trusting.admin, &json!({"queue": {"name": queue}}));
        assert_eq!(made.status, 200, "{}", made.body);
    }
    (trusting, key)
}

#[test]
fn a_token_may_do_what_its_groups_and_its_grants_allow_and_nothing_else() {
    let (trusting, key) = with_queues();
    let server = &trusting.server;
    let dequeue = |token: &str, queue: &str| reason(server, DEQUEUE, token, &json!({"queue": queue}));
    let get = |token: &str, queue: &str| reason(server, GET_QUEUE, token, &json!({"queue": queue}));
    let groups = key.sign(&claims(&json!({"groups": ["workers", "others"]})));
    assert_eq!((dequeue(&groups, "own/1"), get(&groups, "seen")), (String::new(), String::new()));
    assert_eq!(
        (dequeue(&groups, "seen"), get(&groups, "own/1")),
        ("ROLE_MISSING".to_owned(), "ROLE_MISSING".to_owned())
    );
    for hidden in ["foreign", "absent"] {
        assert_eq!(
            (dequeue(&groups, hidden).as_str(), get(&groups, hidden).as_str()),
            ("QUEUE_NOT_FOUND", "QUEUE_NOT_FOUND")
        );
    }
    let own = json!({"groups": null, "tallystone": {"grants": ["viewer:queue:own/*", "viewer:queue:foreign", "not viewer:queue:own/1"]}});
    let own = key.sign(&claims(&own));
    assert_eq!((get(&own, "foreign").as_str(), get(&own, "own/1").as_str()), ("", "QUEUE_NOT_FOUND"), "a denial wins");
    assert_eq!(dequeue(&own, "foreign"), "ROLE_MISSING");
    let denied = json!({"groups": ["operators"], "tallystone": {"grants": "not admin:queue:foreign"}});
    let denied = key.sign(&claims(&denied));
    assert_eq!((get(&denied, "foreign").as_str(), get(&denied, "own/1").as_str()), ("QUEUE_NOT_FOUND", ""));
    for nothing in [json!({"groups": null}), json!({"groups": []}), json!({"groups": ["others"]})] {
        let token = key.sign(&claims(&nothing));
        assert_eq!((dequeue(&token, "own/1").as_str(), get(&token, "seen").as_str()), ("ROLE_MISSING", "ROLE_MISSING"));
    }
}

#[test]
fn the_principal_of_a_token_is_that_of_no_key_and_no_other_issuer() {
    let (trusting, key) = with_queues();
    let server = &trusting.server;
    let open = |token: &str| {
        let body = json!({"label": "worker-1"});
        let opened = post(server, "/tallystone.queue.v1.QueueService/OpenSession", token, &body);
        assert_eq!(opened.status, 200, "{}", opened.body);
        opened.json()["sessionId"].as_str().expect("a session").to_owned()
    };
    let beat = |token: &str, session: &str| {
        let body = json!({"sessionId": session});
        reason(server, "/tallystone.queue.v1.QueueService/Heartbeat", token, &body)
    };
    let (token, other) = (key.sign(&claims(&json!({}))), key.sign(&claims(&json!({"sub": "bob"}))));
    // The name of the key and the subject of the token are the same.
    let (of_key, of_token) = (open(&trusting.admin), open(&token));
    assert_ne!(of_key, of_token, "one label, two principals");
    assert_eq!((beat(&trusting.admin, &of_key).as_str(), beat(&token, &of_token).as_str()), ("", ""));
    for (stranger, session) in [(&token, &of_key), (&trusting.admin, &of_token), (&other, &of_token)] {
        assert_ne!(beat(stranger, session), "", "a session belongs to its principal");
    }
    let (code, _, told) = command_with(server, &trusting.admin, &["key", "create", "sso|ann", "--grant", "viewer"]);
    assert!(code == 2 && told.contains("a character that is not allowed"), "{told}");
    let again = key.sign(&claims(&json!({"note": "another token of the same principal"})));
    assert_eq!(beat(&again, &of_token), "", "it outlives the token");
}
