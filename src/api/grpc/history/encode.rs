//! Encodes answers about the history.

use std::collections::HashMap;

use crate::grpc::queues::encode::{attempt_error, signed, state};
use crate::grpc::saturating_i64;
use crate::time;
use tallystone_domain::history::HistoryGap;
use tallystone_domain::history::search::HistoryMatch;
use tallystone_domain::history::trace::{AttemptEnd, TracedAttempt, TracedRow};
use tallystone_domain::queue::Trigger;
use tallystone_domain::queue::messages::message::Metadata;
use tallystone_engine::history::{MessageTrace, SearchedPage, TracedLife};
use tallystone_engine::queues::{FindingsPage, QueueFinding};
use tallystone_proto::history::v1 as wire;
use tallystone_proto::history::v1::search_messages_response::Completeness;

/// Encodes a page of a trace.
pub fn trace(trace: MessageTrace, next_page_token: String) -> wire::GetMessageTraceResponse {
    wire::GetMessageTraceResponse {
        lives: trace.lives.into_iter().map(life).collect(),
        gaps: trace.extent.gaps.into_iter().map(gap).collect(),
        history_from: trace.extent.starts_at.map(time::write),
        next_page_token,
    }
}

/// Encodes a page of a search.
pub fn searched(page: SearchedPage, next_page_token: String) -> wire::SearchMessagesResponse {
    let completeness = if page.is_partial { Completeness::Partial } else { Completeness::Complete };
    wire::SearchMessagesResponse {
        messages: page.found.into_iter().map(found).collect(),
        completeness: completeness.into(),
        gaps: page.extent.gaps.into_iter().map(gap).collect(),
        history_from: page.extent.starts_at.map(time::write),
        next_page_token,
    }
}

/// Encodes a page of findings.
pub fn findings(page: FindingsPage, next_page_token: String) -> wire::ListFindingsResponse {
    wire::ListFindingsResponse { findings: page.findings.into_iter().map(finding).collect(), next_page_token }
}

fn finding(found: QueueFinding) -> wire::Finding {
    let QueueFinding { queue, finding } = found;
    wire::Finding {
        queue: queue.to_string(),
        shard: signed(finding.shard.number),
        kind: finding.kind.name().to_owned(),
        state: finding.state.map_or(0, state),
        message_key: finding.message.map(|key| key.to_string()).unwrap_or_default(),
        version: finding.version.map_or(0, saturating_i64),
        expected: finding.expected,
        found: finding.found,
        text: finding.text,
    }
}

fn life(life: TracedLife) -> wire::MessageLife {
    let enqueued_time = life.enqueued.as_ref().map(|(_, at)| time::write(*at));
    let enqueued = life.enqueued.map(|(message, _)| message);
    wire::MessageLife {
        message_key: life.key.to_string(),
        message_id: enqueued.as_ref().map(|message| message.id.to_string()).unwrap_or_default(),
        metadata: enqueued.map(|message| pairs(&message.metadata)).unwrap_or_default(),
        enqueued_time,
        transitions: life.page.rows.into_iter().map(transition).collect(),
        attempts: life.page.attempts.into_iter().map(attempt).collect(),
        complete: life.is_complete,
    }
}

fn pairs(metadata: &Metadata) -> HashMap<String, String> {
    metadata.pairs().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn transition(row: TracedRow) -> wire::MessageTransition {
    let TracedRow { transition, time_in_state, undone } = row;
    let detail = transition.detail;
    wire::MessageTransition {
        epoch: detail.position.epoch,
        position: detail.position.position,
        version: transition.version,
        trigger: trigger(transition.trigger).into(),
        from: transition.from.map_or(0, state),
        to: transition.to.map_or(0, state),
        time: Some(time::write(transition.at)),
        attempt_number: signed(detail.attempt),
        worker: detail.worker.map(String::from).unwrap_or_default(),
        reason: detail.reason.map(String::from).unwrap_or_default(),
        // A message out of attempts has its last error, which is that of an earlier row if its lease expired.
        error: detail.error.filter(|_| transition.trigger == Trigger::Fail).map(|error| attempt_error(&error)),
        time_in_state: time_in_state.map(time::write_duration),
        undone,
    }
}

fn attempt(attempt: TracedAttempt) -> wire::MessageAttempt {
    let end = match attempt.end {
        None => wire::AttemptEnd::Unspecified,
        Some(AttemptEnd::Completed) => wire::AttemptEnd::Completed,
        Some(AttemptEnd::CompletedLate) => wire::AttemptEnd::CompletedLate,
        Some(AttemptEnd::Failed) => wire::AttemptEnd::Failed,
        Some(AttemptEnd::Released) => wire::AttemptEnd::Released,
        Some(AttemptEnd::Expired) => wire::AttemptEnd::Expired,
        Some(AttemptEnd::Canceled) => wire::AttemptEnd::Canceled,
    };
    wire::MessageAttempt {
        number: signed(attempt.number),
        leased_time: attempt.leased_at.map(time::write),
        ended_time: attempt.ended_at.map(time::write),
        end: end.into(),
        worker: attempt.worker.map(String::from).unwrap_or_default(),
        error: attempt.error.map(|error| attempt_error(&error)),
    }
}

fn trigger(trigger: Trigger) -> wire::TransitionTrigger {
    match trigger {
        Trigger::Enqueue => wire::TransitionTrigger::Enqueue,
        Trigger::WindowOver => wire::TransitionTrigger::InvisibilityOver,
        Trigger::Dequeue => wire::TransitionTrigger::Dequeue,
        Trigger::Complete => wire::TransitionTrigger::Complete,
        Trigger::Extend => wire::TransitionTrigger::Extend,
        Trigger::Cancel => wire::TransitionTrigger::Cancel,
        Trigger::CancelMessage => wire::TransitionTrigger::CancelMessage,
        Trigger::Fail => wire::TransitionTrigger::Fail,
        Trigger::Release => wire::TransitionTrigger::Release,
        Trigger::LeaseOver => wire::TransitionTrigger::LeaseOver,
        Trigger::LateComplete => wire::TransitionTrigger::LateComplete,
        Trigger::Purge => wire::TransitionTrigger::Purge,
        Trigger::TtlOver => wire::TransitionTrigger::TtlOver,
        Trigger::Update => wire::TransitionTrigger::Update,
        Trigger::Redrive => wire::TransitionTrigger::Redrive,
        Trigger::Discard => wire::TransitionTrigger::Discard,
        Trigger::RetentionOver => wire::TransitionTrigger::RetentionOver,
    }
}

fn gap(gap: HistoryGap) -> wire::HistoryGap {
    wire::HistoryGap {
        shard: signed(gap.shard),
        from_position: gap.from_position,
        to_position: gap.to_position,
        from_time: Some(time::write(gap.from_time)),
        to_time: Some(time::write(gap.to_time)),
        epoch: gap.epoch,
    }
}

fn found(found: HistoryMatch) -> wire::FoundMessage {
    let message = found.enqueued.as_ref();
    wire::FoundMessage {
        message_key: found.key.to_string(),
        message_id: message.map(|message| message.id.to_string()).unwrap_or_default(),
        state: found.state.map_or(0, state),
        entered_time: Some(time::write(found.entered_at)),
        attempt_number: signed(found.attempt),
        metadata: message.map(|message| pairs(&message.metadata)).unwrap_or_default(),
        error_signature: found.signature.map(String::from).unwrap_or_default(),
    }
}
