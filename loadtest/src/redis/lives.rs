//! Whole lives of messages: enqueue, dequeue, complete, and the end of their retention.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tallystone_client::proto::queue::v1::{
    BatchEnqueueRequest, DequeueRequest, GetDepthRequest, SettleMessagesRequest,
};

use crate::client::Connections;
use crate::load::Call;
use crate::queues::calls::{Enqueue, finish_one};
use crate::queues::messages::{Client, Kind, client, completion, message};

/// How long what is finished may take to be forgotten after its retention.
const FORGOTTEN_WITHIN: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Enqueues one message, then leases and completes one.
pub struct Life {
    enqueue: Enqueue,
    client: Client,
    queue: String,
}

impl Life {
    pub fn workers(connections: &Connections, queue: &str, count: usize) -> Vec<Self> {
        let enqueues = Enqueue::workers(connections, queue, count).into_iter().enumerate();
        enqueues
            .map(|(at, enqueue)| Self { enqueue, client: client(connections, at), queue: queue.to_owned() })
            .collect()
    }
}

impl Call for Life {
    async fn call(&mut self) -> Result<u64, String> {
        self.enqueue.call().await?;
        finish_one(&mut self.client, &self.queue).await.map(|()| 1)
    }
}

/// The same for so many messages with each call.
pub struct Lives {
    client: Client,
    queue: String,
    kind: Kind,
    batch: u64,
    number: u64,
}

impl Lives {
    pub fn workers(connections: &Connections, queue: &str, count: usize, kind: Kind, batch: u64) -> Vec<Self> {
        let worker = |at| Self { client: client(connections, at), queue: queue.to_owned(), kind, batch, number: 0 };
        (0..count).map(worker).collect()
    }
}

impl Call for Lives {
    async fn call(&mut self) -> Result<u64, String> {
        let numbers = self.number..self.number + self.batch;
        self.number = numbers.end;
        let messages = numbers.map(|number| message(self.kind, number)).collect();
        let request = BatchEnqueueRequest { queue: self.queue.clone(), messages };
        let results =
            self.client.batch_enqueue(request).await.map_err(|status| status.to_string())?.into_inner().results;
        if let Some(error) = results.into_iter().find_map(|result| result.error) {
            return Err(format!("{error:?}"));
        }
        finish(&mut self.client, &self.queue, self.batch).await.map_err(|error| error.to_string())
    }
}

/// Leases and completes up to so many messages. Answers how many there were.
pub async fn finish(client: &mut Client, queue: &str, most: u64) -> Result<u64> {
    let max_messages = i32::try_from(most.min(100))?;
    let request = DequeueRequest { queue: queue.to_owned(), max_messages, ..DequeueRequest::default() };
    let leases = client.dequeue(request).await?.into_inner().leases;
    if leases.is_empty() {
        return Ok(0);
    }
    let items = leases.into_iter().map(|lease| completion(lease.lease_token)).collect();
    let request = SettleMessagesRequest { queue: queue.to_owned(), items };
    let results = client.settle_messages(request).await?.into_inner().results;
    ensure!(results.iter().all(|result| result.error.is_none()), "a lease was not settled");
    Ok(results.len() as u64)
}

/// Completes all messages of a queue.
pub async fn finish_all(connections: &Connections, queue: &str) -> Result<u64> {
    let mut tasks = tokio::task::JoinSet::new();
    for worker in 0..8 {
        let (mut client, queue) = (client(connections, worker), queue.to_owned());
        tasks.spawn(async move {
            let mut all = 0;
            loop {
                match finish(&mut client, &queue, 100).await? {
                    0 => return anyhow::Ok(all),
                    some => all += some,
                }
            }
        });
    }
    let mut all = 0;
    while let Some(finished) = tasks.join_next().await {
        all += finished??;
    }
    Ok(all)
}

/// Waits until the queue has no message in any state.
pub async fn until_forgotten(connections: &Connections, queue: &str) -> Result<()> {
    let (mut client, begun) = (client(connections, 0), Instant::now());
    loop {
        let request = GetDepthRequest { queue: queue.to_owned(), ..GetDepthRequest::default() };
        let depth = client.get_depth(request).await?.into_inner();
        let left = depth.pending + depth.running + depth.invisible + depth.completed + depth.canceled + depth.errored;
        if left == 0 {
            return Ok(());
        }
        ensure!(begun.elapsed() < FORGOTTEN_WITHIN, "{left} messages are left after {FORGOTTEN_WITHIN:?}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
