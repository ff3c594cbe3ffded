//! The contents of a store after some commands, and the shards that are restored from them.

use std::collections::BTreeMap;

use crate::queue::counter_names::CountedValue;
use crate::queue::index::dedupe_index::DedupeRecord;
use crate::queue::index::stubs::Stub;
use crate::queue::messages::id_hash::IdKey;
use crate::queue::messages::message::{MessageHead, RoutingValue, SessionId};
use crate::queue::session_records::SessionRecord;
use crate::queue::shard::restore::{ShardHeader, ShardRestoreError, ShardRestorer};
use crate::queue::tally::errors::SignatureCounts;
use crate::queue::tally::values::ValueCounts;
use crate::queue::{ApplyResult, Settings, Shard};

/// The contents of a store after some commands: only the changes that the shard reported.
pub(super) struct Stored {
    pub header: ShardHeader,
    settings: (Settings, u64),
    pub heads: BTreeMap<u64, MessageHead>,
    limits: BTreeMap<RoutingValue, u32>,
    sessions: BTreeMap<SessionId, SessionRecord>,
    answers: Vec<DedupeRecord>,
    values: BTreeMap<(Box<str>, CountedValue), (ValueCounts, u64)>,
    signatures: BTreeMap<CountedValue, SignatureCounts>,
}

impl Stored {
    pub fn of(shard: &Shard) -> Self {
        Self {
            header: shard.header(),
            settings: (shard.settings().clone(), shard.settings_version()),
            heads: BTreeMap::new(),
            limits: BTreeMap::new(),
            sessions: BTreeMap::new(),
            answers: Vec::new(),
            values: BTreeMap::new(),
            signatures: BTreeMap::new(),
        }
    }

    pub fn take(&mut self, shard: &Shard, applied: &ApplyResult) {
        self.header = shard.header();
        for sequence in applied.changed_sequences() {
            match shard.message(sequence) {
                Some(head) => self.heads.insert(sequence, head.clone()),
                None => self.heads.remove(&sequence),
            };
        }
        if self.header.deleted.is_some() {
            // The heads that the store removes leave the replies to their tokens.
            let heads = std::mem::take(&mut self.heads);
            self.answers.extend(heads.values().filter_map(|head| DedupeRecord::of(head, &IdKey::default())));
        }
        if let Some(new) = &applied.changes.settings {
            self.settings = (new.settings.clone(), new.version);
        }
        for (value, limit) in &applied.changes.value_limits {
            match limit {
                Some(limit) => self.limits.insert(value.clone(), *limit),
                None => self.limits.remove(value),
            };
        }
        for (id, session) in &applied.changes.sessions {
            match session {
                Some(session) => self.sessions.insert(*id, session.clone()),
                None => self.sessions.remove(id),
            };
        }
        self.answers.extend(applied.changes.answers.iter().copied());
        for (key, value, counts) in &applied.changes.tally.values {
            let name = (key.clone(), value.clone());
            match counts {
                Some(counts) => self.values.insert(name, *counts),
                None => self.values.remove(&name),
            };
        }
        self.signatures.extend(applied.changes.tally.signatures.iter().cloned());
    }

    pub fn restore(&self) -> Result<Shard, ShardRestoreError> {
        let (settings, version) = self.settings.clone();
        let mut restoring = ShardRestorer::new(self.header.clone(), settings, version)?;
        // Any order works.
        self.heads.values().rev().try_for_each(|head| restoring.message(head.clone()))?;
        self.finish(restoring)
    }

    /// A restoration of a shard with stubs of what is over.
    pub fn restore_with(&self, stubs: &BTreeMap<u64, Stub>) -> Result<Shard, ShardRestoreError> {
        let (settings, version) = self.settings.clone();
        let restoring = ShardRestorer::new(self.header.clone(), settings, version)?;
        let mut restoring = restoring.with_stubs(IdKey::default());
        let over: Vec<Stub> =
            stubs.values().filter(|stub| self.heads.contains_key(&stub.key.sequence)).copied().collect();
        restoring.stubs(&over)?;
        for head in self.heads.values().filter(|head| !stubs.contains_key(&head.key.sequence)) {
            restoring.message(head.clone())?;
        }
        self.finish(restoring)
    }

    fn finish(&self, mut restoring: ShardRestorer) -> Result<Shard, ShardRestoreError> {
        self.answers.iter().for_each(|kept| restoring.answer(*kept));
        self.limits.iter().for_each(|(value, limit)| restoring.value_limit(value.clone(), *limit));
        self.sessions.iter().for_each(|(id, session)| restoring.session(*id, session.clone()));
        for ((key, value), (counts, changed_at)) in &self.values {
            restoring.value_counts(key.clone(), value.clone(), *counts, *changed_at);
        }
        self.signatures.iter().for_each(|(of, counts)| restoring.signature_counts(of.clone(), *counts));
        restoring.finish()
    }
}
