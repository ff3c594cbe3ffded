//! Renews readings of shards that the bridge of this server does not read, while a caller asks for activities.
//!
//! Shards of queues that were just shown are looked at every few seconds. All others take turns, the one that was not
//! looked at for longest first, at a cost that does not grow with their number. A look at a shard that has not changed
//! is cheap.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt, stream};

use crate::driver::{BackgroundLoop, NextActivation};
use crate::queues::inspect::InspectService;
use crate::queues::state::served_queue::ServedQueue;
use crate::queues::state::shard_activity::ShardActivity;
use tallystone_domain::limits::{
    ACTIVITY_READS_AT_ONCE_MAX, ACTIVITY_RENEWED_AFTER, ACTIVITY_SHOWN_READS_MAX, ACTIVITY_TURN_READS_MAX,
};
use tallystone_ports::{ShardGlance, StoreError, StoreErrorKind};

/// The pause between two rounds, and the longest wait for one.
const ROUND: Duration = Duration::from_secs(1);
/// The cost of a look at a shard, as its store counts calls; then the further cost if the shard has changed, and if
/// messages are ready too.
const LOOK_COST: u64 = 1;
const CHANGED_COST: u64 = 1;
const READY_COST: u64 = 8;

/// A shard whose reading is to be renewed.
type DueShard = (Arc<ServedQueue>, u32);

/// The shards whose readings are older than an age, those first that were not looked at for longest.
pub struct DueShards {
    /// The shards of queues that were shown a short time ago.
    shown: Vec<DueShard>,
    others: Vec<DueShard>,
}

impl DueShards {
    /// Finds the due shards of queues that hold messages. `since` says from when the age of a shard counts: a caller
    /// that asks for one queue wants a reading, and lists wait for looks that were not answered yet. O(shards).
    pub fn of(
        queues: &[Arc<ServedQueue>],
        elapsed: Duration,
        age: Duration,
        since: fn(&ShardActivity) -> Option<Duration>,
    ) -> Self {
        let (mut shown, mut others) = (Vec::new(), Vec::new());
        for (place, queue) in queues.iter().enumerate().filter(|(_, queue)| queue.holds_messages()) {
            let due = if queue.is_shown(elapsed) { &mut shown } else { &mut others };
            for number in 0..queue.shards() {
                let activity = &queue.shard(number).activity;
                if since(activity).is_none_or(|at| elapsed.saturating_sub(at) >= age) {
                    due.push((activity.looked_at(), place, number));
                }
            }
        }
        let oldest = |mut due: Vec<(Option<Duration>, usize, u32)>, most: usize| {
            if due.len() > most {
                due.select_nth_unstable(most);
                due.truncate(most);
            }
            due.sort_unstable();
            due.into_iter().map(|(_, place, number)| (Arc::clone(&queues[place]), number)).collect()
        };
        Self { shown: oldest(shown, ACTIVITY_SHOWN_READS_MAX), others: oldest(others, ACTIVITY_TURN_READS_MAX) }
    }

    pub fn is_empty(&self) -> bool {
        self.shown.is_empty() && self.others.is_empty()
    }
}

/// Reads shards within a time, the others as far as their cost allows. What cannot be read stays old.
pub async fn renew(inspect: &InspectService, due: DueShards, within: Duration) {
    tokio::select! {
        biased;
        read = read_due(inspect, due) => if let Err(error) = read {
            // Rows say their age, and the readiness of the server names the store.
            tracing::debug!(%error, "cannot read the totals of shards; trying again");
        },
        () = inspect.context.sleep(within) => {}
    }
}

async fn read_due(inspect: &InspectService, due: DueShards) -> Result<(), StoreError> {
    read_shards(inspect, due.shown).await?;
    let (board, context) = (&inspect.board, &inspect.context);
    let mut others = due.others.into_iter().peekable();
    while others.peek().is_some() && board.has_credit(context.elapsed()) {
        let some: Vec<DueShard> = others.by_ref().take(ACTIVITY_READS_AT_ONCE_MAX).collect();
        // The looks are charged before: a read that is not waited for costs the store as much.
        let looks = LOOK_COST * some.len() as u64;
        board.charge(looks, context.elapsed());
        let cost = read_shards(inspect, some).await?;
        board.charge(cost.saturating_sub(looks), context.elapsed());
    }
    Ok(())
}

/// Reads shards. Returns what that cost; fails if none of them could be read.
async fn read_shards(inspect: &InspectService, shards: Vec<DueShard>) -> Result<u64, StoreError> {
    let reads = shards.into_iter().map(|(queue, number)| read_shard(inspect, queue, number));
    let mut reads = stream::iter(reads).buffer_unordered(ACTIVITY_READS_AT_ONCE_MAX);
    let (mut cost, mut failure) = (0, None);
    while let Some(read) = reads.next().await {
        match read {
            Ok(of_one) => cost += of_one,
            Err(error) => failure = Some(error),
        }
    }
    failure.filter(|_| cost == 0).map_or(Ok(cost), Err)
}

/// Reads a shard, if it has changed. Returns what that cost.
async fn read_shard(inspect: &InspectService, queue: Arc<ServedQueue>, number: u32) -> Result<u64, StoreError> {
    let context = &inspect.context;
    let shard = queue.shard(number);
    let began = context.now();
    let known = shard.activity.begin_read(context.elapsed());
    let read = match context.stores.outbox.glance(shard.id, known).await {
        // The queue was dropped; the directory will say so.
        Err(StoreError { kind: StoreErrorKind::Conflict, .. }) => return Ok(LOOK_COST),
        Err(StoreError { kind: StoreErrorKind::Lost, .. }) => {
            shard.activity.note_lost();
            return Ok(LOOK_COST + CHANGED_COST);
        }
        read => read?,
    };
    let times = (context.elapsed(), began);
    let Some(glance) = read else {
        shard.activity.confirm(times);
        return Ok(LOOK_COST);
    };
    shard.activity.record_glance(&glance, times);
    let ShardGlance { view, .. } = glance;
    let Some(view) = view else { return Ok(LOOK_COST + CHANGED_COST) };
    context.update_view(&queue, number, view);
    Ok(LOOK_COST + CHANGED_COST + READY_COST)
}

/// The loop that renews readings.
pub struct ActivityFollower {
    inspect: Arc<InspectService>,
}

impl ActivityFollower {
    pub fn new(inspect: Arc<InspectService>) -> Self {
        Self { inspect }
    }
}

#[async_trait]
impl BackgroundLoop for ActivityFollower {
    fn name(&self) -> &'static str {
        "queue activity"
    }

    async fn activate(&mut self) -> NextActivation {
        let context = &self.inspect.context;
        let elapsed = context.elapsed();
        if self.inspect.board.is_followed(elapsed) && self.inspect.readings_age() {
            let due = DueShards::of(&context.all(), elapsed, ACTIVITY_RENEWED_AFTER, ShardActivity::looked_at);
            renew(&self.inspect, due, ROUND).await;
        }
        NextActivation::After(ROUND)
    }
}
