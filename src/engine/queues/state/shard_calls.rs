//! The calls of a shard: calls that arrive while others are in flight share the next call of the store.
//!
//! One store call of a shard is in flight, and a second one when commands pile up. Later calls wait and share the next
//! store call. Settlements and heartbeats go first, because finished work should not be repeated; enqueues go last,
//! because they only add to the backlog. Within a lane callers take turns. Every lane that is not empty gets at least
//! an eighth of each store call, so that no lane starves. A larger call waits until its lane has saved enough eighths.

use tokio::sync::oneshot;

use crate::queues::error::QueueError;
use tallystone_coalesce::{CallQueue, FairLanes, FlowKey, LargeItems, leaves_room};
use tallystone_domain::limits::{
    COMMIT_LANE_PART, SHARD_CALLS_OUT_MAX, SHARD_CALLS_WAITING_MAX, SHARD_COMMANDS_MAX, SHARD_COMMANDS_PILED,
};
use tallystone_domain::queue::{Command, Urgency};
use tallystone_ports::{ShardAnswer, ShardCommand, StoreError};

pub struct ShardCalls(pub(in crate::queues) CallQueue<PendingCalls>);

/// The waiting calls by urgency. Their cost is the number of their commands.
pub(in crate::queues) type PendingCalls = FairLanes<PendingCall, { Urgency::COUNT }>;

pub type CommandResult = Result<ShardAnswer, StoreError>;

/// Commands that arrive together and are answered together.
pub(in crate::queues) struct PendingCall {
    pub commands: Vec<ShardCommand>,
    /// On whose behalf they are.
    pub flow: Option<FlowKey>,
    /// Whether unread leases are released: not those of a session, which may ask for them again.
    pub releases: bool,
    pub answer: oneshot::Sender<Vec<CommandResult>>,
}

impl Default for ShardCalls {
    fn default() -> Self {
        Self(CallQueue::new(FairLanes::new(SHARD_COMMANDS_MAX, COMMIT_LANE_PART, LargeItems::Wait)))
    }
}

impl ShardCalls {
    /// Adds a call. Returns whether a new store call has to be started for it.
    pub(in crate::queues) fn push(
        &self,
        commands: Vec<ShardCommand>,
    ) -> Result<(oneshot::Receiver<Vec<CommandResult>>, bool), QueueError> {
        let (answer, receiver) = oneshot::channel();
        debug_assert!(commands.len() <= SHARD_COMMANDS_MAX, "it fits in one store call");
        let urgency = commands.iter().map(|sent| sent.command.urgency()).min().unwrap_or(Urgency::Bulk);
        let mut waiting = self.0.lock();
        let (lane, cost, flow) = (urgency as usize, commands.len(), FlowKey::current());
        // Each class has a bound of its own, so that waiting enqueues refuse no settlement.
        let held = waiting.cost_of(lane);
        if held >= SHARD_CALLS_WAITING_MAX {
            return Err(QueueError::RetryLater);
        }
        // And one caller that floods leaves room for the others.
        let own = flow.map_or(0, |flow| waiting.cost_of_flow(lane, flow));
        if !leaves_room(own, cost, held, SHARD_CALLS_WAITING_MAX) {
            return Err(QueueError::RetryLater);
        }
        let releases = commands.iter().any(|sent| match &sent.command {
            Command::Dequeue(asked) => asked.session.is_none(),
            _ => false, // no other command gives leases that were not given before
        });
        waiting.push(lane, flow, PendingCall { commands, flow, releases, answer }, cost);
        // While few calls wait, fewer and larger store calls save more than an earlier one would gain.
        let is_piled = waiting.cost() >= SHARD_COMMANDS_PILED && waiting.in_flight() < SHARD_CALLS_OUT_MAX;
        let starts = waiting.in_flight() == 0 || is_piled;
        if starts {
            waiting.reserve();
        }
        Ok((receiver, starts))
    }
}

/// The flow for which a store call counts: of those that have commands in it, the one with most. So no caller pays for
/// the flood of another that travels along. O(calls) for each that has some.
pub(in crate::queues) fn flow_of(calls: &[PendingCall]) -> Option<FlowKey> {
    let mut shares: Vec<(Option<FlowKey>, usize)> = Vec::new();
    for call in calls {
        match shares.iter_mut().find(|(flow, _)| *flow == call.flow) {
            Some((_, commands)) => *commands += call.commands.len(),
            None => shares.push((call.flow, call.commands.len())),
        }
    }
    shares.into_iter().max_by_key(|(_, commands)| *commands).and_then(|(flow, _)| flow)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallystone_domain::queue::command::{Dequeue, FailureReport, NewMessage};
    use tallystone_domain::queue::messages::message::{Fence, LeaseToken, MessageKey, Metadata};
    use tallystone_domain::queue::messages::message_id::MessageId;
    use tallystone_domain::queue::messages::settlement::SettleAction;

    fn sweeps(count: usize) -> Vec<ShardCommand> {
        (0..count).map(|_| ShardCommand::of(Command::Sweep { max: 1 })).collect()
    }

    fn settlement() -> Vec<ShardCommand> {
        let key = MessageKey { shard: 0, epoch: 1, sequence: 1 };
        let token = LeaseToken { key, fence: Fence { epoch: 1, serial: 1 } };
        vec![ShardCommand::of(Command::Settle {
            token,
            verb: SettleAction::Complete,
            failure: FailureReport::default(),
        })]
    }

    /// Whether a call starts a store call of its own.
    fn starts(calls: &ShardCalls, commands: Vec<ShardCommand>) -> bool {
        calls.push(commands).expect("there is room").1
    }

    /// The numbers of commands of the next calls.
    fn next(calls: &ShardCalls) -> Vec<usize> {
        calls.0.next().into_iter().flatten().map(|call| call.commands.len()).collect()
    }

    #[test]
    fn a_second_store_call_goes_out_only_when_commands_pile_up() {
        let calls = ShardCalls::default();
        assert!(starts(&calls, sweeps(1)));
        assert_eq!(next(&calls), [1]);
        assert!(!starts(&calls, sweeps(SHARD_COMMANDS_PILED - 1)), "it travels with the next");
        assert!(starts(&calls, sweeps(1)));
        assert!(!starts(&calls, sweeps(SHARD_COMMANDS_MAX)), "two are the most");
        assert_eq!(next(&calls), [SHARD_COMMANDS_PILED - 1, 1]);
        assert_eq!(next(&calls), [SHARD_COMMANDS_MAX]);
        assert_eq!((next(&calls), next(&calls)), (vec![], vec![]), "both are done");
        assert!(starts(&calls, sweeps(1)), "so the next call starts one");
    }

    #[test]
    fn calls_travel_whole_and_settlements_first() {
        let calls = ShardCalls::default();
        for count in [SHARD_COMMANDS_MAX - 1, 2, 1] {
            starts(&calls, sweeps(count));
        }
        starts(&calls, settlement());
        assert_eq!(
            next(&calls),
            [1, SHARD_COMMANDS_MAX - 1],
            "what does not fit whole waits, and nothing overtakes it"
        );
        assert_eq!(next(&calls), [2, 1]);
    }

    fn enqueue() -> Command {
        Command::Enqueue(Box::new(NewMessage {
            id: MessageId::new("m").expect("a valid id"),
            token_time: None,
            routing: None,
            metadata: Metadata::default(),
            payload_bytes: 0,
            fingerprint: 1,
            priority: None,
            class: None,
            invisibility: None,
            visible_at: None,
            lease_duration: None,
            max_attempts: None,
            ttl: None,
        }))
    }

    fn dequeue() -> Command {
        Command::Dequeue(Dequeue { max: 1, ..Dequeue::default() })
    }

    fn of_kind(command: &Command, count: usize) -> Vec<ShardCommand> {
        (0..count).map(|_| ShardCommand::of(command.clone())).collect()
    }

    #[test]
    fn a_dequeue_behind_many_enqueues_goes_with_the_next_store_call_and_first() {
        let calls = ShardCalls::default();
        for _ in 0..SHARD_COMMANDS_MAX * 2 {
            starts(&calls, of_kind(&enqueue(), 1));
        }
        assert_eq!(next(&calls).len(), SHARD_COMMANDS_MAX);
        starts(&calls, of_kind(&dequeue(), 2));
        starts(&calls, settlement());
        let taken = next(&calls);
        assert_eq!((&taken[..3], taken.len()), (&[1, 2, 1][..], SHARD_COMMANDS_MAX - 1), "it is full");
        assert_eq!(next(&calls), [1, 1, 1]);
    }

    #[test]
    fn no_lane_starves_and_large_calls_get_their_turn() {
        let calls = ShardCalls::default();
        let refill = || {
            while calls.0.lock().cost_of(Urgency::Settlement as usize) < SHARD_COMMANDS_MAX {
                starts(&calls, settlement());
            }
        };
        for _ in 0..SHARD_COMMANDS_MAX {
            starts(&calls, of_kind(&dequeue(), 1));
            starts(&calls, of_kind(&enqueue(), 1));
        }
        refill();
        next(&calls);
        let left = || [0, 1, 2].map(|lane| calls.0.lock().cost_of(lane));
        let share = SHARD_COMMANDS_MAX / COMMIT_LANE_PART;
        let rest = SHARD_COMMANDS_MAX - share;
        assert_eq!(left(), [2 * share, rest, rest], "each has its share");
        while left()[2] > 0 {
            refill();
            next(&calls);
        }
        starts(&calls, of_kind(&enqueue(), SHARD_COMMANDS_MAX));
        let mut rounds = 0;
        while left()[2] > 0 {
            refill();
            assert!(next(&calls).iter().sum::<usize>() <= SHARD_COMMANDS_MAX);
            rounds += 1;
        }
        assert_eq!(rounds, COMMIT_LANE_PART, "as many store calls as its shares are");
    }

    #[test]
    fn one_caller_with_many_enqueues_lets_another_go_second_and_pays_for_the_store_call() {
        let calls = ShardCalls::default();
        FlowKey::sync_scope(Some(FlowKey(1)), || {
            for _ in 0..SHARD_COMMANDS_MAX * 2 {
                starts(&calls, of_kind(&enqueue(), 1));
            }
        });
        FlowKey::sync_scope(Some(FlowKey(2)), || starts(&calls, of_kind(&enqueue(), 2)));
        let taken: Vec<PendingCall> = calls.0.next().expect("calls wait");
        assert_eq!(taken[..3].iter().map(|call| call.commands.len()).collect::<Vec<_>>(), [1, 2, 1]);
        assert_eq!((flow_of(&taken), flow_of(&taken[1..2]), flow_of(&[])), (Some(FlowKey(1)), Some(FlowKey(2)), None));
    }

    #[test]
    fn one_caller_that_floods_leaves_room_for_another() {
        let calls = ShardCalls::default();
        let waiting = |flow| {
            let pushes = (0..SHARD_CALLS_WAITING_MAX).take_while(|_| calls.push(of_kind(&enqueue(), 1)).is_ok());
            FlowKey::sync_scope(flow, || pushes.count())
        };
        assert_eq!(waiting(Some(FlowKey(1))), SHARD_CALLS_WAITING_MAX / 2);
        assert_eq!(waiting(Some(FlowKey(2))), SHARD_CALLS_WAITING_MAX / 4, "half of what the other left");
        assert_eq!(waiting(Some(FlowKey(1))), 0, "it has more than is free");
        assert!(waiting(None) > 0, "work of the process itself is bounded by the whole");
    }

    #[test]
    fn too_many_commands_are_told_to_come_again() {
        let calls = ShardCalls::default();
        for _ in 0..SHARD_CALLS_WAITING_MAX {
            starts(&calls, sweeps(1));
        }
        assert!(matches!(calls.push(sweeps(1)), Err(QueueError::RetryLater)));
        assert!(!starts(&calls, settlement()), "another class has room");
        next(&calls);
        assert!(!starts(&calls, sweeps(1)));
    }
}
