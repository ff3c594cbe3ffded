//! The run of an operation: shard by shard, step by step, at its rate, until it is done, canceled or taken over.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::operation_rows::RowHolder;
use super::{OperationKind, OperationService, OperationSpec, OperationState, RunningOperation};
use crate::queues::error::{QueueError, unexpected};
use crate::queues::state::served_queue::ServedQueue;
use tallystone_domain::Timestamp;
use tallystone_domain::limits::BULK_MESSAGES_MAX;
use tallystone_domain::queue::bulk_operation::BulkCursor;
use tallystone_domain::queue::command::BulkRequest;
use tallystone_domain::queue::{Command, Reply};
use tallystone_ports::ShardCommand;

/// How the walk of an operation ended.
enum WalkEnd {
    Complete,
    /// It was cancelled, or the server stops.
    Stopped,
    /// Another server runs it.
    TakenOver,
}

impl OperationService {
    /// Runs an operation to its end. Returns false if another server runs it now.
    pub(super) async fn run_operation(&self, queue: &Arc<ServedQueue>, running: &Arc<RunningOperation>) -> bool {
        *running.pace.lock() = (self.context.elapsed(), running.done.load(Ordering::Relaxed));
        let walked = self.walk(queue, running).await;
        let was_refused = running.work.message.is_some() && matches!(walked, Err(QueueError::Refused(_)));
        let state = match walked {
            Ok(WalkEnd::TakenOver) => return false,
            Ok(WalkEnd::Complete) => OperationState::Done,
            Ok(WalkEnd::Stopped) => OperationState::Cancelled,
            Err(error) => OperationState::failed(&error),
        };
        let is_over = match state {
            OperationState::Done => true,
            OperationState::Running | OperationState::Failed(..) => false,
            OperationState::Cancelled => running.cancel.is_cancelled(), // not by the shutdown of the server
        };
        // The version of a single message tells whether the operation is over.
        if let Some(kept) = running.stored_request.clone().filter(|_| is_over && running.work.message.is_none()) {
            self.store_end(queue, kept).await;
        }
        if let (Some(kept), true) = (&running.stored_request, was_refused) {
            self.free_token(kept.clone()).await;
        }
        let at = self.context.now();
        self.share_end(running, &state, at).await;
        self.end_operation(running, state, at);
        true
    }

    pub(super) fn end_operation(&self, running: &Arc<RunningOperation>, state: OperationState, at: Timestamp) {
        let elapsed = self.context.elapsed();
        running.end.send_replace(Some((state, at)));
        self.known_operations.ended(running, elapsed);
    }

    /// Walks over all shards.
    async fn walk(&self, queue: &Arc<ServedQueue>, running: &RunningOperation) -> Result<WalkEnd, QueueError> {
        if running.work.message.is_some() {
            let is_over = running.stored_request.as_ref().is_some_and(|kept| kept.through.is_empty());
            if is_over {
                running.done.store(1, Ordering::Relaxed);
                return Ok(WalkEnd::Complete);
            }
            let end = self.apply_single(queue, &running.work).await?;
            running.done.store(end.done, Ordering::Relaxed);
            return Ok(WalkEnd::Complete);
        }
        let (ends, first) = match (&running.shared, &running.stored_request) {
            (Some(shared), _) => shared.walk_from(),
            (None, Some(kept)) => (kept.through.clone(), BulkCursor::default()),
            (None, None) => (self.sequences(queue).await?, BulkCursor::default()),
        };
        for (shard, through) in (0..queue.shards()).zip(ends).skip(first.shard as usize) {
            let mut next = Some(if shard == first.shard { first.after } else { 0 });
            while let Some(after) = next {
                self.throttle(running).await;
                if self.share_progress(running, BulkCursor { shard, after }).await == RowHolder::Other {
                    return Ok(WalkEnd::TakenOver);
                }
                if running.cancel.is_cancelled() || self.context.drain.is_cancelled() {
                    return Ok(WalkEnd::Stopped);
                }
                next = self.step(queue, running, shard, after, through).await?;
            }
        }
        Ok(WalkEnd::Complete)
    }

    async fn step(
        &self,
        queue: &Arc<ServedQueue>,
        running: &RunningOperation,
        shard: u32,
        after: u64,
        through: u64,
    ) -> Result<Option<u64>, QueueError> {
        let OperationSpec { kind, states, filter, signature, dry_run, reason, .. } = running.work.clone();
        // With a rate, each step takes a tenth of a second's worth.
        let max = match usize::try_from(running.work.rate_kept().div_ceil(10)).unwrap_or(BULK_MESSAGES_MAX) {
            0 => BULK_MESSAGES_MAX,
            some => some.min(BULK_MESSAGES_MAX),
        };
        let bulk = BulkRequest { after, through, max, states, filter, signature, ended_by: running.ended_by, dry_run };
        let command = match kind {
            OperationKind::Purge => Command::Purge(bulk),
            OperationKind::Redrive => Command::RedriveAll(bulk),
            OperationKind::Discard => Command::DiscardAll(bulk),
            OperationKind::Cancel => Command::CancelAll { bulk, reason },
            OperationKind::Check => unreachable!("a check sends no commands"),
        };
        let answer = self.context.call(queue, shard, ShardCommand::of(command)).await?;
        match answer.reply? {
            Reply::Walked { count, next } => {
                running.done.fetch_add(count as u64, Ordering::Relaxed);
                Ok(next)
            }
            other => Err(unexpected("bulk operation", &other)),
        }
    }

    /// Waits until the operation may continue without exceeding its rate.
    async fn throttle(&self, running: &RunningOperation) {
        let rate = running.work.rate_kept();
        if rate == 0 {
            return;
        }
        let (since, before) = *running.pace.lock();
        let done = running.done.load(Ordering::Relaxed).saturating_sub(before);
        let due = since + Duration::from_secs_f64(done as f64 / f64::from(rate));
        let pause = due.saturating_sub(self.context.elapsed());
        tokio::select! {
            () = self.context.sleep(pause) => {}
            () = running.cancel.cancelled() => {}
            () = self.context.drain.cancelled() => {}
        }
    }
}
