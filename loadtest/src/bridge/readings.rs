//! Reads of the counters of queues.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use prost_types::Timestamp;
use tallystone_client::proto::counter::v1::{
    BatchGetCountsRequest, GetCountRequest, GetCountResponse, GetCountSeriesRequest,
};

use crate::client::{Connections, Counters, reason_of};
use crate::load::{Call, Dice};

/// The namespace of the counters of queues.
const NAMESPACE: &str = "tallystone.queues";
/// The most counters of one call.
const BATCH: usize = 100;

/// One counter as it reads now.
pub async fn count(client: &mut Counters, name: &str) -> Result<GetCountResponse> {
    Ok(client.get_count(request(name)).await?.into_inner())
}

fn request(name: &str) -> GetCountRequest {
    GetCountRequest { namespace: NAMESPACE.to_owned(), counter_name: name.to_owned(), ..Default::default() }
}

/// The sum of the steps of a series since a moment.
pub async fn series_sum(client: &mut Counters, name: &str, from: SystemTime) -> Result<i64> {
    let request = GetCountSeriesRequest {
        namespace: NAMESPACE.to_owned(),
        counter_name: name.to_owned(),
        from: Some(Timestamp::from(from)),
        to: Some(Timestamp::from(SystemTime::now() + Duration::from_secs(60))),
        step: "10s".to_owned(),
        ..Default::default()
    };
    let rows = client.get_count_series(request).await?.into_inner().rows;
    Ok(rows.iter().map(|row| row.sum).sum())
}

/// Many counters; one that was never written reads 0.
pub async fn counts(client: &mut Counters, names: &[String]) -> Result<Vec<i64>> {
    let mut found = Vec::with_capacity(names.len());
    for names in names.chunks(BATCH) {
        let request = BatchGetCountsRequest {
            namespace: NAMESPACE.to_owned(),
            counter_names: names.to_vec(),
            ..Default::default()
        };
        for result in client.batch_get_counts(request).await?.into_inner().results {
            found.push(result.reading.context("every counter answers")?.count);
        }
    }
    Ok(found)
}

/// How far back a moment lies, by this machine's clock.
pub fn age(moment: &Timestamp) -> Duration {
    let since = Duration::new(moment.seconds.unsigned_abs(), moment.nanos.unsigned_abs());
    SystemTime::now().duration_since(UNIX_EPOCH + since).unwrap_or_default()
}

/// One GetCount at a time, of a counter by chance.
pub struct Read {
    client: Counters,
    names: std::sync::Arc<Vec<String>>,
    dice: Dice,
}

impl Read {
    /// Some workers over some connections.
    pub fn workers(connections: &Connections, names: Vec<String>, count: usize) -> Vec<Self> {
        let names = std::sync::Arc::new(names);
        let worker = |number: usize| Self {
            client: connections.counters(number),
            names: std::sync::Arc::clone(&names),
            dice: Dice::new(number as u64 + 1),
        };
        (0..count).map(worker).collect()
    }
}

impl Call for Read {
    async fn call(&mut self) -> Result<u64, String> {
        let name = &self.names[self.dice.below(self.names.len() as u64) as usize];
        self.client.get_count(request(name)).await.map(|_| 1).map_err(|status| reason_of(&status))
    }
}
