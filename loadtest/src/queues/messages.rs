//! Queues and messages of the load.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use tallystone_client::Connection;
use tallystone_client::proto::queue::v1::queue_service_client::QueueServiceClient;
use tallystone_client::proto::queue::v1::{
    BatchEnqueueRequest, CreateQueueRequest, DequeueRequest, FilterShape, Message, Queue, QueueType, Settlement, Verb,
};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::client::Connections;

/// The queue half over one connection.
pub type Client = QueueServiceClient<Connection>;

/// The bytes of a payload.
pub const PAYLOAD: usize = 100;
/// The teams by which messages are filtered.
pub const TEAMS: u64 = 1_000;
const BATCH: u64 = 100;
const FILLERS: usize = 16;
/// The value of the messages that are blocked.
const BUSY: &str = "busy";

/// What messages of a queue look like.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Without metadata.
    Plain,
    /// Each with an exclusivity value of its own.
    Valued,
    /// Each of one of the teams.
    Filtered,
    /// Both.
    Both,
}

/// Settings of the queues that are loaded.
pub struct Queues;

impl Queues {
    /// A simple queue.
    pub fn simple(name: &str) -> Queue {
        Queue { name: name.to_owned(), ..Queue::default() }
    }

    /// A queue with filters by team.
    pub fn filtered(name: &str) -> Queue {
        Queue { filter_shapes: vec![FilterShape { keys: vec!["team".to_owned()] }], ..Self::simple(name) }
    }

    /// An exclusive queue, with filters by team if wanted.
    pub fn exclusive(name: &str, filtered: bool) -> Queue {
        let plain = if filtered { Self::filtered(name) } else { Self::simple(name) };
        Queue { r#type: QueueType::Exclusive.into(), exclusivity_key: "value".to_owned(), ..plain }
    }
}

/// A client that takes large answers.
pub fn client(connections: &Connections, worker: usize) -> Client {
    QueueServiceClient::new(connections.channel(worker)).max_decoding_message_size(64 * 1024 * 1024)
}

/// Creates a queue.
pub async fn create(connections: &Connections, queue: Queue) -> Result<()> {
    let request = CreateQueueRequest { queue: Some(queue), reason: String::new() };
    client(connections, 0).create_queue(request).await?;
    Ok(())
}

/// A message that was never sent, with a token of this moment.
pub fn message(kind: Kind, number: u64) -> Message {
    let mut metadata = HashMap::new();
    if matches!(kind, Kind::Valued | Kind::Both) {
        metadata.insert("value".to_owned(), Uuid::now_v7().to_string());
    }
    if matches!(kind, Kind::Filtered | Kind::Both) {
        metadata.insert("team".to_owned(), team(number));
    }
    let message_id = Uuid::now_v7().to_string();
    Message { message_id, payload: vec![7; PAYLOAD], metadata, ..Message::default() }
}

/// The settlement that completes a lease.
pub fn completion(lease_token: String) -> Settlement {
    Settlement { lease_token, verb: Verb::Complete.into(), ..Settlement::default() }
}

/// When a message was taken in, since 1970 by the server's clock.
pub fn enqueued(message: &Message) -> Option<Duration> {
    let time = message.enqueue_time?;
    Some(Duration::new(u64::try_from(time.seconds).ok()?, u32::try_from(time.nanos).ok()?))
}

/// The name of a team by any number.
pub fn team(number: u64) -> String {
    format!("team-{}", number % TEAMS)
}

/// Puts at least so many messages into a queue.
pub async fn fill(connections: &Connections, queue: &str, kind: Kind, count: u64) -> Result<()> {
    put(connections, queue, count, move |number| message(kind, number)).await
}

/// The same with two keys: each message of a team and of one of three tiers.
pub async fn fill_with_two_keys(connections: &Connections, queue: &str, count: u64) -> Result<()> {
    let with_both = |number: u64| {
        let mut message = message(Kind::Filtered, number);
        message.metadata.insert("tier".to_owned(), format!("tier-{}", number % 3));
        message
    };
    put(connections, queue, count, with_both).await
}

/// Puts at least so many messages in that wait behind one which is leased and better than all others.
pub async fn block(connections: &Connections, queue: &str, count: u64) -> Result<()> {
    let blocked = |number: u64| {
        let metadata = [("value", BUSY.to_owned()), ("team", team(number))];
        let metadata = metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        Message { priority: Some(0), metadata, ..message(Kind::Plain, number) }
    };
    put(connections, queue, count, blocked).await?;
    let lease_duration = Some(prost_types::Duration { seconds: 43_200, nanos: 0 });
    let request = DequeueRequest { queue: queue.to_owned(), lease_duration, ..DequeueRequest::default() };
    let leases = client(connections, 0).dequeue(request).await?.into_inner().leases;
    ensure!(leases.len() == 1, "the first of the value is leased");
    Ok(())
}

async fn put(
    connections: &Connections,
    queue: &str,
    count: u64,
    message: impl Fn(u64) -> Message + Clone + Send + 'static,
) -> Result<()> {
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for worker in 0..FILLERS {
        let (mut client, queue) = (client(connections, worker), queue.to_owned());
        let (next, message) = (Arc::clone(&next), message.clone());
        tasks.spawn(async move {
            loop {
                let first = next.fetch_add(BATCH, Ordering::Relaxed);
                if first >= count {
                    return anyhow::Ok(());
                }
                let messages = (first..first + BATCH).map(&message).collect();
                let request = BatchEnqueueRequest { queue: queue.clone(), messages };
                let results = client.batch_enqueue(request).await?.into_inner().results;
                if let Some(error) = results.into_iter().find_map(|result| result.error) {
                    anyhow::bail!("a message was refused: {error:?}");
                }
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}
