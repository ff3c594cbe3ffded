//! Purges and cancels of the messages that a filter selects.

use serde_json::{Value, json};
use tallystone::domain::Reason;

use super::super::Wire;
use super::on_stores::on_every_store;
use super::{lease, settle};

fn declared() -> Value {
    json!({"name": "mail", "shards": 2, "filter_shapes": [{"keys": ["tenant"]}]})
}

fn undeclared() -> Value {
    json!({"name": "mail", "shards": 2})
}

/// Enqueues some messages of a tenant; their ids begin with a letter.
async fn put(server: &Wire, letter: &str, count: usize, tenant: &str, more: Value) {
    let message = |number: usize| {
        let mut message = more.clone();
        (message["message_id"], message["metadata"]) = (json!(format!("{letter}-{number}")), json!({"tenant": tenant}));
        message
    };
    let messages: Vec<Value> = (0..count).map(message).collect();
    let done = server.done("BatchEnqueue", json!({"queue": "mail", "messages": messages})).await;
    assert!(done["results"].as_array().is_some_and(|all| all.iter().all(|one| one["error"].is_null())), "{done}");
}

/// Leases a message of a tenant.
async fn take(server: &Wire, tenant: &str) -> Value {
    let asked = json!({"queue": "mail", "max_messages": 1, "filter": {"tenant": tenant}});
    server.done("Dequeue", asked).await["leases"][0].clone()
}

async fn ended(server: &Wire, mut operation: Value) -> Value {
    for _ in 0..10_000 {
        if operation["state"] != "OPERATION_STATE_RUNNING" {
            assert_eq!(operation["state"], "OPERATION_STATE_DONE", "{operation}");
            return operation;
        }
        let asked = json!({"operation_id": operation["operationId"]});
        operation = server.done("GetOperation", asked).await["operation"].clone();
        tokio::task::yield_now().await;
    }
    panic!("it has not ended: {operation}");
}

async fn purge(server: &Wire, parts: Value) -> Value {
    let mut asked = parts;
    asked["queue"] = json!("mail");
    ended(server, server.done("PurgeQueue", asked).await["operation"].clone()).await
}

async fn cancel(server: &Wire, parts: Value) -> Value {
    let mut asked = parts;
    asked["queue"] = json!("mail");
    ended(server, server.done("CancelMessages", asked).await["operation"].clone()).await
}

/// Pending, invisible, running, completed and canceled messages.
async fn depth(server: &Wire) -> [u64; 5] {
    let depth = server.done("GetDepth", json!({"queue": "mail"})).await;
    ["pending", "invisible", "running", "completed", "canceled"]
        .map(|state| depth[state].as_str().and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{depth}")))
}

#[tokio::test]
async fn a_purge_by_filter_cancels_what_waits_and_matches_and_leaves_the_rest() {
    for queue in [declared(), undeclared()] {
        on_every_store(queue, async |server| {
            put(server, "a", 70, "acme", json!({})).await;
            put(server, "b", 5, "brick", json!({})).await;
            put(server, "c", 3, "acme", json!({"invisibility": "3600s"})).await;
            let dry = purge(server, json!({"filter": {"tenant": "acme"}, "dry_run": true})).await;
            assert_eq!((&dry["done"], &dry["dryRun"]), (&json!("73"), &json!(true)), "{dry}");
            assert_eq!(depth(server).await, [75, 3, 0, 0, 0], "a dry run changes nothing");
            let purged = purge(server, json!({"filter": {"tenant": "acme"}, "request_token": "once"})).await;
            assert_eq!(purged["done"], "73", "{purged}");
            assert_eq!(depth(server).await, [5, 0, 0, 0, 73]);
            let again = json!({"queue": "mail", "filter": {"tenant": "brick"}, "request_token": "once"});
            server.refused("PurgeQueue", again, Reason::TokenReused).await;
            let none = purge(server, json!({"filter": {"tenant": "nobody"}})).await;
            assert_eq!((&none["done"], depth(server).await), (&json!("0"), [5, 0, 0, 0, 73]));
        })
        .await;
    }
}

#[tokio::test]
async fn a_purge_by_filter_and_state_removes_what_is_over_and_matches() {
    on_every_store(declared(), async |server| {
        for (letter, tenant) in [("a", "acme"), ("b", "brick")] {
            put(server, letter, 2, tenant, json!({})).await;
            let held = take(server, tenant).await;
            server.done("Complete", settle(&held)).await;
        }
        let purged = purge(server, json!({"filter": {"tenant": "acme"}, "states": ["MESSAGE_STATE_COMPLETED"]})).await;
        assert_eq!((&purged["done"], &purged["total"]), (&json!("1"), &json!("1")), "{purged}");
        assert_eq!(depth(server).await, [2, 0, 0, 1, 0]);
        let states = json!(["MESSAGE_STATE_COMPLETED", "MESSAGE_STATE_PENDING"]);
        let purged = purge(server, json!({"filter": {"tenant": "brick"}, "states": states})).await;
        assert_eq!((&purged["done"], depth(server).await), (&json!("2"), [1, 0, 0, 0, 1]));
    })
    .await;
}

#[tokio::test]
async fn a_cancel_by_filter_reaches_running_messages_through_their_workers() {
    for queue in [declared(), undeclared()] {
        on_every_store(queue, async |server| {
            put(server, "a", 40, "acme", json!({})).await;
            put(server, "b", 3, "brick", json!({})).await;
            put(server, "c", 2, "acme", json!({"invisibility": "3600s"})).await;
            let (held, spared) = (take(server, "acme").await, take(server, "brick").await);
            let done = take(server, "acme").await;
            server.done("Complete", settle(&done)).await;
            let dry = cancel(server, json!({"filter": {"tenant": "acme"}, "dry_run": true})).await;
            assert_eq!((&dry["done"], &dry["kind"]), (&json!("41"), &json!("cancel")), "{dry}");
            let canceled = cancel(server, json!({"filter": {"tenant": "acme"}, "reason": "the tenant left"})).await;
            assert_eq!(canceled["done"], "41", "{canceled}");
            assert_eq!(depth(server).await, [2, 0, 2, 1, 40]);
            let running = json!({"queue": "mail", "message_id": held["message"]["messageKey"]});
            let running = server.done("GetMessage", running).await["message"].clone();
            let told = (&running["state"], &running["cancelRequested"], &running["cancelReason"]);
            assert_eq!(told, (&json!("MESSAGE_STATE_RUNNING"), &json!(true), &json!("the tenant left")), "{running}");
            let extend =
                |lease: &Value| json!({"queue": "mail", "lease_token": lease["leaseToken"], "lease_duration": "30s"});
            assert_eq!(server.done("ExtendLease", extend(&held)).await["cancelRequested"], true);
            assert_eq!(server.done("ExtendLease", extend(&spared)).await["cancelRequested"], false);
            assert_eq!(server.done("Fail", settle(&held)).await["state"], "MESSAGE_STATE_CANCELED");
        })
        .await;
    }
}

#[tokio::test]
async fn a_cancel_of_all_leaves_what_is_over_and_what_comes_later() {
    on_every_store(json!({"name": "mail", "default_max_attempts": 1}), async |server| {
        put(server, "a", 3, "acme", json!({})).await;
        server.done("Fail", settle(&lease(server).await)).await;
        let all = || json!({"all": true, "request_token": "once"});
        let first = cancel(server, all()).await;
        assert_eq!(first["done"], "2", "{first}");
        put(server, "b", 1, "acme", json!({})).await;
        assert_eq!(cancel(server, all()).await["operationId"], first["operationId"]);
        assert_eq!(depth(server).await, [1, 0, 0, 0, 2]);
        assert_eq!(server.done("GetDepth", json!({"queue": "mail"})).await["errored"], "1", "an errored one stays");
    })
    .await;
}

#[tokio::test]
async fn a_cancel_says_which_messages_it_means() {
    on_every_store(undeclared(), async |server| {
        for body in [json!({}), json!({"dry_run": true}), json!({"all": true, "filter": {"a": "b"}})] {
            let mut sent = body;
            sent["queue"] = json!("mail");
            server.refused("CancelMessages", sent, Reason::InvalidArgument).await;
        }
        let long = json!({"queue": "mail", "all": true, "reason": "x".repeat(1_025)});
        server.refused("CancelMessages", long, Reason::InvalidArgument).await;
        let pairs: Value = (0..5).map(|number| (format!("k{number}"), json!("v"))).collect();
        for method in ["CancelMessages", "PurgeQueue"] {
            server.refused(method, json!({"queue": "mail", "filter": pairs}), Reason::InvalidFilter).await;
        }
        server.refused("CancelMessages", json!({"queue": "absent", "all": true}), Reason::QueueNotFound).await;
    })
    .await;
}
