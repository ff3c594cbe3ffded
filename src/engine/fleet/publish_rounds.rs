//! Rounds of the loop that publishes a dataset's limit.

use crate::fleet::CounterFleet;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::DatasetId;
use tallystone_domain::fleet::publish_round::{self, RoundDecision};
use tallystone_domain::fleet::{Heartbeat, MemberId};
use tallystone_ports::StoreError;

impl CounterFleet {
    /// Runs one round: computes the least closed timestamp of all members, publishes it as the frontier, and reads
    /// the members a second time. Returns the possible new limit; none if a member holds it back. Concurrent rounds
    /// of several members do no harm.
    ///
    /// `members` are the result of the `read_members` just before, `at_most` is the closed timestamp of this process,
    /// and `limit` is the newest limit known here.
    pub async fn run_publish_round(
        &self,
        dataset: DatasetId,
        members: &[(MemberId, Heartbeat)],
        at_most: Timestamp,
        limit: Timestamp,
    ) -> Result<Option<Timestamp>, StoreError> {
        let listed = || members.iter().map(|(id, beat)| (*id, beat));
        let frontier =
            publish_round::propose_frontier(dataset, listed(), &self.membership.peers.lock().view, at_most, limit);
        let Some(frontier) = frontier else { return Ok(None) };
        self.store.raise_frontier(dataset, frontier).await?;
        let members = self.membership.read_members().await?;
        let listed = members.iter().map(|(id, beat)| (*id, beat));
        let second = publish_round::confirm_frontier(dataset, listed, &self.membership.peers.lock().view, frontier);
        match second {
            RoundDecision::Publish(limit) => Ok(Some(limit)),
            RoundDecision::Again => Ok(None),
        }
    }
}
