//! Several servers on one Redis, and what a broken shard answers.

use std::time::Duration;

use bytes::Bytes;
use tallystone_domain::queue::{Command, MessageState, QueueId, Refusal, Reply, Settings, ShardId, ShardSettings};
use tallystone_ports::{Clock, EffectOutcome, ShardCommand, ShardReader, ShardStore, StoreErrorKind};
use tallystone_redis::RedisQueues;
use tallystone_redis::client::{RedisClient, RedisCommand, RedisReply, Slot};

use super::server::{QueueServer, next_queue, past_clock, shared};
use crate::queue_given::{dequeue, enqueue, is_new, settings};
use crate::servers::redis::{Build, or_skip};

async fn one(queues: &RedisQueues, shard: ShardId, command: ShardCommand) -> Result<Reply, Refusal> {
    queues.apply(shard, vec![command]).await.remove(0).expect("the store takes the command").reply
}

#[tokio::test]
async fn a_server_with_old_settings_reads_the_new_ones_before_it_goes_on() {
    let Some(server) = shared(Build::Redis7) else { return };
    let clock = past_clock();
    let (one_server, other) = (server.queues(&clock).await, server.queues(&clock).await);
    let shard = ShardId { queue: QueueId(next_queue()), number: 0 };
    one_server.create(shard.queue, 1, settings().into()).await.expect("a new queue");
    assert!(is_new(&one(&other, shard, enqueue("a", 0, b"")).await), "the other server knows the settings now");
    let changed = Settings { default_attempts: 7, quota_messages: 2, ..settings() };
    let changed = ShardSettings { version: 1, ..changed.into() };
    let configured = one(&one_server, shard, ShardCommand::of(Command::Configure(Box::new(changed)))).await;
    assert_eq!(configured, Ok(Reply::Configured));
    assert!(is_new(&one(&other, shard, enqueue("b", 0, b"")).await));
    let found = other.list(shard, MessageState::Pending, 1, 1).await.expect("a list").messages.remove(0);
    assert_eq!(found.head.max_attempts, 7, "its default is the new one");
    assert!(matches!(one(&other, shard, enqueue("c", 0, b"")).await, Err(Refusal::Full(_))));
}

#[tokio::test]
async fn what_one_server_enqueues_another_leases_and_a_third_completes() {
    let Some(server) = shared(Build::Redis7) else { return };
    let clock = past_clock();
    let servers = [server.queues(&clock).await, server.queues(&clock).await, server.queues(&clock).await];
    let shard = ShardId { queue: QueueId(next_queue()), number: 0 };
    servers[0].create(shard.queue, 1, settings().into()).await.expect("a new queue");
    assert!(is_new(&one(&servers[0], shard, enqueue("a", 0, b"payload")).await));
    let answer = servers[1].apply(shard, vec![dequeue(5)]).await.remove(0).expect("the store takes it");
    let Ok(Reply::Leases { leases, .. }) = &answer.reply else { panic!("leases: {:?}", answer.reply) };
    assert_eq!((leases.len(), &answer.messages[0].body.payload[..]), (1, &b"payload"[..]));
    let complete = tallystone_domain::queue::messages::settlement::SettleAction::Complete;
    let settled = one(&servers[2], shard, crate::queue_given::settle(leases[0].token, complete)).await;
    assert!(matches!(settled, Ok(Reply::Settled(now)) if now.state == MessageState::Completed), "{settled:?}");
}

#[tokio::test]
async fn a_deleted_queue_still_answers_repeats_of_tokens_with_a_time() {
    let Some(server) = shared(Build::Redis7) else { return };
    let clock = past_clock();
    let queues = server.queues(&clock).await;
    let shard = ShardId { queue: QueueId(next_queue()), number: 0 };
    queues.create(shard.queue, 1, settings().into()).await.expect("a new queue");
    let with_time = |id: &str| {
        let mut sent = enqueue(id, 0, b"x");
        let Command::Enqueue(message) = &mut sent.command else { panic!("it is an enqueue") };
        message.token_time = Some(past_clock().now());
        sent
    };
    assert!(
        is_new(&one(&queues, shard, with_time("a")).await) && is_new(&one(&queues, shard, enqueue("b", 0, b"")).await)
    );
    assert_eq!(one(&queues, shard, ShardCommand::of(Command::Delete)).await, Ok(Reply::Deleted { messages: 2 }));
    assert_eq!(one(&queues, shard, ShardCommand::of(Command::Delete)).await, Ok(Reply::Deleted { messages: 2 }));
    let repeat = one(&queues, shard, with_time("a")).await;
    assert!(matches!(repeat, Ok(Reply::Enqueued { already_enqueued: true, .. })), "{repeat:?}");
    assert_eq!(one(&queues, shard, enqueue("b", 0, b"")).await, Err(Refusal::Deleted));
    assert_eq!(one(&queues, shard, dequeue(1)).await, Err(Refusal::Deleted));
    assert_eq!(queues.totals(shard).await.expect("totals").totals.all().messages, 0);
    assert_eq!(queues.peek(shard, 5).await.expect("a peek").messages, []);
}

#[tokio::test]
async fn a_full_server_refuses_enqueues_and_goes_on_giving_messages_out() {
    let Some(server) = or_skip(QueueServer::start(Build::Redis7)) else { return };
    let clock = past_clock();
    let queues = server.queues(&clock).await;
    let shard = ShardId { queue: QueueId(next_queue()), number: 0 };
    queues.create(shard.queue, 1, settings().into()).await.expect("a new queue");
    assert!(is_new(&one(&queues, shard, enqueue("a", 0, b"payload")).await));
    let full = RedisCommand::new("CONFIG").arg("SET").arg("maxmemory").arg("1");
    server.client().await.call_one(Slot::of(b""), full).await.expect("it is set");
    let refused = queues.apply(shard, vec![enqueue("b", 0, b"payload")]).await.remove(0).expect_err("there is no room");
    assert_eq!((refused.kind, refused.outcome), (StoreErrorKind::Full, EffectOutcome::NotApplied), "{refused}");
    let answer = queues.apply(shard, vec![dequeue(1)]).await.remove(0).expect("the store takes it");
    let Ok(Reply::Leases { leases, .. }) = &answer.reply else { panic!("leases: {:?}", answer.reply) };
    let complete = tallystone_domain::queue::messages::settlement::SettleAction::Complete;
    let settled = one(&queues, shard, crate::queue_given::settle(leases[0].token, complete)).await;
    assert!(matches!(settled, Ok(Reply::Settled(now)) if now.state == MessageState::Completed), "{settled:?}");
}

/// The only key of a server with this ending.
async fn key_with(client: &RedisClient, ending: &str) -> Bytes {
    let keys = RedisCommand::new("KEYS").arg(format!("*}}{ending}"));
    let keys = client.call_one(Slot::of(b""), keys).await.and_then(RedisReply::into_list).expect("keys");
    let [RedisReply::Bytes(key)] = &keys[..] else { panic!("one key: {keys:?}") };
    key.clone()
}

#[tokio::test]
async fn after_an_error_half_way_every_call_says_so_and_no_sequence_comes_again() {
    let Some(server) = or_skip(QueueServer::start(Build::Redis7)) else { return };
    let clock = past_clock();
    let queues = server.queues(&clock).await;
    let shard = ShardId { queue: QueueId(next_queue()), number: 0 };
    queues.create(shard.queue, 1, settings().into()).await.expect("a new queue");
    assert!(is_new(&one(&queues, shard, enqueue("a", 0, b"")).await));
    let client = server.client().await;
    let pending = key_with(&client, "p").await;
    let slot = Slot::of(&pending);
    client.call_one(slot, RedisCommand::new("SET").arg(&pending).arg("no sorted set")).await.expect("it is set");
    let half =
        queues.apply(shard, vec![enqueue("b", 0, b"")]).await.remove(0).expect_err("its index cannot be written");
    assert_eq!((half.kind, half.outcome), (StoreErrorKind::Corrupt, EffectOutcome::Unknown), "{half}");
    client.call_one(slot, RedisCommand::new("DEL").arg(&pending)).await.expect("it is gone");
    for command in [enqueue("c", 0, b""), dequeue(1), ShardCommand::of(Command::Sweep { max: 1 })] {
        let told = queues.apply(shard, vec![command]).await.remove(0).expect_err("the shard is inconsistent");
        assert_eq!((told.kind, told.outcome), (StoreErrorKind::Corrupt, EffectOutcome::NotApplied), "{told}");
    }
    assert_eq!(queues.peek(shard, 1).await.expect_err("reads say so too").kind, StoreErrorKind::Corrupt);
    let header = RedisCommand::new("GET").arg(key_with(&client, "m").await);
    let stored = client.call_one(slot, header).await.and_then(RedisReply::into_bytes).expect("a header");
    let sequence = f64::from_le_bytes(stored[2..10].try_into().expect("eight bytes"));
    assert_eq!(sequence, 2.0, "the sequence of the failed enqueue is taken");
}

#[tokio::test]
async fn a_late_completion_is_taken_until_the_next_lease() {
    let Some(server) = shared(Build::Redis7) else { return };
    let clock = past_clock();
    let queues = server.queues(&clock).await;
    let shard = ShardId { queue: QueueId(next_queue()), number: 0 };
    queues.create(shard.queue, 1, settings().into()).await.expect("a new queue");
    assert!(is_new(&one(&queues, shard, enqueue("a", 0, b"")).await));
    let Ok(Reply::Leases { leases, .. }) = one(&queues, shard, dequeue(1)).await else { panic!("no lease") };
    clock.advance(Duration::from_secs(31));
    let swept = one(&queues, shard, ShardCommand::of(Command::Sweep { max: 9 })).await;
    assert!(matches!(swept, Ok(Reply::Touched { count: 1, .. })), "{swept:?}");
    let complete = tallystone_domain::queue::messages::settlement::SettleAction::Complete;
    let settled = one(&queues, shard, crate::queue_given::settle(leases[0].token, complete)).await;
    assert!(matches!(settled, Ok(Reply::Settled(now)) if now.state == MessageState::Completed), "{settled:?}");
}
