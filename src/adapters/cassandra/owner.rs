//! One server owns a keyspace at a time.
//!
//! Limits, watermarks and the books in memory hold for one writer only. So a server claims the keyspace by a conditional
//! write and renews its claim with heartbeats; the lease counts from sending a heartbeat, on this process's own clock, less
//! a margin. An add is acknowledged only while the lease is valid. Another server takes over after it has seen the same
//! heartbeat for the whole lease and a margin, by a write that is conditional on that heartbeat; wall clocks are never
//! compared. A lease that lapsed while nobody took over is renewed: the conditional heartbeat proves that nobody did.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::adapters::cassandra::link::Link;
use crate::adapters::cassandra::store::Decision;
use crate::domain::limits::{KEYSPACE_BEAT, KEYSPACE_CLAIM_POLL, KEYSPACE_LEASE, KEYSPACE_LEASE_MARGIN};
use crate::ports::{Clock, StoreError};

/// Who wants to own the keyspace.
#[derive(Clone, Debug)]
pub struct Claimant {
    /// Drawn anew at each start.
    pub id: [u8; 16],
    /// Where it can be found; shown to others that would own the keyspace.
    pub address: String,
}

/// Whether this server still owns its keyspace.
pub struct Lease {
    clock: Option<Arc<dyn Clock>>,
    /// Until when by the clock's elapsed time, in microseconds.
    valid_until: AtomicU64,
    lost: AtomicBool,
}

/// Why a keyspace cannot be owned.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another server is alive.
    #[error(
        "another server ({address}) owns keyspace {keyspace} and is alive; several servers on one keyspace are not \
         supported yet: stop that one, or give this one a keyspace of its own"
    )]
    Owned {
        /// The keyspace.
        keyspace: String,
        /// The other server's.
        address: String,
    },
    /// The store failed.
    #[error("the keyspace cannot be claimed")]
    Store(#[from] StoreError),
}

impl Lease {
    /// Of a process that knows itself to be the only one, as a test does.
    pub fn undisputed() -> Self {
        Self { clock: None, valid_until: AtomicU64::new(u64::MAX), lost: AtomicBool::new(false) }
    }

    /// Whether an add may be acknowledged at this moment.
    pub fn is_valid(&self) -> bool {
        let Some(clock) = &self.clock else { return true };
        !self.is_lost() && micros(clock.elapsed()) < self.valid_until.load(Ordering::Acquire)
    }

    /// Whether another server owns the keyspace; then this process has to end.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    fn renewed(&self, sent: Duration) {
        let until = micros(sent + KEYSPACE_LEASE - KEYSPACE_LEASE_MARGIN);
        self.valid_until.fetch_max(until, Ordering::AcqRel);
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

type OwnerRow = (Option<Uuid>, Option<i64>, Option<String>);

/// Claims the keyspace. Waits for the lease of a server that ended without a word; refuses at once where one is alive.
pub async fn claim(link: &Link, clock: Arc<dyn Clock>, claimant: &Claimant) -> Result<Lease, ClaimError> {
    let own = Uuid::from_bytes(claimant.id);
    let lease = Lease { clock: Some(Arc::clone(&clock)), valid_until: AtomicU64::new(0), lost: AtomicBool::new(false) };
    let mut seen: Option<(Uuid, i64, Duration)> = None;
    loop {
        let sent = clock.elapsed();
        let statement = link.statement("claim_first");
        if let Decision::Applied = link.decide("claim keyspace", statement, (own, &claimant.address)).await? {
            lease.renewed(sent);
            return Ok(lease);
        }
        // Every look is followed by a conditional write, so a read that lags behind only costs a round.
        let row: Option<OwnerRow> = link.first_row("read owner", link.statement("read_owner"), ()).await?;
        let sent = clock.elapsed();
        let applied = match row {
            None => continue,
            Some((None, _, _)) => {
                let statement = link.statement("claim_free");
                link.decide("claim keyspace", statement, (own, &claimant.address)).await?
            }
            Some((Some(owner), _, _)) if owner == own => Decision::Applied,
            Some((Some(owner), heartbeat, address)) => {
                let heartbeat = heartbeat.unwrap_or(0);
                match seen {
                    Some((last_owner, last, _)) if last_owner == owner && last != heartbeat => {
                        let address = address.unwrap_or_default();
                        return Err(ClaimError::Owned { keyspace: link.keyspace.clone(), address });
                    }
                    Some((last_owner, _, since)) if last_owner == owner => {
                        if clock.elapsed() < since + KEYSPACE_LEASE + KEYSPACE_LEASE_MARGIN {
                            clock.sleep(KEYSPACE_CLAIM_POLL).await;
                            continue;
                        }
                        let values = (own, &claimant.address, owner, heartbeat);
                        link.decide("claim keyspace", link.statement("claim_from"), values).await?
                    }
                    Some(_) | None => {
                        let within_s = (KEYSPACE_LEASE + KEYSPACE_LEASE_MARGIN).as_secs();
                        tracing::info!(
                            keyspace = link.keyspace,
                            owner = address.unwrap_or_default(),
                            within_s,
                            "another server owned the keyspace; waiting until its lease has lapsed"
                        );
                        seen = Some((owner, heartbeat, clock.elapsed()));
                        clock.sleep(KEYSPACE_CLAIM_POLL).await;
                        continue;
                    }
                }
            }
        };
        if let Decision::Applied = applied {
            lease.renewed(sent);
            return Ok(lease);
        }
    }
}

/// Renews a claim until it is told to stop or another server owns the keyspace.
pub async fn keep(link: Arc<Link>, clock: Arc<dyn Clock>, lease: Arc<Lease>, id: [u8; 16], stop: CancellationToken) {
    let own = Uuid::from_bytes(id);
    let mut heartbeat: i64 = 1;
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = clock.sleep(KEYSPACE_BEAT) => {}
        }
        heartbeat += 1;
        let sent = clock.elapsed();
        match link.decide_once(link.statement("beat"), (heartbeat, own)).await {
            Ok(Decision::Applied) => lease.renewed(sent),
            Ok(Decision::Held(_)) => {
                tracing::error!(keyspace = link.keyspace, "another server has taken the keyspace over");
                lease.lost.store(true, Ordering::Release);
                return;
            }
            Err(fault) => {
                tracing::warn!(
                    keyspace = link.keyspace,
                    why = fault.why,
                    "the claim on the keyspace cannot be renewed"
                );
            }
        }
    }
}

/// Gives the keyspace free, so that the next server need not wait.
pub async fn release(link: &Link, id: [u8; 16]) {
    let released = link.decide_once(link.statement("release"), (Uuid::from_bytes(id),)).await;
    if let Err(fault) = released {
        tracing::warn!(why = fault.why, "the keyspace stays claimed; the next start waits until the lease has lapsed");
    }
}
