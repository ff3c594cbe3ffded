//! The session directory in ordered maps under one lock: the oracle of the law tests.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hashbrown::HashMap;
use parking_lot::Mutex;

use tallystone_domain::limits::{SESSION_ENDS_KEPT_MIN, STORE_SESSIONS_MAX};
use tallystone_domain::queue::messages::message::SessionId;
use tallystone_domain::queue::session_records::Ending;
use tallystone_domain::queue::session_rows::{CallAttempt, HeartbeatReply, SessionRow};
use tallystone_domain::queue::{Refusal, ShardId};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{
    Clock, EndedSession, NewSession, SessionDirectory, SessionEnds, SessionHeartbeat, SessionRowPage, SessionStep,
    StoreError, StoreErrorKind,
};

/// Sessions that live as long as the process.
pub struct MemorySessions {
    clock: Arc<dyn Clock>,
    room: usize,
    state: Mutex<MemorySessionsState>,
}

#[derive(Default)]
struct MemorySessionsState {
    /// By the number of their opening.
    rows: BTreeMap<u64, SessionRow>,
    numbers: HashMap<SessionId, u64>,
    /// The last session of each label.
    labels: HashMap<Box<str>, SessionId>,
    opened: u64,
    /// The last ends, and the position of the newest.
    ends: VecDeque<(SessionId, Ending)>,
    end_position: u64,
}

impl MemorySessions {
    /// An empty directory whose time advances with the elapsed time of a clock.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self::with_room(clock, STORE_SESSIONS_MAX)
    }

    /// The same, with room for so many rows.
    pub fn with_room(clock: Arc<dyn Clock>, room: usize) -> Self {
        Self { clock, room, state: Mutex::default() }
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_secs(0) + self.clock.elapsed()
    }

    /// Makes a step on a row, and notes its end if the step ended it.
    fn step<T>(
        &self,
        id: SessionId,
        step: impl FnOnce(&mut SessionRow, Timestamp) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let now = self.now();
        self.state.lock().step(id, |row| step(row, now)).unwrap_or(Err(Refusal::SessionNotFound))
    }
}

impl MemorySessionsState {
    fn step<T>(&mut self, id: SessionId, step: impl FnOnce(&mut SessionRow) -> T) -> Option<T> {
        let row = self.rows.get_mut(self.numbers.get(&id)?)?;
        let had_ended = row.ended.is_some();
        let answer = step(row);
        if let Some((how, _)) = row.ended.filter(|_| !had_ended) {
            self.ends.push_back((id, how));
            self.end_position += 1;
            if self.ends.len() > SESSION_ENDS_KEPT_MIN {
                self.ends.pop_front();
            }
        }
        Some(answer)
    }

    fn end(&mut self, id: SessionId, how: Ending, now: Timestamp) -> Option<EndedSession> {
        self.step(id, |row| {
            let how = row.end(how, now);
            EndedSession { id, how, shards: row.shards.iter().copied().collect() }
        })
    }
}

#[async_trait]
impl SessionDirectory for MemorySessions {
    async fn open(&self, session: NewSession) -> Result<Option<EndedSession>, StoreError> {
        let now = self.now();
        let mut state = self.state.lock();
        let NewSession { id, label, lease } = session;
        if state.numbers.contains_key(&id) {
            return Ok(None);
        }
        if state.rows.len() >= self.room {
            return Err(StoreError::not_applied(StoreErrorKind::Full, "open session"));
        }
        state.opened += 1;
        let number = state.opened;
        state.rows.insert(number, SessionRow::new(id, &label, lease, now));
        state.numbers.insert(id, number);
        let earlier = if label.is_empty() { None } else { state.labels.insert(label, id) };
        let lives = |state: &MemorySessionsState, id: &SessionId| {
            state.numbers.get(id).and_then(|number| state.rows.get(number)).is_some_and(|row| row.ended.is_none())
        };
        let earlier = earlier.filter(|earlier| lives(&state, earlier));
        Ok(earlier.and_then(|earlier| state.end(earlier, Ending::Replaced, now)))
    }

    async fn get(&self, id: SessionId) -> Result<Option<SessionRow>, StoreError> {
        let state = self.state.lock();
        Ok(state.numbers.get(&id).and_then(|number| state.rows.get(number)).cloned())
    }

    async fn begin_call(&self, id: SessionId, call: CallAttempt) -> SessionStep<HeartbeatReply> {
        Ok(self.step(id, |row, now| row.begin_call(call, now)))
    }

    async fn reserve_calls(&self, id: SessionId, count: u64) -> SessionStep<u64> {
        Ok(self.step(id, |row, now| row.reserve_calls(count, now)))
    }

    async fn add_shard(&self, id: SessionId, shard: ShardId, call: CallAttempt) -> SessionStep<bool> {
        Ok(self.step(id, |row, _| row.add_shard(shard, call)))
    }

    async fn remove_shards(&self, id: SessionId, shards: &[ShardId]) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        // The row of a session that is forgotten has no shards.
        let _ = state.step(id, |row| row.shards.retain(|shard| !shards.contains(shard)));
        Ok(())
    }

    async fn heartbeat(
        &self,
        heartbeats: &[SessionHeartbeat],
    ) -> Result<Vec<Result<HeartbeatReply, Refusal>>, StoreError> {
        let heard = |heartbeat: &SessionHeartbeat| {
            self.step(heartbeat.id, |row, now| row.note_heartbeat(heartbeat.newest_call, heartbeat.leased_for, now))
        };
        Ok(heartbeats.iter().map(heard).collect())
    }

    async fn end(&self, id: SessionId, how: Ending) -> Result<Option<EndedSession>, StoreError> {
        let now = self.now();
        Ok(self.state.lock().end(id, how, now))
    }

    async fn ended_since(&self, after: Option<u64>, limit: usize) -> Result<SessionEnds, StoreError> {
        let state = self.state.lock();
        let newest = state.end_position;
        let Some(after) = after else {
            return Ok(SessionEnds { ends: Vec::new(), next: newest, is_complete: true });
        };
        let before_first = newest - state.ends.len() as u64;
        let is_complete = (before_first..=newest).contains(&after);
        let after = if is_complete { after } else { before_first };
        let skipped = usize::try_from(after - before_first).unwrap_or(usize::MAX);
        let ends: Vec<_> = state.ends.iter().skip(skipped).take(limit).copied().collect();
        Ok(SessionEnds { next: after + ends.len() as u64, ends, is_complete })
    }

    async fn unfinished(&self, for_at_least: Duration, limit: usize) -> Result<Vec<EndedSession>, StoreError> {
        let now = self.now();
        let state = self.state.lock();
        let ended = |row: &SessionRow| {
            let (how, at) = row.ended.filter(|_| row.is_unfinished())?;
            let shards = row.shards.iter().copied().collect();
            (now.since(at) >= for_at_least).then_some((at, EndedSession { id: row.id, how, shards }))
        };
        let mut found: Vec<_> = state.rows.values().filter_map(ended).collect();
        found.sort_by_key(|(at, _)| *at);
        Ok(found.into_iter().take(limit).map(|(_, ended)| ended).collect())
    }

    async fn forget(&self, limit: usize) -> Result<usize, StoreError> {
        let now = self.now();
        let mut state = self.state.lock();
        let is_over = |row: &SessionRow| row.kept_until <= now && !row.is_unfinished();
        let over = state.rows.iter().filter(|(_, row)| is_over(row)).map(|(number, _)| *number);
        let over: Vec<u64> = over.take(limit).collect();
        for number in &over {
            let Some(row) = state.rows.remove(number) else { continue };
            state.numbers.remove(&row.id);
            if state.labels.get(&row.label) == Some(&row.id) {
                state.labels.remove(&row.label);
            }
        }
        Ok(over.len())
    }

    async fn list(&self, after: u64, limit: usize) -> Result<SessionRowPage, StoreError> {
        let at = self.now();
        let state = self.state.lock();
        let mut later = state.rows.range(after.saturating_add(1)..);
        let page: Vec<_> = later.by_ref().take(limit).collect();
        let next = page.last().filter(|_| later.next().is_some()).map(|(number, _)| **number);
        Ok(SessionRowPage { rows: page.into_iter().map(|(_, row)| row.clone()).collect(), next, at })
    }
}
