//! Recovers the queues at startup: every shard, from its header, its settings, its heads and its first answers. Bodies
//! are not read.
//!
//! Inconsistent rows make startup fail: a shard without its header, a head of a queue that never existed, parts that no
//! shard has stored.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::panic::resume_unwind;
use std::path::Path;
use std::thread::available_parallelism;

use hashbrown::{HashMap, HashSet};
use parking_lot::Mutex;

use super::key::{self, PageTag};
use super::keyspaces::{DedupeKeyspaces, QueueKeyspaces};
use super::outboxes::OutboxEntry;
use super::shard_table::{LoadedShard, ShardTable};
use super::store_time::Moment;
use crate::disk::key::TIDIED;
use crate::disk::library::{self, Library};
use crate::disk::read::rows;
use crate::error::{OpenError, ReadError, malformed_key};
use tallystone_adapters::codec::CorruptValue;
use tallystone_adapters::codec::queues::counts::{decode_signature_counts, decode_value_counts};
use tallystone_adapters::codec::queues::session::decode_session;
use tallystone_adapters::codec::queues::settings::{QueueRow, decode_header, decode_queue, decode_settings};
use tallystone_adapters::codec::queues::stubs::decode_stub_page;
use tallystone_adapters::codec::queues::{decode_answer, decode_message};
use tallystone_domain::queue::messages::id_hash::IdKey;
use tallystone_domain::queue::shard::Shard;
use tallystone_domain::queue::shard::restore::{ShardHeader, ShardRestoreError, ShardRestorer};
use tallystone_domain::queue::{QueueId, Settings, ShardId};
use tallystone_ports::ScanOrder;

/// The recovered queues of a store.
#[derive(Default)]
pub struct RecoveredQueues {
    /// Keyspaces, if there ever was a queue.
    pub spaces: Option<QueueKeyspaces>,
    pub table: ShardTable,
    /// Moment of the last commit.
    pub moment: Option<Moment>,
    pub rows_read: FinishedRowsRead,
}

/// The rows of messages that are over which a start has read.
#[derive(Clone, Copy, Default, Debug)]
pub struct FinishedRowsRead {
    /// Pages of stubs, of up to 64 messages each.
    pub pages: usize,
    /// Heads, one for each message whose page is not up to date.
    pub heads: usize,
}

/// The reason why a row belongs to no shard.
#[derive(Debug, thiserror::Error)]
enum QueueRecoveryError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("shard {} of queue {}: {why}", shard.number, shard.queue)]
    Parts { shard: ShardId, why: ShardRestoreError },
    #[error("page {page} of finished messages in shard {} of queue {}: {why}", shard.number, shard.queue)]
    Page { shard: ShardId, page: u64, why: CorruptValue },
    #[error("queue {0} has rows but no entry")]
    Unknown(QueueId),
    #[error("shard {} of queue {} has no {what}", shard.number, shard.queue)]
    Missing { shard: ShardId, what: &'static str },
}

impl From<CorruptValue> for QueueRecoveryError {
    fn from(damaged: CorruptValue) -> Self {
        Self::Read(damaged.into())
    }
}

/// Reads the shards of a store.
pub fn recover(library: &Library, dir: &Path) -> Result<RecoveredQueues, OpenError> {
    let Some(spaces) = QueueKeyspaces::find(library, dir)? else { return Ok(RecoveredQueues::default()) };
    let answers = DedupeKeyspaces::find(library).map_err(OpenError::library(library::folder(dir)))?;
    let read = || -> Result<RecoveredQueues, QueueRecoveryError> {
        let mut table = ShardTable::new(queues(&spaces)?, answers);
        table.id_key = id_key(&spaces)?;
        let (mut shards, deleted) = start_shards(&spaces, &table)?;
        value_limits(&spaces, &table, &mut shards)?;
        sessions(&spaces, &table, &mut shards)?;
        counts(&spaces, &mut shards)?;
        let rows_read = heads(&spaces, &mut table, &mut shards, &deleted)?;
        kept_answers(&table, &mut shards)?;
        for (shard, core) in finish(shards)? {
            table.counted_values += core.tally().own_values();
            table.add([(shard, LoadedShard::new(core))]);
        }
        table.note_dirty_pages();
        outbox(&spaces, &mut table)?;
        let moment = spaces.shards.get(key::CLOCK).map_err(ReadError::from)?;
        let moment = moment.map(|bytes| Moment::from_bytes(&bytes)).transpose()?;
        Ok(RecoveredQueues { spaces: Some(spaces.clone()), table, moment, rows_read })
    };
    read().map_err(|unfit| match unfit {
        QueueRecoveryError::Read(ReadError::Library(source)) => OpenError::library(library::folder(dir))(source),
        unfit @ (QueueRecoveryError::Read(_)
        | QueueRecoveryError::Parts { .. }
        | QueueRecoveryError::Page { .. }
        | QueueRecoveryError::Unknown(_)
        | QueueRecoveryError::Missing { .. }) => OpenError::damaged(library::folder(dir), unfit.to_string()),
    })
}

type QueueRows = BTreeMap<QueueId, Option<QueueRow>>;
type ShardRestorers = HashMap<ShardId, ShardRestorer>;

fn queues(spaces: &QueueKeyspaces) -> Result<QueueRows, QueueRecoveryError> {
    let mut queues = QueueRows::new();
    for row in rows(&spaces.shards, key::all(b'q'), ScanOrder::OldestFirst) {
        let (key, value) = row?;
        let queue = key::to_queue(&key).ok_or_else(|| malformed_key("queue", &key))?;
        queues.insert(queue, decode_queue(&value)?);
    }
    Ok(queues)
}

/// The key under which ids are hashed.
fn id_key(spaces: &QueueKeyspaces) -> Result<Option<IdKey>, QueueRecoveryError> {
    match spaces.shards.get(key::ID_KEY).map_err(ReadError::from)? {
        Some(row) => {
            let of_length = row.as_ref().try_into().map(IdKey);
            Ok(Some(of_length.map_err(|_| CorruptValue::new("key for the hashes of ids", "of another length"))?))
        }
        None => Ok(None),
    }
}

/// Starts all shards from their headers and settings. Also returns the deleted shards, whose heads are leftovers.
fn start_shards(
    spaces: &QueueKeyspaces,
    table: &ShardTable,
) -> Result<(ShardRestorers, HashSet<ShardId>), QueueRecoveryError> {
    let mut headers: HashMap<ShardId, ShardHeader> = HashMap::new();
    for row in rows(&spaces.shards, key::all(b'h'), ScanOrder::OldestFirst) {
        let (key, value) = row?;
        let shard = key::to_shard(&key).ok_or_else(|| malformed_key("queue header", &key))?;
        headers.insert(shard, decode_header(shard.number, &value)?);
    }
    let mut settings: HashMap<ShardId, (Settings, u64)> = HashMap::new();
    for row in rows(&spaces.shards, key::all(b's'), ScanOrder::OldestFirst) {
        let (key, value) = row?;
        let shard = key::to_shard(&key).ok_or_else(|| malformed_key("queue settings", &key))?;
        settings.insert(shard, decode_settings(&value)?);
    }
    let (mut shards, mut deleted) = (ShardRestorers::new(), HashSet::new());
    for queue in table.live() {
        for number in 0..queue.shards {
            let shard = ShardId { queue: queue.id, number };
            let missing = |what| move || QueueRecoveryError::Missing { shard, what };
            let header = headers.remove(&shard).ok_or_else(missing("header"))?;
            let (settings, version) = settings.remove(&shard).ok_or_else(missing("settings"))?;
            if header.deleted.is_some() {
                deleted.insert(shard);
            }
            let parts = ShardRestorer::new(header, settings, version);
            let parts = parts.map_err(|why| QueueRecoveryError::Parts { shard, why })?;
            let id_key = table.id_key.ok_or_else(missing("key for the hashes of ids"))?;
            shards.insert(shard, parts.with_stubs(id_key));
        }
    }
    match headers.keys().chain(settings.keys()).next() {
        Some(shard) => Err(QueueRecoveryError::Unknown(shard.queue)),
        None => Ok((shards, deleted)),
    }
}

fn value_limits(
    spaces: &QueueKeyspaces,
    table: &ShardTable,
    shards: &mut ShardRestorers,
) -> Result<(), QueueRecoveryError> {
    for row in rows(&spaces.shards, key::all(b'v'), ScanOrder::OldestFirst) {
        let (key, value) = row?;
        let (shard, of) = key::to_value_limit(&key).ok_or_else(|| malformed_key("value limit", &key))?;
        let limit = <[u8; 4]>::try_from(&*value).map_err(|_| CorruptValue::new("value limit", "of another length"))?;
        match shards.get_mut(&shard) {
            Some(parts) => parts.value_limit(of, u32::from_be_bytes(limit)),
            None if is_dropped(table, shard) => {}
            None => return Err(QueueRecoveryError::Unknown(shard.queue)),
        }
    }
    Ok(())
}

fn sessions(
    spaces: &QueueKeyspaces,
    table: &ShardTable,
    shards: &mut ShardRestorers,
) -> Result<(), QueueRecoveryError> {
    for row in rows(&spaces.shards, key::all(b'e'), ScanOrder::OldestFirst) {
        let (key, value) = row?;
        let (shard, session) = key::to_session(&key).ok_or_else(|| malformed_key("queue session", &key))?;
        match shards.get_mut(&shard) {
            Some(parts) => parts.session(session, decode_session(&value)?),
            None if is_dropped(table, shard) => {}
            None => return Err(QueueRecoveryError::Unknown(shard.queue)),
        }
    }
    Ok(())
}

/// Adds the messages that are not over. Those of deleted and dropped queues are leftovers.
fn heads(
    spaces: &QueueKeyspaces,
    table: &mut ShardTable,
    shards: &mut ShardRestorers,
    deleted: &HashSet<ShardId>,
) -> Result<FinishedRowsRead, QueueRecoveryError> {
    let mut left: HashMap<ShardId, Vec<u64>> = HashMap::new();
    for row in rows(&spaces.heads, key::everything(), ScanOrder::OldestFirst) {
        let (key, value) = row?;
        if *key == *TIDIED {
            continue;
        }
        let (shard, sequence) = key::to_message(&key).ok_or_else(|| malformed_key("message", &key))?;
        add_head(table, shards, deleted, &mut left, (shard, sequence), &value)?;
    }
    let read = stubs(spaces, table, shards, deleted, &mut left)?;
    left.values_mut().for_each(|sequences| sequences.sort_unstable());
    table.leftovers.extend(left);
    Ok(read)
}

/// Adds a head to its shard. One of a deleted queue is the record of the answer to its token.
fn add_head(
    table: &ShardTable,
    shards: &mut ShardRestorers,
    deleted: &HashSet<ShardId>,
    left: &mut HashMap<ShardId, Vec<u64>>,
    (shard, sequence): (ShardId, u64),
    row: &[u8],
) -> Result<(), QueueRecoveryError> {
    match shards.get_mut(&shard) {
        Some(parts) => {
            let message = decode_message(shard.number, sequence, row)?;
            if deleted.contains(&shard) {
                left.entry(shard).or_default().push(sequence);
                parts.answer_of(&message);
                return Ok(());
            }
            parts.message(message).map_err(|why| QueueRecoveryError::Parts { shard, why })
        }
        None if is_dropped(table, shard) => {
            left.entry(shard).or_default().push(sequence);
            Ok(())
        }
        None => Err(QueueRecoveryError::Unknown(shard.queue)),
    }
}

/// Adds the messages that are over: from the pages of stubs where they are valid, else from their heads. A queue with
/// shapes is read from heads, because shapes count messages by their metadata.
fn stubs(
    spaces: &QueueKeyspaces,
    table: &mut ShardTable,
    shards: &mut ShardRestorers,
    deleted: &HashSet<ShardId>,
    left: &mut HashMap<ShardId, Vec<u64>>,
) -> Result<FinishedRowsRead, QueueRecoveryError> {
    let mut read = FinishedRowsRead::default();
    let mut by_heads: BTreeSet<(ShardId, u64)> = BTreeSet::new();
    for row in rows(&spaces.stubs, key::all(PageTag::Dirty as u8), ScanOrder::OldestFirst) {
        let (key, _) = row?;
        let (shard, page) = key::to_page(&key).ok_or_else(|| malformed_key("page", &key))?;
        table.dirty_pages.push((shard, page));
        by_heads.insert((shard, page));
    }
    for row in rows(&spaces.stubs, key::all(PageTag::Stubs as u8), ScanOrder::OldestFirst) {
        let (key, value) = row?;
        let (shard, page) = key::to_page(&key).ok_or_else(|| malformed_key("page", &key))?;
        if by_heads.contains(&(shard, page)) {
            continue;
        }
        match shards.get_mut(&shard) {
            Some(parts) if !deleted.contains(&shard) && !parts.has_shapes() => {
                let stubs = decode_stub_page(shard.number, page, &value);
                let stubs = stubs.map_err(|why| QueueRecoveryError::Page { shard, page, why })?;
                parts.stubs(&stubs).map_err(|why| QueueRecoveryError::Parts { shard, why })?;
                read.pages += 1;
            }
            Some(_) | None => drop(by_heads.insert((shard, page))),
        }
    }
    for (shard, page) in by_heads {
        for row in rows(&spaces.over, key::over_in_page(shard, page), ScanOrder::OldestFirst) {
            let (key, value) = row?;
            let place = key::to_over(&key).ok_or_else(|| malformed_key("message that is over", &key))?;
            add_head(table, shards, deleted, left, place, &value)?;
            read.heads += 1;
        }
    }
    Ok(read)
}

/// Builds the indexes of the shards, on all cores, because nothing else runs during a start.
fn finish(shards: ShardRestorers) -> Result<Vec<(ShardId, Shard)>, QueueRecoveryError> {
    let workers = available_parallelism().map_or(1, NonZero::get).min(shards.len());
    let (left, finished) = (Mutex::new(shards.into_iter()), Mutex::new(Vec::new()));
    let work = || -> Result<(), QueueRecoveryError> {
        loop {
            let Some((shard, parts)) = left.lock().next() else { return Ok(()) };
            let mut core = parts.finish().map_err(|why| QueueRecoveryError::Parts { shard, why })?;
            core.shed_heads();
            finished.lock().push((shard, core));
        }
    };
    std::thread::scope(|scope| {
        let started: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        started.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })?;
    Ok(finished.into_inner())
}

fn kept_answers(table: &ShardTable, shards: &mut ShardRestorers) -> Result<(), QueueRecoveryError> {
    for keyspace in table.answers.all() {
        for row in rows(keyspace, key::everything(), ScanOrder::OldestFirst) {
            let (key, value) = row?;
            let (shard, id, time) = key::to_answer(&key).ok_or_else(|| malformed_key("kept answer", &key))?;
            match shards.get_mut(&shard) {
                Some(parts) => parts.answer(decode_answer(shard.number, (id, time), &value)?),
                // Answers of dropped queues are dropped with their bucket.
                None if is_dropped(table, shard) => {}
                None => return Err(QueueRecoveryError::Unknown(shard.queue)),
            }
        }
    }
    Ok(())
}

fn outbox(spaces: &QueueKeyspaces, table: &mut ShardTable) -> Result<(), QueueRecoveryError> {
    for row in rows(&spaces.outbox, key::everything(), ScanOrder::OldestFirst) {
        let (key, value) = row?;
        if *key == *TIDIED {
            continue;
        }
        let (shard, last, first) = key::to_outbox(&key).ok_or_else(|| malformed_key("outbox", &key))?;
        let bytes = u32::try_from(key.len() + value.len()).unwrap_or(u32::MAX);
        // The rows of dropped queues stay until the history has them.
        if !table.shards.contains_key(&shard) && !is_dropped(table, shard) {
            return Err(QueueRecoveryError::Unknown(shard.queue));
        }
        table.outboxes.restore(shard, OutboxEntry { first, last, bytes });
    }
    Ok(())
}

/// Adds the counts of values and signatures.
fn counts(spaces: &QueueKeyspaces, shards: &mut ShardRestorers) -> Result<(), QueueRecoveryError> {
    for row in rows(&spaces.shards, key::all(b'k'), ScanOrder::OldestFirst) {
        let (key, value) = row?;
        let (shard, metadata_key, of) =
            key::to_value_counts(&key).ok_or_else(|| malformed_key("counts of a value", &key))?;
        let parts = shards.get_mut(&shard).ok_or(QueueRecoveryError::Unknown(shard.queue))?;
        let (counts, changed_at) = decode_value_counts(&value)?;
        parts.value_counts(metadata_key.into(), of, counts, changed_at);
    }
    for row in rows(&spaces.shards, key::all(b'g'), ScanOrder::OldestFirst) {
        let (key, value) = row?;
        let (shard, of) = key::to_signature_counts(&key).ok_or_else(|| malformed_key("counts of an error", &key))?;
        let parts = shards.get_mut(&shard).ok_or(QueueRecoveryError::Unknown(shard.queue))?;
        parts.signature_counts(of, decode_signature_counts(&value)?);
    }
    Ok(())
}

fn is_dropped(table: &ShardTable, shard: ShardId) -> bool {
    table.queues.get(&shard.queue) == Some(&None)
}
