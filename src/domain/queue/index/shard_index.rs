//! The ordered indexes over the messages of a shard.
//!
//! Every index is a function of the messages: a message is removed from all indexes before it changes and added again
//! afterwards. So a rebuild from the messages gives the same indexes. Each step costs O(log n), whatever the backlog.

use std::collections::{BTreeMap, BTreeSet};

use crate::queue::allocation::in_tree;
use crate::queue::filter::ShapeKeys;
use crate::queue::index::ages::ReadyAges;
use crate::queue::index::exclusive_index::{ExclusiveIndex, ShapeGroupKey};
use crate::queue::index::lanes::ValueLanes;
use crate::queue::index::sequence_pages::{MessagesBySequence, Sequences};
use crate::queue::index::shape_index::{QueueKind, ShapeIndex};
use crate::queue::index::stubs::Stub;
use crate::queue::messages::message::{MessageHead, Rank, RoutingValue};
use crate::queue::messages::state_machine::{MessageState, Trigger};
use crate::queue::setup::settings::Settings;
use crate::queue::totals::Totals;
use crate::time::Timestamp;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardIndex {
    /// Pending messages by (priority, sequence): earliest deadline first, FIFO among equals.
    pub ready: BTreeSet<Rank>,
    /// The times since which pending messages are ready.
    pub ages: ReadyAges,
    /// The next timer of each invisible, pending or running message that has one.
    pub due: BTreeSet<(Timestamp, u64)>,
    /// The time at which each terminal message is deleted.
    pub retention_ends: BTreeSet<(Timestamp, u64)>,
    pub by_state: [Sequences; MessageState::ALL.len()],
    /// Message counts and payload bytes of each state.
    pub totals: Totals,
    /// For an exclusive queue, the messages that values hold back and those that may be served.
    pub exclusive: Option<ExclusiveIndex>,
    /// The declared filter shapes.
    pub shapes: Vec<ShapeIndex>,
}

impl ShardIndex {
    /// Makes indexes without messages; `limits` are the own limits of single values.
    pub fn new(settings: &Settings, limits: BTreeMap<RoutingValue, u32>) -> Self {
        Self {
            ready: BTreeSet::new(),
            ages: ReadyAges::default(),
            due: BTreeSet::new(),
            retention_ends: BTreeSet::new(),
            by_state: Default::default(),
            totals: Totals::default(),
            exclusive: settings.exclusivity.clone().map(|rule| ExclusiveIndex::new(rule, limits)),
            shapes: settings.shapes.iter().map(|keys| ShapeIndex::new(keys.clone(), None)).collect(),
        }
    }

    /// Builds the indexes of messages; `filled` has the fill positions of the shapes. O(n log n). The result is denser
    /// than after adding the messages one by one.
    pub fn rebuild(
        settings: &Settings,
        limits: BTreeMap<RoutingValue, u32>,
        filled: Vec<Option<u64>>,
        messages: &MessagesBySequence,
    ) -> Self {
        let mut index = Self::new(settings, limits);
        for (shape, filled) in index.shapes.iter_mut().zip(filled) {
            shape.filled_through = filled;
        }
        let pending = messages.iter().filter(|message| message.state == MessageState::Pending);
        index.ready = pending.map(MessageHead::rank).collect();
        let timed = |ends: bool| {
            let of_kind = messages.iter().filter(move |message| message.state.is_terminal() == ends);
            of_kind.filter_map(|message| Some((message.next_due()?.0, message.key.sequence))).collect()
        };
        (index.due, index.retention_ends) = (timed(false), timed(true));
        for message in messages.iter() {
            index.enter_counts(message);
            index.refresh_lanes(message);
        }
        for (number, page) in messages.stub_pages() {
            for state in MessageState::ALL.into_iter().filter(|state| state.is_terminal()) {
                let mask = page.in_state(state);
                index.by_state[state as usize].insert_mask(number, mask);
                page.payload_bytes(mask).for_each(|bytes| index.totals.add(state, bytes));
            }
        }
        index
    }

    /// The bytes of all indexes. As many messages of a shape are assumed to be pending as of the shard. O(shapes).
    pub fn memory_bytes(&self) -> usize {
        const TIMER: usize = in_tree(size_of::<(Timestamp, u64)>());
        let pending = self.ready.len();
        let timers = (self.due.len() + self.retention_ends.len()) * TIMER;
        let states: usize = self.by_state.iter().map(Sequences::memory_bytes).sum();
        let ranks = pending * in_tree(size_of::<Rank>());
        let lanes = self.exclusive.as_ref().map(|exclusive| exclusive.lanes.memory_bytes(pending));
        let of_shape = |shape: &ShapeIndex| shape.set_bytes() + lanes.unwrap_or(ranks);
        let shapes: usize = self.shapes.iter().map(of_shape).sum();
        let exclusive = self.exclusive.as_ref().map_or(0, |exclusive| exclusive.memory_bytes(pending));
        ranks + self.ages.memory_bytes() + timers + states + shapes + exclusive
    }

    /// Adds a message; the caller must call `refresh_lanes` afterwards.
    pub fn enter(&mut self, message: &MessageHead) {
        if message.state == MessageState::Pending {
            self.ready.insert(message.rank());
        }
        if let Some((at, _)) = message.next_due() {
            self.timers(message.state).insert((at, message.key.sequence));
        }
        self.enter_counts(message);
    }

    /// Adds a message to the indexes without a rank or timer over the whole shard.
    fn enter_counts(&mut self, message: &MessageHead) {
        if message.state == MessageState::Pending {
            self.ages.enter(message.ready_since());
        }
        self.by_state[message.state as usize].insert(message.key.sequence);
        self.totals.add(message.state, message.payload_bytes);
        if let Some((exclusive, value)) = self.exclusive.as_mut().zip(message.routing.as_ref()) {
            exclusive.enter(value, message);
        }
        let kind = self.kind();
        for shape in &mut self.shapes {
            if let Some(set) = shape.values_of(message) {
                shape.enter(set, message, kind);
            }
        }
    }

    /// Removes a message that is a stub, of a queue without shapes.
    pub fn leave_stub(&mut self, stub: &Stub) {
        self.by_state[stub.state as usize].remove(stub.key.sequence);
        self.totals.remove(stub.state, stub.payload_bytes);
    }

    /// Removes a message, unchanged since it was added; the caller must call `refresh_lanes` afterwards.
    pub fn leave(&mut self, message: &MessageHead) {
        let sequence = message.key.sequence;
        if message.state == MessageState::Pending {
            self.ready.remove(&message.rank());
            self.ages.leave(message.ready_since());
        }
        if let Some((at, _)) = message.next_due() {
            self.timers(message.state).remove(&(at, sequence));
        }
        self.by_state[message.state as usize].remove(sequence);
        self.totals.remove(message.state, message.payload_bytes);
        if let Some((exclusive, value)) = self.exclusive.as_mut().zip(message.routing.as_ref()) {
            exclusive.leave(value, message);
        }
        let kind = self.kind();
        for shape in &mut self.shapes {
            if let Some(set) = shape.values_of(message) {
                shape.leave(&set, message, kind);
            }
        }
    }

    /// Moves the timer of a message whose other indexed parts are unchanged.
    pub fn reschedule(&mut self, before: Option<(Timestamp, Trigger)>, message: &MessageHead) {
        let (sequence, now) = (message.key.sequence, message.next_due());
        let timers = self.timers(message.state);
        before.inspect(|(at, _)| assert!(timers.remove(&(*at, sequence)), "what runs has a timer"));
        timers.extend(now.map(|(at, _)| (at, sequence)));
    }

    /// Updates the lanes of the message's value after the message was added or removed.
    pub fn refresh_lanes(&mut self, message: &MessageHead) {
        let Some((exclusive, value)) = self.exclusive.as_mut().zip(message.routing.as_ref()) else { return };
        for (number, shape) in self.shapes.iter_mut().enumerate() {
            let Some(place) = shape.values_of(message).map(|set| (number, set)) else { continue };
            match shape.group_mut(&place.1) {
                Some(group) => exclusive.refresh_group_lane(&place, &mut group.lanes, value),
                None => exclusive.unpark(&place, value),
            }
        }
        self.refresh_value(value);
    }

    /// Updates the lanes of a value whose limit or leases have changed. O((1 + parked places) log n).
    pub fn refresh_value(&mut self, value: &RoutingValue) {
        let Some(exclusive) = &mut self.exclusive else { return };
        exclusive.refresh_lane(value);
        for place in exclusive.unblocked_groups(value) {
            match self.shapes.get_mut(place.0).and_then(|shape| shape.group_mut(&place.1)) {
                Some(group) => exclusive.refresh_group_lane(&place, &mut group.lanes, value),
                None => exclusive.unpark(&place, value),
            }
        }
    }

    /// Hides the lane of a value that a dequeue met although the value may not be served. O(log n).
    pub fn hide_lane(&mut self, place: Option<&ShapeGroupKey>, value: &RoutingValue) {
        let Some(exclusive) = &mut self.exclusive else { return };
        match place {
            None => exclusive.refresh_lane(value),
            Some(place) => {
                let group = self.shapes[place.0].group_mut(&place.1).expect("a lane in a group has its group");
                exclusive.refresh_group_lane(place, &mut group.lanes, value);
            }
        }
    }

    /// Returns whether values hold messages back.
    fn kind(&self) -> QueueKind {
        if self.exclusive.is_some() { QueueKind::Exclusive } else { QueueKind::Simple }
    }

    /// Returns the servable message with the best rank, of all messages or of a group. It may belong to a value that
    /// has reached its limit since. O(log n).
    pub fn best(&self, place: Option<&ShapeGroupKey>) -> Option<Rank> {
        match self.lanes(place) {
            Some(lanes) => lanes.best(),
            None => self.pending(place).and_then(|pending| pending.first().copied()),
        }
    }

    /// For an exclusive queue, returns the lanes of all messages or of a group.
    pub fn lanes(&self, place: Option<&ShapeGroupKey>) -> Option<&ValueLanes> {
        let exclusive = self.exclusive.as_ref()?;
        match place {
            None => Some(&exclusive.lanes),
            Some((shape, set)) => self.shapes[*shape].group(set).map(|group| &group.lanes),
        }
    }

    /// For a simple queue, returns the pending messages, all or those of a group.
    pub fn pending(&self, place: Option<&ShapeGroupKey>) -> Option<&BTreeSet<Rank>> {
        match place {
            None => Some(&self.ready),
            Some((shape, set)) => self.shapes[*shape].group(set).map(|group| &group.ready),
        }
    }

    /// Returns whether a pending message may be leased, that is whether its value does not hold it back.
    pub fn may_serve(&self, message: &MessageHead) -> bool {
        let held = self.exclusive.as_ref().zip(message.routing.as_ref());
        held.is_none_or(|(exclusive, value)| exclusive.values.may_serve(value, message.rank()))
    }

    /// Returns whether a raised limit still has to be applied to some values.
    pub fn is_rechecking(&self) -> bool {
        self.exclusive.as_ref().is_some_and(ExclusiveIndex::is_rechecking)
    }

    /// Returns whether a sweep has index maintenance to do.
    pub fn is_unfinished(&self) -> bool {
        self.is_rechecking() || self.fill_position().is_some()
    }

    /// Returns the fill positions of all shapes that are not complete, in the order in which they are filled.
    pub fn fill_positions(&self) -> impl Iterator<Item = u64> {
        self.shapes.iter().filter_map(|shape| shape.filled_through)
    }

    /// Returns the fill position of the first shape that is not complete.
    pub fn fill_position(&self) -> Option<u64> {
        self.shapes.iter().find_map(|shape| shape.filled_through)
    }

    /// Adds the next message to the first shape that is not complete.
    pub fn fill(&mut self, message: &MessageHead) {
        let kind = self.kind();
        let shape = self.shapes.iter_mut().find(|shape| !shape.is_complete()).expect("a shape is being filled");
        shape.filled_through = Some(message.key.sequence);
        if let Some(set) = shape.values_of(message) {
            shape.enter(set, message, kind);
        }
        self.refresh_lanes(message);
    }

    /// Marks the first incomplete shape as complete.
    pub fn finish_filling(&mut self) {
        let shape = self.shapes.iter_mut().find(|shape| !shape.is_complete()).expect("a shape is being filled");
        shape.filled_through = None;
    }

    /// Replaces the shapes: retained shapes keep their contents, and sweeps fill new ones.
    pub fn replace_shapes(&mut self, shapes: &[ShapeKeys]) {
        let filled = (self.totals.all().messages > 0).then_some(0);
        let mut old: Vec<Option<ShapeIndex>> = std::mem::take(&mut self.shapes).into_iter().map(Some).collect();
        let mut moved = vec![None; old.len()];
        for (number, keys) in shapes.iter().enumerate() {
            let known = old.iter().position(|shape| shape.as_ref().is_some_and(|shape| shape.keys == *keys));
            let kept = known.and_then(|known| {
                moved[known] = Some(number);
                old[known].take()
            });
            self.shapes.push(kept.unwrap_or_else(|| ShapeIndex::new(keys.clone(), filled)));
        }
        if let Some(exclusive) = &mut self.exclusive {
            exclusive.renumber(&moved);
        }
    }

    /// For an exclusive queue, returns whether a pending message comes before another one of its value.
    pub fn is_before_others(&self, message: &MessageHead) -> bool {
        let lanes = self.exclusive.as_ref().map(|exclusive| &exclusive.lanes);
        let last = lanes.zip(message.routing.as_ref()).and_then(|(lanes, value)| lanes.last(value));
        message.state == MessageState::Pending && last.is_some_and(|last| message.rank() < last)
    }

    /// Applies a raised limit to some more values.
    pub fn recheck(&mut self) {
        let values = self.exclusive.as_mut().map(ExclusiveIndex::recheck).unwrap_or_default();
        values.iter().for_each(|value| self.refresh_value(value));
    }

    /// Returns the earliest timer.
    pub fn next_event(&self) -> Option<Timestamp> {
        let firsts = [self.due.first(), self.retention_ends.first()];
        firsts.into_iter().flatten().map(|(at, _)| *at).min()
    }

    fn timers(&mut self, state: MessageState) -> &mut BTreeSet<(Timestamp, u64)> {
        if state.is_terminal() { &mut self.retention_ends } else { &mut self.due }
    }
}
