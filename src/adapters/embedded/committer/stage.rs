//! How commands become rows: checked against memory, disk and what is staged before them, in the order of arrival.

use super::group::{Group, Work};
use super::{Committer, Sync};
use crate::adapters::embedded::command::{Answer, Append, Prepared, Settle};
use crate::adapters::embedded::error::ReadError;
use crate::adapters::embedded::key;
use crate::adapters::embedded::library::KeyspaceError;
use crate::adapters::embedded::memory::{Knowledge, Named};
use crate::adapters::embedded::meta;
use crate::adapters::embedded::read::{self, LISTED, VOIDS_ONLY};
use crate::adapters::embedded::row::Row;
use crate::adapters::embedded::slices::{Place, Spaces};
use crate::adapters::stored::{
    decode_checkpoint, decode_key, encode_bucket, encode_checkpoint, encode_key, encode_step,
};
use crate::domain::Timestamp;
use crate::domain::counter::{Change, Counter, DatasetId, Event, EventKey, Provenance};
use crate::domain::limits::STEP;
use crate::domain::rollup::Checkpoint;
use crate::ports::{Appended, NewEvent, RollWrite, Settled, StoreError, StoreErrorKind};

/// Why a row could not be staged.
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
    fn during(self, op: &'static str) -> StoreError {
        match self {
            Self::Read(error) => error.during(op),
            Self::Library(error) => ReadError::from(error).during(op),
            Self::Keyspace(error) => StoreError::not_applied(StoreErrorKind::Unavailable, op).because(error),
            Self::NoSlice { .. } => StoreError::not_applied(StoreErrorKind::Conflict, op).because(self),
        }
    }
}

impl Committer {
    /// Stages an append.
    pub(super) fn stage_append(&mut self, group: &mut Group, append: Append) {
        let Append { dataset, events, held, answer } = append;
        let mut outcomes = Vec::with_capacity(events.len());
        for index in 0..events.len() {
            outcomes.push(self.stage_event(group, dataset, &events, index).map_err(|error| error.during("append")));
        }
        group.work.push(Work::Append { dataset, events, outcomes, held, answer });
    }

    fn stage_event(
        &mut self,
        group: &mut Group,
        dataset: DatasetId,
        events: &[Prepared],
        index: usize,
    ) -> Result<Appended, StageError> {
        let Prepared { counter, event, key, value } = &events[index];
        let place = self.place(group, dataset, event.key.time)?;
        let (held, is_noted) = self.event_at(group, dataset, events, index, place.spaces.as_ref())?;
        if let Some(held) = held {
            return Ok(Appended::Existing(held.change));
        }
        let spaces = self.spaces_of(group, place)?;
        let is_newest_clear =
            event.change == Change::Clear && self.is_newest_clear(group, dataset, counter, &event.key)?;
        let step = event.key.time.floor_to(STEP);
        let (touch, name) = if is_noted { (false, Named::Yes) } else { self.note_use(dataset, counter, Some(step))? };
        // From here on nothing fails, so that a refused event leaves no row behind.
        group.batch.put(&spaces.events, key.clone(), value.clone());
        if touch {
            group.batch.put(&spaces.touches, key::of_touch(counter, step), LISTED);
        }
        if name != Named::Yes {
            self.stage_name(group, counter);
        }
        if is_newest_clear {
            let registers = &self.writer.library().registers;
            group.batch.put(registers, key::of_row(dataset, counter), encode_key(&event.key));
            group.clears.insert((dataset, counter.clone()), event.key.clone());
        }
        group.sync = Sync::Yes;
        group.note_staged(events, index);
        Ok(Appended::Inserted)
    }

    /// Stages a settlement.
    pub(super) fn stage_settle(&mut self, group: &mut Group, settle: Settle) {
        let Settle { dataset, counter, key, answer } = settle;
        let event = Event { key, change: Change::Void, provenance: Provenance::default() };
        let void = vec![Prepared::new(NewEvent { counter, event })];
        let (settled, void) = match self.stage_void(group, dataset, &void) {
            Ok(None) => (Ok(Settled::Voided), void),
            Ok(Some(held)) if held.change == Change::Void => (Ok(Settled::Voided), Vec::new()),
            Ok(Some(held)) => (Ok(Settled::Found(held)), Vec::new()),
            Err(error) => (Err(error.during("settle")), Vec::new()),
        };
        group.work.push(Work::Settle { dataset, void, settled, answer });
    }

    /// Stages a void unless an event stands at its key; answers that event.
    fn stage_void(
        &mut self,
        group: &mut Group,
        dataset: DatasetId,
        void: &[Prepared],
    ) -> Result<Option<Event>, StageError> {
        let Prepared { counter, event, key, value } = &void[0];
        let place = self.place(group, dataset, event.key.time)?;
        if let (Some(held), _) = self.event_at(group, dataset, void, 0, place.spaces.as_ref())? {
            return Ok(Some(held));
        }
        let spaces = self.spaces_of(group, place)?;
        let is_new_name = self.is_new_name(group, dataset, counter)?;
        // From here on nothing fails, so that a refused verdict leaves no row behind.
        group.batch.put(&spaces.events, key.clone(), value.clone());
        if is_new_name {
            // The counter stays unlisted, but must not be taken for one without any row.
            group.batch.put(&self.writer.library().names, key::of_counter(counter), VOIDS_ONLY);
        }
        if event.key.time > self.core.book.limit(dataset) {
            // A store that opens finds the events above the limit by the touches, and a void has none.
            group.batch.put(&spaces.touches, key::of_void(counter, event.key.time), LISTED);
        }
        group.sync = Sync::Yes;
        group.note_staged(void, 0);
        Ok(None)
    }

    /// The slice of a time.
    fn place(&self, group: &mut Group, dataset: DatasetId, time: Timestamp) -> Result<Place, StageError> {
        if let Some(place) = group.place.as_ref().filter(|place| place.takes(dataset, time)) {
            return Ok(place.clone());
        }
        let place = self.core.slices.place(dataset, time).ok_or(StageError::NoSlice { dataset: dataset.0, time })?;
        group.place = Some(place.clone());
        Ok(place)
    }

    /// The keyspaces of a slice, made with its first row.
    fn spaces_of(&mut self, group: &mut Group, place: Place) -> Result<Spaces, StageError> {
        if let Some(spaces) = place.spaces {
            return Ok(spaces);
        }
        let spaces = Spaces::make(self.writer.library(), place.dataset, place.start, || {})?;
        let refused = self.core.slices.note_spaces(place.dataset, place.start, spaces.clone());
        debug_assert!(refused.is_none(), "only the committer drops slices");
        group.place = Some(Place { spaces: Some(spaces.clone()), ..place });
        Ok(spaces)
    }

    /// The event that stands at the key of one of a command's events: staged, in memory or on disk. If there is none, also
    /// whether memory knows that a new event there needs neither a touch of its step nor a listed name.
    fn event_at(
        &self,
        group: &Group,
        dataset: DatasetId,
        events: &[Prepared],
        index: usize,
        spaces: Option<&Spaces>,
    ) -> Result<(Option<Event>, bool), StageError> {
        let Prepared { counter, event: Event { key, .. }, .. } = &events[index];
        if let Some(staged) = group.staged_event(events, dataset, counter, key) {
            return Ok((Some(staged), false));
        }
        // One look at memory for nearly every event: its table is large, and each look waits for it.
        let (knowledge, is_noted) = self.core.memory.find_for(dataset, counter, key, key.time.floor_to(STEP));
        let held = match knowledge {
            Knowledge::Here(event) => Some(event),
            Knowledge::Nothing => None,
            Knowledge::Ask if spaces.is_none() => None,
            Knowledge::Ask => read::find(&self.core.slices, dataset, counter, key)?,
        };
        Ok((held, is_noted))
    }

    /// Notes that a counter gets a row: whether its touch of the step may be missing, and whether its name was listed.
    fn note_use(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        step: Option<Timestamp>,
    ) -> Result<(bool, Named), StageError> {
        let mut known = self.core.memory.named(dataset, counter);
        if known == Named::Unknown {
            known = self.look_up_name(dataset, counter)?;
        }
        Ok((self.core.memory.note_use(dataset, counter, step), known))
    }

    /// Whether a counter has no row in the list of names.
    fn is_new_name(&self, group: &Group, dataset: DatasetId, counter: &Counter) -> Result<bool, StageError> {
        // Memory may have forgotten a name before it is committed.
        if group.names.contains(counter) || self.core.memory.named(dataset, counter) == Named::Yes {
            return Ok(false);
        }
        Ok(self.writer.library().names.get(key::of_counter(counter))?.is_none())
    }

    fn look_up_name(&self, dataset: DatasetId, counter: &Counter) -> Result<Named, StageError> {
        match self.writer.library().names.get(key::of_counter(counter))? {
            Some(value) if value.as_ref() == LISTED => Ok(Named::Yes),
            Some(_) => Ok(Named::No),
            None => {
                if !self.core.book.is_forgotten(counter.namespace()) {
                    self.core.memory.begin_unused(dataset, counter);
                }
                Ok(Named::No)
            }
        }
    }

    /// Stages the name of a counter as one to list.
    fn stage_name(&self, group: &mut Group, counter: &Counter) {
        group.batch.put(&self.writer.library().names, key::of_counter(counter), LISTED);
        group.names.insert(counter.clone());
    }

    /// Whether a clear is newer than the one in the register, committed or staged.
    fn is_newest_clear(
        &self,
        group: &Group,
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
    pub(super) fn stage_publish(
        &self,
        group: &mut Group,
        dataset: DatasetId,
        closed: Timestamp,
        answer: Answer<Timestamp>,
    ) {
        let closed = closed.floor_to(std::time::Duration::from_millis(1));
        let known = group.frontiers.get(&dataset).copied().unwrap_or_else(|| self.core.book.limit(dataset));
        if closed > known {
            group.batch.put(&self.writer.library().meta, meta::frontier(dataset), key::flipped(closed));
            group.frontiers.insert(dataset, closed);
            group.sync = Sync::Yes;
        }
        group.work.push(Work::Publish { dataset, to: closed.max(known), answer });
    }

    /// Stages watermarks.
    pub(super) fn stage_watermarks(
        &self,
        group: &mut Group,
        dataset: DatasetId,
        moved: Vec<(u32, Timestamp)>,
        answer: Answer<()>,
    ) {
        let known = self.core.book.watermarks(dataset);
        for (shard, to) in &moved {
            if known.get(*shard as usize).is_some_and(|known| known.is_none_or(|known| known < *to)) {
                group.batch.put(&self.writer.library().meta, meta::watermark(dataset, *shard), key::flipped(*to));
            }
        }
        group.work.push(Work::Watermarks { dataset, moved, answer });
    }

    /// Stages rolls. What cannot be staged fails the whole call; what was staged before it stands.
    pub(super) fn stage_roll(
        &mut self,
        group: &mut Group,
        dataset: DatasetId,
        writes: Vec<RollWrite>,
        answer: Answer<()>,
    ) {
        let mut rolls = Vec::with_capacity(writes.len());
        let mut failed = None;
        for write in writes {
            match self.stage_one_roll(group, dataset, write) {
                Ok(Some(roll)) => rolls.push(roll),
                Ok(None) => {}
                Err(error) => failed = Some(error.during("put")),
            }
        }
        let answer = match failed {
            None => answer,
            Some(error) => {
                // A caller that stopped waiting has nobody to tell.
                let _ = answer.send(Err(error));
                tokio::sync::oneshot::channel().0
            }
        };
        group.work.push(Work::Roll { dataset, rolls, answer });
    }

    fn stage_one_roll(
        &mut self,
        group: &mut Group,
        dataset: DatasetId,
        write: RollWrite,
    ) -> Result<Option<(Counter, Vec<u8>, Checkpoint)>, StageError> {
        let RollWrite { counter, checkpoint, finished_buckets, finished_steps } = write;
        if self.core.book.is_forgotten(counter.namespace()) {
            return Ok(None);
        }
        let newest = self.checkpoint_as_of(group, dataset, &counter)?;
        if newest.is_some_and(|newest| newest >= checkpoint.as_of) {
            return Ok(None);
        }
        for bucket in finished_buckets {
            // The records of a dropped slice are gone with it.
            let Ok(place) = self.place(group, dataset, bucket.start) else { continue };
            let spaces = self.spaces_of(group, place)?;
            group.batch.put(&spaces.buckets, key::of_time(&counter, bucket.start), encode_bucket(&bucket));
        }
        for step in finished_steps {
            let keyspace = self.core.series.make(self.writer.library(), &step)?;
            group.batch.put(&keyspace, key::of_time(&counter, step.start), encode_step(&step));
        }
        if self.note_use(dataset, &counter, None)?.1 != Named::Yes {
            self.stage_name(group, &counter);
        }
        let bytes = encode_checkpoint(&checkpoint);
        group.batch.put(&self.writer.library().rollups, key::of_row(dataset, &counter), &bytes[..]);
        group.as_of.insert((dataset, counter.clone()), checkpoint.as_of);
        Ok(Some((counter, bytes, checkpoint)))
    }

    /// How far the newest checkpoint of a counter goes: staged, in memory or on disk.
    fn checkpoint_as_of(
        &self,
        group: &Group,
        dataset: DatasetId,
        counter: &Counter,
    ) -> Result<Option<Timestamp>, StageError> {
        if let Some(staged) = group.as_of.get(&(dataset, counter.clone())) {
            return Ok(Some(*staged));
        }
        if let Some(as_of) = self.core.memory.row(dataset, counter, Row::as_of) {
            return Ok(as_of);
        }
        let stored = self.writer.library().rollups.get(key::of_row(dataset, counter))?;
        let checkpoint = stored.map(|bytes| decode_checkpoint(&bytes)).transpose().map_err(ReadError::from)?;
        Ok(checkpoint.map(|checkpoint| checkpoint.as_of))
    }
}
