//! One write at a time for each partition: what arrives while one is in flight goes out together as the next.
//!
//! A batch of one partition is one mutation to the store, four to five times as cheap a row as single inserts. Whoever finds
//! the lane free writes at once; others wait in its queue, and the first of them leads the next batch. A lane knows one
//! attempt only: repeating is up to whoever asked.

use std::hash::Hash;
use std::sync::Arc;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use tokio::sync::oneshot;

use crate::adapters::cassandra::fault::Fault;
use crate::adapters::cassandra::link::Link;
use crate::adapters::cassandra::store::Prepared;
use crate::adapters::cassandra::value::Value;
use crate::domain::limits::PARTITION_BATCH_ROWS_MAX;

/// Rows of one partition, as the values of one statement each.
pub type Rows = Arc<Vec<Vec<Value>>>;

/// Rows that wait for their partition.
struct Waiting<P: Clone + Eq + Hash> {
    rows: Rows,
    told: oneshot::Sender<Told<P>>,
}

enum Told<P: Clone + Eq + Hash> {
    /// Another one wrote them; this came of it.
    Written(Result<(), Fault>),
    /// The one before is done: write these, and your own.
    Lead(LaneHeld<P>),
}

type Queues<P> = Arc<DashMap<P, Vec<Waiting<P>>>>;

/// The lanes of all partitions that have a write in flight.
pub struct Lanes<P: Clone + Eq + Hash> {
    queues: Queues<P>,
}

impl<P: Clone + Eq + Hash> Default for Lanes<P> {
    fn default() -> Self {
        Self { queues: Arc::default() }
    }
}

impl<P: Clone + Eq + Hash> Lanes<P> {
    /// Writes rows of a partition once, together with what else waits for it. All of them go by the same statement.
    pub async fn write(&self, link: &Link, statement: &Prepared, partition: &P, rows: Rows) -> Result<(), Fault> {
        let mut lane = match self.enter(partition, &rows) {
            Ok(lane) => lane,
            Err(answer) => match answer.await {
                Ok(Told::Written(result)) => return result,
                Ok(Told::Lead(lane)) => lane,
                // The leader was stopped in the middle of a write that may have had these rows in it.
                Err(_) => return Err(stopped()),
            },
        };
        let fitting = room_beside(rows.len(), &lane.left);
        let others: Vec<Waiting<P>> = lane.left.drain(..fitting).collect();
        let result = if others.is_empty() {
            send(link, statement, &rows).await
        } else {
            let all = rows.iter().chain(others.iter().flat_map(|waiting| waiting.rows.iter())).cloned();
            send(link, statement, &all.collect::<Vec<_>>()).await
        };
        drop(lane);
        for waiting in others {
            // Whoever waited may have been stopped.
            let _ = waiting.told.send(Told::Written(result.clone()));
        }
        result
    }

    /// Takes the lane if it is free, else a place in its queue.
    fn enter(&self, partition: &P, rows: &Rows) -> Result<LaneHeld<P>, oneshot::Receiver<Told<P>>> {
        match self.queues.entry(partition.clone()) {
            Entry::Vacant(free) => {
                free.insert(Vec::new());
                Ok(LaneHeld::new(&self.queues, partition, Vec::new()))
            }
            Entry::Occupied(mut taken) => {
                let (told, answer) = oneshot::channel();
                taken.get_mut().push(Waiting { rows: Arc::clone(rows), told });
                Err(answer)
            }
        }
    }
}

/// The right to write a partition; ends by handing it on. It travels to whoever is next, so that it is not lost with one who
/// is stopped before taking it up.
struct LaneHeld<P: Clone + Eq + Hash> {
    /// None once it was given back.
    lane: Option<(Queues<P>, P)>,
    /// What was taken out of the queue and is not written; it goes before what came later.
    left: Vec<Waiting<P>>,
}

impl<P: Clone + Eq + Hash> LaneHeld<P> {
    fn new(queues: &Queues<P>, partition: &P, left: Vec<Waiting<P>>) -> Self {
        Self { lane: Some((Arc::clone(queues), partition.clone())), left }
    }
}

impl<P: Clone + Eq + Hash> Drop for LaneHeld<P> {
    fn drop(&mut self) {
        let Some((queues, partition)) = self.lane.take() else { return };
        let is_empty = |_: &P, queue: &mut Vec<Waiting<P>>| queue.is_empty();
        if self.left.is_empty() && queues.remove_if_mut(&partition, is_empty).is_some() {
            return;
        }
        let Entry::Occupied(mut lane) = queues.entry(partition.clone()) else {
            unreachable!("a lane stays while somebody leads it");
        };
        let mut queue = std::mem::take(&mut self.left);
        queue.append(lane.get_mut());
        let mut queue = queue.into_iter();
        while let Some(next) = queue.next() {
            let held = Self::new(&queues, &partition, queue.collect());
            match next.told.send(Told::Lead(held)) {
                Ok(()) => return,
                // It was stopped; the one behind it leads.
                Err(Told::Lead(mut held)) => {
                    held.lane = None;
                    queue = std::mem::take(&mut held.left).into_iter();
                }
                Err(Told::Written(_)) => unreachable!("a lead was sent"),
            }
        }
        lane.remove();
    }
}

/// How many of those that wait fit into one batch beside a leader's rows.
fn room_beside<P: Clone + Eq + Hash>(own: usize, others: &[Waiting<P>]) -> usize {
    let mut rows = own;
    let fits = others.iter().take_while(|waiting| {
        rows += waiting.rows.len();
        rows <= PARTITION_BATCH_ROWS_MAX
    });
    fits.count()
}

async fn send(link: &Link, statement: &Prepared, rows: &[Vec<Value>]) -> Result<(), Fault> {
    for rows in rows.chunks(PARTITION_BATCH_ROWS_MAX) {
        link.write_group_once(statement, rows).await?;
    }
    Ok(())
}

fn stopped() -> Fault {
    Fault { outcome: crate::ports::Outcome::Unknown, ..Fault::not_sent("whoever wrote them was stopped") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entered(lanes: &Lanes<u8>) -> Result<LaneHeld<u8>, oneshot::Receiver<Told<u8>>> {
        lanes.enter(&7, &Rows::default())
    }

    fn waits(lanes: &Lanes<u8>) -> oneshot::Receiver<Told<u8>> {
        match entered(lanes) {
            Ok(_) => panic!("the lane is taken"),
            Err(answer) => answer,
        }
    }

    fn leads(answer: &mut oneshot::Receiver<Told<u8>>) -> LaneHeld<u8> {
        match answer.try_recv() {
            Ok(Told::Lead(lane)) => lane,
            Ok(Told::Written(_)) | Err(_) => panic!("it is its turn"),
        }
    }

    #[test]
    fn a_lane_goes_to_the_first_who_waits_with_all_behind_it_and_is_free_in_the_end() {
        let lanes = Lanes::default();
        let first = entered(&lanes).ok().expect("it is free");
        let (mut second, mut third) = (waits(&lanes), waits(&lanes));
        drop(first);
        let lane = leads(&mut second);
        assert_eq!(lane.left.len(), 1, "the third waits for what the second leads");
        drop(lane);
        drop(leads(&mut third));
        assert!(lanes.queues.is_empty());
        assert!(entered(&lanes).is_ok());
    }

    #[test]
    fn a_lane_is_not_lost_with_those_who_are_stopped() {
        let lanes = Lanes::default();
        let first = entered(&lanes).ok().expect("it is free");
        let (second, third, mut fourth) = (waits(&lanes), waits(&lanes), waits(&lanes));
        drop(third);
        drop(first);
        drop(second); // it was given the lane and has not looked
        drop(leads(&mut fourth));
        assert!(lanes.queues.is_empty());
    }
}
