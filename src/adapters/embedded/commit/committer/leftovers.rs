//! Rows of queues that were deleted or dropped: they leave some at a time.

use std::collections::BTreeSet;

use super::{Committer, SyncMode};
use crate::disk::key::TIDIED;
use crate::error::ReadError;
use crate::inbox::command::StoreCommand;
use crate::inbox::queue_command::QueueStoreCommand;
use crate::limits::TIDY_MESSAGES_MAX;
use crate::queues::key::{self, PageTag};
use crate::queues::keyspaces::QueueKeyspaces;
use tallystone_adapters::codec::queues::{decode_message, encode_answer};
use tallystone_domain::queue::index::dedupe_index::DedupeRecord;
use tallystone_domain::queue::{Shard, ShardId};

impl Committer {
    /// Removes some remains of deleted and dropped queues; later calls remove the rest. A failure is final and
    /// recorded.
    pub(super) fn purge_dropped_queues(&mut self) {
        let (Some(spaces), Some((shard, sequences))) =
            (self.queues.spaces.clone(), self.queues.table.leftovers.last_mut())
        else {
            return;
        };
        let (shard, from) = (*shard, sequences.len().saturating_sub(TIDY_MESSAGES_MAX));
        let some: Vec<u64> = sequences.drain(from..).collect();
        if sequences.is_empty() {
            self.queues.table.leftovers.pop();
        }
        let answers = match self.answers_of(&spaces, shard, &some) {
            Ok(answers) => self.answer_keyspaces(&answers),
            Err(error) => return self.core.fail(format!("the rows of a deleted queue cannot be read: {error}")),
        };
        let mut batch = self.writer.batch(4 * TIDY_MESSAGES_MAX);
        for (keyspace, kept) in answers {
            batch.put(&keyspace, key::of_answer(shard, kept.id, kept.time), encode_answer(&kept));
        }
        for sequence in &some {
            let place = key::of_message(shard, *sequence);
            batch.remove(&spaces.heads, place);
            batch.remove(&spaces.bodies, place);
            batch.remove(&spaces.over, key::of_over(shard, *sequence));
        }
        let pages: BTreeSet<u64> = some.iter().map(|sequence| Shard::page_of(*sequence)).collect();
        for page in pages {
            match self.is_page_left(shard, page) {
                // The rest of the page is found by its heads.
                true => batch.put(&spaces.stubs, key::of_page(PageTag::Dirty, shard, page), &b""[..]),
                false => {
                    for tag in [PageTag::Stubs, PageTag::Dirty] {
                        batch.remove(&spaces.stubs, key::of_page(tag, shard, page));
                    }
                }
            }
        }
        // Removals disappear from disk in time, which must not make the newest row of a keyspace older.
        for keyspace in [&spaces.heads, &spaces.over, &spaces.stubs, &spaces.bodies] {
            batch.put(keyspace, TIDIED, &b""[..]);
        }
        if self.commit(batch, SyncMode::No) && !self.queues.table.leftovers.is_empty() {
            self.core.inbox.push(StoreCommand::Queue(QueueStoreCommand::PurgeDropped));
        }
    }

    /// Whether rows of a page remain for a later call. The highest sequences go first, so only the page of the highest
    /// one that is left can be cut in two. O(1).
    fn is_page_left(&self, shard: ShardId, page: u64) -> bool {
        let left = self.queues.table.leftovers.last().filter(|(of, _)| *of == shard);
        left.and_then(|(_, sequences)| sequences.last()).is_some_and(|highest| Shard::page_of(*highest) == page)
    }

    /// The answers to the tokens of the messages of a deleted queue, for their repeats. No caller repeats an enqueue
    /// into a queue that was dropped.
    fn answers_of(
        &self,
        spaces: &QueueKeyspaces,
        shard: ShardId,
        sequences: &[u64],
    ) -> Result<Vec<DedupeRecord>, ReadError> {
        let Some(kept) = self.queues.table.shards.get(&shard) else { return Ok(Vec::new()) };
        let mut answers = Vec::new();
        for sequence in sequences {
            let row = match spaces.heads.get(key::of_message(shard, *sequence))? {
                Some(row) => Some(row),
                None => spaces.over.get(key::of_over(shard, *sequence))?,
            };
            let Some(row) = row else { continue };
            let head = decode_message(shard.number, *sequence, &row)?;
            answers.extend(kept.shard.answer_of(&head));
        }
        Ok(answers)
    }
}
