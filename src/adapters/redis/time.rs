//! `QueueTime`: the time of a step that came now. Each shard has a clock of its own, which is never behind its last
//! step.

use async_trait::async_trait;

use super::functions::RedisQueues;
use super::keys::QUEUES;
use super::packed::PackedReader;
use super::replies::ReplyParts;
use super::requests::{RESET, plain_config};
use super::wire::{WireCommand, WireReply};
use tallystone_adapters::codec::CorruptValue;
use tallystone_domain::queue::clock::StepTime;
use tallystone_domain::queue::name::ShardId;
use tallystone_domain::time::Timestamp;
use tallystone_ports::{QueueTime, ShardStore, StoreError};

const CLOCK: &str = "read the clock of queues";

#[async_trait]
impl QueueTime for RedisQueues {
    async fn clock(&self) -> Result<StepTime, StoreError> {
        let command = WireCommand { name: "TIME", arguments: Vec::new() };
        let store = match self.ask(QUEUES.as_bytes(), command, CLOCK).await? {
            WireReply::List(parts) => time_of(&parts),
            WireReply::Nil | WireReply::Int(_) | WireReply::Bytes(_) => None,
        };
        let store = store.ok_or_else(|| CorruptValue::new("time", "no two numbers").into_store_error(CLOCK))?;
        let (now, wall) = self.caller_time();
        Ok(StepTime::with_wall_clock(store.min(now + self.options.clock_slack), wall))
    }

    async fn reset_clock(&self) -> Result<Option<Timestamp>, StoreError> {
        let mut newest = None;
        for queue in self.queues().await? {
            for number in 0..queue.shards {
                newest = newest.max(self.reset_shard(ShardId { queue: queue.id, number }).await?);
            }
        }
        Ok(newest)
    }
}

/// Seconds and microseconds, as texts.
fn time_of(parts: &[WireReply]) -> Option<Timestamp> {
    let number = |part: &WireReply| match part {
        WireReply::Bytes(text) => std::str::from_utf8(text).ok()?.parse::<i64>().ok(),
        WireReply::Int(number) => Some(*number),
        WireReply::Nil | WireReply::List(_) => None,
    };
    let [seconds, micros] = parts else { return None };
    Some(Timestamp::from_micros(number(seconds)?.saturating_mul(1_000_000).saturating_add(number(micros)?)))
}

impl RedisQueues {
    /// Judges the tokens of a shard by wall time again. The time from which it accepts them, if a reset was needed.
    async fn reset_shard(&self, shard: ShardId) -> Result<Option<Timestamp>, StoreError> {
        let (reply, ()) = self.call_current((shard, CLOCK), "cfg", |_| (plain_config(RESET).arguments, ())).await?;
        let (_, mut parts) = ReplyParts::of(reply, shard.number).map_err(|fault| fault.into_store_error(CLOCK))?;
        let bytes = parts.bytes().map_err(|fault| fault.into_store_error(CLOCK))?;
        let mut reader = PackedReader::new("reset of a clock", &bytes);
        let read = |reader: &mut PackedReader<'_>| -> Result<Option<Timestamp>, CorruptValue> {
            let (_rows, _messages, _done) = (reader.u16()?, reader.u16()?, reader.byte()?);
            let was_needed = reader.flag()?;
            Ok(Some(reader.time()?).filter(|_| was_needed))
        };
        read(&mut reader).map_err(|fault| fault.into_store_error(CLOCK))
    }
}
