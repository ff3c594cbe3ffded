//! The life of a member: heartbeats, joining datasets, lapsing and joining again, leaving.
//!
//! To write a dataset a member lists it with minus infinity, waits until that heartbeat is acknowledged, reads the frontier
//! and starts above it. Heartbeats and joins take turns, so that what a heartbeat says of a dataset is what holds.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use tokio::sync::SemaphorePermit;

use crate::domain::Timestamp;
use crate::domain::counter::DatasetId;
use crate::domain::fleet::{Heartbeat, MemberId, MemberLease, ProtocolRule, Renewal};
use crate::domain::limits::FRONTIER_READ_WITHIN;
use crate::engine::dataset::closed_timestamp::ClosedTimestampTracker;
use crate::engine::fleet::{FleetMembership, JoinedDataset};
use crate::ports::{StoreError, StoreErrorKind};

/// Datasets that could not be joined, and why.
type JoinFailures = BTreeMap<DatasetId, StoreError>;

impl FleetMembership {
    /// Joins a dataset: from the answer on, what `closing` has closed is told with every heartbeat.
    pub async fn join(&self, dataset: DatasetId, closing: Arc<ClosedTimestampTracker>) -> Result<(), StoreError> {
        let _turn = self.turn().await;
        self.incarnation
            .lock()
            .datasets
            .insert(dataset, JoinedDataset { closing, open: false, acknowledged_closed: None });
        self.advance().await?.remove(&dataset).map_or(Ok(()), Err)
    }

    /// Sends a heartbeat, and goes on with what is not finished: a life that has to begin anew, datasets to join.
    pub async fn renew_membership(&self) -> Result<(), StoreError> {
        let _turn = self.turn().await;
        self.advance().await?.into_values().next().map_or(Ok(()), Err)
    }

    /// Ends the membership: nothing is acknowledged from here on, and nobody waits for this member.
    pub async fn leave(&self) -> Result<(), StoreError> {
        let _turn = self.turn().await;
        let id = {
            let mut life = self.incarnation.lock();
            life.lease = None;
            life.has_left = true;
            life.id
        };
        self.store.remove(id).await
    }

    async fn turn(&self) -> SemaphorePermit<'_> {
        self.turn.acquire().await.expect("the semaphore is never closed")
    }

    /// One step; the caller has the turn. Answers which datasets could not be joined.
    async fn advance(&self) -> Result<JoinFailures, StoreError> {
        if self.incarnation.lock().has_left {
            return Ok(JoinFailures::new());
        }
        let now = self.clock.elapsed();
        let lapsed = self.incarnation.lock().lease.is_none_or(|lease| !lease.is_valid(now));
        let mut before = None;
        if lapsed && (self.incarnation.lock().number == 0 || self.must_rejoin()) {
            before = self.begin_incarnation();
        }
        if self.send_heartbeat().await? == Renewal::Lapsed {
            before = self.begin_incarnation();
            self.send_heartbeat().await?;
        }
        if let Some(before) = before {
            // It is over for its owner, so nobody has to wait until it is for them; if this fails, they do.
            let removed = self.store.remove(before).await;
            removed.unwrap_or_else(|error| tracing::debug!(%error, "the member of the life before stays listed"));
        }
        let (opened, unjoined) = self.open_datasets().await;
        if opened {
            // Otherwise minus infinity would hold the limits back until the next heartbeat.
            self.send_heartbeat().await?;
        }
        Ok(unjoined)
    }

    /// Whether the present life is over; one whose first heartbeat is not acknowledged yet goes on.
    fn must_rejoin(&self) -> bool {
        self.incarnation.lock().lease.is_some() && self.rules.keeps(ProtocolRule::LapsedStaysLapsed)
    }

    /// Begins another life under a new id; what the one before held is given up. Answers that one, if there was one.
    fn begin_incarnation(&self) -> Option<MemberId> {
        let mut id = [0; 16];
        self.entropy.fill(&mut id);
        let mut life = self.incarnation.lock();
        let before = (life.number > 0).then_some(life.id);
        if before.is_some() {
            tracing::warn!(
                was = ?life.id,
                "the lease has lapsed; what was held has an unknown outcome, and this server joins again"
            );
            self.stats.leases_lapsed.increment();
        }
        life.number += 1;
        life.id = MemberId(id);
        life.beat = 0;
        life.lease = None;
        life.is_rejoining = before.is_some() && !life.datasets.is_empty();
        for joined in life.datasets.values_mut() {
            joined.open = false;
        }
        before
    }

    /// Sends one heartbeat and takes its acknowledgement in.
    async fn send_heartbeat(&self) -> Result<Renewal, StoreError> {
        let sent = self.clock.elapsed();
        let (id, beat) = self.next_heartbeat();
        self.store.beat(id, &beat).await?;
        let now = self.clock.elapsed();
        let mut life = self.incarnation.lock();
        let renewal = match &mut life.lease {
            Some(lease) => lease.renew(sent, now, self.rules),
            None => {
                life.lease = Some(MemberLease::begin(sent));
                Renewal::Renewed
            }
        };
        if renewal == Renewal::Renewed {
            for (dataset, closed) in beat.closed.iter().filter(|(_, closed)| **closed > Timestamp::MIN) {
                let joined = life.datasets.get_mut(dataset);
                joined
                    .into_iter()
                    .for_each(|joined| joined.acknowledged_closed = joined.acknowledged_closed.max(Some(*closed)));
            }
        }
        Ok(renewal)
    }

    fn next_heartbeat(&self) -> (MemberId, Heartbeat) {
        let now = self.clock.now();
        let mut life = self.incarnation.lock();
        life.beat += 1;
        let closed = |joined: &JoinedDataset| if joined.open { joined.closing.closed(now) } else { Timestamp::MIN };
        let beat = Heartbeat {
            number: life.beat,
            roles: self.profile.roles,
            address: self.profile.address.clone(),
            secret: self.profile.secret,
            closed: life.datasets.iter().map(|(dataset, joined)| (*dataset, closed(joined))).collect(),
        };
        (life.id, beat)
    }

    /// Starts above the frontier of each dataset that the acknowledged heartbeat listed with minus infinity. Answers
    /// whether there was one, and those whose frontier could not be read: the cluster of one keeps no other waiting.
    async fn open_datasets(&self) -> (bool, JoinFailures) {
        let (number, waiting) = {
            let life = self.incarnation.lock();
            let waiting = life.datasets.iter().filter(|(_, joined)| !joined.open);
            (life.number, waiting.map(|(dataset, joined)| (*dataset, Arc::clone(&joined.closing))).collect::<Vec<_>>())
        };
        let reading =
            waiting.into_iter().map(async |(dataset, closing)| (dataset, closing, self.frontier(dataset).await));
        let (mut opened, mut unjoined) = (false, JoinFailures::new());
        for (dataset, closing, frontier) in join_all(reading).await {
            match frontier {
                Ok(frontier) => {
                    closing.begin_incarnation(number, frontier);
                    let mut life = self.incarnation.lock();
                    if let Some(joined) = life.datasets.get_mut(&dataset) {
                        joined.open = true;
                        life.is_rejoining = false;
                        opened = true;
                    }
                }
                Err(error) => {
                    unjoined.insert(dataset, error);
                }
            }
        }
        (opened, unjoined)
    }

    /// The frontier of a dataset, within the time that heartbeats can spare.
    async fn frontier(&self, dataset: DatasetId) -> Result<Timestamp, StoreError> {
        tokio::select! {
            biased;
            frontier = self.store.frontier(dataset) => frontier,
            () = self.clock.sleep(FRONTIER_READ_WITHIN) => {
                Err(StoreError::not_applied(StoreErrorKind::Unavailable, "read frontier"))
            }
        }
    }
}
