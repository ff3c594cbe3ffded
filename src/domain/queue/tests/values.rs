//! Exclusive queues: limits, overrides, strict order, refusals.

use super::*;
use crate::limits::{DEQUEUE_PARKINGS_MAX, VALUE_LIMITS_MAX, VALUES_RECHECKED_MAX};
use crate::queue::command::{Completeness, FailureReport, ShardCapacity};
use crate::queue::invalid_command::InvalidCommandPart;
use crate::queue::messages::settlement::SettleAction;

fn settle(bench: &mut Bench, leased: LeaseGrant, verb: SettleAction) {
    let failure = FailureReport { delay: Some(SECOND), ..FailureReport::default() };
    let settled = bench.apply(Command::Settle { token: leased.token, verb, failure });
    assert!(settled.is_ok(), "{settled:?}");
}

#[test]
fn each_value_is_served_up_to_its_limit_best_first() {
    let mut bench = Bench::new(exclusive(1, Order::Loose));
    let [a1, a2] = [("a1", 1), ("a2", 2)].map(|(id, priority)| bench.put(of("a", id, priority)));
    let [b1, c1] = [("b", "b1", 3), ("c", "c1", 0)].map(|(value, id, priority)| bench.put(of(value, id, priority)));
    let leases = bench.take(up_to(100));
    assert_eq!(sequences(&leases), [c1, a1, b1], "a2 waits behind a1");
    settle(&mut bench, leases[1], SettleAction::Complete);
    assert_eq!(sequences(&bench.take(up_to(100))), [a2]);
}

#[test]
fn a_value_returns_however_its_lease_ends() {
    for verb in [SettleAction::Complete, SettleAction::Cancel, SettleAction::Fail, SettleAction::Release] {
        let mut bench = Bench::new(exclusive(1, Order::Loose));
        let [first, second] = ["1", "2"].map(|id| bench.put(of("a", id, 0)));
        let leased = bench.take(up_to(9))[0];
        settle(&mut bench, leased, verb);
        let next = if verb == SettleAction::Release { first } else { second };
        assert_eq!(sequences(&bench.take(up_to(9))), [next], "{verb:?}");
    }
    let mut bench = Bench::new(exclusive(1, Order::Loose));
    let [first, _] = ["1", "2"].map(|id| bench.put(of("a", id, 0)));
    bench.take(up_to(9));
    bench.now = bench.now + SECOND;
    assert_eq!(sequences(&bench.take(up_to(9))), [first], "the lease is over, its place is kept");
}

#[test]
fn a_limit_of_its_own_outweighs_that_of_the_queue_and_revokes_nothing() {
    let mut bench = Bench::new(exclusive(1, Order::Loose));
    for n in 0..6 {
        bench.put(of("a", &n.to_string(), n));
    }
    let set = |bench: &mut Bench, limit| {
        let set = bench.apply(Command::SetValueLimit { value: routing("a"), limit });
        assert_eq!(set, Ok(Reply::ValueLimitSet));
    };
    set(&mut bench, Some(3));
    let running = bench.take(up_to(9));
    assert_eq!(running.len(), 3);
    set(&mut bench, Some(2));
    assert_eq!(bench.state(running[2].token.key.sequence), Some(MessageState::Running));
    settle(&mut bench, running[0], SettleAction::Complete);
    assert_eq!(bench.take(up_to(9)), [], "two are in flight");
    set(&mut bench, Some(0));
    settle(&mut bench, running[1], SettleAction::Complete);
    settle(&mut bench, running[2], SettleAction::Complete);
    assert_eq!(bench.take(up_to(9)), [], "the value rests");
    set(&mut bench, None);
    assert_eq!(bench.take(up_to(9)).len(), 1);
}

#[test]
fn strict_order_waits_for_earlier_ones_that_run_or_are_invisible() {
    let mut bench = Bench::new(exclusive(9, Order::Strict));
    let [first, second] = [("1", 5), ("2", 6)].map(|(id, priority)| bench.put(of("a", id, priority)));
    let leased = bench.take(up_to(9));
    assert_eq!(sequences(&leased), [first]);
    let better = bench.put(of("a", "0", 1));
    assert_eq!(sequences(&bench.take(up_to(9))), [better], "it comes before the one that runs");
    settle(&mut bench, leased[0], SettleAction::Fail);
    assert_eq!(bench.take(up_to(9)), [], "the failed one comes first and is not due");
    bench.now = bench.now + SECOND;
    let leased = bench.take(up_to(9));
    assert_eq!(sequences(&leased), [better], "its lease was over too, and it is the best");
    settle(&mut bench, leased[0], SettleAction::Complete);
    let leased = bench.take(up_to(9));
    assert_eq!(sequences(&leased), [first]);
    settle(&mut bench, leased[0], SettleAction::Complete);
    assert_eq!(sequences(&bench.take(up_to(9))), [second]);
}

#[test]
fn a_dequeue_by_id_is_refused_while_its_value_is_held() {
    let mut bench = Bench::new(exclusive(1, Order::Loose));
    bench.put(of("a", "1", 0));
    let second = bench.put(of("a", "2", 0));
    let leased = bench.take(up_to(1))[0];
    let by_id = || Command::Dequeue(Dequeue { message: Some(by_key(second)), ..up_to(1) });
    assert_eq!(bench.apply(by_id()), Err(Refusal::ValueHeld));
    settle(&mut bench, leased, SettleAction::Complete);
    assert!(bench.apply(by_id()).is_ok());
}

#[test]
fn a_message_without_its_value_is_refused() {
    let mut bench = Bench::new(exclusive(1, Order::Loose));
    let without = message("1", &[("zone", "a")]);
    let elsewhere = NewMessage { routing: Some(routing("b")), ..of("a", "2", 0) };
    let unrouted = NewMessage { routing: None, ..of("a", "3", 0) };
    for sent in [without, elsewhere, unrouted] {
        let refused = bench.apply(Command::Enqueue(Box::new(sent)));
        assert_eq!(refused, Err(InvalidCommandPart::ExclusivityValue.into()));
    }
}

#[test]
fn limits_out_of_range_are_refused() {
    let mut bench = Bench::new(exclusive(1, Order::Loose));
    let set = |bench: &mut Bench, value: &str, limit| {
        bench.apply(Command::SetValueLimit { value: routing(value), limit: Some(limit) })
    };
    assert_eq!(set(&mut bench, "a", 10_001), Err(InvalidCommandPart::ValueLimit.into()));
    for n in 0..VALUE_LIMITS_MAX {
        assert_eq!(set(&mut bench, &n.to_string(), 10_000), Ok(Reply::ValueLimitSet));
    }
    assert_eq!(set(&mut bench, "one more", 1), Err(Refusal::Full(ShardCapacity::ValueLimits)));
    assert_eq!(set(&mut bench, "0", 1), Ok(Reply::ValueLimitSet), "a known one may change");
    let mut simple = Bench::new(settings());
    assert_eq!(set(&mut simple, "a", 1), Err(InvalidCommandPart::NotExclusive.into()));
}

#[test]
fn what_makes_a_queue_exclusive_changes_only_while_it_is_empty() {
    let mut bench = Bench::new(exclusive(1, Order::Loose));
    bench.put(of("a", "1", 0));
    assert_eq!(bench.configure(settings()), Err(Refusal::NotEmpty));
    assert_eq!(bench.configure(exclusive(1, Order::Strict)), Err(Refusal::NotEmpty));
    assert_eq!(bench.configure(exclusive(2, Order::Loose)), Ok(Reply::Configured));
    let mut empty = Bench::new(settings());
    assert_eq!(empty.configure(exclusive(1, Order::Strict)), Ok(Reply::Configured));
    assert_eq!(empty.configure(exclusive(0, Order::Strict)), Err(InvalidCommandPart::Settings.into()));
}

/// A bench with two messages for each of `count` values, one of them running.
fn held_values(count: usize) -> Bench {
    let large = Settings { quota_messages: 10_000, ..exclusive(1, Order::Loose) };
    let mut bench = Bench::new(large);
    for n in 0..count {
        bench.put(of(&format!("v{n}"), &format!("{n}-1"), 0));
        bench.put(of(&format!("v{n}"), &format!("{n}-2"), 0));
    }
    while !bench.take(Dequeue { lease: Some(2 * SECOND), ..up_to(100) }).is_empty() {}
    bench
}

#[test]
fn a_higher_limit_of_the_queue_is_taken_up_in_steps_and_nothing_is_said_to_be_empty_meanwhile() {
    let mut bench = held_values(3 * VALUES_RECHECKED_MAX);
    let higher = Settings { quota_messages: 10_000, ..exclusive(2, Order::Loose) };
    assert_eq!(bench.configure(higher), Ok(Reply::Configured));
    assert_eq!(bench.shard.next_event_in(bench.now), Some(Duration::ZERO), "it asks to be swept");
    let mut leased = 0;
    for _ in 0..12 {
        let Ok(Reply::Leases { leases, completeness, .. }) = bench.apply(Command::Dequeue(up_to(100))) else {
            panic!("no leases")
        };
        leased += leases.len();
        if completeness == Completeness::Complete && leases.len() < 100 {
            break;
        }
    }
    assert_eq!(leased, 3 * VALUES_RECHECKED_MAX, "the second message of every value");
}

#[test]
fn values_met_at_a_lowered_limit_are_set_aside_64_a_call() {
    let mut bench = Bench::new(Settings { quota_messages: 10_000, ..exclusive(3, Order::Loose) });
    let count = DEQUEUE_PARKINGS_MAX + 1;
    for round in 0..3 {
        for n in 0..count {
            bench.put(of(&format!("v{n}"), &format!("{n}-{round}"), round));
        }
    }
    let last = bench.put(of("free", "last", 9));
    assert_eq!(bench.take(Dequeue { lease: Some(2 * SECOND), ..up_to(count) }).len(), count);
    let lower = Settings { quota_messages: 10_000, ..exclusive(1, Order::Loose) };
    assert_eq!(bench.configure(lower), Ok(Reply::Configured));
    let first = bench.apply(Command::Dequeue(up_to(1)));
    assert_eq!(first, Ok(Reply::Leases { leases: Vec::new(), completeness: Completeness::More, cursor: None }));
    assert_eq!(sequences(&bench.take(up_to(1))), [last]);
}
