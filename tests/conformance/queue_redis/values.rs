//! Exclusivity values on Redis: messages that wait behind their value cost a dequeue nothing.

use bytes::Bytes;
use tallystone_domain::queue::messages::message::{Metadata, RoutingValue};
use tallystone_domain::queue::messages::settlement::SettleAction;
use tallystone_domain::queue::setup::settings::Exclusivity;
use tallystone_domain::queue::{Command, QueueId, Reply, Settings, ShardId};
use tallystone_ports::{ShardCommand, ShardStore};
use tallystone_redis::RedisQueues;
use tallystone_redis::client::{RedisClient, RedisCommand, RedisReply, Slot};

use super::server::{QueueServer, next_queue, past_clock};
use crate::queue_given::{dequeue, enqueue, is_new, settings, settle};
use crate::servers::redis::{Build, or_skip};

/// An enqueue of a message with a value of the key `title`.
pub fn of_value(id: &str, priority: i64, value: &str) -> ShardCommand {
    let mut sent = enqueue(id, priority, b"work");
    let Command::Enqueue(message) = &mut sent.command else { panic!("it is an enqueue") };
    message.metadata = Metadata::new([("title", value)]).expect("a legal pair");
    message.routing = RoutingValue::new(value).ok();
    sent
}

/// Enqueues messages of a value that is held, each before those of other values.
async fn block(queues: &RedisQueues, shard: ShardId, numbers: std::ops::Range<u32>) {
    let sent: Vec<ShardCommand> = numbers.map(|number| of_value(&format!("x-{number}"), 0, "x")).collect();
    for answer in queues.apply(shard, sent).await {
        assert!(is_new(&answer.expect("the store takes it").reply));
    }
}

/// How many commands the server has run, those of functions included.
async fn commands_run(client: &RedisClient) -> u64 {
    let info = RedisCommand::new("INFO").arg("commandstats");
    let info: Bytes = client.call_one(Slot::of(b""), info).await.and_then(RedisReply::into_bytes).expect("statistics");
    let calls = String::from_utf8_lossy(&info).into_owned();
    calls.split("calls=").skip(1).map(|rest| rest.split(',').next().and_then(|n| n.parse().ok()).unwrap_or(0)).sum()
}

/// Leases one message; returns its id and how many commands that took.
async fn lease_one(
    (queues, client): (&RedisQueues, &RedisClient),
    shard: ShardId,
) -> (String, tallystone_domain::queue::messages::message::LeaseToken, u64) {
    let before = commands_run(client).await;
    let answer = queues.apply(shard, vec![dequeue(1)]).await.remove(0).expect("the store takes it");
    let after = commands_run(client).await;
    let Ok(Reply::Leases { leases, .. }) = &answer.reply else { panic!("leases: {:?}", answer.reply) };
    (answer.messages[0].head.id.to_string(), leases[0].token, after - before)
}

#[tokio::test]
async fn messages_behind_their_value_cost_a_dequeue_nothing() {
    for build in Build::ALL {
        let Some(server) = or_skip(QueueServer::start(build)) else { continue };
        let clock = past_clock();
        let (queues, client) = (server.queues(&clock).await, server.client().await);
        let shard = ShardId { queue: QueueId(next_queue()), number: 0 };
        let exclusivity =
            Exclusivity { key: "title".into(), max_in_flight_per_value: 1, strict_order_per_value: false };
        let exclusive = Settings { exclusivity: Some(exclusivity), quota_messages: 1 << 20, ..settings() };
        queues.create(shard.queue, 1, exclusive.into()).await.expect("a new queue");
        block(&queues, shard, 0..2).await;
        let (first, held, _) = lease_one((&queues, &client), shard).await;
        assert_eq!(first, "x-0");
        let mut calls = Vec::new();
        for blocked in [2..9, 9..3_000] {
            block(&queues, shard, blocked).await;
            for number in 0..2 {
                let id = format!("y-{number}-{}", calls.len());
                let sent = queues.apply(shard, vec![of_value(&id, 9, &id)]).await.remove(0);
                assert!(is_new(&sent.expect("the store takes it").reply));
            }
            let (next, _, run) = lease_one((&queues, &client), shard).await;
            assert!(next.starts_with("y-"), "{next}");
            calls.push(run);
        }
        assert_eq!(calls[0], calls[1], "commands of a dequeue with 7 blocked messages, and with 2,998");
        let done = queues.apply(shard, vec![settle(held, SettleAction::Complete)]).await.remove(0);
        assert!(matches!(done.expect("the store takes it").reply, Ok(Reply::Settled(_))));
        assert_eq!(lease_one((&queues, &client), shard).await.0, "x-1", "the value is free again");
    }
}
