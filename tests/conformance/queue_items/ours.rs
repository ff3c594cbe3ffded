//! Items 60 to 74: what Alibaba's timeout center asks, and what Tallystone asks of itself.

use std::sync::Arc;

use tallystone_domain::Timestamp;
use tallystone_domain::queue::command::{BulkRequest, ShardCapacity};
use tallystone_domain::queue::messages::message::Metadata;
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::queue::messages::settlement::SettleAction;
use tallystone_domain::queue::setup::setting_ranges::faults_of_queue;
use tallystone_domain::queue::shard_routing::{route, shard_of};
use tallystone_domain::queue::{Command, MessageState, QueueSpec, Refusal, Reply, Settings};
use tallystone_ports::{Clock, ShardCommand};

use super::{extend, secs, sent, settled, sweep};
use crate::queue_given::{
    News, SHARD, dequeue, enqueue, enqueue_later, is_new, on_every_durable_queue_store, on_every_queue_store, settings,
    settle, spec,
};

#[test]
fn item_60_the_shard_of_a_key_is_its_crc_32_for_ever() {
    let id = MessageId::new("123456789").expect("a valid id");
    let routed = |shards, key: Option<&str>| route(&settings(), shards, &id, key, &Metadata::default());
    // The check value of CRC-32/ISO-HDLC is 0xcbf43926.
    assert_eq!(routed(256, None).map(|route| route.shard), Ok(0x26));
    for (key, wanted) in [("order-1", 0xef), ("order-2", 0x55), ("eu", 0xae)] {
        assert_eq!(routed(256, Some(key)).map(|route| route.shard), Ok(wanted), "{key}");
        assert_eq!(shard_of(16, key), wanted & 15, "fewer shards take fewer bits of the same hash");
    }
}

#[test]
fn item_61_the_number_of_shards_is_a_power_of_two() {
    for shards in 0..=600 {
        let faults = faults_of_queue(&QueueSpec { shards, ..spec("mail", "") });
        let fits = faults.iter().all(|fault| fault.setting != "shards");
        assert_eq!(fits, [1, 2, 4, 8, 16, 32, 64, 128, 256].contains(&shards), "{shards}");
    }
}

#[tokio::test]
async fn item_62_what_a_crashed_worker_had_returns_when_its_lease_is_over() {
    on_every_durable_queue_store(async |bench, ending| {
        bench.one(SHARD, enqueue("a", 0, b"work")).await;
        bench.lease(SHARD).await;
        let bench = bench.reopen(ending).await;
        assert!(bench.served(SHARD, 1).await.is_empty());
        bench.clock.advance(secs(30));
        let (lease, message) = bench.dequeue(SHARD, 1).await.remove(0);
        assert_eq!((lease.attempt_number, &*message.head.id.text()), (2, "a"));
    })
    .await;
}

#[tokio::test]
async fn item_63_a_message_is_tried_sixteen_times_and_then_is_dead() {
    on_every_queue_store(async |bench| {
        let shard = bench.queue_of(Settings { default_attempts: 16, ..settings() }).await;
        bench.one(shard, enqueue("a", 0, b"")).await;
        for attempt in 1..=16 {
            let (lease, _) = bench.dequeue(shard, 1).await.remove(0);
            assert_eq!(lease.attempt_number, attempt);
            bench.clock.advance(secs(30));
        }
        assert!(bench.served(shard, 1).await.is_empty());
        assert_eq!(bench.count(shard, MessageState::Errored).await, 1, "it waits among the dead letters");
        let redrive = Command::RedriveAll(BulkRequest { through: 1, max: 1, ..BulkRequest::default() });
        assert_eq!(bench.one(shard, ShardCommand::of(redrive)).await.reply, Ok(Reply::Walked { count: 1, next: None }));
        assert_eq!(bench.dequeue(shard, 1).await[0].0.attempt_number, 1);
    })
    .await;
}

#[tokio::test]
async fn item_65_the_token_of_a_lease_that_is_over_changes_nothing() {
    on_every_queue_store(async |bench| {
        bench.one(SHARD, enqueue("a", 0, b"")).await;
        let stale = bench.lease(SHARD).await;
        bench.clock.advance(secs(30));
        let held = bench.lease(SHARD).await;
        for verb in [SettleAction::Complete, SettleAction::Cancel, SettleAction::Fail, SettleAction::Release] {
            let answer = bench.one(SHARD, settle(stale, verb)).await;
            assert_eq!((answer.reply, answer.transitions), (Err(Refusal::LeaseLost), vec![]), "{verb:?}");
        }
        assert_eq!(bench.one(SHARD, extend(stale, secs(60))).await.reply, Err(Refusal::LeaseLost));
        assert_eq!(
            settled(&bench.one(SHARD, settle(held, SettleAction::Complete)).await.reply),
            MessageState::Completed
        );
    })
    .await;
}

#[tokio::test]
async fn item_66_a_late_completion_counts_while_nobody_else_has_had_the_message() {
    on_every_queue_store(async |bench| {
        bench.one(SHARD, sent("pending", |_| ())).await;
        let late = bench.lease(SHARD).await;
        bench.one(SHARD, sent("errored", |message| message.max_attempts = Some(1))).await;
        let dead = bench.lease(SHARD).await;
        bench.clock.advance(secs(30));
        bench.all(SHARD, vec![sweep()]).await;
        assert_eq!(bench.state("errored").await, Some(MessageState::Errored));
        for (id, token) in [("pending", late), ("errored", dead)] {
            assert_eq!(bench.one(SHARD, settle(token, SettleAction::Fail)).await.reply, Err(Refusal::LeaseLost));
            assert_eq!(
                settled(&bench.one(SHARD, settle(token, SettleAction::Complete)).await.reply),
                MessageState::Completed,
                "{id}"
            );
        }
        bench.one(SHARD, enqueue("taken", 0, b"")).await;
        let late = bench.lease(SHARD).await;
        bench.clock.advance(secs(30));
        let held = bench.lease(SHARD).await;
        bench.all(SHARD, vec![settle(held, SettleAction::Release)]).await;
        assert_eq!(bench.one(SHARD, settle(late, SettleAction::Complete)).await.reply, Err(Refusal::LeaseLost));
    })
    .await;
}

#[tokio::test]
async fn item_67_a_message_keeps_its_priority_however_it_returns() {
    on_every_queue_store(async |bench| {
        bench.all(SHARD, vec![enqueue("first", 1, b""), enqueue("second", 2, b"")]).await;
        for verb in [None, Some(SettleAction::Release), Some(SettleAction::Fail)] {
            let (lease, message) = bench.dequeue(SHARD, 1).await.remove(0);
            assert_eq!(message.head.id.to_string(), "first", "{verb:?}");
            if let Some(verb) = verb {
                bench.all(SHARD, vec![settle(lease.token, verb)]).await;
            }
            bench.clock.advance(secs(30));
        }
        assert_eq!(bench.served(SHARD, 9).await, ["first", "second"]);
    })
    .await;
}

#[tokio::test]
async fn item_68_equal_priorities_are_served_in_the_order_of_arrival() {
    on_every_queue_store(async |bench| {
        let ids: Vec<String> = (0..50).map(|number| format!("{}-{number}", 99 - number)).collect();
        bench.all(SHARD, ids.iter().map(|id| enqueue(id, 5, b"")).collect()).await;
        let half = bench.dequeue(SHARD, 25).await;
        bench.all(SHARD, half.iter().map(|(lease, _)| settle(lease.token, SettleAction::Release)).collect()).await;
        assert_eq!(bench.served(SHARD, 50).await, ids, "also what was given back");
    })
    .await;
}

#[tokio::test]
async fn item_69_a_step_of_the_wall_clock_ends_and_freezes_no_lease() {
    on_every_queue_store(async |bench| {
        for (id, hours) in [("back", -1_i64), ("forward", 1)] {
            let later = format!("after {id}");
            bench.all(SHARD, vec![enqueue(id, 0, b""), enqueue_later(&later, secs(40))]).await;
            bench.lease(SHARD).await;
            let wall = bench.clock.now().micros() + hours * 3_600_000_000;
            bench.clock.set_wall(Timestamp::from_micros(wall));
            bench.clock.advance(secs(25));
            assert!(bench.served(SHARD, 9).await.is_empty(), "{id}: 25 s are no 30 s");
            bench.clock.advance(secs(10));
            let (again, _) = bench.dequeue(SHARD, 9).await.remove(0);
            assert_eq!(again.attempt_number, 2, "{id}: 35 s are");
            bench.clock.advance(secs(10));
            let (after, message) = bench.dequeue(SHARD, 9).await.remove(0);
            assert_eq!(message.head.id.to_string(), later, "nor is a window frozen");
            for lease in [again, after] {
                assert_eq!(
                    settled(&bench.one(SHARD, settle(lease.token, SettleAction::Complete)).await.reply),
                    MessageState::Completed
                );
            }
        }
    })
    .await;
}

#[tokio::test]
async fn item_70_a_full_shard_refuses_messages_and_serves_those_it_has() {
    on_every_queue_store(async |bench| {
        let shard = bench.queue_of(Settings { quota_messages: 3, ..settings() }).await;
        bench.all(shard, (0..3).map(|number| enqueue(&format!("m-{number}"), 0, b"")).collect()).await;
        assert_eq!(bench.one(shard, enqueue("m-3", 0, b"")).await.reply, Err(Refusal::Full(ShardCapacity::Messages)));
        let token = bench.lease(shard).await;
        assert_eq!(
            settled(&bench.one(shard, settle(token, SettleAction::Complete)).await.reply),
            MessageState::Completed
        );
        assert_eq!(bench.served(shard, 9).await.len(), 2);
        bench.clock.advance(secs(3_600));
        bench.all(shard, vec![sweep()]).await;
        assert!(is_new(&bench.one(shard, enqueue("m-3", 0, b"")).await.reply), "room returns with the retention");
    })
    .await;
}

#[tokio::test]
async fn item_73_news_that_were_lost_are_made_up_for_by_any_later_look() {
    on_every_queue_store(async |bench| {
        // Whoever heard nothing of this asks once and knows as much as who heard all of it.
        bench.all(SHARD, vec![enqueue("a", 4, b""), enqueue_later("b", secs(9))]).await;
        let news = Arc::new(News::default());
        bench.stores.shards.listen(news.clone());
        let view = bench.stores.reader.totals(SHARD).await.expect("a read").view;
        assert_eq!((view.ready(), view.head, view.next_event_in), (1, Some(4), Some(secs(9))));
        assert_eq!(news.newest(SHARD).map(|heard| (heard.step, heard.ready())), Some((view.step, view.ready())));
        bench.clock.advance(secs(9));
        let answer = bench.one(SHARD, dequeue(9)).await;
        assert_eq!(answer.messages.len(), 2, "time needs no news");
    })
    .await;
}

#[tokio::test]
async fn item_74_a_message_that_always_fails_keeps_no_other_from_being_served() {
    on_every_queue_store(async |bench| {
        bench.all(SHARD, vec![sent("poison", |message| message.priority = Some(-1))]).await;
        bench.all(SHARD, (0..20).map(|number| enqueue(&format!("m-{number}"), 0, b"")).collect()).await;
        let (mut failures, mut done) = (0, 0);
        for _ in 0..60 {
            for (lease, message) in bench.dequeue(SHARD, 1).await {
                let is_poison = message.head.id.to_string() == "poison";
                (failures, done) = if is_poison { (failures + 1, done) } else { (failures, done + 1) };
                bench
                    .all(
                        SHARD,
                        vec![settle(lease.token, if is_poison { SettleAction::Fail } else { SettleAction::Complete })],
                    )
                    .await;
            }
            bench.clock.advance(secs(1));
        }
        assert_eq!((failures, done, bench.state("poison").await), (3, 20, Some(MessageState::Errored)));
    })
    .await;
}
