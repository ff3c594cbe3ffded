//! Counts of the counters of queues.

use tonic::Status;

use super::methods::BATCH_GET_COUNTS;
use crate::api::http::console::ask::ConsoleCalls;
use crate::proto::counter::v1 as pb;

/// The namespace of the counters of queues.
pub const QUEUE_COUNTERS: &str = "tallystone.queues";

/// The counts of some counters in their order, from one reading. None for one that cannot be read.
pub async fn queue_counts(calls: &ConsoleCalls, counter_names: Vec<String>) -> Result<Vec<Option<i64>>, Status> {
    let namespace = QUEUE_COUNTERS.to_owned();
    let request = pb::BatchGetCountsRequest { namespace, counter_names, ..Default::default() };
    let results = calls.ask::<pb::BatchGetCountsResponse>(BATCH_GET_COUNTS, &request).await?.results;
    Ok(counts_of(results))
}

/// The counts of some results. None for one that cannot be read.
pub fn counts_of(results: Vec<pb::GetResult>) -> Vec<Option<i64>> {
    let known = |read: pb::GetResult| read.reading.filter(|_| read.error.is_none()).map(|reading| reading.count);
    results.into_iter().map(known).collect()
}
