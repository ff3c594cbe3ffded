//! The way to a shard: calls that come while others are out are put together into one call of the store.
//!
//! At most `SHARD_CALLS_OUT_MAX` store calls of a shard are out at once; whoever comes while they are waits and travels
//! with the next, settlements and heartbeats first, because work that is done should not be done again. The store calls
//! run in tasks of the driver, so a caller that goes away changes nothing: leases that nobody takes any more are released,
//! but for those of a session, which may ask for them again.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::domain::limits::{SHARD_CALLS_OUT_MAX, SHARD_CALLS_WAITING_MAX, SHARD_COMMANDS_MAX};
use crate::domain::queue::command::{Failure, Verb};
use crate::domain::queue::{Command, Reply};
use crate::engine::queues::core::Shared;
use crate::engine::queues::error::QueueError;
use crate::engine::queues::live::LiveQueue;
use crate::ports::{ShardAnswer, ShardCommand, StoreError, StoreErrorKind};

/// The calls of one shard.
#[derive(Default)]
pub struct Calls {
    state: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    settlements: VecDeque<Call>,
    others: VecDeque<Call>,
    out: usize,
}

type Answered = Result<ShardAnswer, StoreError>;

struct Call {
    command: ShardCommand,
    /// Whether what nobody reads is given back: a session may ask for it again.
    releases: bool,
    answer: oneshot::Sender<Answered>,
}

impl Waiting {
    fn len(&self) -> usize {
        self.settlements.len() + self.others.len()
    }

    fn take(&mut self) -> Vec<Call> {
        let mut taken: Vec<Call> = Vec::with_capacity(self.len().min(SHARD_COMMANDS_MAX));
        for queue in [&mut self.settlements, &mut self.others] {
            let room = SHARD_COMMANDS_MAX - taken.len();
            taken.extend(queue.drain(..queue.len().min(room)));
        }
        taken
    }
}

impl Calls {
    /// Takes a call in; says whether a new store call has to be started for it.
    fn push(&self, command: ShardCommand) -> Result<(oneshot::Receiver<Answered>, bool), QueueError> {
        let (answer, receiver) = oneshot::channel();
        let mut waiting = self.state.lock();
        if waiting.len() >= SHARD_CALLS_WAITING_MAX {
            return Err(QueueError::RetryLater);
        }
        let holds_on = matches!(
            command.command,
            Command::Settle { .. } | Command::Extend { .. } | Command::Heartbeat { .. } | Command::EndSession { .. }
        );
        let releases = match &command.command {
            Command::Dequeue(asked) => asked.session.is_none(),
            _ => false, // no other command gives leases that were not given before
        };
        let call = Call { command, releases, answer };
        if holds_on {
            waiting.settlements.push_back(call);
        } else {
            waiting.others.push_back(call);
        }
        let starts = waiting.out < SHARD_CALLS_OUT_MAX;
        waiting.out += usize::from(starts);
        Ok((receiver, starts))
    }

    /// The next calls; with none the runner is done.
    fn next(&self) -> Option<Vec<Call>> {
        let mut waiting = self.state.lock();
        let taken = waiting.take();
        if taken.is_empty() {
            waiting.out -= 1;
            return None;
        }
        Some(taken)
    }
}

impl Shared {
    /// Applies a command to a shard.
    pub async fn call(
        self: &Arc<Self>,
        queue: &Arc<LiveQueue>,
        shard: u32,
        command: ShardCommand,
    ) -> Result<ShardAnswer, QueueError> {
        let receiver = self.start(queue, shard, command)?;
        let gone = || StoreError::unknown(StoreErrorKind::Closed, "apply to queue");
        let answer = receiver.await.unwrap_or_else(|_stopped| Err(gone()));
        answer.map_err(|error| self.not_found_if_gone(queue, error))
    }

    /// Applies a command to a shard, without waiting for it.
    pub fn start(
        self: &Arc<Self>,
        queue: &Arc<LiveQueue>,
        shard: u32,
        command: ShardCommand,
    ) -> Result<oneshot::Receiver<Answered>, QueueError> {
        let (receiver, starts) = queue.shard(shard).calls.push(command)?;
        if starts {
            let (shared, queue) = (Arc::clone(self), Arc::clone(queue));
            self.driver.start_once(async move { shared.run(&queue, shard).await });
        }
        Ok(receiver)
    }

    /// Sends what waits for the shard to the store until nothing waits any more.
    async fn run(self: &Arc<Self>, queue: &Arc<LiveQueue>, shard: u32) {
        let live = queue.shard(shard);
        while let Some(calls) = live.calls.next() {
            let (commands, callers): (Vec<_>, Vec<_>) =
                calls.into_iter().map(|call| (call.command, (call.answer, call.releases))).unzip();
            self.stats.queue_store_calls.one();
            self.stats.queue_commands.add(commands.len() as u64);
            let answers = self.stores.shards.apply(live.id, commands).await;
            for (answer, (caller, releases)) in answers.into_iter().zip(callers) {
                if let Ok(answer) = &answer {
                    self.saw(queue, shard, answer);
                }
                if let Err(Ok(unread)) = caller.send(answer)
                    && releases
                {
                    self.release(queue, &unread);
                }
            }
        }
    }

    /// Gives back the leases of an answer that nobody reads any more.
    fn release(self: &Arc<Self>, queue: &Arc<LiveQueue>, unread: &ShardAnswer) {
        if let Ok(Reply::Leases { leases, .. }) = &unread.reply {
            self.release_all(queue, leases.iter().map(|lease| lease.token));
        }
    }

    /// Releases leases without waiting; what cannot be released ends by itself.
    pub fn release_all(
        self: &Arc<Self>,
        queue: &Arc<LiveQueue>,
        tokens: impl Iterator<Item = crate::domain::queue::message::LeaseToken>,
    ) {
        for token in tokens {
            let release = Command::Settle { token, verb: Verb::Release, failure: Failure::default() };
            // With too many calls waiting the lease ends by itself, a little later.
            let _ = self.start(queue, token.key.shard, ShardCommand::of(release));
        }
    }
}
