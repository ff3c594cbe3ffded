//! Texts for causes: who holds what, since when and until when, and the next step.

use std::time::Duration;

use crate::catalog::duration_text;
use crate::queues::inspect::next_steps::NextSteps;
use crate::queues::state::context::QueueContext;
use crate::queues::state::served_queue::ServedQueue;
use tallystone_domain::Timestamp;
use tallystone_domain::queue::MessageState;
use tallystone_domain::queue::messages::message::{AttemptError, CanceledBy, RoutingValue, SessionId};
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::queue::shard::explain::{Cause, HoldingLease};

/// One cause.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueExplanation {
    /// The cause, for programs.
    pub cause: &'static str,
    /// One sentence with the next step.
    pub text: String,
}

pub(in crate::queues) fn explanation(cause: &'static str, text: impl Into<String>) -> QueueExplanation {
    QueueExplanation { cause, text: text.into() }
}

/// The context of a text about a queue.
#[derive(Clone, Copy)]
pub(in crate::queues) struct CauseText<'a> {
    pub context: &'a QueueContext,
    pub steps: NextSteps<'a>,
    /// The message that is explained, if any.
    pub about: Option<&'a MessageId>,
    /// The shard's time.
    pub at: Timestamp,
}

impl CauseText<'_> {
    pub fn describe(self, cause: &Cause) -> QueueExplanation {
        match cause {
            Cause::QueueDeleted | Cause::Unknown => {
                explanation("unknown_id", "the message was removed after it was found")
            }
            Cause::DequeueBlocked(why) => blocked(self.steps, "dequeue", why),
            Cause::InvisibleUntil { until, after_failure } => {
                let left = in_short(until.since(self.at));
                let why = if *after_failure { ", because its last attempt failed" } else { "" };
                let step = self.about.map_or_else(String::new, |id| {
                    format!("; wait, or make it visible with {}", self.steps.make_visible(id))
                });
                explanation("invisible", format!("it is invisible for another {left}{why}{step}"))
            }
            Cause::ValueHeld { value, limit, holders, waiting } => {
                explanation("value_held", self.held(value, *limit, holders, *waiting))
            }
            Cause::Behind { value, id, state, holder } => {
                explanation("value_held", self.behind(value, id, *state, holder.as_deref()))
            }
            Cause::Ready { ahead: 0, .. } => {
                explanation("next", "it is the next to be served once dequeues are unblocked")
            }
            Cause::Ready { ahead, .. } => explanation(
                "position",
                format!(
                    "at least {} served before it once dequeues are unblocked",
                    counted(*ahead as u64, "message of its shard is", "messages of its shard are")
                ),
            ),
            Cause::Running(holder) => {
                let step = if holder.cancel_requested {
                    "a cancel was requested: wait for the worker's response or the end of the lease".to_owned()
                } else {
                    format!("wait for the worker, or ask it to stop with {}", self.steps.cancel(&holder.id))
                };
                explanation("running", format!("{}; {step}", self.holder_text(holder, "it")))
            }
            Cause::Completed => {
                explanation("completed", "it is completed; to repeat the work, enqueue it with another id")
            }
            Cause::Canceled(by) => explanation(
                "canceled",
                format!(
                    "it was canceled: {}; if the work is still needed, enqueue it with another id",
                    canceled_text(by.as_ref())
                ),
            ),
            Cause::Errored { attempts, error } => explanation("errored", self.errored(*attempts, error.as_ref())),
        }
    }

    /// Explains why messages of an exclusivity value are blocked.
    fn held(self, value: &RoutingValue, limit: u32, holders: &[HoldingLease], waiting: usize) -> String {
        let waits = counted(waiting as u64, "pending message waits", "pending messages wait");
        let (name, step) = (value.as_str(), self.steps.limit(value));
        let holders: Vec<String> = holders.iter().map(|holder| self.holder_text(holder, &named(&holder.id))).collect();
        let holders = holders.join(", ");
        match (limit, holders.is_empty()) {
            (0, true) => {
                format!(
                    "exclusivity value {name:?} is paused: its limit is 0, and {waits} for it; raise the limit with \
                     {step}"
                )
            }
            (0, false) => format!(
                "exclusivity value {name:?} is paused: its limit is 0, and {waits} for it; earlier leases continue: \
                 {holders}; raise the limit with {step}"
            ),
            _ => format!(
                "exclusivity value {name:?} is at its limit of {limit}, and {waits} for it: {holders}; wait for the \
                 end of a lease, or raise the limit of the value with {step}"
            ),
        }
    }

    /// Which message is first where order within a value is strict.
    fn behind(
        self,
        value: &RoutingValue,
        id: &MessageId,
        state: MessageState,
        holder: Option<&HoldingLease>,
    ) -> String {
        let first = named(id);
        let step = match (state, holder) {
            (MessageState::Invisible, _) => {
                format!("wait until that message is visible and finished, or cancel it with {}", self.steps.cancel(id))
            }
            (MessageState::Running, Some(holder)) => {
                format!("{}; wait for the end of its lease, or settle it", self.holder_text(holder, "it"))
            }
            (MessageState::Running, None) => "wait for the end of its lease, or settle it".to_owned(),
            // A finished message blocks nothing.
            _ => format!("wait until that message is served, or cancel it with {}", self.steps.cancel(id)),
        };
        let value = value.as_str();
        format!("messages of exclusivity value {value:?} are served in order, and {first} ({state}) is first; {step}")
    }

    /// Names the holder of a message, since when and until when it has it.
    fn holder_text(self, holder: &HoldingLease, what: &str) -> String {
        let (worker, at) = (worker_of(self.context, holder.session), self.at);
        let (since, left) = (in_short(at.since(holder.since)), in_short(holder.expires.since(at)));
        format!(
            "{worker} has had {what} for {since}, since {}, and its lease ends in {left}, at {}, unless it is extended",
            clock(holder.since),
            clock(holder.expires)
        )
    }

    /// Explains why a message is errored, with its last error.
    fn errored(self, attempts: u32, error: Option<&AttemptError>) -> String {
        let error = error.map_or_else(
            || "its last lease expired without a response from the worker".to_owned(),
            |error| shortened(format!("{} {}", error.signature, error.text).trim()),
        );
        let spent = match attempts {
            1 => "its only attempt is used up".to_owned(),
            attempts => format!("all {attempts} attempts are used up"),
        };
        let step = self.about.map_or_else(|| self.steps.redrive_all(), |id| self.steps.redrive(id));
        format!("{spent}: {error}; fix the cause, then redrive it with {step}")
    }
}

fn named(id: &MessageId) -> String {
    format!("message {:?}", &*id.text())
}

/// The worker that holds a lease, as far as it is known. The session id is the worker's secret, so the text has the
/// alias.
fn worker_of(shared: &QueueContext, session: Option<SessionId>) -> String {
    match session.map(|id| (shared.session_alias(id), shared.sessions.label(id))) {
        None => "a worker without a session".to_owned(),
        Some((shown, label)) if label.is_empty() => format!("the worker of session {shown}"),
        Some((shown, label)) => format!("worker {label:?} (session {shown})"),
    }
}

/// The cause that no worker dequeues; none while a worker waits.
pub(in crate::queues) fn no_worker_waits(
    steps: NextSteps<'_>,
    queue: &ServedQueue,
    running: u64,
    now: Duration,
) -> Option<QueueExplanation> {
    if queue.waiters.len() > 0 {
        return None;
    }
    let busy = match running {
        0 => String::new(),
        _ => format!("; {} leased", counted(running, "message is", "messages are")),
    };
    let last = match queue.last_dequeue() {
        None => "there was no dequeue since the server started".to_owned(),
        Some(asked) => format!("the last dequeue was {} ago", in_short(now.saturating_sub(asked))),
    };
    let text = format!(
        "no worker waits at this server, and {last}{busy}; start a worker ({}), or call {}",
        steps.work(),
        steps.pull()
    );
    Some(explanation("no_worker", text))
}

/// A count with its singular or plural words.
pub(in crate::queues) fn counted(count: u64, one: &str, many: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {many}") }
}

/// The cause that enqueues or dequeues of a queue are blocked.
pub(in crate::queues) fn blocked(steps: NextSteps<'_>, what: &str, why: &str) -> QueueExplanation {
    let cause = if what == "dequeue" { "dequeue_blocked" } else { "enqueue_blocked" };
    explanation(cause, format!("{what}s are blocked: {why}; unblock the queue with {}", steps.unblock()))
}

/// Says why a message was canceled.
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

/// The longest error text of a worker within a sentence, in characters; the message holds the full text.
const ERROR_TOLD_CHARS: usize = 100;

/// The beginning of a text, on one line.
fn shortened(text: &str) -> String {
    let mut chars = text.chars().map(|char| if char.is_control() { ' ' } else { char });
    let told: String = chars.by_ref().take(ERROR_TOLD_CHARS).collect();
    if chars.next().is_some() { format!("{told}…") } else { told }
}

/// A duration to a tenth of a second.
pub(in crate::queues) fn in_short(time: Duration) -> String {
    duration_text(Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX) / 100 * 100))
}

/// A time to the second, as RFC 3339; beyond the calendar, its last time.
fn clock(time: Timestamp) -> String {
    let within = time.micros().div_euclid(1_000_000);
    let within = within.clamp(jiff::Timestamp::MIN.as_second(), jiff::Timestamp::MAX.as_second());
    jiff::Timestamp::from_second(within).map_or_else(|_| String::new(), |time| time.to_string())
}
