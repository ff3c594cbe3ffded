//! Counts of the counters of queues.

use prost_types::Timestamp;
use tonic::Status;

use super::methods::BATCH_GET_COUNTS;
use crate::http::console::in_process_client::InProcessClient;
use tallystone_proto::counter::v1 as pb;

/// The namespace of the counters of queues.
pub const QUEUE_COUNTERS: &str = "tallystone.queues";

/// The counts of some counters of queues, from one reading.
pub struct DatedCounts {
    /// In the order of the names. None for one that cannot be read.
    pub counts: Vec<Option<i64>>,
    /// Up to when changes of queues are in all of them; none while it is not known.
    pub as_of: Option<Timestamp>,
}

/// Reads some counters of queues.
pub async fn queue_counts(calls: &InProcessClient, counter_names: Vec<String>) -> Result<DatedCounts, Status> {
    let namespace = QUEUE_COUNTERS.to_owned();
    let request = pb::BatchGetCountsRequest { namespace, counter_names, ..Default::default() };
    let results = calls.ask::<pb::BatchGetCountsResponse>(BATCH_GET_COUNTS, &request).await?.results;
    Ok(counts_of(results))
}

/// The counts of some results.
pub fn counts_of(results: Vec<pb::GetResult>) -> DatedCounts {
    let readings: Vec<_> = results.into_iter().map(|read| read.reading.filter(|_| read.error.is_none())).collect();
    let times = readings.iter().flatten().filter(|reading| reading.as_of.is_some());
    let times = times.map(|reading| queue_as_of(reading.as_of, reading.reported_to));
    let as_of = earliest(times);
    DatedCounts { counts: readings.iter().map(|read| read.as_ref().map(|reading| reading.count)).collect(), as_of }
}

/// The earliest of some times; none if one of them is not known.
pub fn earliest(times: impl IntoIterator<Item = Option<Timestamp>>) -> Option<Timestamp> {
    // None is less than any time.
    times.into_iter().min_by_key(|at| at.map(|at| (at.seconds, at.nanos))).flatten()
}

/// The time up to which changes of queues are in a count of theirs. The count has all events up to one time, and the
/// queues reported all changes up to another.
pub fn queue_as_of(as_of: Option<Timestamp>, reported_to: Option<Timestamp>) -> Option<Timestamp> {
    earliest([as_of, reported_to])
}
