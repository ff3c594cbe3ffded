//! Operations of principals: ids that only their owner can use.

use super::{Operation, OperationService};
use crate::queues::state::owners::{OPERATION, unsealed};
use tallystone_domain::access::PrincipalName;

impl OperationService {
    /// An operation with the id that its owner gets. One that ended with its call has no id.
    pub fn owned_operation(&self, operation: Operation, owner: Option<&PrincipalName>) -> Operation {
        let id = match operation.id.is_empty() {
            true => String::new(),
            false => self.context.owned_text(OPERATION, &operation.id, owner),
        };
        Operation { id, ..operation }
    }

    /// Reads the id of an operation, and whether it is the caller's own.
    pub fn owned_operation_of<'a>(&self, text: &'a str, owner: Option<&PrincipalName>) -> (&'a str, bool) {
        match self.context.unsealed_own(OPERATION, text, owner) {
            Some(id) => (id, true),
            None => (unsealed(text).map_or(text, |(id, _)| id), false),
        }
    }
}
