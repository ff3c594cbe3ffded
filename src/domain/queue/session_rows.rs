//! A session as all servers of a store see it: one row, changed in steps.
//!
//! A shard knows the calls that got leases in it, see `session_records`. The row knows what concerns all shards: the
//! label, the shards that the session has touched, the attempts that are barred, and how the session ended. Times are
//! those of the directory that keeps the row. The row hears of a session late, by up to a quarter of its lease and a
//! second. Invariant: an ended session stays ended, in the way in which it ended first.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::limits::{SESSION_CALLS_KEPT, SESSION_HEARD_LATE, SESSION_KEPT, SESSION_SHARDS_MAX};
use crate::queue::command::Refusal;
use crate::queue::messages::message::SessionId;
use crate::queue::name::ShardId;
use crate::queue::session_records::Ending;
use crate::time::Timestamp;

/// An attempt of a call of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallAttempt {
    /// The number of the call, from 1.
    pub sequence: u64,
    /// The number of the attempt, from 1.
    pub attempt: u32,
}

/// The reply of a session row to a server that begins a call of the session or has heard of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeartbeatReply {
    /// The highest sequence that the row knew before.
    pub newest_call: u64,
    /// Grows with each shard that the session touches first.
    pub touched: u64,
}

/// The row of a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionRow {
    pub id: SessionId,
    /// Its label; empty if it has none.
    pub label: Box<str>,
    /// How long it lives after each heartbeat.
    pub lease: Duration,
    /// The last heartbeat, as far as the row knows.
    pub heard: Timestamp,
    /// The time until which the row is kept.
    pub kept_until: Timestamp,
    /// The shards in which it may hold leases, at most `SESSION_SHARDS_MAX`.
    pub shards: BTreeSet<ShardId>,
    /// Grows with each shard that it touches first.
    pub touched: u64,
    /// The highest sequence of its calls, as far as the row knows.
    pub newest_call: u64,
    /// For the last repeated calls, at most 8: the lowest attempt that is still accepted.
    pub bars: BTreeMap<u64, u32>,
    /// Calls up to this number are forgotten.
    pub floor: u64,
    /// The kind and the time of the ending.
    pub ended: Option<(Ending, Timestamp)>,
}

impl SessionRow {
    /// A session that is opened now.
    pub fn new(id: SessionId, label: &str, lease: Duration, now: Timestamp) -> Self {
        Self {
            id,
            label: label.into(),
            lease,
            heard: now,
            kept_until: now + lease + SESSION_KEPT,
            shards: BTreeSet::new(),
            touched: 0,
            newest_call: 0,
            bars: BTreeMap::new(),
            floor: 0,
            ended: None,
        }
    }

    /// Fails if the session has ended. Ends it as expired if it was silent for longer than its lease and the time by
    /// which the row may hear of it late.
    pub fn check_alive(&mut self, now: Timestamp) -> Result<(), Refusal> {
        if self.ended.is_none() && now.since(self.heard) > self.lease + self.lease / 4 + SESSION_HEARD_LATE {
            self.end(Ending::Expired, now);
        }
        match self.ended {
            Some((how, _)) => Err(Refusal::SessionEnded(how)),
            None => Ok(()),
        }
    }

    /// Notes a heartbeat of a session whose leases last for `leased_for` at most, and its highest call.
    pub fn note_heartbeat(
        &mut self,
        newest_call: u64,
        leased_for: Duration,
        now: Timestamp,
    ) -> Result<HeartbeatReply, Refusal> {
        self.check_alive(now)?;
        let pulse = self.heartbeat_reply();
        self.heard = self.heard.max(now);
        self.kept_until = self.kept_until.max(now + self.lease.max(leased_for) + SESSION_KEPT);
        self.newest_call = self.newest_call.max(newest_call);
        Ok(pulse)
    }

    /// Begins an attempt of a call: refuses lower attempts of it from now on, wherever they are.
    pub fn begin_call(&mut self, call: CallAttempt, now: Timestamp) -> Result<HeartbeatReply, Refusal> {
        let pulse = self.note_heartbeat(0, Duration::ZERO, now)?;
        self.check_not_barred(call)?;
        if call.attempt > 1 {
            self.bar(call);
        }
        self.newest_call = self.newest_call.max(call.sequence);
        Ok(pulse)
    }

    /// Gives numbers of calls that no other call has. Returns the first.
    pub fn reserve_calls(&mut self, count: u64, now: Timestamp) -> Result<u64, Refusal> {
        let first = self.newest_call.saturating_add(1);
        self.note_heartbeat(self.newest_call.saturating_add(count), Duration::ZERO, now)?;
        Ok(first)
    }

    /// Notes that a call is about to take leases in a shard. Returns whether there was room for the shard.
    pub fn add_shard(&mut self, shard: ShardId, call: CallAttempt) -> Result<bool, Refusal> {
        if let Some((how, _)) = self.ended {
            return Err(Refusal::SessionEnded(how));
        }
        self.check_not_barred(call)?;
        if self.shards.contains(&shard) {
            return Ok(true);
        }
        let has_room = self.shards.len() < SESSION_SHARDS_MAX;
        if has_room {
            self.touched += 1;
            self.shards.insert(shard);
        }
        Ok(has_room)
    }

    /// Ends the session unless it has ended. Returns how it ended.
    pub fn end(&mut self, how: Ending, now: Timestamp) -> Ending {
        if let Some((how, _)) = self.ended {
            return how;
        }
        self.ended = Some((how, now));
        match how {
            // No lease outlives it.
            Ending::Closed | Ending::Replaced => self.kept_until = now + SESSION_KEPT,
            Ending::Expired => self.kept_until = self.kept_until.max(now + SESSION_KEPT),
        }
        how
    }

    /// Whether it was ended by a call, and shards remain in which its leases have not been ended.
    pub fn is_unfinished(&self) -> bool {
        matches!(self.ended, Some((Ending::Closed | Ending::Replaced, _))) && !self.shards.is_empty()
    }

    fn heartbeat_reply(&self) -> HeartbeatReply {
        HeartbeatReply { newest_call: self.newest_call, touched: self.touched }
    }

    fn check_not_barred(&self, call: CallAttempt) -> Result<(), Refusal> {
        if call.sequence <= self.floor {
            return Err(Refusal::SequenceTooOld);
        }
        match self.bars.get(&call.sequence) {
            Some(barred) if call.attempt < *barred => Err(Refusal::TryBarred),
            Some(_) | None => Ok(()),
        }
    }

    fn bar(&mut self, call: CallAttempt) {
        let barred = self.bars.entry(call.sequence).or_insert(call.attempt);
        *barred = call.attempt.max(*barred);
        if self.bars.len() > SESSION_CALLS_KEPT
            && let Some((dropped, _)) = self.bars.pop_first()
        {
            self.floor = self.floor.max(dropped);
        }
    }
}
