//! Laws of the progress of a rule, on random lives of a counter, against a naive oracle.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::time::Duration;

use proptest::prelude::*;

use crate::counter::{CounterName, EventId, EventKey, NamespaceName};
use crate::queue::QueueName;
use crate::queue::messages::message::Metadata;
use crate::rules::{
    CrossingClaim, ExactCount, RuleCondition, RuleMessage, RuleName, RuleProgress, RuleSpec, SourceEpochs,
};
use crate::time::Timestamp;

const STEP: u64 = 10;

fn spec(max_per_minute: u32) -> RuleSpec {
    RuleSpec {
        name: RuleName::new("orders").expect("a name"),
        namespace: NamespaceName::new("default").expect("a name"),
        counter: CounterName::new("sold").expect("a name"),
        condition: RuleCondition::Every(NonZeroU64::new(STEP).expect("above 0")),
        queue: QueueName::new("mail").expect("a name"),
        message: RuleMessage::default(),
        max_per_minute,
    }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

fn exact(count: i64, as_of: i64) -> ExactCount {
    ExactCount { count, as_of: at(as_of), clear: None, epochs: None }
}

fn cleared(count: i64, as_of: i64, clear: i64) -> ExactCount {
    ExactCount { clear: Some(EventKey { time: at(clear), id: EventId::text("clear") }), ..exact(count, as_of) }
}

fn of_sources(count: i64, as_of: i64, lowest: u64, highest: u64) -> ExactCount {
    ExactCount { epochs: Some(SourceEpochs { lowest, highest }), ..exact(count, as_of) }
}

/// Claims and settles what a count makes due. Returns the claim.
fn fire(progress: &mut RuleProgress, seen: &ExactCount, now: i64) -> Option<CrossingClaim> {
    let spec = spec(60);
    *progress = progress.observe(&spec, seen, at(now))?;
    let claim = progress.pending?;
    let id = progress.message_id(&spec.name, &claim);
    *progress = progress.clone().fired(id);
    Some(claim)
}

fn crossings(claim: Option<CrossingClaim>) -> Option<(u64, u64)> {
    claim.map(|claim| (claim.from, claim.through))
}

#[test]
fn a_message_covers_all_crossings_found_together() {
    let mut progress = RuleProgress::new(1);
    assert_eq!(crossings(fire(&mut progress, &exact(9, 1), 1)), None);
    assert_eq!(crossings(fire(&mut progress, &exact(35, 2), 2)), Some((0, 3)));
    assert_eq!(crossings(fire(&mut progress, &exact(39, 3), 10)), None);
    assert_eq!(crossings(fire(&mut progress, &exact(40, 4), 20)), Some((3, 4)));
    let message = progress.last_message.expect("it fired");
    assert_eq!((message.id.to_string().as_str(), message.time), ("rule-orders-1-4", at(20)));
}

#[test]
fn a_pending_claim_stands_until_it_is_settled() {
    let spec = spec(60);
    let claimed = RuleProgress::new(1).observe(&spec, &exact(35, 2), at(2)).expect("crossings are due");
    assert_eq!(claimed.observe(&spec, &exact(99, 3), at(90)), None);
    assert_eq!(claimed.observe(&spec, &cleared(0, 3, 2), at(90)), None, "not even a clear overtakes it");
    let claim = claimed.pending.expect("a claim");
    let expired = claimed.clone().expired();
    assert_eq!((expired.fired_through, expired.uncertain, expired.pending), (3, 1, None));
    assert_eq!(expired.last_message, None, "nobody knows whether it is in the queue");
    let own = Metadata::new([("team", "a")]).expect("a pair");
    let metadata: Vec<_> =
        claim.metadata(&own).pairs().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let pairs = [("crossed_from", "0"), ("crossing", "3"), ("team", "a")];
    assert_eq!(metadata, pairs.map(|(key, value)| (key.to_owned(), value.to_owned())));
}

#[test]
fn a_clear_begins_anew_and_a_falling_count_does_not() {
    let mut progress = RuleProgress::new(1);
    assert_eq!(crossings(fire(&mut progress, &cleared(50, 1, 0), 1)), Some((0, 5)), "an old clear is no news");
    assert_eq!(crossings(fire(&mut progress, &cleared(41, 2, 0), 20)), None, "a repair or a negative delta");
    assert_eq!(crossings(fire(&mut progress, &cleared(55, 3, 0), 40)), None, "each crossing once");
    assert_eq!(crossings(fire(&mut progress, &cleared(72, 4, 3), 60)), Some((0, 7)), "cleared and counted again");
    assert_eq!(progress.generation, 2);
    assert_eq!(crossings(fire(&mut progress, &cleared(0, 5, 3), 80)), None);
    assert_eq!((progress.generation, progress.fired_through), (3, 0), "a count of 0 begins anew");
    assert_eq!(fire(&mut progress, &cleared(0, 6, 3), 100), None, "once");
    assert_eq!(progress.generation, 3);
}

#[test]
fn a_cumulative_counter_begins_anew_when_all_its_sources_did() {
    let mut progress = RuleProgress::new(1);
    assert_eq!(crossings(fire(&mut progress, &of_sources(50, 1, 4, 7), 1)), Some((0, 5)));
    assert_eq!(crossings(fire(&mut progress, &of_sources(30, 2, 4, 9), 20)), None, "one source of several");
    assert_eq!(crossings(fire(&mut progress, &of_sources(60, 3, 8, 9), 40)), Some((5, 6)), "no lower count");
    assert_eq!(crossings(fire(&mut progress, &of_sources(30, 4, 10, 11), 60)), Some((0, 3)));
    assert_eq!(progress.generation, 2);
}

#[test]
fn an_older_count_than_the_last_decision_changes_nothing() {
    let mut progress = RuleProgress::new(1);
    fire(&mut progress, &exact(50, 10), 1);
    let before = progress.clone();
    assert_eq!(fire(&mut progress, &exact(0, 9), 60), None);
    assert_eq!(progress, before);
}

#[test]
fn crossings_beyond_the_rate_wait_for_the_next_message() {
    let spec = spec(2);
    let claimed = RuleProgress::new(1).observe(&spec, &exact(10, 1), at(100)).expect("the first");
    let id = claimed.message_id(&spec.name, &claimed.pending.expect("a claim"));
    let fired = claimed.fired(id);
    assert_eq!(fired.observe(&spec, &exact(20, 2), at(129)), None);
    let next = fired.observe(&spec, &exact(30, 3), at(130)).expect("half a minute is over");
    assert_eq!(crossings(next.pending), Some((1, 3)));
    assert!(fired.observe(&spec, &exact(20, 2), at(50)).is_some(), "a clock that went back pauses nothing");
}

#[test]
fn only_a_refused_claim_is_timed_anew_and_keeps_what_it_covers() {
    let spec = spec(60);
    let claimed = RuleProgress::new(1).observe(&spec, &exact(35, 1), at(100)).expect("the first");
    assert_eq!(claimed.timed_anew(at(500)), None, "its message may be on its way");
    let refused = claimed.clone().refused();
    let again = refused.timed_anew(at(500)).expect("nothing of it is in the queue");
    assert_eq!((crossings(again.pending), again.pending.map(|claim| claim.time)), (Some((0, 3)), Some(at(500))));
    assert_eq!(again.timed_anew(at(900)), None, "its new message may be on its way");
    let (first, second) = (claimed.pending.expect("a claim"), again.pending.expect("a claim"));
    assert_eq!(claimed.message_id(&spec.name, &first), again.message_id(&spec.name, &second), "it is the same message");
    assert_eq!(refused.timed_anew(at(50)).and_then(|back| back.pending).map(|claim| claim.time), Some(at(100)));
    assert_eq!(RuleProgress::new(1).refused().pending, None);
}

#[test]
fn the_longest_id_is_an_id() {
    let name = RuleName::new(&"r".repeat(28)).expect("the longest name");
    let progress = RuleProgress::new(u32::MAX);
    let claim = CrossingClaim { from: 0, through: i64::MAX.unsigned_abs(), time: at(0), is_refused: false };
    assert_eq!(progress.message_id(&name, &claim).to_string().len(), 64);
}

/// One thing that happens to a counter and its rule.
#[derive(Clone, Copy, Debug)]
enum LifeEvent {
    Add(i64),
    Clear,
    /// A server reads progress and count, and stores what it decides.
    Read,
    /// The same, and the server ends before it stores anything.
    ReadAndDie,
    /// Two servers read the same progress; one of them stores first.
    ReadTwice,
    /// A server sends the message of a pending claim and settles it.
    Send,
    /// The same, and the server ends before it settles.
    SendAndDie,
    Expire,
}

fn event() -> impl Strategy<Value = LifeEvent> {
    prop_oneof![
        4 => (1_i64..60).prop_map(LifeEvent::Add),
        1 => (-40_i64..0).prop_map(LifeEvent::Add),
        1 => Just(LifeEvent::Clear),
        4 => Just(LifeEvent::Read),
        1 => Just(LifeEvent::ReadAndDie),
        1 => Just(LifeEvent::ReadTwice),
        4 => Just(LifeEvent::Send),
        2 => Just(LifeEvent::SendAndDie),
        1 => Just(LifeEvent::Expire),
    ]
}

/// The stored progress with its version, and the queue: ids with the crossings that their messages cover.
struct World {
    spec: RuleSpec,
    count: i64,
    clear: Option<EventKey>,
    now: i64,
    stored: (u64, RuleProgress),
    queue: BTreeMap<String, (u32, u64, u64)>,
    /// How often each crossing of a generation was settled as uncertain.
    uncertain: BTreeMap<(u32, u64), u32>,
    /// The naive oracle: of each generation, the highest crossing that any stored decision saw.
    highest: BTreeMap<u32, u64>,
}

impl World {
    fn new() -> Self {
        let stored = (1, RuleProgress::new(1));
        let (queue, uncertain, highest) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { spec: spec(60), count: 0, clear: None, now: 0, stored, queue, uncertain, highest }
    }

    fn decide(&self) -> Option<(u64, RuleProgress)> {
        let seen = ExactCount { clear: self.clear.clone(), ..exact(self.count, self.now) };
        let (version, progress) = &self.stored;
        progress.observe(&self.spec, &seen, at(self.now)).map(|next| (*version, next))
    }

    /// A compare-and-set.
    fn store(&mut self, (expected, next): (u64, RuleProgress)) -> bool {
        if self.stored.0 != expected {
            return false;
        }
        if next.pending.is_some() {
            let highest = self.highest.entry(next.generation).or_default();
            *highest = (*highest).max(self.spec.condition.reached(self.count));
        }
        self.stored = (expected + 1, next);
        true
    }

    fn send(&mut self) -> Option<(u64, RuleProgress)> {
        let (version, progress) = self.stored.clone();
        let claim = progress.pending?;
        let id = progress.message_id(&self.spec.name, &claim);
        let sent = (progress.generation, claim.from, claim.through);
        let known = *self.queue.entry(id.to_string()).or_insert(sent);
        assert_eq!(known, sent, "one id always means the same crossings");
        Some((version, progress.fired(id)))
    }

    fn step(&mut self, event: LifeEvent) {
        self.now += 60;
        match event {
            LifeEvent::Add(delta) => self.count += delta,
            LifeEvent::Clear => {
                self.count = 0;
                self.clear = Some(EventKey { time: at(self.now), id: EventId::text("clear") });
            }
            LifeEvent::Read => drop(self.decide().map(|next| self.store(next))),
            LifeEvent::ReadAndDie => drop(self.decide()),
            LifeEvent::ReadTwice => {
                let (one, other) = (self.decide(), self.decide());
                if let (Some(one), Some(other)) = (one, other) {
                    assert!(self.store(one) && !self.store(other), "one of two claims is stored");
                }
            }
            LifeEvent::Send => drop(self.send().map(|next| self.store(next))),
            LifeEvent::SendAndDie => drop(self.send()),
            LifeEvent::Expire => {
                let (version, progress) = self.stored.clone();
                let Some(claim) = progress.pending else { return };
                let id = progress.message_id(&self.spec.name, &claim).to_string();
                if !self.queue.contains_key(&id) {
                    for crossing in claim.from + 1..=claim.through {
                        *self.uncertain.entry((progress.generation, crossing)).or_default() += 1;
                    }
                }
                assert!(self.store((version, progress.expired())), "nobody came between");
            }
        }
    }
}

proptest! {
    #[test]
    fn each_crossing_of_a_generation_is_covered_once(events in prop::collection::vec(event(), 1..120)) {
        let mut world = World::new();
        events.into_iter().for_each(|event| world.step(event));
        // What is pending is sent in the end.
        world.step(LifeEvent::Send);
        let mut covered: BTreeMap<(u32, u64), u32> = world.uncertain.clone();
        for (generation, from, through) in world.queue.values() {
            for crossing in from + 1..=*through {
                *covered.entry((*generation, crossing)).or_default() += 1;
            }
        }
        let mut expected = BTreeMap::new();
        for (generation, highest) in &world.highest {
            expected.extend((1..=*highest).map(|crossing| ((*generation, crossing), 1)));
        }
        prop_assert_eq!(covered, expected);
    }

    #[test]
    fn a_counter_that_only_grows_covers_exactly_what_it_reached(
        deltas in prop::collection::vec(0_i64..500, 1..40),
    ) {
        let mut world = World::new();
        for delta in deltas {
            for event in [LifeEvent::Add(delta), LifeEvent::ReadTwice, LifeEvent::SendAndDie, LifeEvent::Send] {
                world.step(event);
            }
        }
        let (_, progress) = &world.stored;
        prop_assert_eq!(progress.generation, 1);
        prop_assert_eq!(progress.fired_through, world.spec.condition.reached(world.count));
        let covered: u64 = world.queue.values().map(|(_, from, through)| through - from).sum();
        prop_assert_eq!(covered, progress.fired_through);
    }
}

#[test]
fn a_pause_follows_from_the_rate() {
    assert_eq!([1, 2, 60, 600].map(|rate| spec(rate).pause()), [60_000, 30_000, 1_000, 100].map(Duration::from_millis));
}
