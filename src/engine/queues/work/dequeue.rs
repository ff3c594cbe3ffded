//! Dequeue: leases over all shards, best message first, with waiting inside the server.
//!
//! A shard is asked only if it may have a message, so an empty result costs nothing if one server owns the store. If
//! several share it, a dequeue that finds nothing reads each shard once before it says so. Of several shards with
//! messages each is asked for its share: the order is exact within a shard and approximate across shards. Leases for a
//! worker that goes away during its call are released.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};

use crate::queues::calls::lease_batch::LeaseBatch;
use crate::queues::error::QueueError;
use crate::queues::error::unexpected;
use crate::queues::sessions::{ActiveSessionCall, SentSessionCall};
use crate::queues::state::served_queue::ServedQueue;
use crate::queues::state::shard_offers::place_of;
use crate::queues::state::waiters::WaiterSlot;
use crate::queues::work::WorkService;
use tallystone_domain::limits::{
    DEQUEUE_HEARS_NEWS, DEQUEUE_MESSAGES_MAX, DEQUEUE_ROUNDS_MAX, DEQUEUE_SHARDS_READ_AT_ONCE_MAX, DEQUEUE_WAIT_MAX,
    LEASE_MAX, LEASE_MIN,
};
use tallystone_domain::queue::command::{self, Completeness, Refusal};
use tallystone_domain::queue::filter::Filter;
use tallystone_domain::queue::invalid_command::InvalidCommandPart;
use tallystone_domain::queue::messages::message::MessageRef;
use tallystone_domain::queue::session_records::SessionCall;
use tallystone_domain::queue::{Command, QueueName, Reply};
use tallystone_ports::ShardCommand;

#[derive(Clone, Debug, Default)]
pub struct DequeueRequest {
    /// The most messages, 1 to 100.
    pub max: usize,
    pub lease: Option<Duration>,
    /// The wait for the first message, at most `DEQUEUE_WAIT_MAX`.
    pub wait: Duration,
    pub filter: Filter,
    /// Only this message, if it matches the filter.
    pub message: Option<MessageRef>,
    /// The behaviour while dequeues are blocked.
    pub blocked: WhenBlocked,
    /// The session call of this request. A repeat of it gets the same leases.
    pub session: Option<SentSessionCall>,
    /// The number of messages that ends the wait; 0 means 1. Each lease runs from the time at which it was given.
    pub min: usize,
}

/// The behaviour while dequeues are blocked.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum WhenBlocked {
    #[default]
    Refuse,
    /// Wait, as for messages.
    Wait,
}

/// How a wait for messages ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WaitEnd {
    Woken,
    TimeOver,
    /// No more leases are granted.
    Draining,
}

impl WorkService {
    /// Leases messages, and waits for the first on request.
    pub async fn dequeue(&self, name: &QueueName, ask: DequeueRequest) -> Result<LeaseBatch, QueueError> {
        if !(1..=DEQUEUE_MESSAGES_MAX).contains(&ask.max) {
            return Err(InvalidCommandPart::Count.into());
        }
        if ask.lease.is_some_and(|lease| !(LEASE_MIN..=LEASE_MAX).contains(&lease)) {
            return Err(InvalidCommandPart::Lease.into());
        }
        let queue = self.catalog.queue(name).await?;
        let session = match ask.session {
            Some(asked) => Some(self.sessions.admit(asked).await?),
            None => None,
        };
        let (ask, session) = (&ask, session.as_ref());
        self.catalog.call_on(queue, |queue| async move { self.dequeue_of(name, &queue, ask, session).await }).await
    }

    async fn dequeue_of(
        &self,
        name: &QueueName,
        queue: &Arc<ServedQueue>,
        ask: &DequeueRequest,
        session: Option<&ActiveSessionCall>,
    ) -> Result<LeaseBatch, QueueError> {
        if let Some(session) = session.filter(|session| session.may_be_repeat) {
            if let Some(again) = self.sessions.recall(queue, session.call).await? {
                return Ok(again);
            }
            if session.is_superseded {
                // A later call of the session could confirm a lease of this call without having seen it.
                return Err(Refusal::SequenceTooOld.into());
            }
        }
        if let Some(message) = ask.message.clone() {
            return self.dequeue_one(queue, message, ask, session.map(|session| session.call)).await;
        }
        self.dequeue_within(name, queue, ask, session).await
    }

    /// Leases the available messages, or those that arrive within the wait.
    async fn dequeue_within(
        &self,
        name: &QueueName,
        queue: &Arc<ServedQueue>,
        ask: &DequeueRequest,
        session: Option<&ActiveSessionCall>,
    ) -> Result<LeaseBatch, QueueError> {
        let call = session.map(|session| session.call);
        let until = self.context.elapsed() + ask.wait.min(DEQUEUE_WAIT_MAX);
        let (mut rounds, mut told) = (0, false);
        let mut found = LeaseBatch::new(&self.context, queue, call.map(|call| call.id));
        let mut place = None;
        if !ask.wait.is_zero() && queue.waiters.come_first() {
            let last = place.insert(queue.waiters.enter(Arc::new(ask.filter.clone()), None));
            if let Some(call) = call.filter(|call| call.received_up_to.is_some()) {
                self.sessions.heartbeat_other_shards(queue, &call, &[]);
                told = true;
            }
            if last.is_behind && self.wait_for_turn(last, until, session).await? == WaitEnd::Draining {
                return Ok(found);
            }
            self.context.queue(name)?;
        }
        // Whether a look reached the end while the slot was held, and nothing has woken it since.
        let mut seen_all = false;
        loop {
            let looked = place.as_ref().map(WaiterSlot::begin_look);
            self.lease_from_shards(queue, ask, call, &mut found).await?;
            if let Some(call) = call.filter(|call| !told && call.received_up_to.is_some()) {
                self.sessions.heartbeat_other_shards(queue, &call, &found.asked_shards);
                told = true;
            }
            let left = until.saturating_sub(self.context.elapsed());
            let enough = found.leases.len() >= ask.min.clamp(1, ask.max);
            if enough || found.is_full() {
                return Ok(found);
            }
            seen_all |= looked.is_some() && found.completeness == Completeness::Complete;
            if seen_all && left.is_zero() && found.completeness == Completeness::Partial {
                // The last look started a walk again; the part that it did not reach was examined before.
                found.completeness = Completeness::Complete;
            }
            if found.completeness != Completeness::Complete && (rounds < DEQUEUE_ROUNDS_MAX || !left.is_zero()) {
                // A bound left messages over: the result is not "empty" before all were examined.
                rounds += 1;
                continue;
            }
            if left.is_zero() {
                return Ok(found);
            }
            let (Some(place), Some(looked)) = (&place, looked) else {
                // The owner of a slot looks once more before it sleeps. Most requests find messages at once and need no
                // slot.
                place = Some(queue.waiters.enter(Arc::new(ask.filter.clone()), None));
                continue;
            };
            place.sleep_after_look(looked);
            match self.wait_for_turn(place, until, session).await? {
                WaitEnd::Woken => seen_all = false,
                WaitEnd::TimeOver => {}
                WaitEnd::Draining => return Ok(found),
            }
            self.context.queue(name)?;
        }
    }

    /// Waits until a waiter is woken, its time is over, or no more leases are granted.
    async fn wait_for_turn(
        &self,
        place: &WaiterSlot<'_>,
        until: Duration,
        session: Option<&ActiveSessionCall>,
    ) -> Result<WaitEnd, QueueError> {
        let left = until.saturating_sub(self.context.elapsed());
        tokio::select! {
            biased;
            () = place.wait_until_woken() => Ok(WaitEnd::Woken),
            () = self.context.drain.cancelled() => Ok(WaitEnd::Draining),
            ended = session_end(session) => Err(ended),
            () = self.context.sleep(left) => Ok(WaitEnd::TimeOver),
        }
    }

    /// Leases the available messages of all shards.
    pub(super) async fn lease_from_shards(
        &self,
        queue: &Arc<ServedQueue>,
        ask: &DequeueRequest,
        call: Option<SessionCall>,
        found: &mut LeaseBatch,
    ) -> Result<(), QueueError> {
        (found.looked, found.completeness) = (self.context.elapsed(), Completeness::Complete);
        queue.record_dequeue(found.looked);
        match (self.refuse_blocked(queue).await, ask.blocked) {
            (Err(QueueError::Refused(Refusal::DequeueBlocked(_))), WhenBlocked::Wait) => return Ok(()),
            (Err(_), _) if !found.leases.is_empty() => return Ok(()), // what was found is answered
            (refused, _) => refused?,
        }
        let (mut exhausted, mut left_over) = (vec![false; queue.shards() as usize], false);
        if call.is_some() {
            // A shard answers a call of a session once; asked again, it would return the same.
            found.leases.iter().for_each(|(given, _)| exhausted[given.lease.token.key.shard as usize] = true);
        }
        while found.leases.len() < ask.max {
            let mut offers = queue.offers(&ask.filter, self.context.elapsed());
            offers.retain(|offer| !exhausted[offer.shard as usize]);
            let Some(best) = offers.first() else {
                if self.may_be_outdated(queue, ask, found) {
                    self.read_shards(queue, &exhausted).await?;
                    continue;
                }
                break;
            };
            let room = found.room();
            if room == 0 {
                found.completeness = Completeness::More;
                break;
            }
            let share = (ask.max - found.leases.len()).div_ceil(offers.len()).min(room);
            let shard = best.shard;
            queue.give_turn(shard);
            let asked = command::Dequeue {
                max: share,
                lease: ask.lease,
                cursor: queue.shard(shard).filter_cursors.cursor(&ask.filter),
                filter: ask.filter.clone(),
                session: call,
                worker: self.worker_of(call),
                ..command::Dequeue::default()
            };
            let (count, completeness) = self.lease_from_shard(queue, shard, asked, found).await?;
            if count < share {
                exhausted[shard as usize] = true;
                if completeness != Completeness::Complete {
                    found.completeness = completeness;
                }
            } else if call.is_some() {
                exhausted[shard as usize] = true;
                left_over = true;
            }
        }
        if left_over && found.leases.len() < ask.max && found.completeness == Completeness::Complete {
            found.completeness = Completeness::More;
        }
        if found.leases.is_empty() {
            self.context.stats().dequeues_empty.increment();
        }
        let (looked, now) = (found.looked, self.context.elapsed());
        let given = found.leases.iter().filter(|(_, at)| *at == looked);
        let given = given.map(|(given, _)| (given.message.head.priority, given.lease.token.key.shard));
        self.context.stats().leases_out_of_rank.add(queue.out_of_rank(given, now));
        Ok(())
    }

    /// Leases one message by id or key.
    async fn dequeue_one(
        &self,
        queue: &Arc<ServedQueue>,
        message: MessageRef,
        ask: &DequeueRequest,
        call: Option<SessionCall>,
    ) -> Result<LeaseBatch, QueueError> {
        self.refuse_blocked(queue).await?;
        let mut found = LeaseBatch::new(&self.context, queue, call.map(|call| call.id));
        if !ask.filter.is_empty() {
            // Metadata never changes, so a message that does not match now never will.
            let name = queue.record.load().spec.name.clone();
            let looked = self.inspect.get_message(&name, message.clone()).await?;
            if !ask.filter.matches(&looked.message.head.metadata) {
                return Ok(found);
            }
        }
        let shard = self.context.shard_of(queue, &message).await?;
        let (message, worker) = (Some(message), self.worker_of(call));
        let asked = command::Dequeue {
            max: 1,
            lease: ask.lease,
            message,
            session: call,
            worker,
            ..command::Dequeue::default()
        };
        self.lease_from_shard(queue, shard, asked, &mut found).await?;
        Ok(found)
    }

    /// The label of a call's session, for the history of the messages; none if it has no label, or the server does not
    /// know it.
    fn worker_of(&self, call: Option<SessionCall>) -> Option<Box<str>> {
        call.map(|call| self.context.sessions.label(call.id)).filter(|label| !label.is_empty())
    }

    async fn lease_from_shard(
        &self,
        queue: &Arc<ServedQueue>,
        shard: u32,
        asked: command::Dequeue,
        found: &mut LeaseBatch,
    ) -> Result<(usize, Completeness), QueueError> {
        let (filter, session) = (asked.filter.clone(), asked.session.map(|call| call.id));
        if let Some(call) = asked.session {
            found.asked_shards.push(shard);
            self.sessions.touch_shard(call, queue.shard(shard).id).await?;
        }
        let answer = self.context.call(queue, shard, ShardCommand::of(Command::Dequeue(asked))).await?;
        match (answer.reply, session) {
            (Ok(Reply::Leases { leases, completeness, cursor }), _) => {
                let count = leases.len();
                if let Some(last) = answer.messages.iter().map(|message| place_of(&message.head)).max() {
                    queue.record_reached(shard, &filter, last, self.context.elapsed());
                }
                queue.shard(shard).filter_cursors.keep(filter, cursor);
                self.context.stats().leases_given.add(count as u64);
                found.add(leases, answer.messages, answer.at);
                Ok((count, completeness))
            }
            (Ok(other), _) => Err(unexpected("dequeue", &other)),
            (Err(refusal), Some(id)) => Err(self.sessions.record_refusal(id, refusal)),
            (Err(refusal), None) => Err(refusal.into()),
        }
    }

    /// Whether a dequeue that has found nothing has to read the shards before it says so: other servers of the store
    /// may have put something there of which the news is still on its way. Once for each dequeue. One that waits hears
    /// that news, so it reads only shards of which nothing is known: idle workers, who ask again and again, cost the
    /// store nothing.
    fn may_be_outdated(&self, queue: &ServedQueue, ask: &DequeueRequest, found: &mut LeaseBatch) -> bool {
        let is_first = !std::mem::replace(&mut found.has_read_shards, true);
        let hears_news = || ask.wait >= DEQUEUE_HEARS_NEWS && queue.knows_all_shards();
        is_first && self.context.is_shared() && found.leases.is_empty() && !hears_news()
    }

    /// Reads the status of the shards that this dequeue has not asked.
    async fn read_shards(&self, queue: &Arc<ServedQueue>, asked: &[bool]) -> Result<(), QueueError> {
        let shards = (0..queue.shards()).filter(|shard| !asked[*shard as usize]);
        let reads =
            shards.map(|shard| async move { (shard, self.context.stores.reader.totals(queue.shard(shard).id).await) });
        let mut reads = stream::iter(reads).buffer_unordered(DEQUEUE_SHARDS_READ_AT_ONCE_MAX);
        while let Some((shard, read)) = reads.next().await {
            let read = read.map_err(|error| self.context.translate_store_error(queue, error))?;
            self.context.update_view(queue, shard, read.view);
        }
        Ok(())
    }

    async fn refuse_blocked(&self, queue: &ServedQueue) -> Result<(), QueueError> {
        if self.context.drain.is_cancelled() {
            return Err(QueueError::ShuttingDown);
        }
        if queue.record.load().spec.dequeue_blocked.is_some() {
            // Another server may just have removed the block.
            self.catalog.read_changes().await?;
        }
        match &queue.record.load().spec.dequeue_blocked {
            Some(why) => Err(Refusal::DequeueBlocked(why.clone()).into()),
            None => Ok(()),
        }
    }
}

/// Waits until the session of a call has ended; for ever without a session.
async fn session_end(session: Option<&ActiveSessionCall>) -> QueueError {
    match session {
        Some(session) => session.wait_for_end().await,
        None => std::future::pending().await,
    }
}
