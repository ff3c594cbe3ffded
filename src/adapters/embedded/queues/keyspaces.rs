//! The keyspaces of queues, created with the first queue. The dedupe keyspaces are separate: one for each ten minutes
//! of token time, shared by all queues, created with its first answer and dropped as a whole.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use fjall::Keyspace;

use crate::disk::library::{self, KeyspaceError, KeyspaceKind, Library};
use crate::disk::manifest::Manifest;
use crate::error::OpenError;
use tallystone_domain::Timestamp;
use tallystone_domain::limits::DEDUPE_BUCKET;

const SHARDS: &str = "queue.shards";
const HEADS: &str = "queue.heads";
const OVER: &str = "queue.over";
const STUBS: &str = "queue.stubs";
const BODIES: &str = "queue.bodies";
const OUTBOX: &str = "queue.outbox";
const CATALOG: &str = "queue.catalog";
/// Prefix of the names of dedupe keyspaces.
const ANSWERS: &str = "queue.answers.";

#[derive(Clone)]
pub struct QueueKeyspaces {
    /// Queues, headers, settings, the clock.
    pub shards: Keyspace,
    /// Heads of messages that are not over.
    pub heads: Keyspace,
    /// Heads of messages that are over.
    pub over: Keyspace,
    /// Pages of stubs of messages that are over.
    pub stubs: Keyspace,
    /// Bodies of messages.
    pub bodies: Keyspace,
    /// Transitions of commits.
    pub outbox: Keyspace,
    /// Names, settings and history of queues.
    pub catalog: Keyspace,
}

impl QueueKeyspaces {
    /// Creates the missing keyspaces. `queue.catalog` comes last, so its existence proves that all exist.
    pub fn make(library: &Library) -> Result<Self, KeyspaceError> {
        Ok(Self {
            shards: library.make(SHARDS, KeyspaceKind::Small)?,
            heads: library.make(HEADS, KeyspaceKind::QueueRanges)?,
            over: library.make(OVER, KeyspaceKind::QueueRanges)?,
            stubs: library.make(STUBS, KeyspaceKind::QueueRanges)?,
            bodies: library.make(BODIES, KeyspaceKind::QueueRows)?,
            outbox: library.make(OUTBOX, KeyspaceKind::QueueRanges)?,
            catalog: library.make(CATALOG, KeyspaceKind::Small)?,
        })
    }

    /// Finds the keyspaces at startup; `None` if the store never had a queue.
    pub fn find(library: &Library, dir: &Path) -> Result<Option<Self>, OpenError> {
        if library.listed("queue.").is_empty() {
            return Ok(None);
        }
        let get = |name: &str| -> Result<Option<Keyspace>, OpenError> {
            library.get(name).map_err(OpenError::library(library::folder(dir)))
        };
        let Some(catalog) = get(CATALOG)? else {
            return Ok(None); // the creation was interrupted, before any row was written
        };
        let (over, stubs) = (get(OVER)?, get(STUBS)?);
        if over.is_none() && stubs.is_none() {
            return Err(OpenError::Unreleased(Manifest::path(dir)));
        }
        match (get(SHARDS)?, get(HEADS)?, over, stubs, get(BODIES)?, get(OUTBOX)?) {
            (Some(shards), Some(heads), Some(over), Some(stubs), Some(bodies), Some(outbox)) => {
                Ok(Some(Self { shards, heads, over, stubs, bodies, outbox, catalog }))
            }
            _ => Err(OpenError::damaged(Manifest::path(dir), "does not list all keyspaces of queues")), // only some exist
        }
    }
}

/// The dedupe keyspaces, by the time at which their bucket starts.
#[derive(Default)]
pub struct DedupeKeyspaces(BTreeMap<Timestamp, Keyspace>);

impl DedupeKeyspaces {
    /// Finds the dedupe keyspaces at startup.
    pub fn find(library: &Library) -> Result<Self, fjall::Error> {
        let mut found = BTreeMap::new();
        for name in library.listed(ANSWERS) {
            let start = name.strip_prefix(ANSWERS).and_then(|seconds| seconds.parse().ok());
            if let (Some(seconds), Some(keyspace)) = (start, library.get(&name)?) {
                found.insert(Timestamp::from_secs(seconds), keyspace);
            }
        }
        Ok(Self(found))
    }

    /// All dedupe keyspaces, oldest first.
    pub fn all(&self) -> impl Iterator<Item = &Keyspace> {
        self.0.values()
    }

    /// Returns the keyspace of a token's time and whether it was created by this call.
    pub fn make(&mut self, library: &Library, time: Timestamp) -> Result<(Keyspace, bool), KeyspaceError> {
        let start = time.floor_to(DEDUPE_BUCKET);
        if let Some(keyspace) = self.0.get(&start) {
            return Ok((keyspace.clone(), false));
        }
        let name = format!("{ANSWERS}{}", start.micros().div_euclid(1_000_000));
        let keyspace = library.make(&name, KeyspaceKind::QueueRanges)?;
        self.0.insert(start, keyspace.clone());
        Ok((keyspace, true))
    }

    /// Removes and returns the keyspaces that no dedupe window reaches any more; `window` is the longest. A window that
    /// is extended later does not reach further back than before, so no answer is missed.
    pub fn take_outlived(&mut self, now: Timestamp, window: Duration) -> Vec<Keyspace> {
        let live = self.0.split_off(&(now - window - DEDUPE_BUCKET).just_after());
        std::mem::replace(&mut self.0, live).into_values().collect()
    }
}
