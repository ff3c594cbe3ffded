//! The order of waiting commands: a settlement frees resources that other commands wait for, an enqueue only adds work.

use crate::queue::command::Command;

/// The urgency of a command, the most urgent first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(usize)]
pub enum Urgency {
    /// The command settles finished work, or extends or ends a lease.
    Settlement,
    /// The command takes work, or changes single messages.
    Taker,
    /// The command adds work.
    Intake,
    /// The command walks over existing messages.
    Bulk,
}

impl Urgency {
    /// The number of urgencies.
    pub const COUNT: usize = 4;
}

impl Command {
    pub fn urgency(&self) -> Urgency {
        match self {
            Self::Settle { .. } | Self::Extend { .. } | Self::Heartbeat { .. } | Self::EndSession { .. } => {
                Urgency::Settlement
            }
            Self::Enqueue(_) => Urgency::Intake,
            Self::Purge(_) | Self::RedriveAll(_) | Self::DiscardAll(_) | Self::CancelAll { .. } => Urgency::Bulk,
            Self::Dequeue(_)
            | Self::CancelMessage { .. }
            | Self::Recall(_)
            | Self::Update { .. }
            | Self::Redrive { .. }
            | Self::Discard { .. }
            | Self::Configure(_)
            | Self::SetValueLimit { .. }
            | Self::Delete
            | Self::Sweep { .. } => Urgency::Taker,
        }
    }
}
