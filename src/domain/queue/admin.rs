//! What is done to a shard as a whole: new settings, deletion.

use crate::domain::queue::command::{Refusal, Reply};
use crate::domain::queue::index::Index;
use crate::domain::queue::settings::Settings;
use crate::domain::queue::shard::Shard;
use crate::domain::time::Timestamp;

impl Shard {
    pub(super) fn configure(&mut self, settings: Settings, now: Timestamp) -> Result<Reply, Refusal> {
        settings.check()?;
        // A token that was refused for its age was told that it is never applied: a longer window does not bring it back.
        self.answers.forget_before(now - self.settings.dedupe_window);
        self.changes.settings = Some(Box::new(settings.clone()));
        self.settings = settings;
        Ok(Reply::Configured)
    }

    /// Leaves a tombstone: the answers to tokens, which outlive their messages, and the count for a repeat.
    pub(super) fn delete(&mut self) -> Reply {
        let messages = *self.deleted.get_or_insert(self.index.totals.all().messages);
        self.messages.clear();
        self.ids.clear();
        self.index = Index::default();
        Reply::Deleted { messages }
    }
}
