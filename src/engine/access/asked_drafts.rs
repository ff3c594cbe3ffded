//! The names that drafts ask for.

use tallystone_domain::access::{AccessDenial, AccessResource, AskedName, CallRights};

use crate::namespaces::NamespaceDraft;
use crate::queues::QueueDraft;

impl AskedName for NamespaceDraft {
    fn check_rights(&self, rights: &CallRights) -> Result<(), AccessDenial> {
        self.name.check_rights(rights)
    }
}

impl AskedName for QueueDraft {
    fn check_rights(&self, rights: &CallRights) -> Result<(), AccessDenial> {
        self.name.check_rights(rights)?;
        // A template says what queues with its prefix are like, so whoever makes one may make them.
        match &self.template_for {
            Some(prefix) => rights.require(AccessResource::Queue(prefix), || {
                rights.lack(format!("queues whose names begin with {prefix}"))
            }),
            None => Ok(()),
        }
    }
}
