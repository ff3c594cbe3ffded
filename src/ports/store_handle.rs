//! One opened engine, as the server that opened it watches and closes it.

use std::path::PathBuf;

use async_trait::async_trait;

/// What came of asking a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreCheck {
    /// It answered.
    Answered,
    /// No answer came, or an error that may pass.
    NoAnswer,
    /// It answers, and refuses what this server needs, with this cause; an operator can mend that at any time.
    Refused(String),
    /// It answers, and has lost what it had, with what is gone and what to do.
    Lost(String),
    /// It has failed for good, with this cause; only a restart can repair it.
    Failed(String),
}

/// The file system of a store that keeps files on this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreDisk {
    /// The folder of the files.
    pub folder: PathBuf,
    /// Whether new events and messages are refused for want of space.
    pub full: bool,
    /// The bytes of all files.
    pub used_bytes: u64,
    /// The bytes that the file system still has for this process, if it says.
    pub free_bytes: Option<u64>,
    /// The bytes that must be free for new events and messages.
    pub reserve_bytes: u64,
}

/// An opened engine. Every adapter that opens a store hands one out.
///
/// Laws:
/// 1. `failure` answers a cause once the store has failed for good, and the same cause from then on.
/// 2. After `close` has returned, everything acknowledged is as durable as the engine promises, and every later call of
///    the store's ports is refused.
#[async_trait]
pub trait StoreHandle: Send + Sync + 'static {
    /// The name that `tallystone status` shows, such as `embedded` or the name of a keyspace.
    fn name(&self) -> String;

    /// The label in metrics. Only keyspaces have labels without a leading underscore, which no keyspace name has.
    fn label(&self) -> String {
        format!("_{}", self.name())
    }

    /// The store as sentences name it, such as `the embedded store`.
    fn description(&self) -> String;

    /// Asks the store whether it serves: whether it answers, allows what this server needs, and still has what it had. Called
    /// every second. Cost: a few reads of single rows.
    async fn check(&self) -> StoreCheck {
        self.failure().map_or(StoreCheck::Answered, StoreCheck::Failed)
    }

    /// Why the store has failed for good and takes nothing any more; none while it has not. Cheap.
    fn failure(&self) -> Option<String> {
        None
    }

    /// The file system of the store, if it keeps files on this machine. Asks the file system.
    fn disk(&self) -> Option<StoreDisk> {
        None
    }

    /// Closes the store. Waits until everything acknowledged is durable.
    async fn close(&self);
}
