//! Why is this message not being served: one sentence and a next step for each cause.

use std::time::Duration;

use crate::domain::Timestamp;
use crate::domain::limits::EXPLAIN_POSITION_MAX;
use crate::domain::queue::command::{MessageRef, Refusal};
use crate::domain::queue::explain::{Cause, Holder};
use crate::domain::queue::message::{CanceledBy, Routing, WorkError};
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

pub(super) fn because(cause: &'static str, text: impl Into<String>) -> Explanation {
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
                let text = "the queue has no message of this id: it was never enqueued, or its retention is over; check \
                            the answer of its enqueue, and leave shard_key out to look everywhere";
                return Ok((vec![because("unknown_id", text)], None));
            }
            Err(error) => return Err(error),
        };
        let shard = found.message.head.key.shard;
        let key = MessageRef::Key(found.message.head.key);
        let told = self.shared.stores.shards.explain(queue.shard(shard).id, key).await;
        let (causes, at) = told.map_err(|error| self.shared.not_found_if_gone(&queue, error))?;
        let mut explained = Vec::with_capacity(causes.len());
        let is_blocked = causes.iter().any(|cause| matches!(cause, Cause::DequeueBlocked(_)));
        for cause in &causes {
            explained.push(match cause {
                Cause::Ready { .. } if !is_blocked => self.explain_pending(name, &queue, &found).await?,
                told => self.worded(told, at),
            });
        }
        Ok((explained, Some(found)))
    }

    /// One cause in words, but for the place in line.
    pub(super) fn worded(&self, cause: &Cause, at: Timestamp) -> Explanation {
        match cause {
            Cause::QueueDeleted | Cause::Unknown => because("unknown_id", "the message is gone since it was found"),
            Cause::DequeueBlocked(why) => blocked("dequeue", why),
            Cause::InvisibleUntil { until, after_failure } => {
                let left = in_short(until.since(at));
                let why = if *after_failure { ", because its last attempt failed" } else { "" };
                because(
                    "invisible",
                    format!(
                        "it is invisible for another {left}{why}; wait, or make it visible with UpdateMessage (msg update \
                         --invisibility 0s)"
                    ),
                )
            }
            Cause::ValueHeld { value, limit, holders } => {
                because("value_held", self.held_text(value, *limit, holders, at))
            }
            Cause::Behind { key, state } => {
                let step = match state {
                    State::Invisible => {
                        "wait until that one is visible and done, or cancel it with CancelMessage (msg cancel --id)"
                    }
                    State::Running => "wait for its lease, or settle that one",
                    // What is over holds nothing back.
                    _ => "let that one be served, or cancel it with CancelMessage (msg cancel --id)",
                };
                let what = "messages of its exclusivity value are served one after another";
                because("value_held", format!("{what}, and {key}, which is {state}, comes first; {step}"))
            }
            Cause::Ready { ahead: 0, .. } => because("next", "it is the next to be served once dequeues are unblocked"),
            Cause::Ready { ahead, .. } => because(
                "position",
                format!(
                    "at least {} served before it once dequeues are unblocked",
                    counted(*ahead as u64, "message of its shard is", "messages of its shard are")
                ),
            ),
            Cause::Running(holder) => {
                let (worker, since) = (self.worker_of(holder.session), in_short(at.since(holder.since)));
                let left = in_short(holder.expires.since(at));
                let step = if holder.cancel_requested {
                    "it was asked to cancel it: wait for its answer or the end of the lease"
                } else {
                    "wait for it, or ask it to stop with CancelMessage (msg cancel --id)"
                };
                because(
                    "running",
                    format!(
                        "{worker} has had it for {since} by lease {}, which ends in {left} unless it goes on; {step}",
                        holder.fence.serial
                    ),
                )
            }
            Cause::Completed => because(
                "completed",
                "its work is done and nothing is left to serve; to have it done again, enqueue it under another id",
            ),
            Cause::Canceled(by) => because(
                "canceled",
                format!(
                    "it was canceled: {}; enqueue it under another id if it is still to be done",
                    canceled_text(by.as_ref())
                ),
            ),
            Cause::Errored { attempts, error } => because("errored", errored_text(*attempts, error.as_ref())),
        }
    }

    /// Why the messages of an exclusivity value are held back.
    fn held_text(&self, value: &Routing, limit: u32, holders: &[Holder], at: Timestamp) -> String {
        let value = value.as_str();
        if limit == 0 {
            let step = "raise it with SetValueLimit (queue limit)";
            return format!("its exclusivity value {value:?} rests: its limit is 0; {step}");
        }
        let holder = |holder: &Holder| {
            let (since, left) = (in_short(at.since(holder.since)), in_short(holder.expires.since(at)));
            let worker = self.worker_of(holder.session);
            let lease = holder.fence.serial;
            format!("{worker} has had {} for {since} by lease {lease}, until {left} from now", holder.key)
        };
        let holders: Vec<String> = holders.iter().map(holder).collect();
        format!(
            "its exclusivity value {value:?} is at its limit of {limit}: {}; wait for that, or raise the limit of the \
             value with SetValueLimit (queue limit)",
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
            (_, 1) if matching == 0 => because(
                "no_matching_worker",
                "1 worker waits at this server, and its filter does not meet it; start one that takes it",
            ),
            (_, 1..) if matching == 0 => because(
                "no_matching_worker",
                format!(
                    "{waiting} workers wait at this server, and the filters of none of them meet it; start one that takes it"
                ),
            ),
            (0, 0) => because(
                "next",
                "it is the next to be served, and no worker waits at this server: start a worker (tallystone work), or let \
                 one call Dequeue (msg pull)",
            ),
            (0, _) => because("next", "it is the next to be served; a worker is being woken for it"),
            (ahead, _) if ahead == next.len() => because(
                "position",
                format!(
                    "at least {} served before it; add workers, or lower its priority number with UpdateMessage (msg \
                     update --priority)",
                    counted(ahead as u64, "message is", "messages are")
                ),
            ),
            (ahead, waiting) => because(
                "position",
                format!(
                    "it is about number {} in line, and {} at this server",
                    ahead + 1,
                    counted(waiting as u64, "worker waits", "workers wait")
                ),
            ),
        })
    }
}

/// So many, with the words for one or for another number.
pub(super) fn counted(count: u64, one: &str, many: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {many}") }
}

pub(super) fn blocked(what: &str, why: &str) -> Explanation {
    let cause = if what == "dequeue" { "dequeue_blocked" } else { "enqueue_blocked" };
    because(
        cause,
        format!("{what}s are blocked: {why}; unblock the queue when that is over, with UpdateQueue (queue unblock)"),
    )
}

/// How a message came to be errored, and what the last failure said.
fn errored_text(attempts: u32, error: Option<&WorkError>) -> String {
    let error = error.map_or_else(
        || "its last lease ended without a word of its worker".to_owned(),
        |error| shortened(format!("{} {}", error.signature, error.text).trim()),
    );
    let spent = match attempts {
        1 => "its one attempt is spent".to_owned(),
        attempts => format!("all {attempts} attempts are spent"),
    };
    format!("{spent}: {error}; mend the cause, then redrive it with RedriveMessages (dlq redrive)")
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

/// The longest error of a worker that a sentence tells, in characters; the message has all of it.
const ERROR_TOLD_CHARS: usize = 100;

/// The beginning of a text, in one line.
fn shortened(text: &str) -> String {
    let mut chars = text.chars().map(|char| if char.is_control() { ' ' } else { char });
    let told: String = chars.by_ref().take(ERROR_TOLD_CHARS).collect();
    if chars.next().is_some() { format!("{told}…") } else { told }
}

/// A duration to the tenth of a second.
pub(super) fn in_short(time: Duration) -> String {
    duration_text(Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX) / 100 * 100))
}
