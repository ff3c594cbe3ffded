//! Calls that settle or extend leases, and calls that update, cancel or redrive a message.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3;

use crate::queues::error::QueueError;
use crate::queues::error::argument_checks::{check_reason, check_token};
use crate::queues::error::unexpected;
use crate::queues::state::served_queue::ServedQueue;
use crate::queues::work::WorkService;
use tallystone_domain::limits::{LEASE_MAX, LEASE_MIN};
use tallystone_domain::queue::command::{FailureReport, MessageUpdate, Refusal};
use tallystone_domain::queue::invalid_command::InvalidCommandPart;
use tallystone_domain::queue::messages::key_syntax::KeyTextError;
use tallystone_domain::queue::messages::message::{AttemptError, LeaseToken, MessageRef, Metadata, RoutingValue};
use tallystone_domain::queue::messages::settlement::{SettleAction, Settlement, UpdateToken};
use tallystone_domain::queue::shard_routing::shard_of;
use tallystone_domain::queue::{Command, MessageState, QueueName, Reply};
use tallystone_domain::time::micros_of;
use tallystone_domain::{Reason, Reject, Timestamp};
use tallystone_ports::{MessageBody, ShardAnswer, ShardCommand};

/// A request to settle a lease.
#[derive(Clone, Debug)]
pub struct SettleRequest {
    /// The lease, as text.
    pub token: String,
    /// The action that ends the lease.
    pub verb: SettleAction,
    /// For Fail: the delay before the next attempt.
    pub delay: Option<Duration>,
    /// For Fail: the error of the worker.
    pub error: Option<AttemptError>,
}

/// A request to settle or extend a lease.
#[derive(Clone, Debug)]
pub enum LeaseActionRequest {
    Settle(SettleRequest),
    Extend {
        /// The lease, as text.
        token: String,
        /// The new lease duration, measured from now; `None` means the queue's default.
        lease: Option<Duration>,
    },
}

impl LeaseActionRequest {
    /// The token of the lease.
    pub fn token(&self) -> &str {
        match self {
            Self::Settle(SettleRequest { token, .. }) | Self::Extend { token, .. } => token,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseOutcome {
    /// The state of the message.
    pub settlement: Settlement,
    /// The extension; `None` if the lease was settled.
    pub extended: Option<LeaseExtension>,
}

impl LeaseOutcome {
    /// Whether the lease is still active.
    pub fn is_active(&self) -> bool {
        self.extended.is_some_and(|extended| !extended.expires_in.is_zero())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseExtension {
    /// The remaining lease time when the response is sent; 0 if the lease has ended.
    pub expires_in: Duration,
    /// Whether a cancel of the message was requested.
    pub cancel_requested: bool,
}

/// A request to update a message.
#[derive(Clone, Debug, Default)]
pub struct UpdateRequest {
    pub priority: Option<i64>,
    /// The time from which it may be served.
    pub visible_at: Option<Timestamp>,
    /// An alternative to `visible_at`: a delay from now.
    pub invisibility: Option<Duration>,
    /// Whether to skip the update if the requested time is later than the current one.
    pub only_if_sooner: bool,
    pub expected_version: Option<u64>,
    /// The new payload.
    pub payload: Option<Bytes>,
    /// The new metadata, in place of all old ones.
    pub metadata: Option<Metadata>,
    /// The request token for deduplication, 1 to 64 bytes.
    pub token: Option<String>,
}

impl UpdateRequest {
    /// Hashes all fields except the token, and whether each field is set. The hash is stored, so it must stay stable.
    fn fingerprint(&self) -> u64 {
        let mut hash = Xxh3::new();
        let mut part = |part: Option<i128>| {
            hash.update(&[u8::from(part.is_some())]);
            hash.update(&part.unwrap_or_default().to_be_bytes());
        };
        part(self.priority.map(i128::from));
        part(self.visible_at.map(|at| i128::from(at.micros())));
        part(self.invisibility.map(|time| i128::from(micros_of(time))));
        part(Some(i128::from(self.only_if_sooner)));
        part(self.expected_version.map(i128::from));
        // Only if they are there: the hash of every other update is as before these fields.
        let mut text = |bytes: &[u8]| {
            hash.update(&(bytes.len() as u64).to_be_bytes());
            hash.update(bytes);
        };
        if let Some(payload) = &self.payload {
            text(b"payload");
            text(payload);
        }
        if let Some(metadata) = &self.metadata {
            text(b"metadata");
            metadata.pairs().flat_map(|(key, value)| [key, value]).for_each(|part| text(part.as_bytes()));
        }
        hash.digest()
    }
}

impl WorkService {
    /// Settles a lease.
    pub async fn settle(&self, name: &QueueName, sent: SettleRequest) -> Result<Settlement, QueueError> {
        let queue = self.queue_of_leases(name, [sent.token.as_str()]).await?;
        let token = self.lease_token(&queue, &sent.token)?;
        match self.context.call(&queue, token.key.shard, self.settlement(token, sent)).await {
            Ok(answer) => self.settled_by(answer),
            Err(error) => Err(self.error_of_lease(&queue, error).await),
        }
    }

    /// Settles or extends several leases, with a separate result for each. The leases of one shard are sent in one
    /// call.
    pub async fn settle_all(
        &self,
        name: &QueueName,
        sent: Vec<Result<LeaseActionRequest, QueueError>>,
    ) -> Result<Vec<Result<LeaseOutcome, QueueError>>, QueueError> {
        self.catalog.queue(name).await?;
        Ok(self.settle_each(name, sent).await)
    }

    /// Like `settle_all`, but if the queue does not exist, each result is an error instead of the whole call.
    pub async fn settle_each(
        &self,
        name: &QueueName,
        sent: Vec<Result<LeaseActionRequest, QueueError>>,
    ) -> Vec<Result<LeaseOutcome, QueueError>> {
        let tokens = sent.iter().flatten().map(LeaseActionRequest::token);
        let Ok(queue) = self.queue_of_leases(name, tokens).await else {
            return sent.into_iter().map(|sent| sent.and(Err(QueueError::not_found(name)))).collect();
        };
        let command = |sent: Result<LeaseActionRequest, QueueError>| match sent? {
            LeaseActionRequest::Settle(sent) => {
                let token = self.lease_token(&queue, &sent.token)?;
                Ok((token.key.shard, self.settlement(token, sent)))
            }
            LeaseActionRequest::Extend { token, lease } => self.extension(&queue, &token, lease),
        };
        let answers = self.context.call_each(&queue, sent.into_iter().map(command).collect()).await;
        let lost = answers.iter().filter_map(|answer| answer.as_ref().err()).find(|error| error.is_of_unknown_queue());
        let is_replaced = match lost {
            Some(error) => self.catalog.is_replaced(name, Some(queue.record.load().id), error).await,
            None => false,
        };
        let handled = |answer: Result<ShardAnswer, QueueError>| match answer {
            Ok(answer) => self.handled_by(answer),
            Err(error) if is_replaced && error.is_of_unknown_queue() => Err(self.error_of_replaced(name)),
            Err(error) => Err(error),
        };
        answers.into_iter().map(handled).collect()
    }

    /// The queue of a name. If another server has just created it, tokens of its leases show that, and it is read.
    async fn queue_of_leases<'a>(
        &self,
        name: &QueueName,
        tokens: impl IntoIterator<Item = &'a str>,
    ) -> Result<Arc<ServedQueue>, QueueError> {
        let queue = self.catalog.queue(name).await?;
        let is_newer = |token| matches!(self.lease_token(&queue, token), Err(QueueError::LeaseOfOtherQueue));
        if self.context.is_shared() && tokens.into_iter().any(is_newer) {
            return Ok(self.catalog.successor(&queue, QueueError::LeaseOfOtherQueue).await.unwrap_or(queue));
        }
        Ok(queue)
    }

    /// Interprets the error of a call with a lease: if another server has replaced the queue, the lease is of the old
    /// one.
    async fn error_of_lease(&self, queue: &ServedQueue, error: QueueError) -> QueueError {
        self.catalog.successor(queue, error).await.map_or_else(|error| error, |_| QueueError::LeaseOfOtherQueue)
    }

    /// The same where the queue of the lease is known to be replaced: none may have its name now.
    fn error_of_replaced(&self, name: &QueueName) -> QueueError {
        self.context.queue(name).map_or_else(|error| error, |_| QueueError::LeaseOfOtherQueue)
    }

    fn settlement(&self, token: LeaseToken, sent: SettleRequest) -> ShardCommand {
        let failure = match sent.verb {
            SettleAction::Fail => {
                let draw = u32::from_be_bytes(self.context.random());
                FailureReport { delay: sent.delay, draw, error: sent.error }
            }
            SettleAction::Complete | SettleAction::Cancel | SettleAction::Release => FailureReport::default(),
        };
        ShardCommand::of(Command::Settle { token, verb: sent.verb, failure })
    }

    fn settled_by(&self, answer: ShardAnswer) -> Result<Settlement, QueueError> {
        // A repeated settlement has no transition, so it is not counted twice.
        let completed = answer.transitions.iter().filter(|row| row.to == Some(MessageState::Completed)).count();
        self.context.stats().messages_completed.add(completed as u64);
        let reply = answer
            .reply
            .map_err(|refusal| QueueError::from(refusal).about(InvalidCommandPart::Invisibility, "delay"))?;
        match reply {
            Reply::Settled(settlement) => {
                self.context.stats().leases_settled.increment();
                Ok(settlement)
            }
            other => Err(unexpected("settle", &other)),
        }
    }

    fn handled_by(&self, answer: ShardAnswer) -> Result<LeaseOutcome, QueueError> {
        let Ok(Reply::Extended { expires_in, cancel_requested }) = answer.reply else {
            return Ok(LeaseOutcome { settlement: self.settled_by(answer)?, extended: None });
        };
        // Both an extension and an expiry are recorded as transitions, so the last transition has the current state.
        let row = answer.transitions.last().and_then(|row| Some(Settlement { state: row.to?, version: row.version }));
        let settlement = row.ok_or_else(|| unexpected("extend", &Reply::Extended { expires_in, cancel_requested }))?;
        Ok(LeaseOutcome { settlement, extended: Some(LeaseExtension { expires_in, cancel_requested }) })
    }

    /// Extends a lease by `lease` from now; `None` means the queue's default.
    pub async fn extend(
        &self,
        name: &QueueName,
        token: &str,
        lease: Option<Duration>,
    ) -> Result<LeaseExtension, QueueError> {
        let queue = self.queue_of_leases(name, [token]).await?;
        let (shard, command) = self.extension(&queue, token, lease)?;
        let answer = match self.context.call(&queue, shard, command).await {
            Ok(answer) => answer,
            Err(error) => return Err(self.error_of_lease(&queue, error).await),
        };
        match answer.reply? {
            Reply::Extended { expires_in, cancel_requested } => Ok(LeaseExtension { expires_in, cancel_requested }),
            other => Err(unexpected("extend", &other)),
        }
    }

    /// Builds the command that extends a lease. Returns its shard and the command.
    fn extension(
        &self,
        queue: &ServedQueue,
        token: &str,
        lease: Option<Duration>,
    ) -> Result<(u32, ShardCommand), QueueError> {
        let token = self.lease_token(queue, token)?;
        let lease = lease.unwrap_or(queue.record.load().spec.settings.default_lease);
        // The range of every lease, and 0 ends this one.
        if !lease.is_zero() && !(LEASE_MIN..=LEASE_MAX).contains(&lease) {
            return Err(InvalidCommandPart::Lease.into());
        }
        Ok((token.key.shard, ShardCommand::of(Command::Extend { token, lease })))
    }

    /// Updates a message that is not leased.
    pub async fn update_message(
        &self,
        name: &QueueName,
        message: MessageRef,
        sent: UpdateRequest,
    ) -> Result<Settlement, QueueError> {
        check_token(sent.token.as_deref())?;
        let fingerprint = sent.fingerprint();
        let payload_bytes = sent.payload.as_ref().map(|payload| u32::try_from(payload.len())).transpose();
        let payload_bytes = payload_bytes.map_err(|_| InvalidCommandPart::Payload)?;
        let token = sent.token.map(|text| UpdateToken { text: text.into(), fingerprint });
        let update = MessageUpdate {
            priority: sent.priority,
            visible_at: sent.visible_at,
            invisibility: sent.invisibility,
            payload_bytes,
            metadata: sent.metadata,
            only_if_sooner: sent.only_if_sooner,
            expected_version: sent.expected_version,
            token,
        };
        let time = if sent.visible_at.is_some() { "visible_time" } else { "invisibility" };
        let body = MessageBody { payload: sent.payload.unwrap_or_default(), ..MessageBody::default() };
        let command = Command::Update { message: message.clone(), update };
        let updated = self.change_message(name, message, ShardCommand { command, body }).await;
        updated.map_err(|error| match error {
            QueueError::Refused(Refusal::TokenReused) => {
                let what = "this request_token was used for a different update of the message; nothing was done";
                Reject::new(Reason::TokenReused, what).at("request_token", what).into()
            }
            QueueError::Refused(Refusal::Invalid(InvalidCommandPart::ExclusivityValue)) => {
                let what = "a message of an exclusive queue keeps its exclusivity value: send it with the new metadata";
                Reject::new(Reason::InvalidMessage, what).at("metadata", what).into()
            }
            QueueError::Refused(Refusal::Invalid(invalid)) => {
                let field = match invalid {
                    InvalidCommandPart::Payload | InvalidCommandPart::PayloadOfQueue(_) => "payload",
                    InvalidCommandPart::MetadataOfQueue(_) => "metadata",
                    InvalidCommandPart::Priority => "priority",
                    _ => time, // nothing else of an update has a range
                };
                QueueError::Argument { field, invalid }
            }
            error => error,
        })
    }

    /// Cancels a message, or requests cancellation from the worker that leased it.
    pub async fn cancel_message(
        &self,
        name: &QueueName,
        message: MessageRef,
        reason: &str,
    ) -> Result<Settlement, QueueError> {
        check_reason(reason)?;
        let reason = reason.into();
        let command = Command::CancelMessage { message: message.clone(), reason };
        self.change_message(name, message, ShardCommand::of(command)).await
    }

    /// Sets the concurrency limit of an exclusivity value; `None` restores the default.
    pub async fn set_value_limit(
        &self,
        name: &QueueName,
        value: RoutingValue,
        limit: Option<u32>,
    ) -> Result<(), QueueError> {
        let queue = self.catalog.queue(name).await?;
        let value = &value;
        let set = |queue: Arc<ServedQueue>| async move {
            let command = ShardCommand::of(Command::SetValueLimit { value: value.clone(), limit });
            self.context.call(&queue, shard_of(queue.shards(), value.as_str()), command).await
        };
        let answer = self.catalog.call_on(queue, set).await?;
        match answer.reply? {
            Reply::ValueLimitSet => Ok(()),
            other => Err(unexpected("set value limit", &other)),
        }
    }

    /// Redrives one errored message with fresh attempts.
    pub(in crate::queues) async fn redrive_one(
        &self,
        name: &QueueName,
        message: MessageRef,
    ) -> Result<Settlement, QueueError> {
        let command = Command::Redrive { message: message.clone() };
        self.change_message(name, message, ShardCommand::of(command)).await
    }

    async fn change_message(
        &self,
        name: &QueueName,
        message: MessageRef,
        command: ShardCommand,
    ) -> Result<Settlement, QueueError> {
        let queue = self.catalog.queue(name).await?;
        let (message, command) = (&message, &command);
        let change = |queue| async move { self.change_message_of(&queue, message, command.clone()).await };
        let answer = self.catalog.call_on(queue, change).await?;
        match answer.reply? {
            Reply::Settled(settlement) => Ok(settlement),
            other => Err(unexpected("change message", &other)),
        }
    }

    async fn change_message_of(
        &self,
        queue: &Arc<ServedQueue>,
        message: &MessageRef,
        command: ShardCommand,
    ) -> Result<ShardAnswer, QueueError> {
        let shard = self.context.shard_of(queue, message).await?;
        self.context.call(queue, shard, command).await
    }

    /// Parses a lease token. Rejects a token of another queue, and returns `LeaseLost` for an unknown shard.
    fn lease_token(&self, queue: &ServedQueue, text: &str) -> Result<LeaseToken, QueueError> {
        let token = LeaseToken::parse(text, queue.record.load().id.0, &self.context.lease_key);
        let token = token.map_err(|bad| match bad {
            KeyTextError::OtherQueue => QueueError::LeaseOfOtherQueue,
            KeyTextError::Key | KeyTextError::Lease => Reject::new(Reason::InvalidLeaseToken, bad.to_string()).into(),
        })?;
        if token.key.shard < queue.shards() { Ok(token) } else { Err(Refusal::LeaseLost.into()) }
    }
}
