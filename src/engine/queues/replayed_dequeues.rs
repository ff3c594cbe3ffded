//! Dequeues without a session, on a store whose answers can be lost: the server repeats them until it knows the outcome.
//!
//! Such a dequeue runs in a session of the server, which only replays: its leases keep their own durations. Each dequeue in
//! flight has a session of its own in its shard, because a shard remembers few calls of a session. A repeat raises the
//! attempt, so a late first attempt is refused instead of leasing messages for nobody. A store that loses no answers never
//! comes here.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::domain::limits::{LOST_ANSWER_PAUSE_MAX, LOST_ANSWER_REPEATS_MAX};
use crate::domain::queue::messages::message::SessionId;
use crate::domain::queue::session_records::SessionCall;
use crate::domain::queue::{Command, command};
use crate::engine::queues::registry::QueueContext;
use crate::engine::queues::replay_sessions::ReplaySession;
use crate::engine::queues::served_queue::ServedQueue;
use crate::engine::queues::shard_calls::CommandResult;
use crate::ports::{EffectOutcome, ShardCommand, StoreErrorKind};

/// The pause before the second repeat of a call whose answer was lost. It doubles with each repeat.
pub const LOST_ANSWER_PAUSE_MIN: Duration = Duration::from_millis(20);

/// A dequeue in flight that can be repeated.
pub(super) struct RepeatableDequeue {
    /// Its index among the commands of its store call, or of its caller.
    pub place: usize,
    session: ReplaySession,
    asked: command::Dequeue,
}

/// A caller whose dequeues have lost answers.
pub(super) struct UnansweredCaller {
    pub answers: Vec<CommandResult>,
    /// The lost ones.
    pub lost: Vec<RepeatableDequeue>,
    /// Whether unread leases are released.
    pub releases: bool,
    pub caller: oneshot::Sender<Vec<CommandResult>>,
}

impl RepeatableDequeue {
    /// The same among the commands of its caller, which begin at an index of the store call.
    pub fn of_caller(self, begin: usize) -> Self {
        Self { place: self.place - begin, ..self }
    }
}

impl QueueContext {
    /// Puts dequeues without a session into sessions of this server. Returns those that can be repeated; none on a store that
    /// loses no answers.
    pub(super) fn make_repeatable(
        &self,
        queue: &ServedQueue,
        shard: u32,
        commands: &mut [ShardCommand],
    ) -> Vec<RepeatableDequeue> {
        if !self.answers_may_be_lost {
            return Vec::new();
        }
        let mut repeatable = Vec::new();
        for (place, sent) in commands.iter_mut().enumerate() {
            let Command::Dequeue(asked) = &mut sent.command else { continue };
            if asked.session.is_some() {
                continue;
            }
            // Without a session left the dequeue is sent as it is. A lost answer then costs an attempt.
            let Some(session) = queue.shard(shard).replay_sessions.take() else { continue };
            let id = SessionId::of_server(self.replay_random, session.number);
            let sequence = session.sequence;
            asked.session = Some(SessionCall { id, lease: None, sequence, attempt: 1, received_up_to: None });
            repeatable.push(RepeatableDequeue { place, session, asked: asked.clone() });
        }
        repeatable
    }

    /// Returns the dequeues whose answers were lost. The sessions of the others are free again.
    pub(super) fn unanswered(
        &self,
        queue: &ServedQueue,
        shard: u32,
        sent: Vec<RepeatableDequeue>,
        answers: &[CommandResult],
    ) -> Vec<RepeatableDequeue> {
        let is_lost = |dequeue: &RepeatableDequeue| match answers.get(dequeue.place) {
            Some(Ok(_)) => false,
            Some(Err(error)) => error.outcome == EffectOutcome::Unknown,
            None => true,
        };
        let (lost, known) = sent.into_iter().partition::<Vec<_>, _>(is_lost);
        known.into_iter().for_each(|dequeue| queue.shard(shard).replay_sessions.give_back(dequeue.session));
        lost
    }

    /// Repeats the lost dequeues of a caller, and answers it.
    pub(super) async fn answer_late(self: Arc<Self>, queue: Arc<ServedQueue>, shard: u32, mut late: UnansweredCaller) {
        for dequeue in std::mem::take(&mut late.lost) {
            let place = dequeue.place;
            let known = self.repeat(&queue, shard, dequeue).await;
            if let Some((answer, known)) = late.answers.get_mut(place).zip(known) {
                *answer = known;
            }
        }
        self.answer(&queue, late.caller, late.answers, late.releases);
    }

    /// Repeats a dequeue until its outcome is known; none if that takes too long.
    async fn repeat(
        self: &Arc<Self>,
        queue: &Arc<ServedQueue>,
        shard: u32,
        lost: RepeatableDequeue,
    ) -> Option<CommandResult> {
        let live = queue.shard(shard);
        let RepeatableDequeue { session, mut asked, .. } = lost;
        let mut pause = Duration::ZERO;
        for _ in 0..LOST_ANSWER_REPEATS_MAX {
            tokio::select! {
                () = self.engine.clock.sleep(pause) => {}
                () = self.drain.cancelled() => {}
            }
            pause = (pause * 2).clamp(LOST_ANSWER_PAUSE_MIN, LOST_ANSWER_PAUSE_MAX);
            asked.session = asked.session.map(|call| SessionCall { attempt: call.attempt + 1, ..call });
            let repeat = ShardCommand::of(Command::Dequeue(asked.clone()));
            let answer = self.stores.shards.apply(live.id, vec![repeat]).await.pop();
            self.record_answers(queue, shard, answer.iter().flatten());
            let is_known = match &answer {
                Some(Ok(_)) => true,
                // The queue is gone, and the leases with it.
                Some(Err(error)) => error.kind == StoreErrorKind::Conflict,
                None => false,
            };
            if is_known {
                live.replay_sessions.give_back(session);
                return answer;
            }
            if self.drain.is_cancelled() {
                break;
            }
        }
        tracing::warn!(
            queue = %live.id.queue, shard,
            "a dequeue stays unanswered by the store; messages that it may have leased return when their leases are over"
        );
        None
    }
}
