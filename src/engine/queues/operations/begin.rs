//! The start of an operation: once for each request token, even across restarts.
//!
//! An operation with a token is stored in the catalog before its call is answered. The record holds a hash of the
//! request and the sequence of each shard at the start; once the operation is over, these are 0. For a single message
//! the record holds the message's version instead, which by itself tells whether the operation is over.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::findings::KeptFindings;
use super::operation_rows::SharedProgress;
use super::{OperationKind, OperationRequest, OperationSpec, RunningOperation, name_of, reused};
use crate::caller_quota::CallerId;
use crate::queues::error::QueueError;
use crate::queues::error::argument_checks::check_token;
use crate::queues::operations::OperationService;
use crate::queues::state::served_queue::ServedQueue;
use tallystone_domain::limits::OPERATION_KEPT;
use tallystone_domain::queue::MessageState;
use tallystone_domain::queue::bulk_operation::PurgedStates;
use tallystone_domain::queue::command::Refusal;
use tallystone_domain::queue::messages::message::MessageRef;
use tallystone_ports::{OperationAuthor, QueueRequest};

impl OperationSpec {
    /// Whether a repeat after a restart must know of it.
    fn outlives_its_server(&self) -> bool {
        !self.dry_run && self.kind != OperationKind::Check
    }

    /// A hash of the whole request, with every part delimited. The hash is stored.
    fn fingerprint(&self) -> u64 {
        let mut hash = Xxh3::new();
        let kind = match (self.kind, &self.message) {
            (OperationKind::Purge, _) => 1,
            (OperationKind::Redrive, None) => 2,
            (OperationKind::Redrive, Some(_)) => 3,
            (OperationKind::Discard, None) => 4,
            (OperationKind::Discard, Some(_)) => 5,
            (OperationKind::Check, _) => 6,
            (OperationKind::Cancel, _) => 7,
        };
        hash.update(&[kind]);
        hash.update(&self.rate.to_be_bytes());
        for text in self.filter.metadata().pairs().flat_map(|(key, value)| [key, value]) {
            hash.update(&(text.len() as u64).to_be_bytes());
            hash.update(text.as_bytes());
        }
        let named = self.message.as_ref().map(|message| match message {
            MessageRef::Key(key) => [key.to_string(), String::new()],
            MessageRef::Id(id, routing) => {
                [id.to_string(), routing.as_ref().map_or_else(String::new, |own| own.as_str().to_owned())]
            }
        });
        for text in named.iter().flatten() {
            hash.update(&(text.len() as u64).to_be_bytes());
            hash.update(text.as_bytes());
        }
        if let Some(signature) = &self.signature {
            hash.update(&(signature.len() as u64).to_be_bytes());
            hash.update(signature.as_bytes());
        }
        if !self.reason.is_empty() {
            hash.update(&(self.reason.len() as u64).to_be_bytes());
            hash.update(self.reason.as_bytes());
        }
        if self.states != PurgedStates::default() {
            hash.update(&[self.states.bits()]);
        }
        if let Some(until) = self.until {
            hash.update(&until.micros().to_be_bytes());
        }
        hash.digest()
    }
}

impl OperationService {
    /// Begins an operation, or finds the one that its token names.
    pub(super) async fn begin(
        &self,
        queue: &Arc<ServedQueue>,
        mut asked: OperationRequest,
    ) -> Result<Arc<RunningOperation>, QueueError> {
        check_token(asked.token.as_deref())?;
        asked.token = asked.token.map(|token| own_token(&token, &asked.caller));
        match asked.token.clone() {
            Some(token) if asked.work.outlives_its_server() => {
                let (operations, queue) = (self.clone(), Arc::clone(queue));
                self.context.finish(async move { operations.begin_stored(&queue, asked, token).await }).await
            }
            Some(_) | None => self.start_operation(queue, asked, None).await,
        }
    }

    /// Starts an operation, or finds the one that its token names. Other servers know of it before the answer.
    async fn start_operation(
        &self,
        queue: &Arc<ServedQueue>,
        asked: OperationRequest,
        kept: Option<QueueRequest>,
    ) -> Result<Arc<RunningOperation>, QueueError> {
        let Some(work) = asked.work.bulk().filter(|_| self.shares_operations()) else {
            return self.start_running(queue, asked, kept);
        };
        let (operations, queue) = (self.clone(), Arc::clone(queue));
        self.context.finish(async move { operations.start_shared(&queue, asked, work, kept).await }).await
    }

    /// The same for an operation that is stored before the answer. One at a time, so that each is stored once.
    async fn begin_stored(
        &self,
        queue: &Arc<ServedQueue>,
        asked: OperationRequest,
        token: String,
    ) -> Result<Arc<RunningOperation>, QueueError> {
        let _turn = self.context.catalog.admit().await.ok_or(QueueError::ShuttingDown)?;
        let (id, now) = (queue.record.load().id, self.context.now());
        if self.known_operations.get(&name_of(id, &token)).is_some() {
            return self.start_running(queue, asked, None);
        }
        let OperationRequest { caller, work, total, .. } = &asked;
        let catalog = &self.context.stores.catalog;
        let kept = catalog.saved_request(id, &token).await?.filter(|kept| kept.until > now);
        let kept = match kept {
            Some(kept) if kept.fingerprint != work.fingerprint() => return Err(reused()),
            Some(kept) => self.remaining_of(queue, work, kept).await?,
            None => {
                let through = match &work.message {
                    Some(message) => self.errored_version(queue, message).await?,
                    None => self.sequences(queue).await?,
                };
                // The record of a rate-limited operation lasts until the operation can be over, plus the usual time.
                let walk = Duration::from_secs(total.checked_div(work.rate.into()).unwrap_or_default());
                let until = now + walk + token_lifetime(queue, work);
                self.known_operations.reserve_stored_request(caller, until, now)?;
                let (token, fingerprint) = (token.as_str().into(), work.fingerprint());
                let ended_by = asked.ended_by;
                let request = QueueRequest { queue: id, token, fingerprint, through, ended_by, until };
                catalog.save_request(request.clone(), now).await?;
                request
            }
        };
        match asked.work.bulk().filter(|_| self.shares_operations()) {
            Some(work) => self.start_shared(queue, asked, work, Some(kept)).await,
            None => self.start_running(queue, asked, Some(kept)),
        }
    }

    /// Stores that an operation is over, so that no repeat runs it again.
    pub(super) async fn store_end(&self, queue: &Arc<ServedQueue>, kept: QueueRequest) {
        let now = self.context.now();
        let through = vec![0; kept.through.len()];
        let request = QueueRequest { through, until: kept.until.max(now + longest(queue)), ..kept };
        if let Err(error) = self.context.stores.catalog.save_request(request, now).await {
            tracing::warn!(%error, "cannot store the end of an operation; a repeat after a restart runs it again");
        }
    }

    /// Frees the token of a redrive that did nothing.
    pub(super) async fn free_token(&self, kept: QueueRequest) {
        let now = self.context.now();
        if let Err(error) = self.context.stores.catalog.save_request(QueueRequest { until: now, ..kept }, now).await {
            tracing::warn!(%error, "cannot free the token of a refused redrive: it stays reserved for an hour");
        }
    }

    fn start_running(
        &self,
        queue: &Arc<ServedQueue>,
        asked: OperationRequest,
        kept: Option<QueueRequest>,
    ) -> Result<Arc<RunningOperation>, QueueError> {
        let (running, is_new) = self.register(self.operation_of(queue, asked, kept, None))?;
        if is_new {
            let (operations, queue, work) = (self.clone(), Arc::clone(queue), Arc::clone(&running));
            self.context.start_once(async move {
                operations.run_operation(&queue, &work).await;
            });
        }
        Ok(running)
    }

    /// The operation of a request, which is not known yet.
    pub(super) fn operation_of(
        &self,
        queue: &ServedQueue,
        OperationRequest { caller, author, work, total, token, ended_by }: OperationRequest,
        kept: Option<QueueRequest>,
        shared: Option<SharedProgress>,
    ) -> RunningOperation {
        let record = queue.record.load();
        RunningOperation {
            id: name_of(record.id, &token.unwrap_or_else(|| self.made_token())),
            author: OperationAuthor {
                text: author,
                owner: caller.principal().map(|principal| principal.as_str().into()),
            },
            caller,
            listed_of: work.is_listed().then_some(record.id),
            queue: Some(record.spec.name.clone()),
            // The messages of a discard had failed by exactly this time.
            began: ended_by.filter(|_| work.until.is_none()).unwrap_or_else(|| self.context.now()),
            work,
            // An operation that continues after a restart keeps its original time.
            ended_by: kept.as_ref().map_or(ended_by, |kept| kept.ended_by),
            stored_request: kept,
            done: AtomicU64::new(0),
            total,
            pace: Mutex::default(),
            shared,
            cancel: CancellationToken::new(),
            findings: KeptFindings::default(),
            end: watch::Sender::new(None),
        }
    }

    /// The token of an operation whose caller sent none.
    pub(super) fn made_token(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.context.random()))
    }

    /// Adds an operation to those that this server knows, or finds the one of its id. Returns whether it is new.
    pub(super) fn register(&self, made: RunningOperation) -> Result<(Arc<RunningOperation>, bool), QueueError> {
        let work = made.work.clone();
        let (running, is_new) = self.known_operations.put(made, self.context.elapsed())?;
        if running.work == work { Ok((running, is_new)) } else { Err(reused()) }
    }

    /// The sequence and the version of an errored message. A redrive, and every later change, gives the message
    /// another version.
    async fn errored_version(&self, queue: &ServedQueue, message: &MessageRef) -> Result<Vec<u64>, QueueError> {
        let name = queue.record.load().spec.name.clone();
        let head = self.inspect.get_message(&name, message.clone()).await?.message.head;
        match head.state {
            MessageState::Errored => Ok(vec![head.key.sequence, head.version]),
            other => Err(Refusal::WrongState(other).into()),
        }
    }

    /// Returns the part of the work that is left for a repeat after a restart: nothing, if it names a message that has
    /// changed since.
    async fn remaining_of(
        &self,
        queue: &ServedQueue,
        work: &OperationSpec,
        kept: QueueRequest,
    ) -> Result<QueueRequest, QueueError> {
        let Some(message) = &work.message else { return Ok(kept) };
        let is_left = match self.errored_version(queue, message).await {
            Ok(version) => version == kept.through,
            Err(QueueError::Refused(Refusal::NotFound | Refusal::WrongState(_))) => false,
            Err(error) => return Err(error),
        };
        Ok(if is_left { kept } else { QueueRequest { through: Vec::new(), ..kept } })
    }

    /// The sequence of the newest message of each shard.
    pub(super) async fn sequences(&self, queue: &Arc<ServedQueue>) -> Result<Vec<u64>, QueueError> {
        let mut sequences = Vec::new();
        for number in 0..queue.shards() {
            let read = self.context.stores.reader.totals(queue.shard(number).id).await;
            sequences.push(read.map_err(|error| self.context.translate_store_error(queue, error))?.sequence);
        }
        Ok(sequences)
    }
}

/// How long a token is kept after its operation. The token of a single message is kept for the minimum time: there
/// may be many, and the message's version prevents a second run as well.
fn token_lifetime(queue: &ServedQueue, work: &OperationSpec) -> Duration {
    if work.message.is_some() { OPERATION_KEPT } else { longest(queue) }
}

fn longest(queue: &ServedQueue) -> Duration {
    queue.record.load().spec.settings.dedupe_window.max(OPERATION_KEPT)
}

/// The token of a request of this caller. The same token of another principal is another request. Callers without a key
/// have theirs in common, because a repeat may come from another address.
pub(super) fn own_token(token: &str, caller: &CallerId) -> String {
    match caller.principal() {
        Some(name) => format!("{token}.{:016x}", xxh3_64(name.as_str().as_bytes())),
        None => token.to_owned(),
    }
}
