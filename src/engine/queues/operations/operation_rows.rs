//! Operations that every server of a store knows.
//!
//! Each has a row in the directory. Its runner writes the row at most once a second, and the others read it. A request
//! to cancel is written into the row as well. A row changes by compare-and-set, so a runner whose operation was taken
//! over sees that at its next write, and follows from then on. Until then both do the same steps, which are idempotent.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;

use super::{
    Operation, OperationKind, OperationRequest, OperationSpec, OperationState, RunningOperation, name_of,
    operation_not_found, reused,
};
use crate::queues::error::QueueError;
use crate::queues::operations::OperationService;
use crate::queues::state::served_queue::ServedQueue;
use tallystone_domain::fleet::MemberId;
use tallystone_domain::queue::bulk_operation::{BulkCursor, BulkKind, BulkOperation};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{
    OperationAuthor, OperationDirectory, OperationEnd, OperationOutcome, OperationRow, QueueRequest, StoreError,
    StoreErrorKind,
};

/// The least time between two writes of the runner, and between two reads of a follower.
const SHARED_EVERY: Duration = Duration::from_secs(1);
/// The time between two looks for the end of an operation that was cancelled at another server.
const END_LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long a cancel waits for the end at another server. It stays noted after that.
const END_WAIT: Duration = Duration::from_secs(5);
/// The attempts of a write that others overtake. They write once a second at most.
const WRITE_ATTEMPTS: u32 = 8;

/// The row of an operation as this server knows it.
pub(super) struct SharedProgress {
    state: Mutex<KnownRow>,
}

struct KnownRow {
    /// The row as it was last written or read.
    row: OperationRow,
    holder: RowHolder,
    /// The step that comes next; not before that of the row.
    next: BulkCursor,
    /// The time of the last write, by elapsed time.
    written: Duration,
}

/// The server that runs an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RowHolder {
    Here,
    Other,
}

impl SharedProgress {
    pub fn new(row: OperationRow, holder: RowHolder, now: Duration) -> Self {
        let next = row.next;
        Self { state: Mutex::new(KnownRow { row, holder, next, written: now }) }
    }

    /// The sequences up to which the shards are walked, and the first step.
    pub fn walk_from(&self) -> (Vec<u64>, BulkCursor) {
        let known = self.state.lock();
        (known.row.through.clone(), known.next)
    }

    fn holder(&self) -> RowHolder {
        self.state.lock().holder
    }

    fn note(&self, row: OperationRow, holder: RowHolder, now: Duration) {
        let mut known = self.state.lock();
        known.next = known.next.max(row.next);
        (known.row, known.holder, known.written) = (row, holder, now);
    }
}

impl From<BulkKind> for OperationKind {
    fn from(kind: BulkKind) -> Self {
        match kind {
            BulkKind::Purge => Self::Purge,
            BulkKind::Redrive => Self::Redrive,
            BulkKind::Discard => Self::Discard,
            BulkKind::Cancel => Self::Cancel,
        }
    }
}

impl OperationSpec {
    /// Returns the part that other servers need to know. None for an operation that they need not know: a check, or an
    /// operation on one message.
    pub(super) fn bulk(&self) -> Option<BulkOperation> {
        let kind = match self.kind {
            OperationKind::Purge => BulkKind::Purge,
            OperationKind::Redrive => BulkKind::Redrive,
            OperationKind::Discard => BulkKind::Discard,
            OperationKind::Cancel => BulkKind::Cancel,
            OperationKind::Check => return None,
        };
        let Self { states, filter, signature, until, dry_run, rate, reason, .. } = self.clone();
        let work = BulkOperation { kind, states, filter, signature, until, dry_run, rate, reason };
        self.message.is_none().then_some(work)
    }

    /// Whether it is in the list of its queue: what changes many messages is.
    pub(super) fn is_listed(&self) -> bool {
        self.bulk().is_some_and(|work| !work.dry_run)
    }

    pub(super) fn of_bulk(work: BulkOperation) -> Self {
        let BulkOperation { kind, states, filter, signature, until, dry_run, rate, reason } = work;
        Self { states, filter, signature, until, dry_run, rate, reason, ..Self::all(kind.into()) }
    }
}

impl RunningOperation {
    /// Puts the end of the operation at this server into its row.
    pub(super) fn end_row(&self, row: &mut OperationRow, state: &OperationState, at: Timestamp) {
        let outcome = match state {
            OperationState::Running => return,
            OperationState::Done => OperationOutcome::Done,
            OperationState::Cancelled if !self.cancel.is_cancelled() => {
                // A server that stops leaves its operations to the others.
                row.runner = None;
                return;
            }
            OperationState::Cancelled => OperationOutcome::Cancelled,
            OperationState::Failed(reason, text) => {
                OperationOutcome::Failed { reason: *reason, text: text.as_str().into() }
            }
        };
        row.end = Some(OperationEnd { at, outcome });
    }
}

impl OperationService {
    pub(super) fn shares_operations(&self) -> bool {
        self.context.stores.shared.is_some()
    }

    /// The member that this server is.
    pub(super) fn own_id(&self) -> Option<MemberId> {
        self.context.member.as_ref().map(|member| member.id())
    }

    pub(super) fn operation_directory(&self) -> Option<&dyn OperationDirectory> {
        self.context.stores.shared.as_ref().map(|shared| &*shared.operations)
    }

    /// Starts an operation that other servers know of, or finds the one that its token names.
    pub(super) async fn start_shared(
        &self,
        queue: &Arc<ServedQueue>,
        mut asked: OperationRequest,
        work: BulkOperation,
        kept: Option<QueueRequest>,
    ) -> Result<Arc<RunningOperation>, QueueError> {
        let Some(directory) = self.operation_directory() else { return Err(QueueError::RetryLater) };
        // Only a token can name an operation that is there already.
        let is_named = asked.token.is_some();
        let token = asked.token.take().unwrap_or_else(|| self.made_token());
        let id = name_of(queue.record.load().id, &token);
        asked.token = Some(token);
        let is_known_here = self.known_operations.get(&id).is_some();
        let found = if is_named && !is_known_here { directory.get(&id).await? } else { None };
        let now = self.context.elapsed();
        if let Some(row) = found {
            if row.work != work {
                return Err(reused());
            }
            return self.start_following(queue, asked, kept, row);
        }
        let row = self.new_row(queue, (&id, &asked), work, kept.as_ref()).await?;
        let shared = SharedProgress::new(row.clone(), RowHolder::Here, now);
        let made = self.operation_of(queue, asked, kept, Some(shared));
        // Its place in the list is the same at every server.
        let (running, is_new) = self.register(RunningOperation { began: row.began, ..made })?;
        if !is_new {
            return Ok(running);
        }
        let stored = match directory.put(&row).await {
            Ok(true) => Ok(()),
            // A call with the same token was faster at another server.
            Ok(false) => self.follow_faster(directory, &running, &row).await,
            Err(error) => Err(error.into()),
        };
        if let Err(error) = stored {
            running.end.send_replace(Some((OperationState::failed(&error), self.context.now())));
            self.known_operations.remove(&running.id);
            return Err(error);
        }
        self.drive_in_background(queue, &running);
        Ok(running)
    }

    async fn follow_faster(
        &self,
        directory: &dyn OperationDirectory,
        running: &RunningOperation,
        own: &OperationRow,
    ) -> Result<(), QueueError> {
        let row = directory.get(&running.id).await?.ok_or(QueueError::RetryLater)?;
        if row.work != own.work {
            return Err(reused());
        }
        let now = self.context.elapsed();
        running.shared.iter().for_each(|shared| shared.note(row.clone(), RowHolder::Other, now));
        Ok(())
    }

    /// Follows the operation of another server, for a repeat of its call.
    fn start_following(
        &self,
        queue: &Arc<ServedQueue>,
        asked: OperationRequest,
        kept: Option<QueueRequest>,
        row: OperationRow,
    ) -> Result<Arc<RunningOperation>, QueueError> {
        let (shown, author) = (shown(&row), row.author.clone());
        let now = self.context.elapsed();
        let made = self.operation_of(queue, asked, kept, Some(SharedProgress::new(row, RowHolder::Other, now)));
        let Operation { began, total, .. } = shown;
        let (running, is_new) = self.register(RunningOperation { began, total, author, ..made })?;
        if is_new {
            running.done.store(shown.done, Ordering::Relaxed);
            match shown.ended {
                Some(at) => self.end_operation(&running, shown.state, at),
                None => self.drive_in_background(queue, &running),
            }
        }
        Ok(running)
    }

    async fn new_row(
        &self,
        queue: &Arc<ServedQueue>,
        (id, asked): (&str, &OperationRequest),
        work: BulkOperation,
        kept: Option<&QueueRequest>,
    ) -> Result<OperationRow, QueueError> {
        let record = queue.record.load_full();
        let through = match kept {
            Some(kept) => kept.through.clone(),
            None => self.sequences(queue).await?,
        };
        let named_start = asked.ended_by.filter(|_| work.until.is_none());
        Ok(OperationRow {
            id: id.into(),
            version: 1,
            queue: record.id,
            name: record.spec.name.clone(),
            work,
            through,
            ended_by: kept.map_or(asked.ended_by, |kept| kept.ended_by),
            next: BulkCursor::default(),
            done: 0,
            total: asked.total,
            began: named_start.unwrap_or_else(|| self.context.now()),
            author: OperationAuthor {
                text: asked.author.clone(),
                owner: asked.caller.principal().map(|principal| principal.as_str().into()),
            },
            runner: self.own_id(),
            is_cancelled: false,
            end: None,
        })
    }

    pub(super) fn drive_in_background(&self, queue: &Arc<ServedQueue>, running: &Arc<RunningOperation>) {
        let (operations, queue, running) = (self.clone(), Arc::clone(queue), Arc::clone(running));
        self.context.start_once(async move {
            while let Some(shared) = &running.shared {
                let has_ended = match shared.holder() {
                    RowHolder::Here => operations.run_operation(&queue, &running).await,
                    RowHolder::Other => operations.follow_operation(&running, shared).await,
                };
                if has_ended {
                    break;
                }
            }
        });
    }

    /// Notes the next step of an operation, and tells other servers of it once a second. Also learns from the row
    /// whether a caller cancelled the operation.
    pub(super) async fn share_progress(&self, running: &RunningOperation, next: BulkCursor) -> RowHolder {
        let Some(shared) = &running.shared else { return RowHolder::Here };
        let now = self.context.elapsed();
        {
            let mut known = shared.state.lock();
            known.next = next;
            if now.saturating_sub(known.written) < SHARED_EVERY {
                return RowHolder::Here;
            }
        }
        match self.write_row(running, shared, |_| ()).await {
            Ok(holder) => holder,
            Err(error) => {
                tracing::debug!(%error, operation = running.id, "cannot tell other servers how far an operation is");
                RowHolder::Here
            }
        }
    }

    /// Writes the end of an operation into its row. If that fails, `takeover` does it later.
    pub(super) async fn share_end(&self, running: &RunningOperation, state: &OperationState, at: Timestamp) {
        let Some(shared) = &running.shared else { return };
        let written = self.write_row(running, shared, |row| running.end_row(row, state, at));
        if let Err(error) = written.await {
            tracing::debug!(%error, operation = running.id, "cannot tell other servers the end of an operation yet");
        }
    }

    /// Writes the row of an operation that runs here, unless another server runs it now.
    async fn write_row(
        &self,
        running: &RunningOperation,
        shared: &SharedProgress,
        change: impl Fn(&mut OperationRow),
    ) -> Result<RowHolder, StoreError> {
        let Some(directory) = self.operation_directory() else { return Ok(RowHolder::Here) };
        for _ in 0..WRITE_ATTEMPTS {
            let (before, next) = {
                let known = shared.state.lock();
                (known.row.clone(), known.next)
            };
            let mut row = OperationRow { next, version: before.version + 1, ..before.clone() };
            row.done = running.done.load(Ordering::Relaxed);
            row.runner = self.own_id();
            change(&mut row);
            let now = self.context.elapsed();
            if directory.put(&row).await? {
                shared.note(row, RowHolder::Here, now);
                return Ok(RowHolder::Here);
            }
            let Some(found) = directory.get(&running.id).await? else {
                shared.state.lock().holder = RowHolder::Other;
                return Ok(RowHolder::Other);
            };
            let is_ours = found.runner == before.runner && found.end.is_none();
            if found.is_cancelled && is_ours {
                running.cancel.cancel();
            }
            let holder = if is_ours { RowHolder::Here } else { RowHolder::Other };
            let next = OperationRow { next: found.next.max(next), ..found };
            shared.note(next, holder, now);
            if !is_ours {
                return Ok(RowHolder::Other);
            }
        }
        Err(StoreError::not_applied(StoreErrorKind::Busy, "share operation"))
    }

    /// Follows an operation of another server. Returns true at its end, and false once this server runs it.
    async fn follow_operation(&self, running: &Arc<RunningOperation>, shared: &SharedProgress) -> bool {
        let Some(directory) = self.operation_directory() else { return true };
        let mut is_asked = false;
        loop {
            tokio::select! {
                () = self.context.sleep(SHARED_EVERY) => {}
                () = running.cancel.cancelled(), if !is_asked => {}
                () = self.context.drain.cancelled() => {
                    self.end_operation(running, OperationState::Cancelled, self.context.now());
                    return true;
                }
            }
            let Ok(found) = directory.get(&running.id).await else {
                // A store that does not answer is asked again, but not at once.
                self.context.sleep(SHARED_EVERY).await;
                continue;
            };
            let now = self.context.elapsed();
            let Some(row) = found else {
                let state = OperationState::failed(&operation_not_found(&running.id));
                self.end_operation(running, state, self.context.now());
                return true;
            };
            let Operation { state, ended, done, .. } = shown(&row);
            running.done.store(done, Ordering::Relaxed);
            // `takeover` has made this server its runner.
            let is_here = row.runner.is_some() && row.runner == self.own_id() && ended.is_none();
            shared.note(row.clone(), if is_here { RowHolder::Here } else { RowHolder::Other }, now);
            if is_here {
                return false;
            }
            if let Some(at) = ended {
                self.end_operation(running, state, at);
                return true;
            }
            if running.cancel.is_cancelled() && !is_asked {
                is_asked = row.is_cancelled || self.ask_to_cancel(directory, row).await.unwrap_or(false);
            }
        }
    }

    async fn ask_to_cancel(&self, directory: &dyn OperationDirectory, row: OperationRow) -> Result<bool, StoreError> {
        directory.put(&OperationRow { version: row.version + 1, is_cancelled: true, ..row }).await
    }

    /// Reads an operation that this server does not know.
    pub(super) async fn operation_elsewhere(&self, id: &str) -> Result<Operation, QueueError> {
        let Some(directory) = self.operation_directory() else { return Err(operation_not_found(id)) };
        directory.get(id).await?.map(|row| shown(&row)).ok_or_else(|| operation_not_found(id))
    }

    /// Cancels an operation that this server does not know. Waits some time for its end.
    pub(super) async fn cancel_elsewhere(&self, id: &str) -> Result<Operation, QueueError> {
        let Some(directory) = self.operation_directory() else { return Err(operation_not_found(id)) };
        let until = self.context.elapsed() + END_WAIT;
        loop {
            let row = directory.get(id).await?.ok_or_else(|| operation_not_found(id))?;
            let is_over = self.context.elapsed() >= until;
            if row.end.is_some() || is_over {
                return Ok(shown(&row));
            }
            if row.is_cancelled || self.ask_to_cancel(directory, row).await? {
                self.context.sleep(END_LOOK_EVERY).await;
            }
        }
    }
}

/// An operation as its row shows it.
pub(super) fn shown(row: &OperationRow) -> Operation {
    let state = match row.end.as_ref().map(|end| &end.outcome) {
        None => OperationState::Running,
        Some(OperationOutcome::Done) => OperationState::Done,
        Some(OperationOutcome::Cancelled) => OperationState::Cancelled,
        Some(OperationOutcome::Failed { reason, text }) => OperationState::Failed(*reason, text.to_string()),
    };
    Operation {
        id: row.id.to_string(),
        queue: Some(row.name.clone()),
        kind: OperationKind::from(row.work.kind).name(),
        state,
        dry_run: row.work.dry_run,
        done: row.done,
        total: row.total,
        began: row.began,
        ended: row.end.as_ref().map(|end| end.at),
        work: Some(row.work.clone()),
        author: row.author.clone(),
    }
}
