//! Why is this message not being served; why does this dequeue get nothing: one sentence and a next step for each cause.

use std::sync::Arc;
use std::time::Duration;

use crate::domain::Timestamp;
use crate::domain::limits::{EXPLAIN_HOLDERS_MAX, EXPLAIN_POSITION_MAX};
use crate::domain::queue::command::{MessageRef, Refusal};
use crate::domain::queue::explain::{Cause, Holder};
use crate::domain::queue::filter::Filter;
use crate::domain::queue::message::{CanceledBy, Routing};
use crate::domain::queue::session::SessionId;
use crate::domain::queue::{QueueName, State};
use crate::engine::namespaces::duration_text;
use crate::engine::queues::Queues;
use crate::engine::queues::error::QueueError;
use crate::engine::queues::live::LiveQueue;
use crate::engine::queues::look::Found;

/// One cause.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Explanation {
    /// The cause, for programs.
    pub cause: &'static str,
    /// One sentence with what to do next.
    pub text: String,
}

fn because(cause: &'static str, text: impl Into<String>) -> Explanation {
    Explanation { cause, text: text.into() }
}

impl Queues {
    /// Says why a message is not being served.
    pub async fn explain_message(
        &self,
        name: &QueueName,
        message: MessageRef,
    ) -> Result<(Vec<Explanation>, Option<Found>), QueueError> {
        let queue = self.shared.queue(name)?;
        let found = match self.get_message(name, message).await {
            Ok(found) => found,
            Err(QueueError::Refused(Refusal::NotFound)) => {
                let text = "the queue has no message of this id: it was never enqueued, was enqueued with a shard key or \
                            exclusivity value that has to be given too, or its retention is over; check the answer of \
                            its enqueue";
                return Ok((vec![because("unknown_id", text)], None));
            }
            Err(error) => return Err(error),
        };
        let shard = found.message.head.key.shard;
        let key = MessageRef::Key(found.message.head.key);
        let told = self.shared.stores.shards.explain(queue.shard(shard).id, key).await;
        let (causes, at) = told.map_err(|error| self.shared.not_found_if_gone(&queue, error))?;
        let mut explained = Vec::with_capacity(causes.len());
        for cause in &causes {
            explained.push(match cause {
                Cause::Ready { .. } => self.explain_pending(name, &queue, &found).await?,
                told => self.worded(told, at),
            });
        }
        Ok((explained, Some(found)))
    }

    /// One cause in words, but for the place in line.
    fn worded(&self, cause: &Cause, at: Timestamp) -> Explanation {
        match cause {
            Cause::QueueDeleted | Cause::Unknown => because("unknown_id", "the message is gone since it was found"),
            Cause::DequeueBlocked(why) => blocked("dequeue", why),
            Cause::InvisibleUntil { until, after_failure } => {
                let left = in_short(until.since(at));
                let why = if *after_failure { ", because its last attempt failed" } else { "" };
                because(
                    "invisible",
                    format!("it is invisible for another {left}{why}; wait, or update its visible time"),
                )
            }
            Cause::ValueHeld { value, limit, holders } => {
                because("value_held", self.held_text(value, *limit, holders, at))
            }
            Cause::Behind { key, state } => because(
                "value_held",
                format!(
                    "messages of its exclusivity value are served one after another, and {key}, which is {state}, comes \
                     first; settle or cancel that one"
                ),
            ),
            Cause::Ready { ahead, .. } => {
                because("position", format!("at least {ahead} messages are served before it"))
            }
            Cause::Running(holder) => {
                let (worker, since) = (self.worker_of(holder.session), in_short(at.since(holder.since)));
                let left = in_short(holder.expires.since(at));
                let asked = if holder.cancel_requested { "; it was asked to cancel it" } else { "" };
                because(
                    "running",
                    format!("{worker} has had it for {since}; its lease ends in {left} unless it goes on{asked}"),
                )
            }
            Cause::Completed => because("completed", "its work is done: nothing is left to serve"),
            Cause::Canceled(by) => {
                because("canceled", format!("it was canceled: {}; enqueue it anew", canceled_text(by.as_ref())))
            }
            Cause::Errored { attempts, error } => {
                let error = error.as_ref().map_or_else(
                    || ": its last lease ended without a word of its worker".to_owned(),
                    |error| format!(": {} {}", error.signature, error.text),
                );
                because("errored", format!("all {attempts} attempts are spent{error}; mend the cause, then redrive it"))
            }
        }
    }

    /// Why the messages of an exclusivity value are held back.
    fn held_text(&self, value: &Routing, limit: u32, holders: &[Holder], at: Timestamp) -> String {
        let value = value.as_str();
        if limit == 0 {
            return format!("its exclusivity value {value:?} rests: its limit is 0; raise it with SetValueLimit");
        }
        let holder = |holder: &Holder| {
            let (since, left) = (in_short(at.since(holder.since)), in_short(holder.expires.since(at)));
            let worker = self.worker_of(holder.session);
            format!("{worker} has had {} for {since}, until {left} from now", holder.key)
        };
        let holders: Vec<String> = holders.iter().map(holder).collect();
        format!(
            "its exclusivity value {value:?} is at its limit of {limit}: {}; wait for that, or raise the limit of the value",
            holders.join(", ")
        )
    }

    /// Who has a lease, as far as is known.
    fn worker_of(&self, session: Option<SessionId>) -> String {
        match session.map(|id| (id, self.shared.sessions.label(id))) {
            None => "a worker".to_owned(),
            Some((id, label)) if label.is_empty() => format!("the worker of session {id}"),
            Some((id, label)) => format!("worker {label:?} (session {id})"),
        }
    }

    async fn explain_pending(
        &self,
        name: &QueueName,
        queue: &LiveQueue,
        found: &Found,
    ) -> Result<Explanation, QueueError> {
        let next = self.peek(name, EXPLAIN_POSITION_MAX).await?;
        let ahead = next.iter().take_while(|other| other.message.head.key != found.message.head.key).count();
        let (waiting, matching) = (queue.waiters.len(), queue.waiters.matching(&found.message.head.metadata));
        Ok(match (ahead, waiting) {
            (_, 1..) if matching == 0 => because(
                "no_matching_worker",
                format!(
                    "{waiting} workers wait at this server, and the filters of none of them meet it; start one that takes it"
                ),
            ),
            (0, 0) => because(
                "next",
                "it is the next to be served, and no worker waits at this server: start a worker, or let one call Dequeue",
            ),
            (0, _) => because("next", "it is the next to be served; a worker is being woken for it"),
            (ahead, _) if ahead == next.len() => because(
                "position",
                format!("at least {ahead} messages are served before it; add workers, or lower its priority number"),
            ),
            (ahead, waiting) => because(
                "position",
                format!("it is about number {} in line, and {waiting} workers wait at this server", ahead + 1),
            ),
        })
    }

    /// Says why a dequeue gets nothing.
    pub async fn explain_queue(&self, name: &QueueName, filter: Filter) -> Result<Vec<Explanation>, QueueError> {
        let queue = self.shared.queue(name)?;
        let spec = queue.spec();
        let mut causes = self.explain_filter(&queue, filter).await?;
        let depth = self.depth_of(&queue).await?;
        if let Some(why) = &spec.dequeue_blocked {
            causes.push(blocked("dequeue", why));
        }
        let (pending, invisible) = (depth.of(State::Pending), depth.of(State::Invisible));
        let (running, errored) = (depth.of(State::Running), depth.of(State::Errored));
        let offers = queue.offers(self.shared.clock.elapsed());
        if pending > 0 && offers.is_empty() && spec.dequeue_blocked.is_none() {
            causes.extend(self.explain_held(&queue, pending).await?);
        } else if pending > 0 && spec.dequeue_blocked.is_none() {
            causes.push(because("next", format!("{pending} messages are pending: a dequeue gets some at once")));
        }
        if pending == 0 && invisible > 0 {
            let within = queue.next_event_in(self.shared.clock.elapsed()).unwrap_or_default();
            let text = format!("{invisible} messages are invisible yet; something changes in {}", in_short(within));
            causes.push(because("invisible", text));
        }
        if pending == 0 && running > 0 {
            let text = format!("{running} messages are leased to workers; they come back only if their leases end");
            causes.push(because("running", text));
        }
        if errored > 0 {
            let text = format!("{errored} messages are out of attempts; read their errors, then redrive them");
            causes.push(because("errored", text));
        }
        if let Some(why) = &spec.enqueue_blocked {
            causes.push(blocked("enqueue", why));
        }
        if pending + invisible + running == 0 {
            causes.push(because("empty", "no message waits: check that producers enqueue into this queue"));
        }
        Ok(causes)
    }
}

impl Queues {
    /// Says which values hold back all that is pending.
    async fn explain_held(&self, queue: &LiveQueue, pending: u64) -> Result<Vec<Explanation>, QueueError> {
        let mut causes = vec![because(
            "value_held",
            format!(
                "{pending} messages are pending, and every one is held back by another of its exclusivity value that is in \
                 flight; wait for those leases to end, or raise the limit of the values"
            ),
        )];
        for number in 0..queue.shards() {
            let room = EXPLAIN_HOLDERS_MAX.saturating_sub(causes.len());
            if room == 0 {
                break;
            }
            let told = self.shared.stores.shards.prospect(queue.shard(number).id, Filter::default()).await;
            let (prospect, at) = told.map_err(|error| self.shared.not_found_if_gone(queue, error))?;
            causes.extend(prospect.held.iter().take(room).map(|(_, cause)| self.worded(cause, at)));
        }
        Ok(causes)
    }

    /// Says what stands against a filter, if it has any pairs.
    async fn explain_filter(&self, queue: &Arc<LiveQueue>, filter: Filter) -> Result<Vec<Explanation>, QueueError> {
        if filter.is_empty() {
            return Ok(Vec::new());
        }
        match self.depth_by(queue, filter).await {
            Ok(depth) if depth.of(State::Pending) > 0 => {
                let count = depth.of(State::Pending);
                Ok(vec![because("next", format!("{count} pending messages meet the filter"))])
            }
            Ok(depth) => {
                let text = format!(
                    "no pending message meets the filter; of those that do, {} are invisible and {} are leased",
                    depth.of(State::Invisible),
                    depth.of(State::Running)
                );
                Ok(vec![because("filter_not_met", text)])
            }
            Err(QueueError::FilterNotDeclared { .. }) => {
                let text = "the filter has no index, so a dequeue looks at some messages of each shard and may answer \
                            PARTIAL: call again, or declare its keys in filter_shapes";
                Ok(vec![because("filter_not_declared", text)])
            }
            Err(error) => Err(error),
        }
    }
}

fn blocked(what: &str, why: &str) -> Explanation {
    let cause = if what == "dequeue" { "dequeue_blocked" } else { "enqueue_blocked" };
    because(cause, format!("{what}s are blocked: {why}; unblock the queue when that is over"))
}

/// Why a message was canceled, in words.
fn canceled_text(by: Option<&CanceledBy>) -> String {
    match by {
        Some(CanceledBy::Worker) => "by its worker".to_owned(),
        Some(CanceledBy::Request(why)) if why.is_empty() => "on request".to_owned(),
        Some(CanceledBy::Request(why)) => format!("on request: {why}"),
        Some(CanceledBy::Purge) => "by a purge".to_owned(),
        Some(CanceledBy::Ttl) => "its TTL was over".to_owned(),
        None => String::new(),
    }
}

/// A duration to the tenth of a second.
fn in_short(time: Duration) -> String {
    duration_text(Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX) / 100 * 100))
}
