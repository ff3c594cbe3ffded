//! The exact ledger: what every counter must read, because every item is sent until its fate is known.
//!
//! Each worker owns the counters of one residue, so its part of the ledger needs no lock. An item whose answer is lost or
//! unknown is sent again under the same token; only what was answered as applied is counted.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use tallystone_client::proto::counter::v1::{AddItem, BatchAddCountsRequest, BatchGetCountsRequest, Freshness};

use crate::client::{Counters, add_item, counter_name};
use crate::load::{Call, Dice};

/// Sends of one batch before the run is given up.
const SENDS_MAX: u32 = 600;
const BETWEEN_SENDS: Duration = Duration::from_millis(100);

/// One worker with its part of the ledger.
pub struct Writer {
    client: Counters,
    namespace: &'static str,
    items: usize,
    residue: u64,
    modulus: u64,
    dice: Dice,
    next: u64,
    /// What counter `residue + k * modulus` must read.
    pub sums: Vec<i64>,
    /// Items that the server will never apply; none are expected.
    pub refused: u64,
    /// Batches that had to be sent again.
    pub resent: u64,
}

impl Writer {
    /// The worker of one residue of all counters.
    pub fn new(client: Counters, namespace: &'static str, counters: u64, items: usize, part: (u64, u64)) -> Self {
        let (residue, modulus) = part;
        let own = (counters - residue).div_ceil(modulus);
        let sums = vec![0; usize::try_from(own).expect("the ledger fits into memory")];
        let dice = Dice::new(residue + 1);
        Self { client, namespace, items, residue, modulus, dice, next: 0, sums, refused: 0, resent: 0 }
    }

    /// The number of a counter of this worker.
    pub fn number(&self, own: usize) -> u64 {
        self.residue + own as u64 * self.modulus
    }

    /// The next items: counters in turn, so that each is hit alike, with deltas of both signs.
    fn next_items(&mut self) -> Vec<(usize, AddItem)> {
        (0..self.items)
            .map(|_| {
                // A stride that shares no factor with any ledger length visits every counter before the first again.
                let own = usize::try_from(self.next.wrapping_mul(7_919) % self.sums.len() as u64).expect("an index");
                self.next += 1;
                let delta = i64::try_from(self.dice.below(2_000)).expect("below 2,000") - 500;
                let delta = if delta == 0 { 1 } else { delta };
                (own, add_item(self.number(own), delta))
            })
            .collect()
    }

    async fn settle(&mut self, mut items: Vec<(usize, AddItem)>) -> Result<(), String> {
        for send in 0..SENDS_MAX {
            if send > 0 {
                self.resent += 1;
                tokio::time::sleep(BETWEEN_SENDS).await;
            }
            let batch = items.iter().map(|(_, item)| item.clone()).collect();
            let request = BatchAddCountsRequest { namespace: self.namespace.to_owned(), items: batch };
            let Ok(answer) = self.client.batch_add_counts(request).await else { continue };
            let mut again = Vec::new();
            for ((own, item), result) in items.into_iter().zip(answer.into_inner().results) {
                match result.error {
                    None => self.sums[own] += item.delta(),
                    Some(error) if error.reason == "NOT_APPLIED" || error.reason.starts_with("INVALID") => {
                        self.refused += 1;
                    }
                    Some(_) => again.push((own, item)), // unknown or not done: the same token once more
                }
            }
            items = again;
            if items.is_empty() {
                return Ok(());
            }
        }
        Err(format!("{} items without a known fate", items.len()))
    }
}

impl Call for Writer {
    async fn call(&mut self) -> Result<u64, String> {
        let items = self.next_items();
        let count = items.len() as u64;
        self.settle(items).await.map(|()| count)
    }
}

/// A counter that does not read what the ledger says.
pub struct Difference {
    /// Its name.
    pub name: String,
    /// What the ledger says.
    pub wanted: i64,
    /// What it reads.
    pub read: i64,
}

/// Reads counters and compares; answers the differences.
pub async fn compare(
    client: &mut Counters,
    namespace: &str,
    wanted: &[(u64, i64)],
    freshness: Freshness,
) -> Result<Vec<Difference>> {
    const BATCH: usize = 1_000;
    let mut differences = Vec::new();
    for part in wanted.chunks(BATCH) {
        let request = BatchGetCountsRequest {
            namespace: namespace.to_owned(),
            counter_names: part.iter().map(|(number, _)| counter_name(*number)).collect(),
            freshness: freshness.into(),
            ..BatchGetCountsRequest::default()
        };
        let answer = client.batch_get_counts(request).await?.into_inner();
        ensure!(answer.results.len() == part.len(), "a result for each counter");
        for ((_, wanted), result) in part.iter().zip(answer.results) {
            let Some(reading) = result.reading else { bail!("{}: {:?}", result.counter_name, result.error) };
            if reading.count != *wanted {
                differences.push(Difference { name: result.counter_name, wanted: *wanted, read: reading.count });
            }
        }
    }
    Ok(differences)
}
