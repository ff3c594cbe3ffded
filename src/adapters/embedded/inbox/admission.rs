//! The view that the inbox has of every command: its class, its lane, its bytes, the sender of its reply.

use std::ops::{AddAssign, SubAssign};

use tokio::sync::oneshot;

use tallystone_ports::StoreError;

/// The sender of a reply. A caller that has gone is no error.
pub type ReplySender<T> = oneshot::Sender<Result<T, StoreError>>;

/// The class by which a command may be refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdmissionClass {
    /// Brings new events: the first to be refused.
    Intake,
    /// Processes existing events, or maintains the store.
    Upkeep,
}

/// The order of urgency: a settlement frees what others wait for, an enqueue only adds to the backlog.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum CommitLane {
    /// Settlements, extensions and heartbeats of queues.
    Settlements,
    /// Dequeues and sweeps, commands of counters except batches of adds, and changes of the structure of the store.
    General,
    /// Batches of adds. The stream of one client must not delay a single add of another.
    Batches,
    /// Enqueues.
    Enqueues,
    /// Reads of single messages and of the state of shards.
    Reads,
    /// Purges and other walks over messages, lists, and rows of the history.
    Bulk,
}

impl CommitLane {
    /// The number of lanes.
    pub const COUNT: usize = 6;
}

/// The bytes of commands, by their class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CommandBytes {
    /// Of commands with new events.
    pub intake: usize,
    /// Of all others.
    pub upkeep: usize,
}

impl SubAssign for CommandBytes {
    fn sub_assign(&mut self, less: Self) {
        self.intake -= less.intake;
        self.upkeep -= less.upkeep;
    }
}

impl AddAssign for CommandBytes {
    fn add_assign(&mut self, more: Self) {
        self.intake += more.intake;
        self.upkeep += more.upkeep;
    }
}
