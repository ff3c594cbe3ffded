//! What a list of the activities of many queues costs Redis: few commands, however many queues there are.

use tallystone::domain::limits::{ACTIVITY_RENEWED_AFTER, ACTIVITY_TURN_COST, ACTIVITY_TURN_COST_SAVED_MAX};
use tallystone::domain::queue::QueueName;
use tallystone::engine::caller_quota::CallerId;
use tallystone::engine::catalog::{Author, FollowedCatalog};
use tallystone::engine::queues::{ActivityOrder, ActivityPage, QueueDraft, SentMessage};

use super::two_servers::QueuesServer;
use super::*;

/// As many shards as a thousand and more queues have, in a few queues.
const QUEUES: usize = 12;
const SHARDS: u32 = 256;
/// The commands of loops that are no looks: followers of catalog, members, sessions and operations.
const OTHER_COMMANDS_A_SECOND: f64 = 100.0;
/// The functions that read a shard in a second, once every shard was asked what is due in it.
const FEW_CALLS: f64 = 30.0;

fn name_of(number: usize) -> QueueName {
    QueueName::new(&format!("q{number:02}")).expect("a valid name")
}

/// The first row, in an order.
async fn first_row(server: &QueuesServer, order: ActivityOrder) -> ActivityPage {
    server.queues.inspect.list_activity(|_| true, order, 0, 1).await
}

/// The calls of a command since the last reset, those inside functions included.
fn calls_of(stats: &str, command: &str) -> f64 {
    let row = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    row.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0.0)
}

/// All commands since the last reset.
fn all_calls(stats: &str) -> f64 {
    let names = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split(':').next());
    names.map(|name| calls_of(stats, name)).sum()
}

/// What the looks of some time cost.
#[derive(Debug)]
struct Looks {
    commands: f64,
    gets: f64,
    /// What they may cost in that time, where nothing was saved before.
    most: f64,
}

/// Looks at a queue until it has been renewed three times, and says what that cost.
async fn looks_for_a_time(redis: &RedisServer, server: &QueuesServer) -> Looks {
    let begun = first_row(server, ActivityOrder::Name).await;
    redis.cli(&["CONFIG", "RESETSTAT"]);
    let (since, then) = (Instant::now(), begun.now + 3 * ACTIVITY_RENEWED_AFTER);
    let is_renewed = async || {
        let page = first_row(server, ActivityOrder::Name).await;
        page.rows[0].as_of.is_some_and(|as_of| as_of >= then)
    };
    eventually("the shown queue is renewed", is_renewed).await;
    let (took, stats) = (since.elapsed().as_secs_f64(), redis.cli(&["INFO", "commandstats"]));
    let renewals = took / ACTIVITY_RENEWED_AFTER.as_secs_f64() + 1.0;
    let most = renewals * f64::from(SHARDS) + (took + 1.0) * (ACTIVITY_TURN_COST as f64 + OTHER_COMMANDS_A_SECOND);
    Looks { commands: all_calls(&stats), gets: calls_of(&stats, "get"), most }
}

/// Two servers, and queues with many shards together.
async fn with_queues(redis: &RedisServer) -> [QueuesServer; 2] {
    let one = QueuesServer::start(single(redis)).await;
    for number in 0..QUEUES {
        let author = Author { actor: "test".to_owned(), reason: String::new() };
        let draft = QueueDraft { shards: Some(SHARDS), ..QueueDraft::of(name_of(number)) };
        one.queues.catalog.create(draft, author).await.expect("created");
    }
    let other = QueuesServer::start(single(redis)).await;
    other.queues.catalog.follow().await.expect("a read");
    [one, other]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_somebody_looks_queues_that_do_not_change_cost_redis_a_bounded_number_of_reads() {
    let Some(redis) = or_skip(RedisServer::start(Build::Redis7)) else { return };
    let [one, other] = with_queues(&redis).await;
    let knows_all = async || first_row(&other, ActivityOrder::Name).await.totals.as_of.is_some();
    eventually("every shard is read", knows_all).await;
    // At first each server also asks every shard once what is due in it.
    let is_calm = async || {
        redis.cli(&["CONFIG", "RESETSTAT"]);
        let then = first_row(&other, ActivityOrder::Name).await.now + Duration::from_secs(1);
        eventually("a second is over", async || first_row(&other, ActivityOrder::Name).await.now >= then).await;
        calls_of(&redis.cli(&["INFO", "commandstats"]), "fcall_ro") < FEW_CALLS
    };
    eventually("every shard was asked", is_calm).await;

    // What was saved while the servers had no processor is spent in the first of these times. It is not there a second time.
    let saved = ACTIVITY_TURN_COST_SAVED_MAX as f64;
    let mut times = Vec::new();
    while times.iter().all(|time: &Looks| time.commands > time.most) && times.len() < 3 {
        let time = looks_for_a_time(&redis, &other).await;
        assert!(time.gets >= 2.0 * f64::from(SHARDS), "the shown queue was looked at twice at least: {time:?}");
        assert!(time.commands <= time.most + saved, "more than what is saved beside what is allowed: {time:?}");
        times.push(time);
    }
    assert!(times.iter().any(|time| time.commands <= time.most), "more than allowed, each time: {times:?}");
    for server in [one, other] {
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_changes_in_a_queue_that_is_not_shown_is_found_in_its_turn() {
    let Some(redis) = or_skip(RedisServer::start(Build::Redis7)) else { return };
    let [one, other] = with_queues(&redis).await;
    let knows_all = async || first_row(&other, ActivityOrder::Name).await.totals.as_of.is_some();
    eventually("every shard is read", knows_all).await;

    let last = name_of(QUEUES - 1);
    one.queues.work.enqueue(&CallerId::nobody(), &last, SentMessage::default()).await.expect("enqueued");
    let since = Instant::now();
    let is_found = async || {
        let page = first_row(&other, ActivityOrder::Pending).await;
        let row = &page.rows[0];
        row.queue == last.to_string() && row.messages.is_some_and(|messages| messages.iter().sum::<u64>() == 1)
    };
    eventually("the change is found", is_found).await;
    let turn = QUEUES as f64 * f64::from(SHARDS) / ACTIVITY_TURN_COST as f64;
    let took = since.elapsed().as_secs_f64();
    assert!(took < 3.0 * turn + 5.0, "it took {took:.1} s, and a turn takes {turn:.1} s");
    for server in [one, other] {
        server.stop().await;
    }
}
