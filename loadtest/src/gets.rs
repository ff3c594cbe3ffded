//! Ways to read: the rolled-up count from the cache, and the newest count with events waiting in the tail.

use std::time::Duration;

use anyhow::{Result, ensure};
use tallystone_client::proto::counter::v1::{BatchAddCountsRequest, Freshness, GetCountRequest};
use tokio::time::Instant;

use crate::adds::Aim;
use crate::client::{Connections, Counters, add_item, counter_name, reason_of};
use crate::load::{Call, Dice};

/// One GetCount at a time.
pub struct Get {
    client: Counters,
    aim: Aim,
    freshness: Freshness,
    dice: Dice,
}

impl Get {
    /// Some workers over some connections.
    pub fn workers(connections: &Connections, aim: Aim, freshness: Freshness, count: usize) -> Vec<Self> {
        let worker =
            |number| Self { client: connections.counters(number), aim, freshness, dice: Dice::new(number as u64 + 1) };
        (0..count).map(worker).collect()
    }
}

impl Call for Get {
    async fn call(&mut self) -> Result<u64, String> {
        let request = GetCountRequest {
            namespace: self.aim.namespace.to_owned(),
            counter_name: counter_name(self.aim.first + self.dice.below(self.aim.counters)),
            freshness: self.freshness.into(),
            ..GetCountRequest::default()
        };
        self.client.get_count(request).await.map(|_| 1).map_err(|status| reason_of(&status))
    }
}

/// Adds some events to each counter of the aim.
pub async fn fill(connections: &Connections, aim: Aim, events_each: u64) -> Result<()> {
    const BATCH: usize = 1_000;
    let mut client = connections.counters(0);
    let all: Vec<u64> = (0..events_each).flat_map(|_| aim.first..aim.first + aim.counters).collect();
    for numbers in all.chunks(BATCH) {
        let items = numbers.iter().map(|&number| add_item(number, 1)).collect();
        let request = BatchAddCountsRequest { namespace: aim.namespace.to_owned(), items };
        let answer = client.batch_add_counts(request).await?.into_inner();
        if let Some(error) = answer.results.iter().find_map(|result| result.error.as_ref()) {
            anyhow::bail!("filling: {}: {}", error.reason, error.message);
        }
    }
    Ok(())
}

/// Waits until the last counter of the aim is rolled up.
pub async fn settled(connections: &Connections, aim: Aim, within: Duration) -> Result<()> {
    let mut client = connections.counters(0);
    let deadline = Instant::now() + within;
    loop {
        let request = GetCountRequest {
            namespace: aim.namespace.to_owned(),
            counter_name: counter_name(aim.first + aim.counters - 1),
            freshness: Freshness::RolledUp.into(),
            ..GetCountRequest::default()
        };
        if !client.get_count(request).await?.into_inner().behind {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "not rolled up within {within:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
