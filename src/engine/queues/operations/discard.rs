//! Discards: deletes errored messages by id, by filter, by the signature of their error, or all of them.
//!
//! A discard covers messages that had failed for good by the time it began, or by an earlier time that its caller
//! names. So it deletes what a dry run counted, and keeps later failures. With a request token that time is stored.

use super::{Operation, OperationKind, OperationSpec};
use crate::caller_quota::CallerId;
use crate::queues::error::QueueError;
use crate::queues::error::unexpected;
use crate::queues::operations::OperationService;
use tallystone_domain::Timestamp;
use tallystone_domain::queue::filter::Filter;
use tallystone_domain::queue::messages::message::MessageRef;
use tallystone_domain::queue::{Command, QueueId, QueueName, Reply};
use tallystone_ports::ShardCommand;

/// The arguments of a discard.
#[derive(Clone, Debug, Default)]
pub struct DiscardRequest {
    /// One message; none for all errored messages.
    pub message: Option<MessageRef>,
    /// The filter that they must match.
    pub filter: Filter,
    /// The signature that their last error must have; none for any.
    pub signature: Option<Box<str>>,
    /// The time by which they must have failed for good; none for the start of the discard.
    pub until: Option<Timestamp>,
    /// Whether to count only.
    pub dry_run: bool,
    /// The request token of the caller.
    pub token: Option<String>,
    /// The id that the queue must have.
    pub queue: Option<QueueId>,
    /// The caller that asks, as it is shown to people.
    pub author: Box<str>,
}

impl OperationService {
    /// Discards errored messages.
    pub async fn discard(
        &self,
        caller: CallerId,
        name: &QueueName,
        asked: DiscardRequest,
    ) -> Result<Operation, QueueError> {
        let queue = self.catalog.queue_of(name, asked.queue).await?;
        let DiscardRequest { message, filter, signature, until, dry_run, token, queue: _, author } = asked;
        let work =
            OperationSpec { message, filter, signature, until, dry_run, ..OperationSpec::all(OperationKind::Discard) };
        match work.message {
            Some(_) => self.run_single(caller, &queue, work, token).await,
            None => self.start_bulk((caller, author), &queue, work, token).await,
        }
    }

    /// The time by which the messages of a discard must have ended; none for operations bounded by sequences alone.
    pub(super) async fn ended_by(&self, work: &OperationSpec) -> Result<Option<Timestamp>, QueueError> {
        if work.kind != OperationKind::Discard || work.message.is_some() {
            return Ok(None);
        }
        let now = self.context.stores.time.clock().await?.now;
        Ok(Some(work.until.map_or(now, |until| until.min(now))))
    }

    pub(super) async fn discard_one(&self, name: &QueueName, message: MessageRef) -> Result<(), QueueError> {
        let queue = self.catalog.queue(name).await?;
        let shard = self.context.shard_of(&queue, &message).await?;
        let command = ShardCommand::of(Command::Discard { message });
        match self.context.call(&queue, shard, command).await?.reply? {
            Reply::Walked { .. } => Ok(()),
            other => Err(unexpected("discard", &other)),
        }
    }
}
