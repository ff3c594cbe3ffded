//! The status of a server: what its parts know, put together, with a sentence for each thing that is wrong.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use crate::adapters::embedded::Embedded;
use crate::api::grpc::saturating_i64;
use crate::api::grpc::status::StatusSource;
use crate::api::time::{write, write_duration};
use crate::app::server::backend::{Backend, MemcachedClusters};
use crate::app::server::readiness::Readiness;
use crate::app::units;
use crate::domain::limits::{STATUS_ROWS_MAX, STATUS_STALENESS_MAX};
use crate::domain::queue::MessageState;
use crate::engine::queues::Backlog;
use crate::engine::{DatasetGauges, Engine};
use crate::ports::Clock;
use crate::proto::admin::v1 as pb;

/// The parts of a running server.
pub struct ServerStatus {
    engine: Arc<Engine>,
    readiness: Arc<Readiness>,
    embedded: Option<Arc<Embedded>>,
    memcached: MemcachedClusters,
    clock: Arc<dyn Clock>,
    ready_since: Duration,
}

impl ServerStatus {
    /// Of a server that becomes ready now.
    pub fn new(engine: &Arc<Engine>, readiness: &Arc<Readiness>, backend: &Backend, clock: Arc<dyn Clock>) -> Self {
        Self {
            engine: Arc::clone(engine),
            readiness: Arc::clone(readiness),
            embedded: backend.embedded(),
            memcached: backend.memcached.clone(),
            ready_since: clock.elapsed(),
            clock,
        }
    }

    fn stores(&self) -> Vec<pb::StoreStatus> {
        let health = self.embedded.as_ref().map(|embedded| embedded.health());
        let silences = self.readiness.store_downtimes().into_iter();
        let mut stores: Vec<_> = silences
            .map(|(store, silent, failure)| pb::StoreStatus {
                store,
                silent: Some(write_duration(silent)),
                failure: failure.unwrap_or_default(),
                ..pb::StoreStatus::default()
            })
            .collect();
        if let (Some(health), Some(store)) = (health, stores.first_mut()) {
            store.full = health.full;
            store.disk_bytes = saturating_i64(health.disk_bytes);
            store.free_bytes = saturating_i64(health.free_bytes.unwrap_or(0));
        }
        stores
    }

    /// That adds and new messages are refused for want of space: where, how much is free, how much must be.
    fn full(&self, store: &pb::StoreStatus) -> String {
        let free = units::size(u64::try_from(store.free_bytes).unwrap_or(0));
        let wanted = self.embedded.as_ref().map(|embedded| embedded.wanted_space());
        let place = wanted.map_or_else(String::new, |(dir, bytes)| {
            format!("; {} must have {} free (storage.reserve_bytes)", dir.display(), units::size(bytes))
        });
        format!(
            "the disk of the store {} is full: {free} free, so adds and new messages are refused{place}",
            store.store
        )
    }

    fn fleet(&self) -> Option<pb::FleetStatus> {
        let fleet = self.engine.fleet()?;
        let members = saturating_i64(fleet.members.unwrap_or(0));
        Some(pb::FleetStatus { members, lease_left: Some(write_duration(fleet.lease_left)) })
    }

    fn memcached(&self) -> Vec<pb::MemcachedStatus> {
        let clusters = self.memcached.iter().map(|(name, cluster)| {
            let health = cluster.health();
            pb::MemcachedStatus {
                cluster: name.clone(),
                servers: saturating_i64(health.servers),
                servers_down: saturating_i64(health.servers_down),
                calls: saturating_i64(health.calls),
                calls_failed: saturating_i64(health.failed),
            }
        });
        clusters.collect()
    }

    fn queues(&self) -> pb::QueuesStatus {
        let queues = self.engine.queues();
        let overview = queues.overview();
        let pb::QueueBacklog { pending, running, errored, .. } = backlog(&overview.all);
        pb::QueuesStatus {
            count: saturating_i64(queues.count()),
            pending,
            running,
            errored,
            waiting_dequeues: saturating_i64(queues.waiting()),
            sessions: saturating_i64(queues.open_sessions()),
            oldest: overview.oldest.iter().map(backlog).collect(),
        }
    }
}

impl StatusSource for ServerStatus {
    fn status(&self) -> pb::GetStatusResponse {
        let mut datasets = self.engine.datasets();
        let dataset_count = saturating_i64(datasets.len());
        datasets.sort_by_key(|dataset| (Reverse(dataset.overdue()), dataset.id));
        datasets.truncate(STATUS_ROWS_MAX);
        let (stores, memcached, stats) = (self.stores(), self.memcached(), self.engine.stats());
        let standing = self.readiness.outages();
        let mut problems = Vec::new();
        for (what, why) in standing.unserved() {
            problems.extend(why.iter().map(|why| format!("{what} are not served: {why}")));
        }
        problems.extend(standing.degraded.iter().cloned());
        problems.extend(stores.iter().filter(|store| store.full).map(|store| self.full(store)));
        problems.extend(datasets.iter().filter(|dataset| dataset.overdue() > STATUS_STALENESS_MAX).map(stale));
        problems.extend(memcached.iter().filter(|cluster| cluster.servers_down > 0).map(down));
        pb::GetStatusResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            server_time: Some(write(self.clock.now())),
            up: Some(write_duration(self.clock.elapsed().saturating_sub(self.ready_since))),
            ready: standing.is_ready(),
            problems,
            stores,
            fleet: self.fleet(),
            datasets: datasets.iter().map(dataset).collect(),
            dataset_count,
            queues: Some(self.queues()),
            count_cache: Some(pb::CountCacheStatus {
                hits: saturating_i64(stats.cache_hits.get()),
                misses: saturating_i64(stats.cache_misses.get()),
            }),
            memcached,
        }
    }
}

fn stale(dataset: &DatasetGauges) -> String {
    format!(
        "counts of the dataset {} are {} old, where its accept_limit is {}: the store is away, or a server holds the \
         limit back",
        dataset.dataset,
        units::about(dataset.staleness),
        units::about(dataset.accept_limit)
    )
}

fn down(cluster: &pb::MemcachedStatus) -> String {
    let pb::MemcachedStatus { cluster, servers, servers_down, .. } = cluster;
    format!("{servers_down} of {servers} servers of the memcached cluster {cluster} do not answer")
}

fn dataset(dataset: &DatasetGauges) -> pb::DatasetStatus {
    pb::DatasetStatus {
        dataset: dataset.dataset.clone(),
        staleness: Some(write_duration(dataset.staleness)),
        closed_lag: Some(write_duration(dataset.closed_lag)),
        watermark_lag: dataset.watermark_lag.map(write_duration),
        holds: saturating_i64(dataset.holds),
    }
}

fn backlog(backlog: &Backlog) -> pb::QueueBacklog {
    let of = |state| saturating_i64(backlog.messages[state as usize]);
    pb::QueueBacklog {
        queue: backlog.queue.clone(),
        pending: of(MessageState::Pending),
        running: of(MessageState::Running),
        errored: of(MessageState::Errored),
        oldest_ready_age: Some(write_duration(backlog.oldest)),
        waiting_dequeues: saturating_i64(backlog.waiting),
    }
}
