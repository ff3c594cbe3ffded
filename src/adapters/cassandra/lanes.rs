//! One write at a time for each partition: what arrives while one is in flight goes out together as the next.
//!
//! A batch of one partition is one mutation to the store, four to five times as cheap a row as single inserts. Whoever finds
//! the lane free writes at once; others wait in its queue, and the first of them leads the next batch. A lane knows one
//! attempt only: repeating is up to whoever asked.

use std::sync::Arc;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use tokio::sync::oneshot;

use crate::adapters::cassandra::fault::Fault;
use crate::adapters::cassandra::link::Link;
use crate::adapters::cassandra::place::{Place, stored_counter};
use crate::adapters::cassandra::store::Prepared;
use crate::adapters::cassandra::value::{Bind, Value};
use crate::domain::Timestamp;
use crate::domain::counter::{Counter, DatasetId};
use crate::domain::limits::PARTITION_BATCH_ROWS_MAX;

/// A partition of a slice's events.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Partition {
    /// The dataset.
    pub dataset: DatasetId,
    /// The beginning of the slice.
    pub slice_start: Timestamp,
    /// The counter.
    pub counter: Counter,
    /// The buckets.
    pub place: Place,
}

/// The columns of an event that are not those of its partition, and the cell timestamp.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EventRow {
    /// Microseconds since 1970.
    pub event_time: i64,
    /// The event id.
    pub event_id: Vec<u8>,
    /// The value cell.
    pub value: Vec<u8>,
    /// The cell timestamp.
    pub timestamp: i64,
}

/// Rows that wait for their partition.
struct Waiting {
    rows: Arc<Vec<EventRow>>,
    told: oneshot::Sender<Told>,
}

enum Told {
    /// Another one wrote them; this came of it.
    Written(Result<(), Fault>),
    /// The one before is done: write these, and your own.
    Lead(Vec<Waiting>),
}

/// The lanes of all partitions that have a write in flight.
#[derive(Default)]
pub struct Lanes {
    queues: DashMap<Partition, Vec<Waiting>>,
}

impl Lanes {
    /// Writes rows of a partition once, together with what else waits for it.
    pub async fn write(
        &self,
        link: &Link,
        statement: &Prepared,
        partition: &Partition,
        rows: Arc<Vec<EventRow>>,
    ) -> Result<(), Fault> {
        let waiting = match self.queues.entry(partition.clone()) {
            Entry::Vacant(free) => {
                free.insert(Vec::new());
                None
            }
            Entry::Occupied(mut taken) => {
                let (told, answer) = oneshot::channel();
                taken.get_mut().push(Waiting { rows: Arc::clone(&rows), told });
                Some(answer)
            }
        };
        let mut others = match waiting {
            None => Vec::new(),
            Some(answer) => match answer.await {
                Ok(Told::Written(result)) => return result,
                Ok(Told::Lead(others)) => others,
                // The leader was stopped in the middle of a write that may have had these rows in it.
                Err(_) => return Err(stopped()),
            },
        };
        let kept = others.split_off(room_beside(rows.len(), &others));
        let lane = LaneHeld { lanes: self, partition, left: kept };
        let all: Vec<&EventRow> = rows.iter().chain(others.iter().flat_map(|waiting| waiting.rows.iter())).collect();
        let result = send(link, statement, partition, &all).await;
        drop(lane);
        for waiting in others {
            // Whoever waited may have been stopped.
            let _ = waiting.told.send(Told::Written(result.clone()));
        }
        result
    }
}

/// The right to write a partition; ends by handing it on.
struct LaneHeld<'a> {
    lanes: &'a Lanes,
    partition: &'a Partition,
    /// What did not fit into the batch; it goes before what came later.
    left: Vec<Waiting>,
}

impl Drop for LaneHeld<'_> {
    fn drop(&mut self) {
        let Entry::Occupied(mut lane) = self.lanes.queues.entry(self.partition.clone()) else {
            unreachable!("a lane stays while somebody leads it");
        };
        let mut queue = std::mem::take(&mut self.left);
        queue.append(lane.get_mut());
        let mut queue = queue.into_iter();
        while let Some(next) = queue.next() {
            let rest: Vec<Waiting> = queue.collect();
            match next.told.send(Told::Lead(rest)) {
                Ok(()) => return,
                // It was stopped; the one behind it leads.
                Err(Told::Lead(rest)) => queue = rest.into_iter(),
                Err(Told::Written(_)) => unreachable!("a lead was sent"),
            }
        }
        lane.remove();
    }
}

/// How many of those that wait fit into one batch beside a leader's rows.
fn room_beside(own: usize, others: &[Waiting]) -> usize {
    let mut rows = own;
    let fits = others.iter().take_while(|waiting| {
        rows += waiting.rows.len();
        rows <= PARTITION_BATCH_ROWS_MAX
    });
    fits.count()
}

async fn send(link: &Link, statement: &Prepared, partition: &Partition, rows: &[&EventRow]) -> Result<(), Fault> {
    let (ns, name) = stored_counter(&partition.counter);
    let (bucket, event_bucket) = (partition.place.time_bucket.micros(), partition.place.event_bucket);
    let values = |row: &&EventRow| {
        (ns, name, bucket, event_bucket, row.event_time, &row.event_id, &row.value, row.timestamp).bind()
    };
    for rows in rows.chunks(PARTITION_BATCH_ROWS_MAX) {
        let rows: Vec<Vec<Value>> = rows.iter().map(values).collect();
        link.write_group_once(statement, &rows).await?;
    }
    Ok(())
}

fn stopped() -> Fault {
    Fault { outcome: crate::ports::Outcome::Unknown, ..Fault::not_sent("the store is closing") }
}
