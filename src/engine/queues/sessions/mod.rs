//! Sessions: one heartbeat for all leases of a worker, repeatable dequeues, and an end that releases all leases.
//!
//! A repeated dequeue first asks every shard of its queue for the leases of an earlier attempt. Only if there are none
//! does it lease. The leases of a session stay when its caller goes away, because the caller may come back for them.
//! Leases that are never asked for again expire.

pub(in crate::queues) mod across_servers;
pub(in crate::queues) mod exchange;
mod owned;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use tokio_util::sync::CancellationToken;

use crate::caller_quota::CallerId;
use crate::queues::calls::lease_batch::LeaseBatch;
use crate::queues::catalog::CatalogService;
use crate::queues::error::QueueError;
use crate::queues::error::limited_resource::LimitedResource;
use crate::queues::error::unexpected;
use crate::queues::state::context::QueueContext;
use crate::queues::state::served_queue::ServedQueue;
use crate::queues::state::session_registry::{AdmittedCall, number_of};
use tallystone_domain::limits::{
    BULK_MESSAGES_MAX, LEASE_MAX, LEASE_MIN, SESSION_END_STEPS_MAX, SESSION_LABEL_BYTES_MAX, SESSION_LEASE_DEFAULT,
    SESSION_SHARDS_AT_ONCE_MAX,
};
use tallystone_domain::queue::command::Completeness;
use tallystone_domain::queue::invalid_command::InvalidCommandPart;
use tallystone_domain::queue::messages::message::SessionId;
use tallystone_domain::queue::session_records::{Ending, SessionCall};
use tallystone_domain::queue::session_rows::CallAttempt;
use tallystone_domain::queue::{Command, Refusal, Reply, ShardId};
use tallystone_domain::{Reason, Reject};
use tallystone_ports::{NewSession, ShardCommand, StoreError};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenedSession {
    pub id: SessionId,
    pub lease: Duration,
}

/// The result of a heartbeat.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeartbeatOutcome {
    /// The remaining lease of the session.
    pub expires_in: Duration,
    /// The leases, as text, whose messages should be canceled.
    pub cancel_requests: Vec<String>,
}

/// A dequeue as a call of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SentSessionCall {
    pub id: SessionId,
    /// The sequence of the call, from 1.
    pub sequence: u64,
    /// The attempt of the call, from 1.
    pub attempt: u32,
    /// The last call whose response the session has received.
    pub received_up_to: Option<u64>,
}

/// A call in flight. Its session stays alive until this is dropped.
pub(in crate::queues) struct ActiveSessionCall {
    context: Arc<QueueContext>,
    pub call: SessionCall,
    pub may_be_repeat: bool,
    pub is_superseded: bool,
    end_token: CancellationToken,
}

impl ActiveSessionCall {
    /// Waits until the session has ended; returns the refusal for it.
    pub async fn wait_for_end(&self) -> QueueError {
        self.end_token.cancelled().await;
        self.context.sessions.ended(self.call.id).map_or(Refusal::SessionNotFound, Refusal::SessionEnded).into()
    }
}

impl Drop for ActiveSessionCall {
    fn drop(&mut self) {
        self.context.sessions.release_call(self.call.id, self.context.elapsed());
    }
}

/// The sessions of workers over all shards. Cheap to clone.
#[derive(Clone)]
pub struct SessionService {
    context: Arc<QueueContext>,
    catalog: Arc<CatalogService>,
}

impl SessionService {
    pub(in crate::queues) fn new(context: Arc<QueueContext>, catalog: Arc<CatalogService>) -> Self {
        Self { context, catalog }
    }

    /// The number of sessions that this server remembers, including those that ended a short time ago.
    pub fn count(&self) -> usize {
        self.context.sessions.len()
    }

    /// The number of open sessions at this server. O(sessions).
    pub fn open_count(&self) -> usize {
        self.context.sessions.open_count(self.context.elapsed())
    }

    /// Opens a session of a caller, and ends the one that had its label before.
    pub async fn open_session(
        &self,
        caller: &CallerId,
        label: &str,
        lease: Option<Duration>,
    ) -> Result<OpenedSession, QueueError> {
        if label.len() > SESSION_LABEL_BYTES_MAX {
            let what = format!("label has {} bytes; at most {SESSION_LABEL_BYTES_MAX} are allowed", label.len());
            return Err(Reject::new(Reason::InvalidArgument, what).into());
        }
        let lease = lease.unwrap_or(SESSION_LEASE_DEFAULT);
        if !(LEASE_MIN..=LEASE_MAX).contains(&lease) {
            return Err(InvalidCommandPart::SessionLease.into());
        }
        if self.context.drain.is_cancelled() {
            return Err(QueueError::ShuttingDown);
        }
        let now = u64::try_from(self.context.now().millis()).unwrap_or(0);
        let millis = now.max(self.context.sessions.next_millis(label));
        let id = number_of(label, millis, u64::from_be_bytes(self.context.random()));
        let replaced = match self.context.session_directory() {
            Some(directory) => {
                self.open_in_directory(directory, caller, NewSession { id, label: label.into(), lease }).await?
            }
            None => {
                let opened = self.context.sessions.open(id, caller, label, lease, self.context.elapsed());
                opened.map_err(|why| QueueError::LimitReached { of: LimitedResource::Session, why })?
            }
        };
        for (old, shards) in replaced {
            let sessions = self.clone();
            self.context.finish(async move { sessions.end_in(old, shards, Ending::Replaced).await }).await?;
        }
        Ok(OpenedSession { id, lease })
    }

    /// Renews a session, and confirms the responses that it has received.
    pub async fn heartbeat(&self, id: SessionId, received_up_to: Option<u64>) -> Result<HeartbeatOutcome, QueueError> {
        let (lease, received_up_to) = match self.context.session_directory() {
            // Another server may have served newer calls than this one knows.
            Some(directory) => (self.hear_session(directory, id).await?, received_up_to),
            None => {
                let lease = self.context.sessions.renew(id, self.context.elapsed())?;
                // The session cannot have received the response of a call that was never made. Refusing would be wrong:
                // a server that started since then knows a call only if it gave leases.
                (lease, received_up_to.map(|call| call.min(self.context.sessions.newest_call(id))))
            }
        };
        self.heartbeat_shards(id, lease, received_up_to).await
    }

    /// The same for an open stream. A directory hears of its session with the other sessions of this server.
    pub(in crate::queues) async fn heartbeat_of_stream(
        &self,
        id: SessionId,
        received_up_to: Option<u64>,
    ) -> Result<HeartbeatOutcome, QueueError> {
        if self.context.session_directory().is_none() {
            return self.heartbeat(id, received_up_to).await;
        }
        let lease = self.context.sessions.renew_heard(id, self.context.elapsed())?;
        self.heartbeat_shards(id, lease, received_up_to).await
    }

    async fn heartbeat_shards(
        &self,
        id: SessionId,
        lease: Duration,
        received_up_to: Option<u64>,
    ) -> Result<HeartbeatOutcome, QueueError> {
        let shards = self.context.sessions.shards(id);
        let beats = stream::iter(shards).map(|shard| self.heartbeat_shard(id, shard, received_up_to));
        let answers: Vec<_> = beats.buffered(SESSION_SHARDS_AT_ONCE_MAX).collect().await;
        let mut beat = HeartbeatOutcome { expires_in: lease, cancel_requests: Vec::new() };
        for answer in answers {
            beat.cancel_requests.extend(answer?);
        }
        Ok(beat)
    }

    /// Ends a session and releases its leases. Returns their number. A repeat releases none.
    pub async fn close_session(&self, id: SessionId) -> Result<usize, QueueError> {
        if let Some(directory) = self.context.session_directory() {
            return self.close_shared(directory, id).await;
        }
        match self.context.sessions.end(id, Ending::Closed) {
            None => return Err(Refusal::SessionNotFound.into()),
            Some(how @ (Ending::Replaced | Ending::Expired)) => return Err(Refusal::SessionEnded(how).into()),
            Some(Ending::Closed) => {}
        }
        let shards = self.context.sessions.shards(id);
        let sessions = self.clone();
        self.context.finish(async move { sessions.end_in(id, shards, Ending::Closed).await }).await
    }

    /// Renews a session in a shard. Returns its leases there that should be canceled.
    async fn heartbeat_shard(
        &self,
        id: SessionId,
        shard: ShardId,
        received_up_to: Option<u64>,
    ) -> Result<Vec<String>, QueueError> {
        let Some(queue) = self.queue_by_id(shard.queue).await? else {
            self.remove_shards(id, &[shard]).await;
            return Ok(Vec::new());
        };
        let command = Command::Heartbeat { session: id, received_up_to };
        match self.context.call(&queue, shard.number, ShardCommand::of(command)).await?.reply {
            Ok(Reply::Beaten { cancel_requested, .. }) => {
                Ok(cancel_requested.iter().map(|token| token.to_text(shard.queue.0, &self.context.lease_key)).collect())
            }
            Ok(other) => Err(unexpected("heartbeat", &other)),
            // It had no leases there for so long that the shard has forgotten it.
            Err(Refusal::SessionNotFound) => Ok(Vec::new()),
            Err(refusal) => Err(self.record_refusal(id, refusal)),
        }
    }

    /// Ends a session in shards. Returns the number of ended leases. Sweeps end the leases beyond a bound.
    async fn end_in(&self, id: SessionId, shards: Vec<ShardId>, how: Ending) -> Result<usize, QueueError> {
        let ends = stream::iter(shards.clone()).map(|shard| self.end_in_one(id, shard, how));
        let answers: Vec<_> = ends.buffered(SESSION_SHARDS_AT_ONCE_MAX).collect().await;
        let done = shards.into_iter().zip(&answers).filter(|(_, answer)| answer.is_ok()).map(|(shard, _)| shard);
        self.remove_shards(id, &done.collect::<Vec<_>>()).await;
        answers.into_iter().sum()
    }

    /// Notes that a session holds no leases in shards. Where a directory does not learn it, the end of the session is
    /// repeated there.
    async fn remove_shards(&self, id: SessionId, shards: &[ShardId]) {
        if shards.is_empty() {
            return;
        }
        shards.iter().for_each(|shard| self.context.sessions.remove_shard(id, *shard));
        if let Some(directory) = self.context.session_directory()
            && let Err(error) = directory.remove_shards(id, shards).await
        {
            tracing::debug!(%error, "cannot note in which shards a session has ended");
        }
    }

    async fn end_in_one(&self, id: SessionId, shard: ShardId, how: Ending) -> Result<usize, QueueError> {
        let mut ended = 0;
        if let Some(queue) = self.queue_by_id(shard.queue).await? {
            for _ in 0..SESSION_END_STEPS_MAX {
                let command = Command::EndSession { session: id, ending: how, max: BULK_MESSAGES_MAX };
                match self.context.call(&queue, shard.number, ShardCommand::of(command)).await?.reply? {
                    Reply::Touched { count, completeness } => {
                        ended += count;
                        if completeness == Completeness::Complete {
                            break;
                        }
                    }
                    other => return Err(unexpected("end of a session", &other)),
                }
            }
        }
        Ok(ended)
    }

    /// Reads the sessions from the shards of a store that was just opened. A session directory knows them all.
    pub(in crate::queues) async fn load_sessions(&self) -> Result<(), StoreError> {
        if self.context.session_directory().is_some() {
            return Ok(());
        }
        let now = self.context.elapsed();
        for queue in self.context.all() {
            if queue.record.load().spec.template_for.is_some() {
                continue;
            }
            for number in 0..queue.shards() {
                let shard = queue.shard(number).id;
                for (id, session) in self.context.stores.reader.sessions(shard).await? {
                    self.context.sessions.restore(shard, id, &session, now);
                }
            }
        }
        let replaced = self.context.sessions.end_replaced_sessions();
        let sessions = self.clone();
        self.context.start_once(async move {
            for (id, shards) in replaced {
                if let Err(error) = sessions.end_in(id, shards, Ending::Replaced).await {
                    tracing::warn!(%error, "cannot end the leases of a replaced session; they expire on their own");
                }
            }
        });
        Ok(())
    }

    pub(in crate::queues) async fn admit(&self, asked: SentSessionCall) -> Result<ActiveSessionCall, QueueError> {
        let SentSessionCall { id, sequence, attempt, received_up_to } = asked;
        if sequence == 0 {
            return Err(InvalidCommandPart::Sequence.into());
        }
        if attempt == 0 {
            return Err(InvalidCommandPart::Try.into());
        }
        if received_up_to.is_some_and(|received| received >= sequence) {
            return Err(InvalidCommandPart::Received.into());
        }
        let admitted = match self.context.session_directory() {
            Some(directory) => self.admit_shared(directory, id, CallAttempt { sequence, attempt }).await?,
            None => self.context.sessions.admit(id, sequence, attempt, self.context.elapsed())?,
        };
        let call = SessionCall { id, lease: Some(admitted.lease), sequence, attempt, received_up_to };
        let AdmittedCall { may_be_repeat, is_superseded, end_token, .. } = admitted;
        Ok(ActiveSessionCall { context: Arc::clone(&self.context), call, may_be_repeat, is_superseded, end_token })
    }

    /// The leases that an earlier attempt of a call got and still holds; none if it got none. Every shard is asked, or
    /// where there is a session directory, every shard that the session has touched.
    pub(in crate::queues) async fn recall(
        &self,
        queue: &Arc<ServedQueue>,
        call: SessionCall,
    ) -> Result<Option<LeaseBatch>, QueueError> {
        let numbers: Vec<u32> = match self.context.session_directory() {
            None => (0..queue.shards()).collect(),
            Some(_) => {
                let touched = self.context.sessions.shards(call.id).into_iter();
                let own =
                    touched.filter(|shard| shard.number < queue.shards() && queue.shard(shard.number).id == *shard);
                own.map(|shard| shard.number).collect()
            }
        };
        let ask = |number: &u32| self.context.call(queue, *number, ShardCommand::of(Command::Recall(call)));
        let mut found = LeaseBatch::new(&self.context, queue, Some(call.id));
        let mut was_answered = false;
        for (number, answer) in numbers.iter().zip(join_all(numbers.iter().map(ask)).await) {
            let answer = answer?;
            match answer.reply {
                Ok(Reply::Unanswered) => {}
                Ok(Reply::Leases { leases, .. }) => {
                    was_answered = true;
                    self.context.sessions.add_shard(call.id, queue.shard(*number).id)?;
                    found.add(leases, answer.messages, answer.at);
                }
                Ok(other) => return Err(unexpected("recall", &other)),
                Err(refusal) => return Err(self.record_refusal(call.id, refusal)),
            }
        }
        Ok(was_answered.then_some(found))
    }

    /// Sends the state of the session to the shards that a call did not ask, without waiting. The next call or
    /// heartbeat repeats a lost one.
    pub(in crate::queues) fn heartbeat_other_shards(&self, queue: &ServedQueue, call: &SessionCall, asked: &[u32]) {
        let is_told = |shard: &ShardId| {
            queue.shards() > shard.number && queue.shard(shard.number).id == *shard && asked.contains(&shard.number)
        };
        let others = self.context.sessions.shards(call.id).into_iter().filter(|shard| !is_told(shard));
        for shard in others {
            if let Some(queue) = self.context.by_id(shard.queue) {
                let command = Command::Heartbeat { session: call.id, received_up_to: call.received_up_to };
                // See above.
                let _ = self.context.submit(&queue, shard.number, vec![ShardCommand::of(command)]);
            }
        }
    }

    /// Notes how a shard refused a call of a session: a session that ended in one shard has ended everywhere.
    pub(in crate::queues) fn record_refusal(&self, id: SessionId, refusal: Refusal) -> QueueError {
        if let Refusal::SessionEnded(how) = &refusal {
            if self.context.sessions.ended(id).is_none() {
                self.report_end(id, *how);
            }
            self.context.sessions.end(id, *how);
        }
        refusal.into()
    }
}
