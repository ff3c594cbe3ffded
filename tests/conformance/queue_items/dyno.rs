//! Items 1 to 22: what the tests of dyno-queues ask of a queue.

use std::sync::Arc;

use tallystone_domain::queue::command::{BulkRequest, Completeness, Dequeue, MessageUpdate};
use tallystone_domain::queue::messages::message::{Metadata, RoutingValue};
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::queue::messages::settlement::SettleAction;
use tallystone_domain::queue::shard_routing::route;
use tallystone_domain::queue::{CatalogQueue, Command, MessageState, Refusal, Reply, Settings, ShardId};
use tallystone_ports::{IdScope, ShardCommand};
use tokio::task::JoinSet;

use super::{cancel, extend, ms, routing, secs, sent, settled, sweep, update};
use crate::catalog::TriedEntry;
use crate::queue_given::{
    OTHER_SHARD, QUEUE, SHARD, body, dequeue, enqueue, enqueue_later, is_new, on_every_queue_store, settings, settle,
};

#[tokio::test]
async fn item_01_a_queue_tells_its_name_and_its_lease() {
    on_every_queue_store(async |bench| {
        bench.stores.catalog.commit(CatalogQueue::record(1, None, "mail", Some("new"))).await.expect("a new queue");
        let queue = bench.stores.catalog.load().await.expect("a read").remove(0);
        assert_eq!((queue.spec.name.as_str(), queue.spec.settings.default_lease), ("mail", secs(30)));
        bench.one(SHARD, enqueue("a", 0, b"")).await;
        assert_eq!(bench.dequeue(SHARD, 1).await[0].0.expires_in, secs(30), "and that is what a dequeue gives");
    })
    .await;
}

#[tokio::test]
async fn item_02_a_delayed_message_is_absent_until_its_time() {
    on_every_queue_store(async |bench| {
        bench.one(SHARD, enqueue_later("a", ms(100))).await;
        bench.clock.advance(ms(10));
        assert!(bench.served(SHARD, 1).await.is_empty());
        bench.clock.advance(ms(90));
        assert_eq!(bench.served(SHARD, 1).await, ["a"]);
    })
    .await;
}

#[tokio::test]
async fn item_03_a_leased_message_is_not_served_again_before_its_lease_is_over() {
    on_every_queue_store(async |bench| {
        bench.one(SHARD, enqueue("a", 0, b"")).await;
        bench.lease(SHARD).await;
        bench.clock.advance(ms(29_999));
        assert!(bench.served(SHARD, 1).await.is_empty());
        bench.clock.advance(ms(1));
        assert_eq!(bench.served(SHARD, 1).await, ["a"]);
    })
    .await;
}

#[tokio::test]
async fn item_04_a_lease_that_was_set_to_half_a_second_ends_then() {
    on_every_queue_store(async |bench| {
        bench.one(SHARD, enqueue("a", 0, b"")).await;
        let token = bench.lease(SHARD).await;
        bench.all(SHARD, vec![extend(token, ms(500))]).await;
        bench.clock.advance(ms(499));
        assert!(bench.served(SHARD, 1).await.is_empty());
        bench.clock.advance(ms(1));
        assert_eq!(bench.served(SHARD, 1).await, ["a"]);
    })
    .await;
}

#[tokio::test]
async fn item_05_an_extended_lease_holds_past_its_first_end() {
    on_every_queue_store(async |bench| {
        bench.one(SHARD, enqueue("a", 0, b"")).await;
        let token = bench.lease(SHARD).await;
        bench.clock.advance(secs(25));
        bench.all(SHARD, vec![extend(token, secs(10))]).await;
        bench.clock.advance(ms(9_999));
        assert!(bench.served(SHARD, 1).await.is_empty());
        assert_eq!(
            settled(&bench.one(SHARD, settle(token, SettleAction::Complete)).await.reply),
            MessageState::Completed
        );
    })
    .await;
}

#[tokio::test]
async fn item_06_a_lease_set_to_nothing_is_over_at_once() {
    on_every_queue_store(async |bench| {
        bench.one(SHARD, enqueue("a", 0, b"")).await;
        let token = bench.lease(SHARD).await;
        bench.all(SHARD, vec![extend(token, secs(0))]).await;
        assert_eq!(bench.served(SHARD, 1).await, ["a"]);
    })
    .await;
}

#[tokio::test]
async fn item_07_a_completed_message_leaves_nothing_once_its_retention_is_over() {
    on_every_queue_store(async |bench| {
        bench.one(SHARD, enqueue("a", 0, b"work")).await;
        let token = bench.lease(SHARD).await;
        bench.all(SHARD, vec![settle(token, SettleAction::Complete)]).await;
        assert_eq!(
            (bench.count(SHARD, MessageState::Pending).await, bench.count(SHARD, MessageState::Running).await),
            (0, 0)
        );
        assert_eq!(bench.state("a").await, Some(MessageState::Completed), "it is kept for a while");
        bench.clock.advance(secs(3_600));
        bench.all(SHARD, vec![sweep()]).await;
        let left = bench.stores.reader.totals(SHARD).await.expect("a read").totals.all();
        assert_eq!((left.messages, left.bytes, bench.found("a").await), (0, 0, None));
    })
    .await;
}

/// A deviation: dyno-queues answers false.
#[tokio::test]
async fn item_08_a_second_completion_answers_as_the_first() {
    on_every_queue_store(async |bench| {
        bench.one(SHARD, enqueue("a", 0, b"")).await;
        let token = bench.lease(SHARD).await;
        let first = bench.one(SHARD, settle(token, SettleAction::Complete)).await;
        let again = bench.one(SHARD, settle(token, SettleAction::Complete)).await;
        assert_eq!((first.reply, again.transitions), (again.reply, vec![]));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn item_09_of_many_publishers_and_consumers_no_message_is_lost_or_doubled() {
    const PUBLISHERS: usize = 3;
    const PAGES: usize = 34;
    on_every_queue_store(async |bench| {
        let shard = bench.queue_of(Settings { quota_messages: 20_000, ..settings() }).await;
        let bench = Arc::new(bench);
        let mut publishers = JoinSet::new();
        for publisher in 0..PUBLISHERS {
            let bench = Arc::clone(&bench);
            publishers.spawn(async move {
                for page in 0..PAGES {
                    let ids = (0..100).map(|number| format!("{publisher}-{page}-{number}"));
                    bench.all(shard, ids.map(|id| enqueue(&id, 0, b"")).collect()).await;
                }
            });
        }
        let mut consumers = JoinSet::new();
        for _ in 0..2 {
            let bench = Arc::clone(&bench);
            consumers.spawn(async move {
                let mut done = Vec::new();
                while bench.count(shard, MessageState::Completed).await < (PUBLISHERS * PAGES * 100) as u64 {
                    let leases = bench.dequeue(shard, 100).await;
                    let settlements =
                        leases.iter().map(|(lease, _)| settle(lease.token, SettleAction::Complete)).collect();
                    bench.all(shard, settlements).await;
                    done.extend(leases.into_iter().map(|(_, message)| message.head.id.to_string()));
                }
                done
            });
        }
        publishers.join_all().await;
        let mut done = consumers.join_all().await.concat();
        assert_eq!(done.len(), PUBLISHERS * PAGES * 100, "none is doubled");
        done.sort_unstable();
        done.dedup();
        assert_eq!(done.len(), PUBLISHERS * PAGES * 100, "none is lost");
        assert!(bench.served(shard, 1).await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn item_10_an_empty_queue_serves_nothing_and_says_that_this_is_all() {
    on_every_queue_store(async |bench| {
        let nothing = Reply::Leases { leases: vec![], completeness: Completeness::Complete, cursor: None };
        assert_eq!(bench.one(SHARD, dequeue(1)).await.reply, Ok(nothing));
    })
    .await;
}

#[tokio::test]
async fn item_11_a_waiting_message_is_timed_anew_and_a_leased_one_is_not() {
    on_every_queue_store(async |bench| {
        let at = bench.one(SHARD, enqueue_later("a", secs(20))).await.at;
        let sooner = MessageUpdate { visible_at: Some(at + ms(1)), ..MessageUpdate::default() };
        bench.all(SHARD, vec![update("a", sooner.clone())]).await;
        assert!(bench.served(SHARD, 1).await.is_empty());
        bench.clock.advance(ms(1));
        assert_eq!(bench.served(SHARD, 1).await, ["a"]);
        let refused = bench.one(SHARD, update("a", sooner)).await.reply;
        assert_eq!(refused, Err(Refusal::WrongState(MessageState::Running)));
    })
    .await;
}

#[tokio::test]
async fn item_12_a_message_that_was_timed_anew_tells_its_new_time() {
    on_every_queue_store(async |bench| {
        let at = bench.one(SHARD, enqueue_later("a", secs(20))).await.at;
        bench
            .all(SHARD, vec![update("a", MessageUpdate { visible_at: Some(at + secs(5)), ..MessageUpdate::default() })])
            .await;
        let found = bench.found("a").await.expect("it is there").head;
        assert_eq!((found.state, found.visible_at), (MessageState::Invisible, at + secs(5)));
    })
    .await;
}

#[tokio::test]
async fn item_13_a_peek_shows_the_next_messages_and_moves_none() {
    on_every_queue_store(async |bench| {
        for (id, priority) in [("c", 3), ("a", 1), ("b", 2)] {
            bench.one(SHARD, enqueue(id, priority, b"")).await;
        }
        assert_eq!(bench.peeked(SHARD, 2).await, ["a", "b"]);
        assert_eq!(bench.peeked(SHARD, 2).await, ["a", "b"]);
        assert_eq!(bench.count(SHARD, MessageState::Pending).await, 3);
    })
    .await;
}

#[tokio::test]
async fn item_14_a_dequeue_serves_in_the_order_of_a_peek() {
    on_every_queue_store(async |bench| {
        for number in 0..30 {
            bench.one(SHARD, enqueue(&format!("m-{number}"), number * 7 % 5, b"")).await;
        }
        let peeked = bench.peeked(SHARD, 30).await;
        assert_eq!((peeked.len(), bench.served(SHARD, 30).await), (30, peeked));
    })
    .await;
}

#[tokio::test]
async fn item_15_messages_whose_leases_are_over_return_all_and_in_their_order() {
    on_every_queue_store(async |bench| {
        for number in 0..10 {
            bench.one(SHARD, enqueue(&format!("m-{number}"), number % 3, b"")).await;
        }
        let first = bench.served(SHARD, 10).await;
        bench.clock.advance(secs(30));
        assert_eq!((first.len(), bench.served(SHARD, 10).await), (10, first));
    })
    .await;
}

#[tokio::test]
async fn item_16_a_message_is_read_by_its_id_with_all_its_fields() {
    on_every_queue_store(async |bench| {
        let metadata = Metadata::new([("team", "red")]).expect("a valid pair");
        let routing = Some(RoutingValue::new("eu").expect("a valid routing value"));
        let (kept, routed) = (metadata.clone(), routing.clone());
        let command = sent("a", |message| {
            message.priority = Some(-7);
            message.metadata = kept;
            message.routing = routed;
            message.invisibility = Some(secs(2));
            message.lease_duration = Some(secs(7));
            message.max_attempts = Some(5);
            message.ttl = Some(secs(100));
        });
        let at = bench.one(SHARD, command).await.at;
        let found = bench.found("a").await.expect("it is there");
        assert_eq!(found.body, body(b"work"));
        let head = found.head;
        assert_eq!((&*head.id.to_string(), head.metadata, head.routing), ("a", metadata, routing));
        assert_eq!((head.priority, head.payload_bytes, head.state), (-7, 4, MessageState::Invisible));
        assert_eq!((head.max_attempts, head.attempts_left), (5, 5));
        assert_eq!((head.enqueued_at, head.visible_at, head.ttl_at.get()), (at, at + secs(2), Some(at + secs(102))));
        assert_eq!(bench.found("unknown").await, None);
        bench.clock.advance(secs(2));
        assert_eq!(bench.dequeue(SHARD, 1).await[0].0.expires_in, secs(7));
    })
    .await;
}

#[tokio::test]
async fn item_17_the_payloads_kept_are_those_of_the_messages_there_are() {
    on_every_queue_store(async |bench| {
        for (id, payload) in [("a", &b"four"[..]), ("b", b""), ("c", b"seven..")] {
            bench.one(SHARD, enqueue(id, 0, payload)).await;
        }
        let all = bench.stores.reader.totals(SHARD).await.expect("a read").totals.all();
        assert_eq!((all.messages, all.bytes), (3, 11));
        let token = bench.lease(SHARD).await;
        bench.all(SHARD, vec![settle(token, SettleAction::Complete)]).await;
        bench.clock.advance(secs(3_600));
        bench.all(SHARD, vec![sweep()]).await;
        let all = bench.stores.reader.totals(SHARD).await.expect("a read").totals.all();
        assert_eq!((all.messages, all.bytes), (2, 7));
    })
    .await;
}

#[tokio::test]
async fn item_18_a_removed_message_is_not_served_and_frees_its_payload() {
    on_every_queue_store(async |bench| {
        bench.one(SHARD, enqueue("a", 0, b"work")).await;
        assert_eq!(settled(&bench.one(SHARD, cancel("a")).await.reply), MessageState::Canceled);
        assert!(bench.served(SHARD, 1).await.is_empty());
        bench.clock.advance(secs(3_600));
        bench.all(SHARD, vec![sweep()]).await;
        let left = bench.stores.reader.totals(SHARD).await.expect("a read").totals.all();
        assert_eq!((left.messages, left.bytes, bench.found("a").await), (0, 0, None));
    })
    .await;
}

#[tokio::test]
async fn item_19_clearing_a_queue_takes_what_waits_and_deleting_it_takes_all() {
    on_every_queue_store(async |bench| {
        bench.all(SHARD, vec![enqueue("leased", 0, b"")]).await;
        let token = bench.lease(SHARD).await;
        bench.all(SHARD, vec![enqueue("waits", 0, b""), enqueue_later("later", secs(60))]).await;
        let through = bench.stores.reader.totals(SHARD).await.expect("a read").sequence;
        let purge = Command::Purge(BulkRequest { through, max: 256, ..BulkRequest::default() });
        let purged = bench.one(SHARD, ShardCommand::of(purge)).await.reply;
        assert_eq!(purged, Ok(Reply::Walked { count: 2, next: None }));
        assert_eq!(bench.count(SHARD, MessageState::Canceled).await, 2);
        assert_eq!(
            settled(&bench.one(SHARD, settle(token, SettleAction::Complete)).await.reply),
            MessageState::Completed
        );
        let deleted = bench.one(SHARD, ShardCommand::of(Command::Delete)).await.reply;
        assert_eq!(deleted, Ok(Reply::Deleted { messages: 3 }));
        assert_eq!(bench.one(SHARD, dequeue(1)).await.reply, Err(Refusal::Deleted));
        assert_eq!(bench.stores.reader.totals(SHARD).await.expect("a read").totals.all().messages, 0);
    })
    .await;
}

/// A deviation: dyno-queues stores one copy on each shard.
#[tokio::test]
async fn item_20_an_id_that_comes_again_is_the_message_that_is_there() {
    on_every_queue_store(async |bench| {
        assert!(is_new(&bench.one(SHARD, enqueue("a", 0, b"")).await.reply));
        for _ in 0..2 {
            let again = bench.one(SHARD, enqueue("a", 0, b"")).await.reply;
            assert!(matches!(again, Ok(Reply::Enqueued { already_enqueued: true, .. })), "{again:?}");
        }
        assert_eq!(bench.count(SHARD, MessageState::Pending).await, 1);
        let shards = match bench.capabilities().ids {
            IdScope::Queue => vec![SHARD, OTHER_SHARD],
            IdScope::Shard => vec![SHARD],
        };
        for shard in shards {
            let elsewhere = sent("a", |message| message.routing = Some(routing("eu")));
            assert_eq!(bench.one(shard, elsewhere).await.reply, Err(Refusal::TokenReused), "another shard key");
        }
    })
    .await;
}

#[tokio::test]
async fn item_21_a_message_is_served_once_and_by_the_shard_of_its_hash() {
    on_every_queue_store(async |bench| {
        let nothing = Metadata::default();
        let shard_of = |id: &str| {
            let id = MessageId::new(id).expect("a valid id");
            let number = route(&settings(), 2, &id, None, &nothing).expect("a route").shard;
            ShardId { queue: QUEUE, number }
        };
        let ids: Vec<String> = (0..40).map(|number| format!("m-{number}")).collect();
        for id in &ids {
            bench.one(shard_of(id), enqueue(id, 0, b"")).await;
        }
        let mut all = Vec::new();
        for number in 0..2 {
            let shard = ShardId { queue: QUEUE, number };
            let served = bench.served(shard, 100).await;
            assert!(!served.is_empty() && served.iter().all(|id| shard_of(id) == shard), "{served:?}");
            all.extend(served);
        }
        all.sort_unstable();
        let mut wanted = ids;
        wanted.sort_unstable();
        assert_eq!(all, wanted);
    })
    .await;
}

/// A deviation: dyno-queues waits until it has as many as asked for.
#[tokio::test]
async fn item_22_a_dequeue_of_more_than_there_are_gets_them_at_once() {
    on_every_queue_store(async |bench| {
        bench.all(SHARD, (0..3).map(|number| enqueue(&format!("m-{number}"), 0, b"")).collect()).await;
        let asked = ShardCommand::of(Command::Dequeue(Dequeue { max: 5, ..Dequeue::default() }));
        let Ok(Reply::Leases { leases, completeness, .. }) = bench.one(SHARD, asked).await.reply else {
            panic!("leases");
        };
        assert_eq!((leases.len(), completeness), (3, Completeness::Complete));
    })
    .await;
}
