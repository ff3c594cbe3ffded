//! Explanations: each cause for a message, and previews of a dequeue.

use super::*;
use crate::limits::EXPLAIN_POSITION_MAX;
use crate::queue::command::FailureReport;
use crate::queue::filter::Filter;
use crate::queue::messages::message::{AttemptError, CanceledBy, SessionId};
use crate::queue::messages::message_id::MessageId;
use crate::queue::messages::settlement::SettleAction;
use crate::queue::session_records::SessionCall;
use crate::queue::shard::explain::{Cause, FailedAttempts, HoldingLease};

fn causes(bench: &Bench, sequence: u64) -> Vec<Cause> {
    bench.shard.explain(&by_key(sequence), bench.now)
}

fn settle(bench: &mut Bench, leased: LeaseGrant, verb: SettleAction, error: Option<AttemptError>) {
    let failure = FailureReport { delay: Some(5 * SECOND), draw: 0, error };
    let settled = bench.apply(Command::Settle { token: leased.token, verb, failure });
    assert!(settled.is_ok(), "{settled:?}");
}

fn ready(ahead: usize) -> Cause {
    Cause::Ready { ahead, or_more: false }
}

/// A lease of one second on this message, granted at the start.
fn holder(id: &str, session: Option<SessionId>) -> HoldingLease {
    let id = MessageId::new(id).expect("a legal id");
    HoldingLease { id, session, since: START, expires: START + SECOND, cancel_requested: false }
}

#[test]
fn a_waiting_message_has_its_position() {
    let mut bench = Bench::new(Settings { quota_messages: 10_000, ..settings() });
    let [first, second] = ["1", "2"].map(|id| bench.put(message(id, &[])));
    assert_eq!([causes(&bench, first), causes(&bench, second)], [[ready(0)], [ready(1)]]);
    for n in 0..EXPLAIN_POSITION_MAX {
        bench.put(NewMessage { priority: Some(-1), ..message(&format!("better{n}"), &[]) });
    }
    assert_eq!(causes(&bench, first), [ready(EXPLAIN_POSITION_MAX)]);
    assert_eq!(causes(&bench, second), [Cause::Ready { ahead: EXPLAIN_POSITION_MAX, or_more: true }]);
}

#[test]
fn an_invisible_message_has_its_time_and_a_blocked_queue_its_reason() {
    let mut bench = Bench::new(settings());
    let hidden = bench.put(NewMessage { invisibility: Some(SECOND), ..message("1", &[]) });
    bench.block_dequeue("maintenance");
    let reason = Cause::DequeueBlocked("maintenance".into());
    let until = Cause::InvisibleUntil { until: START + SECOND, after_failure: false };
    assert_eq!(causes(&bench, hidden), [until, reason.clone()]);
    bench.now = bench.now + SECOND;
    assert_eq!(causes(&bench, hidden), [reason, ready(0)], "its window is over, though nobody came by");
}

#[test]
fn a_running_message_has_its_worker_and_a_failed_one_its_delay() {
    let mut bench = Bench::new(settings());
    let sequence = bench.put(message("1", &[]));
    let session =
        SessionCall { id: SessionId(7), lease: Some(2 * SECOND), sequence: 1, attempt: 1, received_up_to: None };
    let leased = bench.take(Dequeue { session: Some(session), ..up_to(1) })[0];
    assert_eq!(causes(&bench, sequence), [Cause::Running(holder("1", Some(SessionId(7))))]);
    settle(&mut bench, leased, SettleAction::Fail, None);
    let until = Cause::InvisibleUntil { until: START + 5 * SECOND, after_failure: true };
    assert_eq!(causes(&bench, sequence), [until]);
}

#[test]
fn a_message_at_its_end_says_how_it_came_there() {
    let mut bench = Bench::new(settings());
    let error = AttemptError { signature: "E7".into(), text: "no such title".into() };
    let ends = [SettleAction::Complete, SettleAction::Cancel, SettleAction::Fail].map(|verb| {
        let sequence = bench.put(NewMessage { max_attempts: Some(1), ..message(&format!("{verb:?}"), &[]) });
        let leased = bench.take(up_to(1))[0];
        settle(&mut bench, leased, verb, (verb == SettleAction::Fail).then(|| error.clone()));
        causes(&bench, sequence)
    });
    let canceled = Cause::Canceled(Some(CanceledBy::Worker));
    let errored = Cause::Errored { attempts: 1, error: Some(error.clone()) };
    assert_eq!(ends, [[Cause::Completed], [canceled], [errored]]);
    assert_eq!(causes(&bench, 99), [Cause::Unknown]);
    assert_eq!(bench.apply(Command::Delete), Ok(Reply::Deleted { messages: 3 }));
    assert_eq!(causes(&bench, 1), [Cause::QueueDeleted]);
}

#[test]
fn a_held_message_names_who_has_its_value() {
    let mut bench = Bench::new(exclusive(1, Order::Loose));
    bench.put(of("a", "1", 0));
    let second = bench.put(of("a", "2", 1));
    let other = bench.put(of("b", "3", 2));
    bench.take(up_to(1));
    let held = Cause::ValueHeld { value: routing("a"), limit: 1, holders: vec![holder("1", None)], waiting: 1 };
    assert_eq!(causes(&bench, second), [held]);
    assert_eq!(causes(&bench, other), [ready(0)], "what is held back is not ahead of it");
}

#[test]
fn with_strict_order_a_message_names_the_one_it_waits_for() {
    let mut bench = Bench::new(exclusive(9, Order::Strict));
    bench.put(NewMessage { invisibility: Some(SECOND), ..of("a", "1", 0) });
    let second = bench.put(of("a", "2", 1));
    let (value, id) = (routing("a"), MessageId::new("1").expect("a legal id"));
    let behind = |state, holder| Cause::Behind { value: value.clone(), id: id.clone(), state, holder };
    assert_eq!(causes(&bench, second), [behind(MessageState::Invisible, None)]);
    bench.now = bench.now + SECOND;
    bench.take(up_to(1));
    let held = HoldingLease { since: bench.now, expires: bench.now + SECOND, ..holder("1", None) };
    assert_eq!(causes(&bench, second), [behind(MessageState::Running, Some(Box::new(held)))]);
}

#[test]
fn a_prospect_tells_what_a_dequeue_would_meet() {
    let mut bench = Bench::new(Settings { shapes: vec![shape(&["team"])], ..exclusive(1, Order::Loose) });
    let filter = |value| Filter::new([("team", value)]).expect("a legal filter");
    let [first, held] = ["1", "2"].map(|id| bench.put(of("a", id, 0)));
    bench.put(NewMessage { invisibility: Some(3 * SECOND), ..of("b", "3", 0) });
    let before = bench.shard.preview_dequeue(&filter("a"), bench.now);
    assert_eq!(before.first.map(|key| key.sequence), Some(first));
    bench.take(up_to(1));
    let after = bench.shard.preview_dequeue(&filter("a"), bench.now);
    let cause = Cause::ValueHeld { value: routing("a"), limit: 1, holders: vec![holder("1", None)], waiting: 1 };
    assert_eq!((after.first, after.counts), (None, Some([0, 1, 1, 0, 0, 0])));
    assert_eq!(after.held, [(MessageKey { shard: 0, epoch: 1, sequence: held }, cause)]);
    let hidden = bench.shard.preview_dequeue(&filter("b"), bench.now);
    assert_eq!((hidden.first, hidden.next_visible), (None, Some(START + 3 * SECOND)));
    let nothing = bench.shard.preview_dequeue(&filter("c"), bench.now);
    assert_eq!((nothing.counts, nothing.next_visible, nothing.or_more), (Some([0; 6]), None, false));
}

#[test]
fn a_prospect_counts_the_attempts_of_what_is_out_of_them() {
    let mut bench = Bench::new(settings());
    for (id, attempts) in [("1", 3), ("2", 1)] {
        bench.put(NewMessage { max_attempts: Some(attempts), ..message(id, &[]) });
        for _ in 0..attempts {
            let leased = bench.take(up_to(1))[0];
            settle(&mut bench, leased, SettleAction::Fail, None);
            bench.now = bench.now + 5 * SECOND;
        }
    }
    let failed = bench.shard.preview_dequeue(&Filter::default(), bench.now).failed;
    assert_eq!(failed, FailedAttempts { messages: 2, attempts: 4 });
}
