//! Encodings of operations on queues that servers share.

use prost::Message as _;

use super::catalog::{id_from, name_from};
use super::{CorruptValue, decode, text_of};
use tallystone_domain::Reason;
use tallystone_domain::fleet::MemberId;
use tallystone_domain::queue::Filter;
use tallystone_domain::queue::bulk_operation::{BulkCursor, BulkKind, BulkOperation, PurgedStates};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{OperationAuthor, OperationEnd, OperationOutcome, OperationRow};
use tallystone_proto::internal::v1::{StoredOperation, StoredOperationEnd};

const WHAT: &str = "operation";
const KINDS: [BulkKind; 4] = [BulkKind::Purge, BulkKind::Redrive, BulkKind::Discard, BulkKind::Cancel];
const DONE: u32 = 1;
const CANCELLED: u32 = 2;
const FAILED: u32 = 3;

/// Encodes an operation; its id is in its key, its version beside it.
pub fn encode_operation(row: &OperationRow) -> Vec<u8> {
    let OperationRow {
        id: _,
        version: _,
        queue,
        name,
        work: BulkOperation { kind, states, filter, signature, until, dry_run, rate, reason },
        through,
        ended_by,
        next: BulkCursor { shard, after },
        done,
        total,
        began,
        author,
        runner,
        is_cancelled,
        end,
    } = row;
    StoredOperation {
        queue: queue.0.to_be_bytes().to_vec(),
        name: name.as_str().to_owned(),
        kind: number_of(*kind),
        states: u32::from(states.bits()),
        filter: filter.metadata().pairs().map(|(key, value)| text_of(key, value)).collect(),
        signature: signature.as_deref().map(str::to_owned),
        until: until.map(Timestamp::micros),
        dry_run: *dry_run,
        rate: *rate,
        reason: reason.to_string(),
        through: through.clone(),
        ended_by: ended_by.map(Timestamp::micros),
        next_shard: *shard,
        next_after: *after,
        done: *done,
        total: *total,
        began: began.micros(),
        runner: runner.map(|member| member.0.to_vec()),
        is_cancelled: *is_cancelled,
        end: end.as_ref().map(end_of),
        author: author.text.to_string(),
        owner: author.owner.as_deref().unwrap_or_default().to_owned(),
    }
    .encode_to_vec()
}

/// Decodes an operation of this id and version.
pub fn decode_operation(id: &str, version: u64, bytes: &[u8]) -> Result<OperationRow, CorruptValue> {
    let stored: StoredOperation = decode(WHAT, bytes)?;
    let pairs = stored.filter.iter().map(|pair| (pair.key.as_str(), pair.value.as_str()));
    let filter = Filter::new(pairs).map_err(|_| CorruptValue::new(WHAT, "a filter of an illegal form"))?;
    let kind = KINDS.into_iter().find(|kind| number_of(*kind) == stored.kind);
    let states = match stored.states {
        0 => Some(PurgedStates::default()), // of builds without states
        bits => u8::try_from(bits).ok().and_then(PurgedStates::from_bits),
    };
    let work = BulkOperation {
        kind: kind.ok_or_else(|| CorruptValue::new(WHAT, format!("kind {}", stored.kind)))?,
        states: states.ok_or_else(|| CorruptValue::new(WHAT, format!("states {}", stored.states)))?,
        filter,
        signature: stored.signature.map(Into::into),
        until: stored.until.map(Timestamp::from_micros),
        dry_run: stored.dry_run,
        rate: stored.rate,
        reason: stored.reason.into(),
    };
    Ok(OperationRow {
        id: id.into(),
        version,
        queue: id_from(WHAT, &stored.queue)?,
        name: name_from(WHAT, &stored.name)?,
        work,
        through: stored.through,
        ended_by: stored.ended_by.map(Timestamp::from_micros),
        next: BulkCursor { shard: stored.next_shard, after: stored.next_after },
        done: stored.done,
        total: stored.total,
        began: Timestamp::from_micros(stored.began),
        author: OperationAuthor { text: stored.author.into(), owner: owner_from(stored.owner) },
        runner: stored.runner.map(member_from).transpose()?,
        is_cancelled: stored.is_cancelled,
        end: stored.end.map(end_from).transpose()?,
    })
}

fn number_of(kind: BulkKind) -> u32 {
    match kind {
        BulkKind::Purge => 1,
        BulkKind::Redrive => 2,
        BulkKind::Discard => 3,
        BulkKind::Cancel => 4,
    }
}

fn owner_from(stored: String) -> Option<Box<str>> {
    (!stored.is_empty()).then(|| stored.into())
}

fn member_from(bytes: Vec<u8>) -> Result<MemberId, CorruptValue> {
    let id = <[u8; 16]>::try_from(bytes).map_err(|_| CorruptValue::new(WHAT, "a member of another length"))?;
    Ok(MemberId(id))
}

fn end_of(end: &OperationEnd) -> StoredOperationEnd {
    let at = end.at.micros();
    let without_text = |outcome| StoredOperationEnd { at, outcome, ..StoredOperationEnd::default() };
    match &end.outcome {
        OperationOutcome::Done => without_text(DONE),
        OperationOutcome::Cancelled => without_text(CANCELLED),
        OperationOutcome::Failed { reason, text } => {
            StoredOperationEnd { at, outcome: FAILED, reason: reason.to_string(), text: text.to_string() }
        }
    }
}

fn end_from(stored: StoredOperationEnd) -> Result<OperationEnd, CorruptValue> {
    let outcome = match stored.outcome {
        DONE => OperationOutcome::Done,
        CANCELLED => OperationOutcome::Cancelled,
        // A newer release may know other reasons; the text says what happened.
        FAILED => OperationOutcome::Failed {
            reason: Reason::from_name(&stored.reason).unwrap_or(Reason::Internal),
            text: stored.text.into(),
        },
        // No release that this one can read wrote such a number.
        other => return Err(CorruptValue::new(WHAT, format!("outcome {other}"))),
    };
    Ok(OperationEnd { at: Timestamp::from_micros(stored.at), outcome })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallystone_domain::queue::{MessageState, QueueId, QueueName};

    fn running() -> OperationRow {
        let at = Timestamp::from_secs;
        OperationRow {
            id: "op-1".into(),
            version: 7,
            queue: QueueId(u128::MAX - 1),
            name: QueueName::new("mail").expect("a valid name"),
            work: BulkOperation {
                kind: BulkKind::Discard,
                states: PurgedStates::new([MessageState::Completed]).expect("a purge covers it"),
                filter: Filter::new([("team", "red")]).expect("a valid filter"),
                signature: Some("timeout".into()),
                until: Some(at(3)),
                dry_run: true,
                rate: 10,
                reason: "the tenant left".into(),
            },
            through: vec![1, u64::MAX],
            ended_by: Some(at(4)),
            next: BulkCursor { shard: 1, after: u64::MAX - 1 },
            done: 5,
            total: 9,
            began: at(1),
            author: OperationAuthor { text: "ops (Ann)".into(), owner: Some("ops".into()) },
            runner: Some(MemberId([7; 16])),
            is_cancelled: true,
            end: None,
        }
    }

    #[test]
    fn an_operation_comes_back_as_it_was() {
        let failed = OperationOutcome::Failed { reason: Reason::QueueNotFound, text: "gone".into() };
        let ends = [None, Some(OperationOutcome::Done), Some(OperationOutcome::Cancelled), Some(failed)];
        for (kind, end) in KINDS.into_iter().cycle().zip(ends) {
            let end = end.map(|outcome| OperationEnd { at: Timestamp::from_secs(8), outcome });
            let row = OperationRow { end, work: BulkOperation { kind, ..running().work }, ..running() };
            assert_eq!(decode_operation("op-1", 7, &encode_operation(&row)), Ok(row));
        }
        let bare = BulkOperation { filter: Filter::default(), signature: None, until: None, ..running().work };
        let author = OperationAuthor::default();
        let row = OperationRow { work: bare, author, ended_by: None, runner: None, through: Vec::new(), ..running() };
        assert_eq!(decode_operation("op-1", 7, &encode_operation(&row)), Ok(row));
    }

    #[test]
    fn what_no_operation_was_stored_as_is_refused() {
        let bytes = encode_operation(&running());
        let stored: StoredOperation = decode(WHAT, &bytes).expect("our own bytes");
        for wrong in [
            StoredOperation { kind: 5, ..stored.clone() },
            StoredOperation { states: 4, ..stored.clone() },
            StoredOperation { runner: Some(vec![1; 15]), ..stored.clone() },
            StoredOperation { queue: Vec::new(), ..stored.clone() },
            StoredOperation { end: Some(StoredOperationEnd::default()), ..stored },
        ] {
            assert!(decode_operation("op-1", 7, &wrong.encode_to_vec()).is_err(), "{wrong:?}");
        }
    }
}
