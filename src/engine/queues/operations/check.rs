//! Checks: operations that compare and change nothing. What they compare is not decided here.
//!
//! A check lives in the memory of its server. A repeat with its token finds it there; after a restart a repeat begins
//! another one, which harms nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::begin::own_token;
use super::findings::{FindingsPage, KeptFindings, QueueFinding};
use super::{Operation, OperationKind, OperationSpec, OperationState, RunningOperation, name_of, reused};
use crate::caller_quota::CallerId;
use crate::queues::error::QueueError;
use crate::queues::error::argument_checks::check_token;
use crate::queues::operations::OperationService;
use tallystone_domain::queue::{QueueId, QueueName};
use tallystone_ports::OperationAuthor;

/// The arguments of a check.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CheckRequest {
    /// One queue; none for all.
    pub queue: Option<QueueName>,
    /// Whether every message is compared with its history, and the counters with the shards.
    pub full: bool,
    /// The request token of the caller.
    pub token: Option<String>,
}

/// The size of a check, and the queue that it is about, if it is one.
pub(crate) struct CheckScope {
    pub queue: Option<(QueueId, QueueName)>,
    /// The parts that the check counts as it does them.
    pub parts: u64,
}

/// A check that runs.
#[derive(Clone)]
pub(crate) struct RunningCheck {
    running: Arc<RunningOperation>,
    drain: CancellationToken,
}

impl RunningCheck {
    /// Counts parts that are done.
    pub fn advance(&self, parts: u64) {
        self.running.done.fetch_add(parts, Ordering::Relaxed);
    }

    /// Keeps a finding. Beyond the bound it is dropped.
    pub fn keep(&self, found: QueueFinding) {
        self.running.findings.keep(found);
    }

    /// Whether the check is to end.
    pub fn is_cancelled(&self) -> bool {
        self.running.cancel.is_cancelled() || self.drain.is_cancelled()
    }
}

impl OperationService {
    /// Begins a check, or finds the one that its token names. `run` returns whether it came to its end.
    pub(crate) fn begin_check<Work>(
        &self,
        caller: CallerId,
        asked: CheckRequest,
        scope: CheckScope,
        run: impl FnOnce(RunningCheck) -> Work,
    ) -> Result<Operation, QueueError>
    where
        Work: Future<Output = Result<bool, QueueError>> + Send + 'static,
    {
        check_token(asked.token.as_deref())?;
        let unnamed = || format!("{:032x}", u128::from_be_bytes(self.context.random()));
        let (id, queue) = scope.queue.map_or((QueueId(0), None), |(id, name)| (id, Some(name)));
        let work = OperationSpec { full: asked.full, ..OperationSpec::all(OperationKind::Check) };
        let made = RunningOperation {
            id: name_of(id, &asked.token.map_or_else(unnamed, |token| own_token(&token, &caller))),
            caller,
            author: OperationAuthor::default(),
            listed_of: None,
            queue,
            work: work.clone(),
            stored_request: None,
            ended_by: None,
            done: AtomicU64::new(0),
            total: scope.parts,
            began: self.context.now(),
            pace: Mutex::default(),
            shared: None,
            cancel: CancellationToken::new(),
            findings: KeptFindings::default(),
            end: watch::Sender::new(None),
        };
        let (running, is_new) = self.known_operations.put(made, self.context.elapsed())?;
        if running.work != work {
            return Err(reused());
        }
        if is_new {
            let check = RunningCheck { running: Arc::clone(&running), drain: self.context.drain.clone() };
            let (operations, check_end, work) = (self.clone(), Arc::clone(&running), run(check));
            self.context.start_once(async move { operations.end_check(&check_end, work.await) });
        }
        Ok(running.show())
    }

    fn end_check(&self, running: &Arc<RunningOperation>, end: Result<bool, QueueError>) {
        let state = match end {
            Ok(true) => OperationState::Done,
            Ok(false) => OperationState::Cancelled,
            Err(error) => OperationState::failed(&error),
        };
        self.end_operation(running, state, self.context.now());
    }

    /// Reads the findings of a check from an index on, at most some. An operation of another kind has none.
    pub fn findings(&self, operation: &str, from: usize, limit: usize) -> Result<FindingsPage, QueueError> {
        let running = self.running(operation)?;
        Ok(running.findings.page(from, limit))
    }
}
