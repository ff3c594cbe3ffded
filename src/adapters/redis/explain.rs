//! Explanations, from what a shard was read to hold: the same as those of the core, for simple queues.

use crate::domain::limits::{EXPLAIN_POSITION_MAX, FILTER_WALK_MAX};
use crate::domain::queue::MessageState;
use crate::domain::queue::filter::Filter;
use crate::domain::queue::messages::message::{MessageHead, MessageKey};
use crate::domain::queue::shard::explain::{Cause, DequeuePreview, FailedAttempts, HoldingLease};
use crate::domain::time::Timestamp;
use crate::ports::{MessagesAt, StoredMessage};

/// Why a message stands where it stands, what decides most first. `ahead` pending messages come before it; its lease ends with
/// its session.
pub fn causes(found: &MessageHead, blocked: Option<Box<str>>, ahead: usize, now: Timestamp) -> Vec<Cause> {
    let mut causes: Vec<Cause> = blocked.into_iter().map(Cause::DequeueBlocked).collect();
    let is_over = found.next_due().is_some_and(|(at, _)| at <= now);
    let ready = Cause::Ready { ahead: ahead.min(EXPLAIN_POSITION_MAX), or_more: ahead > EXPLAIN_POSITION_MAX };
    match found.state {
        MessageState::Invisible if found.visible_at > now => {
            let after_failure = found.first_leased_at.is_some();
            causes.insert(0, Cause::InvisibleUntil { until: found.visible_at, after_failure });
        }
        MessageState::Running if !is_over => causes = holder(found).map(Cause::Running).into_iter().collect(),
        MessageState::Invisible | MessageState::Pending | MessageState::Running => causes.push(ready),
        MessageState::Completed => causes = vec![Cause::Completed],
        MessageState::Canceled => causes = vec![Cause::Canceled(found.canceled_by.clone())],
        MessageState::Errored => {
            causes = vec![Cause::Errored { attempts: found.attempt_number(), error: found.error.clone() }];
        }
    }
    causes
}

fn holder(message: &MessageHead) -> Option<HoldingLease> {
    let lease = message.lease?;
    Some(HoldingLease {
        id: message.id.clone(),
        session: lease.worker_session().map(|own| own.id),
        since: lease.since,
        expires: lease.expires,
        cancel_requested: lease.cancel_requested,
    })
}

/// What a preview was read from.
pub struct LookedAt {
    pub blocked: Option<Box<str>>,
    pub counts: Option<[u64; MessageState::ALL.len()]>,
    pub pending: MessagesAt,
    pub hidden: MessagesAt,
    pub errored: MessagesAt,
    pub at: Timestamp,
}

/// What a dequeue with a filter would meet.
pub fn preview(read: LookedAt, filter: &Filter) -> DequeuePreview {
    let matches = |message: &&StoredMessage| filter.matches(&message.head.metadata);
    let first_of = |messages: &[StoredMessage]| -> Option<MessageKey> {
        messages.iter().take(FILTER_WALK_MAX).find(matches).map(|message| message.head.key)
    };
    let hidden = read.hidden.messages.iter().take(FILTER_WALK_MAX).filter(matches);
    let failed = read.errored.messages.iter().fold(FailedAttempts::default(), |sum, message| FailedAttempts {
        messages: sum.messages + 1,
        attempts: sum.attempts + u64::from(message.head.attempt_number()),
    });
    DequeuePreview {
        blocked: read.blocked,
        counts: read.counts,
        first: first_of(&read.pending.messages),
        held: Vec::new(),
        next_visible: hidden.map(|message| message.head.visible_at.max(read.at)).min(),
        or_more: read.pending.messages.len() > FILTER_WALK_MAX || read.hidden.messages.len() > FILTER_WALK_MAX,
        failed,
    }
}
