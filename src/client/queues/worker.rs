//! A worker of a queue: its settings, its events and its end. `run` has the loop and starts it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::queues::job::StopReason;
use crate::{CallError, Client};

/// The counts of the messages of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct WorkSummary {
    /// Completed.
    pub completed: u64,
    /// Failed, to be retried while attempts are left.
    pub failed: u64,
    /// Canceled, released, lost, or not settled.
    pub others: u64,
}

/// The error of a worker that had to end.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct WorkerError {
    /// Its counts until then.
    pub summary: WorkSummary,
    /// The cause.
    pub error: CallError,
}

/// An event of a worker, for logs. Its texts name messages by their ids.
#[derive(Debug)]
pub enum WorkerEvent<'e> {
    /// A call failed; it is repeated after the pause.
    LeaseFailed {
        /// The error.
        error: &'e CallError,
        /// The pause.
        pause: Duration,
    },
    /// The work on a message should end.
    StopRequested {
        /// The message.
        message_id: &'e str,
        /// The reason.
        reason: StopReason,
    },
    /// A message could not be settled for now. It is tried again until the service says that its lease is lost.
    SettleDelayed {
        /// The message.
        message_id: &'e str,
        /// The error.
        error: &'e str,
    },
    /// A message could not be settled, and returns when its lease expires.
    SettleFailed {
        /// The message.
        message_id: &'e str,
        /// The error.
        error: &'e str,
    },
    /// No more messages are leased; this number is in work.
    Finishing(usize),
    /// This number of messages is released.
    Ending(usize),
}

/// The settings of a worker. Clones are independent.
#[derive(Clone)]
pub struct Worker {
    pub(super) client: Client,
    pub(super) queue: String,
    pub(super) concurrency: usize,
    pub(super) lease: Option<Duration>,
    pub(super) session_lease: Duration,
    pub(super) label: String,
    pub(super) filter: HashMap<String, String>,
    pub(super) grace: Duration,
    pub(super) until_empty: bool,
    pub(super) observer: Arc<dyn Fn(WorkerEvent<'_>) + Send + Sync>,
}

impl Worker {
    pub(super) fn new(client: Client, queue: &str) -> Self {
        Self {
            client,
            queue: queue.to_owned(),
            concurrency: 1,
            lease: None,
            session_lease: Duration::from_secs(30),
            label: String::new(),
            filter: HashMap::new(),
            grace: Duration::ZERO,
            until_empty: false,
            observer: Arc::new(|_| {}),
        }
    }

    /// The number of messages in work at a time; 1 by default.
    #[must_use]
    pub fn concurrency(mut self, messages: usize) -> Self {
        self.concurrency = messages.max(1);
        self
    }

    /// The lease of each message until the service knows that it arrived; by default that of the message or the queue.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// The lease of the session, 1 s to 12 h; 30 s by default. A heartbeat is sent at a third of it, which is also the
    /// delay after which a worker learns of a cancel request.
    #[must_use]
    pub fn session_lease(mut self, lease: Duration) -> Self {
        self.session_lease = lease;
        self
    }

    /// The label of this worker. A new worker with the same label ends the old one, and gets the messages of the old
    /// one back at once.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Leases only messages with this pair in their metadata; up to 4 pairs.
    #[must_use]
    pub fn filter(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.filter.insert(key.into(), value.into());
        self
    }

    /// The grace period of work that should end; then it is dropped at any point. None by default.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Ends when no message is ready, and at the first failure.
    #[must_use]
    pub fn until_empty(mut self) -> Self {
        self.until_empty = true;
        self
    }

    /// Receives the events of the worker.
    #[must_use]
    pub fn observed(mut self, observer: impl Fn(WorkerEvent<'_>) + Send + Sync + 'static) -> Self {
        self.observer = Arc::new(observer);
        self
    }
}
