//! The cached row of a counter: its stored checkpoint, and the newer clear and last write.
//!
//! The checkpoint stays encoded (about 40 bytes instead of 300); the read that needs it decodes it.

use tallystone_adapters::codec::{CorruptValue, decode_checkpoint};
use tallystone_domain::Timestamp;
use tallystone_domain::counter::EventKey;
use tallystone_domain::rollup::{CachedCount, Checkpoint, RollupRow};

/// Row of one counter; it always matches the committed state.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CounterRow {
    checkpoint: Option<Box<[u8]>>,
    as_of: Option<Timestamp>,
    clear: Option<Box<EventKey>>,
    last_write_time: Option<Timestamp>,
}

impl CounterRow {
    /// Assembles a row from the stored values.
    pub fn new(
        stored: Option<&[u8]>,
        clear: Option<EventKey>,
        newest: Option<Timestamp>,
    ) -> Result<Self, CorruptValue> {
        let mut row = Self::default();
        if let Some(bytes) = stored {
            row.put_checkpoint(bytes, &decode_checkpoint(bytes)?);
        }
        if let Some(clear) = clear {
            row.raise_clear(&clear);
        }
        if let Some(time) = newest {
            row.raise_last_write(time);
        }
        Ok(row)
    }

    /// Returns the `as_of` of the checkpoint, or `None` without a checkpoint.
    pub fn as_of(&self) -> Option<Timestamp> {
        self.as_of
    }

    /// Replaces the checkpoint with a newer one.
    pub fn put_checkpoint(&mut self, bytes: &[u8], checkpoint: &Checkpoint) {
        self.checkpoint = Some(bytes.into());
        self.as_of = Some(checkpoint.as_of);
        if let Some(clear) = &checkpoint.clear {
            self.raise_clear(clear);
        }
        if let Some(time) = checkpoint.last_event_time {
            self.raise_last_write(time);
        }
    }

    /// Records a clear; an older clear has no effect.
    pub fn raise_clear(&mut self, clear: &EventKey) {
        if self.clear.as_deref().is_none_or(|known| known < clear) {
            self.clear = Some(Box::new(clear.clone()));
        }
    }

    /// Records the time of a mutation; an older time has no effect.
    pub fn raise_last_write(&mut self, time: Timestamp) {
        self.last_write_time = self.last_write_time.max(Some(time));
    }

    /// Decodes the row for the rollup store.
    pub fn to_rollup_row(&self) -> Result<RollupRow, CorruptValue> {
        Ok(RollupRow {
            checkpoint: self.checkpoint.as_deref().map(decode_checkpoint).transpose()?,
            clear: self.clear.as_deref().cloned(),
            last_write_time: self.last_write_time,
            just_repaired: false,
        })
    }

    /// Decodes the row for the count cache.
    pub fn to_cached_count(&self) -> Result<CachedCount, CorruptValue> {
        let checkpoint = self.checkpoint.as_deref().map(decode_checkpoint).transpose()?;
        let checkpoint = checkpoint.unwrap_or_else(|| Checkpoint::empty(Timestamp::MIN));
        Ok(CachedCount {
            count: checkpoint.count,
            as_of: checkpoint.as_of,
            last_event_time: checkpoint.last_event_time,
            clear: self.clear.as_deref().cloned(),
            last_write_time: self.last_write_time,
            checked_at: None,
        })
    }

    /// Returns the heap bytes of the row, without the row itself.
    pub fn heap_bytes(&self) -> usize {
        let clear = self.clear.as_deref().map_or(0, |_| size_of::<EventKey>() + 16);
        self.checkpoint.as_deref().map_or(0, |bytes| bytes.len() + 16) + clear
    }
}
