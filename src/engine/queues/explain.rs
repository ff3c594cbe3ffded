//! Why is this message not being served; why does this dequeue get nothing: one sentence and a next step for each cause.

use std::sync::Arc;
use std::time::Duration;

use crate::domain::Timestamp;
use crate::domain::limits::EXPLAIN_POSITION_MAX;
use crate::domain::queue::command::{MessageRef, Refusal};
use crate::domain::queue::filter::Filter;
use crate::domain::queue::message::CanceledBy;
use crate::domain::queue::{Message, QueueName, State};
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
        let mut causes = Vec::new();
        let spec = queue.spec();
        if let (Some(why), false) = (&spec.dequeue_blocked, found.message.head.state.is_terminal()) {
            causes.push(blocked("dequeue", why));
        }
        causes.push(match found.message.head.state {
            State::Pending => self.explain_pending(name, &queue, &found).await?,
            State::Invisible | State::Running | State::Completed | State::Canceled | State::Errored => {
                explain_state(&found.message.head, found.at, &self.worker_of(&found.message.head))
            }
        });
        Ok((causes, Some(found)))
    }

    /// Who has a message, as far as is known.
    fn worker_of(&self, head: &Message) -> String {
        let session = head.lease.and_then(|lease| lease.session);
        match session.map(|session| (session.id, self.shared.sessions.label(session.id))) {
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
        let waiting = queue.waiters.len();
        Ok(match (ahead, waiting) {
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
            let text = format!(
                "{pending} messages are pending, and every one is held back by another of its exclusivity value that is in \
                 flight; wait for those leases to end, or raise the limit of the values"
            );
            causes.push(because("value_held", text));
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

fn explain_state(head: &Message, at: Timestamp, worker: &str) -> Explanation {
    match head.state {
        State::Invisible => {
            let left = in_short(head.visible_at.since(at));
            because("invisible", format!("it is invisible for another {left}; wait, or update its visible time"))
        }
        State::Running => {
            let (since, left) = head
                .lease
                .map_or((Duration::ZERO, Duration::ZERO), |lease| (at.since(lease.since), lease.expires.since(at)));
            let (since, left) = (in_short(since), in_short(left));
            let attempt = head.attempt_number();
            because(
                "running",
                format!(
                    "{worker} has had it for {since} (attempt {attempt}); its lease ends in {left} unless it goes on"
                ),
            )
        }
        State::Completed => because("completed", "its work is done: nothing is left to serve"),
        State::Canceled => because("canceled", format!("it was canceled: {}; enqueue it anew", canceled_text(head))),
        State::Errored => {
            let error = head.error.as_ref().map(|error| format!(": {} {}", error.signature, error.text));
            because(
                "errored",
                format!(
                    "all {} attempts are spent{}; mend the cause, then redrive it",
                    head.max_attempts,
                    error.unwrap_or_default()
                ),
            )
        }
        State::Pending => because("next", "it is pending"),
    }
}

/// Why a message was canceled, in words.
pub fn canceled_text(head: &Message) -> String {
    match &head.canceled_by {
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
