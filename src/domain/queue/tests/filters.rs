//! Filters of dequeues and depths: declared shapes, walks, back-fill, exclusive queues.

use super::*;
use crate::limits::{DEQUEUE_PARKINGS_MAX, FILTER_WALK_MAX, SHAPES_MAX};
use crate::queue::command::{Completeness, Cursor, FailureReport, MessageUpdate};
use crate::queue::filter::Filter;
use crate::queue::invalid_command::InvalidCommandPart;
use crate::queue::messages::settlement::SettleAction;
use crate::queue::shard::UndeclaredFilter;

fn filter(pairs: &[(&str, &str)]) -> Filter {
    Filter::new(pairs.iter().copied()).expect("a legal filter")
}

/// Settings with large quotas and these shapes.
fn with(shapes: &[&[&str]], settings: Settings) -> Settings {
    let shapes = shapes.iter().map(|keys| shape(keys)).collect();
    Settings { shapes, quota_messages: 10_000, ..settings }
}

/// The leased sequences, the completeness and the cursor of a dequeue.
fn dequeue(bench: &mut Bench, asked: Dequeue) -> (Vec<u64>, Completeness, Option<Cursor>) {
    match bench.apply(Command::Dequeue(asked)) {
        Ok(Reply::Leases { leases, completeness, cursor }) => (sequences(&leases), completeness, cursor),
        other => panic!("no leases: {other:?}"),
    }
}

fn asking(max: usize, pairs: &[(&str, &str)]) -> Dequeue {
    Dequeue { filter: filter(pairs), ..up_to(max) }
}

fn put_blue(bench: &mut Bench, count: usize) {
    for n in 0..count {
        bench.put(message(&format!("blue{n}"), &[("team", "blue")]));
    }
}

fn complete(bench: &mut Bench, sequence: u64) {
    let token = bench.shard.get(&by_key(sequence)).and_then(|message| {
        let fence = message.lease?.fence;
        Some(crate::queue::messages::message::LeaseToken { key: message.key, fence })
    });
    let token = token.expect("it runs");
    let settled =
        bench.apply(Command::Settle { token, verb: SettleAction::Complete, failure: FailureReport::default() });
    assert!(settled.is_ok(), "{settled:?}");
}

#[test]
fn a_declared_filter_is_served_best_first_whatever_lies_ahead() {
    let mut bench = Bench::new(with(&[&["team"]], settings()));
    put_blue(&mut bench, 2 * FILTER_WALK_MAX);
    let late = bench.put(NewMessage { priority: Some(9), ..message("late", &[("team", "red")]) });
    let soon = bench.put(NewMessage { priority: Some(8), ..message("soon", &[("team", "red"), ("zone", "a")]) });
    let answer = dequeue(&mut bench, asking(9, &[("team", "red")]));
    assert_eq!(answer, (vec![soon, late], Completeness::Complete, None));
    let nothing = dequeue(&mut bench, asking(9, &[("team", "green")]));
    assert_eq!(nothing, (Vec::new(), Completeness::Complete, None));
}

#[test]
fn the_depth_of_a_declared_filter_is_exact_in_every_state() {
    let mut bench = Bench::new(with(&[&["team"]], settings()));
    put_blue(&mut bench, 3);
    bench.put(NewMessage { invisibility: Some(SECOND), ..message("hidden", &[("team", "blue")]) });
    bench.put(message("other", &[("team", "red")]));
    let running = dequeue(&mut bench, asking(2, &[("team", "blue")])).0;
    complete(&mut bench, running[0]);
    assert_eq!(bench.shard.depth(&filter(&[("team", "blue")])), Ok([1, 1, 1, 1, 0, 0]));
    assert_eq!(bench.shard.depth(&filter(&[("team", "green")])), Ok([0; 6]));
    assert_eq!(bench.shard.depth(&Filter::default()), Ok([1, 2, 1, 1, 0, 0]));
}

#[test]
fn the_depth_of_another_filter_is_refused_with_the_nearest_shape() {
    let mut bench = Bench::new(with(&[&["team"], &["team", "zone"]], settings()));
    let nearest = |bench: &Bench, pairs: &[(&str, &str)]| match bench.shard.depth(&filter(pairs)) {
        Err(UndeclaredFilter { nearest, is_filling: false }) => nearest,
        Err(filling) => panic!("declared: {filling:?}"),
        Ok(counts) => panic!("declared: {counts:?}"),
    };
    assert_eq!(nearest(&bench, &[("team", "a"), ("zone", "b"), ("size", "c")]), Some(shape(&["team", "zone"])));
    assert_eq!(nearest(&bench, &[("size", "c"), ("team", "a")]), Some(shape(&["team"])));
    put_blue(&mut bench, 1);
    assert_eq!(bench.configure(with(&[&["size"]], settings())), Ok(Reply::Configured));
    let filling = Err(UndeclaredFilter { nearest: None, is_filling: true });
    assert_eq!(bench.shard.depth(&filter(&[("size", "c")])), filling, "it is not filled yet");
}

#[test]
fn a_walk_is_partial_until_it_comes_to_the_end() {
    let mut bench = Bench::new(with(&[], settings()));
    put_blue(&mut bench, 2 * FILTER_WALK_MAX);
    let red = bench.put(message("red", &[("team", "red")]));
    let (mut answer, mut calls) = (dequeue(&mut bench, asking(1, &[("team", "red")])), 1);
    while answer.1 == Completeness::Partial {
        assert_eq!(answer.0, [0; 0], "red comes last");
        answer = dequeue(&mut bench, Dequeue { cursor: answer.2, ..asking(1, &[("team", "red")]) });
        calls += 1;
    }
    assert_eq!((answer, calls), ((vec![red], Completeness::Complete, None), 3));
    let over = Dequeue { look_at: FILTER_WALK_MAX + 1, ..asking(1, &[("team", "red")]) };
    assert_eq!(bench.apply(Command::Dequeue(over)), Err(InvalidCommandPart::Count.into()));
}

#[test]
fn a_walk_tells_the_keys_of_its_filter_and_how_much_it_looked_at() {
    let mut bench = Bench::new(with(&[&["team"]], settings()));
    put_blue(&mut bench, FILTER_WALK_MAX + 4);
    let mut walked = |pairs: &[(&str, &str)]| {
        let applied = bench.shard.apply(Command::Dequeue(asking(1, pairs)), bench.now);
        applied.walked.map(|walked| (walked.keys, walked.messages))
    };
    assert_eq!(walked(&[("zone", "a"), ("size", "s")]), Some((shape(&["size", "zone"]), FILTER_WALK_MAX)));
    assert_eq!(walked(&[("team", "red"), ("zone", "a")]), None, "a shape inside of it tells that there is nothing");
    for declared in [&[][..], &[("team", "red")], &[("team", "blue")]] {
        assert_eq!(walked(declared), None, "{declared:?} has an index");
    }
}

#[test]
fn a_walk_stays_inside_the_smallest_shape_that_holds_its_filter() {
    let mut bench = Bench::new(with(&[&["team"]], settings()));
    put_blue(&mut bench, 2 * FILTER_WALK_MAX);
    let red = bench.put(message("red", &[("team", "red"), ("zone", "a")]));
    let answer = dequeue(&mut bench, asking(9, &[("team", "red"), ("zone", "a")]));
    assert_eq!(answer, (vec![red], Completeness::Complete, None));
    let nobody = dequeue(&mut bench, asking(9, &[("team", "green"), ("zone", "a")]));
    assert_eq!(nobody, (Vec::new(), Completeness::Complete, None), "no group, no message");
}

#[test]
fn a_message_moved_behind_the_cursor_is_not_lost_to_the_walk() {
    let mut bench = Bench::new(with(&[], settings()));
    put_blue(&mut bench, 3);
    let red = bench.put(NewMessage { priority: Some(5), ..message("red", &[("team", "red")]) });
    let asked = Dequeue { look_at: 2, ..asking(1, &[("team", "red")]) };
    let first = dequeue(&mut bench, asked.clone());
    assert_eq!(first.1, Completeness::Partial);
    bench.now = bench.now + SECOND;
    let sooner = MessageUpdate { priority: Some(-5), ..MessageUpdate::default() };
    assert!(bench.apply(Command::Update { message: by_key(red), update: sooner }).is_ok());
    let second = dequeue(&mut bench, Dequeue { cursor: first.2, ..asked.clone() });
    assert_eq!((second.0.len(), second.1), (0, Completeness::Partial), "it begins anew instead of saying: empty");
    let third = dequeue(&mut bench, Dequeue { cursor: second.2, ..asked });
    assert_eq!(third.0, [red]);
}

#[test]
fn a_shape_declared_late_is_filled_by_sweeps_and_then_used() {
    let mut bench = Bench::new(with(&[], settings()));
    put_blue(&mut bench, 2 * FILTER_WALK_MAX);
    let red = bench.put(message("red", &[("team", "red")]));
    assert_eq!(bench.configure(with(&[&["team"]], settings())), Ok(Reply::Configured));
    assert_eq!(bench.shard.next_event_in(bench.now), Some(Duration::ZERO), "it asks to be swept");
    assert_eq!(dequeue(&mut bench, asking(1, &[("team", "red")])).1, Completeness::Partial, "not used yet");
    bench.put(message("meanwhile", &[("team", "red")]));
    let mut sweeps = 0;
    while let Ok(Reply::Touched { count, completeness: Completeness::More }) =
        bench.apply(Command::Sweep { max: FILTER_WALK_MAX })
    {
        assert_eq!(count, FILTER_WALK_MAX);
        sweeps += 1;
    }
    assert_eq!(sweeps, 2);
    assert_eq!(bench.shard.depth(&filter(&[("team", "red")])), Ok([0, 2, 0, 0, 0, 0]));
    assert_eq!(dequeue(&mut bench, asking(1, &[("team", "red")])), (vec![red], Completeness::Complete, None));
}

#[test]
fn shapes_that_stay_keep_what_they_hold() {
    let mut bench = Bench::new(with(&[&["zone"], &["team"]], exclusive(1, Order::Loose)));
    let [first, second] = ["1", "2"].map(|id| bench.put(of("a", id, 0)));
    assert_eq!(dequeue(&mut bench, asking(1, &[("team", "a")])).0, [first]);
    assert_eq!(dequeue(&mut bench, asking(1, &[("team", "a")])).0, [0; 0], "parked in the shape");
    assert_eq!(bench.configure(with(&[&["team"]], exclusive(1, Order::Loose))), Ok(Reply::Configured));
    complete(&mut bench, first);
    assert_eq!(dequeue(&mut bench, asking(1, &[("team", "a")])), (vec![second], Completeness::Complete, None));
}

#[test]
fn shapes_beyond_their_number_or_twice_are_refused() {
    let names: Vec<String> = (0..=SHAPES_MAX).map(|n| format!("k{n}")).collect();
    let keys: Vec<Vec<&str>> = names.iter().map(|name| vec![name.as_str()]).collect();
    let declared: Vec<&[&str]> = keys.iter().map(Vec::as_slice).collect();
    assert_eq!(with(&declared, settings()).check(), Err(InvalidCommandPart::Settings));
    assert_eq!(with(&declared[1..], settings()).check(), Ok(()));
    assert_eq!(with(&[&["a"], &["a"]], settings()).check(), Err(InvalidCommandPart::Settings));
}

#[test]
fn a_message_whose_metadata_change_leaves_its_group_to_the_one_behind_it() {
    let mut bench = Bench::new(with(&[&["zone"]], exclusive(2, Order::Loose)));
    let in_zone = |id: &str, zone: &str| {
        let pairs = [("team", "red"), ("zone", zone)];
        NewMessage { routing: Some(routing("red")), ..message(id, &pairs) }
    };
    let (first, second) = (bench.put(in_zone("first", "a")), bench.put(in_zone("second", "a")));
    let update = MessageUpdate { metadata: Some(in_zone("first", "b").metadata), ..MessageUpdate::default() };
    assert!(bench.apply(Command::Update { message: by_key(first), update }).is_ok());
    let in_a = dequeue(&mut bench, asking(9, &[("zone", "a")]));
    assert_eq!(in_a, (vec![second], Completeness::Complete, None));
    let in_b = dequeue(&mut bench, asking(9, &[("zone", "b")]));
    assert_eq!(in_b, (vec![first], Completeness::Complete, None));
}

/// An exclusive queue with a shape by zone. It has `count` values with one running message and one of zone a, and a
/// last value with one free message of zone a.
fn full_values(count: usize) -> (Bench, u64) {
    let mut bench = Bench::new(with(&[&["zone"]], exclusive(1, Order::Loose)));
    for n in 0..count {
        let value = format!("v{n}");
        bench.put(of(&value, &format!("{n}-1"), 0));
        let pairs = [("team", value.as_str()), ("zone", "a")];
        let routing = Some(routing(&value));
        bench.put(NewMessage { routing, priority: Some(1), ..message(&format!("{n}-2"), &pairs) });
    }
    while !dequeue(&mut bench, Dequeue { lease: Some(5 * SECOND), ..up_to(100) }).0.is_empty() {}
    let pairs = [("team", "free"), ("zone", "a")];
    let free = bench.put(NewMessage { routing: Some(routing("free")), priority: Some(2), ..message("free", &pairs) });
    (bench, free)
}

#[test]
fn full_values_met_in_a_shape_are_parked_64_a_call_and_return_when_a_lease_ends() {
    let (mut bench, free) = full_values(DEQUEUE_PARKINGS_MAX + 1);
    let asked = || asking(1, &[("zone", "a")]);
    // One was parked when its first message was leased, because that changed no zone. The dequeue meets all others
    // here.
    assert_eq!(dequeue(&mut bench, asked()), (Vec::new(), Completeness::More, None));
    assert_eq!(dequeue(&mut bench, asked()), (vec![free], Completeness::Complete, None));
    assert_eq!(dequeue(&mut bench, asked()), (Vec::new(), Completeness::Complete, None), "all are parked");
    complete(&mut bench, 1);
    assert_eq!(dequeue(&mut bench, asked()), (vec![2], Completeness::Complete, None), "the first value is back");
}

#[test]
fn parked_values_return_when_the_limit_of_the_queue_or_their_own_rises() {
    let (mut bench, _) = full_values(3);
    let asked = || asking(9, &[("zone", "a")]);
    assert_eq!(dequeue(&mut bench, asked()).0.len(), 1);
    let own = Command::SetValueLimit { value: routing("v1"), limit: Some(2) };
    assert_eq!(bench.apply(own), Ok(Reply::ValueLimitSet));
    assert_eq!(dequeue(&mut bench, asked()).0, [4]);
    let higher = with(&[&["zone"]], exclusive(2, Order::Loose));
    assert_eq!(bench.configure(higher), Ok(Reply::Configured));
    assert_eq!(dequeue(&mut bench, asked()).0, [2, 6]);
}

#[test]
fn a_walk_over_full_values_is_partial_after_64_of_them() {
    let (mut bench, free) = full_values(DEQUEUE_PARKINGS_MAX + 1);
    bench.put(of("v0", "without zone, so that the shape is smaller", 9));
    let asked = asking(1, &[("zone", "a"), ("team", "free")]);
    let first = dequeue(&mut bench, asked.clone());
    assert_eq!((first.0, first.1), (Vec::new(), Completeness::Partial));
    let second = dequeue(&mut bench, Dequeue { cursor: first.2, ..asked });
    assert_eq!(second.0, [free]);
}

#[test]
fn a_better_message_of_a_value_ahead_does_not_hide_the_others_from_a_walk() {
    let mut bench = Bench::new(with(&[], exclusive(1, Order::Loose)));
    for n in 0..3 {
        bench.put(of("a", &format!("a{n}"), n));
    }
    let pairs = [("team", "b"), ("zone", "x")];
    bench.put(of("b", "b1", 8));
    let wanted = NewMessage { routing: Some(routing("b")), priority: Some(9), ..message("b2", &pairs) };
    let wanted = bench.put(wanted);
    let asked = Dequeue { look_at: 2, ..asking(1, &[("zone", "x")]) };
    let mut answer = dequeue(&mut bench, asked.clone());
    bench.now = bench.now + SECOND;
    bench.put(of("b", "b0", -1));
    for _ in 0..9 {
        assert!(answer.1 == Completeness::Partial || answer.0 == [wanted], "a false empty: {answer:?}");
        if answer.0 == [wanted] {
            return;
        }
        answer = dequeue(&mut bench, Dequeue { cursor: answer.2, ..asked.clone() });
    }
    panic!("never found: {answer:?}");
}
