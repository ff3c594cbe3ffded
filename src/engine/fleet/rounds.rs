//! Rounds of the loop that publishes a dataset's limit.

use crate::domain::Timestamp;
use crate::domain::counter::DatasetId;
use crate::domain::fleet::round::{self, Second};
use crate::domain::fleet::{Beat, MemberId};
use crate::engine::fleet::Fleet;
use crate::ports::StoreError;

impl Fleet {
    /// Runs one round: a frontier at or below what every member has closed, published, and a second look at the members.
    /// Answers what may become the limit; nothing where somebody holds it back. Rounds of several members at a time do no
    /// harm.
    ///
    /// `members` are as `look` has just read them, `at_most` is what this process has closed, `limit` the limit it knows.
    pub async fn round(
        &self,
        dataset: DatasetId,
        members: &[(MemberId, Beat)],
        at_most: Timestamp,
        limit: Timestamp,
    ) -> Result<Option<Timestamp>, StoreError> {
        let listed = || members.iter().map(|(id, beat)| (*id, beat));
        let frontier = round::first(dataset, listed(), &self.others.lock().view, at_most, limit);
        let Some(frontier) = frontier else { return Ok(None) };
        self.store.raise_frontier(dataset, frontier).await?;
        let members = self.look().await?;
        let listed = members.iter().map(|(id, beat)| (*id, beat));
        let second = round::second(dataset, listed, &self.others.lock().view, frontier);
        match second {
            Second::Publish(limit) => Ok(Some(limit)),
            Second::Again => Ok(None),
        }
    }
}
