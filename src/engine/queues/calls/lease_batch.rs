//! A batch of leases on its way to a worker.

use std::sync::Arc;
use std::time::Duration;

use crate::queues::state::context::QueueContext;
use crate::queues::state::served_queue::ServedQueue;
use crate::queues::state::shard_offers::place_of;
use tallystone_domain::Timestamp;
use tallystone_domain::limits::{QUEUE_MESSAGE_BYTES_MAX, QUEUE_REPLY_BYTES_MAX};
use tallystone_domain::queue::command::{Completeness, LeaseGrant};
use tallystone_domain::queue::messages::message::SessionId;
use tallystone_domain::queue::session_records::SessionCall;
use tallystone_domain::queue::{QueueId, QueueName};
use tallystone_ports::StoredMessage;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeasedMessage {
    pub lease: LeaseGrant,
    /// The lease token of the worker.
    pub token: String,
    pub message: StoredMessage,
    /// The shard's time.
    pub at: Timestamp,
}

/// A batch of leases. Dropped without `take`, it releases them, unless they belong to a session, which may come back.
pub struct LeaseBatch {
    context: Arc<QueueContext>,
    queue: Arc<ServedQueue>,
    /// Each lease with the start of the look that found it, by elapsed time.
    pub(in crate::queues) leases: Vec<(LeasedMessage, Duration)>,
    /// The start of the last look.
    pub(in crate::queues) looked: Duration,
    session: Option<SessionId>,
    /// The number of the call that got the leases, if the server made it for a session.
    call: Option<u64>,
    /// The shards that were asked.
    pub(in crate::queues) asked_shards: Vec<u32>,
    /// Whether the dequeue has read the status of shards for want of an offer.
    pub(in crate::queues) has_read_shards: bool,
    /// Whether there are no more messages than these.
    pub completeness: Completeness,
}

impl LeaseBatch {
    /// No leases yet.
    pub(in crate::queues) fn new(
        context: &Arc<QueueContext>,
        queue: &Arc<ServedQueue>,
        session: Option<SessionId>,
    ) -> Self {
        Self {
            context: Arc::clone(context),
            queue: Arc::clone(queue),
            leases: Vec::new(),
            looked: context.elapsed(),
            session,
            call: None,
            asked_shards: Vec::new(),
            has_read_shards: false,
            completeness: Completeness::Complete,
        }
    }

    /// The same leases, as those of a call that the server made for a session.
    pub(in crate::queues) fn of_call(mut self, call: Option<SessionCall>) -> Self {
        self.call = call.map(|call| call.sequence);
        self
    }

    /// The number of the call that got the leases, if the server made it for a session.
    pub fn call(&self) -> Option<u64> {
        self.call
    }

    pub fn queue(&self) -> (QueueId, QueueName) {
        let record = self.queue.record.load();
        (record.id, record.spec.name.clone())
    }

    /// Whether there are leases.
    pub fn has_leases(&self) -> bool {
        !self.leases.is_empty()
    }

    /// The time until the next change by time alone.
    pub fn next_event_in(&self) -> Option<Duration> {
        self.queue.next_event_in(self.context.elapsed())
    }

    /// Takes the leases for the response, best priority first, and of equal ones the first to arrive. Leases of earlier
    /// looks have used up part of their time.
    pub fn take(mut self) -> Vec<LeasedMessage> {
        let now = self.looked;
        let mut leases = std::mem::take(&mut self.leases);
        leases.sort_by_key(|(given, _)| place_of(&given.message.head));
        let left = |(given, at): (LeasedMessage, Duration)| {
            let expires_in = given.lease.expires_in.saturating_sub(now.saturating_sub(at));
            LeasedMessage { lease: LeaseGrant { expires_in, ..given.lease }, ..given }
        };
        leases.into_iter().map(left).collect()
    }

    /// Adds the leases of a shard.
    pub(in crate::queues) fn add(&mut self, leases: Vec<LeaseGrant>, messages: Vec<StoredMessage>, at: Timestamp) {
        let now = self.looked;
        if let Some((id, longest)) = self.session.zip(leases.iter().map(|lease| lease.expires_in).max()) {
            self.context.sessions.leased(id, self.context.elapsed() + longest);
        }
        let (queue, key) = (self.queue.record.load().id, self.context.lease_key);
        let given = leases.into_iter().zip(messages).map(|(lease, message)| {
            let token = lease.token.to_text(queue.0, &key);
            LeasedMessage { lease, token, message, at }
        });
        self.leases.extend(given.map(|given| (given, now)));
    }

    /// Whether the response has no space for another message.
    pub(in crate::queues) fn is_full(&self) -> bool {
        self.room() == 0
    }

    pub(in crate::queues) fn room(&self) -> usize {
        QUEUE_REPLY_BYTES_MAX.saturating_sub(self.bytes()) / QUEUE_MESSAGE_BYTES_MAX
    }

    fn bytes(&self) -> usize {
        self.leases.iter().map(|(given, _)| given.message.body.payload.len() + QUEUE_MESSAGE_BYTES_MAX / 16).sum()
    }
}

impl Drop for LeaseBatch {
    fn drop(&mut self) {
        if self.session.is_none() {
            self.context.release_all(&self.queue, self.leases.iter().map(|(given, _)| given.lease.token));
        }
    }
}
