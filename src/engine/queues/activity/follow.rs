//! Renews readings of shards that the bridge of this server does not read, while somebody asks for activities.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::domain::limits::{ACTIVITY_READS_AT_ONCE_MAX, ACTIVITY_READS_MAX, ACTIVITY_RENEWED_AFTER};
use crate::engine::driver::{BackgroundLoop, NextActivation};
use crate::engine::queues::Queues;
use crate::engine::queues::served_queue::ServedQueue;
use crate::ports::{StoreError, StoreErrorKind};

/// The pause between two rounds, and the longest wait for one.
const ROUND: Duration = Duration::from_secs(1);

/// The shards whose readings are older than an age.
pub fn due_shards(queues: &[Arc<ServedQueue>], elapsed: Duration, age: Duration) -> Vec<(Arc<ServedQueue>, u32)> {
    let of = |queue: &Arc<ServedQueue>| {
        let is_due = |number: &u32| queue.shard(*number).activity.is_older(elapsed, age);
        let due: Vec<_> = (0..queue.shards()).filter(is_due).map(|number| (Arc::clone(queue), number)).collect();
        due
    };
    queues.iter().flat_map(of).take(ACTIVITY_READS_MAX).collect()
}

/// Reads shards, until one cannot be read.
pub async fn read_shards(queues: &Queues, shards: Vec<(Arc<ServedQueue>, u32)>) -> Result<(), StoreError> {
    let reads = shards.into_iter().map(|(queue, number)| read_shard(queues, queue, number));
    stream::iter(reads).buffer_unordered(ACTIVITY_READS_AT_ONCE_MAX).try_collect::<()>().await
}

async fn read_shard(queues: &Queues, queue: Arc<ServedQueue>, number: u32) -> Result<(), StoreError> {
    let (stores, clock) = (&queues.context.stores, &queues.context.engine.clock);
    let shard = queue.shard(number);
    let began = clock.now();
    let reads = async {
        tokio::try_join!(stores.outbox.report(shard.id, shard.activity.position()), stores.reader.totals(shard.id))
    };
    match reads.await {
        Ok((report, totals)) => {
            shard.activity.record(&report, (clock.elapsed(), began));
            queues.context.update_view(&queue, number, totals.view);
            Ok(())
        }
        // The queue was dropped; the directory will say so.
        Err(StoreError { kind: StoreErrorKind::Conflict, .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The loop that renews readings.
pub struct ActivityFollower {
    queues: Queues,
}

impl ActivityFollower {
    pub fn new(queues: Queues) -> Self {
        Self { queues }
    }
}

#[async_trait]
impl BackgroundLoop for ActivityFollower {
    fn name(&self) -> &'static str {
        "queue activity"
    }

    async fn activate(&mut self) -> NextActivation {
        let context = &self.queues.context;
        let elapsed = context.engine.clock.elapsed();
        if !context.activity.is_followed(elapsed) || !self.queues.readings_age() {
            return NextActivation::After(ROUND);
        }
        let all: Vec<_> = context.all().into_iter().filter(|queue| queue.holds_messages()).collect();
        let due = due_shards(&all, elapsed, ACTIVITY_RENEWED_AFTER);
        tokio::select! {
            biased;
            read = read_shards(&self.queues, due) => if let Err(error) = read {
                // Rows say their age, and the readiness of the server names the store.
                tracing::debug!(%error, "cannot read the totals of shards; trying again");
            },
            () = context.engine.clock.sleep(ROUND) => {}
        }
        NextActivation::After(ROUND)
    }
}
