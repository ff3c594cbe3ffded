//! The acts of operators in memory, for a server without a directory. They end with the process.

use std::collections::VecDeque;

use async_trait::async_trait;
use parking_lot::Mutex;

use tallystone_domain::limits::ADMIN_ACTIONS_IN_MEMORY_MAX;
use tallystone_ports::{AdminAction, AdminLog, StoreError};

/// The newest acts.
#[derive(Default)]
pub struct AdminLogTable(Mutex<VecDeque<AdminAction>>);

#[async_trait]
impl AdminLog for AdminLogTable {
    async fn append(&self, action: &AdminAction) -> Result<(), StoreError> {
        let mut acts = self.0.lock();
        if acts.len() == ADMIN_ACTIONS_IN_MEMORY_MAX {
            acts.pop_front();
        }
        acts.push_back(action.clone());
        Ok(())
    }

    async fn newest(&self, below: Option<u64>, limit: usize) -> Result<Vec<AdminAction>, StoreError> {
        let acts = self.0.lock();
        let asked = acts.iter().rev().filter(|act| below.is_none_or(|below| act.number < below));
        Ok(asked.take(limit).cloned().collect())
    }
}
