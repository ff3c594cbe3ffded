//! Use cases and background loops, on ports alone.
//!
//! `Engine` is what the composition root builds and the API calls. Everything it does in the background runs under one
//! driver, so stopping it is: stop taking calls, `drain`, done.

pub mod caller_quota;
mod core;
pub mod counting;
mod dataset;
mod fleet;
pub mod loops;
pub mod namespaces;
pub mod queues;
pub mod rolling;
pub mod stats;

use std::sync::Arc;
use std::time::Duration;

use crate::domain::Timestamp;
use crate::domain::counter::DatasetId;
use crate::domain::fleet::ProtocolRules;
use crate::engine::core::{EngineCore, FleetOptions};
use crate::engine::counting::Counting;
use crate::engine::loops::driver::Driver;
use crate::engine::loops::{
    DeletedNamespacesLoop, FollowLoop, MembershipLoop, StartupProgress, Supervisor, WatchesLoop,
};
use crate::engine::namespaces::NamespaceCatalog;
use crate::engine::queues::Queues;
use crate::engine::rolling::SignalReceiver;
use crate::engine::stats::Stats;
use crate::ports::{Clock, Entropy, ExportSink, QueueStores, RollupSignal, SignalCounts, StoreError, Stores};

pub use fleet::MemberProfile;

/// What an engine is made of.
pub struct EngineParts {
    /// The stores.
    pub stores: Stores,
    /// The stores of queues, unless this process has no queues.
    pub queue_stores: Option<QueueStores>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Random bytes.
    pub entropy: Arc<dyn Entropy>,
    /// Where slices are exported to, if anywhere.
    pub export: Option<Arc<dyn ExportSink>>,
    /// The catalog.
    pub namespaces: NamespaceCatalog,
    /// What this process tells the others of itself, where several share the store.
    pub profile: MemberProfile,
    /// The way to the rollers of other servers, where several share the store.
    pub signals: Option<Arc<dyn RollupSignal>>,
    /// How long after its end a time bucket is read again from all replicas and compared with its record, where several
    /// share the store; none: never.
    pub seal_delay: Option<Duration>,
    /// The rules of the protocol: all of them.
    pub rules: ProtocolRules,
    /// Told of each dataset and namespace that is opened, so that whoever waits for the start knows that it goes on.
    pub progress: StartupProgress,
}

/// The running engine.
pub struct Engine {
    core: Arc<EngineCore>,
    driver: Driver,
    counting: Counting,
    queues: Option<Queues>,
}

/// The membership of this process at one moment.
#[derive(Clone, Copy, Debug)]
pub struct FleetGauges {
    /// How many members there are; nothing while this one does not know.
    pub members: Option<usize>,
    /// Whether this one counts as a member: after a lapse, only once it writes datasets again.
    pub is_member: bool,
    /// How long its lease still lasts if no heartbeat is acknowledged any more.
    pub lease_left: Duration,
}

/// A gauge of the engine at one moment, by dataset.
#[derive(Clone, Debug)]
pub struct DatasetGauges {
    /// The number of the dataset.
    pub id: DatasetId,
    /// The dataset.
    pub dataset: String,
    /// How far the published limit is behind the clock, as readers on this server know it.
    pub staleness: Duration,
    /// How far what this server has closed, as the store was told of it, is behind the clock: the accept limit, and more
    /// while an old write hangs or no heartbeat gets through.
    pub closed_lag: Duration,
    /// How old an event may be when it arrives: neither lag is ever less for long.
    pub accept_limit: Duration,
    /// Events that are held.
    pub holds: usize,
    /// How far the slowest watermark is behind the limit; nothing while this server does not know a watermark.
    pub watermark_lag: Option<Duration>,
    /// How far the sealing of this server's touch shards is behind what is due.
    pub seal_lag: Duration,
    /// Known slices.
    pub slices: usize,
}

impl DatasetGauges {
    /// How much staler it is than its accept limit alone makes it.
    pub fn overdue(&self) -> Duration {
        self.staleness.saturating_sub(self.accept_limit)
    }

    /// How much further behind what is closed is than the accept limit alone makes it.
    pub fn closed_overdue(&self) -> Duration {
        self.closed_lag.saturating_sub(self.accept_limit)
    }
}

impl Engine {
    /// Opens every dataset and starts the loops.
    pub async fn start(parts: EngineParts) -> Result<Self, StoreError> {
        let EngineParts { stores, queue_stores, clock, entropy, export, namespaces, profile, .. } = parts;
        let EngineParts { signals, seal_delay, rules, progress, .. } = parts;
        let driver = Driver::new(Arc::clone(&clock));
        let of_fleet = FleetOptions { rules, profile, signals, seal_delay };
        let core = EngineCore::new(
            stores,
            Arc::clone(&clock),
            Arc::clone(&entropy),
            export,
            namespaces,
            driver.clone(),
            of_fleet,
        );
        let core = Arc::new(core);
        if let Some(fleet) = &core.fleet {
            // A member before it joins a dataset; the heartbeats go on while the datasets are opened.
            fleet.renew_membership().await?;
            driver.start(MembershipLoop::new(Arc::clone(fleet), Arc::clone(&clock)));
            driver.start(FollowLoop::new(Arc::clone(&core)));
        }
        let mut supervisor = Supervisor::new(Arc::clone(&core), driver.clone(), progress);
        supervisor.follow().await?;
        driver.start(supervisor);
        driver.start(DeletedNamespacesLoop::new(Arc::clone(&core)));
        driver.start(WatchesLoop::new(Arc::clone(&core)));
        let counting = Counting::new(Arc::clone(&core), driver.clone());
        let queues = match queue_stores {
            Some(stores) => Some(Queues::start(stores, clock, entropy, driver.clone(), Arc::clone(&core.stats)).await?),
            None => None,
        };
        Ok(Self { core, driver, counting, queues })
    }

    /// The counter use cases.
    pub fn counting(&self) -> Counting {
        self.counting.clone()
    }

    /// The queue use cases, unless this process has no queues.
    pub fn queues(&self) -> Option<Queues> {
        self.queues.clone()
    }

    /// Whether other servers may share the store of this one.
    pub fn is_in_fleet(&self) -> bool {
        self.core.fleet.is_some()
    }

    /// Takes rollup signals of other servers in.
    pub fn signalled(&self) -> SignalReceiver {
        SignalReceiver::new(Arc::clone(&self.core))
    }

    /// What became of the rollup signals for other servers.
    pub fn signals(&self) -> SignalCounts {
        let counts = self.core.signals.as_ref().map(|signals| signals.counts()).unwrap_or_default();
        SignalCounts { dropped: counts.dropped + self.core.stats.signals_unsent.get(), ..counts }
    }

    /// The catalog use cases.
    pub fn namespaces(&self) -> NamespaceCatalog {
        self.core.namespaces.clone()
    }

    /// What was done so far.
    pub fn stats(&self) -> &Stats {
        &self.core.stats
    }

    /// How many loops panicked and were started again.
    pub fn loop_panics(&self) -> u64 {
        self.driver.panics()
    }

    /// Counters in the rollup Sets, and the bytes of the Sets.
    pub fn rollup_sets(&self) -> (usize, usize) {
        let waiting =
            |queues: &rolling::NamespaceRollupQueues| queues.queues().iter().map(|queue| queue.len()).sum::<usize>();
        (self.core.rollup_queues.iter().map(|queues| waiting(queues.value())).sum(), self.core.set_bytes.used())
    }

    /// How many watches there are.
    pub fn watches(&self) -> usize {
        self.core.watchers.len()
    }

    /// The membership of this process; none where one process owns the store.
    pub fn fleet(&self) -> Option<FleetGauges> {
        let fleet = self.core.fleet.as_ref()?;
        let (members, is_member, lease_left) = (fleet.members(), fleet.is_member(), fleet.lease_left());
        Some(FleetGauges { members, is_member, lease_left })
    }

    /// Gauges of every dataset.
    pub fn datasets(&self) -> Vec<DatasetGauges> {
        let now = self.core.now();
        let gauges = |dataset: Arc<dataset::datasets::DatasetState>| {
            let limit = dataset.limit();
            let rolled_up_to = self.core.rolled_up_to(&dataset, limit);
            let told = self.core.fleet.as_ref().and_then(|fleet| fleet.acknowledged_closed(dataset.id()));
            DatasetGauges {
                id: dataset.id(),
                dataset: dataset.dataset.name.to_string(),
                staleness: dataset.staleness(now),
                closed_lag: now.since(told.unwrap_or_else(|| dataset.closing.closed(now))),
                accept_limit: dataset.dataset.settings.accept_limit,
                holds: dataset.closing.hold_count(),
                watermark_lag: (rolled_up_to > Timestamp::MIN).then(|| limit.since(rolled_up_to)),
                seal_lag: dataset.seal_lag(),
                slices: dataset.slices.rows().len(),
            }
        };
        self.core.datasets.all().into_iter().map(gauges).collect()
    }

    /// How many counters wait for a roll.
    pub fn waiting(&self) -> usize {
        self.core.datasets.all().iter().map(|dataset| dataset.pending.len()).sum()
    }

    /// Finishes the current Sets and stops every loop, within a deadline. Says whether it was in time.
    ///
    /// No call may arrive any more. The last rolls wait until the limit has passed what was acknowledged, for three
    /// quarters of the deadline at most; what it cannot reach by then stays in the touch index.
    pub async fn drain(&self, deadline: Duration) -> bool {
        let until = self.core.clock.elapsed() + deadline * 3 / 4;
        let drained = async {
            self.core.namespaces.drain().await;
            self.driver.drain(until).await;
        };
        tokio::select! {
            biased;
            () = drained => true,
            () = self.core.clock.sleep(deadline) => {
                self.abandon().await;
                false
            }
        }
    }

    /// Ends every loop at once, as a kill would; the next start makes up for what was under way.
    pub async fn abandon(&self) {
        self.driver.abandon().await;
    }
}
