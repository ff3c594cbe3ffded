//! Removes what is left of deleted namespaces.
//!
//! The supervisor forgets a namespace as soon as it sees the deletion. What a crash kept it from, and what calls under way
//! at that time wrote, is found here: by a look at the start, and by one some time after each change of the catalog, which
//! is repeated until it finds nothing.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::domain::counter::NamespaceId;
use crate::domain::limits::PAGE_ROWS_MAX;
use crate::engine::core::EngineCore;
use crate::engine::loops::driver::{BackgroundLoop, NextActivation};
use crate::ports::StoreError;

/// After a change of the catalog the look waits this long, so that calls under way end before it.
const PAUSE: Duration = Duration::from_secs(10);

/// The loop.
pub struct DeletedNamespacesLoop {
    core: Arc<EngineCore>,
    /// The changes of the catalog that were followed.
    seen: i64,
    /// Whether the next activation looks, or only begins the pause before the look.
    due: bool,
}

impl DeletedNamespacesLoop {
    /// Makes the loop; its first activation looks at once.
    pub fn new(core: Arc<EngineCore>) -> Self {
        let seen = core.namespaces.changes().get();
        Self { core, seen, due: true }
    }

    /// Forgets what is kept of namespaces that are not in the catalog; answers of how many.
    async fn step(&self) -> Result<usize, StoreError> {
        let rollups = &self.core.stores.rollups;
        let (mut above, mut forgotten, mut failed) = (None, 0, Ok(()));
        loop {
            let page = rollups.namespaces(above, PAGE_ROWS_MAX).await?;
            for id in self.deleted(&page).await? {
                if let Err(error) = rollups.forget(id).await {
                    // Of another one it may be in a store that is there.
                    failed = failed.and(Err(error));
                    continue;
                }
                self.core.rankings.forget(id);
                forgotten += 1;
                tracing::info!(namespace = id.0, "what was left of a deleted namespace was removed");
            }
            above = page.last().copied();
            if page.len() < PAGE_ROWS_MAX {
                return failed.map(|()| forgotten);
            }
        }
    }

    /// Those that are not in the catalog.
    async fn deleted(&self, kept: &[NamespaceId]) -> Result<Vec<NamespaceId>, StoreError> {
        let namespaces = &self.core.namespaces;
        let is_deleted = |id: &&NamespaceId| namespaces.by_id(**id).is_none();
        if !kept.iter().any(|id| is_deleted(&id)) {
            return Ok(Vec::new());
        }
        // A namespace is in the catalog before anything of it is kept, so the store's catalog is asked after its rows.
        namespaces.refresh().await?;
        let (deleted, foreign): (Vec<_>, Vec<_>) =
            kept.iter().filter(is_deleted).copied().partition(|id| namespaces.was_assigned(*id));
        if let Some(id) = foreign.first() {
            tracing::error!(
                namespace = id.0,
                "the store holds counters of a namespace that the catalog never had; they stay"
            );
        }
        Ok(deleted)
    }
}

#[async_trait]
impl BackgroundLoop for DeletedNamespacesLoop {
    fn name(&self) -> &'static str {
        "leftovers"
    }

    async fn woken(&self) {
        self.core.namespaces.changes().reach(self.seen + 1).await;
    }

    async fn activate(&mut self) -> NextActivation {
        if !self.due {
            self.due = true;
            self.seen = self.core.namespaces.changes().get();
            return NextActivation::After(PAUSE);
        }
        match self.step().await {
            Ok(0) => {
                self.due = false;
                NextActivation::Woken
            }
            Ok(_) => NextActivation::After(PAUSE),
            Err(error) => {
                tracing::warn!(error = %error, "what is left of deleted namespaces cannot be removed yet");
                NextActivation::After(PAUSE)
            }
        }
    }
}
