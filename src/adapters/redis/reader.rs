//! `ShardReader`: reads of shards, each at one moment of its shard, or in pages where there may be many messages.

use async_trait::async_trait;
use bytes::Bytes;

use super::explain;
use super::functions::RedisQueues;
use super::keys::named_keys;
use super::limits::REDIS_READ_MESSAGES_MAX;
use super::packed::{PackedBytes, PackedReader};
use super::replies::{ReadStatus, ReplyParts, list_request, read_key};
use super::report::REPORT;
use super::requests::message_ref;
use super::shard_settings::{VersionedSettings, read_shapes};
use super::stored_message::pack_pairs;
use super::stored_shard::{StoredShardHeader, read_header, read_session_id, read_session_record};
use super::wire::{WireCommand, WireReply};
use tallystone_adapters::codec::CorruptValue;
use tallystone_domain::limits::{FILTER_WALK_MAX, SESSIONS_MAX};
use tallystone_domain::queue::filter::Filter;
use tallystone_domain::queue::messages::message::{MessageRef, SessionId};
use tallystone_domain::queue::name::ShardId;
use tallystone_domain::queue::session_records::SessionRecord;
use tallystone_domain::queue::shard::UndeclaredFilter;
use tallystone_domain::queue::shard::explain::{Cause, DequeuePreview};
use tallystone_domain::queue::{Command, MessageState};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{
    FilteredDepth, MessagesAt, ShardCommand, ShardReader, ShardStore as _, ShardTotals, StoreError, StoredMessage,
};

const READ: &str = "read queue";

fn unreadable(fault: CorruptValue) -> StoreError {
    fault.into_store_error(READ)
}

impl RedisQueues {
    /// Reads a shard: the status, and what else the function says.
    pub(super) async fn see(
        &self,
        (shard, op): (ShardId, &'static str),
        what: &str,
        arguments: Vec<Vec<u8>>,
    ) -> Result<(ReadStatus, ReplyParts), StoreError> {
        let make = |_: &VersionedSettings| {
            let mut all = vec![what.as_bytes().to_vec()];
            all.extend(arguments.iter().cloned());
            (all, ())
        };
        let called = self.call_current((shard, op), "see", make).await;
        // Other operations may have changed something before they read.
        let is_read = op == READ || op == REPORT;
        let (reply, ()) = called.map_err(|error| if is_read { error.of_read() } else { error })?;
        ReplyParts::of(reply, shard.number).map_err(|fault| fault.into_store_error(op))
    }

    /// Reads the header of a shard. If the store came back with less than was seen, the shard first makes a step, which
    /// it begins above all earlier ones. A caller that knows a lost state then takes the present one for newer.
    pub(super) async fn header(
        &self,
        shard: ShardId,
        op: &'static str,
    ) -> Result<(ReadStatus, StoredShardHeader), StoreError> {
        let seen = self.newest_step(shard);
        let read = self.read_header(shard, op).await?;
        if read.0.view.step >= seen {
            return Ok(read);
        }
        let sweep = ShardCommand::of(Command::Sweep { max: 1 });
        if let Some(Err(error)) = self.apply(shard, vec![sweep]).await.pop() {
            tracing::debug!(%error, "a shard that came back with an earlier state made no step yet");
        }
        self.read_header(shard, op).await
    }

    async fn read_header(
        &self,
        shard: ShardId,
        op: &'static str,
    ) -> Result<(ReadStatus, StoredShardHeader), StoreError> {
        let (status, mut parts) = self.see((shard, op), "totals", Vec::new()).await?;
        let header = parts.bytes().and_then(|bytes| read_header(&bytes)).map_err(unreadable)?;
        let header = header.ok_or_else(|| unreadable(CorruptValue::new("header of a shard", "it is a tombstone")))?;
        Ok((status, header))
    }

    /// The header of a shard as it is stored; none for a shard that is not there. One command, O(1).
    pub(super) async fn stored_header(
        &self,
        shard: ShardId,
        op: &'static str,
    ) -> Result<Option<StoredShardHeader>, StoreError> {
        let [key, _] = named_keys(shard);
        let command = WireCommand { name: "GET", arguments: vec![key.clone()] };
        match self.ask(&key, command, op).await? {
            WireReply::Bytes(bytes) => read_header(&bytes).map_err(|fault| fault.into_store_error(op)),
            WireReply::Nil | WireReply::Int(_) | WireReply::List(_) => Ok(None),
        }
    }

    /// Whether the listeners were told the last step of a shard.
    pub(super) async fn is_as_told(&self, shard: ShardId, op: &'static str) -> Result<bool, StoreError> {
        let header = self.stored_header(shard, op).await?;
        Ok(header.is_some_and(|header| self.told_step(shard) == Some(header.step)))
    }

    /// Reads up to `limit` pending messages by rank, in pages.
    async fn pending(&self, shard: ShardId, limit: usize) -> Result<MessagesAt, StoreError> {
        let mut messages: Vec<StoredMessage> = Vec::new();
        loop {
            let wanted = (limit - messages.len()).min(REDIS_READ_MESSAGES_MAX);
            let place = PackedBytes::default().whole(messages.len() as u64).whole(wanted as u64);
            let (status, mut parts) = self.see((shard, READ), "peek", vec![place.0]).await?;
            let before = messages.len();
            while parts.left() > 0 {
                messages.push(parts.message().map_err(unreadable)?);
            }
            if messages.len() == limit || messages.len() - before < wanted {
                return Ok(MessagesAt { messages, at: status.at });
            }
        }
    }
}

#[async_trait]
impl ShardReader for RedisQueues {
    async fn get(&self, shard: ShardId, message: MessageRef) -> Result<Option<(StoredMessage, Timestamp)>, StoreError> {
        let reference = message_ref(shard.number, &message);
        let (status, mut parts) = self.see((shard, READ), "get", vec![reference]).await?;
        if parts.left() == 0 {
            return Ok(None);
        }
        let found = parts.message().map_err(unreadable)?;
        Ok(Some((found, status.at)))
    }

    async fn peek(&self, shard: ShardId, limit: usize) -> Result<MessagesAt, StoreError> {
        self.pending(shard, limit).await
    }

    async fn list(
        &self,
        shard: ShardId,
        state: MessageState,
        after: u64,
        limit: usize,
    ) -> Result<MessagesAt, StoreError> {
        let (mut messages, mut after) = (Vec::<StoredMessage>::new(), after);
        loop {
            let wanted = (limit - messages.len()).min(REDIS_READ_MESSAGES_MAX);
            let before = messages.len();
            let (status, mut parts) = self.see((shard, READ), "list", vec![list_request(state, after, wanted)]).await?;
            while parts.left() > 1 {
                messages.push(parts.message().map_err(unreadable)?);
            }
            after = messages.last().map_or(after, |message| message.head.key.sequence);
            let stopped = if parts.left() > 0 { parts.bytes().map_err(unreadable)? } else { Bytes::new() };
            let is_end = stopped.is_empty() && messages.len() - before < wanted;
            if is_end || messages.len() == limit {
                return Ok(MessagesAt { messages, at: status.at });
            }
            if !stopped.is_empty() {
                // The pages that one call may read held no more; the search goes on behind them.
                after = PackedReader::new("place of a list", &stopped).whole().map_err(unreadable)?;
            }
        }
    }

    async fn totals(&self, shard: ShardId) -> Result<ShardTotals, StoreError> {
        self.greet().await?;
        let (status, header) = self.header(shard, READ).await?;
        Ok(ShardTotals { totals: header.totals, sequence: header.sequence, view: status.view })
    }

    async fn depth(&self, shard: ShardId, filter: Filter) -> Result<FilteredDepth, StoreError> {
        if filter.is_empty() {
            return Ok(Ok(self.header(shard, READ).await?.1.totals.messages()));
        }
        let wanted = pack_pairs(PackedBytes::default(), filter.metadata()).0;
        let (_, mut parts) = self.see((shard, READ), "depth", vec![wanted]).await?;
        if parts.left() == 0 {
            // The queue was deleted: what is declared has no messages.
            let declared = &self.settings_of(shard, READ).await?.settings.shapes;
            let is_declared = declared.iter().any(|keys| keys.has_keys_of(&filter));
            let nearest = declared.iter().min_by_key(|keys| keys.distance(&filter)).cloned();
            let nothing = [0; MessageState::ALL.len()];
            return Ok(if is_declared { Ok(nothing) } else { Err(UndeclaredFilter { nearest, is_filling: false }) });
        }
        let shapes = parts.bytes().map_err(unreadable)?;
        let shapes = read_shapes(&shapes).map_err(unreadable)?;
        if parts.left() > 0 {
            let counts = parts.bytes().map_err(unreadable)?;
            let mut reader = PackedReader::new("counts of a filter", &counts);
            let mut depth = [0; MessageState::ALL.len()];
            for count in &mut depth {
                *count = reader.whole().map_err(unreadable)?;
            }
            return Ok(Ok(depth));
        }
        let complete = shapes.iter().filter(|shape| shape.is_complete).map(|shape| &shape.keys);
        let nearest = complete.min_by_key(|keys| keys.distance(&filter)).cloned();
        let is_filling = shapes.iter().any(|shape| shape.keys.has_keys_of(&filter));
        Ok(Err(UndeclaredFilter { nearest, is_filling }))
    }

    async fn sessions(&self, shard: ShardId) -> Result<Vec<(SessionId, SessionRecord)>, StoreError> {
        let (mut found, mut cursor) = (Vec::new(), b"0".to_vec());
        loop {
            let (_, mut parts) = self.see((shard, READ), "sessions", vec![cursor]).await?;
            if parts.left() == 0 {
                return Ok(Vec::new()); // the queue was deleted
            }
            cursor = parts.bytes().map_err(unreadable)?.to_vec();
            while parts.left() > 0 {
                let [id, record] = [parts.bytes().map_err(unreadable)?, parts.bytes().map_err(unreadable)?];
                found.push((
                    read_session_id(&id).map_err(unreadable)?,
                    read_session_record(&record).map_err(unreadable)?,
                ));
            }
            if cursor == b"0" || found.len() > 2 * SESSIONS_MAX {
                // A scan may tell a session twice.
                found.sort_unstable_by_key(|(id, _)| *id);
                found.dedup_by_key(|(id, _)| *id);
                found.truncate(SESSIONS_MAX);
                return Ok(found);
            }
        }
    }

    async fn leases_of(&self, shard: ShardId, sessions: Vec<SessionId>) -> Result<Vec<usize>, StoreError> {
        let ids = sessions.iter().map(|id| format!("{:032x}", id.0).into_bytes()).collect();
        let (_, mut parts) = self.see((shard, READ), "leases", ids).await?;
        if parts.left() == 0 {
            return Ok(vec![0; sessions.len()]); // the queue was deleted
        }
        let count = |bytes: Bytes| std::str::from_utf8(&bytes).ok().and_then(|text| text.parse().ok());
        let mut counts = Vec::with_capacity(sessions.len());
        while parts.left() > 0 {
            let read = count(parts.bytes().map_err(unreadable)?);
            counts.push(read.ok_or_else(|| unreadable(CorruptValue::new("leases of a session", "no number")))?);
        }
        Ok(counts)
    }

    async fn explain(&self, shard: ShardId, message: MessageRef) -> Result<(Vec<Cause>, Timestamp), StoreError> {
        let (status, header) = self.header(shard, READ).await?;
        if header.deleted {
            return Ok((vec![Cause::QueueDeleted], status.at));
        }
        let reference = message_ref(shard.number, &message);
        let (status, mut parts) = self.see((shard, READ), "explain", vec![reference]).await?;
        let blocked = reason_of(&parts.bytes().map_err(unreadable)?);
        if parts.left() == 0 {
            return Ok((vec![Cause::Unknown], status.at));
        }
        let found = explain::read_explained(&mut parts).map_err(unreadable)?;
        Ok((explain::causes(&found, blocked, status.at), status.at))
    }

    async fn preview_dequeue(&self, shard: ShardId, filter: Filter) -> Result<(DequeuePreview, Timestamp), StoreError> {
        let hidden = self.list(shard, MessageState::Invisible, 0, FILTER_WALK_MAX + 1).await?;
        let errored = self.list(shard, MessageState::Errored, 0, FILTER_WALK_MAX).await?;
        let counts = self.depth(shard, filter.clone()).await?.ok();
        let wanted = pack_pairs(PackedBytes::default(), filter.metadata()).0;
        let (status, mut parts) = self.see((shard, READ), "preview", vec![wanted]).await?;
        let (mut blocked, mut first, mut held) = (None, None, Vec::new());
        if parts.left() > 0 {
            blocked = reason_of(&parts.bytes().map_err(unreadable)?);
            let key = parts.bytes().map_err(unreadable)?;
            let mut key = PackedReader::new("first message", &key);
            first = if key.is_empty() { None } else { Some(read_key(&mut key, shard.number).map_err(unreadable)?) };
        }
        while parts.left() > 0 {
            held.push(explain::read_explained(&mut parts).map_err(unreadable)?);
        }
        let pending = status.view.ready();
        let read = explain::LookedAt { blocked, counts, first, held, pending, hidden, errored, at: status.at };
        Ok((explain::preview(read, &filter), status.at))
    }
}

/// The reason of a block; the first byte says that there is one, even an empty one.
fn reason_of(bytes: &[u8]) -> Option<Box<str>> {
    bytes.split_first().map(|(_, reason)| String::from_utf8_lossy(reason).into())
}
