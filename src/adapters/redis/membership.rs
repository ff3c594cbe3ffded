//! `Membership`: the newest heartbeat of each member, and the members that were removed for good.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

use super::functions::RedisQueues;
use super::keys::MEMBERS;
use super::packed::PackedReader;
use super::store_calls::texts_of;
use super::stored_message::read_call;
use super::stored_row::pack_shard;
use tallystone_adapters::codec::{CorruptValue, decode_beat, encode_beat};
use tallystone_domain::fleet::{Heartbeat, MemberId, rank_of};
use tallystone_domain::queue::name::ShardId;
use tallystone_ports::{Membership, StoreError};

/// The members of a deployment.
pub struct RedisMembership {
    store: Arc<RedisQueues>,
    seen: Arc<SeenMembers>,
}

impl RedisMembership {
    /// The members beside the shards. What is read of them is noted.
    pub fn new(store: Arc<RedisQueues>, seen: Arc<SeenMembers>) -> Self {
        Self { store, seen }
    }
}

/// The members that this process saw last, and which of them it is.
#[derive(Default)]
pub struct SeenMembers {
    own: Mutex<Option<MemberId>>,
    all: Mutex<Vec<MemberId>>,
}

impl SeenMembers {
    /// The number by which the members share a shard out.
    pub fn place_of(shard: ShardId) -> u64 {
        xxh3_64(&pack_shard(shard))
    }

    /// How many members come before this process for a shard; 0 while it is no member. O(members).
    pub fn rank_for(&self, shard: ShardId) -> u32 {
        let Some(own) = *self.own.lock() else { return 0 };
        let all = self.all.lock();
        // The cast truncates on purpose.
        let rank = rank_of(Self::place_of(shard) as u32, own, all.iter().copied()).unwrap_or(all.len());
        u32::try_from(rank).unwrap_or(u32::MAX)
    }
}

fn field_of(member: MemberId) -> Vec<u8> {
    format!("{:032x}", u128::from_be_bytes(member.0)).into_bytes()
}

fn read_member(field: &[u8], value: &[u8]) -> Result<(MemberId, Heartbeat), CorruptValue> {
    let mut reader = PackedReader::new("heartbeat", value);
    let id = std::str::from_utf8(field).ok().and_then(|digits| u128::from_str_radix(digits, 16).ok());
    let id = id.ok_or_else(|| reader.corrupt("a member that is no number"))?;
    read_call(&mut reader)?; // the number of the heartbeat, which it has itself
    Ok((MemberId(id.to_be_bytes()), decode_beat(reader.rest())?))
}

#[async_trait]
impl Membership for RedisMembership {
    async fn beat(&self, member: MemberId, beat: &Heartbeat) -> Result<(), StoreError> {
        *self.seen.own.lock() = Some(member);
        let number = format!("{:016x}", beat.number).into_bytes();
        self.store.call_store(("mem", "beat"), vec![field_of(member), number, encode_beat(beat)]).await.map(drop)
    }

    async fn members(&self) -> Result<Vec<(MemberId, Heartbeat)>, StoreError> {
        const READ: &str = "read members";
        let found = texts_of(self.store.on_store(("HGETALL", READ), vec![MEMBERS.as_bytes().to_vec()]).await?, READ)?;
        let members: Result<Vec<_>, _> = found.chunks_exact(2).map(|pair| read_member(&pair[0], &pair[1])).collect();
        let mut members = members.map_err(|damaged| damaged.into_store_error(READ))?;
        members.sort_unstable_by_key(|(id, _)| *id);
        *self.seen.all.lock() = members.iter().map(|(id, _)| *id).collect();
        Ok(members)
    }

    async fn remove(&self, member: MemberId) -> Result<(), StoreError> {
        self.store.call_store(("mem", "remove member"), vec![field_of(member)]).await.map(drop)
    }
}
