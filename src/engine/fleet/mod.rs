//! This process as one of several servers on a store: of counters, of queues, or of both.
//!
//! A process is a member under one id for as long as it renews its lease in time. When the lease lapses, this
//! incarnation is over: the writes that it held have an unknown outcome, and the process joins again under a new id.
//! The rules are in `domain/fleet`; this module does the requests to the store. An engine that owns its store has no
//! `FleetMembership`.

mod counters;
mod heartbeat;
mod publish_rounds;
mod routes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::closed_timestamp::ClosedTimestampTracker;
use crate::context::EngineContext;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Counter, DatasetId};
use tallystone_domain::fleet::{
    FleetSecret, Heartbeat, MemberId, MemberLease, MembershipView, ProtocolRule, ProtocolRules, Roles, owner_of,
    rank_of,
};
use tallystone_domain::limits::{STATUS_ROWS_MAX, STORE_SILENCE_MAX, TOUCH_SHARDS};
use tallystone_ports::{CounterSignal, FleetStore, Membership, RollupSignal, SignalCounts, StoreError};

pub use counters::CounterFleet;
pub use routes::SignalRoute;

/// The description that a member publishes of itself.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct MemberProfile {
    pub roles: Roles,
    /// The address for rollup signals; empty if it accepts none.
    pub address: String,
    /// Its name in the rows that it writes; may be empty.
    pub name: String,
    /// The secret that it sends with its rollup signals, if any.
    pub secret: Option<FleetSecret>,
}

/// How a process takes part in a fleet.
#[derive(Default)]
pub struct FleetOptions {
    /// The rules of the protocol. Only simulations leave one out.
    pub rules: ProtocolRules,
    /// The profile that the process publishes about itself.
    pub profile: MemberProfile,
    /// The sender of rollup signals to other members.
    pub signals: Option<Arc<dyn RollupSignal>>,
}

/// The reason why this process accepts no writes, as text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteRefusal(pub &'static str);

/// The fleet membership of this process at one moment.
#[derive(Clone, Debug)]
pub struct FleetGauges {
    /// The number of members; none while this process does not know it.
    pub members: Option<usize>,
    /// The addresses of members that published one, in order; at most `STATUS_ROWS_MAX`.
    pub servers: Vec<String>,
    /// Whether this process counts as a member. After its lease lapsed, it does so once it writes datasets again.
    pub is_member: bool,
    /// The time left of its lease if no further heartbeat is acknowledged.
    pub lease_left: Duration,
}

/// The membership of this process, with its view of the other members.
pub struct FleetMembership {
    members: Arc<dyn Membership>,
    context: Arc<EngineContext>,
    rules: ProtocolRules,
    profile: MemberProfile,
    /// The name of this process in the rows that it writes, if it has one.
    name: Option<Arc<str>>,
    /// Sends rollup signals to other members, if there may be any.
    signals: Option<Arc<dyn RollupSignal>>,
    incarnation: Mutex<Incarnation>,
    peers: Mutex<PeerMembers>,
    /// The route of the rollup signals of each touch shard.
    routes: ArcSwap<Vec<SignalRoute>>,
    /// How many members lapsed while this process looked.
    lapsed: AtomicU64,
    /// One heartbeat, and one join, at a time.
    turn: Semaphore,
}

/// One incarnation of this process in its fleet.
struct Incarnation {
    number: u64,
    id: MemberId,
    /// The number of the last heartbeat that was sent.
    beat: u64,
    /// None before the first heartbeat is acknowledged, and after the end.
    lease: Option<MemberLease>,
    datasets: BTreeMap<DatasetId, JoinedDataset>,
    /// Whether this incarnation follows a lapse and writes none of its datasets yet.
    is_rejoining: bool,
    /// Whether the process is leaving for good.
    has_left: bool,
}

/// A dataset that this process writes, or is about to.
struct JoinedDataset {
    closing: Arc<ClosedTimestampTracker>,
    /// Has the frontier.
    store: Arc<dyn FleetStore>,
    /// Whether it has read the frontier in this incarnation. Until then it is listed with minus infinity.
    open: bool,
    /// The closed timestamp in the last heartbeat that was acknowledged in time, in any incarnation.
    acknowledged_closed: Option<Timestamp>,
}

/// The members as this process sees them.
#[derive(Default)]
struct PeerMembers {
    view: MembershipView,
    /// The last view of the members, without lapsed ones.
    live: Vec<(MemberId, Heartbeat)>,
    /// The start of that read.
    read_at: Option<Duration>,
}

impl PeerMembers {
    /// Whether the members are known: they were read within the time that a store may be silent.
    fn are_known(&self, now: Duration) -> bool {
        self.read_at.is_some_and(|looked| now.saturating_sub(looked) <= STORE_SILENCE_MAX)
    }
}

impl FleetMembership {
    /// A process that is not a member yet.
    pub fn new(context: Arc<EngineContext>, members: Arc<dyn Membership>, options: FleetOptions) -> Self {
        let FleetOptions { rules, profile, signals } = options;
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
            members,
            context,
            rules,
            name: (!profile.name.is_empty()).then(|| Arc::from(profile.name.as_str())),
            profile,
            signals,
            incarnation: Mutex::new(life),
            peers: Mutex::default(),
            routes: ArcSwap::from_pointee(routes),
            lapsed: AtomicU64::new(0),
            turn: Semaphore::new(1),
        }
    }

    /// Whether writes admitted in an incarnation may be acknowledged now.
    pub fn may_acknowledge(&self, life: u64) -> bool {
        if !self.rules.keeps(ProtocolRule::AcknowledgeUnderLease) {
            return true;
        }
        let now = self.context.clock.elapsed();
        let current = self.incarnation.lock();
        current.number == life && current.lease.is_some_and(|lease| lease.is_valid(now))
    }

    /// Whether this process keeps a rule of the protocol.
    pub fn keeps(&self, rule: ProtocolRule) -> bool {
        self.rules.keeps(rule)
    }

    /// The name of this process in the rows that it writes.
    pub fn name(&self) -> Option<Arc<str>> {
        self.name.clone()
    }

    /// The roles of this process.
    pub fn roles(&self) -> Roles {
        self.profile.roles
    }

    /// Refuses a call that needs a member which writes the dataset, before any effect.
    pub fn check_writer(&self, dataset: DatasetId) -> Result<(), WriteRefusal> {
        if !self.profile.roles.writer {
            return Err(WriteRefusal(
                "this server accepts no writes (server.roles); send them to a server with the role writer",
            ));
        }
        if !self.rules.keeps(ProtocolRule::AcknowledgeUnderLease) {
            return Ok(());
        }
        let now = self.context.clock.elapsed();
        let life = self.incarnation.lock();
        match life.lease {
            Some(lease) if !lease.is_valid(now) => {
                Err(WriteRefusal("the fleet lease of this server expired because the store did not answer in time"))
            }
            None if life.has_left => Err(WriteRefusal("this server is leaving the fleet")),
            // The time before the first heartbeat of an incarnation is unknown.
            None => Err(WriteRefusal("this server is not a member of the fleet at the moment; it joins automatically")),
            Some(_) if life.datasets.get(&dataset).is_some_and(|joined| joined.open) => Ok(()),
            Some(_) => Err(WriteRefusal("this server is still joining the writers of the namespace's dataset")),
        }
    }

    /// Whether the members are those of this list.
    pub fn is_in(&self, members: &Arc<dyn Membership>) -> bool {
        Arc::ptr_eq(&self.members, members)
    }

    /// The id of the present incarnation.
    pub fn id(&self) -> MemberId {
        self.incarnation.lock().id
    }

    /// Whether a member is not among the live ones. False while the members are not known.
    pub fn is_gone(&self, member: MemberId) -> bool {
        let others = self.peers.lock();
        others.are_known(self.context.clock.elapsed()) && others.live.iter().all(|(id, _)| *id != member)
    }

    /// How many members lapsed so far, as this process saw it: it grows when others have to finish the work of one.
    /// O(1).
    pub fn lapsed(&self) -> u64 {
        self.lapsed.load(Ordering::Relaxed)
    }

    /// The rank of this process for a place among the live members: the first does its work, and the others step in for
    /// it in the order of their ranks. A process that is no known member comes last. Cost: O(members).
    pub fn rank_for(&self, place: u32) -> usize {
        let id = self.incarnation.lock().id;
        let others = self.peers.lock();
        rank_of(place, id, others.live.iter().map(|(id, _)| *id)).unwrap_or(others.live.len())
    }

    /// Whether this process owns a touch shard: it rolls the shard up and moves its watermark.
    pub fn owns_shard(&self, shard: u32) -> bool {
        let id = self.incarnation.lock().id;
        let others = self.peers.lock();
        let rollers = others.live.iter().filter(|(_, beat)| beat.roles.roller).map(|(id, _)| *id);
        owner_of(shard, rollers) == Some(id)
    }

    /// The route of the rollup signals of a touch shard.
    pub fn route(&self, shard: u32) -> SignalRoute {
        self.routes.load()[shard as usize].clone()
    }

    /// Sends a rollup signal to the member that rolls the counter up. It never waits, and the signal may be lost.
    /// Returns false if that member is this process.
    pub fn send_signal(&self, counter: &Counter, oldest: Timestamp, newest: Timestamp) -> bool {
        match (self.route(counter.touch_shard()), &self.signals) {
            (SignalRoute::Here, _) => return false,
            (SignalRoute::There(roller), Some(signals)) => {
                signals.send(&roller, CounterSignal { counter: counter.clone(), oldest, newest });
            }
            (SignalRoute::There(_), None) | (SignalRoute::Nowhere, _) => self.context.stats.signals_unsent.increment(),
        }
        true
    }

    /// Counts of the rollup signals to other members.
    pub fn signal_counts(&self) -> SignalCounts {
        self.signals.as_ref().map(|signals| signals.counts()).unwrap_or_default()
    }

    /// Whether this process is responsible for a dataset: it publishes the limit and drops slices.
    pub fn owns_dataset(&self, dataset: DatasetId) -> bool {
        let id = self.incarnation.lock().id;
        let others = self.peers.lock();
        // Numbers beyond those of the touch shards.
        let place = TOUCH_SHARDS.saturating_add(dataset.0);
        owner_of(place, others.live.iter().map(|(id, _)| *id)) == Some(id)
    }

    /// The number of members, this one included. None while it is unknown: this process is not a member, or could not
    /// read the members for longer than a store may be silent.
    pub fn members(&self) -> Option<usize> {
        let now = self.context.clock.elapsed();
        let is_member = !self.lease_left().is_zero();
        let others = self.peers.lock();
        (is_member && others.are_known(now)).then_some(others.live.len())
    }

    /// When the last look at the members began, if this process was the only one; by elapsed time.
    pub fn alone_at(&self) -> Option<Duration> {
        let others = self.peers.lock();
        others.read_at.filter(|_| self.is_member() && others.live.len() == 1)
    }

    /// How far the queues of each other member are reported, by its last heartbeat. None while the members are not
    /// known.
    pub fn queues_reported_by_others(&self) -> Option<Vec<Option<Timestamp>>> {
        let (now, own) = (self.context.clock.elapsed(), self.incarnation.lock().id);
        let others = self.peers.lock();
        let times = others.live.iter().filter(|(id, _)| *id != own).map(|(_, beat)| beat.queues_reported_to);
        others.are_known(now).then(|| times.collect())
    }

    /// Whether a secret is that of a live member. False for all secrets while the members could not be read for longer
    /// than a store may be silent. Cost: O(members), independent of the position of the member.
    pub fn is_member_secret(&self, shown: &FleetSecret) -> bool {
        let now = self.context.clock.elapsed();
        let others = self.peers.lock();
        let secrets = others.live.iter().filter_map(|(_, beat)| beat.secret);
        secrets.fold(false, |is_found, secret| is_found | (secret == *shown)) && others.are_known(now)
    }

    /// The acknowledged closed timestamp of a dataset; none before the first.
    pub fn acknowledged_closed(&self, dataset: DatasetId) -> Option<Timestamp> {
        self.incarnation.lock().datasets.get(&dataset).and_then(|joined| joined.acknowledged_closed)
    }

    /// The time left of the lease; none while the process is not a member.
    pub fn lease_left(&self) -> Duration {
        let now = self.context.clock.elapsed();
        let lease = self.incarnation.lock().lease;
        lease.map_or(Duration::ZERO, |lease| lease.valid_until().saturating_sub(now))
    }

    /// The values of the membership for the status and for metrics.
    pub fn gauges(&self) -> FleetGauges {
        let members = self.members();
        let servers = if members.is_some() { self.addresses() } else { Vec::new() };
        FleetGauges { members, servers, is_member: self.is_member(), lease_left: self.lease_left() }
    }

    fn addresses(&self) -> Vec<String> {
        let others = self.peers.lock();
        let addresses = others.live.iter().map(|(_, beat)| &beat.address).filter(|address| !address.is_empty());
        let mut addresses: Vec<String> = addresses.cloned().collect();
        addresses.sort_unstable();
        addresses.truncate(STATUS_ROWS_MAX);
        addresses
    }

    /// Whether this process counts as a member: its lease lasts, and after a lapse it writes datasets again, if it did
    /// before.
    pub fn is_member(&self) -> bool {
        !self.lease_left().is_zero() && !self.incarnation.lock().is_rejoining
    }

    /// Reads the members. Lapsed members are removed, which changes nothing for others.
    pub async fn read_members(&self) -> Result<Vec<(MemberId, Heartbeat)>, StoreError> {
        let begun = self.context.clock.elapsed();
        let read = self.members.members().await?;
        let ended = self.context.clock.elapsed();
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
            tracing::warn!(member = ?id, "the lease of a fleet member has expired: it sent no heartbeat");
            self.context.stats.members_lapsed.increment();
            self.lapsed.fetch_add(1, Ordering::Relaxed);
            if let Err(error) = self.members.remove(id).await {
                tracing::warn!(member = ?id, %error, "cannot remove an expired fleet member from the list; it is \
                    ignored");
            }
        }
        Ok(read)
    }
}
