//! Probes the stores of a running server and evaluates its readiness, for `/readyz`, gRPC health and the metrics.
//!
//! Each store is probed every second. Its time without an answer is counted in the steps of the evaluation loop, and
//! each step is bounded: a process that was paused did not probe in that time, which proves nothing about a store.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use parking_lot::Mutex;
use prometheus_client::encoding::DescriptorEncoder;

use crate::server::metrics::{MetricSource, encode_each};
use tallystone_api::http::{Gateway, ServiceOutages};
use tallystone_domain::Timestamp;
use tallystone_domain::limits::{
    JUDGED_STEP_MAX, READINESS_JUDGED_EVERY, STORE_ANSWERS_WITHIN, STORE_ASKED_EVERY, STORE_SILENCE_MAX,
};
use tallystone_engine::Engine;
use tallystone_ports::{Clock, Metric, StoreCheck, StoreHandle, StoreMemory, metrics};
use tallystone_proto::counter::v1::counter_service_server::SERVICE_NAME as COUNTERS;
use tallystone_proto::queue::v1::queue_service_server::SERVICE_NAME as QUEUES;

/// The services that stop while a store is away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServicesOfStore {
    /// Counters and namespaces as a whole.
    pub counters: bool,
    pub queues: bool,
}

/// A store and how long it has been silent.
pub struct StoreProbe {
    target: Arc<dyn StoreHandle>,
    services: ServicesOfStore,
    downtime: Mutex<StoreDowntime>,
}

#[derive(Clone, Debug)]
struct StoreDowntime {
    /// The time of the last answer.
    last_response: Timestamp,
    /// The time without an answer since then.
    unanswered_for: Duration,
    /// The cause of a permanent failure.
    fault: Option<String>,
    /// The reason why it does not serve although it answers.
    refusal: Option<StoreRefusal>,
}

/// The reason why a store does not serve although it answers.
#[derive(Clone, Debug)]
enum StoreRefusal {
    /// It refuses what this server needs.
    Refused(String),
    /// It has lost what it had.
    Lost(String),
}

/// How a store is.
pub struct StoreStanding<'r> {
    pub handle: &'r dyn StoreHandle,
    /// The time without an answer.
    pub silent: Duration,
    /// The cause of a permanent failure.
    pub failure: Option<String>,
    /// The reason why it does not serve although it answers.
    pub refusal: Option<String>,
}

/// The readiness of a server, from its stores and its fleet.
pub struct Readiness {
    stores: Vec<StoreProbe>,
    engine: Arc<Engine>,
    clock: Arc<dyn Clock>,
    verdict: Mutex<ReadinessVerdict>,
}

/// The last evaluation.
#[derive(Default)]
struct ReadinessVerdict {
    at: Duration,
    standing: ServiceOutages,
    /// The time since which this server is not a member of its fleet.
    lapsed_since: Option<Timestamp>,
}

impl Readiness {
    /// Of a server that has just started, so that its stores have just answered.
    pub fn new(
        stores: impl IntoIterator<Item = (Arc<dyn StoreHandle>, ServicesOfStore)>,
        engine: Arc<Engine>,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        let silence = StoreDowntime::answered(clock.now());
        let store =
            |(asked, keeps)| StoreProbe { target: asked, services: keeps, downtime: Mutex::new(silence.clone()) };
        let judged = Mutex::new(ReadinessVerdict { at: clock.elapsed(), ..ReadinessVerdict::default() });
        Arc::new(Self { stores: stores.into_iter().map(store).collect(), engine, clock, verdict: judged })
    }

    /// Probes the stores and passes outages to the gateway, for as long as it is polled.
    pub async fn run(&self, gateway: &Gateway) -> Infallible {
        let asking = join_all(self.stores.iter().map(|store| self.probe_store(store)));
        join(asking, self.publish_changes(gateway)).await.1
    }

    /// The outages of the last evaluation.
    pub fn outages(&self) -> ServiceOutages {
        self.verdict.lock().standing.clone()
    }

    /// How each store is.
    pub fn store_standings(&self) -> impl Iterator<Item = StoreStanding<'_>> {
        self.stores.iter().map(|store| {
            let downtime = store.downtime.lock();
            let refusal = downtime.refusal.as_ref().map(StoreRefusal::text).map(str::to_owned);
            let (silent, failure) = (downtime.unanswered_for, downtime.fault.clone());
            StoreStanding { handle: store.target.as_ref(), silent, failure, refusal }
        })
    }

    async fn probe_store(&self, store: &StoreProbe) -> Infallible {
        loop {
            let checked = tokio::select! {
                biased;
                checked = store.target.check() => checked,
                () = self.clock.sleep(STORE_ANSWERS_WITHIN) => StoreCheck::NoAnswer,
            };
            let answered = StoreDowntime::answered(self.clock.now());
            let found = match checked {
                StoreCheck::Answered => Some(answered),
                StoreCheck::Failed(fault) => Some(StoreDowntime { fault: Some(fault), ..answered }),
                StoreCheck::Refused(why) => {
                    Some(StoreDowntime { refusal: Some(StoreRefusal::Refused(why)), ..answered })
                }
                StoreCheck::Lost(why) => Some(StoreDowntime { refusal: Some(StoreRefusal::Lost(why)), ..answered }),
                StoreCheck::NoAnswer => None, // the evaluation loop counts the time
            };
            if let Some(found) = found {
                *store.downtime.lock() = found;
            }
            self.clock.sleep(STORE_ASKED_EVERY).await;
        }
    }

    async fn publish_changes(&self, gateway: &Gateway) -> Infallible {
        loop {
            self.clock.sleep(READINESS_JUDGED_EVERY).await;
            if let Some(standing) = self.judge() {
                gateway.set_outages(standing).await;
            }
        }
    }

    /// Evaluates again. Returns the outages if they changed.
    fn judge(&self) -> Option<ServiceOutages> {
        let mut judged = self.verdict.lock();
        let now = self.clock.elapsed();
        let step = step(judged.at, now);
        judged.at = now;
        let lapsed = self.engine.fleet().is_some_and(|fleet| !fleet.is_member);
        judged.lapsed_since = lapsed.then(|| judged.lapsed_since.unwrap_or_else(|| self.clock.now()));
        let mut standing = ServiceOutages::default();
        for store in &self.stores {
            let mut silence = store.downtime.lock();
            silence.unanswered_for += step;
            if let Some(why) = silence.outage_reason(&store.target.description()) {
                add_outage(&mut standing, store.services, &why);
            }
        }
        if let Some(since) = judged.lapsed_since {
            let since = shown(since);
            standing.counters.push(format!(
                "this server has not been a member of its fleet since {since}: its heartbeats fail; it rejoins \
                 automatically"
            ));
        }
        if standing == judged.standing {
            return None;
        }
        report(&judged.standing, &standing);
        judged.standing = standing.clone();
        Some(standing)
    }
}

impl StoreRefusal {
    fn text(&self) -> &str {
        let (Self::Refused(why) | Self::Lost(why)) = self;
        why
    }
}

impl StoreDowntime {
    /// The state of a store that has just answered.
    fn answered(now: Timestamp) -> Self {
        Self { last_response: now, unanswered_for: Duration::ZERO, fault: None, refusal: None }
    }

    /// The sentence of a store that is away; none for others.
    fn outage_reason(&self, store: &str) -> Option<String> {
        match (&self.fault, &self.refusal) {
            (Some(fault), _) => Some(format!("{store} has failed: {fault}")),
            (None, _) if self.unanswered_for >= STORE_SILENCE_MAX => {
                Some(format!("{store} has not answered since {}", shown(self.last_response)))
            }
            (None, Some(StoreRefusal::Refused(why))) => Some(format!("{store} refuses this server: {why}")),
            (None, Some(StoreRefusal::Lost(why))) => Some(format!("{store} has lost what it had: {why}")),
            (None, None) => None,
        }
    }
}

/// The time between two evaluations in which stores were certainly probed.
fn step(before: Duration, now: Duration) -> Duration {
    now.saturating_sub(before).min(JUDGED_STEP_MAX)
}

fn add_outage(standing: &mut ServiceOutages, keeps: ServicesOfStore, why: &str) {
    if keeps.counters {
        standing.counters.push(why.to_owned());
    }
    if keeps.queues {
        standing.queues.push(why.to_owned());
    }
    if !keeps.counters && !keeps.queues {
        standing.degraded.push(format!("{why}: counts of its datasets stand still"));
    }
}

/// A time to the second, for comparison with logs.
fn shown(time: Timestamp) -> String {
    prost_types::Timestamp { seconds: time.micros().div_euclid(1_000_000), nanos: 0 }.to_string()
}

fn report(before: &ServiceOutages, after: &ServiceOutages) {
    let all = |standing: &ServiceOutages| {
        let ServiceOutages { counters, queues, degraded: beside } = standing;
        [counters.as_slice(), queues, beside].concat().join("; ")
    };
    if *after == ServiceOutages::default() {
        tracing::info!(was = all(before), "all stores answer again");
    } else {
        tracing::warn!(why = all(after), "some services are not available");
    }
}

/// The metric of a service, from the reasons why it is not served.
const READY: &[Metric<Vec<String>>] = metrics! { why:
    Gauge "tallystone_ready" = f64::from(u8::from(why.is_empty())),
        "1 while the service is available, 0 while its store is not";
};

const STORES: &[Metric<StoreProbe>] = metrics! { store:
    Gauge "tallystone_store_silent_seconds" = store.downtime.lock().unanswered_for.as_secs_f64(),
        "Time since the last answer of a store; 0 to 1 while it answers";
};

const MEMORY: &[Metric<StoreMemory>] = metrics! { memory:
    Gauge "tallystone_store_memory_bytes" = memory.used_bytes as f64,
        "Memory that a server of a store uses, where it keeps its data there";
    Gauge "tallystone_store_memory_limit_bytes" = memory.limit_bytes.unwrap_or(0) as f64,
        "The most memory that a server of a store may use; 0 without a limit";
    Gauge "tallystone_store_memory_evicts" = f64::from(u8::from(memory.eviction_policy.is_some())),
        "1 if a server of a store throws data away when its memory is short";
};
/// The labels where no store keeps its data in memory, so that dashboards find the metrics.
const NO_STORE: &str = "_none";

impl MetricSource for Arc<Readiness> {
    fn encode_metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let ServiceOutages { counters, queues, .. } = self.outages();
        let services = [(COUNTERS, &counters), (QUEUES, &queues)];
        encode_each(encoder, READY, services.into_iter().map(|(service, why)| ([("service", service)], why)))?;
        encode_each(encoder, STORES, self.stores.iter().map(|store| ([("store", store.target.label())], store)))?;
        let of_store = |store: &StoreProbe| {
            let label = store.target.label();
            store.target.memory().into_iter().map(move |memory| (label.clone(), memory))
        };
        let mut memory: Vec<(String, StoreMemory)> = self.stores.iter().flat_map(of_store).collect();
        if memory.is_empty() {
            let none = NO_STORE.to_owned();
            memory.push((
                none.clone(),
                StoreMemory { server: none, used_bytes: 0, limit_bytes: None, eviction_policy: None },
            ));
        }
        let labelled = memory.iter().map(|(label, memory)| ([("store", label), ("server", &memory.server)], memory));
        encode_each(encoder, MEMORY, labelled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: ServicesOfStore = ServicesOfStore { counters: true, queues: true };

    fn silent_for(lasted: Duration) -> StoreDowntime {
        StoreDowntime { unanswered_for: lasted, ..StoreDowntime::answered(Timestamp::from_secs(1_800_000_000)) }
    }

    #[test]
    fn a_store_is_away_once_it_has_been_silent_for_the_bound_and_is_named_with_the_time() {
        let just_below = silent_for(STORE_SILENCE_MAX - Duration::from_millis(1));
        assert_eq!(just_below.outage_reason("keyspace shop"), None);
        let said = silent_for(STORE_SILENCE_MAX).outage_reason("keyspace shop");
        assert_eq!(said.as_deref(), Some("keyspace shop has not answered since 2027-01-15T08:00:00Z"));
    }

    #[test]
    fn a_store_that_has_failed_or_refuses_is_away_at_once() {
        let failed = StoreDowntime { fault: Some("the disk is gone".to_owned()), ..silent_for(Duration::ZERO) };
        assert_eq!(failed.outage_reason("it").as_deref(), Some("it has failed: the disk is gone"));
        let refusing = |refusal| StoreDowntime { refusal: Some(refusal), ..silent_for(Duration::ZERO) };
        let refuses = refusing(StoreRefusal::Refused("no right".to_owned()));
        assert_eq!(refuses.outage_reason("it").as_deref(), Some("it refuses this server: no right"));
        let lost = refusing(StoreRefusal::Lost("STORE_LOST: the catalog".to_owned()));
        assert_eq!(lost.outage_reason("it").as_deref(), Some("it has lost what it had: STORE_LOST: the catalog"));
        let mut standing = ServiceOutages::default();
        add_outage(&mut standing, BOTH, "it has failed");
        assert_eq!((standing.counters.len(), standing.queues.len(), standing.degraded.len()), (1, 1, 0));
    }

    #[test]
    fn a_pause_of_this_process_is_no_silence_of_a_store() {
        let began = Duration::from_secs(1_000);
        assert_eq!(step(began, began + READINESS_JUDGED_EVERY), READINESS_JUDGED_EVERY);
        assert!(step(began, began + Duration::from_secs(3_600)) < STORE_SILENCE_MAX / 4);
    }

    #[test]
    fn a_store_that_keeps_datasets_only_takes_no_service_with_it() {
        let mut standing = ServiceOutages::default();
        add_outage(&mut standing, ServicesOfStore { counters: false, queues: false }, "keyspace far is away");
        assert!(standing.counters.is_empty() && standing.queues.is_empty());
        assert_eq!(standing.degraded, ["keyspace far is away: counts of its datasets stand still"]);
    }
}
