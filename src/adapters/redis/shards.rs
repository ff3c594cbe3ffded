//! `ShardStore`: commands of shards, creation and removal.

use std::sync::Arc;

use async_trait::async_trait;

use super::functions::RedisQueues;
use super::limits::{REDIS_FUNCTION_ITEMS_MAX, REDIS_HEARTBEAT_LEASES_MAX, REDIS_READY_AGE_PRECISION};
use super::packed::PackedBytes;
use super::registry::{QueuePresence, RegisteredQueue};
use super::removal::DROP;
use super::replies::{AnswerForm, CommandAnswer, ReadStatus, ReplyParts};
use super::requests::{self, BulkFunctionKind, DELETE, DROP_SHAPES, FunctionRequest};
use super::runs::{RunStage, Stepped, request_of, runs_of, stages_of};
use super::shard_settings::{PackedSettings, VersionedSettings, change_request};
use super::wire::WireReply;
use tallystone_adapters::codec::CorruptValue;
use tallystone_domain::queue::command::{BulkRequest, Completeness};
use tallystone_domain::queue::messages::message::MessageKey;
use tallystone_domain::queue::name::{QueueId, ShardId};
use tallystone_domain::queue::shard::FilterScan;
use tallystone_domain::queue::{Command, Durability, InvalidCommandPart, Reply, ShardSettings};
use tallystone_ports::{
    CreatedQueue, FinishedBodies, IdScope, QueueListener, QueueTime, ShardAnswer, ShardCapabilities, ShardCommand,
    ShardStore, StoreError, StoreErrorKind,
};

const APPLY: &str = "apply to queue";
const CREATE: &str = "create queue";

/// A reply that nobody can read: the step was done.
fn unreadable(fault: CorruptValue) -> StoreError {
    StoreError::unknown(StoreErrorKind::Corrupt, APPLY).with_source(fault)
}

#[async_trait]
impl ShardStore for RedisQueues {
    fn durability(&self) -> Option<Durability> {
        self.durability_now()
    }

    fn capabilities(&self) -> ShardCapabilities {
        ShardCapabilities {
            answers_may_be_lost: true,
            ids: IdScope::Shard,
            finished_bodies: FinishedBodies::WithoutPayload,
            ready_age_precision: REDIS_READY_AGE_PRECISION,
            heartbeat_leases: REDIS_HEARTBEAT_LEASES_MAX,
            durability_may_fall: true,
        }
    }

    async fn create(&self, queue: QueueId, shards: u32, settings: ShardSettings) -> Result<(), StoreError> {
        let created = self.finish(|this| async move { this.create_now(queue, shards, settings).await }).await;
        created.unwrap_or_else(|| Err(StoreError::unknown(StoreErrorKind::Closed, CREATE)))
    }

    async fn drop_queue(&self, queue: QueueId) -> Result<(), StoreError> {
        let dropped = self.finish(|this| async move { this.drop_now(queue).await }).await;
        dropped.unwrap_or_else(|| Err(StoreError::unknown(StoreErrorKind::Closed, DROP)))
    }

    async fn queues(&self) -> Result<Vec<CreatedQueue>, StoreError> {
        self.greet().await?;
        let all = self.all_registered("list queues").await?.into_iter().filter(|(_, known)| known.is_present());
        Ok(all.map(|(id, known)| CreatedQueue { id, shards: known.shards, created: known.created }).collect())
    }

    async fn apply(&self, shard: ShardId, commands: Vec<ShardCommand>) -> Vec<Result<ShardAnswer, StoreError>> {
        let count = commands.len();
        let answers = self.finish(|this| async move { this.apply_now(shard, commands).await }).await;
        let closed = || Err(StoreError::unknown(StoreErrorKind::Closed, APPLY));
        answers.unwrap_or_else(|| (0..count).map(|_| closed()).collect())
    }

    fn listen(&self, listener: Arc<dyn QueueListener>) {
        self.listeners.lock().new.push(listener);
    }
}

impl RedisQueues {
    async fn create_now(&self, queue: QueueId, shards: u32, settings: ShardSettings) -> Result<(), StoreError> {
        let refuse = |why: &str| StoreError::not_applied(StoreErrorKind::Conflict, CREATE).with_source(why);
        match self.registered(queue, CREATE).await? {
            Some(known) if !known.is_present() => return Err(refuse("a queue of this number was dropped")),
            Some(_) => return Ok(()),
            None => {}
        }
        settings.settings.check().map_err(|_invalid| refuse("the settings are not valid"))?;
        let entry = RegisteredQueue { shards, created: self.clock().await?.now, presence: QueuePresence::Present };
        let PackedSettings { version, blocks, parts } = PackedSettings::of(&settings);
        for number in 0..shards {
            let first = PackedBytes::default().whole(number.into()).whole(self.epoch.get().into());
            let first = first.whole(version).byte(blocks);
            let arguments = [first.0].into_iter().chain(parts.iter().cloned()).collect();
            let made = self.call((ShardId { queue, number }, CREATE), "new", arguments).await;
            made.map_err(|stop| stop.into_error(CREATE))?;
        }
        self.register(queue, entry, CREATE).await?;
        for number in 0..shards {
            let shard = ShardId { queue, number };
            let (status, _) = self.header(shard, CREATE).await?;
            self.notify(shard, status.view);
        }
        Ok(())
    }

    async fn apply_now(&self, shard: ShardId, commands: Vec<ShardCommand>) -> Vec<Result<ShardAnswer, StoreError>> {
        let count = commands.len();
        if let Err(error) = self.greet().await {
            let error = || StoreError::not_applied(error.kind, APPLY);
            return (0..count).map(|_| Err(error())).collect();
        }
        let mut answers = Vec::with_capacity(count);
        for stage in stages_of(runs_of(commands)) {
            let mut of_stage = match stage {
                RunStage::Together(runs) if self.refuses_enqueues() => self.run_without_content(shard, runs).await,
                RunStage::Together(runs) => self.run_together(shard, &runs).await,
                RunStage::Alone(command) => vec![self.run_alone(shard, *command).await],
            };
            answers.append(&mut of_stage);
        }
        let newest = answers.iter().rev().find_map(|answer| answer.as_ref().ok().map(|answer| answer.view));
        if let Some(view) = newest {
            answers.iter_mut().flatten().for_each(|answer| answer.view = view);
            self.notify(shard, view);
        }
        let rows = answers.iter().flatten().flat_map(|answer| &answer.transitions).filter(|row| row.requests_cancel());
        let keys: Vec<MessageKey> = rows.map(|row| row.key).collect();
        self.notify_cancels(shard, &keys);
        answers
    }
}

/// The answer of a command, from what its function said.
fn answer_of(read: CommandAnswer, status: &ReadStatus, command: &Command) -> ShardAnswer {
    let walked = match command {
        Command::Dequeue(asked) if read.examined > 0 => {
            Some(FilterScan { keys: asked.filter.keys(), messages: read.examined })
        }
        _ => None, // no other command has a filter that it walks by
    };
    let CommandAnswer { reply, transitions, messages, examined: _ } = read;
    ShardAnswer { reply, messages, transitions, walked, at: status.at, view: status.view }
}

/// The answers of the commands of a run, from the reply of its function.
fn answers_of(
    shard: u32,
    commands: &[ShardCommand],
    reply: WireReply,
    forms: Vec<(AnswerForm, Option<InvalidCommandPart>)>,
) -> Result<Vec<ShardAnswer>, StoreError> {
    let (status, mut parts) = ReplyParts::of(reply, shard).map_err(unreadable)?;
    let read = forms.into_iter().zip(commands).map(|((form, invalid), sent)| {
        let read = parts.answer(form, invalid).map_err(unreadable)?;
        Ok(answer_of(read, &status, &sent.command))
    });
    read.collect()
}

/// The same failure for each command of a run. The first one has its cause.
fn fail_all(error: StoreError, count: usize) -> Vec<Result<ShardAnswer, StoreError>> {
    let others: Vec<_> = (1..count).map(|_| Err(error.alike())).collect();
    std::iter::once(Err(error)).chain(others).collect()
}

impl RedisQueues {
    /// Tells new listeners what is there, before anything later is answered.
    pub(super) async fn greet(&self) -> Result<(), StoreError> {
        if self.listeners.lock().new.is_empty() {
            return Ok(());
        }
        let new = std::mem::take(&mut self.listeners.lock().new);
        self.listeners.lock().known.extend(new.iter().cloned());
        let told = self.tell_what_is_there(&new).await;
        if told.is_err() {
            let mut listeners = self.listeners.lock();
            listeners.known.retain(|known| !new.iter().any(|one| Arc::ptr_eq(one, known)));
            listeners.new.extend(new); // the next call tells them
        }
        told
    }

    async fn tell_what_is_there(&self, new: &[Arc<dyn QueueListener>]) -> Result<(), StoreError> {
        for (queue, known) in self.all_registered(APPLY).await? {
            let shards = if known.is_present() { known.shards } else { 0 };
            for number in 0..shards {
                let shard = ShardId { queue, number };
                match self.header(shard, APPLY).await {
                    Ok((status, _)) => new.iter().for_each(|listener| listener.changed(shard, status.view)),
                    Err(error) if error.kind == StoreErrorKind::Conflict => {} // it is being dropped
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Does runs in their order, and refuses those that bring content: the memory that is left is for commands that
    /// take messages out.
    async fn run_without_content(
        &self,
        shard: ShardId,
        runs: Vec<(&'static str, Vec<ShardCommand>)>,
    ) -> Vec<Result<ShardAnswer, StoreError>> {
        let mut answers = Vec::new();
        for run in runs {
            if matches!(run.0, "enq" | "upd") {
                let full = StoreError::not_applied(StoreErrorKind::Full, APPLY);
                answers.extend(fail_all(full.with_source("Redis has used 95 % of its memory"), run.1.len()));
            } else {
                answers.append(&mut self.run_together(shard, &[run]).await);
            }
        }
        answers
    }

    /// Does runs in their order, each as one call, sent together.
    async fn run_together(
        &self,
        shard: ShardId,
        runs: &[(&'static str, Vec<ShardCommand>)],
    ) -> Vec<Result<ShardAnswer, StoreError>> {
        let make = |at: usize, known: &VersionedSettings| {
            let commands = &runs[at].1;
            let mut arguments = Vec::new();
            let mut forms = Vec::with_capacity(commands.len());
            for sent in commands {
                let (request, form) = request_of(shard.number, sent, &known.settings);
                arguments.extend(request.arguments);
                forms.push((form, request.invalid));
            }
            (arguments, forms)
        };
        let functions: Vec<&str> = runs.iter().map(|(function, _)| *function).collect();
        let done = self.call_all_current((shard, APPLY), &functions, make).await;
        let mut answers = Vec::new();
        for (called, (_, commands)) in done.into_iter().zip(runs) {
            match called.and_then(|(reply, forms)| answers_of(shard.number, commands, reply, forms)) {
                Ok(of_run) => answers.extend(of_run.into_iter().map(Ok)),
                Err(error) => answers.extend(fail_all(error, commands.len())),
            }
        }
        answers
    }

    async fn run_alone(&self, shard: ShardId, command: Command) -> Result<ShardAnswer, StoreError> {
        match command {
            Command::EndSession { session, ending, max } => {
                self.run_steps(shard, Stepped::EndSession(session, ending, max)).await
            }
            Command::RedriveAll(asked) => self.run_bulk(shard, BulkFunctionKind::Redrive, asked, "").await,
            Command::DiscardAll(asked) => self.run_bulk(shard, BulkFunctionKind::Discard, asked, "").await,
            Command::Purge(asked) => self.run_bulk(shard, BulkFunctionKind::Purge, asked, "").await,
            Command::CancelAll { bulk, reason } => self.run_bulk(shard, BulkFunctionKind::Cancel, bulk, &reason).await,
            Command::Sweep { max } => self.run_steps(shard, Stepped::Sweep(max)).await,
            Command::Configure(settings) => self.configure(shard, &settings).await,
            Command::Delete => {
                let make = |_: &VersionedSettings| requests::plain_config(DELETE);
                let answer = self.config(shard, make, AnswerForm::Deleted).await?;
                self.remove_messages(shard, APPLY).await?;
                Ok(answer)
            }
            Command::SetValueLimit { value, limit } => {
                let make = |known: &VersionedSettings| requests::value_limit(&value, limit, &known.settings);
                self.config(shard, make, AnswerForm::ValueLimitSet).await
            }
            Command::Enqueue(_)
            | Command::Dequeue(_)
            | Command::Settle { .. }
            | Command::Extend { .. }
            | Command::CancelMessage { .. }
            | Command::Recall(_)
            | Command::Heartbeat { .. }
            | Command::Update { .. }
            | Command::Redrive { .. }
            | Command::Discard { .. } => unreachable!("these commands are done together"),
        }
    }

    async fn configure(&self, shard: ShardId, new: &ShardSettings) -> Result<ShardAnswer, StoreError> {
        let invalid = new.settings.check().err();
        let PackedSettings { version, blocks, parts } = PackedSettings::of(new);
        let make = |known: &VersionedSettings| {
            let request = change_request(blocks, invalid.is_some(), [&known.settings, &new.settings]);
            let version = PackedBytes::default().whole(version).0;
            let arguments = [request, version].into_iter().chain(parts.iter().cloned()).collect();
            FunctionRequest { arguments, invalid }
        };
        let answer = self.config(shard, make, AnswerForm::Configured).await;
        self.forget_settings(shard);
        if answer.as_ref().is_ok_and(|answer| answer.reply.is_ok()) {
            self.drop_old_shapes(shard).await;
        }
        answer
    }

    /// Removes what shapes left that are not declared any more. If that fails, sweeps go on with it.
    async fn drop_old_shapes(&self, shard: ShardId) {
        let make = |_: &VersionedSettings| requests::plain_config(DROP_SHAPES);
        loop {
            match self.config(shard, make, AnswerForm::Touched).await.map(|answer| answer.reply) {
                Ok(Ok(Reply::Touched { completeness: Completeness::More, .. })) => {}
                Ok(_) | Err(_) => return,
            }
        }
    }

    async fn config(
        &self,
        shard: ShardId,
        make: impl Fn(&VersionedSettings) -> FunctionRequest + Send + Sync,
        form: AnswerForm,
    ) -> Result<ShardAnswer, StoreError> {
        let make = |known: &VersionedSettings| {
            let request = make(known);
            (request.arguments, request.invalid)
        };
        let (reply, invalid) = self.call_current((shard, APPLY), "cfg", make).await?;
        let (status, mut parts) = ReplyParts::of(reply, shard.number).map_err(unreadable)?;
        let CommandAnswer { reply, transitions, .. } = parts.answer(form, invalid).map_err(unreadable)?;
        Ok(ShardAnswer { reply, messages: Vec::new(), transitions, walked: None, at: status.at, view: status.view })
    }

    async fn run_bulk(
        &self,
        shard: ShardId,
        kind: BulkFunctionKind,
        asked: BulkRequest,
        reason: &str,
    ) -> Result<ShardAnswer, StoreError> {
        self.run_steps(shard, Stepped::Bulk(kind, asked, reason.into())).await
    }

    /// Does a command in steps, and answers as if it had been one.
    async fn run_steps(&self, shard: ShardId, stepped: Stepped) -> Result<ShardAnswer, StoreError> {
        let mut after = match &stepped {
            Stepped::Bulk(_, asked, _) => asked.after,
            Stepped::Sweep(_) | Stepped::EndSession(..) => 0,
        };
        let (mut left, mut count, mut transitions) = (stepped.max(), 0, Vec::new());
        loop {
            let max = left.min(REDIS_FUNCTION_ITEMS_MAX);
            let make = |_: &VersionedSettings| {
                let request = stepped.step(after, max);
                (request.arguments, request.invalid)
            };
            let (reply, invalid) = self.call_current((shard, APPLY), stepped.function(), make).await?;
            let (status, mut parts) = ReplyParts::of(reply, shard.number).map_err(unreadable)?;
            let mut read = parts.answer(stepped.form(), invalid).map_err(unreadable)?;
            transitions.append(&mut read.transitions);
            let goes_on = match &mut read.reply {
                Ok(Reply::Walked { count: own, next }) => {
                    count += *own;
                    *own = count;
                    after = next.unwrap_or(after);
                    left -= max;
                    next.is_some()
                }
                Ok(Reply::Touched { count: own, completeness }) => {
                    let did = *own;
                    count += did;
                    *own = count;
                    left -= did.min(left);
                    did == max && *completeness == Completeness::More
                }
                Ok(_) | Err(_) => false,
            };
            if !goes_on || left == 0 {
                let (at, view) = (status.at, status.view);
                return Ok(ShardAnswer {
                    reply: read.reply,
                    messages: Vec::new(),
                    transitions,
                    walked: None,
                    at,
                    view,
                });
            }
        }
    }
}
