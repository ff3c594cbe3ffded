//! One opened engine, as the server that opened it watches and closes it.

use std::path::PathBuf;

use async_trait::async_trait;

/// The result of asking a store.
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

/// Of the memory that a server of a store may use: from here on an operator is told.
pub const MEMORY_TOLD_FROM_PERCENT: u64 = 85;

/// The memory of one server of a store that keeps its data in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreMemory {
    /// HOST:PORT of the server.
    pub server: String,
    /// The bytes in use.
    pub used_bytes: u64,
    /// The most bytes that it may use; none without a limit.
    pub limit_bytes: Option<u64>,
    /// By which policy it throws data away when memory is short; none if it throws none away.
    pub eviction_policy: Option<String>,
}

impl StoreMemory {
    /// How much of the memory that it may use is in use; none without a limit.
    pub fn used_percent(&self) -> Option<u64> {
        let limit = self.limit_bytes.filter(|limit| *limit > 0)?;
        Some(u64::try_from(u128::from(self.used_bytes) * 100 / u128::from(limit)).unwrap_or(u64::MAX))
    }

    /// Whether so much is in use that an operator is told.
    pub fn is_short(&self) -> bool {
        self.used_percent().is_some_and(|percent| percent >= MEMORY_TOLD_FROM_PERCENT)
    }
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

    /// Asks the store whether it serves: whether it answers, allows what this server needs, and still has what it had.
    /// Called every second. Cost: a few reads of single rows.
    async fn check(&self) -> StoreCheck {
        self.failure().map_or(StoreCheck::Answered, StoreCheck::Failed)
    }

    /// The reason why the store has failed for good and takes nothing any more; none while it has not. Cheap.
    fn failure(&self) -> Option<String> {
        None
    }

    /// The file system of the store, if it keeps files on this machine. Asks the file system.
    fn disk(&self) -> Option<StoreDisk> {
        None
    }

    /// The memory of each server of the store, if it keeps its data in memory, as it was seconds ago. Cheap.
    fn memory(&self) -> Vec<StoreMemory> {
        Vec::new()
    }

    /// Closes the store. Waits until everything acknowledged is durable.
    async fn close(&self);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_short_from_the_share_on_that_operators_are_told_of() {
        let of = |used_bytes, limit_bytes| {
            let server = "10.0.0.1:6379".to_owned();
            StoreMemory { server, used_bytes, limit_bytes, eviction_policy: None }
        };
        assert_eq!((of(849, Some(1_000)).used_percent(), of(849, Some(1_000)).is_short()), (Some(84), false));
        assert_eq!((of(850, Some(1_000)).used_percent(), of(850, Some(1_000)).is_short()), (Some(85), true));
        assert_eq!((of(u64::MAX, Some(1)).used_percent(), of(7, None).used_percent()), (Some(u64::MAX), None));
        assert!(!of(u64::MAX, None).is_short() && !of(7, Some(0)).is_short(), "there is no limit");
    }
}
