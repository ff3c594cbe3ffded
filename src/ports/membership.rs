//! The members of a fleet: the servers that share a store.

use async_trait::async_trait;

use crate::StoreError;
use tallystone_domain::fleet::{Heartbeat, MemberId};

/// The members of a fleet.
///
/// Laws:
/// 1. Every `members` that begins after an acknowledged heartbeat returns it, until one with a greater number exists or
///    the member is removed. Of two heartbeats the greater number stays, whatever the order of arrival.
/// 2. A removed member is not listed again, even if more of its heartbeats arrive.
#[async_trait]
pub trait Membership: Send + Sync + 'static {
    /// Writes the heartbeat of a member.
    async fn beat(&self, member: MemberId, beat: &Heartbeat) -> Result<(), StoreError>;

    /// Reads the newest heartbeat of every member. Cost: O(members).
    async fn members(&self) -> Result<Vec<(MemberId, Heartbeat)>, StoreError>;

    /// Removes a member for good.
    async fn remove(&self, member: MemberId) -> Result<(), StoreError>;
}
