//! Removes the remains of deleted namespaces.
//!
//! The supervisor removes the data of a namespace as soon as it sees the deletion. A crash may prevent that, and
//! calls in flight may write afterwards. This loop finds such remains: it checks at startup and some time after each
//! change of the catalog, and repeats the check until it finds nothing.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::driver::{BackgroundLoop, NextActivation};
use crate::scopes::NamespaceScopes;
use crate::served_counts::ServedCounts;
use tallystone_domain::counter::NamespaceId;
use tallystone_domain::limits::PAGE_ROWS_MAX;
use tallystone_ports::StoreError;

/// The delay between a change of the catalog and the check, so that calls in flight end before it.
const PAUSE: Duration = Duration::from_secs(10);

/// The loop that removes the remains of deleted namespaces.
pub struct DeletedNamespacesLoop {
    scopes: Arc<NamespaceScopes>,
    served: Arc<ServedCounts>,
    /// The generation of the catalog that was processed last.
    seen: i64,
    /// Whether the next activation runs the check, or only starts the delay before it.
    due: bool,
}

impl DeletedNamespacesLoop {
    /// Makes the loop; its first activation runs the check at once.
    pub fn new(scopes: Arc<NamespaceScopes>, served: Arc<ServedCounts>) -> Self {
        let seen = scopes.namespaces.changes().get();
        Self { scopes, served, seen, due: true }
    }

    /// Removes the data of namespaces that are not in the catalog. Returns their number.
    async fn step(&self) -> Result<usize, StoreError> {
        let rollups = &self.scopes.stores.rollups;
        let (mut above, mut forgotten, mut failed) = (None, 0, Ok(()));
        loop {
            let page = rollups.namespaces(above, PAGE_ROWS_MAX).await?;
            for id in self.deleted(&page).await? {
                if let Err(error) = rollups.remove_namespace(id).await {
                    // Data of the other namespaces may be in a store that is reachable.
                    failed = failed.and(Err(error));
                    continue;
                }
                self.served.rankings.forget(id);
                forgotten += 1;
                tracing::info!(namespace = id.0, "the remaining data of a deleted namespace was removed");
            }
            above = page.last().copied();
            if page.len() < PAGE_ROWS_MAX {
                return failed.map(|()| forgotten);
            }
        }
    }

    /// The namespaces of `kept` that are not in the catalog.
    async fn deleted(&self, kept: &[NamespaceId]) -> Result<Vec<NamespaceId>, StoreError> {
        let namespaces = &self.scopes.namespaces;
        let is_deleted = |id: &&NamespaceId| namespaces.by_id(**id).is_none();
        if !kept.iter().any(|id| is_deleted(&id)) {
            return Ok(Vec::new());
        }
        // A namespace is in the catalog before any of its data is stored. So the catalog is read after the data.
        namespaces.refresh().await?;
        let (deleted, foreign): (Vec<_>, Vec<_>) =
            kept.iter().filter(is_deleted).copied().partition(|id| namespaces.was_assigned(*id));
        if let Some(id) = foreign.first() {
            tracing::error!(
                namespace = id.0,
                "the store has counters of a namespace that was never in the catalog; they are kept"
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
        self.scopes.namespaces.changes().reach(self.seen + 1).await;
    }

    async fn activate(&mut self) -> NextActivation {
        if !self.due {
            self.due = true;
            self.seen = self.scopes.namespaces.changes().get();
            return NextActivation::After(PAUSE);
        }
        match self.step().await {
            Ok(0) => {
                self.due = false;
                NextActivation::Woken
            }
            Ok(_) => NextActivation::After(PAUSE),
            Err(error) => {
                tracing::warn!(error = %error, "cannot remove the remaining data of deleted namespaces yet");
                NextActivation::After(PAUSE)
            }
        }
    }
}
