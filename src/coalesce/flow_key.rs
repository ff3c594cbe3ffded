//! On whose behalf a task works: who takes turns with others where work waits.

use tokio::task::futures::TaskLocalFuture;

tokio::task_local! {
    static CURRENT: Option<FlowKey>;
}

/// One of those that take turns. It is only compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FlowKey(pub u64);

impl FlowKey {
    /// On whose behalf the running task works; none: for the process itself.
    pub fn current() -> Option<Self> {
        CURRENT.try_with(|turn| *turn).ok().flatten()
    }

    /// Runs work on behalf of somebody. Tasks that it starts do not inherit this by themselves.
    pub fn scope<F: Future>(turn: Option<Self>, work: F) -> TaskLocalFuture<Option<Self>, F> {
        CURRENT.scope(turn, work)
    }

    /// The same for work that is polled.
    pub fn sync_scope<T>(turn: Option<Self>, work: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(turn, work)
    }
}
