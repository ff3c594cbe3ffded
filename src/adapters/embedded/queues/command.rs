//! What callers ask of the committer about queues. Each carries the way to its caller; it is answered once.

use tokio::sync::oneshot;

use super::store_time::Moment;
use crate::adapters::embedded::commit::command::{AdmissionClass, CommitLane, ReplySender};
use crate::domain::queue::clock::StepTime;
use crate::domain::queue::command::MessageRef;
use crate::domain::queue::commands::explain::{Cause, DequeuePreview};
use crate::domain::queue::messages::lease_seal::LeaseKey;
use crate::domain::queue::session_records::{SessionId, SessionRecord};
use crate::domain::queue::{Command, Filter, MessageHead, MessageState, QueueId, Settings, ShardId, Urgency};
use crate::domain::time::Timestamp;
use crate::ports::{FilteredDepth, QueueRecord, QueueRequest, ShardAnswer, ShardCommand, ShardTotals, StoreError};

/// The way to the caller of commands, who gets an answer for each.
pub type ApplyReplySender = oneshot::Sender<Vec<Result<ShardAnswer, StoreError>>>;

/// One request.
pub enum QueueStoreCommand {
    /// Applies commands to a shard. The messages of leases are answered without their bodies.
    Apply(ApplyCommands),
    /// Reads a shard.
    Read(ShardId, Moment, ShardRead, ReplySender<ShardReadResult>),
    /// Creates the shards of a queue.
    Create(QueueId, u32, Box<Settings>, ReplySender<()>),
    /// Drops a queue.
    Drop(QueueId, ReplySender<()>),
    /// Lists the queues.
    List(ReplySender<Vec<(QueueId, u32)>>),
    /// Changes the catalog.
    Catalog(Box<QueueRecord>, ReplySender<()>),
    /// Keeps a request; those whose time is over give way to it.
    SaveRequest(Box<QueueRequest>, Timestamp, ReplySender<()>),
    /// Reads the times of a step.
    Clock(Moment, ReplySender<StepTime>),
    /// Reads the key that seals lease tokens; keeps this one if there is none.
    LeaseKey(LeaseKey, ReplySender<LeaseKey>),
    /// Judges the age of tokens by wall time again.
    ResetClock(Moment, ReplySender<Option<Timestamp>>),
    /// Removes some rows of dropped queues; there may be more.
    PurgeDropped,
    /// Nothing: there is a new listener.
    AttachListeners,
}

/// Commands for a shard.
pub struct ApplyCommands {
    /// The shard.
    pub shard: ShardId,
    /// When.
    pub moment: Moment,
    /// The commands.
    pub commands: Vec<ShardCommand>,
    /// The way to the caller.
    pub answer: ApplyReplySender,
}

/// What is read of a shard.
pub enum ShardRead {
    /// One message.
    Get(MessageRef),
    /// Pending messages, best first.
    Peek(usize),
    /// Messages of a state above a sequence.
    List(MessageState, u64, usize),
    /// Those of these sequences that are there.
    BySequence(Vec<u64>),
    /// The totals only.
    Totals,
    /// How many messages meet a filter.
    Depth(Filter),
    /// What is known of sessions.
    Sessions,
    /// How many leases these sessions have.
    Leases(Vec<SessionId>),
    /// Why a message stands where it stands.
    Explain(MessageRef),
    /// What a dequeue with a filter would meet.
    Prospect(Filter),
}

/// What was seen of a shard at one moment.
pub struct ShardReadResult {
    /// The heads, in the order asked for.
    pub heads: Vec<MessageHead>,
    /// The shard's time.
    pub at: Timestamp,
    /// What the shard holds.
    pub totals: ShardTotals,
    /// What else was asked for.
    pub detail: ShardReadDetail,
}

/// What a read answers that is no message.
#[derive(Debug)]
pub enum ShardReadDetail {
    /// Nothing.
    Nothing,
    /// How many messages meet a filter.
    Depth(FilteredDepth),
    /// What is known of sessions.
    Sessions(Vec<(SessionId, SessionRecord)>),
    /// How many leases each session has.
    Leases(Vec<usize>),
    /// Why a message stands where it stands.
    Causes(Vec<Cause>),
    /// What a dequeue would meet.
    Prospect(Box<DequeuePreview>),
}

impl QueueStoreCommand {
    /// How it may be turned away.
    pub fn class(&self) -> AdmissionClass {
        match self {
            Self::Apply(apply) if apply.commands.iter().any(|sent| is_intake(&sent.command)) => AdmissionClass::Intake,
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
            | Self::PurgeDropped
            | Self::AttachListeners => AdmissionClass::Upkeep,
        }
    }

    /// What it goes before: commands that travel together go where the most urgent of them goes.
    pub fn lane(&self) -> CommitLane {
        match self {
            Self::Apply(apply) => {
                let has = |urgency| apply.commands.iter().any(|sent| sent.command.urgency() == urgency);
                let takes = || apply.commands.iter().any(|sent| matches!(sent.command, Command::Dequeue(_)));
                if has(Urgency::Settlement) {
                    CommitLane::Settlements
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
            Self::Read(..) | Self::List(_) | Self::Clock(..) | Self::PurgeDropped | Self::AttachListeners => {
                CommitLane::Bulk
            }
        }
    }

    /// How many commands of shards it brings.
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
            | Self::PurgeDropped
            | Self::AttachListeners => 1,
        }
    }

    /// About what it takes while it waits, beside itself.
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
            | Self::PurgeDropped
            | Self::AttachListeners => 0,
        }
    }

    /// Answers with a failure.
    pub fn fail(self, error: impl Fn(&'static str) -> StoreError) {
        // A caller that stopped waiting has nobody to tell.
        match self {
            Self::Apply(apply) => {
                let _ = apply.answer.send(apply.commands.iter().map(|_| Err(error("apply to queue"))).collect());
            }
            Self::Read(_, _, _, answer) => drop(answer.send(Err(error("read queue")))),
            Self::Create(_, _, _, answer) => drop(answer.send(Err(error("create queue")))),
            Self::Drop(_, answer) => drop(answer.send(Err(error("drop queue")))),
            Self::List(answer) => drop(answer.send(Err(error("list queues")))),
            Self::Catalog(_, answer) => drop(answer.send(Err(error("commit queue")))),
            Self::SaveRequest(_, _, answer) => drop(answer.send(Err(error("keep request")))),
            Self::Clock(_, answer) => drop(answer.send(Err(error("read queue clock")))),
            Self::LeaseKey(_, answer) => drop(answer.send(Err(error("lease key")))),
            Self::ResetClock(_, answer) => drop(answer.send(Err(error("reset queue clock")))),
            Self::PurgeDropped | Self::AttachListeners => {}
        }
    }
}

/// Whether a command takes a message in.
pub fn is_intake(command: &Command) -> bool {
    matches!(command, Command::Enqueue(_))
}

/// What a head takes in memory while it waits, beside its texts.
const MESSAGE_BYTES: usize = 512;

fn bytes_of(sent: &ShardCommand) -> usize {
    let body = &sent.body;
    let texts = [&body.kind, &body.trace_context].into_iter().flatten().map(|text| text.len()).sum::<usize>();
    let head = if is_intake(&sent.command) { MESSAGE_BYTES } else { 0 };
    size_of::<ShardCommand>() + head + body.payload.len() + texts
}
