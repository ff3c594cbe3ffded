//! The part of a full check that compares every message of a shard with its rows in the history.
//!
//! Messages change during the check. One that seems to lack a version is looked at again once the history has passed
//! the shard's position of then. Only what is still missing is a finding.

use futures_util::{StreamExt, TryStreamExt, stream};

use super::check::CheckRun;
use crate::queues::{CheckedQueue, QueueError};
use tallystone_domain::history::audit::versions::{CheckedMessage, KnownHoles, SeenVersions};
use tallystone_domain::limits::{CHECK_GAPS_MAX, CHECK_PAGE_MAX, CHECK_SUSPECTS_MAX, CHECK_TRACES_AT_ONCE_MAX};
use tallystone_domain::queue::{MessageState, QueueId, ShardId};
use tallystone_ports::{QueueShards, StoreError};

/// The undone rows of a message that a trace may have beside its versions, in pages.
const UNDONE_PAGES: u64 = 8;

impl CheckRun {
    pub(super) async fn check_versions(&self, queue: &CheckedQueue, shard: ShardId) -> Result<(), QueueError> {
        let holes = self.holes(queue, shard).await?;
        let mut suspects = Vec::new();
        for state in MessageState::ALL {
            let mut after = 0;
            loop {
                if self.running.is_cancelled() {
                    return Ok(());
                }
                let page = self.context.reader.list(shard, state, after, CHECK_PAGE_MAX).await?.messages;
                let Some(last) = page.last() else { break };
                after = last.head.key.sequence;
                self.running.advance(page.len() as u64);
                let messages = page.into_iter().map(|message| CheckedMessage::from(message.head));
                suspects.extend(self.incomplete(shard, messages.collect(), &holes).await?);
                if suspects.len() >= CHECK_SUSPECTS_MAX {
                    self.look_again(queue, shard, std::mem::take(&mut suspects)).await?;
                }
            }
        }
        self.look_again(queue, shard, suspects).await
    }

    /// Reads which parts are known to be missing from the history of a shard.
    async fn holes(&self, queue: &CheckedQueue, shard: ShardId) -> Result<KnownHoles, StoreError> {
        let history = &self.context.sources.history;
        let mut gaps = history.gaps(QueueShards { queue: queue.id, shards: queue.shards }, CHECK_GAPS_MAX).await?;
        gaps.retain(|gap| gap.shard == shard.number);
        Ok(KnownHoles { gaps, starts_at: history.starts_at().await? })
    }

    /// Returns the given messages that lack a version.
    async fn incomplete(
        &self,
        shard: ShardId,
        messages: Vec<CheckedMessage>,
        holes: &KnownHoles,
    ) -> Result<Vec<CheckedMessage>, StoreError> {
        let looks = stream::iter(messages).map(|message| async move {
            let seen = self.seen(shard.queue, &message).await?;
            Ok::<_, StoreError>((!seen.check(shard, &message, holes).is_empty()).then_some(message))
        });
        let looks = looks.buffered(CHECK_TRACES_AT_ONCE_MAX);
        looks.try_filter_map(|suspect| std::future::ready(Ok(suspect))).try_collect().await
    }

    /// Looks again at messages that lacked a version, after the relay of all that they had.
    async fn look_again(
        &self,
        queue: &CheckedQueue,
        shard: ShardId,
        suspects: Vec<CheckedMessage>,
    ) -> Result<(), QueueError> {
        if suspects.is_empty() {
            return Ok(());
        }
        let report = self.context.sources.outbox.report(shard, Some(u64::MAX)).await?;
        if !self.check_relay(queue, shard, &report).await? {
            return Ok(());
        }
        let holes = self.holes(queue, shard).await?;
        for message in suspects {
            let seen = self.seen(shard.queue, &message).await?;
            self.found_all(queue, seen.check(shard, &message, &holes));
        }
        Ok(())
    }

    /// The versions of a message that the history has.
    async fn seen(&self, queue: QueueId, message: &CheckedMessage) -> Result<SeenVersions, StoreError> {
        let mut seen = SeenVersions::default();
        let mut after = None;
        for _ in 0..message.version / CHECK_PAGE_MAX as u64 + UNDONE_PAGES {
            let rows = self.context.sources.history.trace(queue, message.key, after, CHECK_PAGE_MAX).await?;
            rows.iter().for_each(|row| seen.add(row));
            match rows.last() {
                Some(last) if rows.len() >= CHECK_PAGE_MAX => after = Some(last.position()),
                Some(_) | None => break,
            }
        }
        Ok(seen)
    }
}
