//! The settings of a shard, as Redis has them.

use super::functions::{RedisQueues, failure_of, no_such_shard};
use super::keys::{named_keys, prefix};
use super::losses::lost;
use super::shard_settings::VersionedSettings;
use super::stored_shard::read_header;
use super::wire::{WireCommand, WireReply};
use tallystone_adapters::codec::CorruptValue;
use tallystone_adapters::codec::queues::settings::decode_settings;
use tallystone_domain::queue::name::ShardId;
use tallystone_ports::StoreError;

impl RedisQueues {
    /// Reads the settings of a shard.
    pub(super) async fn read_settings(
        &self,
        shard: ShardId,
        op: &'static str,
    ) -> Result<VersionedSettings, StoreError> {
        let [header, _] = named_keys(shard);
        let config = format!("{}cf", prefix(shard)).into_bytes();
        let get = WireCommand { name: "GET", arguments: vec![header.clone()] };
        let fields = vec![config, b"settings".to_vec(), b"key_set".to_vec()];
        let answers = self.wire.send(&header, vec![get, WireCommand { name: "HMGET", arguments: fields }]).await;
        let mut answers = answers.into_iter().map(|answer| answer.map_err(|failure| failure_of(failure, op)));
        let corrupt = |why: &str| CorruptValue::new("settings of a shard", why).into_store_error(op);
        let (Some(header), Some(fields)) = (answers.next(), answers.next()) else { return Err(corrupt("no answer")) };
        let header = header?;
        let was_absent = header == WireReply::Nil;
        let header = match header {
            WireReply::Bytes(bytes) => read_header(&bytes).map_err(|fault| fault.into_store_error(op))?,
            WireReply::Nil => None,
            WireReply::Int(_) | WireReply::List(_) => return Err(corrupt("the header is no text")),
        };
        let Some(header) = header else {
            let is_lost = was_absent && self.is_lost(shard, op).await?;
            return Err(if is_lost { lost(op) } else { no_such_shard(op) });
        };
        let WireReply::List(fields) = fields? else { return Err(corrupt("no list of fields")) };
        let [WireReply::Bytes(settings), WireReply::Bytes(key_set)] = &fields[..] else {
            return Err(corrupt("a field is missing"));
        };
        let key_set = std::str::from_utf8(key_set).ok().and_then(|number| number.parse().ok());
        let key_set = key_set.ok_or_else(|| corrupt("the number of the counted keys"))?;
        let (settings, version) = decode_settings(settings).map_err(|fault| fault.into_store_error(op))?;
        Ok(VersionedSettings { version, epoch: header.epoch, settings, key_set })
    }
}
