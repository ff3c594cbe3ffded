//! The catalog of queues: decided in memory, kept in rows.
//!
//! ```text
//! h name 0 time i64 version u64 queue u128     change, kept for ever
//! n queue u128                                 a number that was given, kept for ever
//! q name                                       live queue
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use parking_lot::RwLock;

use super::key;
use super::spaces::Spaces;
use crate::adapters::embedded::error::{ReadError, foreign_key};
use crate::adapters::embedded::key::flipped;
use crate::adapters::embedded::read::rows;
use crate::adapters::embedded::writer::Batch;
use crate::adapters::stored::queues::catalog::{decode_change, decode_queue, encode_change, encode_queue};
use crate::domain::queue::{Queue, QueueId, QueueName};
use crate::ports::{Order, QueueChange, QueueRecord};

/// What lives in the catalog, as it was last committed.
#[derive(Default)]
pub struct Catalog {
    state: RwLock<State>,
}

#[derive(Default)]
struct State {
    queues: BTreeMap<QueueName, Queue>,
    numbers: BTreeSet<QueueId>,
}

impl Catalog {
    /// Reads what was committed.
    pub fn open(spaces: &Spaces) -> Result<Self, ReadError> {
        let mut state = State::default();
        for row in rows(&spaces.catalog, key::all(b'q'), Order::OldestFirst) {
            let queue = decode_queue(&row?.1)?;
            state.queues.insert(queue.spec.name.clone(), queue);
        }
        for row in rows(&spaces.catalog, key::all(b'n'), Order::OldestFirst) {
            let (key, _) = row?;
            state.numbers.insert(key::to_queue(&key).ok_or_else(|| foreign_key("number of a queue", &key))?);
        }
        Ok(Self { state: RwLock::new(state) })
    }

    /// Every live queue, by name.
    pub fn load(&self) -> Vec<Queue> {
        self.state.read().queues.values().cloned().collect()
    }

    /// Says why a record cannot be committed, if so.
    pub fn check(&self, record: &QueueRecord) -> Result<(), String> {
        let state = self.state.read();
        let (name, number) = (&record.change.name, record.change.queue);
        let live = state.queues.get(name);
        if live.map(|live| live.version) != record.expected_version {
            let is = live.map_or("absent".to_owned(), |live| format!("at version {}", live.version));
            return Err(format!("queue {name} is {is}"));
        }
        match live {
            Some(live) if live.id != number => Err(format!("queue {name} has the number {}", live.id)),
            None if state.numbers.contains(&number) => Err(format!("queue number {number} was given before")),
            Some(_) | None => Ok(()),
        }
    }

    /// Takes in a committed record.
    pub fn publish(&self, record: QueueRecord) {
        let mut state = self.state.write();
        state.numbers.insert(record.change.queue);
        match record.queue {
            Some(queue) => state.queues.insert(record.change.name, queue),
            None => state.queues.remove(&record.change.name),
        };
    }
}

/// Writes the rows of a record.
pub fn stage(spaces: &Spaces, batch: &mut Batch, record: &QueueRecord) {
    let change = &record.change;
    let live = [b"q", change.name.as_str().as_bytes()].concat();
    match &record.queue {
        Some(queue) => batch.put(&spaces.catalog, live, encode_queue(queue)),
        None => batch.remove(&spaces.catalog, live),
    }
    batch.put(&spaces.catalog, [&b"n"[..], &change.queue.0.to_be_bytes()].concat(), &b""[..]);
    batch.put(&spaces.catalog, change_key(change), encode_change(change));
}

/// The changes of a name, newest first.
pub fn history(spaces: &Spaces, name: &QueueName, skip: usize, limit: usize) -> Result<Vec<QueueChange>, ReadError> {
    let mut end = of_name(name);
    // The 0 behind the name, raised by one.
    *end.last_mut().expect("a key is not empty") = 1;
    let range = (Bound::Included(of_name(name)), Bound::Excluded(end));
    let changes = rows(&spaces.catalog, range, Order::NewestFirst).skip(skip).take(limit);
    changes.map(|row| Ok(decode_change(&row?.1)?)).collect()
}

fn change_key(change: &QueueChange) -> Vec<u8> {
    let (version, queue) = (change.version.to_be_bytes(), change.queue.0.to_be_bytes());
    [&of_name(&change.name)[..], &flipped(change.time), &version, &queue].concat()
}

/// 0 ends the name, because no name holds it.
fn of_name(name: &QueueName) -> Vec<u8> {
    [b"h", name.as_str().as_bytes(), &[0]].concat()
}
