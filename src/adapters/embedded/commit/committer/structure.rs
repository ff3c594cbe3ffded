//! Changes of the structure of the store: catalog, series, deleted namespaces and dropped slices. They are rare, and
//! each is a commit of its own, so that the next command sees it.

use fjall::Keyspace;

use super::slices::no_slice;
use super::{Committer, SyncMode};
use crate::counters::entries::{EmbeddedEntry, EntryIndex};
use crate::counters::read;
use crate::counters::slices::SliceKeyspaces;
use crate::disk::backup_snapshot::BackupSnapshot;
use crate::disk::key::{self, KeyRange};
use crate::disk::meta;
use crate::disk::read::rows;
use crate::disk::writer::CommitBatch;
use crate::error::ReadError;
use crate::inbox::admission::ReplySender;
use crate::inbox::command::StoreCommand;
use crate::store_core::StoreCore;
use tallystone_adapters::codec::{decode_checkpoint, encode_slice};
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Counter, DatasetId, NamespaceId};
use tallystone_domain::rollup::SliceStatus;
use tallystone_domain::rules::Rule;
use tallystone_ports::{CatalogRecord, NamespaceRecord, RuleChange, ScanOrder, ScanRange, StoreError, StoreErrorKind};

impl Committer {
    /// Runs a command with a commit of its own.
    pub(super) fn run_separately(&mut self, command: StoreCommand) {
        match command {
            StoreCommand::DropSlice(dataset, start, answer) => self.drop_slice(dataset, start, answer),
            StoreCommand::Catalog(record, answer) => reply(answer, self.change_catalog(&record)),
            StoreCommand::Keys(record, answer) => reply(answer, self.change_entries(|core| &core.keys, *record)),
            StoreCommand::Experiments(record, answer) => {
                reply(answer, self.change_entries(|core| &core.experiments, *record));
            }
            StoreCommand::Rules(change, op, answer) => reply(answer, self.change_rules(&change, op)),
            StoreCommand::TrimSeries(step_seconds, before, answer) => {
                reply(answer, self.trim_series(step_seconds, before));
            }
            StoreCommand::Forget(namespace, answer) => reply(answer, self.forget(namespace)),
            StoreCommand::ForgetCounters(dataset, silent, answer) => {
                reply(answer, self.forget_counters(dataset, &silent));
            }
            StoreCommand::PurgeRows(namespace, rows_max, answer) => reply(answer, self.purge_rows(namespace, rows_max)),
            StoreCommand::TrimHistory(before, answer) => reply(answer, self.trim_history(before)),
            StoreCommand::Snapshot(answer) => reply(answer, self.snapshot()),
            StoreCommand::Append(_)
            | StoreCommand::Settle(_)
            | StoreCommand::PublishLimit(..)
            | StoreCommand::Roll(..)
            | StoreCommand::Watermarks(..)
            | StoreCommand::CreateSlice(..)
            | StoreCommand::SetStatus(..)
            | StoreCommand::History(_)
            | StoreCommand::Queue(_) => {
                unreachable!("this command is staged with others")
            }
        }
    }

    /// The snapshot between two commits, with all its keyspaces. Keyspaces that are dropped later stay readable in it.
    fn snapshot(&self) -> Result<BackupSnapshot, StoreError> {
        let frozen = BackupSnapshot::take(self.writer.library(), self.writer.number());
        frozen.map_err(|error| ReadError::from(error).into_store_error("back up"))
    }

    /// Drops a slice for good. The reply comes once another thread has deleted its keyspaces.
    fn drop_slice(&mut self, dataset: DatasetId, start: Timestamp, answer: ReplySender<()>) {
        match self.commit_slice_drop(dataset, start) {
            Ok(Some(keyspaces)) => self.core.keyspace_jobs.delete(keyspaces, answer),
            Ok(None) => reply(answer, Ok(())),
            Err(error) => reply(answer, Err(error)),
        }
    }

    /// Drops a slice. Returns its keyspaces, if it has any.
    fn commit_slice_drop(&mut self, dataset: DatasetId, start: Timestamp) -> Result<Option<Vec<Keyspace>>, StoreError> {
        const OP: &str = "drop slice";
        let Some(mut slice) = self.core.slices.row(dataset, start) else {
            return Err(no_slice(dataset, start, OP));
        };
        if slice.status != SliceStatus::Dropped {
            slice.status = SliceStatus::Dropped;
            let mut batch = self.writer.batch(1);
            batch.put(&self.writer.library().meta, meta::slice(dataset, start), encode_slice(&slice));
            self.commit_separately(batch, OP)?;
        }
        let Some(spaces) = self.core.slices.advance_status(dataset, start, slice.status) else { return Ok(None) };
        self.core.counters.forget_events(dataset, slice.start, slice.end.just_before());
        let keyspaces = spaces.into_list();
        self.writer.forget(&keyspaces);
        Ok(Some(keyspaces))
    }

    fn change_catalog(&mut self, record: &NamespaceRecord) -> Result<(), StoreError> {
        const OP: &str = "commit";
        let catalog = &self.core.catalog;
        catalog.check(record).map_err(|why| StoreError::not_applied(StoreErrorKind::Conflict, OP).with_source(why))?;
        let mut batch = self.writer.batch(6);
        catalog.stage(self.writer.library(), &mut batch, record);
        self.commit_separately(batch, OP)?;
        self.core.catalog.publish(record);
        Ok(())
    }

    fn change_entries<E: EmbeddedEntry>(
        &mut self,
        index_of: fn(&StoreCore) -> &EntryIndex<E>,
        record: CatalogRecord<E>,
    ) -> Result<(), StoreError> {
        let index = index_of(&self.core);
        let conflict = |why| StoreError::not_applied(StoreErrorKind::Conflict, E::COMMIT).with_source(why);
        index.check(&record).map_err(conflict)?;
        let mut batch = self.writer.batch(2);
        index.stage(self.writer.library(), &mut batch, &record);
        self.commit_separately(batch, E::COMMIT)?;
        index_of(&self.core).publish(record);
        Ok(())
    }

    fn change_rules(&mut self, change: &RuleChange, op: &'static str) -> Result<Option<Rule>, StoreError> {
        let after = self.core.rules.decide(change, op)?;
        let mut batch = self.writer.batch(2);
        self.core.rules.stage(self.writer.library(), &mut batch, change, after.as_ref());
        self.commit_separately(batch, op)?;
        self.core.rules.publish(change, after.as_ref());
        Ok(after)
    }

    fn trim_series(&mut self, step_seconds: u32, before: Timestamp) -> Result<(), StoreError> {
        let old = self.core.series.take_before(step_seconds, before);
        if old.is_empty() { Ok(()) } else { self.delete(old, "trim series") }
    }

    /// Deletes keyspaces. After a crash the next opening deletes the remains.
    pub(super) fn delete(&mut self, keyspaces: Vec<Keyspace>, op: &'static str) -> Result<(), StoreError> {
        self.writer.forget(&keyspaces);
        let deleted = self.writer.library().delete(keyspaces, || {});
        deleted.map_err(|error| StoreError::unknown(StoreErrorKind::Unavailable, op).with_source(error))
    }

    fn forget(&mut self, namespace: NamespaceId) -> Result<(), StoreError> {
        let mut batch = self.writer.batch(1);
        batch.put(&self.writer.library().meta, meta::forgotten(namespace), &b""[..]);
        self.commit_separately(batch, "forget")?;
        self.core.meta_state.forget(namespace);
        self.core.counters.forget_rows(namespace);
        Ok(())
    }

    /// Removes the rows of counters that were silent up to a time each and have no events.
    fn forget_counters(&mut self, dataset: DatasetId, silent: &[(Counter, Timestamp)]) -> Result<(), StoreError> {
        const OP: &str = "forget counters";
        let mut forgotten = Vec::with_capacity(silent.len());
        for (counter, up_to) in silent {
            if self.is_silent(dataset, counter, *up_to).map_err(|error| error.into_store_error(OP))? {
                forgotten.push(counter);
            }
        }
        if forgotten.is_empty() {
            return Ok(());
        }
        let mut batch = self.writer.batch(forgotten.len() * 3);
        let library = self.writer.library();
        for counter in &forgotten {
            let row = key::of_row(dataset, counter);
            batch.remove(&library.rollups, row.clone());
            batch.remove(&library.registers, row);
            batch.remove(&library.names, key::of_counter(counter));
        }
        for keyspace in [&library.rollups, &library.registers, &library.names] {
            batch.put(keyspace, key::TIDIED, &b""[..]);
        }
        self.commit_separately(batch, OP)?;
        for counter in forgotten {
            self.core.counters.forget_row(dataset, counter);
        }
        Ok(())
    }

    /// Whether nothing of a counter lies above a time, and no slice has an event of it. A counter with events keeps its
    /// name: without one, it would be taken for a counter without rows.
    fn is_silent(&self, dataset: DatasetId, counter: &Counter, up_to: Timestamp) -> Result<bool, ReadError> {
        let range = ScanRange {
            after: Timestamp::MIN,
            to: Timestamp::MAX,
            order: ScanOrder::NewestFirst,
            beyond: None,
            limit: 1,
        };
        if !read::scan(&self.core.slices, dataset, counter, &range)?.is_empty() {
            return Ok(false);
        }
        // Without events, the last write is that of the checkpoint, and lies below its `as_of`.
        let stored = self.writer.library().rollups.get(key::of_row(dataset, counter))?;
        let checkpoint = stored.map(|bytes| decode_checkpoint(&bytes)).transpose()?;
        Ok(checkpoint.is_none_or(|checkpoint| checkpoint.as_of <= up_to))
    }

    /// Removes up to a number of rows of a forgotten namespace. Returns whether there may be more.
    fn purge_rows(&mut self, namespace: NamespaceId, rows_max: usize) -> Result<bool, StoreError> {
        const OP: &str = "forget";
        let mut batch = self.writer.batch(rows_max);
        let mut removed = 0;
        for (keyspace, keys) in self.rows_of(namespace) {
            let before = removed;
            for row in rows(&keyspace, keys, ScanOrder::OldestFirst).take(rows_max - removed) {
                let (key, _) = row.map_err(|error: ReadError| error.into_store_error(OP))?;
                batch.remove(&keyspace, key);
                removed += 1;
            }
            if removed > before {
                // Removals disappear from disk in time, which must not make the newest row of a keyspace older.
                batch.put(&keyspace, key::TIDIED, &b""[..]);
            }
        }
        if removed > 0 {
            self.commit_separately(batch, OP)?;
        }
        Ok(removed == rows_max)
    }

    /// The keyspaces with rows of a namespace, except its events. Names come last: as long as one exists, an
    /// interrupted removal is found again.
    fn rows_of(&self, namespace: NamespaceId) -> Vec<(Keyspace, KeyRange)> {
        let library = self.writer.library();
        let mut places = Vec::new();
        for dataset in self.core.slices.datasets() {
            for keyspace in [&library.rollups, &library.registers] {
                places.push((keyspace.clone(), key::of_rows(dataset, namespace)));
            }
        }
        let mut keyspaces = self.core.series.all();
        keyspaces.extend(self.core.slices.all_keyspaces().into_iter().map(|SliceKeyspaces { buckets, .. }| buckets));
        keyspaces.push(library.names.clone());
        places.extend(keyspaces.into_iter().map(|keyspace| (keyspace, key::of_names(namespace, ""))));
        places
    }

    pub(super) fn commit_separately(&mut self, batch: CommitBatch, op: &'static str) -> Result<(), StoreError> {
        if self.commit(batch, SyncMode::Yes) {
            return Ok(());
        }
        Err(StoreError::unknown(StoreErrorKind::Unavailable, op))
    }
}

fn reply<T>(answer: ReplySender<T>, result: Result<T, StoreError>) {
    // The caller may have stopped waiting.
    let _ = answer.send(result);
}
