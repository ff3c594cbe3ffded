//! The status of a server: what its parts know, put together, with a sentence for each thing that is wrong.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use crate::server::backend::Backend;
use crate::server::memcached::MemcachedClusters;
use crate::server::readiness::{Readiness, StoreStanding};
use crate::units;
use tallystone_api::grpc::saturating_i64;
use tallystone_api::grpc::status::StatusSource;
use tallystone_api::time::{write, write_duration};
use tallystone_domain::limits::{STATUS_ROWS_MAX, STATUS_STALENESS_MAX};
use tallystone_domain::queue::MessageState;
use tallystone_domain::queue::activity::LostWork;
use tallystone_domain::queue::shard::memory::MemoryPart;
use tallystone_engine::queues::Backlog;
use tallystone_engine::report_right::ReportStanding;
use tallystone_engine::{DatasetGauges, Engine, FleetGauges};
use tallystone_ports::{Clock, MemoryLimit, QueueMemory, StoreDisk, StoreMemory};
use tallystone_proto::admin::v1 as pb;

/// The parts of a running server.
pub struct ServerStatus {
    engine: Arc<Engine>,
    readiness: Arc<Readiness>,
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
            memcached: backend.memcached.clone(),
            ready_since: clock.elapsed(),
            clock,
        }
    }

    /// Every store, with its file system if it keeps files on this machine, and the memory of its servers.
    fn stores(&self) -> Vec<(pb::StoreStatus, Option<StoreDisk>, Vec<StoreMemory>)> {
        let stores = self.readiness.store_standings().map(|standing| {
            let StoreStanding { handle: store, silent, failure, refusal } = standing;
            let (disk, memory) = (store.disk(), store.memory());
            let bytes = |bytes: fn(&StoreDisk) -> u64| disk.as_ref().map_or(0, |disk| saturating_i64(bytes(disk)));
            let status = pb::StoreStatus {
                store: store.name(),
                silent: Some(write_duration(silent)),
                failure: failure.unwrap_or_default(),
                full: disk.as_ref().is_some_and(|disk| disk.full),
                disk_bytes: bytes(|disk| disk.used_bytes),
                free_bytes: bytes(|disk| disk.free_bytes.unwrap_or(0)),
                refusal: refusal.unwrap_or_default(),
                memory: memory.iter().map(memory_status).collect(),
            };
            (status, disk, memory)
        });
        stores.collect()
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
                servers_full: saturating_i64(health.servers_full),
            }
        });
        clusters.collect()
    }

    fn queues(&self) -> Option<pb::QueuesStatus> {
        let queues = self.engine.queues()?;
        let overview = queues.inspect.overview();
        let pb::QueueBacklog { pending, running, errored, .. } = backlog(&overview.all);
        Some(pb::QueuesStatus {
            count: saturating_i64(overview.queues),
            pending,
            running,
            errored,
            waiting_dequeues: saturating_i64(queues.waiting()),
            sessions: saturating_i64(queues.sessions.open_count()),
            oldest: overview.oldest.iter().map(backlog).collect(),
            memory: queues.memory().as_ref().map(queue_memory),
        })
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
        let on_disk = stores.iter().filter_map(|(store, disk, _)| Some((store, disk.as_ref()?)));
        problems.extend(on_disk.filter(|(_, disk)| disk.full).map(|(store, disk)| full(&store.store, disk)));
        problems.extend(stores.iter().flat_map(|(store, _, memory)| memory_problems(&store.store, memory)));
        problems.extend(datasets.iter().filter(|dataset| dataset.overdue() > STATUS_STALENESS_MAX).map(stale));
        problems.extend(self.engine.report_standing().and_then(unreported));
        if let Some(queues) = self.engine.queues() {
            problems.extend(queues.memory().filter(QueueMemory::is_short).as_ref().map(short_queue_memory));
            problems.extend(queues.inspect.overview().lost.iter().map(lost));
        }
        problems.extend(memcached.iter().filter(|cluster| cluster.servers_down > 0).map(down));
        problems.extend(memcached.iter().filter(|cluster| cluster.servers_full > 0).map(out_of_memory));
        pb::GetStatusResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            server_time: Some(write(self.clock.now())),
            up: Some(write_duration(self.clock.elapsed().saturating_sub(self.ready_since))),
            ready: standing.is_ready(),
            problems,
            stores: stores.into_iter().map(|(store, ..)| store).collect(),
            fleet: self.engine.fleet().map(fleet),
            queue_fleet: self.engine.queue_fleet().map(fleet),
            datasets: datasets.iter().map(dataset).collect(),
            dataset_count,
            // What queues held when their store last served is not what they hold.
            queues: if standing.queues.is_empty() { self.queues() } else { None },
            count_cache: Some(pb::CountCacheStatus {
                hits: saturating_i64(stats.cache_hits.get()),
                misses: saturating_i64(stats.cache_misses.get()),
            }),
            memcached,
        }
    }
}

/// The sentence of a store that refuses adds and new messages for want of space.
fn full(store: &str, disk: &StoreDisk) -> String {
    format!(
        "the disk of the store {store} is full: {} free, so adds and new messages are refused; {} needs {} free \
         (storage.reserve_bytes)",
        units::size(disk.free_bytes.unwrap_or(0)),
        disk.folder.display(),
        units::size(disk.reserve_bytes)
    )
}

fn memory_status(memory: &StoreMemory) -> pb::StoreMemory {
    pb::StoreMemory {
        server: memory.server.clone(),
        used_bytes: saturating_i64(memory.used_bytes),
        limit_bytes: memory.limit_bytes.map_or(0, saturating_i64),
        eviction_policy: memory.eviction_policy.clone().unwrap_or_default(),
    }
}

/// The sentences of servers that have little memory left, or throw messages away.
fn memory_problems(store: &str, memory: &[StoreMemory]) -> Vec<String> {
    let short = memory.iter().filter(|memory| memory.is_short()).map(|memory| {
        let StoreMemory { server, used_bytes, limit_bytes, .. } = memory;
        let (percent, limit) = (memory.used_percent().unwrap_or_default(), limit_bytes.unwrap_or_default());
        format!(
            "the server {server} of the store {store} has used {percent} % of its memory ({} of {}): new messages are refused \
             before it is full; drain or purge queues, or raise maxmemory",
            units::size(*used_bytes),
            units::size(limit)
        )
    });
    let evicting = memory.iter().filter_map(|memory| {
        let (server, policy) = (&memory.server, memory.eviction_policy.as_ref()?);
        Some(format!(
            "the server {server} of the store {store} throws messages away when its memory is short (maxmemory-policy \
             {policy}); set maxmemory-policy noeviction"
        ))
    });
    short.chain(evicting).collect()
}

fn queue_memory(memory: &QueueMemory) -> pb::QueueMemoryStatus {
    let part = |part: MemoryPart| pb::QueueMemoryPart { kind: part.kind.to_owned(), bytes: saturating_i64(part.bytes) };
    pb::QueueMemoryStatus {
        used_bytes: saturating_i64(memory.used.total()),
        limit_bytes: saturating_i64(memory.limit_bytes),
        parts: memory.used.parts().into_iter().map(part).collect(),
    }
}

/// The sentence of queues that have little memory left, or none.
fn short_queue_memory(memory: &QueueMemory) -> String {
    let (part, share) = memory.largest_part();
    let name = part.name;
    let then = if memory.is_full() { "new messages are refused" } else { "new messages are refused once all is used" };
    let limit = match memory.limited_by {
        MemoryLimit::Setting => "queues.memory_bytes".to_owned(),
        MemoryLimit::Process { taken_bytes, may_take_bytes } => {
            format!("the process takes {} of {}", units::size(taken_bytes), units::size(may_take_bytes))
        }
    };
    format!(
        "queues have used {} % of their memory ({} of {}, {limit}), {share} % of it for {name}: {then}; \
         docs/runbook/queue-memory.md says what to do",
        memory.used_percent(),
        units::size(memory.used.total()),
        units::size(memory.limit_bytes)
    )
}

fn stale(dataset: &DatasetGauges) -> String {
    format!(
        "counts of the dataset {} are {} old, but its accept_limit is {}: the store is unavailable, or a server holds \
         the limit back",
        dataset.dataset,
        units::about(dataset.staleness),
        units::about(dataset.accept_limit)
    )
}

/// The sentence of a server that does not report its queues, although it should.
fn unreported(standing: ReportStanding) -> Option<String> {
    let text = match standing {
        ReportStanding::Apart => {
            "the counters and the history of queues belong to another queue store, so the queues of this server are neither \
             counted nor recorded: docs/runbook/bridge-off.md says what to do"
        }
        ReportStanding::Waits => {
            "the counters and the history of queues were given to the queue store of this server; reports begin within a minute"
        }
        ReportStanding::Reports | ReportStanding::Unsure => return None,
    };
    Some(text.to_owned())
}

/// The sentence of a queue whose store came back with an earlier state.
fn lost((queue, lost): &(String, LostWork)) -> String {
    let (steps, at) = (lost.steps, lost.noticed());
    format!(
        "the store lost {steps} or more changes of the queue {queue} at {at}: docs/runbook/work-lost.md says what to do"
    )
}

fn down(cluster: &pb::MemcachedStatus) -> String {
    let pb::MemcachedStatus { cluster, servers, servers_down, .. } = cluster;
    format!("{servers_down} of {servers} servers of the memcached cluster {cluster} do not answer")
}

fn out_of_memory(cluster: &pb::MemcachedStatus) -> String {
    let pb::MemcachedStatus { cluster, servers, servers_full, .. } = cluster;
    format!(
        "{servers_full} of {servers} servers of the memcached cluster {cluster} have no memory for new values, so best-effort \
         adds to new counters fail; start them with more memory (-m)"
    )
}

fn fleet(gauges: FleetGauges) -> pb::FleetStatus {
    pb::FleetStatus {
        members: saturating_i64(gauges.members.unwrap_or(0)),
        lease_left: Some(write_duration(gauges.lease_left)),
        servers: gauges.servers,
    }
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
