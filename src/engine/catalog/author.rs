//! The author of a change, and what the history keeps of it.

use tallystone_domain::limits::{ACTOR_BYTES_MAX, DESCRIPTION_BYTES_MAX};
use tallystone_domain::{Reason, Reject, Timestamp};
use tallystone_ports::{CatalogChange, CatalogEntry};

/// The author of a change, with the reason.
#[derive(Clone, Debug, Default)]
pub struct Author {
    pub actor: String,
    pub reason: String,
}

impl Author {
    /// Refuses texts that the history has no room for.
    pub fn check(&self) -> Result<(), Reject> {
        let texts = [("actor", &self.actor, ACTOR_BYTES_MAX), ("reason", &self.reason, DESCRIPTION_BYTES_MAX)];
        for (what, text, bytes_max) in texts {
            if text.len() > bytes_max {
                let what = format!("{what} has {} bytes; at most {bytes_max} are allowed", text.len());
                return Err(Reject::new(Reason::InvalidArgument, what));
            }
        }
        Ok(())
    }

    /// The change that left an entry as it is.
    pub fn change<E: CatalogEntry>(&self, entry: &E, time: Timestamp, differences: Vec<String>) -> CatalogChange<E> {
        CatalogChange {
            id: entry.id(),
            name: entry.name().clone(),
            version: entry.version(),
            time,
            actor: self.actor.clone(),
            reason: self.reason.clone(),
            differences,
            spec: Some(entry.spec().clone()),
            deletion: E::Deletion::default(),
        }
    }

    /// The change that deletes an entry.
    pub fn deletion<E: CatalogEntry>(&self, entry: &E, time: Timestamp, deletion: E::Deletion) -> CatalogChange<E> {
        let change = self.change(entry, time, Vec::new());
        CatalogChange { version: entry.version() + 1, spec: None, deletion, ..change }
    }
}
