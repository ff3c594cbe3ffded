//! The membership of a process: heartbeats, joining datasets, lapses and rejoining, leaving.
//!
//! To write a dataset, a member lists it with minus infinity, waits until that heartbeat is acknowledged, reads the
//! frontier and starts above it. Heartbeats and joins are serialized, so that a heartbeat states the present state of
//! each dataset.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use tokio::sync::SemaphorePermit;

use crate::closed_timestamp::ClosedTimestampTracker;
use crate::fleet::{FleetMembership, JoinedDataset};
use tallystone_domain::Timestamp;
use tallystone_domain::counter::DatasetId;
use tallystone_domain::fleet::{Heartbeat, MemberId, MemberLease, ProtocolRule, Renewal};
use tallystone_domain::limits::FRONTIER_READ_WITHIN;
use tallystone_ports::{FleetStore, StoreError, StoreErrorKind};

/// Datasets that could not be joined, with the errors.
type JoinFailures = BTreeMap<DatasetId, StoreError>;

impl FleetMembership {
    /// Joins a dataset whose frontier is in the store. From the return on, every heartbeat carries the closed timestamp
    /// of `closing`.
    pub(super) async fn join(
        &self,
        dataset: DatasetId,
        closing: Arc<ClosedTimestampTracker>,
        store: Arc<dyn FleetStore>,
    ) -> Result<(), StoreError> {
        let _turn = self.turn().await;
        let joined = JoinedDataset { closing, store, open: false, acknowledged_closed: None };
        self.incarnation.lock().datasets.insert(dataset, joined);
        self.advance().await?.remove(&dataset).map_or(Ok(()), Err)
    }

    /// Sends a heartbeat and continues unfinished work: a new incarnation, datasets to join.
    pub async fn renew_membership(&self) -> Result<(), StoreError> {
        let _turn = self.turn().await;
        self.advance().await?.into_values().next().map_or(Ok(()), Err)
    }

    /// Ends the membership: this process acknowledges no more writes, and other members do not wait for it.
    pub async fn leave(&self) -> Result<(), StoreError> {
        let _turn = self.turn().await;
        let id = {
            let mut life = self.incarnation.lock();
            life.lease = None;
            life.has_left = true;
            life.id
        };
        self.members.remove(id).await
    }

    async fn turn(&self) -> SemaphorePermit<'_> {
        self.turn.acquire().await.expect("the semaphore is never closed")
    }

    /// One step; the caller has the lock. Returns the datasets that could not be joined.
    async fn advance(&self) -> Result<JoinFailures, StoreError> {
        if self.incarnation.lock().has_left {
            return Ok(JoinFailures::new());
        }
        let now = self.context.clock.elapsed();
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
            // The lease is over for its owner, so others need not wait for it. If this fails, they wait.
            let removed = self.members.remove(before).await;
            removed.unwrap_or_else(
                |error| tracing::debug!(%error, "the member entry from before the restart stays listed"),
            );
        }
        let (opened, unjoined) = self.open_datasets().await;
        if opened {
            // Otherwise minus infinity would keep the limits back until the next heartbeat.
            self.send_heartbeat().await?;
        }
        Ok(unjoined)
    }

    /// Whether the present incarnation is over. One whose first heartbeat is not acknowledged yet continues.
    fn must_rejoin(&self) -> bool {
        self.incarnation.lock().lease.is_some() && self.rules.keeps(ProtocolRule::LapsedStaysLapsed)
    }

    /// Begins another incarnation under a new id, and gives up the holds of the previous one, which it returns.
    fn begin_incarnation(&self) -> Option<MemberId> {
        let mut id = [0; 16];
        self.context.entropy.fill(&mut id);
        let mut life = self.incarnation.lock();
        let before = (life.number > 0).then_some(life.id);
        if before.is_some() {
            let effect = if life.datasets.is_empty() { "" } else { "; writes in progress have an unknown outcome" };
            tracing::warn!(was = ?life.id, "the fleet lease has expired{effect}; this server rejoins");
            self.context.stats.leases_lapsed.increment();
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

    /// Sends one heartbeat and processes its acknowledgement.
    async fn send_heartbeat(&self) -> Result<Renewal, StoreError> {
        let sent = self.context.clock.elapsed();
        let (id, beat) = self.next_heartbeat();
        self.members.beat(id, &beat).await?;
        let now = self.context.clock.elapsed();
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
        let now = self.context.clock.now();
        let mut life = self.incarnation.lock();
        life.beat += 1;
        let closed = |joined: &JoinedDataset| if joined.open { joined.closing.closed(now) } else { Timestamp::MIN };
        let beat = Heartbeat {
            number: life.beat,
            roles: self.profile.roles,
            address: self.profile.address.clone(),
            secret: self.profile.secret,
            queues_reported_to: self.context.queues_reported_to(),
            closed: life.datasets.iter().map(|(dataset, joined)| (*dataset, closed(joined))).collect(),
        };
        (life.id, beat)
    }

    /// Starts above the frontier of each dataset that the acknowledged heartbeat listed with minus infinity. Returns
    /// whether there was one, and the datasets whose frontier could not be read. One slow cluster delays no other.
    async fn open_datasets(&self) -> (bool, JoinFailures) {
        let (number, waiting) = {
            let life = self.incarnation.lock();
            let waiting = life.datasets.iter().filter(|(_, joined)| !joined.open);
            let parts = |(dataset, joined): (&DatasetId, &JoinedDataset)| {
                (*dataset, Arc::clone(&joined.closing), Arc::clone(&joined.store))
            };
            (life.number, waiting.map(parts).collect::<Vec<_>>())
        };
        let reading = waiting
            .into_iter()
            .map(async |(dataset, closing, store)| (dataset, closing, self.frontier(&*store, dataset).await));
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

    /// The frontier of a dataset, within a time that does not delay heartbeats.
    async fn frontier(&self, store: &dyn FleetStore, dataset: DatasetId) -> Result<Timestamp, StoreError> {
        tokio::select! {
            biased;
            frontier = store.frontier(dataset) => frontier,
            () = self.context.clock.sleep(FRONTIER_READ_WITHIN) => {
                Err(StoreError::not_applied(StoreErrorKind::Unavailable, "read frontier"))
            }
        }
    }
}
