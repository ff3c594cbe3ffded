//! WatchQueue: the depth of a queue, then again after changes, at most once per interval.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, stream};

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
    pub depth: Depth,
    /// How many workers wait at this server.
    pub waiting: usize,
    /// When.
    pub at: Timestamp,
}

/// Looks at a queue, one per change.
pub type DepthStream = Pin<Box<dyn Stream<Item = Result<Look, QueueError>> + Send>>;

struct Watching {
    queues: Queues,
    queue: Arc<LiveQueue>,
    name: QueueName,
    interval: Duration,
    shown: Option<(Depth, usize)>,
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
            if self.shown.is_some() {
                self.queues.shared.clock.sleep(self.interval).await;
            }
            self.queues.shared.queue(&self.name)?;
            let depth = self.queues.depth_of(&self.queue).await?;
            let waiting = self.queue.waiters.len();
            let silent = self.queues.shared.clock.elapsed().saturating_sub(began);
            let news = self.shown.as_ref() != Some(&(depth.clone(), waiting));
            if news || silent >= WATCH_SILENCE_MAX {
                self.shown = Some((depth.clone(), waiting));
                return Ok(Look { depth, waiting, at: self.queues.shared.now() });
            }
        }
    }
}
