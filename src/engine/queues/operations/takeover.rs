//! Continues the operations of servers that have gone, and forgets those that ended long ago.
//!
//! The first server in rank takes an operation over, so that mostly one does. If two do, the compare-and-set of the row
//! decides.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use hashbrown::HashMap;
use xxhash_rust::xxh3::xxh3_64;

use super::operation_rows::{RowHolder, SharedProgress};
use super::{OperationRequest, OperationSpec, OperationState, RunningOperation};
use crate::caller_quota::CallerId;
use crate::driver::{BackgroundLoop, NextActivation};
use crate::fleet::FleetMembership;
use crate::queues::error::QueueError;
use crate::queues::operations::OperationService;
use tallystone_domain::fleet::MemberId;
use tallystone_domain::limits::OPERATION_KEPT;
use tallystone_ports::{OperationDirectory, OperationEnd, OperationOutcome, OperationRow, StoreError};

/// The interval between two looks at the rows of operations.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a runner must be missing among the members: one that has just joined may not have been read yet.
const MISSING_FOR: Duration = Duration::from_secs(3);

/// The background loop that takes operations over.
pub struct OperationTakeover {
    operations: Arc<OperationService>,
    /// Since when the runner of an operation is missing, by elapsed time.
    missing: HashMap<Box<str>, (MemberId, Duration)>,
}

impl OperationTakeover {
    /// Makes the loop of a server.
    pub fn new(operations: Arc<OperationService>) -> Self {
        Self { operations, missing: HashMap::new() }
    }

    async fn look(&mut self, directory: &dyn OperationDirectory, member: &FleetMembership) -> Result<(), StoreError> {
        let engine = &self.operations.context.engine;
        directory.forget(engine.now() - OPERATION_KEPT).await?;
        let rows = directory.running().await?;
        self.missing.retain(|id, _| rows.iter().any(|row| row.id == *id));
        for row in rows {
            let here = self.operations.known_operations.get(&row.id);
            let end = here.as_ref().map(|running| running.show().state);
            let is_ours = row.runner == Some(member.id());
            match (here, end) {
                (Some(running), Some(OperationState::Running)) if is_ours => drop(running),
                (Some(running), Some(OperationState::Running)) => {
                    if self.is_abandoned(&row, member) {
                        // The follower sees that it is the runner now.
                        self.operations.take_row(directory, &running.id, row).await?;
                    }
                }
                (Some(running), Some(_)) if is_ours => {
                    self.operations.write_missed_end(directory, &running, row).await?;
                }
                (Some(_), _) => {}
                (None, _) if is_ours || self.is_abandoned(&row, member) => {
                    self.operations.continue_operation(directory, row).await?;
                }
                (None, _) => {}
            }
        }
        Ok(())
    }

    /// Whether an operation has no runner any more, and this server is the first to take it over.
    fn is_abandoned(&mut self, row: &OperationRow, member: &FleetMembership) -> bool {
        let now = self.operations.context.elapsed();
        let is_free = match row.runner {
            None => true,
            Some(runner) if !member.is_gone(runner) => {
                self.missing.remove(&row.id);
                false
            }
            Some(runner) => {
                let since = self.missing.entry(row.id.clone()).or_insert((runner, now));
                if since.0 != runner {
                    *since = (runner, now);
                }
                now.saturating_sub(since.1) >= MISSING_FOR
            }
        };
        // The cast truncates on purpose.
        is_free && member.rank_for(xxh3_64(row.id.as_bytes()) as u32) == 0
    }
}

impl OperationService {
    /// Makes this server the runner of an operation. Returns the row, unless another server was faster.
    async fn take_row(
        &self,
        directory: &dyn OperationDirectory,
        id: &str,
        row: OperationRow,
    ) -> Result<Option<OperationRow>, StoreError> {
        let taken = OperationRow { version: row.version + 1, runner: self.own_id(), ..row };
        if !directory.put(&taken).await? {
            return Ok(None);
        }
        tracing::info!(operation = id, "continuing an operation whose server has gone");
        Ok(Some(taken))
    }

    /// Takes over an operation that this server did not know.
    async fn continue_operation(
        &self,
        directory: &dyn OperationDirectory,
        row: OperationRow,
    ) -> Result<(), StoreError> {
        let id = row.id.clone();
        let Some(row) = self.take_row(directory, &id, row).await? else { return Ok(()) };
        let Some(queue) = self.context.by_id(row.queue) else {
            let gone = QueueError::not_found(&row.name);
            let outcome = OperationOutcome::Failed { reason: gone.reason(), text: gone.to_string().into() };
            let end = Some(OperationEnd { at: self.context.now(), outcome });
            return directory.put(&OperationRow { version: row.version + 1, end, ..row }).await.map(drop);
        };
        let token = id.strip_prefix(&format!("{}.", row.queue)).unwrap_or(&id).to_owned();
        let kept = self.context.stores.catalog.saved_request(row.queue, &token).await?;
        let now = self.context.elapsed();
        let asked = OperationRequest {
            caller: CallerId::nobody(),
            author: Box::default(),
            work: OperationSpec::of_bulk(row.work.clone()),
            total: row.total,
            token: Some(token),
            ended_by: row.ended_by,
        };
        let (began, done, is_cancelled, author) = (row.began, row.done, row.is_cancelled, row.author.clone());
        let shared = SharedProgress::new(row, RowHolder::Here, now);
        let made = RunningOperation { began, author, ..self.operation_of(&queue, asked, kept, Some(shared)) };
        made.done.store(done, Ordering::Relaxed);
        if is_cancelled {
            made.cancel.cancel();
        }
        // With no room here, this server is asked again at its next look.
        if let Ok((running, true)) = self.register(made) {
            self.drive_in_background(&queue, &running);
        }
        Ok(())
    }

    /// Writes an end that could not be written when it came.
    async fn write_missed_end(
        &self,
        directory: &dyn OperationDirectory,
        running: &Arc<RunningOperation>,
        row: OperationRow,
    ) -> Result<(), StoreError> {
        let shown = running.show();
        if shown.state == OperationState::Running {
            return Ok(());
        }
        let mut row = OperationRow { version: row.version + 1, done: shown.done, ..row };
        running.end_row(&mut row, &shown.state, self.context.now());
        // If another server was faster, the next look sees what it wrote.
        directory.put(&row).await.map(drop)
    }
}

#[async_trait]
impl BackgroundLoop for OperationTakeover {
    fn name(&self) -> &'static str {
        "operations of other servers"
    }

    async fn activate(&mut self) -> NextActivation {
        let operations = self.operations.clone();
        let (Some(directory), Some(member)) = (operations.operation_directory(), &operations.context.member) else {
            return NextActivation::Finished;
        };
        if let Err(error) = self.look(directory, member).await {
            tracing::debug!(%error, "cannot look at the operations of other servers; trying again");
        }
        NextActivation::After(LOOK_EVERY)
    }
}
