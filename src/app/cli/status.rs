//! `status`: an overview of a server, its stores, fleet, lags, queues and caches, and which queues need attention.

use clap::Args;

use crate::output::{CliResponse, TableRows, duration_of};
use crate::{ClientArgs, ClientContext, Exit, Failure, GlobalArgs};
use tallystone_app::units::{about, counted, size};
use tallystone_proto::admin::v1 as pb;
use tallystone_proto::queue::v1::{ListQueueActivityRequest, QueueActivity};

/// Show the state and problems of a server: stores, fleet, lags, queues and caches.
///
/// Shows one server; if --server names several, the first that answers.
#[derive(Debug, Args)]
#[command(after_help = "Exit codes:\n  0 no problems, 1 serving with problems, 5 not serving or no answer\n\n\
                  Example:\n  tallystone status")]
pub struct StatusArgs {
    #[command(flatten)]
    client: ClientArgs,
}

/// The columns for operators: a part of the server, an item in it, its state.
const COLUMNS: &[&str] = &["part", "name", "state"];
/// The queues that need attention and are shown.
const ATTENTION_ROWS: i32 = 10;

impl StatusArgs {
    pub async fn run(self, global: &GlobalArgs) -> Result<(), Failure> {
        let session = self.client.open(global)?;
        session.status().await
    }
}

impl ClientContext {
    async fn status(&self) -> Result<(), Failure> {
        let status = call!(ask self, status.get_status, &pb::GetStatusRequest {})?;
        let mut cells = rows(&status);
        // A server that does not serve is not asked what its queues do.
        if status.ready {
            cells.extend(self.attention_rows().await);
        }
        let rows = TableRows { columns: COLUMNS, cells };
        self.output.sentences(&CliResponse::one("tallystone.admin.v1.GetStatusResponse", &status), &rows)?;
        let exit = match (status.ready, status.problems.is_empty()) {
            (true, true) => return Ok(()),
            (true, false) => Exit::Failure,
            (false, _) => Exit::Unavailable,
        };
        Err(Failure::new(exit, status.problems.join("\n")))
    }
}

impl ClientContext {
    /// The queues that need attention, with each reason. Empty where nobody can say.
    async fn attention_rows(&self) -> Vec<Vec<String>> {
        let request = ListQueueActivityRequest { page_size: ATTENTION_ROWS, ..Default::default() };
        let listed = call!(ask self, queues.list_queue_activity, &request);
        let queues: Vec<QueueActivity> = listed.map(|listed| listed.queues).unwrap_or_default();
        let reasons = queues.iter().flat_map(|queue| queue.attention.iter().map(move |reason| (queue, reason)));
        reasons.map(|(queue, reason)| vec!["attention".to_owned(), queue.queue.clone(), reason.text.clone()]).collect()
    }
}

fn rows(status: &pb::GetStatusResponse) -> Vec<Vec<String>> {
    let row = |part: &str, name: &str, state: String| vec![part.to_owned(), name.to_owned(), state];
    let span = |duration: &Option<prost_types::Duration>| {
        duration.as_ref().map_or_else(String::new, |d| about(duration_of(d)))
    };
    let served = if status.ready { "ready" } else { "not ready" };
    let mut rows = vec![row("server", &status.version, format!("{served}, up {}", span(&status.up)))];
    rows.extend(status.stores.iter().map(|store| row("store", &store.store, store_state(store))));
    let memory = status.stores.iter().flat_map(|store| &store.memory);
    rows.extend(memory.map(|memory| row("memory", &memory.server, memory_state(memory))));
    let fleets = [("counters", &status.fleet), ("queues", &status.queue_fleet)];
    rows.extend(fleets.iter().filter_map(|(name, fleet)| Some(row("fleet", name, fleet_state((*fleet).as_ref()?)))));
    rows.extend(status.datasets.iter().map(|set| {
        let behind = match &set.watermark_lag {
            Some(lag) => format!("behind by {}", about(duration_of(lag))),
            None => "not known".to_owned(),
        };
        let held = counted(set.holds, "write held", "writes held");
        let lags = format!("{} stale, rollup {behind}, {held}", span(&set.staleness));
        row("dataset", &set.dataset, lags)
    }));
    let more = status.dataset_count - i64::try_from(status.datasets.len()).unwrap_or(0);
    if more > 0 {
        rows.push(row("dataset", "", format!("{more} more, less overdue")));
    }
    if let Some(queues) = &status.queues {
        let pb::QueuesStatus { count, pending, running, errored, waiting_dequeues, sessions, .. } = *queues;
        let (queue, sessions) = (counted(count, "queue", "queues"), counted(sessions, "session", "sessions"));
        let all = format!(
            "{queue}: {pending} pending, {running} running, {errored} errored; {}, {sessions}",
            waiting(waiting_dequeues)
        );
        rows.push(row("queues", "", all));
        rows.extend(queues.memory.as_ref().map(|memory| row("memory", "queues", queue_memory_state(memory))));
        let waits = |queue: &&pb::QueueBacklog| queue.pending + queue.running + queue.errored > 0;
        rows.extend(queues.oldest.iter().filter(waits).map(|queue| {
            let pb::QueueBacklog { pending, running, errored, waiting_dequeues, .. } = queue;
            let age = if *pending > 0 { format!(" (oldest {})", span(&queue.oldest_ready_age)) } else { String::new() };
            let waits = waiting(*waiting_dequeues);
            let state = format!("{pending} pending{age}, {running} running, {errored} errored; {waits}");
            row("queue", &queue.queue, state)
        }));
    }
    rows.extend(status.count_cache.as_ref().map(|cache| {
        let (hits, misses) = (counted(cache.hits, "hit", "hits"), counted(cache.misses, "miss", "misses"));
        row("cache", "counts", format!("{hits}, {misses}"))
    }));
    rows.extend(status.memcached.iter().map(|cluster| {
        let pb::MemcachedStatus { servers, servers_down, calls, calls_failed, servers_full, .. } = cluster;
        let full = if *servers_full > 0 { format!(", {servers_full} FULL") } else { String::new() };
        let state = format!(
            "{servers_down} of {} down{full}, {calls_failed} of {} failed",
            counted(*servers, "server", "servers"),
            counted(*calls, "call", "calls")
        );
        row("memcached", &cluster.cluster, state)
    }));
    rows
}

fn fleet_state(fleet: &pb::FleetStatus) -> String {
    let members =
        if fleet.members == 0 { "members unknown".to_owned() } else { counted(fleet.members, "member", "members") };
    let servers = if fleet.servers.is_empty() { String::new() } else { format!(" ({})", fleet.servers.join(", ")) };
    let left = fleet.lease_left.as_ref().map_or_else(String::new, |left| about(duration_of(left)));
    format!("{members}{servers}, own lease ends in {left}")
}

fn waiting(dequeues: i64) -> String {
    counted(dequeues, "dequeue waits", "dequeues wait")
}

fn store_state(store: &pb::StoreStatus) -> String {
    if !store.failure.is_empty() {
        return format!("failed: {}", store.failure);
    }
    if !store.refusal.is_empty() {
        return format!("does not serve: {}", store.refusal);
    }
    let silent = store.silent.as_ref().map(duration_of).unwrap_or_default();
    let answers = if silent.as_secs() > 1 { format!("silent for {}", about(silent)) } else { "answers".to_owned() };
    let space = match store.disk_bytes {
        0 => String::new(),
        disk => format!(", {} on disk, {} free", bytes(disk), bytes(store.free_bytes)),
    };
    format!("{answers}{space}{}", if store.full { ", FULL" } else { "" })
}

/// A size that a server told; none is below zero.
fn bytes(bytes: i64) -> String {
    size(u64::try_from(bytes).unwrap_or(0))
}

fn queue_memory_state(memory: &pb::QueueMemoryStatus) -> String {
    format!("{} of {} used", bytes(memory.used_bytes), bytes(memory.limit_bytes))
}

fn memory_state(memory: &pb::StoreMemory) -> String {
    let used = bytes(memory.used_bytes);
    let of_limit = match memory.limit_bytes {
        0 => format!("{used} used, no limit"),
        limit => format!("{used} of {} used", bytes(limit)),
    };
    match memory.eviction_policy.as_str() {
        "" => of_limit,
        policy => format!("{of_limit}, throws messages away by {policy}"),
    }
}
