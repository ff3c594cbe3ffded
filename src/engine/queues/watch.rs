//! WatchQueue: the depth of a queue, then again after changes, at most once per interval.
//!
//! All watches of a queue share their readings: after its first look a watch takes what another one read a moment ago, and
//! while one reads the others wait for it. So a queue of many shards is read at most once in the least interval, however many
//! watch it.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, stream};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::domain::Timestamp;
use crate::domain::limits::{WATCH_INTERVAL_MIN, WATCH_SILENCE_MAX};
use crate::domain::queue::QueueName;
use crate::engine::queues::Queues;
use crate::engine::queues::error::{QueueError, Slot};
use crate::engine::queues::live::LiveQueue;
use crate::engine::queues::look::Depth;
use crate::engine::shares::{CallerId, Share};

/// One look at a queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Look {
    /// How many messages there are.
    pub depth: Arc<Depth>,
    /// How many workers wait at this server.
    pub waiting: usize,
    /// When.
    pub at: Timestamp,
}

/// Looks at a queue, one per change.
pub type DepthStream = Pin<Box<dyn Stream<Item = Result<Look, QueueError>> + Send>>;

/// The last reading for watches of a queue.
pub struct LastReading {
    /// When it began, by elapsed time, and what was read.
    last: Mutex<Option<(Duration, Arc<Depth>)>>,
    /// One reading at a time.
    turn: Semaphore,
}

impl Default for LastReading {
    fn default() -> Self {
        Self { last: Mutex::default(), turn: Semaphore::new(1) }
    }
}

impl LastReading {
    /// What was read, if that began later than this.
    fn after(&self, than: Duration) -> Option<Arc<Depth>> {
        let last = self.last.lock();
        last.as_ref().filter(|(began, _)| *began > than).map(|(_, depth)| Arc::clone(depth))
    }
}

struct Watching {
    queues: Queues,
    queue: Arc<LiveQueue>,
    name: QueueName,
    interval: Duration,
    shown: Option<(Arc<Depth>, usize)>,
    ended: bool,
    /// The place of its caller.
    _share: Share,
}

impl Queues {
    /// The depth of a queue now, then after each change.
    pub fn watch(&self, caller: &CallerId, name: &QueueName, interval: Duration) -> Result<DepthStream, QueueError> {
        let share = self.shared.watches.take(caller).map_err(|why| QueueError::NoRoom { of: Slot::Watch, why })?;
        let watching = Watching {
            queues: self.clone(),
            queue: self.shared.queue(name)?,
            name: name.clone(),
            interval: interval.max(WATCH_INTERVAL_MIN),
            shown: None,
            ended: false,
            _share: share,
        };
        Ok(Box::pin(stream::unfold(watching, |mut watching| async move {
            let item = watching.next().await?;
            Some((item, watching))
        })))
    }
}

impl Queues {
    /// The depth of a queue by a reading that began later than this: one that was made, else a new one.
    async fn depth_after(&self, queue: &Arc<LiveQueue>, than: Duration) -> Result<Arc<Depth>, QueueError> {
        let reading = &queue.reading;
        if let Some(depth) = reading.after(than) {
            return Ok(depth);
        }
        let _turn = reading.turn.acquire().await.map_err(|_closed| QueueError::ShuttingDown)?;
        if let Some(depth) = reading.after(than) {
            return Ok(depth);
        }
        let began = self.shared.clock.elapsed();
        let depth = Arc::new(self.depth_of(queue).await?);
        *reading.last.lock() = Some((began, Arc::clone(&depth)));
        Ok(depth)
    }
}

impl Watching {
    async fn next(&mut self) -> Option<Result<Look, QueueError>> {
        if self.ended {
            return None;
        }
        let look = self.look().await;
        self.ended = look.is_err();
        Some(look)
    }

    /// Looks until something is other than what was shown, or was silent for long.
    async fn look(&mut self) -> Result<Look, QueueError> {
        let began = self.queues.shared.clock.elapsed();
        loop {
            let mut than = self.queues.shared.clock.elapsed();
            if self.shown.is_some() {
                self.queues.shared.clock.sleep(self.interval).await;
                than = self.queues.shared.clock.elapsed().saturating_sub(WATCH_INTERVAL_MIN);
            }
            self.queues.shared.queue(&self.name)?;
            let depth = self.queues.depth_after(&self.queue, than).await?;
            let waiting = self.queue.waiters.len();
            let silent = self.queues.shared.clock.elapsed().saturating_sub(began);
            let is_known =
                |(shown, who): &(Arc<Depth>, usize)| *who == waiting && (Arc::ptr_eq(shown, &depth) || *shown == depth);
            if !self.shown.as_ref().is_some_and(is_known) || silent >= WATCH_SILENCE_MAX {
                self.shown = Some((Arc::clone(&depth), waiting));
                return Ok(Look { depth, waiting, at: self.queues.shared.now() });
            }
        }
    }
}
