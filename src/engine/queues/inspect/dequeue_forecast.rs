//! Explains why a dequeue gets nothing, from the forecasts of the shards.
//!
//! Each shard is asked what a dequeue with this exact filter would get; the totals of the queue give the rest. The
//! only changes are those that the passage of time has made due.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use crate::queues::error::QueueError;
use crate::queues::inspect::InspectService;
use crate::queues::inspect::cause_text::QueueExplanation;
use crate::queues::inspect::cause_text::{CauseText, blocked, counted, explanation, in_short, no_worker_waits};
use crate::queues::inspect::next_steps::NextSteps;
use crate::queues::state::depth::Depth;
use crate::queues::state::served_queue::ServedQueue;
use tallystone_domain::Timestamp;
use tallystone_domain::limits::EXPLAIN_HOLDERS_MAX;
use tallystone_domain::queue::activity::ReachedQuota;
use tallystone_domain::queue::filter::Filter;
use tallystone_domain::queue::shard::explain::{Cause, FailedAttempts};
use tallystone_domain::queue::{MessageState, QueueName, QueueSpec};

/// The forecast of all shards together for a dequeue.
struct DequeueForecast {
    /// The number of messages of each state that match the filter; none if the filter is not declared.
    counts: Option<[u64; MessageState::ALL.len()]>,
    /// Whether a message could be leased.
    serves: bool,
    /// The causes that block messages that match the filter, each with the time of the reading; at most 10.
    blocked: Vec<(Cause, Timestamp)>,
    /// When the first matching invisible message becomes visible.
    next_visible: Option<Duration>,
    /// Whether there were more messages than the look covered.
    or_more: bool,
    /// The attempts of the messages that are out of attempts.
    failed: FailedAttempts,
}

impl DequeueForecast {
    /// The number of messages of a state that match the filter, as far as it is known.
    fn of(&self, state: MessageState) -> u64 {
        self.counts.map_or(0, |counts| counts[state as usize])
    }
}

impl InspectService {
    /// Explains why a dequeue gets nothing, most decisive cause first.
    pub async fn explain_queue(&self, name: &QueueName, filter: Filter) -> Result<Vec<QueueExplanation>, QueueError> {
        // The explanation is about the settings as they are, not as this server knew them.
        self.catalog.read(name).await?;
        let queue = self.catalog.queue(name).await?;
        let filter = &filter;
        self.catalog.call_on(queue, |queue| async move { self.explain_queue_of(name, &queue, filter).await }).await
    }

    async fn explain_queue_of(
        &self,
        name: &QueueName,
        queue: &Arc<ServedQueue>,
        filter: &Filter,
    ) -> Result<Vec<QueueExplanation>, QueueError> {
        let spec = queue.spec();
        let depth = self.context.depth_of(queue).await?;
        let outlook = self.forecast(queue, filter).await?;
        let steps = NextSteps(name);
        let said = |(cause, at): &(Cause, Timestamp)| {
            CauseText { context: &self.context, steps, about: None, at: *at }.describe(cause)
        };
        let mut causes: Vec<QueueExplanation> =
            spec.dequeue_blocked.iter().map(|why| blocked(steps, "dequeue", why)).collect();
        if outlook.counts.is_none() {
            causes.push(not_declared(steps, &outlook));
        }
        if outlook.serves {
            let is_open = spec.dequeue_blocked.is_none();
            let (running, now) = (depth.of(MessageState::Running), self.context.elapsed());
            causes.extend(no_worker_waits(steps, queue, running, now).filter(|_| is_open));
            causes.extend(outlook.blocked.iter().map(said));
            causes.extend(is_open.then(|| explanation("next", next_text(&outlook, filter))));
        } else if !outlook.blocked.is_empty() || outlook.of(MessageState::Pending) > 0 {
            causes.push(explanation("value_held", held_text(steps, &outlook, filter)));
            causes.extend(outlook.blocked.iter().map(said));
        } else {
            causes.extend(none_pending(steps, &outlook, filter));
        }
        causes.extend(errored(steps, depth.of(MessageState::Errored), outlook.failed));
        causes.extend(spec.enqueue_blocked.iter().map(|why| blocked(steps, "enqueue", why)));
        let full = reached_quota(&spec, &depth);
        causes.extend(full.map(|quota| full_queue(steps, quota, &depth)));
        if [MessageState::Pending, MessageState::Invisible, MessageState::Running]
            .iter()
            .all(|state| depth.of(*state) == 0)
        {
            let takes_none = spec.enqueue_blocked.is_some() || full.is_some();
            causes.push(explanation(
                "empty",
                match takes_none {
                    true => "the queue has no messages to serve, and takes none now",
                    false => "the queue has no messages to serve: check that producers enqueue into this queue",
                },
            ));
        }
        Ok(causes)
    }

    async fn forecast(&self, queue: &Arc<ServedQueue>, filter: &Filter) -> Result<DequeueForecast, QueueError> {
        let reader = &self.context.stores.reader;
        let (counts, held) = (Some(Default::default()), Vec::new());
        let failed = FailedAttempts::default();
        let mut outlook =
            DequeueForecast { counts, serves: false, blocked: held, next_visible: None, or_more: false, failed };
        let reads = (0..queue.shards()).map(|number| reader.preview_dequeue(queue.shard(number).id, filter.clone()));
        for read in join_all(reads).await {
            let (prospect, at) = read.map_err(|error| self.context.translate_store_error(queue, error))?;
            let room = EXPLAIN_HOLDERS_MAX.saturating_sub(outlook.blocked.len());
            outlook.blocked.extend(prospect.held.into_iter().take(room).map(|(_, cause)| (cause, at)));
            outlook.serves |= prospect.first.is_some();
            outlook.or_more |= prospect.or_more;
            outlook.failed.messages += prospect.failed.messages;
            outlook.failed.attempts += prospect.failed.attempts;
            let visible_in = prospect.next_visible.map(|visible| visible.since(at));
            outlook.next_visible = [outlook.next_visible, visible_in].into_iter().flatten().min();
            let both = outlook.counts.zip(prospect.counts);
            outlook.counts =
                both.map(|(all, more)| MessageState::ALL.map(|state| all[state as usize] + more[state as usize]));
        }
        Ok(outlook)
    }
}

/// The quota that a shard of a queue has reached.
fn reached_quota(spec: &QueueSpec, depth: &Depth) -> Option<ReachedQuota> {
    let settings = spec.shard_settings();
    depth.by_shard.iter().find_map(|totals| {
        let messages = totals.iter().map(|total| total.messages).sum();
        ReachedQuota::of(&settings, messages, totals.iter().map(|total| total.bytes).sum())
    })
}

/// Explains what fills a queue, and what makes room.
fn full_queue(steps: NextSteps<'_>, quota: ReachedQuota, depth: &Depth) -> QueueExplanation {
    let over = [MessageState::Completed, MessageState::Canceled];
    let over: Vec<MessageState> = over.into_iter().filter(|state| depth.of(*state) > 0).collect();
    let mut text = format!("the queue reached its {}, so enqueues are refused", quota.setting());
    if !over.is_empty() {
        let count = over.iter().map(|state| depth.of(*state)).sum();
        text += &format!(
            "; {} over and kept for {} retention: remove what is over with {}, or keep it for a shorter time with {}",
            counted(count, "message is", "messages are"),
            if count == 1 { "its" } else { "their" },
            steps.remove(&over),
            steps.keep_shorter(&over)
        );
    }
    let waiting = depth.of(MessageState::Pending) + depth.of(MessageState::Invisible);
    if waiting > 0 {
        let wait = counted(waiting, "message waits", "messages wait");
        text += &format!("; {wait} for workers, and a completed message keeps its place until its retention ends");
    }
    text += &format!("; for more room use {}", steps.raise_quota(quota));
    explanation("queue_full", text)
}

/// The messages that are out of attempts, and their number of attempts if it was more than one each.
fn errored(steps: NextSteps<'_>, errored: u64, failed: FailedAttempts) -> Option<QueueExplanation> {
    if errored == 0 {
        return None;
    }
    let least = if failed.messages < errored { "at least " } else { "" };
    let tries = match failed.attempts > failed.messages {
        true => format!(" after {least}{} failed attempts", failed.attempts),
        false => String::new(),
    };
    let (ls, redrive) = (steps.dead_letters(), steps.redrive_all());
    let text = match errored {
        1 => format!("1 message is out of attempts{tries}; read its error ({ls}), then redrive it"),
        _ => format!("{errored} messages are out of attempts{tries}; read their errors ({ls}), then redrive them"),
    };
    Some(explanation("errored", format!("{text} with {redrive}")))
}

fn not_declared(steps: NextSteps<'_>, outlook: &DequeueForecast) -> QueueExplanation {
    let seen = match (outlook.serves, outlook.or_more) {
        (false, true) => "; none of the examined messages can be served, but there are more",
        (true, _) | (false, false) => "",
    };
    let text = "the filter has no index, so a dequeue examines some messages of each shard and may return PARTIAL: \
        call again, or declare the keys in filter_shapes, with";
    explanation("filter_not_declared", format!("{text} {}{seen}", steps.declare()))
}

fn next_text(outlook: &DequeueForecast, filter: &Filter) -> String {
    let pending = outlook.of(MessageState::Pending);
    match (outlook.counts, filter.is_empty()) {
        (None, _) => {
            "a pending message matches the filter: a dequeue returns it, possibly after a repeated call".to_owned()
        }
        (Some(_), is_empty) => {
            let which = if is_empty { "" } else { " that match the filter" };
            let gets = if pending == 1 { "it" } else { "some" };
            format!("{} pending{which}: a dequeue returns {gets} at once", are(pending))
        }
    }
}

fn held_text(steps: NextSteps<'_>, outlook: &DequeueForecast, filter: &Filter) -> String {
    let which = if filter.is_empty() { "pending" } else { "pending and matches the filter" };
    let looked = if outlook.or_more { ", among the examined messages" } else { "" };
    let rests = |(cause, _): &&(Cause, Timestamp)| matches!(cause, Cause::ValueHeld { limit: 0, .. });
    let resting = outlook.blocked.iter().filter(rests).count();
    let by = match resting {
        0 => "other messages of its exclusivity value",
        some if some == outlook.blocked.len() => "the limit of its exclusivity value, which is 0",
        _ => "other messages of its exclusivity value or by the limit of that value, which is 0",
    };
    format!(
        "every message that is {which} is held back by {by}{looked}; for a message that is not named here, see the \
         cause with {}",
        steps.explain_one()
    )
}

/// Explains why no pending message matches the filter.
fn none_pending(steps: NextSteps<'_>, outlook: &DequeueForecast, filter: &Filter) -> Vec<QueueExplanation> {
    let (invisible, running) = (outlook.of(MessageState::Invisible), outlook.of(MessageState::Running));
    let mut causes = Vec::new();
    if !filter.is_empty() && (outlook.counts.is_some() || !outlook.or_more) {
        let text = match outlook.counts {
            Some(_) => format!(
                "no pending message matches the filter; of the matching messages, {} invisible and {} leased; wait \
                 for these, or use another filter",
                counted(invisible, "is", "are"),
                counted(running, "is", "are")
            ),
            None => "no pending message matches the filter; use another filter".to_owned(),
        };
        causes.push(explanation("filter_not_met", text));
    }
    if let Some(left) = outlook.next_visible {
        let which = match outlook.counts {
            Some(_) if invisible == 1 => "1 message is still invisible,".to_owned(),
            Some(_) => format!("{} still invisible, the first", are(invisible)),
            None => "messages that match the filter are still invisible, the first".to_owned(),
        };
        let text = format!(
            "{which} for another {}; wait, or list them ({}) and make one visible with UpdateMessage",
            in_short(left),
            steps.invisible()
        );
        causes.push(explanation("invisible", text));
    }
    if running > 0 {
        let text = match running {
            1 => "1 message is leased to a worker; wait: it is served again only if its lease ends".to_owned(),
            _ => format!(
                "{running} messages are leased to workers; wait: they are served again only if their leases end"
            ),
        };
        causes.push(explanation("running", text));
    }
    causes
}

/// A count with its verb.
fn are(count: u64) -> String {
    counted(count, "message is", "messages are")
}
