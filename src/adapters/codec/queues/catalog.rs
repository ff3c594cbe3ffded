//! Encodings of the catalog of queues.

use prost::Message as _;

use super::settings::{settings_from, settings_of};
use super::{CorruptValue, decode};
use tallystone_domain::queue::{CatalogQueue, Durability, QueueId, QueueName, QueueSpec};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{QueueChange, QueueDeletion, QueueRequest};
use tallystone_proto::internal::v1::{
    StoredQueue, StoredQueueChange, StoredQueueDeletion, StoredQueueRequest, StoredQueueSpec,
};

/// Encodes a live queue.
pub fn encode_queue(queue: &CatalogQueue) -> Vec<u8> {
    let CatalogQueue { id, spec, version, created, updated, made_by } = queue;
    StoredQueue {
        id: id.0.to_be_bytes().to_vec(),
        spec: Some(spec_of(spec)),
        version: *version,
        created: created.micros(),
        updated: updated.micros(),
        made_by: made_by.as_deref().map(str::to_owned),
    }
    .encode_to_vec()
}

/// Decodes a live queue.
pub fn decode_queue(bytes: &[u8]) -> Result<CatalogQueue, CorruptValue> {
    const WHAT: &str = "queue of the catalog";
    let stored: StoredQueue = decode(WHAT, bytes)?;
    let spec = stored.spec.ok_or_else(|| CorruptValue::new(WHAT, "no settings"))?;
    Ok(CatalogQueue {
        id: id_from(WHAT, &stored.id)?,
        spec: spec_from(WHAT, spec)?,
        version: stored.version,
        created: Timestamp::from_micros(stored.created),
        updated: Timestamp::from_micros(stored.updated),
        made_by: stored.made_by.map(Into::into),
    })
}

/// Encodes an entry of the history.
pub fn encode_change(change: &QueueChange) -> Vec<u8> {
    let QueueChange { id, name, version, time, actor, reason, differences, spec, deletion } = change;
    let deletion_of = |QueueDeletion { token, messages }: &QueueDeletion| StoredQueueDeletion {
        request_token: token.as_deref().map(str::to_owned),
        messages: *messages,
    };
    StoredQueueChange {
        id: id.0.to_be_bytes().to_vec(),
        name: name.as_str().to_owned(),
        version: *version,
        time: time.micros(),
        actor: actor.clone(),
        reason: reason.clone(),
        differences: differences.clone(),
        spec: spec.as_ref().map(spec_of),
        deletion: deletion.as_ref().map(deletion_of),
    }
    .encode_to_vec()
}

/// Decodes an entry of the history.
pub fn decode_change(bytes: &[u8]) -> Result<QueueChange, CorruptValue> {
    const WHAT: &str = "change of a queue";
    let stored: StoredQueueChange = decode(WHAT, bytes)?;
    let deletion_from = |StoredQueueDeletion { request_token, messages }| QueueDeletion {
        token: request_token.map(String::into_boxed_str),
        messages,
    };
    Ok(QueueChange {
        id: id_from(WHAT, &stored.id)?,
        name: name_from(WHAT, &stored.name)?,
        version: stored.version,
        time: Timestamp::from_micros(stored.time),
        actor: stored.actor,
        reason: stored.reason,
        differences: stored.differences,
        spec: stored.spec.map(|spec| spec_from(WHAT, spec)).transpose()?,
        deletion: stored.deletion.map(deletion_from),
    })
}

/// Encodes a request; queue and token are in its key.
pub fn encode_request(request: &QueueRequest) -> Vec<u8> {
    let QueueRequest { queue: _, token: _, fingerprint, through, ended_by, until } = request;
    StoredQueueRequest {
        fingerprint: *fingerprint,
        through: through.clone(),
        until: until.micros(),
        ended_by: ended_by.map(Timestamp::micros),
    }
    .encode_to_vec()
}

pub fn decode_request(queue: QueueId, token: &str, bytes: &[u8]) -> Result<QueueRequest, CorruptValue> {
    let StoredQueueRequest { fingerprint, through, until, ended_by } = decode("request of a queue", bytes)?;
    let (ended_by, until) = (ended_by.map(Timestamp::from_micros), Timestamp::from_micros(until));
    Ok(QueueRequest { queue, token: token.into(), fingerprint, through, ended_by, until })
}

fn spec_of(spec: &QueueSpec) -> StoredQueueSpec {
    let QueueSpec {
        name,
        description,
        template_for,
        shards,
        required_durability,
        settings,
        enqueue_blocked,
        dequeue_blocked,
    } = spec;
    StoredQueueSpec {
        name: name.as_str().to_owned(),
        description: description.clone(),
        template_for: template_for.as_deref().map(str::to_owned),
        shards: *shards,
        required_durability: required_durability.map_or(0, number_of),
        settings: Some(settings_of(settings)),
        enqueue_blocked: enqueue_blocked.as_deref().map(str::to_owned),
        dequeue_blocked: dequeue_blocked.as_deref().map(str::to_owned),
    }
}

fn spec_from(what: &'static str, stored: StoredQueueSpec) -> Result<QueueSpec, CorruptValue> {
    let settings = stored.settings.ok_or_else(|| CorruptValue::new(what, "no settings of its shards"))?;
    Ok(QueueSpec {
        name: name_from(what, &stored.name)?,
        description: stored.description,
        template_for: stored.template_for.map(Into::into),
        shards: stored.shards,
        required_durability: durability_from(what, stored.required_durability)?,
        settings: settings_from(settings)?,
        enqueue_blocked: stored.enqueue_blocked.map(Into::into),
        dequeue_blocked: stored.dequeue_blocked.map(Into::into),
    })
}

fn number_of(durability: Durability) -> u32 {
    match durability {
        Durability::Fast => 1,
        Durability::Safe => 2,
        Durability::Replicated => 3,
    }
}

fn durability_from(what: &'static str, number: u32) -> Result<Option<Durability>, CorruptValue> {
    let found = Durability::ALL.into_iter().find(|durability| number_of(*durability) == number);
    match (found, number) {
        (None, 1..) => Err(CorruptValue::new(what, format!("durability {number}"))),
        (found, _) => Ok(found),
    }
}

pub(super) fn name_from(what: &'static str, name: &str) -> Result<QueueName, CorruptValue> {
    QueueName::new(name).map_err(|reject| CorruptValue::new(what, reject.message))
}

pub(super) fn id_from(what: &'static str, bytes: &[u8]) -> Result<QueueId, CorruptValue> {
    let bytes = bytes.try_into().map_err(|_| CorruptValue::new(what, "a number of another length"))?;
    Ok(QueueId(u128::from_be_bytes(bytes)))
}
