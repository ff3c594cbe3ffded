//! What memory needs of the queues of a store that opens: every shard, from its header, its settings, its heads and its
//! kept answers. Bodies are not read.
//!
//! Whatever does not fit together refuses to open: a shard without its header, a head of a queue that never was, parts
//! that no shard has stored.

use std::collections::BTreeMap;
use std::path::Path;

use hashbrown::{HashMap, HashSet};

use super::key;
use super::spaces::{AnswerSpaces, Spaces};
use super::table::{Entry, Kept, Table};
use super::time::Moment;
use crate::adapters::embedded::error::{OpenError, ReadError, foreign_key};
use crate::adapters::embedded::key::TIDIED;
use crate::adapters::embedded::library::{self, Library};
use crate::adapters::embedded::read::rows;
use crate::adapters::stored::Damaged;
use crate::adapters::stored::queues::session::decode_session;
use crate::adapters::stored::queues::settings::{decode_header, decode_queue, decode_settings};
use crate::adapters::stored::queues::{decode_answer, decode_message};
use crate::domain::queue::durable::{Header, Inconsistent, KeptAnswer, Restoring};
use crate::domain::queue::{QueueId, Settings, ShardId};
use crate::ports::Order;

/// What a store has of queues.
#[derive(Default)]
pub struct Recovered {
    /// The keyspaces, if there ever was a queue.
    pub spaces: Option<Spaces>,
    /// The shards.
    pub table: Table,
    /// The moment of the last commit.
    pub moment: Option<Moment>,
}

/// Why a row is no part of any shard.
#[derive(Debug, thiserror::Error)]
enum Unfit {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("shard {} of queue {}: {why}", shard.number, shard.queue)]
    Parts { shard: ShardId, why: Inconsistent },
    #[error("queue {0} has rows and no entry")]
    Unknown(QueueId),
    #[error("shard {} of queue {} has no {what}", shard.number, shard.queue)]
    Missing { shard: ShardId, what: &'static str },
}

impl From<Damaged> for Unfit {
    fn from(damaged: Damaged) -> Self {
        Self::Read(damaged.into())
    }
}

/// Reads the shards of a store.
pub fn recover(library: &Library, dir: &Path) -> Result<Recovered, OpenError> {
    let Some(spaces) = Spaces::find(library, dir)? else { return Ok(Recovered::default()) };
    let answers = AnswerSpaces::find(library).map_err(OpenError::library(library::folder(dir)))?;
    let read = || -> Result<Recovered, Unfit> {
        let mut table = Table::new(queues(&spaces)?, answers);
        let (mut shards, deleted) = begin(&spaces, &table)?;
        value_limits(&spaces, &table, &mut shards)?;
        sessions(&spaces, &table, &mut shards)?;
        heads(&spaces, &mut table, &mut shards, &deleted)?;
        kept_answers(&table, &mut shards)?;
        for (shard, parts) in shards {
            let core = parts.finish().map_err(|why| Unfit::Parts { shard, why })?;
            table.shards.insert(shard, Kept::new(core));
        }
        outbox(&spaces, &mut table)?;
        let moment = spaces.shards.get(key::CLOCK).map_err(ReadError::from)?;
        let moment = moment.map(|bytes| Moment::from_bytes(&bytes)).transpose()?;
        Ok(Recovered { spaces: Some(spaces.clone()), table, moment })
    };
    read().map_err(|unfit| match unfit {
        Unfit::Read(ReadError::Library(source)) => OpenError::library(library::folder(dir))(source),
        unfit @ (Unfit::Read(_) | Unfit::Parts { .. } | Unfit::Unknown(_) | Unfit::Missing { .. }) => {
            OpenError::damaged(library::folder(dir), unfit.to_string())
        }
    })
}

type Queues = BTreeMap<QueueId, Option<u32>>;
type Shards = HashMap<ShardId, Restoring>;

fn queues(spaces: &Spaces) -> Result<Queues, Unfit> {
    let mut queues = Queues::new();
    for row in rows(&spaces.shards, key::all(b'q'), Order::OldestFirst) {
        let (key, value) = row?;
        let queue = key::to_queue(&key).ok_or_else(|| foreign_key("queue", &key))?;
        queues.insert(queue, decode_queue(&value)?);
    }
    Ok(queues)
}

/// Headers and settings of all shards there are; and which of them were deleted, so that their heads are left over.
fn begin(spaces: &Spaces, table: &Table) -> Result<(Shards, HashSet<ShardId>), Unfit> {
    let mut headers: HashMap<ShardId, Header> = HashMap::new();
    for row in rows(&spaces.shards, key::all(b'h'), Order::OldestFirst) {
        let (key, value) = row?;
        let shard = key::to_tagged(&key).ok_or_else(|| foreign_key("queue header", &key))?;
        headers.insert(shard, decode_header(shard.number, &value)?);
    }
    let mut settings: HashMap<ShardId, Settings> = HashMap::new();
    for row in rows(&spaces.shards, key::all(b's'), Order::OldestFirst) {
        let (key, value) = row?;
        let shard = key::to_tagged(&key).ok_or_else(|| foreign_key("queue settings", &key))?;
        settings.insert(shard, decode_settings(&value)?);
    }
    let (mut shards, mut deleted) = (Shards::new(), HashSet::new());
    for (queue, count) in table.live() {
        for number in 0..count {
            let shard = ShardId { queue, number };
            let missing = |what| move || Unfit::Missing { shard, what };
            let header = headers.remove(&shard).ok_or_else(missing("header"))?;
            let settings = settings.remove(&shard).ok_or_else(missing("settings"))?;
            if header.deleted.is_some() {
                deleted.insert(shard);
            }
            shards.insert(shard, Restoring::new(header, settings).map_err(|why| Unfit::Parts { shard, why })?);
        }
    }
    match headers.keys().chain(settings.keys()).next() {
        Some(shard) => Err(Unfit::Unknown(shard.queue)),
        None => Ok((shards, deleted)),
    }
}

fn value_limits(spaces: &Spaces, table: &Table, shards: &mut Shards) -> Result<(), Unfit> {
    for row in rows(&spaces.shards, key::all(b'v'), Order::OldestFirst) {
        let (key, value) = row?;
        let (shard, of) = key::to_value_limit(&key).ok_or_else(|| foreign_key("value limit", &key))?;
        let limit = <[u8; 4]>::try_from(&*value).map_err(|_| Damaged::new("value limit", "of another length"))?;
        match shards.get_mut(&shard) {
            Some(parts) => parts.value_limit(of, u32::from_be_bytes(limit)),
            None if is_dropped(table, shard) => {}
            None => return Err(Unfit::Unknown(shard.queue)),
        }
    }
    Ok(())
}

fn sessions(spaces: &Spaces, table: &Table, shards: &mut Shards) -> Result<(), Unfit> {
    for row in rows(&spaces.shards, key::all(b'e'), Order::OldestFirst) {
        let (key, value) = row?;
        let (shard, session) = key::to_session(&key).ok_or_else(|| foreign_key("queue session", &key))?;
        match shards.get_mut(&shard) {
            Some(parts) => parts.session(session, decode_session(&value)?),
            None if is_dropped(table, shard) => {}
            None => return Err(Unfit::Unknown(shard.queue)),
        }
    }
    Ok(())
}

fn heads(spaces: &Spaces, table: &mut Table, shards: &mut Shards, deleted: &HashSet<ShardId>) -> Result<(), Unfit> {
    let mut left: HashMap<ShardId, Vec<u64>> = HashMap::new();
    for row in rows(&spaces.heads, key::everything(), Order::OldestFirst) {
        let (key, value) = row?;
        if *key == *TIDIED {
            continue;
        }
        let (shard, sequence) = key::to_place(&key).ok_or_else(|| foreign_key("message", &key))?;
        match shards.get_mut(&shard) {
            Some(_) if deleted.contains(&shard) => left.entry(shard).or_default().push(sequence),
            Some(parts) => {
                let message = decode_message(shard.number, sequence, &value)?;
                parts.message(message).map_err(|why| Unfit::Parts { shard, why })?;
            }
            None if is_dropped(table, shard) => left.entry(shard).or_default().push(sequence),
            None => return Err(Unfit::Unknown(shard.queue)),
        }
    }
    table.leftovers.extend(left.into_iter().map(|(shard, sequences)| (shard, sequences, Vec::new())));
    Ok(())
}

fn kept_answers(table: &Table, shards: &mut Shards) -> Result<(), Unfit> {
    for keyspace in table.answers.all() {
        for row in rows(keyspace, key::everything(), Order::OldestFirst) {
            let (key, value) = row?;
            let (shard, token, time) = key::to_answer(&key).ok_or_else(|| foreign_key("kept answer", &key))?;
            match shards.get_mut(&shard) {
                Some(parts) => parts.answer(KeptAnswer { token, time, answer: decode_answer(shard.number, &value)? }),
                // Those of dropped queues go with their bucket.
                None if is_dropped(table, shard) => {}
                None => return Err(Unfit::Unknown(shard.queue)),
            }
        }
    }
    Ok(())
}

fn outbox(spaces: &Spaces, table: &mut Table) -> Result<(), Unfit> {
    let mut left: HashMap<ShardId, Vec<Entry>> = HashMap::new();
    for row in rows(&spaces.outbox, key::everything(), Order::OldestFirst) {
        let (key, value) = row?;
        if *key == *TIDIED {
            continue;
        }
        let (shard, commit, rows) = key::to_outbox(&key).ok_or_else(|| foreign_key("outbox", &key))?;
        let bytes = u32::try_from(key.len() + value.len()).unwrap_or(u32::MAX);
        let entry = Entry { commit, rows, bytes };
        if table.shards.contains_key(&shard) {
            table.push_entry(shard, entry);
        } else if is_dropped(table, shard) {
            left.entry(shard).or_default().push(entry);
        } else {
            return Err(Unfit::Unknown(shard.queue));
        }
    }
    table.leftovers.extend(left.into_iter().map(|(shard, entries)| (shard, Vec::new(), entries)));
    Ok(())
}

fn is_dropped(table: &Table, shard: ShardId) -> bool {
    table.queues.get(&shard.queue) == Some(&None)
}
