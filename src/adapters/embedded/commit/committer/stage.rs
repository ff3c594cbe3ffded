//! Staging of commands as rows: checked against memory, disk and earlier staged rows, in the order of arrival.

use super::group::{CommitGroup, StagedCommand};
use super::{Committer, SyncMode};
use crate::counters::counter_row::CounterRow;
use crate::counters::counter_table::{EventLookup, NameListing};
use crate::counters::read::{self, LISTED, VOIDS_ONLY};
use crate::counters::slices::{SliceKeyspaces, WritableSlice};
use crate::disk::key;
use crate::disk::library::KeyspaceError;
use crate::disk::meta;
use crate::error::ReadError;
use crate::inbox::admission::ReplySender;
use crate::inbox::command::{AppendCommand, EncodedEvent, SettleCommand};
use tallystone_adapters::codec::{
    decode_checkpoint, decode_key, encode_bucket, encode_checkpoint, encode_key, encode_step,
};
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Change, Counter, DatasetId, Event, EventKey, Provenance};
use tallystone_domain::limits::STEP;
use tallystone_domain::rollup::Checkpoint;
use tallystone_ports::{AppendOutcome, NewEvent, RollWrite, StoreError, StoreErrorKind, VerdictOutcome};

/// The reason for which a row could not be staged.
#[derive(Debug, thiserror::Error)]
enum StageError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Library(#[from] fjall::Error),
    #[error(transparent)]
    Keyspace(#[from] KeyspaceError),
    #[error("no live slice of dataset {dataset} covers {time:?}")]
    NoSlice { dataset: u32, time: Timestamp },
}

impl StageError {
    /// The error of a port; nothing was staged.
    fn into_store_error(self, op: &'static str) -> StoreError {
        match self {
            Self::Read(error) => error.into_store_error(op),
            Self::Library(error) => ReadError::from(error).into_store_error(op),
            Self::Keyspace(error) => StoreError::not_applied(StoreErrorKind::Unavailable, op).with_source(error),
            Self::NoSlice { .. } => StoreError::not_applied(StoreErrorKind::Conflict, op).with_source(self),
        }
    }
}

impl Committer {
    pub(super) fn stage_append(&mut self, group: &mut CommitGroup, append: AppendCommand) {
        let AppendCommand { dataset, events, guard: held, answer } = append;
        let mut outcomes = Vec::with_capacity(events.len());
        for index in 0..events.len() {
            outcomes.push(
                self.stage_event(group, dataset, &events, index).map_err(|error| error.into_store_error("append")),
            );
        }
        group.commands.push(StagedCommand::Append { dataset, events, outcomes, held, answer });
    }

    fn stage_event(
        &mut self,
        group: &mut CommitGroup,
        dataset: DatasetId,
        events: &[EncodedEvent],
        index: usize,
    ) -> Result<AppendOutcome, StageError> {
        let EncodedEvent { counter, event, key, value } = &events[index];
        let place = self.slice_for(group, dataset, event.key.time)?;
        let (held, is_noted) = self.event_at(group, dataset, events, index, place.keyspaces.as_ref())?;
        if let Some(held) = held {
            return Ok(AppendOutcome::Existing(held.change));
        }
        let spaces = self.keyspaces_of(group, place)?;
        let is_newest_clear =
            event.change == Change::Clear && self.is_newest_clear(group, dataset, counter, &event.key)?;
        let step = event.key.time.floor_to(STEP);
        let (touch, name) =
            if is_noted { (false, NameListing::Yes) } else { self.note_use(dataset, counter, Some(step))? };
        // No step after this fails, so a refused event leaves no row behind.
        group.batch.put(&spaces.events, key.clone(), value.clone());
        if touch {
            group.batch.put(&spaces.touches, key::of_touch(counter, step), LISTED);
        }
        if name != NameListing::Yes {
            self.stage_name(group, counter);
        }
        if is_newest_clear {
            let registers = &self.writer.library().registers;
            group.batch.put(registers, key::of_row(dataset, counter), encode_key(&event.key));
            group.clears.insert((dataset, counter.clone()), event.key.clone());
        }
        group.sync = SyncMode::Yes;
        group.note_staged(events, index);
        Ok(AppendOutcome::Inserted)
    }

    /// Stages a settlement.
    pub(super) fn stage_settle(&mut self, group: &mut CommitGroup, settle: SettleCommand) {
        let SettleCommand { dataset, counter, key, answer } = settle;
        let event = Event { key, change: Change::Void, provenance: Provenance::default() };
        let void = vec![EncodedEvent::new(NewEvent { counter, event })];
        let (settled, void) = match self.stage_void(group, dataset, &void) {
            Ok(None) => (Ok(VerdictOutcome::Voided), void),
            Ok(Some(held)) if held.change == Change::Void => (Ok(VerdictOutcome::Voided), Vec::new()),
            Ok(Some(held)) => (Ok(VerdictOutcome::Found(held)), Vec::new()),
            Err(error) => (Err(error.into_store_error("settle")), Vec::new()),
        };
        group.commands.push(StagedCommand::Settle { dataset, void, settled, answer });
    }

    /// Stages a tombstone unless its key has an event. Returns that event.
    fn stage_void(
        &mut self,
        group: &mut CommitGroup,
        dataset: DatasetId,
        void: &[EncodedEvent],
    ) -> Result<Option<Event>, StageError> {
        let EncodedEvent { counter, event, key, value } = &void[0];
        let place = self.slice_for(group, dataset, event.key.time)?;
        if let (Some(held), _) = self.event_at(group, dataset, void, 0, place.keyspaces.as_ref())? {
            return Ok(Some(held));
        }
        let spaces = self.keyspaces_of(group, place)?;
        let is_new_name = self.is_new_name(group, dataset, counter)?;
        // No step after this fails, so a refused verdict leaves no row behind.
        group.batch.put(&spaces.events, key.clone(), value.clone());
        if is_new_name {
            // The counter stays unlisted, but must not look like a counter without rows.
            group.batch.put(&self.writer.library().names, key::of_counter(counter), VOIDS_ONLY);
        }
        if event.key.time > self.core.meta_state.limit(dataset) {
            // A startup finds the events above the limit by the touches, and a tombstone has none.
            group.batch.put(&spaces.touches, key::of_void(counter, event.key.time), LISTED);
        }
        group.sync = SyncMode::Yes;
        group.note_staged(void, 0);
        Ok(None)
    }

    /// The slice of a time.
    fn slice_for(
        &self,
        group: &mut CommitGroup,
        dataset: DatasetId,
        time: Timestamp,
    ) -> Result<WritableSlice, StageError> {
        if let Some(place) = group.last_slice.as_ref().filter(|place| place.covers(dataset, time)) {
            return Ok(place.clone());
        }
        let place =
            self.core.slices.writable_slice(dataset, time).ok_or(StageError::NoSlice { dataset: dataset.0, time })?;
        group.last_slice = Some(place.clone());
        Ok(place)
    }

    /// The keyspaces of a slice, made with its first row.
    fn keyspaces_of(&mut self, group: &mut CommitGroup, place: WritableSlice) -> Result<SliceKeyspaces, StageError> {
        if let Some(spaces) = place.keyspaces {
            return Ok(spaces);
        }
        let spaces = SliceKeyspaces::make(self.writer.library(), place.dataset, place.start, || {})?;
        let refused = self.core.slices.attach_keyspaces(place.dataset, place.start, spaces.clone());
        debug_assert!(refused.is_none(), "only the committer drops slices");
        group.last_slice = Some(WritableSlice { keyspaces: Some(spaces.clone()), ..place });
        Ok(spaces)
    }

    /// The event at the key of one of a command's events: staged, in memory or on disk. If there is none, also whether
    /// memory knows that a new event needs neither a touch of its step nor a listed name.
    fn event_at(
        &self,
        group: &CommitGroup,
        dataset: DatasetId,
        events: &[EncodedEvent],
        index: usize,
        spaces: Option<&SliceKeyspaces>,
    ) -> Result<(Option<Event>, bool), StageError> {
        let EncodedEvent { counter, event: Event { key, .. }, .. } = &events[index];
        if let Some(staged) = group.staged_event(events, dataset, counter, key) {
            return Ok((Some(staged), false));
        }
        // One lookup in memory for nearly every event, because the table is large and each lookup is slow.
        let (knowledge, is_noted) = self.core.counters.find_for_insert(dataset, counter, key, key.time.floor_to(STEP));
        let held = match knowledge {
            EventLookup::Present(event) => Some(event),
            EventLookup::Missing => None,
            EventLookup::ReadDisk if spaces.is_none() => None,
            EventLookup::ReadDisk => read::find(&self.core.slices, dataset, counter, key)?,
        };
        Ok((held, is_noted))
    }

    /// Notes a row of a counter: whether its touch of the step may be missing, and whether its name was listed.
    fn note_use(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        step: Option<Timestamp>,
    ) -> Result<(bool, NameListing), StageError> {
        let mut known = self.core.counters.name_listing(dataset, counter);
        if known == NameListing::Unknown {
            known = self.look_up_name(dataset, counter)?;
        }
        Ok((self.core.counters.record_use(dataset, counter, step), known))
    }

    /// Whether a counter has no row in the list of names.
    fn is_new_name(&self, group: &CommitGroup, dataset: DatasetId, counter: &Counter) -> Result<bool, StageError> {
        // Memory may have evicted a name before it is committed.
        if group.names.contains(counter) || self.core.counters.name_listing(dataset, counter) == NameListing::Yes {
            return Ok(false);
        }
        Ok(self.writer.library().names.get(key::of_counter(counter))?.is_none())
    }

    fn look_up_name(&self, dataset: DatasetId, counter: &Counter) -> Result<NameListing, StageError> {
        match self.writer.library().names.get(key::of_counter(counter))? {
            Some(value) if value.as_ref() == LISTED => Ok(NameListing::Yes),
            Some(_) => Ok(NameListing::No),
            None => {
                if !self.core.meta_state.is_forgotten(counter.namespace()) {
                    self.core.counters.insert_unused(dataset, counter);
                }
                Ok(NameListing::No)
            }
        }
    }

    /// Stages the name of a counter for the list.
    fn stage_name(&self, group: &mut CommitGroup, counter: &Counter) {
        group.batch.put(&self.writer.library().names, key::of_counter(counter), LISTED);
        group.names.insert(counter.clone());
    }

    /// Whether a clear is newer than the one in the register, committed or staged.
    fn is_newest_clear(
        &self,
        group: &CommitGroup,
        dataset: DatasetId,
        counter: &Counter,
        clear: &EventKey,
    ) -> Result<bool, StageError> {
        if let Some(staged) = group.clears.get(&(dataset, counter.clone())) {
            return Ok(staged < clear);
        }
        let stored = self.writer.library().registers.get(key::of_row(dataset, counter))?;
        let known = stored.map(|bytes| decode_key(&bytes)).transpose().map_err(ReadError::from)?;
        Ok(known.is_none_or(|known| known < *clear))
    }

    /// Stages a frontier.
    pub(super) fn stage_limit(
        &self,
        group: &mut CommitGroup,
        dataset: DatasetId,
        closed: Timestamp,
        answer: ReplySender<Timestamp>,
    ) {
        let closed = closed.floor_to(std::time::Duration::from_millis(1));
        let known = group.frontiers.get(&dataset).copied().unwrap_or_else(|| self.core.meta_state.limit(dataset));
        if closed > known {
            group.batch.put(&self.writer.library().meta, meta::frontier(dataset), key::to_sortable(closed));
            group.frontiers.insert(dataset, closed);
            group.sync = SyncMode::Yes;
        }
        group.commands.push(StagedCommand::PublishLimit { dataset, to: closed.max(known), answer });
    }

    pub(super) fn stage_watermarks(
        &self,
        group: &mut CommitGroup,
        dataset: DatasetId,
        moved: Vec<(u32, Timestamp)>,
        answer: ReplySender<()>,
    ) {
        let known = self.core.meta_state.watermarks(dataset);
        for (shard, to) in &moved {
            if known.get(*shard as usize).is_some_and(|known| known.is_none_or(|known| known < *to)) {
                group.batch.put(&self.writer.library().meta, meta::watermark(dataset, *shard), key::to_sortable(*to));
            }
        }
        group.commands.push(StagedCommand::Watermarks { dataset, moved, answer });
    }

    /// Stages rolls. One that cannot be staged fails the whole call; the rolls staged before it remain.
    pub(super) fn stage_roll(
        &mut self,
        group: &mut CommitGroup,
        dataset: DatasetId,
        writes: Vec<RollWrite>,
        answer: ReplySender<()>,
    ) {
        let mut rolls = Vec::with_capacity(writes.len());
        let mut failed = None;
        for write in writes {
            match self.stage_one_roll(group, dataset, write) {
                Ok(Some(roll)) => rolls.push(roll),
                Ok(None) => {}
                Err(error) => failed = Some(error.into_store_error("put")),
            }
        }
        let answer = match failed {
            None => answer,
            Some(error) => {
                // The caller may have stopped waiting.
                let _ = answer.send(Err(error));
                tokio::sync::oneshot::channel().0
            }
        };
        group.commands.push(StagedCommand::Roll { dataset, rolls, answer });
    }

    fn stage_one_roll(
        &mut self,
        group: &mut CommitGroup,
        dataset: DatasetId,
        write: RollWrite,
    ) -> Result<Option<(Counter, Vec<u8>, Checkpoint)>, StageError> {
        let RollWrite { counter, checkpoint, finished_buckets, finished_steps } = write;
        if self.core.meta_state.is_forgotten(counter.namespace()) {
            return Ok(None);
        }
        let newest = self.checkpoint_as_of(group, dataset, &counter)?;
        if newest.is_some_and(|newest| newest >= checkpoint.as_of) {
            return Ok(None);
        }
        for bucket in finished_buckets {
            // The records of a dropped slice are deleted with it.
            let Ok(place) = self.slice_for(group, dataset, bucket.start) else { continue };
            let spaces = self.keyspaces_of(group, place)?;
            group.batch.put(&spaces.buckets, key::of_time(&counter, bucket.start), encode_bucket(&bucket));
        }
        for step in finished_steps {
            let keyspace = self.core.series.make(self.writer.library(), &step)?;
            group.batch.put(&keyspace, key::of_time(&counter, step.start), encode_step(&step));
        }
        if self.note_use(dataset, &counter, None)?.1 != NameListing::Yes {
            self.stage_name(group, &counter);
        }
        let bytes = encode_checkpoint(&checkpoint);
        group.batch.put(&self.writer.library().rollups, key::of_row(dataset, &counter), &bytes[..]);
        group.as_of.insert((dataset, counter.clone()), checkpoint.as_of);
        Ok(Some((counter, bytes, checkpoint)))
    }

    /// The `as_of` of the newest checkpoint of a counter: staged, in memory or on disk.
    fn checkpoint_as_of(
        &self,
        group: &CommitGroup,
        dataset: DatasetId,
        counter: &Counter,
    ) -> Result<Option<Timestamp>, StageError> {
        if let Some(staged) = group.as_of.get(&(dataset, counter.clone())) {
            return Ok(Some(*staged));
        }
        if let Some(as_of) = self.core.counters.row(dataset, counter, CounterRow::as_of) {
            return Ok(as_of);
        }
        let stored = self.writer.library().rollups.get(key::of_row(dataset, counter))?;
        let checkpoint = stored.map(|bytes| decode_checkpoint(&bytes)).transpose().map_err(ReadError::from)?;
        Ok(checkpoint.map(|checkpoint| checkpoint.as_of))
    }
}
