//! Purges, redrives, discards, cancels and checks: operations that continue after their call, with progress, and that
//! anyone may cancel.
//!
//! An operation covers the messages that the queue held at its start: each shard up to its sequence at that time. The
//! operation lives in the memory of its server. With a request token its start is stored in the catalog before the
//! answer. So a repeat after a restart continues with the rest, and touches no message enqueued since. Its end is
//! stored too, after which nothing is left to do. Where several servers share the store, `operation_rows` lets all of
//! them know of it, and `takeover` continues it when its server has gone.

mod begin;
mod cancel;
mod check;
mod discard;
mod findings;
mod index;
mod list;
mod operation_rows;
mod owned;
mod purge;
mod run;
mod takeover;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::caller_quota::CallerId;
use crate::queues::catalog::CatalogService;
use crate::queues::error::QueueError;
use crate::queues::inspect::InspectService;
use crate::queues::state::context::QueueContext;
use crate::queues::state::served_queue::ServedQueue;
use crate::queues::work::WorkService;
use tallystone_domain::limits::REQUEST_TOKEN_BYTES_MAX;
use tallystone_domain::queue::bulk_operation::{BulkOperation, PurgedStates};
use tallystone_domain::queue::command::Refusal;
use tallystone_domain::queue::filter::Filter;
use tallystone_domain::queue::messages::message::MessageRef;
use tallystone_domain::queue::{MessageState, QueueId, QueueName};
use tallystone_domain::{Reason, Reject, Timestamp};
use tallystone_ports::{OperationAuthor, QueueRequest};

use findings::KeptFindings;
use operation_rows::SharedProgress;

pub use cancel::CancelRequest;
pub use check::CheckRequest;
pub(crate) use check::{CheckScope, RunningCheck};
pub use discard::DiscardRequest;
pub use findings::{FindingsPage, QueueFinding};
use index::Operations;
pub use list::OperationsPage;
pub use purge::PurgeRequest;
pub(super) use takeover::OperationTakeover;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OperationKind {
    Purge,
    Redrive,
    Discard,
    Cancel,
    Check,
}

impl OperationKind {
    fn name(self) -> &'static str {
        match self {
            Self::Purge => "purge",
            Self::Redrive => "redrive",
            Self::Discard => "discard",
            Self::Cancel => "cancel",
            Self::Check => "check",
        }
    }
}

/// The work of an operation, and the messages that it is for. Two requests with one token must agree in it.
#[derive(Clone, PartialEq, Debug)]
struct OperationSpec {
    kind: OperationKind,
    /// A single message.
    message: Option<MessageRef>,
    /// For a purge: the states whose messages it covers.
    states: PurgedStates,
    filter: Filter,
    /// For a redrive or discard: the signature that the last error must have; none for any.
    signature: Option<Box<str>>,
    /// For a discard: the time by which messages must have failed for good, if the caller names one.
    until: Option<Timestamp>,
    dry_run: bool,
    /// The most messages a second; 0 for no limit.
    rate: u32,
    /// For a cancel: why.
    reason: Box<str>,
    /// For a check: whether it compares every message.
    full: bool,
}

impl OperationSpec {
    /// Everything that a kind may cover.
    fn all(kind: OperationKind) -> Self {
        let (message, filter, signature) = (None, Filter::default(), None);
        let states = PurgedStates::default();
        let (until, dry_run, rate, reason, full) = (None, false, 0, Box::default(), false);
        Self { kind, message, states, filter, signature, until, dry_run, rate, reason, full }
    }

    /// The effective rate: no limit for a dry run, because the caller waits for the count.
    fn rate_kept(&self) -> u32 {
        if self.dry_run { 0 } else { self.rate }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OperationState {
    Running,
    Done,
    Cancelled,
    /// The operation failed, with its reason and text.
    Failed(Reason, String),
}

impl OperationState {
    fn failed(error: &QueueError) -> Self {
        Self::Failed(error.reason(), error.to_string())
    }
}

/// An operation as it is shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operation {
    pub id: String,
    /// The queue; none for a check of all.
    pub queue: Option<QueueName>,
    /// `purge`, `redrive`, `discard`, `cancel` or `check`.
    pub kind: &'static str,
    /// How far it is.
    pub state: OperationState,
    /// Whether it is a dry run.
    pub dry_run: bool,
    /// The messages processed so far; for a dry run, those it would process; for a check, shards and messages.
    pub done: u64,
    /// The estimated number of messages to process.
    pub total: u64,
    /// The start time.
    pub began: Timestamp,
    /// The end time.
    pub ended: Option<Timestamp>,
    /// The work and the messages that it is for; none for a check, and for an operation on one message.
    pub work: Option<BulkOperation>,
    /// The caller that began it.
    pub author: OperationAuthor,
}

/// The arguments of a redrive.
#[derive(Clone, Debug, Default)]
pub struct RedriveRequest {
    /// One message; none for all errored messages.
    pub message: Option<MessageRef>,
    /// The filter that they must match.
    pub filter: Filter,
    /// The signature that their last error must have; none for any.
    pub signature: Option<Box<str>>,
    /// The most messages a second; 0 for no limit.
    pub rate: u32,
    /// Whether to count only.
    pub dry_run: bool,
    /// The request token of the caller.
    pub token: Option<String>,
    /// The id that the queue must have.
    pub queue: Option<QueueId>,
    /// The caller that asks, as it is shown to people.
    pub author: Box<str>,
}

/// A request for an operation: its caller, its estimated size, and its request token.
struct OperationRequest {
    caller: CallerId,
    author: Box<str>,
    work: OperationSpec,
    total: u64,
    token: Option<String>,
    /// For a discard of many: the time by which messages must have ended.
    ended_by: Option<Timestamp>,
}

struct RunningOperation {
    id: String,
    caller: CallerId,
    author: OperationAuthor,
    /// The queue in whose list it is; none for what is not listed.
    listed_of: Option<QueueId>,
    queue: Option<QueueName>,
    work: OperationSpec,
    /// Its stored record, with the sequence of each shard at the start, or with the version of its single message.
    /// Both are empty if nothing is left to do for that message.
    stored_request: Option<QueueRequest>,
    ended_by: Option<Timestamp>,
    done: AtomicU64,
    total: u64,
    began: Timestamp,
    /// Since when this server runs it, by elapsed time, and what was done before.
    pace: Mutex<(Duration, u64)>,
    /// The row of the operation as this server knows it, where servers share operations.
    shared: Option<SharedProgress>,
    cancel: CancellationToken,
    findings: KeptFindings,
    end: watch::Sender<Option<(OperationState, Timestamp)>>,
}

impl RunningOperation {
    fn show(&self) -> Operation {
        let end = self.end.borrow().clone();
        let (state, ended) = match end {
            Some((state, ended)) => (state, Some(ended)),
            None => (OperationState::Running, None),
        };
        Operation {
            id: self.id.clone(),
            queue: self.queue.clone(),
            kind: self.work.kind.name(),
            state,
            dry_run: self.work.dry_run,
            done: self.done.load(Ordering::Relaxed),
            total: self.total,
            began: self.began,
            ended,
            work: self.work.bulk(),
            author: self.author.clone(),
        }
    }
}

/// Operations on many messages of a queue. Cheap to clone.
#[derive(Clone)]
pub struct OperationService {
    context: Arc<QueueContext>,
    catalog: Arc<CatalogService>,
    inspect: Arc<InspectService>,
    work: Arc<WorkService>,
    /// Operations that run here, and those that ended a short time ago.
    known_operations: Arc<Operations>,
}

impl OperationService {
    pub(super) fn new(
        context: Arc<QueueContext>,
        catalog: Arc<CatalogService>,
        inspect: Arc<InspectService>,
        work: Arc<WorkService>,
    ) -> Self {
        Self { context, catalog, inspect, work, known_operations: Arc::default() }
    }

    /// Redrives errored messages: gives them their attempts back.
    pub async fn redrive(
        &self,
        caller: CallerId,
        name: &QueueName,
        asked: RedriveRequest,
    ) -> Result<Operation, QueueError> {
        let queue = self.catalog.queue_of(name, asked.queue).await?;
        if let Some(message) = asked.message {
            let work = OperationSpec { dry_run: asked.dry_run, ..OperationSpec::all(OperationKind::Redrive) };
            return self
                .run_single(caller, &queue, OperationSpec { message: Some(message), ..work }, asked.token)
                .await;
        }
        let RedriveRequest { filter, signature, dry_run, rate, token, author, .. } = asked;
        let work = OperationSpec { filter, signature, dry_run, rate, ..OperationSpec::all(OperationKind::Redrive) };
        self.start_bulk((caller, author), &queue, work, token).await
    }

    /// Starts an operation on many messages; a dry run waits for its end.
    async fn start_bulk(
        &self,
        (caller, author): (CallerId, Box<str>),
        queue: &Arc<ServedQueue>,
        work: OperationSpec,
        token: Option<String>,
    ) -> Result<Operation, QueueError> {
        let (total, dry_run) = (self.estimate(queue, &work).await?, work.dry_run);
        let ended_by = self.ended_by(&work).await?;
        let running = self.begin(queue, OperationRequest { caller, author, work, total, token, ended_by }).await?;
        if dry_run {
            // A dry run has no progress to ask for later, so the call waits for its count.
            let _ = running.end.subscribe().wait_for(Option::is_some).await;
        }
        Ok(running.show())
    }

    /// Runs an operation on one errored message.
    async fn run_single(
        &self,
        caller: CallerId,
        queue: &Arc<ServedQueue>,
        work: OperationSpec,
        token: Option<String>,
    ) -> Result<Operation, QueueError> {
        match token {
            None => self.apply_single(queue, &work).await,
            Some(token) => self.apply_single_once(caller, queue, work, token).await,
        }
    }

    /// The number of messages that an operation is about; an upper bound if its filter is not declared.
    async fn estimate(&self, queue: &Arc<ServedQueue>, work: &OperationSpec) -> Result<u64, QueueError> {
        let depth = match self.context.filtered_depth(queue, work.filter.clone()).await {
            Err(QueueError::FilterNotDeclared { .. }) => self.context.depth_of(queue).await?,
            depth => depth?,
        };
        let states = work.bulk().map(|bulk| BulkOperation::states_of(bulk.kind, bulk.states));
        Ok(states.into_iter().flatten().map(|state| depth.of(state)).sum())
    }

    /// Reads the progress of an operation, at whatever server it runs.
    pub async fn operation(&self, id: &str) -> Result<Operation, QueueError> {
        match self.known_operations.get(id) {
            Some(running) => Ok(running.show()),
            None => self.operation_elsewhere(id).await,
        }
    }

    /// Cancels an operation, at whatever server it runs.
    pub async fn cancel_operation(&self, id: &str) -> Result<Operation, QueueError> {
        let Some(running) = self.known_operations.get(id) else { return self.cancel_elsewhere(id).await };
        running.cancel.cancel();
        // The wait cannot fail: the sender lives as long as the operation, which is held here.
        let _ = running.end.subscribe().wait_for(Option::is_some).await;
        Ok(running.show())
    }

    fn running(&self, id: &str) -> Result<Arc<RunningOperation>, QueueError> {
        self.known_operations.get(id).ok_or_else(|| operation_not_found(id))
    }

    async fn apply_single(&self, queue: &ServedQueue, work: &OperationSpec) -> Result<Operation, QueueError> {
        let began = self.context.now();
        let name = queue.record.load().spec.name.clone();
        let message = work.message.clone().expect("the work is about one message");
        if work.dry_run {
            let state = self.inspect.get_message(&name, message).await?.message.head.state;
            if state != MessageState::Errored {
                return Err(Refusal::WrongState(state).into());
            }
        } else if work.kind == OperationKind::Discard {
            self.discard_one(&name, message).await?;
        } else {
            self.work.redrive_one(&name, message).await?;
        }
        let (kind, state, dry_run) = (work.kind.name(), OperationState::Done, work.dry_run);
        let (id, queue, ended) = (String::new(), Some(name), Some(self.context.now()));
        let (work, author) = (None, OperationAuthor::default());
        Ok(Operation { id, queue, kind, state, dry_run, done: 1, total: 1, began, ended, work, author })
    }

    /// The same for a call with a request token; a refused call frees its token.
    async fn apply_single_once(
        &self,
        caller: CallerId,
        queue: &Arc<ServedQueue>,
        work: OperationSpec,
        token: String,
    ) -> Result<Operation, QueueError> {
        let author = Box::default(); // an operation on one message is in no list
        let asked = OperationRequest { caller, author, work, total: 1, token: Some(token), ended_by: None };
        let running = self.begin(queue, asked).await?;
        // The wait cannot fail: the sender lives as long as the operation, which is held here.
        let _ = running.end.subscribe().wait_for(Option::is_some).await;
        match running.show() {
            Operation { state: OperationState::Failed(reason, what), id, .. } => {
                self.known_operations.remove(&id);
                Err(Reject::new(reason, what).into())
            }
            shown => Ok(shown),
        }
    }
}

/// The id of an operation.
fn name_of(queue: QueueId, token: &str) -> String {
    format!("{queue}.{token}")
}

/// The refusal of a token that names another request.
fn reused() -> QueueError {
    let what = "this request_token was used for a different purge, redrive, discard, cancel or check of the queue (another \
        kind, states, filter, error_signature, reason, rate or dry_run); nothing was done";
    Reject::new(Reason::TokenReused, what).into()
}

fn operation_not_found(id: &str) -> QueueError {
    QueueError::OperationNotFound { id: id.chars().take(REQUEST_TOKEN_BYTES_MAX).collect() }
}
