//! No token of an issuer, no key and no secret of a seal is found in what a server writes and says, also when it is killed.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tallystone::adapters::embedded::{self, Options};
use tallystone::adapters::system::SystemClock;
use tallystone::domain::hex::hex_digits;
use tallystone::domain::queue::messages::lease_seal::LeaseKey;

use super::{
    CREATE_QUEUE, TokenKey, claims, command, files_with, first_key, issuer_arguments, key_set, post, seconds_from_now,
};
use crate::server::keys::{binary, run};
use crate::support::harness::{Launch, Server, http};

const QUEUES: &str = "/tallystone.queue.v1.QueueService";
const LIST_ACTIONS: &str = "/tallystone.admin.v1.AuditService/ListAdminActions";

/// Makes acts, refusals and a lease with a token. Answers the token of the lease and the id of a session.
fn use_all(server: &Server, token: &str) -> [String; 2] {
    let ask = |method: &str, body: Value| post(server, &format!("{QUEUES}/{method}"), token, &body);
    let done = |method: &str, body: Value| {
        let answer = ask(method, body);
        assert_eq!(answer.status, 200, "{method}: {}", answer.body);
        answer.json()
    };
    assert_eq!(post(server, CREATE_QUEUE, token, &json!({"queue": {"name": "mail"}})).status, 200);
    for id in ["a", "b"] {
        done("Enqueue", json!({"queue": "mail", "message": {"message_id": id}}));
    }
    let session = done("OpenSession", json!({"label": "w"}))["sessionId"].as_str().expect("an id").to_owned();
    let leased = done("Dequeue", json!({"queue": "mail", "max_messages": 1, "session_id": session, "sequence": 1}));
    let lease = leased["leases"][0]["leaseToken"].as_str().expect("a token").to_owned();
    let last = if lease.ends_with('0') { '1' } else { '0' };
    let guessed = format!("{}{last}", &lease[..lease.len() - 1]);
    assert_eq!(ask("Complete", json!({"queue": "mail", "lease_token": guessed})).status, 400);
    assert_eq!(ask("Enqueue", json!({"queue": "none", "message": {"message_id": "a"}})).status, 404);
    done("CancelMessage", json!({"queue": "mail", "message_id": "b", "reason": "wrong"}));
    [lease, session]
}

/// The secret of the seals of leases, sessions and operations, read from the store of a server that has ended.
async fn lease_key(data: &Path) -> LeaseKey {
    let store = embedded::open(Options::new(data)).expect("the store opens");
    let queues = store.queue_stores(Arc::new(SystemClock));
    let key = queues.catalog.lease_key(LeaseKey([0; 16])).await.expect("it has one");
    store.close();
    assert_ne!(key, LeaseKey([0; 16]), "it was made at the first start");
    key
}

/// What a server prints that cannot start, because another has its directory.
fn told_by_a_second(data: &Path, settings: &[(&str, &str)]) -> String {
    match Launch::of(command(data, settings)).try_start() {
        Ok(_) => panic!("a directory has one server"),
        Err((_, told)) => told,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_of_any_kind_is_found_in_what_a_server_writes_and_says_also_when_it_is_killed() {
    let (key, folder) = (TokenKey::es256("one"), tempfile::tempdir().expect("a temporary directory"));
    let (data, file) = (folder.path().join("data"), folder.path().join("jwks.json"));
    std::fs::write(&file, key_set(&[&key])).expect("the folder takes files");
    let settings = [("jwks_file", file.to_str().expect("UTF-8"))];
    let admin = first_key(&data, "ann");
    let mut server = Launch::of(command(&data, &settings)).start();
    let tokens = [claims(&json!({})), claims(&json!({"exp": 1})), claims(&json!({"exp": seconds_from_now(-60)}))];
    let tokens = tokens.map(|claims| key.sign(&claims));
    assert_eq!(post(&server, LIST_ACTIONS, &tokens[1], &json!({})).status, 401);
    assert_eq!(post(&server, LIST_ACTIONS, &tokens[2], &json!({})).status, 401);
    let shown = use_all(&server, &tokens[0]);
    let audit = post(&server, LIST_ACTIONS, &admin, &json!({})).body;
    assert!(audit.contains("CancelMessage") && audit.contains("UNAUTHENTICATED"), "{audit}");
    let bearer = format!("Bearer {}", tokens[0]);
    let metrics = http(server.address, "GET", "/metrics", &[("authorization", &bearer)], "").expect("an answer").body;
    let second = told_by_a_second(&data, &settings);
    server.signal(libc::SIGKILL);
    server.wait();
    let mut again = Launch::of(command(&data, &settings)).start();
    assert_eq!(post(&again, LIST_ACTIONS, &tokens[0], &json!({})).status, 200);
    again.signal(libc::SIGTERM);
    assert!(again.wait().success());
    let mut print = binary(&["server", "print-config"]);
    print.args(issuer_arguments(&settings)).env("TALLYSTONE_KEY", &tokens[0]);
    let (_, configured, _) = run(print);
    let said = [
        ("log of a killed server", server.printed()),
        ("log", again.printed()),
        ("refusal of a start", second),
        ("audit", audit),
        ("metrics", metrics),
        ("settings", configured),
    ];
    assert!(said.iter().all(|(_, text)| text.len() > 50), "all was read: {said:?}");

    let LeaseKey(sealing) = lease_key(&data).await;
    let sealing = [hex_digits(&sealing), format!("{sealing:?}").trim_matches(['[', ']']).to_owned()];
    // The claims of a token are no secret, but they are the caller's.
    let of_callers = tokens.iter().flat_map(|token| token.split('.')).chain([&admin[20..]]);
    let of_callers: Vec<&str> = of_callers.chain(shown.iter().map(String::as_str)).collect();
    for secret in of_callers.iter().copied().chain(sealing.iter().map(String::as_str)) {
        for (what, text) in &said {
            assert!(!text.contains(secret) && !text.contains(&secret.to_uppercase()), "{secret} is in the {what}");
        }
    }
    for secret in of_callers {
        assert_eq!(files_with(&data, secret), [""; 0], "no file has {secret}");
    }
    assert!(!files_with(&data, "CancelMessage").is_empty(), "the search finds what is there");
}
