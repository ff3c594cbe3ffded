//! The operations on queues that servers in this process know of each other.

use std::collections::BTreeMap;

use async_trait::async_trait;
use parking_lot::Mutex;

use tallystone_domain::limits::OPERATIONS_MAX;
use tallystone_domain::queue::QueueId;
use tallystone_domain::time::Timestamp;
use tallystone_ports::{OperationDirectory, OperationPlace, OperationRow, StoreError, StoreErrorKind};

/// The rows of operations of servers that share stores in the memory of this process.
#[derive(Default)]
pub struct MemoryOperations {
    rows: Mutex<BTreeMap<Box<str>, OperationRow>>,
}

#[async_trait]
impl OperationDirectory for MemoryOperations {
    async fn put(&self, row: &OperationRow) -> Result<bool, StoreError> {
        let mut rows = self.rows.lock();
        if rows.get(&row.id).map_or(0, |known| known.version) + 1 != row.version {
            return Ok(false);
        }
        if row.version == 1 && rows.len() >= OPERATIONS_MAX {
            let ended = rows.values().filter_map(|row| Some((row.end.as_ref()?.at, row.id.clone())));
            let (_, oldest) =
                ended.min().ok_or_else(|| StoreError::not_applied(StoreErrorKind::Busy, "note operation"))?;
            rows.remove(&oldest);
        }
        rows.insert(row.id.clone(), row.clone());
        Ok(true)
    }

    async fn get(&self, id: &str) -> Result<Option<OperationRow>, StoreError> {
        Ok(self.rows.lock().get(id).cloned())
    }

    async fn running(&self) -> Result<Vec<OperationRow>, StoreError> {
        Ok(self.rows.lock().values().filter(|row| row.end.is_none()).cloned().collect())
    }

    async fn of_queue(
        &self,
        queue: QueueId,
        behind: Option<&OperationPlace>,
        rows: usize,
    ) -> Result<Vec<OperationRow>, StoreError> {
        let place = |row: &OperationRow| (row.began, row.id.clone());
        let kept = self.rows.lock();
        let listed = kept.values().filter(|row| row.queue == queue && !row.work.dry_run);
        let mut page: Vec<OperationRow> =
            listed.filter(|row| behind.is_none_or(|behind| place(row) < *behind)).cloned().collect();
        page.sort_by_key(|row| std::cmp::Reverse(place(row)));
        page.truncate(rows);
        Ok(page)
    }

    async fn forget(&self, before: Timestamp) -> Result<(), StoreError> {
        self.rows.lock().retain(|_, row| row.end.as_ref().is_none_or(|end| end.at >= before));
        Ok(())
    }
}
