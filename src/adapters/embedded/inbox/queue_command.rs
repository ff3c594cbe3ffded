//! Commands of queues to the committer. Each carries its reply channel and is answered exactly once.

use tokio::sync::oneshot;

use super::admission::{AdmissionClass, CommitLane, ReplySender};
use crate::queues::shard_table::LoadedShard;
use crate::queues::store_time::Moment;
use tallystone_domain::queue::clock::StepTime;
use tallystone_domain::queue::messages::lease_seal::LeaseKey;
use tallystone_domain::queue::messages::message::MessageRef;
use tallystone_domain::queue::transition::RowPosition;
use tallystone_domain::queue::{Command, QueueId, ShardId, ShardSettings, Urgency};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{CreatedQueue, QueueRecord, QueueRequest, ShardAnswer, ShardCommand, StoreError};

/// Reply channel of shard commands, with one result for each.
pub type ApplyReplySender = oneshot::Sender<Vec<Result<ShardAnswer, StoreError>>>;

pub enum QueueStoreCommand {
    /// Applies commands to a shard. Leased messages are answered without their bodies.
    Apply(ApplyCommands),
    Read(ReadShard),
    /// Creates the shards of a queue.
    Create(Box<NewShards>, ReplySender<()>),
    Drop(QueueId, ReplySender<()>),
    List(ReplySender<Vec<CreatedQueue>>),
    /// Changes the catalog of queues.
    Catalog(Box<QueueRecord>, ReplySender<()>),
    /// Stores a request; evicts expired ones.
    SaveRequest(Box<QueueRequest>, Timestamp, ReplySender<()>),
    /// Reads the times of a step.
    Clock(Moment, ReplySender<StepTime>),
    /// Reads the key that seals lease tokens; stores this one if there is none.
    LeaseKey(LeaseKey, ReplySender<LeaseKey>),
    /// Measures the age of tokens by wall time again.
    ResetClock(Moment, ReplySender<Option<Timestamp>>),
    /// Lists the shards whose outboxes have rows.
    ListOutboxes(ReplySender<Vec<ShardId>>),
    /// Removes the rows of an outbox up to a position.
    ForgetOutbox(ShardId, RowPosition, ReplySender<()>),
    /// Removes some rows of dropped queues; more may be left.
    PurgeDropped,
    /// Makes the committer pick up new listeners.
    AttachListeners,
}

/// The shards of a new queue.
pub struct NewShards {
    pub queue: QueueId,
    pub shards: u32,
    pub settings: ShardSettings,
    /// Time of the creation.
    pub moment: Moment,
}

/// Commands for one shard.
pub struct ApplyCommands {
    pub shard: ShardId,
    /// Time of the commands.
    pub moment: Moment,
    /// Commands in order.
    pub commands: Vec<ShardCommand>,
    /// Reply channel.
    pub answer: ApplyReplySender,
}

/// A read of a shard.
pub struct ReadShard {
    pub shard: ShardId,
    /// Time of the read.
    pub moment: Moment,
    /// The message whose head the read needs, even if it is over.
    pub message: Option<MessageRef>,
    pub read: ShardRead,
    /// Reply channel.
    pub answer: ReplySender<()>,
}

/// A read of a shard, at the time of the shard. It sends its result; the reply says when the result counts.
pub type ShardRead = Box<dyn FnOnce(&LoadedShard, Timestamp) + Send>;

impl QueueStoreCommand {
    pub fn class(&self) -> AdmissionClass {
        match self {
            Self::Apply(apply) if apply.commands.iter().any(|sent| brings_content(&sent.command)) => {
                AdmissionClass::Intake
            }
            Self::Apply(_)
            | Self::Read(..)
            | Self::Create(..)
            | Self::Drop(..)
            | Self::List(_)
            | Self::Catalog(..)
            | Self::SaveRequest(..)
            | Self::Clock(..)
            | Self::LeaseKey(..)
            | Self::ResetClock(..)
            | Self::ListOutboxes(_)
            | Self::ForgetOutbox(..)
            | Self::PurgeDropped
            | Self::AttachListeners => AdmissionClass::Upkeep,
        }
    }

    /// Returns the priority lane; commands of one batch go to the lane of the most urgent one.
    pub fn lane(&self) -> CommitLane {
        match self {
            Self::Apply(apply) => {
                let has = |urgency| apply.commands.iter().any(|sent| sent.command.urgency() == urgency);
                let takes = || apply.commands.iter().any(|sent| matches!(sent.command, Command::Dequeue(_)));
                if has(Urgency::Settlement) {
                    CommitLane::Settlements
                } else if has(Urgency::Intake) && !takes() {
                    CommitLane::Enqueues
                } else if has(Urgency::Bulk) && !takes() {
                    CommitLane::Bulk
                } else {
                    CommitLane::General
                }
            }
            Self::Create(..)
            | Self::Drop(..)
            | Self::Catalog(..)
            | Self::SaveRequest(..)
            | Self::LeaseKey(..)
            | Self::ResetClock(..) => CommitLane::General,
            Self::Read(..) | Self::Clock(..) | Self::ListOutboxes(_) | Self::AttachListeners => CommitLane::Reads,
            Self::List(_) | Self::ForgetOutbox(..) | Self::PurgeDropped => CommitLane::Bulk,
        }
    }

    /// Number of shard commands in this command.
    pub fn items(&self) -> usize {
        match self {
            Self::Apply(apply) => apply.commands.len(),
            Self::Read(..)
            | Self::Create(..)
            | Self::Drop(..)
            | Self::List(_)
            | Self::Catalog(..)
            | Self::SaveRequest(..)
            | Self::Clock(..)
            | Self::LeaseKey(..)
            | Self::ResetClock(..)
            | Self::ListOutboxes(_)
            | Self::ForgetOutbox(..)
            | Self::PurgeDropped
            | Self::AttachListeners => 1,
        }
    }

    /// Estimated bytes while the command waits, without the command itself.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Apply(apply) => apply.commands.iter().map(bytes_of).sum(),
            Self::Read(..)
            | Self::Create(..)
            | Self::Drop(..)
            | Self::List(_)
            | Self::Catalog(..)
            | Self::SaveRequest(..)
            | Self::Clock(..)
            | Self::LeaseKey(..)
            | Self::ResetClock(..)
            | Self::ListOutboxes(_)
            | Self::ForgetOutbox(..)
            | Self::PurgeDropped
            | Self::AttachListeners => 0,
        }
    }

    /// Answers with an error; its argument is the name of the operation.
    pub fn fail(self, error: impl Fn(&'static str) -> StoreError) {
        // A failed send means that the caller stopped waiting.
        match self {
            Self::Apply(apply) => {
                let _ = apply.answer.send(apply.commands.iter().map(|_| Err(error("apply to queue"))).collect());
            }
            Self::Read(read) => drop(read.answer.send(Err(error("read queue")))),
            Self::Create(_, answer) => drop(answer.send(Err(error("create queue")))),
            Self::Drop(_, answer) => drop(answer.send(Err(error("drop queue")))),
            Self::List(answer) => drop(answer.send(Err(error("list queues")))),
            Self::Catalog(_, answer) => drop(answer.send(Err(error("commit queue")))),
            Self::SaveRequest(_, _, answer) => drop(answer.send(Err(error("keep request")))),
            Self::Clock(_, answer) => drop(answer.send(Err(error("read queue clock")))),
            Self::LeaseKey(_, answer) => drop(answer.send(Err(error("lease key")))),
            Self::ResetClock(_, answer) => drop(answer.send(Err(error("reset queue clock")))),
            Self::ListOutboxes(answer) => drop(answer.send(Err(error("list outboxes")))),
            Self::ForgetOutbox(_, _, answer) => drop(answer.send(Err(error("forget outbox")))),
            Self::PurgeDropped | Self::AttachListeners => {}
        }
    }
}

/// Returns whether a command adds a message.
pub fn is_intake(command: &Command) -> bool {
    matches!(command, Command::Enqueue(_))
}

/// Returns whether a command brings content that takes room: a message, or what an update puts into one.
pub fn brings_content(command: &Command) -> bool {
    is_intake(command) || matches!(command, Command::Update { update, .. } if update.has_content())
}

/// Estimated memory of a waiting message without its strings, in bytes.
const MESSAGE_BYTES: usize = 512;

fn bytes_of(sent: &ShardCommand) -> usize {
    let body = &sent.body;
    let texts = [&body.kind, &body.trace_context].into_iter().flatten().map(|text| text.len()).sum::<usize>();
    let head = if brings_content(&sent.command) { MESSAGE_BYTES } else { 0 };
    size_of::<ShardCommand>() + head + body.payload.len() + texts
}
