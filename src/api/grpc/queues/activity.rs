//! The activity of queues: decodes the calls, and encodes rows with a sentence for each reason.

use std::time::Duration;

use tonic::Status;

use super::{cursors, to_status};
use crate::errors::ApiError;
use crate::grpc::saturating_i64;
use crate::paging::{self, PagedRequest};
use crate::time;
use tallystone_domain::access::{AccessResource, ListRights, Permitted};
use tallystone_domain::queue::activity::{ActivityFlows, AttentionReason, ReachedQuota};
use tallystone_domain::queue::{MessageState, QueueName};
use tallystone_domain::{Reason, Timestamp};
use tallystone_engine::queues::{ActivityOrder, ActivityTotals, QueueActivity, Queues};
use tallystone_proto::queue::v1 as wire;

/// Answers ListQueueActivity.
pub async fn list(
    queues: &Queues,
    rights: &ListRights,
    request: wire::ListQueueActivityRequest,
) -> Result<wire::ListQueueActivityResponse, Status> {
    let rows = paging::rows(request.page_size).map_err(to_status)?;
    let order = order(request.order).map_err(to_status)?;
    let paged = PagedRequest::new("ListQueueActivity", &[request.prefix.as_bytes(), &[order as u8]]);
    let cursor = paged.cursor(&request.page_token).map_err(to_status)?;
    let skip = cursor.map(|cursor| cursors::number(&cursor)).transpose().map_err(Status::from)?.unwrap_or(0);
    let skip = usize::try_from(skip).unwrap_or(usize::MAX);
    let is_shown = |name: &str| name.starts_with(&*request.prefix) && rights.shows(AccessResource::Queue(name));
    let page = queues.inspect.list_activity(is_shown, order, skip, rows).await;
    let next = page.has_more.then(|| paged.token(&(skip as u64 + page.rows.len() as u64).to_be_bytes()));
    Ok(wire::ListQueueActivityResponse {
        queues: page.rows.into_iter().map(row).collect(),
        next_page_token: next.unwrap_or_default(),
        totals: Some(totals(&page.totals)),
        server_time: Some(time::write(page.now)),
    })
}

/// Answers GetQueueActivity.
pub async fn get(queues: &Queues, name: &Permitted<QueueName>) -> Result<wire::GetQueueActivityResponse, Status> {
    let (activity, now) = queues.inspect.activity(name).await.map_err(to_status)?;
    Ok(wire::GetQueueActivityResponse { activity: Some(row(activity)), server_time: Some(time::write(now)) })
}

fn order(sent: i32) -> Result<ActivityOrder, ApiError> {
    use wire::ActivityOrder as Sent;
    Ok(match Sent::try_from(sent) {
        Ok(Sent::Unspecified | Sent::Attention) => ActivityOrder::Attention,
        Ok(Sent::Name) => ActivityOrder::Name,
        Ok(Sent::Pending) => ActivityOrder::Pending,
        Ok(Sent::Oldest) => ActivityOrder::Oldest,
        Ok(Sent::Errored) => ActivityOrder::Errored,
        Ok(Sent::In) => ActivityOrder::In,
        Ok(Sent::Out) => ActivityOrder::Out,
        Ok(Sent::Fail) => ActivityOrder::Fail,
        Err(_unknown) => {
            let what = format!("order {sent} is unknown; send a value of ActivityOrder");
            return Err(ApiError::new(Reason::InvalidArgument, what).at("order"));
        }
    })
}

fn row(row: QueueActivity) -> wire::QueueActivity {
    let of = |state| messages_of(row.messages, state);
    let facts = &row.facts;
    let (ins, outs, fails) = rates(facts.rates);
    let of_type = if row.is_exclusive { wire::QueueType::Exclusive } else { wire::QueueType::Simple };
    wire::QueueActivity {
        r#type: of_type.into(),
        pending: of(MessageState::Pending),
        invisible: of(MessageState::Invisible),
        running: of(MessageState::Running),
        errored: of(MessageState::Errored),
        completed: of(MessageState::Completed),
        canceled: of(MessageState::Canceled),
        in_per_second: ins,
        out_per_second: outs,
        fail_per_second: fails,
        oldest_ready_age: facts.oldest_ready.map(time::write_duration),
        time_to_drain: facts.time_to_drain().map(time::write_duration),
        waiting_dequeues: saturating_i64(facts.waiting),
        enqueue_blocked: facts.enqueue_blocked,
        dequeue_blocked: facts.dequeue_blocked,
        attention: facts.attention().into_iter().map(|reason| attention(reason, &row)).collect(),
        as_of: row.as_of.map(time::write),
        source: wire::ActivitySource::Totals.into(),
        queue: row.queue,
    }
}

fn totals(totals: &ActivityTotals) -> wire::ActivityTotals {
    let of = |state| messages_of(totals.messages, state);
    let (ins, outs, fails) = rates(totals.rates);
    wire::ActivityTotals {
        queues: saturating_i64(totals.queues),
        attention: saturating_i64(totals.attention),
        pending: of(MessageState::Pending),
        invisible: of(MessageState::Invisible),
        running: of(MessageState::Running),
        errored: of(MessageState::Errored),
        in_per_second: ins,
        out_per_second: outs,
        fail_per_second: fails,
        oldest_ready_age: totals.oldest_ready.map(time::write_duration),
        as_of: totals.as_of.map(|as_of: Timestamp| time::write(as_of)),
    }
}

fn messages_of(messages: Option<[u64; MessageState::ALL.len()]>, state: MessageState) -> Option<i64> {
    messages.map(|messages| saturating_i64(messages[state as usize]))
}

fn rates(rates: Option<ActivityFlows<f64>>) -> (Option<f64>, Option<f64>, Option<f64>) {
    (rates.map(|rates| rates.enqueued), rates.map(|rates| rates.completed), rates.map(|rates| rates.failed))
}

fn attention(reason: AttentionReason, row: &QueueActivity) -> wire::Attention {
    use wire::AttentionReason as Wire;
    let (facts, oldest) = (&row.facts, row.facts.oldest_ready.map(about).unwrap_or_default());
    let rate = |of: fn(&ActivityFlows<f64>) -> f64| facts.rates.as_ref().map_or(0.0, of);
    let (named, text) = match reason {
        AttentionReason::WorkLost => {
            let (steps, at) = facts.lost.map_or((0, String::new()), |lost| (lost.steps, lost.noticed()));
            (Wire::WorkLost, format!("its store came back at {at} without {steps} or more of its changes"))
        }
        AttentionReason::NobodyDequeues => {
            (Wire::NobodyDequeues, format!("the oldest message has been ready for {oldest}, and nobody dequeues"))
        }
        AttentionReason::DequeueBlocked => {
            (Wire::DequeueBlocked, format!("dequeue is blocked while {} are ready", messages(facts.pending)))
        }
        AttentionReason::QueueFull => {
            let setting = facts.full.map_or("", ReachedQuota::setting);
            let over =
                row.messages.map(|all| all[MessageState::Completed as usize] + all[MessageState::Canceled as usize]);
            (Wire::QueueFull, format!("it reached its {setting}; {} over and kept for their retention", messages(over)))
        }
        AttentionReason::MemoryShort => {
            let (own, all) = facts.memory.map_or((0, 0), |memory| (memory.percent, memory.used_percent));
            (Wire::MemoryShort, format!("{all} % of the memory for queues is used, {own} % of that by this queue"))
        }
        AttentionReason::OldestAgeGrows => {
            let why = match facts.is_held_up() {
                true => format!("and workers hold {} but took none in the last minute", messages(facts.running)),
                false => "and no less comes in than goes out".to_owned(),
            };
            (Wire::OldestAgeGrows, format!("the oldest message has been ready for {oldest}, {why}"))
        }
        AttentionReason::MessagesErrored => {
            (Wire::MessagesErrored, format!("{} out of attempts", messages(facts.errored)))
        }
        AttentionReason::AttemptsFail => {
            let (failed, completed) = (of_second(rate(|rates| rates.failed)), of_second(rate(|rates| rates.completed)));
            (Wire::AttemptsFail, format!("{failed} attempts a second fail, and {completed} complete"))
        }
        AttentionReason::EnqueueBlocked => (Wire::EnqueueBlocked, "enqueue is blocked".to_owned()),
        AttentionReason::NumbersOld if facts.is_store_lost => {
            (Wire::NumbersOld, "its store has lost it, so its numbers are unknown; /readyz says what to do".to_owned())
        }
        AttentionReason::NumbersOld => {
            (Wire::NumbersOld, format!("the numbers are {} old", facts.age.map(about).unwrap_or_default()))
        }
    };
    wire::Attention { reason: named.into(), text, runbook: reason.runbook().to_owned() }
}

/// A rate in a text: a small one is not shown as 0.
fn of_second(rate: f64) -> String {
    if rate > 0.0 && rate < 0.05 { "less than 0.1".to_owned() } else { format!("{rate:.1}") }
}

fn messages(count: Option<u64>) -> String {
    match count {
        Some(1) => "1 message".to_owned(),
        count => format!("{} messages", count.unwrap_or(0)),
    }
}

/// A duration in its greatest unit.
fn about(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    }
}
