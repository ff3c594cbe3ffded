//! Reads the touch index again where signals were lost: after a restart, and after a Set overflowed.

use std::time::Duration;

use crate::dataset::datasets::DatasetState;
use crate::scopes::NamespaceScopes;
use tallystone_domain::Timestamp;
use tallystone_domain::limits::{PAGE_ROWS_MAX, STEP, TOUCH_SHARDS};
use tallystone_ports::{StoreError, Touch};

/// The fill level of Sets at which a replay waits for the rolls.
pub const SETS_BYTES_BUSY: usize = tallystone_domain::limits::ROLLUP_SETS_BYTES_MAX / 2;

/// The pause between two pages of touches, so that calls are served.
pub const PAGE_PAUSE: Duration = Duration::from_millis(1);

/// Offers every counter touched since the last lost signal of its shard to the rollup queues. Returns whether it is
/// complete.
pub async fn replay_lost(scopes: &NamespaceScopes, dataset: &DatasetState) -> Result<bool, StoreError> {
    let mut done = true;
    for shard in 0..TOUCH_SHARDS {
        if let Some(from) = dataset.pending.begin_replay(shard) {
            let replayed = replay_shard(scopes, dataset, shard, from).await;
            if !matches!(replayed, Ok(true)) {
                dataset.pending.record_lost_signal(shard, from);
                done = false;
            }
            dataset.pending.end_replay(shard);
            replayed?;
        }
    }
    Ok(done)
}

async fn replay_shard(
    scopes: &NamespaceScopes,
    dataset: &DatasetState,
    shard: u32,
    from: Timestamp,
) -> Result<bool, StoreError> {
    let first = dataset.slices.rows().first().map_or(Timestamp::MAX, |row| row.start);
    let from = from.max(first).floor_to(STEP);
    let mut beyond: Option<Touch> = None;
    loop {
        if scopes.rollup_queues.bytes() > SETS_BYTES_BUSY {
            return Ok(false);
        }
        let page = scopes
            .stores
            .touches
            .touched(dataset.id(), shard, from, Timestamp::MAX, beyond.as_ref(), PAGE_ROWS_MAX)
            .await?;
        for touch in &page {
            enqueue(scopes, touch).await?;
        }
        scopes.context.stats.touches_replayed.add(page.len() as u64);
        if page.len() < PAGE_ROWS_MAX {
            return Ok(true);
        }
        beyond = page.into_iter().next_back();
        // Replaying is background work: yield to calls between pages.
        scopes.context.clock.sleep(PAGE_PAUSE).await;
    }
}

async fn enqueue(scopes: &NamespaceScopes, touch: &Touch) -> Result<(), StoreError> {
    // Counters of deleted namespaces need no roll.
    if let Some(scope) = scopes.scope_by_id(touch.counter.namespace()).await? {
        // Counters rolled since the loss are skipped, so a Set that is too small for all of them serves them in turn.
        let row = scopes.stores.rollups.read(scope.dataset.id(), &touch.counter).await?;
        let rolled_to = row.checkpoint.map(|checkpoint| checkpoint.as_of);
        if row.last_write_time.is_some() && row.last_write_time <= rolled_to {
            return Ok(());
        }
        // If the store knows the newest acknowledged write, the roll does not wait for the end of its step; later
        // writes signal themselves.
        let end = (touch.step + STEP).just_before();
        let newest = row.last_write_time.map_or(end, |written| written.clamp(touch.step, end));
        scope.enqueue(&touch.counter, touch.step, newest);
    }
    Ok(())
}
