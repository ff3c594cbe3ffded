//! Single calls: enqueue, dequeue with complete, dequeue alone.

use std::collections::HashMap;

use tallystone_client::proto::queue::v1::{CompleteRequest, DequeueRequest, EnqueueRequest, Lease};

use super::messages::{Client, Kind, TEAMS, client, message, team};
use crate::client::{Connections, reason_of};
use crate::load::{Call, Dice};

/// One Enqueue at a time.
pub struct Enqueue {
    client: Client,
    queue: String,
}

impl Enqueue {
    /// Some workers over some connections.
    pub fn workers(connections: &Connections, queue: &str, count: usize) -> Vec<Self> {
        (0..count).map(|worker| Self { client: client(connections, worker), queue: queue.to_owned() }).collect()
    }
}

impl Call for Enqueue {
    async fn call(&mut self) -> Result<u64, String> {
        let request = EnqueueRequest { queue: self.queue.clone(), message: Some(message(Kind::Plain, 0)) };
        self.client.enqueue(request).await.map(|_| 1).map_err(|status| reason_of(&status))
    }
}

/// One Dequeue and its Complete at a time.
pub struct Pair {
    client: Client,
    queue: String,
}

impl Pair {
    /// Some workers over some connections.
    pub fn workers(connections: &Connections, queue: &str, count: usize) -> Vec<Self> {
        (0..count).map(|worker| Self { client: client(connections, worker), queue: queue.to_owned() }).collect()
    }
}

impl Call for Pair {
    async fn call(&mut self) -> Result<u64, String> {
        finish_one(&mut self.client, &self.queue).await.map(|()| 1)
    }
}

/// One Dequeue at a time; its Complete goes on beside the next.
pub struct Take {
    client: Client,
    queue: String,
    kind: Kind,
    dice: Dice,
}

impl Take {
    /// Some workers over some connections.
    pub fn workers(connections: &Connections, queue: &str, count: usize, kind: Kind) -> Vec<Self> {
        let worker = |number| Self {
            client: client(connections, number),
            queue: queue.to_owned(),
            kind,
            dice: Dice::new(number as u64 + 1),
        };
        (0..count).map(worker).collect()
    }
}

impl Call for Take {
    async fn call(&mut self) -> Result<u64, String> {
        let filter = match self.kind {
            Kind::Plain | Kind::Valued => HashMap::new(),
            Kind::Filtered | Kind::Both => HashMap::from([("team".to_owned(), team(self.dice.below(TEAMS)))]),
        };
        let lease = dequeue(&mut self.client, &self.queue, filter).await?;
        let (mut client, queue) = (self.client.clone(), self.queue.clone());
        // Ends with the run if it is still under way then.
        drop(tokio::spawn(async move { complete(&mut client, queue, lease).await }));
        Ok(1)
    }
}

/// Leases a message and completes it.
pub async fn finish_one(client: &mut Client, queue: &str) -> Result<(), String> {
    let lease = dequeue(client, queue, HashMap::new()).await?;
    complete(client, queue.to_owned(), lease).await
}

async fn dequeue(client: &mut Client, queue: &str, filter: HashMap<String, String>) -> Result<Lease, String> {
    let request = DequeueRequest { queue: queue.to_owned(), filter, ..DequeueRequest::default() };
    let answer = client.dequeue(request).await.map_err(|status| reason_of(&status))?.into_inner();
    answer.leases.into_iter().next().ok_or_else(|| "EMPTY".to_owned())
}

async fn complete(client: &mut Client, queue: String, lease: Lease) -> Result<(), String> {
    let request = CompleteRequest { queue, lease_token: lease.lease_token };
    client.complete(request).await.map(drop).map_err(|status| reason_of(&status))
}
