//! This process as one of several servers on a store.
//!
//! A process lives as a member under one id for as long as its lease is renewed in time. When it lapses, that life is over:
//! what it held has an unknown outcome, and the process joins again under a new id. The rules are in `domain/fleet`; here
//! is what asks the store and in which order. An engine whose store belongs to one process has no `FleetMembership`.

mod heartbeat;
mod publish_rounds;
mod recheck;
mod routes;
mod sealing;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::domain::Timestamp;
use crate::domain::counter::DatasetId;
use crate::domain::fleet::{
    FleetSecret, Heartbeat, MemberId, MemberLease, MembershipView, ProtocolRule, ProtocolRules, Roles, owner_of,
};
use crate::domain::limits::{STORE_SILENCE_MAX, TOUCH_SHARDS};
use crate::engine::dataset::closed_timestamp::ClosedTimestampTracker;
use crate::engine::stats::Stats;
use crate::ports::{Clock, Entropy, FleetStore, StoreError};

pub use routes::SignalRoute;

/// What a process tells the others of itself.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct MemberProfile {
    /// What it does.
    pub roles: Roles,
    /// Where it takes rollup signals; empty where it takes none.
    pub address: String,
    /// What it is called in what it has written; empty where it has no name.
    pub name: String,
    /// What it shows with its rollup signals, if anything.
    pub secret: Option<FleetSecret>,
}

/// Why this process takes no writes, in words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteRefusal(pub &'static str);

/// The membership of this process, and the others as it sees them.
pub struct FleetMembership {
    /// What the members share.
    pub store: Arc<dyn FleetStore>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    stats: Arc<Stats>,
    rules: ProtocolRules,
    profile: MemberProfile,
    incarnation: Mutex<Incarnation>,
    peers: Mutex<PeerMembers>,
    /// Where the rollup signals of each touch shard go.
    routes: ArcSwap<Vec<SignalRoute>>,
    /// One heartbeat, and one join, at a time.
    turn: Semaphore,
}

/// One life of this process.
struct Incarnation {
    /// Counts the lives.
    number: u64,
    id: MemberId,
    /// The number of the last heartbeat that was sent.
    beat: u64,
    /// None before the first heartbeat is acknowledged, and after the end.
    lease: Option<MemberLease>,
    datasets: BTreeMap<DatasetId, JoinedDataset>,
    /// Whether this life came after a lapse and writes none of its datasets yet.
    is_rejoining: bool,
    /// Whether the process is leaving for good.
    has_left: bool,
}

/// A dataset that this process writes, or is about to.
struct JoinedDataset {
    closing: Arc<ClosedTimestampTracker>,
    /// Whether it has read the frontier in this life; until then it is listed with minus infinity.
    open: bool,
    /// What this process had closed by the last heartbeat that was acknowledged in time, in whatever life.
    acknowledged_closed: Option<Timestamp>,
}

/// The members as this process sees them.
#[derive(Default)]
struct PeerMembers {
    view: MembershipView,
    /// What was read last, those who have lapsed apart.
    live: Vec<(MemberId, Heartbeat)>,
    /// When that read began.
    read_at: Option<Duration>,
}

impl PeerMembers {
    /// Whether the members are known: they could be read within the time that a store may be silent.
    fn are_known(&self, now: Duration) -> bool {
        self.read_at.is_some_and(|looked| now.saturating_sub(looked) <= STORE_SILENCE_MAX)
    }
}

impl FleetMembership {
    /// A process that is no member yet.
    pub fn new(
        store: Arc<dyn FleetStore>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        stats: Arc<Stats>,
        (rules, profile): (ProtocolRules, MemberProfile),
    ) -> Self {
        let id = MemberId([0; 16]);
        let life = Incarnation {
            number: 0,
            id,
            beat: 0,
            lease: None,
            datasets: BTreeMap::new(),
            is_rejoining: false,
            has_left: false,
        };
        let routes = routes::routes(life.id, &profile, &[]);
        Self {
            store,
            clock,
            entropy,
            stats,
            rules,
            profile,
            incarnation: Mutex::new(life),
            peers: Mutex::default(),
            routes: ArcSwap::from_pointee(routes),
            turn: Semaphore::new(1),
        }
    }

    /// Whether what was admitted in a life may be acknowledged at this moment.
    pub fn may_acknowledge(&self, life: u64) -> bool {
        if !self.rules.keeps(ProtocolRule::AcknowledgeUnderLease) {
            return true;
        }
        let now = self.clock.elapsed();
        let current = self.incarnation.lock();
        current.number == life && current.lease.is_some_and(|lease| lease.is_valid(now))
    }

    /// What this process does.
    pub fn roles(&self) -> Roles {
        self.profile.roles
    }

    /// Refuses, before anything is done, what needs a member that writes a dataset.
    pub fn check_writer(&self, dataset: DatasetId) -> Result<(), WriteRefusal> {
        if !self.profile.roles.writer {
            return Err(WriteRefusal("this server takes no writes, as server.roles says; send them to one that does"));
        }
        if !self.rules.keeps(ProtocolRule::AcknowledgeUnderLease) {
            return Ok(());
        }
        let now = self.clock.elapsed();
        let life = self.incarnation.lock();
        match life.lease {
            Some(lease) if !lease.is_valid(now) => Err(WriteRefusal(
                "the store did not answer this server in time, so that it lapsed as a member of the fleet",
            )),
            None if life.has_left => Err(WriteRefusal("this server is leaving the fleet")),
            // Of the time before a life's first heartbeat nobody knows anything.
            None => Err(WriteRefusal("this server is not a member of the fleet yet, or again; it joins by itself")),
            Some(_) if life.datasets.get(&dataset).is_some_and(|joined| joined.open) => Ok(()),
            Some(_) => Err(WriteRefusal("this server is joining those that write the dataset of the namespace")),
        }
    }

    /// Whether this process works on a touch shard: rolls it up and moves its watermark.
    pub fn owns_shard(&self, shard: u32) -> bool {
        let id = self.incarnation.lock().id;
        let others = self.peers.lock();
        let rollers = others.live.iter().filter(|(_, beat)| beat.roles.roller).map(|(id, _)| *id);
        owner_of(shard, rollers) == Some(id)
    }

    /// Where the rollup signals of a touch shard go.
    pub fn route(&self, shard: u32) -> SignalRoute {
        self.routes.load()[shard as usize].clone()
    }

    /// Whether this process looks after a dataset: publishes its limit and drops its slices.
    pub fn owns_dataset(&self, dataset: DatasetId) -> bool {
        let id = self.incarnation.lock().id;
        let others = self.peers.lock();
        // Numbers beyond those of the touch shards.
        let place = TOUCH_SHARDS.saturating_add(dataset.0);
        owner_of(place, others.live.iter().map(|(id, _)| *id)) == Some(id)
    }

    /// How many members there are, this one included; nothing while that is not known: this process is no member itself, or
    /// could not read the members for longer than a store may be silent.
    pub fn members(&self) -> Option<usize> {
        let now = self.clock.elapsed();
        let is_member = !self.lease_left().is_zero();
        let others = self.peers.lock();
        (is_member && others.are_known(now)).then_some(others.live.len())
    }

    /// Whether a secret is that of a member; of one that has lapsed it is not, and of nobody while the members could not
    /// be read for longer than a store may be silent. Cost: O(members), whichever of them it is.
    pub fn is_member_secret(&self, shown: &FleetSecret) -> bool {
        let now = self.clock.elapsed();
        let others = self.peers.lock();
        let secrets = others.live.iter().filter_map(|(_, beat)| beat.secret);
        secrets.fold(false, |is_found, secret| is_found | (secret == *shown)) && others.are_known(now)
    }

    /// What this process had closed of a dataset when the store was last told; nothing before the first time.
    pub fn acknowledged_closed(&self, dataset: DatasetId) -> Option<Timestamp> {
        self.incarnation.lock().datasets.get(&dataset).and_then(|joined| joined.acknowledged_closed)
    }

    /// How long the lease still lasts; nothing while the process is no member.
    pub fn lease_left(&self) -> Duration {
        let now = self.clock.elapsed();
        let lease = self.incarnation.lock().lease;
        lease.map_or(Duration::ZERO, |lease| lease.valid_until().saturating_sub(now))
    }

    /// Whether this process counts: its lease lasts, and after a lapse it writes datasets again, if it did before.
    pub fn is_member(&self) -> bool {
        !self.lease_left().is_zero() && !self.incarnation.lock().is_rejoining
    }

    /// Reads the members; whoever has lapsed by that is removed, which tells nobody anything new.
    pub async fn read_members(&self) -> Result<Vec<(MemberId, Heartbeat)>, StoreError> {
        let begun = self.clock.elapsed();
        let read = self.store.members().await?;
        let ended = self.clock.elapsed();
        let own = self.incarnation.lock().id;
        let lapsed = {
            let mut others = self.peers.lock();
            let lapsed = others.view.observe(begun, ended, read.iter().map(|(id, beat)| (*id, beat.number)));
            let PeerMembers { view, live, read_at: looked } = &mut *others;
            *looked = Some(begun);
            *live = read.iter().filter(|(id, _)| !view.is_lapsed(*id)).cloned().collect();
            self.routes.store(Arc::new(routes::routes(own, &self.profile, live)));
            lapsed
        };
        for id in lapsed {
            tracing::warn!(member = ?id, "a member has lapsed: its heartbeat stood still for the whole lease");
            self.stats.members_lapsed.increment();
            if let Err(error) = self.store.remove(id).await {
                tracing::warn!(member = ?id, %error, "a lapsed member stays listed; it counts for nobody");
            }
        }
        Ok(read)
    }
}
