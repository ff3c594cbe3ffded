//! The acts of an operator: their words, their methods, and what they concern.

use tonic::Status;

use crate::http::console::in_process_client::InProcessClient;
use crate::http::console::query::{PageQuery, one_of};
use crate::http::console::view::PageFailure;
use tallystone_domain::access::{AccessResource, AccessRole};
use tallystone_domain::shell_word::shell_word;
use tallystone_proto::queue::v1 as pb;

const SERVICE: &str = "tallystone.queue.v1.QueueService";

/// The subject of an act, as a query or a form names it.
#[derive(Clone, Copy, Debug)]
pub struct ActionScope<'q> {
    pub queue: &'q str,
    pub id: &'q str,
    /// Only dead letters whose last error has this signature; empty for all.
    pub signature: &'q str,
    /// For a purge of what is over: the state of its messages.
    pub over: Option<pb::MessageState>,
}

impl<'q> ActionScope<'q> {
    /// Reads it.
    pub fn of(query: &'q PageQuery) -> Result<Self, Status> {
        let over = match query.text("state") {
            "" => None,
            state => match one_of("state", state, &OVER.map(|(name, _)| name))? {
                "completed" => Some(pb::MessageState::Completed),
                _ => Some(pb::MessageState::Canceled), // the only other one
            },
        };
        let (queue, id, signature) = (query.text("queue"), query.text("id"), query.text("signature"));
        Ok(Self { queue, id, signature, over })
    }

    /// The name of the state in queries; empty without one.
    pub fn state_name(&self) -> &'static str {
        OVER.into_iter().find(|(_, state)| Some(*state) == self.over).map_or("", |(name, _)| name)
    }
}

/// The states of messages that are over, which a purge may remove, by their names in queries.
pub const OVER: [(&str, pb::MessageState); 2] =
    [("completed", pb::MessageState::Completed), ("canceled", pb::MessageState::Canceled)];

/// An act of an operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ConsoleAction {
    BlockDequeue,
    BlockEnqueue,
    Unblock,
    Purge,
    Redrive,
    Discard,
    Cancel,
    Limit,
    Delete,
}

/// The names of acts in queries, with the words of buttons.
pub(super) const ACTIONS: [(ConsoleAction, &str, &str); 9] = [
    (ConsoleAction::BlockDequeue, "block-dequeue", "Block dequeue"),
    (ConsoleAction::BlockEnqueue, "block-enqueue", "Block enqueue"),
    (ConsoleAction::Unblock, "unblock", "Unblock"),
    (ConsoleAction::Purge, "purge", "Purge"),
    (ConsoleAction::Redrive, "redrive", "Redrive dead letters"),
    (ConsoleAction::Discard, "discard", "Discard dead letters"),
    (ConsoleAction::Cancel, "cancel", "Cancel message"),
    (ConsoleAction::Limit, "limit", "Limit a value"),
    (ConsoleAction::Delete, "delete", "Delete queue"),
];

impl ConsoleAction {
    pub fn of(query: &PageQuery) -> Result<(Self, &'static str, &'static str), PageFailure> {
        let found = ACTIONS.into_iter().find(|(_, name, _)| *name == query.text("do"));
        found.ok_or_else(|| Status::not_found("The console has no such action.").into())
    }

    /// The method that does it.
    pub const fn method(self) -> &'static str {
        match self {
            Self::BlockDequeue | Self::BlockEnqueue | Self::Unblock => "UpdateQueue",
            Self::Purge => "PurgeQueue",
            Self::Redrive => "RedriveMessages",
            Self::Discard => "DiscardMessages",
            Self::Cancel => "CancelMessage",
            Self::Limit => "SetValueLimit",
            Self::Delete => "DeleteQueue",
        }
    }

    /// The role that the caller lacks for it.
    pub fn lacks(self, calls: &InProcessClient, queue: &str) -> Option<AccessRole> {
        calls.lacks(&method(self.method()), AccessResource::Queue(queue))
    }

    /// Whether messages are gone afterwards.
    pub const fn destroys(self) -> bool {
        matches!(self, Self::Purge | Self::Discard | Self::Delete)
    }

    /// The effect of the act, in one sentence.
    pub const fn effect(self, scope: &ActionScope<'_>) -> &'static str {
        match self {
            Self::BlockDequeue => "Workers get no more messages. Leases that are out go on. Nothing is lost.",
            Self::BlockEnqueue => "Producers are refused, and each refusal shows your reason.",
            Self::Unblock => "Enqueues and dequeues are accepted again.",
            Self::Purge if scope.over.is_some() => {
                "Every message of this state is removed before its retention ends. This cannot be undone."
            }
            Self::Purge => {
                "Every message that is ready or invisible is canceled. Running messages go on. This cannot be undone."
            }
            Self::Redrive if !scope.signature.is_empty() => {
                "Every dead letter of this error returns to the queue with new attempts."
            }
            Self::Redrive => "Every dead letter returns to the queue with new attempts.",
            Self::Discard if !scope.signature.is_empty() => {
                "Every dead letter of this error is deleted. This cannot be undone."
            }
            Self::Discard => "Every dead letter is deleted. This cannot be undone.",
            Self::Cancel => "The message is canceled. The worker of a running message is asked to stop.",
            Self::Limit => {
                "At most so many messages of the value are leased at once. 0 stops its leases, and existing leases stay."
            }
            Self::Delete => "The queue is deleted with all its messages. This cannot be undone.",
        }
    }

    /// The messages that it is about; of one error, at most so many.
    pub fn count(self, depth: &pb::GetDepthResponse, scope: &ActionScope<'_>) -> i64 {
        match self {
            Self::BlockDequeue | Self::Unblock => depth.pending,
            Self::BlockEnqueue => 0, // only those that come
            Self::Limit => depth.pending + depth.running,
            Self::Purge => match scope.over {
                None => depth.pending + depth.invisible,
                Some(pb::MessageState::Completed) => depth.completed,
                Some(_) => depth.canceled, // the only other one
            },
            Self::Redrive | Self::Discard => depth.errored,
            Self::Cancel => 1,
            Self::Delete => {
                let finished = depth.completed + depth.canceled;
                depth.pending + depth.invisible + depth.running + depth.errored + finished
            }
        }
    }

    /// The meaning of its number of messages, in words; empty where none are needed.
    pub const fn counted(self) -> &'static str {
        match self {
            Self::BlockEnqueue => "those that wait already stay",
            Self::Limit => "of all values, ready or running",
            Self::BlockDequeue
            | Self::Unblock
            | Self::Purge
            | Self::Redrive
            | Self::Discard
            | Self::Cancel
            | Self::Delete => "",
        }
    }

    /// The words of the equal command.
    pub fn command(self, scope: &ActionScope<'_>) -> String {
        let (queue, id) = (shell_word(scope.queue), shell_word(scope.id));
        let of_error = |all: &str| match scope.signature {
            "" => all.to_owned(),
            signature => format!(" --error-signature {}", shell_word(signature)),
        };
        match self {
            Self::BlockDequeue => format!("queue block {queue} --dequeue --reason TEXT"),
            Self::BlockEnqueue => format!("queue block {queue} --enqueue --reason TEXT"),
            Self::Unblock => format!("queue unblock {queue} --reason TEXT"),
            Self::Purge if scope.over.is_some() => {
                format!("queue purge {queue} --state {} --reason TEXT", scope.state_name())
            }
            Self::Purge => format!("queue purge {queue} --reason TEXT"),
            Self::Redrive => format!("dlq redrive -q {queue}{} --reason TEXT", of_error("")),
            Self::Discard => format!("dlq rm -q {queue}{} --reason TEXT", of_error(" --all")),
            Self::Cancel => format!("msg cancel -q {queue} --id {id} --reason TEXT"),
            Self::Limit => format!("queue limit {queue} VALUE LIMIT --reason TEXT"),
            Self::Delete => format!("queue rm {queue} --reason TEXT"),
        }
    }
}

/// The full name of a method of the queues.
pub(super) fn method(name: &str) -> String {
    format!("{SERVICE}/{name}")
}
