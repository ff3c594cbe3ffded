//! Keeps this process a member of its fleet: a heartbeat and a read of the members each second, until after the last
//! roll.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::driver::{BackgroundLoop, DrainStage, NextActivation};
use crate::fleet::FleetMembership;
use tallystone_domain::limits::HEARTBEAT;
use tallystone_ports::{Clock, StoreError};

/// The loop that sends heartbeats and reads the members.
pub struct MembershipLoop {
    fleet: Arc<FleetMembership>,
    clock: Arc<dyn Clock>,
}

impl MembershipLoop {
    /// Makes the loop of this process.
    pub fn new(fleet: Arc<FleetMembership>, clock: Arc<dyn Clock>) -> Self {
        Self { fleet, clock }
    }

    async fn step(&self) -> Result<(), StoreError> {
        self.fleet.renew_membership().await?;
        self.fleet.read_members().await.map(|_| ())
    }
}

#[async_trait]
impl BackgroundLoop for MembershipLoop {
    fn name(&self) -> &'static str {
        "membership"
    }

    async fn activate(&mut self) -> NextActivation {
        let began = self.clock.elapsed();
        if let Err(error) = self.step().await {
            let left_ms = u64::try_from(self.fleet.lease_left().as_millis()).unwrap_or(u64::MAX);
            tracing::warn!(%error, left_ms, "cannot renew the membership in the fleet");
        }
        NextActivation::After(HEARTBEAT.saturating_sub(self.clock.elapsed().saturating_sub(began)))
    }

    fn stage(&self) -> DrainStage {
        DrainStage::Watermarks
    }

    async fn finish(&mut self, _until: Duration) {
        if let Err(error) = self.fleet.leave().await {
            tracing::warn!(%error, "cannot leave the fleet list; the other servers wait until this server's lease \
                expires");
        }
    }
}
