//! The operations of a queue: those in progress, and for an hour those that have ended.
//!
//! If several servers share the store, the list is that of their directory, and an operation that runs here is shown as
//! far as it is here. Dry runs, checks and operations on one message are in no list.

use std::sync::Arc;

use super::operation_rows::shown;
use super::{Operation, RunningOperation};
use crate::queues::error::QueueError;
use crate::queues::operations::OperationService;
use tallystone_domain::queue::QueueName;
use tallystone_ports::OperationPlace;

/// A page of operations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OperationsPage {
    /// Newest first.
    pub operations: Vec<Operation>,
    /// The place behind which the next page begins; none after the last page.
    pub next: Option<OperationPlace>,
}

impl OperationService {
    /// Lists the operations of a queue behind a place, newest first, at most `rows`. Operations of an earlier queue of
    /// its name are not in the list. O(rows).
    pub async fn list_operations(
        &self,
        name: &QueueName,
        behind: Option<&OperationPlace>,
        rows: usize,
    ) -> Result<OperationsPage, QueueError> {
        let (queue, known) = (self.catalog.queue(name).await?.record.load().id, &self.known_operations);
        let operations: Vec<Operation> = match self.operation_directory() {
            None => {
                let now = self.context.elapsed();
                known.of_queue(queue, behind, rows, now).iter().map(|running| running.show()).collect()
            }
            Some(directory) => {
                let found = directory.of_queue(queue, behind, rows).await?;
                let as_here = |id| known.get(id).map(|running: Arc<RunningOperation>| running.show());
                found.iter().map(|row| as_here(&row.id).unwrap_or_else(|| shown(row))).collect()
            }
        };
        let last = operations.last().filter(|_| operations.len() == rows);
        let next = last.map(|last| (last.began, last.id.as_str().into()));
        Ok(OperationsPage { operations, next })
    }
}
