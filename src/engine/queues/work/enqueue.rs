//! Enqueue: choose the id and the shard of each message, and send it there.

use std::time::Duration;

use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3;

use crate::caller_quota::CallerId;
use crate::queues::catalog::EnqueueTarget;
use crate::queues::error::QueueError;
use crate::queues::error::unexpected;
use crate::queues::state::served_queue::ServedQueue;
use crate::queues::work::WorkService;
use tallystone_domain::Timestamp;
use tallystone_domain::queue::clock::StepTime;
use tallystone_domain::queue::command::{NewMessage, Refusal};
use tallystone_domain::queue::invalid_command::InvalidCommandPart;
use tallystone_domain::queue::messages::message::{MessageKey, Metadata};
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::queue::shard::Shard;
use tallystone_domain::queue::shard_routing::{MessageRoute, route};
use tallystone_domain::queue::{CatalogQueue, Command, MessageState, QueueId, QueueName, QueueSpec, Reply};
use tallystone_ports::{MessageBody, ShardAnswer, ShardCommand};

/// A message as a caller sends it.
#[derive(Clone, Debug, Default)]
pub struct SentMessage {
    /// The id, if the caller sent one.
    pub id: Option<MessageId>,
    /// The time in the id, if any.
    pub token_time: Option<Timestamp>,
    pub payload: Bytes,
    pub priority: Option<i64>,
    /// The priority class.
    pub class: Option<Box<str>>,
    pub metadata: Metadata,
    pub invisibility: Option<Duration>,
    /// The time from which it may be served; the past means at once. Not together with an invisibility.
    pub visible_at: Option<Timestamp>,
    /// The default lease.
    pub lease_duration: Option<Duration>,
    /// The maximum number of attempts.
    pub max_attempts: Option<u32>,
    pub ttl: Option<Duration>,
    /// The routing value, which selects the shard.
    pub shard_key: Option<Box<str>>,
    /// Its type.
    pub kind: Option<Box<str>>,
    pub trace_context: Option<Box<str>>,
}

/// A message during its enqueue.
struct EnqueueId {
    id: MessageId,
    /// Whether the caller sent the id.
    idempotent: bool,
    /// The field that sets the time from which it may be served.
    time_field: &'static str,
}

impl EnqueueId {
    /// The same error at the field that the caller sent.
    fn about_time(&self, error: QueueError) -> QueueError {
        error.about(InvalidCommandPart::Invisibility, self.time_field)
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EnqueueOutcome {
    pub id: MessageId,
    pub key: MessageKey,
    /// The state directly after the first call.
    pub state: MessageState,
    /// Whether an earlier call enqueued it.
    pub already_enqueued: bool,
    /// Whether a repeat would be recognised.
    pub idempotent: bool,
}

impl WorkService {
    /// Enqueues a message. Creates the queue if a template matches.
    pub async fn enqueue(
        &self,
        caller: &CallerId,
        name: &QueueName,
        sent: SentMessage,
    ) -> Result<EnqueueOutcome, QueueError> {
        if !self.context.is_shared() {
            return self.enqueue_once(caller, name, sent).await;
        }
        let known = self.catalog.id_of(name);
        match self.enqueue_once(caller, name, sent.clone()).await {
            Err(error) if self.catalog.is_replaced(name, known, &error).await => {
                self.enqueue_once(caller, name, sent).await
            }
            enqueued => enqueued,
        }
    }

    async fn enqueue_once(
        &self,
        caller: &CallerId,
        name: &QueueName,
        sent: SentMessage,
    ) -> Result<EnqueueOutcome, QueueError> {
        let queue = match self.catalog.enqueue_target(name, self.makes_queues).await? {
            EnqueueTarget::Live(queue) => queue,
            EnqueueTarget::Template { template, spec } => {
                let step = self.context.stores.time.clock().await?;
                self.check_on_empty_shard(&spec, sent.clone(), step)?;
                self.catalog.create_from_template(caller, &template, *spec).await?
            }
        };
        let (named, (shard, command)) = self.enqueue_command(&queue, sent)?;
        self.enqueue_outcome(&queue, named, self.context.call(&queue, shard, command).await?)
    }

    /// Enqueues messages, each with its own outcome.
    pub async fn batch_enqueue(
        &self,
        caller: &CallerId,
        name: &QueueName,
        sent: Vec<Result<SentMessage, QueueError>>,
    ) -> Result<Vec<Result<EnqueueOutcome, QueueError>>, QueueError> {
        if !self.context.is_shared() {
            return self.batch_enqueue_once(caller, name, sent).await;
        }
        let known = self.catalog.id_of(name);
        let kept: Vec<Option<SentMessage>> = sent.iter().map(|sent| sent.as_ref().ok().cloned()).collect();
        let mut enqueued = self.batch_enqueue_once(caller, name, sent).await?;
        let is_lost = |result: &Result<_, QueueError>| result.as_ref().is_err_and(QueueError::is_of_unknown_queue);
        let Some(Err(error)) = enqueued.iter().find(|result| is_lost(result)) else { return Ok(enqueued) };
        if !self.catalog.is_replaced(name, known, error).await {
            return Ok(enqueued);
        }
        let lost = enqueued.iter().zip(kept).enumerate().filter(|(_, (result, _))| is_lost(result));
        let (places, again): (Vec<_>, Vec<_>) = lost.filter_map(|(place, (_, kept))| Some((place, Ok(kept?)))).unzip();
        for (place, result) in places.into_iter().zip(self.batch_enqueue_once(caller, name, again).await?) {
            enqueued[place] = result;
        }
        Ok(enqueued)
    }

    async fn batch_enqueue_once(
        &self,
        caller: &CallerId,
        name: &QueueName,
        sent: Vec<Result<SentMessage, QueueError>>,
    ) -> Result<Vec<Result<EnqueueOutcome, QueueError>>, QueueError> {
        let (queue, sent) = match self.catalog.enqueue_target(name, self.makes_queues).await? {
            EnqueueTarget::Live(queue) => (queue, sent),
            EnqueueTarget::Template { template, spec } => {
                let step = self.context.stores.time.clock().await?;
                let tried = |sent: Result<SentMessage, QueueError>| {
                    let sent = sent?;
                    self.check_on_empty_shard(&spec, sent.clone(), step).map(|()| sent)
                };
                let sent: Vec<_> = sent.into_iter().map(tried).collect();
                if sent.iter().all(Result::is_err) {
                    return Ok(sent.into_iter().filter_map(Result::err).map(Err).collect());
                }
                (self.catalog.create_from_template(caller, &template, *spec).await?, sent)
            }
        };
        let (mut names, mut commands) = (Vec::with_capacity(sent.len()), Vec::with_capacity(sent.len()));
        for sent in sent {
            let named = sent.and_then(|sent| self.enqueue_command(&queue, sent));
            let (name, command) =
                named.map_or_else(|error| (None, Err(error)), |(name, command)| (Some(name), Ok(command)));
            names.push(name);
            commands.push(command);
        }
        let answers = self.context.call_each(&queue, commands).await;
        let enqueued = |(name, answer): (Option<EnqueueId>, Result<ShardAnswer, QueueError>)| {
            let answer = answer?;
            self.enqueue_outcome(&queue, name.expect("only what has a name was sent"), answer)
        };
        Ok(names.into_iter().zip(answers).map(enqueued).collect())
    }

    /// Checks a message against a new queue, so that a refused message leaves no new queue behind.
    pub(super) fn check_on_empty_shard(
        &self,
        spec: &QueueSpec,
        sent: SentMessage,
        step: StepTime,
    ) -> Result<(), QueueError> {
        let (id, now) = (QueueId(0), step.now);
        let queue = CatalogQueue { id, spec: spec.clone(), version: 1, created: now, updated: now, made_by: None };
        let queue = ServedQueue::new(queue);
        let (named, (number, ShardCommand { command, .. })) = self.enqueue_command(&queue, sent)?;
        let mut shard = Shard::new(number, 1, spec.shard_settings())?;
        shard
            .apply(command, step)
            .reply
            .map(drop)
            .map_err(|refusal| named.about_time(refused(&queue, refusal, self.context.now())))
    }

    /// The id of a message, and its enqueue command with the shard.
    fn enqueue_command(
        &self,
        queue: &ServedQueue,
        sent: SentMessage,
    ) -> Result<(EnqueueId, (u32, ShardCommand)), QueueError> {
        let idempotent = sent.id.is_some();
        let time_field = if sent.visible_at.is_some() { "message.visible_time" } else { "message.invisibility" };
        let id = sent.id.clone().unwrap_or_else(|| self.server_made_id());
        let spec = queue.record.load();
        let route = route(&spec.spec.settings, queue.shards(), &id, sent.shard_key.as_deref(), &sent.metadata);
        let route = route.map_err(|invalid| refused(queue, Refusal::Invalid(invalid), self.context.now()));
        let MessageRoute { routing, shard } = route?;
        let payload_bytes = u32::try_from(sent.payload.len()).map_err(|_| InvalidCommandPart::Payload)?;
        let fingerprint = fingerprint_of(&sent);
        let message = NewMessage {
            id: id.clone(),
            token_time: sent.token_time,
            routing,
            metadata: sent.metadata,
            payload_bytes,
            fingerprint,
            priority: sent.priority,
            class: sent.class,
            invisibility: sent.invisibility,
            visible_at: sent.visible_at,
            lease_duration: sent.lease_duration,
            max_attempts: sent.max_attempts,
            ttl: sent.ttl,
        };
        let body = MessageBody { payload: sent.payload, kind: sent.kind, trace_context: sent.trace_context };
        let command = ShardCommand { command: Command::Enqueue(Box::new(message)), body };
        Ok((EnqueueId { id, idempotent, time_field }, (shard, command)))
    }

    fn enqueue_outcome(
        &self,
        queue: &ServedQueue,
        named: EnqueueId,
        answer: ShardAnswer,
    ) -> Result<EnqueueOutcome, QueueError> {
        let failed = |refusal| named.about_time(refused(queue, refusal, self.context.now()));
        let reply = answer.reply.map_err(failed)?;
        let EnqueueId { id, idempotent, .. } = named;
        match reply {
            Reply::Enqueued { key, state, already_enqueued } => {
                let stats = self.context.stats();
                if already_enqueued {
                    stats.messages_repeated.increment();
                } else {
                    stats.messages_enqueued.increment();
                }
                Ok(EnqueueOutcome { id, key, state, already_enqueued, idempotent })
            }
            other => Err(unexpected("enqueue", &other)),
        }
    }

    /// An id for a message without one: a UUIDv7.
    fn server_made_id(&self) -> MessageId {
        let millis = u64::try_from(self.context.now().millis()).unwrap_or(0);
        let uuid = uuid::Builder::from_unix_timestamp_millis(millis, &self.context.random()).into_uuid();
        MessageId::new(&uuid.to_string()).expect("36 letters and digits are an id")
    }
}

/// The error of a refused enqueue, with the values that its caller needs.
fn refused(queue: &ServedQueue, refusal: Refusal, server_time: Timestamp) -> QueueError {
    match refusal {
        Refusal::Invalid(InvalidCommandPart::TokenTime) => QueueError::FutureTime { server_time },
        Refusal::Invalid(InvalidCommandPart::PriorityClass) => {
            let classes = &queue.record.load().spec.settings.classes;
            QueueError::UnknownClass { known: classes.iter().map(|class| class.name.clone()).collect() }
        }
        Refusal::Invalid(InvalidCommandPart::ExclusivityValue) => {
            let exclusivity = queue.record.load().spec.settings.exclusivity.clone();
            let key = exclusivity.map_or_else(String::new, |exclusivity| exclusivity.key.to_string());
            QueueError::NoExclusivityValue { key }
        }
        refusal => refusal.into(),
    }
}

/// A hash over all parts of a message except its id. Every part includes its length.
fn fingerprint_of(sent: &SentMessage) -> u64 {
    let mut hash = Xxh3::new();
    let mut part = |bytes: Option<&[u8]>| {
        hash.update(&bytes.map_or(u64::MAX, |bytes| bytes.len() as u64).to_be_bytes());
        hash.update(bytes.unwrap_or_default());
    };
    part(Some(&sent.payload));
    for (key, value) in sent.metadata.pairs() {
        part(Some(key.as_bytes()));
        part(Some(value.as_bytes()));
    }
    part(None);
    for text in [&sent.class, &sent.shard_key, &sent.kind] {
        part(text.as_deref().map(str::as_bytes));
    }
    part(sent.priority.map(i64::to_be_bytes).as_ref().map(|bytes| &bytes[..]));
    part(sent.max_attempts.map(u32::to_be_bytes).as_ref().map(|bytes| &bytes[..]));
    for time in [sent.invisibility, sent.lease_duration, sent.ttl] {
        part(time.map(|time| time.as_micros().to_be_bytes()).as_ref().map(|bytes| &bytes[..]));
    }
    // Only if it is there: the hash of every other message is as before this field.
    if let Some(at) = sent.visible_at {
        part(Some(&at.micros().to_be_bytes()));
    }
    hash.digest()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeat_has_the_same_fingerprint_and_other_content_another() {
        let sent = || SentMessage { payload: Bytes::from_static(b"x"), ..SentMessage::default() };
        let pairs = |pairs: [(&str, &str); 1]| Metadata::new(pairs).expect("valid pairs");
        let others = [
            SentMessage { payload: Bytes::new(), ..sent() },
            SentMessage { priority: Some(0), ..sent() },
            SentMessage { max_attempts: Some(1), ..sent() },
            SentMessage { invisibility: Some(Duration::ZERO), ..sent() },
            SentMessage { visible_at: Some(Timestamp::from_secs(1)), ..sent() },
            SentMessage { visible_at: Some(Timestamp::from_secs(2)), ..sent() },
            SentMessage { ttl: Some(Duration::ZERO), ..sent() },
            SentMessage { class: Some("x".into()), ..sent() },
            SentMessage { kind: Some("x".into()), ..sent() },
            SentMessage { metadata: pairs([("a", "b")]), ..sent() },
            SentMessage { metadata: pairs([("ab", "")]), ..sent() },
        ];
        let mut all: Vec<u64> = others.iter().map(fingerprint_of).chain([fingerprint_of(&sent())]).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), others.len() + 1);
        let renamed = SentMessage { id: MessageId::new("other").ok(), trace_context: Some("t".into()), ..sent() };
        assert_eq!(fingerprint_of(&renamed), fingerprint_of(&sent()), "a retry may come within another trace");
    }
}
