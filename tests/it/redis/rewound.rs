//! A Redis that comes back with an earlier state: its shards get the settings again, and what came back is served.

use tallystone::domain::queue::QueueName;
use tallystone::domain::queue::messages::settlement::SettleAction;
use tallystone::engine::caller_quota::CallerId;
use tallystone::engine::catalog::Author;
use tallystone::engine::queues::{ActivityOrder, DequeueRequest, QueueDraft, SentMessage, SettleRequest};

use super::two_servers::QueuesServer;
use super::*;

/// A lease that tells the settings of the test from the defaults.
const LONG: Duration = Duration::from_secs(900);
/// Longer than any lease of the defaults.
const TOLD_APART: Duration = Duration::from_secs(600);
/// The longest wait of a dequeue.
const WAIT: Duration = Duration::from_secs(20);

fn name() -> QueueName {
    QueueName::new("mail").expect("a name")
}

fn author() -> Author {
    Author { actor: "test".to_owned(), reason: String::new() }
}

async fn started(redis: &RedisServer) -> QueuesServer {
    let server = QueuesServer::start(single(redis)).await;
    let draft = QueueDraft { shards: Some(2), ..QueueDraft::of(name()) };
    server.queues.catalog.create(draft, author()).await.expect("created");
    server
}

async fn lengthen(server: &QueuesServer) -> bool {
    let draft = QueueDraft { default_lease: Some(LONG), ..QueueDraft::of(name()) };
    server.queues.catalog.update(draft, Vec::new(), None, author()).await.is_ok()
}

async fn enqueue(server: &QueuesServer) -> bool {
    server.queues.work.enqueue(&CallerId::nobody(), &name(), SentMessage::default()).await.is_ok()
}

/// Whether the leases of some messages, which lie in all shards, are those of the new settings.
async fn all_leases_are_long(server: &QueuesServer) -> bool {
    for _ in 0..16 {
        if !enqueue(server).await {
            return false;
        }
    }
    let asked = DequeueRequest { max: 100, ..DequeueRequest::default() };
    let Ok(leases) = server.queues.work.dequeue(&name(), asked).await else { return false };
    let leases = leases.take();
    !leases.is_empty() && leases.iter().all(|leased| leased.lease.expires_in > TOLD_APART)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_is_made_again_after_redis_lost_it_reaches_the_shards() {
    let Some(mut redis) = or_skip(RedisServer::start(Build::Redis7)) else { return };
    let server = started(&redis).await;
    redis.cli(&["SAVE"]);
    assert!(lengthen(&server).await);
    assert!(all_leases_are_long(&server).await);
    redis.restart().expect("it starts");
    eventually("the store is back, without the change", async || enqueue(&server).await).await;
    eventually("the change is made again", async || lengthen(&server).await).await;
    let asked = DequeueRequest { max: 100, ..DequeueRequest::default() };
    assert!(server.queues.work.dequeue(&name(), asked).await.is_ok(), "nothing of before is left");
    assert!(all_leases_are_long(&server).await);
    server.stop().await;
}

/// The beginning of the keys that a test saves.
const SAVED: &str = "saved.";

fn keys(redis: &RedisServer, pattern: &str) -> Vec<String> {
    redis.cli(&["KEYS", pattern]).lines().filter(|key| !key.is_empty()).map(str::to_owned).collect()
}

/// The beginning of the keys of each shard.
fn shards_of(redis: &RedisServer) -> Vec<String> {
    keys(redis, "{*}m").iter().filter_map(|header| header.strip_suffix('m')).map(str::to_owned).collect()
}

/// Saves the present state of all shards.
fn save_shards(redis: &RedisServer) {
    for key in shards_of(redis).iter().flat_map(|tag| keys(redis, &format!("{tag}*"))) {
        redis.cli(&["COPY", &key, &format!("{SAVED}{key}")]);
    }
}

/// Takes all shards back to the state that was saved.
fn restore_shards(redis: &RedisServer) {
    for key in shards_of(redis).iter().flat_map(|tag| keys(redis, &format!("{tag}*"))) {
        redis.cli(&["DEL", &key]);
    }
    for saved in keys(redis, &format!("{SAVED}*")) {
        redis.cli(&["COPY", &saved, &saved[SAVED.len()..]]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_that_come_back_with_old_settings_get_those_of_the_catalog_by_themselves() {
    let Some(mut redis) = or_skip(RedisServer::start(Build::Redis7)) else { return };
    let server = started(&redis).await;
    save_shards(&redis);
    assert!(lengthen(&server).await);
    assert!(all_leases_are_long(&server).await);
    // Of a cluster one node may come back with older data, while the catalog is on another one.
    restore_shards(&redis);
    redis.cli(&["SAVE"]);
    redis.restart().expect("it starts");
    eventually("the shards have the settings", async || all_leases_are_long(&server).await).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_came_back_with_an_earlier_state_is_served_to_a_dequeue_that_waits() {
    let Some(mut redis) = or_skip(RedisServer::start(Build::Redis7)) else { return };
    let server = started(&redis).await;
    assert!(enqueue(&server).await);
    redis.cli(&["SAVE"]);
    let asked = |wait| DequeueRequest { max: 1, wait, ..DequeueRequest::default() };
    let leased = server.queues.work.dequeue(&name(), asked(Duration::ZERO)).await.expect("a dequeue").take();
    let done = SettleRequest { token: leased[0].token.clone(), verb: SettleAction::Complete, delay: None, error: None };
    server.queues.work.settle(&name(), done).await.expect("completed");
    let mail = name();
    let waiting = server.queues.work.dequeue(&mail, asked(WAIT));
    let restart = async {
        eventually("it waits", async || server.queues.waiting() > 0).await;
        redis.restart().expect("it starts");
    };
    let (found, ()) = tokio::join!(waiting, restart);
    assert_eq!(found.expect("a dequeue").take().len(), 1, "nobody else wakes it");
    server.stop().await;
}

/// The steps that the queue has lost, as a server tells.
async fn steps_lost(server: &QueuesServer) -> u64 {
    let page = server.queues.inspect.list_activity(|_| true, ActivityOrder::Name, 0, 1).await;
    page.rows[0].facts.lost.map_or(0, |lost| lost.steps)
}

/// The enqueues that a Redis forgets.
const FORGOTTEN: u64 = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_redis_lost_is_told_by_the_server_that_was_answered_whoever_finds_the_shard_first() {
    let Some(mut redis) = or_skip(RedisServer::start(Build::Redis7)) else { return };
    let one = started(&redis).await;
    let other = QueuesServer::start(single(&redis)).await;
    for asked_first in [&one, &other] {
        for _ in 0..16 {
            assert!(enqueue(&one).await && enqueue(&other).await, "both know all shards");
        }
        redis.cli(&["SAVE"]);
        let before = steps_lost(&one).await;
        for _ in 0..FORGOTTEN {
            assert!(enqueue(&one).await);
        }
        redis.restart().expect("it starts");
        for _ in 0..16 {
            eventually("the store is back", async || enqueue(asked_first).await).await;
        }
        let is_told = async || enqueue(&one).await && steps_lost(&one).await >= before + FORGOTTEN;
        eventually("it tells what it was answered", is_told).await;
        let told = steps_lost(&one).await;
        for _ in 0..16 {
            assert!(enqueue(&one).await && enqueue(&other).await);
        }
        assert_eq!(steps_lost(&one).await, told, "each loss is told once");
    }
    one.stop().await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_that_lost_nothing_is_told_as_no_loss() {
    let settings = RedisSettings::of(&["appendonly yes", "appendfsync always"]);
    let Some(mut redis) = or_skip(RedisServer::start_with(Build::Redis7, settings)) else { return };
    let servers = [started(&redis).await, QueuesServer::start(single(&redis)).await];
    for _ in 0..3 {
        for server in &servers {
            for _ in 0..8 {
                eventually("the store is there", async || enqueue(server).await).await;
            }
        }
        redis.restart().expect("it starts");
    }
    for server in &servers {
        for _ in 0..8 {
            eventually("the store is back", async || enqueue(server).await).await;
        }
        assert_eq!(steps_lost(server).await, 0);
    }
    let [one, other] = servers;
    one.stop().await;
    other.stop().await;
}
