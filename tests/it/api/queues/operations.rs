//! Deletions, purges and redrives that are asked for again, and how far they say they are.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tallystone::adapters::manual::ManualClock;
use tallystone::domain::Reason;
use tallystone::ports::Clock;

use super::on_stores::{mail, on_every_store};
use super::{Wire, clock, lease, settle};

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
        ("DiscardMessages", json!({"queue": "mail", "request_token": "once", "filter": {"team": "red"}})),
        ("DiscardMessages", json!({"queue": "mail", "request_token": "once", "message_id": "b"})),
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

/// A queue of two shards with 300 messages out of attempts.
async fn with_many_errored(clock: &ManualClock) -> Wire {
    let server = Wire::with_clock(clock).await;
    let queue = json!({"name": "mail", "default_max_attempts": 1, "shards": 2});
    server.done("CreateQueue", json!({"queue": queue})).await;
    for part in 0..3 {
        let messages: Vec<Value> = (0..100).map(|number| json!({"message_id": format!("m-{part}-{number}")})).collect();
        server.done("BatchEnqueue", json!({"queue": "mail", "messages": messages})).await;
    }
    let mut left = 300;
    while left > 0 {
        let got = server.done("Dequeue", json!({"queue": "mail", "max_messages": 100})).await;
        let leases = got["leases"].as_array().expect("leases");
        let items: Vec<Value> =
            leases.iter().map(|lease| json!({"lease_token": lease["leaseToken"], "verb": "FAIL"})).collect();
        left -= items.len();
        server.done("SettleMessages", json!({"queue": "mail", "items": items})).await;
    }
    assert_eq!(count(&depth(&server).await["errored"]), 300);
    server
}

async fn depth(server: &Wire) -> Value {
    server.done("GetDepth", json!({"queue": "mail"})).await
}

fn count(value: &Value) -> u32 {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no count: {value}"))
}

/// A redrive of 100 messages a second, on a clock that moves only while nothing new is seen of it.
struct Paced<'t> {
    server: &'t Wire,
    clock: &'t ManualClock,
    began: Duration,
    id: Value,
    done: u32,
}

impl<'t> Paced<'t> {
    const RATE: u32 = 100;
    const STEP: Duration = Duration::from_millis(5);

    async fn begin(server: &'t Wire, clock: &'t ManualClock) -> Self {
        let began = clock.elapsed();
        let asked = json!({"queue": "mail", "rate": Self::RATE});
        let operation = server.done("RedriveMessages", asked).await["operation"].clone();
        let mut redrive = Self { server, clock, began, id: operation["operationId"].clone(), done: 0 };
        redrive.hold(&operation);
        redrive
    }

    /// Holds what is shown to the rate: what its time allows, and one batch of a tenth of a second.
    fn hold(&mut self, shown: &Value) {
        let (done, elapsed) = (count(&shown["done"]), self.clock.elapsed() - self.began);
        let allowed = elapsed.as_secs_f64() * f64::from(Self::RATE) + f64::from(Self::RATE / 10);
        assert!(f64::from(done) <= allowed + 1e-6, "{done} done after {elapsed:?}: {shown}");
        assert!(done >= self.done, "it undid what it had done: {shown}, {} before", self.done);
        assert_eq!(shown["total"], "300", "{shown}");
        self.done = done;
    }

    async fn look(&mut self) -> Value {
        let shown = self.server.done("GetOperation", json!({"operation_id": self.id})).await["operation"].clone();
        self.hold(&shown);
        shown
    }

    /// Moves time until so many are done, or all.
    async fn until(&mut self, done: u32) -> Value {
        let patience = Instant::now() + Duration::from_secs(60);
        loop {
            let before = self.done;
            let shown = self.look().await;
            if self.done >= done {
                return shown;
            }
            assert!(Instant::now() < patience, "it does not go on: {shown}");
            if self.done == before {
                self.clock.advance(Self::STEP);
            }
        }
    }
}

#[tokio::test]
async fn a_redrive_keeps_its_rate_and_tells_how_far_it_is() {
    let clock = clock();
    let server = with_many_errored(&clock).await;
    let mut redrive = Paced::begin(&server, &clock).await;
    let shown = redrive.until(100).await;
    assert_eq!(shown["state"], "OPERATION_STATE_RUNNING", "{shown}");
    assert!(clock.elapsed() - redrive.began >= Duration::from_millis(900), "a hundred take their time");
    redrive.until(300).await;
    let end = ended(&server, &shown).await;
    assert_eq!((&end["done"], &end["state"]), (&json!("300"), &json!("OPERATION_STATE_DONE")), "{end}");
    let depth = depth(&server).await;
    assert_eq!((&depth["pending"], &depth["errored"]), (&json!("300"), &json!("0")), "{depth}");
}

#[tokio::test]
async fn a_redrive_that_is_cancelled_in_between_leaves_the_rest_errored() {
    let clock = clock();
    let server = with_many_errored(&clock).await;
    let mut redrive = Paced::begin(&server, &clock).await;
    redrive.until(50).await;
    let cancelled = server.done("CancelOperation", json!({"operation_id": redrive.id})).await["operation"].clone();
    assert_eq!(cancelled["state"], "OPERATION_STATE_CANCELLED", "{cancelled}");
    redrive.hold(&cancelled);
    let done = redrive.done;
    assert!((50..300).contains(&done), "{cancelled}");
    for _ in 0..2 {
        let depth = depth(&server).await;
        assert_eq!((count(&depth["pending"]), count(&depth["errored"])), (done, 300 - done), "{depth}");
        clock.advance(Duration::from_secs(10));
    }
    let again = server.done("CancelOperation", json!({"operation_id": redrive.id})).await["operation"].clone();
    assert_eq!(again, cancelled, "it has ended");
}

#[tokio::test]
async fn a_dry_run_does_not_wait_for_the_rate() {
    let clock = clock();
    let server = with_many_errored(&clock).await;
    let asked = json!({"queue": "mail", "rate": 1, "dry_run": true});
    let counted = server.done("RedriveMessages", asked).await["operation"].clone();
    assert_eq!((&counted["done"], &counted["state"]), (&json!("300"), &json!("OPERATION_STATE_DONE")), "{counted}");
    assert_eq!(counted["dryRun"], true, "it says that it is one: {counted}");
    assert_eq!(count(&depth(&server).await["errored"]), 300);
}

#[tokio::test]
async fn a_deletion_that_is_repeated_answers_as_the_first_and_leaves_the_queue_that_came_after_it() {
    on_every_store(mail(), async |server| {
        let read = async || server.done("GetQueue", json!({"queue": "mail"})).await["queue"].clone();
        let first = read().await;
        server.done("Enqueue", json!({"queue": "mail", "message": {"message_id": "a"}})).await;
        let deletion =
            json!({"queue": "mail", "request_token": "once", "queue_id": first["id"], "etag": first["etag"]});
        assert_eq!(server.done("DeleteQueue", deletion.clone()).await["messages"], "1");
        assert_eq!(server.done("DeleteQueue", deletion.clone()).await["messages"], "1");
        server.refused("DeleteQueue", json!({"queue": "mail", "request_token": "other"}), Reason::QueueNotFound).await;
        server.done("CreateQueue", json!({"queue": {"name": "mail"}})).await;
        let second = read().await;
        assert_eq!(server.done("DeleteQueue", deletion).await["messages"], "1");
        assert_eq!(read().await, second, "it is another queue");
        let named = |token: &str, id: &Value| json!({"queue": "mail", "request_token": token, "queue_id": id});
        for (method, body, reason) in [
            ("DeleteQueue", named("once", &second["id"]), Reason::TokenReused),
            ("DeleteQueue", named("other", &first["id"]), Reason::QueueNotFound),
            ("PurgeQueue", named("other", &first["id"]), Reason::QueueNotFound),
            ("RedriveMessages", named("other", &first["id"]), Reason::QueueNotFound),
            ("DeleteQueue", named("other", &json!("7")), Reason::InvalidArgument),
            ("DeleteQueue", named(&"x".repeat(65), &second["id"]), Reason::InvalidToken),
        ] {
            server.refused(method, body, reason).await;
        }
        assert_eq!(read().await, second, "nothing was done");
        server.done("PurgeQueue", named("purge", &second["id"])).await;
        server.done("RedriveMessages", named("redrive", &second["id"])).await;
        assert_eq!(server.done("DeleteQueue", named("twice", &second["id"])).await["messages"], "0");
    })
    .await;
}

/// A queue whose messages fail with a signature of their own.
async fn fail_with(server: &Wire, id: &str, team: &str, signature: &str) {
    let message = json!({"message_id": id, "metadata": {"team": team}});
    server.done("Enqueue", json!({"queue": "mail", "message": message})).await;
    let mut failed = settle(&lease(server).await);
    failed["error"] = json!({"signature": signature, "text": "no route"});
    assert_eq!(server.done("Fail", failed).await["state"], "MESSAGE_STATE_ERRORED");
}

fn one_attempt() -> Value {
    json!({"queue": {"name": "mail", "default_max_attempts": 1, "filter_shapes": [{"keys": ["team"]}]}})
}

#[tokio::test]
async fn a_discard_takes_what_it_names_and_leaves_the_rest() {
    on_every_store(mail(), async |server| {
        let limits = json!({"queue": {"name": "mail", "default_max_attempts": 1}});
        server.done("UpdateQueue", limits).await;
        for (id, team, signature) in
            [("a", "red", "io"), ("b", "blue", "io"), ("c", "red", "smtp"), ("d", "blue", "smtp"), ("e", "red", "io")]
        {
            fail_with(server, id, team, signature).await;
        }
        let errored = async || {
            let page = server.done("ListMessages", json!({"queue": "mail", "state": "ERRORED"})).await;
            let messages = page["messages"].as_array().expect("messages").clone();
            let ids: Vec<String> =
                messages.iter().map(|message| message["messageId"].as_str().expect("an id").to_owned()).collect();
            ids.concat()
        };
        let discard = async |mut body: Value| {
            body["queue"] = json!("mail");
            let begun = server.done("DiscardMessages", body).await["operation"].clone();
            match begun["operationId"].as_str() {
                Some("") => begun,
                _ => ended(server, &begun).await,
            }
        };
        let dry = discard(json!({"filter": {"team": "red"}, "error_signature": "io", "dry_run": true})).await;
        assert_eq!((&dry["kind"], &dry["done"], &dry["dryRun"]), (&json!("discard"), &json!("2"), &json!(true)));
        assert_eq!(errored().await, "abcde", "a dry run changes nothing");
        let some = discard(json!({"filter": {"team": "red"}, "error_signature": "io"})).await;
        assert_eq!((&some["done"], &some["state"]), (&json!("2"), &json!("OPERATION_STATE_DONE")), "{some}");
        assert_eq!(errored().await, "bcd");
        let one = discard(json!({"message_id": "d"})).await;
        assert_eq!((&one["done"], errored().await.as_str()), (&json!("1"), "bc"));
        server.refused("GetMessage", json!({"queue": "mail", "message_id": "d"}), Reason::MessageNotFound).await;
        let by_signature = discard(json!({"error_signature": "smtp"})).await;
        assert_eq!((&by_signature["done"], errored().await.as_str()), (&json!("1"), "b"));
        server.done("Enqueue", json!({"queue": "mail", "message": {"message_id": "waits"}})).await;
        let waits = json!({"queue": "mail", "message_id": "waits"});
        server.refused("DiscardMessages", waits, Reason::WrongMessageState).await;
        let all = discard(json!({"all": true})).await;
        assert_eq!((&all["done"], errored().await.as_str()), (&json!("1"), ""));
        assert_eq!(server.done("GetDepth", json!({"queue": "mail"})).await["pending"], "1", "what waits stays");
    })
    .await;
}

#[tokio::test]
async fn a_redrive_by_error_signature_returns_that_group_alone_and_counts_it() {
    on_every_store(json!({"name": "mail", "default_max_attempts": 1}), async |server| {
        for (id, team, signature) in
            [("a", "red", "io"), ("b", "blue", "io"), ("c", "red", "smtp"), ("d", "blue", "smtp"), ("e", "red", "io")]
        {
            fail_with(server, id, team, signature).await;
        }
        let states = async || {
            let depth = depth(server).await;
            (count(&depth["pending"]), count(&depth["errored"]))
        };
        let redrive = async |mut body: Value| {
            body["queue"] = json!("mail");
            let begun = server.done("RedriveMessages", body).await["operation"].clone();
            ended(server, &begun).await
        };
        let dry = redrive(json!({"error_signature": "io", "dry_run": true})).await;
        assert_eq!((&dry["kind"], &dry["done"], states().await), (&json!("redrive"), &json!("3"), (0, 5)), "{dry}");
        let io = json!({"error_signature": "io", "filter": {"team": "red"}, "request_token": "once"});
        let some = redrive(io.clone()).await;
        assert_eq!((&some["done"], &some["state"]), (&json!("2"), &json!("OPERATION_STATE_DONE")), "{some}");
        assert_eq!(states().await, (2, 3));
        assert_eq!(redrive(io).await["operationId"], some["operationId"], "a repeat is the same redrive");
        let other =
            json!({"queue": "mail", "error_signature": "smtp", "filter": {"team": "red"}, "request_token": "once"});
        server.refused("RedriveMessages", other, Reason::TokenReused).await;
        assert_eq!(redrive(json!({"error_signature": "absent"})).await["done"], "0");
        assert_eq!(redrive(json!({"error_signature": "smtp", "rate": 1_000})).await["done"], "2");
        assert_eq!(states().await, (4, 1), "the message of another team stays");
    })
    .await;
}

#[tokio::test]
async fn the_operations_of_a_queue_are_listed_newest_first_with_what_they_do_and_how_far_they_are() {
    on_every_store(json!({"name": "mail", "default_max_attempts": 1}), async |server| {
        fail_with(server, "smtp", "red", "smtp").await;
        for number in 0..30 {
            fail_with(server, &format!("io-{number}"), "red", "io").await;
        }
        server.done("CreateQueue", json!({"queue": {"name": "other"}})).await;
        let list = async |queue: &str, more: Value| {
            let mut asked = json!({"queue": queue, "page_size": 100});
            asked.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            server.done("ListOperations", asked).await
        };
        assert_eq!(list("mail", json!({})).await, json!({"operations": [], "nextPageToken": ""}));
        let slow = json!({"queue": "mail", "error_signature": "io", "filter": {"team": "red"}, "rate": 1});
        let redrive = server.done("RedriveMessages", slow).await["operation"].clone();
        let discard = json!({"queue": "mail", "error_signature": "smtp", "request_token": "once"});
        let discard = server.done("DiscardMessages", discard).await["operation"].clone();
        let discard = ended(server, &discard).await;
        let purge = json!({"queue": "mail", "states": ["COMPLETED", "CANCELED"]});
        let purge = ended(server, &server.done("PurgeQueue", purge).await["operation"].clone()).await;
        let cancel = json!({"queue": "mail", "filter": {"team": "green"}, "reason": "the tenant left"});
        let cancel = ended(server, &server.done("CancelMessages", cancel).await["operation"].clone()).await;
        // None of these is an operation that changes many messages.
        server.done("RedriveMessages", json!({"queue": "mail", "dry_run": true})).await;
        server.done("PurgeQueue", json!({"queue": "mail", "dry_run": true})).await;
        server
            .refused("RedriveMessages", json!({"queue": "mail", "message_id": "absent"}), Reason::MessageNotFound)
            .await;
        ended(server, &server.done("PurgeQueue", json!({"queue": "other"})).await["operation"].clone()).await;

        let listed = list("mail", json!({})).await["operations"].clone();
        let by_id = |operation: &Value| operation["operationId"].clone();
        let ids: Vec<Value> = listed.as_array().expect("a list").iter().map(by_id).collect();
        assert_eq!(ids, [&cancel, &purge, &discard, &redrive].map(by_id), "{listed}");
        assert_eq!(
            listed.as_array().expect("a list")[..3],
            [cancel.clone(), purge, discard],
            "as GetOperation shows them"
        );
        let running = &listed[3];
        let shown =
            ["kind", "queue", "state", "errorSignature", "filter", "rate", "total"].map(|part| running[part].clone());
        let expected = [
            json!("redrive"),
            json!("mail"),
            json!("OPERATION_STATE_RUNNING"),
            json!("io"),
            json!({"team": "red"}),
            json!(1),
            json!("31"),
        ];
        assert_eq!(shown, expected, "{running}");
        assert_eq!(running["author"], "127.0.0.1", "where callers need no key, it is their address: {running}");
        let purged = json!(["MESSAGE_STATE_COMPLETED", "MESSAGE_STATE_CANCELED"]);
        assert_eq!((&listed[1]["states"], &listed[0]["reason"]), (&purged, &json!("the tenant left")));
        assert_eq!((&listed[2]["kind"], &listed[2]["done"]), (&json!("discard"), &json!("1")));

        let first = list("mail", json!({"page_size": 3})).await;
        let second = list("mail", json!({"page_size": 3, "page_token": first["nextPageToken"]})).await;
        assert_eq!(second["operations"].as_array().expect("a list").iter().map(by_id).collect::<Vec<_>>(), ids[3..]);
        assert_eq!(second["nextPageToken"], "");
        let foreign = json!({"queue": "other", "page_token": first["nextPageToken"]});
        server.refused("ListOperations", foreign, Reason::InvalidPageToken).await;
        assert_eq!(list("other", json!({})).await["operations"].as_array().map(Vec::len), Some(1));
        server.refused("ListOperations", json!({"queue": "absent"}), Reason::QueueNotFound).await;
        server.done("CancelOperation", json!({"operation_id": redrive["operationId"]})).await;
        assert_eq!(list("mail", json!({})).await["operations"][3]["state"], "OPERATION_STATE_CANCELLED");
    })
    .await;
}

#[tokio::test]
async fn operations_of_an_earlier_queue_of_the_name_are_not_listed() {
    on_every_store(mail(), async |server| {
        ended(server, &server.done("PurgeQueue", json!({"queue": "mail"})).await["operation"].clone()).await;
        server.done("DeleteQueue", json!({"queue": "mail"})).await;
        server.done("CreateQueue", json!({"queue": {"name": "mail"}})).await;
        let listed = server.done("ListOperations", json!({"queue": "mail"})).await;
        assert_eq!(listed["operations"], json!([]), "{listed}");
    })
    .await;
}

#[tokio::test]
async fn a_redrive_of_one_message_takes_no_conditions() {
    let server = Wire::start().await;
    server.done("CreateQueue", one_attempt()).await;
    for condition in [json!({"error_signature": "io"}), json!({"filter": {"a": "b"}}), json!({"rate": 1})] {
        let mut sent = condition.clone();
        (sent["queue"], sent["message_id"]) = (json!("mail"), json!("m"));
        server.refused("RedriveMessages", sent, Reason::InvalidArgument).await;
    }
}

#[tokio::test]
async fn a_discard_says_which_messages_it_means() {
    let server = Wire::start().await;
    server.done("CreateQueue", one_attempt()).await;
    for body in [
        json!({}),
        json!({"dry_run": true}),
        json!({"all": true, "filter": {"a": "b"}}),
        json!({"all": true, "error_signature": "io"}),
        json!({"message_id": "m", "all": true}),
        json!({"message_id": "m", "error_signature": "io"}),
        json!({"message_id": "m", "until_time": "2026-01-01T00:00:00Z"}),
        json!({"shard_key": "k"}),
    ] {
        let mut sent = body.clone();
        sent["queue"] = json!("mail");
        server.refused("DiscardMessages", sent, Reason::InvalidArgument).await;
    }
}

#[tokio::test]
async fn what_fails_after_the_count_of_a_discard_stays() {
    let clock = clock();
    let server = Wire::with_clock(&clock).await;
    server.done("CreateQueue", one_attempt()).await;
    for id in ["early", "late"] {
        server.done("Enqueue", json!({"queue": "mail", "message": {"message_id": id}})).await;
    }
    let fail = async || server.done("Fail", settle(&lease(&server).await)).await;
    fail().await;
    let dry = server.done("DiscardMessages", json!({"queue": "mail", "all": true, "dry_run": true})).await;
    assert_eq!(dry["operation"]["done"], "1", "{dry}");
    clock.advance(Duration::from_secs(1));
    fail().await;
    let until = &dry["operation"]["startTime"];
    let once = json!({"queue": "mail", "all": true, "until_time": until, "request_token": "once"});
    let begun = server.done("DiscardMessages", once.clone()).await["operation"].clone();
    assert_eq!(ended(&server, &begun).await["done"], "1");
    let again = server.done("DiscardMessages", once).await["operation"].clone();
    assert_eq!((&again["operationId"], &again["done"]), (&begun["operationId"], &json!("1")), "a repeat does nothing");
    let left = server.done("ListMessages", json!({"queue": "mail", "state": "ERRORED"})).await;
    assert_eq!(left["messages"].as_array().expect("messages").len(), 1, "{left}");
    let left = &left["messages"][0];
    assert_eq!(left["messageId"], "late", "it came before the discard and failed after the count");
    assert!(left["endTime"].as_str() > until.as_str(), "it says since when it is over: {left}");
}

#[tokio::test]
async fn a_discard_of_one_message_that_is_repeated_answers_as_the_first() {
    let server = Wire::start().await;
    server.done("CreateQueue", one_attempt()).await;
    fail_with(&server, "a", "red", "io").await;
    let once = json!({"queue": "mail", "message_id": "a", "request_token": "once"});
    let first = server.done("DiscardMessages", once.clone()).await;
    assert_eq!(first["operation"]["done"], "1", "{first}");
    assert_eq!(server.done("DiscardMessages", once.clone()).await, first);
    fail_with(&server, "a", "red", "io").await;
    assert_eq!(server.done("DiscardMessages", once).await, first, "another message of the id is not touched");
    assert_eq!(depth(&server).await["errored"], "1");
    let other = json!({"queue": "mail", "message_id": "absent", "request_token": "other"});
    server.refused("DiscardMessages", other, Reason::MessageNotFound).await;
}
