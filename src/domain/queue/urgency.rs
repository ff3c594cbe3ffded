//! What goes before what where commands wait: a settlement frees what others wait for, an enqueue only adds to it.

use crate::domain::queue::command::Command;

/// How soon a command goes, the most urgent first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(usize)]
pub enum Urgency {
    /// It settles work that is done, or keeps or ends the right to it.
    Settlement,
    /// It takes work, or changes some of it.
    Taker,
    /// It adds work, or walks over what there is.
    Bulk,
}

impl Urgency {
    /// How many there are.
    pub const COUNT: usize = 3;
}

impl Command {
    /// How soon it goes.
    pub fn urgency(&self) -> Urgency {
        match self {
            Self::Settle { .. } | Self::Extend { .. } | Self::Heartbeat { .. } | Self::EndSession { .. } => {
                Urgency::Settlement
            }
            Self::Enqueue(_) | Self::Purge(_) | Self::RedriveAll(_) | Self::DiscardAll(_) => Urgency::Bulk,
            Self::Dequeue(_)
            | Self::CancelMessage { .. }
            | Self::Recall(_)
            | Self::Update { .. }
            | Self::Redrive { .. }
            | Self::Discard { .. }
            | Self::Configure(_)
            | Self::SetValueLimit { .. }
            | Self::Delete
            | Self::Block { .. }
            | Self::Sweep { .. } => Urgency::Taker,
        }
    }
}
