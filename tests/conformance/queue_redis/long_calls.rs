//! Calls of many commands: sent together in their order, finished whoever waits for them. And reports of many values.

use std::task::Poll;

use tallystone_domain::queue::counter_names::CountedValue;
use tallystone_domain::queue::messages::message::Metadata;
use tallystone_domain::queue::transition::RowPosition;
use tallystone_domain::queue::{Command, QueueId, Reply, Settings, ShardId, ShardSettings};
use tallystone_ports::{Clock as _, ShardAnswer, ShardCommand, ShardOutbox, ShardReader, ShardStore};

use super::server::{QueueServer, eventually, next_queue, past_clock, shared};
use crate::queue_given::{dequeue, enqueue, settings};
use crate::servers::redis::{Build, or_skip};

fn new_shard() -> ShardId {
    ShardId { queue: QueueId(next_queue()), number: 0 }
}

/// Enqueues with these numbers, in the order of their priorities.
fn enqueues(numbers: std::ops::Range<i64>) -> Vec<ShardCommand> {
    numbers.map(|number| enqueue(&format!("m-{number}"), number, b"payload")).collect()
}

#[tokio::test]
async fn a_call_goes_on_when_its_caller_goes_away() {
    for build in Build::ALL {
        let Some(server) = shared(build) else { continue };
        println!("on {}", build.name());
        let queues = server.queues(&past_clock()).await;
        let shard = new_shard();
        queues.create(shard.queue, 1, settings().into()).await.expect("a new queue");
        let sweep = || vec![ShardCommand::of(Command::Sweep { max: 1 })];
        // Sweeps are done alone, so this takes five calls of functions, one after the other.
        let commands = [enqueues(0..10), sweep(), enqueues(10..20), sweep(), enqueues(20..30)].concat();
        {
            let mut applied = queues.apply(shard, commands);
            let polled = std::future::poll_fn(|context| Poll::Ready(applied.as_mut().poll(context).is_ready())).await;
            assert!(!polled, "it takes several round trips");
        }
        eventually("all of it is done", async || queues.totals(shard).await.is_ok_and(|now| now.sequence == 30)).await;
        queues.close().await;
    }
}

#[tokio::test]
async fn the_runs_of_a_call_are_done_in_their_order() {
    let Some(server) = shared(Build::Redis7) else { return };
    let queues = server.queues(&past_clock()).await;
    let shard = new_shard();
    queues.create(shard.queue, 1, settings().into()).await.expect("a new queue");
    let commands = [enqueues(100..250), vec![dequeue(60)], enqueues(0..5), vec![dequeue(3), dequeue(60)]].concat();
    let answers = queues.apply(shard, commands).await;
    let leased = |at: usize| -> Vec<i64> {
        let answer = answers[at].as_ref().expect("the store takes it");
        answer.messages.iter().map(|message| message.head.priority).collect()
    };
    assert_eq!(leased(150), (100..160).collect::<Vec<_>>());
    assert_eq!(leased(156), [0, 1, 2]);
    assert_eq!(leased(157), [3, 4].into_iter().chain(160..218).collect::<Vec<_>>());
    assert!(answers.iter().all(Result::is_ok));
}

#[tokio::test]
async fn all_runs_of_a_call_are_repeated_if_the_settings_were_stale() {
    let Some(server) = shared(Build::Redis7) else { return };
    let clock = past_clock();
    let (one, other) = (server.queues(&clock).await, server.queues(&clock).await);
    let shard = new_shard();
    one.create(shard.queue, 1, settings().into()).await.expect("a new queue");
    assert!(other.apply(shard, enqueues(0..1)).await.remove(0).is_ok(), "the other server knows the settings now");
    let changed = ShardSettings { version: 1, ..Settings { default_attempts: 7, ..settings() }.into() };
    let configured = one.apply(shard, vec![ShardCommand::of(Command::Configure(Box::new(changed)))]).await.remove(0);
    assert_eq!(configured.expect("the store takes it").reply, Ok(Reply::Configured));
    let answers = other.apply(shard, [enqueues(1..100), vec![dequeue(2)], enqueues(100..101)].concat()).await;
    assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|answer| answer.reply.is_ok())));
    let page = other.list(shard, tallystone_domain::queue::MessageState::Pending, 1, 200).await.expect("a list");
    assert!(page.messages.iter().all(|message| message.head.max_attempts == 7), "all have the new default");
    assert_eq!(other.totals(shard).await.expect("totals").sequence, 101, "each once");
}

#[tokio::test]
async fn a_report_of_many_values_is_read_in_pages() {
    const VALUES: usize = 1_300;
    for build in Build::ALL {
        let Some(server) = shared(build) else { continue };
        println!("on {}", build.name());
        let queues = server.queues(&past_clock()).await;
        let shard = new_shard();
        let counted = Settings {
            count_by: vec!["tenant".into(), "zone".into()],
            count_by_values_max: 10_000,
            quota_messages: 10_000,
            ..settings()
        };
        queues.create(shard.queue, 1, counted.into()).await.expect("a new queue");
        let of_tenant = |number: usize, tenant: usize| {
            let mut sent = enqueue(&format!("m-{number}"), 0, b"");
            let Command::Enqueue(message) = &mut sent.command else { panic!("it is an enqueue") };
            message.metadata = Metadata::new([("tenant", format!("t-{tenant}").as_str())]).expect("legal");
            sent
        };
        let answers = queues.apply(shard, (0..VALUES).map(|number| of_tenant(number, number)).collect()).await;
        assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|answer| answer.reply.is_ok())));
        let report = queues.report(shard, None).await.expect("a report");
        assert_eq!(report.position, RowPosition { epoch: 1, position: VALUES as u64 });
        assert_eq!(report.values.len(), VALUES + 1, "each tenant, and no zone");
        let once = |own: &tallystone_domain::queue::tally::values::ValueCounts| own.depth.iter().sum::<u64>() == 1;
        assert!(report.values.iter().filter(|(key, ..)| &**key == "tenant").all(|(_, _, own)| once(own)));
        queues.apply(shard, vec![of_tenant(VALUES, 5)]).await.remove(0).expect("the store takes it");
        let news = queues.report(shard, Some(VALUES as u64)).await.expect("a report");
        let names: Vec<_> = news.values.iter().map(|(key, value, _)| (&**key, value.clone())).collect();
        assert_eq!(names, [("tenant", CountedValue::Own("t-5".into())), ("zone", CountedValue::None)]);
    }
}

#[tokio::test]
async fn the_fill_of_outboxes_is_what_the_server_keeps() {
    let Some(server) = or_skip(QueueServer::start(Build::Redis7)) else { return };
    let queues = server.queues(&past_clock()).await;
    let empty = queues.outbox_usage();
    assert!(empty.bytes == 0 && empty.capacity > 0, "{empty:?}");
    let shard = new_shard();
    let kept = Settings { history: tallystone_domain::queue::setup::settings::HistoryKept::All, ..settings() };
    queues.create(shard.queue, 1, kept.into()).await.expect("a new queue");
    queues.apply(shard, enqueues(0..50)).await.remove(0).expect("the store takes it");
    assert!(queues.outboxes().await.expect("a list").contains(&shard));
    let fill = queues.outbox_usage();
    assert!(fill.bytes > 1_000 && fill.capacity > fill.bytes, "{fill:?}");
    let through = RowPosition { epoch: 1, position: 50 };
    queues.forget_outbox(shard, through).await.expect("forgotten");
    queues.outboxes().await.expect("a list");
    assert!(queues.outbox_usage().bytes < fill.bytes);
}

/// How many calls of functions that write the server has run.
fn calls_of_functions(server: &mut QueueServer) -> u64 {
    let info = server.server().cli(&["INFO", "commandstats"]);
    let calls = info.split("cmdstat_fcall:calls=").nth(1).and_then(|rest| rest.split(',').next());
    calls.and_then(|calls| calls.parse().ok()).unwrap_or(0)
}

#[tokio::test]
async fn a_deletion_takes_64_messages_a_call_and_keeps_the_answers_to_their_tokens() {
    const MESSAGES: i64 = 300;
    for build in Build::ALL {
        let Some(mut server) = or_skip(QueueServer::start(build)) else { continue };
        println!("on {}", build.name());
        let clock = past_clock();
        let queues = server.queues(&clock).await;
        let shard = new_shard();
        queues.create(shard.queue, 1, settings().into()).await.expect("a new queue");
        let with_times = || {
            let mut sent = enqueues(0..MESSAGES);
            for sent in &mut sent {
                let Command::Enqueue(message) = &mut sent.command else { panic!("it is an enqueue") };
                message.token_time = Some(past_clock().now());
            }
            sent
        };
        assert!(queues.apply(shard, with_times()).await.iter().all(Result::is_ok));
        let before = calls_of_functions(&mut server);
        let deleted = queues.apply(shard, vec![ShardCommand::of(Command::Delete)]).await.remove(0);
        assert_eq!(deleted.expect("the store takes it").reply, Ok(Reply::Deleted { messages: MESSAGES as u64 }));
        let calls = calls_of_functions(&mut server) - before;
        assert!(calls > 5, "one call, then 300 messages in fives of at most 64: {calls}");
        let keys = server.server().cli(&["DBSIZE"]);
        let repeats = queues.apply(shard, with_times()).await;
        let is_repeat =
            |answer: &ShardAnswer| matches!(answer.reply, Ok(Reply::Enqueued { already_enqueued: true, .. }));
        assert!(repeats.iter().all(|answer| answer.as_ref().is_ok_and(is_repeat)));
        assert!(keys.trim().parse::<u64>().is_ok_and(|keys| keys < 50), "the messages are gone: {keys}");
    }
}
