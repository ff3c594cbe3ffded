//! Dequeues without a session, on a store whose answers can be lost: the server repeats them until it knows the
//! outcome.
//!
//! Such a dequeue runs in a session of the server, which only replays: its leases keep their own durations. Dequeues
//! that are sent together share sessions, as many calls in each as a shard remembers. A repeat raises the attempt, so a
//! late first attempt is refused instead of leasing messages for no caller. A store that loses no answers never comes
//! here.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::queues::state::context::QueueContext;
use crate::queues::state::replay_sessions::ReplayCall;
use crate::queues::state::served_queue::ServedQueue;
use crate::queues::state::shard_calls::CommandResult;
use tallystone_domain::limits::{LOST_ANSWER_PAUSE_MAX, LOST_ANSWER_REPEATS_MAX, SESSION_CALLS_KEPT};
use tallystone_domain::queue::messages::message::SessionId;
use tallystone_domain::queue::session_records::SessionCall;
use tallystone_domain::queue::{Command, command};
use tallystone_ports::{EffectOutcome, ShardCommand, StoreErrorKind};

/// The pause before the second repeat of a call whose answer was lost. It doubles with each repeat.
pub const LOST_ANSWER_PAUSE_MIN: Duration = Duration::from_millis(20);

/// A dequeue in flight that can be repeated.
pub(in crate::queues) struct RepeatableDequeue {
    /// Its index among the commands of its store call, or of its caller.
    pub place: usize,
    call: ReplayCall,
    asked: command::Dequeue,
}

/// A caller whose dequeues have lost answers.
pub(in crate::queues) struct UnansweredCaller {
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
    /// Puts dequeues without a session into sessions of this server. Returns those that can be repeated; none on a
    /// store that loses no answers.
    pub(in crate::queues) fn make_repeatable(
        &self,
        queue: &ServedQueue,
        shard: u32,
        commands: &mut [ShardCommand],
    ) -> Vec<RepeatableDequeue> {
        if !self.answers_may_be_lost {
            return Vec::new();
        }
        let sessions = &queue.shard(shard).replay_sessions;
        let has_none =
            |sent: &ShardCommand| matches!(&sent.command, Command::Dequeue(asked) if asked.session.is_none());
        let places: Vec<usize> = (0..commands.len()).filter(|&place| has_none(&commands[place])).collect();
        let mut repeatable = Vec::with_capacity(places.len());
        for places in places.chunks(SESSION_CALLS_KEPT) {
            // Without a session left dequeues are sent as they are. A lost answer then costs an attempt.
            let Some(calls) = sessions.take(places.len()) else { break };
            for (&place, call) in places.iter().zip(calls) {
                let Command::Dequeue(asked) = &mut commands[place].command else { continue };
                let (id, sequence) = (SessionId::of_server(self.replay_random, call.session), call.sequence);
                asked.session = Some(SessionCall { id, lease: None, sequence, attempt: 1, received_up_to: None });
                repeatable.push(RepeatableDequeue { place, call, asked: asked.clone() });
            }
        }
        repeatable
    }

    /// Returns the dequeues whose answers were lost, and gives back the calls of the others.
    pub(in crate::queues) fn unanswered(
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
        known.into_iter().for_each(|dequeue| queue.shard(shard).replay_sessions.give_back(dequeue.call));
        lost
    }

    /// Repeats the lost dequeues of a caller, and answers it.
    pub(in crate::queues) async fn answer_late(
        self: Arc<Self>,
        queue: Arc<ServedQueue>,
        shard: u32,
        mut late: UnansweredCaller,
    ) {
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
        let RepeatableDequeue { call, mut asked, .. } = lost;
        let mut pause = Duration::ZERO;
        for _ in 0..LOST_ANSWER_REPEATS_MAX {
            tokio::select! {
                () = self.sleep(pause) => {}
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
                live.replay_sessions.give_back(call);
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
