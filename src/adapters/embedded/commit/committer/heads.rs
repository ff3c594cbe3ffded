//! Heads of messages that are over: they leave memory once they are durable, and are read when a command needs them.

use fjall::Keyspace;

use super::Committer;
use crate::disk::meta;
use crate::error::ReadError;
use crate::queues::key;
use tallystone_adapters::codec::CorruptValue;
use tallystone_adapters::codec::queues::decode_message;
use tallystone_domain::queue::index::dedupe_index::DedupeRecord;
use tallystone_domain::queue::messages::id_hash::IdKey;
use tallystone_domain::queue::messages::lease_seal::LeaseKey;
use tallystone_domain::queue::shard::messages_over::ForeignHead;
use tallystone_domain::queue::{MessageHead, ShardId};
use tallystone_ports::StoreError;

impl Committer {
    /// Gives a shard back the heads of these stubs. They are in the last commit: a head leaves memory only after it.
    pub(super) fn give_heads(&mut self, shard: ShardId, needed: &[u64], op: &'static str) -> Result<(), StoreError> {
        if needed.is_empty() {
            return Ok(());
        }
        let heads = self.read_over(shard, needed).map_err(|error| error.into_store_error(op))?;
        let Some(kept) = self.queues.table.shards.get_mut(&shard) else { return Ok(()) };
        self.queues.to_shed.insert(shard); // also after a failure half-way
        for head in heads {
            let foreign =
                |why: ForeignHead| ReadError::from(CorruptValue::new("message", why.to_string())).into_store_error(op);
            kept.shard.restore_head(head).map_err(foreign)?;
        }
        Ok(())
    }

    fn read_over(&self, shard: ShardId, sequences: &[u64]) -> Result<Vec<MessageHead>, ReadError> {
        let Some(spaces) = &self.queues.spaces else { return Ok(Vec::new()) };
        let read = |sequence: &u64| {
            let row = spaces.over.get(key::of_over(shard, *sequence))?;
            let missing =
                || CorruptValue::new("message", format!("{sequence} of queue {} is over and has no head", shard.queue));
            Ok(decode_message(shard.number, *sequence, &row.ok_or_else(missing)?)?)
        };
        sequences.iter().map(read).collect()
    }

    /// Takes the heads of messages that are over out of memory, once they are durable.
    pub(super) fn shed_heads(&mut self, changed: impl Iterator<Item = ShardId>) {
        let mut shards = std::mem::take(&mut self.queues.to_shed);
        shards.extend(changed);
        for shard in shards {
            if let Some(kept) = self.queues.table.shards.get_mut(&shard) {
                kept.shard.shed_heads();
                self.queues.table.count_memory(shard);
            }
        }
    }

    /// The keyspaces of answers that outlive their messages. They were made with the enqueues, unless the store was
    /// restored from a backup since. A failure is final, like that of a commit: the shard in memory has gone on.
    pub(super) fn answer_keyspaces(&mut self, answers: &[DedupeRecord]) -> Vec<(Keyspace, DedupeRecord)> {
        let mut found = Vec::with_capacity(answers.len());
        for kept in answers {
            match self.queues.table.answers.make(self.writer.library(), kept.time) {
                Ok((keyspace, _)) => found.push((keyspace, *kept)),
                Err(error) => self.core.fail(format!("the answers to repeated enqueues cannot be kept: {error}")),
            }
        }
        found
    }

    /// The key under which ids are hashed, and whether it is new: then it has to be stored with the first queue. It
    /// comes from the secret that seals lease tokens, which a server makes at its first start.
    pub(super) fn id_key(&self) -> Result<(IdKey, bool), ReadError> {
        if let Some(key) = self.queues.table.id_key {
            return Ok((key, false));
        }
        let secret = self.stored_lease_key()?;
        Ok((secret.map(|secret| secret.id_key()).unwrap_or_default(), true))
    }

    /// The stored key that seals lease tokens. It is a row of `meta`, which is there from the start.
    pub(super) fn stored_lease_key(&self) -> Result<Option<LeaseKey>, ReadError> {
        let Some(row) = self.writer.library().meta.get(meta::LEASE_KEY)? else { return Ok(None) };
        let known = row.as_ref().try_into().map(LeaseKey);
        Ok(Some(known.map_err(|_| CorruptValue::new("lease key", "a value of another length"))?))
    }
}
