//! Explanations, from what a shard was read to hold: the same as those of the core.

use super::packed::PackedReader;
use super::replies::ReplyParts;
use tallystone_adapters::codec::CorruptValue;
use tallystone_domain::limits::{EXPLAIN_POSITION_MAX, FILTER_WALK_MAX};
use tallystone_domain::queue::MessageState;
use tallystone_domain::queue::filter::Filter;
use tallystone_domain::queue::messages::message::{MessageHead, MessageKey};
use tallystone_domain::queue::shard::explain::{Cause, DequeuePreview, FailedAttempts, HoldingLease};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{MessagesAt, StoredMessage};

/// A message, and what it waits for unless it is finished.
pub struct ExplainedMessage {
    pub head: MessageHead,
    pub waits_for: Option<Cause>,
}

/// The next message of a reply, and what it waits for.
pub fn read_explained(parts: &mut ReplyParts) -> Result<ExplainedMessage, CorruptValue> {
    let head = parts.message()?.head;
    let bytes = parts.bytes()?;
    let mut reader = PackedReader::new("what a message waits for", &bytes);
    let others = reader.byte()?;
    let others = (0..others).map(|_| Ok(parts.message()?.head)).collect::<Result<Vec<_>, CorruptValue>>()?;
    if reader.is_empty() {
        return Ok(ExplainedMessage { head, waits_for: None });
    }
    let value = || head.routing.clone().ok_or_else(|| CorruptValue::new("message of a value", "it has no value"));
    let waits_for = match (reader.byte()?, &others[..]) {
        (0, []) => {
            let ahead = usize::try_from(reader.whole()?).unwrap_or(usize::MAX);
            Cause::Ready { ahead: ahead.min(EXPLAIN_POSITION_MAX), or_more: ahead > EXPLAIN_POSITION_MAX }
        }
        (1, [other]) => {
            let (id, state) = (other.id.clone(), other.state);
            Cause::Behind { value: value()?, id, state, holder: holder(other).map(Box::new) }
        }
        (2, holding) => {
            let (limit, waiting) = (reader.whole()?, reader.whole()?);
            let numbers = u32::try_from(limit).ok().zip(usize::try_from(waiting).ok());
            let (limit, waiting) = numbers.ok_or_else(|| reader.corrupt("a number that is too large"))?;
            Cause::ValueHeld { value: value()?, limit, holders: holding.iter().filter_map(holder).collect(), waiting }
        }
        (other, _) => return Err(reader.corrupt(format!("cause {other}"))),
    };
    Ok(ExplainedMessage { head, waits_for: Some(waits_for) })
}

/// The causes for which a message is where it is, the most decisive first. `waits_for` is the reason for which it would
/// not be served if it were pending; its lease ends with its session.
pub fn causes(found: &ExplainedMessage, blocked: Option<Box<str>>, now: Timestamp) -> Vec<Cause> {
    let ExplainedMessage { head: found, waits_for } = found;
    let mut causes: Vec<Cause> = blocked.into_iter().map(Cause::DequeueBlocked).collect();
    let is_over = found.next_due().is_some_and(|(at, _)| at <= now);
    match found.state {
        MessageState::Invisible if found.visible_at > now => {
            let after_failure = found.first_leased_at.is_some();
            causes.insert(0, Cause::InvisibleUntil { until: found.visible_at, after_failure });
        }
        MessageState::Running if !is_over => causes = holder(found).map(Cause::Running).into_iter().collect(),
        MessageState::Invisible | MessageState::Pending | MessageState::Running => causes.extend(waits_for.clone()),
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

/// The data from which a preview is made.
pub struct LookedAt {
    pub blocked: Option<Box<str>>,
    pub counts: Option<[u64; MessageState::ALL.len()]>,
    /// The first message that would be served.
    pub first: Option<MessageKey>,
    pub held: Vec<ExplainedMessage>,
    pub pending: u64,
    pub hidden: MessagesAt,
    pub errored: MessagesAt,
    pub at: Timestamp,
}

/// The preview of a dequeue with a filter.
pub fn preview(read: LookedAt, filter: &Filter) -> DequeuePreview {
    let matches = |message: &&StoredMessage| filter.matches(&message.head.metadata);
    let hidden = read.hidden.messages.iter().take(FILTER_WALK_MAX).filter(matches);
    let failed = read.errored.messages.iter().fold(FailedAttempts::default(), |sum, message| FailedAttempts {
        messages: sum.messages + 1,
        attempts: sum.attempts + u64::from(message.head.attempt_number()),
    });
    DequeuePreview {
        blocked: read.blocked,
        counts: read.counts,
        first: read.first,
        held: read.held.into_iter().filter_map(|held| Some((held.head.key, held.waits_for?))).collect(),
        next_visible: hidden.map(|message| message.head.visible_at.max(read.at)).min(),
        or_more: read.pending > FILTER_WALK_MAX as u64 || read.hidden.messages.len() > FILTER_WALK_MAX,
        failed,
    }
}
