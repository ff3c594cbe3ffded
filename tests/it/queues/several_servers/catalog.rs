//! One catalog: what a server creates, changes or deletes is followed by the others, and races end as one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tallystone::domain::Reason;
use tallystone::domain::limits::CATALOG_FOLLOWED_EVERY;
use tallystone::domain::queue::{
    Command, Durability, MessageState, QueueId, QueueSpec, Settings, ShardId, ShardSettings,
};
use tallystone::engine::catalog::FollowedCatalog;
use tallystone::engine::queues::{DeletionRequest, QueueDraft, QueueError};
use tallystone::ports::ShardCommand;

use super::watched_shards::{CallFate, WatchedShards};
use super::{LOOPS, SharedStore, SharingServer, author, draft, eventually, name};
use crate::support::judging::{Judged, Judging};

/// The races that each test runs.
const RACES: usize = 40;

fn attempts(queue: &str, attempts: u32) -> QueueDraft {
    QueueDraft { default_attempts: Some(attempts), ..draft(queue) }
}

/// The attempts that the shards give a new message, whatever the servers think.
async fn attempts_given(server: &SharingServer, queue: &str) -> u32 {
    server.enqueue(queue).await.expect("enqueued");
    let leased = server.dequeue(queue, 1).await.pop().expect("it is there");
    leased.message.head.max_attempts
}

fn deletion(queue: &str, token: Option<&str>) -> DeletionRequest {
    DeletionRequest { name: name(queue), id: None, expected: None, token: token.map(str::to_owned) }
}

async fn shard_owners(store: &SharedStore) -> Vec<QueueId> {
    store.stores.shards.queues().await.expect("a read").into_iter().map(|queue| queue.id).collect()
}

#[tokio::test]
async fn a_queue_of_another_server_is_served_within_a_second_with_what_was_enqueued_before() {
    let store = SharedStore::new();
    let (one, other) = (store.server().await, store.server().await);
    one.create(QueueDraft { shards: Some(4), ..draft("mail") }).await.expect("created");
    for _ in 0..8 {
        one.enqueue("mail").await.expect("enqueued");
    }
    assert!(other.queues.catalog.get(&name("mail")).is_err(), "it is not followed yet");
    store.clock.advance(CATALOG_FOLLOWED_EVERY);
    eventually("the queue is followed", async || other.queues.catalog.get(&name("mail")).is_ok()).await;
    eventually("all shards have reported", async || {
        other.queues.backlogs().iter().map(|backlog| backlog.messages[MessageState::Pending as usize]).sum::<u64>() == 8
    })
    .await;
    assert_eq!(other.dequeue("mail", 100).await.len(), 8);
}

#[tokio::test]
async fn a_queue_that_another_server_has_just_created_is_served_at_once() {
    let store = SharedStore::new();
    let (one, other) = (store.server().await, store.server().await);
    for (queue, asked) in [("enqueued", 0), ("dequeued", 1), ("updated", 2), ("deleted", 3), ("looked-up", 4)] {
        one.create(draft(queue)).await.expect("created");
        assert!(other.queues.catalog.get(&name(queue)).is_err(), "it is not followed yet");
        match asked {
            0 => other.enqueue(queue).await.expect("enqueued"),
            1 => assert_eq!(other.dequeue(queue, 1).await.len(), 0),
            2 => drop(
                other.queues.catalog.update(attempts(queue, 5), Vec::new(), None, author()).await.expect("updated"),
            ),
            3 => drop(other.queues.catalog.delete(deletion(queue, None), author()).await.expect("deleted")),
            _ => other.queues.catalog.look_up(&name(queue)).await.expect("a read"),
        }
        assert_eq!(other.queues.catalog.get(&name(queue)).is_ok(), queue != "deleted");
    }
    let unknown = other.enqueue("unknown").await.expect_err("nobody created it");
    assert_eq!(unknown.reason(), Reason::QueueNotFound);
}

#[tokio::test]
async fn changes_and_deletions_of_another_server_are_followed() {
    let store = SharedStore::new();
    let (one, other) = (store.server().await, store.server().await);
    one.create(draft("mail")).await.expect("created");
    other.queues.catalog.follow().await.expect("a read");
    one.queues.catalog.update(attempts("mail", 5), Vec::new(), None, author()).await.expect("updated");
    assert_eq!(attempts_given(&other, "mail").await, 5, "the shards have it at once");
    other.queues.catalog.follow().await.expect("a read");
    assert_eq!(other.queues.catalog.get(&name("mail")).expect("it is there").version, 2);
    other.queues.catalog.delete(deletion("mail", None), author()).await.expect("deleted");
    one.queues.catalog.follow().await.expect("a read");
    assert!(one.queues.catalog.get(&name("mail")).is_err());
}

#[tokio::test]
async fn settings_that_a_server_committed_and_did_not_apply_are_applied_by_the_others() {
    let store = SharedStore::new();
    let refuses = Arc::new(AtomicBool::new(false));
    let is_refusing = Arc::clone(&refuses);
    let faulty = Judging::before(store.stores.clone(), move |command| match command {
        Command::Configure(_) if is_refusing.load(Ordering::SeqCst) => Judged::Refused,
        _ => Judged::Taken, // the fault is in changes of settings only
    });
    let (one, other) = (store.server_on(faulty).await, store.server().await);
    one.create(draft("mail")).await.expect("created");
    refuses.store(true, Ordering::SeqCst);
    one.queues
        .catalog
        .update(attempts("mail", 5), Vec::new(), None, author())
        .await
        .expect_err("the shards do not answer");
    assert_eq!(attempts_given(&one, "mail").await, 3, "the shards have the first version");
    store.clock.advance(CATALOG_FOLLOWED_EVERY);
    eventually("the other server has applied them", async || {
        other.queues.catalog.get(&name("mail")).is_ok() && attempts_given(&one, "mail").await == 5
    })
    .await;
}

#[tokio::test]
async fn settings_that_come_late_from_a_slow_server_change_nothing() {
    let store = SharedStore::new();
    let server = store.server().await;
    server.create(draft("mail")).await.expect("created");
    let first = server.queues.catalog.get(&name("mail")).expect("it is there").shard_settings();
    server.queues.catalog.update(attempts("mail", 5), Vec::new(), None, author()).await.expect("updated");
    let queue = shard_owners(&store).await[0];
    let late = ShardCommand::of(Command::Configure(Box::new(first)));
    let answer = store.stores.shards.apply(ShardId { queue, number: 0 }, vec![late]).await.remove(0);
    assert!(answer.expect("taken").reply.is_ok(), "it is answered as if it had");
    assert_eq!(attempts_given(&server, "mail").await, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_creations_of_one_name_make_one_queue() {
    let store = SharedStore::new();
    let (one, other) = (store.server().await, store.server().await);
    for race in 0..RACES {
        let queue = format!("mail-{race}");
        let (first, second) = tokio::join!(
            one.queues.catalog.create(draft(&queue), author()),
            other.queues.catalog.create(draft(&queue), author()),
        );
        assert_eq!(first.expect("created").id, second.expect("the same settings").id);
    }
    assert_eq!(shard_owners(&store).await.len(), RACES, "the losers leave no shards");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_creations_with_other_settings_make_one_queue_and_one_refusal() {
    let store = SharedStore::new();
    let (one, other) = (store.server().await, store.server().await);
    for race in 0..RACES {
        let queue = format!("mail-{race}");
        let (first, second) = tokio::join!(one.create(attempts(&queue, 5)), other.create(attempts(&queue, 6)));
        let refused = first.err().xor(second.err()).expect("one of them is refused");
        assert_eq!(refused.reason(), Reason::QueueExists);
    }
    assert_eq!(shard_owners(&store).await.len(), RACES);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_first_enqueues_by_template_both_reach_one_queue() {
    let store = SharedStore::new();
    let one = store.server().await;
    one.create(QueueDraft { template_for: Some("timed/".into()), ..draft("timed-task") }).await.expect("a template");
    let other = store.server().await;
    for race in 0..RACES {
        let queue = format!("timed/{race}");
        let (first, second) = tokio::join!(one.enqueue(&queue), other.enqueue(&queue));
        first.expect("enqueued");
        second.expect("enqueued");
        let depth = one.queues.inspect.depth(&name(&queue), Default::default()).await.expect("a depth");
        assert_eq!(depth.of(MessageState::Pending), 2, "both are in one queue");
    }
    assert_eq!(shard_owners(&store).await.len(), RACES);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_deletions_delete_once_and_repeats_of_one_request_get_one_answer() {
    let store = SharedStore::new();
    let one = store.server().await;
    for race in 0..RACES {
        one.create(draft(&format!("mail-{race}"))).await.expect("created");
        one.enqueue(&format!("mail-{race}")).await.expect("enqueued");
    }
    let other = store.server().await;
    for race in 0..RACES {
        let token = (race % 2 == 0).then_some("once");
        let sent = || deletion(&format!("mail-{race}"), token);
        let (first, second) =
            tokio::join!(one.queues.catalog.delete(sent(), author()), other.queues.catalog.delete(sent(), author()));
        match token {
            Some(_) => assert_eq!([first.expect("deleted"), second.expect("a repeat")], [1, 1]),
            None => {
                let missing = |result: &Result<u64, QueueError>| {
                    result.as_ref().is_err_and(|error| error.reason() == Reason::QueueNotFound)
                };
                assert!(missing(&first) ^ missing(&second), "{first:?} {second:?}");
                assert!(first.is_ok() ^ second.is_ok());
            }
        }
    }
    assert_eq!(shard_owners(&store).await, []);
}

/// A queue whose shards another server has created and not named yet.
async fn unnamed(store: &SharedStore, id: u128) {
    let spec = QueueSpec { settings: Settings::default(), ..draft("new").resolve_new(None).expect("valid defaults") };
    let settings = ShardSettings { version: 1, ..spec.settings.into() };
    store.stores.shards.create(QueueId(id), 1, settings).await.expect("created");
}

#[tokio::test]
async fn shards_without_a_name_are_dropped_when_they_are_older_than_an_hour_and_not_before() {
    let store = SharedStore::new();
    unnamed(&store, 7).await;
    let server = store.server().await;
    server.create(draft("mail")).await.expect("created");
    assert_eq!(shard_owners(&store).await.len(), 2, "a start drops no young ones");
    store.clock.advance(Duration::from_secs(3_000));
    store.clock.wait_for_sleepers(LOOPS).await;
    unnamed(&store, 8).await;
    assert_eq!(shard_owners(&store).await.len(), 3, "not after 50 minutes either");
    store.clock.advance(Duration::from_secs(900));
    eventually("the old one is dropped", async || !shard_owners(&store).await.contains(&QueueId(7))).await;
    assert_eq!(shard_owners(&store).await.len(), 2, "the young one and the queue stay");
    store.clock.wait_for_sleepers(LOOPS).await;
    store.clock.advance(Duration::from_secs(4_000));
    eventually("the other one is dropped", async || shard_owners(&store).await.len() == 1).await;
    assert_eq!(server.dequeue("mail", 1).await.len(), 0, "the queue is served");
}

#[tokio::test]
async fn a_start_drops_old_shards_without_a_name() {
    let store = SharedStore::new();
    unnamed(&store, 7).await;
    store.clock.advance(Duration::from_secs(3_601));
    let _server = store.server().await;
    eventually("they are dropped", async || shard_owners(&store).await.is_empty()).await;
}

#[tokio::test]
async fn while_the_store_offers_less_a_queue_that_requires_more_takes_no_messages() {
    let store = SharedStore::new();
    let (stores, watched) = WatchedShards::over(store.stores.clone(), || CallFate::Answered);
    watched.offer(Durability::Safe);
    let server = store.server_on(stores).await;
    let safe = |queue| QueueDraft { required_durability: Some(Durability::Safe), ..draft(queue) };
    server.create(safe("mail")).await.expect("the store offers it");
    server.create(draft("any")).await.expect("it requires nothing");
    server.enqueue("mail").await.expect("enqueued");
    watched.offer(Durability::Fast);
    for refused in [server.enqueue("mail").await, server.create(safe("other")).await] {
        let refused = refused.expect_err("the store offers less");
        assert_eq!(refused.reason(), Reason::DurabilityNotOffered);
        assert!(refused.to_string().contains("the store of this server offers FAST"), "{refused}");
    }
    server.enqueue("any").await.expect("it requires nothing");
    assert_eq!(server.dequeue("mail", 5).await.len(), 1, "what is there goes out");
    watched.offer(Durability::Safe);
    server.enqueue("mail").await.expect("the store offers it again");
}
