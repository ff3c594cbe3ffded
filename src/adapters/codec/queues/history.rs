//! Encodings of history rows, in the outboxes of shards and in history stores.

use prost::Message as _;

use super::{error_of, fence_from, fence_of, state_code, state_from, text_of};
use crate::codec::{CorruptValue, decode};
use tallystone_domain::queue::Trigger;
use tallystone_domain::queue::messages::message::{AttemptError, MessageKey, Metadata, SessionId};
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::queue::transition::{EnqueuedMessage, HistoryRow, RowPosition, Transition, TransitionDetail};
use tallystone_domain::time::Timestamp;
use tallystone_proto::internal::v1::{StoredEnqueuedMessage, StoredTransition, StoredTransitions};

const WHAT: &str = "transition";

/// Encodes rows of one shard, in their order.
pub fn encode_rows<'r>(rows: impl IntoIterator<Item = &'r HistoryRow>) -> Vec<u8> {
    StoredTransitions { rows: rows.into_iter().map(stored_row).collect() }.encode_to_vec()
}

/// Decodes rows of one shard.
pub fn decode_rows(shard: u32, bytes: &[u8]) -> Result<Vec<HistoryRow>, CorruptValue> {
    let stored: StoredTransitions = decode("transitions", bytes)?;
    stored.rows.into_iter().map(|row| row_from(shard, row)).collect()
}

/// Encodes one row.
pub fn encode_row(row: &HistoryRow) -> Vec<u8> {
    stored_row(row).encode_to_vec()
}

/// Decodes one row of a shard.
pub fn decode_row(shard: u32, bytes: &[u8]) -> Result<HistoryRow, CorruptValue> {
    row_from(shard, decode(WHAT, bytes)?)
}

fn stored_row(HistoryRow { transition, enqueued }: &HistoryRow) -> StoredTransition {
    let Transition { key: MessageKey { shard: _, epoch, sequence }, version, trigger, from, to, at, detail } =
        transition;
    let TransitionDetail { position, attempt, since, fence, session, worker, reason, error } = detail;
    StoredTransition {
        epoch: *epoch,
        sequence: *sequence,
        version: *version,
        trigger: trigger_code(*trigger),
        from: from.map_or(0, state_code),
        to: to.map_or(0, state_code),
        at: at.micros(),
        shard_epoch: position.epoch,
        position: position.position,
        attempt: *attempt,
        since: since.map(Timestamp::micros),
        fence: fence.map(fence_of),
        session: session.map(|SessionId(id)| id.to_be_bytes().to_vec()),
        worker: worker.as_deref().map(str::to_owned),
        reason: reason.as_deref().map(str::to_owned),
        error: error.as_deref().map(error_of),
        enqueued: enqueued.as_deref().map(stored_message),
    }
}

fn row_from(shard: u32, row: StoredTransition) -> Result<HistoryRow, CorruptValue> {
    let state = |code: u32| (code != 0).then(|| state_from(WHAT, code)).transpose();
    let trigger = trigger_of(row.trigger);
    let session = |id: Vec<u8>| {
        let id = <[u8; 16]>::try_from(id).map_err(|_| CorruptValue::new(WHAT, "a session of another length"))?;
        Ok(SessionId(u128::from_be_bytes(id)))
    };
    let error = |error: tallystone_proto::internal::v1::StoredWorkError| {
        Box::new(AttemptError { signature: error.signature.into(), text: error.text.into() })
    };
    let detail = TransitionDetail {
        position: RowPosition { epoch: row.shard_epoch, position: row.position },
        attempt: row.attempt,
        since: row.since.map(Timestamp::from_micros),
        fence: row.fence.map(fence_from),
        session: row.session.map(session).transpose()?,
        worker: row.worker.map(Into::into),
        reason: row.reason.map(Into::into),
        error: row.error.map(error),
    };
    let transition = Transition {
        key: MessageKey { shard, epoch: row.epoch, sequence: row.sequence },
        version: row.version,
        trigger: trigger.ok_or_else(|| CorruptValue::new(WHAT, format!("trigger {}", row.trigger)))?,
        from: state(row.from)?,
        to: state(row.to)?,
        at: Timestamp::from_micros(row.at),
        detail,
    };
    Ok(HistoryRow { transition, enqueued: row.enqueued.map(message_from).transpose()?.map(Box::new) })
}

fn stored_message(message: &EnqueuedMessage) -> StoredEnqueuedMessage {
    let EnqueuedMessage { id, metadata, kind, priority, payload_bytes, counted_keys } = message;
    StoredEnqueuedMessage {
        id: id.to_string(),
        metadata: metadata.pairs().map(|(key, value)| text_of(key, value)).collect(),
        kind: kind.as_deref().map(str::to_owned),
        priority: *priority,
        payload_bytes: *payload_bytes,
        counted_keys: counted_keys.iter().map(ToString::to_string).collect(),
    }
}

fn message_from(stored: StoredEnqueuedMessage) -> Result<EnqueuedMessage, CorruptValue> {
    let illegal = |what: &'static str| move |_| CorruptValue::new(WHAT, format!("{what} of an illegal form"));
    let pairs = stored.metadata.iter().map(|pair| (pair.key.as_str(), pair.value.as_str()));
    Ok(EnqueuedMessage {
        id: MessageId::new(&stored.id).map_err(illegal("an id"))?,
        metadata: Metadata::new(pairs).map_err(illegal("metadata"))?,
        kind: stored.kind.map(Into::into),
        priority: stored.priority,
        payload_bytes: stored.payload_bytes,
        counted_keys: stored.counted_keys.into_iter().map(Into::into).collect(),
    })
}

/// All triggers.
pub const TRIGGERS: [Trigger; 17] = [
    Trigger::Enqueue,
    Trigger::WindowOver,
    Trigger::Dequeue,
    Trigger::Complete,
    Trigger::Extend,
    Trigger::Cancel,
    Trigger::CancelMessage,
    Trigger::Fail,
    Trigger::Release,
    Trigger::LeaseOver,
    Trigger::LateComplete,
    Trigger::Purge,
    Trigger::TtlOver,
    Trigger::Update,
    Trigger::Redrive,
    Trigger::RetentionOver,
    Trigger::Discard,
];

/// The trigger with a stored number.
pub fn trigger_of(code: u32) -> Option<Trigger> {
    TRIGGERS.into_iter().find(|trigger| trigger_code(*trigger) == code)
}

/// Stored numbers of triggers; they never change.
pub fn trigger_code(trigger: Trigger) -> u32 {
    match trigger {
        Trigger::Enqueue => 1,
        Trigger::WindowOver => 2,
        Trigger::Dequeue => 3,
        Trigger::Complete => 4,
        Trigger::Extend => 5,
        Trigger::Cancel => 6,
        Trigger::CancelMessage => 7,
        Trigger::Fail => 8,
        Trigger::Release => 9,
        Trigger::LeaseOver => 10,
        Trigger::LateComplete => 11,
        Trigger::Purge => 12,
        Trigger::TtlOver => 13,
        Trigger::Update => 14,
        Trigger::Redrive => 15,
        Trigger::RetentionOver => 16,
        Trigger::Discard => 17,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallystone_domain::queue::MessageState;
    use tallystone_domain::queue::messages::message::Fence;

    fn row(trigger: Trigger) -> HistoryRow {
        let removes = [Trigger::RetentionOver, Trigger::Discard].contains(&trigger);
        let enqueued = EnqueuedMessage {
            id: MessageId::new("id").expect("a valid id"),
            metadata: Metadata::new([("b", ""), ("a", "x")]).expect("valid pairs"),
            kind: Some("invoice".into()),
            priority: -5,
            payload_bytes: 7,
            counted_keys: vec!["a".into()],
        };
        let transition = Transition {
            key: MessageKey { shard: 3, epoch: 2, sequence: 9 },
            version: 4,
            trigger,
            from: (trigger != Trigger::Enqueue).then_some(MessageState::Running),
            to: (!removes).then_some(MessageState::Errored),
            at: Timestamp::from_secs(5),
            detail: TransitionDetail {
                position: RowPosition { epoch: 2, position: 1 << 40 },
                attempt: 2,
                since: Some(Timestamp::from_secs(4)),
                fence: Some(Fence { epoch: 1, serial: 8 }),
                session: Some(SessionId(u128::MAX)),
                worker: Some("w".into()),
                reason: Some("".into()),
                error: Some(Box::new(AttemptError { signature: "E".into(), text: "text".into() })),
            },
        };
        HistoryRow { transition, enqueued: (trigger == Trigger::Enqueue).then(|| Box::new(enqueued)) }
    }

    #[test]
    fn rows_are_read_as_they_were_stored() {
        let mut bare = row(Trigger::Complete);
        bare.transition.detail = TransitionDetail::default();
        let rows: Vec<HistoryRow> = TRIGGERS.into_iter().map(row).chain([bare]).collect();
        assert_eq!(decode_rows(3, &encode_rows(&rows)).as_ref(), Ok(&rows));
        for row in rows {
            assert_eq!(decode_row(3, &encode_row(&row)), Ok(row));
        }
    }
}
