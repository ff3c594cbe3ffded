//! A worker of a queue: how it works, what it tells, and how it ends. `run` holds it at work.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::client::queues::job::{Job, Outcome, Why, run_job};
use crate::client::queues::run::{JobEnd, JobSpawner, JobStart, WorkerRun, id_of};
use crate::client::queues::shutdown::Shutdown;
use crate::client::{CallError, Client};

/// What became of the messages of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    /// Completed.
    pub completed: u64,
    /// Failed, to be tried again while attempts are left.
    pub failed: u64,
    /// Canceled, given back, lost, or not settled.
    pub others: u64,
}

/// A worker that could not go on.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Broken {
    /// What it did until then.
    pub tally: Tally,
    /// Why.
    pub error: CallError,
}

/// What a worker meets, for logs. Its texts name messages by their ids.
#[derive(Debug)]
pub enum WorkerEvent<'e> {
    /// A call failed; it is made again after the pause.
    CannotTake {
        /// How it failed.
        error: &'e CallError,
        /// Until the next try.
        pause: Duration,
    },
    /// The work on a message should end.
    MustEnd {
        /// The message.
        message_id: &'e str,
        /// Why.
        why: Why,
    },
    /// A message could not be settled, and comes back when its lease ends.
    NotSettled {
        /// The message.
        message_id: &'e str,
        /// Why.
        error: &'e str,
    },
    /// No more messages are taken; so many are in work.
    Finishing(usize),
    /// So many messages are given back.
    Ending(usize),
}

/// A worker's settings. Clones are alike and independent.
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

    /// How many messages are worked on at once; 1 by default.
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

    /// How long the leases last without a heartbeat, 1 s to 12 h; 30 s by default. A heartbeat is sent at a third of it, so that
    /// is also how soon a worker hears that a message is to be canceled.
    #[must_use]
    pub fn session_lease(mut self, lease: Duration) -> Self {
        self.session_lease = lease;
        self
    }

    /// What this worker is called: one that is started anew under the same name gets back at once what the old one held, and
    /// ends the old one if it still runs.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Takes only messages with this pair in their metadata; up to 4 pairs.
    #[must_use]
    pub fn filter(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.filter.insert(key.into(), value.into());
        self
    }

    /// How long work may go on after it was told to end; then it is dropped where it stands. None by default.
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

    /// Tells what the worker meets.
    #[must_use]
    pub fn observed(mut self, observer: impl Fn(WorkerEvent<'_>) + Send + Sync + 'static) -> Self {
        self.observer = Arc::new(observer);
        self
    }

    /// Works on messages until the shutdown, the end of the queue if that was asked for, or a failure that no repeat mends. What
    /// `handler` answers settles the message; a handler that panics fails it.
    pub async fn run<F, W>(&self, handler: F, shutdown: &Shutdown) -> Result<Tally, Broken>
    where
        F: Fn(Job) -> W + Send + Sync + 'static,
        W: Future<Output = Outcome> + Send + 'static,
    {
        let handler = Arc::new(handler);
        let start: JobSpawner = Box::new(move |jobs, job| {
            let JobStart { client, queue, lease, grace, signal } = job;
            let (handler, id) = (Arc::clone(&handler), id_of(&lease));
            let token = lease.lease_token.clone();
            jobs.spawn(async move {
                let settled = run_job(client, queue, lease, grace, signal, |job| handler(job)).await;
                JobEnd { token, id, settled }
            });
        });
        let mut run = Box::new(WorkerRun::new(self, start));
        Box::pin(run.run_until_done(shutdown)).await;
        run.close().await;
        match run.broken {
            None => Ok(run.tally),
            Some(error) => Err(Broken { tally: run.tally, error }),
        }
    }
}
