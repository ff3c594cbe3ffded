//! What is kept of a counter beside its events, held in memory: the checkpoint as it is stored, and what is newer.
//!
//! The checkpoint stays encoded (some 40 bytes instead of 300) and is decoded by the read that needs it.

use crate::adapters::codec::{CorruptValue, decode_checkpoint};
use crate::domain::Timestamp;
use crate::domain::counter::EventKey;
use crate::domain::rollup::Checkpoint;
use crate::ports::{CachedCount, RollupRow};

/// The row of one counter, exact at every moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CounterRow {
    checkpoint: Option<Box<[u8]>>,
    as_of: Option<Timestamp>,
    clear: Option<Box<EventKey>>,
    last_write_time: Option<Timestamp>,
}

impl CounterRow {
    /// Puts a row together of what the store holds.
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

    /// How far the checkpoint goes; nothing if there is none.
    pub fn as_of(&self) -> Option<Timestamp> {
        self.as_of
    }

    /// Takes a newer checkpoint.
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

    /// Notes a clear.
    pub fn raise_clear(&mut self, clear: &EventKey) {
        if self.clear.as_deref().is_none_or(|known| known < clear) {
            self.clear = Some(Box::new(clear.clone()));
        }
    }

    /// Notes a mutation.
    pub fn raise_last_write(&mut self, time: Timestamp) {
        self.last_write_time = self.last_write_time.max(Some(time));
    }

    /// The row as the rollup store answers it.
    pub fn to_rollup_row(&self) -> Result<RollupRow, CorruptValue> {
        Ok(RollupRow {
            checkpoint: self.checkpoint.as_deref().map(decode_checkpoint).transpose()?,
            clear: self.clear.as_deref().cloned(),
            last_write_time: self.last_write_time,
            just_repaired: false,
        })
    }

    /// The row as the cache answers it.
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

    /// The bytes behind the row's own.
    pub fn heap_bytes(&self) -> usize {
        let clear = self.clear.as_deref().map_or(0, |_| size_of::<EventKey>() + 16);
        self.checkpoint.as_deref().map_or(0, |bytes| bytes.len() + 16) + clear
    }
}
