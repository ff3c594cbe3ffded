//! Discards: errored messages are thrown away, by id, by filter, by the signature of their error, or all of them.
//!
//! A discard touches what had failed for good by the time it began, or by an earlier time that its caller names: so what
//! was counted by a dry run is what goes, and what fails meanwhile stays. That time is kept with a request token.

use super::{Operation, OperationKind, OperationSpec};
use crate::domain::Timestamp;
use crate::domain::queue::command::MessageRef;
use crate::domain::queue::filter::Filter;
use crate::domain::queue::{Command, QueueId, QueueName, Reply};
use crate::engine::caller_quota::CallerId;
use crate::engine::queues::error::QueueError;
use crate::engine::queues::{Queues, unexpected};
use crate::ports::ShardCommand;

/// What a discard is asked to do.
#[derive(Clone, Debug, Default)]
pub struct DiscardRequest {
    /// One message; all that are errored without.
    pub message: Option<MessageRef>,
    /// What they must have.
    pub filter: Filter,
    /// The signature that their last error must have; none for any.
    pub signature: Option<Box<str>>,
    /// By when they must have failed for good; none for the beginning of the discard.
    pub until: Option<Timestamp>,
    /// Whether to count only.
    pub dry_run: bool,
    /// The caller's name of the request.
    pub token: Option<String>,
    /// The number that the queue must have.
    pub queue: Option<QueueId>,
}

impl Queues {
    /// Throws errored messages away.
    pub async fn discard(
        &self,
        caller: CallerId,
        name: &QueueName,
        asked: DiscardRequest,
    ) -> Result<Operation, QueueError> {
        let queue = self.context.queue_of(name, asked.queue)?;
        let DiscardRequest { message, filter, signature, until, dry_run, token, queue: _ } = asked;
        let work =
            OperationSpec { message, filter, signature, until, dry_run, ..OperationSpec::all(OperationKind::Discard) };
        match work.message {
            Some(_) => self.run_single(caller, &queue, work, token).await,
            None => self.start_bulk(caller, &queue, work, token).await,
        }
    }

    /// By when what a discard that begins now touches has come to its end; none for what is bounded by sequences alone.
    pub(super) async fn ended_by(&self, work: &OperationSpec) -> Result<Option<Timestamp>, QueueError> {
        if work.kind != OperationKind::Discard || work.message.is_some() {
            return Ok(None);
        }
        let now = self.context.stores.shards.clock().await?.now;
        Ok(Some(work.until.map_or(now, |until| until.min(now))))
    }

    pub(super) async fn discard_one(&self, name: &QueueName, message: MessageRef) -> Result<(), QueueError> {
        let queue = self.context.queue(name)?;
        let shard = self.shard_of(&queue, &message).await?;
        let command = ShardCommand::of(Command::Discard { message });
        match self.context.call(&queue, shard, command).await?.reply? {
            Reply::Walked { .. } => Ok(()),
            other => Err(unexpected("discard", &other)),
        }
    }
}
