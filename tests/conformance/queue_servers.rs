//! What several servers on one store of queues rely on.

use std::sync::Arc;

use tallystone_domain::queue::messages::message::MessageRef;
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::queue::messages::settlement::SettleAction;
use tallystone_domain::queue::{Command, QueueId, Refusal, Reply, Settings, ShardId, ShardSettings};
use tallystone_ports::ShardCommand;

use crate::queue_given::{
    News, QueueBench, configure_with, enqueue, is_new, on_every_durable_queue_store, on_every_queue_store, settings,
    settle,
};

const VERSIONED: QueueId = QueueId(8);
const SHARD: ShardId = ShardId { queue: VERSIONED, number: 1 };

/// A version whose settings give messages so many attempts.
fn version(version: u64, attempts: u32) -> ShardSettings {
    ShardSettings { version, ..Settings { default_attempts: attempts, ..settings() }.into() }
}

async fn configure(bench: &QueueBench, settings: ShardSettings) {
    assert_eq!(bench.one(SHARD, configure_with(settings)).await.reply, Ok(Reply::Configured));
}

/// Enqueues a message, and returns the attempts that the settings in force give it.
async fn attempts_given(bench: &QueueBench, id: &str) -> u32 {
    assert!(is_new(&bench.one(SHARD, enqueue(id, 0, b"")).await.reply));
    let message = MessageRef::Id(MessageId::new(id).expect("a valid id"), None);
    let (found, _) = bench.stores.reader.get(SHARD, message).await.expect("a read").expect("it is there");
    found.head.max_attempts
}

#[tokio::test]
async fn queue_store_law_19_of_settings_in_any_order_the_newest_stay() {
    on_every_queue_store(async |bench| {
        bench.stores.shards.create(VERSIONED, 2, version(4, 40)).await.expect("a new queue");
        configure(&bench, version(3, 30)).await;
        assert_eq!(attempts_given(&bench, "older than at the creation").await, 40);
        configure(&bench, version(7, 70)).await;
        configure(&bench, version(7, 71)).await;
        configure(&bench, version(6, 60)).await;
        assert_eq!(attempts_given(&bench, "equal and older").await, 70);
        configure(&bench, version(8, 80)).await;
        assert_eq!(attempts_given(&bench, "newer").await, 80);
    })
    .await;
}

#[tokio::test]
async fn queue_store_law_19_blocks_come_and_go_with_their_version() {
    on_every_queue_store(async |bench| {
        let full = |version| ShardSettings { version, enqueue_blocked: Some("full".into()), ..settings().into() };
        bench.stores.shards.create(VERSIONED, 2, full(1)).await.expect("a new queue");
        let refused = async || bench.one(SHARD, enqueue("a", 0, b"")).await.reply;
        assert_eq!(refused().await, Err(Refusal::EnqueueBlocked("full".into())), "from the creation on");
        configure(&bench, version(3, 3)).await;
        configure(&bench, full(2)).await;
        assert_eq!(attempts_given(&bench, "the older block came late").await, 3);
    })
    .await;
}

#[tokio::test]
async fn queue_store_law_19_settings_do_not_go_back_over_restarts() {
    on_every_durable_queue_store(async |bench, ending| {
        bench.stores.shards.create(VERSIONED, 2, version(4, 40)).await.expect("a new queue");
        let bench = bench.reopen(ending).await;
        configure(&bench, version(3, 30)).await;
        assert_eq!(attempts_given(&bench, "older than at the creation").await, 40);
        configure(&bench, version(6, 40)).await;
        let bench = bench.reopen(ending).await;
        configure(&bench, version(5, 50)).await;
        assert_eq!(attempts_given(&bench, "older, though the newest changed only the version").await, 40);
    })
    .await;
}

#[tokio::test]
async fn queue_store_law_7_arrivals_are_part_of_the_shard() {
    on_every_durable_queue_store(async |bench, ending| {
        bench.stores.shards.create(VERSIONED, 2, version(1, 3)).await.expect("a new queue");
        for id in ["a", "b"] {
            assert!(is_new(&bench.one(SHARD, enqueue(id, 0, b"")).await.reply));
        }
        let (lease, _) = bench.dequeue(SHARD, 1).await.remove(0);
        let released = bench.one(SHARD, settle(lease.token, SettleAction::Release)).await;
        assert_eq!(released.view.arrived, 3, "two enqueues and a release");
        let bench = bench.reopen(ending).await;
        let totals = bench.stores.reader.totals(SHARD).await.expect("totals");
        assert_eq!(totals.view.arrived, 3, "the process does not count");
    })
    .await;
}

#[tokio::test]
async fn queue_store_law_7_all_listeners_hear_that_a_running_message_should_be_canceled() {
    on_every_queue_store(async |bench| {
        bench.stores.shards.create(VERSIONED, 2, version(1, 3)).await.expect("a new queue");
        let listeners = [Arc::new(News::default()), Arc::new(News::default())];
        listeners.iter().for_each(|listener| bench.stores.shards.listen(listener.clone()));
        for id in ["runs", "waits"] {
            assert!(is_new(&bench.one(SHARD, enqueue(id, 0, b"")).await.reply));
        }
        let (lease, _) = bench.dequeue(SHARD, 1).await.remove(0);
        for id in ["runs", "runs", "waits"] {
            let message = MessageRef::Id(MessageId::new(id).expect("a valid id"), None);
            let cancel = Command::CancelMessage { message, reason: "asked".into() };
            bench.one(SHARD, ShardCommand::of(cancel)).await;
        }
        for listener in listeners {
            assert_eq!(*listener.cancels.lock(), [(SHARD, lease.token.key)], "once, and only what runs");
        }
    })
    .await;
}
