//! Items 24 to 43: what the queues under Conductor ask, Orkes' and those of its QueueDAO.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tallystone_domain::queue::command::{Completeness, FailureReport, MessageUpdate};
use tallystone_domain::queue::messages::message::{Fence, LeaseToken, MessageKey, MessageRef};
use tallystone_domain::queue::messages::settlement::SettleAction;
use tallystone_domain::queue::{Command, MessageState, QueueId, Refusal, Reply, Settings, ShardId};
use tallystone_ports::{Clock, ShardCommand};
use tokio::task::JoinSet;

use super::{by_id, cancel, extend, ms, secs, settled, sweep, update};
use crate::given::T0;
use crate::queue_given::{
    News, OTHER_SHARD, SHARD, dequeue, enqueue, enqueue_later, on_every_queue_store, settings, settle,
};

#[tokio::test]
async fn item_24_a_poll_of_an_empty_queue_is_empty() {
    on_every_queue_store(async |bench| {
        assert!(bench.served(SHARD, 100).await.is_empty());
        bench.one(SHARD, enqueue_later("a", secs(5))).await;
        assert!(bench.served(SHARD, 100).await.is_empty(), "nor is there anything that is not due");
    })
    .await;
}

#[tokio::test]
async fn items_25_and_38_whether_a_message_is_there_is_known_in_every_state() {
    on_every_queue_store(async |bench| {
        assert_eq!(bench.state("a").await, None);
        bench.one(SHARD, enqueue_later("a", secs(1))).await;
        assert_eq!(bench.state("a").await, Some(MessageState::Invisible));
        bench.clock.advance(secs(1));
        let token = bench.lease(SHARD).await;
        assert_eq!(bench.state("a").await, Some(MessageState::Running));
        bench.all(SHARD, vec![settle(token, SettleAction::Complete)]).await;
        assert_eq!(bench.state("a").await, Some(MessageState::Completed));
        bench.one(SHARD, enqueue("b", 0, b"")).await;
        assert_eq!(bench.state("b").await, Some(MessageState::Pending));
        bench.one(SHARD, cancel("b")).await;
        assert_eq!(bench.state("b").await, Some(MessageState::Canceled));
        bench.one(SHARD, enqueue("c", 0, b"")).await;
        for attempts_left in (0..settings().default_attempts).rev() {
            let token = bench.lease(SHARD).await;
            let failure = FailureReport { delay: Some(secs(0)), ..FailureReport::default() };
            bench.one(SHARD, ShardCommand::of(Command::Settle { token, verb: SettleAction::Fail, failure })).await;
            let wanted = if attempts_left == 0 { MessageState::Errored } else { MessageState::Pending };
            assert_eq!(bench.state("c").await, Some(wanted));
        }
        // Errored messages are kept for two hours, the others for one.
        bench.clock.advance(secs(2 * 3_600));
        bench.all(SHARD, vec![sweep()]).await;
        for id in ["a", "b", "c"] {
            assert_eq!(bench.state(id).await, None, "{id} is gone");
        }
    })
    .await;
}

#[tokio::test]
async fn item_26_what_never_was_is_not_found() {
    on_every_queue_store(async |bench| {
        bench.one(SHARD, enqueue("a", 0, b"")).await;
        assert_eq!(bench.found("b").await, None);
        let key = MessageRef::Key(MessageKey { shard: 0, epoch: 1, sequence: 2 });
        assert_eq!(bench.stores.reader.get(SHARD, key).await.expect("a read"), None);
    })
    .await;
}

#[tokio::test]
async fn item_27_a_lease_that_nobody_has_cannot_be_extended() {
    on_every_queue_store(async |bench| {
        bench.one(SHARD, enqueue("a", 0, b"")).await;
        for sequence in [1, 9] {
            let key = MessageKey { shard: 0, epoch: 1, sequence };
            let token = LeaseToken { key, fence: Fence { epoch: 1, serial: 1 } };
            assert_eq!(bench.one(SHARD, extend(token, secs(9))).await.reply, Err(Refusal::LeaseLost));
        }
        assert_eq!(bench.state("a").await, Some(MessageState::Pending));
    })
    .await;
}

#[tokio::test]
async fn item_28_a_time_set_only_if_sooner_is_never_put_off() {
    on_every_queue_store(async |bench| {
        let at = bench.one(SHARD, enqueue_later("a", secs(20))).await.at;
        let set = |seconds| {
            let visible_at = Some(at + secs(seconds));
            update("a", MessageUpdate { visible_at, only_if_sooner: true, ..MessageUpdate::default() })
        };
        for (seconds, wanted, rows) in [(30, 20, 0), (20, 20, 0), (10, 10, 1), (15, 10, 0)] {
            let answer = bench.one(SHARD, set(seconds)).await;
            assert_eq!(
                (settled(&answer.reply), answer.transitions.len()),
                (MessageState::Invisible, rows),
                "{seconds} s"
            );
            assert_eq!(bench.found("a").await.expect("it is there").head.visible_at, at + secs(wanted));
        }
        let unknown = MessageUpdate { visible_at: Some(at), only_if_sooner: true, ..MessageUpdate::default() };
        assert_eq!(bench.one(SHARD, update("b", unknown)).await.reply, Err(Refusal::NotFound));
    })
    .await;
}

/// A deviation: Conductor's queues take the second push as a new due time. UpdateMessage does that here.
#[tokio::test]
async fn item_29_an_enqueue_that_comes_again_changes_nothing() {
    on_every_queue_store(async |bench| {
        let at = bench.one(SHARD, enqueue_later("a", secs(20))).await.at;
        let again = bench.one(SHARD, enqueue_later("a", secs(5))).await;
        assert_eq!(again.transitions, []);
        assert_eq!(bench.found("a").await.expect("it is there").head.visible_at, at + secs(20));
        let anew = MessageUpdate { visible_at: Some(at + secs(5)), ..MessageUpdate::default() };
        bench.all(SHARD, vec![update("a", anew)]).await;
        bench.clock.advance(secs(5));
        assert_eq!(bench.served(SHARD, 1).await, ["a"]);
    })
    .await;
}

#[tokio::test]
async fn item_30_lower_priorities_are_served_first() {
    on_every_queue_store(async |bench| {
        for (id, priority) in [("d", 1 << 53), ("b", -1), ("c", 0), ("a", -(1 << 53))] {
            bench.one(SHARD, enqueue(id, priority, b"")).await;
        }
        assert_eq!(bench.served(SHARD, 9).await, ["a", "b", "c", "d"]);
    })
    .await;
}

#[tokio::test]
async fn item_31_a_delayed_message_joins_at_its_priority() {
    on_every_queue_store(async |bench| {
        bench.all(SHARD, vec![enqueue_later("urgent", secs(5)), enqueue("b", 1, b""), enqueue("c", 2, b"")]).await;
        assert_eq!(bench.served(SHARD, 1).await, ["b"]);
        bench.clock.advance(secs(5));
        assert_eq!(bench.served(SHARD, 9).await, ["urgent", "c"]);
    })
    .await;
}

#[tokio::test]
async fn item_32_many_leases_are_settled_in_one_call_each_with_its_answer() {
    on_every_queue_store(async |bench| {
        bench.all(SHARD, (0..5).map(|number| enqueue(&format!("m-{number}"), 0, b"")).collect()).await;
        let mut tokens: Vec<_> = bench.dequeue(SHARD, 5).await.into_iter().map(|(lease, _)| lease.token).collect();
        tokens[2].fence.serial += 100;
        let settlements = tokens.into_iter().map(|token| settle(token, SettleAction::Complete)).collect();
        let answers = bench.apply(SHARD, settlements).await.into_iter();
        let replies: Vec<_> = answers.map(|answer| answer.expect("the store takes it").reply).collect();
        for (number, reply) in replies.iter().enumerate() {
            match number {
                2 => assert_eq!(*reply, Err(Refusal::LeaseLost)),
                _ => assert_eq!(settled(reply), MessageState::Completed), // the others
            }
        }
    })
    .await;
}

#[tokio::test]
async fn item_33_a_message_is_removed_while_it_waits_and_asked_for_while_it_runs() {
    on_every_queue_store(async |bench| {
        bench.all(SHARD, vec![enqueue("runs", 0, b"")]).await;
        let token = bench.lease(SHARD).await;
        bench.all(SHARD, vec![enqueue("waits", 0, b""), enqueue_later("later", secs(9))]).await;
        for (id, state) in
            [("waits", MessageState::Canceled), ("later", MessageState::Canceled), ("runs", MessageState::Running)]
        {
            assert_eq!(settled(&bench.one(SHARD, cancel(id)).await.reply), state, "{id}");
        }
        let told = bench.one(SHARD, extend(token, secs(30))).await.reply;
        assert!(matches!(told, Ok(Reply::Extended { cancel_requested: true, .. })), "its worker is told: {told:?}");
        assert_eq!(
            settled(&bench.one(SHARD, settle(token, SettleAction::Release)).await.reply),
            MessageState::Canceled
        );
    })
    .await;
}

#[tokio::test]
async fn item_34_the_ready_size_counts_what_is_due_and_the_head_tells_what_is_first() {
    on_every_queue_store(async |bench| {
        let news = Arc::new(News::default());
        bench.stores.shards.listen(news.clone());
        let commands = vec![enqueue("a", 7, b""), enqueue("b", 5, b""), enqueue_later("c", secs(9))];
        bench.all(SHARD, commands).await;
        let totals = bench.stores.reader.totals(SHARD).await.expect("a read");
        assert_eq!((totals.view.ready(), totals.view.head, totals.view.next_event_in), (2, Some(5), Some(secs(9))));
        assert_eq!(news.newest(SHARD).map(|view| (view.ready(), view.head)), Some((2, Some(5))));
    })
    .await;
}

#[tokio::test]
async fn item_34_the_lag_is_the_age_of_the_oldest_ready_message() {
    on_every_queue_store(async |bench| {
        let lag = async || bench.stores.reader.totals(SHARD).await.expect("a read").view.ready_for;
        // As old as a message that has been ready since so long after the start, to the precision of the store.
        let precision = bench.capabilities().ready_age_precision;
        let age = |since: Duration| Some(bench.clock.now().since((T0 + since).floor_to(precision)));
        assert_eq!(lag().await, None, "nothing waits");
        bench.all(SHARD, vec![enqueue("worse", 7, b""), enqueue_later("later", secs(60))]).await;
        bench.clock.advance(secs(20));
        bench.all(SHARD, vec![enqueue("better", 5, b"")]).await;
        assert_eq!(lag().await, age(secs(0)), "of the oldest, not of the best");
        assert_eq!(bench.served(SHARD, 1).await, ["better"]);
        assert_eq!(lag().await, age(secs(0)), "it is not the oldest that was taken");
        assert_eq!(bench.served(SHARD, 1).await, ["worse"]);
        assert_eq!(lag().await, None, "what is leased or invisible is not ready");
        bench.clock.advance(secs(50));
        bench.all(SHARD, vec![sweep()]).await;
        assert_eq!(lag().await, age(secs(70)), "what comes back is ready anew");
        bench.clock.advance(secs(9));
        bench.all(SHARD, vec![enqueue("last", 1, b"")]).await;
        assert_eq!(lag().await, age(secs(70)));
        bench.all(SHARD, ["worse", "better", "later"].map(cancel).into()).await;
        assert_eq!(lag().await, age(secs(79)), "only the last is left");
    })
    .await;
}

#[tokio::test]
async fn item_35_ten_thousand_messages_are_drained_in_big_batches() {
    on_every_queue_store(async |bench| {
        let shard = bench.queue_of(Settings { quota_messages: 20_000, ..settings() }).await;
        for page in 0..20 {
            bench.all(shard, (0..500).map(|number| enqueue(&format!("{page}-{number}"), 0, b"")).collect()).await;
        }
        let mut drained = 0;
        loop {
            let leases = bench.dequeue(shard, 100).await;
            if leases.is_empty() {
                break;
            }
            drained += leases.len();
            bench
                .all(shard, leases.iter().map(|(lease, _)| settle(lease.token, SettleAction::Complete)).collect())
                .await;
        }
        assert_eq!((drained, bench.count(shard, MessageState::Completed).await), (10_000, 10_000));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn item_36_pollers_at_once_never_get_the_same_message() {
    on_every_queue_store(async |bench| {
        bench.all(SHARD, (0..400).map(|number| enqueue(&format!("m-{number}"), 0, b"")).collect()).await;
        let bench = Arc::new(bench);
        let mut pollers = JoinSet::new();
        for size in [1, 3, 7, 20] {
            let bench = Arc::clone(&bench);
            pollers.spawn(async move {
                let mut all = Vec::new();
                loop {
                    let served = bench.served(SHARD, size).await;
                    if served.is_empty() {
                        return all;
                    }
                    all.extend(served);
                }
            });
        }
        let all = pollers.join_all().await.concat();
        assert_eq!((all.len(), all.iter().collect::<BTreeSet<_>>().len()), (400, 400));
    })
    .await;
}

#[tokio::test]
async fn item_37_deferred_messages_appear_in_the_order_of_their_times() {
    on_every_queue_store(async |bench| {
        for (id, seconds) in [("c", 3), ("a", 1), ("e", 5), ("b", 2), ("d", 4)] {
            bench.one(SHARD, enqueue_later(id, secs(seconds))).await;
        }
        let mut appeared = Vec::new();
        for _ in 0..50 {
            bench.clock.advance(ms(100));
            appeared.extend(bench.served(SHARD, 9).await);
        }
        assert_eq!(appeared, ["a", "b", "c", "d", "e"]);
    })
    .await;
}

#[tokio::test]
async fn item_39_expired_leases_return_by_a_sweep_of_their_own_queue() {
    on_every_queue_store(async |bench| {
        let other = bench.queue_of(settings()).await;
        for shard in [SHARD, OTHER_SHARD, other] {
            bench.all(shard, (0..3).map(|number| enqueue(&format!("m-{number}"), 0, b"")).collect()).await;
            assert_eq!(bench.served(shard, 9).await.len(), 3);
        }
        bench.clock.advance(secs(30));
        let swept = Reply::Touched { count: 3, completeness: Completeness::Complete };
        assert_eq!(bench.one(SHARD, sweep()).await.reply, Ok(swept.clone()));
        assert_eq!(bench.count(SHARD, MessageState::Pending).await, 3);
        assert_eq!(bench.count(other, MessageState::Running).await, 3, "the other queue waits for its own");
        for shard in [OTHER_SHARD, other] {
            assert_eq!(bench.one(shard, sweep()).await.reply, Ok(swept.clone()));
            assert_eq!(bench.count(shard, MessageState::Pending).await, 3);
        }
    })
    .await;
}

#[tokio::test]
async fn item_40_a_message_is_postponed_by_whoever_has_it_or_while_nobody_does() {
    on_every_queue_store(async |bench| {
        let at = bench.one(SHARD, enqueue("a", 0, b"")).await.at;
        let later = MessageUpdate { visible_at: Some(at + secs(10)), ..MessageUpdate::default() };
        assert_eq!(settled(&bench.one(SHARD, update("a", later)).await.reply), MessageState::Invisible);
        bench.clock.advance(secs(10));
        let token = bench.lease(SHARD).await;
        let failure = FailureReport { delay: Some(secs(5)), ..FailureReport::default() };
        let fail = ShardCommand::of(Command::Settle { token, verb: SettleAction::Fail, failure });
        assert_eq!(settled(&bench.one(SHARD, fail).await.reply), MessageState::Invisible);
        bench.clock.advance(ms(4_999));
        assert!(bench.served(SHARD, 1).await.is_empty());
        bench.clock.advance(ms(1));
        assert_eq!(bench.served(SHARD, 1).await, ["a"]);
    })
    .await;
}

#[tokio::test]
async fn item_41_a_time_in_the_past_means_now() {
    on_every_queue_store(async |bench| {
        let at = bench.one(SHARD, enqueue_later("a", secs(3_600))).await.at;
        let now = MessageUpdate { visible_at: Some(at - secs(60)), ..MessageUpdate::default() };
        assert_eq!(settled(&bench.one(SHARD, update("a", now)).await.reply), MessageState::Pending);
        assert_eq!(bench.served(SHARD, 1).await, ["a"]);
    })
    .await;
}

#[tokio::test]
async fn item_42_what_waits_is_listed_whether_due_or_not() {
    on_every_queue_store(async |bench| {
        let commands = vec![enqueue("due", 0, b""), enqueue_later("later", secs(60)), enqueue("due too", 0, b"")];
        bench.all(SHARD, commands).await;
        for (state, wanted) in [(MessageState::Pending, &["due", "due too"][..]), (MessageState::Invisible, &["later"])]
        {
            let read = bench.stores.reader.list(SHARD, state, 0, 9).await.expect("a read").messages;
            let ids: Vec<_> = read.iter().map(|message| message.head.id.to_string()).collect();
            assert_eq!(ids, wanted);
        }
        assert_eq!(bench.peeked(SHARD, 9).await, ["due", "due too"], "a peek shows what would be served now");
    })
    .await;
}

#[tokio::test]
async fn item_43_each_queue_and_shard_tells_its_own_sizes() {
    on_every_queue_store(async |bench| {
        let other = bench.queue_of(settings()).await;
        for (shard, count) in [(SHARD, 1), (OTHER_SHARD, 2), (other, 3)] {
            bench.all(shard, (0..count).map(|number| enqueue(&format!("m-{number}"), 0, b"")).collect()).await;
            bench.lease(shard).await;
        }
        for (shard, count) in [(SHARD, 1), (OTHER_SHARD, 2), (other, 3)] {
            let sizes =
                (bench.count(shard, MessageState::Pending).await, bench.count(shard, MessageState::Running).await);
            assert_eq!(sizes, (count - 1, 1), "{shard:?}");
        }
        let absent = ShardId { queue: QueueId(77), number: 0 };
        bench.stores.reader.totals(absent).await.expect_err("there is no such queue");
        assert_eq!(bench.one(SHARD, dequeue(1)).await.messages.len(), 0);
        assert!(bench.stores.reader.get(other, by_id("m-2")).await.expect("a read").is_some());
    })
    .await;
}
