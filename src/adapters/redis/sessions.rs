//! `SessionDirectory`: each method is one call of a function, which makes the steps that the core defines for a row.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::functions::RedisQueues;
use super::limits::{REDIS_FUNCTION_ITEMS_MAX, REDIS_ROWS_A_CALL_MAX, REDIS_SESSION_ENDS_A_CALL_MAX};
use super::packed::{PackedBytes, PackedReader};
use super::store_calls::{StoreReply, step_unreadable};
use super::stored_message::read_call;
use super::stored_row::{
    ending_code, pack_shard, read_answer, read_end, read_ends, read_heartbeat_reply, read_room, read_row, read_shards,
};
use super::stored_shard::read_session_id;
use tallystone_adapters::codec::CorruptValue;
use tallystone_domain::queue::messages::message::SessionId;
use tallystone_domain::queue::session_records::Ending;
use tallystone_domain::queue::session_rows::{CallAttempt, HeartbeatReply, SessionRow};
use tallystone_domain::queue::{Refusal, ShardId};
use tallystone_ports::{
    EndedSession, NewSession, SessionDirectory, SessionEnds, SessionHeartbeat, SessionRowPage, SessionStep, StoreError,
    StoreErrorKind,
};

/// The shards that one call removes from a row.
const SHARDS_A_CALL: usize = 4 * REDIS_FUNCTION_ITEMS_MAX;

/// The sessions of all servers of a deployment.
pub struct RedisSessions {
    store: Arc<RedisQueues>,
    room: usize,
}

impl RedisSessions {
    /// The directory beside the shards, with room for so many rows.
    pub fn new(store: Arc<RedisQueues>, room: usize) -> Self {
        Self { store, room }
    }

    async fn step(&self, op: &'static str, step: &str, arguments: Vec<Vec<u8>>) -> Result<StoreReply, StoreError> {
        let first = [self.store.packed_time(), step.as_bytes().to_vec()];
        self.store.call_store(("dir", op), first.into_iter().chain(arguments).collect()).await
    }

    async fn look(&self, op: &'static str, arguments: Vec<Vec<u8>>) -> Result<StoreReply, StoreError> {
        self.store.call_store(("look", op), arguments).await
    }

    /// A step on one row, and what its answer says beside a refusal.
    async fn step_on_row<T>(
        &self,
        op: &'static str,
        step: &str,
        arguments: Vec<Vec<u8>>,
        read: impl FnOnce(&mut PackedReader<'_>) -> Result<T, CorruptValue>,
    ) -> SessionStep<T> {
        let answer = self.step(op, step, arguments).await?.bytes()?;
        read_answer(&answer, read).map_err(|fault| step_unreadable(fault, op))
    }
}

fn id_text(id: SessionId) -> Vec<u8> {
    format!("{:032x}", id.0).into_bytes()
}

fn number_text(number: u64) -> Vec<u8> {
    format!("{number:016x}").into_bytes()
}

fn attempt_texts(call: CallAttempt) -> [Vec<u8>; 2] {
    [number_text(call.sequence), call.attempt.to_string().into_bytes()]
}

fn count_text(count: usize) -> Vec<u8> {
    count.to_string().into_bytes()
}

/// A session that ended: how, then its shards.
fn read_ended(id: SessionId, how: &Bytes, shards: &Bytes, op: &'static str) -> Result<EndedSession, StoreError> {
    let read = read_end(how).and_then(|how| Ok((how, read_shards(shards)?)));
    let (how, shards) = read.map_err(|fault| step_unreadable(fault, op))?;
    Ok(EndedSession { id, how, shards: shards.into_iter().collect() })
}

/// The id and the row that come next in a reply.
fn next_row(reply: &mut StoreReply, op: &'static str) -> Result<SessionRow, StoreError> {
    let [id, row, shards] = [reply.bytes()?, reply.bytes()?, reply.bytes()?];
    read_row(&id, &row, &shards).map_err(|damaged| damaged.into_store_error(op))
}

#[async_trait]
impl SessionDirectory for RedisSessions {
    async fn open(&self, session: NewSession) -> Result<Option<EndedSession>, StoreError> {
        const OPEN: &str = "open session";
        let NewSession { id, label, lease } = session;
        let lease = PackedBytes::default().duration(lease).0;
        let arguments = vec![id_text(id), label.as_bytes().to_vec(), lease, count_text(self.room)];
        let mut reply = self.step(OPEN, "open", arguments).await?;
        if reply.int()? == 1 {
            return Err(StoreError::not_applied(StoreErrorKind::Full, OPEN));
        }
        if reply.is_empty() {
            return Ok(None);
        }
        let [earlier, how, shards] = [reply.bytes()?, reply.bytes()?, reply.bytes()?];
        let earlier = read_session_id(&earlier).map_err(|fault| step_unreadable(fault, OPEN))?;
        read_ended(earlier, &how, &shards, OPEN).map(Some)
    }

    async fn get(&self, id: SessionId) -> Result<Option<SessionRow>, StoreError> {
        const READ: &str = "read session";
        let mut reply = self.look(READ, vec![b"get".to_vec(), id_text(id)]).await?;
        if reply.is_empty() { Ok(None) } else { next_row(&mut reply, READ).map(Some) }
    }

    async fn begin_call(&self, id: SessionId, call: CallAttempt) -> SessionStep<HeartbeatReply> {
        let [number, attempt] = attempt_texts(call);
        self.step_on_row("begin call", "begin", vec![id_text(id), number, attempt], read_heartbeat_reply).await
    }

    async fn reserve_calls(&self, id: SessionId, count: u64) -> SessionStep<u64> {
        let arguments = vec![id_text(id), number_text(count)];
        self.step_on_row("reserve calls", "reserve", arguments, read_call).await
    }

    async fn add_shard(&self, id: SessionId, shard: ShardId, call: CallAttempt) -> SessionStep<bool> {
        let [number, attempt] = attempt_texts(call);
        let arguments = vec![id_text(id), number, attempt, pack_shard(shard)];
        self.step_on_row("note shard", "add", arguments, read_room).await
    }

    async fn remove_shards(&self, id: SessionId, shards: &[ShardId]) -> Result<(), StoreError> {
        for some in shards.chunks(SHARDS_A_CALL) {
            let arguments = std::iter::once(id_text(id)).chain(some.iter().copied().map(pack_shard));
            self.step("remove shards", "finish", arguments.collect()).await?;
        }
        Ok(())
    }

    async fn heartbeat(
        &self,
        heartbeats: &[SessionHeartbeat],
    ) -> Result<Vec<Result<HeartbeatReply, Refusal>>, StoreError> {
        const HEARD: &str = "note heartbeats";
        let mut answers = Vec::with_capacity(heartbeats.len());
        for some in heartbeats.chunks(REDIS_FUNCTION_ITEMS_MAX) {
            let arguments = some.iter().flat_map(|heartbeat| {
                let leased_for = PackedBytes::default().duration(heartbeat.leased_for).0;
                [id_text(heartbeat.id), number_text(heartbeat.newest_call), leased_for]
            });
            let mut reply = self.step(HEARD, "heard", arguments.collect()).await?;
            for _ in some {
                let answer = read_answer(&reply.bytes()?, read_heartbeat_reply);
                answers.push(answer.map_err(|fault| step_unreadable(fault, HEARD))?);
            }
        }
        Ok(answers)
    }

    async fn end(&self, id: SessionId, how: Ending) -> Result<Option<EndedSession>, StoreError> {
        const END: &str = "end session";
        let arguments = vec![id_text(id), ending_code(how).to_string().into_bytes()];
        let mut reply = self.step(END, "end", arguments).await?;
        if reply.is_empty() {
            return Ok(None);
        }
        let [how, shards] = [reply.bytes()?, reply.bytes()?];
        read_ended(id, &how, &shards, END).map(Some)
    }

    async fn ended_since(&self, after: Option<u64>, limit: usize) -> Result<SessionEnds, StoreError> {
        const READ: &str = "read ends of sessions";
        let mut read = SessionEnds { ends: Vec::new(), next: after.unwrap_or(0), is_complete: true };
        let mut position = after.map(|after| PackedBytes::default().whole(after).0).unwrap_or_default();
        loop {
            let most = (limit - read.ends.len()).min(REDIS_SESSION_ENDS_A_CALL_MAX);
            let mut reply = self.look(READ, vec![b"ends".to_vec(), position, count_text(most)]).await?;
            let (next, is_complete, ends) = (reply.bytes()?, reply.int()? == 1, reply.bytes()?);
            let (next, ends) = read_ends(&next, &ends).map_err(|damaged| damaged.into_store_error(READ))?;
            if !is_complete && !read.ends.is_empty() {
                return Ok(read); // the next read says what went missing meanwhile
            }
            let is_page = ends.len() == most;
            read.ends.extend(ends);
            (read.next, read.is_complete) = (next, read.is_complete && is_complete);
            if after.is_none() || !is_page || read.ends.len() >= limit {
                return Ok(read);
            }
            position = PackedBytes::default().whole(next).0;
        }
    }

    async fn unfinished(&self, for_at_least: Duration, limit: usize) -> Result<Vec<EndedSession>, StoreError> {
        const READ: &str = "read unfinished ends";
        let (what, for_at_least) = (b"unfinished".to_vec(), PackedBytes::default().duration(for_at_least).0);
        let most = count_text(limit.min(REDIS_ROWS_A_CALL_MAX));
        let mut reply = self.look(READ, vec![what, self.store.packed_time(), for_at_least, most]).await?;
        let mut found = Vec::new();
        while !reply.is_empty() {
            let [id, how, shards] = [reply.bytes()?, reply.bytes()?, reply.bytes()?];
            let id = read_session_id(&id).map_err(|damaged| damaged.into_store_error(READ))?;
            found.push(read_ended(id, &how, &shards, READ)?);
        }
        Ok(found)
    }

    async fn forget(&self, limit: usize) -> Result<usize, StoreError> {
        let mut forgotten = 0;
        loop {
            let mut reply = self.step("forget sessions", "forget", vec![count_text(limit - forgotten)]).await?;
            let (removed, has_more) = (reply.int()?, reply.int()? == 1);
            forgotten += usize::try_from(removed).unwrap_or(0);
            if forgotten >= limit || !has_more {
                return Ok(forgotten);
            }
        }
    }

    async fn list(&self, after: u64, limit: usize) -> Result<SessionRowPage, StoreError> {
        const READ: &str = "list sessions";
        let (what, after) = (b"list".to_vec(), PackedBytes::default().whole(after).0);
        let most = count_text(limit.min(REDIS_ROWS_A_CALL_MAX));
        let mut reply = self.look(READ, vec![what, self.store.packed_time(), after, most]).await?;
        let place = reply.bytes()?;
        let mut reader = PackedReader::new("page of sessions", &place);
        let read = reader.time().and_then(|at| Ok((at, reader.signed()?)));
        let (at, next) = read.map_err(|damaged| damaged.into_store_error(READ))?;
        let mut rows = Vec::new();
        while !reply.is_empty() {
            rows.push(next_row(&mut reply, READ)?);
        }
        Ok(SessionRowPage { rows, next: u64::try_from(next).ok(), at })
    }
}
