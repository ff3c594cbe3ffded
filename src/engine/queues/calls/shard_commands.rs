//! Commands to shards, through the calls of each shard.
//!
//! The store calls run in tasks of the driver, so they continue if a caller goes away. Leases without a reader are
//! released, except those of a session, which may ask for them again.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::queues::calls::replayed_dequeues::UnansweredCaller;
use crate::queues::error::QueueError;
use crate::queues::state::context::QueueContext;
use crate::queues::state::served_queue::ServedQueue;
use crate::queues::state::shard_calls::{CommandResult, PendingCall, flow_of};
use tallystone_coalesce::FlowKey;
use tallystone_domain::limits::SHARD_COMMANDS_MAX;
use tallystone_domain::queue::command::FailureReport;
use tallystone_domain::queue::messages::message::LeaseToken;
use tallystone_domain::queue::messages::settlement::SettleAction;
use tallystone_domain::queue::{Command, Reply};
use tallystone_ports::{ShardAnswer, ShardCommand, StoreError, StoreErrorKind};

impl QueueContext {
    /// Applies a command to a shard.
    pub async fn call(
        self: &Arc<Self>,
        queue: &Arc<ServedQueue>,
        shard: u32,
        command: ShardCommand,
    ) -> Result<ShardAnswer, QueueError> {
        let receiver = self.submit(queue, shard, vec![command])?;
        let answer = receiver.await.ok().and_then(|mut answers| answers.pop());
        answer
            .unwrap_or_else(|| Err(self.interrupted_error()))
            .map_err(|error| self.translate_store_error(queue, error))
    }

    /// Applies commands of one kind, each to its shard. Each result is at the index of its command; a command that was
    /// refused before keeps its error. The commands of a shard keep their order and share a call.
    pub async fn call_each(
        self: &Arc<Self>,
        queue: &Arc<ServedQueue>,
        commands: Vec<Result<(u32, ShardCommand), QueueError>>,
    ) -> Vec<Result<ShardAnswer, QueueError>> {
        let mut answers: Vec<Option<Result<ShardAnswer, QueueError>>> = Vec::with_capacity(commands.len());
        let mut by_shard: BTreeMap<u32, Vec<(usize, ShardCommand)>> = BTreeMap::new();
        for (place, command) in commands.into_iter().enumerate() {
            answers.push(match command {
                Ok((shard, command)) => {
                    by_shard.entry(shard).or_default().push((place, command));
                    None
                }
                Err(refused) => Some(Err(refused)),
            });
        }
        let mut started = Vec::new();
        for (shard, of_shard) in by_shard {
            let mut of_shard = of_shard.into_iter().peekable();
            while of_shard.peek().is_some() {
                let (places, part): (Vec<usize>, Vec<_>) = of_shard.by_ref().take(SHARD_COMMANDS_MAX).unzip();
                started.push((places, self.submit(queue, shard, part)));
            }
        }
        for (places, receiver) in started {
            let Ok(receiver) = receiver else {
                // Too many calls wait.
                places.into_iter().for_each(|place| answers[place] = Some(Err(QueueError::RetryLater)));
                continue;
            };
            for (place, answer) in places.into_iter().zip(receiver.await.unwrap_or_default()) {
                answers[place] = Some(answer.map_err(|error| self.translate_store_error(queue, error)));
            }
        }
        let cut_off = || Err(self.translate_store_error(queue, self.interrupted_error()));
        answers.into_iter().map(|answer| answer.unwrap_or_else(cut_off)).collect()
    }

    /// Applies commands to a shard, without waiting for them.
    pub fn submit(
        self: &Arc<Self>,
        queue: &Arc<ServedQueue>,
        shard: u32,
        commands: Vec<ShardCommand>,
    ) -> Result<oneshot::Receiver<Vec<CommandResult>>, QueueError> {
        let (receiver, starts) = queue.shard(shard).calls.push(commands)?;
        if starts {
            let (shared, queue) = (Arc::clone(self), Arc::clone(queue));
            self.start_once(async move { shared.run(&queue, shard).await });
        }
        Ok(receiver)
    }

    /// Sends the waiting calls of the shard to the store until none is left. A panic ends only one store call: its
    /// callers get an unknown outcome, and the next call is sent.
    async fn run(self: &Arc<Self>, queue: &Arc<ServedQueue>, shard: u32) {
        let live = queue.shard(shard);
        let panicked = || {
            self.stats().queue_panics.increment();
            tracing::error!(queue = %live.id.queue, shard, "a store call of a queue panicked; the next call is \
                sent");
        };
        let send = |calls: Vec<PendingCall>| FlowKey::scope(flow_of(&calls), self.send(queue, shard, calls));
        live.calls.0.run(None, send, panicked).await;
    }

    /// Makes one store call and answers its callers. Callers without an answer get an interruption.
    async fn send(self: &Arc<Self>, queue: &Arc<ServedQueue>, shard: u32, calls: Vec<PendingCall>) {
        let live = queue.shard(shard);
        let mut commands: Vec<ShardCommand> = Vec::new();
        let take = |call: PendingCall| {
            let count = call.commands.len();
            commands.extend(call.commands);
            (count, call.releases, call.answer)
        };
        let callers: Vec<_> = calls.into_iter().map(take).collect();
        self.stats().queue_store_calls.increment();
        self.stats().queue_commands.add(commands.len() as u64);
        let repeatable = self.make_repeatable(queue, shard, &mut commands);
        let answers = self.stores.shards.apply(live.id, commands).await;
        self.record_answers(queue, shard, answers.iter().flatten());
        let mut lost = self.unanswered(queue, shard, repeatable, &answers).into_iter().peekable();
        let (mut answers, mut start) = (answers.into_iter(), 0);
        for (count, releases, caller) in callers {
            let own: Vec<CommandResult> = answers.by_ref().take(count).collect();
            let mut lost_here = Vec::new();
            while let Some(dequeue) = lost.next_if(|dequeue| dequeue.place < start + count) {
                lost_here.push(dequeue.of_caller(start));
            }
            start += count;
            if lost_here.is_empty() {
                self.answer(queue, caller, own, releases);
            } else {
                let late = UnansweredCaller { answers: own, lost: lost_here, releases, caller };
                self.start_once(Arc::clone(self).answer_late(Arc::clone(queue), shard, late));
            }
        }
    }

    /// Answers a caller. Leases without a reader are released, if they are to be.
    pub(in crate::queues) fn answer(
        self: &Arc<Self>,
        queue: &Arc<ServedQueue>,
        caller: oneshot::Sender<Vec<CommandResult>>,
        answers: Vec<CommandResult>,
        releases: bool,
    ) {
        if let Err(unread) = caller.send(answers)
            && releases
        {
            self.release(queue, unread.iter().flatten());
        }
    }

    /// The result of a command whose call was interrupted by the end of the server or by a panic: it may have been
    /// applied.
    fn interrupted_error(&self) -> StoreError {
        let is_over = self.drain.is_cancelled();
        let kind = if is_over { StoreErrorKind::Closed } else { StoreErrorKind::Unavailable };
        StoreError::unknown(kind, "apply to queue")
    }

    /// Releases the leases of results without a reader.
    fn release<'a>(self: &Arc<Self>, queue: &Arc<ServedQueue>, unread: impl Iterator<Item = &'a ShardAnswer>) {
        for answer in unread {
            if let Ok(Reply::Leases { leases, .. }) = &answer.reply {
                self.release_all(queue, leases.iter().map(|lease| lease.token));
            }
        }
    }

    /// Releases leases without waiting. A lease that cannot be released expires.
    pub fn release_all(self: &Arc<Self>, queue: &Arc<ServedQueue>, tokens: impl Iterator<Item = LeaseToken>) {
        for token in tokens {
            let release = Command::Settle { token, verb: SettleAction::Release, failure: FailureReport::default() };
            // If too many calls wait, the lease expires a little later.
            let _ = self.submit(queue, token.key.shard, vec![ShardCommand::of(release)]);
        }
    }
}
