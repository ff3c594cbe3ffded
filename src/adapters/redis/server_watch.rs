//! The watch over the servers of the queues. At the start and every minute it reads what they are and what their user
//! may not do, logs it with what to do, and gives the queues the durability that they have at the moment. It also has
//! them go on with the removal of dropped queues. Memory fills up faster, so it is read every few seconds.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::client::RedisClient;
use super::functions::RedisQueues;
use super::limits::{REDIS_CHECKED_EVERY, REDIS_MEMORY_READ_EVERY};
use super::rights::{LackingRights, RightsCheck};
use super::server_report::{AskedOfServers, ServerReport, is_nearly_full, store_memory};
use tallystone_coalesce::DetachedTasks;
use tallystone_ports::{Clock, StoreMemory};

/// The watch. It ends when it is closed or dropped.
pub struct ServerWatch {
    watched: Arc<Watched>,
    stop: CancellationToken,
    tasks: DetachedTasks,
}

struct Watched {
    client: Arc<RedisClient>,
    queues: Arc<RedisQueues>,
    asked: AskedOfServers,
    rights: RightsCheck,
    /// The reason for which a server refuses queues since the last look.
    refusal: Mutex<Option<String>>,
    /// The memory of each server, as it said last.
    memory: Mutex<Vec<StoreMemory>>,
}

impl ServerWatch {
    /// Begins to watch, after a first look.
    pub async fn start(
        client: Arc<RedisClient>,
        queues: Arc<RedisQueues>,
        asked: AskedOfServers,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let rights = RightsCheck::new(Arc::clone(&client), queues.library.function("may"), asked.replicas);
        let watched =
            Arc::new(Watched { client, queues, asked, rights, refusal: Mutex::default(), memory: Mutex::default() });
        watched.visit().await;
        watched.read_memory().await;
        let watch = Self { watched, stop: CancellationToken::new(), tasks: DetachedTasks::default() };
        let (watched, stop, own_clock) = (Arc::clone(&watch.watched), watch.stop.clone(), Arc::clone(&clock));
        watch.tasks.spawn(async move {
            while stop.run_until_cancelled(own_clock.sleep(REDIS_MEMORY_READ_EVERY)).await.is_some() {
                stop.run_until_cancelled(watched.read_memory()).await;
            }
        });
        let (watched, stop) = (Arc::clone(&watch.watched), watch.stop.clone());
        watch.tasks.spawn(async move {
            while stop.run_until_cancelled(clock.sleep(REDIS_CHECKED_EVERY)).await.is_some() {
                stop.run_until_cancelled(watched.visit()).await;
            }
        });
        watch
    }

    /// Looks at the servers now; none if one of them did not say what it is.
    pub async fn look(&self) -> Option<ServerReport> {
        self.watched.look().await
    }

    /// The reason for which a server refuses queues, as the last look found it.
    pub fn refusal(&self) -> Option<String> {
        self.watched.refusal.lock().clone()
    }

    /// The memory of each server, as it said last.
    pub fn memory(&self) -> Vec<StoreMemory> {
        self.watched.memory.lock().clone()
    }

    /// Ends the watch.
    pub async fn close(&self) {
        self.stop.cancel();
        self.tasks.join().await;
    }
}

impl Watched {
    /// The visit at the start and every minute. Removals go on whatever the servers say of themselves.
    async fn visit(&self) {
        self.look().await;
        self.queues.resume_removals().await;
    }

    /// Reads the memory of each server. One that does not answer keeps what it said last.
    async fn read_memory(&self) {
        let read = self.client.memory().await;
        let mut memory = self.memory.lock();
        let last = |address: &str| memory.iter().find(|last| last.server == address).cloned();
        let now: Vec<StoreMemory> = read
            .iter()
            .filter_map(|(address, read)| {
                read.as_ref().map_or_else(|_| last(address), |now| Some(store_memory(address, now)))
            })
            .collect();
        self.queues.take_memory(now.iter().any(is_nearly_full));
        *memory = now;
    }

    async fn look(&self) -> Option<ServerReport> {
        let readings = self.client.health().await;
        let report = ServerReport::of(&readings, self.asked);
        let Some(report) = report else {
            for failure in readings.iter().filter_map(|one| one.reading.as_ref().err()) {
                tracing::warn!(%failure, "a Redis server does not say what it is; what is known of it still counts");
            }
            return None;
        };
        for server in &report.servers {
            tracing::info!("{server}");
        }
        // What is missing comes first: of many lines at once the log shows the first.
        let report = ServerReport { warnings: [self.look_at_rights().await, report.warnings].concat(), ..report };
        for why in &report.warnings {
            tracing::warn!("{why}");
        }
        self.queues.take_report(&report);
        Some(report)
    }

    /// The rights that the user lacks at each server, in words. A server that does not say it is looked at again in a
    /// minute.
    async fn look_at_rights(&self) -> Vec<String> {
        let found: Vec<LackingRights> = self.rights.look().await.into_iter().flatten().collect();
        let at = |lacking: &LackingRights, why: String| format!("Redis at {}: {why}", lacking.address);
        let refusals = found.iter().filter_map(|lacking| Some(at(lacking, lacking.refusal()?)));
        let refusals: Vec<String> = refusals.collect();
        *self.refusal.lock() = refusals.first().cloned();
        let warnings = found.iter().filter_map(|lacking| Some(at(lacking, lacking.warning()?)));
        refusals.into_iter().chain(warnings).collect()
    }
}
