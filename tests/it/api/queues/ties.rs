//! Messages of equal priority over the shards of a queue: they are served nearly as they arrived, and no shard starves.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tallystone::proto::queue::v1 as wire;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::Wire;
use super::on_stores::{on_every_store, on_every_store_at};

/// The messages of a batch, and those of a dequeue.
const BATCH: usize = 100;
/// How many messages wait before the turns begin, in batches.
const BACKLOG: usize = 20;
/// How many turns there are of one batch in and one out, before the rest is leased.
const TURNS: usize = 30;

/// What became of a message.
struct Served {
    priority: i64,
    /// When it arrived, to compare.
    arrived: String,
    shard: String,
    sent_in: usize,
    leased_in: usize,
}

fn four_shards() -> Value {
    json!({"name": "mail", "shards": 4, "filter_shapes": [{"keys": ["team"]}]})
}

fn number_of(lease: &Value) -> usize {
    let id = lease["message"]["messageId"].as_str().expect("an id");
    id.trim_start_matches("m-").parse().expect("a number")
}

fn text(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}

/// A time of the protocol with all its digits, so that texts compare as times do.
fn time_text(value: &Value) -> String {
    let text = text(value);
    let (seconds, fraction) = text.trim_end_matches('Z').split_once('.').unwrap_or((text.trim_end_matches('Z'), ""));
    format!("{seconds}.{fraction:0<9}")
}

async fn send(server: &Wire, first: usize, priority: impl Fn(usize) -> i64) {
    let message =
        |number: usize| json!({"message_id": format!("m-{number}"), "priority": priority(number).to_string()});
    let messages: Vec<Value> = (first..first + BATCH).map(message).collect();
    server.done("BatchEnqueue", json!({"queue": "mail", "messages": messages})).await;
}

async fn lease_batch(server: &Wire) -> Vec<Value> {
    let asked = json!({"queue": "mail", "max_messages": BATCH, "lease_duration": "3600s"});
    let answer = server.done("Dequeue", asked).await;
    answer["leases"].as_array().cloned().unwrap_or_default()
}

/// Sends a backlog, then a batch for each that is leased, then leases the rest. What became of each message, by its number.
async fn serve_in_turns(server: &Wire, priority: impl Fn(usize) -> i64 + Copy) -> BTreeMap<usize, Served> {
    for batch in 0..BACKLOG {
        send(server, batch * BATCH, priority).await;
    }
    let mut served = BTreeMap::new();
    for turn in 0..TURNS + BACKLOG {
        if turn < TURNS {
            send(server, (BACKLOG + turn) * BATCH, priority).await;
        }
        for lease in lease_batch(server).await {
            let (number, message) = (number_of(&lease), &lease["message"]);
            let key = text(&message["messageKey"]);
            let shard = key.split('.').nth(1).expect("a shard").to_owned();
            let sent_in = (number / BATCH + 1).saturating_sub(BACKLOG);
            let arrived = time_text(&message["enqueueTime"]);
            let priority = text(&message["priority"]).parse().expect("a priority");
            served.insert(number, Served { priority, arrived, shard, sent_in, leased_in: turn + 1 });
        }
    }
    assert_eq!(served.len(), (BACKLOG + TURNS) * BATCH, "every message was served");
    served
}

/// The most better messages that waited in other shards when a message was leased.
fn worst_rank_error(served: &BTreeMap<usize, Served>) -> usize {
    let all: Vec<&Served> = served.values().collect();
    let left_behind = |one: &&Served| {
        let is_better = |other: &&&Served| {
            let waited = other.sent_in <= one.leased_in && other.leased_in > one.leased_in;
            waited && other.shard != one.shard && (other.priority, &other.arrived) < (one.priority, &one.arrived)
        };
        all.iter().filter(is_better).count()
    };
    all.iter().map(left_behind).max().unwrap_or(0)
}

/// Which parts of the messages that were served within the first turns came from each shard.
fn parts_by_shard(served: &BTreeMap<usize, Served>) -> BTreeMap<&str, usize> {
    let mut parts = BTreeMap::new();
    for one in served.values().filter(|one| one.leased_in <= BACKLOG) {
        *parts.entry(one.shard.as_str()).or_default() += 1;
    }
    parts
}

#[tokio::test]
async fn at_equal_priorities_no_shard_starves_and_messages_are_served_nearly_as_they_arrived() {
    on_every_store(four_shards(), async |server| {
        let served = serve_in_turns(server, |_| 5).await;
        for (number, one) in &served {
            // In a queue of one shard the message would have been leased in this turn.
            let exact = number / BATCH + 1;
            assert!(one.leased_in.abs_diff(exact) <= 1, "message {number} was leased in turn {}", one.leased_in);
        }
        let worst = worst_rank_error(&served);
        assert!(worst <= BATCH, "{worst} better messages waited");
    })
    .await;
}

#[tokio::test]
async fn the_bound_of_leases_out_of_rank_holds_for_ten_classes_of_equal_priorities() {
    on_every_store(four_shards(), async |server| {
        let served = serve_in_turns(server, |number| (number * 7 % 10) as i64).await;
        let worst = worst_rank_error(&served);
        assert!(worst <= BATCH, "{worst} better messages waited");
    })
    .await;
}

#[tokio::test]
async fn shards_whose_messages_arrived_at_the_same_moment_take_turns() {
    on_every_store_at(four_shards(), async |server, _clock| {
        let served = serve_in_turns(server, |_| 5).await;
        let parts = parts_by_shard(&served);
        assert_eq!(parts.len(), 4, "{parts:?}");
        let fair = BACKLOG * BATCH / 4;
        assert!(parts.values().all(|part| part.abs_diff(fair) <= fair / 4), "{parts:?}");
    })
    .await;
}

#[tokio::test]
async fn a_filter_gets_messages_of_equal_priority_nearly_as_they_arrived() {
    on_every_store(four_shards(), async |server| {
        let sent = 160;
        for number in 0..sent {
            // Some of the other team stay at the head of every shard.
            let team = if number < 40 { "blue" } else { "red" };
            let id = format!("m-{number}");
            let message = json!({"message_id": id, "priority": "5", "metadata": {"team": team}});
            server.done("Enqueue", json!({"queue": "mail", "message": message})).await;
        }
        for exact in 40..sent {
            let asked = json!({"queue": "mail", "max_messages": 1, "filter": {"team": "red"}});
            let answer = server.done("Dequeue", asked).await;
            let number = number_of(&answer["leases"][0]);
            assert!(number.abs_diff(exact) <= 20, "message {number} was served in place of {exact}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_look_at_the_next_messages_shows_equal_priorities_in_their_order_over_all_shards() {
    on_every_store(four_shards(), async |server| {
        for number in 0..40 {
            let message = json!({"message_id": format!("m-{number}"), "priority": "5"});
            server.done("Enqueue", json!({"queue": "mail", "message": message})).await;
        }
        let peeked = server.done("PeekMessages", json!({"queue": "mail", "max_messages": 10})).await;
        let shown = peeked["messages"].as_array().expect("messages").iter();
        let ids: Vec<String> = shown.map(|message| text(&message["messageId"])).collect();
        let expected: Vec<String> = (0..10).map(|number| format!("m-{number}")).collect();
        assert_eq!(ids, expected);
        let leased = lease_batch(server).await;
        let leased: Vec<usize> = leased.iter().map(number_of).collect();
        assert_eq!(leased, (0..40).collect::<Vec<_>>(), "an answer is in the order of its messages");
    })
    .await;
}

#[tokio::test]
async fn a_stream_gets_messages_of_equal_priority_nearly_as_they_arrived() {
    on_every_store(four_shards(), async |server| {
        let sent = 80;
        for number in 0..sent {
            let message = json!({"message_id": format!("m-{number}"), "priority": "5"});
            server.done("Enqueue", json!({"queue": "mail", "message": message})).await;
        }
        let (requests, asked) = tokio::sync::mpsc::channel(16);
        let one_more = || wire::WorkRequest { queue: "mail".to_owned(), credit: 1, ..Default::default() };
        requests.send(one_more()).await.expect("room");
        let answers = server.queues().await.work(ReceiverStream::new(asked)).await;
        let mut answers = answers.expect("a stream").into_inner();
        let mut exact = 0;
        while exact < sent {
            let answer = answers.next().await.expect("an answer").expect("no error");
            for lease in answer.leases {
                let id = lease.message.expect("a message").message_id;
                let number: usize = id.trim_start_matches("m-").parse().expect("a number");
                assert!(number.abs_diff(exact) <= 20, "message {number} was served in place of {exact}");
                exact += 1;
                requests.send(one_more()).await.expect("room");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_call_that_is_repeated_shows_messages_of_equal_priority_in_the_order_of_its_first_answer() {
    on_every_store(four_shards(), async |server| {
        for number in 0..40 {
            let message = json!({"message_id": format!("m-{number}"), "priority": "5"});
            server.done("Enqueue", json!({"queue": "mail", "message": message})).await;
        }
        let session = server.done("OpenSession", json!({"label": "w", "session_lease": "60s"})).await;
        let call = |attempt: u32| {
            json!({"queue": "mail", "max_messages": 20, "session_id": session["sessionId"], "sequence": "1",
                   "try": attempt})
        };
        let ids = |answer: &Value| answer["leases"].as_array().expect("leases").iter().map(number_of).collect();
        let first: Vec<usize> = ids(&server.done("Dequeue", call(1)).await);
        let again: Vec<usize> = ids(&server.done("Dequeue", call(2)).await);
        assert!(!first.is_empty());
        assert_eq!(first, again);
        assert!(first.is_sorted(), "in the order in which they arrived: {first:?}");
    })
    .await;
}
