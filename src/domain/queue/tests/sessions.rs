//! Sessions: repeats, recalls, confirmed leases, heartbeats, ends.

use super::*;
use crate::limits::{SESSION_CALLS_KEPT, SESSION_KEPT, SESSIONS_MAX};
use crate::queue::command::{Completeness, FailureReport, ShardCapacity};
use crate::queue::invalid_command::InvalidCommandPart;
use crate::queue::messages::message::{LeaseToken, SessionId};
use crate::queue::messages::settlement::SettleAction;
use crate::queue::session_records::{Ending, SessionCall};

const WORKER: SessionId = SessionId(7);

/// A call of a session with a lifetime of 2 s.
fn call(sequence: u64) -> SessionCall {
    SessionCall { id: WORKER, lease: Some(2 * SECOND), sequence, attempt: 1, received_up_to: None }
}

fn asking(max: usize, call: SessionCall) -> Dequeue {
    Dequeue { session: Some(call), ..up_to(max) }
}

/// A bench with `count` messages, whose leases may run for 60 s.
fn with(count: usize) -> Bench {
    let mut bench = Bench::new(Settings { max_run_time: 60 * SECOND, quota_messages: 10_000, ..settings() });
    for n in 0..count {
        bench.put(message(&n.to_string(), &[]));
    }
    bench
}

fn beat(bench: &mut Bench, received_up_to: Option<u64>) -> Result<Reply, Refusal> {
    bench.apply(Command::Heartbeat { session: WORKER, received_up_to })
}

fn end(bench: &mut Bench, ending: Ending, max: usize) -> Result<Reply, Refusal> {
    bench.apply(Command::EndSession { session: WORKER, ending, max })
}

fn complete(bench: &mut Bench, token: LeaseToken) {
    let settled =
        bench.apply(Command::Settle { token, verb: SettleAction::Complete, failure: FailureReport::default() });
    assert!(settled.is_ok(), "{settled:?}");
}

#[test]
fn a_repeated_call_gets_the_same_leases_while_they_hold_and_nothing_after() {
    let mut bench = with(9);
    let first = bench.take(asking(2, call(1)));
    bench.now = bench.now + SECOND / 2;
    let again = bench.take(asking(2, call(1)));
    let tokens = |leases: &[LeaseGrant]| leases.iter().map(|leased| leased.token).collect::<Vec<_>>();
    assert_eq!(tokens(&again), tokens(&first));
    assert_eq!(again[0].expires_in, SECOND / 2, "it goes on as it was");
    complete(&mut bench, first[0].token);
    assert_eq!(tokens(&bench.take(asking(2, call(1)))), [first[1].token]);
    bench.now = bench.now + SECOND;
    assert_eq!(bench.take(asking(2, call(1))), [], "the other has lapsed, and none is leased in its place");
    assert_eq!(sequences(&bench.take(asking(1, call(2)))), [2], "but the next call is");
}

#[test]
fn a_repeat_is_answered_while_dequeue_is_blocked() {
    let mut bench = with(3);
    let first = bench.take(asking(1, call(1)));
    bench.block_dequeue("maintenance");
    assert_eq!(bench.take(asking(1, call(1))), first);
    let next = bench.apply(Command::Dequeue(asking(1, call(2))));
    assert_eq!(next, Err(Refusal::DequeueBlocked("maintenance".into())));
}

#[test]
fn calls_below_the_last_eight_answered_ones_are_too_old() {
    let mut bench = with(20);
    let last = SESSION_CALLS_KEPT as u64 + 1;
    for sequence in 1..=last {
        assert_eq!(bench.take(asking(1, call(sequence))).len(), 1);
    }
    let old = |sequence| Command::Dequeue(asking(1, call(sequence)));
    assert_eq!(bench.apply(old(1)), Err(Refusal::SequenceTooOld));
    assert_eq!(bench.take(asking(1, call(2))).len(), 1, "the second is among the last eight");
}

#[test]
fn a_recall_hands_out_what_is_held_and_bars_lower_tries() {
    let mut bench = with(9);
    let first = bench.take(asking(2, call(1)));
    let recall = |sequence, attempt| Command::Recall(SessionCall { attempt, ..call(sequence) });
    let held = Reply::Leases { leases: first, completeness: Completeness::Complete, cursor: None };
    assert_eq!(bench.apply(recall(1, 2)), Ok(held.clone()));
    assert_eq!(bench.apply(recall(1, 2)), Ok(held), "it takes nothing back");
    assert_eq!(bench.apply(recall(2, 3)), Ok(Reply::Unanswered), "and leases nothing");
    for attempt in [1, 2] {
        let late = Command::Dequeue(asking(1, SessionCall { attempt, ..call(2) }));
        assert_eq!(bench.apply(late), Err(Refusal::TryBarred), "it comes late");
    }
    assert_eq!(bench.take(asking(1, SessionCall { attempt: 3, ..call(2) })).len(), 1);
}

#[test]
fn a_confirmed_lease_ends_with_its_session_and_not_before() {
    let mut bench = with(2);
    let leases = bench.take(asking(1, call(1)));
    assert_eq!(leases[0].expires_in, SECOND, "its own, until it is confirmed");
    let beaten = Reply::Beaten { expires_in: 2 * SECOND, cancel_requested: Vec::new() };
    assert_eq!(beat(&mut bench, Some(1)), Ok(beaten.clone()));
    for _ in 0..9 {
        bench.now = bench.now + 3 * SECOND / 2;
        assert_eq!(beat(&mut bench, None), Ok(beaten.clone()));
    }
    complete(&mut bench, leases[0].token);
    let other = bench.take(asking(1, SessionCall { received_up_to: Some(1), ..call(2) }))[0];
    bench.now = bench.now + SECOND;
    let lost = Command::Settle { token: other.token, verb: SettleAction::Fail, failure: FailureReport::default() };
    assert_eq!(bench.apply(lost), Err(Refusal::LeaseLost), "this one was never confirmed");
}

#[test]
fn a_silent_session_ends_with_its_confirmed_leases() {
    let mut bench = with(3);
    bench.take(asking(3, call(1)));
    assert!(beat(&mut bench, Some(1)).is_ok());
    bench.now = bench.now + 2 * SECOND;
    let swept = bench.apply(Command::Sweep { max: 2 });
    assert_eq!(swept, Ok(Reply::Touched { count: 2, completeness: Completeness::More }), "in steps");
    let ended = Refusal::SessionEnded(Ending::Expired);
    assert_eq!(beat(&mut bench, None), Err(ended.clone()));
    assert_eq!(bench.apply(Command::Dequeue(asking(1, call(2)))), Err(ended));
    assert_eq!(sequences(&bench.take(up_to(9))), [1, 2, 3], "others are served what it had");
}

#[test]
fn a_session_without_confirmed_leases_may_be_silent() {
    let mut bench = with(3);
    let leases = bench.take(asking(1, call(1)));
    complete(&mut bench, leases[0].token);
    bench.now = bench.now + 100 * SECOND;
    assert_eq!(bench.take(asking(1, call(2))).len(), 1);
}

#[test]
fn a_closed_session_gives_its_attempts_back_and_a_replaced_one_does_not() {
    for (ending, attempt) in [(Ending::Closed, 1), (Ending::Replaced, 2)] {
        let mut bench = with(3);
        bench.take(asking(3, call(1)));
        assert!(beat(&mut bench, Some(1)).is_ok());
        let more = Reply::Touched { count: 2, completeness: Completeness::More };
        assert_eq!(end(&mut bench, ending, 2), Ok(more));
        let rest = Reply::Touched { count: 1, completeness: Completeness::Complete };
        assert_eq!(end(&mut bench, Ending::Replaced, 2), Ok(rest), "the first ending stands");
        let attempts = bench.take(up_to(9)).iter().map(|leased| leased.attempt_number).collect::<Vec<_>>();
        assert_eq!(attempts, [attempt; 3], "{ending:?}");
        assert_eq!(bench.apply(Command::Recall(call(1))), Err(Refusal::SessionEnded(ending)));
    }
}

#[test]
fn an_ended_session_is_refused_where_it_was_not_known_too() {
    let mut bench = with(1);
    let nothing = Reply::Touched { count: 0, completeness: Completeness::Complete };
    assert_eq!(end(&mut bench, Ending::Replaced, 9), Ok(nothing));
    let late = bench.apply(Command::Dequeue(asking(1, call(1))));
    assert_eq!(late, Err(Refusal::SessionEnded(Ending::Replaced)));
    assert_eq!(end(&mut bench, Ending::Closed, 0), Err(InvalidCommandPart::Count.into()));
}

#[test]
fn a_session_is_forgotten_ten_minutes_after_its_last_lease() {
    let mut bench = with(1);
    let leases = bench.take(asking(1, call(1)));
    complete(&mut bench, leases[0].token);
    assert!(beat(&mut bench, None).is_ok());
    bench.now = bench.now + SESSION_KEPT;
    let swept = bench.apply(Command::Sweep { max: 256 });
    assert!(matches!(swept, Ok(Reply::Touched { completeness: Completeness::Complete, .. })), "{swept:?}");
    assert_eq!(beat(&mut bench, None), Err(Refusal::SessionNotFound));
}

#[test]
fn a_session_that_only_replays_confirms_nothing() {
    let mut bench = with(2);
    let own = |sequence| SessionCall { lease: None, received_up_to: Some(9), ..call(sequence) };
    let leases = bench.take(asking(1, own(1)));
    assert_eq!(bench.take(asking(1, own(1))), leases);
    assert_eq!(beat(&mut bench, Some(1)), Err(InvalidCommandPart::Session.into()));
    bench.now = bench.now + SECOND;
    assert_eq!(sequences(&bench.take(up_to(1))), [1], "its lease has its own end");
}

#[test]
fn an_extension_never_outlives_the_session() {
    let mut bench = with(1);
    let token = bench.take(asking(1, call(1)))[0].token;
    assert!(beat(&mut bench, Some(1)).is_ok());
    let extend = |lease| Command::Extend { token, lease };
    let extended = |expires_in| Ok(Reply::Extended { expires_in, cancel_requested: false });
    assert_eq!(bench.apply(extend(9 * SECOND)), extended(2 * SECOND));
    assert_eq!(bench.apply(extend(SECOND)), extended(SECOND), "it may be shorter");
}

#[test]
fn a_confirmed_lease_ends_after_the_longest_run_however_often_its_session_is_heard() {
    let mut bench = with(1);
    let token = bench.take(asking(1, call(1)))[0].token;
    for _ in 0..59 {
        assert!(beat(&mut bench, Some(1)).is_ok());
        bench.now = bench.now + SECOND;
    }
    assert_eq!(bench.state(token.key.sequence), Some(MessageState::Running));
    bench.now = bench.now + SECOND;
    assert_eq!(sequences(&bench.take(up_to(1))), [token.key.sequence], "it ran for 60 s");
}

#[test]
fn a_heartbeat_tells_which_messages_somebody_wants_canceled() {
    let mut bench = with(2);
    let token = bench.take(asking(2, call(1)))[1].token;
    let cancel = Command::CancelMessage { message: MessageRef::Key(token.key), reason: "asked".into() };
    assert!(bench.apply(cancel).is_ok());
    let told = Reply::Beaten { expires_in: 2 * SECOND, cancel_requested: vec![token] };
    assert_eq!(beat(&mut bench, None), Ok(told));
}

#[test]
fn calls_out_of_range_are_refused() {
    let mut bench = with(1);
    let bad = [
        (SessionCall { sequence: 0, ..call(1) }, InvalidCommandPart::Sequence),
        (SessionCall { attempt: 0, ..call(1) }, InvalidCommandPart::Try),
        (SessionCall { lease: Some(Duration::ZERO), ..call(1) }, InvalidCommandPart::SessionLease),
        (SessionCall { lease: Some(13 * 3_600 * SECOND), ..call(1) }, InvalidCommandPart::SessionLease),
    ];
    for (call, invalid) in bad {
        assert_eq!(bench.apply(Command::Dequeue(asking(1, call))), Err(invalid.into()), "{call:?}");
    }
    assert_eq!(beat(&mut bench, None), Err(Refusal::SessionNotFound));
}

#[test]
fn a_shard_full_of_sessions_refuses_new_ones() {
    let mut bench = with(1);
    for n in 0..SESSIONS_MAX {
        let id = SessionId(1_000 + n as u128);
        assert!(bench.apply(Command::Recall(SessionCall { id, attempt: 2, ..call(1) })).is_ok());
    }
    let one_more = bench.apply(Command::Dequeue(asking(1, call(1))));
    assert_eq!(one_more, Err(Refusal::Full(ShardCapacity::Sessions)));
    bench.now = bench.now + SESSION_KEPT;
    let swept = bench.apply(Command::Sweep { max: 1 });
    assert_eq!(swept, Ok(Reply::Touched { count: 1, completeness: Completeness::More }));
    assert_eq!(bench.take(asking(1, call(1))).len(), 1);
}
