//! WatchQueue: the depth of a queue, then again after changes, at most once per interval.
//!
//! All watches of a queue share their readings. After its first look, a watch uses another watch's recent reading;
//! while one reads, the others wait for the result. So a queue is read at most once per minimum interval, however
//! many watches it has.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, stream};

use crate::caller_quota::{CallerId, QuotaPermit};
use crate::queues::error::QueueError;
use crate::queues::error::limited_resource::LimitedResource;
use crate::queues::inspect::InspectService;
use crate::queues::state::depth::Depth;
use crate::queues::state::served_queue::ServedQueue;
use tallystone_domain::Timestamp;
use tallystone_domain::limits::{WATCH_INTERVAL_MIN, WATCH_SILENCE_MAX};
use tallystone_domain::queue::QueueName;

/// One reading for a watch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DepthUpdate {
    /// How many messages there are.
    pub depth: Arc<Depth>,
    /// The number of workers that wait at this server.
    pub waiting: usize,
    /// The time of the reading.
    pub at: Timestamp,
}

/// A stream of readings, one per change.
pub type DepthStream = Pin<Box<dyn Stream<Item = Result<DepthUpdate, QueueError>> + Send>>;

struct DepthWatch {
    inspect: InspectService,
    queue: Arc<ServedQueue>,
    name: QueueName,
    interval: Duration,
    last_sent: Option<(Arc<Depth>, usize)>,
    ended: bool,
    /// The caller's quota permit.
    _share: QuotaPermit,
}

impl InspectService {
    /// Streams the depth of a queue: now, then after each change.
    pub fn watch(&self, caller: &CallerId, name: &QueueName, interval: Duration) -> Result<DepthStream, QueueError> {
        let share =
            self.watches.take(caller).map_err(|why| QueueError::LimitReached { of: LimitedResource::Watch, why })?;
        let watching = DepthWatch {
            inspect: self.clone(),
            queue: self.context.queue(name)?,
            name: name.clone(),
            interval: interval.max(WATCH_INTERVAL_MIN),
            last_sent: None,
            ended: false,
            _share: share,
        };
        Ok(Box::pin(stream::unfold(watching, |mut watching| async move {
            let item = watching.next().await?;
            Some((item, watching))
        })))
    }

    /// The depth of a queue from a reading that began later than `than`: the last one, or a new one.
    async fn depth_after(&self, queue: &Arc<ServedQueue>, than: Duration) -> Result<Arc<Depth>, QueueError> {
        let read = async || Ok((self.context.elapsed(), self.context.depth_of(queue).await?));
        queue.depth_cache.get(than, read).await
    }
}

impl DepthWatch {
    async fn next(&mut self) -> Option<Result<DepthUpdate, QueueError>> {
        if self.ended {
            return None;
        }
        let look = self.look().await;
        self.ended = look.is_err();
        Some(look)
    }

    /// Reads until the result differs from the last one sent, or the stream was silent for long.
    async fn look(&mut self) -> Result<DepthUpdate, QueueError> {
        let began = self.inspect.context.elapsed();
        loop {
            let mut than = self.inspect.context.elapsed();
            if self.last_sent.is_some() {
                self.inspect.context.sleep(self.interval).await;
                than = self.inspect.context.elapsed().saturating_sub(WATCH_INTERVAL_MIN);
            }
            self.inspect.context.queue(&self.name)?;
            let depth = self.inspect.depth_after(&self.queue, than).await?;
            let waiting = self.queue.waiters.len();
            let silent = self.inspect.context.elapsed().saturating_sub(began);
            let is_known =
                |(shown, who): &(Arc<Depth>, usize)| *who == waiting && (Arc::ptr_eq(shown, &depth) || *shown == depth);
            if !self.last_sent.as_ref().is_some_and(is_known) || silent >= WATCH_SILENCE_MAX {
                self.last_sent = Some((Arc::clone(&depth), waiting));
                return Ok(DepthUpdate { depth, waiting, at: self.inspect.context.now() });
            }
        }
    }
}
