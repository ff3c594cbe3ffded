//! Looks for what the store has lost.
//!
//! A call that meets a loss is refused. The health of the server does not wait for calls. Every second it reads the
//! revision of the catalog, and whether one shard of each primary is there, with all shards that are known to be lost.
//! Data that come back are lost no more.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;

use super::catalog::load_entries;
use super::functions::RedisQueues;
use super::keys::{REVISION, named_keys};
use super::limits::{REDIS_LOST_SHARDS_MAX, REDIS_SHARDS_SAMPLED_MAX};
use super::store_calls::text_of;
use super::wire::{WireCommand, WireReply};
use tallystone_adapters::codec::CorruptValue;
use tallystone_domain::queue::name::{QueueId, ShardId};
use tallystone_ports::{CATALOG_LOST, StoreError, StoreErrorKind};

const LOOK: &str = "look for what is lost";

impl RedisQueues {
    /// Whether a shard that is not there was there once: this process has seen it, or its queue is registered.
    pub(super) async fn is_lost(&self, shard: ShardId, op: &'static str) -> Result<bool, StoreError> {
        let is_lost = self.knows(shard) || self.is_registered(shard, op).await?;
        if is_lost {
            self.losses.note(shard);
        }
        Ok(is_lost)
    }

    async fn is_registered(&self, shard: ShardId, op: &'static str) -> Result<bool, StoreError> {
        let known = self.registered(shard.queue, op).await?;
        Ok(known.is_some_and(|known| known.is_present() && shard.number < known.shards))
    }

    /// The revision of the catalog; 0 while nothing was ever committed. A catalog that was there and is gone is lost.
    pub(super) async fn catalog_revision(&self, op: &'static str) -> Result<i64, StoreError> {
        let read = self.on_store(("GET", op), vec![REVISION.as_bytes().to_vec()]).await?;
        let Some(text) = text_of(read, op)? else {
            self.losses.note_look(self.losses.had_catalog());
            return match self.losses.had_catalog() {
                true => Err(StoreError::not_applied(StoreErrorKind::Lost, op).with_source(CATALOG_LOST)),
                false => Ok(0),
            };
        };
        let number = std::str::from_utf8(&text).ok().and_then(|text| text.parse::<i64>().ok());
        let number = number.ok_or_else(|| CorruptValue::new("revision", "it is no number").into_store_error(op))?;
        self.losses.note_look(false);
        if number > 0 {
            self.losses.note_catalog();
        }
        Ok(number)
    }

    /// The losses of the store, in a sentence that says what to do; none if nothing is missing.
    pub(super) async fn loss(&self) -> Result<Option<String>, StoreError> {
        match self.catalog_revision(LOOK).await {
            Ok(_) => {}
            Err(error) if error.kind == StoreErrorKind::Lost => return Ok(Some(CATALOG_LOST.to_owned())),
            Err(error) => return Err(error),
        }
        let mut shards: BTreeSet<ShardId> = self.losses.shards.lock().keys().copied().collect();
        shards.extend(self.sampled_shards());
        join_all(shards.into_iter().map(|shard| self.look_for(shard))).await;
        self.name_lost_queues().await;
        Ok(self.shards_lost())
    }

    /// One shard of each primary, of those that this process has seen.
    fn sampled_shards(&self) -> Vec<ShardId> {
        let mut sampled = BTreeMap::new();
        for shard in self.known_shards(REDIS_SHARDS_SAMPLED_MAX) {
            sampled.entry(self.wire.address(&named_keys(shard)[0])).or_insert(shard);
        }
        sampled.into_values().collect()
    }

    /// Notes whether a shard is lost. One whose server does not say so stays as it was.
    async fn look_for(&self, shard: ShardId) {
        let [header, _] = named_keys(shard);
        let exists = WireCommand { name: "EXISTS", arguments: vec![header.clone()] };
        let is_lost = match self.ask(&header, exists, LOOK).await {
            Ok(WireReply::Int(0)) => self.is_registered(shard, LOOK).await,
            Ok(_) => Ok(false),
            Err(error) => Err(error),
        };
        match is_lost {
            Ok(true) => self.losses.note(shard),
            Ok(false) => drop(self.losses.shards.lock().remove(&shard)),
            Err(error) => tracing::debug!(?shard, %error, "it is not known whether a shard is there"),
        }
    }

    /// Reads the names of queues with lost shards, once for each.
    async fn name_lost_queues(&self) {
        if self.losses.shards.lock().values().all(Option::is_some) {
            return;
        }
        let Ok(entries) = load_entries(self).await else { return }; // the next look reads them again
        let names: BTreeMap<QueueId, &str> = entries.iter().map(|entry| (entry.id, entry.spec.name.as_str())).collect();
        for (shard, name) in self.losses.shards.lock().iter_mut().filter(|(_, name)| name.is_none()) {
            *name = Some(names.get(&shard.queue).map_or_else(|| shard.queue.to_string(), |name| (*name).to_owned()));
        }
    }

    fn shards_lost(&self) -> Option<String> {
        let shards = self.losses.shards.lock();
        let (shard, name) = shards.first_key_value()?;
        let others = match shards.len() {
            1 => String::new(),
            REDIS_LOST_SHARDS_MAX.. => " and many more".to_owned(),
            all => format!(" and {} more", all - 1),
        };
        let (number, name) = (shard.number, name.as_deref().unwrap_or_default());
        Some(format!(
            "STORE_LOST: the store has lost shard {number} of the queue {name}{others}; stop it and restore a backup, or delete \
             the queue and create it again"
        ))
    }
}
