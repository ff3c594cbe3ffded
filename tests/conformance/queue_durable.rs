//! The laws of the queue store over restarts: whatever was answered holds in the store that is opened next, after a close and
//! after a kill alike.

use std::time::Duration;

use bytes::Bytes;
use tallystone_domain::Timestamp;
use tallystone_domain::queue::command::MessageUpdate;
use tallystone_domain::queue::messages::lease_seal::{LEASE_KEY_BYTES, LeaseKey};
use tallystone_domain::queue::messages::message::{LeaseToken, MessageRef, Metadata, RoutingValue};
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::queue::messages::settlement::SettleAction;
use tallystone_domain::queue::setup::settings::Exclusivity;
use tallystone_domain::queue::{Command, Durability, MessageState, QueueId, Refusal, Reply, Settings, Shard};
use tallystone_ports::{CreatedQueue, MessageBody, ShardCommand, StoreErrorKind};

use crate::backends::Ending;
use crate::given::{T0, at};
use crate::queue_catalog::request;
use crate::queue_given::{
    OTHER_SHARD, QUEUE, QueueBench, SHARD, body, configure, dequeue, enqueue, enqueue_later, is_new,
    on_every_durable_queue_store, on_the_embedded_store, settings, settle,
};

fn by_id(id: &str) -> MessageRef {
    MessageRef::Id(MessageId::new(id).expect("a valid id"), None)
}

/// An enqueue whose token carries its time.
fn enqueue_at(id: &str, time: Timestamp) -> ShardCommand {
    let mut sent = enqueue(id, 0, b"timed");
    let Command::Enqueue(message) = &mut sent.command else { panic!("it is an enqueue") };
    message.token_time = Some(time);
    sent
}

async fn state_of(bench: &QueueBench, id: &str) -> Option<MessageState> {
    let found = bench.stores.reader.get(SHARD, by_id(id)).await.expect("a read");
    found.map(|(message, _)| message.head.state)
}

#[tokio::test]
async fn queue_store_laws_1_and_2_a_shard_answers_as_the_core_does_over_restarts() {
    on_the_embedded_store(async |mut bench, ending| {
        let mut core = Shard::new(0, 1, settings()).expect("valid settings");
        let mut random = 20_261_122_u64;
        for step in 0..1_200 {
            if step % 100 == 99 {
                bench = bench.reopen(ending).await;
            }
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let draw = random >> 40;
            bench
                .clock
                .advance(Duration::from_millis(draw % 900_000 / if draw.is_multiple_of(10) { 1 } else { 1_000 }));
            let sent = match draw % 8 {
                0 => enqueue(&format!("m-{}", draw % 50), i64::try_from(draw % 9).expect("small"), b"x"),
                1 => enqueue_at(&format!("t-{}", draw % 30), T0 + Duration::from_secs(draw % 7_200)),
                2 => enqueue_later(&format!("later-{step}"), Duration::from_secs(draw % 5)),
                3 | 4 => dequeue(1 + usize::try_from(draw % 4).expect("small")),
                5 | 6 => {
                    match core.list(MessageState::Running, 0).next().and_then(|held| Some((held.key, held.lease?))) {
                        Some((key, lease)) => {
                            let token = LeaseToken { key, fence: lease.fence };
                            settle(
                                token,
                                [
                                    SettleAction::Complete,
                                    SettleAction::Fail,
                                    SettleAction::Release,
                                    SettleAction::Cancel,
                                ][step % 4],
                            )
                        }
                        None => dequeue(1),
                    }
                }
                _ => ShardCommand::of(Command::Sweep { max: 3 }), // the draw is below 8
            };
            let answer = bench.one(SHARD, sent.clone()).await;
            let applied = core.apply(sent.command, answer.at);
            assert_eq!((answer.reply, answer.transitions), (applied.reply, applied.transitions), "step {step}");
            assert_eq!(answer.view.next_event_in, core.next_event_in(answer.at), "step {step}");
        }
        let bench = bench.reopen(ending).await;
        let reader = &bench.stores.reader;
        assert_eq!(reader.totals(SHARD).await.expect("totals").totals, *core.totals());
        for state in MessageState::ALL {
            let listed = reader.list(SHARD, state, 0, 2_000).await.expect("a read").messages;
            let heads: Vec<_> = listed.iter().map(|message| message.head.clone()).collect();
            assert_eq!(heads, core.list(state, 0).cloned().collect::<Vec<_>>(), "{state}");
        }
    })
    .await;
}

/// An update of a message's payload and metadata.
fn replace(id: &str, payload: &[u8], pairs: &[(&str, &str)]) -> ShardCommand {
    let update = MessageUpdate {
        payload_bytes: u32::try_from(payload.len()).ok(),
        metadata: Some(Metadata::new(pairs.iter().copied()).expect("valid pairs")),
        ..MessageUpdate::default()
    };
    let body = MessageBody { payload: Bytes::copy_from_slice(payload), ..MessageBody::default() };
    ShardCommand { command: Command::Update { message: by_id(id), update }, body }
}

#[tokio::test]
async fn queue_store_law_1_an_update_replaces_the_payload_and_keeps_the_other_parts_of_the_body() {
    on_every_durable_queue_store(async |bench, ending| {
        let tenant = |name: &'static str| [("tenant", name)];
        // Within the step that enqueued it, after it, and again before it is taken.
        taken(&bench, vec![enqueue("a", 0, b"old"), replace("a", b"newer", &tenant("acme"))]).await;
        bench.one(SHARD, enqueue("b", 1, b"old")).await;
        let twice = vec![replace("b", b"", &[]), replace("b", b"newest", &tenant("brick"))];
        taken(&bench, twice).await;
        taken(&bench, vec![enqueue("gone", 2, b"old"), replace("gone", b"new", &[]), cancel("gone")]).await;
        let bench = bench.reopen(ending).await;
        let leased = bench.dequeue(SHARD, 9).await;
        let found: Vec<_> = leased
            .iter()
            .map(|(_, message)| {
                let tenant = message.head.metadata.get("tenant");
                (message.head.id.text().to_string(), message.head.payload_bytes, message.body.clone(), tenant)
            })
            .collect();
        let expected =
            [("a".to_owned(), 5, body(b"newer"), Some("acme")), ("b".to_owned(), 6, body(b"newest"), Some("brick"))];
        assert_eq!(found, expected);
        assert_eq!(state_of(&bench, "gone").await, Some(MessageState::Canceled));
    })
    .await;
}

async fn taken(bench: &QueueBench, commands: Vec<ShardCommand>) {
    for answer in bench.apply(SHARD, commands).await {
        answer.expect("the store takes it").reply.expect("none is refused");
    }
}

fn cancel(id: &str) -> ShardCommand {
    ShardCommand::of(Command::CancelMessage { message: by_id(id), reason: "".into() })
}

#[tokio::test]
async fn queue_store_law_1_a_lease_outlives_the_store_and_attempts_are_exact() {
    on_every_durable_queue_store(async |bench, ending| {
        bench.one(SHARD, enqueue("a", 0, b"work")).await;
        bench.one(SHARD, enqueue("b", 1, b"more")).await;
        let (kept, _) = bench.dequeue(SHARD, 1).await.remove(0);
        let bench = bench.reopen(ending).await;
        let (other, message) = bench.dequeue(SHARD, 9).await.remove(0);
        assert_eq!((&*message.head.id.text(), message.body), ("b", body(b"more")), "what is leased is not served");
        assert!(other.token.fence > kept.token.fence, "fences grow over a restart");
        let done = bench.one(SHARD, settle(kept.token, SettleAction::Complete)).await.reply;
        assert!(matches!(&done, Ok(Reply::Settled(answer)) if answer.state == MessageState::Completed), "{done:?}");
        let bench = bench.reopen(ending).await;
        assert_eq!(
            bench.one(SHARD, settle(kept.token, SettleAction::Complete)).await.reply,
            done,
            "a repeat answers as the first"
        );
        bench.clock.advance(Duration::from_secs(30));
        let (second, _) = bench.dequeue(SHARD, 9).await.remove(0);
        assert_eq!((second.token.key, second.attempt_number), (other.token.key, 2));
        assert_eq!(bench.one(SHARD, settle(other.token, SettleAction::Fail)).await.reply, Err(Refusal::LeaseLost));
    })
    .await;
}

#[tokio::test]
async fn queue_store_law_2_no_step_of_the_wall_and_no_restart_moves_a_lease() {
    on_the_embedded_store(async |bench, ending| {
        for (id, step) in [("forward", 3_600_i64), ("back", -3_600)] {
            bench.one(SHARD, enqueue(id, 0, b"")).await;
            let (lease, _) = bench.dequeue(SHARD, 1).await.remove(0);
            let wall = tallystone_ports::Clock::now(&bench.clock).micros() + step * 1_000_000;
            bench.clock.set_wall(Timestamp::from_micros(wall));
            bench.clock.advance(Duration::from_secs(20));
            assert_eq!(state_of(&bench, id).await, Some(MessageState::Running));
            assert_eq!(bench.dequeue(SHARD, 1).await.len(), 0, "{id}: 20 of 30 s are no 30 s");
            bench.one(SHARD, settle(lease.token, SettleAction::Complete)).await;
        }
        bench.one(SHARD, enqueue("restarted", 0, b"")).await;
        bench.dequeue(SHARD, 1).await;
        bench.clock.advance(Duration::from_secs(20));
        bench.clock.set_wall(Timestamp::from_secs(0));
        let bench = bench.reopen(ending).await;
        assert_eq!(bench.dequeue(SHARD, 1).await.len(), 0, "20 of 30 s are no 30 s");
        bench.clock.advance(Duration::from_secs(12));
        assert_eq!(bench.dequeue(SHARD, 1).await.len(), 1, "nor is it frozen");
        bench.clock.reboot();
        let bench = bench.reopen(ending).await;
        bench.clock.advance(Duration::from_secs(32));
        assert_eq!(bench.dequeue(SHARD, 1).await.len(), 1, "after a boot time goes on from the last commit");
    })
    .await;
}

#[tokio::test]
async fn queue_store_law_1_a_token_is_known_over_restarts_until_its_window_is_over() {
    on_every_durable_queue_store(async |bench, ending| {
        assert!(is_new(&bench.one(SHARD, enqueue_at("t", T0)).await.reply));
        let first = bench.one(SHARD, enqueue_at("t", T0)).await.reply;
        assert!(matches!(first, Ok(Reply::Enqueued { already_enqueued: true, .. })), "{first:?}");
        let bench = bench.reopen(ending).await;
        bench.clock.advance(Duration::from_secs(3_500));
        assert_eq!(bench.one(SHARD, enqueue_at("t", T0)).await.reply, first);
        // A token of the next day makes a bucket of its own, and the first one goes.
        bench.clock.advance(Duration::from_secs(26 * 3_600));
        assert!(is_new(&bench.one(SHARD, enqueue_at("u", T0 + Duration::from_secs(26 * 3_600))).await.reply));
        // Files that are being deleted cannot be copied, so this time it is not killed.
        let bench = bench.reopen(Ending::Closed).await;
        assert_eq!(bench.one(SHARD, enqueue_at("t", T0)).await.reply, Err(Refusal::TokenExpired));
    })
    .await;
}

#[tokio::test]
async fn queue_store_law_1_settings_and_limits_of_values_outlive_the_store() {
    on_every_durable_queue_store(async |bench, ending| {
        let exclusive = Settings {
            exclusivity: Some(Exclusivity {
                key: "customer".into(),
                max_in_flight_per_value: 1,
                strict_order_per_value: false,
            }),
            ..settings()
        };
        bench.one(SHARD, configure(1, exclusive)).await;
        let bench = bench.reopen(ending).await;
        for (value, limit) in [("ada", Some(2)), ("bob", Some(3)), ("bob", None)] {
            let value = RoutingValue::new(value).expect("a valid value");
            let set = bench.one(SHARD, ShardCommand::of(Command::SetValueLimit { value, limit })).await;
            assert_eq!(set.reply, Ok(Reply::ValueLimitSet));
        }
        let bench = bench.reopen(ending).await;
        for number in 0..6 {
            let value = if number % 2 == 0 { "ada" } else { "bob" };
            let mut sent = enqueue(&format!("m-{number}"), number, b"");
            let Command::Enqueue(message) = &mut sent.command else { panic!("it is an enqueue") };
            message.metadata = Metadata::new([("customer", value)]).expect("a valid pair");
            message.routing = Some(RoutingValue::new(value).expect("a valid value"));
            assert!(is_new(&bench.one(SHARD, sent).await.reply));
        }
        let bench = bench.reopen(ending).await;
        let served = bench.dequeue(SHARD, 9).await;
        let ids: Vec<_> = served.iter().map(|(_, message)| message.head.id.to_string()).collect();
        assert_eq!(ids, ["m-0", "m-1", "m-2"], "two of one value, one of the other");
        let bench = bench.reopen(ending).await;
        assert_eq!(bench.dequeue(SHARD, 9).await.len(), 0, "what is in flight counts after a restart");
    })
    .await;
}

#[tokio::test]
async fn queue_store_law_1_a_deleted_shard_stays_deleted_and_answers_repeats() {
    on_every_durable_queue_store(async |bench, ending| {
        let first = bench.one(SHARD, enqueue_at("t", T0)).await.reply;
        assert!(is_new(&first));
        bench.one(SHARD, enqueue("u", 0, b"")).await;
        bench.dequeue(SHARD, 1).await;
        let deleted = bench.one(SHARD, ShardCommand::of(Command::Delete)).await.reply;
        assert_eq!(deleted, Ok(Reply::Deleted { messages: 2 }));
        let mut bench = bench;
        for _ in 0..2 {
            bench = bench.reopen(ending).await;
            assert_eq!(bench.one(SHARD, ShardCommand::of(Command::Delete)).await.reply, deleted);
            assert_eq!(bench.one(SHARD, dequeue(1)).await.reply, Err(Refusal::Deleted));
            let repeat = bench.one(SHARD, enqueue_at("t", T0)).await.reply;
            assert!(matches!(repeat, Ok(Reply::Enqueued { already_enqueued: true, .. })), "{repeat:?}");
            assert_eq!(bench.stores.reader.totals(SHARD).await.expect("totals").totals.all().messages, 0);
        }
    })
    .await;
}

#[tokio::test]
async fn queue_store_laws_5_and_6_what_was_created_stays_and_what_was_dropped_stays_away() {
    on_every_durable_queue_store(async |bench, ending| {
        let gone = QueueId(9);
        bench.stores.shards.create(gone, 4, settings().into()).await.expect("a new queue");
        let shard = tallystone_domain::queue::ShardId { queue: gone, number: 3 };
        for number in 0..50 {
            bench.one(shard, enqueue(&format!("g-{number}"), 0, b"gone")).await;
        }
        bench.one(OTHER_SHARD, enqueue("stays", 0, b"here")).await;
        bench.stores.shards.drop_queue(gone).await.expect("it is there");
        let mut bench = bench.reopen(ending).await;
        for _ in 0..2 {
            let queues = bench.stores.shards.queues().await.expect("a list");
            assert_eq!(queues, [CreatedQueue { id: QUEUE, shards: 2, created: T0 }]);
            let refused = bench.stores.shards.create(gone, 4, settings().into()).await.expect_err("it was dropped");
            assert_eq!(refused.kind, StoreErrorKind::Conflict);
            let refused = bench.apply(shard, vec![dequeue(1)]).await.remove(0).expect_err("it was dropped");
            assert_eq!(refused.kind, StoreErrorKind::Conflict);
            bench = bench.reopen(ending).await;
        }
        assert_eq!(bench.dequeue(OTHER_SHARD, 9).await[0].1.body, body(b"here"));
    })
    .await;
}

#[tokio::test]
async fn queue_store_law_11_an_id_is_one_message_of_its_queue_over_restarts() {
    on_the_embedded_store(async |bench, ending| {
        let routed = |id: &str, by: &str| {
            let mut sent = enqueue_at(id, T0);
            let Command::Enqueue(message) = &mut sent.command else { panic!("it is an enqueue") };
            message.routing = Some(RoutingValue::new(by).expect("a valid value"));
            sent
        };
        assert!(is_new(&bench.one(SHARD, routed("a", "eu")).await.reply));
        let bench = bench.reopen(ending).await;
        for sent in [routed("a", "us"), enqueue_at("a", T0), enqueue("a", 0, b"timed")] {
            assert_eq!(bench.one(OTHER_SHARD, sent).await.reply, Err(Refusal::TokenReused));
        }
        assert_eq!(state_of(&bench, "a").await, Some(MessageState::Pending), "it is found by its id alone");
    })
    .await;
}

#[tokio::test]
async fn queue_store_law_12_what_was_answered_survives_what_the_store_says() {
    on_the_embedded_store(async |bench, ending| {
        let said = bench.stores.shards.durability();
        assert!(said >= Some(Durability::Fast), "a kill takes nothing from it: {said:?}");
        assert!(is_new(&bench.one(SHARD, enqueue("a", 0, b"x")).await.reply));
        let bench = bench.reopen(ending).await;
        assert_eq!(state_of(&bench, "a").await, Some(MessageState::Pending));
        assert_eq!(bench.stores.shards.durability(), said);
    })
    .await;
}

#[tokio::test]
async fn queue_catalog_law_3_the_lease_key_is_the_same_over_restarts() {
    on_every_durable_queue_store(async |bench, ending| {
        let (first, other) = (LeaseKey([1; LEASE_KEY_BYTES]), LeaseKey([2; LEASE_KEY_BYTES]));
        bench.stores.catalog.lease_key(first).await.expect("a key");
        let bench = bench.reopen(ending).await;
        assert_eq!(bench.stores.catalog.lease_key(other).await.expect("a key"), first);
    })
    .await;
}

#[tokio::test]
async fn queue_catalog_law_2_a_request_is_known_over_restarts() {
    on_every_durable_queue_store(async |bench, ending| {
        let kept = request(7, "once", 12, 60);
        bench.stores.catalog.save_request(request(7, "over", 1, 30), T0).await.expect("room");
        bench.stores.catalog.save_request(kept.clone(), at(30)).await.expect("room");
        let bench = bench.reopen(ending).await;
        assert_eq!(bench.stores.catalog.saved_request(kept.queue, "once").await.expect("a read"), Some(kept.clone()));
        assert_eq!(bench.stores.catalog.saved_request(kept.queue, "over").await.expect("a read"), None);
    })
    .await;
}
