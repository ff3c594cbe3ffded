//! The queue in front of the committer: bounded in bytes, and drained a batch at a time.
//!
//! It has a lane for each class of commands, see `CommitLane`. A batch contains as much as one commit takes. Urgent
//! lanes go first, so that their commands are in the next batch, whatever waits in other lanes. Every lane that is not
//! empty gets at least an eighth, so that no lane starves. Within a lane callers take turns, behind what the server
//! does for itself: see `FairLanes`.
//!
//! New events and maintenance have separate bounds, so neither blocks the other. A command that is larger than its
//! bound is accepted when no other of its class waits. So the bound holds up to one command, and no command is refused
//! for ever.
//!
//! A commit costs the same work however few adds it contains, and competes with callers for CPU. So the committer waits
//! a moment for as many adds as recently arrived in such a moment; see `AddBatchTarget`.

use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::oneshot;

use super::admission::{CommandBytes, CommitLane, ReplySender};
use super::command::StoreCommand;
use crate::limits::{COMMIT_BYTES_MAX, COMMIT_EVENTS_MAX, COMMIT_GATHER_ADDS_MAX, COMMIT_GATHER_MAX, UPKEEP_BYTES_MAX};
use tallystone_coalesce::{FairLanes, FlowKey, LargeItems, PerFlowUsage, leaves_room};
use tallystone_domain::limits::{COMMIT_LANE_PART, HELD_BYTES_MAX};
use tallystone_ports::{StoreError, StoreErrorKind};

/// The waiting commands, and the bytes of commands that wait or are in progress.
#[derive(Default)]
pub struct CommitInbox {
    state: Mutex<CommitInboxState>,
    wake: Condvar,
}

/// Capacity that is reserved for a command which is not ready yet, on behalf of a caller.
#[must_use = "the room is given back when the command is lined up"]
pub struct ReservedCapacity(CommandBytes, Option<FlowKey>);

/// A command that waits, with its bytes of new events and the caller on whose behalf it counts.
struct WaitingCommand {
    command: StoreCommand,
    flow: Option<FlowKey>,
    intake: usize,
}

struct CommitInboxState {
    lanes: FairLanes<WaitingCommand, { CommitLane::COUNT }>,
    /// The bytes of new events that wait, by caller. Those of commands that are not ready yet are among them.
    shares: PerFlowUsage,
    /// The commands of a batch while it is taken.
    taken: Vec<WaitingCommand>,
    weight: CommandBytes,
    /// Of commands that are not ready yet; they count as if they waited.
    reserved: CommandBytes,
    closed: bool,
    /// The number of commands for which the committer waits; 0 while it does not wait.
    wake_at_count: usize,
    /// Whether a command other than an add waits, which ends the wait for more adds.
    batching_disabled: bool,
    add_batch_target: AddBatchTarget,
}

/// The cost of a full commit: a number of events, or their share of its bytes.
const BATCH_COST_CAP: usize = COMMIT_EVENTS_MAX;

fn cost_of(items: usize, weight: CommandBytes) -> usize {
    items.max((weight.intake + weight.upkeep) / (COMMIT_BYTES_MAX / COMMIT_EVENTS_MAX)).max(1)
}

impl Default for CommitInboxState {
    fn default() -> Self {
        Self {
            lanes: FairLanes::new(BATCH_COST_CAP, COMMIT_LANE_PART, LargeItems::Go),
            shares: PerFlowUsage::default(),
            taken: Vec::new(),
            weight: CommandBytes::default(),
            reserved: CommandBytes::default(),
            closed: false,
            wake_at_count: 0,
            batching_disabled: false,
            add_batch_target: AddBatchTarget::default(),
        }
    }
}

/// The number of adds worth waiting for: the number that arrived in time repeatedly. One more is tried after
/// `SUCCESSES_BEFORE_GROWTH` successes. Adds that do not arrive in time are no longer expected. A single caller waits
/// for others only once in many commits. Callers that wait for their responses before they send more are rarely waited
/// for beyond their number.
#[derive(Debug)]
struct AddBatchTarget {
    target: usize,
    successes: u32,
}

const SUCCESSES_BEFORE_GROWTH: u32 = 64;

impl Default for AddBatchTarget {
    fn default() -> Self {
        Self { target: 1, successes: 0 }
    }
}

impl AddBatchTarget {
    /// Records the number of adds that arrived, in time or not.
    fn record(&mut self, came: usize, in_time: bool) {
        if !in_time {
            (self.target, self.successes) = (came.max(1), 0);
            return;
        }
        self.successes += 1;
        if self.successes >= SUCCESSES_BEFORE_GROWTH {
            (self.target, self.successes) = ((self.target + 1).min(COMMIT_GATHER_ADDS_MAX), 0);
        }
    }
}

impl CommitInbox {
    /// Adds a command. A refused command is answered at once.
    pub fn push(&self, command: StoreCommand) {
        let (weight, flow) = (command.bytes(), FlowKey::current());
        let mut state = self.state.lock();
        let refusal = if state.closed {
            StoreErrorKind::Closed
        } else if !state.has_capacity_for(weight, flow) {
            StoreErrorKind::Busy
        } else {
            state.shares.add(flow, weight.intake);
            return self.enqueue(state, command, weight, flow);
        };
        drop(state);
        command.fail(|op| StoreError::not_applied(refusal, op));
    }

    /// Adds a command and waits for its reply.
    pub async fn request<T>(
        &self,
        op: &'static str,
        command: impl FnOnce(ReplySender<T>) -> StoreCommand,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.push(command(answer));
        answered.await.unwrap_or_else(|_| Err(StoreError::unknown(StoreErrorKind::Closed, op)))
    }

    /// Adds a command with reserved capacity.
    pub fn push_reserved(&self, command: StoreCommand, reserved: ReservedCapacity) {
        let ReservedCapacity(weight, flow) = reserved;
        let mut state = self.state.lock();
        state.reserved -= weight;
        if state.closed {
            state.shares.remove(flow, weight.intake);
            drop(state);
            return command.fail(|op| StoreError::not_applied(StoreErrorKind::Closed, op));
        }
        self.enqueue(state, command, weight, flow);
    }

    fn enqueue(
        &self,
        mut state: MutexGuard<'_, CommitInboxState>,
        command: StoreCommand,
        weight: CommandBytes,
        flow: Option<FlowKey>,
    ) {
        state.weight += weight;
        state.batching_disabled |= !matches!(command, StoreCommand::Append(_));
        let (lane, cost) = (command.lane() as usize, cost_of(command.items(), weight));
        state.lanes.push(lane, flow, WaitingCommand { command, flow, intake: weight.intake }, cost);
        let is_awaited =
            state.wake_at_count > 0 && (state.batching_disabled || state.lanes.len() >= state.wake_at_count);
        drop(state);
        if is_awaited {
            self.wake.notify_one();
        }
    }

    /// Reserves capacity for a command that is not ready yet.
    pub fn reserve(&self, command: &StoreCommand) -> Result<ReservedCapacity, StoreErrorKind> {
        let (weight, flow) = (command.bytes(), FlowKey::current());
        let mut state = self.state.lock();
        if state.closed {
            return Err(StoreErrorKind::Closed);
        }
        if !state.has_capacity_for(weight, flow) {
            return Err(StoreErrorKind::Busy);
        }
        state.shares.add(flow, weight.intake);
        state.reserved += weight;
        Ok(ReservedCapacity(weight, flow))
    }

    /// Waits for commands and takes a batch of them. Returns `false` once the inbox is closed and empty.
    pub fn take(&self, commands: &mut Vec<StoreCommand>) -> bool {
        let mut state = self.state.lock();
        if state.add_batch_target.target > 1 {
            self.wait_for_adds(&mut state);
        } else {
            state.add_batch_target.record(1, true);
        }
        while state.lanes.is_empty() {
            if state.closed {
                return false;
            }
            state.wake_at_count = 1;
            self.wake.wait(&mut state);
        }
        state.take_batch(commands);
        // The remaining commands have waited long enough.
        (state.wake_at_count, state.batching_disabled) = (0, !state.lanes.is_empty());
        true
    }

    /// Waits a moment for as many adds as recently arrived in such a moment.
    fn wait_for_adds(&self, state: &mut MutexGuard<'_, CommitInboxState>) {
        let target = state.add_batch_target.target;
        let enough = |state: &CommitInboxState| state.lanes.len() >= target || state.batching_disabled || state.closed;
        let mut in_time = true;
        while in_time && !enough(state) {
            state.wake_at_count = target;
            in_time = !self.wake.wait_for(state, COMMIT_GATHER_MAX).timed_out();
        }
        let came = state.lanes.len();
        // If another command was urgent, a small number of adds says nothing.
        if came >= target || !in_time {
            state.add_batch_target.record(came, in_time);
        }
    }

    /// Releases the bytes of finished commands.
    pub fn release(&self, weight: CommandBytes) {
        let mut state = self.state.lock();
        let held = &mut state.weight;
        debug_assert!(held.intake >= weight.intake && held.upkeep >= weight.upkeep, "only what was lined up is done");
        held.intake = held.intake.saturating_sub(weight.intake);
        held.upkeep = held.upkeep.saturating_sub(weight.upkeep);
    }

    /// Refuses every further command.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.wake.notify_one();
    }

    /// The bytes of commands that wait or are in progress.
    pub fn bytes(&self) -> usize {
        let state = self.state.lock();
        state.weight.intake + state.weight.upkeep + state.reserved.intake + state.reserved.upkeep
    }

    /// Whether commands wait or are in progress.
    pub fn is_busy(&self) -> bool {
        let weight = self.state.lock().weight;
        weight.intake + weight.upkeep > 0
    }
}

impl CommitInboxState {
    /// Whether there is room for a command. A caller that floods leaves room for the new events of others.
    fn has_capacity_for(&self, more: CommandBytes, flow: Option<FlowKey>) -> bool {
        let fits = |held: usize, more: usize, most: usize| more == 0 || held == 0 || held + more <= most;
        let (intake, own) = (self.weight.intake + self.reserved.intake, self.shares.of(flow));
        fits(intake, more.intake, HELD_BYTES_MAX)
            && (more.intake == 0 || leaves_room(own, more.intake, intake, HELD_BYTES_MAX))
            && fits(self.weight.upkeep + self.reserved.upkeep, more.upkeep, UPKEEP_BYTES_MAX)
    }

    fn take_batch(&mut self, commands: &mut Vec<StoreCommand>) {
        self.lanes.take(&mut self.taken);
        for WaitingCommand { command, flow, intake } in self.taken.drain(..) {
            self.shares.remove(flow, intake);
            commands.push(command);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    use fjall::Slice;

    use super::*;
    use crate::inbox::command::{AppendCommand, EncodedEvent};
    use crate::inbox::queue_command::{ApplyCommands, QueueStoreCommand};
    use crate::queues::store_time::Moment;
    use crate::queues::tests::{dequeue, enqueue};
    use tallystone_domain::Timestamp;
    use tallystone_domain::counter::{
        Change, Counter, CounterName, DatasetId, Event, EventId, EventKey, NamespaceId, Provenance,
    };
    use tallystone_domain::queue::command::FailureReport;
    use tallystone_domain::queue::messages::message::{Fence, LeaseToken, MessageKey};
    use tallystone_domain::queue::messages::settlement::SettleAction;
    use tallystone_domain::queue::{Command as QueueCommand, QueueId, ShardId};
    use tallystone_domain::rollup::Checkpoint;
    use tallystone_ports::{AppendOutcome, BootId, EffectOutcome, NewEvent, RollWrite, ShardCommand};

    type Answered = oneshot::Receiver<Vec<Result<AppendOutcome, StoreError>>>;

    fn counter() -> Counter {
        Counter::new(NamespaceId(1), CounterName::new("a").expect("a valid name"))
    }

    /// An append of about so many bytes.
    fn append(bytes: usize) -> (StoreCommand, Answered) {
        append_of(vec![prepared(bytes)])
    }

    /// An append of so many events.
    fn batch(events: usize) -> (StoreCommand, Answered) {
        append_of((0..events).map(|_| prepared(1)).collect())
    }

    fn prepared(bytes: usize) -> EncodedEvent {
        let key = EventKey { time: Timestamp::from_secs(1), id: EventId::text("t") };
        let event = Event { key, change: Change::Add(1), provenance: Provenance::default() };
        let mut prepared = EncodedEvent::new(NewEvent { counter: counter(), event });
        prepared.value = Slice::from(vec![0; bytes]);
        prepared
    }

    fn append_of(events: Vec<EncodedEvent>) -> (StoreCommand, Answered) {
        let (answer, answered) = oneshot::channel();
        (StoreCommand::Append(AppendCommand { dataset: DatasetId(1), events, guard: Box::new(()), answer }), answered)
    }

    /// A roll of about so many bytes.
    fn roll(bytes: usize) -> (StoreCommand, oneshot::Receiver<Result<(), StoreError>>) {
        let write = RollWrite {
            counter: counter(),
            checkpoint: Checkpoint::empty(Timestamp::MIN),
            finished_buckets: Vec::new(),
            finished_steps: Vec::new(),
        };
        let (answer, answered) = oneshot::channel();
        (StoreCommand::Roll(DatasetId(1), vec![write; bytes / size_of::<RollWrite>()], answer), answered)
    }

    fn is_busy(mut answered: Answered) -> bool {
        let Ok(mut answer) = answered.try_recv() else { return false };
        let error = answer.remove(0).expect_err("nothing was committed here");
        assert_eq!((error.kind, error.outcome), (StoreErrorKind::Busy, EffectOutcome::NotApplied));
        true
    }

    fn pushed(queue: &CommitInbox, (command, answered): (StoreCommand, Answered)) -> bool {
        queue.push(command);
        !is_busy(answered)
    }

    /// Takes whatever waits, group by group.
    fn take_all(queue: &CommitInbox) -> Vec<StoreCommand> {
        let mut commands = Vec::new();
        while commands.is_empty() || !queue.state.lock().lanes.is_empty() {
            assert!(queue.take(&mut commands));
        }
        commands
    }

    /// Works off whatever waits, as the committer does.
    fn work_off(queue: &CommitInbox) -> usize {
        let commands = take_all(queue);
        let mut weight = CommandBytes::default();
        commands.iter().for_each(|command| weight += command.bytes());
        queue.release(weight);
        commands.len()
    }

    /// Commits of callers who wait for their answers before they send more: how often one waited in vain.
    fn in_vain(callers: usize, commits: usize) -> usize {
        let mut gathering = AddBatchTarget::default();
        let mut in_vain = 0;
        for _ in 0..commits {
            let in_time = gathering.target <= callers;
            in_vain += usize::from(!in_time);
            gathering.record(callers.min(gathering.target), in_time);
        }
        in_vain
    }

    #[test]
    fn callers_are_not_waited_for_beyond_their_number_but_rarely() {
        let tries = usize::try_from(SUCCESSES_BEFORE_GROWTH).expect("small");
        for callers in 1..COMMIT_GATHER_ADDS_MAX {
            assert!(in_vain(callers, 100 * tries) <= 100, "{callers}");
        }
        assert_eq!(in_vain(COMMIT_GATHER_ADDS_MAX, 100 * tries), 0, "more than that are waited for by nobody");
    }

    #[test]
    fn what_comes_in_time_is_taken_together_and_what_is_in_a_hurry_at_once() {
        let queue = Arc::new(CommitInbox::default());
        queue.state.lock().add_batch_target.target = 3;
        let taker = std::thread::spawn({
            let queue = Arc::clone(&queue);
            move || {
                let mut commands = Vec::new();
                assert!(queue.take(&mut commands));
                commands.len()
            }
        });
        // However slow this is, one add is taken by itself when nothing follows.
        assert!(pushed(&queue, append(1)));
        assert_eq!(taker.join().expect("no panic"), 1);
        assert_eq!(queue.state.lock().add_batch_target.target, 1, "nobody is waited for again");
        queue.state.lock().add_batch_target.target = COMMIT_GATHER_ADDS_MAX;
        assert!(pushed(&queue, append(1)));
        queue.push(roll(1_000).0);
        assert_eq!(work_off(&queue), 2);
        assert_eq!(queue.state.lock().add_batch_target.target, COMMIT_GATHER_ADDS_MAX, "a roll says nothing of adds");
    }

    /// Commands of a queue, as `Queues` sends them.
    fn of_queue(commands: Vec<ShardCommand>) -> StoreCommand {
        let shard = ShardId { queue: QueueId(1), number: 0 };
        let step = Timestamp::from_secs(1).into();
        let moment = Moment { step, since_boot: Duration::ZERO, boot: BootId(1) };
        StoreCommand::Queue(QueueStoreCommand::Apply(ApplyCommands {
            shard,
            moment,
            commands,
            answer: oneshot::channel().0,
        }))
    }

    fn settlement() -> StoreCommand {
        let key = MessageKey { shard: 0, epoch: 1, sequence: 1 };
        let token = LeaseToken { key, fence: Fence { epoch: 1, serial: 1 } };
        let settle = QueueCommand::Settle { token, verb: SettleAction::Complete, failure: FailureReport::default() };
        of_queue(vec![ShardCommand::of(settle)])
    }

    /// How many commands of each lane the next group has.
    fn group(queue: &CommitInbox) -> [usize; CommitLane::COUNT] {
        let mut commands = Vec::new();
        assert!(queue.take(&mut commands));
        let mut lanes = [0; CommitLane::COUNT];
        commands.iter().for_each(|command| lanes[command.lane() as usize] += 1);
        lanes
    }

    #[test]
    fn a_settlement_behind_ten_thousand_enqueues_is_in_the_next_group() {
        let queue = CommitInbox::default();
        for _ in 0..10_000 {
            queue.push(of_queue(vec![enqueue("a")]));
        }
        assert_eq!(group(&queue), [0, 0, 0, BATCH_COST_CAP, 0, 0], "what fills a commit");
        queue.push(of_queue(vec![dequeue(1)]));
        queue.push(settlement());
        let mut commands = Vec::new();
        assert!(queue.take(&mut commands));
        assert_eq!(commands[0].lane(), CommitLane::Settlements, "and first in it");
        assert_eq!(commands[1].lane(), CommitLane::General);
        assert_eq!(commands.len(), BATCH_COST_CAP);
    }

    #[test]
    fn a_single_add_behind_a_thousand_batches_is_in_the_next_group() {
        let queue = CommitInbox::default();
        for _ in 0..1_000 {
            assert!(pushed(&queue, batch(100)));
        }
        assert!(pushed(&queue, append(1)));
        assert_eq!(group(&queue), [0, 1, (BATCH_COST_CAP - 1) / 100, 0, 0, 0]);
    }

    #[test]
    fn an_enqueue_of_one_caller_behind_ten_thousand_of_another_is_second_in_the_next_group() {
        let queue = CommitInbox::default();
        FlowKey::sync_scope(Some(FlowKey(1)), || (0..10_000).for_each(|_| queue.push(of_queue(vec![enqueue("a")]))));
        FlowKey::sync_scope(Some(FlowKey(2)), || queue.push(of_queue(vec![enqueue("b"); 2])));
        let mut commands = Vec::new();
        assert!(queue.take(&mut commands));
        assert_eq!(commands[..3].iter().map(StoreCommand::items).collect::<Vec<_>>(), [1, 2, 1]);
    }

    #[test]
    fn no_lane_starves() {
        let queue = CommitInbox::default();
        for _ in 0..10_000 {
            queue.push(settlement());
            queue.push(of_queue(vec![dequeue(1)]));
            queue.push(of_queue(vec![enqueue("a")]));
        }
        let part = BATCH_COST_CAP / COMMIT_LANE_PART;
        assert_eq!(group(&queue), [BATCH_COST_CAP - 2 * part, part, 0, part, 0, 0]);
        let mut rounds = 0;
        while !queue.state.lock().lanes.is_empty() {
            assert!(group(&queue).iter().sum::<usize>() <= BATCH_COST_CAP);
            rounds += 1;
        }
        assert_eq!(rounds, (3 * 10_000usize).div_ceil(BATCH_COST_CAP) - 1, "every group is full but the last");
    }

    #[test]
    fn what_costs_more_than_a_group_gets_in() {
        let queue = CommitInbox::default();
        queue.push(of_queue(vec![dequeue(1); BATCH_COST_CAP + 1]));
        queue.push(settlement());
        assert_eq!(group(&queue), [1, 1, 0, 0, 0, 0]);
    }

    const THIRD: usize = HELD_BYTES_MAX / 3;

    #[test]
    fn intake_past_its_bound_is_told_to_come_again_and_gets_in_when_some_was_worked_off() {
        let queue = CommitInbox::default();
        assert!(pushed(&queue, append(THIRD)) && pushed(&queue, append(THIRD)));
        assert!(!pushed(&queue, append(THIRD)), "the third does not fit beside what each takes by itself");
        assert!(pushed(&queue, append(1_000)), "a smaller one does");
        let commands = take_all(&queue);
        assert!(!pushed(&queue, append(THIRD)), "what is worked on still counts");
        queue.release(commands[0].bytes());
        assert!(pushed(&queue, append(THIRD)));
        queue.release(commands[1].bytes());
        queue.release(commands[2].bytes());
        assert_eq!(work_off(&queue), 1);
        assert_eq!(queue.bytes(), 0);
    }

    #[test]
    fn one_caller_that_floods_leaves_room_for_another() {
        let queue = CommitInbox::default();
        let takes = |flow: u64, bytes| FlowKey::sync_scope(Some(FlowKey(flow)), || pushed(&queue, append(bytes)));
        assert!(takes(1, THIRD) && !takes(1, THIRD), "it would have more than is free");
        assert!(takes(2, THIRD), "another finds room");
        assert!(!takes(1, 1_000), "it has more than is free");
        assert!(takes(3, THIRD / 2), "a third one finds room too");
        let waiting = take_all(&queue);
        assert!(!takes(4, HELD_BYTES_MAX / 2), "what is worked on still counts");
        waiting.iter().for_each(|command| queue.release(command.bytes()));
        assert!(takes(1, THIRD), "what was worked off is nobody's");
        work_off(&queue);
        assert_eq!((queue.bytes(), queue.state.lock().shares.of(Some(FlowKey(1)))), (0, 0));
    }

    #[test]
    fn room_that_is_set_aside_is_its_callers() {
        let queue = CommitInbox::default();
        let reserve = |command: &StoreCommand| FlowKey::sync_scope(Some(FlowKey(1)), || queue.reserve(command));
        let (first, _answered) = append(THIRD);
        let reserved = reserve(&first).expect("there is room");
        assert_eq!(reserve(&append(THIRD).0).err(), Some(StoreErrorKind::Busy), "it has a third");
        queue.push_reserved(first, reserved); // by another task
        assert_eq!(reserve(&append(THIRD).0).err(), Some(StoreErrorKind::Busy), "and still while it waits");
        work_off(&queue);
        let (second, _answered) = append(THIRD);
        let reserved = reserve(&second).expect("there is room again");
        queue.close();
        queue.push_reserved(second, reserved);
        assert_eq!(queue.state.lock().shares.of(Some(FlowKey(1))), 0);
    }

    #[test]
    fn room_that_is_set_aside_counts_and_goes_over_to_the_command() {
        let queue = CommitInbox::default();
        let (first, _answered) = append(2 * THIRD);
        let reserved = queue.reserve(&first).expect("there is room");
        assert!(!pushed(&queue, append(2 * THIRD)), "the room is taken");
        assert_eq!((queue.bytes() > 2 * THIRD, queue.is_busy()), (true, false));
        let (second, _answered) = append(2 * THIRD);
        assert_eq!(queue.reserve(&second).err(), Some(StoreErrorKind::Busy));
        queue.push_reserved(first, reserved);
        assert!(queue.is_busy() && !pushed(&queue, append(2 * THIRD)), "it counts once, and still");
        assert_eq!(work_off(&queue), 1);
        assert_eq!(queue.bytes(), 0);
        let reserved = queue.reserve(&second).expect("there is room again");
        queue.close();
        queue.push_reserved(second, reserved);
        assert_eq!(queue.bytes(), 0, "what comes after the end is refused and holds nothing");
    }

    #[test]
    fn intake_and_upkeep_never_keep_each_other_out() {
        let queue = CommitInbox::default();
        assert!(pushed(&queue, append(2 * THIRD)) && !pushed(&queue, append(2 * THIRD)));
        let (command, mut answered) = roll(UPKEEP_BYTES_MAX / 2);
        queue.push(command);
        assert!(answered.try_recv().is_err(), "upkeep gets in while intake is turned away");
        let (command, mut answered) = roll(UPKEEP_BYTES_MAX / 2 + UPKEEP_BYTES_MAX / 4);
        queue.push(command);
        assert!(answered.try_recv().is_ok(), "and has a bound of its own");
        assert!(pushed(&queue, append(1_000)), "that does not keep intake out");
        assert_eq!(work_off(&queue), 3);
        assert_eq!(queue.bytes(), 0);
    }

    #[test]
    fn a_command_larger_than_its_bound_gets_in_when_no_other_of_its_class_is_there() {
        let queue = CommitInbox::default();
        assert!(pushed(&queue, append(HELD_BYTES_MAX + 1)));
        assert!(!pushed(&queue, append(1)), "one command past the bound is all");
        let (command, mut answered) = roll(2 * UPKEEP_BYTES_MAX);
        queue.push(command);
        assert!(answered.try_recv().is_err());
        assert_eq!(work_off(&queue), 2);
        assert!(pushed(&queue, append(1)));
        assert!(!pushed(&queue, append(HELD_BYTES_MAX + 1)), "it waits for its turn");
        assert_eq!(work_off(&queue), 1);
        assert!(pushed(&queue, append(HELD_BYTES_MAX + 1)));
    }

    #[test]
    fn what_was_lined_up_before_the_queue_closed_is_worked_off_and_no_more_gets_in() {
        let queue = Arc::new(CommitInbox::default());
        let (is_over, over) = mpsc::channel();
        let seen = Arc::new(AtomicBool::new(false));
        let worker = std::thread::spawn({
            let (queue, seen) = (Arc::clone(&queue), Arc::clone(&seen));
            move || {
                let mut commands = Vec::new();
                while queue.take(&mut commands) {
                    seen.store(true, Ordering::SeqCst);
                    commands.clear();
                }
                is_over.send(()).expect("somebody waits");
            }
        });
        queue.push(append(10).0);
        queue.close();
        over.recv_timeout(Duration::from_secs(60)).expect("a closed queue ends its worker");
        worker.join().expect("no panic");
        assert!(seen.load(Ordering::SeqCst));
        let (command, mut answered) = append(10);
        queue.push(command);
        let refused = answered.try_recv().expect("answered at once").remove(0).expect_err("closed");
        assert_eq!(refused.kind, StoreErrorKind::Closed);
    }
}
