//! Sessions where several servers share a store: any server serves any call of any session.
//!
//! The session directory decides which sessions live, which of their calls may be repeats, and which shards they have
//! touched. A server begins each call in the directory, and writes a shard into the row before the first dequeue of the
//! session there. So a recall asks the shards of the row only, and an earlier attempt is barred everywhere else by the
//! row.

use std::sync::Arc;

use crate::caller_quota::{CallerId, QuotaExceeded};
use crate::catalog::FollowedCatalog;
use crate::queues::error::QueueError;
use crate::queues::error::limited_resource::LimitedResource;
use crate::queues::sessions::SessionService;
use crate::queues::state::context::QueueContext;
use crate::queues::state::served_queue::ServedQueue;
use crate::queues::state::session_registry::{AdmittedCall, SessionWithShards};
use tallystone_domain::limits::{STORE_SESSIONS_MAX, STREAM_CALLS_RESERVED};
use tallystone_domain::queue::messages::message::SessionId;
use tallystone_domain::queue::session_records::{Ending, SessionCall};
use tallystone_domain::queue::session_rows::{CallAttempt, HeartbeatReply};
use tallystone_domain::queue::{QueueId, Refusal, ShardId};
use tallystone_ports::{NewSession, SessionDirectory, StoreErrorKind};

impl QueueContext {
    /// The directory of sessions; none where one server owns the store.
    pub fn session_directory(&self) -> Option<&Arc<dyn SessionDirectory>> {
        self.stores.shared.as_ref().map(|shared| &shared.sessions)
    }
}

impl SessionService {
    /// Opens a session of a caller in the directory. Returns the one that had its label, to be ended in its shards.
    pub(super) async fn open_in_directory(
        &self,
        directory: &Arc<dyn SessionDirectory>,
        caller: &CallerId,
        session: NewSession,
    ) -> Result<Vec<SessionWithShards>, QueueError> {
        let limit = |why| QueueError::LimitReached { of: LimitedResource::Session, why };
        let NewSession { id, label, lease } = session.clone();
        let share = self.context.sessions.reserve(caller, self.context.elapsed()).map_err(limit)?;
        let earlier = match directory.open(session).await {
            Err(error) if error.kind == StoreErrorKind::Full => {
                return Err(limit(QuotaExceeded::All(STORE_SESSIONS_MAX)));
            }
            opened => opened?,
        };
        self.context.sessions.put(id, &label, lease, share, self.context.elapsed());
        let Some(earlier) = earlier else { return Ok(Vec::new()) };
        self.context.sessions.end(earlier.id, earlier.how);
        Ok(vec![(earlier.id, earlier.shards)])
    }

    /// Admits a call of a session that any server may have served before.
    pub(super) async fn admit_shared(
        &self,
        directory: &Arc<dyn SessionDirectory>,
        id: SessionId,
        call: CallAttempt,
    ) -> Result<AdmittedCall, QueueError> {
        let reply = directory.begin_call(id, call).await?.map_err(|refusal| self.note_end(id, refusal))?;
        self.take_in(directory, id, reply).await?;
        let now = self.context.elapsed();
        Ok(self.context.sessions.admit_begun(id, call, reply.newest_call, now)?)
    }

    /// Tells the directory that a session was heard, and takes in what it has touched elsewhere.
    pub(super) async fn hear_session(
        &self,
        directory: &Arc<dyn SessionDirectory>,
        id: SessionId,
    ) -> Result<std::time::Duration, QueueError> {
        let heartbeat = self.context.sessions.heartbeat_of(id, self.context.elapsed());
        let heard = directory.heartbeat(&[heartbeat]).await?.pop().unwrap_or(Err(Refusal::SessionNotFound));
        let reply = heard.map_err(|refusal| self.note_end(id, refusal))?;
        self.take_in(directory, id, reply).await?;
        Ok(self.context.sessions.renew_heard(id, self.context.elapsed())?)
    }

    /// Makes a session known here of which a stream opens, with numbers of its own for the calls of the stream.
    pub(in crate::queues) async fn reserve_calls(
        &self,
        directory: &Arc<dyn SessionDirectory>,
        id: SessionId,
    ) -> Result<(), QueueError> {
        let first = directory.reserve_calls(id, STREAM_CALLS_RESERVED).await?;
        let first = first.map_err(|refusal| self.note_end(id, refusal))?;
        self.read_row(directory, id).await?;
        self.context.sessions.number_calls_from(id, first);
        Ok(())
    }

    /// Ends a session for all servers and releases its leases. Returns their number.
    pub(super) async fn close_shared(
        &self,
        directory: &Arc<dyn SessionDirectory>,
        id: SessionId,
    ) -> Result<usize, QueueError> {
        let ended = directory.end(id, Ending::Closed).await?.ok_or(Refusal::SessionNotFound)?;
        self.context.sessions.end(id, ended.how);
        match ended.how {
            how @ (Ending::Replaced | Ending::Expired) => Err(Refusal::SessionEnded(how).into()),
            Ending::Closed => {
                let sessions = self.clone();
                self.context.finish(async move { sessions.end_in(id, ended.shards, Ending::Closed).await }).await
            }
        }
    }

    /// Notes, before a call of a session takes leases in a shard, that the session may hold some there.
    pub(in crate::queues) async fn touch_shard(&self, call: SessionCall, shard: ShardId) -> Result<(), QueueError> {
        if let Some(directory) = self.context.session_directory()
            && !self.context.sessions.has_touched(call.id, shard)
        {
            let attempt = CallAttempt { sequence: call.sequence, attempt: call.attempt };
            let added = directory.add_shard(call.id, shard, attempt).await?;
            if !added.map_err(|refusal| self.note_end(call.id, refusal))? {
                return Err(QueueError::SessionShards);
            }
        }
        let has_room = self.context.sessions.add_shard(call.id, shard)?;
        if has_room { Ok(()) } else { Err(QueueError::SessionShards) }
    }

    /// A queue that this server or another one serves; none if it was deleted.
    pub(super) async fn queue_by_id(&self, id: QueueId) -> Result<Option<Arc<ServedQueue>>, QueueError> {
        if let Some(queue) = self.context.by_id(id) {
            return Ok(Some(queue));
        }
        if self.context.stores.shared.is_some() {
            self.catalog.follow().await?;
        }
        Ok(self.context.by_id(id))
    }

    /// Tells the directory that a session has ended in a shard. The next call that asks a shard repeats a lost report.
    pub(super) fn report_end(&self, id: SessionId, how: Ending) {
        let Some(directory) = self.context.session_directory().map(Arc::clone) else { return };
        self.context.start_once(async move {
            if let Err(error) = directory.end(id, how).await {
                tracing::debug!(%error, "cannot report the end of a session to other servers");
            }
        });
    }

    /// Takes in the shards that a session touched at other servers.
    pub(in crate::queues) async fn take_in(
        &self,
        directory: &Arc<dyn SessionDirectory>,
        id: SessionId,
        reply: HeartbeatReply,
    ) -> Result<(), QueueError> {
        if !self.context.sessions.note_heartbeat(id, reply, self.context.elapsed()) {
            self.read_row(directory, id).await?;
        }
        Ok(())
    }

    async fn read_row(&self, directory: &Arc<dyn SessionDirectory>, id: SessionId) -> Result<(), QueueError> {
        let row = directory.get(id).await?.ok_or_else(|| self.note_end(id, Refusal::SessionNotFound))?;
        self.context.sessions.adopt(&row, self.context.elapsed());
        Ok(())
    }

    /// Notes here how the directory refused a session, which has ended then.
    pub(super) fn note_end(&self, id: SessionId, refusal: Refusal) -> QueueError {
        let how = match &refusal {
            Refusal::SessionEnded(how) => Some(*how),
            Refusal::SessionNotFound => Some(Ending::Expired),
            _ => None, // every other refusal is about one call
        };
        if let Some(how) = how {
            self.context.sessions.end(id, how);
        }
        refusal.into()
    }
}
