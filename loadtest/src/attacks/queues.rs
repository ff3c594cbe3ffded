//! Attacks by calls of queues, and the queues that attacks need.

use anyhow::{Result, ensure};
use tallystone_client::proto::queue::v1 as pb;
use tallystone_client::proto::queue::v1::queue_service_client::QueueServiceClient;
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout_at};

use super::{Site, flood};
use crate::client::reason_of;

/// The queue of the attacks.
pub const NAME: &str = "attack";
/// One of many shards.
pub const SHARDED: &str = "attack-shards";
/// Messages that a peek answers, and the bytes of each.
const PEEKED: usize = 100;
const PEEKED_BYTES: usize = 32 * 1024;
/// Streams of one connection.
const STREAMS: usize = 500;

/// Makes a queue; one that is there with the same settings stays.
pub async fn make(site: &Site, name: &str, shards: i32) -> Result<()> {
    let mut client = QueueServiceClient::new(site.connections(1).await?.channel(0));
    let queue = pb::Queue { name: name.to_owned(), shards: Some(shards), ..pb::Queue::default() };
    let request = pb::CreateQueueRequest { queue: Some(queue), reason: "an attack".to_owned() };
    client.create_queue(request).await?;
    Ok(())
}

/// A queue whose first messages make an answer of some megabytes.
pub async fn fill_for_peeks(site: &Site) -> Result<()> {
    make(site, NAME, 1).await?;
    let mut client = QueueServiceClient::new(site.connections(1).await?.channel(0));
    for _ in 0..PEEKED / 20 {
        let message = || pb::Message { payload: vec![b'x'; PEEKED_BYTES], ..pb::Message::default() };
        let messages = std::iter::repeat_with(message).take(20).collect();
        let answer = client.batch_enqueue(pb::BatchEnqueueRequest { queue: NAME.to_owned(), messages }).await?;
        ensure!(answer.into_inner().results.iter().all(|result| result.error.is_none()), "a message was refused");
    }
    Ok(())
}

/// Opens sessions that last for half a day.
pub async fn sessions(site: &Site, count: u64) -> Result<()> {
    let connections = site.connections(4).await?;
    flood(site, 64, count, |number| {
        let mut client = QueueServiceClient::new(connections.channel(number as usize));
        async move {
            let request = pb::OpenSessionRequest {
                session_lease: Some(prost_types::Duration { seconds: 43_200, nanos: 0 }),
                ..pb::OpenSessionRequest::default()
            };
            client.open_session(request).await.map(|_answer| ()).map_err(|status| reason_of(&status))
        }
    })
    .await;
    sleep_until(site.until()).await;
    Ok(())
}

/// Purges a queue under one token after another, then asks for one as another caller would.
pub async fn purges(site: &Site, count: u64) -> Result<()> {
    let connections = site.connections(4).await?;
    flood(site, 32, count, |number| {
        let mut client = QueueServiceClient::new(connections.channel(number as usize));
        async move {
            let request = pb::PurgeQueueRequest {
                queue: NAME.to_owned(),
                request_token: format!("purge-{number}"),
                ..pb::PurgeQueueRequest::default()
            };
            client.purge_queue(request).await.map(|_answer| ()).map_err(|status| reason_of(&status))
        }
    })
    .await;
    sleep_until(site.until()).await;
    Ok(())
}

/// Enqueues to queues of a template, each of which is made for it.
pub async fn templates(site: &Site, count: u64) -> Result<()> {
    let connections = site.connections(4).await?;
    flood(site, 16, count, |number| {
        let mut client = QueueServiceClient::new(connections.channel(number as usize));
        async move {
            let message = pb::Message { payload: b"x".to_vec(), ..pb::Message::default() };
            let request = pb::EnqueueRequest { queue: format!("timed/{number}"), message: Some(message) };
            client.enqueue(request).await.map(|_answer| ()).map_err(|status| reason_of(&status))
        }
    })
    .await;
    sleep_until(site.until()).await;
    Ok(())
}

/// Watches a queue as often as may be.
pub async fn watches(site: &Site, queue: &'static str, count: usize) -> Result<()> {
    let connections = site.connections(count.div_ceil(STREAMS)).await?;
    let mut tasks = JoinSet::new();
    for number in 0..count {
        let mut client = QueueServiceClient::new(connections.channel(number));
        let (told, until) = (std::sync::Arc::clone(&site.told), site.until());
        tasks.spawn(async move {
            let tell = |what: String| *told.lock().expect("no teller panics").entry(what).or_default() += 1;
            let interval = Some(prost_types::Duration { seconds: 0, nanos: 100_000_000 });
            let request = pb::WatchQueueRequest { queue: queue.to_owned(), interval };
            let watched = timeout_at(until, async {
                let mut answers = client.watch_queue(request).await?.into_inner();
                tell("watched".to_owned());
                while answers.message().await?.is_some() {
                    tell("answers".to_owned());
                }
                Ok::<_, tonic::Status>(())
            });
            if let Ok(Err(status)) = watched.await {
                tell(reason_of(&status));
            }
        });
    }
    while tasks.join_next().await.is_some() {}
    Ok(())
}
