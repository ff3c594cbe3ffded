//! Use cases and background loops, on ports alone.
//!
//! The composition root builds an `Engine`, and the API calls it. One driver runs all background work. To stop an
//! engine, take no more calls and call `drain`.

pub mod access;
pub mod adoption;
pub mod audit;
pub mod bridge;
pub mod call_limiter;
pub mod caller_quota;
pub mod catalog;
mod closed_timestamp;
mod context;
pub mod counting;
mod dataset;
pub mod driver;
pub mod experiments;
mod fleet;
pub mod historian;
pub mod history;
pub mod loops;
pub mod namespaces;
mod queue_report_frontier;
pub mod queues;
pub mod report_right;
mod reports;
pub mod rolling;
mod rollup_queues;
pub mod rules;
mod scopes;
mod served_counts;
pub mod stats;
mod watermark;

use std::sync::Arc;
use std::time::Duration;

use crate::access::{AccessKeys, Tokens, TrustedIssuer};
use crate::adoption::Adoption;
use crate::bridge::BridgeSettings;
use crate::context::EngineContext;
use crate::counting::Counting;
use crate::driver::Driver;
use crate::experiments::{ExperimentCatalog, ExperimentSampler, Experiments};
use crate::fleet::{CounterFleet, FleetMembership, FleetOptions};
use crate::historian::Historian;
use crate::history::HistoryReader;
use crate::loops::{
    AccessKeysLoop, DeletedNamespacesLoop, FollowLoop, IssuerKeysLoop, MembershipLoop, StartupProgress, Supervisor,
    TokensLoop, WatchesLoop,
};
use crate::namespaces::NamespaceCatalog;
use crate::queue_report_frontier::QueueReportFrontier;
use crate::queues::Queues;
use crate::report_right::ReportStanding;
use crate::reports::{ReportPlan, Reports};
use crate::rolling::{Roller, SignalReceiver};
use crate::rules::{Rules, RulesLoop};
use crate::scopes::NamespaceScopes;
use crate::served_counts::ServedCounts;
use crate::stats::Stats;
use tallystone_domain::Timestamp;
use tallystone_domain::access::QuotaLimits;
use tallystone_domain::counter::DatasetId;
use tallystone_domain::fleet::ProtocolRules;
use tallystone_ports::{
    Clock, Entropy, ExportSink, HistoryStore, QueueStores, RegisterCodec, RollupSignal, SignalCounts, StoreError,
    Stores, TokenFormat,
};

pub use fleet::{FleetGauges, MemberProfile};

pub struct EngineParts {
    pub stores: Stores,
    /// The stores of queues, unless this process has no queues.
    pub queue_stores: Option<QueueStores>,
    /// The history of messages, if it is kept.
    pub history: Option<Arc<dyn HistoryStore>>,
    /// The encoding of what the writer of the history remembers.
    pub history_registers: Arc<dyn RegisterCodec>,
    pub clock: Arc<dyn Clock>,
    /// Random bytes.
    pub entropy: Arc<dyn Entropy>,
    /// The export of slices, if there is one.
    pub export: Option<Arc<dyn ExportSink>>,
    pub namespaces: NamespaceCatalog,
    /// The profile that this process publishes about itself, if several processes share the store.
    pub profile: MemberProfile,
    /// The sender of rollup signals to other servers, if several share the store.
    pub signals: Option<Arc<dyn RollupSignal>>,
    /// The delay after the end of a time bucket before it is read from all replicas and compared with its record, if
    /// several servers share the store. None: never.
    pub seal_delay: Option<Duration>,
    /// The rules of the protocol: all of them.
    pub rules: ProtocolRules,
    /// Called for each dataset and namespace that is opened. It extends the startup deadline.
    pub progress: StartupProgress,
    /// How queues are reported to their counters; `None` for not at all.
    pub bridge: Option<BridgeSettings>,
    /// The limits of keys that have none of their own.
    pub quotas: QuotaLimits,
}

/// The running engine.
pub struct Engine {
    context: Arc<EngineContext>,
    scopes: Arc<NamespaceScopes>,
    served: Arc<ServedCounts>,
    counting: Counting,
    queues: Option<Queues>,
    reports: Option<Reports>,
    history: Option<Arc<dyn HistoryStore>>,
    rules: Rules,
    keys: AccessKeys,
    experiments: ExperimentCatalog,
}

/// The gauges of a dataset at one moment.
#[derive(Clone, Debug)]
pub struct DatasetGauges {
    /// The number of the dataset.
    pub id: DatasetId,
    pub dataset: String,
    /// How far the published limit lies behind the clock, as known to readers on this server.
    pub staleness: Duration,
    /// How far the closed timestamp of this server, as the store knows it, lies behind the clock. It equals the accept
    /// limit, and more while an old write hangs or heartbeats fail.
    pub closed_lag: Duration,
    /// The accept limit: the maximum age of an event on arrival. Neither lag stays below it for long.
    pub accept_limit: Duration,
    /// Events in flight whose outcome is unknown.
    pub holds: usize,
    /// How far the slowest watermark lies behind the limit; none while this server knows no watermark.
    pub watermark_lag: Option<Duration>,
    /// How far the sealing of this server's touch shards lies behind its schedule.
    pub seal_lag: Duration,
    /// Known slices.
    pub slices: usize,
}

impl DatasetGauges {
    /// The staleness beyond the accept limit.
    pub fn overdue(&self) -> Duration {
        self.staleness.saturating_sub(self.accept_limit)
    }

    /// The lag of the closed timestamp beyond the accept limit.
    pub fn closed_overdue(&self) -> Duration {
        self.closed_lag.saturating_sub(self.accept_limit)
    }
}

impl Engine {
    /// Opens every dataset and starts the loops.
    pub async fn start(parts: EngineParts) -> Result<Self, StoreError> {
        let EngineParts { stores, queue_stores, clock, entropy, export, namespaces, profile, .. } = parts;
        let EngineParts { history, history_registers, signals, seal_delay, rules, progress, bridge, quotas, .. } =
            parts;
        let (driver, stats) = (Driver::new(Arc::clone(&clock)), Arc::default());
        let context =
            Arc::new(EngineContext { clock, entropy, driver, stats, queue_reports: QueueReportFrontier::default() });
        let (keys, clock) = (Arc::clone(&stores.keys), Arc::clone(&context.clock));
        let keys = AccessKeys::open(keys, clock, Arc::clone(&context.entropy), quotas).await?;
        context.driver.start(AccessKeysLoop::new(keys.clone()));
        let experiments = ExperimentCatalog::open(Arc::clone(&stores.experiments), Arc::clone(&context)).await?;
        context.driver.start(FollowLoop::new(experiments.clone()));
        let (name, started_at) = (profile.name.clone(), context.now());
        let fleet = stores.fleet.clone().map(|shared| {
            let options = FleetOptions { rules, profile, signals };
            let membership = Arc::new(FleetMembership::new(Arc::clone(&context), shared.members, options));
            CounterFleet { membership, store: shared.counters, seal_delay }
        });
        let scopes = Arc::new(NamespaceScopes::new(Arc::clone(&context), stores, namespaces, fleet.map(Arc::new)));
        let served: Arc<ServedCounts> = Arc::default();
        let driver = &context.driver;
        if let Some(fleet) = &scopes.fleet {
            // The process becomes a member before it joins a dataset. Heartbeats continue while the datasets are
            // opened.
            fleet.membership.renew_membership().await?;
            driver.start(MembershipLoop::new(Arc::clone(&fleet.membership), Arc::clone(&context.clock)));
            driver.start(FollowLoop::new(scopes.namespaces.clone()));
        }
        let roller = Arc::new(Roller::new(Arc::clone(&scopes), Arc::clone(&served)));
        let mut supervisor = Supervisor::new(Arc::clone(&roller), export, progress);
        supervisor.apply_catalog().await?;
        driver.start(supervisor);
        driver.start(DeletedNamespacesLoop::new(Arc::clone(&scopes), Arc::clone(&served)));
        driver.start(WatchesLoop::new(Arc::clone(&served)));
        let counting = Counting::new(roller, rules, &name, started_at);
        let plan = history.clone().zip(bridge).map(|(history, settings)| {
            let (counters_are_shared, registers) = (scopes.fleet.is_some(), history_registers);
            ReportPlan { settings, counters_are_shared, history, registers }
        });
        let (queues, reports) = match queue_stores {
            Some(stores) => {
                let member = scopes.fleet.as_ref().map(|fleet| Arc::clone(&fleet.membership));
                let joined = (member, name.clone());
                let queues = Queues::start_in(stores.clone(), Arc::clone(&context), joined).await?;
                let reports = match plan {
                    Some(plan) => Some(Reports::start(&context, &counting, &queues, stores, plan).await?),
                    None => None,
                };
                (Some(queues), reports)
            }
            None => (None, None),
        };
        let rules =
            Rules::new(Arc::clone(&context), Arc::clone(&scopes.stores.rules), counting.clone(), queues.clone());
        if queues.is_some() {
            context.driver.start(RulesLoop::new(rules.clone()));
        }
        let engine = Self { context, scopes, served, counting, queues, reports, history, rules, keys, experiments };
        engine.context.driver.start(ExperimentSampler::new(engine.experiments()));
        Ok(engine)
    }

    /// The counter use cases.
    pub fn counting(&self) -> Counting {
        self.counting.clone()
    }

    /// The queue use cases, unless this process has no queues.
    pub fn queues(&self) -> Option<Queues> {
        self.queues.clone()
    }

    /// The writer of the history, unless none is kept.
    pub fn historian(&self) -> Option<Historian> {
        self.reports.as_ref().map(|reports| reports.historian.clone())
    }

    /// The standing of this server: what it may do with the counters and the history of queues. None if it reports to
    /// none.
    pub fn report_standing(&self) -> Option<ReportStanding> {
        self.reports.as_ref().map(|reports| reports.right.standing())
    }

    /// The use case that gives counters, history and rules of a lost queue store to the present one.
    pub fn adoption(&self) -> Adoption {
        Adoption::new(Arc::clone(&self.context), self.queues.clone(), self.reports.clone(), self.rules.clone())
    }

    /// The use cases of experiments.
    pub fn experiments(&self) -> Experiments {
        let (counting, namespaces) = (self.counting.clone(), self.scopes.namespaces.clone());
        Experiments::new(Arc::clone(&self.context), counting, self.experiments.clone(), namespaces)
    }

    /// The use cases of counter rules. Without queues, a process keeps rules and runs none.
    pub fn rules(&self) -> Rules {
        self.rules.clone()
    }

    /// The API keys.
    pub fn keys(&self) -> AccessKeys {
        self.keys.clone()
    }

    /// Takes the tokens of these issuers from now on. Their keys are read at once, and again until the engine stops.
    pub fn trust(&self, format: Arc<dyn TokenFormat>, issuers: Vec<TrustedIssuer>) -> Tokens {
        let tokens = Tokens::new(format, issuers, self.keys.accounts(), Arc::clone(&self.context.clock));
        for issuer in tokens.issuers() {
            self.context.driver.start(IssuerKeysLoop::new(tokens.clone(), Arc::clone(issuer)));
        }
        self.context.driver.start(TokensLoop::new(tokens.clone()));
        tokens
    }

    /// Sets how far the queues of this server are reported to their counters. `None`: it reports for no queue.
    /// `Timestamp::MIN`: how far is not known yet.
    pub fn set_queues_reported_to(&self, reported_to: Option<Timestamp>) {
        self.context.queue_reports.set(reported_to, &*self.context.clock);
    }

    /// How far the reports of this server's queues to their counters lie behind. `None`: it reports for no queue.
    pub fn queue_report_lag(&self) -> Option<Duration> {
        self.context.queue_reports.lag(&*self.context.clock)
    }

    /// The reads of the history, unless this process has no queues or keeps no history.
    pub fn history(&self) -> Option<HistoryReader> {
        let (queues, store) = self.queues.clone().zip(self.history.clone())?;
        Some(HistoryReader::new(queues, store))
    }

    /// Whether other servers may share the store of counters.
    pub fn is_in_fleet(&self) -> bool {
        self.scopes.fleet.is_some()
    }

    /// The receiver of rollup signals from other servers.
    pub fn signalled(&self) -> SignalReceiver {
        SignalReceiver::new(Arc::clone(&self.scopes))
    }

    /// Counts of the rollup signals to other servers.
    pub fn signals(&self) -> SignalCounts {
        let counts = self.scopes.fleet.as_ref().map(|fleet| fleet.membership.signal_counts()).unwrap_or_default();
        SignalCounts { dropped: counts.dropped + self.context.stats.signals_unsent.get(), ..counts }
    }

    /// The catalog use cases.
    pub fn namespaces(&self) -> NamespaceCatalog {
        self.scopes.namespaces.clone()
    }

    /// The counts of the work done so far.
    pub fn stats(&self) -> &Stats {
        &self.context.stats
    }

    /// How many loops panicked and were started again.
    pub fn loop_panics(&self) -> u64 {
        self.context.driver.panics()
    }

    /// Counters in the rollup Sets, and the bytes of the Sets.
    pub fn rollup_sets(&self) -> (usize, usize) {
        (self.scopes.rollup_queues.counters(), self.scopes.rollup_queues.bytes())
    }

    /// How many watches there are.
    pub fn watches(&self) -> usize {
        self.served.watchers.len()
    }

    /// The membership of this process among the servers that share the counters; none where one process owns them.
    pub fn fleet(&self) -> Option<FleetGauges> {
        self.scopes.fleet.as_ref().map(|fleet| fleet.membership.gauges())
    }

    /// The membership of this process among the servers that share the queues; none where one process owns them.
    pub fn queue_fleet(&self) -> Option<FleetGauges> {
        self.queues.as_ref().and_then(Queues::fleet)
    }

    pub fn datasets(&self) -> Vec<DatasetGauges> {
        let now = self.context.now();
        let gauges = |dataset: Arc<dataset::datasets::DatasetState>| {
            let limit = dataset.limit();
            let rolled_up_to = self.scopes.rolled_up_to(&dataset, limit);
            let told = self.scopes.fleet.as_ref().and_then(|fleet| fleet.membership.acknowledged_closed(dataset.id()));
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
        self.scopes.datasets.all().into_iter().map(gauges).collect()
    }

    /// The number of counters that wait for a roll.
    pub fn waiting(&self) -> usize {
        self.scopes.datasets.all().iter().map(|dataset| dataset.pending.len()).sum()
    }

    /// Finishes the current Sets and stops every loop. Returns whether this ended within the deadline.
    ///
    /// No call may arrive after this one. The last rolls wait until the limit has passed all acknowledged events, for
    /// three quarters of the deadline at most. The touch index keeps the counters that were not rolled up by then.
    pub async fn drain(&self, deadline: Duration) -> bool {
        let until = self.context.clock.elapsed() + deadline * 3 / 4;
        let drained = async {
            self.scopes.namespaces.drain().await;
            self.keys.drain().await;
            self.experiments.drain().await;
            self.context.driver.drain(until).await;
        };
        tokio::select! {
            biased;
            () = drained => true,
            () = self.context.clock.sleep(deadline) => {
                self.abandon().await;
                false
            }
        }
    }

    /// Ends every loop at once, as a kill would. The next start finishes the interrupted work.
    pub async fn abandon(&self) {
        self.context.driver.abandon().await;
    }
}
