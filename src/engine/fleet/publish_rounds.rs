//! Rounds of the loop that publishes a dataset's limit.

use crate::domain::Timestamp;
use crate::domain::counter::DatasetId;
use crate::domain::fleet::publish_round::{self, RoundDecision};
use crate::domain::fleet::{Heartbeat, MemberId};
use crate::engine::fleet::FleetMembership;
use crate::ports::StoreError;

impl FleetMembership {
    /// Runs one round: a frontier at or below what every member has closed, published, and a second look at the members.
    /// Answers what may become the limit; nothing where somebody holds it back. Rounds of several members at a time do no
    /// harm.
    ///
    /// `members` are as `look` has just read them, `at_most` is what this process has closed, `limit` the limit it knows.
    pub async fn run_publish_round(
        &self,
        dataset: DatasetId,
        members: &[(MemberId, Heartbeat)],
        at_most: Timestamp,
        limit: Timestamp,
    ) -> Result<Option<Timestamp>, StoreError> {
        let listed = || members.iter().map(|(id, beat)| (*id, beat));
        let frontier = publish_round::propose_frontier(dataset, listed(), &self.peers.lock().view, at_most, limit);
        let Some(frontier) = frontier else { return Ok(None) };
        self.store.raise_frontier(dataset, frontier).await?;
        let members = self.read_members().await?;
        let listed = members.iter().map(|(id, beat)| (*id, beat));
        let second = publish_round::confirm_frontier(dataset, listed, &self.peers.lock().view, frontier);
        match second {
            RoundDecision::Publish(limit) => Ok(Some(limit)),
            RoundDecision::Again => Ok(None),
        }
    }
}
